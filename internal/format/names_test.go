package format

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// FuzzStoredName takes stored names apart: every name is a user's or the library's own,
// never both, and is put together again as it was.
func FuzzStoredName(f *testing.F) {
	for _, s := range []string{"", "a", "\x00", "\x00\x00", "\x00\x00a", TableCatalog, AckColumn("observer", "column"), FailureColumn("o", "\x00\x00c"), "\x00a\x00", "\x00a\xff\xffx"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, stored string) {
		name, ok := Unescape(stored)
		require.Equal(t, !ok, Reserved(stored))
		if ok {
			require.Equal(t, stored, Escape(name))
		}
		prefix, observer, column, ok := SplitOwnColumn(stored)
		if !ok {
			return
		}
		require.True(t, Reserved(stored))
		require.Equal(t, stored, ownColumn(prefix, observer, column))
	})
}

func TestEscape(t *testing.T) {
	t.Parallel()
	// Few letters, so that names which differ in little meet often.
	name := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 0, 1, 'a', 'p', 0xff}), 1, 8).Draw(t, "bytes"))
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		stored := Escape(a)
		require.False(t, Reserved(stored), "a user's name is stored under a reserved one")
		back, ok := Unescape(stored)
		require.True(t, ok)
		require.Equal(t, a, back)
		require.Equal(t, a == b, Escape(a) == Escape(b))
		// Any stored name is either reserved or that of one user's name.
		if user, ok := Unescape(b); ok {
			require.Equal(t, b, Escape(user))
			require.False(t, Reserved(b))
		} else {
			require.True(t, Reserved(b))
		}
	})
	for _, own := range []string{TableCatalog, TableSessions, TableMembers, TableSweeps, TableParked, AckColumn("o", "c"), FailureColumn("o", "c"), ClaimColumn("o", "c")} {
		require.True(t, Reserved(own))
	}
	for _, tables := range []string{TableCatalog, TableSessions, TableMembers, TableSweeps, TableParked} {
		require.NotEqual(t, tables, Escape(tables), "a user's table may have any name")
	}
}

func TestOwnColumns(t *testing.T) {
	t.Parallel()
	name := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 2, 'a', 'p'}), 1, 6).Draw(t, "bytes"))
	})
	rapid.Check(t, func(t *rapid.T) {
		o1, o2 := name.Draw(t, "o1"), name.Draw(t, "o2")
		c1, c2 := Escape(name.Draw(t, "c1")), Escape(name.Draw(t, "c2"))
		require.Equal(t, o1 == o2 && c1 == c2, AckColumn(o1, c1) == AckColumn(o2, c2))
		require.Equal(t, o1 == o2 && c1 == c2, FailureColumn(o1, c1) == FailureColumn(o2, c2))
		require.NotEqual(t, AckColumn(o1, c1), FailureColumn(o2, c2))
		require.Equal(t, o1 == o2 && c1 == c2, ParkedCell(o1, Cell{"t", "r", c1}) == ParkedCell(o2, Cell{"t", "r", c2}))
		for prefix, column := range map[string]string{PrefixAck: AckColumn(o1, c1), PrefixFailure: FailureColumn(o1, c1)} {
			p, o, c, ok := SplitOwnColumn(column)
			require.True(t, ok)
			require.Equal(t, []string{prefix, o1, c1}, []string{p, o, c})
		}
		_, _, _, ok := SplitOwnColumn(c1)
		require.False(t, ok, "a user's column is none of the library's")
	})
	require.LessOrEqual(t, len(AckColumn(strings.Repeat("o", MaxObserverName), Escape("\x00c"))), OwnColumnSpace+len("\x00c"))
}

// What is stored is found again: the library's own names are exactly these.
func TestNames(t *testing.T) {
	t.Parallel()
	require.Equal(t, "\x00a\x00\x02obcol", AckColumn("ob", "col"))
	require.Equal(t, "\x00p\x00\x02obcol", FailureColumn("ob", "col"))
	require.Equal(t, Cell{"\x00notices", "\x08\x07\x06\x05\x04\x03\x02\x01", "commit"}, NoticeCell(0x0102030405060708))
	require.Equal(t, Cell{"\x00parked", "\x01t\x02\x00r\x01c\x02ob", "run"}, ParkedCell("ob", Cell{"t", "\x00r", "c"}))
	require.Equal(t, "\x00c\x00\x02obcol", ClaimColumn("ob", "col"))
	o := &Observer{Name: []byte("ob"), Table: []byte("t"), Column: []byte("c"), Since: 1 << 18}
	require.Equal(t, "\x01t\x01c\x02ob\x1a1970-01-01T00:00:00.001Z+0", SweepLeaseRow(o))
	long := ParkedCell("ob", Cell{"t", "r", strings.Repeat("c", 200)}).Row
	require.Equal(t, "0010ca3fb3fa55bb2ea10fa45f47d50e7548bb224b72b99bdef1e9ed28a698edf5", hex.EncodeToString([]byte(long)))
	require.Equal(t, []string{"\x00catalog", "catalog", "config", "safepoint", "holds", "resolved", "swept", "collected"}, []string{TableCatalog, RowCatalog, ColumnConfig, ColumnSafePoint, ColumnHolds, ColumnResolved, ColumnSwept, ColumnCollected})
	require.Equal(t, []string{"\x00hints", "rows"}, []string{TableHints, ColumnHint})
	require.Equal(t, []string{"\x00sessions", "lease", "\x00members", "member", "generation", "change", "barrier", "answer", "\x00sweeps"}, []string{TableSessions, ColumnLease, TableMembers, ColumnMember, RowGeneration, ColumnChange, ColumnBarrier, ColumnAnswer, TableSweeps})
	for at, slot := range map[[2]string]uint16{{"t", "r"}: 59924, {"", ""}: 15047, {"tr", ""}: 40106, {"t", "r\xff"}: 11342, {"accounts", "0001"}: 25518} {
		require.Equal(t, slot, rowstore.Slot(at[0], at[1]), "%q", at)
	}
	require.Equal(t, uint64(8610777109720940351), MemberSeed("0123456789abcdef01234567"))
	for table, transactional := range map[string]bool{
		"t": true, "\x00\x00t": true, TableParked: true, TableNotices: true, TableReplays: true, TableCatalog: false, TableSessions: false, TableMembers: false, TableSweeps: false, TableHints: false,
	} {
		require.Equal(t, transactional, Transactional(table), "%q", table)
	}
}

func TestParkedOf(t *testing.T) {
	t.Parallel()
	for _, c := range []Cell{{"t", "r", "c"}, {"\x00\x00t", "\xff\x00", ""}} {
		of, observer, ok := ParkedOf(ParkedCell("o", c).Row)
		require.True(t, ok)
		require.Equal(t, c, of)
		require.Equal(t, "o", observer)
	}
	for _, row := range []string{"", "x", ParkedCell("o", Cell{"t", strings.Repeat("r", 300), "c"}).Row, ParkedCell("o", Cell{"t", "r", "c"}).Row + "x", "\x05t"} {
		_, _, ok := ParkedOf(row)
		require.False(t, ok, "%q", row)
	}
}
