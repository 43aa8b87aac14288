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

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func deadClientTests() []test {
	return []test{
		{"DeathAtEachStepOfACommit", DeadClients, deathAtEachStep},
		{"DeathAtEachStepUnderRaces", DeadClients, deathUnderRaces},
		{"DeadLocksWaitForTheLease", DeadClients, deadLocksWaitForTheLease},
		{"DeadSecondaryBesideLivingWriters", DeadClients, deadSecondaryBesideLivingWriters},
		{"SuspendedClientCannotCommit", DeadClients, suspendedClientCannotCommit},
		{"StoreCrashInACommit", DeadClients, storeCrashInACommit},
	}
}

// shortLease makes dead clients be taken for dead soon.
func shortLease() []percolator.Option {
	return []percolator.Option{percolator.WithSessionLease(150 * time.Millisecond), percolator.WithLockExpiry(150 * time.Millisecond)}
}

// resolvers are the ways to meet what a dead client left.
var resolvers = []struct {
	name string
	// resolve returns the values of the cells as whoever met them sees them.
	resolve func(w *world, db *percolator.DB, cells []percolator.Cell) ([]string, error)
}{
	{"Get", func(w *world, db *percolator.DB, cells []percolator.Cell) ([]string, error) {
		values := make([]string, len(cells))
		return values, db.View(w.ctx, func(tx *percolator.Txn) (err error) {
			for i := range cells { // secondaries first, then the primary
				j := len(cells) - 1 - i
				if values[j], err = get(w.ctx, tx, cells[j]); err != nil {
					return err
				}
			}
			return nil
		})
	}},
	{"GetMany", func(w *world, db *percolator.DB, cells []percolator.Cell) ([]string, error) {
		return getMany(w, db, cells)
	}},
	{"Scan", func(w *world, db *percolator.DB, cells []percolator.Cell) ([]string, error) {
		return values(w, db, cells)
	}},
	{"Write", func(w *world, db *percolator.DB, cells []percolator.Cell) ([]string, error) {
		// Blind writers, that resolve what they meet in their prewrite; then look
		// below their own writes.
		for _, c := range cells {
			other := percolator.Cell{Table: c.Table, Row: c.Row, Column: "unrelated"}
			if err := db.Update(w.ctx, func(tx *percolator.Txn) error { return tx.Set(other, []byte("x")) }); err != nil {
				return nil, err
			}
		}
		tx, err := db.Begin(w.ctx)
		if err != nil {
			return nil, err
		}
		for _, c := range cells {
			if err := db.Update(w.ctx, func(tx *percolator.Txn) error { return tx.Set(c, []byte("overwritten")) }); err != nil {
				return nil, err
			}
		}
		values := make([]string, len(cells))
		for i := range cells {
			if values[i], err = get(w.ctx, tx, cells[i]); err != nil {
				return nil, err
			}
		}
		return values, tx.Rollback(w.ctx)
	}},
	{"Update", func(w *world, db *percolator.DB, cells []percolator.Cell) ([]string, error) {
		values := make([]string, len(cells))
		return values, db.Update(w.ctx, func(tx *percolator.Txn) (err error) {
			for i, c := range cells {
				if values[i], err = get(w.ctx, tx, c); err != nil {
					return err
				}
				if err = tx.Set(c, []byte(values[i]+"!")); err != nil {
					return err
				}
			}
			return nil
		})
	}},
}

// get reads a cell, from any goroutine.
func get(ctx context.Context, tx *percolator.Txn, c percolator.Cell) (string, error) {
	v, err := tx.Get(ctx, c)
	if errors.Is(err, percolator.ErrNotFound) {
		return missing, nil
	}
	return string(v), err
}

func getMany(w *world, db *percolator.DB, cells []percolator.Cell) ([]string, error) {
	values := make([]string, len(cells))
	return values, db.View(w.ctx, func(tx *percolator.Txn) error {
		m, err := tx.GetMany(w.ctx, cells...)
		for i, c := range cells {
			values[i] = missing
			if v, ok := m[c]; ok {
				values[i] = string(v)
			}
		}
		return err
	})
}

// values reads cells by scans of their tables.
func values(w *world, db *percolator.DB, cells []percolator.Cell) ([]string, error) {
	all := make([]string, len(cells))
	return all, db.View(w.ctx, func(tx *percolator.Txn) error {
		for i, c := range cells {
			all[i] = missing
			for row, err := range tx.Scan(w.ctx, percolator.Range{Table: c.Table, From: c.Row, To: c.Row + "\x00", Columns: []string{c.Column}}) {
				if err != nil {
					return err
				}
				all[i] = string(row.Columns[c.Column])
			}
		}
		return nil
	})
}

// deathAtEachStep kills a client before and after each of the calls of a commit,
// and has others clear up. All of the transaction is there afterwards, or nothing;
// all of it if Commit had said so; no lock is left.
func deathAtEachStep(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		others := w.db(shortLease()...)
		var g errgroup.Group
		g.SetLimit(24) // most of the time they wait for leases to end
		var deaths, forward, back atomic.Int64
		var mu sync.Mutex
		var all []string
		for r, by := range resolvers {
			for _, after := range []bool{false, true} {
				for step := range 16 {
					name := fmt.Sprintf("%s/%d/%v", by.name, step, after)
					db, c := w.client(shortLease()...)
					c.mortal()
					g.Go(func() error {
						died, committed, err := dieAt(w, others, db, c, fmt.Sprintf("%d-%d-%v", r, step, after), step, after, by.resolve)
						switch {
						case err != nil:
							return fmt.Errorf("%s: %w", name, err)
						case died && committed:
							deaths.Add(1)
							forward.Add(1)
						case died:
							deaths.Add(1)
							back.Add(1)
						}
						mu.Lock()
						all = append(all, name)
						mu.Unlock()
						return nil
					})
				}
			}
		}
		require.NoError(w, g.Wait())
		w.Logf("%d runs, %d deaths: %d of them committed, %d not", len(all), deaths.Load(), forward.Load(), back.Load())
		require.Positive(w, forward.Load(), "no client died after its commit point")
		require.Positive(w, back.Load(), "no client died before its commit point")
		require.NoError(w, others.Close(w.ctx))
		require.Empty(w, w.locks(), "whoever met a lock removed it")
	})
}

// dieAt commits one transaction and kills its client at one step, then has the
// values read by others.
func dieAt(w *world, others, db *percolator.DB, c *client, name string, step int, after bool,
	resolve func(w *world, db *percolator.DB, cells []percolator.Cell) ([]string, error),
) (died, committed bool, err error) {
	cell := func(row, column string) percolator.Cell {
		return percolator.Cell{Table: table, Row: name + row, Column: column}
	}
	// Two columns in a row, a delete, a long value, another table.
	cells := []percolator.Cell{cell("a", "v"), cell("a", "w"), cell("b", "v"), cell("c", "v"), {Table: "u", Row: name, Column: "v"}}
	before := []string{"old", "old", "old", "old", missing}
	then := []string{"new", "new", missing, strings.Repeat("new", 200), "new"}
	put := func(tx *percolator.Txn, to []string) error {
		for i, c := range cells {
			var err error
			if to[i] == missing {
				err = tx.Delete(c)
			} else {
				err = tx.Set(c, []byte(to[i]))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := others.Update(w.ctx, func(tx *percolator.Txn) error { return put(tx, before) }); err != nil {
		return false, false, err
	}
	tx, err := db.Begin(w.ctx)
	if err != nil {
		return false, false, err
	}
	if err := put(tx, then); err != nil {
		return false, false, err
	}
	var calls atomic.Int64
	c.on(func(_ context.Context, _ *call) fate {
		switch {
		case int(calls.Add(1))-1 != step:
			return goesThrough
		case after:
			return diesAfter
		}
		return diesBefore
	})
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case <-c.died: // a process that is dead waits for nothing
			cancel()
		case <-ctx.Done():
		}
	}()
	cerr := tx.Commit(ctx)
	if cerr == nil {
		// Secondaries go on in the background; the client may die there.
		c.close(w.ctx, db)
	}
	select {
	case <-c.died:
		died = true
		c.settle()
	default:
	}
	cancel()
	<-gone
	if !died {
		c.on(nil)
		// A busy machine makes conflicts.
		if cerr != nil && !errors.Is(cerr, percolator.ErrConflict) {
			return false, false, fmt.Errorf("no call failed, and the commit did: %w", cerr)
		}
	}
	got, err := resolve(w, others, cells)
	if err != nil {
		return died, false, fmt.Errorf("reading what was left: %w", err)
	}
	switch {
	case slices.Equal(got, then):
		committed = true
	case !slices.Equal(got, before):
		return died, false, fmt.Errorf("torn: %.40q", got)
	}
	if cerr == nil && !committed {
		return died, false, errors.New("the commit was acknowledged, and is lost")
	}
	if errors.Is(cerr, percolator.ErrConflict) && committed {
		return died, false, fmt.Errorf("the commit failed for certain (%w), and took effect", cerr)
	}
	// Asked afterwards, the store says the same of the transaction.
	o, err := others.Outcome(w.ctx, tx.StartTimestamp(), cells[0])
	if err != nil {
		return died, committed, fmt.Errorf("asking for the outcome: %w", err)
	}
	if (o.Status == percolator.Committed) != committed || o.Status == percolator.Pending {
		return died, committed, fmt.Errorf("the outcome is %v, and the values say committed: %v", o.Status, committed)
	}
	// And what is left in rows that the resolver did not touch goes as well.
	_, err = getMany(w, others, cells)
	return died, committed, err
}

// deathUnderRaces has clients die at random calls while others work on the same
// few cells: a chain of transfers whose sum must stay.
func deathUnderRaces(t testing.TB, e *env) {
	e.eachWay(t, func(w *world) {
		rng := seeded(w)
		const accounts, each = 6, 100
		main := w.db(shortLease()...)
		cells := make([]percolator.Cell, accounts)
		for i := range cells {
			cells[i] = at(fmt.Sprint("account", i))
			w.set(main, cells[i], fmt.Sprint(each))
		}
		var deaths atomic.Int64
		var g errgroup.Group
		for range 4 {
			rng := fork(rng)
			var mine []*percolator.DB
			var clients []*client
			for range e.n(6, 3) {
				db, c := w.client(shortLease()...)
				c.mortal()
				mine, clients = append(mine, db), append(clients, c)
			}
			g.Go(func() error {
				for i, db := range mine {
					c := clients[i]
					left := int64(10 + rng.IntN(120))
					after := rng.IntN(2) == 0
					c.on(func(_ context.Context, cl *call) fate {
						if cl.method == "Scan" || atomic.AddInt64(&left, -1) != 0 {
							return goesThrough
						}
						if after {
							return diesAfter
						}
						return diesBefore
					})
					ctx, cancel := context.WithCancel(w.ctx)
					go func() {
						select {
						case <-c.died:
						case <-w.ctx.Done():
						}
						cancel()
					}()
					for ctx.Err() == nil {
						err := transfer(ctx, db, fork(rng), cells)
						select {
						case <-c.died:
						default:
							if err != nil && !errors.Is(err, percolator.ErrConflict) && ctx.Err() == nil {
								return fmt.Errorf("a living client: %w", err)
							}
						}
					}
					cancel()
					if w.ctx.Err() != nil {
						return w.ctx.Err()
					}
					c.settle()
					deaths.Add(1)
				}
				return nil
			})
		}
		done := make(chan error, 1)
		go func() { done <- g.Wait() }()
		reads := 0
		for ended := false; !ended; reads++ {
			select {
			case err := <-done:
				require.NoError(w, err)
				ended = true
			default:
			}
			total, err := sum(w.ctx, main, cells)
			require.NoError(w, err)
			require.Equal(w, accounts*each, total, "the total of read %d", reads)
		}
		require.Positive(w, deaths.Load())
		w.Logf("%d clients died, %d full reads", deaths.Load(), reads)
		for _, c := range cells {
			w.set(main, c, "0") // a writer meets lock-only locks, too
		}
		require.Empty(w, w.settled(main))
	})
}

// transfer moves something from an account to another.
func transfer(ctx context.Context, db *percolator.DB, rng *rand.Rand, cells []percolator.Cell, opts ...percolator.TxnOption) error {
	i := rng.IntN(len(cells))
	j := (i + 1 + rng.IntN(len(cells)-1)) % len(cells)
	amount := 1 + rng.IntN(10)
	return db.Update(ctx, func(tx *percolator.Txn) error {
		from, err := number(ctx, tx, cells[i])
		if err != nil {
			return err
		}
		to, err := number(ctx, tx, cells[j])
		if err != nil {
			return err
		}
		if err := tx.Set(cells[i], []byte(fmt.Sprint(from-amount))); err != nil {
			return err
		}
		return tx.Set(cells[j], []byte(fmt.Sprint(to+amount)))
	}, opts...)
}

// number reads a cell that holds a number.
func number(ctx context.Context, tx *percolator.Txn, c percolator.Cell) (n int, err error) {
	v, err := tx.Get(ctx, c)
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscan(string(v), &n); err != nil {
		return 0, fmt.Errorf("%v holds %q: %w", c, v, err)
	}
	return n, nil
}

// sum reads all accounts in one snapshot.
func sum(ctx context.Context, db *percolator.DB, cells []percolator.Cell, opts ...percolator.TxnOption) (total int, err error) {
	return total, db.View(ctx, func(tx *percolator.Txn) error {
		total = 0
		for _, c := range cells {
			n, err := number(ctx, tx, c)
			if err != nil {
				return err
			}
			total += n
		}
		return nil
	}, opts...)
}

// deadLocksWaitForTheLease checks that a lock whose owner may live is respected,
// and that it is not any more when the lease has ended.
func deadLocksWaitForTheLease(t testing.TB, e *env) {
	e.eachLockingWay(t, func(w *world) {
		lease := 700 * time.Millisecond
		others := w.db()
		w.set(others, one, "10")
		var c *client
		var h *held
		for h == nil { // a stall can end the lease before the commit point
			var db *percolator.DB
			db, c = w.client(percolator.WithSessionLease(lease), percolator.WithLockExpiry(lease))
			tx := w.begin(db)
			w.write(tx, one, "11", two, "22")
			h, _ = w.tryHold(c, tx)
		}
		c.kill()
		<-h.done
		locked, err := others.Now(w.ctx)
		require.NoError(w, err)
		// A deadline far below the lease: the lock is still there afterwards, unless
		// the machine slept through the lease meanwhile.
		ctx, cancel := context.WithTimeout(w.ctx, 50*time.Millisecond)
		_, err = w.begin(others).Get(ctx, one)
		cancel()
		after, nowErr := others.Now(w.ctx)
		require.NoError(w, nowErr)
		if after.Sub(locked) < lease/2 {
			require.ErrorIs(w, err, context.DeadlineExceeded, "the owner's lease lasts")
			require.Len(w, w.locks(), 2)
			require.Zero(w, others.Stats().RolledBack)
		}
		require.Equal(w, []string{"10", missing}, w.now(others, one, two), "and then it has ended")
		s := others.Stats()
		require.Positive(w, s.RolledBackSessionGone+s.RolledBackExpired)
		require.Empty(w, w.settled(others))
	})
}

// deadSecondaryBesideLivingWriters leaves a committed transaction's secondary
// locked, overwrites its primary many times, and then meets the secondary: the
// newest write of the primary is another's, and still the record is there.
func deadSecondaryBesideLivingWriters(t testing.TB, e *env) {
	e.in(t, "TwoPhase", []percolator.Option{percolator.WithoutGroups()}, func(w *world) {
		others := w.db(shortLease()...)
		w.set(others, one, "10", two, "20")
		tx, acknowledged := w.dieAt(2, shortLease(), one, "11", two, "21") // the first written is the primary
		require.True(w, acknowledged)
		require.Equal(w, []string{"t/2"}, w.locks())
		for i := range 5 {
			w.set(others, one, fmt.Sprint("later", i))
		}
		w.write(w.begin(others), one, "unrelated")
		require.Equal(w, []string{"later4", "21"}, w.now(others, one, two), "the secondary of a committed transaction is rolled forward")
		require.Equal(w, "21", w.value(w.begin(others, percolator.AsOfTimestamp(tx.CommitTimestamp())), two))
		require.Equal(w, "20", w.value(w.begin(others, percolator.AsOfTimestamp(tx.CommitTimestamp()-1)), two))
		require.Positive(w, others.Stats().RolledForward)
		require.Zero(w, others.Stats().RolledBack)
	})
}

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
		if cl.commits(tx) {
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
	e.in(t, "TwoPhase", []percolator.Option{percolator.WithoutGroups()}, func(w *world) {
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
				if (cl.prewrites() || n.Load() > 0) && n.Add(1) == int64(i%4+1) {
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
		if cl.method != "Apply" && cl.method != "Group" {
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
	// decided is Committed or RolledBack.
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
			dbs[i], clients[i] = w.client(percolator.WithSeed(rng.Uint64()), percolator.WithLockExpiry(300*time.Millisecond))
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
						a.decided = percolator.Committed
					case errors.As(err, &u):
						undetermined.Add(1)
						o, err := outcome(w.ctx, db, u.Start, u.Primary)
						if err != nil {
							return fmt.Errorf("outcome of %s: %w", a.id, err)
						}
						a.decided, a.commit = o.Status, o.Commit
					case errors.Is(err, percolator.ErrConflict):
						conflicts.Add(1)
						a.decided = percolator.RolledBack
					case ctx.Err() != nil && w.ctx.Err() == nil:
						a.decided = percolator.RolledBack // any other error: for certain
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
		var faults []*rowstore.Faulty
		for i := range workers {
			rng := fork(rng)
			db, f, end := w.faulty(rng.Uint64(), percolator.WithSeed(rng.Uint64()), percolator.WithLockExpiry(300*time.Millisecond))
			w.set(db, at("warm"), "up")
			w.setRates(f)
			settle, faults = append(settle, end), append(faults, f)
			g.Go(func() error {
				for n := range e.n(25, 15) {
					a := appended{id: fmt.Sprintf("%d.%d", i, n), rows: rng.Perm(lists)[:1+rng.IntN(3)]}
					err := appendTo(w.ctx, w, db, &a, nil)
					switch u := (*percolator.UndeterminedError)(nil); {
					case err == nil:
						a.decided = percolator.Committed
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
						a.decided = percolator.RolledBack
					default:
						failed.Add(1) // any other error says that nothing took effect
						a.decided = percolator.RolledBack
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
			for _, kind := range []rowstore.FaultKind{rowstore.LoseReply, rowstore.LoseRow, rowstore.Late, rowstore.Twice} {
				struck += faults[i].Count(kind, rowstore.CallApply, rowstore.CallGroup)
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
		if err != nil || o.Status != percolator.Pending {
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
		case percolator.Committed:
			want := slices.Sorted(slices.Values(a.rows))
			require.Equal(w, want, where[a.id], "%s was committed into lists %v", a.id, want)
			require.NotZero(w, a.commit)
			committed[a.id] = a.commit
		case percolator.RolledBack:
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
		if a.decided == percolator.Committed {
			tx := w.begin(db, percolator.AsOfTimestamp(a.commit))
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
					if !cl.commits(tx) || !first.CompareAndSwap(false, true) {
						return goesThrough
					}
					if !overwritten || f != lostAfter {
						return f
					}
					// The commit happens, and another one on top of it, before the
					// client can look.
					c.mu.Lock()
					c.hook = func(ctx context.Context, cl *call) fate {
						if len(cl.muts) > 0 && !cl.commits(tx) {
							return goesThrough // what an earlier transaction left for the background
						}
						c.on(nil)
						if err := others.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(one, []byte("on top")) }); err != nil {
							return refused
						}
						return goesThrough
					}
					c.mu.Unlock()
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
					require.Equal(w, v, w.value(w.begin(others, percolator.AsOfTimestamp(tx.CommitTimestamp())), one))
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
		case cut.Load() && (cl.method == "Apply" || cl.method == "Group"):
			return lostBefore
		case cut.Load():
			return refused
		case cl.commits(tx):
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
	require.Equal(w, tx.StartTimestamp(), u.Start)
	require.Contains(w, []percolator.Cell{one, two}, u.Primary)
	c.kill()
	o, err := outcome(w.ctx, others, u.Start, u.Primary)
	require.NoError(w, err)
	if happens {
		require.Equal(w, percolator.Committed, o.Status)
		require.Equal(w, []string{"11", "21"}, w.now(others, one, two))
	} else {
		require.Equal(w, percolator.RolledBack, o.Status)
		require.Equal(w, []string{"10", "20"}, w.now(others, one, two))
	}
	return true
}
