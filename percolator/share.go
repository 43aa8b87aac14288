package percolator

import (
	"math"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/internal/hash"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Which changes are a worker's own. The rows of a table fall into slots
// (rowstore.Slot), and the members that run an observer share its slots out among
// themselves by weighted rendezvous hashing: each slot goes to the member whose hash with
// it is the greatest. So members with the same list agree without a word, a member that
// comes takes its part of the slots from all others, and one that goes leaves its part to
// all others; no other slot moves.
//
// Shares decide who works, never whether the work is right. Two owners of a slot cost
// conflicts, and a slot without an owner costs a wait. Runs of one change exclude each
// other by their commits alone.

// share is what one observer's list of members means from some time on.
type share struct {
	from  Timestamp
	kind  shareKind
	mine  rival
	other []rival
	equal bool // all weigh the same
}

// shareKind tells shares apart that are no matter of slots.
type shareKind int

const (
	shareSlots shareKind = iota // those slots that no other member wins
	shareAll                    // no other member has a part
	shareNone                   // this worker has no part, and somebody else has
)

// rival is a member that runs the observer.
type rival struct {
	seed   uint64
	weight float64
}

// shares has the shares of a worker's observers, by the time from which on they hold, the
// earliest first. There is always one that holds.
type shares map[*queue][]share

// newShares works out the shares of a worker from the list of members, those that hold at
// a time and later. self is the worker's own id, which is in the list.
func newShares(queues []*queue, list []member, self string, now Timestamp) shares {
	all := make(shares, len(queues))
	type party struct {
		rival
		m    *member
		self bool
	}
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
			parties = append(parties, party{rival{format.MemberSeed(m.id), float64(weight)}, m, m.id == self})
		}
		slices.Sort(times)
		times = slices.Compact(times)
		for len(times) > 1 && times[1] <= now {
			times = times[1:] // each member has such a time, and each share a list of members
		}
		for _, from := range times {
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
			s := share{from: from, kind: shareNone, equal: true}
			for _, p := range parties {
				if stuck {
					p.weight = 1
				}
				switch {
				case !takesPart(p) || p.weight == 0:
				case p.self:
					s.kind, s.mine = shareSlots, p.rival
				default:
					s.other = append(s.other, p.rival)
				}
			}
			if len(s.other) == 0 {
				s.kind = shareAll // also if nobody has a part: then whoever finds a change runs it
			}
			for _, r := range s.other {
				s.equal = s.equal && r.weight == s.mine.weight
			}
			all[q] = append(all[q], s)
		}
	}
	return all
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
	if s.kind != shareSlots {
		return s.kind == shareAll
	}
	spread := (uint64(slot) + 1) * 0x9e3779b97f4a7c15 // far apart for neighbours
	mine := hash.Mix(s.mine.seed ^ spread)
	far := math.Inf(1)
	if !s.equal {
		far = distance(mine, s.mine.weight)
	}
	for i := range s.other {
		r := &s.other[i]
		h := hash.Mix(r.seed ^ spread)
		switch {
		case s.equal:
			if h > mine || h == mine && r.seed > s.mine.seed {
				return false
			}
		case distance(h, r.weight) < far:
			return false
		}
	}
	return true
}

// distance orders weighted rivals: the least wins. The chance to win is in proportion to
// the weight (the logarithm method of weighted rendezvous hashing).
func distance(hash uint64, weight float64) float64 {
	return -math.Log((float64(hash>>11)+0.5)/(1<<53)) / weight
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
	s := all.at(q, now)
	return s.kind == shareAll || s.kind == shareSlots && s.has(rowstore.Slot(c.Table, c.Row))
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
