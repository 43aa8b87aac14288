package percolator

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// Run names a call of an observer's function.
type Run struct {
	Observer string
	Cell     Cell // that changed
	// Attempt is 1, and one more for each failure of this change so far that counts (see Observer.Func). Conflicts, RetryAfter and
	// errors of the store do not count, so a call may come again with the same number.
	Attempt int
}

// Run returns the call of an observer's function that the transaction was made for, and false for any other transaction. A function that
// gives up before the last attempt, or does it another way then, goes by Run.Attempt. It costs no call.
func (tx *Txn) Run() (Run, bool) {
	r := tx.run
	if r == nil || r.attempt == 0 {
		return Run{}, false
	}
	return Run{r.name, r.cell.public(), int(r.attempt)}, true
}

// Middleware is called in place of an observer's function, with what that would get, and calls next to
// go on: the next Middleware, or the function itself. It may do something before and after, change the
// context, write by tx, return another error, or not call next. What it returns counts as the result of the
// function, so a Middleware that returns nil without calling next acknowledges the change. It must not end tx, and must call next
// once at most: a second call would see what the first one has written, and repeat its effect. It calls nothing, returns ErrInvalid, and the run is a failure.
type Middleware func(ctx context.Context, run Run, tx *Txn, next func(ctx context.Context) error) error

// Use puts Middleware around the functions of all the worker's observers, before Run: the first one given, also by an
// earlier call, is the outermost. It is for what all observers need: traces, times, logs, values in the context.
// A panic passes through the Middleware before it is counted as a failure. Each may be called concurrently. Errors: ErrInvalid for a
// nil Middleware, ErrWorkerRunning after Run.
func (w *Worker) Use(middleware ...Middleware) error {
	for _, m := range middleware {
		if m == nil {
			return fmt.Errorf("percolator: Use: %w: the Middleware is nil", ErrInvalid)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		return fmt.Errorf("%w: give it Middleware before Run", ErrWorkerRunning)
	}
	w.middleware = append(w.middleware, middleware...)
	return nil
}

// RunError describes a run that failed, for Worker.OnError.
type RunError struct {
	// Run is the call. Its Attempt is the number of failures of this change so far, this one included.
	Run
	Parked bool // there is no further attempt
	// Err is what the function returned, or why its transaction was refused.
	Err error
	// Panic is what the function panicked with, and Stack where; nil if it did not.
	Panic any
	Stack []byte
}

// OnError has f called after each failure that counts as one (see Observer.Func), once it is recorded:
// to report it somewhere. Not called are conflicts, and errors of the store that are tried again. Each f is called, in the order of the calls of OnError,
// by the goroutine of the run, so a slow one holds up the observer; calls may overlap. A panic of f ends the program, like any other. ctx ends with
// the worker, and with StopTimeout. Errors: ErrInvalid for a nil f, ErrWorkerRunning after Run.
func (w *Worker) OnError(f func(ctx context.Context, e RunError)) error {
	if f == nil {
		return fmt.Errorf("percolator: OnError: %w: the function is nil", ErrInvalid)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		return fmt.Errorf("%w: give it OnError before Run", ErrWorkerRunning)
	}
	w.onError = append(w.onError, f)
	return nil
}

// callWithin calls an observer's function within the worker's Middleware.
func (w *Worker) callWithin(ctx context.Context, tx *Txn, o *Observer, change *Change) error {
	if len(w.middleware) == 0 {
		return o.run(ctx, tx, change)
	}
	var again atomic.Bool
	run, _ := tx.Run()
	next := func(ctx context.Context) error { return o.run(ctx, tx, change) }
	for i := len(w.middleware) - 1; i >= 0; i-- {
		m, inner := w.middleware[i], onlyOnce(next, &again)
		next = func(ctx context.Context) error { return m(ctx, run, tx, inner) }
	}
	err := next(ctx)
	if again.Load() {
		return errCalledAgain // whatever the Middleware made of it
	}
	return err
}

var errCalledAgain = fmt.Errorf("percolator: %w: a Middleware has called next a second time", ErrInvalid)

// onlyOnce is next the first time. Later it fails, and notes that in again.
func onlyOnce(next func(ctx context.Context) error, again *atomic.Bool) func(ctx context.Context) error {
	var called atomic.Bool
	return func(ctx context.Context) error {
		if called.Swap(true) {
			again.Store(true)
			return errCalledAgain
		}
		return next(ctx)
	}
}

// tellError tells what wants to know of it that a run has failed.
func (w *Worker) tellError(ctx context.Context, o *Observer, c Cell, attempt int, parked bool, cause error) {
	if !asksToPark(cause) {
		w.failedOnce(o, c, cause) // what parks its runs on purpose is not broken
	}
	e := RunError{Run: Run{o.Name, c.public(), attempt}, Parked: parked, Err: cause}
	var p *panicError
	if errors.As(cause, &p) {
		e.Panic, e.Stack = p.value, p.stack
	}
	for _, f := range w.onError {
		f(ctx, e)
	}
}
