package percolator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules of what sessions say of their locks, by which a collection decides whether it looks for locks
// (unresolved.go). In each of them T1 commits on A, with a lock left on B, and A is
// overwritten: if a collection removed T1's record and left the lock, B would lose T1's write.

// renewals are the calls that renew sessions.
func renewals(x *call) bool {
	return x.Kind == faultstore.CallApply && x.Mutations()[0].Table == format.TableSessions
}

// said is what the session of a client says in the store; ok is false if it has no row.
func (w *world) said(c *client) (s format.Session, ok bool) {
	w.t.Helper()
	rows, err := w.mem.Read(w.t.Context(), []rowstore.RowRead{sessionRead(c.session.id)})
	require.NoError(w.t, err)
	v := rows[0].Newest(rowstore.Write, format.ColumnLease)
	if v == nil {
		return s, false
	}
	s, err = format.DecodeSession(v.Value)
	require.NoError(w.t, err)
	return s, true
}

// without forgets a client: pass does not wait for its renewals.
func (w *world) without(c *client) {
	w.clients = slices.DeleteFunc(w.clients, func(other *client) bool { return other == c })
}

// notTorn overwrites A, collects what is old, and wants B to have what T1 wrote. It returns the
// collection's report.
func (w *world) notTorn() GCReport {
	w.t.Helper()
	c := w.client()
	set(w.t, c.DB, rowA, "2")
	w.pass(worldSession)
	w.clock.advance(worldRetention + worldAge)
	report, err := w.collect(c, 0)
	require.NoError(w.t, err)
	row := w.raw(rowA)
	require.Len(w.t, row.All(rowstore.Write, "v"), 1, "T1's record was to be collected")
	require.Equal(w.t, "1", value(w.t, c, rowB))
	w.noLocks()
	return report
}

// notLeft collects when the safe point has just passed the beginning of a transaction that has left a lock. No
// lock from below a safe point may be left: observers of old values rely on it. By then the record of the transaction
// is not collected, so that what its session said long before may be above the safe point.
func (w *world) notLeft(tx *Txn) {
	w.t.Helper()
	gc := w.client()
	at := startOf(tx).Add(worldAge + worldLease + 100*time.Millisecond)
	row := w.raw(rowB)
	require.Len(w.t, row.All(rowstore.Lock, "v"), 1)
	w.clock.advance(at.Sub(mustNow(w.t, gc)))
	report, err := w.collect(gc, 1)
	require.NoError(w.t, err)
	require.Greater(w.t, report.SafePoint, startOf(tx))
	require.Less(w.t, report.SafePoint, startOf(tx).Add(10*time.Second))
	require.True(w.t, report.LocksSearched)
	require.Equal(w.t, 1, report.LocksResolved)
	row = w.raw(rowB)
	require.Empty(w.t, row.All(rowstore.Lock, "v"))
}

// Guards: locks are not looked for while all sessions say that there are none, and none was killed. One that
// was killed costs a search, and is forgotten then.
func TestScheduleL_Searches(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		lives, ends, killed, gc := w.client(opts...), w.client(opts...), w.client(opts...), w.client()
		collect := func() bool {
			w.pass(worldSession)
			report, err := w.collect(gc, 0)
			require.NoError(t, err)
			require.Zero(t, report.LocksResolved)
			return report.LocksSearched
		}
		for _, c := range []*client{lives, ends, killed} {
			require.NoError(t, writes(t, c, "1", rowA, rowB).Commit(t.Context()))
			require.NoError(t, c.drained(t.Context()))
		}
		require.NoError(t, ends.Close(t.Context()))
		w.without(ends)
		require.False(t, collect())
		killed.wire.AddRule(faultstore.Rule{Match: anyCall, Times: -1, Fault: die})
		w.clock.advance(worldRetention + worldAge)
		require.True(t, collect(), "it may have left a lock")
		_, there := w.said(killed)
		require.False(t, there)
		for range 3 {
			w.clock.advance(worldRetention / 10)
			require.False(t, collect())
		}
		require.EqualValues(t, 1, gc.Stats().GCSearches)
	})
}

// Guards: a transaction that began below what its session has said takes that back before its first prewrite.
func TestScheduleL_OldTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1 := w.client(withoutGroups())
	set(t, t1.DB, rowC, "1")
	tx := writes(t, t1, "1", rowA, rowB)
	w.pass(time.Minute)
	said, _ := w.said(t1)
	require.Greater(t, said.Resolved, startOf(tx).Add(20*time.Second))
	t1.wire.verdict(secondaries(rowA), die)
	require.NoError(t, tx.Commit(t.Context()))
	said, _ = w.said(t1)
	require.LessOrEqual(t, said.Resolved, startOf(tx))
	w.notLeft(tx)
}

// Guards: a renewal that arrives late does not say again what was taken back meanwhile.
func TestScheduleL_LateRenewal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1 := w.client(withoutGroups())
	set(t, t1.DB, rowC, "1")
	tx := writes(t, t1, "1", rowA, rowB)
	w.pass(time.Minute)
	p := t1.hold(t, renewals)
	w.clock.advance(worldSession / 3)
	late := p.wait() // it says that all is resolved
	t1.wire.verdict(secondaries(rowA), die)
	require.NoError(t, tx.Commit(t.Context()))
	again(t, late)
	p.release(lose)
	said, _ := w.said(t1)
	require.LessOrEqual(t, said.Resolved, startOf(tx))
	w.notLeft(tx)
}

// Guards: a transaction takes back what a renewal under way may come to say. The session's lease lasts, so there is
// no other reason to renew it.
func TestScheduleL_RenewalUnderWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1 := w.client(withoutGroups())
	set(t, t1.DB, rowC, "1")
	tx := writes(t, t1, "1", rowA, rowB)
	w.pass(worldSession + 500*time.Millisecond)
	said, _ := w.said(t1)
	require.LessOrEqual(t, said.Resolved, startOf(tx), "nothing is to be taken back yet")
	p := t1.hold(t, renewals)
	renewal := async(func() error { return t1.session.renew(context.Background()) })
	late := p.wait()
	t1.wire.verdict(secondaries(rowA), die)
	require.NoError(t, tx.Commit(t.Context()))
	again(t, late)
	p.release(lose)
	_ = w.finish(renewal)
	said, _ = w.said(t1)
	require.LessOrEqual(t, said.Resolved, startOf(tx))
	w.notLeft(tx)
}

// Guards: a transaction waits for a renewal that covers it, also if another one is under way, begun for others.
func TestScheduleL_RenewalForOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1 := w.client(withoutGroups())
	old := writes(t, t1, "1", rowA, rowB)
	w.clock.advance(time.Minute)
	p := t1.hold(t, renewals)
	young := commit(t1, writes(t, t1, "1", rowC, row("d")))
	p.wait()
	done := commit(t1, old)
	require.Eventually(t, func() bool {
		t1.session.mu.Lock()
		defer t1.session.mu.Unlock()
		return len(t1.session.unresolved.open) == 2
	}, patience, time.Millisecond)
	t1.wire.verdict(commitPoint(rowB), die)
	p.release(pass)
	_ = w.finish(young) // the process may die before
	require.NoError(t, w.finish(done))
	said, _ := w.said(t1)
	require.LessOrEqual(t, said.Resolved, startOf(old))
	w.notLeft(old)
}

// Guards: a renewal counts although the one before asked for a longer lease.
func TestScheduleL_ShorterLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1 := w.client(withoutGroups())
	set(t, t1.DB, rowC, "1")
	tx := writes(t, t1, "1", rowA, rowB)
	w.pass(worldSession + time.Second)
	slow := func(d, most time.Duration) {
		t1.session.mu.Lock()
		defer t1.session.mu.Unlock()
		t1.session.slow, t1.session.most = d, most
	}
	slow(time.Minute, time.Hour)
	require.NoError(t, t1.session.renew(t.Context()))
	slow(0, 0)
	said, _ := w.said(t1)
	require.Greater(t, said.Resolved, startOf(tx))
	t1.wire.verdict(secondaries(rowA), die)
	require.NoError(t, tx.Commit(t.Context()))
	said, _ = w.said(t1)
	require.LessOrEqual(t, said.Resolved, startOf(tx))
	w.notLeft(tx)
}

// Guards: the reply to an older renewal says nothing of what the session's row says.
func TestScheduleL_LateReply(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1 := w.client(withoutGroups())
	set(t, t1.DB, rowC, "1")
	tx := writes(t, t1, "1", rowA, rowB)
	w.pass(worldSession - 500*time.Millisecond)
	p := t1.holdReply(t, renewals, pass)
	older := async(func() error { return t1.session.renew(context.Background()) })
	p.wait()
	said, _ := w.said(t1)
	require.LessOrEqual(t, said.Resolved, startOf(tx))
	w.clock.advance(time.Second)
	require.NoError(t, t1.session.renew(t.Context()))
	said, _ = w.said(t1)
	require.Greater(t, said.Resolved, startOf(tx))
	p.release(pass)
	require.NoError(t, w.finish(older))
	t1.wire.verdict(secondaries(rowA), die)
	require.NoError(t, tx.Commit(t.Context()))
	said, _ = w.said(t1)
	require.LessOrEqual(t, said.Resolved, startOf(tx))
	w.notLeft(tx)
}

// Guards: a session says nothing of locks whose removal a crash of the store has undone, nor is it removed then. Without a
// crash it says so.
func TestScheduleL_CrashAfterSecondaries(t *testing.T) {
	t.Parallel()
	for _, crash := range []bool{false, true} {
		for _, ends := range []bool{false, true} {
			t.Run(fmt.Sprintf("crash %v, ends %v", crash, ends), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				t1 := w.client(withoutGroups())
				tx := writes(t, t1, "1", rowA, rowB)
				require.NoError(t, tx.Commit(t.Context()))
				require.NoError(t, t1.drained(t.Context()))
				w.noLocks()
				if crash {
					w.mem.Crash()
					row := w.raw(rowB)
					require.Len(t, row.All(rowstore.Lock, "v"), 1)
				}
				if ends {
					require.NoError(t, t1.Close(t.Context()))
					w.without(t1)
					_, there := w.said(t1)
					require.Equal(t, crash, there)
				} else {
					w.pass(3 * worldSession)
					said, _ := w.said(t1)
					require.Equal(t, !crash, said.Resolved > startOf(tx))
				}
				require.Equal(t, crash, w.notTorn().LocksSearched)
			})
		}
	}
}

// Guards: of two renewals at once neither says what a crash has undone.
func TestScheduleL_CrashBetweenTwoRenewals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1 := w.client(withoutGroups())
	tx := writes(t, t1, "1", rowA, rowB)
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, t1.drained(t.Context()))
	w.clock.advance(worldSession/3 - time.Second)
	p := t1.hold(t, renewals)
	older := async(func() error { return t1.session.renew(context.Background()) })
	p.wait()
	w.mem.Crash()
	w.clock.advance(2 * worldSession)
	require.NoError(t, t1.session.renew(t.Context()))
	p.release(pass)
	require.NoError(t, w.finish(older))
	said, _ := w.said(t1)
	require.LessOrEqual(t, said.Resolved, startOf(tx))
	require.True(t, w.notTorn().LocksSearched)
}

// Guards: locks that a process gave up are known to collections while it lives, and after it has ended.
func TestScheduleL_GivenUp(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{false, true} {
		w := newWorld(t)
		t1 := w.client(withoutGroups(), withoutDeferred())
		r := t1.wire.AddRule(faultstore.Rule{Match: secondaries(rowA), Times: -1, Before: func(context.Context, *call) verdict {
			w.clock.advance(worldLease + worldSession)
			return refuse
		}})
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		require.NoError(t, writes(t, t1, "1", rowA, rowB).Commit(ctx))
		require.Eventually(t, func() bool {
			t1.session.mu.Lock()
			defer t1.session.mu.Unlock()
			return len(t1.session.unresolved.left) > 0
		}, patience, time.Millisecond)
		r.Remove()
		cancel()
		if ends {
			require.NoError(t, t1.Close(t.Context()))
			w.without(t1)
			_, there := w.said(t1)
			require.True(t, there, "nobody would know of the lock")
		}
		require.True(t, w.notTorn().LocksSearched)
		if !ends {
			_, err := t1.loadCatalog(t.Context())
			require.NoError(t, err)
		}
		w.clock.advance(worldRetention / 10)
		w.pass(2 * worldLease)
		report, err := w.collect(w.clients[len(w.clients)-1], 0)
		require.NoError(t, err)
		require.False(t, report.LocksSearched, "they are resolved")
	}
}

// Guards: no transaction prewrites under a session that a collection may have removed.
func TestScheduleL_SessionIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stands := &fakeClock{now: w.clock.Now(), sleepers: map[*sleeper]struct{}{}, changed: make(chan struct{})}
	t1, gc := w.client(withoutGroups(), WithClock(stands)), w.client()
	w.without(t1) // its time does not pass
	set(t, t1.DB, rowC, "1")
	w.clock.advance(2 * worldRetention)
	_, err := w.collect(gc, 0)
	require.NoError(t, err)
	_, there := w.said(t1)
	require.False(t, there)
	t1.wire.verdict(secondaries(rowA), die)
	require.NoError(t, writes(t, t1, "1", rowA, rowB).Commit(t.Context()))
	require.True(t, w.notTorn().LocksSearched)
}

// Guards: a process that is suspended between its prewrites and its commit, for longer than everything is kept, commits nothing
// that a collection has passed, though the session is gone and its clock has stood still.
func TestScheduleL_SuspendedBeforeTheCommit(t *testing.T) {
	t.Parallel()
	for name, held := range map[string]matcher{"first prewrite": prewrites, "commit point": commitPoint(rowA)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			set(t, w.client().DB, rowA, "0")
			stands := &fakeClock{now: w.clock.Now(), sleepers: map[*sleeper]struct{}{}, changed: make(chan struct{})}
			t1, gc := w.client(withoutGroups(), withoutDeferred(), WithClock(stands)), w.client()
			w.without(t1) // its time does not pass
			p := t1.hold(t, held)
			done := commit(t1, writes(t, t1, "1", rowA, rowB))
			p.wait()
			w.clock.advance(2 * worldRetention)
			report, err := w.collect(gc, 0)
			require.NoError(t, err)
			require.True(t, report.LocksSearched)
			_, there := w.said(t1)
			require.False(t, there)
			w.clock.advance(worldRetention)
			_, err = w.collect(gc, 0)
			require.NoError(t, err)
			p.release(pass)
			require.Error(t, w.finish(done))
			require.NoError(t, t1.drained(t.Context()))
			require.Equal(t, "0 none", value(t, gc, rowA)+" "+value(t, gc, rowB))
			w.noLocks()
		})
	}
}

// Guards: a session that says nothing, of an older program, costs a search.
func TestScheduleL_SessionOfAnOlderProgram(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1 := w.client(withoutGroups())
	t1.wire.verdict(secondaries(rowA), die)
	require.NoError(t, writes(t, t1, "1", rowA, rowB).Commit(t.Context()))
	ends := startOf(writes(t, w.client(), "", rowC)).Add(worldSession)
	for _, e := range []rowstore.Edit{
		rowstore.DeleteRange(rowstore.Write, format.ColumnLease, 0, oracle.Max),
		rowstore.Put(rowstore.Write, format.ColumnLease, ends, format.TimestampOnly),
	} {
		_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableSessions, Row: t1.session.id, Edits: []rowstore.Edit{e}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
	}
	require.True(t, w.notTorn().LocksSearched)
}

// Guards: a transaction whose locks were left counts until a collection has looked for them, however many were left since. A session that leaves locks more
// often than once in a retention has each of them looked for once.
func TestScheduleL_LeftNowAndThen(t *testing.T) {
	t.Parallel()
	const left, between = 4, 4 // between: collections from one to the next
	w := newWorld(t)
	c := w.client(withoutGroups())
	set(t, c.DB, rowA, "x")
	searched, last := 0, false
	for i := range between * (left + 3) {
		if i%between == 0 && i < between*left { // more often than once in a retention
			tx := begin(t, c)
			start := startOf(tx)
			c.session.begin(start)
			_, err := c.session.get(t.Context(), start)
			require.NoError(t, err)
			c.session.finish(start, false, "")
			require.NoError(t, tx.Rollback(t.Context()))
		}
		w.pass(worldRetention / (between + 1))
		report, err := w.collectBy(c, GCOptions{})
		require.NoError(t, err)
		if last = report.LocksSearched; last {
			searched++
		}
	}
	require.GreaterOrEqual(t, searched, left)
	require.LessOrEqual(t, searched, left+1, "once for each, and once before the catalog is raised")
	require.False(t, last)
}

// What a session has left is known in few spans, whatever comes in which order. None of what is not resolved is forgotten, and all that is.
func TestLeftSpans(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // a seed
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test
	for range 20 {
		var u unresolved
		var left []Timestamp
		resolved, most := Timestamp(0), 1+r.IntN(4*mostLeftSpans)
		for range 1000 {
			from := resolved + Timestamp(1+r.IntN(most))
			to := from + Timestamp(r.IntN(3))
			u.leave(from, to)
			left = append(left, from, to)
			if r.IntN(10) == 0 {
				resolved += Timestamp(r.IntN(most))
			}
			left = slices.DeleteFunc(left, func(at Timestamp) bool { return at < resolved })
			some, below := u.any(resolved), u.below(oracle.Max, resolved)
			require.LessOrEqual(t, len(u.left), mostLeftSpans)
			if len(left) > 0 {
				require.True(t, some)
				require.LessOrEqual(t, below, slices.Min(left))
			}
			for i := range u.left {
				require.GreaterOrEqual(t, u.left[i].to, max(resolved, u.left[i].from))
				require.True(t, i == 0 || u.left[i-1].to < u.left[i].from, "%v", u.left)
			}
			for _, at := range left {
				require.True(t, slices.ContainsFunc(u.left, func(s leftSpan) bool { return s.from <= at && at <= s.to }), "%d of %v", at, u.left)
			}
		}
		require.False(t, u.any(oracle.Max))
		require.Equal(t, Timestamp(7), u.below(7, oracle.Max))
	}
}
