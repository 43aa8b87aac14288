package redis

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A column keeps all its notifications in one field (layout.go), and may have thousands: of a cell
// whose observer was paused, say. So all edits of a column's notifications are one operation of the
// write script, which passes the field once and writes it once, whatever their number. The
// operation is
//
//	10, the column's number, its member of the index,
//	the oldest timestamp that the edits touch, as halves,
//	the deletions: 16 bytes for each, the newest timestamp that it deletes and the oldest,
//	the number of puts, and for each its timestamp and its value
//
// Deletions and puts are sorted, the newest first. No two of them touch the same version. A put at the
// assigned timestamp comes first, since that is nearly always the newest.

// noteEdit is an edit of notifications.
type noteEdit struct {
	column int // among the notes
	put    bool
	hi, lo rowstore.Timestamp // what it touches
	edit   int                // among those of the mutation
}

func compareNoteEdits(a, b noteEdit) int {
	switch {
	case a.column != b.column:
		return cmp.Compare(a.column, b.column)
	case a.put != b.put:
		if a.put {
			return 1
		}
		return -1
	}
	return cmp.Compare(b.hi, a.hi)
}

// notifications writes the edits of a mutation's notifications. The script looks for them in
// front of all other edits.
func (e *writeEncoder) notifications(m *rowstore.Mutation) {
	if len(e.notes.all) == 0 {
		return
	}
	e.noteEdits = e.noteEdits[:0]
	for i := range m.Edits {
		ed := &m.Edits[i]
		if ed.Family != rowstore.Notify {
			continue
		}
		n := noteEdit{put: ed.Kind == rowstore.DoPut, hi: ed.TS, lo: ed.TS, edit: i}
		if ed.Kind == rowstore.DoDeleteRange {
			n.hi = ed.To
		}
		if n.lo > n.hi {
			continue // a range of nothing
		}
		n.column = e.notes.find(ed.Column)
		e.noteEdits = append(e.noteEdits, n)
	}
	slices.SortFunc(e.noteEdits, compareNoteEdits)
	for left := e.noteEdits; len(left) > 0; {
		n := 1
		for n < len(left) && left[n].column == left[0].column {
			n++
		}
		e.notesOf(m, left[:n])
		left = left[n:]
	}
	if cap(e.noteEdits) > maxRowsPerCall {
		e.noteEdits = nil // encoders are kept
	}
}

// notesOf writes the edits of one column.
func (e *writeEncoder) notesOf(m *rowstore.Mutation, edits []noteEdit) {
	column := edits[0].column
	oldest, dels := edits[0].lo, 0
	for i := range edits {
		oldest = min(oldest, edits[i].lo)
		if !edits[i].put {
			dels++
		}
	}
	e.small(10)
	e.u32(uint32(len(e.cells.all) + column + 1))
	e.member(e.slot, m.Row, e.notes.all[column].name)
	e.halves(inv(oldest))
	e.strHead(16 * dels)
	for _, d := range edits[:dels] {
		e.b = binary.BigEndian.AppendUint64(e.b, inv(d.hi))
		e.b = binary.BigEndian.AppendUint64(e.b, inv(d.lo))
	}
	e.u32(uint32(len(edits) - dels))
	for _, p := range edits[dels:] {
		e.version(&m.Edits[p.edit])
	}
}
