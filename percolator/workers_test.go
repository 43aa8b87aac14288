package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
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

func (s *tapped) Abilities() rowstore.Abilities {
	beneath := rowstore.AbilitiesOf(s.Store)
	has := rowstore.Abilities{Grouper: beneath.Grouper, OracleProvider: beneath.OracleProvider}
	if !s.quiet {
		has.Waker = beneath.Waker
	}
	if s.limits != nil {
		has.Limiter = s
	}
	return has
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
	if r.Selectors[0].Family == rowstore.Notify {
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
	mem := memstore.New()
	for range n {
		tap := &tapped{Store: mem, quiet: quiet}
		dbs, taps = append(dbs, open(t, tap, append([]Option{quick}, opts...)...)), append(taps, tap)
	}
	return dbs, taps
}

// setRows sets one column of many rows in one transaction.
func setRows(t testing.TB, db *DB, column string, n int) {
	t.Helper()
	setEach(t, db, n, func(i int) Cell { return Cell{"t", fmt.Sprintf("%06d", i), column} })
}

// setEach sets n cells to "1" in one transaction.
func setEach(t testing.TB, db *DB, n int, cell func(i int) Cell) {
	t.Helper()
	require.NoError(t, db.Update(t.Context(), func(tx *Txn) (err error) {
		for i := range n {
			err = errors.Join(err, tx.Set(cell(i), []byte("1")))
		}
		return err
	}))
}

// registered puts an observer into the catalog that nobody runs.
func registered(t testing.TB, db *DB, name, column string) {
	t.Helper()
	_, err := db.changeCatalog(t.Context(), func(v *catalogView) (bool, error) {
		v.Observers = append(v.Observers, format.Observer{Name: []byte(name), Table: []byte("t"), Column: []byte(column), Swept: 1})
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
// with many cells: neither keeps the other from its work. No lease ends while the test
// waits, so it would wait in vain if one left a cell to the other for as long as that.
func TestObserversOfOneColumnInTwoProcesses(t *testing.T) {
	t.Parallel()
	dbs, _ := clients(t, 2, true)
	var a, b atomic.Int64
	lasting := WorkerConfig{MemberLease: mostMemberLease}
	wa := startWorker(t, dbs[0], lasting, counting("a", "v", &a))
	wb := startWorker(t, dbs[1], lasting, counting("b", "v", &b))
	idle(t, wa)
	idle(t, wb)
	for round := range 3 {
		setRows(t, dbs[0], "v", 64)
		var wg sync.WaitGroup
		for _, w := range []*Worker{wa, wb} {
			wg.Go(func() { idle(t, w) })
		}
		wg.Wait()
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
			const cells = 2000
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
			began := time.Now()
			_, err := dbs[0].Backlog(t.Context(), cells)
			require.NoError(t, err)
			scan := time.Since(began) // long where the machine is busy
			t.Logf("quickest %v, a scan %v", quickest, scan)
			require.Less(t, quickest, time.Second+5*scan)
			require.Less(t, taps[0].reads.Load()-reads, int64(cells/10), "the cells of others were looked at again")
		})
	}
}

// A commit of many rows beside very many cells that wait for an observer which nobody runs: the worker looks at the rows
// that the push names, and does not walk through what waits.
func TestLargeCommitsBesideAForeignBacklog(t *testing.T) {
	eachCrew(t, func(t *testing.T, c *crew) {
		const waiting = 3000
		registered(t, c.source, "foreign", "v")
		m := c.hire(WorkerConfig{Rescan: time.Hour, MemberLease: time.Minute}, nil, "own").start()
		settle()
		ran := 0
		run := func(names []string) {
			t.Helper()
			c.change(names...)
			ran += len(names)
			time.Sleep(time.Second)
			synctest.Wait()
			require.Equal(t, ran, m.count())
		}
		run(rows("waiting", waiting))
		time.Sleep(3 * time.Minute) // the looks that found it have ended
		var walks atomic.Int64
		m.wire.AddRule(faultstore.Rule{Times: -1, Match: scansOfT, Before: func(_ context.Context, x *call) faultstore.Fault {
			slots := 0
			for _, r := range x.Range.Slots {
				slots += int(r.Last-r.First) + 1
			}
			if slots > mostAsked {
				walks.Add(1)
			}
			return faultstore.Fault{}
		}})
		for i, n := range []int{1, 300, 1000} {
			run(rows(fmt.Sprint("new", i, "-"), n))
			require.Zero(t, walks.Load(), "%d rows", n)
		}
		for i := 0; i < 20 && walks.Load() == 0; i++ { // a look may come between two parts of a push
			run(rows(fmt.Sprint("most", i, "-"), 2000))
		}
		require.Positive(t, walks.Load(), "of so many the push means any row")
	})
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
