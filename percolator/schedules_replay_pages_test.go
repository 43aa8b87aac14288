package percolator

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Replays whose pages meet a collection, or small limits.

// The deletion of a cell is collected after a replay has found it, and before the request is committed. Nothing runs for it, and the replay ends.
func TestScheduleR_DeletionCollectedMeanwhile(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.replays()
		c := w.client(opts...)
		o, other := newTold(t, c, "o", "t"), newTold(t, w.client(), "other", "t")
		set(t, c.DB, rowA, "1")
		remove(t, c.DB, rowA)
		require.True(t, o.run(rowA))
		require.True(t, other.run(rowA))
		rests(t, o.w, rowA)
		w.pass(worldLease)
		asker := w.client(opts...)
		p := asker.hold(t, func(x *call) bool { return edits(x, puts(rowstore.Write)) || edits(x, puts(rowstore.Lock)) })
		calls := o.calls
		done := async(func() error {
			report, err := asker.Replay(t.Context(), "o", Range{Table: "t"})
			if err == nil && report.Cells != 1 {
				err = fmt.Errorf("%+v", report)
			}
			return err
		})
		p.wait()
		row := w.raw(rowA)
		var edits []rowstore.Edit
		for _, v := range row.All(rowstore.Write, "v") {
			edits = append(edits, rowstore.Delete(rowstore.Write, "v", v.TS))
		}
		require.NotEmpty(t, edits)
		_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: "a", Edits: edits}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		p.release(pass)
		require.Eventually(t, func() bool { return w.asked(rowA, "o") }, patience, time.Millisecond)
		look(t, other.w, rowA)
		require.NotEmpty(t, w.notified(rowA), "nothing tells of the request")
		look(t, o.w, rowA)
		require.NoError(t, w.finish(done))
		require.Equal(t, calls, o.calls)
		require.False(t, w.asked(rowA, "o"))
		rests(t, o.w, rowA)
		require.Empty(t, w.notified(rowA))
		w.settled()
	})
}

// A replay asks for no more at once than a transaction may write.
func TestReplayWithinLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.replays()
	c := w.client(WithLimits(Limits{Cells: 5}))
	o := newTold(t, c, "o", "t")
	for _, cell := range []Cell{rowA, rowB, rowC} {
		set(t, c.DB, cell, "1")
		require.True(t, o.run(cell))
	}
	done := async(func() error {
		report, err := c.Replay(t.Context(), "o", Range{Table: "t"})
		if err == nil && report.Cells != 3 {
			err = fmt.Errorf("%+v", report)
		}
		return err
	})
	for _, cell := range []Cell{rowA, rowB, rowC} {
		require.Eventually(t, func() bool { return w.asked(cell, "o") }, patience, time.Millisecond)
		require.True(t, o.run(cell))
	}
	require.NoError(t, w.finish(done))
}
