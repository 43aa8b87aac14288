package percolator

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// runCell is what a worker does about a notified cell, one observer after the other,
// until one has run, failed, or cannot go on.
func (w *Worker) runCell(ctx context.Context, c Cell) (result nextStep, wait time.Duration, err error) {
	for _, q := range w.queuesOf(c) {
		before := w.db.Stats()
		r := w.attempt(ctx, &task{job: job{c, q.o}, q: q})
		after := w.db.Stats()
		if r.next != runDone && r.next != runWaiting || after.ObserverRuns > before.ObserverRuns || after.ObserverCleared > before.ObserverCleared {
			return r.next, r.wait, r.err
		}
		if r.next == runWaiting && (wait == 0 || r.wait < wait) {
			result, wait = r.next, r.wait
		}
	}
	return result, wait, nil
}

// Two workers that run the same observer for the same change: one takes effect.
func TestAcknowledgmentsConflict(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		var s1, s2 saw
		w1, w2 := watching(t, w.client(opts...), s1.observer("o")), watching(t, w.client(opts...), s2.observer("o"))
		set(t, w1.db, rowA, "1")
		s1.during = func(tx *Txn) {
			if err := tx.Set(rowB, []byte("by 1")); err != nil {
				t.Error(err)
			}
			runs(t, w2, rowA)
		}
		s2.during = func(tx *Txn) {
			if err := tx.Set(rowC, []byte("by 2")); err != nil {
				t.Error(err)
			}
		}
		require.Equal(t, runConflict, look(t, w1, rowA))
		require.Equal(t, []string{"1", "1"}, append(s1.values, s2.values...))
		rests(t, w1, rowA)
		require.Empty(t, w.notified(rowA))
		other := w.client()
		require.Equal(t, "none by 2", value(t, other, rowB)+" "+value(t, other, rowC))
	})
}

// Several changes may come as one run, and an observer may change what it observes.
func TestCollapseAndSelfNotification(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		c := w.client(opts...)
		var s saw
		wk := watching(t, c, s.observer("o"))
		for i := range 5 {
			set(t, c.DB, rowA, fmt.Sprint(i))
		}
		require.Len(t, w.notified(rowA), 5)
		runs(t, wk, rowA)
		rests(t, wk, rowA)
		require.Equal(t, []string{"4"}, s.values)
		s.during = func(tx *Txn) {
			if n := len(s.values); n < 4 {
				if err := tx.Set(rowA, []byte(fmt.Sprint("again", n))); err != nil {
					t.Error(err)
				}
			}
		}
		set(t, c.DB, rowA, "5")
		for len(w.notified(rowA)) > 0 {
			look(t, wk, rowA)
		}
		require.Equal(t, []string{"4", "5", "again2", "again3"}, s.values)
	})
}

func TestWeakNotifications(t *testing.T) {
	t.Parallel()
	for name, opts := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, memstore.New(), append([]Option{quick}, opts...)...)
			ctx := t.Context()
			total := Cell{"sum", "all", "dirty"}
			w := startWorker(t, db, WorkerConfig{}, Observer{Name: "sum", Table: "sum", Column: "dirty", Func: func(ctx context.Context, tx *Txn, c Cell) error {
				n := 0
				for _, err := range tx.Scan(ctx, Range{Table: "items"}) {
					if err != nil {
						return err
					}
					n++
				}
				c.Column = "count"
				return tx.Set(c, []byte(fmt.Sprint(n)))
			}})
			idle(t, w)
			err := db.Update(ctx, func(tx *Txn) error { return tx.Notify(Cell{"sum", "all", "unwatched"}) })
			require.ErrorIs(t, err, ErrNotObserved)
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					for i := range 25 {
						if err := db.Update(ctx, func(tx *Txn) error {
							if err := tx.Set(Cell{"items", fmt.Sprint(g, ".", i), "v"}, nil); err != nil {
								return err
							}
							return tx.Notify(total)
						}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			idle(t, w)
			require.Equal(t, "100", get(t, db, Cell{"sum", "all", "count"}))
			require.NoError(t, db.Update(ctx, func(tx *Txn) error { return tx.Notify(total) }))
			idle(t, w)
			require.GreaterOrEqual(t, db.Stats().ObserverRuns, uint64(2))
			require.Zero(t, db.Stats().ObserverFailures)
		})
	}
}

// A commit that comes between the snapshot of a run and its view is a reason to run again, for
// the look that finds it.
func TestChangeBetweenSnapshotAndView(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o", "foreign") // whose notification stays
	c, other := w.client(), w.client()
	c.snapshotReader = nil
	var s saw
	wk := watching(t, c, s.observer("o"))
	set(t, c.DB, rowA, "1")
	q := wk.list[0]
	run := &task{job: job{rowA, q.o}, q: q, running: true}
	wk.jobs[run.job] = run
	view := c.hold(t, op(faultstore.CallRead))
	attempt := async(func() error { return wk.attempt(t.Context(), run).err })
	view.wait()
	require.NoError(t, other.Update(t.Context(), func(tx *Txn) error { return tx.Notify(rowA) }))
	view.release(verdict{})
	require.NoError(t, result(t, attempt))
	require.False(t, run.again)
	_, err := wk.look(t.Context(), "t", nil, 0)
	require.NoError(t, err)
	require.True(t, run.again)
}
