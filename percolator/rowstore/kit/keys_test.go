package kit_test

import (
	"bytes"
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// names are those that a careless codec mixes up.
func names() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringOfN(rapid.SampledFrom([]rune{0, 1, 2, 'a', 'b'}), 0, 5, -1),
		rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]byte{0x00, 0x01, 0x02, 0xFE, 0xFF}), 0, 5), func(b []byte) string { return string(b) }),
	)
}

func TestKeysSortAsTheirPartsDo(t *testing.T) {
	t.Parallel()
	type parts struct {
		table, row string
		ts         rowstore.Timestamp
	}
	gen := rapid.Custom(func(t *rapid.T) parts {
		return parts{names().Draw(t, "table"), names().Draw(t, "row"), rowstore.Timestamp(rapid.Uint64().Draw(t, "ts"))}
	})
	key := func(p parts) []byte {
		return kit.AppendTimestamp(kit.AppendName(kit.AppendName([]byte("x"), p.table), p.row), p.ts)
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := gen.Draw(t, "a"), gen.Draw(t, "b")
		want := cmp.Or(strings.Compare(a.table, b.table), strings.Compare(a.row, b.row), cmp.Compare(b.ts, a.ts))
		require.Equal(t, want, bytes.Compare(key(a), key(b)))
		table, rest, err := kit.CutName(key(a)[1:])
		require.NoError(t, err)
		row, rest, err := kit.CutName(rest)
		require.NoError(t, err)
		ts, rest, err := kit.CutTimestamp(rest)
		require.NoError(t, err)
		require.Empty(t, rest)
		require.Equal(t, a, parts{table, row, ts})
		require.LessOrEqual(t, len(key(a)), 1+2*len(a.table)+2*len(a.row)+4+kit.TimestampLen)
		// What lies between a prefix and its end is what begins with it.
		prefix := kit.AppendName([]byte("x"), a.table)
		inside := bytes.Compare(key(b), prefix) >= 0 && bytes.Compare(key(b), kit.PrefixEnd(prefix)) < 0
		require.Equal(t, a.table == b.table, inside)
	})
}

func TestPrefixEnd(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{"a": "b", "a\xff": "b", "a\xff\x00": "a\xff\x01"} {
		require.Equal(t, want, string(kit.PrefixEnd([]byte(prefix))))
	}
	require.Nil(t, kit.PrefixEnd([]byte("\xff\xff")))
	require.Nil(t, kit.PrefixEnd(nil))
}

func FuzzCutName(f *testing.F) {
	f.Add([]byte("a\x00\x01b"))
	f.Add([]byte("a\x00\xff\x00\x01"))
	f.Add([]byte("a\x00"))
	f.Add([]byte(strings.Repeat("long", 100)))
	f.Fuzz(func(t *testing.T, key []byte) {
		name, rest, err := kit.CutName(key)
		if err != nil {
			require.ErrorIs(t, err, rowstore.ErrCorrupt)
			require.Less(t, len(err.Error()), 1000)
			return
		}
		require.Equal(t, key, append(kit.AppendName(nil, name), rest...))
	})
}

func ExampleAppendName() {
	key := kit.AppendName(nil, "accounts")
	key = kit.AppendName(key, "alice")
	key = kit.AppendTimestamp(key, 7)
	table, rest, _ := kit.CutName(key)
	row, rest, _ := kit.CutName(rest)
	ts, _, _ := kit.CutTimestamp(rest)
	fmt.Println(table, row, uint64(ts))
	// Output: accounts alice 7
}
