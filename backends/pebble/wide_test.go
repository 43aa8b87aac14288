package pebble

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestWideDeepRow has a row of many columns with many versions each: written, read as of
// snapshots and collected. A row of a tenth of the columns shows what each call should cost: ten
// times as much, where the square of something would be a hundred times.
func TestWideDeepRow(t *testing.T) {
	t.Parallel()
	const columns, versions, at, share = 5_000, 8, 100, 10
	s, err := Open(t.Context(), Options{})
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	name := func(i int) string { return fmt.Sprintf("column%05d", i) }
	width := map[string]int{"narrow": columns / share, "wide": columns}
	for row, columns := range width {
		for v := range versions {
			for c := 0; c < columns; c += at {
				edits := make([]rowstore.Edit, at)
				for i := range edits {
					edits[i] = rowstore.Put(rowstore.Write, name(c+i), rowstore.Timestamp(10+v), []byte("value"))
				}
				applyEdits(t, s, row, edits)
			}
		}
	}
	compare := func(what string, tries int, f func(row string) time.Duration) {
		t.Helper()
		narrow := shortest(tries, func() time.Duration { return f("narrow") })
		wide := shortest(tries, func() time.Duration { return f("wide") })
		t.Logf("%s: %v of %d columns, %v of %d", what, narrow, width["narrow"], wide, width["wide"])
		require.Less(t, wide, 5*share*narrow, what)
	}
	for to, has := range map[rowstore.Timestamp]int{oracle.Max: 1, 10 + versions/2: 1, 10: 1, 9: 0} {
		for row, columns := range width {
			n, _ := readAsOf(t, s, row, to)
			require.Equal(t, has*columns, n)
		}
	}
	compare("read", 3, func(row string) time.Duration {
		_, took := readAsOf(t, s, row, 10+versions/2)
		return took
	})
	// A scan that names all columns does not look through all names for each of them.
	all := shortest(3, func() time.Duration { return scanWide(t, s, "wide", columns, picksAsOf(nil, rowstore.AllColumns)) })
	var named []rowstore.Selector
	for i := range columns {
		named = picksAsOf(named, name(i))
	}
	byName := shortest(3, func() time.Duration { return scanWide(t, s, "wide", columns, named) })
	t.Logf("a scan of all columns %v, and of the same by their names %v", all, byName)
	require.Less(t, byName, 12*all)
	compare("collect", 1, func(row string) time.Duration {
		began := time.Now()
		for c := 0; c < width[row]; c += 250 {
			edits := make([]rowstore.Edit, 250)
			for i := range edits {
				edits[i] = rowstore.DeleteRange(rowstore.Write, name(c+i), 0, 8+versions)
			}
			applyEdits(t, s, row, edits)
		}
		return time.Since(began)
	})
	for row, columns := range width {
		n, _ := readAsOf(t, s, row, oracle.Max)
		require.Equal(t, columns, n)
		n, _ = readAsOf(t, s, row, 8+versions)
		require.Zero(t, n)
	}
}

func picksAsOf(to []rowstore.Selector, column string) []rowstore.Selector {
	return append(to,
		rowstore.Selector{Family: rowstore.Lock, Column: column, To: oracle.Max, Limit: 1},
		rowstore.Selector{Family: rowstore.Write, Column: column, To: oracle.Max, Limit: 1},
	)
}

// scanWide scans a row that has so many columns.
func scanWide(t *testing.T, s *Store, row string, columns int, picks []rowstore.Selector) time.Duration {
	t.Helper()
	began, n := time.Now(), 0
	for r, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", From: row, To: row + "\x00", Selectors: picks}) {
		require.NoError(t, err)
		n += len(r.Versions)
	}
	took := time.Since(began)
	require.Equal(t, columns, n)
	return took
}

// TestScanOfAWideRowEndsWithItsContext: the context is looked at inside a row too.
func TestScanOfAWideRowEndsWithItsContext(t *testing.T) {
	t.Parallel()
	const columns = 20 * ctxSteps
	s, err := Open(t.Context(), Options{})
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	var edits []rowstore.Edit
	var named []rowstore.Selector
	for i := range columns {
		name := fmt.Sprintf("column%05d", i)
		edits, named = append(edits, rowstore.Put(rowstore.Write, name, 10, nil)), picksAsOf(named, "none "+name)
	}
	applyEdits(t, s, "wide", edits)
	for what, picks := range map[string][]rowstore.Selector{
		"all columns": picksAsOf(nil, rowstore.AllColumns), "names that the row has not": named,
	} {
		const many = 1 << 30
		ctx := &endsAfter{Context: t.Context()}
		ctx.asks.Store(many)
		scan := func() (n int, err error) {
			for row, serr := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: picks}) {
				n, err = n+len(row.Versions), serr
			}
			return n, err
		}
		_, err := scan()
		require.NoError(t, err, what)
		asked := many - ctx.asks.Load()
		require.GreaterOrEqual(t, asked, int64(columns/ctxSteps), what)
		ctx.asks.Store(asked / 2)
		n, err := scan()
		require.ErrorIs(t, err, context.Canceled, what)
		require.Zero(t, n, what)
	}
}

// applyEdits applies a mutation of a row, and tells how long it took.
func applyEdits(t *testing.T, s *Store, row string, edits []rowstore.Edit) time.Duration {
	t.Helper()
	began := time.Now()
	out, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: row, Edits: edits}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.NoError(t, out[0].Err)
	return time.Since(began)
}

// readAsOf reads and scans a row as of a timestamp, and tells how many columns have a
// version then, and how long it took.
func readAsOf(t *testing.T, s *Store, row string, to rowstore.Timestamp) (n int, took time.Duration) {
	t.Helper()
	picks := picksAsOf(nil, rowstore.AllColumns)
	picks[1].To = to
	began := time.Now()
	rows, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: row, Selectors: picks}})
	require.NoError(t, err)
	scanned := 0
	for r, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", From: row, To: row + "\x00", Selectors: picks}) {
		require.NoError(t, err)
		scanned += len(r.Versions)
	}
	took = time.Since(began)
	require.Len(t, rows[0].Versions, scanned)
	return scanned, took
}

// shortest is the shortest of a few, which a busy machine spoils least.
func shortest(tries int, f func() time.Duration) time.Duration {
	took := f()
	for range tries - 1 {
		took = min(took, f())
	}
	return took
}

// TestSmallBesideLargeGroup: a group of very many rows holds them, and with them most of
// the stripes, for as long as it takes to check and write them, and not while it syncs.
func TestSmallBesideLargeGroup(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), Options{Path: t.TempDir()})
	require.NoError(t, err)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	const rows = 10_000
	large := rowstore.Group{AssignTimestamp: true}
	for i := range rows {
		large.Mutations = append(large.Mutations, rowstore.Mutation{
			Table: "t", Row: fmt.Sprintf("row%06d", i),
			Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, "c", 0), rowstore.Absent(rowstore.Write, "c", 1)},
			Edits:      []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, []byte("value"))},
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
