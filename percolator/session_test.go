package percolator

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// expiryOf is the expiry on a cell's lock, 0 without one.
func (w *world) expiryOf(cell Cell) Timestamp {
	w.t.Helper()
	row := w.raw(cell)
	v := row.Newest(rowstore.Lock, cell.Column)
	if v == nil {
		return 0
	}
	l, err := format.DecodeLock(v.Value)
	require.NoError(w.t, err)
	return l.Expiry
}

// passWithHeartbeats lets time pass while a commit is held: its heartbeats, and
// every session, go on.
func (w *world) passWithHeartbeats(d time.Duration, cell Cell) {
	w.t.Helper()
	for ; d > 0; d -= time.Second {
		_, ended := w.clock.sleeps(w.t, worldExpiry/3, nil)
		require.False(w.t, ended)
		before, due := w.expiryOf(cell), false
		w.clock.mu.Lock()
		for s := range w.clock.sleepers {
			due = due || s.d == worldExpiry/3 && !s.until.After(w.clock.now.Add(time.Second))
		}
		w.clock.mu.Unlock()
		w.pass(time.Second)
		if due {
			require.Eventually(w.t, func() bool { return w.expiryOf(cell) > before }, patience, time.Millisecond, "no heartbeat")
		}
	}
}

// A commit that takes long keeps its lock alive, well beyond the expiry that it was
// put with, and commits.
func TestHeartbeatKeepsALongCommitAlive(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		// By the time that it is held this long its knowledge of the catalog would be
		// old; so the lease is long here.
		c := w.client(WithSettings(Settings{MaxTxnAge: worldAge, Retention: worldRetention, CatalogLease: worldAge}))
		t1 := w.client(opts...)
		p := t1.hold(t, commitPoint(rowA))
		done := commit(t1, writes(t, t1, "1", rowA, rowB))
		p.wait()
		first := w.expiryOf(rowA)
		require.Equal(t, first, w.expiryOf(rowB))
		w.passWithHeartbeats(5*worldExpiry, rowA)
		require.Greater(t, w.expiryOf(rowA), first.Add(4*worldExpiry))
		require.Equal(t, first, w.expiryOf(rowB), "only the primary's lock is renewed")
		now, err := c.Now(t.Context())
		require.NoError(t, err)
		require.Less(t, first, now, "the lock was to be kept beyond its first expiry")
		// Others wait, whichever cell they meet.
		for _, cell := range []Cell{rowA, rowB} {
			ctx, cancel := context.WithCancel(t.Context())
			met := c.Stats().LocksMet
			reading := async(func() error {
				return c.View(ctx, func(tx *Txn) error { _, err := tx.Get(ctx, cell); return err })
			})
			require.Eventually(t, func() bool { return c.Stats().LocksMet > met+3 }, patience, time.Millisecond)
			cancel()
			require.ErrorIs(t, w.finish(reading), context.Canceled)
		}
		require.Zero(t, c.Stats().RolledBackExpired+c.Stats().RolledBackSessionGone+c.Stats().RolledBack)
		p.release(pass)
		require.NoError(t, w.finish(done))
		require.Equal(t, "1 1", value(t, c, rowA)+" "+value(t, c, rowB))
	})
}

// What a dead client left waits for its session's lease, and no longer.
func TestDeadClientIsResolvedAfterItsSessionLease(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		dead, c := w.client(opts...), w.client()
		dead.wire.verdict(commitPoint(rowA), die)
		require.Error(t, writes(t, dead, "dead", rowA, rowB).Commit(t.Context()))
		require.NoError(t, dead.drained(t.Context()))
		w.pass(worldSession - time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waiting := async(func() error {
			return c.View(ctx, func(tx *Txn) error {
				if _, err := tx.Get(ctx, rowB); !errors.Is(err, ErrNotFound) {
					return errors.Join(err, errors.New("read a value"))
				}
				return nil
			})
		})
		require.Eventually(t, func() bool { return c.Stats().LocksMet > 3 }, patience, time.Millisecond)
		require.Zero(t, c.Stats().RolledBackSessionGone)
		w.pass(2 * time.Second)
		require.NoError(t, w.finish(waiting))
		s := c.Stats()
		require.EqualValues(t, 1, s.RolledBackSessionGone)
		require.Zero(t, s.RolledBackExpired)
		require.EqualValues(t, 2, s.RolledBack, "the primary and the cell that was met")
		w.noLocks()
	})
}

// A process that lives and has forgotten a transaction keeps nobody waiting beyond
// the lock's expiry.
func TestForgottenLockIsResolvedAfterItsExpiry(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		// Its prewrite arrives long after it gave up and aborted: only the secondary's
		// lock is put, since the primary is fenced.
		ctx, cancel := context.WithCancel(t.Context())
		t1.wire.AddRule(faultstore.Rule{Match: prewrites, Before: func(context.Context, *call) verdict { cancel(); return lose }})
		require.ErrorIs(t, writes(t, t1, "1", rowA, rowB).Commit(ctx), context.Canceled)
		require.NoError(t, t1.drained(t.Context()))
		// And one whose abort does not get through.
		tx := writes(t, t1, "1", rowC, row("d"))
		ctx, cancel = context.WithCancel(t.Context())
		t1.wire.AddRule(faultstore.Rule{Match: func(x *call) bool {
			return x.Kind == faultstore.CallApply && !prewrites(x) && (on(rowC)(x) || on(row("d"))(x))
		}, Times: 1 << 30, Before: func(context.Context, *call) verdict {
			cancel()
			return refuse
		}})
		t1.wire.verdict(t1.commitDraw(), refuse)
		require.ErrorIs(t, tx.Commit(ctx), faultstore.ErrInjected)
		require.Len(t, w.versions(rowstore.Lock), 2)
		w.pass(worldExpiry - time.Second)
		now, err := c.Now(t.Context())
		require.NoError(t, err)
		rows, err := w.mem.Read(t.Context(), []rowstore.RowRead{sessionRead(t1.session.id)})
		require.NoError(t, err)
		require.True(t, sessionValid(&rows[0], now), "the process lives")
		short, stop := context.WithCancel(t.Context())
		waiting := async(func() error {
			return c.View(short, func(tx *Txn) error { _, err := tx.Get(short, row("d")); return err })
		})
		require.Eventually(t, func() bool { return c.Stats().LocksMet > 3 }, patience, time.Millisecond)
		stop()
		require.ErrorIs(t, w.finish(waiting), context.Canceled)
		w.pass(2 * time.Second)
		require.Equal(t, "none none", value(t, c, row("d"))+" "+value(t, c, rowC))
		s := c.Stats()
		require.EqualValues(t, 1, s.RolledBackExpired)
		require.Zero(t, s.RolledBackSessionGone)
		require.EqualValues(t, 2, s.RolledBack)
		w.noLocks()
	})
}

// A session that its process can not renew is not used for another commit before it
// is valid again.
func TestLostSessionIsRenewedBeforeACommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client(withoutGroups())
	set(t, c.DB, rowA, "1")
	renewals := func(x *call) bool {
		return x.Kind == faultstore.CallApply && x.Mutations()[0].Table == format.TableSessions
	}
	require.Len(t, c.wire.sent(renewals), 1)
	r := c.wire.AddRule(faultstore.Rule{Match: renewals, Times: 1 << 30, Fault: refuse})
	w.pass(2 * worldSession)
	err := writes(t, c, "2", rowA).Commit(t.Context())
	require.ErrorIs(t, err, faultstore.ErrInjected, "without a session nothing may be locked")
	require.Empty(t, w.versions(rowstore.Lock))
	r.Remove()
	p := c.hold(t, commitPoint(rowA))
	done := commit(c, writes(t, c, "3", rowA))
	p.wait()
	now, err := c.Now(t.Context())
	require.NoError(t, err)
	rows, err := w.mem.Read(t.Context(), []rowstore.RowRead{sessionRead(c.session.id)})
	require.NoError(t, err)
	require.True(t, sessionValid(&rows[0], now.Add(worldSession/2)), "half of the lease is left at least")
	p.release(pass)
	require.NoError(t, w.finish(done))
}

// Processes that only read, or commit in one phase, have no session. One session
// serves all commits, opened once however many ask for it.
func TestSessionIsOpenedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.client(), w.client(withoutGroups())
	sessions := func(c *client) int {
		return len(c.wire.sent(func(x *call) bool {
			return x.Kind == faultstore.CallApply && x.Mutations()[0].Table == format.TableSessions
		}))
	}
	set(t, one.DB, rowA, "1")
	require.Equal(t, "1", value(t, one, rowA))
	require.Zero(t, sessions(one))
	require.EqualValues(t, 1, one.Stats().OnePhase)
	p := two.hold(t, func(x *call) bool {
		return x.Kind == faultstore.CallApply && x.Mutations()[0].Table == format.TableSessions
	})
	var commits []<-chan error
	for i := range 8 {
		commits = append(commits, commit(two, writes(t, two, "2", row(string(rune('a'+i))))))
	}
	p.wait()
	// One that gives up does not take the others with it.
	ctx, cancel := context.WithCancel(t.Context())
	tx := writes(t, two, "3", row("z"))
	gone := async(func() error { return tx.Commit(ctx) })
	cancel()
	require.ErrorIs(t, w.finish(gone), context.Canceled)
	p.release(pass)
	for _, done := range commits {
		require.NoError(t, w.finish(done))
	}
	require.Equal(t, 1, sessions(two))
}

// Close waits for a renewal that is under way: one that was cancelled could still arrive
// after the session was removed, and leave its row behind.
func TestCloseWaitsForARenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lease, takes = 30 * time.Second, time.Second
		g := newGauge(rowstore.Limits{})
		var calls atomic.Int64 // that open, renew and remove the session
		g.slow = func(muts []rowstore.Mutation) time.Duration {
			if muts[0].Table == format.TableSessions && calls.Add(1) == 2 {
				return takes
			}
			return 0
		}
		db, _, end := bubble(t, g, WithSessionLease(lease))
		defer end()
		set(t, db, rowA, "1")
		require.NoError(t, db.drained(t.Context()))
		require.EqualValues(t, 1, calls.Load())
		for calls.Load() == 1 {
			time.Sleep(takes / 4)
		}
		began := time.Now()
		require.NoError(t, db.Close(t.Context()))
		require.Greater(t, time.Since(began), takes/2, "the renewal was cut off")
		require.EqualValues(t, 3, calls.Load(), "the session was not removed")
	})
}
