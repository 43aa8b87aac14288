package percolator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestOnEnd has transactions that end in each way. Each calls its functions once, in order, with what its commit returned. It is long
// because it is a list of ways.
func TestOnEnd(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		c := Cell{"t", "a", "v"}
		type end struct {
			tx  *Txn
			err error
		}
		var ends []end
		noted := func(tx *Txn) *Txn {
			for range 2 {
				require.NoError(t, tx.OnEnd(func(err error) {
					ends = append(ends, end{tx, err})
					require.ErrorIs(t, tx.Set(c, nil), ErrTxnDone)
					require.ErrorIs(t, tx.OnEnd(func(error) {}), ErrTxnDone)
				}))
			}
			return tx
		}
		ended := func(n int) []end {
			require.Len(t, ends, 2*n)
			all := ends
			ends = nil
			return all
		}
		begin := func() *Txn {
			tx, err := db.Begin(ctx)
			require.NoError(t, err)
			return noted(tx)
		}

		require.ErrorIs(t, begin().OnEnd(nil), ErrInvalid)
		ended(0) // nobody ends that one

		tx := begin()
		require.NoError(t, tx.Rollback(ctx))
		for _, e := range ended(1) {
			require.NoError(t, e.err)
			require.Zero(t, e.tx.CommitTimestamp())
		}
		require.NoError(t, tx.Rollback(ctx))
		require.ErrorIs(t, tx.Commit(ctx), ErrTxnDone)
		ended(0)

		late := begin()
		require.NoError(t, late.Set(c, []byte("2")))
		tx = begin()
		require.NoError(t, tx.Set(c, []byte("1")))
		require.NoError(t, tx.Commit(ctx))
		for _, e := range ended(1) {
			require.NoError(t, e.err)
			require.NotZero(t, e.tx.CommitTimestamp())
		}
		err := late.Commit(ctx)
		require.ErrorIs(t, err, ErrConflict)
		for _, e := range ended(1) {
			require.Equal(t, err, e.err)
		}

		tx = begin()
		require.NoError(t, tx.Set(c, nil))
		gone, cancel := context.WithCancel(ctx)
		cancel()
		require.ErrorIs(t, tx.Commit(gone), context.Canceled)
		require.ErrorIs(t, ended(1)[0].err, context.Canceled)

		// Update and View end what they begin, also after an error and a panic.
		no := errors.New("no")
		require.ErrorIs(t, db.Update(ctx, func(tx *Txn) error { noted(tx); return no }), no)
		require.NoError(t, db.View(ctx, func(tx *Txn) error { noted(tx); return nil }))
		require.Panics(t, func() { _ = db.Update(ctx, func(tx *Txn) error { noted(tx); panic("no") }) })
		ended(3)
		attempts := 0
		require.NoError(t, db.Update(ctx, func(tx *Txn) error {
			noted(tx)
			if attempts++; attempts < 3 {
				return ErrConflict
			}
			return tx.Set(c, []byte("3"))
		}))
		ended(3)
	})
}

// TestOnEndOfARun has a run of an observer, which its worker ends.
func TestOnEndOfARun(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New(), WithSettings(Settings{CatalogLease: 10 * time.Millisecond}))
	c := Cell{"t", "a", "v"}
	var runs, ends int
	w := NewWorker(db, WorkerConfig{})
	require.NoError(t, w.Observe(Observer{Name: "o", Table: "t", Column: "v", Concurrency: 1, Func: func(_ context.Context, tx *Txn, _ Cell) error {
		if runs++; runs == 1 {
			return errors.Join(tx.OnEnd(func(error) { ends++ }), errors.New("not yet"))
		}
		return tx.OnEnd(func(err error) {
			if err == nil && tx.CommitTimestamp() != 0 {
				ends++
			}
		})
	}}))
	require.NoError(t, db.Update(t.Context(), func(tx *Txn) error { return tx.Set(c, nil) }))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	require.NoError(t, w.WaitIdle(t.Context()))
	stop()
	require.NoError(t, <-ended)
	require.Equal(t, 2, runs)
	require.Equal(t, 2, ends)
}
