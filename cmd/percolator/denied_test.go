package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestAccessDenied has wrong passwords and certificates. Each command says that access was denied, by the exit status of that kind, and shows no password.
func TestAccessDenied(t *testing.T) {
	t.Parallel()
	const wrong = "geheim"
	stores := map[string]func(t *testing.T) string{
		"redis": func(t *testing.T) string {
			t.Helper()
			srv := testserver.NewRedis(t, map[string]string{"requirepass": "right"})
			return fmt.Sprintf("redis://:%s@%s:%d", wrong, srv.Host, srv.Port)
		},
		"redis without one": func(t *testing.T) string {
			t.Helper()
			return testserver.NewRedis(t, map[string]string{"requirepass": "right"}).URL
		},
		"postgres": func(t *testing.T) string {
			t.Helper()
			return strings.Replace(testserver.Postgres(t), testserver.PostgresPassword, wrong, 1)
		},
		"tikv": func(t *testing.T) string {
			t.Helper()
			ours, theirs := tikvtest.NewCertificates(t, t.TempDir()), tikvtest.NewCertificates(t, t.TempDir())
			c := tikvtest.New(t, tikvtest.Options{TLS: ours.Server})
			return c.URL() + "?" + url.Values{"tls_ca": {theirs.CA}, "tls_cert": {theirs.Cert}, "tls_key": {theirs.Key}}.Encode()
		},
	}
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := store(t)
			for _, args := range [][]string{{"tables"}, {"set", "--new", "t", "r", "c", "v"}, {"migrate", "check"}} {
				a := ask(t, u, args...)
				require.Equal(t, exitDenied, a.status, "%q: %s%s", args, a.out, a.err)
				require.Contains(t, a.err, "access denied", "%q", args)
				require.NotContains(t, a.out+a.err, wrong)
			}
			a := ask(t, u, "doctor")
			require.Equal(t, exitFindings, a.status, a.err)
			require.Contains(t, a.out, "the right password")
			require.NotContains(t, a.out+a.err, wrong)
		})
	}
}

// TestNoSuchDatabase names a database that the server does not have. That is a mistake in the arguments, whatever the command.
func TestNoSuchDatabase(t *testing.T) {
	t.Parallel()
	u := strings.Replace(testserver.Postgres(t), "/postgres?", "/nowhere?", 1)
	for _, args := range [][]string{{"doctor"}, {"tables"}, {"set", "--new", "t", "r", "c", "v"}, {"migrate", "run", "--make"}} {
		a := ask(t, u, args...)
		require.Equal(t, exitUsage, a.status, "%q: %s%s", args, a.out, a.err)
		require.Contains(t, a.err, "make it by CREATE DATABASE", "%q", args)
	}
}

// TestStatusOfDenied has stores that deny a call in the middle. What became of a change is said first; otherwise it is of no use to go on trying.
func TestStatusOfDenied(t *testing.T) {
	t.Parallel()
	denied := errors.Join(rowstore.ErrAmbiguous, rowstore.ErrDenied)
	require.Equal(t, exitDenied, statusOf(t.Context(), denied))
	require.Equal(t, exitConflict, statusOf(t.Context(), errors.Join(percolator.ErrUndetermined, denied)))
	require.Equal(t, exitConflict, statusOf(t.Context(), rowstore.ErrAmbiguous))
}
