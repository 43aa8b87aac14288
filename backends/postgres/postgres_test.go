package postgres

import (
	"context"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func TestMain(m *testing.M) {
	// The test of kills runs this binary again, as the process that is killed.
	if dsn := os.Getenv(childVariable); dsn != "" {
		os.Exit(killChild(dsn))
	}
	testserver.Main(m)
}

// with adds parameters to a URL.
func with(dsn string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		dsn += "&" + pairs[i] + "=" + strings.ReplaceAll(url.QueryEscape(pairs[i+1]), "+", "%20")
	}
	return dsn
}

// openTest opens a store and closes it when the test ends.
func openTest(t testing.TB, dsn string) *Store {
	t.Helper()
	s, err := OpenURL(context.Background(), dsn)
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	return s
}

// sizesElsewhere is why only some runs of the suite have tests of sizes.
const sizesElsewhere = "TestConformance and TestConformancePgBouncer have them"

// TestConformance lets each store of the store's part have a pool of its own. The other parts cannot tell.
func TestConformance(t *testing.T) {
	t.Parallel()
	direct, schemas := recycled(t)
	t.Run("Store", func(t *testing.T) {
		conformance.RunStore(t, func(t testing.TB) rowstore.Store {
			schema := schemas.schema(t)
			return openTest(t, with(direct, "schema", schema, "application_name", schema))
		}, conformance.Scale(0.1))
	})
	open := pooled(t, schemas, Options{})
	t.Run("Transactions", func(t *testing.T) { conformance.RunTransactions(t, open, conformance.Scale(0.1)) })
	t.Run("Observers", func(t *testing.T) { conformance.RunObservers(t, open, conformance.Scale(0.1)) })
}

// pooled opens stores as OpenURL does, but over pools that outlive them: their connections go on to the next test,
// with what they have planned.
func pooled(t testing.TB, schemas *recycler, opts Options) conformance.Open {
	t.Helper()
	a, _, err := splitURL(schemas.direct)
	require.NoError(t, err)
	return func(t testing.TB) rowstore.Store {
		pool, schema := schemas.pool(t, func() *pgxpool.Config {
			cfg, err := poolConfig(a)
			require.NoError(t, err)
			cfg.AfterConnect = makeReady
			cfg.MaxConns = 8 // of each schema, until all tests are over
			return cfg
		})
		opts := opts
		opts.Schema = schema
		s, err := open(context.Background(), pool, opts, false, false)
		require.NoError(t, err)
		return s
	}
}

// What is left out runs uncoalesced behind the pooler.
func TestConformanceUncoalesced(t *testing.T) {
	t.Parallel()
	_, schemas := recycled(t)
	conformance.RunStore(t, pooled(t, schemas, Options{NoCoalesce: true}), conformance.Scale(0.1), conformance.Without("TestConformancePgBouncer has them, uncoalesced too",
		conformance.Sizes, conformance.Conditions, conformance.Edits, conformance.Reads, conformance.Names, conformance.Arguments, conformance.Splitting))
}
