package rowstore_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

// start makes a call in a goroutine of its own and returns when that goroutine,
// and all others of the bubble, stand still. The reply is there once it is done.
func start(ctx context.Context, s rs.Store, ask asker, rows ...string) *reply {
	r := &reply{}
	go func() { *r = ask(ctx, s, rows...) }()
	synctest.Wait()
	return r
}

// eachKind runs a test for reads, applies and groups over a Coalesce of a gate,
// in a bubble in which synctest.Wait tells when nothing moves any more.
func eachKind(t *testing.T, opts rs.CoalesceOptions, test func(t *testing.T, ask asker, g *gate, s rs.Store)) {
	t.Parallel()
	for _, name := range slices.Sorted(maps.Keys(askers)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newGate(rs.NewMemory())
				s := rs.Coalesce(g, opts)
				test(t, askers[name], g, s)
				require.NoError(t, s.Close())
			})
		})
	}
}

func TestCoalesceMergesWhatArrivesMeanwhile(t *testing.T) {
	eachKind(t, rs.CoalesceOptions{MaxInFlight: 1}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		a := start(t.Context(), s, ask, "a")
		first := g.next(t)
		require.Equal(t, []string{"a"}, first.rowNames())
		b := start(t.Context(), s, ask, "b1", "b2")
		c := start(t.Context(), s, ask, "c")
		d := start(t.Context(), s, ask, "d1", "d2", "d3")
		g.none(t)
		first.ok()
		synctest.Wait()
		require.Equal(t, []string{"a"}, a.names)
		second := g.next(t)
		require.Equal(t, []string{"b1", "b2", "c", "d1", "d2", "d3"}, second.rowNames())

		e := start(t.Context(), s, ask, "e")
		g.none(t)
		second.ok()
		synctest.Wait()
		require.Equal(t, []string{"b1", "b2"}, b.names)
		require.Equal(t, []string{"c"}, c.names)
		require.Equal(t, []string{"d1", "d2", "d3"}, d.names)
		require.False(t, e.done, "a call never gets the answer to a request that left before it asked")
		third := g.next(t)
		require.Equal(t, []string{"e"}, third.rowNames())
		third.ok()
		synctest.Wait()
		require.Equal(t, []string{"e"}, e.names)
		require.NoError(t, e.err)

		// Idle again: the next call goes straight through.
		f := start(t.Context(), s, ask, "f")
		g.next(t).ok()
		synctest.Wait()
		require.Equal(t, []string{"f"}, f.names)
	})
}

type contextKey struct{}

func TestCoalesceLeavesAnIdleCallAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(rs.NewMemory())
		s := rs.Coalesce(g, rs.CoalesceOptions{})
		reads := []rs.RowRead{{Table: "t", Row: "r", Picks: everything}}
		ctx := context.WithValue(t.Context(), contextKey{}, "mine")
		go func() {
			_, _ = s.Read(ctx, reads)
		}()
		synctest.Wait()
		call := g.next(t)
		require.Equal(t, ctx, call.ctx)
		require.Same(t, &reads[0], &call.reads[0])
		call.ok()
		synctest.Wait()
		require.NoError(t, s.Close())
	})
}

func TestCoalesceSendsAsManyCallsAsAllowed(t *testing.T) {
	eachKind(t, rs.CoalesceOptions{MaxInFlight: 2}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		start(t.Context(), s, ask, "a")
		start(t.Context(), s, ask, "b")
		a, b := g.next(t), g.next(t)
		start(t.Context(), s, ask, "c")
		start(t.Context(), s, ask, "d")
		g.none(t)
		b.ok()
		synctest.Wait()
		cd := g.next(t)
		require.Equal(t, []string{"c", "d"}, cd.rowNames())
		start(t.Context(), s, ask, "e")
		g.none(t)
		cd.ok()
		synctest.Wait()
		e := g.next(t)
		require.Equal(t, []string{"e"}, e.rowNames())
		e.ok()
		a.ok()
		synctest.Wait()
	})
}

func TestCoalesceSendsNoSmallCallBesideALargeOne(t *testing.T) {
	eachKind(t, rs.CoalesceOptions{MaxInFlight: 2, MaxBatch: 8}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		start(t.Context(), s, ask, "a1", "a2", "a3")
		a := g.next(t)
		start(t.Context(), s, ask, "b")
		start(t.Context(), s, ask, "c")
		g.none(t)
		start(t.Context(), s, ask, "d")
		bcd := g.next(t)
		require.Equal(t, []string{"b", "c", "d"}, bcd.rowNames())
		start(t.Context(), s, ask, "e")
		start(t.Context(), s, ask, "f")
		a.ok()
		synctest.Wait()
		g.none(t)
		bcd.ok()
		synctest.Wait()
		ef := g.next(t)
		require.Equal(t, []string{"e", "f"}, ef.rowNames())
		ef.ok()
		synctest.Wait()

		// Half a batch is large, whatever is under way.
		start(t.Context(), s, ask, "a1", "a2", "a3", "a4", "a5", "a6")
		a = g.next(t)
		start(t.Context(), s, ask, "b1", "b2", "b3", "b4")
		b := g.next(t)
		b.ok()
		start(t.Context(), s, ask, "c")
		g.none(t)
		start(t.Context(), s, ask, "d1", "d2", "d3")
		cd := g.next(t)
		require.Equal(t, []string{"c", "d1", "d2", "d3"}, cd.rowNames())
		cd.ok()
		a.ok()
		synctest.Wait()
	})
}

func TestCoalesceNamesARowOnceInABatch(t *testing.T) {
	eachKind(t, rs.CoalesceOptions{MaxInFlight: 1}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		start(t.Context(), s, ask, "x")
		first := g.next(t)
		var replies []*reply
		for _, rows := range [][]string{{"x"}, {"y", "x"}, {"x"}, {"y"}, {"z"}} {
			replies = append(replies, start(t.Context(), s, ask, rows...))
		}
		want := [][]string{{"x", "z"}, {"y", "x"}, {"x", "y"}}
		if first.reads != nil { // a batch of reads may name a row twice
			want = [][]string{{"x", "y", "x", "x", "y", "z"}}
		}
		for call := first; ; call = g.next(t) {
			if call != first {
				require.Equal(t, want[0], call.rowNames())
				want = want[1:]
			}
			call.ok()
			synctest.Wait()
			if len(want) == 0 {
				break
			}
		}
		require.Equal(t, []string{"y", "x"}, replies[1].names)
		for _, r := range replies {
			require.True(t, r.done)
			require.NoError(t, r.err)
		}
	})
}

func TestCoalesceKeepsBatchesBelowTheLimit(t *testing.T) {
	eachKind(t, rs.CoalesceOptions{MaxInFlight: 1, MaxBatch: 3}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		start(t.Context(), s, ask, "a1", "a2", "a3")
		call := g.next(t)
		require.Len(t, call.rowNames(), 3)
		for _, rows := range [][]string{{"c"}, {"d1", "d2", "d3"}, {"e1", "e2"}, {"f"}} {
			start(t.Context(), s, ask, rows...)
		}
		for _, want := range [][]string{{"c", "e1", "e2"}, {"d1", "d2", "d3"}, {"f"}} {
			call.ok()
			synctest.Wait()
			call = g.next(t)
			require.Equal(t, want, call.rowNames())
		}
		call.ok()
		synctest.Wait()
	})
}

func TestCoalesceSplitsDeferredFromUndeferred(t *testing.T) {
	t.Parallel()
	deferred := askApplyWith(rs.ApplyOptions{Deferred: true})
	ask := askers["Apply"]
	t.Run("over a Deferrer", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g := newGate(rs.NewMemory())
			s := rs.Coalesce(transparent{struct {
				*gate
				rs.Deferrer
			}{g, rs.NewMemory()}}, rs.CoalesceOptions{MaxInFlight: 1})
			start(t.Context(), s, ask, "a")
			a := g.next(t)
			require.False(t, a.opts.Deferred)
			start(t.Context(), s, deferred, "b")
			b := g.next(t)
			require.True(t, b.opts.Deferred)
			start(t.Context(), s, deferred, "c")
			start(t.Context(), s, ask, "d")
			start(t.Context(), s, deferred, "e")
			b.ok()
			synctest.Wait()
			ce := g.next(t)
			require.Equal(t, []string{"c", "e"}, ce.rowNames())
			require.True(t, ce.opts.Deferred)
			a.ok()
			synctest.Wait()
			d := g.next(t)
			require.Equal(t, []string{"d"}, d.rowNames())
			require.False(t, d.opts.Deferred)
			ce.ok()
			d.ok()
			synctest.Wait()
			require.NoError(t, s.Close())
		})
	})
	t.Run("over another store", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g := newGate(rs.NewMemory())
			s := rs.Coalesce(g, rs.CoalesceOptions{MaxInFlight: 1})
			start(t.Context(), s, deferred, "a")
			a := g.next(t)
			start(t.Context(), s, deferred, "b")
			start(t.Context(), s, ask, "c")
			a.ok()
			synctest.Wait()
			bc := g.next(t)
			require.Equal(t, []string{"b", "c"}, bc.rowNames())
			require.False(t, bc.opts.Deferred)
			bc.ok()
			synctest.Wait()
			require.NoError(t, s.Close())
		})
	})
}

func TestCoalesceGivesUpBeforeItLeft(t *testing.T) {
	eachKind(t, rs.CoalesceOptions{MaxInFlight: 1}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		start(t.Context(), s, ask, "a")
		first := g.next(t)
		b := start(t.Context(), s, ask, "b")
		ctx, cancel := context.WithCancel(t.Context())
		c := start(ctx, s, ask, "c1", "c2")
		d := start(t.Context(), s, ask, "d1", "d2")
		cancel()
		synctest.Wait()
		require.True(t, c.done)
		require.ErrorIs(t, c.err, context.Canceled)
		require.NotErrorIs(t, c.err, rs.ErrAmbiguous, "it is certain that nothing happened")
		late := start(ctx, s, ask, "late")
		require.ErrorIs(t, late.err, context.Canceled)
		// Its rows are free again: this one need not wait for another batch.
		e := start(t.Context(), s, ask, "c1")
		first.ok()
		synctest.Wait()
		second := g.next(t)
		require.Equal(t, []string{"b", "d1", "d2", "c1"}, second.rowNames())
		second.ok()
		synctest.Wait()
		require.Equal(t, []string{"b"}, b.names)
		require.Equal(t, []string{"d1", "d2"}, d.names)
		require.Equal(t, []string{"c1"}, e.names)

		// The only one of a batch leaves nothing behind.
		start(t.Context(), s, ask, "a")
		first = g.next(t)
		ctx, cancel = context.WithCancel(t.Context())
		start(ctx, s, ask, "c")
		cancel()
		synctest.Wait()
		first.ok()
		synctest.Wait()
		g.none(t)
	})
}

func TestCoalesceGivesUpAfterItLeft(t *testing.T) {
	eachKind(t, rs.CoalesceOptions{MaxInFlight: 1}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		requireGaveUp := func(r *reply) {
			require.True(t, r.done)
			require.ErrorIs(t, r.err, context.Canceled)
			require.Equal(t, g.writes(ask), errors.Is(r.err, rs.ErrAmbiguous))
		}
		start(t.Context(), s, ask, "a")
		first := g.next(t)
		ctxB, cancelB := context.WithCancel(context.WithValue(t.Context(), contextKey{}, "b"))
		ctxC, cancelC := context.WithCancel(t.Context())
		b := start(ctxB, s, ask, "b")
		c := start(ctxC, s, ask, "c")
		d := start(t.Context(), s, ask, "d")
		first.ok()
		synctest.Wait()
		second := g.next(t)
		require.Equal(t, "b", second.ctx.Value(contextKey{}), "values are those of the first caller")
		cancelB()
		synctest.Wait()
		requireGaveUp(b)
		require.NoError(t, second.ctx.Err(), "the others still wait")
		second.ok()
		synctest.Wait()
		require.Equal(t, []string{"c"}, c.names)
		require.Equal(t, []string{"d"}, d.names)

		// When the last one gives up, the call has nobody to serve.
		start(t.Context(), s, ask, "a")
		first = g.next(t)
		ctxB, cancelB = context.WithCancel(t.Context())
		b, c = start(ctxB, s, ask, "b"), start(ctxC, s, ask, "c")
		first.ok()
		synctest.Wait()
		second = g.next(t)
		cancelC()
		synctest.Wait()
		requireGaveUp(c)
		require.NoError(t, second.ctx.Err())
		cancelB()
		synctest.Wait()
		requireGaveUp(b)
		require.ErrorIs(t, second.ctx.Err(), context.Canceled)
		second.fail(second.ctx.Err())
		synctest.Wait()

		// A batch of one has its caller's context.
		start(t.Context(), s, ask, "a")
		first = g.next(t)
		ctxB, cancelB = context.WithCancel(t.Context())
		b = start(ctxB, s, ask, "b")
		first.ok()
		synctest.Wait()
		second = g.next(t)
		require.Equal(t, ctxB, second.ctx)
		cancelB()
		synctest.Wait()
		requireGaveUp(b)
		second.ok()
		synctest.Wait()
	})
}

// writes tells whether a kind of call changes anything.
func (g *gate) writes(ask asker) bool {
	return fmt.Sprintf("%p", ask) != fmt.Sprintf("%p", asker(askRead))
}

func TestCoalesceCarriesTheLatestDeadline(t *testing.T) {
	eachKind(t, rs.CoalesceOptions{MaxInFlight: 1}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		early, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		want, _ := late.Deadline()
		for _, unbounded := range []bool{false, true} {
			start(t.Context(), s, ask, "a")
			first := g.next(t)
			for i, ctx := range []context.Context{early, late, early} {
				start(ctx, s, ask, fmt.Sprint(i))
			}
			if unbounded {
				start(context.WithoutCancel(t.Context()), s, ask, "unbounded")
			}
			first.ok()
			synctest.Wait()
			second := g.next(t)
			deadline, ok := second.ctx.Deadline()
			require.Equal(t, !unbounded, ok)
			if ok {
				require.Equal(t, want, deadline)
				child, cancel := context.WithTimeout(second.ctx, time.Hour)
				deadline, _ = child.Deadline()
				require.Equal(t, want, deadline)
				cancel()
			}
			second.ok()
			synctest.Wait()
		}
	})
}

func TestCoalesceKeepsNothingOfTheCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(rs.NewMemory())
		s := rs.Coalesce(g, rs.CoalesceOptions{MaxInFlight: 1})
		start(t.Context(), s, askers["Apply"], "a")
		start(t.Context(), s, askers["Group"], "a")
		start(t.Context(), s, askers["Read"], "a")
		first := []*gateCall{g.next(t), g.next(t), g.next(t)}

		ctx, cancel := context.WithCancel(t.Context())
		muts := mutations("x", "y")
		groups := []rs.Group{{Mutations: mutations("x", "y")}}
		reads := []rs.RowRead{{Table: "t", Row: "x", Picks: slices.Clone(everything)}}
		grouper, _ := rs.Unwrap[rs.Grouper](s)
		var gone sync.WaitGroup
		gone.Go(func() { _, _ = s.Apply(ctx, muts, rs.ApplyOptions{}) })
		gone.Go(func() { _, _ = grouper.Group(ctx, groups) })
		gone.Go(func() { _, _ = s.Read(ctx, reads) })
		synctest.Wait()
		for _, c := range first {
			c.ok()
		}
		synctest.Wait()
		second := []*gateCall{g.next(t), g.next(t), g.next(t)}
		cancel()
		gone.Wait()

		// The calls returned, and the requests are under way: what the callers do with
		// their slices is nobody's business.
		for _, m := range [][]rs.Mutation{muts, groups[0].Mutations} {
			for i := range m {
				copy(m[i].Edits[0].Value, "!")
				m[i].Edits[0].Column = "changed"
				m[i].Conditions[0].Column = "changed"
				m[i].Row = "changed"
			}
		}
		groups[0].Mutations = nil
		reads[0].Picks[0].Family = 99
		seen := 0
		for _, c := range second {
			switch {
			case c.reads != nil:
				require.Equal(t, everything, c.reads[0].Picks)
			case c.groups != nil:
				require.Equal(t, mutations("x", "y"), c.groups[0].Mutations)
			default:
				require.Equal(t, mutations("x", "y"), c.muts)
			}
			seen++
			c.ok()
		}
		require.Equal(t, 3, seen)
		synctest.Wait()
		require.NoError(t, s.Close())
	})
}

func TestCoalesceErrors(t *testing.T) {
	failure := errors.New("connection lost")
	eachKind(t, rs.CoalesceOptions{MaxInFlight: 1}, func(t *testing.T, ask asker, g *gate, s rs.Store) {
		batch := func() (*gateCall, []*reply) {
			start(t.Context(), s, ask, "first")
			first := g.next(t)
			replies := []*reply{start(t.Context(), s, ask, "a"), start(t.Context(), s, ask, "b1", "b2"), start(t.Context(), s, ask, "c")}
			first.ok()
			synctest.Wait()
			return g.next(t), replies
		}
		// Of the whole call: everybody's.
		call, replies := batch()
		call.fail(fmt.Errorf("%w: %w", rs.ErrAmbiguous, failure))
		synctest.Wait()
		for _, r := range replies {
			require.ErrorIs(t, r.err, failure)
			require.ErrorIs(t, r.err, rs.ErrAmbiguous)
			require.Empty(t, r.names)
		}
		// Of a row: its owner's.
		call, replies = batch()
		call.answer <- gateAnswer{
			rows:   []rs.Row{{Row: "a"}, {Row: "b1"}, {Row: "b2", Err: failure}, {Row: "c"}},
			outs:   []rs.Outcome{{}, {}, {Err: failure}, {}},
			groups: []rs.GroupOutcome{{}, {}, {Err: failure}, {}},
		}
		synctest.Wait()
		for i, want := range [][]error{{nil}, {nil, failure}, {nil}} {
			require.NoError(t, replies[i].err)
			require.Equal(t, want, replies[i].errs)
		}
		// Answers that cannot be told apart are no answers, and something may have
		// happened.
		call, replies = batch()
		call.answer <- gateAnswer{rows: make([]rs.Row, 3), outs: make([]rs.Outcome, 3), groups: make([]rs.GroupOutcome, 3)}
		synctest.Wait()
		for _, r := range replies {
			require.ErrorContains(t, r.err, "3 answers for 4 rows")
			require.Equal(t, g.writes(ask), errors.Is(r.err, rs.ErrAmbiguous))
		}
		// One of the calls is too much for the store, and nothing was done: each is
		// asked for by itself.
		call, replies = batch()
		call.fail(fmt.Errorf("row b2: %w", rs.ErrTooLarge))
		for _, want := range [][]string{{"a"}, {"b1", "b2"}, {"c"}} {
			synctest.Wait()
			call = g.next(t)
			require.Equal(t, want, call.rowNames())
			if want[0] == "b1" {
				call.fail(fmt.Errorf("row b2: %w", rs.ErrTooLarge))
			} else {
				call.ok()
			}
		}
		synctest.Wait()
		require.Equal(t, []string{"a"}, replies[0].names)
		require.ErrorIs(t, replies[1].err, rs.ErrTooLarge)
		require.Equal(t, []string{"c"}, replies[2].names)

		// Then nothing is asked for those who went away.
		start(t.Context(), s, ask, "first")
		first := g.next(t)
		ctx, cancel := context.WithCancel(t.Context())
		start(t.Context(), s, ask, "a")
		start(ctx, s, ask, "gone")
		start(t.Context(), s, ask, "c")
		first.ok()
		synctest.Wait()
		call = g.next(t)
		cancel()
		synctest.Wait()
		call.fail(rs.ErrTooLarge)
		for _, want := range []string{"a", "c"} {
			synctest.Wait()
			call = g.next(t)
			require.Equal(t, []string{want}, call.rowNames())
			call.ok()
		}
		synctest.Wait()
	})
}

func TestCoalesceRefusesBadArgumentsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(rs.NewMemory())
		s := rs.Coalesce(struct {
			*gate
			rs.Limiter
		}{g, rs.NewMemory(rs.WithLimits(rs.Limits{Row: 5}))}, rs.CoalesceOptions{MaxInFlight: 1})
		for _, name := range slices.Sorted(maps.Keys(askers)) {
			ask := askers[name]
			start(t.Context(), s, ask, "a")
			first := g.next(t)
			b := start(t.Context(), s, ask, "b")
			require.ErrorIs(t, start(t.Context(), s, ask, "").err, rs.ErrInvalid)
			if g.writes(ask) {
				require.ErrorIs(t, start(t.Context(), s, ask, "x", "x").err, rs.ErrInvalid)
				require.ErrorIs(t, start(t.Context(), s, ask, "longer").err, rs.ErrTooLarge)
			}
			empty := start(t.Context(), s, ask)
			require.True(t, empty.done)
			require.NoError(t, empty.err)
			first.ok()
			synctest.Wait()
			g.next(t).ok()
			synctest.Wait()
			require.Equal(t, []string{"b"}, b.names)
		}
		require.NoError(t, s.Close())
	})
}

func TestCoalesceClose(t *testing.T) {
	t.Parallel()
	for name, ask := range askers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newGate(rs.NewMemory())
				s := rs.Coalesce(g, rs.CoalesceOptions{MaxInFlight: 1, MaxBatch: 2})
				a := start(t.Context(), s, ask, "a")
				first := g.next(t)
				b := start(t.Context(), s, ask, "b")
				c := start(t.Context(), s, ask, "c")
				d := start(t.Context(), s, ask, "d")
				first.ok()
				synctest.Wait()
				merged := g.next(t)
				require.Equal(t, []string{"b", "c"}, merged.rowNames())
				closed := make(chan error, 1)
				go func() { closed <- s.Close() }()
				synctest.Wait()
				require.NoError(t, a.err)
				require.ErrorIs(t, d.err, rs.ErrClosed)
				require.NotErrorIs(t, d.err, rs.ErrAmbiguous)
				require.ErrorIs(t, merged.ctx.Err(), context.Canceled)
				require.ErrorIs(t, start(t.Context(), s, ask, "e").err, rs.ErrClosed)
				require.Empty(t, closed, "Close waits for the call under way")
				merged.fail(merged.ctx.Err())
				require.NoError(t, <-closed)
				synctest.Wait()
				require.ErrorIs(t, b.err, rs.ErrClosed)
				require.ErrorIs(t, c.err, context.Canceled)
				require.NoError(t, s.Close())
				g.none(t)
			})
		})
	}
	t.Run("a call that went straight through", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g := newGate(rs.NewMemory())
			s := rs.Coalesce(g, rs.CoalesceOptions{})
			a := start(t.Context(), s, askRead, "a")
			call := g.next(t)
			closed := make(chan error, 1)
			go func() { closed <- s.Close() }()
			synctest.Wait()
			require.Empty(t, closed)
			call.ok()
			require.NoError(t, <-closed)
			synctest.Wait()
			require.Equal(t, []string{"a"}, a.names)
		})
	})
}

func TestCoalesceSharesDraws(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(rs.NewMemory())
		s := rs.Coalesce(g, rs.CoalesceOptions{MaxInFlight: 1, MaxBatch: 10})
		p, ok := rs.Unwrap[rs.OracleProvider](s)
		require.True(t, ok)
		type draw struct {
			ts  rs.Timestamp
			err error
		}
		start := func(ctx context.Context, n int) *draw {
			d := &draw{}
			go func() { d.ts, d.err = p.Oracle().Draw(ctx, n) }()
			synctest.Wait()
			return d
		}
		a := start(t.Context(), 2)
		first := g.next(t)
		require.Equal(t, 2, first.drawn)
		b, c := start(t.Context(), 1), start(t.Context(), 5)
		ctx, cancel := context.WithCancel(t.Context())
		gone := start(ctx, 1)
		d, e := start(t.Context(), 2), start(t.Context(), 3)
		require.ErrorIs(t, start(t.Context(), 0).err, rs.ErrInvalid)
		cancel()
		synctest.Wait()
		require.ErrorIs(t, gone.err, context.Canceled)
		first.answer <- gateAnswer{first: 100}
		synctest.Wait()
		require.Equal(t, draw{100, nil}, *a)
		second := g.next(t)
		require.Equal(t, 8, second.drawn, "up to ten timestamps in a call")
		require.Zero(t, b.ts, "no timestamp of an earlier draw is ever kept for a later one")
		second.answer <- gateAnswer{first: 200}
		synctest.Wait()
		require.Equal(t, []rs.Timestamp{200, 201, 206}, []rs.Timestamp{b.ts, c.ts, d.ts})
		third := g.next(t)
		require.Equal(t, 3, third.drawn)
		third.fail(errors.New("no clock"))
		synctest.Wait()
		require.ErrorContains(t, e.err, "no clock")
		require.NotErrorIs(t, e.err, rs.ErrAmbiguous)
		require.NoError(t, s.Close())
		require.ErrorIs(t, start(t.Context(), 1).err, rs.ErrClosed)
		require.ErrorIs(t, start(t.Context(), 1).err, oracle.ErrClosed)
	})
}

func TestCoalesceEnds(t *testing.T) {
	t.Parallel()
	requireEnds(t, rs.Coalesce(rs.NewMemory(), rs.CoalesceOptions{}))
}

func TestCoalesceReports(t *testing.T) {
	t.Parallel()
	r, _ := rs.Unwrap[rs.Reporter](rs.Coalesce(rs.NewMemory(), rs.CoalesceOptions{MaxBatch: 17}))
	report, err := r.Report(t.Context())
	require.NoError(t, err)
	require.Equal(t, "memory", report.Backend)
	require.Contains(t, fmt.Sprint(report.Features), "17 rows")
}

func TestCoalesceOfMemoryIsMemory(t *testing.T) {
	t.Parallel()
	compareWithMemory(t, true, func(m *rs.Memory) rs.Store { return rs.Coalesce(m, rs.CoalesceOptions{}) })
}

// Many goroutines claim cells, each of which only one may have, by applies and by
// groups over several rows; some give up at any moment.
func TestCoalesceConcurrently(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	s := rs.Coalesce(slowed{m}, rs.CoalesceOptions{MaxInFlight: 2, MaxBatch: 16})
	grouper, _ := rs.Unwrap[rs.Grouper](s)
	const workers, cells = 32, 200
	var certain, ambiguous, refused atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range cells {
				ctx, cancel := context.WithCancel(t.Context())
				if (i+w)%7 == 0 {
					time.AfterFunc(time.Duration(i)*time.Microsecond, cancel)
				}
				cell := fmt.Sprintf("%03d", i)
				claim := func(row string) rs.Mutation {
					return rs.Mutation{
						Table: "t", Row: row, Conditions: []rs.Condition{rs.Absent(rs.Write, "c", 0)},
						Edits: []rs.Edit{rs.Put(rs.Write, "c", rs.Timestamp(w+1), []byte(row))},
					}
				}
				var applied bool
				var err error
				if i%2 == 0 {
					var out []rs.Outcome
					out, err = s.Apply(ctx, []rs.Mutation{claim(cell)}, rs.ApplyOptions{Deferred: w%2 == 0})
					applied = err == nil && out[0].Applied
					if err == nil && !applied && string(out[0].Broke.Value) != cell {
						t.Errorf("the answer to %s is about %s", cell, out[0].Broke.Value)
					}
				} else {
					var out []rs.GroupOutcome
					out, err = grouper.Group(ctx, []rs.Group{{Mutations: []rs.Mutation{claim(cell), claim(cell + "b")}}})
					applied = err == nil && out[0].Applied
				}
				switch {
				case applied:
					certain.Add(1)
				case errors.Is(err, rs.ErrAmbiguous):
					ambiguous.Add(1)
				case err != nil && !errors.Is(err, context.Canceled):
					t.Errorf("unexpected: %v", err)
				case err == nil:
					refused.Add(1)
					rows, err := s.Read(ctx, []rs.RowRead{{Table: "t", Row: cell, Picks: everything}})
					if err == nil && (rows[0].Row != cell || len(rows[0].Versions) != 1 || string(rows[0].Versions[0].Value) != cell) {
						t.Errorf("read of %s: %+v", cell, rows)
					}
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.NoError(t, s.(rs.Decorator).Close())
	require.NotZero(t, certain.Load())
	require.NotZero(t, refused.Load())
	require.LessOrEqual(t, certain.Load(), int64(cells))
	t.Logf("applied %d, refused %d, ambiguous %d", certain.Load(), refused.Load(), ambiguous.Load())
}

// slowed yields in each call, so that others arrive meanwhile.
type slowed struct{ *rs.Memory }

func (s slowed) Read(ctx context.Context, r []rs.RowRead) ([]rs.Row, error) {
	spin()
	return s.Memory.Read(ctx, r)
}

func (s slowed) Apply(ctx context.Context, m []rs.Mutation, o rs.ApplyOptions) ([]rs.Outcome, error) {
	spin()
	return s.Memory.Apply(ctx, m, o)
}

func (s slowed) Group(ctx context.Context, g []rs.Group) ([]rs.GroupOutcome, error) {
	spin()
	return s.Memory.Group(ctx, g)
}
