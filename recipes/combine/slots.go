package combine

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"weak"

	"github.com/percolate-go/percolate/percolator"
)

// slots are names for what transactions add. Each belongs to one open transaction at a time. The one that was given back last is taken
// first, so that there are no more in use than transactions were open at once.
type slots struct {
	mu   sync.Mutex
	free []percolator.Timestamp
	held map[*percolator.Txn]percolator.Timestamp
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

// of returns the slot of a transaction, which keeps it until it ends.
func (s *slots) of(ctx context.Context, tx *percolator.Txn) (percolator.Timestamp, error) {
	slot, held := s.take(tx)
	if held {
		return slot, nil
	}
	if slot == 0 {
		// No two transactions begin at one timestamp, in whatever process.
		var err error
		if slot, err = tx.StartTimestamp(ctx); err != nil {
			return 0, err
		}
	}
	// A slot that is not given back is never used again, and does no harm.
	err := tx.OnEnd(func(err error) { s.giveBack(tx, slot, err) })
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = make(map[*percolator.Txn]percolator.Timestamp)
	}
	s.held[tx] = slot
	return slot, nil
}

// take returns the slot that the transaction holds, or one that is free, or 0.
func (s *slots) take(tx *percolator.Txn) (slot percolator.Timestamp, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot, held = s.held[tx]; held {
		return slot, true
	}
	if n := len(s.free); n > 0 {
		slot = s.free[n-1]
		s.free = s.free[:n-1]
	}
	return slot, false
}

// giveBack ends a transaction's hold on its slot.
func (s *slots) giveBack(tx *percolator.Txn, slot percolator.Timestamp, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, tx)
	// Locks of a transaction whose outcome is not known may lie on the slot's cells for a while.
	if !errors.Is(err, percolator.ErrUndetermined) {
		s.free = append(s.free, slot)
	}
}
