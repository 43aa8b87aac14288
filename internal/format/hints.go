package format

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// Session is what a process says of itself with its lease. It is a Write version of ColumnLease, at the
// lease's end.
type Session struct {
	// Resolved says that no transaction of this session which began below it has left a lock that may
	// still depend on a record. A transaction counts from before its first prewrite. 0 says nothing.
	Resolved Timestamp
}

// Encode returns the stored bytes.
func (s Session) Encode() []byte {
	return binary.BigEndian.AppendUint64([]byte{Version}, uint64(s.Resolved))
}

// DecodeSession undoes Session.Encode. The session of a program that knew no Resolved has none. An error
// matches ErrCorrupt or rowstore.ErrFormat.
func DecodeSession(b []byte) (Session, error) {
	if err := checkVersion(b, "session"); err != nil || len(b) == 1 {
		return Session{}, err
	}
	if len(b) != 9 {
		return Session{}, fmt.Errorf("%w: session %x", ErrCorrupt, b)
	}
	s := Session{Resolved: Timestamp(binary.BigEndian.Uint64(b[1:]))}
	if s.Resolved > oracle.Max {
		return Session{}, fmt.Errorf("%w: session: resolved below %d", ErrCorrupt, uint64(s.Resolved))
	}
	return s, nil
}

// Hint names rows of one table in which commits of a span of time have left something that a
// collection can remove once the safe point has passed them. It is a Write version of ColumnHint, in a row of
// TableHints of its own. The row's name has the table and the beginning of the span; the version's
// timestamp is its end.
type Hint struct {
	Rows []string
}

// Encode returns the stored bytes.
func (h *Hint) Encode() []byte {
	n := 1
	for _, r := range h.Rows {
		n += len(r) + 2
	}
	b := append(make([]byte, 0, n), Version)
	for _, r := range h.Rows {
		b = appendString(b, r)
	}
	return b
}

// DecodeHint undoes Hint.Encode. An error matches ErrCorrupt or rowstore.ErrFormat.
func DecodeHint(b []byte) (Hint, error) {
	var h Hint
	if err := checkVersion(b, "hint"); err != nil {
		return h, err
	}
	for rest := b[1:]; len(rest) > 0; {
		var r string
		var err error
		if r, rest, err = takeString(rest); err != nil {
			return Hint{}, fmt.Errorf("%w: hint: bad row", ErrCorrupt)
		}
		h.Rows = append(h.Rows, r)
	}
	return h, nil
}

// HintsOf is the range of rows, to excluded, that hold the hints of a table whose spans begin at or above
// since, and not above until.
func HintsOf(table string, since, until Timestamp) (from, to string) {
	prefix := rowOf(table)
	return string(binary.BigEndian.AppendUint64([]byte(prefix), uint64(since))),
		string(binary.BigEndian.AppendUint64([]byte(prefix), uint64(until)+1))
}

// HintedTable is the table of a row of TableHints. ok is false where the row does not have it, because the name is very long.
func HintedTable(row string) (table string, ok bool) {
	n, size := binary.Uvarint([]byte(row[:min(len(row), binary.MaxVarintLen64)]))
	if size <= 0 || strings.HasPrefix(row, hashedRow) || n > uint64(len(row)-size) {
		return "", false
	}
	return row[size : size+int(n)], true //nolint:gosec // at most the length
}

// HintRow names the row of a hint of a table: since is the beginning of its span, and id is unlike
// that of any other.
func HintRow(table string, since Timestamp, id string) string {
	from, _ := HintsOf(table, since, since)
	return from + id
}
