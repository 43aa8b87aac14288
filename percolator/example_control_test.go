package percolator_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// What a cell has held, and when that was committed.
func ExampleDB_History() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:")
	try(err)
	defer func() { try(db.Close(ctx)) }()
	price := percolator.Cell{Table: "products", Row: "tea", Column: "price"}
	for _, p := range []string{"3.10", "3.40"} {
		try(db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(price, []byte(p)) }))
	}
	gone, err := db.UpdateAt(ctx, func(tx *percolator.Txn) error { return tx.Delete(price) })
	try(err)

	for v, err := range db.History(ctx, price, 0, 0) {
		try(err)
		fmt.Printf("%q deleted %v, at the end %v\n", v.Value, v.Deleted, v.Commit == gone)
	}
	// Output:
	// "" deleted true, at the end true
	// "3.40" deleted false, at the end false
	// "3.10" deleted false, at the end false
}

// A reader that may take longer than the retention holds its snapshot.
func ExampleDB_Hold() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:")
	try(err)
	defer func() { try(db.Close(ctx)) }()
	note := percolator.Cell{Table: "notes", Row: "1", Column: "text"}
	try(db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(note, []byte("first")) }))

	hold, err := db.Hold(ctx, "nightly report", 0, 10*time.Minute)
	try(err)
	defer func() { try(hold.Release(ctx)) }()
	try(db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(note, []byte("second")) }))
	for step := range 3 {
		try(hold.Renew(ctx, 10*time.Minute)) // a few times in each ten minutes
		try(db.View(ctx, func(tx *percolator.Txn) error {
			v, err := tx.Get(ctx, note)
			fmt.Printf("step %d reads %q\n", step, v)
			return err
		}, percolator.WithAsOfTimestamp(hold.At())))
	}
	holds, err := db.Holds(ctx)
	try(err)
	for _, h := range holds {
		fmt.Println(h.Name, "costs nothing yet:", h.Extra == 0)
	}
	_, err = db.Hold(ctx, "nightly report", 0, time.Hour)
	fmt.Println("a name holds one snapshot:", errors.Is(err, percolator.ErrInvalid))
	// Output:
	// step 0 reads "first"
	// step 1 reads "first"
	// step 2 reads "first"
	// nightly report costs nothing yet: true
	// a name holds one snapshot: true
}

// A program that has written an order waits until the customer's total has it.
func ExampleDB_WaitObserved() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:", settings())
	try(err)
	defer func() { try(db.Close(ctx)) }()
	order := percolator.Cell{Table: "orders", Row: "anna/1", Column: "amount"}
	total := percolator.Cell{Table: "customers", Row: "anna", Column: "total"}
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	try(w.Observe(percolator.Observer{
		Name: "total", Table: "orders", Column: "amount",
		Func: func(ctx context.Context, tx *percolator.Txn, _ percolator.Cell) error {
			sum := 0
			for row, err := range tx.Scan(ctx, percolator.Range{Table: "orders", From: "anna/", To: percolator.PrefixEnd("anna/")}) {
				if err != nil {
					return err
				}
				n, err := number(ctx, tx, percolator.Cell{Table: "orders", Row: row.Key, Column: "amount"})
				if err != nil {
					return err
				}
				sum += n
			}
			return setNumber(tx, total, sum)
		},
	}))
	defer run(ctx, w)()
	try(w.WaitIdle(ctx)) // until the observer is registered

	at, err := db.UpdateAt(ctx, func(tx *percolator.Txn) error { return setNumber(tx, order, 40) })
	try(err)
	try(db.WaitObserved(ctx, at, "total", order))
	try(db.View(ctx, func(tx *percolator.Txn) error {
		n, err := number(ctx, tx, total)
		fmt.Println(n)
		return err
	}))
	// Output: 40
}

// An observer is paused while its code is looked at; what changes meanwhile waits.
func ExampleDB_PauseObserver() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:", settings(), quiet())
	try(err)
	defer func() { try(db.Close(ctx)) }()
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	try(w.Observe(percolator.Observer{
		Name: "mail", Table: "orders", Column: "state",
		Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return nil },
	}))
	defer run(ctx, w)()
	try(w.WaitIdle(ctx))

	try(db.PauseObserver(ctx, "mail"))
	order := percolator.Cell{Table: "orders", Row: "1", Column: "state"}
	at, err := db.UpdateAt(ctx, func(tx *percolator.Txn) error { return tx.Set(order, []byte("paid")) })
	try(err)
	observers, err := db.Observers(ctx)
	try(err)
	fmt.Println(observers[0].Name, "is paused:", observers[0].Paused)

	try(db.ResumeObserver(ctx, "mail"))
	try(db.WaitObserved(ctx, at, "mail", order))
	fmt.Println("it has seen the change")
	// Output:
	// mail is paused: true
	// it has seen the change
}

// An observer is renamed before the first program with the new name starts. A program with the old name goes on beside it.
func ExampleDB_RenameObserver() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:", settings(), quiet())
	try(err)
	defer func() { try(db.Close(ctx)) }()
	start := func(name string) (stop func()) {
		w := percolator.NewWorker(db, percolator.WorkerConfig{})
		try(w.Observe(percolator.Observer{
			Name: name, Table: "orders", Column: "state",
			Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
				fmt.Println("a mail is sent")
				return nil
			},
		}))
		stop = run(ctx, w)
		try(w.WaitIdle(ctx))
		return stop
	}
	defer start("mail")()
	order := percolator.Cell{Table: "orders", Row: "1", Column: "state"}
	try(db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(order, []byte("paid")) }))
	try(db.WaitObserved(ctx, 0, "mail", order))

	try(db.RenameObserver(ctx, "mail", "send mail"))
	defer start("send mail")()
	try(db.WaitObserved(ctx, 0, "send mail", order))
	observers, err := db.Observers(ctx)
	try(err)
	for _, o := range observers {
		fmt.Printf("%q, before %q\n", o.Name, o.Aliases)
	}
	// Output:
	// a mail is sent
	// "send mail", before ["mail"]
}

// Two observers set each other off. With cascades tracked, the run is parked before which as many runs lie as the limit says.
func ExampleDB_TrackCascades() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:", settings(), quiet())
	try(err)
	defer func() { try(db.Close(ctx)) }()
	try(db.TrackCascades(ctx))

	w := percolator.NewWorker(db, percolator.WorkerConfig{MaxHops: 4})
	copies := func(name, from, to string) percolator.Observer {
		return percolator.Observer{Name: name, Table: "prices", Column: from, Func: func(_ context.Context, tx *percolator.Txn, c percolator.Cell) error {
			fmt.Printf("%s, after %d runs\n", name, tx.Hops())
			return tx.Set(percolator.Cell{Table: "prices", Row: c.Row, Column: to}, []byte(fmt.Sprint(tx.Hops())))
		}}
	}
	try(w.Observe(copies("gross", "net", "gross")))
	try(w.Observe(copies("net", "gross", "net")))
	defer run(ctx, w)()
	try(w.WaitIdle(ctx))
	try(db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(percolator.Cell{Table: "prices", Row: "tea", Column: "net"}, []byte("3.10"))
	}))
	try(w.WaitIdle(ctx))

	parked, err := db.Parked(ctx)
	try(err)
	for _, p := range parked {
		fmt.Println(p.Observer, "is parked for", p.Cell)
	}
	// Output:
	// gross, after 0 runs
	// net, after 1 runs
	// gross, after 2 runs
	// net, after 3 runs
	// gross is parked for prices/tea/net
}

// What every observer of a worker needs is written once: here how long runs take, and a report of those that fail.
func ExampleWorker_Use() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:", settings(), quiet())
	try(err)
	defer func() { try(db.Close(ctx)) }()
	w := percolator.NewWorker(db, percolator.WorkerConfig{MaxAttempts: 1})
	try(w.Use(func(ctx context.Context, run percolator.Run, _ *percolator.Txn, next func(context.Context) error) error {
		began := time.Now()
		err := next(ctx)
		fmt.Println(run.Observer, "took long:", time.Since(began) > time.Hour)
		return err
	}))
	try(w.OnError(func(_ context.Context, e percolator.RunError) {
		fmt.Printf("attempt %d for %v failed, parked %v: %v\n", e.Attempt, e.Cell, e.Parked, e.Err)
	}))
	try(w.Observe(percolator.Observer{
		Name: "mail", Table: "orders", Column: "state",
		Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return errors.New("no mail server") },
	}))
	defer run(ctx, w)()
	try(db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(percolator.Cell{Table: "orders", Row: "1", Column: "state"}, []byte("paid"))
	}))
	try(w.WaitIdle(ctx))
	// Output:
	// mail took long: false
	// attempt 1 for orders/1/state failed, parked true: no mail server
}
