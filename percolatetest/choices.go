package percolatetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/percolator"
)

// choice is one thing that can happen next.
type choice struct {
	label string
	actor *actor // nil for a run that begins
	who   string
	kind  kind
	rows  []string // of a commit in one phase: those that it writes or looks at
	all   bool     // of a commit in two phases, which may look at any row
	do    func()
}

type kind int

const (
	beginning  kind = iota // a snapshot is taken
	committing             // a commit goes through or is refused
	fault
	passing // the time of a timer comes
)

// independent tells that two choices lead to the same state in either order. The states in
// between differ, and are met all the same: sleep sets leave out orders, never states. So
// Always sees each of them.
func (c *choice) independent(o *choice) bool {
	switch {
	case c.who == o.who || c.kind != o.kind || c.kind == fault || c.kind == passing:
		return false
	case c.kind == beginning:
		return true
	}
	return !c.all && !o.all && !slices.ContainsFunc(c.rows, func(row string) bool { return slices.Contains(o.rows, row) })
}

// choices lists what can happen next: first what the actor of the last choice does next, then
// the others, then faults.
func (w *world) choices(ctx context.Context) (all []choice) {
	var faults []choice
	for _, a := range w.actors {
		a.mu.Lock()
		s := a.stop
		a.mu.Unlock()
		if s == nil {
			continue
		}
		add := func(label string, k kind, v verdict, left *int) {
			c := choice{label: a.name + ": " + label, actor: a, who: a.name, kind: k, rows: rowsOf(s), all: !s.onePhase, do: func() {
				if left != nil {
					*left--
				}
				a.release(v)
			}}
			if k == fault {
				faults = append(faults, c)
			} else {
				all = append(all, c)
			}
		}
		own := ""
		if s.own {
			own = "own "
		}
		if s.muts == nil {
			add(own+"snapshot", beginning, goesOn, nil)
			continue
		}
		add(own+"commit", committing, goesOn, nil)
		if !s.onePhase {
			continue
		}
		if i, _ := firstCondition(s.muts); i >= 0 && w.budget.Conflicts > 0 {
			add(own+"commit meets a conflict", fault, conflict, &w.budget.Conflicts)
		}
		if startOf(s.muts) != 0 && w.budget.Undetermined > 0 {
			add(own+"commit is undetermined and took effect", fault, lostAfter, &w.budget.Undetermined)
			add(own+"commit is undetermined and took no effect", fault, lostBefore, &w.budget.Undetermined)
		}
		if w.budget.Deaths > 0 {
			add("dies after its "+own+"commit", fault, diesAfter, &w.budget.Deaths)
			add("dies before its "+own+"commit", fault, dies, &w.budget.Deaths)
		}
	}
	for _, c := range w.beginnings(ctx) {
		if c.kind == fault {
			faults = append(faults, c)
		} else {
			all = append(all, c)
		}
	}
	if !w.timer.due.IsZero() && w.fired < w.p.Timers {
		all = append(all, choice{label: fmt.Sprintf("clock: the timer of %v is due", w.timer.cell), who: "clock", kind: passing, do: w.fire})
	}
	if i := slices.IndexFunc(all, func(c choice) bool { return c.actor != nil && c.actor == w.last }); i > 0 {
		c := all[i]
		all = slices.Insert(slices.Delete(all, i, i+1), 0, c)
	}
	return append(all, faults...)
}

// stands tells that somebody stands between two steps.
func (w *world) stands() bool {
	return slices.ContainsFunc(w.actors, func(a *actor) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.stop != nil
	})
}

// beginnings lists the runs that can begin. One that was to come again later is like a fault while others stand still: they
// are slow. It is bounded, because two that wait for each other's leases could go on so without an end.
func (w *world) beginnings(ctx context.Context) (list []choice) {
	for _, r := range w.left {
		o := &w.p.Observers[slices.IndexFunc(w.p.Observers, func(o percolator.Observer) bool { return o.Name == r.Observer })]
		running := map[string]bool{}
		same, all := 0, 0 // runs under way: of the same cell, of the observer
		for _, a := range w.actors {
			if a.run == nil || a.run.Observer != r.Observer {
				continue
			}
			running[a.name] = true
			if all++; a.run.Cell == r.Cell {
				same++
			}
		}
		if same >= w.p.Workers || o.Concurrency == 1 && all >= w.p.Workers {
			continue
		}
		// The worker with the lowest number that does not run it.
		name := fmt.Sprintf("observer %s on %v", r.Observer, r.Cell)
		for first, n := name, 2; running[name]; n++ {
			name = fmt.Sprintf("%s, worker %d", first, n)
		}
		who := name
		if o.Concurrency == 1 {
			who = r.Observer // one that begins may keep another from it
		}
		c := choice{label: name + ": snapshot", who: who, kind: beginning, do: func() { w.begin(ctx, name, r) }}
		if w.later[r] && w.stands() {
			if w.retries <= 0 {
				continue
			}
			c.label, c.kind = c.label+", again", fault
			c.do = func() { w.retries--; w.begin(ctx, name, r) }
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b choice) int { return strings.Compare(a.label, b.label) })
	return list
}

// begin starts a run.
func (w *world) begin(ctx context.Context, name string, r coretest.Run) {
	a := w.actor(name)
	a.run = &r
	w.last = a
	delete(w.later, r)
	ctx = context.WithValue(ctx, actorKey{}, a)
	w.start(a, func() error {
		// Its outcome shows in what is left for the observer.
		wait, err := coretest.Attempt(ctx, w.runner, r)
		if err != nil {
			w.note("the worker will try again: %v", firstLine(err))
		}
		if a.failure != nil || wait > 0 {
			// An attempt that only found that it is too early belongs to the one that comes after it.
			a.comesLater(a.failure != nil)
			time.Sleep(wait + afterFailure)
		}
		if a.failure == nil || w.p.AllowParked {
			return nil
		}
		parked, err := w.db.Parked(ctx)
		if err != nil {
			return err
		}
		infos, err := w.db.Observers(ctx)
		if err == nil && slices.ContainsFunc(parked, func(p percolator.ParkedRun) bool { return p.Cell == r.Cell && isOf(infos, p, r.Observer) }) {
			err = fmt.Errorf("it was parked after its last attempt: %w", a.failure)
		}
		return err
	})
}

// fire lets the time pass until the next timer is due.
func (w *world) fire() {
	w.fired++
	w.last, w.changed = nil, true
	time.Sleep(time.Until(w.timer.due))
}

// rowsOf names the rows that a commit has to do with.
func rowsOf(s *stop) []string {
	rows := make([]string, len(s.muts))
	for i := range s.muts {
		rows[i] = s.muts[i].Table + "\x00\x00" + s.muts[i].Row
	}
	return rows
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
