package percolator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

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
		"ends it":           {func(ctx context.Context, tx *Txn, _ Cell) error { return tx.Commit(ctx) }, "may not end its transaction"},
		"ends it within a scan": {func(ctx context.Context, tx *Txn, _ Cell) error {
			for _, err := range tx.Scan(ctx, Range{Table: "t"}) {
				if err != nil {
					return err
				}
				if err := tx.Commit(ctx); err != nil {
					return err
				}
			}
			return nil
		}, "may not end its transaction"},
		"rolls back":  {func(ctx context.Context, tx *Txn, _ Cell) error { return tx.Rollback(ctx) }, "ended its transaction"},
		"too large":   {func(_ context.Context, tx *Txn, c Cell) error { return tx.Set(c, make([]byte, 17<<20)) }, "limit"},
		"not there":   {func(ctx context.Context, tx *Txn, _ Cell) error { _, err := tx.Get(ctx, rowB); return err }, "not found"},
		"bad cell":    {func(ctx context.Context, tx *Txn, _ Cell) error { _, err := tx.Get(ctx, Cell{}); return err }, "empty"},
		"unobserved":  {func(_ context.Context, tx *Txn, _ Cell) error { return tx.Notify(Cell{"t", "r", "unobserved"}) }, "no observer"},
		"takes long":  {func(ctx context.Context, _ *Txn, _ Cell) error { <-ctx.Done(); return ctx.Err() }, "deadline"},
		"reads late":  {func(ctx context.Context, tx *Txn, c Cell) error { <-ctx.Done(); _, err := tx.Get(ctx, c); return err }, "deadline"},
		"writes some": {func(_ context.Context, tx *Txn, c Cell) error { _ = tx.Set(rowC, nil); return errors.New("then fails") }, "then fails"},
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
			require.LessOrEqual(t, len(parked[0].Error), format.MaxErrorText)
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
		c.wire.verdict(op(faultstore.CallRead), refuse)
		_, err := tx.Get(ctx, rowC)
		return err
	}
	result, _, err := wk.runCell(t.Context(), rowA)
	require.Equal(t, runTrouble, result)
	require.ErrorIs(t, err, faultstore.ErrInjected)
	require.EqualValues(t, 2, c.Stats().ObserverConflicts)
	require.Zero(t, c.Stats().ObserverFailures)
	next = func(context.Context, *Txn) error { return nil }
	runs(t, wk, rowA)
}

// An observer that fails holds up neither another one of the same cell, nor itself
// for a later change.
func TestFailingObserverHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for _, quiet := range []bool{false, true} {
		t.Run(fmt.Sprint("quiet ", quiet), func(t *testing.T) {
			t.Parallel()
			dbs, _ := clients(t, 1, quiet)
			good := make(chan string, 100)
			mended := make(chan string, 100)
			var failures atomic.Int64
			config := WorkerConfig{Backoff: Backoff{Min: time.Hour, Max: time.Hour}}
			w := startWorker(t, dbs[0], config,
				Observer{Name: "fails", Table: "t", Column: "v", Func: func(ctx context.Context, tx *Txn, c Cell) error {
					v, err := tx.Get(ctx, c)
					if err == nil && strings.HasPrefix(string(v), "bad") {
						failures.Add(1)
						return errors.New("on purpose")
					}
					mended <- string(v)
					return err
				}},
				Observer{Name: "good", Table: "t", Column: "v", Func: func(ctx context.Context, tx *Txn, c Cell) error {
					v, err := tx.Get(ctx, c)
					good <- string(v)
					return err
				}})
			<-w.ready
			for i := range 3 {
				v := fmt.Sprint("bad", i)
				set(t, dbs[0], Cell{"t", "r", "v"}, v)
				waitValue(t, good, v)
				require.Eventually(t, func() bool { return failures.Load() == int64(i+1) }, patience, time.Millisecond, "each change is attempted at once")
			}
			set(t, dbs[0], Cell{"t", "r", "v"}, "right")
			waitValue(t, mended, "right")
			waitValue(t, good, "right")
		})
	}
}

// An observer that sets its Backoff waits for that after a failure, and what it leaves open is that of its worker.
func TestBackoffOfAnObserver(t *testing.T) {
	t.Parallel()
	fails := func(context.Context, *Txn, Cell) error { return errTest }
	for name, c := range map[string]struct{ own, want Backoff }{
		"none":     {Backoff{}, Backoff{time.Minute, 2 * time.Minute}},
		"both":     {Backoff{time.Hour, time.Hour}, Backoff{time.Hour, time.Hour}},
		"least":    {Backoff{Min: time.Second}, Backoff{time.Second, 2 * time.Minute}},
		"most":     {Backoff{Max: time.Second}, Backoff{time.Second, time.Second}},
		"negative": {Backoff{-1, -1}, Backoff{time.Minute, 2 * time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o")
			db := w.client().DB
			worker := NewWorker(db, WorkerConfig{Backoff: Backoff{time.Minute, 2 * time.Minute}})
			require.NoError(t, worker.Observe(Observer{Name: "o", Table: "t", Column: "v", Backoff: c.own, Func: fails}))
			set(t, db, rowA, "1")
			calls := func() uint64 { look(t, worker, rowA); return db.Stats().ObserverFailures }
			require.EqualValues(t, 1, calls())
			w.clock.advance(c.want.Min - 2*time.Millisecond)
			require.EqualValues(t, 1, calls(), "it waits for the least")
			w.clock.advance(c.want.Max - c.want.Min + 4*time.Millisecond)
			require.EqualValues(t, 2, calls(), "and for no longer than the most")
		})
	}
}

func TestLongestBackoff(t *testing.T) {
	t.Parallel()
	b, r := Backoff{Min: time.Hour, Max: math.MaxInt64}, newRandom(1)
	for attempt := range 200 {
		require.GreaterOrEqual(t, b.wait(attempt, r), time.Hour)
	}
}

// With a push and without, the next attempt comes after Backoff and not with the
// next look.
func TestBackoffIsKept(t *testing.T) {
	t.Parallel()
	for _, quiet := range []bool{false, true} {
		t.Run(fmt.Sprint("quiet ", quiet), func(t *testing.T) {
			t.Parallel()
			dbs, _ := clients(t, 1, quiet)
			var calls atomic.Int64
			done := make(chan struct{})
			w := startWorker(t, dbs[0], WorkerConfig{
				Backoff: Backoff{Min: 10 * time.Millisecond, Max: 10 * time.Millisecond},
				Rescan:  time.Hour, Poll: Backoff{Min: time.Hour, Max: time.Hour},
			}, Observer{Name: "o", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error {
				if calls.Add(1) < 6 {
					return errors.New("on purpose")
				}
				close(done)
				return nil
			}})
			set(t, dbs[0], Cell{"t", "r", "v"}, "x")
			began := time.Now()
			idle(t, w)
			<-done
			require.Less(t, time.Since(began), 5*time.Second)
			require.GreaterOrEqual(t, time.Since(began), 40*time.Millisecond)
		})
	}
}

// A function that hides that a read failed is to blame for what it returns, as long
// as the store takes the record of it.
func TestSwallowedReadFailureIsCounted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		returns func(err error) error
		parks   bool
	}{
		"another error":        {func(error) error { return errors.New("its own words") }, true},
		"nothing, and commits": {func(error) error { return nil }, true}, // whose validation fails by the same read
		"the store's error":    {func(err error) error { return fmt.Errorf("wrapped: %w", err) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dbs, taps := clients(t, 1, false, withoutGroups())
			// The row "read" can be read, but the commit cannot validate that it was.
			fails := func(r rowstore.RowRead) bool {
				return r.Row == "broken" || r.Row == "read" && slices.ContainsFunc(r.Selectors, func(p rowstore.Selector) bool { return p.From > 0 })
			}
			taps[0].failRead.Store(&fails)
			var calls atomic.Int64
			w := startWorker(t, dbs[0], WorkerConfig{MaxAttempts: 3, Backoff: Backoff{Min: time.Millisecond, Max: time.Millisecond}}, Observer{
				Name: "o", Table: "t", Column: "v", Isolation: Serializable, Func: func(ctx context.Context, tx *Txn, c Cell) error {
					calls.Add(1)
					if _, err := tx.Get(ctx, Cell{"t", "read", "v"}); err != nil && !errors.Is(err, ErrNotFound) {
						return err
					}
					if _, err := tx.Get(ctx, Cell{"t", "broken", "v"}); err != nil && !errors.Is(err, ErrNotFound) {
						return test.returns(err)
					}
					return nil
				},
			})
			set(t, dbs[0], Cell{"t", "r", "v"}, "x")
			if test.parks {
				idle(t, w)
				parked, err := dbs[0].Parked(t.Context())
				require.NoError(t, err)
				require.Len(t, parked, 1)
				require.EqualValues(t, 3, calls.Load())
				return
			}
			require.Eventually(t, func() bool { return calls.Load() >= 5 }, patience, time.Millisecond)
			require.Zero(t, dbs[0].Stats().ObserverFailures, "the store's failure is not the function's")
			taps[0].failRead.Store(nil)
			idle(t, w)
			require.EqualValues(t, 1, dbs[0].Stats().ObserverRuns)
		})
	}
}

func TestHalfOfABackoff(t *testing.T) {
	t.Parallel()
	w := NewWorker(open(t, memstore.New(), WithLockWait(Backoff{Max: time.Second}), WithRetryWait(Backoff{Min: time.Second})), WorkerConfig{
		Poll: Backoff{Max: time.Second}, Backoff: Backoff{Max: time.Hour},
	})
	require.Equal(t, Backoff{Min: time.Millisecond, Max: time.Second}, w.config.Poll)
	require.Equal(t, Backoff{Min: 50 * time.Millisecond, Max: time.Hour}, w.config.Backoff)
	require.Equal(t, Backoff{Min: 200 * time.Microsecond, Max: time.Second}, w.db.opt.lockWait)
	require.Equal(t, Backoff{Min: time.Second, Max: time.Second}, w.db.opt.retryWait, "what is given counts")
	w = NewWorker(w.db, WorkerConfig{Poll: Backoff{Min: time.Second}, Backoff: Backoff{Max: time.Millisecond}})
	require.Equal(t, Backoff{Min: time.Second, Max: time.Second}, w.config.Poll)
	require.Equal(t, Backoff{Min: time.Millisecond, Max: time.Millisecond}, w.config.Backoff)
}

// A run is parked whatever the length of its row's key is.
func TestLongRowsAreParked(t *testing.T) {
	t.Parallel()
	tap := &tapped{Store: memstore.New(), limits: &rowstore.Limits{Row: 300}}
	db := open(t, tap, quick)
	var broken atomic.Bool
	broken.Store(true)
	w := startWorker(t, db, WorkerConfig{MaxAttempts: 1}, Observer{Name: "o", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error {
		if broken.Load() {
			return errors.New("on purpose")
		}
		return nil
	}})
	cells := []Cell{{"t", strings.Repeat("r", 300), "v"}, {"t", strings.Repeat("r", 299), "v"}, {"t", "r", "v"}}
	for _, c := range cells {
		set(t, db, c, "x")
	}
	idle(t, w)
	parked, err := db.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, len(cells))
	var got []Cell
	for _, p := range parked {
		got = append(got, p.Cell)
	}
	require.ElementsMatch(t, cells, got)
	broken.Store(false)
	require.NoError(t, db.Release(t.Context(), parked...))
	idle(t, w)
	require.EqualValues(t, len(cells), db.Stats().ObserverRuns)
	parked, err = db.Parked(t.Context())
	require.NoError(t, err)
	require.Empty(t, parked)
}

func TestParkAndRelease(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New(), quick)
	var broken atomic.Bool
	broken.Store(true)
	w := startWorker(t, db, WorkerConfig{MaxAttempts: 3, Backoff: Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond}}, Observer{
		Name: "o", Table: "t", Column: "v", Func: func(_ context.Context, tx *Txn, c Cell) error {
			if broken.Load() {
				if c.Row == "panics" {
					panic("on purpose")
				}
				return errors.New("on purpose")
			}
			c.Column = "out"
			return tx.Set(c, []byte("done"))
		},
	})
	set(t, db, Cell{"t", "fails", "v"}, "1")
	set(t, db, Cell{"t", "panics", "v"}, "1")
	idle(t, w)
	parked, err := db.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, 2)
	for _, p := range parked {
		require.Equal(t, 3, p.Attempts)
		require.Contains(t, p.Error, "on purpose")
	}
	require.EqualValues(t, 6, db.Stats().ObserverFailures)
	broken.Store(false)
	idle(t, w)
	require.Equal(t, "none", get(t, db, Cell{"t", "fails", "out"}))
	set(t, db, Cell{"t", "panics", "v"}, "2") // a later change runs normally
	require.NoError(t, db.Release(t.Context(), parked[0]))
	idle(t, w)
	require.Equal(t, "done", get(t, db, Cell{"t", "fails", "out"}))
	require.Equal(t, "done", get(t, db, Cell{"t", "panics", "out"}))
	parked, err = db.Parked(t.Context())
	require.NoError(t, err)
	require.Empty(t, parked)
}

func TestReleaseRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	for _, name := range []string{"", strings.Repeat("x", format.MaxObserverName+1)} {
		require.ErrorIs(t, c.Release(t.Context(), ParkedRun{Observer: name, Cell: rowA}), ErrInvalid)
	}
	require.NoError(t, c.Release(t.Context(), ParkedRun{Observer: "o", Cell: rowA}), "what is not parked")
	require.NoError(t, c.Release(t.Context()))
	require.Empty(t, w.notified(rowA))
}

// What the library keeps of a failure is not bounded by the program's Limits: the run is parked, released, dropped, and takes effect once its function fits, also where that
// leaves no room for the record of the failure.
func TestFailuresWithinSmallLimits(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]Limits{"cells": {Cells: 2}, "one cell": {Cells: 1}, "bytes": {Bytes: 100}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o")
			c := w.client(WithLimits(limits))
			set(t, c.DB, rowA, "1")
			fails := true
			wk := watching(t, c, Observer{Name: "o", MaxAttempts: 2, Func: func(_ context.Context, tx *Txn, _ Cell) error {
				if fails {
					return errors.New(strings.Repeat("x", 1000))
				}
				return tx.Set(rowC, []byte("done"))
			}})
			parks := func() []ParkedRun {
				for range 2 {
					look(t, wk, rowA)
					w.clock.advance(time.Minute + time.Second)
				}
				parked, err := c.Parked(t.Context())
				require.NoError(t, err)
				require.Len(t, parked, 1)
				return parked
			}
			require.NoError(t, c.Release(t.Context(), parks()...))
			require.NoError(t, c.DropParked(t.Context(), parks()...))
			set(t, c.DB, rowA, "2")
			look(t, wk, rowA)
			w.clock.advance(time.Minute + time.Second)
			fails = false
			runs(t, wk, rowA)
			require.Equal(t, "done", value(t, c, rowC))
		})
	}
}

// textError panics where it is a nil pointer that was returned as an error.
type textError struct{ text string }

func (e *textError) Error() string { return e.text }

// isError panics when somebody asks what it is.
type isError struct{}

func (isError) Error() string { return "an error" }
func (isError) Is(error) bool { panic("on purpose") }

// An error that panics when somebody asks for its text, or what it is, does not end the program.
func TestErrorsThatPanic(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		says string
	}{
		"nil pointer":         {(*textError)(nil), "nil pointer"},
		"wrapped nil pointer": {Park((*textError)(nil)), "nil pointer"},
		"bad Is":              {isError{}, "on purpose"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o")
			c := w.client()
			set(t, c.DB, rowA, "1")
			look(t, watching(t, c, Observer{Name: "o", MaxAttempts: 1, Func: func(context.Context, *Txn, Cell) error { return test.err }}), rowA)
			parked, err := c.Parked(t.Context())
			require.NoError(t, err)
			require.Len(t, parked, 1)
			require.Contains(t, parked[0].Error, test.says)
		})
	}
}
