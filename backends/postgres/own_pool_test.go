package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What the store writes on a connection inside a transaction of the program's would be lost
// when the pool throws the connection away.
func TestPoolWhoseHookBeginsATransaction(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	begins := false
	pool := ownPool(t, direct, func(cfg *pgxpool.Config) {
		cfg.PrepareConn = func(ctx context.Context, c *pgx.Conn) (bool, error) {
			if !begins {
				return true, nil
			}
			_, err := c.Exec(ctx, "BEGIN; SET LOCAL application_name = 'tenant 7'")
			return err == nil, err
		}
	})
	s, err := New(ctx, pool, Options{Schema: schema})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	begins = true
	_, err = s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	require.ErrorContains(t, err, "inside a transaction")
	_, err = New(ctx, pool, Options{Schema: schema})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
}

// A server that has become a standby may lag. A table that it does not have yet would be
// left out by a garbage collection that looks for old locks.
func TestTablesOfAStandby(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	server := testserver.NewPostgres(t, nil)
	s, err := New(ctx, ownPool(t, server.URL, nil), Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	_, err = s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	becomeStandby(t, server)
	looked := 0
	for name, err := range s.Tables(ctx) {
		require.ErrorIs(t, err, rowstore.ErrUnavailable, "%q", name)
		looked++
	}
	require.Equal(t, 1, looked)
	_, err = s.Split(ctx, "t", 4)
	require.ErrorIs(t, err, rowstore.ErrUnavailable, "its sample may be of another table's rows")
	require.ErrorIs(t, err, errStandby)
}

// A pool may ask the server to cancel a statement when its context ends.
func TestPoolThatCancelsStatements(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	schema := fresh(t, direct)
	pool := ownPool(t, direct, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
			return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: time.Minute}
		}
	})
	s, err := New(ctx, pool, Options{Schema: schema})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	_, err = s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	tx, err := ownPool(t, direct, nil).Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = tx.Exec(ctx, "SELECT 1 FROM "+pgx.Identifier{schema}.Sanitize()+".cell FOR UPDATE")
	require.NoError(t, err)
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	_, err = s.Apply(short, []rowstore.Mutation{put("a", 6)}, rowstore.ApplyOptions{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// Guards: a statement whose context ends while it waits for a lock keeps its connection if the answer comes soon, and so
// costs the server no other one. Its effect is told, or that nobody knows it. Where no answer comes, the call ends nevertheless.
func TestLateAnswersKeepTheirConnection(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	for _, tc := range []struct {
		name    string
		handler func(*pgconn.PgConn) ctxwatch.Handler
		answers bool
	}{
		{"an answer in time", awaiting(testWait), true},
		{"no answer", AwaitAnswers, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			schema := fresh(t, direct)
			pool := ownPool(t, direct, func(cfg *pgxpool.Config) {
				cfg.ConnConfig.BuildContextWatcherHandler = tc.handler
				cfg.MaxConns = 1
			})
			s, err := New(ctx, pool, Options{Schema: schema})
			require.NoError(t, err)
			defer func() { require.NoError(t, s.Close()) }()
			_, err = s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			made := pool.Stat().NewConnsCount()
			other := connect(ctx, t, direct)
			for range 3 {
				require.NoError(t, exec(ctx, other, "BEGIN; LOCK TABLE "+pgx.Identifier{schema}.Sanitize()+".cell"))
				short, cancel := context.WithCancel(ctx)
				done := make(chan error, 1)
				go func() {
					_, err := s.Apply(short, []rowstore.Mutation{put("a", 6)}, rowstore.ApplyOptions{})
					done <- err
				}()
				eventually(ctx, t, func() error {
					if sqlDo(t, direct, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE %d = ANY (pg_blocking_pids(pid))", other.PgConn().PID())) == "0" {
						return errors.New("nobody waits for the lock")
					}
					return nil
				})
				cancel()
				if !tc.answers {
					require.ErrorIs(t, <-done, context.Canceled)
				}
				require.NoError(t, exec(ctx, other, "COMMIT"))
				if tc.answers {
					if err := <-done; err != nil {
						require.ErrorIs(t, err, context.Canceled)
					}
				}
				_, err := s.Apply(ctx, []rowstore.Mutation{put("b", 5)}, rowstore.ApplyOptions{})
				require.NoError(t, err)
			}
			if tc.answers {
				require.Equal(t, made, pool.Stat().NewConnsCount())
			} else {
				require.Greater(t, pool.Stat().NewConnsCount(), made)
			}
		})
	}
}

// Guards: the connections of a store's own pool wait for late answers, and its connection that listens does not wait for what may never come.
func TestWhoAwaitsAnswers(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	s := openTest(t, with(direct, "schema", fresh(t, direct)))
	patience := func(cfg *pgx.ConnConfig) time.Duration {
		h, ok := cfg.BuildContextWatcherHandler(&pgconn.PgConn{}).(*pgconn.DeadlineContextWatcherHandler)
		require.True(t, ok)
		return h.DeadlineDelay
	}
	require.Equal(t, time.Second, patience(s.plain.pool.Config().ConnConfig))
	require.Zero(t, patience(s.plain.listen))
}

// A connection that died while nobody used it is found out before a write is sent on it, which would be ambiguous, also if it was used some
// seconds ago. A read is sent again, so it need not ask whether the connection is alive: that would be a message more for each beat of a worker.
func TestWriteOnAConnectionThatDiedIdle(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	direct := testserver.Postgres(t)
	name := fmt.Sprintf("dies idle %d", schemas.Add(1))
	var idle atomic.Int64
	var asked atomic.Bool
	s, err := New(ctx, ownPool(t, direct, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["application_name"] = name
		cfg.MaxConns = 1
		cfg.ShouldPing = func(ctx context.Context, c pgxpool.ShouldPingParams) bool {
			c.IdleDuration = time.Duration(idle.Load())
			asks := isStale(ctx, c)
			asked.Store(asks)
			return asks
		}
	}), Options{Schema: fresh(t, direct), NoCoalesce: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	write := func() error {
		_, err := s.Apply(ctx, []rowstore.Mutation{put("a", 5)}, rowstore.ApplyOptions{})
		return err
	}
	read := func() error {
		_, err := s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}}})
		return err
	}
	for _, tc := range []struct {
		name string
		do   func() error
		idle time.Duration
		asks bool
	}{
		{"a write after another call", write, 100 * time.Millisecond, false},
		{"a write", write, 3 * time.Second, true},
		{"a read", read, 3 * time.Second, false},
		{"a read after a pause", read, 10 * time.Second, true},
	} {
		idle.Store(int64(tc.idle))
		require.NoError(t, tc.do(), tc.name)
		require.Equal(t, tc.asks, asked.Load(), tc.name)
		if tc.idle < time.Second {
			continue
		}
		sqlDo(t, direct, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '"+name+"'")
		require.Eventually(t, func() bool {
			return sqlDo(t, direct, "SELECT count(*) FROM pg_stat_activity WHERE application_name = '"+name+"'") == "0"
		}, testWait, testTick)
		require.NoError(t, tc.do(), tc.name+" on a dead connection")
	}
}

// A hook of the program's pool may fail by a code that means a bad setting while a store is opened by an address. That may pass: a migration
// that is under way makes the role, say.
func TestHookThatIsRefused(t *testing.T) {
	t.Parallel()
	pool := ownPool(t, testserver.Postgres(t), func(cfg *pgxpool.Config) {
		cfg.AfterConnect = func(ctx context.Context, c *pgx.Conn) error { return exec(ctx, c, "SET ROLE nobody_of_that_name") }
	})
	_, err := New(t.Context(), pool, Options{})
	require.Equal(t, invalidSetting, sqlState(err))
	require.NotErrorIs(t, err, rowstore.ErrInvalid)
	require.NotErrorIs(t, opening(err), rowstore.ErrInvalid)
}
