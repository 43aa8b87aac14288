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
	for i := range fewPicks {
		picks = append(picks, rowstore.Selector{Family: rowstore.Write, Column: fmt.Sprint(i), To: maxTS, Limit: 1})
	}
	require.Greater(t, len(picks), fewPicks)
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
