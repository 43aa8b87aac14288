package percolatetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// adder is an observer that counts the runs that took effect, in the cell total.
func adder(name string, total percolator.Cell) percolator.Observer {
	return percolator.Observer{Name: name, Table: "t", Column: "in", Func: func(ctx context.Context, tx *percolator.Txn, _ percolator.Cell) error {
		n, err := number(ctx, tx, total)
		if err != nil {
			return err
		}
		return set(tx, total, n+1)
	}}
}

func put(c percolator.Cell, n int) Client {
	return Client{Name: "put " + c.Row, Run: func(ctx context.Context, db *percolator.DB) error {
		return db.Update(ctx, func(tx *percolator.Txn) error { return set(tx, c, n) })
	}}
}

// TestRaceOfObservers has two observers that keep a copy of a value in two columns, each of
// which reads the column of the other: a write skew.
func TestRaceOfObservers(t *testing.T) {
	t.Parallel()
	claim := func(me, other string) percolator.Observer {
		return percolator.Observer{Name: "claim " + me, Table: "t", Column: "in", Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			n, err := number(ctx, tx, cell(c.Row, other))
			if err != nil || n != 0 {
				return err
			}
			return set(tx, cell(c.Row, me), 1)
		}}
	}
	p := Program{
		Clients:   []Client{put(cell("job", "in"), 1)},
		Observers: []percolator.Observer{claim("x", "y"), claim("y", "x")},
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			x, xerr := number(ctx, tx, cell("job", "x"))
			y, yerr := number(ctx, tx, cell("job", "y"))
			if err := errors.Join(xerr, yerr); err != nil || x+y == 1 {
				return err
			}
			return fmt.Errorf("%d observers claimed the job", x+y)
		},
	}
	requireViolation(t, p, "2 observers claimed the job", "observer claim x on t/job/in: commit\n")

	for i := range p.Observers {
		p.Observers[i].Isolation = percolator.Serializable
	}
	requireComplete(t, p)
}

// TestRunsTakeEffectOnce covers each change once, whatever happens to runs.
func TestRunsTakeEffectOnce(t *testing.T) {
	t.Parallel()
	total := cell("total", "n")
	p := Program{
		Clients:   []Client{put(cell("a", "in"), 1), put(cell("b", "in"), 1)},
		Observers: []percolator.Observer{adder("add", total)},
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			a, aerr := number(ctx, tx, cell("a", "in")) // 0 if the client's commit took no effect
			b, berr := number(ctx, tx, cell("b", "in"))
			return errors.Join(aerr, berr, holds(total, a+b)(ctx, tx))
		},
		Faults: Faults{Deaths: 1},
	}
	r := requireComplete(t, p)
	require.Greater(t, r.Schedules, 100)
	p.Clients = p.Clients[:1]
	p.Faults, p.Workers = Faults{Undetermined: 1, Deaths: 1}, 2
	requireComplete(t, p)
}

// TestEffectOutside has an observer that sends a mail: a run that does not commit sends it too.
func TestEffectOutside(t *testing.T) {
	t.Parallel()
	mails := 0
	p := Program{
		Setup:   func(context.Context, *percolator.DB) error { mails = 0; return nil },
		Clients: []Client{put(cell("a", "in"), 1)},
		Observers: []percolator.Observer{{Name: "mail", Table: "t", Column: "in", Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
			mails++
			return nil
		}}},
		Finally: func(context.Context, *percolator.Txn) error {
			if mails != 1 {
				return fmt.Errorf("%d mails", mails)
			}
			return nil
		},
	}
	requireComplete(t, p)
	p.Faults.Deaths = 1
	requireViolation(t, p, "mails")
}

// TestObserversOfObservers follows a chain, and what Setup changed is done before the clients.
func TestObserversOfObservers(t *testing.T) {
	t.Parallel()
	copyTo := func(name, from, to string) percolator.Observer {
		return percolator.Observer{Name: name, Table: "t", Column: from, Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			n, err := number(ctx, tx, c)
			if err != nil {
				return err
			}
			return set(tx, cell(c.Row, to), n)
		}}
	}
	requireComplete(t, Program{
		Setup: func(ctx context.Context, db *percolator.DB) error {
			return put(cell("old", "in"), 7).Run(ctx, db)
		},
		Clients: []Client{{Name: "look", Run: func(ctx context.Context, db *percolator.DB) error {
			return db.View(ctx, func(tx *percolator.Txn) error { return holds(cell("old", "end"), 7)(ctx, tx) })
		}}, put(cell("a", "in"), 1)},
		Observers: []percolator.Observer{copyTo("one", "in", "middle"), copyTo("two", "middle", "end")},
		Finally:   holds(cell("a", "end"), 1),
	})
}

// TestParked has an observer that fails, always or until another one has run.
func TestParked(t *testing.T) {
	t.Parallel()
	calls := 0
	p := Program{
		Clients: []Client{put(cell("a", "in"), 1)},
		Observers: []percolator.Observer{{Name: "bad", Table: "t", Column: "in", Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
			calls++
			return errors.New("no such thing")
		}}},
	}
	requireViolation(t, p, "it was parked after its last attempt: no such thing", "# fails: no such thing")
	p.Setup = func(ctx context.Context, db *percolator.DB) error { return db.RenameObserver(ctx, "bad", "good") }
	requireViolation(t, p, "it was parked after its last attempt: no such thing", "# fails: no such thing")
	p.Setup = nil
	p.AllowParked = true
	calls = 0
	require.Equal(t, 1, requireComplete(t, p).Schedules)
	require.Equal(t, 3, calls)

	p.Observers[0].Func = func(context.Context, *percolator.Txn, percolator.Cell) error { panic("it is broken") }
	p.AllowParked = false
	requireViolation(t, p, "it is broken")
}

// TestConcurrencyOfOne keeps runs of an observer from overlapping.
func TestConcurrencyOfOne(t *testing.T) {
	t.Parallel()
	p := Program{
		Clients:   []Client{put(cell("a", "in"), 1), put(cell("b", "in"), 2)},
		Observers: []percolator.Observer{{Name: "one", Table: "t", Column: "in", Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }}},
	}
	many := requireComplete(t, p).Schedules
	p.Observers[0].Concurrency = 1
	require.Less(t, requireComplete(t, p).Schedules, many)
}

// TestWeakNotifications lets two clients ask for the same run.
func TestWeakNotifications(t *testing.T) {
	t.Parallel()
	total := cell("total", "n")
	ask := func(ctx context.Context, db *percolator.DB) error {
		return db.Update(ctx, func(tx *percolator.Txn) error { return tx.Notify(cell("a", "in")) })
	}
	p := Program{
		Clients:   []Client{{Name: "one", Run: ask}, {Name: "other", Run: ask}},
		Observers: []percolator.Observer{adder("add", total)},
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			n, err := number(ctx, tx, total)
			if err == nil && n != 1 && n != 2 {
				err = fmt.Errorf("%d runs", n)
			}
			return err
		},
	}
	requireComplete(t, p)
	p.Finally = holds(total, 1)
	requireViolation(t, p, "t/total/n is 2 instead of 1", "# notifies t/a/in")
}

// TestOldValues keeps a total by what changed: exactly in every order, and also if runs die. One that
// takes nothing away is found out.
func TestOldValues(t *testing.T) {
	t.Parallel()
	sum := func(name string, takeAway bool) percolator.Observer {
		return percolator.Observer{Name: name, Table: "t", Column: "in", OnChange: func(ctx context.Context, tx *percolator.Txn, ch percolator.Change) error {
			total, err := number(ctx, tx, cell("all", "total"))
			if err != nil {
				return err
			}
			number := func(value []byte) int {
				n, _ := strconv.Atoi(string(value))
				return n
			}
			total += number(ch.New)
			if takeAway {
				total -= number(ch.Old)
			}
			return tx.Set(cell("all", "total"), strconv.AppendInt(nil, int64(total), 10))
		}}
	}
	again := put(cell("a", "in"), 2)
	again.Name = "put a again"
	p := Program{
		Setup: func(ctx context.Context, db *percolator.DB) error {
			return put(cell("a", "in"), 5).Run(ctx, db)
		},
		Clients:   []Client{put(cell("a", "in"), 1), again},
		Observers: []percolator.Observer{sum("sum", true)},
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			total, err := number(ctx, tx, cell("all", "total"))
			if err != nil {
				return err
			}
			a, err := number(ctx, tx, cell("a", "in"))
			if err == nil && total != a {
				err = fmt.Errorf("the total is %d, and the cell has %d", total, a)
			}
			return err
		},
	}
	requireComplete(t, p)
	p.Observers[0] = sum("sum", false)
	requireViolation(t, p, "the total is")
}

// TestRateIsNoChoice has the same schedules whatever the rate of an observer is.
func TestRateIsNoChoice(t *testing.T) {
	t.Parallel()
	p := Program{
		Clients:   []Client{put(cell("a", "in"), 1), put(cell("b", "in"), 2)},
		Observers: []percolator.Observer{adder("add", cell("total", "n"))},
		Finally:   holds(cell("total", "n"), 2),
	}
	want := requireComplete(t, p)
	p.Observers[0].Rate = 0.001
	got := requireComplete(t, p)
	require.Equal(t, want.Schedules, got.Schedules)
	require.Equal(t, want.Steps, got.Steps)
}

// TestObserversTakeTheDefaultIsolation has a client and an observer that names no level, each of which writes what the other reads.
func TestObserversTakeTheDefaultIsolation(t *testing.T) {
	t.Parallel()
	a, b := cell("a", "on call"), cell("b", "on call")
	leave := func(ctx context.Context, tx *percolator.Txn, me, other percolator.Cell) error {
		n, err := number(ctx, tx, other)
		if err != nil || n == 0 {
			return err
		}
		return set(tx, me, 0)
	}
	program := func(isolation, observer percolator.Isolation) Program {
		return Program{
			Options: []percolator.Option{percolator.WithDefaultIsolation(isolation)},
			Setup: func(ctx context.Context, db *percolator.DB) error {
				return db.Update(ctx, func(tx *percolator.Txn) error { return errors.Join(set(tx, a, 1), set(tx, b, 1)) })
			},
			Clients: []Client{{Name: "b", Run: func(ctx context.Context, db *percolator.DB) error {
				err := db.Update(ctx, func(tx *percolator.Txn) error { return set(tx, cell("a", "in"), 1) })
				if err != nil {
					return err
				}
				return db.Update(ctx, func(tx *percolator.Txn) error { return leave(ctx, tx, b, a) })
			}}},
			Observers: []percolator.Observer{{
				Name: "a leaves", Table: "t", Column: "in", Isolation: observer,
				Func: func(ctx context.Context, tx *percolator.Txn, _ percolator.Cell) error { return leave(ctx, tx, a, b) },
			}},
			Finally: func(ctx context.Context, tx *percolator.Txn) error {
				x, xerr := number(ctx, tx, a)
				y, yerr := number(ctx, tx, b)
				if err := errors.Join(xerr, yerr); err != nil || x+y > 0 {
					return err
				}
				return errors.New("nobody is on call")
			},
		}
	}
	requireComplete(t, program(percolator.Serializable, percolator.DefaultIsolation))
	requireViolation(t, program(percolator.DefaultIsolation, percolator.DefaultIsolation), "nobody is on call")
	requireViolation(t, program(percolator.Serializable, percolator.SnapshotIsolation), "nobody is on call")
}
