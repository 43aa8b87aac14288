package percolator

import (
	"context"
	"iter"

	"github.com/percolate-go/percolate/internal/coreaccess"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What package backup reaches of a DB.
func init() {
	coreaccess.Stored.Store = func(db any) rowstore.Store { return db.(*DB).store }
	coreaccess.Stored.Settle = func(ctx context.Context, of any, rows []rowstore.Row, picks []rowstore.Selector, at Timestamp) error {
		db := of.(*DB)
		return db.during(ctx, func(ctx context.Context) error {
			_, err := db.settleRows(ctx, rows, func(int) []rowstore.Selector { return picks }, at)
			return err
		})
	}
	coreaccess.Stored.Notified = func(ctx context.Context, db any, table string, picks []rowstore.Selector) iter.Seq2[rowstore.Row, error] {
		return db.(*DB).notifiedRows(ctx, table, picks)
	}
}
