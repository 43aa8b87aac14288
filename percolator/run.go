package percolator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// How a job runs, from top to bottom. An attempt looks at the cell in one view
// (view.go). It calls the observer's function, or clears notifications that every
// observer has seen. The function's writes commit together with the acknowledgment. A
// function that failed is called again later, or its run is parked (failure.go). A job
// that cannot go on now is paused (pause.go).

// runResult is what an attempt at a job has come to.
type runResult struct {
	next nextStep
	wait time.Duration // with runWaiting: until the next attempt
	err  error         // with runTrouble
}

// nextStep is what a worker does next about a job.
type nextStep int

const (
	runDone      nextStep = iota // nothing is left to do for the job's observer
	runAgain                     // look again at once
	runConflict                  // somebody was faster; look again soon
	runLocked                    // a living transaction has the cell locked
	runWaiting                   // the function failed; wait for its next attempt
	runTrouble                   // the store failed
	runAbandoned                 // the worker stops
)

func trouble(err error) runResult { return runResult{next: runTrouble, err: err} }

// How long a job is left alone after the store failed, each time longer, or while a
// living transaction has its cell locked. The commit of that transaction wakes the
// worker, so the pause matters only if its owner dies.
const (
	troublePause     = 100 * time.Millisecond
	longTroublePause = 5 * time.Second
	lockedPause      = 50 * time.Millisecond
)

// runJob attempts a job until nothing is left to do, or until the job must be left alone
// for a while.
func (w *Worker) runJob(t *task) {
	defer w.tasks.Done()
	defer func() {
		if t.exited != nil { // the goroutine ends, but not the job
			w.tasks.Add(1)
			go w.runJob(t)
		}
	}()
	for attempt := 0; ; attempt++ {
		r := w.resultOf(t)
		w.dropClaim(t)
		w.noteOpen(r.err)
		if r.err != nil && w.runCtx.Err() == nil && !fatal(r.err) {
			w.db.log.Warn("an observed cell could not be handled and will be tried again", "observer", t.o.Name, "cell", t.cell.public().String(), "err", r.err)
		}
		// A worker that stops finishes the runs that it has begun, even if that takes
		// another attempt. It begins nothing else.
		if w.ctx.Err() != nil && r.next != runConflict {
			r.next = runAbandoned
		}
		switch r.next {
		case runAgain:
			attempt = 0
			t.trouble = 0
			continue
		case runConflict:
			if w.ctx.Err() == nil && !w.owns(t.q, t.cell, w.now()) {
				r.next = runDone // whoever has the cell now was faster
				break
			}
			if w.db.clock.Sleep(w.runCtx, w.db.opt.retryWait.wait(attempt, w.db.rand)) == nil {
				continue
			}
		default:
		}
		if w.endJob(t, r.next, w.pauseAfter(t, r)) {
			return
		}
	}
}

// pauseAfter returns how long a job is left alone after an attempt, 0 for no pause.
func (w *Worker) pauseAfter(t *task, r runResult) time.Duration {
	switch r.next {
	case runWaiting:
		return r.wait
	case runLocked:
		return lockedPause
	case runTrouble:
		d := troubleWait.wait(t.trouble, w.db.rand)
		t.trouble++
		return d
	default:
		return 0
	}
}

// endJob ends the handling of a job, and pauses the job if wait is not 0. It returns
// false if the job was found again meanwhile and must be handled again.
func (w *Worker) endJob(t *task, last nextStep, wait time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	again := t.again && last != runAbandoned && last != runTrouble
	t.again = false
	if again {
		return false
	}
	delete(w.jobs, t.job)
	t.q.moved = w.db.clock.Now()
	t.q.note(t.q.moved.Sub(t.begunAt))
	t.q.running--
	w.running--
	if wait > 0 {
		w.pauseJob(&pausedJob{
			job: t.job, q: t.q, until: w.db.clock.Now().Add(wait), seen: t.seen, trouble: t.trouble, locked: last == runLocked, waits: last == runWaiting, turn: t.turn, other: t.other,
		})
	}
	w.dispatch()
	w.signalIdle()
	return true
}

// attempt looks at a job's cell once and does what there is to do: at most one run of
// the observer, or the removal of the cell's notifications.
func (w *Worker) attempt(ctx context.Context, t *task) runResult {
	if r, held := w.held(t); held {
		return r
	}
	tx, err := w.db.newTxn(ctx, false, nil)
	if err != nil {
		return trouble(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	view, blocked, err := w.currentView(ctx, t.cell, t.o, &tx.snapshot)
	switch {
	case err != nil:
		return trouble(err)
	case blocked:
		return runResult{next: runLocked}
	}
	i := slices.Index(view.names, t.o.id)
	w.mu.Lock()
	// Nothing tells of a change: the hint was of another column, or of a notification that has gone
	// or is yet to come.
	mistaken := t.seen == unread && len(view.notified) == 0
	// A notification above the snapshot is not among them: the look that finds it must have the
	// job run again.
	t.seen = w.rested.signature(view.cell, view.names, view.seen)
	if !t.fresh {
		t.q.noteVain(i >= 0 && (mistaken || !view.due(i)))
	}
	w.mu.Unlock()
	switch {
	case i < 0:
		leaveToken(w.recheck) // the observer was removed
	case mistaken:
		return runResult{next: runDone}
	case view.change != 0 && !view.covered(i):
		if tx.start < view.since[i] {
			return runResult{next: runAgain} // its acknowledgment would not count
		}
		if next := view.nextAttempt(i); next > tx.start {
			return runResult{next: runWaiting, wait: view.atMost(max(next.Sub(tx.start), leastPause))}
		}
		if wait := w.awaitClaim(t, view, tx.start); wait > 0 {
			return runResult{next: runWaiting, wait: wait}
		}
		if wait := w.letThrough(t); wait > 0 {
			return runResult{next: runWaiting, wait: wait}
		}
		w.calling(ctx, t)
		return w.runOrExit(ctx, t, tx, i, view)
	case view.change == 0 && view.replayed(i):
		return w.dropRequest(ctx, t.o, view)
	}
	return w.clearNotifications(ctx, view)
}

// clearNotifications removes the cell's notifications if every observer has seen its
// newest change. Otherwise they wait for other observers, of this worker or of others. If
// they tell of a timer that is due later, the job waits for it.
func (w *Worker) clearNotifications(ctx context.Context, view *cellView) runResult {
	done := runResult{next: runDone}
	if view.waits() {
		done = runResult{next: runWaiting, wait: view.atMost(view.untilTimer())}
	}
	if len(view.seen) == 0 || !view.othersCovered(-1) {
		w.skipUntilChanged(view)
		return done
	}
	if err := w.dropSeenTimer(ctx, view); err != nil {
		return trouble(err)
	}
	c, edits := view.cell, view.removal()
	if len(edits) == 0 {
		return done
	}
	if _, err := w.db.removeNotifications(ctx, c.rowName(), edits); err != nil {
		return trouble(fmt.Errorf("clearing the notifications of %v: %w", c.public(), err))
	}
	w.db.count.observerCleared.Add(1)
	w.noteWork()
	return done
}

// run calls observer i of the view, o, and commits the function's writes with the
// acknowledgment and the removal of the notifications.
func (w *Worker) run(ctx context.Context, tx *Txn, o *Observer, i int, view *cellView) (r runResult) {
	ctx, t := w.traceRun(ctx, o, i, view)
	tx.trace = t
	defer func() { t.endRun(r) }()
	attempt := 1
	if f := &view.failures[i]; f.Change == view.change {
		attempt += f.Attempts
	}
	if t != nil {
		t.attempts = attempt
	}
	if o.Isolation != DefaultIsolation {
		tx.opt.isolation = o.Isolation
	}
	tx.run = &runOf{observer: o.id, name: o.Name, cell: view.cell, since: view.since[i], begun: view.began(i), attempt: int32(min(attempt, math.MaxInt32))} //nolint:gosec // bounded
	if err := w.countHops(tx.run, o, i, view); err != nil {
		return w.failed(ctx, o, view, err)
	}
	tx.prefetched(o, view)
	change := &Change{Cell: view.cell.public()}
	if o.OnChange != nil {
		var err error
		if change, err = w.change(ctx, tx, i, view); err != nil {
			return w.failed(ctx, o, view, readFailed(ctx, err))
		}
	}
	if change.Due = view.firedFor(i); !change.Due.IsZero() {
		w.noteLateness(ctx, tx, view)
	}
	err := w.call(ctx, tx, o, change)
	if err == nil {
		err = w.lockUnchanged(ctx, tx, view)
	}
	removed := false
	if err == nil {
		removed, err = tx.cover(i, view)
	}
	if err != nil {
		return w.failed(ctx, o, view, err)
	}
	tables := w.changes(tx)
	if err := tx.Commit(ctx); err != nil {
		return w.notCommitted(ctx, tx, o, view, err)
	}
	w.lastHops.note(tx, o, view)
	w.db.count.observerRuns.Add(1)
	w.succeeded(o, view.cell)
	w.noteWork()
	for _, table := range tables {
		w.kickTable(table)
	}
	if !view.waits() && (removed || w.queued(view.cell)) {
		// Either every observer is covered and the notifications are removed; a newer
		// one is found by a scan of its own. Or another observer's job is queued, and
		// will read the cell.
		return runResult{next: runDone}
	}
	// There is a newer change, or other observers have yet to see this one, or there were
	// too many notifications for one commit, and the next look removes the rest. Or a near
	// timer waits, and the job must be left alone until that is due.
	return runResult{next: runAgain}
}

// call calls an observer's function. A panic becomes an error.
func (w *Worker) call(ctx context.Context, tx *Txn, o *Observer, change *Change) error {
	w.mu.Lock()
	w.progress++
	w.mu.Unlock()
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Timeout)
		defer cancel()
	}
	tx.lent = true
	err := unlessPanics("the observer's function", func() error { return w.callWithin(ctx, tx, o, change) })
	tx.lent = false
	if tx.done && (err == nil || storesFault(err) || errors.Is(err, ErrTxnDone)) {
		return errors.New("percolator: the observer's function ended its transaction")
	}
	return err
}

// cover makes the transaction one after which observer i has seen what the view shows: it acknowledges that and consumes the timer.
// If no other observer has yet to see it, the notifications are removed, as many as one mutation may remove. removed tells whether that is all of them.
// Those that are left make nobody run again: the acknowledgment covers them.
func (tx *Txn) cover(i int, view *cellView) (removed bool, err error) {
	// Else a function that fits would not any more, once it has failed: its record goes with its success.
	tx.unlimited = true
	defer func() { tx.unlimited = false }()
	if err := tx.acknowledge(i, view); err != nil {
		return false, err
	}
	if err := tx.consumeTimer(i, view); err != nil {
		return false, err
	}
	if !view.othersCovered(i) {
		return false, nil
	}
	edits := view.removal()
	// Half of what a mutation may hold is left to the commit itself.
	most := min(len(edits), tx.db.fitting(tx.db.step.Bytes/2, edits))
	tx.extra = map[rowName][]rowstore.Edit{view.cell.rowName(): edits[:most]}
	return most == len(edits), nil
}

// acknowledge writes that observer i of a view has seen the cell's newest change, and
// removes its failure record.
func (tx *Txn) acknowledge(i int, view *cellView) error {
	c, observer := view.cell, view.names[i]
	ack := Cell{c.Table, c.Row, format.AckColumn(observer, c.Column)}
	if view.ackedAt[i] == 0 && view.ackFree[i] {
		tx.noteAbsent(ack)
	}
	if err := tx.put(ack, format.KindPut, format.EncodeAck(tx.start)); err != nil {
		return err
	}
	if view.recorded[i] {
		return tx.forgetFailure(observer, c, &view.failures[i])
	}
	return nil
}

// notCommitted judges why the commit of a run failed.
func (w *Worker) notCommitted(ctx context.Context, tx *Txn, o *Observer, view *cellView, err error) runResult {
	switch {
	case errors.Is(err, ErrConflict):
		w.db.count.observerConflicts.Add(1)
		return runResult{next: runConflict}
	case errors.Is(err, ErrTooLarge), errors.Is(err, ErrInvalid), errors.Is(err, ErrNotObserved), errors.Is(err, ErrTxnTooOld):
		return w.failed(ctx, o, view, err)
	case errors.Is(err, ErrIndexed), errors.As(err, new(*upkeepError)):
		// The function has written what cannot be indexed. It would write the same again.
		return w.failed(ctx, o, view, err)
	case tx.storeFailed:
		// The function went on after a read that failed.
		return w.failed(ctx, o, view, err)
	}
	return trouble(fmt.Errorf("committing a run of observer %q for %v: %w", o.Name, view.cell.public(), err))
}

// changes lists the tables in which a run sets cells that this worker observes. While the
// push works it lists none, because the push will tell of them.
func (w *Worker) changes(tx *Txn) []string {
	if w.listens() {
		return nil
	}
	var tables []string
	note := func(c Cell) {
		if len(w.queuesOf(c)) > 0 && !slices.Contains(tables, c.Table) {
			tables = append(tables, c.Table)
		}
	}
	for i := range tx.writes.list {
		c := tx.writes.list[i].cell
		if column, ok := format.SplitTimerColumn(c.Column); ok {
			c.Column = column
		}
		note(c)
	}
	for _, c := range tx.weak {
		note(c)
	}
	return tables
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

// noteWork records that there was something to do.
func (w *Worker) noteWork() {
	w.mu.Lock()
	w.progress++
	w.mu.Unlock()
}
