package rowstore_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolator/oracle"
	rs "github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func TestCheckReadsAndScans(t *testing.T) {
	t.Parallel()
	ok := rs.Selector{Family: rs.Write, To: oracle.Max}
	require.NoError(t, rs.CheckReads(nil))
	require.NoError(t, rs.CheckReads([]rs.RowRead{{Table: "t", Row: "r", Selectors: []rs.Selector{ok}}}))
	require.NoError(t, rs.CheckScan(rs.ScanRange{Table: "t", Selectors: []rs.Selector{ok}}))
	for name, r := range map[string]rs.RowRead{
		"table":        {Row: "r", Selectors: []rs.Selector{ok}},
		"row":          {Table: "t", Selectors: []rs.Selector{ok}},
		"no selectors": {Table: "t", Row: "r"},
		"family 0":     {Table: "t", Row: "r", Selectors: []rs.Selector{ok, {To: 1}}},
		"family 6":     {Table: "t", Row: "r", Selectors: []rs.Selector{{Family: 6, To: 1}}},
		"limit":        {Table: "t", Row: "r", Selectors: []rs.Selector{{Family: rs.Write, Limit: -1}}},
		"from":         {Table: "t", Row: "r", Selectors: []rs.Selector{{Family: rs.Write, From: oracle.Max + 1}}},
		"to":           {Table: "t", Row: "r", Selectors: []rs.Selector{{Family: rs.Write, To: oracle.Max + 1}}},
	} {
		require.ErrorIs(t, rs.CheckReads([]rs.RowRead{{Table: "t", Row: "r", Selectors: []rs.Selector{ok}}, r}), rs.ErrInvalid, name)
		if r.Row != "" {
			require.ErrorIs(t, rs.CheckScan(rs.ScanRange{Table: r.Table, Selectors: r.Selectors}), rs.ErrInvalid, name)
		}
	}
	require.ErrorIs(t, rs.CheckScan(rs.ScanRange{Table: "t", Selectors: []rs.Selector{ok}, Limit: -1}), rs.ErrInvalid)
}

func TestCheckScansOfSlots(t *testing.T) {
	t.Parallel()
	const last = rs.Slots - 1
	notify := rs.Selector{Family: rs.Notify, To: oracle.Max}
	check := func(s rs.ScanRange, slots ...rs.SlotRange) error {
		s.Table, s.Slots = "t", slots
		if s.Selectors == nil {
			s.Selectors = []rs.Selector{notify, notify}
		}
		return rs.CheckScan(s)
	}
	require.NoError(t, check(rs.ScanRange{}, rs.SlotRange{First: 0, Last: last}))
	require.NoError(t, check(rs.ScanRange{From: "r", Limit: 5}, rs.SlotRange{First: 0, Last: 0}, rs.SlotRange{First: 1, Last: 5}, rs.SlotRange{First: 6, Last: 6}, rs.SlotRange{First: last, Last: last}))
	require.NoError(t, check(rs.ScanRange{To: "r", Reverse: true, Selectors: []rs.Selector{{Family: rs.Write, To: 1}}}), "it is no scan of slots")
	for name, err := range map[string]error{
		"backwards":      check(rs.ScanRange{}, rs.SlotRange{First: 1, Last: 0}),
		"descending":     check(rs.ScanRange{}, rs.SlotRange{First: 4, Last: 5}, rs.SlotRange{First: 1, Last: 2}),
		"overlapping":    check(rs.ScanRange{}, rs.SlotRange{First: 1, Last: 4}, rs.SlotRange{First: 4, Last: 5}),
		"twice":          check(rs.ScanRange{}, rs.SlotRange{First: last, Last: last}, rs.SlotRange{First: last, Last: last}),
		"the third":      check(rs.ScanRange{}, rs.SlotRange{First: 1, Last: 1}, rs.SlotRange{First: 2, Last: 9}, rs.SlotRange{First: 8, Last: 10}),
		"to":             check(rs.ScanRange{To: "r"}, rs.SlotRange{First: 1, Last: 1}),
		"reverse":        check(rs.ScanRange{Reverse: true}, rs.SlotRange{First: 1, Last: 1}),
		"another family": check(rs.ScanRange{Selectors: []rs.Selector{notify, {Family: rs.Write, To: 1}}}, rs.SlotRange{First: 1, Last: 1}),
		"no selectors":   check(rs.ScanRange{Selectors: []rs.Selector{}}, rs.SlotRange{First: 1, Last: 1}),
		"limit":          check(rs.ScanRange{Limit: -1}, rs.SlotRange{First: 1, Last: 1}),
	} {
		require.ErrorIs(t, err, rs.ErrInvalid, name)
	}
}

func TestCheckSnapshotReads(t *testing.T) {
	t.Parallel()
	ok := rs.Selector{Family: rs.Write, To: oracle.Max}
	good := rs.RowRead{Table: "t", Row: "r", Selectors: []rs.Selector{ok, {Family: rs.Lock, To: rs.AssignedTimestamp}}}
	check := func(reads ...rs.RowRead) error {
		return rs.CheckSnapshotReads([]rs.SnapshotRead{{Reads: []rs.RowRead{good}}, {Reads: reads}})
	}
	require.NoError(t, rs.CheckSnapshotReads(nil))
	require.NoError(t, check(good, good))
	for name, err := range map[string]error{
		"nothing":       check(),
		"table":         check(good, rs.RowRead{Row: "r", Selectors: []rs.Selector{ok}}),
		"row":           check(good, rs.RowRead{Table: "t", Selectors: []rs.Selector{ok}}),
		"no selectors":  check(good, rs.RowRead{Table: "t", Row: "r"}),
		"assigned from": check(rs.RowRead{Table: "t", Row: "r", Selectors: []rs.Selector{{Family: rs.Write, From: rs.AssignedTimestamp, To: rs.AssignedTimestamp}}}),
		"to":            check(rs.RowRead{Table: "t", Row: "r", Selectors: []rs.Selector{{Family: rs.Write, To: rs.AssignedTimestamp + 1}}}),
	} {
		require.ErrorIs(t, err, rs.ErrInvalid, name)
	}
	// Only a snapshot read has a timestamp to assign.
	require.ErrorIs(t, rs.CheckReads([]rs.RowRead{good}), rs.ErrInvalid)
	require.ErrorIs(t, rs.CheckScan(rs.ScanRange{Table: "t", Selectors: good.Selectors}), rs.ErrInvalid)
}

func TestCheckBatch(t *testing.T) {
	t.Parallel()
	good := rs.Mutation{
		Table: "t", Row: "good",
		Conditions: []rs.Condition{
			rs.Absent(rs.Write, "c", 0), rs.Absent(rs.Mark, "c", 1), rs.Absent(rs.Notify, "c", 1), rs.Absent(rs.Lock, "c", oracle.Max),
			rs.AbsentAt("c", 1), rs.Present("c", 1), rs.SameIncarnation(""),
		},
		Edits: []rs.Edit{
			rs.Put(rs.Lock, "c", 1, nil), rs.Put(rs.Write, "c", 1, nil), rs.Put(rs.Write, "d", 1, nil), rs.Put(rs.Write, "c", 2, nil),
			rs.DeleteRange(rs.Write, "c", 3, oracle.Max), rs.DeleteRange(rs.Write, "c", 5, 4), rs.Delete(rs.Data, "c", oracle.Max),
			rs.DeleteRange(rs.Mark, "c", 0, 5), rs.Delete(rs.Mark, "c", 6), rs.Delete(rs.Lock, "c", 2),
		},
	}
	require.NoError(t, rs.CheckBatch(nil))
	require.NoError(t, rs.CheckBatch([]rs.Mutation{good, {Table: "u", Row: "good"}}))
	cond := func(c rs.Condition) rs.Mutation {
		return rs.Mutation{Table: "t", Row: "r", Conditions: []rs.Condition{rs.SameIncarnation("x"), c}}
	}
	edits := func(e ...rs.Edit) rs.Mutation { return rs.Mutation{Table: "t", Row: "r", Edits: e} }
	for name, m := range map[string]rs.Mutation{
		"table":                     {Row: "r"},
		"row":                       {Table: "t"},
		"the same row":              {Table: "t", Row: "good"},
		"condition kind":            cond(rs.Condition{}),
		"absent data":               cond(rs.Absent(rs.Data, "c", 1)),
		"absent family 0":           cond(rs.Absent(0, "c", 1)),
		"absent column":             cond(rs.Absent(rs.Write, "", 1)),
		"absent timestamp":          cond(rs.Absent(rs.Write, "c", oracle.Max+1)),
		"present of write":          cond(rs.Condition{Kind: rs.IfPresent, Family: rs.Write, Column: "c", TS: 1}),
		"edit kind":                 edits(rs.Edit{Family: rs.Write, Column: "c", TS: 1}),
		"edit family":               edits(rs.Put(7, "c", 1, nil)),
		"edit column":               edits(rs.Put(rs.Write, "", 1, nil)),
		"put at 0":                  edits(rs.Put(rs.Write, "c", 0, nil)),
		"delete at 0":               edits(rs.Delete(rs.Write, "c", 0)),
		"put drawn without a draw":  edits(rs.Put(rs.Write, "c", rs.AssignedTimestamp, nil)),
		"range over the greatest":   edits(rs.DeleteRange(rs.Write, "c", 0, oracle.Max+1)),
		"range from over it":        edits(rs.DeleteRange(rs.Write, "c", oracle.Max+1, 0)),
		"two puts":                  edits(rs.Put(rs.Write, "c", 5, nil), rs.Put(rs.Write, "c", 5, nil)),
		"put in a range":            edits(rs.Put(rs.Write, "c", 5, nil), rs.DeleteRange(rs.Write, "c", 5, 9)),
		"ranges meet":               edits(rs.DeleteRange(rs.Write, "c", 1, 5), rs.DeleteRange(rs.Write, "c", 5, 9)),
		"two locks":                 edits(rs.Put(rs.Lock, "c", 1, nil), rs.Put(rs.Lock, "c", 2, nil)),
		"two marks":                 edits(rs.Put(rs.Mark, "c", 1, nil), rs.Put(rs.Mark, "c", 2, nil)),
		"a mark and a mark's end":   edits(rs.Delete(rs.Mark, "c", 9), rs.Put(rs.Mark, "c", 2, nil)),
		"a mark and an empty range": edits(rs.Put(rs.Mark, "c", 2, nil), rs.DeleteRange(rs.Mark, "c", 2, 1)),
	} {
		err := rs.CheckBatch([]rs.Mutation{good, m})
		require.ErrorIs(t, err, rs.ErrInvalid, name)
	}
	var many []rs.Mutation
	for i := range 100 {
		many = append(many, rs.Mutation{Table: "t", Row: fmt.Sprint(i)})
	}
	require.NoError(t, rs.CheckBatch(many))
	require.ErrorContains(t, rs.CheckBatch(append(many, many[3])), `"3"`)
}

func TestCheckLimits(t *testing.T) {
	t.Parallel()
	m := rs.Mutation{Table: "ttt", Row: "rrrr", Conditions: []rs.Condition{rs.SameIncarnation("a long incarnation")}, Edits: []rs.Edit{rs.Put(rs.Write, "ccccc", 1, []byte("vvvvvv"))}}
	check := func(l rs.Limits) error { return rs.CheckLimits(l, []rs.Mutation{m}) }
	require.NoError(t, check(rs.Limits{}))
	require.NoError(t, check(rs.Limits{Table: 3, Row: 4, Column: 5, Value: 6}))
	for _, l := range []rs.Limits{{Table: 2}, {Row: 3}, {Column: 4}, {Value: 5}} {
		require.ErrorIs(t, check(l), rs.ErrTooLarge)
	}
	// Every mutation counts, and so does a column that is only asked about, in a group too.
	small := rs.Mutation{Table: "t", Row: "r"}
	asks := rs.Mutation{Table: "t", Row: "s", Conditions: []rs.Condition{rs.Absent(rs.Lock, "ccccc", 0)}}
	for _, l := range []rs.Limits{{Column: 4}, {Bytes: 6}} {
		require.NoError(t, rs.CheckLimits(l, []rs.Mutation{small}))
		require.ErrorIs(t, rs.CheckLimits(l, []rs.Mutation{small, asks}), rs.ErrTooLarge, "%+v", l)
		require.NoError(t, rs.CheckGroupLimits(l, []rs.Group{{Mutations: []rs.Mutation{small}}}))
		require.ErrorIs(t, rs.CheckGroupLimits(l, []rs.Group{{Mutations: []rs.Mutation{small}}, {Mutations: []rs.Mutation{small, asks}}}), rs.ErrTooLarge, "%+v", l)
	}
	require.NoError(t, rs.CheckLimits(rs.Limits{Column: 5, Bytes: 7}, []rs.Mutation{small, asks}), "the limit itself")
	require.NoError(t, rs.CheckGroupLimits(rs.Limits{Column: 5, Bytes: 9}, []rs.Group{{Mutations: []rs.Mutation{small, asks}}}))
	for what, l := range map[string]rs.Limits{"table": {Table: 2}, "row": {Row: 3}, "value": {Value: 5}} {
		require.ErrorIs(t, rs.CheckGroupLimits(l, []rs.Group{{Mutations: []rs.Mutation{small, m}}}), rs.ErrTooLarge, what)
	}
}

// twoKeys is a Grouper whose rows share a group when their tables are equal.
// Table "never" has no groups, and only table "draws" draws.
type twoKeys struct{ rs.Grouper }

func (twoKeys) GroupKey(table, _ string) string   { return strings.TrimPrefix(table, "never") }
func (twoKeys) AssignsTimestamps(key string) bool { return key == "draws" }

func TestCheckGroups(t *testing.T) {
	t.Parallel()
	mut := func(table, row string, ts rs.Timestamp) rs.Mutation {
		return rs.Mutation{Table: table, Row: row, Edits: []rs.Edit{rs.Put(rs.Write, "c", ts, nil)}}
	}
	group := func(draw bool, muts ...rs.Mutation) rs.Group { return rs.Group{AssignTimestamp: draw, Mutations: muts} }
	check := func(g ...rs.Group) error { return rs.CheckGroups(twoKeys{}, g) }
	require.NoError(t, check(group(true, mut("draws", "a", rs.AssignedTimestamp), mut("draws", "b", 1)), group(false, mut("plain", "a", 1))))
	for name, err := range map[string]error{
		"no mutation":      check(rs.Group{}),
		"two keys":         check(group(false, mut("a", "a", 1), mut("b", "b", 1))),
		"no group":         check(group(false, mut("never", "a", 1))),
		"does not draw":    check(group(true, mut("plain", "a", 1))),
		"drawn, no draw":   check(group(false, mut("draws", "a", rs.AssignedTimestamp))),
		"a row twice":      check(group(false, mut("a", "a", 1)), group(false, mut("a", "a", 1))),
		"deletes at drawn": check(group(true, rs.Mutation{Table: "draws", Row: "a", Edits: []rs.Edit{rs.Delete(rs.Write, "c", rs.AssignedTimestamp)}})),
		"drawn and range": check(group(true, rs.Mutation{Table: "draws", Row: "a", Edits: []rs.Edit{
			rs.Put(rs.Write, "c", rs.AssignedTimestamp, nil), rs.DeleteRange(rs.Write, "c", 0, 5),
		}})),
	} {
		require.ErrorIs(t, err, rs.ErrInvalid, name)
	}
}

// Long mutations are checked by another method than short ones. Both must judge
// alike: here the edits that collide are put among others of their own columns.
func TestCheckLongMutationsAsShortOnes(t *testing.T) {
	t.Parallel()
	var padding []rs.Edit
	for i := range 20 {
		padding = append(padding, rs.Put(rs.Write, fmt.Sprint("padding", i), 1, nil))
	}
	verdicts := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		ts := rapid.Custom(func(t *rapid.T) rs.Timestamp { return rs.Timestamp(rapid.IntRange(1, 60).Draw(t, "ts")) })
		edits := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rs.Edit {
			e := rs.Edit{
				Kind:   rs.EditKind(rapid.IntRange(1, 3).Draw(t, "kind")),
				Family: rs.Family(rapid.IntRange(1, 5).Draw(t, "family")),
				Column: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "column"),
				TS:     ts.Draw(t, "at"),
			}
			switch {
			case e.Kind == rs.DoDeleteRange:
				e.To = e.TS + rs.Timestamp(rapid.IntRange(-1, 5).Draw(t, "length"))
			case e.Kind == rs.DoPut && rapid.IntRange(0, 9).Draw(t, "drawn") == 0:
				e.TS = rs.AssignedTimestamp
			}
			return e
		}), 0, 10).Draw(t, "edits")
		check := func(edits []rs.Edit) error {
			return rs.CheckGroups(twoKeys{}, []rs.Group{{AssignTimestamp: true, Mutations: []rs.Mutation{{Table: "draws", Row: "r", Edits: edits}}}})
		}
		short, long := check(edits), check(append(edits, padding...))
		require.Equal(t, short == nil, long == nil, "short: %v, long: %v", short, long)
		verdicts[short == nil]++
	})
	require.NotZero(t, verdicts[true])
	require.NotZero(t, verdicts[false])
}

func TestCheckAllocatesNothingForShortMutations(t *testing.T) {
	var muts []rs.Mutation
	for i := range 8 {
		muts = append(muts, rs.Mutation{
			Table: "t", Row: fmt.Sprint(i), Conditions: []rs.Condition{rs.Absent(rs.Lock, "c", 0)},
			Edits: []rs.Edit{rs.Put(rs.Lock, "c", 5, nil), rs.Put(rs.Data, "c", 5, nil), rs.Put(rs.Notify, "c", 5, nil)},
		})
	}
	groups := []rs.Group{{Mutations: muts[:4]}, {Mutations: muts[4:]}}
	m := memstore.New()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if rs.CheckBatch(muts) != nil || rs.CheckGroups(m, groups) != nil {
			panic("refused")
		}
	}))
}

func BenchmarkCheckBatch(b *testing.B) {
	for _, n := range []int{4, 16, 10_000} {
		m := rs.Mutation{Table: "t", Row: "r"}
		for i := range n {
			m.Edits = append(m.Edits, rs.Delete(rs.Write, "c", rs.Timestamp(1+i)))
		}
		b.Run(fmt.Sprint("edits=", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := rs.CheckBatch([]rs.Mutation{m}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
