package coalesce_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A batch that did nothing for the fault of one of its calls is split: these tests have one of the rest hang, or go away.

// splitUp has strangers share a batch that did nothing, and returns their replies and the call of the first of them, alone.
func splitUp(ctx context.Context, t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store, rows ...string) ([]*storetest.Reply, *storetest.GateCall) {
	t.Helper()
	storetest.Start(t.Context(), s, ask, "first")
	first := g.Next(t)
	replies := []*storetest.Reply{storetest.Start(ctx, s, ask, rows[0])}
	for _, row := range rows[1:] {
		replies = append(replies, storetest.Start(t.Context(), s, ask, row))
	}
	first.Finish()
	merged := g.Next(t)
	require.Equal(t, rows, merged.RowNames())
	time.Sleep(time.Second) // nothing waits, so nobody looks for what hangs any more
	merged.Fail(rs.ErrTooLarge)
	synctest.Wait()
	alone := g.Next(t)
	require.Equal(t, rows[:1], alone.RowNames())
	return replies, alone
}

// nextSoon is a call that reaches the gate when those under way have hung for long.
func nextSoon(t *testing.T, g *storetest.Gate) *storetest.GateCall {
	t.Helper()
	select {
	case c := <-g.Calls:
		return c
	case <-time.After(3 * time.Second):
		require.FailNow(t, "it waits for a stranger that hangs")
		return nil
	}
}

// One of them that hangs keeps the others waiting no longer than any call would, and none of them waits for the one behind it.
func TestCoalesceSplitsIntoStrangers(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		replies, hangs := splitUp(t.Context(), t, ask, g, s, "a", "b", "c")
		for i, row := range []string{"b", "c"} {
			call := nextSoon(t, g)
			require.Equal(t, []string{row}, call.RowNames())
			call.Finish()
			require.Equal(t, []string{row}, replies[i+1].Names)
		}
		require.False(t, replies[0].Done)
		hangs.Finish()
		require.Equal(t, []string{"a"}, replies[0].Names)
	})
}

// They leave beside each other where as many calls may be under way.
func TestCoalesceSplitsSideBySide(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 2}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		storetest.Start(t.Context(), s, ask, "first", "second", "third", "fourth")
		first := g.Next(t)
		a, b, c := storetest.Start(t.Context(), s, ask, "a"), storetest.Start(t.Context(), s, ask, "b"), storetest.Start(t.Context(), s, ask, "c")
		first.Finish()
		merged := g.Next(t)
		require.Equal(t, []string{"a", "b", "c"}, merged.RowNames())
		merged.Fail(rs.ErrTooLarge)
		synctest.Wait()
		calls := map[string]*storetest.GateCall{}
		for range 2 {
			call := g.Next(t)
			calls[call.RowNames()[0]] = call
		}
		require.Len(t, calls, 2)
		g.None(t)
		calls["a"].Finish()
		g.Next(t).Finish()
		require.Equal(t, []string{"c"}, c.Names)
		calls["b"].Finish()
		require.True(t, a.Done && b.Done)
	})
}

// The call of a caller that gives up is told so, although others of its batch have stayed.
func TestCoalesceTellsASplitCallThatItsCallerLeft(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		ctx, cancel := context.WithCancel(t.Context())
		replies, hangs := splitUp(ctx, t, ask, g, s, "a", "b")
		cancel()
		synctest.Wait()
		require.ErrorIs(t, replies[0].Err, context.Canceled)
		require.ErrorIs(t, hangs.Ctx.Err(), context.Canceled)
		hangs.Fail(hangs.Ctx.Err())
		synctest.Wait()
		call := g.Next(t)
		require.NoError(t, call.Ctx.Err())
		call.Finish()
		require.Equal(t, []string{"b"}, replies[1].Names)
	})
}

// Nobody joins them, later calls on their rows leave after them, and one that gives up before its call has left did nothing.
func TestCoalesceSplitsBeforeWhatWaits(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		storetest.Start(t.Context(), s, ask, "first")
		first := g.Next(t)
		ctx, cancel := context.WithCancel(t.Context())
		storetest.Start(t.Context(), s, ask, "a")
		gone := storetest.Start(ctx, s, ask, "b")
		storetest.Start(t.Context(), s, ask, "c")
		first.Finish()
		merged := g.Next(t)
		later := storetest.Start(t.Context(), s, ask, "d")
		merged.Fail(rs.ErrTooLarge)
		synctest.Wait()
		call := g.Next(t)
		again := storetest.Start(t.Context(), s, ask, "c")
		cancel()
		synctest.Wait()
		require.ErrorIs(t, gone.Err, context.Canceled)
		require.NotErrorIs(t, gone.Err, rs.ErrAmbiguous)
		for _, rows := range [][]string{{"a"}, {"c"}, {"d", "c"}} {
			require.Equal(t, rows, call.RowNames())
			call.Finish()
			if len(rows) == 1 {
				call = g.Next(t)
			}
		}
		require.Equal(t, []string{"d"}, later.Names)
		require.Equal(t, []string{"c"}, again.Names)
	})
}

func TestCoalesceClosesBetweenSplitCalls(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		replies, call := splitUp(t.Context(), t, ask, g, s, "a", "b")
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		require.ErrorIs(t, replies[1].Err, rs.ErrClosed)
		require.NotErrorIs(t, replies[1].Err, rs.ErrAmbiguous)
		require.Empty(t, closed, "Close waits for the call under way")
		call.Finish()
		require.NoError(t, <-closed)
		require.Equal(t, []string{"a"}, replies[0].Names)
	})
}

// What has its answer does not wait while those of another kind, which failed together, are asked for alone.
func TestTogetherSplitsOneKindAlone(t *testing.T) {
	t.Parallel()
	sharing(t, coalesce.Options{}, func(t *testing.T, g shared, s rs.Store, first *storetest.GateCall) {
		a := storetest.Start(t.Context(), s, storetest.AskGroup, "a")
		b := storetest.Start(t.Context(), s, storetest.AskGroup, "b")
		begin := storetest.Start(t.Context(), s, askBegin, "c")
		draw := storetest.Start(t.Context(), s, askDraw, "1")
		first.OK()
		c := g.next(t)
		c.GroupErr = rs.ErrTooLarge
		c.ok()
		synctest.Wait()
		require.Equal(t, []string{"1000"}, draw.Names)
		require.Equal(t, []string{"c"}, begin.Names)
		alone := g.Next(t)
		require.Equal(t, []string{"a"}, alone.RowNames())
		other := nextSoon(t, g.Gate)
		require.Equal(t, []string{"b"}, other.RowNames())
		other.Fail(rs.ErrTooLarge)
		synctest.Wait()
		require.ErrorIs(t, b.Err, rs.ErrTooLarge)
		require.False(t, a.Done)
		alone.Finish()
		require.Equal(t, []string{"a"}, a.Names)
	})
}

// A small call does not share the way of a large one, whichever of them came first.
func TestCoalesceKeepsLargeValuesApart(t *testing.T) {
	t.Parallel()
	sized := func(kind storetest.Asker, bytes int) storetest.Asker {
		return func(ctx context.Context, s rs.Store, rows ...string) storetest.Reply {
			muts := []rs.Mutation{{Table: "t", Row: rows[0], Edits: []rs.Edit{rs.Put(rs.Data, "c", 1, make([]byte, bytes))}}}
			var err error
			if kind == nil {
				_, err = s.Apply(ctx, muts, rs.ApplyOptions{})
			} else {
				g, _ := rs.Unwrap[rs.Grouper](s)
				_, err = g.Group(ctx, []rs.Group{{Mutations: muts}})
			}
			return storetest.Reply{Err: err, Done: true}
		}
	}
	for name, kind := range map[string]storetest.Asker{"Apply": nil, "Group": storetest.AskGroup} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := storetest.NewGate(memstore.New())
				s := coalesce.New(g, coalesce.Options{MaxInFlight: 1})
				storetest.Start(t.Context(), s, sized(kind, 1), "first")
				first := g.Next(t)
				for _, c := range []struct {
					row   string
					bytes int
				}{{"small", 1}, {"large", 1 << 20}, {"other", 1}, {"filling", 1<<20 - 2}, {"more", 1}} {
					storetest.Start(t.Context(), s, sized(kind, c.bytes), c.row)
				}
				first.Finish()
				for _, rows := range [][]string{{"small", "other", "filling"}, {"large"}, {"more"}} {
					call := g.Next(t)
					require.Equal(t, rows, call.RowNames())
					call.Finish()
				}
				require.NoError(t, s.Close())
			})
		})
	}
}

// Where a store says in its answers what became of each row, those that Close ended say so too.
func TestCoalesceCloseEndsRows(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		storetest.Start(t.Context(), s, ask, "first")
		first := g.Next(t)
		replies := []*storetest.Reply{storetest.Start(t.Context(), s, ask, "a"), storetest.Start(t.Context(), s, ask, "b")}
		first.Finish()
		merged := g.Next(t)
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		ended := merged.Ctx.Err()
		require.Error(t, ended)
		merged.Answer <- storetest.GateAnswer{
			Rows: []rs.Row{{Row: "a", Err: ended}, {Row: "b"}}, Outs: []rs.Outcome{{Err: ended}, {Applied: true}},
			Groups: []rs.GroupOutcome{{Err: ended}, {Applied: true}},
		}
		require.NoError(t, <-closed)
		synctest.Wait()
		require.ErrorIs(t, replies[0].Errs[0], rs.ErrClosed)
		require.ErrorIs(t, replies[0].Errs[0], context.Canceled)
		require.NoError(t, replies[1].Errs[0])
	})
}
