package rowstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// guard is a Decorator that offers Splitter alone.
type guard struct{ storetest.Transparent }

func (g guard) Abilities() rs.Abilities {
	return rs.Abilities{Splitter: rs.AbilitiesOf(g.Store).Splitter}
}

// splits is a Wrapper with an ability of its own.
type splits struct {
	storetest.Transparent
	rs.Splitter
}

// TestWrapperMayHaveAbilities wants AbilitiesOf to find what Unwrap finds: a Wrapper's own
// ability before that of the store beneath.
func TestWrapperMayHaveAbilities(t *testing.T) {
	t.Parallel()
	own := splits{Splitter: memstore.New()}
	own.Store = memstore.New()
	for name, s := range map[string]rs.Store{"itself": own, "wrapped": storetest.Transparent{Store: own}} {
		one, ok := rs.Unwrap[rs.Splitter](s)
		require.True(t, ok, name)
		require.Equal(t, rs.Splitter(own), one, name)
		all := rs.AbilitiesOf(s)
		require.Equal(t, rs.Splitter(own), all.Splitter, name)
		require.Equal(t, rs.Grouper(own.Store.(*memstore.Store)), all.Grouper, "%s: the others are the store's", name)
	}
}

func TestUnwrap(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	has := func(s rs.Store) bool {
		g, ok := rs.Unwrap[rs.Grouper](s)
		require.Equal(t, ok, g != nil)
		return ok
	}
	require.True(t, has(m))
	require.False(t, has(nil))
	require.False(t, has(storetest.Plain{Store: m}))
	require.True(t, has(storetest.Transparent{Store: m}))
	require.True(t, has(storetest.Transparent{Store: storetest.Transparent{Store: m}}))
	require.False(t, has(storetest.Transparent{Store: storetest.Plain{Store: m}}))

	require.False(t, has(guard{storetest.Transparent{Store: m}}), "no look through a Decorator")
	require.False(t, has(storetest.Transparent{Store: guard{storetest.Transparent{Store: m}}}))
	s, ok := rs.Unwrap[rs.Splitter](storetest.Transparent{Store: guard{storetest.Transparent{Store: m}}})
	require.True(t, ok)
	require.Same(t, m, s)
	_, ok = rs.Unwrap[rs.Splitter](guard{storetest.Transparent{Store: storetest.Plain{Store: m}}})
	require.False(t, ok)
}
