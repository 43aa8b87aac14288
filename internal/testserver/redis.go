package testserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var sharedRedis shared

// Redis returns the URL of a standalone Redis for this test package,
// redis://127.0.0.1:PORT/0, started on first use with its append-only file on. Tests
// keep apart by key prefix. The file is not flushed to the disk (appendfsync no), which
// only a crash of the operating system could tell: with everysec a server stands still
// while a busy disk is slow to flush. It fails the test if no server can be had.
func Redis(t testing.TB) string {
	t.Helper()
	return sharedRedis.get(t, "redis", "PERCOLATOR_TEST_REDIS", StartRedis).URL
}

// NewRedis starts a Redis for one test and closes it at the test's end. settings
// are lines of redis.conf by name ("appendfsync": "always"); they override
//
//	appendonly yes, appendfsync no, save "" (no snapshots)
//
// It fails the test if no server can be had.
func NewRedis(t testing.TB, settings map[string]string) *Server {
	t.Helper()
	s, err := StartRedis(settings)
	if err != nil {
		t.Fatal(err)
	}
	return s.closeWith(t)
}

// StartRedis is NewRedis for programs without a testing.TB. The caller closes the
// server.
func StartRedis(settings map[string]string) (*Server, error) {
	return firstThatWorks("redis", containerRedis(settings), localRedis(settings))
}

func containerRedis(settings map[string]string) func() (*Server, error) {
	return func() (*Server, error) {
		image, err := findImage(redisImages())
		if err != nil {
			return nil, err
		}
		return onFreePorts(2, func(ports []int) (*Server, error) {
			d := &box{
				image: image, command: append([]string{"redis-server"}, redisArgs(ports[0], ports[1], "127.0.0.1", boxDir, settings)...),
				ending: "SIGTERM",
				ready:  func(ctx context.Context) error { return pingRedis(ctx, ports[0]) },
			}
			s := &Server{
				URL:  fmt.Sprintf("redis://127.0.0.1:%d/0", ports[0]),
				Host: "127.0.0.1", Port: ports[0], From: "container of " + image, SmallDisk: smallDisk,
				driver: d, busPort: ports[1],
			}
			return s, startOrClose(d)
		})
	}
}

func localRedis(settings map[string]string) func() (*Server, error) {
	return func() (*Server, error) {
		program, err := lookProgram("redis-server")
		if err != nil {
			return nil, err
		}
		return onFreePorts(2, func(ports []int) (*Server, error) {
			dir, err := tempDir("redis", nil)
			if err != nil {
				return nil, err
			}
			d := &local{
				program: program, dir: dir, ending: syscall.SIGTERM,
				args:  redisArgs(ports[0], ports[1], "127.0.0.1", dir, settings),
				ready: func(ctx context.Context) error { return pingRedis(ctx, ports[0]) },
			}
			s := &Server{
				URL:  fmt.Sprintf("redis://127.0.0.1:%d/0", ports[0]),
				Host: "127.0.0.1", Port: ports[0], Dir: dir, From: "process " + program,
				driver: d, busPort: ports[1],
			}
			return s, startOrClose(d)
		})
	}
}

// redisArgs is the command line of a Redis: defaults, then the caller's settings.
func redisArgs(port, busPort int, bind, dir string, settings map[string]string) []string {
	all := map[string]string{
		"port": strconv.Itoa(port), "bind": bind, "dir": dir, "daemonize": "no",
		"appendonly": "yes", "appendfsync": "no", "save": "", "protected-mode": "no",
	}
	if settings["cluster-enabled"] == "yes" {
		all["cluster-port"] = strconv.Itoa(busPort)
	}
	maps.Copy(all, settings)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "--"+name, all[name])
	}
	return args
}

// pingRedis returns nil when the server answers and has loaded its data. A demand
// for a password is an answer.
func pingRedis(ctx context.Context, port int) error {
	answer, err := redisDo(ctx, port, "PING")
	if err != nil {
		return err
	}
	if answer == "+PONG" || strings.HasPrefix(answer, "-NOAUTH") {
		return nil
	}
	return fmt.Errorf("PING is answered by %q", answer)
}

// redisDo sends one inline command and returns the answer: a status or an error
// with its first character, or the text of a bulk.
func redisDo(ctx context.Context, port int, command string) (string, error) {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", address(port))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(conn, "%s\r\n", command); err != nil {
		return "", err
	}
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	size, isBulk := strings.CutPrefix(line, "$")
	if !isBulk {
		return line, nil
	}
	n, err := strconv.Atoi(size)
	if err != nil || n < 0 {
		return "", err
	}
	bulk := make([]byte, n)
	_, err = io.ReadFull(in, bulk)
	return string(bulk), err
}

// RedisCluster is a Redis Cluster of three masters without replicas.
type RedisCluster struct {
	// Nodes are the three servers; each may be killed and started by itself.
	Nodes []*Server
	// Addrs are their addresses, host:port.
	Addrs []string
	// URL names all of them: redis://127.0.0.1:P1?addr=127.0.0.1:P2&addr=127.0.0.1:P3
	URL string
}

// NewRedisCluster starts three masters that share the slots, and closes them at
// the test's end. settings are as for NewRedis. It fails the test if no server
// can be had.
func NewRedisCluster(t testing.TB, settings map[string]string) *RedisCluster {
	t.Helper()
	c, err := startRedisCluster(settings)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range c.Nodes {
		s.closeWith(t)
	}
	return c
}

func startRedisCluster(settings map[string]string) (_ *RedisCluster, err error) {
	all := map[string]string{
		"cluster-enabled": "yes", "cluster-config-file": "nodes.conf", "cluster-node-timeout": "2000",
	}
	maps.Copy(all, settings)
	c := &RedisCluster{}
	defer func() {
		if err != nil {
			for _, s := range c.Nodes {
				_ = s.Close()
			}
		}
	}()
	for range 3 {
		s, err := StartRedis(all)
		if err != nil {
			return nil, fmt.Errorf("testserver: node of a Redis Cluster: %w", err)
		}
		c.Nodes = append(c.Nodes, s)
		c.Addrs = append(c.Addrs, address(s.Port))
	}
	c.URL = "redis://" + c.Addrs[0] + "?addr=" + c.Addrs[1] + "&addr=" + c.Addrs[2]

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	const slots = 16384
	for i, s := range c.Nodes {
		// Every node owns a third of the slots and has an epoch of its own; the first
		// one introduces the others.
		commands := []string{
			fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", i+1),
			fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", i*slots/3, (i+1)*slots/3-1),
		}
		for _, command := range commands {
			if err := redisOK(ctx, s.Port, command); err != nil {
				return nil, err
			}
		}
		if i > 0 {
			if err := redisOK(ctx, c.Nodes[0].Port, fmt.Sprintf("CLUSTER MEET 127.0.0.1 %d %d", s.Port, s.busPort)); err != nil {
				return nil, err
			}
		}
	}
	for _, s := range c.Nodes {
		err := poll(ctx, func() error {
			info, err := redisDo(ctx, s.Port, "CLUSTER INFO")
			if err != nil || strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:3") {
				return err
			}
			return fmt.Errorf("node %d: %s", s.Port, info)
		})
		if err != nil {
			return nil, fmt.Errorf("testserver: Redis Cluster: %w", err)
		}
	}
	return c, nil
}

func redisOK(ctx context.Context, port int, command string) error {
	answer, err := redisDo(ctx, port, command)
	if err == nil && answer != "+OK" {
		err = errors.New(answer)
	}
	if err != nil {
		return fmt.Errorf("testserver: %s: %w", command, err)
	}
	return nil
}
