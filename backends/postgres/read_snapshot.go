package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// ReadSnapshot implements rowstore.SnapshotReader. A step of the oracle and a read of the
// newest versions travel together, as two transactions. The server begins the second when
// the first has ended, so the read sees everything up to the timestamps. It does not know
// them, so it may see newer writes too. The few rows that have one are read again.
func (s *plainStore) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	ctx, done, err := s.gate.Begin(ctx, "read snapshot")
	if err != nil {
		return nil, err
	}
	defer done()
	if err := rowstore.CheckSnapshotReads(asks); err != nil {
		return nil, fmt.Errorf("postgres: read snapshot: %w", err)
	}
	if len(asks) == 0 {
		return nil, nil
	}
	answers, err := s.readSnapshot(ctx, asks)
	if err != nil {
		return nil, s.gate.Fail("read snapshot", err)
	}
	return answers, nil
}

func (s *plainStore) readSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	var reads []rowstore.RowRead
	for i := range asks {
		reads = append(reads, asks[i].Reads...)
	}
	rows := make([]rowstore.Row, len(reads))
	first, err := s.stepAndRead(ctx, len(asks), reads, rows)
	if err != nil {
		return nil, err
	}
	apart := first == 0
	if apart {
		if first, err = (serverOracle{s}).Draw(ctx, len(asks)); err != nil {
			return nil, err
		}
	}
	// What has to be read at the timestamps, now that they are known.
	var again []rowstore.RowRead
	var which []int
	answers := make([]rowstore.SnapshotRows, len(asks))
	n := 0
	for i := range asks {
		ts := first + oracle.Timestamp(i) //nolint:gosec // few
		from := n
		n += len(asks[i].Reads)
		answers[i] = rowstore.SnapshotRows{TS: ts, Rows: rows[from:n:n]}
		var at []rowstore.RowRead
		for j := from; j < n; j++ {
			if apart || !cutAt(&rows[j], reads[j].Selectors, ts) {
				if at == nil {
					at = asks[i].At(ts)
				}
				again, which = append(again, at[j-from]), append(which, j)
			}
		}
		answers[i].Apart = at != nil
	}
	if len(again) > 0 {
		seen, err := s.read(ctx, again)
		if err != nil {
			return nil, err
		}
		for k, j := range which {
			rows[j] = seen[k]
		}
	}
	return answers, nil
}

// stepAndRead draws n timestamps and answers reads as if the timestamps were
// the greatest one. It returns 0 where the two cannot be done together here.
func (s *plainStore) stepAndRead(ctx context.Context, n int, reads []rowstore.RowRead, rows []rowstore.Row) (oracle.Timestamp, error) {
	if n > step || s.pooler || s.explicit.Load() || s.unprepared.Load() {
		return 0, nil
	}
	which := make([]int, 0, len(reads))
	for i := range reads {
		rows[i].Table, rows[i].Row = reads[i].Table, reads[i].Row
		switch {
		case tooLong(reads[i].Table, reads[i].Row):
		case isPoint(reads[i].Selectors):
			which = append(which, i)
		default:
			return 0, nil
		}
	}
	a := arrayPool.Get().(*arrays)
	defer arrayPool.Put(a)
	p := newPoints(a, reads, which, rows)
	c, err := acquire(ctx, s.pool)
	if err != nil {
		return 0, err
	}
	defer c.Release()
	pg := c.Conn().PgConn()
	d := s.drawOn(pg, n, false)
	var statements [2]*pgconn.StatementDescription
	for i, q := range []query{d.q, s.q.point.on(pg)} {
		if statements[i], err = c.Conn().Prepare(ctx, q.name, q.sql); err != nil {
			return 0, nil //nolint:nilerr // one after the other it will work, or fail with the reason
		}
	}
	pipe := pg.StartPipeline(ctx)
	pipe.SendQueryStatement(statements[0], d.params, binary1, binary1)
	pipe.SendPipelineSync()
	pipe.SendQueryStatement(statements[1], a.params, binary1, binary1)
	var first oracle.Timestamp
	p.begin()
	err = pipe.Sync()
	var bad1, bad2 error
	if err == nil {
		bad1, err = readResult(pipe, func(f *fields) { first = d.first(f) })
	}
	if err == nil {
		bad2, err = readResult(pipe, p.line)
	}
	err = errors.Join(err, bad1, bad2, pipe.Close())
	if err != nil {
		if ctx.Err() != nil {
			return 0, err
		}
		return 0, nil // as above
	}
	p.end()
	return first, nil
}

// cutAt reduces a row that was read at the greatest timestamp to what it has at ts. It
// returns false if the row has a newer write, which may hide an older one.
func cutAt(r *rowstore.Row, picks []rowstore.Selector, ts oracle.Timestamp) bool {
	keep := true
	r.Versions = slices.DeleteFunc(r.Versions, func(v rowstore.Version) bool {
		for i := range picks {
			p := &picks[i]
			to := p.To
			if to == rowstore.AssignedTimestamp {
				to = ts
			}
			if p.Family == v.Family && p.Column == v.Column && v.TS >= p.From && v.TS <= to {
				return false
			}
		}
		keep = keep && v.Family != rowstore.Write
		return true
	})
	return keep
}

var _ rowstore.SnapshotReader = (*plainStore)(nil)
