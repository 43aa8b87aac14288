package percolator

import (
	"context"
	"errors"
	"fmt"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The one-phase commit: one atomic step of the store checks every condition, draws the
// commit timestamp and writes. There are no locks.

// onePhaseKey returns the group key when the whole transaction fits into one
// all-or-none step of the store that also draws the commit timestamp.
func (c *committer) onePhaseKey() string {
	db := c.db
	if db.grouper == nil || !db.opt.onePhase || db.opt.oracle != nil || len(c.tx.gone.all()) > 0 || len(c.tx.ranges) > 0 {
		return ""
	}
	if !c.fitsGroup(c.beside() + 2*len(c.tx.reads)) {
		return ""
	}
	key := db.grouper.GroupKey(c.primaryCell().Table, c.primaryCell().Row)
	if key == "" || !db.grouper.AssignsTimestamps(key) {
		return ""
	}
	for i := range c.rows {
		cell := &c.writes[c.rows[i].from].cell
		if db.grouper.GroupKey(cell.Table, cell.Row) != key {
			return ""
		}
	}
	for i := range c.notices {
		if cell := &c.notices[i].cell; db.grouper.GroupKey(cell.Table, cell.Row) != key {
			return ""
		}
	}
	for i := range c.hints {
		if db.grouper.GroupKey(c.hints[i].Table, c.hints[i].Row) != key {
			return ""
		}
	}
	for cell := range c.tx.reads {
		if db.grouper.GroupKey(cell.Table, cell.Row) != key {
			return ""
		}
	}
	return key
}

// onePhase commits everything in one call. It holds no locks, so it may wait for
// those of others.
func (c *committer) onePhase(ctx context.Context) error {
	group, late := c.onePhaseGroup(), false
	for attempt := 0; ; attempt++ {
		outs, err := c.db.grouper.Group(ctx, []rowstore.Group{group})
		var out rowstore.GroupOutcome
		if err == nil {
			out, err = outs[0], outs[0].Err
		}
		if err == nil && out.Applied {
			c.commit = out.Commit
			c.db.count.onePhase.Add(1)
			c.tx.trace.goes("one phase")
			return nil
		}
		if errors.Is(err, rowstore.ErrTooLarge) && !errors.Is(err, rowstore.ErrAmbiguous) {
			// The store draws no timestamp for so large a group, or not now. It did nothing.
			return c.twoPhase(ctx)
		}
		if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) {
			return err
		}
		// Nothing is concluded from a refusal alone: it may be the second arrival
		// of a request that succeeded.
		if err != nil {
			c.db.count.ambiguous.Add(1)
			return c.concludeOnePhase(ctx, err)
		}
		state, serr := c.askUntilAnswered(ctx, func() (txnState, error) {
			state, err := c.db.status(ctx, c.start, c.primaryCell())
			if err == nil && state.committed == 0 && !state.complete {
				err = c.db.checkSnapshot(ctx, c.start, c.primaryCell().span())
			}
			return state, err
		})
		switch {
		case serr != nil:
			return c.undetermined(serr)
		case state.committed != 0:
			c.commit = state.committed
			c.db.count.onePhase.Add(1)
			c.tx.trace.goes("one phase")
			return nil
		case out.TooLate:
			// A new view is later than the timestamp that was refused.
			if err := c.goByNew(ctx); err != nil {
				return err
			}
			if late || c.onePhaseKey() == "" {
				// Either the calls take longer than the lease, or new observers make the
				// transaction too large for one step. Two phases need no luck: they read
				// the catalog once the commit timestamp is known.
				return c.twoPhase(ctx)
			}
			late, group = true, c.onePhaseGroup()
			continue
		}
		wait, err := c.clearGroup(ctx, &group, &out)
		if err != nil {
			return err
		}
		if wait {
			if err := c.db.clock.Sleep(ctx, c.db.opt.lockWait.wait(attempt, c.db.rand)); err != nil {
				return fmt.Errorf("waiting for a lock: %w", err)
			}
		}
	}
}

// onePhaseGroup builds the whole transaction as one group.
func (c *committer) onePhaseGroup() rowstore.Group {
	muts := rowMutations{list: make([]rowstore.Mutation, 0, len(c.rows))}
	// All rows share these two arrays. A row that needs more than its part gets an array
	// of its own.
	conds, edits := make([]rowstore.Condition, 3*len(c.writes)), make([]rowstore.Edit, len(c.writes))
	for from := 0; from < len(c.rows); {
		r := c.rows[from]
		first := &c.writes[r.from].cell
		for from++; from < len(c.rows) && c.writes[c.rows[from].from].cell.rowName() == first.rowName(); from++ {
			r.to = c.rows[from].to // a group names a row once
		}
		m := rowstore.Mutation{
			Table: first.Table, Row: first.Row,
			Conditions: conds[3*r.from : 3*r.from : 3*r.to],
			Edits:      edits[r.from:r.from:r.to],
		}
		for i := r.from; i < r.to; i++ {
			w := &c.writes[i]
			col := w.cell.Column
			m.Conditions = prewriteConditions(m.Conditions, col, c.start)
			if w.kind == format.KindLock {
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Mark, col, rowstore.AssignedTimestamp, format.EncodeMark(c.start)))
				continue
			}
			wv := format.Write{Kind: w.kind, Start: c.start, Long: w.long()}
			if wv.Long {
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Data, col, c.start, w.value))
			} else {
				wv.Value = w.value
			}
			m.Edits = append(m.Edits, rowstore.Put(rowstore.Write, col, rowstore.AssignedTimestamp, wv.Encode()))
			if c.notify[i] {
				m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, col, rowstore.AssignedTimestamp, c.origin.notification(format.NotifyStrong)))
			}
		}
		m.Conditions = c.guardRow(m.Conditions, r.from, r.to)
		m.Edits = append(m.Edits, c.extra[first.rowName()]...)
		muts.list = append(muts.list, m)
	}
	for i := range c.notices {
		n := &c.notices[i]
		if i := c.find(n.cell); i >= 0 && c.notify[i] {
			continue // the strong one at the same timestamp is enough
		}
		m := muts.of(n.cell.Table, n.cell.Row)
		m.Edits = append(m.Edits, rowstore.Put(rowstore.Notify, n.cell.Column, rowstore.AssignedTimestamp, n.value))
	}
	for _, hint := range c.hints {
		m := muts.of(hint.Table, hint.Row)
		m.Edits = append(m.Edits, hint.Edits...)
	}
	for cell := range c.tx.reads {
		if c.find(cell) >= 0 {
			continue // covered by the conditions of its write
		}
		m := muts.of(cell.Table, cell.Row)
		m.Conditions = append(m.Conditions,
			rowstore.Absent(rowstore.Write, cell.Column, c.start),
			rowstore.Absent(rowstore.Lock, cell.Column, 0))
	}
	return rowstore.Group{Mutations: muts.list, AssignTimestamp: true, NotAfter: c.bound()}
}

// concludeOnePhase finds out what became of a request whose reply was lost.
func (c *committer) concludeOnePhase(ctx context.Context, cause error) error {
	state, err := c.settleOutcome(ctx)
	switch {
	case err != nil:
		return c.undetermined(errors.Join(cause, err))
	case state.committed != 0:
		c.commit = state.committed
		c.db.count.onePhase.Add(1)
		c.tx.trace.goes("one phase")
		return nil
	}
	return c.lost(cause)
}
