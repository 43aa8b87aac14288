package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/percolate-go/percolate/percolator"
)

// The observers of the workloads. Their reads are logged as transactions that only
// read: they come from a snapshot whether or not the run commits. Their writes are
// judged at the end, by what is in the store.

const (
	tableRuns  = "runs"  // a row for each run of "audit" and "bell": CELL'S ROW:START
	tableTally = "tally" // how many of them each cell has had
	tableIndex = "index" // WORD:PAGE
	tableLinks = "links" // TO:FROM
	tableRank  = "rank"  // links to each page

	deletedValue = "-" // what audit writes for a cell without a value
)

func runRow(row string, start percolator.Timestamp) string {
	return fmt.Sprintf("%s:%020d", row, uint64(start))
}

// observerPrefix begins the workload of what an observer has read.
const observerPrefix = "observer "

// allObservers returns the observers of the workloads.
func allObservers(log *journal, chosen []workload) []percolator.Observer {
	all := observers(log, chosen)
	if has(chosen, relayName) {
		all = append(append(all, relayObservers(log, relaySets()[0], nil)...), passObservers()...)
	}
	return all
}

func has(chosen []workload, name string) bool {
	return slices.ContainsFunc(chosen, func(w workload) bool { return w.name == name })
}

// observers returns the observers that a worker process runs: all but those of the crew.
func observers(log *journal, chosen []workload) []percolator.Observer {
	var all []percolator.Observer
	add := func(name, table, column string, f func(t *txn, c percolator.Cell) error) {
		all = append(all, percolator.Observer{
			Name: name, Table: table, Column: column, Timeout: txnTimeout, MaxAttempts: 1 << 20,
			Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
				t := &txn{Txn: tx, ctx: ctx}
				began := monotonic()
				err := f(t, c)
				if errors.Is(err, errIntegrity) {
					log.write(line{Kind: lineBad, Text: name + ": " + err.Error()})
				}
				if err == nil && len(t.ops) > 0 {
					// Not judged in real time: the start was drawn before the function was called.
					log.write(line{
						Kind: lineDone, Workload: observerPrefix + name, Start: uint64(t.start()),
						Began: began, Ended: monotonic(), Ops: t.ops, Outcome: committed,
					})
				}
				return err
			},
		})
	}
	if has(chosen, "ledger") {
		add("audit", "ledger", "value", func(t *txn, c percolator.Cell) error {
			value, err := t.get(nameOf(c))
			if err != nil {
				return err
			}
			seen := deletedValue
			if value != nil {
				seen = *value
			}
			return t.account(c.Row, seen)
		})
		add("bell", "bell", "hint", func(t *txn, c percolator.Cell) error { return t.account(c.Row, "rung") })
	}
	if has(chosen, "webindex") {
		add("index", "page", "body", indexPage)
		add("rank", tableRank, "hint", rankPage)
	}
	return all
}

// The observers that follow do not log their reads and writes: those cells are judged
// at the end.

// quiet reads a cell, and does not log it.
func (t *txn) quiet(table, row, column string) (*string, error) {
	b, err := t.Get(t.ctx, percolator.Cell{Table: table, Row: row, Column: column})
	switch {
	case errors.Is(err, percolator.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	value, err := unpad(b)
	return &value, err
}

func (t *txn) put(table, row, column, value string) error {
	return t.Set(percolator.Cell{Table: table, Row: row, Column: column}, pad(value))
}

// account records a run in a row of its own, and counts it.
func (t *txn) account(row, seen string) error {
	n := 0
	tally, err := t.quiet(tableTally, row, "runs")
	if err == nil && tally != nil {
		n, err = numberOf(tally)
	}
	if err != nil {
		return err
	}
	if err := t.put(tableTally, row, "runs", strconv.Itoa(n+1)); err != nil {
		return err
	}
	return t.put(tableRuns, runRow(row, t.start()), "seen", seen)
}

// indexPage brings the index and the links of a page from the body that it was made
// from to the present one.
func indexPage(t *txn, c percolator.Cell) error {
	body, err := t.get(nameOf(c))
	if err != nil {
		return err
	}
	before, err := t.quiet("page", c.Row, "indexed")
	if err != nil {
		return err
	}
	newWords, newLinks, err := pageParts(body)
	if err != nil {
		return err
	}
	oldWords, oldLinks, err := pageParts(before)
	if err != nil {
		return err
	}
	change := func(table string, from, to []string, of func(string) error) error {
		for _, row := range from {
			if !slices.Contains(to, row) {
				if err := errors.Join(t.Delete(percolator.Cell{Table: table, Row: row + ":" + c.Row, Column: "x"}), of(row)); err != nil {
					return err
				}
			}
		}
		for _, row := range to {
			if !slices.Contains(from, row) {
				if err := errors.Join(t.put(table, row+":"+c.Row, "x", ""), of(row)); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := change(tableIndex, oldWords, newWords, func(string) error { return nil }); err != nil {
		return err
	}
	err = change(tableLinks, oldLinks, newLinks, func(to string) error {
		return t.Notify(percolator.Cell{Table: tableRank, Row: to, Column: "hint"})
	})
	if err != nil {
		return err
	}
	if body == nil {
		return t.Delete(percolator.Cell{Table: "page", Row: c.Row, Column: "indexed"})
	}
	return t.put("page", c.Row, "indexed", *body)
}

// rankPage counts the links to a page.
func rankPage(t *txn, c percolator.Cell) error {
	n := 0
	r := percolator.Range{Table: tableLinks, From: c.Row + ":", To: percolator.PrefixEnd(c.Row + ":")}
	for _, err := range t.Scan(t.ctx, r) {
		if err != nil {
			return err
		}
		n++
	}
	return t.put(tableRank, c.Row, "in", strconv.Itoa(n))
}
