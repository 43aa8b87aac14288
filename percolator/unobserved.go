package percolator

import (
	"context"
	"errors"
	"fmt"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// mostCleared is how many notifications of a column one mutation removes.
const mostCleared = 256

// clearUnobserved removes notifications from before the safe point, of columns without
// a registered observer. A removed observer leaves them, and they would keep deleted
// cells from being collected. An observer that is registered after the view v does not
// need them: its sweep puts a notification of its own on every cell that it has not
// seen. A timer that only such a notification tells of goes with it.
func (db *DB) clearUnobserved(ctx context.Context, v *catalogView, table string, safe Timestamp) error {
	if safe == 0 || format.Reserved(table) {
		return nil
	}
	u := &unobserved{db: db, v: v, table: table, picks: []rowstore.Selector{{Family: rowstore.Notify, Column: rowstore.AllColumns, To: safe - 1, Limit: mostCleared}}}
	var err error
	for row, rerr := range db.notifiedRows(ctx, table, u.picks, 0) {
		if err = rerr; err == nil {
			err = u.add(ctx, &row)
		}
		if err != nil {
			break
		}
	}
	if err == nil {
		err = u.clear(ctx)
	}
	if err != nil {
		return fmt.Errorf("clearing notifications that no observer waits for: %w", err)
	}
	if u.cleared > 0 {
		db.log.Info("notifications were cleared that no observer waits for", "table", Cell{Table: table}.public().Table, "notifications", u.cleared)
	}
	return nil
}

// unobserved clears the notifications of a table that no observer waits for, some rows at a time.
type unobserved struct {
	db      *DB
	v       *catalogView
	table   string
	picks   []rowstore.Selector
	rows    []rowstore.Row
	cells   []Cell
	cleared int
}

// add takes a row, if there is something to clear.
func (u *unobserved) add(ctx context.Context, row *rowstore.Row) error {
	before := len(u.cells)
	for column := range notifiedColumns(row) {
		if len(u.v.observers(u.table, column)) == 0 {
			u.cells = append(u.cells, Cell{u.table, row.Row, column})
		}
	}
	if len(u.cells) > before {
		u.rows = append(u.rows, *row)
	}
	if len(u.cells) < mostCleared {
		return nil
	}
	return u.clear(ctx)
}

// clear clears what was taken.
func (u *unobserved) clear(ctx context.Context) error {
	if u.v.Timers {
		if _, err := u.db.dropTimers(ctx, u.cells); err != nil {
			return err
		}
	}
	for i := range u.rows {
		if err := u.clearRow(ctx, u.rows[i]); err != nil {
			return err
		}
	}
	u.rows, u.cells = u.rows[:0], u.cells[:0]
	return nil
}

func (u *unobserved) clearRow(ctx context.Context, row rowstore.Row) error {
	for {
		m := rowstore.Mutation{Table: u.table, Row: row.Row}
		more := false
		for column, notified := range notifiedColumns(&row) {
			if len(u.v.observers(u.table, column)) > 0 {
				continue
			}
			for i := range notified {
				m.Edits = append(m.Edits, rowstore.Delete(rowstore.Notify, column, notified[i].TS))
			}
			more = more || len(notified) == mostCleared
		}
		if len(m.Edits) == 0 {
			return nil
		}
		switch _, err := u.db.applyOne(ctx, m); {
		case err == nil:
			u.cleared += len(m.Edits)
		case !errors.Is(err, rowstore.ErrAmbiguous): // what is left is for the next collection
			return err
		}
		if !more {
			return nil
		}
		rows, err := u.db.readRows(ctx, []rowstore.RowRead{{Table: u.table, Row: row.Row, Selectors: u.picks}})
		if err != nil {
			return err
		}
		row = rows[0]
	}
}
