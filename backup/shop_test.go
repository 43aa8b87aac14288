package backup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A database with something of everything.

func at(table, row, column string) percolator.Cell {
	return percolator.Cell{Table: table, Row: row, Column: column}
}

// shop is a database with observers: "count" of orders, which it copies; "sum" of amounts, by what it is told of old values; and
// "bad", whose runs are parked.
type shop struct {
	db   *percolator.DB
	mu   sync.Mutex
	runs []string // in the order of their ends: the observer and the row
}

func (s *shop) ran(observer string, c percolator.Cell) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs = append(s.runs, observer+" "+c.Row)
}

// took returns what has run since it was asked last, in order of names.
func (s *shop) took() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	runs := s.runs
	s.runs = nil
	slices.Sort(runs)
	return runs
}

var errBad = errors.New("it cannot be done")

func (s *shop) worker(t *testing.T) *percolator.Worker {
	t.Helper()
	w := percolator.NewWorker(s.db, percolator.WorkerConfig{MemberLease: 300 * time.Millisecond, GCInterval: -1, Rescan: 100 * time.Millisecond})
	require.NoError(t, w.Observe(percolator.Observer{Name: "count", Table: "orders", Column: "state", Func: func(_ context.Context, tx *percolator.Txn, c percolator.Cell) error {
		return errors.Join(tx.Set(at("done", c.Row, "seen"), []byte("x")), tx.OnEnd(func(err error) {
			if err == nil {
				s.ran("count", c)
			}
		}))
	}}))
	require.NoError(t, w.Observe(percolator.Observer{Name: "sum", Table: "orders", Column: "amount", OnChange: func(ctx context.Context, tx *percolator.Txn, c percolator.Change) error {
		total := number(ctx, t, tx, at("totals", c.Cell.Row[:1], "sum"))
		before, _ := strconv.Atoi(strings.TrimSpace(string(c.Old)))
		now, _ := strconv.Atoi(strings.TrimSpace(string(c.New)))
		return errors.Join(tx.Set(at("totals", c.Cell.Row[:1], "sum"), []byte(strconv.Itoa(total+now-before))), tx.OnEnd(func(err error) {
			if err == nil {
				s.ran("sum", c.Cell)
			}
		}))
	}}))
	require.NoError(t, w.Observe(percolator.Observer{Name: "bad", Table: "orders", Column: "bad", Func: func(_ context.Context, _ *percolator.Txn, c percolator.Cell) error {
		s.ran("bad", c)
		return percolator.Park(errBad)
	}}))
	return w
}

func number(ctx context.Context, t *testing.T, tx *percolator.Txn, c percolator.Cell) int {
	b, err := tx.Get(ctx, c)
	if errors.Is(err, percolator.ErrNotFound) {
		return 0
	}
	if err != nil {
		return 0 // the commit fails as well
	}
	n, err := strconv.Atoi(string(b))
	if err != nil {
		t.Error(err)
	}
	return n
}

// work runs a worker until nothing is left to do but what until waits for.
func (s *shop) work(t *testing.T, until func() bool) {
	t.Helper()
	w := s.worker(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}()
	require.NoError(t, w.WaitIdle(t.Context()))
	if until != nil {
		require.Eventually(t, until, 30*time.Second, 5*time.Millisecond)
		require.NoError(t, w.WaitIdle(t.Context()))
	}
}

// left lists what the observers have yet to see.
func (s *shop) left(t *testing.T) []string {
	t.Helper()
	w := s.worker(t)
	require.NoError(t, coretest.KnowTimers(t.Context(), w))
	left, err := coretest.Left(t.Context(), w)
	require.NoError(t, err)
	var all []string
	for _, l := range left {
		all = append(all, l.Observer+" "+l.Cell.Row)
	}
	slices.Sort(all)
	return all
}

func (s *shop) update(t *testing.T, f func(tx *percolator.Txn) error) {
	t.Helper()
	require.NoError(t, s.db.Update(t.Context(), f))
}

func amount(n int) []byte { return []byte(strconv.Itoa(n)) }

// long is an amount whose value does not travel with the write.
func long(n int) []byte { return []byte(strings.Repeat(" ", 300) + strconv.Itoa(n)) }

// far is when a timer is due that nobody waits for.
var far = time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)

// fill makes the shop: rows that are done, and rows that are not. due is when a timer of b9 is due.
func (s *shop) fill(t *testing.T, due time.Time) (outstanding []string) {
	t.Helper()
	s.update(t, func(tx *percolator.Txn) error {
		for i := range 40 {
			row := fmt.Sprintf("a%02d", i)
			if err := errors.Join(tx.Set(at("orders", row, "state"), []byte("new")), tx.Set(at("orders", row, "amount"), amount(i)), tx.Set(at("orders", row, "note"), long(i))); err != nil {
				return err
			}
		}
		return errors.Join(tx.Set(at("orders", "b1", "amount"), long(100)), tx.Set(at("orders", "b2", "amount"), amount(200)), tx.Set(at("orders", "b3", "amount"), amount(300)),
			tx.Set(at("orders", "b4", "bad"), []byte("x")), tx.Set(at("orders", "b5", "bad"), []byte("x")),
			tx.Set(at("orders", "b6", "state"), []byte("x")), tx.Set(at("orders", "b7", "state"), []byte("x")), tx.Set(at("orders", "b8", "state"), []byte("x")),
			tx.Set(at("odd\x00\xff", "\x00\xfe", "\x00c"), []byte{0, 1, 2}), tx.Set(at("\x00table", "r", "c"), nil))
	})
	s.work(t, nil)
	require.Len(t, s.took(), 40+40+3+2+3)
	s.update(t, func(tx *percolator.Txn) error {
		return errors.Join(
			tx.Set(at("orders", "b1", "amount"), amount(101)), tx.Set(at("orders", "b2", "amount"), long(202)), tx.Delete(at("orders", "b3", "amount")),
			tx.Set(at("orders", "b5", "bad"), []byte("y")),
			tx.Notify(at("orders", "b6", "state")), tx.Delete(at("orders", "b7", "state")), tx.Delete(at("orders", "a01", "note")),
			tx.NotifyAt(at("orders", "b8", "state"), far), tx.NotifyAt(at("orders", "b9", "state"), due))
	})
	return []string{"bad b5", "count b6", "count b7", "sum b1", "sum b2", "sum b3"}
}

// finish runs what is outstanding, and b9's timer, and nothing else.
func (s *shop) finish(t *testing.T, outstanding []string) {
	t.Helper()
	timed := func(run string) bool { return run == "count b9" } // it may be due already
	require.Equal(t, outstanding, slices.DeleteFunc(s.left(t), timed))
	var runs []string
	s.work(t, func() bool {
		runs = append(runs, s.took()...)
		return slices.Contains(runs, "count b9")
	})
	want := append(slices.Clone(outstanding), "count b9")
	slices.Sort(want)
	slices.Sort(runs)
	require.Equal(t, want, runs)
	require.NoError(t, s.db.View(t.Context(), func(tx *percolator.Txn) error {
		require.Equal(t, 101+202, number(t.Context(), t, tx, at("totals", "b", "sum")))
		require.Equal(t, 39*40/2, number(t.Context(), t, tx, at("totals", "a", "sum")))
		return nil
	}))
	parked, err := s.db.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, 2)
	for _, p := range parked {
		require.Contains(t, p.Error, errBad.Error())
	}
	// A parked run that is released runs again, and so only that.
	require.NoError(t, s.db.Release(t.Context(), parked[0]))
	s.work(t, nil)
	require.Equal(t, []string{"bad " + parked[0].Cell.Row}, s.took())
}

// openShop opens a store as a database with short leases.
func openShop(t *testing.T, url string) *shop {
	t.Helper()
	db, err := percolator.Open(t.Context(), url, percolator.WithSettings(percolator.Settings{MaxTxnAge: time.Minute, Retention: time.Hour, CatalogLease: 300 * time.Millisecond}))
	require.NoError(t, err)
	return &shop{db: db}
}

func (s *shop) close(t *testing.T) {
	t.Helper()
	require.NoError(t, s.db.Close(context.WithoutCancel(t.Context())))
}

// restored opens a store, restores a backup into it and opens it as a database.
func restored(t *testing.T, url, path string) *shop {
	t.Helper()
	store, err := rowstore.Open(t.Context(), url)
	require.NoError(t, err)
	_, err = Restore(t.Context(), store, path, RestoreOptions{})
	require.NoError(t, err)
	return &shop{db: everystore.Over(t, store)}
}

// contents lists what is in a backup, row by row.
func contents(t *testing.T, path string) map[string][]rowstore.Version {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	r, err := newReader(f)
	require.NoError(t, err)
	defer r.close()
	_, err = r.begin()
	require.NoError(t, err)
	all := map[string][]rowstore.Version{}
	for {
		kind, b, err := r.next()
		require.NoError(t, err)
		if kind == frameEnd {
			return all
		}
		h, rows, err := decodeBlock(b)
		require.NoError(t, err)
		for _, row := range rows {
			name := fmt.Sprintf("%q %q", h.table, row.Row)
			all[name] = sorted(append(all[name], row.Versions...))
			for i := range all[name] {
				if len(all[name][i].Value) == 0 {
					all[name][i].Value = nil
				}
			}
		}
	}
}

func backedUp(t *testing.T, db *percolator.DB, opts Options) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backup")
	r, err := Write(t.Context(), db, path, opts)
	require.NoError(t, err)
	require.Positive(t, r.Cells)
	return path
}
