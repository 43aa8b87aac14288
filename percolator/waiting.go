package percolator

import (
	"container/heap"
	"context"
	"time"
)

// mostWaiting bounds how many paused jobs are remembered. A job over the bound is found
// by the next scan, and its run sees in the store that it must wait.
const mostWaiting = 1 << 16

// deferral is a job that is left alone for a while.
type deferral struct {
	job
	q       *queue
	until   time.Time
	seen    uint64 // the notifications that it is left alone for
	trouble int
	locked  bool // for somebody's lock
}

// deferralHeap has the pause that ends first at the top. Some pauses in it may have
// been ended early.
type deferralHeap []*deferral

func (h deferralHeap) Len() int           { return len(h) }
func (h deferralHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h deferralHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *deferralHeap) Push(x any)        { *h = append(*h, x.(*deferral)) }
func (h *deferralHeap) Pop() any {
	old := *h
	n := len(old) - 1
	p := old[n]
	old[n] = nil
	*h = old[:n]
	return p
}

// leaveAlone pauses a job. w.mu is held.
func (w *Worker) leaveAlone(p *deferral) {
	if len(w.waiting) >= mostWaiting || w.stopping {
		return
	}
	w.waiting[p.job] = p
	if p.locked {
		w.locked[p.cell.Table] = append(w.locked[p.cell.Table], p)
	}
	if len(w.deferred) > 2*len(w.waiting)+64 {
		// Most of them ended early, for a newer change.
		kept := w.deferred[:0]
		for _, old := range w.deferred {
			if w.waiting[old.job] == old {
				kept = append(kept, old)
			}
		}
		clear(w.deferred[len(kept):])
		w.deferred = kept
		heap.Init(&w.deferred)
	}
	heap.Push(&w.deferred, p)
	if w.deferred[0] == p {
		leaveToken(w.sooner)
	}
}

// forget ends a pause. w.mu is held.
func (w *Worker) forget(p *deferral) {
	delete(w.waiting, p.job)
	if p.locked {
		rest := w.locked[p.cell.Table]
		for i, other := range rest {
			if other == p {
				rest[i] = rest[len(rest)-1]
				rest[len(rest)-1] = nil
				w.locked[p.cell.Table] = rest[:len(rest)-1]
				break
			}
		}
	}
}

// goOn queues a job whose pause is over. w.mu is held.
func (w *Worker) goOn(p *deferral) {
	w.forget(p)
	w.enqueue(&task{job: p.job, q: p.q, seen: p.seen, trouble: p.trouble})
}

// resumeLocked queues the jobs of a table that wait for a lock. w.mu is held.
func (w *Worker) resumeLocked(table string) {
	for rest := w.locked[table]; len(rest) > 0; rest = w.locked[table] {
		w.goOn(rest[len(rest)-1])
	}
	w.dispatch()
}

// resume starts jobs when their pauses are over, without a scan for them.
func (w *Worker) resume(ctx context.Context) error {
	for {
		w.mu.Lock()
		first := w.firstDeferral()
		w.mu.Unlock()
		if first == nil {
			select {
			case <-w.sooner:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		woken, err := w.sleepOr(ctx, first.until.Sub(w.db.clock.Now()), w.sooner)
		if err != nil {
			return err
		}
		if woken {
			continue
		}
		w.mu.Lock()
		now := w.db.clock.Now()
		if now.Before(first.until) {
			now = first.until // the clock may be coarser than its sleeps
		}
		for p := w.firstDeferral(); p != nil && !p.until.After(now); p = w.firstDeferral() {
			w.goOn(p)
		}
		w.dispatch()
		w.mu.Unlock()
	}
}

// firstDeferral returns the pause that ends first, nil without any. w.mu is held.
func (w *Worker) firstDeferral() *deferral {
	for len(w.deferred) > 0 {
		if p := w.deferred[0]; w.waiting[p.job] == p {
			return p
		}
		heap.Pop(&w.deferred)
	}
	return nil
}
