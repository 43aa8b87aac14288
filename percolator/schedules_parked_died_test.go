package percolator

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A run is parked by a transaction whose primary is in the list of parked runs, as the observed table has a retention of its own. The
// process dies between the commit point and the row of the cell. What it leaves there is a record that is committed, and a lock on the
// acknowledgment that changes nothing.

// parkedAndDied parks the run of "o" for a cell like that, and returns a worker that would run it.
func parkedAndDied(t *testing.T) (w *world, c *client, alive *Worker) {
	t.Helper()
	w = newWorld(t)
	c = w.client()
	w.configuredTable(c, "queue", short)
	w.cleaned(c)
	dying := w.client(withoutGroups())
	o := newTold(t, dying, "o", "queue")
	o.fail = Park(errTest)
	set(t, c.DB, queueA, "1")
	_, err := c.loadCatalog(t.Context())
	require.NoError(t, err)
	dying.wire.verdict(func(x *call) bool { return on(queueA)(x) && edits(x, puts(rowstore.Write)) }, die)
	_, _, _ = o.w.runCell(t.Context(), queueA.stored())
	require.Equal(t, 1, o.calls)
	_ = dying.drained(t.Context())
	require.Len(t, w.versions(rowstore.Lock), 2, "of the record, and of the acknowledgment")
	return w, c, watching(t, c, Observer{Name: "o", Table: "queue", Column: "v", OnChange: func(context.Context, *Txn, Change) error {
		t.Error("called, though its run is parked")
		return nil
	}})
}

func TestScheduleB_ParkedAndDied(t *testing.T) {
	t.Parallel()
	w, c, alive := parkedAndDied(t)
	for range 3 {
		w.clock.advance(time.Minute)
		_, _, err := alive.runCell(t.Context(), queueA.stored())
		require.NoError(t, err)
		parked, err := c.Parked(t.Context())
		require.NoError(t, err)
		require.Len(t, parked, 1)
	}
	require.Len(t, w.versions(rowstore.Lock), 1, "a look leaves the lock that stands in nobody's way")
}

// Nor does what is left stand in the way of who does without the run.
func TestScheduleB_DropAfterParkedAndDied(t *testing.T) {
	t.Parallel()
	w, c, alive := parkedAndDied(t)
	w.clock.advance(time.Minute)
	parked, err := c.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, 1)
	done := async(func() error { return c.DropParked(t.Context(), parked...) })
	require.NoError(t, w.finish(done))
	parked, err = c.Parked(t.Context())
	require.NoError(t, err)
	require.Empty(t, parked)
	require.Empty(t, w.versions(rowstore.Lock))
	_, _, err = alive.runCell(t.Context(), queueA.stored())
	require.NoError(t, err)
	require.Zero(t, c.Stats().ObserverRuns)
}
