package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Servers of the fault tests keep what was not flushed in memory for long, so that
// a crash loses it.
func lazyServer(t testing.TB) *testserver.Server {
	t.Helper()
	return testserver.NewPostgres(t, map[string]string{"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "wal_buffers": "16MB", "bgwriter_delay": "10s"})
}

func prewrite(row string, ts rowstore.Timestamp) rowstore.Mutation {
	return rowstore.Mutation{Table: "t", Row: row, Conditions: []rowstore.Condition{
		rowstore.Absent(rowstore.Write, "c", ts), rowstore.Absent(rowstore.Lock, "c", 0), rowstore.Absent(rowstore.Mark, "c", ts),
	}, Edits: []rowstore.Edit{rowstore.Put(rowstore.Lock, "c", ts, []byte("lock"))}}
}

func commit(row string, start, at rowstore.Timestamp, more ...rowstore.Condition) rowstore.Mutation {
	return rowstore.Mutation{Table: "t", Row: row, Conditions: append(more, rowstore.Present("c", start)), Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, "c", at, []byte("value")), rowstore.Delete(rowstore.Lock, "c", start),
	}}
}

// testWait bounds the waiting for something that happens soon; testTick and testSettle are how often it
// is looked for.
const (
	testWait   = time.Minute
	testTick   = 20 * time.Millisecond
	testSettle = 1200 * time.Millisecond // longer than a session keeps its statistics to itself
)

// connect makes a connection that is closed when the test ends.
func connect(ctx context.Context, t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	atend.Do(t, func() { _ = conn.Close(context.Background()) })
	return conn
}

// openWatched opens a store whose server tells the plan of every statement to notice.
func openWatched(ctx context.Context, t testing.TB, dsn, schema string, notice func(*pgconn.Notice)) *Store {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	cfg.MaxConns = 1
	cfg.ConnConfig.OnNotice = func(c *pgconn.PgConn, n *pgconn.Notice) {
		OnNotice(c, n)
		notice(n)
	}
	cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		return exec(ctx, c, "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on; SET auto_explain.log_level = 'notice'")
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	require.NoError(t, err)
	atend.Do(t, pool.Close)
	s, err := New(ctx, pool, Options{Schema: schema, NoCoalesce: true})
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	return s
}

// fill prewrites and commits rows, with notifications and long values, and takes those away again.
func fill(ctx context.Context, t testing.TB, s rowstore.Store, rows int) {
	t.Helper()
	start := draw(ctx, t, s)
	at := draw(ctx, t, s)
	var batches [4][]rowstore.Mutation
	for i := range rows {
		row := fmt.Sprintf("row%06d", i)
		m := prewrite(row, start)
		m.Edits = append(m.Edits, rowstore.Put(rowstore.Data, "c", start, []byte("long")))
		batches[0] = append(batches[0], m)
		m = commit(row, start, at)
		m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, "c", at, nil))
		batches[1] = append(batches[1], m)
		batches[2] = append(batches[2], rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Delete(rowstore.Notify, "c", at)}})
		batches[3] = append(batches[3], rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Delete(rowstore.Data, "c", start), rowstore.DeleteRange(rowstore.Write, "c", 0, 1)}})
	}
	for i, muts := range batches {
		out, err := s.Apply(ctx, muts, rowstore.ApplyOptions{Deferred: i != 1})
		require.NoError(t, err)
		for j := range out {
			require.True(t, out[j].Applied, "%d: %+v", i, out[j])
		}
	}
	reads := make([]rowstore.RowRead, rows)
	for i := range reads {
		reads[i] = rowstore.RowRead{Table: "t", Row: fmt.Sprintf("row%06d", i), Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: oracle.Max, Limit: 1}}}
	}
	_, err := s.Read(ctx, reads)
	require.NoError(t, err)
}

// eventually calls f until it succeeds, as a client does whose server comes back.
func eventually(ctx context.Context, t testing.TB, f func() error) {
	t.Helper()
	for {
		err := f()
		if err == nil {
			return
		}
		require.NoError(t, ctx.Err(), "last error: %v", err)
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond): // between two tries, for whatever comes first
		}
	}
}

func draw(ctx context.Context, t testing.TB, s rowstore.Store) rowstore.Timestamp {
	t.Helper()
	p, ok := rowstore.Unwrap[rowstore.OracleProvider](s)
	require.True(t, ok)
	var ts rowstore.Timestamp
	eventually(ctx, t, func() (err error) {
		ts, err = p.Oracle().Draw(ctx, 1)
		return err
	})
	return ts
}

// The server's processes crash between two deferred prewrites of a transaction
// whose client survives: the first is lost, and the transaction must not commit.
func TestCrashBetweenPrewrites(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := lazyServer(t)
	s := openTest(t, with(server.URL, "schema", "crash", "synchronous_commit", "off"))
	d, ok := rowstore.Unwrap[rowstore.Deferrer](s)
	require.True(t, ok)
	lost := 0
	for round := range 3 {
		a, b := "a"+string(rune('0'+round)), "b"+string(rune('0'+round))
		start := draw(ctx, t, s)
		require.NoError(t, d.Flush(ctx))
		first, err := s.Apply(ctx, []rowstore.Mutation{prewrite(a, start)}, rowstore.ApplyOptions{Deferred: true})
		require.NoError(t, err)
		require.True(t, first[0].Applied)
		require.NotEmpty(t, first[0].Incarnation)
		require.NoError(t, server.CrashBackend())
		var second []rowstore.Outcome
		eventually(ctx, t, func() error {
			out, err := s.Apply(ctx, []rowstore.Mutation{prewrite(b, start)}, rowstore.ApplyOptions{Deferred: true})
			if err == nil {
				second = out
			}
			return err
		})
		require.NotEqual(t, first[0].Incarnation, second[0].Incarnation, "the incarnation changes with a crash")
		rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: a, Selectors: []rowstore.Selector{{Family: rowstore.Lock, To: oracle.Max}}}})
		require.NoError(t, err)
		if len(rows[0].Versions) == 0 {
			lost++
		}
		at := draw(ctx, t, s)
		require.Greater(t, at, start)
		g, ok := rowstore.Unwrap[rowstore.Grouper](s)
		require.True(t, ok)
		res, err := g.Group(ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{
			commit(b, start, at, rowstore.SameIncarnation(first[0].Incarnation)),
		}}})
		require.NoError(t, err)
		require.False(t, res[0].Applied, "a commit that began before the crash is refused")
		require.Equal(t, 0, res[0].Outcome.Failed)
		require.Equal(t, second[0].Incarnation, res[0].Incarnation)
	}
	require.NotZero(t, lost, "no crash lost a deferred batch: the test shows nothing")
}

// What was applied without Deferred survives, whatever synchronous_commit is by
// default, and so does everything deferred before it or before a Flush.
func TestCrashKeepsWhatIsDurable(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := lazyServer(t)
	s := openTest(t, with(server.URL, "schema", "durable", "synchronous_commit", "off"))
	d, _ := rowstore.Unwrap[rowstore.Deferrer](s)
	apply := func(deferred bool, m rowstore.Mutation) {
		out, err := s.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{Deferred: deferred})
		require.NoError(t, err)
		require.True(t, out[0].Applied)
	}
	apply(true, put("deferred, then applied", 5))
	apply(false, put("applied", 5))
	require.NoError(t, server.CrashBackend())
	var rows []rowstore.Row
	read := func(names ...string) []int {
		var reads []rowstore.RowRead
		for _, n := range names {
			reads = append(reads, rowstore.RowRead{Table: "t", Row: n, Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}})
		}
		eventually(ctx, t, func() (err error) {
			rows, err = s.Read(ctx, reads)
			return err
		})
		var n []int
		for _, r := range rows {
			n = append(n, len(r.Versions))
		}
		return n
	}
	require.Equal(t, []int{1, 1}, read("deferred, then applied", "applied"))

	apply(true, put("deferred, then flushed", 5))
	require.NoError(t, d.Flush(ctx))
	require.NoError(t, server.CrashBackend())
	require.Equal(t, []int{1}, read("deferred, then flushed"))

	// A batch that changes nothing is an undeferred one too.
	apply(true, put("deferred, then asked", 5))
	out, err := s.Apply(ctx, []rowstore.Mutation{prewrite("applied", 3)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.False(t, out[0].Applied)
	require.NoError(t, server.CrashBackend())
	require.Equal(t, []int{1}, read("deferred, then asked"))

	apply(true, put("deferred, then checked", 5))
	out, err = s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: "x", Conditions: []rowstore.Condition{rowstore.AbsentAt("c", 5)}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, out[0].Applied)
	require.NoError(t, server.CrashBackend())
	require.Equal(t, []int{1}, read("deferred, then checked"))
}

func TestCleanRestartKeepsTheIncarnation(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := lazyServer(t)
	s := openTest(t, with(server.URL, "schema", "clean"))
	out, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{Deferred: true})
	require.NoError(t, err)
	before := draw(ctx, t, s)
	require.NoError(t, server.Stop())
	_, err = s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}})
	require.Error(t, err, "the server is down")
	require.NotContains(t, err.Error(), testserver.PostgresPassword)
	_, err = s.Apply(ctx, []rowstore.Mutation{put("b", 5)}, rowstore.ApplyOptions{})
	require.Error(t, err)
	require.NoError(t, server.Start())
	require.Greater(t, draw(ctx, t, s), before)
	var again []rowstore.Outcome
	eventually(ctx, t, func() (err error) {
		again, err = s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: "a", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 6)}}}, rowstore.ApplyOptions{})
		return err
	})
	require.True(t, again[0].Applied)
	require.Equal(t, out[0].Incarnation, again[0].Incarnation)
	rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}})
	require.NoError(t, err)
	require.Len(t, rows[0].Versions, 1, "a clean stop loses nothing that was deferred")
}

// No timestamp comes twice, and none goes back, over crashes of the server.
func TestOracleOverCrashes(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := lazyServer(t)
	s := openTest(t, with(server.URL, "schema", "oracle"))
	last := draw(ctx, t, s)
	for round := range 4 {
		for range 200 {
			ts := draw(ctx, t, s)
			require.Greater(t, ts, last)
			last = ts
		}
		if round%2 == 0 {
			require.NoError(t, server.CrashBackend())
		} else {
			require.NoError(t, server.Kill())
			require.NoError(t, server.Start())
		}
		ts := draw(ctx, t, s)
		require.Greater(t, ts, last, "after crash %d", round)
		last = ts
	}
	// A clock that went back an hour leaves the sequence an hour ahead.
	future := last.Add(time.Hour)
	sqlDo(t, server.URL, "SELECT setval('oracle.clock', "+literalInt(future)+")")
	sqlDo(t, server.URL, "UPDATE oracle.oracle SET bound = "+literalInt(future.Add(time.Second)))
	last = future
	for range 300 {
		ts := draw(ctx, t, s)
		require.Greater(t, ts, last)
		last = ts
	}
	require.NoError(t, server.CrashBackend())
	require.Greater(t, draw(ctx, t, s), last)
}

func literalInt(ts rowstore.Timestamp) string {
	return literal(string(appendUint(nil, uint64(ts)))) + "::bigint"
}

func appendUint(to []byte, v uint64) []byte {
	if v >= 10 {
		to = appendUint(to, v/10)
	}
	return append(to, byte('0'+v%10))
}

// A server that hangs: every call ends by its context, and says what is known.
func TestPausedServer(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, nil)
	s := openTest(t, with(server.URL, "schema", "paused"))
	draw(ctx, t, s)
	_, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.NoError(t, server.Pause())
	short := func() (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, 200*time.Millisecond) }
	c, cancel := short()
	_, err = s.Read(c, []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}})
	cancel()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	c, cancel = short()
	_, err = s.Apply(c, []rowstore.Mutation{put("b", 5)}, rowstore.ApplyOptions{})
	cancel()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	c, cancel = short()
	_, err = OpenURL(c, with(server.URL, "schema", "paused"))
	cancel()
	require.Error(t, err)
	p, _ := rowstore.Unwrap[rowstore.OracleProvider](s)
	c, cancel = short()
	_, err = p.Oracle().Draw(c, 1)
	cancel()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	c, cancel = short()
	for _, e := range s.Scan(c, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}) {
		err = e
	}
	cancel()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, server.Resume())
	eventually(ctx, t, func() error {
		_, err := s.Apply(ctx, []rowstore.Mutation{put("c", 5)}, rowstore.ApplyOptions{})
		return err
	})
}

// A batch under way when the server dies may have been applied: that is what the
// error says, and it says so of no other.
func TestAmbiguous(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]map[string]string{"Read committed": nil, "Explicit": {"default_transaction_isolation": "serializable"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ambiguous(t, testserver.NewPostgres(t, settings))
		})
	}
}

func ambiguous(t *testing.T, server *testserver.Server) {
	ctx := testContext(t)
	s := openTest(t, with(server.URL, "schema", "ambiguous", "coalesce", "off"))
	_, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	conn, err := pgx.Connect(ctx, server.URL)
	require.NoError(t, err)
	_, err = conn.Exec(ctx, "BEGIN; SELECT FROM ambiguous.cell WHERE key = 'a' FOR UPDATE")
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() {
		_, err := s.Apply(ctx, []rowstore.Mutation{put("a", 6)}, rowstore.ApplyOptions{})
		failed <- err
	}()
	require.Eventually(t, func() bool {
		return sqlDo(t, server.URL, "SELECT count(*) FROM pg_locks WHERE NOT granted") != "0"
	}, time.Minute, time.Millisecond)
	require.NoError(t, server.Kill())
	err = <-failed
	require.ErrorIs(t, err, rowstore.ErrAmbiguous)
	_ = conn.Close(ctx) // broken by now

	// Nothing can have happened where no connection can be had.
	eventually(ctx, t, func() error {
		_, err = s.Apply(ctx, []rowstore.Mutation{put("a", 7)}, rowstore.ApplyOptions{})
		if errors.Is(err, rowstore.ErrAmbiguous) {
			return err // a connection that was idle when the server died
		}
		return nil
	})
	require.Error(t, err)
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous)

	// An error of the server itself proves that it rolled back.
	require.NoError(t, server.Start())
	eventually(ctx, t, func() error {
		_, err := s.Apply(ctx, []rowstore.Mutation{put("a", 8)}, rowstore.ApplyOptions{})
		return err
	})
	sqlDo(t, server.URL, "ALTER TABLE ambiguous.cell ADD CONSTRAINT full_disk CHECK (write_ts <> 99)")
	_, err = s.Apply(ctx, []rowstore.Mutation{put("b", 99)}, rowstore.ApplyOptions{})
	require.Error(t, err)
	require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
}
