package explore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// touch is something that a call reads or changes. A row of "" is a whole table, a
// table of "" is every one.
type touch struct {
	table, row string
	write      bool
}

func (a *touch) conflicts(b *touch) bool {
	return (a.write || b.write) && (a.table == b.table || a.table == "" || b.table == "") &&
		(a.row == b.row || a.row == "" || b.row == "")
}

// What stands among touches for what is no row.
const (
	oracleTable  = "\x00oracle"
	durableTable = "\x00durable" // which deferred batches a crash would lose
)

// choice is one thing that can happen next.
type choice struct {
	label   string
	client  int    // -1 for what belongs to nobody
	request string // parts of one request may come in any order
	fault   bool
	all     bool // touches everything
	touches []touch
	do      func()
}

// independent tells that two choices lead to the same state in either order.
func (c *choice) independent(o *choice) bool {
	if c.all || o.all || c.fault && o.fault {
		return false
	}
	if c.client >= 0 && c.client == o.client && c.request != o.request {
		return false
	}
	for i := range c.touches {
		for j := range o.touches {
			if c.touches[i].conflicts(&o.touches[j]) {
				return false
			}
		}
	}
	return true
}

// request is a call of a client, in one or more parts that are carried out one by
// one.
type request struct {
	client *Client // nil once its sender has given up
	label  string
	parts  []part
	done   chan error // nil: every part is done; else what the caller is told
	due    time.Time  // of a sleep: its end
	sleep  bool
	write  bool
	scans  bool // rows that a program has
	ctx    context.Context
}

type part struct {
	label   string
	touches []touch
	do      func()
	done    bool
	due     time.Time // it does not arrive before
	// may tells, where it is not nil, whether the part can be carried out: what it waits for has happened.
	may func() bool
	// abandon is called, where it is not nil, if the part will never arrive.
	abandon func()
}

// stallsFor is how long a call takes that stalls: longer than some clients live.
const stallsFor = 3 * time.Second

// stalls returns how many calls like this one may stall yet. w.mu is held.
func (w *world) stalls(r *request) *int {
	if w.program.Behind > 0 && (!r.scans || !r.client.waits) {
		return new(int)
	}
	return &w.left.Stall
}

// stallUntil keeps the parts that have not arrived from arriving before due.
func (r *request) stallUntil(due time.Time) {
	for i := range r.parts {
		if !r.parts[i].done {
			r.parts[i].due = due
		}
	}
}

// ready tells that a part can arrive: it has not, its time has come, and nothing is in its way.
func (p *part) ready(now time.Time) bool {
	return !p.done && !p.due.After(now) && (p.may == nil || p.may())
}

// abandon tells the parts that have not arrived that they never will.
func (r *request) abandon() {
	for i := range r.parts {
		if p := &r.parts[i]; !p.done && p.abandon != nil {
			p.abandon()
		}
	}
}

// next returns when the next thing happens that only waits for time to pass: the end
// of a sleep, or the arrival of the first part that is not ready. ok is false for a
// request that waits for nothing.
func (r *request) next(now time.Time) (due time.Time, ok bool) {
	if r.sleep {
		return r.due, true
	}
	for i := range r.parts {
		if p := &r.parts[i]; !p.done && p.due.After(now) && (!ok || p.due.Before(due)) {
			due, ok = p.due, true
		}
	}
	return due, ok
}

// schedule lets things happen until every client has ended.
func (w *world) schedule(choose chooser) error {
	for {
		synctest.Wait()
		enabled, ended := w.enabled()
		if ended {
			return nil
		}
		if len(enabled) == 0 {
			return fmt.Errorf("%w: nothing can happen", errStuck)
		}
		if w.steps++; w.steps > maxSteps {
			return fmt.Errorf("%w within %d calls", errStuck, maxSteps)
		}
		i := 0
		if len(enabled) > 1 || !enabled[0].forced() {
			var err error
			if i, err = choose(enabled); err != nil {
				return err
			}
		}
		w.script = append(w.script, enabled[i].label)
		w.trace.add(&enabled[i])
		enabled[i].do()
	}
}

// forced tells that a choice is none: the passing of time when all wait for it.
func (c *choice) forced() bool { return c.client < 0 && c.all && !c.fault }

// enabled lists what can happen, plain calls first.
func (w *world) enabled() (all []choice, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ended = true
	for _, c := range w.clients {
		ended = ended && (c.ended || c.dead)
	}
	if ended {
		return nil, true
	}
	calls := w.calls()
	var faults []choice
	for _, r := range calls {
		client := -1
		if r.client != nil {
			client = r.client.id
		}
		base := choice{client: client, request: r.label}
		for i := range r.parts {
			if p := &r.parts[i]; p.ready(w.now) {
				c := base
				c.label, c.touches, c.do = r.labelOf(p), p.touches, func() { w.finish(r, p) }
				all = append(all, c)
			}
		}
		if r.client != nil { // what nobody waits for may never arrive
			base.fault = true
			faults = w.faults(faults, r, base)
		}
	}
	working := slices.ContainsFunc(calls, func(r *request) bool { return r.client != nil })
	faults = append(faults, w.deaths(calls)...)
	faults = append(faults, w.moves(calls)...)
	if len(all) > 0 {
		faults = append(faults, w.shared()...)
	}
	if w.left.Slow > 0 && working {
		faults = append(faults, w.slow()...)
		slices.SortFunc(faults, func(a, b choice) int { return strings.Compare(a.label, b.label) })
	}
	all = append(all, faults...)
	if working {
		return all, false
	}
	// Time passes when everybody waits for it.
	all = append(all, w.passage()...)
	return all, false
}

// calls lists the requests of which some part can arrive, by their labels. In a serial
// program they are the first of each client.
func (w *world) calls() []*request {
	calls := slices.DeleteFunc(slices.Clone(w.requests), func(r *request) bool {
		return r.sleep || !slices.ContainsFunc(r.parts, func(p part) bool { return p.ready(w.now) })
	})
	slices.SortFunc(calls, func(a, b *request) int { return strings.Compare(a.label, b.label) })
	if w.program.Serial {
		first := map[*Client]bool{}
		calls = slices.DeleteFunc(calls, func(r *request) bool {
			waits := r.client != nil && first[r.client]
			first[r.client] = true
			return waits
		})
	}
	return calls
}

// deaths lists the deaths of clients that have calls under way: those never arrive. If they
// do, that comes before.
func (w *world) deaths(calls []*request) (faults []choice) {
	if w.left.Die > 0 {
		for _, c := range w.clients {
			if slices.ContainsFunc(calls, func(r *request) bool { return r.client == c }) {
				faults = append(faults, choice{label: c.Name + " dies", client: c.id, fault: true, do: func() {
					w.left.Die--
					w.fired["die"]++
					c.die()
				}})
			}
		}
	}
	return faults
}

// shared lists the faults that every client notices.
func (w *world) shared() (faults []choice) {
	if w.left.Expire > 0 {
		faults = append(faults, choice{label: "every lease expires", client: -1, fault: true, all: true, do: func() {
			w.left.Expire--
			w.fired["expire"]++
			w.advance(max(w.program.Stall, sessionLease+lockExpiry+time.Second))
		}})
	}
	if w.left.Crash > 0 {
		for i := range w.stores {
			label := "the store crashes"
			if len(w.stores) > 1 {
				label = "the store " + w.stores[i].name + " crashes"
			}
			faults = append(faults, choice{label: label, client: -1, fault: true, all: true, do: func() {
				w.left.Crash--
				w.fired["crash"]++
				w.stores[i].Crash()
			}})
		}
	}
	return faults
}

// slow lists the sleeps that can end while somebody else, who has something to do, is slow.
func (w *world) slow() (faults []choice) {
	for _, r := range w.requests {
		if r.sleep {
			faults = append(faults, choice{label: "meanwhile, time passes for " + r.label, client: -1, fault: true, all: true, do: func() {
				w.left.Slow--
				w.fired["slow"]++
				w.pass(r, r.due)
			}})
		}
	}
	return faults
}

// passage lets time pass until the first thing happens that only waits for it.
func (w *world) passage() []choice {
	var first *request
	var soonest time.Time
	for _, r := range w.requests {
		due, ok := r.next(w.now)
		if ok && (first == nil || due.Before(soonest) || due.Equal(soonest) && r.label < first.label) {
			first, soonest = r, due
		}
	}
	if first != nil {
		return []choice{{label: "time passes for " + first.label, client: -1, all: true, do: func() { w.pass(first, soonest) }}}
	}
	return nil
}

// pass lets time go on until a request's due, which ends it if it is a sleep.
func (w *world) pass(r *request, due time.Time) {
	w.mu.Lock()
	if due.After(w.now) {
		w.now = due
	}
	if !r.sleep {
		w.mu.Unlock()
		return
	}
	w.drop(r)
	w.mu.Unlock()
	r.done <- nil
}

func (w *world) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *world) drop(r *request) {
	w.requests = slices.DeleteFunc(w.requests, func(o *request) bool { return o == r })
}

// finish carries out a part, and answers when it was the last.
func (w *world) finish(r *request, p *part) {
	p.do()
	p.done = true
	if slices.ContainsFunc(r.parts, func(p part) bool { return !p.done }) {
		return
	}
	w.mu.Lock()
	w.drop(r)
	w.mu.Unlock()
	if r.client != nil {
		r.done <- nil
	}
}

// giveUp tells a request's sender that it failed. What was not carried out is lost,
// or left under way.
func (w *world) giveUp(r *request, err error, underWay bool) {
	w.mu.Lock()
	w.drop(r)
	if underWay {
		late := &request{label: "late: " + r.label, write: r.write}
		for _, p := range r.parts {
			if !p.done {
				if w.left.Stall > 0 {
					p.due = w.now.Add(stallsFor)
				}
				late.parts = append(late.parts, p)
			}
		}
		w.left.Stall = max(w.left.Stall-1, 0)
		w.requests = append(w.requests, late)
	} else {
		r.abandon()
	}
	w.mu.Unlock()
	r.done <- err
}

// labelOf names the arrival of a part.
func (r *request) labelOf(p *part) string {
	if len(r.parts) > 1 {
		return r.label + " " + p.label
	}
	return r.label
}

// faults adds what can go wrong with a request; base is what such choices have in
// common.
func (w *world) faults(list []choice, r *request, base choice) []choice {
	add := func(label, kind string, left *int, touches []touch, do func()) {
		if *left > 0 {
			c := base
			c.label, c.touches = label, touches
			c.do = func() {
				*left--
				w.fired[kind]++
				do()
			}
			list = append(list, c)
		}
	}
	add(r.label+" fails", "fail", &w.left.Fail, nil, func() { w.giveUp(r, errInjected, false) })
	add(r.label+" takes its time", "stall", w.stalls(r), nil, func() { r.stallUntil(w.time().Add(cmp.Or(w.program.Behind, stallsFor))) })
	if !r.write {
		return list // the loss of a read's reply is no more than its failure
	}
	lost := fmt.Errorf("%w: injected", rowstore.ErrAmbiguous)
	undone := 0
	for i := range r.parts {
		if !r.parts[i].done {
			undone++
		}
	}
	// Who gives up for good is not told what became of the call, and waits for nothing
	// more.
	if stop, ok := r.ctx.Value(patience{}).(context.CancelFunc); ok {
		add(r.label+" is given up for good", "cancel", &w.left.Cancel, nil, func() {
			stop()
			w.giveUp(r, lost, true)
		})
		for i := range r.parts {
			if p := &r.parts[i]; undone == 1 && p.ready(w.now) {
				add(r.labelOf(p)+" and its caller gives up for good", "cancel", &w.left.Cancel, p.touches, func() {
					p.do()
					p.done = true
					stop()
					w.giveUp(r, lost, false)
				})
			}
		}
	}
	add(r.label+" is lost", "lose", &w.left.Lose, nil, func() { w.giveUp(r, lost, false) })
	add(r.label+" is given up under way", "late", &w.left.Late, nil, func() { w.giveUp(r, lost, true) })
	add(r.client.Name+" dies with "+r.label+" under way", "leave", &w.left.Leave, nil, func() {
		w.giveUp(r, errDead, true)
		r.client.die()
	})
	for i := range r.parts {
		p := &r.parts[i]
		if !p.ready(w.now) {
			continue
		}
		if undone == 1 {
			add(r.labelOf(p)+" and its reply is lost", "lose", &w.left.Lose, p.touches, func() {
				p.do()
				p.done = true
				w.giveUp(r, lost, false)
			})
		}
		add(r.labelOf(p)+" and arrives again later", "twice", &w.left.Twice, p.touches, func() {
			w.mu.Lock()
			w.requests = append(w.requests, &request{label: "again: " + r.labelOf(p), write: true, parts: []part{*p}})
			w.mu.Unlock()
			w.finish(r, p)
		})
	}
	return list
}
