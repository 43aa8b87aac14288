package combine

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/percolate-go/percolate/percolator"
)

// slots are names for what transactions add. Each belongs to one open transaction at a time. Of those that a transaction may have, it takes the one
// that was given back last. So busy ones stay few, and the others grow old enough for transactions that began long ago.
type slots struct {
	mu   sync.Mutex
	free []slot
}

// slot is one of them. A transaction that began before the last commit of its slot would conflict with it, so it must have another one.
type slot struct {
	name percolator.Timestamp
	last percolator.Timestamp // commit of a transaction that had it, 0 for none
}

// holding is a transaction's hold on a slot, attached to it by the slots.
type holding struct {
	slot
	looks bool          // it has looked for idle cells
	left  time.Duration // for its further looks
}

// sharedSlots are those of all Combiners of the program. Those of one table share their slots: a transaction that adds by two of them names new slots by one
// timestamp, and if each of them kept a slot of that name, later transactions would conflict.
var sharedSlots = struct {
	mu sync.Mutex
	of map[slotsOf]weak.Pointer[slots]
}{of: map[slotsOf]weak.Pointer[slots]{}}

// slotsOf names slots. It keeps no DB.
type slotsOf struct {
	db    weak.Pointer[percolator.DB]
	table string
}

// shareSlots returns the slots of a table. They go with the last Combiner that has them.
func shareSlots(db *percolator.DB, table string) *slots {
	of := slotsOf{weak.Make(db), table}
	sharedSlots.mu.Lock()
	defer sharedSlots.mu.Unlock()
	if s := sharedSlots.of[of].Value(); s != nil {
		return s
	}
	s := &slots{}
	sharedSlots.of[of] = weak.Make(s)
	runtime.AddCleanup(s, func(of slotsOf) {
		sharedSlots.mu.Lock()
		defer sharedSlots.mu.Unlock()
		if sharedSlots.of[of].Value() == nil { // not those of a later Combiner
			delete(sharedSlots.of, of)
		}
	}, of)
	return s
}

// of returns the name of a transaction's slot, which it keeps until it ends.
func (s *slots) of(ctx context.Context, tx *percolator.Txn) (percolator.Timestamp, error) {
	if held := s.heldBy(tx); held != nil {
		return held.name, nil
	}
	taken, found := s.take(tx)
	if !found {
		// No two transactions that write begin at one timestamp, in whatever process.
		start, err := tx.StartTimestamp(ctx)
		if err != nil {
			return 0, err
		}
		taken = slot{name: start}
	}
	held := &holding{slot: taken}
	// Once for a transaction: its caller may go on after an error of the above.
	err := tx.OnEnd(func(err error) { s.giveBack(held, tx, err) })
	if err == nil {
		err = tx.Attach(s, held)
	}
	if err != nil && found {
		s.put(taken)
	}
	return taken.name, err
}

// heldBy returns the hold of a transaction, nil for none.
func (s *slots) heldBy(tx *percolator.Txn) *holding {
	held, _ := tx.Attached(s).(*holding)
	return held
}

// look calls f with the time that a transaction which holds a slot has left to look for idle cells, and takes off what f took. All its looks together take
// combinesFor at most, or a quarter of the time that its caller had left at the first one.
func (s *slots) look(ctx context.Context, tx *percolator.Txn, f func(ctx context.Context)) {
	held := s.heldBy(tx)
	if held == nil {
		return
	}
	if !held.looks {
		held.looks, held.left = true, combinesFor
		if end, has := ctx.Deadline(); has {
			held.left = min(held.left, time.Until(end)/4)
		}
	}
	if held.left <= 0 {
		return
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, held.left)
	defer cancel()
	f(ctx)
	held.left -= time.Since(begun)
}

// take takes a free slot for a transaction, if there is one that it may have: one that has begun sees all that was written in the slot. One that has
// not will begin after the commits of all free slots.
func (s *slots) take(tx *percolator.Txn) (slot, bool) {
	start, begun := tx.Begun()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, free := range slices.Backward(s.free) {
		if !begun || free.last <= start {
			s.free = slices.Delete(s.free, i, i+1)
			return free, true
		}
	}
	return slot{}, false
}

// giveBack ends a transaction's hold on its slot.
func (s *slots) giveBack(given *holding, tx *percolator.Txn, err error) {
	given.last = max(given.last, tx.CommitTimestamp())
	// Locks of a transaction whose outcome is not known may lie on the slot's cells for a while. A new slot in which nobody has written is not worth
	// keeping, and its name need not be unique: a View of the past has chosen its timestamp.
	if !errors.Is(err, percolator.ErrUndetermined) && given.last > 0 {
		s.put(given.slot)
	}
}

func (s *slots) put(free slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, free)
}
