package percolator

import (
	"container/heap"
	"context"
	"strings"
	"time"
)

// mostPaused bounds how many paused jobs are remembered, at some 300 bytes each. A job over the
// bound is found by a later scan. If it waits for its next attempt, scans before that pass over it
// (rested.go).
const mostPaused = 1 << 14

// pausedJob is a job that is left alone for a while.
type pausedJob struct {
	job
	q       *queue
	until   time.Time
	seen    uint64 // the notifications that it is left alone for
	trouble int
	locked  bool      // for somebody's lock
	waits   bool      // for its next attempt
	turn    time.Time // that of the task
	other   sighting  // that of the task
}

// pauseHeap has the pause that ends first at the top. Some pauses in it may have
// been ended early.
type pauseHeap []*pausedJob

func (h pauseHeap) Len() int           { return len(h) }
func (h pauseHeap) Less(i, j int) bool { return h[i].until.Before(h[j].until) }
func (h pauseHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *pauseHeap) Push(x any)        { *h = append(*h, x.(*pausedJob)) }
func (h *pauseHeap) Pop() any {
	old := *h
	n := len(old) - 1
	p := old[n]
	old[n] = nil
	*h = old[:n]
	return p
}

// pauseJob pauses a job. w.mu is held.
func (w *Worker) pauseJob(p *pausedJob) {
	if w.stopping {
		return
	}
	if len(w.paused) >= mostPaused {
		if bit := p.q.bit(); p.waits && bit != 0 {
			w.rested.put(p.cell, p.seen, bit|waits, p.until, w.db.clock.Now())
		}
		return
	}
	// The names of a cell that was found may be parts of all that a scan has read.
	p.cell = Cell{p.q.table, strings.Clone(p.cell.Row), p.q.column}
	w.paused[p.job] = p
	if p.locked {
		w.locked[p.cell.Table] = append(w.locked[p.cell.Table], p)
	}
	if len(w.pauses) > 2*len(w.paused)+64 {
		// Most of them ended early, for a newer change.
		kept := w.pauses[:0]
		for _, old := range w.pauses {
			if w.paused[old.job] == old {
				kept = append(kept, old)
			}
		}
		clear(w.pauses[len(kept):])
		w.pauses = kept
		heap.Init(&w.pauses)
	}
	heap.Push(&w.pauses, p)
	if w.pauses[0] == p {
		leaveToken(w.sooner)
	}
}

// dropPause removes a pause, and does not queue its job. w.mu is held.
func (w *Worker) dropPause(p *pausedJob) {
	delete(w.paused, p.job)
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

// endPause queues a job whose pause is over. w.mu is held.
func (w *Worker) endPause(p *pausedJob) {
	w.dropPause(p)
	w.enqueue(&task{job: p.job, q: p.q, seen: p.seen, trouble: p.trouble, turn: p.turn, other: p.other})
}

// resumeLocked queues the jobs of a table that wait for a lock. w.mu is held.
func (w *Worker) resumeLocked(table string) {
	for rest := w.locked[table]; len(rest) > 0; rest = w.locked[table] {
		w.endPause(rest[len(rest)-1])
	}
	w.dispatch()
}

// endPauses starts jobs when their pauses are over, without a scan for them.
func (w *Worker) endPauses(ctx context.Context) error {
	for {
		w.mu.Lock()
		first := w.firstPause()
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
		for p := w.firstPause(); p != nil && !p.until.After(now); p = w.firstPause() {
			w.endPause(p)
		}
		w.dispatch()
		w.mu.Unlock()
	}
}

// firstPause returns the pause that ends first, nil without any. w.mu is held.
func (w *Worker) firstPause() *pausedJob {
	for len(w.pauses) > 0 {
		if p := w.pauses[0]; w.paused[p.job] == p {
			return p
		}
		heap.Pop(&w.pauses)
	}
	return nil
}
