package percolator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A world in which the test drives every call: every client has a wire (wire_test.go) to
// one Memory, and the test says which of its calls is held, lost, doubled, or the last
// of its life. Time stands still unless the test moves it, so that nothing happens but
// what the test lets happen.

// Settings of a world. The lease is no other duration's length, so that a test
// can tell who sleeps for it.
const (
	worldLease     = 7 * time.Second
	worldAge       = 10 * time.Minute
	worldRetention = time.Hour
	worldSession   = 5 * time.Second
	worldExpiry    = 11 * time.Second
)

// errTest is an error of no meaning to the library.
var errTest = errors.New("test: an error")

// patience bounds a wait for something that must happen.
const patience = 30 * time.Second

// world is a store, a clock that stands still, and clients.
type world struct {
	t       testing.TB
	mem     *memstore.Store
	clock   *fakeClock
	clients []*client
}

func newWorld(t testing.TB, opts ...memstore.Option) *world {
	t.Helper()
	clock := &fakeClock{now: time.UnixMilli(1_700_000_000_000), sleepers: map[*sleeper]struct{}{}, changed: make(chan struct{})}
	return &world{t: t, clock: clock, mem: memstore.New(append(opts, memstore.WithClock(clock.Now))...)}
}

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

// ways2 are those with a prewrite.
var ways2 = map[string][]Option{"group": {withoutOnePhase()}, "two phase": {withoutGroups()}}

func eachWorld2(t *testing.T, test func(t *testing.T, w *world, opts ...Option)) {
	t.Parallel()
	for name, opts := range ways2 {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t), opts...)
		})
	}
}

// client is a DB over a wire of its own: a process.
type client struct {
	*DB
	wire *wire
}

func (w *world) client(opts ...Option) *client {
	w.t.Helper()
	return w.clientOver(newWire(w.mem), opts...)
}

func (w *world) clientOver(wi *wire, opts ...Option) *client {
	w.t.Helper()
	all := append([]Option{
		WithClock(w.clock), withSeed(1), WithLogger(slog.New(slog.DiscardHandler)),
		WithSettings(Settings{MaxTxnAge: worldAge, Retention: worldRetention, CatalogLease: worldLease}),
		WithSessionLease(worldSession), WithLockExpiry(worldExpiry),
	}, opts...)
	db, err := New(w.t.Context(), wi, all...)
	require.NoError(w.t, err)
	db.session.most = 0 // the time jumps while calls are under way, and they seem slow
	c := &client{DB: db, wire: wi}
	w.clients = append(w.clients, c)
	atend.Do(w.t, func() {
		wi.SetRules()
		wi.mu.Lock()
		for _, b := range wi.breaches {
			w.t.Error(b)
		}
		wi.mu.Unlock()
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
			v.Observers = append(v.Observers, format.Observer{Name: []byte(n), Table: []byte(format.Escape(table)), Column: []byte(format.Escape(column)), Swept: 1})
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
		if format.Reserved(table) {
			continue
		}
		var picks []rowstore.Selector
		for _, f := range families {
			picks = append(picks, everything(f, rowstore.AllColumns))
		}
		for row, err := range w.mem.Scan(w.t.Context(), rowstore.ScanRange{Table: table, Selectors: picks}) {
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

// settled waits until what commits do in the background has resolved all locks.
func (w *world) settled() {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return len(w.versions(rowstore.Lock)) == 0 }, patience, time.Millisecond, "locks are left")
}

// raw is one row as it is stored.
func (w *world) raw(c Cell) rowstore.Row {
	w.t.Helper()
	var picks []rowstore.Selector
	for f := rowstore.Lock; f <= rowstore.Notify; f++ {
		picks = append(picks, everything(f, rowstore.AllColumns))
	}
	c = c.stored()
	rows, err := w.mem.Read(w.t.Context(), []rowstore.RowRead{{Table: c.Table, Row: c.Row, Selectors: picks}})
	require.NoError(w.t, err)
	return rows[0]
}

// copies stores n rows that have all that the row of a cell has, for tests that need very many.
func (w *world) copies(of Cell, n int, name func(i int) Cell) {
	w.t.Helper()
	row := w.raw(of)
	edits := make([]rowstore.Edit, 0, len(row.Versions))
	for _, v := range row.Versions {
		edits = append(edits, rowstore.Put(v.Family, v.Column, v.TS, v.Value))
	}
	muts := make([]rowstore.Mutation, 0, n)
	for i := range n {
		cell := name(i).stored()
		muts = append(muts, rowstore.Mutation{Table: cell.Table, Row: cell.Row, Edits: edits})
	}
	_, err := w.mem.Apply(w.t.Context(), muts, rowstore.ApplyOptions{})
	require.NoError(w.t, err)
}

// collect collects garbage, whose wait it lets pass.
func (w *world) collect(c *client, keep time.Duration) (GCReport, error) {
	w.t.Helper()
	return w.collectBy(c, GCOptions{Keep: keep, Full: true})
}

func (w *world) collectBy(c *client, opts GCOptions) (GCReport, error) {
	w.t.Helper()
	var report GCReport
	done := async(func() (err error) {
		report, err = c.CollectGarbage(w.t.Context(), opts)
		return err
	})
	if err, ended := w.clock.sleeps(w.t, worldLease, done); ended {
		return report, err
	}
	w.pass(worldLease)
	return report, w.finish(done)
}

// takeForDead makes everybody else take a client for dead, which it is not.
func (w *world) takeForDead(c *client) {
	w.t.Helper()
	c.session.mu.Lock()
	id := c.session.id
	c.session.mu.Unlock()
	require.NotEmpty(w.t, id, "the client has no session")
	_, err := w.mem.Apply(w.t.Context(), []rowstore.Mutation{{Table: format.TableSessions, Row: id, Edits: []rowstore.Edit{
		rowstore.DeleteRange(rowstore.Write, format.ColumnLease, 0, oracle.Max),
	}}}, rowstore.ApplyOptions{})
	require.NoError(w.t, err)
}

// pass moves the time on in steps, and lets every process that lives renew its
// session after each.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	w.renewed()
	for d > 0 {
		step := time.Second
		if d > time.Minute {
			step = worldSession / 2 // fewer steps. A longer one would leave a lease no time to be renewed.
		}
		step = min(d, step)
		w.clock.advance(step)
		w.renewed()
		d -= step
	}
}

// renewed waits until whatever renews a session has done so and sleeps again.
func (w *world) renewed() {
	w.t.Helper()
	running := w.renewals()
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

// renewals are the contexts with which sessions are renewed: only what renews one sleeps with its DB's own context.
func (w *world) renewals() map[context.Context]struct{} {
	running := map[context.Context]struct{}{}
	for _, c := range w.clients {
		c.session.mu.Lock()
		if c.session.running {
			running[c.DB.ctx] = struct{}{}
		}
		c.session.mu.Unlock()
	}
	return running
}

// awaited tells whether anybody sleeps until later, but for what renews sessions.
func (w *world) awaited() bool {
	renewals := w.renewals()
	w.clock.mu.Lock()
	defer w.clock.mu.Unlock()
	for s := range w.clock.sleepers {
		if _, ok := renewals[s.ctx]; !ok {
			return true
		}
	}
	return false
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

// value is what a client reads in a transaction of its own.
func value(t testing.TB, c *client, cell Cell) string {
	t.Helper()
	v, err := read(t, c, cell)
	require.NoError(t, err)
	return v
}

// valueBeside is value beside an erasure, which may make the snapshot too old before it is read: then it is "".
func valueBeside(t testing.TB, c *client, cell Cell) string {
	t.Helper()
	v, err := read(t, c, cell)
	if !errors.Is(err, ErrSnapshotTooOld) {
		require.NoError(t, err)
	}
	return v
}

func read(t testing.TB, c *client, cell Cell) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tx, err := c.Begin(ctx)
	require.NoError(t, err)
	v, err := tx.Get(ctx, cell)
	if errors.Is(err, ErrNotFound) {
		return "none", nil
	}
	return string(v), err
}

func row(name string) Cell { return Cell{"t", name, "v"} }

var (
	rowA, rowB, rowC = row("a"), row("b"), row("c")
	longText         = strings.Repeat("long ", 100)
)

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
func look(t testing.TB, w *Worker, cell Cell) nextStep {
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
	require.Contains(t, []nextStep{runAgain, runDone}, result)
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
	for _, n := range row.All(rowstore.Notify, format.Escape(cell.Column)) {
		all = append(all, n.TS)
	}
	return all
}

// saw is an observer that keeps what it has seen.
type saw struct {
	mu     sync.Mutex
	values []string
	during func(tx *Txn) // called within the function, if not nil
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

// startOf is the start timestamp of a transaction, 0 if it cannot be drawn.
func startOf(tx *Txn) Timestamp {
	ts, _ := tx.StartTimestamp(context.Background())
	return ts
}
