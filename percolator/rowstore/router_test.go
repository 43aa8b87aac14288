package rowstore_test

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
)

// closing counts calls of Close, and fails them.
type closing struct {
	*rs.Memory
	err    error
	closed int
}

func (c *closing) Close() error {
	c.closed++
	return errors.Join(c.err, c.Memory.Close())
}

func newRouter(t testing.TB, c rs.RouterConfig) *rs.Router {
	t.Helper()
	r, err := rs.NewRouter(c)
	require.NoError(t, err)
	return r
}

func TestRouterSendsEachTableToItsStore(t *testing.T) {
	t.Parallel()
	main, logs, other := rs.NewMemory(), rs.NewMemory(), rs.NewMemory()
	r := newRouter(t, rs.RouterConfig{
		Stores:        map[string]rs.Store{"main": main, "logs": logs, "other": other},
		Tables:        map[string]string{"log*": "logs", "logins": "main", "logs/old*": "other", "\x00bin*": "logs"},
		Default:       "other",
		Authoritative: "main",
	})
	homes := map[string]*rs.Memory{
		"log": logs, "logs": logs, "logs/new": logs, "logins": main, "logins2": logs, "logs/old": other, "logs/old/1": other, "lo": other,
		"\x00catalog": main, "\x00": main, "\x00bin": main, "\x00\x00bin": logs, "\x00\x00binary": logs, "\x00\x00x": other,
	}
	var muts []rs.Mutation
	var reads []rs.RowRead
	var names []string
	for table := range homes {
		names = append(names, table)
		muts = append(muts, rs.Mutation{Table: table, Row: "r", Edits: []rs.Edit{rs.Put(rs.Write, "c", 1, []byte(table))}})
		reads = append(reads, rs.RowRead{Table: table, Row: "r", Picks: everything})
	}
	out, err := r.Apply(t.Context(), muts, rs.ApplyOptions{})
	require.NoError(t, err)
	for i, o := range out {
		require.True(t, o.Applied)
		home := homes[muts[i].Table]
		require.Len(t, read(t, home, muts[i].Table, "r"), 1, "%q", muts[i].Table)
		require.Equal(t, home == main, r.Authoritative(muts[i].Table), "%q", muts[i].Table)
	}
	rows, err := r.Read(t.Context(), reads)
	require.NoError(t, err)
	for i, row := range rows {
		require.Equal(t, reads[i].Table, row.Table)
		require.Equal(t, reads[i].Table, string(row.Versions[0].Value))
		require.Equal(t, []string{"r"}, scanned(t, r, rs.ScanRange{Table: row.Table, Picks: everything}))
	}
	// What a store holds besides is not the Router's.
	put(t, other, "\x00catalog", "r", rs.Put(rs.Write, "c", 1, nil))
	put(t, other, "log", "r", rs.Put(rs.Write, "c", 1, nil))
	put(t, main, "stray", "r", rs.Put(rs.Write, "c", 1, nil))
	slices.Sort(names)
	require.Equal(t, names, tables(t, r))
}

func TestRouterConfiguration(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	one := map[string]rs.Store{"one": m}
	two := map[string]rs.Store{"one": m, "two": rs.NewMemory()}
	require.True(t, newRouter(t, rs.RouterConfig{Stores: one}).Authoritative("any"))
	for message, c := range map[string]rs.RouterConfig{
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
		_, err := rs.NewRouter(c)
		require.ErrorIs(t, err, rs.ErrInvalid)
		require.ErrorContains(t, err, message)
	}
	require.NoError(t, m.Flush(t.Context()), "the stores are still open")
}

// twoStores is a Router over a gate, named dead, that holds tables "d...", and a
// Memory.
func twoStores(t *testing.T) (*rs.Router, *gate, *rs.Memory) {
	t.Helper()
	m, g := rs.NewMemory(), newGate(rs.NewMemory())
	return newRouter(t, rs.RouterConfig{
		Stores: map[string]rs.Store{"main": m, "dead": g}, Tables: map[string]string{"d*": "dead"}, Authoritative: "main",
	}), g, m
}

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
		call := g.next(t)
		require.Equal(t, []string{"1", "2"}, call.rowNames())
		require.Len(t, read(t, m, "a", "1"), 1, "the stores are asked at the same time")
		call.fail(fmt.Errorf("%w: %w", rs.ErrAmbiguous, failure))
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
				{Table: "a", Row: "1", Picks: everything}, {Table: "dead", Row: "1", Picks: everything}, {Table: "b", Row: "1", Picks: everything},
			})
		}()
		synctest.Wait()
		g.next(t).fail(failure)
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
		g.next(t).fail(failure)
		synctest.Wait()
		require.NoError(t, err)
		require.True(t, groups[0].Applied)
		require.ErrorIs(t, groups[1].Err, failure)

		// A call about the dead store alone fails as a whole.
		go func() { _, err = r.Apply(t.Context(), muts[:1], rs.ApplyOptions{}) }()
		synctest.Wait()
		g.next(t).fail(failure)
		synctest.Wait()
		require.ErrorIs(t, err, failure)
		require.ErrorContains(t, err, `"dead"`)

		// A wrong number of answers concerns the rows of that store.
		go func() { out, err = r.Apply(t.Context(), muts, rs.ApplyOptions{}) }()
		synctest.Wait()
		g.next(t).answer <- gateAnswer{outs: make([]rs.Outcome, 1)}
		synctest.Wait()
		require.NoError(t, err)
		require.ErrorIs(t, out[0].Err, rs.ErrAmbiguous)
		require.True(t, out[1].Applied)
	})
}

func TestRouterChecksBeforeItSends(t *testing.T) {
	t.Parallel()
	tight, wide := rs.NewMemory(rs.WithLimits(rs.Limits{Row: 3})), rs.NewMemory(rs.WithLimits(rs.Limits{Row: 9, Value: 5}))
	r := newRouter(t, rs.RouterConfig{Stores: map[string]rs.Store{"tight": tight, "wide": wide}, Tables: map[string]string{"w": "wide"}, Authoritative: "tight"})
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
	require.Empty(t, tables(t, r))
	limiter, _ := rs.Unwrap[rs.Limiter](r)
	require.Equal(t, rs.Limits{Row: 3, Value: 5}, limiter.Limits())
}

func TestRouterGroupsAndDraws(t *testing.T) {
	t.Parallel()
	m, other := rs.NewMemory(), rs.NewMemory()
	r := newRouter(t, rs.RouterConfig{
		Stores: map[string]rs.Store{"main": m, "other": other, "plain": plain{rs.NewMemory()}}, Tables: map[string]string{"o": "other", "p": "plain"}, Authoritative: "main",
	})
	g, ok := rs.Unwrap[rs.Grouper](r)
	require.True(t, ok)
	require.Equal(t, g.GroupKey("t", "1"), g.GroupKey("u", "2"))
	require.NotEqual(t, g.GroupKey("t", "1"), g.GroupKey("o", "1"))
	require.NotEmpty(t, g.GroupKey("o", "1"))
	require.Empty(t, g.GroupKey("p", "1"))
	require.True(t, g.Draws(g.GroupKey("t", "1")))
	require.False(t, g.Draws(g.GroupKey("o", "1")), "its timestamps are not the database's")
	require.False(t, g.Draws("memory"))

	p, ok := rs.Unwrap[rs.OracleProvider](r)
	require.True(t, ok)
	require.Equal(t, m.Oracle(), p.Oracle())

	// Without an oracle in the authoritative store nothing draws.
	noOracle := newRouter(t, rs.RouterConfig{Stores: map[string]rs.Store{"main": struct {
		rs.Store
		rs.Grouper
	}{m, m}}})
	g, ok = rs.Unwrap[rs.Grouper](noOracle)
	require.True(t, ok)
	require.False(t, g.Draws(g.GroupKey("t", "1")))
	_, ok = rs.Unwrap[rs.OracleProvider](noOracle)
	require.False(t, ok)
}

func TestRouterDefersInTheAuthoritativeStoreAlone(t *testing.T) {
	t.Parallel()
	m, other := rs.NewMemory(), rs.NewMemory()
	r := newRouter(t, rs.RouterConfig{Stores: map[string]rs.Store{"main": m, "other": other}, Tables: map[string]string{"o": "other"}, Authoritative: "main"})
	deferred := rs.ApplyOptions{Deferred: true}
	mut := func(table, row string, c ...rs.Condition) rs.Mutation {
		return rs.Mutation{Table: table, Row: row, Conditions: c, Edits: []rs.Edit{rs.Put(rs.Write, "c", 1, nil)}}
	}
	out, err := r.Apply(t.Context(), []rs.Mutation{mut("t", "both"), mut("o", "both")}, deferred)
	require.NoError(t, err)
	inMain, inOther := out[0].Incarnation, out[1].Incarnation
	require.NotEqual(t, inMain, inOther)
	apply(t, r, mut("o", "alone"), deferred)
	apply(t, r, mut("t", "alone"), deferred)
	crasher, ok := rs.Unwrap[rs.Crasher](r)
	require.True(t, ok)
	crasher.Crash()
	require.Empty(t, scanned(t, r, rs.ScanRange{Table: "t", Picks: everything}))
	require.Equal(t, []string{"alone", "both"}, scanned(t, r, rs.ScanRange{Table: "o", Picks: everything}))

	apply(t, r, mut("t", "flushed"), deferred)
	d, ok := rs.Unwrap[rs.Deferrer](r)
	require.True(t, ok)
	require.NoError(t, d.Flush(t.Context()))
	m.Crash()
	require.Len(t, read(t, r, "t", "flushed"), 1)

	// A condition on the incarnation asks the row's own store.
	inMain = apply(t, r, mut("t", "x")).Incarnation
	inOther = apply(t, r, mut("o", "x")).Incarnation
	out, err = r.Apply(t.Context(), []rs.Mutation{mut("t", "y", rs.Incarnation(inMain)), mut("o", "y", rs.Incarnation(inOther)), mut("o", "z", rs.Incarnation(inMain))}, rs.ApplyOptions{})
	require.NoError(t, err)
	require.Equal(t, []bool{true, true, false}, []bool{out[0].Applied, out[1].Applied, out[2].Applied})
	require.NoError(t, r.Close())
	require.ErrorIs(t, d.Flush(t.Context()), rs.ErrClosed)
}

func TestRouterListensEverywhere(t *testing.T) {
	t.Parallel()
	m, other := rs.NewMemory(), rs.NewMemory()
	r := newRouter(t, rs.RouterConfig{Stores: map[string]rs.Store{"main": m, "other": other}, Tables: map[string]string{"o": "other"}, Authoritative: "main"})
	w, ok := rs.Unwrap[rs.Waker](r)
	require.True(t, ok)
	ctx, cancel := context.WithCancel(t.Context())
	woken, done := make(chan string, 10), make(chan error, 1)
	go func() { done <- w.Listen(ctx, func(table string) { woken <- table }) }()
	require.Empty(t, <-woken)
	require.Empty(t, <-woken)
	put(t, r, "o", "r", rs.Put(rs.Notify, "c", 1, nil))
	require.Equal(t, "o", <-woken)
	put(t, r, "t", "r", rs.Put(rs.Notify, "c", 1, nil))
	require.Equal(t, "t", <-woken)
	cancel()
	require.Equal(t, context.Canceled, <-done)

	go func() { done <- w.Listen(t.Context(), func(table string) { woken <- table }) }()
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
	a, b := &closing{Memory: rs.NewMemory(), err: failure}, &closing{Memory: rs.NewMemory()}
	r := newRouter(t, rs.RouterConfig{Stores: map[string]rs.Store{"a": a, "b": b}, Authoritative: "a"})
	err := r.Close()
	require.ErrorIs(t, err, failure)
	require.ErrorContains(t, err, `"a"`)
	require.NoError(t, r.Close())
	require.Equal(t, []int{1, 1}, []int{a.closed, b.closed})

	requireEnds(t, newRouter(t, rs.RouterConfig{Stores: map[string]rs.Store{"a": rs.NewMemory(), "b": rs.NewMemory()}, Authoritative: "a", Default: "b"}))

	r = newRouter(t, rs.RouterConfig{Stores: map[string]rs.Store{"a": rs.NewMemory(), "b": rs.NewMemory()}, Authoritative: "a", Tables: map[string]string{"b": "b"}})
	both := []rs.RowRead{{Table: "a", Row: "r", Picks: everything}, {Table: "b", Row: "r", Picks: everything}}
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

	two := func(second rs.Store) *rs.Router {
		return newRouter(t, rs.RouterConfig{Stores: map[string]rs.Store{"a": rs.NewMemory(), "b": second}, Tables: map[string]string{"b": "b"}, Authoritative: "a"})
	}
	r := two(plain{rs.NewMemory()})
	_, ok := rs.Unwrap[rs.Waker](r)
	require.False(t, ok, "nobody would look at the tables of the other store")
	_, ok = rs.Unwrap[rs.Splitter](r)
	require.False(t, ok)
	for _, wrapped := range []rs.Store{rs.Coalesce(r, rs.CoalesceOptions{}), rs.NewFaulty(r, rs.FaultyOptions{})} {
		p, ok := rs.Unwrap[rs.Placer](wrapped)
		require.True(t, ok)
		require.True(t, p.Authoritative("a"))
		require.False(t, p.Authoritative("b"))
	}

	r = two(rs.NewMemory())
	for _, table := range []string{"a", "b"} {
		for i := range 10 {
			put(t, r, table, fmt.Sprint(table, i), rs.Put(rs.Write, "c", 1, nil))
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
	compareWithMemory(t, false, func(m *rs.Memory) rs.Store {
		r, err := rs.NewRouter(rs.RouterConfig{
			Stores: map[string]rs.Store{"main": m, "other": rs.NewMemory()}, Tables: map[string]string{"b": "other"}, Authoritative: "main",
		})
		if err != nil {
			panic(err)
		}
		return r
	})
}

func TestRouterOfOneMemoryIsMemory(t *testing.T) {
	t.Parallel()
	compareWithMemory(t, true, func(m *rs.Memory) rs.Store {
		r, err := rs.NewRouter(rs.RouterConfig{Stores: map[string]rs.Store{"main": m}})
		if err != nil {
			panic(err)
		}
		return rs.Coalesce(r, rs.CoalesceOptions{})
	})
}
