package pebble

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/internal/await"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestEditsAgainstMemory compares any edits of a few columns, which share their
// timestamps, with the reference, also after the store was opened again: what is
// newest moves between the head, its copy in memory and the history.
func TestEditsAgainstMemory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		fs := vfs.NewMem()
		s := openFS(t, fs)
		defer func() { require.NoError(rt, s.Close()) }()
		ref := memstore.New()
		defer ref.Close()
		ctx := context.Background()
		for step := range rapid.IntRange(1, 25).Draw(rt, "steps") {
			if rapid.IntRange(0, 9).Draw(rt, "reopen") == 0 {
				require.NoError(rt, s.Close())
				s = openFS(t, fs)
			}
			m := drawEdits(rt, step)
			got, err := s.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{})
			require.NoError(rt, err)
			want, err := ref.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{})
			require.NoError(rt, err)
			require.Equal(rt, want[0].Applied, got[0].Applied)
			require.Equal(rt, want[0].Broke.TS, got[0].Broke.TS)

			picks := drawSelectors(rt)
			read := []rowstore.RowRead{{Table: "t", Row: m.Row, Selectors: picks}}
			g, err := s.Read(ctx, read)
			require.NoError(rt, err)
			w, err := ref.Read(ctx, read)
			require.NoError(rt, err)
			require.Equal(rt, plain(w), plain(g))
			for _, reverse := range []bool{false, true} {
				sr := rowstore.ScanRange{Table: "t", Reverse: reverse, Selectors: picks}
				require.Equal(rt, plain(scanAll(rt, ref, sr)), plain(scanAll(rt, s, sr)), "reverse %v", reverse)
				sr.Selectors = []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}, {Family: rowstore.Notify, Column: "b", To: 5, Limit: 1}}
				require.Equal(rt, plain(scanAll(rt, ref, sr)), plain(scanAll(rt, s, sr)), "reverse %v", reverse)
			}
			sr := rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}, Slots: drawSlots(rt), Limit: rapid.IntRange(0, 3).Draw(rt, "rows")}
			if rapid.Bool().Draw(rt, "from a row") {
				sr.From = names().Draw(rt, "from")
			}
			require.Equal(rt, plain(scanAll(rt, ref, sr)), plain(scanAll(rt, s, sr)), "%+v", sr)
			if rapid.IntRange(0, 30).Draw(rt, "many notifications") == 0 {
				s.notes.limit = 0 // the next one is one too many
			}
		}
		if s.notes.all != nil {
			require.Equal(rt, engineNotes(rt, s), copiedNotes(s))
		}
		require.Equal(rt, headKeys(rt, s), bucketsChecked(rt, s))
	})
}

// editedFamilies are drawn from; most of what moves within a row is a Write.
var editedFamilies = []rowstore.Family{rowstore.Write, rowstore.Write, rowstore.Write, rowstore.Mark, rowstore.Data, rowstore.Notify, rowstore.Lock}

// drawEdits makes a mutation of a few columns, whose values tell the step.
func drawEdits(rt *rapid.T, step int) rowstore.Mutation {
	m := rowstore.Mutation{Table: "t", Row: names().Draw(rt, "row")[:1]}
	for range rapid.IntRange(1, 6).Draw(rt, "edits") {
		f := rapid.SampledFrom(editedFamilies).Draw(rt, "family")
		c := rapid.SampledFrom([]string{"a", "a\x00", "b"}).Draw(rt, "column")
		a := rowstore.Timestamp(rapid.IntRange(1, 12).Draw(rt, "ts"))
		b := a + rowstore.Timestamp(rapid.IntRange(-1, 12).Draw(rt, "length"))
		e := rowstore.Put(f, c, a, []byte(strconv.Itoa(step)))
		if f == rowstore.Data {
			e.Value = []byte{byte(a)} // never overwritten with another value
		}
		switch k := rapid.IntRange(0, 5).Draw(rt, "kind"); {
		case k == 0:
			e = rowstore.Delete(f, c, a)
		case k == 1:
			e = rowstore.DeleteRange(f, c, a, b)
		case k == 2 && f == rowstore.Write:
			e = rowstore.DeleteRange(f, c, 0, b)
		case f == rowstore.Lock:
			// One version at a time: over the same timestamp, always 3.
			e.TS = 3
		}
		m.Edits = append(m.Edits, e)
		if rowstore.CheckBatch([]rowstore.Mutation{m}) != nil {
			m.Edits = m.Edits[:len(m.Edits)-1] // touches the version of another edit
		}
	}
	if rapid.Bool().Draw(rt, "condition") {
		m.Conditions = []rowstore.Condition{rowstore.Absent(rowstore.Write, "a", rowstore.Timestamp(rapid.IntRange(0, 13).Draw(rt, "from")))}
	}
	return m
}

// drawSelectors makes selectors of what drawEdits edits.
func drawSelectors(rt *rapid.T) []rowstore.Selector {
	var picks []rowstore.Selector
	for range rapid.IntRange(1, 3).Draw(rt, "picks") {
		from := rowstore.Timestamp(rapid.IntRange(0, 12).Draw(rt, "pick from"))
		picks = append(picks, rowstore.Selector{
			Family: rapid.SampledFrom(editedFamilies).Draw(rt, "pick family"),
			Column: rapid.SampledFrom([]string{"a", "a\x00", "b", rowstore.AllColumns}).Draw(rt, "pick column"),
			From:   from, To: from + rowstore.Timestamp(rapid.IntRange(0, 20).Draw(rt, "pick length")),
			Limit: rapid.IntRange(0, 3).Draw(rt, "limit"),
		})
	}
	return picks
}

// drawSlots makes ranges of slots, of which some begin or end at slots of rows.
func drawSlots(rt *rapid.T) []rowstore.SlotRange {
	ends := map[int]bool{0: rapid.Bool().Draw(rt, "first"), rowstore.Slots - 1: rapid.Bool().Draw(rt, "last")}
	for range rapid.IntRange(1, 6).Draw(rt, "ends") {
		ends[int(rowstore.Slot("t", names().Draw(rt, "row of a slot")[:1]))] = true
	}
	var ranges []rowstore.SlotRange
	next := 0
	for _, end := range slices.Sorted(maps.Keys(ends)) {
		first := max(next, end-rapid.SampledFrom([]int{0, 0, 1, 10_000}).Draw(rt, "length"))
		if ends[end] && first <= end {
			ranges = append(ranges, rowstore.SlotRange{First: uint16(first), Last: uint16(end)}) //nolint:gosec // slots
			next = end + 1
		}
	}
	return ranges
}

// plain makes rows comparable: a nil value and an empty one are the same.
func plain(rows []rowstore.Row) []string {
	var all []string
	for _, r := range rows {
		all = append(all, fmt.Sprintf("%q %q %v", r.Table, r.Row, r.Err))
		for _, v := range r.Versions {
			all = append(all, fmt.Sprintf("  %d %q %d %q", v.Family, v.Column, v.TS, v.Value))
		}
	}
	return all
}

func scanAll(t require.TestingT, s rowstore.Store, sr rowstore.ScanRange) (rows []rowstore.Row) {
	for r, err := range s.Scan(context.Background(), sr) {
		require.NoError(t, err)
		rows = append(rows, r)
	}
	return rows
}

// headKeys counts the heads in the engine.
func headKeys(t require.TestingT, s *Store) (n int) {
	it, err := s.db.NewIter(nil)
	require.NoError(t, err)
	it.SetBounds([]byte{spaceHead}, []byte{spaceHead + 1})
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	require.NoError(t, it.Close())
	return n
}

// bucketsChecked compares each head in memory with the engine's, reads those that
// are not there, and returns how many heads there are.
func bucketsChecked(t require.TestingT, s *Store) (n int) {
	for _, b := range allBuckets(s) {
		for j := range b {
			c := b[j].Load()
			if c == nil {
				continue
			}
			v, closer, err := s.db.Get(c.key)
			require.Equal(t, c.present, err == nil)
			if err == nil {
				require.Equal(t, string(v), string(c.value))
				require.NoError(t, closer.Close())
			}
		}
	}
	return headKeys(t, s)
}

// allBuckets returns the buckets of the stripes that have any.
func allBuckets(s *Store) (all []*bucket) {
	for i := range s.stripes {
		if of := s.stripes[i].buckets.Load(); of != nil {
			for j := range *of {
				all = append(all, &(*of)[j])
			}
		}
	}
	return all
}

func engineNotes(t require.TestingT, s *Store) (all []note) {
	it, err := s.db.NewIter(nil)
	require.NoError(t, err)
	it.SetBounds([]byte{spaceNotify}, []byte{spaceNotify + 1}) // all of it, so that no key has another form
	for ok := it.First(); ok; ok = it.Next() {
		all = append(all, note{string(it.Key()[len(bySlot):]), string(it.Value())})
	}
	require.NoError(t, it.Close())
	return all
}

func copiedNotes(s *Store) (all []note) {
	s.notes.all.Ascend(func(x note) bool {
		all = append(all, x)
		return true
	})
	return all
}

// TestManyNotifications scans more than a page of them, in both directions, with and
// without the copy in memory.
func TestManyNotifications(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{maxNotes, 0} {
		t.Run(fmt.Sprintf("limit=%d", limit), func(t *testing.T) {
			t.Parallel()
			s := mustOpen(t, Options{})
			s.notes.limit = limit
			const rows, each = 700, 5
			var want []string
			for i := range rows {
				m := rowstore.Mutation{Table: "t", Row: benchKey(i)}
				for ts := range each {
					m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, "c", rowstore.Timestamp(ts+1), nil))
				}
				_, err := s.Apply(t.Context(), []rowstore.Mutation{m, {Table: "u", Row: m.Row, Edits: m.Edits}}, rowstore.ApplyOptions{})
				require.NoError(t, err)
				want = append(want, m.Row)
			}
			require.Equal(t, limit == 0, s.notes.all == nil)
			check := func(sr rowstore.ScanRange, want []string) {
				sr.Table = "t"
				sr.Selectors = []rowstore.Selector{{Family: rowstore.Notify, To: oracle.Max}}
				for _, reverse := range []bool{false, true} {
					sr.Reverse = reverse
					var got []string
					for _, r := range scanAll(t, s, sr) {
						require.Len(t, r.Versions, each)
						require.EqualValues(t, each, r.Versions[0].TS)
						got = append(got, r.Row)
					}
					if reverse && sr.Limit == 0 {
						slices.Reverse(got)
					}
					if sr.Limit == 0 {
						require.Equal(t, want, got)
					}
					require.Len(t, got, len(want))
				}
			}
			check(rowstore.ScanRange{}, want)
			check(rowstore.ScanRange{From: want[100], To: want[600]}, want[100:600])
			check(rowstore.ScanRange{Limit: 300}, want[:300])
			check(rowstore.ScanRange{From: "b"}, nil)
		})
	}
}

// TestHotRow has every goroutine write one row and checks that commits of one flush
// share it.
func TestHotRow(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Options{Path: t.TempDir()})
	const goroutines, each = 16, 50
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for done := 0; done < each; {
				n, err := s.newestOf(t.Context(), "hot")
				if err != nil {
					t.Error(err)
					return
				}
				out, err := s.Group(t.Context(), []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{{
					Table: "t", Row: "hot", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", rowstore.AssignedTimestamp, number(n+1))},
				}}}})
				if err != nil || !out[0].Applied {
					t.Error(err, out)
					return
				}
				done++
			}
		})
	}
	wg.Wait()
	rows, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "hot", Selectors: pickWrites(0)}})
	require.NoError(t, err)
	require.Len(t, rows[0].Versions, goroutines*each)
}

// TestLongHistory reads the newest of many versions, and removes most of them, which
// takes a range tombstone.
func TestLongHistory(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Options{})
	const versions = 10_000
	var edits []rowstore.Edit
	for ts := 1; ts <= versions; ts++ {
		edits = append(edits, rowstore.Put(rowstore.Write, "c", rowstore.Timestamp(ts), number(uint64(ts))))
		if len(edits) == 100 {
			_, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "r", Edits: edits}}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			edits = edits[:0]
		}
	}
	at := func(ts rowstore.Timestamp) uint64 {
		rows, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "r", Selectors: []rowstore.Selector{{Family: rowstore.Write, Column: "c", To: ts, Limit: 1}}}})
		require.NoError(t, err)
		if len(rows[0].Versions) == 0 {
			return 0
		}
		return binary.BigEndian.Uint64(rows[0].Versions[0].Value)
	}
	require.EqualValues(t, versions, at(oracle.Max))
	require.EqualValues(t, 1234, at(1234))
	_, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{
		rowstore.DeleteRange(rowstore.Write, "c", 0, versions-10),
	}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 0, at(versions-10))
	require.EqualValues(t, versions-9, at(versions-9))
	require.EqualValues(t, versions, at(versions))
	_, err = s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{
		rowstore.DeleteRange(rowstore.Write, "c", versions-5, oracle.Max), rowstore.Put(rowstore.Write, "c", 77, number(77)),
	}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.EqualValues(t, versions-6, at(oracle.Max))
	require.EqualValues(t, 77, at(80))
}

// TestWideRow has more columns than a mutation is looked up in by a walk, and a scan
// that picks few of them.
func TestWideRow(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Options{})
	const columns = 10_000
	name := func(i int) string { return fmt.Sprintf("column%05d", i) }
	for _, row := range []string{"a", "b"} {
		for from := 0; from < columns; from += 100 {
			m := rowstore.Mutation{Table: "t", Row: row}
			for i := from; i < from+100; i++ {
				m.Conditions = append(m.Conditions, rowstore.Absent(rowstore.Write, name(i), 0), rowstore.Absent(rowstore.Lock, name(i), 0))
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, name(i), 5, number(uint64(i))))
			}
			out, err := s.Apply(t.Context(), []rowstore.Mutation{m}, rowstore.ApplyOptions{})
			require.NoError(t, err)
			require.True(t, out[0].Applied)
		}
	}
	for _, reverse := range []bool{false, true} {
		rows := scanAll(t, s, rowstore.ScanRange{Table: "t", Reverse: reverse, Selectors: []rowstore.Selector{
			{Family: rowstore.Write, Column: name(7777), To: 9, Limit: 1},
			{Family: rowstore.Write, Column: name(3), To: 9, Limit: 1},
			{Family: rowstore.Write, Column: "absent", To: 9, Limit: 1},
		}})
		require.Len(t, rows, 2)
		for _, r := range rows {
			require.Len(t, r.Versions, 2)
			require.Equal(t, name(3), r.Versions[0].Column)
			require.Equal(t, number(7777), r.Versions[1].Value)
		}
	}
	rows, err := s.Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "b", Selectors: pickAll()}})
	require.NoError(t, err)
	require.Len(t, rows[0].Versions, columns)
}

func pickAll() []rowstore.Selector {
	return []rowstore.Selector{{Family: rowstore.Write, To: oracle.Max}}
}

func TestSplit(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Options{})
	const rows = 8000
	fillRows(t, s, rows)
	ctx := t.Context()
	for _, n := range []int{1, 2, 8, 20} {
		cuts, err := s.Split(ctx, "t", n)
		require.NoError(t, err)
		require.Len(t, cuts, n-1)
		require.True(t, slices.IsSorted(cuts))
		require.Len(t, slices.Compact(slices.Clone(cuts)), n-1)
		last := 0
		for _, c := range append(cuts, benchKey(rows)) {
			i, err := strconv.Atoi(c[len("account"):])
			require.NoError(t, err)
			require.InDelta(t, rows/n, i-last, float64(rows/n), "part of %d", n)
			last = i
		}
	}
	cuts, err := s.Split(ctx, "empty", 8)
	require.NoError(t, err)
	require.Empty(t, cuts)
	for _, n := range []int{0, -1} {
		_, err = s.Split(ctx, "t", n)
		require.ErrorIs(t, err, rowstore.ErrInvalid)
	}
	_, err = s.Split(ctx, "", 8)
	require.ErrorIs(t, err, rowstore.ErrInvalid)

	// Rows that are gone are no sample any more.
	var muts []rowstore.Mutation
	for i := range rows {
		muts = append(muts, rowstore.Mutation{Table: "t", Row: benchKey(i), Edits: []rowstore.Edit{
			rowstore.DeleteRange(rowstore.Write, "balance", 0, oracle.Max),
		}})
	}
	_, err = s.Apply(ctx, muts, rowstore.ApplyOptions{})
	require.NoError(t, err)
	cuts, err = s.Split(ctx, "t", 8)
	require.NoError(t, err)
	require.Empty(t, cuts)
	require.Zero(t, headKeys(t, s))
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Options{})
	long := string(make([]byte, maxName+1))
	for name, m := range map[string]rowstore.Mutation{
		"table":     {Table: long, Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 1, nil)}},
		"row":       {Table: "t", Row: long, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 1, nil)}},
		"column":    {Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, long, 1, nil)}},
		"condition": {Table: "t", Row: "r", Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Lock, long, 0)}},
		"value":     {Table: "t", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Data, "c", 1, make([]byte, maxValue+1))}},
	} {
		fine := rowstore.Mutation{Table: "t", Row: "fine", Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "c", 1, nil)}}
		_, err := s.Apply(t.Context(), []rowstore.Mutation{fine, m}, rowstore.ApplyOptions{})
		require.ErrorIs(t, err, rowstore.ErrTooLarge, name)
		_, err = s.Group(t.Context(), []rowstore.Group{{Mutations: []rowstore.Mutation{fine, m}}})
		require.ErrorIs(t, err, rowstore.ErrTooLarge, name)
	}
	require.Zero(t, headKeys(t, s), "nothing was written")
	// The greatest that is allowed.
	edge := string(make([]byte, maxName))
	out, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: edge, Row: edge, Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Write, edge, 1, make([]byte, maxValue)), rowstore.Put(rowstore.Notify, edge, 1, nil),
	}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.True(t, out[0].Applied)
	rows := scanAll(t, s, rowstore.ScanRange{Table: edge, Selectors: append(pickAll(), rowstore.Selector{Family: rowstore.Notify, To: 5})})
	require.Len(t, rows, 1)
	require.Len(t, rows[0].Versions, 2)
	require.Len(t, rows[0].Versions[0].Value, maxValue)
}

func TestListen(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	woken := make(chan rowstore.Wake, 100)
	ended := make(chan error, 1)
	go func() { ended <- s.Listen(ctx, func(w rowstore.Wake) { woken <- w }) }()
	require.Zero(t, await.Value(t.Context(), t, woken, ended), "what happened before may have been missed")
	apply := func(table string, edits ...rowstore.Edit) {
		_, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: table, Row: "r", Edits: edits}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
	}
	apply("none", rowstore.Put(rowstore.Write, "c", 1, nil))
	apply("prewrite", rowstore.Put(rowstore.Lock, "c", 2, nil), rowstore.Put(rowstore.Notify, "c", 2, nil))
	apply("cleared", rowstore.Delete(rowstore.Notify, "c", 2))
	apply("commit", rowstore.Delete(rowstore.Lock, "c", 2), rowstore.Put(rowstore.Notify, "c", 3, nil))
	require.Equal(t, rowstore.Wake{Table: "commit", Slots: []uint16{rowstore.Slot("commit", "r")}}, await.Value(t.Context(), t, woken, ended))
	_, err := s.Group(t.Context(), []rowstore.Group{{AssignTimestamp: true, Mutations: []rowstore.Mutation{
		{Table: "group", Row: "r", Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "c", rowstore.AssignedTimestamp, nil)}},
	}}})
	require.NoError(t, err)
	require.Equal(t, rowstore.Wake{Table: "group", Slots: []uint16{rowstore.Slot("group", "r")}}, await.Value(t.Context(), t, woken, ended))
	require.Empty(t, woken)
	cancel()
	require.ErrorIs(t, await.Value(t.Context(), t, ended, nil), context.Canceled)
}

func TestListenerThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	entered, hold := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release() // before the Close of the cleanup, which waits for listeners
	var calls atomic.Int64
	ended := make(chan error, 1)
	go func() {
		ended <- s.Listen(ctx, func(rowstore.Wake) {
			if calls.Add(1) == 1 {
				close(entered)
				<-hold
			}
		})
	}()
	await.Value(t.Context(), t, entered, ended)
	for i := range 1000 {
		// No writer waits for it.
		_, err := s.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "r", Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Notify, "c", rowstore.Timestamp(i+1), nil),
		}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
	}
	release()
	require.NoError(t, s.Close())
	require.ErrorIs(t, await.Value(t.Context(), t, ended, nil), rowstore.ErrClosed)
	require.LessOrEqual(t, calls.Load(), int64(3), "calls are merged")
}

func TestCloseWithin(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Options{})
	for i := range 1000 {
		writeCell(t, s, "row"+strconv.Itoa(i), "v")
	}
	var last error
	n := 0
	for _, err := range s.Scan(t.Context(), rowstore.ScanRange{Table: "t", Selectors: pickAll()}) {
		if last = err; err != nil {
			break
		}
		if n++; n == 10 {
			require.NoError(t, s.Close(), "a scan between two pages does not hold it up")
		}
	}
	require.ErrorIs(t, last, rowstore.ErrClosed)
	_, err := s.Oracle().Draw(t.Context(), 1)
	require.ErrorIs(t, err, oracle.ErrClosed)
	_, err = s.Split(t.Context(), "t", 2)
	require.ErrorIs(t, err, rowstore.ErrClosed)
	_, err = s.Report(t.Context())
	require.ErrorIs(t, err, rowstore.ErrClosed)
	require.ErrorIs(t, s.Listen(t.Context(), func(rowstore.Wake) {}), rowstore.ErrClosed)
}
