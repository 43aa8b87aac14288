package percolator

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// overdueGauge reads the gauge of a client, whose metrics go to the reader.
func overdueGauge(t *testing.T, reader *sdkmetric.ManualReader) time.Duration {
	t.Helper()
	points := collect(t, reader)["percolator.gc.overdue"].(metricdata.Gauge[float64]).DataPoints
	require.Len(t, points, 1)
	return time.Duration(points[0].Value * float64(time.Second))
}

// The gauge tells for how much longer than the retention history is kept, for whatever reason, and nothing while nothing is to be collected.
func TestOverdueCollectionIsMeasured(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reader := sdkmetric.NewManualReader()
	c := w.client(WithMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	about := func(want time.Duration, when string) {
		t.Helper()
		require.InDelta(t, want, overdueGauge(t, reader), float64(worldRetention/360), when)
	}
	collects := func() {
		t.Helper()
		_, err := w.collect(c, 0)
		require.NoError(t, err)
	}
	about(0, "the database is new")
	set(t, c.DB, rowA, "1")
	set(t, c.DB, rowA, "2")
	require.NoError(t, c.storeHints(t.Context()))
	w.clock.advance(worldRetention / 2)
	about(0, "history need not be collected yet")
	w.clock.advance(5 * worldRetention / 2)
	require.InDelta(t, 2*worldRetention, overdueGauge(t, reader), float64(worldAge), "nothing was ever collected, and a hint stands for some time")
	collects()
	about(0, "it was collected")
	w.clock.advance(worldRetention / 2)
	about(worldRetention/2, "nobody collects")
	w.configured(c, Settings{Retention: 2 * worldRetention})
	about(0, "the retention was made longer")
	h := held(t, c, "backup", longTTL)
	w.clock.advance(4 * worldRetention)
	collects()
	about(2*worldRetention, "a hold keeps history")
	require.NoError(t, h.Release(t.Context()))
	collects()
	about(0, "the hold has ended")
}

// So it does for a table whose retention is shorter.
func TestOverdueCollectionOfAShortTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reader := sdkmetric.NewManualReader()
	c := w.client(WithMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	_, err := w.collect(c, 0)
	require.NoError(t, err)
	w.configuredTable(c, "queue", short)
	w.clock.advance(worldAge)
	require.Less(t, overdueGauge(t, reader), 2*worldAge, "transactions from before may run on")
	w.clock.advance(2 * shortRetention)
	require.Greater(t, overdueGauge(t, reader), worldRetention/2, "the table has all the history that the others have")
	w.cleaned(c)
	require.Less(t, overdueGauge(t, reader), worldAge/30)
	w.clock.advance(worldAge)
	require.InDelta(t, worldAge, overdueGauge(t, reader), float64(worldAge/30))
	// A collection of the short tables alone is none of all.
	runs := c.Stats().GCRuns
	_, err = w.collectWithin(c)
	require.NoError(t, err)
	require.Equal(t, runs, c.Stats().GCRuns)
	require.InDelta(t, worldAge, overdueGauge(t, reader), float64(worldAge/30), "the other tables")
	_, err = w.collect(c, 0)
	require.NoError(t, err)
	require.Equal(t, runs+1, c.Stats().GCRuns)
	require.Less(t, overdueGauge(t, reader), worldAge/30)
}
