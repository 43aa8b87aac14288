package explore

import (
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The catalog's row holds a record of each process beside the catalog. Calls that store
// the records of two processes lead to the same state in either order, so that a record
// is something of its own to touch.

func useOf(column string) string { return "use " + column }

// readTouches is what reading a row touches.
func readTouches(rd *rowstore.RowRead) []touch {
	if rd.Table != format.TableCatalog {
		return []touch{{rd.Table, rd.Row, false}}
	}
	var touches []touch
	for _, s := range rd.Selectors {
		t := touch{table: rd.Table, row: rd.Row}
		if s.Family == rowstore.Mark {
			t.row = useOf(s.Column)
			if s.Column == rowstore.AllColumns {
				t.row = "" // everybody's
			}
		}
		if !slices.Contains(touches, t) {
			touches = append(touches, t)
		}
	}
	return touches
}

// changeTouches is what changing a row touches.
func changeTouches(m *rowstore.Mutation) (touches []touch) {
	if !changesUse(m) {
		return []touch{{m.Table, m.Row, true}}
	}
	for _, e := range m.Edits {
		touches = append(touches, touch{m.Table, useOf(e.Column), true})
	}
	return touches
}

// changesUse tells whether a mutation changes nothing but records of processes.
func changesUse(m *rowstore.Mutation) bool {
	return m.Table == format.TableCatalog && len(m.Edits) > 0 && !slices.ContainsFunc(m.Edits, func(e rowstore.Edit) bool { return e.Family != rowstore.Mark })
}
