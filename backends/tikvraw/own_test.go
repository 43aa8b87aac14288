package tikvraw_test

import (
	"testing"
	"time"

	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	"github.com/stretchr/testify/require"
	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/util"
	pd "github.com/tikv/pd/client"

	"github.com/percolate-go/percolate/backends/tikvraw"
	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// ownPD makes a client of PD as a program has one.
func ownPD(t testing.TB, c *tikvtest.Cluster, security pd.SecurityOption) pd.Client {
	t.Helper()
	addr := c.PDAddr()
	if security.CAPath != "" {
		addr = "https://" + addr
	}
	pdc, err := pd.NewClientWithContext(t.Context(), []string{addr}, security)
	require.NoError(t, err)
	atend.Do(t, pdc.Close)
	return pdc
}

// A store over the program's client of PD, which goes on after each store was closed. The
// client finds regions and draws timestamps; what stores answer has nothing to do with it.
func TestConformanceOwnPD(t *testing.T) {
	t.Parallel()
	c := tikvtest.New(t, tikvtest.Options{})
	pdc := ownPD(t, c, pd.SecurityOption{})
	conformance.RunStore(t, func(t testing.TB) rowstore.Store {
		s, err := tikvraw.New(t.Context(), pdc, tikvraw.Options{Prefix: prefix(), Patience: 30 * time.Second, RequestTimeout: 9 * time.Second})
		require.NoError(t, err)
		atend.Do(t, func() { require.NoError(t, s.Close()) })
		return s
	}, conformance.Scale(0.05), conformance.Without(unbalanced, conformance.Splitting),
		conformance.Without("the run over the mock cluster over gRPC, or the one over the cluster itself, has them", conformance.Conditions,
			conformance.Edits, conformance.Reads, conformance.Scans, conformance.Names, conformance.Arguments, conformance.Sizes,
			conformance.Slots, conformance.Random, conformance.Waking))
}

// The client of PD that a transactional client has will do, though that client's codec
// would read the borders of regions otherwise.
func TestOwnTransactionalClient(t *testing.T) {
	t.Parallel()
	for api, of := range map[tikvraw.API]kvrpcpb.APIVersion{tikvraw.V1: kvrpcpb.APIVersion_V1, tikvraw.V2: kvrpcpb.APIVersion_V2} {
		t.Run(string(api), func(t *testing.T) {
			t.Parallel()
			c := tikvtest.New(t, tikvtest.Options{API: of})
			var codec *tikv.CodecPDClient
			inner := util.InterceptedPDClient{Client: ownPD(t, c, pd.SecurityOption{})}
			if api == tikvraw.V2 {
				var err error
				codec, err = tikv.NewCodecPDClientWithKeyspace(tikv.ModeTxn, inner, "")
				require.NoError(t, err)
			} else {
				codec = tikv.NewCodecPDClient(tikv.ModeTxn, inner)
			}
			txn, err := tikv.NewKVStore("test", codec, tikv.NewMockSafePointKV(), tikv.NewRPCClient(tikv.WithCodec(codec.GetCodec())))
			require.NoError(t, err)
			atend.Do(t, func() { require.NoError(t, txn.Close()) })
			s, err := tikvraw.New(t.Context(), txn.GetPDClient(), tikvraw.Options{Prefix: prefix(), API: api})
			require.NoError(t, err)
			apply(t, s, rowstore.Mutation{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 1, nil)}})
			_, err = s.Split(t.Context(), "t", 3)
			require.NoError(t, err)
			require.NoError(t, s.Close())
			_, _, err = txn.GetPDClient().GetTS(t.Context())
			require.NoError(t, err, "Close leaves the program's client open")
		})
	}
}

// What will not do is refused with what to change.
func TestOwnPDRefused(t *testing.T) {
	t.Parallel()
	_, err := tikvraw.New(t.Context(), nil, tikvraw.Options{})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	c := tikvtest.New(t, tikvtest.Options{})
	pdc := ownPD(t, c, pd.SecurityOption{})
	_, err = tikvraw.New(t.Context(), pdc, tikvraw.Options{PDAddrs: []string{c.PDAddr()}})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	_, err = tikvraw.New(t.Context(), pdc, tikvraw.Options{API: tikvraw.V2, Keyspace: "unknown"})
	require.Error(t, err)
	_, _, err = pdc.GetTS(t.Context())
	require.NoError(t, err, "a New that fails leaves the client open")

	certs := tikvtest.NewCertificates(t, t.TempDir())
	withTLS := tikvtest.New(t, tikvtest.Options{TLS: certs.Server})
	pdc = ownPD(t, withTLS, pd.SecurityOption{CAPath: certs.CA, CertPath: certs.Cert, KeyPath: certs.Key})
	_, err = tikvraw.New(t.Context(), pdc, tikvraw.Options{})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	require.ErrorContains(t, err, "set CA, Cert and Key")
	s, err := tikvraw.New(t.Context(), pdc, tikvraw.Options{CA: certs.CA, Cert: certs.Cert, Key: certs.Key})
	require.NoError(t, err)
	require.NoError(t, s.Close())

	closed, err := pd.NewClientWithContext(t.Context(), []string{c.PDAddr()}, pd.SecurityOption{})
	require.NoError(t, err)
	closed.Close()
	_, err = tikvraw.New(t.Context(), closed, tikvraw.Options{})
	require.Error(t, err)
	t.Log(err)
}
