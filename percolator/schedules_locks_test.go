package percolator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules of a review of the protocol (docs/correctness.md), each one driven call by
// call against the code: locks that others meet, roll backs and fences.

// C5. Guards: whoever resolves deals with the primary first, also when the cell that
// it met is in the primary's own row.
func TestScheduleC5_PrimaryFirst(t *testing.T) {
	t.Parallel()
	sibling := Cell{"t", "a", "sibling"}
	for _, met := range []Cell{sibling, rowB} {
		for name, opts := range ways2 {
			t.Run(name+" "+met.Row, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				t1, c := w.client(opts...), w.client()
				p := t1.hold(t, commitPoint(rowA))
				done := commit(t1, writes(t, t1, "1", rowA, sibling, rowB))
				late := p.wait()
				w.takeForDead(t1)
				// After each change that the resolver makes the commit arrives.
				changes := 0
				c.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallApply), Times: 10, After: func(_ context.Context, x *call) {
					if changes++; again(t, late) > 0 {
						t.Errorf("the commit went through after %d changes of the resolver", changes)
					}
				}})
				require.Equal(t, "none", value(t, c, met))
				require.Positive(t, changes)
				p.release(pass)
				require.ErrorIs(t, w.finish(done), ErrConflict)
				for _, cell := range []Cell{rowA, sibling, rowB} {
					require.Equal(t, "none", value(t, c, cell))
				}
				w.noLocks()
			})
		}
	}
}

// C6. Guards: a prewrite that arrives after the fence is refused by the mark on the
// primary; on a secondary its lock can only be rolled back.
func TestScheduleC6_DuplicatePrewriteAfterRollBack(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		for _, met := range [][]Cell{{rowA}, {rowA, rowB}, {rowB, rowA}} {
			t1, c := w.client(opts...), w.client()
			p := t1.hold(t, commitPoint(rowA))
			done := commit(t1, writes(t, t1, "1", rowA, rowB))
			late := p.wait()
			prewrite := t1.wire.sent(prewrites)[0]
			w.takeForDead(t1)
			for _, cell := range met {
				require.Equal(t, "none", value(t, c, cell))
			}
			// B is locked still, or again; A never.
			require.Equal(t, len(met)-1, again(t, prewrite), "the primary's prewrite was to be refused")
			row := w.raw(rowA)
			require.Empty(t, row.All(rowstore.Lock, "v"))
			require.Zero(t, again(t, late))
			p.release(pass)
			require.ErrorIs(t, w.finish(done), ErrConflict)
			require.Equal(t, "none none", value(t, c, rowA)+" "+value(t, c, rowB))
			w.noLocks()
		}
	})
}

// C6. Guards: a transaction whose primary was never prewritten is fenced by whoever
// meets its secondary, and by Outcome.
func TestScheduleC6_PrimaryPrewriteArrivesAfterTheFence(t *testing.T) {
	t.Parallel()
	for name, opts := range ways2 {
		for _, asked := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " asked ", asked), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				t1, c := w.client(opts...), w.client()
				t1.only(prewrites, rowB) // the primary's is lost
				p := t1.hold(t, prewrites)
				tx := writes(t, t1, "1", rowA, rowB)
				start := startOf(tx)
				done := commit(t1, tx)
				p.wait()
				w.takeForDead(t1)
				if asked {
					out, err := c.Outcome(t.Context(), start, rowA)
					require.NoError(t, err)
					require.Equal(t, Outcome{Status: OutcomeRolledBack}, out)
				} else {
					require.Equal(t, "none", value(t, c, rowB))
				}
				row := w.raw(rowA)
				require.NotNil(t, row.At(rowstore.Mark, "v", start), "no fence")
				p.release(pass)
				require.ErrorIs(t, w.finish(done), ErrConflict)
				require.Equal(t, "none none", value(t, c, rowA)+" "+value(t, c, rowB))
				w.noLocks()
			})
		}
	}
}

// C15. Guards: who meets a lock asks for the primary's status before it waits. The
// owner lives, has committed, and does not come to its secondaries.
func TestScheduleC15_StatusBeforeWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, c := w.client(withoutGroups()), w.client()
	t1.hold(t, secondaries(rowA))
	require.NoError(t, writes(t, t1, "1", rowA, rowB, rowC).Commit(t.Context()))
	require.Equal(t, "1", value(t, c, rowB))
	set(t, c.DB, rowC, "2")
	require.EqualValues(t, 2, c.Stats().RolledForward)
	require.Zero(t, c.Stats().RolledBack)
	// The same for one that is rolled back, whose owner sleeps.
	t2 := w.client(withoutGroups())
	p := t2.hold(t, commitPoint(rowA))
	tx := writes(t, t2, "3", rowA, rowB)
	start := startOf(tx)
	done := commit(t2, tx)
	p.wait()
	_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{
		rowstore.Delete(rowstore.Lock, "v", start), rowstore.Put(rowstore.Mark, "v", start, nil),
	}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.Equal(t, "1", value(t, c, rowB))
	p.release(pass)
	require.ErrorIs(t, w.finish(done), ErrConflict)
}

// C17. Guards: the younger start waits for the older, which aborts where it meets
// the younger's lock: two that lock in opposite order both come to an end.
func TestScheduleC17_OppositeOrder(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1, t2 := w.client(opts...), w.client(opts...)
		old, young := writes(t, t1, "old", rowA, rowB), writes(t, t2, "young", rowB, rowA)
		t1.only(prewrites, rowA)
		t2.only(prewrites, rowB)
		p := t1.hold(t, prewrites) // its second
		done1 := commit(t1, old)
		p.wait()
		done2 := commit(t2, young)
		// T2 has locked B, and meets T1's lock on A.
		require.Eventually(t, func() bool { return t2.Stats().LocksMet > 0 }, patience, time.Millisecond)
		p.release(pass)
		require.ErrorIs(t, w.finish(done1), ErrConflict)
		require.NoError(t, w.finish(done2))
		require.Equal(t, "young young", value(t, t1, rowA)+" "+value(t, t1, rowB))
		w.noLocks()
	})
}

// C18. Guards: when a reader has rolled one cell of a secondary's row forward, the
// owner goes on cell by cell, and leaves no lock.
func TestScheduleC18_RowPartlyRolledForward(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, c := w.client(withoutGroups()), w.client()
	cells := []Cell{rowA, {"t", "b", "1"}, {"t", "b", "2"}, {"t", "b", "3"}, {"t", "c", "1"}, {"t", "c", "2"}}
	p := t1.hold(t, secondaries(rowA))
	require.NoError(t, writes(t, t1, "1", cells...).Commit(t.Context()))
	p.wait()
	require.Equal(t, "1", value(t, c, cells[2]))
	require.Len(t, w.versions(rowstore.Lock), 4)
	p.release(pass)
	require.NoError(t, t1.drained(t.Context()))
	w.noLocks()
	for _, cell := range cells {
		require.Equal(t, "1", value(t, c, cell))
	}
}

// C19. Guards: rolling back removes the notification of the prewrite too.
func TestScheduleC19_RollBackRemovesTheNotification(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		t1, c := w.client(opts...), w.client()
		p := t1.hold(t, commitPoint(rowA))
		done := commit(t1, writes(t, t1, longText, rowA, rowB))
		p.wait()
		require.Len(t, w.versions(rowstore.Notify), 2)
		require.Len(t, w.versions(rowstore.Data), 2)
		w.takeForDead(t1)
		require.Equal(t, "none", value(t, c, rowB))
		require.Equal(t, "none", value(t, c, rowA))
		require.Empty(t, w.versions(rowstore.Notify, rowstore.Data, rowstore.Lock))
		p.release(pass)
		require.ErrorIs(t, w.finish(done), ErrConflict)
		// Its own abort does the same.
		tx := writes(t, t1, longText, rowA, rowB)
		set(t, c.DB, rowB, "first")
		require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict)
		require.Empty(t, w.versions(rowstore.Data, rowstore.Lock))
		require.Len(t, w.versions(rowstore.Notify), 1, "that of the change")
	})
}

// C20. Guards: after an abort with a prewrite of the primary still under way, the
// primary is fenced.
func TestScheduleC20_FenceAfterOwnAbort(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		ctx, cancel := context.WithCancel(t.Context())
		t1.wire.AddRule(faultstore.Rule{Match: prewrites, Before: func(context.Context, *call) verdict {
			cancel()
			return lose
		}})
		tx := writes(t, t1, "1", rowA, rowB)
		start := startOf(tx)
		require.ErrorIs(t, tx.Commit(ctx), context.Canceled)
		require.NoError(t, t1.drained(t.Context()))
		row := w.raw(rowA)
		require.NotNil(t, row.At(rowstore.Mark, "v", start), "no fence")
		require.Equal(t, 1, again(t, t1.wire.sent(prewrites)[0]), "the primary's late prewrite was to be refused")
		require.Equal(t, "none none", value(t, c, rowA)+" "+value(t, c, rowB))
		w.noLocks()
	})
}
