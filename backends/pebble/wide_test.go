package pebble

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestWideDeepRow has a row of many columns with many versions each: written, read as of
// snapshots and collected, each call within a generous time that work which grows with the
// square of something would not keep.
func TestWideDeepRow(t *testing.T) {
	t.Parallel()
	const columns, versions, at = 10_000, 8, 100
	const bound = 5 * time.Second
	s, err := Open(t.Context(), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	name := func(i int) string { return fmt.Sprintf("column%05d", i) }
	var slowest time.Duration
	apply := func(edits []rowstore.Edit) {
		t.Helper()
		began := time.Now()
		out, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "wide", Edits: edits}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		require.NoError(t, out[0].Err)
		slowest = max(slowest, time.Since(began))
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
	read := func(to rowstore.Timestamp) int {
		t.Helper()
		picks := []rowstore.Pick{
			{Family: rowstore.Lock, To: oracle.Max, Limit: 1},
			{Family: rowstore.Write, To: to, Limit: 1},
		}
		began := time.Now()
		rows, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "wide", Picks: picks}})
		require.NoError(t, err)
		took := time.Since(began)
		began = time.Now()
		scanned := 0
		for r, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Picks: picks}) {
			require.NoError(t, err)
			scanned += len(r.Versions)
		}
		t.Logf("%d columns as of %d in %v, by a scan in %v", scanned, to, took, time.Since(began))
		require.Less(t, took, bound)
		require.Less(t, time.Since(began), bound)
		require.Len(t, rows[0].Versions, scanned)
		return scanned
	}
	require.Equal(t, columns, read(oracle.Max))
	require.Equal(t, columns, read(10+versions/2))
	require.Equal(t, columns, read(10))
	require.Zero(t, read(9))
	slowest = 0
	for c := 0; c < columns; c += 256 {
		edits := make([]rowstore.Edit, min(256, columns-c))
		for i := range edits {
			edits[i] = rowstore.DeleteRange(rowstore.Write, name(c+i), 0, 8+versions)
		}
		apply(edits)
	}
	t.Logf("collected, the slowest mutation %v", slowest)
	require.Less(t, slowest, bound)
	require.Equal(t, columns, read(oracle.Max))
	require.Zero(t, read(8+versions))
}

// TestSmallBesideLargeGroup: a group of very many rows holds them, and with them most of
// the stripes, for as long as it takes to check and write them, and not while it syncs.
func TestSmallBesideLargeGroup(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Options{Path: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	const rows = 40_000
	large := rowstore.Group{Draw: true}
	for i := range rows {
		large.Mutations = append(large.Mutations, rowstore.Mutation{
			Table: "t", Row: fmt.Sprintf("row%06d", i),
			Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, "c", 0), rowstore.Absent(rowstore.Write, "c", 1)},
			Edits:      []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.Drawn, []byte("value"))},
		})
	}
	var done atomic.Bool
	var slowest, took time.Duration
	var wg sync.WaitGroup
	wg.Go(func() {
		defer done.Store(true)
		began := time.Now()
		out, err := s.Group(t.Context(), []rowstore.Group{large})
		took = time.Since(began)
		if err != nil || !out[0].Applied {
			t.Errorf("the large group: %v, %+v", err, out)
		}
	})
	n := 0
	for ; !done.Load(); n++ {
		began := time.Now()
		out, err := s.Apply(t.Context(), []rowstore.Mutation{{
			Table: "small", Row: fmt.Sprint(n % 64), Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.Timestamp(n+1), nil)},
		}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		require.NoError(t, out[0].Err)
		slowest = max(slowest, time.Since(began))
	}
	wg.Wait()
	t.Logf("a group of %d rows took %v; beside it %d small changes, the slowest %v", rows, took, n, slowest)
	require.Positive(t, n)
	require.LessOrEqual(t, slowest, took+time.Second, "nobody waits longer than for the group")
}
