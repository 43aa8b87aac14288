package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// tapped is a store that counts its calls, may fail some of them, and may hide its
// push.
type tapped struct {
	rowstore.Store
	quiet        bool                                        // hides the push
	limits       *rowstore.Limits                            // not nil: those of the store
	scans, reads atomic.Int64                                // of notifications; of rows
	calls        atomic.Int64                                // of Read
	failRead     atomic.Pointer[func(rowstore.RowRead) bool] // tells which reads fail
	onScan       atomic.Pointer[func(rowstore.ScanRange)]    // is called before each scan
}

func (s *tapped) Offer(target any) bool {
	switch p := target.(type) {
	case *rowstore.Grouper:
		*p, _ = rowstore.Unwrap[rowstore.Grouper](s.Store)
	case *rowstore.OracleProvider:
		*p, _ = rowstore.Unwrap[rowstore.OracleProvider](s.Store)
	case *rowstore.Waker:
		if s.quiet {
			return false
		}
		*p, _ = rowstore.Unwrap[rowstore.Waker](s.Store)
	case *rowstore.Limiter:
		if s.limits == nil {
			return false
		}
		*p = s
	default:
		return false
	}
	return true
}

func (s *tapped) Limits() rowstore.Limits { return *s.limits }

func (s *tapped) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	s.calls.Add(1)
	s.reads.Add(int64(len(reads)))
	if fails := s.failRead.Load(); fails != nil {
		for _, r := range reads {
			if (*fails)(r) {
				return nil, errors.New("test: the read fails")
			}
		}
	}
	return s.Store.Read(ctx, reads)
}

func (s *tapped) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	if r.Picks[0].Family == rowstore.Notify {
		s.scans.Add(1)
		if f := s.onScan.Load(); f != nil {
			(*f)(r)
		}
	}
	return s.Store.Scan(ctx, r)
}

// Close leaves the store to the other clients.
func (s *tapped) Close() error { return nil }

// clients opens n databases over one store, each with a tap of its own.
func clients(t testing.TB, n int, quiet bool, opts ...Option) (dbs []*DB, taps []*tapped) {
	t.Helper()
	mem := rowstore.NewMemory()
	for range n {
		tap := &tapped{Store: mem, quiet: quiet}
		dbs, taps = append(dbs, open(t, tap, append([]Option{quick}, opts...)...)), append(taps, tap)
	}
	return dbs, taps
}

// setRows sets one column of many rows in one transaction.
func setRows(t testing.TB, db *DB, column string, n int) {
	t.Helper()
	require.NoError(t, db.Update(t.Context(), func(tx *Txn) error {
		for i := range n {
			if err := tx.Set(Cell{"t", fmt.Sprintf("%06d", i), column}, []byte("x")); err != nil {
				return err
			}
		}
		return nil
	}))
}

// registered puts an observer into the catalog that nobody runs.
func registered(t testing.TB, db *DB, name, column string) {
	t.Helper()
	_, err := db.changeCatalog(t.Context(), func(v *catalogView) (bool, error) {
		v.Observers = append(v.Observers, observerRecord{Name: []byte(name), Table: []byte("t"), Column: []byte(column), Swept: 1})
		return true, nil
	})
	require.NoError(t, err)
}

func counting(name, column string, n *atomic.Int64) Observer {
	return Observer{Name: name, Table: "t", Column: column, Func: func(context.Context, *Txn, Cell) error {
		n.Add(1)
		return nil
	}}
}

// Two processes with an observer each on one column, over a store without a push,
// with enough cells for scan leases: neither keeps the other from its work.
func TestObserversOfOneColumnInTwoProcesses(t *testing.T) {
	t.Parallel()
	dbs, _ := clients(t, 2, true)
	var a, b atomic.Int64
	wa := startWorker(t, dbs[0], WorkerConfig{}, counting("a", "v", &a))
	wb := startWorker(t, dbs[1], WorkerConfig{}, counting("b", "v", &b))
	idle(t, wa)
	idle(t, wb)
	for round := range 3 {
		began := time.Now()
		setRows(t, dbs[0], "v", 64)
		var wg sync.WaitGroup
		for _, w := range []*Worker{wa, wb} {
			wg.Go(func() { idle(t, w) })
		}
		wg.Wait()
		require.Less(t, time.Since(began), wa.config.ScanLease/2, "round %d: one waited for the other's lease", round)
		require.GreaterOrEqual(t, a.Load(), int64(64*(round+1)))
		require.GreaterOrEqual(t, b.Load(), int64(64*(round+1)))
	}
}

// Cells that wait for the observers of others, which nobody runs, hold up an
// observer's own cells by no more than a scan over them.
func TestForeignBacklogDoesNotDelay(t *testing.T) {
	t.Parallel()
	for _, quiet := range []bool{false, true} {
		t.Run(fmt.Sprint("quiet ", quiet), func(t *testing.T) {
			t.Parallel()
			dbs, taps := clients(t, 1, quiet)
			registered(t, dbs[0], "foreign", "v")
			const cells = 10_000
			setRows(t, dbs[0], "v", cells)
			ran := make(chan time.Time, 10)
			w := startWorker(t, dbs[0], WorkerConfig{}, Observer{Name: "own", Table: "t", Column: "v", Func: func(_ context.Context, _ *Txn, c Cell) error {
				if c.Row == "zz" {
					ran <- time.Now()
				}
				return nil
			}})
			idle(t, w)
			require.GreaterOrEqual(t, dbs[0].Stats().ObserverRuns, uint64(cells))
			idle(t, w)
			reads := taps[0].reads.Load()
			quickest := time.Hour // a busy machine spoils the others
			for range 5 {
				began := time.Now()
				set(t, dbs[0], Cell{"t", "zz", "v"}, "x")
				quickest = min(quickest, (<-ran).Sub(began))
			}
			idle(t, w)
			t.Logf("quickest %v", quickest)
			require.Less(t, quickest, time.Second)
			require.Less(t, taps[0].reads.Load()-reads, int64(cells/10), "the cells of others were looked at again")
		})
	}
}

// What waits, for an observer that nobody runs or for its next attempt, is not
// looked at all the time.
func TestWaitingCellsAreNotPolledBusily(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]bool{"foreign": false, "backoff": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dbs, taps := clients(t, 1, true)
			registered(t, dbs[0], "foreign", "v")
			var calls atomic.Int64
			startWorker(t, dbs[0], WorkerConfig{Backoff: Backoff{Min: time.Hour, Max: time.Hour}}, Observer{Name: "own", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error {
				calls.Add(1)
				if fails {
					return errors.New("on purpose")
				}
				return nil
			}})
			const cells = 50
			setRows(t, dbs[0], "v", cells)
			require.Eventually(t, func() bool { return calls.Load() >= cells }, patience, time.Millisecond)
			// Until the polls have slowed down.
			require.Eventually(t, func() bool {
				scans, reads := taps[0].scans.Load(), taps[0].reads.Load()
				time.Sleep(500 * time.Millisecond)
				scans, reads = taps[0].scans.Load()-scans, taps[0].reads.Load()-reads
				t.Logf("%d scans and %d reads in half a second", scans, reads)
				return scans <= 10 && reads <= 2*cells
			}, 10*time.Second, time.Millisecond)
		})
	}
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

func waitValue(t testing.TB, ch <-chan string, want string) {
	t.Helper()
	for {
		select {
		case v := <-ch:
			if v == want {
				return
			}
		case <-time.After(patience):
			require.FailNow(t, "no run saw "+want)
		}
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

// A slow observer does not take the slots of a quick one, be they on one column or
// not.
func TestSlowObserverStarvesNobody(t *testing.T) {
	t.Parallel()
	for _, column := range []string{"v", "u"} {
		t.Run(column, func(t *testing.T) {
			t.Parallel()
			dbs, _ := clients(t, 1, false)
			release := make(chan struct{})
			var slow, quickly atomic.Int64
			w := startWorker(t, dbs[0], WorkerConfig{StopTimeout: time.Second},
				Observer{Name: "slow", Table: "t", Column: "v", Func: func(ctx context.Context, _ *Txn, _ Cell) error {
					slow.Add(1)
					select {
					case <-release:
					case <-ctx.Done():
					}
					return ctx.Err()
				}}, counting("quick", column, &quickly))
			const rows = 1000
			setRows(t, dbs[0], "v", rows)
			require.Eventually(t, func() bool { return slow.Load() >= 4 }, patience, time.Millisecond)
			if column != "v" {
				setRows(t, dbs[0], column, rows)
			}
			// Not one run of the slow observer ends meanwhile.
			require.Eventually(t, func() bool { return quickly.Load() >= rows }, patience, time.Millisecond, "the quick observer starves")
			close(release)
			idle(t, w)
			require.GreaterOrEqual(t, slow.Load(), int64(rows))
		})
	}
}

// A run is parked whatever the length of its row's key is.
func TestLongRowsAreParked(t *testing.T) {
	t.Parallel()
	tap := &tapped{Store: rowstore.NewMemory(), limits: &rowstore.Limits{Row: 300}}
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
			dbs, taps := clients(t, 1, false, WithoutGroups())
			// The row "read" can be read, but the commit cannot validate that it was.
			fails := func(r rowstore.RowRead) bool {
				return r.Row == "broken" || r.Row == "read" && slices.ContainsFunc(r.Picks, func(p rowstore.Pick) bool { return p.From > 0 })
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

// Commits to tables that the worker does not observe do not keep WaitIdle from its
// answer.
func TestWaitIdleAmongOthersPushes(t *testing.T) {
	t.Parallel()
	dbs, taps := clients(t, 1, false)
	w := startWorker(t, dbs[0], WorkerConfig{}, Observer{Name: "o", Table: "t", Column: "v", Func: nothing})
	idle(t, w)
	var pushes atomic.Int64
	push := func(rowstore.ScanRange) {
		pushes.Add(1)
		w.kick("another")
	}
	taps[0].onScan.Store(&push)
	idle(t, w)
	require.Positive(t, pushes.Load())
}

func TestHalfOfABackoff(t *testing.T) {
	t.Parallel()
	w := NewWorker(open(t, rowstore.NewMemory(), WithLockWait(Backoff{Max: time.Second}), WithRetryWait(Backoff{Min: time.Second})), WorkerConfig{
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

// WaitIdle of a worker whose Run has ended says so, whatever is left.
func TestWaitIdleAfterRun(t *testing.T) {
	t.Parallel()
	db := open(t, rowstore.NewMemory(), quick)
	w := NewWorker(db, WorkerConfig{})
	require.NoError(t, w.Observe(Observer{Name: "o", Table: "t", Column: "v", Func: nothing}))
	ctx, cancel := context.WithCancel(t.Context())
	done := async(func() error { return w.Run(ctx) })
	idle(t, w)
	cancel()
	require.NoError(t, result(t, done))
	for range 100 {
		require.ErrorIs(t, w.WaitIdle(t.Context()), ErrClosed)
	}
}

// Work that another worker moves behind the looks of WaitIdle, where no push tells of
// it: the third and fourth look find what the first two have missed.
func TestWaitIdleSeesWorkThatMoves(t *testing.T) {
	t.Parallel()
	dbs, taps := clients(t, 2, true)
	w := startWorker(t, dbs[0], WorkerConfig{Poll: Backoff{Min: time.Hour, Max: time.Hour}}, Observer{Name: "o", Table: "t", Column: "v", Func: nothing})
	idle(t, w)
	before := dbs[0].Stats().ObserverRuns
	// Another process commits when the second look of WaitIdle has begun, behind it.
	var looks atomic.Int64
	var once sync.Once
	move := func(r rowstore.ScanRange) {
		if r.Limit > 0 {
			return // the scanner's
		}
		if looks.Add(1) == 3 {
			once.Do(func() { set(t, dbs[1], Cell{"t", "r", "v"}, "x") })
		}
	}
	taps[0].onScan.Store(&move)
	idle(t, w)
	require.GreaterOrEqual(t, looks.Load(), int64(4))
	require.Equal(t, before+1, dbs[0].Stats().ObserverRuns)
}

// A worker that stops starts nothing of what is queued.
func TestStoppingWorkerLeavesItsQueue(t *testing.T) {
	t.Parallel()
	dbs, _ := clients(t, 1, false)
	started, release := make(chan struct{}, 100), make(chan struct{})
	w, stop, _ := running(t, dbs[0], WorkerConfig{Concurrency: 1}, Observer{Name: "o", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error {
		started <- struct{}{}
		<-release
		return nil
	}})
	idle(t, w)
	const rows = 20
	setRows(t, dbs[0], "v", rows)
	<-started
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.jobs) == rows
	}, patience, time.Millisecond)
	stopped := async(func() error { stop(); return nil })
	<-w.ctx.Done()
	close(release)
	require.NoError(t, result(t, stopped))
	require.Empty(t, started)
	require.EqualValues(t, 1, dbs[0].Stats().ObserverRuns)
	require.Empty(t, w.jobs)
}
