package percolator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
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

// sample returns cells of many rows, and some of one wide row, with a value for each.
func sample(rows, wide, size int) map[Cell]string {
	cells := map[Cell]string{}
	for i := range rows {
		cells[Cell{"t", fmt.Sprintf("row%05d", i), "v"}] = fmt.Sprint(i, strings.Repeat("x", size))
	}
	for i := range wide {
		cells[Cell{"t", "row00007", fmt.Sprintf("column%05d", i)}] = fmt.Sprint("wide", i)
	}
	return cells
}

func setAll(ctx context.Context, db *DB, cells map[Cell]string) error {
	return db.Update(ctx, func(tx *Txn) error {
		for c, v := range cells {
			if err := tx.Set(c, []byte(v)); err != nil {
				return err
			}
		}
		return nil
	})
}

func checkAll(t testing.TB, db *DB, cells map[Cell]string) {
	t.Helper()
	require.NoError(t, db.View(t.Context(), func(tx *Txn) error {
		got := map[Cell]string{}
		for row, err := range tx.Scan(t.Context(), Range{Table: "t"}) {
			if err != nil {
				return err
			}
			for col, v := range row.Columns {
				got[Cell{"t", row.Key, col}] = string(v)
			}
		}
		require.True(t, maps.Equal(cells, got), "%d cells, %d read", len(cells), len(got))
		return nil
	}))
}

func locksLeft(t testing.TB, mem *memstore.Store) (n int) {
	t.Helper()
	for row, err := range mem.Scan(t.Context(), rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{everything(rowstore.Lock, rowstore.AllColumns)}}) {
		require.NoError(t, err)
		n += len(row.Versions)
	}
	return n
}

// A large transaction makes no large call: its prewrites, commits and roll backs go in
// pieces, few at a time. That holds for wide rows too.
func TestLargeTransactionsGoInPieces(t *testing.T) {
	t.Parallel()
	for way, opts := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			g := newGauge(rowstore.Limits{})
			g.meet = true
			db := open(t, g, opts...)
			cells := sample(3000, 2000, 600)
			require.NoError(t, setAll(t.Context(), db, cells))
			require.NoError(t, db.drained(t.Context()))
			checkAll(t, db, cells)
			require.EqualValues(t, 1, db.Stats().TwoPhase)
			// One that conflicts with the last of its rows rolls back in pieces.
			tx, err := db.Begin(t.Context())
			require.NoError(t, err)
			for c := range cells {
				require.NoError(t, tx.Delete(c))
			}
			last := Cell{"t", "row02999", "v"}
			set(t, db, last, "new")
			cells[last] = "new"
			require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict)
			require.NoError(t, db.drained(t.Context()))
			checkAll(t, db, cells)
			require.Zero(t, locksLeft(t, g.mem))
			g.mu.Lock() // the session is still renewed
			defer g.mu.Unlock()
			require.LessOrEqual(t, g.rows, pieceRows)
			require.Greater(t, g.rows, 1)
			require.LessOrEqual(t, g.bytes, pieceBytes+pieceBytes/2)
			require.LessOrEqual(t, g.operations, partOperations)
			require.LessOrEqual(t, g.most, piecesAtOnce+1)
			require.Greater(t, g.most, 1)
		})
	}
}

// A read of many cells goes in pieces, of one snapshot, and of fewer cells where values are
// long.
func TestManyCellsAreReadInPieces(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"short": 1, "long": format.ShortValue + 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGauge(rowstore.Limits{})
			db := open(t, g)
			rows := 3 * readCells
			if size > 1 {
				rows = 3 * readLongs
			}
			cells := sample(rows, 2000, size)
			require.NoError(t, setAll(t.Context(), db, cells))
			require.NoError(t, db.drained(t.Context()))
			var names []Cell
			for c := range cells {
				names = append(names, c)
			}
			names = append(names, Cell{"t", "no row", "v"}, names[0]) // one that has no value, one twice
			tx, err := db.Begin(t.Context())
			require.NoError(t, err)
			defer func() { require.NoError(t, tx.Rollback(t.Context())) }()
			_, err = tx.Get(t.Context(), names[0]) // the snapshot is from before the change
			require.NoError(t, err)
			set(t, db, names[1], "changed later")
			g.mu.Lock()
			g.read = 0
			g.mu.Unlock()
			values, err := tx.GetMany(t.Context(), names...)
			require.NoError(t, err)
			require.Len(t, values, len(cells))
			for c, v := range values {
				require.Equal(t, cells[c], string(v), "%v", c)
			}
			g.mu.Lock() // the catalog may be read anew
			most := g.read
			g.mu.Unlock()
			require.LessOrEqual(t, most, readCells)
			require.Greater(t, most, 1)
		})
	}
}

// Leases that are over go in pieces too: a row has one for each worker that ever was.
func TestOldLeasesGoInPieces(t *testing.T) {
	t.Parallel()
	g := newGauge(rowstore.Limits{Operations: 100})
	db := open(t, g)
	for i := range 1000 {
		_, err := g.mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableSweeps, Row: "r", Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Write, fmt.Sprint("worker", i), 5, nil),
		}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
	}
	var report GCReport
	require.NoError(t, db.removeLeases(t.Context(), format.TableSweeps, 10, &report))
	require.Equal(t, 1000, report.Versions)
	rows, err := g.mem.Read(t.Context(), []rowstore.RowRead{{Table: format.TableSweeps, Row: "r", Selectors: []rowstore.Selector{everything(rowstore.Write, rowstore.AllColumns)}}})
	require.NoError(t, err)
	require.Empty(t, rows[0].Versions)
}

// What is large but within bounds goes in one group still.
func TestModestTransactionsGoInOneGroup(t *testing.T) {
	t.Parallel()
	g := newGauge(rowstore.Limits{})
	db := open(t, g, withoutHints()) // which are stored in the background
	cells := sample(1500, 0, 10)
	require.NoError(t, setAll(t.Context(), db, cells))
	checkAll(t, db, cells)
	require.EqualValues(t, 1, db.Stats().OnePhase)
	require.Zero(t, g.rows-1, "the catalog alone")
}

// A store that takes few operations, or bytes, in one step is never asked for more,
// whatever the transaction is like.
func TestLimitsOfAStep(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]rowstore.Limits{
		"operations": {Operations: 128}, "few operations": {Operations: 8}, "bytes": {Bytes: 4000},
	} {
		for way, opts := range ways {
			t.Run(name+"/"+way, func(t *testing.T) {
				t.Parallel()
				g := newGauge(limits)
				db := open(t, g, opts...)
				_, err := db.changeCatalog(t.Context(), func(v *catalogView) (bool, error) {
					v.Observers = append(v.Observers, format.Observer{Name: []byte("o"), Table: []byte("t"), Column: []byte("v"), Swept: 1})
					return true, nil
				})
				require.NoError(t, err)
				cells := sample(40, 150, 700)
				require.NoError(t, setAll(t.Context(), db, cells))
				require.NoError(t, db.drained(t.Context()))
				checkAll(t, db, cells)
				require.EqualValues(t, 1, db.Stats().TwoPhase)
				// A small one keeps its way, unless even that is too much.
				set(t, db, rowA, "1")
				cells[rowA] = "1"
				// One with locks, notifications and validation.
				require.NoError(t, db.Update(t.Context(), func(tx *Txn) error {
					for i := range 40 {
						if _, err := tx.GetForUpdate(t.Context(), Cell{"t", "row00007", fmt.Sprintf("column%05d", i)}); err != nil {
							return err
						}
						if err := tx.Notify(Cell{"t", fmt.Sprintf("row%05d", i), "v"}); err != nil {
							return err
						}
					}
					return tx.Set(rowB, []byte("2"))
				}, WithIsolation(Serializable)))
				cells[rowB] = "2"
				require.NoError(t, db.drained(t.Context()))
				checkAll(t, db, cells)
				require.Zero(t, locksLeft(t, g.mem))
			})
		}
	}
}

// A timestamp that was drawn with some of the prewrites is not the commit timestamp:
// others were acknowledged later, and a reader between the two must see all or nothing.
func TestDrawnWithTheLastPieceOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client(withoutGroups())
	cells := sample(3*pieceRows, 0, 0)
	var between Timestamp
	c.wire.AddRule(faultstore.Rule{Match: prewrites, Skip: 1, After: func(ctx context.Context, x *call) {
		if between == 0 {
			between, _ = w.mem.Oracle().Draw(ctx, 1)
		}
	}})
	tx := begin(t, c)
	for cell, v := range cells {
		require.NoError(t, tx.Set(cell, []byte(v)))
	}
	require.NoError(t, tx.Commit(t.Context()))
	require.NotZero(t, between)
	calls := c.wire.sent(prewrites)
	require.Greater(t, len(calls), 3)
	for i, x := range calls {
		require.False(t, x.Opts.AssignTimestamp)
		require.Equal(t, i > 0, x.Opts.Bulk, "all but that of the primary")
	}
	require.Greater(t, tx.CommitTimestamp(), between)
	primary := calls[0].Mutations()[0]
	l, err := format.DecodeLock(primary.Edits[0].Value)
	require.NoError(t, err)
	require.Equal(t, Cell(l.Primary), Cell{primary.Table, primary.Row, primary.Conditions[0].Column}, "the primary is the first of the first piece")
	small := writes(t, c, "1", rowA, rowB)
	require.NoError(t, small.Commit(t.Context()))
	require.True(t, c.wire.sent(prewrites)[len(calls)].Opts.AssignTimestamp)
	require.False(t, c.wire.sent(prewrites)[len(calls)].Opts.Bulk)
}

// A piece is as large as the store gets done in a moment, and never so small that the calls
// themselves are what costs.
func TestPiecesKeepTheStoreBusyForAMoment(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		call, row       time.Duration
		atLeast, atMost int // rows, once the size has settled
	}{
		"quick rows":          {0, time.Microsecond, pieceRows, pieceRows},
		"slow rows":           {0, 25 * time.Microsecond, 20, 40},
		"slow calls":          {20 * time.Millisecond, time.Microsecond, pieceRows, pieceRows},
		"slow calls and rows": {20 * time.Millisecond, 25 * time.Microsecond, 20, 80},
		"very slow rows":      {0, time.Millisecond, fewestRows, fewestRows + 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newGauge(rowstore.Limits{})
				// The server does one call after the other.
				busy := make(chan struct{}, 1)
				g.slow = func(muts []rowstore.Mutation) time.Duration { return test.call }
				g.work = func(muts []rowstore.Mutation) {
					busy <- struct{}{}
					time.Sleep(time.Duration(len(muts)) * test.row)
					<-busy
				}
				db, _, end := bubble(t, g)
				defer end()
				pieces := 16
				if test.call > 0 {
					pieces = 40 // it takes longer until the size has settled
				}
				cells := sample(pieces*pieceRows, 0, 0)
				require.NoError(t, setAll(t.Context(), db, cells))
				require.NoError(t, db.drained(t.Context()))
				require.Greater(t, len(g.bulk), 2*pieces)
				prewrites := 0
				for n := 0; n < len(cells)*3/4; prewrites++ {
					n += g.bulk[prewrites]
				}
				for _, rows := range g.bulk[prewrites-3 : prewrites] {
					require.GreaterOrEqual(t, rows, test.atLeast, "%v", g.bulk[:prewrites])
					require.LessOrEqual(t, rows, test.atMost, "%v", g.bulk[:prewrites])
				}
			})
		})
	}
}

// bubble opens a DB over g and another over the store itself, in a bubble of fake time.
func bubble(t *testing.T, g *gauge, opts ...Option) (slow, quick *DB, end func()) {
	t.Helper()
	all := append([]Option{withoutGroups(), WithSettings(Settings{MaxTxnAge: 2 * time.Hour, Retention: 24 * time.Hour, CatalogLease: time.Hour})}, opts...)
	slow, err := New(t.Context(), g, all...)
	require.NoError(t, err)
	quick, err = New(t.Context(), g.mem, all...)
	require.NoError(t, err)
	return slow, quick, func() { require.NoError(t, errors.Join(slow.Close(t.Context()), quick.Close(t.Context()))) }
}

// poll reads cells again and again, as others do, until stop is called.
func poll(t *testing.T, db *DB, cells ...Cell) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = db.View(ctx, func(tx *Txn) error { _, err := tx.GetMany(ctx, cells...); return err })
			_ = systemClock{}.Sleep(ctx, 100*time.Millisecond)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// Prewrites that take far longer than a lock lasts keep their primary alive.
func TestHeartbeatWhilePrewriting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGauge(rowstore.Limits{})
		db, other, end := bubble(t, g, WithLockExpiry(2*time.Second))
		defer end()
		var pieces atomic.Int64
		g.slow = func(muts []rowstore.Mutation) time.Duration {
			if len(muts) > 1 {
				pieces.Add(1)
				return 500 * time.Millisecond // each quick enough
			}
			return 0
		}
		cells := sample(40*pieceRows, 0, 0)
		stop := poll(t, other, Cell{"t", "row00001", "v"}, Cell{"t", "row00900", "v"})
		began := time.Now()
		require.NoError(t, db.Update(t.Context(), func(tx *Txn) error {
			for c, v := range cells {
				if err := tx.Set(c, []byte(v)); err != nil {
					return err
				}
			}
			return nil
		}, WithMaxAttempts(1)))
		require.Greater(t, time.Since(began), 4*time.Second)
		require.Greater(t, pieces.Load(), int64(30))
		stop()
		require.Zero(t, other.Stats().RolledBack)
		require.Positive(t, g.urgents)
		require.NoError(t, db.drained(t.Context()))
		checkAll(t, other, cells)
	})
}

// Calls that take a good part of a session's lease, or much more, make commits slow and
// not impossible, though others look at the locks all the time.
func TestSlowCallsCommit(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	for _, takes := range []time.Duration{lease / 8, lease / 4, lease / 2, lease, 3 * lease, 7 * time.Second} {
		t.Run(takes.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newGauge(rowstore.Limits{})
				db, other, end := bubble(t, g, WithSessionLease(lease), WithLockExpiry(lease))
				defer end()
				g.slow = func([]rowstore.Mutation) time.Duration { return takes }
				stop := poll(t, other, rowA, rowB)
				defer stop()
				for i := range 5 {
					ctx, cancel := context.WithTimeout(t.Context(), 40*takes+time.Second)
					err := db.Update(ctx, func(tx *Txn) error {
						return errors.Join(tx.Set(rowA, []byte(fmt.Sprint(i))), tx.Set(rowB, []byte(fmt.Sprint(i))))
					})
					cancel()
					require.NoError(t, err, "transaction %d", i)
				}
				require.NoError(t, db.drained(t.Context()))
				require.EqualValues(t, 5, db.Stats().TwoPhase)
			})
		})
	}
}

// What others wait for a process that died is bounded however slow its calls were, and
// a slow moment is forgotten.
func TestSlowLeasesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := &session{}
	s.init(w.client().DB)
	require.Equal(t, 5*time.Second, s.lasts(5*time.Second))
	s.took(100 * time.Millisecond)
	require.Equal(t, 5*time.Second, s.lasts(5*time.Second))
	s.took(2 * time.Second)
	s.took(time.Second)
	require.Equal(t, 16*time.Second, s.lasts(5*time.Second))
	s.took(time.Hour)
	require.Equal(t, maxSlowLeases*worldSession, s.lasts(5*time.Second))
	require.Equal(t, 5*time.Minute, s.lasts(5*time.Minute), "what is configured holds at least")
	w.clock.advance(slowSpan)
	s.took(0)
	require.Equal(t, maxSlowLeases*worldSession, s.lasts(5*time.Second), "it is remembered for a while")
	w.clock.advance(slowSpan)
	s.took(0)
	require.Equal(t, 5*time.Second, s.lasts(5*time.Second))
}

// A resolver that has dealt with some cells of a wide row leaves the rest to its owner,
// who goes on in halves.
func TestWideRowPartlyRolledForward(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, c := w.client(withoutGroups()), w.client()
	tx := writes(t, t1, "1", rowA)
	for i := range 300 {
		require.NoError(t, tx.Set(Cell{"t", "wide", fmt.Sprint(i)}, []byte("1")))
	}
	p := t1.hold(t, secondaries(rowA))
	require.NoError(t, tx.Commit(t.Context()))
	p.wait()
	for _, i := range []int{7, 130, 299} {
		require.Equal(t, "1", value(t, c, Cell{"t", "wide", fmt.Sprint(i)}))
	}
	before := len(t1.wire.sent(secondaries(rowA)))
	p.release(pass)
	require.NoError(t, t1.drained(t.Context()))
	w.noLocks()
	require.Less(t, len(t1.wire.sent(secondaries(rowA)))-before, 3*2*10)
}

// One slow call makes the leases that follow longer. What was leased before it is renewed
// in its own time all the same.
func TestSlowCallLetsNoLeaseLapse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lease = 6 * time.Second
		g := newGauge(rowstore.Limits{})
		db, other, end := bubble(t, g, WithSessionLease(lease), WithLockExpiry(lease))
		defer end()
		set(t, db, rowA, "0")
		var calls atomic.Int64
		g.slow = func(muts []rowstore.Mutation) time.Duration {
			switch {
			case muts[0].Table == "t" && calls.Add(1) == 1:
				return lease / 2 // the first prewrite
			case len(muts) == 2:
				return 4 * lease // the others
			}
			return 0
		}
		stop := poll(t, other, rowA)
		defer stop()
		cells := sample(2*pieceRows+1, 0, 0)
		cells[rowA] = "1"
		require.NoError(t, db.Update(t.Context(), func(tx *Txn) error {
			if err := tx.Set(rowA, []byte("1")); err != nil {
				return err
			}
			for c, v := range cells {
				if err := tx.Set(c, []byte(v)); err != nil {
					return err
				}
			}
			return nil
		}, WithMaxAttempts(1)))
		require.Greater(t, calls.Load(), int64(4))
		require.Zero(t, other.Stats().RolledBack)
		require.NoError(t, db.drained(t.Context()))
		checkAll(t, other, cells)
	})
}

// What a run removes with its commit, however much, and what it notifies leave the steps
// within the store's limits.
func TestLimitsOfAStepWithNotifications(t *testing.T) {
	t.Parallel()
	for way, opts := range ways {
		for _, operations := range []int{16, 40} {
			t.Run(fmt.Sprintf("%s/%d", way, operations), func(t *testing.T) {
				t.Parallel()
				g := newGauge(rowstore.Limits{Operations: operations})
				db := open(t, g, opts...)
				_, err := db.changeCatalog(t.Context(), func(v *catalogView) (bool, error) {
					v.Observers = append(v.Observers, format.Observer{Name: []byte("o"), Table: []byte("t"), Column: []byte("v"), Swept: 1})
					return true, nil
				})
				require.NoError(t, err)
				_, err = db.loadCatalog(t.Context())
				require.NoError(t, err)
				for rows := range 5 {
					tx, err := db.Begin(t.Context())
					require.NoError(t, err)
					out := Cell{"t", "a", "out"}
					require.NoError(t, tx.Set(out, []byte("1")))
					for i := range rows {
						require.NoError(t, tx.Set(Cell{"t", fmt.Sprint("z", i), "out"}, nil))
					}
					require.NoError(t, tx.Notify(rowA))
					tx.extra = map[rowName][]rowstore.Edit{}
					for i := range Timestamp(33) {
						tx.extra[out.rowName()] = append(tx.extra[out.rowName()], rowstore.Delete(rowstore.Notify, "v", i+1))
					}
					require.NoError(t, tx.Commit(t.Context()), "%d rows", rows)
					require.NoError(t, db.drained(t.Context()))
				}
				require.Zero(t, locksLeft(t, g.mem))
			})
		}
	}
}

// lateOnce refuses the first group as too late.
type lateOnce struct {
	*gauge
	then func()
}

func (l *lateOnce) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	if then := l.then; then != nil {
		l.then = nil
		then()
		return []rowstore.GroupOutcome{{TooLate: true}}, nil
	}
	return l.gauge.Group(ctx, groups)
}

// A transaction that was to commit in one phase and that observers registered meanwhile
// have made too large for one step commits all the same.
func TestTooLateAndThenTooLarge(t *testing.T) {
	t.Parallel()
	const cells = 8
	g := &lateOnce{gauge: newGauge(rowstore.Limits{Operations: 4*cells + 1})}
	db := open(t, g)
	tx, err := db.Begin(t.Context())
	require.NoError(t, err)
	for i := range cells {
		require.NoError(t, tx.Set(Cell{"t", fmt.Sprint(i), "v"}, []byte("1")))
	}
	other := open(t, abilities{Store: g.mem})
	g.then = func() {
		_, err := other.changeCatalog(t.Context(), func(v *catalogView) (bool, error) {
			v.Observers = append(v.Observers, format.Observer{Name: []byte("o"), Table: []byte("t"), Column: []byte("v"), Swept: 1})
			return true, nil
		})
		require.NoError(t, err)
	}
	require.NoError(t, tx.Commit(t.Context()))
	require.Nil(t, g.then)
	require.NoError(t, db.drained(t.Context()))
	require.EqualValues(t, 1, db.Stats().TwoPhase)
	require.Zero(t, locksLeft(t, g.mem))
}
