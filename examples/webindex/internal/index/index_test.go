package index_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	_ "github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/examples/webindex/internal/check"
	"github.com/percolate-go/percolate/examples/webindex/internal/index"
	"github.com/percolate-go/percolate/examples/webindex/internal/sitetest"
	"github.com/percolate-go/percolate/examples/webindex/internal/source"
	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/percolator"
)

func TestMain(m *testing.M) {
	if args := os.Getenv(crashChildEnv); args != "" {
		fmt.Fprintln(os.Stderr, "crash child:", crashChild(args))
		os.Exit(crashChildFailed)
	}
	goleak.VerifyTestMain(m)
}

var seedFlag = flag.Uint64("seed", 0, "seed of the random sites; 0 takes a new one")

func seed(t testing.TB) uint64 {
	t.Helper()
	s := *seedFlag
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("seed %d (repeat with -seed %d)", s, s)
	return s
}

func open(t testing.TB, url string, opts ...percolator.Option) *percolator.DB {
	t.Helper()
	opts = append(opts, percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}))
	db, err := percolator.Open(t.Context(), url, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.WithoutCancel(t.Context()))) })
	return db
}

// engine is an index with a worker that runs.
type engine struct {
	*index.Index
	db   *percolator.DB
	w    *percolator.Worker
	stop func()
}

func start(t testing.TB, db *percolator.DB, workers int) *engine {
	t.Helper()
	x, err := index.New(t.Context(), db)
	require.NoError(t, err)
	w := percolator.NewWorker(db, percolator.WorkerConfig{Concurrency: workers})
	require.NoError(t, x.Observe(w))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	stopped := false
	e := &engine{Index: x, db: db, w: w, stop: func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		require.NoError(t, <-done)
	}}
	t.Cleanup(e.stop)
	return e
}

func (e *engine) load(t testing.TB, src source.Source, loaders int) *index.LoadStats {
	t.Helper()
	var stats index.LoadStats
	require.NoError(t, e.Load(t.Context(), src, loaders, &stats))
	return &stats
}

func requireIndex(t testing.TB, db *percolator.DB, pages int) {
	t.Helper()
	r, err := check.Run(t.Context(), db, 10)
	require.NoError(t, err)
	require.True(t, r.OK(), "%d differences: %q", r.Count, r.Differences)
	require.Equal(t, pages, r.Pages)
}

// dump reads everything that the index derives from the pages.
func dump(t testing.TB, db *percolator.DB) map[string]string {
	t.Helper()
	all := make(map[string]string)
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		for _, table := range []string{"page", "source", "doc", "link", "dup", "cluster", "term", "stat", "meta"} {
			for row, err := range tx.Scan(t.Context(), percolator.Range{Table: table}) {
				if err != nil {
					return err
				}
				for column, v := range row.Columns {
					all[table+"\x00"+row.Key+"\x00"+column] = string(bytes.Clone(v))
				}
			}
		}
		return nil
	}))
	return all
}

// TestIncremental changes a site in many ways, and after each round the index
// must be what the pages say; at the end also what a new store would hold.
func TestIncremental(t *testing.T) {
	t.Parallel()
	t.Run("one phase", func(t *testing.T) {
		t.Parallel()
		incremental(t, 3)
	})
	t.Run("two phases", func(t *testing.T) {
		t.Parallel()
		incremental(t, 2, coretest.WithoutGroups())
	})
}

func incremental(t *testing.T, rounds int, opts ...percolator.Option) {
	s := seed(t)
	site := sitetest.New("a", s, 60)
	db := open(t, "memory:", opts...)
	e := start(t, db, 16)

	stats := e.load(t, site, 8)
	require.EqualValues(t, 60, stats.Added.Load())
	require.NoError(t, e.w.WaitIdle(t.Context()))
	requireIndex(t, db, 60)

	stats = e.load(t, site, 8)
	require.EqualValues(t, 60, stats.Unchanged.Load(), "the same pages again")
	require.Zero(t, stats.Added.Load()+stats.Changed.Load()+stats.Removed.Load())

	for round := range rounds {
		before := maps.Clone(site.Pages)
		site.Change(0.33)
		site.Remove(0.1)
		site.Copy(0.2)
		site.Add(8)
		changed, added, removed := 0, 0, 0
		for u, body := range site.Pages {
			if old, ok := before[u]; !ok {
				added++
			} else if old != body {
				changed++
			}
		}
		for u := range before {
			if _, ok := site.Pages[u]; !ok {
				removed++
			}
		}
		stats = e.load(t, site, 8)
		require.EqualValues(t, changed, stats.Changed.Load())
		require.EqualValues(t, added, stats.Added.Load())
		require.EqualValues(t, removed, stats.Removed.Load())
		require.NoError(t, e.w.WaitIdle(t.Context()))
		t.Logf("round %d: %d pages, %d changed, %d added, %d removed", round, len(site.Pages), changed, added, removed)
		requireIndex(t, db, len(site.Pages))
	}
	parked, err := db.Parked(t.Context())
	require.NoError(t, err)
	require.Empty(t, parked)
	require.NotZero(t, e.Latency().Pages)

	fresh := open(t, "memory:")
	f := start(t, fresh, 4)
	f.load(t, site, 1)
	require.NoError(t, f.w.WaitIdle(t.Context()))
	requireIndex(t, fresh, len(site.Pages))
	require.Equal(t, dump(t, fresh), dump(t, db))
}

// TestOneChange changes one page of a site; nothing may be written that does not
// concern it.
func TestOneChange(t *testing.T) {
	t.Parallel()
	site := sitetest.New("a", seed(t), 40)
	db := open(t, "memory:")
	e := start(t, db, 8)
	e.load(t, site, 8)
	require.NoError(t, e.w.WaitIdle(t.Context()))
	before := dump(t, db)

	u := slices.Sorted(maps.Keys(site.Pages))[7]
	old := index.Hash([]byte(site.Pages[u]))
	site.Pages[u] += " <p>unheardof"
	now := index.Hash([]byte(site.Pages[u]))
	committed := func() uint64 { st := db.Stats(); return st.OnePhase + st.Group + st.TwoPhase }
	from := committed()
	e.load(t, site, 8)
	require.NoError(t, e.w.WaitIdle(t.Context()))
	requireIndex(t, db, 40)
	// One for the page, and the observers: parse, inlinks, cluster of the old and the
	// new content, index for both of them, searchable. Notifications may come one by
	// one or together.
	require.LessOrEqual(t, committed()-from, uint64(20))

	after := dump(t, db)
	changed := 0
	for _, k := range slices.Sorted(maps.Keys(mergeKeys(before, after))) {
		is, ok := after[k]
		was, had := before[k]
		if ok == had && is == was {
			continue
		}
		changed++
		require.True(t, strings.Contains(k, u) || strings.Contains(k, old) || strings.Contains(k, now), "%q changed", k)
		if strings.HasPrefix(k, "term\x00") && !had {
			require.Equal(t, "term\x00unheardof\x00"+u+"\x00w", k)
		}
	}
	require.NotZero(t, changed)
}

func mergeKeys(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// TestTwoAtOnce has two indexes, as two processes would, load different pages and
// the same pages into one store while both work.
func TestTwoAtOnce(t *testing.T) {
	t.Parallel()
	s := seed(t)
	db := open(t, "memory:")
	a, b := start(t, db, 8), start(t, db, 8)
	shared := sitetest.New("shared", s, 30)
	one, two := sitetest.New("one", s+1, 20), sitetest.New("two", s+2, 20)
	for range 3 {
		var g errgroup.Group
		for e, own := range map[*engine]*sitetest.Site{a: one, b: two} {
			g.Go(func() error {
				var stats index.LoadStats
				if err := e.Load(t.Context(), shared, 4, &stats); err != nil {
					return err
				}
				return e.Load(t.Context(), own, 4, &stats)
			})
		}
		require.NoError(t, g.Wait())
		require.NoError(t, a.w.WaitIdle(t.Context()))
		require.NoError(t, b.w.WaitIdle(t.Context()))
		requireIndex(t, db, len(shared.Pages)+len(one.Pages)+len(two.Pages))
		for _, site := range []*sitetest.Site{shared, one, two} {
			site.Change(0.3)
			site.Remove(0.1)
			site.Copy(0.2)
		}
	}
}
