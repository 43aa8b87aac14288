package export

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestPageBeginsBehindWhatWasSent has a turn of many pages. Rows that were sent and removed lie in the store until they are collected, so each page
// that began before them would read them again.
func TestPageBeginsBehindWhatWasSent(t *testing.T) {
	t.Parallel()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	var mu sync.Mutex
	var from []string
	db := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true, OnCall: func(c faultstore.Call) faultstore.Fault {
		mu.Lock()
		defer mu.Unlock()
		if c.Kind == faultstore.CallScan && c.Range.Table == "outbox" {
			from = append(from, string(c.Range.From))
		}
		return faultstore.Fault{}
	}}))
	o := newOutbox(t, db)
	percolatetest.RunUntilIdle(t, db, observer(t, o, &recorder{}, Options{}))
	const pages, size = 10, 8
	for i := range pages * size {
		put(t, o, "k", fmt.Sprint(i))
	}
	mu.Lock()
	from = nil
	mu.Unlock()
	sink := &recorder{}
	e := newExporter(o, sink, Options{})
	e.page = size
	require.NoError(t, e.export(t.Context(), string(rowOf("k"))))
	require.Len(t, sink.payloads("k"), pages*size)
	mu.Lock()
	defer mu.Unlock()
	require.GreaterOrEqual(t, len(from), pages)
	for i := 1; i < len(from); i++ {
		require.Greater(t, from[i], from[i-1], "scan %d", i)
	}
}

// TestPagesInAnyOrderOfCommits has transactions that begin, put and commit in a random order, also while the sink is called: pages of any size send each
// item once, in the order of the commits.
func TestPagesInAnyOrderOfCommits(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64() //nolint:gosec // a seed that is printed
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // as above
	for range 20 {
		ctx := t.Context()
		db, o := opened(t)
		var open []*percolator.Txn
		begun, items := 0, 0
		step := func() {
			if begun < 60 && random.IntN(3) > 0 {
				tx, err := db.Begin(ctx)
				require.NoError(t, err)
				for range 1 + random.IntN(3) {
					items++
					require.NoError(t, o.Put(ctx, tx, "k", []byte("x")))
				}
				open = append(open, tx)
				begun++
			} else if len(open) > 0 {
				i := random.IntN(len(open))
				require.NoError(t, open[i].Commit(ctx))
				open = append(open[:i], open[i+1:]...)
			}
		}
		for range 50 {
			step()
		}
		sink := &recorder{before: func(_ string, given []Item) (int, error) {
			for range random.IntN(4) {
				step()
			}
			return 1 + random.IntN(len(given)), nil
		}}
		e := newExporter(o, sink, Options{Batch: 1 + random.IntN(5)})
		e.page = 2 + random.IntN(6)
		for begun < 60 || len(open) > 0 {
			step()
			if random.IntN(4) == 0 {
				require.NoError(t, e.export(ctx, string(rowOf("k"))))
			}
		}
		require.NoError(t, e.export(ctx, string(rowOf("k"))))
		require.Zero(t, left(t, o))
		require.Len(t, sink.payloads("k"), items)
		require.Zero(t, sink.again, "in the order of commits, each once")
	}
}
