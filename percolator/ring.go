package percolator

import (
	"cmp"
	"math/bits"
	"slices"

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

// arc is the part of the ring that ends at one of this worker's points, and begins behind the one before.
type arc struct {
	end    uint64 // the point
	last   uint64 // the last point of others in the arc
	others bool   // whether there is one
}

// arcsBits is how many bits of a point say where to look among the arcs, of which there are about as many.
const arcsBits = 9

// ring gives the slots of one of some parties. The ring is as long as a hash, and a slot
// lies where the hashes begin whose first bits are its number. The first point from there
// on has it. So a point has the slots behind the last point before it, up to its own. With
// a thousand members there are half a million points of others, but only those count that are the last in
// one of this worker's arcs. So little memory is looked at, and the cost is that of the hashes.
func ring(parties []party, mine int) *slotSet {
	most := slices.MaxFunc(parties, func(a, b party) int { return cmp.Compare(a.weight, b.weight) }).weight
	own := &parties[mine]
	arcs := make([]arc, own.points(most))
	for k := range arcs {
		arcs[k].end = own.point(k)
	}
	slices.SortFunc(arcs, func(a, b arc) int { return cmp.Compare(a.end, b.end) })
	var from [1 << arcsBits]int // the first arc that ends at these bits or behind
	for i, k := 0, 0; i < len(from); i++ {
		for k < len(arcs) && arcs[k].end>>(64-arcsBits) < uint64(i) { //nolint:gosec // not negative
			k++
		}
		from[i] = k
	}
	over := arc{} // what lies behind the last of the arcs' ends, and belongs to the first arc
	for i := range parties {
		p := &parties[i]
		if i == mine {
			continue
		}
		for j := range p.points(most) {
			at := p.point(j)
			k := from[at>>(64-arcsBits)]
			// Of two points at the same place the one with the lesser seed has the slot, as if it lay before.
			for k < len(arcs) && (arcs[k].end < at || arcs[k].end == at && own.seed < p.seed) {
				k++
			}
			a := &over
			if k < len(arcs) {
				a = &arcs[k]
			}
			if !a.others || a.last < at {
				a.last, a.others = at, true
			}
		}
	}
	return slotsOfArcs(arcs, over)
}

// slotsOfArcs gives the slots of a worker's points. over is what lies behind the last of them.
func slotsOfArcs(arcs []arc, over arc) *slotSet {
	var slots slotSet
	slotOf := func(point uint64) int { return int(point >> 48) } //nolint:gosec // 16 bits
	for k, a := range arcs {
		before := -1 // the slot of the point before; that one has it
		switch {
		case a.others:
			before = slotOf(a.last)
		case k > 0:
			before = slotOf(arcs[k-1].end)
		default:
			// Nobody has a point before the first of these, so its arc begins behind the last point of the ring.
			last := arcs[len(arcs)-1].end
			if over.others {
				last = over.last
			}
			if behind := slotOf(last) + 1; behind < rowstore.Slots {
				slots.addAll(behind, rowstore.Slots-1)
			}
		}
		if own := slotOf(a.end); before < own {
			slots.addAll(before+1, own)
		}
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
