package percolator

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// An observer writes an indexed column. What the upkeep refuses at the commit is a failure of the run; a conflict of the upkeep's is none, nor is trouble of the
// store that it meets.
func TestUpkeepFailsInARun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, _ := indexed(t, w)
	w.observed("in", "v", "o")
	_, err := c.loadCatalog(t.Context()) // it knows of the observer
	require.NoError(t, err)
	from := Cell{"in", "r", "v"}
	set(t, c.DB, from, "1")
	var next func(ctx context.Context, tx *Txn) error
	u := byValue()
	keep := u.Keep
	u.Keep = func(ctx context.Context, tx *Txn, changes []RowChange) error {
		if err := next(ctx, tx); err != nil {
			return err
		}
		return keep(ctx, tx, changes)
	}
	require.NoError(t, c.KeepIndex(u))
	wk := watching(t, c, Observer{Name: "o", Table: "in", Column: "v", MaxAttempts: 3, Func: func(_ context.Context, tx *Txn, _ Cell) error {
		return tx.Set(Cell{"t", "r", "v"}, []byte("x"))
	}})

	next = func(context.Context, *Txn) error { return fmt.Errorf("wrapped: %w", &ConflictError{}) }
	require.Equal(t, runConflict, look(t, wk, from))
	next = func(ctx context.Context, tx *Txn) error {
		c.wire.verdict(op(faultstore.CallRead), refuse)
		_, err := tx.Get(ctx, rowC)
		return err
	}
	result, _, err := wk.runCell(t.Context(), from)
	require.Equal(t, runTrouble, result)
	require.ErrorIs(t, err, faultstore.ErrInjected)
	require.Zero(t, c.Stats().ObserverFailures)

	next = func(context.Context, *Txn) error { panic("no such key") }
	require.ErrorContains(t, c.Update(t.Context(), func(tx *Txn) error {
		return tx.Set(Cell{"t", "q", "v"}, []byte("x"))
	}), "no such key")
	require.Equal(t, "none", value(t, c, Cell{"t", "q", "v"}))
	look(t, wk, from)
	require.EqualValues(t, 1, c.Stats().ObserverFailures)
	w.clock.advance(time.Minute + time.Second)
	next = func(context.Context, *Txn) error { return errors.New("no such value") }
	for attempt := 2; attempt <= 3; attempt++ {
		look(t, wk, from)
		require.EqualValues(t, attempt, c.Stats().ObserverFailures)
		w.clock.advance(time.Minute + time.Second)
	}
	parked, err := c.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.Contains(t, parked[0].Error, "no such value")
	rests(t, wk, from)
}
