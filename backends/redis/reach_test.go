package redis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/urltest"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// forward passes the connections of l on to a server, and ends with the test.
func forward(t testing.TB, l net.Listener, addr string) {
	t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				_ = in.Close()
				continue
			}
			mu.Lock()
			open = append(open, in, out)
			mu.Unlock()
			wg.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			wg.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

// certificate makes a certificate signed by parent, or by itself, and writes it
// and its key as PEM files.
func certificate(t testing.TB, dir, name string, parent *tls.Certificate) (pair tls.Certificate, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name}, BasicConstraintsValid: true, IsCA: parent == nil,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	signer, by := any(key), tmpl
	if parent != nil {
		signer = parent.PrivateKey
		by, err = x509.ParseCertificate(parent.Certificate[0])
		require.NoError(t, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, by, &key.PublicKey, signer)
	require.NoError(t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
	pair, err = tls.LoadX509KeyPair(certFile, keyFile)
	require.NoError(t, err)
	return pair, certFile, keyFile
}

func TestTLS(t *testing.T) {
	t.Parallel()
	plain := with(t, testserver.Redis(t))
	o, err := ParseURL(plain)
	require.NoError(t, err)
	dir := t.TempDir()
	ca, caFile, _ := certificate(t, dir, "ca", nil)
	server, _, _ := certificate(t, dir, "redis.test", &ca)
	_, clientCert, clientKey := certificate(t, dir, "client", &ca)
	pool := x509.NewCertPool()
	root, err := x509.ParseCertificate(ca.Certificate[0])
	require.NoError(t, err)
	pool.AddCert(root)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{server},
		ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	})
	require.NoError(t, err)
	forward(t, l, o.Addrs[0])

	base := "rediss://" + l.Addr().String() + "/?prefix=" + o.Prefix
	all := base + "&tls_ca=" + caFile + "&tls_cert=" + clientCert + "&tls_key=" + clientKey + "&tls_server_name=redis.test"
	s := openURL(t, all)
	apply(t, s, put("r", 1, "v"))
	require.Equal(t, "v", newest(t, s, "r"))

	err = openError(t, base)
	require.ErrorContains(t, err, "certificate")
	require.ErrorIs(t, err, rowstore.ErrDenied)
	require.ErrorContains(t, openError(t, strings.Replace(all, "redis.test", "other.test", 1)), "other.test")
	require.Error(t, openError(t, base+"&tls_ca="+caFile+"&tls_server_name=redis.test"), "without the client's certificate")
	require.Error(t, openError(t, strings.Replace(base, "rediss:", "redis:", 1)), "without TLS")
}

// A server in protected mode says so to each connection and ends it, which go-redis does
// not report. The user has to see it.
func TestRefusalIsShown(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("-DENIED Redis is running in protected mode. In this mode one may not connect.\r\n"))
			_ = c.Close()
		}
	}()
	err = openError(t, "redis://"+l.Addr().String())
	require.ErrorContains(t, err, "said: DENIED Redis is running in protected mode;")
	require.NotContains(t, err.Error(), "TLS")
	require.ErrorIs(t, err, rowstore.ErrDenied)
	require.NotErrorIs(t, err, rowstore.ErrUnavailable)
}

// What a server refuses is of the same kind also where the client's words stand before its own, as those of a sentinel do.
func TestExplainedInside(t *testing.T) {
	t.Parallel()
	for text, kind := range map[string]error{
		"NOAUTH Authentication required.":                                        rowstore.ErrDenied,
		"WRONGPASS invalid username-password pair or user is disabled.":          rowstore.ErrDenied,
		"NOPERM User x has no permissions to run the 'sentinel|x' command":       rowstore.ErrDenied,
		"OOM command not allowed when used memory > 'maxmemory'.":                rowstore.ErrFull,
		"MISCONF Errors writing to the AOF file: No space left on device":        rowstore.ErrFull,
		"MISCONF Redis is configured to save RDB snapshots, but it's unable to.": nil,
		"ERR unknown command": nil,
	} {
		said := answered(text)
		for _, err := range []error{said, fmt.Errorf("redis: all sentinels specified in configuration are unreachable: %w", errors.Join(io.EOF, said))} {
			explained := explain(err)
			require.ErrorIs(t, explained, said)
			for _, k := range []error{rowstore.ErrDenied, rowstore.ErrFull} {
				require.Equal(t, errors.Is(kind, k), errors.Is(explained, k), "%v", explained)
			}
		}
	}
}

func TestUnixSocket(t *testing.T) {
	t.Parallel()
	o, err := ParseURL(with(t, testserver.Redis(t)))
	require.NoError(t, err)
	// The path of a socket has a small limit, which a test's directory can exceed.
	dir, err := os.MkdirTemp("", "r") //nolint:usetesting // see above
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	forward(t, l, o.Addrs[0])
	s := openURL(t, "unix://"+path+"?prefix="+o.Prefix)
	apply(t, s, put("r", 1, "v"))
	require.Equal(t, "v", newest(t, s, "r"))
}

func TestSentinel(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("a sentinel is a redis-server of this machine, and there is none: install the package redis-server")
	}
	ctx := context.Background()
	one := testserver.NewRedis(t, nil)
	two := testserver.NewRedis(t, nil)
	require.NoError(t, admin(t, two.URL).Do(ctx, "REPLICAOF", one.Host, one.Port).Err())

	addr, sentinel := startSentinel(ctx, t, program, one)
	url := with(t, "redis+sentinel://"+addr, "master", "main")
	s := bare(t, url)
	require.ErrorContains(t, openError(t, "redis://"+addr), "sentinel")
	require.ErrorContains(t, openError(t, two.URL), "replica")
	rep, err := s.Report(ctx)
	require.NoError(t, err)
	require.Contains(t, strings.Join(rep.Warnings, "\n"), "replicas")
	apply(t, s, put("r", 1, "v"))
	before := draw(t, s)
	watched := goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{addr}})
	defer func() { require.NoError(t, watched.Close()) }()
	over := openNew(t, watched, Options{Prefix: s.opts.Prefix})
	require.Equal(t, "v", newest(t, over, "r"))
	_, err = New(ctx, sentinel, Options{})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	require.ErrorContains(t, err, "NewFailoverClient")
	replica := admin(t, two.URL)
	_, err = New(ctx, replica, Options{Prefix: s.opts.Prefix})
	require.ErrorIs(t, err, rowstore.ErrUnavailable)
	require.ErrorContains(t, err, "replica")

	// The other server takes over, once it has everything.
	old := admin(t, one.URL)
	require.Eventually(t, func() bool {
		n, err := old.Do(ctx, "WAIT", 1, 1000).Int()
		return err == nil && n == 1
	}, 60*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		return sentinel.Do(ctx, "SENTINEL", "FAILOVER", "main").Err() == nil
	}, 60*time.Second, 50*time.Millisecond)
	// Until the old primary is told, it takes writes that are lost: wait for that.
	require.Eventually(t, func() bool {
		role, err := old.Do(ctx, "ROLE").Slice()
		return err == nil && role[0] == "slave" && role[3] == "connected"
	}, 60*time.Second, 10*time.Millisecond)
	require.Eventually(t, func() bool { return tryApply(ctx, s, put("r", 2, "w")) == nil },
		60*time.Second, 10*time.Millisecond)
	require.Equal(t, "w", newest(t, s, "r"))
	require.Greater(t, draw(t, s), before)
	require.Equal(t, "w", newest(t, over, "r"), "a store over the program's client follows too")
	require.Equal(t, "w", newest(t, bare(t, two.URL+"?prefix="+s.opts.Prefix), "r"), "on the new primary")
}

// startSentinel starts a sentinel of a primary with one replica, which it knows at the end.
func startSentinel(ctx context.Context, t *testing.T, program string, primary *testserver.Server) (addr string, sentinel *goredis.Client) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr = l.Addr().String()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	dir := t.TempDir()
	conf := filepath.Join(dir, "sentinel.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil,
		"port %s\nbind 127.0.0.1\ndir %s\nsentinel monitor main %s %d 1\nsentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n",
		port, dir, primary.Host, primary.Port), 0o600))
	cmd := exec.Command(program, conf, "--sentinel") //nolint:gosec // the test's own arguments
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	sentinel = admin(t, "redis://"+addr)
	require.Eventually(t, func() bool {
		n, err := sentinel.Do(ctx, "SENTINEL", "REPLICAS", "main").Slice()
		return err == nil && len(n) == 1
	}, 60*time.Second, 10*time.Millisecond, "the sentinel knows the replica")
	return addr, sentinel
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	o, err := ParseURL("redis://user:p%40ss@h1:1,h2,[::1]:3/?prefix=shop&partitions=4&pool_size=7&read_timeout=2s")
	require.NoError(t, err)
	require.Equal(t, Cluster, o.Mode)
	require.Equal(t, []string{"h1:1", "h2:6379", "[::1]:3"}, o.Addrs)
	require.Equal(t, "user", o.Username)
	require.Equal(t, "p@ss", o.Password)
	require.Equal(t, "shop", o.Prefix)
	require.Equal(t, 4, o.Partitions)
	require.Equal(t, 7, o.PoolSize)
	require.Equal(t, 2*time.Second, o.ReadTimeout)
	o, err = ParseURL("redis://localhost/3?coalesce=off")
	require.NoError(t, err)
	require.Equal(t, 3, o.DB)
	require.Equal(t, Standalone, o.Mode)
	require.True(t, o.NoCoalesce)
	o, err = ParseURL("redis+sentinel://a,b?master=m&db=1")
	require.NoError(t, err)
	require.Equal(t, []string{"a:26379", "b:26379"}, o.Addrs)
	o, err = ParseURL("unix:///run/redis.sock?db=2")
	require.NoError(t, err)
	require.Equal(t, []string{"/run/redis.sock"}, o.Addrs)
	require.Equal(t, 2, o.DB)

	for _, bad := range []string{
		"redis:", "redis://h:x", "redis://h:0", "redis://h:70000", "redis://::1", "redis://h/x", "redis://h/1?db=2",
		"redis://h?nope=1", "redis://h?prefix=a%7Bb", "redis://h?partitions=0", "redis://h?partitions=9999",
		"redis://h?read_timeout=1h", "redis://h?read_timeout=5", "redis://h?coalesce=maybe", "redis://h?prefix=a&prefix=b",
		"redis://u:%zz" + secret + "@h", "redis://h?tls_ca=x", "rediss://h?tls_ca=/does/not/exist", "rediss://h?tls_cert=x",
		"redis+cluster://h/1", "redis+nope://h", "unix://host/path", "unix://", "unix:///run/redis.sock?addr=h:6379", "redis://h1,h2?mode=standalone",
		"redis+cluster://h?mode=sentinel", "redis://" + secret + "@h?x=%zz", "http://h",
	} {
		_, err := ParseURL(bad)
		require.ErrorIs(t, err, rowstore.ErrInvalid, bad)
		require.NotContains(t, err.Error(), secret)
	}
}

// TestURLsKeepSecrets puts passwords with characters that should be encoded, and
// are not, into URLs: neither part of one shows in an error, or ends in a place that
// later errors show.
func TestURLsKeepSecrets(t *testing.T) {
	t.Parallel()
	all := urltest.URLs(
		"redis://u:%s@h:6379/0?prefix=p", "redis://:%s@h", "redis://%s@h", "rediss://u:%s@h", "redis+cluster://u:%s@h1,h2:7000", "redis+sentinel://u:%s@h?master=m",
		"unix://u:%s@/run/x.sock?db=1", "redis://u:%s@h:99999", "redis://u:%s@h/notanumber", "redis://u:%s@h?nope=1", "redis://u:%s@h?pool_size=x",
		"redis+nope://u:%s@h", "rediss://u:%s@h?tls_ca=/does/not/exist", "redis://h?sentinel_password=%s", "redis://h?%s", "redis://h?db=%s", "redis://h?mode=%s",
		"redis://h?read_timeout=%s", "redis://h?partitions=%s", "rediss://h?tls_ca=%s", "rediss://h?tls_cert=%s&tls_key=x", "redis://h?coalesce=%s", "redis://h?addr=%s@h", "redis://h/%s",
		"redis://h?prefix={%s", "redis://h?db=1&%s=2", "redis:%s@h", "%s",
	)
	for _, raw := range all {
		if path, ok := strings.CutPrefix(raw, "redis://h/"); ok && slices.Contains([]string{urltest.One + "@", urltest.One + "/@", "@", "/@"}, strings.TrimSuffix(path, urltest.Two)) {
			continue // What stands behind the last @ is the host.
		}
		o, err := ParseURL(raw)
		if err != nil {
			require.ErrorIs(t, err, rowstore.ErrInvalid)
			require.NoError(t, urltest.Shown(err.Error()), raw)
			continue
		}
		for _, a := range o.Addrs {
			require.NoError(t, urltest.Shown(a), raw)
		}
	}
	require.Greater(t, len(all), 500)
}

// An Open that fails half way leaves no row of its probe behind.
func TestFailedOpenLeavesNothing(t *testing.T) {
	t.Parallel()
	url := with(t, testserver.Redis(t))
	s := bare(t, url)
	c := admin(t, url)
	keys := func() []string {
		all, err := c.Keys(t.Context(), "{"+s.opts.Prefix+":*").Result()
		require.NoError(t, err)
		slices.Sort(all)
		return all
	}
	before := keys()
	failed := 0
	for i := range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond+time.Duration(i)*50*time.Microsecond)
		again, err := OpenURL(ctx, url)
		cancel()
		if err == nil {
			require.NoError(t, again.Close())
		} else {
			failed++
		}
	}
	require.Positive(t, failed)
	require.Equal(t, before, keys())
}
