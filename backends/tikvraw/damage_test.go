package tikvraw

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// inSlots returns n rows of table t in the order of their slots, which differ.
func inSlots(n int) (rows []string) {
	for i := 0; len(rows) < n; i++ {
		row := fmt.Sprint("row", i)
		if !slices.ContainsFunc(rows, func(r string) bool { return rowstore.Slot("t", r) == rowstore.Slot("t", row) }) {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b string) int { return int(rowstore.Slot("t", a)) - int(rowstore.Slot("t", b)) })
	return rows
}

// upTo scans table t, and returns the rows before an error, and the error.
func upTo(t testing.TB, s *Store, r rowstore.ScanRange) (rows []string, failed error) {
	t.Helper()
	r.Table = "t"
	for row, err := range s.Scan(t.Context(), r) {
		if err != nil {
			require.NoError(t, failed, "one error at the most, at the end")
			failed = err
			continue
		}
		rows = append(rows, row.Row)
	}
	return rows, failed
}

// slotsOf is the ranges of some rows' slots, one for each.
func slotsOf(rows ...string) (slots []rowstore.SlotRange) {
	for _, row := range rows {
		slots = append(slots, rowstore.SlotRange{First: rowstore.Slot("t", row), Last: rowstore.Slot("t", row)})
	}
	return slots
}

// A head or a marker that cannot be read ends a scan of notifications there, and not before; it hides
// none in other slots.
func TestScanOfNotificationsBesideDamage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage func(s *Store, f *fakeRaw, row string) (key []byte)
		is     error
		hides  bool // the first scan with hints meets it too
	}{
		"another's head": {func(s *Store, f *fakeRaw, row string) []byte {
			key := s.keys.row(spaceHead, "t", row)
			f.store(key, []byte("what is this?"))
			return key
		}, rowstore.ErrCorrupt, false},
		"a head of a newer program": {func(s *Store, f *fakeRaw, row string) []byte {
			key := s.keys.row(spaceHead, "t", row)
			f.store(key, append([]byte{valueVersion + 1}, f.lookup(key)[1:]...))
			return key
		}, rowstore.ErrFormat, false},
		"a marker in another slot than its row": {func(s *Store, f *fakeRaw, row string) []byte {
			key := s.keys.marker("t", "lost", 7)
			copy(key[len(s.keys.table(spaceIndex, "t")):], s.keys.slot("t", rowstore.Slot("t", row), 0)[len(s.keys.table(spaceIndex, "t")):])
			f.store(key, []byte{valueVersion})
			return key
		}, rowstore.ErrCorrupt, true},
		"a marker without a row": {func(s *Store, f *fakeRaw, row string) []byte {
			key := s.keys.slot("t", rowstore.Slot("t", row), 0)
			f.store(key, []byte{valueVersion})
			return key
		}, rowstore.ErrCorrupt, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, f := fakeStore(t, Options{SweepEvery: -1})
			rows := inSlots(5)
			for _, row := range rows {
				put(t, s, row, note(5))
			}
			key := c.damage(s, f, rows[2])
			failed := func(got []string, err error) {
				t.Helper()
				require.ErrorIs(t, err, c.is)
				require.Equal(t, errors.Is(c.is, rowstore.ErrFormat), errors.Is(err, rowstore.ErrFormat))
				require.ErrorContains(t, err, fmt.Sprintf("%q", key))
				require.Equal(t, rows[:2], slices.DeleteFunc(got, func(row string) bool { return row == rows[2] }))
			}
			hints := allSlots()
			hints.Selectors, hints.Hints = pickC, true
			first, err := upTo(t, s, hints)
			if c.hides {
				failed(first, err)
			} else {
				require.NoError(t, err, "hints are not read")
				require.Equal(t, rows, first)
			}
			failed(upTo(t, s, hints))
			r := allSlots()
			r.Selectors = notifyPick
			failed(upTo(t, s, r))
			others := slices.Concat(slotsOf(rows[:2]...), slotsOf(rows[3:]...))
			got, err := upTo(t, s, rowstore.ScanRange{Selectors: notifyPick, Slots: others})
			require.NoError(t, err, "though it lies between these")
			require.Equal(t, slices.Concat(rows[:2], rows[3:]), got)
			got, err = upTo(t, s, rowstore.ScanRange{Selectors: notifyPick})
			require.ErrorIs(t, err, c.is)
			if c.hides { // the key belongs to no row: all of them are there
				require.ElementsMatch(t, rows, slices.DeleteFunc(got, func(row string) bool { return row == "lost" }))
			}
		})
	}
}

// A row that cannot be read fails alone in a Read and in an Apply, and ends a scan there, and not before.
func TestDamagedRowFailsAlone(t *testing.T) {
	t.Parallel()
	long := rowstore.Put(rowstore.Data, "c", 5, make([]byte, 1000))
	for name, c := range map[string]struct {
		damage func(t *testing.T, s *Store, f *fakeRaw, key []byte)
		is     error
		reads  bool // changes do not meet it
	}{
		"another's head": {func(_ *testing.T, _ *Store, f *fakeRaw, key []byte) { f.store(key, []byte(`{"cart": [1, 2, 3]}`)) }, rowstore.ErrCorrupt, false},
		"a head of a newer program": {func(_ *testing.T, _ *Store, f *fakeRaw, key []byte) {
			f.store(key, append([]byte{valueVersion + 1}, f.lookup(key)[1:]...))
		}, rowstore.ErrFormat, false},
		"half a head": {func(_ *testing.T, _ *Store, f *fakeRaw, key []byte) { f.store(key, f.lookup(key)[:20]) }, rowstore.ErrCorrupt, false},
		"a value is missing": {func(t *testing.T, s *Store, f *fakeRaw, key []byte) {
			r := headOf(t, s, f, "b")
			require.NoError(t, f.delete(t.Context(), s.keys.side(key, r.entries[len(r.entries)-1].value.id, kindValue)))
		}, rowstore.ErrCorrupt, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, f := fakeStore(t, Options{SweepEvery: -1})
			for _, row := range []string{"a", "b", "c"} {
				put(t, s, row, writeAt(5), long)
			}
			key := s.keys.row(spaceHead, "t", "b")
			c.damage(t, s, f, key)
			stored := slices.Clone(f.lookup(key))
			reads := make([]rowstore.RowRead, 0, 4)
			for _, row := range []string{"a", "b", "c", "b"} {
				reads = append(reads, rowstore.RowRead{Table: "t", Row: row, Selectors: everything()})
			}
			rows, err := s.Read(t.Context(), reads)
			require.NoError(t, err)
			for i, row := range rows {
				if row.Row == "b" {
					require.ErrorIs(t, row.Err, c.is)
					require.ErrorContains(t, row.Err, fmt.Sprintf("%q", key))
					require.ErrorContains(t, row.Err, "tikvraw: read")
					require.Empty(t, row.Versions)
					continue
				}
				require.NoError(t, row.Err, i)
				require.Len(t, row.Versions, 2)
				require.Len(t, row.Versions[1].Value, 1000)
			}
			rows, err = s.Read(t.Context(), reads[1:2])
			require.NoError(t, err)
			require.ErrorIs(t, rows[0].Err, c.is)
			got, err := upTo(t, s, rowstore.ScanRange{Selectors: everything()})
			require.ErrorIs(t, err, c.is)
			require.Equal(t, []string{"a"}, got)
			got, err = upTo(t, s, rowstore.ScanRange{Selectors: everything(), Reverse: true})
			require.ErrorIs(t, err, c.is)
			require.Equal(t, []string{"c"}, got)
			if c.reads {
				return
			}
			muts := make([]rowstore.Mutation, 0, 3)
			for _, row := range []string{"a", "b", "c"} {
				muts = append(muts, rowstore.Mutation{Table: "t", Row: row, Edits: []rowstore.Edit{writeAt(7)}})
			}
			outs, err := s.Apply(t.Context(), muts, rowstore.ApplyOptions{})
			require.NoError(t, err)
			require.True(t, outs[0].Applied)
			require.ErrorIs(t, outs[1].Err, c.is)
			require.True(t, outs[2].Applied)
			require.Equal(t, stored, f.lookup(key), "it is left as it is")
		})
	}
}

// A key among the heads that no row has ends a scan there, and not before.
func TestScanBesideAStrangeKey(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	for _, row := range []string{"a", "b", "c"} {
		put(t, s, row, writeAt(5))
	}
	f.store(append(s.keys.row(spaceHead, "t", "b"), "more"...), []byte("theirs"))
	got, err := upTo(t, s, rowstore.ScanRange{Selectors: everything()})
	require.ErrorIs(t, err, rowstore.ErrCorrupt)
	require.Equal(t, []string{"a", "b"}, got)
}

// A key among the heads that names no table hides none: the others are listed, and its error comes last. Many such keys cost few
// requests.
func TestTablesBesideStrangeKeys(t *testing.T) {
	t.Parallel()
	s, f := fakeStore(t, Options{SweepEvery: -1})
	for _, table := range []string{"a", "m", "z"} {
		f.store(s.keys.row(spaceHead, table, "r"), (&head{tag: 1, entries: []entry{{rowstore.Write, "c", 5, value{bytes: []byte("v")}}}}).encode())
	}
	list := func() (names []string, failed error) {
		f.counted()
		for name, err := range s.Tables(t.Context()) {
			require.NoError(t, failed, "nothing follows an error")
			if failed = err; err == nil {
				names = append(names, name)
			}
		}
		return names, failed
	}
	names, err := list()
	require.NoError(t, err)
	require.Equal(t, []string{"a", "m", "z"}, names)
	require.Equal(t, map[string]int{"scan": 4}, f.counted())

	first := append(s.keys.space(spaceHead), 'b', 0, 7)
	f.store(first, []byte("theirs"))
	for i := range 1000 {
		f.store(fmt.Appendf(s.keys.space(spaceHead), "theirs/%d", i), []byte("theirs"))
	}
	f.store(append(s.keys.table(spaceHead, "a"), "r2"...), []byte("half of a row's key"))
	names, err = list()
	require.ErrorIs(t, err, rowstore.ErrCorrupt)
	require.ErrorContains(t, err, fmt.Sprintf("%q", first))
	require.Equal(t, []string{"a", "m", "z"}, names)
	require.LessOrEqual(t, f.total(), 20)
}

// Among the markers of format 1, a key that is none hides no row, and keeps no marker from being moved.
func TestStrangeKeyAmongOldMarkers(t *testing.T) {
	t.Parallel()
	data := format1(t)
	s := openFake(t, data.client(), Options{SweepEvery: -1})
	strange := append(s.keys.table(spaceOldIndex, "t"), "!"...) // before all markers of the table
	data.store(strange, []byte{1})
	old, _ := oldProcess(t, data)
	put(t, old, "late", note(5))
	require.Contains(t, scanned(t, s, allSlots()), "late")
	require.Contains(t, scanned(t, s, rowstore.ScanRange{}), "late")
	require.Equal(t, []byte{1}, data.lookup(strange), "it is left as it is")
	require.NoError(t, s.Close())

	put(t, old, "later", note(5))
	o := Options{SweepEvery: -1}
	require.NoError(t, o.complete())
	again := newStore(data.client(), o)
	err := again.open(t.Context(), t.Context())
	require.ErrorIs(t, err, rowstore.ErrCorrupt)
	require.ErrorContains(t, err, fmt.Sprintf("%q", strange))
	require.NoError(t, again.Close())
	require.NoError(t, data.client().delete(t.Context(), strange))
	require.Empty(t, marks(t, data, spaceOldIndex), "the others were moved")
}
