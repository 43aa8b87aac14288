package percolator

import (
	"context"
	"time"
)

const (
	// lowWater is the number of waiting jobs of an observer at which the scanner
	// continues.
	lowWater = 32
	// queueLength is how many jobs of an observer may wait: those of a page, and those
	// that waited already when the page was read.
	queueLength = lookPage + lowWater
)

// job is a cell with one of the worker's observers. It is the unit that waits and
// runs: neither a slow observer of a cell nor one that fails holds up the others.
type job struct {
	cell Cell // stored
	o    *Observer
}

// task is a job that is queued or runs.
type task struct {
	job
	q       *queue
	running bool
	again   bool   // found again meanwhile, with other notifications
	seen    uint64 // the signature of the notifications that were seen last
	trouble int    // how often in a row the store failed
}

// queue has the jobs of one observer that are to run.
type queue struct {
	o       *Observer
	table   string // stored, like column
	column  string
	index   int // among the worker's observers of the column
	tasks   []*task
	running int
	left    bool // a scan found more than there was room for
}

// found queues a job that a scan has found. It does not if the job is queued or running
// already, or if it is paused and nothing has changed.
func (w *Worker) found(q *queue, c Cell, seen uint64) bool {
	if !w.wanted(q, c, seen) {
		return false
	}
	j := job{c, q.o}
	if p := w.waiting[j]; p != nil {
		w.forget(p)
	}
	return w.enqueue(&task{job: j, q: q, seen: seen})
}

// wanted reports whether a job that was found must be queued. w.mu is held.
func (w *Worker) wanted(q *queue, c Cell, seen uint64) bool {
	j := job{c, q.o}
	if t := w.jobs[j]; t != nil {
		if t.running && t.seen != seen {
			t.again, t.seen = true, seen
		}
		return false
	}
	// A newer change does not wait for the next attempt of an older one.
	p := w.waiting[j]
	return p == nil || p.seen != seen || !w.db.clock.Now().Before(p.until)
}

// enqueue adds a task to its queue, if there is room. w.mu is held.
func (w *Worker) enqueue(t *task) bool {
	if w.stopping {
		return false
	}
	if len(t.q.tasks) >= queueLength {
		t.q.left = true
		return false
	}
	w.tasks.Add(1)
	w.jobs[t.job] = t
	t.q.tasks = append(t.q.tasks, t)
	return true
}

// dispatch starts jobs while there are slots for them. w.mu is held.
func (w *Worker) dispatch() {
	for {
		q := w.nextQueue()
		if q == nil {
			return
		}
		t := q.tasks[0]
		q.tasks[0] = nil
		if q.tasks = q.tasks[1:]; len(q.tasks) <= lowWater {
			leaveToken(w.room[q.table])
			if q.left {
				q.left = false
				w.kickTable(q.table)
			}
		}
		t.running = true
		q.running++
		w.running++
		go w.deal(t)
	}
}

// nextQueue chooses the queue whose job is started next: the one whose observer has the
// fewest functions running. Some slots are kept for observers that have none running,
// so that slow functions never have all of them. w.mu is held.
func (w *Worker) nextQueue() *queue {
	free := w.config.Concurrency - w.running
	if free <= 0 || w.stopping || w.ctx.Err() != nil {
		return nil
	}
	idle := 0
	var best *queue
	for i := range w.list {
		q := w.list[(w.turn+i)%len(w.list)]
		if q.running == 0 {
			idle++
		}
		if len(q.tasks) > 0 && (best == nil || q.running < best.running) {
			best = q
		}
	}
	if best == nil || best.running > 0 && free <= min(idle, w.reserve()) {
		return nil
	}
	w.turn++
	return best
}

// reserve is how many slots are kept free for observers that have nothing running.
func (w *Worker) reserve() int {
	if w.config.Concurrency < 4 {
		return 0
	}
	return max(1, w.config.Concurrency/8)
}

// waitForRoom waits until an observer of the table has room for what a scan finds.
func (w *Worker) waitForRoom(ctx context.Context, table string) error {
	for {
		w.mu.Lock()
		room := false
		for _, q := range w.list {
			room = room || q.table == table && len(q.tasks) <= lowWater
		}
		w.mu.Unlock()
		if room {
			return ctx.Err()
		}
		select {
		case <-w.room[table]:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stopStarting drops what is queued.
func (w *Worker) stopStarting() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopping = true
	for _, q := range w.list {
		for _, t := range q.tasks {
			delete(w.jobs, t.job)
			w.tasks.Done()
		}
		q.tasks = nil
	}
	w.signalIdle()
}

// How long a job is left alone after the store failed, each time longer, or while a
// living transaction has its cell locked. The commit of that transaction wakes the
// worker, so the pause matters only if its owner dies.
const (
	troublePause     = 100 * time.Millisecond
	longTroublePause = 5 * time.Second
	lockedPause      = 50 * time.Millisecond
)

// deal runs a job until nothing is left to do, or until it must be left alone for a
// while.
func (w *Worker) deal(t *task) {
	defer w.tasks.Done()
	for attempt := 0; ; attempt++ {
		result, wait, err := w.attempt(w.runCtx, t)
		if err != nil && w.runCtx.Err() == nil && !fatal(err) {
			w.db.log.Warn("an observed cell could not be dealt with and will be tried again", "observer", t.o.Name, "cell", t.cell.public().String(), "err", err)
		}
		// A worker that stops finishes the runs that it has begun, even if that takes
		// another attempt. It begins nothing else.
		if w.ctx.Err() != nil && result != runConflict {
			result = runAbandoned
		}
		switch result {
		case runAgain:
			attempt = 0
			t.trouble = 0
			continue
		case runConflict:
			if w.db.clock.Sleep(w.runCtx, w.db.opt.retryWait.wait(attempt, w.db.rand)) == nil {
				continue
			}
			wait = 0
		case runLocked:
			wait = lockedPause
		case runTrouble:
			wait = Backoff{Min: troublePause, Max: longTroublePause}.wait(t.trouble, w.db.rand)
			t.trouble++
		case runDone, runAbandoned:
			wait = 0
		case runWaiting:
		}
		if w.endTask(t, result, wait) {
			return
		}
	}
}

// endTask ends the handling of a job, and pauses the job if wait is not 0. It returns
// false if the job was found again meanwhile and must be handled again.
func (w *Worker) endTask(t *task, result runResult, wait time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	again := t.again && result != runAbandoned && result != runTrouble
	t.again = false
	if again {
		return false
	}
	delete(w.jobs, t.job)
	t.q.running--
	w.running--
	if wait > 0 {
		w.leaveAlone(&deferral{job: t.job, q: t.q, until: w.db.clock.Now().Add(wait), seen: t.seen, trouble: t.trouble, locked: result == runLocked})
	}
	w.dispatch()
	w.signalIdle()
	return true
}

// queued reports whether a job for the cell, of any observer of this worker, still
// waits to run.
func (w *Worker) queued(c Cell) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.queuesOf(c) {
		if t := w.jobs[job{c, q.o}]; t != nil && !t.running {
			return true
		}
	}
	return false
}

// noteWork records that something happened that WaitIdle must know of.
func (w *Worker) noteWork() {
	w.mu.Lock()
	w.wakes++
	w.progress++
	w.mu.Unlock()
}

// signalIdle tells WaitIdle that nothing runs at the moment. w.mu is held.
func (w *Worker) signalIdle() {
	if len(w.jobs) > 0 {
		return
	}
	for ch := range w.idle {
		close(ch)
		delete(w.idle, ch)
	}
}
