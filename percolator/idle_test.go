package percolator

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func TestWaitIdleAndRunEndWithTheirContexts(t *testing.T) {
	t.Parallel()
	// A process that does nothing goes by the catalog without the observer: the sweep never comes.
	mem, lease := memstore.New(), WithSettings(Settings{CatalogLease: time.Hour})
	open(t, unclosedMemory{mem}, lease)
	db := open(t, unclosedMemory{mem}, lease)
	w := NewWorker(db, WorkerConfig{})
	require.NoError(t, w.Observe(Observer{Name: "o", Table: "t", Column: "v", Func: nothing}))
	ctx, cancel := context.WithCancel(t.Context())
	before := async(func() error { return w.WaitIdle(ctx) }) // before Run
	cancel()
	require.ErrorIs(t, result(t, before), context.Canceled)
	runCtx, stop := context.WithCancel(t.Context())
	running := async(func() error { return w.Run(runCtx) })
	waiting := async(func() error { return w.WaitIdle(context.Background()) })
	ctx, cancel = context.WithCancel(t.Context())
	during := async(func() error { return w.WaitIdle(ctx) })
	cancel()
	require.ErrorIs(t, result(t, during), context.Canceled)
	stop()
	require.NoError(t, result(t, running))
	require.ErrorIs(t, result(t, waiting), ErrClosed)
	ended, end := context.WithCancel(t.Context())
	end()
	require.NoError(t, NewWorker(db, WorkerConfig{}).Run(ended))
}

// Commits to tables that the worker does not observe do not keep WaitIdle from its
// answer.
func TestWaitIdleAmongOthersPushes(t *testing.T) {
	t.Parallel()
	dbs, taps := clients(t, 1, false)
	w := startWorker(t, dbs[0], WorkerConfig{}, Observer{Name: "o", Table: "t", Column: "v", Func: nothing})
	idle(t, w)
	var pushes atomic.Int64
	push := func(rowstore.ScanRange) {
		pushes.Add(1)
		w.kick(rowstore.Wake{Table: "another"})
	}
	taps[0].onScan.Store(&push)
	idle(t, w)
	require.Positive(t, pushes.Load())
}

// WaitIdle of a worker whose Run has ended says so, whatever is left.
func TestWaitIdleAfterRun(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New(), quick)
	w := NewWorker(db, WorkerConfig{})
	require.NoError(t, w.Observe(Observer{Name: "o", Table: "t", Column: "v", Func: nothing}))
	ctx, cancel := context.WithCancel(t.Context())
	done := async(func() error { return w.Run(ctx) })
	idle(t, w)
	cancel()
	require.NoError(t, result(t, done))
	for range 100 {
		require.ErrorIs(t, w.WaitIdle(t.Context()), ErrClosed)
	}
}

// A client that commits behind the first look is found by the second, which goes the other
// way.
func TestWaitIdleLooksBothWays(t *testing.T) {
	t.Parallel()
	dbs, taps := clients(t, 2, true)
	w := startWorker(t, dbs[0], WorkerConfig{Poll: Backoff{Min: time.Hour, Max: time.Hour}}, Observer{Name: "o", Table: "t", Column: "v", Func: nothing})
	idle(t, w)
	before := dbs[0].Stats().ObserverRuns
	var looks atomic.Int64
	var once sync.Once
	commit := func(r rowstore.ScanRange) {
		if r.Limit > 0 {
			return // the scanner's
		}
		if looks.Add(1) == 2 {
			once.Do(func() { set(t, dbs[1], Cell{"t", "r", "v"}, "x") })
		}
	}
	taps[0].onScan.Store(&commit)
	idle(t, w)
	require.GreaterOrEqual(t, looks.Load(), int64(4))
	require.Equal(t, before+1, dbs[0].Stats().ObserverRuns)
}

// A worker that waits for nothing remembers nobody who asked.
func TestWaitIdleLeavesNothing(t *testing.T) {
	t.Parallel()
	dbs, _ := clients(t, 1, false)
	w := startWorker(t, dbs[0], WorkerConfig{}, Observer{Name: "o", Table: "t", Column: "v", Func: nothing})
	for range 10 {
		idle(t, w)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Empty(t, w.idle)
}
