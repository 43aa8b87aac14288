package percolator

import (
	"context"
	"errors"
	"fmt"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The roll back of a commit that failed: it removes what its prewrites have left, the
// primary first. resolve.go handles what other processes have left.

// abort removes what the prewrites have left. It continues after the caller's context
// has ended, and after a first try that failed; the caller waits for the first try
// only. If a prewrite of the primary may still be under way, a fence keeps it from
// taking effect.
func (c *committer) abort(ctx context.Context) {
	tried := make(chan struct{})
	c.db.hint(c.primaryCell(), c.start) // the mark
	if !c.resolveLater(c.db.cleanUpTimeout(), false, func(bg context.Context) bool {
		err := c.rollBackAll(bg)
		close(tried)
		return c.retryCleanUp(bg, err, c.rollBackAll)
	}) {
		return
	}
	select {
	case <-tried:
	case <-ctx.Done():
	}
}

// rollBackAll rolls back every row that was prewritten, or may have been. The
// primary goes first, as always.
func (c *committer) rollBackAll(ctx context.Context) error {
	var rows []commitRow
	if r := c.rows[c.primaryRow]; r.sent {
		done, err := c.rollBackOwnPrimary(ctx, r)
		if err != nil {
			return err // the other rows wait until the primary is decided
		}
		if !done {
			rows = append(rows, r)
		}
	}
	for i, r := range c.rows {
		if r.sent && i != c.primaryRow {
			rows = append(rows, r)
		}
	}
	return c.applyRows(ctx, rows, false, c.rollBackMutation)
}

// rollBackOwnPrimary removes the locks of the primary's row and leaves the mark, or
// fences a primary whose prewrite may be under way. done means that the row is clean.
// Without an error the transaction cannot be committed any more.
func (c *committer) rollBackOwnPrimary(ctx context.Context, r commitRow) (done bool, err error) {
	out, err := c.db.applyOne(ctx, c.rollBackMutation(r))
	if err != nil {
		return false, err
	}
	if out.Applied {
		return true, nil
	}
	state, err := c.db.decide(ctx, c.start, c.primaryCell(), overrideLiveOwner, primaryCell)
	if err == nil && state.committed != 0 {
		return false, fmt.Errorf("transaction %d is committed and is not rolled back", uint64(c.start))
	}
	return false, err
}

func (c *committer) rollBackMutation(r commitRow) rowstore.Mutation {
	m := rowstore.Mutation{Table: c.writes[r.from].cell.Table, Row: c.writes[r.from].cell.Row}
	for i := r.from; i < r.to; i++ {
		col := c.writes[i].cell.Column
		m.Conditions = append(m.Conditions, rowstore.Present(col, c.start))
		m.Edits = rollBackEdits(m.Edits, col, c.start, c.writes[i].long(), c.notify[i])
		if i == c.primary {
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Mark, col, c.start, nil))
		}
	}
	return m
}

// retryCleanUp repeats a clean-up that failed with err until it succeeds or the context ends.
// After that, transactions that meet the locks resolve them, and it returns false.
func (c *committer) retryCleanUp(ctx context.Context, err error, cleanUp func(context.Context) error) (done bool) {
	for attempt := 0; err != nil && !errors.Is(err, ErrClosed); attempt++ {
		// Below the safe point this transaction's outcome can no longer be read. Readers
		// that meet its locks roll them back, as the collection does.
		if errors.Is(err, ErrSnapshotTooOld) || c.db.clock.Sleep(ctx, c.db.opt.retryWait.wait(attempt, c.db.rand)) != nil {
			c.db.log.Debug("locks were left for others to resolve", "start", uint64(c.start), "err", err)
			return false
		}
		err = cleanUp(ctx)
	}
	return err == nil
}
