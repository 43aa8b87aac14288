package redis

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// Notifications: all those of a column lie in one field.

// notesIn reads the notifications of a row of the table t.
func notesIn(t testing.TB, s rowstore.Store, row string) []rowstore.Version {
	t.Helper()
	rows, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: row, Selectors: []rowstore.Selector{
		{Family: rowstore.Notify, Column: rowstore.AllColumns, To: maxTS},
	}}})
	require.NoError(t, err)
	require.NoError(t, rows[0].Err)
	return rows[0].Versions
}

// randomNotes is edits of the notifications of two columns.
func randomNotes(r *rand.Rand, assigned bool) (edits []rowstore.Edit) {
	const most = 40
	ts := func() rowstore.Timestamp { return rowstore.Timestamp(r.IntN(most)) }
	for _, column := range []string{"c", "d"} {
		for range r.IntN(12) {
			var value []byte
			if r.IntN(2) == 0 {
				value = []byte(strings.Repeat("v", r.IntN(300)))
			}
			switch r.IntN(4) {
			case 0:
				edits = append(edits, rowstore.Put(rowstore.Notify, column, ts()+1, value))
			case 1:
				edits = append(edits, rowstore.Put(rowstore.Notify, column, maxTS-ts(), value)) // later than any that is drawn
			case 2:
				edits = append(edits, rowstore.Delete(rowstore.Notify, column, ts()))
			default:
				from := ts() + 1 // a range may hold nothing
				edits = append(edits, rowstore.DeleteRange(rowstore.Notify, column, from, from+rowstore.Timestamp(r.IntN(6))-1))
			}
		}
		if assigned && r.IntN(2) == 0 {
			edits = append(edits, rowstore.Put(rowstore.Notify, column, rowstore.AssignedTimestamp, []byte("drawn")))
		}
	}
	return edits
}

// Whatever is put and deleted together, the notifications are those of the reference.
func TestNotificationsAreMerged(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // a seed
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test
	s, mem := bare(t, with(t, testserver.Redis(t))), memstore.New()
	done := 0
	for done < 400 {
		assigned := r.IntN(2) == 0
		m := rowstore.Mutation{Table: "t", Row: strconv.Itoa(r.IntN(3)), Edits: randomNotes(r, assigned)}
		group := rowstore.Group{Mutations: []rowstore.Mutation{m}, AssignTimestamp: assigned}
		if rowstore.CheckGroups(s, []rowstore.Group{group}) != nil {
			continue // two edits of one version, perhaps
		}
		done++
		outs, err := s.Group(t.Context(), []rowstore.Group{group})
		require.NoError(t, err)
		require.NoError(t, outs[0].Err)
		require.True(t, outs[0].Applied)
		m.Edits = append([]rowstore.Edit(nil), m.Edits...)
		for i := range m.Edits {
			if e := &m.Edits[i]; e.TS == rowstore.AssignedTimestamp {
				e.TS = outs[0].Commit
			}
		}
		apply(t, mem, m)
		require.Equal(t, notesIn(t, mem, m.Row), notesIn(t, s, m.Row), "%+v", m)
	}
	// The index has the rows that have notifications.
	indexed := func(s rowstore.Store) (rows []string) {
		slots := []rowstore.SlotRange{{Last: rowstore.Slots - 1}}
		picks := []rowstore.Selector{{Family: rowstore.Notify, Column: rowstore.AllColumns, To: maxTS}}
		for row, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Slots: slots, Selectors: picks}) {
			require.NoError(t, err)
			rows = append(rows, row.Row)
		}
		return rows
	}
	require.ElementsMatch(t, indexed(mem), indexed(s))
}

// loggedBytes is how many bytes a server's append-only file has.
func loggedBytes(t testing.TB, c *goredis.Client) int64 {
	t.Helper()
	text, err := c.Info(context.Background(), "persistence").Result()
	require.NoError(t, err)
	for line := range strings.Lines(text) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "aof_current_size:"); ok {
			size, err := strconv.ParseInt(n, 10, 64)
			require.NoError(t, err)
			return size
		}
	}
	require.FailNow(t, "no append-only file", "%s", text)
	return 0
}

// Thousands of notifications of a column are put and removed by one call in time and space that are linear in their number.
func TestManyNotificationsOfAColumn(t *testing.T) {
	t.Parallel()
	const (
		notes = 5000
		bound = 100 * time.Millisecond // of the server's work; one by one they took seconds
	)
	srv := testserver.NewRedis(t, map[string]string{"appendonly": "yes", "appendfsync": "no", "auto-aof-rewrite-percentage": "0"})
	s := bare(t, with(t, srv.URL))
	c := admin(t, srv.URL)
	step := func(what string, m rowstore.Mutation) {
		took, size := worked(t, c), loggedBytes(t, c)
		apply(t, s, m)
		took, size = worked(t, c)-took, loggedBytes(t, c)-size
		t.Log(what, took, size)
		require.Less(t, took, bound, what)
		require.Less(t, size, int64(2*notes*(12+2)), what)
	}
	all := func(edit func(ts rowstore.Timestamp) rowstore.Edit) rowstore.Mutation {
		m := rowstore.Mutation{Table: "t", Row: "r"}
		for i := range notes {
			m.Edits = append(m.Edits, edit(rowstore.Timestamp(2*i+1)))
		}
		return m
	}
	step("puts", all(func(ts rowstore.Timestamp) rowstore.Edit { return rowstore.Put(rowstore.Notify, "c", ts, []byte("n")) }))
	require.Len(t, notesIn(t, s, "r"), notes)
	step("one more, and one in its place", rowstore.Mutation{Table: "t", Row: "r", Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Notify, "c", 2*notes+1, nil), rowstore.Delete(rowstore.Notify, "c", 2*notes-1),
	}})
	require.Len(t, notesIn(t, s, "r"), notes)
	apply(t, s, rowstore.Mutation{Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 2, nil)}})
	step("deletions", all(func(ts rowstore.Timestamp) rowstore.Edit { return rowstore.Delete(rowstore.Notify, "c", ts) }))
	left := notesIn(t, s, "r")
	require.Len(t, left, 2)
	require.EqualValues(t, 2*notes+1, left[0].TS)
	require.EqualValues(t, 2, left[1].TS)
}

// A field of notifications that cannot be read as far as an edit reaches refuses the edit before anything is written.
func TestDamagedNotifications(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	c := admin(t, testserver.Redis(t))
	apply(t, s, rowstore.Mutation{Table: "t", Row: "r", Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Notify, "c", 9, []byte("n")), rowstore.Put(rowstore.Notify, "c", 8, []byte("n")),
	}})
	key := s.parts[0].tag + "r:t/r"
	whole := c.HGet(t.Context(), key, "N1:c").Val()
	require.Len(t, whole, 26)
	for _, notes := range []string{whole[:25], whole[:20], whole + "x", whole[:21] + "\xff" + whole[22:]} {
		damage(t, s, "r", "N1:c", notes)
		before := c.HGetAll(t.Context(), key).Val()
		for _, e := range []rowstore.Edit{
			rowstore.Delete(rowstore.Notify, "c", 7), rowstore.DeleteRange(rowstore.Notify, "c", 0, 9), rowstore.Put(rowstore.Notify, "c", 7, nil),
		} {
			err := tryApply(t.Context(), s, rowstore.Mutation{Table: "t", Row: "r", Edits: []rowstore.Edit{e, rowstore.Put(rowstore.Write, "c", 9, nil)}})
			require.ErrorIs(t, err, rowstore.ErrCorrupt, "%q", notes)
			require.NotErrorIs(t, err, rowstore.ErrAmbiguous)
			require.Equal(t, before, c.HGetAll(t.Context(), key).Val(), "%q", notes)
		}
	}
}

// oldMutation writes a mutation as the scripts of earlier versions take it, which are in testdata: with an operation for each edit
// of a notification.
func oldMutation(e *writeEncoder, tag string, m *rowstore.Mutation) {
	e.head(tag, m)
	skip := e.later()
	for _, puts := range []bool{false, true} {
		for i := range m.Edits {
			switch ed := &m.Edits[i]; {
			case puts != (ed.Kind == rowstore.DoPut):
			case ed.Family == rowstore.Notify && puts:
				e.small(10)
				e.number(ed.Family, ed.Column)
				e.member(e.slot, m.Row, ed.Column)
				e.version(ed)
			case ed.Family == rowstore.Notify:
				hi := ed.TS
				if ed.Kind == rowstore.DoDeleteRange {
					hi = ed.To
				}
				e.small(11)
				e.number(ed.Family, ed.Column)
				e.member(e.slot, m.Row, ed.Column)
				e.halves(inv(hi))
				e.halves(inv(ed.TS))
			case puts:
				e.put(ed)
			default:
				e.remove(ed)
			}
		}
	}
	e.small(0)
	e.settle(skip)
}
