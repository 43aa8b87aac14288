package percolator

import (
	"context"
	"time"
)

// When a worker collects garbage.

// collect collects garbage from time to time, once for all workers together. The safe
// point shows when the last collection was, so a worker that starts later keeps to the
// same schedule.
func (w *Worker) collect(ctx context.Context) error {
	waited, pause := false, time.Duration(0)
	for {
		var due time.Duration
		err := w.retry(ctx, "collecting garbage", func() error {
			v, err := w.db.loadCatalog(ctx)
			if err != nil {
				return err
			}
			due = w.collectionDue(v)
			return nil
		})
		if err != nil {
			return err
		}
		if due > 0 || !waited {
			// Workers must not start at the same moment: the first one's collection spares
			// the others theirs.
			jitter := time.Duration(w.db.rand.int64N(int64(w.db.known().lease) + 1))
			if err := w.db.clock.Sleep(ctx, max(due, pause)+jitter); err != nil {
				return err
			}
			waited, pause = true, 0
			continue
		}
		err = w.retry(ctx, "collecting garbage", func() error {
			_, err := w.db.CollectGarbage(ctx, GCOptions{})
			return err
		})
		if err != nil {
			return err
		}
		waited, pause = false, w.gcInterval(w.db.Settings().Retention)/2
	}
}

// collectionDue returns how long it is until the next collection, 0 or less if it is
// due. A collection leaves a safe point that is at least the retention older than the
// collection.
func (w *Worker) collectionDue(v *catalogView) time.Duration {
	retention := v.at(v.asOf).Retention
	return retention + w.gcInterval(retention) - v.asOf.Sub(v.safePoint)
}

func (w *Worker) gcInterval(retention time.Duration) time.Duration {
	if w.config.GCInterval != 0 {
		return w.config.GCInterval
	}
	return min(retention/10, time.Hour)
}
