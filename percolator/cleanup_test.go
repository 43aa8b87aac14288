package percolator

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// sticky is a store whose locks cannot be removed for a time.
type sticky struct {
	rowstore.Store
	stuck atomic.Bool
	tries atomic.Int64
}

func (s *sticky) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	for _, m := range muts {
		for _, e := range m.Edits {
			if e.Family == rowstore.Lock && e.Kind == rowstore.DoDelete && m.Table[0] != 0 && s.stuck.Load() {
				s.tries.Add(1)
				return nil, errors.New("locks are stuck")
			}
		}
	}
	return s.Store.Apply(ctx, muts, opts)
}

// A living process goes on to remove the locks of a transaction that failed for as long
// as others have to respect them, however short the catalog lease is: they would wait
// for nothing else.
func TestCleanUpGoesOnWhileLocksHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := memstore.New()
		s := &sticky{Store: m}
		db, err := New(t.Context(), s, WithOracle("memory", m.Oracle()), WithLockExpiry(time.Minute), WithSessionLease(time.Minute),
			WithSettings(Settings{MaxTxnAge: 20 * time.Second, Retention: time.Hour, CatalogLease: 100 * time.Millisecond}))
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close(t.Context())) }()
		a, b := Cell{"t", "a", "v"}, Cell{"t", "b", "v"}
		tx, err := db.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Get(t.Context(), b)
		require.ErrorIs(t, err, ErrNotFound)
		require.NoError(t, errors.Join(tx.Set(a, []byte("1")), tx.Set(b, []byte("1"))))
		require.NoError(t, db.Update(t.Context(), func(tx *Txn) error { return tx.Set(b, []byte("2")) }))
		s.stuck.Store(true)
		require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict)
		time.Sleep(30 * time.Second)
		require.Positive(t, s.tries.Load())
		s.stuck.Store(false)
		before := time.Now()
		require.NoError(t, db.Update(t.Context(), func(tx *Txn) error {
			v, err := tx.Get(t.Context(), a)
			require.ErrorIs(t, err, ErrNotFound)
			return tx.Set(a, append(v, '3'))
		}))
		require.Less(t, time.Since(before), 10*time.Second, "a writer waited for the lock to expire")
	})
}
