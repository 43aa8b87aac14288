package coalesce_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/contexts"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
)

func TestCoalesceGivesUpBeforeItLeft(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		storetest.Start(t.Context(), s, ask, "a")
		first := g.Next(t)
		b := storetest.Start(t.Context(), s, ask, "b")
		ctx, cancel := context.WithCancel(t.Context())
		c := storetest.Start(ctx, s, ask, "c1", "c2")
		d := storetest.Start(t.Context(), s, ask, "d1", "d2")
		cancel()
		synctest.Wait()
		require.True(t, c.Done)
		require.ErrorIs(t, c.Err, context.Canceled)
		require.NotErrorIs(t, c.Err, rs.ErrAmbiguous, "it is certain that nothing happened")
		late := storetest.Start(ctx, s, ask, "late")
		require.ErrorIs(t, late.Err, context.Canceled)
		// Its rows are free again: this one need not wait for another batch.
		e := storetest.Start(t.Context(), s, ask, "c1")
		first.Finish()
		second := g.Next(t)
		require.Equal(t, []string{"b", "d1", "d2", "c1"}, second.RowNames())
		second.Finish()
		require.Equal(t, []string{"b"}, b.Names)
		require.Equal(t, []string{"d1", "d2"}, d.Names)
		require.Equal(t, []string{"c1"}, e.Names)

		// The only one of a batch leaves nothing behind.
		storetest.Start(t.Context(), s, ask, "a")
		first = g.Next(t)
		ctx, cancel = context.WithCancel(t.Context())
		storetest.Start(ctx, s, ask, "c")
		cancel()
		synctest.Wait()
		first.Finish()
		g.None(t)
	})
}

func TestCoalesceGivesUpAfterItLeft(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		requireGaveUp := func(r *storetest.Reply) {
			require.True(t, r.Done)
			require.ErrorIs(t, r.Err, context.Canceled)
			require.Equal(t, g.Writes(ask), errors.Is(r.Err, rs.ErrAmbiguous))
		}
		storetest.Start(t.Context(), s, ask, "a")
		first := g.Next(t)
		ctxB, cancelB := context.WithCancel(context.WithValue(t.Context(), contextKey{}, "b"))
		ctxC, cancelC := context.WithCancel(t.Context())
		b := storetest.Start(ctxB, s, ask, "b")
		c := storetest.Start(ctxC, s, ask, "c")
		d := storetest.Start(t.Context(), s, ask, "d")
		first.Finish()
		second := g.Next(t)
		require.Equal(t, "b", second.Ctx.Value(contextKey{}), "values are those of the first caller")
		require.True(t, contexts.Merged(second.Ctx), "the store may know that others wait")
		require.False(t, contexts.Merged(first.Ctx))
		cancelB()
		synctest.Wait()
		requireGaveUp(b)
		require.NoError(t, second.Ctx.Err(), "the others still wait")
		second.Finish()
		require.Equal(t, []string{"c"}, c.Names)
		require.Equal(t, []string{"d"}, d.Names)

		// When the last one gives up, the call has nobody to serve.
		storetest.Start(t.Context(), s, ask, "a")
		first = g.Next(t)
		ctxB, cancelB = context.WithCancel(t.Context())
		b, c = storetest.Start(ctxB, s, ask, "b"), storetest.Start(ctxC, s, ask, "c")
		first.Finish()
		second = g.Next(t)
		cancelC()
		synctest.Wait()
		requireGaveUp(c)
		require.NoError(t, second.Ctx.Err())
		cancelB()
		synctest.Wait()
		requireGaveUp(b)
		require.ErrorIs(t, second.Ctx.Err(), context.Canceled)
		second.Fail(second.Ctx.Err())
		synctest.Wait()

		// A batch of one has its caller's context.
		storetest.Start(t.Context(), s, ask, "a")
		first = g.Next(t)
		ctxB, cancelB = context.WithCancel(t.Context())
		b = storetest.Start(ctxB, s, ask, "b")
		first.Finish()
		second = g.Next(t)
		require.Equal(t, ctxB, second.Ctx)
		cancelB()
		synctest.Wait()
		requireGaveUp(b)
		second.Finish()
	})
}

func TestCoalesceCarriesTheLatestDeadline(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		early, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		want, _ := late.Deadline()
		for _, unbounded := range []bool{false, true} {
			storetest.Start(t.Context(), s, ask, "a")
			first := g.Next(t)
			for i, ctx := range []context.Context{early, late, early} {
				storetest.Start(ctx, s, ask, fmt.Sprint(i))
			}
			if unbounded {
				storetest.Start(context.WithoutCancel(t.Context()), s, ask, "unbounded")
			}
			first.Finish()
			second := g.Next(t)
			deadline, ok := second.Ctx.Deadline()
			require.Equal(t, !unbounded, ok)
			if ok {
				require.Equal(t, want, deadline)
				child, cancel := context.WithTimeout(second.Ctx, time.Hour)
				deadline, _ = child.Deadline()
				require.Equal(t, want, deadline)
				cancel()
			}
			second.Finish()
		}
	})
}
