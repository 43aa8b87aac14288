package coalesce_test

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
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// eachKind runs a test for reads, applies and groups over a coalesced gate,
// in a bubble in which synctest.Wait tells when nothing moves any more.
func eachKind(t *testing.T, opts coalesce.Options, test func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store)) {
	eachKindOver(t, func(g *storetest.Gate) rs.Store { return g }, opts, test)
}

// eachKindOver is eachKind over what is made of the gate.
func eachKindOver(t *testing.T, over func(g *storetest.Gate) rs.Store, opts coalesce.Options,
	test func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store),
) {
	t.Parallel()
	for _, name := range slices.Sorted(maps.Keys(storetest.Askers)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := storetest.NewGate(memstore.New())
				s := coalesce.New(over(g), opts)
				test(t, storetest.Askers[name], g, s)
				require.NoError(t, s.Close())
			})
		})
	}
}

func TestCoalesceMergesWhatArrivesMeanwhile(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		a := storetest.Start(t.Context(), s, ask, "a")
		first := g.Next(t)
		require.Equal(t, []string{"a"}, first.RowNames())
		b := storetest.Start(t.Context(), s, ask, "b1", "b2")
		c := storetest.Start(t.Context(), s, ask, "c")
		d := storetest.Start(t.Context(), s, ask, "d1", "d2", "d3")
		g.None(t)
		first.Finish()
		require.Equal(t, []string{"a"}, a.Names)
		second := g.Next(t)
		require.Equal(t, []string{"b1", "b2", "c", "d1", "d2", "d3"}, second.RowNames())

		e := storetest.Start(t.Context(), s, ask, "e")
		g.None(t)
		second.Finish()
		require.Equal(t, []string{"b1", "b2"}, b.Names)
		require.Equal(t, []string{"c"}, c.Names)
		require.Equal(t, []string{"d1", "d2", "d3"}, d.Names)
		require.False(t, e.Done, "a call never gets the answer to a request that left before it asked")
		third := g.Next(t)
		require.Equal(t, []string{"e"}, third.RowNames())
		third.Finish()
		require.Equal(t, []string{"e"}, e.Names)
		require.NoError(t, e.Err)

		// Idle again: the next call goes straight through.
		f := storetest.Start(t.Context(), s, ask, "f")
		g.Next(t).Finish()
		require.Equal(t, []string{"f"}, f.Names)
	})
}

type contextKey struct{}

func TestCoalesceLeavesAnIdleCallAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := storetest.NewGate(memstore.New())
		s := coalesce.New(g, coalesce.Options{})
		reads := []rs.RowRead{{Table: "t", Row: "r", Selectors: storetest.Everything}}
		ctx := context.WithValue(t.Context(), contextKey{}, "mine")
		go func() {
			_, _ = s.Read(ctx, reads)
		}()
		synctest.Wait()
		call := g.Next(t)
		require.Equal(t, ctx, call.Ctx)
		require.Same(t, &reads[0], &call.Reads[0])
		call.Finish()
		require.NoError(t, s.Close())
	})
}

func TestCoalesceSendsAsManyCallsAsAllowed(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 2}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		storetest.Start(t.Context(), s, ask, "a")
		storetest.Start(t.Context(), s, ask, "b")
		a, b := g.Next(t), g.Next(t)
		storetest.Start(t.Context(), s, ask, "c")
		storetest.Start(t.Context(), s, ask, "d")
		g.None(t)
		b.Finish()
		cd := g.Next(t)
		require.Equal(t, []string{"c", "d"}, cd.RowNames())
		storetest.Start(t.Context(), s, ask, "e")
		g.None(t)
		cd.Finish()
		e := g.Next(t)
		require.Equal(t, []string{"e"}, e.RowNames())
		e.OK()
		a.Finish()
	})
}

func TestCoalesceSendsNoSmallCallBesideALargeOne(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 2, MaxBatch: 8}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		storetest.Start(t.Context(), s, ask, "a1", "a2", "a3")
		a := g.Next(t)
		storetest.Start(t.Context(), s, ask, "b")
		storetest.Start(t.Context(), s, ask, "c")
		g.None(t)
		storetest.Start(t.Context(), s, ask, "d")
		bcd := g.Next(t)
		require.Equal(t, []string{"b", "c", "d"}, bcd.RowNames())
		storetest.Start(t.Context(), s, ask, "e")
		storetest.Start(t.Context(), s, ask, "f")
		a.Finish()
		g.None(t)
		bcd.Finish()
		ef := g.Next(t)
		require.Equal(t, []string{"e", "f"}, ef.RowNames())
		ef.Finish()

		// Half a batch is large, whatever is under way.
		storetest.Start(t.Context(), s, ask, "a1", "a2", "a3", "a4", "a5", "a6")
		a = g.Next(t)
		storetest.Start(t.Context(), s, ask, "b1", "b2", "b3", "b4")
		b := g.Next(t)
		b.OK()
		storetest.Start(t.Context(), s, ask, "c")
		g.None(t)
		storetest.Start(t.Context(), s, ask, "d1", "d2", "d3")
		cd := g.Next(t)
		require.Equal(t, []string{"c", "d1", "d2", "d3"}, cd.RowNames())
		cd.OK()
		a.Finish()
	})
}

func TestCoalesceNamesARowOnceInABatch(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		storetest.Start(t.Context(), s, ask, "x")
		first := g.Next(t)
		var replies []*storetest.Reply
		for _, rows := range [][]string{{"x"}, {"y", "x"}, {"x"}, {"y"}, {"z"}} {
			replies = append(replies, storetest.Start(t.Context(), s, ask, rows...))
		}
		want := [][]string{{"x", "z"}, {"y", "x"}, {"x", "y"}}
		if first.Reads != nil { // a batch of reads may name a row twice
			want = [][]string{{"x", "y", "x", "x", "y", "z"}}
		}
		for call := first; ; call = g.Next(t) {
			if call != first {
				require.Equal(t, want[0], call.RowNames())
				want = want[1:]
			}
			call.Finish()
			if len(want) == 0 {
				break
			}
		}
		require.Equal(t, []string{"y", "x"}, replies[1].Names)
		for _, r := range replies {
			require.True(t, r.Done)
			require.NoError(t, r.Err)
		}
	})
}

func TestCoalesceKeepsBatchesBelowTheLimit(t *testing.T) {
	eachKind(t, coalesce.Options{MaxInFlight: 1, MaxBatch: 3}, func(t *testing.T, ask storetest.Asker, g *storetest.Gate, s rs.Store) {
		storetest.Start(t.Context(), s, ask, "a1", "a2", "a3")
		call := g.Next(t)
		require.Len(t, call.RowNames(), 3)
		for _, rows := range [][]string{{"c"}, {"d1", "d2", "d3"}, {"e1", "e2"}, {"f"}} {
			storetest.Start(t.Context(), s, ask, rows...)
		}
		for _, want := range [][]string{{"c", "e1", "e2"}, {"d1", "d2", "d3"}, {"f"}} {
			call.Finish()
			call = g.Next(t)
			require.Equal(t, want, call.RowNames())
		}
		call.Finish()
	})
}

func TestCoalesceSplitsDeferredFromUndeferred(t *testing.T) {
	t.Parallel()
	deferred := storetest.AskApplyWith(rs.ApplyOptions{Deferred: true})
	ask := storetest.Askers["Apply"]
	t.Run("over a Deferrer", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g := storetest.NewGate(memstore.New())
			s := coalesce.New(storetest.Transparent{Store: struct {
				*storetest.Gate
				rs.Deferrer
			}{g, memstore.New()}}, coalesce.Options{MaxInFlight: 1})
			storetest.Start(t.Context(), s, ask, "a")
			a := g.Next(t)
			require.False(t, a.Opts.Deferred)
			storetest.Start(t.Context(), s, deferred, "b")
			b := g.Next(t)
			require.True(t, b.Opts.Deferred)
			storetest.Start(t.Context(), s, deferred, "c")
			storetest.Start(t.Context(), s, ask, "d")
			storetest.Start(t.Context(), s, deferred, "e")
			b.Finish()
			ce := g.Next(t)
			require.Equal(t, []string{"c", "e"}, ce.RowNames())
			require.True(t, ce.Opts.Deferred)
			a.Finish()
			d := g.Next(t)
			require.Equal(t, []string{"d"}, d.RowNames())
			require.False(t, d.Opts.Deferred)
			ce.OK()
			d.Finish()
			require.NoError(t, s.Close())
		})
	})
	t.Run("over another store", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g := storetest.NewGate(memstore.New())
			s := coalesce.New(g, coalesce.Options{MaxInFlight: 1})
			storetest.Start(t.Context(), s, deferred, "a")
			a := g.Next(t)
			storetest.Start(t.Context(), s, deferred, "b")
			storetest.Start(t.Context(), s, ask, "c")
			a.Finish()
			bc := g.Next(t)
			require.Equal(t, []string{"b", "c"}, bc.RowNames())
			require.False(t, bc.Opts.Deferred)
			bc.Finish()
			require.NoError(t, s.Close())
		})
	})
}

func TestCoalesceKeepsNothingOfTheCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := storetest.NewGate(memstore.New())
		s := coalesce.New(g, coalesce.Options{MaxInFlight: 1})
		storetest.Start(t.Context(), s, storetest.Askers["Apply"], "a")
		storetest.Start(t.Context(), s, storetest.Askers["Group"], "a")
		storetest.Start(t.Context(), s, storetest.Askers["Read"], "a")
		first := []*storetest.GateCall{g.Next(t), g.Next(t), g.Next(t)}

		ctx, cancel := context.WithCancel(t.Context())
		muts := storetest.Mutations("x", "y")
		groups := []rs.Group{{Mutations: storetest.Mutations("x", "y")}}
		reads := []rs.RowRead{{Table: "t", Row: "x", Selectors: slices.Clone(storetest.Everything)}}
		grouper, _ := rs.Unwrap[rs.Grouper](s)
		var gone sync.WaitGroup
		gone.Go(func() { _, _ = s.Apply(ctx, muts, rs.ApplyOptions{}) })
		gone.Go(func() { _, _ = grouper.Group(ctx, groups) })
		gone.Go(func() { _, _ = s.Read(ctx, reads) })
		synctest.Wait()
		for _, c := range first {
			c.OK()
		}
		synctest.Wait()
		second := []*storetest.GateCall{g.Next(t), g.Next(t), g.Next(t)}
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
		reads[0].Selectors[0].Family = 99
		seen := 0
		for _, c := range second {
			switch {
			case c.Reads != nil:
				require.Equal(t, storetest.Everything, c.Reads[0].Selectors)
			case c.Groups != nil:
				require.Equal(t, storetest.Mutations("x", "y"), c.Groups[0].Mutations)
			default:
				require.Equal(t, storetest.Mutations("x", "y"), c.Muts)
			}
			seen++
			c.OK()
		}
		require.Equal(t, 3, seen)
		synctest.Wait()
		require.NoError(t, s.Close())
	})
}

func TestCoalesceSharesDraws(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := storetest.NewGate(memstore.New())
		s := coalesce.New(g, coalesce.Options{MaxInFlight: 1, MaxBatch: 10})
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
		first := g.Next(t)
		require.Equal(t, 2, first.Timestamps)
		b, c := start(t.Context(), 1), start(t.Context(), 5)
		ctx, cancel := context.WithCancel(t.Context())
		gone := start(ctx, 1)
		d, e := start(t.Context(), 2), start(t.Context(), 3)
		require.ErrorIs(t, start(t.Context(), 0).err, rs.ErrInvalid)
		cancel()
		synctest.Wait()
		require.ErrorIs(t, gone.err, context.Canceled)
		first.Answer <- storetest.GateAnswer{First: 100}
		synctest.Wait()
		require.Equal(t, draw{100, nil}, *a)
		second := g.Next(t)
		require.Equal(t, 8, second.Timestamps, "up to ten timestamps in a call")
		require.Zero(t, b.ts, "no timestamp of an earlier draw is ever kept for a later one")
		second.Answer <- storetest.GateAnswer{First: 200}
		synctest.Wait()
		require.Equal(t, []rs.Timestamp{200, 201, 206}, []rs.Timestamp{b.ts, c.ts, d.ts})
		third := g.Next(t)
		require.Equal(t, 3, third.Timestamps)
		third.Fail(errors.New("no clock"))
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
	storetest.RequireEnds(t, coalesce.New(memstore.New(), coalesce.Options{}))
}

func TestCoalesceReports(t *testing.T) {
	t.Parallel()
	r, _ := rs.Unwrap[rs.Reporter](coalesce.New(memstore.New(), coalesce.Options{MaxBatch: 17}))
	report, err := r.Report(t.Context())
	require.NoError(t, err)
	require.Equal(t, "memory", report.Backend)
	require.Contains(t, fmt.Sprint(report.Features), "17 rows")
}

func TestCoalesceOfMemoryIsMemory(t *testing.T) {
	t.Parallel()
	storetest.CompareWithMemory(t, true, func(m *memstore.Store) rs.Store { return coalesce.New(m, coalesce.Options{}) })
}

// Many goroutines claim cells, each of which only one may have, by applies and by
// groups over several rows; some give up at any moment.
func TestCoalesceConcurrently(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	s := coalesce.New(storetest.Slowed{Store: m}, coalesce.Options{MaxInFlight: 2, MaxBatch: 16})
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
					rows, err := s.Read(ctx, []rs.RowRead{{Table: "t", Row: cell, Selectors: storetest.Everything}})
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
