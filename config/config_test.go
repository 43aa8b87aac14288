package config

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	_ "github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/percolator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func env(name string) (string, bool) {
	v, ok := map[string]string{"PASSWORD": "s3:cr/et@", "DIR": "/data", "EMPTY": ""}[name]
	return v, ok
}

func TestErrorsNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ file, want string }{
		"unknown key":          {"stores:\n  main: {url: 'memory:'}\nfoo: 1\n", "[3:1]"},
		"unknown nested key":   {"stores:\n  main:\n    url: 'memory:'\n    foo: 1\n", "[4:5]"},
		"wrong type":           {"stores:\n  main: {url: 'memory:'}\nlimits:\n  row: many\n", "[4:"},
		"bad duration":         {"stores:\n  main: {url: 'memory:'}\nsession_lease: soon\n", "not a duration"},
		"negative duration":    {"stores:\n  main: {url: 'memory:'}\nsession_lease: -1s\n", "negative"},
		"no stores":            {"default: main\n", "stores: there is none"},
		"empty file":           {"", "stores: there is none"},
		"default":              {"stores:\n  main: {url: 'memory:'}\ndefault: other\n", "default: there is no store \"other\" (there are: main)"},
		"authoritative":        {"stores:\n  a: {url: 'memory:'}\n  b: {url: 'memory:'}\n", "authoritative: with several stores"},
		"table's store":        {"stores:\n  a: {url: 'memory:'}\ntables: {x: y}\n", "tables.x: there is no store \"y\""},
		"variable not set":     {"stores:\n  a: {url: 'pebble:${NOWHERE}'}\n", "the environment variable NOWHERE is not set"},
		"half a variable":      {"stores:\n  a: {url: 'pebble:${DIR'}\n", "stores.a: a ${"},
		"url and parts":        {"stores:\n  a: {url: 'memory:', path: x}\n", "a url and also a scheme"},
		"nothing":              {"stores:\n  a: {}\n", "neither a url nor a scheme"},
		"password twice":       {"stores:\n  a: {url: 'redis://u:p@h', password: q}\n", "the password is given in the url and beside it"},
		"user without server":  {"stores:\n  a: {url: 'pebble:/x', user: q}\n", "without a server"},
		"path with a query":    {"stores:\n  a: {scheme: pebble, path: 'a?b'}\n", "path: it holds a ?"},
		"address with a user":  {"stores:\n  a: {scheme: redis, addresses: ['u:p@h:1']}\n", "not of the form host:port"},
		"blank address":        {"stores:\n  a: {scheme: redis, addresses: ['h1:1', ' ', 'h2:2']}\n", "addresses: one of them is empty"},
		"empty address":        {"stores:\n  a:\n    scheme: redis\n    addresses:\n    - h1:1\n    -\n    - h2:2\n", "addresses: one of them is empty"},
		"only empty addresses": {"stores:\n  a: {scheme: redis, addresses: ['']}\n", "addresses: one of them is empty"},
		"table without a name": {"stores:\n  a: {url: 'memory:'}\n  b: {url: 'memory:'}\nauthoritative: a\ntables: {'': a}\n", "tables: a table's name is empty"},
		"store without a name": {"stores:\n  a: {url: 'memory:'}\n  '': {url: 'memory:'}\nauthoritative: a\n", "stores: a store's name is empty"},
		"store with a zero":    {"stores:\n  a: {url: 'memory:'}\n  \"b\\0\": {url: 'memory:'}\nauthoritative: a\n", "stores: a store's name"},
		"isolation":            {"stores:\n  a: {url: 'memory:'}\nisolation: none\n", "neither snapshot nor serializable"},
		"negative limit":       {"stores:\n  a: {url: 'memory:'}\nlimits: {row: -1}\n", "negative"},
		"not YAML":             {"stores: [", "["},
		"a store of no schema": {"stores: main\n", "[1:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(c.file), env)
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "s3:cr")
		})
	}
}

// TestByteOrderMark: editors of Windows begin a file with it.
func TestByteOrderMark(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"stores:\n  main: {url: 'memory:'}\n", "# a comment\nstores:\n  main: {url: 'memory:'}\n", "---\nstores:\n  main: {url: 'memory:'}\n"} {
		f, err := Parse([]byte("\ufeff"+file), env)
		require.NoError(t, err)
		require.Equal(t, map[string]Store{"main": {URL: "memory:"}}, f.Stores)
	}
	_, err := Parse([]byte("\ufeffstores:\n  main: {url: 'memory:'}\nfoo: 1\n"), env)
	require.ErrorContains(t, err, "[3:1]")
}

func TestURLs(t *testing.T) {
	t.Parallel()
	for want, file := range map[string]string{
		"memory:":          "url: 'memory:'",
		"pebble:/data/$x":  "url: 'pebble:${DIR}/$$x'",
		"pebble:/data?a=b": "{scheme: pebble, path: '${DIR}', parameters: {a: b}}",
		"redis://u:s3%3Acr%2Fet%40@h1:1,h2:2/0?prefix=a%20b":   "{scheme: redis, addresses: ['h1:1', 'h2:2'], path: '0', user: u, password: '${PASSWORD}', parameters: {prefix: a b}}",
		"postgres://u:s3%3Acr%2Fet%40@h/db?sslmode=off&pool=3": "{url: 'postgres://u@h/db?sslmode=off', password: '${PASSWORD}', parameters: {pool: '3'}}",
		"redis://:s3%3Acr%2Fet%40@h":                           "{url: 'redis://h', password: '${PASSWORD}'}",
		"redis://a%40b:p%20q@h/1?x=1":                          "{url: 'redis://a%40b:p%20q@h/1', parameters: {x: '1'}}",
		"postgres://h:1/db":                                    "{scheme: postgres, addresses: ['h:1'], path: db}",
		"tikv://pd1:2379,pd2:2379?api=v2&prefix=shop":          "{scheme: tikv, addresses: ['pd1:2379', 'pd2:2379'], parameters: {prefix: shop, api: v2}}",
	} {
		if file[0] != '{' {
			file = "{" + file + "}"
		}
		f, err := Parse([]byte("stores:\n  a: "+file+"\n"), env)
		require.NoError(t, err, file)
		s := f.Stores["a"]
		got, err := s.url()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestOpenWithoutAFile(t *testing.T) {
	t.Parallel()
	_, err := (*File)(nil).Open(t.Context())
	require.ErrorIs(t, err, ErrInvalid)
	_, err = (&File{}).OpenStore(t.Context())
	require.Error(t, err, "it names no store")
}

func TestOpenTwoStores(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "percolator.yaml")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(path, []byte(`
stores:
  ledger: {scheme: pebble, path: `+dir+`}
  cache: {url: "memory:"}
authoritative: ledger
default: cache
tables:
  account*: ledger
settings: {max_txn_age: 30m, retention: 48h, catalog_lease: 1s}
isolation: serializable
limits: {value: 10}
session_lease: 2s
telemetry: {metrics: true, traces: true}
`), 0o600))
	spans := &spans{all: map[string]bool{}}
	otel.SetTracerProvider(spans)
	db, err := Open(ctx, path)
	require.NoError(t, err)
	require.Equal(t, percolator.Settings{MaxTxnAge: 30 * time.Minute, Retention: 48 * time.Hour, CatalogLease: time.Second}, db.Settings())
	require.Equal(t, 10, db.Limits().Value)
	a, b := percolator.Cell{Table: "accounts", Row: "a", Column: "v"}, percolator.Cell{Table: "other", Row: "b", Column: "v"}
	require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
		if err := tx.Set(a, []byte("1")); err != nil {
			return err
		}
		return tx.Set(b, []byte("2"))
	}))
	require.NoError(t, db.Close(context.Background()))
	require.Contains(t, spans.names(), "percolator.update")
	require.Contains(t, spans.names(), "percolator.store.apply")

	db, err = percolator.Open(ctx, "pebble:"+dir)
	require.NoError(t, err)
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		v, err := tx.Get(ctx, a)
		require.NoError(t, err)
		require.Equal(t, "1", string(v))
		_, err = tx.Get(ctx, b)
		require.ErrorIs(t, err, percolator.ErrNotFound)
		return nil
	}))
	require.NoError(t, db.Close(context.Background()))

	_, err = Open(ctx, filepath.Join(dir, "none.yaml"))
	require.ErrorIs(t, err, os.ErrNotExist)
	f, err := Parse([]byte("stores:\n  a: {url: 'memory:'}\n  b: {url: 'nothing:'}\nauthoritative: a\n"), env)
	require.NoError(t, err)
	_, err = f.Open(ctx)
	require.ErrorContains(t, err, `opening the store "b"`)
	require.ErrorContains(t, err, "memory") // the known schemes are listed
}

// spans notes the names of spans.
type spans struct {
	noop.TracerProvider

	mu  sync.Mutex
	all map[string]bool
}

func (s *spans) Tracer(string, ...trace.TracerOption) trace.Tracer { return &spanNamer{of: s} }

func (s *spans) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.all))
}

type spanNamer struct {
	noop.Tracer

	of *spans
}

func (t *spanNamer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	t.of.mu.Lock()
	t.of.all[name] = true
	t.of.mu.Unlock()
	return t.Tracer.Start(ctx, name, opts...)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("stores:\n  a: {url: 'memory:'}\n"))
	f.Add([]byte("stores: {a: {scheme: redis, addresses: [x], user: u, password: '${PASSWORD}', parameters: {k: v}}}\nlimits: {row: 1}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := Parse(b, env)
		if err != nil {
			return
		}
		for _, s := range file.Stores {
			if _, err := s.url(); err != nil {
				t.Fatalf("a checked file has a store without a URL: %v", err)
			}
		}
		_ = file.Options()
	})
}
