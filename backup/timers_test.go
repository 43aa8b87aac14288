package backup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// TestNearTimersAreToldOf: nothing but a notification tells of a timer that is not in the index, so a backup has one, even if a run has taken
// it since. A timer of the index needs none.
func TestNearTimersAreToldOf(t *testing.T) {
	t.Parallel()
	for _, indexed := range []bool{false, true} {
		w := format.Write{Kind: format.KindPut, Start: 4, Value: format.Timer{Due: 100, Indexed: indexed}.Encode()}
		v := rowstore.Version{Family: rowstore.Write, Column: format.TimerColumn("v"), TS: 5, Value: w.Encode()}
		r := &keptRow{row: &rowstore.Row{Table: "t", Row: "r", Versions: []rowstore.Version{v}}}
		require.NoError(t, (&keeper{at: 10}).row(r))
		want := []rowstore.Version{v}
		if !indexed {
			want = append(want, rowstore.Version{Family: rowstore.Notify, Column: "v", TS: 5, Value: format.StrongNotification})
		}
		require.Equal(t, want, r.keep)
	}
}
