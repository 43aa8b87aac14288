package percolator

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// Schedules in which holds, pauses, waits, failures, and observers that are removed and come back meet.

// An observer that was removed and is back has seen nothing: what its first registration acknowledged
// does not tell that a run of the second one has taken effect.
func TestScheduleK_WaitObservedForAnObserverThatIsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	o := newTold(t, c, "o", "t")
	at := updateAt(t, c, "1", rowA)
	require.True(t, o.run(rowA))
	require.NoError(t, c.WaitObserved(t.Context(), at, "o", rowA))
	require.NoError(t, c.RemoveObserver(t.Context(), "o"))
	w.pass(worldLease)
	o.register()
	for _, at := range []Timestamp{at, 0} {
		done := waiting(t, c, at, "o", rowA)
		stillWaits(t, c, done)
		require.NoError(t, c.PauseObserver(t.Context(), "o"))
		require.ErrorIs(t, w.finish(done), ErrObserverPaused)
		require.NoError(t, c.ResumeObserver(t.Context(), "o"))
	}
	done := waiting(t, c, 0, "o", rowA)
	require.True(t, o.run(rowA))
	require.NoError(t, w.finish(done))
}

// A worker that starts while its observer is paused knows it before it begins to look for changes.
func TestScheduleK_WorkerStartsWithinAPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	require.NoError(t, c.PauseObserver(t.Context(), "o"))
	worker := watching(t, w.client(), Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error { return nil }})
	set(t, c.DB, rowA, "1")
	require.NoError(t, worker.publish(t.Context()))
	rests(t, worker, rowA)
	require.Zero(t, worker.db.Stats().ObserverRuns)
}
