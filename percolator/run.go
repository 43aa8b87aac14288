package percolator

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// runResult is what a worker does next about a cell that it has read.
type runResult int

const (
	runDone      runResult = iota // nothing is left to do for this worker's observers
	runAgain                      // look again at once
	runConflict                   // somebody was faster; look again soon
	runLocked                     // a living transaction has the cell locked
	runWaiting                    // the function failed; wait for its next attempt
	runTrouble                    // the store failed
	runAbandoned                  // the worker stops
)

// attempt reads a job's cell once and does what there is to do: one run of the observer
// at most, or the removal of the cell's notifications. With runWaiting, wait is how
// long to leave the job alone.
func (w *Worker) attempt(ctx context.Context, t *task) (result runResult, wait time.Duration, err error) {
	db, c := w.db, t.cell
	tx, err := db.newTxn(ctx, false, nil)
	if err != nil {
		return runTrouble, 0, err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	view, blocked, err := w.currentView(ctx, c, t.o, &tx.snapshot)
	if err != nil || blocked {
		if blocked && err == nil {
			return runLocked, 0, nil
		}
		return runTrouble, 0, err
	}
	w.mu.Lock()
	t.seen = w.signature(view)
	w.mu.Unlock()
	i := slices.Index(view.observers, t.o.Name)
	switch {
	case i < 0:
		leaveToken(w.recheck) // it was removed
	case view.change != 0 && !view.covered(i):
		if f := &view.failures[i]; f.change == view.change && f.notBefore > tx.start {
			return runWaiting, f.notBefore.Sub(tx.start), nil
		}
		return w.run(ctx, tx, t.o, i, view)
	}
	if len(view.seen) == 0 || !view.othersCovered(-1) {
		w.rests(view) // other observers, of this worker or of others, have yet to run
		return runDone, 0, nil
	}
	_, err = db.applyOne(ctx, rowstore.Mutation{Table: c.Table, Row: c.Row, Edits: view.removal()})
	if err != nil {
		return runTrouble, 0, fmt.Errorf("clearing the notifications of %v: %w", c.public(), err)
	}
	db.count.observerCleared.Add(1)
	w.noteWork()
	return runDone, 0, nil
}

// currentView is view for the observers that the catalog has at the snapshot. The
// catalog must have been read less than a lease before it. Then what is removed is at
// or below f + lease, and the sweep of an observer that is missing here sees every
// change up to there. A snapshot that is drawn with the view is not known before the
// view. Then the view counts if the catalog still names the same observers afterwards.
func (w *Worker) currentView(ctx context.Context, c Cell, o *Observer, s *snapshot) (v *cellView, blocked bool, err error) {
	names := w.db.known().observers(c.Table, c.Column)
	for {
		fresh := s.set
		if fresh {
			catalog, err := w.db.catalogFor(ctx, s.start)
			if err != nil {
				return nil, false, err
			}
			names = catalog.observers(c.Table, c.Column)
		}
		if v, blocked, err = w.view(ctx, c, o, names, s); err != nil || blocked || fresh {
			return v, blocked, err
		}
		catalog, err := w.db.catalogFor(ctx, s.start)
		if err != nil || slices.Equal(names, catalog.observers(c.Table, c.Column)) {
			return v, false, err
		}
	}
}

// view reads the cell, its notifications, acknowledgments and failure records in one
// atomic view. That view has no put or delete lock at or below the snapshot, neither on
// the cell nor on the columns that the observer o keeps beside it. A nil o stands for
// all observers of this worker. blocked means that the owner of such a lock lives.
func (w *Worker) view(ctx context.Context, c Cell, o *Observer, observers []string, s *snapshot) (v *cellView, blocked bool, err error) {
	read := []rowstore.RowRead{viewRead(c, observers, s.at())}
	for {
		rows, timely, err := w.db.readAt(ctx, read, s)
		if err != nil {
			return nil, false, fmt.Errorf("looking at %v: %w", c.public(), err)
		}
		row := &rows[0]
		resolved := false
		for i := range row.Versions {
			l := &row.Versions[i]
			if l.Family != rowstore.Lock {
				break
			}
			if l.Column != c.Column && !w.keeps(l.Column, c, o) {
				continue
			}
			lv, err := decodeLock(l.Value)
			if err != nil {
				return nil, false, fmt.Errorf("%v: %w", c.public(), err)
			}
			if lv.kind == kindLock {
				continue
			}
			settled, err := w.db.resolveLock(ctx, Cell{c.Table, c.Row, l.Column}, l.TS, &lv, respectLiving)
			if err != nil {
				return nil, false, err
			}
			if !settled {
				return nil, true, nil
			}
			resolved = true
		}
		if resolved {
			continue
		}
		if v, err = parseView(row, c, observers, s.start); err != nil {
			return nil, false, fmt.Errorf("%v: %w", c.public(), err)
		}
		if err := w.db.checkAnswer(ctx, s.start, timely || row.Newest(rowstore.Write, c.Column) != nil); err != nil {
			return nil, false, err
		}
		return v, false, nil
	}
}

// keeps reports whether the observer o keeps a stored column for the cell. A nil o
// stands for any observer of this worker.
func (w *Worker) keeps(column string, c Cell, o *Observer) bool {
	_, observer, of, ok := splitOwnColumn(column)
	switch {
	case !ok || of != c.Column:
		return false
	case o != nil:
		return observer == o.Name
	}
	return w.observes(observer, c)
}

// observes tells whether an observer of a stored cell is this worker's.
func (w *Worker) observes(name string, c Cell) bool {
	return slices.ContainsFunc(w.queuesOf(c), func(q *queue) bool { return q.o.Name == name })
}

// run calls an observer's function and commits its writes with the acknowledgment
// and the removal of the notifications.
func (w *Worker) run(ctx context.Context, tx *Txn, o *Observer, i int, view *cellView) (runResult, time.Duration, error) {
	tx.opt.isolation = o.Isolation
	err := w.call(ctx, tx, o, view.cell)
	if err == nil && tx.done {
		err = errors.New("percolator: the observer's function ended its transaction")
	}
	if err != nil {
		return w.failed(ctx, o, view, err)
	}
	c := view.cell
	ack := Cell{c.Table, c.Row, ackColumn(o.Name, c.Column)}
	if err := tx.put(ack, kindPut, encodeAck(tx.start)); err != nil {
		return w.failed(ctx, o, view, err)
	}
	if f := &view.failures[i]; f.change != 0 {
		if err := tx.forgetFailure(o.Name, c, f); err != nil {
			return w.failed(ctx, o, view, err)
		}
	}
	removed := view.othersCovered(i)
	if removed {
		tx.extra = map[rowName][]rowstore.Edit{c.rowName(): view.removal()}
	}
	tables := w.changes(tx)
	err = tx.Commit(ctx)
	switch {
	case err == nil:
		w.db.count.observerRuns.Add(1)
		w.noteWork()
		for _, table := range tables {
			w.kickTable(table)
		}
		if removed || w.queued(c) {
			// Either every observer is covered and the notifications are removed; a newer
			// one is found by a scan of its own. Or another observer's job is queued, and
			// will read the cell.
			return runDone, 0, nil
		}
		return runAgain, 0, nil
	case errors.Is(err, ErrConflict):
		w.db.count.observerConflicts.Add(1)
		return runConflict, 0, nil
	case errors.Is(err, ErrTooLarge), errors.Is(err, ErrInvalid), errors.Is(err, ErrNotObserved), errors.Is(err, ErrTxnTooOld):
		return w.failed(ctx, o, view, err)
	case tx.storeFailed:
		// The function went on after a read that failed.
		return w.failed(ctx, o, view, err)
	}
	return runTrouble, 0, fmt.Errorf("committing a run of observer %q for %v: %w", o.Name, c.public(), err)
}

// changes lists the tables in which a run sets cells that this worker observes. With a
// push it lists none, because the push will tell of them.
func (w *Worker) changes(tx *Txn) []string {
	if w.pushed {
		return nil
	}
	var tables []string
	note := func(c Cell) {
		if len(w.queuesOf(c)) > 0 && !slices.Contains(tables, c.Table) {
			tables = append(tables, c.Table)
		}
	}
	for i := range tx.writes.list {
		note(tx.writes.list[i].cell)
	}
	for _, c := range tx.weak {
		note(c)
	}
	return tables
}

// panicError is a panic of an observer's function.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string {
	return fmt.Sprintf("percolator: the observer's function panicked: %v\n%s", e.value, e.stack)
}

func (w *Worker) call(ctx context.Context, tx *Txn, o *Observer, c Cell) (err error) {
	w.mu.Lock()
	w.progress++
	w.mu.Unlock()
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Timeout)
		defer cancel()
	}
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{value: p, stack: debug.Stack()}
		}
	}()
	return o.Func(ctx, tx, c.public())
}

// failed handles a function that failed: it counts the attempt in the store, and parks
// the run after the last one. A failure counts if it is the function's own and can be
// recorded: nothing is parked while the store is away.
func (w *Worker) failed(ctx context.Context, o *Observer, view *cellView, cause error) (runResult, time.Duration, error) {
	c := view.cell
	switch {
	case ctx.Err() != nil:
		return runAbandoned, 0, nil // the worker stops: that is nobody's failure
	case errors.Is(cause, ErrConflict):
		w.db.count.observerConflicts.Add(1)
		return runConflict, 0, nil
	case storesFault(cause):
		return runTrouble, 0, fmt.Errorf("observer %q for %v: %w", o.Name, c.public(), cause)
	}
	w.db.count.observerFailures.Add(1)
	var record failureRecord
	err := w.db.Update(ctx, func(tx *Txn) (err error) {
		record, err = w.noteFailure(ctx, tx, o, c, view.change, cause)
		return err
	})
	if err != nil {
		return runTrouble, 0, fmt.Errorf("keeping the failure of observer %q for %v: %w", o.Name, c.public(), errors.Join(err, cause))
	}
	if record.parked {
		w.db.count.observerParked.Add(1)
		w.db.log.Error("a run was parked after its last attempt", "observer", o.Name, "cell", c.public().String(), "attempts", record.attempts, "err", cause)
		return runAgain, 0, nil // its notifications are covered now
	}
	w.db.log.Warn("an observer failed and will be called again", "observer", o.Name, "cell", c.public().String(), "attempt", record.attempts, "err", cause)
	return runAgain, 0, nil
}

// readError is an error of a transaction's read that the store is to blame for.
type readError struct{ error }

func (e *readError) Unwrap() error { return e.error }

// storesFault reports whether a function failed because the store did not answer a
// read. A read is the function's own failure if it ended with a context of the
// function's, came too late, or met a value that cannot be decoded.
func storesFault(err error) bool {
	var read *readError
	return errors.As(err, &read) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, ErrSnapshotTooOld) && !errors.Is(err, ErrCorrupt)
}

// noteFailure writes the failure record of one more failed attempt. The record is
// zero when somebody else's run has covered the change.
func (w *Worker) noteFailure(ctx context.Context, tx *Txn, o *Observer, c Cell, change Timestamp, cause error) (failureRecord, error) {
	none := failureRecord{}
	ack := Cell{c.Table, c.Row, ackColumn(o.Name, c.Column)}
	at := Cell{c.Table, c.Row, parkedColumn(o.Name, c.Column)}
	stored, err := tx.db.getCells(ctx, []Cell{ack, at}, &tx.snapshot)
	if err != nil {
		return none, err
	}
	if b := stored[0]; b != nil {
		acked, err := decodeAck(b)
		if err != nil || acked >= change {
			return none, err
		}
	}
	old := none
	if b := stored[1]; b != nil {
		if old, err = decodeFailure(b); err != nil {
			return none, err
		}
	}
	if old.change > change || old.parked && old.change == change {
		return none, nil
	}
	f := failureRecord{change: change, attempts: 1}
	if old.change == change {
		f.attempts = old.attempts + 1
	}
	f.parked = f.attempts >= o.MaxAttempts
	f.notBefore = tx.start.Add(w.config.Backoff.wait(f.attempts-1, tx.db.rand))
	if err := tx.put(at, kindPut, f.encode()); err != nil {
		return none, err
	}
	switch {
	case f.parked:
		b, err := encodeParked(o.Name, c, f, cause, tx.start)
		if err != nil {
			return none, err
		}
		return f, tx.put(parkedIndex(o.Name, c), kindPut, b)
	case old.parked:
		// A later change failed, so the parked run of the earlier one is dropped.
		return f, tx.put(parkedIndex(o.Name, c), kindDelete, nil)
	}
	return f, nil
}

// forgetFailure removes an observer's failure record for a cell.
func (tx *Txn) forgetFailure(observer string, c Cell, f *failureRecord) error {
	if err := tx.put(Cell{c.Table, c.Row, parkedColumn(observer, c.Column)}, kindDelete, nil); err != nil {
		return err
	}
	if f.parked {
		return tx.put(parkedIndex(observer, c), kindDelete, nil)
	}
	return nil
}
