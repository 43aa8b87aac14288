package percolator

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolate-go/percolate/internal/format"
)

// Spans of transactions and of runs. They say what kind of error there was, never its text: an error of a user's function may have anything in it.

const tracerName = "github.com/percolate-go/percolate/percolator"

// WithTracing makes a span through the OpenTelemetry API for each transaction and for each run of an observer: percolator.update for a call of Update,
// percolator.view, percolator.begin from Begin to Commit or Rollback, and percolator.run for one call of an observer's function with its commit.
// The function of an observer gets the span in its context. nil, the default, makes none and costs nothing.
//
// Where cascades are tracked (DB.TrackCascades), a transaction whose span is sampled leaves the span's name with what it notifies. The span of
// the run which that sets off is its child, in the same trace, so a sampler that goes by the parent (as trace.ParentBased in OpenTelemetry's SDK) takes a cascade as a whole or not at all.
// It also links to each sampled commit that it has to see, to the newest 8 of them where several changes came as one. A timer that was due
// later than it was set begins anew, and so does a change whose transaction was not sampled. Of the trace state nothing is stored.
//
// Attributes: percolator.outcome (committed, nothing to commit, rolled back, conflict, undetermined, error), percolator.way of what was committed
// (one phase, group, two phases, notifications), percolator.attempts of an Update, or of a run for its change so far, and percolator.observer, percolator.table and percolator.column of a run. Neither keys nor values
// are in them, nor the text of errors.
func WithTracing(traces trace.TracerProvider) Option {
	return func(o *options) {
		if o.traces = traces; isNil(traces) {
			o.traces = nil
		}
	}
}

// traced is the span of a transaction. A nil one stands for none, and its methods do nothing.
type traced struct {
	span     trace.Span
	attempts int
	way      string // how it was committed
	calling  bool   // the user's function is being called, or has panicked
}

// newTraced returns nil for a span that is not recorded: nothing that it is told is kept.
func newTraced(span trace.Span) *traced {
	if !span.IsRecording() {
		span.End()
		return nil
	}
	return &traced{span: span}
}

// trace begins a span, if spans are wanted.
func (db *DB) trace(ctx context.Context, name string) (context.Context, *traced) {
	if db.tracer == nil {
		return ctx, nil
	}
	ctx, span := db.tracer.Start(ctx, name)
	return ctx, newTraced(span)
}

// traceRun begins the span of a run for what observer i of a view has to see.
func (w *Worker) traceRun(ctx context.Context, o *Observer, i int, view *cellView) (context.Context, *traced) {
	if w.db.tracer == nil {
		return ctx, nil
	}
	parent, links := view.setOffBy(i)
	if parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent)
	}
	opts := o.about
	if len(links) > 0 {
		opts = append(slices.Clip(opts), trace.WithLinks(links...))
	}
	ctx, span := w.db.tracer.Start(ctx, "percolator.run", opts...)
	return ctx, newTraced(span)
}

// aboutRuns are the attributes of the spans of an observer's runs.
func aboutRuns(o *Observer) []trace.SpanStartOption {
	return []trace.SpanStartOption{trace.WithAttributes(
		attribute.String("percolator.observer", o.Name), attribute.String("percolator.table", o.Table), attribute.String("percolator.column", o.Column))}
}

// context names the span where it is sampled; otherwise it is zero.
func (t *traced) context() (s format.Span) {
	if t == nil {
		return s
	}
	if sc := t.span.SpanContext(); sc.IsSampled() && sc.IsValid() {
		s = format.Span{Trace: sc.TraceID(), ID: sc.SpanID(), Flags: byte(sc.TraceFlags())}
	}
	return s
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
