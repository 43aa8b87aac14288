package postgres

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The commit of a run acknowledges a change of a column that may never have been written (a weak notification). It must go the quickest way:
// a statement that had to hold a cell which is not there would fail, and all that was merged with it would be done cell by cell.
func TestNotificationsHoldNoCell(t *testing.T) {
	t.Parallel()
	const start, at = 5, rowstore.AssignedTimestamp
	acknowledge := []rowstore.Condition{
		rowstore.Absent(rowstore.Lock, "ack", 0), rowstore.Absent(rowstore.Write, "ack", start), rowstore.Absent(rowstore.Mark, "ack", start),
	}
	for name, edit := range map[string]rowstore.Edit{
		"removed": rowstore.Delete(rowstore.Notify, "due", 3),
		"put":     rowstore.Put(rowstore.Notify, "due", at, nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w work
			run := task{draws: true, muts: []rowstore.Mutation{{
				Table: "t", Row: "r", Conditions: acknowledge, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, "ack", at, nil), edit},
			}}}
			require.True(t, w.compile(&run))
			require.Len(t, w.cells, 1)
			require.Equal(t, "ack", w.cells[0].col)
			require.Len(t, w.sides, 1)
			require.Equal(t, shapeOne, shapeOf(w.cells, true))
		})
	}
}
