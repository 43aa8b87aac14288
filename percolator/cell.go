package percolator

import (
	"fmt"
	"strconv"

	"github.com/percolate-go/percolate/internal/format"
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

// stored returns the stored names of a user's cell.
func (c Cell) stored() Cell {
	c.Table, c.Column = format.Escape(c.Table), format.Escape(c.Column)
	return c
}

// public returns the user's names of a stored cell. The library's own cells keep their
// stored names, which appear only in messages.
func (c Cell) public() Cell {
	if t, ok := format.Unescape(c.Table); ok {
		c.Table = t
	}
	if col, ok := format.Unescape(c.Column); ok {
		c.Column = col
	}
	return c
}

// called says which method of the user's an error is of.
func called(what string, err error) error { return fmt.Errorf("percolator: %s: %w", what, err) }

// checkCell returns an error for a cell that has an empty name or one over the limits.
// The caller adds what was called.
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
