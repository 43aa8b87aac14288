package percolator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Schedules of near timers beside changes of their cells. Only a notification tells of such a timer, and a worker
// that has seen it is told nothing more: so it must look again when the timer is due.

// handles has a worker handle a notified cell by jobs, until each of them has ended or is paused. It returns for how
// long those are left alone that are paused, by their observers.
func (w *world) handles(wk *Worker, cell Cell) map[string]time.Duration {
	w.t.Helper()
	c := cell.stored()
	wk.mu.Lock()
	for _, q := range wk.queuesOf(c) {
		require.True(w.t, wk.found(q, c, unread, false))
	}
	wk.dispatch()
	wk.mu.Unlock()
	wk.tasks.Wait()
	wk.mu.Lock()
	defer wk.mu.Unlock()
	alone := map[string]time.Duration{}
	for j, p := range wk.paused {
		require.Equal(w.t, c, j.cell)
		alone[j.o.Name] = p.until.Sub(w.clock.Now())
	}
	return alone
}

// A timer does not wait for the next attempt of an older change, nor does one that was there when that change was made.
func TestScheduleT_BesideAnOlderChange(t *testing.T) {
	const attempt = time.Hour // until the next one
	t.Parallel()
	for name, first := range map[string]bool{"the change first": true, "the timer first": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.timers()
			c := w.client()
			o := newTold(t, c, "o", "t")
			o.during = func(_ *Txn, ch Change) {
				if o.fail = nil; ch.Due.IsZero() {
					o.fail = RetryAfter(attempt)
				}
			}
			var due time.Time
			if first {
				set(t, c.DB, rowA, "1")
				require.Equal(t, map[string]time.Duration{"o": attempt}, w.handles(o.w, rowA))
				due = w.timer(c, rowA, soon)
			} else {
				due = w.timer(c, rowA, soon)
				require.Equal(t, map[string]time.Duration{"o": soon}, w.handles(o.w, rowA))
				set(t, c.DB, rowA, "1")
			}
			require.Equal(t, map[string]time.Duration{"o": soon}, w.handles(o.w, rowA), "it looks again when the timer is due")
			require.Equal(t, 1, o.calls)
			w.pass(soon)
			require.Empty(t, w.handles(o.w, rowA))
			require.Equal(t, 2, o.calls)
			require.Equal(t, due, o.changes[1].Due)
			w.nothingIsLeftOf(o.w, rowA)
		})
	}
}

// The runs for a change leave their jobs waiting for a timer that the same transaction has set.
func TestScheduleT_SetWithAChange(t *testing.T) {
	t.Parallel()
	for name, observers := range map[string][]string{"one observer": {"a"}, "two observers": {"a", "b"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.timers()
			w.observed("t", "v", observers...)
			w.pass(time.Millisecond) // timers count from the timestamp a lease after they were asked for
			c := w.client()
			wk := NewWorker(c.DB, WorkerConfig{})
			want := map[string]time.Duration{}
			for _, name := range observers {
				want[name] = soon
				require.NoError(t, wk.Observe(Observer{Name: name, Table: "t", Column: "v", Func: nothing}))
			}
			require.NoError(t, w.setsTimer(c, rowA, soon, rowA).Commit(t.Context()))
			require.Equal(t, want, w.handles(wk, rowA), "each looks again when the timer is due")
			require.EqualValues(t, len(observers), c.Stats().ObserverRuns)
			w.pass(soon)
			require.Empty(t, w.handles(wk, rowA))
			require.EqualValues(t, 2*len(observers), c.Stats().ObserverRuns)
			w.nothingIsLeftOf(wk, rowA)
		})
	}
}
