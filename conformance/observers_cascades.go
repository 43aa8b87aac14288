package conformance

import (
	"context"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// cascadesEnd has two observers set each other off without end. Each run finds how many lie before it, in whatever way the one before was
// committed, and by whichever process; and at the limit the run is parked.
func cascadesEnd(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		const most = 5
		db, loader := w.observed(), w.db()
		require.NoError(w, db.TrackCascades(w.ctx))
		// beats writes how many runs lie before its own writes, and a cell in another table besides, so that some stores take two phases.
		beats := func(name, from, to string) percolator.Observer {
			return percolator.Observer{Name: name, Table: "t", Column: from, MaxHops: most, Func: func(_ context.Context, tx *percolator.Txn, c percolator.Cell) error {
				n := []byte(strconv.Itoa(tx.Hops() + 1))
				if err := tx.Set(percolator.Cell{Table: "beside", Row: c.Row + name, Column: "v"}, n); err != nil {
					return err
				}
				return tx.Set(col(c.Row, to), n)
			}}
		}
		there, back := beats("there", "a", "b"), beats("back", "b", "a")
		r := w.work(db, quickWorker, there, back)
		other := w.work(w.db(), quickWorker, there, back)
		idle := func() {
			r.idle()
			other.idle()
		}
		idle()
		require.NoError(w, loader.Update(w.ctx, func(tx *percolator.Txn) error { return tx.Set(col("r", "a"), []byte("0")) }))
		left := func(a, b string) percolator.ParkedRun {
			idle()
			require.NoError(w, loader.View(w.ctx, func(tx *percolator.Txn) error {
				got, err := tx.GetMany(w.ctx, col("r", "a"), col("r", "b"))
				require.Equal(w, a+" "+b, string(got[col("r", "a")])+" "+string(got[col("r", "b")]))
				return err
			}))
			parked, err := db.Parked(w.ctx)
			require.NoError(w, err)
			require.Len(w, parked, 1)
			require.Contains(w, parked[0].Error, percolator.ErrTooManyHops.Error())
			return parked[0]
		}
		parked := left("4", "5")
		require.Equal(w, col("r", "b"), parked.Cell)
		require.NoError(w, db.Release(w.ctx, parked))
		parked = left("5", "4")
		require.Equal(w, col("r", "a"), parked.Cell)
	})
}
