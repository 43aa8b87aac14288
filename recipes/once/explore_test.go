package once

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

// TestEveryInterleaving has two processes that do the same, each of which calls again if it does not know the outcome, and one that claims the
// key and finishes, in every order.
func TestEveryInterleaving(t *testing.T) {
	t.Parallel()
	open := func(db *percolator.DB) (*Keys[int], error) {
		k, err := New(db, "once", typed.Number[int]{}, Options{Keep: time.Hour})
		if err == nil {
			k.lookEvery = 1
		}
		return k, err
	}
	doer := func(name string) percolatetest.Client {
		return percolatetest.Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
			k, err := open(db)
			if err != nil {
				return err
			}
			for range 2 {
				_, _, err = k.Do(ctx, "a", count)
				if !errors.Is(err, percolator.ErrUndetermined) {
					break
				}
			}
			if errors.Is(err, ErrClaimed) {
				return nil
			}
			return err
		}}
	}
	claimer := percolatetest.Client{Name: "claimer", Run: func(ctx context.Context, db *percolator.DB) error {
		k, err := open(db)
		if err != nil {
			return err
		}
		c, _, err := k.Claim(ctx, "a", time.Minute)
		if err != nil || c == nil {
			return err
		}
		err = db.Update(ctx, func(tx *percolator.Txn) error {
			n, err := count(ctx, tx)
			if err != nil {
				return err
			}
			return c.Finish(ctx, tx, n)
		})
		return err
	}}
	atMostOnce := func(ctx context.Context, tx *percolator.Txn) error {
		n, err := sum(ctx, tx)
		if err == nil && n > 1 {
			err = fmt.Errorf("it was done %d times", n)
		}
		return err
	}
	for _, c := range []struct {
		clients   []percolatetest.Client
		schedules int // 0 if it is explored to its end
	}{{[]percolatetest.Client{doer("ann"), doer("bob")}, 0}, {[]percolatetest.Client{doer("ann"), claimer}, 150}} {
		percolatetest.Explore(t, percolatetest.Program{
			Clients: c.clients, Always: atMostOnce, Finally: atMostOnce,
			Faults:    percolatetest.Faults{Conflicts: 1, Undetermined: 1, Deaths: 1},
			Schedules: c.schedules, Random: 250,
		})
	}
}
