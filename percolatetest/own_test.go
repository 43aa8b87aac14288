package percolatetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// onSetupsDB is a program whose observer does something beside its run, on the database that Setup got.
func onSetupsDB(do func(ctx context.Context, db *percolator.DB, c percolator.Cell) error, rows ...string) Program {
	var db *percolator.DB
	p := Program{
		Setup: func(_ context.Context, its *percolator.DB) error { db = its; return nil },
		Observers: []percolator.Observer{{Name: "do", Table: "t", Column: "in", Func: func(ctx context.Context, _ *percolator.Txn, c percolator.Cell) error {
			return do(ctx, db, c)
		}}},
	}
	for _, row := range rows {
		p.Clients = append(p.Clients, put(cell(row, "in"), 1))
	}
	return p
}

// A run's function reads and writes in two transactions of its own. Another run comes between them.
func TestLostUpdateOfRuns(t *testing.T) {
	t.Parallel()
	total := cell("all", "total")
	p := onSetupsDB(func(ctx context.Context, db *percolator.DB, _ percolator.Cell) error {
		return incrementInTwo(total)(ctx, db)
	}, "a", "b")
	p.Finally = holds(total, 2)
	requireViolation(t, p, "t/all/total is 1 instead of 2",
		"observer do on t/a/in: own snapshot\n", "observer do on t/a/in: own commit\n", "# writes t/all/total = \"1\"")

	p = onSetupsDB(func(ctx context.Context, db *percolator.DB, _ percolator.Cell) error {
		return increment(total)(ctx, db)
	}, "a", "b")
	p.Finally = holds(total, 2)
	requireComplete(t, p)

	// It meets clients as well.
	p = onSetupsDB(func(ctx context.Context, db *percolator.DB, _ percolator.Cell) error {
		return incrementInTwo(total)(ctx, db)
	}, "a")
	p.Clients = append(p.Clients, Client{Name: "other", Run: increment(total)})
	p.Finally = holds(total, 2)
	requireViolation(t, p, "t/all/total is 1 instead of 2", "other: commit\n")
}

// A state between two transactions of a run's function is seen by everybody.
func TestAlwaysSeesStatesWithinRuns(t *testing.T) {
	t.Parallel()
	x, y := cell("x", "n"), cell("y", "n")
	p := onSetupsDB(func(ctx context.Context, db *percolator.DB, _ percolator.Cell) error {
		return errors.Join(put(x, 1).Run(ctx, db), put(y, 1).Run(ctx, db))
	}, "a")
	p.Always = func(ctx context.Context, tx *percolator.Txn) error {
		nx, err := number(ctx, tx, x)
		if err != nil {
			return err
		}
		return holds(y, nx)(ctx, tx)
	}
	requireViolation(t, p, "t/y/n is 0 instead of 1", "observer do on t/a/in: own commit\n")
}

// What goes wrong for clients goes wrong for the own transactions of a run's function.
func TestFaultsWithinRuns(t *testing.T) {
	t.Parallel()
	result := ""
	n := cell("all", "n")
	p := onSetupsDB(func(ctx context.Context, db *percolator.DB, _ percolator.Cell) error {
		calls := 0
		err := db.Update(ctx, func(tx *percolator.Txn) error {
			calls++
			old, err := number(ctx, tx, n)
			if err != nil {
				return err
			}
			return set(tx, n, old+1)
		})
		if calls > 1 {
			result += "again "
		}
		if errors.Is(err, percolator.ErrUndetermined) {
			result += "undetermined "
			return nil
		}
		return err
	}, "a")
	p.Finally = func(ctx context.Context, tx *percolator.Txn) error {
		count, err := number(ctx, tx, n)
		result += fmt.Sprint(count)
		return err
	}
	require.Equal(t, []string{"1"}, outcomes(t, p, &result))
	p.Faults = Faults{Conflicts: 1}
	require.Equal(t, []string{"1", "2", "again 1"}, outcomes(t, p, &result), "the own transaction, or the run, meets a conflict")
	p.Faults = Faults{Undetermined: 1}
	require.Subset(t, outcomes(t, p, &result), []string{"1", "undetermined 0", "undetermined 1"})
	p.Faults = Faults{Deaths: 1}
	// It dies in its client, before or after its own commit, or with the run's.
	require.Equal(t, []string{"0", "1", "2"}, outcomes(t, p, &result))
	p.Finally = func(ctx context.Context, tx *percolator.Txn) error {
		count, err := number(ctx, tx, n)
		if err == nil && count > 1 {
			err = errors.New("it counted twice")
		}
		return err
	}
	requireViolation(t, p, "it counted twice")
	_, err := replay(t, p, `
		put a: snapshot
		put a: commit
		observer do on t/a/in: snapshot
		observer do on t/a/in: own snapshot
		observer do on t/a/in: dies after its own commit
	`)
	require.ErrorContains(t, err, "it counted twice")
}

// Clients that use the database of Setup, or of each other, stop there as well.
func TestDatabasesOfOthers(t *testing.T) {
	t.Parallel()
	var shared *percolator.DB
	p := increments(func(c percolator.Cell) func(context.Context, *percolator.DB) error {
		return func(ctx context.Context, _ *percolator.DB) error { return incrementInTwo(c)(ctx, shared) }
	}, 2)
	p.Setup = func(_ context.Context, db *percolator.DB) error { shared = db; return nil }
	requireViolation(t, p, "t/counter/n is 1 instead of 2", "client 1: snapshot\n", "client 2: snapshot\n")

	p.Setup = nil
	for i, c := range p.Clients {
		p.Clients[i].Run = func(ctx context.Context, db *percolator.DB) error {
			if i == 0 {
				shared = db
			}
			return c.Run(ctx, db)
		}
	}
	requireViolation(t, p, "t/counter/n is 1 instead of 2", "client 1: snapshot\n", "client 2: snapshot\n")
}

// Checks may use the database of Setup: nobody has to choose then.
func TestChecksOnSetupsDB(t *testing.T) {
	t.Parallel()
	var db *percolator.DB
	c := cell("counter", "n")
	p := increments(increment, 2)
	p.Setup = func(_ context.Context, its *percolator.DB) error { db = its; return nil }
	before := requireComplete(t, p).Schedules
	check := func(want int) func(ctx context.Context, tx *percolator.Txn) error {
		return func(ctx context.Context, _ *percolator.Txn) error {
			return db.View(ctx, func(tx *percolator.Txn) error {
				if want > 0 {
					return holds(c, want)(ctx, tx)
				}
				_, err := number(ctx, tx, c)
				return err
			})
		}
	}
	p.Always, p.Finally = check(0), check(2)
	require.Equal(t, before, requireComplete(t, p).Schedules)
}

// A transaction that nobody is known to make can be put into no order.
func TestTransactionOfNobody(t *testing.T) {
	t.Parallel()
	p := onSetupsDB(func(_ context.Context, db *percolator.DB, _ percolator.Cell) error {
		return increment(cell("all", "n"))(context.Background(), db)
	}, "a")
	requireViolation(t, p, "belongs to no client and no run")
}

// leased is a program whose runs take a lease, which lasts for two seconds, and give it back. Two workers run it.
// heeds tells that a run heeds the lease of another one.
func leased(heeds bool, holders *int) Program {
	lease := cell("all", "lease")
	p := onSetupsDB(func(ctx context.Context, db *percolator.DB, _ percolator.Cell) error {
		taken := false
		err := db.Update(ctx, func(tx *percolator.Txn) error {
			until, err := number(ctx, tx, lease)
			now := int(time.Now().Unix())
			if taken = err == nil && (!heeds || until <= now); !taken {
				return err
			}
			return set(tx, lease, now+2)
		})
		if err != nil || !taken {
			return errors.Join(percolator.RetryAfter(time.Second), err)
		}
		*holders++
		err = put(lease, 0).Run(ctx, db)
		*holders--
		return err
	}, "a")
	setup := p.Setup
	p.Setup = func(ctx context.Context, db *percolator.DB) error { *holders = 0; return setup(ctx, db) }
	p.Workers = 2
	p.Always = func(context.Context, *percolator.Txn) error {
		if *holders > 1 {
			return errors.New("two have the lease")
		}
		return nil
	}
	return p
}

// Who waits for a lease comes again while its holder stands still, as often as the Program says: so a lease ends, and the
// schedules have an end.
func TestRetriesWhileOthersStand(t *testing.T) {
	t.Parallel()
	holders := 0
	requireViolation(t, leased(false, &holders), "two have the lease")
	p := leased(true, &holders)
	p.Retries = -1
	none := requireComplete(t, p)
	p.Retries = 1
	require.Greater(t, requireComplete(t, p).Schedules, none.Schedules)
	p.Retries = 2 // the lease ends meanwhile
	requireViolation(t, p, "two have the lease", "observer do on t/a/in, worker 2: snapshot, again\n")
}

// A run fails when another one of its cell has been made: it is not parked, though nothing is left to be done.
func TestFailureOfARunThatIsDone(t *testing.T) {
	t.Parallel()
	calls := cell("all", "calls")
	p := onSetupsDB(func(ctx context.Context, db *percolator.DB, _ percolator.Cell) error {
		n := 0
		err := db.Update(ctx, func(tx *percolator.Txn) (err error) {
			if n, err = number(ctx, tx, calls); err != nil {
				return err
			}
			return set(tx, calls, n+1)
		})
		if n == 1 {
			err = errors.New("somebody was here")
		}
		return err
	}, "a")
	p.Workers = 2
	requireComplete(t, p)
}
