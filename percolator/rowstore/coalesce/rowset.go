package coalesce

import (
	"hash/maphash"
	"math/bits"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

func hashRows(to []uint64, seed maphash.Seed, muts []rowstore.Mutation) []uint64 {
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
