package tikvraw

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// drawHead makes a head of any shape that the rules allow.
func drawHead(t *rapid.T) *head {
	h := &head{tag: rapid.Uint64().Draw(t, "tag")}
	columns := rapid.SliceOfNDistinct(rapid.StringN(1, 4, 20), 0, 4, rapid.ID[string]).Draw(t, "columns")
	slices.Sort(columns)
	for f := rowstore.Lock; f <= rowstore.Notify; f++ {
		for _, c := range columns {
			stamps := rapid.SliceOfNDistinct(rapid.Uint64Range(1, uint64(oracle.Max)), 0, 8, rapid.ID[uint64]).Draw(t, "timestamps")
			slices.Sort(stamps)
			slices.Reverse(stamps)
			for len(stamps) > 0 {
				switch n := min(len(stamps), 2); rapid.IntRange(0, 2).Draw(t, "kind") {
				case 0:
					h.chunks = append(h.chunks, chunk{
						family: f, column: c, hi: rowstore.Timestamp(stamps[0]), lo: rowstore.Timestamp(stamps[n-1]),
						id: rapid.Uint64Min(1).Draw(t, "id"), size: rapid.IntRange(0, 1<<30).Draw(t, "size"), values: rapid.Bool().Draw(t, "values"),
					})
					stamps = stamps[n:]
				case 1:
					h.entries = append(h.entries, entry{f, c, rowstore.Timestamp(stamps[0]), value{
						id: rapid.Uint64Min(1).Draw(t, "id"), size: rapid.IntRange(0, 1<<30).Draw(t, "size"),
					}})
					stamps = stamps[1:]
				case 2:
					h.entries = append(h.entries, entry{f, c, rowstore.Timestamp(stamps[0]), value{bytes: rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(t, "value")}})
					stamps = stamps[1:]
				}
			}
		}
	}
	if h.hasNotify() {
		h.index = rapid.Uint64Min(1).Draw(t, "index")
	}
	return h
}

func TestHeadRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHead(t)
		raw := h.encode()
		back, err := decodeHead(raw)
		require.NoError(t, err)
		require.Equal(t, h.tag, back.tag)
		require.Equal(t, h.index, back.index)
		require.Empty(t, slices.CompareFunc(h.entries, back.entries, compareWhole))
		require.Empty(t, slices.Compare(describe(h.chunks), describe(back.chunks)))
		require.Equal(t, raw, back.encode())
		// One byte less is never a head, and never more than an error.
		for i := range raw {
			_, err := decodeHead(raw[:i])
			require.ErrorIs(t, err, rowstore.ErrCorrupt)
		}
		_, err = decodeHead(append(bytes.Clone(raw), 0))
		require.ErrorIs(t, err, rowstore.ErrCorrupt)
	})
}

func compareWhole(a, b entry) int {
	if c := compareEntries(a, b); c != 0 {
		return c
	}
	if a.value.id != b.value.id || a.value.size != b.value.size {
		return 1
	}
	return bytes.Compare(a.value.bytes, b.value.bytes)
}

func describe(chunks []chunk) []string {
	var out []string
	for _, c := range chunks {
		h := head{chunks: []chunk{c}}
		out = append(out, string(h.encode()))
	}
	return out
}

func TestHeadsThatAreNone(t *testing.T) {
	t.Parallel()
	good := head{tag: 7, entries: []entry{{rowstore.Write, "c", 5, value{bytes: []byte("v")}}}}
	raw := good.encode()
	_, err := decodeHead(raw)
	require.NoError(t, err)
	for name, bad := range map[string][]byte{
		"empty":                          {},
		"a marker without notifications": (&head{tag: 7, index: 9, entries: good.entries}).encode(),
		"notifications without a marker": (&head{tag: 7, entries: []entry{{rowstore.Notify, "c", 5, value{}}}}).encode(),
		"a version within a chunk": (&head{
			tag: 7, entries: good.entries,
			chunks: []chunk{{family: rowstore.Write, column: "c", lo: 4, hi: 6, id: 1}},
		}).encode(),
		"chunks that overlap": (&head{tag: 7, chunks: []chunk{
			{family: rowstore.Write, column: "c", lo: 4, hi: 6, id: 1}, {family: rowstore.Write, column: "c", lo: 2, hi: 4, id: 1},
		}}).encode(),
	} {
		_, err := decodeHead(bad)
		require.ErrorIs(t, err, rowstore.ErrCorrupt, name)
	}
	for first, is := range map[byte]error{
		0: rowstore.ErrCorrupt, valueVersion + 1: rowstore.ErrFormat, mostVersion: rowstore.ErrFormat, mostVersion + 1: rowstore.ErrCorrupt, '{': rowstore.ErrCorrupt,
	} {
		_, err := decodeHead(append([]byte{first}, raw[1:]...))
		require.ErrorIs(t, err, is, "another version, and somebody's: %d", first)
		_, err = decodeChunk(append([]byte{first}, encodeChunk(good.entries)[1:]...), rowstore.Write, "c")
		require.ErrorIs(t, err, is, "%d", first)
	}
}

func FuzzDecodeHead(f *testing.F) {
	h := head{
		tag: 1, index: 2,
		entries: []entry{
			{rowstore.Lock, "a", 9, value{bytes: []byte("lock")}},
			{rowstore.Write, "a", 8, value{id: 3, size: 1000}},
			{rowstore.Write, "a", 7, value{bytes: []byte("old")}},
			{rowstore.Notify, "b", 8, value{bytes: []byte{1}}},
		},
		chunks: []chunk{{family: rowstore.Write, column: "a", lo: 1, hi: 5, id: 4, size: 100, values: true}},
	}
	f.Add(h.encode())
	f.Add((&head{}).encode())
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := decodeHead(raw)
		if err != nil {
			require.True(t, errors.Is(err, rowstore.ErrCorrupt) || errors.Is(err, rowstore.ErrFormat), err)
			return
		}
		back, err := decodeHead(h.encode())
		require.NoError(t, err)
		require.Equal(t, h, back)
	})
}

func FuzzDecodeChunk(f *testing.F) {
	f.Add(encodeChunk([]entry{{rowstore.Write, "c", 8, value{id: 3, size: 1000}}, {rowstore.Write, "c", 7, value{bytes: []byte("old")}}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		entries, err := decodeChunk(raw, rowstore.Write, "c")
		if err != nil {
			require.True(t, errors.Is(err, rowstore.ErrCorrupt) || errors.Is(err, rowstore.ErrFormat), err)
			return
		}
		back, err := decodeChunk(encodeChunk(entries), rowstore.Write, "c")
		require.NoError(t, err)
		require.Equal(t, entries, back)
	})
}

func TestKeysSortAsNamesDo(t *testing.T) {
	t.Parallel()
	k := newKeyspace("shop")
	name := rapid.StringOfN(rapid.SampledFrom([]rune{0, 1, 'a', 'b'}), 1, 5, -1)
	rapid.Check(t, func(t *rapid.T) {
		t1, r1 := name.Draw(t, "table 1"), name.Draw(t, "row 1")
		t2, r2 := name.Draw(t, "table 2"), name.Draw(t, "row 2")
		a, b := k.row(spaceHead, t1, r1), k.row(spaceHead, t2, r2)
		want := strings.Compare(t1, t2)
		if want == 0 {
			want = strings.Compare(r1, r2)
		}
		require.Equal(t, want, bytes.Compare(a, b))
		require.Negative(t, bytes.Compare(a, k.afterTable(spaceHead, t1)))
		require.Positive(t, bytes.Compare(a, k.table(spaceHead, t1)))

		table, row, rest, err := k.parse(spaceHead, a)
		require.NoError(t, err)
		require.Equal(t, []string{t1, r1}, []string{table, row})
		require.Empty(t, rest)
		for _, id := range []uint64{77, 1<<63 | 77, 1<<56 - 1} {
			key := k.marker(t1, r1, id)
			m, err := k.parseIndex(key)
			require.NoError(t, err)
			require.Equal(t, marked{t1, r1, rowstore.Slot(t1, r1), markerID(id)}, m)
			old := binary.BigEndian.AppendUint64(k.sibling(a, spaceOldIndex), id)
			moved, err := k.fromOld(old)
			require.NoError(t, err)
			require.Equal(t, key, moved)
		}
		head, id, kind, err := k.parseSide(k.side(a, 78, kindChunk))
		require.NoError(t, err)
		require.Equal(t, a, head)
		require.Equal(t, uint64(78), id)
		require.Equal(t, byte(kindChunk), kind)
		require.Equal(t, r1, cutBoundary(a[len(k.table(spaceHead, t1)):]))
	})
}

func FuzzParseKey(f *testing.F) {
	k := newKeyspace("p")
	f.Add(k.row(spaceHead, "t", "r"))
	f.Add(k.side(k.row(spaceHead, "t\x00", "r"), 1, kindValue))
	f.Add(k.marker("t\x00", "r\x00", 1))
	f.Add(append(k.row(spaceOldIndex, "t\x00", "r"), "12345678"...))
	f.Fuzz(func(t *testing.T, key []byte) {
		if table, row, rest, err := k.parse(spaceHead, key); err == nil {
			require.Equal(t, key, append(k.row(spaceHead, table, row), rest...))
		} else {
			require.ErrorIs(t, err, rowstore.ErrCorrupt)
		}
		if head, id, kind, err := k.parseSide(key); err == nil {
			require.Equal(t, key, k.side(head, id, kind))
		}
		if m, err := k.parseIndex(key); err == nil {
			require.Equal(t, key, k.marker(m.table, m.row, m.id))
		} else {
			require.ErrorIs(t, err, rowstore.ErrCorrupt)
		}
		if _, err := k.fromOld(key); err != nil {
			require.ErrorIs(t, err, rowstore.ErrCorrupt)
		}
		_ = cutBoundary(key)
	})
}

// An entry is longer than a key: no limit of values would be left, which means any length.
func TestEntryWithoutRoomForAValue(t *testing.T) {
	t.Parallel()
	o := Options{MaxKey: 64 << 10, MaxEntry: 64 << 10}
	require.ErrorIs(t, o.complete(), rowstore.ErrInvalid)
	o = Options{MaxKey: 64 << 10, MaxEntry: 64<<10 + 1}
	require.NoError(t, o.complete())
	require.Equal(t, 1, o.limits().Value)
}

// The names that the limits allow make no key longer than the servers take.
func TestLimitsKeepKeysShort(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"p", strings.Repeat("p", maxPrefix)} {
		for _, most := range []int{1 << 10, 4 << 10, 64 << 10} {
			o := Options{Prefix: prefix, MaxKey: most}
			require.NoError(t, o.complete())
			l := o.limits()
			k := newKeyspace(prefix)
			key := k.side(k.row(spaceHead, strings.Repeat("\x00", l.Table), strings.Repeat("\x00", l.Row)), 1, kindValue)
			require.LessOrEqual(t, len(key)+4, most)
			require.Greater(t, len(key)+4, most-8, "no more is given away than must be")
			require.LessOrEqual(t, len(k.marker(strings.Repeat("\x00", l.Table), strings.Repeat("\x00", l.Row), 1)), len(key))
			require.Greater(t, l.Table, 50)
			require.Greater(t, l.Row, 200)
			require.Positive(t, l.Value)
		}
	}
}
