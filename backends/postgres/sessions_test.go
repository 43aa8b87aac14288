package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// strangeSettings changes what any user may change of a session and what might change the meaning
// of a statement: how literals and names are read and written, what is waited for, how
// transactions begin, where tables are made, and what the planner may do. Without JIT: the server
// would compile such dear plans for most of the time.
const strangeSettings = `
	SET standard_conforming_strings = off; SET escape_string_warning = on; SET backslash_quote = off;
	SET quote_all_identifiers = on; SET bytea_output = 'escape'; SET array_nulls = off; SET transform_null_equals = on;
	SET DateStyle = 'SQL, DMY'; SET IntervalStyle = 'sql_standard'; SET TimeZone = 'Asia/Kolkata'; SET extra_float_digits = -15;
	SET search_path = nowhere; SET row_security = off; SET default_tablespace = ''; SET check_function_bodies = on;
	SET lock_timeout = '1ms'; SET statement_timeout = '1min'; SET synchronous_commit = off; SET client_min_messages = error;
	SET default_transaction_isolation = 'serializable'; SET default_transaction_deferrable = on;
	SET plan_cache_mode = force_custom_plan; SET from_collapse_limit = 1; SET join_collapse_limit = 1;
	SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SET enable_nestloop = off; SET enable_sort = off;
	SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; SET cursor_tuple_fraction = 0;
	SET plpgsql.extra_errors = 'all'; SET plpgsql.extra_warnings = 'all'; SET jit = off;`

// strangePool makes a pool whose sessions have strange settings, and more of them.
func strangePool(t testing.TB, dsn, more string) *pgxpool.Pool {
	t.Helper()
	return ownPool(t, dsn, func(cfg *pgxpool.Config) {
		cfg.MaxConns = 3
		cfg.ConnConfig.OnNotice = OnNotice
		cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error { return exec(ctx, c, strangeSettings+more) }
	})
}

// Nothing that a program sets for its sessions changes what the store's statements mean. One schema
// is made under such settings and used under the usual ones, and one the other way round.
func TestSettingsOfSessions(t *testing.T) {
	t.Parallel()
	// It has a server of its own: by so short a lock_timeout what others do to databases there, as a whole, ends calls.
	direct := testserver.NewPostgres(t, nil).URL
	for name, more := range map[string]string{
		"Serializable":  "",
		"ReadCommitted": "SET default_transaction_isolation = 'read committed';",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			strange := strangePool(t, direct, more)
			usual := ownPool(t, direct, func(cfg *pgxpool.Config) { cfg.ConnConfig.OnNotice = OnNotice })
			for _, pools := range [][2]*pgxpool.Pool{{strange, usual}, {usual, strange}} {
				// A name that needs every kind of quoting.
				schema := fmt.Sprintf(`back\slash's "%d" \x41`, schemas.Add(1))
				atend.Do(t, func() { sqlDo(t, direct, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE") })
				for _, pool := range pools {
					s, err := New(ctx, pool, Options{Schema: schema})
					require.NoError(t, err)
					everyCall(ctx, t, s, direct)
					longScans(ctx, t, s)
					require.NoError(t, s.Close())
					sqlDo(t, direct, newNames(schema).expand("TRUNCATE {{schema}}.cell, {{schema}}.past, {{schema}}.data, {{schema}}.notify"))
				}
			}
		})
	}
}

// longScans scans a table of more rows than a page holds, in both directions, through transactions.
func longScans(ctx context.Context, t *testing.T, s rowstore.Store) {
	t.Helper()
	db, err := percolator.New(ctx, s)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(ctx)) }()
	const rows = 3*firstPage + 1
	cell := func(i int) percolator.Cell {
		return percolator.Cell{Table: "long", Row: fmt.Sprintf("r\\%03d\x00", i), Column: `c'\x00`}
	}
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		for i := range rows {
			if err := tx.Set(cell(i), []byte{0, '\\', byte(i)}); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		for _, i := range []int{0, firstPage, rows - 1} {
			got, err := tx.Get(ctx, cell(i))
			require.NoError(t, err)
			require.Equal(t, []byte{0, '\\', byte(i)}, got)
		}
		return nil
	}))
	for _, reverse := range []bool{false, true} {
		n := 0
		for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "long", Reverse: reverse, Selectors: []rowstore.Selector{
			{Family: rowstore.Write, To: oracle.Max, Limit: 1}, {Family: rowstore.Lock, To: oracle.Max},
		}}) {
			require.NoError(t, err)
			n++
		}
		require.Equal(t, rows, n)
	}
}

// A lock_timeout of the session's is about the program's own SQL. Clients of the store take turns
// by waiting for each other, as long as the caller's context allows.
func TestLockTimeoutOfSessions(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	notify := rowstore.Mutation{Table: "t", Row: "a", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Notify, "c", 0)}, Edits: put("a", 7).Edits}
	apply := func(m rowstore.Mutation) func(context.Context, *Store) error {
		return func(ctx context.Context, s *Store) error {
			out, err := s.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{})
			if err == nil && !out[0].Applied {
				err = fmt.Errorf("not applied: %+v", out[0])
			}
			return err
		}
	}
	drawOne := func(ctx context.Context, s *Store) error {
		_, err := s.Oracle().Draw(ctx, 1)
		return err
	}
	const row, clock = "SELECT 1 FROM {{schema}}.cell FOR UPDATE", "SELECT pg_advisory_xact_lock('{{clock_lock}}'::bigint)"
	const forward = "; SELECT setval('{{schema_literal}}.clock', last_value + (1::bigint << 40)) FROM {{schema}}.clock" // so that the step need not
	for name, tc := range map[string]struct {
		lock   string
		before bool // the call is made once before, so that the connection knows the oracle's bound
		call   func(context.Context, *Store) error
	}{
		"Fast":    {row, false, apply(put("a", 6))},
		"General": {row, false, apply(notify)},
		"Draw":    {clock, false, drawOne},
		"Step":    {clock + forward, true, drawOne},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			schema := fresh(t, direct)
			n := newNames(schema)
			pool := ownPool(t, direct, func(cfg *pgxpool.Config) {
				cfg.MaxConns = 1
				cfg.ConnConfig.RuntimeParams["lock_timeout"] = "1ms"
				cfg.ConnConfig.RuntimeParams["application_name"] = n.channel // a name of its own
			})
			s, err := New(ctx, pool, Options{Schema: schema, NoCoalesce: true})
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			require.NoError(t, apply(put("a", 5))(ctx, s))
			if tc.before {
				require.NoError(t, tc.call(ctx, s))
			}
			holder := connect(ctx, t, direct)
			require.NoError(t, exec(ctx, holder, "BEGIN; "+n.expand(tc.lock)))
			done := make(chan error, 1)
			go func() { done <- tc.call(ctx, s) }()
			waitsForLock(ctx, t, connect(ctx, t, direct), n.channel, done)
			require.NoError(t, exec(ctx, holder, "ROLLBACK"))
			require.NoError(t, <-done)
		})
	}
}

// waitsForLock returns when the program of a name has waited for a lock for some time, or when a
// call of it has ended, whose error stays in done.
func waitsForLock(ctx context.Context, t *testing.T, watcher *pgx.Conn, name string, done chan error) {
	t.Helper()
	eventually(ctx, t, func() error {
		select {
		case err := <-done:
			done <- err
			return nil
		default:
		}
		var waiting int
		err := watcher.QueryRow(ctx, "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) "+
			"WHERE NOT l.granted AND l.waitstart < now() - '50ms'::interval AND a.application_name = $1", name).Scan(&waiting)
		if err == nil && waiting == 0 {
			err = errors.New("nobody waits yet")
		}
		return err
	})
}

// Where a table is locked as a whole, by an administrator's command, a call that cannot wait is one
// that had no effect and may be repeated.
func TestLockTimeoutOfReads(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	s := openTest(t, with(direct, "schema", schema, "coalesce", "off", "lock_timeout", "1ms"))
	holder := connect(ctx, t, direct)
	require.NoError(t, exec(ctx, holder, newNames(schema).expand("BEGIN; LOCK TABLE {{schema}}.cell IN ACCESS EXCLUSIVE MODE")))
	selectors := []rowstore.Selector{{Family: rowstore.Lock, Column: "c", To: oracle.Max}}
	_, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "a", Selectors: selectors}})
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	require.ErrorContains(t, err, "lock_timeout")
	for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: selectors}) {
		require.ErrorIs(t, err, rowstore.ErrUnavailable)
	}
	require.NoError(t, exec(ctx, holder, "ROLLBACK"))
	_, err = s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "a", Selectors: selectors}})
	require.NoError(t, err)
}
