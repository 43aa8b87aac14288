package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

func failureAndParking(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		var attempts atomic.Int64
		var broken atomic.Bool
		broken.Store(true)
		o := observer("picky", "a", func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			v, err := get(ctx, tx, c)
			if err != nil {
				return err
			}
			if v == "bad" && broken.Load() {
				// What a failed call wrote must not take effect.
				return errors.Join(tx.Set(col(c.Row, "b"), []byte("half done")), fmt.Errorf("attempt %d: no good", attempts.Add(1)))
			}
			return tx.Set(col(c.Row, "b"), []byte(v))
		})
		o.MaxAttempts = 4
		r := w.work(db, quickWorker, o)
		w.set(loader, col("r1", "a"), "good", col("r2", "a"), "bad", col("r3", "a"), "good")
		r.idle()
		require.EqualValues(w, 4, attempts.Load())
		require.Equal(w, []string{"good", missing, "good"}, w.now(loader, col("r1", "b"), col("r2", "b"), col("r3", "b")))
		parked, err := r.from.Parked(w.ctx)
		require.NoError(w, err)
		require.Len(w, parked, 1)
		require.Equal(w, "picky", parked[0].Observer)
		require.Equal(w, col("r2", "a"), parked[0].Cell)
		require.Equal(w, 4, parked[0].Attempts)
		require.Contains(w, parked[0].Error, "attempt 4: no good", "the last error is kept")
		require.NotZero(w, parked[0].Change)
		w.cleared() // a parked run counts as covering its change
		s := db.Stats()
		require.Equal(w, uint64(4), s.ObserverFailures)
		require.Equal(w, uint64(1), s.ObserverParked)

		// Released while it is still broken: attempted again, with a fresh count.
		require.NoError(w, r.from.Release(w.ctx, parked...))
		r.idle()
		require.EqualValues(w, 8, attempts.Load())
		broken.Store(false)
		again, err := loader.Parked(w.ctx)
		require.NoError(w, err)
		require.Len(w, again, 1)
		require.NoError(w, loader.Release(w.ctx, again...), "any process may release")
		r.idle()
		require.Equal(w, "bad", w.now(loader, col("r2", "b"))[0])
		parked, err = r.from.Parked(w.ctx)
		require.NoError(w, err)
		require.Empty(w, parked)
		require.NoError(w, r.from.Release(w.ctx, again...), "releasing what is not parked is no error")
		r.idle()
	})
}

func laterChangeOfAParkedCell(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		good := copies("copy", "a", "b")
		run := good.Func
		good.Func = func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			if v, err := get(ctx, tx, c); err != nil || v == "bad" {
				return fmt.Errorf("no good: %w", errors.Join(err, errors.New("bad value")))
			}
			return run(ctx, tx, c)
		}
		other := copies("other", "a", "c")
		r := w.work(db, quickWorker, good, other)
		w.set(loader, col("r", "a"), "bad")
		r.idle()
		parked, err := r.from.Parked(w.ctx)
		require.NoError(w, err)
		require.Len(w, parked, 1)
		require.Equal(w, []string{missing, "bad"}, w.now(loader, col("r", "b"), col("r", "c")), "the other observer of the column is not held up")
		w.set(loader, col("r", "a"), "good")
		r.idle()
		require.Equal(w, []string{"good", "good"}, w.now(loader, col("r", "b"), col("r", "c")))
		parked, err = r.from.Parked(w.ctx)
		require.NoError(w, err)
		require.Empty(w, parked, "a later run that succeeds takes the parked one away")
	})
}

func panicIsAFailure(t testing.TB, e *env) {
	w := e.world(t)
	db, loader := w.observed(), w.db()
	r := w.work(db, quickWorker, observer("panics", "a", func(_ context.Context, tx *percolator.Txn, c percolator.Cell) error {
		if c.Row == "bad" {
			var row any = len(c.Row)
			return tx.Set(c, row.([]byte)) // a panic of the runtime
		}
		if c.Row == "worse" {
			panic(fmt.Errorf("on purpose"))
		}
		return tx.Set(col(c.Row, "b"), []byte("done"))
	}))
	w.set(loader, col("bad", "a"), "x", col("good", "a"), "x", col("worse", "a"), "x")
	r.idle()
	require.Equal(t, []string{missing, "done", missing}, w.now(loader, col("bad", "b"), col("good", "b"), col("worse", "b")))
	parked, err := r.from.Parked(w.ctx)
	require.NoError(t, err)
	require.Len(t, parked, 2)
	for _, p := range parked {
		require.Equal(t, quickWorker.MaxAttempts, p.Attempts)
		if p.Cell.Row == "worse" {
			require.Contains(t, p.Error, "on purpose")
		}
	}
	w.set(loader, col("good too", "a"), "x")
	r.idle()
	require.Equal(t, "done", w.now(loader, col("good too", "b"))[0], "the worker works on")
}

func conflictsDoNotCount(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		var calls atomic.Int64
		r := w.work(db, quickWorker, observer("conflicts", "a", func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			n := calls.Add(1)
			// Others change what it writes, many more times than MaxAttempts.
			if _, err := get(ctx, tx, col(c.Row, "b")); err != nil {
				return err
			}
			if n <= 8 {
				if err := loader.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(col(c.Row, "b"), []byte(fmt.Sprint(n))) }); err != nil {
					return err
				}
			}
			return tx.Set(col(c.Row, "b"), []byte("done"))
		}))
		w.set(loader, col("r", "a"), "x")
		r.idle()
		require.Equal(w, "done", w.now(loader, col("r", "b"))[0])
		require.GreaterOrEqual(w, calls.Load(), int64(9))
		require.GreaterOrEqual(w, db.Stats().ObserverConflicts, uint64(8))
		require.Zero(w, db.Stats().ObserverFailures)
	})
}

// attemptsAreKept stops the worker between the attempts: the count goes on in the
// store.
func attemptsAreKept(t testing.TB, e *env) {
	w := e.world(t)
	db, loader := w.observed(), w.db()
	var attempts atomic.Int64
	failed := make(chan struct{}, 100)
	slow := quickWorker
	slow.MaxAttempts = 5
	slow.Backoff = percolator.Backoff{Min: 20 * time.Millisecond, Max: 40 * time.Millisecond}
	o := observer("fails", "a", func(context.Context, *percolator.Txn, percolator.Cell) error {
		attempts.Add(1)
		failed <- struct{}{}
		return errors.New("never")
	})
	r := w.work(db, slow, o)
	r.idle()
	w.set(loader, col("r", "a"), "x")
	for range 2 {
		select {
		case <-failed:
		case <-w.ctx.Done():
			t.Fatal("the observer did not run")
		}
	}
	w.until("the second failure to be stored", func() bool { return db.Stats().ObserverFailures >= 2 })
	r.end()
	before := attempts.Load()
	r = w.work(db, slow, o)
	r.idle()
	// An attempt whose failure was not stored, because the worker stopped, is not
	// counted, so there may be one more for each stop.
	require.LessOrEqual(t, attempts.Load(), int64(5+1), "%d attempts before the stop", before)
	parked, err := r.from.Parked(w.ctx)
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.Equal(t, 5, parked[0].Attempts)
}
