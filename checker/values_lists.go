package checker

import (
	"fmt"
	"slices"
	"sort"
)

// inferList infers what a list tells.
func (c *valueChecker) inferList(k int32) {
	reads := c.readsOf(k)
	key := c.d.keys[k]
	// The longest read gives the order of the elements.
	var trace []int64
	longest := -1
	for i := range reads {
		if base := c.d.base(&reads[i]); len(base) > len(trace) {
			trace, longest = base, i
		}
	}
	// Judge the elements once, and those of odd reads by themselves.
	writer := c.judgeElements(k, trace, longest, reads)
	good := make([]extRead, 0, len(reads))
	for i := range reads {
		r := reads[i]
		base := c.d.base(&r)
		if !slices.Equal(base, trace[:len(base)]) {
			other := int(reads[longest].txn)
			c.add(KindIncompatibleOrder, func() string {
				return fmt.Sprintf("%s has %s, and %s has %s: neither begins the other", c.h.name(int(r.txn)), &c.h[r.txn].Ops[r.op], c.h.name(other), &c.h[other].Ops[reads[longest].op])
			}, int(r.txn), other)
			c.judgeElements(k, base, i, reads)
			c.future(k, &r, func(v int64) bool { return slices.Contains(base, v) })
			continue
		}
		good = append(good, r)
	}
	c.listEdges(k, key, trace, writer, good)
}

// judgeElements judges the elements of a list that was read, and gives their writers,
// -1 for those that do not count.
func (c *valueChecker) judgeElements(k int32, list []int64, reader int, reads []extRead) []int32 {
	writer := make([]int32, len(list))
	if len(list) == 0 {
		return writer
	}
	key := c.d.keys[k]
	by := reads[reader].txn
	seen := make(map[int64]struct{}, len(list))
	dirty := int32(-1)
	for i, v := range list {
		writer[i] = -1
		if _, ok := seen[v]; ok {
			c.add(KindDuplicateElements, func() string {
				return fmt.Sprintf("%s has %d twice in %s", c.h.name(int(by)), v, &c.h[by].Ops[reads[reader].op])
			}, int(by))
			continue
		}
		seen[v] = struct{}{}
		who, ok := c.owner[k][v]
		switch {
		case !ok:
			c.add(KindGarbageRead, func() string {
				return fmt.Sprintf("%s has %d in %s, and nobody appended it", c.h.name(int(by)), v, &c.h[by].Ops[reads[reader].op])
			}, int(by))
		case c.h[who.txn].Outcome == Aborted:
			c.add(KindG1a, func() string {
				return fmt.Sprintf("%s has %d in %s, and %s, which appended it, was aborted", c.h.name(int(by)), v, &c.h[by].Ops[reads[reader].op], c.h.name(int(who.txn)))
			}, int(by), int(who.txn))
			dirty = who.txn
		default:
			writer[i] = who.txn
			if dirty >= 0 {
				from := dirty
				c.add(KindDirtyUpdate, func() string {
					return fmt.Sprintf("%s appended %d to %s after what %s had appended, which was aborted", c.h.name(int(who.txn)), v, key, c.h.name(int(from)))
				}, int(from), int(who.txn))
				dirty = -1
			}
		}
	}
	return writer
}

// listEdges draws the edges of a list: trace are its elements, writer who appended
// them, reads those that saw some beginning of it.
func (c *valueChecker) listEdges(k int32, key string, trace []int64, writer []int32, reads []extRead) {
	n := len(trace)
	last := func(i int) (int64, bool) { // the last element of the first i
		if i == 0 {
			return 0, true
		}
		return trace[i-1], false
	}
	for i := 1; i < n; i++ {
		if from, to := writer[i-1], writer[i]; from >= 0 && to >= 0 {
			c.g.add(edge{from: from, to: to, kind: edgeWW, key: k, a: trace[i-1], b: trace[i]})
		}
	}
	place := make(map[int64]int, n)
	for i, v := range trace {
		place[v] = i
	}
	after := c.unseenEdges(k, key, trace, writer, place)
	var updates [][]int32
	group := map[int]int{}
	for i := range reads {
		r := &reads[i]
		at := len(c.d.base(r))
		a, initial := last(at)
		if at > 0 {
			if w := writer[at-1]; w >= 0 && w != r.txn {
				c.g.add(edge{from: w, to: r.txn, kind: edgeWR, key: k, a: a, b: a})
				if who := c.owner[k][a]; !who.final {
					c.add(KindG1b, func() string {
						return fmt.Sprintf("%s has %s, without what %s appended after %d", c.h.name(int(r.txn)), &c.h[r.txn].Ops[r.op], c.h.name(int(w)), a)
					}, int(r.txn), int(w))
				}
			}
		}
		switch {
		case at == n && after >= 0:
			c.g.add(edge{from: r.txn, to: after, kind: edgeRW, initial: initial, key: k, a: a})
		case at < n && writer[at] >= 0 && writer[at] != r.txn:
			c.g.add(edge{from: r.txn, to: writer[at], kind: edgeRW, initial: initial, key: k, a: a, b: trace[at]})
		}
		if c.writesKey(r.txn, k) {
			c.future(k, r, func(v int64) bool {
				p, ok := place[v]
				return ok && p < at
			})
			p, ok := group[at]
			if !ok {
				p = len(updates)
				group[at] = p
				updates = append(updates, nil)
			}
			updates[p] = append(updates[p], r.txn)
		}
	}
	c.lostUpdates(key, updates)
}

// unseenEdges puts the elements of a list that were appended and that nobody saw after
// those that were seen: after is a node between them, or -1 if there are none. place tells
// where an element stands in trace.
func (c *valueChecker) unseenEdges(k int32, key string, trace []int64, writer []int32, place map[int64]int) (after int32) {
	n := len(trace)
	var unseen []edge
	writes := c.writes[c.writeOf[k]:c.writeOf[k+1]]
	for i := range writes {
		w := &writes[i]
		if !c.counts(w.txn) {
			continue
		}
		missing, ok := c.ownOrder(key, w, place)
		if ok && missing < len(c.d.appended(w)) && (n == 0 || w.txn != writer[n-1]) {
			unseen = append(unseen, edge{to: w.txn, kind: edgePass, key: k, b: c.d.appended(w)[missing]})
		}
	}
	if len(unseen) == 0 {
		return -1
	}
	after = c.g.virtual()
	for _, e := range unseen {
		e.from = after
		c.g.add(e)
	}
	if n > 0 && writer[n-1] >= 0 {
		c.g.add(edge{from: writer[n-1], to: after, kind: edgeWW, key: k, a: trace[n-1]})
	}
	return after
}

// future makes sure that a read of a list shows none of the elements that the
// transaction itself appends later.
func (c *valueChecker) future(k int32, r *extRead, shows func(v int64) bool) {
	w, ok := c.writeTo(r.txn, k)
	if !ok {
		return
	}
	for _, v := range c.d.appended(w) {
		if shows(v) {
			c.add(KindFutureRead, func() string {
				return fmt.Sprintf("%s has %d in %s, and appends it later", c.h.name(int(r.txn)), v, &c.h[r.txn].Ops[r.op])
			}, int(r.txn))
			return
		}
	}
}

// ownOrder makes sure that what a transaction appended to a list was read in its order
// and from its beginning; place tells where in the list each element is. It gives the
// first of the appended elements that nobody saw.
func (c *valueChecker) ownOrder(key string, w *extWrite, place map[int64]int) (missing int, ok bool) {
	all := c.d.appended(w)
	missing = len(all)
	last := -1
	for i, v := range all {
		at, seen := place[v]
		switch {
		case !seen:
			missing = min(missing, i)
			continue
		case missing < i:
			c.add(KindIncompatibleOrder, func() string {
				return fmt.Sprintf("%s appended %d to %s after %d, and only the later one was seen", c.h.name(int(w.txn)), v, key, all[missing])
			}, int(w.txn))
			return missing, false
		case at < last:
			c.add(KindIncompatibleOrder, func() string {
				return fmt.Sprintf("%s appended %d to %s after %d, and they were seen the other way round", c.h.name(int(w.txn)), v, key, all[i-1])
			}, int(w.txn))
			return missing, false
		}
		last = at
	}
	return missing, true
}

// writeTo gives what a transaction wrote to a key; ok is false if it did not.
func (c *valueChecker) writeTo(txn, k int32) (w *extWrite, ok bool) {
	writes := c.writes[c.writeOf[k]:c.writeOf[k+1]]
	i := sort.Search(len(writes), func(i int) bool { return writes[i].txn >= txn })
	if i == len(writes) || writes[i].txn != txn {
		return nil, false
	}
	return &writes[i], true
}

// writesKey tells whether a transaction writes a key.
func (c *valueChecker) writesKey(txn, k int32) bool {
	_, ok := c.writeTo(txn, k)
	return ok
}

// lostUpdates reports groups of transactions that read the same version of a key, and
// wrote it.
func (c *valueChecker) lostUpdates(key string, groups [][]int32) {
	for _, txns := range groups {
		// If other writes of an unknown transaction were seen, it has committed, though
		// nobody saw its write of this key.
		if len(txns) < 2 {
			continue
		}
		ints := make([]int, len(txns))
		for i, t := range txns {
			ints[i] = int(t)
		}
		c.add(KindLostUpdate, func() string {
			return fmt.Sprintf("%d transactions read the same version of %s and wrote it", len(txns), key)
		}, ints...)
	}
}
