package percolator

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// smallGrouper draws no timestamp for a group of more than two rows.
type smallGrouper struct{ *gauge }

func (s smallGrouper) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	for i := range groups {
		if groups[i].AssignTimestamp && len(groups[i].Mutations) > 2 {
			return []rowstore.GroupOutcome{{Err: fmt.Errorf("%w: no timestamp for so many rows", rowstore.ErrTooLarge)}}, nil
		}
	}
	return s.gauge.Group(ctx, groups)
}

// A store may refuse to draw a timestamp for a group that is within its limits. The transaction commits in two phases.
func TestOnePhaseRefused(t *testing.T) {
	t.Parallel()
	g := smallGrouper{newGauge(rowstore.Limits{})}
	db := open(t, g)
	for _, cells := range []int{2, 3} {
		require.NoError(t, db.Update(t.Context(), func(tx *Txn) error {
			for i := range cells {
				if err := tx.Set(Cell{"t", fmt.Sprint(i), "v"}, []byte("1")); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	require.NoError(t, db.drained(t.Context()))
	require.EqualValues(t, 1, db.Stats().OnePhase)
	require.EqualValues(t, 1, db.Stats().Group+db.Stats().TwoPhase)
	require.Zero(t, locksLeft(t, g.mem))
}
