package percolator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Timers that are set anew or cancelled after somebody has seen them.

// A timer that every observer has seen is removed. One that was set anew meanwhile, for the same time, is another one.
func TestScheduleT_SetAnewForTheSameTime(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		a, c := newAlarm(t, w.client(opts...), "a"), w.client(opts...)
		newAlarm(t, c, "b")
		due := w.timer(c, rowA, ahead)
		w.pass(ahead)
		w.rings(a.w, rowA)
		runs(t, a.w, rowA)
		require.NoError(t, c.RemoveObserver(t.Context(), "b"))
		w.pass(worldLease)
		view, blocked, err := a.w.currentView(t.Context(), rowA.stored(), nil, &snapshot{set: true, start: mustNow(t, c)})
		require.NoError(t, err)
		require.False(t, blocked)
		require.True(t, view.fired() && view.othersSaw(-1))
		w.timer(c, rowA, due.Sub(w.clock.Now()))
		require.NoError(t, a.w.dropSeenTimer(t.Context(), view))
		require.True(t, w.hasTimer(rowA), "the new timer is lost")
		w.pass(worldLease)
		fires(t, a.w)
		runs(t, a.w, rowA)
		require.Equal(t, []time.Time{due, due}, a.due)
		w.nothingIsLeftOf(a.w, rowA)
	})
}

// A run has failed for a timer that is cancelled then. The function fails for the change before it too: that is counted, and it waits.
func TestScheduleT_CancelledAfterAFailure(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		c := w.client(opts...)
		o := newTold(t, c, "o", "t") // of two attempts
		w.timer(c, rowA, ahead)
		set(t, c.DB, rowA, "1")
		w.pass(ahead)
		fires(t, o.w)
		o.fail = errTest
		look(t, o.w, rowA)
		require.Equal(t, 1, o.calls)
		require.NoError(t, cancels(t, c, rowA).Commit(t.Context()))
		look(t, o.w, rowA)
		require.Equal(t, 2, o.calls)
		for range 5 {
			look(t, o.w, rowA)
			require.Equal(t, 2, o.calls, "it is called without a pause")
		}
		w.clock.advance(50 * time.Second)
		look(t, o.w, rowA)
		require.Equal(t, 3, o.calls)
		parked, err := c.Parked(t.Context())
		require.NoError(t, err)
		require.Len(t, parked, 1)
		rests(t, o.w, rowA)
	})
}
