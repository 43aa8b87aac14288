package percolator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// ofTheIndex is the name of the row of the index that tells of the timer of a cell.
func (w *world) ofTheIndex(c *client, cell Cell) string {
	w.t.Helper()
	page, _, err := c.timersIn(w.t.Context(), shardOf(cell.Row), "", oracle.Max)
	require.NoError(w.t, err)
	i := slices.IndexFunc(page, func(d dueTimer) bool { return d.cell == cell.stored() })
	require.GreaterOrEqual(w.t, i, 0)
	return page[i].row
}

// A row that cannot be changed, the target of a timer or a row of the index, stops no other timer of its shard: neither if the store refuses it alone, nor
// if it breaks the call off.
func TestRefusedRowStopsNoTimers(t *testing.T) {
	t.Parallel()
	for _, breaks := range []bool{false, true} {
		for _, index := range []bool{false, true} {
			t.Run(fmt.Sprintf("breaks %v, of the index %v", breaks, index), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.timers()
				s, c, _ := w.damageable(ErrCorrupt)
				s.onlyWrites, s.refuses, s.breaks = true, !breaks, breaks
				wk := watching(t, c, Observer{Name: "o", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error { return nil }})
				require.NoError(t, wk.publish(t.Context()))
				var cells []Cell
				for i := range 80 {
					cells = append(cells, row(fmt.Sprint("r", i)))
					w.timer(c, cells[i], later)
				}
				first := slices.IndexFunc(cells, func(c Cell) bool { return shardOf(c.Row).n == 0 })
				require.GreaterOrEqual(t, first, 0)
				bad := cells[first] // the other shards come after its own
				name := bad.Row
				if index {
					name = w.ofTheIndex(c, bad)
				}
				w.pass(later)
				s.damage(name)
				s.applies.Store(0)
				for range 2 { // the second time it is the first one of its shard
					require.ErrorIs(t, wk.fireDue(t.Context()), map[bool]error{false: ErrCorrupt, true: rowstore.ErrAmbiguous}[breaks])
					for i := range cells {
						require.Equal(t, !index && cells[i] == bad, len(w.notified(cells[i])) == 0, cells[i].Row)
					}
					require.Equal(t, 1, w.indexed())
				}
				require.Less(t, s.applies.Load(), int64(40))
				s.mend()
				fires(t, wk)
				require.NotEmpty(t, w.notified(bad))
				require.Zero(t, w.indexed())
			})
		}
	}
}

// If the store does not answer, a call is made for no parts.
func TestNoPartsOfACallThatNobodyAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, c, _ := w.damageable(ErrCorrupt)
	muts := make([]rowstore.Mutation, 200)
	for i := range muts {
		muts[i] = rowstore.Mutation{Table: "t", Row: fmt.Sprintf("%03d", i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "v", 1, nil)}}
	}
	s.breaks = true
	s.damage(format.RowCatalog)
	for i := range muts {
		s.damage(muts[i].Row)
	}
	_, err := c.applyEach(t.Context(), muts, rowstore.ApplyOptions{})
	require.ErrorIs(t, err, rowstore.ErrAmbiguous)
	require.EqualValues(t, 1, s.applies.Load(), "the catalog cannot be read either")
	// Where it can be, many rows in a row are tried, and no more.
	s.mend()
	for i := range muts[:150] {
		s.damage(muts[i].Row)
	}
	s.onlyWrites = true
	s.applies.Store(0)
	outs, err := c.applyEach(t.Context(), muts, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.Less(t, s.applies.Load(), int64(100))
	for i := range outs[:150] {
		require.ErrorIs(t, outs[i].Err, rowstore.ErrAmbiguous)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.applyEach(ctx, muts, rowstore.ApplyOptions{})
	require.Error(t, err)
}

// A reply that is lost is no row's failure: else a timer would wait for the next round.
func TestLostReplyIsNoRowsFailure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	rule := c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool { return x.Kind == faultstore.CallApply && on(rowA)(x) }, Fault: loseReply})
	outs, err := c.applyEach(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "v", 1, nil)}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.Len(t, outs, 1)
	require.NoError(t, outs[0].Err)
	require.Equal(t, 1, rule.Struck())
}

// A collection removes timers that nobody observes beside a row of the index which cannot be changed.
func TestCollectionPassesRefusedTimers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	w.observed("t", "v", "o")
	s, c, _ := w.damageable(ErrCorrupt)
	s.onlyWrites, s.refuses = true, true
	var cells []Cell
	for i := range 20 {
		cells = append(cells, row(fmt.Sprint("r", i)))
		w.timer(c, cells[i], later)
	}
	s.damage(w.ofTheIndex(c, cells[7]))
	w.unobserved(c, "o")
	w.clock.advance(2 * worldRetention)
	report, err := w.collect(c, 0)
	require.NoError(t, err)
	require.Equal(t, 1, report.Damaged)
	require.Equal(t, 1, w.indexed())
	require.False(t, slices.ContainsFunc(cells, w.hasTimer))
	s.mend()
	_, err = w.collect(c, 0)
	require.NoError(t, err)
	require.Zero(t, w.indexed())
}

// An erasure is not done while it cannot remove a row of the index of timers.
func TestErasureRemovesEachTimer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	s, c, _ := w.damageable(ErrCorrupt)
	s.onlyWrites, s.refuses = true, true
	o := newTold(t, c, "o", "t")
	w.timer(c, ann1, time.Hour)
	w.timer(c, ann2, time.Hour)
	name := w.ofTheIndex(c, ann2)
	s.damage(name)
	_, err := w.erase(c, func() { sees(o.w, ann1, ann2) })
	require.ErrorIs(t, err, ErrCorrupt)
	require.ErrorContains(t, err, fmt.Sprintf("%q", name))
	require.Equal(t, 1, w.indexed())
	s.mend()
	receipt, err := w.erase(c, func() { sees(o.w, ann1, ann2) })
	require.NoError(t, err)
	require.EqualValues(t, 1, receipt.Timers)
	require.Empty(t, w.traces("ann/"))
}

// A row of the index that cannot be read is met in each round, and named once; of very many no more than a hundred are named.
func TestTimersThatCannotBeReadAreSaidOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.timers()
	w.observed("t", "v", "o")
	s, c, said := w.damageable(ErrCorrupt)
	var names []string
	for i := range mostSaid + 20 {
		cell := row(fmt.Sprint("r", i))
		w.timer(c, cell, later)
		names = append(names, w.ofTheIndex(c, cell))
	}
	rounds := func() {
		for range 3 {
			for n := range byte(format.TimerShards) {
				_, _, err := c.timersIn(t.Context(), timerShard{"t", n}, format.TimersBegin(n), oracle.Max)
				require.NoError(t, err)
			}
		}
	}
	s.damage(names[:3]...)
	rounds()
	require.Equal(t, 3, strings.Count(said.String(), "level=ERROR"), said.String())
	require.Equal(t, 1, strings.Count(said.String(), fmt.Sprintf("%q", names[1])))
	s.damage(names...)
	rounds()
	require.Equal(t, mostSaid+1, strings.Count(said.String(), "level=ERROR"))
	require.Equal(t, 1, strings.Count(said.String(), "not named"))
}

// What a removed observer leaves is looked at beside rows that cannot be read: a notified one, and a row of the index of timers.
func TestRemoveObserverBesideDamage(t *testing.T) {
	t.Parallel()
	for _, index := range []bool{false, true} {
		w := newWorld(t)
		w.timers()
		w.observed("t", "v", "o")
		s, c, _ := w.damageable(ErrCorrupt)
		var near, far []Cell
		for i := range 20 {
			near, far = append(near, row(fmt.Sprint("near", i))), append(far, row(fmt.Sprint("far", i)))
			w.timer(c, near[i], soon)
			w.timer(c, far[i], later)
		}
		bad := near[7]
		if index {
			bad = far[7]
		}
		s.damage(bad.Row)
		require.NoError(t, c.RemoveObserver(t.Context(), "o"))
		require.NoError(t, c.drained(t.Context()))
		for _, cell := range append(near, far...) {
			if rowstore.Slot("t", cell.Row) != rowstore.Slot("t", bad.Row) {
				require.Eventually(t, func() bool { return !w.hasTimer(cell) }, patience, time.Millisecond, cell.Row)
			}
		}
		require.True(t, w.hasTimer(bad))
	}
}

// A change that can be made is made sooner or later, however many lie before it that cannot.
func TestRefusedRowsKeepNoOtherFromItsTurn(t *testing.T) {
	t.Parallel()
	for _, n := range []struct{ bad, good int }{{mostDamaged + 1, 1}, {40, 24}, {40, 100}} {
		w := newWorld(t)
		s, c, _ := w.damageable(ErrCorrupt)
		s.onlyWrites, s.breaks = true, true
		var muts []rowstore.Mutation
		for i := range n.bad + n.good {
			muts = append(muts, rowstore.Mutation{Table: "t", Row: fmt.Sprintf("%03d", i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "v", 1, nil)}})
		}
		for i := range n.bad {
			s.damage(muts[i].Row)
		}
		made := map[int]bool{}
		for round := 0; len(made) < n.good; round++ {
			require.Less(t, round, 100, "%d of %d good ones were made", len(made), n.good)
			outs, err := c.applyEach(t.Context(), muts, rowstore.ApplyOptions{})
			require.NoError(t, err)
			require.Len(t, outs, len(muts))
			for i := range outs {
				if outs[i].Err == nil {
					require.GreaterOrEqual(t, i, n.bad)
					made[i] = true
				}
			}
		}
	}
}

// A store of several servers may say for one of them only that nobody knows what it did. A row that cannot be changed there keeps no other of that server from its turn.
func TestRefusedRowOfOneServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, c, _ := w.damageable(ErrCorrupt)
	s.onlyWrites, s.breaks, s.servers = true, true, true
	var muts []rowstore.Mutation
	for i := range 40 {
		muts = append(muts, rowstore.Mutation{Table: "t", Row: fmt.Sprint(i%2, i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "v", 1, nil)}})
	}
	s.damage(muts[7].Row)
	outs, err := c.applyEach(t.Context(), muts, rowstore.ApplyOptions{})
	require.NoError(t, err)
	for i := range outs {
		require.Equal(t, i == 7, outs[i].Err != nil, i)
	}
	require.Less(t, s.applies.Load(), int64(20))

	// While that server does not answer at all, no parts are made.
	s.mend()
	s.onlyWrites = false
	s.kind = rowstore.ErrUnavailable
	for i := 1; i < len(muts); i += 2 {
		s.damage(muts[i].Row)
	}
	c.store.(*patientStore).patience = 0
	for _, s.byRow = range []bool{false, true} {
		s.applies.Store(0)
		outs, err = c.applyEach(t.Context(), muts, rowstore.ApplyOptions{})
		require.NoError(t, err)
		for i := range outs {
			require.Equal(t, i%2 == 1, outs[i].Err != nil, i)
		}
		require.EqualValues(t, 1, s.applies.Load())
	}
}

// A server that is away, and a row of another one that is refused, keep no others from their turn, and what was made is told.
func TestRefusedRowBesideAServerThatIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, c, _ := w.damageable(rowstore.ErrUnavailable)
	s.breaks, s.servers = true, true
	c.store.(*patientStore).patience = 0
	var muts []rowstore.Mutation
	for i := range 20 {
		muts = append(muts, rowstore.Mutation{Table: "t", Row: fmt.Sprint(i), Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "v", 1, nil)}})
		if i%2 == 1 {
			s.damage(muts[i].Row)
		}
	}
	const refused = 6
	s.refusedOnly = muts[refused].Row
	made := map[int]bool{}
	for round := 0; len(made) < 9; round++ {
		require.Less(t, round, 100)
		outs, dark, err := c.applyAndTell(t.Context(), muts, rowstore.ApplyOptions{})
		if err != nil { // a row of the one that is away was asked for
			require.ErrorIs(t, err, rowstore.ErrAmbiguous)
			continue
		}
		for i := range outs {
			if outs[i].Err == nil {
				require.True(t, i%2 == 0 && i != refused, i)
				made[i] = true
			}
			require.False(t, dark[i] && i%2 == 1, "nobody knows that of row %d", i)
		}
	}
}
