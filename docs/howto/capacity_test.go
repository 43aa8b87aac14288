package howto

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/backends/pebble"
	_ "github.com/percolate-go/percolate/backends/postgres"
	_ "github.com/percolate-go/percolate/backends/redis"
	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	roomRows  = 10_000
	roomValue = 100 // bytes
)

// TestCapacity measures what a cell takes in each store, and that capacity.md says so.
func TestCapacity(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, room string) (url string, bytes func(t *testing.T) int64){
		"Pebble": roomOfPebble, "Redis": roomOfRedis, "Postgres": roomOfPostgres,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// On a busy machine a server may store some of it twice, since calls that get no answer in time are repeated.
			var off []string
			for try := range 3 {
				if off = roomOff(t, name, open, fmt.Sprint("room", try)); len(off) == 0 {
					return
				}
				t.Log(off)
			}
			require.Empty(t, off)
		})
	}
}

// roomOff measures what cells take in a store, and says which numbers of capacity.md are off.
func roomOff(t *testing.T, name string, open func(t *testing.T, room string) (url string, bytes func(t *testing.T) int64), room string) (off []string) {
	t.Helper()
	url, bytes := open(t, room)
	observeWaits(t, url)
	before := bytes(t)
	each := func(table string) float64 {
		fill(t, url, table)
		now := bytes(t)
		defer func() { before = now }()
		return float64(now-before) / roomRows
	}
	for i, got := range []float64{each("order"), each("order"), each("waits") - each("plain")} {
		if said := roomSaid(t, name, i); math.Abs(got-said) > 0.35*said {
			off = append(off, fmt.Sprintf("column %d of %s in capacity.md: %v, measured %v", i+1, name, said, got))
		}
	}
	return off
}

// observeWaits registers an observer that nobody runs.
func observeWaits(t *testing.T, url string) {
	t.Helper()
	db, err := percolator.Open(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(t.Context())) }()
	w := percolator.NewWorker(db, percolator.WorkerConfig{})
	require.NoError(t, w.Observe(percolator.Observer{
		Name: "total", Table: "waits", Column: "total", Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return nil },
	}))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	require.NoError(t, w.WaitIdle(ctx))
	stop()
	require.NoError(t, <-done)
}

// fill writes a cell into each row of a table.
func fill(t *testing.T, url, table string) {
	t.Helper()
	db, err := percolator.Open(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(t.Context())) }()
	const step = 1000
	for from := 0; from < roomRows; from += step {
		require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
			for i := from; i < from+step; i++ {
				value := make([]byte, roomValue)
				_, _ = rand.Read(value) // it never fails
				if err := tx.Set(percolator.Cell{Table: table, Row: fmt.Sprintf("%012d", i), Column: "total"}, value); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	if store, ok := rowstore.Unwrap[*pebble.Store](db.Store()); ok {
		require.NoError(t, store.Compact(t.Context()))
	}
}

// roomSaid reads a number of the table in capacity.md.
func roomSaid(t *testing.T, store string, column int) float64 {
	t.Helper()
	page, err := os.ReadFile("capacity.md")
	require.NoError(t, err)
	row := regexp.MustCompile(`(?m)^\| ` + store + ` \| (\d+) \| (\d+) \| (\d+) \|$`).FindStringSubmatch(string(page))
	require.NotNil(t, row, store)
	n, err := strconv.Atoi(row[column+1])
	require.NoError(t, err)
	return float64(n)
}

func roomOfPebble(t *testing.T, _ string) (url string, bytes func(t *testing.T) int64) {
	dir := filepath.Join(t.TempDir(), "data")
	return "pebble:" + dir, func(t *testing.T) (n int64) {
		t.Helper()
		tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
		require.NoError(t, err)
		for _, path := range tables {
			i, err := os.Stat(path)
			require.NoError(t, err)
			n += i.Size()
		}
		return n
	}
}

func roomOfRedis(t *testing.T, room string) (url string, bytes func(t *testing.T) int64) {
	u := testserver.Redis(t)
	opts, err := redis.ParseURL(u)
	require.NoError(t, err)
	c := redis.NewClient(opts)
	t.Cleanup(func() { _ = c.Close() })
	return with(t, u, "prefix", room), func(t *testing.T) (n int64) {
		t.Helper()
		for cursor, more := uint64(0), true; more; more = cursor != 0 {
			var keys []string
			keys, cursor, err = c.Scan(t.Context(), cursor, "{"+room+":*", 1000).Result()
			require.NoError(t, err)
			sizes, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for _, key := range keys {
					p.MemoryUsage(t.Context(), key, 0)
				}
				return nil
			})
			require.NoError(t, err)
			for _, size := range sizes {
				n += size.(*redis.IntCmd).Val()
			}
		}
		return n
	}
}

func roomOfPostgres(t *testing.T, room string) (url string, bytes func(t *testing.T) int64) {
	u := testserver.Postgres(t)
	return with(t, u, "schema", room), func(t *testing.T) (n int64) {
		t.Helper()
		c, err := pgx.Connect(t.Context(), u)
		require.NoError(t, err)
		defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
		require.NoError(t, c.QueryRow(t.Context(),
			"SELECT sum(pg_catalog.pg_total_relation_size(oid)) FROM pg_catalog.pg_class WHERE relkind = 'r' AND relnamespace = $1::text::regnamespace", room).Scan(&n))
		return n
	}
}

// with adds a parameter to a URL.
func with(t *testing.T, at, key, value string) string {
	t.Helper()
	u, err := url.Parse(at)
	require.NoError(t, err)
	q := u.Query()
	q.Set(key, value)
	u.RawQuery = q.Encode()
	return u.String()
}
