package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/internal/restarttest"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/urltest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// standbyWaiter returns the process that waits for a standby, "" if there is none.
func standbyWaiter(t *testing.T, dsn string) string {
	t.Helper()
	return sqlDo(t, dsn, "SELECT coalesce(max(pid)::text, '') FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
}

// waitsForStandby returns the process that waits for a standby, once there is one.
func waitsForStandby(t *testing.T, dsn string) string {
	t.Helper()
	pid := ""
	require.Eventually(t, func() bool {
		pid = standbyWaiter(t, dsn)
		return pid != ""
	}, testWait, testTick)
	return pid
}

// setStandbys makes the server wait for a standby that does not exist, or for none.
func setStandbys(ctx context.Context, t *testing.T, dsn, names string) {
	t.Helper()
	conn := connect(ctx, t, dsn)
	require.NoError(t, exec(ctx, conn, "ALTER SYSTEM SET synchronous_standby_names = "+literal(names)))
	require.NoError(t, exec(ctx, conn, "SELECT pg_reload_conf()"))
	require.Eventually(t, func() bool { return sqlDo(t, dsn, "SHOW synchronous_standby_names") == names }, testWait, testTick)
	if names == "" {
		return
	}
	// The process that tells the others has to have heard of it too: then a commit waits.
	waiting := connect(ctx, t, dsn)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if exec(ctx, waiting, "SELECT pg_logical_emit_message(true, 'test', '')") != nil {
				return
			}
		}
	}()
	pid := waitsForStandby(t, dsn)
	sqlDo(t, dsn, "SELECT pg_terminate_backend("+pid+")")
	<-done
}

// With synchronous replication, a commit whose wait was ended is waited for once more; where that is ended
// too, its outcome is unknown. It is never taken for an ordinary one.
func TestWaitForStandbyEnded(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Direct", "Quiet", "Bouncer"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			server := testserver.NewPostgres(t, nil)
			dsn := with(server.URL, "schema", "sync", "coalesce", "off")
			switch name {
			case "Quiet":
				dsn = with(dsn, "client_min_messages", "error")
			case "Bouncer":
				dsn = with(testserver.NewPgBouncer(t, server, testserver.PgBouncerOptions{}).URL, "schema", "sync", "coalesce", "off")
			}
			s := openTest(t, dsn)
			setStandbys(ctx, t, server.URL, "nobody")
			apply := func(row string) chan error {
				answer := make(chan error, 1)
				go func() {
					out, err := s.Apply(ctx, []rowstore.Mutation{put(row, 5)}, rowstore.ApplyOptions{})
					if err == nil && !out[0].Applied {
						err = errors.Join(errors.New("not applied"), out[0].Err)
					}
					answer <- err
				}()
				return answer
			}
			end := func(how string) { sqlDo(t, server.URL, "SELECT "+how+"("+waitsForStandby(t, server.URL)+")") }

			answer := apply("cancelled")
			var err error
			for ended := false; !ended; {
				if pid := standbyWaiter(t, server.URL); pid != "" {
					sqlDo(t, server.URL, "SELECT pg_cancel_backend("+pid+")")
				}
				select {
				case err = <-answer:
					ended = true
				case <-ctx.Done():
					require.NoError(t, ctx.Err())
				case <-time.After(testTick): // it waits again, in the flush
				}
			}
			require.ErrorIs(t, err, rowstore.ErrAmbiguous)
			require.ErrorIs(t, err, errUnconfirmed)
			rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "cancelled", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}})
			require.NoError(t, err)
			require.Len(t, rows[0].Versions, 1, "it is committed here")

			if name != "Bouncer" {
				answer = apply("terminated")
				end("pg_terminate_backend")
				require.ErrorIs(t, await.Value(ctx, t, answer, nil), rowstore.ErrAmbiguous)
			}

			// Where the second wait ends as it should, so does the call.
			acquired := s.plain.pool.Stat().AcquireCount()
			answer = apply("confirmed")
			end("pg_cancel_backend")
			setStandbys(ctx, t, server.URL, "")
			require.NoError(t, await.Value(ctx, t, answer, nil))
			require.Equal(t, acquired+1, s.plain.pool.Stat().AcquireCount(), "it is confirmed on its own connection")
			r, _ := rowstore.Unwrap[rowstore.Reporter](s)
			report, err := r.Report(ctx)
			require.NoError(t, err)
			require.Contains(t, strings.Join(report.Warnings, "\n"), "stopped waiting for its synchronous standbys")
		})
	}
}

// An application's pool that does not pass the server's warnings on is reported.
func TestWarningsNotHeard(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	for _, hears := range []bool{false, true} {
		cfg, err := pgxpool.ParseConfig(direct)
		require.NoError(t, err)
		if hears {
			cfg.ConnConfig.OnNotice = OnNotice
		}
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		require.NoError(t, err)
		defer pool.Close()
		s, err := New(ctx, pool, Options{Schema: fresh(t, direct)})
		require.NoError(t, err)
		r, _ := rowstore.Unwrap[rowstore.Reporter](s)
		report, err := r.Report(ctx)
		require.NoError(t, err)
		require.Equal(t, !hears, strings.Contains(strings.Join(report.Warnings, "\n"), "OnNotice"))
		require.NoError(t, s.Close())
	}
}

// Another program's transaction that holds the server's lock of notifications, here while it waits for a
// standby, holds up no batch with notifications; and they are announced when it is over.
func TestPushStaysOutOfTheCommit(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, nil)
	dsn := with(server.URL, "schema", "push", "coalesce", "off")
	s, other := openTest(t, dsn), openTest(t, dsn)
	w, _ := rowstore.Unwrap[rowstore.Waker](other)
	wakes := make(chan rowstore.Wake, 100)
	listening, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.Listen(listening, func(at rowstore.Wake) { wakes <- at }) }()
	require.Zero(t, await.Value(ctx, t, wakes, ended))
	setStandbys(ctx, t, server.URL, "nobody")
	conn := connect(ctx, t, server.URL)
	stuck := make(chan error, 1)
	go func() {
		stuck <- exec(ctx, conn, "SELECT pg_notify('somebody', 'else'), pg_logical_emit_message(true, 'test', '')")
	}()
	waitsForStandby(t, server.URL)

	bounded, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for i := range 5 {
		out, err := s.Apply(bounded, []rowstore.Mutation{{Table: "t", Row: fmt.Sprint(i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}}},
			rowstore.ApplyOptions{Deferred: true})
		require.NoError(t, err)
		require.True(t, out[0].Applied)
	}
	require.Empty(t, wakes, "the server's lock is held")
	setStandbys(ctx, t, server.URL, "")
	require.NoError(t, await.Value(ctx, t, stuck, nil))
	select {
	case at := <-wakes:
		require.Equal(t, "t", at.Table)
	case <-ctx.Done():
		t.Fatal("nobody was woken")
	}
	stop()
	require.ErrorIs(t, await.Value(ctx, t, ended, nil), context.Canceled)
}

// A failed announcement fails nothing else, is repeated and reported, and Close does not wait for it for long.
func TestPushFails(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	s, err := OpenURL(ctx, with(direct, "schema", fresh(t, direct), "coalesce", "off"))
	require.NoError(t, err)
	inner := s.plain
	inner.q.push = query{sql: "SELECT 1/0 FROM pg_catalog.unnest($1::pg_catalog.text[])", name: "push that fails", formats: binary1}
	out, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, out[0].Applied)
	require.Eventually(t, func() bool { return inner.pusher.failed.Load() >= 2 }, testWait, testTick)
	r, _ := rowstore.Unwrap[rowstore.Reporter](s)
	report, err := r.Report(ctx)
	require.NoError(t, err)
	require.Contains(t, strings.Join(report.Warnings, "\n"), "NOTIFY")
	require.NoError(t, s.Close())
	inner.pusher.running.Wait() // the goroutines have ended
}

// Who listens is connected as the pool is, with the password of the day.
func TestListenAsksBeforeConnecting(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	for _, apart := range []bool{false, true} {
		cfg, err := pgxpool.ParseConfig(strings.Replace(direct, testserver.PostgresPassword, "yesterdays", 1))
		require.NoError(t, err)
		cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			c.Password = testserver.PostgresPassword
			return nil
		}
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		require.NoError(t, err)
		defer pool.Close()
		opts := Options{Schema: fresh(t, direct)}
		if apart {
			opts.Listen = strings.Replace(direct, testserver.PostgresPassword, "yesterdays", 1)
		}
		s, err := New(ctx, pool, opts)
		require.NoError(t, err)
		w, _ := rowstore.Unwrap[rowstore.Waker](s)
		listening, stop := context.WithCancel(ctx)
		require.ErrorIs(t, w.Listen(listening, func(rowstore.Wake) { stop() }), context.Canceled)
		stop()
		require.NoError(t, s.Close())
	}
}

// A default that forbids writes, which tools set when a disk is nearly full, is respected.
func TestReadOnlyByDefault(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	_, err := OpenURL(ctx, with(direct, "schema", schema, "default_transaction_read_only", "on"))
	require.ErrorIs(t, err, rowstore.ErrUnavailable, "it may not make the schema")
	openTest(t, with(direct, "schema", schema))
	for _, level := range []string{"read committed", "serializable"} {
		s := openTest(t, with(direct, "schema", schema, "coalesce", "off", "default_transaction_read_only", "on", "default_transaction_isolation", level))
		_, err = s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
		require.ErrorIs(t, err, rowstore.ErrUnavailable)
		require.ErrorIs(t, err, errReadOnly)
		require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
		rows, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}})
		require.NoError(t, err)
		require.Empty(t, rows[0].Versions)
	}
}

// What certainly had no effect because the server is away is told apart from what may have had one.
func TestClassify(t *testing.T) {
	t.Parallel()
	server := func(severity, code string) error {
		return &pgconn.PgError{Severity: severity, SeverityUnlocalized: severity, Code: code}
	}
	for _, tc := range []struct {
		name                 string
		err                  error
		write                bool
		ambiguous, available bool
	}{
		{"connection lost in a write", io.ErrUnexpectedEOF, true, true, true},
		{"connection lost in a read", io.ErrUnexpectedEOF, false, false, false},
		{"shutdown in a write", server("FATAL", "57P01"), true, true, true},
		{"shutdown in a read", server("FATAL", "57P01"), false, false, false},
		{"a pooler lost the server in a write", server("ERROR", "08P01"), true, true, true},
		{"a pooler lost the server in a write, in its own words", server("ERROR", "58000"), true, true, true},
		{"nobody knows how a write ended", server("ERROR", "40003"), true, true, true},
		{"a pooler lost the server in a read", server("ERROR", "08006"), false, false, false},
		{"read only", server("ERROR", "25006"), true, false, false},
		{"standby", server("ERROR", "PC003"), true, false, false},
		{"unique", server("ERROR", "23505"), true, false, true},
		{"statement timeout", server("ERROR", "57014"), true, false, true},
		{"full disk", server("ERROR", "53100"), true, false, true},
		{"the caller left", context.DeadlineExceeded, false, false, true},
	} {
		err := classify(tc.err, tc.write)
		require.Equal(t, tc.ambiguous, errors.Is(err, rowstore.ErrAmbiguous), tc.name)
		require.Equal(t, !tc.available, errors.Is(err, rowstore.ErrUnavailable), tc.name)
		require.ErrorIs(t, err, tc.err, tc.name)
	}
	require.True(t, isLocal(&net.UnixAddr{}) && isLocal(&net.TCPAddr{IP: net.IPv6loopback}))
	require.False(t, isLocal(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}))
}

// A server that goes away after it stopped waiting for its standby has committed: the write is
// not one that may be repeated.
func TestServerGoneAfterAnUnconfirmedCommit(t *testing.T) {
	t.Parallel()
	s := &plainStore{q: newQueries(newNames("s"))}
	c, err := pgx.Connect(t.Context(), testserver.Postgres(t))
	require.NoError(t, err)
	require.NoError(t, c.Close(t.Context()))
	flush := func(*pgconn.PgConn) (query, [][]byte) { return s.q.flush, nil }
	require.ErrorIs(t, s.tryOn(t.Context(), c, flush, true, nil, nil), rowstore.ErrUnavailable)
	err = s.confirm(t.Context(), c)
	require.ErrorIs(t, err, rowstore.ErrAmbiguous)
	require.ErrorIs(t, err, errUnconfirmed)
	require.NotErrorIs(t, err, rowstore.ErrUnavailable)
}

// A server that is down is away: nothing happened, and nothing will.
func TestServerDown(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, nil)
	s := openTest(t, with(server.URL, "schema", "down", "coalesce", "off", "pool_max_conns", "1"))
	require.NoError(t, server.Stop())
	eventually(ctx, t, func() error {
		_, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
		if errors.Is(err, rowstore.ErrAmbiguous) {
			return err // the connection that was idle when the server stopped
		}
		require.ErrorIs(t, err, rowstore.ErrUnavailable)
		return nil
	})
	_, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}})
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	p, _ := rowstore.Unwrap[rowstore.OracleProvider](s)
	_, err = p.Oracle().Draw(ctx, 1)
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	_, err = OpenURL(ctx, with(server.URL, "schema", "down"))
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	w, _ := rowstore.Unwrap[rowstore.Waker](s)
	require.ErrorIs(t, w.Listen(ctx, func(rowstore.Wake) {}), rowstore.ErrUnavailable)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = OpenURL(ended, with(server.URL, "schema", "down"))
	require.ErrorIs(t, err, context.Canceled)
}

// No error shows more of an address than scheme, host and port, however it is malformed.
func TestAddressesKeepSecrets(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	const word = "hunter"
	all := urltest.URLs(
		"postgres://%s@127.0.0.1:1/db", "postgres://u:%s@127.0.0.1:1/db", "postgres://:%s@127.0.0.1:1/db?sslmode=disable", "postgresql://u:%s@127.0.0.1:1",
		"postgres://u:1%s@127.0.0.1:1/db", "postgres://127.0.0.1:1/db?user=u&password=%s", "postgres://127.0.0.1:1/db?user=%s", "postgres://127.0.0.1:1/%s", "postgres://127.0.0.1:1/db?sslmode=%s",
		"postgres://127.0.0.1:1/db?%s", "postgres://127.0.0.1:1/db?schema=%s", "postgres://127.0.0.1:1/db?max_batch=%s", "postgres://127.0.0.1:1/db?coalesce=%s", "postgres://u:p@127.0.0.1:1/db?listen=postgres://u:%s@127.0.0.1:1/x",
		"postgres://u:p@127.0.0.1:1/db?listen=%s", "host=127.0.0.1 port=1 password=%s", "host=127.0.0.1 port=1 user=%s'", "%s",
	)
	for _, dsn := range all {
		s, err := OpenURL(ctx, dsn)
		require.Error(t, err)
		require.Nil(t, s)
		require.NoError(t, urltest.Shown(err.Error()), "%q", dsn)
	}
	require.Greater(t, len(all), 500)

	// Where the server itself refuses, its words, which name user and database, are not passed on.
	direct := testserver.Postgres(t)
	for _, from := range []string{":" + testserver.PostgresPassword, "postgres:" + testserver.PostgresPassword} {
		_, err := OpenURL(ctx, strings.Replace(direct, from, word+":"+word, 1))
		require.Error(t, err)
		require.NotContains(t, err.Error(), word)
	}
	for url, says := range map[string]string{
		strings.Replace(direct, "/postgres?", "/"+word+"?", 1): "does not have the database: make it by CREATE DATABASE",
		with(direct, word, word):                               "does not know one of the settings",
		with(direct, "statement_timeout", word):                "does not accept the value of one of the settings",
		with(direct, "schema", "pg_"+word):                     "such names are the server's own",
	} {
		_, err := OpenURL(ctx, url)
		require.ErrorContains(t, err, says)
		require.ErrorIs(t, err, rowstore.ErrInvalid)
		require.NotErrorIs(t, err, rowstore.ErrUnavailable)
		require.NotErrorIs(t, err, rowstore.ErrDenied)
		require.NotContains(t, err.Error(), word)
	}
}

// frozen is a connection that stops reading, as that of a suspended program does.
type frozen struct {
	net.Conn
	stop chan struct{} // closed: reads wait
}

func (f *frozen) Read(b []byte) (int, error) {
	select {
	case <-f.stop:
		return 0, f.wait()
	default:
	}
	n, err := f.Conn.Read(b)
	select {
	case <-f.stop: // what came meanwhile is not looked at
		return 0, f.wait()
	default:
	}
	return n, err
}

// wait lasts until the connection is closed, by which its writing side ends too.
func (f *frozen) wait() error {
	for {
		if _, err := f.Conn.Write(nil); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// A client that is suspended in the middle of a call holds no locks: whatever a call locks is
// released by the server alone, since all that it needs has been sent.
func TestSuspendedClient(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			direct := testserver.Postgres(t)
			schema := fresh(t, direct)
			dsn := with(direct, "schema", schema, "default_transaction_isolation", level)
			cfg, err := pgxpool.ParseConfig(with(direct, "default_transaction_isolation", level))
			require.NoError(t, err)
			cfg.MaxConns = 1
			stop := make(chan struct{})
			cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
				return &frozen{c, stop}, err
			}
			pool, err := pgxpool.NewWithConfig(ctx, cfg)
			require.NoError(t, err)
			suspended, err := New(ctx, pool, Options{Schema: schema, NoCoalesce: true})
			require.NoError(t, err)
			healthy := openTest(t, with(dsn, "coalesce", "off"))
			var muts []rowstore.Mutation
			for i := range 1000 {
				muts = append(muts, prewrite(fmt.Sprint("row", i), 5))
			}
			// The statement is known to the connection, so that the call is one message.
			_, err = suspended.Apply(ctx, []rowstore.Mutation{prewrite("other", 5), prewrite("another", 5)}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			close(stop)
			call, leave := context.WithCancel(ctx)
			answer := make(chan error, 1)
			go func() {
				_, err := suspended.Apply(call, muts, rowstore.ApplyOptions{})
				answer <- err
			}()
			// It is applied, though its client knows nothing of it, and others go on.
			eventually(ctx, t, func() error {
				rows, err := healthy.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "row999", Selectors: []rowstore.Selector{{Family: rowstore.Lock, To: oracle.Max}}}})
				if err == nil && len(rows[0].Versions) == 0 {
					err = errors.New("not yet")
				}
				return err
			})
			var over []rowstore.Mutation
			for i := range 1000 {
				over = append(over, commit(fmt.Sprint("row", i), 5, 6))
			}
			out, err := healthy.Apply(ctx, over, rowstore.ApplyOptions{})
			require.NoError(t, err)
			require.True(t, out[0].Applied && out[999].Applied)
			leave()
			require.ErrorIs(t, await.Value(ctx, t, answer, nil), rowstore.ErrAmbiguous)
			require.NoError(t, suspended.Close())
			pool.Close()
		})
	}
}

// Updates of a program do not fail while its server restarts, in order or not.
func TestUpdatesOutlastARestart(t *testing.T) {
	t.Parallel()
	server := testserver.NewPostgres(t, nil)
	s := openTest(t, with(server.URL, "schema", "restarts"))
	db, err := percolator.New(t.Context(), s, percolator.WithStorePatience(2*time.Minute))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.Background())) }()
	restarttest.Outlast(t, db,
		func() error { return errors.Join(server.Stop(), server.Start()) },
		func() error { return errors.Join(server.Kill(), server.Start()) },
		server.CrashBackend,
	)
}
