package explore

import (
	"context"
	"fmt"

	"github.com/percolate-go/percolate/percolator"
)

// Rows that are deleted as a whole.

// wholeRow is the row of a cell, as a cell without a column.
func wholeRow(c percolator.Cell) percolator.Cell { return percolator.Cell{Table: c.Table, Row: c.Row} }

// DropRow deletes the row of cells as a whole. They are all those that the row may have.
func (tx *Txn) DropRow(ctx context.Context, cells ...percolator.Cell) error {
	for _, cell := range cells {
		value, err := tx.Read(ctx, cell)
		if err != nil {
			return err
		}
		if value != "" {
			tx.rec.erased = append(tx.rec.erased, cell)
		}
	}
	row := wholeRow(cells[0])
	tx.rec.dropped = append(tx.rec.dropped, row)
	return tx.DeleteRow(ctx, row.Table, row.Row)
}

// checkDropped finds transactions that wrote to a row, in whatever column, while another one deleted it, and were
// committed as well. landed are those that took effect, with their commit timestamps.
func (h *history) checkDropped(landed map[*record]percolator.Timestamp) error {
	for d, gone := range landed {
		for _, row := range d.dropped {
			for w, at := range landed {
				if w == d || w.start == 0 || w.start >= gone || at <= d.start {
					continue
				}
				for _, cell := range append(append([]percolator.Cell(nil), w.writes...), w.erased...) {
					if wholeRow(cell) == row {
						return fmt.Errorf("transaction %s deleted the row %q from %d to %d, and %s wrote %v from %d to %d",
							d.id, row.Row, uint64(d.start), uint64(gone), w.id, cell, uint64(w.start), uint64(at))
					}
				}
			}
		}
	}
	return nil
}
