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
//	notify   table slot row column timestamp   family Notify
//	sample   level table row              a few of the rows, for Split
//
// A read at a recent timestamp, and every condition, needs the head alone, which
// is one Get however long the history. Scans of current data pass over no history,
// and scans for notifications over nothing else. Notifications are in the order of their
// rows' slots (rowstore.Slot), high byte first, because workers share them out by slots.
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
	// endLen is the length of the end of a name.
	endLen = 2
)

// bySlot is what the keys of the notify space begin with. Behind the space's byte stands the
// form of an empty name, where version 1 of the layout had a table's name, which is never
// empty. So a store of version 1 can have its keys moved one by one (migrate.go).
var bySlot = []byte{spaceNotify, escape, endOfName}

// slotLen is the length of a slot in a key.
const slotLen = 2

// appendRow appends the prefix of a row's keys in a space.
func appendRow(dst []byte, space byte, table, row string) []byte {
	if space == spaceNotify {
		dst = kit.AppendName(append(dst, bySlot...), table)
		dst = binary.BigEndian.AppendUint16(dst, rowstore.Slot(table, row))
		return kit.AppendName(dst, row)
	}
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

// splitKey splits a key of any space of rows: the forms of the table's and the row's name,
// the slot if the space has one, and what is behind them.
func splitKey(key []byte) (table, slot, row, rest []byte, err error) {
	body, slots := key, 0
	if bytes.HasPrefix(key, bySlot) {
		body, slots = key[len(bySlot):], slotLen
	} else if len(key) > 0 && key[0] != spaceNotify {
		body = key[1:]
	}
	if len(body) < len(key) {
		if table, rest, err = kit.CutRaw(body); err == nil && len(rest) >= slots {
			slot = rest[:slots]
			if row, rest, err = kit.CutRaw(rest[slots:]); err == nil {
				return table, slot, row, rest, nil
			}
		}
	}
	return nil, nil, nil, nil, corruptKey(key)
}

// rowPrefix returns the part of a key, in any space of rows, that names the space,
// the table and the row.
func rowPrefix(key []byte) ([]byte, error) {
	_, _, _, rest, err := splitKey(key)
	if err != nil {
		return nil, err
	}
	return key[:len(key)-len(rest)], nil
}

// splitRow returns the names in a row's prefix.
func splitRow(prefix []byte) (table, row string, err error) {
	t, slot, r, rest, err := splitKey(prefix)
	if err != nil || len(rest) > 0 || len(t) == 0 || len(r) == 0 {
		return "", "", corruptKey(prefix)
	}
	table, row = kit.NameOf(t), kit.NameOf(r)
	if len(slot) > 0 && binary.BigEndian.Uint16(slot) != rowstore.Slot(table, row) {
		return "", "", corruptKey(prefix)
	}
	return table, row, nil
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
