package redis

import (
	"context"
	"errors"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// connect makes the connections that the options describe.
func (s *direct) connect(ctx context.Context) error {
	o := &s.opts
	switch o.Mode {
	case Cluster:
		// Ask one server first: the cluster client of a server outside cluster mode
		// says less clearly what is wrong.
		if err := s.askSeeds(ctx); err != nil {
			return err
		}
		n := newCluster(o, s.admit)
		n.use(s.parts)
		s.nodes = n
	case Sentinel:
		s.nodes = single{client: newFailover(o, s.admit)}
	default:
		s.nodes = single{client: newClient(o, o.Addrs[0], s.admit)}
	}
	return nil
}

// borrow checks the options of New, fills in the defaults, and returns what makes a
// store use the client.
func (o *Options) borrow(client goredis.UniversalClient) (connect func(context.Context, *direct) error, err error) {
	if err := o.noConnection(); err != nil {
		return nil, err
	}
	if err := o.completeCommon(); err != nil {
		return nil, err
	}
	timeout := max(o.ReadTimeout, o.WriteTimeout)
	switch c := client.(type) {
	case *goredis.Client:
		if c == nil {
			return nil, invalid("the client is nil")
		}
		o.Mode = Standalone
		return func(_ context.Context, s *direct) error {
			// This is another view of the same client, and shares its connections.
			s.nodes = single{client: c.WithTimeout(timeout), borrows: true}
			return nil
		}, nil
	case *goredis.ClusterClient:
		if c == nil {
			return nil, invalid("the client is nil")
		}
		if co := c.Options(); co.ReadTimeout <= 0 || co.WriteTimeout <= 0 {
			return nil, invalid("the ClusterClient has its ReadTimeout or WriteTimeout turned off, so it could wait for a silent server for ever; set them")
		}
		o.Mode = Cluster
		return func(_ context.Context, s *direct) error {
			n := &cluster{client: c, borrowed: &borrowedNodes{timeout: timeout, check: s.inspect}}
			n.use(s.parts)
			s.nodes = n
			return nil
		}, nil
	case *goredis.Ring:
		return nil, invalid("a Ring is not a store's client: it spreads keys over servers that know nothing of each other; use a Client or a ClusterClient")
	case nil:
		return nil, invalid("the client is nil")
	default:
		return nil, invalid("the client is a %T; New takes a *redis.Client or a *redis.ClusterClient", client)
	}
}

// askSeeds asks the servers that the options name until one answers.
func (s *direct) askSeeds(ctx context.Context) error {
	var errs []error
	for _, a := range s.opts.Addrs {
		c := newClient(&s.opts, a, nil)
		info, err := askInfo(ctx, c)
		_ = c.Close()
		if err == nil {
			return info.check(&s.opts)
		}
		errs = append(errs, s.failure(ctx, err))
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// onConnect is called with each new connection, which is not used if it fails.
type onConnect = func(ctx context.Context, conn *goredis.Conn) error

// clientOptions are go-redis's options for every way to address servers.
func clientOptions(o *Options, hello onConnect, addrs ...string) *goredis.UniversalOptions {
	return &goredis.UniversalOptions{
		Addrs: addrs, MasterName: o.MasterName,
		SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword,
		Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLS,
		Protocol: 2, DisableIdentity: true, OnConnect: hello,
		// What may not run twice is not sent twice: the store decides.
		MaxRetries: -1, MaxRedirects: -1, DialerRetries: 1,
		DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		PoolTimeout: o.ReadTimeout, ContextTimeoutEnabled: true,
		PoolSize: o.PoolSize, PipelinePoolSize: -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

func newClient(o *Options, addr string, hello onConnect) *goredis.Client {
	return goredis.NewClient(clientOptions(o, hello, addr).Simple())
}

func newFailover(o *Options, hello onConnect) *goredis.Client {
	return goredis.NewFailoverClient(clientOptions(o, hello, o.Addrs...).Failover())
}

// newCluster makes a client that finds servers. The commands go to the servers' own
// clients; see nodes.go.
func newCluster(o *Options, hello onConnect) *cluster {
	return &cluster{client: goredis.NewClusterClient(clientOptions(o, hello, o.Addrs...).Cluster())}
}
