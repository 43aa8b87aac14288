package checker

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// ledger judges the runs of observers.
func (c *tsChecker) ledger() {
	if len(c.o.Observers) == 0 {
		return
	}
	type place struct {
		observer, key string
	}
	runs := map[place][]int32{}
	for i := range c.h {
		t := &c.h[i]
		if t.Run != nil && t.Outcome != Aborted && t.Start != 0 {
			p := place{t.Run.Observer, t.Run.Key}
			runs[p] = append(runs[p], int32(i))
		}
	}
	var versions []version
	for i := range c.o.Observers {
		o := &c.o.Observers[i]
		for k, key := range c.d.keys {
			if o.Observes(key) {
				versions = c.versions(versions[:0], int32(k))
				c.ledgerOf(o, int32(k), versions, runs[place{o.Name, key}])
				delete(runs, place{o.Name, key})
			}
		}
	}
	// The runs that are left are for keys that nobody ever wrote or read.
	for i := range c.h {
		t := &c.h[i]
		if t.Run == nil {
			continue
		}
		if left, ok := runs[place{t.Run.Observer, t.Run.Key}]; ok {
			delete(runs, place{t.Run.Observer, t.Run.Key})
			for n := range c.o.Observers {
				if o := &c.o.Observers[n]; o.Name == t.Run.Observer {
					c.ledgerOf(o, -1, nil, left)
				}
			}
		}
	}
}

// ledgerOf judges the runs of an observer for one key.
func (c *tsChecker) ledgerOf(o *Observer, k int32, changes []version, runs []int32) {
	slices.SortFunc(runs, func(a, b int32) int { return cmp.Compare(c.h[a].Start, c.h[b].Start) })
	var from oracle.Timestamp // the start of the last committed run
	prev := int32(-1)
	covered := oracle.Timestamp(0) // the start of the last run that may be committed
	seen := c.ledgerChanges(k, changes)
	for _, run := range runs {
		t := &c.h[run]
		covered = t.Start
		if t.Outcome == Unknown && (c.bounds[run] == nil || !c.bounds[run].proved) {
			continue
		}
		if prev >= 0 && (c.ended(prev) > t.Start || c.h[prev].Start == t.Start) {
			c.addf(KindUnneededRun, func() string {
				return fmt.Sprintf("%s and %s, runs of %s for %s, overlap, and both are committed", c.h.name(int(prev)), c.h.name(int(run)), o.Name, t.Run.Key)
			}, int(prev), int(run))
		} else if !o.Weak && !c.changed(k, seen, from, t.Start, run) {
			c.addf(KindUnneededRun, func() string {
				text := fmt.Sprintf("%s, a run of %s for %s at %d, is committed and had no change to see", c.h.name(int(run)), o.Name, t.Run.Key, uint64(t.Start))
				if prev >= 0 {
					text += fmt.Sprintf(" since %s at %d", c.h.name(int(prev)), uint64(from))
				}
				return text
			}, int(run))
		}
		from, prev = t.Start, run
	}
	if !c.o.Idle {
		return
	}
	for i := range changes {
		v := &changes[i]
		at := v.commit
		if v.unknown != nil {
			at = v.unknown.over + 1
		}
		if at > covered {
			c.addf(KindMissedChange, func() string {
				text := fmt.Sprintf("the change of %s by %s, committed at %d, was seen by no run of %s", c.d.keys[k], c.h.name(int(v.txn)), uint64(v.commit), o.Name)
				if v.unknown != nil {
					text = fmt.Sprintf("the change of %s by %s, committed above %d, was seen by no run of %s", c.d.keys[k], c.h.name(int(v.txn)), uint64(v.unknown.over), o.Name)
				}
				if covered > 0 {
					text += fmt.Sprintf(", whose last is at %d", uint64(covered))
				}
				return text
			}, int(v.txn))
		}
	}
}

// ledgerChanges are the changes of a key, as its runs look for them: one run after the other, by their starts.
type ledgerChanges struct {
	spans  []span // by their beginnings
	passed int    // of them begin below the start of the last run that was asked for
	newest oracle.Timestamp
	// unproved is the first start of a transaction of unknown outcome that wrote the key.
	unproved oracle.Timestamp
}

// span is where the commit timestamp of a change lies: over < commit <= upTo.
type span struct {
	over, upTo oracle.Timestamp
}

func (c *tsChecker) ledgerChanges(k int32, versions []version) *ledgerChanges {
	l := &ledgerChanges{unproved: oracle.Max, spans: make([]span, len(versions))}
	for i := range versions {
		if v := &versions[i]; v.unknown != nil {
			l.spans[i] = span{v.unknown.over, v.unknown.upTo}
		} else {
			l.spans[i] = span{v.commit - 1, v.commit}
		}
	}
	slices.SortFunc(l.spans, func(a, b span) int { return cmp.Compare(a.over, b.over) })
	if k < 0 {
		return l
	}
	for _, at := range c.writes[c.writeOf[k]:c.writeOf[k+1]] {
		if t := &c.h[c.d.writes[at.at].txn]; t.Outcome == Unknown {
			l.unproved = min(l.unproved, t.Start)
		}
	}
	return l
}

// between tells whether a change in (from, to] is there, or may be. No call may have a smaller to than the one before, so each change is passed once.
func (l *ledgerChanges) between(from, to oracle.Timestamp) bool {
	for ; l.passed < len(l.spans) && l.spans[l.passed].over < to; l.passed++ {
		l.newest = max(l.newest, l.spans[l.passed].upTo)
	}
	return l.newest > from
}

// changed tells whether a run that starts at to had a change to see since from, or may have had one.
func (c *tsChecker) changed(k int32, l *ledgerChanges, from, to oracle.Timestamp, run int32) bool {
	if k < 0 {
		return false
	}
	if l.between(from, to) {
		return true
	}
	// A change that nothing proves may be there too, if this run did not read.
	reads := c.reads[c.readFrom[k]:c.readFrom[k+1]] // in the order of their transactions
	if _, read := slices.BinarySearchFunc(reads, run, func(r extKeyed, run int32) int { return cmp.Compare(c.d.reads[r.at].txn, run) }); read {
		return c.maybe[k]
	}
	return l.unproved < to
}
