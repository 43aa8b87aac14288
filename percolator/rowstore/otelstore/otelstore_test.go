package otelstore_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

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
	}, values)
}
