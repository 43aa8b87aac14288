package checker

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Kind names a kind of anomaly. The names G0 to G2-item are Adya's (Generalized
// Isolation Level Definitions, ICDE 2000); a cycle that needs an edge of a process's
// own order, or of real time, has "-process" or "-realtime" at its end.
type Kind string

// Anomalies of single transactions, found by both checkers. Both levels forbid them.
const (
	// KindInternal: a transaction contradicts its own reads and writes.
	KindInternal Kind = "internal"
	// KindG1a: a value was read whose writer did not commit.
	KindG1a Kind = "G1a"
	// KindG1b: a value was read that its writer overwrote before it committed.
	KindG1b Kind = "G1b"
	// KindGarbageRead: a value was read that nobody wrote.
	KindGarbageRead Kind = "garbage-read"
	// KindFutureRead: a transaction read a value that came later: it wrote the value
	// itself afterwards, or the timestamps say so.
	KindFutureRead Kind = "future-read"
)

// Anomalies that CheckValues finds.
const (
	// KindDuplicateElements: a list was read that has an element twice.
	KindDuplicateElements Kind = "duplicate-elements"
	// KindIncompatibleOrder: two reads of a list, neither of which is a prefix of the
	// other.
	KindIncompatibleOrder Kind = "incompatible-order"
	// KindDirtyUpdate: a committed write builds on one that did not commit.
	KindDirtyUpdate Kind = "dirty-update"
	// KindLostUpdate: several transactions read the same version of a key, wrote the
	// key, and committed.
	KindLostUpdate Kind = "lost-update"
	// KindG0: a cycle of write-write edges.
	KindG0 Kind = "G0"
	// KindG1c: a cycle of write-write and write-read edges.
	KindG1c Kind = "G1c"
	// KindGSingle: a cycle with exactly one read-write edge.
	KindGSingle Kind = "G-single"
	// KindLongFork: a cycle with several read-write edges, no two of which follow each
	// other. Elle calls it G-nonadjacent. The long fork is the smallest such cycle.
	KindLongFork Kind = "long-fork"
	// KindG2Item: a cycle with two read-write edges that follow each other, such as
	// write skew. Snapshot isolation permits it.
	KindG2Item Kind = "G2-item"
)

// Anomalies that CheckTimestamps finds.
const (
	// KindTimestamps: timestamps that no oracle can have given.
	KindTimestamps Kind = "timestamps"
	// KindStaleRead: a read did not find the newest version at the start timestamp.
	KindStaleRead Kind = "stale-read"
	// KindOverlap: two transactions that wrote the same key, or one that wrote it and
	// one that locked it, were committed though they overlap.
	KindOverlap Kind = "overlap"
	// KindUnserializable: somebody wrote what a serializable transaction had read,
	// between its start and its commit.
	KindUnserializable Kind = "unserializable"
	// KindTorn: a transaction of unknown outcome was seen, and elsewhere not seen, so
	// that no commit timestamp fits.
	KindTorn Kind = "torn"
	// KindRealTime: a transaction that began after the end of another did not get a
	// greater timestamp.
	KindRealTime Kind = "real-time"
	// KindUnneededRun: a run of an observer had no change to see, and was committed.
	KindUnneededRun Kind = "unneeded-run"
	// KindMissedChange: a change was seen by no run of its observer.
	KindMissedChange Kind = "missed-change"
)

// Anomaly is one finding.
type Anomaly struct {
	Kind Kind
	// Txns are the transactions, as indexes in the history. Those of a cycle are in
	// the order of the cycle.
	Txns []int
	// Text explains the anomaly, in one line or more.
	Text string
}

// Report is the verdict of a checker.
type Report struct {
	// Checker names the checker, and the rules by which it judged.
	Checker string
	// These count the transactions by outcome. Proved counts the unknown ones that must
	// have committed, because somebody saw what they wrote.
	Committed, Aborted, Unknown, Proved int
	// Reads is how many reads were judged.
	Reads int
	// Counts are the numbers of violations, by kind.
	Counts map[Kind]int
	// Anomalies are examples of the violations, at most Examples of each kind.
	Anomalies []Anomaly
	// Permitted are examples of anomalies that the isolation level permits.
	Permitted []Anomaly

	examples int
}

// defaultExamples is how many anomalies of a kind a report explains.
const defaultExamples = 5

func newReport(checker string, h History, examples int) *Report {
	if examples <= 0 {
		examples = defaultExamples
	}
	r := &Report{Checker: checker, Counts: map[Kind]int{}, examples: examples}
	for i := range h {
		switch h[i].Outcome {
		case Committed:
			r.Committed++
		case Aborted:
			r.Aborted++
		case Unknown:
			r.Unknown++
		}
	}
	return r
}

// OK tells whether the checker found nothing that the isolation level forbids.
func (r *Report) OK() bool { return len(r.Counts) == 0 }

// Has tells whether the checker found anomalies of a kind that the isolation level
// forbids.
func (r *Report) Has(kind Kind) bool { return r.Counts[kind] > 0 }

// add counts an anomaly, and explains it if it is one of the first.
func (r *Report) add(kind Kind, txns []int, explain func() string) {
	r.Counts[kind]++
	if r.Counts[kind] <= r.examples {
		r.Anomalies = append(r.Anomalies, Anomaly{kind, txns, explain()})
	}
}

// Write writes the report as text: a line of figures, the verdict, and the examples,
// sorted by kind.
func (r *Report) Write(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%s: %d transactions committed, %d aborted, %d unknown (%d of them proved committed); %d reads\n",
		r.Checker, r.Committed, r.Aborted, r.Unknown, r.Proved, r.Reads)
	if r.OK() {
		fmt.Fprintln(b, "no violation")
	} else {
		for _, k := range slices.Sorted(maps.Keys(r.Counts)) {
			fmt.Fprintf(b, "VIOLATION %s: %d\n", k, r.Counts[k])
		}
	}
	write := func(head string, all []Anomaly) {
		all = slices.Clone(all)
		slices.SortStableFunc(all, func(a, b Anomaly) int { return cmp.Compare(a.Kind, b.Kind) })
		for _, a := range all {
			fmt.Fprintf(b, "\n%s%s:\n", head, a.Kind)
			for line := range strings.Lines(a.Text) {
				fmt.Fprintf(b, "  %s\n", strings.TrimRight(line, "\n"))
			}
		}
	}
	write("", r.Anomalies)
	write("permitted: ", r.Permitted)
	if err := b.Flush(); err != nil {
		return fmt.Errorf("checker: writing the report: %w", err)
	}
	return nil
}

// Err returns nil if the report is OK, and the whole report as an error otherwise.
func (r *Report) Err() error {
	if r.OK() {
		return nil
	}
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		return err
	}
	return fmt.Errorf("checker: %s", b.String())
}

// name names a transaction: its place in the history, counted from 1.
func (h History) name(i int) string { return fmt.Sprintf("T%d", i+1) }

// describe shows a transaction in one line.
func (h History) describe(i int) string {
	t := &h[i]
	var b strings.Builder
	fmt.Fprintf(&b, "%s = process %d", h.name(i), t.Process)
	if t.Start != 0 {
		fmt.Fprintf(&b, ", start %d", uint64(t.Start))
	}
	if t.Commit != 0 {
		fmt.Fprintf(&b, ", commit %d", uint64(t.Commit))
	}
	if t.Outcome != Committed {
		fmt.Fprintf(&b, ", %s", t.Outcome)
	}
	if t.Isolation != SnapshotIsolation {
		fmt.Fprintf(&b, ", %s", t.Isolation)
	}
	if t.Run != nil {
		fmt.Fprintf(&b, ", run of %s for %s", t.Run.Observer, t.Run.Key)
	}
	b.WriteString(":")
	for i := range t.Ops {
		if i == 20 {
			fmt.Fprintf(&b, " and %d more", len(t.Ops)-i)
			break
		}
		b.WriteString(" ")
		b.WriteString(t.Ops[i].String())
	}
	return b.String()
}

// String shows the operation: r(x)=1, w(x)=2, append(l)=3.
func (op Op) String() string {
	var b strings.Builder
	switch op.Kind {
	case Read, ReadList:
		b.WriteString("r(")
	case Write:
		b.WriteString("w(")
	case Append:
		b.WriteString("append(")
	}
	b.WriteString(op.Key)
	b.WriteString(")=")
	if op.Kind == ReadList {
		b.WriteString(showList(op.List))
	} else {
		b.WriteString(showValue(op.Value, op.Absent))
	}
	if op.Locks {
		b.WriteString("!")
	}
	return b.String()
}

func showValue(v int64, absent bool) string {
	if absent {
		return "nothing"
	}
	return fmt.Sprint(v)
}

// showList shows a list. Of a long list it shows the end.
func showList(l []int64) string {
	const most = 12
	if len(l) > most {
		s := fmt.Sprint(l[len(l)-most:])
		return fmt.Sprintf("[(%d more) %s", len(l)-most, s[1:])
	}
	return fmt.Sprint(l)
}
