package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/percolate-go/percolate/percolator"
)

const scope = "github.com/percolate-go/percolate/examples/shop"

// telemetry has the metrics of the process, and writes its spans. A program of yours would have the exporters of its own.
type telemetry struct {
	metrics *sdkmetric.ManualReader
	spans   *sdktrace.TracerProvider
}

// startTelemetry sets OpenTelemetry's global providers. Spans go to traces, a line of JSON each, unless it is nil.
func startTelemetry(traces io.Writer) *telemetry {
	t := &telemetry{metrics: sdkmetric.NewManualReader()}
	otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(t.metrics)))
	if traces != nil {
		t.spans = sdktrace.NewTracerProvider(sdktrace.WithBatcher(spanWriter{json.NewEncoder(traces)}))
		otel.SetTracerProvider(t.spans)
	}
	return t
}

// stop writes the spans that are left.
func (t *telemetry) stop(ctx context.Context) error {
	if t.spans == nil {
		return nil
	}
	return t.spans.Shutdown(ctx)
}

// traced is a span for each run of an observer.
func traced(ctx context.Context, run percolator.Run, _ *percolator.Txn, next func(ctx context.Context) error) error {
	ctx, span := otel.Tracer(scope).Start(ctx, "observer "+run.Observer)
	defer span.End()
	err := next(ctx)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}

// observed is a span for each request, and counts it.
func observed(next http.Handler) http.Handler {
	requests, err := otel.Meter(scope).Int64Counter("shop.requests", metric.WithDescription("Requests, by what was asked and how it ended."))
	if err != nil {
		otel.Handle(err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := otel.Tracer(scope).Start(r.Context(), r.Method)
		defer span.End()
		status, r := &statusWriter{w, http.StatusOK}, r.WithContext(ctx)
		next.ServeHTTP(status, r)
		span.SetName(r.Pattern)
		span.SetAttributes(attribute.Int("http.response.status_code", status.code))
		requests.Add(ctx, 1, metric.WithAttributes(attribute.String("route", r.Pattern), attribute.Int("status", status.code)))
	})
}

// statusWriter notes the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// spanWriter writes spans.
type spanWriter struct{ to *json.Encoder }

// ExportSpans implements sdktrace.SpanExporter.
func (s spanWriter) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	for _, span := range spans {
		err := s.to.Encode(map[string]any{
			"name": span.Name(), "trace": span.SpanContext().TraceID(), "span": span.SpanContext().SpanID(), "parent": span.Parent().SpanID(),
			"start": span.StartTime(), "seconds": span.EndTime().Sub(span.StartTime()).Seconds(), "status": span.Status().Code.String(),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (spanWriter) Shutdown(context.Context) error { return nil }

// ServeHTTP writes the metrics as Prometheus reads them.
func (t *telemetry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var all metricdata.ResourceMetrics
	if err := t.metrics.Collect(r.Context(), &all); err != nil {
		fail(w, r, fmt.Errorf("read the metrics: %w", err))
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			name := strings.NewReplacer(".", "_", "-", "_").Replace(m.Name)
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				writePoints(w, name, data.DataPoints)
			case metricdata.Gauge[int64]:
				writePoints(w, name, data.DataPoints)
			case metricdata.Gauge[float64]:
				writePoints(w, name, data.DataPoints)
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					fmt.Fprintf(w, "%s_count%s %v\n%s_sum%s %v\n", name, labels(p.Attributes), p.Count, name, labels(p.Attributes), p.Sum)
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					fmt.Fprintf(w, "%s_count%s %v\n%s_sum%s %v\n", name, labels(p.Attributes), p.Count, name, labels(p.Attributes), p.Sum)
				}
			}
		}
	}
}

func writePoints[N int64 | float64](w io.Writer, name string, points []metricdata.DataPoint[N]) {
	for _, p := range points {
		fmt.Fprintf(w, "%s%s %v\n", name, labels(p.Attributes), p.Value)
	}
}

func labels(set attribute.Set) string {
	if set.Len() == 0 {
		return ""
	}
	var all []string
	for _, a := range set.ToSlice() {
		all = append(all, fmt.Sprintf("%s=%q", strings.ReplaceAll(string(a.Key), ".", "_"), a.Value.String()))
	}
	return "{" + strings.Join(all, ",") + "}"
}
