// Package everystore runs a test over each backend, on an empty store of its own, and in processes of its own.
package everystore

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	_ "github.com/percolate-go/percolate/backends/all" // the backends
	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Main is for TestMain of a package that uses this one. In a process that a Role has started, it does what that says, and runs no tests.
func Main(m *testing.M) {
	if !playRole() {
		testserver.Main(m, tikvtest.Leaks()...)
	}
}

// Embedded tells whether a URL is that of an embedded store, which one process at a time may have open.
func Embedded(url string) bool { return strings.HasPrefix(url, pebble+":") }

const (
	memory = "memory"
	pebble = "pebble"
)

func urls(t *testing.T) map[string]func(t *testing.T) string {
	t.Helper()
	space := strings.ToLower(strings.NewReplacer("/", "_").Replace(t.Name()))
	return map[string]func(t *testing.T) string{
		memory:     func(*testing.T) string { return "memory:" },
		pebble:     func(t *testing.T) string { return "pebble:" + filepath.Join(t.TempDir(), "data") },
		"redis":    func(t *testing.T) string { return With(testserver.Redis(t), "prefix="+space) },
		"postgres": func(t *testing.T) string { return With(testserver.Postgres(t), "schema="+space) },
		"tikv": func(t *testing.T) string {
			return With(tikvtest.New(t, tikvtest.Options{}).URL(), "prefix="+space+"&patience=30s&request_timeout=9s")
		},
	}
}

// With adds a parameter, such as "schema=s", to a URL.
func With(url, parameter string) string {
	if strings.Contains(url, "?") {
		return url + "&" + parameter
	}
	return url + "?" + parameter
}

// URLs runs f, in parallel, with the URL of a store of each backend that keeps its data when nobody has it open.
func URLs(t *testing.T, f func(t *testing.T, url string)) {
	t.Helper()
	each(t, f, memory)
}

// Servers is URLs without the embedded stores, which one process at a time may have open.
func Servers(t *testing.T, f func(t *testing.T, url string)) {
	t.Helper()
	each(t, f, memory, pebble)
}

func each(t *testing.T, f func(t *testing.T, url string), but ...string) {
	t.Helper()
	for name, url := range urls(t) {
		if slices.Contains(but, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, url(t))
		})
	}
}

// Pairs runs f, in parallel, over each backend with two handles on the same data: those of two processes, as far as
// the store can tell. An embedded store has one handle, which both share.
func Pairs(t *testing.T, f func(t *testing.T, one, two *percolator.DB), opts ...percolator.Option) {
	t.Helper()
	for name, url := range urls(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := url(t)
			one := open(t, u, opts)
			two := one
			if name != memory && name != pebble {
				two = open(t, u, opts)
			}
			f(t, one, two)
		})
	}
}

func open(t *testing.T, url string, opts []percolator.Option) *percolator.DB {
	t.Helper()
	db, err := percolator.Open(t.Context(), url, opts...)
	require.NoError(t, err)
	return closing(t, db)
}

// Over makes a DB over a store that others may use too. It is closed when the test ends.
func Over(t *testing.T, store rowstore.Store, opts ...percolator.Option) *percolator.DB {
	t.Helper()
	db, err := percolator.New(t.Context(), store, opts...)
	require.NoError(t, err)
	return closing(t, db)
}

func closing(t *testing.T, db *percolator.DB) *percolator.DB {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	atend.Do(t, func() { _ = db.Close(ctx) })
	return db
}
