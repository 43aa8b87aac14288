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
		} else if !o.Weak && !c.changed(k, changes, from, t.Start, run) {
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

// changed tells whether a change in (from, to] is there, or may be.
func (c *tsChecker) changed(k int32, changes []version, from, to oracle.Timestamp, run int32) bool {
	if k < 0 {
		return false
	}
	for i := range changes {
		v := &changes[i]
		if v.unknown != nil && v.unknown.upTo > from && v.unknown.over < to || v.unknown == nil && v.commit > from && v.commit <= to {
			return true
		}
	}
	// A change that nothing proves may be there too, if this run did not read.
	for _, at := range c.reads[c.readFrom[k]:c.readFrom[k+1]] {
		if c.d.reads[at.at].txn == run {
			return c.maybe[k]
		}
	}
	for _, at := range c.writes[c.writeOf[k]:c.writeOf[k+1]] {
		w := c.d.writes[at.at].txn
		if c.h[w].Outcome == Unknown && c.h[w].Start < to {
			return true
		}
	}
	return false
}
