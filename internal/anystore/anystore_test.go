package anystore

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/tikv/client-go/v2/config"
	"github.com/tikv/client-go/v2/rawkv"

	_ "github.com/percolate-go/percolate/backends/all"
	"github.com/percolate-go/percolate/backends/redis"
	"github.com/percolate-go/percolate/backends/tikvraw"
	"github.com/percolate-go/percolate/conformance"
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

var (
	storeFlag = flag.String("store", "", "URL of the store to run the suite against")
	scaleFlag = flag.Float64("scale", 1, "how much the tests repeat")
)

func TestMain(m *testing.M) { testserver.Main(m, tikvtest.Leaks()...) }

// TestConformance is the suite against the store that -store names.
func TestConformance(t *testing.T) {
	if *storeFlag == "" {
		t.Skip("no store is named: this is run by make conformance STORE=URL")
	}
	t.Parallel()
	require.NoError(t, reach(t.Context(), *storeFlag), "the store cannot be used, so the suite is not run")
	conformance.Run(t, func(t testing.TB) rowstore.Store {
		where, remove, err := space(*storeFlag)
		require.NoError(t, err)
		atend.Do(t, func() { require.NoError(t, remove(context.WithoutCancel(t.Context()))) })
		s, err := rowstore.Open(t.Context(), where)
		require.NoError(t, err)
		atend.Do(t, func() { _ = s.Close() }) // the suite has, unless it was stopped
		return s
	}, conformance.Scale(*scaleFlag))
}

// reach opens a store as the suite does, and removes it again. So a bad URL, a server that
// is away or a missing permission is said once, and not by each of the suite's tests.
func reach(ctx context.Context, raw string) error {
	where, remove, err := space(raw)
	if err != nil {
		return err
	}
	s, err := rowstore.Open(ctx, where)
	if err != nil {
		return err
	}
	return errors.Join(s.Close(), remove(ctx))
}

// space makes the URL of a name space that nobody has in the store that raw names.
// remove removes what is there then, and nothing else.
func space(raw string) (where string, remove func(context.Context) error, err error) {
	scheme, rest, found := strings.Cut(raw, ":")
	if !found {
		return "", nil, fmt.Errorf("the store %q has no scheme", raw)
	}
	name := "conformance" + strings.ToLower(rand.Text()[:16])
	scheme, _, _ = strings.Cut(scheme, "+")
	switch scheme {
	case "memory":
		return raw, func(context.Context) error { return nil }, nil
	case "pebble":
		path, params, _ := strings.Cut(rest, "?")
		if err := os.MkdirAll(path, 0o750); err != nil {
			return "", nil, err
		}
		dir := filepath.Join(path, name)
		return "pebble:" + dir + "?" + params, func(context.Context) error { return os.RemoveAll(dir) }, nil
	case "redis", "rediss", "unix":
		o, err := redis.ParseURL(raw)
		if err != nil {
			return "", nil, err
		}
		where, err := setParameter(raw, "prefix", name)
		return where, func(ctx context.Context) error { return removeKeys(ctx, o, name) }, err
	case "postgres", "postgresql":
		where, err := setParameter(raw, "schema", name)
		return where, func(ctx context.Context) error { return removeSchema(ctx, raw, name) }, err
	case "tikv":
		o, err := tikvraw.ParseURL(raw)
		if err != nil {
			return "", nil, err
		}
		where, err := setParameter(raw, "prefix", name)
		return where, func(ctx context.Context) error { return removeRange(ctx, o, name) }, err
	}
	return "", nil, fmt.Errorf("no way is known to make a name space of its own in a store of scheme %q", scheme)
}

func setParameter(raw, name, value string) (string, error) {
	front, query, _ := strings.Cut(raw, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return "", errors.New("the parameters of the store's URL cannot be read") // err would show them
	}
	q.Set(name, value)
	return front + "?" + q.Encode(), nil
}

// removeKeys removes every key of a prefix, from each server of a Cluster.
func removeKeys(ctx context.Context, o redis.Options, prefix string) error {
	remove := func(ctx context.Context, c *goredis.Client) error {
		keys := c.Scan(ctx, 0, "{"+prefix+":*", 1000).Iterator()
		for keys.Next(ctx) {
			if err := c.Unlink(ctx, keys.Val()).Err(); err != nil {
				return err
			}
		}
		return keys.Err()
	}
	if o.Mode == redis.Cluster {
		c := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: o.Addrs, Username: o.Username, Password: o.Password, TLSConfig: o.TLS})
		return errors.Join(c.ForEachMaster(ctx, remove), c.Close())
	}
	var c *goredis.Client
	if o.Mode == redis.Sentinel {
		c = goredis.NewFailoverClient(&goredis.FailoverOptions{
			MasterName: o.MasterName, SentinelAddrs: o.Addrs, SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword,
			Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLS,
		})
	} else {
		network := "tcp"
		if strings.HasPrefix(o.Addrs[0], "/") {
			network = "unix"
		}
		c = goredis.NewClient(&goredis.Options{
			Network: network, Addr: o.Addrs[0], Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLS,
		})
	}
	return errors.Join(remove(ctx, c), c.Close())
}

// removeRange removes every key of a prefix from a TiKV cluster.
func removeRange(ctx context.Context, o tikvraw.Options, prefix string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	version := map[tikvraw.API]kvrpcpb.APIVersion{tikvraw.V2: kvrpcpb.APIVersion_V2, tikvraw.V1TTL: kvrpcpb.APIVersion_V1TTL}[o.API]
	c, err := rawkv.NewClientWithOpts(ctx, o.PDAddrs,
		rawkv.WithAPIVersion(version), rawkv.WithKeyspace(o.Keyspace), rawkv.WithSecurity(config.NewSecurity(o.CA, o.Cert, o.Key, nil)))
	if err != nil {
		return err
	}
	c.SetAtomicForCAS(true)
	from, to := []byte(prefix+"\x00"), []byte(prefix+"\x01")
	for {
		keys, _, err := c.Scan(ctx, from, to, 1000, rawkv.ScanKeyOnly())
		if err == nil {
			err = c.BatchDelete(ctx, keys)
		}
		if err != nil || len(keys) == 0 {
			return errors.Join(err, c.Close())
		}
		from = keys[len(keys)-1]
	}
}

func removeSchema(ctx context.Context, raw, schema string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	front, query, _ := strings.Cut(raw, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("the parameters of the store's URL cannot be read")
	}
	for name := range q { // those of the store and of its pool are not the server's
		if strings.HasPrefix(name, "pool_") || name == "schema" || name == "listen" || name == "coalesce" || strings.HasPrefix(name, "max_") {
			q.Del(name)
		}
	}
	conn, err := pgx.Connect(ctx, front+"?"+q.Encode())
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE", pgx.QueryExecModeSimpleProtocol)
	return errors.Join(err, conn.Close(ctx))
}

// write puts something into a store, of each kind that has a place of its own.
func write(t *testing.T, where string) {
	t.Helper()
	s, err := rowstore.Open(t.Context(), where)
	require.NoError(t, err)
	out, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, "c", 1, nil), rowstore.Put(rowstore.Write, "c", 2, nil),
		rowstore.Put(rowstore.Data, "c", 1, make([]byte, 1000)), rowstore.Put(rowstore.Notify, "c", 2, nil),
	}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.NoError(t, out[0].Err)
	require.NoError(t, s.Close())
}

func TestSpaceIsRemovedFromRedis(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func() (string, []*testserver.Server){
		"Standalone": func() (string, []*testserver.Server) {
			s := testserver.NewRedis(t, nil)
			return s.URL, []*testserver.Server{s}
		},
		"Cluster": func() (string, []*testserver.Server) {
			c := testserver.NewRedisCluster(t, nil)
			return c.URL, c.Nodes
		},
	} {
		raw, servers := start()
		keys := func() (n int64) {
			for _, s := range servers {
				o, err := goredis.ParseURL(s.URL)
				require.NoError(t, err)
				c := goredis.NewClient(o)
				n += c.DBSize(t.Context()).Val()
				require.NoError(t, c.Close())
			}
			return n
		}
		mine, _, err := space(raw)
		require.NoError(t, err)
		write(t, mine)
		before := keys()
		require.Positive(t, before, name)
		other, remove, err := space(raw)
		require.NoError(t, err)
		write(t, other)
		require.Greater(t, keys(), before, name)
		require.NoError(t, remove(t.Context()))
		require.Equal(t, before, keys(), name)
	}
}

func TestSpaceIsRemovedFromPostgres(t *testing.T) {
	t.Parallel()
	raw := testserver.NewPostgres(t, nil).URL
	schemas := func() (n int) {
		conn, err := pgx.Connect(t.Context(), raw)
		require.NoError(t, err)
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace").Scan(&n))
		require.NoError(t, conn.Close(t.Context()))
		return n
	}
	mine, _, err := space(raw)
	require.NoError(t, err)
	write(t, mine)
	before := schemas()
	other, remove, err := space(raw + "&pool_max_conns=3&coalesce=off")
	require.NoError(t, err)
	write(t, other)
	require.Equal(t, before+1, schemas())
	require.NoError(t, remove(t.Context()))
	require.Equal(t, before, schemas())
}

func TestSpaceIsRemovedFromTiKV(t *testing.T) {
	t.Parallel()
	for _, api := range []kvrpcpb.APIVersion{kvrpcpb.APIVersion_V1, kvrpcpb.APIVersion_V2} {
		c := tikvtest.New(t, tikvtest.Options{API: api})
		raw := c.URL() + "?api=" + strings.ToLower(api.String())
		mine, _, err := space(raw)
		require.NoError(t, err)
		write(t, mine)
		before, _ := c.Keys(nil, nil)
		require.NotEmpty(t, before)
		c.Split(before[len(before)/2])
		other, remove, err := space(raw)
		require.NoError(t, err)
		write(t, other)
		more, _ := c.Keys(nil, nil)
		require.Greater(t, len(more), len(before))
		require.NoError(t, remove(t.Context()))
		left, _ := c.Keys(nil, nil)
		require.Equal(t, before, left)
	}
}

func TestSpaceIsRemovedFromDisk(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	where, remove, err := space("pebble:" + dir)
	require.NoError(t, err)
	write(t, where)
	require.NoError(t, remove(t.Context()))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestUnknownStores(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"", "shop", "nonsense://user:secret@host", "redis://host?what=secret"} {
		_, _, err := space(raw)
		require.Error(t, err, raw)
		require.NotContains(t, err.Error(), "secret")
	}
}
