package pebble

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
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
// Names and timestamps have the forms of package kit, in which the order of keys is
// that of the names, newer versions first, and no name's form is a prefix of
// another's. The column of a head is the last part and stands as it is.
const (
	spaceMeta    = 0x01
	spaceHead    = 0x02
	spaceHistory = 0x03
	spaceData    = 0x04
	spaceNotify  = 0x05
	spaceSample  = 0x06
)

// A zero byte in the form of a name escapes what follows it: an escaped zero byte
// (0xFF), or the end of the name.
const (
	escape    = 0x00
	endOfName = 0x01
	// afterName is greater than endOfName and less than anything else that can follow
	// an escape. So a prefix that ends with a name, with its last byte changed to
	// afterName, is the upper bound of all keys with that prefix.
	afterName = 0x02
)

// appendRow appends the prefix of a row's keys in a space.
func appendRow(dst []byte, space byte, table, row string) []byte {
	dst = append(dst, space)
	dst = kit.AppendName(dst, table)
	return kit.AppendName(dst, row)
}

// appendColumn appends the prefix of a column's versions in a space other than
// head.
func appendColumn(dst []byte, space byte, table, row, column string) []byte {
	return kit.AppendName(appendRow(dst, space, table, row), column)
}

// after turns a prefix that ends with a name into the least key greater than all
// keys with that prefix. It changes p.
func after(p []byte) []byte {
	p[len(p)-1] = afterName
	return p
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
		if _, rest, err := kit.CutRaw(key[1:]); err == nil {
			if _, rest, err = kit.CutRaw(rest); err == nil {
				return key[:len(key)-len(rest)], nil
			}
		}
	}
	return nil, corruptKey(key)
}

// splitRow returns the names in a row's prefix.
func splitRow(prefix []byte) (table, row string, err error) {
	if len(prefix) > 0 {
		if t, rest, err := kit.CutRaw(prefix[1:]); err == nil {
			if r, rest, err := kit.CutRaw(rest); err == nil && len(rest) == 0 && len(t) > 0 && len(r) > 0 {
				return kit.NameOf(t), kit.NameOf(r), nil
			}
		}
	}
	return "", "", corruptKey(prefix)
}

// splitVersion reads what follows the row's prefix in a key of history, data and
// notify. column is escaped.
func splitVersion(key []byte, prefixLen int) (column []byte, ts rowstore.Timestamp, err error) {
	column, rest, err := kit.CutRaw(key[prefixLen:])
	if err != nil || len(rest) != kit.TimestampLen || len(column) == 0 {
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
	return fmt.Errorf("%w: key %q%s is not one of this store's", rowstore.ErrCorrupt, key, more)
}

// tsOf reads the timestamp at the end of a key.
func tsOf(key []byte) rowstore.Timestamp {
	return rowstore.Timestamp(^binary.BigEndian.Uint64(key[len(key)-kit.TimestampLen:]))
}
