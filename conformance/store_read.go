package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func readTests() []test {
	return []test{
		{"PickRangeIsClosed", Reads, pickRangeIsClosed},
		{"PickLimitOfEachColumn", Reads, pickLimitOfEachColumn},
		{"PickOfOneColumn", Reads, pickOfOneColumn},
		{"PicksMakeAUnion", Reads, picksMakeAUnion},
		{"VersionsAreOrdered", Reads, versionsAreOrdered},
		{"AbsentRows", Reads, absentRows},
		{"AnswersInOrder", Reads, answersInOrder},
		{"SameRowTwiceInARead", Reads, sameRowTwiceInARead},
		{"NilAndEmptyValues", Reads, nilAndEmptyValues},
		{"RandomPicks", Reads, randomPicks},
	}
}

func pickRangeIsClosed(t testing.TB, e *env) {
	h := e.harness(t)
	stamps := []rowstore.Timestamp{1, 3, 4, 7, oracle.Max - 1, oracle.Max}
	for _, f := range []rowstore.Family{rowstore.Write, rowstore.Data, rowstore.Notify} {
		row := fmt.Sprintf("family%d", f)
		for _, ts := range stamps {
			h.put(row, write(ver(f, "c", ts, num(ts))))
		}
		bounds := []rowstore.Timestamp{0, 1, 2, 3, 4, 5, 7, 8, oracle.Max - 1, oracle.Max}
		for _, from := range bounds {
			for _, to := range bounds {
				var want []rowstore.Version
				for _, ts := range stamps {
					if from <= ts && ts <= to {
						want = append(want, ver(f, "c", ts, num(ts)))
					}
				}
				for _, column := range []string{"c", rowstore.AllColumns} {
					got := h.read(row, rowstore.Selector{Family: f, Column: column, From: from, To: to})
					require.Equal(t, versions(want...), got, "family %d, column %q, [%d, %d]", f, column, from, to)
				}
			}
		}
	}
	for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Mark} {
		row := fmt.Sprintf("family%d", f)
		h.put(row, write(ver(f, "c", 5, "x")))
		for _, r := range []struct {
			from, to rowstore.Timestamp
			match    bool
		}{{0, 4, false}, {0, 5, true}, {5, 5, true}, {5, oracle.Max, true}, {6, oracle.Max, false}, {6, 4, false}, {5, 4, false}, {0, oracle.Max, true}} {
			for _, column := range []string{"c", rowstore.AllColumns} {
				got := h.read(row, rowstore.Selector{Family: f, Column: column, From: r.from, To: r.to, Limit: 1})
				require.Equal(t, r.match, len(got) == 1, "family %d, column %q, [%d, %d]: %v", f, column, r.from, r.to, got)
			}
		}
	}
}

func pickLimitOfEachColumn(t testing.TB, e *env) {
	h := e.harness(t)
	for _, f := range []rowstore.Family{rowstore.Write, rowstore.Data, rowstore.Notify} {
		row := fmt.Sprintf("family%d", f)
		counts := map[string]int{"a": 1, "b": 5, "c": 3}
		for column, n := range counts {
			for ts := 1; ts <= n; ts++ {
				h.put(row, write(ver(f, column, rowstore.Timestamp(ts), fmt.Sprint(ts))))
			}
		}
		for limit := range 7 {
			for _, to := range []rowstore.Timestamp{2, 4, oracle.Max} {
				var want, ofB []rowstore.Version
				for column, n := range counts {
					newest := min(n, int(min(to, 100))) //nolint:gosec // small
					for k := 0; k < newest && (limit == 0 || k < limit); k++ {
						v := ver(f, column, rowstore.Timestamp(newest-k), fmt.Sprint(newest-k)) //nolint:gosec // positive
						want = append(want, v)
						if column == "b" {
							ofB = append(ofB, v)
						}
					}
				}
				require.Equal(t, versions(want...), h.read(row, rowstore.Selector{Family: f, To: to, Limit: limit}), "limit %d up to %d", limit, to)
				require.Equal(t, versions(ofB...), h.read(row, rowstore.Selector{Family: f, Column: "b", To: to, Limit: limit}), "limit %d up to %d", limit, to)
			}
		}
	}
}

func pickOfOneColumn(t testing.TB, e *env) {
	h := e.harness(t)
	columns := []string{"a", "a\x00", "a\x00b", "a\x01", "a\xff", "aa", "b"}
	for _, f := range families {
		var puts []rowstore.Edit
		for _, c := range columns {
			puts = append(puts, write(ver(f, c, 5, c)))
		}
		h.put("row", puts...)
	}
	for _, f := range families {
		for _, c := range columns {
			require.Equal(t, versions(ver(f, c, 5, c)), h.read("row", rowstore.Selector{Family: f, Column: c, To: oracle.Max}))
		}
		require.Empty(t, h.read("row", rowstore.Selector{Family: f, Column: "none", To: oracle.Max}))
		require.Len(t, h.read("row", rowstore.Selector{Family: f, To: oracle.Max, Limit: 1}), len(columns), "AllColumns is every column of that family")
	}
}

// picksMakeAUnion reads by several selectors at once. It is long because it has a table of them.
func picksMakeAUnion(t testing.TB, e *env) {
	h := e.harness(t)
	var all []rowstore.Version
	for _, c := range []string{"a", "b"} {
		for ts := rowstore.Timestamp(1); ts <= 6; ts++ {
			all = append(all, ver(rowstore.Write, c, ts, fmt.Sprint(c, ts)))
		}
		all = append(all, ver(rowstore.Lock, c, 6, "lock"))
	}
	for _, v := range all {
		h.put("row", write(v))
	}
	only := func(keep func(v rowstore.Version) bool) []rowstore.Version {
		return versions(slices.DeleteFunc(slices.Clone(all), func(v rowstore.Version) bool { return !keep(v) })...)
	}
	for _, c := range []struct {
		name  string
		picks []rowstore.Selector
		want  []rowstore.Version
	}{
		{
			"the same twice",
			[]rowstore.Selector{pick(rowstore.Write), pick(rowstore.Write)},
			only(func(v rowstore.Version) bool { return v.Family == rowstore.Write }),
		},
		{
			"overlapping ranges",
			[]rowstore.Selector{{Family: rowstore.Write, Column: "a", From: 1, To: 4}, {Family: rowstore.Write, Column: "a", From: 3, To: 5}},
			only(func(v rowstore.Version) bool { return v.Family == rowstore.Write && v.Column == "a" && v.TS <= 5 }),
		},
		{
			"ranges apart",
			[]rowstore.Selector{{Family: rowstore.Write, Column: "a", From: 5, To: 6}, {Family: rowstore.Write, Column: "a", From: 1, To: 2}},
			only(func(v rowstore.Version) bool {
				return v.Family == rowstore.Write && v.Column == "a" && (v.TS <= 2 || v.TS >= 5)
			}),
		},
		{
			"the newest, and a range with it",
			[]rowstore.Selector{{Family: rowstore.Write, To: oracle.Max, Limit: 1}, {Family: rowstore.Write, Column: "b", From: 4, To: 6}},
			only(func(v rowstore.Version) bool {
				return v.Family == rowstore.Write && (v.TS == 6 || v.Column == "b" && v.TS >= 4)
			}),
		},
		{
			"each pick has its own limit",
			[]rowstore.Selector{{Family: rowstore.Write, Column: "a", To: 3, Limit: 1}, {Family: rowstore.Write, Column: "a", To: 6, Limit: 2}},
			only(func(v rowstore.Version) bool {
				return v.Family == rowstore.Write && v.Column == "a" && (v.TS == 3 || v.TS >= 5)
			}),
		},
		{
			"a column and every column",
			[]rowstore.Selector{{Family: rowstore.Write, Column: "a", To: 6, Limit: 3}, {Family: rowstore.Write, To: 2, Limit: 1}},
			only(func(v rowstore.Version) bool {
				return v.Family == rowstore.Write && (v.TS == 2 || v.Column == "a" && v.TS >= 4)
			}),
		},
		{
			"lock and write, as a reader asks",
			[]rowstore.Selector{{Family: rowstore.Write, Column: "a", To: 4, Limit: 1}, {Family: rowstore.Lock, Column: "a", To: 4, Limit: 1}},
			only(func(v rowstore.Version) bool { return v.Family == rowstore.Write && v.Column == "a" && v.TS == 4 }),
		},
		{
			"the lock as well",
			[]rowstore.Selector{{Family: rowstore.Write, Column: "a", To: 6, Limit: 1}, {Family: rowstore.Lock, Column: "a", To: 6, Limit: 1}},
			only(func(v rowstore.Version) bool { return v.Column == "a" && v.TS == 6 }),
		},
		{
			"an empty range with another",
			[]rowstore.Selector{{Family: rowstore.Write, From: 4, To: 3}, {Family: rowstore.Lock, To: 6}},
			only(func(v rowstore.Version) bool { return v.Family == rowstore.Lock }),
		},
		{"everything", everything(), only(func(rowstore.Version) bool { return true })},
	} {
		require.Equal(t, c.want, h.read("row", c.picks...), c.name)
		rows := h.scan(rowstore.ScanRange{Selectors: c.picks})
		require.Len(t, rows, 1, c.name)
		require.Equal(t, c.want, rows[0].Versions, "scanned: %s", c.name)
	}
}

func versionsAreOrdered(t testing.TB, e *env) {
	h := e.harness(t)
	rng := seeded(t)
	var all []rowstore.Version
	columns := []string{"b", "a", "\xff", "\x00", "a\x00", "aa", "Z", "é"}
	for _, f := range families {
		for _, c := range columns {
			if f == rowstore.Lock || f == rowstore.Mark {
				all = append(all, ver(f, c, 50, ""))
				continue
			}
			for range 4 {
				ts := rowstore.Timestamp(rng.Uint64N(uint64(oracle.Max))) + 1
				all = append(all, ver(f, c, ts, "x"))
			}
		}
	}
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, v := range all {
		h.put("row", write(v))
	}
	want := versions(all...)
	require.NoError(t, ordered(want))
	require.Equal(t, want, h.all("row"))
	picks := everything()
	slices.Reverse(picks)
	require.Equal(t, want, h.read("row", picks...), "the order of the picks does not matter")
	require.Equal(t, want, h.scan(rowstore.ScanRange{Selectors: picks})[0].Versions)
	require.Equal(t, want, h.scan(rowstore.ScanRange{Selectors: picks, Reverse: true})[0].Versions, "a reverse scan reverses rows, not versions")
}

func absentRows(t testing.TB, e *env) {
	h := e.harness(t)
	require.Empty(t, h.all("nowhere"))
	h.put("row", write(ver(rowstore.Write, "c", 5, "x")))
	rows, err := h.s.Read(h.ctx, []rowstore.RowRead{
		{Table: "t", Row: "ro", Selectors: everything()},
		{Table: "t", Row: "row", Selectors: everything()},
		{Table: "t", Row: "row\x00", Selectors: everything()},
		{Table: "T", Row: "row", Selectors: everything()},
		{Table: "t", Row: "row", Selectors: []rowstore.Selector{pick(rowstore.Lock)}},
	})
	require.NoError(t, err)
	require.Len(t, rows, 5)
	for i := range rows {
		require.NoError(t, rows[i].Err, "an absent row is no error")
		require.Equal(t, i == 1, len(rows[i].Versions) == 1, "read %d", i)
	}
	require.Equal(t, "row\x00", rows[2].Row)
	require.Equal(t, "T", rows[3].Table)
}

func answersInOrder(t testing.TB, e *env) {
	h := e.harness(t)
	const n = 60
	var muts []rowstore.Mutation
	for i := range n {
		m := mut(key(i), nil, write(ver(rowstore.Write, "c", 5, fmt.Sprint(i))))
		m.Table = fmt.Sprintf("t%d", i%3)
		muts = append(muts, m)
	}
	h.apply(muts...)
	var reads []rowstore.RowRead
	for i := range 2 * n {
		j := (i * 37) % (2 * n) // half of the rows do not exist
		reads = append(reads, rowstore.RowRead{Table: fmt.Sprintf("t%d", j%3), Row: key(j), Selectors: []rowstore.Selector{pick(rowstore.Write)}})
	}
	rows, err := h.s.Read(h.ctx, reads)
	require.NoError(t, err)
	require.Len(t, rows, len(reads))
	for i := range rows {
		j := (i * 37) % (2 * n)
		require.NoError(t, rows[i].Err)
		require.Equal(t, reads[i].Table, rows[i].Table)
		require.Equal(t, reads[i].Row, rows[i].Row)
		if j >= n {
			require.Empty(t, rows[i].Versions)
			continue
		}
		require.Equal(t, versions(ver(rowstore.Write, "c", 5, fmt.Sprint(j))), norm(rows[i].Versions))
	}
}

func sameRowTwiceInARead(t testing.TB, e *env) {
	h := e.harness(t)
	h.put("row", write(ver(rowstore.Write, "c", 5, "x")), write(ver(rowstore.Lock, "c", 7, "y")))
	rows, err := h.s.Read(h.ctx, []rowstore.RowRead{
		{Table: "t", Row: "row", Selectors: []rowstore.Selector{pick(rowstore.Write)}},
		{Table: "t", Row: "row", Selectors: []rowstore.Selector{pick(rowstore.Lock)}},
		{Table: "t", Row: "row", Selectors: []rowstore.Selector{pick(rowstore.Lock)}},
	})
	require.NoError(t, err)
	require.Len(t, rows, 3)
	require.Equal(t, versions(ver(rowstore.Write, "c", 5, "x")), norm(rows[0].Versions))
	require.Equal(t, versions(ver(rowstore.Lock, "c", 7, "y")), norm(rows[1].Versions))
	require.Equal(t, versions(ver(rowstore.Lock, "c", 7, "y")), norm(rows[2].Versions))
}

func nilAndEmptyValues(t testing.TB, e *env) {
	h := e.harness(t)
	var want []rowstore.Version
	for i, value := range [][]byte{nil, {}, {0}} {
		for _, f := range families {
			column := fmt.Sprintf("c%d", i)
			h.put("row", rowstore.Put(f, column, 5, value))
			want = append(want, rowstore.Version{Family: f, Column: column, TS: 5, Value: value})
		}
	}
	require.Equal(t, versions(want...), h.all("row"), "an empty value is a version all the same")
	require.Len(t, h.scan(rowstore.ScanRange{Selectors: everything()})[0].Versions, len(want))
}

// randomPicks compares reads and scans with a model of ten lines.
func randomPicks(t testing.TB, e *env) {
	h := e.harness(t)
	rng := seeded(t)
	columns := []string{"a", "b", "a\x00"}
	for i := range e.n(12, 3) {
		row := key(i)
		var all []rowstore.Version
		var puts []rowstore.Edit
		for _, f := range families {
			for _, c := range columns {
				for ts := rowstore.Timestamp(1); ts < 8; ts++ {
					if (f == rowstore.Lock || f == rowstore.Mark) && ts != 4 || rng.IntN(2) == 0 {
						continue
					}
					v := ver(f, c, ts, strings.Repeat("v", rng.IntN(400)))
					all, puts = append(all, v), append(puts, write(v))
				}
			}
		}
		h.put(row, puts...)
		for range e.n(40, 20) {
			var picks []rowstore.Selector
			for range 1 + rng.IntN(4) {
				p := rowstore.Selector{
					Family: families[rng.IntN(len(families))], From: rowstore.Timestamp(rng.Uint64N(9)),
					To: rowstore.Timestamp(rng.Uint64N(9)), Limit: rng.IntN(4),
				}
				if rng.IntN(2) == 0 {
					p.Column = columns[rng.IntN(len(columns))]
				}
				picks = append(picks, p)
			}
			want := selected(all, picks)
			require.Equal(t, want, h.read(row, picks...), "%+v", picks)
			rows := h.scan(rowstore.ScanRange{From: row, To: row + "\x00", Selectors: picks})
			require.Equal(t, len(want) > 0, len(rows) == 1, "a row is visited when a pick matches: %+v", picks)
			if len(rows) == 1 {
				require.Equal(t, want, rows[0].Versions, "scanned %+v", picks)
			}
		}
	}
}

// selected returns the versions that selectors select among all versions of a row.
func selected(all []rowstore.Version, picks []rowstore.Selector) []rowstore.Version {
	sorted := versions(all...)
	var out []rowstore.Version
	for _, v := range sorted {
		for _, p := range picks {
			if p.Family != v.Family || p.Column != rowstore.AllColumns && p.Column != v.Column || v.TS < p.From || v.TS > p.To {
				continue
			}
			newer := 0
			for _, w := range sorted {
				if w.Family == v.Family && w.Column == v.Column && w.TS > v.TS && w.TS <= p.To {
					newer++
				}
			}
			if p.Limit == 0 || newer < p.Limit {
				out = append(out, v)
				break
			}
		}
	}
	return versions(out...)
}
