package index_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/index"
	"github.com/percolate-go/percolate/typed"
)

// BenchmarkWrite writes a row without an index, with one, and with one that is unique.
func BenchmarkWrite(b *testing.B) {
	for _, how := range []string{"without", "index", "unique"} {
		b.Run(how, func(b *testing.B) {
			ctx := context.Background()
			db, err := percolator.Open(ctx, "memory:")
			require.NoError(b, err)
			defer func() { require.NoError(b, db.Close(ctx)) }()
			values := typed.Column[string]{Table: "row", Name: "value", Codec: typed.Text[string]{}}
			if how != "without" {
				ix, err := index.New(db, "value", values, func(_ string, v string) ([]keys.Key, error) {
					return []keys.Key{keys.Key("").Text(v)}, nil
				}, index.Options{Unique: how == "unique"})
				require.NoError(b, err)
				_, err = ix.Build(ctx, index.Pace{})
				require.NoError(b, err)
			}
			n := 0
			write := func() error {
				n++
				return db.Update(ctx, func(tx *percolator.Txn) error {
					return values.Set(ctx, tx, strconv.Itoa(n%1000), "value "+strconv.Itoa(n))
				})
			}
			for range 1000 {
				require.NoError(b, write())
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := write(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
