package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/percolate-go/percolate/backends/pebble"
	"github.com/percolate-go/percolate/config"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The exit statuses.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitUnavailable = 4
	exitNoStore     = 5
	exitFormat      = 6
	exitCorrupt     = 7
	exitSnapshot    = 8
	exitConflict    = 9
	exitFindings    = 10
	exitOlder       = 11
	exitDenied      = 12
	exitFull        = 13
	exitInterrupted = 130
)

// exitHelp is the help of the exit statuses.
const exitHelp = `The exit status tells errors apart:

  0    done
  1    an error that is none of those below
  2    the arguments are wrong: nothing was done
  3    what was named is not there: a cell without a value, a table, a column, an observer, a hold, a parked run
  4    the store cannot be reached, or another process has it (Pebble), or the command took longer than --timeout
  5    there is no store, or no database in it; none was made
  6    another version of the library wrote the data, or it is another application's; nothing was changed
  7    stored data is damaged, or the oracle went back
  8    the snapshot that was asked for is too old, or lies ahead
  9    another transaction was first, or it is not known what became of the change
  10   doctor has found something, or migrate check
  11   an older program has the database open
  12   access was denied: a wrong password, a missing permission, a certificate that one side does not accept
  13   the store has no room left, on its disk or in its memory: make some, and call the command again
  130  interrupted
`

// errNotFound: what was named is not there.
var errNotFound = errors.New("not found")

// errAnswered: the answer says what is behind the status, and nothing is added to it.
var errAnswered = errors.New("see the answer")

// usageError says that the arguments are wrong.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// begunError is the error of a command that has changed something before.
type begunError struct{ error }

func (e begunError) Unwrap() error { return e.error }

// begun marks an error of a command that has changed something, or may have: its status is not that of wrong arguments, which says that nothing was done.
func begun(err error) error {
	if err == nil {
		return nil
	}
	return begunError{err}
}

// statusOf is the exit status of an error.
func statusOf(ctx context.Context, err error) int {
	status := kindOf(ctx, err)
	if status == exitUsage && errors.As(err, &begunError{}) {
		return exitError
	}
	return status
}

func kindOf(ctx context.Context, err error) int {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	switch {
	case err == nil:
		return exitOK
	case errors.Is(context.Cause(ctx), context.Canceled):
		return exitInterrupted
	case is(errFindings):
		return exitFindings
	case errors.As(err, &usageError{}), is(config.ErrInvalid):
		return exitUsage
	case is(percolator.ErrOlderProgram):
		return exitOlder
	case is(percolator.ErrNoStore):
		return exitNoStore
	case is(percolator.ErrFormat):
		return exitFormat
	case is(percolator.ErrCorrupt, percolator.ErrOracleWentBack):
		return exitCorrupt
	case is(percolator.ErrSnapshotTooOld, percolator.ErrSnapshotInFuture):
		return exitSnapshot
	case is(percolator.ErrDenied) && !is(percolator.ErrUndetermined):
		// Also where a store does not know how far its call came, as one that was only opened: to call the command again does not help.
		return exitDenied
	case is(percolator.ErrConflict, percolator.ErrUndetermined, percolator.ErrTraceLost, rowstore.ErrAmbiguous):
		return exitConflict
	case is(errNotFound, percolator.ErrNotFound, percolator.ErrNotObserved):
		return exitNotFound
	case is(percolator.ErrFull):
		return exitFull
	case is(rowstore.ErrUnavailable, pebble.ErrInUse, context.DeadlineExceeded, os.ErrDeadlineExceeded):
		return exitUnavailable
	case is(percolator.ErrInvalid, percolator.ErrTooLarge):
		return exitUsage
	}
	return exitError
}

// exit shows an error and returns the exit status.
func (a *app) exit(ctx context.Context, err error) int {
	if err == nil {
		return exitOK
	}
	if !a.ran { // the library of flags and commands has refused the arguments
		err = usageError{err}
	}
	status := statusOf(ctx, err)
	if status == exitFindings || errors.Is(err, errAnswered) {
		return status
	}
	if a.json || (!a.ran && a.jsonAsked) {
		_ = json.NewEncoder(a.err).Encode(struct {
			Error  string `json:"error"`
			Status int    `json:"status"`
		}{err.Error(), status})
		return status
	}
	_, _ = fmt.Fprintln(a.err, "percolator:", harmless(err.Error()))
	if !a.ran {
		_, _ = fmt.Fprintln(a.err, "percolator help has the commands; each has --help")
	}
	return status
}
