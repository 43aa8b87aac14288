package tikvtest

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pingcap/kvproto/pkg/errorpb"
	"github.com/pingcap/kvproto/pkg/metapb"
	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/tikvrpc"
	pd "github.com/tikv/pd/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Counts says how many requests of each kind there were.
type Counts struct {
	// Stores counts the requests to stores, by type. A request that client-go sends
	// again counts again.
	Stores map[tikvrpc.CmdType]int
	// Timestamps counts the timestamps that PD was asked for. PD's own client asks for
	// all that wait at a moment in one request.
	Timestamps int
	// Lookups counts the other requests to PD: where is a region, or a store.
	Lookups int
}

// Total is the number of requests to stores.
func (c Counts) Total() (n int) {
	for _, m := range c.Stores {
		n += m
	}
	return n
}

// String lists the counts, for the message of a failed assertion.
func (c Counts) String() string {
	names := map[string]int{}
	for t, n := range c.Stores {
		name := t.String()
		if t == tikvrpc.CmdRawCompareAndSwap {
			name = "RawCompareAndSwap" // which client-go calls "Unknown"
		}
		names[name] += n
	}
	return fmt.Sprintf("%v, %d timestamps, %d lookups", names, c.Timestamps, c.Lookups)
}

// Counter is a Layer that counts requests. The zero value is ready.
type Counter struct {
	mu     sync.Mutex
	counts Counts
}

var _ Layer = (*Counter)(nil)

// Take returns the counts since the last Take and begins anew.
func (c *Counter) Take() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.counts
	c.counts = Counts{}
	return out
}

// Now returns the counts since the last Take.
func (c *Counter) Now() Counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.counts
	out.Stores = maps.Clone(out.Stores)
	return out
}

// Stores is part of Layer.
func (c *Counter) Stores(next tikv.Client) tikv.Client {
	return &storesLayer{next, func(_ context.Context, req *tikvrpc.Request, send func() (*tikvrpc.Response, error)) (*tikvrpc.Response, error) {
		c.mu.Lock()
		if c.counts.Stores == nil {
			c.counts.Stores = map[tikvrpc.CmdType]int{}
		}
		c.counts.Stores[req.Type]++
		c.mu.Unlock()
		return send()
	}}
}

// PD is part of Layer.
func (c *Counter) PD(next pd.Client) pd.Client {
	return &pdLayer{next, func(_ context.Context, timestamp bool) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if timestamp {
			c.counts.Timestamps++
		} else {
			c.counts.Lookups++
		}
		return nil
	}}
}

// Latency is a Layer that delays every request: by half before it is served, and by
// half after. In a synctest bubble the time that something takes, divided by the
// latency, is therefore the number of its sequential round trips, exactly.
type Latency struct{ nanos atomic.Int64 }

var _ Layer = (*Latency)(nil)

// Set sets the time that a request takes from now on. At first it is 0.
func (l *Latency) Set(d time.Duration) { l.nanos.Store(int64(d)) }

func (l *Latency) half(ctx context.Context) error {
	d := time.Duration(l.nanos.Load() / 2)
	if d == 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stores is part of Layer.
func (l *Latency) Stores(next tikv.Client) tikv.Client {
	return &storesLayer{next, func(ctx context.Context, _ *tikvrpc.Request, send func() (*tikvrpc.Response, error)) (*tikvrpc.Response, error) {
		if err := l.half(ctx); err != nil {
			return nil, status.FromContextError(err).Err()
		}
		resp, err := send()
		if late := l.half(ctx); err == nil && late != nil {
			return nil, status.FromContextError(late).Err()
		}
		return resp, err
	}}
}

// PD is part of Layer. The whole delay comes before the answer: what PD says is as
// of the end of it.
func (l *Latency) PD(next pd.Client) pd.Client {
	return &pdLayer{next, func(ctx context.Context, _ bool) error {
		if err := l.half(ctx); err != nil {
			return err
		}
		return l.half(ctx)
	}}
}

// Fault is what happens to a request to a store.
type Fault uint8

const (
	// Pass lets the request through.
	Pass Fault = iota
	// LoseRequest breaks the connection before the store got the request.
	LoseRequest
	// LoseReply breaks the connection after the store served the request.
	LoseReply
	// Hang keeps the client waiting until its context ends, or the timeout of the
	// request has passed; the store never gets it.
	Hang
	// HangAfter is Hang after the store served the request.
	HangAfter
	// NotLeader, EpochNotMatch, RegionNotFound and ServerIsBusy are region errors; each
	// proves that nothing was applied.
	NotLeader
	// EpochNotMatch: see NotLeader.
	EpochNotMatch
	// RegionNotFound: see NotLeader.
	RegionNotFound
	// ServerIsBusy: see NotLeader.
	ServerIsBusy
	// StaleCommand is the region error of a store that lost a region after it had
	// proposed a write there. Nobody knows whether that is applied; here it is.
	StaleCommand
	faults // how many there are
)

// Proven tells whether a fault proves to the client that nothing was applied.
func (f Fault) Proven() bool {
	switch f {
	case NotLeader, EpochNotMatch, RegionNotFound, ServerIsBusy:
		return true
	}
	return false
}

// Faults is a Layer that hurts requests to the stores. The zero value lets
// everything through.
//
// The faults that come after a request was served are done to those alone that the
// store did serve: its region errors arrive.
type Faults struct {
	pick     atomic.Pointer[func(*tikvrpc.Request) Fault]
	once     atomic.Pointer[onceFault]
	injected [faults]atomic.Int64
}

type onceFault struct {
	what  tikvrpc.CmdType
	fault Fault
}

var _ Layer = (*Faults)(nil)

// Set sets the function that picks the fault of each request, nil for none. It is
// called concurrently.
func (f *Faults) Set(pick func(*tikvrpc.Request) Fault) {
	if pick == nil {
		f.pick.Store(nil)
		return
	}
	f.pick.Store(&pick)
}

// Once hurts one request of the type, the next, and then no other. It goes before
// what Set picks.
func (f *Faults) Once(what tikvrpc.CmdType, fault Fault) {
	f.once.Store(&onceFault{what, fault})
}

// Injected is the number of requests that a fault was done to.
func (f *Faults) Injected(fault Fault) int { return int(f.injected[fault].Load()) }

// Stores is part of Layer.
func (f *Faults) Stores(next tikv.Client) tikv.Client {
	return &storesLayer{next, f.send}
}

// PD is part of Layer: nothing is done to requests to PD. Cluster.StopPD is for them.
func (f *Faults) PD(next pd.Client) pd.Client { return next }

var errBroken = status.Error(codes.Unavailable, "error reading from server: EOF")

func (f *Faults) send(ctx context.Context, req *tikvrpc.Request, send func() (*tikvrpc.Response, error)) (*tikvrpc.Response, error) {
	fault := Pass
	once := f.once.Load()
	if once != nil && once.what == req.Type && f.once.CompareAndSwap(once, nil) {
		fault = once.fault
	} else if pick := f.pick.Load(); pick != nil {
		once, fault = nil, (*pick)(req)
	} else {
		once = nil
	}
	switch fault {
	case LoseReply, HangAfter, StaleCommand:
		resp, err := send()
		if err != nil {
			return nil, err
		}
		if regionErr, err := resp.GetRegionError(); err != nil || regionErr != nil {
			if once != nil {
				f.once.CompareAndSwap(nil, once)
			}
			return resp, err
		}
	}
	f.injected[fault].Add(1)
	switch fault {
	case LoseRequest, LoseReply:
		return nil, errBroken
	case Hang, HangAfter:
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case StaleCommand:
		return tikvrpc.GenRegionErrorResp(req, &errorpb.Error{Message: "stale command", StaleCommand: &errorpb.StaleCommand{}})
	case NotLeader:
		return tikvrpc.GenRegionErrorResp(req, &errorpb.Error{Message: "not leader", NotLeader: &errorpb.NotLeader{RegionId: req.RegionId}})
	case EpochNotMatch:
		return tikvrpc.GenRegionErrorResp(req, &errorpb.Error{Message: "epoch not match", EpochNotMatch: &errorpb.EpochNotMatch{}})
	case RegionNotFound:
		return tikvrpc.GenRegionErrorResp(req, &errorpb.Error{Message: "region not found", RegionNotFound: &errorpb.RegionNotFound{RegionId: req.RegionId}})
	case ServerIsBusy:
		return tikvrpc.GenRegionErrorResp(req, &errorpb.Error{Message: "server is busy", ServerIsBusy: &errorpb.ServerIsBusy{Reason: "test"}})
	}
	return send()
}

// storesLayer is a tikv.Client that does something around each request.
type storesLayer struct {
	tikv.Client
	around func(context.Context, *tikvrpc.Request, func() (*tikvrpc.Response, error)) (*tikvrpc.Response, error)
}

func (s *storesLayer) SendRequest(ctx context.Context, addr string, req *tikvrpc.Request, timeout time.Duration) (*tikvrpc.Response, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return s.around(ctx, req, func() (*tikvrpc.Response, error) {
		return s.Client.SendRequest(ctx, addr, req, timeout)
	})
}

// pdLayer is a pd.Client that does something before each request.
type pdLayer struct {
	pd.Client
	before func(ctx context.Context, timestamp bool) error
}

func (p *pdLayer) GetTS(ctx context.Context) (ms, counter int64, err error) {
	if err := p.before(ctx, true); err != nil {
		return 0, 0, err
	}
	return p.Client.GetTS(ctx)
}

// GetTSAsync begins the request at once, as PD's client does.
func (p *pdLayer) GetTSAsync(ctx context.Context) pd.TSFuture {
	type answer struct {
		ms, counter int64
		err         error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		a.ms, a.counter, a.err = p.GetTS(ctx)
		done <- a
	}()
	return &future{func() (int64, int64, error) {
		a := <-done
		return a.ms, a.counter, a.err
	}}
}

func (p *pdLayer) GetLocalTS(ctx context.Context, _ string) (ms, counter int64, err error) {
	return p.GetTS(ctx)
}

func (p *pdLayer) GetLocalTSAsync(ctx context.Context, _ string) pd.TSFuture {
	return p.GetTSAsync(ctx)
}

func (p *pdLayer) GetRegion(ctx context.Context, key []byte, opts ...pd.GetRegionOption) (*pd.Region, error) {
	if err := p.before(ctx, false); err != nil {
		return nil, err
	}
	return p.Client.GetRegion(ctx, key, opts...)
}

func (p *pdLayer) GetPrevRegion(ctx context.Context, key []byte, opts ...pd.GetRegionOption) (*pd.Region, error) {
	if err := p.before(ctx, false); err != nil {
		return nil, err
	}
	return p.Client.GetPrevRegion(ctx, key, opts...)
}

func (p *pdLayer) GetRegionByID(ctx context.Context, id uint64, opts ...pd.GetRegionOption) (*pd.Region, error) {
	if err := p.before(ctx, false); err != nil {
		return nil, err
	}
	return p.Client.GetRegionByID(ctx, id, opts...)
}

func (p *pdLayer) ScanRegions(ctx context.Context, start, end []byte, limit int) ([]*pd.Region, error) {
	if err := p.before(ctx, false); err != nil {
		return nil, err
	}
	return p.Client.ScanRegions(ctx, start, end, limit)
}

func (p *pdLayer) GetStore(ctx context.Context, id uint64) (*metapb.Store, error) {
	if err := p.before(ctx, false); err != nil {
		return nil, err
	}
	return p.Client.GetStore(ctx, id)
}

func (p *pdLayer) GetAllStores(ctx context.Context, opts ...pd.GetStoreOption) ([]*metapb.Store, error) {
	if err := p.before(ctx, false); err != nil {
		return nil, err
	}
	return p.Client.GetAllStores(ctx, opts...)
}
