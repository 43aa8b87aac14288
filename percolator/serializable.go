package percolator

import (
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The validation of a Serializable transaction: the step of a two-phase commit between
// the commit timestamp and the commit point.

// validate checks that nothing that a Serializable transaction read has changed by its
// commit timestamp. Every prewrite was acknowledged before. So of two transactions that
// each wrote what the other read, at least one sees the other's lock or write.
func (c *committer) validate(ctx context.Context) error {
	if err := c.validateCells(ctx); err != nil {
		return err
	}
	for i := range c.tx.ranges {
		if err := c.validateRange(ctx, &c.tx.ranges[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *committer) validateCells(ctx context.Context) error {
	var reads []rowstore.RowRead
	index := map[rowName]int{}
	for cell := range c.tx.reads {
		if c.find(cell) >= 0 {
			continue // its prewrite has checked it
		}
		i, ok := index[cell.rowName()]
		if !ok {
			i = len(reads)
			index[cell.rowName()] = i
			reads = append(reads, rowstore.RowRead{Table: cell.Table, Row: cell.Row})
		}
		reads[i].Selectors = validationPicks(reads[i].Selectors, cell.Column, c.start, c.commit)
	}
	return c.validateRows(ctx, reads, func(string) bool { return true })
}

// validateRows checks rows that are read with validationPicks, in the columns that count.
func (c *committer) validateRows(ctx context.Context, reads []rowstore.RowRead, counts func(column string) bool) error {
	for attempt := 0; len(reads) > 0; attempt++ {
		var again []rowstore.RowRead
		for some := range slices.Chunk(reads, pieceRows) {
			rows, err := c.db.readRows(ctx, some)
			if err != nil {
				return fmt.Errorf("validating: %w", err)
			}
			var met blockers
			for i := range rows {
				blocked, err := c.validateRow(&met, &rows[i], counts)
				if err != nil {
					return err
				}
				if blocked {
					again = append(again, some[i])
				}
			}
			if _, err := c.clear(ctx, &met); err != nil {
				return err
			}
		}
		if reads = again; len(reads) > 0 {
			if err := c.db.clock.Sleep(ctx, c.db.opt.lockWait.wait(attempt, c.db.rand)); err != nil {
				return fmt.Errorf("validating: %w", err)
			}
		}
	}
	return nil
}

func (c *committer) validateRange(ctx context.Context, r *readRange) error {
	var picks []rowstore.Selector
	for _, col := range r.columns {
		picks = validationPicks(picks, col, c.start, c.commit)
	}
	counts := func(string) bool { return true }
	if r.columns == nil {
		picks = validationPicks(nil, rowstore.AllColumns, c.start, c.commit)
		counts = func(column string) bool { return !format.Reserved(column) }
	}
	for attempt := 0; ; attempt++ {
		blocked := false
		var met blockers
		for row, err := range c.db.store.Scan(ctx, rowstore.ScanRange{Table: r.table, From: r.from, To: r.to, Selectors: picks}) {
			if err != nil {
				return fmt.Errorf("validating: %w", err)
			}
			b, err := c.validateRow(&met, &row, counts)
			if err != nil {
				return err
			}
			blocked = blocked || b
			if len(met.rows) == settleMost {
				if _, err := c.clear(ctx, &met); err != nil {
					return err
				}
				met = blockers{}
			}
		}
		if _, err := c.clear(ctx, &met); err != nil {
			return err
		}
		if !blocked {
			return nil
		}
		if err := c.db.clock.Sleep(ctx, c.db.opt.lockWait.wait(attempt, c.db.rand)); err != nil {
			return fmt.Errorf("validating: %w", err)
		}
	}
}

func validationPicks(picks []rowstore.Selector, column string, start, commit Timestamp) []rowstore.Selector {
	return append(picks,
		rowstore.Selector{Family: rowstore.Lock, Column: column, To: commit, Limit: 1},
		rowstore.Selector{Family: rowstore.Write, Column: column, From: start + 1, To: commit, Limit: 1})
}

// validateRow checks one view of a row. blocked means that the row must be read again, once the locks are out of the way that it has
// added to met.
func (c *committer) validateRow(met *blockers, row *rowstore.Row, counts func(column string) bool) (blocked bool, err error) {
	for i := range row.Versions {
		v := &row.Versions[i]
		if !counts(v.Column) {
			continue
		}
		cell := Cell{row.Table, row.Row, v.Column}
		if v.Family == rowstore.Write {
			return false, c.conflict(cell, v.TS, "another transaction wrote what this one read or deletes")
		}
		if v.TS == c.start {
			continue // our own
		}
		l, err := format.DecodeLock(v.Value)
		if err != nil {
			return false, fmt.Errorf("%v: %w", cell.public(), err)
		}
		if l.Kind == format.KindLock {
			continue
		}
		met.add(cell.rowName(), v.Column, v.TS, l)
		blocked = true
	}
	return blocked, nil
}
