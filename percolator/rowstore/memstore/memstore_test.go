package memstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/storetest"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func TestMemoryReadSelects(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	storetest.Put(t, m, "t", "r",
		rs.Put(rs.Write, "b", 10, []byte("b10")), rs.Put(rs.Write, "b", 20, []byte("b20")),
		rs.Put(rs.Write, "b", 30, []byte("b30")), rs.Put(rs.Write, "a", 15, []byte("a15")),
		rs.Put(rs.Lock, "b", 31, nil), rs.Put(rs.Notify, "b", 30, []byte("n")))

	require.Equal(t, []string{"1/b@31=", "2/a@15=a15", "2/b@30=b30", "2/b@20=b20", "2/b@10=b10", "5/b@30=n"}, storetest.Read(t, m, "t", "r"))
	require.Equal(t, []string{"2/b@20=b20"}, storetest.Read(t, m, "t", "r", rs.Selector{Family: rs.Write, Column: "b", To: 29, Limit: 1}))
	require.Equal(t, []string{"2/b@20=b20", "2/b@10=b10"}, storetest.Read(t, m, "t", "r", rs.Selector{Family: rs.Write, Column: "b", From: 10, To: 20}))
	require.Equal(t, []string{"2/a@15=a15", "2/b@30=b30"}, storetest.Read(t, m, "t", "r", rs.Selector{Family: rs.Write, To: oracle.Max, Limit: 1}), "a limit counts for each column")
	require.Equal(t, []string{"2/b@30=b30", "2/b@20=b20"}, storetest.Read(t, m, "t", "r",
		rs.Selector{Family: rs.Write, Column: "b", To: 25, Limit: 1},
		rs.Selector{Family: rs.Write, Column: "b", From: 20, To: 30},
	), "overlapping selectors give a version once")
	require.Empty(t, storetest.Read(t, m, "t", "r", rs.Selector{Family: rs.Write, Column: "b", From: 20, To: 19}))
	require.Empty(t, storetest.Read(t, m, "t", "absent"))
	require.Empty(t, storetest.Read(t, m, "absent", "r"))
}

func TestMemoryAnswersBelongToTheCaller(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	value := []byte("value")
	storetest.Put(t, m, "t", "r", rs.Put(rs.Write, "c", 1, value))
	value[0] = 'X'
	rows, err := m.Read(t.Context(), []rs.RowRead{{Table: "t", Row: "r", Selectors: storetest.Everything}})
	require.NoError(t, err)
	require.Equal(t, "value", string(rows[0].Versions[0].Value))
	rows[0].Versions[0].Value[0] = 'Y'
	broke := storetest.Apply(t, m, rs.Mutation{Table: "t", Row: "r", Conditions: []rs.Condition{rs.Absent(rs.Write, "c", 0)}}).Broke
	require.Equal(t, "value", string(broke.Value))
	broke.Value[0] = 'Z'
	require.Equal(t, []string{"2/c@1=value"}, storetest.Read(t, m, "t", "r"))
}

func TestMemoryConditions(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	storetest.Put(t, m, "t", "r", rs.Put(rs.Write, "c", 10, []byte("w10")), rs.Put(rs.Write, "c", 20, []byte("w20")),
		rs.Put(rs.Lock, "c", 25, []byte("l25")), rs.Put(rs.Mark, "c", 5, nil), rs.Put(rs.Notify, "c", 20, []byte("n20")))
	incarnation := storetest.Apply(t, m, rs.Mutation{Table: "t", Row: "r"}).Incarnation
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
		{rs.Absent(rs.Mark, "c", 5), false, "4/c@5="},
		{rs.Absent(rs.Mark, "c", 6), true, ""},
		{rs.Absent(rs.Notify, "c", 0), false, "5/c@20=n20"},
		{rs.AbsentAt("c", 25), false, "1/c@25=l25"},
		{rs.AbsentAt("c", 24), true, ""},
		{rs.AbsentAt("c", 26), true, ""},
		{rs.Present("c", 25), true, ""},
		{rs.Present("c", 24), false, "0/@0="},
		{rs.Present("d", 25), false, "0/@0="},
		{rs.SameIncarnation(incarnation), true, ""},
		{rs.SameIncarnation(""), false, "0/@0="},
	} {
		// The condition comes second, so that Failed can be told from its zero.
		out := storetest.Apply(t, m, rs.Mutation{
			Table: "t", Row: "r", Conditions: []rs.Condition{rs.Absent(rs.Write, "other", 0), c.cond},
			Edits: []rs.Edit{rs.Put(rs.Data, "seen", 1, nil)},
		})
		require.Equal(t, c.holds, out.Applied, "%+v", c.cond)
		require.Equal(t, incarnation, out.Incarnation)
		if !c.holds {
			require.Equal(t, 1, out.Failed, "%+v", c.cond)
			require.Equal(t, c.broke, storetest.Texts([]rs.Version{out.Broke})[0], "%+v", c.cond)
		}
		require.Equal(t, c.holds, len(storetest.Read(t, m, "t", "r", rs.Selector{Family: rs.Data, Column: "seen", To: oracle.Max})) == 1, "%+v", c.cond)
		storetest.Put(t, m, "t", "r", rs.Delete(rs.Data, "seen", 1))
	}
}

func TestMemoryEdits(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	for ts := rs.Timestamp(1); ts <= 5; ts++ {
		storetest.Put(t, m, "t", "r", rs.Put(rs.Write, "c", ts, nil), rs.Put(rs.Write, "d", ts, nil))
	}
	storetest.Put(t, m, "t", "r", rs.DeleteRange(rs.Write, "c", 2, 4), rs.DeleteRange(rs.Write, "d", 0, oracle.Max), rs.Delete(rs.Write, "absent", 7), rs.DeleteRange(rs.Write, "c", 9, 8))
	require.Equal(t, []string{"2/c@5=", "2/c@1="}, storetest.Read(t, m, "t", "r"))
	storetest.Put(t, m, "t", "r", rs.Put(rs.Write, "c", 5, []byte("over")))
	require.Equal(t, []string{"2/c@5=over", "2/c@1="}, storetest.Read(t, m, "t", "r"))

	storetest.Put(t, m, "t", "r", rs.Put(rs.Mark, "c", 7, []byte("7")))
	storetest.Put(t, m, "t", "r", rs.Put(rs.Mark, "c", 6, []byte("6")))
	mark := rs.Selector{Family: rs.Mark, To: oracle.Max}
	require.Equal(t, []string{"4/c@7=7"}, storetest.Read(t, m, "t", "r", mark))
	storetest.Put(t, m, "t", "r", rs.Put(rs.Mark, "c", 8, []byte("8")))
	require.Equal(t, []string{"4/c@8=8"}, storetest.Read(t, m, "t", "r", mark))

	storetest.Put(t, m, "t", "r", rs.DeleteRange(rs.Write, "c", 0, oracle.Max), rs.Delete(rs.Mark, "c", 8))
	require.Empty(t, storetest.Read(t, m, "t", "r"))
	require.Empty(t, storetest.Tables(t, m))
}

func TestMemoryScans(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	for i := range 3000 { // more than one turn of rows that do not match
		storetest.Put(t, m, "t", fmt.Sprintf("%04d", i), rs.Put(rs.Write, "c", 1, nil))
	}
	for _, i := range []int{0, 7, 2999} {
		storetest.Put(t, m, "t", fmt.Sprintf("%04d", i), rs.Put(rs.Notify, "c", 5, nil), rs.Put(rs.Data, "c", 5, nil))
	}
	for _, family := range []rs.Family{rs.Notify, rs.Data} {
		selectors := []rs.Selector{{Family: family, To: oracle.Max}}
		require.Equal(t, []string{"0000", "0007", "2999"}, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: selectors}))
		require.Equal(t, []string{"2999", "0007", "0000"}, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: selectors, Reverse: true}))
		require.Equal(t, []string{"2999", "0007"}, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: selectors, Reverse: true, Limit: 2}))
		require.Equal(t, []string{"0007"}, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: selectors, From: "0001", To: "2999"}))
		require.Equal(t, []string{"0007"}, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: selectors, From: "0007", To: "2999", Reverse: true}))
		require.Empty(t, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: selectors, From: "0008", To: "0008"}))
		require.Empty(t, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: []rs.Selector{{Family: family, To: 4}}}))
		require.Empty(t, storetest.Scanned(t, m, rs.ScanRange{Table: "absent", Selectors: selectors}))
	}
	require.Len(t, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: storetest.Everything}), 3000)

	// The caller may change the store from within the loop.
	var keys []string
	for row, err := range m.Scan(t.Context(), rs.ScanRange{Table: "t", To: "0010", Selectors: storetest.Everything}) {
		require.NoError(t, err)
		keys = append(keys, row.Row)
		storetest.Put(t, m, "t", row.Row+"a", rs.Put(rs.Write, "c", 1, nil))
		storetest.Put(t, m, "t", row.Row, rs.DeleteRange(rs.Write, "c", 0, oracle.Max), rs.DeleteRange(rs.Notify, "c", 0, oracle.Max), rs.DeleteRange(rs.Data, "c", 0, oracle.Max))
		if len(keys) == 20 {
			break
		}
	}
	require.Equal(t, []string{"0000", "0000a", "0000aa"}, keys[:3])
}

func TestMemoryNotifiedRowsFollowTheirVersions(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	selectors := []rs.Selector{{Family: rs.Notify, To: oracle.Max}}
	r := rs.ScanRange{Table: "t", Selectors: selectors}
	storetest.Put(t, m, "t", "r", rs.Put(rs.Notify, "c", 5, nil), rs.Put(rs.Notify, "c", 6, nil))
	storetest.Put(t, m, "t", "r", rs.Delete(rs.Notify, "c", 5))
	require.Equal(t, []string{"r"}, storetest.Scanned(t, m, r))
	storetest.Put(t, m, "t", "r", rs.Put(rs.Write, "c", 5, nil), rs.Delete(rs.Notify, "c", 6))
	require.Empty(t, storetest.Scanned(t, m, r))
	storetest.Put(t, m, "t", "r", rs.Put(rs.Notify, "c", 7, nil), rs.DeleteRange(rs.Write, "c", 0, oracle.Max))
	require.Equal(t, []string{"r"}, storetest.Scanned(t, m, r))
	storetest.Put(t, m, "t", "r", rs.Delete(rs.Notify, "c", 7))
	require.Empty(t, storetest.Scanned(t, m, r))
}

// A scan of slots leaps over more ranges, and passes over more rows that do not match, than
// one turn has.
func TestMemoryScansSlots(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	slots := map[uint16]bool{}
	for i := range 3000 {
		name := fmt.Sprintf("%04d", i)
		storetest.Put(t, m, "t", name, rs.Put(rs.Notify, "other", 1, nil))
		slots[rs.Slot("t", name)] = true
	}
	var want []string
	for _, i := range []int{0, 7, 2999} {
		name := fmt.Sprintf("%04d", i)
		storetest.Put(t, m, "t", name, rs.Put(rs.Notify, "c", 5, nil))
		want = append(want, name)
	}
	slices.SortFunc(want, func(a, b string) int { return cmp.Compare(rs.Slot("t", a), rs.Slot("t", b)) })
	selectors := []rs.Selector{{Family: rs.Notify, Column: "c", To: oracle.Max}}
	var each, holes []rs.SlotRange // each slot, and each without a row
	for slot := range rs.Slots {
		one := rs.SlotRange{First: uint16(slot), Last: uint16(slot)}
		each = append(each, one)
		if !slots[one.First] {
			holes = append(holes, one)
		}
	}
	require.Equal(t, want, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: selectors, Slots: each}))
	require.Equal(t, want, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: selectors, Slots: []rs.SlotRange{{First: 0, Last: rs.Slots - 1}}}))
	require.Equal(t, want[:2], storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: selectors, Slots: each, Limit: 2}))
	require.Empty(t, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: selectors, Slots: holes}))
	require.Len(t, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: []rs.Selector{{Family: rs.Notify, To: oracle.Max}}, Slots: each}), 3000)
	require.NoError(t, m.Close())
	again, err := m.Reopen()
	require.NoError(t, err)
	storetest.Put(t, again, "t", want[0], rs.Delete(rs.Notify, "c", 5))
	require.Equal(t, want[1:], storetest.Scanned(t, again, rs.ScanRange{Table: "t", Selectors: selectors, Slots: each}))
}

func TestMemoryGroups(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	first, err := m.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	storetest.Put(t, m, "t", "locked", rs.Put(rs.Lock, "c", 1, []byte("l")))

	write := func(row string) rs.Mutation {
		return rs.Mutation{
			Table: "t", Row: row, Conditions: []rs.Condition{rs.Absent(rs.Lock, "c", 0)},
			Edits: []rs.Edit{rs.Put(rs.Write, "c", rs.AssignedTimestamp, []byte("v"))},
		}
	}
	out, err := m.Group(t.Context(), []rs.Group{
		{Mutations: []rs.Mutation{write("a"), write("b")}, AssignTimestamp: true},
		{Mutations: []rs.Mutation{write("x"), write("locked")}, AssignTimestamp: true},
		{Mutations: []rs.Mutation{write("late")}, AssignTimestamp: true, NotAfter: first},
	})
	require.NoError(t, err)
	require.True(t, out[0].Applied)
	require.Greater(t, out[0].Commit, first)
	want := []string{fmt.Sprintf("2/c@%d=v", uint64(out[0].Commit))}
	require.Equal(t, want, storetest.Read(t, m, "t", "a"))
	require.Equal(t, want, storetest.Read(t, m, "t", "b"))

	require.False(t, out[1].Applied)
	require.Equal(t, 1, out[1].Failed)
	require.Equal(t, "1/c@1=l", storetest.Texts([]rs.Version{out[1].Outcome.Broke})[0])
	require.Empty(t, storetest.Read(t, m, "t", "x"))

	require.False(t, out[2].Applied)
	require.True(t, out[2].TooLate)
	require.Empty(t, storetest.Read(t, m, "t", "late"))

	next, err := m.Oracle().Draw(t.Context(), 1)
	require.NoError(t, err)
	require.Greater(t, next, out[0].Commit)
}

func TestMemoryCrashLosesTheDeferredSuffix(t *testing.T) {
	t.Parallel()
	m := memstore.New()
	deferred := rs.ApplyOptions{Deferred: true}
	edit := func(row string, edits ...rs.Edit) rs.Mutation {
		return rs.Mutation{Table: "t", Row: row, Edits: edits}
	}
	before := storetest.Apply(t, m, edit("a", rs.Put(rs.Write, "c", 1, []byte("1"))), deferred).Incarnation
	storetest.Put(t, m, "t", "b", rs.Put(rs.Write, "c", 1, []byte("1")), rs.Put(rs.Notify, "c", 1, nil))
	storetest.Apply(t, m, edit("a", rs.Put(rs.Write, "c", 2, []byte("2"))), deferred)
	storetest.Apply(t, m, edit("a", rs.Delete(rs.Write, "c", 1)), deferred)
	storetest.Apply(t, m, edit("b", rs.Put(rs.Write, "c", 1, []byte("over")), rs.Delete(rs.Notify, "c", 1)), deferred)
	storetest.Apply(t, m, edit("new", rs.Put(rs.Write, "c", 2, nil)), deferred)
	require.Equal(t, []string{"2/c@2=2"}, storetest.Read(t, m, "t", "a"))

	m.Crash()
	require.Equal(t, []string{"2/c@1=1"}, storetest.Read(t, m, "t", "a"))
	require.Equal(t, []string{"2/c@1=1", "5/c@1="}, storetest.Read(t, m, "t", "b"))
	require.Equal(t, []string{"a", "b"}, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: storetest.Everything}))
	require.Equal(t, []string{"b"}, storetest.Scanned(t, m, rs.ScanRange{Table: "t", Selectors: []rs.Selector{{Family: rs.Notify, To: oracle.Max}}}))

	out := storetest.Apply(t, m, rs.Mutation{Table: "t", Row: "a", Conditions: []rs.Condition{rs.SameIncarnation(before)}})
	require.False(t, out.Applied)
	require.NotEqual(t, before, out.Incarnation)

	// Each of these makes what was deferred before it durable.
	for i, durable := range []func(){
		func() { require.NoError(t, m.Flush(t.Context())) },
		func() { storetest.Put(t, m, "t", "other", rs.Put(rs.Write, "c", 1, nil)) },
		func() {
			_, err := m.Group(t.Context(), []rs.Group{{Mutations: []rs.Mutation{edit("other", rs.Put(rs.Write, "c", 2, nil))}}})
			require.NoError(t, err)
		},
	} {
		row := fmt.Sprint("durable", i)
		storetest.Apply(t, m, edit(row, rs.Put(rs.Write, "c", 1, nil)), deferred)
		durable()
		m.Crash()
		require.Len(t, storetest.Read(t, m, "t", row), 1)
	}
}

func TestMemoryOracle(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_000_000)
	m := memstore.New(memstore.WithClock(func() time.Time { return now }))
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
	m := memstore.New()
	for i := range 100 {
		storetest.Put(t, m, "t", fmt.Sprintf("%02d", i), rs.Put(rs.Write, "c", 1, nil))
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
	m := memstore.New()
	ctx, cancel := context.WithCancel(t.Context())
	woken := make(chan rs.Wake, 10)
	done := make(chan error, 1)
	go func() { done <- m.Listen(ctx, func(w rs.Wake) { woken <- w }) }()
	require.Zero(t, <-woken)

	storetest.Put(t, m, "prewrite", "r", rs.Put(rs.Notify, "c", 1, nil), rs.Put(rs.Lock, "c", 1, nil))
	storetest.Put(t, m, "plain", "r", rs.Put(rs.Write, "c", 1, nil))
	storetest.Apply(t, m, rs.Mutation{Table: "refused", Row: "r", Conditions: []rs.Condition{rs.Present("c", 1)}, Edits: []rs.Edit{rs.Put(rs.Notify, "c", 1, nil)}})
	storetest.Put(t, m, "commit", "r", rs.Put(rs.Notify, "c", 1, nil))
	require.Equal(t, rs.Wake{Table: "commit", Slots: []uint16{rs.Slot("commit", "r")}}, <-woken)
	cancel()
	require.Equal(t, context.Canceled, <-done)

	go func() { done <- m.Listen(t.Context(), func(w rs.Wake) { woken <- w }) }()
	require.Zero(t, <-woken)
	require.NoError(t, m.Close())
	require.ErrorIs(t, <-done, rs.ErrClosed)
}

func TestMemoryRefuses(t *testing.T) {
	t.Parallel()
	m := memstore.New(memstore.WithLimits(rs.Limits{Table: 3, Row: 3, Column: 3, Value: 3}))
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
	require.ErrorIs(t, storetest.FirstError(m.Scan(t.Context(), rs.ScanRange{Table: "t"})), rs.ErrInvalid)
	require.Empty(t, storetest.Tables(t, m))
}

func TestMemoryEnds(t *testing.T) {
	t.Parallel()
	storetest.RequireEnds(t, memstore.New())

	m := memstore.New()
	for i := range 3 {
		storetest.Put(t, m, "t", fmt.Sprint(i), rs.Put(rs.Write, "c", 1, nil))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	visited := 0
	for _, err := range m.Scan(ctx, rs.ScanRange{Table: "t", Selectors: storetest.Everything}) {
		if err != nil {
			require.True(t, errors.Is(err, context.Canceled))
			break
		}
		visited++
		cancel()
	}
	require.Equal(t, 1, visited)
}
