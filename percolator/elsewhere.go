package percolator

import (
	"context"
	"fmt"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// checkElsewhere returns an error if the database is in another one of several stores, which was authoritative before. A
// catalog that is made here would name the oracle of this store, and the data is of the timestamps of that one.
func (db *DB) checkElsewhere(ctx context.Context) error {
	stores, err := rowstore.Strays(ctx, db.store, rowstore.RowRead{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: format.ColumnConfig, To: oracle.Max, Limit: 1},
	}})
	if err != nil {
		return fmt.Errorf("looking for a database in the other stores: %w", err)
	}
	if len(stores) > 0 {
		return fmt.Errorf("%w: the authoritative store holds no database, and the store %q does: make that one authoritative again, because timestamps of two stores are in no order", ErrInvalid, stores[0])
	}
	return nil
}
