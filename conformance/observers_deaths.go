package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// deathBeforeNotification leaves an observed secondary locked by a client that died
// right after its commit point. Nobody reads the cell; its observer must run all the
// same. If the client died before its commit point, there is no change to observe.
func deathBeforeNotification(t testing.TB, e *env) {
	e.in(t, "TwoPhase", []percolator.Option{coretest.WithoutGroups()}, func(w *world) {
		db := w.observed(shortLease()...)
		r := w.work(db, quickWorker, copies("copy", "a", "b"))
		r.idle()
		for i, die := range []int64{2, 1} {
			row := fmt.Sprint("r", i)
			_, acknowledged := w.dieAt(die, shortLease(), percolator.Cell{Table: "primary", Row: row, Column: "v"}, "p", col(row, "a"), "seen")
			require.Equal(w, die == 2, acknowledged)
			if die == 2 {
				w.until("the observer to run", func() bool { return w.now(db, col(row, "b"))[0] == "seen" })
			}
		}
		r.idle()
		require.Equal(w, map[string]string{"r0=seen": "I"}, w.ledger(db, "copy"))
		w.until("what the dead client left to go", func() bool {
			r.idle()
			return len(w.notifications()) == 0
		})
		require.Equal(w, []string{"seen", missing}, w.now(db, col("r0", "a"), col("r1", "a")))
	})
}

// deathAtEachStepIsObserved kills loaders at each call of a commit. Afterwards the
// observer has run for what was committed, and for nothing else.
func deathAtEachStepIsObserved(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		// Leases that a commit keeps on a busy machine too: some must get through.
		leases := []percolator.Option{percolator.WithSessionLease(2 * time.Second), percolator.WithLockExpiry(2 * time.Second)}
		db := w.observed(append(leases, percolator.WithSettings(percolator.Settings{MaxTxnAge: 20 * time.Second, Retention: time.Hour, CatalogLease: 2 * time.Second}))...)
		r := w.work(db, quickWorker, copies("copy", "a", "b"))
		r.idle()
		var g errgroup.Group
		var deaths atomic.Int64
		rows := []string{}
		for step := range 16 {
			for _, after := range []bool{false, true} {
				loader, c := w.client(leases...)
				c.Outlive()
				row := fmt.Sprintf("%d-%v", step, after)
				rows = append(rows, row, row+" too")
				g.Go(func() error {
					tx, err := loader.Begin(w.ctx)
					if err != nil {
						return err
					}
					if err := errors.Join(tx.Set(col(row, "a"), []byte("x")), tx.Set(col(row+" too", "a"), []byte("x")), tx.Notify(col("weak "+row, "a"))); err != nil && !errors.Is(err, percolator.ErrNotObserved) {
						return err
					}
					c.dieAt(step, after)
					ctx, cancel := c.living(w.ctx)
					defer cancel()
					cerr := tx.Commit(ctx)
					if c.died() {
						c.Settle()
						deaths.Add(1)
					}
					if cerr == nil {
						c.close(w.ctx, loader)
					}
					return nil
				})
			}
		}
		require.NoError(w, g.Wait())
		require.Positive(w, deaths.Load())
		// Nothing is left when the leases of the dead have ended.
		w.until("everything to be observed", func() bool {
			r.idle()
			return len(w.notifications()) == 0
		})
		l := w.ledger(db, "copy")
		committed := 0
		for _, row := range rows {
			v := w.now(db, col(row, "a"), col(row, "b"))
			require.Equal(w, v[0], v[1], "row %s", row)
			if v[0] != missing {
				committed++
				require.Equal(w, "I", l[row+"=x"])
			} else {
				require.NotContains(w, l, row+"=x")
			}
		}
		require.Positive(w, committed)
		w.Logf("%d deaths; %d of %d cells committed", deaths.Load(), committed, len(rows))
	})
}

// load changes cells of column "a", concurrently, and returns the last value of
// each. The values count from first on.
func load(w *world, dbs []*percolator.DB, rows, first, changes int) map[string]string {
	w.Helper()
	rng := seeded(w)
	last := make([]map[string]string, len(dbs))
	var g errgroup.Group
	for i, db := range dbs {
		rng := fork(rng)
		last[i] = map[string]string{}
		g.Go(func() error {
			for n := range changes {
				row := fmt.Sprintf("%d-%d", i, rng.IntN(rows)) // rows of its own, so that the last value is known
				v := fmt.Sprint(first + n)
				if err := db.Update(w.ctx, func(tx *percolator.Txn) error { return tx.Set(col(row, "a"), []byte(v)) }); err != nil {
					return err
				}
				last[i][row] = v
			}
			return nil
		})
	}
	require.NoError(w, g.Wait())
	all := map[string]string{}
	for _, m := range last {
		for row, v := range m {
			all[row] = v
		}
	}
	return all
}

// checkLedger checks that the last change of each row was observed, and no change
// by two runs.
func checkLedger(w *world, db *percolator.DB, last map[string]string) {
	w.Helper()
	l := w.ledger(db, "copy")
	for entry, runs := range l {
		require.Equal(w, "I", runs, "the change %s has one run that took effect", entry)
	}
	for row, v := range last {
		require.Contains(w, l, row+"="+v, "the last change of %s was observed", row)
		require.Equal(w, []string{v, v}, w.now(db, col(row, "a"), col(row, "b")))
	}
	require.NotEmpty(w, last)
}

func twoWorkers(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db1, db2 := w.observed(), w.db()
		r1, r2 := w.work(db1, quickWorker, copies("copy", "a", "b")), w.work(db2, quickWorker, copies("copy", "a", "b"))
		r1.idle()
		r2.idle()
		last := load(w, []*percolator.DB{w.db(), w.db(), db1}, 5, 0, e.n(60, 20))
		r1.idle()
		r2.idle()
		checkLedger(w, db1, last)
		w.cleared()
		w.Logf("runs that took effect: %d and %d; conflicts: %d and %d", db1.Stats().ObserverRuns, db2.Stats().ObserverRuns,
			db1.Stats().ObserverConflicts, db2.Stats().ObserverConflicts)
	})
}

func twoWorkersAndLostReplies(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		rng := seeded(w)
		var lost atomic.Int64
		var dbs []*percolator.DB
		var clients []*client
		for i := range 3 {
			opts := shortLease()
			if i == 0 {
				opts = append(opts, observedSettings())
			}
			db, c := w.client(opts...)
			dbs, clients = append(dbs, db), append(clients, c)
		}
		r1, r2 := w.work(dbs[0], quickWorker, copies("copy", "a", "b")), w.work(dbs[1], quickWorker, copies("copy", "a", "b"))
		r1.idle()
		r2.idle()
		for _, c := range clients[:2] {
			c.on(losing(fork(rng), 0.2, &lost))
		}
		last := map[string]string{}
		for first, n := 0, e.n(60, 20); lost.Load() == 0; first += n {
			for row, v := range load(w, dbs[2:], 5, first, n) {
				last[row] = v
			}
			r1.idle()
			r2.idle()
			require.NoError(w, w.ctx.Err(), "no reply was lost")
		}
		for _, c := range clients {
			c.on(nil)
		}
		checkLedger(w, dbs[2], last)
	})
}

func workersUnderFaults(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		rng := seeded(w)
		loader := w.observed(shortLease()...)
		db1, f1, settle1 := w.faulty(rng.Uint64(), shortLease()...)
		db2, f2, settle2 := w.faulty(rng.Uint64(), shortLease()...)
		r1, r2 := w.work(db1, quickWorker, copies("copy", "a", "b")), w.work(db2, quickWorker, copies("copy", "a", "b"))
		r1.idle()
		r2.idle()
		w.setRates(f1)
		w.setRates(f2)
		last := load(w, []*percolator.DB{loader}, 8, 0, e.n(60, 30))
		r1.idle()
		r2.idle()
		for _, f := range []*faultstore.Store{f1, f2} {
			f.SetRates(faultstore.Rates{})
			f.DeliverLate()
			w.Logf("%v", f)
		}
		r1.idle() // what arrived late may have notified once more
		r2.idle()
		r1.end()
		r2.end()
		settle1()
		settle2()
		checkLedger(w, loader, last)
	})
}

// patientClock is the system's clock. It keeps the longest time that somebody was ready to sleep.
type patientClock struct{ longest atomic.Int64 }

func (*patientClock) Now() time.Time { return time.Now() }

// Sleep implements percolator.Clock.
func (c *patientClock) Sleep(ctx context.Context, d time.Duration) error {
	for {
		longest := c.longest.Load()
		if int64(d) <= longest || c.longest.CompareAndSwap(longest, int64(d)) {
			break
		}
	}
	return contexts.Sleep(ctx, d)
}

// workersThatDie kills workers at random calls; another one finishes the work.
func workersThatDie(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		rng := seeded(w)
		survivor := w.observed(shortLease()...)
		r := w.work(survivor, quickWorker, copies("copy", "a", "b"))
		r.idle()
		loader := w.db(shortLease()...)
		last := map[string]string{}
		// A dead worker cannot find out the outcome of its commit any more. It waits for
		// that until StopTimeout.
		mortal := quickWorker
		mortal.StopTimeout = 100 * time.Millisecond
		var clock patientClock
		for i := range e.n(8, 2) {
			db, c := w.client(append(shortLease(), percolator.WithClock(&clock))...)
			c.Outlive()
			left := int64(20 + rng.IntN(150))
			c.on(func(context.Context, *call) fate {
				if atomic.AddInt64(&left, -1) == 0 {
					return []fate{diesBefore, diesAfter}[i%2]
				}
				return goesThrough
			})
			dying := w.work(db, mortal, copies("copy", "a", "b"))
			for row, v := range load(w, []*percolator.DB{loader}, 6, 15*i, 15) {
				last[row] = v
			}
			c.CrashClient()
			dying.stop()
			<-dying.done
			c.Settle()
			r.idle()
			checkLastSeen(w, loader, last)
		}
		w.until("everything to be observed", func() bool {
			r.idle()
			return len(w.notifications()) == 0
		})
		checkLastSeen(w, loader, last)
		// Nothing that a dying worker waits for has kept a default of seconds: whether it is waited for
		// to the end is chance.
		require.Less(w, time.Duration(clock.longest.Load()), 5*time.Second, "a dying worker was ready to wait this long")
	})
}

func checkLastSeen(w *world, db *percolator.DB, last map[string]string) {
	w.Helper()
	for row, v := range last {
		w.until("a dead worker's locks to go", func() bool { return slices.Equal([]string{v, v}, w.now(db, col(row, "a"), col(row, "b"))) })
	}
}
