package coalesce_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func TestCoalesceErrors(t *testing.T) {
	failure := errors.New("connection lost")
	eachKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		batch := func() (*storetest.GateCall, []*storetest.Reply) {
			storetest.Start(t.Context(), s, ask, "first")
			first := g.Next(t)
			replies := []*storetest.Reply{storetest.Start(t.Context(), s, ask, "a"), storetest.Start(t.Context(), s, ask, "b1", "b2"), storetest.Start(t.Context(), s, ask, "c")}
			first.Finish()
			return g.Next(t), replies
		}
		// Of the whole call: everybody's.
		call, replies := batch()
		call.Fail(fmt.Errorf("%w: %w", rs.ErrAmbiguous, failure))
		synctest.Wait()
		for _, r := range replies {
			require.ErrorIs(t, r.Err, failure)
			require.ErrorIs(t, r.Err, rs.ErrAmbiguous)
			require.Empty(t, r.Names)
		}
		// Of a row: its owner's.
		call, replies = batch()
		call.Answer <- storetest.GateAnswer{
			Rows:   []rs.Row{{Row: "a"}, {Row: "b1"}, {Row: "b2", Err: failure}, {Row: "c"}},
			Outs:   []rs.Outcome{{}, {}, {Err: failure}, {}},
			Groups: []rs.GroupOutcome{{}, {}, {Err: failure}, {}},
		}
		synctest.Wait()
		for i, want := range [][]error{{nil}, {nil, failure}, {nil}} {
			require.NoError(t, replies[i].Err)
			require.Equal(t, want, replies[i].Errs)
		}
		// Answers that cannot be told apart are no answers, and something may have
		// happened.
		call, replies = batch()
		call.Answer <- storetest.GateAnswer{Rows: make([]rs.Row, 3), Outs: make([]rs.Outcome, 3), Groups: make([]rs.GroupOutcome, 3)}
		synctest.Wait()
		for _, r := range replies {
			require.ErrorContains(t, r.Err, "3 answers for 4 rows")
			require.Equal(t, g.Writes(ask), errors.Is(r.Err, rs.ErrAmbiguous))
		}
		// One of the calls is too much for the store, and nothing was done: each is
		// asked for by itself.
		call, replies = batch()
		call.Fail(fmt.Errorf("row b2: %w", rs.ErrTooLarge))
		for _, want := range [][]string{{"a"}, {"b1", "b2"}, {"c"}} {
			synctest.Wait()
			call = g.Next(t)
			require.Equal(t, want, call.RowNames())
			if want[0] == "b1" {
				call.Fail(fmt.Errorf("row b2: %w", rs.ErrTooLarge))
			} else {
				call.OK()
			}
		}
		synctest.Wait()
		require.Equal(t, []string{"a"}, replies[0].Names)
		require.ErrorIs(t, replies[1].Err, rs.ErrTooLarge)
		require.Equal(t, []string{"c"}, replies[2].Names)
		requireGoneAreNotAsked(t, ask, g, s)
		for _, kind := range []error{rs.ErrCorrupt, rs.ErrFormat} {
			call, replies = batch()
			requireUnreadableFailsAlone(t, g, call, replies, g.Writes(ask), kind)
		}
	})
}

// requireUnreadableFailsAlone has what one call of a batch reads be damaged, or of an unknown version. That
// call fails alone, unless something may have been changed.
func requireUnreadableFailsAlone(t *testing.T, g *storetest.Gate, call *storetest.GateCall, replies []*storetest.Reply, writes bool, kind error) {
	t.Helper()
	call.Fail(kind)
	for _, want := range [][]string{{"a"}, {"b1", "b2"}, {"c"}} {
		if writes {
			break
		}
		synctest.Wait()
		call = g.Next(t)
		require.Equal(t, want, call.RowNames())
		if want[0] == "b1" {
			call.Fail(kind)
		} else {
			call.OK()
		}
	}
	synctest.Wait()
	require.ErrorIs(t, replies[1].Err, kind)
	for _, i := range []int{0, 2} {
		require.Equal(t, writes, errors.Is(replies[i].Err, kind))
	}
}

// requireGoneAreNotAsked has a call that is too much for the store. When each is asked for by
// itself, nothing is asked for those who went away.
func requireGoneAreNotAsked(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
	t.Helper()
	storetest.Start(t.Context(), s, ask, "first")
	first := g.Next(t)
	ctx, cancel := context.WithCancel(t.Context())
	storetest.Start(t.Context(), s, ask, "a")
	storetest.Start(ctx, s, ask, "gone")
	storetest.Start(t.Context(), s, ask, "c")
	first.Finish()
	call := g.Next(t)
	cancel()
	synctest.Wait()
	call.Fail(rs.ErrTooLarge)
	for _, want := range []string{"a", "c"} {
		synctest.Wait()
		call = g.Next(t)
		require.Equal(t, []string{want}, call.RowNames())
		call.OK()
	}
	synctest.Wait()
}

func TestCoalesceRefusesBadArgumentsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := storetest.NewGate(memstore.New())
		s := coalesce.New(struct {
			*storetest.Gate
			rs.Limiter
		}{g, memstore.New(memstore.WithLimits(rs.Limits{Row: 5}))}, coalesce.Options{MaxInFlight: 1})
		for _, name := range slices.Sorted(maps.Keys(storetest.Askers)) {
			ask := storetest.Askers[name]
			storetest.Start(t.Context(), s, ask, "a")
			first := g.Next(t)
			b := storetest.Start(t.Context(), s, ask, "b")
			require.ErrorIs(t, storetest.Start(t.Context(), s, ask, "").Err, rs.ErrInvalid)
			if g.Writes(ask) {
				require.ErrorIs(t, storetest.Start(t.Context(), s, ask, "x", "x").Err, rs.ErrInvalid)
				require.ErrorIs(t, storetest.Start(t.Context(), s, ask, "longer").Err, rs.ErrTooLarge)
			}
			empty := storetest.Start(t.Context(), s, ask)
			require.True(t, empty.Done)
			require.NoError(t, empty.Err)
			first.Finish()
			g.Next(t).Finish()
			require.Equal(t, []string{"b"}, b.Names)
		}
		require.NoError(t, s.Close())
	})
}

func TestCoalesceClose(t *testing.T) {
	t.Parallel()
	for name, ask := range storetest.Askers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := storetest.NewGate(memstore.New())
				s := coalesce.New(g, coalesce.Options{MaxInFlight: 1, MaxBatch: 2})
				a := storetest.Start(t.Context(), s, ask, "a")
				first := g.Next(t)
				b := storetest.Start(t.Context(), s, ask, "b")
				c := storetest.Start(t.Context(), s, ask, "c")
				d := storetest.Start(t.Context(), s, ask, "d")
				first.Finish()
				merged := g.Next(t)
				require.Equal(t, []string{"b", "c"}, merged.RowNames())
				closed := make(chan error, 1)
				go func() { closed <- s.Close() }()
				synctest.Wait()
				require.NoError(t, a.Err)
				require.ErrorIs(t, d.Err, rs.ErrClosed)
				require.NotErrorIs(t, d.Err, rs.ErrAmbiguous)
				require.ErrorIs(t, merged.Ctx.Err(), context.Canceled)
				require.ErrorIs(t, storetest.Start(t.Context(), s, ask, "e").Err, rs.ErrClosed)
				require.Empty(t, closed, "Close waits for the call under way")
				merged.Fail(merged.Ctx.Err())
				require.NoError(t, <-closed)
				synctest.Wait()
				require.ErrorIs(t, b.Err, rs.ErrClosed)
				require.ErrorIs(t, c.Err, context.Canceled)
				require.NoError(t, s.Close())
				g.None(t)
			})
		})
	}
	t.Run("a call that went straight through", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g := storetest.NewGate(memstore.New())
			s := coalesce.New(g, coalesce.Options{})
			a := storetest.Start(t.Context(), s, storetest.AskRead, "a")
			call := g.Next(t)
			closed := make(chan error, 1)
			go func() { closed <- s.Close() }()
			synctest.Wait()
			require.Empty(t, closed)
			call.OK()
			require.NoError(t, <-closed)
			synctest.Wait()
			require.Equal(t, []string{"a"}, a.Names)
		})
	})
}
