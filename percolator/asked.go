package percolator

import (
	"slices"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// asked is which rows of a table are to be looked at before all others.
type asked struct {
	some   chan struct{} // a token when there are slots
	mu     sync.Mutex
	slots  []uint16 // that pushes have told of, each once
	has    *slotSet // the same; nil before the first
	gained *slotSet // that have come to be this worker's own; nil without any

	// told are the slots of other workers that pushes have told of since a time, and in about
	// as long before it; nil without any.
	told, before *slotSet
	since        time.Time
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

// tell notes slots of other workers that a push has told of. They are remembered for lasts at
// least, and twice as long at most.
func (a *asked) tell(slots []uint16, now time.Time, lasts time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if age := now.Sub(a.since); a.told == nil || age >= lasts {
		if a.before = a.told; age >= 2*lasts {
			a.before = nil
		}
		a.told, a.since = &slotSet{}, now
	}
	for _, slot := range slots {
		a.told.add(slot)
	}
}

// toldOf lists those of some slots that a push has told of lately.
func (a *asked) toldOf(slots *slotSet, now time.Time, lasts time.Duration) (all []uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.told == nil || now.Sub(a.since) >= 2*lasts {
		return nil
	}
	told := *a.told
	for i := range told {
		if a.before != nil {
			told[i] |= a.before[i]
		}
		told[i] &= slots[i]
	}
	for _, r := range told.ranges() {
		for slot := int(r.First); slot <= int(r.Last); slot++ {
			all = append(all, uint16(slot)) //nolint:gosec // a slot
		}
	}
	return all
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
	own := w.concerned(at)
	switch {
	case len(at.Slots) == 0 || !w.db.slots && len(own) > 0:
		w.kickTable(at.Table)
	case w.db.slots:
		if len(own) < len(at.Slots) {
			w.asked[at.Table].tell(at.Slots, w.db.clock.Now(), w.toldFor())
		}
		w.askFor(at.Table, own)
	}
}

// askFor asks for a look at some slots of a table.
func (w *Worker) askFor(table string, slots []uint16) {
	if len(slots) > 0 && !w.asked[table].add(slots) {
		w.kickTable(table)
	}
}

// toldFor is about how long after a push its slots may still come to be this worker's own without
// anybody having looked at them: their owner was killed, or has left.
func (w *Worker) toldFor() time.Duration { return 2 * w.config.MemberLease }

// concerned lists those of the slots that may be this worker's own. If its shares change later, it
// looks then.
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
