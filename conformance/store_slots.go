package conformance

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func slotTests() []test {
	return []test{
		{"SlotsOfRandomRows", Slots, slotsOfRandomRows},
		{"SlotsAtTheBounds", Slots, slotsAtTheBounds},
		{"SlotsPageByPage", Slots, slotsPageByPage},
		{"SlotsWithSelectors", Slots, slotsWithSelectors},
		{"SlotsWithHints", Slots, slotsWithHints},
		{"SlotsWithoutNotifications", Slots, slotsWithoutNotifications},
		{"SlotsWhileOthersComeAndGo", Slots, slotsWhileOthersComeAndGo},
		{"SlotsLoopMayClearWhatItScans", Slots, slotsLoopMayClearWhatItScans},
		{"InvalidSlots", Slots, invalidSlots},
		{"SlotsWhenTheContextEnds", Slots, slotsWhenTheContextEnds},
		{"SlotsCostWhatTheyHold", Slots, slotsCostWhatTheyHold},
		{"SlotsAfterLosingDeferred", Deferring, slotsAfterLosingDeferred},
		{"SlotsOfAReopenedStore", Reopening, slotsOfAReopenedStore},
	}
}

// slots opens a store that finds rows by their slots, or skips the test.
func (e *env) slots(t testing.TB) *harness {
	t.Helper()
	h := e.harness(t)
	ability[rowstore.SlotScanner](t, h.s, "SlotScanner")
	return h
}

// span is a range of slots.
func span(first, last uint16) rowstore.SlotRange {
	return rowstore.SlotRange{First: first, Last: last}
}

// allSlots is the range of all of them.
func allSlots() []rowstore.SlotRange {
	return []rowstore.SlotRange{span(0, rowstore.Slots-1)}
}

// notified is an edit that notifies column "c".
func notified(ts rowstore.Timestamp) rowstore.Edit { return notifiedOf("c", ts) }

func notifiedOf(column string, ts rowstore.Timestamp) rowstore.Edit {
	return write(ver(rowstore.Notify, column, ts, ""))
}

// rowsIn finds n row keys of each of some slots by trying, in the order of a scan.
func rowsIn(table string, n int, slots ...uint16) (rows []string) {
	found := map[uint16][]string{}
	for _, slot := range slots {
		found[slot] = nil
	}
	name := []byte("row ")
	for full, i := 0, int64(0); full < len(found); i++ {
		name = strconv.AppendInt(name[:len("row ")], i, 10)
		slot := rowstore.Slot(table, string(name))
		if of, asked := found[slot]; asked && len(of) < n {
			if found[slot] = append(of, string(name)); len(of)+1 == n {
				full++
			}
		}
	}
	for _, slot := range slots {
		slices.Sort(found[slot])
		rows = append(rows, found[slot]...)
	}
	return rows
}

// bySlot is what a scan of slots has to visit: the rows that the store holds, by a scan of
// every family in row order.
func (h *harness) bySlot(s rowstore.ScanRange) []rowstore.Row {
	h.Helper()
	rows := []rowstore.Row{}
	for _, r := range h.scan(rowstore.ScanRange{Table: s.Table, Selectors: everything()}) {
		slot := rowstore.Slot(r.Table, r.Row)
		asked := slices.ContainsFunc(s.Slots, func(in rowstore.SlotRange) bool { return in.First <= slot && slot <= in.Last })
		r.Versions = kit.Select(r.Versions, s.Selectors)
		if asked && len(r.Versions) > 0 && (slot > s.Slots[0].First || r.Row >= s.From) {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, compareBySlot)
	if s.Limit > 0 && len(rows) > s.Limit {
		rows = rows[:s.Limit]
	}
	return rows
}

func compareBySlot(a, b rowstore.Row) int {
	return cmp.Or(cmp.Compare(rowstore.Slot(a.Table, a.Row), rowstore.Slot(b.Table, b.Row)), cmp.Compare(a.Row, b.Row))
}

// scansSlots compares a scan with bySlot, and returns the number of rows.
func (h *harness) scansSlots(s rowstore.ScanRange) int {
	h.Helper()
	if s.Table == "" {
		s.Table = "t"
	}
	if s.Selectors == nil {
		s.Selectors = []rowstore.Selector{pick(rowstore.Notify)}
	}
	want, got := h.bySlot(s), h.scan(s)
	require.Equal(h, keysOf(want), keysOf(got), "%d ranges, the first %v, from %q, limit %d", len(s.Slots), s.Slots[0], s.From, s.Limit)
	for i := range want {
		require.Equal(h, norm(want[i].Versions), got[i].Versions)
	}
	return len(got)
}

func keysOf(rows []rowstore.Row) []string {
	keys := []string{}
	for _, r := range rows {
		keys = append(keys, r.Row)
	}
	return keys
}

// someSlots draws ranges, whose ends lie at slots of the rows more often than not.
func someSlots(rng *rand.Rand, table string, rows []string) (ranges []rowstore.SlotRange) {
	ends := map[uint16]bool{}
	for range 1 + rng.IntN(12) {
		end := uint16(rng.UintN(rowstore.Slots))
		switch rng.IntN(8) {
		case 0:
			end = 0
		case 1:
			end = rowstore.Slots - 1
		case 2:
		default:
			end = rowstore.Slot(table, rows[rng.IntN(len(rows))]) + uint16(rng.UintN(3)) - 1
		}
		ends[end] = true
	}
	var sorted []uint16
	for end := range ends {
		sorted = append(sorted, end)
	}
	slices.Sort(sorted)
	for i, from := 0, 0; i < len(sorted); i++ {
		first, last := max(from, int(sorted[i])), int(sorted[i])
		switch rng.IntN(4) {
		case 0: // touches the range before it
			first = from
		case 1: // one slot
		default: // as far as some other end
			last = int(sorted[i+rng.IntN(len(sorted)-i)])
		}
		if first <= last {
			ranges = append(ranges, span(uint16(first), uint16(last))) //nolint:gosec // slots
			from = last + 1
		}
	}
	return ranges
}

// slotsOfRandomRows changes rows at random and scans random ranges of slots.
func slotsOfRandomRows(t testing.TB, e *env) {
	h := e.slots(t)
	rng := seeded(t)
	names := map[string][]string{}
	for _, table := range []string{"t", "u"} {
		slot := uint16(rng.UintN(rowstore.Slots))
		names[table] = rowsIn(table, 2, slot, slot+1, slot+2, 0, rowstore.Slots-1)
		for i := range 60 {
			names[table] = append(names[table], key(i), fmt.Sprintf("%c\x00%c", byte(i*4), byte(rng.UintN(256))))
		}
	}
	visited := 0
	for range e.n(30, 8) {
		for table, rows := range names {
			for range 20 {
				m := rowstore.Mutation{Table: table, Row: rows[rng.IntN(len(rows))]}
				ts := rowstore.Timestamp(1 + rng.IntN(9)) //nolint:gosec // positive
				switch rng.IntN(6) {
				case 0:
					m.Edits = []rowstore.Edit{rowstore.DeleteRange(rowstore.Notify, "c", 0, oracle.Max), rowstore.DeleteRange(rowstore.Notify, "d", 0, oracle.Max)}
				case 1:
					m.Edits = []rowstore.Edit{rowstore.Delete(rowstore.Notify, "c", ts)}
				case 2:
					m.Edits = []rowstore.Edit{write(ver(rowstore.Write, "c", ts, "x")), write(ver(rowstore.Mark, "c", ts, ""))}
				case 3:
					m.Edits = []rowstore.Edit{notified(ts)}
				default:
					m.Edits = []rowstore.Edit{notified(ts), notifiedOf("d", ts)}
				}
				require.True(t, h.apply(m)[0].Applied)
			}
			for range 4 {
				s := rowstore.ScanRange{Table: table, Slots: someSlots(rng, table, rows)}
				if s.Slots == nil {
					s.Slots = allSlots()
				}
				if rng.IntN(2) == 0 {
					s.From = rows[rng.IntN(len(rows))]
				}
				if rng.IntN(2) == 0 {
					s.Limit = 1 + rng.IntN(10)
				}
				visited += h.scansSlots(s)
			}
		}
	}
	require.Positive(t, visited, "no scan visited a row")
}

// slotsAtTheBounds puts rows in the first and the last slot, and in neighbours.
func slotsAtTheBounds(t testing.TB, e *env) {
	h := e.slots(t)
	require.Zero(t, h.scansSlots(rowstore.ScanRange{Table: "none", Slots: allSlots()}), "a table that is not there")
	const last = rowstore.Slots - 1
	for _, row := range rowsIn("t", 2, 0, 1, 255, 256, 257, 999, 1000, 1001, 1002, 2998, 0x7fff, 0x8000, last-1, last) {
		h.put(row, notified(5))
	}
	for i, c := range []struct {
		slots []rowstore.SlotRange
		want  int
	}{
		{[]rowstore.SlotRange{span(0, 0)}, 2},
		{[]rowstore.SlotRange{span(last, last)}, 2},
		{[]rowstore.SlotRange{span(0, 0), span(last, last)}, 4},
		{[]rowstore.SlotRange{span(1000, 1000)}, 2},
		{[]rowstore.SlotRange{span(999, 1000), span(1001, 1002)}, 8},
		{[]rowstore.SlotRange{span(999, 999), span(1000, 1000), span(1001, 1001), span(1002, 1002)}, 8},
		{[]rowstore.SlotRange{span(255, 256)}, 4},
		{[]rowstore.SlotRange{span(256, 256)}, 2},
		{[]rowstore.SlotRange{span(0x7fff, 0x8000)}, 4},
		{[]rowstore.SlotRange{span(2, 254), span(258, 998)}, 0},
		{[]rowstore.SlotRange{span(0, 0x7fff), span(0x8000, last)}, 28},
		{allSlots(), 28},
	} {
		require.Equal(t, c.want, h.scansSlots(rowstore.ScanRange{Slots: c.slots}), "case %d", i)
	}
	// A worker may ask for as many single slots as have been pushed.
	many := []rowstore.SlotRange{}
	for slot := uint16(0); len(many) < 1500; slot += 2 {
		many = append(many, span(slot, slot))
	}
	require.Equal(t, 10, h.scansSlots(rowstore.ScanRange{Slots: many}), "of 1,500 single slots")
}

// slotsPageByPage goes on from the last row of each page, as a worker does.
func slotsPageByPage(t testing.TB, e *env) {
	h := e.slots(t)
	rows := slices.Concat(rowsIn("t", 5, 4711), rowsIn("t", 2, 4710, 4712, 4800))
	for _, row := range rows {
		h.put(row, notified(5))
	}
	shared := rows[:5]
	for i, row := range shared {
		require.Equal(t, 5-i, h.scansSlots(rowstore.ScanRange{Slots: []rowstore.SlotRange{span(4711, 4711)}, From: row}))
		require.Equal(t, 4-i, h.scansSlots(rowstore.ScanRange{Slots: []rowstore.SlotRange{span(4711, 4711)}, From: row + "\x00"}))
		require.Equal(t, 8-i, h.scansSlots(rowstore.ScanRange{Slots: []rowstore.SlotRange{span(4711, 4800)}, From: row + "\x00"}), "From is a row of the first slot alone")
		require.Equal(t, 6-i, h.scansSlots(rowstore.ScanRange{Slots: []rowstore.SlotRange{span(4711, 4711), span(4800, 4900)}, From: row + "\x00"}))
	}
	require.Equal(t, 2, h.scansSlots(rowstore.ScanRange{Slots: []rowstore.SlotRange{span(4711, 4712)}, From: "\xff"}), "From is behind all rows of its slot")
	for limit := 1; limit <= len(rows)+1; limit++ {
		s := rowstore.ScanRange{Table: "t", Slots: []rowstore.SlotRange{span(4000, 4711), span(4712, 4799), span(4800, 5000)}, Limit: limit, Selectors: []rowstore.Selector{pick(rowstore.Notify)}}
		whole := s
		whole.Limit = 0
		want := keysOf(h.bySlot(whole))
		require.Len(t, want, len(rows))
		got := []string{}
		for {
			page := h.scan(s)
			got = append(got, keysOf(page)...)
			if len(page) < limit {
				break
			}
			s.From = page[limit-1].Row + "\x00"
			slot := rowstore.Slot("t", page[limit-1].Row)
			for len(s.Slots) > 0 && s.Slots[0].Last < slot {
				s.Slots = s.Slots[1:]
			}
			s.Slots = slices.Clone(s.Slots)
			s.Slots[0].First = slot
		}
		require.Equal(t, want, got, "in pages of %d", limit)
	}
}

// slotsWithSelectors asks for some columns and versions.
func slotsWithSelectors(t testing.TB, e *env) {
	h := e.slots(t)
	rows := rowsIn("t", 6, 77)
	for i, row := range rows {
		for j, column := range []string{"a", "b", "c"} {
			if i>>j&1 == 1 {
				for ts := range rowstore.Timestamp(i) {
					h.put(row, notifiedOf(column, 10*(ts+1)))
				}
			}
		}
		h.put(row, write(ver(rowstore.Write, "a", 5, "x")), write(ver(rowstore.Lock, "b", 5, "x")))
	}
	of := func(column string, limit int) rowstore.Selector {
		return rowstore.Selector{Family: rowstore.Notify, Column: column, To: oracle.Max, Limit: limit}
	}
	slots := []rowstore.SlotRange{span(70, 80)}
	for i, c := range []struct {
		limit int
		picks []rowstore.Selector
		want  int
	}{
		{0, []rowstore.Selector{of("a", 0)}, 3},
		{0, []rowstore.Selector{of("a", 2)}, 3},
		{0, []rowstore.Selector{of("a", 1), of("c", 2)}, 4},
		{0, []rowstore.Selector{of("none", 0)}, 0},
		{0, []rowstore.Selector{{Family: rowstore.Notify, Column: "c", From: 45, To: 55}}, 1},
		{0, []rowstore.Selector{{Family: rowstore.Notify, To: 5}}, 0},
		{2, []rowstore.Selector{of("c", 1)}, 2},
		{1, []rowstore.Selector{of("c", 1)}, 1},
		{3, []rowstore.Selector{of("c", 1)}, 2},
	} {
		require.Equal(t, c.want, h.scansSlots(rowstore.ScanRange{Slots: slots, Selectors: c.picks, Limit: c.limit}), "case %d", i)
	}
	// The rows that a scan passes over are not of its page.
	pages := rowstore.ScanRange{Slots: slots, Selectors: []rowstore.Selector{of("c", 1)}, Limit: 1, From: rows[4] + "\x00"}
	require.Equal(t, 1, h.scansSlots(pages))
}

// slotsWithoutNotifications removes notifications in every way, and puts some again.
func slotsWithoutNotifications(t testing.TB, e *env) {
	h := e.slots(t)
	rows := rowsIn("t", 6, 4711)
	slots := []rowstore.SlotRange{span(4711, 4711)}
	check := func(want int, msg string) {
		t.Helper()
		require.Equal(t, want, h.scansSlots(rowstore.ScanRange{Slots: slots}), msg)
	}
	for _, row := range rows {
		h.put(row, write(ver(rowstore.Write, "c", 5, "x")), write(ver(rowstore.Data, "c", 5, "x")), write(ver(rowstore.Mark, "c", 5, "x")), write(ver(rowstore.Lock, "c", 5, "x")))
	}
	check(0, "rows that hold other families alone")
	for _, row := range rows {
		h.put(row, notified(5), notified(7), notifiedOf("d", 5))
	}
	check(6, "all are notified")
	h.put(rows[0], rowstore.Delete(rowstore.Notify, "c", 5))
	check(6, "others of its notifications are left")
	h.put(rows[0], rowstore.Delete(rowstore.Notify, "c", 7), rowstore.Delete(rowstore.Notify, "d", 5))
	check(5, "deleted one by one")
	h.put(rows[1], rowstore.DeleteRange(rowstore.Notify, "c", 0, oracle.Max), rowstore.DeleteRange(rowstore.Notify, "d", 0, oracle.Max))
	check(4, "deleted by ranges")
	for _, f := range families {
		h.put(rows[2], rowstore.DeleteRange(f, "c", 0, oracle.Max), rowstore.DeleteRange(f, "d", 0, oracle.Max))
	}
	check(3, "the row is gone")
	h.put(rows[3], rowstore.DeleteRange(rowstore.Notify, "c", 0, oracle.Max), notifiedOf("d", 9))
	check(3, "one removed and one put at once")
	require.False(t, h.apply(mut(rows[4], when(rowstore.Absent(rowstore.Lock, "c", 0)), rowstore.DeleteRange(rowstore.Notify, "c", 0, oracle.Max)))[0].Applied)
	check(3, "a refused mutation changes nothing")
	h.put(rows[0], notified(9))
	h.put(rows[2], notified(9))
	check(5, "notified again")
}

// slotsWhileOthersComeAndGo scans while rows beside those that stay are notified and not.
func slotsWhileOthersComeAndGo(t testing.TB, e *env) {
	h := e.slots(t)
	var stay, others []string
	for rows := range slices.Chunk(rowsIn("t", 4, 500, 501, 502, 503, 504, 505), 4) {
		stay, others = append(stay, rows[1], rows[2]), append(others, rows[0], rows[3])
	}
	for _, row := range stay {
		h.put(row, notified(5))
	}
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	g, going := errgroup.WithContext(ctx)
	var changes atomic.Int64
	for w := range 3 {
		g.Go(func() error {
			for i := 0; going.Err() == nil; i++ {
				row := others[(i*3+w)%len(others)]
				edit := notified(7)
				if i/len(others)%2 == 1 {
					edit = rowstore.Delete(rowstore.Notify, "c", 7)
				}
				if _, err := apply1(h, mut(row, nil, edit)); err != nil {
					return err
				}
				// What stays is written too.
				if _, err := apply1(h, mut(stay[i%len(stay)], nil, notified(rowstore.Timestamp(10+i%5)))); err != nil { //nolint:gosec // positive
					return err
				}
				changes.Add(1)
			}
			return nil
		})
	}
	for n := 0; n < e.n(100, 20) || changes.Load() < 100 && going.Err() == nil; n++ {
		got := map[string]int{}
		for row, err := range h.s.Scan(h.ctx, rowstore.ScanRange{Table: "t", Slots: []rowstore.SlotRange{span(500, 502), span(503, 503), span(504, 600)}, Selectors: []rowstore.Selector{pick(rowstore.Notify)}}) {
			require.NoError(t, err)
			got[row.Row]++
			require.Equal(t, 1, got[row.Row], "row %q", row.Row)
		}
		for _, row := range stay {
			require.Equal(t, 1, got[row], "row %q was notified all the time", row)
		}
	}
	cancel()
	require.NoError(t, g.Wait())
	require.GreaterOrEqual(t, h.scansSlots(rowstore.ScanRange{Slots: allSlots()}), len(stay))
}

func invalidSlots(t testing.TB, e *env) {
	h := e.slots(t)
	h.put(rowsIn("t", 1, 5)[0], notified(5), write(ver(rowstore.Write, "c", 5, "x")))
	notify := []rowstore.Selector{pick(rowstore.Notify)}
	good := rowstore.ScanRange{Table: "t", Slots: allSlots(), Selectors: notify}
	require.Equal(t, 1, h.scansSlots(good))
	for name, change := range map[string]func(s *rowstore.ScanRange){
		"no table":            func(s *rowstore.ScanRange) { s.Table = "" },
		"backwards":           func(s *rowstore.ScanRange) { s.Slots = []rowstore.SlotRange{span(5, 4)} },
		"descending":          func(s *rowstore.ScanRange) { s.Slots = []rowstore.SlotRange{span(5, 9), span(1, 3)} },
		"overlapping":         func(s *rowstore.ScanRange) { s.Slots = []rowstore.SlotRange{span(0, 5), span(5, 9)} },
		"twice":               func(s *rowstore.ScanRange) { s.Slots = []rowstore.SlotRange{span(5, 5), span(5, 5)} },
		"within":              func(s *rowstore.ScanRange) { s.Slots = []rowstore.SlotRange{span(0, 9), span(5, 6)} },
		"the last one is bad": func(s *rowstore.ScanRange) { s.Slots = []rowstore.SlotRange{span(0, 9), span(20, 30), span(40, 35)} },
		"To":                  func(s *rowstore.ScanRange) { s.To = "\xff" },
		"Reverse":             func(s *rowstore.ScanRange) { s.Reverse = true },
		"hints for no slots":  func(s *rowstore.ScanRange) { s.Slots, s.Hints = nil, true },
		"limit":               func(s *rowstore.ScanRange) { s.Limit = -1 },
		"no selectors":        func(s *rowstore.ScanRange) { s.Selectors = nil },
		"another family":      func(s *rowstore.ScanRange) { s.Selectors = []rowstore.Selector{pick(rowstore.Write)} },
		"another family too":  func(s *rowstore.ScanRange) { s.Selectors = append(notify[:1:1], pick(rowstore.Mark)) },
	} {
		s := good
		change(&s)
		rows, err := collect(h.ctx, h.s, s)
		require.ErrorIs(t, err, rowstore.ErrInvalid, name)
		require.Empty(t, rows, name)
	}
}

func slotsWhenTheContextEnds(t testing.TB, e *env) {
	h := e.slots(t)
	for i := range 20 {
		h.put(key(i), notified(5))
	}
	s := rowstore.ScanRange{Table: "t", Slots: allSlots(), Selectors: []rowstore.Selector{pick(rowstore.Notify)}}
	ended, cancel := context.WithCancel(h.ctx)
	cancel()
	rows, err := collect(ended, h.s, s)
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, rows)
	// In the middle it may still yield what it has, and then says so or is complete.
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	n := 0
	for _, err = range h.s.Scan(ctx, s) {
		if err != nil {
			break
		}
		n++
		cancel()
	}
	if err != nil {
		require.ErrorIs(t, err, context.Canceled)
	} else {
		require.Equal(t, 20, n)
	}
	// A loop that stops leaves the store as it was.
	for _, err := range h.s.Scan(h.ctx, s) {
		require.NoError(t, err)
		break
	}
	require.Equal(t, 20, h.scansSlots(s))
}

// slotsCostWhatTheyHold compares scans for the same few rows among few notified ones and
// among many. See notifyScanCostsNoRows.
func slotsCostWhatTheyHold(t testing.TB, e *env) {
	h := e.slots(t)
	const few, own = 100, 10
	many := 20_000
	if e.cfg.scale < 1 {
		many = 5_000
	}
	count := map[string]int{"few": few, "many": many}
	search := map[string]map[string]func(){}
	for table, rows := range count {
		fill(h, table, rows, func(int) []rowstore.Edit { return []rowstore.Edit{notified(5)} })
		in := map[uint16]int{}
		for i := range rows {
			in[rowstore.Slot(table, key(i))]++
		}
		var slots []rowstore.SlotRange
		held := 0
		for i := 0; len(slots) < own; i++ {
			if slot := rowstore.Slot(table, key(i*rows/few)); in[slot] == 1 {
				slots, held = append(slots, span(slot, slot)), held+1
			}
		}
		slices.SortFunc(slots, func(a, b rowstore.SlotRange) int { return cmp.Compare(a.First, b.First) })
		scan := func(slots []rowstore.SlotRange, limit, want int) func() {
			return func() {
				got := h.scan(rowstore.ScanRange{Table: table, Slots: slots, Limit: limit, Selectors: []rowstore.Selector{pick(rowstore.Notify)}})
				require.Len(h, got, want)
			}
		}
		search[table] = map[string]func(){
			"of one slot":              scan(slots[own/2:own/2+1], 0, 1),
			"of slots that hold ten":   scan(slots, 0, held),
			"of all for ten":           scan(allSlots(), own, own),
			"of the last half for ten": scan([]rowstore.SlotRange{span(rowstore.Slots/2, rowstore.Slots-1)}, own, own),
		}
	}
	for name := range search["few"] {
		for try := 1; ; try++ {
			small, large := quickest(15, search["few"][name]), quickest(15, search["many"][name])
			t.Logf("a scan %s: among %d notified rows %v, among %d %v", name, few, small, many, large)
			// The rows are 50 times as many, at the least.
			if large <= 6*small+400*time.Microsecond {
				break
			}
			require.Less(t, try, 4, "a scan %s costs in proportion to all notified rows: %v among %d, %v among %d", name, small, few, large, many)
		}
	}
}

// slotsAfterLosingDeferred crashes a store that has not flushed.
func slotsAfterLosingDeferred(t testing.TB, e *env) {
	h := e.slots(t)
	crash := ability[rowstore.Crasher](t, h.s, "Crasher")
	rows := rowsIn("t", 6, 4711)
	for _, row := range rows[:4] {
		h.put(row, notified(5))
	}
	for i, row := range rows[2:] {
		edit := notified(7)
		if i < 2 {
			edit = rowstore.Delete(rowstore.Notify, "c", 5)
		}
		_, err := h.s.Apply(h.ctx, []rowstore.Mutation{mut(row, nil, edit)}, rowstore.ApplyOptions{Deferred: true})
		require.NoError(t, err)
	}
	require.Equal(t, 4, h.scansSlots(rowstore.ScanRange{Slots: allSlots()}))
	crash.Crash()
	require.GreaterOrEqual(t, h.scansSlots(rowstore.ScanRange{Slots: allSlots()}), 2, "what was flushed is there")
	h.put(rows[5], notified(9))
	h.scansSlots(rowstore.ScanRange{Slots: allSlots()})
}

// slotsOfAReopenedStore opens a store again, after Close and after a crash.
func slotsOfAReopenedStore(t testing.TB, e *env) {
	h, k := e.hooked(t)
	if k.Reopen == nil {
		t.Skip("the store has no hook Reopen")
	}
	ability[rowstore.SlotScanner](t, h.s, "SlotScanner")
	all := rowstore.ScanRange{Slots: allSlots()}
	for round := range 3 {
		for i := range 30 {
			h.put(key(30*round+i), notified(5), write(ver(rowstore.Write, "c", 5, "x")))
		}
		for i := range 10 {
			h.put(key(30*round+3*i), rowstore.Delete(rowstore.Notify, "c", 5))
		}
		require.Equal(t, 20*(round+1), h.scansSlots(all))
		if round == 2 && k.Crash != nil {
			k.Crash()
			_ = h.s.Close() // see crashedStoreHasWhatItAcknowledged
		} else {
			require.NoError(t, h.s.Close())
		}
		h = h.reopen(k)
		require.Equal(t, 20*(round+1), h.scansSlots(all), "round %d", round)
		h.put("another", notified(5))
		require.Equal(t, 20*(round+1)+1, h.scansSlots(all))
		h.put("another", rowstore.Delete(rowstore.Notify, "c", 5))
	}
}
