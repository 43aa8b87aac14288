package percolator

import (
	"context"
	"errors"
	"fmt"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// mostCleared is how many notifications of a column one mutation removes at most. A cell has
// very many of them after a long pause of its observer, for example. A store may keep all in one
// place, and hold up its other clients while it changes that.
const mostCleared = 256

// clearedAtOnce is mostCleared, or less if the store takes no mutation of that size.
func (db *DB) clearedAtOnce() int { return min(mostCleared, db.rowOperations()) }

// fitting is how many of some notifications one mutation of a row may remove that has so many bytes already: clearedAtOnce at most, less
// if the store takes no mutation of that size, and 1 at least.
func (db *DB) fitting(bytes int, edits []rowstore.Edit) int {
	n := min(len(edits), db.clearedAtOnce())
	if l := db.step.Bytes; l > 0 {
		n = min(n, within(l-bytes, edits))
	}
	return max(1, n)
}

// alsoFits tells whether a mutation may remove these notifications as well.
func (db *DB) alsoFits(m *rowstore.Mutation, edits []rowstore.Edit) bool {
	if l := db.step.Bytes; l > 0 && within(l-rowstore.SizeOf(m).Bytes, edits) < len(edits) {
		return false
	}
	return len(m.Edits)+len(edits) <= db.rowOperations()
}

// within is how many edits, from the first one on, have no more than so many bytes.
func within(bytes int, edits []rowstore.Edit) int {
	for i := range edits {
		if bytes -= len(edits[i].Column) + len(edits[i].Value); bytes < 0 {
			return i
		}
	}
	return len(edits)
}

// removeNotifications deletes notifications of a row, a bounded number with each mutation. removed
// is how many are certainly gone, also if it returns an error. To remove only some, or some twice,
// does no harm: whoever finds the others removes them.
func (db *DB) removeNotifications(ctx context.Context, row rowName, edits []rowstore.Edit) (removed int, err error) {
	for len(edits) > 0 {
		n := db.fitting(len(row.table)+len(row.row), edits)
		piece := edits[:n]
		edits = edits[n:]
		if _, err := db.applyOne(ctx, rowstore.Mutation{Table: row.table, Row: row.row, Edits: piece}); err != nil {
			return removed, err
		}
		removed += len(piece)
	}
	return removed, nil
}

// clearUnobserved removes notifications from before the safe point, of columns without
// a registered observer. A removed observer leaves them, and they would keep deleted
// cells from being collected. An observer that is registered after the view v does not
// need them: its sweep puts a notification of its own on every cell that it has not
// seen. A timer that only such a notification tells of goes with it.
func (db *DB) clearUnobserved(ctx context.Context, v *catalogView, table string, safe Timestamp, d *damage) error {
	if safe == 0 || format.Reserved(table) {
		return nil
	}
	u := &unobserved{db: db, v: v, table: table, damage: d, picks: []rowstore.Selector{{Family: rowstore.Notify, Column: rowstore.AllColumns, To: safe - 1, Limit: mostCleared}}}
	var err error
	// All notified rows are looked at each time, so one that cannot be read needs no hint.
	left := func(un unreadable) error { return d.passAt(ctx, table, un) }
	for row, rerr := range db.notifiedPast(ctx, table, u.picks, left) {
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
	damage  *damage
	left    map[Cell]error // whose timers could not be dropped
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
		var err error
		if _, u.left, err = u.db.dropTimers(ctx, u.cells); err != nil {
			return err
		}
		for c, failed := range u.left {
			if err := u.damage.pass(ctx, c.Table, c.Row, failed); err != nil {
				return err
			}
		}
	}
	for i := range u.rows {
		err := u.clearRow(ctx, u.rows[i])
		if err != nil {
			err = u.damage.pass(ctx, u.table, u.rows[i].Row, err)
		}
		if err != nil {
			return err
		}
	}
	u.rows, u.cells = u.rows[:0], u.cells[:0]
	return nil
}

func (u *unobserved) clearRow(ctx context.Context, row rowstore.Row) error {
	for {
		var edits []rowstore.Edit
		more := false
		for column, notified := range notifiedColumns(&row) {
			if len(u.v.observers(u.table, column)) > 0 || u.left[Cell{u.table, row.Row, column}] != nil {
				continue
			}
			for i := range notified {
				edits = append(edits, rowstore.Delete(rowstore.Notify, column, notified[i].TS))
			}
			more = more || len(notified) == mostCleared
		}
		if len(edits) == 0 {
			return nil
		}
		n, err := u.db.removeNotifications(ctx, rowName{u.table, row.Row}, edits)
		u.cleared += n
		if err != nil && !errors.Is(err, rowstore.ErrAmbiguous) { // what is left is for the next collection
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
