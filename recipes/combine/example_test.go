package combine_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/recipes/combine"
	"github.com/percolate-go/percolate/typed"
)

// Many visitors at once, each of whom is counted with what else is noted of the visit.
func Example() {
	ctx := context.Background()
	db, err := percolator.New(ctx, memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close(ctx) }()
	visits, err := combine.New(db, "visits", typed.Number[int64]{}, combine.Sum[int64])
	if err != nil {
		log.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			visitor := percolator.Cell{Table: "visitor", Row: fmt.Sprint(i), Column: "page"}
			err := db.Update(ctx, func(tx *percolator.Txn) error {
				if err := tx.Set(visitor, []byte("/index.html")); err != nil {
					return err
				}
				return visits.Add(ctx, tx, "/index.html", 1)
			})
			if err != nil {
				log.Fatal(err)
			}
		})
	}
	all.Wait()
	err = db.View(ctx, func(tx *percolator.Txn) error {
		n, err := visits.Get(ctx, tx, "/index.html")
		fmt.Println(n, "visits")
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(db.Stats().Conflicts, "conflicts")
	// Output:
	// 100 visits
	// 0 conflicts
}

// A value of any type: here a set of words. AddNow needs no transaction.
func ExampleCombiner_AddNow() {
	ctx := context.Background()
	db, err := percolator.New(ctx, memstore.New())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close(ctx) }()
	union := func(into, more map[string]bool) (map[string]bool, error) {
		for word := range more {
			into[word] = true
		}
		return into, nil
	}
	words, err := combine.New(db, "words", typed.JSON[map[string]bool]{}, union)
	if err != nil {
		log.Fatal(err)
	}
	for _, word := range []string{"to", "be", "or", "not", "to", "be"} {
		if err := words.AddNow(ctx, "hamlet", map[string]bool{word: true}); err != nil {
			log.Fatal(err)
		}
	}
	err = db.View(ctx, func(tx *percolator.Txn) error {
		set, err := words.Get(ctx, tx, "hamlet")
		fmt.Println(set)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: map[be:true not:true or:true to:true]
}
