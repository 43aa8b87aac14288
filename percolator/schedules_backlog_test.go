package percolator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// Schedules of a cell that has collected so many notifications that they are removed in
// pieces.

// clears are calls that remove notifications of a cell.
func clears(cell Cell) matcher {
	return both(on(cell), func(c *call) bool { return clearedBy(c) > 0 })
}

// clearedBy is how many notifications a call removes with one mutation, at most.
func clearedBy(c *call) (most int) {
	muts := c.Mutations()
	for i := range muts {
		n := 0
		for j := range muts[i].Edits {
			if e := &muts[i].Edits[j]; e.Family == rowstore.Notify && e.Kind != rowstore.DoPut {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// backlog changes a cell so often that its notifications go in three pieces.
func backlog(t testing.TB, w *world, c *client, cell Cell) (changes int) {
	t.Helper()
	const all = 2*mostCleared + 10
	for i := range all {
		set(t, c.DB, cell, fmt.Sprint(i))
	}
	require.Len(t, w.notified(cell), all)
	return all
}

// B1. Guards: a run removes a bounded number of notifications with its commit, and has its
// worker look again for the rest. Another worker that finds the rest, because the first one died, removes it
// without a run.
func TestScheduleB1_RunClearsAPieceOfABacklog(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		var s saw
		first, second, writer := w.client(opts...), w.client(opts...), w.client()
		wk, other := watching(t, first, s.observer("o")), watching(t, second, s.observer("o"))
		changes := backlog(t, w, writer, rowA)
		require.Equal(t, runAgain, look(t, wk, rowA), "there is more to remove")
		require.EqualValues(t, 1, first.Stats().ObserverRuns)
		require.Len(t, w.notified(rowA), changes-mostCleared)

		rests(t, other, rowA)
		require.EqualValues(t, 1, second.Stats().ObserverCleared)
		require.Empty(t, w.notified(rowA))
		rests(t, wk, rowA)
		require.Len(t, s.values, 1)
		for _, c := range append(first.wire.sent(clears(rowA)), second.wire.sent(clears(rowA))...) {
			require.LessOrEqual(t, clearedBy(c), mostCleared)
		}
		w.noLocks()
	})
}

// B1. Guards: a change that comes between the pieces runs, and its notification stays until then. So
// does one whose transaction began before the run.
func TestScheduleB1_ChangeBetweenThePieces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	var s saw
	c, writer, late := w.client(), w.client(), w.client(withoutGroups())
	wk := watching(t, c, s.observer("o"))
	backlog(t, w, writer, rowA)
	primary := Cell{"t", "c", "other"}
	tx := writes(t, late, "late", primary, rowA)
	require.NotZero(t, startOf(tx))
	late.wire.verdict(secondaries(primary), die)
	require.Equal(t, runAgain, look(t, wk, rowA))
	c.wire.forget()
	c.wire.AddRule(faultstore.Rule{Match: clears(rowA), Skip: 1, Before: func(context.Context, *call) verdict {
		if err := tx.Commit(context.Background()); err != nil {
			t.Error(err)
		}
		if err := late.drained(context.Background()); err != nil {
			t.Error(err)
		}
		return pass
	}})
	rests(t, wk, rowA)
	require.Greater(t, len(c.wire.sent(clears(rowA))), 1, "in pieces")
	require.Equal(t, []Timestamp{startOf(tx)}, w.notified(rowA))
	runs(t, wk, rowA)
	require.Len(t, s.values, 2)
	require.Equal(t, "late", s.values[1])
	rests(t, wk, rowA)
	require.Empty(t, w.notified(rowA))
	w.noLocks()
}

// B1. Guards: a worker that dies between two pieces leaves what others find and remove, and nothing runs again.
func TestScheduleB1_DiesBetweenThePieces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	var s saw
	first, second, writer := w.client(), w.client(), w.client()
	wk, other := watching(t, first, s.observer("o")), watching(t, second, s.observer("o"))
	backlog(t, w, writer, rowA)
	require.Equal(t, runAgain, look(t, wk, rowA))
	first.wire.AddRule(faultstore.Rule{Match: clears(rowA), Skip: 1, Fault: die})
	_, _, err := wk.runCell(t.Context(), rowA)
	require.Error(t, err)
	require.Len(t, w.notified(rowA), 10)
	rests(t, other, rowA)
	require.Empty(t, w.notified(rowA))
	require.Len(t, s.values, 1)
}

// An erasure, too, clears what all observers have seen in pieces.
func TestErasureOfABacklog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	w.observed("t", "v", "o")
	var s saw
	worker, c := w.client(), w.client()
	wk := watching(t, worker, s.observer("o"))
	backlog(t, w, c, ann1)
	for i := range mostCleared { // the worker runs twice, for the erasure asks it to, and each run clears a piece
		set(t, c.DB, ann1, fmt.Sprint("more ", i))
	}
	// The worker runs, and its other clearings come to nothing.
	worker.wire.AddRule(faultstore.Rule{Match: both(clears(ann1), func(c *call) bool { return !commits(c) }), Times: -1, Fault: refuse})
	c.wire.forget()
	_, err := w.erase(c, func() { sees(wk, ann1) })
	require.NoError(t, err)
	// A hint of the worker's run may be stored after the erasure; docs/howto/erasing.md says when it goes.
	require.Empty(t, slices.DeleteFunc(w.traces("ann/"), func(at string) bool { return strings.HasPrefix(at, fmt.Sprintf("%q ", format.TableHints)) }))
	sent := c.wire.sent(clears(ann1))
	require.NotEmpty(t, sent)
	for _, c := range sent {
		require.LessOrEqual(t, clearedBy(c), mostCleared)
	}
}

// A cell that was changed 2,000 times while its observer was paused runs once, and costs a few calls.
func TestPausedBacklogOfOneCell(t *testing.T) {
	t.Parallel()
	const changes = 2000
	mem := memstore.New()
	wire := newWire(mem)
	writer := open(t, mem, quick) // which closes the store, after the other one
	db := open(t, wire, quick)
	var n atomic.Int64
	wk := startWorker(t, db, WorkerConfig{}, counts("o", &n))
	idle(t, wk)
	require.NoError(t, db.PauseObserver(t.Context(), "o"))
	knowsPaused(t, wk, "o", true)
	for i := range changes {
		set(t, writer, rowA, fmt.Sprint(i))
	}
	idle(t, wk)
	require.Zero(t, n.Load())
	wire.forget()
	require.NoError(t, db.ResumeObserver(t.Context(), "o"))
	knowsPaused(t, wk, "o", false)
	idle(t, wk)
	require.EqualValues(t, 1, n.Load())
	rows, err := mem.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "a", Selectors: []rowstore.Selector{everything(rowstore.Notify, "v")}}})
	require.NoError(t, err)
	require.Empty(t, rows[0].Versions)
	sent := wire.sent(clears(rowA))
	require.InDelta(t, changes/mostCleared+1, len(sent), 2)
	for _, c := range sent {
		require.LessOrEqual(t, clearedBy(c), mostCleared)
	}
}

// A store that takes small mutations alone gets the notifications of a cell in as small ones.
func TestBacklogOverASmallStep(t *testing.T) {
	t.Parallel()
	const operations = 16
	g := newGauge(rowstore.Limits{Operations: operations})
	db := open(t, g, quick)
	var n atomic.Int64
	wk := startWorker(t, db, WorkerConfig{}, counts("o", &n))
	idle(t, wk)
	require.NoError(t, db.PauseObserver(t.Context(), "o"))
	knowsPaused(t, wk, "o", true)
	for i := range 5 * operations {
		set(t, db, rowA, fmt.Sprint(i))
	}
	require.NoError(t, db.ResumeObserver(t.Context(), "o"))
	knowsPaused(t, wk, "o", false)
	idle(t, wk)
	require.EqualValues(t, 1, n.Load())
	backlog, err := db.Backlog(t.Context(), 0)
	require.NoError(t, err)
	require.Zero(t, backlog.Cells)
}
