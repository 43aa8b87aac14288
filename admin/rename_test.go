package admin_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
)

// TestWorkersOfARenamedObserver: a worker that began under the name of before is listed with what its observer is called now, and is
// counted as a worker of it.
func TestWorkersOfARenamedObserver(t *testing.T) {
	t.Parallel()
	db, _, r := open(t)
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	require.NoError(t, w.Observe(percolator.Observer{Name: "old", Table: "t", Column: "c", Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	require.NoError(t, w.WaitIdle(t.Context()))
	require.NoError(t, db.RenameObserver(t.Context(), "old", "new"))

	members, _, err := r.Members(t.Context(), "", 0)
	require.NoError(t, err)
	require.Len(t, members, 1)
	require.Equal(t, admin.Bytes("new"), members[0].Works[0].Observer)
	observers, err := r.Observers(t.Context(), 0)
	require.NoError(t, err)
	require.Len(t, observers, 1)
	require.Equal(t, 1, observers[0].Workers)
	stop()
	require.NoError(t, <-ended)
}
