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
