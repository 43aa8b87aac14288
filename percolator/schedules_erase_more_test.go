package percolator

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// More schedules in which a range is erased: what comes late, what is tried meanwhile, indexes, and how long the catalog keeps a range.

// A process is suspended before it prewrites, sends that when everything is over, and dies. Nothing is committed, and whoever meets the locks removes them,
// wherever the primary lies.
func TestScheduleE_LateLockOfTheDead(t *testing.T) {
	t.Parallel()
	for _, cells := range [][]Cell{{ann1, bob}, {bob, ann1}} {
		w := newWorld(t)
		w.erasing()
		c, late := w.client(), w.client(withoutGroups())
		set(t, c.DB, ann1, "secret")
		p := late.hold(t, prewrites)
		done := commit(late, writes(t, late, "late", cells...))
		p.wait()
		_, err := w.erase(c, nil)
		require.NoError(t, err)
		p.release(dieAfter)
		require.Error(t, w.finish(done))
		require.NotEmpty(t, w.versions(rowstore.Lock), "of the first of its rows")
		w.takeForDeadIfAny(late)
		w.pass(worldExpiry + worldSession)
		for _, cell := range []Cell{ann1, bob} {
			require.Equal(t, "none", value(t, c, cell))
		}
		require.Empty(t, w.versions(rowstore.Lock))
	}
}

// A commit that came to nothing has left its mark in a row meanwhile: the row is said to be kept.
func TestScheduleE_TriedMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c, other := w.client(), w.client(withoutGroups())
	set(t, c.DB, ann1, "secret")
	set(t, c.DB, ann2, "secret")
	tried := false
	receipt, err := w.erase(c, func() {
		if !tried && c.known().erasedAt != 0 {
			tx := writes(t, other, "meanwhile", ann1, bob)
			set(t, c.DB, bob, "first")
			require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict)
			require.NoError(t, other.drained(t.Context()))
			tried = true
		}
	})
	require.NoError(t, err)
	require.True(t, tried)
	require.Empty(t, w.traces("secret", "ann/2"))
	require.Equal(t, len(w.traces("ann/1")) > 0, receipt.Kept > 0, "%v", w.traces("ann/1"))
	require.NoError(t, other.storeHints(t.Context()))
	_, err = w.erase(c, nil)
	require.NoError(t, err)
	require.Empty(t, w.traces("ann/"))
}

// The entries of an index have values in their names. All of its history goes, and what stands stays.
func TestScheduleE_Index(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c, _ := indexed(t, w)
	require.NoError(t, c.KeepIndex(byValue()))
	for _, v := range []string{"secret 1", "secret 2"} {
		set(t, c.DB, ann1, v)
		set(t, c.DB, bob, "of bob "+v[len(v)-1:])
	}
	require.NoError(t, c.storeHints(t.Context()))
	require.NotEmpty(t, w.traces("secret 1"))
	open := begin(t, c)
	_, err := w.erase(c, nil)
	require.NoError(t, err)
	require.Empty(t, w.traces("ann/", "secret"))
	require.Equal(t, "bob", value(t, c, entryOf("of bob 2")))
	_, err = open.Get(t.Context(), entryOf("of bob 2"))
	require.ErrorIs(t, err, ErrSnapshotTooOld)
	_, err = open.Get(t.Context(), bob)
	require.NoError(t, err)
}

// The catalog keeps the bounds of a range until a collection has a later safe point for the table, and no longer.
func TestScheduleE_BoundsGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c, reader := w.client(), w.client()
	set(t, c.DB, ann1, "secret")
	old, err := c.Now(t.Context())
	require.NoError(t, err)
	_, err = w.erase(c, nil)
	require.NoError(t, err)
	_, err = w.collect(c, 0)
	require.NoError(t, err)
	require.Len(t, c.known().erased, 1)
	w.pass(worldRetention + time.Minute)
	_, err = w.collect(c, 0)
	require.NoError(t, err)
	for _, db := range []*client{c, reader} {
		_, err = db.loadCatalog(t.Context())
		require.NoError(t, err)
		require.Empty(t, db.known().erased)
		_, err = begin(t, db, WithAsOfTimestamp(old)).Get(t.Context(), ann1)
		require.ErrorIs(t, err, ErrSnapshotTooOld)
	}
	_, err = w.collect(c, 0)
	require.NoError(t, err)
	require.Equal(t, "none", value(t, reader, ann1))
}

// The removal of a record of a parked run may be lost on its way. The call comes back to it.
func TestScheduleE_LostRemoval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c := w.client()
	w.observed("t", "v", "o")
	cause := errTest
	worker := watching(t, c, Observer{Name: "o", MaxAttempts: 1, Func: func(context.Context, *Txn, Cell) error { return cause }})
	set(t, c.DB, ann1, "secret")
	var runs []ParkedRun
	var err error
	require.Eventually(t, func() bool {
		sees(worker, ann1)
		runs, err = c.Parked(t.Context())
		return err == nil && len(runs) == 1
	}, patience, time.Millisecond)
	require.NoError(t, c.DropParked(t.Context(), runs...))
	cause = nil
	var lost atomic.Int64
	removal := both(op(faultstore.CallApply), func(x *call) bool {
		return edits(x, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
			return m.Table == format.TableParked && e.Kind == rowstore.DoDeleteRange && len(c.known().erased) > 0
		})
	})
	c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool { return removal(x) && lost.Add(1) == 1 }, Fault: lose})
	_, err = w.erase(c, func() { sees(worker, ann1) })
	require.NoError(t, err)
	require.Positive(t, lost.Load())
	require.Empty(t, w.traces("ann/"))
}

// So may the removal of rows of the index of timers.
func TestScheduleE_LostRemovalOfTimers(t *testing.T) {
	t.Parallel()
	for fate, v := range map[string]verdict{"lost": lose, "reply lost": loseReply} {
		t.Run(fate, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.erasing()
			w.observed("t", "v", "o")
			c := w.client()
			worker := watching(t, c, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error { return nil }})
			set(t, c.DB, ann1, "secret")
			look(t, worker, ann1)
			w.timer(c, ann1, 1000*time.Hour)
			w.timer(c, bob, 1000*time.Hour)
			require.Equal(t, 2, w.indexed())
			var lost atomic.Int64
			removal := both(op(faultstore.CallApply), func(x *call) bool {
				return edits(x, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
					_, timers := format.TimedTable(m.Table)
					return timers && e.Kind == rowstore.DoDelete && len(c.known().erased) > 0
				})
			})
			c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool { return removal(x) && lost.Add(1) == 1 }, Fault: v})
			_, err := w.erase(c, func() { sees(worker, ann1) })
			require.NoError(t, err)
			require.Positive(t, lost.Load())
			require.Empty(t, w.traces("ann/"))
			require.Equal(t, 1, w.indexed(), "bob's stays")
		})
	}
}

// A process knows of no erased range at all when it reads several rows of the table at an older snapshot: those outside the
// range are read as ever, also where something is missing, and the others are refused.
func TestScheduleE_TheFirstRangeIsErasedElsewhere(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.erasing()
		c, outside, inside := w.client(opts...), w.client(), w.client()
		set(t, c.DB, ann1, "secret")
		set(t, c.DB, bob, "kept")
		old, err := c.Now(t.Context())
		require.NoError(t, err)
		_, err = w.erase(c, nil)
		require.NoError(t, err)
		tx := begin(t, outside, WithAsOfTimestamp(old))
		require.False(t, outside.known().Erased, "it was idle")
		values, err := tx.GetMany(t.Context(), bob, row("nobody"))
		require.NoError(t, err)
		require.Equal(t, map[Cell][]byte{bob: []byte("kept")}, values)
		require.True(t, outside.known().Erased)
		tx = begin(t, inside, WithAsOfTimestamp(old))
		require.False(t, inside.known().Erased, "it was idle")
		_, err = tx.GetMany(t.Context(), bob, row("nobody"), ann2)
		require.ErrorIs(t, err, ErrSnapshotTooOld)
	})
}

// A Serializable transaction has read rows beside the range, in a table with a retention of its own, and commits elsewhere.
func TestScheduleE_ValidationBesideTheRange(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		w.erasing()
		c, other := w.client(), w.client(opts...)
		w.configuredTable(c, "t", short)
		set(t, c.DB, ann1, "secret")
		set(t, c.DB, bob, "kept")
		reads := begin(t, other, WithIsolation(Serializable))
		_, err := reads.GetMany(t.Context(), bob, row("nobody"))
		require.NoError(t, err)
		scans := begin(t, other, WithIsolation(Serializable))
		for _, err := range scans.Scan(t.Context(), Range{Table: "t", From: "b"}) {
			require.NoError(t, err)
		}
		_, err = w.erase(c, nil)
		require.NoError(t, err)
		for name, tx := range map[string]*Txn{"a": reads, "b": scans} {
			require.NoError(t, tx.Set(Cell{"queue", name, "v"}, []byte("x")))
			require.NoError(t, tx.Commit(t.Context()))
		}
	})
}
