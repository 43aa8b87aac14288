package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator"
)

// Relay: changes that workers hand to each other. Two observers see the same column,
// "carry" and "note". What carry writes, "receive" observes. They are run by workers that
// come and go all the time (crew.go), and not all of them by each worker. So the changes
// change hands all the time, and so do those in between.

const (
	relayName  = "relay"
	relayCells = 24

	carryName, noteName, receiveName = "carry", "note", "receive"

	tableBaton = "baton" // a row for each cell: head is changed by transactions, tail by carry
	// Each run leaves a row in both: OBSERVER:ROW:START, what it has seen. No two runs write
	// the same cell there, so that nothing but the acknowledgments keeps them apart.
	tableRelayRuns = "relayruns"
	tableRelayed   = "relayed"
)

// relaySets are the observers that one worker of the crew runs, the first one all of them.
func relaySets() [][]string {
	return [][]string{{carryName, noteName, receiveName}, {carryName}, {noteName, receiveName}}
}

func batonCell(i int) string { return fmt.Sprintf("%s/cell%02d/head", tableBaton, i) }

func stepRelay(ctx context.Context, s *thread, _ time.Duration) error {
	return s.do(ctx, relayName, mode{}, func(t *txn) error {
		for _, i := range s.rng.Perm(relayCells)[:1+s.rng.IntN(3)] {
			if err := t.set(batonCell(i), s.unique()); err != nil {
				return err
			}
		}
		return nil
	})
}

// relayObservers returns those of the names. Each call of a function is logged. If naps says
// so, it takes longer than a run takes before it is claimed. nil says never.
func relayObservers(log *journal, names []string, naps func() bool) []percolator.Observer {
	var all []percolator.Observer
	add := func(name, column string, f func(t *txn, row string) error) {
		if !slices.Contains(names, name) {
			return
		}
		all = append(all, percolator.Observer{
			Name: name, Table: tableBaton, Column: column, Timeout: txnTimeout, MaxAttempts: 1 << 20,
			Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
				log.write(line{Kind: lineCall, Text: name})
				if naps != nil && naps() {
					if err := contexts.Sleep(ctx, time.Second+time.Duration(rand.Int64N(int64(1500*time.Millisecond)))); err != nil {
						return err
					}
				}
				return f(&txn{Txn: tx, ctx: ctx}, c.Row)
			},
		})
	}
	add(carryName, "head", func(t *txn, row string) error {
		seen, err := t.relayed(carryName, row, "head")
		if err != nil {
			return err
		}
		return t.put(tableBaton, row, "tail", seen)
	})
	add(noteName, "head", func(t *txn, row string) error {
		_, err := t.relayed(noteName, row, "head")
		return err
	})
	add(receiveName, "tail", func(t *txn, row string) error {
		_, err := t.relayed(receiveName, row, "tail")
		return err
	})
	return all
}

// relayed records a run of an observer for a row, and returns what it has seen. What it reads
// and writes is judged at the end, by what is in the store.
func (t *txn) relayed(observer, row, column string) (seen string, err error) {
	value, err := t.quiet(tableBaton, row, column)
	if err != nil {
		return "", err
	}
	if value == nil {
		return "", fmt.Errorf("%w: %s of %s is not there, and %s was called for it", errIntegrity, column, row, observer)
	}
	for _, table := range []string{tableRelayRuns, tableRelayed} {
		if err := t.put(table, runRow(observer+":"+row, t.start()), "seen", *value); err != nil {
			return "", err
		}
	}
	return *value, nil
}

// relayRuns are the committed runs of an observer for each row, oldest first.
func relayRuns(f *final, observer string) map[string][]ledgerRun {
	runs := map[string][]ledgerRun{}
	for row, all := range runsIn(f, tableRelayRuns) {
		if of, cell, ok := strings.Cut(row, ":"); ok && of == observer {
			runs[cell] = all
		}
	}
	return runs
}

// judgeRelay makes sure that every change was seen by a run of each of its observers, that
// no two runs of one took effect for the same change, and that each run took effect as a
// whole.
func judgeRelay(h *history, f *final) (looked int, bad []string) {
	changes := changesOf(h, tableBaton, opWrite)
	one, other := runsIn(f, tableRelayRuns), runsIn(f, tableRelayed)
	for _, row := range slices.Sorted(maps.Keys(union(one, other))) {
		if !slices.Equal(one[row], other[row]) {
			bad = append(bad, fmt.Sprintf("runs for %s are torn: %d have left a row in one table, and %d in the other", row, len(one[row]), len(other[row])))
		}
	}
	carried, noted, received := relayRuns(f, carryName), relayRuns(f, noteName), relayRuns(f, receiveName)
	for i := range relayCells {
		c := cellOf(batonCell(i))
		newest := change{}
		known := map[string]bool{}
		for _, ch := range changes[c.Row] {
			known[ch.value] = true
			if ch.by.Outcome != committed {
				continue
			}
			looked++
			if ch.commit > newest.commit {
				newest = ch
			}
		}
		head, tail := f.cells[nameOf(c)], f.cells[tableBaton+"/"+c.Row+"/tail"]
		for observer, rs := range map[string][]ledgerRun{carryName: carried[c.Row], noteName: noted[c.Row]} {
			if newest.commit > 0 && (len(rs) == 0 || rs[len(rs)-1].start < newest.commit) {
				bad = append(bad, fmt.Sprintf("no run of %s has seen the change of %s by %s at %d", observer, c.Row, newest.by.id(), newest.commit))
			}
			for _, r := range rs {
				if !known[r.seen] {
					bad = append(bad, fmt.Sprintf("the run of %s for %s at %d saw %q, which nobody wrote", observer, c.Row, r.start, r.seen))
				}
			}
			bad = append(bad, judgeRuns(observer, c.Row, head, rs)...)
		}
		rs := received[c.Row]
		bad = append(bad, judgeRuns(receiveName, c.Row, tail, rs)...)
		if n := len(carried[c.Row]); n > 0 && (len(rs) == 0 || rs[len(rs)-1].seen != carried[c.Row][n-1].seen) {
			bad = append(bad, fmt.Sprintf("%s has not seen what %s wrote of %s last, %q", receiveName, carryName, c.Row, carried[c.Row][n-1].seen))
		}
		// What was received was carried, and in that order.
		at := 0
		for _, r := range rs {
			for at < len(carried[c.Row]) && carried[c.Row][at].seen != r.seen {
				at++
			}
			if at == len(carried[c.Row]) {
				bad = append(bad, fmt.Sprintf("%s saw %q of %s at %d, which %s had not written after what it saw before", receiveName, r.seen, c.Row, r.start, carryName))
				break
			}
		}
	}
	return looked, bad
}

// union has the keys of both.
func union(a, b map[string][]ledgerRun) map[string][]ledgerRun {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return both
}

// judgeRuns judges the runs of one observer for one row, of which now is the last value that
// it was to see.
func judgeRuns(observer, row, now string, rs []ledgerRun) (bad []string) {
	if len(rs) == 0 {
		return nil
	}
	if last := rs[len(rs)-1]; last.seen != now {
		bad = append(bad, fmt.Sprintf("the last run of %s for %s, at %d, saw %q, and %q is there", observer, row, last.start, last.seen, now))
	}
	for k := 1; k < len(rs); k++ {
		if rs[k].seen == rs[k-1].seen {
			bad = append(bad, fmt.Sprintf("two runs of %s, at %d and %d, took effect for the same change of %s, %q", observer, rs[k-1].start, rs[k].start, row, rs[k].seen))
		}
	}
	return bad
}

// waste counts the calls and the committed runs of each observer of the relay.
func waste(h *history, f *final) map[string][2]int {
	all := map[string][2]int{}
	for _, name := range []string{carryName, noteName, receiveName} {
		runs := 0
		for _, rs := range relayRuns(f, name) {
			runs += len(rs)
		}
		all[name] = [2]int{h.Calls[name], runs}
	}
	return all
}
