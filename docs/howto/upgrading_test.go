package howto

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// TestNewVersionOfAnObserver: a new name makes an observer run for all data that is there.
func TestNewVersionOfAnObserver(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	column := func(name string) func(context.Context, *percolator.Txn, percolator.Cell) error {
		return func(ctx context.Context, tx *percolator.Txn, changed percolator.Cell) error {
			return tx.Set(percolator.Cell{Table: "note", Row: changed.Row, Column: name}, []byte("done"))
		}
	}
	v1 := percolator.Observer{Name: "count", Table: "note", Column: "text", Func: column("old")}
	w := startWorker(t, db, v1)
	put(t, db, "1", "a note")
	require.NoError(t, w.WaitIdle(ctx))

	v2 := percolator.Observer{Name: "count-2", Table: "note", Column: "text", Func: column("new")}
	both := startWorker(t, db, v1, v2)
	require.NoError(t, both.WaitIdle(ctx))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		done, err := tx.Get(ctx, percolator.Cell{Table: "note", Row: "1", Column: "new"})
		require.Equal(t, "done", string(done))
		return err
	}))
	observers, err := db.Observers(ctx)
	require.NoError(t, err)
	require.Len(t, observers, 2)
}

func TestRemovingAnObserver(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), openTest(t)
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	require.NoError(t, w.Observe(percolator.Observer{Name: "count", Table: "note", Column: "text", Func: countWords}))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.NoError(t, <-ended)

	// Once no process runs it any more:
	require.NoError(t, db.RemoveObserver(ctx, "count"))
	observers, err := db.Observers(ctx)
	require.NoError(t, err)
	require.Empty(t, observers)
}
