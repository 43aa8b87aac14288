package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

func init() {
	rowstore.Register(OpenURL, "redis", "rediss", "unix",
		"redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
}

// OpenURL opens the store that a URL names; [ParseURL] has the grammar. Errors are
// those of ParseURL and of [Open].
func OpenURL(ctx context.Context, url string) (rowstore.Store, error) {
	o, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	return Open(ctx, o)
}

// Open opens a store, and makes it when there is none under the prefix. The store
// is a [Store], wrapped in [rowstore.Coalesce] unless the options say otherwise.
//
// Open refuses, with an error that says what to change and before anything is
// written: servers that it cannot reach or that refuse the password; servers older
// than 7.0; a Cluster addressed as one server and one server addressed as a
// Cluster; a sentinel or a replica addressed as the server; a maxmemory-policy
// other than noeviction; a user who lacks a permission; a store of another format
// version or number of partitions; keys under the prefix that are not a store's;
// and a store that has lost its record. Every server is checked again when a
// connection to it is made, so one that takes over later too. The report of the store, which percolator.New logs, warns about
// persistence settings and replicas that can lose acknowledged writes.
//
// ctx bounds Open alone.
func Open(ctx context.Context, o Options) (rowstore.Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	s, err := open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("redis: opening %s: %w", strings.Join(o.Addrs, ","), err)
	}
	if o.NoCoalesce {
		return s, nil
	}
	return rowstore.Coalesce(s, rowstore.CoalesceOptions{}), nil
}

func open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{opts: o, channel: o.Prefix + ":wake", lateAfter: min(o.ReadTimeout+o.WriteTimeout, maxTimeout)}
	s.ended, s.stop = context.WithCancel(context.Background())
	s.parts = newParts(o.Prefix, max(o.Partitions, 1))
	s.okey = s.parts[0].tag + "o"
	if err := s.connect(ctx); err != nil {
		err = s.because(ctx, err)
		_ = s.Close()
		// No error of go-redis or of the server holds a password.
		if ctx.Err() == nil && o.TLS != nil && (isTimeout(err) || errors.Is(err, context.DeadlineExceeded)) {
			return nil, fmt.Errorf("the tls handshake got no answer; perhaps the server does not speak TLS there: %w", err)
		}
		if o.TLS == nil && errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("the server hung up; perhaps it wants TLS (rediss://): %w", err)
		}
		return nil, err
	}
	return s, nil
}

func (s *Store) connect(ctx context.Context) error {
	o := &s.opts
	switch o.Mode {
	case Cluster:
		// Ask one server first: the cluster client of a server outside cluster mode
		// says less clearly what is wrong.
		if err := s.askSeeds(ctx); err != nil {
			s.nodes = single{goredis.NewClient(&goredis.Options{})}
			return err
		}
		s.nodes = newCluster(o, s.parts, s.admit)
	case Sentinel:
		s.nodes = single{newFailover(o, s.admit)}
	default:
		s.nodes = single{newClient(o, o.Addrs[0], s.admit)}
	}
	if _, err := s.askMasters(ctx); err != nil {
		return err
	}
	return s.claim(ctx)
}

// askSeeds asks the servers that the options name until one answers.
func (s *Store) askSeeds(ctx context.Context) error {
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

func newClient(o *Options, addr string, hello onConnect) *goredis.Client {
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	return goredis.NewClient(&goredis.Options{
		Network: network, Addr: addr,
		Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLS,
		Protocol: 2, DisableIdentity: true, OnConnect: hello,
		// What may not run twice is not sent twice: the store decides.
		MaxRetries: -1, DialerRetries: 1,
		DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		PoolTimeout: o.ReadTimeout, ContextTimeoutEnabled: true,
		PoolSize: o.PoolSize, PipelinePoolSize: -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

func newFailover(o *Options, hello onConnect) *goredis.Client {
	return goredis.NewFailoverClient(&goredis.FailoverOptions{
		MasterName: o.MasterName, SentinelAddrs: o.Addrs,
		SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword,
		Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLS,
		Protocol: 2, DisableIdentity: true, OnConnect: hello,
		MaxRetries: -1, DialerRetries: 1,
		DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		PoolTimeout: o.ReadTimeout, ContextTimeoutEnabled: true,
		PoolSize: o.PoolSize, PipelinePoolSize: -1,
	})
}

func newCluster(o *Options, parts []part, hello onConnect) *cluster {
	n := &cluster{client: goredis.NewClusterClient(&goredis.ClusterOptions{
		Addrs:    o.Addrs,
		Username: o.Username, Password: o.Password, TLSConfig: o.TLS,
		Protocol: 2, DisableIdentity: true, OnConnect: hello,
		// The commands go to the servers' own clients; see nodes.go.
		MaxRetries: -1, MaxRedirects: -1, DialerRetries: 1,
		DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		PoolTimeout: o.ReadTimeout, ContextTimeoutEnabled: true,
		PoolSize: o.PoolSize, PipelinePoolSize: -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})}
	n.use(parts)
	return n
}

func (n *cluster) use(parts []part) {
	n.keys = nil
	for i := range parts {
		n.keys = append(n.keys, parts[i].tables)
	}
	n.last = make([]atomic.Pointer[goredis.Client], len(parts))
}

// claim makes the store's record or compares it with the options, and tries out
// what the user may do.
func (s *Store) claim(ctx context.Context) error {
	o := &s.opts
	wanted := o.Partitions
	if wanted == 0 {
		wanted = 1
		if o.Mode == Cluster {
			wanted = clusterPartitions
		}
	}
	format, partitions, err := s.record(ctx, wanted)
	if err != nil {
		return err
	}
	if format != formatVersion {
		return fmt.Errorf("the store with the prefix %q has format version %d, this program writes version %d: use a program of that version, or another prefix",
			o.Prefix, format, formatVersion)
	}
	if o.Partitions != 0 && o.Partitions != partitions {
		return fmt.Errorf("the store with the prefix %q has %d partitions and not %d: the number is fixed when the store is made; leave the parameter out",
			o.Prefix, partitions, o.Partitions)
	}
	if partitions < 1 || partitions > maxPartitions {
		return fmt.Errorf("the store with the prefix %q says that it has %d partitions", o.Prefix, partitions)
	}
	s.parts = newParts(o.Prefix, partitions)
	if n, ok := s.nodes.(*cluster); ok {
		n.use(s.parts)
	}
	s.oneSlot = o.Mode != Cluster || partitions == 1
	return s.probe(ctx)
}

// record runs the opening script, which is not sent twice: it changes nothing the
// second time.
func (s *Store) record(ctx context.Context, wanted int) (format, partitions int, err error) {
	var fields []string
	err = s.query(ctx, func(ctx context.Context) error {
		c, err := s.nodes.of(ctx, 0)
		if err != nil {
			return err
		}
		tag := s.parts[0].tag
		keys := []string{tag + "m", s.okey, s.parts[0].tables}
		fields, err = c.Eval(ctx, openScript.source, keys, formatVersion, wanted).StringSlice()
		return err
	})
	if err != nil {
		if goredis.HasErrorPrefix(err, "FOREIGN ") {
			return 0, 0, fmt.Errorf("the prefix %q is in use by something else: %s", s.opts.Prefix, strings.TrimPrefix(err.Error(), "FOREIGN "))
		}
		if goredis.HasErrorPrefix(err, "LOST ") {
			tag := s.parts[0].tag
			return 0, 0, fmt.Errorf("the store with the prefix %q has lost its record %sm, and still has %s: the server lost data while programs went on writing "+
				"(a restart without persistence, FLUSHALL, a failover), so what is there is only what was written since. Stop the programs that use the store; then restore a backup, "+
				"or delete every key that begins with {%s: to start anew, or keep what is there with HSET %sm format %d partitions N, where N is the number it had "+
				"(the README of backends/redis, After a loss)",
				s.opts.Prefix, tag, strings.TrimPrefix(err.Error(), "LOST "), s.opts.Prefix, tag, formatVersion)
		}
		return 0, 0, err
	}
	if len(fields) == 2 {
		format, err = strconv.Atoi(fields[0])
		if err == nil {
			partitions, err = strconv.Atoi(fields[1])
		}
	}
	if len(fields) != 2 || err != nil {
		return 0, 0, fmt.Errorf("the prefix %q is in use by something else: the record %sm is not a store's", s.opts.Prefix, s.parts[0].tag)
	}
	return format, partitions, nil
}

// probeTable is a table that exists only while a store is being opened. No table
// of a user is called so by accident.
const probeTable = "\x00percolator-probe"

// probe runs everything that transactions will run on a row of its own in each
// partition, so that a missing permission shows now and not in the middle of a
// script, which Redis would not undo.
func (s *Store) probe(ctx context.Context) error {
	if _, err := s.Oracle().Draw(ctx, 1); err != nil {
		return err
	}
	row := probeRow()
	var on, off []rowstore.Mutation
	seen := make([]bool, len(s.parts))
	for i, left := 0, len(s.parts); left > 0; i++ {
		key := row + strconv.Itoa(i)
		p := s.partOf(probeTable, key)
		if seen[p] {
			continue
		}
		seen[p] = true
		left--
		on = append(on, rowstore.Mutation{Table: probeTable, Row: key, Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Write, "c", 3, nil), rowstore.Put(rowstore.Write, "d", 3, nil),
			rowstore.Put(rowstore.Data, "c", 3, nil), rowstore.Put(rowstore.Notify, "c", 3, nil),
		}})
		off = append(off, rowstore.Mutation{Table: probeTable, Row: key, Edits: []rowstore.Edit{
			rowstore.DeleteRange(rowstore.Write, "c", 0, 9), rowstore.DeleteRange(rowstore.Write, "d", 0, 9),
			rowstore.DeleteRange(rowstore.Data, "c", 0, 9), rowstore.DeleteRange(rowstore.Notify, "c", 0, 9),
		}})
	}
	// The writes again, newer, so that the older ones go to the history.
	newer := make([]rowstore.Mutation, len(on))
	for i := range on {
		newer[i] = on[i]
		newer[i].Edits = []rowstore.Edit{
			rowstore.Put(rowstore.Write, "c", 4, nil), rowstore.Delete(rowstore.Write, "d", 3),
		}
	}
	for _, muts := range [][]rowstore.Mutation{on, newer, off} {
		out, err := s.Apply(ctx, muts, rowstore.ApplyOptions{})
		if err != nil {
			return err
		}
		for i := range out {
			if out[i].Err != nil {
				return out[i].Err
			}
		}
	}
	for _, err := range s.Scan(ctx, rowstore.ScanRange{Table: probeTable, Picks: []rowstore.Pick{
		{Family: rowstore.Notify, To: 9}, {Family: rowstore.Data, To: 9},
	}}) {
		if err != nil {
			return err
		}
	}
	_, err := s.tables(ctx)
	return err
}
