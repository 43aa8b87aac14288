package tikvtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/pingcap/kvproto/pkg/pdpb"
	"github.com/stretchr/testify/require"
	"github.com/tikv/client-go/v2/config"
	"github.com/tikv/client-go/v2/rawkv"
	"github.com/tikv/client-go/v2/tikvrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/percolate-go/percolate/internal/atend"
)

// eachWay runs a test over every way to a cluster: in this process and over gRPC, in
// both versions of the API.
func eachWay(t *testing.T, test func(t *testing.T, c *Cluster, kv *rawkv.Client)) {
	t.Helper()
	for _, api := range []kvrpcpb.APIVersion{kvrpcpb.APIVersion_V1, kvrpcpb.APIVersion_V2} {
		t.Run(api.String(), func(t *testing.T) {
			t.Parallel()
			c := New(t, Options{API: api})
			test(t, c, c.NewClient(t))
		})
		t.Run(api.String()+"OverGRPC", func(t *testing.T) {
			t.Parallel()
			c := New(t, Options{API: api})
			test(t, c, dial(t, c, rawkv.WithAPIVersion(api)))
		})
	}
}

// dial reaches a cluster as a program does.
func dial(t testing.TB, c *Cluster, opts ...rawkv.ClientOpt) *rawkv.Client {
	t.Helper()
	kv, err := rawkv.NewClientWithOpts(t.Context(), []string{c.PDAddr()}, opts...)
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, kv.Close()) })
	return kv.SetAtomicForCAS(true)
}

// stored is a key as the cluster has it.
func stored(c *Cluster, key string) []byte {
	if c.opts.API == kvrpcpb.APIVersion_V2 {
		return append([]byte{'r', 0, 0, 0}, key...)
	}
	return []byte(key)
}

func TestCompareAndSwap(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, _ *Cluster, kv *rawkv.Client) {
		ctx := t.Context()
		swap := func(expected, value []byte) ([]byte, bool) {
			t.Helper()
			old, ok, err := kv.CompareAndSwap(ctx, []byte("k"), expected, value)
			require.NoError(t, err)
			return old, ok
		}
		absent, empty, a, b := []byte(nil), []byte{}, []byte("a"), []byte("b")

		for _, expected := range [][]byte{empty, a} {
			old, ok := swap(expected, b)
			require.False(t, ok, "an absent key is not %q", expected)
			require.Nil(t, old)
			got, err := kv.Get(ctx, []byte("k"))
			require.NoError(t, err)
			require.Nil(t, got, "a swap that fails writes nothing")
		}
		old, ok := swap(absent, empty)
		require.True(t, ok)
		require.Nil(t, old, "of a key that was not there")

		for _, expected := range [][]byte{absent, a} {
			old, ok := swap(expected, b)
			require.False(t, ok, "an empty value is not %q", expected)
			require.Equal(t, empty, old)
			got, err := kv.Get(ctx, []byte("k"))
			require.NoError(t, err)
			require.Equal(t, empty, got)
		}
		old, ok = swap(empty, a)
		require.True(t, ok)
		require.Equal(t, empty, old)

		for _, expected := range [][]byte{absent, empty, b, []byte("aa")} {
			old, ok := swap(expected, b)
			require.False(t, ok, "%q", expected)
			require.Equal(t, a, old, "the value that was there")
		}
		old, ok = swap(a, b)
		require.True(t, ok)
		require.Equal(t, a, old)
		require.NoError(t, kv.Delete(ctx, []byte("k")))
		_, ok = swap(absent, a)
		require.True(t, ok, "after a delete the key is absent")
	})
}

func TestCompareAndSwapIsAtomic(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, c *Cluster, kv *rawkv.Client) {
		const workers, each = 8, 40
		changes := c.Churn(t, 10, 0)
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				key := []byte{'k', byte(w % 2)}
				for range each {
					for {
						old, err := kv.Get(t.Context(), key)
						if err != nil {
							t.Error(err)
							return
						}
						n := uint64(0)
						if old != nil {
							n = binary.BigEndian.Uint64(old)
						}
						_, ok, err := kv.CompareAndSwap(t.Context(), key, old, binary.BigEndian.AppendUint64(nil, n+1))
						if err != nil {
							t.Error(err)
							return
						}
						if ok {
							break
						}
					}
				}
			})
		}
		wg.Wait()
		for w := range 2 {
			got, err := kv.Get(t.Context(), []byte{'k', byte(w)})
			require.NoError(t, err)
			require.EqualValues(t, workers/2*each, binary.BigEndian.Uint64(got))
		}
		did := changes()
		require.Positive(t, did.Splits+did.Merges)
		require.Positive(t, did.Moves)
	})
}

func TestRegions(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, c *Cluster, kv *rawkv.Client) {
		ctx := t.Context()
		for i := range 100 {
			require.NoError(t, kv.Put(ctx, fmt.Appendf(nil, "k%02d", i), []byte{byte(i)}))
		}
		require.Len(t, c.Regions(), 1)
		c.Split(stored(c, "k30"), stored(c, "k60"), stored(c, "k60"))
		regions := c.Regions()
		require.Len(t, regions, 3)
		require.NotEqual(t, regions[0].Leader, regions[1].Leader, "leaders spread")
		check := func() {
			t.Helper()
			keys, _, err := kv.Scan(ctx, []byte("k"), []byte("l"), 1000)
			require.NoError(t, err)
			require.Len(t, keys, 100)
			keys, _, err = kv.ReverseScan(ctx, []byte("l"), []byte("k"), 1000)
			require.NoError(t, err)
			require.Len(t, keys, 100)
			require.Equal(t, "k99", string(keys[0]))
		}
		check()
		c.MoveLeader(stored(c, "k45"))
		require.NotEqual(t, regions[1].Leader, c.Regions()[1].Leader)
		check()
		c.Merge(stored(c, "k45"))
		require.Len(t, c.Regions(), 2)
		check()
		// A batch delete that meets a region error deletes nothing where it was refused:
		// the whole of it is there, or gone, once the client has it through.
		c.Split(stored(c, "k80"))
		require.NoError(t, kv.BatchDelete(ctx, [][]byte{[]byte("k79"), []byte("k80"), []byte("k81")}))
		keys, _, err := kv.Scan(ctx, []byte("k79"), []byte("k82"), 10)
		require.NoError(t, err)
		require.Empty(t, keys)
	})
}

// TestRefusedRequestsDoNothing sends requests below client-go, with an old epoch, to
// the wrong store, and with keys of another region.
func TestRefusedRequestsDoNothing(t *testing.T) {
	t.Parallel()
	c := New(t, Options{Offline: true})
	c.Put([]byte("a"), []byte("1"))
	region, leader, _ := c.meta.GetRegionByKey([]byte("a"))
	rpc := c.Transport()
	defer rpc.Close()
	addr := c.meta.GetStore(leader.StoreId).Address
	right := kvrpcpb.Context{RegionId: region.Id, RegionEpoch: region.RegionEpoch, Peer: leader}
	send := func(addr string, of kvrpcpb.Context, cmd tikvrpc.CmdType, req any) *tikvrpc.Response {
		t.Helper()
		resp, err := rpc.SendRequest(t.Context(), addr, tikvrpc.NewRequest(cmd, req, of), time.Minute)
		require.NoError(t, err)
		return resp
	}
	remove := func() *kvrpcpb.RawBatchDeleteRequest {
		return &kvrpcpb.RawBatchDeleteRequest{Keys: [][]byte{[]byte("a")}}
	}
	swap := func() *kvrpcpb.RawCASRequest {
		return &kvrpcpb.RawCASRequest{Key: []byte("a"), PreviousValue: []byte("1"), Value: []byte("2")}
	}
	for name, at := range map[string]func() (string, kvrpcpb.Context){
		"OldEpoch": func() (string, kvrpcpb.Context) { return addr, right },
		"Follower": func() (string, kvrpcpb.Context) {
			region, leader, _ := c.meta.GetRegionByKey([]byte("a"))
			for _, p := range region.Peers {
				if p.Id != leader.Id {
					return c.meta.GetStore(p.StoreId).Address, kvrpcpb.Context{RegionId: region.Id, RegionEpoch: region.RegionEpoch, Peer: p}
				}
			}
			panic("one peer")
		},
		"NoSuchRegion": func() (string, kvrpcpb.Context) {
			return addr, kvrpcpb.Context{RegionId: 999, RegionEpoch: region.RegionEpoch, Peer: leader}
		},
		"OtherRegion": func() (string, kvrpcpb.Context) {
			region, leader, _ := c.meta.GetRegionByKey([]byte("z"))
			return c.meta.GetStore(leader.StoreId).Address, kvrpcpb.Context{RegionId: region.Id, RegionEpoch: region.RegionEpoch, Peer: leader}
		},
	} {
		if name == "OldEpoch" {
			c.Split([]byte("m"))
		}
		if len(c.Regions()) == 1 {
			c.Split([]byte("m"))
		}
		addr, of := at()
		for cmd, req := range map[tikvrpc.CmdType]any{
			tikvrpc.CmdRawBatchDelete: remove(), tikvrpc.CmdRawCompareAndSwap: swap(),
			tikvrpc.CmdRawGet: &kvrpcpb.RawGetRequest{Key: []byte("a")},
			tikvrpc.CmdRawPut: &kvrpcpb.RawPutRequest{Key: []byte("a"), Value: []byte("3")},
		} {
			regionErr, err := send(addr, of, cmd, req).GetRegionError()
			require.NoError(t, err)
			require.NotNil(t, regionErr, "%s %s", name, cmd)
		}
		require.Equal(t, "1", string(c.Get([]byte("a"))), name)
	}
	region, leader, _ = c.meta.GetRegionByKey([]byte("a"))
	of := kvrpcpb.Context{RegionId: region.Id, RegionEpoch: region.RegionEpoch, Peer: leader}
	resp := send(c.meta.GetStore(leader.StoreId).Address, of, tikvrpc.CmdRawCompareAndSwap, swap())
	require.True(t, resp.Resp.(*kvrpcpb.RawCASResponse).Succeed, "the right place serves")
	require.Equal(t, "2", string(c.Get([]byte("a"))))
}

func TestLimits(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, _ *Cluster, kv *rawkv.Client) {
		ctx := t.Context()
		// In version 2 the keyspace is a part of the key.
		require.NoError(t, kv.Put(ctx, bytes.Repeat([]byte("k"), MaxKeySize-4), []byte("v")))
		require.ErrorContains(t, kv.Put(ctx, bytes.Repeat([]byte("k"), MaxKeySize+1), []byte("v")), "max key size exceeded")
		_, _, err := kv.CompareAndSwap(ctx, bytes.Repeat([]byte("k"), MaxKeySize+1), nil, []byte("v"))
		require.ErrorContains(t, err, "max key size exceeded")
		_, _, err = kv.CompareAndSwap(ctx, []byte("k"), nil, make([]byte, MaxEntrySize))
		require.ErrorContains(t, err, "raft_entry_too_large")
		_, ok, err := kv.CompareAndSwap(ctx, []byte("k"), nil, make([]byte, MaxEntrySize-100))
		require.NoError(t, err)
		require.True(t, ok)
	})
}

func TestOtherAPIVersion(t *testing.T) {
	t.Parallel()
	c := New(t, Options{API: kvrpcpb.APIVersion_V2})
	kv := dial(t, c)
	_, err := kv.Get(t.Context(), []byte("k"))
	require.Error(t, err)
	_, _, err = kv.CompareAndSwap(t.Context(), []byte("k"), nil, nil)
	require.Error(t, err)

	c = New(t, Options{})
	kv = dial(t, c, rawkv.WithAPIVersion(kvrpcpb.APIVersion_V2))
	_, err = kv.Get(t.Context(), []byte("k"))
	require.Error(t, err)
}

func TestKeyspaces(t *testing.T) {
	t.Parallel()
	c := New(t, Options{API: kvrpcpb.APIVersion_V2, Keyspaces: map[string]uint32{"shop": 7}})
	one := dial(t, c, rawkv.WithAPIVersion(kvrpcpb.APIVersion_V2))
	two := dial(t, c, rawkv.WithAPIVersion(kvrpcpb.APIVersion_V2), rawkv.WithKeyspace("shop"))
	require.NoError(t, one.Put(t.Context(), []byte("k"), []byte("1")))
	require.NoError(t, two.Put(t.Context(), []byte("k"), []byte("2")))
	got, err := one.Get(t.Context(), []byte("k"))
	require.NoError(t, err)
	require.Equal(t, "1", string(got))
	require.Equal(t, "2", string(c.Get([]byte("r\x00\x00\x07k"))))
	_, err = c.keyspace("unknown")
	require.ErrorContains(t, err, "does not exist")
}

func TestCounter(t *testing.T) {
	t.Parallel()
	c := New(t, Options{Offline: true})
	var n Counter
	kv := c.NewClient(t, &n)
	_, err := kv.Get(t.Context(), []byte("k"))
	require.NoError(t, err)
	require.Positive(t, n.Take().Lookups, "where the region is")
	_, err = kv.Get(t.Context(), []byte("k"))
	require.NoError(t, err)
	_, _, err = kv.CompareAndSwap(t.Context(), []byte("k"), nil, []byte("v"))
	require.NoError(t, err)
	_, _, err = kv.GetPDClient().GetTS(t.Context())
	require.NoError(t, err)
	_, _, err = kv.GetPDClient().GetTSAsync(t.Context()).Wait()
	require.NoError(t, err)
	got := n.Take()
	require.Equal(t, map[tikvrpc.CmdType]int{tikvrpc.CmdRawGet: 1, tikvrpc.CmdRawCompareAndSwap: 1}, got.Stores)
	require.Equal(t, 2, got.Timestamps)
	require.Zero(t, got.Lookups, "it is remembered")
	c.MoveLeader([]byte("k"))
	_, err = kv.Get(t.Context(), []byte("k"))
	require.NoError(t, err)
	require.Equal(t, 2, n.Take().Total(), "a request that is sent again counts again")
}

func TestLatencyIsRoundTrips(t *testing.T) {
	t.Parallel()
	c := New(t, Options{Offline: true})
	synctest.Test(t, func(t *testing.T) {
		var l Latency
		kv := c.NewClient(t, &l)
		_, err := kv.Get(t.Context(), []byte("k")) // finds the region
		require.NoError(t, err)
		l.Set(2 * time.Millisecond)
		start := time.Now()
		for range 5 {
			_, err := kv.Get(t.Context(), []byte("k"))
			require.NoError(t, err)
		}
		_, _, err = kv.GetPDClient().GetTS(t.Context())
		require.NoError(t, err)
		require.Equal(t, 12*time.Millisecond, time.Since(start), "one after the other")
		start = time.Now()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				_, err := kv.Get(t.Context(), []byte("k"))
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.Equal(t, 2*time.Millisecond, time.Since(start), "side by side")
		l.Set(0)
	})
}

func TestFaults(t *testing.T) {
	t.Parallel()
	c := New(t, Options{})
	var f Faults
	kv := c.NewClient(t, &f)
	ctx := t.Context()
	for i, fault := range []Fault{LoseRequest, LoseReply, NotLeader, EpochNotMatch, RegionNotFound, ServerIsBusy, StaleCommand} {
		key := []byte{'k', byte(i)}
		f.Once(tikvrpc.CmdRawCompareAndSwap, fault)
		old, ok, err := kv.CompareAndSwap(ctx, key, nil, []byte("v"))
		require.NoError(t, err)
		require.Equal(t, 1, f.Injected(fault))
		// Client-go sends the swap again, and where the first one was applied it fails.
		applied := fault == LoseReply || fault == StaleCommand
		require.Equal(t, !applied, ok, "fault %d", fault)
		if applied {
			require.Equal(t, "v", string(old))
			require.False(t, fault.Proven())
		}
		got, err := kv.Get(ctx, key)
		require.NoError(t, err)
		require.Equal(t, "v", string(got))
	}
	for _, fault := range []Fault{Hang, HangAfter} {
		key := []byte{'h', byte(fault)}
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		f.Once(tikvrpc.CmdRawCompareAndSwap, fault)
		_, _, err := kv.CompareAndSwap(short, key, nil, []byte("v"))
		require.Error(t, err)
		cancel()
		require.Equal(t, fault == HangAfter, c.Get(key) != nil)
		// Client-go has lost trust in the store for a while.
		require.NoError(t, kv.Put(ctx, []byte("k"), []byte("v")))
	}
	f.Set(func(r *tikvrpc.Request) Fault {
		if r.Type == tikvrpc.CmdRawDelete && f.Injected(NotLeader) < 3 {
			return NotLeader
		}
		return Pass
	})
	require.NoError(t, kv.Delete(ctx, []byte("k")))
	require.Equal(t, 3, f.Injected(NotLeader))
	f.Set(nil)
	require.NoError(t, kv.Delete(ctx, []byte("k")))
}

func TestStoppedStore(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, c *Cluster, kv *rawkv.Client) {
		require.NoError(t, kv.Put(t.Context(), []byte("k"), []byte("v")))
		leader := c.Regions()[0].Leader
		c.StopStore(leader)
		short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := kv.Get(short, []byte("k"))
		require.Error(t, err, "the region has no leader")
		c.MoveLeader(stored(c, "k"))
		got, err := kv.Get(t.Context(), []byte("k"))
		require.NoError(t, err)
		require.Equal(t, "v", string(got), "another store leads it")
		c.StartStore(leader)
		got, err = kv.Get(t.Context(), []byte("k"))
		require.NoError(t, err)
		require.Equal(t, "v", string(got))
	})
}

func TestTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := NewCertificates(t, t.TempDir()), NewCertificates(t, t.TempDir())
	c := New(t, Options{TLS: ours.Server})
	kv := dial(t, c, rawkv.WithSecurity(config.NewSecurity(ours.CA, ours.Cert, ours.Key, nil)))
	require.NoError(t, kv.Put(t.Context(), []byte("k"), []byte("v")))
	got, err := kv.Get(t.Context(), []byte("k"))
	require.NoError(t, err)
	require.Equal(t, "v", string(got))

	members := func(creds credentials.TransportCredentials) error {
		conn, err := grpc.NewClient(c.PDAddr(), grpc.WithTransportCredentials(creds))
		require.NoError(t, err)
		defer conn.Close()
		_, err = pdpb.NewPDClient(conn).GetMembers(t.Context(), &pdpb.GetMembersRequest{})
		return err
	}
	with := func(ca, cert, key string) credentials.TransportCredentials {
		pem, err := os.ReadFile(ca)
		require.NoError(t, err)
		pool := x509.NewCertPool()
		require.True(t, pool.AppendCertsFromPEM(pem))
		pair, err := tls.LoadX509KeyPair(cert, key)
		require.NoError(t, err)
		return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{pair}})
	}
	require.NoError(t, members(with(ours.CA, ours.Cert, ours.Key)))
	require.Error(t, members(insecure.NewCredentials()), "without TLS")
	require.ErrorContains(t, members(with(theirs.CA, ours.Cert, ours.Key)), "unknown authority")
	require.Error(t, members(with(ours.CA, theirs.Cert, theirs.Key)), "a client of another authority")
}

func TestChurnPrintsAndStops(t *testing.T) {
	t.Parallel()
	c := New(t, Options{Offline: true})
	kv := c.NewClient(t)
	stop := c.Churn(t, 1, 0)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		require.NoError(t, kv.Put(t.Context(), []byte{byte(rng.Uint32()), 'k'}, []byte("v")))
		require.LessOrEqual(t, len(c.Regions()), maxRegions+1)
	}
	did := stop()
	require.Positive(t, did.Splits)
	require.Positive(t, did.Merges)
	require.Positive(t, did.Moves)
	before := len(c.Regions())
	require.NoError(t, kv.Put(t.Context(), []byte("other"), nil))
	require.Len(t, c.Regions(), before)
	require.Equal(t, did, stop())
	require.True(t, strings.HasPrefix(c.URL()+"tikv:", "tikv:"), "an offline cluster has no address")
}
