package admin_test

import (
	"context"
	"fmt"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func try(err error) {
	if err != nil {
		panic(err)
	}
}

// A cell was changed, and an observer has yet to run for it, because no worker runs it any more.
func ExampleReader_Why() {
	ctx := context.Background()
	db, err := percolator.New(ctx, memstore.New())
	try(err)
	defer func() { try(db.Close(ctx)) }()
	state := percolator.Cell{Table: "order", Row: "17", Column: "state"}
	set := func(value string) {
		try(db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(state, []byte(value)) }))
	}
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	try(w.Observe(percolator.Observer{Name: "mail", Table: "order", Column: "state", Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }}))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	set("placed")
	try(w.WaitIdle(ctx))
	stop()
	try(<-ended)
	set("paid")

	r, err := admin.Of(db)
	try(err)
	why, err := r.Why(ctx, state)
	try(err)
	fmt.Println("free:", why.Free)
	for _, o := range why.Observers {
		fmt.Printf("%s: %s\n", o.Observer, o.What)
	}
	// Output:
	// free: false
	// mail: for workers
}
