package once

import (
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestSweepUnderASerializableDefault has other keys used before each commit of a sweep. That is no conflict, whatever level the DB has for transactions that name none.
func TestSweepUnderASerializableDefault(t *testing.T) {
	t.Parallel()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	other := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	const gone = 200
	ended(t, other, gone)
	busy := numbers(t, other)
	busy.lookEvery = 1 << 62
	var used atomic.Int64
	var armed atomic.Bool
	db := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true, OnCall: func(c faultstore.Call) faultstore.Fault {
		if armed.Load() && (c.Kind == faultstore.CallGroup || c.Kind == faultstore.CallApply) && used.Load() < 100 { // else a sweep that they do hold up would go on for ever
			for range 8 {
				use(t, busy, "new "+strconv.FormatInt(used.Add(1), 10))
			}
		}
		return faultstore.Fault{}
	}}), percolator.WithDefaultIsolation(percolator.Serializable))
	armed.Store(true)
	n, err := numbers(t, db).Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, gone, n)
	require.Positive(t, used.Load())
	require.Zero(t, db.Stats().Conflicts)
}
