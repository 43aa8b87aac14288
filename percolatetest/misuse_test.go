package percolatetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

func TestInvalidPrograms(t *testing.T) {
	t.Parallel()
	nothing := func(context.Context, *percolator.DB) error { return nil }
	for says, p := range map[string]Program{
		"neither clients nor observers": {},
		"has no function Run":           {Clients: []Client{{Name: "a"}}},
		`client 0 is named ""`:          {Clients: []Client{{Run: nothing}}},
		`client 0 is named "a: b"`:      {Clients: []Client{{Name: "a: b", Run: nothing}}},
		`two clients are named "a"`:     {Clients: []Client{{Name: "a", Run: nothing}, {Name: "a", Run: nothing}}},
		"Faults.Deaths is negative":     {Clients: []Client{{Name: "a", Run: nothing}}, Faults: Faults{Deaths: -1}},
		"has no function":               {Observers: []percolator.Observer{{Name: "o", Table: "t", Column: "c"}}},
		"has an observer \"o\" already": {Observers: []percolator.Observer{adder("o", cell("x", "n")), adder("o", cell("x", "n"))}},
	} {
		v := explore(t, p).Violation
		require.NotNil(t, v, says)
		require.ErrorIs(t, v, errProgram, says)
		require.ErrorContains(t, v, says)
		require.Empty(t, v.Schedule)
	}
}

// TestFailingPrograms has programs that fail, each with a clear error. It is long because it is a list.
func TestFailingPrograms(t *testing.T) {
	t.Parallel()
	c := cell("a", "in")
	before := func(f func(ctx context.Context, db *percolator.DB) error) Program {
		return Program{Clients: []Client{{Name: "bad", Run: func(ctx context.Context, db *percolator.DB) error {
			if err := increment(c)(ctx, db); err != nil {
				return err
			}
			return f(ctx, db)
		}}, put(cell("b", "in"), 1)}}
	}
	for says, p := range map[string]Program{
		"bad panicked: oh": before(func(context.Context, *percolator.DB) error { panic("oh") }),
		"bad returned an error: no luck": before(func(context.Context, *percolator.DB) error {
			return errors.New("no luck")
		}),
		"bad blocks for ever": before(func(ctx context.Context, _ *percolator.DB) error {
			<-ctx.Done()
			return ctx.Err()
		}),
		"bad ended its goroutine": before(func(context.Context, *percolator.DB) error {
			runtime.Goexit()
			return nil
		}),
		"must not use goroutines of its own": before(func(ctx context.Context, db *percolator.DB) error {
			other := make(chan error)
			go func() {
				defer close(other)
				_ = increment(cell("c", "in"))(ctx, db)
			}()
			err := increment(cell("d", "in"))(ctx, db)
			<-other
			return err
		}),
		"does not end within 50 steps": {Steps: 50, Clients: []Client{{Name: "polls", Run: func(ctx context.Context, db *percolator.DB) error {
			for ctx.Err() == nil {
				err := db.View(ctx, func(tx *percolator.Txn) error { return holds(c, 1)(ctx, tx) })
				if err == nil {
					return nil
				}
				time.Sleep(time.Second)
			}
			return ctx.Err()
		}}, put(c, 1)}},
		"Always panicked: oh": {Clients: []Client{put(c, 1)}, Always: func(context.Context, *percolator.Txn) error { panic("oh") }},
		"Setup ended its goroutine": {Clients: []Client{put(c, 1)}, Setup: func(context.Context, *percolator.DB) error {
			runtime.Goexit()
			return nil
		}},
		"Always ended its goroutine": {Clients: []Client{put(c, 1)}, Always: func(ctx context.Context, tx *percolator.Txn) error {
			if holds(c, 1)(ctx, tx) == nil {
				runtime.Goexit()
			}
			return nil
		}},
		"Finally ended its goroutine": {Clients: []Client{put(c, 1)}, Finally: func(context.Context, *percolator.Txn) error {
			runtime.Goexit()
			return nil
		}},
		"do not come to rest": {
			Steps: 20, Setup: func(ctx context.Context, db *percolator.DB) error { return put(c, 1).Run(ctx, db) },
			Observers: []percolator.Observer{{Name: "self", Table: "t", Column: "in", Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
				n, err := number(ctx, tx, c)
				if err != nil {
					return err
				}
				return set(tx, c, n+1)
			}}},
		},
	} {
		v := explore(t, p).Violation
		require.NotNil(t, v, says)
		require.ErrorContains(t, v.Err, says)
		require.True(t, v.Deterministic, says)
	}
}

// TestWaitingForEachOther lets a client wait for another one by a channel.
func TestWaitingForEachOther(t *testing.T) {
	t.Parallel()
	var first chan struct{}
	p := Program{
		Setup: func(context.Context, *percolator.DB) error { first = make(chan struct{}); return nil },
		Clients: []Client{{Name: "first", Run: func(ctx context.Context, db *percolator.DB) error {
			defer close(first)
			return increment(cell("a", "in"))(ctx, db)
		}}, {Name: "second", Run: func(ctx context.Context, db *percolator.DB) error {
			<-first
			return db.View(ctx, func(tx *percolator.Txn) error { return holds(cell("a", "in"), 1)(ctx, tx) })
		}}},
	}
	require.Equal(t, 1, requireComplete(t, p).Schedules)
}

// TestSleepsCostNothing has clients that use the clock, which is the bubble's.
func TestSleepsCostNothing(t *testing.T) {
	t.Parallel()
	p := Program{Clients: []Client{{Name: "slow", Run: func(ctx context.Context, db *percolator.DB) error {
		began := time.Now()
		time.Sleep(time.Minute)
		if took := time.Since(began); took < time.Minute || took > 2*time.Minute {
			return errors.New("the sleep took " + took.String())
		}
		return increment(cell("a", "in"))(ctx, db)
	}}, put(cell("a", "in"), 1)}}
	requireComplete(t, p)
}

// TestSleepsAreNoWaits has clients that sleep for long, or after they waited for another client: nobody takes
// them for blocked, and they meet the others in every order.
func TestSleepsAreNoWaits(t *testing.T) {
	t.Parallel()
	in := cell("a", "in")
	var first chan struct{}
	p := Program{
		Setup: func(context.Context, *percolator.DB) error { first = make(chan struct{}); return nil },
		Clients: []Client{{Name: "first", Run: func(ctx context.Context, db *percolator.DB) error {
			if err := increment(in)(ctx, db); err != nil {
				return err
			}
			close(first)
			return increment(in)(ctx, db)
		}}, {Name: "second", Run: func(ctx context.Context, db *percolator.DB) error {
			<-first
			time.Sleep(time.Second)
			return increment(in)(ctx, db)
		}}},
		Finally: holds(in, 3),
	}
	require.Greater(t, requireComplete(t, p).Schedules, 2)

	p = Program{Clients: []Client{{Name: "slow", Run: func(ctx context.Context, db *percolator.DB) error {
		time.Sleep(12 * time.Hour)
		return increment(in)(ctx, db)
	}}, put(cell("b", "in"), 1)}, Finally: holds(in, 1)}
	requireComplete(t, p)
}

// TestClientsBeginInOrder has clients that do something before their first transactions.
func TestClientsBeginInOrder(t *testing.T) {
	t.Parallel()
	var began []string
	client := func(name string) Client {
		return Client{Name: name, Run: func(ctx context.Context, db *percolator.DB) error {
			began = append(began, name) // without a lock: two clients are never under way at once
			return increment(cell(name, "in"))(ctx, db)
		}}
	}
	p := Program{
		Setup:   func(context.Context, *percolator.DB) error { began = nil; return nil },
		Clients: []Client{client("one"), client("two"), client("three")},
		Finally: func(context.Context, *percolator.Txn) error {
			if !slices.Equal(began, []string{"one", "two", "three"}) {
				return fmt.Errorf("they began as %q", began)
			}
			return nil
		},
	}
	requireComplete(t, p)
}

// TestNotDeterministic has programs that do something else each time.
func TestNotDeterministic(t *testing.T) {
	t.Parallel()
	runs := 0
	c := cell("a", "in")
	later := Program{
		Setup: func(context.Context, *percolator.DB) error { runs++; return nil },
		Clients: []Client{put(cell("b", "in"), 1), {Name: "odd", Run: func(ctx context.Context, db *percolator.DB) error {
			if runs%2 == 0 {
				return nil
			}
			return increment(c)(ctx, db)
		}}},
	}
	v := explore(t, later).Violation
	require.NotNil(t, v)
	require.False(t, v.Deterministic)
	require.ErrorContains(t, v, "not deterministic at step 1")

	runs = 0
	values := Program{
		Clients: []Client{{Name: "odd", Run: func(ctx context.Context, db *percolator.DB) error {
			runs++
			return db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(c, strconv.AppendInt(nil, int64(runs), 10)) })
		}}},
		Finally: func(context.Context, *percolator.Txn) error { return errors.New("wrong") },
	}
	v = explore(t, values).Violation
	require.NotNil(t, v)
	require.False(t, v.Deterministic)
	require.ErrorContains(t, v, "not deterministic at step 2")
	require.ErrorContains(t, v, "wrong")

	runs = 0
	values.Finally = func(context.Context, *percolator.Txn) error {
		if runs == 1 {
			return errors.New("wrong")
		}
		return nil
	}
	v = explore(t, values).Violation
	require.NotNil(t, v)
	require.False(t, v.Deterministic)
	require.ErrorContains(t, v, "not deterministic at step 3")
}

func TestReplayOfAnotherSchedule(t *testing.T) {
	t.Parallel()
	p := Program{Clients: []Client{put(cell("a", "in"), 1)}}
	_, err := replay(t, p, "put a: snapshot\nput a: dies before its commit\n")
	require.ErrorContains(t, err, `step 2 of the schedule, "put a: dies before its commit", is not possible; possible are:`)
	require.ErrorContains(t, err, "put a: commit")
	_, err = replay(t, p, "put a: snapshot\n# a comment\n\nput a: commit\nput a: snapshot")
	require.ErrorContains(t, err, "the program has ended before step 3")
	happened, err := replay(t, p, "")
	require.NoError(t, err)
	require.Equal(t, "\tput a: snapshot\n\tput a: commit\n\t\t# writes t/a/in = \"1\"\n", happened)
}

func TestLimits(t *testing.T) {
	t.Parallel()
	p := increments(increment, 3)
	p.Schedules, p.Random, p.Seed = 5, 7, 42
	r := Explore(t, p)
	require.False(t, r.Complete)
	require.Equal(t, 5, r.Schedules)
	require.Equal(t, 7, r.Random)
	require.Contains(t, r.String(), "bounded: 5 schedules in order and 7 at random (seed 42)")
	p = increments(increment, 3)
	p.Time = time.Nanosecond
	require.False(t, Explore(t, p).Complete)
	p = increments(incrementInTwo, 2)
	p.Schedules, p.Random = 1, -1
	p.Finally = nil
	require.False(t, Explore(t, p).Complete)
}

func TestExploreInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := explore(t, increments(increment, 2)).Violation
		require.NotNil(t, v)
		require.ErrorIs(t, v, errProgram)
		require.ErrorContains(t, v, "must not be called in one")
	})
}
