package redis

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// scanAt scans the newest writes of the column c at a snapshot, and returns the rows' timestamps by their keys.
func scanAt(t *testing.T, s *direct, r rowstore.ScanRange, at *rowstore.ScanSnapshot, meanwhile ...func()) map[string]rowstore.Timestamp {
	t.Helper()
	r.Table, r.Snapshot = "t", at
	r.Selectors = []rowstore.Selector{{Family: rowstore.Lock, Column: "c", To: rowstore.AssignedTimestamp, Limit: 1}, {Family: rowstore.Write, Column: "c", To: rowstore.AssignedTimestamp, Limit: 1}}
	seen := map[string]rowstore.Timestamp{}
	for row, err := range s.Scan(t.Context(), r) {
		require.NoError(t, err)
		for _, f := range meanwhile {
			f()
		}
		meanwhile = nil
		seen[row.Row] = row.Newest(rowstore.Write, "c").TS
	}
	return seen
}

// In a store of one partition the script that reads a page draws the timestamp, so a short scan is one run. It says how
// old its rows are, unless one was so wide that it was read in pieces, after the page.
func TestShortScanIsOneRun(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	c := admin(t, srv.URL)
	s := bare(t, with(t, srv.URL))
	const rows = scanOnlyFirst - 8
	for i := range rows {
		apply(t, s, put(fmt.Sprintf("r%04d", i), 5, "old"))
		apply(t, s, put(fmt.Sprintf("x%04d", i), 5, "old"))
		apply(t, s, put(fmt.Sprintf("r%04d", i), 9, "new"))
	}
	drawn, err := storeOracle{s}.Draw(t.Context(), 1)
	require.NoError(t, err)
	require.Len(t, scanAt(t, s, rowstore.ScanRange{To: "s"}, &rowstore.ScanSnapshot{}), rows, "the server has the script now")
	for _, at := range []rowstore.ScanSnapshot{{}, {Start: 7}, {Start: drawn}} {
		for _, reverse := range []bool{false, true} {
			before, given := runs(t, c), at.Start
			seen := scanAt(t, s, rowstore.ScanRange{To: "s", Reverse: reverse}, &at)
			require.Equal(t, 1, runs(t, c)-before, "runs of scripts")
			require.Len(t, seen, rows)
			want := rowstore.Timestamp(9)
			if given == 7 {
				want = 5
			}
			require.Equal(t, want, seen["r0003"])
			require.Greater(t, at.Latest, drawn)
			if given == 0 {
				require.Equal(t, at.Latest, at.Start)
			} else {
				require.Equal(t, given, at.Start)
			}
			at.Start = given
		}
	}
	// Over several pages all are at the timestamp of the first.
	at := &rowstore.ScanSnapshot{}
	before := runs(t, c)
	last := fmt.Sprintf("x%04d", rows-1)
	seen := scanAt(t, s, rowstore.ScanRange{}, at, func() {
		later, err := storeOracle{s}.Draw(t.Context(), 1)
		require.NoError(t, err)
		apply(t, s, put(last, later, "later"))
	})
	require.Len(t, seen, 2*rows)
	require.Equal(t, rowstore.Timestamp(5), seen[last], "as it was at the scan's timestamp")
	require.LessOrEqual(t, runs(t, c)-before, 2+2, "two pages, and what was done meanwhile")
	require.Greater(t, at.Latest, at.Start, "the second page has drawn another")

	wide := rowstore.Mutation{Table: "t", Row: "wide"}
	for i := range 20_000 {
		wide.Edits = append(wide.Edits, rowstore.Put(rowstore.Write, fmt.Sprintf("w%05d", i), 6, nil))
	}
	apply(t, s, wide)
	apply(t, s, put("wide2", 6, "after it"))
	at = &rowstore.ScanSnapshot{}
	n := 0
	for row, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", From: "w", Snapshot: at, Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: rowstore.AllColumns, To: rowstore.AssignedTimestamp, Limit: 1}}}) {
		require.NoError(t, err)
		if n += len(row.Versions); row.Row == "wide" {
			require.Zero(t, at.Latest, "it was read after the page")
		}
	}
	require.Greater(t, n, 20_000)
	require.Greater(t, at.Start, drawn)
	require.Less(t, at.Start, oracle.Max)
}

// In one of several partitions the timestamp is drawn before.
func TestScanAtASnapshotOfPartitions(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.NewRedis(t, nil).URL, "partitions", "4"))
	for i := range 100 {
		apply(t, s, put(fmt.Sprintf("r%04d", i), 5, "v"))
	}
	drawn, err := storeOracle{s}.Draw(t.Context(), 1)
	require.NoError(t, err)
	at := &rowstore.ScanSnapshot{}
	require.Len(t, scanAt(t, s, rowstore.ScanRange{}, at), 100)
	require.Greater(t, at.Start, drawn)
	require.Zero(t, at.Latest)
}
