package percolatetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

func cell(row, column string) percolator.Cell {
	return percolator.Cell{Table: "t", Row: row, Column: column}
}

// number reads a number; a cell without a value counts 0.
func number(ctx context.Context, tx *percolator.Txn, c percolator.Cell) (int, error) {
	value, err := tx.Get(ctx, c)
	if errors.Is(err, percolator.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(value))
}

func set(tx *percolator.Txn, c percolator.Cell, n int) error {
	return tx.Set(c, strconv.AppendInt(nil, int64(n), 10))
}

// increment adds 1 to a cell, in one transaction.
func increment(c percolator.Cell) func(ctx context.Context, db *percolator.DB) error {
	return func(ctx context.Context, db *percolator.DB) error {
		return db.Update(ctx, func(tx *percolator.Txn) error {
			n, err := number(ctx, tx, c)
			if err != nil {
				return err
			}
			return set(tx, c, n+1)
		})
	}
}

// incrementInTwo adds 1 to a cell, in two transactions: another increment between them is lost.
func incrementInTwo(c percolator.Cell) func(ctx context.Context, db *percolator.DB) error {
	return func(ctx context.Context, db *percolator.DB) error {
		n := 0
		err := db.View(ctx, func(tx *percolator.Txn) (err error) {
			n, err = number(ctx, tx, c)
			return err
		})
		if err != nil {
			return err
		}
		return db.Update(ctx, func(tx *percolator.Txn) error { return set(tx, c, n+1) })
	}
}

// holds is a check that a cell holds a number.
func holds(c percolator.Cell, want int) func(ctx context.Context, tx *percolator.Txn) error {
	return func(ctx context.Context, tx *percolator.Txn) error {
		n, err := number(ctx, tx, c)
		if err == nil && n != want {
			err = fmt.Errorf("%v is %d instead of %d", c, n, want)
		}
		return err
	}
}

func increments(body func(percolator.Cell) func(context.Context, *percolator.DB) error, clients int) Program {
	c := cell("counter", "n")
	p := Program{Finally: holds(c, clients)}
	for i := range clients {
		p.Clients = append(p.Clients, Client{Name: fmt.Sprintf("client %d", i+1), Run: body(c)})
	}
	return p
}

// requireComplete asks for a program that is right in all its schedules.
func requireComplete(t *testing.T, p Program) Report {
	t.Helper()
	p.Time = time.Hour // a slow machine is no reason to fail
	r := Explore(t, p)
	require.True(t, r.Complete, r)
	return r
}

// requireViolation asks for a violation whose schedule has some lines and, replayed, comes to
// the same again.
func requireViolation(t *testing.T, p Program, says string, lines ...string) {
	t.Helper()
	p.Time = time.Hour // a slow machine is no reason to fail
	r := explore(t, p)
	require.NotNil(t, r.Violation, r)
	t.Logf("%v\n%v", r, r.Violation)
	require.ErrorContains(t, r.Violation.Err, says)
	require.True(t, r.Violation.Deterministic)
	_, err := replay(t, p, r.Violation.Schedule)
	require.ErrorContains(t, err, says)
	for _, line := range lines {
		require.Contains(t, r.Violation.Schedule, line)
	}
}

func TestLostUpdate(t *testing.T) {
	t.Parallel()
	requireViolation(t, increments(incrementInTwo, 2), "t/counter/n is 1 instead of 2")
}

func TestNoLostUpdate(t *testing.T) {
	t.Parallel()
	requireComplete(t, increments(increment, 3))
}
