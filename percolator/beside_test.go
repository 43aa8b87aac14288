package percolator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// oneThread is a store whose server does one call after the other, in the order in which they come.
type oneThread struct {
	*memstore.Store
	mu   sync.Mutex
	free time.Time // when it has done all calls that have come
}

const (
	serverCall = 20 * time.Microsecond
	serverRow  = 10 * time.Microsecond
	network    = 50 * time.Microsecond // each way
)

func (s *oneThread) serve(rows int) {
	time.Sleep(network)
	s.mu.Lock()
	now := time.Now()
	if s.free.Before(now) {
		s.free = now
	}
	s.free = s.free.Add(serverCall + time.Duration(rows)*serverRow)
	wait := s.free.Sub(now)
	s.mu.Unlock()
	time.Sleep(wait + network)
}

func (s *oneThread) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	s.serve(len(muts))
	return s.Store.Apply(ctx, muts, opts)
}

func (s *oneThread) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	s.serve(len(groups))
	return s.Store.Group(ctx, groups)
}

func (s *oneThread) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	s.serve(len(reads))
	return s.Store.Read(ctx, reads)
}

// latencies of small transactions, until over is closed, the shortest first.
func smallTransactions(t *testing.T, db *DB, over <-chan struct{}) (all []time.Duration) {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(i))) //nolint:gosec // fixed, so that all runs are alike
			cell := Cell{"small", fmt.Sprint(i), "c"}
			for errs[i] == nil {
				select {
				case <-over:
					return
				case <-time.After(2*time.Millisecond + time.Duration(rnd.Int64N(int64(time.Millisecond)))):
				}
				began := time.Now()
				errs[i] = db.Update(t.Context(), func(tx *Txn) error {
					if _, err := tx.Get(t.Context(), cell); err != nil && !errors.Is(err, ErrNotFound) {
						return err
					}
					return tx.Set(cell, []byte("small"))
				})
				mu.Lock()
				all = append(all, time.Since(began))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	slices.Sort(all)
	return all
}

// Beside a large transaction, small ones take about as long as alone, and the large one does not
// take much longer than the server needs for it. All times are of a bubble.
func TestSmallBesideLarge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &oneThread{Store: memstore.New()}
		db, err := New(t.Context(), s, WithSettings(Settings{MaxTxnAge: 2 * time.Hour, Retention: 24 * time.Hour, CatalogLease: time.Hour}))
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close(t.Context())) }()
		over := make(chan struct{})
		time.AfterFunc(time.Second, func() { close(over) })
		alone := smallTransactions(t, db, over)
		over = make(chan struct{})
		const rows = 20_000
		var took time.Duration
		large := async(func() error {
			defer close(over)
			began := time.Now()
			err := setAll(t.Context(), db, sample(rows, 0, 0))
			err = errors.Join(err, db.drained(t.Context()))
			took = time.Since(began)
			return err
		})
		beside := smallTransactions(t, db, over)
		require.NoError(t, <-large)
		require.Greater(t, len(beside), 100)
		at := func(all []time.Duration, percent int) time.Duration { return all[len(all)*percent/100] }
		t.Log(at(alone, 50), at(beside, 50), at(alone, 99), at(beside, 99), took)
		require.Less(t, at(beside, 50), at(alone, 50)+pieceTakes/2)
		require.Less(t, at(beside, 99), at(alone, 99)+pieceTakes)
		require.Less(t, took, 2*2*rows*serverRow)
	})
}
