package checker

import (
	"cmp"
	"fmt"
	"slices"
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
	// Observers are the observers to judge: every committed run must have seen a change
	// that no earlier committed run of the observer for that key had seen.
	Observers []Observer
	// Idle says that the history goes on until the workers had nothing left to do.
	// Then a change that no run saw is a violation.
	Idle bool
	// NoRealTime ignores the times. Set it if the processes share no clock.
	NoRealTime bool
	// Examples is how many violations of each kind are explained; 0 means 5.
	Examples int
}

// CheckTimestamps judges a history by its timestamps, in O(n log n). These must hold:
//
//   - A transaction does not contradict its own operations.
//   - The start and the commit timestamps of those committed transactions that have both
//     are all different, as those of one oracle are.
//   - Every read, whatever the outcome of its transaction, found the newest version
//     that was committed at or below the start timestamp.
//   - No two committed transactions that wrote the same key overlap. Nor does a
//     transaction that wrote a key overlap one that locked it, if the latter wrote
//     anything.
//   - If a serializable transaction writes, nobody wrote what it had read, between its
//     start and its commit.
//   - A transaction that was invoked after the completion of another has a start
//     timestamp greater than the other's timestamps.
//   - The runs of observers fit the changes, see TimestampOptions.
//
// At the beginning every key is absent and every list empty. If the database held
// something before, the writes of that must be part of the history.
//
// A transaction of unknown outcome counts as committed if somebody saw one of its
// values. Then there must be a commit timestamp that fits all reads and writes, and
// also what it, and others, locked or read as serializable transactions. If
// others wrote the same values, nobody can tell, and every read passes that is
// possible with the transaction or without it.
//
// An error says that the history cannot be judged: a key is a register and a list, or
// timestamps are missing.
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
	c.order()
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
	every             []opKeyed         // all writes by key, once somebody asks; see writersOf
	everyOf           []int32
	wrote             []bool       // transactions that write anything
	precedences       []precedence // that an unknown transaction takes part in
}

// extKeyed is the place of a read or write in the digest, with what sorting needs.
type extKeyed struct {
	at  int32
	key int32
}

// opKeyed is the place of an operation.
type opKeyed struct {
	txn, op, key int32
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

// timestamps looks for timestamps that an oracle cannot have given. Each transaction draws its own, so those of the committed ones that wrote
// are all different. Snapshots of the past may have any.
func (c *tsChecker) timestamps() {
	type drawn struct {
		ts    oracle.Timestamp
		txn   int32
		start bool
	}
	var all []drawn
	for i := range c.h {
		t := &c.h[i]
		if t.Outcome != Committed || t.Commit == 0 {
			continue
		}
		if t.Commit <= t.Start {
			c.add(KindTimestamps, fmt.Sprintf("%s is committed at %d, not after its start at %d", c.h.name(i), uint64(t.Commit), uint64(t.Start)), i)
		}
		all = append(all, drawn{t.Commit, int32(i), false})
		if t.Start != 0 && !t.AsOf {
			all = append(all, drawn{t.Start, int32(i), true})
		}
	}
	slices.SortStableFunc(all, func(a, b drawn) int { return cmp.Compare(a.ts, b.ts) })
	for i := 1; i < len(all); i++ {
		a, b := all[i-1], all[i]
		if a.ts != b.ts || a.txn == b.txn {
			continue
		}
		text := "%s and %s are both committed at %d"
		switch {
		case a.start && b.start:
			text = "%s and %s both start at %d"
		case a.start:
			text = "%s starts when %s is committed, at %d"
		case b.start:
			text = "%s is committed when %s starts, at %d"
		}
		text = fmt.Sprintf(text, c.h.name(int(a.txn)), c.h.name(int(b.txn)), uint64(a.ts))
		c.add(KindTimestamps, text, int(a.txn), int(b.txn))
	}
}

// realTime makes sure that a transaction that began after another's end got greater
// timestamps.
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
