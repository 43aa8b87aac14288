package percolator_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	_ "github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/percolator"
)

// try ends an example at an error that it does not expect.
func try(err error) {
	if err != nil {
		panic(err)
	}
}

// settings let a new observer start after 0.2 s and not after 10 s, which is what a
// real database would wait for the processes that do not know of it.
func settings() percolator.Option {
	return percolator.WithSettings(percolator.Settings{CatalogLease: 200 * time.Millisecond})
}

// quiet leaves out the warnings about failures that an example makes on purpose.
func quiet() percolator.Option {
	return percolator.WithLogger(slog.New(slog.DiscardHandler))
}

func number(ctx context.Context, tx *percolator.Txn, c percolator.Cell) (int, error) {
	v, err := tx.Get(ctx, c)
	if errors.Is(err, percolator.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(v))
}

func setNumber(tx *percolator.Txn, c percolator.Cell, n int) error {
	return tx.Set(c, []byte(strconv.Itoa(n)))
}

// run starts a worker and returns what stops it and waits for its end.
func run(ctx context.Context, w *percolator.Worker) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() {
		cancel()
		try(<-done)
	}
}

// Money moves from one account to another: both cells change, or neither. Update
// runs the function again when another transfer was first.
func Example_transfer() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:")
	try(err)
	defer func() { try(db.Close(ctx)) }()

	balance := func(account string) percolator.Cell {
		return percolator.Cell{Table: "bank", Row: account, Column: "balance"}
	}
	try(db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(setNumber(tx, balance("alice"), 100), setNumber(tx, balance("bob"), 20))
	}))

	broke := errors.New("not enough money")
	transfer := func(from, to string, amount int) error {
		return db.Update(ctx, func(tx *percolator.Txn) error {
			f, err := number(ctx, tx, balance(from))
			if err != nil {
				return err
			}
			if f < amount {
				return fmt.Errorf("%w: %s has %d", broke, from, f)
			}
			t, err := number(ctx, tx, balance(to))
			if err != nil {
				return err
			}
			return errors.Join(setNumber(tx, balance(from), f-amount), setNumber(tx, balance(to), t+amount))
		})
	}
	try(transfer("alice", "bob", 30))
	fmt.Println(transfer("alice", "bob", 1000))
	try(db.View(ctx, func(tx *percolator.Txn) error {
		for row, err := range tx.Scan(ctx, percolator.Range{Table: "bank"}) {
			if err != nil {
				return err
			}
			fmt.Println(row.Key, string(row.Columns["balance"]))
		}
		return nil
	}))
	// Output:
	// not enough money: alice has 70
	// alice 70
	// bob 50
}

// Two doctors are on call, and each may leave as long as the other stays. Under
// snapshot isolation both could leave at once, since neither writes what the other
// writes. GetForUpdate makes what was read as good as written.
func ExampleTxn_GetForUpdate() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:")
	try(err)
	defer func() { try(db.Close(ctx)) }()
	onCall := func(who string) percolator.Cell {
		return percolator.Cell{Table: "doctors", Row: who, Column: "on call"}
	}
	try(db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(tx.Set(onCall("ann"), []byte("yes")), tx.Set(onCall("ben"), []byte("yes")))
	}))

	leave := func(who, other string) (*percolator.Txn, error) {
		tx, err := db.Begin(ctx)
		if err != nil {
			return nil, err
		}
		if v, err := tx.GetForUpdate(ctx, onCall(other)); err != nil || string(v) != "yes" {
			return tx, errors.Join(errors.New("nobody else is on call"), err)
		}
		return tx, tx.Set(onCall(who), []byte("no"))
	}
	ann, err := leave("ann", "ben")
	try(err)
	ben, err := leave("ben", "ann")
	try(err)
	fmt.Println("ann leaves:", ann.Commit(ctx))
	err = ben.Commit(ctx)
	fmt.Println("ben leaves:", errors.Is(err, percolator.ErrConflict), err != nil)
	// Output:
	// ann leaves: <nil>
	// ben leaves: true true
}

// The same with Serializable, which checks all that was read, ranges too: here that
// no more than two rooms are booked.
func ExampleWithIsolation() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:")
	try(err)
	defer func() { try(db.Close(ctx)) }()

	book := func(isolation percolator.Isolation, guest string) *percolator.Txn {
		tx, err := db.Begin(ctx, percolator.WithIsolation(isolation))
		try(err)
		taken := 0
		for _, err := range tx.Scan(ctx, percolator.Range{Table: isolation.String()}) {
			try(err)
			taken++
		}
		if taken >= 2 {
			panic("full")
		}
		try(tx.Set(percolator.Cell{Table: isolation.String(), Row: guest, Column: "room"}, []byte(strconv.Itoa(taken+1))))
		return tx
	}
	for _, isolation := range []percolator.Isolation{percolator.SnapshotIsolation, percolator.Serializable} {
		first, second := book(isolation, "first"), book(isolation, "second")
		fmt.Println(isolation)
		fmt.Println("  first:", first.Commit(ctx) == nil)
		fmt.Println("  second:", second.Commit(ctx) == nil)
	}
	// Output:
	// snapshot
	//   first: true
	//   second: true
	// serializable
	//   first: true
	//   second: false
}

// A scan visits rows in the order of their keys, or in reverse, and sees what the
// transaction itself has written.
func ExampleTxn_Scan() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:")
	try(err)
	defer func() { try(db.Close(ctx)) }()
	cell := func(row, column string) percolator.Cell {
		return percolator.Cell{Table: "pages", Row: row, Column: column}
	}
	try(db.Update(ctx, func(tx *percolator.Txn) error {
		for _, page := range []string{"com.example/a", "com.example/b", "com.example/c", "org.example/a"} {
			if err := errors.Join(tx.Set(cell(page, "title"), []byte(strings.ToUpper(page))), tx.Set(cell(page, "size"), []byte("1"))); err != nil {
				return err
			}
		}
		return nil
	}))
	try(db.Update(ctx, func(tx *percolator.Txn) error {
		if err := errors.Join(tx.Delete(cell("com.example/b", "title")), tx.Set(cell("com.example/bb", "title"), []byte("new"))); err != nil {
			return err
		}
		prefix := "com.example/"
		for row, err := range tx.Scan(ctx, percolator.Range{
			Table: "pages", From: prefix, To: percolator.PrefixEnd(prefix), Columns: []string{"title"}, Reverse: true,
		}) {
			if err != nil {
				return err
			}
			fmt.Printf("%s %s\n", row.Key, row.Columns["title"])
		}
		for row, err := range tx.Scan(ctx, percolator.Range{Table: "pages", From: "com.example/b", Limit: 2}) {
			if err != nil {
				return err
			}
			fmt.Println(row.Key, len(row.Columns))
		}
		return nil
	}))
	// Output:
	// com.example/c COM.EXAMPLE/C
	// com.example/bb new
	// com.example/a COM.EXAMPLE/A
	// com.example/b 1
	// com.example/bb 1
}

// History can be read until it is collected: as of a time, or of the commit of a
// transaction.
func ExampleWithAsOfTimestamp() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:")
	try(err)
	defer func() { try(db.Close(ctx)) }()
	price := percolator.Cell{Table: "fruit", Row: "apple", Column: "price"}
	var commits []percolator.Timestamp
	for _, p := range []string{"10", "12", ""} {
		tx, err := db.Begin(ctx)
		try(err)
		if p == "" {
			try(tx.Delete(price))
		} else {
			try(tx.Set(price, []byte(p)))
		}
		try(tx.Commit(ctx))
		commits = append(commits, tx.CommitTimestamp())
	}
	for _, at := range append([]percolator.Timestamp{commits[0] - 1}, commits...) {
		try(db.View(ctx, func(tx *percolator.Txn) error {
			v, err := tx.Get(ctx, price)
			if errors.Is(err, percolator.ErrNotFound) {
				v, err = []byte("no price"), nil
			}
			fmt.Println(string(v))
			return err
		}, percolator.WithAsOfTimestamp(at)))
	}
	_, err = db.Begin(ctx, percolator.WithAsOf(time.Now().Add(time.Hour)))
	fmt.Println(errors.Is(err, percolator.ErrSnapshotInFuture))
	// Output:
	// no price
	// 10
	// 12
	// no price
	// true
}

// Observers make a pipeline: a text is split into words, and each word's texts are
// counted. A text that changes, changes the counts. This is long because it is a whole program.
func ExampleWorker() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:", settings())
	try(err)
	defer func() { try(db.Close(ctx)) }()

	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	// The first observer runs for each text, and writes a row for each word. It is told what it saw
	// last, so that it can take back what is gone.
	try(w.Observe(percolator.Observer{
		Name: "split", Table: "texts", Column: "text",
		OnChange: func(_ context.Context, tx *percolator.Txn, ch percolator.Change) error {
			for _, word := range strings.Fields(string(ch.Old)) {
				if err := tx.Delete(percolator.Cell{Table: "words", Row: word + "/" + ch.Cell.Row, Column: "in"}); err != nil {
					return err
				}
			}
			for _, word := range strings.Fields(string(ch.New)) {
				if err := tx.Set(percolator.Cell{Table: "words", Row: word + "/" + ch.Cell.Row, Column: "in"}, nil); err != nil {
					return err
				}
			}
			return nil
		},
	}))
	// The second runs for each of those, also when one is deleted.
	try(w.Observe(percolator.Observer{
		Name: "count", Table: "words", Column: "in", Isolation: percolator.Serializable,
		Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			word, _, _ := strings.Cut(c.Row, "/")
			n := 0
			for _, err := range tx.Scan(ctx, percolator.Range{Table: "words", From: word + "/", To: percolator.PrefixEnd(word + "/")}) {
				if err != nil {
					return err
				}
				n++
			}
			return setNumber(tx, percolator.Cell{Table: "counts", Row: word, Column: "texts"}, n)
		},
	}))
	defer run(ctx, w)()

	write := func(name, text string) {
		try(db.Update(ctx, func(tx *percolator.Txn) error {
			return tx.Set(percolator.Cell{Table: "texts", Row: name, Column: "text"}, []byte(text))
		}))
	}
	show := func() {
		try(w.WaitIdle(ctx)) // everything that follows from the texts is done
		try(db.View(ctx, func(tx *percolator.Txn) error {
			var counts []string
			for row, err := range tx.Scan(ctx, percolator.Range{Table: "counts"}) {
				if err != nil {
					return err
				}
				counts = append(counts, fmt.Sprintf("%s:%s", row.Key, row.Columns["texts"]))
			}
			fmt.Println(strings.Join(counts, " "))
			return nil
		}))
	}
	write("1", "to be or not to be")
	write("2", "not now")
	show()
	write("1", "be quick")
	show()
	// Output:
	// be:1 not:2 now:1 or:1 to:1
	// be:1 not:1 now:1 or:0 quick:1 to:0
}

// An observer of old values keeps a total: it adds what is new, and takes away what it added before.
func ExampleChange() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:", settings())
	try(err)
	defer func() { try(db.Close(ctx)) }()

	total := percolator.Cell{Table: "sums", Row: "orders", Column: "amount"}
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	try(w.Observe(percolator.Observer{
		Name: "add up", Table: "orders", Column: "amount",
		OnChange: func(ctx context.Context, tx *percolator.Txn, ch percolator.Change) error {
			sum, err := number(ctx, tx, total)
			if err != nil {
				return err
			}
			// A cell without a value counts 0.
			is, _ := strconv.Atoi(string(ch.New))
			was, _ := strconv.Atoi(string(ch.Old))
			return setNumber(tx, total, sum+is-was)
		},
	}))
	defer run(ctx, w)()

	for _, amounts := range [][]int{{5}, {7, 10}, {3}} {
		for i, n := range amounts {
			try(db.Update(ctx, func(tx *percolator.Txn) error {
				return setNumber(tx, percolator.Cell{Table: "orders", Row: strconv.Itoa(i), Column: "amount"}, n)
			}))
		}
		try(w.WaitIdle(ctx))
		try(db.View(ctx, func(tx *percolator.Txn) error {
			sum, err := number(ctx, tx, total)
			fmt.Println(sum)
			return err
		}))
	}
	// Output:
	// 5
	// 17
	// 13
}

// A weak notification runs an observer without a write to its cell, so that many
// transactions can ask for the same run and do not conflict: here, to add up.
func ExampleTxn_Notify() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:", settings())
	try(err)
	defer func() { try(db.Close(ctx)) }()
	total := percolator.Cell{Table: "totals", Row: "all", Column: "stale"}
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	try(w.Observe(percolator.Observer{
		Name: "add up", Table: total.Table, Column: total.Column,
		Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			sum := 0
			for row, err := range tx.Scan(ctx, percolator.Range{Table: "sales"}) {
				if err != nil {
					return err
				}
				n, err := strconv.Atoi(string(row.Columns["amount"]))
				if err != nil {
					return err
				}
				sum += n
			}
			return setNumber(tx, percolator.Cell{Table: c.Table, Row: c.Row, Column: "sum"}, sum)
		},
	}))
	defer run(ctx, w)()
	try(w.WaitIdle(ctx)) // by now the column is known to be observed

	for i := range 10 {
		try(db.Update(ctx, func(tx *percolator.Txn) error {
			if err := setNumber(tx, percolator.Cell{Table: "sales", Row: fmt.Sprint("sale", i), Column: "amount"}, i); err != nil {
				return err
			}
			return tx.Notify(total)
		}))
	}
	try(w.WaitIdle(ctx))
	try(db.View(ctx, func(tx *percolator.Txn) error {
		sum, err := number(ctx, tx, percolator.Cell{Table: total.Table, Row: total.Row, Column: "sum"})
		fmt.Println("sum", sum)
		return err
	}))
	fmt.Println("runs at most one for each sale:", db.Stats().ObserverRuns <= 10)
	err = db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Notify(percolator.Cell{Table: "sales", Row: "sale0", Column: "amount"})
	})
	fmt.Println(errors.Is(err, percolator.ErrNotObserved))
	// Output:
	// sum 45
	// runs at most one for each sale: true
	// true
}

// A function that fails again and again is parked with its last error, and holds up
// nothing else. Once its cause is mended it is released.
func ExampleDB_Release() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:", settings(), quiet())
	try(err)
	defer func() { try(db.Close(ctx)) }()
	worker := func(names map[string]string) *percolator.Worker {
		w := percolator.NewWorker(db, percolator.WorkerConfig{
			MaxAttempts: 3, Backoff: percolator.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond},
		})
		try(w.Observe(percolator.Observer{
			Name: "name", Table: "orders", Column: "country",
			Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
				code, err := tx.Get(ctx, c)
				if err != nil {
					return err
				}
				name, ok := names[string(code)]
				if !ok {
					return fmt.Errorf("unknown country %q", code)
				}
				return tx.Set(percolator.Cell{Table: c.Table, Row: c.Row, Column: "name"}, []byte(name))
			},
		}))
		return w
	}
	show := func() {
		try(db.View(ctx, func(tx *percolator.Txn) error {
			for row, err := range tx.Scan(ctx, percolator.Range{Table: "orders"}) {
				if err != nil {
					return err
				}
				fmt.Printf("%s %s %q\n", row.Key, row.Columns["country"], row.Columns["name"])
			}
			return nil
		}))
	}
	names := map[string]string{"NL": "Netherlands"}
	w := worker(names)
	stop := run(ctx, w)
	try(db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(
			tx.Set(percolator.Cell{Table: "orders", Row: "1", Column: "country"}, []byte("NL")),
			tx.Set(percolator.Cell{Table: "orders", Row: "2", Column: "country"}, []byte("XK")))
	}))
	try(w.WaitIdle(ctx))
	show()
	parked, err := db.Parked(ctx)
	try(err)
	for _, p := range parked {
		fmt.Printf("parked: %s for %v after %d attempts: %s\n", p.Observer, p.Cell, p.Attempts, p.Error)
	}
	stop()

	// A new version of the program knows the country.
	w = worker(map[string]string{"NL": "Netherlands", "XK": "Kosovo"})
	defer run(ctx, w)()
	try(db.Release(ctx, parked...))
	try(w.WaitIdle(ctx))
	show()
	// Output:
	// 1 NL "Netherlands"
	// 2 XK ""
	// parked: name for orders/2/country after 3 attempts: unknown country "XK"
	// 1 NL "Netherlands"
	// 2 XK "Kosovo"
}

// A table that is used as a queue keeps little history: what was deleted from it is removed after a
// minute or so, and not after a day.
func ExampleDB_ConfigureTable() {
	ctx := context.Background()
	db, err := percolator.Open(ctx, "memory:", settings())
	try(err)
	defer func() { try(db.Close(ctx)) }()
	err = db.ConfigureTable(ctx, "jobs", percolator.TableSettings{MaxTxnAge: 30 * time.Second, Retention: time.Minute})
	try(err)
	fmt.Println(len(db.TableSettings()), "now: it takes effect two catalog leases later")

	err = db.ConfigureTable(ctx, "archive", percolator.TableSettings{Retention: 48 * time.Hour})
	fmt.Println(errors.Is(err, percolator.ErrInvalid))
	// Output:
	// 0 now: it takes effect two catalog leases later
	// true
}
