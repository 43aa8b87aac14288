package percolator

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A function that ends its goroutine has failed. Its job neither keeps its place, nor holds up WaitIdle, nor keeps the cell from others by a claim.
func TestFunctionThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	exits := func(context.Context, RunError) { runtime.Goexit() }
	for name, test := range map[string]struct {
		f       func(ctx context.Context, tx *Txn, c Cell) error
		onError func(ctx context.Context, e RunError)
	}{
		"function":               {func(context.Context, *Txn, Cell) error { runtime.Goexit(); return nil }, nil},
		"upkeep of what it sets": {func(_ context.Context, tx *Txn, _ Cell) error { return tx.Set(Cell{"t", "r", "v"}, []byte("x")) }, nil},
		"end of the transaction": {func(_ context.Context, tx *Txn, _ Cell) error {
			if err := tx.OnEnd(func(error) { runtime.Goexit() }); err != nil {
				return err
			}
			panic("too")
		}, nil},
		"what is told of it":      {func(context.Context, *Txn, Cell) error { panic("first") }, exits},
		"both":                    {func(context.Context, *Txn, Cell) error { runtime.Goexit(); return nil }, exits},
		"what it asks to be told": {func(context.Context, *Txn, Cell) error { return Park(nil) }, exits},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, memstore.New())
			u := byValue()
			u.Keep = func(context.Context, *Txn, []RowChange) error { runtime.Goexit(); return nil }
			_, err := db.DefineIndex(t.Context(), u)
			require.NoError(t, err)
			w := NewWorker(db, WorkerConfig{Concurrency: 1, MaxAttempts: 3, Backoff: Backoff{Min: time.Millisecond, Max: time.Millisecond}})
			require.NoError(t, w.Observe(Observer{Name: "o", Table: "in", Column: "v", Func: func(ctx context.Context, tx *Txn, c Cell) error {
				if c.Row == "good" {
					return nil
				}
				return test.f(ctx, tx, c)
			}}))
			if test.onError != nil {
				require.NoError(t, w.OnError(test.onError))
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- w.Run(ctx) }()
			for _, row := range []string{"bad", "good"} {
				set(t, db, Cell{"in", row, "v"}, "1")
			}
			idle, stop := context.WithTimeout(ctx, 20*time.Second)
			defer stop()
			require.NoError(t, w.WaitIdle(idle))
			parked, err := db.Parked(ctx)
			require.NoError(t, err)
			require.Len(t, parked, 1, "it counts as a failure")
			require.NoError(t, db.WaitObserved(idle, 0, "o", Cell{"in", "good", "v"}))
			require.Empty(t, w.jobs)
			cancel()
			require.NoError(t, <-ended)
		})
	}
}
