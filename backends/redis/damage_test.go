package redis

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/coalesce"
)

// Rows that somebody else has damaged: they fail alone.

// damagedCells are fields of a cell that cannot be read. The scripts fail at some, and only the program at others.
var damagedCells = []string{"", "\xff", "\xff\x05ab", "\xff\x04abc", "\x04", "\xff\x02" + strings.Repeat("\xff", 11), "\xff\x06" + strings.Repeat("\x00", 14)}

// damage puts garbage into a field of a row.
func damage(t testing.TB, s *direct, row, field, value string) {
	t.Helper()
	key := s.parts[s.partOf("t", row)].tag + "r:t/" + row
	c, err := s.nodes.holder(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, c.HSet(t.Context(), key, field, value).Err())
}

// requireOthersRead reads a damaged row beside whole ones.
func requireOthersRead(t *testing.T, s *Store, rows int, bad string) {
	t.Helper()
	newestOf := rowstore.Selector{Family: rowstore.Write, Column: "c", To: maxTS, Limit: 1}
	for _, picks := range [][]rowstore.Selector{{newestOf}, allVersions, {newestOf, {Family: rowstore.Write, Column: "c", To: 4}}} {
		var reads []rowstore.RowRead
		for i := range rows {
			reads = append(reads, rowstore.RowRead{Table: "t", Row: fmt.Sprint("r", i), Selectors: picks})
		}
		got, err := s.Read(t.Context(), reads)
		require.NoError(t, err)
		for i := range got {
			if reads[i].Row == bad {
				require.ErrorIs(t, got[i].Err, rowstore.ErrCorrupt)
				require.Empty(t, got[i].Versions)
			} else {
				require.NoError(t, got[i].Err)
				require.Len(t, got[i].Versions, 1)
			}
		}
	}
	// Strangers, whose calls may be merged.
	var strangers sync.WaitGroup
	for range 3 {
		for i := range rows {
			row := fmt.Sprint("r", i)
			check := func(what string, err error) {
				if row == bad && !errors.Is(err, rowstore.ErrCorrupt) || row != bad && err != nil {
					t.Errorf("%s of the row %s beside %s: %v", what, row, bad, err)
				}
			}
			strangers.Go(func() {
				_, err := tryNewest(t.Context(), s, row)
				check("read", err)
			})
			strangers.Go(func() {
				begun, err := s.ReadSnapshot(t.Context(), []rowstore.SnapshotRead{beginOf(row, "c")})
				if err == nil {
					err = begun[0].Rows[0].Err
				}
				check("begin", err)
			})
		}
	}
	strangers.Wait()
	begun, err := s.ReadSnapshot(t.Context(), []rowstore.SnapshotRead{beginOf(bad, "c"), beginOf("r0", "c")})
	require.NoError(t, err)
	require.ErrorIs(t, begun[0].Rows[0].Err, rowstore.ErrCorrupt)
	require.NoError(t, begun[1].Rows[0].Err)
	require.Len(t, begun[1].Rows[0].Versions, 1)
}

// One damaged cell fails the read of its own row, and of no other, also in one call with it.
func TestDamagedCellFailsAlone(t *testing.T) {
	t.Parallel()
	const rows, bad = 40, "r17"
	servers := map[string]string{"one server": testserver.Redis(t), "Cluster": testserver.NewRedisCluster(t, nil).URL}
	for name, url := range servers {
		for _, merges := range []string{"off", "on"} {
			t.Run(name+", coalesce "+merges, func(t *testing.T) {
				t.Parallel()
				s := openURL(t, with(t, url, "partitions", "4", "coalesce", merges)).(*Store)
				var muts []rowstore.Mutation
				for i := range rows {
					muts = append(muts, put(fmt.Sprint("r", i), 5, "v"))
				}
				out, err := s.Apply(t.Context(), muts, rowstore.ApplyOptions{})
				require.NoError(t, err)
				for i := range out {
					require.NoError(t, out[i].Err)
				}
				for _, cell := range damagedCells {
					damage(t, s.direct, bad, "W1:c", cell)
					requireOthersRead(t, s, rows, bad)
					_, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: bad, Selectors: allVersions}})
					require.ErrorIs(t, err, rowstore.ErrCorrupt, "alone, cell %q", cell)
					_, err = s.direct.readWide(t.Context(), &rowstore.RowRead{Table: "t", Row: bad, Selectors: allVersions})
					require.ErrorIs(t, err, rowstore.ErrCorrupt, "in pieces, cell %q", cell)
				}
			})
		}
	}
}

// A group that meets a damaged row fails for certain, and the others of its run are what they would be without it: written, at timestamps
// that nobody else gets, also where the server's clock does not help.
func TestDamagedCellInARun(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	c := admin(t, testserver.Redis(t))
	draw(t, s)
	setOracle(t, c, s, func(ms, bound int64) (int64, int64) { return ms + 3_600_000, bound + 3_600_000 })
	notify := rowstore.Put(rowstore.Notify, "c", rowstore.AssignedTimestamp, nil)
	check := func(name string, bad rowstore.Group, edits ...rowstore.Edit) {
		t.Helper()
		good, other := "good"+name, "other"+name
		both := coalesce.Together{
			Groups: []rowstore.Group{onePut(good, "1", edits...), bad, onePut(other, "2", edits...)}, Draws: []int{2},
			Begins: []rowstore.SnapshotRead{beginOf(good, "c")},
		}
		s.together(t.Context(), &both)
		require.NoError(t, both.GroupErr, name)
		require.ErrorIs(t, both.Outcomes[1].Err, rowstore.ErrCorrupt, name)
		require.NotErrorIs(t, both.Outcomes[1].Err, rowstore.ErrAmbiguous, name)
		require.True(t, both.Outcomes[0].Applied && both.Outcomes[2].Applied, name)
		require.NoError(t, both.BeginErr, name)
		require.NoError(t, both.DrawErr, name)
		requireRisen(t, &both)
		require.Len(t, both.Begun[0].Rows[0].Versions, 1)
		require.Greater(t, draw(t, s), both.Begun[0].TS)
	}
	for i, cell := range damagedCells {
		for kind, edits := range map[string][]rowstore.Edit{"quick": nil, "any": {notify}} {
			name := fmt.Sprint(kind, i)
			bad := onePut("bad"+name, "3", edits...)
			bad.Mutations = append([]rowstore.Mutation{onePut("before"+name, "4").Mutations[0]}, bad.Mutations...)
			damage(t, s, "bad"+name, "W1:c", cell)
			check(name, bad, edits...)
			key := s.parts[0].tag + "r:t/bad" + name
			require.Equal(t, map[string]string{"W1:c": cell}, c.HGetAll(t.Context(), key).Val(), "it is as it was")
			require.Empty(t, newest(t, s, "before"+name), "nothing of the group was written")
		}
	}
	for i, notes := range []string{"ab", strings.Repeat("\x00", 11) + "\x01", strings.Repeat("\xff", 20)} {
		name := fmt.Sprint("notes", i)
		damage(t, s, name, "N1:c", notes)
		check(name, onePut(name, "3", notify), notify)
		require.Equal(t, map[string]string{"N1:c": notes}, c.HGetAll(t.Context(), s.parts[0].tag+"r:t/"+name).Val())
	}
}

// A history that cannot be read is left as it is by what removes a part of it, and holds up nothing.
func TestDamagedHistoryInARun(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	c := admin(t, testserver.Redis(t))
	history := s.parts[0].tag + "h:t/r"
	for _, member := range []string{"C1:c", "C1:c" + strings.Repeat("\xff", 8) + "\x00", "C1:c" + strings.Repeat("\x00", 8) + "\x00\x30ab", "W1:cab"} {
		apply(t, s, put("r", 5, "v"))
		require.NoError(t, c.ZAdd(t.Context(), history, goredis.Z{Member: member}).Err())
		group := onePut("good", "1")
		group.Mutations[0].Conditions = nil
		out, err := s.Group(t.Context(), []rowstore.Group{group, {Mutations: []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{
			rowstore.DeleteRange(rowstore.Write, "c", 0, 9),
		}}}}})
		require.NoError(t, err, "%q", member)
		require.True(t, out[0].Applied && out[1].Applied, "%q", member)
		require.NoError(t, c.Del(t.Context(), history, s.parts[0].tag+"r:t/r").Err())
	}
}

// A run that the server breaks off, at a key of another kind, has stored what it has drawn for what it wrote.
func TestBrokenRunDrawsNothingTwice(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	c := admin(t, testserver.Redis(t))
	last := draw(t, s)
	setOracle(t, c, s, func(ms, bound int64) (int64, int64) { return ms + 3_600_000, bound + 3_600_000 })
	require.NoError(t, c.Set(t.Context(), s.parts[0].tag+"h:t/bad", "not a sorted set", 0).Err())
	bad := rowstore.Group{Mutations: []rowstore.Mutation{{Table: "t", Row: "bad", Edits: []rowstore.Edit{rowstore.Put(rowstore.Data, "c", 5, nil)}}}}
	for _, begins := range [][]rowstore.SnapshotRead{nil, {beginOf("good", "c")}} {
		good := onePut("good", "1")
		good.Mutations[0].Conditions = nil
		both := coalesce.Together{Groups: []rowstore.Group{good, bad}, Begins: begins, Draws: []int{7}}
		s.together(t.Context(), &both)
		require.ErrorIs(t, both.GroupErr, rowstore.ErrAmbiguous)
		require.NoError(t, both.DrawErr)
		rows, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "good", Selectors: allVersions}})
		require.NoError(t, err)
		written := rows[0].Newest(rowstore.Write, "c").TS
		require.Greater(t, written, last, "the group before was written")
		require.Greater(t, both.Firsts[0], written)
		last = draw(t, s)
	}
}

// A begin behind groups that meets a damaged cell fails alone.
func TestDamagedCellInABegin(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	for i, cell := range damagedCells {
		damage(t, s, "bad", "W1:c", cell)
		good := fmt.Sprint("good", i)
		both := coalesce.Together{Groups: []rowstore.Group{onePut(good, "1")}, Begins: []rowstore.SnapshotRead{beginOfTwo("bad"), beginOfTwo(good)}}
		s.together(t.Context(), &both)
		require.NoError(t, both.GroupErr, "%q", cell)
		require.True(t, both.Outcomes[0].Applied)
		if both.BeginErr != nil {
			require.ErrorIs(t, both.BeginErr, rowstore.ErrCorrupt, "%q", cell) // the merged store asks for each alone
			continue
		}
		require.ErrorIs(t, both.Begun[0].Rows[0].Err, rowstore.ErrCorrupt, "%q", cell)
		require.NoError(t, both.Begun[1].Rows[0].Err)
	}
}
