package simulate

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// size is small in a plain test run, and whole with -whole.
func size[T any](small, large T) T {
	if *whole {
		return large
	}
	return small
}

const resultHead = "changes\tfunctions\tconflicts\tcalls\tp50 ms\tp99 ms\tslowest ms"

func (r *result) line() string {
	return fmt.Sprintf("%d\t%.3f\t%.3f\t%.1f\t%s\t%s\t%s", r.changes, r.each(float64(r.functions)), r.each(float64(r.conflicts)),
		r.each(float64(r.calls)), ms(r.median), ms(r.p99), ms(r.slowest))
}

// TestLive lets changes come at a steady rate for each worker, while nothing else happens.
func TestLive(t *testing.T) {
	t.Parallel()
	var s sheet
	s.add("workers\t" + resultHead)
	for _, n := range size([]int{1, 4, 8}, []int{1, 2, 4, 8, 32, 100}) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, *function)
			for range n {
				w.start()
			}
			time.Sleep(time.Minute) // they know each other
			since := w.counts()
			stop := w.load(*rate * float64(n))
			time.Sleep(size(2*time.Second, *lasts))
			stop()
			until := w.counts()
			w.wait(0)
			r := w.result(since, until)
			w.close()
			s.add("%d\t%s", n, r.line())
			s.atMost(1.01, "functions", r.each(float64(r.functions)))
			s.atMost(0.01, "conflicts", r.each(float64(r.conflicts)))
			// With one worker it is 4.1: others do not look for what is not their own.
			s.atMost(6, "calls", r.each(float64(r.calls)))
		})
	}
	s.show(t, fmt.Sprintf("changes come at %g/s for each worker; functions, conflicts and calls for each change; the times are from the commit to the run", *rate))
}

// TestScaleOut doubles the workers at once while changes come.
func TestScaleOut(t *testing.T) {
	t.Parallel()
	var s sheet
	s.add("workers\tthen\tfunction\t" + resultHead)
	for _, n := range size([]int{2}, []int{2, 8, 32}) {
		for _, function := range size([]time.Duration{0}, []time.Duration{0, 300 * time.Millisecond, 3 * time.Second}) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, function)
				for range n {
					w.start()
				}
				time.Sleep(time.Minute)
				since := w.counts()
				stop := w.load(loadFor(n, function))
				time.Sleep(time.Second + function)
				for range n {
					w.start()
				}
				time.Sleep(*lasts)
				stop()
				until := w.counts()
				w.wait(0)
				r := w.result(since, until)
				w.close()
				s.add("%d\t%d\t%v\t%s", n, 2*n, function, r.line())
				s.atMost(1.01, "functions", r.each(float64(r.functions)))
				s.within(3*time.Second, "p99", r.p99)
			})
		}
	}
	s.show(t, "as many workers more start at once while changes come")
}

// TestHeterogeneous has workers of the observers a, of a and b, and of b.
func TestHeterogeneous(t *testing.T) {
	t.Parallel()
	var s sheet
	s.add("workers\t" + resultHead)
	for _, n := range size([]int{1}, []int{1, 3, 10}) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, *function, "a", "b")
			for range n {
				w.start("a")
				w.start("a", "b")
				w.start("b")
			}
			time.Sleep(time.Minute)
			since := w.counts()
			stop := w.load(*rate * float64(3*n))
			time.Sleep(size(2*time.Second, *lasts))
			stop()
			until := w.counts()
			w.wait(0) // for both observers
			r := w.result(since, until)
			w.close()
			s.add("%d\t%s", 3*n, r.line())
			s.atMost(2.04, "functions", r.each(float64(r.functions)))
		})
	}
	s.show(t, "a third of the workers each runs the observers {a}, {a, b} and {b}: each change is for two functions")
}

// TestIdle counts the calls of workers that have nothing to do.
func TestIdle(t *testing.T) {
	t.Parallel()
	var s sheet
	s.add("workers\tcalls/s of each")
	for _, n := range size([]int{1, 8}, []int{1, 2, 8, 100}) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 0)
			for range n {
				w.start()
			}
			time.Sleep(time.Minute)
			since := w.counts()
			const span = 10 * time.Minute
			time.Sleep(span)
			calls := float64(w.counts().calls-since.calls) / span.Seconds() / float64(n)
			w.close()
			s.add("%d\t%.2f", n, calls)
			// Each second has 2/3 of a beat, of two calls, two fifths of a rescan, and a tenth of
			// a look at the catalog, of two calls.
			s.atMost(2, "calls/s", calls)
		})
	}
	s.show(t, "workers with nothing to do")
}

// TestWaitIdle lets one worker wait until all are idle, who have nothing to do, and then until
// they have handled what comes just before: changes, and a relay, which moves from worker to worker behind its looks.
func TestWaitIdle(t *testing.T) {
	t.Parallel()
	var s sheet
	s.add("workers\tfirst ms\tsecond ms\tall at once ms\tafter changes ms\tcalls of each")
	for _, n := range size([]int{1, 8, 40}, []int{1, 2, 8, 32, 100}) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, *function)
			w.relays = true
			for range n {
				w.start()
			}
			time.Sleep(time.Minute)
			since := w.counts()
			var took []time.Duration
			idle := func(all ...*process) {
				began := time.Now()
				errs := make([]error, len(all))
				var wg sync.WaitGroup
				for i, p := range all {
					wg.Go(func() { errs[i] = p.worker.WaitIdle(t.Context()) })
				}
				wg.Wait()
				require.NoError(t, errors.Join(errs...))
				took = append(took, time.Since(began))
			}
			one := w.processes[n/2]
			idle(one)
			idle(one)
			calls := float64(w.counts().calls-since.calls) / float64(n)
			idle(w.processes...)
			for range 3 * n {
				require.NoError(t, w.change())
			}
			w.beginRelay(100)
			idle(one)
			relayEnded := w.relayEnded()
			w.read()
			w.close() // or a bubble that fails has goroutines left
			require.True(t, relayEnded, "WaitIdle has returned while work moved")
			require.Zero(t, w.unread(), "WaitIdle has returned while there was work")
			s.add("%d\t%s\t%s\t%s\t%s\t%.1f", n, ms(took[0]), ms(took[1]), ms(took[2]), ms(took[3]), calls)
			for i, d := range took {
				s.within(2*time.Second, fmt.Sprint("wait ", i), d)
			}
		})
	}
	s.show(t, "one worker waits until all are idle, twice; then all of them at once; then one after changes")
}
