package otelstore_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/percolator/rowstore/otelstore"
)

func instrument(s rs.Store, o otelstore.Options) rs.Store {
	in, err := otelstore.New(s, o)
	if err != nil {
		panic(err)
	}
	return in
}

func TestInstrumentOfMemoryIsMemory(t *testing.T) {
	t.Parallel()
	wrap := func(s rs.Store) rs.Store { return instrument(s, otelstore.Options{}) }
	storetest.CompareWithMemory(t, true, func(m *memstore.Store) rs.Store { return wrap(m) })
	storetest.RequireEnds(t, wrap(memstore.New()))
}

func TestInstrumentMeasures(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	f := faultstore.New(memstore.New(), faultstore.Options{OnCall: func(c faultstore.Call) faultstore.Fault {
		switch {
		case c.Kind == faultstore.CallApply && len(c.Muts) == 2:
			return faultstore.Fault{Kind: faultstore.LoseReply}
		case c.Kind == faultstore.CallGroup && len(c.Groups) == 2:
			return faultstore.Fault{Kind: faultstore.LoseRow}
		case c.Kind == faultstore.CallRead && len(c.Reads) == 2:
			return faultstore.Fault{Kind: faultstore.FailRow}
		}
		return faultstore.Fault{}
	}})
	s := instrument(f, otelstore.Options{Meters: metric.NewMeterProvider(metric.WithReader(reader))})
	for name, ask := range storetest.Askers {
		require.NoError(t, ask(t.Context(), s, "x", "y", "z").Err, name)
		ask(t.Context(), s, "v", "w")
	}
	refused := rs.Mutation{Table: "t", Row: "x", Conditions: []rs.Condition{rs.Present("c", 1)}}
	require.False(t, storetest.Apply(t, s, refused).Applied)
	require.Len(t, storetest.Scanned(t, s, rs.ScanRange{Table: "t", Selectors: storetest.Everything, Limit: 2}), 2)
	storetest.Tables(t, s)
	p, _ := rs.Unwrap[rs.OracleProvider](s)
	_, err := p.Oracle().Draw(t.Context(), 5)
	require.NoError(t, err)

	var got metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &got))
	require.Equal(t, map[string]any{
		"percolator.store.duration read ok":         uint64(1),
		"percolator.store.duration read error":      uint64(1),
		"percolator.store.duration apply ok":        uint64(2),
		"percolator.store.duration apply ambiguous": uint64(1),
		"percolator.store.duration group ok":        uint64(1),
		"percolator.store.duration group ambiguous": uint64(1),
		"percolator.store.duration scan ok":         uint64(1),
		"percolator.store.duration tables ok":       uint64(1),
		"percolator.store.duration draw ok":         uint64(1),
		"percolator.store.rows read":                "5 in 2",
		"percolator.store.rows apply":               "6 in 3",
		"percolator.store.rows group":               "5 in 2",
		"percolator.store.rows scan":                "2 in 1",
		"percolator.store.rows tables":              "1 in 1",
		"percolator.store.rows draw":                "5 in 1",
		"percolator.store.refused apply":            int64(1),
	}, measured(&got))
}

// measured lists what was measured: counts of durations, sums of rows, and refusals.
func measured(got *metricdata.ResourceMetrics) map[string]any {
	values := map[string]any{}
	for _, scope := range got.ScopeMetrics {
		for _, m := range scope.Metrics {
			label := func(set attribute.Set) string {
				name := m.Name
				for _, key := range []attribute.Key{"call", "result"} {
					if v, ok := set.Value(key); ok {
						name += " " + v.AsString()
					}
				}
				return name
			}
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					values[label(p.Attributes)] = p.Count
				}
			case metricdata.Histogram[int64]:
				for _, p := range data.DataPoints {
					values[label(p.Attributes)] = fmt.Sprintf("%d in %d", p.Sum, p.Count)
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					values[label(p.Attributes)] = p.Value
				}
			}
		}
	}
	return values
}

// TestInstrumentMeasuresTheRest has calls that fail in part, or late.
func TestInstrumentMeasuresTheRest(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	spans := tracetest.NewSpanRecorder()
	f := faultstore.New(memstore.New(), faultstore.Options{OnCall: func(c faultstore.Call) faultstore.Fault {
		switch {
		case c.Kind == faultstore.CallReadSnapshot && len(c.Asks) == 2, c.Kind == faultstore.CallApply && len(c.Muts) == 3:
			return faultstore.Fault{Kind: faultstore.LoseRow}
		case c.Kind == faultstore.CallScan && c.Range.Limit == 2, c.Kind == faultstore.CallTables:
			return faultstore.Fault{Kind: faultstore.Fail}
		}
		return faultstore.Fault{}
	}})
	s := instrument(f, otelstore.Options{
		Meters: metric.NewMeterProvider(metric.WithReader(reader)), Traces: trace.NewTracerProvider(trace.WithSpanProcessor(spans)),
	})
	abilities := rs.AbilitiesOf(s)
	ask := rs.SnapshotRead{Reads: []rs.RowRead{{Table: "t", Row: "r", Selectors: storetest.Everything}, {Table: "t", Row: "s", Selectors: storetest.Everything}}}
	for _, asks := range [][]rs.SnapshotRead{{ask}, {ask, ask}} {
		_, err := abilities.SnapshotReader.ReadSnapshot(t.Context(), asks)
		require.NoError(t, err, "a row that failed is no error of the call")
	}
	require.NoError(t, abilities.Deferrer.Flush(t.Context()))
	outs, err := s.Apply(t.Context(), storetest.Mutations("x", "y", "z"), rs.ApplyOptions{})
	require.NoError(t, err, "a row that failed is no error of the call")
	require.True(t, slices.ContainsFunc(outs, func(o rs.Outcome) bool { return o.Err != nil }))
	group := rs.Group{Mutations: []rs.Mutation{{Table: "t", Row: "x", Conditions: []rs.Condition{rs.Present("c", 1)}}, {Table: "t", Row: "y"}}}
	groups, err := abilities.Grouper.Group(t.Context(), []rs.Group{group})
	require.NoError(t, err)
	require.False(t, groups[0].Applied)
	require.Error(t, storetest.FirstError(s.Scan(t.Context(), rs.ScanRange{Table: "t", Selectors: storetest.Everything, Limit: 2})))
	require.Error(t, storetest.FirstError(s.Tables(t.Context())))
	for _, err := range s.Scan(t.Context(), rs.ScanRange{Table: "t", Selectors: storetest.Everything}) {
		require.NoError(t, err)
		break // it is measured all the same
	}

	var got metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &got))
	require.Equal(t, map[string]any{
		"percolator.store.duration snapshot ok":     uint64(1),
		"percolator.store.duration snapshot error":  uint64(1),
		"percolator.store.duration flush ok":        uint64(1),
		"percolator.store.duration apply ambiguous": uint64(1),
		"percolator.store.duration group ok":        uint64(1),
		"percolator.store.duration scan error":      uint64(1),
		"percolator.store.duration scan ok":         uint64(1),
		"percolator.store.duration tables error":    uint64(1),
		"percolator.store.rows snapshot":            "6 in 2",
		"percolator.store.rows flush":               "0 in 1",
		"percolator.store.rows apply":               "3 in 1",
		"percolator.store.rows group":               "2 in 1",
		"percolator.store.rows scan":                "1 in 2",
		"percolator.store.rows tables":              "0 in 1",
		"percolator.store.refused group":            int64(1),
	}, measured(&got))
	ended := map[string]string{}
	for _, span := range spans.Ended() {
		ended[span.Name()] += span.Status().Code.String() + span.Status().Description + " "
	}
	require.Equal(t, map[string]string{
		"percolator.store.snapshot": "Unset Errorerror ", "percolator.store.flush": "Unset ", "percolator.store.apply": "Errorambiguous ",
		"percolator.store.group": "Unset ", "percolator.store.scan": "Errorerror Unset ", "percolator.store.tables": "Errorerror ",
	}, ended)
}

// oneRowFails is a store of whose snapshot reads the last row fails.
type oneRowFails struct{ *memstore.Store }

func (s oneRowFails) ReadSnapshot(ctx context.Context, asks []rs.SnapshotRead) ([]rs.SnapshotRows, error) {
	answers, err := s.Store.ReadSnapshot(ctx, asks)
	rows := answers[len(answers)-1].Rows
	rows[len(rows)-1].Err = rs.ErrUnavailable
	return answers, err
}

func TestRowOfASnapshotFails(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	s := instrument(oneRowFails{memstore.New()}, otelstore.Options{Meters: metric.NewMeterProvider(metric.WithReader(reader))})
	read := rs.RowRead{Table: "t", Row: "r", Selectors: storetest.Everything}
	_, err := rs.AbilitiesOf(s).SnapshotReader.ReadSnapshot(t.Context(), []rs.SnapshotRead{{Reads: []rs.RowRead{read, read}}})
	require.NoError(t, err)
	var got metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &got))
	require.Equal(t, map[string]any{"percolator.store.duration snapshot error": uint64(1), "percolator.store.rows snapshot": "2 in 1"}, measured(&got))
}

// TestScanIsMeasuredWithoutItsLoop has a loop that takes an hour for a row.
func TestScanIsMeasuredWithoutItsLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader := metric.NewManualReader()
		s := instrument(memstore.New(), otelstore.Options{Meters: metric.NewMeterProvider(metric.WithReader(reader))})
		storetest.Put(t, s, "t", "r", rs.Put(rs.Write, "c", 1, nil))
		for _, err := range s.Scan(t.Context(), rs.ScanRange{Table: "t", Selectors: storetest.Everything}) {
			require.NoError(t, err)
			time.Sleep(time.Hour)
		}
		var got metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(t.Context(), &got))
		for _, scope := range got.ScopeMetrics {
			for _, m := range scope.Metrics {
				if data, ok := m.Data.(metricdata.Histogram[float64]); ok {
					for _, p := range data.DataPoints {
						require.Less(t, p.Sum, 60.0)
					}
				}
			}
		}
	})
}

// oneOfMany is a store of whose mutations, and groups, the first fails plainly, the last but one may have been applied, and the last fails plainly.
type oneOfMany struct{ *memstore.Store }

func (oneOfMany) Apply(context.Context, []rs.Mutation, rs.ApplyOptions) ([]rs.Outcome, error) {
	return []rs.Outcome{{Err: rs.ErrUnavailable}, {Err: fmt.Errorf("lost: %w", rs.ErrAmbiguous)}, {Err: rs.ErrUnavailable}}, nil
}

func (oneOfMany) Group(context.Context, []rs.Group) ([]rs.GroupOutcome, error) {
	return []rs.GroupOutcome{{Err: rs.ErrUnavailable}, {Err: fmt.Errorf("lost: %w", rs.ErrAmbiguous)}, {Err: rs.ErrUnavailable}}, nil
}

// A call of which anything may have been applied is ambiguous, whatever else failed in it.
func TestAmbiguousBehindAPlainFailure(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	s := instrument(oneOfMany{memstore.New()}, otelstore.Options{Meters: metric.NewMeterProvider(metric.WithReader(reader))})
	_, err := s.Apply(t.Context(), storetest.Mutations("x", "y", "z"), rs.ApplyOptions{})
	require.NoError(t, err)
	_, err = rs.AbilitiesOf(s).Grouper.Group(t.Context(), make([]rs.Group, 3))
	require.NoError(t, err)
	var got metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &got))
	values := measured(&got)
	require.Equal(t, uint64(1), values["percolator.store.duration apply ambiguous"], values)
	require.Equal(t, uint64(1), values["percolator.store.duration group ambiguous"], values)
}
