package percolator

import (
	"context"
	"errors"
)

// Functions of the user's that end their goroutine: by runtime.Goexit, as FailNow of a test does. That goroutine is one of the worker's, and
// has a job. Without care the job would count as running for as long as the worker lives: it would keep its place, hold up WaitIdle, and its
// claim would keep other workers from the cell.

var errExited = errors.New("percolator: the observer's function, or what it has led to, ended its goroutine (runtime.Goexit, as FailNow of a test does)")

// runOrExit is timedRun. If the goroutine ends in the middle, it notes for the job what the run has come to.
func (w *Worker) runOrExit(ctx context.Context, t *task, tx *Txn, i int, view *cellView) runResult {
	over := false
	defer func() {
		if over {
			return
		}
		t.exited = &runResult{next: runTrouble, err: errExited}
		// The function has failed, or an upkeep of what it has written. Otherwise it was what OnError got: then the failure is recorded.
		if tx.lent || tx.committing {
			r := w.failed(ctx, t.o, view, errExited)
			t.exited = &r
		}
	}()
	r := w.timedRun(ctx, tx, t.o, i, view)
	over = true
	return r
}

// resultOf attempts a job. If the last attempt has ended its goroutine, it returns what that has come to.
func (w *Worker) resultOf(t *task) runResult {
	if r := t.exited; r != nil {
		t.exited = nil
		return *r
	}
	over := false
	defer func() {
		if !over && t.exited == nil { // what OnEnd got, as the transaction was rolled back
			t.exited = &runResult{next: runTrouble, err: errExited}
		}
	}()
	r := w.attempt(w.runCtx, t)
	over = true
	return r
}
