package percolator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules of a review of the protocol (docs/correctness.md), each one driven call by
// call against the code: snapshots of the future, and garbage collection.

// C1. Guards: a snapshot that the client's clock names is refused while it lies
// above what the oracle has handed out.
func TestScheduleC1_AsOfInTheFuture(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, t2 := w.client(), w.client()
	set(t, c.DB, rowA, "1")
	now, err := c.Now(t.Context())
	require.NoError(t, err)
	_, err = c.Begin(t.Context(), WithAsOfTimestamp(now+2)) // Begin draws now+1
	require.ErrorIs(t, err, ErrSnapshotInFuture)
	_, err = c.Begin(t.Context(), WithAsOf(w.clock.Now().Add(time.Millisecond)))
	require.ErrorIs(t, err, ErrSnapshotInFuture)
	// The newest that there is does not change any more.
	tx := begin(t, c, WithAsOfTimestamp(now))
	set(t, t2.DB, rowA, "2")
	v, err := tx.Get(t.Context(), rowA)
	require.NoError(t, err)
	require.Equal(t, "1", string(v))
}

// committedPrimary leaves T1 committed on A with its lock on B still there, and A
// overwritten by T2.
func committedPrimary(t *testing.T, w *world, alive bool, remove bool) (release func()) {
	t.Helper()
	t1, t2 := w.client(withoutGroups()), w.client()
	set(t, t2.DB, rowA, "0")
	release = func() {}
	if alive {
		p := t1.hold(t, secondaries(rowA))
		release = func() { p.release(pass) }
	} else {
		t1.wire.verdict(secondaries(rowA), die)
	}
	tx := begin(t, t1)
	if remove {
		require.NoError(t, tx.Delete(rowA))
	} else {
		require.NoError(t, tx.Set(rowA, []byte("1")))
	}
	require.NoError(t, tx.Set(rowB, []byte("1")))
	require.NoError(t, tx.Commit(t.Context()))
	if !remove {
		set(t, t2.DB, rowA, "2")
	}
	return release
}

// A2. Guards: every lock below the safe point is resolved before the first removal,
// whether its owner lives or not.
func TestScheduleA2_CollectedRecordOfARemainingLock(t *testing.T) {
	t.Parallel()
	for _, alive := range []bool{false, true} {
		for _, remove := range []bool{false, true} {
			t.Run(fmt.Sprintf("alive %v, delete %v", alive, remove), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				release := committedPrimary(t, w, alive, remove)
				w.clock.advance(2 * worldAge)
				c := w.client()
				report, err := w.collect(c, 1)
				require.NoError(t, err)
				require.Equal(t, 1, report.LocksResolved)
				row := w.raw(rowA)
				require.Len(t, row.All(rowstore.Write, "v"), map[bool]int{false: 1, true: 0}[remove], "T1's record was to be collected")
				require.Equal(t, "1", value(t, c, rowB))
				release()
				require.Equal(t, "1", value(t, c, rowB))
			})
		}
	}
}

// A2. Guards: an undecided transaction below the safe point can not commit any more,
// though its process lives and keeps its lock alive.
func TestScheduleA2_CollectionOverridesALivingOwner(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		c := w.client(WithSettings(Settings{MaxTxnAge: time.Second, Retention: worldRetention, CatalogLease: worldLease}))
		t1 := w.client(append(opts, WithLockExpiry(time.Hour))...)
		p := t1.hold(t, commitPoint(rowA))
		tx := writes(t, t1, "1", rowA, rowB)
		start := startOf(tx)
		done := commit(t1, tx)
		late := p.wait()
		w.pass(worldLease + 2*time.Second)
		row := w.raw(rowA)
		l, err := format.DecodeLock(row.Newest(rowstore.Lock, "v").Value)
		require.NoError(t, err)
		_, alive, err := c.inspect(t.Context(), start, &l, respectLiveOwner)
		require.NoError(t, err)
		require.True(t, alive)
		_, err = w.collect(c, 1)
		require.NoError(t, err)
		w.noLocks()
		p.release(pass)
		require.Error(t, w.finish(done))
		require.Zero(t, again(t, late))
		require.Equal(t, "none none", value(t, c, rowA)+" "+value(t, c, rowB))
	})
}

// A2. Guards: the collection flushes what is deferred before it removes anything;
// else a crash takes a secondary's commit back, and its record is gone.
func TestScheduleA2_DeferredSecondaryIsFlushedBeforeRemoval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, t2, c := w.client(withoutGroups()), w.client(), w.client()
	p := t1.hold(t, secondaries(rowA))
	require.NoError(t, writes(t, t1, "1", rowA, rowB).Commit(t.Context()))
	p.wait()
	set(t, t2.DB, rowA, "2")
	w.clock.advance(2 * worldAge)
	crashes := 0
	c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool { return x.Kind == faultstore.CallScan && x.Range.Table == "t" }, Before: func(context.Context, *call) verdict {
		p.release(pass)
		if err := t1.drained(context.Background()); err != nil {
			t.Error(err)
		}
		// Just before whatever the collection changes next.
		c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool {
			return x.Kind == faultstore.CallApply && edits(x, func(_ *rowstore.Mutation, e *rowstore.Edit) bool { return e.Column == format.ColumnResolved })
		}, Before: func(context.Context, *call) verdict {
			crashes++
			w.mem.Crash()
			return pass
		}})
		return pass
	}})
	report, err := w.collect(c, 1)
	require.NoError(t, err)
	require.Zero(t, report.LocksResolved, "the lock was to be gone when the collection came by")
	require.Positive(t, report.Versions)
	require.Equal(t, 1, crashes)
	require.Equal(t, "1", value(t, c, rowB))
}

// A2. Guards: a collection searches again if the store has crashed since it began to: a lock that was gone
// may be back.
func TestScheduleA2_CrashDuringTheSearch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, t2, c := w.client(withoutGroups()), w.client(), w.client()
	p := t1.hold(t, secondaries(rowA))
	require.NoError(t, writes(t, t1, "1", rowA, rowB).Commit(t.Context()))
	p.wait()
	set(t, t2.DB, rowA, "2")
	w.clock.advance(2 * worldAge)
	c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool { return x.Kind == faultstore.CallScan && x.Range.Table == "t" }, Before: func(context.Context, *call) verdict {
		p.release(pass)
		if err := t1.drained(context.Background()); err != nil {
			t.Error(err)
		}
		return pass
	}})
	crashes := c.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallFlush), Before: func(context.Context, *call) verdict {
		w.mem.Crash()
		return pass
	}})
	report, err := w.collect(c, 1)
	require.NoError(t, err)
	require.Equal(t, 1, crashes.Struck())
	require.Equal(t, 1, report.LocksResolved, "the lock was to be back")
	row := w.raw(rowA)
	require.Len(t, row.All(rowstore.Write, "v"), 1, "T1's record was to be collected")
	require.Equal(t, "1", value(t, c, rowB))
}

// A5. Guards: below the safe point the absence of a record proves nothing.
func TestScheduleA5_FateAskedBelowTheSafePoint(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, t2, c := w.client(opts...), w.client(), w.client()
		p := t1.holdReply(t, commitPoint(rowA), loseReply)
		tx := writes(t, t1, "1", rowA, rowB)
		start := startOf(tx)
		done := commit(t1, tx)
		p.wait()
		set(t, t2.DB, rowA, "2")
		w.clock.advance(worldRetention + worldAge)
		report, err := w.collect(c, 0)
		require.NoError(t, err)
		require.Greater(t, report.SafePoint, start)
		row := w.raw(rowA)
		require.Len(t, row.All(rowstore.Write, "v"), 1, "T1's record was to be collected")
		p.release(pass)
		err = w.finish(done)
		require.ErrorIs(t, err, ErrUndetermined)
		require.NotErrorIs(t, err, ErrConflict)
		var undetermined *UndeterminedError
		require.ErrorAs(t, err, &undetermined)
		require.Equal(t, start, undetermined.Start)
		require.Equal(t, rowA, undetermined.Primary)
		_, err = c.Outcome(t.Context(), start, rowA)
		require.ErrorIs(t, err, ErrSnapshotTooOld)
		require.Equal(t, "2 1", value(t, c, rowA)+" "+value(t, c, rowB))
	})
}

// C2. Guards: a read is judged against the safe point after its reply, also that of
// a long value, and of each part of a scan.
func TestScheduleC2_ReadOvertakenByACollection(t *testing.T) {
	t.Parallel()
	get := func(ctx context.Context, tx *Txn) error {
		_, err := tx.Get(ctx, rowA)
		return err
	}
	for name, test := range map[string]struct {
		held matcher
		skip int
		read func(ctx context.Context, tx *Txn) error
	}{
		"get":        {op(faultstore.CallRead), 0, get},
		"long value": {op(faultstore.CallRead), 1, get},
		"get many": {op(faultstore.CallRead), 0, func(ctx context.Context, tx *Txn) error {
			_, err := tx.GetMany(ctx, rowA, rowB)
			return err
		}},
		"get many long": {op(faultstore.CallRead), 1, func(ctx context.Context, tx *Txn) error {
			_, err := tx.GetMany(ctx, rowA, rowB)
			return err
		}},
		"for update": {op(faultstore.CallRead), 0, func(ctx context.Context, tx *Txn) error {
			_, err := tx.GetForUpdate(ctx, rowA)
			return err
		}},
		"scan": {op(faultstore.CallScan), 0, func(ctx context.Context, tx *Txn) error {
			for _, err := range tx.Scan(ctx, Range{Table: "t"}) {
				if err != nil {
					return err
				}
			}
			return nil
		}},
		"scan long": {op(faultstore.CallRead), 0, func(ctx context.Context, tx *Txn) error {
			for _, err := range tx.Scan(ctx, Range{Table: "t"}) {
				if err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r, c := w.client(), w.client()
			set(t, c.DB, rowA, longText)
			tx := begin(t, r)
			set(t, c.DB, rowA, "2")
			p := &pause{t, r.wire.Hold(faultstore.Rule{Match: test.held, Skip: test.skip})}
			atend.Do(t, func() { p.release(pass) })
			done := async(func() error { return test.read(context.Background(), tx) })
			p.wait()
			w.clock.advance(2 * worldAge)
			report, err := w.collect(c, 1)
			require.NoError(t, err)
			require.Greater(t, report.SafePoint, startOf(tx))
			row := w.raw(rowA)
			require.Len(t, row.Versions, 1, "what is read was to be gone")
			p.release(pass)
			require.ErrorIs(t, w.finish(done), ErrSnapshotTooOld)
		})
	}
}

// C2. Guards: what is known of the safe point counts from when its request left, not
// from when the reply came.
func TestScheduleC2_LateReplyOfTheSafePoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, c := w.client(), w.client()
	set(t, c.DB, rowA, "1")
	tx := begin(t, r)
	set(t, c.DB, rowA, "2")
	w.clock.advance(2 * worldAge)
	p := r.holdReply(t, func(x *call) bool { return x.Kind == faultstore.CallRead && x.Reads[0].Table == format.TableCatalog }, pass)
	done := async(func() error { _, err := r.loadCatalog(context.Background()); return err })
	p.wait() // it will say that there is no safe point
	_, err := w.collect(c, 1)
	require.NoError(t, err)
	p.release(pass)
	require.NoError(t, w.finish(done))
	_, err = tx.Get(t.Context(), rowA)
	require.ErrorIs(t, err, ErrSnapshotTooOld)
}

// C2. Guards: the collection waits a lease between publishing the safe point and
// removing anything.
func TestScheduleC2_CollectionWaitsALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, c := w.client(), w.client()
	set(t, c.DB, rowA, "1")
	tx := begin(t, r)
	set(t, c.DB, rowA, "2")
	w.clock.advance(2 * worldAge)
	require.Equal(t, "2", value(t, r, rowA)) // r knows the safe point of now
	done := async(func() error {
		_, err := c.CollectGarbage(context.Background(), GCOptions{Keep: 1, Full: true})
		return err
	})
	_, ended := w.clock.sleeps(t, worldLease, done)
	require.False(t, ended)
	w.clock.advance(worldLease - time.Millisecond)
	v, err := tx.Get(t.Context(), rowA)
	if err == nil {
		require.Equal(t, "1", string(v))
	} else {
		require.ErrorIs(t, err, ErrSnapshotTooOld)
	}
	row := w.raw(rowA)
	require.Len(t, row.All(rowstore.Write, "v"), 2)
	w.clock.advance(time.Millisecond)
	require.NoError(t, w.finish(done))
	row = w.raw(rowA)
	require.Len(t, row.All(rowstore.Write, "v"), 1)
}

// hasty is a local clock that is four times as fast as the oracle's.
type hasty struct{ *fakeClock }

func (c hasty) Sleep(ctx context.Context, d time.Duration) error {
	c.advance(d/4 + time.Microsecond)
	return ctx.Err()
}

// C2. Guards: the lease that a collection waits is one of the oracle's time.
func TestScheduleC2_CollectionWaitsByTheOracle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	set(t, c.DB, rowA, "1")
	set(t, c.DB, rowA, "2")
	w.clock.advance(2 * worldAge)
	collector, err := New(t.Context(), w.mem, WithClock(hasty{w.clock}), withSeed(1))
	require.NoError(t, err)
	before := w.clock.Now()
	report, err := collector.CollectGarbage(t.Context(), GCOptions{Keep: 1, Full: true})
	require.NoError(t, err)
	require.Positive(t, report.Versions)
	require.GreaterOrEqual(t, w.clock.Now().Sub(before), worldLease)
	require.NoError(t, collector.Close(t.Context()))
}

// C7. Guards: also a collection at once keeps what a living transaction may need.
func TestScheduleC7_CollectAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	set(t, c.DB, rowA, "1")
	w.clock.advance(worldAge + worldLease + time.Minute)
	report, err := w.collect(c, time.Nanosecond)
	require.NoError(t, err)
	now, err := c.Now(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, report.SafePoint, now.Add(-worldAge-2*worldLease)) // one lease passed since
	require.Positive(t, report.SafePoint)
}

// C8. Guards: orphan data goes only while no lock stands at its start: a late
// prewrite may have brought it.
func TestScheduleC8_OrphanDataUnderALock(t *testing.T) {
	t.Parallel()
	for _, locked := range []bool{false, true} {
		w := newWorld(t)
		t1, c := w.client(withoutGroups()), w.client()
		set(t, c.DB, rowA, "0")
		w.clock.advance(worldAge)
		t1.wire.verdict(prewrites, dieAfter)
		tx := begin(t, t1)
		start := startOf(tx)
		require.NoError(t, tx.Set(rowC, nil))
		require.NoError(t, tx.Set(rowA, []byte(longText)))
		require.Error(t, tx.Commit(t.Context()))
		require.NoError(t, t1.drained(t.Context()))
		prewrite := t1.wire.sent(prewrites)[0]
		require.Equal(t, "0", func() string { w.clock.advance(worldSession * 2); return value(t, c, rowA) }())
		require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowC) }))
		// Only the data is back: of the prewrite, or of a part of it that was undone.
		_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Data, "v", start, []byte(longText)),
		}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		w.clock.advance(2 * worldAge)
		c.wire.AddRule(faultstore.Rule{Match: both(op(faultstore.CallApply), on(rowA)), Before: func(context.Context, *call) verdict {
			if locked {
				again(t, prewrite)
			}
			return pass
		}})
		_, err = w.collect(c, 1)
		require.NoError(t, err)
		row := w.raw(rowA)
		require.Equal(t, locked, row.At(rowstore.Data, "v", start) != nil, "%+v", row.Versions)
		require.Equal(t, locked, row.At(rowstore.Lock, "v", start) != nil)
	}
}
