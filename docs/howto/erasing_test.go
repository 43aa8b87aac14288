package howto

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// eraseCustomer erases the customer's rows in a table. Rows are named CUSTOMER/... there.
func eraseCustomer(ctx context.Context, db *percolator.DB, table, customer string) (percolator.Receipt, error) {
	prefix := customer + "/"
	return db.Erase(ctx, percolator.Range{Table: table, From: prefix, To: percolator.PrefixEnd(prefix)})
}

// compactPebble writes all files of an embedded store anew. It does nothing over another one.
func compactPebble(ctx context.Context, db *percolator.DB) error {
	if store, ok := rowstore.Unwrap[*pebble.Store](db.Store()); ok {
		return store.Compact(ctx)
	}
	return nil
}

func TestErasing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, err := percolator.Open(ctx, "memory:", percolator.WithSettings(percolator.Settings{
		CatalogLease: 50 * time.Millisecond, MaxTxnAge: 2 * time.Second, Retention: 24 * time.Hour,
	}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) }) // once the worker has stopped
	w := startWorker(t, db, percolator.Observer{
		Name: "sum", Table: "order", Column: "amount",
		Func: func(ctx context.Context, tx *percolator.Txn, changed percolator.Cell) error {
			return tx.Set(percolator.Cell{Table: "changed", Row: "last", Column: "at"}, nil)
		},
	})
	order := func(row string) percolator.Cell { return percolator.Cell{Table: "order", Row: row, Column: "amount"} }
	var before percolator.Timestamp
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		require.NoError(t, tx.Set(order("ann/1"), []byte("10")))
		require.NoError(t, tx.Set(order("ann/2"), []byte("20")))
		return tx.Set(order("bob/1"), []byte("30"))
	}, percolator.WithCommitTimestamp(&before)))
	require.NoError(t, w.WaitIdle(ctx))

	receipt, err := eraseCustomer(ctx, db, "order", "ann")
	require.NoError(t, err)
	require.EqualValues(t, 2, receipt.Rows)
	require.Zero(t, receipt.Kept)

	require.ErrorIs(t, db.View(ctx, func(tx *percolator.Txn) error {
		_, err := tx.Get(ctx, order("ann/1"))
		return err
	}, percolator.WithAsOfTimestamp(before)), percolator.ErrSnapshotTooOld)
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		v, err := tx.Get(ctx, order("bob/1"))
		require.Equal(t, "30", string(v))
		return err
	}, percolator.WithAsOfTimestamp(before)), "other rows are read as before")
	require.NoError(t, compactPebble(ctx, db))
	// The store has nothing of these rows any more, not even their names.
	var picks []rowstore.Selector
	for _, family := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark, rowstore.Notify} {
		picks = append(picks, rowstore.Selector{Family: family, Column: rowstore.AllColumns, To: math.MaxInt64})
	}
	for row, err := range db.Store().Scan(ctx, rowstore.ScanRange{Table: "order", Selectors: picks}) {
		require.NoError(t, err)
		require.Equal(t, "bob/1", row.Row, "%+v", row)
	}
}
