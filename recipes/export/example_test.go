package export_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/recipes/export"
)

// Orders are placed in transactions, and sent to another system in the order of their commits.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	db, err := percolator.New(ctx, memstore.New(), percolator.WithSettings(percolator.Settings{CatalogLease: 50 * time.Millisecond}))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close(context.Background()) }()
	outbox, err := export.New(db, "outbox")
	if err != nil {
		log.Fatal(err)
	}
	sink := export.SinkFunc(func(_ context.Context, customer string, items []export.Item) (int, error) {
		for _, item := range items {
			fmt.Printf("%s: %s\n", customer, item.Payload)
		}
		return len(items), nil
	})
	observer, err := outbox.Observer("send orders", sink, export.Options{})
	if err != nil {
		log.Fatal(err)
	}
	worker := percolator.NewWorker(db, percolator.WorkerConfig{})
	if err := worker.Observe(observer); err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	if err := worker.WaitIdle(ctx); err != nil { // the observer is registered
		log.Fatal(err)
	}

	for _, item := range []string{"a chair", "a table"} {
		err := db.Update(ctx, func(tx *percolator.Txn) error {
			if err := tx.Set(percolator.Cell{Table: "order", Row: item, Column: "customer"}, []byte("ann")); err != nil {
				return err
			}
			return outbox.Put(ctx, tx, "ann", []byte(item))
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	if err := worker.WaitIdle(ctx); err != nil {
		log.Fatal(err)
	}
	stop()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output:
	// ann: a chair
	// ann: a table
}
