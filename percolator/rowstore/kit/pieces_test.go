package kit_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// sliceCursor walks over sorted keys; the value of each is its key.
type sliceCursor struct {
	keys []string
	at   int
}

func (c *sliceCursor) here() (k, v []byte) {
	if c.at < 0 || c.at >= len(c.keys) {
		return nil, nil
	}
	return []byte(c.keys[c.at]), []byte(c.keys[c.at])
}

func (c *sliceCursor) Seek(key []byte) (k, v []byte) {
	c.at, _ = slices.BinarySearch(c.keys, string(key))
	return c.here()
}
func (c *sliceCursor) Next() (k, v []byte) { c.at++; return c.here() }
func (c *sliceCursor) Prev() (k, v []byte) { c.at--; return c.here() }
func (c *sliceCursor) Last() (k, v []byte) { c.at = len(c.keys) - 1; return c.here() }

func TestCursorReader(t *testing.T) {
	t.Parallel()
	keys := []string{"a", "b", "c", "d"}
	r := kit.CursorReader(func() kit.Cursor { return &sliceCursor{keys: keys} })
	walk := func(walk func(from, to []byte, visit func(k, v []byte) bool) error, from, to string, most int) string {
		var upper []byte
		if to != "" {
			upper = []byte(to)
		}
		var got []string
		require.NoError(t, walk([]byte(from), upper, func(k, v []byte) bool {
			require.Equal(t, k, v)
			got = append(got, string(k))
			return len(got) != most
		}))
		return strings.Join(got, "")
	}
	for _, c := range []struct {
		from, to string
		most     int
		up, down string
	}{
		{"", "", 0, "abcd", "dcba"},
		{"b", "d", 0, "bc", "cb"},
		{"bb", "cc", 0, "c", "c"},
		{"b", "", 2, "bc", "dc"},
		{"e", "", 0, "", ""},
		{"", "a", 0, "", ""},
		{"", "z", 1, "a", "d"},
		{"c", "b", 0, "", ""},
	} {
		require.Equal(t, c.up, walk(r.Ascend, c.from, c.to, c.most), "%+v", c)
		require.Equal(t, c.down, walk(r.Descend, c.from, c.to, c.most), "%+v", c)
	}
	none := kit.CursorReader(func() kit.Cursor { return &sliceCursor{} })
	require.Empty(t, walk(none.Ascend, "", "", 0))
	require.Empty(t, walk(none.Descend, "", "x", 0))
}

func TestTurn(t *testing.T) {
	t.Parallel()
	turn := kit.NewTurn()
	release, err := turn.Take(t.Context())
	require.NoError(t, err)
	gone, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() {
		_, err := turn.Take(gone)
		waited <- err
	}()
	cancel()
	require.ErrorIs(t, <-waited, context.Canceled)
	release()
	release, err = turn.Take(t.Context())
	require.NoError(t, err)
	release()
}

func TestNames(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	collect := func(names []string, err error, most int) (got []string, last error) {
		for name, err := range kit.Names(func() ([]string, error) { return names, err }) {
			if err != nil {
				return got, err
			}
			if got = append(got, name); len(got) == most {
				break
			}
		}
		return got, nil
	}
	got, err := collect([]string{"a", "b"}, nil, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, got)
	got, err = collect([]string{"a", "b"}, broken, 1)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, got)
	_, err = collect(nil, broken, 0)
	require.ErrorIs(t, err, broken)
}

// plain hides the abilities of a store.
type plain struct{ rowstore.Store }

func TestFeatures(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	defer func() { require.NoError(t, s.Close()) }()
	all := kit.Features(s, map[string]string{rowstore.FeatureSplit: "by count"})
	require.Len(t, all, 9)
	for _, f := range all {
		require.True(t, f.Supported)
		require.Equal(t, f.Name == rowstore.FeatureSplit, f.Reason == "by count")
	}
	require.Equal(t, []rowstore.Feature{{Name: rowstore.FeatureWake, Reason: "no push"}},
		kit.Features(plain{s}, map[string]string{rowstore.FeatureWake: "no push"}))
}

// twoPhased is a store whose groups are never given timestamps.
type twoPhased struct{ *memstore.Store }

func (twoPhased) AssignsTimestamps(string) bool { return false }

func TestFeaturesOfGroupsWithoutTimestamps(t *testing.T) {
	t.Parallel()
	supported := map[string]bool{}
	for _, f := range kit.Features(twoPhased{memstore.New()}, map[string]string{rowstore.FeatureOnePhase: "no oracle"}) {
		supported[f.Name] = f.Supported
	}
	require.True(t, supported[rowstore.FeatureGroups])
	require.Contains(t, supported, rowstore.FeatureOnePhase)
	require.False(t, supported[rowstore.FeatureOnePhase])
}

func TestHubTellsWhatWasDone(t *testing.T) {
	t.Parallel()
	var h kit.Hub
	ctx, cancel := context.WithCancel(t.Context())
	woken := make(chan rowstore.Wake)
	ended := make(chan error, 1)
	go func() { ended <- h.Listen(ctx, func(w rowstore.Wake) { woken <- w }) }()
	require.Zero(t, <-woken)
	notify := func(table string) rowstore.Mutation {
		return rowstore.Mutation{Table: table, Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", 5, nil)}}
	}
	h.Applied([]rowstore.Mutation{notify("no"), notify("a")}, []rowstore.Outcome{{}, {Applied: true}})
	require.Equal(t, at("a", rowstore.Slot("a", "r")), <-woken)
	h.Committed([]rowstore.Group{{Mutations: []rowstore.Mutation{notify("no")}}, {Mutations: []rowstore.Mutation{{Table: "no"}, notify("b")}}},
		[]rowstore.GroupOutcome{{}, {Applied: true}})
	require.Equal(t, at("b", rowstore.Slot("b", "r")), <-woken)
	h.Applied([]rowstore.Mutation{notify("no")}, nil)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// TestAnswersAreCopies changes what went into a row, and what came out of it.
func TestAnswersAreCopies(t *testing.T) {
	t.Parallel()
	value := []byte("value")
	row := kit.Edited(nil, []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 5, value)}, 0)
	value[0] = 'X'
	all := []rowstore.Selector{{Family: rowstore.Write, To: 9}}
	got := kit.Select(row, all)
	require.Equal(t, "value", string(got[0].Value), "the row has what was put, whatever became of the caller's slice")
	got[0].Value[0] = 'Y'
	require.Equal(t, "value", string(kit.Select(row, all)[0].Value), "an answer belongs to the caller")
	out, err := kit.Judge(&rowstore.Mutation{Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 1)}}, "",
		func(f rowstore.Family, column string, from, to rowstore.Timestamp) (*rowstore.Version, error) {
			return kit.Newest(row, f, column, from, to), nil
		})
	require.NoError(t, err)
	require.False(t, out.Applied)
	out.Broke.Value[0] = 'Z'
	require.Equal(t, "value", string(kit.Select(row, all)[0].Value), "so does the version that broke a condition")
}

// TestJudge asks each kind of condition about versions below, at and above its timestamp.
func TestJudge(t *testing.T) {
	t.Parallel()
	const at = rowstore.Timestamp(5)
	for name, c := range map[string]struct {
		condition          rowstore.Condition
		below, same, above bool // whether it holds with a version there
		none               bool // and without any
	}{
		"absent":      {rowstore.Absent(rowstore.Lock, "c", at), true, false, false, true},
		"absent at":   {rowstore.AbsentAt("c", at), true, false, true, true},
		"present":     {rowstore.Present("c", at), false, true, false, false},
		"incarnation": {rowstore.SameIncarnation("inc"), true, true, true, true},
		"another":     {rowstore.SameIncarnation("other"), false, false, false, false},
	} {
		for ts, want := range map[rowstore.Timestamp]bool{0: c.none, at - 1: c.below, at: c.same, at + 1: c.above} {
			var row []rowstore.Version
			if ts != 0 {
				row = []rowstore.Version{{Family: rowstore.Lock, Column: "c", TS: ts, Value: []byte("v")}}
			}
			m := rowstore.Mutation{Conditions: []rowstore.Condition{rowstore.SameIncarnation("inc"), c.condition}}
			out, err := kit.Judge(&m, "inc", func(f rowstore.Family, column string, from, to rowstore.Timestamp) (*rowstore.Version, error) {
				return kit.Newest(row, f, column, from, to), nil
			})
			require.NoError(t, err)
			wanted := rowstore.Outcome{Applied: want, Incarnation: "inc"}
			if !want {
				wanted.Failed = 1
				if c.condition.Kind == rowstore.IfAbsent || c.condition.Kind == rowstore.IfAbsentAt {
					wanted.Broke = row[0]
				}
			}
			require.Equal(t, wanted, out, "%s, a version at %d", name, ts)
		}
	}
	broken := errors.New("broken")
	_, err := kit.Judge(&rowstore.Mutation{Conditions: []rowstore.Condition{rowstore.Present("c", at)}}, "",
		func(rowstore.Family, string, rowstore.Timestamp, rowstore.Timestamp) (*rowstore.Version, error) {
			return nil, broken
		})
	require.ErrorIs(t, err, broken)
}

// TestChecks wants both the rules of the seam and the store's limits to be checked.
func TestChecks(t *testing.T) {
	t.Parallel()
	limits := rowstore.Limits{Row: 3}
	for row, want := range map[string]error{"row": nil, "": rowstore.ErrInvalid, "long": rowstore.ErrTooLarge} {
		muts := []rowstore.Mutation{{Table: "t", Row: row}}
		require.ErrorIs(t, kit.CheckApply(limits, muts), want, row)
		require.ErrorIs(t, kit.CheckGroup(memstore.New(), limits, []rowstore.Group{{Mutations: muts}}), want, row)
	}
}

func TestEditedPutsTheAssignedTimestamp(t *testing.T) {
	t.Parallel()
	row := kit.Edited(nil, []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, nil), rowstore.Put(rowstore.Write, "d", 5, nil)}, 7)
	require.Equal(t, []rowstore.Version{{Family: rowstore.Write, Column: "c", TS: 7}, {Family: rowstore.Write, Column: "d", TS: 5}}, row)
}

func TestLayoutBatches(t *testing.T) {
	t.Parallel()
	db, l := &keyValues{}, kit.Layout{}
	put := func(row string, ts rowstore.Timestamp, conds ...rowstore.Condition) rowstore.Mutation {
		return rowstore.Mutation{Table: "t", Row: row, Conditions: conds, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", ts, nil)}}
	}
	present := rowstore.Present("c", 1)
	outs, changed, err := l.Apply(db, []rowstore.Mutation{put("a", 5), put("b", 5, present), {Table: "t", Row: "c"}}, "inc")
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, []rowstore.Outcome{{Applied: true, Incarnation: "inc"}, {Incarnation: "inc"}, {Applied: true, Incarnation: "inc"}}, outs)
	_, changed, err = l.Apply(db, []rowstore.Mutation{put("b", 5, present), {Table: "t", Row: "c"}}, "")
	require.NoError(t, err)
	require.False(t, changed, "a check is no change")

	draw := func(notAfter rowstore.Timestamp, muts ...rowstore.Mutation) rowstore.Group {
		return rowstore.Group{AssignTimestamp: true, NotAfter: notAfter, Mutations: muts}
	}
	gouts, changed, err := l.Groups(db, []rowstore.Group{
		draw(0, put("d", rowstore.AssignedTimestamp)),
		draw(10, put("e", rowstore.AssignedTimestamp)),
		{Mutations: []rowstore.Mutation{put("f", 7), put("g", 7, present)}},
		{Mutations: []rowstore.Mutation{put("f", 8)}},
	}, 20, "")
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, []rowstore.GroupOutcome{{Applied: true, Commit: 20}, {TooLate: true}, {Failed: 1}, {Applied: true}}, gouts)
	var at []string
	for _, row := range scan(t, l, db, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Write, To: 100}}}, 10) {
		for _, v := range row.Versions {
			at = append(at, row.Row+" "+strings.Repeat("i", int(v.TS))) //nolint:gosec // small
		}
	}
	require.Equal(t, []string{"a iiiii", "d " + strings.Repeat("i", 20), "f iiiiiiii"}, at)
	db.err = errors.New("broken")
	_, _, err = l.Apply(db, []rowstore.Mutation{put("a", 5, present)}, "")
	require.ErrorIs(t, err, db.err)
	_, _, err = l.Groups(db, []rowstore.Group{{Mutations: []rowstore.Mutation{put("a", 5)}}}, 0, "")
	require.ErrorIs(t, err, db.err)
}
