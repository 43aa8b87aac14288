package percolator

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// observerInstruments are those with a value for each observer.
type observerInstruments struct {
	cells  metric.Int64ObservableGauge
	oldest metric.Float64ObservableGauge
}

func (db *DB) observerInstruments(meter metric.Meter) (in observerInstruments, err error) {
	var errs [3]error
	in.cells, errs[0] = meter.Int64ObservableGauge("percolator.observer.backlog", metric.WithDescription("Cells with notifications of an observer's column, counted up to about 10,000 in its table."))
	in.oldest, errs[1] = meter.Float64ObservableGauge("percolator.observer.backlog.oldest", metric.WithUnit("s"), metric.WithDescription("Age of the oldest of them."))
	db.runTimes, errs[2] = meter.Float64Histogram("percolator.observer.duration", metric.WithUnit("s"), metric.WithDescription("Runs of an observer, with their commits."),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300))
	return in, errors.Join(errs[:]...)
}

func (in *observerInstruments) observe(o metric.Observer, each []observerBacklog) {
	for i := range each {
		of := metric.WithAttributes(ofObserver(each[i].observer, each[i].columnName)...)
		o.ObserveInt64(in.cells, int64(each[i].cells), of)
		o.ObserveFloat64(in.oldest, each[i].oldest.Seconds(), of)
	}
}

// ofObserver are the attributes of what is measured for each observer.
func ofObserver(name string, c columnName) []attribute.KeyValue {
	public := Cell{Table: c.table, Column: c.column}.public()
	return []attribute.KeyValue{attribute.String("observer", name), attribute.String("table", public.Table), attribute.String("column", public.Column)}
}

// timedRun is a run that is measured, by what became of it: ok, conflict, failed, also if it asked for a later time, or
// store, if the store failed. A run that was given up because the worker stops is not counted.
func (w *Worker) timedRun(ctx context.Context, tx *Txn, o *Observer, i int, view *cellView) runResult {
	h := w.db.runTimes
	if h == nil {
		return w.run(ctx, tx, o, i, view)
	}
	began := w.db.clock.Now()
	r := w.run(ctx, tx, o, i, view)
	result := "failed"
	switch {
	case r.next == runAbandoned:
		return r
	case r.next == runConflict:
		result = "conflict"
	case r.next == runTrouble:
		result = "store"
	case tx.commit != 0:
		result = "ok"
	}
	of := append(ofObserver(o.Name, columnName{view.cell.Table, view.cell.Column}), attribute.String("result", result))
	h.Record(ctx, w.db.clock.Now().Sub(began).Seconds(), metric.WithAttributes(of...))
	return r
}
