package conformance

import (
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
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
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
	// resolve returns the values of the cells as the client that met them sees them.
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
// and has others clear up. Afterwards all of the transaction is there, or nothing. If
// Commit had returned nil, all of it is there. No lock is left.
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
					c.Outlive()
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
	cells, before, then := deathCells(name)
	if err := others.Update(w.ctx, func(tx *percolator.Txn) error { return putAll(tx, cells, before) }); err != nil {
		return false, false, err
	}
	tx, err := db.Begin(w.ctx)
	if err != nil {
		return false, false, err
	}
	if err := putAll(tx, cells, then); err != nil {
		return false, false, err
	}
	c.dieAt(step, after)
	ctx, cancel := c.living(w.ctx)
	defer cancel()
	cerr := tx.Commit(ctx)
	if cerr == nil {
		// Secondaries go on in the background; the client may die there.
		c.close(w.ctx, db)
	}
	if died = c.died(); died {
		c.Settle()
	} else {
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
	o, err := others.Outcome(w.ctx, startOf(tx), cells[0])
	if err != nil {
		return died, committed, fmt.Errorf("asking for the outcome: %w", err)
	}
	if (o.Status == percolator.OutcomeCommitted) != committed || o.Status == percolator.OutcomePending {
		return died, committed, fmt.Errorf("the outcome is %v, and the values say committed: %v", o.Status, committed)
	}
	// And what is left in rows that the resolver did not touch goes as well.
	_, err = getMany(w, others, cells)
	return died, committed, err
}

// deathCells are the cells of the transaction of dieAt, with their values before it and
// after it: two columns in a row, a delete, a long value, another table.
func deathCells(name string) (cells []percolator.Cell, before, then []string) {
	cell := func(row, column string) percolator.Cell {
		return percolator.Cell{Table: table, Row: name + row, Column: column}
	}
	return []percolator.Cell{cell("a", "v"), cell("a", "w"), cell("b", "v"), cell("c", "v"), {Table: "u", Row: name, Column: "v"}},
		[]string{"old", "old", "old", "old", missing},
		[]string{"new", "new", missing, strings.Repeat("new", 200), "new"}
}

// putAll sets each cell to its value, or deletes it if the value is missing.
func putAll(tx *percolator.Txn, cells []percolator.Cell, to []string) error {
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
				c.Outlive()
				mine, clients = append(mine, db), append(clients, c)
			}
			g.Go(func() error {
				for i, db := range mine {
					if err := transferUntilDeath(w, db, clients[i], rng, cells); err != nil {
						return err
					}
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
			pause(w.ctx) // most of the time the others wait for a lease to end
		}
		require.Positive(w, deaths.Load())
		w.Logf("%d clients died, %d full reads", deaths.Load(), reads)
		for _, c := range cells {
			w.set(main, c, "0") // a writer meets lock-only locks, too
		}
		require.Empty(w, w.settled(main))
	})
}

// transferUntilDeath lets a client transfer until it dies, at a random call.
func transferUntilDeath(w *world, db *percolator.DB, c *client, rng *rand.Rand, cells []percolator.Cell) error {
	left := int64(10 + rng.IntN(120))
	after := rng.IntN(2) == 0
	c.on(func(_ context.Context, cl *call) fate {
		if cl.Kind == faultstore.CallScan || atomic.AddInt64(&left, -1) != 0 {
			return goesThrough
		}
		if after {
			return diesAfter
		}
		return diesBefore
	})
	ctx, cancel := c.living(w.ctx)
	for ctx.Err() == nil {
		err := transfer(ctx, db, fork(rng), cells)
		if err != nil && !errors.Is(err, percolator.ErrConflict) && !c.died() && ctx.Err() == nil {
			cancel()
			return fmt.Errorf("a living client: %w", err)
		}
	}
	cancel()
	if w.ctx.Err() != nil {
		return w.ctx.Err()
	}
	c.Settle()
	return nil
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

// deadLocksWaitForTheLease checks that others respect a lock whose owner may live, and
// that they resolve it when the lease has ended.
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
		c.CrashClient()
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
	e.in(t, "TwoPhase", []percolator.Option{coretest.WithoutGroups()}, func(w *world) {
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
		require.Equal(w, "21", w.value(w.begin(others, percolator.WithAsOfTimestamp(tx.CommitTimestamp())), two))
		require.Equal(w, "20", w.value(w.begin(others, percolator.WithAsOfTimestamp(tx.CommitTimestamp()-1)), two))
		require.Positive(w, others.Stats().RolledForward)
		require.Zero(w, others.Stats().RolledBack)
	})
}
