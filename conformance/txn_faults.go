package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// suspendedClientCannotCommit has a client stop before its commit point for longer
// than its leases, and be rolled back; then it goes on.
func suspendedClientCannotCommit(t testing.TB, e *env) {
	e.eachLockingWay(t, func(w *world) {
		others := w.db()
		w.set(others, one, "10", two, "20")
		for !suspended(w, others) { // a stall can end the lease before the commit point
		}
		require.Empty(w, w.settled(others))
	})
}

func suspended(w *world, others *percolator.DB) (reachedCommitPoint bool) {
	w.Helper()
	db, c := w.client(shortLease()...)
	tx := w.begin(db)
	w.write(tx, one, "11", two, "21")
	// Nothing leaves a suspended process, no heartbeat either.
	reached, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var asleep atomic.Bool
	c.on(func(ctx context.Context, cl *call) fate {
		if commits(cl, tx) {
			once.Do(func() {
				asleep.Store(true)
				close(reached)
			})
		}
		if asleep.Load() {
			select {
			case <-release:
			case <-ctx.Done():
			case <-w.ctx.Done():
			}
		}
		return goesThrough
	})
	done := make(chan error, 1)
	go func() { done <- tx.Commit(w.ctx) }()
	select {
	case <-reached:
	case err := <-done:
		require.ErrorIs(w, err, percolator.ErrConflict)
		return false
	case <-w.ctx.Done():
		w.Fatalf("the commit did not come to its commit point")
	}
	require.Equal(w, []string{"10", "20"}, w.now(others, one, two))
	w.set(others, two, "22")
	asleep.Store(false)
	close(release)
	err := <-done
	require.ErrorIs(w, err, percolator.ErrConflict, "it was rolled back meanwhile")
	require.Equal(w, []string{"10", "22"}, w.now(others, one, two))
	require.NoError(w, db.Close(w.ctx))
	return true
}

// storeCrashInACommit crashes a store that defers between the prewrites and the
// commit point: some prewrites are lost, the client survives.
func storeCrashInACommit(t testing.TB, e *env) {
	e.in(t, "TwoPhase", []percolator.Option{coretest.WithoutGroups()}, func(w *world) {
		ability[rowstore.Deferrer](w, w.inner, "Deferrer")
		crash := ability[rowstore.Crasher](w, w.inner, "Crasher")
		db, c := w.client()
		w.set(db, one, "0", two, "0")
		aborted := 0
		var crashes atomic.Int64
		for i := range e.n(20, 8) {
			v := fmt.Sprint(i + 1)
			before := w.now(db, one, two)
			tx := w.begin(db)
			w.write(tx, one, v, two, v)
			// At one of the calls from the first prewrite to the commit point.
			var n atomic.Int64
			c.on(func(_ context.Context, cl *call) fate {
				if (prewrites(cl) || n.Load() > 0) && n.Add(1) == int64(i%4+1) {
					crashes.Add(1)
					crash.Crash()
				}
				return goesThrough
			})
			err := tx.Commit(w.ctx)
			c.on(nil)
			got := w.now(w.db(), one, two)
			switch {
			case err == nil:
				require.Equal(w, []string{v, v}, got, "a transaction that was acknowledged is whole")
			case errors.Is(err, percolator.ErrConflict):
				require.Equal(w, before, got)
				aborted++
			default:
				require.NoError(w, err)
			}
		}
		require.Positive(w, crashes.Load())
		require.Positive(w, aborted, "no crash hit a commit")
		w.Logf("%d crashes, %d commits aborted", crashes.Load(), aborted)
	})
}

func lostReplyTests() []test {
	return []test{
		{"LostReplies10", LostReplies, func(t testing.TB, e *env) { lostReplies(t, e, 0.10) }},
		{"LostReplies30", LostReplies, func(t testing.TB, e *env) { lostReplies(t, e, 0.30) }},
		{"LostReplies50", LostReplies, func(t testing.TB, e *env) { lostReplies(t, e, 0.50) }},
		{"FaultsOfEveryKind", LostReplies, faultsOfEveryKind},
		{"EveryCommitPointIsLost", LostReplies, everyCommitPointIsLost},
		{"UndeterminedEndsWithItsContext", LostReplies, undeterminedEndsWithItsContext},
	}
}

// losing makes that share of the changes of a client get no answer: half of them
// happen, and of those that happen some do so late.
func losing(rng *rand.Rand, share float64, lost *atomic.Int64) func(ctx context.Context, cl *call) fate {
	var mu sync.Mutex
	return func(_ context.Context, cl *call) fate {
		if !changes(cl) {
			return goesThrough
		}
		mu.Lock()
		defer mu.Unlock()
		if rng.Float64() >= share {
			return goesThrough
		}
		lost.Add(1)
		switch rng.IntN(4) {
		case 0, 1:
			return lostBefore
		case 2:
			return lostAfter
		}
		return lostLate
	}
}

// appended is what a worker knows of one of its transactions.
type appended struct {
	id     string
	rows   []int
	commit percolator.Timestamp // of a committed one
	// decided is OutcomeCommitted or OutcomeRolledBack.
	decided percolator.OutcomeStatus
}

// lostReplies appends numbers to lists, several lists in a transaction, while
// replies are lost. In the end each number is in all of its lists or in none,
// as its worker was told.
func lostReplies(t testing.TB, e *env, share float64) {
	e.eachWay(t, func(w *world) {
		rng := seeded(w)
		const workers, lists = 5, 4
		rounds := e.n(20, 8)
		var lost, conflicts, undetermined atomic.Int64
		dbs := make([]*percolator.DB, workers)
		clients := make([]*client, workers)
		for i := range dbs {
			// What is left when the replies to a clean-up are lost, too, goes with its lock's
			// expiry.
			dbs[i], clients[i] = w.client(coretest.WithSeed(rng.Uint64()), percolator.WithLockExpiry(300*time.Millisecond))
			w.set(dbs[i], at("warm"), "up") // the session and the catalog are there
			clients[i].on(losing(fork(rng), share, &lost))
		}
		all := make([][]appended, workers)
		var g errgroup.Group
		for i, db := range dbs {
			rng := fork(rng)
			g.Go(func() error {
				for n := 0; n < rounds || lost.Load() == 0 && w.ctx.Err() == nil; n++ {
					a := appended{id: fmt.Sprintf("%d.%d", i, n), rows: rng.Perm(lists)[:1+rng.IntN(3)]}
					var opts []percolator.TxnOption
					if rng.IntN(2) == 0 {
						opts = append(opts, percolator.WithIsolation(percolator.Serializable))
					}
					ctx, cancel := w.ctx, context.CancelFunc(func() {})
					if rng.IntN(5) == 0 {
						ctx, cancel = context.WithTimeout(w.ctx, time.Duration(rng.IntN(3000))*time.Microsecond)
					}
					err := appendTo(ctx, w, db, &a, opts)
					cancel()
					switch u := (*percolator.UndeterminedError)(nil); {
					case err == nil:
						a.decided = percolator.OutcomeCommitted
					case errors.As(err, &u):
						undetermined.Add(1)
						o, err := outcome(w.ctx, db, u.Start, u.Primary)
						if err != nil {
							return fmt.Errorf("outcome of %s: %w", a.id, err)
						}
						a.decided, a.commit = o.Status, o.Commit
					case errors.Is(err, percolator.ErrConflict):
						conflicts.Add(1)
						a.decided = percolator.OutcomeRolledBack
					case ctx.Err() != nil && w.ctx.Err() == nil:
						a.decided = percolator.OutcomeRolledBack // any other error: for certain
					default:
						return fmt.Errorf("transaction %s: %w", a.id, err)
					}
					all[i] = append(all[i], a)
				}
				return nil
			})
		}
		require.NoError(w, g.Wait())
		for i := range dbs {
			clients[i].on(nil)
			require.NoError(w, dbs[i].Close(w.ctx))
		}
		reader := w.db()
		checkLists(w, reader, slices.Concat(all...), lists)
		require.Positive(w, lost.Load(), "no reply was lost")
		w.Logf("%d replies lost, %d conflicts, %d undetermined", lost.Load(), conflicts.Load(), undetermined.Load())
		for i := range lists {
			w.set(reader, at(fmt.Sprint("list", i)), "") // a writer meets what no reader does
		}
		require.Empty(w, w.settled(reader))
	})
}

// faultsOfEveryKind is lostReplies with calls that fail, arrive late or twice, rows
// that fail alone, and crashes of the store.
func faultsOfEveryKind(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		rng := seeded(w)
		const workers, lists = 5, 4
		all := make([][]appended, workers)
		var conflicts, failed, undetermined atomic.Int64
		var g errgroup.Group
		var settle []func()
		var faults []*faultstore.Store
		for i := range workers {
			rng := fork(rng)
			db, f, end := w.faulty(rng.Uint64(), coretest.WithSeed(rng.Uint64()), percolator.WithLockExpiry(300*time.Millisecond))
			w.set(db, at("warm"), "up")
			w.setRates(f)
			settle, faults = append(settle, end), append(faults, f)
			g.Go(func() error {
				for n := range e.n(25, 15) {
					a := appended{id: fmt.Sprintf("%d.%d", i, n), rows: rng.Perm(lists)[:1+rng.IntN(3)]}
					err := appendTo(w.ctx, w, db, &a, nil)
					switch u := (*percolator.UndeterminedError)(nil); {
					case err == nil:
						a.decided = percolator.OutcomeCommitted
					case errors.As(err, &u):
						undetermined.Add(1)
						o, err := outcome(w.ctx, db, u.Start, u.Primary)
						for err != nil && w.ctx.Err() == nil { // that fails, too
							pause(w.ctx)
							o, err = outcome(w.ctx, db, u.Start, u.Primary)
						}
						a.decided, a.commit = o.Status, o.Commit
					case errors.Is(err, percolator.ErrConflict):
						conflicts.Add(1)
						a.decided = percolator.OutcomeRolledBack
					default:
						failed.Add(1) // any other error says that nothing took effect
						a.decided = percolator.OutcomeRolledBack
					}
					all[i] = append(all[i], a)
				}
				return w.ctx.Err()
			})
		}
		require.NoError(w, g.Wait())
		struck := 0
		for i := range settle {
			settle[i]()
			for _, kind := range []faultstore.FaultKind{faultstore.LoseReply, faultstore.LoseRow, faultstore.Late, faultstore.Twice} {
				struck += faults[i].Count(kind, faultstore.CallApply, faultstore.CallGroup)
			}
		}
		require.Positive(w, struck, "nothing went wrong")
		reader := w.db()
		checkLists(w, reader, slices.Concat(all...), lists)
		w.Logf("%d faults of changes; %d conflicts, %d failed, %d undetermined", struck, conflicts.Load(), failed.Load(), undetermined.Load())
		for i := range lists {
			w.set(reader, at(fmt.Sprint("list", i)), "")
		}
		require.Empty(w, w.settled(reader))
	})
}

// outcome asks until the answer is final.
func outcome(ctx context.Context, db *percolator.DB, start percolator.Timestamp, primary percolator.Cell) (percolator.Outcome, error) {
	for {
		o, err := db.OutcomeOf(ctx, &percolator.UndeterminedError{Start: start, Primary: primary})
		if err != nil || o.Status != percolator.OutcomePending {
			return o, err
		}
		pause(ctx)
	}
}

func appendTo(ctx context.Context, w *world, db *percolator.DB, a *appended, opts []percolator.TxnOption) error {
	tx, err := db.Begin(w.ctx, opts...)
	if err != nil {
		return err
	}
	for _, i := range a.rows {
		c := at(fmt.Sprint("list", i))
		v, err := tx.Get(w.ctx, c)
		if err != nil && !errors.Is(err, percolator.ErrNotFound) {
			return err
		}
		if err := tx.Set(c, []byte(string(v)+a.id+" ")); err != nil {
			return err
		}
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	a.commit = tx.CommitTimestamp()
	return nil
}

// checkLists compares the lists with what the workers know.
func checkLists(w *world, db *percolator.DB, all []appended, lists int) {
	w.Helper()
	where := map[string][]int{}
	order := make([][]string, lists)
	require.NoError(w, db.View(w.ctx, func(tx *percolator.Txn) error {
		for i := range lists {
			v := w.value(tx, at(fmt.Sprint("list", i)))
			if v == missing {
				continue
			}
			order[i] = strings.Fields(v)
			for _, id := range order[i] {
				where[id] = append(where[id], i)
			}
		}
		return nil
	}))
	committed := map[string]percolator.Timestamp{}
	for _, a := range all {
		switch a.decided {
		case percolator.OutcomeCommitted:
			want := slices.Sorted(slices.Values(a.rows))
			require.Equal(w, want, where[a.id], "%s was committed into lists %v", a.id, want)
			require.NotZero(w, a.commit)
			committed[a.id] = a.commit
		case percolator.OutcomeRolledBack:
			require.Empty(w, where[a.id], "%s was not committed", a.id)
		default:
			w.Fatalf("%s is %v", a.id, a.decided)
		}
	}
	for i, ids := range order {
		require.True(w, slices.IsSortedFunc(ids, func(a, b string) int { return cmp.Compare(committed[a], committed[b]) }),
			"list %d is in the order of the commit timestamps", i)
	}
	require.NotEmpty(w, committed, "nothing was committed")
	// Each commit is in the history at its timestamp.
	for _, a := range all {
		if a.decided == percolator.OutcomeCommitted {
			tx := w.begin(db, percolator.WithAsOfTimestamp(a.commit))
			for _, i := range a.rows {
				v := w.value(tx, at(fmt.Sprint("list", i)))
				require.True(w, strings.HasSuffix(v, a.id+" "), "list %d as of the commit of %s ends with it: %q", i, a.id, v)
			}
		}
	}
}

// everyCommitPointIsLost loses the reply of each first try of a commit point, in
// each way, and checks what Commit says.
func everyCommitPointIsLost(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		db, c := w.client()
		others := w.db()
		w.set(db, one, "0", two, "0")
		for i, f := range []fate{lostBefore, lostAfter, lostLate, lostAfter, lostBefore} {
			for _, overwritten := range []bool{false, true} {
				v := fmt.Sprintf("%d%v", i, overwritten)
				before := w.now(others, one, two)
				tx := w.begin(db)
				w.write(tx, one, v, two, v)
				var first atomic.Bool
				c.on(func(ctx context.Context, cl *call) fate {
					if !commits(cl, tx) || !first.CompareAndSwap(false, true) {
						return goesThrough
					}
					if !overwritten || f != lostAfter {
						return f
					}
					// The commit happens, and another one on top of it, before the
					// client can look.
					c.on(func(ctx context.Context, cl *call) fate {
						if changes(cl) && !commits(cl, tx) {
							return goesThrough // what an earlier transaction left for the background
						}
						c.on(nil)
						if err := others.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(one, []byte("on top")) }); err != nil {
							return refused
						}
						return goesThrough
					})
					return f
				})
				err := tx.Commit(w.ctx)
				c.on(nil)
				now := w.now(others, one, two)
				switch {
				case err == nil && overwritten && f == lostAfter:
					require.Equal(w, []string{"on top", v}, now)
				case err == nil:
					require.Equal(w, []string{v, v}, now)
				case errors.Is(err, percolator.ErrConflict):
					require.Equal(w, before, now, "certainly not committed")
					require.NotEqual(w, lostAfter, f, "what happened is found to have happened")
				default:
					require.NoError(w, err)
				}
				if err == nil {
					require.Equal(w, v, w.value(w.begin(others, percolator.WithAsOfTimestamp(tx.CommitTimestamp())), one))
				}
			}
		}
	})
}

// undeterminedEndsWithItsContext loses a commit point and then everything else.
func undeterminedEndsWithItsContext(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		for _, happens := range []bool{true, false} {
			for !undetermined(w, happens) { // a stall can end the lease before the commit point
			}
		}
	})
}

func undetermined(w *world, happens bool) (reachedCommitPoint bool) {
	w.Helper()
	// The dead client's clean-up is given up after a catalog lease.
	db, c := w.client(append(shortLease(), percolator.WithSettings(percolator.Settings{MaxTxnAge: time.Minute, Retention: time.Hour, CatalogLease: 2 * time.Second}))...)
	others := w.db(shortLease()...)
	w.set(others, one, "10", two, "20")
	tx := w.begin(db)
	w.write(tx, one, "11", two, "21")
	ctx, cancel := context.WithCancel(w.ctx)
	var cut atomic.Bool
	c.on(func(_ context.Context, cl *call) fate {
		switch {
		case cut.Load() && changes(cl):
			return lostBefore
		case cut.Load():
			return refused
		case commits(cl, tx):
			cut.Store(true)
			cancel()
			if happens {
				return lostAfter
			}
			return lostBefore
		}
		return goesThrough
	})
	err := tx.Commit(ctx)
	cancel()
	if !cut.Load() {
		require.ErrorIs(w, err, percolator.ErrConflict)
		return false
	}
	require.ErrorIs(w, err, percolator.ErrUndetermined)
	var u *percolator.UndeterminedError
	require.ErrorAs(w, err, &u)
	require.Equal(w, startOf(tx), u.Start)
	require.Contains(w, []percolator.Cell{one, two}, u.Primary)
	c.CrashClient()
	o, err := outcome(w.ctx, others, u.Start, u.Primary)
	require.NoError(w, err)
	if happens {
		require.Equal(w, percolator.OutcomeCommitted, o.Status)
		require.Equal(w, []string{"11", "21"}, w.now(others, one, two))
	} else {
		require.Equal(w, percolator.OutcomeRolledBack, o.Status)
		require.Equal(w, []string{"10", "20"}, w.now(others, one, two))
	}
	return true
}
