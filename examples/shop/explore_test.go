package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// process opens the shop of a process, without indexes, and with customers that are not encrypted: the keys are random.
func process(db *percolator.DB) (*shop, error) {
	s, err := newShop(db, 10*time.Minute)
	if err == nil {
		s.persons.Codec = typed.JSON[Person]{}
	}
	return s, err
}

// world is a program over one shop, and what it keeps outside the database.
type world struct {
	shop    *shop
	box     *mailbox
	answers []string
	program percolatetest.Program
}

// explored makes a program with a number of pieces of tea in stock. Without mail nothing is sent, and without timers no order lapses or
// comes into the totals.
func explored(pieces int64, mail, timers bool, begin func(ctx context.Context, tx *percolator.Txn, s *shop) error) *world {
	w := &world{}
	w.program.Setup = func(ctx context.Context, db *percolator.DB) (err error) {
		w.box, w.answers = newMailbox(), nil
		if w.shop, err = process(db); err != nil {
			return err
		}
		return db.Update(ctx, func(tx *percolator.Txn) error {
			err := errors.Join(offer(ctx, tx, "tea", Product{Name: "Tea", Price: 100}), left.Set(ctx, tx, "tea", pieces),
				w.shop.persons.Set(ctx, tx, "ann", Person{Name: "Ann", Mail: "ann@example.org"}))
			if err == nil && begin != nil {
				err = begin(ctx, tx, w.shop)
			}
			return err
		})
	}
	w.program.Observers = []percolator.Observer{
		{Name: "cancel unpaid", Table: "order", Column: "unpaid", Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			if !timers {
				return nil
			}
			return w.shop.lapse(ctx, tx, c)
		}},
		// The outbox of exports is watched by its own observer; the column is that of package export.
		{Name: "send mail", Table: "outbox", Column: "due", Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			if !mail {
				return nil
			}
			all, err := w.shop.observers(w.box)
			if err != nil {
				return err
			}
			return all[2].Func(ctx, tx, c)
		}},
	}
	if timers {
		w.program.Observers = append(w.program.Observers, orders.Observer("add up", func(ctx context.Context, tx *percolator.Txn, c typed.Change[Order]) error {
			return w.shop.addUp(ctx, tx, c)
		}))
	}
	w.program.Timers = 1
	w.program.Time = 3 * time.Second
	return w
}

// client is a process that does something in the shop. A refusal is an answer, too.
func client(name string, do func(ctx context.Context, s *shop) error) percolatetest.Client {
	return percolatetest.Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
		s, err := process(db)
		if err != nil {
			return err
		}
		if err := do(ctx, s); !isRefusal(err) {
			return err
		}
		return nil
	}}
}

// books are what the shop has in the end.
type books struct {
	statuses []Status
	left     int64
	totals   Totals
}

func (w *world) books(ctx context.Context, tx *percolator.Txn) (b books, err error) {
	for row, err := range orders.Scan(ctx, tx, percolator.Range{}) {
		if err != nil {
			return b, err
		}
		b.statuses = append(b.statuses, row.Value.Status)
	}
	if b.left, err = left.Get(ctx, tx, "tea"); err != nil {
		return b, err
	}
	b.totals, err = w.shop.totals(ctx, tx)
	return b, err
}

// Two want the last piece: one gets it.
func TestLastPiece(t *testing.T) {
	t.Parallel()
	w := explored(1, false, false, nil)
	buy := func(ctx context.Context, s *shop) error {
		return s.db.Update(ctx, func(tx *percolator.Txn) error {
			_, err := s.place(ctx, tx, "ann", []Wanted{{Product: "tea", Quantity: 1}})
			return err
		})
	}
	p := w.program
	p.Clients = []percolatetest.Client{client("ann", buy), client("bob", buy)}
	p.Faults = percolatetest.Faults{Conflicts: 1, Undetermined: 1}
	met := false // that the last piece was sold
	p.Always = func(ctx context.Context, tx *percolator.Txn) error {
		b, err := w.books(ctx, tx)
		if err == nil && (b.left < 0 || b.left+int64(len(b.statuses)) != 1) {
			err = fmt.Errorf("%d orders, and %d pieces are left", len(b.statuses), b.left)
		}
		met = met || b.left == 0 && len(b.statuses) == 1
		return err
	}
	percolatetest.Explore(t, p)
	require.True(t, met, "nobody bought anything")
}

// A payment comes when the time for it is over: the order is paid or cancelled, with all that follows from it.
func TestPaymentAgainstTheTimer(t *testing.T) {
	t.Parallel()
	var id string
	w := explored(1, false, true, func(ctx context.Context, tx *percolator.Txn, s *shop) error {
		o, err := s.place(ctx, tx, "ann", []Wanted{{Product: "tea", Quantity: 1}})
		id = o.ID
		return err
	})
	p := w.program
	p.Clients = []percolatetest.Client{client("ann", func(ctx context.Context, s *shop) error {
		return s.db.Update(ctx, func(tx *percolator.Txn) error {
			_, err := s.pay(ctx, tx, id, 100)
			return err
		})
	})}
	p.Faults = percolatetest.Faults{Conflicts: 1, Undetermined: 1, Deaths: 1}
	p.Finally = func(ctx context.Context, tx *percolator.Txn) error {
		b, err := w.books(ctx, tx)
		if err != nil {
			return err
		}
		paid := books{[]Status{Paid}, 0, Totals{Orders: 1, Revenue: 100}}
		cancelled := books{[]Status{Cancelled}, 1, Totals{}}
		for _, good := range []books{paid, cancelled} {
			if slices.Equal(b.statuses, good.statuses) && b.left == good.left && b.totals == good.totals {
				return nil
			}
		}
		return fmt.Errorf("the books say %+v", b)
	}
	percolatetest.Explore(t, p)
}

// A request is delivered twice, and two workers send the mail: there is one order, one answer, and one letter. What the outbox does within a run
// is explored too, because w.shop has the database that Setup got.
func TestDoubleDelivery(t *testing.T) {
	t.Parallel()
	w := explored(10, true, false, nil)
	deliver := func(ctx context.Context, s *shop) error {
		for {
			a, _, err := s.requests.Do(ctx, "key", func(ctx context.Context, tx *percolator.Txn) (answer, error) {
				o, err := s.place(ctx, tx, "ann", []Wanted{{Product: "tea", Quantity: 1}})
				return answer{Status: 201, Body: fmt.Appendf(nil, "%q", o.ID)}, err
			})
			if errors.Is(err, percolator.ErrUndetermined) {
				continue
			}
			w.answers = append(w.answers, string(a.Body))
			return err
		}
	}
	p := w.program
	p.Clients = []percolatetest.Client{client("one", deliver), client("again", deliver)}
	p.Workers = 2
	p.Faults = percolatetest.Faults{Conflicts: 1, Undetermined: 1, Deaths: 1}
	p.Finally = func(ctx context.Context, tx *percolator.Txn) error {
		b, err := w.books(ctx, tx)
		if err != nil {
			return err
		}
		letters := w.box.all()
		if len(b.statuses) != 1 || b.left != 9 || len(letters) != 1 || len(slices.Compact(slices.Clone(w.answers))) > 1 || len(w.answers) == 0 {
			return fmt.Errorf("the books say %+v, the answers were %q, and the letters %+v", b, w.answers, letters)
		}
		return nil
	}
	percolatetest.Explore(t, p)
}
