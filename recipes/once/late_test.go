package once

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

// TestLateFinishKeepsItsClaim has a process that acts for longer than its lease, while others use the table. Nobody else has claimed the key, so it
// finishes: the next call gets the answer, and does not act again.
func TestLateFinishKeepsItsClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), percolatetest.Open(t)
		k := numbers(t, db)
		k.lookEvery = 1
		c, _, err := k.Claim(ctx, "a", time.Minute)
		require.NoError(t, err)
		time.Sleep(2 * time.Minute)
		_, _, err = k.Do(ctx, "b", count)
		require.NoError(t, err)
		_, err = k.Sweep(ctx)
		require.NoError(t, err)
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return c.Finish(ctx, tx, 7) }))
		answer, first, err := k.Do(ctx, "a", count)
		require.NoError(t, err)
		require.False(t, first)
		require.Equal(t, 7, answer)

		// A claim that nobody ends goes, in the end.
		_, _, err = k.Claim(ctx, "c", time.Minute)
		require.NoError(t, err)
		time.Sleep(k.keep + 2*time.Minute)
		n, err := k.Sweep(ctx)
		require.NoError(t, err)
		require.Equal(t, 3, n)
	})
}

// TestCallSparesItsOwnKey has a key whose answer has ended, and a call that looks for what has ended. It needs one attempt.
func TestCallSparesItsOwnKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), percolatetest.Open(t)
		k := numbers(t, db)
		k.lookEvery = 1
		for n := range 40 { // a look begins in a random place, and so misses the only row now and then: that of this key is among the last ones
			attempts := 0
			err := db.Update(ctx, func(tx *percolator.Txn) error {
				attempts++
				_, first, err := k.Within(ctx, tx, "key", count)
				require.True(t, first)
				return err
			})
			require.NoError(t, err)
			require.Equal(t, 1, attempts)
			require.Equal(t, n+1, counted(t, db))
			time.Sleep(2 * k.keep)
		}
	})
}

// TestSweepIsNotEarly sweeps just before answers and claims end, and just after.
func TestSweepIsNotEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), percolatetest.Open(t)
		k := numbers(t, db)
		k.lookEvery = math.MaxUint64
		sweeps := func(want int) {
			n, err := k.Sweep(ctx)
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
		const bit = 100 * time.Millisecond // more than calls take
		_, _, err := k.Do(ctx, "answer", count)
		require.NoError(t, err)
		time.Sleep(k.keep - bit)
		sweeps(0)
		time.Sleep(2 * bit)
		sweeps(1)
		_, _, err = k.Claim(ctx, "claim", time.Minute)
		require.NoError(t, err)
		time.Sleep(time.Minute + k.keep - bit)
		sweeps(0)
		time.Sleep(2 * bit)
		sweeps(1)
	})
}

// TestTransactionSparesAllItsKeys has a transaction that takes over many keys whose answers have ended, and looks for what has ended at the last one. It needs one attempt.
func TestTransactionSparesAllItsKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), percolatetest.Open(t)
		const keys = 20
		var ended []*percolator.Txn
		for range 10 {
			attempts := 0
			err := db.Update(ctx, func(tx *percolator.Txn) error {
				attempts++
				ended = append(ended, tx)
				for i := range keys {
					k := numbers(t, db)
					k.lookEvery = math.MaxUint64
					if i == keys-1 {
						k.lookEvery = 1
					}
					if _, first, err := k.Within(ctx, tx, strconv.Itoa(i), count); err != nil || !first {
						return fmt.Errorf("key %d, first %t: %w", i, first, err)
					}
				}
				return nil
			})
			require.NoError(t, err)
			require.Equal(t, 1, attempts)
			time.Sleep(2 * time.Hour)
		}
		for _, tx := range ended {
			require.Nil(t, tx.Attached(writerKey{}), "what is known of a transaction goes with it")
		}
	})
}
