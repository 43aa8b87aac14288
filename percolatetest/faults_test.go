package percolatetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/percolate-go/percolate/percolator"
)

// onCall is a program with a write skew: of two doctors on call each may leave if the other stays.
func onCall(isolation percolator.Isolation) Program {
	a, b := cell("a", "on call"), cell("b", "on call")
	leave := func(me, other percolator.Cell) func(ctx context.Context, db *percolator.DB) error {
		return func(ctx context.Context, db *percolator.DB) error {
			return db.Update(ctx, func(tx *percolator.Txn) error {
				n, err := number(ctx, tx, other)
				if err != nil || n == 0 {
					return err
				}
				return set(tx, me, 0)
			})
		}
	}
	return Program{
		Options: []percolator.Option{percolator.WithDefaultIsolation(isolation)},
		Setup: func(ctx context.Context, db *percolator.DB) error {
			return db.Update(ctx, func(tx *percolator.Txn) error { return errors.Join(set(tx, a, 1), set(tx, b, 1)) })
		},
		Clients: []Client{{Name: "a", Run: leave(a, b)}, {Name: "b", Run: leave(b, a)}},
		Always: func(ctx context.Context, tx *percolator.Txn) error {
			x, xerr := number(ctx, tx, a)
			y, yerr := number(ctx, tx, b)
			if err := errors.Join(xerr, yerr); err != nil || x+y > 0 {
				return err
			}
			return errors.New("nobody is on call")
		},
	}
}

func TestWriteSkew(t *testing.T) {
	t.Parallel()
	requireViolation(t, onCall(percolator.SnapshotIsolation), "Always: nobody is on call", `# reads t/a/"on call" = "1"`, `# writes t/b/"on call" = "0"`)
}

func TestNoWriteSkewIfSerializable(t *testing.T) {
	t.Parallel()
	requireComplete(t, onCall(percolator.Serializable))
}

// TestNoWriteSkewOfScans commits in two phases, because the reads are scans.
func TestNoWriteSkewOfScans(t *testing.T) {
	t.Parallel()
	add := func(name string) Client {
		return Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
			return db.Update(ctx, func(tx *percolator.Txn) error {
				for _, err := range tx.Scan(ctx, percolator.Range{Table: "t"}) {
					return err // there is a row already, or an error
				}
				return set(tx, cell(name, "only"), 1)
			})
		}}
	}
	p := Program{
		Clients: []Client{add("a"), add("b")},
		Always: func(ctx context.Context, tx *percolator.Txn) error {
			n := 0
			for _, err := range tx.Scan(ctx, percolator.Range{Table: "t"}) {
				if err != nil {
					return err
				}
				n++
			}
			if n > 1 {
				return fmt.Errorf("there are %d rows", n)
			}
			return nil
		},
	}
	requireViolation(t, p, "there are 2 rows")
	p.Options = []percolator.Option{percolator.WithDefaultIsolation(percolator.Serializable)}
	requireComplete(t, p)
}

// TestDoubleEffect repeats a transaction of unknown fate.
func TestDoubleEffect(t *testing.T) {
	t.Parallel()
	c := cell("counter", "n")
	p := Program{
		Clients: []Client{{Name: "shop", Run: func(ctx context.Context, db *percolator.DB) error {
			err := increment(c)(ctx, db)
			if errors.Is(err, percolator.ErrUndetermined) {
				err = increment(c)(ctx, db)
			}
			return err
		}}},
		Finally: holds(c, 1),
		Faults:  Faults{Undetermined: 1},
	}
	requireViolation(t, p, "t/counter/n is 2 instead of 1", "shop: commit is undetermined and took effect\n")

	p.Clients[0].Run = func(ctx context.Context, db *percolator.DB) error {
		err := increment(c)(ctx, db)
		var u *percolator.UndeterminedError
		if errors.As(err, &u) {
			var out percolator.Outcome
			if out, err = db.OutcomeOf(ctx, u); err == nil && out.Status != percolator.OutcomeCommitted {
				err = increment(c)(ctx, db)
			}
		}
		return err
	}
	requireComplete(t, p)
}

// TestDeath lets a process die between two transactions that belong together.
func TestDeath(t *testing.T) {
	t.Parallel()
	from, to := cell("from", "n"), cell("to", "n")
	add := func(ctx context.Context, tx *percolator.Txn, c percolator.Cell, by int) error {
		n, err := number(ctx, tx, c)
		if err != nil {
			return err
		}
		return set(tx, c, n+by)
	}
	p := Program{
		Clients: []Client{{Name: "bank", Run: func(ctx context.Context, db *percolator.DB) error {
			if err := db.Update(ctx, func(tx *percolator.Txn) error { return add(ctx, tx, from, -1) }); err != nil {
				return err
			}
			return db.Update(ctx, func(tx *percolator.Txn) error { return add(ctx, tx, to, 1) })
		}}},
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			x, xerr := number(ctx, tx, from)
			y, yerr := number(ctx, tx, to)
			if err := errors.Join(xerr, yerr); err != nil || x+y == 0 {
				return err
			}
			return fmt.Errorf("the sum is %d", x+y)
		},
	}
	requireComplete(t, p)
	p.Faults.Deaths = 1
	requireViolation(t, p, "the sum is -1", "dies")

	p.Clients[0].Run = func(ctx context.Context, db *percolator.DB) error {
		return db.Update(ctx, func(tx *percolator.Txn) error { return errors.Join(add(ctx, tx, from, -1), add(ctx, tx, to, 1)) })
	}
	p.Faults = Faults{Deaths: 1, Conflicts: 1, Undetermined: 1}
	requireComplete(t, p)
}

// TestConflictRunsTheFunctionAgain has a function with an effect beside its transaction.
func TestConflictRunsTheFunctionAgain(t *testing.T) {
	t.Parallel()
	mails := 0
	p := Program{
		Setup: func(context.Context, *percolator.DB) error { mails = 0; return nil },
		Clients: []Client{{Name: "shop", Run: func(ctx context.Context, db *percolator.DB) error {
			return db.Update(ctx, func(tx *percolator.Txn) error {
				mails++
				return set(tx, cell("order", "sold"), 1)
			})
		}}},
		Finally: func(context.Context, *percolator.Txn) error {
			if mails != 1 {
				return fmt.Errorf("%d mails were sent", mails)
			}
			return nil
		},
	}
	requireComplete(t, p)
	p.Faults.Conflicts = 1
	requireViolation(t, p, "2 mails were sent")
}

// TestLocksHinderWriteSkew guards what a transaction only reads, and shows locks in a schedule.
func TestLocksHinderWriteSkew(t *testing.T) {
	t.Parallel()
	a, b := cell("a", "n"), cell("b", "n")
	move := func(read, write percolator.Cell) func(ctx context.Context, db *percolator.DB) error {
		return func(ctx context.Context, db *percolator.DB) error {
			return db.Update(ctx, func(tx *percolator.Txn) error {
				if _, err := tx.GetForUpdate(ctx, read); !errors.Is(err, percolator.ErrNotFound) {
					return err
				}
				return set(tx, write, 1)
			})
		}
	}
	p := Program{
		Clients: []Client{{Name: "a", Run: move(a, b)}, {Name: "b", Run: move(b, a)}},
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			x, xerr := number(ctx, tx, a)
			y, yerr := number(ctx, tx, b)
			if err := errors.Join(xerr, yerr); err != nil || x+y == 1 {
				return err
			}
			return fmt.Errorf("%d writes", x+y)
		},
	}
	requireComplete(t, p)
	p.Finally = func(context.Context, *percolator.Txn) error { return errors.New("look at it") }
	requireViolation(t, p, "look at it", "# locks t/a/n", `# writes t/b/n = "1"`)
}

// TestLongValues shows the beginning of a value that does not lie in its write.
func TestLongValues(t *testing.T) {
	t.Parallel()
	c := cell("a", "n")
	p := Program{
		Clients: []Client{{Name: "a", Run: func(ctx context.Context, db *percolator.DB) error {
			return db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(c, bytes.Repeat([]byte("x"), 1000)) })
		}}},
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			value, err := tx.Get(ctx, c)
			return errors.Join(err, fmt.Errorf("%d bytes", len(value)))
		},
	}
	requireViolation(t, p, "1000 bytes", `= "`+strings.Repeat("x", mostShown)+`"... (1000 bytes)`)
}
