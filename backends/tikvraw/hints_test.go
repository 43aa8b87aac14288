package tikvraw

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

var pickC = []rowstore.Selector{{Family: rowstore.Notify, Column: "c", To: oracle.Max}}

// found is a scan of all slots for notifications of column "c": the hints, and the rows that were
// read.
func found(t testing.TB, s *Store, limit int) (hinted, read []string) {
	t.Helper()
	r := allSlots()
	r.Table, r.Selectors, r.Hints, r.Limit = "t", pickC, true, limit
	for row, err := range s.Scan(t.Context(), r) {
		require.NoError(t, err)
		if row.Hint {
			require.Empty(t, row.Versions)
			hinted = append(hinted, row.Row)
		} else {
			require.NotEmpty(t, row.Versions)
			read = append(read, row.Row)
		}
	}
	slices.Sort(hinted)
	slices.Sort(read)
	return hinted, read
}

// handClock is a clock that the test moves.
type handClock struct{ after atomic.Int64 }

func (c *handClock) now() time.Time { return time.Unix(0, c.after.Load()) }

func (c *handClock) pass(d time.Duration) { c.after.Add(int64(d)) }

// A notification is a hint once. While it stays, and whatever is notified beside it meanwhile, scans
// read the row. After the last one is gone the row is found no more.
func TestHintOnce(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	put(t, s, "a", note(5))
	f.counted()
	hinted, read := found(t, s, 0)
	require.Equal(t, []string{"a"}, hinted)
	require.Empty(t, read)
	require.Equal(t, map[string]int{"scan": 1}, f.counted())
	put(t, s, "a", note(7), rowstore.Delete(rowstore.Notify, "c", 5))
	put(t, s, "b", note(5))
	for i := range 3 {
		hinted, read = found(t, s, 0)
		require.Equal(t, i == 0, slices.Equal(hinted, []string{"b"}))
		require.Contains(t, read, "a")
	}
	put(t, s, "a", rowstore.Delete(rowstore.Notify, "c", 7))
	put(t, s, "b", rowstore.Delete(rowstore.Notify, "c", 5))
	s.clean.idle()
	hinted, read = found(t, s, 0)
	require.Empty(t, append(hinted, read...))
	put(t, s, "a", note(9))
	hinted, _ = found(t, s, 0)
	require.Equal(t, []string{"a"}, hinted, "another notification")
	s.clean.idle()
	require.Len(t, s.hints.recent, 1, "removed markers are forgotten")
}

// The marker is there before the change that it tells of. A scan in between gives a hint of nothing;
// the next one reads the row. If the change fails, the marker is garbage: it is a hint once, then
// its row is read, and it is removed in the end.
func TestHintBeforeTheSwap(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("lost ", lost), func(t *testing.T) {
			t.Parallel()
			var clock handClock
			data := newFakeData()
			writer, reader := data.client(), data.client()
			w := openFake(t, writer, Options{SweepEvery: -1})
			s := openFake(t, reader, Options{SweepEvery: -1, clock: clock.now})
			defer func() { require.NoError(t, s.Close()) }()
			var once sync.Once
			var early []string
			writer.before = func(call string, _ []byte) (err error) {
				if call == "cas" {
					once.Do(func() { early, _ = found(t, s, 0) })
					if lost {
						err = rowstore.ErrUnavailable
					}
				}
				if lost && (call == "delete" || call == "batchDelete") {
					err = rowstore.ErrUnavailable // the process dies, and leaves the marker
				}
				return err
			}
			out, err := w.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{note(5)}}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			require.Equal(t, lost, out[0].Err != nil)
			require.NoError(t, w.Close())
			require.Equal(t, []string{"a"}, early)
			if !lost {
				hinted, read := found(t, s, 0)
				require.Empty(t, hinted)
				require.Equal(t, []string{"a"}, read)
				return
			}
			require.Len(t, marks(t, data, spaceIndex), 1)
			for range 3 {
				hinted, read := found(t, s, 0)
				require.Empty(t, append(hinted, read...), "its head is read")
				clock.pass(2 * time.Minute)
			}
			s.clean.idle()
			require.Empty(t, marks(t, data, spaceIndex))
		})
	}
}

// A garbage marker that stands before that of a notification hides nothing, wherever a page of
// markers ends.
func TestHintBesideGarbage(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	in := fill(s, f, 600)
	var all []string
	for _, rows := range in {
		for _, row := range rows {
			all = append(all, row)
			f.store(s.keys.marker("t", row, 1+rand.Uint64N(1<<50)), []byte{valueVersion})
		}
	}
	slices.Sort(all)
	hinted, read := found(t, s, 0)
	both := append(slices.Clone(hinted), read...)
	slices.Sort(both)
	require.Equal(t, all, both)
	require.Equal(t, all, scanned(t, s, rowstore.ScanRange{}))
	hinted, read = found(t, s, 0)
	both = append(hinted, read...)
	slices.Sort(both)
	require.Equal(t, all, both)
}

// Only rows that the caller has taken count as given.
func TestHintsPageByPage(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	const rows = 700
	fill(s, f, rows)
	given := map[string]bool{}
	r := allSlots()
	r.Table, r.Selectors, r.Hints, r.Limit = "t", pickC, true, 100
	f.counted()
	for more := true; more; {
		n, last := 0, ""
		for row, err := range s.Scan(t.Context(), r) {
			require.NoError(t, err)
			require.True(t, row.Hint)
			given[row.Row] = true
			n, last = n+1, row.Row
		}
		if more = n == r.Limit; more {
			slot := rowstore.Slot("t", last)
			r.From, r.Slots = last+"\x00", []rowstore.SlotRange{{First: slot, Last: rowstore.Slots - 1}}
		}
	}
	require.Len(t, given, rows)
	require.Zero(t, f.counted()["batchGet"])
}

// Without room to remember it nothing is a hint; what no scan has met for long makes room.
func TestHintsAreBounded(t *testing.T) {
	t.Parallel()
	var clock handClock
	s, f := fakeStore(t, Options{SweepEvery: -1, clock: clock.now})
	s.hints.max = 100
	in := fill(s, f, 250)
	total := func(hinted, read []string) int { return len(hinted) + len(read) }
	hinted, read := found(t, s, 0)
	require.Len(t, hinted, 100)
	require.Equal(t, 250, total(hinted, read))
	for range 4 {
		hinted, read = found(t, s, 0)
		require.Empty(t, hinted, "they stay, so they are read")
		require.Len(t, read, 250)
		clock.pass(hintedFor / 2)
	}
	// Those that stay are read for as long as scans meet them. The others have their turn.
	for range 4 {
		clock.pass(hintedFor)
		hinted, read = found(t, s, 0)
		require.Equal(t, 250, total(hinted, read))
		require.LessOrEqual(t, len(s.hints.recent), 100)
	}
	for _, rows := range in {
		for _, row := range rows {
			put(t, s, row, rowstore.Delete(rowstore.Notify, "c", 5))
		}
	}
	s.clean.idle()
	require.Empty(t, s.hints.recent)
	require.Empty(t, s.hints.older)
	put(t, s, "new", note(5))
	hinted, _ = found(t, s, 0)
	require.Equal(t, []string{"new"}, hinted)
}

// Markers that come before those that stay, in each generation, do not make the memory larger.
func TestHintsOfManyGenerations(t *testing.T) {
	t.Parallel()
	var clock handClock
	h := newHints(clock.now)
	h.max = 10
	next := uint64(1)
	for range 20 {
		clock.pass(hintedFor)
		for ; h.may([]uint64{next}, 0); next++ {
			h.gave([]uint64{next})
		}
		for id := range next {
			h.may([]uint64{id}, 3)
		}
		require.LessOrEqual(t, len(h.recent), h.max)
		require.LessOrEqual(t, len(h.older), h.max)
	}
}

// A scan of several columns, of all, or without leave gives no hints.
func TestScansWithoutHints(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	fill(s, f, 10)
	for _, r := range []rowstore.ScanRange{
		{Selectors: pickC},
		{Hints: true, Selectors: notifyPick},
		{Hints: true, Selectors: append([]rowstore.Selector{{Family: rowstore.Notify, Column: "d", To: oracle.Max}}, pickC...)},
	} {
		r.Table, r.Slots = "t", allSlots().Slots
		n := 0
		for row, err := range s.Scan(t.Context(), r) {
			require.NoError(t, err)
			require.False(t, row.Hint)
			n++
		}
		require.Equal(t, 10, n)
	}
}

// Rows are notified and cleared by several processes while scans go on. Whoever acts on hints and
// rows as a worker does finds every notification.
func TestHintsLoseNothing(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	data := newFakeData()
	var stores []*Store
	for range 3 {
		s := openFake(t, data.client(), Options{SweepEvery: -1, staleAfter: time.Nanosecond})
		defer func() { require.NoError(t, s.Close()) }()
		stores = append(stores, s)
	}
	const rows, rounds = 40, 150
	var notified, handled sync.Map // by row and timestamp
	var writing sync.WaitGroup
	for i, s := range stores[:2] {
		writing.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // a small number
			for n := range rounds {
				row, ts := fmt.Sprint(rng.IntN(rows)), rowstore.Timestamp(2*n+i+1) //nolint:gosec // positive
				put(t, s, row, note(ts))
				notified.Store(fmt.Sprint(row, " ", ts), true)
			}
		})
	}
	done := make(chan struct{})
	go func() { writing.Wait(); close(done) }()
	s := stores[2]
	look := func() (n int) {
		hinted, read := found(t, s, 0)
		for _, row := range append(hinted, read...) {
			n++
			got, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: row, Selectors: pickC}})
			require.NoError(t, err)
			var edits []rowstore.Edit
			for _, v := range got[0].Versions {
				handled.Store(fmt.Sprint(row, " ", v.TS), true)
				edits = append(edits, rowstore.Delete(rowstore.Notify, "c", v.TS))
			}
			if len(edits) > 0 {
				put(t, s, row, edits...)
			}
		}
		return n
	}
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		look()
	}
	look()
	notified.Range(func(what, _ any) bool {
		_, ok := handled.Load(what)
		require.True(t, ok, "%v", what)
		return true
	})
	require.Empty(t, scanned(t, s, allSlots()))
}
