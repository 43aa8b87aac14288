package percolator

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
)

// A notification in the transaction that sets a timer counts at once: what tells of the timer does not take its place.
func TestScheduleT_NotifiedBesides(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		c := w.client(opts...)
		a := newAlarm(t, c, "o")
		due := w.clock.Now().Add(ahead).UTC()
		tx := w.setsTimer(c, rowA, ahead)
		require.NoError(t, tx.Notify(rowA))
		require.NoError(t, tx.Commit(t.Context()))
		runs(t, a.w, rowA)
		require.Equal(t, []time.Time{{}}, a.due)
		w.pass(ahead)
		fires(t, a.w)
		runs(t, a.w, rowA)
		require.Equal(t, []time.Time{{}, due}, a.due)
		w.nothingIsLeftOf(a.w, rowA)
	})
}

// Timers of one transaction that are due at the same moment have a row of the index each: some share a shard.
func TestScheduleT_ManyAtTheSameTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	c := w.client()
	a := newAlarm(t, c, "o")
	const many = 2*format.TimerShards + 1
	tx := begin(t, c)
	due := w.clock.Now().Add(later)
	for i := range many {
		require.NoError(t, tx.NotifyAt(row(fmt.Sprint(i)), due))
	}
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, many, w.indexed())
	w.pass(later)
	fires(t, a.w)
	for i := range many {
		runs(t, a.w, row(fmt.Sprint(i)))
	}
	require.Zero(t, w.indexed())
}

// An observer that has seen a timer is not told of it again with a later change, while another one has yet to see it.
func TestScheduleT_ToldOnce(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		c := w.client(opts...)
		a, other := newAlarm(t, c, "o"), newAlarm(t, w.client(opts...), "p")
		due := w.timer(c, rowA, ahead)
		if ahead < nearTimer {
			require.Equal(t, runWaiting, look(t, a.w, rowA), "the worker knows when it is due, and needs no scan to find it")
		}
		w.pass(ahead)
		fires(t, a.w)
		runs(t, a.w, rowA)
		set(t, c.DB, rowA, "1")
		runs(t, a.w, rowA)
		require.Equal(t, []time.Time{due, {}}, a.due)
		runs(t, other.w, rowA)
		require.Equal(t, []time.Time{due}, other.due)
		w.nothingIsLeftOf(other.w, rowA)
	})
}

// A negative time ahead counts as none.
func TestNotifyAfterANegativeTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	c := w.client()
	a := newAlarm(t, c, "o")
	tx := begin(t, c)
	now, err := tx.Now(t.Context())
	require.NoError(t, err)
	require.NoError(t, tx.NotifyAfter(t.Context(), rowA, -time.Hour))
	require.NoError(t, tx.Commit(t.Context()))
	runs(t, a.w, rowA)
	require.Equal(t, []time.Time{now}, a.due)
}
