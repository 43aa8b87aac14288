package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
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
	// The data of a server in a container cannot be reached, so the server writes the file.
	sqlDo(t, server.URL, "DO $$ BEGIN EXECUTE format('COPY (SELECT 1 WHERE false) TO PROGRAM %L', 'cat > '||current_setting('data_directory')||'/standby.signal'); END $$")
	require.NoError(t, server.Stop())
	require.NoError(t, server.Start())
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
