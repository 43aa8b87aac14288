package tikvraw

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestWideDeepRow has a row of many columns with many versions each: written, read as of
// snapshots and collected, with a bound on each call. Calls to the cluster are counted; the
// time is bounded generously, against work that grows with the square of something.
func TestWideDeepRow(t *testing.T) {
	t.Parallel()
	columns, versions := 1000, 30
	s, f := fakeStore(t, Options{SweepEvery: -1})
	const at = 100 // cells of one mutation
	name := func(i int) string { return fmt.Sprintf("column%05d", i) }
	var slowest time.Duration
	apply := func(edits []rowstore.Edit) {
		t.Helper()
		f.counted()
		began := time.Now()
		out, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "wide", Edits: edits}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		require.NoError(t, out[0].Err)
		require.True(t, out[0].Applied)
		slowest = max(slowest, time.Since(began))
		calls := f.counted()
		require.LessOrEqual(t, calls["cas"], 1)
		require.LessOrEqual(t, calls["get"]+calls["batchGet"]+calls["put"]+calls["batchPut"], 8, "%v", calls)
	}
	began := time.Now()
	for v := range versions {
		for c := 0; c < columns; c += at {
			edits := make([]rowstore.Edit, at)
			for i := range edits {
				edits[i] = rowstore.Put(rowstore.Write, name(c+i), rowstore.Timestamp(10+v), []byte("value"))
			}
			apply(edits)
		}
	}
	t.Logf("written in %v, the slowest mutation %v", time.Since(began), slowest)
	require.Less(t, slowest, 5*time.Second)

	read := func(to rowstore.Timestamp) int {
		t.Helper()
		f.counted()
		got := readWide(t, s, to, rowstore.Timestamp(9+versions))
		calls := f.counted()
		total := 0
		for _, n := range calls {
			total += n
		}
		t.Logf("%d columns as of %d: %v", got, to, calls)
		require.LessOrEqual(t, total, 2+columns/32, "%v", calls)
		return got
	}
	require.Equal(t, columns, read(oracle.Max))
	require.Equal(t, columns, read(rowstore.Timestamp(10+versions/2)))
	require.Equal(t, columns, read(10))
	require.Zero(t, read(9))

	// Collected as the core does, for several columns at a time.
	slowest = 0
	for c := 0; c < columns; c += at {
		edits := make([]rowstore.Edit, at)
		for i := range edits {
			edits[i] = rowstore.DeleteRange(rowstore.Write, name(c+i), 0, rowstore.Timestamp(8+versions))
		}
		apply(edits)
	}
	t.Logf("collected, the slowest mutation %v", slowest)
	require.Less(t, slowest, 5*time.Second)
	s.clean.idle()
	require.Equal(t, columns, read(oracle.Max))
	require.Zero(t, read(rowstore.Timestamp(8+versions)))
	require.Len(t, f.dump(), 2, "the row's head and the store's record: its history is gone")
}

// readWide counts the columns that have a version as of a timestamp, each of which has one
// at last, and bounds the time that the read takes.
func readWide(t *testing.T, s rowstore.Store, to, last rowstore.Timestamp) int {
	t.Helper()
	began := time.Now()
	rows, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "wide", Selectors: []rowstore.Selector{
		{Family: rowstore.Lock, To: oracle.Max, Limit: 1},
		{Family: rowstore.Write, To: to, Limit: 1},
	}}})
	require.NoError(t, err)
	for _, v := range rows[0].Versions {
		require.LessOrEqual(t, v.TS, to)
		require.Greater(t, v.TS+1, min(to, last), "the newest")
	}
	took := time.Since(began)
	t.Logf("read in %v", took)
	require.Less(t, took, 5*time.Second)
	return len(rows[0].Versions)
}
