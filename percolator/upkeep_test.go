package percolator

import (
	"bytes"
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

// A transaction that reads many indexed cells holds little of their values. What it has not kept of them is read again where an upkeep needs it.
func TestReadOfManyIndexedCellsHoldsLittle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, _ := indexed(t, w)
	const cells, size, most = 40, 64 << 10, 1 << 20
	at := func(i int) Cell { return Cell{"t", fmt.Sprintf("%02d", i), "v"} }
	body := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i%26)}, size) }
	olds := map[string][]byte{}
	u := byValue()
	u.Keep = func(_ context.Context, _ *Txn, changes []RowChange) error {
		for i := range changes {
			olds[changes[i].Row] = changes[i].Old
		}
		return nil
	}
	require.NoError(t, c.KeepIndex(u))
	for i := range cells {
		set(t, c.DB, at(i), string(body(i)))
	}
	clear(olds)
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		var many []Cell
		for i := range cells {
			many = append(many, at(i))
			if _, err := tx.Get(t.Context(), at(i)); err != nil {
				return err
			}
		}
		if _, err := tx.GetMany(t.Context(), many...); err != nil {
			return err
		}
		held := 0
		for i := range tx.old.list {
			held += len(tx.old.list[i].value)
		}
		require.Positive(t, held, "a few are not read twice")
		require.LessOrEqual(t, held, most)
		return errors.Join(tx.Set(at(0), []byte("x")), tx.Set(at(cells-1), []byte("x")))
	}))
	require.Equal(t, map[string][]byte{"00": body(0), fmt.Sprint(cells - 1): body(cells - 1)}, olds)
}

// A commit that ends with a conflict counts as such, also if nothing was sent so far: the upkeep of an index has met it.
func TestConflictsOfTheUpkeepCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, _ := indexed(t, w)
	u := byValue()
	u.Keep = func(context.Context, *Txn, []RowChange) error {
		return fmt.Errorf("wrapped: %w", &ConflictError{})
	}
	require.NoError(t, c.KeepIndex(u))
	tx := begin(t, c)
	require.NoError(t, tx.Set(Cell{"t", "r", "v"}, []byte("x")))
	require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict)
	require.EqualValues(t, 1, c.Stats().Conflicts)
	require.Zero(t, c.Stats().Undetermined)
}

// A run whose observer was removed since it began conflicts before it sends anything. That counts too.
func TestConflictOfARemovedObserverCounts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	wk := watching(t, c, Observer{Name: "o", Func: func(ctx context.Context, tx *Txn, _ Cell) error {
		if err := c.RemoveObserver(ctx, "o"); err != nil {
			return err
		}
		_, err := c.loadCatalog(ctx)
		return errors.Join(err, tx.Set(rowB, []byte("1")))
	}})
	set(t, c.DB, rowA, "1")
	require.Equal(t, runConflict, look(t, wk, rowA))
	require.EqualValues(t, 1, c.Stats().Conflicts)
}

// A conflict names a cell of the caller's, and not the one that the library has added as the primary. The names of the caller's tables sort before it and behind it.
func TestConflictNamesACellOfTheCaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	for _, tables := range [][]string{{"\x00odd"}, {"\x00odd", "\x00p"}, {"\x00odd", "t"}, {"t"}} {
		tx := begin(t, c)
		cm := &committer{tx: tx, start: tx.start}
		for _, table := range tables {
			cm.writes = append(cm.writes, write{cell: Cell{table, "r", "v"}.stored()})
		}
		cm.ownPrimary()
		var conflict *ConflictError
		require.ErrorAs(t, cm.conflict(cm.primaryCell(), 0, "somebody was first"), &conflict)
		require.Equal(t, Cell{tables[0], "r", "v"}, conflict.Cell)
		require.NoError(t, tx.Rollback(t.Context()))
	}
}

// An upkeep that reads an index of its transaction would be called within itself until the stack is used up, which ends the process.
func TestUpkeepThatReadsAnIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, _ := indexed(t, w)
	u := byValue()
	calls := 0
	u.Keep = func(ctx context.Context, tx *Txn, _ []RowChange) error {
		if calls++; calls > 10 {
			return errors.New("called within itself")
		}
		_, err := tx.Index(ctx, "by value")
		return err
	}
	require.NoError(t, c.KeepIndex(u))
	err := c.Update(t.Context(), func(tx *Txn) error { return tx.Set(Cell{"t", "r", "v"}, []byte("x")) })
	require.ErrorIs(t, err, ErrInvalid)
	require.Equal(t, 1, calls)
	require.Equal(t, "none", value(t, c, Cell{"t", "r", "v"}))

	require.NoError(t, c.KeepIndex(byValue()))
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		if err := tx.Set(Cell{"t", "r", "v"}, []byte("x")); err != nil {
			return err
		}
		_, err := tx.Index(t.Context(), "by value") // the function itself may
		return err
	}))
}
