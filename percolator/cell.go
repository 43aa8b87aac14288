package percolator

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Timestamp orders transactions; see package oracle.
type Timestamp = oracle.Timestamp

// Cell names a value: a column of a row of a table. Each part is a string of any
// bytes, and none may be empty. Tables, rows and columns need no declaration.
type Cell struct {
	Table, Row, Column string
}

// String writes the cell as table/row/column, each quoted where it needs to be.
func (c Cell) String() string {
	return part(c.Table) + "/" + part(c.Row) + "/" + part(c.Column)
}

func part(s string) string {
	for i := 0; i < len(s); i++ {
		if b := s[i]; b <= ' ' || b >= 0x7f || b == '/' || b == '"' {
			return strconv.Quote(s)
		}
	}
	return s
}

// Names may hold any bytes, so the library's own data needs names that no user's cell
// can have. A stored name of a table or column that begins with exactly one zero byte
// is reserved. A user's name that begins with a zero byte is stored with one more in
// front. Rows keep their names, because scans promise their byte order.
const (
	tableCatalog    = "\x00catalog"
	tableSessions   = "\x00sessions"
	tableScanLeases = "\x00scanleases"
	tableParked     = "\x00parked"
	tableNotices    = "\x00notices"

	prefixAck    = "\x00a"
	prefixParked = "\x00p"
)

func escape(name string) string {
	if name != "" && name[0] == 0 {
		return "\x00" + name
	}
	return name
}

// unescape undoes escape; ok is false for a reserved name.
func unescape(stored string) (name string, ok bool) {
	if stored == "" || stored[0] != 0 {
		return stored, true
	}
	if len(stored) > 1 && stored[1] == 0 {
		return stored[1:], true
	}
	return "", false
}

// reserved tells whether a stored name is the library's own.
func reserved(stored string) bool {
	return stored != "" && stored[0] == 0 && (len(stored) < 2 || stored[1] != 0)
}

func (c Cell) stored() Cell {
	c.Table, c.Column = escape(c.Table), escape(c.Column)
	return c
}

// public returns the user's names of a stored cell. The library's own cells keep their
// stored names, which appear only in messages.
func (c Cell) public() Cell {
	if t, ok := unescape(c.Table); ok {
		c.Table = t
	}
	if col, ok := unescape(c.Column); ok {
		c.Column = col
	}
	return c
}

// ackColumn is the stored column that holds an observer's acknowledgments for a stored
// column of the same row. parkedColumn is the one that holds its failure record. The
// length in front of the observer's name keeps different pairs of names apart.
func ackColumn(observer, column string) string {
	return ownColumn(prefixAck, observer, column)
}

func parkedColumn(observer, column string) string {
	return ownColumn(prefixParked, observer, column)
}

func ownColumn(prefix, observer, column string) string {
	b := make([]byte, 0, len(prefix)+2+len(observer)+len(column))
	b = append(b, prefix...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(observer))) //nolint:gosec // Observe refuses names over maxObserverName
	b = append(b, observer...)
	b = append(b, column...)
	return string(b)
}

// splitOwnColumn takes a column made by ackColumn or parkedColumn apart.
func splitOwnColumn(stored string) (prefix, observer, column string, ok bool) {
	if len(stored) < 4 || (stored[:2] != prefixAck && stored[:2] != prefixParked) {
		return "", "", "", false
	}
	n := int(binary.BigEndian.Uint16([]byte(stored[2:4])))
	if len(stored) < 4+n {
		return "", "", "", false
	}
	return stored[:2], stored[4 : 4+n], stored[4+n:], true
}

// ownCell tells whether a stored cell is one of the library's own that transactions
// write.
func ownCell(c Cell) bool {
	_, _, _, own := splitOwnColumn(c.Column)
	return c.Table == tableParked && c.Column == columnParked || c.Table == tableNotices && c.Column == columnNotice || own && !reserved(c.Table)
}

const columnNotice = "commit"

// noticeCell is the primary of a transaction that writes nothing, but notifies and has
// locks or reads to validate. Each transaction has a different one, so it causes no
// conflicts. It is written as a delete, which garbage collection removes. The low bytes
// of the timestamp come first in the row key, so that rows of the same moment lie far
// apart.
func noticeCell(start Timestamp) Cell {
	return Cell{tableNotices, string(binary.LittleEndian.AppendUint64(nil, uint64(start))), columnNotice}
}

const (
	maxObserverName = 128
	// ownColumnSpace is the most that ackColumn and escape together add to a column's
	// name.
	ownColumnSpace = len(prefixAck) + 2 + maxObserverName + 1
)

// checkCell returns an error for a cell that has an empty name or one over the limits.
func (db *DB) checkCell(c *Cell) error {
	switch {
	case c.Table == "":
		return fmt.Errorf("%w: the table's name is empty (row %q, column %q)", ErrInvalid, c.Row, c.Column)
	case c.Row == "":
		return fmt.Errorf("%w: the row's key is empty (table %q, column %q)", ErrInvalid, c.Table, c.Column)
	case c.Column == "":
		return fmt.Errorf("%w: the column's name is empty (table %q, row %q)", ErrInvalid, c.Table, c.Row)
	}
	l := &db.limits
	if len(c.Table) > l.Table || len(c.Row) > l.Row || len(c.Column) > l.Column {
		return db.nameTooLarge(c)
	}
	return nil
}

func (db *DB) nameTooLarge(c *Cell) error {
	for _, p := range []struct {
		what string
		have int
		most int
	}{{"table's name", len(c.Table), db.limits.Table}, {"row's key", len(c.Row), db.limits.Row}, {"column's name", len(c.Column), db.limits.Column}} {
		if p.have > p.most {
			return fmt.Errorf("%w: the %s has %d bytes, the limit is %d", ErrTooLarge, p.what, p.have, p.most)
		}
	}
	return nil
}

// rowName names a stored row.
type rowName struct{ table, row string }

func (c Cell) rowName() rowName { return rowName{c.Table, c.Row} }

// rowMutations is a list of mutations that are built edit by edit, one for each row.
type rowMutations struct {
	list  []rowstore.Mutation
	index map[rowName]int // once there are many
}

// of returns the mutation of a row, adding it if need be.
func (m *rowMutations) of(table, row string) *rowstore.Mutation {
	name := rowName{table, row}
	if m.index == nil {
		for i := range m.list {
			if m.list[i].Row == row && m.list[i].Table == table {
				return &m.list[i]
			}
		}
		if len(m.list) >= indexFrom {
			m.index = make(map[rowName]int, 4*indexFrom)
			for i := range m.list {
				m.index[rowName{m.list[i].Table, m.list[i].Row}] = i
			}
		}
	} else if i, ok := m.index[name]; ok {
		return &m.list[i]
	}
	if m.index != nil {
		m.index[name] = len(m.list)
	}
	m.list = append(m.list, rowstore.Mutation{Table: table, Row: row})
	return &m.list[len(m.list)-1]
}
