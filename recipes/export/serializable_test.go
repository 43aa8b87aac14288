package export

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestBusyKeyUnderASerializableDefault has an item of the key put before each commit of the exporter. That is no conflict, whatever level the DB has for transactions that name none.
func TestBusyKeyUnderASerializableDefault(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	other := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	o := newOutbox(t, other)
	w, stop := run(t, other, observer(t, o, &recorder{}, Options{}))
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	put(t, o, "k", "1", "2")
	var puts atomic.Int64
	var armed atomic.Bool
	db := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true, OnCall: func(c faultstore.Call) faultstore.Fault {
		if armed.Load() && (c.Kind == faultstore.CallGroup || c.Kind == faultstore.CallApply) && puts.Add(1) < 50 { // else an exporter that they do hold up would go on for ever
			put(t, o, "k", "more")
		}
		return faultstore.Fault{}
	}}), percolator.WithDefaultIsolation(percolator.Serializable))
	sink := &recorder{}
	e := newExporter(newOutbox(t, db), sink, Options{Timeout: time.Minute})
	armed.Store(true)
	require.NoError(t, e.export(ctx, string(rowOf("k"))))
	armed.Store(false)
	require.Equal(t, []string{"1", "2"}, sink.payloads("k")[:2])
	require.Positive(t, puts.Load())
	require.Zero(t, db.Stats().Conflicts)
}
