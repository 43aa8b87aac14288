package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// GroupKey implements rowstore.Grouper: any rows may share a group.
func (s *plainStore) GroupKey(table, row string) string { return "postgres" }

// AssignsTimestamps implements rowstore.Grouper: yes. Whoever reads the rows of a group, and may have drawn a later
// timestamp, waits until they are visible; see drawn_sql.go.
func (s *plainStore) AssignsTimestamps(key string) bool { return key == "postgres" }

// task is a group of mutations, or a single one, and what became of it.
type task struct {
	muts  []rowstore.Mutation
	cells [2]int // its part of the work's cells
	sides [2]int // its part of the work's sides

	draws    bool // a timestamp, not after notAfter
	notAfter rowstore.Timestamp
	commit   rowstore.Timestamp // what it has drawn
	late     bool               // that was later

	done    bool // applied, late, failed and out are known
	applied bool
	failed  int // the mutation to which out belongs
	out     rowstore.Outcome
	inc     string // the store's incarnation
	err     error
}

// Apply implements rowstore.Store.
func (s *plainStore) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	ctx, done, err := s.gate.Begin(ctx, "apply")
	if err != nil {
		return nil, err
	}
	defer done()
	if err := rowstore.CheckBatch(muts); err != nil {
		return nil, fmt.Errorf("postgres: apply: %w", err)
	}
	if err := rowstore.CheckLimits(s.Limits(), muts); err != nil {
		return nil, fmt.Errorf("postgres: apply: %w", err)
	}
	if len(muts) == 0 {
		return nil, nil
	}
	tasks := make([]task, len(muts))
	for i := range muts {
		tasks[i].muts = muts[i : i+1]
	}
	var drawn *oracle.Timestamp
	if opts.AssignTimestamp && len(muts) <= step {
		drawn = new(oracle.Timestamp)
	}
	if err := s.perform(ctx, tasks, opts.Deferred, drawn); err != nil {
		return nil, s.gate.Fail("apply", err)
	}
	outs := make([]rowstore.Outcome, len(tasks))
	for i := range tasks {
		t := &tasks[i]
		outs[i] = t.out
		outs[i].Applied = t.applied
		outs[i].Incarnation = t.inc
		if drawn != nil && *drawn != 0 && t.applied {
			outs[i].Timestamp = *drawn + oracle.Timestamp(i) //nolint:gosec // few
		}
		if t.err != nil {
			outs[i] = rowstore.Outcome{Err: s.gate.Fail("apply", t.err)}
		}
	}
	return outs, nil
}

// Group implements rowstore.Grouper.
func (s *plainStore) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	ctx, done, err := s.gate.Begin(ctx, "group")
	if err != nil {
		return nil, err
	}
	defer done()
	if err := rowstore.CheckGroups(s, groups); err != nil {
		return nil, fmt.Errorf("postgres: group: %w", err)
	}
	for i := range groups {
		if err := rowstore.CheckLimits(s.Limits(), groups[i].Mutations); err != nil {
			return nil, fmt.Errorf("postgres: group: %w", err)
		}
	}
	if len(groups) == 0 {
		return nil, nil
	}
	tasks := make([]task, len(groups))
	for i := range groups {
		tasks[i].muts, tasks[i].draws, tasks[i].notAfter = groups[i].Mutations, groups[i].AssignTimestamp, groups[i].NotAfter
	}
	if err := s.perform(ctx, tasks, false, nil); err != nil {
		return nil, s.gate.Fail("group", err)
	}
	outs := make([]rowstore.GroupOutcome, len(tasks))
	for i := range tasks {
		t := &tasks[i]
		switch {
		case t.err != nil:
			outs[i] = rowstore.GroupOutcome{Err: s.gate.Fail("group", t.err)}
		case t.applied:
			outs[i] = rowstore.GroupOutcome{Applied: true, Commit: t.commit, Incarnation: t.inc}
		case t.late:
			outs[i] = rowstore.GroupOutcome{TooLate: true, Incarnation: t.inc}
		default:
			t.out.Incarnation = t.inc
			outs[i] = rowstore.GroupOutcome{Failed: t.failed, Outcome: t.out, Incarnation: t.inc}
		}
	}
	return outs, nil
}

// The most that one statement takes. The server limits lists to a gigabyte, and a statement
// holds the locks of all its rows until it ends.
const (
	maxBatchBytes = 8 << 20
	maxBatchCells = 4096
)

// perform runs tasks, in as few transactions as their kinds and sizes allow. It
// returns an error if there was one transaction only, or none did anything, and that failed; otherwise the
// error of a transaction is that of its tasks. drawn, which may be nil, gets the first
// of as many timestamps as there are tasks, if one fast statement did all of them, since
// the timestamps can be drawn with it then, after it. Else it gets 0.
func (s *plainStore) perform(ctx context.Context, tasks []task, deferred bool, drawn *oracle.Timestamp) (err error) {
	defer func() { s.pusher.add(newsOf(tasks, err)) }()
	var w work
	checks, fast, general := w.sort(tasks)
	var parts parts
	parts.do(checks, func(ts []*task) error { return s.check(ctx, ts, deferred, len(checks) < len(tasks)) })
	// The common case is that all go into one fast statement.
	if len(fast) > 0 && w.fits() {
		if len(fast) < len(tasks) {
			drawn = nil
		}
		parts.do(fast, func(ts []*task) error { return s.fast(ctx, &w, ts, deferred, drawn, nil) })
	} else {
		for _, ts := range chunks(fast) {
			parts.do(ts, func(ts []*task) error {
				var w work
				for _, t := range ts {
					w.compile(t)
				}
				return s.fast(ctx, &w, ts, deferred, nil, nil)
			})
		}
	}
	// What lost a race to another client is judged again, with the rows held.
	for _, t := range fast {
		if !t.done && t.err == nil {
			general = append(general, t)
			if drawn != nil {
				*drawn = 0 // this one will be applied after the draw
			}
		}
	}
	for _, ts := range chunks(general) {
		parts.do(ts, func(ts []*task) error { return s.general(ctx, ts, deferred, nil) })
	}
	for _, ts := range s.drawers(tasks) {
		parts.do(ts, func(ts []*task) error { return s.drawn(ctx, ts) })
	}
	// A part may be two transactions: what the first of them has done is no failure of the call.
	if parts.run == 1 && parts.failed == 1 && !slices.ContainsFunc(tasks, func(t task) bool { return t.done }) {
		return parts.last
	}
	return nil
}

// parts counts the transactions of a call.
type parts struct {
	run, failed int
	last        error // of the last one that failed
}

// do runs one transaction, and gives its error to those of its tasks that are not done and have none of their own.
func (p *parts) do(ts []*task, transaction func([]*task) error) {
	if len(ts) == 0 {
		return
	}
	p.run++
	err := transaction(ts)
	if err == nil {
		return
	}
	p.failed++
	p.last = err
	for _, t := range ts {
		if !t.done && t.err == nil {
			t.err = err
		}
	}
}

// chunks cuts tasks into parts that one statement can take.
func chunks(tasks []*task) [][]*task {
	var all [][]*task
	from, bytes, cells := 0, 0, 0
	for i, t := range tasks {
		b, c := 0, 0
		for j := range t.muts {
			m := &t.muts[j]
			c += len(m.Conditions) + len(m.Edits)
			for k := range m.Edits {
				b += len(m.Edits[k].Value)
			}
		}
		if i > from && (bytes+b > maxBatchBytes || cells+c > maxBatchCells) {
			all = append(all, tasks[from:i])
			from, bytes, cells = i, 0, 0
		}
		bytes += b
		cells += c
	}
	if from < len(tasks) {
		all = append(all, tasks[from:])
	}
	return all
}

// newsOf says what listeners must be woken for: rows with new notifications of tasks that
// were applied, or may have been.
func newsOf(ts []task, err error) []rowstore.Wake {
	var news kit.News
	for k := range ts {
		t := &ts[k]
		if !t.applied && !errors.Is(t.err, rowstore.ErrAmbiguous) && !errors.Is(err, rowstore.ErrAmbiguous) {
			continue
		}
		for i := range t.muts {
			news.Applied(&t.muts[i])
		}
	}
	return news.Take()
}
