package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// errDead is what a client gets from every call after it died.
var errDead = errors.New("conformance: this client is dead")

// call is a call of a client to its store, before it is made.
type call struct {
	method string // Read, Apply, Group, Scan, Draw, ...
	muts   []rowstore.Mutation
	draw   bool // of a Group
}

// commits tells whether a call makes the writes of tx visible: its commit point,
// its secondaries, or all of it in one phase. What others do for it does not count,
// nor what it does for others.
func (c *call) commits(tx *percolator.Txn) bool {
	for _, m := range c.muts {
		own := c.draw
		for _, cond := range m.Conditions {
			own = own || cond.Kind == rowstore.IfPresent && cond.TS == tx.StartTimestamp()
		}
		for _, e := range m.Edits {
			if own && e.Kind == rowstore.DoPut && e.Family == rowstore.Write && m.Table[0] != 0 {
				return true
			}
		}
	}
	return false
}

// prewrites tells whether a call puts a lock in a user's table.
func (c *call) prewrites() bool {
	for _, m := range c.muts {
		for _, e := range m.Edits {
			if e.Kind == rowstore.DoPut && e.Family == rowstore.Lock && m.Table[0] != 0 {
				return true
			}
		}
	}
	return false
}

// fate is what becomes of a call.
type fate int

const (
	goesThrough fate = iota
	diesBefore       // the client is dead before the call leaves
	diesAfter        // the call is carried out, and the client is dead before the answer comes
	lostBefore       // the answer is "unknown"; nothing happened
	lostAfter        // the answer is "unknown"; it happened
	lostLate         // the answer is "unknown"; it happens a little later
	refused          // a certain error
)

// client is a store as one process sees it. Several share the store beneath: Close
// ends the client alone. A hook decides what becomes of each of its calls.
type client struct {
	inner rowstore.Store

	mu     sync.Mutex
	hook   func(ctx context.Context, c *call) fate
	dead   bool
	closed bool
	died   chan struct{}
	late   sync.WaitGroup

	lasting bool // see mortal
}

func newClient(inner rowstore.Store) *client {
	return &client{inner: inner, died: make(chan struct{})}
}

// on sets the hook; nil lets everything through.
func (c *client) on(hook func(ctx context.Context, cl *call) fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hook = hook
}

// mortal prepares the client for its death: a change that has left is carried out,
// even when its context ends, and settle waits for it. A store that gives up a call
// with its context may carry it out at any later time, which is the subject of other
// tests; here it would make what is read right after a death go stale.
func (c *client) mortal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lasting = true
}

// settle waits for the changes that had left when the client died.
func (c *client) settle() {
	c.kill()
	c.late.Wait()
}

// close closes the client's DB, which waits for what goes on in the background, unless
// the client dies meanwhile: its calls get no answers then.
func (c *client) close(ctx context.Context, db *percolator.DB) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = db.Close(ctx)
	}()
	select {
	case <-closed:
	case <-c.died:
		cancel()
		<-closed
	}
}

// leave counts a change that goes to the store, and gives it a context that the
// client's death does not end.
func (c *client) leave(ctx context.Context) (_ context.Context, arrived func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.lasting:
		return ctx, func() {}, nil
	case c.dead:
		return ctx, nil, errDead
	}
	c.late.Add(1)
	return context.WithoutCancel(ctx), c.late.Done, nil
}

// kill makes every later call fail.
func (c *client) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.dead {
		c.dead = true
		close(c.died)
	}
}

func (c *client) judge(ctx context.Context, cl *call) (fate, error) {
	c.mu.Lock()
	hook, dead, closed := c.hook, c.dead, c.closed
	c.mu.Unlock()
	switch {
	case closed:
		return refused, rowstore.ErrClosed
	case dead:
		return refused, errDead
	case ctx.Err() != nil:
		return refused, ctx.Err()
	case hook == nil:
		return goesThrough, nil
	}
	f := hook(ctx, cl)
	switch f {
	case refused:
		return f, fmt.Errorf("conformance: the call is refused")
	case diesBefore:
		c.kill()
		return f, errDead
	}
	// The hook may have waited.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return refused, errDead
	}
	return f, nil
}

// lost is the error of a call whose answer did not come.
var errLost = fmt.Errorf("conformance: the answer was lost: %w", rowstore.ErrAmbiguous)

// do makes a call, or does what its fate says.
func do[T any](ctx context.Context, c *client, cl *call, run func(ctx context.Context) (T, error)) (T, error) {
	var none T
	f, err := c.judge(ctx, cl)
	if err != nil {
		return none, err
	}
	switch f {
	case lostBefore:
		return none, errLost
	case lostLate:
		c.late.Go(func() { _, _ = run(context.WithoutCancel(ctx)) })
		return none, errLost
	}
	if f == diesAfter || f == lostAfter {
		ctx = context.WithoutCancel(ctx) // it left before anything ended
	}
	if cl.muts != nil {
		var arrived func()
		if ctx, arrived, err = c.leave(ctx); err != nil {
			return none, err
		}
		defer arrived()
	}
	answer, err := run(ctx)
	switch f {
	case diesAfter:
		c.kill()
		return none, errDead
	case lostAfter:
		return none, errLost
	}
	return answer, err
}

// copyMutations copies what a call that is carried out later must not share.
func copyMutations(muts []rowstore.Mutation) []rowstore.Mutation {
	out := slices.Clone(muts)
	for i := range out {
		out[i].Conditions, out[i].Edits = slices.Clone(out[i].Conditions), slices.Clone(out[i].Edits)
		for j := range out[i].Edits {
			out[i].Edits[j].Value = slices.Clone(out[i].Edits[j].Value)
		}
	}
	return out
}

func (c *client) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	return do(ctx, c, &call{method: "Read"}, func(ctx context.Context) ([]rowstore.Row, error) { return c.inner.Read(ctx, reads) })
}

func (c *client) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	muts = copyMutations(muts)
	return do(ctx, c, &call{method: "Apply", muts: muts}, func(ctx context.Context) ([]rowstore.Outcome, error) { return c.inner.Apply(ctx, muts, opts) })
}

func (c *client) Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		if _, err := c.judge(ctx, &call{method: "Scan"}); err != nil {
			yield(rowstore.Row{}, err)
			return
		}
		for r, err := range c.inner.Scan(ctx, s) {
			if !yield(r, err) {
				return
			}
		}
	}
}

func (c *client) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		if _, err := c.judge(ctx, &call{method: "Tables"}); err != nil {
			yield("", err)
			return
		}
		for name, err := range c.inner.Tables(ctx) {
			if !yield(name, err) {
				return
			}
		}
	}
}

func (c *client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.late.Wait()
	return nil
}

// Offer makes the client a rowstore.Decorator: it has the abilities of its store.
func (c *client) Offer(target any) bool {
	switch t := target.(type) {
	case *rowstore.Grouper:
		g, ok := rowstore.Unwrap[rowstore.Grouper](c.inner)
		if ok {
			*t = &clientGrouper{g, c}
		}
		return ok
	case *rowstore.Deferrer:
		d, ok := rowstore.Unwrap[rowstore.Deferrer](c.inner)
		if ok {
			*t = &clientDeferrer{d, c}
		}
		return ok
	case *rowstore.OracleProvider:
		_, ok := rowstore.Unwrap[rowstore.OracleProvider](c.inner)
		if ok {
			*t = clientOracle{c}
		}
		return ok
	case *rowstore.Splitter:
		s, ok := rowstore.Unwrap[rowstore.Splitter](c.inner)
		*t = s
		return ok
	case *rowstore.Waker:
		w, ok := rowstore.Unwrap[rowstore.Waker](c.inner)
		if ok {
			*t = &clientWaker{w, c}
		}
		return ok
	case *rowstore.Limiter:
		l, ok := rowstore.Unwrap[rowstore.Limiter](c.inner)
		*t = l
		return ok
	case *rowstore.Placer:
		p, ok := rowstore.Unwrap[rowstore.Placer](c.inner)
		*t = p
		return ok
	}
	return false // a Report would only repeat its warnings
}

type clientGrouper struct {
	rowstore.Grouper
	c *client
}

func (g *clientGrouper) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	cl := &call{method: "Group"}
	groups = slices.Clone(groups)
	for i := range groups {
		groups[i].Mutations = copyMutations(groups[i].Mutations)
		cl.muts = append(cl.muts, groups[i].Mutations...)
		cl.draw = cl.draw || groups[i].Draw
	}
	return do(ctx, g.c, cl, func(ctx context.Context) ([]rowstore.GroupOutcome, error) { return g.Grouper.Group(ctx, groups) })
}

type clientDeferrer struct {
	rowstore.Deferrer
	c *client
}

func (d *clientDeferrer) Flush(ctx context.Context) error {
	_, err := do(ctx, d.c, &call{method: "Flush"}, func(ctx context.Context) (struct{}, error) { return struct{}{}, d.Deferrer.Flush(ctx) })
	return err
}

type clientOracle struct{ c *client }

func (o clientOracle) Oracle() oracle.Oracle { return o }

func (o clientOracle) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	p, ok := rowstore.Unwrap[rowstore.OracleProvider](o.c.inner)
	if !ok {
		return 0, errors.New("conformance: the store's oracle is gone")
	}
	return do(ctx, o.c, &call{method: "Draw"}, func(ctx context.Context) (oracle.Timestamp, error) { return p.Oracle().Draw(ctx, n) })
}

type clientWaker struct {
	rowstore.Waker
	c *client
}

func (w *clientWaker) Listen(ctx context.Context, wake func(string)) error {
	if _, err := w.c.judge(ctx, &call{method: "Listen"}); err != nil {
		return err
	}
	return w.Waker.Listen(ctx, wake)
}

// world is a store with any number of clients, for a test of transactions.
type world struct {
	testing.TB
	e     *env
	ctx   context.Context //nolint:containedctx // of one test
	inner rowstore.Store
	way   []percolator.Option
}

// db opens a DB over a client of its own, closed when the test ends.
func (w *world) db(opts ...percolator.Option) *percolator.DB {
	w.Helper()
	db, _ := w.client(opts...)
	return db
}

// client is db, with the client.
func (w *world) client(opts ...percolator.Option) (*percolator.DB, *client) {
	w.Helper()
	c := newClient(w.inner)
	db := w.over(c, opts...)
	w.Cleanup(func() {
		c.on(nil)
		ctx, cancel := context.WithTimeout(context.Background(), w.e.cfg.hang)
		defer cancel()
		select {
		case <-c.died:
			cancel() // its calls get no answers: there is nothing to wait for
		default:
		}
		err := db.Close(ctx)
		select {
		case <-c.died:
		default:
			if err != nil {
				w.Errorf("closing the DB: %v", err)
			}
		}
	})
	return db, c
}

// faulty opens a DB over a rowstore.Faulty. Nothing goes wrong before its rates
// are set, and from settle on.
func (w *world) faulty(seed uint64, opts ...percolator.Option) (db *percolator.DB, f *rowstore.Faulty, settle func()) {
	w.Helper()
	f = rowstore.NewFaulty(w.inner, rowstore.FaultyOptions{Seed: seed, KeepOpen: true})
	db = w.over(f, opts...)
	settle = func() {
		f.SetRates(rowstore.Rates{})
		f.DeliverLate()
		ctx, cancel := context.WithTimeout(context.Background(), w.e.cfg.hang)
		defer cancel()
		if err := db.Close(ctx); err != nil {
			w.Errorf("closing the DB: %v", err)
		}
	}
	w.Cleanup(settle)
	return db, f, settle
}

func (w *world) over(s rowstore.Store, opts ...percolator.Option) *percolator.DB {
	w.Helper()
	all := slices.Concat([]percolator.Option{percolator.WithLogger(quiet), percolator.WithSettings(testSettings)}, longLease, w.e.cfg.db, w.way, opts)
	db, err := percolator.New(w.ctx, s, all...)
	require.NoError(w, err)
	return db
}

// setRates makes calls go wrong in every way that a client survives.
func (w *world) setRates(f *rowstore.Faulty) {
	changes := rowstore.Rates{Fail: 0.04, LoseReply: 0.1, FailRow: 0.04, LoseRow: 0.05, Delay: 0.02, Late: 0.05, Twice: 0.08}
	if _, ok := rowstore.Unwrap[rowstore.Crasher](w.inner); ok {
		changes.CrashStore = 0.01
	}
	f.SetRates(changes, rowstore.CallApply, rowstore.CallGroup)
	f.SetRates(rowstore.Rates{Fail: 0.02, FailRow: 0.02, Delay: 0.02}, rowstore.CallRead, rowstore.CallDraw, rowstore.CallScan)
}

// dieAt has a client write and die right before its call number n that makes the
// transaction visible: 1 is the commit point, 2 the first secondary after it. A
// conflict, which a busy machine makes, is tried again. It returns the transaction,
// and whether Commit returned nil.
func (w *world) dieAt(n int64, opts []percolator.Option, pairs ...any) (tx *percolator.Txn, acknowledged bool) {
	w.Helper()
	for {
		db, c := w.client(opts...)
		c.mortal()
		tx := w.begin(db)
		w.write(tx, pairs...)
		var calls atomic.Int64
		c.on(func(_ context.Context, cl *call) fate {
			if cl.commits(tx) && calls.Add(1) == n {
				return diesBefore
			}
			return goesThrough
		})
		ctx, cancel := context.WithCancel(w.ctx)
		stop := context.AfterFunc(w.ctx, cancel)
		go func() {
			defer cancel()
			select {
			case <-c.died: // a process that is dead waits for nothing
			case <-ctx.Done():
			}
		}()
		err := tx.Commit(ctx)
		if errors.Is(err, percolator.ErrConflict) {
			cancel()
			stop()
			continue
		}
		select {
		case <-c.died:
		case <-w.ctx.Done():
			w.Fatalf("the client did not come to its death")
		}
		c.settle()
		cancel()
		stop()
		return tx, err == nil
	}
}

// quiet drops what is logged: lost replies and dead clients are what these tests
// are about.
var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// testSettings and longLease are long, because a machine that is busy for a lease
// makes transactions conflict that have nothing to do with each other. Tests that
// wait for a lease have shorter ones, and expect such conflicts.
var testSettings = percolator.Settings{MaxTxnAge: 5 * time.Minute, Retention: time.Hour, CatalogLease: time.Minute}

var longLease = []percolator.Option{percolator.WithSessionLease(2 * time.Minute), percolator.WithLockExpiry(2 * time.Minute)}

// eachWay runs a test for each way in which the store can commit a transaction,
// each over a store of its own.
func (e *env) eachWay(t testing.TB, run func(w *world)) {
	t.Helper()
	e.eachWayWith(t, false, run)
}

// eachLockingWay is eachWay without one phase, where nothing is ever locked.
func (e *env) eachLockingWay(t testing.TB, run func(w *world)) {
	t.Helper()
	e.eachWayWith(t, true, run)
}

func (e *env) eachWayWith(t testing.TB, locking bool, run func(w *world)) {
	t.Helper()
	groups, draws, defers := e.abilities(t)
	if draws && !locking {
		e.in(t, "OnePhase", nil, run)
	}
	if groups {
		e.in(t, "Groups", []percolator.Option{percolator.WithoutOnePhase()}, run)
	}
	e.in(t, "TwoPhase", []percolator.Option{percolator.WithoutGroups()}, run)
	if defers {
		e.in(t, "Undeferred", []percolator.Option{percolator.WithoutGroups(), percolator.WithoutDeferred()}, run)
	}
}

// abilities tells how the stores that open opens can commit, which a test finds out
// once for all.
func (e *env) abilities(t testing.TB) (groups, draws, defers bool) {
	t.Helper()
	e.probe.Lock()
	defer e.probe.Unlock()
	if !e.probe.done {
		s := e.open(t)
		g, groups := rowstore.Unwrap[rowstore.Grouper](s)
		e.probe.groups, e.probe.draws = groups, groups && g.Draws(g.GroupKey(table, "r"))
		_, e.probe.defers = rowstore.Unwrap[rowstore.Deferrer](s)
		require.NoError(t, s.Close())
		e.probe.done = true
	}
	return e.probe.groups, e.probe.draws, e.probe.defers
}

func (e *env) in(t testing.TB, name string, way []percolator.Option, run func(w *world)) {
	t.Helper()
	sub(t, name, func(t testing.TB) { run(e.world(t, way...)) })
}

func (e *env) world(t testing.TB, way ...percolator.Option) *world {
	t.Helper()
	return &world{TB: t, e: e, ctx: e.context(t), inner: e.store(t), way: way}
}

// sub runs a subtest where t can have some.
func sub(t testing.TB, name string, run func(t testing.TB)) {
	t.Helper()
	if tt, ok := t.(*testing.T); ok {
		tt.Run(name, func(t *testing.T) { run(t) })
		return
	}
	run(t)
}

// table is the one that tests of transactions use where one is enough.
const table = "t"

// at names a cell of it.
func at(row string) percolator.Cell { return percolator.Cell{Table: table, Row: row, Column: "v"} }

// missing stands for a cell without a value.
const missing = "<none>"

// value reads a cell in a transaction.
func (w *world) value(tx *percolator.Txn, c percolator.Cell) string {
	w.Helper()
	v, err := tx.Get(w.ctx, c)
	if errors.Is(err, percolator.ErrNotFound) {
		return missing
	}
	require.NoError(w, err)
	return string(v)
}

// now reads cells in a transaction of their own.
func (w *world) now(db *percolator.DB, cells ...percolator.Cell) []string {
	w.Helper()
	var values []string
	require.NoError(w, db.View(w.ctx, func(tx *percolator.Txn) error {
		for _, c := range cells {
			values = append(values, w.value(tx, c))
		}
		return nil
	}))
	return values
}

// set commits values: cells and values in turn, where missing deletes.
func (w *world) set(db *percolator.DB, pairs ...any) percolator.Timestamp {
	w.Helper()
	var ts percolator.Timestamp
	require.NoError(w, db.Update(w.ctx, func(tx *percolator.Txn) error {
		w.write(tx, pairs...)
		return nil
	}))
	ts, err := db.Now(w.ctx)
	require.NoError(w, err)
	return ts
}

// write writes in a transaction what set commits.
func (w *world) write(tx *percolator.Txn, pairs ...any) {
	w.Helper()
	for i := 0; i < len(pairs); i += 2 {
		c, ok := pairs[i].(percolator.Cell)
		require.True(w, ok)
		v, ok := pairs[i+1].(string)
		require.True(w, ok)
		if v == missing {
			require.NoError(w, tx.Delete(c))
			continue
		}
		require.NoError(w, tx.Set(c, []byte(v)))
	}
}

func (w *world) begin(db *percolator.DB, opts ...percolator.TxnOption) *percolator.Txn {
	w.Helper()
	tx, err := db.Begin(w.ctx, opts...)
	require.NoError(w, err)
	return tx
}

// commit commits, and must.
func (w *world) commit(tx *percolator.Txn) {
	w.Helper()
	require.NoError(w, tx.Commit(w.ctx))
}

// conflicts commits, and must meet a conflict.
func (w *world) conflicts(tx *percolator.Txn) {
	w.Helper()
	require.ErrorIs(w, tx.Commit(w.ctx), percolator.ErrConflict)
}

// scanned collects a scan as "row.column=value" and the like.
func (w *world) scanned(tx *percolator.Txn, r percolator.Range) []string {
	w.Helper()
	if r.Table == "" {
		r.Table = table
	}
	out := []string{}
	for row, err := range tx.Scan(w.ctx, r) {
		require.NoError(w, err)
		require.NotEmpty(w, row.Columns, "a row without a value is not visited")
		var columns []string
		for c, v := range row.Columns {
			columns = append(columns, "."+c+"="+string(v))
		}
		slices.Sort(columns)
		out = append(out, row.Key+strings.Join(columns, ""))
	}
	return out
}

// locks lists the rows of the user's tables that hold locks.
func (w *world) locks() []string {
	w.Helper()
	locked := []string{}
	for name, err := range w.inner.Tables(w.ctx) {
		require.NoError(w, err)
		if name[0] == 0 {
			continue
		}
		rows, err := collect(w.ctx, w.inner, rowstore.ScanRange{Table: name, Picks: []rowstore.Pick{pick(rowstore.Lock)}})
		require.NoError(w, err)
		for _, r := range rows {
			locked = append(locked, name+"/"+r.Row)
		}
	}
	return locked
}

// until asks again and again until cond holds. Each turn makes calls to the store,
// or waits for the oracle's time to pass; nothing is measured.
func (w *world) until(what string, cond func() bool) {
	w.Helper()
	for !cond() {
		if w.ctx.Err() != nil {
			w.Fatalf("waited in vain for %s", what)
		}
		pause(w.ctx)
	}
}

// pause is what loops that look again do between their looks.
func pause(ctx context.Context) {
	t := time.NewTimer(time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// pass waits until that much of the oracle's time has passed.
func (w *world) pass(db *percolator.DB, d time.Duration) {
	w.Helper()
	from, err := db.Now(w.ctx)
	require.NoError(w, err)
	w.until("time to pass", func() bool {
		ts, err := db.Now(w.ctx)
		require.NoError(w, err)
		return ts > from.Add(d)
	})
}
