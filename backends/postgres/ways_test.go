package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// testContext bounds hangs; no test measures time against it.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	atend.Do(t, cancel)
	return ctx
}

// Behind PgBouncer in transaction mode sessions are shared, and prepared statements
// of one transaction are not there in the next. Observers only lack pushes there, as over
// a store that offers none.
func TestConformancePgBouncer(t *testing.T) {
	t.Parallel()
	_, schemas := recycled(t)
	bouncer := testserver.NewPgBouncer(t, testserver.SharedPostgres(t), testserver.PgBouncerOptions{}).URL
	open := func(t testing.TB) rowstore.Store { return openTest(t, with(bouncer, "schema", schemas.schema(t))) }
	// Calls that are not merged are more, and each could meet another session.
	conformance.RunStore(t, func(t testing.TB) rowstore.Store {
		return openTest(t, with(bouncer, "schema", schemas.schema(t), "coalesce", "off"))
	}, conformance.Scale(0.05))
	// Transactions see a store only through its calls. Those of many clients at once are what a session that
	// changes hands could break.
	conformance.RunTransactions(t, open, conformance.Scale(0.05), conformance.Without("the store's part has each call, and TestConformance the rest",
		conformance.Transactions, conformance.Anomalies, conformance.DeadClients, conformance.LostReplies, conformance.Collection))
}

// Every mode that pgx knows works, with and without a pooler.
func TestExecModes(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	bouncer := testserver.NewPgBouncer(t, testserver.SharedPostgres(t), testserver.PgBouncerOptions{}).URL
	schema := fresh(t, direct)
	ts := rowstore.Timestamp(10)
	for _, address := range []string{direct, bouncer} {
		for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
			s := openTest(t, with(address, "schema", schema, "default_query_exec_mode", mode))
			ts++
			out, err := s.Apply(ctx, []rowstore.Mutation{put("row", ts)}, rowstore.ApplyOptions{})
			require.NoError(t, err, mode)
			require.True(t, out[0].Applied, mode)
			rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "row", Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: oracle.Max, Limit: 1}}}})
			require.NoError(t, err, mode)
			require.Equal(t, ts, rows[0].Newest(rowstore.Write, "c").TS, mode)
		}
	}
}

// A client that insists on prepared statements finds out that they do not work.
func TestPreparedStatementsGivenUp(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	bouncer := testserver.NewPgBouncer(t, testserver.SharedPostgres(t), testserver.PgBouncerOptions{}).URL
	s := openTest(t, with(bouncer, "schema", fresh(t, direct), "coalesce", "off", "default_query_exec_mode", "cache_statement"))
	require.False(t, s.plain.unprepared.Load())
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for g := range 8 {
		wg.Go(func() {
			for i := range 30 {
				out, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: fmt.Sprint(g, "-", i), Edits: []rowstore.Edit{
					rowstore.Put(rowstore.Write, "c", 5, []byte("v")),
				}}}, rowstore.ApplyOptions{})
				if err != nil || !out[0].Applied {
					errs <- fmt.Errorf("apply: %w, %+v", err, out)
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
}

func TestWakerBehindPooler(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	bouncer := testserver.NewPgBouncer(t, testserver.SharedPostgres(t), testserver.PgBouncerOptions{}).URL
	_, ok := rowstore.Unwrap[rowstore.Waker](openTest(t, with(bouncer, "schema", fresh(t, direct))))
	require.False(t, ok, "notifications do not pass a pooler, and it was not told of another way")
	_, ok = rowstore.Unwrap[rowstore.Waker](openTest(t, with(bouncer, "schema", fresh(t, direct), "listen", direct)))
	require.True(t, ok)
	_, ok = rowstore.Unwrap[rowstore.Waker](openTest(t, with(direct, "schema", fresh(t, direct))))
	require.True(t, ok)
}

// The administrator's defaults decide nothing. Every call goes through a transaction here, which matters where
// there are several clients; TestConformanceOwnPool runs all categories with such a default.
func TestConformanceDefaults(t *testing.T) {
	t.Parallel()
	direct, schemas := recycled(t)
	conformance.RunStore(t, func(t testing.TB) rowstore.Store {
		schema := schemas.schema(t)
		return openTest(t, with(direct, "schema", schema, "application_name", schema, "default_transaction_isolation", "serializable",
			"synchronous_commit", "off"))
	}, conformance.Scale(0.05), conformance.Without("TestConformanceOwnPool has them with another such default, and TestConformance", conformance.Sizes, conformance.Names,
		conformance.Arguments, conformance.Closing, conformance.Contexts, conformance.Reads, conformance.Scans, conformance.Splitting, conformance.Waking))
}

// The defaults of a role may change between two connections.
func TestDefaultsFoundOutLater(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	cfg, err := pgxpool.ParseConfig(direct)
	require.NoError(t, err)
	cfg.MaxConns = 1
	level := "read committed"
	cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.RuntimeParams["default_transaction_isolation"] = level
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	require.NoError(t, err)
	defer pool.Close()
	s, err := New(ctx, pool, Options{Schema: schema, NoCoalesce: true})
	require.NoError(t, err)
	require.False(t, s.plain.explicit.Load())
	level = "serializable"
	pool.Reset()
	out, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, out[0].Applied)
	require.True(t, s.plain.explicit.Load())

	require.NoError(t, s.Close())
	require.NoError(t, pool.Ping(ctx), "Close leaves the application's pool open")
}

func put(row string, ts rowstore.Timestamp) rowstore.Mutation {
	return rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", ts, []byte("v"))}}
}

// grants is what README.md asks for.
const grants = `GRANT USAGE ON SCHEMA %[1]s TO %[2]s;
	GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %[1]s TO %[2]s;
	GRANT SELECT, USAGE, UPDATE ON ALL SEQUENCES IN SCHEMA %[1]s TO %[2]s;`

func TestPermissions(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	quoted := pgx.Identifier{schema}.Sanitize()
	role := fmt.Sprintf("clerk%d", schemas.Add(1))
	atend.Do(t, func() { sqlDo(t, direct, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	sqlDo(t, direct, "CREATE ROLE "+role+" LOGIN PASSWORD 'clerks secret'")
	as := strings.Replace(direct, "postgres:"+testserver.PostgresPassword+"@", role+":clerks%20secret@", 1)
	require.NotEqual(t, direct, as)

	_, err := OpenURL(ctx, with(as, "schema", schema))
	require.ErrorContains(t, err, "permission denied for database", "it may not make a schema")
	require.NotContains(t, err.Error(), "secret")

	s, err := OpenURL(ctx, with(direct, "schema", schema))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	_, err = OpenURL(ctx, with(as, "schema", schema))
	require.ErrorContains(t, err, "permission denied for schema")

	sqlDo(t, direct, fmt.Sprintf(grants, quoted, role))
	s = openTest(t, with(as, "schema", schema))
	ts, err := s.Oracle().Draw(ctx, 1)
	require.NoError(t, err)
	out, err := s.Apply(ctx, []rowstore.Mutation{
		put("a", ts),
		{Table: "t", Row: "b", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Notify, "c", 0)}, Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Notify, "c", ts, nil), rowstore.Put(rowstore.Data, "c", ts, []byte("long")), rowstore.Put(rowstore.Write, "c", ts, nil),
		}},
	}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, out[0].Applied && out[1].Applied)
	n := 0
	for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}) {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, 2, n)
	d, ok := rowstore.Unwrap[rowstore.Deferrer](s)
	require.True(t, ok)
	require.NoError(t, d.Flush(ctx))
	p, ok := rowstore.Unwrap[rowstore.Splitter](s)
	require.True(t, ok)
	_, err = p.Split(ctx, "t", 4)
	require.NoError(t, err)
	r, ok := rowstore.Unwrap[rowstore.Reporter](s)
	require.True(t, ok)
	_, err = r.Report(ctx)
	require.NoError(t, err)
}

func TestBadAddresses(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	wrong := strings.Replace(direct, testserver.PostgresPassword, "hunter2%21secret", 1)
	for name, dsn := range map[string]string{
		"password":        wrong,
		"port":            "postgres://postgres:hunter2%21secret@127.0.0.1:1/postgres?sslmode=disable",
		"host":            "postgres://postgres:hunter2%21secret@no-such-host.invalid/postgres?sslmode=disable",
		"database":        strings.Replace(direct, "/postgres?", "/nothing?", 1),
		"tls":             strings.Replace(direct, "sslmode=disable", "sslmode=require", 1),
		"parameters":      "postgres://postgres:hunter2%21secret@127.0.0.1/postgres?password=hunter2%zz",
		"port's number":   "postgres://postgres:hunter2%21secret@127.0.0.1:notaport/postgres",
		"percent":         "postgres://postgres:hunter2%21secret%zz@127.0.0.1/postgres",
		"coalesce":        with(wrong, "coalesce", "perhaps"),
		"max_batch":       with(wrong, "max_batch", "-1"),
		"schema":          with(wrong, "schema", strings.Repeat("s", 64)),
		"listen":          with(direct, "listen", "postgres://u:hunter2%21secret@127.0.0.1:notaport/x"),
		"unknown setting": with(direct, "no_such_setting", "1"),
	} {
		t.Run(name, func(t *testing.T) {
			s, err := OpenURL(ctx, dsn)
			require.Error(t, err)
			require.Nil(t, s)
			require.NotContains(t, err.Error(), "hunter2")
			require.NotContains(t, err.Error(), testserver.PostgresPassword)
			require.NoError(t, ctx.Err())
			require.Equal(t, name == "password", errors.Is(err, rowstore.ErrDenied), "%v", err)
		})
	}
	_, err := New(ctx, nil, Options{})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
}

// An UPDATE that waited for a lock looks again at that row alone. Here the row
// changes while it waits, and nothing of the mutation may be applied.
func TestConditionsAfterALockWait(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	s := openTest(t, with(direct, "schema", schema, "coalesce", "off"))

	lock := func(col string, ts rowstore.Timestamp) ([]rowstore.Condition, rowstore.Edit) {
		return []rowstore.Condition{
			rowstore.Absent(rowstore.Write, col, ts), rowstore.Absent(rowstore.Lock, col, 0), rowstore.Absent(rowstore.Mark, col, ts),
		}, rowstore.Put(rowstore.Lock, col, ts, []byte("mine"))
	}
	for _, tc := range []lateChange{
		{"OneColumn", "lock_ts = 9, lock_val = 'theirs'", rowstore.Version{Family: rowstore.Lock, Column: "b", TS: 9, Value: []byte("theirs")}, func(row string) applyResult {
			c, e := lock("b", 7)
			out, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: row, Conditions: c, Edits: []rowstore.Edit{e}}}, rowstore.ApplyOptions{})
			if err != nil {
				return applyResult{err: err}
			}
			return applyResult{out[0].Applied, out[0].Broke, out[0].Err}
		}},
		{"TwoColumns", "mark_ts = 8", rowstore.Version{Family: rowstore.Mark, Column: "b", TS: 8}, func(row string) applyResult {
			ca, ea := lock("a", 7)
			cb, eb := lock("b", 7)
			out, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: row, Conditions: append(ca, cb...), Edits: []rowstore.Edit{ea, eb}}}, rowstore.ApplyOptions{})
			if err != nil {
				return applyResult{err: err}
			}
			return applyResult{out[0].Applied, out[0].Broke, out[0].Err}
		}},
		{"Group", "write_ts = 8", rowstore.Version{Family: rowstore.Write, Column: "b", TS: 8, Value: []byte("old")}, func(row string) applyResult {
			ca, ea := lock("a", 7)
			cb, eb := lock("b", 7)
			g, _ := rowstore.Unwrap[rowstore.Grouper](s)
			out, err := g.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{
				{Table: "t", Row: row + "'", Conditions: ca, Edits: []rowstore.Edit{ea}},
				{Table: "t", Row: row, Conditions: cb, Edits: []rowstore.Edit{eb}},
			}}})
			if err != nil {
				return applyResult{err: err}
			}
			return applyResult{out[0].Applied, out[0].Outcome.Broke, out[0].Err}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.check(ctx, t, s, direct, schema)
		})
	}
}

// applyResult is the answer of a mutation, or of a group.
type applyResult struct {
	applied bool
	broke   rowstore.Version
	err     error
}

// lateChange is a change of a row while a call waits for its lock.
type lateChange struct {
	name   string
	change string // what the other session does to column b of the row
	broke  rowstore.Version
	run    func(row string) applyResult
}

// check holds the row's lock, lets the call wait for it, and makes the change.
func (tc lateChange) check(ctx context.Context, t *testing.T, s rowstore.Store, direct, schema string) {
	t.Helper()
	row := "row " + tc.name
	for _, r := range []string{row, row + "'"} {
		for _, col := range []string{"a", "b"} {
			_, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: r, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, col, 3, []byte("old"))}}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
		}
	}
	conn, err := pgx.Connect(ctx, direct)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(ctx)) }()
	tx, err := conn.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, "UPDATE "+pgx.Identifier{schema}.Sanitize()+".cell SET "+tc.change+" WHERE key = $1 AND col = 'b'", []byte(row))
	require.NoError(t, err)
	answer := make(chan applyResult, 1)
	go func() { answer <- tc.run(row) }()
	waits := fmt.Sprintf("SELECT count(*) FROM pg_locks l WHERE NOT granted AND transactionid = (SELECT transactionid FROM pg_locks WHERE pid = %d AND locktype = 'transactionid')", conn.PgConn().PID())
	require.Eventually(t, func() bool { return sqlDo(t, direct, waits) != "0" }, time.Minute, time.Millisecond)
	require.NoError(t, tx.Commit(ctx))
	r := <-answer
	require.NoError(t, r.err)
	require.False(t, r.applied)
	require.Equal(t, tc.broke, r.broke)
	rows, err := s.Read(ctx, []rowstore.RowRead{
		{Table: "t", Row: row, Selectors: []rowstore.Selector{{Family: rowstore.Lock, From: 7, To: 7}}},
		{Table: "t", Row: row + "'", Selectors: []rowstore.Selector{{Family: rowstore.Lock, From: 7, To: 7}}},
	})
	require.NoError(t, err)
	require.Empty(t, rows[0].Versions, "nothing of a mutation that did not hold may be there")
	require.Empty(t, rows[1].Versions)
}

// Two handles move amounts between the cells of few rows, so that batches of one
// meet those of the other; each move is a group of rows of two columns.
func TestGroupsOfTwoHandles(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	handles := []rowstore.Store{
		openTest(t, with(direct, "schema", schema)),
		openTest(t, with(direct, "schema", schema, "coalesce", "off")),
	}
	const workers = 8
	var wg sync.WaitGroup
	applied := make([][]rowstore.Timestamp, workers)
	errs := make(chan error, workers)
	for w := range workers {
		wg.Go(func() {
			var err error
			if applied[w], err = moveByGroups(ctx, handles[w%2], w); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	// A group wrote all of its cells or none.
	groups := map[rowstore.Timestamp]int{}
	reads := make([]rowstore.RowRead, movedRows)
	for i := range reads {
		reads[i] = rowstore.RowRead{Table: "t", Row: movedRow(i), Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}
	}
	got, err := handles[0].Read(ctx, reads)
	require.NoError(t, err)
	for _, r := range got {
		require.Equal(t, len(r.All(rowstore.Write, "a")), len(r.All(rowstore.Write, "b")))
		for _, v := range r.Versions {
			groups[v.TS]++
		}
	}
	n := 0
	for w := range workers {
		for m, ts := range applied[w] {
			_ = m
			require.NotZero(t, groups[ts], "an applied group is there")
			require.Zero(t, groups[ts]%2)
			n++
		}
	}
	require.Len(t, groups, n, "a group that was not applied left nothing")
	require.Greater(t, n, workers, "too few groups were applied to mean anything")
}

const movedRows = 6

func movedRow(i int) string { return fmt.Sprintf("row%d", i) }

// writeBoth writes both columns of a row, unless there is a newer write.
func writeBoth(ts rowstore.Timestamp, i int) rowstore.Mutation {
	return rowstore.Mutation{
		Table: "t", Row: movedRow(i),
		Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, "a", ts), rowstore.Absent(rowstore.Write, "b", ts)},
		Edits:      []rowstore.Edit{rowstore.Put(rowstore.Write, "a", ts, []byte("v")), rowstore.Put(rowstore.Write, "b", ts, []byte("v"))},
	}
}

// moveByGroups makes the moves of one worker, each a group of up to three rows. It
// returns the timestamps of those that were applied.
func moveByGroups(ctx context.Context, s rowstore.Store, w int) (applied []rowstore.Timestamp, err error) {
	g, _ := rowstore.Unwrap[rowstore.Grouper](s)
	p, _ := rowstore.Unwrap[rowstore.OracleProvider](s)
	for m := range 40 {
		ts, err := p.Oracle().Draw(ctx, 1)
		if err != nil {
			return applied, err
		}
		x, y, z := (w+m)%movedRows, (w*3+m*5+1)%movedRows, (m*7+2)%movedRows
		muts := []rowstore.Mutation{writeBoth(ts, x)}
		if y != x {
			muts = append(muts, writeBoth(ts, y))
		}
		if z != x && z != y {
			muts = append(muts, writeBoth(ts, z))
		}
		out, err := g.Group(ctx, []rowstore.Group{{Mutations: muts}})
		if err == nil {
			err = out[0].Err
		}
		if err != nil {
			return applied, err
		}
		if out[0].Applied {
			applied = append(applied, ts)
		} else if out[0].Outcome.Broke.TS < ts {
			return applied, fmt.Errorf("broke on %+v, which %d does not forbid", out[0].Outcome.Broke, ts)
		}
	}
	return applied, nil
}

// Updates of a cell by transactions stay on its page. It runs beside no other test:
// what others still look at would not be pruned from the few pages of its table.
func TestUpdatesAreHOT(t *testing.T) {
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	s := openTest(t, with(direct, "schema", schema, "coalesce", "off"))
	ts := rowstore.Timestamp(10)
	const rows, rounds = 50, 20
	for range rounds {
		ts += 10
		var locks, writes []rowstore.Mutation
		for i := range rows {
			locks = append(locks, rowstore.Mutation{Table: "t", Row: fmt.Sprint(i), Conditions: []rowstore.Condition{
				rowstore.Absent(rowstore.Write, "c", ts), rowstore.Absent(rowstore.Lock, "c", 0), rowstore.Absent(rowstore.Mark, "c", ts),
			}, Edits: []rowstore.Edit{rowstore.Put(rowstore.Lock, "c", ts, make([]byte, 80))}})
			writes = append(writes, rowstore.Mutation{Table: "t", Row: fmt.Sprint(i), Conditions: []rowstore.Condition{rowstore.Present("c", ts)}, Edits: []rowstore.Edit{
				rowstore.Delete(rowstore.Lock, "c", ts), rowstore.Put(rowstore.Write, "c", ts+1, make([]byte, 20)),
			}})
		}
		for _, muts := range [][]rowstore.Mutation{locks, writes} {
			out, err := s.Apply(ctx, muts, rowstore.ApplyOptions{})
			require.NoError(t, err)
			for i := range out {
				require.True(t, out[i].Applied)
			}
		}
	}
	// The server counts with a delay.
	stat := "SELECT n_tup_upd || ' ' || n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = " + literal(schema) + " AND relname = 'cell'"
	var updates, hot int
	require.Eventually(t, func() bool {
		_, err := fmt.Sscan(sqlDo(t, direct, stat), &updates, &hot)
		return err == nil && updates == 2*rows*rounds-rows
	}, time.Minute, 20*time.Millisecond)
	require.Greater(t, hot, updates*9/10, "of %d updates", updates)
}
