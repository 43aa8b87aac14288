package percolator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules of tables with a retention of their own ("Retention by table" in
// docs/architecture.md), each one driven call by call against the code.

const (
	shortAge       = time.Minute
	shortRetention = 2 * time.Minute
)

// short is a table with a retention of its own, in these schedules.
var (
	short  = TableSettings{MaxTxnAge: shortAge, Retention: shortRetention}
	queueA = Cell{"queue", "a", "v"}
	queueB = Cell{"queue", "b", "v"}
)

// configuredTable changes the settings of a table and waits until they are in force.
func (w *world) configuredTable(c *client, table string, s TableSettings) {
	w.t.Helper()
	require.NoError(w.t, c.ConfigureTable(w.t.Context(), table, s))
	w.pass(2*worldLease + time.Second)
}

// cleaned collects as soon as a collection may resolve what older settings have left.
func (w *world) cleaned(c *client) GCReport {
	w.t.Helper()
	w.clock.advance(worldAge + worldLease)
	report, err := w.collect(c, 0)
	require.NoError(w.t, err)
	require.True(w.t, c.view.Load().clean("queue"))
	return report
}

// shortened gives the table of the schedules its short retention, which collections go by.
func (w *world) shortened(c *client) {
	w.t.Helper()
	w.configuredTable(c, "queue", short)
	w.cleaned(c)
}

// collectWithin collects the tables with a short retention.
func (w *world) collectWithin(c *client) (GCReport, error) {
	w.t.Helper()
	return w.collectBy(c, GCOptions{Within: shortRetention})
}

// diesAfterCommitPoint lets a client commit in two phases, and die before it commits the secondaries.
func (c *client) diesAfterCommitPoint() {
	c.wire.AddRule(faultstore.Rule{Match: both(op(faultstore.CallApply), commits), Skip: 1, Fault: die})
}

// A collection of the short tables moves their safe point, and leaves the others alone.
func TestScheduleT_ShortTableAlone(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c := w.client(opts...)
		w.shortened(c)
		set(t, c.DB, queueA, "1")
		set(t, c.DB, rowA, "1")
		old := begin(t, c)
		set(t, c.DB, queueA, "2")
		set(t, c.DB, rowA, "2")
		global, err := c.SafePoint(t.Context())
		require.NoError(t, err)
		w.clock.advance(2 * shortRetention)
		report, err := w.collectWithin(c)
		require.NoError(t, err)
		require.Equal(t, []any{global, 1, 1}, []any{report.SafePoint, report.Rows, report.Versions})
		queue, err := c.TableSafePoint(t.Context(), "queue")
		require.NoError(t, err)
		require.Greater(t, queue, startOf(old))
		same, err := c.TableSafePoint(t.Context(), "t")
		require.NoError(t, err)
		require.Equal(t, global, same)

		_, err = old.Get(t.Context(), queueA)
		require.ErrorIs(t, err, ErrSnapshotTooOld)
		var tooOld *SnapshotTooOldError
		require.ErrorAs(t, err, &tooOld)
		require.Equal(t, SnapshotTooOldError{Snapshot: startOf(old), SafePoint: queue, Table: "queue"}, *tooOld)
		for _, err := range old.Scan(t.Context(), Range{Table: "queue"}) {
			require.ErrorIs(t, err, ErrSnapshotTooOld)
		}
		_, err = old.GetMany(t.Context(), rowA, queueA)
		require.ErrorIs(t, err, ErrSnapshotTooOld)
		v, err := old.Get(t.Context(), rowA)
		require.NoError(t, err)
		require.Equal(t, "1", string(v))
		// Another process that knows nothing of it yet.
		_, err = begin(t, w.client(), WithAsOfTimestamp(startOf(old))).Get(t.Context(), queueA)
		require.ErrorIs(t, err, ErrSnapshotTooOld)
		// What is written in both is bound by the shorter one.
		require.NoError(t, old.Set(rowB, []byte("late")))
		require.NoError(t, old.Set(queueB, []byte("late")))
		require.ErrorIs(t, old.Commit(t.Context()), ErrTxnTooOld)
		require.Equal(t, "none none", value(t, c, rowB)+" "+value(t, c, queueB))
	})
}

// Guards: the primary lies in the table whose history is kept for longest. The record of the
// commit would go with a short table, and the locks in the long one be rolled back.
func TestScheduleT_CollectedRecordOfALockInALongerTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, t1 := w.client(), w.client(withoutGroups())
	w.shortened(c)
	t1.wire.verdict(secondaries(rowA), die)
	tx := writes(t, t1, "1", queueA, rowA)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, t1.drained(t.Context()))
	require.Len(t, w.versions(rowstore.Lock), 1)
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowB) })) // nothing to do with it
	w.clock.advance(2 * shortRetention)
	report, err := w.collectWithin(c)
	require.NoError(t, err)
	require.Equal(t, 1, report.LocksResolved)
	require.Equal(t, "1 1", value(t, c, queueA)+" "+value(t, c, rowA))
}

// Guards: the same when the short table's cell is overwritten before its record is collected:
// were the primary there, the lock in the long table would find no trace of the commit.
func TestScheduleT_OverwrittenRecordInAShortTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, t1 := w.client(), w.client(withoutGroups())
	w.shortened(c)
	t1.diesAfterCommitPoint()
	require.NoError(t, writes(t, t1, "1", queueA, rowA).Commit(t.Context()))
	require.NoError(t, t1.drained(t.Context()))
	w.clock.advance(2 * worldExpiry)
	set(t, c.DB, queueA, "2")
	w.clock.advance(2 * shortRetention)
	_, err := w.collectWithin(c)
	require.NoError(t, err)
	row := w.raw(queueA)
	require.Len(t, row.All(rowstore.Write, "v"), 1, "T1's write was to be collected")
	require.Equal(t, "2 1", value(t, c, queueA)+" "+value(t, c, rowA))
}

// Guards: what is only locked counts too. The transaction gets a primary of its own if it only
// locks in the table that is kept for longest.
func TestScheduleT_LockOnlyInTheLongerTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, t1, t2 := w.client(), w.client(withoutGroups()), w.client()
	w.shortened(c)
	set(t, c.DB, rowA, "0")
	older := begin(t, t2)
	require.NoError(t, older.Set(rowA, []byte("older")))
	t1.wire.verdict(func(x *call) bool { return on(rowA)(x) && !prewrites(x) }, die)
	guard := begin(t, t1)
	_, err := guard.GetForUpdate(t.Context(), rowA)
	require.NoError(t, err)
	require.NoError(t, guard.Set(queueA, []byte("1")))
	require.NoError(t, guard.Commit(t.Context()))
	require.NoError(t, t1.drained(t.Context()))
	w.clock.advance(2 * worldExpiry)
	set(t, c.DB, queueA, "2")
	w.clock.advance(2 * shortRetention)
	_, err = w.collectWithin(c)
	require.NoError(t, err)
	require.ErrorIs(t, older.Commit(t.Context()), ErrConflict, "the guard has committed, and the cell that it guards was changed under it")
	require.Equal(t, "2", value(t, c, queueA))
}

// Guards: over several stores the primary stays in the authoritative one. If the table there is
// the shorter one, the transaction gets a primary of its own, which lies there too.
func TestScheduleT_ShortTableInTheAuthoritativeStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	w.shortened(c)
	placed := func(table string) bool { return table != "t" }
	t1 := w.clientOver(newWireTo(placedStore{w.mem, placed}, w.mem), withoutGroups())
	t1.wire.verdict(func(x *call) bool { return on(rowA)(x) && !prewrites(x) }, die)
	tx := writes(t, t1, "1", queueA, rowA)
	start := startOf(tx)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, t1.drained(t.Context()))
	row := w.raw(rowA)
	l, err := format.DecodeLock(row.Newest(rowstore.Lock, "v").Value)
	require.NoError(t, err)
	require.Equal(t, format.NoticeCell(start), l.Primary)
	w.clock.advance(2 * worldExpiry)
	set(t, c.DB, queueA, "2")
	w.clock.advance(2 * shortRetention)
	_, err = w.collectWithin(c)
	require.NoError(t, err)
	require.Equal(t, "2 1", value(t, c, queueA)+" "+value(t, c, rowA))
}

// Guards: a Serializable transaction looks for the safe points of what it read once more, after
// it has looked for changes: its locks do not keep a collection from shorter tables.
func TestScheduleT_ValidationOvertakenByACollection(t *testing.T) {
	t.Parallel()
	for name, opts := range ways2 {
		for _, scanned := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, scanned %v", name, scanned), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				c, t1 := w.client(), w.client(append(opts, WithLockExpiry(time.Hour), WithSessionLease(time.Hour))...)
				w.shortened(c)
				set(t, c.DB, queueA, "1")
				tx := begin(t, t1, WithIsolation(Serializable))
				if scanned {
					for _, err := range tx.Scan(t.Context(), Range{Table: "queue"}) {
						require.NoError(t, err)
					}
				} else {
					_, err := tx.Get(t.Context(), queueA)
					require.NoError(t, err)
				}
				require.NoError(t, tx.Set(rowA, []byte("1")))
				require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(queueA) }))
				p := t1.hold(t, func(x *call) bool {
					return len(t1.wire.sent(prewrites)) > 0 && (x.Kind == faultstore.CallScan && x.Range.Table == "queue" || x.Kind == faultstore.CallRead && x.Reads[0].Table == "queue")
				})
				done := commit(t1, tx)
				p.wait()
				w.clock.advance(2 * shortRetention)
				_, err := w.collectWithin(c)
				require.NoError(t, err)
				row := w.raw(queueA)
				require.Empty(t, row.Versions, "the delete was to be collected")
				p.release(pass)
				err = w.finish(done)
				require.ErrorIs(t, err, ErrTxnTooOld)
				require.ErrorContains(t, err, `safe point of table "queue"`)
				require.Equal(t, "none", value(t, c, rowA))
			})
		}
	}
}

// Guards: a table that was just shortened is collected by its new retention only later; until then
// its locks do not keep a collection from other short tables, however long these are kept.
func TestScheduleT_ValidationInATableBesideAnUncleanOne(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		c, t1 := w.client(), w.client(append(opts, WithLockExpiry(10*time.Hour), WithSessionLease(10*time.Hour))...)
		longer := TableSettings{MaxTxnAge: shortAge, Retention: 5 * shortRetention}
		w.configuredTable(c, "queue", longer)
		w.cleaned(c)
		w.configuredTable(c, "t", short)
		v, err := c.loadCatalog(t.Context())
		require.NoError(t, err)
		require.False(t, v.clean("t"))
		set(t, c.DB, queueA, "1")
		tx := begin(t, t1, WithIsolation(Serializable))
		_, err = tx.Get(t.Context(), queueA)
		require.NoError(t, err)
		require.NoError(t, tx.Set(rowA, []byte("1")))
		require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(queueA) }))
		p := t1.hold(t, func(x *call) bool {
			return len(t1.wire.sent(prewrites)) > 0 && x.Kind == faultstore.CallRead && x.Reads[0].Table == "queue"
		})
		done := commit(t1, tx)
		p.wait()
		w.clock.advance(2 * longer.Retention)
		_, err = w.collectBy(c, GCOptions{Within: longer.Retention})
		require.NoError(t, err)
		row := w.raw(queueA)
		require.Empty(t, row.Versions, "the delete was to be collected")
		p.release(pass)
		require.ErrorIs(t, w.finish(done), ErrTxnTooOld)
		require.Equal(t, "none", value(t, c, rowA))
	})
}

// Guards: a collection of a short table resolves the locks that depend on its records, also in a table
// that is not collected by its own retention yet.
func TestScheduleT_LockInAnUncleanTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, t1 := w.client(), w.client(withoutGroups())
	longer := TableSettings{MaxTxnAge: shortAge, Retention: 5 * shortRetention}
	w.configuredTable(c, "queue", longer)
	w.cleaned(c)
	w.configuredTable(c, "t", short)
	t1.diesAfterCommitPoint()
	tx := writes(t, t1, "1", rowA, queueA)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, t1.drained(t.Context()))
	row := w.raw(rowA)
	require.NotEmpty(t, row.All(rowstore.Lock, "v"), "the primary lies in the table that is kept for longer")
	w.clock.advance(2 * worldExpiry)
	set(t, c.DB, queueA, "2")
	w.clock.advance(2 * longer.Retention)
	report, err := w.collectBy(c, GCOptions{Within: longer.Retention})
	require.NoError(t, err)
	require.Equal(t, 1, report.LocksResolved)
	require.False(t, c.view.Load().clean("t"))
	row = w.raw(queueA)
	require.Len(t, row.All(rowstore.Write, "v"), 1, "T1's record was to be collected")
	require.Equal(t, "2 1", value(t, c, queueA)+" "+value(t, c, rowA))
}

// Guards: what transactions by older settings have left is resolved in all tables before a table
// is collected alone.
func TestScheduleT_LockFromBeforeTheRetentionWasShortened(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("again %v", again), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c, t1 := w.client(), w.client(withoutGroups())
			if again {
				w.shortened(c)
				w.configuredTable(c, "queue", TableSettings{})
			}
			t1.wire.verdict(secondaries(queueA), die)
			tx := writes(t, t1, "1", queueA, rowA)
			start := startOf(tx)
			require.NoError(t, tx.Commit(t.Context()))
			require.NoError(t, t1.drained(t.Context()))
			w.clock.advance(2 * worldExpiry)
			set(t, c.DB, queueA, "2")
			w.configuredTable(c, "queue", short)
			w.clock.advance(2 * shortRetention)
			for _, collect := range []func() (GCReport, error){
				func() (GCReport, error) { return w.collectWithin(c) },
				func() (GCReport, error) { return w.collect(c, 0) },
			} {
				report, err := collect()
				require.NoError(t, err)
				require.Zero(t, report.LocksResolved, "transactions may still run that began before")
				safe, err := c.TableSafePoint(t.Context(), "queue")
				require.NoError(t, err)
				require.Less(t, safe, start)
			}
			report := w.cleaned(c)
			require.Equal(t, 1, report.LocksResolved)
			row := w.raw(queueA)
			require.Len(t, row.All(rowstore.Write, "v"), 1, "T1's record was to be collected")
			require.Equal(t, "2 1", value(t, c, queueA)+" "+value(t, c, rowA))
		})
	}
}

// Guards: a transaction that has chosen its primary by older settings does not commit by newer
// ones by which another table is kept for longer.
func TestScheduleT_SettingsChangedDuringACommit(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		c, t1 := w.client(), w.client(append(opts, WithLockExpiry(time.Hour), WithSessionLease(time.Hour))...)
		p := t1.hold(t, t1.commitDraw())
		tx := writes(t, t1, "1", queueA, rowA)
		t1.wire.AddRule(faultstore.Rule{Match: prewrites, Before: func(_ context.Context, x *call) verdict {
			x.Opts.AssignTimestamp = false
			return pass
		}})
		done := commit(t1, tx)
		p.wait()
		w.configuredTable(c, "queue", short)
		p.release(pass)
		require.ErrorIs(t, w.finish(done), ErrConflict)
		w.settled()
		// Again, and by the new settings.
		require.NoError(t, writes(t, t1, "1", queueA, rowA).Commit(t.Context()))
		w.settled()
		require.Equal(t, "1 1", value(t, c, queueA)+" "+value(t, c, rowA))
	})
}

// Guards: the least MaxTxnAge of the tables that are written or locked binds, as it is at the commit.
func TestScheduleT_AgeByTable(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c, t1 := w.client(), w.client(opts...)
		long := writes(t, t1, "1", rowA)
		both, locked := writes(t, t1, "1", queueA, rowB), writes(t, t1, "1", rowC)
		_, err := locked.GetForUpdate(t.Context(), queueB)
		require.ErrorIs(t, err, ErrNotFound)
		w.configuredTable(c, "queue", short)
		young := writes(t, t1, "2", queueA, rowB)
		w.clock.advance(shortAge + time.Second)
		for _, tx := range []*Txn{both, locked, young} {
			err := tx.Commit(t.Context())
			require.ErrorIs(t, err, ErrTxnTooOld)
			var tooOld *TxnTooOldError
			require.ErrorAs(t, err, &tooOld)
			require.Equal(t, shortAge, tooOld.MaxTxnAge)
		}
		require.NoError(t, long.Commit(t.Context()))
		require.NoError(t, writes(t, t1, "2", queueA, rowB).Commit(t.Context()))
		w.settled()
	})
}

// Two collect at once, and one of them is killed at any of its calls: what it leaves the other
// finishes, and nothing is torn.
func TestScheduleT_TwoCollectorsOneKilled(t *testing.T) {
	t.Parallel()
	for _, opts := range []GCOptions{{}, {Within: shortRetention}} {
		for at := 0; ; at++ {
			killed := collectorKilledAt(t, at, opts)
			if !killed {
				require.Greater(t, at, 8, "the collector was to be killed at several of its calls")
				break
			}
		}
	}
}

func collectorKilledAt(t *testing.T, at int, opts GCOptions) (killed bool) {
	t.Helper()
	w := newWorld(t)
	c, other, t1 := w.client(), w.client(), w.client(withoutGroups())
	w.shortened(c)
	t1.diesAfterCommitPoint()
	require.NoError(t, writes(t, t1, "1", queueA, rowA, queueB).Commit(t.Context()))
	require.NoError(t, t1.drained(t.Context()))
	w.clock.advance(2 * worldExpiry)
	set(t, c.DB, queueA, "2")
	w.stored(c)
	w.clock.advance(2 * worldRetention)
	n := 0
	other.wire.AddRule(faultstore.Rule{Match: anyCall, Skip: at, Before: func(context.Context, *call) verdict {
		n++
		return die
	}})
	first := async(func() error {
		_, err := other.CollectGarbage(context.Background(), opts)
		return err
	})
	second := async(func() error {
		_, err := c.CollectGarbage(context.Background(), opts)
		return err
	})
	for _, done := range []<-chan error{first, second} {
		require.Eventually(t, func() bool {
			select {
			case err := <-done:
				require.True(t, err == nil || n > 0 && done == first, "%v", err)
				return true
			default:
				w.clock.advance(worldLease)
				return false
			}
		}, patience, time.Millisecond)
	}
	require.Equal(t, "2 1 1", value(t, c, queueA)+" "+value(t, c, rowA)+" "+value(t, c, queueB))
	w.noLocks()
	row := w.raw(queueA)
	require.Len(t, row.All(rowstore.Write, "v"), 1)
	return n > 0
}

// The safe point of a table never goes back, whatever becomes of its settings.
func TestScheduleT_SafePointOutlivesTheSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	w.shortened(c)
	set(t, c.DB, queueA, "1")
	tx := begin(t, c)
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(queueA) }))
	w.clock.advance(2 * shortRetention)
	_, err := w.collectWithin(c)
	require.NoError(t, err)
	before, err := c.TableSafePoint(t.Context(), "queue")
	require.NoError(t, err)
	w.configuredTable(c, "queue", TableSettings{})
	require.Empty(t, c.TableSettings())
	w.configuredTable(c, "other", short)
	w.cleaned2(c, "other") // the safe points of tables are stored anew
	after, err := c.TableSafePoint(t.Context(), "queue")
	require.NoError(t, err)
	require.Equal(t, before, after)
	for _, reader := range []*client{c, w.client()} {
		_, err := begin(t, reader, WithAsOfTimestamp(startOf(tx))).Get(t.Context(), queueA)
		require.ErrorIs(t, err, ErrSnapshotTooOld, "the value that it had is gone")
	}
	// Once the others have come as far, nothing is left of it.
	w.clock.advance(2 * worldRetention)
	for range 2 { // what is stored is by the safe point of before
		_, err = w.collect(c, 0)
		require.NoError(t, err)
		w.clock.advance(worldLease)
	}
	require.NotContains(t, c.view.Load().points, "queue")
}

// cleaned2 is cleaned for another table.
func (w *world) cleaned2(c *client, table string) {
	w.t.Helper()
	w.clock.advance(worldAge + worldLease)
	_, err := w.collect(c, 0)
	require.NoError(w.t, err)
	require.True(w.t, c.view.Load().clean(table))
}

// Nobody is told "not committed" of a transaction whose record may have gone with a short table.
func TestScheduleT_FateAskedBelowTheTablesSafePoint(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c, t1 := w.client(), w.client(opts...)
		w.shortened(c)
		p := t1.holdReply(t, commitPoint(queueA), loseReply)
		tx := writes(t, t1, "1", queueA, queueB)
		start := startOf(tx)
		done := commit(t1, tx)
		p.wait()
		set(t, c.DB, queueA, "2")
		w.clock.advance(2 * shortRetention)
		_, err := w.collectWithin(c)
		require.NoError(t, err)
		row := w.raw(queueA)
		require.Len(t, row.All(rowstore.Write, "v"), 1, "T1's record was to be collected")
		p.release(pass)
		err = w.finish(done)
		require.ErrorIs(t, err, ErrUndetermined)
		require.NotErrorIs(t, err, ErrConflict)
		_, err = c.Outcome(t.Context(), start, queueA)
		require.ErrorIs(t, err, ErrSnapshotTooOld)
		require.Equal(t, "2 1", value(t, c, queueA)+" "+value(t, c, queueB))
	})
}

// No commit below the safe point of a table that is written or validated, whatever its age: that the
// ages keep it from that is the collection's business, and a collection may err.
func TestScheduleT_NoCommitBelowTheSafePointOfATable(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		set(t, c.DB, queueA, "0")
		written := writes(t, t1, "below", queueA, rowA)
		validated := begin(t, t1, WithIsolation(Serializable))
		_, err := validated.Get(t.Context(), queueA)
		require.NoError(t, err)
		require.NoError(t, validated.Set(rowB, []byte("below")))
		elsewhere := writes(t, t1, "below", rowC)
		safe, err := c.draw(t.Context())
		require.NoError(t, err)
		require.NoError(t, c.publishPoints(t.Context(), map[string]Timestamp{"queue": safe}))
		_, err = t1.loadCatalog(t.Context()) // which a lease would do in time
		require.NoError(t, err)
		for _, tx := range []*Txn{written, validated} {
			err := tx.Commit(t.Context())
			require.ErrorIs(t, err, ErrTxnTooOld)
			require.ErrorContains(t, err, `safe point of table "queue"`, "not that it took longer than MaxTxnAge")
			var tooOld *TxnTooOldError
			require.ErrorAs(t, err, &tooOld)
			require.Equal(t, safe, tooOld.SafePoint)
			require.Equal(t, "queue", tooOld.Table)
		}
		require.NoError(t, elsewhere.Commit(t.Context()))
		require.Equal(t, "0 none none below", value(t, c, queueA)+" "+value(t, c, rowA)+" "+value(t, c, rowB)+" "+value(t, c, rowC))
	})
}

// Two processes change settings at the same moment: who is told that a change was made has made it.
func TestScheduleT_TwoChangesOfTheSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, other := w.client(), w.client()
	changes := func(x *call) bool {
		return edits(x, func(m *rowstore.Mutation, e *rowstore.Edit) bool {
			return m.Table == format.TableCatalog && e.Column == format.ColumnConfig
		})
	}
	before := len(c.wire.sent(changes))
	// Between the announcement of the change and its time.
	p := c.hold(t, func(x *call) bool { return x.Kind == faultstore.CallDraw && len(c.wire.sent(changes)) > before })
	first := async(func() error { return c.ConfigureTable(context.Background(), "queue", short) })
	p.wait()
	err2 := other.ConfigureTable(t.Context(), "other", short)
	p.release(pass)
	err1 := w.finish(first)
	w.pass(2*worldLease + time.Second)
	settings := w.client().TableSettings()
	for table, err := range map[string]error{"queue": err1, "other": err2} {
		if err == nil {
			require.Contains(t, settings, table)
		} else {
			require.ErrorIs(t, err, ErrInvalid)
			require.ErrorContains(t, err, "another change")
		}
	}
	require.NotEmpty(t, settings)
}
