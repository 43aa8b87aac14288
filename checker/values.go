package checker

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
)

// Judge says by which isolation level a history is judged.
type Judge int

const (
	// ByRecord judges by the level that each transaction asked for: all of them by
	// snapshot isolation, and the serializable ones among themselves as serializable.
	ByRecord Judge = iota
	// AsSnapshotIsolation takes every transaction for one under snapshot isolation.
	AsSnapshotIsolation
	// AsSerializable takes every transaction for a serializable one.
	AsSerializable
)

// String gives the judge's name.
func (j Judge) String() string {
	switch j {
	case ByRecord:
		return "each transaction's own isolation"
	case AsSnapshotIsolation:
		return SnapshotIsolation.String()
	case AsSerializable:
		return Serializable.String()
	}
	return fmt.Sprintf("Judge(%d)", int(j))
}

// ValueOptions are options of CheckValues. The zero value judges by each
// transaction's own isolation level, in its strong form: a transaction also sees
// everything that was acknowledged before it was invoked.
type ValueOptions struct {
	Judge Judge
	// NoProcess does without the order of the transactions of a process, and
	// NoRealTime without the times (process order is part of real time).
	NoProcess, NoRealTime bool
	// Examples is how many anomalies of each kind are explained; 0 means 5.
	Examples int
}

// CheckValues judges a history by its values alone, the way of Elle (Kingsbury and
// Alvaro, VLDB 2020): it infers from what transactions read in which order versions
// were written, draws the dependencies between transactions as a graph (write-write,
// write-read, read-write, process and real time), and looks for cycles. It needs
// neither timestamps nor trust in them.
//
// Of lists the order of versions is known from the longest read, and what nobody saw
// comes after that. Of registers it is known as far as transactions read a key before
// they wrote it, nothing comes before everything, and one version was seen, or
// written, before another one's reader or writer was invoked. So lists find the most.
//
// Snapshot isolation forbids every kind of anomaly except G2-item, Serializable that
// one too. Report.Permitted has examples of it where it is permitted.
//
// A transaction of unknown outcome counts as committed if a committed one saw one of
// its values, and else not at all. Transactions of the past (AsOf) have no place in
// process order and real time.
//
// It takes time in proportion to the operations and the lengths of the lists that were
// read, and more only to explain what it found. An error says that the history cannot
// be judged: a key is a register and a list, or one value was written to a key by two
// transactions that are both not aborted. Deletions of registers are passed over, as
// nobody can tell one from another.
func CheckValues(h History, o ValueOptions) (*Report, error) {
	c := &valueChecker{h: h, o: o, r: newReport("values, by "+o.Judge.String(), h, o.Examples)}
	var err error
	c.d, err = newDigest(h, func(txn, _ int, text string) {
		if h[txn].Outcome == Committed {
			c.add(KindInternal, func() string { return text }, txn)
		}
	})
	if err != nil {
		return nil, err
	}
	if err := c.own(); err != nil {
		return nil, err
	}
	c.prove()
	c.g = &graph{txns: int32(len(h)), nodes: int32(len(h))}
	for k := range int32(len(c.d.keys)) {
		if c.d.list[k] {
			c.inferList(k)
		} else {
			c.inferRegister(k)
		}
	}
	if !o.NoProcess {
		c.process()
	}
	if !o.NoRealTime {
		c.realTime()
	}
	c.g.finish()
	c.cycles()
	return c.r, nil
}

// valueChecker is one run of CheckValues.
type valueChecker struct {
	h History
	o ValueOptions
	r *Report
	d *digest
	g *graph

	reads    []extRead // by key
	readFrom []int32
	writes   []extWrite // by key
	writeOf  []int32
	owner    []map[int64]owned // by key
	proved   []bool            // of a transaction: it counts as committed
}

// owned says who wrote a value to a key, or appended it, and whether that is what it
// left there in the end.
type owned struct {
	txn   int32
	final bool
}

func (c *valueChecker) add(kind Kind, text func() string, txns ...int) {
	c.r.add(kind, txns, func() string { return c.explain(text(), txns) })
}

func (c *valueChecker) explain(text string, txns []int) string {
	var b strings.Builder
	b.WriteString(text)
	for i, t := range txns {
		if i == 12 {
			fmt.Fprintf(&b, "\nand %d more", len(txns)-i)
			break
		}
		b.WriteString("\n" + c.h.describe(t))
	}
	return b.String()
}

// own finds who wrote what.
func (c *valueChecker) own() error {
	d := c.d
	c.reads, c.readFrom = group(len(d.keys), d.reads, func(r *extRead) int32 { return r.key })
	c.writes, c.writeOf = group(len(d.keys), d.writes, func(w *extWrite) int32 { return w.key })
	c.owner = make([]map[int64]owned, len(d.keys))
	note := func(k int32, v int64, who owned) error {
		if old, ok := c.owner[k][v]; ok && old.txn != who.txn {
			switch {
			case c.h[who.txn].Outcome == Aborted:
				return nil // a later attempt wrote the same, or an earlier one
			case c.h[old.txn].Outcome != Aborted:
				return fmt.Errorf("checker: %s and %s both wrote %d to %s", c.h.name(int(old.txn)), c.h.name(int(who.txn)), v, d.keys[k])
			}
		}
		c.owner[k][v] = who
		return nil
	}
	for k := range int32(len(d.keys)) {
		writes := c.writes[c.writeOf[k]:c.writeOf[k+1]]
		c.owner[k] = make(map[int64]owned, len(writes))
		for i := range writes {
			w := &writes[i]
			if d.list[k] {
				all := d.appended(w)
				for n, v := range all {
					if old, ok := c.owner[k][v]; ok && old.txn == w.txn {
						return fmt.Errorf("checker: %s appended %d to %s twice", c.h.name(int(w.txn)), v, d.keys[k])
					}
					if err := note(k, v, owned{w.txn, n == len(all)-1}); err != nil {
						return err
					}
				}
				continue
			}
			ops := c.h[w.txn].Ops
			from := w.op
			if w.several {
				from = 0
			}
			for o := from; o <= w.op; o++ {
				if op := &ops[o]; op.Kind == Write && !op.Absent && (o == w.op || op.Key == d.keys[k]) {
					if err := note(k, op.Value, owned{w.txn, o == w.op}); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// prove finds the unknown transactions whose values were seen by a committed one, or
// by one that was found so.
func (c *valueChecker) prove() {
	c.proved = make([]bool, len(c.h))
	readsOf := make([]int32, len(c.h)+1)
	for i := range c.d.reads {
		readsOf[c.d.reads[i].txn+1]++
	}
	for i := range c.h {
		readsOf[i+1] += readsOf[i]
	}
	var work []int32
	for i := range c.h {
		if c.h[i].Outcome == Committed {
			c.proved[i] = true
			work = append(work, int32(i))
		}
	}
	unknown := make([]bool, len(c.d.keys)) // of a key: somebody unknown wrote it
	for i := range c.d.writes {
		if c.h[c.d.writes[i].txn].Outcome == Unknown {
			unknown[c.d.writes[i].key] = true
		}
	}
	looked := make([][]int64, len(c.d.keys)) // of a list: the longest that was looked at
	saw := func(k int32, v int64) {
		if who, ok := c.owner[k][v]; ok && c.h[who.txn].Outcome == Unknown && !c.proved[who.txn] {
			c.proved[who.txn] = true
			c.r.Proved++
			work = append(work, who.txn)
		}
	}
	for len(work) > 0 {
		txn := work[len(work)-1]
		work = work[:len(work)-1]
		// The digest has the reads in the order of the transactions.
		for i := readsOf[txn]; i < readsOf[txn+1]; i++ {
			r := &c.d.reads[i]
			c.r.Reads++
			if !unknown[r.key] {
				continue
			}
			if !c.d.list[r.key] {
				if op := &c.h[txn].Ops[r.op]; !op.Absent {
					saw(r.key, op.Value)
				}
				continue
			}
			base := c.d.base(r)
			before := looked[r.key]
			if len(base) <= len(before) && slices.Equal(base, before[:len(base)]) {
				continue
			}
			if len(base) > len(before) {
				looked[r.key] = base
			}
			for _, v := range base {
				saw(r.key, v)
			}
		}
	}
}

// counts tells whether a transaction is committed, as far as anybody knows.
func (c *valueChecker) counts(txn int32) bool { return c.proved[txn] }

// readsOf gives the reads of a key by transactions that count.
func (c *valueChecker) readsOf(k int32) []extRead {
	all := c.reads[c.readFrom[k]:c.readFrom[k+1]]
	n := 0
	for i := range all {
		if c.counts(all[i].txn) {
			all[n] = all[i]
			n++
		}
	}
	return all[:n]
}

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
	// What was appended and nobody saw comes after all that was seen.
	var unseen []edge
	place := make(map[int64]int, n)
	for i, v := range trace {
		place[v] = i
	}
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
	after := int32(-1)
	if len(unseen) > 0 {
		after = c.g.virtual()
		for _, e := range unseen {
			e.from = after
			c.g.add(e)
		}
		if n > 0 && writer[n-1] >= 0 {
			c.g.add(edge{from: writer[n-1], to: after, kind: edgeWW, key: k, a: trace[n-1]})
		}
	}
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

// future makes sure that a read of a list, without the transaction's own appends
// before it, shows none of those after it.
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
		// An unknown one whose other writes were seen is not known to have written
		// this key, but committed it is.
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
	// What its writer overwrote stands for what it left.
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
// after it: one that was read or written, and acknowledged, before a reader or writer
// of another was invoked precedes that other one.
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

// process draws the edges between the transactions of a process.
func (c *valueChecker) process() {
	var all []int32
	for i := range c.h {
		if c.counts(int32(i)) && !c.h[i].AsOf {
			all = append(all, int32(i))
		}
	}
	slices.SortStableFunc(all, func(a, b int32) int { return cmp.Compare(c.h[a].Invoke, c.h[b].Invoke) })
	last := map[int]int32{}
	for _, i := range all {
		t := &c.h[i]
		if before, ok := last[t.Process]; ok && c.h[before].Complete <= t.Invoke {
			c.g.add(edge{from: before, to: i, kind: edgeProcess, level: levelProcess})
		}
		// One of unknown outcome may take effect after what follows it.
		if t.Outcome == Committed {
			last[t.Process] = i
		}
	}
}

// realTime draws the edges from each transaction to those that were invoked after its
// completion: one node for each completion, each before the next.
func (c *valueChecker) realTime() {
	var all, completed []int32
	for i := range c.h {
		if c.counts(int32(i)) && !c.h[i].AsOf {
			all = append(all, int32(i))
			if c.h[i].Outcome == Committed {
				completed = append(completed, int32(i))
			}
		}
	}
	slices.SortStableFunc(completed, func(a, b int32) int { return cmp.Compare(c.h[a].Complete, c.h[b].Complete) })
	moments := make([]int32, len(completed))
	for i, txn := range completed {
		moments[i] = c.g.virtual()
		c.g.add(edge{from: txn, to: moments[i], kind: edgeRealTime, level: levelRealTime})
		if i > 0 {
			c.g.add(edge{from: moments[i-1], to: moments[i], kind: edgePass, level: levelRealTime})
		}
	}
	for _, txn := range all {
		invoke := c.h[txn].Invoke
		n := sort.Search(len(completed), func(i int) bool { return c.h[completed[i]].Complete >= invoke })
		if n > 0 {
			c.g.add(edge{from: moments[n-1], to: txn, kind: edgePass, level: levelRealTime})
		}
	}
}
