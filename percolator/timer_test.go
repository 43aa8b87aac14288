package percolator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// What NotifyAt refuses, it refuses before anything is written.
func TestNotifyAtRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := newAlarm(t, w.client(), "o")
	c := w.client()
	now := w.clock.Now()
	for name, test := range map[string]struct {
		cell Cell
		due  time.Time
		is   error
	}{
		"zero time":        {rowA, time.Time{}, ErrInvalid},
		"after the oracle": {rowA, time.Date(3085, 1, 1, 0, 0, 0, 0, time.UTC), ErrInvalid},
		"far away":         {rowA, time.Date(300_000, 1, 1, 0, 0, 0, 0, time.UTC), ErrInvalid},
		"the end of time":  {rowA, time.Unix(1<<62, 0), ErrInvalid},
		"no row":           {Cell{"t", "", "v"}, now, ErrInvalid},
		"no observer":      {Cell{"t", "a", "other"}, now, ErrNotObserved},
		"long name":        {Cell{"t", string(make([]byte, 1<<16)), "v"}, now, ErrTooLarge},
	} {
		require.ErrorIs(t, c.Update(t.Context(), func(tx *Txn) error {
			if err := tx.NotifyAt(test.cell, test.due); err != nil {
				return err
			}
			return tx.Set(rowB, []byte("1"))
		}), test.is, name)
	}
	require.False(t, c.known().Timers, "no timer was set")
	require.Equal(t, "none", value(t, c, rowB))
	require.ErrorIs(t, c.View(t.Context(), func(tx *Txn) error { return tx.NotifyAt(rowA, now) }), ErrReadOnly)
	require.ErrorIs(t, c.View(t.Context(), func(tx *Txn) error { return tx.NotifyAfter(t.Context(), rowA, 1) }), ErrReadOnly)
	require.ErrorIs(t, c.View(t.Context(), func(tx *Txn) error { return tx.CancelNotify(rowA) }), ErrReadOnly)
	tx := begin(t, c)
	require.NoError(t, tx.Rollback(t.Context()))
	require.ErrorIs(t, tx.NotifyAt(rowA, now), ErrTxnDone)
	require.ErrorIs(t, tx.CancelNotify(rowA), ErrTxnDone)
	_, err := tx.Now(t.Context())
	require.NoError(t, err, "the snapshot is known")
	require.Empty(t, a.due)
}

// Times long past are due at the commit, and a fraction of a millisecond is rounded up.
func TestWhenATimerIsDue(t *testing.T) {
	t.Parallel()
	last := (oracle.Max >> oracle.LogicalBits << oracle.LogicalBits).Time()
	for due, want := range map[time.Time]Timestamp{
		time.Unix(0, 0):  0,
		time.Unix(-5, 1): 0,
		time.Date(-40_000, 1, 1, 0, 0, 0, 0, time.UTC): 0,
		time.UnixMilli(7):         7 << oracle.LogicalBits,
		time.UnixMilli(7).Add(1):  8 << oracle.LogicalBits,
		time.UnixMilli(8).Add(-1): 8 << oracle.LogicalBits,
		last:                      oracle.FromTime(last),
		time.UnixMilli(9).In(time.FixedZone("x", 3600)): 9 << oracle.LogicalBits,
	} {
		got, err := timerDue(due)
		require.NoError(t, err, "%v", due)
		require.Equal(t, want, got, "%v", due)
	}
	_, err := timerDue(last.Add(time.Millisecond))
	require.ErrorIs(t, err, ErrInvalid)
}

// The time of a transaction is that of its snapshot.
func TestTxnNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	tx := begin(t, c)
	want := startOf(tx).Time()
	w.pass(time.Minute)
	now, err := tx.Now(t.Context())
	require.NoError(t, err)
	require.Equal(t, want, now)
	require.NoError(t, c.View(t.Context(), func(tx *Txn) error {
		now, err = tx.Now(t.Context())
		return err
	}, WithAsOfTimestamp(startOf(tx))))
	require.Equal(t, want, now)
}

// The timers of an observer that is removed are dropped and counted, unless another one observes the column.
func TestRemoveObserverDropsTimers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	a, b := newAlarm(t, w.client(), "a"), newAlarm(t, w.client(), "b")
	c := w.client()
	for i := range 2 * firePage {
		w.timer(c, row(fmt.Sprint("far ", i)), later)
	}
	w.timer(c, rowA, soon)
	w.timer(c, rowB, later)
	require.NoError(t, cancels(t, c, rowB).Commit(t.Context()))
	require.NoError(t, c.RemoveObserver(t.Context(), "a"))
	require.NoError(t, c.drained(t.Context()))
	require.Zero(t, c.Stats().TimersDropped)
	require.NoError(t, c.RemoveObserver(t.Context(), "b"))
	require.Eventually(t, func() bool { return c.Stats().TimersDropped == 2*firePage+1 }, patience, time.Millisecond)
	require.False(t, w.hasTimer(rowA))
	require.False(t, w.hasTimer(row("far 7")))
	w.pass(later)
	fires(t, b.w)
	require.Zero(t, w.indexed())
	require.Empty(t, a.due)
	require.Empty(t, b.due)
}

// A timer that is due when nobody observes its column is dropped, and one that was set by somebody who knew an observer is not.
func TestDueTimerThatNobodyObserves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	stale := w.client()
	other := watching(t, stale, Observer{Name: "other", Table: "t", Column: "other", Func: func(context.Context, *Txn, Cell) error { return nil }})
	require.NoError(t, other.publish(t.Context()))
	a := newAlarm(t, w.client(), "o") // the stale client does not know it
	c := w.client()
	require.Empty(t, stale.known().observers("t", "v"))
	due := w.timer(c, rowA, later)
	page, _, err := stale.timersIn(t.Context(), timerShard{"t", byte(rowstore.Slot("t", "a") % format.TimerShards)}, "", oracle.Max)
	require.NoError(t, err)
	require.Len(t, page, 1)
	_, failed, err := stale.dropUnobserved(t.Context(), page)
	require.NoError(t, err)
	require.NoError(t, failed)
	require.True(t, w.hasTimer(rowA))
	w.pass(later)
	fires(t, other)
	runs(t, a.w, rowA)
	require.Equal(t, []time.Time{due}, a.due)
	require.Zero(t, stale.Stats().TimersDropped)
}

// A collection leaves timers alone, and takes what they leave.
func TestCollectionAndTimers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	c := w.client()
	a := newAlarm(t, c, "o")
	due := w.timer(c, rowA, 3*worldRetention)
	w.timer(c, rowB, soon)
	w.pass(soon)
	runs(t, a.w, rowB)
	w.clock.advance(worldRetention)
	for range 2 {
		_, err := w.collect(c, 0)
		require.NoError(t, err)
		w.clock.advance(worldRetention)
	}
	left := w.raw(rowB)
	require.Empty(t, left.All(rowstore.Write, format.TimerColumn("v")))
	require.True(t, w.hasTimer(rowA))
	require.Equal(t, 1, w.indexed())
	w.clock.advance(worldRetention)
	fires(t, a.w)
	runs(t, a.w, rowA)
	require.Equal(t, due, a.due[1])
}

// WaitObserved waits for timers that were due at its time, and for no others.
func TestWaitObservedForATimer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	c := w.client()
	a := newAlarm(t, c, "o")
	w.timer(c, rowA, soon)
	require.NoError(t, c.WaitObserved(t.Context(), 0, "o", rowA))
	w.pass(soon)
	at := mustNow(t, c)
	done := async(func() error { return c.WaitObserved(t.Context(), at, "o", rowA) })
	require.Eventually(t, func() bool { return len(c.wire.sent(op(faultstore.CallRead))) > 3 }, patience, time.Millisecond)
	runs(t, a.w, rowA)
	require.NoError(t, w.finish(done))
}

// What waits is counted up to a limit, and how long it has been due is told without one.
func TestTimerBacklog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reader := sdkmetric.NewManualReader()
	c := w.client(WithMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	b, err := c.TimerBacklog(t.Context(), 0)
	require.NoError(t, err)
	require.Zero(t, b)
	_, err = c.TimerBacklog(t.Context(), -1)
	require.ErrorIs(t, err, ErrInvalid)
	w.timers()
	a := newAlarm(t, c, "o")
	for i := range firePage + 2 {
		w.timer(c, row(fmt.Sprint(i)), later)
	}
	w.timer(c, rowA, soon)
	w.timer(c, rowB, 2*later)
	for limit, want := range map[int]int{0: firePage + 3, 1: 1, 5: 5, firePage: firePage, 5000: firePage + 3} {
		b, err := c.TimerBacklog(t.Context(), limit)
		require.NoError(t, err)
		require.Equal(t, TimerBacklog{Pending: want}, b, "limit %d", limit)
	}
	w.pass(later + time.Second)
	b, err = c.TimerBacklog(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, 1, b.Pending)
	require.InDelta(t, time.Second, b.Late, float64(time.Millisecond))
	runs(t, a.w, rowA)
	all := collect(t, reader)
	require.EqualValues(t, firePage+3, all["percolator.timers.pending"].(metricdata.Gauge[int64]).DataPoints[0].Value)
	require.InDelta(t, 1, all["percolator.timers.overdue"].(metricdata.Gauge[float64]).DataPoints[0].Value, .001)
	late := all["percolator.timers.lateness"].(metricdata.Histogram[float64]).DataPoints[0]
	require.EqualValues(t, 1, late.Count)
	require.InDelta(t, (later - soon + time.Second).Seconds(), late.Sum, .001)
}

// A timer that was due before the observer saw the cell last, but is set afterwards, has not been seen: it runs.
func TestScheduleT_DueBeforeWhatWasSeen(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		w.timers()
		c := w.client(opts...)
		a := newAlarm(t, c, "o")
		w.pass(time.Minute)
		set(t, c.DB, rowA, "1")
		runs(t, a.w, rowA)
		due := w.timer(c, rowA, -time.Second)
		w.rings(a.w, rowA)
		runs(t, a.w, rowA)
		require.Equal(t, []time.Time{{}, due}, a.due)
		w.nothingIsLeftOf(a.w, rowA)
	})
}
