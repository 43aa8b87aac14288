package once

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

// TestFinishOnAnOlderSnapshot finishes a claim in transactions that began before it. None of them knows whether it was lost, so none says so, and
// one that begins afterwards finishes.
func TestFinishOnAnOlderSnapshot(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	k := numbers(t, db)
	tx, err := db.Begin(ctx)
	require.NoError(t, err)
	claim, _, err := k.Claim(ctx, "a", time.Minute)
	require.NoError(t, err)
	refused := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, percolator.ErrInvalid)
		require.NotErrorIs(t, err, ErrClaimLost)
		require.ErrorContains(t, err, "after Claim has returned")
	}
	refused(claim.Finish(ctx, tx, 1))
	require.NoError(t, claim.Renew(ctx, time.Minute))
	refused(claim.Finish(ctx, tx, 1))
	require.NoError(t, tx.Rollback(ctx))

	// The snapshot of the claim's own transaction is not after it either.
	early := *claim
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		start, err := tx.StartTimestamp(ctx)
		require.NoError(t, err)
		early.committed = start + 1
		refused(early.Finish(ctx, tx, 1))
		return nil
	}))

	// An Update that has read nothing yet begins after a Claim within it, one that has read does not.
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		_, err := sum(ctx, tx)
		require.NoError(t, err)
		inner, _, err := k.Claim(ctx, "b", time.Minute)
		require.NoError(t, err)
		refused(inner.Finish(ctx, tx, 2))
		return inner.Release(ctx)
	}))
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		inner, _, err := k.Claim(ctx, "b", time.Minute)
		require.NoError(t, err)
		return inner.Finish(ctx, tx, 2)
	}))
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return claim.Finish(ctx, tx, 1) }))
	for key, want := range map[string]int{"a": 1, "b": 2} {
		claim, answer, err := k.Claim(ctx, key, time.Minute)
		require.NoError(t, err)
		require.Nil(t, claim)
		require.Equal(t, want, answer)
	}
}

// TestClaimWithinAnObserver has observers that claim and act. One that finishes in the transaction of its run is told what is wrong; one
// that finishes in another transaction acts once.
func TestClaimWithinAnObserver(t *testing.T) {
	t.Parallel()
	for _, older := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, db := t.Context(), percolatetest.Open(t)
			k := numbers(t, db)
			acts := 0
			var mu sync.Mutex
			var failures []error
			w := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1})
			require.NoError(t, w.OnError(func(_ context.Context, e percolator.RunError) {
				mu.Lock()
				defer mu.Unlock()
				failures = append(failures, e.Err)
			}))
			require.NoError(t, w.Observe(percolator.Observer{Name: "send", Table: "in", Column: "c", Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
				claim, _, err := k.Claim(ctx, c.Row, time.Second)
				if err != nil || claim == nil {
					return err
				}
				acts++
				if older {
					return claim.Finish(ctx, tx, acts)
				}
				return db.Update(ctx, func(tx *percolator.Txn) error { return claim.Finish(ctx, tx, acts) })
			}}))
			run, stop := context.WithCancel(ctx)
			ended := make(chan error, 1)
			go func() { ended <- w.Run(run) }()
			require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
				return tx.Set(percolator.Cell{Table: "in", Row: "x", Column: "c"}, nil)
			}))
			time.Sleep(time.Minute) // of the bubble
			stop()
			require.NoError(t, <-ended)
			if !older {
				require.Equal(t, 1, acts)
				require.Empty(t, failures)
				return
			}
			require.NotEmpty(t, failures)
			require.ErrorIs(t, failures[0], percolator.ErrInvalid)
			require.ErrorContains(t, failures[0], "after Claim has returned")
			for _, err := range failures { // a later attempt may come before the claim has ended
				require.NotErrorIs(t, err, ErrClaimLost)
			}
		})
	}
}
