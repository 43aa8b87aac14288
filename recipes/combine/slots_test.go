package combine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
)

// TestSlotOfUnknownOutcome: locks may lie on the cells of a transaction whose outcome is not known, so nobody else gets its slot.
func TestSlotOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, outcome := range []error{nil, percolator.ErrConflict, fmt.Errorf("committing: %w", percolator.ErrUndetermined)} {
		var s slots
		one, two := new(percolator.Txn), new(percolator.Txn)
		s.giveBack(&holding{slot: slot{name: 7, last: 8}}, one, outcome)
		taken, found := s.take(two)
		require.Equal(t, !errors.Is(outcome, percolator.ErrUndetermined), found, "%v", outcome)
		require.Equal(t, found, taken.name == 7)
	}
}

// TestSlotIsGivenBackOnce has a transaction that goes on after an Add which could not begin. Those after it do not share its slot.
func TestSlotIsGivenBackOnce(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	c := counter(t, db)
	over, cancel := context.WithCancel(ctx)
	cancel()
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		require.ErrorIs(t, c.Add(over, tx, "n", 1), context.Canceled)
		return c.Add(ctx, tx, "n", 1)
	}))
	require.Len(t, c.slots.free, 1)
	var open []*percolator.Txn
	for range 2 {
		tx, err := db.Begin(ctx)
		require.NoError(t, err)
		require.NoError(t, c.Add(ctx, tx, "n", 1))
		open = append(open, tx)
	}
	for _, tx := range open {
		require.NoError(t, tx.Commit(ctx))
	}
	require.Len(t, c.slots.free, 2)
	require.Equal(t, 3, get(t, c, "n"))
}

// TestAddOnAnOlderSnapshot has transactions whose snapshots are older than what another one has added since: they have other slots. Then
// all slots are used again, the last one first.
func TestAddOnAnOlderSnapshot(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	c := counter(t, db)
	begin := func() *percolator.Txn {
		tx, err := db.Begin(ctx)
		require.NoError(t, err)
		return tx
	}
	adds := func(tx *percolator.Txn) {
		t.Helper()
		require.NoError(t, c.Add(ctx, tx, "n", 1))
		require.NoError(t, tx.Commit(ctx))
	}
	for round := range 3 {
		oldest, older := begin(), begin()
		add(t, c, "n", 1)
		add(t, c, "n", 1)
		adds(older)
		adds(oldest)
		adds(begin())
		require.Equal(t, 5*(round+1), get(t, c, "n"))
		require.Equal(t, 3, cells(t, c, "n"), "the slots of one round are those of all")
	}
	require.Zero(t, db.Stats().Conflicts)
	last := c.slots.free[len(c.slots.free)-1].name
	add(t, c, "n", 1)
	require.Equal(t, last, c.slots.free[len(c.slots.free)-1].name)
}

// TestReadThenAdd has adders that read something first, and add when others have begun since, so each one's snapshot is older than commits of
// others.
func TestReadThenAdd(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	c := counter(t, db)
	const adders, each = 8, 25
	var group sync.WaitGroup
	changed := sync.NewCond(new(sync.Mutex))
	reads, ended := 0, 0
	for i := range adders {
		own := percolator.Cell{Table: "other", Row: strconv.Itoa(i), Column: "c"}
		group.Go(func() {
			for range each {
				err := db.Update(ctx, func(tx *percolator.Txn) error {
					if _, err := tx.Get(ctx, own); err != nil && !errors.Is(err, percolator.ErrNotFound) {
						return err
					}
					changed.L.Lock()
					reads++
					mine := reads
					changed.Broadcast()
					for reads < mine+adders/2 && ended == 0 {
						changed.Wait()
					}
					changed.L.Unlock()
					return c.Add(ctx, tx, "n", 1)
				})
				if err != nil {
					t.Error(err)
				}
			}
			changed.L.Lock()
			ended++
			changed.Broadcast()
			changed.L.Unlock()
		})
	}
	group.Wait()
	require.Equal(t, adders*each, get(t, c, "n"))
	require.Zero(t, db.Stats().Conflicts)
	require.LessOrEqual(t, cells(t, c, "n"), 2*adders, "the cells do not grow with what is added")
}

// TestSlotsOfAddNow: calls that follow each other need one slot, so a value has one cell, however many there were.
func TestSlotsOfAddNow(t *testing.T) {
	t.Parallel()
	c := counter(t, percolatetest.Open(t))
	for range 20 {
		require.NoError(t, c.AddNow(t.Context(), "n", 1))
	}
	require.Equal(t, 1, cells(t, c, "n"))
	require.Len(t, c.slots.free, 1)
}

// TestViewOfThePastNamesNoSlot: it has chosen its timestamp, which may be the name of a slot.
func TestViewOfThePastNamesNoSlot(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	c := counter(t, db)
	tx, err := db.Begin(ctx)
	require.NoError(t, err)
	start, err := tx.StartTimestamp(ctx)
	require.NoError(t, err)
	require.NoError(t, c.Add(ctx, tx, "n", 1))
	for range 2 {
		require.ErrorIs(t, db.View(ctx, func(past *percolator.Txn) error { return c.Add(ctx, past, "n", 1) },
			percolator.WithAsOfTimestamp(start)), percolator.ErrReadOnly)
		require.Empty(t, c.slots.free)
	}
	require.NoError(t, tx.Commit(ctx))
	require.Len(t, c.slots.free, 1)
}
