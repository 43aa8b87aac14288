package percolator

import (
	"context"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// widestRow notes how many versions of a row a scan has shown at most.
type widestRow struct {
	*memstore.Store
	versions int
}

func (s *widestRow) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		for row, err := range s.Store.Scan(ctx, r) {
			s.versions = max(s.versions, len(row.Versions))
			if !yield(row, err) {
				return
			}
		}
	}
}

// The last step of an erasure reads a bounded part of a history, also where that is written all the time, and removes all of one that it removes.
func TestErasureReadsBoundedHistories(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	store := &widestRow{Store: w.mem}
	c := w.clientOver(newWireTo(store, w.mem))
	w.history(rowB, 5*gcPage, false)
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowB) }))
	e := &erasure{db: c.DB, span: span{table: "t"}, safe: mustNow(t, c), receipt: &Receipt{}, found: newRowsFound()}
	w.history(rowA, 5*gcPage, false)
	left, err := e.removeRows(t.Context(), c.known())
	require.NoError(t, err)
	require.Zero(t, left)
	require.Equal(t, map[string]bool{"a": true}, e.kept)
	require.LessOrEqual(t, store.versions, gcPage)
	require.Equal(t, 5*gcPage, w.versionsIn("a"))
	row := w.raw(rowB)
	require.Empty(t, row.Versions)
}
