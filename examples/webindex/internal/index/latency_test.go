package index

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/examples/webindex/internal/source"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A process that only loads keeps a bounded number of pages that it waits for: the newest.
func TestPendingPagesAreBounded(t *testing.T) {
	t.Parallel()
	l, at := newLatency(), time.Now()
	url := func(i int) string { return fmt.Sprint("https://a.example/", i) }
	for i := range mostPending + 10 {
		l.begin(url(i), "h").committed(at)
	}
	l.begin(url(10), "h2").committed(at) // one that is loaded again is no other one
	require.Len(t, l.pending, mostPending)
	require.Equal(t, mostPending, l.order.Len())
	for i := range mostPending + 10 {
		l.searchable(url(i), "h", at.Add(time.Second))
	}
	require.Equal(t, mostPending-1, l.distribution().Pages)
	require.Len(t, l.pending, 1)
	l.searchable(url(10), "h2", at.Add(time.Second))
	require.Equal(t, mostPending, l.distribution().Pages)
	require.Empty(t, l.pending)
	require.Zero(t, l.order.Len())
}

// An attempt that comes to nothing is waited for no longer: another process has stored the same page meanwhile, or the loading fails.
func TestAttemptsLeaveNothingPending(t *testing.T) {
	t.Parallel()
	ctx, inner := t.Context(), memstore.New()
	t.Cleanup(func() { _ = inner.Close() })
	var meanwhile atomic.Pointer[func()]
	store := faultstore.New(inner, faultstore.Options{KeepOpen: true, OnCall: func(c faultstore.Call) faultstore.Fault {
		if c.Kind == faultstore.CallGroup {
			if f := meanwhile.Swap(nil); f != nil {
				(*f)()
			}
		}
		return faultstore.Fault{}
	}})
	opened := func(store *faultstore.Store) *Index {
		db, err := percolator.New(ctx, store)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close(context.WithoutCancel(ctx))) })
		x, err := New(ctx, db)
		require.NoError(t, err)
		return x
	}
	rival, x := opened(faultstore.New(inner, faultstore.Options{KeepOpen: true})), opened(store)
	p, stats := source.Page{URL: "https://a.example/", Body: []byte("<p>a page</p>")}, &LoadStats{}
	first := func() { require.NoError(t, rival.put(ctx, "rival", p, &LoadStats{})) }
	meanwhile.Store(&first)
	require.NoError(t, x.put(ctx, "rival", p, stats))
	require.EqualValues(t, 1, stats.Unchanged.Load(), "there was no second attempt")
	require.Empty(t, x.latency.pending)

	ended, end := context.WithCancelCause(ctx)
	stop := func() { end(errors.New("enough")) }
	meanwhile.Store(&stop)
	p.Body = []byte("<p>another page</p>")
	require.Error(t, x.put(ended, "rival", p, stats))
	require.Empty(t, x.latency.pending)
	require.NoError(t, x.put(ctx, "rival", source.Page{URL: p.URL, Body: []byte("<p>a third page</p>")}, stats))
	require.Len(t, x.latency.pending, 1)
}
