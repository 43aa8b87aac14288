package conformance

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator"
)

func backfill(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		n := e.n(600, 200)
		require.NoError(w, loader.Update(w.ctx, func(tx *percolator.Txn) error {
			for i := range n {
				w.write(tx, col(key(i), "a"), fmt.Sprint(i))
			}
			return nil
		}))
		w.set(loader, col(key(3), "a"), missing, col("other", "z"), "x")
		for i := range 5 {
			w.set(loader, col(key(0), "a"), fmt.Sprint("again", i))
		}
		r := w.work(db, quickWorker, copies("copy", "a", "b"))
		r.idle()
		for i := range n {
			v := w.now(loader, col(key(i), "a"), col(key(i), "b"))
			if i == 3 {
				continue // a delete of long ago may be seen, or not
			}
			require.Equal(w, v[0], v[1], "row %d", i)
		}
		l := w.ledger(loader, "copy")
		require.Equal(w, "I", l[key(0)+"=again4"])
		for entry, runs := range l {
			require.Equal(w, "I", runs, entry)
		}
		// A second observer, later, sees all of it too; the first one nothing again.
		runs := db.Stats().ObserverRuns
		r.end()
		r = w.work(db, quickWorker, copies("copy", "a", "b"), copies("late", "a", "c"))
		r.idle()
		late := w.ledger(loader, "late")
		require.GreaterOrEqual(w, len(late), n-1)
		require.Equal(w, l, w.ledger(loader, "copy"))
		require.Equal(w, uint64(len(late)), db.Stats().ObserverRuns-runs)
	})
}

func observerThatComesBack(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		r := w.work(db, quickWorker, copies("copy", "a", "b"))
		w.set(loader, col("r1", "a"), "1", col("r2", "a"), "1", col("r3", "a"), "1")
		r.idle()
		r.end()
		require.NoError(w, db.RemoveObserver(w.ctx, "copy"))
		require.NoError(w, db.RemoveObserver(w.ctx, "copy"), "removing twice is no error")
		infos, err := loader.Observers(w.ctx)
		require.NoError(w, err)
		require.Empty(w, infos)
		w.set(loader, col("r2", "a"), "2", col("r4", "a"), "2")
		w.until("the loader to know that nobody observes", func() bool {
			return errors.Is(loader.Update(w.ctx, func(tx *percolator.Txn) error { return tx.Notify(col("x", "a")) }), percolator.ErrNotObserved)
		})
		w.set(loader, col("r5", "a"), "3")
		require.NotContains(w, w.notifications(), "r5.a", "nobody is notified for a column that is not observed")
		r = w.work(db, quickWorker, copies("copy", "a", "b"))
		r.idle()
		require.Equal(w, []string{"1", "2", "1", "2", "3"}, w.now(loader, col("r1", "b"), col("r2", "b"), col("r3", "b"), col("r4", "b"), col("r5", "b")))
		l := w.ledger(loader, "copy")
		delete(l, "x="+missing) // a hint from before it was removed
		require.Equal(w, map[string]string{"r1=1": "II", "r2=1": "I", "r3=1": "II", "r2=2": "I", "r4=2": "I", "r5=3": "I"}, l, "it begins anew, with what is there")
	})
}

// backfillUnderLoad adds an observer while loaders that know nothing of it write:
// no change may fall between the catalog and the sweep.
func backfillUnderLoad(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db := w.observed()
		loaders := []*percolator.DB{w.db(), w.db()}
		for i, l := range loaders {
			w.set(l, col(fmt.Sprint("warm", i), "z"), "the catalog is known")
		}
		var done atomic.Bool
		last := make([]map[string]string, len(loaders))
		var g errgroup.Group
		for i, l := range loaders {
			last[i] = map[string]string{}
			g.Go(func() error {
				for n := 0; !done.Load(); n++ {
					row, v := fmt.Sprintf("%d-%d", i, n%50), fmt.Sprint(n)
					if err := l.Update(w.ctx, func(tx *percolator.Txn) error {
						return errors.Join(tx.Set(col(row, "a"), []byte(v)), tx.Set(col("other "+row, "z"), []byte(v)))
					}); err != nil {
						return err
					}
					last[i][row] = v
					pause(w.ctx) // the loaders are not what is tested
				}
				return nil
			})
		}
		r := w.work(db, quickWorker, copies("copy", "a", "b"))
		w.until("the observer to be swept for", func() bool {
			infos, err := db.Observers(w.ctx)
			require.NoError(w, err)
			return len(infos) == 1 && infos[0].Swept
		})
		done.Store(true)
		require.NoError(w, g.Wait())
		r.idle()
		for _, m := range last {
			require.NotEmpty(w, m)
			for row, v := range m {
				require.Equal(w, []string{v, v}, w.now(db, col(row, "a"), col(row, "b")), "row %s", row)
			}
		}
	})
}

func othersNotificationsStay(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db1, db2, loader := w.observed(), w.db(), w.db()
		one, two := copies("one", "a", "b1"), copies("two", "a", "b2")
		r1 := w.work(db1, quickWorker, one)
		r1.idle()
		r1.end()
		r2 := w.work(db2, quickWorker, two)
		r2.idle()
		w.set(loader, col("r", "a"), "x")
		r2.idle() // for its own observers nothing is left
		require.Equal(w, []string{missing, "x"}, w.now(loader, col("r", "b1"), col("r", "b2")))
		require.Equal(w, []string{"r.a"}, w.notifications(), "the other observer has not seen the change")
		r1 = w.work(db1, quickWorker, one)
		r1.idle()
		require.Equal(w, []string{"x", "x"}, w.now(loader, col("r", "b1"), col("r", "b2")))
		require.Equal(w, map[string]string{"r=x": "I"}, w.ledger(loader, "two"))
		w.until("the notification to go", func() bool { return len(w.notifications()) == 0 })
	})
}
