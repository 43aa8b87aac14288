package percolator

import (
	"context"
	"slices"
	"time"
)

// The jobs that wait to run, and the slots in which they run. Finding (find.go) hands
// cells over by wanted and found, and waits in waitForRoom. dispatch starts runs
// (run.go), and asks for another look once a queue has room again.

const (
	// lowWater is the number of waiting jobs of an observer at which the scanner
	// continues.
	lowWater = 128
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
	fresh   bool   // a push told of it
	seen    uint64 // the signature of the notifications that were seen last, or unread
	trouble int    // how often in a row the store failed

	turn time.Time // when it may run by its observer's rate (awaitTurn), zero if that has not told it to wait

	begunAt  time.Time // when it was started
	calledAt time.Time // when its function was called, zero before
	claimed  time.Time // when its cell was claimed last, zero without a claim

	claims []Timestamp // the ends of its claims that may be in the store
	other  sighting    // of the claim of another worker's run

	exited *runResult // what an attempt has come to that has ended its goroutine, nil for none
}

// queue has the jobs of one observer that are to run.
type queue struct {
	o       *Observer
	table   string // stored, like column
	column  string
	index   int     // among the worker's observers of the column
	tasks   []*task // those that a look at all rows has found
	fresh   []*task // those that pushes told of
	turned  bool    // the job that was started last was of fresh
	running int
	begun   uint64 // calls of the function, counted before they begin
	left    bool   // a scan found more than there was room for
	paused  bool   // by the catalog
	aside   bool   // it is a periodic whose schedule does not count
	breaker breaker
	pacer   pacer
	vain    vain // of what scans of all rows find lately

	moved time.Time     // when a job began or ended last
	takes time.Duration // how long jobs take
	stuck bool          // the worker has told others that it cannot get on with them
}

// found queues a job that a scan has found. It does not if the job is queued or running
// already, or if it is paused and nothing has changed. fresh tells that a push told of it.
func (w *Worker) found(q *queue, c Cell, seen uint64, fresh bool) bool {
	if !w.wanted(q, c, seen) {
		return false
	}
	j := job{c, q.o}
	t := &task{job: j, q: q, fresh: fresh, seen: seen}
	if p := w.paused[j]; p != nil {
		t.other = p.other
		w.dropPause(p)
	}
	return w.enqueue(t)
}

// wanted reports whether a job that was found must be queued. w.mu is held.
func (w *Worker) wanted(q *queue, c Cell, seen uint64) bool {
	if q.paused {
		return false
	}
	j := job{c, q.o}
	if t := w.jobs[j]; t != nil {
		// A hint may tell of what came after the view of the run.
		if t.running && (seen == unread || t.seen != seen) {
			t.again, t.seen = true, seen
		}
		return false
	}
	p := w.paused[j]
	if p == nil {
		return true
	}
	now := w.db.clock.Now()
	// A newer change does not wait for the next attempt of an older one, but for the turn that its cell has by the observer's rate: the
	// job reads the newest change then. A cell that changes all the time would else take one turn after the other, and leave none to others.
	return !now.Before(p.turn) && (p.seen != seen || !now.Before(p.until))
}

// enqueue adds a task to its queue, if there is room. w.mu is held.
func (w *Worker) enqueue(t *task) bool {
	if w.stopping || t.q.paused {
		return false
	}
	waiting := t.q.waiting(t.fresh)
	if len(*waiting) >= queueLength {
		t.q.left = true
		return false
	}
	w.tasks.Add(1)
	w.jobs[t.job] = t
	*waiting = append(*waiting, t)
	return true
}

// waiting returns the jobs that a push told of, or the others.
func (q *queue) waiting(fresh bool) *[]*task {
	if fresh {
		return &q.fresh
	}
	return &q.tasks
}

// waits counts the jobs that are to be started.
func (q *queue) waits() int { return len(q.tasks) + len(q.fresh) }

// next takes the job that is to be started next. Those that pushes told of and those of the
// backlog take turns, so that neither waits for all of the others.
func (q *queue) next() *task {
	q.turned = len(q.fresh) > 0 && (!q.turned || len(q.tasks) == 0)
	waiting := q.waiting(q.turned)
	t := (*waiting)[0]
	(*waiting)[0] = nil
	*waiting = (*waiting)[1:]
	return t
}

// dispatch starts jobs while there are slots for them. It drops those whose cells have
// come to belong to another worker since they were found. w.mu is held.
func (w *Worker) dispatch() {
	now, at := w.db.clock.Now(), w.now()
	for {
		q := w.nextQueue()
		if q == nil {
			return
		}
		t := q.next()
		if len(*q.waiting(t.fresh)) <= lowWater {
			leaveToken(w.roomOf(q.table, t.fresh))
		}
		// The look that finds what was left is one at all rows. It needs room for them, or it would
		// be repeated for each job that a push tells of.
		if q.left && len(q.tasks) <= lowWater {
			q.left = false
			w.kickTable(q.table)
		}
		if !w.owns(q, t.cell, at) {
			delete(w.jobs, t.job)
			w.tasks.Done()
			w.signalIdle()
			continue
		}
		t.running = true
		t.begunAt, q.moved = now, now
		q.running++
		w.running++
		go w.runJob(t)
	}
}

// nextQueue chooses the queue whose job is started next: of those that have a place, the
// one whose observer has the fewest functions running. w.mu is held.
func (w *Worker) nextQueue() *queue {
	if w.stopping || w.ctx.Err() != nil {
		return nil
	}
	free := w.freePlaces()
	var best *queue
	for i := range w.list {
		q := w.list[(w.turn+i)%len(w.list)]
		if q.waits() > 0 && free.allow(q) && (best == nil || q.running < best.running) {
			best = q
		}
	}
	if best != nil {
		w.turn++
	}
	return best
}

// hasPlace tells whether a job of the queue could start now. w.mu is held.
func (w *Worker) hasPlace(q *queue) bool { return w.freePlaces().allow(q) }

// places are those that observers without a limit of their own share.
type places struct {
	free int
	kept int // of these: for observers that have nothing running
}

// freePlaces counts the places that observers share. From four on, some are kept for
// observers that have nothing running, so that slow functions never have all of them. w.mu
// is held.
func (w *Worker) freePlaces() places {
	p, idle := places{free: w.config.Concurrency}, 0
	for _, q := range w.list {
		if q.sharesPlaces() {
			p.free -= q.running
			if q.running == 0 {
				idle++
			}
		}
	}
	if w.config.Concurrency >= 4 {
		p.kept = min(idle, max(1, w.config.Concurrency/8))
	}
	return p
}

// allow tells whether a job of the queue could start.
func (p places) allow(q *queue) bool {
	if !q.sharesPlaces() {
		return q.running < q.o.Concurrency
	}
	return p.free > 0 && (q.running == 0 || p.free > p.kept)
}

// sharesPlaces tells whether the observer has no places of its own.
func (q *queue) sharesPlaces() bool { return q.o.Concurrency == 0 }

// limit is how many functions of the observer the worker can run at once.
func (w *Worker) limit(q *queue) int {
	if q.sharesPlaces() {
		return w.config.Concurrency
	}
	return q.o.Concurrency
}

// roomOf returns where a token is left when a queue of the table has room again, for what
// pushes tell of or for the rest.
func (w *Worker) roomOf(table string, fresh bool) chan struct{} {
	if fresh {
		return w.freshRoom[table]
	}
	return w.room[table]
}

// waitForRoom waits until an observer of the table has room for what a scan finds.
func (w *Worker) waitForRoom(ctx context.Context, table string, fresh bool) error {
	for {
		w.mu.Lock()
		room := false
		for _, q := range w.list {
			room = room || q.table == table && len(*q.waiting(fresh)) <= lowWater
		}
		w.mu.Unlock()
		if room {
			return ctx.Err()
		}
		select {
		case <-w.roomOf(table, fresh):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitForThese waits until one of some queues has room again, after a page that took some time to read. But it does not wait long:
// behind the backlog of these, there may be something for other observers that have room. Without this wait, the walk would go on through the backlog
// and find nothing that it can queue, over and over. Nor does it wait once a queue that the page has fed wants more. again tells that there is room.
func (l *looker) waitForThese(ctx context.Context, full, fed []*queue, took time.Duration) (again bool, err error) {
	w := l.w
	began := w.db.clock.Now()
	defer func() { l.waited += w.db.clock.Now().Sub(began) }()
	for {
		w.mu.Lock()
		low := func(q *queue) bool { return len(*q.waiting(l.fresh)) <= lowWater }
		room, wanting := slices.ContainsFunc(full, low), slices.ContainsFunc(fed, low)
		w.mu.Unlock()
		rest := min(vainLooks*took, longestPageRest) - w.db.clock.Now().Sub(began)
		if room || wanting || rest <= 0 {
			return room, ctx.Err()
		}
		woken, err := w.sleepOr(ctx, rest, w.roomOf(l.table, l.fresh))
		if err != nil || !woken { // the clock may stand still
			return false, err
		}
	}
}

// stopStarting drops what is queued.
func (w *Worker) stopStarting() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopping = true
	for _, q := range w.list {
		for q.waits() > 0 {
			delete(w.jobs, q.next().job)
			w.tasks.Done()
		}
	}
	w.signalIdle()
}
