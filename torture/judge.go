package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/percolate-go/percolate/checker"
)

// longestSilence is the longest time without a commit while faults fire, whatever the
// faults are. Every fault ends after seconds, and the locks that it left are resolved
// after the leases.
const longestSilence = time.Minute

// judge looks at the whole history and at what is left in the store, and fills in the
// report. f is nil if the store could not be read.
func (r *run) judge(h *history, f *final) {
	if f != nil {
		h.Txns = append(h.Txns, finalTransaction(h, f))
	}
	rep := r.report
	rep.count(h)
	for _, bad := range h.Bad {
		r.violation("%s", bad)
	}
	verdict := func(name, about string, looked int, violations []string) {
		rep.Checks = append(rep.Checks, check{Name: name, About: about, Looked: looked, Violations: len(violations)})
		const most = 5
		for i, v := range violations {
			if i == most {
				r.violation("%s: and %d more", name, len(violations)-most)
				break
			}
			r.violation("%s: %s", name, v)
		}
	}
	has := func(name string) bool { return has(r.chosen, name) }
	if has("bank") {
		n, bad := judgeBank(h)
		verdict("bank", "the accounts have the same total in every full read", n, bad)
	}
	if has("writeskew") {
		n, bad := judgeSkew(h)
		verdict("write skew", "the sum of a pair is never below 0", n, bad)
	}
	if has("ledger") && f != nil {
		n, bad := judgeLedger(h, f)
		verdict("ledger", "each change is accounted for by one run that saw it or a later one", n, bad)
		n, bad = judgeBell(h, f)
		verdict("weak notifications", "after each notification there was a run", n, bad)
		n, bad = judgeTally(f)
		verdict("tally", "as many runs were counted as have left a row", n, bad)
	}
	if has("webindex") && f != nil {
		n, bad := judgeWeb(f)
		verdict("web index", "index, links and ranks are those of the pages", n, bad)
	}
	if has(relayName) && f != nil {
		n, bad := judgeRelay(h, f)
		verdict("relay", "each change was run once by each of its observers, whoever ran it, and as a whole", n, bad)
		rep.Waste = waste(h, f)
	}
	if err := r.check(h.export()); err != nil {
		r.violation("the history cannot be judged: %v", err)
	}
	rep.LongestSilence = silence(h)
	if rep.LongestSilence > longestSilence {
		r.violation("nothing was committed for %v", rep.LongestSilence)
	}
	r.judgeWork()
}

// historyName is the file of the merged history, in the form of package checker.
const historyName = "history.jsonl"

// check writes the history to a file, and gives it to the checkers.
func (r *run) check(h checker.History) error {
	file, err := os.Create(filepath.Join(r.Dir, historyName))
	if err != nil {
		return err
	}
	if err := errors.Join(checker.WriteHistory(file, h), file.Close()); err != nil {
		return err
	}
	for _, c := range checkers() {
		began := time.Now()
		rep, err := c.check(h)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		n, text, err := findings(rep)
		if err != nil {
			return err
		}
		r.say("%s: %d violations in %d transactions, after %v", c.name, n, len(h), time.Since(began).Round(time.Millisecond))
		r.report.Checks = append(r.report.Checks, check{Name: c.name, About: c.about, Looked: len(h), Violations: n})
		for _, t := range text {
			r.violation("%s: %s", c.name, t)
		}
	}
	return nil
}

// judgeWork fails a run that did too little to prove anything.
func (r *run) judgeWork() {
	for _, what := range r.lacks(r.report) {
		r.violation("%s", what)
	}
}

// lacks says what there must be more of in a report for it to prove anything.
func (r *run) lacks(rep *report) []string {
	var lacks []string
	if want := int(r.MinRate * r.Duration.Seconds()); rep.Committed < want {
		lacks = append(lacks, fmt.Sprintf("only %d transactions that write were committed, and a run of %v needs %d", rep.Committed, r.Duration, want))
	}
	for _, w := range r.chosen {
		if rep.Workloads[w.name] == 0 {
			lacks = append(lacks, fmt.Sprintf("no transaction of the workload %s was committed", w.name))
		}
	}
	if rep.fired() < r.MinFaults {
		lacks = append(lacks, fmt.Sprintf("only %d faults fired, and this run needs %d", rep.fired(), r.MinFaults))
	}
	return lacks
}

// finalTransaction is the last snapshot as a transaction that read every cell that any
// other one read or wrote.
func finalTransaction(h *history, f *final) *transaction {
	var ended int64
	names := map[string]struct{}{}
	for _, t := range h.Txns {
		ended = max(ended, t.Began, t.Ended)
		for _, o := range t.Ops {
			if o.Kind != opNotify {
				names[o.Cell] = struct{}{}
			}
		}
	}
	t := &transaction{Process: "final read", line: line{
		Workload: "final read", N: 1, Began: ended + 1, Ended: ended + 2, Start: f.at, Outcome: committed,
	}}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		o := op{Kind: opRead, Cell: name}
		if v, ok := f.cells[name]; ok {
			o.Value = &v
		}
		t.Ops = append(t.Ops, o)
	}
	return t
}

// snapshotReads returns the reads of cells that the transaction had not written before.
func snapshotReads(t *transaction) map[string]*string {
	reads := map[string]*string{}
	written := map[string]struct{}{}
	for _, o := range t.Ops {
		_, own := written[o.Cell]
		switch {
		case o.Kind == opRead && !own:
			reads[o.Cell] = o.Value
		case o.Kind != opRead:
			written[o.Cell] = struct{}{}
		}
	}
	return reads
}

// judgeBank looks at full reads. Transactions that were aborted or are unknown read a
// snapshot too.
func judgeBank(h *history) (looked int, bad []string) {
	var opened uint64
	for _, t := range h.Txns {
		if t.Process == setupProcess && t.Workload == "bank" {
			opened = t.Commit
		}
	}
	for _, t := range h.Txns {
		if t.Workload != "bank" && t.Workload != "final read" || t.AsOf && t.Start < opened {
			continue // a wrong clock may name a time before there were accounts
		}
		reads := snapshotReads(t)
		total, n := 0, 0
		var err error
		for _, a := range accounts() {
			v, ok := reads[a]
			if !ok {
				continue
			}
			n++
			amount, e := numberOf(v)
			total += amount
			err = cmp.Or(err, e)
		}
		if n < bankAccounts {
			continue
		}
		looked++
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s at %d: %v", t.id(), t.Start, err))
		} else if total != bankTotal {
			bad = append(bad, fmt.Sprintf("%s at %d: the total is %d, not %d", t.id(), t.Start, total, bankTotal))
		}
	}
	return looked, bad
}

func judgeSkew(h *history) (looked int, bad []string) {
	for _, t := range h.Txns {
		if t.Workload != "writeskew" && t.Workload != "final read" {
			continue
		}
		reads := snapshotReads(t)
		for pair := range skewPairs {
			a, okA := reads[skewSide(pair, 0)]
			b, okB := reads[skewSide(pair, 1)]
			if !okA || !okB {
				continue
			}
			looked++
			x, errX := numberOf(a)
			y, errY := numberOf(b)
			if err := cmp.Or(errX, errY); err != nil {
				bad = append(bad, fmt.Sprintf("%s at %d: %v", t.id(), t.Start, err))
			} else if x+y < 0 {
				bad = append(bad, fmt.Sprintf("%s at %d: the pair %d has %d and %d", t.id(), t.Start, pair, x, y))
			}
		}
	}
	return looked, bad
}

// ledgerRun is a committed run of an observer: a row that it left.
type ledgerRun struct {
	start uint64
	seen  string
}

// ledgerRuns are the runs for each row of the ledger's tables, oldest first.
func ledgerRuns(f *final) map[string][]ledgerRun { return runsIn(f, tableRuns) }

// runsIn are the runs for each row that have left theirs in a table, oldest first.
func runsIn(f *final, table string) map[string][]ledgerRun {
	runs := map[string][]ledgerRun{}
	for name, seen := range f.cells {
		c := cellOf(name)
		if c.Table != table {
			continue
		}
		at := strings.LastIndexByte(c.Row, ':')
		row, start := c.Row[:max(at, 0)], c.Row[at+1:]
		n, err := strconv.ParseUint(start, 10, 64)
		if err != nil {
			continue // no run of ours writes such a row, and the tally will show it
		}
		runs[row] = append(runs[row], ledgerRun{n, seen})
	}
	for _, all := range runs {
		slices.SortFunc(all, func(a, b ledgerRun) int { return cmp.Compare(a.start, b.start) })
	}
	return runs
}

// change is a write, or a notification, of an observed cell.
type change struct {
	by     *transaction
	commit uint64 // 0 where the outcome is not known
	value  string // deletedValue for a delete
}

// changesOf collects the changes of cells, by row, of transactions that committed or
// may have committed.
func changesOf(h *history, table string, kinds ...opKind) map[string][]change {
	all := map[string][]change{}
	for _, t := range h.Txns {
		if t.Outcome == aborted {
			continue
		}
		last := map[string]change{}
		for _, o := range t.Ops {
			c := cellOf(o.Cell)
			if c.Table != table || !slices.Contains(kinds, o.Kind) {
				continue
			}
			value := deletedValue
			if o.Value != nil {
				value = *o.Value
			}
			last[c.Row] = change{by: t, commit: t.Commit, value: value}
		}
		for row, c := range last {
			all[row] = append(all[row], c)
		}
	}
	return all
}

// judgeLedger checks the rows that the observer audit wrote. The checkers make sure that
// each run saw the newest change of its snapshot, because its reads are in the history.
func judgeLedger(h *history, f *final) (looked int, bad []string) {
	runs := ledgerRuns(f)
	changes := changesOf(h, "ledger", opWrite, opDelete)
	for i := range ledgerCells {
		row := cellOf(ledgerCell(i)).Row
		newest := change{}
		for _, c := range changes[row] {
			if c.by.Outcome != committed {
				continue
			}
			looked++
			if c.commit > newest.commit {
				newest = c
			}
		}
		rs := runs[row]
		if newest.commit > 0 && (len(rs) == 0 || rs[len(rs)-1].start < newest.commit) {
			bad = append(bad, fmt.Sprintf("no run has seen the change of %s by %s at %d", row, newest.by.id(), newest.commit))
		}
		now, ok := f.cells[ledgerCell(i)]
		if !ok {
			now = deletedValue
		}
		if len(rs) > 0 && rs[len(rs)-1].seen != now {
			bad = append(bad, fmt.Sprintf("the last run for %s, at %d, saw %q, and %q is there", row, rs[len(rs)-1].start, rs[len(rs)-1].seen, now))
		}
		// A run that follows another saw another change, since no two have the same value;
		// of two deletes, one must lie between them.
		for k := 1; k < len(rs); k++ {
			if rs[k].seen != rs[k-1].seen {
				continue
			}
			between := slices.ContainsFunc(changes[row], func(c change) bool {
				if c.value != deletedValue || rs[k].seen != deletedValue {
					return false
				}
				if c.by.Outcome == committed {
					return c.commit > rs[k-1].start && c.commit <= rs[k].start
				}
				return c.by.Start < rs[k].start
			})
			if !between {
				bad = append(bad, fmt.Sprintf("two runs, at %d and %d, account for the same change of %s, %q", rs[k-1].start, rs[k].start, row, rs[k].seen))
			}
		}
	}
	return looked, bad
}

func judgeBell(h *history, f *final) (looked int, bad []string) {
	runs := ledgerRuns(f)
	for row, changes := range changesOf(h, "bell", opNotify) {
		newest := change{}
		var at uint64
		for _, c := range changes {
			if c.by.Outcome != committed {
				continue
			}
			looked++
			// A transaction that only notifies has no commit timestamp.
			if ts := max(c.commit, c.by.Start); ts > at {
				newest, at = c, ts
			}
		}
		var last uint64
		if rs := runs[row]; len(rs) > 0 {
			last = rs[len(rs)-1].start
		}
		if at > last {
			bad = append(bad, fmt.Sprintf("no run followed the notification of %s by %s at %d", row, newest.by.id(), at))
		}
	}
	return looked, bad
}

func judgeTally(f *final) (looked int, bad []string) {
	runs := ledgerRuns(f)
	for row, rs := range runs {
		looked += len(rs)
		counted, ok := f.cells[tableTally+"/"+row+"/runs"]
		if !ok || counted != strconv.Itoa(len(rs)) {
			bad = append(bad, fmt.Sprintf("%q runs of %s were counted, and %d have left a row", counted, row, len(rs)))
		}
	}
	return looked, bad
}

// judgeWeb makes index, links and ranks from the pages, and compares.
func judgeWeb(f *final) (looked int, bad []string) {
	want := map[string]string{}
	ranks := map[string]int{}
	for i := range webPages {
		row := pageRow(i)
		body, ok := f.cells[pageBody(row)]
		if !ok {
			continue
		}
		looked++
		words, links, err := pageParts(&body)
		if err != nil {
			bad = append(bad, err.Error())
			continue
		}
		want["page/"+row+"/indexed"] = body
		for _, w := range words {
			want[tableIndex+"/"+w+":"+row+"/x"] = ""
		}
		for _, to := range links {
			want[tableLinks+"/"+to+":"+row+"/x"] = ""
			ranks[to]++
		}
	}
	for i := range webPages {
		row := pageRow(i)
		name := tableRank + "/" + row + "/in"
		// A page that never had a link was never ranked.
		if _, ranked := f.cells[name]; ranked || ranks[row] > 0 {
			want[name] = strconv.Itoa(ranks[row])
		}
	}
	have := map[string]string{}
	for name, value := range f.cells {
		c := cellOf(name)
		if c.Table == tableIndex || c.Table == tableLinks || c.Table == tableRank || c.Table == "page" && c.Column == "indexed" {
			have[name] = value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		value, ok := have[name]
		switch {
		case !ok:
			bad = append(bad, fmt.Sprintf("%s is missing", name))
		case value != want[name]:
			bad = append(bad, fmt.Sprintf("%s is %q and should be %q", name, value, want[name]))
		}
		delete(have, name)
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		bad = append(bad, fmt.Sprintf("%s is %q and should not be there", name, have[name]))
	}
	return looked, bad
}

// silence is the longest time between two commits, while processes ran.
func silence(h *history) time.Duration {
	var ends []int64
	for _, t := range h.Txns {
		if t.Outcome == committed && t.Commit != 0 && t.Ended != 0 && t.Process != finalProcess && t.Process != settleProcess {
			ends = append(ends, t.Ended)
		}
	}
	slices.Sort(ends)
	var longest int64
	for i := 1; i < len(ends); i++ {
		longest = max(longest, ends[i]-ends[i-1])
	}
	return time.Duration(longest)
}
