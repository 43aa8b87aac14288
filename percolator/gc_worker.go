package percolator

import (
	"context"
	"math"
	"time"
)

// When a worker collects garbage.

// Unless a worker is told otherwise, there are gcIntervals collections in a retention, or one in gcIntervalMost.
const (
	gcIntervals    = 10
	gcIntervalMost = time.Hour
)

// gcInterval is how often tables of a retention are collected then.
func gcInterval(retention time.Duration) time.Duration {
	return min(retention/gcIntervals, gcIntervalMost)
}

// collect collects garbage from time to time, once for all workers together. The safe
// point shows when the last collection was, so a worker that starts later keeps to the
// same schedule. It goes on with one that did not come to its end.
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
			if err := w.restUntilUnclean(ctx, max(due, pause)); err != nil {
				return err
			}
			if err := w.db.clock.Sleep(ctx, jitter); err != nil {
				return err
			}
			waited, pause = true, 0
			continue
		}
		if err := w.collectAll(ctx); err != nil {
			return err
		}
		waited, pause = false, w.gcInterval(w.db.Settings().Retention)/2
	}
}

// collectAll collects all tables, until that succeeds.
func (w *Worker) collectAll(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		began := w.db.clock.Now()
		_, err := w.db.collect(ctx, GCOptions{}, attempt == 0)
		if err == nil {
			return nil
		}
		took := w.db.clock.Now().Sub(began)
		if err := w.waitAfter(ctx, walkWait, attempt, "collecting garbage", err); err != nil {
			return err
		}
		// It may have read all rows, and fail again over one that somebody has to mend. One that takes very long begins again no sooner than one that succeeds might.
		if err := w.db.clock.Sleep(ctx, min(9*took, w.gcInterval(w.db.Settings().Retention)/2)); err != nil {
			return err
		}
	}
}

// collectionDue returns how long it is until the next collection, 0 or less if it is
// due. A collection leaves a safe point that is at least the retention older than the
// collection.
func (w *Worker) collectionDue(v *catalogView) time.Duration {
	left := v.collected.Whole.Left.Sub(v.asOf)
	if v.unfinished() && left > 0 {
		return left // another worker is at it, however late it is
	}
	if w.uncleanFor(v) <= 0 {
		return 0
	}
	retention := v.at(v.asOf).Retention
	due := retention + w.gcInterval(retention) - v.asOf.Sub(v.safePoint)
	if v.keptByHold(v.safePoint) {
		due = w.gcInterval(retention)
	}
	if v.unfinished() {
		due = min(due, left)
	}
	return due
}

// uncleanFor returns in how long a collection of all tables is due because the retention of a table was
// shortened. If one has begun since then, it is left to that one for as long as between two others.
func (w *Worker) uncleanFor(v *catalogView) time.Duration {
	soonest := time.Duration(math.MaxInt64)
	for t, retention := range v.shortTables(0) {
		if v.clean(t) {
			continue
		}
		due := v.cleanIn(t)
		// It has published the table's safe point first.
		if began := v.asOf.Sub(v.safePointOf(t).Add(retention)); began >= 0 && began <= -due {
			due = w.gcInterval(v.at(v.asOf).Retention) - began
		}
		soonest = min(soonest, due)
	}
	return soonest
}

// restUntilUnclean sleeps for d, or until a retention was shortened so that a collection is due.
func (w *Worker) restUntilUnclean(ctx context.Context, d time.Duration) error {
	for d > 0 {
		v := w.db.known()
		if w.uncleanFor(v) <= 0 {
			return nil
		}
		step := min(d, v.lease) // within which the worker reads the catalog anyway
		if err := w.db.clock.Sleep(ctx, step); err != nil {
			return err
		}
		d -= step
	}
	return nil
}

// collectShort collects the tables whose retention is shorter than the database's, as often as
// they need it, beside the collections of all tables, which may take long.
func (w *Worker) collectShort(ctx context.Context) error {
	pause := time.Duration(0)
	for {
		v := w.db.known()
		within, due := w.nextShort(v, v.asOf.Add(w.db.clock.Now().Sub(v.sentAt)))
		if within == 0 {
			due = v.lease
		}
		// As in collect, workers do not start at the same moment.
		jitter := time.Duration(w.db.rand.int64N(int64(v.lease) + 1))
		if err := w.db.clock.Sleep(ctx, max(min(due, v.lease), pause)+jitter); err != nil {
			return err
		}
		if pause = 0; within == 0 || due > v.lease {
			continue
		}
		goesOn := true
		err := w.retry(ctx, "collecting garbage", func() error {
			v, err := w.db.loadCatalog(ctx)
			if err != nil {
				return err
			}
			if within, due = w.nextShort(v, v.asOf); within == 0 || due > 0 {
				return nil
			}
			_, err = w.db.collect(ctx, GCOptions{Within: within}, goesOn)
			goesOn = false
			pause = w.gcInterval(within) / 2
			return err
		})
		if err != nil {
			return err
		}
	}
}

// nextShort returns which of these collections is the next, as in GCOptions.Within, and how long it
// is from now until then, 0 or less if it is due. One of a longer retention is also one of the shorter
// ones. within is 0 if there is none.
func (w *Worker) nextShort(v *catalogView, now Timestamp) (within, due time.Duration) {
	for t, retention := range v.shortTables(0) {
		if !v.clean(t) {
			continue
		}
		own := retention + w.gcInterval(retention) - now.Sub(v.safePointOf(t))
		left := v.collected.Short.Left.Sub(now)
		switch held, unfinished := v.keptByHold(v.safePointOf(t)), v.unfinishedIn(t); {
		case unfinished && (held || left > 0):
			own = left
		case unfinished:
			own = min(own, left)
		case held:
			continue
		}
		switch {
		case within == 0, own > 0 && own < due, own <= 0 && (due > 0 || retention > within):
			within, due = retention, own
		}
	}
	return within, due
}

// gcInterval is how often tables of a retention are collected.
func (w *Worker) gcInterval(retention time.Duration) time.Duration {
	switch configured := w.config.GCInterval; {
	case configured == 0:
		return gcInterval(retention)
	case retention >= w.db.Settings().Retention:
		return configured
	default:
		return min(retention/10, configured)
	}
}
