package percolator

import (
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Which changes are a worker's own. The rows of a table fall into slots
// (rowstore.Slot), and the members that run an observer share its slots out among
// themselves by a ring of hashes (consistent hashing): each member has points on the ring,
// in proportion to its weight, and each slot goes to the member whose point is the next
// one. So members with the same list agree without a word, a member that comes takes its
// part of the slots from all others, and one that goes leaves its part to all others; no
// other slot moves. And a share consists of few ranges of slots, which a store can be
// asked for.
//
// Shares decide who works, never whether the work is right. Two owners of a slot cost
// conflicts, and a slot without an owner costs a wait. Runs of one change exclude each
// other by their commits alone.

// share is what one observer's list of members means from some time on.
type share struct {
	from  Timestamp
	kind  shareKind
	slots *slotSet // of shareSlots
	of    int      // members that share the slots
	part  float64  // of the weights of those
}

// shareKind tells shares apart that are no matter of slots.
type shareKind int

const (
	shareSlots shareKind = iota // those slots that the ring gives it
	shareAll                    // no other member has a part
	shareNone                   // this worker has no part, and somebody else has
)

// party is a member that runs the observer.
type party struct {
	m      *member
	seed   uint64
	weight int
}

// shares has the shares of a worker's observers, by the time from which on they hold, the
// earliest first. There is always one that holds.
type shares map[*queue][]share

// newShares works out the shares of a worker from the list of members, those that hold at
// a time and later. self is the worker's own id, which is in the list.
func newShares(queues []*queue, list []member, self string, now Timestamp) shares {
	all := make(shares, len(queues))
	var rings rings
	for _, q := range queues {
		var parties []party
		times := []Timestamp{0}
		for i := range list {
			m := &list[i]
			weight, ok := m.weightOf(q)
			if !ok {
				continue
			}
			times = append(times, m.record.From)
			if m.record.Until > 0 {
				times = append(times, m.record.Until)
			}
			parties = append(parties, party{m, format.MemberSeed(m.id), weight})
		}
		slices.Sort(times)
		times = slices.Compact(times)
		for len(times) > 1 && times[1] <= now {
			times = times[1:] // each member has such a time, and each share a set of slots
		}
		for _, from := range times {
			all[q] = append(all[q], newShare(parties, self, from, &rings))
		}
	}
	return all
}

// newShare works out the share of a worker from the members that run the observer, as it is
// from some time on.
func newShare(parties []party, self string, from Timestamp, rings *rings) share {
	takesPart := func(p party) bool { return p.m.takesPart(from) }
	waits := func(p party) bool { return from < p.m.record.From }
	able := func(p party) bool { return p.weight > 0 && takesPart(p) }
	gone := !slices.ContainsFunc(parties, takesPart)
	if gone || !slices.ContainsFunc(parties, able) && slices.ContainsFunc(parties, func(p party) bool { return p.weight > 0 && waits(p) }) {
		// Those before have gone, or are stuck. The ones whose time has yet to come need not wait for it.
		takesPart = waits
	}
	// If all are stuck, they share as if none were.
	stuck := !slices.ContainsFunc(parties, able)
	var part []party
	mine, all := -1, 0
	for _, p := range parties {
		if stuck {
			p.weight = 1
		}
		if !takesPart(p) || p.weight == 0 {
			continue
		}
		if p.m.id == self {
			mine = len(part)
		}
		part = append(part, p)
		all += p.weight
	}
	s := share{from: from, of: len(part)}
	switch {
	case len(part) == 0:
		s.part = 1
	case mine >= 0:
		s.part = float64(part[mine].weight) / float64(all)
	}
	switch {
	case len(part) == 0 || mine == 0 && len(part) == 1:
		s.kind = shareAll // also if nobody has a part: then whoever finds a change runs it
	case mine < 0:
		s.kind = shareNone
	default:
		s.slots = rings.slots(part, mine)
	}
	return s
}

// at returns the share that holds for an observer at a time.
func (s shares) at(q *queue, now Timestamp) *share {
	list := s[q]
	i := len(list) - 1
	for i > 0 && list[i].from > now {
		i--
	}
	return &list[i]
}

// next returns the first time after now at which a share changes, 0 without any.
func (s shares) next(now Timestamp) (next Timestamp) {
	for _, list := range s {
		for i := range list {
			if from := list[i].from; from > now && (next == 0 || from < next) {
				next = from
			}
		}
	}
	return next
}

// has tells whether a slot belongs to the share.
func (s *share) has(slot uint16) bool {
	return s.kind == shareAll || s.kind == shareSlots && s.slots.has(slot)
}

// owns tells whether a cell's changes are this worker's own for an observer. A worker
// that is no member, because it does not run yet, owns everything.
func (w *Worker) owns(q *queue, c Cell, now Timestamp) bool {
	all := w.member.shares.Load()
	if all == nil {
		if ask := w.db.opt.owns; ask != nil {
			c = c.public()
			return ask(q.o.Name, c.Table, c.Row, c.Column)
		}
		return true
	}
	return all.at(q, now).has(rowstore.Slot(c.Table, c.Row))
}

// oracleTime is a timestamp, and the local time at which it was drawn.
type oracleTime struct {
	drawn Timestamp
	at    time.Time
}

// now estimates the oracle's time, for what is a hint only: no call is worth it. A
// worker that is no member needs none.
func (w *Worker) now() Timestamp {
	t := w.member.time.Load()
	if t == nil {
		return 0
	}
	return t.drawn.Add(max(w.db.clock.Now().Sub(t.at), 0))
}
