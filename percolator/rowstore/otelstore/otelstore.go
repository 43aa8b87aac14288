// Package otelstore measures and traces the calls of a store with OpenTelemetry.
package otelstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Options say where measurements go. The zero value is ready to use.
type Options struct {
	// Meters makes the meter. Default: OpenTelemetry's global provider.
	Meters metric.MeterProvider
	// Traces makes the tracer. Default: OpenTelemetry's global provider.
	Traces trace.TracerProvider
}

const instrumentationName = "github.com/percolate-go/percolate/percolator/rowstore/otelstore"

// New returns a Store that measures the calls to s through the OpenTelemetry API, and makes
// a span for each. Put it under package coalesce to measure the calls to the database, or
// over it to measure the calls of transactions. Names and values of cells are never
// reported.
//
// Its metrics, each with the attribute call (read, apply, group, scan, tables,
// flush, draw, snapshot):
//
//   - percolator.store.duration, a histogram in seconds, with the attribute result
//     (ok, ambiguous, error); its count is the number of calls, or round trips. A call of many
//     rows is ambiguous if one of them is, and an error if one failed otherwise.
//   - percolator.store.rows, a histogram: rows, or timestamps, in a call.
//   - percolator.store.refused, a counter: rows, or groups, whose conditions did not
//     hold.
//
// It is a [rowstore.Decorator] and has the optional abilities of s. New returns an error if
// the meter refuses an instrument.
func New(s rowstore.Store, opts Options) (rowstore.Store, error) {
	if opts.Meters == nil {
		opts.Meters = otel.GetMeterProvider()
	}
	if opts.Traces == nil {
		opts.Traces = otel.GetTracerProvider()
	}
	meter := opts.Meters.Meter(instrumentationName)
	in := &instrumented{inner: s, tracer: opts.Traces.Tracer(instrumentationName)}
	var errs [3]error
	in.duration, errs[0] = meter.Float64Histogram("percolator.store.duration", metric.WithUnit("s"), metric.WithDescription("Duration of calls to the store."),
		metric.WithExplicitBucketBoundaries(.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10))
	in.rows, errs[1] = meter.Int64Histogram("percolator.store.rows", metric.WithUnit("{row}"), metric.WithDescription("Rows in a call to the store."),
		metric.WithExplicitBucketBoundaries(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
	in.refused, errs[2] = meter.Int64Counter("percolator.store.refused", metric.WithUnit("{row}"), metric.WithDescription("Rows whose conditions did not hold."))
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("otelstore: making the instruments: %w", err)
	}
	in.abilities = rowstore.Treatment{
		Grouper:  func(g rowstore.Grouper) rowstore.Grouper { return instrumentedGrouper{g, in} },
		Deferrer: func(d rowstore.Deferrer) rowstore.Deferrer { return instrumentedDeferrer{d, in} },
		OracleProvider: func(p rowstore.OracleProvider) rowstore.OracleProvider {
			return instrumentedOracle{p.Oracle(), in}
		},
		SnapshotReader: func(r rowstore.SnapshotReader) rowstore.SnapshotReader {
			return instrumentedSnapshotReader{r, in}
		},
		Splitter:        rowstore.Pass[rowstore.Splitter],
		Waker:           rowstore.Pass[rowstore.Waker],
		Limiter:         rowstore.Pass[rowstore.Limiter],
		SlotScanner:     rowstore.Pass[rowstore.SlotScanner],
		SnapshotScanner: rowstore.Pass[rowstore.SnapshotScanner],
		Sharder:         rowstore.Pass[rowstore.Sharder],
		Placer:          rowstore.Pass[rowstore.Placer],
		Reporter:        rowstore.Pass[rowstore.Reporter],
		Crasher:         rowstore.Pass[rowstore.Crasher],
	}.Of(s)
	return in, nil
}

type instrumented struct {
	inner     rowstore.Store
	abilities rowstore.Abilities
	tracer    trace.Tracer
	duration  metric.Float64Histogram
	rows      metric.Int64Histogram
	refused   metric.Int64Counter
}

// begin starts a call; the function that it returns ends it.
func (in *instrumented) begin(ctx context.Context, call string) (context.Context, func(rows, refused int, err error)) {
	began := time.Now()
	ctx, span := in.tracer.Start(ctx, "percolator.store."+call, trace.WithSpanKind(trace.SpanKindClient))
	return ctx, func(rows, refused int, err error) { in.end(ctx, span, call, time.Since(began), rows, refused, err) }
}

// end records a call that took that long.
func (in *instrumented) end(ctx context.Context, span trace.Span, call string, took time.Duration, rows, refused int, err error) {
	result := "ok"
	switch {
	case errors.Is(err, rowstore.ErrAmbiguous):
		result = "ambiguous"
	case err != nil:
		result = "error"
	}
	which := attribute.String("call", call)
	in.duration.Record(ctx, took.Seconds(), metric.WithAttributes(which, attribute.String("result", result)))
	in.rows.Record(ctx, int64(rows), metric.WithAttributes(which))
	if refused > 0 {
		in.refused.Add(ctx, int64(refused), metric.WithAttributes(which))
	}
	if span.IsRecording() {
		span.SetAttributes(attribute.Int("rows", rows), attribute.Int("refused", refused))
		if err != nil {
			span.SetStatus(codes.Error, result)
		}
	}
	span.End()
}

// moreTelling returns which of two errors of a call, either of which may be nil, says what became of the call: the first, but one that is
// ambiguous goes before any that is not. Whoever looks for calls that may have changed something must find each.
func moreTelling(first, second error) error {
	if first == nil || errors.Is(second, rowstore.ErrAmbiguous) && !errors.Is(first, rowstore.ErrAmbiguous) {
		return second
	}
	return first
}

// Read implements Store.
func (in *instrumented) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	ctx, end := in.begin(ctx, "read")
	rows, err := in.inner.Read(ctx, reads)
	telling := err
	for i := range rows {
		telling = moreTelling(telling, rows[i].Err)
	}
	end(len(reads), 0, telling)
	return rows, err
}

// Apply implements Store.
func (in *instrumented) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	ctx, end := in.begin(ctx, "apply")
	outs, err := in.inner.Apply(ctx, muts, opts)
	telling, refused := err, 0
	for i := range outs {
		telling = moreTelling(telling, outs[i].Err)
		if outs[i].Err == nil && !outs[i].Applied {
			refused++
		}
	}
	end(len(muts), refused, telling)
	return outs, err
}

// Scan implements Store. Its duration is that of the store alone, without what the
// caller does between two rows.
func (in *instrumented) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return measured(ctx, in, "scan", func(ctx context.Context) iter.Seq2[rowstore.Row, error] { return in.inner.Scan(ctx, s) })
}

// Tables implements Store.
func (in *instrumented) Tables(ctx context.Context) iter.Seq2[string, error] {
	return measured(ctx, in, "tables", in.inner.Tables)
}

func measured[T any](ctx context.Context, in *instrumented, call string, over func(context.Context) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		began := time.Now()
		ctx, span := in.tracer.Start(ctx, "percolator.store."+call, trace.WithSpanKind(trace.SpanKindClient))
		n, away, failed := 0, time.Duration(0), error(nil)
		defer func() { in.end(ctx, span, call, time.Since(began)-away, n, 0, failed) }()
		for t, err := range over(ctx) {
			if err != nil {
				failed = err
			} else {
				n++
			}
			left := time.Now()
			more := yield(t, err)
			away += time.Since(left)
			if !more {
				return
			}
		}
	}
}

// Close implements Store.
func (in *instrumented) Close() error { return in.inner.Close() }

// Abilities implements Decorator.
func (in *instrumented) Abilities() rowstore.Abilities { return in.abilities }

type instrumentedGrouper struct {
	rowstore.Grouper
	in *instrumented
}

// Group implements Grouper.
func (g instrumentedGrouper) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	ctx, end := g.in.begin(ctx, "group")
	outs, err := g.Grouper.Group(ctx, groups)
	telling, refused, rows := err, 0, 0
	for i := range groups {
		rows += len(groups[i].Mutations)
	}
	for i := range outs {
		telling = moreTelling(telling, outs[i].Err)
		if outs[i].Err == nil && !outs[i].Applied {
			refused++
		}
	}
	end(rows, refused, telling)
	return outs, err
}

type instrumentedDeferrer struct {
	rowstore.Deferrer
	in *instrumented
}

// Flush implements Deferrer.
func (d instrumentedDeferrer) Flush(ctx context.Context) error {
	ctx, end := d.in.begin(ctx, "flush")
	err := d.Deferrer.Flush(ctx)
	end(0, 0, err)
	return err
}

type instrumentedSnapshotReader struct {
	inner rowstore.SnapshotReader
	in    *instrumented
}

// ReadSnapshot implements SnapshotReader.
func (d instrumentedSnapshotReader) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	ctx, end := d.in.begin(ctx, "snapshot")
	answers, err := d.inner.ReadSnapshot(ctx, asks)
	telling, rows := err, 0
	for i := range asks {
		rows += len(asks[i].Reads)
	}
	for i := range answers {
		telling = moreTelling(telling, answers[i].Err)
		for j := range answers[i].Rows {
			telling = moreTelling(telling, answers[i].Rows[j].Err)
		}
	}
	end(rows, 0, telling)
	return answers, err
}

type instrumentedOracle struct {
	inner oracle.Oracle
	in    *instrumented
}

// Oracle implements OracleProvider.
func (o instrumentedOracle) Oracle() oracle.Oracle { return o }

// Draw implements oracle.Oracle.
func (o instrumentedOracle) Draw(ctx context.Context, n int) (rowstore.Timestamp, error) {
	ctx, end := o.in.begin(ctx, "draw")
	ts, err := o.inner.Draw(ctx, n)
	end(n, 0, err)
	return ts, err
}
