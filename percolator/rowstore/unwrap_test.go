package rowstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

// plain hides the optional abilities of a store: embedded as a Store, it has no
// other methods.
type plain struct{ rs.Store }

// transparent is a Wrapper.
type transparent struct{ rs.Store }

func (w transparent) Unwrap() rs.Store { return w.Store }

// guard is a Decorator that offers Splitter alone.
type guard struct{ transparent }

func (g guard) Offer(target any) bool {
	if s, ok := target.(*rs.Splitter); ok {
		*s, ok = rs.Unwrap[rs.Splitter](g.Store)
		return ok
	}
	return false
}

func TestUnwrap(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	has := func(s rs.Store) bool {
		g, ok := rs.Unwrap[rs.Grouper](s)
		require.Equal(t, ok, g != nil)
		return ok
	}
	require.True(t, has(m))
	require.False(t, has(nil))
	require.False(t, has(plain{m}))
	require.True(t, has(transparent{m}))
	require.True(t, has(transparent{transparent{m}}))
	require.False(t, has(transparent{plain{m}}))

	require.False(t, has(guard{transparent{m}}), "no look through a Decorator")
	require.False(t, has(transparent{guard{transparent{m}}}))
	s, ok := rs.Unwrap[rs.Splitter](transparent{guard{transparent{m}}})
	require.True(t, ok)
	require.Same(t, m, s)
	_, ok = rs.Unwrap[rs.Splitter](guard{transparent{plain{m}}})
	require.False(t, ok)
}
