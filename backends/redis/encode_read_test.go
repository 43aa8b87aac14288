package redis

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Picks of one column are put together, also where there are so many columns that a map finds them.
func TestPlanOfManyColumns(t *testing.T) {
	t.Parallel()
	const columns = 3 * fewColumns
	var picks []rowstore.Selector
	for _, family := range []rowstore.Family{rowstore.Lock, rowstore.Write} {
		for i := range columns {
			picks = append(picks, rowstore.Selector{Family: family, Column: fmt.Sprint(i), To: rowstore.Timestamp(i + 1)})
		}
	}
	pl := newPlan(picks)
	require.Len(t, pl.cells, columns)
	for i, h := range pl.cells {
		require.Equal(t, fmt.Sprint(i), h.column)
		require.True(t, h.want)
		require.EqualValues(t, i+1, h.hi)
	}
}

// A pick of all columns counts beside those of one, also where there are so many picks that a map finds them.
func TestManyPicks(t *testing.T) {
	t.Parallel()
	picks := []rowstore.Selector{{Family: rowstore.Lock, Column: rowstore.AllColumns, To: maxTS}}
	for i := range 2 * fewColumns {
		picks = append(picks, rowstore.Selector{Family: rowstore.Write, Column: fmt.Sprint(i), To: maxTS, Limit: 1})
	}
	require.Greater(t, len(picks), 2*fewColumns)
	d := decoder{vs: []version{
		{rowstore.Lock, "7", 5, "lock"},
		{rowstore.Lock, "none", 5, "lock"},
		{rowstore.Write, "7", 4, "new"},
		{rowstore.Write, "7", 3, "old"},
		{rowstore.Write, "none", 4, "new"},
	}}
	require.Equal(t, []rowstore.Version{
		{Family: rowstore.Lock, Column: "7", TS: 5, Value: []byte("lock")},
		{Family: rowstore.Lock, Column: "none", TS: 5, Value: []byte("lock")},
		{Family: rowstore.Write, Column: "7", TS: 4, Value: []byte("new")},
	}, d.pick(picks))
}

// Of a mutation with many columns the first condition that does not hold is found, as of one with few.
func TestFirstFailureOfManyColumns(t *testing.T) {
	t.Parallel()
	m := rowstore.Mutation{Table: "t", Row: "row"}
	var vs []version
	for i := range 2 * fewColumns {
		m.Conditions = append(m.Conditions, rowstore.Absent(rowstore.Write, fmt.Sprint(i), 5))
		vs = append(vs, version{rowstore.Write, fmt.Sprint(i), 4, "old"})
	}
	_, _, found := firstFailure(&m, vs)
	require.False(t, found)
	vs[20].ts, vs[30].ts = 6, 5
	failed, broke, found := firstFailure(&m, vs)
	require.True(t, found)
	require.Equal(t, 20, failed)
	require.Equal(t, rowstore.Version{Family: rowstore.Write, Column: "20", TS: 6, Value: []byte("old")}, broke)
}

// Picks with limits of their own, in ranges of their own, are not answered by everything between them.
func TestPlanOfRangesApart(t *testing.T) {
	t.Parallel()
	pick := func(from, to rowstore.Timestamp, limit int) rowstore.Selector {
		return rowstore.Selector{Family: rowstore.Write, Column: "c", From: from, To: to, Limit: limit}
	}
	span := func(from, to rowstore.Timestamp, limit int) history {
		return history{kind: 'W', column: "c", want: true, limit: limit, lo: from, hi: to}
	}
	for name, tc := range map[string]struct {
		picks  []rowstore.Selector
		first  history
		others []history
	}{
		"status":            {[]rowstore.Selector{pick(50, maxTS, 32), pick(0, 49, 1)}, span(50, maxTS, 32), []history{span(0, 49, 1)}},
		"the same range":    {[]rowstore.Selector{pick(1, 9, 2), pick(1, 9, 3), pick(9, 1, 0)}, span(1, 9, 3), nil},
		"within":            {[]rowstore.Selector{pick(1, 9, 0), pick(2, 8, 3)}, span(1, 9, 0), nil},
		"around":            {[]rowstore.Selector{pick(2, 8, 3), pick(1, 9, 0)}, span(1, 9, 0), nil},
		"overlapping":       {[]rowstore.Selector{pick(1, 5, 0), pick(4, 9, 0)}, span(1, 9, 0), nil},
		"all, and one":      {[]rowstore.Selector{pick(50, 60, 0), pick(0, 49, 1)}, span(50, 60, 0), []history{span(0, 49, 1)}},
		"a third is shared": {[]rowstore.Selector{pick(50, 60, 2), pick(0, 49, 1), pick(0, 49, 4)}, span(50, 60, 2), []history{span(0, 49, 4)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pl := newPlan(tc.picks)
			require.Equal(t, []history{tc.first}, pl.cells)
			require.Equal(t, tc.others, pl.again)
		})
	}
	var many []rowstore.Selector
	for i := range rowstore.Timestamp(2 * mostAgain) {
		many = append(many, pick(10*i, 10*i+5, 1))
	}
	pl := newPlan(many)
	require.Len(t, pl.again, mostAgain)
	require.Equal(t, []history{span(0, 10*(2*mostAgain-1)+5, 0)}, pl.cells)
}

// The fields of a begin are each named once, also where there are so many that a map finds them.
func TestBeginFieldsOfManyColumns(t *testing.T) {
	t.Parallel()
	const columns = 3 * fewColumns
	var picks []rowstore.Selector
	for _, limit := range []int{1, 2} {
		for _, family := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Notify} {
			for i := range columns {
				picks = append(picks, rowstore.Selector{Family: family, Column: fmt.Sprint(i), To: rowstore.AssignedTimestamp, Limit: limit})
			}
		}
	}
	for n := range picks {
		fields, ok := beginFields(picks[:n+1], nil)
		require.True(t, ok)
		seen := map[beginKey]bool{}
		for _, f := range fields {
			require.False(t, seen[f.beginKey], "%c of %s is there twice", f.kind, f.column)
			seen[f.beginKey] = true
		}
		require.Equal(t, beginKey{'W', "0"}, fields[0].beginKey)
	}
	fields, _ := beginFields(picks, nil)
	require.Len(t, fields, 2*columns)
	for _, f := range fields {
		require.Equal(t, f.kind == 'W', f.two)
	}
	picks[0].Column = rowstore.AllColumns
	_, ok := beginFields(picks, nil)
	require.False(t, ok)
}
