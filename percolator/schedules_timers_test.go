package percolator

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules of timers ("Timers" in docs/architecture.md), each one driven call by call.

// soon and later are due times ahead: the one is told of by a notification, the other by the index.
const (
	soon  = nearTimer / 3
	later = 2 * nearTimer
)

// ahead are both.
var ahead = map[string]time.Duration{"near": soon, "far": later}

// eachTimer runs a test for each way to commit, and for timers that are told of by a notification and by the index.
func eachTimer(t *testing.T, test func(t *testing.T, w *world, ahead time.Duration, opts ...Option)) {
	t.Parallel()
	for way, opts := range ways {
		for name, ahead := range ahead {
			t.Run(way+", "+name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.timers()
				test(t, w, ahead, opts...)
			})
		}
	}
}

// timers has everybody know of timers.
func (w *world) timers() {
	w.t.Helper()
	c := w.client()
	_, err := c.raiseTo(w.t.Context(), timers)
	require.NoError(w.t, err)
	w.pass(worldLease)
}

// alarm is an observer that keeps when the timers were due that it was called for, and commits.
type alarm struct {
	w      *Worker
	due    []time.Time
	values []string
	during func(tx *Txn)
}

func newAlarm(t testing.TB, c *client, name string) *alarm {
	a := &alarm{}
	o := newTold(t, c, name, "t")
	o.during = func(tx *Txn, ch Change) {
		a.due, a.values = append(a.due, ch.Due), append(a.values, shown(ch.New, ch.NewFound))
		if a.during != nil {
			a.during(tx)
		}
	}
	a.w = o.w
	return a
}

// setsTimer starts a transaction that sets a timer.
func (w *world) setsTimer(c *client, cell Cell, ahead time.Duration, also ...Cell) *Txn {
	w.t.Helper()
	tx := writes(w.t, c, "x", also...)
	require.NoError(w.t, tx.NotifyAt(cell, w.clock.Now().Add(ahead)))
	return tx
}

// set sets a timer, and returns when it is due.
func (w *world) timer(c *client, cell Cell, ahead time.Duration) time.Time {
	w.t.Helper()
	due := w.clock.Now().Add(ahead).UTC()
	require.NoError(w.t, w.setsTimer(c, cell, ahead).Commit(w.t.Context()))
	return due
}

// cancels starts a transaction that takes a timer back.
func cancels(t testing.TB, c *client, cell Cell) *Txn {
	t.Helper()
	tx := begin(t, c)
	require.NoError(t, tx.CancelNotify(cell))
	return tx
}

// indexed counts the rows of the index.
func (w *world) indexed() (n int) {
	w.t.Helper()
	for _, err := range w.mem.Scan(w.t.Context(), rowstore.ScanRange{Table: format.TimersTable("t"), Selectors: []rowstore.Selector{everything(rowstore.Write, format.ColumnTimer)}}) {
		require.NoError(w.t, err)
		n++
	}
	return n
}

// hasTimer tells whether a cell has a timer.
func (w *world) hasTimer(cell Cell) bool {
	w.t.Helper()
	row := w.raw(cell)
	timer, err := timerIn(&row, cell.stored())
	require.NoError(w.t, err)
	return timer.set
}

// fires has a worker tell of what is due.
func fires(t testing.TB, w *Worker) {
	t.Helper()
	require.NoError(t, w.fireDue(t.Context()))
}

// rings has a worker tell of what is due, and wants something to tell of a cell.
func (w *world) rings(wk *Worker, cell Cell) {
	w.t.Helper()
	fires(w.t, wk)
	require.NotEmpty(w.t, w.notified(cell), "nothing tells of the timer")
}

// holdsOff is a look that leaves the cell alone until its timer is due.
func holdsOff(t testing.TB, w *Worker, cell Cell) {
	t.Helper()
	before := w.db.Stats().ObserverRuns
	require.Contains(t, []nextStep{runWaiting, runDone}, look(t, w, cell))
	require.Equal(t, before, w.db.Stats().ObserverRuns)
}

// nothingIsLeftOf a cell and its timer.
func (w *world) nothingIsLeftOf(wk *Worker, cell Cell) {
	w.t.Helper()
	fires(w.t, wk)
	rests(w.t, wk, cell)
	require.Empty(w.t, w.notified(cell))
	require.Zero(w.t, w.indexed())
	require.False(w.t, w.hasTimer(cell))
	w.settled()
}

// A timer costs no run before it is due, and one afterwards.
func TestScheduleT_RunsWhenDue(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		c := w.client(opts...)
		a := newAlarm(t, c, "o")
		due := w.timer(c, rowA, ahead)
		if ahead == soon {
			require.Len(t, w.notified(rowA), 1)
			require.Zero(t, w.indexed())
		} else {
			require.Empty(t, w.notified(rowA))
			require.Equal(t, 1, w.indexed())
		}
		w.pass(ahead - time.Millisecond)
		fires(t, a.w)
		holdsOff(t, a.w, rowA)
		require.True(t, w.hasTimer(rowA))
		w.pass(time.Millisecond)
		w.rings(a.w, rowA)
		runs(t, a.w, rowA)
		require.Equal(t, []time.Time{due}, a.due)
		w.nothingIsLeftOf(a.w, rowA)
	})
}

// A run for a change must not take away what tells of a timer that is due later.
func TestScheduleT_ChangeBeforeItIsDue(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		c := w.client(opts...)
		a := newAlarm(t, c, "o")
		due := w.timer(c, rowA, ahead)
		for i := range 3 {
			w.pass(time.Second)
			set(t, c.DB, rowA, fmt.Sprint(i))
			runs(t, a.w, rowA)
			holdsOff(t, a.w, rowA)
			require.True(t, w.hasTimer(rowA))
			if ahead == soon {
				require.Len(t, w.notified(rowA), 1, "one tells of it as well as several")
			} else {
				require.Empty(t, w.notified(rowA))
			}
		}
		w.pass(ahead)
		w.rings(a.w, rowA)
		runs(t, a.w, rowA)
		require.Equal(t, []time.Time{{}, {}, {}, due}, a.due)
		require.Equal(t, []string{"0", "1", "2", "2"}, a.values)
		w.nothingIsLeftOf(a.w, rowA)
	})
}

// Each cell has one timer. One that is replaced again and again does not grow.
func TestScheduleT_Replaced(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		c := w.client(opts...)
		a := newAlarm(t, c, "o")
		var due time.Time
		for range 20 {
			due = w.timer(c, rowA, ahead)
			holdsOff(t, a.w, rowA)
			w.pass(ahead / 10)
			fires(t, a.w)
		}
		require.LessOrEqual(t, len(w.notified(rowA)), 1)
		require.LessOrEqual(t, w.indexed(), 10, "what is replaced goes when it would have been due")
		holdsOff(t, a.w, rowA)
		w.pass(ahead)
		w.rings(a.w, rowA)
		runs(t, a.w, rowA)
		require.Equal(t, []time.Time{due}, a.due)
		w.nothingIsLeftOf(a.w, rowA)
	})
}

// From near to far and back: what told of the timer before tells of nothing.
func TestScheduleT_ReplacedByAnotherKind(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		c := w.client(opts...)
		a := newAlarm(t, c, "o")
		other := soon + later - ahead
		w.timer(c, rowA, other)
		due := w.timer(c, rowA, ahead)
		holdsOff(t, a.w, rowA)
		w.pass(min(ahead, other))
		fires(t, a.w)
		if ahead < other {
			runs(t, a.w, rowA)
		} else {
			holdsOff(t, a.w, rowA)
		}
		w.pass(later)
		fires(t, a.w)
		if ahead < other {
			rests(t, a.w, rowA)
		} else {
			runs(t, a.w, rowA)
		}
		require.Equal(t, []time.Time{due}, a.due)
		w.nothingIsLeftOf(a.w, rowA)
	})
}

// A timer that is due before it is committed runs after the commit.
func TestScheduleT_DueBeforeTheCommit(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		w.timers()
		a := newAlarm(t, w.client(), "o")
		c := w.client(append([]Option{WithLockExpiry(time.Hour)}, opts...)...)
		point := c.hold(t, commitPoint(rowB))
		tx := w.setsTimer(c, rowA, later, rowB)
		done := commit(c, tx)
		point.wait()
		require.Equal(t, 1, w.indexed(), "what tells of it is there before the commit point")
		w.pass(later)
		fires(t, a.w)
		require.Zero(t, w.indexed())
		require.Equal(t, runLocked, look(t, a.w, rowA), "whether there is a timer is not decided yet")
		require.Len(t, w.notified(rowA), 1)
		point.release(pass)
		require.NoError(t, w.finish(done))
		w.settled()
		runs(t, a.w, rowA)
		w.nothingIsLeftOf(a.w, rowA)
	})
}

// The client dies at each of its calls: there is no timer, or it runs.
func TestScheduleT_DeathAtEachStep(t *testing.T) {
	eachTimer(t, func(t *testing.T, _ *world, ahead time.Duration, opts ...Option) {
		committed, gone := 0, 0
		for n := 0; ; n++ {
			for _, end := range []verdict{die, dieAfter} {
				w := newWorld(t)
				w.timers()
				other := w.client()
				a := newAlarm(t, other, "o")
				cell := row(fmt.Sprint(n, end.Applied))
				c := w.client(opts...)
				tx := w.setsTimer(c, cell, ahead, row("also "+cell.Row))
				var calls atomic.Int64
				reached := make(chan struct{})
				c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool {
					if !anyCall(x) {
						return false
					}
					return calls.Add(1) == int64(n)+1
				}, Before: func(context.Context, *call) verdict {
					close(reached)
					return end
				}})
				ctx, cancel := context.WithCancel(t.Context())
				done := async(func() error { return tx.Commit(ctx) })
				var err error
				select {
				case err = <-done:
				case <-reached:
					select {
					case err = <-done:
					case <-time.After(50 * time.Millisecond): // a dead client asks for ever
						cancel()
						err = w.finish(done)
					}
				}
				cancel()
				if calls.Load() <= int64(n) {
					require.NoError(t, err)
				}
				w.pass(ahead + worldExpiry + worldSession + time.Second)
				fires(t, a.w)
				before := len(a.due)
				for range 3 {
					look(t, a.w, cell)
				}
				if set := len(a.due) > before; set {
					committed++
					require.NotEqual(t, "none", value(t, other, row("also "+cell.Row)))
				} else {
					gone++
					require.Equal(t, "none", value(t, other, row("also "+cell.Row)), "a timer was lost: call %d", n)
					require.Error(t, err)
				}
				w.nothingIsLeftOf(a.w, cell)
				if end.Applied && calls.Load() <= int64(n) {
					require.NotZero(t, committed)
					require.NotZero(t, gone)
					return
				}
			}
		}
	})
}

// A cancellation that commits while the run is under way makes it conflict, and so does another time. One that
// comes later conflicts itself.
func TestScheduleT_CancelledDuringTheRun(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		c, other := w.client(opts...), w.client(opts...)
		a := newAlarm(t, c, "o")
		w.timer(c, rowA, ahead)
		w.pass(ahead)
		fires(t, a.w)
		a.during = func(tx *Txn) {
			a.during = nil
			require.NoError(t, tx.Set(rowB, []byte("run")))
			require.NoError(t, cancels(t, other, rowA).Commit(context.Background()))
		}
		require.Equal(t, runConflict, look(t, a.w, rowA))
		require.Equal(t, "none", value(t, c, rowB))
		w.nothingIsLeftOf(a.w, rowA)

		w.timer(c, rowA, ahead)
		w.pass(ahead)
		fires(t, a.w)
		late, again := cancels(t, other, rowA), w.setsTimer(other, rowA, ahead)
		runs(t, a.w, rowA)
		require.ErrorIs(t, late.Commit(t.Context()), ErrConflict)
		require.ErrorIs(t, again.Commit(t.Context()), ErrConflict)
		require.Len(t, a.due, 2)
		w.nothingIsLeftOf(a.w, rowA)
	})
}

// A cancellation that commits first wins, whatever tells of the timer.
func TestScheduleT_Cancelled(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		c := w.client(opts...)
		a := newAlarm(t, c, "o")
		w.timer(c, rowA, ahead)
		w.pass(ahead)
		fires(t, a.w)
		require.NoError(t, cancels(t, c, rowA).Commit(t.Context()))
		w.nothingIsLeftOf(a.w, rowA)
		require.Empty(t, a.due)
	})
}

// Two transactions that set the timer of one cell conflict; one that writes the cell does not.
func TestScheduleT_Conflicts(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		c := w.client(opts...)
		newAlarm(t, c, "o")
		first, second, third, writer := w.setsTimer(c, rowA, ahead), w.setsTimer(c, rowA, ahead), cancels(t, c, rowA), writes(t, c, "1", rowA)
		require.NoError(t, first.Commit(t.Context()))
		var conflict *ConflictError
		require.ErrorAs(t, second.Commit(t.Context()), &conflict)
		require.Equal(t, rowA, conflict.Cell, "the name is the user's")
		require.ErrorIs(t, third.Commit(t.Context()), ErrConflict)
		require.NoError(t, writer.Commit(t.Context()))
	})
}

// A function sets the next timer of its own cell.
func TestScheduleT_SetsTheNext(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		c := w.client(opts...)
		a := newAlarm(t, c, "o")
		want := []time.Time{w.timer(c, rowA, ahead)}
		a.during = func(tx *Txn) {
			require.NoError(t, tx.NotifyAfter(context.Background(), rowA, ahead))
		}
		for range 5 {
			w.pass(ahead)
			fires(t, a.w)
			want = append(want, w.clock.Now().Add(ahead).UTC())
			runs(t, a.w, rowA)
			holdsOff(t, a.w, rowA)
			require.True(t, w.hasTimer(rowA))
		}
		require.Equal(t, want[:5], a.due)
		a.during = nil
		w.pass(ahead)
		w.rings(a.w, rowA)
		runs(t, a.w, rowA)
		require.Equal(t, want, a.due)
		w.nothingIsLeftOf(a.w, rowA)
	})
}

// Each observer of the column runs once. The last one removes the timer, and a cancellation between them stops the rest.
func TestScheduleT_SeveralObservers(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		a, b := newAlarm(t, w.client(opts...), "a"), newAlarm(t, w.client(opts...), "b")
		c := w.client(opts...)
		due := w.timer(c, rowA, ahead)
		w.pass(ahead)
		w.rings(a.w, rowA)
		runs(t, a.w, rowA)
		require.True(t, w.hasTimer(rowA))
		look(t, a.w, rowA)
		require.Equal(t, []time.Time{due}, a.due, "it has run")
		runs(t, b.w, rowA)
		require.Equal(t, []time.Time{due}, b.due)
		w.nothingIsLeftOf(a.w, rowA)

		w.timer(c, rowA, ahead)
		w.pass(ahead)
		w.rings(a.w, rowA)
		runs(t, a.w, rowA)
		require.NoError(t, cancels(t, c, rowA).Commit(t.Context()))
		w.nothingIsLeftOf(b.w, rowA)
		require.Len(t, a.due, 2)
		require.Len(t, b.due, 1)
	})
}

// The run of one observer conflicts with the cancellation also if it is not the last.
func TestScheduleT_CancelledDuringTheFirstRun(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		a, b := newAlarm(t, w.client(opts...), "a"), newAlarm(t, w.client(opts...), "b")
		c := w.client(opts...)
		w.timer(c, rowA, ahead)
		w.pass(ahead)
		fires(t, a.w)
		a.during = func(*Txn) {
			a.during = nil
			require.NoError(t, cancels(t, c, rowA).Commit(context.Background()))
		}
		require.Equal(t, runConflict, look(t, a.w, rowA))
		w.nothingIsLeftOf(b.w, rowA)
	})
}

// An observer that was removed has not seen the timer. What the others have seen is removed all the same.
func TestScheduleT_RemovedBetweenTwoRuns(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		a, c := newAlarm(t, w.client(opts...), "a"), w.client(opts...)
		newAlarm(t, c, "b")
		w.timer(c, rowA, ahead)
		w.pass(ahead)
		w.rings(a.w, rowA)
		runs(t, a.w, rowA)
		require.True(t, w.hasTimer(rowA))
		require.NoError(t, c.RemoveObserver(t.Context(), "b"))
		w.pass(worldLease)
		look(t, a.w, rowA)
		w.nothingIsLeftOf(a.w, rowA)
	})
}

// A parked run keeps its timer until it is released.
func TestScheduleT_Parked(t *testing.T) {
	eachTimer(t, func(t *testing.T, w *world, ahead time.Duration, opts ...Option) {
		c := w.client(opts...)
		o := newTold(t, c, "o", "t")
		due := w.timer(c, rowA, ahead)
		w.pass(ahead)
		fires(t, o.w)
		o.fail = Park(errTest)
		look(t, o.w, rowA)
		rests(t, o.w, rowA)
		require.True(t, w.hasTimer(rowA))
		require.Empty(t, w.notified(rowA))
		o.fail = nil
		parked, err := c.Parked(t.Context())
		require.NoError(t, err)
		require.Len(t, parked, 1)
		require.NoError(t, c.Release(t.Context(), parked...))
		runs(t, o.w, rowA)
		require.Equal(t, due, o.changes[len(o.changes)-1].Due)
		w.nothingIsLeftOf(o.w, rowA)
	})
}

// Until everybody knows of timers, no notification stands for one, and none is told of: somebody who knows of none would clear it.
func TestScheduleT_FirstOfAll(t *testing.T) {
	t.Parallel()
	for way, opts := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c, old := w.client(opts...), w.client(opts...)
			a := newAlarm(t, c, "o")
			unaware := newAlarm(t, old, "o") // its view of the catalog holds for a while
			require.False(t, old.known().Timers)
			due := w.timer(c, rowA, 0)
			require.False(t, old.known().Timers)
			require.Empty(t, w.notified(rowA))
			require.Equal(t, 1, w.indexed())
			fires(t, a.w)
			require.Equal(t, 1, w.indexed())
			look(t, unaware.w, rowA)
			w.pass(worldLease + time.Millisecond)
			fires(t, a.w)
			require.NotEmpty(t, w.notified(rowA))
			runs(t, unaware.w, rowA)
			require.Equal(t, []time.Time{due}, unaware.due)
			w.nothingIsLeftOf(a.w, rowA)
		})
	}
}

// A new observer is shown a timer of which nothing tells any more.
func TestScheduleT_NotificationWasCleared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	c := w.client()
	newAlarm(t, c, "o")
	due := w.timer(c, rowA, soon)
	_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{rowstore.Delete(rowstore.Notify, "v", w.notified(rowA)[0])}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	w.pass(soon)
	b := &alarm{}
	b.w = watching(t, c, Observer{Name: "new", OnChange: func(_ context.Context, _ *Txn, ch Change) error {
		b.due = append(b.due, ch.Due)
		return nil
	}})
	require.NoError(t, b.w.publish(t.Context()))
	v, err := c.loadCatalog(t.Context())
	require.NoError(t, err)
	fresh := b.w.unswept(v)
	require.Len(t, fresh, 1)
	require.NoError(t, b.w.sweepFor(t.Context(), fresh[0], mustNow(t, c)))
	require.NotEmpty(t, w.notified(rowA))
	runs(t, b.w, rowA)
	require.Equal(t, []time.Time{due}, b.due)
}

// What tells of timers may fail, get lost, or arrive without a reply, for all of them or for one: none is lost.
func TestTellIsSafe(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]verdict{"refused": refuse, "lost": lose, "reply lost": loseReply} {
		for _, index := range []bool{false, true} {
			t.Run(fmt.Sprint(name, index), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.timers()
				c := w.client()
				a := newAlarm(t, c, "o")
				w.timer(c, rowA, later)
				w.timer(c, rowB, later)
				w.timer(c, rowB, later+time.Second) // it replaces the one before, whose row is left
				w.pass(later)
				target := on(rowA)
				if index {
					target = func(x *call) bool { return len(x.Mutations()) > 0 && x.Mutations()[0].Table == format.TimersTable("t") }
				}
				c.wire.AddRule(faultstore.Rule{Match: both(op(faultstore.CallApply), target), Fault: end, Times: -1})
				require.Error(t, a.w.fireDue(t.Context()))
				c.wire.SetRules()
				w.rings(a.w, rowA)
				runs(t, a.w, rowA)
				holdsOff(t, a.w, rowB)
				w.pass(time.Second)
				fires(t, a.w)
				runs(t, a.w, rowB)
				w.nothingIsLeftOf(a.w, rowA)
				w.nothingIsLeftOf(a.w, rowB)
			})
		}
	}
}
