package main

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// watchedOracle notes when each timestamp was drawn.
type watchedOracle struct {
	oracle.Oracle
	mu    sync.Mutex
	asked map[uint64]int64 // when the draw was asked for, by the first timestamp
	drawn map[uint64]int64 // when it was answered
}

func (o *watchedOracle) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	asked := monotonic()
	ts, err := o.Oracle.Draw(ctx, n)
	if err == nil {
		o.mu.Lock()
		o.asked[uint64(ts)], o.drawn[uint64(ts)] = asked, monotonic()
		o.mu.Unlock()
	}
	return ts, err
}

// TestTimesOfAttempts makes sure that each attempt counts as begun before its start
// timestamp was asked for, and as ended after it was drawn, also when Update runs the
// function again: else an honest database would be accused of an order that is wrong.
func TestTimesOfAttempts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log, err := openJournal(filepath.Join(dir, "p"+logSuffix))
	require.NoError(t, err)
	o := &watchedOracle{Oracle: kit.NewBoundedOracle(kit.BoundedConfig{}), asked: map[uint64]int64{}, drawn: map[uint64]int64{}}
	store := memstore.New()
	db, err := percolator.New(t.Context(), store, percolator.WithOracle("watched", o))
	require.NoError(t, err)
	cell := "register0/a/value"
	s := &thread{db: db, log: log, tag: "p.0", rng: rand.New(rand.NewPCG(1, 1))} //nolint:gosec // choices, and no secrets
	for range 40 {
		attempts := 0
		_ = s.do(t.Context(), "register", mode{}, func(tx *txn) error {
			if attempts++; attempts < 3 {
				if err := db.Update(tx.ctx, func(other *percolator.Txn) error { return other.Set(cellOf(cell), pad("other")) }); err != nil {
					return err
				}
			}
			return tx.set(cell, s.unique())
		})
	}
	require.NoError(t, db.Close(t.Context()))
	require.NoError(t, log.close())
	h, err := readHistory(dir)
	require.NoError(t, err)
	again := 0
	var last *transaction
	for _, x := range h.Txns {
		require.LessOrEqual(t, x.Began, o.asked[x.Start], "%+v", x)
		require.GreaterOrEqual(t, x.Ended, o.drawn[x.Start], "%+v", x)
		if last != nil {
			require.Greater(t, x.Began, last.Ended, "a thread runs one after another")
			if last.Outcome == aborted && x.Outcome == committed {
				again++
			}
		}
		last = x
	}
	require.Positive(t, again)
}
