package howto

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/config"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator"
)

// TestStoresOverTLS opens the stores of security.md over TLS, with passwords and certificates in files, and sees that a server with
// another certificate gets nothing.
func TestStoresOverTLS(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("security.md")
	require.NoError(t, err)
	_, file, _ := strings.Cut(string(page), "```yaml\n")
	file, _, found := strings.Cut(file, "```")
	require.True(t, found)

	dir := t.TempDir()
	certificates := tikvtest.NewCertificates(t, dir)
	pg, err := url.Parse(testserver.Postgres(t))
	require.NoError(t, err)
	password, _ := pg.User.Password()
	ledger := serveTLS(t, certificates.Server, pg.Host, true)
	redis, err := url.Parse(testserver.Redis(t))
	require.NoError(t, err)
	secret, _ := redis.User.Password()
	sessions := serveTLS(t, certificates.Server, redis.Host, false)
	// The servers of the tests may have no passwords.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ledger"), []byte(password+"\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sessions"), []byte(secret+"\n"), 0o600))
	replace := []string{
		"db.example:5432", ledger, "cache.example:6380", sessions, "/etc/shop/app", filepath.Join(dir, "client"), "/etc/shop", dir, "/run/secrets", dir, "path: shop", "path: " + strings.TrimPrefix(pg.Path, "/"),
		"sslmode: verify-full", "sslmode: verify-full\n      schema: tls", "tls_ca:", "prefix: tls\n      tls_ca:",
	}
	user := func(section string, u *url.URL, password string) {
		head, rest, found := strings.Cut(file, section)
		require.True(t, found)
		name := "    user: app\n    password: ${file:/run/secrets/" + strings.TrimSpace(strings.TrimSuffix(section, ":\n")) + "}\n"
		require.Contains(t, rest, name)
		switch {
		case u.User.Username() == "":
			rest = strings.Replace(rest, name, "", 1)
		case password == "":
			rest = strings.Replace(rest, name, "    user: "+u.User.Username()+"\n", 1)
		default:
			rest = strings.Replace(rest, "user: app", "user: "+u.User.Username(), 1)
		}
		file = head + section + rest
	}
	user("ledger:\n", pg, password)
	user("sessions:\n", redis, secret)
	path := filepath.Join(dir, "percolator.yaml")
	require.NoError(t, os.WriteFile(path, []byte(strings.NewReplacer(replace...).Replace(file)), 0o600))

	ctx := t.Context()
	db, err := config.Open(ctx, path)
	require.NoError(t, err)
	cell := percolator.Cell{Table: "t", Row: "r", Column: "c"}
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(cell, []byte("v")) }))
	require.NoError(t, db.Close(ctx))

	// The same name, and a certificate of somebody else's.
	stranger, err := os.ReadFile(tikvtest.NewCertificates(t, t.TempDir()).CA)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(certificates.CA, stranger, 0o600))
	_, err = config.Open(ctx, path)
	require.ErrorContains(t, err, "not trusted")
}

// serveTLS speaks TLS in front of a server that does not, and returns its address. Clients of Postgres first ask whether there is TLS.
func serveTLS(t *testing.T, conf *tls.Config, server string, asked bool) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	ctx := t.Context() // it ends before the cleanup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				defer stop()
				if asked {
					question := make([]byte, 8)
					if _, err := io.ReadFull(c, question); err != nil || !bytes.Equal(question, []byte{0, 0, 0, 8, 4, 210, 22, 47}) {
						_ = c.Close() // no TLS, no service
						return
					}
					_, _ = c.Write([]byte("S"))
				}
				relay(ctx, tls.Server(c, conf), server)
			})
		}
	})
	return l.Addr().String()
}

// relay passes bytes on until one side ends.
func relay(ctx context.Context, c net.Conn, server string) {
	defer func() { _ = c.Close() }()
	s, err := (&net.Dialer{}).DialContext(ctx, "tcp", server)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(s, c); _ = s.Close() })
	both.Go(func() { _, _ = io.Copy(c, s); _ = c.Close() })
	both.Wait()
}
