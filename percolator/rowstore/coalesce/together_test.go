package coalesce_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/conformance"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// shared is a gate with calls of several kinds, which stop at it too.
type shared struct {
	storetest.Sharded
	calls chan sharedCall
}

type sharedCall struct {
	ctx context.Context
	*coalesce.Together
	answered chan struct{}
}

func (s shared) together(ctx context.Context, t *coalesce.Together) {
	c := sharedCall{ctx, t, make(chan struct{})}
	s.calls <- c
	<-c.answered
}

// next is the call of several kinds that stands at the gate.
func (s shared) next(t *testing.T) sharedCall {
	t.Helper()
	synctest.Wait()
	select {
	case c := <-s.calls:
		return c
	default:
		require.FailNow(t, "no call of several kinds reached the store")
		return sharedCall{}
	}
}

// ok answers every kind that has no error yet: a group with a commit at its place in the call,
// a begin with 100 and its place, a draw from 1000 on.
func (c sharedCall) ok() {
	for i := range c.Groups {
		c.Outcomes = append(c.Outcomes, rs.GroupOutcome{Outcome: rs.Outcome{Applied: true}, Commit: rs.Timestamp(i)})
	}
	for i := range c.Begins {
		c.Begun = append(c.Begun, rs.SnapshotRows{TS: rs.Timestamp(100 + i), Rows: []rs.Row{{Row: c.Begins[i].Reads[0].Row}}})
	}
	first := rs.Timestamp(1000)
	for _, n := range c.Draws {
		c.Firsts = append(c.Firsts, first)
		first += rs.Timestamp(n)
	}
	close(c.answered)
}

// askBegin begins with reads of rows, and answers their names.
func askBegin(ctx context.Context, s rs.Store, rows ...string) storetest.Reply {
	r, ok := rs.Unwrap[rs.SnapshotReader](s)
	if !ok {
		panic("no SnapshotReader")
	}
	var ask rs.SnapshotRead
	for _, row := range rows {
		ask.Reads = append(ask.Reads, rs.RowRead{Table: "t", Row: row, Selectors: storetest.Everything})
	}
	got, err := r.ReadSnapshot(ctx, []rs.SnapshotRead{ask})
	reply := storetest.Reply{Done: true, Err: err}
	for _, g := range got {
		for _, row := range g.Rows {
			reply.Names = append(reply.Names, row.Row)
		}
	}
	return reply
}

// askDraw draws as many timestamps as there are names, and answers the first.
func askDraw(ctx context.Context, s rs.Store, names ...string) storetest.Reply {
	p, ok := rs.Unwrap[rs.OracleProvider](s)
	if !ok {
		panic("no OracleProvider")
	}
	first, err := p.Oracle().Draw(ctx, len(names))
	return storetest.Reply{Done: true, Err: err, Names: []string{fmt.Sprint(uint64(first))}}
}

// sharing runs a test over a store whose groups, begins and draws share calls, while one call
// is under way.
func sharing(t *testing.T, opts coalesce.Options, test func(t *testing.T, g shared, s rs.Store, first *storetest.GateCall)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		g := shared{storetest.Sharded{Gate: storetest.NewGate(memstore.New())}, make(chan sharedCall)}
		opts.Together = g.together
		s := coalesce.New(g, opts)
		storetest.Start(t.Context(), s, storetest.AskGroup, "under way")
		test(t, g, s, g.Next(t))
		require.NoError(t, s.Close())
	})
}

func TestTogetherMergesKinds(t *testing.T) {
	t.Parallel()
	sharing(t, coalesce.Options{}, func(t *testing.T, g shared, s rs.Store, first *storetest.GateCall) {
		group := storetest.Start(t.Context(), s, storetest.AskGroup, "a1", "a2")
		begin := storetest.Start(t.Context(), s, askBegin, "b")
		draw := storetest.Start(t.Context(), s, askDraw, "1", "2")
		begin2 := storetest.Start(t.Context(), s, askBegin, "d")
		group2 := storetest.Start(t.Context(), s, storetest.AskGroup, "e")
		draw2 := storetest.Start(t.Context(), s, askDraw, "1")
		again := storetest.Start(t.Context(), s, storetest.AskGroup, "e")
		g.None(t)
		first.OK()
		c := g.next(t)
		require.Len(t, c.Groups, 3, "a group for each of two rows, and one")
		require.Len(t, c.Begins, 2)
		require.Equal(t, []int{2, 1}, c.Draws)
		c.ok()
		synctest.Wait()
		g2 := g.Next(t)
		require.Equal(t, []string{"e"}, g2.RowNames(), "a call names a row once")
		g2.OK()
		synctest.Wait()
		for _, r := range []*storetest.Reply{group, begin, draw, begin2, group2, draw2, again} {
			require.True(t, r.Done)
			require.NoError(t, r.Err)
		}
		require.Equal(t, []string{"b"}, begin.Names)
		require.Equal(t, []string{"d"}, begin2.Names)
		require.Equal(t, []string{"1000"}, draw.Names)
		require.Equal(t, []string{"1002"}, draw2.Names)

		// What is of one kind is a call of that kind.
		storetest.Start(t.Context(), s, askBegin, "alone")
		g.Next(t).OK()
	})
}

// Few callers share one call at a time, and many share two.
func TestTogetherSendsFewCallsAtATime(t *testing.T) {
	t.Parallel()
	sharing(t, coalesce.Options{}, func(t *testing.T, g shared, s rs.Store, first *storetest.GateCall) {
		for i := range 15 {
			storetest.Start(t.Context(), s, storetest.AskGroup, fmt.Sprint(i))
			g.None(t)
		}
		storetest.Start(t.Context(), s, askBegin, "the sixteenth")
		c := g.next(t)
		require.Len(t, c.Groups, 15)
		require.Len(t, c.Begins, 1)
		c.ok()
		first.OK()
	})
}

// Many callers share two calls too if none of these can have so many of them.
func TestTogetherSendsFullCallsBesideOthers(t *testing.T) {
	t.Parallel()
	sharing(t, coalesce.Options{MaxBatch: 8}, func(t *testing.T, g shared, s rs.Store, first *storetest.GateCall) {
		group := func(i int) {
			storetest.Start(t.Context(), s, storetest.AskGroup, fmt.Sprint(i, "a"), fmt.Sprint(i, "b"))
		}
		for i := range 15 {
			group(i)
			g.None(t)
		}
		group(15)
		second := g.Next(t)
		require.Len(t, second.RowNames(), 8, "of four callers")
		g.None(t)
		second.OK()
		g.None(t) // twelve wait, which are few
		first.OK()
		for range 3 {
			synctest.Wait()
			g.Next(t).OK()
		}
	})
}

// A begin does not wait while a large group is sent, and does not share its call.
func TestTogetherLeavesLargeGroupsOut(t *testing.T) {
	t.Parallel()
	sharing(t, coalesce.Options{}, func(t *testing.T, g shared, s rs.Store, first *storetest.GateCall) {
		large := storetest.Mutations("large")
		large[0].Edits = append(large[0].Edits, rs.Put(rs.Data, "c", 1, make([]byte, 1<<20)))
		done := make(chan error, 1)
		go func() {
			grouper, _ := rs.Unwrap[rs.Grouper](s)
			_, err := grouper.Group(t.Context(), []rs.Group{{Mutations: large}})
			done <- err
		}()
		synctest.Wait()
		l := g.Next(t)
		require.Equal(t, []string{"large"}, l.RowNames())
		begin := storetest.Start(t.Context(), s, askBegin, "a")
		first.OK()
		synctest.Wait()
		g.Next(t).OK()
		synctest.Wait()
		require.True(t, begin.Done)
		require.Empty(t, done)
		l.OK()
		require.NoError(t, <-done)
	})
}

// What went wrong with one kind is no failure of another, and a bad call none of others.
func TestTogetherKeepsFailuresApart(t *testing.T) {
	t.Parallel()
	sharing(t, coalesce.Options{}, func(t *testing.T, g shared, s rs.Store, first *storetest.GateCall) {
		group := storetest.Start(t.Context(), s, storetest.AskGroup, "a")
		begin := storetest.Start(t.Context(), s, askBegin, "b")
		draw := storetest.Start(t.Context(), s, askDraw, "1")
		first.OK()
		c := g.next(t)
		c.GroupErr = rs.ErrAmbiguous
		c.ok()
		synctest.Wait()
		require.ErrorIs(t, group.Err, rs.ErrAmbiguous)
		require.NoError(t, begin.Err)
		require.NoError(t, draw.Err)
	})
	sharing(t, coalesce.Options{}, func(t *testing.T, g shared, s rs.Store, first *storetest.GateCall) {
		bad := storetest.Start(t.Context(), s, storetest.AskGroup, "a")
		good := storetest.Start(t.Context(), s, storetest.AskGroup, "b")
		begin := storetest.Start(t.Context(), s, askBegin, "c")
		first.OK()
		c := g.next(t)
		c.GroupErr = rs.ErrInvalid
		close(c.answered)
		synctest.Wait()
		a := g.Next(t)
		require.Equal(t, []string{"a"}, a.RowNames())
		a.Fail(rs.ErrInvalid)
		synctest.Wait()
		b := g.Next(t)
		require.Equal(t, []string{"b"}, b.RowNames())
		b.OK()
		synctest.Wait()
		require.ErrorIs(t, bad.Err, rs.ErrInvalid)
		require.NoError(t, good.Err)
		require.Error(t, begin.Err, "the store answered nothing")
		require.NotErrorIs(t, begin.Err, rs.ErrAmbiguous)
	})
}

// A row that is damaged fails the begin that reads it, and no begin that shares its call, of one kind
// or of several. Groups may have changed something, so they are not sent again.
func TestDamagedRowFailsItsBeginAlone(t *testing.T) {
	t.Parallel()
	for _, kinds := range []bool{false, true} {
		sharing(t, coalesce.Options{}, func(t *testing.T, g shared, s rs.Store, first *storetest.GateCall) {
			var group *storetest.Reply
			if kinds {
				group = storetest.Start(t.Context(), s, storetest.AskGroup, "group")
			}
			bad := storetest.Start(t.Context(), s, askBegin, "bad")
			good := storetest.Start(t.Context(), s, askBegin, "good")
			first.OK()
			damaged := fmt.Errorf("row bad: %w", rs.ErrCorrupt)
			if kinds {
				c := g.next(t)
				c.GroupErr, c.BeginErr = damaged, damaged
				close(c.answered)
			} else {
				synctest.Wait()
				g.Next(t).Fail(damaged)
			}
			synctest.Wait()
			alone := g.Next(t)
			require.Equal(t, []string{"bad"}, alone.RowNames())
			alone.Fail(damaged)
			synctest.Wait()
			alone = g.Next(t)
			require.Equal(t, []string{"good"}, alone.RowNames())
			alone.OK()
			synctest.Wait()
			require.ErrorIs(t, bad.Err, rs.ErrCorrupt)
			require.NoError(t, good.Err)
			if kinds {
				require.ErrorIs(t, group.Err, rs.ErrCorrupt)
			}
		})
	}
}

// A caller that gives up a group may have changed something, and one that gives up a begin has
// not. A bad call is refused before it joins others.
func TestTogetherGivesUp(t *testing.T) {
	t.Parallel()
	sharing(t, coalesce.Options{}, func(t *testing.T, g shared, s rs.Store, first *storetest.GateCall) {
		ctx, cancel := context.WithCancel(t.Context())
		early, cancelEarly := context.WithCancel(t.Context())
		unsent := storetest.Start(early, s, storetest.AskGroup, "a")
		group := storetest.Start(ctx, s, storetest.AskGroup, "b")
		begin := storetest.Start(ctx, s, askBegin, "c")
		draw := storetest.Start(ctx, s, askDraw, "1")
		stays := storetest.Start(t.Context(), s, askBegin, "d")
		require.ErrorIs(t, storetest.Start(t.Context(), s, storetest.AskGroup, "x", "x", "").Err, rs.ErrInvalid)
		require.ErrorIs(t, storetest.Start(t.Context(), s, askBegin, "").Err, rs.ErrInvalid)
		require.ErrorIs(t, storetest.Start(t.Context(), s, askDraw).Err, rs.ErrInvalid)
		require.NoError(t, storetest.Start(t.Context(), s, storetest.AskGroup).Err)
		cancelEarly()
		synctest.Wait()
		require.ErrorIs(t, unsent.Err, context.Canceled)
		require.NotErrorIs(t, unsent.Err, rs.ErrAmbiguous)
		first.OK()
		c := g.next(t)
		require.Len(t, c.Groups, 1)
		cancel()
		synctest.Wait()
		require.ErrorIs(t, group.Err, rs.ErrAmbiguous)
		require.ErrorIs(t, group.Err, context.Canceled)
		for _, r := range []*storetest.Reply{begin, draw} {
			require.ErrorIs(t, r.Err, context.Canceled)
			require.NotErrorIs(t, r.Err, rs.ErrAmbiguous)
		}
		require.NoError(t, c.ctx.Err(), "one caller stays")
		require.Nil(t, c.ctx.Done())
		_, bounded := c.ctx.Deadline()
		require.False(t, bounded)
		c.ok()
		synctest.Wait()
		require.NoError(t, stays.Err)
		require.Equal(t, []string{"d"}, stays.Names)
	})
}

func TestTogetherIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := shared{storetest.Sharded{Gate: storetest.NewGate(memstore.New())}, make(chan sharedCall)}
		s := coalesce.New(g, coalesce.Options{Together: g.together, MaxBatch: 2})
		storetest.Start(t.Context(), s, askDraw, "1")
		first := g.Next(t)
		group := storetest.Start(t.Context(), s, storetest.AskGroup, "a")
		begin := storetest.Start(t.Context(), s, askBegin, "b")
		waits := storetest.Start(t.Context(), s, askDraw, "1", "2")
		first.OK()
		c := g.next(t)
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		require.ErrorIs(t, waits.Err, rs.ErrClosed)
		require.Empty(t, closed, "Close waits for the call under way")
		c.GroupErr = fmt.Errorf("%w: the connection was closed", rs.ErrAmbiguous)
		c.BeginErr = errors.New("the connection was closed")
		close(c.answered)
		require.NoError(t, <-closed)
		synctest.Wait()
		require.ErrorIs(t, group.Err, rs.ErrClosed)
		require.ErrorIs(t, group.Err, rs.ErrAmbiguous)
		require.ErrorIs(t, begin.Err, rs.ErrClosed)
		for _, ask := range []storetest.Asker{storetest.AskGroup, askBegin, askDraw} {
			require.ErrorIs(t, storetest.Start(t.Context(), s, ask, "late").Err, rs.ErrClosed)
		}
		require.ErrorIs(t, storetest.Start(t.Context(), s, storetest.AskGroup).Err, rs.ErrClosed)
	})
}

// togetherOver answers the kinds one after the other.
func togetherOver(m *memstore.Store) func(ctx context.Context, t *coalesce.Together) {
	return func(ctx context.Context, t *coalesce.Together) {
		t.Outcomes, t.GroupErr = m.Group(ctx, t.Groups)
		t.Begun, t.BeginErr = m.ReadSnapshot(ctx, t.Begins)
		for _, n := range t.Draws {
			first, err := m.Oracle().Draw(ctx, n)
			t.Firsts, t.DrawErr = append(t.Firsts, first), errors.Join(t.DrawErr, err)
		}
	}
}

func TestConformanceOfTogether(t *testing.T) {
	t.Parallel()
	open := func(testing.TB) rs.Store {
		m := memstore.New()
		return coalesce.New(m, coalesce.Options{Together: togetherOver(m)})
	}
	conformance.RunStore(t, open, conformance.Scale(conformanceScale))
	conformance.RunTransactions(t, open, conformance.Scale(conformanceScale))
}
