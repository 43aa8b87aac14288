package percolator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules of observers of old values ("Old values" in docs/architecture.md).

// told is an observer of old values that keeps what it was told, and remembers what it saw when its
// last run for each cell took effect.
type told struct {
	t       testing.TB
	c       *client
	w       *Worker
	changes []Change
	seen    map[Cell]string // "none" for no value
	fail    error
	during  func(tx *Txn, ch Change)
	calls   int
}

func shown(value []byte, found bool) string {
	if !found {
		return "none"
	}
	return string(value)
}

func newTold(t testing.TB, c *client, name, table string) *told {
	o := &told{t: t, c: c, seen: map[Cell]string{}}
	o.w = watching(t, c, Observer{Name: name, Table: table, Column: "v", MaxAttempts: 2, OnChange: func(_ context.Context, tx *Txn, ch Change) error {
		o.calls++
		o.changes = append(o.changes, ch)
		if o.during != nil {
			o.during(tx, ch)
		}
		return o.fail
	}})
	o.register()
	return o
}

// register registers the observer without its sweep. What it acknowledged before ends.
func (o *told) register() {
	o.t.Helper()
	require.NoError(o.t, o.w.publish(o.t.Context()))
	v, err := o.c.loadCatalog(o.t.Context())
	require.NoError(o.t, err)
	for _, r := range o.w.unswept(v) {
		_, err := o.c.changeCatalog(o.t.Context(), func(v *catalogView) (bool, error) {
			for i := range v.Observers {
				if v.Observers[i].Since == r.Since {
					v.Observers[i].Swept = r.Since
				}
			}
			return true, nil
		})
		require.NoError(o.t, err)
	}
	clear(o.seen)
}

// run looks at a cell, and checks what the observer is told if it is called. The run takes effect
// unless it was made to fail.
func (o *told) run(cell Cell) bool {
	o.t.Helper()
	before, runs := o.calls, o.c.Stats().ObserverRuns
	look(o.t, o.w, cell)
	if o.calls == before {
		return false
	}
	ch := o.changes[len(o.changes)-1]
	saw, again := o.seen[cell]
	require.Equal(o.t, !again, ch.First, "%v", cell)
	if !again {
		saw = "none"
	}
	require.Equal(o.t, saw, shown(ch.Old, ch.OldFound), "the old value of %v", cell)
	require.Equal(o.t, cell, ch.Cell)
	if o.c.Stats().ObserverRuns > runs {
		o.seen[cell] = shown(ch.New, ch.NewFound)
	}
	return true
}

func remove(t testing.TB, db *DB, c Cell) {
	t.Helper()
	require.NoError(t, db.Update(t.Context(), func(tx *Txn) error { return tx.Delete(c) }))
}

// Collections of what lies between the last thing that an observer saw and the present: none of
// them takes what it saw, however deep it lies, nor makes a read of the past wrong.
func TestScheduleO_CollectionKeepsWhatWasSeen(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 400} {
		for _, changes := range []int{1, 2, gcShallow, gcShallow + 3, gcPage + gcShallow, 2*gcPage + gcShallow + 5} {
			for _, deleted := range []bool{false, true} {
				t.Run(fmt.Sprintf("%d bytes, %d changes, deleted %v", size, changes, deleted), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t)
					c := w.client()
					o, other := newTold(t, c, "o", "t"), newTold(t, c, "other", "t")
					v := func(i int) string { return fmt.Sprint(i, strings.Repeat("x", size)) }
					set(t, c.DB, rowA, v(-2))
					require.True(t, other.run(rowA))
					set(t, c.DB, rowA, v(-1))
					if deleted {
						remove(t, c.DB, rowA)
					}
					require.True(t, o.run(rowA))
					old := begin(t, c)
					for i := range changes {
						set(t, c.DB, rowA, v(i))
					}
					w.clock.advance(2 * worldAge)
					for range 2 { // the second one meets what the first one has kept
						_, err := w.collect(c, 1)
						require.NoError(t, err)
						row := w.raw(rowA)
						require.Len(t, row.All(rowstore.Write, "v"), 1)
						_, err = old.Get(t.Context(), rowA)
						require.ErrorIs(t, err, ErrSnapshotTooOld)
						w.clock.advance(2 * worldAge)
					}
					require.True(t, o.run(rowA))
					require.True(t, other.run(rowA))
					// Now nobody needs it any more.
					set(t, c.DB, rowA, "last")
					w.clock.advance(2 * worldAge)
					_, err := w.collect(c, 1)
					require.NoError(t, err)
					require.True(t, o.run(rowA))
					require.True(t, other.run(rowA))
					for range changes / mostCleared { // more notifications than one look removes
						other.run(rowA)
					}
					w.clock.advance(2 * worldAge)
					for range 2 {
						_, err = w.collect(c, 1)
						require.NoError(t, err)
					}
					require.Equal(t, []string{"v"}, w.columns(rowA), "kept for nobody")
				})
			}
		}
	}
}

// columns are those in which a row has anything but acknowledgments, each once for its values and once
// more, with a mark, for its long values.
func (w *world) columns(c Cell) []string {
	w.t.Helper()
	row := w.raw(c)
	var all []string
	for _, v := range row.Versions {
		if _, _, _, own := format.SplitOwnColumn(v.Column); own {
			continue
		}
		name := v.Column
		if o, of, ok := format.SplitSeenColumn(name); ok {
			name = o + " of " + of
		}
		if v.Family == rowstore.Data {
			name += " long"
		}
		all = append(all, name)
	}
	return all
}

// removals are calls of a collection that remove committed versions of a cell.
func removals(cell Cell) matcher {
	return both(both(op(faultstore.CallApply), on(cell)), func(c *call) bool {
		return edits(c, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
			return m.Row == cell.Row && e.Kind == rowstore.DoDeleteRange && e.Family == rowstore.Write && e.Column == cell.Column
		})
	})
}

// The acknowledgment moves between a collection's view of a row and its removal, once or twice, and the
// cell is deleted, collected and written again meanwhile. What the collection does then, however late, takes
// nothing that is needed, and leaves nothing that would be taken for what was seen.
func TestScheduleO_CollectionMeetsARun(t *testing.T) {
	t.Parallel()
	for _, moves := range []int{0, 1, 2} {
		for _, size := range []int{1, 400} {
			for _, late := range []string{"soon", "after another collection", "after the cell was deleted"} {
				t.Run(fmt.Sprintf("%d runs, %d bytes, %s", moves, size, late), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t)
					c, slow := w.client(), w.client()
					o := newTold(t, c, "o", "t")
					v := func(s string) string { return strings.Repeat(s, size) }
					set(t, c.DB, rowA, v("a"))
					require.True(t, o.run(rowA))
					set(t, c.DB, rowA, v("b"))
					set(t, c.DB, rowA, v("c"))
					w.clock.advance(2 * worldAge)
					p := slow.hold(t, removals(rowA))
					done := async(func() error { _, err := slow.CollectGarbage(t.Context(), GCOptions{Keep: 1, Full: true}); return err })
					_, ended := w.clock.sleeps(t, worldLease, done)
					require.False(t, ended)
					w.pass(worldLease)
					p.wait()
					for i := range moves {
						set(t, c.DB, rowA, v(fmt.Sprint("m", i)))
						require.True(t, o.run(rowA))
					}
					if late == "after the cell was deleted" {
						remove(t, c.DB, rowA)
						for o.run(rowA) {
						}
					}
					if late != "soon" {
						w.clock.advance(2 * worldAge)
						_, err := w.collect(c, 1)
						require.NoError(t, err)
					}
					p.release(pass)
					require.NoError(t, w.finish(done))
					if late == "after the cell was deleted" {
						clear(o.seen) // the acknowledgment went with the delete
					}
					// Whatever is seen from now on is what was there.
					for i := range 3 {
						set(t, c.DB, rowA, v(fmt.Sprint("n", i)))
						require.True(t, o.run(rowA))
						remove(t, c.DB, rowA)
						if i == 1 {
							set(t, c.DB, rowA, v("again"))
						}
						require.True(t, o.run(rowA))
						set(t, c.DB, rowA, v("later"))
						w.clock.advance(2 * worldAge)
						_, err := w.collect(c, 1)
						require.NoError(t, err)
						require.True(t, o.run(rowA))
					}
				})
			}
		}
	}
}

// A removal arrives after the observer has seen a delete, and that delete was collected with what was kept
// from before it. It must not keep again what was seen before the delete.
func TestScheduleO_LateCollectionAfterADelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, slow := w.client(), w.client()
	o := newTold(t, c, "o", "t")
	set(t, c.DB, rowA, "1")
	require.True(t, o.run(rowA))
	set(t, c.DB, rowA, "2")
	set(t, c.DB, rowA, "3")
	w.clock.advance(2 * worldAge)
	p := slow.hold(t, removals(rowA))
	done := async(func() error { _, err := slow.CollectGarbage(t.Context(), GCOptions{Keep: 1, Full: true}); return err })
	_, ended := w.clock.sleeps(t, worldLease, done)
	require.False(t, ended)
	w.pass(worldLease)
	p.wait()
	remove(t, c.DB, rowA)
	require.True(t, o.run(rowA))
	set(t, c.DB, rowA, "4")
	w.clock.advance(2 * worldAge)
	_, err := w.collect(c, 1)
	require.NoError(t, err)
	row := w.raw(rowA)
	require.Len(t, row.All(rowstore.Write, "v"), 1, "the delete was to be collected")
	p.release(pass)
	require.NoError(t, w.finish(done))
	require.True(t, o.run(rowA))
}

// The second page of a deep column is lost on the way, and the removal goes on: what that page
// was to keep is kept all the same.
func TestScheduleO_ALostPageLosesNothing(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 400} {
		w := newWorld(t)
		c := w.client()
		o := newTold(t, c, "o", "t")
		v := func(i int) string { return fmt.Sprint(i, strings.Repeat("x", size)) }
		set(t, c.DB, rowA, v(-1))
		require.True(t, o.run(rowA))
		for i := range 2 * gcPage {
			set(t, c.DB, rowA, v(i))
		}
		w.clock.advance(2 * worldAge)
		c.wire.AddRule(faultstore.Rule{Match: removals(rowA), Fault: lose})
		_, err := w.collect(c, 1)
		require.NoError(t, err)
		row := w.raw(rowA)
		require.Len(t, row.All(rowstore.Write, "v"), 1)
		require.True(t, o.run(rowA))
	}
}

// An observer that was removed begins anew when it comes back: what it has acknowledged before counts
// no more, nor does what was kept for it.
func TestScheduleO_RemovedAndBack(t *testing.T) {
	t.Parallel()
	for _, collected := range []string{"no", "while it is away", "later"} {
		t.Run("collected "+collected, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := w.client()
			o := newTold(t, c, "o", "t")
			collect := func(when string) {
				if collected == when {
					w.clock.advance(2 * worldAge)
					_, err := w.collect(c, 1)
					require.NoError(t, err)
				}
			}
			set(t, c.DB, rowA, "1")
			require.True(t, o.run(rowA))
			set(t, c.DB, rowA, "2")
			set(t, c.DB, rowA, "3")
			w.clock.advance(2 * worldAge)
			_, err := w.collect(c, 1)
			require.NoError(t, err)
			require.Equal(t, []string{"o of v", "v"}, w.columns(rowA)[:2])
			require.NoError(t, c.RemoveObserver(t.Context(), "o"))
			w.pass(worldLease)
			set(t, c.DB, rowA, "4")
			collect("while it is away")
			if collected == "while it is away" {
				require.NotContains(t, w.columns(rowA), "o of v")
			}
			o.register()
			set(t, c.DB, rowA, "5")
			collect("later")
			require.True(t, o.run(rowA))
			require.True(t, o.changes[len(o.changes)-1].First)
			set(t, c.DB, rowA, "6")
			collect("later")
			require.True(t, o.run(rowA))
		})
	}
}

// A collection that began before an observer came back, and goes on long afterwards, takes nothing that
// was kept for the observer since.
func TestScheduleO_OldCollectionMeetsAnObserverThatIsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, slow := w.client(), w.client()
	o := newTold(t, c, "o", "t")
	set(t, c.DB, rowA, "1")
	require.True(t, o.run(rowA))
	require.NoError(t, c.RemoveObserver(t.Context(), "o"))
	w.pass(2 * worldAge)
	// It does not know of the observer when it begins to look at the table.
	p := slow.hold(t, func(x *call) bool {
		return x.Kind == faultstore.CallScan && x.Range.Table == "t" && x.Range.Selectors[0].Family == rowstore.Lock && len(x.Range.Selectors) > 1
	})
	done := async(func() error { _, err := slow.CollectGarbage(t.Context(), GCOptions{Keep: 1, Full: true}); return err })
	_, ended := w.clock.sleeps(t, worldLease, done)
	require.False(t, ended)
	w.pass(worldLease)
	p.wait()
	o.register()
	set(t, c.DB, rowA, "2")
	require.True(t, o.run(rowA))
	set(t, c.DB, rowA, "3")
	set(t, c.DB, rowA, "4")
	w.clock.advance(2 * worldAge)
	_, err := w.collect(c, 1)
	require.NoError(t, err)
	require.Contains(t, w.columns(rowA), "o of v")
	p.release(pass)
	require.NoError(t, w.finish(done))
	require.True(t, o.run(rowA))
}

// A run that began before its observer was removed takes no effect, also if the observer is back.
func TestScheduleO_RunOfARemovedObserver(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c := w.client(opts...)
		o := newTold(t, c, "o", "t")
		set(t, c.DB, rowA, "1")
		require.True(t, o.run(rowA))
		for _, back := range []bool{false, true} {
			set(t, c.DB, rowA, "2")
			o.during = func(tx *Txn, _ Change) {
				o.during = nil
				require.NoError(t, tx.Set(rowB, []byte("written")))
				require.NoError(t, c.RemoveObserver(t.Context(), "o"))
				if back {
					o.register()
				}
			}
			before := c.Stats().ObserverRuns
			look(t, o.w, rowA)
			require.Equal(t, before, c.Stats().ObserverRuns)
			require.Equal(t, "none", value(t, c, rowB))
			if !back {
				o.register()
				set(t, c.DB, rowA, "1")
				require.True(t, o.run(rowA))
			}
		}
		require.True(t, o.run(rowA))
	})
}

// The observer is removed and registered again after a run has drawn its snapshot, and before it looks at
// the catalog. Its acknowledgment would not count, so it does not begin.
func TestScheduleO_RunBelowItsRegistration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	o := newTold(t, c, "o", "t")
	set(t, c.DB, rowA, "1")
	p := c.holdReply(t, op(faultstore.CallDraw), pass)
	done := async(func() error { _, _, err := o.w.runCell(t.Context(), rowA); return err })
	p.wait()
	require.NoError(t, c.RemoveObserver(t.Context(), "o"))
	o.register()
	p.release(pass)
	require.NoError(t, w.finish(done))
	require.Empty(t, o.changes)
	require.True(t, o.run(rowA))
	require.False(t, o.run(rowA))
}

// Another worker acknowledges while this one looks for the old value: it is not called with
// something else.
func TestScheduleO_AnotherRunMeanwhile(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 400} {
		w := newWorld(t)
		c, c2 := w.client(), w.client()
		o := newTold(t, c, "o", "t")
		other := watching(t, c2, Observer{Name: "o", OnChange: func(context.Context, *Txn, Change) error { return nil }})
		v := func(s string) string { return strings.Repeat(s, size) }
		set(t, c.DB, rowA, v("a"))
		require.True(t, o.run(rowA))
		for _, s := range []string{"b", "c", "d"} {
			set(t, c.DB, rowA, v(s))
		}
		p := c.hold(t, func(x *call) bool {
			return x.Kind == faultstore.CallRead && len(x.Reads) == 1 && len(x.Reads[0].Selectors) == 3 && x.Reads[0].Selectors[1].Column == format.SeenColumn("o", "v")
		})
		calls := o.calls
		done := async(func() error { _, _, err := o.w.runCell(t.Context(), rowA); return err })
		p.wait()
		_, err := c2.loadCatalog(t.Context())
		require.NoError(t, err)
		runs(t, other, rowA)
		w.clock.advance(2 * worldAge)
		set(t, c.DB, rowA, v("e"))
		_, err = w.collect(c2, 1)
		require.NoError(t, err)
		p.release(pass)
		require.NoError(t, w.finish(done))
		require.Equal(t, calls, o.calls)
	}
}

// A table of short retention keeps what was seen as any other does.
func TestScheduleO_ShortTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	o := newTold(t, c, "o", "queue")
	w.shortened(c)
	set(t, c.DB, queueA, "1")
	require.True(t, o.run(queueA))
	for i := range 20 {
		set(t, c.DB, queueA, fmt.Sprint("later ", i))
	}
	for range 2 {
		w.clock.advance(2 * shortRetention)
		_, err := w.collectWithin(c)
		require.NoError(t, err)
		row := w.raw(queueA)
		require.Len(t, row.All(rowstore.Write, "v"), 1)
	}
	require.True(t, o.run(queueA))
	set(t, c.DB, queueA, "2")
	require.True(t, o.run(queueA))
}

// Whatever happens in whatever order, observers are told what they saw last.
func TestOldValuesAtRandom(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	for n := range 40 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d, %d", seed, n)
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			w := newWorld(t)
			c := w.client()
			if n%2 == 1 {
				w.shortened(c)
			}
			cells := []Cell{queueA, queueB}
			all := []*told{newTold(t, c, "o", "queue"), newTold(t, c, "p", "queue")}
			ran, collected := 0, 0
			for i := range 150 {
				cell, o := cells[r.IntN(2)], all[r.IntN(2)]
				switch r.IntN(13) {
				case 0, 1, 2:
					set(t, c.DB, cell, fmt.Sprint(i))
				case 3, 4:
					set(t, c.DB, cell, fmt.Sprint(i, longText))
				case 5:
					remove(t, c.DB, cell)
				case 6:
					require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Notify(cell) }))
				case 7, 8:
					o.fail = nil
					if r.IntN(4) == 0 {
						o.fail = errTest
					}
					o.forgets(w, cell)
					if o.run(cell) {
						ran++
					}
				case 9:
					for i := range r.IntN(2 * gcShallow) {
						set(t, c.DB, cell, fmt.Sprint("burst ", i))
					}
				case 10:
					w.clock.advance(worldAge / 2)
				case 11:
					w.clock.advance(worldAge)
					_, err := w.collect(c, 1)
					require.NoError(t, err)
					collected++
				case 12:
					w.clock.advance(2 * shortRetention)
					_, err := w.collectWithin(c)
					require.NoError(t, err)
				}
			}
			require.Positive(t, ran)
			require.Positive(t, collected)
		})
	}
}

// forgets notes that a delete was collected with its acknowledgment.
func (o *told) forgets(w *world, cell Cell) {
	row := w.raw(cell)
	if row.Newest(rowstore.Write, format.AckColumn(o.w.list[0].o.Name, "v")) == nil {
		if was, ok := o.seen[cell]; ok && was == "none" {
			delete(o.seen, cell)
		}
	}
}
