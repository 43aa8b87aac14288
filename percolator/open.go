package percolator

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Commits of runs whose outcome was not found out before Commit returned. One may still
// take effect, so WaitIdle counts it as a run under way until its outcome is known. The
// question settles it: what has left no trace can never commit any more.

// openCommit is such a commit.
type openCommit struct {
	q   *queue
	err *UndeterminedError
}

// How long a worker waits before it asks again.
const (
	leastSettleWait = 50 * time.Millisecond
	mostSettleWait  = 5 * time.Second
)

// noteOpen notes a commit that an attempt at a job leaves open, if err tells of one.
func (w *Worker) noteOpen(q *queue, err error) {
	var u *UndeterminedError
	if !errors.As(err, &u) || u.Primary == (Cell{}) {
		return
	}
	w.mu.Lock()
	w.open = append(w.open, openCommit{q, u})
	w.mu.Unlock()
	leaveToken(w.unsure)
}

// settleOpen settles what is open until ctx ends.
func (w *Worker) settleOpen(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		left, err := w.settle(ctx)
		switch {
		case err != nil && fatal(err):
			return err
		case left > 0:
			err = w.db.clock.Sleep(ctx, Backoff{Min: leastSettleWait, Max: mostSettleWait}.wait(attempt, w.db.rand))
		default:
			attempt = 0
			select {
			case <-w.unsure:
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		if ctx.Err() != nil {
			return err
		}
	}
}

// settle asks once for each open commit. left is how many stay open.
func (w *Worker) settle(ctx context.Context) (left int, err error) {
	w.mu.Lock()
	open := slices.Clone(w.open)
	w.mu.Unlock()
	for _, o := range open {
		out, failed := w.db.OutcomeOf(ctx, o.err)
		if failed != nil || out.Status == OutcomePending {
			err = errors.Join(err, failed)
			continue
		}
		w.mu.Lock()
		w.open = slices.DeleteFunc(w.open, func(other openCommit) bool { return other == o })
		w.signalIdle()
		w.mu.Unlock()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.open), err
}

// settleLast settles what is open when the last function has ended. If it fails, the
// worker's lease ends by itself, and WaitIdle of others waits for that.
func (w *Worker) settleLast() bool {
	ctx, cancel := context.WithTimeout(w.db.ctx, w.db.backgroundTimeout())
	defer cancel()
	for attempt := 0; ; attempt++ {
		left, err := w.settle(ctx)
		if left == 0 {
			return true
		}
		wait := Backoff{Min: leastSettleWait, Max: mostSettleWait}.wait(attempt, w.db.rand)
		if err != nil && fatal(err) || w.db.clock.Sleep(ctx, wait) != nil {
			return false
		}
	}
}
