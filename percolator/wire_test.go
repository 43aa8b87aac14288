package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A client's wire to the store of a world, the calls that go over it, and what a test
// can do to them.

// call is one request of a client.
type call struct {
	op     string // read, apply, group, scan, draw, flush
	reads  []rowstore.RowRead
	muts   []rowstore.Mutation // of an Apply, and of all groups of a Group
	opts   rowstore.ApplyOptions
	groups []rowstore.Group
	scan   rowstore.ScanRange

	all []rowstore.Mutation // what was sent, where only a part arrives

	mem  *rowstore.Memory
	rows []rowstore.Row
	outs []rowstore.Outcome
	gout []rowstore.GroupOutcome
	ts   Timestamp
}

// arrive lets the request arrive: also again, or late.
func (c *call) arrive(ctx context.Context) (err error) {
	switch c.op {
	case "read":
		c.rows, err = c.mem.Read(ctx, c.reads)
	case "apply":
		c.outs, err = c.mem.Apply(ctx, c.muts, c.opts)
	case "group":
		c.gout, err = c.mem.Group(ctx, c.groups)
	case "draw":
		c.ts, err = c.mem.Oracle().Draw(ctx, 1)
	case "flush":
		err = c.mem.Flush(ctx)
	}
	return err
}

// again is a second arrival of an Apply or Group, or a late first one. It tells
// how many of its parts were applied.
func (c *call) again(t testing.TB) (applied int) {
	t.Helper()
	twin := &call{op: c.op, muts: c.muts, opts: c.opts, groups: c.groups, mem: c.mem}
	require.NoError(t, twin.arrive(context.Background()))
	for _, o := range twin.outs {
		if o.Applied {
			applied++
		}
	}
	for _, o := range twin.gout {
		if o.Applied {
			applied++
		}
	}
	return applied
}

// edits tells whether a mutation of the call has an edit for which f holds.
func (c *call) edits(f func(m *rowstore.Mutation, e *rowstore.Edit) bool) bool {
	for i := range c.muts {
		for j := range c.muts[i].Edits {
			if f(&c.muts[i], &c.muts[i].Edits[j]) {
				return true
			}
		}
	}
	return false
}

func puts(family rowstore.Family) func(m *rowstore.Mutation, e *rowstore.Edit) bool {
	return func(m *rowstore.Mutation, e *rowstore.Edit) bool {
		return !reserved(m.Table) && e.Kind == rowstore.DoPut && e.Family == family
	}
}

// What a test looks for in the calls of a client.
type matcher func(*call) bool

// prewrites are calls that put locks where there are none.
func prewrites(c *call) bool {
	return c.op == "apply" && c.edits(puts(rowstore.Lock)) && !heartbeats(c)
}

func heartbeats(c *call) bool {
	return c.op == "apply" && c.edits(puts(rowstore.Lock)) && len(c.muts[0].Conditions) == 1 && c.muts[0].Conditions[0].Kind == rowstore.IfPresent
}

// commits are calls that put committed versions: a commit point, secondaries, a
// roll forward.
func commits(c *call) bool { return c.edits(puts(rowstore.Write)) }

// secondaries are a plain batch of commits without the row of the primary.
func secondaries(primary Cell) matcher {
	return func(c *call) bool {
		return c.op == "apply" && commits(c) && !on(primary)(c)
	}
}

// commitPoint commits the row of the primary.
func commitPoint(primary Cell) matcher {
	return func(c *call) bool { return commits(c) && on(primary)(c) }
}

// on are calls that change a row.
func on(cell Cell) matcher {
	return func(c *call) bool {
		return slices.ContainsFunc(c.muts, func(m rowstore.Mutation) bool { return m.Table == cell.Table && m.Row == cell.Row })
	}
}

func marks(c *call) bool { return c.edits(puts(rowstore.Rollback)) }

func op(name string) matcher { return func(c *call) bool { return c.op == name } }

func both(a, b matcher) matcher { return func(c *call) bool { return a(c) && b(c) } }

// commitDraw is the draw of a commit timestamp: one after a prewrite.
func (c *client) commitDraw() matcher {
	return func(x *call) bool {
		return x.op == "draw" && slices.ContainsFunc(c.wire.calls, prewrites)
	}
}

// verdict is what becomes of a call.
type verdict int

const (
	pass      verdict = iota
	lose              // it does not arrive; the client does not know that
	loseReply         // it arrives; the client does not know that
	refuse            // it fails, for certain
	die               // it does not arrive, and the client does nothing any more
	dieAfter          // it arrives, and the client does nothing any more
)

func (v verdict) String() string {
	return [...]string{"passed", "lost", "reply lost", "refused", "died before", "died after"}[v]
}

var (
	errNetwork = errors.New("test: the network failed")
	// A dead client's calls must end, and nothing in it must go on trying.
	errDead = fmt.Errorf("test: the client is dead, or was closed: %w", rowstore.ErrClosed)
)

// rule says what to do about calls that match: before one is sent, and between
// its arrival and its reply.
type rule struct {
	match  matcher
	skip   int // so many matches go by first
	times  int // so many are caught; 0 means one
	before func(ctx context.Context, c *call) verdict
	after  func(ctx context.Context, c *call)
}

// wire is a client's connection to the store. It is a Decorator, since it changes
// what calls come to, and offers all that Memory has.
type wire struct {
	mem    *rowstore.Memory
	placed func(table string) bool // not nil: it is a Placer

	mu     sync.Mutex
	rules  []*rule
	calls  []*call
	dead   bool
	closed bool // Close was called
	// What no client may do at all, checked in every test.
	primaries map[Timestamp]Cell
	decided   map[Timestamp]bool
	breaches  []string
}

var errLost = fmt.Errorf("test: no reply: %w", rowstore.ErrAmbiguous)

func (w *wire) on(r rule) *rule {
	if r.times == 0 {
		r.times = 1
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules = append(w.rules, &r)
	return &r
}

// verdict makes the next call that matches end so.
func (w *wire) verdict(match matcher, v verdict) {
	w.on(rule{match: match, before: func(context.Context, *call) verdict { return v }})
}

func (w *wire) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rules = nil
}

func (w *wire) kill() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
}

func (w *wire) isDead() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dead
}

// sent are the calls so far that match.
func (w *wire) sent(match matcher) []*call {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found []*call
	for _, c := range w.calls {
		if match(c) {
			found = append(found, c)
		}
	}
	return found
}

// rule finds what is to be done about a call, and counts it.
func (w *wire) rule(c *call) (*rule, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead || w.closed {
		return nil, false
	}
	w.calls = append(w.calls, c)
	w.watch(c)
	for _, r := range w.rules {
		if r.times == 0 || !r.match(c) {
			continue
		}
		if r.skip > 0 {
			r.skip--
			continue
		}
		r.times--
		return r, true
	}
	return nil, true
}

// watch notes calls that are wrong whatever the schedule: a mark, a roll back or a
// commit point that is deferred (A1), and a prewrite of a transaction whose commit
// was sent (C6). w.mu is held.
func (w *wire) watch(c *call) {
	if w.primaries == nil {
		w.primaries, w.decided = map[Timestamp]Cell{}, map[Timestamp]bool{}
	}
	breach := func(format string, args ...any) { w.breaches = append(w.breaches, fmt.Sprintf(format, args...)) }
	if c.opts.Deferred && c.edits(func(_ *rowstore.Mutation, e *rowstore.Edit) bool {
		return e.Family == rowstore.Rollback && e.Kind == rowstore.DoPut && c.edits(func(_ *rowstore.Mutation, o *rowstore.Edit) bool {
			return o.Family == rowstore.Lock && o.Kind == rowstore.DoDelete && o.TS == e.TS
		})
	}) {
		breach("a mark was deferred: %+v", c.muts)
	}
	c.edits(func(m *rowstore.Mutation, e *rowstore.Edit) bool {
		switch {
		case reserved(m.Table) && m.Table != tableParked || e.Kind != rowstore.DoPut:
		case e.Family == rowstore.Lock:
			l, err := decodeLock(e.Value)
			if err != nil {
				breach("%v", err)
				return false
			}
			w.primaries[e.TS] = l.primary
			if w.decided[e.TS] && !heartbeats(c) {
				breach("a prewrite of %d was sent after its commit", e.TS)
			}
		case e.Family == rowstore.Write:
			wv, err := decodeWrite(e.Value)
			if err != nil {
				breach("%v", err)
				return false
			}
			// A single step that names its latest timestamp cannot be applied after it
			// was refused, so that prewrites may follow.
			w.decided[wv.start] = w.decided[wv.start] || e.TS != rowstore.Drawn
			if p, ours := w.primaries[wv.start]; ours && c.opts.Deferred && p.rowName() == (rowName{m.Table, m.Row}) {
				breach("a commit point was deferred")
			}
		}
		return false
	})
}

func (w *wire) do(ctx context.Context, c *call) error {
	r, alive := w.rule(c)
	if !alive {
		return errDead
	}
	changes := c.op == "apply" || c.op == "group"
	v := pass
	if r != nil && r.before != nil {
		v = r.before(ctx, c)
	}
	if w.isDead() {
		return errDead
	}
	switch {
	case v == die:
		w.kill()
		return errDead
	case v == refuse || v == lose && !changes:
		return errNetwork
	case v == lose:
		return errLost
	}
	err := c.arrive(ctx)
	if r != nil && r.after != nil {
		r.after(ctx, c)
	}
	switch {
	case v == dieAfter:
		w.kill()
		return errDead
	case w.isDead():
		return errDead
	case v == loseReply && changes:
		return errLost
	case v == loseReply:
		return errNetwork
	}
	return err
}

func (w *wire) call(op string) *call { return &call{op: op, mem: w.mem} }

func (w *wire) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	c := w.call("read")
	c.reads = slices.Clone(reads)
	err := w.do(ctx, c)
	if err != nil {
		return nil, err
	}
	return c.rows, nil
}

func cloneMutations(muts []rowstore.Mutation) []rowstore.Mutation {
	muts = slices.Clone(muts)
	for i := range muts {
		muts[i].Conditions, muts[i].Edits = slices.Clone(muts[i].Conditions), slices.Clone(muts[i].Edits)
	}
	return muts
}

func (w *wire) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	c := w.call("apply")
	c.muts, c.opts = cloneMutations(muts), opts
	if err := w.do(ctx, c); err != nil {
		return nil, err
	}
	return c.outs, nil
}

func (w *wire) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	c := w.call("group")
	c.groups = slices.Clone(groups)
	for i := range c.groups {
		c.groups[i].Mutations = cloneMutations(groups[i].Mutations)
		c.muts = append(c.muts, c.groups[i].Mutations...)
	}
	if err := w.do(ctx, c); err != nil {
		return nil, err
	}
	return c.gout, nil
}

func (w *wire) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		c := w.call("scan")
		c.scan = s
		if err := w.do(ctx, c); err != nil {
			yield(rowstore.Row{}, err)
			return
		}
		w.mem.Scan(ctx, s)(yield)
	}
}

func (w *wire) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if err := w.do(ctx, w.call("tables")); err != nil {
			yield("", err)
			return
		}
		w.mem.Tables(ctx)(yield)
	}
}

func (w *wire) Flush(ctx context.Context) error { return w.do(ctx, w.call("flush")) }

func (w *wire) Draw(ctx context.Context, n int) (Timestamp, error) {
	if n != 1 {
		return 0, fmt.Errorf("test: a draw of %d", n)
	}
	c := w.call("draw")
	if err := w.do(ctx, c); err != nil {
		return 0, err
	}
	return c.ts, nil
}

// Close leaves the store to the other clients.
func (w *wire) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	return nil
}

type wireGrouper struct{ *wire }

func (w wireGrouper) GroupKey(table, row string) string { return w.mem.GroupKey(table, row) }
func (w wireGrouper) Draws(key string) bool             { return w.mem.Draws(key) }

type wireOracle struct{ *wire }

func (w wireOracle) Oracle() oracle.Oracle { return w.wire }

type wirePlacer struct{ *wire }

func (w wirePlacer) Authoritative(table string) bool { return w.placed(table) }

// Offer implements rowstore.Decorator.
func (w *wire) Offer(target any) bool {
	switch p := target.(type) {
	case *rowstore.Grouper:
		*p = wireGrouper{w}
	case *rowstore.Deferrer:
		*p = w
	case *rowstore.OracleProvider:
		*p = wireOracle{w}
	case *rowstore.Splitter:
		*p = w.mem
	case *rowstore.Waker:
		*p = w.mem
	case *rowstore.Limiter:
		*p = w.mem
	case *rowstore.Placer:
		if w.placed == nil {
			return false
		}
		*p = wirePlacer{w}
	default:
		return false
	}
	return true
}

// pause is a call that is held.
type pause struct {
	t       testing.TB
	reached chan *call
	free    chan verdict
}

// hold stops the next call that matches before it is sent.
func (c *client) hold(t testing.TB, match matcher) *pause {
	p := &pause{t: t, reached: make(chan *call, 1), free: make(chan verdict, 1)}
	c.wire.on(rule{match: match, before: func(ctx context.Context, c *call) verdict {
		p.reached <- c
		select {
		case v := <-p.free:
			return v
		case <-ctx.Done():
			return pass
		}
	}})
	t.Cleanup(func() { p.release(pass) })
	return p
}

// holdReply stops it between its arrival and its reply.
func (c *client) holdReply(t testing.TB, match matcher, v verdict) *pause {
	p := &pause{t: t, reached: make(chan *call, 1), free: make(chan verdict, 1)}
	c.wire.on(rule{match: match, before: func(context.Context, *call) verdict { return v }, after: func(ctx context.Context, c *call) {
		p.reached <- c
		select {
		case <-p.free:
		case <-ctx.Done():
		}
	}})
	t.Cleanup(func() { p.release(pass) })
	return p
}

// wait waits until the call is held.
func (p *pause) wait() *call {
	p.t.Helper()
	select {
	case c := <-p.reached:
		return c
	case <-time.After(patience):
		require.FailNow(p.t, "the call that was to be held was never made")
		return nil
	}
}

func (p *pause) release(v verdict) {
	select {
	case p.free <- v:
	default:
	}
}

// only lets of a batch arrive what concerns one row, and loses the rest.
func (c *client) only(match matcher, keep Cell) {
	c.wire.on(rule{
		match: match,
		before: func(_ context.Context, x *call) verdict {
			x.all = x.muts
			x.muts = slices.DeleteFunc(slices.Clone(x.muts), func(m rowstore.Mutation) bool { return m.Row != keep.Row })
			return pass
		},
		after: func(_ context.Context, x *call) {
			arrived := x.outs
			x.outs = nil
			for _, m := range x.all {
				if m.Row == keep.Row {
					x.outs, arrived = append(x.outs, arrived[0]), arrived[1:]
				} else {
					x.outs = append(x.outs, rowstore.Outcome{Err: errLost})
				}
			}
		},
	})
}
