package pebble

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The store's keys start with a byte that names their space:
//
//	meta     name
//	head     table row column             the column's lock, mark and newest write
//	history  table row column timestamp   the older writes
//	data     table row column timestamp   family Data
//	notify   table row column timestamp   family Notify
//	sample   level table row              a few of the rows, for Split
//
// A read at a recent timestamp, and every condition, needs the head alone, which
// is one Get however long the history. Scans of current data pass over no history,
// and scans for notifications over nothing else.
//
// Tables, rows and columns are escaped so that the order of keys is that of the
// names and no name's key is a prefix of another's: 0x00 becomes 0x00 0xFF, and
// 0x00 0x01 ends the name. The column of a head is the last part and stands as it
// is. Timestamps are inverted, so that newer versions come first.
const (
	spaceMeta    = 0x01
	spaceHead    = 0x02
	spaceHistory = 0x03
	spaceData    = 0x04
	spaceNotify  = 0x05
	spaceSample  = 0x06
)

const (
	escape     = 0x00
	escapedNul = 0xFF
	endOfName  = 0x01
	// afterName is greater than endOfName and less than anything that can follow
	// an escape otherwise: a prefix with its last byte so changed bounds all keys
	// that have the prefix.
	afterName = 0x02
)

const tsLen = 8

// appendName appends the escaped form of a name.
func appendName(dst []byte, name string) []byte {
	for {
		i := indexNul(name)
		if i < 0 {
			dst = append(dst, name...)
			return append(dst, escape, endOfName)
		}
		dst = append(dst, name[:i]...)
		dst = append(dst, escape, escapedNul)
		name = name[i+1:]
	}
}

func indexNul(s string) int {
	for i := 0; i < len(s); i++ {
		if s[i] == 0 {
			return i
		}
	}
	return -1
}

// appendRow appends the prefix of a row's keys in a space.
func appendRow(dst []byte, space byte, table, row string) []byte {
	dst = append(dst, space)
	dst = appendName(dst, table)
	return appendName(dst, row)
}

// appendTable appends the prefix of a table's keys in a space.
func appendTable(dst []byte, space byte, table string) []byte {
	return appendName(append(dst, space), table)
}

// appendColumn appends the prefix of a column's versions in a space other than
// head.
func appendColumn(dst []byte, space byte, table, row, column string) []byte {
	return appendName(appendRow(dst, space, table, row), column)
}

// appendTS appends an inverted timestamp.
func appendTS(dst []byte, ts rowstore.Timestamp) []byte {
	return binary.BigEndian.AppendUint64(dst, ^uint64(ts))
}

// after turns a prefix that ends with a name into the least key greater than all
// keys with that prefix. It changes p.
func after(p []byte) []byte {
	p[len(p)-1] = afterName
	return p
}

// cutName splits an escaped name off. raw is the escaped form without its end.
func cutName(key []byte) (raw, rest []byte, ok bool) {
	for i := 0; ; {
		j := bytes.IndexByte(key[i:], escape)
		if j < 0 || i+j+1 >= len(key) {
			return nil, nil, false
		}
		i += j
		switch key[i+1] {
		case endOfName:
			return key[:i], key[i+2:], true
		case escapedNul:
			i += 2
		default:
			return nil, nil, false
		}
	}
}

// unescape returns the name whose escaped form is raw.
func unescape(raw []byte) string {
	if bytes.IndexByte(raw, escape) < 0 {
		return string(raw)
	}
	return string(bytes.ReplaceAll(raw, []byte{escape, escapedNul}, []byte{escape}))
}

// sameName tells whether raw is the escaped form of name.
func sameName(raw []byte, name string) bool {
	for {
		i := bytes.IndexByte(raw, escape)
		if i < 0 {
			return string(raw) == name
		}
		if len(name) <= i || string(raw[:i]) != name[:i] || name[i] != 0 {
			return false
		}
		raw, name = raw[i+2:], name[i+1:]
	}
}

// rowPrefix returns the part of a key, in any space of rows, that names the space,
// the table and the row.
func rowPrefix(key []byte) ([]byte, error) {
	if len(key) > 0 {
		if _, rest, ok := cutName(key[1:]); ok {
			if _, rest, ok = cutName(rest); ok {
				return key[:len(key)-len(rest)], nil
			}
		}
	}
	return nil, corruptKey(key)
}

// splitRow returns the names in a row's prefix.
func splitRow(prefix []byte) (table, row string, err error) {
	if len(prefix) > 0 {
		if t, rest, ok := cutName(prefix[1:]); ok {
			if r, rest, ok := cutName(rest); ok && len(rest) == 0 && len(t) > 0 && len(r) > 0 {
				return unescape(t), unescape(r), nil
			}
		}
	}
	return "", "", corruptKey(prefix)
}

// splitVersion reads what follows the row's prefix in a key of history, data and
// notify. column is escaped.
func splitVersion(key []byte, prefixLen int) (column []byte, ts rowstore.Timestamp, err error) {
	column, rest, ok := cutName(key[prefixLen:])
	if !ok || len(rest) != tsLen || len(column) == 0 {
		return nil, 0, corruptKey(key)
	}
	ts = rowstore.Timestamp(^binary.BigEndian.Uint64(rest))
	if !validTS(ts) {
		return nil, 0, corruptKey(key)
	}
	return column, ts, nil
}

func corruptKey(key []byte) error {
	const most = 200
	more := ""
	if len(key) > most {
		key, more = key[:most], "..."
	}
	return fmt.Errorf("%w: key %q%s is not one of this store's", ErrCorrupt, key, more)
}

// tsOf reads the timestamp at the end of a key.
func tsOf(key []byte) rowstore.Timestamp {
	return rowstore.Timestamp(^binary.BigEndian.Uint64(key[len(key)-tsLen:]))
}
