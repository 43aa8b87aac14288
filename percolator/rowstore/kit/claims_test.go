package kit_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func TestClaims(t *testing.T) {
	t.Parallel()
	var claims kit.Claims[string]
	a, ok := claims.Claim("a")
	require.True(t, ok)
	b, ok := claims.Claim("b")
	require.True(t, ok)
	other, ok := claims.Claim("a")
	require.False(t, ok)
	require.NoError(t, other())
	_, ok = claims.Claim("a")
	require.False(t, ok, "who has not got it cannot give it up")
	require.NoError(t, a())
	again, ok := claims.Claim("a")
	require.True(t, ok)
	require.NoError(t, a()) // of the first claim, which is over
	_, ok = claims.Claim("a")
	require.False(t, ok)
	require.NoError(t, again())
	require.NoError(t, b())
}

func TestClaimsAtOnce(t *testing.T) {
	t.Parallel()
	var claims kit.Claims[int]
	var wg sync.WaitGroup
	var won atomic.Int32
	for range 16 {
		wg.Go(func() {
			if _, ok := claims.Claim(7); ok {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, won.Load())
}
