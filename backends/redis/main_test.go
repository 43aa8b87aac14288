package redis

import (
	"context"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func TestMain(m *testing.M) {
	testserver.Main(m)
}

var prefixes atomic.Int64

// with adds parameters to a server's URL, and a prefix that no other test has.
func with(t testing.TB, raw string, params ...string) string {
	t.Helper()
	u, q := raw, ""
	for i := range raw {
		if raw[i] == '?' {
			u, q = raw[:i], raw[i+1:]
			break
		}
	}
	v, err := url.ParseQuery(q)
	require.NoError(t, err)
	v.Set("read_timeout", "9s") // beside large values of other tests, on a loaded machine
	v.Set("prefix", fmt.Sprintf("t%d-%d", time.Now().UnixNano(), prefixes.Add(1)))
	for i := 0; i < len(params); i += 2 {
		v.Set(params[i], params[i+1])
	}
	return u + "?" + v.Encode()
}

// openURL opens a store and closes it after the test.
func openURL(t testing.TB, raw string) rowstore.Store {
	t.Helper()
	s, err := OpenURL(context.Background(), raw)
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	return s
}

// bare opens a store whose calls are not merged.
func bare(t testing.TB, raw string) *direct {
	t.Helper()
	o, err := ParseURL(raw)
	require.NoError(t, err)
	o.NoCoalesce = true
	s := await.Ready(t, rowstore.ErrUnavailable, func() (*Store, error) { return Open(context.Background(), o) })
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	return s.direct
}

// sizesElsewhere is why only some runs of the suite have tests of sizes.
const sizesElsewhere = "Standalone and Cluster of TestConformance have them"

func TestConformance(t *testing.T) {
	t.Parallel()
	t.Run("Standalone", func(t *testing.T) {
		t.Parallel()
		conformance.Run(t, func(t testing.TB) rowstore.Store {
			return openURL(t, with(t, testserver.Redis(t)))
		}, conformance.Scale(0.15))
	})
	t.Run("Partitions", func(t *testing.T) {
		t.Parallel()
		conformance.RunStore(t, func(t testing.TB) rowstore.Store {
			return openURL(t, with(t, testserver.Redis(t), "partitions", "5", "coalesce", "off"))
		}, conformance.Scale(0.1), conformance.Without(sizesElsewhere, conformance.Sizes))
	})
	t.Run("PartitionsByRow", func(t *testing.T) {
		t.Parallel()
		conformance.RunStore(t, func(t testing.TB) rowstore.Store {
			url := with(t, testserver.Redis(t), "partitions", "5", "coalesce", "off")
			byRows(t, bare(t, url), url)
			return openURL(t, url)
		}, conformance.Scale(0.1), conformance.Without("Partitions has them, and they do not see where a row lies", conformance.Sizes, conformance.Arguments,
			conformance.Conditions, conformance.Contexts, conformance.Closing, conformance.Oracles))
	})
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		// On a loaded machine a server of the Cluster may be silent for seconds.
		url := testserver.NewRedisCluster(t, map[string]string{"cluster-node-timeout": "15000"}).URL
		open := func(t testing.TB) rowstore.Store { return openURL(t, with(t, url)) }
		t.Run("Store", func(t *testing.T) { conformance.RunStore(t, open, conformance.Scale(0.1)) })
		// Transactions see a store only through its calls. Those of many clients at once are what
		// several servers could answer otherwise than one.
		t.Run("Transactions", func(t *testing.T) {
			conformance.RunTransactions(t, open, conformance.Scale(0.1), conformance.Without("the store's part has each call, and Standalone the rest",
				conformance.Transactions, conformance.Anomalies, conformance.DeadClients, conformance.LostReplies, conformance.Collection))
		})
		t.Run("Observers", func(t *testing.T) { conformance.RunObservers(t, open, conformance.Scale(0.1)) })
	})
}

const maxTS = oracle.Max
