package percolator

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules of a review of the protocol (docs/correctness.md), each one driven call by
// call against the code: the steps of a commit, crashes and lost replies between them,
// and cells that are only locked.

// A1. Guards: the commit point has the incarnation of the prewrites as a condition.
func TestScheduleA1_CrashBetweenPrewriteAndCommit(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		// A dead client's lock makes T1 prewrite B in a second batch, and its roll
		// back, which is never deferred, makes A's lock durable.
		dead := w.client(opts...)
		dead.wire.verdict(prewrites, dieAfter)
		require.Error(t, writes(t, dead, "dead", rowB).Commit(t.Context()))
		w.takeForDead(dead)
		t1 := w.client(opts...)
		p := t1.hold(t, commitPoint(rowA))
		done := commit(t1, writes(t, t1, "1", rowA, rowB))
		late := p.wait()
		w.mem.Crash()
		require.Len(t, w.versions(rowstore.Lock), 1, "the crash was to lose one of two locks")
		p.release(pass)
		require.ErrorIs(t, w.finish(done), ErrConflict)
		require.Zero(t, again(t, late), "a late second arrival was applied")
		other := w.client()
		require.Equal(t, "none none", value(t, other, rowA)+" "+value(t, other, rowB))
		w.noLocks()
	})
}

// A1. Guards: a transaction whose prewrites saw two incarnations aborts.
func TestScheduleA1_CrashBetweenTwoPrewrites(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		for _, lost := range []Cell{rowA, rowB} {
			kept := rowB
			if lost == rowB {
				kept = rowA
			}
			t1 := w.client(opts...)
			t1.only(prewrites, lost)
			t1.wire.AddRule(faultstore.Rule{Match: prewrites, Before: func(context.Context, *call) verdict {
				w.mem.Crash() // that lock is lost, the other comes after
				return pass
			}})
			// The primary's lock will be there, and its incarnation be the store's.
			require.ErrorIs(t, writes(t, t1, "1", kept, lost).Commit(t.Context()), ErrConflict)
			other := w.client()
			require.Equal(t, "none none", value(t, other, rowA)+" "+value(t, other, rowB))
			w.noLocks()
		}
	})
}

// A1. Guards: a commit point makes the deferred prewrites durable, so that a
// secondary which is lost is rolled forward. Update runs again after the abort.
func TestScheduleA1_CrashAfterCommit(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1 := w.client(opts...)
		require.NoError(t, writes(t, t1, longText, rowA, rowB).Commit(t.Context()))
		require.NoError(t, t1.drained(t.Context()))
		w.mem.Crash()
		require.Equal(t, longText, value(t, t1, rowB))
		require.Equal(t, longText, value(t, t1, rowA))
		w.noLocks()
		t1.wire.AddRule(faultstore.Rule{Match: prewrites, After: func(context.Context, *call) { w.mem.Crash() }})
		set(t, t1.DB, rowA, "again")
		require.Equal(t, "again", value(t, t1, rowA))
	})
}

// A1, C9. Guards: batches are deferred only where every row and the oracle are in
// one store; the primary is where the oracle is.
func TestScheduleA1_DeferredOnlyInTheAuthoritativeStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	far := Cell{"far", "x", "v"}
	deferred := func(c *client) int {
		require.NoError(t, c.drained(t.Context()))
		return len(c.wire.sent(func(x *call) bool { return x.Opts.Deferred }))
	}
	near := w.client(withoutGroups())
	require.NoError(t, writes(t, near, "1", rowA, rowB).Commit(t.Context()))
	require.Equal(t, 2, deferred(near), "prewrites and secondaries")
	routed := w.clientOver(newWireTo(placedStore{w.mem, func(table string) bool { return table != "far" }}, w.mem), withoutGroups())
	tx := writes(t, routed, "1", far, rowA)
	start := startOf(tx)
	require.NoError(t, tx.Commit(t.Context()))
	require.Zero(t, deferred(routed))
	require.Equal(t, rowA, routed.wire.primaries[start], "the primary was to be in the authoritative store")
	require.NoError(t, writes(t, routed, "1", rowA, rowB).Commit(t.Context()))
	require.Equal(t, 2, deferred(routed))
	without := w.client(withoutGroups(), withoutDeferred())
	require.NoError(t, writes(t, without, "2", rowA, rowB).Commit(t.Context()))
	require.Zero(t, deferred(without))
	// With an oracle from elsewhere nothing ties the timestamps to the store.
	w2 := newWorld(t)
	elsewhere := w2.client(withoutGroups(), WithOracle("elsewhere", w2.mem.Oracle()))
	require.NoError(t, writes(t, elsewhere, "1", rowA, rowB).Commit(t.Context()))
	require.Zero(t, deferred(elsewhere))
	require.NoError(t, writes(t, elsewhere, "1", rowA, rowB).Commit(t.Context()))
}

// A3. Guards: the status looks for the transaction's own Write among all from its
// start, not at the newest.
func TestScheduleA3_OverwrittenPrimary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	committedPrimary(t, w, false, false)
	c := w.client()
	require.Equal(t, "1", value(t, c, rowB))
	w.noLocks()
	require.EqualValues(t, 1, c.Stats().RolledForward)
}

// A3. Guards: a lost reply at the commit point is resolved by the status, however
// many have written the primary since.
func TestScheduleA3_LostReplyThenOverwritten(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, t2 := w.client(opts...), w.client()
		p := t1.holdReply(t, commitPoint(rowA), loseReply)
		tx := writes(t, t1, "1", rowA, rowB)
		done := commit(t1, tx)
		p.wait()
		set(t, t2.DB, rowA, "2")
		set(t, t2.DB, rowA, "3")
		p.release(pass)
		require.NoError(t, w.finish(done))
		require.Equal(t, "3 1", value(t, t2, rowA)+" "+value(t, t2, rowB))
		row := w.raw(rowA)
		require.NotNil(t, row.At(rowstore.Write, "v", tx.CommitTimestamp()))
		w.noLocks()
	})
}

// A3. Guards: a refused request may be the second arrival of one that succeeded
// (go-redis sends twice).
func TestScheduleA3_SecondArrivalIsRefused(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, t2 := w.client(opts...), w.client()
		t1.wire.AddRule(faultstore.Rule{Match: commitPoint(rowA), Before: func(ctx context.Context, x *call) verdict {
			if again(t, x) == 0 {
				t.Error("the first arrival was refused")
			}
			set(t, t2.DB, rowA, "2")
			return pass
		}})
		tx := writes(t, t1, "1", rowA, rowB)
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, "2 1", value(t, t2, rowA)+" "+value(t, t2, rowB))
		row := w.raw(rowA)
		require.NotNil(t, row.At(rowstore.Write, "v", tx.CommitTimestamp()))
	})
}

// A3. Guards: a prewrite that finds its own lock succeeded.
func TestScheduleA3_SecondArrivalOfAPrewrite(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1 := w.client(opts...)
		t1.wire.AddRule(faultstore.Rule{Match: prewrites, Times: 2, Before: func(_ context.Context, x *call) verdict {
			again(t, x)
			return pass
		}})
		require.NoError(t, w.finish(commit(t1, writes(t, t1, "1", rowA, rowB))))
		require.Equal(t, "1 1", value(t, t1, rowA)+" "+value(t, t1, rowB))
	})
}

// A4. Guards: the secondaries go with the primary only in an all-or-none group.
func TestScheduleA4_RolledBackPrimaryInTheCommitBatch(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		p := t1.hold(t, commitPoint(rowA))
		done := commit(t1, writes(t, t1, "1", rowA, rowB))
		p.wait()
		w.takeForDead(t1)
		require.Equal(t, "none", value(t, c, rowA))
		require.Len(t, w.versions(rowstore.Lock), 1, "B was to be locked still")
		p.release(pass)
		require.ErrorIs(t, w.finish(done), ErrConflict)
		require.Equal(t, "none", value(t, c, rowB))
		require.Empty(t, w.versions(rowstore.Write))
		w.noLocks()
	})
}

// A6. Guards: a lock-only cell commits as a mark at the commit timestamp, which
// makes every older writer of the cell fail: also rolled forward.
func TestScheduleA6_LockOnlyLeavesAMark(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		for _, dies := range []bool{false, true} {
			t1, t2 := w.client(opts...), w.client(opts...)
			set(t, t2.DB, rowA, "a")
			set(t, t2.DB, rowB, "b")
			if dies {
				t1.wire.verdict(secondaries(rowB), die)
			}
			first := begin(t, t1)
			_, err := first.GetForUpdate(t.Context(), rowA)
			require.NoError(t, err)
			require.NoError(t, first.Set(rowB, []byte("from a")))
			second := begin(t, t2)
			_, err = second.Get(t.Context(), rowB)
			require.NoError(t, err)
			require.NoError(t, first.Commit(t.Context()))
			require.NoError(t, second.Set(rowA, []byte("from b")))
			require.ErrorIs(t, second.Commit(t.Context()), ErrConflict)
			set(t, t2.DB, rowA, "later") // a younger one is free to
			w.noLocks()
		}
	})
}

// A6. Guards: a lock-only cell leaves no Write and no notification, so reads,
// observers and the collection need not know of it.
func TestScheduleA6_LockOnlyIsNoWrite(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		c := w.client(opts...)
		set(t, c.DB, rowA, "a")
		before := w.raw(rowA)
		tx := begin(t, c)
		_, err := tx.GetForUpdate(t.Context(), rowA)
		require.NoError(t, err)
		require.NoError(t, tx.Set(rowB, nil))
		require.NoError(t, tx.Commit(t.Context()))
		require.NoError(t, c.drained(t.Context()))
		after := w.raw(rowA)
		mark := after.Newest(rowstore.Mark, "v")
		require.NotNil(t, mark)
		require.Equal(t, tx.CommitTimestamp(), mark.TS)
		require.Equal(t, before.All(rowstore.Write, "v"), after.All(rowstore.Write, "v"))
		require.Equal(t, before.All(rowstore.Notify, "v"), after.All(rowstore.Notify, "v"))
		w.clock.advance(2 * worldRetention)
		_, err = w.collect(c, 0)
		require.NoError(t, err)
		after = w.raw(rowA)
		require.Empty(t, after.All(rowstore.Mark, "v"))
		require.Equal(t, "a", value(t, c, rowA))
	})
}

// A6. Guards: readers pass over a lock-only lock, at once, though its owner lives;
// a transaction with lock-only cells alone commits by doing nothing.
func TestScheduleA6_LockOnlyBlocksNoReader(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client(opts...)
		set(t, c.DB, rowA, "a")
		p := t1.hold(t, commitPoint(rowB))
		tx := begin(t, t1)
		_, err := tx.GetForUpdate(t.Context(), rowA)
		require.NoError(t, err)
		require.NoError(t, tx.Set(rowB, nil))
		done := commit(t1, tx)
		p.wait()
		require.Len(t, w.versions(rowstore.Lock), 2)
		require.Equal(t, "a", value(t, c, rowA))
		require.Zero(t, c.Stats().LocksMet)
		p.release(pass)
		require.NoError(t, w.finish(done))
		calls := len(c.wire.sent(func(x *call) bool { return x.Kind == faultstore.CallApply || x.Kind == faultstore.CallGroup }))
		tx = begin(t, c)
		_, err = tx.GetForUpdate(t.Context(), rowA)
		require.NoError(t, err)
		require.NoError(t, tx.Commit(t.Context()))
		require.Zero(t, tx.CommitTimestamp())
		require.Len(t, c.wire.sent(func(x *call) bool { return x.Kind == faultstore.CallApply || x.Kind == faultstore.CallGroup }), calls)
	})
}

// A7. Guards: GetForUpdate sends nothing before Commit, and a cell that is also
// set, or deleted, gets only that.
func TestScheduleA7_GetForUpdateIsPrewrittenAtCommit(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		c := w.client(opts...)
		set(t, c.DB, rowA, "a")
		set(t, c.DB, rowB, "b")
		changes := func() int {
			return len(c.wire.sent(func(x *call) bool { return x.Kind == faultstore.CallApply || x.Kind == faultstore.CallGroup }))
		}
		require.NoError(t, c.drained(t.Context()))
		before := changes()
		tx := begin(t, c)
		for _, cell := range []Cell{rowA, rowB, rowC} {
			_, err := tx.GetForUpdate(t.Context(), cell)
			if cell != rowC {
				require.NoError(t, err)
			}
		}
		require.Equal(t, before, changes())
		require.NoError(t, tx.Set(rowA, []byte("set")))
		require.NoError(t, tx.Delete(rowB))
		_, err := tx.GetForUpdate(t.Context(), rowA)
		require.NoError(t, err)
		c.wire.AddRule(faultstore.Rule{Match: prewrites, After: func(_ context.Context, x *call) {
			kinds := map[string]format.Kind{}
			for _, m := range x.Mutations() {
				for _, e := range m.Edits {
					if e.Family == rowstore.Lock {
						l, err := format.DecodeLock(e.Value)
						if err != nil || Cell(l.Primary) != rowA {
							t.Errorf("lock %+v, %v", l, err)
						}
						kinds[m.Row] = l.Kind
					}
				}
			}
			if want := (map[string]format.Kind{"a": format.KindPut, "b": format.KindDelete, "c": format.KindLock}); fmt.Sprint(kinds) != fmt.Sprint(want) {
				t.Errorf("prewritten %v", kinds)
			}
		}})
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, "set none", value(t, c, rowA)+" "+value(t, c, rowB))
	})
}

// A7. Guards: a heartbeat changes nothing but the expiry of the primary's lock, and
// a late one, after a commit or a roll back, nothing at all.
func TestScheduleA7_LateHeartbeat(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		for _, committed := range []bool{true, false} {
			t1, c := w.client(opts...), w.client()
			p := t1.hold(t, commitPoint(rowA))
			beat := t1.holdReply(t, heartbeats, pass)
			done := commit(t1, writes(t, t1, "1", rowA, rowB))
			p.wait()
			row := w.raw(rowA)
			old, err := format.DecodeLock(row.Newest(rowstore.Lock, "v").Value)
			require.NoError(t, err)
			_, ended := w.clock.sleeps(t, worldExpiry/3, done)
			require.False(t, ended)
			w.clock.advance(worldExpiry/3 + time.Millisecond)
			w.renewed() // else a renewal under way could come after takeForDead
			late := beat.wait()
			row = w.raw(rowA)
			renewed, err := format.DecodeLock(row.Newest(rowstore.Lock, "v").Value)
			require.NoError(t, err)
			require.GreaterOrEqual(t, renewed.Expiry, old.Expiry.Add(worldExpiry/3))
			renewed.Expiry = old.Expiry
			require.Equal(t, old, renewed)
			require.Len(t, late.Muts, 1, "a heartbeat is for the primary only")
			beat.release(pass)
			if committed {
				p.release(pass)
				require.NoError(t, w.finish(done))
			} else {
				w.takeForDead(t1)
				require.Equal(t, "none", value(t, c, rowA))
				p.release(pass)
				require.ErrorIs(t, w.finish(done), ErrConflict)
			}
			require.NoError(t, t1.drained(t.Context()))
			require.Zero(t, again(t, late))
			w.noLocks()
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return errors.Join(tx.Delete(rowA), tx.Delete(rowB)) }))
		}
	})
}

// Guards: the range of writes that conflict begins with the timestamp after the start.
func TestScheduleA3_CommitJustAfterTheStart(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		first, second := w.client(opts...), w.client(opts...)
		set(t, first.DB, rowB, "makes its session")
		earlier := writes(t, first, "earlier", rowA)
		require.NotZero(t, startOf(earlier))
		tx := writes(t, second, "later", rowA)
		start := startOf(tx)
		// Nothing is drawn between the start and the commit, whose prewrites carry the draw.
		require.NoError(t, earlier.Commit(t.Context()))
		require.Equal(t, start+1, earlier.CommitTimestamp())
		require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict)
		require.Equal(t, "earlier", value(t, first, rowA))
		w.noLocks()
	})
}
