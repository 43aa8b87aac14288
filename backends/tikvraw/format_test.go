package tikvraw

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// format1 is what a program of format 1 has written: two tables with notified rows, names of
// odd bytes among them, and a marker for a change that did not happen.
func format1(t testing.TB) *fakeData {
	t.Helper()
	raw, err := os.ReadFile("testdata/format1.txt")
	require.NoError(t, err)
	data := newFakeData()
	for in := bufio.NewScanner(bytes.NewReader(raw)); in.Scan(); {
		key, value, ok := strings.Cut(in.Text(), " ")
		require.True(t, ok)
		var p pair
		p.key, err = hex.DecodeString(key)
		require.NoError(t, err)
		p.value, err = hex.DecodeString(value)
		require.NoError(t, err)
		data.store(p.key, p.value)
	}
	return data
}

// marks lists the markers of a space by the names of their rows.
func marks(t testing.TB, data *fakeData, space byte) (rows []string) {
	t.Helper()
	k := newKeyspace(defaultPrefix)
	for _, p := range data.dump() {
		if len(p.key) <= len(k.base)+1 || p.key[len(k.base)] != space {
			continue
		}
		key := p.key
		if space == spaceOldIndex {
			var err error
			key, err = k.fromOld(key)
			require.NoError(t, err)
		}
		m, err := k.parseIndex(key)
		require.NoError(t, err)
		rows = append(rows, m.table+"/"+m.row)
	}
	slices.Sort(rows)
	return rows
}

func storedRecord(t testing.TB, data *fakeData) (r record) {
	t.Helper()
	data.mu.Lock()
	defer data.mu.Unlock()
	require.NoError(t, json.Unmarshal(data.lookup(newKeyspace(defaultPrefix).space(spaceRecord)), &r))
	return r
}

// notifiedIn is which rows of a table are notified by their heads, sorted.
func notifiedIn(t testing.TB, s *Store, table string) (rows []string) {
	t.Helper()
	for r, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: table, Selectors: everything()}) {
		require.NoError(t, err)
		if len(r.All(rowstore.Notify, "c"))+len(r.All(rowstore.Notify, "d")) > 0 {
			rows = append(rows, r.Row)
		}
	}
	return rows
}

// checkMigrated compares both kinds of scans with the heads.
func checkMigrated(t testing.TB, s *Store) {
	t.Helper()
	for _, table := range []string{"t", "u\x00v"} {
		want := notifiedIn(t, s, table)
		require.Len(t, want, 16)
		var ordered, bySlot []string
		for _, slots := range [][]rowstore.SlotRange{nil, allSlots().Slots} {
			for r, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: table, Selectors: notifyPick, Slots: slots}) {
				require.NoError(t, err)
				if slots == nil {
					ordered = append(ordered, r.Row)
				} else {
					bySlot = append(bySlot, r.Row)
				}
			}
		}
		require.Equal(t, want, ordered)
		require.ElementsMatch(t, want, bySlot)
	}
}

func TestMigration(t *testing.T) {
	t.Parallel()
	data := format1(t)
	require.Equal(t, record{What: recordWhat, Format: 1, Oracle: OraclePD}, storedRecord(t, data))
	before := marks(t, data, spaceOldIndex)
	require.Len(t, before, 33, "32 notified rows and a change that did not happen")
	heads := valuesOf(data, spaceHead)
	f := data.client()
	s := openFake(t, f, Options{SweepEvery: -1})
	require.LessOrEqual(t, f.total(), 16, "%v", f.counted())
	require.Empty(t, marks(t, data, spaceOldIndex))
	require.Equal(t, before, marks(t, data, spaceIndex))
	require.Equal(t, heads, valuesOf(data, spaceHead), "no head is written")
	rec := storedRecord(t, data)
	require.Equal(t, 2, rec.Format, "a program of format 1 refuses any other")
	require.Equal(t, OraclePD, rec.Oracle)
	require.WithinDuration(t, time.Now(), time.UnixMilli(rec.Moved), time.Hour)
	checkMigrated(t, s)
	// The markers go with the notifications, as they do in a store of this format.
	for _, row := range notifiedIn(t, s, "t") {
		put(t, s, row, rowstore.DeleteRange(rowstore.Notify, "c", 0, 99), rowstore.DeleteRange(rowstore.Notify, "d", 0, 99))
	}
	s.clean.idle()
	require.Len(t, marks(t, data, spaceIndex), 17)
	require.Empty(t, scanned(t, s, allSlots()))
	done, err := s.Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, done.Removed)
	require.NoError(t, s.Close())

	again := openFake(t, data.client(), Options{SweepEvery: -1})
	require.Equal(t, rec, storedRecord(t, data), "the second Open has nothing to migrate")
	require.NoError(t, again.Close())
}

func valuesOf(data *fakeData, space byte) (all []pair) {
	k := newKeyspace(defaultPrefix)
	for _, p := range data.dump() {
		if p.key[len(k.base)] == space {
			all = append(all, p)
		}
	}
	return all
}

// crowd adds notified rows of format 1, so that moving them takes several pages.
func crowd(data *fakeData, n int) {
	k := newKeyspace(defaultPrefix)
	for i := range n {
		h := head{tag: 1, index: uint64(1<<60 + i), entries: []entry{{rowstore.Notify, "c", 5, value{}}}} //nolint:gosec // positive
		key := k.row(spaceHead, "crowd", fmt.Sprint(i))
		data.store(key, h.encode())
		data.store(binary.BigEndian.AppendUint64(k.sibling(key, spaceOldIndex), h.index), []byte{valueVersion})
	}
}

// A migration may take longer than Open has for everything else.
func TestLongMigration(t *testing.T) {
	t.Parallel()
	data := format1(t)
	crowd(data, 2*sweepPage)
	want := marks(t, data, spaceOldIndex)
	f := data.client()
	soon, over := context.WithCancel(t.Context())
	f.before = func(call string, _ []byte) error {
		if call == "batchPut" {
			over()
		}
		return nil
	}
	o := Options{SweepEvery: -1}.counted()
	require.NoError(t, o.complete())
	s := newStore(f, o)
	defer func() { require.NoError(t, s.Close()) }()
	s.drawFrom = f
	require.NoError(t, s.open(t.Context(), soon))
	require.Error(t, soon.Err())
	require.Empty(t, marks(t, data, spaceOldIndex))
	require.Equal(t, want, marks(t, data, spaceIndex))

	err := s.open(t.Context(), soon)
	require.ErrorIs(t, err, context.Canceled, "the rest ends with its time")
}

// A migration dies at each of its calls, the call done or not, and the next Open goes on.
func TestInterruptedMigration(t *testing.T) {
	t.Parallel()
	died, partly := 0, 0
	for n := 0; ; n++ {
		finished := false
		for _, done := range []bool{false, true} {
			data := format1(t)
			crowd(data, sweepPage+10)
			want := marks(t, data, spaceOldIndex)
			f := data.client()
			var left atomic.Int64
			left.Store(int64(n))
			hook := func(first bool) func(string, []byte) error {
				return func(string, []byte) error {
					if first {
						left.Add(-1)
					}
					if left.Load() < 0 && first != done || left.Load() < -1 {
						return errDied
					}
					return nil
				}
			}
			f.before, f.after = hook(true), hook(false)
			o := Options{SweepEvery: -1, formatEvery: time.Hour}
			require.NoError(t, o.complete())
			s := newStore(f, o)
			err := s.open(t.Context(), t.Context())
			require.NoError(t, s.Close())
			if err == nil {
				finished = true
				continue
			}
			require.ErrorIs(t, err, errDied)
			died++
			if len(marks(t, data, spaceOldIndex)) > 0 && storedRecord(t, data).Format == 2 {
				partly++
			}
			after := openFake(t, data.client(), Options{SweepEvery: -1})
			require.Empty(t, marks(t, data, spaceOldIndex), "call %d, done: %v", n, done)
			require.Equal(t, want, marks(t, data, spaceIndex))
			checkMigrated(t, after)
			require.NoError(t, after.Close())
		}
		if finished {
			break
		}
	}
	t.Logf("died %d times, %d of them with some markers moved and others not", died, partly)
	require.Greater(t, partly, 3)
}

// Several processes open a store of format 1 at once.
func TestMigrationsAtOnce(t *testing.T) {
	t.Parallel()
	data := format1(t)
	crowd(data, 3*sweepPage)
	want := marks(t, data, spaceOldIndex)
	var g errgroup.Group
	stores := make([]*Store, 5)
	for i := range stores {
		g.Go(func() error {
			f := data.client()
			f.before = func(string, []byte) error {
				time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
				return nil
			}
			o := Options{SweepEvery: -1}
			if err := o.complete(); err != nil {
				return err
			}
			stores[i] = newStore(f, o)
			return stores[i].open(context.Background(), context.Background())
		})
	}
	require.NoError(t, g.Wait())
	require.Empty(t, marks(t, data, spaceOldIndex))
	require.Equal(t, want, marks(t, data, spaceIndex))
	for _, s := range stores {
		checkMigrated(t, s)
		require.Equal(t, storedRecord(t, data).Moved, s.movedAt)
		require.NoError(t, s.Close())
	}
}

// oldRaw makes a store write its markers where a program of format 1 has them. All else is
// the same in both formats.
type oldRaw struct {
	*fakeRaw
	keys keyspace
}

func (f *oldRaw) old(key []byte) []byte {
	m, err := f.keys.parseIndex(key)
	if err != nil {
		return key
	}
	return binary.BigEndian.AppendUint64(f.keys.row(spaceOldIndex, m.table, m.row), m.id)
}

func (f *oldRaw) put(ctx context.Context, key, value []byte) error {
	return f.fakeRaw.put(ctx, f.old(key), value)
}

func (f *oldRaw) batchPut(ctx context.Context, keys, values [][]byte) error {
	keys = slices.Clone(keys)
	for i := range keys {
		keys[i] = f.old(keys[i])
	}
	return f.fakeRaw.batchPut(ctx, keys, values)
}

func (f *oldRaw) delete(ctx context.Context, key []byte) error {
	return f.fakeRaw.delete(ctx, f.old(key))
}

func (f *oldRaw) batchDelete(ctx context.Context, keys [][]byte) error {
	keys = slices.Clone(keys)
	for i := range keys {
		keys[i] = f.old(keys[i])
	}
	return f.fakeRaw.batchDelete(ctx, keys)
}

// oldProcess is one that has had the store open since before the migration.
func oldProcess(t testing.TB, data *fakeData) (*Store, *fakeRaw) {
	t.Helper()
	o := Options{SweepEvery: -1}
	require.NoError(t, o.complete())
	f := data.client()
	s := newStore(&oldRaw{f, newKeyspace(defaultPrefix)}, o)
	atend.Do(t, func() { require.NoError(t, s.Close()) })
	return s, f
}

// A process of format 1 goes on writing after the migration. What it notifies is found, at
// once by each scan, and later by what a process does from time to time.
func TestOldProcess(t *testing.T) {
	t.Parallel()
	data := format1(t)
	old, _ := oldProcess(t, data)
	put(t, old, "before", note(5))
	var later atomic.Int64
	o := Options{SweepEvery: -1, formatEvery: time.Hour}
	o.clock = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	s := openFake(t, data.client(), o)
	defer func() { require.NoError(t, s.Close()) }()
	require.Contains(t, scanned(t, s, allSlots()), "before")

	put(t, old, "after", note(5))
	require.Equal(t, []string{"t/after"}, marks(t, data, spaceOldIndex))
	require.Contains(t, scanned(t, s, allSlots()), "after")
	require.Empty(t, marks(t, data, spaceOldIndex))
	put(t, old, "in order", note(5))
	require.Contains(t, scanned(t, s, rowstore.ScanRange{}), "in order")

	// Both change the same rows.
	put(t, old, "both", note(5))
	put(t, s, "both", rowstore.Put(rowstore.Notify, "d", 6, nil))
	require.Contains(t, scanned(t, s, allSlots()), "both")
	put(t, s, "ours", note(5))
	put(t, old, "ours", rowstore.Put(rowstore.Notify, "d", 6, nil), rowstore.Delete(rowstore.Notify, "c", 5))
	require.Contains(t, scanned(t, s, allSlots()), "ours")
	put(t, old, "ours", rowstore.Delete(rowstore.Notify, "d", 6))
	require.NotContains(t, scanned(t, s, allSlots()), "ours")
	put(t, old, "theirs", note(5))
	put(t, s, "theirs", rowstore.Delete(rowstore.Notify, "c", 5))
	require.NotContains(t, scanned(t, s, allSlots()), "theirs")
	put(t, old, "theirs", note(7))
	require.Contains(t, scanned(t, s, allSlots()), "theirs")

	// After some time scans look in one place.
	later.Store(int64(oldLasts + time.Minute))
	put(t, old, "late", note(5))
	require.NotContains(t, scanned(t, s, allSlots()), "late")
	again := openFake(t, data.client(), Options{SweepEvery: -1, formatEvery: time.Hour})
	require.NoError(t, again.Close())
	require.Contains(t, scanned(t, s, allSlots()), "late", "a process that opens the store has moved it")
	put(t, old, "later", note(5))
	watching := openFake(t, data.client(), Options{SweepEvery: -1, formatEvery: time.Millisecond, clock: o.clock})
	defer func() { require.NoError(t, watching.Close()) }()
	put(t, old, "latest", note(5))
	require.Eventually(t, func() bool { return slices.Contains(scanned(t, s, allSlots()), "latest") }, time.Minute, time.Millisecond)
}

// Old and new processes notify and clear the same rows while others open the store and scan.
// In the end a scan finds what the heads say.
func TestOldProcessesAtWork(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	data := format1(t)
	var g errgroup.Group
	var changed, mine atomic.Int64
	var mu sync.Mutex
	last := map[string]bool{} // what each writer left its own rows as
	work := func(s *Store, name string, n uint64) {
		rng := rand.New(rand.NewPCG(seed, n))
		g.Go(func() error {
			for i := range 300 {
				row, own := fmt.Sprint("shared", rng.IntN(4)), rng.IntN(2) == 0
				if own {
					row = fmt.Sprint(name, rng.IntN(4))
				}
				edit, notified := note(rowstore.Timestamp(10+i)), true //nolint:gosec // positive
				if rng.IntN(2) == 0 {
					edit, notified = rowstore.DeleteRange(rowstore.Notify, "c", 0, 1<<40), false
				}
				out, err := s.Apply(context.Background(), []rowstore.Mutation{{Table: "t", Row: row, Edits: []rowstore.Edit{edit}}}, rowstore.ApplyOptions{})
				if err = errors.Join(err, out[0].Err); err != nil {
					return err
				}
				changed.Add(1)
				if own {
					mu.Lock()
					last[row] = notified
					mu.Unlock()
				}
			}
			return nil
		})
	}
	for i := range 2 {
		old, _ := oldProcess(t, data)
		work(old, fmt.Sprint("old", i), uint64(i)) //nolint:gosec // positive
	}
	for i := range 3 {
		s := openFake(t, data.client(), Options{SweepEvery: -1, formatEvery: time.Millisecond, staleAfter: time.Nanosecond})
		defer func() { require.NoError(t, s.Close()) }()
		work(s, fmt.Sprint("new", i), uint64(10+i)) //nolint:gosec // positive
		g.Go(func() error {
			for changed.Load() < 1000 {
				for _, err := range s.Scan(context.Background(), rowstore.ScanRange{Table: "t", Selectors: notifyPick, Slots: allSlots().Slots}) {
					if err != nil {
						return err
					}
				}
				mine.Add(1)
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	require.Positive(t, mine.Load())
	s := openFake(t, data.client(), Options{SweepEvery: -1})
	defer func() { require.NoError(t, s.Close()) }()
	got := scanned(t, s, allSlots())
	require.ElementsMatch(t, notifiedIn(t, s, "t"), got)
	for row, notified := range last {
		require.Equal(t, notified, slices.Contains(got, row), row)
	}
}

// A store of a newer format is refused at Open, and by every call of a process that had it
// open.
func TestNewerFormat(t *testing.T) {
	t.Parallel()
	for _, from := range []Oracle{OraclePD, OracleStore} {
		t.Run(string(from), func(t *testing.T) {
			t.Parallel()
			newerFormat(t, from)
		})
	}
}

func newerFormat(t *testing.T, from Oracle) {
	t.Helper()
	data := newFakeData()
	s := openFake(t, data.client(), Options{Oracle: from, SweepEvery: time.Minute, formatEvery: time.Millisecond})
	defer func() { require.NoError(t, s.Close()) }()
	put(t, s, "a", note(5))
	require.Zero(t, s.movedAt)
	key := s.keys.space(spaceRecord)
	data.mu.Lock()
	raised := bytes.Replace(data.lookup(key), []byte(`"format":2`), []byte(`"format":3`), 1)
	data.store(key, raised)
	data.mu.Unlock()
	require.Eventually(t, func() bool { return s.outdated.Load() != nil }, time.Minute, time.Millisecond)
	says := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, rowstore.ErrFormat)
		require.ErrorContains(t, err, "version 3")
		require.ErrorContains(t, err, "versions up to 2")
	}
	ctx := t.Context()
	_, err := s.Apply(ctx, []rowstore.Mutation{{Table: "t", Row: "b", Edits: []rowstore.Edit{note(5)}}}, rowstore.ApplyOptions{})
	says(err)
	_, err = s.Read(ctx, []rowstore.RowRead{{Table: "t", Row: "a", Selectors: everything()}})
	says(err)
	for _, r := range []rowstore.ScanRange{{Table: "t", Selectors: everything()}, {Table: "t", Selectors: notifyPick}, {Table: "t", Selectors: notifyPick, Slots: allSlots().Slots}} {
		n := 0
		for _, err := range s.Scan(ctx, r) {
			says(err)
			n++
		}
		require.Equal(t, 1, n)
	}
	for _, err := range s.Tables(ctx) {
		says(err)
	}
	_, err = s.Sweep(ctx)
	says(err)
	_, err = s.Split(ctx, "t", 3)
	says(err)
	_, err = s.Oracle().Draw(ctx, 1)
	says(err)
	_, err = s.Report(ctx)
	says(err)
	o := Options{SweepEvery: -1}
	require.NoError(t, o.complete())
	other := newStore(data.client(), o)
	says(other.open(ctx, ctx))
	require.NoError(t, other.Close())
	require.NoError(t, s.Close())
	_, err = s.Split(ctx, "t", 3)
	require.ErrorIs(t, err, rowstore.ErrClosed)
}

// Nothing is written to a store that somebody removes.
func TestRemovedStore(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1, formatEvery: time.Millisecond})
	put(t, s, "a", note(5))
	require.NoError(t, f.delete(t.Context(), s.keys.space(spaceRecord)))
	require.Eventually(t, func() bool { return s.outdated.Load() != nil }, time.Minute, time.Millisecond)
	_, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "b", Edits: []rowstore.Edit{note(5)}}}, rowstore.ApplyOptions{})
	require.ErrorIs(t, err, rowstore.ErrFormat)
	require.ErrorContains(t, err, "is gone")
}

// A marker that lies in another slot than its row is damaged.
func TestMarkerInAnotherSlot(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	key := s.keys.marker("t", "a", 7)
	at := len(s.keys.table(spaceIndex, "t"))
	key[at]++
	f.store(key, []byte{1})
	for _, r := range []rowstore.ScanRange{{}, allSlots()} {
		r.Table, r.Selectors = "t", notifyPick
		for _, err := range s.Scan(t.Context(), r) {
			require.ErrorIs(t, err, rowstore.ErrCorrupt)
			require.ErrorContains(t, err, fmt.Sprintf("%q", key))
		}
	}
	_, err := s.Sweep(t.Context())
	require.ErrorIs(t, err, rowstore.ErrCorrupt)
}
