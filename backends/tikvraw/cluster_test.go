package tikvraw_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/stretchr/testify/require"
	"github.com/tikv/client-go/v2/tikvrpc"

	"github.com/percolate-go/percolate/backends/tikvraw"
	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

var prefixes atomic.Int64

// prefix is one that no other test has.
func prefix() string { return fmt.Sprintf("t%d", prefixes.Add(1)) }

// open makes a store of its own in a cluster, without the network.
func open(t testing.TB, c *tikvtest.Cluster, o tikvraw.Options, layers ...tikvtest.Layer) *tikvraw.Store {
	t.Helper()
	if o.Prefix == "" {
		o.Prefix = prefix()
	}
	pdc, rpc := c.Clients(t, layers...)
	s, err := tikvraw.New(t.Context(), pdc, o.Through(rpc))
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	return s
}

// unbalanced is why the suite's test of Split is left out over a mock.
const unbalanced = "a real cluster cuts regions by size; here they are cut where the last write was. See TestSplit"

// leaner is for runs of the suite beside the one over the mock cluster itself, which has everything: they leave out what does
// not depend on the way to the cluster, or on the space of keys there.
func leaner(more ...conformance.Category) []conformance.Option {
	return []conformance.Option{
		conformance.Scale(0.1), conformance.Without(unbalanced, conformance.Splitting),
		conformance.Without("the run over the mock cluster itself has them", append(more, conformance.Sizes, conformance.Conditions, conformance.Edits,
			conformance.Arguments, conformance.Random, conformance.Groups, conformance.Deferring)...),
	}
}

// TestSplit has regions of like sizes.
func TestSplit(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{Offline: true})
	s := open(t, c, tikvraw.Options{Prefix: "shop"})
	const rows = 400
	name := func(i int) string { return fmt.Sprintf("r%03d", i) }
	for i := range rows {
		apply(t, s, rowstore.Mutation{Table: "t", Row: name(i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 5, []byte("v"))}})
	}
	keys, err := s.Split(t.Context(), "t", 4)
	require.NoError(t, err)
	require.Empty(t, keys, "one region")
	heads, _ := c.Keys([]byte("shop\x00r"), []byte("shop\x00s"))
	require.Len(t, heads, rows)
	for i := 1; i < 8; i++ {
		c.Split(heads[i*rows/8])
	}
	for n, want := range map[int][]int{1: nil, 2: {200}, 4: {100, 200, 300}, 8: {50, 100, 150, 200, 250, 300, 350}, 100: {50, 100, 150, 200, 250, 300, 350}} {
		keys, err := s.Split(t.Context(), "t", n)
		require.NoError(t, err)
		require.Len(t, keys, len(want), "%d parts", n)
		for i, k := range keys {
			require.Equal(t, name(want[i]), k, "%d parts", n)
		}
	}
	keys, err = s.Split(t.Context(), "other", 8)
	require.NoError(t, err)
	require.Empty(t, keys)
}

// apply runs mutations that must apply.
func apply(t testing.TB, s rowstore.Store, muts ...rowstore.Mutation) {
	t.Helper()
	out, err := s.Apply(t.Context(), muts, rowstore.ApplyOptions{})
	require.NoError(t, err)
	for _, o := range out {
		require.NoError(t, o.Err)
		require.True(t, o.Applied)
	}
}

// troubled injects errors that nobody above the store may notice: region errors of
// every request, and lost requests and replies of those that do no harm when they are
// sent again. Swaps are not among them, since the suite takes an unknown outcome for a
// failure of the test; TestBankUnderFaults and TestLostReplies are for that.
func troubled(t testing.TB) *tikvtest.Faults {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("faults with seed %d", seed)
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 0))
	f := &tikvtest.Faults{}
	f.Set(func(r *tikvrpc.Request) tikvtest.Fault {
		mu.Lock()
		n := rng.IntN(2000)
		mu.Unlock()
		switch {
		case n < 10:
			return tikvtest.NotLeader
		case n < 20:
			return tikvtest.EpochNotMatch
		case n < 30 && r.Type != tikvrpc.CmdRawCompareAndSwap:
			return tikvtest.RegionNotFound // which makes a swap that meets another head ambiguous
		case n == 30 && r.Type != tikvrpc.CmdRawCompareAndSwap:
			return tikvtest.LoseRequest
		case n == 31 && r.Type != tikvrpc.CmdRawCompareAndSwap:
			return tikvtest.LoseReply
		}
		return tikvtest.Pass
	})
	return f
}

// patience is that of stores whose regions change all the time, on a machine that has other
// things to do: the suite takes a store that gives up for one that fails.
// A busy machine answers late.
const (
	patience = 30 * time.Second
	slowest  = 9 * time.Second // the longest that may be set
)

// TestConformance runs the suite over client-go's mock cluster, while its regions are
// split and merged and its leaders move, and over a real cluster where there is one.
func TestConformance(t *testing.T) {
	t.Parallel()
	t.Run("Mock", func(t *testing.T) {
		t.Parallel()
		c := tikvtest.New(t, tikvtest.Options{})
		testserver.Ran("tikv", "client-go's mock cluster, three stores, regions changing all the time")
		churn := c.Churn(t, 50, 10*time.Millisecond)
		f := troubled(t)
		atend.Do(t, func() {
			for _, fault := range []tikvtest.Fault{tikvtest.NotLeader, tikvtest.EpochNotMatch, tikvtest.RegionNotFound, tikvtest.LoseRequest, tikvtest.LoseReply} {
				require.Positive(t, f.Injected(fault), "fault %d", fault)
			}
			did := churn()
			t.Logf("%d requests, %+v", c.Served(), did)
			require.Positive(t, did.Splits)
			require.Positive(t, did.Merges)
			require.Positive(t, did.Moves)
		})
		conformance.Run(t, func(t testing.TB) rowstore.Store {
			return open(t, c, tikvraw.Options{Patience: patience, RequestTimeout: slowest}, f)
		}, conformance.Scale(0.1), conformance.Without(unbalanced, conformance.Splitting))
	})
	t.Run("MockV2", func(t *testing.T) {
		t.Parallel()
		c := tikvtest.New(t, tikvtest.Options{API: kvrpcpb.APIVersion_V2})
		c.Churn(t, 50, 10*time.Millisecond)
		conformance.RunStore(t, func(t testing.TB) rowstore.Store {
			return open(t, c, tikvraw.Options{Patience: patience, RequestTimeout: slowest, API: tikvraw.V2, Oracle: tikvraw.OracleStore})
		}, leaner(conformance.Contexts, conformance.Closing, conformance.Reads, conformance.Waking)...)
	})
	t.Run("MockOverGRPC", func(t *testing.T) {
		t.Parallel()
		c := tikvtest.New(t, tikvtest.Options{})
		c.Churn(t, 200, 10*time.Millisecond)
		testserver.Ran("tikv", "client-go's mock cluster over gRPC")
		conformance.RunStore(t, func(t testing.TB) rowstore.Store {
			s, err := rowstore.Open(t.Context(), c.URL()+"?patience=30s&request_timeout=9s&prefix="+prefix())
			require.NoError(t, err)
			atend.Do(t, func() { require.NoError(t, s.Close()) })
			return s
		}, leaner(conformance.Reads, conformance.Slots, conformance.Oracles, conformance.Waking)...)
	})
	t.Run("Real", func(t *testing.T) {
		t.Parallel()
		url, err := testserver.TiKV(t)
		if err != nil {
			t.Skipf("no real cluster: %v", err)
		}
		conformance.Run(t, func(t testing.TB) rowstore.Store {
			s, err := rowstore.Open(t.Context(), url+"?prefix=conformance"+prefix())
			require.NoError(t, err)
			atend.Do(t, func() { require.NoError(t, s.Close()) })
			return s
		}, conformance.Scale(0.1))
	})
}
