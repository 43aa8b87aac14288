package percolator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/percolator/rowstore/otelstore"
)

func collect(t *testing.T, reader *sdkmetric.ManualReader) map[string]metricdata.Aggregation {
	t.Helper()
	var data metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &data))
	all := map[string]metricdata.Aggregation{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			all[m.Name] = m.Data
		}
	}
	return all
}

// checkObserverMetrics checks what is measured for each observer: one run was good, one failed, and a cell waits.
func checkObserverMetrics(t *testing.T, all map[string]metricdata.Aggregation) {
	t.Helper()
	results := map[string]uint64{}
	for _, p := range all["percolator.observer.duration"].(metricdata.Histogram[float64]).DataPoints {
		result, _ := p.Attributes.Value("result")
		results[result.AsString()] += p.Count
		name, _ := p.Attributes.Value("observer")
		require.Equal(t, "o", name.AsString())
	}
	require.Equal(t, map[string]uint64{"ok": 1, "failed": 1}, results)
	waiting := all["percolator.observer.backlog"].(metricdata.Gauge[int64]).DataPoints
	require.Len(t, waiting, 1)
	require.EqualValues(t, 1, waiting[0].Value)
	require.Len(t, all["percolator.observer.backlog.oldest"].(metricdata.Gauge[float64]).DataPoints, 1)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	store, err := otelstore.New(memstore.New(), otelstore.Options{Meters: meters})
	require.NoError(t, err)
	db, err := New(t.Context(), store, quick, WithMetrics(meters))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	w := NewWorker(db, WorkerConfig{MaxAttempts: 1})
	require.NoError(t, w.Observe(Observer{Name: "o", Table: "t", Column: "v", Func: func(_ context.Context, _ *Txn, c Cell) error {
		if c.Row == "bad" {
			return errors.New("on purpose")
		}
		return nil
	}}))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	set(t, db, Cell{"t", "good", "v"}, "1")
	set(t, db, Cell{"t", "bad", "v"}, "1")
	idle(t, w)
	cancel()
	require.NoError(t, <-ended)
	set(t, db, Cell{"t", "later", "v"}, "1") // nobody works: it stays

	value := func(data metricdata.Aggregation) int64 {
		switch d := data.(type) {
		case metricdata.Sum[int64]:
			return d.DataPoints[0].Value
		case metricdata.Gauge[int64]:
			return d.DataPoints[0].Value
		}
		t.Fatalf("no number: %T", data)
		return 0
	}
	all := collect(t, reader)
	for _, c := range statCounters {
		require.Contains(t, all, "percolator."+c.name)
	}
	require.EqualValues(t, 1, value(all["percolator.observer.runs"]))
	require.EqualValues(t, 1, value(all["percolator.observer.parked"]))
	require.EqualValues(t, 1, value(all["percolator.backlog"]))
	require.EqualValues(t, 1, value(all["percolator.parked"]))
	checkObserverMetrics(t, all)
	calls := map[string]uint64{}
	for _, p := range all["percolator.store.duration"].(metricdata.Histogram[float64]).DataPoints {
		call, _ := p.Attributes.Value("call")
		calls[call.AsString()] += p.Count
	}
	for _, call := range []string{"read", "apply", "group", "scan", "draw"} {
		require.Positive(t, calls[call], call)
	}
	b, err := db.Backlog(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, 1, b.Cells)
	require.Equal(t, 1, b.Parked)
	require.Less(t, b.Oldest, time.Hour)
	_, err = db.Backlog(t.Context(), -1)
	require.ErrorIs(t, err, ErrInvalid)
	require.NoError(t, db.Close(context.Background()))
	require.NotContains(t, collect(t, reader), "percolator.transactions")
}
