package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator"
)

// weakNotificationsOverlap has many transactions notify one cell at the same time.
// None conflicts with another, and the observer sees what all of them wrote.
func weakNotificationsOverlap(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		total := col("all", "dirty")
		r := w.work(db, quickWorker, observer("count", "dirty", func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			n := 0
			for _, err := range tx.Scan(ctx, percolator.Range{Table: "items"}) {
				if err != nil {
					return err
				}
				n++
			}
			return tx.Set(percolator.Cell{Table: "totals", Row: c.Row, Column: "n"}, []byte(fmt.Sprint(n)))
		}))
		r.idle()
		const workers = 6
		rounds := e.n(20, 6)
		var g errgroup.Group
		for i := range workers {
			g.Go(func() error {
				for n := range rounds {
					tx, err := loader.Begin(w.ctx)
					if err != nil {
						return err
					}
					if err := tx.Set(percolator.Cell{Table: "items", Row: fmt.Sprintf("%d-%d", i, n), Column: "v"}, []byte("x")); err != nil {
						return err
					}
					if err := errors.Join(tx.Notify(total), tx.Notify(total)); err != nil {
						return err
					}
					err = tx.Commit(w.ctx)
					for errors.Is(err, percolator.ErrConflict) && isCatalog(err) {
						// The machine was busy for a catalog lease: that is no conflict of
						// transactions.
						err = loader.Update(w.ctx, func(tx *percolator.Txn) error {
							return errors.Join(tx.Set(percolator.Cell{Table: "items", Row: fmt.Sprintf("%d-%d", i, n), Column: "v"}, []byte("x")), tx.Notify(total))
						})
					}
					if err != nil {
						return fmt.Errorf("a weak notification conflicts with nothing: %w", err)
					}
				}
				return nil
			})
		}
		require.NoError(w, g.Wait())
		r.idle()
		require.Equal(w, fmt.Sprint(workers*rounds), w.now(loader, percolator.Cell{Table: "totals", Row: "all", Column: "n"})[0])
		require.Equal(w, missing, w.now(loader, total)[0], "a notification writes nothing")
		w.cleared()
	})
}

// isCatalog tells a conflict in which no other transaction had a part.
func isCatalog(err error) bool {
	var c *percolator.ConflictError
	return errors.As(err, &c) && c.With == 0 && strings.Contains(c.Reason, "catalog")
}

func weakOfAnUnwrittenCell(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		// Calls may be more: one that ends with a conflict is made again.
		runs := func() uint64 { return db.Stats().ObserverRuns }
		r := w.work(db, quickWorker, observer("count", "a", func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }))
		r.idle()
		w.set(loader, col("written", "a"), "x")
		r.idle()
		require.EqualValues(w, 1, runs())
		for i, row := range []string{"unwritten", "written", "written"} {
			var tx *percolator.Txn
			require.NoError(w, loader.Update(w.ctx, func(u *percolator.Txn) error {
				tx = u
				return u.Notify(col(row, "a"))
			}), "a transaction of a notification alone")
			require.NotZero(w, tx.CommitTimestamp())
			r.idle()
			require.EqualValues(w, i+2, runs(), "a run for the hint on %s", row)
		}
		// One that is rolled back is none.
		tx := w.begin(loader)
		require.NoError(w, tx.Notify(col("unwritten", "a")))
		require.NoError(w, tx.Rollback(w.ctx))
		r.idle()
		require.EqualValues(w, 4, runs())
	})
}

func notifyOfAnUnobservedColumn(t testing.TB, e *env) {
	w := e.world(t)
	db, loader := w.observed(), w.db()
	notify := func(c percolator.Cell) error {
		return loader.Update(w.ctx, func(tx *percolator.Txn) error {
			return errors.Join(tx.Set(col("beside", "v"), []byte("x")), tx.Notify(c))
		})
	}
	require.ErrorIs(t, notify(col("r", "a")), percolator.ErrNotObserved)
	require.Equal(t, missing, w.now(loader, col("beside", "v"))[0], "nothing took effect")
	r := w.work(db, quickWorker, copies("copy", "a", "b"))
	r.idle()
	w.until("the loader to know the observer", func() bool {
		err := notify(col("r", "a"))
		if !errors.Is(err, percolator.ErrNotObserved) {
			require.NoError(t, err)
		}
		return err == nil
	})
	require.ErrorIs(t, notify(col("r", "b")), percolator.ErrNotObserved)
	require.ErrorIs(t, notify(percolator.Cell{Table: "other", Row: "r", Column: "a"}), percolator.ErrNotObserved)
}
