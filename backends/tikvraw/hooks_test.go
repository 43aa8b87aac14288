package tikvraw_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/tikvrpc"
	pd "github.com/tikv/pd/client"

	"github.com/percolate-go/percolate/backends/tikvraw"
	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// hanging is a layer whose stores hang until that is mended.
type hanging struct {
	mu     sync.Mutex
	mended chan struct{}
}

func (l *hanging) PD(next pd.Client) pd.Client { return next }

func (l *hanging) Stores(next tikv.Client) tikv.Client { return hangingClient{next, l} }

type hangingClient struct {
	tikv.Client
	l *hanging
}

func (c hangingClient) SendRequest(ctx context.Context, addr string, req *tikvrpc.Request, timeout time.Duration) (*tikvrpc.Response, error) {
	c.l.mu.Lock()
	mended := c.l.mended
	c.l.mu.Unlock()
	if mended != nil {
		select {
		case <-mended:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return c.Client.SendRequest(ctx, addr, req, timeout)
}

// TestConformanceHooks opens stores again, and lets the cluster hang. What is lost before,
// in and after a request is in TestConformance: client-go sends again by itself.
func TestConformanceHooks(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	hooks := func(t testing.TB) conformance.Hooked {
		layer, o := &hanging{}, tikvraw.Options{Prefix: prefix()}
		s := open(t, c, o, layer)
		return conformance.Hooked{
			Store: s,
			Reopen: func(ctx context.Context) (rowstore.Store, error) {
				pdc, rpc := c.Clients(t)
				again, err := tikvraw.New(ctx, pdc, o.Through(rpc))
				if err != nil {
					return nil, err
				}
				return again, nil
			},
			Break: func(m conformance.Moment) (mend func()) {
				if m != conformance.HangCall {
					return nil
				}
				layer.mu.Lock()
				defer layer.mu.Unlock()
				mended := make(chan struct{})
				layer.mended = mended
				return sync.OnceFunc(func() {
					layer.mu.Lock()
					layer.mended = nil
					layer.mu.Unlock()
					close(mended)
				})
			},
		}
	}
	conformance.RunHooks(t, func(t testing.TB) rowstore.Store { return open(t, c, tikvraw.Options{}) },
		conformance.WithHooks(hooks), conformance.Scale(0.3))
}
