package erasing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/internal/tikvtest"
	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/recipes/index"
	"github.com/percolate-go/percolate/typed"
)

func TestMain(m *testing.M) { everystore.Main(m) }

// The customer's rows begin with customer, and each value has it too. No bound of the range has it as a whole, because the catalog keeps those.
const (
	customer = "zqannzq"
	other    = "zqbobzq" // stays, so the searches find something
)

var patience = 5 * time.Minute

func cell(row, column string) percolator.Cell {
	return percolator.Cell{Table: "order", Row: row, Column: column}
}

// life is a database in which customers have lived: with history, long values, an observer, an index, timers and parked runs.
type life struct {
	db *percolator.DB
}

var options = []percolator.Option{
	percolator.WithSettings(percolator.Settings{CatalogLease: 500 * time.Millisecond, MaxTxnAge: time.Minute, Retention: 24 * time.Hour}),
	percolator.WithLogger(slog.New(slog.DiscardHandler)), // it tells of parked runs
}

func open(t *testing.T, url string) *percolator.DB {
	t.Helper()
	db, err := percolator.Open(t.Context(), url, options...)
	require.NoError(t, err)
	return db
}

// lived has customers live, and returns once everything has settled.
func lived(t *testing.T, db *percolator.DB) *life {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l := &life{db: db}
	value := typed.Column[string]{Table: "order", Name: "mail", Codec: typed.Text[string]{}}
	mail, err := index.New(l.db, "by mail", value, func(_ string, v string) ([]keys.Key, error) { return []keys.Key{keys.Key("").Text(v)}, nil }, index.Options{})
	require.NoError(t, err)
	_, err = mail.Build(ctx, index.Pace{})
	require.NoError(t, err)
	l.work(t, func(w *percolator.Worker) {
		for i := range 4 {
			for _, name := range []string{customer, other} {
				for n := range 3 {
					row := fmt.Sprintf("%s/%d", name, n)
					require.NoError(t, l.db.Update(ctx, func(tx *percolator.Txn) error {
						return errors.Join(
							tx.Set(cell(row, "short"), []byte(name)),
							tx.Set(cell(row, "long"), []byte(strings.Repeat(name, 1000))),
							tx.Set(cell(row, "bad"), []byte(name)),
							tx.Set(cell(row, "mail"), []byte(fmt.Sprint(name, i))))
					}))
				}
			}
		}
		require.NoError(t, l.db.Update(ctx, func(tx *percolator.Txn) error {
			return errors.Join(tx.NotifyAfter(ctx, cell(customer+"/0", "short"), time.Hour), tx.NotifyAfter(ctx, cell(other+"/0", "short"), time.Hour))
		}))
		require.NoError(t, w.WaitIdle(ctx))
		runs, err := l.db.Parked(ctx)
		require.NoError(t, err)
		require.NotEmpty(t, runs)
		require.NoError(t, l.db.DropParked(ctx, runs...))
	})
	return l
}

// work runs f beside a worker.
func (l *life) work(t *testing.T, f func(w *percolator.Worker)) {
	t.Helper()
	w := percolator.NewWorker(l.db, percolator.WorkerConfig{GCInterval: -1, Rescan: 100 * time.Millisecond})
	run := func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }
	require.NoError(t, w.Observe(percolator.Observer{Name: "short", Table: "order", Column: "short", Func: run}))
	require.NoError(t, w.Observe(percolator.Observer{Name: "long", Table: "order", Column: "long", OnChange: func(_ context.Context, tx *percolator.Txn, c percolator.Change) error {
		return tx.Set(percolator.Cell{Table: "derived", Row: "last", Column: "v"}, []byte("x"))
	}}))
	require.NoError(t, w.Observe(percolator.Observer{Name: "bad", Table: "order", Column: "bad", MaxAttempts: 1, Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
		if _, err := tx.Get(ctx, c); err != nil {
			return nil //nolint:nilerr // it is deleted
		}
		return errors.New("no: " + c.Row)
	}}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
	}()
	// What asks for runs by name needs the observers in the catalog.
	require.Eventually(t, func() bool {
		infos, err := l.db.Observers(ctx)
		names := map[string]bool{}
		for _, info := range infos {
			names[info.Name] = true
		}
		return err == nil && names["short"] && names["long"] && names["bad"]
	}, patience, time.Millisecond)
	f(w)
}

// erase erases the customer, and closes the database.
func (l *life) erase(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l.work(t, func(w *percolator.Worker) {
		require.NoError(t, w.WaitIdle(ctx))
		receipt, err := l.db.Erase(ctx, percolator.Range{Table: "order", From: customer[:5], To: percolator.PrefixEnd(customer[:5])})
		require.NoError(t, err)
		require.EqualValues(t, 3, receipt.Rows)
		require.EqualValues(t, 12, receipt.Cells)
		require.Zero(t, receipt.Kept)
	})
	require.NoError(t, l.db.View(ctx, func(tx *percolator.Txn) error {
		v, err := tx.Get(ctx, cell(other+"/2", "long"))
		require.Len(t, v, 1000*len(other))
		return err
	}))
	require.NoError(t, l.db.Close(ctx))
}

// search tells of places with the customer in them. Places must have the other customer somewhere.
type search struct {
	found []string
	alive bool
}

func (s *search) look(place string, b []byte) {
	if i := bytes.Index(b, []byte(customer)); i >= 0 {
		s.found = append(s.found, fmt.Sprintf("%s: %q", place, b[max(0, i-40):min(len(b), i+60)]))
	}
	s.alive = s.alive || bytes.Contains(b, []byte(other))
}

func (s *search) files(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path) //nolint:gosec // a file of the test
		s.look(filepath.Base(path), b)
		return err
	}))
}

func (s *search) nothing(t *testing.T) {
	t.Helper()
	require.Empty(t, s.found)
	require.True(t, s.alive, "the search finds what stays")
}

func TestPebble(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	first, db := openPebble(t, dir)
	l := lived(t, db)
	l.erase(t)
	require.NoError(t, first.Close())
	old := &search{}
	old.files(t, dir)
	require.NotEmpty(t, old.found, "the files have it until they are compacted")
	second, db := openPebble(t, dir)
	store, ok := rowstore.Unwrap[*pebble.Store](db.Store())
	require.True(t, ok)
	require.NoError(t, store.Compact(t.Context()))
	require.NoError(t, db.Close(t.Context()))
	require.NoError(t, second.Close())
	// Opened again, it removes its logs. The list of its files, which has the first and the last key of each, is written anew by
	// each opening, and the one before is kept.
	s := &search{}
	for range 2 {
		again, db := openPebble(t, dir)
		every(t, db.Store(), s)
		require.NoError(t, db.Close(t.Context()))
		require.NoError(t, again.Close())
	}
	s.files(t, dir)
	s.nothing(t)
}

// openPebble opens a store whose files are not compressed, so that what is in them can be seen.
func openPebble(t *testing.T, dir string) (*engine.DB, *percolator.DB) {
	t.Helper()
	o := &engine.Options{FormatMajorVersion: engine.FormatValueSeparation}
	o.ApplyCompressionSettings(func() engine.DBCompressionSettings { return engine.DBCompressionNone })
	e, err := engine.Open(dir, o)
	require.NoError(t, err)
	store, err := pebble.New(t.Context(), e, pebble.Options{})
	require.NoError(t, err)
	db, err := percolator.New(t.Context(), store, options...)
	require.NoError(t, err)
	return e, db
}

// every searches everything that a store shows.
func every(t *testing.T, store rowstore.Store, s *search) {
	t.Helper()
	var picks []rowstore.Selector
	for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark, rowstore.Notify} {
		picks = append(picks, rowstore.Selector{Family: f, Column: rowstore.AllColumns, To: oracle.Max})
	}
	for table, err := range store.Tables(t.Context()) {
		require.NoError(t, err)
		for row, err := range store.Scan(t.Context(), rowstore.ScanRange{Table: table, Selectors: picks}) {
			require.NoError(t, err)
			s.look("table "+table, []byte(row.Row))
			for i := range row.Versions {
				v := &row.Versions[i]
				s.look(fmt.Sprintf("table %q row %q column %q", table, row.Row, v.Column), append([]byte(v.Column+" "), v.Value...))
			}
		}
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "erasing") //nolint:usetesting // the account of the server owns a folder in it
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o777)) //nolint:gosec // for the server
	url := testserver.NewRedis(t, map[string]string{"dir": dir, "rdbcompression": "no"}).URL
	l := lived(t, open(t, everystore.With(url, "prefix=erasing")))
	l.erase(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o, err := goredis.ParseURL(url)
	require.NoError(t, err)
	client := goredis.NewClient(o)
	defer func() { require.NoError(t, client.Close()) }()
	s := &search{}
	iter := client.Scan(ctx, 0, "*", 100).Iterator()
	for iter.Next(ctx) {
		s.look("key", []byte(iter.Val()))
		dump, err := client.Dump(ctx, iter.Val()).Result()
		require.NoError(t, err)
		s.look("key "+iter.Val(), []byte(dump))
	}
	require.NoError(t, iter.Err())
	s.nothing(t)

	old := &search{}
	old.files(t, dir)
	require.NotEmpty(t, old.found, "the append-only file has it until it is rewritten")
	require.NoError(t, client.BgRewriteAOF(ctx).Err())
	require.Eventually(t, func() bool {
		info, err := client.Info(ctx, "persistence").Result()
		return err == nil && strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0")
	}, patience, 50*time.Millisecond)
	require.Eventually(t, func() bool {
		s = &search{}
		s.files(t, dir)
		return len(s.found) == 0
	}, patience, 50*time.Millisecond, "the old file goes in the background")
	s.nothing(t)
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	url := testserver.Postgres(t)
	l := lived(t, open(t, everystore.With(url, "schema=erasing")))
	l.erase(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(ctx))) }()
	names := column(ctx, t, conn, "SELECT quote_ident(nspname) || '.' || quote_ident(relname) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'erasing' AND relkind = 'r'")
	require.NotEmpty(t, names)
	s := &search{}
	for _, name := range names {
		for _, line := range column(ctx, t, conn, "SELECT regexp_replace(row_to_json(c)::text, '\\\\\\\\x', '', 'g') FROM "+name+" c") {
			s.look("table "+name, []byte(line))
			s.look("table "+name, unhexed(line))
		}
	}
	s.nothing(t)

	old := &search{}
	heap(ctx, t, conn, old)
	require.NotEmpty(t, old.found, "the files have it until they are written anew")
	for _, name := range names {
		_, err := conn.Exec(ctx, "VACUUM (FULL, ANALYZE) "+name)
		require.NoError(t, err)
	}
	_, err = conn.Exec(ctx, "CHECKPOINT")
	require.NoError(t, err)
	s = &search{}
	heap(ctx, t, conn, s)
	for _, name := range column(ctx, t, conn, "SELECT coalesce(array_to_string(array_agg(s::text), ' '), '') FROM pg_stats s WHERE schemaname = 'erasing'") {
		s.look("statistics", []byte(name))
		s.look("statistics", unhexed(name))
	}
	s.nothing(t)
}

// heap searches the files of the tables, of their indexes, and of their long values.
func heap(ctx context.Context, t *testing.T, conn *pgx.Conn, s *search) {
	t.Helper()
	_, err := conn.Exec(ctx, "CHECKPOINT")
	require.NoError(t, err)
	rows, err := conn.Query(ctx, `
		WITH own AS (SELECT c.oid, c.reltoastrelid FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = 'erasing' AND relkind = 'r'),
		heaps AS (SELECT oid FROM own UNION SELECT reltoastrelid FROM own WHERE reltoastrelid <> 0),
		files AS (SELECT oid FROM heaps UNION SELECT indexrelid FROM pg_index WHERE indrelid IN (SELECT oid FROM heaps))
		SELECT oid::regclass::text, pg_read_binary_file(pg_relation_filepath(oid)) FROM files`)
	require.NoError(t, err)
	for rows.Next() {
		var name string
		var b []byte
		require.NoError(t, rows.Scan(&name, &b))
		s.look("file of "+name, b)
	}
	require.NoError(t, rows.Err())
}

func column(ctx context.Context, t *testing.T, conn *pgx.Conn, query string) []string {
	t.Helper()
	rows, err := conn.Query(ctx, query)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

// unhexed decodes every pair of hexadecimal digits in a text.
func unhexed(text string) []byte {
	var out []byte
	digit := func(c byte) int { return strings.IndexByte("0123456789abcdef", c) }
	for i := 0; i < len(text); i++ {
		if i+1 < len(text) && digit(text[i]) >= 0 && digit(text[i+1]) >= 0 {
			out = append(out, byte(digit(text[i])<<4|digit(text[i+1])))
			i++
		}
	}
	return out
}

func TestTiKV(t *testing.T) {
	t.Parallel()
	cluster := tikvtest.New(t, tikvtest.Options{})
	l := lived(t, open(t, everystore.With(cluster.URL(), "prefix=erasing")))
	l.erase(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client := cluster.NewClient(t)
	s, n := &search{}, 0
	for from := []byte{}; ; {
		names, values, err := client.Scan(ctx, from, nil, 100)
		require.NoError(t, err)
		for i := range names {
			// The store cannot remove the key of a row. Nothing else is left of it.
			if emptied := len(values[i]) <= 20 && bytes.Contains(names[i], []byte(customer)); emptied {
				n++
			} else {
				s.look("key", names[i])
			}
			s.look(fmt.Sprintf("key %q", names[i]), values[i])
		}
		if len(names) < 100 {
			break
		}
		from = append(names[len(names)-1], 0)
	}
	s.nothing(t)
	require.NotZero(t, n, "if this fails because the store removes keys now, tell so in docs/howto/erasing.md")
}
