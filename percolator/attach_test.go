package percolator

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAttach has values that packages keep beside transactions, under keys of all kinds.
func TestAttach(t *testing.T) {
	t.Parallel()
	type key struct{ of string }
	ctx, w := t.Context(), newWorld(t)
	db := w.client()
	tx, err := db.Begin(ctx)
	require.NoError(t, err)
	require.Nil(t, tx.Attached(key{"a"}))
	require.NoError(t, tx.Attach(key{"a"}, 1))
	require.NoError(t, tx.Attach(key{"a"}, 2))
	require.NoError(t, tx.Attach(&w, nil))
	require.Equal(t, 2, tx.Attached(key{"a"}))
	require.Nil(t, tx.Attached(key{"b"}))
	require.Nil(t, tx.Attached("a"))
	require.Nil(t, tx.Attached(nil))
	for _, bad := range []any{nil, []byte("a"), map[string]int{}, func() {}, struct{ k any }{[]int{1}}} {
		require.ErrorIs(t, tx.Attach(bad, 1), ErrInvalid)
		require.Nil(t, tx.Attached(bad))
	}
	var within any
	require.NoError(t, tx.OnEnd(func(error) {
		within = tx.Attached(key{"a"})
		assert.ErrorIs(t, tx.Attach(key{"a"}, 3), ErrTxnDone)
	}))
	require.NoError(t, tx.Commit(ctx))
	require.Equal(t, 2, within)
	require.Nil(t, tx.Attached(key{"a"}))
	require.ErrorIs(t, tx.Attach(key{"a"}, 3), ErrTxnDone)

	attempts := 0
	require.NoError(t, db.Update(ctx, func(tx *Txn) error {
		require.Nil(t, tx.Attached(key{"a"}), "of an earlier attempt")
		if attempts++; attempts < 3 {
			require.NoError(t, tx.Attach(key{"a"}, attempts))
			return ErrConflict
		}
		return nil
	}))
	require.Equal(t, 3, attempts)
}

// TestAttachedGoesWithItsTransaction has a transaction that nobody ends.
func TestAttachedGoesWithItsTransaction(t *testing.T) {
	t.Parallel()
	db := newWorld(t).client()
	forgotten := func() weak.Pointer[[1 << 10]byte] {
		tx, err := db.Begin(t.Context())
		require.NoError(t, err)
		value := new([1 << 10]byte)
		require.NoError(t, tx.Attach("v", value))
		require.NoError(t, tx.OnEnd(func(error) { _ = tx.Attached("v") }))
		return weak.Make(value)
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		return forgotten.Value() == nil
	}, time.Minute, 10*time.Millisecond)
}
