package percolator

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A collection that goes on with what another one published has not waited for the safe points of tables that were raised
// since, and must not say so: who goes on next would remove what some views still show. And while it is at it, no other
// worker begins, however late the collection is.
func TestResumedCollectionKnowsNoNewerPoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, err := New(t.Context(), memstore.New(), WithSettings(Settings{MaxTxnAge: time.Minute, Retention: 10 * time.Minute, CatalogLease: 10 * time.Second}))
		require.NoError(t, err)
		short := TableSettings{MaxTxnAge: 10 * time.Second, Retention: time.Minute}
		require.NoError(t, db.ConfigureTable(t.Context(), "t", short))
		set(t, db, rowA, "1")
		time.Sleep(20 * time.Minute)
		_, err = db.CollectGarbage(t.Context(), GCOptions{}) // the table is clean from here on
		require.NoError(t, err)
		time.Sleep(20 * time.Minute)

		// One publishes, and ends while it waits.
		first := &gcPass{db: db, report: &GCReport{}}
		require.NoError(t, first.publish(t.Context(), 0))
		brief, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		require.ErrorIs(t, first.outlast(brief), context.DeadlineExceeded)

		// Long after that the points of the table are raised, and another one goes on.
		time.Sleep(40 * time.Minute)
		require.NoError(t, (&gcPass{db: db, within: short.Retention, report: &GCReport{}}).publish(t.Context(), 0))
		next := &gcPass{db: db, goesOn: true, report: &GCReport{}}
		require.NoError(t, next.publish(t.Context(), 0))
		require.True(t, next.resumed)
		require.Empty(t, next.own, "nobody has waited for the points of the table")
		require.NoError(t, next.outlast(t.Context()))

		v, err := db.loadCatalog(t.Context())
		require.NoError(t, err)
		require.True(t, v.unfinished())
		require.Less(t, v.collected.Whole.Points, v.pointsAt)
		third := &gcPass{db: db, goesOn: true, report: &GCReport{}}
		require.NoError(t, third.publish(t.Context(), 0))
		require.True(t, third.resumed)
		require.Empty(t, third.own)
		w := NewWorker(db, WorkerConfig{})
		require.Positive(t, w.collectionDue(v), "another worker is at it")
		require.NoError(t, db.Close(t.Context()))
	})
}
