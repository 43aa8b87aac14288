package redis

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"

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
}

// askInfo asks a server about itself. It needs INFO, and where the user may,
// CONFIG GET.
func askInfo(ctx context.Context, c *goredis.Client) (serverInfo, error) {
	var in serverInfo
	text, err := c.Info(ctx).Result()
	if err != nil {
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
	if m, err := c.ConfigGet(ctx, "appendfsync").Result(); err == nil {
		in.fsync = m["appendfsync"]
	}
	if m, err := c.ConfigGet(ctx, "save").Result(); err == nil {
		in.save, in.saveOK = m["save"]
	}
	return in, nil
}

// check refuses servers that cannot be used.
func (in *serverInfo) check(o *Options) error {
	switch {
	case in.mode == "sentinel":
		return fmt.Errorf("%w: this is a sentinel, not the server that it watches: use redis+sentinel://", rowstore.ErrInvalid)
	case in.mode == "cluster" && o.Mode != Cluster:
		return fmt.Errorf("%w: the server runs in cluster mode, and is addressed as a standalone one: use redis+cluster://, or several addresses", rowstore.ErrInvalid)
	case in.mode != "cluster" && o.Mode == Cluster:
		return fmt.Errorf("%w: the server does not run in cluster mode, and is addressed as a Cluster: use redis:// with one address", rowstore.ErrInvalid)
	}
	major, _, _ := strings.Cut(in.version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		return fmt.Errorf("the server is %s; at least Redis 7.0 or Valkey is needed", in.product)
	}
	if in.role == "slave" && o.Mode == Standalone {
		return fmt.Errorf("%w: the server is a replica: use the address of the primary, or redis+sentinel://", rowstore.ErrInvalid)
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
		w = append(w, "persistence is off: a restart of the server loses everything, and an oracle that starts again relies on the server's clock alone")
	case !in.aof:
		w = append(w, "the append-only file is off: a crash of the server loses everything since the last snapshot, and may tear transactions that span several stores")
	case in.fsync == "everysec":
		w = append(w, "appendfsync is everysec: a crash of the machine loses the writes of about the last second, acknowledged or not; use always where that matters")
	case in.fsync == "no":
		w = append(w, "appendfsync is no: a crash of the machine loses as many acknowledged writes as the operating system holds back; use always where that matters")
	case in.fsync == "":
		w = append(w, "the user may not ask for appendfsync, so nobody knows what a crash can lose")
	}
	if in.replicas > 0 {
		w = append(w, "the server has replicas, which lag behind it: a failover loses the acknowledged writes that had not reached the new primary")
	}
	return w
}

func probeRow() string { return rand.Text() + "/" }

// Report says what the server is and what the store can do on it. It asks the
// server anew.
func (s *Store) Report(ctx context.Context) (rowstore.Report, error) {
	var in serverInfo
	err := s.query(ctx, func(ctx context.Context) error {
		c, err := s.nodes.of(ctx, 0)
		if err == nil {
			in, err = askInfo(ctx, c)
		}
		return err
	})
	if err != nil {
		return rowstore.Report{}, fmt.Errorf("redis: report: %w", err)
	}
	groups := rowstore.Feature{Name: "groups", Supported: true, Reason: "all rows are on one server"}
	onePhase := rowstore.Feature{Name: "one-phase commit", Supported: true, Reason: "the rows and the oracle are on one server"}
	if s.opts.Mode == Cluster {
		groups.Reason = fmt.Sprintf("of rows in the same of %d partitions", len(s.parts))
		onePhase.Reason = "for rows in partition 0, where the oracle is"
		if len(s.parts) == 1 {
			groups.Reason = "there is one partition"
			onePhase.Reason = groups.Reason
		}
	}
	return rowstore.Report{
		Backend: "redis",
		Version: in.product + " (" + in.mode + ")",
		Features: []rowstore.Feature{
			groups, onePhase,
			{Name: "oracle", Supported: true, Reason: "the server's time, kept monotonic"},
			{Name: "deferred durability", Reason: "the server persists by its own settings, for all writes alike"},
			{Name: "split", Supported: true, Reason: "by rank in the index of rows"},
			{Name: "wake-ups", Supported: true, Reason: "pub/sub"},
		},
		Warnings: in.warnings(),
	}, nil
}
