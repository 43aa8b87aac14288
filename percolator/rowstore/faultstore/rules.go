package faultstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/arena"
)

// Rule says what happens to the calls that it matches. It comes before OnCall and the
// rates: for a call that a rule strikes, neither is asked.
type Rule struct {
	// Match chooses calls; nil chooses all. It is called with a lock held, so it must be
	// quick and must not use the Store.
	Match func(*Call) bool
	// Skip is how many calls that match go by before the first one is struck.
	Skip int
	// Times is how many calls are struck. 0 means one, and a negative number all.
	Times int
	// Fault happens to each of them, unless Before is set.
	Fault Fault
	// Before decides what happens to a call, before it is sent. It is called in the
	// goroutine of the call with no lock held, so it may block, and use the inner store.
	Before func(ctx context.Context, c *Call) Fault
	// After is called once the store has answered a call, before the caller knows the
	// answer; of a Scan or Tables, when everything was yielded. It may do what Before may.
	After func(ctx context.Context, c *Call)
}

// Added is a Rule that was added to a Store.
type Added struct {
	f      *Store
	rule   Rule
	struck int
}

// Struck tells how many calls the rule has struck so far.
func (a *Added) Struck() int {
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	return a.struck
}

// Remove removes the rule, and tells how many calls it has struck.
func (a *Added) Remove() int {
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	a.f.rules = slices.DeleteFunc(a.f.rules, func(other *Added) bool { return other == a })
	return a.struck
}

// AddRule adds a rule. Of several that match a call the oldest one strikes it.
func (f *Store) AddRule(r Rule) *Added {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.add(r)
}

func (f *Store) add(r Rule) *Added {
	if r.Times == 0 {
		r.Times = 1
	}
	a := &Added{f: f, rule: r}
	f.rules = append(f.rules, a)
	return a
}

// SetRules replaces all rules, by none if there are no arguments. Calls that a rule has
// struck already go on as it said.
func (f *Store) SetRules(rules ...Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
	for _, r := range rules {
		f.add(r)
	}
}

// strike finds the rule that strikes a call. f.mu is held.
func (f *Store) strike(call *Call) {
	if len(f.rules) == 0 && f.opts.Watch == nil {
		return
	}
	call.keep()
	if f.opts.Watch != nil {
		f.opts.Watch(call)
	}
	for _, a := range f.rules {
		r := &a.rule
		if r.Times == 0 || r.Match != nil && !r.Match(call) {
			continue
		}
		if r.Skip > 0 {
			r.Skip--
			continue
		}
		if r.Times > 0 {
			r.Times--
		}
		a.struck++
		call.rule = r
		return
	}
}

// Held is a call that stands still until a test lets it go on. One that stops several
// calls must be released for each.
type Held struct {
	reached chan *Call
	free    chan Fault
}

func newHeld() *Held { return &Held{make(chan *Call, 1), make(chan Fault, 1)} }

// Reached yields the call once it stands still.
func (h *Held) Reached() <-chan *Call { return h.reached }

// Release lets the call go on, or go by if it was not made yet, and says what happens to
// it. A second Release before the call goes on does nothing.
func (h *Held) Release(fault Fault) {
	select {
	case h.free <- fault:
	default:
	}
}

func (h *Held) wait(ctx context.Context, c *Call) Fault {
	select {
	case h.reached <- c:
	case <-ctx.Done():
		return Fault{}
	}
	select {
	case fault := <-h.free:
		return fault
	case <-ctx.Done():
		return Fault{}
	}
}

// Hold adds a rule that stops each call which it strikes before it is sent. A call goes on
// when it is released, or when its context ends. The rule's own Fault, Before and After
// are not used.
func (f *Store) Hold(r Rule) *Held {
	h := newHeld()
	r.Before, r.After = h.wait, nil
	f.AddRule(r)
	return h
}

// HoldReply adds a rule that stops each call which it strikes between the store's answer
// and its caller, to which the rule's Fault happens. The Fault of Release, and the rule's
// own Before and After, are not used.
func (f *Store) HoldReply(r Rule) *Held {
	h := newHeld()
	r.Before, r.After = nil, func(ctx context.Context, c *Call) { h.wait(ctx, c) }
	f.AddRule(r)
	return h
}

// keep copies what the call refers to, so that rules may keep it.
func (c *Call) keep() {
	c.Reads = arena.KeepReads(nil, &arena.Arena{}, c.Reads)
	c.Asks = arena.KeepSnapshotReads(nil, &arena.Arena{}, c.Asks)
	c.Muts = arena.KeepMutations(nil, &arena.Arena{}, c.Muts)
	c.Groups = arena.KeepGroups(nil, &arena.Arena{}, c.Groups)
	c.Range.Selectors = slices.Clone(c.Range.Selectors)
}

// Mutations are those of an Apply, or of all groups of a Group.
func (c *Call) Mutations() []rowstore.Mutation {
	if c.Kind != CallGroup {
		return c.Muts
	}
	var muts []rowstore.Mutation
	for i := range c.Groups {
		muts = append(muts, c.Groups[i].Mutations...)
	}
	return muts
}

// Again sends an Apply or Group that a rule was told about to the store, as a second
// arrival of the request, or as a late first one. It tells how many of its mutations, or
// groups, were applied. Nothing goes wrong with it, and no rule is told about it.
func (c *Call) Again(ctx context.Context) (applied int, err error) {
	switch c.Kind {
	case CallApply:
		outs, err := c.f.inner.Apply(ctx, c.Muts, c.Opts)
		for i := range outs {
			if outs[i].Applied {
				applied++
			}
		}
		return applied, err
	case CallGroup:
		g, _ := rowstore.Unwrap[rowstore.Grouper](c.f.inner)
		outs, err := g.Group(ctx, c.Groups)
		for i := range outs {
			if outs[i].Applied {
				applied++
			}
		}
		return applied, err
	}
	return 0, fmt.Errorf("faultstore: %w: a second arrival of a %s", rowstore.ErrInvalid, c.Kind)
}

// Outlive lets every change (Apply and Group) that is sent from now on be carried out
// even when its context ends, and Settle wait for it. A store that gives up a call with
// its context may carry it out at any later time. For a test that looks at what a dead
// client has left, that is too late.
func (f *Store) Outlive() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.outlive = true
}

// Settle crashes the client, and waits for its changes that were sent after Outlive.
func (f *Store) Settle() {
	f.CrashClient()
	f.sent.Wait()
}

// Crashed is closed when the client crashes.
func (f *Store) Crashed() <-chan struct{} { return f.died }

// crash makes every later call fail. f.mu is held.
func (f *Store) crash() {
	if !f.crashed {
		f.crashed = true
		close(f.died)
	}
}

// leave returns the context for a change that is sent now. done is called when the store
// has answered.
func (f *Store) leave(ctx context.Context, fault Fault) (_ context.Context, done func(), err error) {
	if fault.Applied {
		ctx = context.WithoutCancel(ctx) // it was sent before anything ended
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.outlive:
		return ctx, func() {}, nil
	case f.crashed:
		return nil, nil, errCrashed
	case f.closed:
		return nil, nil, fmt.Errorf("faultstore: %w", rowstore.ErrClosed)
	}
	f.sent.Add(1)
	return context.WithoutCancel(ctx), f.sent.Done, nil
}
