package percolatetest_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

var balance = percolator.Cell{Table: "account", Row: "a", Column: "balance"}

// read reads a number; a cell without a value counts 0.
func read(ctx context.Context, tx *percolator.Txn, c percolator.Cell) (int, error) {
	value, err := tx.Get(ctx, c)
	if errors.Is(err, percolator.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(value))
}

// deposit adds 1 to the balance.
func deposit(ctx context.Context, db *percolator.DB) error {
	return db.Update(ctx, func(tx *percolator.Txn) error {
		n, err := read(ctx, tx, balance)
		if err != nil {
			return err
		}
		return tx.Set(balance, strconv.AppendInt(nil, int64(n+1), 10))
	})
}

// deposits are two clients, each of which makes a deposit.
var deposits = percolatetest.Program{
	Clients: []percolatetest.Client{{Name: "one", Run: deposit}, {Name: "other", Run: deposit}},
	Finally: func(ctx context.Context, tx *percolator.Txn) error {
		n, err := read(ctx, tx, balance)
		if err == nil && n != 2 {
			err = fmt.Errorf("the balance is %d", n)
		}
		return err
	},
	Faults: percolatetest.Faults{Conflicts: 1},
}

func TestDeposits(t *testing.T) {
	t.Parallel()
	percolatetest.Explore(t, deposits)
}

// A test function hands its t to Explore. It fails if a deposit can get lost.
func ExampleExplore() {
	var t *testing.T // the parameter of your test function

	percolatetest.Explore(t, deposits)
}
