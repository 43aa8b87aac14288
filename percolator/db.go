package percolator

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// DB is a database with transactions and observers over a row-transactional
// store. Its methods may be called concurrently.
type DB struct {
	store   rowstore.Store // the given store; calls also wait for a server that is away
	given   rowstore.Store
	oracle  oracle.Oracle
	grouper rowstore.Grouper // nil without one
	tracer  trace.Tracer     // nil for none
	// snapshotReader draws the start timestamp together with the first read; nil where the
	// two are separate calls.
	snapshotReader rowstore.SnapshotReader
	placer         rowstore.Placer // nil: every table is in the authoritative store
	defers         bool
	slots          bool // the store finds notified rows by slots
	snapshotScans  bool // the store has rowstore.SnapshotScanner
	opt            options
	limits         Limits
	step           rowstore.Limits // the store's own; Operations and Bytes bound one atomic step
	clock          Clock
	rand           *random
	log            *slog.Logger
	count          counters
	hot            hotCells
	longs          longSizes

	view         atomic.Pointer[catalogView]
	catalogReads catalogReads
	sought       sought
	leftTimers   saidRows
	refreshing   atomic.Bool
	uses         uses
	session      session
	hints        hints
	upkeeps      upkeeps

	// drain counts what Close waits for.
	drain struct {
		sync.Mutex
		active  int
		closing bool
		idle    chan struct{} // closed when closing and active is 0
	}
	closed  chan struct{}   // closed when Close has ended
	closes  context.Context // ends when closing begins, with the cause ErrClosed; see during
	closing context.CancelCauseFunc
	metrics metric.Registration // nil without WithMetrics
	// lateness is of the runs for timers; nil without WithMetrics.
	lateness metric.Float64Histogram
	// runTimes are of the runs of observers; nil without WithMetrics.
	runTimes metric.Float64Histogram
	ctx      context.Context // of everything in the background
	cancel   context.CancelFunc
	owned    sync.WaitGroup // goroutines that last until Close
}

// Open opens the store that url names and a DB over it. The backend must have been
// imported: backends/all imports every one. Options of the store are part of its
// URL; see the README of each backend. Errors, beside those of New:
//
//   - ErrInvalid: the scheme is unknown (the error lists the known ones), or the URL makes no sense.
//   - ErrUnavailable: the server cannot be reached.
//   - ErrDenied: the server does not let this program in, or lacks a permission.
//   - ErrForeign: what is there is another application's. It matches ErrFormat too.
//   - ErrFormat: a newer program has written it, or, as it is to be left as it is (asis=true, WithExisting), an older one.
//   - ErrNoStore: there is none, and none is to be made (asis=true, WithExisting).
func Open(ctx context.Context, url string, opts ...Option) (*DB, error) {
	store, err := rowstore.Open(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("percolator: opening the store: %w", err)
	}
	db, err := New(ctx, store, opts...)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return db, nil
}

// New makes a DB over a store. Several DBs, in any number of processes, may work
// over the same data. Close closes the store; when New fails the store stays open.
//
// A store without an oracle of its own needs WithOracle (ErrInvalid). A nil store, oracle or option is
// ErrInvalid too, and so are several stores (package router) of which another one than the authoritative one
// holds the database. Nothing is written before these errors. Warnings that the store reports are logged.
func New(ctx context.Context, store rowstore.Store, opts ...Option) (*DB, error) {
	if isNil(store) {
		return nil, fmt.Errorf("percolator: New: %w: the store is nil", ErrInvalid)
	}
	opt := defaultOptions()
	for _, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("percolator: New: %w: an option is nil", ErrInvalid)
		}
		o(&opt)
	}
	if err := opt.isolation.check(); err != nil {
		return nil, fmt.Errorf("percolator: New: WithDefaultIsolation: %w", err)
	}
	opt.isolation = cmp.Or(opt.isolation, SnapshotIsolation)
	db := &DB{given: store, opt: opt, clock: opt.clock, log: opt.log}
	db.drain.idle, db.closed = make(chan struct{}), make(chan struct{})
	seed := opt.seed
	if seed == 0 {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails, by its documentation
		seed = binary.LittleEndian.Uint64(b[:])
	}
	db.rand = newRandom(seed)
	patient := &patientStore{Store: store, patience: opt.storePatience, clock: opt.clock, rand: db.rand}
	patient.abilities = patient.treatment().Of(store)
	store, db.store = patient, patient
	_, db.slots = rowstore.Unwrap[rowstore.SlotScanner](store)
	if err := db.chooseOracle(patient); err != nil {
		return nil, fmt.Errorf("percolator: New: %w", err)
	}
	if !opt.withOracle {
		db.snapshotReader, _ = rowstore.Unwrap[rowstore.SnapshotReader](store)
		_, db.snapshotScans = rowstore.Unwrap[rowstore.SnapshotScanner](store)
	}
	if opt.groups {
		db.grouper, _ = rowstore.Unwrap[rowstore.Grouper](store)
	}
	db.placer, _ = rowstore.Unwrap[rowstore.Placer](store)
	if _, ok := rowstore.Unwrap[rowstore.Deferrer](store); ok {
		db.defers = opt.deferred
	}
	db.setLimits()
	db.ctx, db.cancel = context.WithCancel(context.Background())
	db.closes, db.closing = context.WithCancelCause(context.Background())
	db.session.init(db)
	db.hints.id, db.hints.lost, db.hints.seed = db.uniqueID(), &db.count.gcHintsLost, maphash.MakeSeed()
	db.longs.seed = db.hints.seed
	db.hints.turn = make(chan struct{}, 1)
	db.uses.init(db)
	if err := db.open(ctx); err != nil {
		db.removeUse(ctx)
		db.cancel()
		db.closing(errDBClosed)
		return nil, err
	}
	return db, nil
}

// chooseOracle takes the oracle that WithOracle gives, or else the store's own. Whoever gives another one never gets the store's: timestamps of the two are in
// no order.
func (db *DB) chooseOracle(store *patientStore) error {
	switch {
	case db.opt.withOracle && isNil(db.opt.oracle):
		return fmt.Errorf("%w: the oracle of WithOracle is nil", ErrInvalid)
	case db.opt.withOracle && db.opt.oracleName == "":
		return fmt.Errorf("%w: WithOracle needs a name for the oracle", ErrInvalid)
	case db.opt.withOracle:
		db.oracle = patientOracle{db.opt.oracle, store}
		return nil
	}
	if own, ok := rowstore.Unwrap[rowstore.OracleProvider](db.given); !ok || isNil(own.Oracle()) {
		return fmt.Errorf("%w: the store has no oracle of its own; give one with WithOracle", ErrInvalid)
	}
	p, _ := rowstore.Unwrap[rowstore.OracleProvider](store)
	db.oracle = p.Oracle()
	return nil
}

// open does what New does with the store.
func (db *DB) open(ctx context.Context) error {
	if err := db.initCatalog(ctx); err != nil {
		return fmt.Errorf("percolator: opening the catalog: %w", err)
	}
	if r, ok := rowstore.Unwrap[rowstore.Reporter](db.store); ok {
		report, err := r.Report(ctx)
		if err != nil {
			return fmt.Errorf("percolator: asking the store for its report: %w", err)
		}
		for _, w := range report.Warnings {
			db.log.Warn(w, "backend", report.Backend)
		}
	}
	if db.opt.traces != nil {
		db.tracer = db.opt.traces.Tracer(tracerName)
	}
	if db.opt.meters != nil {
		return db.registerMetrics(db.opt.meters)
	}
	return nil
}

func (db *DB) setLimits() {
	l := db.opt.limits
	l.setDefaults()
	if sl, ok := rowstore.Unwrap[rowstore.Limiter](db.store); ok {
		s := sl.Limits()
		db.step = s
		tighten := func(have *int, store, reserve int) {
			if store > 0 {
				*have = min(*have, max(store-reserve, 1))
			}
		}
		tighten(&l.Table, s.Table, 1)
		tighten(&l.Row, s.Row, 0)
		tighten(&l.Column, s.Column, format.OwnColumnSpace)
		tighten(&l.Value, s.Value, 0)
	}
	db.limits = l
}

// Store returns the store that the DB works over.
func (db *DB) Store() rowstore.Store { return db.given }

// Limits returns the limits in force: those of the DB or, where they are tighter,
// of the store.
func (db *DB) Limits() Limits { return db.limits }

// Now draws a timestamp: greater than the commit timestamp of every transaction
// whose Commit returned before the call. Errors: ErrClosed, those of the context and of the oracle, such as ErrUnavailable.
func (db *DB) Now(ctx context.Context) (Timestamp, error) {
	if err := db.enter(); err != nil {
		return 0, err
	}
	defer db.leave()
	return db.draw(ctx)
}

// Close waits for the background work of transactions (secondaries, clean-up), ends the
// session, and closes the store. Commits under way finish; other calls, and new ones,
// fail with ErrClosed, also those that last, such as CollectGarbage and Erase. Workers must have been stopped; otherwise their Run returns an
// error. If ctx ends first, Close still closes the store and returns the context's
// error; what was not done is left for others to resolve. A second Close waits for the
// first one to end and returns nil, or its context's error if that ends before.
func (db *DB) Close(ctx context.Context) error {
	if !db.beginClose() {
		select {
		case <-db.closed:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("percolator: waiting for another Close: %w", ctx.Err())
		}
	}
	defer close(db.closed)
	var errs []error
	if db.metrics != nil {
		errs = append(errs, db.metrics.Unregister())
	}
	select {
	case <-db.drain.idle:
	case <-ctx.Done():
		errs = append(errs, fmt.Errorf("percolator: closing before everything was drained: %w", ctx.Err()))
	}
	if ctx.Err() == nil && !db.opt.noHints {
		db.storeLastHints(ctx)
	}
	db.session.settle(ctx)
	db.cancel()
	db.owned.Wait()
	if ctx.Err() == nil {
		db.session.end(ctx)
		db.removeUse(ctx)
	}
	if err := db.store.Close(); err != nil {
		errs = append(errs, fmt.Errorf("percolator: closing the store: %w", err))
	}
	return errors.Join(errs...)
}

// beginClose refuses new calls from now on. It returns false if an earlier call did
// that.
func (db *DB) beginClose() bool {
	db.drain.Lock()
	defer db.drain.Unlock()
	if db.drain.closing {
		return false
	}
	db.drain.closing = true
	db.closing(errDBClosed)
	if db.drain.active == 0 {
		close(db.drain.idle)
	}
	return true
}

// enter counts a call that Close waits for. It returns ErrClosed once the DB is
// closing.
func (db *DB) enter() error {
	db.drain.Lock()
	defer db.drain.Unlock()
	if db.drain.closing {
		return errDBClosed
	}
	db.drain.active++
	return nil
}

func (db *DB) leave() {
	db.drain.Lock()
	defer db.drain.Unlock()
	db.drain.active--
	if db.drain.closing && db.drain.active == 0 {
		close(db.drain.idle)
	}
}

// background runs f in a goroutine that Close waits for. It returns false, and
// runs nothing, when the DB is closing and the caller is not itself counted by
// enter.
func (db *DB) background(f func(ctx context.Context)) bool {
	db.drain.Lock()
	if db.drain.closing && db.drain.active == 0 {
		db.drain.Unlock()
		return false
	}
	db.drain.active++
	db.drain.Unlock()
	go func() {
		defer db.leave()
		f(db.ctx)
	}()
	return true
}

func (db *DB) draw(ctx context.Context) (Timestamp, error) {
	ts, err := db.oracle.Draw(ctx, 1)
	if err != nil {
		if errors.Is(err, oracle.ErrClosed) {
			err = fmt.Errorf("%w: %w", ErrClosed, err)
		}
		return 0, fmt.Errorf("drawing a timestamp: %w", err)
	}
	return ts, nil
}

// Begin starts a transaction: it draws the start timestamp, which is the snapshot
// that the transaction reads (section 2.2 of the paper). A transaction that is not
// ended holds nothing in the store. Errors: ErrInvalid for a nil option and a level of isolation that there is not, ErrSnapshotInFuture (see WithAsOf), ErrClosed, those of the context and
// of the oracle, such as ErrUnavailable.
func (db *DB) Begin(ctx context.Context, opts ...TxnOption) (*Txn, error) {
	tx, err := db.newTxn(ctx, false, opts)
	if err == nil {
		err = tx.begin(ctx)
	}
	if err != nil {
		return nil, err
	}
	_, tx.trace = db.trace(ctx, "percolator.begin")
	tx.tracesItself = true
	return tx, nil
}

// newTxn makes a transaction. It draws the start timestamp only if the first read
// cannot draw it.
func (db *DB) newTxn(ctx context.Context, readOnly bool, opts []TxnOption) (*Txn, error) {
	tx := &Txn{db: db, readOnly: readOnly}
	for _, o := range opts {
		if o == nil {
			return nil, fmt.Errorf("percolator: beginning a transaction: %w: an option is nil", ErrInvalid)
		}
		o(&tx.opt)
	}
	if err := tx.opt.isolation.check(); err != nil {
		return nil, fmt.Errorf("percolator: beginning a transaction: %w", err)
	}
	tx.opt.isolation = cmp.Or(tx.opt.isolation, db.opt.isolation)
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.leave()
	if db.snapshotReader == nil || tx.opt.asOf != nil {
		if err := tx.begin(ctx); err != nil {
			return nil, err
		}
	} else if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("percolator: beginning a transaction: %w", err)
	}
	if at := tx.opt.asOf; at != nil {
		if *at > tx.start {
			return nil, fmt.Errorf("%w: it was asked for at %v, and the oracle is at %v", ErrSnapshotInFuture, *at, tx.start)
		}
		tx.start, tx.readOnly = *at, true
	}
	db.count.transactions.Add(1)
	return tx, nil
}

// View runs fn with a read-only transaction and returns fn's error. The snapshot is
// taken at a moment between the call of View and the end of the transaction's first
// read. A nil fn is ErrInvalid; errors from before the call of fn are those of Begin.
func (db *DB) View(ctx context.Context, fn func(tx *Txn) error, opts ...TxnOption) (err error) {
	if fn == nil {
		return noFunction("View")
	}
	ctx, t := db.trace(ctx, "percolator.view")
	defer func() { t.end(err, true) }()
	tx, err := db.newTxn(ctx, true, opts)
	if err != nil {
		return err
	}
	tx.counted = true
	defer func() { // here for a panic of fn too
		db.count.readOnly.Add(1)
		_ = tx.Rollback(ctx)
	}()
	return t.call(fn, tx)
}

// Update runs fn with a transaction and commits it. After a conflict it runs fn again,
// in a new transaction with a new snapshot. Before that it waits: for this process's
// transactions that met a conflict at the same cell earlier, until they have ended, or
// for a random time that grows. This goes on until the context ends or fn has been called 64 times, or as often as
// WithMaxAttempts says; then Update returns the conflict. The snapshot is taken at a moment between
// the call of fn and the end of the transaction's first read.
//
// So fn may run more than once: it must have no effect but through its transaction. It must not end
// the transaction: Commit is ErrInvalid there, and after Rollback Update returns ErrTxnDone, and nothing is written. If
// fn returns an error, the transaction is rolled back and Update returns that error as
// it is. The exception is an error that matches ErrConflict: it makes fn run again. A nil fn is ErrInvalid. Other errors are those of Begin
// and of Commit.
//
// fn must return the errors of tx's methods that it does not answer itself, as it may ErrNotFound: one that it drops does not end the
// transaction, and the rest is committed (see Txn). Only one goroutine at a time may use tx.
func (db *DB) Update(ctx context.Context, fn func(tx *Txn) error, opts ...TxnOption) (err error) {
	if fn == nil {
		return noFunction("Update")
	}
	ctx, t := db.trace(ctx, "percolator.update")
	defer func() { t.end(err, true) }()
	var turn turn
	defer turn.end()
	for attempt := 0; ; attempt++ {
		most, err := db.updateOnce(ctx, t, fn, opts)
		if err == nil || !errors.Is(err, ErrConflict) {
			return err
		}
		if attempt+1 >= most {
			return fmt.Errorf("percolator: giving up after %d attempts: %w", most, err)
		}
		if werr := db.beforeRetry(ctx, &turn, attempt, err); werr != nil {
			return fmt.Errorf("percolator: %w before attempt %d, after %w", werr, attempt+2, err)
		}
		db.count.retries.Add(1)
	}
}

// noFunction is the error of a call without a function.
func noFunction(call string) error {
	return fmt.Errorf("percolator: %s: %w: the function is nil", call, ErrInvalid)
}

// UpdateAt is Update, and returns the timestamp at which what fn did can be read: a snapshot at it
// or later (WithAsOfTimestamp) has all that fn has written and read. That is the commit timestamp. If fn wrote
// nothing and notified nothing, there is no commit, and it is the timestamp of the snapshot that fn
// has read. So it is 0 only with an error. It fits WaitObserved, also where fn found that its work was
// done before. A nil fn is ErrInvalid; other errors are those of Update.
func (db *DB) UpdateAt(ctx context.Context, fn func(tx *Txn) error, opts ...TxnOption) (Timestamp, error) {
	if fn == nil {
		return 0, noFunction("UpdateAt")
	}
	var last *Txn
	err := db.Update(ctx, func(tx *Txn) error {
		last = tx
		return fn(tx)
	}, opts...)
	switch {
	case err != nil:
		return 0, err
	case last.commit != 0:
		return last.commit, nil
	case last.set:
		return last.start, nil
	}
	return db.Now(ctx)
}

// turnPatience is how long a transaction waits for its turn at a hot cell. The
// transaction whose turn it is may itself be waiting for this one, if the user's
// function waits for others.
const turnPatience = time.Second

// beforeRetry waits after a conflict. At the first conflict at a cell it waits for this
// process's other transactions that met one there. If the next conflict is at the same
// cell again, it waits for a random time.
func (db *DB) beforeRetry(ctx context.Context, t *turn, attempt int, cause error) error {
	var conflict *ConflictError
	if errors.As(cause, &conflict) && conflict.Cell != t.cell {
		t.end()
		patient, cancel := context.WithTimeout(ctx, turnPatience)
		defer cancel()
		if done, err := db.hot.wait(patient, conflict.Cell); err == nil {
			*t = turn{conflict.Cell, done}
		}
		return ctx.Err()
	}
	return db.clock.Sleep(ctx, db.opt.retryWait.wait(attempt, db.rand))
}

const defaultMaxAttempts = 64

func (db *DB) updateOnce(ctx context.Context, t *traced, fn func(tx *Txn) error, opts []TxnOption) (maxAttempts int, err error) {
	tx, err := db.newTxn(ctx, false, opts)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback(ctx) }() // nothing after Commit; here for a panic of fn too
	tx.trace = t
	t.tries()
	if maxAttempts = tx.opt.maxAttempts; maxAttempts <= 0 {
		maxAttempts = defaultMaxAttempts
	}
	tx.lent = true
	err = t.call(fn, tx)
	tx.lent = false
	if err != nil {
		return maxAttempts, err
	}
	return maxAttempts, tx.Commit(ctx)
}

// estimate returns roughly the oracle's present time, from a timestamp and the local
// time at which it was drawn.
func (db *DB) estimate(ts Timestamp, drawn time.Time) Timestamp {
	return ts.Add(db.clock.Now().Sub(drawn))
}

// applyOne applies one mutation, undeferred.
func (db *DB) applyOne(ctx context.Context, m rowstore.Mutation) (rowstore.Outcome, error) {
	out, err := db.store.Apply(ctx, []rowstore.Mutation{m}, rowstore.ApplyOptions{})
	if err == nil {
		err = out[0].Err
	}
	if err != nil {
		return rowstore.Outcome{}, err
	}
	return out[0], nil
}

// backgroundTimeout bounds work that goes on after its caller's context ended.
func (db *DB) backgroundTimeout() time.Duration {
	return max(db.known().lease, time.Second)
}

// cleanUpTimeout bounds the removal of locks that only this process may remove. Once
// they have expired, any process may.
func (db *DB) cleanUpTimeout() time.Duration {
	return max(db.backgroundTimeout(), db.opt.lockExpiry)
}
