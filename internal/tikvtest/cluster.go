package tikvtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pingcap/kvproto/pkg/keyspacepb"
	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/pingcap/kvproto/pkg/metapb"
	"github.com/tikv/client-go/v2/rawkv"
	"github.com/tikv/client-go/v2/testutils"
	"github.com/tikv/client-go/v2/tikv"
	pd "github.com/tikv/pd/client"
	"go.uber.org/goleak"

	"github.com/percolate-go/percolate/internal/atend"
)

// Options say what a cluster is. The zero value is a cluster of three stores that
// speaks version 1 of the API, without TLS, and listens on 127.0.0.1.
type Options struct {
	// Stores is the number of stores; 0 means 3. NoStores makes a PD without any.
	Stores   int
	NoStores bool
	// API is the version that the stores were set up for: V1 (the zero value) or V2.
	API kvrpcpb.APIVersion
	// Keyspaces are the keyspaces beside DEFAULT, which is 0. For V2 alone.
	Keyspaces map[string]uint32
	// TLS, if not nil, is what PD and the stores listen with.
	TLS *tls.Config
	// Offline clusters do not listen: the clients of Clients alone reach them. It is for
	// tests in a synctest bubble, where network I/O would stop the clock; start the
	// cluster outside of the bubble, its clients inside. After a broken connection
	// client-go takes a store of such a cluster for unreachable.
	Offline bool
}

// Cluster is a mock cluster. Its methods may be called concurrently with each
// other and with clients.
type Cluster struct {
	opts   Options
	mock   *testutils.MockClient
	meta   *testutils.MockCluster
	mockPD pd.Client
	keys   rawKeys
	tso    tso

	// topology is held for writing while regions or leaders change, and for
	// reading while a request is checked and served, so that no change of a region
	// falls between the two, as in a server's Raft log.
	topology sync.RWMutex
	// writes makes a compare-and-swap, which is a read and a write here, one step.
	writes sync.Mutex

	stores  []uint64
	down    sync.Map // store id -> struct{}, the stores that StopStore stopped
	served  atomic.Int64
	churn   atomic.Pointer[churn]
	lastKey atomic.Pointer[[]byte] // of the last write, in the region's terms
	listens *listeners             // nil if Offline
}

// rawKeys is the ordered store of client-go's mock, which is not exported.
type rawKeys interface {
	RawGet(cf string, key []byte) []byte
	RawScan(cf string, startKey, endKey []byte, limit int) []testutils.MVCCPair
	RawReverseScan(cf string, startKey, endKey []byte, limit int) []testutils.MVCCPair
	RawPut(cf string, key, value []byte)
	RawBatchPut(cf string, keys, values [][]byte)
	RawDelete(cf string, key []byte)
	RawBatchDelete(cf string, keys [][]byte)
}

// New starts a cluster of one region and ends it with the test. Close the clients
// before: in a Cleanup registered after New, or by defer.
func New(t testing.TB, o Options) *Cluster {
	t.Helper()
	c, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	atend.Do(t, func() {
		if err := c.Close(); err != nil {
			t.Errorf("close the mock cluster: %v", err)
		}
	})
	return c
}

// Start is New for programs without a testing.TB. The caller closes the cluster.
func Start(o Options) (*Cluster, error) {
	if o.Stores == 0 && !o.NoStores {
		o.Stores = 3
	}
	mock, meta, mockPD, err := testutils.NewMockTiKV("", nil)
	if err != nil {
		return nil, fmt.Errorf("tikvtest: %w", err)
	}
	c := &Cluster{opts: o, mock: mock, meta: meta, mockPD: mockPD}
	var ok bool
	if c.keys, ok = mock.MvccStore.(rawKeys); !ok {
		return nil, errors.New("tikvtest: this client-go's mock does not keep raw keys")
	}
	if !o.NoStores {
		var peers []uint64
		var region uint64
		c.stores, peers, region, _ = testutils.BootstrapWithMultiStores(meta, o.Stores)
		_, _ = peers, region
	}
	if o.Offline {
		return c, nil
	}
	if c.listens, err = c.listen(); err != nil {
		return nil, errors.Join(fmt.Errorf("tikvtest: listen: %w", err), c.Close())
	}
	return c, nil
}

// Leaks are the options for goleak that a package needs which uses a cluster: what
// client-go's dependencies leave running for a while after Close, each by name.
func Leaks() []goleak.Option {
	return []goleak.Option{
		// The mock's goleveldb waits for a second after its Close for buffers that come
		// back late.
		goleak.IgnoreTopFunction("github.com/pingcap/goleveldb/leveldb.(*DB).mpoolDrain"),
		// A client that was closed while it made a connection anew finds that out after its
		// backoff, of two seconds at most.
		goleak.IgnoreAnyFunction("github.com/tikv/client-go/v2/internal/client.(*batchCommandsClient).recreateStreamingClient"),
		// One that was closed while it made its first connection waits for that as long as it may take.
		goleak.IgnoreAnyFunction("github.com/tikv/client-go/v2/internal/client.(*batchCommandsClient).initBatchClient"),
	}
}

// Close ends the cluster; its keys are lost.
func (c *Cluster) Close() error {
	if c.listens != nil {
		c.listens.close()
	}
	return c.mock.Close()
}

// A Layer stands between a client and the cluster, and sees every request.
type Layer interface {
	// Stores returns what the client is to use in place of next for its stores.
	Stores(next tikv.Client) tikv.Client
	// PD does the same for PD.
	PD(next pd.Client) pd.Client
}

// Clients returns a client of PD and one of the stores, which a store may be built
// from, and which it may close: the cluster goes on. Requests go through the layers,
// the first one outermost, and never over the network. In API version 2 they are of
// the keyspace DEFAULT; KeyspaceClients takes another.
func (c *Cluster) Clients(t testing.TB, layers ...Layer) (pd.Client, tikv.Client) {
	t.Helper()
	return c.KeyspaceClients(t, "", layers...)
}

// KeyspaceClients is Clients for a keyspace of a cluster of API version 2.
func (c *Cluster) KeyspaceClients(t testing.TB, keyspace string, layers ...Layer) (pd.Client, tikv.Client) {
	t.Helper()
	var p pd.Client = &pdClient{Client: c.mockPD, cluster: c}
	stores := c.Transport()
	for i := len(layers) - 1; i >= 0; i-- {
		p, stores = layers[i].PD(p), layers[i].Stores(stores)
	}
	coded, err := c.codec(p, keyspace)
	if err != nil {
		t.Fatal(err)
	}
	return coded, &coding{Client: stores, codec: coded.GetCodec()}
}

// NewClient returns client-go's client of raw keys over Clients, in atomic mode. It
// is closed at the end of the test, if it was not before.
func (c *Cluster) NewClient(t testing.TB, layers ...Layer) *rawkv.Client {
	t.Helper()
	p, stores := c.Clients(t, layers...)
	client := &rawkv.Client{}
	probe := rawkv.ClientProbe{Client: client}
	probe.SetPDClient(p)
	probe.SetRegionCache(tikv.NewRegionCache(p))
	probe.SetRPCClient(stores)
	client.SetAtomicForCAS(true)
	atend.Do(t, func() { _ = client.Close() })
	return client
}

func (c *Cluster) codec(p pd.Client, keyspace string) (*tikv.CodecPDClient, error) {
	if c.opts.API == kvrpcpb.APIVersion_V2 {
		return tikv.NewCodecPDClientWithKeyspace(tikv.ModeRaw, p, keyspace)
	}
	return tikv.NewCodecPDClient(tikv.ModeRaw, p), nil
}

// coding is what client-go's own RPC client does to every request: it sets the
// version of the API, and in version 2 puts the keyspace before the keys.
type coding struct {
	tikv.Client
	codec tikv.Codec
}

// URL is where a program reaches the cluster: tikv://127.0.0.1:PORT, the address
// of its PD. It is "" for an Offline cluster.
func (c *Cluster) URL() string {
	if c.listens == nil {
		return ""
	}
	return "tikv://" + c.listens.pd.addr
}

// PDAddr is the address of PD, host:port.
func (c *Cluster) PDAddr() string { return c.listens.pd.addr }

// Stores are the ids of the stores, in order.
func (c *Cluster) Stores() []uint64 { return append([]uint64(nil), c.stores...) }

// Served is the number of requests that the stores have answered, region errors
// included, over every client.
func (c *Cluster) Served() int64 { return c.served.Load() }

// Region is a region of the cluster.
type Region struct {
	ID         uint64
	Start, End []byte // as PD has them: in API version 2 with the keyspace, and encoded
	Leader     uint64 // the id of the store
}

// Regions lists the regions in the order of their keys.
func (c *Cluster) Regions() []Region {
	c.topology.RLock()
	defer c.topology.RUnlock()
	return c.regions()
}

func (c *Cluster) regions() []Region {
	var out []Region
	for _, r := range c.meta.ScanRegions(nil, nil, 0) {
		out = append(out, Region{ID: r.Meta.Id, Start: r.Meta.StartKey, End: r.Meta.EndKey, Leader: r.Leader.GetStoreId()})
	}
	return out
}

// Split cuts regions at the keys, which are keys of the database: in API version 2
// with the keyspace before them. The leader of a new region is on the next store.
// A key at which a region begins is passed over.
func (c *Cluster) Split(keys ...[]byte) {
	c.topology.Lock()
	defer c.topology.Unlock()
	for _, key := range keys {
		c.split(c.regionKey(key))
	}
}

// split cuts at a key as PD has it. topology is held.
func (c *Cluster) split(key []byte) {
	region, leader, _ := c.meta.GetRegionByKey(key)
	if region == nil || bytes.Equal(region.StartKey, key) {
		return
	}
	id, peers := c.meta.AllocID(), c.meta.AllocIDs(len(region.Peers))
	next := 0
	for i, p := range region.Peers {
		if p.GetId() == leader.GetId() {
			next = (i + 1) % len(peers)
		}
	}
	c.meta.SplitRaw(region.Id, id, key, peers, peers[next])
}

// MoveLeader moves the leader of the region that holds key (see Split) to the next
// of its stores.
func (c *Cluster) MoveLeader(key []byte) {
	c.topology.Lock()
	defer c.topology.Unlock()
	c.moveLeader(c.regionKey(key))
}

func (c *Cluster) moveLeader(key []byte) {
	region, leader, _ := c.meta.GetRegionByKey(key)
	if region == nil {
		return
	}
	for i, p := range region.Peers {
		if p.GetId() == leader.GetId() {
			c.meta.ChangeLeader(region.Id, region.Peers[(i+1)%len(region.Peers)].GetId())
			return
		}
	}
}

// Merge merges the region that holds key (see Split) with the one after it, if
// there is one.
func (c *Cluster) Merge(key []byte) {
	c.topology.Lock()
	defer c.topology.Unlock()
	c.merge(c.regionKey(key))
}

func (c *Cluster) merge(key []byte) {
	region, _, _ := c.meta.GetRegionByKey(key)
	if region == nil || len(region.EndKey) == 0 {
		return
	}
	if next, _, _ := c.meta.GetRegionByKey(region.EndKey); next != nil {
		c.meta.Merge(region.Id, next.Id)
	}
}

// StopStore stops a store: its connections break, and it refuses new ones. Regions
// that it leads have no leader until StartStore, or until MoveLeader.
func (c *Cluster) StopStore(id uint64) {
	c.topology.Lock()
	c.meta.StopStore(id)
	c.down.Store(id, struct{}{})
	c.topology.Unlock()
	if c.listens != nil {
		c.listens.stores[id].stop()
	}
}

// StartStore starts a stopped store. It panics if somebody else has taken its port.
func (c *Cluster) StartStore(id uint64) {
	c.topology.Lock()
	c.meta.StartStore(id)
	c.down.Delete(id)
	c.topology.Unlock()
	if c.listens != nil {
		if err := c.listens.stores[id].start(); err != nil {
			panic(fmt.Sprintf("tikvtest: start store %d: %v", id, err))
		}
	}
}

// StepClock moves the clock of PD, forward or back. As in PD, timestamps never go
// back: after a step back they stay at the greatest millisecond handed out, and go
// on in their counter, until the clock has caught up.
func (c *Cluster) StepClock(d time.Duration) { c.tso.step(d) }

// StopPD makes PD refuse every request until StartPD.
func (c *Cluster) StopPD() { c.tso.stopped.Store(true) }

// StartPD ends StopPD.
func (c *Cluster) StartPD() { c.tso.stopped.Store(false) }

// tso hands out timestamps as PD does.
type tso struct {
	mu      sync.Mutex
	offset  time.Duration
	ms      int64
	counter int64 // of the last timestamp handed out
	stopped atomic.Bool
}

const (
	counterBits = 18
	// clockStep is how far PD's clock moves at a time (tso-update-physical-interval), so
	// that timestamps asked for in a row are consecutive nearly always.
	clockStep = 50
)

func (o *tso) step(d time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.offset += d
}

// draw hands out n consecutive timestamps of one millisecond and returns the last.
func (o *tso) draw(n int64) (ms, counter int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now().Add(o.offset).UnixMilli() / clockStep * clockStep; now > o.ms {
		o.ms, o.counter = now, -1
	}
	if o.counter+n >= 1<<counterBits {
		o.ms++
		o.counter = -1
	}
	o.counter += n
	return o.ms, o.counter
}

// Put writes a key under the clients, in API version 2 with its keyspace, for
// tests that find what another program wrote.
func (c *Cluster) Put(key, value []byte) {
	c.writes.Lock()
	defer c.writes.Unlock()
	c.keys.RawPut("", key, append([]byte{}, value...))
}

// Get returns the value of a key, and nil for an absent one.
func (c *Cluster) Get(key []byte) []byte { return c.keys.RawGet("", key) }

// Keys returns the keys from start on up to end, which is not included and may be
// nil, with their values.
func (c *Cluster) Keys(start, end []byte) (keys, values [][]byte) {
	for _, p := range c.keys.RawScan("", start, end, 1<<31-1) {
		keys, values = append(keys, p.Key), append(values, p.Value)
	}
	return keys, values
}

// keyspace finds a keyspace by name.
func (c *Cluster) keyspace(name string) (*keyspacepb.KeyspaceMeta, error) {
	id, ok := c.opts.Keyspaces[name]
	if name == tikv.DefaultKeyspaceName {
		id, ok = tikv.DefaultKeyspaceID, true
	}
	if !ok {
		return nil, fmt.Errorf("keyspace %s does not exist", name)
	}
	return &keyspacepb.KeyspaceMeta{Id: id, Name: name, State: keyspacepb.KeyspaceState_ENABLED}, nil
}

// pdClient is PD in this process: regions and stores are the mock's, timestamps
// and keyspaces the cluster's.
type pdClient struct {
	pd.Client
	cluster *Cluster
}

var errPDStopped = errors.New("tikvtest: PD is stopped")

// errNotBootstrapped is how a PD answers until the first store has joined it.
var errNotBootstrapped = errors.New(`type:NOT_BOOTSTRAPPED message:"cluster is not bootstrapped"`)

func (p *pdClient) check(ctx context.Context) error {
	switch {
	case p.cluster.tso.stopped.Load():
		return errPDStopped
	case p.cluster.opts.NoStores:
		return errNotBootstrapped
	}
	return ctx.Err()
}

func (p *pdClient) GetTS(ctx context.Context) (ms, counter int64, err error) {
	if err := p.check(ctx); err != nil && !errors.Is(err, errNotBootstrapped) {
		return 0, 0, err
	}
	ms, counter = p.cluster.tso.draw(1)
	return ms, counter, nil
}

func (p *pdClient) GetTSAsync(ctx context.Context) pd.TSFuture {
	return &future{func() (int64, int64, error) { return p.GetTS(ctx) }}
}

func (p *pdClient) GetLocalTS(ctx context.Context, _ string) (ms, counter int64, err error) {
	return p.GetTS(ctx)
}

func (p *pdClient) GetLocalTSAsync(ctx context.Context, _ string) pd.TSFuture {
	return p.GetTSAsync(ctx)
}

// future is a timestamp that is drawn when it is waited for.
type future struct {
	draw func() (int64, int64, error)
}

func (f *future) Wait() (ms, counter int64, err error) { return f.draw() }

func (p *pdClient) GetRegion(ctx context.Context, key []byte, opts ...pd.GetRegionOption) (*pd.Region, error) {
	if err := p.check(ctx); err != nil {
		return nil, err
	}
	return p.Client.GetRegion(ctx, key, opts...)
}

func (p *pdClient) GetPrevRegion(ctx context.Context, key []byte, opts ...pd.GetRegionOption) (*pd.Region, error) {
	if err := p.check(ctx); err != nil {
		return nil, err
	}
	return p.Client.GetPrevRegion(ctx, key, opts...)
}

func (p *pdClient) GetRegionByID(ctx context.Context, id uint64, opts ...pd.GetRegionOption) (*pd.Region, error) {
	if err := p.check(ctx); err != nil {
		return nil, err
	}
	return p.Client.GetRegionByID(ctx, id, opts...)
}

func (p *pdClient) ScanRegions(ctx context.Context, start, end []byte, limit int) ([]*pd.Region, error) {
	if err := p.check(ctx); err != nil {
		return nil, err
	}
	return p.Client.ScanRegions(ctx, start, end, limit)
}

func (p *pdClient) GetStore(ctx context.Context, id uint64) (*metapb.Store, error) {
	if err := p.check(ctx); err != nil {
		return nil, err
	}
	return p.cluster.store(p.Client.GetStore(ctx, id))
}

func (p *pdClient) GetAllStores(ctx context.Context, opts ...pd.GetStoreOption) ([]*metapb.Store, error) {
	if err := p.check(ctx); err != nil {
		return nil, err
	}
	all, err := p.Client.GetAllStores(ctx, opts...)
	for i := range all {
		all[i], _ = p.cluster.store(all[i], nil)
	}
	return all, err
}

// store is what PD says of a store: that one is down it does not know, for the
// time of a test.
func (c *Cluster) store(s *metapb.Store, err error) (*metapb.Store, error) {
	if s != nil && s.State == metapb.StoreState_Offline {
		s.State = metapb.StoreState_Up
	}
	return s, err
}

func (p *pdClient) LoadKeyspace(ctx context.Context, name string) (*keyspacepb.KeyspaceMeta, error) {
	if err := p.check(ctx); err != nil {
		return nil, err
	}
	return p.cluster.keyspace(name)
}
