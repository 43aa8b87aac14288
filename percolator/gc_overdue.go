package percolator

import (
	"context"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// overdueHints bounds how many hints one look at the oldest garbage reads.
const overdueHints = 1000

// overdue is for how much longer than the retention history is kept, whatever the reason: of the database, or of the table where that is longest. Package
// admin grades the same (format.Settings.Overdue). It goes by where collections have come to their ends, not by the safe points that they begin with. Where nothing was ever collected, the oldest garbage counts that is known of.
func (db *DB) overdue(ctx context.Context, v *catalogView) (time.Duration, error) {
	s := v.stored(v.asOf)
	collected := v.collected.Point(v.safePoint)
	late := s.Overdue(v.asOf, collected)
	for i := range s.Tables {
		table := string(s.Tables[i].Name)
		late = max(late, s.TableOverdue(v.asOf, collected, table, v.collected.TablePoint(v.points[table], v.pointsAt)))
	}
	if collected != 0 {
		return late, nil
	}
	picks := []rowstore.Selector{{Family: rowstore.Write, Column: format.ColumnHint, To: oracle.Max, Limit: 1}}
	n := 0
	for row, err := range db.firstHints(ctx, picks) {
		if err != nil {
			return 0, err
		}
		late = max(late, s.Overdue(v.asOf, row.Versions[0].TS))
		if n++; n == overdueHints {
			break
		}
	}
	return late, nil
}
