package percolator

import (
	"slices"
	"sync"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// asked is which rows of a table are to be looked at before all others.
type asked struct {
	some   chan struct{} // a token when there are slots
	mu     sync.Mutex
	slots  []uint16 // that pushes have told of, each once
	has    *slotSet // the same; nil before the first
	gained *slotSet // that have come to be this worker's own; nil without any
}

// mostAsked is how many slots are remembered. More of them mean all rows.
const mostAsked = 1024

// add returns false if there are too many, and forgets them.
func (a *asked) add(slots []uint16) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.has == nil {
		a.has = &slotSet{}
	}
	for _, slot := range slots {
		switch {
		case a.has.has(slot):
		case len(a.slots) == mostAsked:
			a.clear()
			return false
		default:
			a.has.add(slot)
			a.slots = append(a.slots, slot)
		}
	}
	leaveToken(a.some)
	return true
}

// take returns the slots that were asked for, and forgets them.
func (a *asked) take() []uint16 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.clear()
}

// clear forgets the slots, and returns them. a.mu is held.
func (a *asked) clear() (slots []uint16) {
	for _, slot := range a.slots {
		a.has.remove(slot)
	}
	slots, a.slots = a.slots, nil
	return slots
}

// gain adds slots that have come to be this worker's own.
func (a *asked) gain(slots *slotSet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.gained == nil {
		a.gained = &slotSet{}
	}
	for i, word := range slots {
		a.gained[i] |= word
	}
}

// hasGained tells whether there are such slots.
func (a *asked) hasGained() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.gained != nil
}

// takeGained returns them, and forgets them.
func (a *asked) takeGained() (slots *slotSet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	slots, a.gained = a.gained, nil
	return slots
}

// kickSlots is kickTable for those rows of some slots that may be this worker's own, or for all
// if at names none or the store does not find rows by slots.
func (w *Worker) kickSlots(at rowstore.Wake) {
	if len(at.Slots) == 0 || !w.db.slots || !w.asked[at.Table].add(w.concerned(at)) {
		w.kickTable(at.Table)
	}
}

// concerns tells whether one of the rows may be this worker's own. If its shares change
// later, it looks then.
func (w *Worker) concerns(at rowstore.Wake) bool {
	return len(at.Slots) == 0 || len(w.concerned(at)) > 0
}

// concerned lists those of the slots that may be this worker's own.
func (w *Worker) concerned(at rowstore.Wake) []uint16 {
	all := w.member.shares.Load()
	if all == nil {
		return at.Slots
	}
	now := w.now()
	var own []uint16
	for _, slot := range at.Slots {
		if slices.ContainsFunc(w.list, func(q *queue) bool { return q.table == at.Table && all.at(q, now).has(slot) }) {
			own = append(own, slot)
		}
	}
	return own
}
