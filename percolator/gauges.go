package percolator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
)

const (
	// backlogMetric is how many cells one reading of the backlog's gauges looks at in each observed table, with all their notifications.
	backlogMetric = 10_000
	// parkedMetric bounds what one reading of the gauge of parked runs costs.
	parkedMetric = 10_000
	// timersMetric bounds what one reading of the timers' gauges costs, in the same way.
	timersMetric = 1_000
	// gaugesWait is how long one reading of the gauges takes at most. Who reads them waits no longer than about 10 s, mostly.
	gaugesWait = 5 * time.Second
)

// gauges are the instruments of what waits.
type gauges struct {
	backlog, parked, pending       metric.Int64ObservableGauge
	oldest, overdue                metric.Float64ObservableGauge
	observerBacklog, observerPause metric.Int64ObservableGauge
	observerOldest                 metric.Float64ObservableGauge
	gcOverdue                      metric.Float64ObservableGauge
}

// gauges makes them. all are those that observe tells.
func (db *DB) gauges(meter metric.Meter) (g *gauges, all []metric.Observable, err error) {
	g = &gauges{}
	var errs []error
	whole := func(in *metric.Int64ObservableGauge, name, what string) {
		var err error
		*in, err = meter.Int64ObservableGauge(name, metric.WithDescription(what))
		errs, all = append(errs, err), append(all, *in)
	}
	seconds := func(in *metric.Float64ObservableGauge, name, what string) {
		var err error
		*in, err = meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(what))
		errs, all = append(errs, err), append(all, *in)
	}
	whole(&g.backlog, "percolator.backlog", "Cells with notifications, at most 10,000.")
	seconds(&g.oldest, "percolator.backlog.oldest", "Age of the oldest notification.")
	whole(&g.parked, "percolator.parked", "Runs of observers that are parked, at most 10,000.")
	whole(&g.observerBacklog, "percolator.observer.backlog", "Cells with notifications of an observer's column, counted up to about 10,000 in its table.")
	seconds(&g.observerOldest, "percolator.observer.backlog.oldest", "Age of the oldest of them.")
	whole(&g.observerPause, "percolator.observer.paused", "1 for an observer that is paused, otherwise 0.")
	whole(&g.pending, "percolator.timers.pending", "Timers that were set more than 30 s ahead, at most 1,000.")
	seconds(&g.overdue, "percolator.timers.overdue", "How long the oldest of them has been due and nobody has told of it.")
	seconds(&g.gcOverdue, "percolator.gc.overdue", "For how much longer than the retention history is kept: of the database, or of the table where that is longest.")
	return g, all, errors.Join(errs...)
}

// gaugeValues is one reading of the gauges. Its parts do not depend on each other.
type gaugeValues struct {
	mu      sync.Mutex
	columns []columnBacklog // of the tables that have answered
	backlog Backlog
	timers  TimerBacklog
	// What is known at all: otherwise 0 would be told.
	anyCells, anyTimers, parked, collected bool
	overdue                                time.Duration
	errs                                   []error
}

// observe tells what waits. What cannot be read in time, because a store is away, is left out, and the rest is told: all is read
// at once, so that none of it waits for that.
func (g *gauges) observe(ctx context.Context, o metric.Observer, db *DB) error {
	ctx, cancel := context.WithTimeout(ctx, gaugesWait)
	defer cancel()
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return err
	}
	r := db.readGauges(ctx, v)
	for i := range v.Observers {
		of := &v.Observers[i]
		paused := int64(0)
		if of.Paused {
			paused = 1
		}
		o.ObserveInt64(g.observerPause, paused, metric.WithAttributes(ofObserver(of.Title(), columnName{string(of.Table), string(of.Column)})...))
	}
	for _, c := range r.columns {
		for _, id := range v.observers(c.table, c.column) {
			of := metric.WithAttributes(ofObserver(v.titleOf(id, c.table, c.column), c.columnName)...)
			o.ObserveInt64(g.observerBacklog, int64(c.cells), of)
			o.ObserveFloat64(g.observerOldest, c.oldest.Seconds(), of)
		}
	}
	if r.anyCells {
		o.ObserveInt64(g.backlog, int64(r.backlog.Cells))
		o.ObserveFloat64(g.oldest, r.backlog.Oldest.Seconds())
	}
	if r.parked {
		o.ObserveInt64(g.parked, int64(r.backlog.Parked))
	}
	if r.anyTimers {
		o.ObserveInt64(g.pending, int64(r.timers.Pending))
		o.ObserveFloat64(g.overdue, r.timers.Late.Seconds())
	}
	if r.collected {
		o.ObserveFloat64(g.gcOverdue, r.overdue.Seconds())
	}
	return errors.Join(r.errs...)
}

// readGauges reads what waits, all at once.
func (db *DB) readGauges(ctx context.Context, v *catalogView) *gaugeValues {
	columns := v.observedColumns()
	r := &gaugeValues{anyCells: len(columns) == 0, anyTimers: len(columns) == 0}
	var wg sync.WaitGroup
	part := func(what string, f func() (add func(), err error)) {
		wg.Go(func() {
			add, err := f()
			r.mu.Lock()
			defer r.mu.Unlock()
			if err != nil {
				r.errs = append(r.errs, fmt.Errorf("%s: %w", what, err))
				return
			}
			add()
		})
	}
	for table, names := range columns {
		part("measuring the backlog", func() (func(), error) {
			of, err := db.measureTable(ctx, v, table, names, backlogMetric)
			return func() {
				r.anyCells, r.columns = true, append(r.columns, of...)
				r.backlog.add(of, backlogMetric)
			}, err
		})
		part("counting timers", func() (func(), error) {
			var of TimerBacklog
			err := db.addTableTimers(ctx, v, table, timersMetric, &of)
			return func() {
				r.anyTimers = true
				r.timers.Pending = min(r.timers.Pending+of.Pending, timersMetric)
				r.timers.Late = max(r.timers.Late, of.Late)
			}, err
		})
	}
	part("counting the parked runs", func() (func(), error) {
		n, err := db.countParked(ctx, parkedMetric)
		return func() { r.parked, r.backlog.Parked = true, n }, err
	})
	part("looking how far collection is", func() (func(), error) {
		late, err := db.overdue(ctx, v)
		return func() { r.collected, r.overdue = true, late }, err
	})
	wg.Wait()
	return r
}
