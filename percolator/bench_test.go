package percolator_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	_ "github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/percolator"
)

// BenchmarkReadWrite is a transaction on an idle store that reads one cell and
// writes it.
func BenchmarkReadWrite(b *testing.B) { benchReadWrite(b, func(*percolator.DB) {}) }

// BenchmarkReadWriteGuarded is the same where a row was deleted as a whole before: two conditions more.
func BenchmarkReadWriteGuarded(b *testing.B) {
	benchReadWrite(b, func(db *percolator.DB) {
		require.NoError(b, db.Update(context.Background(), func(tx *percolator.Txn) error { return tx.DeleteRow(context.Background(), "bench", "gone") }))
	})
}

func benchReadWrite(b *testing.B, before func(db *percolator.DB)) {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:", percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}))
	require.NoError(b, err)
	defer func() { require.NoError(b, db.Close(ctx)) }()
	before(db)
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

// BenchmarkRuns is a run of an observer for each of 1,000 changes that have been seen before: of a function that
// reads nothing, of one that reads the cell, and of one that is told the old value and the new one.
func BenchmarkRuns(b *testing.B) {
	kinds := []struct {
		name string
		o    percolator.Observer
	}{
		{"Func", percolator.Observer{Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }}},
		{"FuncAndGet", percolator.Observer{Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			_, err := tx.Get(ctx, c)
			return err
		}}},
		{"OnChange", percolator.Observer{OnChange: func(context.Context, *percolator.Txn, percolator.Change) error { return nil }}},
	}
	for _, url := range []string{"memory:", "pebble:"} {
		for _, kind := range kinds {
			b.Run(url+kind.name, func(b *testing.B) {
				ctx := context.Background()
				where := url
				if url == "pebble:" {
					where += "//" + b.TempDir()
				}
				db, err := percolator.Open(ctx, where, percolator.WithSettings(percolator.Settings{CatalogLease: 50 * time.Millisecond}))
				require.NoError(b, err)
				defer func() { require.NoError(b, db.Close(ctx)) }()
				w := percolator.NewWorker(db, percolator.WorkerConfig{Concurrency: 4})
				o := kind.o
				o.Name, o.Table, o.Column = "bench", "bench", "value"
				require.NoError(b, w.Observe(o))
				defer run(ctx, w)()
				change := func(i int) {
					require.NoError(b, db.Update(ctx, func(tx *percolator.Txn) error {
						for n := range 1000 {
							if err := tx.Set(percolator.Cell{Table: "bench", Row: fmt.Sprintf("row%06d", n), Column: "value"}, fmt.Append(nil, i)); err != nil {
								return err
							}
						}
						return nil
					}))
				}
				change(-1)
				require.NoError(b, w.WaitIdle(ctx))
				for i := 0; b.Loop(); i++ {
					change(i)
					require.NoError(b, w.WaitIdle(ctx))
				}
			})
		}
	}
}
