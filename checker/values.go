package checker

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Judge says by which isolation level a history is judged.
type Judge int

const (
	// ByRecord judges by the level that each transaction asked for: all of them by
	// snapshot isolation, and the serializable ones among themselves as serializable.
	// Transactions under snapshot isolation may stand between these: a cycle is an
	// anomaly if each of its read-write dependencies begins at a serializable one.
	ByRecord Judge = iota
	// AsSnapshotIsolation judges every transaction by snapshot isolation.
	AsSnapshotIsolation
	// AsSerializable judges every transaction as a serializable one.
	AsSerializable
)

// String returns the judge's name.
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
	// NoProcess ignores the order of the transactions of a process. NoRealTime ignores
	// the times (process order is part of real time).
	NoProcess, NoRealTime bool
	// Examples is how many anomalies of each kind are explained; 0 means 5.
	Examples int
}

// CheckValues judges a history by its values alone, as Elle does (Kingsbury and
// Alvaro, VLDB 2020). From what transactions read, it infers the order in which
// versions were written. It builds a graph of the dependencies between transactions
// (write-write, write-read, read-write, process and real time), and looks for cycles.
// It needs neither timestamps nor trust in them.
//
// For a list, the longest read shows the order of versions; elements that nobody saw
// come after it. For a register, three things show a part of the order: transactions
// read the key before they wrote it; the absent value comes before all others; and one
// version was seen, or written, before another one's reader or writer was invoked. So
// lists find the most.
//
// Snapshot isolation forbids every kind of anomaly except G2-item. Serializable forbids
// that one too. Where it is permitted, Report.Permitted has examples of it.
//
// A transaction of unknown outcome counts as committed if a committed one saw one of
// its values; otherwise it does not count at all. Transactions of the past (AsOf) have
// no place in process order and real time.
//
// The time is proportional to the operations and the lengths of the lists that were
// read; only the explanation of findings takes more. An error says that the history
// cannot be judged: a key is a register and a list, or two transactions that are both
// not aborted wrote the same value to a key. Deletions of registers are ignored,
// because nobody can tell one from another.
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
				return nil // a later or an earlier attempt wrote the same
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

// prove finds the unknown transactions that must have committed: a committed
// transaction, or one that was itself found this way, saw their values.
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
		// A transaction of unknown outcome may take effect after those that follow it.
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
