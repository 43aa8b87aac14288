package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/percolate-go/percolate/percolator/oracle"
)

const (
	// maxLag is how far the oracle's sequence may be behind the server's clock before
	// a draw sets it forward.
	maxLag = 20 << oracle.LogicalBits
	// ahead is how far the durable bound is set above the timestamp that needed it. It
	// is raised when half of that is used up, so that a standby that lags by less than
	// the other half takes over without going back.
	ahead = 4000 << oracle.LogicalBits
	// step is the increment of the sequence, and the most that one step of it draws.
	step = 4096
)

// stepSQL is what most draws are: one step of the sequence. Where that is behind
// the server's clock it is set forward instead, alone with it, as long as it stays below the bound
// $2, which is durable. The result is the last of the timestamps, or null where the
// function draw has to do more.
//
// A connection that has used that function may use this: the incarnation that it looked
// at ends with the connection, since the recovery from a crash ends them all. The parts of a CASE
// are done in their order.
const stepSQL = `SELECT CASE
	WHEN pg_catalog.pg_is_in_recovery() OR pg_catalog.set_config('synchronous_commit', 'off', true) IS NULL THEN NULL
	WHEN (pg_catalog.pg_sequence_last_value(` + clockSQL + `) OPERATOR(pg_catalog.+) $1::bigint) OPERATOR(pg_catalog.>=) ` + nowSQL + ` THEN
		CASE WHEN pg_catalog.pg_advisory_xact_lock_shared(` + clockLockSQL + `) IS NOT NULL THEN pg_catalog.nextval(` + clockSQL + `) END
	WHEN pg_catalog.pg_try_advisory_xact_lock(` + clockLockSQL + `) THEN
		CASE WHEN (` + forwardSQL + ` OPERATOR(pg_catalog.+) 8192::bigint) OPERATOR(pg_catalog.<=) $2::bigint THEN
			pg_catalog.setval(` + clockSQL + `, ` + forwardSQL + ` OPERATOR(pg_catalog.+) 4096::bigint) END
	END`

// Every name is written with its schema, since the connection's search path is not ours to trust.
const (
	clockSQL     = `'{{schema_literal}}.clock'::pg_catalog.regclass`
	clockLockSQL = `'{{clock_lock}}'::bigint`
	nowSQL       = `((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000::double precision)::bigint OPERATOR(pg_catalog.<<) 18)`
	forwardSQL   = `greatest(pg_catalog.pg_sequence_last_value(` + clockSQL + `), ` + nowSQL + `)`
)

// drawer is the oracle on the server; a Batch stands before it.
type drawer struct{ s *store }

// Draw implements oracle.Oracle.
func (d drawer) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	ctx, done, err := d.s.enter(ctx, "draw")
	if err != nil {
		return 0, err
	}
	defer done()
	if n < 1 {
		return 0, fmt.Errorf("postgres: draw of %d timestamps", n)
	}
	for whole := n > step; ; {
		first, err := d.s.draw(ctx, n, whole)
		if err != nil {
			return 0, d.s.fail("draw", err)
		}
		if first != 0 {
			return first, nil
		}
		// The sequence has to be set forward; or the bound was reached between two looks
		// at it, and the next call raises it.
		whole = true
		if err := ctx.Err(); err != nil {
			return 0, d.s.fail("draw", err)
		}
	}
}

// draw returns 0 when it has to be called again, as a whole.
func (s *store) draw(ctx context.Context, n int, whole bool) (first oracle.Timestamp, err error) {
	var d statedDraw
	choose := func(c *pgconn.PgConn) (query, [][]byte) {
		d = s.drawOn(c, n, whole)
		return d.q, d.params
	}
	answered := false
	// A draw that may have happened is as good as none: its timestamps are lost.
	err = s.runOn(ctx, choose, false, func() { answered, first = false, 0 }, func(f *fields) {
		answered = true
		first = d.first(f)
	}, nil)
	if err == nil && !answered {
		err = errors.New("the server did not answer")
	}
	return first, err
}

// statedDraw is a draw on one connection: a step, where the connection knows the
// bound, or the function draw.
type statedDraw struct {
	q      query
	params [][]byte
	// first reads the answer: the first of the timestamps, or 0.
	first func(f *fields) oracle.Timestamp
}

// drawOn states a draw of n timestamps, at most step of them unless whole, which
// asks for the function.
func (s *store) drawOn(c *pgconn.PgConn, n int, whole bool) statedDraw {
	key := s.names.clockKey
	if bound, _ := c.CustomData()[key].(uint64); bound != 0 && !whole {
		return statedDraw{s.q.step, [][]byte{int8Param(maxLag), int8Param(bound)}, func(f *fields) oracle.Timestamp {
			last := f.int8(0)
			if last+ahead/4 > bound || last == 0 {
				// Time to look whether the bound was raised, or to raise it.
				delete(c.CustomData(), key)
			}
			if last == 0 || last > bound {
				return 0
			}
			return oracle.Timestamp(last - step + 1)
		}}
	}
	params := [][]byte{int8Param(uint64(n)), int8Param(maxLag), int8Param(ahead)} //nolint:gosec // above 0
	return statedDraw{s.q.draw, params, func(f *fields) oracle.Timestamp {
		if !s.pooler { // where a connection is one to a process of the server
			c.CustomData()[key] = f.int8(1)
		}
		return oracle.Timestamp(f.int8(0))
	}}
}

// Flush implements rowstore.Deferrer.
func (s *store) Flush(ctx context.Context) error {
	ctx, done, err := s.enter(ctx, "flush")
	if err != nil {
		return err
	}
	defer done()
	// It may happen twice without harm, and so it is not a write.
	answered := false
	if err := s.run(ctx, s.q.flush, nil, false, nil, func(*fields) { answered = true }); err != nil {
		return s.fail("flush", err)
	}
	if !answered {
		return s.fail("flush", errors.New("the server did not answer"))
	}
	return nil
}
