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
	// mostRested bounds how many cells are remembered, at 16 bytes each and a little more.
	mostRested = 1 << 20
	// restedAge is how long a cell is remembered at most while there are few. Then a scan
	// finds again a cell that every observer has covered, but that nobody has cleared because
	// a worker died.
	restedAge = 5 * time.Minute
	// crowdedAge is how long a cell is left alone at most, with so many notifications that a scan may not show a further one.
	crowdedAge = 10 * time.Second
	// forgottenCells is how many cells are forgotten in a second at most, about: each is read
	// again. So of very many each is remembered for longer.
	forgottenCells = 500
	// restedTick is the unit of the times until which cells are remembered.
	restedTick = time.Second / 16
)

// rested remembers cells that have nothing for this worker to do for a while, so that a scan
// passes over them without reading them: their notifications wait for the observers of
// other workers, or for another attempt. An entry holds only while nothing has changed: it
// knows the cell with its notifications and registered observers by a hash.
type rested struct {
	state maphash.Seed
	since time.Time
	cells [][]restedCell // by their slots; nil before the first one
	n     int
}

// restedCell is small, because there may be a million.
type restedCell struct {
	seen  uint64     // the signature
	until uint32     // in ticks since rested.since
	quiet restedBits // which of this worker's observers have nothing to do
}

// restedBits has a bit for each observer of this worker, among those of the column, and waits.
type restedBits uint32

// waits says that some of the observers have yet to see the change, but not now.
const waits restedBits = 1 << 31

func newRested() rested { return rested{state: maphash.MakeSeed()} }

func writeCell(h *maphash.Hash, c Cell) {
	for _, s := range []string{c.Table, c.Row, c.Column} {
		var n [8]byte
		binary.LittleEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = h.Write(n[:])
		_, _ = h.WriteString(s)
	}
}

// signature is a hash of the notifications of a cell that a scan reads, newest first,
// and of the registered observers. It is odd.
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

// ticks is a time as entries have it.
func (r *rested) ticks(t time.Time) uint32 {
	return uint32(min(max(t.Sub(r.since)/restedTick, 0), 1<<32-1)) //nolint:gosec // within bounds
}

// put remembers a cell until a time. What waits is added to what is known of the same
// notifications already; what is covered takes its place, because it is known of all observers.
// If there is no room left it takes the place of a cell that would be forgotten sooner. w.mu is
// held.
func (r *rested) put(c Cell, seen uint64, quiet restedBits, until, now time.Time) {
	if seen == unread {
		return // no look has shown what waits
	}
	if r.cells == nil {
		r.cells, r.since = make([][]restedCell, rowstore.Slots), now
	}
	slot := &r.cells[rowstore.Slot(c.Table, c.Row)]
	at := r.ticks(now)
	fresh := restedCell{seen, r.ticks(until), quiet}
	var oldest *restedCell
	for i := range *slot {
		have := &(*slot)[i]
		if have.seen == seen {
			if quiet&waits != 0 && have.until > at {
				fresh.quiet, fresh.until = fresh.quiet|have.quiet, min(fresh.until, have.until)
			}
			*have = fresh
			return
		}
		if oldest == nil || have.until < oldest.until {
			oldest = have
		}
	}
	switch {
	case oldest != nil && (oldest.until <= at || r.n >= mostRested):
		*oldest = fresh
	case r.n < mostRested:
		if len(*slot) == cap(*slot) { // append would double it
			*slot = append(make([]restedCell, 0, len(*slot)+2+len(*slot)/8), *slot...)
		}
		*slot = append(*slot, fresh)
		r.n++
	}
}

// keep forgets all cells outside some slots: in those others have no room.
func (r *rested) keep(slots *slotSet) {
	for i := range r.cells {
		if !slots.has(uint16(i)) { //nolint:gosec // a slot
			r.n -= len(r.cells[i])
			r.cells[i] = nil
		}
	}
}

// covers returns the observers that have nothing to do for a cell with that signature now.
// w.mu is held.
func (r *rested) covers(c Cell, seen uint64, now time.Time) restedBits {
	if r.cells == nil {
		return 0
	}
	for _, have := range r.cells[rowstore.Slot(c.Table, c.Row)] {
		if have.seen == seen {
			if r.ticks(now) < have.until {
				return have.quiet
			}
			break
		}
	}
	return 0
}

// age is how long a cell with that signature is remembered. The ages differ, so that not all are
// forgotten at once.
func (r *rested) age(seen uint64) time.Duration {
	most := max(restedAge, time.Duration(r.n)*(time.Second/forgottenCells))
	return most/2 + time.Duration(seen%uint64(most/2)) //nolint:gosec // not negative
}

// skipUntilChanged remembers which of this worker's observers have nothing to do for a cell that
// waits for others. What a scan reads must show whether that still holds. It does if
// the scan reads every notification. Otherwise one may come late, below
// those that it reads. An observer that is covered up to the oldest of those, or
// further, has nothing to do for a weak one either. A strong one, of a commit that is rolled forward later,
// is found when the cell is read again, which is soon then.
func (w *Worker) skipUntilChanged(view *cellView) {
	var floor Timestamp
	if len(view.notified) >= seenVersions {
		floor = view.notified[seenVersions-1].TS
	}
	if view.later || view.waits() {
		return
	}
	var covered restedBits
	for i, name := range view.names {
		if view.ackLocked[i] || view.failureLocked[i] && !view.ackFree[i] {
			return // its run is decided soon, or whether it is parked
		}
		for _, q := range w.queuesOf(view.cell) {
			if q.o.id == name && view.covered(i) && view.coveredTo(i) >= floor {
				covered |= q.bit()
			}
		}
	}
	if covered == 0 {
		return
	}
	seen := w.signature(view)
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.db.clock.Now()
	w.rested.put(view.cell, seen, covered, now.Add(view.atMost(w.rested.age(seen))), now)
}

// atMost bounds how long a cell may be left alone because of what the view shows: a scan may not show a further notification, and
// nobody is told of a near timer that the view shows once more.
func (v *cellView) atMost(wait time.Duration) time.Duration {
	if len(v.notified) >= seenVersions {
		wait = min(wait, crowdedAge)
	}
	if v.waits() {
		wait = min(wait, v.untilTimer())
	}
	return wait
}

// signature is the signature that a scan computes, of what a view showed.
func (w *Worker) signature(view *cellView) uint64 {
	return w.rested.signature(view.cell, view.names, view.notified)
}

// bit stands for the queue's observer, among those of its column. There is none for the
// 32nd: its cells are not remembered.
func (q *queue) bit() restedBits { return 1 << q.index &^ waits }

// in tells whether a set has the queue's bit.
func (q *queue) in(set restedBits) bool { return set&q.bit() != 0 }
