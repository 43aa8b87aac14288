package simulate

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Workers over a store without a push, as TiKV is, and Postgres behind a pooler. They find what is new by polling.

// withoutPush is a store that hides its push. The database asks for abilities at the root of what it is given, so this lies
// there, over all else.
type withoutPush struct {
	rowstore.Store
	has rowstore.Abilities
}

func hidePush(s rowstore.Store) rowstore.Store {
	has := rowstore.AbilitiesOf(s)
	has.Waker = nil
	return &withoutPush{s, has}
}

// Abilities implements rowstore.Decorator.
func (s *withoutPush) Abilities() rowstore.Abilities { return s.has }

// scans counts the looks of all workers.
func (w *world) scans() (n uint64) {
	for _, p := range w.processes {
		n += p.db.Stats().NotifyScans
	}
	return n
}

// TestIdleWithoutPush counts the looks of workers that have nothing to do and hear of nothing.
func TestIdleWithoutPush(t *testing.T) {
	t.Parallel()
	var s sheet
	s.add("workers\tlooks/s of all\tcalls/s of each")
	for _, n := range size([]int{1, 20, 60}, []int{1, 2, 8, 40, 100, 300}) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 0)
			w.quiet = true
			for range n {
				w.start()
			}
			time.Sleep(15 * time.Second) // they have joined
			since, scans := w.counts(), w.scans()
			const span = time.Minute
			time.Sleep(span)
			looks := float64(w.scans()-scans) / span.Seconds()
			calls := float64(w.counts().calls-since.calls) / span.Seconds() / float64(n)
			w.close()
			s.add("%d\t%.1f\t%.2f", n, looks, calls)
			s.atMost(min(4*float64(n), 200), "looks/s", looks) // a sleep is never shorter than it should be
			// Beside the looks, each second has 2/3 of a beat, and a tenth of a look at the catalog, of two calls each.
			s.atMost(6, "calls/s", calls)
		})
	}
	s.show(t, "workers with nothing to do, over a store without a push")
}

// TestLiveWithoutPush lets changes come. They wait for the next look, and no longer.
func TestLiveWithoutPush(t *testing.T) {
	t.Parallel()
	var s sheet
	s.add("workers\t" + resultHead)
	for _, n := range size([]int{1, 40}, []int{1, 8, 40, 100, 300}) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 0)
			w.quiet = true
			for range n {
				w.start()
			}
			time.Sleep(time.Minute)
			since := w.counts()
			stop := w.load(20)
			time.Sleep(size(2*time.Second, *lasts))
			stop()
			until := w.counts()
			w.wait(0)
			r := w.result(since, until)
			w.close()
			s.add("%d\t%s", n, r.line())
			s.atMost(1.01, "functions", r.each(float64(r.functions)))
			s.within(max(250*time.Millisecond, time.Duration(n)*5*time.Millisecond)+20*(*latency), "slowest", r.slowest)
		})
	}
	s.show(t, "20 changes a second in all, over a store without a push")
}

// flood leaves cells that wait for an observer that nobody runs any more, and that all other observers have seen.
func (w *world) flood(cells int) {
	w.Helper()
	first := w.start()
	time.Sleep(10 * time.Second)
	foreign := w.observers[len(w.observers)-1]
	w.observers = w.observers[:len(w.observers)-1]
	require.NoError(w, first.stop())
	second := w.start()
	time.Sleep(10 * time.Second)
	for made := 0; made < cells; {
		var rows []string
		for ; made < cells && len(rows) < 500; made++ {
			rows = append(rows, w.newChange())
		}
		require.NoError(w, w.source.db.Update(w.Context(), func(tx *percolator.Txn) error {
			var err error
			for _, row := range rows {
				err = errors.Join(err, tx.Set(percolator.Cell{Table: "t", Row: row, Column: "in"}, []byte("1")))
			}
			return err
		}))
	}
	for left := w.unhandled(); left > 0; left = w.unhandled() {
		time.Sleep(100 * time.Millisecond)
	}
	require.NoError(w, second.stop())
	backlog, err := w.source.db.Backlog(w.Context(), 10)
	require.NoError(w, err)
	require.Positive(w, backlog.Cells, "they wait for %s", foreign)
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.changes)
}

// TestFloodWithoutPush has very many cells wait for an observer that nobody runs, in a store whose scans take long. The store is
// not kept busy, what is new is found, and WaitIdle sees that nothing is left, and that something is.
func TestFloodWithoutPush(t *testing.T) {
	t.Parallel()
	const (
		page = 256
		each = 5000 // cells for each worker, above those from which on a walk counts as a long one
	)
	var s sheet
	s.add("workers\tcells\twalk\tof the time\twaited ms\tslowest ms")
	for _, n := range size([]int{1, 2}, []int{1, 4, 16}) {
		for _, walk := range size([]time.Duration{2 * time.Second}, []time.Duration{2 * time.Second, 20 * time.Second}) {
			synctest.Test(t, func(t *testing.T) {
				cells := n * each
				w := newWorld(t, 0, "copy", "foreign")
				w.quiet = true
				w.flood(cells)
				w.scanTakes = walk * page / each
				busy, idle, r := w.besideFlood(n, walk)
				s.add("%d\t%d\t%v\t%.2f\t%s\t%s", n, cells, walk, busy, ms(idle), ms(r.slowest))
				// The rest is as long as the walk, and 10 s at most.
				s.atMost(1.1*walk.Seconds()/(walk+min(walk, 10*time.Second)).Seconds(), "of the time", busy)
				// Two answers of everybody. And what waits in the slots of others is looked at once, in two calls for each cell.
				s.within(4*time.Second+time.Duration(2*(cells-each))*(*latency)*5/4, "WaitIdle", idle)
				s.within(2*walk+min(walk, 10*time.Second), "slowest", r.slowest)
			})
		}
	}
	s.show(t, "cells wait for an observer that nobody runs, 5,000 for each worker, over a store without a push whose scans take long")
}

// besideFlood lets n workers rest beside what waits, and then has changes come. busy is the part of its time in which each scans, and idle
// how long WaitIdle takes of a worker that has little to do with it.
func (w *world) besideFlood(n int, walk time.Duration) (busy float64, idle time.Duration, r result) {
	w.Helper()
	for range n {
		w.start()
	}
	time.Sleep(5 * walk) // they have seen it all
	w.scanned.Store(0)
	const walks = 20
	time.Sleep(walks * walk)
	busy = float64(w.scanned.Load()) * float64(w.scanTakes) / float64(walks*walk) / float64(n)

	last := w.processes[len(w.processes)-1].worker
	began := time.Now()
	err := last.WaitIdle(w.Context())
	idle = time.Since(began)
	for range 10 {
		require.NoError(w, w.change())
		time.Sleep(walk / 3)
	}
	time.Sleep(3 * walk)
	w.read()
	unread := w.unread()
	r = w.result(counts{}, counts{})
	require.NoError(w, w.change())
	err = errors.Join(err, last.WaitIdle(w.Context()))
	w.read()
	left := w.unread()
	w.close() // or a bubble that fails has goroutines left
	require.NoError(w, err)
	require.Zero(w, unread, "a change is not found beside what waits")
	require.Zero(w, left, "WaitIdle has returned while there was work")
	return busy, idle, r
}

// TestWaitIdleWithoutPush is TestWaitIdle where members hear of a barrier at their next beats.
func TestWaitIdleWithoutPush(t *testing.T) {
	t.Parallel()
	var s sheet
	s.add("workers\tfirst ms\tsecond ms\tall at once ms\tafter changes ms")
	for _, n := range size([]int{1, 8, 16}, []int{1, 2, 8, 40, 100}) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, *function)
			w.quiet, w.relays = true, true
			for range n {
				w.start()
			}
			time.Sleep(time.Minute)
			var took []time.Duration
			idle := func(all ...*process) {
				began := time.Now()
				errs := make([]error, len(all))
				var wg sync.WaitGroup
				for i, p := range all {
					wg.Go(func() { errs[i] = p.worker.WaitIdle(context.WithoutCancel(t.Context())) })
				}
				wg.Wait()
				require.NoError(t, errors.Join(errs...))
				took = append(took, time.Since(began))
			}
			one := w.processes[n/2]
			idle(one)
			idle(one)
			idle(w.processes...)
			for range 3 * n {
				require.NoError(t, w.change())
			}
			const moves = 20
			w.beginRelay(moves)
			idle(one)
			relayEnded := w.relayEnded()
			w.read()
			unread := w.unread()
			w.close()
			require.True(t, relayEnded, "WaitIdle has returned while work moved")
			require.Zero(t, unread, "WaitIdle has returned while there was work")
			s.add("%d\t%s\t%s\t%s\t%s", n, ms(took[0]), ms(took[1]), ms(took[2]), ms(took[3]))
			// Two answers of everybody: the first at a beat, in half a lease, and the second soon after it.
			s.within(2*time.Second, "wait 0", took[0])
			s.within(time.Second, "wait 1", took[1])
			s.within(2*time.Second, "wait 2", took[2])
			poll := max(250*time.Millisecond, time.Duration(n)*5*time.Millisecond)
			s.within(4*time.Second+moves*(poll+10*(*latency)), "wait after changes", took[3])
		})
	}
	s.show(t, "one worker waits until all are idle, over a store without a push, twice; then all of them at once; then one after changes")
}
