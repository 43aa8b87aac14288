package percolator

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// ofObserver are the attributes of what is measured for each observer, by what it is called now: under another name it would be another series.
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
	c := columnName{view.cell.Table, view.cell.Column}
	of := append(ofObserver(w.db.known().titleOf(o.id, c.table, c.column), c), attribute.String("result", result))
	h.Record(ctx, w.db.clock.Now().Sub(began).Seconds(), metric.WithAttributes(of...))
	return r
}
