package combine

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestFaultAtEachStep has a process that adds and combines, and dies or loses a reply at one of its steps. Whatever becomes of it, the values are what was added.
func TestFaultAtEachStep(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	second := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	others := eager(counter(t, second), 1)
	marked, now := 0, 0
	add(t, others, "n", 0)
	add(t, others, "now", 0)
	everystore.EachFault(t, inner, func(name string, db *percolator.DB) {
		c := eager(counter(t, db), 1)
		mark := percolator.Cell{Table: "mark", Row: name, Column: "c"}
		added := db.Update(ctx, func(tx *percolator.Txn) error {
			return errors.Join(c.Add(ctx, tx, "n", 1), tx.Set(mark, nil))
		})
		alone := c.AddNow(ctx, "now", 1)
		_, _ = c.Combine(ctx, "n") // it may be dead

		there := false
		require.NoError(t, second.View(ctx, func(tx *percolator.Txn) error {
			got, err := tx.GetMany(ctx, mark)
			_, there = got[mark]
			return err
		}))
		if there {
			marked++
		}
		require.True(t, there || added != nil, "%s: what was acknowledged is not there", name)
		require.Equal(t, marked, get(t, others, "n"), "%s: %v", name, added)
		n := get(t, others, "now")
		switch {
		case alone == nil:
			require.Equal(t, now+1, n, name)
		case errors.Is(alone, percolator.ErrUndetermined):
			require.Contains(t, []int{now, now + 1}, n, name)
		default:
			require.Equal(t, now, n, "%s: %v", name, alone)
		}
		now = n
		for _, key := range []string{"n", "now"} { // what the process has left does not stand in the way
			_, err := others.Combine(ctx, key)
			require.NoError(t, err, name)
		}
		require.Equal(t, marked, get(t, others, "n"), name)
		require.Equal(t, now, get(t, others, "now"), name)
	})
	require.Positive(t, marked)
}
