package percolator

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// A large transaction whose process died leaves locks in thousands of rows. Whoever reads them pays some
// calls for a page of rows, and not some for each row.
func TestLocksOfALargeDeadTransaction(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		c, cells := largeAndDead(t, w, commitPoint, opts...)
		readAll(t, c, "dead", cells, 0)
		require.EqualValues(t, len(cells), c.Stats().RolledBack)
		w.noLocks()
	})
}

// The same after the commit point. A transaction that commits as a group leaves no locks.
func TestLocksOfALargeTransactionThatDiedCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, cells := largeAndDead(t, w, secondaries, withoutGroups())
	readAll(t, c, "dead", cells, len(cells))
	require.EqualValues(t, len(cells)-1, c.Stats().RolledForward)
	w.noLocks()
}

// largeAndDead writes several pages of rows by a process that dies where at says, and lets its lease end.
func largeAndDead(t *testing.T, w *world, at func(primary Cell) matcher, opts ...Option) (c *client, cells []Cell) {
	cells = make([]Cell, 5*settleMost+7)
	for i := range cells {
		cells[i] = row(fmt.Sprintf("r%06d", i))
	}
	dead := w.client(opts...)
	c = w.client()
	dead.wire.verdict(at(cells[0]), die)
	_ = writes(t, dead, "dead", cells...).Commit(t.Context())
	require.NoError(t, dead.drained(t.Context()))
	require.NotEmpty(t, w.versions(rowstore.Lock))
	w.pass(worldSession + time.Second)
	return c, cells
}

// readAll reads half of the cells by name, and all in a scan, in few calls, and requires that there are as
// many values.
func readAll(t *testing.T, c *client, value string, cells []Cell, values int) {
	before := len(c.wire.sent(anyCall))
	require.NoError(t, c.View(t.Context(), func(tx *Txn) error {
		half, err := tx.GetMany(t.Context(), cells[:len(cells)/2]...)
		require.Len(t, half, min(values, len(cells)/2))
		return err
	}))
	rows := 0
	require.NoError(t, c.View(t.Context(), func(tx *Txn) error {
		for row, err := range tx.Scan(t.Context(), Range{Table: "t"}) {
			require.NoError(t, err)
			require.Equal(t, value, string(row.Columns["v"]))
			rows++
		}
		return nil
	}))
	require.Equal(t, values, rows)
	require.Less(t, len(c.wire.sent(anyCall))-before, 10*(len(cells)/settleMost+2), "calls")
}

// Whoever writes over the locks of a large dead transaction pays as little, however it commits.
func TestWritesOverALargeDeadTransaction(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]func(primary Cell) matcher{"rolled back": commitPoint, "committed": secondaries} {
		for way, opts := range ways {
			t.Run(name+"/"+way, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				_, cells := largeAndDead(t, w, at, withoutGroups())
				c := w.client(opts...)
				before := len(c.wire.sent(anyCall))
				require.NoError(t, writes(t, c, "new", cells...).Commit(t.Context()))
				require.NoError(t, c.drained(t.Context()))
				require.Less(t, len(c.wire.sent(anyCall))-before, 20*(len(cells)/settleMost+2), "calls")
				readAll(t, c, "new", cells, len(cells))
				w.noLocks()
			})
		}
	}
}

// The same where the locks are in the columns of one row.
func TestWritesOverAWideDeadTransaction(t *testing.T) {
	for columns, calls := range map[int]int{1000: 60, 5000: 150} {
		t.Run(fmt.Sprint(columns), func(t *testing.T) { requireFewCallsOverAWideRow(t, columns, calls) })
	}
}

func requireFewCallsOverAWideRow(t *testing.T, columns, calls int) {
	t.Helper()
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		var cells []Cell
		for i := range columns {
			cells = append(cells, Cell{"t", "wide", fmt.Sprintf("c%04d", i)})
		}
		dead, c := w.client(withoutGroups()), w.client(opts...)
		dead.wire.verdict(commitPoint(cells[0]), die)
		require.Error(t, writes(t, dead, "dead", cells...).Commit(t.Context()))
		require.NoError(t, dead.drained(t.Context()))
		require.Len(t, w.versions(rowstore.Lock), len(cells))
		w.pass(worldSession + time.Second)
		before := len(c.wire.sent(anyCall))
		require.NoError(t, writes(t, c, "new", cells...).Commit(t.Context()))
		require.NoError(t, c.drained(t.Context()))
		require.Less(t, len(c.wire.sent(anyCall))-before, calls, "calls")
		w.noLocks()
	})
}

// Whoever meets the lock of a living transaction asks for it alone, each time that it looks.
func TestWaitingForTheLivingAsksForOneLock(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		owner, c := w.client(withoutGroups()), w.client(opts...)
		var cells []Cell
		for i := range 300 {
			r := fmt.Sprintf("r%06d", i)
			cells = append(cells, row(r), Cell{"t", r, "w"})
		}
		p := owner.hold(t, commitPoint(cells[7]))
		owned := commit(owner, writes(t, owner, "1", cells[7]))
		p.wait()
		var looks atomic.Int64
		c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool {
			if x.Kind == faultstore.CallRead && !slices.ContainsFunc(x.Reads[0].Selectors, func(s rowstore.Selector) bool { return s.Family != rowstore.Lock }) {
				looks.Add(1)
			}
			return false
		}})
		done := commit(c, writes(t, c, "2", cells...))
		before := len(c.wire.sent(anyCall))
		require.Eventually(t, func() bool { return len(c.wire.sent(anyCall)) > before+40 }, patience, time.Millisecond)
		require.Zero(t, looks.Load(), "it has asked for the locks of rows")
		p.release(pass)
		require.NoError(t, w.finish(owned))
		require.NoError(t, w.finish(done), "it has begun above that commit")
	})
}

// Whoever has to give up does so at the first lock of a younger transaction that lives, however many others are in the way.
func TestGivesUpAtTheFirstYoungerLock(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		old := w.client(opts...)
		var cells []Cell
		for i := range 60 {
			cells = append(cells, row(fmt.Sprintf("r%06d", i)))
		}
		tx := writes(t, old, "old", cells...)
		_, err := tx.StartTimestamp(t.Context())
		require.NoError(t, err)
		young := w.client(withoutGroups())
		var pauses []*pause
		var ends []<-chan error
		for _, cell := range cells[10:] {
			p := young.hold(t, commitPoint(cell))
			ends = append(ends, commit(young, writes(t, young, "young", cell)))
			p.wait()
			pauses = append(pauses, p)
		}
		before := len(old.wire.sent(anyCall))
		require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict)
		require.NoError(t, old.drained(t.Context()))
		require.Less(t, len(old.wire.sent(anyCall))-before, 20, "calls")
		for i, p := range pauses {
			p.release(pass)
			require.NoError(t, w.finish(ends[i]))
		}
	})
}

// A Serializable transaction that has read what a large dead one has locked since validates in few calls.
func TestValidationOverALargeDeadTransaction(t *testing.T) {
	t.Parallel()
	for _, scans := range []bool{false, true} {
		w := newWorld(t)
		c := w.client()
		tx := begin(t, c, WithIsolation(Serializable))
		var cells []Cell
		for i := range 5*settleMost + 7 {
			cells = append(cells, row(fmt.Sprintf("r%06d", i)))
		}
		if scans {
			for _, err := range tx.Scan(t.Context(), Range{Table: "t"}) {
				require.NoError(t, err)
			}
		} else {
			_, err := tx.GetMany(t.Context(), cells...)
			require.NoError(t, err)
		}
		dead := w.client(withoutGroups())
		dead.wire.verdict(commitPoint(cells[0]), die)
		require.Error(t, writes(t, dead, "dead", cells...).Commit(t.Context()))
		require.NoError(t, dead.drained(t.Context()))
		w.pass(worldSession + time.Second)
		require.NoError(t, tx.Set(Cell{"other", "r", "v"}, []byte("1")))
		before := len(c.wire.sent(anyCall))
		require.NoError(t, tx.Commit(t.Context()))
		require.NoError(t, c.drained(t.Context()))
		require.Less(t, len(c.wire.sent(anyCall))-before, 20*(len(cells)/settleMost+2), "calls")
		w.noLocks()
	}
}

// A validation by a scan reads the range anew once, and not for each part of the locks that a row has.
func TestValidationOverAWideDeadRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	tx := begin(t, c, WithIsolation(Serializable))
	for _, err := range tx.Scan(t.Context(), Range{Table: "t"}) {
		require.NoError(t, err)
	}
	var cells []Cell
	for i := range 1000 {
		cells = append(cells, Cell{"t", "wide", fmt.Sprintf("c%04d", i)})
	}
	dead := w.client(withoutGroups())
	dead.wire.verdict(commitPoint(cells[0]), die)
	require.Error(t, writes(t, dead, "dead", cells...).Commit(t.Context()))
	require.NoError(t, dead.drained(t.Context()))
	require.Greater(t, len(cells), c.rowOperations()/operationsOfLock, "more than one mutation resolves")
	w.pass(worldSession + time.Second)
	require.NoError(t, tx.Set(Cell{"other", "r", "v"}, []byte("1")))
	scans := func() int { return len(c.wire.sent(op(faultstore.CallScan))) }
	before := scans()
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, before+2, scans())
	w.noLocks()
}

// Rows of a page that are locked by a transaction that lives are waited for, and those of the
// dead are resolved meanwhile.
func TestLocksOfTheLivingAndTheDead(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		dead, living, c := w.client(opts...), w.client(opts...), w.client()
		dead.wire.verdict(commitPoint(row("a")), die)
		require.Error(t, writes(t, dead, "dead", row("a"), row("c"), row("e")).Commit(t.Context()))
		require.NoError(t, dead.drained(t.Context()))
		w.pass(worldSession + time.Second)
		held := living.hold(t, commitPoint(row("b")))
		ended := commit(living, writes(t, living, "living", row("b"), row("d")))
		held.wait()
		seen := map[string]string{}
		scanned := async(func() error {
			return c.View(t.Context(), func(tx *Txn) error {
				for row, err := range tx.Scan(t.Context(), Range{Table: "t"}) {
					if err != nil {
						return err
					}
					seen[row.Key] = string(row.Columns["v"])
				}
				return nil
			})
		})
		require.Eventually(t, func() bool { return c.Stats().RolledBack == 3 }, patience, time.Millisecond)
		held.release(pass)
		require.NoError(t, w.finish(ended))
		require.NoError(t, w.finish(scanned))
		require.Equal(t, map[string]string{"b": "living", "d": "living"}, seen, "its commit timestamp lies below the snapshot")
		w.noLocks()
	})
}

// Two dead transactions have locked cells of the same rows; one had committed.
func TestLocksOfTwoDeadTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cell := func(row, column string) Cell { return Cell{"t", row, column} }
	for client, at := range map[string]matcher{"committed": secondaries(cell("p", "committed")), "aborted": commitPoint(cell("q", "aborted"))} {
		dead := w.client(withoutGroups())
		dead.wire.verdict(at, die)
		primary := map[string]string{"committed": "p", "aborted": "q"}[client]
		_ = writes(t, dead, client, cell(primary, client), cell("r1", client), cell("r2", client)).Commit(t.Context())
		require.NoError(t, dead.drained(t.Context()))
	}
	w.pass(worldSession + time.Second)
	c := w.client()
	seen := map[string]string{}
	require.NoError(t, c.View(t.Context(), func(tx *Txn) error {
		for row, err := range tx.Scan(t.Context(), Range{Table: "t"}) {
			require.NoError(t, err)
			for column := range row.Columns {
				seen[row.Key] += column
			}
		}
		return nil
	}))
	require.Equal(t, map[string]string{"p": "committed", "r1": "committed", "r2": "committed"}, seen)
	require.EqualValues(t, 2, c.Stats().RolledForward)
	require.EqualValues(t, 3, c.Stats().RolledBack)
	w.noLocks()
}

// More locks in a row than a mutation takes.
func TestLocksOfAWideDeadTransaction(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		n := 2*partOperations/operationsOfLock + 3
		cells := make([]Cell, n)
		for i := range cells {
			cells[i] = Cell{"t", "wide", fmt.Sprintf("c%06d", i)}
		}
		cells = append(cells, row("zz"))
		dead, c := w.client(opts...), w.client()
		dead.wire.verdict(commitPoint(cells[0]), die)
		require.Error(t, writes(t, dead, "dead", cells...).Commit(t.Context()))
		require.NoError(t, dead.drained(t.Context()))
		w.pass(worldSession + time.Second)
		before := len(c.wire.sent(anyCall))
		require.NoError(t, c.View(t.Context(), func(tx *Txn) error {
			for row, err := range tx.Scan(t.Context(), Range{Table: "t"}) {
				require.NoError(t, err)
				require.Fail(t, "a row of a dead transaction", row.Key)
			}
			return nil
		}))
		require.Less(t, len(c.wire.sent(anyCall))-before, 30, "calls")
		w.noLocks()
	})
}

// A roll forward that arrives when others have done it, and what it wrote was deleted and collected, changes nothing.
func TestRollForwardAfterACollection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner, late, c := w.client(withoutGroups()), w.client(), w.client()
	owns := owner.hold(t, secondaries(row("a")))
	ended := commit(owner, writes(t, owner, "1", row("a"), row("b")))
	owns.wait()
	resolves := late.hold(t, commits)
	read := async(func() error {
		return late.View(t.Context(), func(tx *Txn) error {
			_, err := tx.Get(t.Context(), row("b"))
			return err
		})
	})
	resolves.wait()
	owns.release(pass)
	require.NoError(t, w.finish(ended))
	require.NoError(t, owner.drained(t.Context()))
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(row("b")) }))
	require.NoError(t, c.drained(t.Context()))
	w.clock.advance(2 * worldRetention)
	_, err := w.collect(c, 0)
	require.NoError(t, err)
	require.Empty(t, w.raw(row("b")).Versions)
	resolves.release(pass)
	require.Error(t, w.finish(read), "nothing, or a snapshot that is too old")
	require.Empty(t, w.raw(row("b")).Versions)
}
