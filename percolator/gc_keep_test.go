package percolator_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	_ "github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/percolator"
)

// TestCollectionKeepsMoreThanThereHasBeen: nothing is as old as that, and no store takes a timestamp of 0.
func TestCollectionKeepsMoreThanThereHasBeen(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, err := percolator.Open(ctx, "memory:", percolator.WithSettings(percolator.Settings{CatalogLease: 50 * time.Millisecond}))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(ctx)) }()
	report, err := db.CollectGarbage(ctx, percolator.GCOptions{Keep: 999_999 * time.Hour})
	require.NoError(t, err)
	require.Zero(t, report.Versions)
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(percolator.Cell{Table: "t", Row: "r", Column: "c"}, nil)
	}))
}
