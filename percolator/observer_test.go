package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

func nothing(context.Context, *Txn, Cell) error { return nil }

func TestObserveRefuses(t *testing.T) {
	t.Parallel()
	db := open(t, rowstore.NewMemory(), quick)
	w := NewWorker(db, WorkerConfig{})
	good := Observer{Name: "o", Table: "t", Column: "v", Func: nothing}
	for name, change := range map[string]func(o *Observer){
		"no name":                 func(o *Observer) { o.Name = "" },
		"the limit is 128":        func(o *Observer) { o.Name = strings.Repeat("x", maxObserverName+1) },
		"no function":             func(o *Observer) { o.Func = nil },
		"table's name is empty":   func(o *Observer) { o.Table = "" },
		"column's name is empty":  func(o *Observer) { o.Column = "" },
		"table's name has 513":    func(o *Observer) { o.Table = strings.Repeat("x", 513) },
		"column's name has 10000": func(o *Observer) { o.Column = strings.Repeat("x", 10000) },
	} {
		o := good
		change(&o)
		err := w.Observe(o)
		require.ErrorContains(t, err, name)
		if strings.Contains(name, "has") {
			require.ErrorIs(t, err, ErrTooLarge)
		} else {
			require.ErrorIs(t, err, ErrInvalid)
		}
	}
	require.NoError(t, w.Observe(good))
	require.ErrorIs(t, w.Observe(good), ErrInvalid, "registered twice")
	other := good
	other.Name = "another on the column"
	require.NoError(t, w.Observe(other))
	ctx, cancel := context.WithCancel(t.Context())
	done := async(func() error { return w.Run(ctx) })
	idle(t, w)
	late := good
	late.Name = "late"
	require.ErrorIs(t, w.Observe(late), ErrWorkerRunning)
	require.ErrorIs(t, w.Run(ctx), ErrWorkerRunning)
	cancel()
	require.NoError(t, result(t, done))
	require.ErrorIs(t, w.Run(ctx), ErrWorkerRunning)
	set(t, db, rowA, "left")
	require.ErrorIs(t, w.WaitIdle(t.Context()), ErrClosed)
	infos, err := db.Observers(t.Context())
	require.NoError(t, err)
	require.Len(t, infos, 2)
}

func TestReleaseRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	for _, name := range []string{"", strings.Repeat("x", maxObserverName+1)} {
		require.ErrorIs(t, c.Release(t.Context(), ParkedRun{Observer: name, Cell: rowA}), ErrInvalid)
	}
	require.NoError(t, c.Release(t.Context(), ParkedRun{Observer: "o", Cell: rowA}), "what is not parked")
	require.NoError(t, c.Release(t.Context()))
	require.Empty(t, w.notified(rowA))
}

func TestWaitIdleAndRunEndWithTheirContexts(t *testing.T) {
	t.Parallel()
	db := open(t, rowstore.NewMemory(), WithSettings(Settings{CatalogLease: time.Hour})) // a sweep that never comes
	w := NewWorker(db, WorkerConfig{})
	require.NoError(t, w.Observe(Observer{Name: "o", Table: "t", Column: "v", Func: nothing}))
	ctx, cancel := context.WithCancel(t.Context())
	before := async(func() error { return w.WaitIdle(ctx) }) // before Run
	cancel()
	require.ErrorIs(t, result(t, before), context.Canceled)
	runCtx, stop := context.WithCancel(t.Context())
	running := async(func() error { return w.Run(runCtx) })
	waiting := async(func() error { return w.WaitIdle(context.Background()) })
	ctx, cancel = context.WithCancel(t.Context())
	during := async(func() error { return w.WaitIdle(ctx) })
	cancel()
	require.ErrorIs(t, result(t, during), context.Canceled)
	stop()
	require.NoError(t, result(t, running))
	require.ErrorIs(t, result(t, waiting), ErrClosed)
	ended, end := context.WithCancel(t.Context())
	end()
	require.NoError(t, NewWorker(db, WorkerConfig{}).Run(ended))
}

// What a function may do wrong is a failure, counted in the store, with its reason.
func TestFailures(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		f    func(ctx context.Context, tx *Txn, c Cell) error
		says string
	}{
		"error":             {func(context.Context, *Txn, Cell) error { return errors.New("on purpose") }, "on purpose"},
		"long error":        {func(context.Context, *Txn, Cell) error { return errors.New(strings.Repeat("é", 10_000)) }, "éé"},
		"panic":             {func(context.Context, *Txn, Cell) error { panic("on purpose") }, "on purpose"},
		"panic of an error": {func(context.Context, *Txn, Cell) error { panic(errors.New("an error")) }, "an error"},
		"ends it":           {func(ctx context.Context, tx *Txn, _ Cell) error { return tx.Commit(ctx) }, "ended its transaction"},
		"rolls back":        {func(ctx context.Context, tx *Txn, _ Cell) error { return tx.Rollback(ctx) }, "ended its transaction"},
		"too large":         {func(_ context.Context, tx *Txn, c Cell) error { return tx.Set(c, make([]byte, 17<<20)) }, "limit"},
		"not there":         {func(ctx context.Context, tx *Txn, _ Cell) error { _, err := tx.Get(ctx, rowB); return err }, "not found"},
		"bad cell":          {func(ctx context.Context, tx *Txn, _ Cell) error { _, err := tx.Get(ctx, Cell{}); return err }, "empty"},
		"unobserved":        {func(_ context.Context, tx *Txn, _ Cell) error { return tx.Notify(Cell{"t", "r", "unobserved"}) }, "no observer"},
		"takes long":        {func(ctx context.Context, _ *Txn, _ Cell) error { <-ctx.Done(); return ctx.Err() }, "deadline"},
		"reads late":        {func(ctx context.Context, tx *Txn, c Cell) error { <-ctx.Done(); _, err := tx.Get(ctx, c); return err }, "deadline"},
		"writes some":       {func(_ context.Context, tx *Txn, c Cell) error { _ = tx.Set(rowC, nil); return errors.New("then fails") }, "then fails"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o")
			c := w.client()
			set(t, c.DB, rowA, "1")
			o := Observer{Name: "o", Func: test.f, MaxAttempts: 2}
			if test.says == "deadline" {
				o.Timeout = time.Millisecond
			}
			for attempt := 1; attempt <= 2; attempt++ {
				wk := watching(t, c, o) // another process each time: the count is in the store
				look(t, wk, rowA)
				require.EqualValues(t, attempt, c.Stats().ObserverFailures)
				if attempt == 1 {
					result, wait, err := wk.runCell(t.Context(), rowA)
					require.NoError(t, err)
					require.Equal(t, runWaiting, result, "it is called again after its backoff only")
					require.Positive(t, wait)
					w.clock.advance(time.Minute + time.Second)
				}
			}
			require.EqualValues(t, 1, c.Stats().ObserverParked)
			parked, err := c.Parked(t.Context())
			require.NoError(t, err)
			require.Len(t, parked, 1)
			require.Contains(t, parked[0].Error, test.says)
			require.LessOrEqual(t, len(parked[0].Error), maxErrorText)
			require.Equal(t, 2, parked[0].Attempts)
			require.Equal(t, rowA, parked[0].Cell)
			require.WithinDuration(t, w.clock.Now(), parked[0].At, time.Second)
			row := w.raw(rowA)
			require.Equal(t, row.Newest(rowstore.Write, "v").TS, parked[0].Change)
			require.Equal(t, "none", value(t, c, rowC))
			rests(t, watching(t, c, o), rowA)
			require.Empty(t, w.notified(rowA))
		})
	}
}

// A conflict, in the function or at its commit, is no failure; nor is trouble of the
// store.
func TestNoFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c, other := w.client(), w.client()
	set(t, c.DB, rowA, "1")
	var next func(ctx context.Context, tx *Txn) error
	wk := watching(t, c, Observer{Name: "o", MaxAttempts: 1, Func: func(ctx context.Context, tx *Txn, _ Cell) error { return next(ctx, tx) }})
	next = func(context.Context, *Txn) error { return fmt.Errorf("wrapped: %w", &ConflictError{}) }
	require.Equal(t, runConflict, look(t, wk, rowA))
	next = func(_ context.Context, tx *Txn) error {
		set(t, other.DB, rowB, "first")
		return tx.Set(rowB, nil)
	}
	require.Equal(t, runConflict, look(t, wk, rowA))
	next = func(ctx context.Context, tx *Txn) error {
		c.wire.verdict(op("read"), refuse)
		_, err := tx.Get(ctx, rowC)
		return err
	}
	result, _, err := wk.runCell(t.Context(), rowA)
	require.Equal(t, runTrouble, result)
	require.ErrorIs(t, err, errNetwork)
	require.EqualValues(t, 2, c.Stats().ObserverConflicts)
	require.Zero(t, c.Stats().ObserverFailures)
	next = func(context.Context, *Txn) error { return nil }
	runs(t, wk, rowA)
}

// Two workers that run the same observer for the same change: one takes effect.
func TestAcknowledgmentsConflict(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		var s1, s2 saw
		w1, w2 := watching(t, w.client(opts...), s1.observer("o")), watching(t, w.client(opts...), s2.observer("o"))
		set(t, w1.db, rowA, "1")
		s1.during = func(tx *Txn) {
			if err := tx.Set(rowB, []byte("by 1")); err != nil {
				t.Error(err)
			}
			runs(t, w2, rowA)
		}
		s2.during = func(tx *Txn) {
			if err := tx.Set(rowC, []byte("by 2")); err != nil {
				t.Error(err)
			}
		}
		require.Equal(t, runConflict, look(t, w1, rowA))
		require.Equal(t, []string{"1", "1"}, append(s1.values, s2.values...))
		rests(t, w1, rowA)
		require.Empty(t, w.notified(rowA))
		other := w.client()
		require.Equal(t, "none by 2", value(t, other, rowB)+" "+value(t, other, rowC))
	})
}

// Several changes may come as one run, and an observer may change what it observes.
func TestCollapseAndSelfNotification(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		c := w.client(opts...)
		var s saw
		wk := watching(t, c, s.observer("o"))
		for i := range 5 {
			set(t, c.DB, rowA, fmt.Sprint(i))
		}
		require.Len(t, w.notified(rowA), 5)
		runs(t, wk, rowA)
		rests(t, wk, rowA)
		require.Equal(t, []string{"4"}, s.values)
		s.during = func(tx *Txn) {
			if n := len(s.values); n < 4 {
				if err := tx.Set(rowA, []byte(fmt.Sprint("again", n))); err != nil {
					t.Error(err)
				}
			}
		}
		set(t, c.DB, rowA, "5")
		for len(w.notified(rowA)) > 0 {
			look(t, wk, rowA)
		}
		require.Equal(t, []string{"4", "5", "again2", "again3"}, s.values)
	})
}

// A worker that stops waits for the functions that run, up to StopTimeout, and then
// ends their contexts.
func TestWorkerStops(t *testing.T) {
	t.Parallel()
	for _, patient := range []bool{true, false} {
		t.Run(fmt.Sprint("patient ", patient), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o")
			c := w.client()
			const stopTimeout = 13 * time.Second
			wk := NewWorker(c.DB, WorkerConfig{StopTimeout: stopTimeout, GCInterval: -1})
			in, free := make(chan struct{}, 10), make(chan struct{})
			require.NoError(t, wk.Observe(Observer{Name: "o", Table: "t", Column: "v", Func: func(ctx context.Context, tx *Txn, _ Cell) error {
				in <- struct{}{}
				select {
				case <-free:
					return tx.Set(rowB, []byte("done"))
				case <-ctx.Done():
					return ctx.Err()
				}
			}}))
			ctx, cancel := context.WithCancel(t.Context())
			done := async(func() error { return wk.Run(ctx) })
			set(t, c.DB, rowA, "1")
			<-in
			cancel()
			_, ended := w.clock.sleeps(t, stopTimeout, done)
			require.False(t, ended, "Run did not wait")
			if patient {
				close(free)
			} else {
				w.clock.advance(stopTimeout)
			}
			require.NoError(t, w.finish(done))
			other := w.client()
			if patient {
				require.Equal(t, "done", value(t, other, rowB))
				require.Empty(t, w.notified(rowA))
			} else {
				require.Equal(t, "none", value(t, other, rowB))
				require.Len(t, w.notified(rowA), 1, "it is left to others")
			}
			require.Zero(t, c.Stats().ObserverFailures, "stopping is nobody's failure")
			w.noLocks()
		})
	}
}

// lookers are two workers over one table.
func lookers(t testing.TB, w *world) (l1, l2 *looker) {
	t.Helper()
	at := func(seed uint64) *looker {
		c := w.client(WithSeed(seed))
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
	take := func(l *looker, first, last string) *scanLease {
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
			require.Equal(t, &scanLease{"f", "m"}, other, "%v", r)
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
		wk := watching(t, w.client(WithSeed(uint64(3+i))), o)
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
	c := w.client(WithSeed(3)) // as the looker, with another id
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
	c := w.client(WithSeed(3)) // as the looker, with another id
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
	c := w.client(WithSeed(3)) // as the looker, with another id
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
		scanned := len(c.wire.sent(op("scan")))
		require.Equal(t, names, dealt(t, wk, &rows), "each row once")
		starts[c.wire.sent(op("scan"))[scanned].scan.From] = true
	}
	require.Greater(t, len(starts), 1, "every look began at the same place")
	require.EqualValues(t, 4*(2*lookPage+10), c.Stats().ObserverRuns)
	require.Empty(t, w.versions(rowstore.Notify))
}

// Two workers over one large table at once: every change is run once, though each
// looks everywhere, and none stays because both left it to the other.
func TestTwoWorkersWithLeases(t *testing.T) {
	t.Parallel()
	mem := rowstore.NewMemory()
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
		db, err := New(t.Context(), &wire{mem: mem}, WithSettings(Settings{CatalogLease: time.Second}))
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
