package percolator

import (
	"context"
	"iter"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// notifiedRows visits the rows of a table in which a selector of Notify matches. They come in the order in which the store finds
// them soonest, which is not that of their keys everywhere.
func (db *DB) notifiedRows(ctx context.Context, table string, picks []rowstore.Selector) iter.Seq2[rowstore.Row, error] {
	r := rowstore.ScanRange{Table: table, Selectors: picks}
	if db.slots {
		r.Slots = []rowstore.SlotRange{{Last: rowstore.Slots - 1}}
	}
	return db.store.Scan(ctx, r)
}

// notifiedColumns visits the columns of a row that have notifications, with those,
// newest first.
func notifiedColumns(row *rowstore.Row) iter.Seq2[string, []rowstore.Version] {
	return func(yield func(string, []rowstore.Version) bool) {
		for i := 0; i < len(row.Versions); {
			n := i + 1
			for n < len(row.Versions) && row.Versions[n].Column == row.Versions[i].Column && row.Versions[n].Family == row.Versions[i].Family {
				n++
			}
			if row.Versions[i].Family == rowstore.Notify && !yield(row.Versions[i].Column, row.Versions[i:n]) {
				return
			}
			i = n
		}
	}
}
