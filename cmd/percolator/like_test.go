package main

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// Something in the store that is no table keeps no command from a table. Whether there is another one is not known.
func TestHaveTableBesideAStrangeKey(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	db, err := percolator.New(t.Context(), store)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Set(cell("t", "r", "c"), nil) }))
	strange := faultstore.New(store, faultstore.Options{})
	strange.AddRule(faultstore.Rule{
		Match: func(c *faultstore.Call) bool { return c.Kind == faultstore.CallTables },
		Fault: faultstore.Fault{Kind: faultstore.Fail, Err: rowstore.ErrCorrupt, Rows: math.MaxInt}, Times: -1,
	})
	r, err := admin.New(strange)
	require.NoError(t, err)
	require.NoError(t, haveTable(t.Context(), r, "t"))
	require.ErrorIs(t, haveTable(t.Context(), r, "u"), rowstore.ErrCorrupt)
}
