package typed_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/typed"
)

// What a Column adds to a transaction that reads and writes one cell in memory, where it costs least.
func BenchmarkColumn(b *testing.B) {
	col := typed.Column[int]{Table: "t", Name: "n", Codec: typed.Number[int]{}}
	ctx := b.Context()
	const rows = 1000 // one with all the history would measure that
	for name, add := range map[string]func(tx *percolator.Txn, row string) error{
		"bytes": func(tx *percolator.Txn, row string) error {
			v, err := tx.Get(ctx, col.Cell(row))
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(string(v))
			if err != nil {
				return err
			}
			return tx.Set(col.Cell(row), strconv.AppendInt(nil, int64(n+1), 10))
		},
		"typed": func(tx *percolator.Txn, row string) error {
			n, err := col.Get(ctx, tx, row)
			if err != nil {
				return err
			}
			return col.Set(ctx, tx, row, n+1)
		},
	} {
		b.Run(name, func(b *testing.B) {
			db, err := percolator.New(ctx, memstore.New())
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = db.Close(ctx) }()
			err = db.Update(ctx, func(tx *percolator.Txn) (err error) {
				for i := range rows {
					err = errors.Join(err, col.Set(ctx, tx, strconv.Itoa(i), 0))
				}
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				row := strconv.Itoa(i % rows)
				if err := db.Update(ctx, func(tx *percolator.Txn) error { return add(tx, row) }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
