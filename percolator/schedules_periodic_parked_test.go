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

// A run is parked, and the next one too, because the schedule ends. A program with a better schedule goes on.
func TestSchedulePeriodic_ReplacedWhenItHasEnded(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		var ended atomic.Bool
		schedule := nextFunc(func(at time.Time) time.Time {
			if ended.Load() {
				return time.Time{}
			}
			return Interval(every).Next(at)
		})
		k := newTicker(t, w, Periodic{Version: 1, Schedule: schedule}, opts...)
		w.toTick(1)
		k.fail = Park(errTest)
		k.looks(t)
		k.fail = nil
		ended.Store(true)
		w.toTick(1)
		due := w.tick(0)
		for range 3 {
			k.looks(t)
			w.pass(time.Minute)
		}
		rests(t, k.w, k.cell())
		runs, err := k.w.db.Parked(t.Context())
		require.NoError(t, err)
		require.Len(t, runs, 1)
		young := newTicker(t, w, Periodic{Version: 2, Schedule: Interval(7 * every), Missed: Once}, opts...)
		look(t, young.w, young.cell())
		require.Len(t, young.ticks, 1)
		require.GreaterOrEqual(t, young.ticks[0], due)
		w.toTick(7)
		young.looks(t)
		require.Len(t, young.ticks, 2)
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

// A run takes longer than to the next tick, and fails for good: it is parked for its own tick, and the next one is run.
func TestSchedulePeriodic_ParkedLate(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		k := newTicker(t, w, Periodic{}, opts...)
		w.toTick(1)
		first := w.tick(0)
		slow := func(*Txn) { w.toTick(1) }
		k.fail, k.during = Park(errTest), slow
		k.looks(t)
		k.fail, k.during = nil, nil
		require.Equal(t, first, time.UnixMilli(k.state(t).Parked).UTC().Format("15:04:05"))
		second := w.tick(0)
		runs, err := k.w.db.Parked(t.Context())
		require.NoError(t, err)
		require.Len(t, runs, 1)
		k.looks(t)
		w.once(second)

		// A tick that was released fails again, late.
		w.toTick(1)
		third := w.tick(0)
		k.fail = Park(errTest)
		k.looks(t)
		if runs, err = k.w.db.Parked(t.Context()); err != nil {
			t.Fatal(err)
		}
		require.NoError(t, k.w.db.Release(t.Context(), runs...))
		k.during = slow
		look(t, k.w, k.cell())
		k.fail, k.during = nil, nil
		require.Equal(t, third, time.UnixMilli(k.state(t).Parked).UTC().Format("15:04:05"))
		fourth := w.tick(0)
		k.looks(t)
		w.once(second, fourth)
	})
}

// A schedule is replaced while a run for the old one is under way, which fails for good. It parks nothing, and sets no tick by a schedule that does
// not count any more: the tick that was due is run by the new one.
func TestSchedulePeriodic_ReplacedWhileItFails(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		old := newTicker(t, w, Periodic{Version: 1}, opts...)
		w.toTick(1)
		due := w.tick(0)
		var young *ticker
		old.fail = Park(errTest)
		old.during = func(*Txn) {
			if young == nil {
				young = newTicker(t, w, Periodic{Version: 2, Schedule: Interval(7 * every)}, opts...)
			}
		}
		require.Equal(t, runWaiting, old.looks(t))
		require.True(t, old.w.list[0].aside)
		runs, err := old.w.db.Parked(t.Context())
		require.NoError(t, err)
		require.Empty(t, runs)
		require.Equal(t, 2, old.state(t).Version)
		look(t, young.w, young.cell())
		w.once(due)
		require.Zero(t, young.state(t).Next%(7*every).Milliseconds())
	})
}

// A schedule comes back under a higher version. Who has it under the lower one runs it, and does not make way for what was in between.
func TestSchedulePeriodic_VersionStays(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		first := newTicker(t, w, Periodic{Version: 1}, opts...)
		between := Periodic{Version: 2, Schedule: Interval(7 * every)}
		newTicker(t, w, between, opts...)
		newTicker(t, w, Periodic{Version: 3}, opts...)
		w.toTick(1)
		first.looks(t)
		w.once(w.tick(0))
		require.Equal(t, 3, first.state(t).Version)
		late := newTicker(t, w, between, opts...)
		require.True(t, late.w.list[0].aside)
	})
}

// A tick has failed, and waits for its next attempt, when another schedule replaces its own. It is not taken for missed.
func TestSchedulePeriodic_ReplacedWhileItIsRepeated(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		old := newTicker(t, w, Periodic{Version: 1, Schedule: Interval(10 * every)}, opts...)
		w.pass(time.UnixMilli(old.state(t).Next).Sub(w.clock.Now()))
		due := w.tick(0)
		old.fail = errTest
		old.looks(t)
		w.pass(3 * missedAfter)
		young := newTicker(t, w, Periodic{Version: 2, Schedule: Interval(20 * every)}, opts...)
		young.looks(t)
		look(t, young.w, young.cell())
		w.once(due)
	})
}

// A parked tick is dropped for one that is left out. That is told.
func TestSchedulePeriodic_DroppedForAMissedOne(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		k := newTicker(t, w, Periodic{Schedule: Interval(10 * every)}, opts...)
		w.pass(time.UnixMilli(k.state(t).Next).Sub(w.clock.Now()))
		k.fail = Park(errTest)
		k.looks(t)
		w.pass(10*every + 2*missedAfter)
		k.fail = nil
		k.looks(t)
		require.Len(t, k.ticks, 1)
		require.Zero(t, k.state(t).Parked)
		require.Contains(t, k.log.String(), "is dropped")
	})
}
