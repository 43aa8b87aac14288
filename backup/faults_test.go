package backup

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// aloof is a shop whose server is away for the writes of holds while away is set.
func aloof(t *testing.T, patience time.Duration, meets func()) (s *shop, away *atomic.Bool) {
	t.Helper()
	away = &atomic.Bool{}
	store := faultstore.New(memstore.New(), faultstore.Options{})
	db, err := percolator.New(t.Context(), store, percolator.WithStorePatience(patience),
		percolator.WithSettings(percolator.Settings{MaxTxnAge: time.Minute, Retention: time.Hour, CatalogLease: 300 * time.Millisecond}))
	require.NoError(t, err)
	s = &shop{db: db}
	atend.Do(t, func() { s.close(t) })
	store.AddRule(faultstore.Rule{Times: -1, Match: func(c *faultstore.Call) bool {
		return away.Load() && c.Kind == faultstore.CallApply && len(c.Muts) > 0 && c.Muts[0].Table == format.TableCatalog
	}, Before: func(context.Context, *faultstore.Call) faultstore.Fault {
		meets()
		return faultstore.Fault{Kind: faultstore.Fail, Err: rowstore.ErrUnavailable}
	}})
	s.update(t, func(tx *percolator.Txn) error { return tx.Set(at("orders", "a1", "amount"), amount(1)) })
	return s, away
}

// TestHoldMeetsAFault: the server is away when the hold is renewed for the last time, and when the next call takes it again. The hold stands, so what is written so far is as good as before.
func TestHoldMeetsAFault(t *testing.T) {
	t.Parallel()
	s, away := aloof(t, time.Millisecond, func() {})
	path := filepath.Join(t.TempDir(), "backup")
	first, err := Write(t.Context(), s.db, path, Options{Progress: func(Progress) { away.Store(true) }})
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	require.NotErrorIs(t, err, ErrLapsed)
	require.NotErrorIs(t, err, percolator.ErrSnapshotTooOld)
	_, err = Write(t.Context(), s.db, path, Options{})
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	require.NotErrorIs(t, err, ErrLapsed)
	away.Store(false)
	again, err := Write(t.Context(), s.db, path, Options{})
	require.NoError(t, err)
	require.True(t, again.Resumed)
	require.Equal(t, first.ID, again.ID)
	_, err = Verify(t.Context(), path, nil)
	require.NoError(t, err)
}

// TestEndIsCancelled: whoever waits for the last call to a server that is away can give up, and go on later.
func TestEndIsCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, away := aloof(t, 2*time.Second, cancel)
	path := filepath.Join(t.TempDir(), "backup")
	_, err := Write(ctx, s.db, path, Options{Progress: func(Progress) { away.Store(true) }})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ErrLapsed)
	away.Store(false)
	again, err := Write(t.Context(), s.db, path, Options{})
	require.NoError(t, err)
	require.True(t, again.Resumed)
}
