package memstore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// One mutation of a row: a lock is put if nobody has one. The second comer is
// refused, and told by what.
func Example() {
	ctx := context.Background()
	store := memstore.New()
	defer func() { _ = store.Close() }()

	for _, start := range []rowstore.Timestamp{7, 8} {
		outcomes, err := store.Apply(ctx, []rowstore.Mutation{{
			Table: "accounts", Row: "alice",
			Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, "balance", 0)},
			Edits:      []rowstore.Edit{rowstore.Put(rowstore.Lock, "balance", start, fmt.Appendf(nil, "of %d", start))},
		}}, rowstore.ApplyOptions{})
		if err != nil {
			log.Fatal(err)
		}
		o := outcomes[0]
		fmt.Printf("%d applied: %v, refused by: %q\n", start, o.Applied, o.Broke.Value)
	}

	pick := rowstore.Selector{Family: rowstore.Lock, Column: rowstore.AllColumns, To: oracle.Max}
	for row, err := range store.Scan(ctx, rowstore.ScanRange{Table: "accounts", Selectors: []rowstore.Selector{pick}}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", row.Row, row.Newest(rowstore.Lock, "balance").Value)
	}
	// Output:
	// 7 applied: true, refused by: ""
	// 8 applied: false, refused by: "of 7"
	// alice: of 7
}
