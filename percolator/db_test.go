package percolator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A second Close waits for the first one no longer than its context says.
func TestSecondCloseHonoursItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, err := New(t.Context(), memstore.New())
		require.NoError(t, err)
		require.NoError(t, db.enter()) // a call that hangs
		first := async(func() error { return db.Close(context.Background()) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, db.Close(ctx), context.DeadlineExceeded)
		db.leave()
		require.NoError(t, <-first)
		require.NoError(t, db.Close(t.Context()))
	})
}

// Every View is read only, whether it ended well or not.
func TestStatsCountViews(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New())
	ctx := t.Context()
	require.NoError(t, db.View(ctx, func(*Txn) error { return nil }))
	require.NoError(t, db.View(ctx, func(tx *Txn) error { return tx.Commit(ctx) }))
	require.Error(t, db.View(ctx, func(*Txn) error { return errors.ErrUnsupported }))
	require.NoError(t, db.Update(ctx, func(*Txn) error { return nil }))
	require.EqualValues(t, 4, db.Stats().ReadOnly)
	require.EqualValues(t, 4, db.Stats().Transactions)
	require.NoError(t, db.View(ctx, func(tx *Txn) error { return tx.Rollback(ctx) }))
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_ = db.View(ctx, func(tx *Txn) error { return tx.Commit(ended) })
	require.EqualValues(t, 6, db.Stats().ReadOnly)
	require.EqualValues(t, 6, db.Stats().Transactions)
}

// A call without a function is an error, and not a panic.
func TestNoFunction(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New())
	require.ErrorIs(t, db.Update(t.Context(), nil), ErrInvalid)
	require.ErrorIs(t, db.View(t.Context(), nil), ErrInvalid)
	_, err := db.UpdateAt(t.Context(), nil)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "UpdateAt")
}
