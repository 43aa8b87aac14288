package redis

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// serverInfo is what a server says of itself.
type serverInfo struct {
	version  string // as a Redis version, also of Valkey
	product  string // redis or valkey, with its own version
	mode     string // standalone, cluster, sentinel
	role     string
	policy   string // maxmemory-policy
	maxmem   string
	aof      bool
	fsync    string // appendfsync, "" where the user may not ask
	save     string // save, "" for never
	saveOK   bool   // save is known
	replicas int
	// clients are connected, of clientsMost that may be, with 0 for unknown. So are the bytes in use, and those that may be.
	clients, clientsMost int
	used, usedMost       int64
	writing              string // "" if the server persists what it should, otherwise what went wrong
	// noFsyncOnRewrite is no-appendfsync-on-rewrite.
	noFsyncOnRewrite bool
	// replicaReadOnly: as a replica the server would refuse writes. False where the
	// user may not ask.
	replicaReadOnly bool
}

// askInfo asks a server about itself, in one round trip: INFO, and CONFIG GET, which the
// user need not be allowed.
func askInfo(ctx context.Context, c goredis.Cmdable) (serverInfo, error) {
	var in serverInfo
	pipe := c.Pipeline()
	about := pipe.Info(ctx)
	config := make(map[string]*goredis.MapStringStringCmd)
	for _, name := range []string{"appendfsync", "save", "no-appendfsync-on-rewrite", "replica-read-only"} {
		config[name] = pipe.ConfigGet(ctx, name)
	}
	_, err := pipe.Exec(ctx)
	text, aboutErr := about.Result()
	if aboutErr != nil {
		return in, aboutErr
	}
	if text == "" {
		return in, err
	}
	f := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			f[k] = v
		}
	}
	in.version = f["redis_version"]
	in.product = "Redis " + in.version
	if v := f["valkey_version"]; v != "" {
		in.product = "Valkey " + v
	}
	in.mode, in.role, in.policy, in.maxmem = f["redis_mode"], f["role"], f["maxmemory_policy"], f["maxmemory"]
	if in.mode == "" {
		in.mode = f["server_mode"]
	}
	in.aof = f["aof_enabled"] == "1"
	in.replicas, _ = strconv.Atoi(f["connected_slaves"])
	in.takeRoom(f)
	get := func(name string) (string, bool) {
		m, err := config[name].Result()
		v, ok := m[name]
		return v, ok && err == nil
	}
	in.fsync, _ = get("appendfsync")
	in.save, in.saveOK = get("save")
	rewrite, _ := get("no-appendfsync-on-rewrite")
	in.noFsyncOnRewrite = rewrite == "yes"
	readOnly, _ := get("replica-read-only")
	in.replicaReadOnly = readOnly == "yes"
	return in, nil
}

// admit checks the server at the other end of a new connection, so that every
// server is checked before it is used: one that took over too, and one that joined
// a Cluster later.
func (s *direct) admit(ctx context.Context, conn *goredis.Conn) error {
	if err := s.inspect(ctx, conn); err != nil {
		// go-redis unwraps the error once.
		return fmt.Errorf("new connection: %w", err)
	}
	return nil
}

func (s *direct) inspect(ctx context.Context, c goredis.Cmdable) error {
	in, err := askInfo(ctx, c)
	if s.opts.Mode == Sentinel && (in.mode == "sentinel" || goredis.HasErrorPrefix(err, "NOPERM")) {
		// A sentinel, whose user may not be allowed INFO. If it is the server, then
		// the scripts that need INFO say that it is missing.
		return nil
	}
	if err != nil {
		return err
	}
	if !in.replicaReadOnly {
		s.strict.Store(true)
	}
	return in.check(&s.opts)
}

// askMasters asks every primary server about itself, and returns the answers by
// address. It leaves out a server that cannot be reached, which is checked when it is
// back, and fails if none can be reached.
func (s *direct) askMasters(ctx context.Context) (map[string]serverInfo, error) {
	return query(ctx, s, func(ctx context.Context) (map[string]serverInfo, error) {
		var mu sync.Mutex
		all := map[string]serverInfo{}
		var away error
		err := s.nodes.masters(ctx, func(ctx context.Context, c *goredis.Client) error {
			in, err := askInfo(ctx, c)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				all[c.Options().Addr] = in
				return in.check(&s.opts)
			}
			if s.opts.Mode == Cluster && isAway(err) && ctx.Err() == nil {
				away = err
				return nil
			}
			return err
		})
		if err == nil && len(all) == 0 {
			err = away
		}
		return all, err
	})
}

// check refuses a server that a store cannot use.
func (in *serverInfo) check(o *Options) error {
	switch {
	case in.mode == "sentinel":
		return fmt.Errorf("%w: this is a sentinel, not the server that it watches: use redis+sentinel://, or for New a client of NewFailoverClient", rowstore.ErrInvalid)
	case in.mode == "cluster" && o.Mode != Cluster:
		return fmt.Errorf("%w: the server runs in cluster mode, and is addressed as a standalone one: use redis+cluster://, or several addresses, or for New a ClusterClient", rowstore.ErrInvalid)
	case in.mode != "cluster" && o.Mode == Cluster:
		return fmt.Errorf("%w: the server does not run in cluster mode, and is addressed as a Cluster: use redis:// with one address, or for New a Client", rowstore.ErrInvalid)
	}
	major, _, _ := strings.Cut(in.version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		return fmt.Errorf("the server is %s; at least Redis 7.0 or Valkey is needed", in.product)
	}
	if in.role == "slave" && o.Mode != Cluster {
		return fmt.Errorf("%w: the server is a replica: use the address of the primary, or redis+sentinel://, or for New a client of NewFailoverClient", rowstore.ErrUnavailable)
	}
	if in.policy != "" && in.policy != "noeviction" {
		return fmt.Errorf("the server's maxmemory-policy is %s: it may evict keys, which would lose committed data; set it to noeviction", in.policy)
	}
	return nil
}

// warnings are about acknowledged writes that the server may lose.
func (in *serverInfo) warnings() []string {
	var w []string
	switch {
	case !in.aof && in.saveOK && in.save == "":
		w = append(w, "persistence is off: a restart of the server loses everything, and an oracle that starts again relies on the server's clock alone; set appendonly to yes")
	case !in.aof:
		w = append(w, "the append-only file is off: a crash of the server loses everything since the last snapshot, and may tear transactions that span several stores; set appendonly to yes")
	case in.fsync == "everysec":
		w = append(w, "appendfsync is everysec: a crash of the server loses what was not yet written to the file, a crash of the machine about the last second, and more where the disk is slow; use always where acknowledged writes matter")
	case in.fsync == "no":
		w = append(w, "appendfsync is no: a crash of the machine loses as many acknowledged writes as the operating system holds back; use always where that matters")
	case in.fsync == "":
		w = append(w, "the user may not ask for appendfsync, so nobody knows what a crash can lose; allow it CONFIG GET")
	}
	if in.aof && in.noFsyncOnRewrite && (in.fsync == "always" || in.fsync == "everysec") {
		w = append(w, "no-appendfsync-on-rewrite is yes: while the append-only file is rewritten, appendfsync does not hold, whatever it is: a crash of the machine loses the acknowledged writes that the operating system holds back, as many as come in half a minute or more; set it to no")
	}
	if in.replicas > 0 {
		w = append(w, "the server has replicas, which lag behind it: a failover loses the acknowledged writes that had not reached the new primary; WAIT and min-replicas-to-write make that rarer, and do not exclude it")
	}
	return append(w, in.shortages()...)
}

// summary joins what several servers say of themselves. A warning that not all of
// them give says whose it is.
func summary(all map[string]serverInfo) (version string, warnings []string) {
	var versions, order []string
	whose := map[string][]string{}
	for _, addr := range slices.Sorted(maps.Keys(all)) {
		in := all[addr]
		if v := in.product + " (" + in.mode + ")"; !slices.Contains(versions, v) {
			versions = append(versions, v)
		}
		for _, w := range in.warnings() {
			if whose[w] == nil {
				order = append(order, w)
			}
			whose[w] = append(whose[w], addr)
		}
	}
	for _, w := range order {
		if len(whose[w]) < len(all) {
			w += " (" + strings.Join(whose[w], ", ") + ")"
		}
		warnings = append(warnings, w)
	}
	return strings.Join(versions, ", "), warnings
}

func probeRow() string { return rand.Text() + "/" }

// Report says what the servers are and what the store can do on them. It asks
// every primary anew.
func (s *direct) Report(ctx context.Context) (rowstore.Report, error) {
	all, err := s.askMasters(ctx)
	if err != nil {
		return rowstore.Report{}, fmt.Errorf("redis: report: %w", err)
	}
	version, warnings := summary(all)
	groups := rowstore.Feature{Name: rowstore.FeatureGroups, Supported: true, Reason: "all rows are on one server"}
	snapshots := "in one run of a script"
	onePhase := rowstore.Feature{Name: rowstore.FeatureOnePhase, Supported: true, Reason: "the rows and the oracle are on one server"}
	if s.opts.Mode == Cluster {
		snapshots = "in two calls, a draw and then a read"
		groups.Reason = fmt.Sprintf("of rows in the same of %d partitions", len(s.parts))
		onePhase.Reason = "for rows in partition 0, where the oracle is"
		if len(s.parts) == 1 {
			groups.Reason = "there is one partition"
			onePhase.Reason, snapshots = groups.Reason, "in one run of a script"
		}
	}
	return rowstore.Report{
		Backend: "redis",
		Layout:  formatVersion,
		Version: version,
		Features: []rowstore.Feature{
			groups, onePhase,
			{Name: rowstore.FeatureOracle, Supported: true, Reason: "the server's time, kept monotonic"},
			{Name: rowstore.FeatureSnapshots, Supported: true, Reason: snapshots},
			{Name: rowstore.FeatureDeferred, Reason: "the server persists by its own settings, for all writes alike"},
			{Name: rowstore.FeatureSplit, Supported: true, Reason: "by rank in the index of rows"},
			{Name: rowstore.FeatureSlots, Supported: true, Reason: "the index of notifications has it"},
			{Name: rowstore.FeatureScans, Supported: true, Reason: "in one call if there is one partition"},
			{Name: rowstore.FeatureWake, Supported: true, Reason: "pub/sub"},
		},
		Warnings: warnings,
	}, nil
}
