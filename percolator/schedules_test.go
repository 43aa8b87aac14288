package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The schedules of a review of the protocol, each one driven call by call against
// the code: every client has a wire to one Memory, and the test says which of its
// calls is held, lost, doubled, or the last of its life. Time stands still unless
// the test moves it, so that nothing happens but what the test lets happen.

// Settings of a world. The lease is no other duration's length, so that a test
// can tell who sleeps for it.
const (
	worldLease     = 7 * time.Second
	worldAge       = time.Hour
	worldRetention = 24 * time.Hour
	worldSession   = 5 * time.Second
	worldExpiry    = 11 * time.Second
)

// patience bounds a wait for something that must happen.
const patience = 30 * time.Second

// world is a store, a clock that stands still, and clients.
type world struct {
	t       testing.TB
	mem     *rowstore.Memory
	clock   *fakeClock
	clients []*client
}

func newWorld(t testing.TB) *world {
	t.Helper()
	clock := &fakeClock{now: time.UnixMilli(1_700_000_000_000), sleepers: map[*sleeper]struct{}{}, changed: make(chan struct{})}
	return &world{t: t, clock: clock, mem: rowstore.NewMemory(rowstore.WithClock(clock.Now))}
}

// client is a DB over a wire of its own: a process.
type client struct {
	*DB
	wire *wire
}

func (w *world) client(opts ...Option) *client {
	w.t.Helper()
	return w.clientOver(&wire{mem: w.mem}, opts...)
}

func (w *world) clientOver(wi *wire, opts ...Option) *client {
	w.t.Helper()
	all := append([]Option{
		WithClock(w.clock), WithSeed(1), WithLogger(slog.New(slog.DiscardHandler)),
		WithSettings(Settings{MaxTxnAge: worldAge, Retention: worldRetention, CatalogLease: worldLease}),
		WithSessionLease(worldSession), WithLockExpiry(worldExpiry),
	}, opts...)
	db, err := New(w.t.Context(), wi, all...)
	require.NoError(w.t, err)
	db.session.most = 0 // the time jumps while calls are under way, and they seem slow
	c := &client{DB: db, wire: wi}
	w.clients = append(w.clients, c)
	w.t.Cleanup(func() {
		wi.clear()
		for _, b := range wi.breaches {
			w.t.Error(b)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := db.Close(ctx); err != nil {
			w.t.Errorf("closing a client: %v", err)
		}
	})
	return c
}

// observed puts observers of a column into the catalog as a worker would, swept.
func (w *world) observed(table, column string, names ...string) {
	w.t.Helper()
	db := w.client().DB
	_, err := db.changeCatalog(w.t.Context(), func(v *catalogView) (bool, error) {
		for _, n := range names {
			v.Observers = append(v.Observers, observerRecord{Name: []byte(n), Table: []byte(escape(table)), Column: []byte(escape(column)), Swept: 1})
		}
		return true, nil
	})
	require.NoError(w.t, err)
}

// versions are all versions of the families asked for, of every table of the user's.
func (w *world) versions(families ...rowstore.Family) []string {
	w.t.Helper()
	var all []string
	for table, err := range w.mem.Tables(w.t.Context()) {
		require.NoError(w.t, err)
		if reserved(table) {
			continue
		}
		var picks []rowstore.Pick
		for _, f := range families {
			picks = append(picks, everything(f, rowstore.AllColumns))
		}
		for row, err := range w.mem.Scan(w.t.Context(), rowstore.ScanRange{Table: table, Picks: picks}) {
			require.NoError(w.t, err)
			for _, v := range row.Versions {
				all = append(all, fmt.Sprintf("family %d of %s/%s/%q at %d", v.Family, table, row.Row, v.Column, v.TS))
			}
		}
	}
	return all
}

func (w *world) noLocks() {
	w.t.Helper()
	require.Empty(w.t, w.versions(rowstore.Lock), "locks are left")
}

// raw is one row as it is stored.
func (w *world) raw(c Cell) rowstore.Row {
	w.t.Helper()
	var picks []rowstore.Pick
	for f := rowstore.Lock; f <= rowstore.Notify; f++ {
		picks = append(picks, everything(f, rowstore.AllColumns))
	}
	c = c.stored()
	rows, err := w.mem.Read(w.t.Context(), []rowstore.RowRead{{Table: c.Table, Row: c.Row, Picks: picks}})
	require.NoError(w.t, err)
	return rows[0]
}

// collect collects garbage, whose wait it lets pass.
func (w *world) collect(c *client, keep time.Duration) (GCReport, error) {
	w.t.Helper()
	var report GCReport
	done := async(func() (err error) {
		report, err = c.CollectGarbage(w.t.Context(), keep)
		return err
	})
	if err, ended := w.clock.sleeps(w.t, worldLease, done); ended {
		return report, err
	}
	w.pass(worldLease)
	return report, w.finish(done)
}

// finish waits for the result of async.
func (w *world) finish(done <-chan error) error {
	w.t.Helper()
	return result(w.t, done)
}

func result(t testing.TB, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		require.FailNow(t, "a call hangs")
		return nil
	}
}

func async(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

func commit(c *client, tx *Txn) <-chan error {
	return async(func() error { return tx.Commit(context.Background()) })
}

func begin(t testing.TB, c *client, opts ...TxnOption) *Txn {
	t.Helper()
	tx, err := c.Begin(t.Context(), opts...)
	require.NoError(t, err)
	return tx
}

// writes starts a transaction that sets the cells to value; the first is the
// primary.
func writes(t testing.TB, c *client, value string, cells ...Cell) *Txn {
	t.Helper()
	tx := begin(t, c)
	for _, cell := range cells {
		require.NoError(t, tx.Set(cell, []byte(value)))
	}
	return tx
}

// fakeClock is a clock for the oracle and every client. Short sleeps, those
// between two attempts, end by themselves and take no time; long ones end when the
// test moves the time.
type fakeClock struct {
	mu       sync.Mutex
	now      time.Time
	sleepers map[*sleeper]struct{}
	changed  chan struct{} // closed when somebody begins to sleep
}

type sleeper struct {
	ctx   context.Context
	d     time.Duration
	until time.Time
	wake  chan struct{}
}

const longSleep = 300 * time.Millisecond

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) Sleep(ctx context.Context, d time.Duration) error {
	if d < longSleep {
		return systemClock{}.Sleep(ctx, min(d, time.Millisecond))
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	s := &sleeper{ctx: ctx, d: d, until: c.now.Add(d), wake: make(chan struct{})}
	c.sleepers[s] = struct{}{}
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
	select {
	case <-s.wake:
		return nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.sleepers, s)
		c.mu.Unlock()
		return ctx.Err()
	}
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	for s := range c.sleepers {
		if !s.until.After(c.now) {
			close(s.wake)
			delete(c.sleepers, s)
		}
	}
}

// sleeps waits until somebody sleeps for exactly d, or done has a result.
func (c *fakeClock) sleeps(t testing.TB, d time.Duration, done <-chan error) (err error, ended bool) { //nolint:revive // the error is a result, not a failure of this call
	t.Helper()
	timeout := time.After(patience)
	for {
		n, changed := c.asleep(d)
		if n > 0 {
			return nil, false
		}
		select {
		case <-changed:
		case err := <-done:
			return err, true
		case <-timeout:
			require.FailNow(t, "nobody sleeps", "for %v", d)
		}
	}
}

// asleep counts those who sleep for exactly d. changed is closed when another one
// goes to sleep.
func (c *fakeClock) asleep(d time.Duration) (n int, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sleepers {
		if s.d == d {
			n++
		}
	}
	return n, c.changed
}

// rest counts those who sleep with one of the contexts.
func (c *fakeClock) rest(contexts map[context.Context]struct{}) (n int, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.sleepers {
		if _, ok := contexts[s.ctx]; ok {
			n++
		}
	}
	return n, c.changed
}

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

// value is what a client reads in a transaction of its own.
func value(t testing.TB, c *client, cell Cell) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tx, err := c.Begin(ctx)
	require.NoError(t, err)
	v, err := tx.Get(ctx, cell)
	if errors.Is(err, ErrNotFound) {
		return "none"
	}
	require.NoError(t, err)
	return string(v)
}

func row(name string) Cell { return Cell{"t", name, "v"} }

var (
	rowA, rowB, rowC = row("a"), row("b"), row("c")
	longText         = strings.Repeat("long ", 100)
)

// eachWorld runs a test once for each way to commit.
func eachWorld(t *testing.T, test func(t *testing.T, w *world, opts ...Option)) {
	t.Parallel()
	for name, opts := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t), opts...)
		})
	}
}

// takeForDead makes everybody else take a client for dead, which it is not.
func (w *world) takeForDead(c *client) {
	w.t.Helper()
	c.session.mu.Lock()
	id := c.session.id
	c.session.mu.Unlock()
	require.NotEmpty(w.t, id, "the client has no session")
	_, err := w.mem.Apply(w.t.Context(), []rowstore.Mutation{{Table: tableSessions, Row: id, Edits: []rowstore.Edit{
		rowstore.DeleteRange(rowstore.Write, columnLease, 0, oracle.Max),
	}}}, rowstore.ApplyOptions{})
	require.NoError(w.t, err)
}

// pass moves the time on in steps, and lets every process that lives renew its
// session after each.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	w.renewed()
	for ; d > 0; d -= time.Second {
		w.clock.advance(min(d, time.Second))
		w.renewed()
	}
}

// renewed waits until whatever renews a session has done so and sleeps again.
func (w *world) renewed() {
	w.t.Helper()
	// Only what renews a session sleeps with its DB's own context.
	running := map[context.Context]struct{}{}
	for _, c := range w.clients {
		c.session.mu.Lock()
		if c.session.running {
			running[c.DB.ctx] = struct{}{}
		}
		c.session.mu.Unlock()
	}
	timeout := time.After(patience)
	for {
		asleep, changed := w.clock.rest(running)
		if asleep == len(running) {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			require.FailNow(w.t, "a session is not renewed")
		}
	}
}

// commitDraw is the draw of a commit timestamp: one after a prewrite.
func (c *client) commitDraw() matcher {
	return func(x *call) bool {
		return x.op == "draw" && slices.ContainsFunc(c.wire.calls, prewrites)
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

// ways2 are those with a prewrite.
var ways2 = map[string][]Option{"group": {WithoutOnePhase()}, "two phase": {WithoutGroups()}}

func eachWorld2(t *testing.T, test func(t *testing.T, w *world, opts ...Option)) {
	t.Parallel()
	for name, opts := range ways2 {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t), opts...)
		})
	}
}

// A1. Guards: the commit point has the incarnation of the prewrites as a condition.
func TestScheduleA1_CrashBetweenPrewriteAndCommit(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		// A dead client's lock makes T1 prewrite B in a second batch, and its roll
		// back, which is never deferred, makes A's lock durable.
		dead := w.client(opts...)
		dead.wire.verdict(prewrites, dieAfter)
		require.Error(t, writes(t, dead, "dead", rowB).Commit(t.Context()))
		w.takeForDead(dead)
		t1 := w.client(opts...)
		p := t1.hold(t, commitPoint(rowA))
		done := commit(t1, writes(t, t1, "1", rowA, rowB))
		late := p.wait()
		w.mem.Crash()
		require.Len(t, w.versions(rowstore.Lock), 1, "the crash was to lose one of two locks")
		p.release(pass)
		require.ErrorIs(t, w.finish(done), ErrConflict)
		require.Zero(t, late.again(t), "a late second arrival was applied")
		other := w.client()
		require.Equal(t, "none none", value(t, other, rowA)+" "+value(t, other, rowB))
		w.noLocks()
	})
}

// A1. Guards: a transaction whose prewrites saw two incarnations aborts.
func TestScheduleA1_CrashBetweenTwoPrewrites(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		for _, lost := range []Cell{rowA, rowB} {
			kept := rowB
			if lost == rowB {
				kept = rowA
			}
			t1 := w.client(opts...)
			t1.only(prewrites, lost)
			t1.wire.on(rule{match: prewrites, before: func(context.Context, *call) verdict {
				w.mem.Crash() // that lock is lost, the other comes after
				return pass
			}})
			// The primary's lock will be there, and its incarnation be the store's.
			require.ErrorIs(t, writes(t, t1, "1", kept, lost).Commit(t.Context()), ErrConflict)
			other := w.client()
			require.Equal(t, "none none", value(t, other, rowA)+" "+value(t, other, rowB))
			w.noLocks()
		}
	})
}

// A1. Guards: a commit point makes the deferred prewrites durable, so that a
// secondary which is lost is rolled forward. Update runs again after the abort.
func TestScheduleA1_CrashAfterCommit(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1 := w.client(opts...)
		require.NoError(t, writes(t, t1, longText, rowA, rowB).Commit(t.Context()))
		require.NoError(t, t1.drained(t.Context()))
		w.mem.Crash()
		require.Equal(t, longText, value(t, t1, rowB))
		require.Equal(t, longText, value(t, t1, rowA))
		w.noLocks()
		t1.wire.on(rule{match: prewrites, after: func(context.Context, *call) { w.mem.Crash() }})
		set(t, t1.DB, rowA, "again")
		require.Equal(t, "again", value(t, t1, rowA))
	})
}

// A1, C9. Guards: batches are deferred only where every row and the oracle are in
// one store; the primary is where the oracle is.
func TestScheduleA1_DeferredOnlyInTheAuthoritativeStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	far := Cell{"far", "x", "v"}
	deferred := func(c *client) int {
		require.NoError(t, c.drained(t.Context()))
		return len(c.wire.sent(func(x *call) bool { return x.opts.Deferred }))
	}
	near := w.client(WithoutGroups())
	require.NoError(t, writes(t, near, "1", rowA, rowB).Commit(t.Context()))
	require.Equal(t, 2, deferred(near), "prewrites and secondaries")
	routed := w.clientOver(&wire{mem: w.mem, placed: func(table string) bool { return table != "far" }}, WithoutGroups())
	tx := writes(t, routed, "1", far, rowA)
	start := tx.StartTimestamp()
	require.NoError(t, tx.Commit(t.Context()))
	require.Zero(t, deferred(routed))
	require.Equal(t, rowA, routed.wire.primaries[start], "the primary was to be in the authoritative store")
	require.NoError(t, writes(t, routed, "1", rowA, rowB).Commit(t.Context()))
	require.Equal(t, 2, deferred(routed))
	without := w.client(WithoutGroups(), WithoutDeferred())
	require.NoError(t, writes(t, without, "2", rowA, rowB).Commit(t.Context()))
	require.Zero(t, deferred(without))
	// With an oracle from elsewhere nothing ties the timestamps to the store.
	w2 := newWorld(t)
	elsewhere := w2.client(WithoutGroups(), WithOracle("elsewhere", w2.mem.Oracle()))
	require.NoError(t, writes(t, elsewhere, "1", rowA, rowB).Commit(t.Context()))
	require.Zero(t, deferred(elsewhere))
	require.NoError(t, writes(t, elsewhere, "1", rowA, rowB).Commit(t.Context()))
}

// committedPrimary leaves T1 committed on A with its lock on B still there, and A
// overwritten by T2.
func committedPrimary(t *testing.T, w *world, alive bool, remove bool) (release func()) {
	t.Helper()
	t1, t2 := w.client(WithoutGroups()), w.client()
	set(t, t2.DB, rowA, "0")
	release = func() {}
	if alive {
		p := t1.hold(t, secondaries(rowA))
		release = func() { p.release(pass) }
	} else {
		t1.wire.verdict(secondaries(rowA), die)
	}
	tx := begin(t, t1)
	if remove {
		require.NoError(t, tx.Delete(rowA))
	} else {
		require.NoError(t, tx.Set(rowA, []byte("1")))
	}
	require.NoError(t, tx.Set(rowB, []byte("1")))
	require.NoError(t, tx.Commit(t.Context()))
	if !remove {
		set(t, t2.DB, rowA, "2")
	}
	return release
}

// A2. Guards: every lock below the safe point is resolved before the first removal,
// whether its owner lives or not.
func TestScheduleA2_CollectedRecordOfARemainingLock(t *testing.T) {
	t.Parallel()
	for _, alive := range []bool{false, true} {
		for _, remove := range []bool{false, true} {
			t.Run(fmt.Sprintf("alive %v, delete %v", alive, remove), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				release := committedPrimary(t, w, alive, remove)
				w.clock.advance(2 * worldAge)
				c := w.client()
				report, err := w.collect(c, 1)
				require.NoError(t, err)
				require.Equal(t, 1, report.LocksResolved)
				row := w.raw(rowA)
				require.Len(t, row.All(rowstore.Write, "v"), map[bool]int{false: 1, true: 0}[remove], "T1's record was to be collected")
				require.Equal(t, "1", value(t, c, rowB))
				release()
				require.Equal(t, "1", value(t, c, rowB))
			})
		}
	}
}

// A2. Guards: an undecided transaction below the safe point can not commit any more,
// though its process lives and keeps its lock alive.
func TestScheduleA2_CollectionOverridesALivingOwner(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		c := w.client(WithSettings(Settings{MaxTxnAge: time.Second, Retention: worldRetention, CatalogLease: worldLease}))
		t1 := w.client(append(opts, WithLockExpiry(time.Hour))...)
		p := t1.hold(t, commitPoint(rowA))
		tx := writes(t, t1, "1", rowA, rowB)
		start := tx.StartTimestamp()
		done := commit(t1, tx)
		late := p.wait()
		w.pass(worldLease + 2*time.Second)
		row := w.raw(rowA)
		l, err := decodeLock(row.Newest(rowstore.Lock, "v").Value)
		require.NoError(t, err)
		_, alive, err := c.inspect(t.Context(), start, &l, respectLiving)
		require.NoError(t, err)
		require.True(t, alive)
		_, err = w.collect(c, 1)
		require.NoError(t, err)
		w.noLocks()
		p.release(pass)
		require.Error(t, w.finish(done))
		require.Zero(t, late.again(t))
		require.Equal(t, "none none", value(t, c, rowA)+" "+value(t, c, rowB))
	})
}

// A2. Guards: the collection flushes what is deferred before it removes anything;
// else a crash takes a secondary's commit back, and its record is gone.
func TestScheduleA2_DeferredSecondaryIsFlushedBeforeRemoval(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, t2, c := w.client(WithoutGroups()), w.client(), w.client()
	p := t1.hold(t, secondaries(rowA))
	require.NoError(t, writes(t, t1, "1", rowA, rowB).Commit(t.Context()))
	p.wait()
	set(t, t2.DB, rowA, "2")
	w.clock.advance(2 * worldAge)
	crashes := 0
	c.wire.on(rule{match: func(x *call) bool { return x.op == "scan" && x.scan.Table == "t" }, before: func(context.Context, *call) verdict {
		p.release(pass)
		if err := t1.drained(context.Background()); err != nil {
			t.Error(err)
		}
		// Just before whatever the collection removes first.
		c.wire.on(rule{match: op("apply"), before: func(context.Context, *call) verdict {
			crashes++
			w.mem.Crash()
			return pass
		}})
		return pass
	}})
	report, err := w.collect(c, 1)
	require.NoError(t, err)
	require.Zero(t, report.LocksResolved, "the lock was to be gone when the collection came by")
	require.Positive(t, report.Versions)
	require.Equal(t, 1, crashes)
	require.Equal(t, "1", value(t, c, rowB))
}

// A3. Guards: the status looks for the transaction's own Write among all from its
// start, not at the newest.
func TestScheduleA3_OverwrittenPrimary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	committedPrimary(t, w, false, false)
	c := w.client()
	require.Equal(t, "1", value(t, c, rowB))
	w.noLocks()
	require.EqualValues(t, 1, c.Stats().RolledForward)
}

// A3. Guards: a lost reply at the commit point is resolved by the status, however
// many have written the primary since.
func TestScheduleA3_LostReplyThenOverwritten(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, t2 := w.client(opts...), w.client()
		p := t1.holdReply(t, commitPoint(rowA), loseReply)
		tx := writes(t, t1, "1", rowA, rowB)
		done := commit(t1, tx)
		p.wait()
		set(t, t2.DB, rowA, "2")
		set(t, t2.DB, rowA, "3")
		p.release(pass)
		require.NoError(t, w.finish(done))
		require.Equal(t, "3 1", value(t, t2, rowA)+" "+value(t, t2, rowB))
		row := w.raw(rowA)
		require.NotNil(t, row.At(rowstore.Write, "v", tx.CommitTimestamp()))
		w.noLocks()
	})
}

// A3. Guards: a refused request may be the second arrival of one that succeeded
// (go-redis sends twice).
func TestScheduleA3_SecondArrivalIsRefused(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, t2 := w.client(opts...), w.client()
		t1.wire.on(rule{match: commitPoint(rowA), before: func(ctx context.Context, x *call) verdict {
			if x.again(t) == 0 {
				t.Error("the first arrival was refused")
			}
			set(t, t2.DB, rowA, "2")
			return pass
		}})
		tx := writes(t, t1, "1", rowA, rowB)
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, "2 1", value(t, t2, rowA)+" "+value(t, t2, rowB))
		row := w.raw(rowA)
		require.NotNil(t, row.At(rowstore.Write, "v", tx.CommitTimestamp()))
	})
}

// A3. Guards: a prewrite that finds its own lock succeeded.
func TestScheduleA3_SecondArrivalOfAPrewrite(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1 := w.client(opts...)
		t1.wire.on(rule{match: prewrites, times: 2, before: func(_ context.Context, x *call) verdict {
			x.again(t)
			return pass
		}})
		require.NoError(t, w.finish(commit(t1, writes(t, t1, "1", rowA, rowB))))
		require.Equal(t, "1 1", value(t, t1, rowA)+" "+value(t, t1, rowB))
	})
}

// A4. Guards: the secondaries go with the primary only in an all-or-none group.
func TestScheduleA4_RolledBackPrimaryInTheCommitBatch(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		p := t1.hold(t, commitPoint(rowA))
		done := commit(t1, writes(t, t1, "1", rowA, rowB))
		p.wait()
		w.takeForDead(t1)
		require.Equal(t, "none", value(t, c, rowA))
		require.Len(t, w.versions(rowstore.Lock), 1, "B was to be locked still")
		p.release(pass)
		require.ErrorIs(t, w.finish(done), ErrConflict)
		require.Equal(t, "none", value(t, c, rowB))
		require.Empty(t, w.versions(rowstore.Write))
		w.noLocks()
	})
}

// A5. Guards: below the safe point the absence of a record proves nothing.
func TestScheduleA5_FateAskedBelowTheSafePoint(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1, t2, c := w.client(opts...), w.client(), w.client()
		p := t1.holdReply(t, commitPoint(rowA), loseReply)
		tx := writes(t, t1, "1", rowA, rowB)
		start := tx.StartTimestamp()
		done := commit(t1, tx)
		p.wait()
		set(t, t2.DB, rowA, "2")
		w.clock.advance(worldRetention + worldAge)
		report, err := w.collect(c, 0)
		require.NoError(t, err)
		require.Greater(t, report.SafePoint, start)
		row := w.raw(rowA)
		require.Len(t, row.All(rowstore.Write, "v"), 1, "T1's record was to be collected")
		p.release(pass)
		err = w.finish(done)
		require.ErrorIs(t, err, ErrUndetermined)
		require.NotErrorIs(t, err, ErrConflict)
		var undetermined *UndeterminedError
		require.ErrorAs(t, err, &undetermined)
		require.Equal(t, start, undetermined.Start)
		require.Equal(t, rowA, undetermined.Primary)
		_, err = c.Outcome(t.Context(), start, rowA)
		require.ErrorIs(t, err, ErrSnapshotTooOld)
		require.Equal(t, "2 1", value(t, c, rowA)+" "+value(t, c, rowB))
	})
}

// A6. Guards: a lock-only cell commits as a mark at the commit timestamp, which
// makes every older writer of the cell fail: also rolled forward.
func TestScheduleA6_LockOnlyLeavesAMark(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		for _, dies := range []bool{false, true} {
			t1, t2 := w.client(opts...), w.client(opts...)
			set(t, t2.DB, rowA, "a")
			set(t, t2.DB, rowB, "b")
			if dies {
				t1.wire.verdict(secondaries(rowB), die)
			}
			first := begin(t, t1)
			_, err := first.GetForUpdate(t.Context(), rowA)
			require.NoError(t, err)
			require.NoError(t, first.Set(rowB, []byte("from a")))
			second := begin(t, t2)
			_, err = second.Get(t.Context(), rowB)
			require.NoError(t, err)
			require.NoError(t, first.Commit(t.Context()))
			require.NoError(t, second.Set(rowA, []byte("from b")))
			require.ErrorIs(t, second.Commit(t.Context()), ErrConflict)
			set(t, t2.DB, rowA, "later") // a younger one is free to
			w.noLocks()
		}
	})
}

// A6. Guards: a lock-only cell leaves no Write and no notification, so reads,
// observers and the collection need not know of it.
func TestScheduleA6_LockOnlyIsNoWrite(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		c := w.client(opts...)
		set(t, c.DB, rowA, "a")
		before := w.raw(rowA)
		tx := begin(t, c)
		_, err := tx.GetForUpdate(t.Context(), rowA)
		require.NoError(t, err)
		require.NoError(t, tx.Set(rowB, nil))
		require.NoError(t, tx.Commit(t.Context()))
		require.NoError(t, c.drained(t.Context()))
		after := w.raw(rowA)
		mark := after.Newest(rowstore.Rollback, "v")
		require.NotNil(t, mark)
		require.Equal(t, tx.CommitTimestamp(), mark.TS)
		require.Equal(t, before.All(rowstore.Write, "v"), after.All(rowstore.Write, "v"))
		require.Equal(t, before.All(rowstore.Notify, "v"), after.All(rowstore.Notify, "v"))
		w.clock.advance(2 * worldRetention)
		_, err = w.collect(c, 0)
		require.NoError(t, err)
		after = w.raw(rowA)
		require.Empty(t, after.All(rowstore.Rollback, "v"))
		require.Equal(t, "a", value(t, c, rowA))
	})
}

// A6. Guards: readers pass over a lock-only lock, at once, though its owner lives;
// a transaction with lock-only cells alone commits by doing nothing.
func TestScheduleA6_LockOnlyBlocksNoReader(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client(opts...)
		set(t, c.DB, rowA, "a")
		p := t1.hold(t, commitPoint(rowB))
		tx := begin(t, t1)
		_, err := tx.GetForUpdate(t.Context(), rowA)
		require.NoError(t, err)
		require.NoError(t, tx.Set(rowB, nil))
		done := commit(t1, tx)
		p.wait()
		require.Len(t, w.versions(rowstore.Lock), 2)
		require.Equal(t, "a", value(t, c, rowA))
		require.Zero(t, c.Stats().LocksMet)
		p.release(pass)
		require.NoError(t, w.finish(done))
		calls := len(c.wire.sent(func(x *call) bool { return x.op == "apply" || x.op == "group" }))
		tx = begin(t, c)
		_, err = tx.GetForUpdate(t.Context(), rowA)
		require.NoError(t, err)
		require.NoError(t, tx.Commit(t.Context()))
		require.Zero(t, tx.CommitTimestamp())
		require.Len(t, c.wire.sent(func(x *call) bool { return x.op == "apply" || x.op == "group" }), calls)
	})
}

// A7. Guards: GetForUpdate sends nothing before Commit, and a cell that is also
// set, or deleted, gets only that.
func TestScheduleA7_GetForUpdateIsPrewrittenAtCommit(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		c := w.client(opts...)
		set(t, c.DB, rowA, "a")
		set(t, c.DB, rowB, "b")
		changes := func() int { return len(c.wire.sent(func(x *call) bool { return x.op == "apply" || x.op == "group" })) }
		require.NoError(t, c.drained(t.Context()))
		before := changes()
		tx := begin(t, c)
		for _, cell := range []Cell{rowA, rowB, rowC} {
			_, err := tx.GetForUpdate(t.Context(), cell)
			if cell != rowC {
				require.NoError(t, err)
			}
		}
		require.Equal(t, before, changes())
		require.NoError(t, tx.Set(rowA, []byte("set")))
		require.NoError(t, tx.Delete(rowB))
		_, err := tx.GetForUpdate(t.Context(), rowA)
		require.NoError(t, err)
		c.wire.on(rule{match: prewrites, after: func(_ context.Context, x *call) {
			kinds := map[string]kind{}
			for _, m := range x.muts {
				for _, e := range m.Edits {
					if e.Family == rowstore.Lock {
						l, err := decodeLock(e.Value)
						if err != nil || l.primary != rowA {
							t.Errorf("lock %+v, %v", l, err)
						}
						kinds[m.Row] = l.kind
					}
				}
			}
			if want := (map[string]kind{"a": kindPut, "b": kindDelete, "c": kindLock}); fmt.Sprint(kinds) != fmt.Sprint(want) {
				t.Errorf("prewritten %v", kinds)
			}
		}})
		require.NoError(t, tx.Commit(t.Context()))
		require.Equal(t, "set none", value(t, c, rowA)+" "+value(t, c, rowB))
	})
}

// A7. Guards: a heartbeat changes nothing but the expiry of the primary's lock, and
// a late one, after a commit or a roll back, nothing at all.
func TestScheduleA7_LateHeartbeat(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		for _, committed := range []bool{true, false} {
			t1, c := w.client(opts...), w.client()
			p := t1.hold(t, commitPoint(rowA))
			beat := t1.holdReply(t, heartbeats, pass)
			done := commit(t1, writes(t, t1, "1", rowA, rowB))
			p.wait()
			row := w.raw(rowA)
			old, err := decodeLock(row.Newest(rowstore.Lock, "v").Value)
			require.NoError(t, err)
			_, ended := w.clock.sleeps(t, worldExpiry/3, done)
			require.False(t, ended)
			w.clock.advance(worldExpiry/3 + time.Millisecond)
			w.renewed() // else a renewal under way could come after takeForDead
			late := beat.wait()
			row = w.raw(rowA)
			renewed, err := decodeLock(row.Newest(rowstore.Lock, "v").Value)
			require.NoError(t, err)
			require.GreaterOrEqual(t, renewed.expiry, old.expiry.Add(worldExpiry/3))
			renewed.expiry = old.expiry
			require.Equal(t, old, renewed)
			require.Len(t, late.muts, 1, "a heartbeat is for the primary only")
			beat.release(pass)
			if committed {
				p.release(pass)
				require.NoError(t, w.finish(done))
			} else {
				w.takeForDead(t1)
				require.Equal(t, "none", value(t, c, rowA))
				p.release(pass)
				require.ErrorIs(t, w.finish(done), ErrConflict)
			}
			require.NoError(t, t1.drained(t.Context()))
			require.Zero(t, late.again(t))
			w.noLocks()
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return errors.Join(tx.Delete(rowA), tx.Delete(rowB)) }))
		}
	})
}

// watching makes a worker, which does not run by itself.
func watching(t testing.TB, c *client, observers ...Observer) *Worker {
	t.Helper()
	w := NewWorker(c.DB, WorkerConfig{})
	for _, o := range observers {
		if o.Table == "" {
			o.Table, o.Column = "t", "v"
		}
		require.NoError(t, w.Observe(o))
	}
	return w
}

// look is what a worker does about a notified cell, once.
func look(t testing.TB, w *Worker, cell Cell) runResult {
	t.Helper()
	result, _, err := w.runCell(t.Context(), cell.stored())
	require.NoError(t, err)
	return result
}

// runs is a look that runs an observer, and rests one that finds nothing to run.
func runs(t testing.TB, w *Worker, cell Cell) {
	t.Helper()
	before := w.db.Stats().ObserverRuns
	result := look(t, w, cell)
	require.Contains(t, []runResult{runAgain, runDone}, result)
	require.Equal(t, before+1, w.db.Stats().ObserverRuns, "no run of an observer was committed")
}

func rests(t testing.TB, w *Worker, cell Cell) {
	t.Helper()
	before := w.db.Stats()
	require.Equal(t, runDone, look(t, w, cell))
	require.Equal(t, before.ObserverRuns, w.db.Stats().ObserverRuns)
	require.Equal(t, before.ObserverFailures, w.db.Stats().ObserverFailures)
}

// notified are the timestamps of a cell's notifications.
func (w *world) notified(cell Cell) []Timestamp {
	w.t.Helper()
	row := w.raw(cell)
	var all []Timestamp
	for _, n := range row.All(rowstore.Notify, escape(cell.Column)) {
		all = append(all, n.TS)
	}
	return all
}

// saw is an observer that keeps what it has seen.
type saw struct {
	mu     sync.Mutex
	values []string
	during func(tx *Txn) // called within the function, if not nil
	held   time.Duration // how long others' scan leases last, after a look
}

func (s *saw) observer(name string) Observer {
	return Observer{Name: name, Func: func(ctx context.Context, tx *Txn, c Cell) error {
		v, err := tx.Get(ctx, c)
		if errors.Is(err, ErrNotFound) {
			v, err = []byte("none"), nil
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.values = append(s.values, string(v))
		during := s.during
		s.mu.Unlock()
		if during != nil {
			during(tx)
		}
		return nil
	}}
}

// B1. Guards: a run deletes exactly the notifications that its view showed, never a
// range: one of an older start may be of a younger commit.
func TestScheduleB1_RunRemovesWhatItSaw(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		var s saw
		wk := watching(t, w.client(opts...), s.observer("o"))
		t1 := w.client(WithoutGroups())
		set(t, t1.DB, rowA, "0")
		primary := Cell{"t", "c", "other"}
		tx := writes(t, t1, "1", primary, rowA) // it starts before the run
		t1.wire.verdict(secondaries(primary), die)
		s.during = func(*Txn) {
			s.during = nil
			if err := tx.Commit(context.Background()); err != nil {
				t.Error(err)
			}
			if err := t1.drained(context.Background()); err != nil {
				t.Error(err)
			}
		}
		runs(t, wk, rowA)
		require.EqualValues(t, 1, wk.db.Stats().ObserverRuns)
		require.Contains(t, w.notified(rowA), tx.StartTimestamp())
		runs(t, wk, rowA)
		require.Equal(t, []string{"0", "1"}, s.values)
		rests(t, wk, rowA)
		require.Empty(t, w.notified(rowA))
		w.noLocks()
	})
}

// B1. Guards: a clear without a run is as careful.
func TestScheduleB1_ClearRemovesWhatItSaw(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	var s saw
	c, t1 := w.client(), w.client(WithoutGroups())
	wk := watching(t, c, s.observer("o"))
	set(t, t1.DB, rowA, "0")
	old := w.notified(rowA)
	require.Len(t, old, 1)
	runs(t, wk, rowA)
	// The hint is there once more, with nothing to do.
	_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{
		rowstore.Put(rowstore.Notify, "v", old[0], strongValue),
	}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	primary := Cell{"t", "c", "other"}
	tx := writes(t, t1, "1", primary, rowA)
	t1.wire.verdict(secondaries(primary), die)
	c.wire.on(rule{match: both(op("apply"), on(rowA)), before: func(context.Context, *call) verdict {
		if err := tx.Commit(context.Background()); err != nil {
			t.Error(err)
		}
		if err := t1.drained(context.Background()); err != nil {
			t.Error(err)
		}
		return pass
	}})
	rests(t, wk, rowA)
	require.EqualValues(t, 1, c.Stats().ObserverCleared)
	require.Equal(t, []Timestamp{tx.StartTimestamp()}, w.notified(rowA))
	runs(t, wk, rowA)
	require.Equal(t, []string{"0", "1"}, s.values)
}

// B2. Guards: the hints go only once every observer of the column that the catalog
// has is covered, also those that the worker does not know.
func TestScheduleB2_TwoObserversShareANotification(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o1", "o2")
		var s1, s2 saw
		w1, w2 := watching(t, w.client(opts...), s1.observer("o1")), watching(t, w.client(opts...), s2.observer("o2"))
		set(t, w1.db, rowA, "1")
		runs(t, w1, rowA)
		rests(t, w1, rowA)
		require.Len(t, w.notified(rowA), 1, "the other observer has not run")
		runs(t, w2, rowA)
		rests(t, w2, rowA)
		require.Empty(t, w.notified(rowA))
		require.Equal(t, []string{"1"}, s1.values)
		require.Equal(t, []string{"1"}, s2.values)
	})
}

// B2. Guards: an acknowledgment that is locked does not count as covering.
func TestScheduleB2_LockedAcknowledgmentDoesNotCover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o1", "o2")
	var s1, s2 saw
	c1 := w.client(WithoutGroups())
	w1, w2 := watching(t, c1, s1.observer("o1")), watching(t, w.client(), s2.observer("o2"))
	set(t, w2.db, rowA, "1")
	p := c1.hold(t, both(commits, on(rowA)))
	done := async(func() error { _, _, err := w1.runCell(context.Background(), rowA); return err })
	p.wait()
	runs(t, w2, rowA)
	rests(t, w2, rowA) // it need not wait for the other's run
	require.Len(t, w.notified(rowA), 1, "the other's run may still be rolled back")
	w.takeForDead(c1)
	p.release(die)
	require.Error(t, w.finish(done))
	again := watching(t, w.client(), s1.observer("o1"))
	runs(t, again, rowA)
	require.Equal(t, []string{"1", "1"}, s1.values)
	rests(t, again, rowA)
	require.Empty(t, w.notified(rowA))
}

// B3. Guards: a weak hint is its own reason to run, on a cell that was never
// written and on one acknowledged long ago.
func TestScheduleB3_WeakHintIsAReasonToRun(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		var s saw
		c := w.client(opts...)
		wk := watching(t, c, s.observer("o"))
		notify := func() {
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Notify(rowA) }))
		}
		notify()
		runs(t, wk, rowA)
		rests(t, wk, rowA)
		set(t, c.DB, rowA, "1")
		runs(t, wk, rowA)
		notify()
		runs(t, wk, rowA)
		rests(t, wk, rowA)
		require.Equal(t, []string{"none", "1", "1"}, s.values)
		require.Empty(t, w.notified(rowA))
	})
}

// B3. Guards: the hint stands at the commit timestamp, drawn after the prewrites and
// put before the commit point: a run that starts earlier does not use it up.
func TestScheduleB3_WeakHintComesNeitherEarlyNorLate(t *testing.T) {
	t.Parallel()
	for name, opts := range ways {
		for _, sameRow := range []bool{false, true} {
			t.Run(fmt.Sprint(name, sameRow), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.observed("t", "v", "o")
				var s saw
				other := Cell{"t", "b", "data"}
				if sameRow {
					other.Row = "a"
				}
				watched := Observer{Name: "o", Func: func(ctx context.Context, tx *Txn, c Cell) error {
					return s.observer("o").Func(ctx, tx, other)
				}}
				t1, c := w.client(opts...), w.client()
				wk := watching(t, c, watched)
				p := t1.hold(t, commitPoint(other))
				tx := writes(t, t1, "1", other)
				require.NoError(t, tx.Notify(rowA))
				// A run that starts after T1 and before its commit acknowledges for itself.
				set(t, c.DB, rowA, "change")
				runs(t, wk, rowA)
				require.Equal(t, []string{"none"}, s.values)
				done := commit(t1, tx)
				p.wait()
				// A run now must wait for T1, or see nothing of it and leave its hint.
				early := async(func() error { _, _, err := wk.runCell(context.Background(), rowA); return err })
				if name == "one phase" || sameRow {
					require.NoError(t, w.finish(early)) // nothing of T1 is there
					require.Len(t, s.values, 1)
				}
				p.release(pass)
				require.NoError(t, w.finish(done))
				if name != "one phase" && !sameRow {
					require.NoError(t, w.finish(early))
				}
				for len(w.notified(rowA)) > 0 {
					look(t, wk, rowA)
				}
				require.Len(t, s.values, 2)
				require.Equal(t, "1", s.values[1])
			})
		}
	}
}

// B4. Guards: with a commit timestamp above f + lease, f drawn before the catalog was
// read, the transaction may not know of an observer, and looks again: locks that do
// not tell of it abort, and a single step is made again.
func TestScheduleB4_CommitByAnOldCatalog(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1 := w.client(opts...)
		tx := writes(t, t1, "1", rowA)
		// Held just before its timestamp is drawn, inside the step or outside.
		match := t1.commitDraw()
		if len(opts) == 0 {
			match = commitPoint(rowA)
		}
		p := t1.hold(t, match)
		done := commit(t1, tx)
		p.wait()
		w.observed("t", "v", "o")
		w.clock.advance(worldLease + time.Second)
		p.release(pass)
		if err := w.finish(done); len(opts) > 0 {
			require.ErrorIs(t, err, ErrConflict)
			require.Equal(t, "none", value(t, t1, rowA))
			require.Empty(t, w.notified(rowA))
			set(t, t1.DB, rowA, "2")
		} else {
			require.NoError(t, err)
		}
		require.Len(t, w.notified(rowA), 1)
	})
}

// B4. Guards: the sweep is a snapshot read above publication + lease: it waits for
// the lock of a transaction that does not know the observer.
func TestScheduleB4_SweepWaitsForLocks(t *testing.T) {
	t.Parallel()
	for _, dies := range []bool{false, true} {
		t.Run(fmt.Sprint("dies ", dies), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			t1, c := w.client(WithoutGroups()), w.client()
			p := t1.hold(t, commitPoint(rowB))
			tx := writes(t, t1, "1", rowB, rowA)
			done := commit(t1, tx)
			late := p.wait()
			var s saw
			wk := watching(t, c, s.observer("o"))
			require.NoError(t, wk.publish(t.Context()))
			if dies {
				// Its commit arrives, and nobody finishes its secondary.
				late.again(t)
				p.release(die)
				require.Error(t, w.finish(done))
			}
			swept := async(func() error { return wk.sweepNew(t.Context()) })
			_, ended := w.clock.sleeps(t, worldLease, swept)
			require.False(t, ended, "the sweep did not wait a lease")
			w.pass(worldLease + time.Second)
			if !dies {
				// The sweep has met T1's lock and looks at it again and again.
				require.Eventually(t, func() bool { return c.Stats().LocksMet > 0 }, patience, time.Millisecond)
				require.Empty(t, w.notified(rowA))
				p.release(pass)
				require.NoError(t, w.finish(done))
			}
			require.NoError(t, w.finish(swept))
			for _, cell := range []Cell{rowA, rowB} {
				require.Len(t, w.notified(cell), 1, "%v", cell)
				runs(t, wk, cell)
				rests(t, wk, cell)
			}
			require.Equal(t, []string{"1", "1"}, s.values)
			infos, err := c.Observers(t.Context())
			require.NoError(t, err)
			require.Equal(t, []ObserverInfo{{"o", "t", "v", true}}, infos)
		})
	}
}

// B4. Guards: the sweep is for what is newer than the acknowledgment, so that an
// observer which comes back sees what changed meanwhile and nothing else.
func TestScheduleB4_ObserverComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	var s saw
	sweep := func() *Worker {
		wk := watching(t, c, s.observer("o"))
		require.NoError(t, wk.publish(t.Context()))
		swept := async(func() error { return wk.sweepNew(t.Context()) })
		_, ended := w.clock.sleeps(t, worldLease, swept)
		require.False(t, ended)
		w.clock.advance(worldLease + time.Millisecond)
		require.NoError(t, w.finish(swept))
		return wk
	}
	set(t, c.DB, rowA, "a1")
	set(t, c.DB, rowB, "b1")
	wk := sweep()
	for _, cell := range []Cell{rowA, rowB} {
		runs(t, wk, cell)
	}
	require.NoError(t, c.RemoveObserver(t.Context(), "o"))
	set(t, c.DB, rowA, "a2")
	set(t, c.DB, rowC, "c1")
	require.Empty(t, w.notified(rowA))
	wk = sweep()
	require.Empty(t, w.notified(rowB))
	for _, cell := range []Cell{rowA, rowC} {
		require.Len(t, w.notified(cell), 1)
		runs(t, wk, cell)
	}
	require.Equal(t, []string{"a1", "b1", "a2", "c1"}, s.values)
}

// B5. Guards: the collection leaves a delete alone that an observer has not seen,
// or whose run is parked.
func TestScheduleB5_UnseenDeleteIsKept(t *testing.T) {
	t.Parallel()
	for _, park := range []bool{false, true} {
		t.Run(fmt.Sprint("parked ", park), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o")
			c := w.client()
			var s saw
			broken := false
			o := s.observer("o")
			o.MaxAttempts = 1
			f := o.Func
			o.Func = func(ctx context.Context, tx *Txn, cell Cell) error {
				if broken {
					return errors.New("on purpose")
				}
				return f(ctx, tx, cell)
			}
			wk := watching(t, c, o)
			set(t, c.DB, rowA, "1")
			runs(t, wk, rowA)
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowA) }))
			if broken = park; park {
				look(t, wk, rowA)
				rests(t, wk, rowA)
				require.EqualValues(t, 1, c.Stats().ObserverParked)
				require.Empty(t, w.notified(rowA))
			}
			w.clock.advance(worldRetention * 2)
			_, err := w.collect(c, 0)
			require.NoError(t, err)
			row := w.raw(rowA)
			require.Len(t, row.All(rowstore.Write, "v"), 1, "the delete is gone")
			if park {
				broken = false
				parked, err := c.Parked(t.Context())
				require.NoError(t, err)
				require.Len(t, parked, 1)
				require.NoError(t, c.Release(t.Context(), parked...))
			}
			runs(t, wk, rowA)
			rests(t, wk, rowA)
			require.Equal(t, []string{"1", "none"}, s.values)
			w.clock.advance(worldRetention * 2)
			_, err = w.collect(c, 0)
			require.NoError(t, err)
			row = w.raw(rowA)
			require.Empty(t, row.All(rowstore.Write, "v"), "once seen, the delete goes")
		})
	}
}

// B6. Guards: a change counts as seen by the start of the run, not by its commit.
func TestScheduleB6_ChangeDuringTheRun(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		var s saw
		wk := watching(t, w.client(opts...), s.observer("o"))
		t2 := w.client(opts...)
		set(t, t2.DB, rowA, "1")
		s.during = func(*Txn) {
			s.during = nil
			set(t, t2.DB, rowA, "2")
		}
		runs(t, wk, rowA)
		require.Len(t, w.notified(rowA), 1)
		runs(t, wk, rowA)
		rests(t, wk, rowA)
		require.Equal(t, []string{"1", "2"}, s.values)
		require.Empty(t, w.notified(rowA))
		require.EqualValues(t, 2, wk.db.Stats().ObserverRuns)
	})
}

// C1. Guards: a snapshot that the client's clock names is refused while it lies
// above what the oracle has handed out.
func TestScheduleC1_AsOfInTheFuture(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, t2 := w.client(), w.client()
	set(t, c.DB, rowA, "1")
	now, err := c.Now(t.Context())
	require.NoError(t, err)
	_, err = c.Begin(t.Context(), AsOfTimestamp(now+2)) // Begin draws now+1
	require.ErrorIs(t, err, ErrSnapshotInFuture)
	_, err = c.Begin(t.Context(), AsOf(w.clock.Now().Add(time.Millisecond)))
	require.ErrorIs(t, err, ErrSnapshotInFuture)
	// The newest that there is does not change any more.
	tx := begin(t, c, AsOfTimestamp(now))
	set(t, t2.DB, rowA, "2")
	v, err := tx.Get(t.Context(), rowA)
	require.NoError(t, err)
	require.Equal(t, "1", string(v))
}

// C2. Guards: a read is judged against the safe point after its reply, also that of
// a long value, and of each part of a scan.
func TestScheduleC2_ReadOvertakenByACollection(t *testing.T) {
	t.Parallel()
	get := func(ctx context.Context, tx *Txn) error {
		_, err := tx.Get(ctx, rowA)
		return err
	}
	for name, test := range map[string]struct {
		held matcher
		skip int
		read func(ctx context.Context, tx *Txn) error
	}{
		"get":        {op("read"), 0, get},
		"long value": {op("read"), 1, get},
		"get many": {op("read"), 0, func(ctx context.Context, tx *Txn) error {
			_, err := tx.GetMany(ctx, rowA, rowB)
			return err
		}},
		"get many long": {op("read"), 1, func(ctx context.Context, tx *Txn) error {
			_, err := tx.GetMany(ctx, rowA, rowB)
			return err
		}},
		"for update": {op("read"), 0, func(ctx context.Context, tx *Txn) error {
			_, err := tx.GetForUpdate(ctx, rowA)
			return err
		}},
		"scan": {op("scan"), 0, func(ctx context.Context, tx *Txn) error {
			for _, err := range tx.Scan(ctx, Range{Table: "t"}) {
				if err != nil {
					return err
				}
			}
			return nil
		}},
		"scan long": {op("read"), 0, func(ctx context.Context, tx *Txn) error {
			for _, err := range tx.Scan(ctx, Range{Table: "t"}) {
				if err != nil {
					return err
				}
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r, c := w.client(), w.client()
			set(t, c.DB, rowA, longText)
			tx := begin(t, r)
			set(t, c.DB, rowA, "2")
			p := &pause{t: t, reached: make(chan *call, 1), free: make(chan verdict, 1)}
			r.wire.on(rule{match: test.held, skip: test.skip, before: func(_ context.Context, x *call) verdict {
				p.reached <- x
				return <-p.free
			}})
			t.Cleanup(func() { p.release(pass) })
			done := async(func() error { return test.read(context.Background(), tx) })
			p.wait()
			w.clock.advance(2 * worldAge)
			report, err := w.collect(c, 1)
			require.NoError(t, err)
			require.Greater(t, report.SafePoint, tx.StartTimestamp())
			row := w.raw(rowA)
			require.Len(t, row.Versions, 1, "what is read was to be gone")
			p.release(pass)
			require.ErrorIs(t, w.finish(done), ErrSnapshotTooOld)
		})
	}
}

// C2. Guards: what is known of the safe point counts from when its request left, not
// from when the reply came.
func TestScheduleC2_LateReplyOfTheSafePoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, c := w.client(), w.client()
	set(t, c.DB, rowA, "1")
	tx := begin(t, r)
	set(t, c.DB, rowA, "2")
	w.clock.advance(2 * worldAge)
	p := r.holdReply(t, func(x *call) bool { return x.op == "read" && x.reads[0].Table == tableCatalog }, pass)
	done := async(func() error { _, err := r.loadCatalog(context.Background()); return err })
	p.wait() // it will say that there is no safe point
	_, err := w.collect(c, 1)
	require.NoError(t, err)
	p.release(pass)
	require.NoError(t, w.finish(done))
	_, err = tx.Get(t.Context(), rowA)
	require.ErrorIs(t, err, ErrSnapshotTooOld)
}

// C2. Guards: the collection waits a lease between publishing the safe point and
// removing anything.
func TestScheduleC2_CollectionWaitsALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, c := w.client(), w.client()
	set(t, c.DB, rowA, "1")
	tx := begin(t, r)
	set(t, c.DB, rowA, "2")
	w.clock.advance(2 * worldAge)
	require.Equal(t, "2", value(t, r, rowA)) // r knows the safe point of now
	done := async(func() error { _, err := c.CollectGarbage(context.Background(), 1); return err })
	_, ended := w.clock.sleeps(t, worldLease, done)
	require.False(t, ended)
	w.clock.advance(worldLease - time.Millisecond)
	v, err := tx.Get(t.Context(), rowA)
	if err == nil {
		require.Equal(t, "1", string(v))
	} else {
		require.ErrorIs(t, err, ErrSnapshotTooOld)
	}
	row := w.raw(rowA)
	require.Len(t, row.All(rowstore.Write, "v"), 2)
	w.clock.advance(time.Millisecond)
	require.NoError(t, w.finish(done))
	row = w.raw(rowA)
	require.Len(t, row.All(rowstore.Write, "v"), 1)
}

// C3. Guards: the one-phase commit of a serializable transaction has what it read as
// conditions, foreign locks included; ranges go two ways about it.
func TestScheduleC3_OnePhaseAndSerializable(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		for name, read := range map[string]func(tx *Txn) error{
			"cell": func(tx *Txn) error {
				_, err := tx.Get(t.Context(), rowA)
				if errors.Is(err, ErrNotFound) {
					err = nil
				}
				return err
			},
			"range": func(tx *Txn) (err error) {
				for _, err = range tx.Scan(t.Context(), Range{Table: "t", To: "b"}) {
				}
				return err
			},
		} {
			t1, t2 := w.client(opts...), w.client(opts...)
			for _, found := range []bool{false, true} {
				tx := begin(t, t2, WithIsolation(Serializable))
				require.NoError(t, read(tx))
				require.NoError(t, tx.Set(rowB, []byte("2")))
				set(t, t1.DB, rowA, "1")
				require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict, "%v, found %v", name, found)
				w.noLocks()
				// Undisturbed it commits.
				tx = begin(t, t2, WithIsolation(Serializable))
				require.NoError(t, read(tx))
				require.NoError(t, tx.Set(rowB, []byte("2")))
				require.NoError(t, tx.Commit(t.Context()))
				require.NoError(t, t2.drained(t.Context()))
			}
		}
	})
}

// C3, C12. Guards: a put or delete lock of another on what was read is waited for, or
// aborts; also on a row that holds nothing but that lock. A lock-only one does not
// matter in two phases.
func TestScheduleC3_ForeignLockOnWhatWasRead(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		for _, scanned := range []bool{false, true} {
			for _, commits := range []bool{false, true} {
				t1, t2 := w.client(WithoutGroups()), w.client(opts...)
				fresh := Cell{fmt.Sprint("t", scanned, commits), "x", "v"}
				p := t1.hold(t, commitPoint(fresh))
				young := begin(t, t2, WithIsolation(Serializable))
				if scanned {
					for row, err := range young.Scan(t.Context(), Range{Table: fresh.Table}) {
						t.Fatal("the table is empty", row, err)
					}
				} else {
					_, err := young.Get(t.Context(), fresh)
					require.ErrorIs(t, err, ErrNotFound)
				}
				require.NoError(t, young.Set(rowB, []byte("2")))
				done1 := commit(t1, writes(t, t1, "1", fresh))
				p.wait()
				// T1 is younger, so T2 may not wait for it.
				err := young.Commit(t.Context())
				require.ErrorIs(t, err, ErrConflict)
				p.release(pass)
				require.NoError(t, w.finish(done1))
			}
		}
	})
}

// C4. Serializable is a promise among serializable transactions: next to one under
// Snapshot a skew may form, which the documentation says.
func TestScheduleC4_SkewWithASnapshotTransaction(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c := w.client(opts...)
		set(t, c.DB, rowA, "1")
		set(t, c.DB, rowB, "1")
		si, ser := begin(t, c), begin(t, c, WithIsolation(Serializable))
		for _, tx := range []*Txn{si, ser} {
			_, err := tx.GetMany(t.Context(), rowA, rowB)
			require.NoError(t, err)
		}
		require.NoError(t, si.Set(rowA, []byte("0")))
		require.NoError(t, ser.Set(rowB, []byte("0")))
		require.NoError(t, ser.Commit(t.Context()))
		require.NoError(t, si.Commit(t.Context()))
	})
}

// C5. Guards: whoever resolves deals with the primary first, also when the cell that
// it met is in the primary's own row.
func TestScheduleC5_PrimaryFirst(t *testing.T) {
	t.Parallel()
	sibling := Cell{"t", "a", "sibling"}
	for _, met := range []Cell{sibling, rowB} {
		for name, opts := range ways2 {
			t.Run(name+" "+met.Row, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				t1, c := w.client(opts...), w.client()
				p := t1.hold(t, commitPoint(rowA))
				done := commit(t1, writes(t, t1, "1", rowA, sibling, rowB))
				late := p.wait()
				w.takeForDead(t1)
				// After each change that the resolver makes the commit arrives.
				changes := 0
				c.wire.on(rule{match: op("apply"), times: 10, after: func(_ context.Context, x *call) {
					if changes++; late.again(t) > 0 {
						t.Errorf("the commit went through after %d changes of the resolver", changes)
					}
				}})
				require.Equal(t, "none", value(t, c, met))
				require.Positive(t, changes)
				p.release(pass)
				require.ErrorIs(t, w.finish(done), ErrConflict)
				for _, cell := range []Cell{rowA, sibling, rowB} {
					require.Equal(t, "none", value(t, c, cell))
				}
				w.noLocks()
			})
		}
	}
}

// C6. Guards: a prewrite that arrives after the fence is refused by the mark on the
// primary; on a secondary its lock can only be rolled back.
func TestScheduleC6_DuplicatePrewriteAfterRollBack(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		for _, met := range [][]Cell{{rowA}, {rowA, rowB}, {rowB, rowA}} {
			t1, c := w.client(opts...), w.client()
			p := t1.hold(t, commitPoint(rowA))
			done := commit(t1, writes(t, t1, "1", rowA, rowB))
			late := p.wait()
			prewrite := t1.wire.sent(prewrites)[0]
			w.takeForDead(t1)
			for _, cell := range met {
				require.Equal(t, "none", value(t, c, cell))
			}
			// B is locked still, or again; A never.
			require.Equal(t, len(met)-1, prewrite.again(t), "the primary's prewrite was to be refused")
			row := w.raw(rowA)
			require.Empty(t, row.All(rowstore.Lock, "v"))
			require.Zero(t, late.again(t))
			p.release(pass)
			require.ErrorIs(t, w.finish(done), ErrConflict)
			require.Equal(t, "none none", value(t, c, rowA)+" "+value(t, c, rowB))
			w.noLocks()
		}
	})
}

// C6. Guards: a transaction whose primary was never prewritten is fenced by whoever
// meets its secondary, and by Outcome.
func TestScheduleC6_PrimaryPrewriteArrivesAfterTheFence(t *testing.T) {
	t.Parallel()
	for name, opts := range ways2 {
		for _, asked := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " asked ", asked), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				t1, c := w.client(opts...), w.client()
				t1.only(prewrites, rowB) // the primary's is lost
				p := t1.hold(t, prewrites)
				tx := writes(t, t1, "1", rowA, rowB)
				start := tx.StartTimestamp()
				done := commit(t1, tx)
				p.wait()
				w.takeForDead(t1)
				if asked {
					out, err := c.Outcome(t.Context(), start, rowA)
					require.NoError(t, err)
					require.Equal(t, Outcome{Status: RolledBack}, out)
				} else {
					require.Equal(t, "none", value(t, c, rowB))
				}
				row := w.raw(rowA)
				require.NotNil(t, row.At(rowstore.Rollback, "v", start), "no fence")
				p.release(pass)
				require.ErrorIs(t, w.finish(done), ErrConflict)
				require.Equal(t, "none none", value(t, c, rowA)+" "+value(t, c, rowB))
				w.noLocks()
			})
		}
	}
}

// C7. Guards: also a collection at once keeps what a living transaction may need.
func TestScheduleC7_CollectAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	set(t, c.DB, rowA, "1")
	w.clock.advance(worldAge + worldLease + time.Minute)
	report, err := w.collect(c, time.Nanosecond)
	require.NoError(t, err)
	now, err := c.Now(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, report.SafePoint, now.Add(-worldAge-2*worldLease)) // one lease passed since
	require.Positive(t, report.SafePoint)
}

// C8. Guards: orphan data goes only while no lock stands at its start: a late
// prewrite may have brought it.
func TestScheduleC8_OrphanDataUnderALock(t *testing.T) {
	t.Parallel()
	for _, locked := range []bool{false, true} {
		w := newWorld(t)
		t1, c := w.client(WithoutGroups()), w.client()
		set(t, c.DB, rowA, "0")
		w.clock.advance(worldAge)
		t1.wire.verdict(prewrites, dieAfter)
		tx := begin(t, t1)
		start := tx.StartTimestamp()
		require.NoError(t, tx.Set(rowC, nil))
		require.NoError(t, tx.Set(rowA, []byte(longText)))
		require.Error(t, tx.Commit(t.Context()))
		require.NoError(t, t1.drained(t.Context()))
		prewrite := t1.wire.sent(prewrites)[0]
		require.Equal(t, "0", func() string { w.clock.advance(worldSession * 2); return value(t, c, rowA) }())
		require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowC) }))
		// Only the data is back: of the prewrite, or of a part of it that was undone.
		_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Data, "v", start, []byte(longText)),
		}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		w.clock.advance(2 * worldAge)
		c.wire.on(rule{match: both(op("apply"), on(rowA)), before: func(context.Context, *call) verdict {
			if locked {
				prewrite.again(t)
			}
			return pass
		}})
		_, err = w.collect(c, 1)
		require.NoError(t, err)
		row := w.raw(rowA)
		require.Equal(t, locked, row.At(rowstore.Data, "v", start) != nil, "%+v", row.Versions)
		require.Equal(t, locked, row.At(rowstore.Lock, "v", start) != nil)
	}
}

// C15. Guards: who meets a lock asks for the primary's status before it waits. The
// owner lives, has committed, and does not come to its secondaries.
func TestScheduleC15_StatusBeforeWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, c := w.client(WithoutGroups()), w.client()
	t1.hold(t, secondaries(rowA))
	require.NoError(t, writes(t, t1, "1", rowA, rowB, rowC).Commit(t.Context()))
	require.Equal(t, "1", value(t, c, rowB))
	set(t, c.DB, rowC, "2")
	require.EqualValues(t, 2, c.Stats().RolledForward)
	require.Zero(t, c.Stats().RolledBack)
	// The same for one that is rolled back, whose owner sleeps.
	t2 := w.client(WithoutGroups())
	p := t2.hold(t, commitPoint(rowA))
	tx := writes(t, t2, "3", rowA, rowB)
	start := tx.StartTimestamp()
	done := commit(t2, tx)
	p.wait()
	_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{
		rowstore.Delete(rowstore.Lock, "v", start), rowstore.Put(rowstore.Rollback, "v", start, nil),
	}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	require.Equal(t, "1", value(t, c, rowB))
	p.release(pass)
	require.ErrorIs(t, w.finish(done), ErrConflict)
}

// C17. Guards: the younger start waits for the older, which aborts where it meets
// the younger's lock: two that lock in opposite order both come to an end.
func TestScheduleC17_OppositeOrder(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1, t2 := w.client(opts...), w.client(opts...)
		old, young := writes(t, t1, "old", rowA, rowB), writes(t, t2, "young", rowB, rowA)
		t1.only(prewrites, rowA)
		t2.only(prewrites, rowB)
		p := t1.hold(t, prewrites) // its second
		done1 := commit(t1, old)
		p.wait()
		done2 := commit(t2, young)
		// T2 has locked B, and meets T1's lock on A.
		require.Eventually(t, func() bool { return t2.Stats().LocksMet > 0 }, patience, time.Millisecond)
		p.release(pass)
		require.ErrorIs(t, w.finish(done1), ErrConflict)
		require.NoError(t, w.finish(done2))
		require.Equal(t, "young young", value(t, t1, rowA)+" "+value(t, t1, rowB))
		w.noLocks()
	})
}

// C17. Guards: of two serializable transactions that each wrote what the other read,
// one commits at most, and neither waits for ever.
func TestScheduleC17_ValidationDoesNotDeadlock(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		for _, scanned := range []bool{false, true} {
			t1, t2 := w.client(opts...), w.client(opts...)
			tx1, tx2 := begin(t, t1, WithIsolation(Serializable)), begin(t, t2, WithIsolation(Serializable))
			read := func(tx *Txn, c Cell) {
				if !scanned {
					_, err := tx.GetMany(t.Context(), c)
					require.NoError(t, err)
					return
				}
				for _, err := range tx.Scan(t.Context(), Range{Table: c.Table, From: c.Row, To: c.Row + "\x00"}) {
					require.NoError(t, err)
				}
			}
			read(tx1, rowB)
			read(tx2, rowA)
			require.NoError(t, tx1.Set(rowA, []byte("1")))
			require.NoError(t, tx2.Set(rowB, []byte("2")))
			p1, p2 := t1.hold(t, t1.commitDraw()), t2.hold(t, t2.commitDraw())
			done1, done2 := commit(t1, tx1), commit(t2, tx2)
			p1.wait()
			p2.wait()
			p1.release(pass)
			p2.release(pass)
			err1, err2 := w.finish(done1), w.finish(done2)
			require.False(t, err1 == nil && err2 == nil, "write skew")
			for _, err := range []error{err1, err2} {
				if err != nil {
					require.ErrorIs(t, err, ErrConflict)
				}
			}
			require.NoError(t, t1.drained(t.Context()))
			require.NoError(t, t2.drained(t.Context()))
			w.noLocks()
		}
	})
}

// C18. Guards: when a reader has rolled one cell of a secondary's row forward, the
// owner goes on cell by cell, and leaves no lock.
func TestScheduleC18_RowPartlyRolledForward(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, c := w.client(WithoutGroups()), w.client()
	cells := []Cell{rowA, {"t", "b", "1"}, {"t", "b", "2"}, {"t", "b", "3"}, {"t", "c", "1"}, {"t", "c", "2"}}
	p := t1.hold(t, secondaries(rowA))
	require.NoError(t, writes(t, t1, "1", cells...).Commit(t.Context()))
	p.wait()
	require.Equal(t, "1", value(t, c, cells[2]))
	require.Len(t, w.versions(rowstore.Lock), 4)
	p.release(pass)
	require.NoError(t, t1.drained(t.Context()))
	w.noLocks()
	for _, cell := range cells {
		require.Equal(t, "1", value(t, c, cell))
	}
}

// C19. Guards: rolling back removes the notification of the prewrite too.
func TestScheduleC19_RollBackRemovesTheNotification(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		t1, c := w.client(opts...), w.client()
		p := t1.hold(t, commitPoint(rowA))
		done := commit(t1, writes(t, t1, longText, rowA, rowB))
		p.wait()
		require.Len(t, w.versions(rowstore.Notify), 2)
		require.Len(t, w.versions(rowstore.Data), 2)
		w.takeForDead(t1)
		require.Equal(t, "none", value(t, c, rowB))
		require.Equal(t, "none", value(t, c, rowA))
		require.Empty(t, w.versions(rowstore.Notify, rowstore.Data, rowstore.Lock))
		p.release(pass)
		require.ErrorIs(t, w.finish(done), ErrConflict)
		// Its own abort does the same.
		tx := writes(t, t1, longText, rowA, rowB)
		set(t, c.DB, rowB, "first")
		require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict)
		require.Empty(t, w.versions(rowstore.Data, rowstore.Lock))
		require.Len(t, w.versions(rowstore.Notify), 1, "that of the change")
	})
}

// C20. Guards: after an abort with a prewrite of the primary still under way, the
// primary is fenced.
func TestScheduleC20_FenceAfterOwnAbort(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		ctx, cancel := context.WithCancel(t.Context())
		t1.wire.on(rule{match: prewrites, before: func(context.Context, *call) verdict {
			cancel()
			return lose
		}})
		tx := writes(t, t1, "1", rowA, rowB)
		start := tx.StartTimestamp()
		require.ErrorIs(t, tx.Commit(ctx), context.Canceled)
		require.NoError(t, t1.drained(t.Context()))
		row := w.raw(rowA)
		require.NotNil(t, row.At(rowstore.Rollback, "v", start), "no fence")
		require.Equal(t, 1, t1.wire.sent(prewrites)[0].again(t), "the primary's late prewrite was to be refused")
		require.Equal(t, "none none", value(t, c, rowA)+" "+value(t, c, rowB))
		w.noLocks()
	})
}

// C21. Guards: the parked record is there before the notification goes: whichever
// call of the worker is its last, the change is either parked or found again.
func TestScheduleC21_ParkingLosesNothing(t *testing.T) {
	t.Parallel()
	for name, opts := range ways {
		for _, v := range []verdict{die, dieAfter, lose, loseReply} {
			t.Run(fmt.Sprint(name, "/", v), func(t *testing.T) {
				t.Parallel()
				results := map[string]int{}
				for n, fired := 0, true; fired; n++ {
					w := newWorld(t)
					w.observed("t", "v", "o")
					c, t2 := w.client(opts...), w.client()
					set(t, t2.DB, rowA, "1")
					broken := func(context.Context, *Txn, Cell) error { return errors.New("on purpose") }
					wk := watching(t, c, Observer{Name: "o", MaxAttempts: 1, Func: broken})
					r := c.wire.on(rule{match: func(*call) bool { return true }, skip: n, before: func(context.Context, *call) verdict { return v }})
					for range 8 { // as a worker does, until there is nothing to do
						if result, _, err := wk.runCell(t.Context(), rowA); err == nil && result == runDone {
							break
						}
					}
					require.NoError(t, c.drained(t.Context()))
					c.wire.mu.Lock()
					fired, r.times = r.times == 0, 0
					c.wire.mu.Unlock()
					w.clock.advance(worldSession + time.Second)
					parked, err := t2.Parked(t.Context())
					require.NoError(t, err)
					if len(parked) == 0 {
						require.NotEmpty(t, w.notified(rowA), "neither parked nor notified (call %d)", n)
						results["notified"]++
					} else {
						require.Equal(t, 1, parked[0].Attempts)
						results["parked"]++
					}
					// A later change runs normally and unparks.
					set(t, t2.DB, rowA, "2")
					var s saw
					next := watching(t, t2, s.observer("o"))
					for range 4 {
						look(t, next, rowA)
					}
					require.Contains(t, s.values, "2")
					require.Empty(t, w.notified(rowA))
					parked, err = t2.Parked(t.Context())
					require.NoError(t, err)
					require.Empty(t, parked)
				}
				require.Positive(t, results["parked"])
			})
		}
	}
}

// C21. Guards: workers leave notifications of observers alone that they do not
// have, and clear those of columns for which the catalog has none.
func TestScheduleC21_NotificationsOfUnknownObservers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "other")
	c := w.client()
	var s saw
	wk := watching(t, c, s.observer("mine")) // not in the catalog
	set(t, c.DB, rowA, "1")
	rests(t, wk, rowA)
	require.Len(t, w.notified(rowA), 1)
	require.NoError(t, c.RemoveObserver(t.Context(), "other"))
	w.clock.advance(worldLease)
	rests(t, wk, rowA)
	require.Empty(t, w.notified(rowA))
	require.Empty(t, s.values)
}

// A worker over a lock: it resolves what is decided or dead, and leaves the rest.
func TestScheduleB_WorkerMeetsALock(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		var s saw
		t1, c := w.client(opts...), w.client()
		wk := watching(t, c, s.observer("o"))
		p := t1.hold(t, commitPoint(rowA))
		done := commit(t1, writes(t, t1, "1", rowA, rowB))
		p.wait()
		require.Equal(t, runLocked, look(t, wk, rowB))
		require.Len(t, w.notified(rowB), 1)
		require.Empty(t, s.values)
		w.takeForDead(t1)
		rests(t, wk, rowB)
		require.Empty(t, w.notified(rowB))
		p.release(pass)
		require.ErrorIs(t, w.finish(done), ErrConflict)
		require.Empty(t, w.versions(rowstore.Lock, rowstore.Notify))
	})
}
