package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

func scanTests() []test {
	return []test{
		{"ScanRanges", Scans, scanRanges},
		{"ScanLimit", Scans, scanLimit},
		{"ScanManyRows", Scans, scanManyRows},
		{"ScanPicks", Scans, scanPicks},
		{"ScanRowsOfOneFamily", Scans, scanRowsOfOneFamily},
		{"ScanLoopMayStop", Scans, scanLoopMayStop},
		{"ScanLoopMayCallTheStore", Scans, scanLoopMayCallTheStore},
		{"ScanLoopMayEditWhatItScans", Scans, scanLoopMayEditWhatItScans},
		{"ScansWithinScans", Scans, scansWithinScans},
		{"ScanTwice", Scans, scanTwice},
		{"ScanOfNotificationsAmongRows", Scans, scanOfNotificationsAmongRows},
		{"ScanDuringWrites", Scans, scanDuringWrites},
		{"ScanOfNotificationsDuringWrites", Scans, scanOfNotificationsDuringWrites},
		{"Tables", Scans, listOfTables},
		{"TablesLoopMayStopAndCall", Scans, tablesLoopMayStopAndCall},
	}
}

func scanRanges(t testing.TB, e *env) {
	h := e.harness(t)
	rows := []string{"a", "a\x00", "a\x00\x00", "a\x00b", "a\x01", "aa", "b", "b\xff", "b\xff\xff", "c", "\x00", "\xff", "\xff\xff", "é"}
	slices.Sort(rows)
	var muts []rowstore.Mutation
	for _, r := range rows {
		muts = append(muts, mut(r, nil, write(ver(rowstore.Write, "c", 5, r)), write(ver(rowstore.Notify, "c", 5, r))))
	}
	// Neighbours in the order of tables must not leak in.
	for _, table := range []string{"s", "t\x00", "tt", "u"} {
		muts = append(muts, rowstore.Mutation{Table: table, Row: "b", Edits: []rowstore.Edit{write(ver(rowstore.Write, "c", 5, table))}})
	}
	h.apply(muts...)
	bounds := append([]string{"", "0", "a\x00a", "b\xfe", "zz", "\xff\xff\xff"}, rows...)
	for _, family := range []rowstore.Family{rowstore.Write, rowstore.Notify} {
		for _, from := range bounds {
			for _, to := range bounds {
				want := []string{}
				for _, r := range rows {
					if r >= from && (to == "" || r < to) {
						want = append(want, r)
					}
				}
				s := rowstore.ScanRange{From: from, To: to, Selectors: []rowstore.Selector{pick(family)}}
				require.Equal(t, want, h.keys(s), "family %d, [%q, %q)", family, from, to)
				s.Reverse = true
				slices.Reverse(want)
				require.Equal(t, want, h.keys(s), "family %d, [%q, %q) in reverse", family, from, to)
			}
		}
	}
}

func scanLimit(t testing.TB, e *env) {
	h := e.harness(t)
	const n = 30
	var muts []rowstore.Mutation
	for i := range n {
		f := rowstore.Write
		if i%3 == 0 {
			f = rowstore.Lock // not selected: must not count against the limit
		}
		muts = append(muts, mut(key(i), nil, write(ver(f, "c", 5, "x"))))
	}
	h.apply(muts...)
	var all []string
	for i := range n {
		if i%3 != 0 {
			all = append(all, key(i))
		}
	}
	picks := []rowstore.Selector{pick(rowstore.Write)}
	for _, limit := range []int{0, 1, 2, 7, len(all) - 1, len(all), len(all) + 1, 1 << 30} {
		want := slices.Clone(all)
		if limit > 0 && limit < len(want) {
			want = want[:limit]
		}
		require.Equal(t, want, h.keys(rowstore.ScanRange{Selectors: picks, Limit: limit}), "limit %d", limit)
		want = slices.Clone(all)
		slices.Reverse(want)
		if limit > 0 && limit < len(want) {
			want = want[:limit]
		}
		require.Equal(t, want, h.keys(rowstore.ScanRange{Selectors: picks, Limit: limit, Reverse: true}), "limit %d in reverse", limit)
	}
	require.Equal(t, []string{key(11), key(13)}, h.keys(rowstore.ScanRange{From: key(11), To: key(20), Selectors: picks, Limit: 2}))
	require.Equal(t, []string{key(19), key(17)}, h.keys(rowstore.ScanRange{From: key(11), To: key(20), Selectors: picks, Limit: 2, Reverse: true}))
}

// scanManyRows crosses whatever a store reads at a time.
func scanManyRows(t testing.TB, e *env) {
	h := e.harness(t)
	n := e.n(5000, 2500)
	fill(h, "t", n, func(i int) []rowstore.Edit {
		return []rowstore.Edit{write(ver(rowstore.Write, "c", 5, fmt.Sprint(i))), write(ver(rowstore.Write, "d", rowstore.Timestamp(i+1), ""))} //nolint:gosec // positive
	})
	rows := h.scan(rowstore.ScanRange{Selectors: everything()})
	require.Len(t, rows, n)
	for i, r := range rows {
		require.Equal(t, key(i), r.Row)
		require.Equal(t, versions(ver(rowstore.Write, "c", 5, fmt.Sprint(i)), ver(rowstore.Write, "d", rowstore.Timestamp(i+1), "")), r.Versions) //nolint:gosec // positive
	}
	// Few matches among many rows, at both ends and between.
	s := rowstore.ScanRange{Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "d", From: 3, To: 3}}}
	require.Equal(t, []string{key(2)}, h.keys(s))
	s.Selectors[0].From, s.Selectors[0].To = rowstore.Timestamp(n), oracle.Max //nolint:gosec // positive
	require.Equal(t, []string{key(n - 1)}, h.keys(s))
	s.Reverse = true
	require.Equal(t, []string{key(n - 1)}, h.keys(s))
	s.Selectors[0].From, s.Selectors[0].To = 0, 1
	require.Equal(t, []string{key(0)}, h.keys(s))
	s.Selectors[0].From, s.Selectors[0].To = 1_000_000, 2_000_000
	require.Empty(t, h.keys(s))
}

// fill writes rows key(0) to key(n-1) of a table in batches.
func fill(h *harness, table string, n int, edits func(i int) []rowstore.Edit) {
	h.Helper()
	const batch = 250
	for i := 0; i < n; i += batch {
		var muts []rowstore.Mutation
		for j := i; j < min(i+batch, n); j++ {
			muts = append(muts, rowstore.Mutation{Table: table, Row: key(j), Edits: edits(j)})
		}
		for _, o := range h.apply(muts...) {
			require.True(h, o.Applied)
		}
	}
}

func scanPicks(t testing.TB, e *env) {
	h := e.harness(t)
	h.apply(
		mut("1", nil, write(ver(rowstore.Write, "a", 5, "x")), write(ver(rowstore.Lock, "b", 6, "x"))),
		mut("2", nil, write(ver(rowstore.Write, "a", 9, "x"))),
		mut("3", nil, write(ver(rowstore.Write, "b", 5, "x")), write(ver(rowstore.Write, "b", 3, "x"))),
		mut("4", nil, write(ver(rowstore.Mark, "a", 5, "x"))),
		mut("5", nil, write(ver(rowstore.Data, "a", 5, "x")), write(ver(rowstore.Notify, "z", 5, "x"))))
	for _, c := range []struct {
		picks []rowstore.Selector
		want  []string
	}{
		{[]rowstore.Selector{pick(rowstore.Write)}, []string{"1", "2", "3"}},
		{[]rowstore.Selector{{Family: rowstore.Write, To: 4}}, []string{"3"}},
		{[]rowstore.Selector{{Family: rowstore.Write, To: 5}}, []string{"1", "3"}},
		{[]rowstore.Selector{{Family: rowstore.Write, From: 6, To: oracle.Max}}, []string{"2"}},
		{[]rowstore.Selector{{Family: rowstore.Write, Column: "a", To: oracle.Max}}, []string{"1", "2"}},
		{[]rowstore.Selector{{Family: rowstore.Write, Column: "b", To: oracle.Max}, pick(rowstore.Lock)}, []string{"1", "3"}},
		{[]rowstore.Selector{pick(rowstore.Lock), pick(rowstore.Mark), pick(rowstore.Data)}, []string{"1", "4", "5"}},
		{[]rowstore.Selector{{Family: rowstore.Write, Column: "none", To: oracle.Max}}, []string{}},
		{[]rowstore.Selector{{Family: rowstore.Write, From: 7, To: 6}}, []string{}},
		{[]rowstore.Selector{{Family: rowstore.Notify, Column: "z", To: 5}}, []string{"5"}},
		{[]rowstore.Selector{{Family: rowstore.Notify, Column: "y", To: 5}}, []string{}},
		{[]rowstore.Selector{{Family: rowstore.Notify, To: 4}}, []string{}},
	} {
		require.Equal(t, c.want, h.keys(rowstore.ScanRange{Selectors: c.picks}), "%+v", c.picks)
		slices.Reverse(c.want)
		require.Equal(t, c.want, h.keys(rowstore.ScanRange{Selectors: c.picks, Reverse: true}), "%+v in reverse", c.picks)
	}
	require.Empty(t, h.keys(rowstore.ScanRange{Table: "none", Selectors: everything()}), "an absent table has no rows")
}

func scanRowsOfOneFamily(t testing.TB, e *env) {
	h := e.harness(t)
	for _, f := range families {
		h.put(fmt.Sprintf("only%d", f), write(ver(f, "c", 5, "x")))
	}
	h.put("marked and written", write(ver(rowstore.Mark, "c", 5, "x")), write(ver(rowstore.Write, "c", 5, "x")))
	require.Len(t, h.keys(rowstore.ScanRange{Selectors: everything()}), len(families)+1)
	for _, f := range families {
		want := []string{fmt.Sprintf("only%d", f)}
		if f == rowstore.Mark || f == rowstore.Write {
			want = append([]string{"marked and written"}, want...)
		}
		require.Equal(t, want, h.keys(rowstore.ScanRange{Selectors: []rowstore.Selector{pick(f)}}), "rows with a version of family %d", f)
		require.Equal(t, want, h.keys(rowstore.ScanRange{Selectors: []rowstore.Selector{{Family: f, Column: "c", From: 5, To: 5, Limit: 1}}}))
	}
}

func scanLoopMayStop(t testing.TB, e *env) {
	h := e.harness(t)
	fill(h, "t", 700, func(int) []rowstore.Edit { return []rowstore.Edit{write(ver(rowstore.Write, "c", 5, "x"))} })
	for _, reverse := range []bool{false, true} {
		for _, stop := range []int{1, 2, 100, 699} {
			n := 0
			for _, err := range h.s.Scan(h.ctx, rowstore.ScanRange{Table: "t", Selectors: everything(), Reverse: reverse}) {
				require.NoError(t, err)
				if n++; n == stop {
					break
				}
			}
			require.Equal(t, stop, n)
		}
	}
	// A store that leaked a connection for each stopped scan would be out of them.
	for range 100 {
		for _, err := range h.s.Scan(h.ctx, rowstore.ScanRange{Table: "t", Selectors: everything()}) {
			require.NoError(t, err)
			break
		}
	}
	require.Len(t, h.keys(rowstore.ScanRange{Selectors: everything()}), 700)
}

func scanLoopMayCallTheStore(t testing.TB, e *env) {
	h := e.harness(t)
	fill(h, "t", 300, func(int) []rowstore.Edit { return []rowstore.Edit{write(ver(rowstore.Write, "c", 5, "x"))} })
	n := 0
	for row, err := range h.s.Scan(h.ctx, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{pick(rowstore.Write)}}) {
		require.NoError(t, err)
		n++
		require.Len(t, h.all(row.Row), 1)
		out := h.apply(mut(row.Row, when(rowstore.Absent(rowstore.Lock, "c", 0)), write(ver(rowstore.Lock, "c", 6, "mine"))))
		require.True(t, out[0].Applied, "the row that the loop is at can be changed")
		if n%100 == 1 {
			require.Equal(t, []string{"t"}, h.tables())
			require.NotEmpty(t, h.keys(rowstore.ScanRange{From: row.Row, Limit: 10, Selectors: everything()}))
		}
	}
	require.Equal(t, 300, n)
	require.Len(t, h.keys(rowstore.ScanRange{Selectors: []rowstore.Selector{pick(rowstore.Lock)}}), 300)
}

// scanLoopMayEditWhatItScans takes out what the scan has visited, and so moves what is left of the table to its front. There are more rows
// than a store reads at a time.
func scanLoopMayEditWhatItScans(t testing.TB, e *env) {
	h := e.harness(t)
	n := e.n(2500, 1500)
	for _, reverse := range []bool{false, true} {
		fill(h, "t", n, func(i int) []rowstore.Edit {
			return []rowstore.Edit{write(ver(rowstore.Notify, "c", 5, "x")), write(ver(rowstore.Write, "c", 5, fmt.Sprint(i)))}
		})
		h.clearsWhatItVisits(rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{pick(rowstore.Notify)}, Reverse: reverse}, n)
		h.clearsWhatItVisits(rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{pick(rowstore.Write)}, Reverse: !reverse}, n)
	}
}

// slotsLoopMayClearWhatItScans clears notifications as a worker does, of more rows than a store reads at a time.
func slotsLoopMayClearWhatItScans(t testing.TB, e *env) {
	h := e.slots(t)
	n := e.n(2500, 1500)
	fill(h, "t", n, func(int) []rowstore.Edit { return []rowstore.Edit{notified(5)} })
	h.clearsWhatItVisits(rowstore.ScanRange{Table: "t", Slots: allSlots(), Selectors: []rowstore.Selector{pick(rowstore.Notify)}}, n)
}

// clearsWhatItVisits deletes from n rows what a scan selects of them, at 5 in column "c", while the scan visits them. It visits each once.
func (h *harness) clearsWhatItVisits(s rowstore.ScanRange, n int) {
	h.Helper()
	seen := map[string]int{}
	var visited []rowstore.Mutation
	remove := func() {
		for i, o := range h.apply(visited...) {
			require.True(h, o.Applied, "%+v", visited[i])
		}
		visited = nil
	}
	for row, err := range h.s.Scan(h.ctx, s) {
		require.NoError(h, err)
		seen[row.Row]++
		visited = append(visited, mut(row.Row, nil, rowstore.Delete(s.Selectors[0].Family, "c", 5)))
		// The first ones at once, as a worker does, and the others in batches.
		if len(seen) <= 100 || len(visited) == 50 {
			remove()
		}
	}
	if len(visited) > 0 {
		remove()
	}
	require.Len(h, seen, n, "each row that matched when the scan passed it is visited (%+v)", s)
	for r, times := range seen {
		require.Equal(h, 1, times, "row %q", r)
	}
	rows, err := collect(h.ctx, h.s, s)
	require.NoError(h, err)
	require.Empty(h, rows)
}

func scansWithinScans(t testing.TB, e *env) {
	h := e.harness(t)
	fill(h, "t", 40, func(int) []rowstore.Edit { return []rowstore.Edit{write(ver(rowstore.Write, "c", 5, "x"))} })
	pairs := 0
	for a, err := range h.s.Scan(h.ctx, rowstore.ScanRange{Table: "t", Selectors: everything()}) {
		require.NoError(t, err)
		for b, err := range h.s.Scan(h.ctx, rowstore.ScanRange{Table: "t", From: a.Row, Selectors: everything(), Reverse: true}) {
			require.NoError(t, err)
			require.GreaterOrEqual(t, b.Row, a.Row)
			pairs++
		}
	}
	require.Equal(t, 40*41/2, pairs)

	// Many scans open at the same time must not use up what each needs.
	const deep = 40
	var visit func(level int)
	visit = func(level int) {
		if level == deep {
			return
		}
		for _, err := range h.s.Scan(h.ctx, rowstore.ScanRange{Table: "t", From: key(level), Selectors: everything()}) {
			require.NoError(t, err)
			visit(level + 1)
			break
		}
	}
	visit(0)
}

func scanTwice(t testing.TB, e *env) {
	h := e.harness(t)
	h.put("a", write(ver(rowstore.Write, "c", 5, "x")))
	scan := h.s.Scan(h.ctx, rowstore.ScanRange{Table: "t", Selectors: everything()})
	count := func() (n int) {
		for _, err := range scan {
			require.NoError(t, err)
			n++
		}
		return n
	}
	require.Equal(t, 1, count())
	h.put("b", write(ver(rowstore.Write, "c", 5, "x")))
	require.Equal(t, 2, count(), "a sequence that is ranged over again scans again")
}

func scanOfNotificationsAmongRows(t testing.TB, e *env) {
	h := e.harness(t)
	n := e.n(2000, 1000)
	fill(h, "t", n, func(i int) []rowstore.Edit {
		edits := []rowstore.Edit{write(ver(rowstore.Write, "c", 5, "x"))}
		if i%97 == 5 {
			edits = append(edits, write(ver(rowstore.Notify, "c", 5, "")), write(ver(rowstore.Notify, "d", 7, "weak")))
		}
		return edits
	})
	want := []string{}
	for i := 5; i < n; i += 97 {
		want = append(want, key(i))
	}
	notify := []rowstore.Selector{pick(rowstore.Notify)}
	rows := h.scan(rowstore.ScanRange{Selectors: notify})
	got := []string{}
	for _, r := range rows {
		require.Equal(t, versions(ver(rowstore.Notify, "c", 5, ""), ver(rowstore.Notify, "d", 7, "weak")), r.Versions)
		got = append(got, r.Row)
	}
	require.Equal(t, want, got)
	// With a selector of another family beside it, the scan visits the other rows too.
	require.Len(t, h.keys(rowstore.ScanRange{Selectors: append(notify, pick(rowstore.Write))}), n)
	require.Equal(t, want[:3], h.keys(rowstore.ScanRange{Selectors: notify, Limit: 3}))
	require.Equal(t, want[2:5], h.keys(rowstore.ScanRange{Selectors: notify, From: want[2], To: want[5]}))
	require.Equal(t, want, h.keys(rowstore.ScanRange{Selectors: []rowstore.Selector{{Family: rowstore.Notify, Column: "d", From: 7, To: 7}}}))
	require.Empty(t, h.keys(rowstore.ScanRange{Selectors: []rowstore.Selector{{Family: rowstore.Notify, Column: "d", To: 6}}}))
}

// scanDuringWrites scans over rows that stay, rows that change all the time and
// rows that come and go.
func scanDuringWrites(t testing.TB, e *env) {
	scanUnderChange(t, e, rowstore.Write)
}

func scanOfNotificationsDuringWrites(t testing.TB, e *env) {
	scanUnderChange(t, e, rowstore.Notify)
}

func scanUnderChange(t testing.TB, e *env, f rowstore.Family) {
	h := e.harness(t)
	const n = 300
	put := func(ts rowstore.Timestamp) []rowstore.Edit {
		return []rowstore.Edit{write(ver(f, "a", ts, num(ts))), write(ver(f, "b", ts, num(ts)))}
	}
	fill(h, "t", n, func(int) []rowstore.Edit { return put(1) })

	var stop atomic.Bool
	var changes atomic.Int64
	var g errgroup.Group
	for w := range 2 {
		g.Go(func() error {
			for i := w; !stop.Load(); i += 2 {
				r := i % n
				ts := rowstore.Timestamp(i/n + 2) //nolint:gosec // positive
				edits := put(ts)
				switch r % 3 {
				case 0:
					continue // stays as it is
				case 1:
					// Matches always: a new version takes the place of the old one.
					edits = append(edits, rowstore.DeleteRange(f, "a", 0, ts-1), rowstore.DeleteRange(f, "b", 0, ts-1))
				case 2:
					if i/n%2 == 0 {
						edits = []rowstore.Edit{rowstore.DeleteRange(f, "a", 0, oracle.Max), rowstore.DeleteRange(f, "b", 0, oracle.Max)}
					}
				}
				out, err := h.s.Apply(h.ctx, []rowstore.Mutation{mut(key(r), nil, edits...)}, rowstore.ApplyOptions{})
				if err == nil {
					err = out[0].Err
				}
				if err != nil {
					return fmt.Errorf("writing row %d: %w", r, err)
				}
				changes.Add(1)
			}
			return nil
		})
	}
	scans := e.n(30, 6)
	var failure error
	for i := 0; (i < scans || changes.Load() < 10) && failure == nil && h.ctx.Err() == nil; i++ {
		failure = scanOnce(h, f, n, i%2 == 1)
	}
	stop.Store(true)
	require.NoError(t, g.Wait())
	require.NoError(t, failure)
	require.NoError(t, h.ctx.Err(), "nothing changed during the scans")
	t.Logf("%d scans, %d changes meanwhile", scans, changes.Load())
}

func scanOnce(h *harness, f rowstore.Family, n int, reverse bool) error {
	rows, err := collect(h.ctx, h.s, rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: f, To: oracle.Max, Limit: 1}}, Reverse: reverse})
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, r := range rows {
		seen[r.Row] = true
		a, b := r.Newest(f, "a"), r.Newest(f, "b")
		if a == nil || b == nil || a.TS != b.TS || string(a.Value) != string(b.Value) {
			return fmt.Errorf("row %q is torn: %v", r.Row, r.Versions)
		}
	}
	for i := range n {
		if i%3 != 2 && !seen[key(i)] {
			return fmt.Errorf("row %q matched all the time, and a scan (reverse: %v) did not visit it", key(i), reverse)
		}
	}
	return nil
}

func listOfTables(t testing.TB, e *env) {
	h := e.harness(t)
	require.Empty(t, h.tables(), "an empty store has no tables")
	names := []string{"t", "t\x00", "a", "\x00", "\xff", "tt", "T", "a b", "é", "x:y", "*"}
	for i, name := range names {
		f := families[i%len(families)]
		out := h.apply(rowstore.Mutation{Table: name, Row: "r", Edits: []rowstore.Edit{write(ver(f, "c", 5, "x"))}},
			rowstore.Mutation{Table: name, Row: "r2", Edits: []rowstore.Edit{write(ver(f, "c", 5, "x"))}})
		require.True(t, out[0].Applied && out[1].Applied)
	}
	slices.Sort(names)
	require.Equal(t, names, h.tables(), "each table once, in byte order")

	// An emptied one may be listed still, the others must be.
	for _, f := range families {
		h.apply(rowstore.Mutation{Table: "a", Row: "r", Edits: []rowstore.Edit{rowstore.DeleteRange(f, "c", 0, oracle.Max)}},
			rowstore.Mutation{Table: "a", Row: "r2", Edits: []rowstore.Edit{rowstore.DeleteRange(f, "c", 0, oracle.Max)}})
	}
	got := h.tables()
	require.True(t, slices.IsSorted(got))
	require.Equal(t, slices.Compact(slices.Clone(got)), got, "each table once")
	others := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "a" })
	require.Equal(t, others, slices.DeleteFunc(got, func(n string) bool { return n == "a" }))
	// A failed mutation makes no table.
	h.apply(rowstore.Mutation{Table: "never", Row: "r", Conditions: when(rowstore.Present("c", 1)), Edits: []rowstore.Edit{write(ver(rowstore.Write, "c", 5, "x"))}})
	require.NotContains(t, h.tables(), "never")
}

func tablesLoopMayStopAndCall(t testing.TB, e *env) {
	h := e.harness(t)
	var want []string
	for i := range 50 {
		name := fmt.Sprintf("table%02d", i)
		want = append(want, name)
		h.apply(rowstore.Mutation{Table: name, Row: "r", Edits: []rowstore.Edit{write(ver(rowstore.Write, "c", 5, "x"))}})
	}
	for range 20 {
		for name, err := range h.s.Tables(h.ctx) {
			require.NoError(t, err)
			require.Equal(t, want[0], name)
			break
		}
	}
	var got []string
	for name, err := range h.s.Tables(h.ctx) {
		require.NoError(t, err)
		got = append(got, name)
		require.Equal(t, []string{"r"}, h.keys(rowstore.ScanRange{Table: name, Selectors: everything()}))
		h.apply(rowstore.Mutation{Table: name, Row: "r2", Edits: []rowstore.Edit{write(ver(rowstore.Write, "c", 5, "x"))}})
	}
	require.Equal(t, want, got)

	ctx, cancel := context.WithCancel(h.ctx)
	cancel()
	for name, err := range h.s.Tables(ctx) {
		require.Empty(t, name)
		require.True(t, errors.Is(err, context.Canceled), "%v", err)
	}
}
