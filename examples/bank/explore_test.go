package main

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

// TestEveryInterleaving lets two tellers and an auditor meet in every order, where one commit may
// meet a conflict, one may be undetermined, and one teller may die.
func TestEveryInterleaving(t *testing.T) {
	t.Parallel()
	const accounts = 2
	teller := func(name string, seed uint64) percolatetest.Client {
		return percolatetest.Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
			_, err := transfer(ctx, db, rand.New(rand.NewPCG(seed, 0)), accounts) //nolint:gosec // the same in each schedule
			return err
		}}
	}
	auditor := percolatetest.Client{Name: "auditor", Run: func(ctx context.Context, db *percolator.DB) error {
		return audit(ctx, db, accounts)
	}}
	percolatetest.Explore(t, percolatetest.Program{
		Setup: func(ctx context.Context, db *percolator.DB) error {
			_, err := open(ctx, db, accounts)
			return err
		},
		Clients: []percolatetest.Client{teller("ann", 1), teller("bob", 2), auditor},
		Faults:  percolatetest.Faults{Conflicts: 1, Undetermined: 1, Deaths: 1},
	})
}
