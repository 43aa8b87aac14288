package faultstore_test

import (
	"context"
	"fmt"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A hook decides which call fails, and how: here the reply to each second Apply
// is lost, though the store applied it.
func Example() {
	ctx := context.Background()
	applies := 0
	store := faultstore.New(memstore.New(), faultstore.Options{
		OnCall: func(c faultstore.Call) faultstore.Fault {
			if c.Kind == faultstore.CallApply {
				applies++
				if applies%2 == 0 {
					return faultstore.Fault{Kind: faultstore.LoseReply, Applied: true}
				}
			}
			return faultstore.Fault{}
		},
	})
	defer func() { _ = store.Close() }()
	for range 2 {
		_, err := store.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: "r"}}, rowstore.ApplyOptions{})
		fmt.Println(err)
	}
	fmt.Println(store.Count(faultstore.LoseReply))
	// Output:
	// <nil>
	// outcome unknown (faultstore: injected fault: apply 2: the reply was lost)
	// 1
}
