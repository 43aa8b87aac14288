package percolator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
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

// A replay is listed while it has yet to ask for runs. One of fewer rows than a page asks for all of them at once: it is broken off
// while it waits, its runs are made all the same, and the next call begins anew.
func TestReplaysThatAreListed(t *testing.T) {
	t.Parallel()
	for _, rows := range []int{replayPage - 1, replayPage} {
		t.Run(fmt.Sprint(rows), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			w := newWorld(t)
			w.replays()
			c := w.client()
			o := newTold(t, c, "o", "t")
			var cells []Cell
			for i := range rows {
				cells = append(cells, row(fmt.Sprintf("%04d", i)))
			}
			require.NoError(t, writes(t, c, "1", cells...).Commit(ctx))
			for _, cell := range cells {
				require.True(t, o.run(cell))
			}
			broken, cancel := context.WithCancel(ctx)
			// The second page is never asked for.
			pages := 0
			asker := w.client()
			asker.wire.AddRule(faultstore.Rule{Match: func(x *call) bool {
				asks := op(faultstore.CallScan)(x) && x.Range.Table == "t"
				if asks {
					pages++
				}
				return asks && pages == 2
			}, Before: func(context.Context, *call) verdict { cancel(); return refuse }})
			done := async(func() error { _, err := asker.Replay(broken, "o", Range{Table: "t"}); return err })
			require.Eventually(t, func() bool { return w.asked(cells[rows-1], "o") }, patience, time.Millisecond)
			if rows < replayPage {
				cancel()
			}
			require.ErrorIs(t, w.finish(done), context.Canceled)
			listed, err := c.Replays(ctx)
			require.NoError(t, err)
			require.Len(t, listed, rows/replayPage)
			calls := o.calls
			for _, cell := range cells {
				require.NotEmpty(t, w.notified(cell))
				require.True(t, o.run(cell))
			}
			require.Equal(t, calls+rows, o.calls, "every run is made, though nobody waits")
		})
	}
}
