package conformance

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func costTests() []test {
	return []test{
		{"NotifyScanCostsNoRows", Scans, notifyScanCostsNoRows},
		{"WideAndDeepRow", Sizes, wideAndDeepRow},
		{"WideRowsCostTheirWidth", Sizes, wideRowsCostTheirWidth},
	}
}

func limitTests() []test {
	return []test{
		{"LimitOfOperations", Names, limitOfOperations},
		{"LimitOfBytes", Names, limitOfBytes},
	}
}

// quickest is the least time of several runs. So the time that other work of the machine
// adds to some runs does not count.
func quickest(runs int, run func()) time.Duration {
	least := time.Duration(1<<63 - 1)
	for range runs {
		began := time.Now()
		run()
		least = min(least, time.Since(began))
	}
	return least
}

// notifyScanCostsNoRows compares searches for few notifications among few rows and among
// many. If the suite is serial, it runs alone. Otherwise it compares the least times of
// many runs, and compares again if the result looks bad.
func notifyScanCostsNoRows(t testing.TB, e *env) {
	h := e.harness(t)
	const notified, few = 5, 100
	many := 20_000
	if e.cfg.scale < 1 {
		many = 5_000
	}
	for _, table := range []string{"few", "many"} {
		rows := few
		if table == "many" {
			rows = many
		}
		fill(h, table, rows, func(i int) []rowstore.Edit {
			edits := []rowstore.Edit{write(ver(rowstore.Write, "c", 5, "x"))}
			if i%(rows/notified) == rows/notified/2 {
				edits = append(edits, write(ver(rowstore.Notify, "c", 5, "")))
			}
			return edits
		})
	}
	search := func(table string, want int, from string) func() {
		return func() {
			rows := h.scan(rowstore.ScanRange{Table: table, From: from, Selectors: []rowstore.Selector{pick(rowstore.Notify)}})
			require.Len(h, rows, want)
		}
	}
	last := map[string]string{"few": key(few * 95 / 100), "many": key(many * 95 / 100)}
	for try := 1; ; try++ {
		small, large := quickest(15, search("few", notified, "")), quickest(15, search("many", notified, ""))
		none, noneOfMany := quickest(15, search("few", 0, last["few"])), quickest(15, search("many", 0, last["many"]))
		t.Logf("%d notifications among %d rows %v, among %d rows %v; none %v and %v", notified, few, small, many, large, none, noneOfMany)
		// The rows are 50 times as many, at the least.
		const slack = 400 * time.Microsecond
		if large <= 6*small+slack && noneOfMany <= 6*none+slack {
			return
		}
		if try == 4 {
			t.Fatalf("a scan for notifications alone costs in proportion to the rows: %v among %d rows, %v among %d", small, few, large, many)
		}
	}
}

// breadth is how many columns and versions of each the suite's wide row has.
func (e *env) breadth() (columns, deep int) {
	switch {
	case e.cfg.scale >= 10:
		return 10_000, 100
	case e.cfg.scale >= 1:
		return 2_000, 20
	default:
		return 500, 20
	}
}

// wideRow fills a row of several stores alike, in steps that each store takes. Versions
// have the timestamps 10, 20, and so on.
func wideRow(t testing.TB, row string, columns, deep int, stores ...*harness) {
	t.Helper()
	limit := 1000
	for _, h := range stores {
		if l := limitsOf(h.s); l.Operations > 0 {
			limit = min(limit, l.Operations)
		}
	}
	var edits []rowstore.Edit
	flush := func() {
		for _, h := range stores {
			h.put(row, edits...)
		}
		edits = nil
	}
	// In the order in which a row has them, so that the reference need not sort.
	for c := range columns {
		for d := deep; d > 0; d-- {
			ts := rowstore.Timestamp(10 * d) //nolint:gosec // positive
			if edits = append(edits, write(ver(rowstore.Write, key(c), ts, fmt.Sprint(c, ".", d)))); len(edits) == limit {
				flush()
			}
		}
	}
	if len(edits) > 0 {
		flush()
	}
}

func limitsOf(s rowstore.Store) rowstore.Limits {
	if l, ok := rowstore.Unwrap[rowstore.Limiter](s); ok {
		return l.Limits()
	}
	return rowstore.Limits{}
}

// wideAndDeepRow reads, changes and collects a row of very many versions, beside a
// memstore.Store that holds the same.
func wideAndDeepRow(t testing.TB, e *env) {
	h := e.harness(t)
	reference := memstore.New()
	defer func() { require.NoError(t, reference.Close()) }()
	m := &harness{TB: t, s: reference, ctx: h.ctx}
	columns, deep := e.breadth()
	wideRow(t, "row", columns, deep, h, m)
	newest := rowstore.Timestamp(10 * deep) //nolint:gosec // positive
	compare := func(picks ...rowstore.Selector) {
		t.Helper()
		require.Equal(t, m.read("row", picks...), h.read("row", picks...))
	}
	all := func(p rowstore.Selector) rowstore.Selector { p.Family = rowstore.Write; return p }
	compare(all(rowstore.Selector{To: oracle.Max, Limit: 1}))                 // what a transaction reads
	compare(all(rowstore.Selector{To: newest - 5, Limit: 1}))                 // in the past
	compare(all(rowstore.Selector{From: newest / 2, To: oracle.Max}))         // some of the history
	compare(all(rowstore.Selector{Column: key(columns / 2), To: oracle.Max})) // one column
	compare(pick(rowstore.Lock), pick(rowstore.Mark), pick(rowstore.Notify))  // nothing
	require.Equal(t, m.scan(rowstore.ScanRange{Selectors: []rowstore.Selector{all(rowstore.Selector{To: oracle.Max, Limit: 1})}}),
		h.scan(rowstore.ScanRange{Selectors: []rowstore.Selector{all(rowstore.Selector{To: oracle.Max, Limit: 1})}}))

	step := 200
	if l := limitsOf(h.s); l.Operations > 0 {
		step = min(step, max(1, l.Operations/4))
	}
	both := func(conds []rowstore.Condition, edits ...rowstore.Edit) {
		t.Helper()
		want, got := m.apply(mut("row", conds, edits...)), h.apply(mut("row", conds, edits...))
		want[0].Incarnation, got[0].Incarnation = "", ""
		want[0].Broke, got[0].Broke = norm1(want[0].Broke), norm1(got[0].Broke)
		require.Equal(t, want, got)
	}
	// A prewrite of many columns, its commit, and their collection.
	for c := 0; c < columns; c += max(step, columns/4) {
		var conds, present []rowstore.Condition
		var locks, commits, ranges []rowstore.Edit
		for i := c; i < min(c+step, columns); i++ {
			conds = append(conds, rowstore.Absent(rowstore.Write, key(i), newest+1), rowstore.Absent(rowstore.Lock, key(i), 0))
			locks = append(locks, write(ver(rowstore.Lock, key(i), newest+5, "lock")))
			present = append(present, rowstore.Present(key(i), newest+5))
			commits = append(commits, rowstore.Delete(rowstore.Lock, key(i), newest+5), write(ver(rowstore.Write, key(i), newest+9, "new")))
			ranges = append(ranges, rowstore.DeleteRange(rowstore.Write, key(i), 0, newest))
		}
		both(conds, locks...)
		both(conds, locks...) // refused, by the first lock
		both(present, commits...)
		both(nil, ranges...)
	}
	compare(all(rowstore.Selector{To: oracle.Max, Limit: 1}))
	compare(everything()...)
}

// wideCall is a call over all columns of a row.
type wideCall struct {
	name string
	call func(columns int)
	// of each column, in one step
	operations, bytes int
}

// width is how many columns the call takes at most, in one step of a store with limits.
func (c *wideCall) width(l rowstore.Limits) int {
	width := 2000
	if c.operations > 0 && l.Operations > 0 {
		width = min(width, l.Operations/c.operations)
	}
	if c.bytes > 0 && l.Bytes > 0 {
		width = min(width, (l.Bytes-64)/c.bytes) // 64 for the names of the table and of the row
	}
	return width
}

func wideCalls(h *harness, newest rowstore.Timestamp) []wideCall {
	name := len(key(0))
	return []wideCall{
		{name: "reading the newest of all columns", call: func(n int) {
			rows := h.read(fmt.Sprint(n), rowstore.Selector{Family: rowstore.Write, To: oracle.Max, Limit: 1})
			require.Len(h, rows, n)
		}},
		{name: "checking and locking all columns", operations: 3, bytes: 3 * name, call: func(n int) {
			var conds []rowstore.Condition
			var locks, unlocks []rowstore.Edit
			for c := range n {
				conds = append(conds, rowstore.Absent(rowstore.Write, key(c), newest+1), rowstore.Absent(rowstore.Lock, key(c), 0))
				locks = append(locks, write(ver(rowstore.Lock, key(c), newest+5, "")))
				unlocks = append(unlocks, rowstore.Delete(rowstore.Lock, key(c), newest+5))
			}
			require.True(h, h.apply(mut(fmt.Sprint(n), conds, locks...))[0].Applied)
			h.put(fmt.Sprint(n), unlocks...)
		}},
		{name: "removing old versions of all columns", operations: 1, bytes: name, call: func(n int) {
			var ranges []rowstore.Edit
			for c := range n {
				ranges = append(ranges, rowstore.DeleteRange(rowstore.Write, key(c), 0, newest-1))
			}
			h.put(fmt.Sprint(n), ranges...)
		}},
	}
}

// wideRowsCostTheirWidth compares the cost of calls over all columns of a row with the
// cost in a row of a quarter of the columns. It should be about four times as much; it is
// sixteen times as much if the cost of each column grows with the width of the row.
func wideRowsCostTheirWidth(t testing.TB, e *env) {
	h := e.harness(t)
	const (
		deep   = 20
		narrow = 1000 // a row of fewer columns costs little, whatever each of them costs
	)
	newest := rowstore.Timestamp(10 * deep) //nolint:gosec // positive
	limits := limitsOf(h.s)
	filled := map[int]bool{}
	var left []string
	for _, c := range wideCalls(h, newest) {
		width := c.width(limits)
		if width < narrow {
			left = append(left, fmt.Sprintf("%s: one step takes %d", c.name, width))
			continue
		}
		widths := []int{width / 4, width}
		for _, n := range widths {
			if !filled[n] {
				wideRow(t, fmt.Sprint(n), n, deep, h)
				filled[n] = true
			}
		}
		for try := 1; ; try++ {
			// A long call that something else delayed is compared again.
			small, large := quickest(5, func() { c.call(widths[0]) }), quickest(2, func() { c.call(widths[1]) })
			t.Logf("%s: %d columns of %d versions %v, %d columns %v", c.name, widths[0], deep, small, widths[1], large)
			// What costs as much for each column as the row is wide takes a second and more;
			// the slack is for a machine that has much else to do.
			if large <= 9*small+250*time.Millisecond {
				break
			}
			require.Less(t, try, 4, "%s costs more than in proportion to their number: %v for %d, %v for %d", c.name, small, widths[0], large, widths[1])
		}
	}
	if len(left) > 0 {
		t.Skipf("so few columns tell nothing of these calls: %v", left)
	}
}

// stepOf makes a mutation of so many operations, half of them conditions.
func stepOf(row string, operations int) rowstore.Mutation {
	m := rowstore.Mutation{Table: "t", Row: row}
	for i := range operations {
		if i%2 == 0 {
			m.Edits = append(m.Edits, write(ver(rowstore.Write, fmt.Sprintf("c%06d", i), 5, "x")))
		} else {
			m.Conditions = append(m.Conditions, rowstore.Absent(rowstore.Lock, fmt.Sprintf("c%06d", i), 0))
		}
	}
	return m
}

func bytesOf(m rowstore.Mutation) int { return rowstore.SizeOf(&m).Bytes }

// limitOfOperations checks that the limit holds for one atomic step, that a step of
// exactly the limit passes, and that a step over it writes nothing.
func limitOfOperations(t testing.TB, e *env) {
	h := e.harness(t)
	limit := limitsOf(h.s).Operations
	if limit == 0 {
		t.Skip("the store has no limit of operations")
	}
	require.GreaterOrEqual(t, limit, 16, "a prewrite of one cell takes up to a dozen")
	if most := limitsOf(h.s).Bytes; most > 0 && bytesOf(stepOf("large", limit+1))+64 > most {
		t.Skipf("a step of %d operations has more than %d bytes: the one limit is in reach only above the other", limit+1, most)
	}
	_, err := h.s.Apply(h.ctx, []rowstore.Mutation{stepOf("small", 2), stepOf("large", limit+1)}, rowstore.ApplyOptions{})
	require.ErrorIs(t, err, rowstore.ErrTooLarge)
	require.Empty(t, h.contents(), "nothing was written")
	out := h.apply(stepOf("a", limit), stepOf("b", limit), stepOf("c", 2))
	require.True(t, out[0].Applied && out[1].Applied && out[2].Applied, "the limit is that of each step, not of a batch")

	g := e.grouped(t, 2, false)
	_, err = g.g.Group(g.ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{stepOf(g.rows[0], limit/2+1), stepOf(g.rows[1], limit/2+1)}}})
	require.ErrorIs(t, err, rowstore.ErrTooLarge)
	require.Empty(t, g.contents(), "nothing was written")
	require.True(t, g.group(rowstore.Group{Mutations: []rowstore.Mutation{stepOf(g.rows[0], limit/2), stepOf(g.rows[1], limit/2)}}).Applied)
}

func limitOfBytes(t testing.TB, e *env) {
	h := e.harness(t)
	limits := limitsOf(h.s)
	if limits.Bytes == 0 {
		t.Skip("the store has no limit of bytes")
	}
	// In values that are short enough each, and no shorter, for the sake of a limit of operations.
	of := func(row string, bytes int) rowstore.Mutation {
		m := rowstore.Mutation{Table: "t", Row: row}
		bytes -= len("t") + len(row)
		each := min(bytes, 1<<16)
		if limits.Value > 0 {
			each = min(each, limits.Value+len("c000000"))
		}
		for i := 0; bytes > 0; i++ {
			n := min(bytes, each)
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Data, fmt.Sprintf("c%06d", i), 5, make([]byte, max(0, n-len("c000000")))))
			bytes -= n
		}
		return m
	}
	if n := len(of("large", limits.Bytes+20).Edits); limits.Operations > 0 && n > limits.Operations {
		t.Skipf("a step of %d bytes has more than %d operations: the one limit is in reach only above the other", limits.Bytes+20, limits.Operations)
	}
	_, err := h.s.Apply(h.ctx, []rowstore.Mutation{stepOf("small", 2), of("large", limits.Bytes+20)}, rowstore.ApplyOptions{})
	require.ErrorIs(t, err, rowstore.ErrTooLarge)
	require.Empty(t, h.contents(), "nothing was written")
	out := h.apply(of("a", limits.Bytes-20), of("b", limits.Bytes-20))
	require.True(t, out[0].Applied && out[1].Applied, "the limit is that of each step, not of a batch")

	g := e.grouped(t, 2, false)
	half := limits.Bytes / 2
	_, err = g.g.Group(g.ctx, []rowstore.Group{{Mutations: []rowstore.Mutation{of(g.rows[0], half+20), of(g.rows[1], half+20)}}})
	require.ErrorIs(t, err, rowstore.ErrTooLarge)
	require.Empty(t, g.contents(), "nothing was written")
	require.True(t, g.group(rowstore.Group{Mutations: []rowstore.Mutation{of(g.rows[0], half-20), of(g.rows[1], half-20)}}).Applied)
}
