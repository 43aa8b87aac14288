package backup

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A restore that was thought dead must write nothing where another call has ended, and programs work. Its marker and the catalog have a condition for that. The rows have none: a condition is
// of the row that it changes, and what tells is in the row of the catalog. Nor would one of their own rows do, since those that were erased look like those that are yet to be
// written. So the restore looks at its marker before each block and each attempt, and sends nothing on the strength of an old look. What is left is what was under way when the other call ended.

// looksFor is for how long rows are sent after a look at the marker.
const looksFor = 2 * time.Second

// lastLook is when the marker was last known to stand. Its methods may be called concurrently.
type lastLook struct{ at atomic.Pointer[time.Time] }

// fresh tells whether that is not long ago. A machine that was suspended shows it by its clock alone, so both that and the time that has passed count.
func (l *lastLook) fresh() bool {
	at := l.at.Load()
	if at == nil {
		return false
	}
	now := time.Now()
	return now.Sub(*at) < looksFor && now.Round(0).Sub(at.Round(0)) < looksFor
}

// stands returns errOvertaken unless this restore's marker stands in place of the catalog.
func (r *restorer) stands(ctx context.Context) error {
	began := time.Now()
	stands := false
	err := r.retry(ctx, func() error {
		began = time.Now()
		rows, err := r.store.Read(ctx, []rowstore.RowRead{{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
			{Family: rowstore.Write, Column: format.ColumnConfig, To: oracle.Max, Limit: 1},
		}}})
		if err == nil {
			err = rows[0].Err
		}
		if err != nil {
			return err
		}
		v := rows[0].Newest(rowstore.Write, format.ColumnConfig)
		stands = v != nil && v.TS == r.marker.Began && format.IsRestoring(v.Value)
		return nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("backup: looking whether the restore goes on: %w", err)
	case !stands:
		return errOvertaken
	}
	r.stood.at.Store(&began)
	return nil
}

// applyRows applies mutations of rows, as long as the marker stands.
func (r *restorer) applyRows(ctx context.Context, muts []rowstore.Mutation) error {
	return r.applyIf(ctx, muts, func(attempt int) error {
		if attempt == 0 && r.stood.fresh() {
			return nil
		}
		return r.stands(ctx)
	})
}
