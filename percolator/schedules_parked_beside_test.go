package percolator

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// Two workers run for the same change. The one fails for the last time while the run of the other takes effect: either it counts as parked
// or as done, not as both.

func TestScheduleB_ParkedWhileItRuns(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c, other := w.client(opts...), w.client(opts...)
		o := newTold(t, c, "o", "t")
		_, err := other.loadCatalog(t.Context())
		require.NoError(t, err)
		good := watching(t, other, Observer{Name: "o", OnChange: func(context.Context, *Txn, Change) error { return nil }})
		o.fail = Park(errTest)
		set(t, c.DB, rowA, "1")
		p := c.hold(t, on(parkedIndex("o", rowA.stored()))) // what is held has seen no acknowledgment
		done := async(func() error { look(t, o.w, rowA); return nil })
		p.wait()
		look(t, good, rowA)
		p.release(pass)
		require.NoError(t, w.finish(done))
		w.settled()
		w.parkedOrDone(c, good)
	})
}

// The same, but it is parked before the other run commits.
func TestScheduleB_ParkedBeforeItsRun(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c, other := w.client(opts...), w.client(opts...)
		o := newTold(t, c, "o", "t")
		_, err := other.loadCatalog(t.Context())
		require.NoError(t, err)
		good := watching(t, other, Observer{Name: "o", OnChange: func(context.Context, *Txn, Change) error {
			if o.calls == 0 {
				look(t, o.w, rowA)
			}
			return nil
		}})
		o.fail = Park(errTest)
		set(t, c.DB, rowA, "1")
		require.Equal(t, runConflict, look(t, good, rowA))
		require.EqualValues(t, 1, w.parkedOrDone(c, good))
	})
}

// parkedOrDone requires that rowA's run is parked, or has taken effect at the worker, and returns how many runs are parked.
func (w *world) parkedOrDone(c *client, good *Worker) int {
	w.t.Helper()
	look(w.t, good, rowA)
	parked, err := c.Parked(w.t.Context())
	require.NoError(w.t, err)
	require.Equal(w.t, 1, len(parked)+int(good.db.Stats().ObserverRuns), "one of the two takes effect") //nolint:gosec // few
	require.Empty(w.t, w.notified(rowA))
	return len(parked)
}
