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
	slots  []uint16 // that pushes have told of
	gained *slotSet // that have come to be this worker's own; nil without any
}

// mostAsked is how many slots are remembered. More of them mean all rows.
const mostAsked = 1024

// add returns false if there are too many, and forgets them.
func (a *asked) add(slots []uint16) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.slots)+len(slots) > mostAsked {
		a.slots = nil
		return false
	}
	a.slots = append(a.slots, slots...)
	leaveToken(a.some)
	return true
}

// take returns the slots that were asked for, and forgets them.
func (a *asked) take() (slots []uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
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

// kickSlots is kickTable for the rows of some slots, or for all if at names none or the
// store does not find rows by slots. Other workers' slots count, too: of many changes at once
// few are to be looked at before a backlog (TestGainedChangesDoNotWaitForTheBacklog).
func (w *Worker) kickSlots(at rowstore.Wake) {
	if len(at.Slots) == 0 || !w.db.slots || !w.asked[at.Table].add(at.Slots) {
		w.kickTable(at.Table)
	}
}

// concerns tells whether one of the rows may be this worker's own. If its shares change
// later, it looks then.
func (w *Worker) concerns(at rowstore.Wake) bool {
	all := w.member.shares.Load()
	if all == nil || len(at.Slots) == 0 {
		return true
	}
	now := w.now()
	return slices.ContainsFunc(w.list, func(q *queue) bool {
		return q.table == at.Table && slices.ContainsFunc(at.Slots, all.at(q, now).has)
	})
}
