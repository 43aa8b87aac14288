package combine

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestBusyValueUnderASerializableDefault combines a value to which somebody adds before each commit. An addition is no conflict, whatever level the DB has for transactions that name none.
func TestBusyValueUnderASerializableDefault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := faultstore.New(memstore.New(), faultstore.Options{})
		db, err := percolator.New(t.Context(), store, percolator.WithDefaultIsolation(percolator.Serializable))
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close(contextAfter(t.Context()))) }()
		const gone = 20
		for range gone {
			add(t, counter(t, db), "hot", 1) // processes that have gone
		}
		time.Sleep(2 * idleAfter)
		var adds atomic.Int64
		var busy atomic.Bool
		store.AddRule(faultstore.Rule{
			Times: -1, Match: func(c *faultstore.Call) bool { return c.Kind == faultstore.CallGroup || c.Kind == faultstore.CallApply },
			Before: func(context.Context, *faultstore.Call) faultstore.Fault {
				if busy.CompareAndSwap(false, true) {
					other := counter(t, db)
					other.looksFor = 1 << 62
					add(t, other, "hot", 1)
					adds.Add(1)
					busy.Store(false)
				}
				return faultstore.Fault{}
			},
		})
		n, err := counter(t, db).Combine(t.Context(), "hot")
		require.NoError(t, err)
		require.Equal(t, gone, n)
		require.Positive(t, adds.Load())
		store.SetRules()
		require.EqualValues(t, gone+adds.Load(), get(t, counter(t, db), "hot"))
	})
}
