package percolator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The weak notifications of a commit (Txn.Notify): alone, where the transaction has
// nothing else, or as the last step before the commit point of two phases.

// notifyOnly commits a transaction that has only weak notifications: no writes, no
// locks, and no reads to validate.
func (c *committer) notifyOnly(ctx context.Context) error {
	ts, err := c.db.draw(ctx)
	if err != nil {
		return err
	}
	c.endUse(false)
	if err := c.checkBound(ctx, ts); err != nil {
		return err
	}
	if err := c.putWeak(ctx, ts, rowName{}); err != nil {
		if errors.Is(err, rowstore.ErrAmbiguous) {
			return c.undetermined(err)
		}
		return err
	}
	c.commit = ts
	return nil
}

// notice is a notification that goes beside the writes of a commit, at its timestamp.
type notice struct {
	cell  Cell // stored
	value []byte
}

// putWeak puts the weak notifications, and what tells of timers, at the commit timestamp, except those of the row
// except, which go with the commit point. A put is repeated after a lost reply: putting
// it twice costs one run at most.
func (c *committer) putWeak(ctx context.Context, ts Timestamp, except rowName) error {
	var cells []int
	for i := range c.notices {
		if c.notices[i].cell.rowName() != except {
			cells = append(cells, i)
		}
	}
	row := func(i int) rowName { return c.notices[i].cell.rowName() }
	slices.SortStableFunc(cells, func(a, b int) int {
		return cmp.Or(cmp.Compare(row(a).table, row(b).table), cmp.Compare(row(a).row, row(b).row))
	})
	most := min(64, c.db.rowOperations()) // of one row, in one mutation
	var muts []rowstore.Mutation
	for _, i := range cells {
		cell := &c.notices[i].cell
		n := len(muts)
		if n == 0 || muts[n-1].Table != cell.Table || muts[n-1].Row != cell.Row || len(muts[n-1].Edits) == most {
			muts = append(muts, rowstore.Mutation{Table: cell.Table, Row: cell.Row})
			n++
		}
		muts[n-1].Edits = append(muts[n-1].Edits, rowstore.Put(rowstore.Notify, cell.Column, ts, c.notices[i].value))
	}
	return c.putAll(ctx, append(muts, c.hints...))
}

// putAll applies mutations that may be applied twice, in pieces, until each has been.
func (c *committer) putAll(ctx context.Context, muts []rowstore.Mutation) error {
	row := func(i int) rowName { return rowName{muts[i].Table, muts[i].Row} }
	bytes := func(i int) int { return len(muts[i].Row) + len(muts[i].Edits)*c.db.limits.Column }
	items := make([]int, len(muts))
	for i := range items {
		items[i] = i
	}
	for attempt := 0; len(items) > 0; attempt++ {
		var again []int
		var lost error
		err := c.db.send(ctx, newCutter(items, row, bytes), func(i int) rowstore.Mutation { return muts[i] }, rowstore.ApplyOptions{}, func(p *piece) error {
			for i, item := range p.items {
				err := p.err
				if err == nil {
					err = p.outs[i].Err
				}
				switch {
				case mayAskAgain(err):
					again, lost = append(again, item), err
				case err != nil:
					return fmt.Errorf("putting notifications: %w", err)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		slices.Sort(again)
		if items = again; len(items) > 0 {
			if err := c.db.clock.Sleep(ctx, c.db.opt.retryWait.wait(attempt, c.db.rand)); err != nil {
				return fmt.Errorf("putting notifications: %w, after %w", err, lost)
			}
		}
	}
	return nil
}
