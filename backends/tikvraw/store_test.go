package tikvraw

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// apply applies one mutation of table t.
func apply(t testing.TB, s *Store, row string, conditions []rowstore.Condition, edits ...rowstore.Edit) rowstore.Outcome {
	t.Helper()
	out, err := s.Apply(context.Background(), []rowstore.Mutation{{Table: "t", Row: row, Conditions: conditions, Edits: edits}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	return out[0]
}

func put(t testing.TB, s *Store, row string, edits ...rowstore.Edit) {
	t.Helper()
	out := apply(t, s, row, nil, edits...)
	require.NoError(t, out.Err)
	require.True(t, out.Applied)
}

// read reads one row of table t.
func read(t testing.TB, s *Store, row string, picks ...rowstore.Selector) []rowstore.Version {
	t.Helper()
	if len(picks) == 0 {
		picks = everything()
	}
	rows, err := s.Read(context.Background(), []rowstore.RowRead{{Table: "t", Row: row, Selectors: picks}})
	require.NoError(t, err)
	require.NoError(t, rows[0].Err)
	return rows[0].Versions
}

func writeAt(ts rowstore.Timestamp) rowstore.Edit {
	return rowstore.Put(rowstore.Write, "c", ts, fmt.Appendf(nil, "value %d", ts))
}

// headOf returns a row's head as it is stored.
func headOf(t testing.TB, s *Store, f *fakeRaw, row string) *row {
	t.Helper()
	key := s.keys.row(spaceHead, "t", row)
	raw, err := f.get(context.Background(), key)
	require.NoError(t, err)
	r, err := s.decodeRow(key, raw)
	require.NoError(t, err)
	return r
}

// What each change costs that meets nobody else.
func TestCalls(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	long := []byte(strings.Repeat("x", inlineMax+1))
	step := func(what string, want map[string]int, do func()) {
		t.Helper()
		f.counted()
		do()
		s.clean.idle()
		require.Equal(t, want, f.counted(), what)
	}
	step("a new row, unread", map[string]int{"cas": 1}, func() { put(t, s, "a", writeAt(5)) })
	step("a change after a change", map[string]int{"cas": 1}, func() { put(t, s, "a", writeAt(6)) })
	step("a read", map[string]int{"get": 1}, func() { read(t, s, "a") })
	step("a change after a read", map[string]int{"cas": 1}, func() { put(t, s, "a", writeAt(7)) })
	s.cache.drop(s.keys.row(spaceHead, "t", "a"))
	step("a row that is there, unread", map[string]int{"cas": 2}, func() { put(t, s, "a", writeAt(8)) })
	step("a condition that fails", map[string]int{"get": 1}, func() {
		require.False(t, apply(t, s, "a", []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 0)}).Applied)
	})
	step("a check", map[string]int{"get": 1}, func() { put(t, s, "a") })
	step("a long value", map[string]int{"put": 1, "cas": 1}, func() { put(t, s, "a", rowstore.Put(rowstore.Data, "c", 9, long)) })
	step("its read", map[string]int{"get": 2}, func() { read(t, s, "a") })
	step("its end", map[string]int{"cas": 1, "delete": 1}, func() { put(t, s, "a", rowstore.Delete(rowstore.Data, "c", 9)) })
	step("the first notification", map[string]int{"put": 1, "cas": 1}, func() { put(t, s, "a", rowstore.Put(rowstore.Notify, "c", 9, nil)) })
	step("another in its place", map[string]int{"cas": 1}, func() {
		put(t, s, "a", rowstore.Put(rowstore.Notify, "c", 10, nil), rowstore.Delete(rowstore.Notify, "c", 9))
	})
	step("none left", map[string]int{"cas": 1, "delete": 1}, func() { put(t, s, "a", rowstore.Delete(rowstore.Notify, "c", 10)) })
}

// A row's history grows without its head, and every version stays readable while
// chunks are made, merged and dropped.
func TestHistoryMovesOut(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	const n = 3000
	most, calls := 0, 0
	for i := 1; i <= n; i++ {
		put(t, s, "r", writeAt(rowstore.Timestamp(i)))
		if i%100 == 0 {
			most = max(most, len(headOf(t, s, f, "r").raw))
		}
	}
	s.clean.idle()
	for call, n := range f.counted() {
		if call != "get" {
			calls += n
		}
	}
	require.Less(t, most, headSize+100, "the head's size")
	require.Less(t, calls, n+n/20, "moving out is rare")
	h := headOf(t, s, f, "r")
	require.NotEmpty(t, h.head.chunks)
	require.Less(t, len(h.head.chunks), 12, "chunks grow with the history")
	require.Equal(t, beside(s, f), pointedTo(t, s, f), "nothing is left behind")
	f.counted()
	for _, ts := range []rowstore.Timestamp{1, 2, 77, n / 2, n - 1, n} {
		got := read(t, s, "r", rowstore.Selector{Family: rowstore.Write, Column: "c", To: ts, Limit: 1})
		require.Equal(t, []rowstore.Version{{Family: rowstore.Write, Column: "c", TS: ts, Value: fmt.Appendf(nil, "value %d", ts)}}, got)
	}
	require.LessOrEqual(t, f.total(), 12, "a read of an old version fetches one chunk")
	require.Len(t, read(t, s, "r"), n)

	put(t, s, "r", rowstore.DeleteRange(rowstore.Write, "c", 0, n-1))
	s.clean.idle()
	require.Len(t, read(t, s, "r"), 1)
	require.Zero(t, beside(s, f))
}

// A row that is wide with newest versions alone keeps them all in its head, at one
// swap a change, until that would be larger than an entry may be.
func TestWideRow(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1, MaxEntry: 64 << 10})
	column := func(i int) rowstore.Edit {
		return rowstore.Put(rowstore.Write, fmt.Sprintf("column %04d", i), 5, []byte(strings.Repeat("v", 100)))
	}
	wide := 0
	for ; ; wide++ {
		f.counted()
		out := apply(t, s, "r", nil, column(wide))
		if out.Err != nil {
			require.ErrorIs(t, out.Err, rowstore.ErrTooLarge)
			require.NotErrorIs(t, out.Err, rowstore.ErrAmbiguous)
			break
		}
		require.Equal(t, map[string]int{"cas": 1}, f.counted())
	}
	require.Greater(t, wide, 450)
	require.Len(t, read(t, s, "r"), wide, "what was refused changed nothing")
	require.Zero(t, beside(s, f), "and left nothing")
	put(t, s, "r", rowstore.Delete(rowstore.Write, "column 0000", 5))
	put(t, s, "r", column(wide))
}

// Two processes change one row at the same time: each swap that fails is made again
// on what it met, and no change is lost.
func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	data := newFakeData()
	const each = 300
	var g errgroup.Group
	var lost atomic.Int64
	for p := range 2 {
		f := data.client()
		// Answers to swaps get lost, half of them of swaps that took effect.
		f.before = func(call string, _ []byte) error {
			runtime.Gosched()
			if call == "cas" && rand.IntN(20) == 0 {
				return errDied
			}
			return nil
		}
		f.after = func(call string, _ []byte) error {
			if call == "cas" && rand.IntN(20) == 0 {
				lost.Add(1)
				return errDied
			}
			return nil
		}
		quiet := data.client()
		s := openFake(t, quiet, small(Options{SweepEvery: -1}))
		s.raw = f
		defer func() { require.NoError(t, s.Close()) }()
		g.Go(func() error {
			for i := range each {
				id := rowstore.Timestamp(1 + 2*i + p)
				for {
					out, err := s.Apply(context.Background(), []rowstore.Mutation{{
						Table: "t", Row: "r", Conditions: []rowstore.Condition{rowstore.AbsentAt("c", 1)},
						Edits: []rowstore.Edit{writeAt(id), rowstore.Put(rowstore.Notify, "n", id, nil), rowstore.DeleteRange(rowstore.Notify, "n", 0, id-1)},
					}}, rowstore.ApplyOptions{})
					if err == nil {
						err = out[0].Err
					}
					if err == nil {
						break
					}
					if !errors.Is(err, errDied) {
						return err
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	require.Positive(t, lost.Load())
	s := openFake(t, data.client(), Options{SweepEvery: -1})
	defer func() { require.NoError(t, s.Close()) }()
	require.Len(t, read(t, s, "r", rowstore.Selector{Family: rowstore.Write, Column: "c", To: oracle.Max}), 2*each)
}

// The second arrival of a swap meets what the first one wrote.
func TestSecondArrival(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	s.raw = &twice{f}
	long := []byte(strings.Repeat("x", 1000))
	for ts := rowstore.Timestamp(1); ts < 20; ts++ {
		out := apply(t, s, "r", []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", ts)}, rowstore.Put(rowstore.Write, "c", ts, long))
		require.NoError(t, out.Err)
		require.True(t, out.Applied, "its own swap is not taken for another's")
	}
	ts, err := s.Oracle().Draw(context.Background(), 1)
	require.NoError(t, err)
	require.NotZero(t, ts)
	s.clean.idle()
	require.Len(t, read(t, s, "r"), 19)
	require.Equal(t, beside(s, f), pointedTo(t, s, f))
}

// twice sends each swap twice, as TiKV's client does when it lost the first answer.
type twice struct{ *fakeRaw }

func (f *twice) cas(ctx context.Context, key, old, value []byte) ([]byte, bool, error) {
	if _, _, err := f.fakeRaw.cas(ctx, key, old, value); err != nil {
		return nil, false, err
	}
	return f.fakeRaw.cas(ctx, key, old, value)
}

// Sweeps beside writers whose keys no head points to yet take nothing that one of
// them needs.
func TestSweepBesideWriters(t *testing.T) {
	t.Parallel()
	data := newFakeData()
	var g, sweeps errgroup.Group
	var stop atomic.Bool
	long := strings.Repeat("x", inlineMax)
	const writers, each = 4, 150
	for w := range writers {
		f := data.client()
		f.before = func(string, []byte) error {
			for range rand.IntN(4) {
				runtime.Gosched()
			}
			return nil
		}
		s := openFake(t, f, small(Options{SweepEvery: -1}))
		defer func() { require.NoError(t, s.Close()) }()
		g.Go(func() error {
			for i := range each {
				ts := rowstore.Timestamp(1 + i*writers + w)
				out, err := s.Apply(context.Background(), []rowstore.Mutation{{Table: "t", Row: fmt.Sprint("r", i%3), Edits: []rowstore.Edit{
					rowstore.Put(rowstore.Data, "c", ts, fmt.Append(nil, long, ts)),
					rowstore.Put(rowstore.Notify, "c", ts, nil), rowstore.DeleteRange(rowstore.Notify, "c", 0, ts-1),
				}}}, rowstore.ApplyOptions{})
				if err := errors.Join(err, out[0].Err); err != nil {
					return err
				}
			}
			return nil
		})
		if w == 0 {
			sweeps.Go(func() error {
				for !stop.Load() {
					if _, err := s.Sweep(context.Background()); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	require.NoError(t, g.Wait())
	stop.Store(true)
	require.NoError(t, sweeps.Wait())
	f := data.client()
	s := openFake(t, f, Options{SweepEvery: -1})
	defer func() { require.NoError(t, s.Close()) }()
	n := 0
	for _, r := range contents(t, s) {
		for _, v := range r.Versions {
			if v.Family == rowstore.Data {
				n++
				require.Equal(t, fmt.Append(nil, long, v.TS), v.Value)
			}
		}
	}
	require.Equal(t, writers*each, n)
}

// A marker that a dead process left costs scans nothing but its key, and goes when it
// was met again after a while. One that a swap under way will point to survives.
func TestStaleMarkers(t *testing.T) {
	t.Parallel()
	data := newFakeData()
	dead := data.client()
	s := openFake(t, dead, Options{SweepEvery: -1})
	put(t, s, "both", rowstore.Put(rowstore.Notify, "c", 4, nil))
	dead.before = func(call string, _ []byte) error {
		if call == "cas" || strings.Contains(call, "elete") {
			return errDied
		}
		return nil
	}
	for _, row := range []string{"a", "b"} {
		require.Error(t, apply(t, s, row, nil, rowstore.Put(rowstore.Notify, "c", 5, nil)).Err)
	}
	require.NoError(t, s.Close())

	var mu sync.Mutex
	now := time.Now()
	f := data.client()
	o := Options{SweepEvery: -1}
	o.clock = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	s = openFake(t, f, o)
	defer func() { require.NoError(t, s.Close()) }()
	look := func() []string {
		require.ElementsMatch(t, scanned(t, s, rowstore.ScanRange{}), scanned(t, s, allSlots()))
		s.clean.idle()
		return scanned(t, s, rowstore.ScanRange{})
	}
	for range 3 {
		require.Equal(t, []string{"both"}, look())
		require.Equal(t, 3, beside(s, f))
	}
	mu.Lock()
	now = now.Add(2 * time.Minute)
	mu.Unlock()
	require.Equal(t, []string{"both"}, look())
	require.Equal(t, 1, beside(s, f), "the two that nobody points to are gone")
	put(t, s, "a", rowstore.Put(rowstore.Notify, "c", 6, nil))
	require.Equal(t, []string{"a", "both"}, look())
}

// More stale markers than the memory for them holds go too, one part after the other: an outage
// can leave tens of thousands, and each scan reads a head for each of them.
func TestManyStaleMarkers(t *testing.T) {
	t.Parallel()
	var later atomic.Int64
	o := Options{SweepEvery: -1}
	o.clock = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	s, f := fakeStore(t, o)
	put(t, s, "notified", note(5))
	for i := range 2*seenMax + seenMax/2 {
		key := s.keys.marker("t", fmt.Sprint("row ", i), newID())
		require.NoError(t, f.put(context.Background(), key, []byte{valueVersion}))
	}
	for range 4 {
		require.Equal(t, []string{"notified"}, scanned(t, s, allSlots()))
		s.clean.idle()
		later.Add(int64(61 * time.Second))
	}
	require.Equal(t, 1, beside(s, f))
}

// A sweep passes over what it cannot read, removes what is garbage behind that, and says so at the end.
func TestSweepBesideDamage(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	rows := []string{"a", "b", "c", "d"}
	slices.SortFunc(rows, func(a, b string) int { return int(rowstore.Slot("t", a)) - int(rowstore.Slot("t", b)) })
	for _, row := range rows {
		f.store(s.keys.marker("t", row, newID()), []byte{valueVersion})
	}
	damaged := s.keys.row(spaceHead, "t", rows[0])
	f.store(damaged, []byte("what is this?"))
	strange := s.keys.marker("t", rows[1], 7)
	strange[len(s.keys.table(spaceIndex, "t"))]++ // in another slot than its row
	f.store(strange, []byte{valueVersion})
	done, err := s.Sweep(t.Context())
	require.ErrorIs(t, err, rowstore.ErrCorrupt)
	require.Regexp(t, regexp.QuoteMeta(fmt.Sprintf("%q", damaged))+"|"+regexp.QuoteMeta(fmt.Sprintf("%q", strange)), err.Error())
	require.Equal(t, len(rows)-1, done.Removed)
	require.Equal(t, 2, beside(s, f))
}

// A process whose clock was far ahead must not keep all others from looking for garbage until theirs are there.
func TestSweepIsDue(t *testing.T) {
	t.Parallel()
	s, _ := fakeStore(t, Options{SweepEvery: time.Hour})
	now := time.UnixMilli(1 << 40)
	claim := func(ago time.Duration) []byte {
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(now.Add(-ago).UnixMilli())), 7)
	}
	for _, c := range []struct {
		claim []byte
		due   bool
	}{
		{nil, true},
		{[]byte("strange"), true},
		{claim(0), false},
		{claim(time.Hour - time.Second), false},
		{claim(time.Hour), true},
		{claim(-time.Minute), false}, // of a clock that is a little ahead
		{claim(-time.Hour), true},
		{claim(-1000 * time.Hour), true},
	} {
		require.Equal(t, c.due, s.sweepIsDue(c.claim, now), "%x", c.claim)
	}
}

// The oracle is fixed when the store is made, and two processes share it.
func TestOracleIsFixed(t *testing.T) {
	t.Parallel()
	data := newFakeData()
	one := openFake(t, data.client(), Options{Oracle: OracleStore, SweepEvery: -1})
	defer func() { require.NoError(t, one.Close()) }()
	two := openFake(t, data.client(), Options{SweepEvery: -1})
	defer func() { require.NoError(t, two.Close()) }()
	require.Equal(t, OracleStore, two.oracleKind, "what is stored counts")
	var last oracle.Timestamp
	for i := range 100 {
		s := one
		if i%2 == 1 {
			s = two
		}
		ts, err := s.Oracle().Draw(context.Background(), 1+i%3)
		require.NoError(t, err)
		require.Greater(t, ts, last)
		last = ts + oracle.Timestamp(i%3)
	}
	o := Options{Oracle: OraclePD}
	require.NoError(t, o.complete())
	s := newStore(data.client(), o)
	require.ErrorIs(t, s.open(context.Background(), context.Background()), rowstore.ErrInvalid)
	require.NoError(t, s.Close())
}

// PD's clock goes back: no timestamp is handed out twice, and when it has caught up
// everything goes on.
func TestClockOfPDGoesBack(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1, RequestTimeout: 200 * time.Millisecond})
	first, err := s.Oracle().Draw(context.Background(), 1)
	require.NoError(t, err)
	f.mu.Lock()
	f.tso -= 1 << 30
	f.stuck = true
	f.mu.Unlock()
	_, err = s.Oracle().Draw(context.Background(), 1)
	require.ErrorContains(t, err, "clock went back")
	f.mu.Lock()
	f.stuck = false
	f.mu.Unlock()
	second, err := s.Oracle().Draw(context.Background(), 1)
	require.NoError(t, err)
	require.Greater(t, second, first)
}

func TestSplitByRegion(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	whole := s.keys.table(spaceHead, "t")
	for i := range 10 {
		cut := s.keys.row(spaceHead, "t", fmt.Sprintf("row\x00%02d", i))
		f.splits = append(f.splits, cut[:len(cut)-rand.IntN(3)]) // TiKV cuts keys as it likes
	}
	f.splits = append(f.splits, whole, s.keys.afterTable(spaceHead, "t"), s.keys.row(spaceHead, "s", "x"), s.keys.row(spaceHead, "u", "x"))
	for n := 1; n < 20; n++ {
		keys, err := s.Split(context.Background(), "t", n)
		require.NoError(t, err)
		require.Len(t, keys, min(n-1, 10))
		for i, k := range keys {
			require.True(t, strings.HasPrefix(k, "row\x00"), "%q", k)
			require.True(t, i == 0 || keys[i-1] < k)
		}
	}
}

// A scan of many rows holds a page of them at a time. Not parallel: it measures the
// memory of the process.
func TestScanMemory(t *testing.T) {
	const rows = 400_000
	s, f := fakeStore(t, Options{SweepEvery: -1, CacheSize: 1 << 20})
	h := head{tag: 1, entries: []entry{{rowstore.Write, "c", 5, value{bytes: make([]byte, 100)}}}}
	raw := h.encode()
	for i := range rows {
		f.store(s.keys.row(spaceHead, "t", fmt.Sprintf("%08d", i)), raw)
	}
	for i := range 50 {
		wide := head{tag: 1, entries: []entry{{rowstore.Write, "c", 5, value{bytes: make([]byte, 256<<10)}}}}
		f.store(s.keys.row(spaceHead, "t", fmt.Sprintf("%08d/", rows/2+i)), wide.encode())
	}
	base := liveBytes()
	n, most := 0, int64(0)
	for _, err := range s.Scan(context.Background(), rowstore.ScanRange{Table: "t", Selectors: everything()}) {
		require.NoError(t, err)
		if n++; n%40_000 == 0 || n == rows/2+25 {
			most = max(most, liveBytes()-base)
		}
	}
	require.Equal(t, rows+50, n)
	require.Less(t, most, int64(32<<20), "bytes held by a scan")
	require.Less(t, f.counted()["scan"], rows/pageRows*2+200)
}

func liveBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A request may still be sent when the call that made it has ended. So a value that is sent apart is a copy, and not the caller's memory.
func TestValueOfARequestIsACopy(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	want := bytes.Repeat([]byte("v"), 2*inlineMax)
	value, sent := bytes.Clone(want), 0
	f.before = func(call string, _ []byte) error {
		if call == "put" || call == "batchPut" {
			sent++
			clear(value)
		}
		return nil
	}
	require.True(t, apply(t, s, "r", nil, rowstore.Put(rowstore.Write, "c", 5, value)).Applied)
	require.Positive(t, sent)
	rows, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "r", Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: oracle.Max, Limit: 1}}}})
	require.NoError(t, err)
	require.Equal(t, want, rows[0].Newest(rowstore.Write, "c").Value)
}
