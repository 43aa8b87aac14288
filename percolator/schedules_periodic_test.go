package percolator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules of periodics ("Periodics" in docs/architecture.md), each one driven call by call.

// ticker is a periodic whose runs count up a cell for each tick, and the worker that has it.
type ticker struct {
	w      *Worker
	p      Periodic
	ticks  []string // that the function was called for
	during func(tx *Txn)
	fail   error
	log    logged
}

// logged keeps what is logged.
type logged struct {
	mu  sync.Mutex
	out strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.String()
}

// every is the interval of tickers. Its ticks are told of by the index.
const every = 2 * nearTimer

// newTicker registers a ticker without its sweep.
func newTicker(t testing.TB, w *world, p Periodic, opts ...Option) *ticker {
	t.Helper()
	k := tickerOf(t, w, p, opts...)
	require.NoError(t, k.starts(t))
	return k
}

func tickerOf(t testing.TB, w *world, p Periodic, opts ...Option) *ticker {
	t.Helper()
	k := &ticker{}
	c := w.client(append([]Option{WithLogger(slog.New(slog.NewTextHandler(&k.log, nil)))}, opts...)...)
	if p.Name == "" {
		p.Name = "p"
	}
	if p.Schedule == nil {
		p.Schedule = Interval(every)
	}
	p.MaxAttempts = 2
	p.Func = func(ctx context.Context, tx *Txn, tick time.Time) error {
		name := tick.Format("15:04:05")
		k.ticks = append(k.ticks, name)
		if k.during != nil {
			k.during(tx)
		}
		if k.fail != nil {
			return k.fail
		}
		v, err := tx.Get(ctx, row(name))
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		return tx.Set(row(name), append(v, 'x'))
	}
	k.p = p
	k.w = NewWorker(c.DB, WorkerConfig{})
	require.NoError(t, k.w.Every(p))
	return k
}

// starts does what Run does before it joins the others.
func (k *ticker) starts(t testing.TB) error {
	t.Helper()
	if err := k.w.publish(t.Context()); err != nil {
		return err
	}
	_, err := k.w.db.changeCatalog(t.Context(), func(v *catalogView) (changed bool, err error) {
		for i := range v.Observers {
			if o := &v.Observers[i]; o.Swept == 0 {
				o.Swept, changed = o.Since, true
			}
		}
		return changed, nil
	})
	require.NoError(t, err)
	return k.w.startPeriodics(t.Context())
}

// cell is the one that is observed.
func (k *ticker) cell() Cell { return Cell{PeriodicTable, k.p.Name, "run:" + k.p.Name} }

// state is how far the periodic has come.
func (k *ticker) state(t testing.TB) (s format.Periodic) {
	t.Helper()
	require.NoError(t, k.w.db.View(t.Context(), func(tx *Txn) error {
		b, err := tx.Get(t.Context(), stateOfPeriodic(k.p.Name))
		if err == nil {
			s, err = format.DecodePeriodic(b)
		}
		return err
	}))
	return s
}

// looks is what the worker does when the timer may be due.
func (k *ticker) looks(t testing.TB) nextStep {
	t.Helper()
	fires(t, k.w)
	return look(t, k.w, k.cell())
}

// toTick lets the time pass until n intervals have begun, and a little more.
func (w *world) toTick(n int) {
	rest := time.Duration(w.clock.Now().UnixMilli()%every.Milliseconds()) * time.Millisecond
	w.pass(time.Duration(n)*every - rest + time.Millisecond)
}

// tick names the tick at or before now, back by n.
func (w *world) tick(back int) string {
	return w.clock.Now().Truncate(every).Add(-time.Duration(back) * every).UTC().Format("15:04:05")
}

// once wants each tick to have been committed once, and no other.
func (w *world) once(ticks ...string) {
	w.t.Helper()
	c := w.client()
	var got []string
	require.NoError(w.t, c.View(w.t.Context(), func(tx *Txn) error {
		got = got[:0]
		for r, err := range tx.Scan(w.t.Context(), Range{Table: "t"}) {
			if err != nil {
				return err
			}
			got = append(got, r.Key)
			if v := string(r.Columns["v"]); v != "x" {
				return fmt.Errorf("tick %s was committed as %q", r.Key, v)
			}
		}
		return nil
	}))
	require.ElementsMatch(w.t, ticks, got)
}

func eachTicked(t *testing.T, test func(t *testing.T, w *world, opts ...Option)) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.timers()
		test(t, w, opts...)
	})
}

// Each tick leads to one commit, and nothing happens between them or while the clock stands still.
func TestSchedulePeriodic_Ticks(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		k := newTicker(t, w, Periodic{}, opts...)
		k.looks(t)
		require.Empty(t, k.ticks)
		var want []string
		for range 3 {
			w.toTick(1)
			want = append(want, w.tick(0))
			for range 3 { // the clock stands still
				k.looks(t)
			}
			w.once(want...)
		}
		require.Equal(t, want, k.ticks)
		require.Empty(t, w.notified(k.cell()))
	})
}

// Two workers run for a tick at the same time: one commits.
func TestSchedulePeriodic_TwoWorkers(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		a, b := newTicker(t, w, Periodic{}, opts...), newTicker(t, w, Periodic{}, opts...)
		w.toTick(1)
		fires(t, a.w)
		a.during = func(*Txn) {
			a.during = nil
			b.looks(t)
		}
		require.Equal(t, runConflict, look(t, a.w, a.cell()))
		a.looks(t)
		w.once(w.tick(0))
		require.Len(t, b.ticks, 1)
		require.Len(t, a.ticks, 1)
	})
}

// A worker is suspended in its function while others go on with the ticks that follow: its commit takes no effect.
func TestSchedulePeriodic_Suspended(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		a, b := newTicker(t, w, Periodic{}, opts...), newTicker(t, w, Periodic{}, opts...)
		w.toTick(1)
		want := []string{w.tick(0)}
		fires(t, a.w)
		a.during = func(*Txn) {
			a.during = nil
			w.pass(worldSession + worldExpiry + time.Second)
			b.looks(t)
			w.toTick(1)
			want = append(want, w.tick(0))
			b.looks(t)
		}
		look(t, a.w, a.cell())
		a.looks(t)
		w.once(want...)
		require.Equal(t, want, b.ticks)
	})
}

// The worker dies at each of its calls. Another one goes on, and each tick is committed once.
func TestSchedulePeriodic_DeathAtEachStep(t *testing.T) {
	eachTicked(t, func(t *testing.T, _ *world, opts ...Option) {
		landed, repeated := 0, 0
		for n := 0; ; n++ {
			for _, end := range []verdict{die, dieAfter} {
				w := newWorld(t)
				w.timers()
				b := newTicker(t, w, Periodic{Missed: Each(100)})
				a := newTicker(t, w, Periodic{Missed: Each(100)}, opts...)
				w.toTick(1)
				want := []string{w.tick(0)}
				fires(t, a.w)
				wire := w.clients[len(w.clients)-1].wire
				var calls atomic.Int64
				reached := make(chan struct{})
				wire.AddRule(faultstore.Rule{Match: func(x *call) bool {
					return anyCall(x) && calls.Add(1) == int64(n)+1
				}, Before: func(context.Context, *call) verdict {
					close(reached)
					return end
				}})
				ctx, cancel := context.WithCancel(t.Context())
				done := async(func() error {
					_, _, err := a.w.runCell(ctx, a.cell())
					return err
				})
				died := true
				select {
				case <-done:
					select {
					case <-reached:
					default:
						died = false
					}
				case <-reached:
					select {
					case <-done:
					case <-time.After(50 * time.Millisecond): // a dead client asks for ever
						cancel()
						_ = w.finish(done)
					}
				}
				cancel()
				w.pass(worldExpiry + worldSession + time.Second)
				for range 3 {
					b.looks(t)
				}
				if len(b.ticks) == 0 {
					landed++
				} else {
					repeated++
				}
				w.toTick(1)
				want = append(want, w.tick(0))
				for range 3 {
					b.looks(t)
				}
				w.once(want...)
				if !died {
					require.NotZero(t, landed)
					require.NotZero(t, repeated)
					return
				}
			}
		}
	})
}

// Ticks that were missed are left out, made one, or made up for.
func TestSchedulePeriodic_Missed(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		skip, once, each := newTicker(t, w, Periodic{Name: "skip"}, opts...), newTicker(t, w, Periodic{Name: "once", Missed: Once}, opts...), newTicker(t, w, Periodic{Name: "each", Missed: Each(3)}, opts...)
		w.toTick(5)
		w.pass(every - time.Second)
		all := []string{w.tick(2), w.tick(1), w.tick(0)}
		for range 6 {
			skip.looks(t)
			once.looks(t)
			each.looks(t)
		}
		w.toTick(1)
		newest := w.tick(0)
		for range 2 {
			skip.looks(t)
			once.looks(t)
			each.looks(t)
		}
		require.Equal(t, []string{all[2], newest}, skip.ticks, "the newest was due less than a minute ago")
		require.Equal(t, []string{all[2], newest}, once.ticks)
		require.Equal(t, append(all, newest), each.ticks)
		require.Contains(t, each.log.String(), "left out")
	})
}

// Of Skip, what is late is left out.
func TestSchedulePeriodic_Late(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		k := newTicker(t, w, Periodic{Schedule: Interval(10 * every)}, opts...)
		next := k.state(t).Next
		w.pass(time.UnixMilli(next).Sub(w.clock.Now()) + missedAfter + time.Millisecond)
		k.looks(t)
		k.looks(t)
		require.Empty(t, k.ticks)
		require.Contains(t, k.log.String(), "left out")
		require.Equal(t, next+10*every.Milliseconds(), k.state(t).Next)
		w.pass(time.UnixMilli(k.state(t).Next).Sub(w.clock.Now()))
		tick := w.tick(0)
		k.looks(t)
		w.once(tick)
	})
}

// A function that fails is called again for the tick, however late that is.
func TestSchedulePeriodic_FailsAndGoesOn(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		k := newTicker(t, w, Periodic{Schedule: Interval(10 * every)}, opts...)
		w.pass(time.UnixMilli(k.state(t).Next).Sub(w.clock.Now()))
		k.fail = errTest
		k.looks(t)
		w.pass(3 * missedAfter)
		k.fail = nil
		k.looks(t)
		require.Len(t, k.ticks, 2)
		w.once(k.ticks[0])
	})
}

// A parked run does not keep the next tick from coming. It can be released until that has run.
func TestSchedulePeriodic_Parked(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		k := newTicker(t, w, Periodic{}, opts...)
		c := w.client()
		parked := func() []ParkedRun {
			runs, err := c.Parked(t.Context())
			require.NoError(t, err)
			return runs
		}
		w.toTick(1)
		first := w.tick(0)
		k.fail = Park(errTest)
		k.looks(t)
		runs := parked()
		require.Len(t, runs, 1)
		require.Equal(t, k.cell(), runs[0].Cell)
		rests(t, k.w, k.cell())
		require.True(t, w.hasTimer(k.cell()))

		k.fail = nil
		require.NoError(t, c.Release(t.Context(), runs...))
		look(t, k.w, k.cell())
		w.once(first)
		require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Notify(k.cell()) }))
		look(t, k.w, k.cell())
		require.Len(t, k.ticks, 2, "the tick that was parked has run")

		w.toTick(1)
		second := w.tick(0)
		k.fail = Park(errTest)
		k.looks(t)
		require.Len(t, parked(), 1)
		w.toTick(1)
		k.fail = nil
		k.looks(t)
		require.Empty(t, parked())
		w.once(first, w.tick(0))
		require.Contains(t, k.log.String(), "is dropped")
		require.NotEqual(t, second, w.tick(0))
		look(t, k.w, k.cell())
		require.Len(t, k.ticks, 4)
	})
}

// A released tick that fails again is parked again, and the next tick stays as it is.
func TestSchedulePeriodic_ReleasedAndFails(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		k := newTicker(t, w, Periodic{}, opts...)
		w.toTick(1)
		k.fail = Park(errTest)
		k.looks(t)
		before := k.state(t)
		c := w.client()
		runs, err := c.Parked(t.Context())
		require.NoError(t, err)
		require.NoError(t, c.Release(t.Context(), runs...))
		look(t, k.w, k.cell())
		require.Equal(t, before, k.state(t))
		runs, err = c.Parked(t.Context())
		require.NoError(t, err)
		require.Len(t, runs, 1)
		w.toTick(1)
		k.fail = nil
		k.looks(t)
		w.once(w.tick(0))
	})
}

// A schedule that ends or goes back is an error of the run, before the function is called.
func TestSchedulePeriodic_BadSchedule(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]func(time.Time) time.Time{
		"ends":      func(time.Time) time.Time { return time.Time{} },
		"goes back": func(t time.Time) time.Time { return t.Add(-time.Hour) },
		"panics":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.timers()
			var ended atomic.Bool
			k := newTicker(t, w, Periodic{Schedule: nextFunc(func(at time.Time) time.Time {
				if ended.Load() {
					return bad(at)
				}
				return Interval(every).Next(at)
			})})
			w.toTick(1)
			ended.Store(true)
			for range 3 {
				k.looks(t)
				w.pass(2 * time.Minute)
			}
			require.Empty(t, k.ticks)
			c := w.client()
			runs, err := c.Parked(t.Context())
			require.NoError(t, err)
			require.Len(t, runs, 1)
			require.Contains(t, runs[0].Error, "the schedule")
			ended.Store(false)
			require.NoError(t, c.Release(t.Context(), runs...))
			look(t, k.w, k.cell())
			w.once(w.tick(0))
		})
	}
}

// The schedule of the higher version counts, whoever comes first. Those with the other leave the periodic alone.
func TestSchedulePeriodic_Versions(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		old := newTicker(t, w, Periodic{Version: 1, Schedule: Interval(7 * every)}, opts...)
		young := newTicker(t, w, Periodic{Version: 2, Schedule: Interval(every)}, opts...)
		require.Contains(t, young.log.String(), "every 7m0s")
		require.Contains(t, young.log.String(), "every 1m0s")
		require.Equal(t, runWaiting, look(t, old.w, old.cell()), "it is told at once")
		require.True(t, old.w.list[0].aside)
		require.Zero(t, old.w.works()[0].Weight)
		require.Contains(t, old.log.String(), "every 7m0s")
		require.Contains(t, old.log.String(), "every 1m0s")
		look(t, young.w, young.cell())
		var want []string
		for range 3 {
			w.toTick(1)
			want = append(want, w.tick(0))
			require.Equal(t, runWaiting, old.looks(t))
			young.looks(t)
		}
		w.once(want...)
		require.Empty(t, old.ticks)
		require.Equal(t, 1, strings.Count(old.log.String(), "leaves a periodic"))

		late := newTicker(t, w, Periodic{Version: 1, Schedule: Interval(7 * every)}, opts...)
		require.True(t, late.w.list[0].aside)
		tied := tickerOf(t, w, Periodic{Version: 2, Schedule: Interval(7 * every)}, opts...)
		err := tied.starts(t)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "every 7m0s")
		require.ErrorContains(t, err, "every 1m0s")
	})
}

// Where the schedules are the same, the versions do not matter: any worker runs.
func TestSchedulePeriodic_SameSchedule(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		old := newTicker(t, w, Periodic{Version: 1}, opts...)
		before := old.state(t).Next
		young := newTicker(t, w, Periodic{Version: 2}, opts...)
		require.Equal(t, before, young.state(t).Next)
		w.toTick(1)
		want := []string{w.tick(0)}
		old.looks(t)
		w.toTick(1)
		want = append(want, w.tick(0))
		young.looks(t)
		w.once(want...)
		require.Len(t, old.ticks, 1)
	})
}

// A new schedule does not lose the tick that is due, and counts from then on.
func TestSchedulePeriodic_ReplacedWhileDue(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		newTicker(t, w, Periodic{Version: 1}, opts...)
		w.toTick(1)
		due := w.tick(0)
		young := newTicker(t, w, Periodic{Version: 2, Schedule: Interval(5 * every)}, opts...)
		young.looks(t)
		w.once(due)
		require.Zero(t, young.state(t).Next%(5*every).Milliseconds())
		require.Greater(t, young.state(t).Next, w.clock.Now().UnixMilli())
	})
}

// A periodic that is removed leaves nothing, and begins anew when it is registered again.
func TestSchedulePeriodic_Removed(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		k := newTicker(t, w, Periodic{Missed: Each(100)}, opts...)
		w.toTick(1)
		k.looks(t)
		want := []string{w.tick(0)}
		c := w.client()
		require.NoError(t, c.RemoveObserver(t.Context(), "p"))
		require.NoError(t, c.drained(t.Context()))
		require.Equal(t, "none", value(t, c, stateOfPeriodic("p")))
		require.False(t, w.hasTimer(k.cell()))
		w.toTick(5)
		again := newTicker(t, w, Periodic{Missed: Each(100)}, opts...)
		again.looks(t)
		require.Empty(t, again.ticks)
		w.toTick(1)
		again.looks(t)
		w.once(append(want, w.tick(0))...)
	})
}

// What an earlier registration has left does not count.
func TestSchedulePeriodic_LeftByAnEarlierRegistration(t *testing.T) {
	eachTicked(t, func(t *testing.T, w *world, opts ...Option) {
		k := newTicker(t, w, Periodic{Missed: Each(100), Version: 7}, opts...)
		left := k.state(t)
		b, err := left.Encode()
		require.NoError(t, err)
		c := w.client()
		require.NoError(t, c.RemoveObserver(t.Context(), "p"))
		require.NoError(t, c.drained(t.Context()))
		set(t, c.DB, stateOfPeriodic("p"), string(b))
		w.toTick(3)
		again := newTicker(t, w, Periodic{Missed: Each(100)}, opts...)
		again.looks(t)
		require.Empty(t, again.ticks)
		require.Greater(t, again.state(t).Since, left.Since)
		require.Zero(t, again.state(t).Version)
		// It is damaged, or lost: the run says so, or begins anew.
		require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(stateOfPeriodic("p")) }))
		w.toTick(1)
		again.looks(t)
		require.Empty(t, again.ticks)
		w.toTick(1)
		again.looks(t)
		w.once(w.tick(0))
		set(t, c.DB, stateOfPeriodic("p"), "damaged")
		w.toTick(1)
		again.looks(t)
		require.Contains(t, again.log.String(), "is damaged")
	})
}
