package rowstore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A backend registers its URL schemes in init, and programs open stores by URL.
func ExampleOpen() {
	rowstore.Register(func(_ context.Context, url string) (rowstore.Store, error) {
		fmt.Println("opening", url)
		return rowstore.NewMemory(), nil
	}, "example")

	ctx := context.Background()
	store, err := rowstore.Open(ctx, "example://host/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = store.Close() }()

	_, err = rowstore.Open(ctx, "exmaple://host/shop")
	fmt.Println(err != nil)
	// Output:
	// opening example://host/shop
	// true
}

// One mutation of a row: a lock is put if nobody has one. The second comer is
// refused, and told by what.
func ExampleMemory() {
	ctx := context.Background()
	store := rowstore.NewMemory()
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

	pick := rowstore.Pick{Family: rowstore.Lock, Column: rowstore.AllColumns, To: oracle.Max}
	for row, err := range store.Scan(ctx, rowstore.ScanRange{Table: "accounts", Picks: []rowstore.Pick{pick}}) {
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

// Two stores behind one: orders are in the authoritative store, logs elsewhere.
func ExampleNewRouter() {
	ctx := context.Background()
	fast, safe := rowstore.NewMemory(), rowstore.NewMemory()
	router, err := rowstore.NewRouter(rowstore.RouterConfig{
		Stores:        map[string]rowstore.Store{"fast": fast, "safe": safe},
		Tables:        map[string]string{"log*": "fast"},
		Authoritative: "safe",
	})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = router.Close() }()

	edit := rowstore.Put(rowstore.Write, "text", 1, []byte("hello"))
	_, err = router.Apply(ctx, []rowstore.Mutation{
		{Table: "orders", Row: "1", Edits: []rowstore.Edit{edit}},
		{Table: "logs/today", Row: "1", Edits: []rowstore.Edit{edit}},
	}, rowstore.ApplyOptions{})
	if err != nil {
		log.Fatal(err)
	}
	list := func(name string, store rowstore.Store) {
		for table, err := range store.Tables(ctx) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(name, table)
		}
	}
	list("fast has", fast)
	list("safe has", safe)
	list("router has", router)
	fmt.Println(router.Authoritative("orders"), router.Authoritative("logs/today"))
	// Output:
	// fast has logs/today
	// safe has orders
	// router has logs/today
	// router has orders
	// true false
}

// Concurrent calls share calls of the backend; a lone one goes straight to it.
func ExampleCoalesce() {
	store := rowstore.Coalesce(rowstore.NewMemory(), rowstore.CoalesceOptions{MaxBatch: 128})
	defer func() { _ = store.Close() }()
	// Abilities of the store are found through what is around it.
	_, groups := rowstore.Unwrap[rowstore.Grouper](store)
	fmt.Println(groups)
	// Output: true
}

// A hook decides which call fails, and how: here the reply to each second Apply
// is lost, though the store applied it.
func ExampleNewFaulty() {
	ctx := context.Background()
	applies := 0
	store := rowstore.NewFaulty(rowstore.NewMemory(), rowstore.FaultyOptions{
		OnCall: func(c rowstore.Call) rowstore.Fault {
			if c.Kind == rowstore.CallApply {
				applies++
				if applies%2 == 0 {
					return rowstore.Fault{Kind: rowstore.LoseReply, Applied: true}
				}
			}
			return rowstore.Fault{}
		},
	})
	defer func() { _ = store.Close() }()
	for range 2 {
		_, err := store.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: "r"}}, rowstore.ApplyOptions{})
		fmt.Println(err)
	}
	fmt.Println(store.Count(rowstore.LoseReply))
	// Output:
	// <nil>
	// rowstore: outcome unknown (rowstore: injected fault: apply 2: the reply was lost)
	// 1
}
