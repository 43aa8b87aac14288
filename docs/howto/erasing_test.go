package howto

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// deleteCustomer deletes the customer's rows in a table, in parts. Rows are named
// CUSTOMER/... there.
func deleteCustomer(ctx context.Context, db *percolator.DB, table, customer string) error {
	prefix := customer + "/"
	_, err := db.DeleteRange(ctx, percolator.Range{Table: table, From: prefix, To: percolator.PrefixEnd(prefix)})
	return err
}

// forget removes the history of all that was deleted before now, and returns once it is
// gone. It takes MaxTxnAge plus a catalog lease or more: an hour, by default.
func forget(ctx context.Context, db *percolator.DB) error {
	deleted, err := db.Now(ctx)
	if err != nil {
		return err
	}
	for {
		// 1 ns asks for as little history as is allowed.
		report, err := db.CollectGarbage(ctx, percolator.GCOptions{Keep: time.Nanosecond, Full: true})
		if err != nil || report.SafePoint > deleted {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(db.Settings().MaxTxnAge / 10):
		}
	}
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

	require.NoError(t, deleteCustomer(ctx, db, "order", "ann"))
	require.NoError(t, w.WaitIdle(ctx)) // what observers made of the rows is deleted too
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		_, err := tx.Get(ctx, order("ann/1"))
		require.NoError(t, err, "history has it still")
		return nil
	}, percolator.WithAsOfTimestamp(before)))
	require.NoError(t, forget(ctx, db))

	require.ErrorIs(t, db.View(ctx, func(tx *percolator.Txn) error {
		_, err := tx.Get(ctx, order("ann/1"))
		return err
	}, percolator.WithAsOfTimestamp(before)), percolator.ErrSnapshotTooOld)
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
