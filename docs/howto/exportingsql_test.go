package howto

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
)

// ownTables are tables of the program's own: what it shows its users, and how far each key has come.
const ownTables = `
CREATE TABLE orders_of (customer text, number text);
CREATE TABLE come_to (key bytea PRIMARY KEY, epoch bigint NOT NULL, commit bigint NOT NULL, index int NOT NULL);`

// intoTable writes items into the program's own table, together with how far the key has come: in one SQL transaction, so that each
// item has one row, whatever dies in between.
func intoTable(pool *pgxpool.Pool) export.SinkFunc {
	return func(ctx context.Context, key string, items []export.Item) (taken int, err error) {
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			// The row is there before it is locked: so an exporter that was suspended waits for its successor here.
			_, err := tx.Exec(ctx, "INSERT INTO come_to VALUES ($1, 0, 0, 0) ON CONFLICT DO NOTHING", []byte(key))
			if err != nil {
				return err
			}
			var last export.Item
			err = tx.QueryRow(ctx, "SELECT epoch, commit, index FROM come_to WHERE key = $1 FOR UPDATE", []byte(key)).Scan(&last.Epoch, &last.Commit, &last.Index)
			if err != nil {
				return err
			}
			for _, item := range items {
				switch {
				case item.Epoch < last.Epoch:
					return export.ErrSuperseded
				case item.Commit < last.Commit || item.Commit == last.Commit && item.Index <= last.Index:
					last.Epoch = item.Epoch
					continue // it was taken before
				}
				if _, err := tx.Exec(ctx, "INSERT INTO orders_of VALUES ($1, $2)", key, string(item.Payload)); err != nil {
					return err
				}
				last = item
			}
			_, err = tx.Exec(ctx, "UPDATE come_to SET epoch = $2, commit = $3, index = $4 WHERE key = $1", []byte(key), last.Epoch, last.Commit, last.Index)
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("writing the orders of a customer: %w", err)
		}
		return len(items), nil
	}
}

func TestOrdersInATableOfYourOwn(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	pool := openOwnTables(t)

	write := intoTable(pool)
	var sent [][]export.Item
	lost := true
	outbox, observer, err := openOutbox(ctx, db, export.SinkFunc(func(ctx context.Context, key string, items []export.Item) (int, error) {
		n, err := write(ctx, key, items)
		if sent = append(sent, items); lost && err == nil {
			lost = false
			return 0, errors.New("the answer was lost") // the rows are written all the same
		}
		return n, err
	}))
	require.NoError(t, err)
	percolatetest.RunUntilIdle(t, db, observer)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		for _, order := range []string{"1", "2"} {
			if err := outbox.Put(ctx, tx, "ann", []byte(order)); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, placeAndTell(ctx, db, outbox, "ann", "3"))
	percolatetest.RunUntilIdle(t, db, observer)
	numbers := func() []string {
		rows, err := pool.Query(ctx, "SELECT number FROM orders_of ORDER BY number")
		require.NoError(t, err)
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return all
	}
	require.Greater(t, len(sent), 1, "it was sent again")
	require.Equal(t, []string{"1", "2", "3"}, numbers())

	// One that was suspended comes with what its successor has sent.
	late := sent[0]
	require.NotZero(t, late[0].Epoch)
	for i := range late {
		late[i].Epoch--
	}
	_, err = write(ctx, "ann", late)
	require.ErrorIs(t, err, export.ErrSuperseded)
	require.Equal(t, []string{"1", "2", "3"}, numbers())

	next := late[len(late)-1]
	next.Epoch, next.Commit, next.Payload = next.Epoch+2, next.Commit+1<<20, []byte("4")
	sendBesideItsSuccessor(t, pool, next)
	require.Equal(t, []string{"1", "2", "3", "4"}, numbers())
}

// sendBesideItsSuccessor has an exporter send an item while its successor is at it: it waits for that, and sees what it has taken.
func sendBesideItsSuccessor(t *testing.T, pool *pgxpool.Pool, item export.Item) {
	t.Helper()
	ctx := t.Context()
	successor, err := pool.Begin(ctx)
	require.NoError(t, err)
	exec := func(sql string, args ...any) {
		_, err := successor.Exec(ctx, sql, args...)
		require.NoError(t, err)
	}
	exec("SELECT FROM come_to WHERE key = $1 FOR UPDATE", []byte("ann"))
	waited := make(chan error, 1)
	go func() { _, err := intoTable(pool)(ctx, "ann", []export.Item{item}); waited <- err }()
	require.Eventually(t, func() bool {
		var waits bool
		err := pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND $1 = ANY (pg_blocking_pids(pid)))", successor.Conn().PgConn().PID()).Scan(&waits)
		return err == nil && waits
	}, time.Minute, time.Millisecond)
	exec("INSERT INTO orders_of VALUES ('ann', '4')")
	exec("UPDATE come_to SET epoch = $1, commit = $2, index = $3", item.Epoch, item.Commit, item.Index)
	require.NoError(t, successor.Commit(ctx))
	require.NoError(t, <-waited)
}

// openOwnTables makes the tables in a schema of the test's own.
func openOwnTables(t *testing.T) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(testserver.Postgres(t))
	require.NoError(t, err)
	cfg.ConnConfig.RuntimeParams["search_path"] = "own"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), "DROP SCHEMA IF EXISTS own CASCADE; CREATE SCHEMA own;"+ownTables)
	require.NoError(t, err)
	return pool
}
