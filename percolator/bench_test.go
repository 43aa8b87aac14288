package percolator_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/percolator"
)

// BenchmarkReadWrite is a transaction on an idle store that reads one cell and
// writes it.
func BenchmarkReadWrite(b *testing.B) {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:")
	require.NoError(b, err)
	defer func() { require.NoError(b, db.Close(ctx)) }()
	cells := make([]percolator.Cell, 10_000)
	for i := range cells {
		cells[i] = percolator.Cell{Table: "bench", Row: fmt.Sprintf("row%06d", i), Column: "value"}
		require.NoError(b, db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(cells[i], make([]byte, 16)) }))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c := cells[i%len(cells)]
		err := db.Update(ctx, func(tx *percolator.Txn) error {
			v, err := tx.Get(ctx, c)
			if err != nil {
				return err
			}
			v[0]++
			return tx.Set(c, v)
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
