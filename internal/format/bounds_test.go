package format

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestErrCorruptIsTheSeams asks as a user does, who knows rowstore alone.
func TestErrCorruptIsTheSeams(t *testing.T) {
	t.Parallel()
	_, err := DecodeLock(nil)
	require.ErrorIs(t, err, rowstore.ErrCorrupt)
	require.NotErrorIs(t, err, rowstore.ErrFormat)
}

// TestBoundsOfRecords wants the greatest of everything to be taken, and one more refused.
func TestBoundsOfRecords(t *testing.T) {
	t.Parallel()
	primary := Cell{"t", "r", "c"}
	lock := func(l Lock) error {
		if l.Primary == (Cell{}) {
			l.Primary = primary
		}
		got, err := DecodeLock(l.Encode())
		if err == nil {
			require.Equal(t, string(l.Encode()), string(got.Encode()))
		}
		return err
	}
	write := func(w Write) error { _, err := DecodeWrite(w.Encode()); return err }
	failure := func(change, notBefore, attempts uint64) error {
		b := []byte{Version, 0}
		for _, n := range []uint64{change, notBefore, attempts} {
			b = binary.AppendUvarint(b, n)
		}
		_, err := DecodeFailure(b)
		return err
	}
	short := make([]byte, ShortValue)
	more := make([]byte, ShortValue+1)
	const most = uint64(oracle.Max)
	for name, err := range map[string]error{
		"a lock with the longest value":  lock(Lock{Kind: KindPut, Value: short}),
		"a write with the longest value": write(Write{Kind: KindPut, Value: short}),
		"the greatest change":            failure(most, 0, 0),
		"the greatest wait":              failure(0, most, 0),
		"the most attempts":              failure(0, 0, math.MaxInt32),
	} {
		require.NoError(t, err, name)
	}
	for name, err := range map[string]error{
		"a lock with a longer value":   lock(Lock{Kind: KindPut, Value: more}),
		"a write with a longer value":  write(Write{Kind: KindPut, Value: more}),
		"a long delete, locked":        lock(Lock{Kind: KindDelete, Long: true}),
		"a long lock":                  lock(Lock{Kind: KindLock, Long: true}),
		"a write that only locks":      write(Write{Kind: KindLock}),
		"no table of the primary":      lock(Lock{Kind: KindPut, Primary: Cell{"", "r", "c"}}),
		"no row of the primary":        lock(Lock{Kind: KindPut, Primary: Cell{"t", "", "c"}}),
		"no column of the primary":     lock(Lock{Kind: KindPut, Primary: Cell{"t", "r", ""}}),
		"a change over the greatest":   failure(most+1, 0, 0),
		"a wait over the greatest":     failure(0, most+1, 0),
		"attempts over the most":       failure(0, 0, math.MaxInt32+1),
		"a length over the range":      errorOf(DecodeMember(append([]byte{Version, 5, 0, 0, 1}, binary.AppendUvarint(nil, math.MaxUint64)...))),
		"a length one over the record": errorOf(DecodeMember([]byte{Version, 5, 0, 0, 1, 1, 'o', 1, 't', 2, 'c'})),
	} {
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	// What never happens is not stored as something else.
	none := Failure{Attempts: -1}
	got, err := DecodeFailure(none.Encode())
	require.NoError(t, err)
	require.Zero(t, got)
}

func errorOf[T any](_ T, err error) error { return err }

func TestBoundsOfTheCatalog(t *testing.T) {
	t.Parallel()
	decode := func(current, rest string) error {
		_, err := DecodeCatalog([]byte("\x02" + `{"current":` + current + rest + "}"))
		return err
	}
	settings := func(age, retention, lease int64) string {
		return fmt.Sprintf(`{"max_txn_age_ms":%d,"retention_ms":%d,"catalog_lease_ms":%d}`, age, retention, lease)
	}
	const most = int64(1) << 43
	fine := settings(5, 60, 1)
	observer := func(name, table, column string) string {
		c := Catalog{Observers: []Observer{{Name: []byte(name), Table: []byte(table), Column: []byte(column)}}}
		b, err := c.Encode()
		require.NoError(t, err)
		_, list, _ := strings.Cut(string(b), `"observers":`)
		return `,"observers":` + strings.TrimSuffix(list, "}")
	}
	longest := strings.Repeat("o", MaxObserverName)
	for name, err := range map[string]error{
		"the greatest retention":  decode(settings(5, most, 1), ""),
		"the least retention":     decode(settings(5, 7, 1), ""),
		"a past age":              decode(fine, `,"past":[{"max_txn_age_ms":1,"until":5},{"max_txn_age_ms":5,"until":6}]`),
		"the longest observer":    decode(fine, observer(longest, "t", "c")),
		"next of another program": decode(fine, `,"next":`+settings(6, 70, 2)),
	} {
		require.NoError(t, err, name)
	}
	for name, err := range map[string]error{
		"a retention over the greatest": decode(settings(5, most+1, 1), ""),
		"an age over the greatest":      decode(settings(most+1, most, 1), ""),
		"a lease over the greatest":     decode(settings(5, most, most+1), ""),
		"no lease":                      decode(settings(5, 60, 0), ""),
		"no age":                        decode(settings(0, 60, 1), ""),
		"a retention that is too short": decode(settings(5, 6, 1), ""),
		"a past age of nothing":         decode(fine, `,"past":[{"max_txn_age_ms":0,"until":5}]`),
		"a past age over today's":       decode(fine, `,"past":[{"max_txn_age_ms":6,"until":5}]`),
		"an observer with a long name":  decode(fine, observer(longest+"o", "t", "c")),
		"an observer of no table":       decode(fine, observer("o", "", "c")),
		"an observer of no column":      decode(fine, observer("o", "t", "")),
	} {
		require.ErrorIs(t, err, ErrCorrupt, name)
	}
	r := Observer{Name: []byte("n"), Table: []byte("t"), Column: []byte("c")}
	require.True(t, r.Is("n", "t", "c"))
	for _, other := range [][3]string{{"x", "t", "c"}, {"n", "x", "c"}, {"n", "t", "x"}} {
		require.False(t, r.Is(other[0], other[1], other[2]), "%v", other)
	}
}

func TestOwnCell(t *testing.T) {
	t.Parallel()
	for _, c := range []Cell{
		ParkedCell("o", Cell{"t", "r", "c"}), NoticeCell(1),
		{"t", "r", AckColumn("o", "c")},
		{"t", "r", FailureColumn("o", "c")},
		{"t", "r", ColumnWholeRow},
		{TableReplays, "r", ColumnReplay},
		{"\x00\x00t", "r", AckColumn("o", "c")},
	} {
		require.True(t, OwnCell(c), "%q", c)
	}
	for _, c := range []Cell{
		{"t", "r", "c"},
		{TableParked, "r", "other"},
		{TableParked, "r", ColumnNotice},
		{"t", "r", ColumnParked},
		{TableNotices, "r", "other"},
		{TableNotices, "r", ColumnParked},
		{"t", "r", ColumnNotice},
		{TableCatalog, RowCatalog, ColumnConfig},
		{TableSessions, "s", ColumnLease},
		{TableSessions, "r", AckColumn("o", "c")},
		{TableParked, "r", AckColumn("o", "c")},
	} {
		require.False(t, OwnCell(c), "%q", c)
	}
}

// TestLongRowsAreHashed wants a key of 200 bytes to stay as it is: other processes look for it
// under that name.
func TestLongRowsAreHashed(t *testing.T) {
	t.Parallel()
	last := rowOf("t", strings.Repeat("c", 193), "ob")
	require.Len(t, last, longParts)
	require.Contains(t, last, "ccc")
	hashed := rowOf("t", strings.Repeat("c", 194), "ob")
	require.Len(t, hashed, 33)
	require.NotEqual(t, hashed, rowOf("t", strings.Repeat("c", 195), "ob"))
}

// TestParkedTextIsCut keeps a text of the greatest length whole, and cuts no character in two.
func TestParkedTextIsCut(t *testing.T) {
	t.Parallel()
	park := func(text string) string {
		p := NewParked("o", Cell{"t", "r", "c"}, Failure{}, errors.New(text), 1)
		return p.Error
	}
	whole := strings.Repeat("x", MaxErrorText)
	require.Equal(t, whole, park(whole))
	require.Equal(t, whole, park(whole+"x"))
	require.Equal(t, whole[:MaxErrorText-1], park(whole[:MaxErrorText-1]+"é"))
}

func TestKindsHaveNames(t *testing.T) {
	t.Parallel()
	for k, want := range map[Kind]string{KindPut: "put", KindDelete: "delete", KindLock: "lock only", 0: "kind 0", 7: "kind 7"} {
		require.Equal(t, want, k.String())
	}
}
