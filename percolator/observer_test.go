package percolator

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func nothing(context.Context, *Txn, Cell) error { return nil }

func TestObserveRefuses(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New(), quick)
	w := NewWorker(db, WorkerConfig{})
	good := Observer{Name: "o", Table: "t", Column: "v", Func: nothing}
	for name, change := range map[string]func(o *Observer){
		"no name":                 func(o *Observer) { o.Name = "" },
		"the limit is 128":        func(o *Observer) { o.Name = strings.Repeat("x", format.MaxObserverName+1) },
		"no function":             func(o *Observer) { o.Func = nil },
		"table's name is empty":   func(o *Observer) { o.Table = "" },
		"column's name is empty":  func(o *Observer) { o.Column = "" },
		"table's name has 513":    func(o *Observer) { o.Table = strings.Repeat("x", 513) },
		"column's name has 10000": func(o *Observer) { o.Column = strings.Repeat("x", 10000) },
		`"o" has Concurrency -1;`: func(o *Observer) { o.Concurrency = -1 },
	} {
		o := good
		change(&o)
		err := w.Observe(o)
		require.ErrorContains(t, err, name)
		if strings.Contains(name, "name has") {
			require.ErrorIs(t, err, ErrTooLarge)
		} else {
			require.ErrorIs(t, err, ErrInvalid)
		}
	}
	require.NoError(t, w.Observe(good))
	require.ErrorIs(t, w.Observe(good), ErrInvalid, "registered twice")
	other := good
	other.Name = "another on the column"
	require.NoError(t, w.Observe(other))
	ctx, cancel := context.WithCancel(t.Context())
	done := async(func() error { return w.Run(ctx) })
	idle(t, w)
	late := good
	late.Name = "late"
	require.ErrorIs(t, w.Observe(late), ErrWorkerRunning)
	require.ErrorIs(t, w.Run(ctx), ErrWorkerRunning)
	cancel()
	require.NoError(t, result(t, done))
	require.ErrorIs(t, w.Run(ctx), ErrWorkerRunning)
	set(t, db, rowA, "left")
	require.ErrorIs(t, w.WaitIdle(t.Context()), ErrClosed)
	infos, err := db.Observers(t.Context())
	require.NoError(t, err)
	require.Len(t, infos, 2)
}
