package tikvraw

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

var notifyPick = []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}

func note(ts rowstore.Timestamp) rowstore.Edit { return rowstore.Put(rowstore.Notify, "c", ts, nil) }

// scanned returns the rows of a scan of table t.
func scanned(t testing.TB, s *Store, r rowstore.ScanRange) (rows []string) {
	t.Helper()
	r.Table, r.Selectors = "t", notifyPick
	for row, err := range s.Scan(t.Context(), r) {
		require.NoError(t, err)
		rows = append(rows, row.Row)
	}
	return rows
}

func allSlots() rowstore.ScanRange {
	return rowstore.ScanRange{Slots: []rowstore.SlotRange{{First: 0, Last: rowstore.Slots - 1}}}
}

// every returns n ranges of so many slots each, evenly apart.
func every(n, width int) (slots []rowstore.SlotRange) {
	for i := range n {
		first := i * rowstore.Slots / n
		slots = append(slots, rowstore.SlotRange{First: uint16(first), Last: uint16(first + width - 1)}) //nolint:gosec // slots
	}
	return slots
}

// fill notifies rows without the cost of Apply, and returns them by their slots.
func fill(s *Store, f *fakeRaw, rows int) map[uint16][]string {
	in := map[uint16][]string{}
	for i := range rows {
		row := fmt.Sprintf("%07d", i)
		slot := rowstore.Slot("t", row)
		in[slot] = append(in[slot], row)
		h := head{tag: 1, index: newID(), entries: []entry{{rowstore.Notify, "c", 5, value{}}}}
		f.store(s.keys.row(spaceHead, "t", row), h.encode())
		f.store(s.keys.marker("t", row, h.index), []byte{valueVersion})
	}
	for _, rows := range in {
		slices.Sort(rows)
	}
	return in
}

func ofSlots(in map[uint16][]string, slots []rowstore.SlotRange) (rows []string) {
	for _, r := range slots {
		for slot := int(r.First); slot <= int(r.Last); slot++ {
			rows = append(rows, in[uint16(slot)]...) //nolint:gosec // a slot
		}
	}
	return rows
}

// What scans of a thousand ranges ask for. The figures are the most that there may be.
func TestSlotRequests(t *testing.T) {
	t.Parallel()
	type ask struct{ ranges, width, scans int }
	for notified, asks := range map[int][]ask{
		0:    {{1000, 1, 1}, {1000, 65, 1}},
		100:  {{1000, 1, 1}},
		5000: {{1000, 1, 8}}, // reads over what is between
		50_000: {
			{1, 65, 10},
			{10, 1, 11},
			{1000, 1, 200},  // ranges of few rows, far apart
			{1000, 60, 300}, // ranges close to each other, which hold nearly all
		},
	} {
		t.Run(fmt.Sprint(notified), func(t *testing.T) {
			t.Parallel()
			s, f := fakeStore(t, Options{SweepEvery: -1})
			in := fill(s, f, notified)
			for _, a := range asks {
				slots := every(a.ranges, a.width)
				want := ofSlots(in, slots)
				f.counted()
				require.Equal(t, want, scanned(t, s, rowstore.ScanRange{Slots: slots}))
				calls := f.counted()
				t.Logf("%d rows of %d in %d ranges: %v", len(want), notified, a.ranges, calls)
				require.LessOrEqual(t, calls["scan"], a.scans)
				require.LessOrEqual(t, calls["batchGet"]+calls["get"], 8+calls["scan"]+len(want)/100)
			}
		})
	}
}

// All markers of others lie in one slot: to leap over it costs little, wherever it is. Here
// they are those of one row, which dead processes have left.
func TestCrowdedSlot(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	const crowd = 20_000
	slot := rowstore.Slot("t", "crowd")
	for id := range uint64(crowd) {
		f.store(s.keys.marker("t", "crowd", 1+id), []byte{valueVersion})
	}
	var own []string
	for i := 0; len(own) < 20; i++ {
		if row := fmt.Sprint("own", i); rowstore.Slot("t", row) != slot {
			put(t, s, row, note(5))
			own = append(own, row)
		}
	}
	slices.SortFunc(own, func(a, b string) int { return int(rowstore.Slot("t", a)) - int(rowstore.Slot("t", b)) })
	for _, n := range []int{2, 100, 1000} {
		slots := []rowstore.SlotRange{{First: 0, Last: slot - 1}}
		for i := range n - 1 {
			first := int(slot) + 1 + i*(rowstore.Slots-int(slot)-1)/(n-1)
			last := int(slot) + (i+1)*(rowstore.Slots-int(slot)-1)/(n-1)
			slots = append(slots, rowstore.SlotRange{First: uint16(first), Last: uint16(last)}) //nolint:gosec // slots
		}
		f.counted()
		require.Equal(t, own, scanned(t, s, rowstore.ScanRange{Slots: slots}))
		calls := f.counted()
		t.Logf("%d ranges: %v", n, calls)
		require.LessOrEqual(t, calls["scan"], 30)
	}
	put(t, s, "crowd", note(5))
	require.Len(t, scanned(t, s, allSlots()), 21)
	require.Equal(t, []string{"crowd"}, scanned(t, s, rowstore.ScanRange{Slots: []rowstore.SlotRange{{First: slot, Last: slot}}}))
	require.Equal(t, []string{"crowd"}, scanned(t, s, rowstore.ScanRange{From: "a", To: "d"}))
}

// One of several ranges that are read at once holds more than a request brings: what the
// requests behind it brought does not come before the rest of it.
func TestCrowdedRange(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	in := fill(s, f, 20_000)
	slot := rowstore.Slot("t", "crowd")
	for id := range uint64(3000) {
		f.store(s.keys.marker("t", "crowd", 1+id), []byte{valueVersion})
	}
	var slots []rowstore.SlotRange
	for first := int(slot) % 3000; first+20 < rowstore.Slots; first += 3000 {
		slots = append(slots, rowstore.SlotRange{First: uint16(first), Last: uint16(first + 20)}) //nolint:gosec // slots
	}
	want := ofSlots(in, slots)
	require.Greater(t, len(want), 50)
	f.counted()
	require.Equal(t, want, scanned(t, s, rowstore.ScanRange{Slots: slots}))
	calls := f.counted()
	t.Logf("%d ranges: %v", len(slots), calls)
	require.Less(t, calls["scan"], 3*len(slots))
}

// Random ranges, limits and beginnings over every density, against what is there.
func TestSlotsAtRandom(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, rows := range []int{3, 300, 3000} {
		s, f := fakeStore(t, Options{SweepEvery: -1})
		in := fill(s, f, rows)
		for range 40 {
			var slots []rowstore.SlotRange
			most := 1 + rng.IntN(1<<(1+rng.IntN(12)))
			for at := rng.IntN(most); at < rowstore.Slots; at += 1 + rng.IntN(most) {
				last := min(at+rng.IntN(most), rowstore.Slots-1)
				slots = append(slots, rowstore.SlotRange{First: uint16(at), Last: uint16(last)}) //nolint:gosec // slots
				at = last
			}
			if len(slots) == 0 {
				continue
			}
			r := rowstore.ScanRange{Slots: slots}
			want := ofSlots(in, slots)
			if first := in[slots[0].First]; len(first) > 0 && rng.IntN(2) == 0 {
				i := rng.IntN(len(first))
				r.From, want = first[i], want[i:]
			}
			if rng.IntN(2) == 0 {
				r.Limit = 1 + rng.IntN(100)
				want = want[:min(r.Limit, len(want))]
			}
			kept := slices.Clone(slots)
			require.Equal(t, append([]string(nil), want...), scanned(t, s, r), "%d ranges, limit %d", len(slots), r.Limit)
			require.Equal(t, kept, slots, "the caller's ranges are left alone")
		}
	}
}

// The order of rows takes memory for names, in a bounded amount, and as many walks over the
// markers as that makes.
func TestNamesInOrder(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	s.sizes.names = 40 * 400
	const rows = 8000
	fill(s, f, rows)
	f.counted()
	got := scanned(t, s, rowstore.ScanRange{})
	require.Len(t, got, rows)
	require.True(t, slices.IsSorted(got))
	calls := f.counted()
	t.Logf("%v", calls)
	require.LessOrEqual(t, calls["scan"], 22*(rows/sweepPage+2))
	reversed := scanned(t, s, rowstore.ScanRange{Reverse: true})
	slices.Reverse(reversed)
	require.Equal(t, got, reversed)
	require.Equal(t, got[500:6000], scanned(t, s, rowstore.ScanRange{From: got[500], To: got[6000]}))
	require.Equal(t, got[500:1700], scanned(t, s, rowstore.ScanRange{From: got[500], Limit: 1200}))
	back := scanned(t, s, rowstore.ScanRange{To: got[1700], Limit: 1200, Reverse: true})
	slices.Reverse(back)
	require.Equal(t, got[500:1700], back)
}

// Names of any bytes lie in their slots, at both ends of these too.
func TestSlotsOfOddNames(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	limits := s.Limits()
	rows := []string{
		"\x00", "\x00\x00", "\x00\x01", "\x00\xff", "\xff", "\xff\xff", "a\x00", "a\x00\x01", "a",
		strings.Repeat("\x00", limits.Row), strings.Repeat("\xff", limits.Row), strings.Repeat("x", limits.Row),
	}
	for i, ends := 0, 0; ends < 4; i++ {
		row := fmt.Sprintf("\x00\xff%d", i)
		if slot := rowstore.Slot("t", row); slot == 0 || slot == rowstore.Slots-1 {
			rows, ends = append(rows, row), ends+1
		}
	}
	for _, row := range rows {
		put(t, s, row, note(5))
	}
	slices.SortFunc(rows, func(a, b string) int {
		if c := int(rowstore.Slot("t", a)) - int(rowstore.Slot("t", b)); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	require.Equal(t, rows, scanned(t, s, allSlots()))
	for _, row := range rows {
		slot := rowstore.Slot("t", row)
		one := rowstore.ScanRange{Slots: []rowstore.SlotRange{{First: slot, Last: slot}}, From: row}
		require.Equal(t, row, scanned(t, s, one)[0])
		one.From += "\x00"
		require.NotContains(t, scanned(t, s, one), row)
	}
	require.Equal(t, len(rows), beside(s, f))
	for _, row := range rows {
		put(t, s, row, rowstore.Delete(rowstore.Notify, "c", 5))
	}
	s.clean.idle()
	require.Zero(t, beside(s, f))
}

// shortRaw is of a server that sends few keys in one message.
type shortRaw struct {
	*fakeRaw
	refused int
}

func (f *shortRaw) scan(ctx context.Context, from, to []byte, limit int, keysOnly bool) ([]pair, error) {
	if limit > 64 {
		f.refused++
		return nil, errors.New("rpc error: code = ResourceExhausted desc = Sent message larger than max")
	}
	return f.fakeRaw.scan(ctx, from, to, limit, keysOnly)
}

// Keys so long that a thousand of them are more than a server sends.
func TestKeysTooLong(t *testing.T) {
	t.Parallel()
	data := format1(t)
	crowd(data, 300)
	f := &shortRaw{fakeRaw: data.client()}
	o := Options{SweepEvery: -1, formatEvery: time.Hour}
	require.NoError(t, o.complete())
	s := newStore(f, o)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, s.open(t.Context(), t.Context()))
	require.Positive(t, f.refused)
	require.Empty(t, marks(t, data, spaceOldIndex))
	checkMigrated(t, s)
	for _, slots := range [][]rowstore.SlotRange{nil, allSlots().Slots, every(1000, 64), every(1, 1)} {
		f.refused = 0
		n := 0
		for _, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "crowd", Selectors: notifyPick, Slots: slots}) {
			require.NoError(t, err)
			n++
		}
		require.Positive(t, f.refused)
		require.True(t, n == 300 || len(slots) > 0 && n < 300)
	}
	done, err := s.Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, done.Removed)
}

// Heads so wide that a server does not send several of them in one message are read one by one. If one alone is too wide, the
// scan says so: it passes over no row.
func TestHeadsTooWide(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1, formatEvery: time.Hour})
	in := fill(s, f, 100)
	var all []string
	for _, rows := range in {
		all = append(all, rows...)
	}
	tooWide := ""
	f.before = func(call string, key []byte) error {
		if call == "batchGet" || call == "get" && tooWide != "" && bytes.Equal(key, s.keys.row(spaceHead, "t", tooWide)) {
			return errors.New("rpc error: code = ResourceExhausted desc = Sent message larger than max")
		}
		return nil
	}
	column := []rowstore.Selector{{Family: rowstore.Notify, Column: "c", To: oracle.Max}}
	for _, c := range []struct {
		name string
		r    rowstore.ScanRange
	}{
		{"rows", rowstore.ScanRange{Selectors: notifyPick}},
		{"backward", rowstore.ScanRange{Selectors: notifyPick, Reverse: true}},
		{"slots", rowstore.ScanRange{Selectors: notifyPick, Slots: allSlots().Slots}},
		{"hints", rowstore.ScanRange{Selectors: column, Slots: allSlots().Slots, Hints: true}},
		{"no hints any more", rowstore.ScanRange{Selectors: column, Slots: allSlots().Slots, Hints: true}},
	} {
		name, r := c.name, c.r
		r.Table = "t"
		scan := func() (rows []string, err error) {
			for row, err := range s.Scan(t.Context(), r) {
				if err != nil {
					return rows, err
				}
				rows = append(rows, row.Row)
			}
			return rows, nil
		}
		tooWide = ""
		rows, err := scan()
		require.NoError(t, err, name)
		require.ElementsMatch(t, all, rows, name)
		if name == "hints" {
			continue // it has read no head
		}
		tooWide = rows[len(rows)/2]
		some, err := scan()
		require.Error(t, err, name)
		require.NotContains(t, some, tooWide, name)
		require.Equal(t, rows[:len(some)], some, name)
	}
}

// A store that is taken as it is stays so, whatever scans meet: markers that no head knows, and those of processes of format 1.
func TestAsIsWritesNothing(t *testing.T) {
	t.Parallel()
	data := format1(t)
	s := openFake(t, data.client(), Options{SweepEvery: -1})
	require.NoError(t, s.Close())
	old, _ := oldProcess(t, data)
	put(t, old, "late", note(5))
	require.Equal(t, []string{"t/late"}, marks(t, data, spaceOldIndex))
	data.store(s.keys.marker("t", "dead", newID()), []byte{valueVersion})
	before := data.dump()

	var later atomic.Int64
	o := Options{SweepEvery: time.Minute, AsIs: true, formatEvery: time.Hour}
	o.clock = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	s = openFake(t, data.client(), o)
	for range 3 {
		require.ElementsMatch(t, scanned(t, s, rowstore.ScanRange{}), scanned(t, s, allSlots()))
		s.clean.idle()
		later.Add(int64(2 * time.Minute))
	}
	require.NoError(t, s.Close())
	require.Equal(t, before, data.dump())
}
