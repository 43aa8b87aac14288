package postgres

import (
	"context"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestConformanceHooks opens stores again, and breaks their connections on the way to the
// server. The server itself is shared, so it does not crash here.
func TestConformanceHooks(t *testing.T) {
	t.Parallel()
	direct := testserver.Postgres(t)
	hooks := func(t testing.TB) conformance.Hooked {
		u, err := url.Parse(with(direct, "schema", fresh(t, direct)))
		require.NoError(t, err)
		proxy, err := conformance.NewProxy(u.Host)
		require.NoError(t, err)
		atend.Do(t, func() { require.NoError(t, proxy.Close()) })
		u.Host = proxy.Addr()
		s, err := OpenURL(context.Background(), u.String())
		require.NoError(t, err)
		return conformance.Hooked{
			Store:  s,
			Reopen: func(ctx context.Context) (rowstore.Store, error) { return OpenURL(ctx, u.String()) },
			Break:  proxy.Break,
		}
	}
	open := func(t testing.TB) rowstore.Store { return openTest(t, with(direct, "schema", fresh(t, direct))) }
	conformance.RunHooks(t, open, conformance.WithHooks(hooks), conformance.Scale(0.3))
}
