package checker

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
)

// regVersion is a version of a register.
type regVersion struct {
	value   int64
	initial bool
	writer  int32 // -1 for the initial one, and for what does not count
	readers []int32
	next    []int32 // versions that follow it, since their writers read it
	after   int32   // virtual node, or -1
	first   int64   // when the first access of it was completed
	firstBy int32
	last    int64 // when the last access of it was invoked
}

// inferRegister infers what a register tells.
func (c *valueChecker) inferRegister(k int32) {
	reads := c.readsOf(k)
	key := c.d.keys[k]
	writes := c.writes[c.writeOf[k]:c.writeOf[k+1]]
	versions := []regVersion{{initial: true, writer: -1, after: -1, first: math.MaxInt64, last: math.MinInt64}}
	byValue := make(map[int64]int32, len(writes))
	deleted := false
	touch := func(v *regVersion, txn int32) {
		t := &c.h[txn]
		if t.AsOf {
			return
		}
		if t.Outcome == Committed && t.Complete < v.first {
			v.first, v.firstBy = t.Complete, txn
		}
		v.last = max(v.last, t.Invoke)
	}
	wrote := map[int32]int32{} // version of a writer
	for i := range writes {
		w := &writes[i]
		if c.h[w.txn].Outcome != Aborted && c.h[w.txn].Ops[w.op].Absent {
			deleted = true
		}
		if op := &c.h[w.txn].Ops[w.op]; c.counts(w.txn) && !op.Absent {
			byValue[op.Value] = int32(len(versions))
			wrote[w.txn] = int32(len(versions))
			v := regVersion{value: op.Value, writer: w.txn, after: -1, first: math.MaxInt64, last: math.MinInt64}
			touch(&v, w.txn)
			versions = append(versions, v)
		}
	}
	var updates [][]int32
	place := map[int32]int{}
	for i := range reads {
		r := &reads[i]
		v, ok := c.readVersion(k, r, byValue, deleted)
		if !ok {
			continue
		}
		versions[v].readers = append(versions[v].readers, r.txn)
		touch(&versions[v], r.txn)
		if own, ok := wrote[r.txn]; ok {
			versions[v].next = append(versions[v].next, own)
			p, ok := place[v]
			if !ok {
				p = len(updates)
				place[v] = p
				updates = append(updates, nil)
			}
			updates[p] = append(updates[p], r.txn)
		}
	}
	c.lostUpdates(key, updates)
	c.registerEdges(k, versions, deleted)
}

// readVersion judges a read and gives the version that it saw; ok is false if there is
// none that counts.
func (c *valueChecker) readVersion(k int32, r *extRead, byValue map[int64]int32, deleted bool) (version int32, ok bool) {
	op := &c.h[r.txn].Ops[r.op]
	if op.Absent {
		return 0, !deleted
	}
	who, found := c.owner[k][op.Value]
	reader := c.h.name(int(r.txn))
	switch {
	case !found:
		c.add(KindGarbageRead, func() string { return fmt.Sprintf("%s has %s, which nobody wrote", reader, op) }, int(r.txn))
		return 0, false
	case who.txn == r.txn:
		c.add(KindFutureRead, func() string { return fmt.Sprintf("%s has %s, and writes that later", reader, op) }, int(r.txn))
		return 0, false
	case c.h[who.txn].Outcome == Aborted:
		c.add(KindG1a, func() string {
			return fmt.Sprintf("%s has %s, and %s, which wrote it, was aborted", reader, op, c.h.name(int(who.txn)))
		}, int(r.txn), int(who.txn))
		if c.writesKey(r.txn, k) {
			c.add(KindDirtyUpdate, func() string {
				return fmt.Sprintf("%s wrote %s on top of what %s had written, which was aborted", reader, c.d.keys[k], c.h.name(int(who.txn)))
			}, int(r.txn), int(who.txn))
		}
		return 0, false
	case !who.final:
		c.add(KindG1b, func() string {
			return fmt.Sprintf("%s has %s, which %s overwrote before it committed", reader, op, c.h.name(int(who.txn)))
		}, int(r.txn), int(who.txn))
	}
	if version, ok = byValue[op.Value]; ok {
		return version, true
	}
	// A value that its writer overwrote stands for the value that the writer left.
	w, _ := c.writeTo(who.txn, k) // there is one, or it would not be the owner
	final := &c.h[who.txn].Ops[w.op]
	version, ok = byValue[final.Value]
	return version, ok && !final.Absent
}

// registerEdges draws the edges of a register.
func (c *valueChecker) registerEdges(k int32, versions []regVersion, deleted bool) {
	g := c.g
	// after gives the node that comes after all who wrote or read a version, and
	// before all who wrote later ones.
	after := func(v *regVersion) int32 {
		if v.after < 0 {
			v.after = g.virtual()
			if v.writer >= 0 {
				g.add(edge{from: v.writer, to: v.after, kind: edgeWW, key: k, a: v.value})
			}
			for _, r := range v.readers {
				g.add(edge{from: r, to: v.after, kind: edgeRW, initial: v.initial, key: k, a: v.value})
			}
		}
		return v.after
	}
	for i := range versions {
		v := &versions[i]
		for _, r := range v.readers {
			if v.writer >= 0 {
				g.add(edge{from: v.writer, to: r, kind: edgeWR, key: k, a: v.value, b: v.value})
			}
		}
		for _, n := range v.next {
			if !v.initial {
				g.add(edge{from: after(v), to: versions[n].writer, kind: edgePass, key: k, b: versions[n].value})
			}
		}
	}
	if initial := &versions[0]; len(initial.readers) > 0 && !deleted && len(versions) > 1 {
		for i := 1; i < len(versions); i++ {
			g.add(edge{from: after(initial), to: versions[i].writer, kind: edgePass, key: k, b: versions[i].value})
		}
	}
	if !c.o.NoRealTime && len(versions) > 2 {
		c.registerTime(k, versions, after)
	}
}

// registerTime draws the edges from each version to those that were accessed only
// after it. If a version was read or written, and that was acknowledged, before any
// reader or writer of another version was invoked, it precedes the other one.
func (c *valueChecker) registerTime(k int32, versions []regVersion, after func(*regVersion) int32) {
	g := c.g
	order := make([]int32, 0, len(versions))
	for i := 1; i < len(versions); i++ {
		if versions[i].first != math.MaxInt64 {
			order = append(order, int32(i))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(versions[a].first, versions[b].first) })
	place := make([]int, len(versions))
	for i := range place {
		place[i] = -1
	}
	// One node for each moment at which a version was first accessed, each before the
	// next.
	moments := make([]int32, len(order))
	for i, v := range order {
		place[v] = i
		moments[i] = g.virtual()
		g.add(edge{from: after(&versions[v]), to: moments[i], kind: edgePass, level: levelRealTime, key: k})
		if i > 0 {
			g.add(edge{from: moments[i-1], to: moments[i], kind: edgePass, level: levelRealTime, key: k})
		}
	}
	// most bounds the edges that go round a version's own moment. There are more only
	// if many versions precede each other in a circle, and then some tell it too.
	const most = 64
	for i := 1; i < len(versions); i++ {
		v := &versions[i]
		if v.last == math.MinInt64 {
			continue
		}
		n := sort.Search(len(order), func(i int) bool { return versions[order[i]].first >= v.last })
		to := edge{to: v.writer, kind: edgePass, level: levelRealTime, key: k, b: v.value}
		if own := place[i]; own >= 0 && own < n {
			for q := own + 1; q < n && q <= own+most; q++ {
				e := to
				e.from = after(&versions[order[q]])
				g.add(e)
			}
			n = own
		}
		if n > 0 {
			to.from = moments[n-1]
			g.add(to)
		}
	}
}
