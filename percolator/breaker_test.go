package percolator

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A breaker opens when nearly all of many cells have failed, and no sooner.
func TestBreaker(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	b := &breaker{at: 10}
	for range 1000 {
		require.False(t, b.bad(rowA, now), "one cell says nothing about the others")
	}
	for i := range 1000 { // half of them fail
		require.False(t, b.bad(row(fmt.Sprint(i)), now))
		require.False(t, b.good(row(fmt.Sprint("good", i))))
	}
	for i := range 9 {
		require.False(t, b.bad(row(fmt.Sprint(i)), now))
	}
	require.Zero(t, b.wait(now))
	require.True(t, b.bad(row("9"), now))

	// Runs that had begun by then say nothing about whether the cause is mended.
	for i := range 15 {
		require.False(t, b.bad(row(fmt.Sprint("late", i)), now))
	}
	// One run is let through after a second, and one after each longer wait.
	for _, wait := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		require.Equal(t, wait*time.Second, b.wait(now))
		now = now.Add(wait * time.Second)
		require.Zero(t, b.wait(now))
		require.Positive(t, b.wait(now), "only one")
		require.False(t, b.bad(rowA, now))
	}
	require.True(t, b.good(rowB))
	require.Zero(t, b.wait(now))
	for i := range 9 {
		require.False(t, b.bad(row(fmt.Sprint(i)), now), "it begins anew")
	}
	require.True(t, b.bad(rowA, now))
	require.Equal(t, time.Second, b.wait(now))

	never := &breaker{at: -1}
	for i := range 1000 {
		require.False(t, never.bad(row(fmt.Sprint(i)), now))
	}
	require.Empty(t, never.failed)
}

// A worker whose observer's every run fails parks few changes of many, and runs them all when
// the cause is mended. Another observer is not held up.
func TestObserverThatAlwaysFails(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New(), quick)
	var broken atomic.Bool
	broken.Store(true)
	var good, failed atomic.Int64
	w := startWorker(t, db, WorkerConfig{BreakAt: 20, MaxAttempts: 1},
		Observer{Name: "fails", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error {
			if broken.Load() {
				failed.Add(1)
				return errTest
			}
			return nil
		}}, counts("good", &good))
	idle(t, w)
	const cells = 2000
	for i := range cells {
		set(t, db, row(fmt.Sprint(i)), "1")
	}
	require.Eventually(t, func() bool { return good.Load() >= cells && db.Stats().ObserverBroken == 1 }, patience, time.Millisecond)
	parked, err := db.Parked(t.Context())
	require.NoError(t, err)
	require.Less(t, len(parked), 200) // those that ran when it was enough, too
	broken.Store(false)
	idle(t, w)
	parked, err = db.Parked(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, failed.Load(), len(parked))
	require.EqualValues(t, cells-len(parked)+cells, db.Stats().ObserverRuns)
}
