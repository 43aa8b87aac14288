package percolatetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

func useOpen(t *testing.T) {
	t.Helper()
	ctx, db, total := t.Context(), Open(t), cell("total", "n")
	require.NoError(t, put(cell("old", "in"), 1).Run(ctx, db))
	o := adder("add", total)
	RunUntilIdle(t, db, o) // sees what was there before
	for _, row := range []string{"a", "b"} {
		require.NoError(t, put(cell(row, "in"), 1).Run(ctx, db))
	}
	RunUntilIdle(t, db, o, adder("late", cell("late", "n")))
	require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
		return errors.Join(holds(total, 3)(ctx, tx), holds(cell("late", "n"), 3)(ctx, tx))
	}))
}

func TestOpen(t *testing.T) {
	t.Parallel()
	useOpen(t)
}

// TestOpenInABubble does the same by the clock of a bubble, which shows that nobody waits for
// long.
func TestOpenInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		useOpen(t)
		require.Less(t, time.Since(began), time.Second)
	})
}

func TestOpenGivesEachTestItsOwn(t *testing.T) {
	t.Parallel()
	ctx, one, other := t.Context(), Open(t), Open(t)
	require.NoError(t, put(cell("a", "in"), 1).Run(ctx, one))
	require.NoError(t, other.View(ctx, func(tx *percolator.Txn) error { return holds(cell("a", "in"), 0)(ctx, tx) }))
}

func TestOpenTakesOptions(t *testing.T) {
	t.Parallel()
	db := Open(t, percolator.WithLimits(percolator.Limits{Value: 3}))
	err := db.Update(t.Context(), func(tx *percolator.Txn) error { return tx.Set(cell("a", "in"), []byte("long")) })
	require.ErrorIs(t, err, percolator.ErrTooLarge)
}

// recorder is a test that only notes what becomes of it.
type recorder struct {
	testing.TB
	said []string
}

func (r *recorder) Errorf(format string, args ...any) {
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

// failure runs f with a test of its own, and returns what that says.
func failure(t *testing.T, f func(t testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return strings.Join(r.said, "\n")
}

func TestRunUntilIdleTellsOfFailures(t *testing.T) {
	t.Parallel()
	db := Open(t, percolator.WithLogger(nil))
	require.NoError(t, put(cell("a", "in"), 1).Run(t.Context(), db))
	calls := 0
	bad := percolator.Observer{Name: "bad", Table: "t", Column: "in", Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
		calls++
		return errors.New("no such thing")
	}}
	said := failure(t, func(t testing.TB) { RunUntilIdle(t, db, bad) })
	require.Contains(t, said, `a run of observer "bad" on t/a/in was parked after 3 attempts: no such thing`)
	require.Equal(t, 3, calls)
	require.Contains(t, failure(t, func(t testing.TB) { RunUntilIdle(t, db, percolator.Observer{}) }), "has no name")
	require.Contains(t, failure(t, func(t testing.TB) { RunUntilIdle(t, nil) }), "the database is nil")
	require.Contains(t, failure(t, func(t testing.TB) { Open(t, percolator.WithOracle("", noOracle{})) }), "WithOracle needs a name")
}

// An observer may go by several names. Its parked runs have the one that it is called now.
func TestRunUntilIdleTellsOfRenamedObservers(t *testing.T) {
	t.Parallel()
	db := Open(t, percolator.WithLogger(nil))
	RunUntilIdle(t, db, adder("old", cell("total", "n")))
	require.NoError(t, db.RenameObserver(t.Context(), "old", "new"))
	for i, name := range []string{"old", "new"} {
		require.NoError(t, put(cell(name, "in"), i).Run(t.Context(), db))
		said := failure(t, func(t testing.TB) {
			RunUntilIdle(t, db, percolator.Observer{Name: name, Table: "t", Column: "in", Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
				return errors.New("no such thing")
			}})
		})
		require.Contains(t, said, fmt.Sprintf(`a run of observer "new" on t/%s/in was parked after 3 attempts: no such thing`, name))
	}
	// One of the same name in another column is another observer.
	RunUntilIdle(t, db, percolator.Observer{Name: "old", Table: "t", Column: "other", Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return nil }})
}

// ending is a recorder with a deadline.
type ending struct {
	*recorder
	at time.Time
}

func (e ending) Deadline() (time.Time, bool) { return e.at, true }

func TestRunUntilIdleTellsOfObserversThatNeverEnd(t *testing.T) {
	t.Parallel()
	db := Open(t)
	require.NoError(t, put(cell("a", "in"), 1).Run(t.Context(), db))
	said := failure(t, func(t testing.TB) {
		RunUntilIdle(ending{t.(*recorder), time.Now().Add(time.Second)}, db, percolator.Observer{
			Name: "self", Table: "t", Column: "in", Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
				n, err := number(ctx, tx, c)
				if err != nil {
					return err
				}
				return set(tx, c, n+1)
			},
		})
	})
	require.Contains(t, said, "does an observer run because of itself?")
}

type noOracle struct{}

func (noOracle) Draw(context.Context, int) (percolator.Timestamp, error) {
	return 0, errors.New("none")
}

// TestExploreReports runs Explore and Replay as a user does.
func TestExploreReports(t *testing.T) {
	t.Parallel()
	r := Explore(t, increments(increment, 2))
	require.True(t, r.Complete)
	require.Nil(t, r.Violation)
	require.Contains(t, r.String(), "complete: ")
	Replay(t, increments(increment, 2), "client 2: snapshot\nclient 2: commit\nclient 1: snapshot\nclient 1: commit\n")
}
