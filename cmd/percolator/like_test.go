package main

import (
	"context"
	"fmt"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// strangeTables has something in it that is no table.
type strangeTables struct{ *memstore.Store }

func (s strangeTables) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for name, err := range s.Store.Tables(ctx) {
			if !yield(name, err) {
				return
			}
		}
		yield("", fmt.Errorf("%w: a key of a test", rowstore.ErrCorrupt))
	}
}

// Something in the store that is no table keeps no command from a table. Whether there is another one is not known.
func TestHaveTableBesideAStrangeKey(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	db, err := percolator.New(t.Context(), store)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Set(cell("t", "r", "c"), nil) }))
	r, err := admin.New(strangeTables{store})
	require.NoError(t, err)
	require.NoError(t, haveTable(t.Context(), r, "t"))
	require.ErrorIs(t, haveTable(t.Context(), r, "u"), rowstore.ErrCorrupt)
}
