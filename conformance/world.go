package conformance

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// world is a store with any number of clients, for a test of transactions.
type world struct {
	testing.TB
	e     *env
	ctx   context.Context //nolint:containedctx // of one test
	inner rowstore.Store
	way   []percolator.Option
	// mixed, if there are any, are ways between which the DBs take turns instead.
	mixed [][]percolator.Option
	turn  int
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
	atend.Do(w, func() {
		c.on(nil)
		ctx, cancel := context.WithTimeout(context.Background(), w.e.cfg.hang)
		defer cancel()
		if c.died() {
			cancel() // its calls get no answers: there is nothing to wait for
		}
		if err := db.Close(ctx); err != nil && !c.died() {
			w.Errorf("closing the DB: %v", err)
		}
	})
	return db, c
}

// faulty opens a DB over a faultstore.Store. Nothing goes wrong before its rates
// are set, and from settle on.
func (w *world) faulty(seed uint64, opts ...percolator.Option) (db *percolator.DB, f *faultstore.Store, settle func()) {
	w.Helper()
	f = faultstore.New(w.inner, faultstore.Options{Seed: seed, KeepOpen: true})
	db = w.over(f, opts...)
	settle = func() {
		f.SetRates(faultstore.Rates{})
		f.DeliverLate()
		ctx, cancel := context.WithTimeout(context.Background(), w.e.cfg.hang)
		defer cancel()
		if err := db.Close(ctx); err != nil {
			w.Errorf("closing the DB: %v", err)
		}
	}
	atend.Do(w, settle)
	return db, f, settle
}

func (w *world) over(s rowstore.Store, opts ...percolator.Option) *percolator.DB {
	w.Helper()
	way := w.way
	if len(w.mixed) > 0 {
		way = w.mixed[w.turn%len(w.mixed)]
		w.turn++
	}
	all := slices.Concat([]percolator.Option{percolator.WithLogger(quiet), percolator.WithSettings(testSettings)}, longLease, w.e.cfg.db, way, opts)
	db, err := percolator.New(w.ctx, s, all...)
	require.NoError(w, err)
	return db
}

// setRates makes calls go wrong in every way that a client survives.
func (w *world) setRates(f *faultstore.Store) {
	changes := faultstore.Rates{Fail: 0.04, LoseReply: 0.1, FailRow: 0.04, LoseRow: 0.05, Delay: 0.02, Late: 0.05, Twice: 0.08}
	if _, ok := rowstore.Unwrap[rowstore.Crasher](w.inner); ok {
		changes.CrashStore = 0.01
	}
	f.SetRates(changes, faultstore.CallApply, faultstore.CallGroup)
	f.SetRates(faultstore.Rates{Fail: 0.02, FailRow: 0.02, Delay: 0.02}, faultstore.CallRead, faultstore.CallDraw, faultstore.CallScan)
}

// dieAt has a client write and die right before its call number n that makes the
// transaction visible: 1 is the commit point, 2 the first secondary after it. A
// conflict, which a busy machine makes, is tried again. It returns the transaction,
// and whether Commit returned nil.
func (w *world) dieAt(n int64, opts []percolator.Option, pairs ...any) (tx *percolator.Txn, acknowledged bool) {
	w.Helper()
	for {
		db, c := w.client(opts...)
		c.Outlive()
		tx := w.begin(db)
		w.write(tx, pairs...)
		var calls atomic.Int64
		c.on(func(_ context.Context, cl *call) fate {
			if commits(cl, tx) && calls.Add(1) == n {
				return diesBefore
			}
			return goesThrough
		})
		ctx, cancel := c.living(w.ctx)
		err := tx.Commit(ctx)
		if errors.Is(err, percolator.ErrConflict) {
			cancel()
			continue
		}
		select {
		case <-c.Crashed():
		case <-w.ctx.Done():
			w.Fatalf("the client did not come to its death")
		}
		c.Settle()
		cancel()
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

// eachWayAndAll is eachWay, and then a run in which the DBs take turns between the ways, as they may in a database: a large transaction takes
// two phases where a small one takes one.
func (e *env) eachWayAndAll(t testing.TB, run func(w *world)) {
	t.Helper()
	e.eachWay(t, run)
	groups, draws, _ := e.abilities(t)
	if !groups {
		return
	}
	ways := [][]percolator.Option{{coretest.WithoutOnePhase()}, {coretest.WithoutGroups()}}
	if draws {
		ways = append(ways, nil)
	}
	sub(t, "Mixed", func(t testing.TB) {
		w := e.world(t)
		w.mixed = ways
		run(w)
	})
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
		e.in(t, "Groups", []percolator.Option{coretest.WithoutOnePhase()}, run)
	}
	e.in(t, "TwoPhase", []percolator.Option{coretest.WithoutGroups()}, run)
	if defers {
		e.in(t, "Undeferred", []percolator.Option{coretest.WithoutGroups(), coretest.WithoutDeferred()}, run)
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
		e.probe.groups, e.probe.draws = groups, groups && g.AssignsTimestamps(g.GroupKey(table, "r"))
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

// set commits values: cells and values in turn, where missing deletes. A machine that stood still for longer than
// the short MaxTxnAge of quickly makes a transaction too old: it had no effect then, and is begun again.
func (w *world) set(db *percolator.DB, pairs ...any) percolator.Timestamp {
	w.Helper()
	const tries = 5
	var err error
	for range tries {
		err = db.Update(w.ctx, func(tx *percolator.Txn) error {
			w.write(tx, pairs...)
			return nil
		})
		if !errors.Is(err, percolator.ErrTxnTooOld) {
			break
		}
	}
	require.NoError(w, err)
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
		if format.Reserved(name) {
			continue
		}
		rows, err := collect(w.ctx, w.inner, rowstore.ScanRange{Table: name, Selectors: []rowstore.Selector{pick(rowstore.Lock)}})
		require.NoError(w, err)
		for _, r := range rows {
			locked = append(locked, name+"/"+r.Row)
		}
	}
	return locked
}

// until asks again and again until cond holds. Each turn makes calls to the store, so the
// turns become rarer: most wait for a lease to end. Nothing is measured.
func (w *world) until(what string, cond func() bool) {
	w.Helper()
	const longest = 20 * time.Millisecond
	for wait := time.Millisecond; !cond(); wait = min(wait*3/2, longest) {
		if w.ctx.Err() != nil {
			w.Fatalf("waited in vain for %s", what)
		}
		_ = contexts.Sleep(w.ctx, wait)
	}
}

// pause is what loops that look again do between their looks.
func pause(ctx context.Context) { _ = contexts.Sleep(ctx, time.Millisecond) }

// pass waits until that much of the oracle's time has passed.
func (w *world) pass(db *percolator.DB, d time.Duration) {
	w.Helper()
	from, err := db.Now(w.ctx)
	require.NoError(w, err)
	for now := from; now <= from.Add(d); {
		if w.ctx.Err() != nil {
			w.Fatalf("waited in vain for %v to pass", d)
		}
		_ = contexts.Sleep(w.ctx, max(d-now.Sub(from), time.Millisecond))
		now, err = db.Now(w.ctx)
		require.NoError(w, err)
	}
}

// startOf is the start timestamp of a transaction, 0 if it cannot be drawn.
func startOf(tx *percolator.Txn) percolator.Timestamp {
	ts, _ := tx.StartTimestamp(context.Background())
	return ts
}
