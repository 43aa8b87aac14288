package rowstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// The registry is the process's own and a scheme can be taken once, so each run
// of the test takes others.
var registerRuns atomic.Int64

func TestRegisterAndOpen(t *testing.T) {
	t.Parallel()
	run := registerRuns.Add(1)
	a, b, broken := fmt.Sprintf("a%d", run), fmt.Sprintf("b%d", run), fmt.Sprintf("broken%d", run)
	m := memstore.New()
	failure := errors.New("no such server")
	var opened string
	rs.Register(func(_ context.Context, url string) (rs.Store, error) {
		opened = url
		return m, nil
	}, a, b)
	rs.Register(func(context.Context, string) (rs.Store, error) { return nil, failure }, broken)

	s, err := rs.Open(t.Context(), b+"://host:1/path?x=y")
	require.NoError(t, err)
	require.Same(t, m, s)
	require.Equal(t, b+"://host:1/path?x=y", opened)
	_, err = rs.Open(t.Context(), broken+":")
	require.ErrorIs(t, err, failure)

	for _, url := range []string{"unknown://secret@host", a, "", "secret:5432/x", "1secret://host", "sec ret://host", "secret"} {
		_, err = rs.Open(t.Context(), url)
		require.ErrorIs(t, err, rs.ErrInvalid)
		for _, scheme := range []string{a, b, broken} {
			require.ErrorContains(t, err, scheme)
		}
		require.NotContains(t, err.Error(), "secret")
		require.NotContains(t, err.Error(), "sec ret")
	}
	require.True(t, slices.IsSorted(rs.Schemes()))
	require.Subset(t, rs.Schemes(), []string{a, b, broken})

	require.Panics(t, func() { rs.Register(rs.Open, broken) })
	require.Panics(t, func() { rs.Register(rs.Open, "") })
	require.Panics(t, func() { rs.Register[rs.Store](nil, "fine") })
}
