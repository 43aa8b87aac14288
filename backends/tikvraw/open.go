package tikvraw

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pingcap/kvproto/pkg/pdpb"
	"github.com/tikv/client-go/v2/config"
	"github.com/tikv/client-go/v2/tikv"
	pd "github.com/tikv/pd/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func init() { rowstore.Register(OpenURL, "tikv") }

// openTimeout bounds Open, but for a migration: that takes as long as there is something to move.
const openTimeout = 30 * time.Second

// OpenURL opens the store that a URL names; [ParseURL] has the grammar. Errors are
// those of ParseURL and of [Open].
func OpenURL(ctx context.Context, url string) (*Store, error) {
	o, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	return Open(ctx, o)
}

// Open opens the store with the prefix of the options in the cluster of their PD
// servers, and makes it when there is none.
//
// Open refuses, with an error that says what to change and before anything is written:
// PD servers of which none answers, or that refuse the certificate; a cluster without
// TiKV servers or of another API version; a store of a newer format version or with
// another oracle; and, with the key in the message, keys under the prefix that are not
// a store's.
//
// Open migrates a store of format version 1. That takes three requests for each thousand rows
// with notifications. If it is interrupted, the next Open goes on with it, and nothing is
// lost; several may do it at once. Programs of version 1 cannot open the store from then on.
//
// ctx bounds Open alone. But for a migration, Open takes 30 seconds at most. When ctx ends,
// the error matches its own. A cluster that does not answer gives an error that matches
// rowstore.ErrUnavailable, one that refuses the certificate rowstore.ErrDenied, and keys of
// another application rowstore.ErrForeign, and servers whose disks are full rowstore.ErrFull. A failed Open leaves nothing behind.
//
// The first Open of a process sends the warnings and errors that the clients of TiKV and
// PD write about themselves to slog's default logger, and drops the rest, unless the
// program has set a logger or a level for them (github.com/pingcap/log).
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	if len(o.PDAddrs) == 0 {
		return nil, invalid("Options.PDAddrs is empty: name a PD server, or give New a client of PD")
	}
	soon, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	divertLog()
	pdc, err := reachPD(soon, &o)
	if err != nil {
		return nil, fmt.Errorf("tikvraw: opening %s: %w", strings.Join(o.PDAddrs, ","), explain(soon, err))
	}
	return openOver(ctx, soon, pdc, o)
}

// New opens a store over a client of PD that the program has and goes on to own: Close
// leaves it open. Close the store first and then the client. The store shares the
// client's stream of timestamps and its connection to PD, and makes connections to
// the TiKV servers of its own, which Close closes.
//
// A program that has a transactional client (txnkv.Client, or tikv.KVStore) passes its GetPDClient();
// one that has only a rawkv.Client, which does not show the PD client that it made,
// calls [Open]. The connections to TiKV cannot be shared: those of a transactional client read the
// borders of regions otherwise, and a rawkv.Client does not tell which answer to a swap was
// lost, without which its outcome cannot be known.
//
// New looks through the codec of a transactional client, and puts its own in place,
// as Options.API and Options.Keyspace say. A wrapper of the program's own around such a codec
// is not looked through: pass what is in it. CA, Cert and Key have to be set if the cluster
// speaks TLS, also when the client of PD does already; New refuses options that
// do not fit it. New refuses Options.PDAddrs. Otherwise it behaves as Open does, and fails with the same errors.
func New(ctx context.Context, pdc pd.Client, o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	switch {
	case pdc == nil:
		return nil, invalid("the client of PD is nil")
	case len(o.PDAddrs) > 0:
		return nil, invalid("Options.PDAddrs is set, and the client knows its PD servers: leave it empty, or call Open")
	}
	for {
		codec, ok := pdc.(*tikv.CodecPDClient)
		if !ok {
			break
		}
		pdc = codec.Client
	}
	if err := checkTLS(pdc, &o); err != nil {
		return nil, err
	}
	soon, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	divertLog()
	return openOver(ctx, soon, lentPD{pdc}, o)
}

// checkTLS compares the way in which a client reaches PD with the options for TiKV.
func checkTLS(pdc pd.Client, o *Options) error {
	scheme, _, ok := strings.Cut(pdc.GetLeaderAddr(), "://")
	switch {
	case !ok: // it does not say
	case scheme == "https" && o.CA == "":
		return invalid("the client reaches PD by TLS, and the options have no certificates for TiKV: set CA, Cert and Key")
	case scheme == "http" && o.CA != "":
		return invalid("the client reaches PD without TLS, and the options have certificates for TiKV: leave out CA, Cert and Key")
	}
	return nil
}

// lentPD is a client of PD that somebody else closes.
type lentPD struct{ pd.Client }

// Close does nothing.
func (lentPD) Close() {}

// reachPD makes a client of PD, when PD has answered.
func reachPD(ctx context.Context, o *Options) (pd.Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := askPD(ctx, o); err != nil {
		return nil, err
	}
	pdc, err := dialPD(ctx, o)
	if err != nil {
		return nil, pdFailed(ctx, err)
	}
	return pdc, nil
}

// openOver opens a store over a client of PD, which the store closes, also when this fails. All
// but a migration ends with soon, which ends with ctx.
func openOver(ctx, soon context.Context, pdc pd.Client, o Options) (*Store, error) {
	codec, err := withCodec(soon, pdc, &o)
	if err != nil {
		pdc.Close()
		return nil, fmt.Errorf("tikvraw: opening the store with the prefix %q: %w", o.Prefix, explain(soon, err))
	}
	rpc := o.rpc
	if rpc == nil {
		rpc = tikv.NewRPCClient(
			tikv.WithSecurity(config.NewSecurity(o.CA, o.Cert, o.Key, nil)),
			tikv.WithCodec(codec.GetCodec()))
	}
	s := newStore(newClient(codec, rpc, o.Patience, o.RequestTimeout), o)
	s.about = func(ctx context.Context) (cluster, error) { return askCluster(ctx, codec) }
	s.drawFrom = codec
	if err := s.open(ctx, soon); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("tikvraw: opening the store with the prefix %q: %w", o.Prefix, err)
	}
	return s, nil
}

// withCodec puts the codec of the API version around a client of PD.
func withCodec(ctx context.Context, pdc pd.Client, o *Options) (*tikv.CodecPDClient, error) {
	if o.API == V2 {
		return keyspaceClient(ctx, pdc, o.Keyspace)
	}
	return tikv.NewCodecPDClient(tikv.ModeRaw, pdc), nil
}

// dialPD makes the client of PD.
func dialPD(ctx context.Context, o *Options) (pd.Client, error) {
	// The context that PD's client gets must outlive this call, since its end ends the
	// client. But until the client is made, ctx has to be able to end the making.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	addrs := o.PDAddrs
	if o.CA != "" {
		addrs = make([]string, len(o.PDAddrs))
		for i, a := range o.PDAddrs {
			addrs[i] = "https://" + a
		}
	}
	used := &connections{}
	made, err := pd.NewClientWithContext(life, addrs,
		pd.SecurityOption{CAPath: o.CA, CertPath: o.Cert, KeyPath: o.Key},
		pd.WithGRPCDialOptions(grpc.WithChainUnaryInterceptor(used.note)))
	if !stop() && err == nil {
		made.Close()
		err = ctx.Err()
	}
	if all := used.take(); err != nil {
		end()
		for _, conn := range all {
			_ = conn.Close()
		}
		return nil, err
	}
	return &endingPD{Client: made, end: end}, nil
}

// connections notes the connections that PD's client uses while it is made. If that fails,
// the client leaves them open.
type connections struct {
	mu   sync.Mutex
	all  map[*grpc.ClientConn]bool
	done atomic.Bool
}

func (c *connections) note(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if !c.done.Load() {
		c.mu.Lock()
		if c.all == nil {
			c.all = map[*grpc.ClientConn]bool{}
		}
		c.all[conn] = true
		c.mu.Unlock()
	}
	return invoker(ctx, method, req, reply, conn, opts...)
}

// take returns them, and notes no more.
func (c *connections) take() []*grpc.ClientConn {
	c.done.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Collect(maps.Keys(c.all))
	c.all = nil
	return all
}

// endingPD is a client of PD whose context ends with it.
type endingPD struct {
	pd.Client
	end context.CancelFunc
}

func (c *endingPD) Close() {
	c.Client.Close()
	c.end()
}

// askPD asks every address for PD's members, until one answers. PD's client would try for
// much longer, would not say why it failed, and would leave connections behind.
func askPD(ctx context.Context, o *Options) error {
	creds := insecure.NewCredentials()
	var cfg *tls.Config
	if o.CA != "" {
		var err error
		if cfg, err = o.tlsConfig(); err != nil {
			return err
		}
		creds = credentials.NewTLS(cfg)
	}
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, o.RequestTimeout)
	defer cancel()
	errs := make([]error, len(o.PDAddrs))
	parallel(len(o.PDAddrs), func(i int) {
		errs[i] = askOnePD(ctx, o.PDAddrs[i], creds)
		if errs[i] == nil {
			cancel() // the others do not matter
		}
	})
	for _, err := range errs {
		if err == nil {
			return nil
		}
	}
	err := errors.Join(errs...)
	switch {
	case contexts.Ended(caller) != nil:
		return endedBy(contexts.Ended(caller), err)
	case o.CA == "" && strings.Contains(err.Error(), "error reading server preface"):
		return fmt.Errorf("PD closed the connection; perhaps it needs TLS (parameters tls_ca, tls_cert, tls_key): %w", err)
	case o.CA != "" && strings.Contains(err.Error(), "first record does not look like a TLS handshake"):
		return fmt.Errorf("PD does not speak TLS at this address: leave out tls_ca, tls_cert and tls_key: %w", err)
	}
	if cfg != nil {
		soon, cancel := context.WithTimeout(caller, o.RequestTimeout)
		defer cancel()
		for _, addr := range o.PDAddrs {
			if err := refusedCertificate(soon, addr, cfg); err != nil {
				return fmt.Errorf("%w: PD, or this program, does not accept the other's certificate (tls_ca, tls_cert, tls_key): %s: %w", rowstore.ErrDenied, addr, err)
			}
		}
	}
	return fmt.Errorf("%w: no PD server answers: %w", rowstore.ErrUnavailable, err)
}

// refusedCertificate returns why a handshake fails over a certificate, or nil if it does not. gRPC does not pass that on: it may have
// sent something before the server's refusal came, and then sees a broken connection.
func refusedCertificate(ctx context.Context, addr string, cfg *tls.Config) error {
	cfg = cfg.Clone()
	cfg.NextProtos = []string{"h2"}
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", addr)
	if err == nil {
		// A server looks at the client's certificate after the handshake.
		if until, ok := ctx.Deadline(); ok {
			_ = conn.SetDeadline(until)
		}
		_, err = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	var ours *tls.CertificateVerificationError
	var theirs *net.OpError
	if errors.As(err, &ours) || errors.As(err, &theirs) && theirs.Op == "remote error" {
		return err
	}
	return nil
}

func askOnePD(ctx context.Context, addr string, creds credentials.TransportCredentials) error {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	defer func() { _ = conn.Close() }()
	got, err := pdpb.NewPDClient(conn).GetMembers(ctx, &pdpb.GetMembersRequest{})
	if err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	if e := got.GetHeader().GetError(); e != nil && e.GetType() != pdpb.ErrorType_OK {
		return fmt.Errorf("%s: %s", addr, e.GetMessage())
	}
	return nil
}

// keyspaceClient finds the keyspace and makes the client that puts it before keys.
func keyspaceClient(ctx context.Context, pdc pd.Client, name string) (*tikv.CodecPDClient, error) {
	// The client's own look-up takes no context, and panics if PD has no such keyspace.
	asked := name
	if asked == "" {
		asked = tikv.DefaultKeyspaceName
	}
	inner, end := apart(ctx)
	defer end()
	meta, err := pdc.LoadKeyspace(inner, asked)
	if err == nil && meta == nil {
		err = errors.New("PD does not have it")
	}
	if err != nil {
		return nil, fmt.Errorf("the keyspace %q (API version 2 needs a PD that has keyspaces, 6.6 or newer): %w", asked, explain(ctx, err))
	}
	codec, err := tikv.NewCodecPDClientWithKeyspace(tikv.ModeRaw, pdc, name)
	if err != nil {
		return nil, fmt.Errorf("the keyspace %q: %w", asked, err)
	}
	return codec, nil
}

// newStore makes a store that is not opened yet.
func newStore(r raw, o Options) *Store {
	s := &Store{
		raw: r, keys: newKeyspace(o.Prefix), sizes: o.sizes, limits: o.limits(), opts: o,
		cache: newCache(o.CacheSize), turns: newTurns(), gate: kit.NewGate("tikvraw"),
	}
	s.background, s.endBackground = context.WithCancel(context.Background())
	s.clean = newCleaner(s)
	s.hints = newHints(o.clock)
	return s
}

// open checks the cluster, claims the prefix, and migrates the store; for soon see openOver.
func (s *Store) open(ctx, soon context.Context) error {
	in := soon
	err := s.reach(soon)
	if err == nil {
		in = ctx
		// Whoever raised the record may have died before it had moved all.
		err = s.moveAll(ctx)
	}
	if err != nil {
		if ended := contexts.Ended(in); ended != nil {
			err = endedBy(ended, err)
		}
		return err
	}
	if s.oracleKind == OracleStore {
		batch := kit.NewBatchOracle(kit.NewSwapOracle(oracleKey{s.raw, s.keys.space(spaceOracle)}, s.opts.clock))
		s.oracle, s.closeOracle = s.gate.Oracle(current{s, batch}), batch.Close
	} else {
		s.oracle = &pdOracle{s: s, pd: s.drawFrom}
	}
	if s.opts.SweepEvery > 0 && !s.opts.AsIs {
		s.running.Go(func() { s.sweepSometimes(s.background) })
	}
	s.running.Go(func() { s.watchFormat(s.background) })
	return nil
}

// reach checks the cluster and claims the prefix.
func (s *Store) reach(ctx context.Context) error {
	if s.about != nil {
		c, err := s.about(ctx)
		if err != nil {
			return err
		}
		if err := c.check(); err != nil {
			return err
		}
	}
	return s.claim(ctx)
}
