package percolator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// A run that failed is attempted again when its pause is over, to the millisecond. A look in that millisecond may still be before it: it
// waits then, and does not leave the cell to a look that comes by chance.
func TestPauseThatEndsInThisMillisecond(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	wk := watching(t, c, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error { return errTest }})
	set(t, c.DB, rowA, "1")
	look(t, wk, rowA)
	require.EqualValues(t, 1, c.Stats().ObserverFailures)
	waited := false
	for range 10_000 {
		w.clock.advance(time.Millisecond)
		result, wait, err := wk.runCell(t.Context(), rowA.stored())
		require.NoError(t, err)
		if result != runWaiting {
			break
		}
		require.Positive(t, wait)
		waited = true
	}
	require.True(t, waited)
	require.EqualValues(t, 2, c.Stats().ObserverFailures)
}

// WaitObserved does not wait for a timer that was cancelled, or set anew, after it was due: no run comes for it.
func TestWaitObservedForATimerThatWasCancelled(t *testing.T) {
	for name, takesBack := range map[string]func(tx *Txn, ahead time.Time) error{
		"cancelled": func(tx *Txn, _ time.Time) error { return tx.CancelNotify(rowA) },
		"set anew":  func(tx *Txn, ahead time.Time) error { return tx.NotifyAt(rowA, ahead) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.timers()
			c, waiter := w.client(), w.client()
			newAlarm(t, c, "o")
			w.timer(c, rowA, soon)
			w.pass(soon)
			done := waiting(t, waiter, mustNow(t, c), "o", rowA)
			stillWaits(t, waiter, done)
			tx := begin(t, c)
			require.NoError(t, takesBack(tx, w.clock.Now().Add(later)))
			require.NoError(t, tx.Commit(t.Context()))
			require.NoError(t, w.finish(done))
		})
	}
}

// A timer centuries ahead is not late.
func TestBacklogOfAFarTimer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	c := w.client()
	newAlarm(t, c, "o")
	for i, year := range []int{2400, 2999, 3084} {
		tx := begin(t, c)
		require.NoError(t, tx.NotifyAt(row(fmt.Sprint(i)), time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)))
		require.NoError(t, tx.Commit(t.Context()))
	}
	b, err := c.TimerBacklog(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, TimerBacklog{Pending: 3}, b)
}

// A process may write less in a transaction than others. It removes timers, and asks for runs, in more of them.
func TestLeftoversUnderNarrowLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	wide := w.client()
	newAlarm(t, wide, "o")
	name := func(i int) Cell { return row(fmt.Sprint(i, strings.Repeat("x", 80))) }
	for i := range 100 {
		w.timer(wide, name(i), later)
	}
	narrow := w.client(WithLimits(Limits{Bytes: 2000}))
	require.NoError(t, narrow.RemoveObserver(t.Context(), "o"))
	require.Eventually(t, func() bool { return narrow.Stats().TimersDropped == 100 }, patience, time.Millisecond)

	_, err := wide.raiseTo(t.Context(), replays)
	require.NoError(t, err)
	w.pass(worldLease)
	w.observed("t", "v", "again")
	for i := range 20 {
		set(t, wide.DB, name(i), "1")
	}
	report, err := func() (ReplayReport, error) {
		var report ReplayReport
		done := async(func() (err error) { report, err = narrow.Replay(t.Context(), "again", Range{Table: "t"}); return err })
		wk := watching(t, wide, Observer{Name: "again", Func: func(context.Context, *Txn, Cell) error { return nil }})
		for {
			select {
			case err := <-done:
				return report, err
			default:
			}
			for i := range 20 {
				look(t, wk, name(i))
			}
			w.clock.advance(100 * time.Millisecond)
		}
	}()
	require.NoError(t, err)
	require.EqualValues(t, 20, report.Cells)
}

// The last observer of a table is removed, and the process that did it dies before it has dropped the timers. A collection takes what is left of
// them, and nothing that somebody has set for an observer that came since.
func TestCollectionTakesTimersThatNobodyObserves(t *testing.T) {
	for _, ahead := range []time.Duration{soon, later} {
		t.Run(ahead.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.timers()
			c, dying := w.client(), w.client()
			a := newAlarm(t, c, "o")
			w.timer(c, rowA, ahead)
			far := w.timer(c, rowB, 3*worldRetention)
			dying.wire.AddRule(faultstore.Rule{Match: func(x *call) bool {
				return x.Kind == faultstore.CallScan && strings.Contains(x.Range.Table, "timer") || x.Kind == faultstore.CallScan && x.Range.Table == "t"
			}, Fault: die})
			require.NoError(t, dying.RemoveObserver(t.Context(), "o"))
			require.Eventually(t, func() bool { return dying.wire.Count(faultstore.CrashClient) == 1 }, patience, time.Millisecond)
			require.True(t, w.hasTimer(rowA))
			w.clock.advance(worldRetention + worldAge)
			collects := func() {
				_, err := w.collect(c, 0)
				require.NoError(t, err)
			}
			collects()
			require.False(t, w.hasTimer(rowA))
			require.Empty(t, w.notified(rowA))
			require.True(t, w.hasTimer(rowB), "it is not due")
			require.Equal(t, 1, w.indexed())
			b := newAlarm(t, c, "new")
			w.clock.advance(2 * worldRetention)
			require.NoError(t, c.dropDueTimers(t.Context(), "t", mustNow(t, c), &damage{db: c.DB, report: &GCReport{}}), "a collection that has begun before it came")
			require.Equal(t, 1, w.indexed())
			collects()
			fires(t, b.w)
			runs(t, b.w, rowB)
			require.Equal(t, []time.Time{far}, b.due)
			require.Empty(t, a.due)
		})
	}
}
