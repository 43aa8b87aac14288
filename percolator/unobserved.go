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
// seen.
func (db *DB) clearUnobserved(ctx context.Context, v *catalogView, table string, safe Timestamp) error {
	if safe == 0 || format.Reserved(table) {
		return nil
	}
	cleared := 0
	picks := []rowstore.Selector{{Family: rowstore.Notify, Column: rowstore.AllColumns, To: safe - 1, Limit: mostCleared}}
	for row, err := range db.notifiedRows(ctx, table, picks, 0) {
		for err == nil {
			m := rowstore.Mutation{Table: table, Row: row.Row}
			more := false
			for column, notified := range notifiedColumns(&row) {
				if len(v.observers(table, column)) > 0 {
					continue
				}
				for i := range notified {
					m.Edits = append(m.Edits, rowstore.Delete(rowstore.Notify, column, notified[i].TS))
				}
				more = more || len(notified) == mostCleared
			}
			if len(m.Edits) == 0 {
				break
			}
			if _, err = db.applyOne(ctx, m); err == nil {
				cleared += len(m.Edits)
			} else if errors.Is(err, rowstore.ErrAmbiguous) {
				err = nil // what is left is for the next collection
			}
			if err != nil || !more {
				break
			}
			var rows []rowstore.Row
			if rows, err = db.readRows(ctx, []rowstore.RowRead{{Table: table, Row: row.Row, Selectors: picks}}); err == nil {
				row = rows[0]
			}
		}
		if err != nil {
			return fmt.Errorf("clearing notifications that no observer waits for: %w", err)
		}
	}
	if cleared > 0 {
		db.log.Info("notifications were cleared that no observer waits for", "table", Cell{Table: table}.public().Table, "notifications", cleared)
	}
	return nil
}
