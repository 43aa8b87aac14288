package percolator

import (
	"context"
	"errors"
)

// Commits of runs that a worker has left open when it stopped: the context of its functions
// ended before Commit could find the outcome out. Such a commit may take effect later. So
// WaitIdle of other workers must not take this one for idle before the outcome is known.

// noteOpen notes a commit that an attempt at a job has left open, if err tells of one.
func (w *Worker) noteOpen(err error) {
	var u *UndeterminedError
	if w.runCtx.Err() == nil || !errors.As(err, &u) || u.Primary == (Cell{}) {
		return
	}
	w.mu.Lock()
	w.open = append(w.open, u)
	w.mu.Unlock()
}

// settleOpen asks for the outcomes of these commits when the last function has ended. The
// question settles them: what has left no trace can never commit any more. ok is false if
// one could not be settled. Then the worker does not leave the others, but lets its lease
// end: they wait for that.
func (w *Worker) settleOpen() (ok bool) {
	ctx, cancel := context.WithTimeout(w.db.ctx, w.db.backgroundTimeout())
	defer cancel()
	for attempt := 0; ; {
		w.mu.Lock()
		left := len(w.open)
		var u *UndeterminedError
		if left > 0 {
			u = w.open[0]
		}
		w.mu.Unlock()
		if left == 0 {
			return true
		}
		out, err := w.db.OutcomeOf(ctx, u)
		if err == nil && out.Status != OutcomePending {
			w.mu.Lock()
			w.open = w.open[1:]
			w.mu.Unlock()
			attempt = 0
			continue
		}
		if err != nil && fatal(err) || w.db.clock.Sleep(ctx, w.db.opt.retryWait.wait(attempt, w.db.rand)) != nil {
			return false
		}
		attempt++
	}
}
