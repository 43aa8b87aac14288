package percolator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type middlewareKey struct{}

// Middleware wraps every call: the first one given is the outermost.
func TestMiddleware(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	var steps []string
	step := func(name string) Middleware {
		return func(ctx context.Context, run Run, _ *Txn, next func(context.Context) error) error {
			require.Equal(t, Run{"o", rowA, 1}, run)
			steps = append(steps, name)
			err := next(context.WithValue(ctx, middlewareKey{}, name))
			steps = append(steps, "end of "+name)
			return err
		}
	}
	worker := watching(t, c, Observer{Name: "o", Func: func(ctx context.Context, tx *Txn, _ Cell) error {
		steps = append(steps, "function within "+ctx.Value(middlewareKey{}).(string))
		return tx.Set(rowB, []byte("1"))
	}})
	require.NoError(t, worker.Use(step("a"), step("b")))
	require.NoError(t, worker.Use(func(ctx context.Context, _ Run, tx *Txn, next func(context.Context) error) error {
		return errors.Join(tx.Set(rowC, []byte("by middleware")), next(ctx))
	}))
	require.NoError(t, worker.Use())
	set(t, c.DB, rowA, "1")
	runs(t, worker, rowA)
	require.Equal(t, []string{"a", "b", "function within b", "end of b", "end of a"}, steps)
	require.Equal(t, "1 by middleware", value(t, c, rowB)+" "+value(t, c, rowC))
}

// What Middleware returns is the result of the run: it may hide the function's error, and add its own.
func TestMiddlewareDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	called := 0
	worker := watching(t, c, Observer{Name: "o", MaxAttempts: 3, Func: func(context.Context, *Txn, Cell) error {
		called++
		return errTest
	}})
	mode := "skip"
	require.NoError(t, worker.Use(func(ctx context.Context, _ Run, _ *Txn, next func(context.Context) error) error {
		switch mode {
		case "skip":
			return nil
		case "panic":
			panic("in the middleware")
		}
		return errors.Join(next(ctx), errors.New("and more"))
	}))
	var told []RunError
	require.NoError(t, worker.OnError(func(_ context.Context, e RunError) { told = append(told, e) }))
	set(t, c.DB, rowA, "1")
	runs(t, worker, rowA)
	require.Zero(t, called)
	require.Empty(t, told)

	set(t, c.DB, rowA, "2")
	mode = "panic"
	look(t, worker, rowA)
	require.Len(t, told, 1)
	require.Equal(t, "in the middleware", told[0].Panic)
	require.NotEmpty(t, told[0].Stack)
	require.Equal(t, []any{Run{"o", rowA, 1}, 1, false}, []any{told[0].Run, told[0].Attempt, told[0].Parked})

	mode = "call"
	for range 2 {
		w.clock.advance(worldAge / 10)
		look(t, worker, rowA)
	}
	require.Len(t, told, 3)
	require.Equal(t, 2, called)
	require.ErrorIs(t, told[2].Err, errTest)
	require.ErrorContains(t, told[2].Err, "and more")
	require.Nil(t, told[2].Panic)
	require.Equal(t, []any{3, true}, []any{told[2].Attempt, told[2].Parked})
}

// A conflict and a store that is away are no failures, so nobody is told.
func TestOnErrorIsForFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	worker := watching(t, c, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error { return ErrConflict }})
	require.NoError(t, worker.OnError(func(context.Context, RunError) { t.Error("it was told of a conflict") }))
	set(t, c.DB, rowA, "1")
	require.Equal(t, runConflict, look(t, worker, rowA))
}

// A function is told which attempt it makes. Failures count; a conflict, RetryAfter and what came of an earlier change do not.
func TestRunTellsTheAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	answers := []error{errTest, ErrConflict, errTest, RetryAfter(time.Millisecond), nil, errTest, nil}
	var told, around, failed []int
	worker := watching(t, c, Observer{Name: "o", Backoff: Backoff{Min: time.Millisecond, Max: time.Millisecond}, Func: func(_ context.Context, tx *Txn, cell Cell) error {
		run, ok := tx.Run()
		require.True(t, ok)
		require.Equal(t, Run{"o", cell, run.Attempt}, run)
		told = append(told, run.Attempt)
		return answers[len(told)-1]
	}})
	require.NoError(t, worker.Use(func(ctx context.Context, run Run, _ *Txn, next func(context.Context) error) error {
		around = append(around, run.Attempt)
		return next(ctx)
	}))
	require.NoError(t, worker.OnError(func(_ context.Context, e RunError) { failed = append(failed, e.Attempt) }))
	until := func(calls int) {
		for len(told) < calls {
			w.clock.advance(10 * time.Millisecond)
			look(t, worker, rowA)
		}
	}
	set(t, c.DB, rowA, "1")
	until(5)
	set(t, c.DB, rowA, "2")
	until(7)
	require.Equal(t, []int{1, 2, 2, 3, 3, 1, 2}, told)
	require.Equal(t, told, around)
	require.Equal(t, []int{1, 2, 1}, failed)
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		run, ok := tx.Run()
		require.False(t, ok)
		require.Zero(t, run)
		return nil
	}))
}

func TestMiddlewareRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	worker := NewWorker(w.client().DB, WorkerConfig{})
	require.ErrorIs(t, worker.Use(nil), ErrInvalid)
	require.ErrorIs(t, worker.OnError(nil), ErrInvalid)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, worker.Run(ctx))
	require.ErrorIs(t, worker.Use(func(context.Context, Run, *Txn, func(context.Context) error) error { return nil }), ErrWorkerRunning)
	require.ErrorIs(t, worker.OnError(func(context.Context, RunError) {}), ErrWorkerRunning)
}
