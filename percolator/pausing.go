package percolator

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Observers that are paused: by somebody, for all workers (here), or by a worker, for itself,
// because nearly all their runs fail (breaker.go). Their notifications and acknowledgments stay as they are, so
// nothing is lost: the changes wait, and several of one cell become one run.

// ErrObserverPaused: what is waited for does not come, because the observer is paused.
var ErrObserverPaused = errors.New("percolator: the observer is paused")

// PauseObserver stops the runs of every observer of that name, in all workers, until
// ResumeObserver. It is stored in the catalog, so it also holds for workers that start later. A worker knows within
// milliseconds if its store has a push (rowstore.Waker), and one catalog lease later at the latest; runs that have
// begun by then go on, and may take effect. Changes wait, also those to come, and
// are notified as ever. A sweep for a new observer goes on.
//
// WaitIdle does not wait for a paused observer, as it does not for parked runs; WaitObserved returns
// ErrObserverPaused. RemoveObserver ends the pause with the registration. It is no error if the observer is paused already.
// If there is none of that name, the error matches ErrNotObserved. Other errors: ErrClosed, those
// of the context and of the store. After such an error the observer may be paused or not; call it again.
//
// From the first pause on, programs of versions that do not know of pauses get ErrFormat, also those
// that have the data open.
func (db *DB) PauseObserver(ctx context.Context, name string) error {
	return db.setPaused(ctx, "pausing", name, true)
}

// ResumeObserver ends the pause of every observer of that name. Workers know as soon as they know of a pause,
// and run what waits. It is no error if the observer is not paused. Errors are those of PauseObserver.
func (db *DB) ResumeObserver(ctx context.Context, name string) error {
	return db.setPaused(ctx, "resuming", name, false)
}

func (db *DB) setPaused(ctx context.Context, what, name string, paused bool) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	_, err := db.changeCatalog(ctx, func(v *catalogView) (changed bool, err error) {
		found := false
		for i := range v.Observers {
			if o := &v.Observers[i]; o.Has(name) {
				found = true
				changed = changed || o.Paused != paused
				o.Paused = paused
			}
		}
		if !found {
			return false, fmt.Errorf("%w: there is no observer of that name", ErrNotObserved)
		}
		v.Controlled = v.Controlled || changed
		return changed, nil
	})
	if err != nil {
		return fmt.Errorf("percolator: %s the observer %q: %w", what, name, err)
	}
	return nil
}

// paused tells whether an observer of a stored cell's column is paused.
func (v *catalogView) paused(observer string, c Cell) bool {
	for i := range v.Observers {
		if o := &v.Observers[i]; o.Paused && o.Is(observer, c.Table, c.Column) {
			return true
		}
	}
	return false
}

// notePaused goes by what the catalog says of this worker's observers: it drops what waits to
// run for those that are paused, and looks for what waits for those that are resumed.
func (w *Worker) notePaused(v *catalogView) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.list {
		r := w.record(v, q)
		if r == nil || r.Paused == q.paused {
			continue
		}
		if q.paused = r.Paused; q.paused {
			w.db.log.Warn("an observer is paused; its changes wait until it is resumed", "observer", q.o.Name)
			for q.waits() > 0 {
				delete(w.jobs, q.next().job)
				w.tasks.Done()
			}
			// A scan may wait for room, for other observers.
			leaveToken(w.roomOf(q.table, false))
			leaveToken(w.roomOf(q.table, true))
			w.signalIdle()
			continue
		}
		w.db.log.Info("an observer is resumed", "observer", q.o.Name)
		w.resume(q)
	}
}

// resume queues the jobs of a queue that were left alone for a while, and looks for others. A job
// that is running may be about to leave its cell alone: it looks again, since a look passes over it.
// w.mu is held.
func (w *Worker) resume(q *queue) {
	for _, t := range w.jobs {
		if t.q == q && t.running {
			t.again = true
		}
	}
	for _, p := range w.paused {
		if p.q == q {
			w.endPause(p)
		}
	}
	w.kickTable(q.table)
	w.dispatch()
}

// held tells whether a job must not run now, because its observer is paused, and how long it is left alone if the
// worker itself has paused the observer.
func (w *Worker) held(t *task) (r runResult, held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.q.paused {
		return runResult{next: runDone}, true
	}
	now := w.db.clock.Now()
	if wait := t.q.breaker.left(now); wait > 0 {
		return runResult{next: runWaiting, wait: wait}, true
	}
	if wait := w.awaitTurn(t, now); wait > 0 {
		return runResult{next: runWaiting, wait: wait}, true
	}
	return runResult{}, false
}

// letThrough returns how long a run that is due is left alone because the worker itself has paused the
// observer, or because of the observer's rate. 0 lets it through.
func (w *Worker) letThrough(t *task) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.db.clock.Now()
	if wait := w.awaitTurn(t, now); wait > 0 {
		return wait
	}
	if wait := t.q.breaker.wait(now); wait > 0 {
		return wait
	}
	if !t.q.pacer.take(now) {
		return leastPause
	}
	return 0
}

// pausedQueues are those of this worker's observers that are paused, as far as it knows. w.mu is held.
func (w *Worker) pausedQueues() map[*queue]bool {
	var paused map[*queue]bool
	for _, q := range w.list {
		if q.paused {
			if paused == nil {
				paused = map[*queue]bool{}
			}
			paused[q] = true
		}
	}
	return paused
}
