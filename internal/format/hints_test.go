package format

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
)

func FuzzDecodeSession(f *testing.F) {
	fuzz(f, [][]byte{Session{5}.Encode(), TimestampOnly, nil}, DecodeSession, func(s Session) []byte { return s.Encode() })
}

func FuzzDecodeHint(f *testing.F) {
	h := Hint{[]string{"a", "\x00", strings.Repeat("r", 300)}}
	fuzz(f, [][]byte{h.Encode(), {Version}, nil}, DecodeHint, func(h Hint) []byte { return h.Encode() })
}

func TestHintsThatAreGarbage(t *testing.T) {
	t.Parallel()
	for _, b := range []string{"", "\x00", "\x01\x05a", "\x01\x01a\xff", "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"} {
		_, err := DecodeHint([]byte(b))
		require.ErrorIs(t, err, ErrCorrupt, "%q", b)
	}
	for _, b := range []string{"", "\x00", "\x01\x01", "\x01\x01\x02\x03\x04\x05\x06\x07\x08\x09", "\x01\xff\xff\xff\xff\xff\xff\xff\xff"} {
		_, err := DecodeSession([]byte(b))
		require.ErrorIs(t, err, ErrCorrupt, "%q", b)
	}
	s, err := DecodeSession(TimestampOnly)
	require.NoError(t, err)
	require.Zero(t, s.Resolved, "a program of before says nothing")
}

// The hints of a table lie together, in the order of time, whatever its name and those of others are.
func TestHintRows(t *testing.T) {
	t.Parallel()
	tables := []string{"t", "tt", "t\x00", "\x00\x00t", "\xff", strings.Repeat("t", 400), strings.Repeat("t", 401)}
	for _, table := range tables {
		from, to := HintsOf(table, 5, 9)
		named, ok := HintedTable(HintRow(table, 5, "a"))
		require.Equal(t, len(table) < longParts, ok)
		require.True(t, named == table || !ok)
		for _, other := range tables {
			for _, since := range []Timestamp{0, 4, 5, 9, 10, oracle.Max} {
				for _, id := range []string{"a", "\xff\xff"} {
					row := HintRow(other, since, id)
					require.Equal(t, other == table && since >= 5 && since <= 9, row >= from && row < to, "%q of %q at %d", table, other, since)
					require.LessOrEqual(t, len(row), longParts+2+8+2)
				}
			}
		}
	}
	for _, row := range []string{"", "\x05t", "\xff"} {
		_, ok := HintedTable(row)
		require.False(t, ok)
	}
	rows := []string{HintRow("t", 1, "b"), HintRow("t", 2, "a"), HintRow("t", 1<<40, "")}
	require.True(t, slices.IsSorted(rows))
	require.Equal(t, "\x01t\x00\x00\x00\x00\x00\x00\x01\x02ab", HintRow("t", 0x0102, "ab"))
}
