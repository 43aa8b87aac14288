package percolator

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What becomes of a periodic beside a parked run.

// A schedule is replaced while the run for a tick is parked. That does not release it.
func TestSchedulePeriodic_ReplacedBesideAParkedRun(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		old := newTicker(t, w, Periodic{Version: 1}, opts...)
		w.toTick(1)
		first := w.tick(0)
		old.fail = Park(errTest)
		old.looks(t)
		young := newTicker(t, w, Periodic{Version: 2, Schedule: Interval(7 * every)}, opts...)
		rests(t, young.w, young.cell())
		require.Empty(t, young.ticks, "the parked run was not released")
		runs, err := young.w.db.Parked(t.Context())
		require.NoError(t, err)
		require.Len(t, runs, 1)
		require.NoError(t, young.w.db.Release(t.Context(), runs...))
		look(t, young.w, young.cell())
		w.once(first)
	})
}

// A run was parked because the schedule had no next tick, and was dropped then. A program with a better one goes on.
func TestSchedulePeriodic_GoesOnWithoutATimer(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		var ended atomic.Bool
		schedule := nextFunc(func(at time.Time) time.Time {
			if ended.Load() {
				return time.Time{}
			}
			return Interval(every).Next(at)
		})
		k := newTicker(t, w, Periodic{Schedule: schedule}, opts...)
		w.toTick(1)
		ended.Store(true)
		for range 3 {
			k.looks(t)
			w.pass(2 * time.Minute)
		}
		runs, err := k.w.db.Parked(t.Context())
		require.NoError(t, err)
		require.Len(t, runs, 1)
		require.NoError(t, k.w.db.DropParked(t.Context(), runs...))
		require.False(t, w.hasTimer(k.cell()))
		ended.Store(false)
		again := newTicker(t, w, Periodic{Schedule: schedule}, opts...)
		require.True(t, w.hasTimer(again.cell()), "nothing tells of the next tick")
		again.looks(t)
		w.once(w.tick(0))
	})
}

// A removal that is done late leaves what belongs to a later registration.
func TestSchedulePeriodic_RegisteredBeforeTheRemovalIsDone(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		k := newTicker(t, w, Periodic{}, opts...)
		want := k.state(t)
		require.NoError(t, w.client().dropPeriodic(t.Context(), "p", want.Since-1))
		require.Equal(t, want, k.state(t))
	})
}
