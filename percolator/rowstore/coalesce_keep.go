package rowstore

import (
	"hash/maphash"
	"math/bits"
)

// arena keeps what the asks of a batch refer to. A slice that was handed out stays
// valid when its arena grows into another place.
type arena struct {
	reads []RowRead
	picks []Pick
	muts  []Mutation
	conds []Condition
	edits []Edit
	bytes []byte
}

// reset makes room for another batch, and keeps no memory that an unusual batch
// needed, nor names.
func (a *arena) reset() {
	a.reads = emptied(a.reads)
	a.picks = emptied(a.picks)
	a.muts = emptied(a.muts)
	a.conds = emptied(a.conds)
	a.edits = emptied(a.edits)
	if cap(a.bytes) > 1<<20 {
		a.bytes = nil
	}
	a.bytes = a.bytes[:0]
}

func emptied[T any](s []T) []T {
	if cap(s) > 1<<13 {
		return nil
	}
	clear(s)
	return s[:0]
}

func keepReads(to []RowRead, a *arena, reads []RowRead) []RowRead {
	for i := range reads {
		r := reads[i]
		from := len(a.picks)
		a.picks = append(a.picks, r.Picks...)
		r.Picks = a.picks[from:len(a.picks):len(a.picks)]
		to = append(to, r)
	}
	return to
}

func keepDrawReads(to []DrawRead, a *arena, asks []DrawRead) []DrawRead {
	for i := range asks {
		from := len(a.reads)
		a.reads = keepReads(a.reads, a, asks[i].Reads)
		to = append(to, DrawRead{Reads: a.reads[from:len(a.reads):len(a.reads)]})
	}
	return to
}

func keepMutations(to []Mutation, a *arena, muts []Mutation) []Mutation {
	for i := range muts {
		m := muts[i]
		from := len(a.conds)
		a.conds = append(a.conds, m.Conditions...)
		m.Conditions = a.conds[from:len(a.conds):len(a.conds)]
		from = len(a.edits)
		a.edits = append(a.edits, m.Edits...)
		m.Edits = a.edits[from:len(a.edits):len(a.edits)]
		for j := range m.Edits {
			e := &m.Edits[j]
			if len(e.Value) > 0 {
				from = len(a.bytes)
				a.bytes = append(a.bytes, e.Value...)
				e.Value = a.bytes[from:len(a.bytes):len(a.bytes)]
			}
		}
		to = append(to, m)
	}
	return to
}

func keepGroups(to []Group, a *arena, groups []Group) []Group {
	for i := range groups {
		g := groups[i]
		from := len(a.muts)
		a.muts = keepMutations(a.muts, a, g.Mutations)
		g.Mutations = a.muts[from:len(a.muts):len(a.muts)]
		to = append(to, g)
	}
	return to
}

func hashRows(to []uint64, seed maphash.Seed, muts []Mutation) []uint64 {
	for i := range muts {
		h := maphash.String(seed, muts[i].Row) + bits.RotateLeft64(maphash.String(seed, muts[i].Table), 29)
		to = append(to, max(h, 1))
	}
	return to
}

// rowSet is a set of hashes, none of which is 0, by open addressing.
type rowSet struct {
	slots []uint64 // of a power of two in length, at most half of them taken
	n     int
}

func (s *rowSet) hasAny(hashes []uint64) bool {
	if s.n == 0 {
		return false
	}
	mask := uint64(len(s.slots) - 1)
	for _, h := range hashes {
		for i := h & mask; s.slots[i] != 0; i = (i + 1) & mask {
			if s.slots[i] == h {
				return true
			}
		}
	}
	return false
}

func (s *rowSet) add(hashes []uint64) {
	if need := 2 * (s.n + len(hashes)); need > len(s.slots) {
		old := s.slots
		s.slots = make([]uint64, max(64, 1<<bits.Len(uint(need))))
		s.n = 0
		for _, h := range old {
			if h != 0 {
				s.put(h)
			}
		}
	}
	for _, h := range hashes {
		s.put(h)
	}
}

func (s *rowSet) put(h uint64) {
	mask := uint64(len(s.slots) - 1)
	i := h & mask
	for s.slots[i] != 0 {
		if s.slots[i] == h {
			return
		}
		i = (i + 1) & mask
	}
	s.slots[i] = h
	s.n++
}

func (s *rowSet) reset() {
	if len(s.slots) > 1<<13 {
		s.slots = nil
	}
	clear(s.slots)
	s.n = 0
}
