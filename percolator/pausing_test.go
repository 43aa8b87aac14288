package percolator

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// counts is an observer that counts its runs.
func counts(name string, n *atomic.Int64) Observer {
	return Observer{Name: name, Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error {
		n.Add(1)
		return nil
	}}
}

// isPaused tells whether a worker knows that one of its observers, of a stored cell's column, is paused.
func (w *Worker) isPaused(id string, c Cell) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.queuesOf(c), func(q *queue) bool { return q.o.id == id && q.paused })
}

// knowsPaused waits until a worker knows of a pause, or of its end.
func knowsPaused(t testing.TB, w *Worker, name string, paused bool) {
	t.Helper()
	require.Eventually(t, func() bool { return w.isPaused(name, rowA) == paused }, patience, time.Millisecond)
}

// A paused observer runs nowhere, the others of its column do, and what waits comes when it is
// resumed.
func TestPauseObserver(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var paused, other atomic.Int64
	var workers []*Worker
	dbs, _ := clients(t, 3, false)
	for _, db := range dbs[:2] {
		workers = append(workers, startWorker(t, db, WorkerConfig{}, counts("paused", &paused), counts("other", &other)))
	}
	db := dbs[0]
	for _, w := range workers {
		idle(t, w)
	}
	require.NoError(t, db.PauseObserver(ctx, "paused"))
	require.NoError(t, db.PauseObserver(ctx, "paused"), "it is paused")
	for _, w := range workers {
		knowsPaused(t, w, "paused", true)
	}
	const cells = 2 * queueLength
	for i := range cells {
		set(t, db, row(fmt.Sprint(i)), "1")
	}
	for _, w := range workers {
		idle(t, w) // it is not waited for
	}
	require.Zero(t, paused.Load())
	require.GreaterOrEqual(t, other.Load(), int64(cells)) // more after conflicts
	infos, err := db.Observers(ctx)
	require.NoError(t, err)
	require.Len(t, infos, 2)
	for _, o := range infos {
		require.Equal(t, o.Name == "paused", o.Paused)
	}
	backlog, err := db.Backlog(ctx, 0)
	require.NoError(t, err)
	require.Equal(t, cells, backlog.Cells)
	require.ErrorIs(t, db.WaitObserved(ctx, 0, "paused", row("0")), ErrObserverPaused)
	require.NoError(t, db.WaitObserved(ctx, 0, "other", row("0")))

	// A worker that starts now knows of it, too.
	late := startWorker(t, dbs[2], WorkerConfig{}, counts("paused", &paused))
	idle(t, late)
	require.Zero(t, paused.Load())

	require.NoError(t, db.ResumeObserver(ctx, "paused"))
	require.NoError(t, db.ResumeObserver(ctx, "paused"), "it runs")
	for _, w := range append(workers, late) {
		idle(t, w)
	}
	require.GreaterOrEqual(t, paused.Load(), int64(cells))
	for i := range cells {
		require.NoError(t, db.WaitObserved(ctx, 0, "paused", row(fmt.Sprint(i))))
	}
}

// Failures of before a pause are tried again after it, and acknowledgments stay.
func TestPauseBetweenAttempts(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	fails := true
	worker := watching(t, c, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error {
		if fails {
			return errTest
		}
		return nil
	}})
	set(t, c.DB, rowA, "1")
	look(t, worker, rowA)
	require.EqualValues(t, 1, c.Stats().ObserverFailures)
	require.NoError(t, c.PauseObserver(ctx, "o"))
	worker.notePaused(c.known())
	w.clock.advance(time.Minute)
	fails = false
	rests(t, worker, rowA)
	require.NotEmpty(t, w.notified(rowA), "the change waits")
	require.NoError(t, c.ResumeObserver(ctx, "o"))
	worker.notePaused(c.known())
	runs(t, worker, rowA)
	rests(t, worker, rowA)
	// Paused and resumed: what was acknowledged does not run again.
	require.NoError(t, c.PauseObserver(ctx, "o"))
	require.NoError(t, c.ResumeObserver(ctx, "o"))
	worker.notePaused(c.known())
	rests(t, worker, rowA)
}

func TestPauseObserverRefuses(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	before := c.known().revision
	for _, name := range []string{"", "nobody"} {
		require.ErrorIs(t, c.PauseObserver(ctx, name), ErrNotObserved)
		require.ErrorIs(t, c.ResumeObserver(ctx, name), ErrNotObserved)
	}
	require.NoError(t, c.ResumeObserver(ctx, "o"), "it runs")
	require.False(t, c.known().Controlled)
	v, err := c.loadCatalog(ctx)
	require.NoError(t, err)
	require.Equal(t, max(before, v.revision), v.revision)
	require.NoError(t, c.PauseObserver(ctx, "o"))
	require.True(t, c.known().Controlled)
	require.NoError(t, c.RemoveObserver(ctx, "o"))
	require.ErrorIs(t, c.ResumeObserver(ctx, "o"), ErrNotObserved)
	require.NoError(t, c.Close(ctx))
	require.ErrorIs(t, c.PauseObserver(ctx, "o"), ErrClosed)
}
