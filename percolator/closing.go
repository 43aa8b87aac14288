package percolator

import (
	"context"
	"errors"
	"fmt"
)

// Calls that may last. Close waits for every call that has entered (DB.enter), so one that could go on for minutes, or wait for
// what never comes, ends when closing begins: its context does. A commit is no such call: nobody would know what has become
// of it. So no transaction is committed with the context of such a call.

// during runs f as a call that ends when closing begins: then the context that f gets ends, and the error matches ErrClosed. f may have
// ended well all the same, or with an error of its own.
func (db *DB) during(ctx context.Context, f func(ctx context.Context) error) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	within, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(db.closes, func() { cancel(errDBClosed) })()
	err := f(within)
	// Whose context has ended too may have either error.
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(within), ErrClosed) && !errors.Is(err, ErrClosed) {
		// What it was at is worth reading; but it was not the caller who has cancelled it.
		return fmt.Errorf("%w, in a call that was under way: %s", errDBClosed, err.Error())
	}
	return err
}
