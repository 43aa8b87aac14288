package tikvraw

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pingcap/kvproto/pkg/errorpb"
	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	pkgerrors "github.com/pkg/errors"
	"github.com/tikv/client-go/v2/rawkv"
	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/tikvrpc"
	pd "github.com/tikv/pd/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// raw is all that the store asks of TiKV: the raw key-value calls in atomic mode.
// A key that is absent has the value nil; one that is there has a value that is
// not nil. Calls over several keys go out for each region in parallel. All methods
// may be called concurrently.
//
// After an error of a write other than cas, each of its keys may have been written, or may
// be later. Nothing that the store writes in this way can do harm then.
type raw interface {
	get(ctx context.Context, key []byte) ([]byte, error)
	// batchGet returns the values in the order of the keys, which are different.
	batchGet(ctx context.Context, keys [][]byte) ([][]byte, error)
	put(ctx context.Context, key, value []byte) error
	batchPut(ctx context.Context, keys, values [][]byte) error
	delete(ctx context.Context, key []byte) error
	batchDelete(ctx context.Context, keys [][]byte) error
	// scan returns up to limit pairs with from <= key < to, in ascending order,
	// and none only if the range is empty. With keysOnly there are no values.
	scan(ctx context.Context, from, to []byte, limit int, keysOnly bool) ([]pair, error)
	// reverseScan is scan in descending order.
	reverseScan(ctx context.Context, from, to []byte, limit int, keysOnly bool) ([]pair, error)
	// cas writes value if the key's value is old (nil: absent), and tells the value
	// that it met. An error that matches rowstore.ErrAmbiguous says that value may
	// have been written, or may still be; any other error that it was not.
	//
	// TiKV's client sends a swap again if it lost the answer. So a swap that reports a
	// failure may be the second arrival of one that succeeded. Then either the error
	// matches rowstore.ErrAmbiguous, or the value met is value itself: the caller never
	// writes the same bytes twice, so it knows that this is its own swap.
	cas(ctx context.Context, key, old, value []byte) (met []byte, swapped bool, err error)
	// boundaries returns the first keys of regions that lie within from and to,
	// both not included, in ascending order.
	boundaries(ctx context.Context, from, to []byte) ([][]byte, error)
	// shard names the server that leads a key's region, "" if that is not known. It does
	// no I/O.
	shard(key []byte) string
	close() error
}

type pair struct {
	key, value []byte
}

// client is a raw over TiKV.
type client struct {
	kv                *rawkv.Client
	pd                pd.Client
	regions           *tikv.RegionCache
	patience, timeout time.Duration
}

// newClient takes both clients over: close closes them. A swap, from its arrival
// at a server on, is given up after timeout. For patience see call.
func newClient(pdc pd.Client, rpc tikv.Client, patience, timeout time.Duration) *client {
	// NewClientWithOpts would dial PD with no context, for up to 100 seconds, and it takes
	// no client that watches the attempts of a swap. The probe does.
	probe := rawkv.ClientProbe{Client: &rawkv.Client{}}
	regions := tikv.NewRegionCache(withBorders(pdc))
	probe.SetPDClient(pdc)
	probe.SetRegionCache(regions)
	probe.SetRPCClient(&watched{Client: rpc, timeout: timeout})
	return &client{kv: probe.SetAtomicForCAS(true), pd: pdc, regions: regions, patience: patience, timeout: timeout}
}

func (c *client) close() error {
	return c.kv.Close()
}

// bordering makes sure that the region before a key is the one that ends at it. A scan in
// reverse asks PD first whose key it is, and if a region begins there, which one is before
// that. If the two are merged in between, client-go takes the one before both, and the scan
// leaves out what lies from there to the key.
type bordering struct{ pd.Client }

// withBorders puts bordering under the codec, if pdc has one: client-go knows it by its type.
func withBorders(pdc pd.Client) pd.Client {
	if codec, ok := pdc.(*tikv.CodecPDClient); ok {
		under := *codec
		under.Client = bordering{under.Client}
		return &under
	}
	return bordering{pdc}
}

func (b bordering) GetPrevRegion(ctx context.Context, key []byte, opts ...pd.GetRegionOption) (*pd.Region, error) {
	for {
		before, err := b.Client.GetPrevRegion(ctx, key, opts...)
		if err != nil || before == nil || before.Meta == nil || bytes.Compare(before.Meta.EndKey, key) >= 0 {
			return before, err
		}
		merged, err := b.Client.GetRegion(ctx, key, opts...)
		if err != nil || merged == nil || merged.Meta == nil || bytes.Compare(merged.Meta.StartKey, key) < 0 {
			return merged, err
		}
		// It was split at the key again.
	}
}

func (c *client) get(ctx context.Context, key []byte) ([]byte, error) {
	k, inner := newCall(ctx, c.patience, c.timeout)
	defer k.end()
	v, err := c.kv.Get(inner, key)
	return v, k.explain(err)
}

func (c *client) batchGet(ctx context.Context, keys [][]byte) ([][]byte, error) {
	k, inner := newCall(ctx, c.patience, c.timeout)
	defer k.end()
	v, err := c.kv.BatchGet(inner, keys)
	if err = k.refused(err); err != nil {
		return nil, k.explain(err)
	}
	return v, nil
}

func (c *client) put(ctx context.Context, key, value []byte) error {
	k, inner := newCall(ctx, c.patience, c.timeout)
	defer k.end()
	return k.explain(c.kv.Put(inner, key, value))
}

func (c *client) batchPut(ctx context.Context, keys, values [][]byte) error {
	k, inner := newCall(ctx, c.patience, c.timeout)
	defer k.end()
	return k.explain(c.kv.BatchPut(inner, keys, values))
}

func (c *client) delete(ctx context.Context, key []byte) error {
	k, inner := newCall(ctx, c.patience, c.timeout)
	defer k.end()
	return k.explain(c.kv.Delete(inner, key))
}

func (c *client) batchDelete(ctx context.Context, keys [][]byte) error {
	k, inner := newCall(ctx, c.patience, c.timeout)
	defer k.end()
	return k.explain(c.kv.BatchDelete(inner, keys))
}

func scanOptions(keysOnly bool) []rawkv.RawOption {
	if keysOnly {
		return []rawkv.RawOption{rawkv.ScanKeyOnly()}
	}
	return nil
}

func (c *client) scan(ctx context.Context, from, to []byte, limit int, keysOnly bool) ([]pair, error) {
	k, inner := newCall(ctx, c.patience, c.timeout)
	defer k.end()
	var out []pair
	for {
		keys, values, err := c.kv.Scan(inner, from, to, limit-len(out), scanOptions(keysOnly)...)
		if err = k.refused(err); err != nil {
			return nil, k.explain(err)
		}
		all := len(keys) < limit-len(out)
		// What was dropped counted in the limit, and more may follow.
		if out = append(out, pairs(keys, values, keysOnly, 1)...); all || len(out) >= limit {
			return out, nil
		}
		from = append(bytes.Clone(out[len(out)-1].key), 0)
	}
}

func (c *client) reverseScan(ctx context.Context, from, to []byte, limit int, keysOnly bool) ([]pair, error) {
	k, inner := newCall(ctx, c.patience, c.timeout)
	defer k.end()
	var out []pair
	for {
		keys, values, err := c.kv.ReverseScan(inner, to, from, limit-len(out), scanOptions(keysOnly)...)
		if err = k.refused(err); err != nil {
			return nil, k.explain(err)
		}
		all := len(keys) < limit-len(out)
		if out = append(out, pairs(keys, values, keysOnly, -1)...); all || len(out) >= limit {
			return out, nil
		}
		to = out[len(out)-1].key
	}
}

// pairs drops keys that are out of order: a region that was merged while the scan
// went over it answers beyond the end that the client knew.
func pairs(keys, values [][]byte, keysOnly bool, sign int) []pair {
	out := make([]pair, 0, len(keys))
	for i, k := range keys {
		if n := len(out); n > 0 && bytes.Compare(k, out[n-1].key)*sign <= 0 {
			continue
		}
		p := pair{key: k}
		if !keysOnly {
			p.value = values[i]
		}
		out = append(out, p)
	}
	return out
}

func (c *client) cas(ctx context.Context, key, old, value []byte) ([]byte, bool, error) {
	k, inner := newCall(ctx, c.patience, c.timeout)
	defer k.end()
	met, swapped, err := c.kv.CompareAndSwap(inner, key, old, value)
	switch {
	case err != nil:
		return nil, false, k.explainSwap(err)
	case !swapped && k.lost.Load() && !bytes.Equal(met, value):
		return nil, false, fmt.Errorf("%w: the answer to a write was lost, and the row has been changed since", rowstore.ErrAmbiguous)
	}
	return met, swapped, nil
}

func (c *client) boundaries(ctx context.Context, from, to []byte) ([][]byte, error) {
	const page = 256
	inner, end := apart(ctx)
	defer end()
	var out [][]byte
	for key := from; ; {
		regions, err := c.pd.ScanRegions(inner, key, to, page)
		if err != nil {
			return nil, pdFailed(ctx, err)
		}
		next := key
		for _, r := range regions {
			start, end := r.Meta.GetStartKey(), r.Meta.GetEndKey()
			// While a region splits, PD may know neighbours that overlap.
			if bytes.Compare(start, from) > 0 && bytes.Compare(start, to) < 0 &&
				(len(out) == 0 || bytes.Compare(start, out[len(out)-1]) > 0) {
				out = append(out, start)
			}
			if len(end) == 0 {
				return out, nil
			}
			next = end
		}
		if len(regions) == 0 || bytes.Compare(next, key) <= 0 || bytes.Compare(next, to) >= 0 {
			return out, nil
		}
		key = next
	}
}

func (c *client) shard(key []byte) string {
	at := c.regions.TryLocateKey(key)
	if at == nil {
		return ""
	}
	region := c.regions.GetCachedRegionWithRLock(at.Region)
	if region == nil {
		return ""
	}
	return strconv.FormatUint(region.GetLeaderStoreID(), 10)
}

// watched is a TiKV client that tells each call how its requests ended.
type watched struct {
	tikv.Client
	timeout time.Duration
}

func (c *watched) SendRequest(ctx context.Context, addr string, req *tikvrpc.Request, timeout time.Duration) (*tikvrpc.Response, error) {
	req = ownCopy(req)
	if req.Type == tikvrpc.CmdRawCompareAndSwap {
		req.MaxExecutionDurationMs = uint64(c.timeout.Milliseconds()) //nolint:gosec // positive
	}
	// While a region elects a leader, an answer may never come. The client would wait for
	// 30 seconds.
	timeout = min(timeout, c.timeout)
	k, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		return c.Client.SendRequest(ctx, addr, req, timeout)
	}
	if err := ctx.Err(); err != nil {
		return nil, err // the client tries once more when its wait was cut short
	}
	left := k.sent()
	resp, err := c.Client.SendRequest(ctx, addr, req, timeout)
	if req.Type == tikvrpc.CmdRawCompareAndSwap {
		if mayHaveApplied(resp, err) {
			k.lost.Store(true)
		}
	} else if err == nil && resp != nil {
		for _, p := range pairsOf(resp.Resp) {
			if e := p.GetError(); e != nil {
				msg := e.String()
				k.pair.Store(&msg)
			}
		}
	}
	if isTooMuch(err) {
		// The answer would be as long from any server.
		if short := emptyAnswer(req.Type); short != nil {
			msg := err.Error()
			k.pair.Store(&msg)
			k.answered(left, "", false)
			return &tikvrpc.Response{Resp: short}, nil
		}
	}
	trouble, full := troubleOf(resp, err)
	k.answered(left, trouble, full)
	if err != nil && ctx.Err() == nil {
		return noLeader(req, err)
	}
	return resp, err
}

// emptyAnswer takes the place of an answer that was too long to arrive. The call's error
// says so.
func emptyAnswer(t tikvrpc.CmdType) any {
	switch t {
	case tikvrpc.CmdRawBatchGet:
		return &kvrpcpb.RawBatchGetResponse{}
	case tikvrpc.CmdRawScan:
		return &kvrpcpb.RawScanResponse{}
	}
	return nil
}

// ownCopy returns a request that an attempt can have for itself. The client writes the
// next region and peer into the request that it sends again, while an attempt whose
// time is over may still wait to be written to its connection.
func ownCopy(req *tikvrpc.Request) *tikvrpc.Request {
	own := *req
	switch m := req.Req.(type) {
	case *kvrpcpb.RawGetRequest:
		own.Req = shallow(m)
	case *kvrpcpb.RawBatchGetRequest:
		own.Req = shallow(m)
	case *kvrpcpb.RawScanRequest:
		own.Req = shallow(m)
	case *kvrpcpb.RawPutRequest:
		own.Req = shallow(m)
	case *kvrpcpb.RawBatchPutRequest:
		own.Req = shallow(m)
	case *kvrpcpb.RawDeleteRequest:
		own.Req = shallow(m)
	case *kvrpcpb.RawBatchDeleteRequest:
		own.Req = shallow(m)
	case *kvrpcpb.RawCASRequest:
		own.Req = shallow(m)
	default:
		return req
	}
	tikvrpc.AttachContext(&own, &own.Context)
	return &own
}

func shallow[T any](m *T) *T {
	c := *m
	return &c
}

// noLeader makes a broken connection look like a region without a leader: the client
// asks the other servers of the region, who know the leader or elect one, and goes on.
//
// Left to itself it would first check by a connection of its own whether the server
// lives, and not come back to it until such a check has succeeded. That check knows TLS
// from a setting of the whole process, which belongs to the program and is the same for
// every cluster; with another, or none, a server whose connection broke once would be
// gone for as long as the store is open.
func noLeader(req *tikvrpc.Request, err error) (*tikvrpc.Response, error) {
	resp, failed := tikvrpc.GenRegionErrorResp(req, &errorpb.Error{
		Message:   err.Error(),
		NotLeader: &errorpb.NotLeader{RegionId: req.RegionId},
	})
	if failed != nil {
		return nil, err // not a request of a region
	}
	return resp, nil
}

// pairsOf returns the pairs of an answer that has some.
func pairsOf(resp any) []*kvrpcpb.KvPair {
	switch r := resp.(type) {
	case *kvrpcpb.RawBatchGetResponse:
		return r.GetPairs()
	case *kvrpcpb.RawScanResponse:
		return r.GetKvs()
	}
	return nil
}

// mayHaveApplied tells whether one attempt of a swap may have been applied.
func mayHaveApplied(resp *tikvrpc.Response, err error) bool {
	if err != nil {
		// Without a connection nothing was sent. After any other error the request may have
		// arrived.
		return !notDialed(err)
	}
	if resp == nil || resp.Resp == nil {
		return true
	}
	re, err := resp.GetRegionError()
	if err != nil {
		return true
	}
	if re != nil {
		return !provesNothing(re)
	}
	r, ok := resp.Resp.(*kvrpcpb.RawCASResponse)
	return !ok || r.GetError() != "" && !isRefusal(r.GetError())
}

// isRefusal tells whether a server's words say that it did not take a request on.
func isRefusal(msg string) bool {
	msg = strings.ToLower(msg)
	for _, words := range []string{"api version", "apiversion", "key mode", "keytoolarge", "key size", "too large"} {
		if strings.Contains(msg, words) {
			return true
		}
	}
	return false
}

// isTooMuch tells whether a request failed because its answer is longer than a server
// sends in one message.
func isTooMuch(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "ResourceExhausted") || strings.Contains(err.Error(), "larger than max"))
}

// notDialed recognises the errors of a request that never left: without a connection.
func notDialed(err error) bool {
	if err.Error() == "no available connections" {
		return true // the client's own words, while it makes them anew
	}
	// The client wraps errors in a way of its own, which errors.As does not see through.
	s, ok := status.FromError(pkgerrors.Cause(err))
	return ok && s.Code() == codes.Unavailable && strings.Contains(s.Message(), "rror while dialing")
}

// provesNothing lists the region errors that a server gives before it proposes a
// request: nothing happened then. The others, StaleCommand above all, may come
// after. So may RegionNotFound: a server whose copy of a region is taken away answers
// it to what it had proposed, which the region's other servers may apply.
func provesNothing(e *errorpb.Error) bool {
	return e.GetNotLeader() != nil || e.GetKeyNotInRegion() != nil ||
		e.GetEpochNotMatch() != nil || e.GetServerIsBusy() != nil || e.GetStoreNotMatch() != nil ||
		e.GetRaftEntryTooLarge() != nil || e.GetDiskFull() != nil || e.GetProposalInMergingMode() != nil ||
		e.GetMaxTimestampNotSynced() != nil || e.GetRegionNotInitialized() != nil ||
		e.GetRecoveryInProgress() != nil || e.GetFlashbackInProgress() != nil || e.GetIsWitness() != nil
}

// explain adds what the client's words leave out. If the context has ended, the error
// matches the context's.
func explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ended := contexts.Ended(ctx); ended != nil {
		return endedBy(ended, err)
	}
	if low := strings.ToLower(err.Error()); strings.Contains(low, "api version") || strings.Contains(low, "apiversion") || strings.Contains(low, "invalid key mode") {
		return fmt.Errorf("the cluster has another API version than the store was opened for: set the parameter api (Options.API) to the cluster's: %w", err)
	}
	return err
}
