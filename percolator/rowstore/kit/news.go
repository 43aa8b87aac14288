package kit

import (
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// newsTables and newsSlots are how many tables, and slots of a table, a News tells
	// apart. With more it says any. So many slots fit into a message of Postgres (4 hexadecimal digits
	// for each, of 7,999 bytes), and a worker remembers as many.
	newsTables = 64
	newsSlots  = 1024
)

// News collects what listeners have to be told (rowstore.Wake), in bounded memory. The zero
// News is empty and ready. It must not be used concurrently.
type News struct {
	wakes []rowstore.Wake // of different tables
}

// Add adds a wake. It keeps nothing of w.Slots.
func (n *News) Add(w rowstore.Wake) {
	if w.Table == "" {
		n.wakes = append(n.wakes[:0], rowstore.Wake{})
		return
	}
	for i := range n.wakes {
		switch old := &n.wakes[i]; {
		case old.Table == "":
			return
		case old.Table != w.Table:
		case len(old.Slots) == 0:
			return // any row
		case len(w.Slots) == 0:
			old.Slots = nil
			return
		default:
			old.Slots = append(old.Slots, w.Slots...)
			// The same slots may have come again and again. Some of them are put up with, so that each slot
			// that comes does not have all of them looked through.
			if len(old.Slots) > 2*newsSlots {
				old.Slots = apart(old.Slots)
			}
			return
		}
	}
	if len(n.wakes) == newsTables {
		n.Add(rowstore.Wake{})
		return
	}
	added := rowstore.Wake{Table: w.Table, Slots: slices.Clone(w.Slots)}
	if len(added.Slots) > newsSlots {
		added.Slots = apart(added.Slots)
	}
	n.wakes = append(n.wakes, added)
}

// apart returns the different ones of some slots, in order, or nil, any, if there are too many. It changes its argument.
func apart(slots []uint16) []uint16 {
	slices.Sort(slots)
	if slots = slices.Compact(slots); len(slots) > newsSlots {
		return nil
	}
	return slots
}

// Applied adds the row of a mutation that was applied, if [Wakes] is true for it.
func (n *News) Applied(m *rowstore.Mutation) {
	if Wakes(m) {
		slot := [1]uint16{rowstore.Slot(m.Table, m.Row)}
		n.Add(rowstore.Wake{Table: m.Table, Slots: slot[:]})
	}
}

// Take returns what was added, a wake for each table, which names each slot once, and empties n.
func (n *News) Take() []rowstore.Wake {
	wakes := n.wakes
	n.wakes = nil
	for i := range wakes {
		wakes[i].Slots = apart(wakes[i].Slots)
	}
	return wakes
}
