package percolator

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBegun asks transactions whether they have begun, which draws no timestamp: what is committed before the first read is in the snapshot.
func TestBegun(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, db *DB) {
		ctx := t.Context()
		c := Cell{"t", "a", "v"}
		begun := func(tx *Txn) Timestamp {
			t.Helper()
			got, ok := tx.Begun()
			require.True(t, ok)
			start, err := tx.StartTimestamp(ctx)
			require.NoError(t, err)
			require.Equal(t, start, got)
			return got
		}
		var tx *Txn
		var start Timestamp
		require.NoError(t, db.Update(ctx, func(now *Txn) error {
			tx = now
			_, ok := tx.Begun()
			require.False(t, ok)
			at, err := db.UpdateAt(ctx, func(other *Txn) error { return other.Set(c, []byte("seen")) })
			require.NoError(t, err)
			_, ok = tx.Begun()
			require.False(t, ok)
			v, err := tx.Get(ctx, c)
			require.NoError(t, err)
			require.Equal(t, "seen", string(v))
			start = begun(tx)
			require.Greater(t, start, at)
			return nil
		}))
		require.Equal(t, start, begun(tx), "it stays when the transaction has ended")

		require.NoError(t, db.View(ctx, func(tx *Txn) error {
			require.Equal(t, start, begun(tx))
			return nil
		}, WithAsOfTimestamp(start)))
		no := errors.New("no")
		require.ErrorIs(t, db.Update(ctx, func(now *Txn) error { tx = now; return no }), no)
		_, ok := tx.Begun()
		require.False(t, ok, "it never began")

		tx, err := db.Begin(ctx)
		require.NoError(t, err)
		begun(tx)
		require.NoError(t, tx.Rollback(ctx))
		begun(tx)
	})
}
