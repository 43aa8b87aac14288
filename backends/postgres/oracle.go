package postgres

import (
	"context"
	"errors"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/percolate-go/percolate/percolator/oracle"
)

const (
	// maxLag is how far the oracle's sequence may be behind the server's clock. A draw
	// that finds it further behind sets it forward, if nobody else is drawing just then.
	maxLag = 20 << oracle.LogicalBits
	// ahead is how far above a timestamp the durable bound is set. The bound is raised
	// when half of that is used up. So a standby that lags by less than the other half
	// takes over and hands out no timestamp twice.
	ahead = 4000 << oracle.LogicalBits
	// step is the increment of the sequence, and the most that one step of it draws.
	step = 4096
)

// stepSQL is what most draws are: one step of the sequence. If the sequence is behind the
// server's clock, it is set forward instead, under an exclusive lock, as long as it stays
// below the bound $2, which is durable. The result is the last of the timestamps, or null
// if the function draw has to do more. The parts of a CASE are done in their order.
//
// Only a connection that has used the function draw may use this. That function looked at
// the incarnation, which stays the same as long as the connection lives: a crash ends all
// connections.
var stepSQL = `SELECT CASE WHEN pg_catalog.pg_is_in_recovery() OR pg_catalog.set_config('synchronous_commit', 'off', true) IS NULL
	OR pg_catalog.set_config('lock_timeout', '0', true) IS NULL THEN NULL ELSE ` + stepFrom("$1::bigint", "$2::bigint") + ` END`

// mostLags is how many times lag the sequence may be behind the clock while others draw.
const mostLags = 10

// stepFrom is the SQL of a step, of a sequence that may be behind the clock by lag, below a bound. The
// shared lock, which lasts until the transaction ends, keeps the sequence from being set forward meanwhile.
//
// Where many draw, several find at the same moment that the sequence is behind. One of them sets it forward, or nobody can
// because somebody else draws just then. The others take a step of what there is: to have them call the function draw, which waits
// for everybody, would have a commit do everything twice, and whoever draws next wait too. Only a sequence that is far
// behind makes them do that, so it cannot stay behind.
func stepFrom(lag, bound string) string {
	behind := func(lag string) string {
		return `(pg_catalog.pg_sequence_last_value(` + clockSQL + `) OPERATOR(pg_catalog.+) ` + lag + `) OPERATOR(pg_catalog.>=) ` + nowSQL
	}
	const next = `CASE WHEN pg_catalog.pg_advisory_xact_lock_shared(` + clockLockSQL + `) IS NOT NULL THEN pg_catalog.nextval(` + clockSQL + `) END`
	return `CASE
	WHEN ` + behind(lag) + ` THEN ` + next + `
	WHEN pg_catalog.pg_try_advisory_xact_lock(` + clockLockSQL + `) THEN
		CASE WHEN (` + forwardSQL + ` OPERATOR(pg_catalog.+) 8192::bigint) OPERATOR(pg_catalog.<=) ` + bound + ` THEN
			pg_catalog.setval(` + clockSQL + `, ` + forwardSQL + ` OPERATOR(pg_catalog.+) 4096::bigint) END
	WHEN ` + behind(`(`+lag+` OPERATOR(pg_catalog.*) `+strconv.Itoa(mostLags)+`::bigint)`) + ` THEN ` + next + `
	END`
}

// Every name is written with its schema, since the connection's search path is not ours to trust.
const (
	clockSQL     = `E'{{schema_literal}}.clock'::pg_catalog.regclass`
	clockLockSQL = `'{{clock_lock}}'::bigint`
	nowSQL       = `((pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000::double precision)::bigint OPERATOR(pg_catalog.<<) 18)`
	forwardSQL   = `greatest(pg_catalog.pg_sequence_last_value(` + clockSQL + `), ` + nowSQL + `)`
)

// serverOracle is the oracle on the server, for calls that are inside of the gate.
type serverOracle struct{ s *plainStore }

// Draw implements oracle.Oracle. n is above 0.
func (d serverOracle) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	for whole := n > step; ; {
		first, err := d.s.draw(ctx, n, whole)
		if err != nil || first != 0 {
			return first, err
		}
		// The sequence has to be set forward, or the bound was reached in between. The
		// function draw does either.
		whole = true
		if err := ctx.Err(); err != nil {
			return 0, err
		}
	}
}

// draw returns the first of n timestamps, or 0 if it has to be called again, with whole.
func (s *plainStore) draw(ctx context.Context, n int, whole bool) (first oracle.Timestamp, err error) {
	var d statedDraw
	choose := func(c *pgconn.PgConn) (query, [][]byte) {
		d = s.drawOn(c, n, whole)
		return d.q, d.params
	}
	answered := false
	// A draw whose answer was lost did no harm: nobody has its timestamps.
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

// boundOn returns the bound that a connection knows, or 0.
func (s *plainStore) boundOn(c *pgconn.PgConn) uint64 {
	bound, _ := c.CustomData()[s.names.clockKey].(uint64)
	return bound
}

// stepped takes note of the first timestamp of a step, 0 for one that could not be made: the connection knew the bound
// knew, or 0, and the step used bound. Near the bound, the connection forgets it, and so its next draw looks whether
// it was raised, or raises it.
func (s *plainStore) stepped(c *pgconn.PgConn, knew, bound uint64, first oracle.Timestamp) {
	last := uint64(first)
	if first != 0 {
		last += step - 1
	}
	switch {
	case last == 0 || last+ahead/4 > bound:
		delete(c.CustomData(), s.names.clockKey)
	case knew == 0 && !s.pooler: // where a connection is one to a process of the server
		c.CustomData()[s.names.clockKey] = bound
	}
}

// drawOn says how a connection draws n timestamps: by a step, which draws at most step of
// them, or by the function draw. whole asks for the function.
func (s *plainStore) drawOn(c *pgconn.PgConn, n int, whole bool) statedDraw {
	if bound := s.boundOn(c); bound != 0 && !whole {
		return statedDraw{s.q.step, [][]byte{int8Param(maxLag), int8Param(bound)}, func(f *fields) oracle.Timestamp {
			first := oracle.Timestamp(0)
			if last := f.int8(0); last != 0 {
				first = oracle.Timestamp(last - step + 1)
			}
			s.stepped(c, bound, bound, first)
			if uint64(first)+step-1 > bound {
				return 0
			}
			return first
		}}
	}
	params := [][]byte{int8Param(uint64(n)), int8Param(maxLag), int8Param(ahead)} //nolint:gosec // above 0
	return statedDraw{s.q.draw, params, func(f *fields) oracle.Timestamp {
		if !s.pooler { // where a connection is one to a process of the server
			c.CustomData()[s.names.clockKey] = f.int8(1)
		}
		return oracle.Timestamp(f.int8(0))
	}}
}

// Flush implements rowstore.Deferrer.
func (s *plainStore) Flush(ctx context.Context) error {
	ctx, done, err := s.gate.Begin(ctx, "flush")
	if err != nil {
		return err
	}
	defer done()
	// A flush may happen twice without harm, so it is not sent as a write.
	answered := false
	if err := s.run(ctx, s.q.flush, nil, false, nil, func(*fields) { answered = true }); err != nil {
		return s.gate.Fail("flush", err)
	}
	if !answered {
		return s.gate.Fail("flush", errors.New("the server did not answer"))
	}
	return nil
}
