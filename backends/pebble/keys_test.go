package pebble

import (
	"bytes"
	"cmp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// names draws names that are hard to encode: prefixes of each other, and bytes that
// the encoding uses itself.
func names() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		b := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 2, 'a', 'b', 0xFE, 0xFF}), 1, 6).Draw(t, "name")
		return string(b)
	})
}

func timestamps() *rapid.Generator[rowstore.Timestamp] {
	return rapid.Custom(func(t *rapid.T) rowstore.Timestamp {
		return rowstore.Timestamp(rapid.Uint64Range(1, uint64(oracle.Max)).Draw(t, "ts"))
	})
}

type address struct {
	table, row, column string
	ts                 rowstore.Timestamp
}

func (a address) compare(b address) int {
	return cmp.Or(strings.Compare(a.table, b.table), strings.Compare(a.row, b.row),
		strings.Compare(a.column, b.column), cmp.Compare(b.ts, a.ts))
}

func drawAddress(t *rapid.T) address {
	return address{names().Draw(t, "table"), names().Draw(t, "row"), names().Draw(t, "column"), timestamps().Draw(t, "ts")}
}

func TestKeysKeepTheOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		a, b := drawAddress(rt), drawAddress(rt)
		key := func(a address) []byte {
			return kit.AppendTimestamp(appendColumn(nil, spaceHistory, a.table, a.row, a.column), a.ts)
		}
		if got, want := bytes.Compare(key(a), key(b)), a.compare(b); got != want {
			rt.Fatalf("keys of %+v and %+v compare as %d, not %d", a, b, got, want)
		}
		head := func(a address) []byte { return append(appendRow(nil, spaceHead, a.table, a.row), a.column...) }
		b.ts = a.ts
		if got, want := bytes.Compare(head(a), head(b)), a.compare(b); got != want {
			rt.Fatalf("heads of %+v and %+v compare as %d, not %d", a, b, got, want)
		}
	})
}

func TestKeysComeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		a := drawAddress(rt)
		key := kit.AppendTimestamp(appendColumn(nil, spaceData, a.table, a.row, a.column), a.ts)
		p, err := rowPrefix(key)
		require.NoError(rt, err)
		require.Equal(rt, appendRow(nil, spaceData, a.table, a.row), p)
		table, row, err := splitRow(p)
		require.NoError(rt, err)
		column, ts, err := splitVersion(key, len(p))
		require.NoError(rt, err)
		require.Equal(rt, a, address{table, row, kit.NameOf(column), ts})
	})
}

func TestPrefixBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		a, b := drawAddress(rt), drawAddress(rt)
		key := append(appendRow(nil, spaceHead, b.table, b.row), b.column...)
		lower := appendRow(nil, spaceHead, a.table, a.row)
		upper := after(bytes.Clone(lower))
		in := bytes.Compare(lower, key) <= 0 && bytes.Compare(key, upper) < 0
		require.Equal(rt, a.table == b.table && a.row == b.row, in, "%+v and %+v", a, b)
	})
}

func TestHeadsComeBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var h head
		value := rapid.SliceOfN(rapid.Byte(), 0, 300)
		if rapid.Bool().Draw(rt, "has lock") {
			h.lockTS, h.lock = timestamps().Draw(rt, "lock"), value.Draw(rt, "lock value")
		}
		if rapid.Bool().Draw(rt, "has mark") {
			h.markTS, h.mark = timestamps().Draw(rt, "mark"), value.Draw(rt, "mark value")
		}
		if rapid.Bool().Draw(rt, "has write") || h.empty() {
			h.writeTS, h.write = timestamps().Draw(rt, "write"), value.Draw(rt, "write value")
			h.older = rowstore.Timestamp(rapid.Uint64Range(0, uint64(h.writeTS)-1).Draw(rt, "older"))
		}
		b := h.append(nil)
		require.LessOrEqual(rt, len(b), h.size())
		var got head
		require.NoError(rt, got.decode(b))
		for _, v := range []*[]byte{&h.lock, &h.mark, &h.write, &got.lock, &got.mark, &got.write} {
			*v = append([]byte{}, *v...) // nil and empty are the same
		}
		require.Equal(rt, h, got)
		// Cut short, it is refused or has a shorter value, and nothing worse.
		n := rapid.IntRange(0, len(b)-1).Draw(rt, "cut")
		if err := got.decode(b[:n]); err == nil {
			require.NotZero(rt, got.writeTS)
			require.Less(rt, len(got.write), len(h.write))
		} else {
			require.ErrorIs(rt, err, rowstore.ErrCorrupt)
		}
	})
}

func FuzzHead(f *testing.F) {
	f.Add([]byte{})
	f.Add((&head{writeTS: 5, older: 4, write: []byte("v")}).append(nil))
	f.Add((&head{lockTS: 5, lock: []byte("l"), markTS: 3, mark: []byte("m"), writeTS: 2}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h head
		if err := h.decode(b); err != nil {
			require.ErrorIs(t, err, rowstore.ErrCorrupt)
			require.Greater(t, len(err.Error()), len(rowstore.ErrCorrupt.Error()), "the error says what is wrong")
			return
		}
		require.False(t, h.empty())
		var again head
		require.NoError(t, again.decode(h.append(nil)))
		require.Equal(t, h.lockTS, again.lockTS)
		require.Equal(t, string(h.lock), string(again.lock))
		require.Equal(t, string(h.mark), string(again.mark))
		require.Equal(t, string(h.write), string(again.write))
	})
}

func FuzzKey(f *testing.F) {
	f.Add([]byte{})
	f.Add(kit.AppendTimestamp(appendColumn(nil, spaceNotify, "t\x00", "r\x00\xff", "c"), 7))
	f.Add([]byte{spaceHead, 0})
	f.Add([]byte{spaceHead, 'a', 0, 3, 'b'})
	f.Fuzz(func(t *testing.T, key []byte) {
		p, err := rowPrefix(key)
		if err != nil {
			require.ErrorIs(t, err, rowstore.ErrCorrupt)
			return
		}
		table, row, err := splitRow(p)
		if err != nil {
			require.ErrorIs(t, err, rowstore.ErrCorrupt)
			return
		}
		require.Equal(t, p, appendRow(nil, key[0], table, row))
		column, ts, err := splitVersion(key, len(p))
		if err != nil {
			require.ErrorIs(t, err, rowstore.ErrCorrupt)
			return
		}
		require.Equal(t, key, kit.AppendTimestamp(appendColumn(nil, key[0], table, row, kit.NameOf(column)), ts))
	})
}
