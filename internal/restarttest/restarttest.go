// Package restarttest shows that a program outlasts a restart of its store's server.
package restarttest

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// Outlast runs Updates by several callers while the server goes through each of the
// restarts, one after the other. No Update may fail, and what was acknowledged must have
// happened once: a call that certainly had no effect is repeated until the server is back,
// and a commit whose reply is lost is looked up.
func Outlast(t *testing.T, db *percolator.DB, restarts ...func() error) {
	t.Helper()
	const callers = 4
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cell := func(i int) percolator.Cell {
		return percolator.Cell{Table: "restarted", Row: strconv.Itoa(i), Column: "n"}
	}
	var stop atomic.Bool
	var acknowledged [callers]atomic.Int64
	failed := make(chan error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for !stop.Load() {
				// A cell of its own, and one that it shares with its neighbour.
				err := count(ctx, db, cell(i), cell(callers+i/2))
				if err != nil {
					failed <- fmt.Errorf("caller %d: %w", i, err)
					return
				}
				acknowledged[i].Add(1)
			}
		})
	}
	// progress waits until each caller has had an Update acknowledged from now on.
	progress := func() {
		t.Helper()
		var before [callers]int64
		for i := range before {
			before[i] = acknowledged[i].Load()
		}
		for i := range before {
			for acknowledged[i].Load() <= before[i]+1 {
				select {
				case err := <-failed:
					require.NoError(t, err)
				case <-ctx.Done():
					require.NoError(t, ctx.Err(), "caller %d has had no Update acknowledged", i)
				case <-time.After(5 * time.Millisecond): // until the next look
				}
			}
		}
	}
	defer wg.Wait()
	defer stop.Store(true)
	progress()
	for _, restart := range restarts {
		require.NoError(t, restart())
		progress()
	}
	stop.Store(true)
	wg.Wait()
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		for i := range callers {
			n, err := number(ctx, tx, cell(i))
			require.NoError(t, err)
			require.Equal(t, acknowledged[i].Load(), n, "caller %d", i)
			shared, err := number(ctx, tx, cell(callers+i/2))
			require.NoError(t, err)
			require.Equal(t, acknowledged[i&^1].Load()+acknowledged[i|1].Load(), shared, "the cell of callers %d and %d", i&^1, i|1)
		}
		return nil
	}))
}

// count adds one to each of the cells, in one transaction.
func count(ctx context.Context, db *percolator.DB, cells ...percolator.Cell) error {
	return db.Update(ctx, func(tx *percolator.Txn) error {
		for _, c := range cells {
			n, err := number(ctx, tx, c)
			if err != nil {
				return err
			}
			if err := tx.Set(c, []byte(strconv.FormatInt(n+1, 10))); err != nil {
				return err
			}
		}
		return nil
	})
}

func number(ctx context.Context, tx *percolator.Txn, c percolator.Cell) (int64, error) {
	values, err := tx.GetMany(ctx, c)
	if err != nil || values[c] == nil {
		return 0, err
	}
	return strconv.ParseInt(string(values[c]), 10, 64)
}
