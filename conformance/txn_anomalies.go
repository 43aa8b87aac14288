package conformance

import (
	"errors"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator"
)

// anomaly is a scenario of Hermitage's list (Kleppmann's collection of the
// anomalies that isolation levels differ in), told for transactions that keep
// their writes to themselves until they commit: rows 1 and 2 hold 10 and 20.
type anomaly struct {
	name string
	run  func(a *scenario)
}

// scenario is one run of an anomaly, under one isolation level.
type scenario struct {
	*world
	db    *percolator.DB
	level percolator.Isolation
}

var one, two, three, four = at("1"), at("2"), at("3"), at("4")

func (a *scenario) tx() *percolator.Txn {
	a.Helper()
	return a.begin(a.db, percolator.WithIsolation(a.level))
}

func (a *scenario) reads(tx *percolator.Txn, c percolator.Cell, want string) {
	a.Helper()
	require.Equal(a, want, a.value(tx, c), "%v under %v", c, a.level)
}

// finds checks which rows of a whole scan have a value that n divides.
func (a *scenario) finds(tx *percolator.Txn, n int, want ...string) {
	a.Helper()
	got := []string{}
	for row, err := range tx.Scan(a.ctx, percolator.Range{Table: table}) {
		require.NoError(a, err)
		v, err := strconv.Atoi(string(row.Columns["v"]))
		require.NoError(a, err)
		if v%n == 0 {
			got = append(got, row.Key+"="+strconv.Itoa(v))
		}
	}
	require.Equal(a, append([]string{}, want...), got)
}

// ends checks the values that are there at the end.
func (a *scenario) ends(want ...string) {
	a.Helper()
	require.Equal(a, want, a.now(a.db, one, two, three, four)[:len(want)], "the values at the end, under %v", a.level)
}

// skews commits: it succeeds under snapshot isolation, and meets a conflict under
// Serializable.
func (a *scenario) skews(tx *percolator.Txn) {
	a.Helper()
	if a.level == percolator.Serializable {
		a.conflicts(tx)
	} else {
		a.commit(tx)
	}
}

func anomalyTests() []test {
	var tests []test
	for _, an := range anomalies {
		tests = append(tests, test{an.name, Anomalies, func(t testing.TB, e *env) {
			for _, level := range []percolator.Isolation{percolator.SnapshotIsolation, percolator.Serializable} {
				e.eachWay(t, func(w *world) {
					a := &scenario{world: w, db: w.db(), level: level}
					w.set(a.db, one, "10", two, "20")
					an.run(a)
					require.Empty(w, w.settled(a.db), "locks left")
				})
			}
		}})
	}
	return append(tests,
		test{"WriteSkewAcrossCells", Anomalies, writeSkewAcrossCells},
		test{"WriteSkewUnderConcurrency", Anomalies, writeSkewUnderConcurrency},
	)
}

// settled closes the DB, so that what goes on in the background is done, and lists
// the locks that are left.
func (w *world) settled(db *percolator.DB) []string {
	w.Helper()
	require.NoError(w, db.Close(w.ctx))
	return w.locks()
}

var anomalies = []anomaly{
	{"G0DirtyWrite", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.write(t1, one, "11")
		a.write(t2, one, "12")
		a.write(t1, two, "21")
		a.commit(t1)
		a.write(t2, two, "22")
		a.conflicts(t2)
		a.ends("11", "21")
	}},
	{"G1aAbortedRead", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.write(t1, one, "101")
		a.reads(t2, one, "10")
		require.NoError(a, t1.Rollback(a.ctx))
		a.reads(t2, one, "10")
		a.commit(t2)
		a.ends("10", "20")
	}},
	{"G1bIntermediateRead", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.write(t1, one, "101")
		a.reads(t2, one, "10")
		a.write(t1, one, "11")
		a.commit(t1)
		a.reads(t2, one, "10")
		a.commit(t2)
		a.ends("11", "20")
	}},
	{"G1cCircularFlow", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.write(t1, one, "11")
		a.write(t2, two, "22")
		a.reads(t1, two, "20")
		a.reads(t2, one, "10")
		a.commit(t1)
		a.skews(t2)
	}},
	{"OTVObservedTransactionVanishes", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.write(t1, one, "11", two, "19")
		a.write(t2, one, "12")
		a.commit(t1)
		t3 := a.tx()
		a.reads(t3, one, "11")
		a.write(t2, two, "18")
		a.reads(t3, two, "19")
		a.conflicts(t2)
		a.reads(t3, two, "19")
		a.reads(t3, one, "11")
		a.commit(t3)
		a.ends("11", "19")
	}},
	{"PMPPredicateManyPreceders", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.finds(t1, 30)
		a.write(t2, three, "30")
		a.commit(t2)
		a.finds(t1, 3)
		a.commit(t1)
		a.ends("10", "20", "30")
	}},
	{"PMPWrite", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.reads(t1, one, "10")
		a.reads(t1, two, "20")
		a.write(t1, one, "20", two, "30")
		a.finds(t2, 20, "2=20")
		a.write(t2, two, missing)
		a.commit(t1)
		a.conflicts(t2)
		a.ends("20", "30")
	}},
	{"P4LostUpdate", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.reads(t1, one, "10")
		a.reads(t2, one, "10")
		a.write(t1, one, "11")
		a.write(t2, one, "11")
		a.commit(t1)
		a.conflicts(t2)
		a.ends("11", "20")
	}},
	{"GSingleReadSkew", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.reads(t1, one, "10")
		a.reads(t2, one, "10")
		a.reads(t2, two, "20")
		a.write(t2, one, "12", two, "18")
		a.commit(t2)
		a.reads(t1, two, "20")
		a.commit(t1)
		a.ends("12", "18")
	}},
	{"GSinglePredicate", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.finds(t1, 5, "1=10", "2=20")
		a.reads(t2, one, "10")
		a.write(t2, one, "12")
		a.commit(t2)
		a.finds(t1, 3)
		a.commit(t1)
		a.ends("12", "20")
	}},
	{"GSingleWriteOfOldSnapshot", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.reads(t1, one, "10")
		a.write(t2, one, "12", two, "18")
		a.commit(t2)
		a.finds(t1, 20, "2=20")
		a.write(t1, two, missing)
		a.conflicts(t1)
		a.ends("12", "18")
	}},
	{"GSingleRolledBack", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.reads(t1, one, "10")
		a.reads(t2, one, "10")
		a.reads(t2, two, "20")
		a.write(t2, one, "12")
		a.write(t1, two, missing)
		a.write(t2, two, "18")
		require.NoError(a, t1.Rollback(a.ctx))
		a.commit(t2)
		a.ends("12", "18")
	}},
	{"G2ItemWriteSkew", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		for _, tx := range []*percolator.Txn{t1, t2} {
			a.reads(tx, one, "10")
			a.reads(tx, two, "20")
		}
		a.write(t1, one, "11")
		a.write(t2, two, "21")
		a.commit(t1)
		a.skews(t2)
	}},
	{"G2ItemWriteSkewRemedied", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		for _, tx := range []*percolator.Txn{t1, t2} {
			for _, c := range []percolator.Cell{one, two} {
				_, err := tx.GetForUpdate(a.ctx, c)
				require.NoError(a, err)
			}
		}
		a.write(t1, one, "11")
		a.write(t2, two, "21")
		a.commit(t1)
		a.conflicts(t2)
		a.ends("11", "20")
	}},
	{"G2ItemRemediedOnOneSide", func(a *scenario) {
		// The mark that a lock leaves makes the older writer of the cell fail, also
		// when that one locks nothing itself.
		t1, t2 := a.tx(), a.tx()
		a.reads(t2, two, "20")
		_, err := t1.GetForUpdate(a.ctx, one)
		require.NoError(a, err)
		a.write(t1, two, "21")
		a.commit(t1)
		a.write(t2, one, "11")
		a.conflicts(t2)
		a.ends("10", "21")
	}},
	{"G2PredicateWriteSkew", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.finds(t1, 3)
		a.finds(t2, 3)
		a.write(t1, three, "30")
		a.write(t2, four, "42")
		a.commit(t1)
		a.skews(t2)
	}},
	{"G2PhantomDelete", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.finds(t1, 10, "1=10", "2=20")
		a.finds(t2, 10, "1=10", "2=20")
		a.write(t1, one, missing)
		a.write(t2, two, missing)
		a.commit(t1)
		a.skews(t2)
	}},
	{"G2TwoEdges", func(a *scenario) {
		t1 := a.tx()
		a.finds(t1, 5, "1=10", "2=20")
		t2 := a.tx()
		a.reads(t2, two, "20")
		a.write(t2, two, "25")
		a.commit(t2)
		t3 := a.tx()
		a.finds(t3, 5, "1=10", "2=25")
		a.commit(t3)
		a.write(t1, one, "0")
		a.skews(t1)
	}},
	{"AbsentCellIsRead", func(a *scenario) {
		// That a cell has no value is something that was read, too.
		t1, t2 := a.tx(), a.tx()
		a.reads(t1, three, missing)
		a.reads(t2, four, missing)
		a.write(t1, four, "44")
		a.write(t2, three, "33")
		a.commit(t1)
		a.skews(t2)
	}},
	{"DeletesConflict", func(a *scenario) {
		t1, t2, t3 := a.tx(), a.tx(), a.tx()
		a.write(t1, one, missing)
		a.write(t2, one, missing)
		a.write(t3, one, "33")
		a.commit(t1)
		a.conflicts(t2)
		a.conflicts(t3)
		a.ends(missing, "20")
	}},
	{"BlindWritesOfDifferentCells", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.write(t1, one, "11")
		a.write(t2, two, "22")
		a.commit(t1)
		a.commit(t2)
		a.ends("11", "22")
	}},
	{"OwnWriteThenForeignCommit", func(a *scenario) {
		t1, t2 := a.tx(), a.tx()
		a.write(t1, one, "11")
		a.reads(t1, one, "11")
		a.write(t2, one, "12")
		a.commit(t2)
		a.reads(t1, one, "11")
		a.conflicts(t1)
		a.ends("12", "20")
	}},
}

// writeSkewAcrossCells has one writer per cell read by the other, on columns of one
// row, on two rows, and on two tables.
func writeSkewAcrossCells(t testing.TB, e *env) {
	pairs := [][2]percolator.Cell{
		{{Table: "t", Row: "r", Column: "a"}, {Table: "t", Row: "r", Column: "b"}},
		{{Table: "t", Row: "r", Column: "a"}, {Table: "t", Row: "s", Column: "a"}},
		{{Table: "t", Row: "r", Column: "a"}, {Table: "u", Row: "r", Column: "a"}},
	}
	e.eachWay(t, func(w *world) {
		db := w.db()
		for i, p := range pairs {
			for _, level := range []percolator.Isolation{percolator.SnapshotIsolation, percolator.Serializable} {
				w.set(db, p[0], "0", p[1], "0")
				t1, t2 := w.begin(db, percolator.WithIsolation(level)), w.begin(db, percolator.WithIsolation(level))
				require.Equal(w, "0", w.value(t1, p[1]))
				require.Equal(w, "0", w.value(t2, p[0]))
				w.write(t1, p[0], "1")
				w.write(t2, p[1], "1")
				w.commit(t1)
				err := t2.Commit(w.ctx)
				if level == percolator.Serializable {
					require.ErrorIs(w, err, percolator.ErrConflict, "pair %d", i)
					var c *percolator.ConflictError
					require.True(w, errors.As(err, &c), "the conflict names a cell")
					require.Equal(w, []string{"1", "0"}, w.now(db, p[0], p[1]))
				} else {
					require.NoError(w, err, "write skew is allowed under snapshot isolation")
					require.Equal(w, []string{"1", "1"}, w.now(db, p[0], p[1]))
				}
			}
		}
	})
}

// writeSkewUnderConcurrency is the doctors on call: somebody must be, and each may
// only leave when another stays.
func writeSkewUnderConcurrency(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		doctors := []percolator.Cell{at("a"), at("b"), at("c")}
		var left, stayed atomic.Int64
		db := w.db()
		round := func(locked bool, opts ...percolator.TxnOption) error {
			var g errgroup.Group
			for i, me := range doctors {
				g.Go(func() error {
					return db.Update(w.ctx, func(tx *percolator.Txn) error {
						onCall := 0
						for j, d := range doctors {
							get := tx.Get
							if locked && j != i {
								get = tx.GetForUpdate
							}
							v, err := get(w.ctx, d)
							if err != nil {
								return err
							}
							if string(v) == "on" {
								onCall++
							}
						}
						if onCall < 2 {
							stayed.Add(1)
							return nil
						}
						left.Add(1)
						return tx.Set(me, []byte("off"))
					}, opts...)
				})
			}
			return g.Wait()
		}
		for i := range e.n(20, 6) {
			w.set(db, doctors[0], "on", doctors[1], "on", doctors[2], "on")
			locked := i%2 == 1
			var err error
			if locked {
				err = round(true)
			} else {
				err = round(false, percolator.WithIsolation(percolator.Serializable))
			}
			require.NoError(w, err)
			off := 0
			for _, v := range w.now(db, doctors...) {
				if v == "off" {
					off++
				}
			}
			require.Equal(w, 2, off, "two of three leave, whatever the order (GetForUpdate: %v)", locked)
		}
		require.Positive(w, left.Load())
		require.Positive(w, stayed.Load())
		require.Empty(w, w.settled(db))
	})
}
