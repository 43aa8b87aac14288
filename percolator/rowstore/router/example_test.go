package router_test

import (
	"context"
	"fmt"
	"log"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/percolator/rowstore/router"
)

// Two stores behind one: orders are in the authoritative store, logs elsewhere.
func Example() {
	ctx := context.Background()
	fast, safe := memstore.New(), memstore.New()
	both, err := router.New(router.Config{
		Stores:        map[string]rowstore.Store{"fast": fast, "safe": safe},
		Tables:        map[string]string{"log*": "fast"},
		Authoritative: "safe",
	})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = both.Close() }()

	edit := rowstore.Put(rowstore.Write, "text", 1, []byte("hello"))
	_, err = both.Apply(ctx, []rowstore.Mutation{
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
	list("both have", both)
	fmt.Println(both.Authoritative("orders"), both.Authoritative("logs/today"))
	// Output:
	// fast has logs/today
	// safe has orders
	// both have logs/today
	// both have orders
	// true false
}
