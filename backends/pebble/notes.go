package pebble

import (
	"slices"
	"strings"
	"sync"

	"github.com/google/btree"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// maxNotes is the memory that notifications may take, in bytes, about.
const maxNotes = 128 << 20

// notes is a copy of the notify space in memory, in its order: by table, slot and row.
// Notifications come and go, and until the engine has compacted it the space holds a
// tombstone for each that is gone: a scan of it would pay for all that there ever were.
// There is one process, so the copy is exact; it is made when the store is opened.
//
// Past maxNotes it is dropped until the next Open, and scans walk the space itself.
type notes struct {
	mu          sync.Mutex
	all         *btree.BTreeG[note] // nil when it was dropped
	size, limit int
}

// note is one notification: its key behind bySlot, and its value.
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

const (
	// pageNotes is the least number of notifications after which a page ends.
	pageNotes = 1024
	// pageLeaps is how often a page searches the copy, for a range of slots or a row. Each
	// search takes some microseconds in a large copy, and holds commits up.
	pageLeaps = 64
)

// notePage collects the notifications of whole rows for a page of a scan.
type notePage struct {
	notes       []note
	rows, limit int
	size        int    // bytes of values
	last        string // the prefix of the last row
}

// begins tells whether x is of another row than the last notification.
func (p *notePage) begins(x note) bool {
	return p.last == "" || !strings.HasPrefix(x.key, p.last)
}

func (p *notePage) add(x note) {
	if p.begins(x) {
		p.rows++
		p.last = x.row()
	}
	p.notes = append(p.notes, x)
	p.size += len(x.value)
}

// full tells whether the page takes no further row.
func (p *notePage) full() bool {
	return p.rows == p.limit || len(p.notes) >= pageNotes || p.size >= pageBytes
}

// slots adds to a page what the next slots of a scan hold, and moves the scan beyond it. It
// returns false when the copy was dropped.
func (n *notes) slots(c *slotCursor, page *notePage) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		return false
	}
	end := note{key: string(c.end)}
	for leaps := 0; leaps < pageLeaps && !c.done; leaps++ {
		ended := true
		n.all.AscendRange(note{key: string(c.from)}, end, func(x note) bool {
			if page.begins(x) {
				ended = !page.full() && c.at(slotAt(x.key, len(c.table)))
			}
			if ended {
				page.add(x)
			}
			return ended
		})
		switch {
		case ended:
			c.done = true
		case page.full():
			c.beyond(page.last)
			return true
		}
	}
	return true
}

// rows adds to a page what the first of some rows hold, which are given by their prefixes,
// and returns how many it looked at. ok is false when the copy was dropped.
func (n *notes) rows(prefixes []string, page *notePage) (looked int, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		return 0, false
	}
	for _, p := range prefixes {
		if page.full() {
			break
		}
		looked++
		n.all.AscendGreaterOrEqual(note{key: p}, func(x note) bool {
			if !strings.HasPrefix(x.key, p) {
				return false
			}
			page.add(x)
			return true
		})
	}
	return looked, true
}

// clone returns the notifications as they are now, nil when the copy was dropped.
func (n *notes) clone() *btree.BTreeG[note] {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		return nil
	}
	return n.all.Clone()
}

// tableNotes is what a page of a scan knows of the notifications of its table, in the state
// that the page is of.
type tableNotes struct {
	known bool                // else any row may have some
	all   *btree.BTreeG[note] // nil if the table has none
	key   []byte
}

// ofTable returns the notifications of a table as they are now.
func (n *notes) ofTable(table []byte) *tableNotes {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := &tableNotes{known: n.all != nil}
	if t.known {
		n.all.AscendRange(note{key: string(table)}, note{key: string(after(slices.Clone(table)))}, func(note) bool {
			t.all = n.all.Clone()
			return false
		})
	}
	return t
}

// has tells whether a row may have notifications.
func (t *tableNotes) has(table, row string) (found bool) {
	if !t.known || t.all == nil {
		return !t.known
	}
	t.key = appendRow(t.key[:0], spaceNotify, table, row)
	prefix := string(t.key[len(bySlot):])
	t.all.AscendGreaterOrEqual(note{key: prefix}, func(x note) bool {
		found = strings.HasPrefix(x.key, prefix)
		return false
	})
	return found
}

// row returns the prefix of the note's row, without bySlot. Keys were checked when they came
// in.
func (n note) row() string {
	return n.key[:nameEnd(n.key, nameEnd(n.key, 0)+slotLen)]
}

// nameEnd returns where the form of a name ends that begins at key[at].
func nameEnd(key string, at int) int {
	for {
		at += strings.IndexByte(key[at:], escape) + 2
		if key[at-1] == endOfName {
			return at
		}
	}
}

// slotAt reads the slot at key[at:].
func slotAt(key string, at int) uint16 {
	return uint16(key[at])<<8 | uint16(key[at+1])
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
	it.SetBounds(bySlot, kit.PrefixEnd(bySlot))
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
		n.put(note{string(it.Key()[len(bySlot):]), string(v)})
	}
	return it.Error()
}
