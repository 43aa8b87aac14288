package tikvtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pingcap/kvproto/pkg/errorpb"
	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/tikv/client-go/v2/testutils"
	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/tikvrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolate-go/percolate/internal/atend"
)

// The limits of a TiKV of default settings: storage.max-key-size and
// raftstore.raft-entry-max-size.
const (
	MaxKeySize   = 8 << 10
	MaxEntrySize = 8 << 20
)

// SendRequest encodes the request, sends it, and decodes the answer.
func (c *coding) SendRequest(ctx context.Context, addr string, req *tikvrpc.Request, timeout time.Duration) (*tikvrpc.Response, error) {
	encoded, err := c.codec.EncodeRequest(req)
	if err != nil {
		return nil, err
	}
	resp, err := c.Client.SendRequest(ctx, addr, encoded, timeout)
	if err != nil {
		return nil, err
	}
	return c.codec.DecodeResponse(req, resp)
}

// transport brings requests to the cluster without a network. Its errors are those
// of gRPC.
type transport struct {
	cluster *Cluster
	closed  atomic.Bool
}

var _ tikv.Client = (*transport)(nil)

// Transport returns a client of the stores without a network, below every codec:
// what a test of requests themselves uses.
func (c *Cluster) Transport() tikv.Client { return &transport{cluster: c} }

func (t *transport) SendRequest(ctx context.Context, addr string, req *tikvrpc.Request, _ time.Duration) (*tikvrpc.Response, error) {
	if t.closed.Load() {
		return nil, errors.New("rpcClient is closed")
	}
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	resp, err := t.cluster.handle(ctx, addr, req)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return resp, nil
}

// Close makes later requests fail. The cluster goes on.
func (t *transport) Close() error {
	t.closed.Store(true)
	return nil
}

func (t *transport) CloseAddr(string) error { return nil }

// handle serves one request as the store at addr does. An error means that there is
// no store.
func (c *Cluster) handle(ctx context.Context, addr string, req *tikvrpc.Request) (*tikvrpc.Response, error) {
	if ch := c.churn.Load(); ch != nil {
		ch.step(c)
	}
	c.topology.RLock()
	defer c.topology.RUnlock()
	if !isRaw(req.Type) {
		defer c.served.Add(1)
		return c.mock.SendRequest(ctx, addr, req, 0)
	}
	// The mock says whether the store is there, has the region, leads it, and knows it
	// by this epoch.
	check := tikvrpc.NewRequest(tikvrpc.CmdRawGet, &kvrpcpb.RawGetRequest{}, req.Context)
	resp, err := c.mock.SendRequest(ctx, addr, check, 0)
	if err != nil {
		return nil, err
	}
	c.served.Add(1)
	regionErr, err := resp.GetRegionError()
	if err != nil {
		return nil, err
	}
	if regionErr != nil {
		// A region that was merged away. The word of a server for it may also mean that its copy
		// went while it worked on the request, so a swap would be in doubt: what was
		// refused here was never begun, and the suite, which takes doubt for a failure, must not meet it
		// by chance. The fault of that name is injected where it is meant.
		if regionErr.RegionNotFound != nil && req.Type == tikvrpc.CmdRawCompareAndSwap {
			regionErr = &errorpb.Error{Message: "the region was merged away", EpochNotMatch: &errorpb.EpochNotMatch{}}
		}
		return tikvrpc.GenRegionErrorResp(req, regionErr)
	}
	if text := c.refuse(req); text != "" {
		return &tikvrpc.Response{Resp: failed(req.Type, text)}, nil
	}
	region, _ := c.meta.GetRegion(req.RegionId)
	b, err := c.bounds(region.StartKey, region.EndKey)
	if err != nil {
		return nil, err
	}
	for _, key := range keysOf(req) {
		if !b.contain(key) {
			return tikvrpc.GenRegionErrorResp(req, &errorpb.Error{
				Message:        "key is not in region",
				KeyNotInRegion: &errorpb.KeyNotInRegion{Key: key, RegionId: region.Id, StartKey: region.StartKey, EndKey: region.EndKey},
			})
		}
	}
	if size := entrySize(req); size >= MaxEntrySize {
		return tikvrpc.GenRegionErrorResp(req, &errorpb.Error{
			Message:           fmt.Sprintf("raft entry is too large, region %d, entry size %d", region.Id, size),
			RaftEntryTooLarge: &errorpb.RaftEntryTooLarge{RegionId: region.Id, EntrySize: uint64(size)},
		})
	}
	return &tikvrpc.Response{Resp: c.serve(req, b)}, nil
}

func isRaw(t tikvrpc.CmdType) bool {
	switch t {
	case tikvrpc.CmdRawGet, tikvrpc.CmdRawBatchGet, tikvrpc.CmdRawPut, tikvrpc.CmdRawBatchPut, tikvrpc.CmdRawDelete,
		tikvrpc.CmdRawBatchDelete, tikvrpc.CmdRawScan, tikvrpc.CmdRawCompareAndSwap:
		return true
	}
	return false
}

// refuse says why a server refuses a request for good, "" where it does not.
func (c *Cluster) refuse(req *tikvrpc.Request) string {
	if have, want := c.opts.API, req.GetApiVersion(); have != want {
		return fmt.Sprintf("Api version in request does not match with TiKV storage, cmd: %s, storage: %s, request: %s", req.Type, have, want)
	}
	if !isWrite(req.Type) {
		return ""
	}
	for _, key := range keysOf(req) {
		if len(key) > MaxKeySize {
			return fmt.Sprintf("max key size exceeded, size: %d, limit: %d", len(key), MaxKeySize)
		}
	}
	return ""
}

func isWrite(t tikvrpc.CmdType) bool {
	switch t {
	case tikvrpc.CmdRawPut, tikvrpc.CmdRawBatchPut, tikvrpc.CmdRawDelete, tikvrpc.CmdRawBatchDelete, tikvrpc.CmdRawCompareAndSwap:
		return true
	}
	return false
}

// keysOf lists the keys of a request, which all lie in its region. A scan begins
// there, and in reverse ends there.
func keysOf(req *tikvrpc.Request) [][]byte {
	switch req.Type {
	case tikvrpc.CmdRawGet:
		return [][]byte{req.RawGet().Key}
	case tikvrpc.CmdRawBatchGet:
		return req.RawBatchGet().Keys
	case tikvrpc.CmdRawPut:
		return [][]byte{req.RawPut().Key}
	case tikvrpc.CmdRawBatchPut:
		var keys [][]byte
		for _, p := range req.RawBatchPut().Pairs {
			keys = append(keys, p.Key)
		}
		return keys
	case tikvrpc.CmdRawDelete:
		return [][]byte{req.RawDelete().Key}
	case tikvrpc.CmdRawBatchDelete:
		return req.RawBatchDelete().Keys
	case tikvrpc.CmdRawCompareAndSwap:
		return [][]byte{req.RawCompareAndSwap().Key}
	case tikvrpc.CmdRawScan:
		if r := req.RawScan(); !r.Reverse {
			return [][]byte{r.StartKey}
		}
	}
	return nil
}

// entrySize is about what a write takes in the Raft log.
func entrySize(req *tikvrpc.Request) (n int) {
	if !isWrite(req.Type) {
		return 0
	}
	for _, key := range keysOf(req) {
		n += len(key)
	}
	switch req.Type {
	case tikvrpc.CmdRawPut:
		n += len(req.RawPut().Value)
	case tikvrpc.CmdRawCompareAndSwap:
		n += len(req.RawCompareAndSwap().Value)
	case tikvrpc.CmdRawBatchPut:
		for _, p := range req.RawBatchPut().Pairs {
			n += len(p.Value)
		}
	}
	return n
}

// failed is the answer to a request that the server refuses: some kinds have a field
// for that, in others it takes the place of a pair.
func failed(t tikvrpc.CmdType, text string) any {
	pairs := []*kvrpcpb.KvPair{{Error: &kvrpcpb.KeyError{Abort: text}}}
	switch t {
	case tikvrpc.CmdRawGet:
		return &kvrpcpb.RawGetResponse{Error: text}
	case tikvrpc.CmdRawBatchGet:
		return &kvrpcpb.RawBatchGetResponse{Pairs: pairs}
	case tikvrpc.CmdRawPut:
		return &kvrpcpb.RawPutResponse{Error: text}
	case tikvrpc.CmdRawBatchPut:
		return &kvrpcpb.RawBatchPutResponse{Error: text}
	case tikvrpc.CmdRawDelete:
		return &kvrpcpb.RawDeleteResponse{Error: text}
	case tikvrpc.CmdRawBatchDelete:
		return &kvrpcpb.RawBatchDeleteResponse{Error: text}
	case tikvrpc.CmdRawScan:
		return &kvrpcpb.RawScanResponse{Kvs: pairs}
	default:
		return &kvrpcpb.RawCASResponse{Error: text}
	}
}

// serve answers a request that was found right. topology is held for reading.
func (c *Cluster) serve(req *tikvrpc.Request, b bounds) any {
	if isWrite(req.Type) {
		c.writes.Lock()
		defer c.writes.Unlock()
		if keys := keysOf(req); len(keys) > 0 {
			key := bytes.Clone(keys[len(keys)-1])
			c.lastKey.Store(&key)
		}
	}
	switch req.Type {
	case tikvrpc.CmdRawGet:
		r := req.RawGet()
		v := c.keys.RawGet(r.Cf, r.Key)
		return &kvrpcpb.RawGetResponse{NotFound: v == nil, Value: sent(v)}
	case tikvrpc.CmdRawBatchGet:
		// The mock's own RawBatchGet cannot tell a deleted key from an empty one. A server
		// reads all of them at one moment.
		r := req.RawBatchGet()
		out := &kvrpcpb.RawBatchGetResponse{}
		c.writes.Lock()
		defer c.writes.Unlock()
		for _, key := range r.Keys {
			if v := c.keys.RawGet(r.Cf, key); v != nil {
				out.Pairs = append(out.Pairs, &kvrpcpb.KvPair{Key: bytes.Clone(key), Value: sent(v)})
			}
		}
		return out
	case tikvrpc.CmdRawScan:
		r := req.RawScan()
		var pairs []testutils.MVCCPair
		if r.Reverse {
			pairs = c.keys.RawReverseScan(r.Cf, b.capEnd(r.StartKey), b.capStart(r.EndKey), int(r.Limit))
		} else {
			pairs = c.keys.RawScan(r.Cf, r.StartKey, b.capEnd(r.EndKey), int(r.Limit))
		}
		out := &kvrpcpb.RawScanResponse{}
		for _, p := range pairs {
			pair := &kvrpcpb.KvPair{Key: p.Key}
			if !r.KeyOnly {
				pair.Value = sent(p.Value)
			}
			out.Kvs = append(out.Kvs, pair)
		}
		return out
	case tikvrpc.CmdRawPut:
		r := req.RawPut()
		c.keys.RawPut(r.Cf, r.Key, r.Value)
		return &kvrpcpb.RawPutResponse{}
	case tikvrpc.CmdRawBatchPut:
		r := req.RawBatchPut()
		values := make([][]byte, len(r.Pairs))
		for i, p := range r.Pairs {
			values[i] = p.Value
		}
		c.keys.RawBatchPut(r.Cf, keysOf(req), values)
		return &kvrpcpb.RawBatchPutResponse{}
	case tikvrpc.CmdRawDelete:
		r := req.RawDelete()
		c.keys.RawDelete(r.Cf, r.Key)
		return &kvrpcpb.RawDeleteResponse{}
	case tikvrpc.CmdRawBatchDelete:
		r := req.RawBatchDelete()
		c.keys.RawBatchDelete(r.Cf, r.Keys)
		return &kvrpcpb.RawBatchDeleteResponse{}
	default:
		return c.swap(req.RawCompareAndSwap())
	}
}

// swap is RawCompareAndSwap as a server does it. writes is held.
func (c *Cluster) swap(r *kvrpcpb.RawCASRequest) *kvrpcpb.RawCASResponse {
	old := c.keys.RawGet(r.Cf, r.Key)
	out := &kvrpcpb.RawCASResponse{PreviousNotExist: old == nil, PreviousValue: sent(old)}
	switch {
	case r.PreviousNotExist:
		out.Succeed = old == nil
	default:
		out.Succeed = old != nil && bytes.Equal(old, r.PreviousValue)
	}
	if out.Succeed {
		c.keys.RawPut(r.Cf, r.Key, r.Value)
	}
	return out
}

// sent is a value as it arrives: gRPC makes an empty one nil.
func sent(v []byte) []byte {
	if len(v) == 0 {
		return nil
	}
	return v
}

// bounds are the ends of a region as keys of the database, which are the keys of
// PD in version 1 of the API.
type bounds struct{ start, end []byte }

// memcomparable is the encoding of the keys of PD in version 2 of the API: that of
// client-go's codec for transactions.
var memcomparable = tikv.NewCodecV1(tikv.ModeTxn)

func (c *Cluster) bounds(start, end []byte) (bounds, error) {
	if c.opts.API != kvrpcpb.APIVersion_V2 {
		return bounds{start, end}, nil
	}
	start, end, err := memcomparable.DecodeRegionRange(start, end)
	return bounds{start, end}, err
}

// regionKey is a key of the database as PD has it.
func (c *Cluster) regionKey(key []byte) []byte {
	if c.opts.API != kvrpcpb.APIVersion_V2 {
		return key
	}
	return memcomparable.EncodeRegionKey(key)
}

func (b bounds) contain(key []byte) bool {
	return bytes.Compare(key, b.start) >= 0 && (len(b.end) == 0 || bytes.Compare(key, b.end) < 0)
}

func (b bounds) capStart(key []byte) []byte {
	if bytes.Compare(key, b.start) < 0 {
		return b.start
	}
	return key
}

// capEnd takes an empty key, and an empty end, for the end of everything.
func (b bounds) capEnd(key []byte) []byte {
	if len(key) == 0 || len(b.end) > 0 && bytes.Compare(key, b.end) > 0 {
		return b.end
	}
	return key
}

// churn changes the regions while requests come.
type churn struct {
	every int64
	pause time.Duration

	mu       sync.Mutex
	rng      *rand.Rand
	requests int64
	last     time.Time // of the last change
	changes  Changes
}

// Changes counts what Churn did.
type Changes struct{ Splits, Merges, Moves int }

// maxRegions is where Churn begins to merge more than it splits.
const maxRegions = 24

// Churn changes the regions before every n-th request from now on, but no sooner than a
// pause after the last change, until the end of the test: it splits a region at the key
// that was written last, merges two neighbours, or moves a leader. Without a pause many
// clients together change a region so often that one of them, whose waits grow, never
// meets it as it was when it asked. It prints its seed. The function that it returns
// stops it and tells what it did.
func (c *Cluster) Churn(t testing.TB, n int, pause time.Duration) func() Changes {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("tikvtest: churn of regions with seed %d", seed)
	ch := &churn{every: int64(n), pause: pause, rng: rand.New(rand.NewPCG(seed, 0))}
	c.churn.Store(ch)
	stop := func() Changes {
		c.churn.CompareAndSwap(ch, nil)
		ch.mu.Lock()
		defer ch.mu.Unlock()
		return ch.changes
	}
	atend.Do(t, func() { stop() })
	return stop
}

func (ch *churn) step(c *Cluster) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.requests++; ch.requests%ch.every != 0 || time.Since(ch.last) < ch.pause {
		return
	}
	last := c.lastKey.Load()
	if last == nil {
		return
	}
	c.topology.Lock()
	defer c.topology.Unlock()
	ch.last = time.Now()
	regions := c.regions()
	somewhere := regions[ch.rng.IntN(len(regions))].Start
	switch n := ch.rng.IntN(3); {
	case n == 0:
		ch.changes.Moves++
		c.moveLeader(somewhere)
	case n == 1 && len(regions) > 1 || len(regions) > maxRegions:
		ch.changes.Merges++
		c.merge(somewhere)
	default:
		ch.changes.Splits++
		c.split(c.regionKey(*last))
	}
}
