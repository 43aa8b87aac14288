package tikvraw

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pingcap/kvproto/pkg/errorpb"
	"github.com/stretchr/testify/require"
	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/tikvrpc"

	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// refusing answers every write with a region error, as a server does whose disk is full.
type refusing struct {
	tikv.Client
	answer atomic.Pointer[errorpb.Error] // nil lets writes through
}

func (c *refusing) SendRequest(ctx context.Context, addr string, req *tikvrpc.Request, timeout time.Duration) (*tikvrpc.Response, error) {
	e := c.answer.Load()
	switch req.Type {
	case tikvrpc.CmdRawGet, tikvrpc.CmdRawBatchGet, tikvrpc.CmdRawScan:
		e = nil
	}
	if e == nil {
		return c.Client.SendRequest(ctx, addr, req, timeout)
	}
	return tikvrpc.GenRegionErrorResp(req, e)
}

// TestFullDisks has servers without room. Each write says so, by the error for that, and did nothing; reads go on, and writes do when there is room.
func TestFullDisks(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := tikvtest.New(t, tikvtest.Options{Offline: true})
	pdc, rpc := c.Clients(t)
	servers := &refusing{Client: rpc}
	r := newClient(pdc, servers, 100*time.Millisecond, time.Second)
	defer func() { require.NoError(t, r.close()) }()
	a, b := []byte("a"), []byte("b")
	writes := map[string]func() error{
		"put":         func() error { return r.put(ctx, a, b) },
		"batchPut":    func() error { return r.batchPut(ctx, [][]byte{a, b}, [][]byte{a, b}) },
		"delete":      func() error { return r.delete(ctx, a) },
		"batchDelete": func() error { return r.batchDelete(ctx, [][]byte{a, b}) },
		"cas":         func() error { _, _, err := r.cas(ctx, a, nil, b); return err },
	}
	servers.answer.Store(&errorpb.Error{Message: "disk full", DiskFull: &errorpb.DiskFull{StoreId: []uint64{1}, Reason: "AlreadyFull"}})
	for name, write := range writes {
		err := write()
		require.ErrorIs(t, err, rowstore.ErrFull, name)
		require.ErrorContains(t, err, "make room", name)
		require.NotErrorIs(t, err, rowstore.ErrUnavailable, name)
		require.NotErrorIs(t, err, rowstore.ErrAmbiguous, name)
	}
	v, err := r.get(ctx, a)
	require.NoError(t, err)
	require.Nil(t, v)
	// Without room, and then busy, a server is away for a moment.
	servers.answer.Store(&errorpb.Error{Message: "busy", ServerIsBusy: &errorpb.ServerIsBusy{}})
	for name, write := range writes {
		err := write()
		require.ErrorIs(t, err, rowstore.ErrUnavailable, name)
		require.NotErrorIs(t, err, rowstore.ErrFull, name)
	}
	servers.answer.Store(nil)
	for name, write := range writes {
		require.NoError(t, write(), name)
	}
}
