package backup

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// BenchmarkPebble backs up and restores cells of 100 bytes in a Pebble store, four in each row.
func BenchmarkPebble(b *testing.B) {
	const cells = 400_000
	db, err := percolator.Open(b.Context(), "pebble:"+filepath.Join(b.TempDir(), "data"))
	require.NoError(b, err)
	defer func() { _ = db.Close(b.Context()) }()
	value := make([]byte, 100)
	for from := 0; from < cells; from += 10_000 {
		require.NoError(b, db.Update(b.Context(), func(tx *percolator.Txn) error {
			for i := from; i < from+10_000; i++ {
				copy(value, fmt.Sprintf("value %d of a cell that says something", i))
				if err := tx.Set(at("t", fmt.Sprintf("row-%09d", i/4), fmt.Sprintf("column-%d", i%4)), value); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	dir, path, n := b.TempDir(), "", 0
	b.Run("backup", func(b *testing.B) {
		for b.Loop() {
			n++
			path = filepath.Join(dir, fmt.Sprint(n))
			r, err := Write(b.Context(), db, path, Options{})
			require.NoError(b, err)
			require.EqualValues(b, cells, r.Cells)
		}
		b.ReportMetric(float64(cells)*float64(b.N)/b.Elapsed().Seconds(), "cells/s")
	})
	b.Run("restore", func(b *testing.B) {
		for b.Loop() {
			store, err := rowstore.Open(b.Context(), "pebble:"+filepath.Join(b.TempDir(), "data"))
			require.NoError(b, err)
			_, err = Restore(b.Context(), store, path, RestoreOptions{})
			require.NoError(b, err)
			require.NoError(b, store.Close())
		}
		b.ReportMetric(float64(cells)*float64(b.N)/b.Elapsed().Seconds(), "cells/s")
	})
}
