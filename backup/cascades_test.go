package backup

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestCascades backs up what a run has set off. The restored database does not track cascades, so no record of it says how its change came
// about, which programs of before could not read.
func TestCascades(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := openShop(t, "memory:")
	defer s.close(t)
	var hops []int
	watch := func(db *percolator.DB) *jobs {
		j := &jobs{db: db, worker: percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1})}
		require.NoError(t, j.worker.Observe(percolator.Observer{Name: "job", Table: "jobs", Column: "c", Func: func(_ context.Context, tx *percolator.Txn, c percolator.Cell) error {
			if hops = append(hops, tx.Hops()); c.Row != "first" {
				return nil
			}
			if err := tx.Notify(job("notified")); err != nil {
				return err
			}
			return tx.Set(job("written"), []byte("x"))
		}}))
		require.NoError(t, coretest.Publish(ctx, j.worker))
		return j
	}
	j := watch(s.db)
	require.NoError(t, coretest.KnowCascades(ctx, j.worker))
	s.update(t, func(tx *percolator.Txn) error { return tx.Set(job("first"), []byte("x")) })
	j.attempt(t)
	require.Equal(t, []string{"notified", "written"}, j.left(t))
	path := s.cutOff(t, 0)
	_, err := Write(ctx, s.db, path, Options{})
	require.NoError(t, err)
	j.attempt(t)
	require.Equal(t, []int{0, 1, 1}, hops)

	found := 0
	for _, versions := range contents(t, path) {
		for _, v := range versions {
			if v.Family == rowstore.Notify {
				found++
				said, err := format.CascadeOf(v.Value)
				require.NoError(t, err)
				require.Zero(t, said)
			}
		}
	}
	require.Equal(t, 2, found)
	again := watch(restored(t, "memory:", path).db)
	again.attempt(t)
	require.Equal(t, []int{0, 1, 1, 0, 0}, hops)
}
