package percolator

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"

	"github.com/percolate-go/percolate/internal/hash"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// slotSet is a set of slots, a bit for each.
type slotSet [rowstore.Slots / 64]uint64

func (s *slotSet) has(slot uint16) bool { return s[slot/64]>>(slot%64)&1 == 1 }
func (s *slotSet) add(slot uint16)      { s[slot/64] |= 1 << (slot % 64) }
func (s *slotSet) remove(slot uint16)   { s[slot/64] &^= 1 << (slot % 64) }

// ringPoints is the number of points of the member that weighs most. The parts of members
// of equal weight then differ by a twentieth, about: one part in the root of it. More points
// would share out more evenly, in more ranges.
const ringPoints = 512

// points is how many points a member has on the ring.
func (p *party) points(most int) int {
	return max(1, int((int64(p.weight)*ringPoints+int64(most)/2)/int64(most)))
}

// point is where a member's point lies. A member that gets more points keeps those that
// it has.
func (p *party) point(i int) uint64 { return hash.Mix(p.seed ^ (uint64(i)+1)*0x9e3779b97f4a7c15) } //nolint:gosec // not negative

// firstPoint is the first point in a slot.
type firstPoint struct {
	at    uint64
	party int
}

// firstPoints are used again, since each has a megabyte and every change of the members
// takes some.
var firstPoints = sync.Pool{New: func() any { return new([rowstore.Slots]firstPoint) }}

// ring gives the slots of one of some parties. The ring is as long as a hash, and a slot
// lies where the hashes begin whose first bits are its number. The first point from there
// on has it.
func ring(parties []party, mine int) *slotSet {
	most := slices.MaxFunc(parties, func(a, b party) int { return cmp.Compare(a.weight, b.weight) }).weight
	firsts := firstPoints.Get().(*[rowstore.Slots]firstPoint)
	defer firstPoints.Put(firsts)
	var taken slotSet // those in which a point lies; for others firsts has what somebody left
	for i := range parties {
		p := &parties[i]
		for k := range p.points(most) {
			at := p.point(k)
			slot := uint16(at >> 48) //nolint:gosec // 16 bits
			f := &firsts[slot]
			if !taken.has(slot) || at < f.at || at == f.at && p.seed < parties[f.party].seed {
				taken.add(slot)
				*f = firstPoint{at, i}
			}
		}
	}
	var slots slotSet
	first, from := -1, 0 // the party of the first point, and the slot behind the last one so far
	for i, word := range taken {
		for ; word != 0; word &= word - 1 {
			slot := i*64 + bits.TrailingZeros64(word)
			owner := firsts[slot].party
			if first < 0 {
				first = owner
			}
			if owner == mine {
				slots.addAll(from, slot)
			}
			from = slot + 1
		}
	}
	// Behind the last point comes the first one again.
	if first == mine && from < rowstore.Slots {
		slots.addAll(from, rowstore.Slots-1)
	}
	return &slots
}

// addAll adds the slots from one to another, both included.
func (s *slotSet) addAll(from, to int) {
	for i := from / 64; i <= to/64; i++ {
		word := ^uint64(0)
		if i == from/64 {
			word &= ^uint64(0) << (from % 64)
		}
		if i == to/64 {
			word &= ^uint64(0) >> (63 - to%64)
		}
		s[i] |= word
	}
}

// rings remembers what has been worked out: most observers of a worker are run by the same
// members, with the same weights.
type rings struct {
	known []knownRing
}

type knownRing struct {
	parties []party
	slots   *slotSet
}

// slots is ring, for the same worker each time.
func (r *rings) slots(parties []party, mine int) *slotSet {
	for _, k := range r.known {
		if slices.Equal(k.parties, parties) {
			return k.slots
		}
	}
	slots := ring(parties, mine)
	r.known = append(r.known, knownRing{parties, slots})
	return slots
}

// ranges lists the slots of a set.
func (s *slotSet) ranges() (all []rowstore.SlotRange) {
	for i, word := range s {
		for word != 0 {
			first := bits.TrailingZeros64(word)
			n := bits.TrailingZeros64(^(word >> first))
			word &^= (1<<n - 1) << first
			all = appendSlots(all, uint16(i*64+first), uint16(i*64+first+n-1)) //nolint:gosec // there are 65,536
		}
	}
	return all
}

// appendSlots adds a range that lies behind all others.
func appendSlots(all []rowstore.SlotRange, first, last uint16) []rowstore.SlotRange {
	if n := len(all); n > 0 && first > 0 && all[n-1].Last == first-1 {
		all[n-1].Last = last
		return all
	}
	return append(all, rowstore.SlotRange{First: first, Last: last})
}

// slotsFrom returns those ranges, or parts of them, that lie at a slot or behind it.
func slotsFrom(all []rowstore.SlotRange, slot uint16) []rowstore.SlotRange {
	for len(all) > 0 && all[0].Last < slot {
		all = all[1:]
	}
	if len(all) > 0 && all[0].First < slot {
		all = slices.Clone(all)
		all[0].First = slot
	}
	return all
}

// slotsOf returns the slots in which this worker looks for notifications of a table: its own
// for any of its observers there, of those given if there are any.
func (w *Worker) slotsOf(table string, given []uint16) (ranges []rowstore.SlotRange) {
	mine := w.ownSlots(table)
	if len(given) == 0 {
		return mine.ranges()
	}
	for _, slot := range slices.Compact(slices.Sorted(slices.Values(given))) {
		if mine.has(slot) {
			ranges = appendSlots(ranges, slot, slot)
		}
	}
	return ranges
}

// ownSlots returns the slots of a table that are this worker's own for any of its observers there.
func (w *Worker) ownSlots(table string) (mine slotSet) {
	shares, now := w.member.shares.Load(), w.now()
	all := shares == nil // it is no member, and owns everything
	for _, q := range w.list {
		if q.table != table || all {
			continue
		}
		switch s := shares.at(q, now); s.kind {
		case shareAll:
			all = true
		case shareSlots:
			for i, word := range s.slots {
				mine[i] |= word
			}
		case shareNone:
		}
	}
	if all {
		for i := range mine {
			mine[i] = 1<<64 - 1
		}
	}
	return mine
}
