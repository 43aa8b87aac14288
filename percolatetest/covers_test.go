package percolatetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// outcomes explores p to its end, and returns what result was at the end of its schedules.
func outcomes(t *testing.T, p Program, result *string) []string {
	t.Helper()
	seen := map[string]bool{}
	setup := p.Setup
	p.Setup = func(ctx context.Context, db *percolator.DB) error {
		*result = ""
		if setup == nil {
			return nil
		}
		return setup(ctx, db)
	}
	finally := p.Finally
	p.Finally = func(ctx context.Context, tx *percolator.Txn) error {
		if finally != nil {
			if err := finally(ctx, tx); err != nil {
				return err
			}
		}
		seen[*result] = true
		return nil
	}
	requireComplete(t, p)
	return slices.Sorted(maps.Keys(seen))
}

func TestCoversOrdersOfCommits(t *testing.T) {
	t.Parallel()
	c := cell("log", "text")
	result := ""
	var p Program
	for _, name := range []string{"a", "b", "c"} {
		p.Clients = append(p.Clients, Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
			return db.Update(ctx, func(tx *percolator.Txn) error {
				text, err := tx.Get(ctx, c)
				if err != nil {
					text = nil
				}
				return tx.Set(c, append(text, name...))
			})
		}})
	}
	p.Finally = func(ctx context.Context, tx *percolator.Txn) error {
		text, err := tx.Get(ctx, c)
		result = string(text)
		return err
	}
	require.Equal(t, []string{"abc", "acb", "bac", "bca", "cab", "cba"}, outcomes(t, p, &result))
}

// TestCoversSnapshots has a reader that takes its snapshot anywhere between the commits of
// writers that have nothing to do with each other, in each way to begin.
func TestCoversSnapshots(t *testing.T) {
	t.Parallel()
	x, y := cell("x", "in"), cell("y", "in")
	result := ""
	look := func(ctx context.Context, tx *percolator.Txn) error {
		nx, err := number(ctx, tx, x)
		if err != nil {
			return err
		}
		ny, err := number(ctx, tx, y)
		result += fmt.Sprint(nx, ny, " ")
		return err
	}
	view := func(ctx context.Context, db *percolator.DB) error {
		return db.View(ctx, func(tx *percolator.Txn) error { return look(ctx, tx) })
	}
	begin := func(ctx context.Context, db *percolator.DB) error {
		tx, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		return look(ctx, tx)
	}
	all := []string{"0 0 ", "0 1 ", "1 0 ", "1 1 "}
	for _, run := range []func(context.Context, *percolator.DB) error{view, begin} {
		p := Program{Clients: []Client{put(x, 1), put(y, 1), {Name: "reader", Run: run}}}
		require.Equal(t, all, outcomes(t, p, &result))
	}
	// The second transaction of a client stops as its first one does, whatever the first was.
	both := func(first, second func(context.Context, *percolator.DB) error) []string {
		return outcomes(t, Program{Clients: []Client{put(x, 1), {Name: "reader", Run: func(ctx context.Context, db *percolator.DB) error {
			if err := first(ctx, db); err != nil {
				return err
			}
			return second(ctx, db)
		}}}}, &result)
	}
	for _, first := range []func(context.Context, *percolator.DB) error{view, begin} {
		for _, second := range []func(context.Context, *percolator.DB) error{view, begin} {
			require.Equal(t, []string{"0 0 0 0 ", "0 0 1 0 ", "1 0 1 0 "}, both(first, second))
		}
	}
}

// TestCoversTransactionsWithinEachOther has a client with two transactions at once.
func TestCoversTransactionsWithinEachOther(t *testing.T) {
	t.Parallel()
	a, b := cell("a", "in"), cell("b", "in")
	result := ""
	p := Program{Clients: []Client{{Name: "two", Run: func(ctx context.Context, db *percolator.DB) error {
		first, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		second, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		if err := set(first, a, 1); err != nil {
			return err
		}
		if err := set(second, b, 1); err != nil {
			return err
		}
		if err := first.Commit(ctx); err != nil {
			return err
		}
		return second.Commit(ctx)
	}}, {Name: "reader", Run: func(ctx context.Context, db *percolator.DB) error {
		return db.View(ctx, func(tx *percolator.Txn) error {
			x, err := number(ctx, tx, a)
			if err != nil {
				return err
			}
			y, err := number(ctx, tx, b)
			result = fmt.Sprint(x, y)
			return err
		})
	}}}}
	require.Equal(t, []string{"0 0", "1 0", "1 1"}, outcomes(t, p, &result))
}

// TestCoversConflicts has two clients that do not try again: each of them may be the one that is
// refused. They write the same row, or different ones of a table that both have scanned.
func TestCoversConflicts(t *testing.T) {
	t.Parallel()
	result := ""
	client := func(name, row string, scans bool) Client {
		return Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
			tx, err := db.Begin(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(ctx) }()
			if scans {
				for _, err := range tx.Scan(ctx, percolator.Range{Table: "t"}) {
					return err // there is a row already
				}
			}
			if err := set(tx, cell(row, "in"), 1); err != nil {
				return err
			}
			if err = tx.Commit(ctx); errors.Is(err, percolator.ErrConflict) {
				result = name
			}
			return err
		}}
	}
	refused := []string{"", "a", "b"}
	require.Equal(t, refused, outcomes(t, Program{Clients: []Client{client("a", "row", false), client("b", "row", false)}}, &result))
	require.Equal(t, refused, outcomes(t, Program{
		Clients: []Client{client("a", "one", true), client("b", "other", true)},
		Options: []percolator.Option{percolator.WithDefaultIsolation(percolator.Serializable)},
	}, &result))
}

// TestAlwaysSeesEveryState has clients that write different rows: the order of their commits
// makes no schedule of its own, and yet both states in between are seen.
func TestAlwaysSeesEveryState(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	p := Program{
		Clients: []Client{put(cell("a", "in"), 1), put(cell("b", "in"), 1)},
		Always: func(ctx context.Context, tx *percolator.Txn) error {
			a, aerr := number(ctx, tx, cell("a", "in"))
			b, berr := number(ctx, tx, cell("b", "in"))
			seen[fmt.Sprint(a, b)] = true
			return errors.Join(aerr, berr)
		},
	}
	requireComplete(t, p)
	require.Equal(t, []string{"0 0", "0 1", "1 0", "1 1"}, slices.Sorted(maps.Keys(seen)))
}

// TestRandomSchedulesReplay runs schedules at random, and each again by its text.
func TestRandomSchedulesReplay(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64() //nolint:gosec // a seed that is printed
	t.Logf("seed %d", seed)
	total := cell("total", "n")
	p, err := Program{
		Clients:   []Client{put(cell("a", "in"), 1), put(cell("b", "in"), 2), {Name: "c", Run: incrementInTwo(total)}},
		Observers: []percolator.Observer{adder("add", total), adder("also", cell("also", "n"))},
		Faults:    Faults{Conflicts: 1, Undetermined: 1, Deaths: 1},
		Workers:   2,
	}.withDefaults()
	require.NoError(t, err)
	kinds := map[string]bool{}
	for i := range uint64(100) {
		steps, err := schedule(t, &p, true, random(seed, i))
		require.NoError(t, err)
		text := write(steps)
		happened, err := replay(t, p, text)
		require.NoError(t, err)
		require.Equal(t, text, happened)
		for _, line := range labels(steps) {
			for _, kind := range []string{"meets a conflict", "took effect", "took no effect", "dies after", "dies before"} {
				if strings.Contains(line, kind) {
					kinds[kind] = true
				}
			}
		}
	}
	require.Len(t, kinds, 5, "every fault happened in some schedule")
}

// TestCoversDeathsAroundACommit has a client with an effect after its transaction: one that
// dies does nothing after its last step.
func TestCoversDeathsAroundACommit(t *testing.T) {
	t.Parallel()
	result := ""
	c := cell("a", "in")
	p := Program{
		Clients: []Client{{Name: "shop", Run: func(ctx context.Context, db *percolator.DB) error {
			err := increment(c)(ctx, db)
			result += "mail "
			return err
		}}},
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			n, err := number(ctx, tx, c)
			result += fmt.Sprint(n)
			return err
		},
		Faults: Faults{Deaths: 1, Undetermined: 1},
	}
	require.Equal(t, []string{"0", "1", "mail 0", "mail 1"}, outcomes(t, p, &result))
}

// TestEveryOrder has programs for which the order of steps matters that the database does not tell
// apart.
func TestEveryOrder(t *testing.T) {
	t.Parallel()
	a, b := cell("a", "in"), cell("b", "in")
	var told chan string
	tells := func(name string) Client {
		return Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
			defer func() { told <- name }()
			return db.View(ctx, func(tx *percolator.Txn) error { return holds(a, 0)(ctx, tx) })
		}}
	}
	p := Program{
		Setup:   func(context.Context, *percolator.DB) error { told = make(chan string, 2); return nil },
		Clients: []Client{tells("one"), tells("two")},
		Finally: func(context.Context, *percolator.Txn) error {
			if first := <-told; first == "two" {
				return errors.New("two was first")
			}
			return nil
		},
	}
	requireComplete(t, p) // it does not see the channel
	p.EveryOrder = true
	requireViolation(t, p, "two was first")

	var at [2]percolator.Timestamp
	copies := func(name string, from, to percolator.Cell, at *percolator.Timestamp) Client {
		return Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
			return db.Update(ctx, func(tx *percolator.Txn) error {
				n, err := number(ctx, tx, from)
				if err != nil {
					return err
				}
				return set(tx, to, n+1)
			}, percolator.WithCommitTimestamp(at))
		}}
	}
	p = Program{
		Clients: []Client{copies("one", a, b, &at[0]), copies("two", b, a, &at[1])},
		Finally: func(ctx context.Context, tx *percolator.Txn) error {
			if holds(a, 1)(ctx, tx) == nil && holds(b, 1)(ctx, tx) == nil && at[0] < at[1] {
				return errors.New("one committed first")
			}
			return nil
		},
	}
	requireComplete(t, p)
	p.EveryOrder = true
	requireViolation(t, p, "one committed first")
}
