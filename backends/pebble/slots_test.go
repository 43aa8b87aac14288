package pebble

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	engine "github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// dropNotes drops the copy of the notifications, as if there had been too many.
func dropNotes(s *Store) {
	s.notes.mu.Lock()
	defer s.notes.mu.Unlock()
	s.notes.all = nil
}

// withAndWithoutCopy runs a test over a store with the copy of the notifications in memory, and
// over one that has dropped it.
func withAndWithoutCopy(t *testing.T, test func(t *testing.T, s *Store)) {
	t.Helper()
	for _, dropped := range []bool{false, true} {
		t.Run(fmt.Sprintf("dropped=%v", dropped), func(t *testing.T) {
			t.Parallel()
			s := mustOpen(t, Options{CacheSize: 1 << 20})
			if dropped {
				dropNotes(s)
			}
			test(t, s)
			require.Equal(t, dropped, s.notes.all == nil)
		})
	}
}

// notify puts notifications of rows, many in a batch.
func notify(t testing.TB, s *Store, table string, rows []string, edits ...rowstore.Edit) {
	t.Helper()
	for some := range slices.Chunk(rows, 1000) {
		muts := make([]rowstore.Mutation, len(some))
		for i, row := range some {
			muts[i] = rowstore.Mutation{Table: table, Row: row, Edits: edits}
		}
		outs, err := s.Apply(t.Context(), muts, rowstore.ApplyOptions{})
		require.NoError(t, err)
		for _, out := range outs {
			require.NoError(t, out.Err)
		}
	}
}

func notification(ts rowstore.Timestamp) rowstore.Edit {
	return rowstore.Put(rowstore.Notify, "c", ts, nil)
}

func pickNotify() []rowstore.Selector {
	return []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}
}

func everySlot() []rowstore.SlotRange { return []rowstore.SlotRange{{Last: rowstore.Slots - 1}} }

func rowsOf(t testing.TB, s rowstore.Store, sr rowstore.ScanRange) []string {
	t.Helper()
	got := []string{}
	for _, r := range scanAll(t, s, sr) {
		require.Equal(t, sr.Table, r.Table)
		got = append(got, r.Row)
	}
	return got
}

func sortBySlot(table string, rows []string) []string {
	return slices.SortedFunc(slices.Values(rows), func(a, b string) int {
		return cmp.Or(cmp.Compare(rowstore.Slot(table, a), rowstore.Slot(table, b)), cmp.Compare(a, b))
	})
}

// slotRows are the rows of a slot that rowsOfSlot has found, and where it goes on. One row in
// 65,536 is in a slot, so a search takes a second under the race detector.
type slotRows struct {
	rows []string
	next int64
}

var (
	foundMu sync.Mutex
	found   = map[string]*slotRows{}
)

// rowsOfSlot finds rows of one slot, whose names have hard bytes in them: the first ones, always.
func rowsOfSlot(table string, slot uint16, n int) []string {
	foundMu.Lock()
	defer foundMu.Unlock()
	key := fmt.Sprint(slot, table)
	if found[key] == nil {
		found[key] = &slotRows{}
	}
	f := found[key]
	name := []byte("\x00\xff")
	for ; len(f.rows) < n; f.next++ {
		name = append(strconv.AppendInt(name[:2], f.next, 10), "\x00\x01"...)
		if rowstore.Slot(table, string(name)) == slot {
			f.rows = append(f.rows, string(name))
		}
	}
	return slices.Clone(f.rows[:n])
}

// A page of a scan ends within a slot, in the first and in the last one, and the next goes on
// behind it. All rows of a slot have more notifications, and longer ones, than a page takes.
func TestPagesEndWithinASlot(t *testing.T) {
	t.Parallel()
	const table, rows = "t\x00", 12
	withAndWithoutCopy(t, func(t *testing.T, s *Store) {
		for _, slot := range []uint16{0, 4711, rowstore.Slots - 1} {
			want := sortBySlot(table, rowsOfSlot(table, slot, rows))
			var many []rowstore.Edit
			for ts := range rowstore.Timestamp(pageNotes / 4) {
				many = append(many, notification(ts+1))
			}
			notify(t, s, table, want, many...)
			notify(t, s, table, want[:3], rowstore.Put(rowstore.Notify, "long", 1, make([]byte, pageBytes)))
			sr := rowstore.ScanRange{Table: table, Slots: []rowstore.SlotRange{{First: slot, Last: slot}}, Selectors: pickNotify()}
			for _, r := range scanAll(t, s, sr) {
				require.GreaterOrEqual(t, len(r.Versions), len(many))
			}
			require.Equal(t, want, rowsOf(t, s, sr))
			sr.From = want[5] + "\x00"
			require.Equal(t, want[6:], rowsOf(t, s, sr))
			sr.Limit = 2
			require.Equal(t, want[6:8], rowsOf(t, s, sr))
			require.Equal(t, slices.Sorted(slices.Values(want)), slices.DeleteFunc(
				rowsOf(t, s, rowstore.ScanRange{Table: table, Selectors: pickNotify()}),
				func(row string) bool { return rowstore.Slot(table, row) != slot }))
		}
	})
}

// A thousand ranges, most of which hold nothing, among notifications of other slots and tables:
// there are more leaps than a page makes.
func TestLeapsOverRanges(t *testing.T) {
	t.Parallel()
	withAndWithoutCopy(t, func(t *testing.T, s *Store) {
		var rows []string
		for i := range 20_000 {
			rows = append(rows, benchKey(i))
		}
		notify(t, s, "t", rows, notification(5))
		notify(t, s, "s", rows[:100], notification(5))
		notify(t, s, "u", rows[:100], notification(5))
		var ranges []rowstore.SlotRange
		for slot := uint16(7); len(ranges) < 4*pageLeaps; slot += 50 {
			ranges = append(ranges, rowstore.SlotRange{First: slot, Last: slot + slot%3})
		}
		want := slices.DeleteFunc(sortBySlot("t", rows), func(row string) bool {
			slot := rowstore.Slot("t", row)
			return !slices.ContainsFunc(ranges, func(r rowstore.SlotRange) bool { return r.First <= slot && slot <= r.Last })
		})
		require.Greater(t, len(want), 100)
		require.Equal(t, want, rowsOf(t, s, rowstore.ScanRange{Table: "t", Slots: ranges, Selectors: pickNotify()}))
		require.Empty(t, rowsOf(t, s, rowstore.ScanRange{Table: "t", Slots: ranges, Selectors: []rowstore.Selector{{Family: rowstore.Notify, Column: "none", To: oracle.Max}}}))
		require.Empty(t, rowsOf(t, s, rowstore.ScanRange{Table: "v", Slots: ranges, Selectors: pickNotify()}))
	})
}

// A scan in the order of rows keeps a part of the names at a time, in either direction, and
// beside other families.
func TestRowOrderInParts(t *testing.T) {
	t.Parallel()
	withAndWithoutCopy(t, func(t *testing.T, s *Store) {
		const most = 300
		s.aheadRows = most
		// Of the long names fewer are kept than of the short ones.
		long := strings.Repeat("l", maxName-20)
		var rows []string
		for i := range 600 {
			rows = append(rows, fmt.Sprintf("%s%06d", long, i*37%600))
		}
		for i := range 7 * most {
			rows = append(rows, fmt.Sprintf("s%06d", i))
		}
		notify(t, s, "t", rows, notification(5))
		var written []string
		for i := range 100 {
			written = append(written, fmt.Sprintf("s%06dw", i*21))
		}
		notify(t, s, "t", written, rowstore.Put(rowstore.Write, "c", 5, nil))
		notify(t, s, "t", rows[len(rows)-100:], rowstore.Put(rowstore.Write, "c", 5, nil))
		slices.Sort(rows)
		sr := rowstore.ScanRange{Table: "t", Selectors: pickNotify()}
		for _, reverse := range []bool{false, true} {
			sr.Reverse = reverse
			want := slices.Clone(rows)
			if reverse {
				slices.Reverse(want)
			}
			require.Equal(t, want, rowsOf(t, s, sr), "reverse %v", reverse)
			both := sr
			both.Selectors = append(pickNotify(), pickWrites(0)...)
			want = slices.Sorted(slices.Values(append(slices.Clone(rows), written...)))
			if reverse {
				slices.Reverse(want)
			}
			require.Equal(t, want, rowsOf(t, s, both), "reverse %v", reverse)
			for _, r := range scanAll(t, s, both) {
				if strings.HasSuffix(r.Row, "w") {
					require.Len(t, r.Versions, 1)
				} else if r.Row >= rows[len(rows)-100] {
					require.Len(t, r.Versions, 2)
				}
			}
			part := sr
			part.From, part.To, part.Limit = rows[100]+"\x00", rows[2400], 1300
			want = rows[101:1401]
			if reverse {
				want = slices.Clone(rows[1100:2400])
				slices.Reverse(want)
			}
			require.Equal(t, want, rowsOf(t, s, part), "reverse %v", reverse)
		}
	})
}

// A scan beside other families shows a row's notification with what was written along, however
// long ago it looked ahead. The notified row comes into being while the scan goes on.
func TestRowIsOneViewBesideNotifications(t *testing.T) {
	t.Parallel()
	withAndWithoutCopy(t, func(t *testing.T, s *Store) {
		notify(t, s, "t", []string{"a", "n"}, notification(1))
		var rows []string
		for i := range 3 * pageRows {
			rows = append(rows, fmt.Sprintf("m%06d", i))
		}
		notify(t, s, "t", rows, rowstore.Put(rowstore.Write, "c", 1, nil))
		seen := 0
		for r, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Selectors: append(pickNotify(), pickWrites(0)...)}) {
			require.NoError(t, err)
			if r.Row == "a" {
				notify(t, s, "t", rows, rowstore.Put(rowstore.Write, "c", 2, nil), notification(2))
				notify(t, s, "t", []string{"n"}, rowstore.Delete(rowstore.Notify, "c", 1))
				continue
			}
			require.NotEqual(t, "n", r.Row, "it is gone before its page")
			if len(r.Versions) == 1 {
				require.EqualValues(t, 1, r.Versions[0].TS)
				continue
			}
			require.Len(t, r.Versions, 3, "row %q", r.Row)
			seen++
		}
		require.Greater(t, seen, pageRows, "the pages after the first one are of later states")
	})
}

// A copy that is dropped while a scan goes on: the scan goes on in the engine.
func TestCopyIsDroppedDuringAScan(t *testing.T) {
	t.Parallel()
	var rows []string
	for i := range 3000 {
		rows = append(rows, benchKey(i))
	}
	for name, sr := range map[string]rowstore.ScanRange{
		"slots":    {Slots: everySlot()},
		"rows":     {},
		"reversed": {Reverse: true},
		"both":     {Selectors: append(pickNotify(), pickWrites(1)...)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := mustOpen(t, Options{})
			notify(t, s, "t", rows, notification(5))
			sr.Table = "t"
			if sr.Selectors == nil {
				sr.Selectors = pickNotify()
			}
			want := rowsOf(t, s, sr)
			require.Len(t, want, len(rows))
			got := []string{}
			for r, err := range s.Scan(t.Context(), sr) {
				require.NoError(t, err)
				if got = append(got, r.Row); len(got) == 700 {
					dropNotes(s)
				}
			}
			require.Equal(t, want, got)
		})
	}
}

// Rows stay notified while others come and go around them, with the copy and without.
func TestSlotsWhileOthersComeAndGo(t *testing.T) {
	t.Parallel()
	withAndWithoutCopy(t, func(t *testing.T, s *Store) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		stay := rowsOfSlot("t", 5, 20)
		others := append(rowsOfSlot("t", 6, 20), rowsOfSlot("t", 5, 40)[20:]...)
		for i := range 600 {
			others = append(others, benchKey(i))
		}
		notify(t, s, "t", stay, notification(5))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		changed := make(chan struct{}, 1)
		go func() {
			rng := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // repeatable, not secret
			for {
				m := rowstore.Mutation{Table: "t", Row: others[rng.IntN(len(others))], Edits: []rowstore.Edit{notification(7)}}
				if rng.IntN(2) == 0 {
					m.Edits = []rowstore.Edit{rowstore.DeleteRange(rowstore.Notify, "c", 0, oracle.Max)}
				}
				again := rowstore.Mutation{Table: "t", Row: stay[rng.IntN(len(stay))], Edits: []rowstore.Edit{notification(rowstore.Timestamp(6 + rng.IntN(5)))}}
				if _, err := s.Apply(ctx, []rowstore.Mutation{m, again}, rowstore.ApplyOptions{}); err != nil {
					ended <- err
					return
				}
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		}()
		for i := range 12 {
			await.Value(t.Context(), t, changed, ended)
			sr := rowstore.ScanRange{Table: "t", Selectors: pickNotify(), Slots: []rowstore.SlotRange{{First: 0, Last: 5}, {First: 6, Last: rowstore.Slots - 1}}}
			if i%2 == 1 {
				sr.Slots, sr.Reverse = nil, i%4 == 1
			}
			times := map[string]int{}
			for _, row := range rowsOf(t, s, sr) {
				times[row]++
				require.Equal(t, 1, times[row], "row %q", row)
			}
			for _, row := range stay {
				require.Equal(t, 1, times[row], "row %q", row)
			}
		}
		cancel()
		require.ErrorIs(t, await.Value(t.Context(), t, ended, nil), context.Canceled)
	})
}

// A key whose slot is not its row's is damaged.
func TestWrongSlotIsCorrupt(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Options{})
	notify(t, s, "t", []string{"r"}, notification(5))
	dropNotes(s)
	key := append(appendColumn(nil, spaceNotify, "t", "r", "c"), make([]byte, 8)...)
	key[len(key)-1] = 1
	key[len(bySlot)+len("t")+endLen]++
	require.NoError(t, s.db.Set(key, nil, engine.NoSync))
	for _, sr := range []rowstore.ScanRange{{Slots: everySlot()}, {}} {
		sr.Table, sr.Selectors = "t", pickNotify()
		var last error
		for _, err := range s.Scan(t.Context(), sr) {
			last = err
		}
		require.ErrorIs(t, last, rowstore.ErrCorrupt)
	}
	require.ErrorIs(t, s.loadNotes(), rowstore.ErrCorrupt)
}
