package percolator

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Spans of transactions and of runs. They say what kind of error there was, never its text: an error of a user's function may have anything in it.

const tracerName = "github.com/percolate-go/percolate/percolator"

// WithTracing makes a span through the OpenTelemetry API for each transaction and for each run of an observer: percolator.update for a call of Update,
// percolator.view, percolator.begin from Begin to Commit or Rollback, and percolator.run for one call of an observer's function with its commit.
// The function of an observer gets the span in its context. The span of a run does not link to the commit that set it off. nil, the default, makes none and
// costs nothing.
//
// Attributes: percolator.outcome (committed, nothing to commit, rolled back, conflict, undetermined, error), percolator.way of what was committed
// (one phase, group, two phases, notifications), percolator.attempts of an Update, or of a run for its change so far, and percolator.observer, percolator.table and percolator.column of a run. Neither keys nor values
// are in them, nor the text of errors.
func WithTracing(traces trace.TracerProvider) Option {
	return func(o *options) { o.traces = traces }
}

// traced is the span of a transaction. A nil one stands for none, and its methods do nothing.
type traced struct {
	span     trace.Span
	attempts int
	way      string // how it was committed
	calling  bool   // the user's function is being called, or has panicked
}

// trace begins a span, if spans are wanted.
func (db *DB) trace(ctx context.Context, name string, attrs ...attribute.KeyValue) (context.Context, *traced) {
	if db.tracer == nil {
		return ctx, nil
	}
	ctx, span := db.tracer.Start(ctx, name, trace.WithAttributes(attrs...))
	return ctx, &traced{span: span}
}

// traceRun begins the span of a run.
func (db *DB) traceRun(ctx context.Context, o *Observer) (context.Context, *traced) {
	if db.tracer == nil {
		return ctx, nil
	}
	return db.trace(ctx, "percolator.run", attribute.String("percolator.observer", o.Name), attribute.String("percolator.table", o.Table), attribute.String("percolator.column", o.Column))
}

// goes notes in which way a transaction was committed.
func (t *traced) goes(way string) {
	if t != nil {
		t.way = way
	}
}

// tries counts an attempt.
func (t *traced) tries() {
	if t != nil {
		t.attempts++
	}
}

// call calls the function of an Update or a View.
func (t *traced) call(fn func(tx *Txn) error, tx *Txn) error {
	if t == nil {
		return fn(tx)
	}
	t.calling = true
	err := fn(tx)
	t.calling = false
	return err
}

// end ends the span. ended tells that a commit returned err, rather than that the transaction was rolled back.
func (t *traced) end(err error, ended bool) {
	if t == nil {
		return
	}
	if t.calling {
		err = errRunFailed // it has panicked
	}
	outcome := "error"
	switch {
	case err == nil && t.way != "":
		outcome = "committed"
	case err == nil && ended:
		outcome = "nothing to commit"
	case err == nil:
		outcome = "rolled back"
	case errors.Is(err, ErrConflict):
		outcome = "conflict"
	case errors.Is(err, ErrUndetermined):
		outcome = "undetermined"
	}
	t.span.SetAttributes(attribute.String("percolator.outcome", outcome))
	if t.attempts > 0 {
		t.span.SetAttributes(attribute.Int("percolator.attempts", t.attempts))
	}
	if err == nil && t.way != "" {
		t.span.SetAttributes(attribute.String("percolator.way", t.way))
	}
	if err != nil {
		t.span.SetStatus(codes.Error, outcome)
	}
	t.span.End()
}

var errRunFailed = errors.New("percolator: the function failed")

// endRun ends the span of a run whose attempt has come to r.
func (t *traced) endRun(r runResult) {
	switch {
	case t == nil || t.way != "":
		t.end(nil, true)
	case r.next == runConflict:
		t.end(ErrConflict, true)
	case r.err != nil:
		t.end(r.err, true)
	default:
		t.end(errRunFailed, true)
	}
}
