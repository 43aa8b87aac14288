package redis

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

func TestOptionsBounds(t *testing.T) {
	t.Parallel()
	one := []string{"h:1"}
	for name, c := range map[string]struct {
		opts Options
		fine bool
	}{
		"longest prefix":      {Options{Addrs: one, Prefix: strings.Repeat("p", 128)}, true},
		"a longer prefix":     {Options{Addrs: one, Prefix: strings.Repeat("p", 129)}, false},
		"an opening brace":    {Options{Addrs: one, Prefix: "a{b"}, false},
		"a closing brace":     {Options{Addrs: one, Prefix: "a}b"}, false},
		"most partitions":     {Options{Addrs: one, Partitions: maxPartitions}, true},
		"more partitions":     {Options{Addrs: one, Partitions: maxPartitions + 1}, false},
		"partitions below 0":  {Options{Addrs: one, Partitions: -1}, false},
		"longest timeouts":    {Options{Addrs: one, DialTimeout: maxTimeout, ReadTimeout: maxTimeout, WriteTimeout: maxTimeout}, true},
		"a longer dial":       {Options{Addrs: one, DialTimeout: maxTimeout + 1}, false},
		"a longer read":       {Options{Addrs: one, ReadTimeout: maxTimeout + 1}, false},
		"a longer write":      {Options{Addrs: one, WriteTimeout: maxTimeout + 1}, false},
		"a shorter dial":      {Options{Addrs: one, DialTimeout: time.Microsecond}, false},
		"a negative timeout":  {Options{Addrs: one, ReadTimeout: -1}, false},
		"a database below 0":  {Options{Addrs: one, DB: -1}, false},
		"a pool below 0":      {Options{Addrs: one, PoolSize: -1}, false},
		"no address":          {Options{}, false},
		"an empty address":    {Options{Addrs: []string{"h:1", ""}}, false},
		"two for one server":  {Options{Addrs: []string{"h:1", "h:2"}, Mode: Standalone}, false},
		"another mode":        {Options{Addrs: one, Mode: "ring"}, false},
		"a Cluster's db":      {Options{Addrs: one, Mode: Cluster, DB: 1}, false},
		"a server's database": {Options{Addrs: one, DB: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := c.opts.complete(); c.fine {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, rowstore.ErrInvalid)
			}
		})
	}
}

func TestURLsThatContradict(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		"redis+cluster://h/?mode=sentinel", "redis://h/1?db=1", "redis://h/?tls_server_name=x", "redis://h/?tls_ca=x", "rediss://h/?tls_cert=x", "rediss://h/?tls_key=x",
		"redis://h:0/", "redis://h:65536/", "redis://h/?prefix=a@b", "redis://h/#x", "redis://h/?coalesce=no", "redis://h/?partitions=0",
	} {
		t.Run(bad, func(t *testing.T) {
			t.Parallel()
			_, err := ParseURL(bad)
			require.ErrorIs(t, err, rowstore.ErrInvalid)
		})
	}
	o, err := ParseURL("redis://h:65535/?coalesce=off")
	require.NoError(t, err)
	require.True(t, o.NoCoalesce)
	o, err = ParseURL("rediss://h/")
	require.NoError(t, err)
	require.Equal(t, "h", o.TLS.ServerName)
}

// TestNewTakesNoConnection sets each option that says how to reach the servers, over a client
// that is never used.
func TestNewTakesNoConnection(t *testing.T) {
	t.Parallel()
	c := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"})
	defer func() { require.NoError(t, c.Close()) }()
	for name, o := range map[string]Options{
		"Mode": {Mode: Standalone}, "Addrs": {Addrs: []string{"h"}}, "MasterName": {MasterName: "m"}, "Username": {Username: "u"}, "Password": {Password: "p"},
		"SentinelUsername": {SentinelUsername: "u"}, "SentinelPassword": {SentinelPassword: "p"}, "DB": {DB: 1}, "TLS": {TLS: &tls.Config{MinVersion: tls.VersionTLS12}},
		"PoolSize": {PoolSize: 1}, "DialTimeout": {DialTimeout: time.Second},
	} {
		_, err := New(t.Context(), c, o)
		require.ErrorIs(t, err, rowstore.ErrInvalid, name)
		require.ErrorContains(t, err, "Options."+name+" ", name)
	}
	for name, co := range map[string]*goredis.ClusterOptions{
		"reads":  {Addrs: []string{"127.0.0.1:1"}, ReadTimeout: -1},
		"writes": {Addrs: []string{"127.0.0.1:1"}, WriteTimeout: -1},
	} {
		c := goredis.NewClusterClient(co)
		_, err := New(t.Context(), c, Options{})
		require.ErrorIs(t, err, rowstore.ErrInvalid, name)
		require.NoError(t, c.Close())
	}
	var none *goredis.Client
	_, err := New(t.Context(), none, Options{})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	var no *goredis.ClusterClient
	_, err = New(t.Context(), no, Options{})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
}

// A user without a password, whose variable was not set perhaps, is not taken for the server's default user, as whom the driver would log in.
func TestUserWithoutPassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"redis://app@h", "redis://app:@h/0", "unix://app@/run/redis.sock", "redis+cluster://app@h", "redis+sentinel://h?sentinel_user=app"} {
		_, err := ParseURL(url)
		require.ErrorIs(t, err, rowstore.ErrInvalid, url)
		require.ErrorContains(t, err, "has no password")
		require.NotContains(t, err.Error(), "app")
	}
	for _, url := range []string{"redis://default@h", "redis://:secret@h", "redis://app:secret@h", "redis+sentinel://h?sentinel_password=secret"} {
		_, err := ParseURL(url)
		require.NoError(t, err, url)
	}
	_, err := Open(t.Context(), Options{Addrs: []string{"h:1"}, Username: "app"})
	require.ErrorIs(t, err, rowstore.ErrInvalid)
}

// Who names a sentinel's password for a server of another kind means another server.
func TestSentinelsOptionsAreForSentinels(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"redis://h?sentinel_password=secret", "redis+cluster://h?master=main", "redis://h,i?sentinel_user=app&sentinel_password=secret"} {
		_, err := ParseURL(url)
		require.ErrorIs(t, err, rowstore.ErrInvalid, url)
		require.ErrorContains(t, err, "for the mode sentinel")
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := ParseURL("redis+sentinel://h?sentinel_user=app&sentinel_password=secret&master=main")
	require.NoError(t, err)
	_, err = ParseURL("redis://h?mode=sentinel&sentinel_password=secret")
	require.NoError(t, err)
}
