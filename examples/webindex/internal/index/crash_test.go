package index_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/examples/webindex/internal/check"
	"github.com/percolate-go/percolate/examples/webindex/internal/index"
	"github.com/percolate-go/percolate/examples/webindex/internal/sitetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// crashChildEnv makes TestMain be the process that TestKilled kills:
// "seed round runs path".
const crashChildEnv = "WEBINDEX_CRASH_CHILD"

// crashChildFailed is its exit status when it ends in another way.
const crashChildFailed = 3

// site makes the site as it is in a round; every process makes the same one.
func siteInRound(seed uint64, round int) *sitetest.Site {
	site := sitetest.New("crash", seed, 60)
	for range round {
		site.Change(0.33)
		site.Remove(0.1)
		site.Copy(0.2)
		site.Add(8)
	}
	return site
}

// crashChild loads a site and kills its own process, without any warning, when its
// observers have run so many times. It returns only if something goes wrong.
func crashChild(args string) error {
	var s, runs uint64
	var round int
	var path string
	if _, err := fmt.Sscan(args, &s, &round, &runs, &path); err != nil {
		return err
	}
	ctx := context.Background()
	db, err := percolator.Open(ctx, "pebble:"+path, percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}))
	if err != nil {
		return err
	}
	x, err := index.New(ctx, db)
	if err != nil {
		return err
	}
	w := percolator.NewWorker(db, percolator.WorkerConfig{Concurrency: 8})
	if err := x.Observe(w); err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- w.Run(ctx) }()
	go func() {
		var stats index.LoadStats
		if err := x.Load(ctx, siteInRound(s, round), 8, &stats); err != nil {
			failed <- err
		}
	}()
	for {
		select {
		case err := <-failed:
			return err
		case <-time.After(time.Millisecond): // look again
		}
		if db.Stats().ObserverRuns >= runs {
			self, err := os.FindProcess(os.Getpid())
			if err != nil {
				return err
			}
			if err := self.Kill(); err != nil {
				return err
			}
			select {}
		}
	}
}

// TestKilled kills a process with SIGKILL in the middle of loading and indexing,
// several times, and then has another finish the work.
func TestKilled(t *testing.T) {
	t.Parallel()
	s := seed(t)
	path := t.TempDir() + "/idx"
	self, err := os.Executable()
	require.NoError(t, err)
	for round := range 3 {
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), crashChildEnv+"="+strings.Join([]string{
			strconv.FormatUint(s, 10), strconv.Itoa(round), strconv.FormatUint(20+(s>>(8*round))%180, 10), path,
		}, " "))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s", out)
		require.NotEqual(t, crashChildFailed, exit.ExitCode(), "the child was not killed: %s", out)
	}

	site := siteInRound(s, 2)
	db := open(t, "pebble:"+path)
	e := start(t, db, 16)
	e.load(t, site, 8)
	require.NoError(t, e.w.WaitIdle(t.Context()))
	requireIndex(t, db, len(site.Pages))
}

// TestStopped stops worker and database in an orderly way in the middle of the
// work, and goes on in the next ones.
func TestStopped(t *testing.T) {
	t.Parallel()
	s := seed(t)
	url := "pebble:" + t.TempDir() + "/idx"
	for round := range 3 {
		db, err := percolator.Open(t.Context(), url, percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}))
		require.NoError(t, err)
		e := start(t, db, 8)
		loading, cancel := context.WithCancel(t.Context())
		loaded := make(chan struct{})
		go func() {
			defer close(loaded)
			var stats index.LoadStats
			_ = e.Load(loading, siteInRound(s, round), 8, &stats)
		}()
		require.Eventually(t, func() bool { return db.Stats().ObserverRuns >= 20+(s>>(8*round))%180 }, time.Minute, time.Millisecond)
		e.stop()
		cancel()
		<-loaded
		require.NoError(t, db.Close(t.Context()))
	}
	site := siteInRound(s, 2)
	db := open(t, url)
	e := start(t, db, 16)
	e.load(t, site, 8)
	require.NoError(t, e.w.WaitIdle(t.Context()))
	requireIndex(t, db, len(site.Pages))
}

// TestUnknownReplies builds an index on a store that loses replies, does requests
// twice and delays them.
func TestUnknownReplies(t *testing.T) {
	t.Parallel()
	s := seed(t)
	faulty := faultstore.New(memstore.New(), faultstore.Options{Seed: s | 1})
	db, err := percolator.New(t.Context(), faulty, percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}))
	require.NoError(t, err)
	t.Cleanup(func() {
		faulty.SetRates(faultstore.Rates{})
		require.NoError(t, db.Close(context.WithoutCancel(t.Context())))
	})
	e := start(t, db, 16)
	faulty.SetRates(faultstore.Rates{LoseReply: 0.1, Twice: 0.05, Delay: 0.05}, faultstore.CallApply, faultstore.CallGroup)
	site := sitetest.New("faulty", s, 25)
	for range 3 {
		var stats index.LoadStats
		for attempt := 0; ; attempt++ {
			// A reply that was lost before the commit point may fail a load, which is
			// then done again.
			err := e.Load(t.Context(), site, 8, &stats)
			if err == nil {
				break
			}
			require.ErrorIs(t, err, rowstore.ErrAmbiguous)
			require.Less(t, attempt, 50, "loading never succeeds: %v", err)
		}
		require.NoError(t, e.w.WaitIdle(t.Context()))
		requireIndex(t, db, len(site.Pages))
		site.Change(0.33)
		site.Remove(0.1)
		site.Copy(0.2)
	}
	t.Log(faulty)
	require.NotZero(t, faulty.Count(faultstore.LoseReply), "no fault struck")
}

// TestCheckFindsCorruption changes single stored values behind the observers'
// backs; the check must report each.
func TestCheckFindsCorruption(t *testing.T) {
	t.Parallel()
	site := sitetest.New("corrupt", seed(t), 30)
	site.Copy(0.3)
	db := open(t, "memory:")
	e := start(t, db, 8)
	e.load(t, site, 8)
	require.NoError(t, e.w.WaitIdle(t.Context()))
	requireIndex(t, db, len(site.Pages))
	e.stop() // the observers would mend some of it

	for _, c := range []struct{ table, column string }{
		{"term", "w"},
		{"link", "anchor"},
		{"dup", "n"},
		{"dup", "told"},
		{"cluster", "canonical"},
		{"stat", "docs"},
		{"doc", "hash"},
		{"doc", "title"},
		{"doc", "text"},
		{"doc", "terms"},
		{"doc", "links"},
		{"doc", "indexed"},
		{"doc", "done"},
		{"page", "hash"},
		{"source", "in"},
	} {
		corrupt(t, db, c.table, c.column, len(site.Pages))
	}

	// A deleted posting is named.
	var posting percolator.Cell
	require.NoError(t, db.Update(t.Context(), func(tx *percolator.Txn) error {
		for row, err := range tx.Scan(t.Context(), percolator.Range{Table: "term", Limit: 1}) {
			if err != nil {
				return err
			}
			posting = percolator.Cell{Table: "term", Row: row.Key, Column: "w"}
		}
		return tx.Delete(posting)
	}))
	r, err := check.Run(t.Context(), db, 10)
	require.NoError(t, err)
	require.Equal(t, 1, r.Count)
	require.Contains(t, r.Differences[0], strings.ReplaceAll(posting.Row, "\x00", " "))
	require.Contains(t, r.Differences[0], "nothing is stored")
}

// corrupt deletes and changes a value of a column, and adds one, and makes sure that the
// check reports each and is content afterwards.
func corrupt(t *testing.T, db *percolator.DB, table, column string, pages int) {
	t.Helper()
	var cell percolator.Cell
	var value []byte
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
		for row, err := range tx.Scan(t.Context(), percolator.Range{Table: table, Columns: []string{column}, Limit: 5}) {
			if err != nil {
				return err
			}
			cell, value = percolator.Cell{Table: table, Row: row.Key, Column: column}, row.Columns[column]
		}
		return nil
	}))
	require.NotEmpty(t, cell.Row, "table %s has no column %s", table, column)
	update := func(fn func(tx *percolator.Txn) error) {
		t.Helper()
		require.NoError(t, db.Update(t.Context(), fn))
	}
	found := func(what string) {
		t.Helper()
		r, err := check.Run(t.Context(), db, 10)
		require.NoError(t, err)
		require.False(t, r.OK(), "%s %v was not found", what, cell)
		require.NotEmpty(t, r.Differences)
	}
	update(func(tx *percolator.Txn) error { return tx.Delete(cell) })
	found("the deletion of")
	if table != "source" { // only that it is there matters
		update(func(tx *percolator.Txn) error { return tx.Set(cell, append(value, '1')) })
		found("the change of")
	}
	update(func(tx *percolator.Txn) error { return tx.Set(cell, value) })
	requireIndex(t, db, pages)

	if table != "page" && table != "source" {
		extra := cell
		extra.Row += "x"
		update(func(tx *percolator.Txn) error { return tx.Set(extra, value) })
		found("an extra row beside")
		update(func(tx *percolator.Txn) error { return tx.Delete(extra) })
	}
}
