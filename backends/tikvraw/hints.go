package tikvraw

import (
	"sync"
	"time"
)

const (
	// hintedFor is how long a marker is remembered at least after a scan has met it last.
	hintedFor = 10 * time.Minute
	// hintedMax bounds how many markers are remembered, at some 20 bytes each, in each of two
	// generations.
	hintedMax = 1 << 15
)

// hints remembers the markers for which scans have visited a row as a hint, without reading its
// head. A scan that meets one of them again reads the head: the notification waits for something, or
// another one has come to it, or there is none and the marker is garbage. Nothing depends on
// this memory but how often a caller looks in vain, so it may forget.
type hints struct {
	clock func() time.Time
	max   int

	mu            sync.Mutex
	recent, older map[uint64]struct{} // by markerID, which is random
	since         time.Time           // when recent began
}

func newHints(clock func() time.Time) *hints {
	return &hints{clock: clock, max: hintedMax, recent: map[uint64]struct{}{}}
}

// may tells whether a row with some markers may be visited as a hint: one of them is new here, and
// there is room to remember them beside so many others that are to be visited before. Without
// room every head is read.
func (h *hints) may(ids []uint64, others int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := h.clock(); now.Sub(h.since) >= hintedFor || now.Before(h.since) {
		h.since, h.older, h.recent = now, h.recent, map[uint64]struct{}{}
	}
	fresh := false
	for _, id := range ids {
		if _, ok := h.recent[id]; ok {
			continue
		}
		if _, ok := h.older[id]; !ok {
			fresh = true
			continue
		}
		// What came first keeps its room. The rest is forgotten with its generation, and is a hint again.
		if len(h.recent)+others < h.max {
			delete(h.older, id)
			h.recent[id] = struct{}{}
		}
	}
	return fresh && len(h.recent)+len(ids)+others <= h.max
}

// gave notes that a row with some markers was visited as a hint.
func (h *hints) gave(ids []uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		h.recent[id] = struct{}{}
	}
}

// gone forgets a marker that was removed.
func (h *hints) gone(id uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.recent, id)
	delete(h.older, id)
}
