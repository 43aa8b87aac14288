package percolator

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What happens after a run has failed. Each failure of the function is counted in a
// record beside the cell. The run is attempted again after a wait that grows, and parked
// after the last attempt (parked.go).

// failed handles a run that failed. A failure counts if it is the function's own and can
// be recorded: nothing is parked while the store is away.
func (w *Worker) failed(ctx context.Context, o *Observer, view *cellView, cause error) runResult {
	switch {
	case ctx.Err() != nil:
		return runResult{next: runAbandoned} // the worker stops: that is nobody's failure
	case o.periodic != nil && errors.As(cause, new(*asideError)):
		return w.leaveAside(o, cause)
	case asksToPark(cause):
		return w.countFailure(ctx, o, view, cause)
	}
	if after, ok := asksToRetry(cause); ok {
		return w.postpone(ctx, o, view, after)
	}
	switch {
	case errors.Is(cause, ErrConflict):
		w.db.count.observerConflicts.Add(1)
		return runResult{next: runConflict}
	case storesFault(cause):
		return trouble(fmt.Errorf("observer %q for %v: %w", o.Name, view.cell.public(), cause))
	}
	return w.countFailure(ctx, o, view, cause)
}

// leaveAside leaves a run of a periodic to workers that have the schedule that counts.
func (w *Worker) leaveAside(o *Observer, why error) runResult {
	w.standAside(o, why)
	return runResult{next: runWaiting, wait: asideWait}
}

// countFailure counts a failed attempt in the store. The last attempt parks the run.
func (w *Worker) countFailure(ctx context.Context, o *Observer, view *cellView, cause error) runResult {
	c := view.cell
	var record format.Failure
	err := w.db.Update(ctx, func(tx *Txn) (err error) {
		record, err = w.recordFailure(ctx, tx, o, view, cause)
		return err
	})
	if aside := (*asideError)(nil); errors.As(err, &aside) {
		return w.leaveAside(o, aside)
	}
	if err != nil {
		return trouble(fmt.Errorf("recording a failure of observer %q for %v: %w", o.Name, c.public(), errors.Join(err, cause)))
	}
	if record.Change == 0 {
		return runResult{next: runAgain} // another run has covered the change, or was parked for it
	}
	w.db.count.observerFailures.Add(1)
	w.tellError(ctx, o, c, record.Attempts, record.Parked, cause)
	if record.Parked {
		w.db.count.observerParked.Add(1)
		w.db.log.Error("a run was parked after its last attempt", "observer", o.Name, "cell", c.public().String(), "attempts", record.Attempts, "err", cause)
	} else {
		w.db.log.Warn("an observer failed and will be called again", "observer", o.Name, "cell", c.public().String(), "attempt", record.Attempts, "err", cause)
	}
	return runResult{next: runAgain} // the next look sees the backoff, or that the change is covered
}

// postpone stores that a run is to be repeated after a while, which is no failure.
func (w *Worker) postpone(ctx context.Context, o *Observer, view *cellView, after time.Duration) runResult {
	if after <= 0 {
		return runResult{next: runWaiting, wait: leastPause}
	}
	err := w.db.Update(ctx, func(tx *Txn) error {
		_, err := w.putRecord(ctx, tx, o, view, func(f *format.Failure) {
			f.NotBefore = tx.start.Add(after)
		})
		return err
	})
	if err != nil {
		return trouble(fmt.Errorf("recording when observer %q is called again for %v: %w", o.Name, view.cell.public(), err))
	}
	return runResult{next: runAgain} // the next look sees how long to wait
}

// leastPause is the pause of a run that is to be repeated at once: other jobs come in between.
const leastPause = time.Millisecond

// panicError is a panic of a function of the user's.
type panicError struct {
	of    string
	value any
	stack []byte
}

// unlessPanics calls a function of the user's. A panic becomes an error: one that is called for many must not end the program for one of them. So does the panic of an
// error that it returns, as of a nil pointer that is taken for an error: later somebody asks for its text.
func unlessPanics(of string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{of: of, value: p, stack: debug.Stack()}
		}
	}()
	if err = f(); err != nil {
		_, _ = err.Error(), errors.Is(err, ErrConflict)
	}
	return err
}

func (e *panicError) Error() string {
	return fmt.Sprintf("percolator: %s panicked: %v\n%s", e.of, e.value, e.stack)
}

// readError is an error of a transaction's read that the store is to blame for, unless the read's context has ended.
type readError struct {
	error
	ended bool
}

// readFailed makes the error of a read by its context. Whether that has ended cannot be told by the error: a store that is
// away may end a context of its own, of a connection say.
func readFailed(ctx context.Context, err error) *readError { return &readError{err, ctx.Err() != nil} }

func (e *readError) Unwrap() error { return e.error }

// storesFault reports whether a function failed because the store did not answer a
// read. A read is the function's own failure if it ended with a context of the
// function's, came too late, met a value that cannot be decoded, or met another read of
// the transaction in another goroutine.
func storesFault(err error) bool {
	var read *readError
	return errors.As(err, &read) && !read.ended &&
		!errors.Is(err, ErrSnapshotTooOld) && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrFormat) && !errors.Is(err, errTwoAtOnce)
}

// recordFailure writes the failure record of one more failed attempt. The record is
// zero when somebody else's run has covered the change.
func (w *Worker) recordFailure(ctx context.Context, tx *Txn, o *Observer, view *cellView, cause error) (format.Failure, error) {
	c := view.cell
	f, err := w.putRecord(ctx, tx, o, view, func(f *format.Failure) {
		f.Attempts++
		f.Parked = f.Attempts >= o.MaxAttempts || asksToPark(cause)
		f.NotBefore = tx.start.Add(o.Backoff.wait(f.Attempts-1, tx.db.rand))
	})
	if err != nil || !f.Parked {
		return f, err
	}
	p := format.NewParked(o.id, format.Cell(c), f, cause, tx.start)
	b, err := p.Encode()
	if err != nil {
		return format.Failure{}, err
	}
	if o.periodic != nil {
		if err := o.periodic.giveUp(ctx, tx, view.sinceOf(o.id), view.at); err != nil {
			return format.Failure{}, err
		}
	}
	return f, tx.put(parkedIndex(o.id, c), format.KindPut, b)
}

// putRecord writes the failure record of a change, as edit leaves it. edit gets the record of the
// change so far. The result is zero, and nothing is written, when somebody else's run has covered the change, or the
// registration that the run goes by is over: what another one counts begins at nothing.
func (w *Worker) putRecord(ctx context.Context, tx *Txn, o *Observer, view *cellView, edit func(f *format.Failure)) (format.Failure, error) {
	none := format.Failure{}
	c, change, since := view.cell, view.change, view.sinceOf(o.id)
	tx.run = &runOf{observer: o.id, cell: c, since: since, hops: -1} // what it writes is of no run
	tx.unlimited = true
	acked, old, err := tx.records(ctx, o.id, c, since)
	if err != nil {
		return none, err
	}
	catalog, err := tx.db.catalogFor(ctx, tx.start)
	if err != nil || !catalog.has(tx.run) {
		return none, err
	}
	if acked >= change && !old.Replay || old.Parked && old.Change >= change || old.Change > change && !view.outdated(o.id, old.Change) {
		return none, nil
	}
	f := format.Failure{Change: change, Replay: old.Replay && !old.Parked}
	if old.Change == change {
		f = old
	}
	edit(&f)
	if f.Parked {
		// A run that takes effect meanwhile writes the acknowledgment alone: so the two conflict.
		if err := tx.lock(Cell{c.Table, c.Row, format.AckColumn(o.id, c.Column)}); err != nil {
			return none, err
		}
	}
	at := Cell{c.Table, c.Row, format.FailureColumn(o.id, c.Column)}
	if err := tx.put(at, format.KindPut, f.Encode()); err != nil {
		return none, err
	}
	if old.Parked && !f.Parked {
		// A later change failed, so the parked run of the earlier one is dropped.
		return f, tx.put(parkedIndex(o.id, c), format.KindDelete, nil)
	}
	return f, nil
}

// records reads what an observer that is registered since a moment keeps beside a cell.
func (tx *Txn) records(ctx context.Context, observer string, c Cell, since Timestamp) (acked Timestamp, f format.Failure, err error) {
	ack, failure := format.AckColumn(observer, c.Column), format.FailureColumn(observer, c.Column)
	read := []rowstore.RowRead{{Table: c.Table, Row: c.Row, Selectors: snapshotPicks(snapshotPicks(nil, ack, tx.snapshot.at()), failure, tx.snapshot.at())}}
	rows, timely, err := tx.db.readSettled(ctx, read, &tx.snapshot)
	if err != nil {
		return 0, f, err
	}
	row := &rows[0]
	timely = timely || row.Newest(rowstore.Write, ack) != nil && row.Newest(rowstore.Write, failure) != nil
	if err := tx.db.checkAnswer(ctx, tx.start, timely, c.span()); err != nil {
		return 0, f, err
	}
	if acked, err = acknowledged(row, ack, since); err == nil {
		f, _, err = failureIn(row, failure, since)
	}
	return acked, f, err
}

// forgetFailure removes an observer's failure record for a cell.
func (tx *Txn) forgetFailure(observer string, c Cell, f *format.Failure) error {
	if err := tx.put(Cell{c.Table, c.Row, format.FailureColumn(observer, c.Column)}, format.KindDelete, nil); err != nil {
		return err
	}
	if f.Parked {
		return tx.put(parkedIndex(observer, c), format.KindDelete, nil)
	}
	return nil
}
