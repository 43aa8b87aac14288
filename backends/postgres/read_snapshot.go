package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// ReadSnapshot implements rowstore.SnapshotReader. One function makes a step of the oracle, and then reads at the
// timestamps, with a snapshot that is newer than they are.
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
	var of []int
	for i := range asks {
		for range asks[i].Reads {
			of = append(of, i)
		}
		reads = append(reads, asks[i].Reads...)
	}
	rows := make([]rowstore.Row, len(reads))
	first, busy, err := s.drawAndRead(ctx, reads, of, rows)
	if err != nil {
		return nil, err
	}
	if first == 0 {
		if first, err = (serverOracle{s}).Draw(ctx, len(asks)); err != nil {
			return nil, err
		}
		for i := range reads {
			busy = append(busy, i) // all of them
		}
	}
	answers := make([]rowstore.SnapshotRows, len(asks))
	n := 0
	for i := range asks {
		from := n
		n += len(asks[i].Reads)
		answers[i] = rowstore.SnapshotRows{TS: first + oracle.Timestamp(i), Rows: rows[from:n:n]} //nolint:gosec // few
	}
	if len(busy) == 0 {
		return answers, nil
	}
	// These are read now that the timestamps are known.
	at := make([]rowstore.RowRead, 0, len(reads))
	for i := range asks {
		at = append(at, asks[i].At(answers[i].TS)...)
	}
	again := make([]rowstore.RowRead, len(busy))
	for k, i := range busy {
		again[k] = at[i]
	}
	seen, err := s.read(ctx, again, len(busy) < len(reads))
	if err != nil {
		return nil, err
	}
	for k, i := range busy {
		rows[i] = seen[k]
		a := &answers[of[i]]
		switch err := seen[k].Err; {
		case a.Err != nil:
		case err != nil:
			*a = rowstore.SnapshotRows{Err: s.gate.Fail("read snapshot", err)} // it is asked again as a whole
		default:
			a.Apart = true
		}
	}
	return answers, nil
}

// drawAndRead draws a timestamp for each ask, and answers reads, each at that of its ask. It
// returns the first of the timestamps, or 0 where the two cannot be done together, and the reads of busy rows, which are
// not answered.
func (s *plainStore) drawAndRead(ctx context.Context, reads []rowstore.RowRead, of []int, rows []rowstore.Row) (oracle.Timestamp, []int, error) {
	if of[len(of)-1] >= step || len(reads) > maxReadRows {
		return 0, nil, nil
	}
	which := make([]int, 0, len(reads))
	for i := range reads {
		rows[i].Table, rows[i].Row = reads[i].Table, reads[i].Row
		switch {
		case tooLong(reads[i].Table, reads[i].Row):
		case isPoint(reads[i].Selectors):
			which = append(which, i)
		default:
			return 0, nil, nil
		}
	}
	a := arrayPool.Get().(*arrays)
	defer arrayPool.Put(a)
	p := s.newPoints(a, reads, which, rows, of, settleTry)
	var on *pgconn.PgConn
	var bound uint64
	choose := func(c *pgconn.PgConn) (query, [][]byte) {
		on, bound = c, s.boundOn(c)
		if a.params[2] = nil; bound != 0 {
			a.params[2] = int8Param(bound)
		}
		return s.q.drawn, a.params
	}
	line := func(f *fields) {
		p.line(f)
		if f.int4(0) == 0 {
			s.stepped(on, bound, f.int8(1), p.first)
		}
	}
	if err := s.runOn(ctx, choose, false, p.begin, line, nil); err != nil {
		if sqlState(err) == outOfMemory {
			return 0, nil, nil // there is no room for so many locks
		}
		return 0, nil, err
	}
	p.end()
	return p.first, slices.Compact(p.busy), nil
}

var _ rowstore.SnapshotReader = (*plainStore)(nil)
