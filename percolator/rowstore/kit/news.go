package kit

import (
	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// newsTables and newsSlots are how many tables, and slots of a table, a News tells
	// apart. With more it says any.
	newsTables = 64
	newsSlots  = 256
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
		case len(w.Slots) == 0 || len(old.Slots)+len(w.Slots) > newsSlots:
			old.Slots = nil
			return
		default:
			old.Slots = append(old.Slots, w.Slots...)
			return
		}
	}
	if len(n.wakes) == newsTables {
		n.Add(rowstore.Wake{})
		return
	}
	added := rowstore.Wake{Table: w.Table}
	if len(w.Slots) <= newsSlots {
		added.Slots = append(added.Slots, w.Slots...)
	}
	n.wakes = append(n.wakes, added)
}

// Applied adds the row of a mutation that was applied, if [Wakes] is true for it.
func (n *News) Applied(m *rowstore.Mutation) {
	if Wakes(m) {
		slot := [1]uint16{rowstore.Slot(m.Table, m.Row)}
		n.Add(rowstore.Wake{Table: m.Table, Slots: slot[:]})
	}
}

// Take returns what was added, a wake for each table, and empties n.
func (n *News) Take() []rowstore.Wake {
	wakes := n.wakes
	n.wakes = nil
	return wakes
}
