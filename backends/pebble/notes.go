package pebble

import (
	"slices"
	"sync"

	"github.com/google/btree"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// maxNotes is the memory that notifications may take, in bytes, about.
const maxNotes = 128 << 20

// notes is a copy of the notify space in memory. Notifications come and go, and
// until the engine has compacted it the space holds a tombstone for each that is
// gone: a scan of it would pay for all that there ever were. There is one process,
// so the copy is exact; it is made when the store is opened.
//
// Past maxNotes it is dropped until the next Open, and scans walk the space itself.
type notes struct {
	mu          sync.Mutex
	all         *btree.BTreeG[note] // nil when it was dropped
	size, limit int
}

// note is one notification: its key without the space, and its value.
type note struct{ key, value string }

func (n note) size() int { return len(n.key) + len(n.value) + 64 }

// noteEdit is a change of the notify space: a put of note, or the removal of the
// keys from note.key to upTo, both included.
type noteEdit struct {
	note
	upTo string // "" for a put
}

func (n *notes) init() {
	n.limit = maxNotes
	n.all = btree.NewG(32, func(a, b note) bool { return a.key < b.key })
}

// edit makes the changes of a batch. The rows' stripes are held, and the gate from
// before the call until the batch is visible.
func (n *notes) edit(edits []noteEdit) {
	if len(edits) == 0 {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range edits {
		e := &edits[i]
		if n.all == nil {
			return
		}
		switch {
		case e.upTo == "":
			n.put(e.note)
		case e.upTo == e.key:
			n.delete(e.note)
		default:
			var gone []note
			n.all.AscendRange(e.note, note{key: e.upTo + "\x00"}, func(x note) bool {
				gone = append(gone, x)
				return true
			})
			for _, x := range gone {
				n.delete(x)
			}
		}
	}
}

func (n *notes) put(x note) {
	if old, ok := n.all.ReplaceOrInsert(x); ok {
		n.size -= old.size()
	}
	if n.size += x.size(); n.size > n.limit {
		n.all = nil
	}
}

func (n *notes) delete(x note) {
	if old, ok := n.all.Delete(x); ok {
		n.size -= old.size()
	}
}

// pageNotes is the least number of notifications after which a page ends.
const pageNotes = 1024

// page returns the notifications of whole rows in [lower, upper), in order or from
// the end, of up to limit rows; more tells that there are others. ok is false when
// the copy was dropped.
func (n *notes) page(lower, upper string, reverse bool, limit int) (page []note, more, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		return nil, false, false
	}
	rows, last := 0, ""
	visit := func(x note) bool {
		if last == "" || len(x.key) < len(last) || x.key[:len(last)] != last {
			if rows == limit || len(page) >= pageNotes {
				more = true
				return false
			}
			rows++
			last = x.row()
		}
		page = append(page, x)
		return true
	}
	if reverse {
		n.all.DescendLessOrEqual(note{key: upper}, func(x note) bool {
			if x.key == upper {
				return true
			}
			return x.key >= lower && visit(x)
		})
		slices.Reverse(page)
	} else {
		n.all.AscendRange(note{key: lower}, note{key: upper}, visit)
	}
	return page, more, true
}

// row returns the prefix of the note's row, without the space. Keys were checked
// when they came in.
func (n note) row() string {
	names := 0
	for i := 0; i+1 < len(n.key); i++ {
		if n.key[i] != escape {
			continue
		}
		i++
		if n.key[i] == endOfName {
			if names++; names == 2 {
				return n.key[:i+1]
			}
		}
	}
	return n.key
}

// pick selects from the notes of one row what a pick of Notify does.
func (n *notesOfRow) pick(out []rowstore.Version, p *rowstore.Selector) []rowstore.Version {
	column, found := "", 0
	for i := range *n {
		x := &(*n)[i]
		if x.column != column {
			column, found = x.column, 0
		}
		if p.Column != rowstore.AllColumns && p.Column != column || x.ts < p.From || x.ts > p.To || p.Limit > 0 && found == p.Limit {
			continue
		}
		found++
		out = append(out, rowstore.Version{Family: rowstore.Notify, Column: column, TS: x.ts, Value: []byte(x.value)})
	}
	return out
}

type notesOfRow []struct {
	column string
	ts     rowstore.Timestamp
	value  string
}

// loadNotes makes the copy of the notify space in a store that was opened.
func (s *Store) loadNotes() (err error) {
	n := &s.notes
	n.init()
	it, err := s.db.NewIter(nil)
	if err != nil {
		return err
	}
	defer func() {
		if e := it.Close(); err == nil {
			err = e
		}
	}()
	it.SetBounds([]byte{spaceNotify}, []byte{spaceNotify + 1})
	for ok := it.First(); ok && n.all != nil; ok = it.Next() {
		p, err := rowPrefix(it.Key())
		if err != nil {
			return err
		}
		if _, _, err := splitRow(p); err != nil {
			return err
		}
		if _, _, err := splitVersion(it.Key(), len(p)); err != nil {
			return err
		}
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		n.put(note{string(it.Key()[1:]), string(v)})
	}
	return it.Error()
}
