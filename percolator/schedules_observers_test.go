package percolator

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules of a review of the protocol (docs/correctness.md), each one driven call by
// call against the code: observers and their notifications.

// B1. Guards: a run deletes exactly the notifications that its view showed, never a
// range: one of an older start may be of a younger commit.
func TestScheduleB1_RunRemovesWhatItSaw(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		var s saw
		wk := watching(t, w.client(opts...), s.observer("o"))
		t1 := w.client(withoutGroups())
		set(t, t1.DB, rowA, "0")
		primary := Cell{"t", "c", "other"}
		tx := writes(t, t1, "1", primary, rowA) // it starts before the run
		t1.wire.verdict(secondaries(primary), die)
		s.during = func(*Txn) {
			s.during = nil
			if err := tx.Commit(context.Background()); err != nil {
				t.Error(err)
			}
			if err := t1.drained(context.Background()); err != nil {
				t.Error(err)
			}
		}
		runs(t, wk, rowA)
		require.EqualValues(t, 1, wk.db.Stats().ObserverRuns)
		require.Contains(t, w.notified(rowA), startOf(tx))
		runs(t, wk, rowA)
		require.Equal(t, []string{"0", "1"}, s.values)
		rests(t, wk, rowA)
		require.Empty(t, w.notified(rowA))
		w.noLocks()
	})
}

// B1. Guards: a clear without a run is as careful.
func TestScheduleB1_ClearRemovesWhatItSaw(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	var s saw
	c, t1 := w.client(), w.client(withoutGroups())
	wk := watching(t, c, s.observer("o"))
	set(t, t1.DB, rowA, "0")
	old := w.notified(rowA)
	require.Len(t, old, 1)
	runs(t, wk, rowA)
	// The hint is there once more, with nothing to do.
	_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Notify, "v", old[0], format.StrongNotification),
	}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	primary := Cell{"t", "c", "other"}
	tx := writes(t, t1, "1", primary, rowA)
	t1.wire.verdict(secondaries(primary), die)
	c.wire.AddRule(faultstore.Rule{Match: both(op(faultstore.CallApply), on(rowA)), Before: func(context.Context, *call) verdict {
		if err := tx.Commit(context.Background()); err != nil {
			t.Error(err)
		}
		if err := t1.drained(context.Background()); err != nil {
			t.Error(err)
		}
		return pass
	}})
	rests(t, wk, rowA)
	require.EqualValues(t, 1, c.Stats().ObserverCleared)
	require.Equal(t, []Timestamp{startOf(tx)}, w.notified(rowA))
	runs(t, wk, rowA)
	require.Equal(t, []string{"0", "1"}, s.values)
}

// B1. Guards: a roll forward moves the notification up to the commit. A worker whose snapshot lies between start and
// commit, and whose view comes after the roll forward, sees nothing new, and removes what lies below its snapshot.
func TestScheduleB1_RolledForwardBehindTheSnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	var s saw
	c, t1, other := w.client(), w.client(withoutGroups()), w.client()
	c.snapshotReader = nil // a view is a draw and then a read
	wk := watching(t, c, s.observer("o"))
	set(t, t1.DB, rowA, "0")
	runs(t, wk, rowA)
	require.Empty(t, w.notified(rowA))

	primary := Cell{"t", "c", "other"}
	t1.wire.verdict(secondaries(primary), die)
	p := t1.hold(t, commitPoint(primary))
	tx := writes(t, t1, "1", primary, rowA)
	require.NotZero(t, startOf(tx))
	view := c.hold(t, op(faultstore.CallRead))
	looked := async(func() error { return wk.attempt(t.Context(), &task{job: job{rowA, wk.list[0].o}, q: wk.list[0]}).err })
	view.wait()
	done := commit(t1, tx)
	p.wait()
	p.release(pass)
	require.NoError(t, w.finish(done))
	require.Equal(t, "1", value(t, other, rowA), "somebody rolls it forward")
	require.Equal(t, []Timestamp{tx.CommitTimestamp()}, w.notified(rowA))
	view.release(pass)
	require.NoError(t, result(t, looked))
	require.Equal(t, []Timestamp{tx.CommitTimestamp()}, w.notified(rowA))
	runs(t, wk, rowA)
	require.Equal(t, []string{"0", "1"}, s.values)
}

// B2. Guards: the hints go only once every observer of the column that the catalog
// has is covered, also those that the worker does not know.
func TestScheduleB2_TwoObserversShareANotification(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o1", "o2")
		var s1, s2 saw
		w1, w2 := watching(t, w.client(opts...), s1.observer("o1")), watching(t, w.client(opts...), s2.observer("o2"))
		set(t, w1.db, rowA, "1")
		runs(t, w1, rowA)
		rests(t, w1, rowA)
		require.Len(t, w.notified(rowA), 1, "the other observer has not run")
		runs(t, w2, rowA)
		rests(t, w2, rowA)
		require.Empty(t, w.notified(rowA))
		require.Equal(t, []string{"1"}, s1.values)
		require.Equal(t, []string{"1"}, s2.values)
	})
}

// B2. Guards: an acknowledgment that is locked does not count as covering.
func TestScheduleB2_LockedAcknowledgmentDoesNotCover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o1", "o2")
	var s1, s2 saw
	c1 := w.client(withoutGroups())
	w1, w2 := watching(t, c1, s1.observer("o1")), watching(t, w.client(), s2.observer("o2"))
	set(t, w2.db, rowA, "1")
	p := c1.hold(t, both(commits, on(rowA)))
	done := async(func() error { _, _, err := w1.runCell(context.Background(), rowA); return err })
	p.wait()
	runs(t, w2, rowA)
	rests(t, w2, rowA) // it need not wait for the other's run
	require.Len(t, w.notified(rowA), 1, "the other's run may still be rolled back")
	w.takeForDead(c1)
	p.release(die)
	require.Error(t, w.finish(done))
	again := watching(t, w.client(), s1.observer("o1"))
	runs(t, again, rowA)
	require.Equal(t, []string{"1", "1"}, s1.values)
	rests(t, again, rowA)
	require.Empty(t, w.notified(rowA))
}

// B3. Guards: a weak hint is its own reason to run, on a cell that was never
// written and on one acknowledged long ago.
func TestScheduleB3_WeakHintIsAReasonToRun(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		var s saw
		c := w.client(opts...)
		wk := watching(t, c, s.observer("o"))
		notify := func() {
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Notify(rowA) }))
		}
		notify()
		runs(t, wk, rowA)
		rests(t, wk, rowA)
		set(t, c.DB, rowA, "1")
		runs(t, wk, rowA)
		notify()
		runs(t, wk, rowA)
		rests(t, wk, rowA)
		require.Equal(t, []string{"none", "1", "1"}, s.values)
		require.Empty(t, w.notified(rowA))
	})
}

// B3. Guards: the hint is there when the transaction is committed, even if its client dies at once.
func TestScheduleB3_WeakHintOutlivesItsClient(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		var s saw
		t1, c := w.client(opts...), w.client()
		wk := watching(t, c, s.observer("o"))
		other := Cell{"t", "b", "data"}
		p := t1.hold(t, commitPoint(other))
		tx := writes(t, t1, "1", other)
		require.NoError(t, tx.Notify(rowA))
		done := commit(t1, tx)
		p.wait()
		p.release(dieAfter)
		require.Error(t, w.finish(done))
		require.Equal(t, "1", value(t, c, other))
		require.Len(t, w.notified(rowA), 1)
		runs(t, wk, rowA)
		require.Equal(t, []string{"none"}, s.values)
	})
}

// B3. Guards: the hint stands at the commit timestamp, drawn after the prewrites and
// put before the commit point: a run that starts earlier does not use it up.
func TestScheduleB3_WeakHintComesNeitherEarlyNorLate(t *testing.T) {
	t.Parallel()
	for name, opts := range ways {
		for _, sameRow := range []bool{false, true} {
			t.Run(fmt.Sprint(name, sameRow), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.observed("t", "v", "o")
				var s saw
				other := Cell{"t", "b", "data"}
				if sameRow {
					other.Row = "a"
				}
				watched := Observer{Name: "o", Func: func(ctx context.Context, tx *Txn, c Cell) error {
					return s.observer("o").Func(ctx, tx, other)
				}}
				t1, c := w.client(opts...), w.client()
				wk := watching(t, c, watched)
				p := t1.hold(t, commitPoint(other))
				tx := writes(t, t1, "1", other)
				require.NoError(t, tx.Notify(rowA))
				// A run that starts after T1 and before its commit acknowledges for itself.
				set(t, c.DB, rowA, "change")
				runs(t, wk, rowA)
				require.Equal(t, []string{"none"}, s.values)
				done := commit(t1, tx)
				p.wait()
				// A run now must wait for T1, or see nothing of it and leave its hint.
				early := async(func() error { _, _, err := wk.runCell(context.Background(), rowA); return err })
				if name == "one phase" || sameRow {
					require.NoError(t, w.finish(early)) // nothing of T1 is there
					require.Len(t, s.values, 1)
				}
				p.release(pass)
				require.NoError(t, w.finish(done))
				if name != "one phase" && !sameRow {
					require.NoError(t, w.finish(early))
				}
				for len(w.notified(rowA)) > 0 {
					look(t, wk, rowA)
				}
				require.Len(t, s.values, 2)
				require.Equal(t, "1", s.values[1])
			})
		}
	}
}

// B4. Guards: with a commit timestamp above f + lease, f drawn before the catalog was
// read, the transaction may not know of an observer, and looks again: locks that do
// not tell of it abort, and a single step is made again.
func TestScheduleB4_CommitByAnOldCatalog(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1 := w.client(opts...)
		tx := writes(t, t1, "1", rowA)
		// Held just before its timestamp is drawn, inside the step or outside.
		match := t1.commitDraw()
		if len(opts) == 0 {
			match = commitPoint(rowA)
		}
		p := t1.hold(t, match)
		done := commit(t1, tx)
		p.wait()
		w.observed("t", "v", "o")
		w.clock.advance(worldLease + time.Second)
		p.release(pass)
		if err := w.finish(done); len(opts) > 0 {
			require.ErrorIs(t, err, ErrConflict)
			require.Equal(t, "none", value(t, t1, rowA))
			require.Empty(t, w.notified(rowA))
			set(t, t1.DB, rowA, "2")
		} else {
			require.NoError(t, err)
		}
		require.Len(t, w.notified(rowA), 1)
	})
}

// B4. Guards: the sweep is a snapshot read above publication + lease: it waits for
// the lock of a transaction that does not know the observer.
func TestScheduleB4_SweepWaitsForLocks(t *testing.T) {
	t.Parallel()
	for _, dies := range []bool{false, true} {
		t.Run(fmt.Sprint("dies ", dies), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			t1, c := w.client(withoutGroups()), w.client()
			p := t1.hold(t, commitPoint(rowB))
			tx := writes(t, t1, "1", rowB, rowA)
			done := commit(t1, tx)
			late := p.wait()
			var s saw
			wk := watching(t, c, s.observer("o"))
			require.NoError(t, wk.publish(t.Context()))
			if dies {
				// Its commit arrives, and nobody finishes its secondary.
				again(t, late)
				p.release(die)
				require.Error(t, w.finish(done))
			}
			swept := async(func() error { return wk.sweepNew(t.Context()) })
			_, ended := w.clock.sleeps(t, 64*worldLease/firstLook, swept)
			require.False(t, ended, "the sweep did not wait for a process that goes by an older catalog")
			w.pass(worldLease + time.Second)
			if !dies {
				// The sweep has met T1's lock and looks at it again and again.
				require.Eventually(t, func() bool { return c.Stats().LocksMet > 0 }, patience, time.Millisecond)
				require.Empty(t, w.notified(rowA))
				p.release(pass)
				require.NoError(t, w.finish(done))
			}
			require.NoError(t, w.finish(swept))
			for _, cell := range []Cell{rowA, rowB} {
				require.Len(t, w.notified(cell), 1, "%v", cell)
				runs(t, wk, cell)
				rests(t, wk, cell)
			}
			require.Equal(t, []string{"1", "1"}, s.values)
			infos, err := c.Observers(t.Context())
			require.NoError(t, err)
			require.Len(t, infos, 1)
			require.NotZero(t, infos[0].Since)
			require.Equal(t, []ObserverInfo{{Name: "o", Table: "t", Column: "v", Since: infos[0].Since, Swept: true}}, infos)
		})
	}
}

// B4. Guards: a registration is later than the removal before it, also where the process that registers has begun long before. What the old one acknowledged before it was removed is not its own.
func TestScheduleB4_RegisteredAfterARemoval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, c := w.client(), w.client()
	var s saw
	first := watching(t, old, s.observer("o"))
	require.NoError(t, first.publish(t.Context()))
	second := watching(t, c, s.observer("o"))
	p := c.hold(t, func(x *call) bool { return x.Kind == faultstore.CallRead && x.Reads[0].Table == format.TableCatalog })
	published := async(func() error { return second.publish(t.Context()) })
	p.wait()
	set(t, old.DB, rowA, "a")
	runs(t, first, rowA)
	require.NoError(t, old.RemoveObserver(t.Context(), "o"))
	removed, err := old.Now(t.Context())
	require.NoError(t, err)
	p.release(pass)
	require.NoError(t, w.finish(published))
	infos, err := c.Observers(t.Context())
	require.NoError(t, err)
	require.Len(t, infos, 1)
	require.Greater(t, infos[0].Since, removed)
}

// B4. Guards: RemoveObserver ends acknowledgments, so an observer that comes back sees every cell
// once, as it is then. One that is registered still sees in a sweep only what it has not acknowledged.
func TestScheduleB4_ObserverComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	var s saw
	sweep := func() *Worker {
		wk := watching(t, c, s.observer("o"))
		require.NoError(t, wk.publish(t.Context()))
		swept := async(func() error { return wk.sweepNew(t.Context()) })
		require.NoError(t, w.finish(swept), "the time stands still, and nobody goes by an older catalog")
		return wk
	}
	set(t, c.DB, rowA, "a1")
	set(t, c.DB, rowB, "b1")
	wk := sweep()
	for _, cell := range []Cell{rowA, rowB} {
		runs(t, wk, cell)
	}
	require.NoError(t, c.RemoveObserver(t.Context(), "o"))
	set(t, c.DB, rowA, "a2")
	set(t, c.DB, rowC, "c1")
	require.Empty(t, w.notified(rowA))
	wk = sweep()
	for _, cell := range []Cell{rowA, rowB, rowC} {
		require.Len(t, w.notified(cell), 1)
		runs(t, wk, cell)
		rests(t, wk, cell)
	}
	require.Equal(t, []string{"a1", "b1", "a2", "b1", "c1"}, s.values)
	v, err := c.loadCatalog(t.Context())
	require.NoError(t, err)
	at, err := c.Now(t.Context())
	require.NoError(t, err)
	require.NoError(t, wk.sweepFor(t.Context(), v.Observers[0], at))
	require.Empty(t, w.versions(rowstore.Notify), "it has acknowledged all of them since")
	// What a writer adds that does not know of it is found also where it has acknowledged something since.
	set(t, c.DB, rowA, "a3")
	_, err = w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{rowstore.DeleteRange(rowstore.Notify, "v", 0, oracle.Max)}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.Empty(t, w.versions(rowstore.Notify))
	at, err = c.Now(t.Context())
	require.NoError(t, err)
	require.NoError(t, wk.sweepFor(t.Context(), v.Observers[0], at))
	require.Len(t, w.notified(rowA), 1)
	runs(t, wk, rowA)
	require.Equal(t, "a3", s.values[len(s.values)-1])
}

// B5. Guards: the collection leaves a delete alone that an observer has not seen,
// or whose run is parked.
func TestScheduleB5_UnseenDeleteIsKept(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprint("parked ", park), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o")
			c := w.client()
			var s saw
			broken := false
			o := s.observer("o")
			o.MaxAttempts = 1
			f := o.Func
			o.Func = func(ctx context.Context, tx *Txn, cell Cell) error {
				if broken {
					return errors.New("on purpose")
				}
				return f(ctx, tx, cell)
			}
			wk := watching(t, c, o)
			set(t, c.DB, rowA, "1")
			runs(t, wk, rowA)
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowA) }))
			if broken = park; park {
				look(t, wk, rowA)
				rests(t, wk, rowA)
				require.EqualValues(t, 1, c.Stats().ObserverParked)
				require.Empty(t, w.notified(rowA))
			}
			w.clock.advance(worldRetention * 2)
			_, err := w.collect(c, 0)
			require.NoError(t, err)
			row := w.raw(rowA)
			require.Len(t, row.All(rowstore.Write, "v"), 1, "the delete is gone")
			if park {
				broken = false
				parked, err := c.Parked(t.Context())
				require.NoError(t, err)
				require.Len(t, parked, 1)
				require.NoError(t, c.Release(t.Context(), parked...))
			}
			runs(t, wk, rowA)
			rests(t, wk, rowA)
			require.Equal(t, []string{"1", "none"}, s.values)
			w.clock.advance(worldRetention * 2)
			_, err = w.collect(c, 0)
			require.NoError(t, err)
			row = w.raw(rowA)
			require.Empty(t, row.All(rowstore.Write, "v"), "once seen, the delete goes")
		})
	}
}

// B6. Guards: a change counts as seen by the start of the run, not by its commit.
func TestScheduleB6_ChangeDuringTheRun(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		var s saw
		wk := watching(t, w.client(opts...), s.observer("o"))
		t2 := w.client(opts...)
		set(t, t2.DB, rowA, "1")
		s.during = func(*Txn) {
			s.during = nil
			set(t, t2.DB, rowA, "2")
		}
		runs(t, wk, rowA)
		require.Len(t, w.notified(rowA), 1)
		runs(t, wk, rowA)
		rests(t, wk, rowA)
		require.Equal(t, []string{"1", "2"}, s.values)
		require.Empty(t, w.notified(rowA))
		require.EqualValues(t, 2, wk.db.Stats().ObserverRuns)
	})
}

// C21. Guards: the parked record is there before the notification goes: whichever
// call of the worker is its last, the change is either parked or found again.
func TestScheduleC21_ParkingLosesNothing(t *testing.T) {
	t.Parallel()
	for name, opts := range ways {
		for _, v := range []verdict{die, dieAfter, lose, loseReply} {
			t.Run(fmt.Sprint(name, "/", v), func(t *testing.T) {
				t.Parallel()
				results := map[string]int{}
				for n, fired := 0, true; fired; n++ {
					w := newWorld(t)
					w.observed("t", "v", "o")
					c, t2 := w.client(opts...), w.client()
					set(t, t2.DB, rowA, "1")
					broken := func(context.Context, *Txn, Cell) error { return errors.New("on purpose") }
					wk := watching(t, c, Observer{Name: "o", MaxAttempts: 1, Func: broken})
					r := c.wire.AddRule(faultstore.Rule{Match: anyCall, Skip: n, Fault: v})
					for range 8 { // as a worker does, until there is nothing to do
						if result, _, err := wk.runCell(t.Context(), rowA); err == nil && result == runDone {
							break
						}
					}
					require.NoError(t, c.drained(t.Context()))
					fired = r.Remove() > 0
					w.clock.advance(worldSession + time.Second)
					parked, err := t2.Parked(t.Context())
					require.NoError(t, err)
					if len(parked) == 0 {
						require.NotEmpty(t, w.notified(rowA), "neither parked nor notified (call %d)", n)
						results["notified"]++
					} else {
						require.Equal(t, 1, parked[0].Attempts)
						results["parked"]++
					}
					// A later change runs normally and unparks.
					set(t, t2.DB, rowA, "2")
					var s saw
					next := watching(t, t2, s.observer("o"))
					for range 4 {
						look(t, next, rowA)
					}
					require.Contains(t, s.values, "2")
					require.Empty(t, w.notified(rowA))
					parked, err = t2.Parked(t.Context())
					require.NoError(t, err)
					require.Empty(t, parked)
				}
				require.Positive(t, results["parked"])
			})
		}
	}
}

// C21. Guards: workers leave notifications of observers alone that they do not
// have, and clear those of columns for which the catalog has none.
func TestScheduleC21_NotificationsOfUnknownObservers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "other")
	c := w.client()
	var s saw
	wk := watching(t, c, s.observer("mine")) // not in the catalog
	set(t, c.DB, rowA, "1")
	rests(t, wk, rowA)
	require.Len(t, w.notified(rowA), 1)
	require.NoError(t, c.RemoveObserver(t.Context(), "other"))
	w.clock.advance(worldLease)
	rests(t, wk, rowA)
	require.Empty(t, w.notified(rowA))
	require.Empty(t, s.values)
}

// A worker over a lock: it resolves what is decided or dead, and leaves the rest.
func TestScheduleB_WorkerMeetsALock(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		var s saw
		t1, c := w.client(opts...), w.client()
		wk := watching(t, c, s.observer("o"))
		p := t1.hold(t, commitPoint(rowA))
		done := commit(t1, writes(t, t1, "1", rowA, rowB))
		p.wait()
		require.Equal(t, runLocked, look(t, wk, rowB))
		require.Len(t, w.notified(rowB), 1)
		require.Empty(t, s.values)
		w.takeForDead(t1)
		rests(t, wk, rowB)
		require.Empty(t, w.notified(rowB))
		p.release(pass)
		require.ErrorIs(t, w.finish(done), ErrConflict)
		require.Empty(t, w.versions(rowstore.Lock, rowstore.Notify))
	})
}
