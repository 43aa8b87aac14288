package keys_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// The orders of a customer, in the order of time.
func Example() {
	ctx := context.Background()
	db, err := percolator.New(ctx, memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close(ctx) }()
	day := func(d int) time.Time { return time.Date(2026, 1, d, 0, 0, 0, 0, time.UTC) }
	err = db.Update(ctx, func(tx *percolator.Txn) error {
		for i, placed := range []time.Time{day(9), day(10), day(2)} {
			for _, customer := range []string{"ann", "ann/2"} {
				row := string(keys.Key("").Text(customer).Time(placed))
				if err := tx.Set(percolator.Cell{Table: "order", Row: row, Column: "number"}, fmt.Append(nil, i)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	err = db.View(ctx, func(tx *percolator.Txn) error {
		for row, err := range tx.Scan(ctx, keys.Key("").Text("ann").Range("order")) {
			if err != nil {
				return err
			}
			key := keys.Read(row.Key)
			customer, placed := key.Text(), key.Time()
			if err := key.End(); err != nil {
				return err
			}
			fmt.Println(customer, placed.Format(time.DateOnly), string(row.Columns["number"]))
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// ann 2026-01-02 2
	// ann 2026-01-09 0
	// ann 2026-01-10 1
}

// Keys that grow with time, over four buckets.
func ExampleSpread() {
	spread, err := keys.NewSpread(4)
	if err != nil {
		log.Fatal(err)
	}
	for _, sensor := range []string{"a", "b", "c"} {
		fmt.Println(keys.Describe(string(spread.Key(keys.Key("").Text(sensor)).Int(1))))
	}
	fmt.Println(len(spread.Ranges("measure", "")), "ranges hold all rows")
	// Output:
	// 0: ("a", 1)
	// 3: ("b", 1)
	// 2: ("c", 1)
	// 4 ranges hold all rows
}
