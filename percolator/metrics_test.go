package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
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

// ofObservers are the values of a metric, by observer.
func ofObservers[N int64 | float64](points []metricdata.DataPoint[N]) map[string]N {
	all := map[string]N{}
	for i := range points {
		name, _ := points[i].Attributes.Value("observer")
		all[name.AsString()] = points[i].Value
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

// TestBacklogOfSeveralTables: a table with more cells than are counted hides no other one, and the answer is the same each time.
func TestBacklogOfSeveralTables(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	w := newWorld(t)
	c := w.client(WithMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	worker := NewWorker(c.DB, WorkerConfig{})
	for _, table := range []string{"a", "b"} {
		require.NoError(t, worker.Observe(Observer{Name: table, Table: table, Column: "c", Func: func(context.Context, *Txn, Cell) error { return nil }}))
	}
	require.NoError(t, worker.publish(t.Context()))
	fill := func(table string, n int) {
		for i := range n {
			set(t, c.DB, Cell{Table: table, Row: fmt.Sprint(i), Column: "c"}, "1")
		}
	}
	fill("b", 2)
	w.pass(worldAge)
	fill("a", 5)
	first, err := c.Backlog(t.Context(), 3)
	require.NoError(t, err)
	require.Equal(t, 3, first.Cells)
	require.GreaterOrEqual(t, first.Oldest, worldAge, "the oldest one is of the second table")
	for range 50 {
		b, err := c.Backlog(t.Context(), 3)
		require.NoError(t, err)
		require.Equal(t, 3, b.Cells)
		require.InDelta(t, first.Oldest, b.Oldest, float64(worldAge/60))
	}
	for limit, want := range map[int]int{0: 7, 1: 1, 6: 6, 7: 7, 9: 7} {
		b, err := c.Backlog(t.Context(), limit)
		require.NoError(t, err)
		require.Equal(t, want, b.Cells, "limit %d", limit)
	}
	all := collect(t, reader)
	require.EqualValues(t, 7, all["percolator.backlog"].(metricdata.Gauge[int64]).DataPoints[0].Value)
	require.Equal(t, map[string]int64{"a": 5, "b": 2}, ofObservers(all["percolator.observer.backlog"].(metricdata.Gauge[int64]).DataPoints))
}

// Whoever alerts on old changes can leave paused observers out.
func TestPausedObserversAreMeasured(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	w := newWorld(t)
	w.observed("t", "v", "a", "b")
	c := w.client(WithMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	paused := func() map[string]int64 {
		return ofObservers(collect(t, reader)["percolator.observer.paused"].(metricdata.Gauge[int64]).DataPoints)
	}
	require.NoError(t, c.PauseObserver(t.Context(), "a"))
	require.Equal(t, map[string]int64{"a": 1, "b": 0}, paused())
	require.NoError(t, c.ResumeObserver(t.Context(), "a"))
	require.Equal(t, map[string]int64{"a": 0, "b": 0}, paused())
}

// A renamed observer has one name in all series: that which it is called by, whatever the program calls it.
func TestRenamedObserversAreMeasuredByTheirNames(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	db := open(t, memstore.New(), quick, WithMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	o := Observer{Name: "ship", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error { return nil }}
	first := NewWorker(db, WorkerConfig{})
	require.NoError(t, first.Observe(o))
	require.NoError(t, first.publish(t.Context()))
	require.NoError(t, db.RenameObserver(t.Context(), "ship", "ship2"))
	w := startWorker(t, db, WorkerConfig{}, o)
	set(t, db, Cell{"t", "r", "v"}, "1")
	idle(t, w)
	all := collect(t, reader)
	require.Equal(t, map[string]int64{"ship2": 0}, ofObservers(all["percolator.observer.paused"].(metricdata.Gauge[int64]).DataPoints))
	require.Equal(t, map[string]int64{"ship2": 0}, ofObservers(all["percolator.observer.backlog"].(metricdata.Gauge[int64]).DataPoints))
	require.Equal(t, map[string]float64{"ship2": 0}, ofObservers(all["percolator.observer.backlog.oldest"].(metricdata.Gauge[float64]).DataPoints))
	runs := all["percolator.observer.duration"].(metricdata.Histogram[float64]).DataPoints
	require.Len(t, runs, 1)
	name, _ := runs[0].Attributes.Value("observer")
	require.Equal(t, "ship2", name.AsString())
}

// countedParked counts the rows of parked runs that are read.
type countedParked struct {
	*memstore.Store
	rows *atomic.Int64
}

func (s countedParked) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		for row, err := range s.Store.Scan(ctx, r) {
			if r.Table == format.TableParked {
				s.rows.Add(1)
			}
			if !yield(row, err) {
				return
			}
		}
	}
}

// In a flood of parked runs a reading of the gauges still ends, and tells that there are many.
func TestFewParkedRunsAreCounted(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	read := &atomic.Int64{}
	db := open(t, countedParked{memstore.New(), read}, WithMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	put := func(kind format.Kind, from, to int) {
		t.Helper()
		require.NoError(t, db.Update(t.Context(), func(tx *Txn) error {
			for i := from; i < to; i++ {
				if err := tx.put(parkedIndex("o", Cell{"t", fmt.Sprintf("%06d", i), "c"}), kind, nil); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	counts := func(limit, want int) {
		t.Helper()
		n, err := db.countParked(t.Context(), limit)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	put(format.KindPut, 0, 10)
	for limit, want := range map[int]int{0: 10, 1: 1, 9: 9, 10: 10, 11: 10} {
		counts(limit, want)
	}
	put(format.KindDelete, 0, 9)
	counts(0, 1)
	counts(3, 1)
	counts(2, 1) // behind all that were released
	put(format.KindPut, 0, parkedMetric+500)
	require.Eventually(t, func() bool { // a reading that takes too long ends before it has counted all
		read.Store(0)
		return collect(t, reader)["percolator.parked"].(metricdata.Gauge[int64]).DataPoints[0].Value == parkedMetric
	}, patience, time.Millisecond)
	require.LessOrEqual(t, read.Load(), int64(parkedMetric+settleMost))
	b, err := db.Backlog(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, parkedMetric+500, b.Parked)
}
