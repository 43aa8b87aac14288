package tikvraw

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/urltest"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	o, err := ParseURL("tikv://pd1:1234,pd2,[::1]:99,[::2]/?prefix=shop&api=v2&keyspace=main&oracle=store" +
		"&request_timeout=2s&patience=3s&cache_size=1048576&max_key=8192&max_entry=1000000&sweep=1h")
	require.NoError(t, err)
	require.Equal(t, []string{"pd1:1234", "pd2:2379", "[::1]:99", "[::2]:2379"}, o.PDAddrs)
	o.PDAddrs, o.clock, o.staleAfter, o.formatEvery, o.sizes = nil, nil, 0, 0, sizes{}
	require.Equal(t, Options{
		Prefix: "shop", API: V2, Keyspace: "main", Oracle: OracleStore, RequestTimeout: 2 * time.Second, Patience: 3 * time.Second,
		CacheSize: 1 << 20, MaxKey: 8 << 10, MaxEntry: 1_000_000, SweepEvery: time.Hour,
	}, o)

	o, err = ParseURL("tikv://pd?sweep=off")
	require.NoError(t, err)
	require.Equal(t, defaultPrefix, o.Prefix)
	require.Equal(t, V1, o.API)
	require.Equal(t, 5*time.Second, o.RequestTimeout)
	require.Negative(t, o.SweepEvery)

	for _, raw := range []string{
		"", "redis://pd", "tikv:pd", "tikv://", "tikv://?prefix=a", "tikv://pd1,,pd2", "tikv://:2379", "tikv://pd:0", "tikv://pd:70000",
		"tikv://pd:x", "tikv://1:2:3", "tikv://pd/shop", "tikv://pd?prefix=", "tikv://pd?prefix=a%00b", "tikv://pd?prefix=a&prefix=b",
		"tikv://pd?nothing=1", "tikv://pd?api=v3", "tikv://pd?keyspace=a", "tikv://pd?oracle=clock", "tikv://pd?request_timeout=1h",
		"tikv://pd?request_timeout=0s", "tikv://pd?patience=0s", "tikv://pd?patience=1h", "tikv://pd?patience=x", "tikv://pd?request_timeout=-1s", "tikv://pd?request_timeout=1", "tikv://pd?cache_size=0",
		"tikv://pd?cache_size=x", "tikv://pd?max_key=10", "tikv://pd?max_entry=10", "tikv://pd?sweep=1s", "tikv://pd?sweep=0s",
		"tikv://pd?%zz", "tikv://pd?prefix=shop#1", "tikv://pd?prefix=shop#1&tls_ca=/ca.pem", "tikv://pd?tls_ca=/nowhere", "tikv://pd?tls_cert=/nowhere",
	} {
		_, err := ParseURL(raw)
		require.ErrorIs(t, err, rowstore.ErrInvalid, raw)
	}
	_, err = ParseURL("tikv://me:secret@pd")
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	require.NotContains(t, err.Error(), "secret")

	// Files that are there and hold something else.
	dir := t.TempDir()
	file := filepath.Join(dir, "ca.pem")
	require.NoError(t, os.WriteFile(file, []byte("no certificate"), 0o600))
	_, err = ParseURL("tikv://pd?tls_ca=" + file + "&tls_cert=" + file + "&tls_key=" + file)
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	require.ErrorContains(t, err, file)

	_, err = Open(t.Context(), Options{})
	require.ErrorIs(t, err, rowstore.ErrInvalid, "no address")
}

// TestURLsKeepSecrets puts a password wherever somebody may write one: it is in no error and in no address.
func TestURLsKeepSecrets(t *testing.T) {
	t.Parallel()
	all := urltest.URLs(
		"tikv://u:%s@pd", "tikv://%s@pd", "tikv://:%s@pd1,pd2", "tikv://u:%s@pd?prefix=p", "tikv://u:%s@pd:99999", "tikv://u:%s@pd/x", "tikv://u:%s@[::1]:2379",
		"tikv://pd?%s", "tikv://pd?%s=1", "tikv://pd?api=%s", "tikv://pd?api=v2&keyspace=a&oracle=%s", "tikv://pd?request_timeout=%s", "tikv://pd?patience=%s",
		"tikv://pd?cache_size=%s", "tikv://pd?max_key=%s", "tikv://pd?sweep=%s", "tikv://pd?tls_ca=%s", "tikv://pd?tls_cert=%s&tls_key=x", "tikv://pd?password=%s", "tikv:%s@pd", "%s",
	)
	for _, raw := range all {
		o, err := ParseURL(raw)
		if err != nil {
			require.ErrorIs(t, err, rowstore.ErrInvalid, raw)
			require.NoError(t, urltest.Shown(err.Error()), raw)
			continue
		}
		for _, a := range o.PDAddrs {
			require.NoError(t, urltest.Shown(a), raw)
		}
	}
	require.Greater(t, len(all), 500)
}
