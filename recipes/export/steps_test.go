package export

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestFaultAtEachStep has an exporter that dies or loses a reply at one of its steps; and another one that exports the same key then. The sink, which checks epochs, gets each
// item once and in order, and nothing is left.
func TestFaultAtEachStep(t *testing.T) {
	t.Parallel()
	faultAtEachStep(t, &recorder{}, Options{Batch: 1, Timeout: everystore.FaultLease / leaseTimeouts})
}

// TestFaultAtEachStepOfADoubt has a sink that refuses any batch, and takes single items.
func TestFaultAtEachStepOfADoubt(t *testing.T) {
	t.Parallel()
	sink := &recorder{before: func(_ string, items []Item) (int, error) {
		if len(items) > 1 {
			return 0, errRefused
		}
		return 1, nil
	}}
	faultAtEachStep(t, sink, Options{Skip: true, MaxAttempts: 1, Timeout: everystore.FaultLease / leaseTimeouts})
}

func faultAtEachStep(t *testing.T, sink *recorder, opt Options) {
	t.Helper()
	ctx := t.Context()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	second := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	o := newOutbox(t, second)
	w, stop := run(t, second, observer(t, o, sink, Options{}))
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	again := 0
	everystore.EachFault(t, inner, func(name string, db *percolator.DB) {
		put(t, o, name, "1", "2")
		put(t, o, name, "3")
		first := newExporter(newOutbox(t, db), sink, opt).export(ctx, string(rowOf(name)))
		if first == nil {
			require.Equal(t, []string{"1", "2", "3"}, sink.payloads(name), name)
			require.Zero(t, left(t, o), "%s: it was acknowledged", name)
		}
		require.Eventually(t, func() bool {
			return newExporter(o, sink, Options{Skip: true, MaxAttempts: 1}).export(ctx, string(rowOf(name))) == nil
		}, time.Minute, time.Millisecond, "%s: the key stays claimed after %v", name, first)
		require.Equal(t, []string{"1", "2", "3"}, sink.payloads(name), "%s: %v", name, first)
		require.Zero(t, left(t, o), name)
		require.Zero(t, claims(t, o), name)
		require.Zero(t, dead(t, o), name)
		again = sink.again
	})
	require.Positive(t, again, "no note was lost")
}
