package percolator

import (
	"context"
	"time"
)

// runCell is what a worker does about a notified cell, one observer after the other,
// until one has run, failed, or cannot go on.
func (w *Worker) runCell(ctx context.Context, c Cell) (result runResult, wait time.Duration, err error) {
	for _, q := range w.queuesOf(c) {
		before := w.db.Stats()
		r, d, err := w.attempt(ctx, &task{job: job{c, q.o}, q: q})
		after := w.db.Stats()
		if err != nil || r != runDone && r != runWaiting || after.ObserverRuns > before.ObserverRuns || after.ObserverCleared > before.ObserverCleared {
			return r, d, err
		}
		if r == runWaiting && (wait == 0 || d < wait) {
			result, wait = r, d
		}
	}
	return result, wait, nil
}
