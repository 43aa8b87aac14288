package once_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/recipes/once"
	"github.com/percolate-go/percolate/typed"
)

// A request that a client sends twice is done once, and answered twice.
func Example() {
	ctx := context.Background()
	db, err := percolator.New(ctx, memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close(ctx) }()
	orders, err := once.New(db, "request", typed.Text[string]{}, once.Options{Keep: 24 * time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		answer, first, err := orders.Do(ctx, "request-17", func(_ context.Context, tx *percolator.Txn) (string, error) {
			order := percolator.Cell{Table: "order", Row: "1", Column: "item"}
			return "order 1 was placed", tx.Set(order, []byte("a chair"))
		})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer, first)
	}
	// Output:
	// order 1 was placed true
	// order 1 was placed false
}

// A letter is sent by one process at a time.
func ExampleKeys_Claim() {
	ctx := context.Background()
	db, err := percolator.New(ctx, memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close(ctx) }()
	letters, err := once.New(db, "letter", typed.Text[string]{}, once.Options{Keep: 24 * time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	send := func() {
		claim, answer, err := letters.Claim(ctx, "welcome ann", time.Minute)
		if err != nil {
			log.Fatal(err) // once.ErrClaimed: somebody else sends it now
		}
		if claim == nil {
			fmt.Println("it was sent before:", answer)
			return
		}
		fmt.Println("Welcome, Ann!")
		err = db.Update(ctx, func(tx *percolator.Txn) error { return claim.Finish(ctx, tx, "by the first") })
		if err != nil {
			log.Fatal(err)
		}
	}
	send()
	send()
	// Output:
	// Welcome, Ann!
	// it was sent before: by the first
}
