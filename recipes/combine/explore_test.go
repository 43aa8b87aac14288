package combine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

const (
	waitLong   = 30 * time.Second
	waitTick   = time.Millisecond
	shortLease = 50 * time.Millisecond
)

// adder is a process that adds, and combines what it finds: every cell is idle.
func adder(name string, deltas ...int) percolatetest.Client {
	return percolatetest.Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
		c, err := New(db, "count", typed.Number[int]{}, Sum[int])
		if err != nil {
			return err
		}
		eager(c, 2)
		for _, delta := range deltas {
			err := db.Update(ctx, func(tx *percolator.Txn) error {
				if err := c.Add(ctx, tx, "n", delta); err != nil {
					return err
				}
				return tx.Set(done(name, delta), nil)
			})
			if err != nil {
				return err
			}
		}
		return nil
	}}
}

// done is set together with an Add.
func done(name string, delta int) percolator.Cell {
	return percolator.Cell{Table: "done", Row: fmt.Sprint(name, delta), Column: "c"}
}

// agree compares the value with what was added.
func agree(deltas map[string][]int) func(ctx context.Context, tx *percolator.Txn) error {
	return func(ctx context.Context, tx *percolator.Txn) error {
		c, err := New(new(percolator.DB), "count", typed.Number[int]{}, Sum[int])
		if err != nil {
			return err
		}
		n, err := c.Get(ctx, tx, "n")
		if err != nil && !errors.Is(err, percolator.ErrNotFound) {
			return err
		}
		sum := 0
		for name, all := range deltas {
			for _, delta := range all {
				if _, err := tx.Get(ctx, done(name, delta)); err == nil {
					sum += delta
				} else if !errors.Is(err, percolator.ErrNotFound) {
					return err
				}
			}
		}
		if n != sum {
			return fmt.Errorf("the value is %d, and %d was added", n, sum)
		}
		return nil
	}
}

// TestEveryInterleaving has processes that add and combine in every order, where a commit may meet a conflict or be undetermined, and
// a process may die.
func TestEveryInterleaving(t *testing.T) {
	t.Parallel()
	deltas := map[string][]int{"ann": {1, 10}, "bob": {100}, "eve": {1000}}
	check := agree(deltas)
	combiner := percolatetest.Client{Name: "combiner", Run: func(ctx context.Context, db *percolator.DB) error {
		c, err := New(db, "count", typed.Number[int]{}, Sum[int])
		if err != nil {
			return err
		}
		_, err = eager(c, 1).Combine(ctx, "n")
		return err
	}}
	percolatetest.Explore(t, percolatetest.Program{
		Clients: []percolatetest.Client{adder("ann", deltas["ann"]...), adder("bob", deltas["bob"]...), combiner},
		Always:  check, Finally: check,
		Faults:    percolatetest.Faults{Conflicts: 1, Undetermined: 1, Deaths: 1},
		Schedules: 100, Random: 250, // it is too large to be explored to its end
	})
	percolatetest.Explore(t, percolatetest.Program{
		Clients: []percolatetest.Client{adder("ann", deltas["ann"]...), adder("bob", deltas["bob"]...), adder("eve", deltas["eve"]...)},
		Always:  check, Finally: check,
	})
}
