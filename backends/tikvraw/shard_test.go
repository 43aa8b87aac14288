package tikvraw_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/tikvrpc"
	pd "github.com/tikv/pd/client"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolate-go/percolate/backends/tikvraw"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestShard: rows of regions with different leaders are of different shards.
func TestShard(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{Offline: true})
	var n tikvtest.Counter
	s := open(t, c, tikvraw.Options{Prefix: "shop", SweepEvery: -1}, &n)
	c.Split([]byte("shop\x00rt\x00\x01m"))
	put := func(row string) rowstore.Mutation {
		return rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 1, nil)}}
	}
	apply(t, s, put("a"), put("z"))
	n.Take()
	regions := c.Regions()
	require.Len(t, regions, 2)
	require.NotEqual(t, regions[0].Leader, regions[1].Leader)
	require.Equal(t, strconv.FormatUint(regions[0].Leader, 10), s.Shard("t", "a"))
	require.Equal(t, strconv.FormatUint(regions[1].Leader, 10), s.Shard("t", "z"))
	require.Zero(t, n.Take().Total(), "no I/O")
}

// brief is a layer whose stores refuse to send more than a few values in one answer.
type brief struct{ refused atomic.Int64 }

func (b *brief) PD(next pd.Client) pd.Client { return next }

func (b *brief) Stores(next tikv.Client) tikv.Client { return &briefClient{next, b} }

type briefClient struct {
	tikv.Client
	layer *brief
}

func (c *briefClient) SendRequest(ctx context.Context, addr string, req *tikvrpc.Request, timeout time.Duration) (*tikvrpc.Response, error) {
	const most = 4
	if req.Type == tikvrpc.CmdRawBatchGet && len(req.RawBatchGet().Keys) > most || req.Type == tikvrpc.CmdRawScan && req.RawScan().Limit > most && !req.RawScan().KeyOnly {
		c.layer.refused.Add(1)
		return nil, status.Error(codes.ResourceExhausted, "Sent message larger than max (20971520 vs. 10485760)")
	}
	return c.Client.SendRequest(ctx, addr, req, timeout)
}

// TestAnswersTooLong asks for less where a server does not send as much as was asked for,
// and at once: it would be as much from any other.
func TestAnswersTooLong(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{Offline: true})
	var l brief
	s := open(t, c, tikvraw.Options{SweepEvery: -1}, &l)
	var reads []rowstore.RowRead
	const rows = 50
	for i := range rows {
		row := strconv.Itoa(i)
		apply(t, s, rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 1, []byte(row))}})
		reads = append(reads, rowstore.RowRead{Table: "t", Row: row, Selectors: []rowstore.Selector{{Family: rowstore.Write, To: 9}}})
	}
	began := time.Now()
	got, err := s.Read(t.Context(), reads)
	require.NoError(t, err)
	for i, r := range got {
		require.NoError(t, r.Err)
		require.Len(t, r.Versions, 1)
		require.Equal(t, strconv.Itoa(i), string(r.Versions[0].Value))
	}
	seen := 0
	for _, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: 9}}}) {
		require.NoError(t, err)
		seen++
	}
	require.Equal(t, rows, seen)
	require.Positive(t, l.refused.Load())
	require.Less(t, time.Since(began), 2*time.Second, "nobody waited for another server")
}
