package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
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
		{"CollectionKeepsOldValues", Observing, collectionKeepsOldValues},
		{"TimersRunWhenDue", Observing, timersRunWhenDue},
		{"CascadesEnd", Observing, cascadesEnd},
	}
}

// observedSettings have a short catalog lease, which a new observer waits for.
func observedSettings() percolator.Option {
	return percolator.WithSettings(percolator.Settings{MaxTxnAge: 20 * time.Second, Retention: time.Hour, CatalogLease: 100 * time.Millisecond})
}

// worker is a worker that runs.
type worker struct {
	*percolator.Worker
	from *percolator.DB
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
	r := &worker{Worker: pw, from: db, w: w, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = pw.Run(ctx)
	}()
	atend.Do(w, func() {
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
	rows, err := collect(w.ctx, w.inner, rowstore.ScanRange{Table: table, Selectors: []rowstore.Selector{pick(rowstore.Notify)}})
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
		rows, err := w.inner.Read(w.ctx, []rowstore.RowRead{{Table: table, Row: "r", Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "a", To: oracle.Max}}}})
		require.NoError(w, err)
		require.NoError(w, rows[0].Err)
		require.Empty(w, rows[0].Versions, "and goes once it was")
	})
}
