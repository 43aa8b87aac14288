package percolator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
)

// TimerBacklog says which timers wait: those that were set more than 30 s ahead. One that is due sooner waits as a notification (see Backlog).
type TimerBacklog struct {
	Pending int // counted up to the limit that was asked for. One that was replaced or cancelled counts until it would have been due
	// Late is for how long the oldest of them has been due without anybody having told of it, 0 if none is due.
	Late time.Duration
}

// TimerBacklog counts the timers of all observed columns, up to limit of them (0 means all). Each timer that it counts costs a row
// that is read, and each observed table four scans. A negative limit is ErrInvalid; other errors are ErrClosed, those of the context
// and of the store. It may be called concurrently.
func (db *DB) TimerBacklog(ctx context.Context, limit int) (b TimerBacklog, err error) {
	if limit < 0 {
		return b, fmt.Errorf("percolator: TimerBacklog: %w: the limit is %d; it may not be negative", ErrInvalid, limit)
	}
	err = db.during(ctx, func(ctx context.Context) (err error) {
		b, err = db.measureTimers(ctx, limit)
		return err
	})
	return b, err
}

func (db *DB) measureTimers(ctx context.Context, limit int) (b TimerBacklog, err error) {
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return b, fmt.Errorf("percolator: counting timers: %w", err)
	}
	for _, table := range slices.Sorted(maps.Keys(v.observedColumns())) {
		if err := db.addTableTimers(ctx, v, table, limit, &b); err != nil {
			return b, fmt.Errorf("percolator: counting timers: %w", err)
		}
	}
	return b, nil
}

// addTableTimers adds those of an observed table.
func (db *DB) addTableTimers(ctx context.Context, v *catalogView, table string, limit int, b *TimerBacklog) error {
	if !v.Timers {
		return nil
	}
	for n := range byte(format.TimerShards) {
		if err := db.addTimers(ctx, timerShard{table, n}, v.asOf, limit, b); err != nil {
			return err
		}
	}
	return nil
}

// addTimers adds those of a shard. The first one of each shard is looked at even if the limit is reached.
func (db *DB) addTimers(ctx context.Context, s timerShard, now Timestamp, limit int, b *TimerBacklog) error {
	for from := format.TimersBegin(s.n); from != ""; {
		most := firePage
		if limit > 0 {
			most = max(1, min(firePage, limit-b.Pending))
		}
		page, next, err := db.timersPage(ctx, s, from, oracle.Max, most, nil)
		if err != nil {
			return err
		}
		if len(page) > 0 && from == format.TimersBegin(s.n) && page[0].due <= now { // what lies centuries ahead is no time.Duration
			b.Late = max(b.Late, now.Sub(page[0].due))
		}
		b.Pending += len(page)
		if limit > 0 && b.Pending >= limit {
			b.Pending = limit
			return nil
		}
		from = next
	}
	return nil
}

// noteLateness measures how late the first run for a timer begins.
func (w *Worker) noteLateness(ctx context.Context, tx *Txn, view *cellView) {
	if h := w.db.lateness; h != nil && !tx.run.begun {
		h.Record(ctx, tx.start.Sub(view.timer.at).Seconds())
	}
}
