package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/internal/testserver"
)

// backend is what a run tortures.
type backend string

const (
	backendPebble   backend = "pebble"
	backendRedis    backend = "redis"
	backendCluster  backend = "redis-cluster"
	backendPostgres backend = "postgres"
	// backendMulti is one database over two: Postgres, which is authoritative, and Redis.
	backendMulti backend = "multi"
)

func backends() []backend {
	return []backend{backendPebble, backendRedis, backendCluster, backendPostgres, backendMulti}
}

// embedded tells that the store lives in the process that uses it, and only in one.
func (b backend) embedded() bool { return b == backendPebble }

// servers are the servers of a run, each behind its proxies.
type servers struct {
	backend backend
	dir     string // of an embedded store
	net     *network
	nodes   []*node
}

type node struct {
	*testserver.Server
	client *redis.Client // to a Redis, past the proxies; nil for Postgres
}

// redisSettings make a Redis lose nothing that it acknowledged.
func redisSettings(more ...string) map[string]string {
	s := map[string]string{"appendonly": "yes", "appendfsync": "always", "auto-aof-rewrite-min-size": "16mb"}
	for i := 0; i+1 < len(more); i += 2 {
		s[more[i]] = more[i+1]
	}
	return s
}

// lossy tells that a server of a backend can be run so that it loses what it
// acknowledged.
func (b backend) lossy() bool { return b == backendRedis || b == backendCluster }

// startServers starts the servers that a backend needs. If lossy is set, they may lose
// what they acknowledged: a Redis without a log, or a cluster in which a replica
// replaces a master that was killed.
func startServers(ctx context.Context, b backend, dir string, lossy bool) (_ *servers, err error) {
	s := &servers{backend: b, dir: filepath.Join(dir, "store"), net: newNetwork()}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if b == backendPostgres || b == backendMulti {
		server, err := testserver.StartPostgres(map[string]string{
			"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "max_connections": "300", "shared_buffers": "256MB",
		})
		if err != nil {
			return nil, err
		}
		s.nodes = append(s.nodes, &node{Server: server})
	}
	if b == backendRedis || b == backendMulti {
		settings := redisSettings()
		if lossy {
			settings["appendonly"] = "no"
		}
		server, err := testserver.StartRedis(settings)
		if err != nil {
			return nil, err
		}
		s.addRedis(server)
	}
	if b == backendCluster {
		if err := s.startCluster(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *servers) addRedis(server *testserver.Server) {
	s.nodes = append(s.nodes, &node{Server: server, client: redis.NewClient(&redis.Options{
		Addr: net.JoinHostPort(server.Host, strconv.Itoa(server.Port)), MaxRetries: -1, ContextTimeoutEnabled: true,
	})})
}

func (s *servers) close() error {
	s.net.close()
	var errs []error
	for _, n := range s.nodes {
		if n.client != nil {
			errs = append(errs, n.client.Close())
		}
		errs = append(errs, n.Close())
	}
	return errors.Join(append(errs, testserver.Shutdown())...)
}

// from says how the servers run.
func (s *servers) from() string {
	if len(s.nodes) == 0 {
		return "in the process"
	}
	var parts []string
	for _, n := range s.nodes {
		parts = append(parts, n.From)
	}
	return strings.Join(slices.Compact(parts), ", ")
}

// directURLs are those of the store, or stores, past the proxies.
func (s *servers) directURLs() []string {
	switch s.backend {
	case backendPebble:
		return []string{"pebble:" + s.dir}
	case backendCluster:
		addrs := make([]string, len(s.nodes))
		for i, n := range s.nodes {
			addrs[i] = address(n)
		}
		return []string{"redis+cluster://" + strings.Join(addrs, ",")}
	}
	urls := make([]string, len(s.nodes))
	for i, n := range s.nodes {
		urls[i] = n.URL
	}
	return urls
}

// urlsFor makes proxies for a process, and returns the URLs that lead through them. In
// a cluster all processes share a proxy for each server, because servers tell their
// clients where they are; those exist already.
func (s *servers) urlsFor(slot string) ([]string, error) {
	switch s.backend {
	case backendPebble:
		return s.directURLs(), nil
	case backendCluster:
		addrs := make([]string, len(s.net.proxies))
		for i, p := range s.net.proxies {
			addrs[i] = p.Listen
		}
		return []string{"redis+cluster://" + strings.Join(addrs, ",")}, nil
	}
	var urls []string
	for i, n := range s.nodes {
		p, err := s.net.add(fmt.Sprintf("%s-%d", slot, i), address(n))
		if err != nil {
			return nil, err
		}
		u, err := url.Parse(n.URL)
		if err != nil {
			return nil, errors.New("the URL of the server is not a URL") // err would show its password
		}
		u.Host = p.Listen
		urls = append(urls, u.String())
	}
	return urls, nil
}

func address(n *node) string { return net.JoinHostPort(n.Host, strconv.Itoa(n.Port)) }

// eventually calls f until it returns nil or the context ends.
func eventually(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		if contexts.Sleep(ctx, 20*time.Millisecond) != nil {
			return err
		}
	}
}

const clusterMasters = 3

// startCluster starts three masters with a replica each. The cluster tells clients the
// addresses of the proxies. A replica takes over only on command, and only after it has
// caught up. If it took over from a killed master, it would lose what the master had
// acknowledged, because replication is asynchronous, and no store over it could promise
// anything (see the README of the backend).
func (s *servers) startCluster(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var busPorts []int
	for i := range 2 * clusterMasters {
		bus, err := s.startNode(i)
		if err != nil {
			return err
		}
		busPorts = append(busPorts, bus)
	}
	const slots = 16384
	for i, n := range s.nodes {
		if err := n.client.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		if i < clusterMasters {
			if err := n.client.ClusterAddSlotsRange(ctx, i*slots/clusterMasters, (i+1)*slots/clusterMasters-1).Err(); err != nil {
				return fmt.Errorf("cluster: %w", err)
			}
		}
		if i > 0 {
			if err := s.nodes[0].client.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", n.Port, busPorts[i]).Err(); err != nil {
				return fmt.Errorf("cluster: %w", err)
			}
		}
	}
	for i, n := range s.nodes {
		err := eventually(ctx, func() error {
			info, err := n.client.ClusterInfo(ctx).Result()
			if err == nil && !strings.Contains(info, "cluster_known_nodes:"+strconv.Itoa(len(s.nodes))) {
				err = fmt.Errorf("it knows too few: %s", info)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("cluster: node %d: %w", i, err)
		}
	}
	for i := range clusterMasters {
		id, err := s.nodes[i].client.ClusterMyID(ctx).Result()
		if err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		replica := s.nodes[clusterMasters+i].client
		if err := eventually(ctx, func() error { return replica.ClusterReplicate(ctx, id).Err() }); err != nil {
			return fmt.Errorf("cluster: replica of node %d: %w", i, err)
		}
	}
	for i, n := range s.nodes {
		err := eventually(ctx, func() error {
			info, err := n.client.ClusterInfo(ctx).Result()
			if err == nil && !strings.Contains(info, "cluster_state:ok") {
				err = errors.New(info)
			}
			if err == nil && i >= clusterMasters {
				err = caughtUp(ctx, n)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("cluster: node %d: %w", i, err)
		}
	}
	return nil
}

// startNode starts a node of the cluster behind a proxy. It returns the port of its bus.
func (s *servers) startNode(i int) (bus int, err error) {
	p, err := s.net.add(fmt.Sprintf("node%d", i), "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	_, port, err := net.SplitHostPort(p.Listen)
	if err != nil {
		return 0, err
	}
	bus, err = freePort()
	if err != nil {
		return 0, err
	}
	server, err := testserver.StartRedis(redisSettings(
		"cluster-enabled", "yes", "cluster-config-file", "nodes.conf", "cluster-node-timeout", "2000",
		"cluster-port", strconv.Itoa(bus), "cluster-announce-ip", "127.0.0.1", "cluster-announce-port", port,
		"cluster-announce-bus-port", strconv.Itoa(bus), "cluster-replica-no-failover", "yes",
		"cluster-require-full-coverage", "no", "repl-diskless-sync-delay", "0",
	))
	if err != nil {
		return 0, err
	}
	s.addRedis(server)
	p.Stop()
	p.Upstream = address(s.nodes[i])
	if err := p.Start(); err != nil {
		return 0, err
	}
	return bus, nil
}

// caughtUp returns nil when a node is a replica whose link to its master is up.
func caughtUp(ctx context.Context, n *node) error {
	info, err := n.client.Info(ctx, "replication").Result()
	if err == nil && (!strings.Contains(info, "role:slave") || !strings.Contains(info, "master_link_status:up")) {
		err = errors.New("it is no replica, or has no link to its master")
	}
	return err
}

// failOver makes a replica take over from its master, which waits until the replica
// has everything.
func (s *servers) failOver(ctx context.Context, rng *rand.Rand) error {
	for _, i := range rng.Perm(len(s.nodes)) {
		n := s.nodes[i]
		if caughtUp(ctx, n) != nil {
			continue
		}
		if err := n.client.ClusterFailover(ctx).Err(); err != nil {
			return fmt.Errorf("failover to node %d: %w", i, err)
		}
		return eventually(ctx, func() error {
			info, err := n.client.Info(ctx, "replication").Result()
			if err == nil && !strings.Contains(info, "role:master") {
				err = errors.New("it is no master yet")
			}
			return err
		})
	}
	return errors.New("no replica has a link to its master")
}

// replaceMaster kills a master, makes its replica take over at once, and starts it
// again as that one's replica. What had not reached the replica is lost.
func (s *servers) replaceMaster(ctx context.Context, rng *rand.Rand) error {
	for _, i := range rng.Perm(len(s.nodes)) {
		replica := s.nodes[i]
		info, err := replica.client.InfoMap(ctx, "replication").Result()
		if err != nil || caughtUp(ctx, replica) != nil {
			continue
		}
		for j, p := range s.net.proxies {
			if _, port, _ := net.SplitHostPort(p.Listen); port != info["Replication"]["master_port"] {
				continue
			}
			err := s.nodes[j].Kill()
			err = errors.Join(err, replica.client.Do(ctx, "CLUSTER", "FAILOVER", "TAKEOVER").Err())
			return errors.Join(err, s.nodes[j].Start())
		}
	}
	return errors.New("no replica has a link to its master")
}

// forgetScripts makes every Redis forget the scripts that it was given.
func (s *servers) forgetScripts(ctx context.Context) error {
	var errs []error
	for _, n := range s.nodes {
		if n.client == nil {
			continue
		}
		if err := n.client.ScriptFlush(ctx).Err(); err != nil && !strings.HasPrefix(err.Error(), "READONLY") {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// forgetStatements ends some or all sessions of a Postgres, and with them the
// statements that they had prepared.
func (s *servers) forgetStatements(ctx context.Context) error {
	for _, n := range s.nodes {
		if n.client != nil {
			continue
		}
		conn, err := pgx.Connect(ctx, n.URL)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity, (SELECT random() AS share) s
			WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < share`)
		if err := errors.Join(err, conn.Close(context.WithoutCancel(ctx))); err != nil {
			return err
		}
	}
	return nil
}
