package checker

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// version is one version of a key: the transaction that wrote it, and when.
type version struct {
	start, commit oracle.Timestamp // commit is 0 if unknown
	txn, write    int32
	length        int32 // of a list: how long it is now
	unknown       *bounds
}

// sweep judges the reads and writes, key by key.
func (c *tsChecker) sweep() {
	var versions []version
	var elements []int64
	c.wrote = make([]bool, len(c.h))
	for i := range c.d.writes {
		c.wrote[c.d.writes[i].txn] = true
	}
	for k := range int32(len(c.d.keys)) {
		versions = c.versions(versions[:0], k)
		elements = elements[:0]
		if c.d.list[k] {
			for i := range versions {
				elements = append(elements, c.d.appended(&c.d.writes[versions[i].write])...)
				versions[i].length = int32(len(elements))
			}
		}
		s := keySweep{c: c, key: k, versions: versions, elements: elements}
		s.byStart = slices.ContainsFunc(versions, func(v version) bool { return v.unknown != nil })
		s.writers()
		for _, at := range c.reads[c.readFrom[k]:c.readFrom[k+1]] {
			s.read(&c.d.reads[at.at])
		}
	}
}

// versions gives the versions of a key in their order. Those of known transactions
// are ordered by their commits. If an unknown transaction is among them all are
// ordered by their starts, which is the same unless some overlap.
func (c *tsChecker) versions(vs []version, k int32) []version {
	unknown := false
	for _, w := range c.writes[c.writeOf[k]:c.writeOf[k+1]] {
		txn := c.d.writes[w.at].txn
		t := &c.h[txn]
		v := version{start: t.Start, commit: t.Commit, txn: txn, write: w.at}
		switch {
		case t.Outcome == Committed:
		case t.Outcome == Unknown && c.bounds[txn].proved:
			v.unknown, unknown, v.commit = c.bounds[txn], true, 0
		default:
			continue
		}
		vs = append(vs, v)
	}
	slices.SortFunc(vs, func(a, b version) int {
		if unknown {
			return cmp.Compare(a.start, b.start)
		}
		return cmp.Compare(a.commit, b.commit)
	})
	return vs
}

// keySweep judges one key.
type keySweep struct {
	c        *tsChecker
	key      int32
	versions []version
	byStart  bool    // they are sorted by start, since the commit of some is unknown
	elements []int64 // of a list: all of them, in order
	writer   map[element][]int32
	unproved map[element][]oracle.Timestamp
}

// writers makes sure that the writers of a key do not overlap.
func (s *keySweep) writers() {
	for i := 1; i < len(s.versions); i++ {
		a, b := &s.versions[i-1], &s.versions[i]
		switch {
		case a.unknown != nil && b.start <= a.start:
			s.overlap(a, b, "wrote")
		case a.unknown != nil:
			a.unknown.atMost(b.start, b.txn, s.key, wroteToo)
		case a.commit > b.start:
			s.overlap(a, b, "wrote")
		}
	}
}

func (s *keySweep) overlap(a, b *version, did string) {
	c := s.c
	c.addf(KindOverlap, func() string {
		span := func(v *version) string {
			if v.unknown != nil {
				return fmt.Sprintf("%s (from %d, seen by %s)", c.h.name(int(v.txn)), uint64(v.start), c.h.name(v.unknown.proof))
			}
			return fmt.Sprintf("%s (from %d to %d)", c.h.name(int(v.txn)), uint64(v.start), uint64(v.commit))
		}
		return fmt.Sprintf("%s %s %s and %s wrote it, and both are committed", span(a), did, c.d.keys[s.key], span(b))
	}, int(a.txn), int(b.txn))
}

// at gives how many versions a snapshot must show. If the one after them may be
// there too, because nobody knows its commit timestamp, doubt is true.
func (s *keySweep) at(ts oracle.Timestamp) (n int, doubt bool) {
	vs := s.versions
	if !s.byStart {
		return sort.Search(len(vs), func(i int) bool { return vs[i].commit > ts }), false
	}
	n = sort.Search(len(vs), func(i int) bool { return vs[i].start >= ts })
	switch {
	case n == 0:
		return 0, false
	case vs[n-1].unknown != nil:
		return n - 1, true
	case vs[n-1].commit > ts:
		return n - 1, false
	}
	return n, false
}

// read judges one read.
func (s *keySweep) read(r *extRead) {
	t := &s.c.h[r.txn]
	n, doubt := s.at(t.Start)
	old := s.shows(r, n)
	switch fresh := doubt && s.shows(r, n+1); {
	case old && fresh, s.maybe(r, n):
		// It may be one or the other, so this read proves nothing.
	case old && doubt:
		s.versions[n].unknown.above(t.Start, r.txn, s.key, sawNot)
		s.kept(r, n)
	case old:
		s.kept(r, n)
	case fresh:
		s.versions[n].unknown.atMost(t.Start, r.txn, s.key, saw)
		s.kept(r, n+1)
	default:
		s.badRead(r, n)
	}
}

// shows tells whether a read found what the first n versions leave behind.
func (s *keySweep) shows(r *extRead, n int) bool {
	op := &s.c.h[r.txn].Ops[r.op]
	if s.c.d.list[s.key] {
		length := int32(0)
		if n > 0 {
			length = s.versions[n-1].length
		}
		return slices.Equal(s.c.d.base(r), s.elements[:length])
	}
	if n == 0 {
		return op.Absent
	}
	v := &s.versions[n-1]
	w := &s.c.h[v.txn].Ops[s.c.d.writes[v.write].op]
	return w.Absent == op.Absent && (w.Absent || w.Value == op.Value)
}

// maybe tells whether a read may have found the value of a transaction of unknown
// outcome. Nothing proves that transaction committed, because others wrote the same.
func (s *keySweep) maybe(r *extRead, n int) bool {
	c := s.c
	if !c.maybe[s.key] {
		return false
	}
	if c.d.list[s.key] {
		// Elements that are not unique do not tell who appended them.
		return true
	}
	op := &c.h[r.txn].Ops[r.op]
	var from oracle.Timestamp
	if n > 0 {
		from = max(s.versions[n-1].commit, s.versions[n-1].start)
	}
	if s.unproved == nil {
		s.unproved = s.unprovedStarts()
	}
	starts := s.unproved[elementOf(op)]
	i, _ := slices.BinarySearch(starts, from)
	return i < len(starts) && starts[i] < c.h[r.txn].Start
}

// unprovedStarts gives for each value of a register the starts of the transactions of unknown outcome that left it and are not proved, in their order.
func (s *keySweep) unprovedStarts() map[element][]oracle.Timestamp {
	c := s.c
	starts := map[element][]oracle.Timestamp{}
	for _, at := range c.writes[c.writeOf[s.key]:c.writeOf[s.key+1]] {
		w := &c.d.writes[at.at]
		if t := &c.h[w.txn]; t.Outcome == Unknown && !c.bounds[w.txn].proved {
			e := elementOf(&t.Ops[w.op])
			starts[e] = append(starts[e], t.Start)
		}
	}
	for _, all := range starts {
		slices.Sort(all)
	}
	return starts
}

// elementOf is what an operation on a register wrote or read.
func elementOf(op *Op) element {
	if op.Absent {
		return element{absent: true}
	}
	return element{value: op.Value}
}

// badRead explains a read that found something else than the first n versions.
func (s *keySweep) badRead(r *extRead, n int) {
	c := s.c
	t := &c.h[r.txn]
	op := &t.Ops[r.op]
	if s.writer == nil {
		s.writer = c.writersOf(s.key)
	}
	txns := []int{int(r.txn)}
	want := "nothing"
	if n > 0 {
		v := &s.versions[n-1]
		txns = append(txns, int(v.txn))
		shown := c.h[v.txn].Ops[c.d.writes[v.write].op].String()
		if c.d.list[s.key] {
			shown = showList(s.elements[:v.length])
		}
		want = fmt.Sprintf("%s, of %s, committed at %d", shown, c.h.name(int(v.txn)), uint64(v.commit))
		if v.unknown != nil {
			want = fmt.Sprintf("%s, of %s, which %s saw", shown, c.h.name(int(v.txn)), c.h.name(v.unknown.proof))
		}
	}
	// Which value was it that should not have been there, or what was missing?
	odd := element{op.Value, op.Absent}
	if c.d.list[s.key] {
		base := c.d.base(r)
		length := 0
		if n > 0 {
			length = int(s.versions[n-1].length)
		}
		at := 0
		for at < len(base) && at < length && base[at] == s.elements[at] {
			at++
		}
		odd = element{absent: true}
		if at < len(base) {
			odd = element{value: base[at]}
		}
	}
	kind, who := s.classify(r, odd)
	if who >= 0 {
		txns = append(txns, int(who))
	}
	c.addf(kind, func() string {
		text := fmt.Sprintf("%s, at %d, has %s", c.h.name(int(r.txn)), uint64(t.Start), op)
		switch {
		case who >= 0 && who == r.txn:
			text += ", which it wrote itself later"
		case who >= 0 && c.h[who].Outcome == Committed:
			text += fmt.Sprintf(", which %s wrote, committed at %d", c.h.name(int(who)), uint64(c.h[who].Commit))
		case who >= 0:
			text += fmt.Sprintf(", which %s wrote, of outcome %s", c.h.name(int(who)), c.h[who].Outcome)
		case kind == KindGarbageRead && c.d.list[s.key]:
			text += fmt.Sprintf(", where nobody appended %d", odd.value)
		case kind == KindGarbageRead:
			text += ", which nobody wrote"
		}
		return text + "; the newest version is " + want
	}, txns...)
}

// classify says what is wrong with a read that found odd, and who wrote that, or -1.
func (s *keySweep) classify(r *extRead, odd element) (Kind, int32) {
	c := s.c
	if odd.absent && (c.d.list[s.key] || len(s.writer[odd]) == 0) {
		return KindStaleRead, -1
	}
	kind, who := KindGarbageRead, int32(-1)
	// If several transactions wrote it, the most harmless explanation counts.
	rank := map[Kind]int{KindStaleRead: 0, KindFutureRead: 1, KindG1b: 2, KindG1a: 3, KindGarbageRead: 4}
	for _, w := range s.writer[odd] {
		k := KindStaleRead
		t := &c.h[w]
		switch {
		case w == r.txn:
			k = KindFutureRead
		case t.Outcome == Aborted:
			k = KindG1a
		case !c.d.list[s.key] && s.intermediate(w, odd):
			k = KindG1b
		case t.Outcome == Committed && t.Commit > c.h[r.txn].Start, t.Outcome == Unknown && t.Start >= c.h[r.txn].Start:
			k = KindFutureRead
		}
		if rank[k] < rank[kind] {
			kind, who = k, w
		}
	}
	return kind, who
}

// intermediate tells whether a transaction overwrote e itself.
func (s *keySweep) intermediate(txn int32, e element) bool {
	c := s.c
	writes := c.writes[c.writeOf[s.key]:c.writeOf[s.key+1]] // in the order of their transactions
	i, ok := slices.BinarySearchFunc(writes, txn, func(w extKeyed, txn int32) int { return cmp.Compare(c.d.writes[w.at].txn, txn) })
	if !ok {
		return false
	}
	last := &c.h[txn].Ops[c.d.writes[writes[i].at].op]
	return element{last.Value, last.Absent} != e
}

// writersOf gives who wrote each value of a key, also what was overwritten or not committed. The first call groups the writes of the whole
// history by their keys, so that no transaction is gone through for each of its keys.
func (c *tsChecker) writersOf(k int32) map[element][]int32 {
	if c.everyOf == nil {
		var all []opKeyed
		for i := range c.h {
			for o := range c.h[i].Ops {
				if w := &c.h[i].Ops[o]; w.Kind == Write || w.Kind == Append {
					all = append(all, opKeyed{int32(i), int32(o), c.d.byName[w.Key]})
				}
			}
		}
		c.every, c.everyOf = group(len(c.d.keys), all, func(w *opKeyed) int32 { return w.key })
	}
	writer := map[element][]int32{}
	for _, at := range c.every[c.everyOf[k]:c.everyOf[k+1]] {
		w := &c.h[at.txn].Ops[at.op]
		e := element{w.Value, w.Absent}
		writer[e] = append(writer[e], at.txn)
	}
	return writer
}

// kept makes sure that a key that a transaction read or locked did not change until
// its commit, if the isolation level promises that. It read the first n versions.
func (s *keySweep) kept(r *extRead, n int) {
	c := s.c
	t := &c.h[r.txn]
	own := version{start: t.Start, commit: t.Commit, txn: r.txn}
	switch b := c.bounds[r.txn]; {
	case n == len(s.versions):
		return
	case t.Outcome == Unknown && b != nil && b.proved:
		own.unknown = b
	case t.Outcome != Committed:
		return
	}
	locks := r.locks && !r.written
	if t.Isolation != Serializable && !locks || !c.wrote[r.txn] {
		return
	}
	// The next version is the first that can be in the way. It was committed after the snapshot, whatever else is known of it.
	v := &s.versions[n]
	switch {
	case v.txn == r.txn:
		// The function writers judges an overlap of writers.
	case locks && (v.start <= t.Start || own.unknown == nil && v.start < t.Commit):
		s.overlap(&own, v, "locked")
	case locks && own.unknown != nil:
		own.unknown.atMost(v.start, v.txn, s.key, wroteLocked)
	case own.unknown != nil || v.unknown != nil:
		c.precedences = append(c.precedences, precedence{r.txn, v.txn, s.key})
	case v.commit < t.Commit:
		c.addf(KindUnserializable, func() string {
			return fmt.Sprintf("%s, serializable from %d to %d, has %s, and %s wrote it meanwhile, at %d",
				c.h.name(int(r.txn)), uint64(t.Start), uint64(t.Commit), &t.Ops[r.op], c.h.name(int(v.txn)), uint64(v.commit))
		}, int(r.txn), int(v.txn))
	}
}
