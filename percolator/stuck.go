package percolator

import "time"

// Workers that are alive and cannot get on. They tell so, and others do what waits.

// isStuck tells whether the worker cannot get on with an observer. w.mu is held.
func (w *Worker) isStuck(q *queue, now time.Time) bool {
	from, ok := w.stuckFrom(q)
	return ok && !now.Before(from)
}

// stuckFrom returns when the worker has not got on with an observer for so long that others
// had better do it, unless something happens before: work waits, there is no place to run
// it, and no function has begun or ended for a lease, nor for twice as long as they take; or
// a look at its table has been going on for a lease. w.mu is held.
func (w *Worker) stuckFrom(q *queue) (from time.Time, ok bool) {
	lease := w.config.MemberLease
	if waits := q.waits() > 0 || q.left || q.stuck; waits && !w.hasPlace(q) {
		moved, takes := q.moved, q.takes
		if q.running == 0 {
			// It is the next one to have a place, whichever function on a shared place ends.
			for _, other := range w.list {
				if !other.sharesPlaces() {
					continue
				}
				takes = max(takes, other.takes)
				if other.moved.After(moved) {
					moved = other.moved
				}
			}
		}
		from, ok = moved.Add(min(max(lease, 2*takes), mostSlow*lease)), true
	}
	if since := w.looking[q.table]; !since.IsZero() && (!ok || since.Add(lease).Before(from)) {
		from, ok = since.Add(lease), true
	}
	return from, ok
}

// mostSlow is how many leases functions may take for a worker to wait until one ends.
const mostSlow = 10

// note keeps how long the longest of the last jobs took. w.mu is held.
func (q *queue) note(took time.Duration) { q.takes = max(took, q.takes*7/8) }
