package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func gracefulStop(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		started, release := make(chan struct{}, 10), make(chan struct{})
		o := copies("copy", "a", "b")
		run := o.Func
		o.Func = func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			started <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
			return run(ctx, tx, c)
		}
		r := w.work(db, quickWorker, o)
		r.idle()
		w.set(loader, col("r", "a"), "x")
		select {
		case <-started:
		case <-w.ctx.Done():
			w.Fatalf("the observer did not run")
		}
		r.stop()
		select {
		case <-r.done:
			w.Fatalf("Run returned while a function was running")
		default:
		}
		close(release)
		r.end()
		require.Equal(w, "x", w.now(loader, col("r", "b"))[0], "what is running when the worker stops is finished")
		w.set(loader, col("r", "a"), "y")
		require.Equal(w, "x", w.now(loader, col("r", "b"))[0])
		require.Error(w, r.WaitIdle(w.ctx))
		r = w.work(db, quickWorker, copies("copy", "a", "b"))
		r.idle()
		require.Equal(w, "y", w.now(loader, col("r", "b"))[0])
	})
}

func stopTimeout(t testing.TB, e *env) {
	w := e.world(t)
	db, loader := w.observed(), w.db()
	started := make(chan struct{}, 10)
	config := quickWorker
	config.StopTimeout = 20 * time.Millisecond
	r := w.work(db, config, observer("stubborn", "a", func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
		started <- struct{}{}
		<-ctx.Done()
		return errors.Join(tx.Set(col(c.Row, "b"), []byte("half done")), ctx.Err())
	}))
	r.idle()
	w.set(loader, col("r", "a"), "x")
	select {
	case <-started:
	case <-w.ctx.Done():
		t.Fatal("the observer did not run")
	}
	r.end()
	require.Equal(t, missing, w.now(loader, col("r", "b"))[0])
	r = w.work(db, quickWorker, copies("stubborn", "a", "b"))
	r.idle()
	require.Equal(t, "x", w.now(loader, col("r", "b"))[0], "the change is not forgotten")
}

func concurrencyIsBounded(t testing.TB, e *env) {
	w := e.world(t)
	db, loader := w.observed(), w.db()
	var inside, most atomic.Int64
	full := make(chan struct{})
	var once sync.Once
	config := quickWorker
	config.Concurrency = 4
	r := w.work(db, config, observer("slow", "a", func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
		n := inside.Add(1)
		defer inside.Add(-1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		if n == 4 {
			once.Do(func() { close(full) })
		}
		// All slots are used before the first one is given back.
		select {
		case <-full:
		case <-ctx.Done():
		}
		return tx.Set(col(c.Row, "b"), []byte("done"))
	}))
	r.idle()
	for i := range 20 {
		w.set(loader, col(key(i), "a"), "x")
	}
	r.idle()
	require.EqualValues(t, 4, most.Load())
	for i := range 20 {
		require.Equal(t, "done", w.now(loader, col(key(i), "b"))[0])
	}
}

// pushWakes checks that an idle worker is woken by the store: its next look by
// itself would come in an hour.
func pushWakes(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		ability[rowstore.Waker](w, w.inner, "Waker")
		db, loader := w.observed(), w.db()
		config := quickWorker
		config.Rescan = time.Hour
		ran := make(chan string, 100)
		r := w.work(db, config, observer("hears", "a", func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			v, err := get(ctx, tx, c)
			ran <- v
			return err
		}))
		r.idle()
		for i := range 5 {
			w.set(loader, col("other", "v"), "x", col("r", "a"), fmt.Sprint(i))
			for v := ""; v != fmt.Sprint(i); {
				select {
				case v = <-ran:
				case <-w.ctx.Done():
					w.Fatalf("the worker was not woken")
				}
			}
		}
		r.end()
	})
}

func observeRefuses(t testing.TB, e *env) {
	w := e.world(t)
	db := w.observed()
	f := func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }
	pw := percolator.NewWorker(db, quickWorker)
	good := percolator.Observer{Name: "o", Table: "t", Column: "c", Func: f}
	for i, o := range []percolator.Observer{
		{Table: "t", Column: "c", Func: f},
		{Name: "o", Column: "c", Func: f},
		{Name: "o", Table: "t", Func: f},
		{Name: "o", Table: "t", Column: "c"},
		{Name: strings.Repeat("x", 129), Table: "t", Column: "c", Func: f},
		{Name: "o", Table: "t", Column: "c", Func: f, Concurrency: -1},
	} {
		require.ErrorIs(t, pw.Observe(o), percolator.ErrInvalid, "observer %d", i)
	}
	require.NoError(t, pw.Observe(good))
	require.ErrorIs(t, pw.Observe(good), percolator.ErrInvalid, "the same name twice")
	good.Name = strings.Repeat("x", 128)
	require.NoError(t, pw.Observe(good), "a name of the greatest length")
	require.ErrorIs(t, db.Release(w.ctx, percolator.ParkedRun{Cell: one}), percolator.ErrInvalid)
	require.ErrorIs(t, db.Release(w.ctx, percolator.ParkedRun{Observer: "o"}), percolator.ErrInvalid)
}

func workerRunsOnce(t testing.TB, e *env) {
	w := e.world(t)
	db := w.observed()
	r := w.work(db, quickWorker, copies("copy", "a", "b"))
	r.idle()
	require.ErrorIs(t, r.Run(w.ctx), percolator.ErrWorkerRunning)
	require.ErrorIs(t, r.Observe(copies("late", "a", "c")), percolator.ErrWorkerRunning)
	cancelled, cancel := context.WithCancel(w.ctx)
	cancel()
	require.ErrorIs(t, r.WaitIdle(cancelled), context.Canceled)
	r.end()
	require.ErrorIs(t, r.Run(w.ctx), percolator.ErrWorkerRunning)
	w.set(db, col("r", "a"), "x")
	require.ErrorIs(t, r.WaitIdle(w.ctx), percolator.ErrClosed, "something is left, and nobody will do it")
	unstarted := percolator.NewWorker(db, quickWorker)
	require.ErrorIs(t, unstarted.WaitIdle(cancelled), context.Canceled, "WaitIdle waits for Run")
	require.NoError(t, unstarted.Run(cancelled))
}
