package percolator

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The long value of a transaction that was rolled back lies below more of its column than a collection sees. That goes with a later one, since
// the row is hinted anew.

// withOrphan returns a client whose collections go by hints, and which has left such a value in rowA.
func withOrphan(t *testing.T) (*world, *client) {
	t.Helper()
	w := newWorld(t)
	c := w.client()
	for range 2 { // all rows were looked at, also since hints are stored
		w.clock.advance(worldRetention)
		_, err := w.collect(c, 0)
		require.NoError(t, err)
	}
	orphan := mustNow(t, c)
	_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: []rowstore.Edit{rowstore.Put(rowstore.Data, "v", orphan, []byte(longText))}}}, rowstore.ApplyOptions{})
	require.NoError(t, err)
	w.clock.advance(time.Second)
	return w, c
}

func TestOrphanBelowADeepColumn(t *testing.T) {
	t.Parallel()
	w, c := withOrphan(t)
	for i := range 3 * gcShallow {
		set(t, c.DB, rowA, fmt.Sprint(i))
	}
	w.leaves(c, 3, 0)
}

func TestOrphanBelowLongValues(t *testing.T) {
	t.Parallel()
	w, c := withOrphan(t)
	for range gcLong + 1 {
		updateAt(t, c, longText, rowA)
	}
	w.leaves(c, 2, 1)
}

// leaves collects garbage as often as is given, and requires that one version of rowA is left then, with some long values, and that it is
// looked at once more at the most.
func (w *world) leaves(c *client, times, long int) {
	w.t.Helper()
	collect := func(later time.Duration) {
		w.clock.advance(later)
		w.hintedCollect(c)
	}
	for range times {
		collect(2 * worldRetention)
	}
	row := w.raw(rowA)
	require.Len(w.t, row.All(rowstore.Write, "v"), 1)
	require.Len(w.t, row.All(rowstore.Data, "v"), long)
	collect(2 * worldRetention)
	before := c.Stats().GCRead
	collect(worldRetention)
	require.Equal(w.t, before, c.Stats().GCRead)
}

// One of the long values that it sees stays, as what an observer saw last, and the other one goes.
func TestOrphanBelowAnOldValue(t *testing.T) {
	t.Parallel()
	w, c := withOrphan(t)
	o := newTold(t, c, "o", "t")
	updateAt(t, c, longText, rowA)
	look(t, o.w, rowA)
	require.Equal(t, 1, o.calls)
	updateAt(t, c, longText, rowA)
	set(t, c.DB, rowA, "short")
	w.leaves(c, 2, 1)
}
