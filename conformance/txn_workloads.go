package conformance

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func workloadTests() []test {
	return []test{
		{"Bank", Workloads, func(t testing.TB, e *env) { bank(t, e, percolator.SnapshotIsolation) }},
		{"BankSerializable", Workloads, func(t testing.TB, e *env) { bank(t, e, percolator.Serializable) }},
		{"NoUpdateIsLost", Workloads, noUpdateIsLost},
		{"LongFork", Workloads, longFork},
		{"ScansAreSnapshots", Workloads, scansAreSnapshots},
		{"OppositeOrders", Workloads, oppositeOrders},
	}
}

// bank has several processes move money and read all accounts, in the present and
// in the past: the total is always the same.
func bank(t testing.TB, e *env, level percolator.Isolation) {
	e.eachWayAndAll(t, func(w *world) {
		rng := seeded(w)
		const accounts, each = 12, 100
		dbs := []*percolator.DB{w.db(), w.db(), w.db()}
		cells := make([]percolator.Cell, accounts)
		for i := range cells {
			// Over tables, rows and columns.
			cells[i] = percolator.Cell{Table: fmt.Sprint("bank", i%2), Row: fmt.Sprint("r", i%4), Column: fmt.Sprint("c", i)}
		}
		require.NoError(w, dbs[0].Update(w.ctx, func(tx *percolator.Txn) error {
			for _, c := range cells {
				w.write(tx, c, fmt.Sprint(each))
			}
			return nil
		}))
		opened, err := dbs[0].Now(w.ctx)
		require.NoError(w, err)
		opt := percolator.WithIsolation(level)
		rounds := e.n(40, 12)
		var transfers, reads atomic.Int64
		var done atomic.Bool
		var writers, readers errgroup.Group
		for i := range 6 {
			rng := fork(rng)
			writers.Go(func() error {
				for range rounds {
					err := transfer(w.ctx, dbs[i%len(dbs)], rng, cells, opt)
					switch {
					case err == nil:
						transfers.Add(1)
					case !errors.Is(err, percolator.ErrConflict):
						return fmt.Errorf("transfer: %w", err)
					}
				}
				return nil
			})
		}
		for i := range 3 {
			rng := fork(rng)
			readers.Go(func() error {
				for n := 0; n < 3 || !done.Load(); n++ {
					db := dbs[i%len(dbs)]
					total, err := readTotal(w, db, rng, cells, opened, n%3, opt)
					if err != nil {
						return fmt.Errorf("reading all accounts: %w", err)
					}
					if total != accounts*each {
						return fmt.Errorf("a full read (kind %d) found %d of %d", n%3, total, accounts*each)
					}
					reads.Add(1)
				}
				return nil
			})
		}
		werr := writers.Wait()
		done.Store(true)
		require.NoError(w, readers.Wait())
		require.NoError(w, werr)
		require.Positive(w, transfers.Load())
		total, err := sum(w.ctx, dbs[1], cells)
		require.NoError(w, err)
		require.Equal(w, accounts*each, total)
		w.Logf("%d transfers, %d full reads", transfers.Load(), reads.Load())
		for _, db := range dbs {
			require.NoError(w, db.Close(w.ctx))
		}
		require.Empty(w, w.locks())
	})
}

// readTotal adds up all accounts: by reads (how is 0), by scans (1), or by reads in the
// past (2), somewhere between the opening and now.
func readTotal(w *world, db *percolator.DB, rng *rand.Rand, cells []percolator.Cell, opened percolator.Timestamp, how int, opt percolator.TxnOption) (int, error) {
	switch how {
	case 0:
		return sum(w.ctx, db, cells, opt)
	case 1:
		return sumByScan(w, db)
	default:
		now, err := db.Now(w.ctx)
		if err != nil {
			return 0, fmt.Errorf("drawing: %w", err)
		}
		then := opened + percolator.Timestamp(rng.Uint64N(uint64(now-opened)))
		return sum(w.ctx, db, cells, percolator.WithAsOfTimestamp(then))
	}
}

func sumByScan(w *world, db *percolator.DB) (total int, err error) {
	return total, db.View(w.ctx, func(tx *percolator.Txn) error {
		total = 0
		for _, tab := range []string{"bank0", "bank1"} {
			for row, err := range tx.Scan(w.ctx, percolator.Range{Table: tab}) {
				if err != nil {
					return err
				}
				for _, v := range row.Columns {
					var n int
					if _, err := fmt.Sscan(string(v), &n); err != nil {
						return fmt.Errorf("%q: %w", v, err)
					}
					total += n
				}
			}
		}
		return nil
	})
}

// noUpdateIsLost counts in one cell from many goroutines and processes.
func noUpdateIsLost(t testing.TB, e *env) {
	e.eachWayAndAll(t, func(w *world) {
		dbs := []*percolator.DB{w.db(), w.db(), w.db()}
		w.set(dbs[0], one, "0")
		const workers = 6
		rounds := e.n(15, 5)
		seen := make([]map[int]bool, workers)
		var g errgroup.Group
		for i := range workers {
			seen[i] = map[int]bool{}
			g.Go(func() error {
				for range rounds {
					var n int
					err := dbs[i%len(dbs)].Update(w.ctx, func(tx *percolator.Txn) (err error) {
						if n, err = number(w.ctx, tx, one); err != nil {
							return err
						}
						return tx.Set(one, []byte(fmt.Sprint(n+1)))
					}, percolator.WithMaxAttempts(10_000))
					if err != nil {
						return err
					}
					seen[i][n] = true
				}
				return nil
			})
		}
		require.NoError(w, g.Wait())
		require.Equal(w, fmt.Sprint(workers*rounds), w.now(dbs[0], one)[0])
		all := map[int]bool{}
		for _, mine := range seen {
			for n := range mine {
				require.False(w, all[n], "two transactions counted on from %d", n)
				all[n] = true
			}
		}
	})
}

// longFork writes two cells one after the other, again and again; two readers must
// never disagree on which was first: all snapshots are on one line.
func longFork(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		dbs := []*percolator.DB{w.db(), w.db()}
		w.set(dbs[0], one, "0", two, "0")
		var done atomic.Bool
		var mu sync.Mutex
		type view struct {
			start percolator.Timestamp
			x, y  int
		}
		var views []view
		var writers, readers errgroup.Group
		for i, c := range []percolator.Cell{one, two} {
			writers.Go(func() error {
				for n := range e.n(60, 20) {
					if err := dbs[i].Update(w.ctx, func(tx *percolator.Txn) error { return tx.Set(c, []byte(fmt.Sprint(n+1))) }); err != nil {
						return err
					}
				}
				return nil
			})
		}
		for i := range 3 {
			readers.Go(func() error {
				for n := 0; n < 5 || !done.Load(); n++ {
					v := view{}
					err := dbs[i%2].View(w.ctx, func(tx *percolator.Txn) (err error) {
						v.start = startOf(tx)
						first, second := &v.x, &v.y
						a, b := one, two
						if n%2 == 1 {
							first, second, a, b = second, first, b, a
						}
						if *first, err = number(w.ctx, tx, a); err != nil {
							return err
						}
						*second, err = number(w.ctx, tx, b)
						return err
					})
					if err != nil {
						return err
					}
					mu.Lock()
					views = append(views, v)
					mu.Unlock()
				}
				return nil
			})
		}
		werr := writers.Wait()
		done.Store(true)
		require.NoError(w, readers.Wait())
		require.NoError(w, werr)
		slices.SortFunc(views, func(a, b view) int { return cmp.Compare(a.start, b.start) })
		for i := 1; i < len(views); i++ {
			a, b := views[i-1], views[i]
			if b.x < a.x || b.y < a.y {
				w.Fatalf("the snapshot at %d has (%d, %d), the later one at %d has (%d, %d)", a.start, a.x, a.y, b.start, b.x, b.y)
			}
		}
	})
}

// scansAreSnapshots moves a marker from row to row: every scan finds it once.
func scansAreSnapshots(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		rng := seeded(w)
		dbs := []*percolator.DB{w.db(), w.db()}
		const rows = 300
		w.set(dbs[0], at(key(0)), "here")
		var done atomic.Bool
		var g errgroup.Group
		g.Go(func() error {
			for from := 0; !done.Load(); {
				to := rng.IntN(rows)
				if to == from {
					continue
				}
				if err := dbs[0].Update(w.ctx, func(tx *percolator.Txn) error {
					return errors.Join(tx.Delete(at(key(from))), tx.Set(at(key(to)), []byte("here")))
				}); err != nil {
					return err
				}
				from = to
			}
			return nil
		})
		var failure error
		for i := 0; i < e.n(60, 20) && failure == nil; i++ {
			tx := w.begin(dbs[1])
			found := 0
			for _, err := range tx.Scan(w.ctx, percolator.Range{Table: table, Reverse: i%2 == 1}) {
				if failure = err; err != nil {
					break
				}
				found++
			}
			if failure == nil && found != 1 {
				failure = fmt.Errorf("a scan found the marker %d times", found)
			}
		}
		done.Store(true)
		require.NoError(w, g.Wait())
		require.NoError(w, failure)
	})
}

// oppositeOrders has transactions write and validate the same cells in all orders:
// they must neither deadlock nor starve.
func oppositeOrders(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		rng := seeded(w)
		dbs := []*percolator.DB{w.db(), w.db()}
		cells := []percolator.Cell{one, two, three, four}
		for _, c := range cells {
			w.set(dbs[0], c, "0")
		}
		var g errgroup.Group
		var commits atomic.Int64
		for i := range 6 {
			rng := fork(rng)
			g.Go(func() error {
				for range e.n(15, 5) {
					order := rng.Perm(len(cells))
					level := []percolator.Isolation{percolator.SnapshotIsolation, percolator.Serializable}[rng.IntN(2)]
					err := dbs[i%2].Update(w.ctx, func(tx *percolator.Txn) error {
						for _, j := range order[:2] {
							if _, err := number(w.ctx, tx, cells[j]); err != nil {
								return err
							}
						}
						if _, err := tx.GetForUpdate(w.ctx, cells[order[2]]); err != nil {
							return err
						}
						return errors.Join(tx.Set(cells[order[3]], []byte("1")), tx.Set(cells[order[0]], []byte("2")))
					}, percolator.WithIsolation(level), percolator.WithMaxAttempts(10_000))
					if err != nil {
						return err
					}
					commits.Add(1)
				}
				return nil
			})
		}
		require.NoError(w, g.Wait())
		require.Positive(w, commits.Load())
	})
}

func collectionTests() []test {
	return []test{
		{"GarbageGoesAndTheNewestStays", Collection, garbageGoes},
		{"SnapshotsBelowTheSafePoint", Collection, snapshotsBelowTheSafePoint},
		{"CollectionResolvesLocksFirst", Collection, collectionResolvesLocks},
		{"CollectionUnderLoad", Collection, collectionUnderLoad},
	}
}

// quickly are settings under which a collection may take what is some seconds old.
func quickly() percolator.Option {
	return percolator.WithSettings(percolator.Settings{MaxTxnAge: quickAge, Retention: time.Hour, CatalogLease: 50 * time.Millisecond})
}

const quickAge = 3 * time.Second

// collectOld waits until everything so far is old enough to be collected, and collects.
func (w *world) collectOld(db *percolator.DB) percolator.GCReport {
	w.Helper()
	w.pass(db, quickAge+100*time.Millisecond)
	report, err := db.CollectGarbage(w.ctx, percolator.GCOptions{Keep: time.Millisecond})
	require.NoError(w, err)
	return report
}

func garbageGoes(t testing.TB, e *env) {
	e.in(t, "Default", nil, func(w *world) {
		db := w.db(quickly())
		long := strings.Repeat("long", 100)
		for i := range 8 {
			w.set(db, one, fmt.Sprint(i), two, fmt.Sprint(long, i), at("deleted"), "x", at("once"), "kept", percolator.Cell{Table: "u", Row: "r", Column: "c"}, fmt.Sprint(i))
		}
		w.set(db, at("deleted"), missing)
		w.set(db, at("comes back"), "x")
		w.set(db, at("comes back"), missing)
		require.NoError(w, db.Update(w.ctx, func(tx *percolator.Txn) error { // leaves a mark
			if _, err := tx.GetForUpdate(w.ctx, at("once")); err != nil {
				return err
			}
			return tx.Set(at("other"), []byte("y"))
		}))
		lost := w.begin(db) // a fence, and a mark
		w.write(lost, at("fenced"), "z")
		_, err := db.Outcome(w.ctx, startOf(lost), at("fenced"))
		require.NoError(w, err)
		report := w.collectOld(db)
		require.Positive(w, report.Versions)
		require.Positive(w, report.Rows)
		require.Positive(w, report.SafePoint)
		count := func(cell percolator.Cell, f rowstore.Family) int {
			rows, err := w.inner.Read(w.ctx, []rowstore.RowRead{{Table: cell.Table, Row: cell.Row, Selectors: []rowstore.Selector{pick(f)}}})
			require.NoError(w, err)
			require.NoError(w, rows[0].Err)
			return len(rows[0].Versions)
		}
		for _, c := range []percolator.Cell{one, two, at("once"), {Table: "u", Row: "r", Column: "c"}} {
			require.Equal(w, 1, count(c, rowstore.Write), "the newest version of %v stays, what it superseded goes", c)
		}
		require.Equal(w, 1, count(two, rowstore.Data), "long values go with their versions")
		require.Zero(w, count(at("deleted"), rowstore.Write), "a deleted cell goes")
		require.Zero(w, count(at("comes back"), rowstore.Write))
		for _, c := range []percolator.Cell{at("once"), at("fenced")} {
			require.Zero(w, count(c, rowstore.Mark), "marks go")
		}
		require.Equal(w, []string{"7", long + "7", missing, "kept", missing, "y"},
			w.now(db, one, two, at("deleted"), at("once"), at("comes back"), at("other")))
		w.set(db, at("comes back"), "again", one, "8")
		require.Equal(w, []string{"again", "8"}, w.now(w.db(), at("comes back"), one))
		again := w.collectOld(db)
		require.GreaterOrEqual(w, again.SafePoint, report.SafePoint)
		require.Equal(w, []string{"again", "8"}, w.now(db, at("comes back"), one))
		_, err = db.CollectGarbage(w.ctx, percolator.GCOptions{Keep: -time.Second})
		require.ErrorIs(w, err, percolator.ErrInvalid)
	})
}

func snapshotsBelowTheSafePoint(t testing.TB, e *env) {
	e.in(t, "Default", nil, func(w *world) {
		db, other := w.db(quickly()), w.db()
		old := w.set(db, one, "old", two, "old")
		reader := w.begin(other) // began before the collection
		lost := w.begin(other)
		w.write(lost, one, "lost")
		require.Equal(w, "old", w.value(reader, one))
		w.set(db, one, "new")
		report := w.collectOld(db)
		require.Greater(w, report.SafePoint, old)
		for _, d := range []*percolator.DB{db, other} {
			tx := w.begin(d, percolator.WithAsOfTimestamp(old))
			_, err := tx.Get(w.ctx, one)
			require.ErrorIs(w, err, percolator.ErrSnapshotTooOld)
			_, err = tx.GetMany(w.ctx, one, two)
			require.ErrorIs(w, err, percolator.ErrSnapshotTooOld)
			for _, err := range tx.Scan(w.ctx, percolator.Range{Table: table}) {
				require.ErrorIs(w, err, percolator.ErrSnapshotTooOld)
			}
			require.Equal(w, "new", w.value(w.begin(d), one))
			// At the safe point and above, reads go on.
			v, err := get(w.ctx, w.begin(d, percolator.WithAsOfTimestamp(report.SafePoint)), two)
			require.NoError(w, err)
			require.Equal(w, "old", v)
		}
		_, err := reader.Get(w.ctx, one)
		require.ErrorIs(w, err, percolator.ErrSnapshotTooOld, "a transaction that began before the safe point")
		err = lost.Commit(w.ctx)
		// One that failed may be the second arrival of one that succeeded, and below the
		// safe point nothing would prove the contrary.
		require.True(w, errors.Is(err, percolator.ErrTxnTooOld) || errors.Is(err, percolator.ErrConflict) || errors.Is(err, percolator.ErrUndetermined), "%v", err)
		// The outcome can no longer be decided; the answer must not be wrong.
		_, err = other.Outcome(w.ctx, startOf(lost), one)
		require.ErrorIs(w, err, percolator.ErrSnapshotTooOld)
		require.Equal(w, "new", w.now(other, one)[0])
	})
}

// collectionResolvesLocks leaves the secondaries of a committed transaction locked,
// and collects after its primary was overwritten: the record of the commit must not
// go before the locks.
func collectionResolvesLocks(t testing.TB, e *env) {
	e.in(t, "TwoPhase", []percolator.Option{coretest.WithoutGroups()}, func(w *world) {
		others := w.db(append(shortLease(), quickly())...)
		for i, die := range []int64{2, 1} { // after the commit point, and before
			a, b := at(fmt.Sprint("a", i)), at(fmt.Sprint("b", i))
			w.set(others, a, "old", b, "old")
			_, acknowledged := w.dieAt(die, shortLease(), a, "new", b, "new")
			require.Equal(w, die == 2, acknowledged)
			if die == 2 {
				w.set(others, a, "newer")
			}
		}
		require.NotEmpty(w, w.locks())
		report := w.collectOld(others)
		require.Positive(w, report.LocksResolved)
		require.Empty(w, w.locks())
		require.Equal(w, []string{"newer", "new", "old", "old"}, w.now(others, at("a0"), at("b0"), at("a1"), at("b1")))
	})
}

// collectionUnderLoad collects again and again while a bank works. Whatever is read in the
// present is right. The bank has a history by then, and nobody works while it grows old.
func collectionUnderLoad(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		rng := seeded(w)
		const accounts, each, age, collections = 6, 100, 4 * time.Second, 10
		main := w.db(append(shortLease(), percolator.WithSettings(percolator.Settings{MaxTxnAge: age, Retention: time.Hour, CatalogLease: 30 * time.Millisecond}))...)
		cells := make([]percolator.Cell, accounts)
		for i := range cells {
			cells[i] = at(fmt.Sprint("account", i))
			w.set(main, cells[i], fmt.Sprint(each))
		}
		dbs := []*percolator.DB{w.db(shortLease()...), w.db(shortLease()...)}
		work := func(db *percolator.DB, rng *rand.Rand) error {
			if err := transfer(w.ctx, db, rng, cells); err != nil && !errors.Is(err, percolator.ErrConflict) && !errors.Is(err, percolator.ErrTxnTooOld) {
				return fmt.Errorf("transfer: %w", err)
			}
			return nil
		}
		for i := range 20 {
			require.NoError(w, work(dbs[i%len(dbs)], rng))
		}
		w.pass(main, age+100*time.Millisecond)
		var done atomic.Bool
		var g errgroup.Group
		for _, db := range dbs {
			rng := fork(rng)
			g.Go(func() error {
				for !done.Load() {
					if err := work(db, rng); err != nil {
						return err
					}
				}
				return nil
			})
		}
		removed, reads := 0, 0
		var failure error
		for i := 0; (i < collections || removed == 0) && failure == nil; i++ {
			report, err := main.CollectGarbage(w.ctx, percolator.GCOptions{Keep: time.Millisecond})
			if failure = err; err != nil {
				break
			}
			removed += report.Versions
			for range 3 {
				total, err := sum(w.ctx, main, cells)
				if errors.Is(err, percolator.ErrSnapshotTooOld) {
					continue // the machine slept through MaxTxnAge
				}
				if failure = err; err == nil && total != accounts*each {
					failure = fmt.Errorf("a full read found %d of %d", total, accounts*each)
				}
				reads++
			}
		}
		done.Store(true)
		require.NoError(w, g.Wait())
		require.NoError(w, failure)
		w.Logf("%d versions removed, %d full reads", removed, reads)
	})
}
