package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestReplay replays an observer by the command, while a worker of another process runs it.
func TestReplay(t *testing.T) {
	t.Parallel()
	ctx, store := t.Context(), unclosed{memstore.New()}
	db, err := percolator.New(ctx, store, percolator.WithSettings(percolator.Settings{CatalogLease: 50 * time.Millisecond, MaxTxnAge: time.Minute, Retention: time.Hour}))
	require.NoError(t, err)
	var runs atomic.Int64
	w := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1})
	require.NoError(t, w.Observe(percolator.Observer{Name: "ship", Table: "order", Column: "state", Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
		runs.Add(1)
		return nil
	}}))
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		return errors.Join(tx.Set(cell("order", "a1", "state"), nil), tx.Set(cell("order", "a2", "state"), nil), tx.Set(cell("order", "b", "state"), nil))
	}))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	require.NoError(t, w.WaitIdle(ctx))
	require.EqualValues(t, 3, runs.Load())
	opened := opener(func(context.Context, bool) (rowstore.Store, error) { return store, nil })
	command := func(args ...string) answer {
		var out, err strings.Builder
		status := run(ctx, args, strings.NewReader(""), &out, &err, opened)
		return answer{out.String(), err.String(), status}
	}

	require.Equal(t, exitUsage, command("observers", "replay", "ship", "order").status)
	for _, args := range [][]string{{"--from", "", "--to", "b"}, {"--from", "a", "--to", ""}, {"--prefix", ""}} {
		a := command(append([]string{"observers", "replay", "ship", "order"}, args...)...)
		require.Equal(t, exitUsage, a.status, "%q: a script whose variable is not set", args)
	}
	a := command("observers", "replay", "ship", "order", "--prefix", "a")
	require.Equal(t, exitOK, a.status, a.err)
	require.Contains(t, a.out, "the observer ship has run again for 2 cells; 0 runs were parked")
	require.EqualValues(t, 5, runs.Load())
	a = command("observers", "replay", "ship", "order", "--all", "-json")
	require.Equal(t, exitOK, a.status, a.err)
	require.Contains(t, a.out, `"cells": 3`)
	require.EqualValues(t, 8, runs.Load())

	require.NoError(t, db.PauseObserver(ctx, "ship"))
	a = command("observers", "replay", "ship", "order", "--all")
	require.Equal(t, exitError, a.status)
	require.Contains(t, a.err, "paused")
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, db.Close(ctx))
}
