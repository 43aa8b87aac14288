package howto

import (
	"context"
	"errors"
	"fmt"
	"testing"

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
	pool, err := pgxpool.New(ctx, testserver.Postgres(t))
	require.NoError(t, err)
	defer pool.Close()
	_, err = pool.Exec(ctx, ownTables)
	require.NoError(t, err)

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
}
