package percolator

import (
	"encoding/binary"
	"hash/maphash"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// seenVersions is how many notifications of a cell a scan reads.
	seenVersions = 8
	// mostRested bounds how many cells are remembered, at about 50 bytes each.
	mostRested = 1 << 19
	// restedAge is how long a cell is remembered at most. Then a scan finds again a cell
	// that every observer has covered, but that nobody has cleared because a worker
	// died.
	restedAge = 5 * time.Minute
)

// rested remembers cells whose notifications wait for the observers of other workers,
// so that a scan passes over them without reading them. An entry holds only while
// nothing has changed: the cell is known by a hash of its name, and its notifications
// and registered observers by another hash.
type rested struct {
	name, state maphash.Seed
	cells       map[uint64]restedCell
}

type restedCell struct {
	seen    uint64 // the signature
	covered uint64 // a bit for each observer of this worker that has nothing to do
	until   int64
}

func newRested() rested {
	return rested{maphash.MakeSeed(), maphash.MakeSeed(), map[uint64]restedCell{}}
}

func (r *rested) key(c Cell) uint64 {
	var h maphash.Hash
	h.SetSeed(r.name)
	writeCell(&h, c)
	return h.Sum64()
}

func writeCell(h *maphash.Hash, c Cell) {
	for _, s := range []string{c.Table, c.Row, c.Column} {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = h.Write(n[:])
		_, _ = h.WriteString(s)
	}
}

// signature is a hash of the notifications of a cell that a scan reads, newest first,
// and of the registered observers. It is never 0.
func (r *rested) signature(c Cell, observers []string, notified []rowstore.Version) uint64 {
	var h maphash.Hash
	h.SetSeed(r.state)
	writeCell(&h, c)
	for _, v := range notified[:min(len(notified), seenVersions)] {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(v.TS))
		_, _ = h.Write(n[:])
	}
	for _, o := range observers {
		_ = h.WriteByte(0)
		_, _ = h.WriteString(o)
	}
	return h.Sum64() | 1
}

// skipUntilChanged remembers which of this worker's observers have nothing to do for a cell that
// waits for others. What a scan reads must show whether that still holds. It does if
// the scan reads every notification. Otherwise a weak notification may come late, below
// those that it reads. An observer that is covered up to the oldest of those, or
// further, has nothing to do for such a notification either.
func (w *Worker) skipUntilChanged(view *cellView) {
	var floor Timestamp
	if len(view.notified) >= seenVersions {
		floor = view.notified[seenVersions-1].TS
	}
	if view.later {
		return
	}
	var covered uint64
	for i, name := range view.names {
		if view.ackLocked[i] {
			return // its run is decided soon
		}
		for _, q := range w.queuesOf(view.cell) {
			if q.o.Name == name && view.covered(i) && view.coveredTo(i) >= floor {
				covered |= q.bit()
			}
		}
	}
	if covered == 0 {
		return
	}
	r := &w.rested
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(r.cells) >= mostRested {
		for k := range r.cells {
			delete(r.cells, k)
			break
		}
	}
	seen := w.signature(view)
	// The ages differ, so that not all are forgotten at once.
	age := restedAge/2 + time.Duration(seen%uint64(restedAge/2))
	r.cells[r.key(view.cell)] = restedCell{seen, covered, w.db.clock.Now().Add(age).UnixNano()}
}

// signature is the signature that a scan computes, of what a view showed.
func (w *Worker) signature(view *cellView) uint64 {
	return w.rested.signature(view.cell, view.names, view.notified)
}

// bit stands for the queue's observer, among those of its column. There is none for the
// 65th: its cells are not remembered.
func (q *queue) bit() uint64 { return 1 << q.index }

// in tells whether a set has the queue's bit.
func (q *queue) in(set uint64) bool { return set&q.bit() != 0 }

// covers returns the observers that have nothing to do for a cell with that signature,
// a bit for each. w.mu is held.
func (r *rested) covers(c Cell, seen uint64, now time.Time) uint64 {
	have, ok := r.cells[r.key(c)]
	if !ok || have.seen != seen || now.UnixNano() >= have.until {
		return 0
	}
	return have.covered
}
