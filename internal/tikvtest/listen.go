package tikvtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/pingcap/kvproto/pkg/keyspacepb"
	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/pingcap/kvproto/pkg/pdpb"
	"github.com/pingcap/kvproto/pkg/tikvpb"
	"github.com/tikv/client-go/v2/tikvrpc"
	pd "github.com/tikv/pd/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// listeners are the gRPC servers of a cluster: one PD, and each store.
type listeners struct {
	pd     *listener
	stores map[uint64]*listener
}

// listener is one gRPC server on 127.0.0.1, which can be stopped and started again.
type listener struct {
	addr string
	make func() *grpc.Server

	mu     sync.Mutex
	server *grpc.Server // nil while it is stopped
	done   sync.WaitGroup
}

func (c *Cluster) listen() (_ *listeners, err error) {
	l := &listeners{stores: map[uint64]*listener{}}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	for _, id := range c.stores {
		s, err := c.serveOn(func(s *grpc.Server, addr string) {
			tikvpb.RegisterTikvServer(s, &storeServer{cluster: c, id: id, addr: addr})
		})
		if err != nil {
			return l, err
		}
		l.stores[id] = s
		c.meta.UpdateStoreAddr(id, s.addr)
	}
	l.pd, err = c.serveOn(func(s *grpc.Server, addr string) {
		server := &pdServer{cluster: c, addr: addr, client: &pdClient{Client: c.mockPD, cluster: c}}
		pdpb.RegisterPDServer(s, server)
		keyspacepb.RegisterKeyspaceServer(s, &keyspaceServer{cluster: c})
	})
	return l, err
}

func (c *Cluster) serveOn(register func(s *grpc.Server, addr string)) (*listener, error) {
	in, err := listen()
	if err != nil {
		return nil, err
	}
	opts := []grpc.ServerOption{grpc.MaxRecvMsgSize(math.MaxInt32)} // as a server: it refuses by the entry
	if c.opts.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(c.opts.TLS)))
	}
	l := &listener{addr: in.Addr().String()}
	l.make = func() *grpc.Server {
		server := grpc.NewServer(opts...)
		grpc_health_v1.RegisterHealthServer(server, health.NewServer())
		register(server, l.addr)
		return server
	}
	l.serve(in)
	return l, nil
}

func (l *listener) serve(in net.Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	server := l.make()
	l.server = server
	l.done.Go(func() { _ = server.Serve(in) }) // it ends by Stop
}

// stop breaks every connection, and refuses new ones.
func (l *listener) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.server != nil {
		l.server.Stop()
		l.done.Wait()
		l.server = nil
	}
}

// listen listens at a free port. It lies below the range from which Linux takes ports for outgoing connections, so that a store that was
// stopped finds its port free when it starts again.
func listen() (net.Listener, error) {
	var err error
	for range 1000 {
		var in net.Listener
		if in, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 15_000+rand.IntN(17_000))); err == nil {
			return in, nil
		}
	}
	return nil, err
}

// start serves again at the same address, which the system may not give at once.
func (l *listener) start() error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		in, err := net.Listen("tcp", l.addr)
		if err == nil {
			l.serve(in)
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

func (l *listeners) close() {
	for _, s := range l.stores {
		s.stop()
	}
	if l.pd != nil {
		l.pd.stop()
	}
}

// storeServer is a store over gRPC: the raw commands, one by one and in the batched
// stream that client-go prefers.
type storeServer struct {
	tikvpb.UnimplementedTikvServer
	cluster *Cluster
	id      uint64
	addr    string
}

// serveRaw answers one request.
func serveRaw[R any](ctx context.Context, s *storeServer, t tikvrpc.CmdType, req any, of *kvrpcpb.Context) (R, error) {
	var none R
	if of == nil {
		of = &kvrpcpb.Context{}
	}
	resp, err := s.cluster.handle(ctx, s.addr, tikvrpc.NewRequest(t, req, *of))
	if err != nil {
		return none, status.Error(codes.Unavailable, err.Error())
	}
	r, ok := resp.Resp.(R)
	if !ok {
		return none, status.Errorf(codes.Internal, "%s is answered by a %T", t, resp.Resp)
	}
	return r, nil
}

func (s *storeServer) RawGet(ctx context.Context, r *kvrpcpb.RawGetRequest) (*kvrpcpb.RawGetResponse, error) {
	return serveRaw[*kvrpcpb.RawGetResponse](ctx, s, tikvrpc.CmdRawGet, r, r.Context)
}

func (s *storeServer) RawBatchGet(ctx context.Context, r *kvrpcpb.RawBatchGetRequest) (*kvrpcpb.RawBatchGetResponse, error) {
	return serveRaw[*kvrpcpb.RawBatchGetResponse](ctx, s, tikvrpc.CmdRawBatchGet, r, r.Context)
}

func (s *storeServer) RawPut(ctx context.Context, r *kvrpcpb.RawPutRequest) (*kvrpcpb.RawPutResponse, error) {
	return serveRaw[*kvrpcpb.RawPutResponse](ctx, s, tikvrpc.CmdRawPut, r, r.Context)
}

func (s *storeServer) RawBatchPut(ctx context.Context, r *kvrpcpb.RawBatchPutRequest) (*kvrpcpb.RawBatchPutResponse, error) {
	return serveRaw[*kvrpcpb.RawBatchPutResponse](ctx, s, tikvrpc.CmdRawBatchPut, r, r.Context)
}

func (s *storeServer) RawDelete(ctx context.Context, r *kvrpcpb.RawDeleteRequest) (*kvrpcpb.RawDeleteResponse, error) {
	return serveRaw[*kvrpcpb.RawDeleteResponse](ctx, s, tikvrpc.CmdRawDelete, r, r.Context)
}

func (s *storeServer) RawBatchDelete(ctx context.Context, r *kvrpcpb.RawBatchDeleteRequest) (*kvrpcpb.RawBatchDeleteResponse, error) {
	return serveRaw[*kvrpcpb.RawBatchDeleteResponse](ctx, s, tikvrpc.CmdRawBatchDelete, r, r.Context)
}

func (s *storeServer) RawDeleteRange(ctx context.Context, r *kvrpcpb.RawDeleteRangeRequest) (*kvrpcpb.RawDeleteRangeResponse, error) {
	return serveRaw[*kvrpcpb.RawDeleteRangeResponse](ctx, s, tikvrpc.CmdRawDeleteRange, r, r.Context)
}

func (s *storeServer) RawScan(ctx context.Context, r *kvrpcpb.RawScanRequest) (*kvrpcpb.RawScanResponse, error) {
	return serveRaw[*kvrpcpb.RawScanResponse](ctx, s, tikvrpc.CmdRawScan, r, r.Context)
}

func (s *storeServer) RawCompareAndSwap(ctx context.Context, r *kvrpcpb.RawCASRequest) (*kvrpcpb.RawCASResponse, error) {
	return serveRaw[*kvrpcpb.RawCASResponse](ctx, s, tikvrpc.CmdRawCompareAndSwap, r, r.Context)
}

// BatchCommands answers the requests of the stream in the order in which they came.
func (s *storeServer) BatchCommands(stream tikvpb.Tikv_BatchCommandsServer) error {
	for {
		in, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		out := &tikvpb.BatchCommandsResponse{RequestIds: in.RequestIds}
		for _, r := range in.Requests {
			answer, err := s.batched(stream.Context(), r)
			if err != nil {
				return err
			}
			out.Responses = append(out.Responses, answer)
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

func (s *storeServer) batched(ctx context.Context, r *tikvpb.BatchCommandsRequest_Request) (*tikvpb.BatchCommandsResponse_Response, error) {
	out := &tikvpb.BatchCommandsResponse_Response{}
	var err error
	switch cmd := r.Cmd.(type) {
	case *tikvpb.BatchCommandsRequest_Request_RawGet:
		var a *kvrpcpb.RawGetResponse
		a, err = s.RawGet(ctx, cmd.RawGet)
		out.Cmd = &tikvpb.BatchCommandsResponse_Response_RawGet{RawGet: a}
	case *tikvpb.BatchCommandsRequest_Request_RawBatchGet:
		var a *kvrpcpb.RawBatchGetResponse
		a, err = s.RawBatchGet(ctx, cmd.RawBatchGet)
		out.Cmd = &tikvpb.BatchCommandsResponse_Response_RawBatchGet{RawBatchGet: a}
	case *tikvpb.BatchCommandsRequest_Request_RawPut:
		var a *kvrpcpb.RawPutResponse
		a, err = s.RawPut(ctx, cmd.RawPut)
		out.Cmd = &tikvpb.BatchCommandsResponse_Response_RawPut{RawPut: a}
	case *tikvpb.BatchCommandsRequest_Request_RawBatchPut:
		var a *kvrpcpb.RawBatchPutResponse
		a, err = s.RawBatchPut(ctx, cmd.RawBatchPut)
		out.Cmd = &tikvpb.BatchCommandsResponse_Response_RawBatchPut{RawBatchPut: a}
	case *tikvpb.BatchCommandsRequest_Request_RawDelete:
		var a *kvrpcpb.RawDeleteResponse
		a, err = s.RawDelete(ctx, cmd.RawDelete)
		out.Cmd = &tikvpb.BatchCommandsResponse_Response_RawDelete{RawDelete: a}
	case *tikvpb.BatchCommandsRequest_Request_RawBatchDelete:
		var a *kvrpcpb.RawBatchDeleteResponse
		a, err = s.RawBatchDelete(ctx, cmd.RawBatchDelete)
		out.Cmd = &tikvpb.BatchCommandsResponse_Response_RawBatchDelete{RawBatchDelete: a}
	case *tikvpb.BatchCommandsRequest_Request_RawDeleteRange:
		var a *kvrpcpb.RawDeleteRangeResponse
		a, err = s.RawDeleteRange(ctx, cmd.RawDeleteRange)
		out.Cmd = &tikvpb.BatchCommandsResponse_Response_RawDeleteRange{RawDeleteRange: a}
	case *tikvpb.BatchCommandsRequest_Request_RawScan:
		var a *kvrpcpb.RawScanResponse
		a, err = s.RawScan(ctx, cmd.RawScan)
		out.Cmd = &tikvpb.BatchCommandsResponse_Response_RawScan{RawScan: a}
	case *tikvpb.BatchCommandsRequest_Request_Empty:
		out.Cmd = &tikvpb.BatchCommandsResponse_Response_Empty{Empty: &tikvpb.BatchCommandsEmptyResponse{TestId: cmd.Empty.GetTestId()}}
	default:
		err = status.Errorf(codes.Unimplemented, "tikvtest: %T", r.Cmd)
	}
	return out, err
}

// clusterID is that of the mock's PD.
const clusterID = 1

// pdServer is PD over gRPC, with itself as its only member.
type pdServer struct {
	pdpb.UnimplementedPDServer
	cluster *Cluster
	addr    string
	client  *pdClient
}

func (*pdServer) header() *pdpb.ResponseHeader {
	return &pdpb.ResponseHeader{ClusterId: clusterID}
}

// headerOf is a header that carries an error of the request.
func (p *pdServer) headerOf(err error) (*pdpb.ResponseHeader, error) {
	h := p.header()
	switch {
	case err == nil:
	case errors.Is(err, errNotBootstrapped):
		h.Error = &pdpb.Error{Type: pdpb.ErrorType_NOT_BOOTSTRAPPED, Message: "cluster is not bootstrapped"}
	case errors.Is(err, errPDStopped):
		return nil, status.Error(codes.Unavailable, err.Error())
	default:
		h.Error = &pdpb.Error{Type: pdpb.ErrorType_UNKNOWN, Message: err.Error()}
	}
	return h, nil
}

func (p *pdServer) GetMembers(context.Context, *pdpb.GetMembersRequest) (*pdpb.GetMembersResponse, error) {
	if p.cluster.tso.stopped.Load() {
		return nil, status.Error(codes.Unavailable, errPDStopped.Error())
	}
	scheme := "http://"
	if p.cluster.opts.TLS != nil {
		scheme = "https://"
	}
	me := &pdpb.Member{Name: "pd", MemberId: 1, ClientUrls: []string{scheme + p.addr}, PeerUrls: []string{scheme + p.addr}}
	return &pdpb.GetMembersResponse{Header: p.header(), Members: []*pdpb.Member{me}, Leader: me, EtcdLeader: me}, nil
}

func (p *pdServer) Tso(stream pdpb.PD_TsoServer) error {
	for {
		in, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if p.cluster.tso.stopped.Load() {
			return status.Error(codes.Unavailable, errPDStopped.Error())
		}
		ms, counter := p.cluster.tso.draw(int64(in.Count))
		out := &pdpb.TsoResponse{Header: p.header(), Count: in.Count, Timestamp: &pdpb.Timestamp{Physical: ms, Logical: counter}}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

func (p *pdServer) region(r *pd.Region, err error) (*pdpb.GetRegionResponse, error) {
	h, err := p.headerOf(err)
	if err != nil {
		return nil, err
	}
	out := &pdpb.GetRegionResponse{Header: h}
	if r != nil {
		out.Region, out.Leader, out.Buckets = r.Meta, r.Leader, r.Buckets
	}
	return out, nil
}

func (p *pdServer) GetRegion(ctx context.Context, r *pdpb.GetRegionRequest) (*pdpb.GetRegionResponse, error) {
	return p.region(p.client.GetRegion(ctx, r.RegionKey))
}

func (p *pdServer) GetPrevRegion(ctx context.Context, r *pdpb.GetRegionRequest) (*pdpb.GetRegionResponse, error) {
	return p.region(p.client.GetPrevRegion(ctx, r.RegionKey))
}

func (p *pdServer) GetRegionByID(ctx context.Context, r *pdpb.GetRegionByIDRequest) (*pdpb.GetRegionResponse, error) {
	return p.region(p.client.GetRegionByID(ctx, r.RegionId))
}

func (p *pdServer) ScanRegions(ctx context.Context, r *pdpb.ScanRegionsRequest) (*pdpb.ScanRegionsResponse, error) {
	regions, err := p.client.ScanRegions(ctx, r.StartKey, r.EndKey, int(r.Limit))
	h, err := p.headerOf(err)
	if err != nil {
		return nil, err
	}
	out := &pdpb.ScanRegionsResponse{Header: h}
	for _, r := range regions {
		out.RegionMetas, out.Leaders = append(out.RegionMetas, r.Meta), append(out.Leaders, r.Leader)
		out.Regions = append(out.Regions, &pdpb.Region{Region: r.Meta, Leader: r.Leader})
	}
	return out, nil
}

func (p *pdServer) GetStore(ctx context.Context, r *pdpb.GetStoreRequest) (*pdpb.GetStoreResponse, error) {
	s, err := p.client.GetStore(ctx, r.StoreId)
	h, err := p.headerOf(err)
	return &pdpb.GetStoreResponse{Header: h, Store: s}, err
}

func (p *pdServer) GetAllStores(ctx context.Context, _ *pdpb.GetAllStoresRequest) (*pdpb.GetAllStoresResponse, error) {
	all, err := p.client.GetAllStores(ctx)
	h, err := p.headerOf(err)
	return &pdpb.GetAllStoresResponse{Header: h, Stores: all}, err
}

// GetClusterConfig and the like are not needed by client-go: PD's own client asks
// only whether timestamps come from PD itself, and takes "unimplemented" for yes.

// keyspaceServer is the part of PD that knows keyspaces.
type keyspaceServer struct {
	keyspacepb.UnimplementedKeyspaceServer
	cluster *Cluster
}

func (k *keyspaceServer) LoadKeyspace(_ context.Context, r *keyspacepb.LoadKeyspaceRequest) (*keyspacepb.LoadKeyspaceResponse, error) {
	h := &pdpb.ResponseHeader{ClusterId: clusterID}
	meta, err := k.cluster.keyspace(r.Name)
	if err != nil {
		h.Error = &pdpb.Error{Type: pdpb.ErrorType_ENTRY_NOT_FOUND, Message: err.Error()}
	}
	return &keyspacepb.LoadKeyspaceResponse{Header: h, Keyspace: meta}, nil
}
