package rowstore

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
)

// InstrumentOptions change what Instrument does. The zero value is ready to use.
type InstrumentOptions struct {
	// Meters makes the meter. Default: OpenTelemetry's global provider.
	Meters metric.MeterProvider
	// Traces makes the tracer. Default: OpenTelemetry's global provider.
	Traces trace.TracerProvider
}

const instrumentationName = "github.com/percolate-go/percolate/percolator/rowstore"

// Instrument returns a Store that measures the calls to s through the OpenTelemetry
// API, and makes a span for each. Put it under Coalesce to see what the database is
// asked, over it to see what transactions ask. Names and values of cells are never
// reported.
//
// Its metrics, each with the attribute call (read, apply, group, scan, tables,
// flush, draw, drawread):
//
//   - percolator.store.duration, a histogram in seconds, with the attribute result
//     (ok, ambiguous, error); its count is the number of calls, or round trips.
//   - percolator.store.rows, a histogram: rows, or timestamps, in a call.
//   - percolator.store.refused, a counter: rows, or groups, whose conditions did not
//     hold.
//
// It is a Decorator and has the optional abilities of s. Instrument returns an error
// when the meter refuses an instrument.
func Instrument(s Store, opts InstrumentOptions) (Store, error) {
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
		return nil, fmt.Errorf("rowstore: instrumenting: %w", err)
	}
	return in, nil
}

type instrumented struct {
	inner    Store
	tracer   trace.Tracer
	duration metric.Float64Histogram
	rows     metric.Int64Histogram
	refused  metric.Int64Counter
}

// begin starts a call; the function that it returns ends it.
func (in *instrumented) begin(ctx context.Context, call string) (context.Context, func(rows, refused int, err error)) {
	began := time.Now()
	ctx, span := in.tracer.Start(ctx, "percolator.store."+call, trace.WithSpanKind(trace.SpanKindClient))
	return ctx, func(rows, refused int, err error) {
		result := "ok"
		switch {
		case errors.Is(err, ErrAmbiguous):
			result = "ambiguous"
		case err != nil:
			result = "error"
		}
		which := attribute.String("call", call)
		in.duration.Record(ctx, time.Since(began).Seconds(), metric.WithAttributes(which, attribute.String("result", result)))
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
}

// Read implements Store.
func (in *instrumented) Read(ctx context.Context, reads []RowRead) ([]Row, error) {
	ctx, end := in.begin(ctx, "read")
	rows, err := in.inner.Read(ctx, reads)
	first := err
	for i := range rows {
		if first == nil {
			first = rows[i].Err
		}
	}
	end(len(reads), 0, first)
	return rows, err
}

// Apply implements Store.
func (in *instrumented) Apply(ctx context.Context, muts []Mutation, opts ApplyOptions) ([]Outcome, error) {
	ctx, end := in.begin(ctx, "apply")
	outs, err := in.inner.Apply(ctx, muts, opts)
	first, refused := err, 0
	for i := range outs {
		switch {
		case outs[i].Err != nil && first == nil:
			first = outs[i].Err
		case outs[i].Err == nil && !outs[i].Applied:
			refused++
		}
	}
	end(len(muts), refused, first)
	return outs, err
}

// Scan implements Store. Its duration is that of the store alone, without what the
// caller does between two rows.
func (in *instrumented) Scan(ctx context.Context, s ScanRange) iter.Seq2[Row, error] {
	return measured(ctx, in, "scan", func(ctx context.Context) iter.Seq2[Row, error] { return in.inner.Scan(ctx, s) })
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
		defer func() {
			result := "ok"
			if failed != nil {
				result = "error"
				span.SetStatus(codes.Error, result)
			}
			which := attribute.String("call", call)
			in.duration.Record(ctx, (time.Since(began) - away).Seconds(), metric.WithAttributes(which, attribute.String("result", result)))
			in.rows.Record(ctx, int64(n), metric.WithAttributes(which))
			span.SetAttributes(attribute.Int("rows", n))
			span.End()
		}()
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

// Offer implements Decorator.
func (in *instrumented) Offer(target any) bool {
	switch t := target.(type) {
	case *Grouper:
		g, ok := Unwrap[Grouper](in.inner)
		if ok {
			*t = instrumentedGrouper{g, in}
		}
		return ok
	case *Deferrer:
		d, ok := Unwrap[Deferrer](in.inner)
		if ok {
			*t = instrumentedDeferrer{d, in}
		}
		return ok
	case *OracleProvider:
		p, ok := Unwrap[OracleProvider](in.inner)
		if ok {
			*t = instrumentedOracle{p.Oracle(), in}
		}
		return ok
	case *DrawReader:
		d, ok := Unwrap[DrawReader](in.inner)
		if ok {
			*t = instrumentedDrawReader{d, in}
		}
		return ok
	case *Splitter:
		return offer(in.inner, t)
	case *Waker:
		return offer(in.inner, t)
	case *Limiter:
		return offer(in.inner, t)
	case *Sharder:
		return offer(in.inner, t)
	case *Placer:
		return offer(in.inner, t)
	case *Reporter:
		return offer(in.inner, t)
	case *Crasher:
		return offer(in.inner, t)
	}
	return false
}

type instrumentedGrouper struct {
	Grouper
	in *instrumented
}

// Group implements Grouper.
func (g instrumentedGrouper) Group(ctx context.Context, groups []Group) ([]GroupOutcome, error) {
	ctx, end := g.in.begin(ctx, "group")
	outs, err := g.Grouper.Group(ctx, groups)
	first, refused, rows := err, 0, 0
	for i := range groups {
		rows += len(groups[i].Mutations)
	}
	for i := range outs {
		switch {
		case outs[i].Err != nil && first == nil:
			first = outs[i].Err
		case outs[i].Err == nil && !outs[i].Applied:
			refused++
		}
	}
	end(rows, refused, first)
	return outs, err
}

type instrumentedDeferrer struct {
	Deferrer
	in *instrumented
}

// Flush implements Deferrer.
func (d instrumentedDeferrer) Flush(ctx context.Context) error {
	ctx, end := d.in.begin(ctx, "flush")
	err := d.Deferrer.Flush(ctx)
	end(0, 0, err)
	return err
}

type instrumentedDrawReader struct {
	inner DrawReader
	in    *instrumented
}

// DrawRead implements DrawReader.
func (d instrumentedDrawReader) DrawRead(ctx context.Context, asks []DrawRead) ([]DrawnRows, error) {
	ctx, end := d.in.begin(ctx, "drawread")
	answers, err := d.inner.DrawRead(ctx, asks)
	first, rows := err, 0
	for i := range asks {
		rows += len(asks[i].Reads)
	}
	for i := range answers {
		if first == nil {
			first = answers[i].Err
		}
		for j := range answers[i].Rows {
			if first == nil {
				first = answers[i].Rows[j].Err
			}
		}
	}
	end(rows, 0, first)
	return answers, err
}

type instrumentedOracle struct {
	inner oracle.Oracle
	in    *instrumented
}

// Oracle implements OracleProvider.
func (o instrumentedOracle) Oracle() oracle.Oracle { return o }

// Draw implements oracle.Oracle.
func (o instrumentedOracle) Draw(ctx context.Context, n int) (Timestamp, error) {
	ctx, end := o.in.begin(ctx, "draw")
	ts, err := o.inner.Draw(ctx, n)
	end(n, 0, err)
	return ts, err
}
