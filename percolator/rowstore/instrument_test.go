package rowstore_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

func instrument(s rs.Store, o rs.InstrumentOptions) rs.Store {
	in, err := rs.Instrument(s, o)
	if err != nil {
		panic(err)
	}
	return in
}

func TestInstrumentOfMemoryIsMemory(t *testing.T) {
	t.Parallel()
	wrap := func(s rs.Store) rs.Store { return instrument(s, rs.InstrumentOptions{}) }
	compareWithMemory(t, true, func(m *rs.Memory) rs.Store { return wrap(m) })
	requireEnds(t, wrap(rs.NewMemory()))
}

func TestInstrumentMeasures(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	f := rs.NewFaulty(rs.NewMemory(), rs.FaultyOptions{OnCall: func(c rs.Call) rs.Fault {
		switch {
		case c.Kind == rs.CallApply && len(c.Muts) == 2:
			return rs.Fault{Kind: rs.LoseReply}
		case c.Kind == rs.CallGroup && len(c.Groups) == 2:
			return rs.Fault{Kind: rs.LoseRow}
		case c.Kind == rs.CallRead && len(c.Reads) == 2:
			return rs.Fault{Kind: rs.FailRow}
		}
		return rs.Fault{}
	}})
	s := instrument(f, rs.InstrumentOptions{Meters: metric.NewMeterProvider(metric.WithReader(reader))})
	for name, ask := range askers {
		require.NoError(t, ask(t.Context(), s, "x", "y", "z").err, name)
		ask(t.Context(), s, "v", "w")
	}
	refused := rs.Mutation{Table: "t", Row: "x", Conditions: []rs.Condition{rs.Present("c", 1)}}
	require.False(t, apply(t, s, refused).Applied)
	require.Len(t, scanned(t, s, rs.ScanRange{Table: "t", Picks: everything, Limit: 2}), 2)
	tables(t, s)
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
