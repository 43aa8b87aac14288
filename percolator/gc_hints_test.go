package percolator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// storedHints are the rows that stored hints of a table name, each as often as it is named.
func (w *world) storedHints(table string) map[string]int {
	w.t.Helper()
	from, to := format.HintsOf(table, 0, oracle.Max)
	names := map[string]int{}
	for row, err := range w.mem.Scan(w.t.Context(), rowstore.ScanRange{Table: format.TableHints, From: from, To: to, Selectors: []rowstore.Selector{everything(rowstore.Write, format.ColumnHint)}}) {
		require.NoError(w.t, err)
		for _, v := range row.Versions {
			h, err := format.DecodeHint(v.Value)
			require.NoError(w.t, err)
			for _, name := range h.Rows {
				names[name]++
			}
		}
	}
	return names
}

// stored stores the hints of clients, as they do by themselves after a while.
func (w *world) stored(clients ...*client) {
	w.t.Helper()
	for _, c := range clients {
		require.NoError(w.t, c.drained(w.t.Context()))
		require.NoError(w.t, c.storeHints(w.t.Context()))
	}
}

// hintedCollect is a collection by hints.
func (w *world) hintedCollect(c *client) GCReport {
	w.t.Helper()
	report, err := w.collectBy(c, GCOptions{})
	require.NoError(w.t, err)
	require.False(w.t, report.Full)
	return report
}

// What replaces nothing is not hinted; everything else is, once in a span of time.
func TestWhatIsHinted(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		ctx := t.Context()
		c := w.client(opts...)
		for i := range 3 {
			require.NoError(t, c.Update(ctx, func(tx *Txn) error {
				cell := row(fmt.Sprintf("new %d", i))
				if _, err := tx.Get(ctx, cell); i < 2 {
					require.ErrorIs(t, err, ErrNotFound)
				} else if got, err := tx.GetMany(ctx, cell, rowA); err != nil || len(got) > 0 {
					return fmt.Errorf("read %v: %w", got, err)
				}
				return tx.Set(cell, []byte("1"))
			}))
		}
		w.stored(c)
		require.Empty(t, w.storedHints("t"))
		for range 3 {
			set(t, c.DB, rowA, "1")
		}
		require.NoError(t, c.Update(ctx, func(tx *Txn) error { return tx.Delete(rowB) }))
		require.NoError(t, c.Update(ctx, func(tx *Txn) error {
			if _, err := tx.GetForUpdate(ctx, rowC); err != nil {
				require.ErrorIs(t, err, ErrNotFound)
			}
			return tx.Set(row("other"), nil)
		}))
		w.stored(c)
		want := map[string]int{"a": 1, "b": 1, "c": 1, "other": 1}
		require.Equal(t, want, w.storedHints("t"))
		set(t, c.DB, rowA, "1")
		w.stored(c)
		require.Equal(t, want, w.storedHints("t"), "a row is named once in a span")
		w.clock.advance(worldRetention / hintSpans)
		set(t, c.DB, rowA, "1")
		w.stored(c)
		want["a"] = 2
		require.Equal(t, want, w.storedHints("t"))
	})
}

// Hints are stored after a while, and what is left of them when the DB closes.
func TestHintsAreStoredByThemselves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	set(t, c.DB, rowA, "1")
	require.NoError(t, c.drained(t.Context()))
	require.Empty(t, w.storedHints("t"))
	w.clock.advance(hintsAfter)
	set(t, c.DB, rowB, "1")
	require.NoError(t, c.drained(t.Context()))
	require.Equal(t, 1, w.storedHints("t")["a"])
	// The goroutine that keeps the catalog fresh may have been at it before the second change.
	w.clock.advance(hintsAfter)
	c.hintSoon()
	require.NoError(t, c.drained(t.Context()))
	require.Equal(t, map[string]int{"a": 1, "b": 1}, w.storedHints("t"))
	set(t, c.DB, rowC, "1")
	require.NoError(t, c.Close(t.Context()))
	w.without(c)
	require.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1}, w.storedHints("t"))
}

// Who rolls back a transaction hints the mark on its primary, its own one or that of a dead process. Who rolls a lock forward hints
// what it replaces.
func TestResolvedLocksAreHinted(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		c, other := w.client(opts...), w.client()
		tx := writes(t, c, "1", rowA, rowB)
		set(t, other.DB, rowA, "2")
		require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict)
		w.stored(c)
		require.Equal(t, map[string]int{"a": 1}, w.storedHints("t"), "its own")

		w = newWorld(t)
		dead, c := w.client(opts...), w.client()
		dead.wire.verdict(commitPoint(rowA), die)
		_ = writes(t, dead, "dead", rowA, rowB).Commit(t.Context())
		require.NoError(t, dead.drained(t.Context()))
		w.pass(worldSession + time.Second)
		require.Equal(t, "none", value(t, c, rowB))
		w.stored(c)
		require.Equal(t, map[string]int{"a": 1}, w.storedHints("t"), "of a dead process")

		w = newWorld(t)
		committedPrimary(t, w, false, false)
		c = w.client()
		require.Equal(t, "1", value(t, c, rowB))
		w.stored(c)
		require.Equal(t, map[string]int{"b": 1}, w.storedHints("t"), "rolled forward")
	})
}

// A collection by hints reads the rows that were changed, removes what is garbage in them, and their hints
// with it. A table in which nothing changed costs nothing.
func TestCollectionByHints(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c, gc := w.client(opts...), w.client()
		for i := range 100 {
			set(t, c.DB, row(fmt.Sprint("quiet ", i)), "1")
		}
		set(t, c.DB, rowA, "1")
		w.stored(c)
		w.clock.advance(worldRetention + 2*worldAge)
		report := w.hintedCollect(gc)
		require.Equal(t, 101, report.Read, "these were set without having been read")
		require.Zero(t, report.Versions)
		require.Empty(t, w.storedHints("t"))

		set(t, c.DB, rowA, "2")
		require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(row("quiet 7")) }))
		w.stored(c)
		w.clock.advance(worldRetention + 2*worldAge)
		report = w.hintedCollect(gc)
		require.Equal(t, 2, report.Read)
		require.Equal(t, 2, report.Rows)
		require.Equal(t, 3, report.Versions)
		require.Positive(t, report.Hints)
		require.Empty(t, w.storedHints("t"))
		require.EqualValues(t, 103, gc.Stats().GCRead)

		w.clock.advance(2 * worldRetention)
		calls := len(gc.wire.sent(anyCall))
		report = w.hintedCollect(gc)
		require.Equal(t, GCReport{SafePoint: report.SafePoint, LocksSearched: report.LocksSearched}, report)
		require.Less(t, len(gc.wire.sent(anyCall))-calls, 40)
	})
}

// A hint whose span is not over at the safe point stays, and serves a later collection too.
func TestHintOfASpanThatIsNotOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, gc := w.client(), w.client()
	length := worldRetention / hintSpans
	span := c.known().hintSpanOf("t", mustNow(t, c))
	w.clock.advance(span.to.Sub(mustNow(t, c))) // the beginning of the next one
	for i := range 2 {
		set(t, c.DB, rowA, fmt.Sprint(i))
	}
	w.clock.advance(length / 2)
	set(t, c.DB, rowA, "2")
	w.stored(c)
	require.Equal(t, map[string]int{"a": 1}, w.storedHints("t"))
	w.clock.advance(worldRetention - length/4)
	report := w.hintedCollect(gc)
	require.Equal(t, 1, report.Versions)
	require.Zero(t, report.Hints)
	require.Equal(t, map[string]int{"a": 1}, w.storedHints("t"))
	w.clock.advance(length)
	report = w.hintedCollect(gc)
	require.Equal(t, 1, report.Versions)
	require.Empty(t, w.storedHints("t"))
}

func mustNow(t testing.TB, c *client) Timestamp {
	t.Helper()
	now, err := c.Now(t.Context())
	require.NoError(t, err)
	return now
}

// What is kept now and becomes garbage without another commit is hinted anew, before its hint goes: here a
// deleted cell whose observer has yet to see it. Two collectors do it, of which one dies at any of its calls.
func TestWhatIsKeptIsHintedAnew(t *testing.T) {
	t.Parallel()
	for n := 0; ; n++ {
		w := newWorld(t)
		w.observed("t", "v", "o")
		c, gc, dies := w.client(), w.client(), w.client()
		set(t, c.DB, rowA, "1")
		require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowA) }))
		w.stored(c)
		w.clock.advance(worldRetention + 2*worldAge)
		r := dies.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallApply), Skip: n, Fault: die})
		_, err := w.collectBy(dies, GCOptions{})
		ended := r.Struck() == 0
		require.True(t, !ended || err == nil, "%v", err)
		w.hintedCollect(gc)
		row := w.raw(rowA)
		require.Len(t, row.All(rowstore.Write, "v"), 1, "the delete waits for its observer")
		require.NotEmpty(t, w.storedHints("t"), "died at call %d", n)
		_, err = w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{
			rowstore.DeleteRange(rowstore.Notify, "v", 0, oracle.Max),
		}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		w.clock.advance(worldRetention + 2*worldAge)
		w.hintedCollect(gc)
		row = w.raw(rowA)
		require.Empty(t, row.Versions, "died at call %d", n)
		require.Empty(t, w.storedHints("t"))
		if ended {
			require.Greater(t, n, 4)
			return
		}
	}
}

// A row that changes between being read and being cleaned is hinted anew.
func TestRowThatChangedIsHintedAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, gc := w.client(), w.client()
	set(t, c.DB, rowA, "1")
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowA) }))
	w.stored(c)
	w.clock.advance(worldRetention + 2*worldAge)
	gc.wire.AddRule(faultstore.Rule{Match: both(op(faultstore.CallApply), on(rowA)), Before: func(context.Context, *call) verdict {
		_, err := w.mem.Apply(context.Background(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Notify, "v", 1, format.WeakNotification), // of an observer of long ago
		}}}, rowstore.ApplyOptions{})
		if err != nil {
			t.Error(err)
		}
		return pass
	}})
	require.Zero(t, w.hintedCollect(gc).Versions)
	w.clock.advance(worldRetention + 2*worldAge)
	require.Positive(t, w.hintedCollect(gc).Versions)
	require.Empty(t, w.storedHints("t"))
}

// Hints that are lost with a killed process are made up for by a collection of all rows, which comes by
// itself after ten retentions.
func TestLostHintsAreMadeUpFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	killed, gc := w.client(), w.client()
	set(t, killed.DB, rowA, "1")
	set(t, killed.DB, rowA, "2")
	killed.hints.forgetAll()
	require.EqualValues(t, 1, killed.Stats().GCHintsLost)
	set(t, gc.DB, rowB, "1")
	full := 0
	for i := 0; full == 0; i++ {
		w.clock.advance(worldRetention)
		report, err := w.collectBy(gc, GCOptions{})
		require.NoError(t, err)
		require.Less(t, i, gcFullAfter+2)
		if report.Full {
			full = i
			require.Equal(t, 1, report.Versions)
			require.Equal(t, 2, report.Read)
		} else {
			require.Zero(t, report.Versions)
		}
	}
	require.GreaterOrEqual(t, full, gcFullAfter)
	w.clock.advance(worldRetention)
	w.hintedCollect(gc)
}

// After an upgrade the first collection looks at every row, and for every lock, if an older program may have
// committed later than the last one that did.
func TestFirstCollectionAfterAnUpgrade(t *testing.T) {
	t.Parallel()
	for version := byte(1); version < format.HintedVersion; version++ {
		w := newWorld(t)
		old := w.client(withoutHints())
		set(t, old.DB, rowA, "0")
		w.lowerTo(version)
		set(t, old.DB, rowA, "1") // by the catalog that it knows
		c := w.client()
		w.clock.advance(worldRetention / 2)
		for i, full := range []bool{true, true, true, false} {
			report, err := w.collectBy(c, GCOptions{})
			require.NoError(t, err)
			require.Equal(t, full, report.Full, "collection %d", i)
			require.Equal(t, full, report.LocksSearched, "collection %d", i)
			w.clock.advance(worldRetention * 2 / 3)
		}
		row := w.raw(rowA)
		require.Len(t, row.All(rowstore.Write, "v"), 1)
	}
}

// A process whose store does not take its hints remembers so many rows, and no more.
func TestHintsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	r := c.wire.AddRule(faultstore.Rule{Match: on(Cell{format.TableHints, "", ""}.public()), Times: -1, Fault: refuse})
	r.Remove()
	now := mustNow(t, c)
	for i := range mostHints + 10 {
		c.hint(row(fmt.Sprint(i)), now)
	}
	require.EqualValues(t, mostHints, c.Stats().GCHintsLost)
	muts, _ := c.hints.take()
	require.Len(t, muts, 1)
	for i := range 3 * hintRows {
		c.hint(row(fmt.Sprint("long ", strings.Repeat("x", i%100), i)), now)
	}
	c.hint(row(strings.Repeat("y", 2*hintBytes)), now)
	muts, rows := c.hints.take()
	require.Greater(t, len(muts), 4)
	for _, m := range muts {
		require.Less(t, len(m.Edits[0].Value), 3*hintBytes)
	}
	c.hints.back(rows, w.clock.Now())
	w.stored(c)
	require.Len(t, w.storedHints("t"), 3*hintRows+1)
}

// A process that changes more rows than it remembers loses none of those that wait to be stored.
func TestWhatWaitsIsNotForgotten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	now := mustNow(t, c)
	hint := func(from, n int) (waiting int) {
		for i := range n {
			c.hint(row(fmt.Sprint(from+i)), now)
			c.hint(Cell{"other", fmt.Sprint(from + i), "v"}, now)
		}
		_, rows := c.hints.take()
		for _, names := range rows {
			waiting += len(names)
		}
		return waiting
	}
	const most = mostHints / 4 // in each call, in both tables together half of what is remembered
	for i := range 4 {
		require.Equal(t, 2*most, hint(i*(most+10), most))
		require.Equal(t, 20, hint(i*(most+10)+most, 10))
	}
	require.Zero(t, c.Stats().GCHintsLost)
	require.LessOrEqual(t, c.hints.rows, mostHints)
	require.Equal(t, 2*most, hint(0, most), "what is stored and forgotten is stored again")
}

// A row whose removal had no reply is hinted anew: it may not have arrived.
func TestRowWithoutReplyIsHintedAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, gc := w.client(), w.client()
	set(t, c.DB, rowA, "1")
	set(t, c.DB, rowA, "2")
	w.stored(c)
	w.clock.advance(worldRetention + 2*worldAge)
	gc.wire.verdict(both(op(faultstore.CallApply), on(rowA)), lose)
	require.Zero(t, w.hintedCollect(gc).Versions)
	require.Equal(t, map[string]int{"a": 1}, w.storedHints("t"))
	w.clock.advance(worldRetention + 2*worldAge)
	require.Equal(t, 1, w.hintedCollect(gc).Versions)
}

// A catalog is raised by the first collection that finds no older program at work. Until then nothing is hinted, because an
// older program would fail at it, and collections look at every row.
func TestCatalogIsRaisedWhenNoOlderProgramIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, c := w.client(withoutHints()), w.client()
	w.lowerTo(format.ControlledVersion)
	stored := func() byte {
		rows, err := w.mem.Read(t.Context(), []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{everything(rowstore.Write, format.ColumnConfig)}}})
		require.NoError(t, err)
		return rows[0].Newest(rowstore.Write, format.ColumnConfig).Value[0]
	}
	_, err := c.loadCatalog(t.Context())
	require.NoError(t, err)
	for range 3 {
		set(t, c.DB, rowA, "1")
		set(t, old.DB, rowB, "1")
		require.NoError(t, c.drained(t.Context()))
		require.NoError(t, c.storeHints(t.Context()))
		w.clock.advance(worldRetention / 2)
		var report GCReport
		done := async(func() (err error) { report, err = c.CollectGarbage(t.Context(), GCOptions{}); return err })
		_, ended := w.clock.sleeps(t, worldLease, done)
		require.False(t, ended)
		_, err := old.loadCatalog(t.Context()) // it lives
		require.NoError(t, err)
		w.pass(worldLease)
		require.NoError(t, w.finish(done))
		require.True(t, report.Full)
		require.True(t, report.LocksSearched)
		require.EqualValues(t, format.ControlledVersion, stored())
		require.Empty(t, w.storedHints("t"))
	}
	require.NoError(t, old.Close(t.Context()))
	w.without(old)
	before := mustNow(t, c)
	report, err := w.collectBy(c, GCOptions{})
	require.NoError(t, err)
	require.True(t, report.Full)
	require.EqualValues(t, format.HintedVersion, stored())
	require.GreaterOrEqual(t, c.known().HintsFrom, before.Add(2*worldLease), "the collection waits for a lease, and then what older programs commit may last another")
	set(t, c.DB, rowA, "2")
	w.stored(c)
	require.NotEmpty(t, w.storedHints("t"))
}

// What is kept for an observer of old values goes with a collection by hints once the observer has seen
// something newer: the commit of its acknowledgment hints the row.
func TestKeptOldValueIsHintedByItsAcknowledgment(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, gc := w.client(), w.client()
	o := newTold(t, c, "o", "t")
	set(t, c.DB, rowA, "a")
	require.True(t, o.run(rowA))
	set(t, c.DB, rowA, "b")
	set(t, c.DB, rowA, "c")
	w.stored(c)
	w.clock.advance(worldRetention + 2*worldAge)
	w.hintedCollect(gc)
	kept := func() []rowstore.Version {
		row := w.raw(rowA)
		return row.All(rowstore.Write, format.SeenColumn("o", "v"))
	}
	require.Len(t, kept(), 1)
	require.True(t, o.run(rowA))
	w.stored(c)
	w.clock.advance(worldRetention + 2*worldAge)
	w.hintedCollect(gc)
	require.Empty(t, kept())
}

// A commit of which nobody knows whether it took effect is hinted.
func TestUndeterminedIsHinted(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c, gc := w.client(opts...), w.client()
		set(t, c.DB, rowA, "1")
		w.stored(c)
		w.clock.advance(worldRetention + 2*worldAge)
		w.hintedCollect(gc)
		require.Empty(t, w.storedHints("t"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c.wire.AddRule(faultstore.Rule{Match: commitPoint(rowA), Before: func(context.Context, *call) verdict {
			cancel()
			return loseReply
		}})
		require.ErrorIs(t, writes(t, c, "2", rowA).Commit(ctx), ErrUndetermined)
		require.NoError(t, c.drained(t.Context()))
		require.Equal(t, "2", value(t, gc, rowA))
		w.stored(c)
		w.clock.advance(worldRetention + 2*worldAge)
		require.Equal(t, 1, w.hintedCollect(gc).Versions)
		require.Empty(t, w.storedHints("t"))
	})
}

// Rows with long values are read few at a time.
func TestLookAtLongValuesIsBounded(t *testing.T) {
	t.Parallel()
	const rows, size = 40, 200 << 10
	w := newWorld(t)
	c, gc := w.client(), w.client()
	for i := range rows {
		for v := range 2 {
			set(t, c.DB, row(fmt.Sprint(i)), strings.Repeat(fmt.Sprint(v), size))
		}
	}
	w.stored(c)
	w.clock.advance(worldRetention + 2*worldAge)
	most := 0
	gc.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallRead), Times: -1, After: func(_ context.Context, x *call) {
		n := 0
		for _, r := range x.Rows {
			for _, v := range r.Versions {
				n += len(v.Value)
			}
		}
		most = max(most, n)
	}})
	report := w.hintedCollect(gc)
	require.Equal(t, 2*rows, report.Versions)
	require.Greater(t, most, size)
	require.Less(t, most, 2*gcBytes)
}

// Ten of the longest retentions are more than a Duration holds: a collection looks at every row no more often for that.
func TestCollectionsOfALongRetention(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client(WithSettings(Settings{MaxTxnAge: worldAge, Retention: 40 * 365 * 24 * time.Hour, CatalogLease: worldLease}))
	set(t, c.DB, rowA, "1")
	full := 0
	for range 4 {
		report, err := w.collectBy(c, GCOptions{})
		require.NoError(t, err)
		if report.Full {
			full++
		}
		w.clock.advance(time.Hour)
	}
	require.LessOrEqual(t, full, 2, "one is the first of all, and one the first that finds the catalog raised")
}

// Somebody asks for the outcome of a transaction from long ago, of which there is no trace, and so leaves a mark at its start. A collection of hints finds it.
func TestHintOfAnOldFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	set(t, c.DB, rowA, "1") // a trace of the transaction would be there
	old := mustNow(t, c)
	for range 2 { // all rows were looked at, also since hints are stored
		w.clock.advance(3 * hintSpanMost)
		_, err := w.collect(c, 0)
		require.NoError(t, err)
	}
	_, err := c.OutcomeOf(t.Context(), &UndeterminedError{Start: old, Primary: rowA})
	require.ErrorIs(t, err, ErrSnapshotTooOld)
	row := w.raw(rowA)
	require.Len(t, row.All(rowstore.Mark, "v"), 1)
	for range 2 {
		w.clock.advance(worldRetention + hintSpanMost)
		w.hintedCollect(c)
	}
	row = w.raw(rowA)
	require.Empty(t, row.All(rowstore.Mark, "v"))
}
