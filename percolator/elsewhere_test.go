package percolator

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/percolator/rowstore/router"
)

// over makes a store of two, of which one is authoritative. Table "t" is in "a". The two outlive it.
func over(t *testing.T, a, b rowstore.Store, authoritative string) rowstore.Store {
	t.Helper()
	r, err := router.New(router.Config{Stores: map[string]rowstore.Store{"a": a, "b": b}, Tables: map[string]string{"t": "a"}, Authoritative: authoritative})
	require.NoError(t, err)
	return faultstore.New(coalesce.New(r, coalesce.Options{}), faultstore.Options{KeepOpen: true, Seed: 1})
}

func requireEmpty(t *testing.T, s rowstore.Store) {
	t.Helper()
	for name, err := range s.Tables(t.Context()) {
		require.NoError(t, err)
		require.Fail(t, "nothing is written", name)
	}
}

// Where another store of a router was authoritative before, no second catalog is made: its timestamps would be of another oracle.
func TestNoSecondCatalogOverARouter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := &away{Store: memstore.New()}, memstore.New()
		defer func() { require.NoError(t, a.Store.Close()) }()
		first, err := New(t.Context(), over(t, a, b, "a"))
		require.NoError(t, err)
		set(t, first, rowA, "1")
		require.NoError(t, first.Close(t.Context()))

		n := 0
		a.refuse = func() bool { n++; return n < 3 } // the look is repeated, as every call
		_, err = New(t.Context(), over(t, a, b, "b"))
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, `"a"`)
		require.Equal(t, 3, n)
		requireEmpty(t, b)
		_, err = New(t.Context(), over(t, a, b, "b"), WithExisting())
		require.ErrorIs(t, err, ErrNoStore)

		// While it cannot be known, no catalog is made either.
		a.refuse = func() bool { return true }
		_, err = New(t.Context(), over(t, a, b, "b"), WithStorePatience(time.Second))
		require.ErrorIs(t, err, rowstore.ErrUnavailable)
		requireEmpty(t, b)

		a.refuse = nil
		again, err := New(t.Context(), over(t, a, b, "a"))
		require.NoError(t, err)
		require.Equal(t, "1", get(t, again, rowA))
		require.NoError(t, again.Close(t.Context()))
	})
}
