package redis

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
)

// beginOfTwo begins with a read of the two newest writes of the column c, and of other columns.
func beginOfTwo(row string) rowstore.SnapshotRead {
	at := rowstore.AssignedTimestamp
	return rowstore.SnapshotRead{Reads: []rowstore.RowRead{{Table: "t", Row: row, Selectors: []rowstore.Selector{
		{Family: rowstore.Lock, Column: "c", To: at, Limit: 1},
		{Family: rowstore.Write, Column: "c", To: at, Limit: 2},
		{Family: rowstore.Notify, Column: "c", To: at},
		{Family: rowstore.Lock, Column: "b", To: at, Limit: 1},
		{Family: rowstore.Write, Column: "b", To: at, Limit: 1},
		{Family: rowstore.Write, Column: "c2", To: at, Limit: 2},
	}}}}
}

// readLike is the same read, by the read script.
func readLike(t *testing.T, s *direct, ask *rowstore.SnapshotRead, ts rowstore.Timestamp) []rowstore.Version {
	t.Helper()
	read := ask.Reads[0]
	read.Selectors = slices.Clone(read.Selectors)
	for i := range read.Selectors {
		read.Selectors[i].To = ts
	}
	rows, err := s.Read(t.Context(), []rowstore.RowRead{read})
	require.NoError(t, err)
	return rows[0].Versions
}

// A begin that wants the two newest writes of a cell is one run, wherever the second one lies: nowhere,
// in the row's hash, or in its history, beside writes of other columns. It may share the run of groups.
func TestBeginWithTwoWrites(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
	srv := testserver.NewRedis(t, nil)
	c := admin(t, srv.URL)
	s := bare(t, with(t, srv.URL))
	ts := rowstore.Timestamp(1)
	compare := func(row string) int {
		ask := beginOfTwo(row)
		want := readLike(t, s, &ask, maxTS)
		before := runs(t, c)
		got, err := s.ReadSnapshot(t.Context(), []rowstore.SnapshotRead{ask})
		require.NoError(t, err)
		require.LessOrEqual(t, runs(t, c)-before, 1, "runs of scripts for row %q", row)
		require.Equal(t, want, got[0].Rows[0].Versions, row)

		group := coalesce.Together{Groups: []rowstore.Group{onePut(row+"-beside", "1")}, Begins: []rowstore.SnapshotRead{beginOf(row, "b"), beginOfTwo(row)}}
		if len(want)%2 == 0 { // the other script
			group.Groups = append(group.Groups, onePut(row+"-notified", "1", rowstore.Put(rowstore.Notify, "c", rowstore.AssignedTimestamp, nil)))
		}
		before = runs(t, c)
		s.together(t.Context(), &group)
		require.NoError(t, group.GroupErr)
		require.LessOrEqual(t, runs(t, c)-before, 1, "runs of scripts for groups and row %q", row)
		require.NoError(t, group.BeginErr)
		require.Equal(t, want, group.Begun[1].Rows[0].Versions, row)
		return len(want)
	}
	// The scripts are on the server after their first use.
	_, err := s.ReadSnapshot(t.Context(), []rowstore.SnapshotRead{beginOfTwo("none")})
	require.NoError(t, err)
	for _, edits := range [][]rowstore.Edit{nil, {rowstore.Put(rowstore.Notify, "c", rowstore.AssignedTimestamp, nil)}} {
		require.NoError(t, s.groupOne(onePut(fmt.Sprint("warm", len(edits)), "1", edits...)))
	}
	for n := range 10 {
		row, most := fmt.Sprint("row", n), 0
		for range 1 + r.IntN(35) {
			ts += rowstore.Timestamp(1 + r.IntN(3))
			m := put(row, ts, strings.Repeat("v", []int{3, 3, 3, 400}[r.IntN(4)]))
			switch r.IntN(4) {
			case 0:
				m.Edits[0].Column = []string{"b", "c2"}[r.IntN(2)]
			case 1:
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, "c", ts, []byte("n")))
			}
			apply(t, s, m)
			most = max(most, compare(row))
		}
		require.Positive(t, most)
	}
}

// A begin that asks for the newest write at all, in the future too, is one run: a worker asks so for leases with each beat.
func TestBeginWithTheNewestWrite(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	c := admin(t, srv.URL)
	s := bare(t, with(t, srv.URL))
	_, err := s.ReadSnapshot(t.Context(), []rowstore.SnapshotRead{beginOfTwo("none")}) // the script is on the server then
	require.NoError(t, err)
	ahead := maxTS - 7
	apply(t, s, put("row", 1, "old"))
	apply(t, s, put("row", ahead, "new"))
	for _, limit := range []int{1, 2} {
		read := rowstore.RowRead{Table: "t", Row: "row", Selectors: []rowstore.Selector{
			{Family: rowstore.Write, Column: "c", To: maxTS, Limit: limit},
			{Family: rowstore.Lock, Column: "c", To: maxTS},
			{Family: rowstore.Notify, Column: "b", To: maxTS, Limit: 1},
		}}
		want, err := s.Read(t.Context(), []rowstore.RowRead{read})
		require.NoError(t, err)
		require.Len(t, want[0].Versions, limit)
		require.Equal(t, ahead, want[0].Versions[0].TS)
		before := runs(t, c)
		got, err := s.ReadSnapshot(t.Context(), []rowstore.SnapshotRead{{Reads: []rowstore.RowRead{read}}})
		require.NoError(t, err)
		require.EqualValues(t, 1, runs(t, c)-before)
		require.Equal(t, want[0].Versions, got[0].Rows[0].Versions)
		require.Less(t, got[0].TS, ahead)
	}
}

// Older writes that version 2 put into the hash are read apart, however many fields the row has. Those of this version need
// no more than one run, also in a wide row.
func TestBeginWithTwoWritesOfVersion2(t *testing.T) {
	t.Parallel()
	for _, columns := range []int{0, 300} {
		srv := testserver.NewRedis(t, nil)
		url := with(t, srv.URL)
		c, p := admin(t, srv.URL), version2(t, url, 1)
		wide := rowstore.Mutation{Table: "t", Row: "row"}
		for i := range columns {
			wide.Edits = append(wide.Edits, rowstore.Put(rowstore.Write, fmt.Sprintf("x%03d", i), 1, []byte("x")))
		}
		for _, m := range []rowstore.Mutation{put("row", 1, "old"), put("row", 2, "new"), wide} {
			if len(m.Edits) > 0 {
				_, err := p.mutate(t.Context(), m)
				require.NoError(t, err)
			}
		}
		s := bare(t, url)
		for _, of2 := range []bool{true, false} {
			ask := beginOfTwo("row")
			want := readLike(t, s, &ask, maxTS)
			require.Len(t, want, 2)
			for i := range 2 {
				before := runs(t, c)
				got, err := s.ReadSnapshot(t.Context(), []rowstore.SnapshotRead{beginOfTwo("row")})
				require.NoError(t, err)
				require.True(t, of2 || i == 0 || runs(t, c)-before == 1)
				require.Equal(t, want, got[0].Rows[0].Versions)
				both := coalesce.Together{Groups: []rowstore.Group{onePut("beside", "1")}, Begins: []rowstore.SnapshotRead{beginOfTwo("row")}}
				s.together(t.Context(), &both)
				require.NoError(t, both.GroupErr)
				require.NoError(t, both.BeginErr)
				require.Equal(t, want, both.Begun[0].Rows[0].Versions)
			}
			apply(t, s, put("row", 3, "newer"))
		}
	}
}

// A history that cannot be read fails the begin alone.
func TestBeginWithTwoWritesOverAWrongHistory(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	c := admin(t, srv.URL)
	s := bare(t, with(t, srv.URL))
	apply(t, s, put("row", 1, "v"))
	require.NoError(t, c.Set(t.Context(), s.parts[0].tag+"h:t/row", "not a sorted set", 0).Err())
	both := coalesce.Together{Groups: []rowstore.Group{onePut("beside", "1")}, Begins: []rowstore.SnapshotRead{beginOfTwo("row")}}
	s.together(t.Context(), &both)
	require.NoError(t, both.GroupErr)
	require.True(t, both.Outcomes[0].Applied)
	if both.BeginErr == nil {
		require.Error(t, both.Begun[0].Rows[0].Err)
	} else {
		require.NotErrorIs(t, both.BeginErr, rowstore.ErrAmbiguous)
	}
}

// The fields of older writes in the row's hash hold the newest ones, also where a long write is among them. So the second write of
// a cell is there, and nobody looks into the history, which a row of a few short writes does not even have.
func TestSecondWriteWithoutTheHistory(t *testing.T) {
	t.Parallel()
	srv := testserver.NewRedis(t, nil)
	c := admin(t, srv.URL)
	s := bare(t, with(t, srv.URL))
	looks := func() int { return callsOf(t, c, "zrangebylex") }
	check := func(row string, inHash bool, want ...rowstore.Timestamp) {
		t.Helper()
		before := looks()
		ask := beginOfTwo(row)
		got, err := s.ReadSnapshot(t.Context(), []rowstore.SnapshotRead{ask})
		require.NoError(t, err)
		require.Equal(t, got[0].Rows[0].Versions, readLike(t, s, &ask, maxTS))
		var found []rowstore.Timestamp
		for _, v := range got[0].Rows[0].Versions {
			found = append(found, v.TS)
		}
		require.Equal(t, want, found)
		require.Equal(t, inHash, looks() == before, "no look into the history")
	}
	long := strings.Repeat("v", 400)
	for _, row := range []string{"quick", "any"} {
		from := rowstore.Timestamp(1)
		write := func(ts rowstore.Timestamp, value string) rowstore.Timestamp {
			if row == "any" {
				apply(t, s, put(row, ts, value))
				return ts
			}
			g := onePut(row, value)
			g.Mutations[0].Conditions = []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", from), rowstore.Absent(rowstore.Lock, "c", 0), rowstore.Absent(rowstore.Mark, "c", from)}
			out, err := s.Group(t.Context(), []rowstore.Group{g})
			require.NoError(t, err)
			require.NoError(t, out[0].Err)
			require.True(t, out[0].Applied)
			from = out[0].Commit + 1
			return out[0].Commit
		}
		last := write(1, "v")
		check(row, true, last)
		for ts := rowstore.Timestamp(2); ts < 40; ts++ {
			value := "v"
			if ts%5 == 0 {
				value = long
			}
			before := last
			last = write(ts, value)
			// A long write goes to the history, and those behind it are in the hash again.
			check(row, (ts-1)%5 != 0, last, before)
		}
	}
}

// A write that lies ahead of the timestamp that is drawn, as a lease does, is not what a snapshot shows: it hides an older one, which has to
// be read anew. So it is where a begin shares the run of groups, and in a scan that draws.
func TestBeginBelowAWriteThatLiesAhead(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	for i, ts := range []rowstore.Timestamp{1, 2, maxTS - 7, maxTS - 6} {
		apply(t, s, put("row", ts, fmt.Sprint(i)))
	}
	apply(t, s, put("only", maxTS-7, "ahead"))
	var seen []rowstore.Timestamp
	timestamps := func(vs []rowstore.Version) []rowstore.Timestamp {
		seen = seen[:0]
		for _, v := range vs {
			seen = append(seen, v.TS)
		}
		return seen
	}
	for limit := 1; limit <= 2; limit++ {
		picks := []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: rowstore.AssignedTimestamp, Limit: limit}}
		ask := rowstore.SnapshotRead{Reads: []rowstore.RowRead{{Table: "t", Row: "row", Selectors: picks}, {Table: "t", Row: "only", Selectors: picks}}}
		want := []rowstore.Timestamp{2, 1}[:limit]
		got, err := s.ReadSnapshot(t.Context(), []rowstore.SnapshotRead{ask, beginOf("row", "b")})
		require.NoError(t, err)
		require.Equal(t, want, timestamps(got[0].Rows[0].Versions))
		require.Empty(t, got[0].Rows[1].Versions)

		both := coalesce.Together{Groups: []rowstore.Group{onePut(fmt.Sprint("beside", limit), "1")}, Begins: []rowstore.SnapshotRead{beginOf("row", "b"), ask}, Draws: []int{2}}
		s.together(t.Context(), &both)
		require.NoError(t, both.GroupErr)
		require.NoError(t, both.BeginErr)
		require.NoError(t, both.DrawErr)
		require.True(t, both.Outcomes[0].Applied)
		require.Len(t, both.Firsts, 1)
		require.Equal(t, want, timestamps(both.Begun[1].Rows[0].Versions))
		require.Empty(t, both.Begun[1].Rows[1].Versions)

		rows := map[string][]rowstore.Timestamp{}
		for row, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", To: "s", Selectors: picks, Snapshot: &rowstore.ScanSnapshot{}}) {
			require.NoError(t, err)
			rows[row.Row] = slices.Clone(timestamps(row.Versions))
		}
		require.Equal(t, want, rows["row"])
		require.NotContains(t, rows, "only")
	}
}
