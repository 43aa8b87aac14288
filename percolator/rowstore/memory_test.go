package rowstore_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
)

// apply runs one mutation and returns its outcome.
func apply(t testing.TB, s rs.Store, m rs.Mutation, opts ...rs.ApplyOptions) rs.Outcome {
	t.Helper()
	var o rs.ApplyOptions
	if len(opts) > 0 {
		o = opts[0]
	}
	out, err := s.Apply(t.Context(), []rs.Mutation{m}, o)
	require.NoError(t, err)
	require.Len(t, out, 1)
	require.NoError(t, out[0].Err)
	return out[0]
}

// put makes edits of one row without conditions.
func put(t testing.TB, s rs.Store, table, row string, edits ...rs.Edit) {
	t.Helper()
	require.True(t, apply(t, s, rs.Mutation{Table: table, Row: row, Edits: edits}).Applied)
}

var everything = []rs.Pick{
	{Family: rs.Lock, To: oracle.Max},
	{Family: rs.Write, To: oracle.Max},
	{Family: rs.Data, To: oracle.Max},
	{Family: rs.Rollback, To: oracle.Max},
	{Family: rs.Notify, To: oracle.Max},
}

// read returns the versions of a row that picks select, all without picks, as
// text: family/column@timestamp=value.
func read(t testing.TB, s rs.Store, table, row string, picks ...rs.Pick) []string {
	t.Helper()
	if len(picks) == 0 {
		picks = everything
	}
	rows, err := s.Read(t.Context(), []rs.RowRead{{Table: table, Row: row, Picks: picks}})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.NoError(t, rows[0].Err)
	require.Equal(t, table, rows[0].Table)
	require.Equal(t, row, rows[0].Row)
	return texts(rows[0].Versions)
}

func texts(versions []rs.Version) []string {
	var out []string
	for _, v := range versions {
		out = append(out, fmt.Sprintf("%d/%s@%d=%s", v.Family, v.Column, uint64(v.TS), v.Value))
	}
	return out
}

// scanned returns the keys of the rows that a scan visits.
func scanned(t testing.TB, s rs.Store, r rs.ScanRange) []string {
	t.Helper()
	var keys []string
	for row, err := range s.Scan(t.Context(), r) {
		require.NoError(t, err)
		require.NotEmpty(t, row.Versions)
		require.Equal(t, r.Table, row.Table)
		keys = append(keys, row.Row)
	}
	return keys
}

func tables(t testing.TB, s rs.Store) []string {
	t.Helper()
	var names []string
	for name, err := range s.Tables(t.Context()) {
		require.NoError(t, err)
		names = append(names, name)
	}
	return names
}

// firstError returns the error that ends a sequence, or nil.
func firstError[T any](seq iter.Seq2[T, error]) error {
	for _, err := range seq {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestMemoryReadSelects(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	put(t, m, "t", "r",
		rs.Put(rs.Write, "b", 10, []byte("b10")), rs.Put(rs.Write, "b", 20, []byte("b20")),
		rs.Put(rs.Write, "b", 30, []byte("b30")), rs.Put(rs.Write, "a", 15, []byte("a15")),
		rs.Put(rs.Lock, "b", 31, nil), rs.Put(rs.Notify, "b", 30, []byte("n")))

	require.Equal(t, []string{"1/b@31=", "2/a@15=a15", "2/b@30=b30", "2/b@20=b20", "2/b@10=b10", "5/b@30=n"}, read(t, m, "t", "r"))
	require.Equal(t, []string{"2/b@20=b20"}, read(t, m, "t", "r", rs.Pick{Family: rs.Write, Column: "b", To: 29, Limit: 1}))
	require.Equal(t, []string{"2/b@20=b20", "2/b@10=b10"}, read(t, m, "t", "r", rs.Pick{Family: rs.Write, Column: "b", From: 10, To: 20}))
	require.Equal(t, []string{"2/a@15=a15", "2/b@30=b30"}, read(t, m, "t", "r", rs.Pick{Family: rs.Write, To: oracle.Max, Limit: 1}), "a limit counts for each column")
	require.Equal(t, []string{"2/b@30=b30", "2/b@20=b20"}, read(t, m, "t", "r",
		rs.Pick{Family: rs.Write, Column: "b", To: 25, Limit: 1},
		rs.Pick{Family: rs.Write, Column: "b", From: 20, To: 30},
	), "overlapping picks give a version once")
	require.Empty(t, read(t, m, "t", "r", rs.Pick{Family: rs.Write, Column: "b", From: 20, To: 19}))
	require.Empty(t, read(t, m, "t", "absent"))
	require.Empty(t, read(t, m, "absent", "r"))
}

func TestMemoryAnswersBelongToTheCaller(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	value := []byte("value")
	put(t, m, "t", "r", rs.Put(rs.Write, "c", 1, value))
	value[0] = 'X'
	rows, err := m.Read(t.Context(), []rs.RowRead{{Table: "t", Row: "r", Picks: everything}})
	require.NoError(t, err)
	require.Equal(t, "value", string(rows[0].Versions[0].Value))
	rows[0].Versions[0].Value[0] = 'Y'
	broke := apply(t, m, rs.Mutation{Table: "t", Row: "r", Conditions: []rs.Condition{rs.Absent(rs.Write, "c", 0)}}).Broke
	require.Equal(t, "value", string(broke.Value))
	broke.Value[0] = 'Z'
	require.Equal(t, []string{"2/c@1=value"}, read(t, m, "t", "r"))
}

func TestMemoryConditions(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	put(t, m, "t", "r", rs.Put(rs.Write, "c", 10, []byte("w10")), rs.Put(rs.Write, "c", 20, []byte("w20")),
		rs.Put(rs.Lock, "c", 25, []byte("l25")), rs.Put(rs.Rollback, "c", 5, nil), rs.Put(rs.Notify, "c", 20, []byte("n20")))
	incarnation := apply(t, m, rs.Mutation{Table: "t", Row: "r"}).Incarnation
	require.NotEmpty(t, incarnation)

	for _, c := range []struct {
		cond  rs.Condition
		holds bool
		broke string
	}{
		{rs.Absent(rs.Write, "c", 21), true, ""},
		{rs.Absent(rs.Write, "c", 20), false, "2/c@20=w20"},
		{rs.Absent(rs.Write, "c", 1), false, "2/c@20=w20"},
		{rs.Absent(rs.Write, "c", 0), false, "2/c@20=w20"},
		{rs.Absent(rs.Write, "d", 0), true, ""},
		{rs.Absent(rs.Lock, "c", 0), false, "1/c@25=l25"},
		{rs.Absent(rs.Lock, "c", 26), true, ""},
		{rs.Absent(rs.Rollback, "c", 5), false, "4/c@5="},
		{rs.Absent(rs.Rollback, "c", 6), true, ""},
		{rs.Absent(rs.Notify, "c", 0), false, "5/c@20=n20"},
		{rs.AbsentAt("c", 25), false, "1/c@25=l25"},
		{rs.AbsentAt("c", 24), true, ""},
		{rs.AbsentAt("c", 26), true, ""},
		{rs.Present("c", 25), true, ""},
		{rs.Present("c", 24), false, "0/@0="},
		{rs.Present("d", 25), false, "0/@0="},
		{rs.Incarnation(incarnation), true, ""},
		{rs.Incarnation(""), false, "0/@0="},
	} {
		// The condition comes second, so that Failed can be told from its zero.
		out := apply(t, m, rs.Mutation{
			Table: "t", Row: "r", Conditions: []rs.Condition{rs.Absent(rs.Write, "other", 0), c.cond},
			Edits: []rs.Edit{rs.Put(rs.Data, "seen", 1, nil)},
		})
		require.Equal(t, c.holds, out.Applied, "%+v", c.cond)
		require.Equal(t, incarnation, out.Incarnation)
		if !c.holds {
			require.Equal(t, 1, out.Failed, "%+v", c.cond)
			require.Equal(t, c.broke, texts([]rs.Version{out.Broke})[0], "%+v", c.cond)
		}
		require.Equal(t, c.holds, len(read(t, m, "t", "r", rs.Pick{Family: rs.Data, Column: "seen", To: oracle.Max})) == 1, "%+v", c.cond)
		put(t, m, "t", "r", rs.Delete(rs.Data, "seen", 1))
	}
}

func TestMemoryEdits(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	for ts := rs.Timestamp(1); ts <= 5; ts++ {
		put(t, m, "t", "r", rs.Put(rs.Write, "c", ts, nil), rs.Put(rs.Write, "d", ts, nil))
	}
	put(t, m, "t", "r", rs.DeleteRange(rs.Write, "c", 2, 4), rs.DeleteRange(rs.Write, "d", 0, oracle.Max), rs.Delete(rs.Write, "absent", 7), rs.DeleteRange(rs.Write, "c", 9, 8))
	require.Equal(t, []string{"2/c@5=", "2/c@1="}, read(t, m, "t", "r"))
	put(t, m, "t", "r", rs.Put(rs.Write, "c", 5, []byte("over")))
	require.Equal(t, []string{"2/c@5=over", "2/c@1="}, read(t, m, "t", "r"))

	put(t, m, "t", "r", rs.Put(rs.Rollback, "c", 7, []byte("7")))
	put(t, m, "t", "r", rs.Put(rs.Rollback, "c", 6, []byte("6")))
	mark := rs.Pick{Family: rs.Rollback, To: oracle.Max}
	require.Equal(t, []string{"4/c@7=7"}, read(t, m, "t", "r", mark))
	put(t, m, "t", "r", rs.Put(rs.Rollback, "c", 8, []byte("8")))
	require.Equal(t, []string{"4/c@8=8"}, read(t, m, "t", "r", mark))

	put(t, m, "t", "r", rs.DeleteRange(rs.Write, "c", 0, oracle.Max), rs.Delete(rs.Rollback, "c", 8))
	require.Empty(t, read(t, m, "t", "r"))
	require.Empty(t, tables(t, m))
}

func TestMemoryScans(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	for i := range 3000 { // more than one turn of rows that do not match
		put(t, m, "t", fmt.Sprintf("%04d", i), rs.Put(rs.Write, "c", 1, nil))
	}
	for _, i := range []int{0, 7, 2999} {
		put(t, m, "t", fmt.Sprintf("%04d", i), rs.Put(rs.Notify, "c", 5, nil), rs.Put(rs.Data, "c", 5, nil))
	}
	for _, family := range []rs.Family{rs.Notify, rs.Data} {
		picks := []rs.Pick{{Family: family, To: oracle.Max}}
		require.Equal(t, []string{"0000", "0007", "2999"}, scanned(t, m, rs.ScanRange{Table: "t", Picks: picks}))
		require.Equal(t, []string{"2999", "0007", "0000"}, scanned(t, m, rs.ScanRange{Table: "t", Picks: picks, Reverse: true}))
		require.Equal(t, []string{"2999", "0007"}, scanned(t, m, rs.ScanRange{Table: "t", Picks: picks, Reverse: true, Limit: 2}))
		require.Equal(t, []string{"0007"}, scanned(t, m, rs.ScanRange{Table: "t", Picks: picks, From: "0001", To: "2999"}))
		require.Equal(t, []string{"0007"}, scanned(t, m, rs.ScanRange{Table: "t", Picks: picks, From: "0007", To: "2999", Reverse: true}))
		require.Empty(t, scanned(t, m, rs.ScanRange{Table: "t", Picks: picks, From: "0008", To: "0008"}))
		require.Empty(t, scanned(t, m, rs.ScanRange{Table: "t", Picks: []rs.Pick{{Family: family, To: 4}}}))
		require.Empty(t, scanned(t, m, rs.ScanRange{Table: "absent", Picks: picks}))
	}
	require.Len(t, scanned(t, m, rs.ScanRange{Table: "t", Picks: everything}), 3000)

	// The caller may change the store from within the loop.
	var keys []string
	for row, err := range m.Scan(t.Context(), rs.ScanRange{Table: "t", To: "0010", Picks: everything}) {
		require.NoError(t, err)
		keys = append(keys, row.Row)
		put(t, m, "t", row.Row+"a", rs.Put(rs.Write, "c", 1, nil))
		put(t, m, "t", row.Row, rs.DeleteRange(rs.Write, "c", 0, oracle.Max), rs.DeleteRange(rs.Notify, "c", 0, oracle.Max), rs.DeleteRange(rs.Data, "c", 0, oracle.Max))
		if len(keys) == 20 {
			break
		}
	}
	require.Equal(t, []string{"0000", "0000a", "0000aa"}, keys[:3])
}

func TestMemoryNotifiedRowsFollowTheirVersions(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	picks := []rs.Pick{{Family: rs.Notify, To: oracle.Max}}
	r := rs.ScanRange{Table: "t", Picks: picks}
	put(t, m, "t", "r", rs.Put(rs.Notify, "c", 5, nil), rs.Put(rs.Notify, "c", 6, nil))
	put(t, m, "t", "r", rs.Delete(rs.Notify, "c", 5))
	require.Equal(t, []string{"r"}, scanned(t, m, r))
	put(t, m, "t", "r", rs.Put(rs.Write, "c", 5, nil), rs.Delete(rs.Notify, "c", 6))
	require.Empty(t, scanned(t, m, r))
	put(t, m, "t", "r", rs.Put(rs.Notify, "c", 7, nil), rs.DeleteRange(rs.Write, "c", 0, oracle.Max))
	require.Equal(t, []string{"r"}, scanned(t, m, r))
	put(t, m, "t", "r", rs.Delete(rs.Notify, "c", 7))
	require.Empty(t, scanned(t, m, r))
}

func TestMemoryGroups(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	first, err := m.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	put(t, m, "t", "locked", rs.Put(rs.Lock, "c", 1, []byte("l")))

	write := func(row string) rs.Mutation {
		return rs.Mutation{
			Table: "t", Row: row, Conditions: []rs.Condition{rs.Absent(rs.Lock, "c", 0)},
			Edits: []rs.Edit{rs.Put(rs.Write, "c", rs.Drawn, []byte("v"))},
		}
	}
	out, err := m.Group(t.Context(), []rs.Group{
		{Mutations: []rs.Mutation{write("a"), write("b")}, Draw: true},
		{Mutations: []rs.Mutation{write("x"), write("locked")}, Draw: true},
		{Mutations: []rs.Mutation{write("late")}, Draw: true, NotAfter: first},
	})
	require.NoError(t, err)
	require.True(t, out[0].Applied)
	require.Greater(t, out[0].Commit, first)
	want := []string{fmt.Sprintf("2/c@%d=v", uint64(out[0].Commit))}
	require.Equal(t, want, read(t, m, "t", "a"))
	require.Equal(t, want, read(t, m, "t", "b"))

	require.False(t, out[1].Applied)
	require.Equal(t, 1, out[1].Failed)
	require.Equal(t, "1/c@1=l", texts([]rs.Version{out[1].Outcome.Broke})[0])
	require.Empty(t, read(t, m, "t", "x"))

	require.False(t, out[2].Applied)
	require.True(t, out[2].TooLate)
	require.Empty(t, read(t, m, "t", "late"))

	next, err := m.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	require.Greater(t, next, out[0].Commit)
}

func TestMemoryCrashLosesTheDeferredSuffix(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	deferred := rs.ApplyOptions{Deferred: true}
	edit := func(row string, edits ...rs.Edit) rs.Mutation {
		return rs.Mutation{Table: "t", Row: row, Edits: edits}
	}
	before := apply(t, m, edit("a", rs.Put(rs.Write, "c", 1, []byte("1"))), deferred).Incarnation
	put(t, m, "t", "b", rs.Put(rs.Write, "c", 1, []byte("1")), rs.Put(rs.Notify, "c", 1, nil))
	apply(t, m, edit("a", rs.Put(rs.Write, "c", 2, []byte("2"))), deferred)
	apply(t, m, edit("a", rs.Delete(rs.Write, "c", 1)), deferred)
	apply(t, m, edit("b", rs.Put(rs.Write, "c", 1, []byte("over")), rs.Delete(rs.Notify, "c", 1)), deferred)
	apply(t, m, edit("new", rs.Put(rs.Write, "c", 2, nil)), deferred)
	require.Equal(t, []string{"2/c@2=2"}, read(t, m, "t", "a"))

	m.Crash()
	require.Equal(t, []string{"2/c@1=1"}, read(t, m, "t", "a"))
	require.Equal(t, []string{"2/c@1=1", "5/c@1="}, read(t, m, "t", "b"))
	require.Equal(t, []string{"a", "b"}, scanned(t, m, rs.ScanRange{Table: "t", Picks: everything}))
	require.Equal(t, []string{"b"}, scanned(t, m, rs.ScanRange{Table: "t", Picks: []rs.Pick{{Family: rs.Notify, To: oracle.Max}}}))

	out := apply(t, m, rs.Mutation{Table: "t", Row: "a", Conditions: []rs.Condition{rs.Incarnation(before)}})
	require.False(t, out.Applied)
	require.NotEqual(t, before, out.Incarnation)

	// Each of these makes what was deferred before it durable.
	for i, durable := range []func(){
		func() { require.NoError(t, m.Flush(t.Context())) },
		func() { put(t, m, "t", "other", rs.Put(rs.Write, "c", 1, nil)) },
		func() {
			_, err := m.Group(t.Context(), []rs.Group{{Mutations: []rs.Mutation{edit("other", rs.Put(rs.Write, "c", 2, nil))}}})
			require.NoError(t, err)
		},
	} {
		row := fmt.Sprint("durable", i)
		apply(t, m, edit(row, rs.Put(rs.Write, "c", 1, nil)), deferred)
		durable()
		m.Crash()
		require.Len(t, read(t, m, "t", row), 1)
	}
}

func TestMemoryOracle(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_000_000)
	m := rs.NewMemory(rs.WithClock(func() time.Time { return now }))
	o := m.Oracle()
	draw := func(n int) rs.Timestamp {
		ts, err := o.Draw(t.Context(), n)
		require.NoError(t, err)
		return ts
	}
	start := oracle.FromTime(now)
	require.Equal(t, start, draw(3))
	require.Equal(t, start+3, draw(1))
	now = now.Add(-time.Hour)
	require.Equal(t, start+4, draw(1))
	now = now.Add(2 * time.Hour)
	require.Equal(t, oracle.FromTime(now), draw(1))
	_, err := o.Draw(t.Context(), 0)
	require.ErrorIs(t, err, rs.ErrInvalid)
	now = time.UnixMilli(int64(oracle.Max>>oracle.LogicalBits) + 1)
	require.Equal(t, oracle.Max, draw(1))
	_, err = o.Draw(t.Context(), 1)
	require.ErrorContains(t, err, "greatest timestamp")
}

func TestMemorySplit(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	for i := range 100 {
		put(t, m, "t", fmt.Sprintf("%02d", i), rs.Put(rs.Write, "c", 1, nil))
	}
	for _, c := range []struct {
		table string
		n     int
		want  []string
	}{{"t", 4, []string{"25", "50", "75"}}, {"t", 1, nil}, {"absent", 4, nil}} {
		keys, err := m.Split(t.Context(), c.table, c.n)
		require.NoError(t, err)
		require.Equal(t, c.want, keys)
	}
	keys, err := m.Split(t.Context(), "t", 1000)
	require.NoError(t, err)
	require.Len(t, keys, 99)
	_, err = m.Split(t.Context(), "t", 0)
	require.ErrorIs(t, err, rs.ErrInvalid)
}

func TestMemoryListen(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory()
	ctx, cancel := context.WithCancel(t.Context())
	woken := make(chan string, 10)
	done := make(chan error, 1)
	go func() { done <- m.Listen(ctx, func(table string) { woken <- table }) }()
	require.Empty(t, <-woken)

	put(t, m, "prewrite", "r", rs.Put(rs.Notify, "c", 1, nil), rs.Put(rs.Lock, "c", 1, nil))
	put(t, m, "plain", "r", rs.Put(rs.Write, "c", 1, nil))
	apply(t, m, rs.Mutation{Table: "refused", Row: "r", Conditions: []rs.Condition{rs.Present("c", 1)}, Edits: []rs.Edit{rs.Put(rs.Notify, "c", 1, nil)}})
	put(t, m, "commit", "r", rs.Put(rs.Notify, "c", 1, nil))
	require.Equal(t, "commit", <-woken)
	cancel()
	require.Equal(t, context.Canceled, <-done)

	go func() { done <- m.Listen(t.Context(), func(table string) { woken <- table }) }()
	require.Empty(t, <-woken)
	require.NoError(t, m.Close())
	require.ErrorIs(t, <-done, rs.ErrClosed)
}

func TestMemoryRefuses(t *testing.T) {
	t.Parallel()
	m := rs.NewMemory(rs.WithLimits(rs.Limits{Table: 3, Row: 3, Column: 3, Value: 3}))
	require.Equal(t, rs.Limits{Table: 3, Row: 3, Column: 3, Value: 3}, m.Limits())
	for _, mut := range []rs.Mutation{
		{Table: "long", Row: "r"},
		{Table: "t", Row: "long"},
		{Table: "t", Row: "r", Conditions: []rs.Condition{rs.Present("long", 1)}},
		{Table: "t", Row: "r", Edits: []rs.Edit{rs.Delete(rs.Lock, "long", 1)}},
		{Table: "t", Row: "r", Edits: []rs.Edit{rs.Put(rs.Lock, "c", 1, []byte("long"))}},
	} {
		good := rs.Mutation{Table: "t", Row: "ok", Edits: []rs.Edit{rs.Put(rs.Write, "c", 1, nil)}}
		_, err := m.Apply(t.Context(), []rs.Mutation{good, mut}, rs.ApplyOptions{})
		require.ErrorIs(t, err, rs.ErrTooLarge)
		_, err = m.Group(t.Context(), []rs.Group{{Mutations: []rs.Mutation{good, mut}}})
		require.ErrorIs(t, err, rs.ErrTooLarge)
	}
	_, err := m.Apply(t.Context(), []rs.Mutation{{Table: "", Row: "r"}}, rs.ApplyOptions{})
	require.ErrorIs(t, err, rs.ErrInvalid)
	_, err = m.Group(t.Context(), []rs.Group{{}})
	require.ErrorIs(t, err, rs.ErrInvalid)
	_, err = m.Read(t.Context(), []rs.RowRead{{Table: "t", Row: "r"}})
	require.ErrorIs(t, err, rs.ErrInvalid)
	require.ErrorIs(t, firstError(m.Scan(t.Context(), rs.ScanRange{Table: "t"})), rs.ErrInvalid)
	require.Empty(t, tables(t, m))
}

// calls makes one call of every method that can end with an error.
func calls(ctx context.Context, s rs.Store) map[string]error {
	errs := map[string]error{}
	_, errs["Read"] = s.Read(ctx, []rs.RowRead{{Table: "t", Row: "r", Picks: everything}})
	_, errs["Apply"] = s.Apply(ctx, []rs.Mutation{{Table: "t", Row: "r", Edits: []rs.Edit{rs.Put(rs.Write, "c", 9, nil)}}}, rs.ApplyOptions{})
	errs["Scan"] = firstError(s.Scan(ctx, rs.ScanRange{Table: "t", Picks: everything}))
	errs["Tables"] = firstError(s.Tables(ctx))
	if g, ok := rs.Unwrap[rs.Grouper](s); ok {
		_, errs["Group"] = g.Group(ctx, []rs.Group{{Mutations: []rs.Mutation{{Table: "t", Row: "r", Edits: []rs.Edit{rs.Put(rs.Write, "c", 9, nil)}}}}})
	}
	if d, ok := rs.Unwrap[rs.Deferrer](s); ok {
		errs["Flush"] = d.Flush(ctx)
	}
	if p, ok := rs.Unwrap[rs.OracleProvider](s); ok {
		_, errs["Draw"] = p.Oracle().Draw(ctx, 1)
	}
	if p, ok := rs.Unwrap[rs.Splitter](s); ok {
		_, errs["Split"] = p.Split(ctx, "t", 2)
	}
	if w, ok := rs.Unwrap[rs.Waker](s); ok {
		errs["Listen"] = w.Listen(ctx, func(string) {})
	}
	if r, ok := rs.Unwrap[rs.Reporter](s); ok {
		_, errs["Report"] = r.Report(ctx)
	}
	return errs
}

// requireEnds checks that every call ends at once and does nothing, with a
// context that ended and after Close.
func requireEnds(t *testing.T, s rs.Store) {
	t.Helper()
	put(t, s, "t", "r", rs.Put(rs.Write, "c", 1, nil))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, err := range calls(ctx, s) {
		require.ErrorIs(t, err, context.Canceled, name)
		require.NotErrorIs(t, err, rs.ErrAmbiguous, name)
	}
	require.Equal(t, []string{"2/c@1="}, read(t, s, "t", "r"))
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	for name, err := range calls(t.Context(), s) {
		require.ErrorIs(t, err, rs.ErrClosed, name)
		require.NotErrorIs(t, err, rs.ErrAmbiguous, name)
	}
}

func TestMemoryEnds(t *testing.T) {
	t.Parallel()
	requireEnds(t, rs.NewMemory())

	m := rs.NewMemory()
	for i := range 3 {
		put(t, m, "t", fmt.Sprint(i), rs.Put(rs.Write, "c", 1, nil))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	visited := 0
	for _, err := range m.Scan(ctx, rs.ScanRange{Table: "t", Picks: everything}) {
		if err != nil {
			require.True(t, errors.Is(err, context.Canceled))
			break
		}
		visited++
		cancel()
	}
	require.Equal(t, 1, visited)
}
