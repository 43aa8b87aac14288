package tikvraw

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pingcap/kvproto/pkg/errorpb"
	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/pingcap/kvproto/pkg/metapb"
	pkgerrors "github.com/pkg/errors"
	"github.com/stretchr/testify/require"
	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/tikvrpc"
	pd "github.com/tikv/pd/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// clientOf makes a raw over a mock cluster, with faults.
func clientOf(t *testing.T) (*client, *tikvtest.Cluster, *tikvtest.Faults) {
	t.Helper()
	c := tikvtest.New(t, tikvtest.Options{})
	f := &tikvtest.Faults{}
	pdc, rpc := c.Clients(t, f)
	r := newClient(pdc, rpc, defaultPatience, time.Second)
	atend.Do(t, func() { require.NoError(t, r.close()) })
	return r, c, f
}

// What a swap says when requests and replies are lost.
func TestSwapOutcomes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	key := []byte("k")
	for _, tc := range []struct {
		name  string
		fault tikvtest.Fault
	}{{"LoseReply", tikvtest.LoseReply}, {"StaleCommand", tikvtest.StaleCommand}, {"RegionNotFound", tikvtest.RegionNotFound}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, c, f := clientOf(t)
			// The second arrival meets its own bytes.
			f.Once(tikvrpc.CmdRawCompareAndSwap, tc.fault)
			met, swapped, err := r.cas(ctx, key, nil, []byte("1"))
			require.NoError(t, err)
			require.True(t, swapped || string(met) == "1")
			require.Equal(t, 1, f.Injected(tc.fault))

			// The second arrival meets what somebody else wrote: nobody knows.
			lost := false
			f.Set(func(req *tikvrpc.Request) tikvtest.Fault {
				if lost {
					c.Put(key, []byte("3"))
					return tikvtest.Pass
				}
				lost = true
				return tc.fault
			})
			_, _, err = r.cas(ctx, key, []byte("1"), []byte("2"))
			require.ErrorIs(t, err, rowstore.ErrAmbiguous)
			f.Set(nil)

			// Without a doubt a failure is one.
			met, swapped, err = r.cas(ctx, key, []byte("1"), []byte("2"))
			require.NoError(t, err)
			require.False(t, swapped)
			require.Equal(t, "3", string(met))
		})
	}
	t.Run("Proven", func(t *testing.T) {
		t.Parallel()
		r, c, f := clientOf(t)
		c.Put(key, []byte("1"))
		for _, fault := range []tikvtest.Fault{tikvtest.NotLeader, tikvtest.EpochNotMatch} {
			f.Once(tikvrpc.CmdRawCompareAndSwap, fault)
			met, swapped, err := r.cas(ctx, key, []byte("0"), []byte("2"))
			require.NoError(t, err, "nothing was applied, and the next request says why not")
			require.False(t, swapped)
			require.Equal(t, "1", string(met))
			require.Equal(t, 1, f.Injected(fault))
		}
	})
	t.Run("ContextEnds", func(t *testing.T) {
		t.Parallel()
		r, _, f := clientOf(t)
		f.Set(func(*tikvrpc.Request) tikvtest.Fault { return tikvtest.HangAfter })
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, _, err := r.cas(short, key, nil, []byte("1"))
		require.ErrorIs(t, err, rowstore.ErrAmbiguous)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = r.get(short, key)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		f.Set(nil)
		_, _, err = r.cas(short, key, nil, []byte("1"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, rowstore.ErrAmbiguous, "nothing was sent")
	})
}

func TestMayHaveApplied(t *testing.T) {
	t.Parallel()
	answer := func(r kvrpcpb.RawCASResponse) *tikvrpc.Response { return &tikvrpc.Response{Resp: &r} }
	region := func(e errorpb.Error) *tikvrpc.Response { return answer(kvrpcpb.RawCASResponse{RegionError: &e}) }
	dial := status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 10.0.0.1:20160: connect: connection refused"`)
	for name, tc := range map[string]struct {
		resp *tikvrpc.Response
		err  error
		want bool
	}{
		"swapped":              {resp: answer(kvrpcpb.RawCASResponse{Succeed: true})},
		"not swapped":          {resp: answer(kvrpcpb.RawCASResponse{})},
		"not leader":           {resp: region(errorpb.Error{NotLeader: &errorpb.NotLeader{}})},
		"epoch":                {resp: region(errorpb.Error{EpochNotMatch: &errorpb.EpochNotMatch{}})},
		"stale command":        {resp: region(errorpb.Error{StaleCommand: &errorpb.StaleCommand{}}), want: true},
		"region not found":     {resp: region(errorpb.Error{RegionNotFound: &errorpb.RegionNotFound{}}), want: true},
		"unknown region error": {resp: region(errorpb.Error{Message: "?"}), want: true},
		"another API version":  {resp: answer(kvrpcpb.RawCASResponse{Error: "Api version in request does not match with TiKV storage"})},
		"some other error":     {resp: answer(kvrpcpb.RawCASResponse{Error: "engine: timeout"}), want: true},
		"no answer":            {resp: &tikvrpc.Response{}, want: true},
		"refused connection":   {err: pkgerrors.WithStack(dial)},
		"broken connection":    {err: status.Error(codes.Unavailable, "error reading from server: EOF"), want: true},
		"timeout":              {err: context.DeadlineExceeded, want: true},
	} {
		require.Equal(t, tc.want, mayHaveApplied(tc.resp, tc.err), name)
	}
}

// pairErrors answers every request for several keys with an error in the place of a
// pair, as a server does whose deadline has passed.
type pairErrors struct{ tikv.Client }

func (c pairErrors) SendRequest(ctx context.Context, addr string, req *tikvrpc.Request, timeout time.Duration) (*tikvrpc.Response, error) {
	bad := []*kvrpcpb.KvPair{{Error: &kvrpcpb.KeyError{Abort: "deadline is exceeded"}}}
	switch req.Type {
	case tikvrpc.CmdRawBatchGet:
		return &tikvrpc.Response{Resp: &kvrpcpb.RawBatchGetResponse{Pairs: bad}}, nil
	case tikvrpc.CmdRawScan:
		return &tikvrpc.Response{Resp: &kvrpcpb.RawScanResponse{Kvs: bad}}, nil
	}
	return c.Client.SendRequest(ctx, addr, req, timeout)
}

// An error in the place of a pair is not an absent key.
func TestErrorsInPairs(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := tikvtest.New(t, tikvtest.Options{Offline: true})
	pdc, rpc := c.Clients(t)
	r := newClient(pdc, pairErrors{rpc}, defaultPatience, time.Second)
	defer func() { require.NoError(t, r.close()) }()
	_, err := r.batchGet(ctx, [][]byte{[]byte("a"), []byte("b")})
	require.ErrorContains(t, err, "deadline is exceeded")
	_, err = r.scan(ctx, []byte("a"), []byte("b"), 10, false)
	require.ErrorContains(t, err, "deadline is exceeded")
	_, err = r.reverseScan(ctx, []byte("a"), []byte("b"), 10, true)
	require.ErrorContains(t, err, "deadline is exceeded")
}

// Keys that a merged region answers twice are given once.
func TestPairsInOrder(t *testing.T) {
	t.Parallel()
	keys := [][]byte{[]byte("a"), []byte("c"), []byte("b"), []byte("c"), []byte("d")}
	got := pairs(keys, keys, false, 1)
	require.Len(t, got, 3)
	require.Equal(t, "d", string(got[2].key))
	require.Len(t, pairs(keys, nil, true, -1), 1)
}

// overlapping answers the first request of a scan with keys beyond its region too.
type overlapping struct{ tikv.Client }

func (c overlapping) SendRequest(ctx context.Context, addr string, req *tikvrpc.Request, timeout time.Duration) (*tikvrpc.Response, error) {
	resp, err := c.Client.SendRequest(ctx, addr, req, timeout)
	if err != nil || req.Type != tikvrpc.CmdRawScan {
		return resp, err
	}
	var more string
	switch scan := req.RawScan(); {
	case !scan.Reverse && string(scan.StartKey) == "a":
		more = "mn"
	case scan.Reverse && string(scan.StartKey) == "z":
		more = "b"
	}
	kvs := &resp.Resp.(*kvrpcpb.RawScanResponse).Kvs
	for _, key := range more[:min(len(more), int(req.RawScan().Limit)-len(*kvs))] {
		*kvs = append(*kvs, &kvrpcpb.KvPair{Key: []byte(string(key)), Value: []byte("v")})
	}
	return resp, nil
}

// What is left out because it came twice is no end of a scan.
func TestScanOverRegionsThatOverlap(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{Offline: true})
	c.Split([]byte("m"))
	pdc, rpc := c.Clients(t)
	r := newClient(pdc, overlapping{rpc}, defaultPatience, time.Second)
	defer func() { require.NoError(t, r.close()) }()
	const all = "abmnop"
	for _, key := range all {
		require.NoError(t, r.put(t.Context(), []byte(string(key)), []byte("v")))
	}
	for limit := 1; limit <= len(all)+1; limit++ {
		for _, keysOnly := range []bool{false, true} {
			got, err := r.scan(t.Context(), []byte("a"), []byte("z"), limit, keysOnly)
			require.NoError(t, err)
			back, err := r.reverseScan(t.Context(), []byte("a"), []byte("z"), limit, keysOnly)
			require.NoError(t, err)
			n := min(limit, len(all))
			require.Equal(t, all[:n], keysOf(got))
			slices.Reverse(back)
			require.Equal(t, all[len(all)-n:], keysOf(back))
		}
	}
}

func keysOf(pairs []pair) (keys string) {
	for _, p := range pairs {
		keys += string(p.key)
	}
	return keys
}

func TestExplain(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	require.NoError(t, explain(ctx, nil))
	require.ErrorContains(t, explain(ctx, errors.New("ApiVersion V1 mismatch")), "parameter api")
	cancel()
	require.ErrorIs(t, explain(ctx, errors.New("backoff")), context.Canceled)
}

// keeping is a TiKV client that keeps the requests it was given, as a connection does
// whose queue is long.
type keeping struct {
	tikv.Client
	kept []*tikvrpc.Request
}

func (c *keeping) SendRequest(_ context.Context, _ string, req *tikvrpc.Request, _ time.Duration) (*tikvrpc.Response, error) {
	c.kept = append(c.kept, req)
	return &tikvrpc.Response{}, nil
}

// A request that is sent again, to another region, is written anew by the client: the
// first attempt must not see it, or it would go out half one and half the other.
func TestEachAttemptHasItsOwnRequest(t *testing.T) {
	t.Parallel()
	for name, req := range map[tikvrpc.CmdType]any{
		tikvrpc.CmdRawGet:            &kvrpcpb.RawGetRequest{},
		tikvrpc.CmdRawBatchGet:       &kvrpcpb.RawBatchGetRequest{},
		tikvrpc.CmdRawScan:           &kvrpcpb.RawScanRequest{},
		tikvrpc.CmdRawPut:            &kvrpcpb.RawPutRequest{},
		tikvrpc.CmdRawBatchPut:       &kvrpcpb.RawBatchPutRequest{},
		tikvrpc.CmdRawDelete:         &kvrpcpb.RawDeleteRequest{},
		tikvrpc.CmdRawBatchDelete:    &kvrpcpb.RawBatchDeleteRequest{},
		tikvrpc.CmdRawCompareAndSwap: &kvrpcpb.RawCASRequest{},
	} {
		t.Run(name.String(), func(t *testing.T) {
			t.Parallel()
			inner := &keeping{}
			c := &watched{Client: inner, timeout: time.Second}
			r := tikvrpc.NewRequest(name, req)
			for region := uint64(1); region <= 2; region++ {
				require.NoError(t, tikvrpc.SetContext(r, &metapb.Region{Id: region}, &metapb.Peer{StoreId: region}))
				_, err := c.SendRequest(t.Context(), "server", r, time.Second)
				require.NoError(t, err)
			}
			for i, kept := range inner.kept {
				m, ok := kept.Req.(interface{ GetContext() *kvrpcpb.Context })
				require.True(t, ok)
				require.EqualValues(t, i+1, m.GetContext().GetRegionId(), "in attempt %d", i+1)
				require.EqualValues(t, i+1, m.GetContext().GetPeer().GetStoreId())
				require.EqualValues(t, i+1, kept.RegionId)
			}
		})
	}
}

// merging merges two regions just before PD is asked what is before the second one.
type merging struct {
	pd.Client
	cluster *tikvtest.Cluster
	at      []byte // a key of the first one
	merged  bool
}

func (m *merging) PD(next pd.Client) pd.Client {
	m.Client = next
	return m
}

func (m *merging) Stores(next tikv.Client) tikv.Client { return next }

func (m *merging) GetPrevRegion(ctx context.Context, key []byte, opts ...pd.GetRegionOption) (*pd.Region, error) {
	if !m.merged {
		m.merged = true
		m.cluster.Merge(m.at)
	}
	return m.Client.GetPrevRegion(ctx, key, opts...)
}

// storedIn is the key under which a cluster keeps a client's key.
func storedIn(api kvrpcpb.APIVersion, key string) []byte {
	if api == kvrpcpb.APIVersion_V2 {
		return []byte("r\x00\x00\x00" + key)
	}
	return []byte(key)
}

// A scan in reverse that goes on at the border of two regions which are merged meanwhile leaves
// nothing out.
func TestReverseScanOverAMerge(t *testing.T) {
	t.Parallel()
	for _, api := range []kvrpcpb.APIVersion{kvrpcpb.APIVersion_V1, kvrpcpb.APIVersion_V2} {
		c := tikvtest.New(t, tikvtest.Options{Offline: true, API: api})
		for _, border := range []string{"c", "m"} {
			c.Split(storedIn(api, border))
		}
		between := &merging{cluster: c, at: storedIn(api, "d")}
		open := func() *client {
			pdc, rpc := c.Clients(t, between)
			return newClient(pdc, rpc, defaultPatience, time.Second)
		}
		r := open()
		for _, key := range "adn" {
			require.NoError(t, r.put(t.Context(), []byte(string(key)), []byte("v")))
		}
		require.NoError(t, r.close())

		// This one knows no regions yet.
		between.merged = false
		r = open()
		got, err := r.reverseScan(t.Context(), []byte("a"), []byte("z"), 10, false)
		require.NoError(t, err)
		require.True(t, between.merged)
		var keys string
		for _, p := range got {
			keys += string(p.key)
		}
		require.Equal(t, "nda", keys, "%v", api)
		require.NoError(t, r.close())
	}
}
