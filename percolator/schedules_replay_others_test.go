package percolator

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
)

// Replays and others: calls that work on the same one, whoever cancels it, and an observer that is removed.

// pages sets so many rows of table t, in pages of a replay, and returns the cells.
func (w *world) pages(c *client, n int) (cells []Cell) {
	w.t.Helper()
	return w.rows(c, n*replayPage)
}

// rows makes so many cells of table t, each in a row of its own.
func (w *world) rows(c *client, n int) (cells []Cell) {
	w.t.Helper()
	for i := range n {
		cells = append(cells, row(fmt.Sprintf("%04d", i)))
	}
	require.NoError(w.t, writes(w.t, c, "1", cells...).Commit(w.t.Context()))
	return cells
}

// replaying is a call for all of table t that is driven page by page.
func replaying(t testing.TB, c *client) *replay {
	t.Helper()
	_, err := c.loadCatalog(t.Context())
	require.NoError(t, err)
	return &replay{db: c.DB, record: c.replayOf("o", &Range{Table: "t"}, "v"), report: &ReplayReport{}}
}

// page asks for a page, and tells whether it was the last one.
func (r *replay) page(t testing.TB) (over bool) {
	t.Helper()
	over, err := r.ask(t.Context())
	require.NoError(t, err)
	return over
}

// records puts a failure record of observer o beside each cell.
func (w *world) records(c *client, f format.Failure, cells ...Cell) {
	w.t.Helper()
	require.NoError(w.t, c.Update(w.t.Context(), func(tx *Txn) error {
		for _, cell := range cells {
			if err := tx.put(Cell{"t", cell.Row, format.FailureColumn("o", "v")}, format.KindPut, f.Encode()); err != nil {
				return err
			}
		}
		return nil
	}))
}

// A replay ends with its observer. One of the same range that is asked for when the observer was registered again begins at the first row,
// also if the record of the old one was left.
func TestScheduleR_OfAnObserverThatWasRemoved(t *testing.T) {
	t.Parallel()
	for _, left := range []bool{false, true} {
		t.Run(fmt.Sprint(left), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			w := newWorld(t)
			w.replays()
			c := w.client()
			o := newTold(t, c, "o", "t")
			cells := w.pages(c, 2)
			first := replaying(t, c)
			require.False(t, first.page(t))
			record := first.record
			require.NoError(t, c.RemoveObserver(ctx, "o"))
			require.Eventually(t, func() bool {
				infos, err := c.Replays(ctx)
				return err == nil && len(infos) == 0
			}, patience, time.Millisecond, "the replay outlives its observer")
			_, err := first.ask(ctx)
			require.ErrorIs(t, err, ErrNotObserved)
			require.NoError(t, c.drained(ctx))
			w.pass(worldLease + time.Millisecond)
			if left {
				b, err := record.Encode()
				require.NoError(t, err)
				require.NoError(t, c.Update(ctx, func(tx *Txn) error { return tx.put(Cell(record.Cell()), format.KindPut, b) }))
			}
			for _, cell := range cells {
				w.forget(c, cell)
			}
			o.register()
			_, err = first.ask(ctx)
			require.ErrorIs(t, err, ErrNotObserved, "it is another registration")
			second := replaying(t, c)
			require.False(t, second.page(t))
			require.True(t, w.asked(cells[0], "o"), "the first rows are left out")
			require.False(t, second.report.Resumed)
			require.EqualValues(t, replayPage, second.report.Cells)
			for !second.page(t) {
			}
			require.EqualValues(t, 2*replayPage, second.report.Cells)
			infos, err := c.Replays(ctx)
			require.NoError(t, err)
			require.Empty(t, infos)
		})
	}
}

// forget removes the failure record of observer o beside a cell.
func (w *world) forget(c *client, cell Cell) {
	w.t.Helper()
	require.NoError(w.t, c.Update(w.t.Context(), func(tx *Txn) error {
		return tx.put(Cell{"t", cell.Row, format.FailureColumn("o", "v")}, format.KindDelete, nil)
	}))
}

// A replay that an observer has left can be cancelled by the name that Replays tells.
func TestCancelReplayOfAnObserverThatWasRemoved(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t)
	w.replays()
	w.observed("t", "v", "o")
	c := w.client()
	w.pages(c, 2)
	r := replaying(t, c)
	require.False(t, r.page(t))
	require.NoError(t, c.RenameObserver(ctx, "o", "new"))
	require.NoError(t, c.RemoveObserver(ctx, "new"))
	require.NoError(t, c.drained(ctx))
	b, err := r.record.Encode()
	require.NoError(t, err)
	for _, columns := range [][]string{nil, {"v"}} {
		require.NoError(t, c.Update(ctx, func(tx *Txn) error { return tx.put(Cell(r.record.Cell()), format.KindPut, b) }))
		infos, err := c.Replays(ctx)
		require.NoError(t, err)
		require.Len(t, infos, 1)
		require.Equal(t, "o", infos[0].Observer)
		for _, other := range []Range{{Table: "u"}, {Table: "t", From: "a"}, {Table: "t", To: "a"}, {Table: "t", Columns: []string{"w"}}} {
			require.ErrorIs(t, c.CancelReplay(ctx, "o", other), ErrNotObserved)
		}
		require.ErrorIs(t, c.CancelReplay(ctx, "another", Range{Table: "t"}), ErrNotObserved)
		infos, err = c.Replays(ctx)
		require.NoError(t, err)
		require.Len(t, infos, 1)
		require.NoError(t, c.CancelReplay(ctx, "o", Range{Table: "t", Columns: columns}))
		infos, err = c.Replays(ctx)
		require.NoError(t, err)
		require.Empty(t, infos)
		require.ErrorIs(t, c.CancelReplay(ctx, "o", Range{Table: "t", Columns: columns}), ErrNotObserved)
	}
}

// A call whose replay was ended by somebody else waits for what was asked for, and for nothing behind that.
func TestScheduleR_EndedBySomebodyElse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		less   int // rows that the last page is short of
		others int // pages that another call asks for
		ends   func(t *testing.T, c *client)
		waited int // pages that the call waits for
	}{
		"cancelled at once": {0, 0, cancelReplays, 1},
		"cancelled":         {0, 1, cancelReplays, 2},
		"cancelled, and begun anew": {0, 1, func(t *testing.T, c *client) {
			cancelReplays(t, c)
			r := replaying(t, c)
			r.page(t)
			r.page(t)
		}, 2},
		"to the end":                         {0, 6, func(*testing.T, *client) {}, 6},
		"to the end of a page with few rows": {3, 5, func(*testing.T, *client) {}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.replays()
			w.observed("t", "v", "o")
			c, other := w.client(), w.client()
			const all = 6
			cells := w.rows(c, all*replayPage-test.less)
			r := replaying(t, c)
			require.False(t, r.page(t))
			// The request behind what the replay has come to is not its own. The rows before it have failed, so that they are among what is looked at.
			far := cells[(all-1)*replayPage+1:]
			w.records(c, format.Failure{Change: 1, Attempts: 1}, cells[min((test.others+1)*replayPage, len(cells)):]...)
			w.records(c, format.Failure{Change: 1, Replay: true}, far...)
			beside := replaying(t, other)
			for range test.others {
				beside.page(t)
			}
			test.ends(t, other)
			require.True(t, r.page(t))
			waited := map[string]int{}
			for _, c := range r.left {
				waited[c.Row]++
			}
			for i, cell := range cells {
				want := 0
				if i < test.waited*replayPage {
					want = 1
				}
				require.Equal(t, want, waited[cell.Row], cell.Row)
			}
		})
	}
}

func cancelReplays(t *testing.T, c *client) {
	t.Helper()
	require.NoError(t, c.CancelReplay(t.Context(), "o", Range{Table: "t"}))
}

// A call that goes on with a replay waits for requests alone: not for runs that have failed for a change, nor for those that were parked before.
func TestScheduleR_GoesOnBesideFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.replays()
	w.observed("t", "v", "o")
	c := w.client()
	cells := w.pages(c, 3)
	require.False(t, replaying(t, c).page(t))
	w.records(c, format.Failure{Change: 1, Attempts: 1}, cells[0], cells[1])
	w.records(c, format.Failure{Change: 1, Attempts: 3, Parked: true}, cells[2])
	w.records(c, format.Failure{Change: 1, Attempts: 3, Parked: true, Replay: true}, cells[3])
	r := replaying(t, c)
	require.False(t, r.page(t))
	require.True(t, r.report.Resumed)
	require.Len(t, r.left, 2*replayPage-4)
	for _, left := range r.left {
		require.NotContains(t, []string{cells[0].Row, cells[1].Row, cells[2].Row, cells[3].Row}, left.Row)
	}
}
