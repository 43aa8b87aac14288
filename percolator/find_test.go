package percolator

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// lookers are two workers over one table.
func lookers(t testing.TB, w *world) (l1, l2 *looker) {
	t.Helper()
	at := func(seed uint64) *looker {
		c := w.client(withSeed(seed))
		wk := watching(t, c, Observer{Name: "o", Func: nothing})
		return &looker{w: wk, table: "t", jumps: lookJumps}
	}
	return at(1), at(2)
}

func TestScanLeases(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l1, l2 := lookers(t, w)
	require.NotEqual(t, l1.w.id, l2.w.id)
	take := func(l *looker, first, last string) *format.ScanLease {
		others, err := l.lease(t.Context(), l.w.list, first, last)
		require.NoError(t, err)
		require.Len(t, others, 1)
		return others[0]
	}
	require.Nil(t, take(l1, "f", "m"))
	for _, r := range []struct {
		first, last string
		free        bool
	}{
		{"a", "e", true}, {"n", "z", true}, {"m\x00", "z", true}, {"a", "f", false}, {"m", "z", false}, {"g", "h", false}, {"a", "z", false},
	} {
		other := take(l2, r.first, r.last)
		if r.free {
			require.Nil(t, other, "%v", r)
		} else {
			require.Equal(t, &format.ScanLease{From: "f", To: "m"}, other, "%v", r)
		}
	}
	// One's own is no obstacle, and is replaced.
	l2.w.releaseLeases("")
	require.Nil(t, take(l1, "g", "k"))
	require.Nil(t, take(l2, "m", "z"))
	// It ends by itself, and with the worker.
	require.NotNil(t, take(l2, "a", "g"))
	w.clock.advance(l1.w.config.ScanLease + time.Millisecond)
	require.Nil(t, take(l2, "a", "g"))
	require.NotNil(t, take(l1, "c", "d"))
	l2.w.releaseLeases("")
	require.Nil(t, take(l1, "c", "d"))
	// Leases of another observer do not matter, on whatever column.
	require.NotNil(t, take(l2, "a", "z"))
	for i, o := range []Observer{{Name: "another", Func: nothing}, {Name: "o", Table: "t", Column: "u", Func: nothing}, {Name: "o", Table: "u", Column: "v", Func: nothing}} {
		wk := watching(t, w.client(withSeed(uint64(3+i))), o)
		require.Nil(t, take(&looker{w: wk, table: wk.list[0].table}, "a", "z"), "%d", i)
	}
}

func TestJumps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l, _ := lookers(t, w)
	key := rapid.StringOfN(rapid.RuneFrom([]rune("abc")), 1, 3, -1)
	rapid.Check(t, func(t *rapid.T) {
		l.keys = rapid.SliceOfDistinct(key, rapid.ID[string]).Draw(t, "keys")
		slices.Sort(l.keys)
		after := key.Draw(t, "after")
		to := rapid.OneOf(rapid.Just(""), key).Draw(t, "to")
		l.jumps = lookJumps
		ahead := slices.ContainsFunc(l.keys, func(k string) bool { return k >= after && (to == "" || k < to) })
		for n := range lookJumps {
			next, ok := l.jump(after, to)
			if !ok {
				if ahead || to == "" || after+"\x00" < to {
					t.Fatalf("no jump from %q up to %q with %q", after, to, l.keys)
				}
				return
			}
			if next < after || to != "" && next >= to {
				t.Fatalf("from %q up to %q it jumped to %q", after, to, next)
			}
			if ahead && !slices.Contains(l.keys, next) {
				t.Fatalf("jumped to %q, no part begins there", next)
			}
			require.Equal(t, lookJumps-n-1, l.jumps)
		}
		if _, ok := l.jump(after, to); ok {
			t.Fatal("it jumps for ever")
		}
	})
}

// dealt runs one look of a worker and tells which rows it dealt with.
func dealt(t testing.TB, wk *Worker, rows *saw) []string {
	t.Helper()
	rows.mu.Lock()
	rows.values = nil
	rows.mu.Unlock()
	l, err := wk.look(t.Context(), "t")
	require.NoError(t, err)
	wk.tasks.Wait()
	wk.mu.Lock()
	rows.held = l.held
	wk.mu.Unlock()
	rows.mu.Lock()
	defer rows.mu.Unlock()
	slices.Sort(rows.values)
	return slices.Clone(rows.values)
}

// rowWorker keeps the rows that its observer is called for, and fails them, so that
// their notifications stay.
func rowWorker(t testing.TB, c *client, rows *saw) *Worker {
	t.Helper()
	return watching(t, c, Observer{Name: "o", Func: func(_ context.Context, _ *Txn, cell Cell) error {
		rows.mu.Lock()
		defer rows.mu.Unlock()
		rows.values = append(rows.values, cell.Row)
		return nil
	}})
}

func notifyRows(t testing.TB, c *client, n int) (names []string) {
	t.Helper()
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		for i := range n {
			names = append(names, fmt.Sprintf("%04d", i))
			if err := tx.Set(row(names[i]), []byte("v")); err != nil {
				return err
			}
		}
		return nil
	}))
	return names
}

// A look keeps out of what another scanner has leased, goes on behind it, and finds
// the rest once that lease has ended.
func TestLookJumpsOverAnothersLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	l1, _ := lookers(t, w)
	c := w.client(withSeed(3)) // as the looker, with another id
	names := notifyRows(t, c, 600)
	others, err := l1.lease(t.Context(), l1.w.list, names[0], names[299])
	require.NoError(t, err)
	require.Nil(t, others[0])
	var rows saw
	wk := rowWorker(t, c, &rows)
	got := dealt(t, wk, &rows)
	require.NotEmpty(t, got)
	require.Subset(t, names[300:], got, "it dealt with rows under another's lease")
	// The rest comes once nobody has it.
	l1.w.releaseLeases("")
	left := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(got, n) })
	for range 10 {
		got := dealt(t, wk, &rows)
		left = slices.DeleteFunc(left, func(n string) bool { return slices.Contains(got, n) })
	}
	require.Empty(t, left)
	require.Empty(t, w.versions(rowstore.Notify))
	require.EqualValues(t, 600, c.Stats().ObserverRuns)
}

// All of the table under another's lease: it is left for as long.
func TestLookWithNowhereToJump(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	l1, _ := lookers(t, w)
	c := w.client(withSeed(3)) // as the looker, with another id
	names := notifyRows(t, c, 100)
	_, err := l1.lease(t.Context(), l1.w.list, names[0], "z")
	require.NoError(t, err)
	var rows saw
	wk := rowWorker(t, c, &rows)
	require.Empty(t, dealt(t, wk, &rows))
	require.Positive(t, rows.held, "it is to look again when the lease ends")
	require.LessOrEqual(t, rows.held, wk.config.ScanLease)
	w.clock.advance(wk.config.ScanLease + time.Second)
	require.Equal(t, names, dealt(t, wk, &rows))
}

// Few notifications are not worth a lease, and two workers do not heed each other's.
func TestLookAtFewTakesNoLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	l1, _ := lookers(t, w)
	c := w.client(withSeed(3)) // as the looker, with another id
	names := notifyRows(t, c, leaseFrom-1)
	_, err := l1.lease(t.Context(), l1.w.list, names[0], "z")
	require.NoError(t, err)
	var rows saw
	wk := rowWorker(t, c, &rows)
	require.Equal(t, names, dealt(t, wk, &rows))
	require.Empty(t, wk.leased)
}

// Looks begin at random places where there is much to find, and each goes round the
// whole table.
func TestLookGoesRoundTheTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	var rows saw
	wk := rowWorker(t, c, &rows)
	starts := map[string]bool{}
	for range 4 {
		names := notifyRows(t, c, 2*lookPage+10)
		scanned := len(c.wire.sent(op(faultstore.CallScan)))
		require.Equal(t, names, dealt(t, wk, &rows), "each row once")
		starts[c.wire.sent(op(faultstore.CallScan))[scanned].Range.From] = true
	}
	require.Greater(t, len(starts), 1, "every look began at the same place")
	require.EqualValues(t, 4*(2*lookPage+10), c.Stats().ObserverRuns)
	require.Empty(t, w.versions(rowstore.Notify))
}

// Two workers over one large table at once: every change is run once, though each
// looks everywhere, and none stays because both left it to the other.
func TestTwoWorkersWithLeases(t *testing.T) {
	t.Parallel()
	mem := memstore.New()
	var mu sync.Mutex
	ran := map[string]int{}
	o := Observer{Name: "o", Table: "t", Column: "v", Func: func(_ context.Context, tx *Txn, c Cell) error {
		out := c
		out.Column = "out"
		return tx.Set(out, []byte(c.Row))
	}}
	var dbs []*DB
	var workers []*Worker
	for range 2 {
		db, err := New(t.Context(), newWire(mem), WithSettings(Settings{CatalogLease: time.Second}))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
		dbs = append(dbs, db)
		workers = append(workers, startWorker(t, db, WorkerConfig{ScanLease: 20 * time.Millisecond, Rescan: 30 * time.Millisecond}, o))
	}
	for _, w := range workers {
		idle(t, w)
	}
	const rows = 1500
	require.NoError(t, dbs[0].Update(t.Context(), func(tx *Txn) error {
		for i := range rows {
			if err := tx.Set(row(fmt.Sprintf("%05d", i)), nil); err != nil {
				return err
			}
		}
		return nil
	}))
	for _, w := range workers {
		idle(t, w)
	}
	require.NoError(t, dbs[0].View(t.Context(), func(tx *Txn) error {
		for r, err := range tx.Scan(t.Context(), Range{Table: "t", Columns: []string{"out"}}) {
			if err != nil {
				return err
			}
			mu.Lock()
			ran[r.Key]++
			mu.Unlock()
		}
		return nil
	}))
	require.Len(t, ran, rows)
	s1, s2 := dbs[0].Stats(), dbs[1].Stats()
	require.EqualValues(t, rows, s1.ObserverRuns+s2.ObserverRuns)
	t.Logf("runs %d and %d, conflicts %d and %d", s1.ObserverRuns, s2.ObserverRuns, s1.ObserverConflicts, s2.ObserverConflicts)
}
