package router_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/percolator/rowstore/router"
)

// closing counts calls of Close, and fails them.
type closing struct {
	*memstore.Store
	err    error
	closed int
}

func (c *closing) Close() error {
	c.closed++
	return errors.Join(c.err, c.Store.Close())
}

func newRouter(t testing.TB, c router.Config) *router.Store {
	t.Helper()
	r, err := router.New(c)
	require.NoError(t, err)
	return r
}

func TestRouterSendsEachTableToItsStore(t *testing.T) {
	t.Parallel()
	main, logs, other := memstore.New(), memstore.New(), memstore.New()
	r := newRouter(t, router.Config{
		Stores:        map[string]rs.Store{"main": main, "logs": logs, "other": other},
		Tables:        map[string]string{"log*": "logs", "logins": "main", "logs/old*": "other", "\x00bin*": "logs"},
		Default:       "other",
		Authoritative: "main",
	})
	homes := map[string]*memstore.Store{
		"log": logs, "logs": logs, "logs/new": logs, "logins": main, "logins2": logs, "logs/old": other, "logs/old/1": other, "lo": other,
		"\x00catalog": main, "\x00": main, "\x00bin": main, "\x00\x00bin": logs, "\x00\x00binary": logs, "\x00\x00x": other,
	}
	var muts []rs.Mutation
	var reads []rs.RowRead
	var names []string
	for table := range homes {
		names = append(names, table)
		muts = append(muts, rs.Mutation{Table: table, Row: "r", Edits: []rs.Edit{rs.Put(rs.Write, "c", 1, []byte(table))}})
		reads = append(reads, rs.RowRead{Table: table, Row: "r", Selectors: storetest.Everything})
	}
	out, err := r.Apply(t.Context(), muts, rs.ApplyOptions{})
	require.NoError(t, err)
	for i, o := range out {
		require.True(t, o.Applied)
		home := homes[muts[i].Table]
		require.Len(t, storetest.Read(t, home, muts[i].Table, "r"), 1, "%q", muts[i].Table)
		require.Equal(t, home == main, r.Authoritative(muts[i].Table), "%q", muts[i].Table)
	}
	rows, err := r.Read(t.Context(), reads)
	require.NoError(t, err)
	for i, row := range rows {
		require.Equal(t, reads[i].Table, row.Table)
		require.Equal(t, reads[i].Table, string(row.Versions[0].Value))
		require.Equal(t, []string{"r"}, storetest.Scanned(t, r, rs.ScanRange{Table: row.Table, Selectors: storetest.Everything}))
	}
	// What a store holds besides is not the router's.
	storetest.Put(t, other, "\x00catalog", "r", rs.Put(rs.Write, "c", 1, nil))
	storetest.Put(t, other, "log", "r", rs.Put(rs.Write, "c", 1, nil))
	storetest.Put(t, main, "stray", "r", rs.Put(rs.Write, "c", 1, nil))
	slices.Sort(names)
	require.Equal(t, names, storetest.Tables(t, r))
}

func TestRouterConfiguration(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	one := map[string]rs.Store{"one": m}
	two := map[string]rs.Store{"one": m, "two": memstore.New()}
	require.True(t, newRouter(t, router.Config{Stores: one}).Authoritative("any"))
	for message, c := range map[string]router.Config{
		`authoritative store is ""`:        {Stores: two},
		`authoritative store is "three"`:   {Stores: two, Authoritative: "three"},
		`default store is "three"`:         {Stores: two, Authoritative: "one", Default: "three"},
		`table "a*" is to live in store`:   {Stores: one, Tables: map[string]string{"a*": "two"}},
		`a table's name is empty`:          {Stores: one, Tables: map[string]string{"": "one"}},
		`store name ""`:                    {Stores: map[string]rs.Store{"": m}},
		`store name "a\x00"`:               {Stores: map[string]rs.Store{"a\x00": m}},
		`store "none" is nil`:              {Stores: map[string]rs.Store{"none": nil}},
		`authoritative store is "", which`: {},
	} {
		_, err := router.New(c)
		require.ErrorIs(t, err, rs.ErrInvalid)
		require.ErrorContains(t, err, message)
	}
	require.NoError(t, m.Flush(t.Context()), "the stores are still open")
}

// twoStores is a router over a gate, named dead, that holds tables "d...", and a
// memstore.
func twoStores(t *testing.T) (*router.Store, *storetest.Gate, *memstore.Store) {
	t.Helper()
	m, g := memstore.New(), storetest.NewGate(memstore.New())
	return newRouter(t, router.Config{
		Stores: map[string]rs.Store{"main": m, "dead": g}, Tables: map[string]string{"d*": "dead"}, Authoritative: "main",
	}), g, m
}

// TestRouterFailuresStayWhereTheyAre has calls about two stores of which one fails. It is long
// because each kind of call has a case, and what was written by one is read by the next.
func TestRouterFailuresStayWhereTheyAre(t *testing.T) {
	t.Parallel()
	failure := errors.New("connection refused")
	synctest.Test(t, func(t *testing.T) {
		r, g, m := twoStores(t)
		mut := func(table, row string) rs.Mutation {
			return rs.Mutation{Table: table, Row: row, Edits: []rs.Edit{rs.Put(rs.Write, "c", 1, nil)}}
		}
		muts := []rs.Mutation{mut("dead", "1"), mut("a", "1"), mut("dead", "2"), mut("b", "1")}
		var out []rs.Outcome
		var err error
		go func() { out, err = r.Apply(t.Context(), muts, rs.ApplyOptions{}) }()
		synctest.Wait()
		call := g.Next(t)
		require.Equal(t, []string{"1", "2"}, call.RowNames())
		require.Len(t, storetest.Read(t, m, "a", "1"), 1, "the stores are asked at the same time")
		call.Fail(fmt.Errorf("%w: %w", rs.ErrAmbiguous, failure))
		synctest.Wait()
		require.NoError(t, err)
		for i := range muts {
			if muts[i].Table == "dead" {
				require.ErrorIs(t, out[i].Err, failure)
				require.ErrorIs(t, out[i].Err, rs.ErrAmbiguous)
				require.ErrorContains(t, out[i].Err, `"dead"`)
			} else {
				require.True(t, out[i].Applied)
				require.NoError(t, out[i].Err)
			}
		}

		var rows []rs.Row
		go func() {
			rows, err = r.Read(t.Context(), []rs.RowRead{
				{Table: "a", Row: "1", Selectors: storetest.Everything}, {Table: "dead", Row: "1", Selectors: storetest.Everything}, {Table: "b", Row: "1", Selectors: storetest.Everything},
			})
		}()
		synctest.Wait()
		g.Next(t).Fail(failure)
		synctest.Wait()
		require.NoError(t, err)
		require.Len(t, rows[0].Versions, 1)
		require.ErrorIs(t, rows[1].Err, failure)
		require.Equal(t, "dead", rows[1].Table)
		require.Len(t, rows[2].Versions, 1)

		grouper, _ := rs.Unwrap[rs.Grouper](r)
		var groups []rs.GroupOutcome
		go func() {
			groups, err = grouper.Group(t.Context(), []rs.Group{
				{Mutations: []rs.Mutation{mut("a", "1"), mut("b", "1")}}, {Mutations: []rs.Mutation{mut("dead", "1")}},
			})
		}()
		synctest.Wait()
		g.Next(t).Fail(failure)
		synctest.Wait()
		require.NoError(t, err)
		require.True(t, groups[0].Applied)
		require.ErrorIs(t, groups[1].Err, failure)

		// A call about the dead store alone fails as a whole.
		go func() { _, err = r.Apply(t.Context(), muts[:1], rs.ApplyOptions{}) }()
		synctest.Wait()
		g.Next(t).Fail(failure)
		synctest.Wait()
		require.ErrorIs(t, err, failure)
		require.ErrorContains(t, err, `"dead"`)

		// A wrong number of answers concerns the rows of that store.
		go func() { out, err = r.Apply(t.Context(), muts, rs.ApplyOptions{}) }()
		synctest.Wait()
		g.Next(t).Answer <- storetest.GateAnswer{Outs: make([]rs.Outcome, 1)}
		synctest.Wait()
		require.NoError(t, err)
		require.ErrorIs(t, out[0].Err, rs.ErrAmbiguous)
		require.True(t, out[1].Applied)
	})
}

func TestRouterChecksBeforeItSends(t *testing.T) {
	t.Parallel()
	tight, wide := memstore.New(memstore.WithLimits(rs.Limits{Row: 3})), memstore.New(memstore.WithLimits(rs.Limits{Row: 9, Value: 5}))
	r := newRouter(t, router.Config{Stores: map[string]rs.Store{"tight": tight, "wide": wide}, Tables: map[string]string{"w": "wide"}, Authoritative: "tight"})
	mut := func(table, row string) rs.Mutation {
		return rs.Mutation{Table: table, Row: row, Edits: []rs.Edit{rs.Put(rs.Write, "c", 1, nil)}}
	}
	_, err := r.Apply(t.Context(), []rs.Mutation{mut("w", "long"), mut("t", "long")}, rs.ApplyOptions{})
	require.ErrorIs(t, err, rs.ErrTooLarge)
	_, err = r.Apply(t.Context(), []rs.Mutation{mut("w", "a"), mut("t", "")}, rs.ApplyOptions{})
	require.ErrorIs(t, err, rs.ErrInvalid)
	_, err = r.Apply(t.Context(), []rs.Mutation{mut("w", "a"), mut("t", "a"), mut("w", "a")}, rs.ApplyOptions{})
	require.ErrorIs(t, err, rs.ErrInvalid)
	grouper, _ := rs.Unwrap[rs.Grouper](r)
	_, err = grouper.Group(t.Context(), []rs.Group{{Mutations: []rs.Mutation{mut("w", "a")}}, {Mutations: []rs.Mutation{mut("t", "long")}}})
	require.ErrorIs(t, err, rs.ErrTooLarge)
	_, err = grouper.Group(t.Context(), []rs.Group{{Mutations: []rs.Mutation{mut("w", "a"), mut("t", "a")}}})
	require.ErrorIs(t, err, rs.ErrInvalid)
	out, err := grouper.Group(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, out)
	require.Empty(t, storetest.Tables(t, r))
	limiter, _ := rs.Unwrap[rs.Limiter](r)
	require.Equal(t, rs.Limits{Row: 3, Value: 5}, limiter.Limits())
}

func TestRouterGroupsAndDraws(t *testing.T) {
	t.Parallel()
	m, other := memstore.New(), memstore.New()
	r := newRouter(t, router.Config{
		Stores: map[string]rs.Store{"main": m, "other": other, "plain": storetest.Plain{Store: memstore.New()}}, Tables: map[string]string{"o": "other", "p": "plain"}, Authoritative: "main",
	})
	g, ok := rs.Unwrap[rs.Grouper](r)
	require.True(t, ok)
	require.Equal(t, g.GroupKey("t", "1"), g.GroupKey("u", "2"))
	require.NotEqual(t, g.GroupKey("t", "1"), g.GroupKey("o", "1"))
	require.NotEmpty(t, g.GroupKey("o", "1"))
	require.Empty(t, g.GroupKey("p", "1"))
	require.True(t, g.AssignsTimestamps(g.GroupKey("t", "1")))
	require.False(t, g.AssignsTimestamps(g.GroupKey("o", "1")), "its timestamps are not the database's")
	require.False(t, g.AssignsTimestamps("memory"))

	p, ok := rs.Unwrap[rs.OracleProvider](r)
	require.True(t, ok)
	require.Equal(t, m.Oracle(), p.Oracle())

	// Without an oracle in the authoritative store nothing draws.
	noOracle := newRouter(t, router.Config{Stores: map[string]rs.Store{"main": struct {
		rs.Store
		rs.Grouper
	}{m, m}}})
	g, ok = rs.Unwrap[rs.Grouper](noOracle)
	require.True(t, ok)
	require.False(t, g.AssignsTimestamps(g.GroupKey("t", "1")))
	_, ok = rs.Unwrap[rs.OracleProvider](noOracle)
	require.False(t, ok)
}

func TestRouterDefersInTheAuthoritativeStoreAlone(t *testing.T) {
	t.Parallel()
	m, other := memstore.New(), memstore.New()
	r := newRouter(t, router.Config{Stores: map[string]rs.Store{"main": m, "other": other}, Tables: map[string]string{"o": "other"}, Authoritative: "main"})
	deferred := rs.ApplyOptions{Deferred: true}
	mut := func(table, row string, c ...rs.Condition) rs.Mutation {
		return rs.Mutation{Table: table, Row: row, Conditions: c, Edits: []rs.Edit{rs.Put(rs.Write, "c", 1, nil)}}
	}
	out, err := r.Apply(t.Context(), []rs.Mutation{mut("t", "both"), mut("o", "both")}, deferred)
	require.NoError(t, err)
	inMain, inOther := out[0].Incarnation, out[1].Incarnation
	require.NotEqual(t, inMain, inOther)
	storetest.Apply(t, r, mut("o", "alone"), deferred)
	storetest.Apply(t, r, mut("t", "alone"), deferred)
	crasher, ok := rs.Unwrap[rs.Crasher](r)
	require.True(t, ok)
	crasher.Crash()
	require.Empty(t, storetest.Scanned(t, r, rs.ScanRange{Table: "t", Selectors: storetest.Everything}))
	require.Equal(t, []string{"alone", "both"}, storetest.Scanned(t, r, rs.ScanRange{Table: "o", Selectors: storetest.Everything}))

	storetest.Apply(t, r, mut("t", "flushed"), deferred)
	d, ok := rs.Unwrap[rs.Deferrer](r)
	require.True(t, ok)
	require.NoError(t, d.Flush(t.Context()))
	m.Crash()
	require.Len(t, storetest.Read(t, r, "t", "flushed"), 1)

	// A condition on the incarnation asks the row's own store.
	inMain = storetest.Apply(t, r, mut("t", "x")).Incarnation
	inOther = storetest.Apply(t, r, mut("o", "x")).Incarnation
	out, err = r.Apply(t.Context(), []rs.Mutation{mut("t", "y", rs.SameIncarnation(inMain)), mut("o", "y", rs.SameIncarnation(inOther)), mut("o", "z", rs.SameIncarnation(inMain))}, rs.ApplyOptions{})
	require.NoError(t, err)
	require.Equal(t, []bool{true, true, false}, []bool{out[0].Applied, out[1].Applied, out[2].Applied})
	require.NoError(t, r.Close())
	require.ErrorIs(t, d.Flush(t.Context()), rs.ErrClosed)
}

func TestRouterListensEverywhere(t *testing.T) {
	t.Parallel()
	m, other := memstore.New(), memstore.New()
	r := newRouter(t, router.Config{Stores: map[string]rs.Store{"main": m, "other": other}, Tables: map[string]string{"o": "other"}, Authoritative: "main"})
	w, ok := rs.Unwrap[rs.Waker](r)
	require.True(t, ok)
	ctx, cancel := context.WithCancel(t.Context())
	woken, done := make(chan rs.Wake, 10), make(chan error, 1)
	go func() { done <- w.Listen(ctx, func(w rs.Wake) { woken <- w }) }()
	require.Zero(t, <-woken)
	require.Zero(t, <-woken)
	storetest.Put(t, r, "o", "r", rs.Put(rs.Notify, "c", 1, nil))
	require.Equal(t, rs.Wake{Table: "o", Slots: []uint16{rs.Slot("o", "r")}}, <-woken)
	storetest.Put(t, r, "t", "r", rs.Put(rs.Notify, "c", 1, nil))
	require.Equal(t, rs.Wake{Table: "t", Slots: []uint16{rs.Slot("t", "r")}}, <-woken)
	cancel()
	require.Equal(t, context.Canceled, <-done)

	go func() { done <- w.Listen(t.Context(), func(w rs.Wake) { woken <- w }) }()
	<-woken
	<-woken
	require.NoError(t, other.Close())
	err := <-done
	require.ErrorIs(t, err, rs.ErrClosed)
	require.ErrorContains(t, err, `"other"`)
}

func TestRouterClose(t *testing.T) {
	t.Parallel()
	failure := errors.New("disk full")
	a, b := &closing{Store: memstore.New(), err: failure}, &closing{Store: memstore.New()}
	r := newRouter(t, router.Config{Stores: map[string]rs.Store{"a": a, "b": b}, Authoritative: "a"})
	err := r.Close()
	require.ErrorIs(t, err, failure)
	require.ErrorContains(t, err, `"a"`)
	require.NoError(t, r.Close())
	require.Equal(t, []int{1, 1}, []int{a.closed, b.closed})

	storetest.RequireEnds(t, newRouter(t, router.Config{Stores: map[string]rs.Store{"a": memstore.New(), "b": memstore.New()}, Authoritative: "a", Default: "b"}))

	r = newRouter(t, router.Config{Stores: map[string]rs.Store{"a": memstore.New(), "b": memstore.New()}, Authoritative: "a", Tables: map[string]string{"b": "b"}})
	both := []rs.RowRead{{Table: "a", Row: "r", Selectors: storetest.Everything}, {Table: "b", Row: "r", Selectors: storetest.Everything}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.Read(ctx, both)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, r.Close())
	_, err = r.Read(t.Context(), both)
	require.ErrorIs(t, err, rs.ErrClosed)
}

func TestRouterOffers(t *testing.T) {
	t.Parallel()

	two := func(second rs.Store) *router.Store {
		return newRouter(t, router.Config{Stores: map[string]rs.Store{"a": memstore.New(), "b": second}, Tables: map[string]string{"b": "b"}, Authoritative: "a"})
	}
	r := two(storetest.Plain{Store: memstore.New()})
	_, ok := rs.Unwrap[rs.Waker](r)
	require.False(t, ok, "nobody would look at the tables of the other store")
	_, ok = rs.Unwrap[rs.Splitter](r)
	require.False(t, ok)
	for _, wrapped := range []rs.Store{coalesce.New(r, coalesce.Options{}), faultstore.New(r, faultstore.Options{})} {
		p, ok := rs.Unwrap[rs.Placer](wrapped)
		require.True(t, ok)
		require.True(t, p.Authoritative("a"))
		require.False(t, p.Authoritative("b"))
	}

	r = two(memstore.New())
	for _, table := range []string{"a", "b"} {
		for i := range 10 {
			storetest.Put(t, r, table, fmt.Sprint(table, i), rs.Put(rs.Write, "c", 1, nil))
		}
		s, ok := rs.Unwrap[rs.Splitter](r)
		require.True(t, ok)
		keys, err := s.Split(t.Context(), table, 2)
		require.NoError(t, err)
		require.Equal(t, []string{table + "5"}, keys)
	}
	reporter, _ := rs.Unwrap[rs.Reporter](r)
	report, err := reporter.Report(t.Context())
	require.NoError(t, err)
	require.Equal(t, "router", report.Backend)
	text := fmt.Sprint(report.Features)
	require.Contains(t, text, "memory, authoritative")
	require.Equal(t, 1, strings.Count(text, "b: one-phase"))
}

func TestRouterOfMemoriesIsMemory(t *testing.T) {
	t.Parallel()
	storetest.CompareWithMemory(t, false, func(m *memstore.Store) rs.Store {
		r, err := router.New(router.Config{
			Stores: map[string]rs.Store{"main": m, "other": memstore.New()}, Tables: map[string]string{"b": "other"}, Authoritative: "main",
		})
		if err != nil {
			panic(err)
		}
		return r
	})
}

func TestRouterOfOneMemoryIsMemory(t *testing.T) {
	t.Parallel()
	storetest.CompareWithMemory(t, true, func(m *memstore.Store) rs.Store {
		r, err := router.New(router.Config{Stores: map[string]rs.Store{"main": m}})
		if err != nil {
			panic(err)
		}
		return coalesce.New(r, coalesce.Options{})
	})
}

// What two stores have in common is the tightest of each limit, and what is over that of
// its own store alone is refused before another store is sent anything.
func TestRouterLimitsOfAStep(t *testing.T) {
	t.Parallel()
	main, other := memstore.New(memstore.WithLimits(rs.Limits{Operations: 9, Bytes: 500})), memstore.New(memstore.WithLimits(rs.Limits{Operations: 4, Bytes: 900}))
	r := newRouter(t, router.Config{
		Stores: map[string]rs.Store{"main": main, "other": other}, Tables: map[string]string{"u": "other"}, Authoritative: "main",
	})
	l, _ := rs.Unwrap[rs.Limiter](r)
	require.Equal(t, rs.Limits{Operations: 4, Bytes: 500}, l.Limits())
	g, _ := rs.Unwrap[rs.Grouper](r)
	elsewhere := func(m rs.Mutation) rs.Mutation {
		m.Table = "u"
		return m
	}
	_, err := r.Apply(t.Context(), []rs.Mutation{storetest.Step("a", 0, 5), elsewhere(storetest.Step("a", 0, 5))}, rs.ApplyOptions{})
	require.ErrorIs(t, err, rs.ErrTooLarge)
	_, err = g.Group(t.Context(), []rs.Group{
		{Mutations: []rs.Mutation{storetest.Step("a", 1, 2), storetest.Step("b", 1, 2)}}, {Mutations: []rs.Mutation{elsewhere(storetest.Step("a", 1, 2)), elsewhere(storetest.Step("b", 1, 2))}},
	})
	require.ErrorIs(t, err, rs.ErrTooLarge)
	for name, err := range r.Tables(t.Context()) {
		require.NoError(t, err)
		require.Empty(t, name, "nothing is written")
	}
	out, err := r.Apply(t.Context(), []rs.Mutation{storetest.Step("a", 0, 5), elsewhere(storetest.Step("a", 0, 4))}, rs.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, out[0].Applied && out[1].Applied)
	require.NoError(t, r.Close())
}

func TestRouterNamesShards(t *testing.T) {
	t.Parallel()
	r := newRouter(t, router.Config{
		Stores: map[string]rs.Store{"main": memstore.New(), "cluster": storetest.Sharded{Gate: storetest.NewGate(memstore.New())}},
		Tables: map[string]string{"u": "cluster"}, Authoritative: "main",
	})
	s, ok := rs.Unwrap[rs.Sharder](coalesce.New(r, coalesce.Options{}))
	require.True(t, ok)
	require.Equal(t, s.Shard("t", "a"), s.Shard("t", "b"))
	require.Equal(t, s.Shard("u", "a1"), s.Shard("u", "a2"))
	names := map[string]bool{s.Shard("t", "a"): true, s.Shard("u", "a"): true, s.Shard("u", "b"): true}
	require.Len(t, names, 3)
	require.NoError(t, r.Close())
}
