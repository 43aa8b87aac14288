package percolator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// wide is a cell of a row with columns c0, c1 and so on.
func wide(row string, i int) Cell { return Cell{"t", row, fmt.Sprint("c", i)} }

func setWide(t *testing.T, c *client, row string, n int, value func(i int) string) {
	t.Helper()
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		for i := range n {
			if err := tx.Set(wide(row, i), []byte(value(i))); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, c.drained(t.Context()))
}

// reading counts the reads of a function.
func reading(c *client, f func()) int {
	before := len(c.wire.sent(op(faultstore.CallRead)))
	f()
	return len(c.wire.sent(op(faultstore.CallRead))) - before
}

func mustGet(t *testing.T, tx *Txn, c Cell) string {
	t.Helper()
	v, err := tx.Get(t.Context(), c)
	require.NoError(t, err)
	return string(v)
}

func TestPrefetchSavesCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	short := func(i int) string { return fmt.Sprint("v", i) }
	setWide(t, c, "a", 4, short)
	setWide(t, c, "b", 2, short)
	tx := begin(t, c)
	require.NoError(t, tx.Prefetch("t", "a", "c0", "c1", "c2", "none"))
	require.NoError(t, tx.Prefetch("t", "b", "c0", "c1"))
	require.Equal(t, 1, reading(c, func() {
		require.Equal(t, "v3", mustGet(t, tx, wide("a", 3))) // the first read takes all
		for range 2 {
			for i := range 3 {
				require.Equal(t, short(i), mustGet(t, tx, wide("a", i)))
			}
		}
		_, err := tx.Get(t.Context(), Cell{"t", "a", "none"})
		require.ErrorIs(t, err, ErrNotFound)
		v, err := tx.GetForUpdate(t.Context(), wide("b", 0))
		require.NoError(t, err)
		clear(v) // it is the caller's
		many, err := tx.GetMany(t.Context(), wide("b", 0), wide("b", 1))
		require.NoError(t, err)
		require.Equal(t, map[Cell][]byte{wide("b", 0): []byte("v0"), wide("b", 1): []byte("v1")}, many)
		require.NoError(t, tx.Set(wide("b", 1), []byte("own")))
		require.Equal(t, "own", mustGet(t, tx, wide("b", 1)))
	}))
	require.NoError(t, tx.Commit(t.Context()))
	// Later in a transaction a hint waits for a read of what it names.
	tx = begin(t, c)
	require.Equal(t, 3, reading(c, func() {
		mustGet(t, tx, wide("a", 3))
		require.NoError(t, tx.Prefetch("t", "a", "c0", "c1"))
		mustGet(t, tx, wide("b", 0))
		mustGet(t, tx, wide("a", 1))
		mustGet(t, tx, wide("a", 0))
	}))
	require.NoError(t, tx.Rollback(t.Context()))
	require.ErrorIs(t, tx.Prefetch("t", "a", "c0"), ErrTxnDone)
	tx = begin(t, c)
	require.ErrorIs(t, tx.Prefetch("t", "a", "c0", ""), ErrInvalid)
	require.Nil(t, tx.ahead, "nothing of a bad call is kept")
}

func TestPrefetchOfLongValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	long := func(i int) string { return strings.Repeat(fmt.Sprint(i), 400) }
	setWide(t, c, "a", 20, long)
	tx := begin(t, c)
	var columns []string
	for i := range 20 {
		columns = append(columns, wide("a", i).Column)
	}
	require.NoError(t, tx.Prefetch("t", "a", columns...))
	require.LessOrEqual(t, reading(c, func() {
		for i := range 20 {
			require.Equal(t, long(i), mustGet(t, tx, wide("a", i)))
		}
	}), 2+4, "the cells, the first value, and the others eight at a time")
	// What is too large is not kept, and read all the same.
	huge := func(i int) string { return strings.Repeat(fmt.Sprint(i), aheadBytes/2) }
	setWide(t, c, "b", 4, huge)
	tx = begin(t, c)
	require.NoError(t, tx.Prefetch("t", "b", "c0", "c1", "c2", "c3"))
	for range 2 {
		for i := range 4 {
			require.Equal(t, huge(i), mustGet(t, tx, wide("b", i)))
		}
	}
	require.LessOrEqual(t, tx.ahead.bytes, aheadBytes)
}

func TestPrefetchIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	setWide(t, c, "a", 300, func(i int) string { return fmt.Sprint(i) })
	tx := begin(t, c)
	for i := range 300 {
		require.NoError(t, tx.Prefetch("t", "a", wide("a", i).Column))
		require.LessOrEqual(t, len(tx.ahead.hinted), mostHinted)
	}
	require.Less(t, reading(c, func() {
		for i := range 300 {
			for j := i; j < i+10 && j < 300; j++ {
				require.NoError(t, tx.Prefetch("t", "a", wide("a", j).Column))
			}
			require.Equal(t, fmt.Sprint(i), mustGet(t, tx, wide("a", i)))
			require.LessOrEqual(t, len(tx.ahead.have), mostAhead)
		}
	}), 60)
}

// A hinted cell with a lock in the way makes no other read wait, and its own read waits as without a hint.
func TestPrefetchWaitsForNoLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, t2 := w.client(withoutGroups()), w.client()
	setWide(t, t2, "a", 3, func(int) string { return "old" })
	p := t1.hold(t, commitPoint(wide("a", 1)))
	done := commit(t1, writes(t, t1, "new", wide("a", 1)))
	p.wait()
	tx := begin(t, t2)
	require.NoError(t, tx.Prefetch("t", "a", "c1", "c2"))
	require.Equal(t, 1, reading(t2, func() {
		require.Equal(t, "old", mustGet(t, tx, wide("a", 0)))
		require.Equal(t, "old", mustGet(t, tx, wide("a", 2)))
	}))
	p.release(pass)
	require.NoError(t, w.finish(done))
	require.Equal(t, 1, reading(t2, func() { require.NotEmpty(t, mustGet(t, tx, wide("a", 1))) }), "it was not read ahead")
}

func TestPrefetchAndSerializable(t *testing.T) {
	t.Parallel()
	for _, read := range []bool{false, true} {
		w := newWorld(t)
		c := w.client()
		setWide(t, c, "a", 2, func(int) string { return "old" })
		tx := begin(t, c, WithIsolation(Serializable))
		require.NoError(t, tx.Prefetch("t", "a", "c1"))
		mustGet(t, tx, wide("a", 0))
		if read {
			mustGet(t, tx, wide("a", 1))
		}
		require.NoError(t, tx.Set(rowB, []byte("2")))
		set(t, c.DB, wide("a", 1), "new")
		err := tx.Commit(t.Context())
		if read {
			require.ErrorIs(t, err, ErrConflict)
		} else {
			require.NoError(t, err, "it has not read the cell")
		}
	}
}

// What another process has collected since it was read ahead is too old, as if it was read now.
func TestPrefetchIsJudgedWhenItIsRead(t *testing.T) {
	t.Parallel()
	for _, column := range []string{"none", "c1"} {
		w := newWorld(t)
		c, other := w.client(), w.client()
		setWide(t, other, "a", 2, func(i int) string { return strings.Repeat("old", 1+400*i) })
		tx := begin(t, c)
		require.NoError(t, tx.Prefetch("t", "a", column))
		mustGet(t, tx, wide("a", 0))
		set(t, other.DB, wide("a", 1), "new")
		w.clock.advance(worldRetention + worldAge)
		_, err := w.collect(other, worldRetention)
		require.NoError(t, err)
		_, err = tx.Get(t.Context(), Cell{"t", "a", column})
		require.ErrorIs(t, err, ErrSnapshotTooOld, "%s was read ahead", column)
	}
}

func TestObserverPrefetch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "c0", "o")
	c := w.client()
	setWide(t, c, "a", 3, func(i int) string { return fmt.Sprint("v", i) })
	var got []string
	run := func(ctx context.Context, tx *Txn, cell Cell) error {
		got = nil
		for i := range 3 {
			v, err := tx.Get(ctx, wide(cell.Row, i))
			if err != nil {
				return err
			}
			got = append(got, string(v))
		}
		return nil
	}
	reads := map[bool]int{}
	for _, prefetch := range []bool{false, true} {
		o := Observer{Name: "o", Table: "t", Column: "c0", Func: run}
		if prefetch {
			o.Prefetch = []string{"c0", "c1", "c2", "c2"}
		}
		wk := watching(t, c, o)
		set(t, c.DB, wide("a", 0), fmt.Sprint("v0 ", prefetch))
		reads[prefetch] = reading(c, func() { runs(t, wk, wide("a", 0)) })
		require.Equal(t, []string{fmt.Sprint("v0 ", prefetch), "v1", "v2"}, got)
	}
	require.Equal(t, reads[false]-2, reads[true], "the observed cell is read ahead in any case")
	bad := NewWorker(c.DB, WorkerConfig{})
	require.ErrorIs(t, bad.Observe(Observer{Name: "o", Table: "t", Column: "c0", Func: run, Prefetch: []string{""}}), ErrInvalid)
	require.ErrorIs(t, bad.Observe(Observer{Name: "o", Table: "t", Column: "c0", Func: run, Prefetch: make([]string, mostHinted+1)}), ErrInvalid)
}

// The look that comes before each run has read the observed cell, so the function reads it without a call, and as its snapshot has it.
func TestObservedCellIsReadOnce(t *testing.T) {
	t.Parallel()
	for name, isolation := range map[string]Isolation{"Snapshot": SnapshotIsolation, "Serializable": Serializable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "c0", "o")
			c := w.client()
			var got string
			var noted bool
			run := func(get bool) int {
				wk := watching(t, c, Observer{Name: "o", Table: "t", Column: "c0", Isolation: isolation, Func: func(ctx context.Context, tx *Txn, cell Cell) error {
					if !get {
						return nil
					}
					v, err := tx.Get(ctx, cell)
					got = string(v)
					_, noted = tx.reads[cell.stored()]
					return err
				}})
				set(t, c.DB, wide("a", 0), fmt.Sprint("get ", get))
				return reading(c, func() { runs(t, wk, wide("a", 0)) })
			}
			idle := run(false)
			require.Equal(t, idle, run(true))
			require.Equal(t, "get true", got)
			require.Equal(t, isolation == Serializable, noted)
		})
	}
}

// The first read that a function makes takes its hints of other rows along, as that of any transaction does.
func TestPrefetchOfOtherRowsInARun(t *testing.T) {
	t.Parallel()
	for _, prefetch := range [][]string{nil, {"c1"}} {
		w := newWorld(t)
		w.observed("t", "c0", "o")
		c := w.client()
		for _, name := range []string{"a", "b", "c"} {
			setWide(t, c, name, 2, func(i int) string { return fmt.Sprint(name, i) })
		}
		var got []string
		calls := -1
		wk := watching(t, c, Observer{Name: "o", Table: "t", Column: "c0", Prefetch: prefetch, Func: func(ctx context.Context, tx *Txn, cell Cell) (err error) {
			got = nil
			calls = reading(c, func() {
				err = tx.Prefetch("t", "c", "c0", "c1")
				for _, next := range []Cell{cell, wide("b", 0), wide("c", 1), wide("c", 0)} {
					v, gerr := tx.Get(ctx, next)
					got, err = append(got, string(v)), errors.Join(err, gerr)
				}
			})
			return err
		}})
		runs(t, wk, wide("a", 0))
		require.Equal(t, []string{"a0", "b0", "c1", "c0"}, got)
		require.Equal(t, 1, calls)
	}
}
