package explore

import (
	"hash/maphash"

	"github.com/percolate-go/percolate/internal/hash"
)

// trace is what makes two schedules the same: that one comes from the other by
// swapping neighbours which do not touch the same things. Its sum is equal for
// those and, but for a collision of 64 bits, for no others.
type trace struct {
	// What happens before and after something that touches everything cannot be
	// swapped, so only the events since then are kept.
	base   uint64
	events []tracedEvent
	sum    uint64
}

type tracedEvent struct {
	choice choice
	hash   uint64
}

// Seen are the schedules that were explored, each once however its independent
// calls came. One Seen belongs to one Program.
type Seen map[uint64]struct{}

// add tells whether t is new.
func (s Seen) add(t *trace) bool {
	if _, twice := s[t.sum]; twice {
		return false
	}
	s[t.sum] = struct{}{}
	return true
}

var traceSeed = maphash.MakeSeed()

func (t *trace) add(c *choice) {
	label := maphash.String(traceSeed, c.label)
	if c.all {
		t.base = hash.Mix(t.sum ^ label)
		t.sum, t.events = t.base, t.events[:0]
		return
	}
	// What an event depends on, in whatever order it came.
	before := t.base
	for i := range t.events {
		if !t.events[i].choice.independent(c) {
			before += t.events[i].hash
		}
	}
	h := hash.Mix(hash.Mix(before) ^ label)
	t.sum += h
	t.events = append(t.events, tracedEvent{choice: *c, hash: h})
}
