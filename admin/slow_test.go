package admin

import (
	"context"
	"iter"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// slow is a store whose scans take their time.
type slow struct{ source }

func (s slow) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		for row, err := range s.source.Scan(ctx, r) {
			time.Sleep(2 * pageTime)
			if !yield(row, err) {
				return
			}
		}
	}
}

// TestSlowStoreIsPaged goes through a table by samples that each end after their time. Each comes further, and none begins before the range.
func TestSlowStoreIsPaged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), percolatetest.Open(t)
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
			for _, row := range []string{"a", "b", "c", "d"} {
				if err := tx.Set(percolator.Cell{Table: "t", Row: row, Column: "c"}, nil); err != nil {
					return err
				}
			}
			return nil
		}))
		r, err := Of(db)
		require.NoError(t, err)
		r.store = slow{r.store}
		looked, from := 0, "b"
		for samples := 0; ; samples++ {
			require.Less(t, samples, 5)
			l, err := r.Locks(ctx, percolator.Range{Table: "t", From: from}, 0)
			require.NoError(t, err)
			looked += l.Looked
			if !l.More {
				break
			}
			require.Greater(t, string(l.Next), from)
			from = string(l.Next)
		}
		require.Equal(t, 3, looked)
	})
}

// TestSizesEndInTime: once its time is over, a count reads a row of each table at most.
func TestSizesEndInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), percolatetest.Open(t)
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error {
			for _, row := range []string{"a", "b", "c", "d"} {
				for _, table := range []string{"t", "u"} {
					if err := tx.Set(percolator.Cell{Table: table, Row: row, Column: "c"}, nil); err != nil {
						return err
					}
				}
			}
			return nil
		}))
		r, err := Of(db)
		require.NoError(t, err)
		r.store = slow{r.store}
		began := time.Now()
		sizes, _, err := r.Sizes(ctx, false, 0)
		require.NoError(t, err)
		require.Len(t, sizes, 2)
		for _, s := range sizes {
			require.True(t, s.AtLeast)
		}
		require.Less(t, time.Since(began), 10*pageTime)
	})
}
