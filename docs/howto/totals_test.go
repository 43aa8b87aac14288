package howto

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

func amount(order string) percolator.Cell {
	return percolator.Cell{Table: "order", Row: order, Column: "amount"}
}

var ordersTotal = percolator.Cell{Table: "sum", Row: "orders", Column: "amount"}

// addUp keeps the total of all orders.
func addUp(ctx context.Context, tx *percolator.Txn, change percolator.Change) error {
	was, err := parse(change.Old, change.OldFound)
	if err != nil {
		return percolator.Park(err)
	}
	is, err := parse(change.New, change.NewFound)
	if err != nil {
		return percolator.Park(err)
	}
	sum, err := number(ctx, tx, ordersTotal)
	if err != nil {
		return err
	}
	return setNumber(tx, ordersTotal, sum+is-was)
}

// parse decodes an amount. An order that is not there counts 0.
func parse(value []byte, found bool) (int, error) {
	if !found {
		return 0, nil
	}
	return strconv.Atoi(string(value))
}

func TestTotal(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	observer := percolator.Observer{Name: "add up", Table: "order", Column: "amount", OnChange: addUp}
	for _, step := range []struct{ first, second, total int }{{5, 0, 5}, {7, 10, 17}, {0, 10, 10}, {3, 4, 7}} {
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
			if err := setNumber(tx, amount("2"), step.second); err != nil {
				return err
			}
			if step.first == 0 {
				return tx.Delete(amount("1"))
			}
			return setNumber(tx, amount("1"), step.first)
		}))
		percolatetest.RunUntilIdle(t, db, observer)
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			sum, err := number(ctx, tx, ordersTotal)
			require.Equal(t, step.total, sum)
			return err
		}))
	}
}

// TestTotalInEveryOrder adds up while orders change, with conflicts.
func TestTotalInEveryOrder(t *testing.T) {
	t.Parallel()
	set := func(name, order string, n int) percolatetest.Client {
		return percolatetest.Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
			return db.Update(ctx, func(tx *percolator.Txn) error { return setNumber(tx, amount(order), n) })
		}}
	}
	percolatetest.Explore(t, percolatetest.Program{
		Clients:   []percolatetest.Client{set("ann", "1", 5), set("bob", "1", 7)},
		Observers: []percolator.Observer{{Name: "add up", Table: "order", Column: "amount", OnChange: addUp}},
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			sum, err := number(ctx, tx, ordersTotal)
			if err != nil {
				return err
			}
			is, err := number(ctx, tx, amount("1"))
			if err == nil && sum != is {
				err = fmt.Errorf("the total is %d, and the order %d", sum, is)
			}
			return err
		},
		Faults: percolatetest.Faults{Conflicts: 1},
	})
}
