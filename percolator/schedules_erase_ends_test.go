package percolator

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// What an erasure must not wait for without end, and what it leaves for later collections.

// The observer sets a timer of each cell whenever it runs. Some timers wait while the range is erased. Others are due again at once, so that
// there is always something to see in every page: but each run has seen the deletion.
func TestScheduleE_TimersThatAreSetAnew(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]time.Duration{"waiting": time.Hour, "soon": soon, "in a second": time.Second, "at once": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.erasing()
			w.observed("t", "v", "o")
			c := w.client()
			worker := watching(t, c, Observer{Name: "o", Func: func(ctx context.Context, tx *Txn, cell Cell) error { return tx.NotifyAfter(ctx, cell, ahead) }})
			var cells []Cell
			for i := range 2*awaitedPage + 44 {
				cells = append(cells, Cell{"t", fmt.Sprintf("ann/%05d", i), "v"})
			}
			require.NoError(t, writes(t, c, "secret", cells...).Commit(t.Context()))
			sees(worker, cells...)
			receipt, err := w.erase(c, func() {
				if valueBeside(t, c, cells[len(cells)-1]) == "none" {
					sees(worker, cells...)
				}
			})
			require.NoError(t, err)
			require.EqualValues(t, len(cells), receipt.Kept, "they have timers")
			require.Empty(t, w.traces("secret"))
		})
	}
}

// The background adds the hints of a large transaction a part at a time. A process that erases is storing the first part, and the others come
// later: Erase waits for all of them.
func TestScheduleE_HintsOfALargeTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c := w.client()
	var cells []Cell
	for i := range 3 * hintsAtOnce {
		cells = append(cells, Cell{"t", fmt.Sprintf("ann/%05d", i), "v"})
	}
	first, last := c.hold(t, restsOfHints(cells[0].Row)), c.hold(t, restsOfHints(cells[len(cells)-1].Row))
	require.NoError(t, writes(t, c, "secret", cells...).Commit(t.Context()))
	first.wait()
	steps := 0
	_, err := w.erase(c, func() {
		if left := w.raw(cells[len(cells)-1]); len(left.Versions) > 0 {
			return // the rows are still being removed
		}
		switch steps++; steps {
		case 200: // time for all else
			first.release(pass)
		case 400:
			last.release(pass)
		}
	})
	require.NoError(t, err)
	require.NoError(t, c.drained(t.Context()))
	require.Empty(t, w.traces("ann/"))
}

// What is written to a row after it was erased is hinted anew, though the process has hinted the row a moment ago: that hint is gone.
func TestScheduleE_HintsAfterwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c, writer := w.client(), w.client()
	span := c.known().hintSpanOf("t", mustNow(t, c))
	w.clock.advance(span.to.Sub(mustNow(t, c))) // the erasure ends within the next one
	for range 2 {
		for _, p := range []*client{c, writer} {
			set(t, p.DB, ann1, "secret")
			set(t, p.DB, bob, "secret")
		}
	}
	w.stored(c, writer)
	_, err := w.erase(c, nil)
	require.NoError(t, err)
	require.NotContains(t, w.storedHints("t"), ann1.Row)
	for _, p := range []*client{c, writer} {
		hints := w.storedHints("t")
		for range 2 {
			set(t, p.DB, ann1, "anew")
			set(t, p.DB, bob, "anew")
		}
		w.stored(p)
		require.Equal(t, hints[ann1.Row]+1, w.storedHints("t")[ann1.Row])
		require.Equal(t, hints[bob.Row], w.storedHints("t")[bob.Row], "of a row outside the range one hint is enough")
	}
	w.pass(worldRetention + 2*worldAge)
	w.hintedCollect(c)
	left := w.raw(ann1)
	require.Len(t, left.All(rowstore.Write, "v"), 1)
}

// A collection has looked at a row that it has to look at again later, and stalls. Then the row is erased. The collection must not hint it.
func TestScheduleE_CollectionHintsLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	w.observed("t", "v", "o")
	c, gc := w.client(), w.client()
	worker := watching(t, c, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error { return nil }})
	for range 2 {
		set(t, c.DB, ann1, "secret")
		set(t, c.DB, bob, "1")
	}
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(ann1) }))
	w.stored(c)
	w.clock.advance(worldRetention + 2*worldAge)
	p := gc.hold(t, both(op(faultstore.CallApply), on(bob)))
	collected := async(func() error { _, err := gc.CollectGarbage(context.Background(), GCOptions{}); return err })
	require.NoError(t, w.passes(async(func() error { p.wait(); return nil })))
	_, err := w.erase(c, func() { sees(worker, ann1) })
	require.NoError(t, err)
	require.Empty(t, w.traces("ann/"))
	p.release(pass)
	require.NoError(t, w.passes(collected))
	require.Empty(t, strings.Join(w.traces("ann/"), "\n"))
}

// A call that stores hints of a large transaction is lost. What it had and what comes after it is stored later.
func TestHintsOfALargeTransactionWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	var cells []Cell
	for i := range 2 * hintsAtOnce {
		cells = append(cells, row(fmt.Sprintf("%05d", i)))
	}
	r := c.wire.AddRule(faultstore.Rule{Match: restsOfHints(cells[0].Row), Fault: lose})
	require.NoError(t, writes(t, c, "secret", cells...).Commit(t.Context()))
	require.NoError(t, c.drained(t.Context()))
	require.Positive(t, r.Struck())
	c.wire.SetRules()
	w.stored(c)
	require.Len(t, w.storedHints("t"), len(cells))
}

// However often an erasure finds its rows, it keeps a hash of each once, about.
func TestRowsFoundAreKeptOnce(t *testing.T) {
	t.Parallel()
	f := newRowsFound()
	for range 100 {
		for i := range 1000 {
			f.add(fmt.Sprint(i))
		}
	}
	require.Less(t, cap(f.hashes), 5000)
	require.EqualValues(t, 999, f.without(map[string]bool{"7": true, "none": true}))
}

// A process has hinted a row, which another one erases. Then it meets what a process from before has sent late, and fences that: the mark is
// hinted, though it is of a transaction from before the erasure.
func TestScheduleE_LateMarkIsHinted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	c, p := w.client(), w.client()
	start, err := p.draw(t.Context())
	require.NoError(t, err)
	for range 2 {
		set(t, p.DB, ann1, "secret")
	}
	w.stored(p)
	_, err = w.erase(c, nil)
	require.NoError(t, err)
	require.Empty(t, w.storedHints("t"))
	_, err = p.loadCatalog(t.Context())
	require.NoError(t, err)
	_, err = p.rollBackPrimary(t.Context(), start, ann1.stored(), nil)
	require.NoError(t, err)
	w.stored(p)
	require.Equal(t, map[string]int{ann1.Row: 1}, w.storedHints("t"))
	w.pass(worldRetention + 2*worldAge)
	w.hintedCollect(c)
	require.Empty(t, w.raw(ann1).Versions)
}

// Observers that have seen a deletion are not waited for, also while a run that has come since is being committed.
func TestScheduleE_SeenUnderARun(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		w.erasing()
		w.observed("t", "v", "o")
		c, other := w.client(opts...), w.client()
		worker := watching(t, c, Observer{Name: "o", Func: func(ctx context.Context, tx *Txn, cell Cell) error { return tx.NotifyAfter(ctx, cell, 0) }})
		set(t, c.DB, ann1, "secret")
		runs(t, worker, ann1)
		require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(ann1) }))
		seen, err := other.draw(t.Context())
		require.NoError(t, err)
		runs(t, worker, ann1)
		require.NoError(t, c.drained(t.Context()))
		p := c.hold(t, commitPoint(ann1))
		run := async(func() error { _, _, err := worker.runCell(context.Background(), ann1.stored()); return err })
		p.wait()
		e := &erasure{db: other.DB, span: span{table: "t", from: "ann/", to: "ann0"}, receipt: &Receipt{}, found: newRowsFound(), seen: seen}
		before := w.notified(ann1)
		require.NotEmpty(t, before)
		names, _, err := e.uncovered(t.Context(), "ann/")
		require.NoError(t, err)
		require.Empty(t, names)
		require.Equal(t, before, w.notified(ann1), "the run may be rolled back")
		e.seen = oracle.Max
		names, _, err = e.uncovered(t.Context(), "ann/")
		require.NoError(t, err)
		require.Equal(t, []string{"a transaction that commits"}, names)
		p.release(pass)
		require.NoError(t, w.finish(run))
	})
}

// A call that stores hints fails when their span has ended and others have been noted since. They wait all the same.
func TestHintsOfAnEndedSpanWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	for range 2 {
		set(t, c.DB, rowA, "1")
	}
	require.NoError(t, c.drained(t.Context()))
	p := c.hold(t, restsOfHints(rowA.Row))
	stored := async(func() error { return c.storeHints(t.Context()) })
	p.wait()
	w.clock.advance(2 * worldRetention / hintSpans)
	for range 2 {
		set(t, c.DB, rowB, "1")
	}
	p.release(refuse)
	require.Error(t, w.finish(stored))
	w.stored(c)
	require.Equal(t, map[string]int{rowA.Row: 1, rowB.Row: 1}, w.storedHints("t"))
}

// A row that was erased is notified before it is removed. The erasure waits for the observer, and does not look again and again at what else is to be removed.
func TestScheduleE_NotifiedAfterwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	w.observed("t", "v", "o")
	c, other := w.client(), w.client()
	worker := watching(t, other, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error { return nil }})
	set(t, c.DB, ann1, "secret")
	var removals, looks atomic.Int64
	c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool {
		switch {
		case x.Kind != faultstore.CallScan || x.Range.Table != "t":
		case len(x.Range.Selectors) == 1:
			looks.Add(1)
		default:
			removals.Add(1)
		}
		return false
	}})
	var enough int64
	var notified error
	_, err := w.erase(c, func() {
		switch erased := len(c.known().erased) > 0; {
		case !erased && valueBeside(t, c, ann1) == "none":
			sees(worker, ann1)
		case erased && enough == 0:
			enough = looks.Load() + 100
			notified = other.Update(t.Context(), func(tx *Txn) error { return tx.Notify(ann1) })
		case erased && looks.Load() > enough:
			sees(worker, ann1)
		}
	})
	require.NoError(t, err)
	require.NoError(t, notified)
	require.Greater(t, looks.Load(), enough, "it has waited")
	require.Less(t, removals.Load(), int64(50))
}
