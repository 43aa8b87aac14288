package percolator

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// Reading an index takes the entries of the transaction back and writes them anew, so its writes move. A row that is deleted afterwards loses
// what was set in it, and no other row does.
func TestDeleteRowAfterAnIndexWasRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rowDeletes()
	c, _ := indexed(t, w)
	ctx := t.Context()
	tx := begin(t, c)
	index := func() {
		t.Helper()
		_, err := tx.Index(ctx, "by value")
		require.NoError(t, err)
	}
	require.NoError(t, tx.Set(row("a"), []byte("1")))
	index()
	require.NoError(t, tx.Set(row("b"), []byte("2")))
	require.NoError(t, tx.Set(row("d"), []byte("3")))
	require.NoError(t, tx.DeleteRow(ctx, "t", "q"))
	index()
	require.NoError(t, tx.DeleteRow(ctx, "t", "b"))
	require.NoError(t, tx.Commit(ctx))
	require.Equal(t, "1", value(t, c, row("a")))
	require.Equal(t, "none", value(t, c, row("b")))
	require.Equal(t, "3", value(t, c, row("d")))
}

// An upkeep that ends the transaction whose index it keeps makes it fail: nothing is taken for written.
func TestUpkeepThatEndsItsTransaction(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(context.Context, *Txn) error{
		"rolls back":                func(ctx context.Context, tx *Txn) error { return tx.Rollback(ctx) },
		"commits":                   func(ctx context.Context, tx *Txn) error { return tx.Commit(ctx) },
		"commits, and says nothing": func(ctx context.Context, tx *Txn) error { _ = tx.Commit(ctx); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c, _ := indexed(t, w)
			u := byValue()
			u.Keep = func(ctx context.Context, tx *Txn, _ []RowChange) error { return end(ctx, tx) }
			require.NoError(t, c.KeepIndex(u))
			tx := begin(t, c)
			var ended []error
			require.NoError(t, tx.OnEnd(func(err error) { ended = append(ended, err) }))
			require.NoError(t, tx.Set(row("a"), []byte("1")))
			err := tx.Commit(t.Context())
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, "by value")
			require.Len(t, ended, 1)
			require.ErrorIs(t, ended[0], ErrInvalid)
			require.Equal(t, "none", value(t, c, row("a")))

			tx = begin(t, c)
			require.NoError(t, tx.Set(row("a"), []byte("1")))
			_, err = tx.Index(t.Context(), "by value")
			require.ErrorIs(t, err, ErrInvalid)
			require.NoError(t, tx.Rollback(t.Context()))
		})
	}
}
