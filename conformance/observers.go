package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// observerTests is the list of the third part.
func observerTests() []test {
	return []test{
		{"Chain", Observing, observerChain},
		{"ChangesCollapse", Observing, changesCollapse},
		{"SelfNotification", Observing, selfNotification},
		{"SeveralObserversOfAColumn", Observing, severalObserversOfAColumn},
		{"EveryColumnOfARow", Observing, everyColumnOfARow},
		{"DeletesAreObserved", Observing, deletesAreObserved},
		{"OddObservedCells", Observing, oddObservedCells},
		{"WeakNotificationsOverlap", Observing, weakNotificationsOverlap},
		{"WeakNotificationOfAnUnwrittenCell", Observing, weakOfAnUnwrittenCell},
		{"NotifyOfAnUnobservedColumn", Observing, notifyOfAnUnobservedColumn},
		{"DeathBetweenCommitAndNotification", Observing, deathBeforeNotification},
		{"DeathAtEachStepIsObserved", Observing, deathAtEachStepIsObserved},
		{"TwoWorkers", Observing, twoWorkers},
		{"TwoWorkersAndLostReplies", Observing, twoWorkersAndLostReplies},
		{"WorkersUnderFaultsOfEveryKind", Observing, workersUnderFaults},
		{"WorkersThatDie", Observing, workersThatDie},
		{"FailureAndParking", Observing, failureAndParking},
		{"LaterChangeOfAParkedCell", Observing, laterChangeOfAParkedCell},
		{"PanicIsAFailure", Observing, panicIsAFailure},
		{"ConflictsDoNotCount", Observing, conflictsDoNotCount},
		{"AttemptsAreKept", Observing, attemptsAreKept},
		{"Backfill", Observing, backfill},
		{"ObserverThatComesBack", Observing, observerThatComesBack},
		{"BackfillUnderLoad", Observing, backfillUnderLoad},
		{"OthersNotificationsStay", Observing, othersNotificationsStay},
		{"GracefulStop", Observing, gracefulStop},
		{"StopTimeout", Observing, stopTimeout},
		{"ConcurrencyIsBounded", Observing, concurrencyIsBounded},
		{"PushWakesAnIdleWorker", Observing, pushWakes},
		{"ObserveRefuses", Observing, observeRefuses},
		{"WorkerRunsOnce", Observing, workerRunsOnce},
		{"CollectionKeepsUnseenDeletes", Observing, collectionKeepsUnseenDeletes},
	}
}

// observedSettings have a short catalog lease, which a new observer waits for.
func observedSettings() percolator.Option {
	return percolator.WithSettings(percolator.Settings{MaxTxnAge: 20 * time.Second, Retention: time.Hour, CatalogLease: 100 * time.Millisecond})
}

// worker is a worker that runs.
type worker struct {
	*percolator.Worker
	w    *world
	stop context.CancelFunc
	done chan struct{}
	err  error
}

// quickWorker is the configuration of workers in tests: quick retries, no
// collections.
var quickWorker = percolator.WorkerConfig{
	MaxAttempts: 3, Backoff: percolator.Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond},
	Poll: percolator.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond}, Rescan: 50 * time.Millisecond, GCInterval: -1,
}

// observed opens a world whose settings suit observers; the first DB stores them.
func (w *world) observed(opts ...percolator.Option) *percolator.DB {
	w.Helper()
	return w.db(append([]percolator.Option{observedSettings()}, opts...)...)
}

// work starts a worker, which is stopped when the test ends, before its DB closes.
func (w *world) work(db *percolator.DB, config percolator.WorkerConfig, observers ...percolator.Observer) *worker {
	w.Helper()
	pw := percolator.NewWorker(db, config)
	for _, o := range observers {
		require.NoError(w, pw.Observe(o))
	}
	ctx, cancel := context.WithCancel(w.ctx)
	r := &worker{Worker: pw, w: w, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = pw.Run(ctx)
	}()
	w.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// idle waits until nothing is left to do.
func (r *worker) idle() {
	r.w.Helper()
	require.NoError(r.w, r.WaitIdle(r.w.ctx))
}

// end stops the worker, which must end well.
func (r *worker) end() {
	r.w.Helper()
	r.stop()
	select {
	case <-r.done:
	case <-r.w.ctx.Done():
		r.w.Fatalf("the worker did not stop")
	}
	require.NoError(r.w, r.err, "Run returns nil when its context has ended")
}

// col names a cell of the table of most tests.
func col(row, column string) percolator.Cell {
	return percolator.Cell{Table: table, Row: row, Column: column}
}

// observer makes one of the table's columns.
func observer(name, column string, f func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error) percolator.Observer {
	return percolator.Observer{Name: name, Table: table, Column: column, Func: f}
}

// copies makes an observer that copies what it sees to another column, and enters
// each run into a ledger: a row for each value seen, with how often.
func copies(name, from, to string) percolator.Observer {
	return observer(name, from, func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
		v, err := get(ctx, tx, c)
		if err != nil {
			return err
		}
		entry := percolator.Cell{Table: "ledger " + name, Row: c.Row + "=" + v, Column: "runs"}
		n, err := get(ctx, tx, entry)
		if err != nil {
			return err
		}
		if n == missing {
			n = ""
		}
		return errors.Join(tx.Set(entry, []byte(n+"I")), tx.Set(percolator.Cell{Table: c.Table, Row: c.Row, Column: to}, []byte(v)))
	})
}

// ledger reads what an observer made by copies has entered.
func (w *world) ledger(db *percolator.DB, name string) map[string]string {
	w.Helper()
	runs := map[string]string{}
	require.NoError(w, db.View(w.ctx, func(tx *percolator.Txn) error {
		for row, err := range tx.Scan(w.ctx, percolator.Range{Table: "ledger " + name}) {
			if err != nil {
				return err
			}
			runs[row.Key] = string(row.Columns["runs"])
		}
		return nil
	}))
	return runs
}

// notifications lists the cells of the table that have notifications.
func (w *world) notifications() []string {
	w.Helper()
	rows, err := collect(w.ctx, w.inner, rowstore.ScanRange{Table: table, Picks: []rowstore.Pick{pick(rowstore.Notify)}})
	require.NoError(w, err)
	cells := []string{}
	for _, r := range rows {
		for _, v := range r.Versions {
			if name := r.Row + "." + v.Column; len(cells) == 0 || cells[len(cells)-1] != name {
				cells = append(cells, name)
			}
		}
	}
	return cells
}

// cleared waits until the table has no notifications: what is covered by every
// observer is cleared, if not by the run then by the next look.
func (w *world) cleared() {
	w.Helper()
	w.until("the notifications to be cleared", func() bool { return len(w.notifications()) == 0 })
}

func observerChain(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		next := func(from, to string) percolator.Observer {
			return observer(from+" to "+to, from, func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
				n, err := number(ctx, tx, c)
				if err != nil {
					return err
				}
				// Another row, so that the chain goes over rows and back.
				row := strings.TrimPrefix(c.Row, "far ")
				if row == c.Row {
					row = "far " + row
				}
				return tx.Set(col(row, to), []byte(fmt.Sprint(n+1)))
			})
		}
		r := w.work(db, quickWorker, next("a", "b"), next("b", "c"), next("c", "d"))
		r.idle()
		n := e.n(40, 12)
		for round := range 2 {
			for i := range n {
				w.set(loader, col(key(i), "a"), fmt.Sprint(100*round+i))
			}
			r.idle()
			for i := range n {
				v := 100*round + i
				require.Equal(w, []string{fmt.Sprint(v + 1), fmt.Sprint(v + 2), fmt.Sprint(v + 3)},
					w.now(loader, col("far "+key(i), "b"), col(key(i), "c"), col("far "+key(i), "d")))
			}
		}
		w.cleared()
		require.Equal(w, uint64(6*n), db.Stats().ObserverRuns, "one run for each change")
		r.end()
		require.NoError(w, loader.Close(w.ctx))
		require.Empty(w, w.settled(db))
	})
}

func changesCollapse(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		r := w.work(db, quickWorker, copies("copy", "a", "b"))
		r.idle()
		r.end()
		for i := range 20 {
			w.set(loader, col("r", "a"), fmt.Sprint(i))
		}
		require.Equal(w, []string{"r.a"}, w.notifications())
		r = w.work(db, quickWorker, copies("copy", "a", "b"))
		r.idle()
		require.Equal(w, "19", w.now(loader, col("r", "b"))[0])
		require.Equal(w, map[string]string{"r=19": "I"}, w.ledger(loader, "copy"), "twenty changes, one run")
		w.cleared()
	})
}

func selfNotification(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		r := w.work(db, quickWorker, observer("count", "n", func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			n, err := number(ctx, tx, c)
			if err != nil || n >= 10 {
				return err
			}
			return tx.Set(c, []byte(fmt.Sprint(n+1)))
		}))
		w.set(loader, col("a", "n"), "0", col("b", "n"), "5", col("c", "n"), "50")
		r.idle()
		require.Equal(w, []string{"10", "10", "50"}, w.now(loader, col("a", "n"), col("b", "n"), col("c", "n")))
		w.cleared()
	})
}

func severalObserversOfAColumn(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		r := w.work(db, quickWorker, copies("one", "a", "b1"), copies("two", "a", "b2"), copies("three", "a", "b3"))
		r.idle()
		for i := range 10 {
			w.set(loader, col(key(i), "a"), fmt.Sprint(i))
		}
		r.idle()
		for i := range 10 {
			v := fmt.Sprint(i)
			require.Equal(w, []string{v, v, v}, w.now(loader, col(key(i), "b1"), col(key(i), "b2"), col(key(i), "b3")))
		}
		for _, name := range []string{"one", "two", "three"} {
			l := w.ledger(loader, name)
			require.Len(w, l, 10)
			for entry, runs := range l {
				require.Equal(w, "I", runs, "%s of %s", entry, name)
			}
		}
		w.cleared()
	})
}

func everyColumnOfARow(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		var observers []percolator.Observer
		var sets []any
		for i := range 6 {
			from := fmt.Sprint("in", i)
			observers = append(observers, copies(fmt.Sprint("o", i), from, fmt.Sprint("out", i)))
			sets = append(sets, col("r", from), fmt.Sprint(i))
		}
		r := w.work(db, quickWorker, observers...)
		r.idle()
		w.set(loader, append(sets, col("r", "unobserved"), "x")...)
		r.idle()
		for i := range 6 {
			require.Equal(w, fmt.Sprint(i), w.now(loader, col("r", fmt.Sprint("out", i)))[0])
			require.Equal(w, map[string]string{fmt.Sprintf("r=%d", i): "I"}, w.ledger(loader, fmt.Sprint("o", i)))
		}
		require.Equal(w, uint64(6), db.Stats().ObserverRuns)
	})
}

func deletesAreObserved(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		r := w.work(db, quickWorker, copies("copy", "a", "b"))
		w.set(loader, col("r", "a"), "x")
		r.idle()
		w.set(loader, col("r", "a"), missing)
		r.idle()
		require.Equal(w, missing, w.now(loader, col("r", "a"))[0])
		require.Equal(w, missing, w.now(loader, col("r", "b"))[0], "the observer saw that there is no value")
		require.Equal(w, map[string]string{"r=x": "I", "r=" + missing: "I"}, w.ledger(loader, "copy"))
		w.set(loader, col("never there", "a"), missing)
		r.idle()
		require.Contains(w, w.ledger(loader, "copy"), "never there="+missing, "a delete of nothing is a change")
	})
}

func oddObservedCells(t testing.TB, e *env) {
	w := e.world(t)
	db, loader := w.observed(), w.db()
	var seen sync.Map
	var observers []percolator.Observer
	var cells []percolator.Cell
	for i, n := range []string{"\x00", "\x00\x00", "\x01", "\xff", "a\x00", "a", "\x00a", "\x00p", "%", "{x}", "\xc3\x28"} {
		observers = append(observers, percolator.Observer{Name: "o" + n, Table: n, Column: n, Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			v, err := get(ctx, tx, c)
			seen.Store(c, v)
			return err
		}})
		cells = append(cells, percolator.Cell{Table: n, Row: oddNames[i], Column: n}, percolator.Cell{Table: n, Row: n, Column: n})
	}
	r := w.work(db, quickWorker, observers...)
	r.idle()
	for _, c := range cells {
		w.set(loader, c, c.String())
	}
	r.idle()
	for _, c := range cells {
		v, ok := seen.Load(c)
		require.True(t, ok, "%v was observed", c)
		require.Equal(t, c.String(), v)
	}
	infos, err := loader.Observers(w.ctx)
	require.NoError(t, err)
	require.Len(t, infos, len(observers))
	for _, o := range infos {
		require.Equal(t, o.Table, o.Column)
		require.Equal(t, "o"+o.Table, o.Name)
		require.True(t, o.Swept)
	}
}

// weakNotificationsOverlap has many transactions notify one cell at the same time.
// None conflicts with another, and the observer sees what all of them wrote.
func weakNotificationsOverlap(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		total := col("all", "dirty")
		r := w.work(db, quickWorker, observer("count", "dirty", func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			n := 0
			for _, err := range tx.Scan(ctx, percolator.Range{Table: "items"}) {
				if err != nil {
					return err
				}
				n++
			}
			return tx.Set(percolator.Cell{Table: "totals", Row: c.Row, Column: "n"}, []byte(fmt.Sprint(n)))
		}))
		r.idle()
		const workers = 6
		rounds := e.n(20, 6)
		var g errgroup.Group
		for i := range workers {
			g.Go(func() error {
				for n := range rounds {
					tx, err := loader.Begin(w.ctx)
					if err != nil {
						return err
					}
					if err := tx.Set(percolator.Cell{Table: "items", Row: fmt.Sprintf("%d-%d", i, n), Column: "v"}, []byte("x")); err != nil {
						return err
					}
					if err := errors.Join(tx.Notify(total), tx.Notify(total)); err != nil {
						return err
					}
					err = tx.Commit(w.ctx)
					for errors.Is(err, percolator.ErrConflict) && isCatalog(err) {
						// The machine was busy for a catalog lease: that is no conflict of
						// transactions.
						err = loader.Update(w.ctx, func(tx *percolator.Txn) error {
							return errors.Join(tx.Set(percolator.Cell{Table: "items", Row: fmt.Sprintf("%d-%d", i, n), Column: "v"}, []byte("x")), tx.Notify(total))
						})
					}
					if err != nil {
						return fmt.Errorf("a weak notification conflicts with nothing: %w", err)
					}
				}
				return nil
			})
		}
		require.NoError(w, g.Wait())
		r.idle()
		require.Equal(w, fmt.Sprint(workers*rounds), w.now(loader, percolator.Cell{Table: "totals", Row: "all", Column: "n"})[0])
		require.Equal(w, missing, w.now(loader, total)[0], "a notification writes nothing")
		w.cleared()
	})
}

// isCatalog tells a conflict in which no other transaction had a part.
func isCatalog(err error) bool {
	var c *percolator.ConflictError
	return errors.As(err, &c) && c.With == 0 && strings.Contains(c.Reason, "catalog")
}

func weakOfAnUnwrittenCell(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		// Calls may be more: one that ends with a conflict is made again.
		runs := func() uint64 { return db.Stats().ObserverRuns }
		r := w.work(db, quickWorker, observer("count", "a", func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }))
		r.idle()
		w.set(loader, col("written", "a"), "x")
		r.idle()
		require.EqualValues(w, 1, runs())
		for i, row := range []string{"unwritten", "written", "written"} {
			var tx *percolator.Txn
			require.NoError(w, loader.Update(w.ctx, func(u *percolator.Txn) error {
				tx = u
				return u.Notify(col(row, "a"))
			}), "a transaction of a notification alone")
			require.NotZero(w, tx.CommitTimestamp())
			r.idle()
			require.EqualValues(w, i+2, runs(), "a run for the hint on %s", row)
		}
		// One that is rolled back is none.
		tx := w.begin(loader)
		require.NoError(w, tx.Notify(col("unwritten", "a")))
		require.NoError(w, tx.Rollback(w.ctx))
		r.idle()
		require.EqualValues(w, 4, runs())
	})
}

func notifyOfAnUnobservedColumn(t testing.TB, e *env) {
	w := e.world(t)
	db, loader := w.observed(), w.db()
	notify := func(c percolator.Cell) error {
		return loader.Update(w.ctx, func(tx *percolator.Txn) error {
			return errors.Join(tx.Set(col("beside", "v"), []byte("x")), tx.Notify(c))
		})
	}
	require.ErrorIs(t, notify(col("r", "a")), percolator.ErrNotObserved)
	require.Equal(t, missing, w.now(loader, col("beside", "v"))[0], "nothing took effect")
	r := w.work(db, quickWorker, copies("copy", "a", "b"))
	r.idle()
	w.until("the loader to know the observer", func() bool {
		err := notify(col("r", "a"))
		if !errors.Is(err, percolator.ErrNotObserved) {
			require.NoError(t, err)
		}
		return err == nil
	})
	require.ErrorIs(t, notify(col("r", "b")), percolator.ErrNotObserved)
	require.ErrorIs(t, notify(percolator.Cell{Table: "other", Row: "r", Column: "a"}), percolator.ErrNotObserved)
}

// deathBeforeNotification leaves an observed secondary locked by a client that died
// right after its commit point, and is read by nobody; its observer runs all the
// same. And one whose client died before its commit point is no change.
func deathBeforeNotification(t testing.TB, e *env) {
	e.in(t, "TwoPhase", []percolator.Option{percolator.WithoutGroups()}, func(w *world) {
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
				c.mortal()
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
					var n atomic.Int64
					c.on(func(context.Context, *call) fate {
						switch {
						case int(n.Add(1))-1 != step:
							return goesThrough
						case after:
							return diesAfter
						}
						return diesBefore
					})
					ctx, cancel := context.WithCancel(w.ctx)
					defer cancel()
					stop := make(chan struct{})
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						select {
						case <-c.died:
							cancel()
						case <-stop:
						}
					}()
					cerr := tx.Commit(ctx)
					close(stop)
					<-ended
					select {
					case <-c.died:
						c.settle()
						deaths.Add(1)
					default:
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
		for _, f := range []*rowstore.Faulty{f1, f2} {
			f.SetRates(rowstore.Rates{})
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

// workersThatDie kills workers at random calls; another one finishes the work.
func workersThatDie(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		rng := seeded(w)
		survivor := w.observed(shortLease()...)
		r := w.work(survivor, quickWorker, copies("copy", "a", "b"))
		r.idle()
		loader := w.db(shortLease()...)
		last := map[string]string{}
		// A commit of the dead whose fate it cannot find out any more is waited for until
		// StopTimeout.
		mortal := quickWorker
		mortal.StopTimeout = 100 * time.Millisecond
		for i := range e.n(8, 4) {
			db, c := w.client(shortLease()...)
			c.mortal()
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
			c.kill()
			dying.stop()
			<-dying.done
			c.settle()
			r.idle()
			checkLastSeen(w, loader, last)
		}
		w.until("everything to be observed", func() bool {
			r.idle()
			return len(w.notifications()) == 0
		})
		checkLastSeen(w, loader, last)
	})
}

func checkLastSeen(w *world, db *percolator.DB, last map[string]string) {
	w.Helper()
	for row, v := range last {
		w.until("a dead worker's locks to go", func() bool { return slices.Equal([]string{v, v}, w.now(db, col(row, "a"), col(row, "b"))) })
	}
}

func failureAndParking(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		var attempts atomic.Int64
		var broken atomic.Bool
		broken.Store(true)
		o := observer("picky", "a", func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			v, err := get(ctx, tx, c)
			if err != nil {
				return err
			}
			if v == "bad" && broken.Load() {
				// What a failed call wrote must not take effect.
				return errors.Join(tx.Set(col(c.Row, "b"), []byte("half done")), fmt.Errorf("attempt %d: no good", attempts.Add(1)))
			}
			return tx.Set(col(c.Row, "b"), []byte(v))
		})
		o.MaxAttempts = 4
		r := w.work(db, quickWorker, o)
		w.set(loader, col("r1", "a"), "good", col("r2", "a"), "bad", col("r3", "a"), "good")
		r.idle()
		require.EqualValues(w, 4, attempts.Load())
		require.Equal(w, []string{"good", missing, "good"}, w.now(loader, col("r1", "b"), col("r2", "b"), col("r3", "b")))
		parked, err := r.Parked(w.ctx)
		require.NoError(w, err)
		require.Len(w, parked, 1)
		require.Equal(w, "picky", parked[0].Observer)
		require.Equal(w, col("r2", "a"), parked[0].Cell)
		require.Equal(w, 4, parked[0].Attempts)
		require.Contains(w, parked[0].Error, "attempt 4: no good", "the last error is kept")
		require.NotZero(w, parked[0].Change)
		w.cleared() // a parked run counts as covering its change
		s := db.Stats()
		require.Equal(w, uint64(4), s.ObserverFailures)
		require.Equal(w, uint64(1), s.ObserverParked)

		// Released while it is still broken: attempted again, with a fresh count.
		require.NoError(w, r.Release(w.ctx, parked...))
		r.idle()
		require.EqualValues(w, 8, attempts.Load())
		broken.Store(false)
		again, err := loader.Parked(w.ctx)
		require.NoError(w, err)
		require.Len(w, again, 1)
		require.NoError(w, loader.Release(w.ctx, again...), "any process may release")
		r.idle()
		require.Equal(w, "bad", w.now(loader, col("r2", "b"))[0])
		parked, err = r.Parked(w.ctx)
		require.NoError(w, err)
		require.Empty(w, parked)
		require.NoError(w, r.Release(w.ctx, again...), "releasing what is not parked is no error")
		r.idle()
	})
}

func laterChangeOfAParkedCell(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		good := copies("copy", "a", "b")
		run := good.Func
		good.Func = func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			if v, err := get(ctx, tx, c); err != nil || v == "bad" {
				return fmt.Errorf("no good: %w", errors.Join(err, errors.New("bad value")))
			}
			return run(ctx, tx, c)
		}
		other := copies("other", "a", "c")
		r := w.work(db, quickWorker, good, other)
		w.set(loader, col("r", "a"), "bad")
		r.idle()
		parked, err := r.Parked(w.ctx)
		require.NoError(w, err)
		require.Len(w, parked, 1)
		require.Equal(w, []string{missing, "bad"}, w.now(loader, col("r", "b"), col("r", "c")), "the other observer of the column is not held up")
		w.set(loader, col("r", "a"), "good")
		r.idle()
		require.Equal(w, []string{"good", "good"}, w.now(loader, col("r", "b"), col("r", "c")))
		parked, err = r.Parked(w.ctx)
		require.NoError(w, err)
		require.Empty(w, parked, "a later run that succeeds takes the parked one away")
	})
}

func panicIsAFailure(t testing.TB, e *env) {
	w := e.world(t)
	db, loader := w.observed(), w.db()
	r := w.work(db, quickWorker, observer("panics", "a", func(_ context.Context, tx *percolator.Txn, c percolator.Cell) error {
		if c.Row == "bad" {
			var row any = len(c.Row)
			return tx.Set(c, row.([]byte)) // a panic of the runtime
		}
		if c.Row == "worse" {
			panic(fmt.Errorf("on purpose"))
		}
		return tx.Set(col(c.Row, "b"), []byte("done"))
	}))
	w.set(loader, col("bad", "a"), "x", col("good", "a"), "x", col("worse", "a"), "x")
	r.idle()
	require.Equal(t, []string{missing, "done", missing}, w.now(loader, col("bad", "b"), col("good", "b"), col("worse", "b")))
	parked, err := r.Parked(w.ctx)
	require.NoError(t, err)
	require.Len(t, parked, 2)
	for _, p := range parked {
		require.Equal(t, quickWorker.MaxAttempts, p.Attempts)
		if p.Cell.Row == "worse" {
			require.Contains(t, p.Error, "on purpose")
		}
	}
	w.set(loader, col("good too", "a"), "x")
	r.idle()
	require.Equal(t, "done", w.now(loader, col("good too", "b"))[0], "the worker works on")
}

func conflictsDoNotCount(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		var calls atomic.Int64
		r := w.work(db, quickWorker, observer("conflicts", "a", func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			n := calls.Add(1)
			// Others change what it writes, many more times than MaxAttempts.
			if _, err := get(ctx, tx, col(c.Row, "b")); err != nil {
				return err
			}
			if n <= 8 {
				if err := loader.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(col(c.Row, "b"), []byte(fmt.Sprint(n))) }); err != nil {
					return err
				}
			}
			return tx.Set(col(c.Row, "b"), []byte("done"))
		}))
		w.set(loader, col("r", "a"), "x")
		r.idle()
		require.Equal(w, "done", w.now(loader, col("r", "b"))[0])
		require.GreaterOrEqual(w, calls.Load(), int64(9))
		require.GreaterOrEqual(w, db.Stats().ObserverConflicts, uint64(8))
		require.Zero(w, db.Stats().ObserverFailures)
	})
}

// attemptsAreKept stops the worker between the attempts: the count goes on in the
// store.
func attemptsAreKept(t testing.TB, e *env) {
	w := e.world(t)
	db, loader := w.observed(), w.db()
	var attempts atomic.Int64
	failed := make(chan struct{}, 100)
	slow := quickWorker
	slow.MaxAttempts = 5
	slow.Backoff = percolator.Backoff{Min: 20 * time.Millisecond, Max: 40 * time.Millisecond}
	o := observer("fails", "a", func(context.Context, *percolator.Txn, percolator.Cell) error {
		attempts.Add(1)
		failed <- struct{}{}
		return errors.New("never")
	})
	r := w.work(db, slow, o)
	r.idle()
	w.set(loader, col("r", "a"), "x")
	for range 2 {
		select {
		case <-failed:
		case <-w.ctx.Done():
			t.Fatal("the observer did not run")
		}
	}
	w.until("the second failure to be stored", func() bool { return db.Stats().ObserverFailures >= 2 })
	r.end()
	before := attempts.Load()
	r = w.work(db, slow, o)
	r.idle()
	// An attempt whose failure was not stored, because the worker stopped, is not
	// counted, so there may be one more for each stop.
	require.LessOrEqual(t, attempts.Load(), int64(5+1), "%d attempts before the stop", before)
	parked, err := r.Parked(w.ctx)
	require.NoError(t, err)
	require.Len(t, parked, 1)
	require.Equal(t, 5, parked[0].Attempts)
}

func backfill(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		n := e.n(600, 300)
		require.NoError(w, loader.Update(w.ctx, func(tx *percolator.Txn) error {
			for i := range n {
				w.write(tx, col(key(i), "a"), fmt.Sprint(i))
			}
			return nil
		}))
		w.set(loader, col(key(3), "a"), missing, col("other", "z"), "x")
		for i := range 5 {
			w.set(loader, col(key(0), "a"), fmt.Sprint("again", i))
		}
		r := w.work(db, quickWorker, copies("copy", "a", "b"))
		r.idle()
		for i := range n {
			v := w.now(loader, col(key(i), "a"), col(key(i), "b"))
			if i == 3 {
				continue // a delete of long ago may be seen, or not
			}
			require.Equal(w, v[0], v[1], "row %d", i)
		}
		l := w.ledger(loader, "copy")
		require.Equal(w, "I", l[key(0)+"=again4"])
		for entry, runs := range l {
			require.Equal(w, "I", runs, entry)
		}
		// A second observer, later, sees all of it too; the first one nothing again.
		runs := db.Stats().ObserverRuns
		r.end()
		r = w.work(db, quickWorker, copies("copy", "a", "b"), copies("late", "a", "c"))
		r.idle()
		late := w.ledger(loader, "late")
		require.GreaterOrEqual(w, len(late), n-1)
		require.Equal(w, l, w.ledger(loader, "copy"))
		require.Equal(w, uint64(len(late)), db.Stats().ObserverRuns-runs)
	})
}

func observerThatComesBack(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		r := w.work(db, quickWorker, copies("copy", "a", "b"))
		w.set(loader, col("r1", "a"), "1", col("r2", "a"), "1", col("r3", "a"), "1")
		r.idle()
		r.end()
		require.NoError(w, db.RemoveObserver(w.ctx, "copy"))
		require.NoError(w, db.RemoveObserver(w.ctx, "copy"), "removing twice is no error")
		infos, err := loader.Observers(w.ctx)
		require.NoError(w, err)
		require.Empty(w, infos)
		w.set(loader, col("r2", "a"), "2", col("r4", "a"), "2")
		w.until("the loader to know that nobody observes", func() bool {
			return errors.Is(loader.Update(w.ctx, func(tx *percolator.Txn) error { return tx.Notify(col("x", "a")) }), percolator.ErrNotObserved)
		})
		w.set(loader, col("r5", "a"), "3")
		require.NotContains(w, w.notifications(), "r5.a", "nobody is notified for a column that is not observed")
		r = w.work(db, quickWorker, copies("copy", "a", "b"))
		r.idle()
		require.Equal(w, []string{"1", "2", "1", "2", "3"}, w.now(loader, col("r1", "b"), col("r2", "b"), col("r3", "b"), col("r4", "b"), col("r5", "b")))
		l := w.ledger(loader, "copy")
		delete(l, "x="+missing) // a hint from before it was removed
		require.Equal(w, map[string]string{"r1=1": "I", "r2=1": "I", "r3=1": "I", "r2=2": "I", "r4=2": "I", "r5=3": "I"}, l, "only what changed meanwhile is seen again")
	})
}

// backfillUnderLoad adds an observer while loaders that know nothing of it write:
// no change may fall between the catalog and the sweep.
func backfillUnderLoad(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db := w.observed()
		loaders := []*percolator.DB{w.db(), w.db()}
		for i, l := range loaders {
			w.set(l, col(fmt.Sprint("warm", i), "z"), "the catalog is known")
		}
		var done atomic.Bool
		last := make([]map[string]string, len(loaders))
		var g errgroup.Group
		for i, l := range loaders {
			last[i] = map[string]string{}
			g.Go(func() error {
				for n := 0; !done.Load(); n++ {
					row, v := fmt.Sprintf("%d-%d", i, n%50), fmt.Sprint(n)
					if err := l.Update(w.ctx, func(tx *percolator.Txn) error {
						return errors.Join(tx.Set(col(row, "a"), []byte(v)), tx.Set(col("other "+row, "z"), []byte(v)))
					}); err != nil {
						return err
					}
					last[i][row] = v
					pause(w.ctx) // the loaders are not what is tested
				}
				return nil
			})
		}
		r := w.work(db, quickWorker, copies("copy", "a", "b"))
		w.until("the observer to be swept for", func() bool {
			infos, err := db.Observers(w.ctx)
			require.NoError(w, err)
			return len(infos) == 1 && infos[0].Swept
		})
		done.Store(true)
		require.NoError(w, g.Wait())
		r.idle()
		for _, m := range last {
			require.NotEmpty(w, m)
			for row, v := range m {
				require.Equal(w, []string{v, v}, w.now(db, col(row, "a"), col(row, "b")), "row %s", row)
			}
		}
	})
}

func othersNotificationsStay(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db1, db2, loader := w.observed(), w.db(), w.db()
		one, two := copies("one", "a", "b1"), copies("two", "a", "b2")
		r1 := w.work(db1, quickWorker, one)
		r1.idle()
		r1.end()
		r2 := w.work(db2, quickWorker, two)
		r2.idle()
		w.set(loader, col("r", "a"), "x")
		r2.idle() // for its own observers nothing is left
		require.Equal(w, []string{missing, "x"}, w.now(loader, col("r", "b1"), col("r", "b2")))
		require.Equal(w, []string{"r.a"}, w.notifications(), "the other observer has not seen the change")
		r1 = w.work(db1, quickWorker, one)
		r1.idle()
		require.Equal(w, []string{"x", "x"}, w.now(loader, col("r", "b1"), col("r", "b2")))
		require.Equal(w, map[string]string{"r=x": "I"}, w.ledger(loader, "two"))
		w.until("the notification to go", func() bool { return len(w.notifications()) == 0 })
	})
}

func gracefulStop(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, loader := w.observed(), w.db()
		started, release := make(chan struct{}, 10), make(chan struct{})
		o := copies("copy", "a", "b")
		run := o.Func
		o.Func = func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			started <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
			return run(ctx, tx, c)
		}
		r := w.work(db, quickWorker, o)
		r.idle()
		w.set(loader, col("r", "a"), "x")
		select {
		case <-started:
		case <-w.ctx.Done():
			w.Fatalf("the observer did not run")
		}
		r.stop()
		select {
		case <-r.done:
			w.Fatalf("Run returned while a function was running")
		default:
		}
		close(release)
		r.end()
		require.Equal(w, "x", w.now(loader, col("r", "b"))[0], "what is running when the worker stops is finished")
		w.set(loader, col("r", "a"), "y")
		require.Equal(w, "x", w.now(loader, col("r", "b"))[0])
		require.Error(w, r.WaitIdle(w.ctx))
		r = w.work(db, quickWorker, copies("copy", "a", "b"))
		r.idle()
		require.Equal(w, "y", w.now(loader, col("r", "b"))[0])
	})
}

func stopTimeout(t testing.TB, e *env) {
	w := e.world(t)
	db, loader := w.observed(), w.db()
	started := make(chan struct{}, 10)
	config := quickWorker
	config.StopTimeout = 20 * time.Millisecond
	r := w.work(db, config, observer("stubborn", "a", func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
		started <- struct{}{}
		<-ctx.Done()
		return errors.Join(tx.Set(col(c.Row, "b"), []byte("half done")), ctx.Err())
	}))
	r.idle()
	w.set(loader, col("r", "a"), "x")
	select {
	case <-started:
	case <-w.ctx.Done():
		t.Fatal("the observer did not run")
	}
	r.end()
	require.Equal(t, missing, w.now(loader, col("r", "b"))[0])
	r = w.work(db, quickWorker, copies("stubborn", "a", "b"))
	r.idle()
	require.Equal(t, "x", w.now(loader, col("r", "b"))[0], "the change is not forgotten")
}

func concurrencyIsBounded(t testing.TB, e *env) {
	w := e.world(t)
	db, loader := w.observed(), w.db()
	var inside, most atomic.Int64
	full := make(chan struct{})
	var once sync.Once
	config := quickWorker
	config.Concurrency = 4
	r := w.work(db, config, observer("slow", "a", func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
		n := inside.Add(1)
		defer inside.Add(-1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		if n == 4 {
			once.Do(func() { close(full) })
		}
		// All slots are used before the first one is given back.
		select {
		case <-full:
		case <-ctx.Done():
		}
		return tx.Set(col(c.Row, "b"), []byte("done"))
	}))
	r.idle()
	for i := range 20 {
		w.set(loader, col(key(i), "a"), "x")
	}
	r.idle()
	require.EqualValues(t, 4, most.Load())
	for i := range 20 {
		require.Equal(t, "done", w.now(loader, col(key(i), "b"))[0])
	}
}

// pushWakes checks that an idle worker is woken by the store: its next look by
// itself would come in an hour.
func pushWakes(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		ability[rowstore.Waker](w, w.inner, "Waker")
		db, loader := w.observed(), w.db()
		config := quickWorker
		config.Rescan = time.Hour
		ran := make(chan string, 100)
		r := w.work(db, config, observer("hears", "a", func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			v, err := get(ctx, tx, c)
			ran <- v
			return err
		}))
		r.idle()
		for i := range 5 {
			w.set(loader, col("other", "v"), "x", col("r", "a"), fmt.Sprint(i))
			for v := ""; v != fmt.Sprint(i); {
				select {
				case v = <-ran:
				case <-w.ctx.Done():
					w.Fatalf("the worker was not woken")
				}
			}
		}
		r.end()
	})
}

func observeRefuses(t testing.TB, e *env) {
	w := e.world(t)
	db := w.observed()
	f := func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }
	pw := percolator.NewWorker(db, quickWorker)
	good := percolator.Observer{Name: "o", Table: "t", Column: "c", Func: f}
	for i, o := range []percolator.Observer{
		{Table: "t", Column: "c", Func: f},
		{Name: "o", Column: "c", Func: f},
		{Name: "o", Table: "t", Func: f},
		{Name: "o", Table: "t", Column: "c"},
		{Name: strings.Repeat("x", 129), Table: "t", Column: "c", Func: f},
	} {
		require.ErrorIs(t, pw.Observe(o), percolator.ErrInvalid, "observer %d", i)
	}
	require.NoError(t, pw.Observe(good))
	require.ErrorIs(t, pw.Observe(good), percolator.ErrInvalid, "the same name twice")
	good.Name = strings.Repeat("x", 128)
	require.NoError(t, pw.Observe(good), "a name of the greatest length")
	require.ErrorIs(t, db.Release(w.ctx, percolator.ParkedRun{Cell: one}), percolator.ErrInvalid)
	require.ErrorIs(t, db.Release(w.ctx, percolator.ParkedRun{Observer: "o"}), percolator.ErrInvalid)
}

func workerRunsOnce(t testing.TB, e *env) {
	w := e.world(t)
	db := w.observed()
	r := w.work(db, quickWorker, copies("copy", "a", "b"))
	r.idle()
	require.ErrorIs(t, r.Run(w.ctx), percolator.ErrWorkerRunning)
	require.ErrorIs(t, r.Observe(copies("late", "a", "c")), percolator.ErrWorkerRunning)
	cancelled, cancel := context.WithCancel(w.ctx)
	cancel()
	require.ErrorIs(t, r.WaitIdle(cancelled), context.Canceled)
	r.end()
	require.ErrorIs(t, r.Run(w.ctx), percolator.ErrWorkerRunning)
	w.set(db, col("r", "a"), "x")
	require.ErrorIs(t, r.WaitIdle(w.ctx), percolator.ErrClosed, "something is left, and nobody will do it")
	unstarted := percolator.NewWorker(db, quickWorker)
	require.ErrorIs(t, unstarted.WaitIdle(cancelled), context.Canceled, "WaitIdle waits for Run")
	require.NoError(t, unstarted.Run(cancelled))
}

// collectionKeepsUnseenDeletes collects garbage while no worker runs, after a
// delete that its observer has not seen.
func collectionKeepsUnseenDeletes(t testing.TB, e *env) {
	e.in(t, "Default", nil, func(w *world) {
		db, loader := w.db(quickly()), w.db()
		r := w.work(db, quickWorker, copies("copy", "a", "b"))
		w.set(loader, col("r", "a"), "x")
		r.idle()
		r.end()
		w.set(loader, col("r", "a"), missing)
		report := w.collectOld(db)
		require.Positive(w, report.Rows)
		require.Equal(w, missing, w.now(loader, col("r", "a"))[0])
		r = w.work(db, quickWorker, copies("copy", "a", "b"))
		r.idle()
		require.Equal(w, missing, w.now(loader, col("r", "b"))[0])
		require.Contains(w, w.ledger(loader, "copy"), "r="+missing, "the delete was observed, though late")
		w.cleared()
		r.end()
		w.collectOld(db)
		rows, err := w.inner.Read(w.ctx, []rowstore.RowRead{{Table: table, Row: "r", Picks: []rowstore.Pick{{Family: rowstore.Write, Column: "a", To: oracle.Max}}}})
		require.NoError(w, err)
		require.NoError(w, rows[0].Err)
		require.Empty(w, rows[0].Versions, "and goes once it was")
	})
}
