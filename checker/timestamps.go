package checker

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// Observer says what an observer of the history observes.
type Observer struct {
	// Name is the name that its runs have.
	Name string
	// Observes tells whether changes of a key make the observer run.
	Observes func(key string) bool
	// Weak says that weak notifications may make it run without a change.
	Weak bool
}

// TimestampOptions are options of CheckTimestamps. The zero value judges all but
// observers.
type TimestampOptions struct {
	// Observers are judged by the ledger: every committed run saw a change that no
	// earlier committed run of the observer for that key had seen.
	Observers []Observer
	// Idle says that the history goes on until the workers had nothing left to do: a
	// change that no run saw is a violation.
	Idle bool
	// NoRealTime leaves the times out of account; for processes without a clock in
	// common.
	NoRealTime bool
	// Examples is how many violations of each kind are explained; 0 means 5.
	Examples int
}

// CheckTimestamps judges a history by its timestamps, in O(n log n):
//
//   - A transaction does not contradict its own operations.
//   - Every read, of whatever outcome its transaction is, found the newest version
//     that was committed at or below the start timestamp.
//   - No two committed transactions that wrote the same key overlap, nor one that
//     wrote a key and one that locked it, if that one wrote anything.
//   - Nobody wrote what a serializable transaction that writes had read, between its
//     start and its commit.
//   - A transaction that was invoked after the completion of another has a greater
//     start timestamp than that one's timestamps.
//   - The ledger of observers, see TimestampOptions.
//
// At the beginning every key is absent and every list empty: what was there before
// must be part of the history.
//
// A transaction of unknown outcome counts as committed if somebody saw one of its
// values; then there must be a commit timestamp that fits all reads and writes. Where
// its values are not its own alone, nobody can tell, and every reading that is
// possible with or without it passes.
//
// An error says that the history cannot be judged: a key that is a register and a
// list, or timestamps that are missing.
func CheckTimestamps(h History, o TimestampOptions) (*Report, error) {
	c := &tsChecker{h: h, o: o, r: newReport("timestamps", h, o.Examples)}
	for i := range h {
		if t := &h[i]; len(t.Ops) > 0 && t.Start == 0 {
			return nil, fmt.Errorf("checker: %s (process %d) has no start timestamp", h.name(i), t.Process)
		} else if t.Outcome == Committed && t.Commit == 0 && t.Writes() {
			return nil, fmt.Errorf("checker: %s (process %d) is committed and has no commit timestamp", h.name(i), t.Process)
		}
	}
	var err error
	if c.d, err = newDigest(h, func(txn, _ int, text string) { c.add(KindInternal, text, txn) }); err != nil {
		return nil, err
	}
	c.timestamps()
	if !o.NoRealTime {
		c.realTime()
	}
	c.prove()
	c.sweep()
	c.undecided()
	c.ledger()
	return c.r, nil
}

// tsChecker is one run of CheckTimestamps.
type tsChecker struct {
	h History
	o TimestampOptions
	r *Report
	d *digest

	reads, writes     []extKeyed // by key
	readFrom, writeOf []int32
	bounds            map[int32]*bounds // of unknown transactions
	maybe             map[int32]bool    // keys that unproved transactions wrote with values that others wrote too
}

// extKeyed is the place of a read or write in the digest, with what sorting needs.
type extKeyed struct {
	at  int32
	key int32
}

// bounds is what is known of the commit timestamp of a transaction of unknown
// outcome: over < commit <= upTo.
type bounds struct {
	proved         bool
	proof          int // the transaction that saw it
	over, upTo     oracle.Timestamp
	overBy, upToBy because
}

// because says why a bound holds, and by which transaction.
type because struct {
	txn int32
	key int32
	how func(c *tsChecker, b because) string
}

func (b *bounds) atMost(ts oracle.Timestamp, txn int32, key int32, how func(c *tsChecker, b because) string) {
	if ts < b.upTo {
		b.upTo, b.upToBy = ts, because{txn, key, how}
	}
}

func (b *bounds) above(ts oracle.Timestamp, txn int32, key int32, how func(c *tsChecker, b because) string) {
	if ts > b.over {
		b.over, b.overBy = ts, because{txn, key, how}
	}
}

func startsItself(c *tsChecker, b because) string {
	return fmt.Sprintf("it starts at %d", uint64(c.h[b.txn].Start))
}

func saw(c *tsChecker, b because) string {
	return fmt.Sprintf("%s saw it in %s at %d", c.h.name(int(b.txn)), c.d.keys[b.key], uint64(c.h[b.txn].Start))
}

func sawNot(c *tsChecker, b because) string {
	return fmt.Sprintf("%s did not see it in %s at %d", c.h.name(int(b.txn)), c.d.keys[b.key], uint64(c.h[b.txn].Start))
}

func keptIt(c *tsChecker, b because) string {
	return fmt.Sprintf("%s did not see it in %s, which nobody may have written until it was committed at %d", c.h.name(int(b.txn)), c.d.keys[b.key], uint64(c.h[b.txn].Commit))
}

func wroteToo(c *tsChecker, b because) string {
	return fmt.Sprintf("%s, which wrote %s too, starts at %d", c.h.name(int(b.txn)), c.d.keys[b.key], uint64(c.h[b.txn].Start))
}

// add reports an anomaly with the transactions that it is about.
func (c *tsChecker) add(kind Kind, text string, txns ...int) {
	c.addf(kind, func() string { return text }, txns...)
}

func (c *tsChecker) addf(kind Kind, text func() string, txns ...int) {
	slices.Sort(txns)
	txns = slices.Compact(txns)
	c.r.add(kind, txns, func() string {
		var b strings.Builder
		b.WriteString(text())
		for _, t := range txns {
			b.WriteString("\n" + c.h.describe(t))
		}
		return b.String()
	})
}

// timestamps looks for timestamps that an oracle cannot have given.
func (c *tsChecker) timestamps() {
	type commit struct {
		ts  oracle.Timestamp
		txn int32
	}
	var commits []commit
	for i := range c.h {
		t := &c.h[i]
		if t.Outcome != Committed || t.Commit == 0 {
			continue
		}
		if t.Commit <= t.Start {
			c.add(KindTimestamps, fmt.Sprintf("%s is committed at %d, not after its start at %d", c.h.name(i), uint64(t.Commit), uint64(t.Start)), i)
		}
		commits = append(commits, commit{t.Commit, int32(i)})
	}
	slices.SortFunc(commits, func(a, b commit) int { return cmp.Compare(a.ts, b.ts) })
	for i := 1; i < len(commits); i++ {
		if a, b := commits[i-1], commits[i]; a.ts == b.ts {
			c.add(KindTimestamps, fmt.Sprintf("%s and %s are both committed at %d", c.h.name(int(a.txn)), c.h.name(int(b.txn)), uint64(a.ts)), int(a.txn), int(b.txn))
		}
	}
}

// realTime makes sure that who began after another's end got greater timestamps.
func (c *tsChecker) realTime() {
	type moment struct {
		time int64
		txn  int32
	}
	invoked := make([]moment, 0, len(c.h))
	completed := make([]moment, 0, len(c.h))
	for i := range c.h {
		t := &c.h[i]
		if t.AsOf || t.Start == 0 {
			continue
		}
		invoked = append(invoked, moment{t.Invoke, int32(i)})
		if t.Outcome != Unknown {
			completed = append(completed, moment{t.Complete, int32(i)})
		}
	}
	byTime := func(a, b moment) int { return cmp.Compare(a.time, b.time) }
	slices.SortFunc(invoked, byTime)
	slices.SortFunc(completed, byTime)
	var greatest oracle.Timestamp
	var by int32
	next := 0
	for _, m := range invoked {
		for next < len(completed) && completed[next].time < m.time {
			t := &c.h[completed[next].txn]
			if ts := max(t.Start, t.Commit); ts > greatest {
				greatest, by = ts, completed[next].txn
			}
			next++
		}
		if start := c.h[m.txn].Start; start <= greatest {
			c.addf(KindRealTime, func() string {
				return fmt.Sprintf("%s was invoked at time %d, after %s had completed at %d, and starts at %d, not above %d",
					c.h.name(int(m.txn)), m.time, c.h.name(int(by)), c.h[by].Complete, uint64(start), uint64(greatest))
			}, int(m.txn), int(by))
		}
	}
}

// prove finds the transactions of unknown outcome that somebody saw.
func (c *tsChecker) prove() {
	d := c.d
	keyed := func(n int, key func(int) int32) []extKeyed {
		all := make([]extKeyed, n)
		for i := range all {
			all[i] = extKeyed{int32(i), key(i)}
		}
		return all
	}
	byKey := func(k *extKeyed) int32 { return k.key }
	c.reads, c.readFrom = group(len(d.keys), keyed(len(d.reads), func(i int) int32 { return d.reads[i].key }), byKey)
	c.writes, c.writeOf = group(len(d.keys), keyed(len(d.writes), func(i int) int32 { return d.writes[i].key }), byKey)
	c.r.Reads = len(d.reads)
	c.bounds = map[int32]*bounds{}
	c.maybe = map[int32]bool{}
	for k := range d.keys {
		c.proveOf(int32(k))
	}
	for k := range d.keys {
		c.findMaybe(int32(k))
	}
	for _, b := range c.bounds {
		if b.proved {
			c.r.Proved++
		}
	}
}

// element is a value that a transaction left at a key: of a register what it wrote
// last, of a list each element.
type element struct {
	value  int64
	absent bool
}

func (c *tsChecker) each(k int32, f func(txn int32, e element)) {
	for _, w := range c.writes[c.writeOf[k]:c.writeOf[k+1]] {
		w := &c.d.writes[w.at]
		if c.d.list[k] {
			for _, v := range c.d.appended(w) {
				f(w.txn, element{value: v})
			}
			continue
		}
		op := &c.h[w.txn].Ops[w.op]
		f(w.txn, element{op.Value, op.Absent})
	}
}

// owners tells for a key who alone wrote each value; -1 is for several.
func (c *tsChecker) owners(k int32) map[element]int32 {
	owner := map[element]int32{}
	c.each(k, func(txn int32, e element) {
		if other, ok := owner[e]; ok && other != txn || e.absent {
			txn = -1
		}
		owner[e] = txn
	})
	return owner
}

func (c *tsChecker) hasUnknown(k int32) bool {
	for _, w := range c.writes[c.writeOf[k]:c.writeOf[k+1]] {
		if c.h[c.d.writes[w.at].txn].Outcome == Unknown {
			return true
		}
	}
	return false
}

func (c *tsChecker) proveOf(k int32) {
	if !c.hasUnknown(k) {
		return
	}
	owner := c.owners(k)
	c.each(k, func(txn int32, _ element) {
		if c.h[txn].Outcome == Unknown && c.bounds[txn] == nil {
			c.bounds[txn] = &bounds{upTo: oracle.Max, over: c.h[txn].Start, overBy: because{txn, k, startsItself}}
		}
	})
	for _, at := range c.reads[c.readFrom[k]:c.readFrom[k+1]] {
		r := &c.d.reads[at.at]
		note := func(e element) {
			w, ok := owner[e]
			if !ok || w < 0 || w == r.txn || c.h[w].Outcome != Unknown {
				return
			}
			b := c.bounds[w]
			if !b.proved {
				b.proved, b.proof = true, int(r.txn)
			}
			b.atMost(c.h[r.txn].Start, r.txn, k, saw)
		}
		if c.d.list[k] {
			for _, v := range c.d.base(r) {
				note(element{value: v})
			}
			continue
		}
		op := &c.h[r.txn].Ops[r.op]
		note(element{op.Value, op.Absent})
	}
}

// findMaybe marks a key for which a transaction that is not proved wrote a value that
// would not prove it.
func (c *tsChecker) findMaybe(k int32) {
	if !c.hasUnknown(k) {
		return
	}
	owner := c.owners(k)
	c.each(k, func(txn int32, e element) {
		if c.h[txn].Outcome == Unknown && !c.bounds[txn].proved && owner[e] < 0 {
			c.maybe[k] = true
		}
	})
}

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
		// It may be one or the other: nothing is learnt.
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

// maybe tells whether a read may have found what a transaction of unknown outcome
// wrote that nothing proves to be committed, because others wrote the same.
func (s *keySweep) maybe(r *extRead, n int) bool {
	c := s.c
	if !c.maybe[s.key] {
		return false
	}
	if c.d.list[s.key] {
		// Elements that are not unique tell nothing of who appended them.
		return true
	}
	op := &c.h[r.txn].Ops[r.op]
	var from oracle.Timestamp
	if n > 0 {
		from = max(s.versions[n-1].commit, s.versions[n-1].start)
	}
	for _, at := range c.writes[c.writeOf[s.key]:c.writeOf[s.key+1]] {
		w := &c.d.writes[at.at]
		t := &c.h[w.txn]
		if t.Outcome != Unknown || c.bounds[w.txn].proved || w.txn == r.txn || t.Start < from || t.Start >= c.h[r.txn].Start {
			continue
		}
		if wrote := &t.Ops[w.op]; wrote.Absent == op.Absent && (op.Absent || wrote.Value == op.Value) {
			return true
		}
	}
	return false
}

// badRead explains a read that found something else than the first n versions.
func (s *keySweep) badRead(r *extRead, n int) {
	c := s.c
	t := &c.h[r.txn]
	op := &t.Ops[r.op]
	key := c.d.keys[s.key]
	if s.writer == nil {
		// All that was written, also what was overwritten or not committed.
		s.writer = map[element][]int32{}
		for _, at := range c.writes[c.writeOf[s.key]:c.writeOf[s.key+1]] {
			txn := c.d.writes[at.at].txn
			for o := range c.h[txn].Ops {
				if w := &c.h[txn].Ops[o]; w.Key == key && (w.Kind == Write || w.Kind == Append) {
					e := element{w.Value, w.Absent}
					s.writer[e] = append(s.writer[e], txn)
				}
			}
		}
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
	// Among several who wrote it, the most harmless explains it.
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
	ops := s.c.h[txn].Ops
	for o := len(ops) - 1; o >= 0; o-- {
		if ops[o].Kind == Write && ops[o].Key == s.c.d.keys[s.key] {
			return element{ops[o].Value, ops[o].Absent} != e
		}
	}
	return false
}

// kept makes sure that what a transaction read or locked stayed as it was until its
// commit, where that was promised. The first n versions are what it read.
func (s *keySweep) kept(r *extRead, n int) {
	c := s.c
	t := &c.h[r.txn]
	if t.Outcome != Committed || n == len(s.versions) {
		return
	}
	locks := s.locks(r)
	if t.Isolation != Serializable && !locks || !t.Writes() {
		return
	}
	// The next version is the first that can be in the way.
	v := &s.versions[n]
	switch {
	case v.txn == r.txn:
		// An overlap of writers is judged there.
	case v.unknown != nil:
		v.unknown.above(t.Commit, r.txn, s.key, keptIt)
	case locks && v.start < t.Commit:
		s.overlap(&version{start: t.Start, commit: t.Commit, txn: r.txn}, v, "locked")
	case v.commit < t.Commit:
		c.addf(KindUnserializable, func() string {
			return fmt.Sprintf("%s, serializable from %d to %d, has %s, and %s wrote it meanwhile, at %d",
				c.h.name(int(r.txn)), uint64(t.Start), uint64(t.Commit), &t.Ops[r.op], c.h.name(int(v.txn)), uint64(v.commit))
		}, int(r.txn), int(v.txn))
	}
}

// locks tells whether the reader of a key locked it, with this read or a later one,
// and does not write it.
func (s *keySweep) locks(r *extRead) bool {
	ops := s.c.h[r.txn].Ops
	key := s.c.d.keys[s.key]
	locks := false
	for o := int(r.op); o < len(ops); o++ {
		if ops[o].Key != key {
			continue
		}
		if ops[o].Kind == Write || ops[o].Kind == Append {
			return false
		}
		locks = locks || ops[o].Locks
	}
	return locks
}

// undecided makes sure that each transaction that was proved to be committed has a
// commit timestamp that fits.
func (c *tsChecker) undecided() {
	for i := range c.h {
		b := c.bounds[int32(i)]
		if b == nil || !b.proved || b.over < b.upTo {
			continue
		}
		c.addf(KindTorn, func() string {
			return fmt.Sprintf("%s is committed, since %s saw it, and no commit timestamp fits: %s, but %s", c.h.name(i), c.h.name(b.proof), b.upToBy.how(c, b.upToBy), b.overBy.how(c, b.overBy))
		}, i, b.proof, int(b.upToBy.txn), int(b.overBy.txn))
	}
}

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
	// What is left ran for keys that nobody ever wrote or read.
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
		if prev >= 0 && (c.h[prev].Commit > t.Start || c.h[prev].Start == t.Start) {
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
	// What nothing proves may be there too, if this run did not read.
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
