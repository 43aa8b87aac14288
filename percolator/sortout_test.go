package percolator

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// kindOfWaiting is why a cell of observer "o" has nothing to do yet.
type kindOfWaiting string

const (
	waitsForAnother kindOfWaiting = "for another observer"
	waitsForAttempt kindOfWaiting = "for another attempt"
	waitsParked     kindOfWaiting = "parked"
)

var kindsOfWaiting = []kindOfWaiting{waitsForAnother, waitsForAttempt, waitsParked}

// fillWaiting lets n cells wait, as other workers would have left them. One is made as they would, and the others are copies of its row: a test may
// need very many.
func (w *world) fillWaiting(c *client, n int, kind kindOfWaiting, until time.Duration) {
	t := w.t
	t.Helper()
	name := func(i int) Cell { return row(fmt.Sprintf("%07d", i)) }
	first := name(0)
	tx := writes(t, c, "1", first)
	require.NoError(t, tx.Commit(t.Context()))
	change := tx.CommitTimestamp()
	f := format.Failure{Change: change, Attempts: 1, NotBefore: change.Add(until), Parked: kind == waitsParked}
	column, b := format.FailureColumn("o", first.Column), f.Encode()
	if kind == waitsForAnother {
		column, b = format.AckColumn("o", first.Column), format.EncodeAck(change)
	}
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		return tx.put(Cell{first.Table, first.Row, column}, format.KindPut, b)
	}))
	require.NoError(t, c.drained(t.Context()))
	w.copies(first, n-1, func(i int) Cell { return name(i + 1) })
}

// A worker that is new to very many cells that wait reads them a page at a time, and once. It
// finds what it has to do among them, and what waits when its time has come.
func TestWaitingCellsAreSortedOut(t *testing.T) {
	t.Parallel()
	for _, kind := range kindsOfWaiting {
		for _, together := range []bool{false, true} {
			t.Run(fmt.Sprint(kind, ", drawn with the read ", together), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.observed("t", "v", "o", "foreign")
				c, other := w.client(), w.client(withoutGroups())
				if !together {
					c.snapshotReader = nil
				}
				const n, until = 1500, time.Minute
				w.fillWaiting(c, n, kind, until)
				due := []string{"0000007", "0000750", "0001499"}
				for _, name := range due {
					set(t, c.DB, row(name), "2")
				}
				held := other.hold(t, commitPoint(row("0000751")))
				committed := commit(other, writes(t, other, "3", row("0000751")))
				held.wait()
				var rows saw
				wk := rowWorker(t, c, &rows)
				calls, views := len(c.wire.sent(anyCall)), c.Stats().ObserverViews
				require.Equal(t, due, dealt(t, wk, &rows))
				require.Less(t, len(c.wire.sent(anyCall))-calls, n, "most are read together")
				require.GreaterOrEqual(t, c.Stats().ObserverViews-views, uint64(n))
				held.release(verdict{})
				require.NoError(t, w.finish(committed))
				views = c.Stats().ObserverViews
				require.Equal(t, []string{"0000751"}, dealt(t, wk, &rows))
				require.Empty(t, dealt(t, wk, &rows))
				require.LessOrEqual(t, c.Stats().ObserverViews-views, uint64(8), "what waits is not read again")
				if kind == waitsForAttempt {
					w.clock.advance(until + time.Second)
					require.Len(t, dealt(t, wk, &rows), n-len(due)-1)
				}
				require.Empty(t, dealt(t, wk, &rows))
			})
		}
	}
}

// A change that comes while cells are sorted out, between their snapshot and the read, is run at
// once. What follow sorts out does not count as a look of find.
func TestChangeWhileSortingOut(t *testing.T) {
	t.Parallel()
	for _, fresh := range []bool{false, true} {
		t.Run(fmt.Sprint("after a push ", fresh), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o", "foreign")
			c, other := w.client(), w.client()
			c.snapshotReader = nil
			const n = 2 * sortedTogether
			w.fillWaiting(other, n, waitsForAttempt, time.Hour)
			var rows saw
			wk := rowWorker(t, c, &rows)
			wk.list[0].vain = 1
			var slots []uint16
			for i := range n {
				if fresh {
					slots = append(slots, rowstore.Slot("t", fmt.Sprintf("%07d", i)))
				}
			}
			read := c.hold(t, op(faultstore.CallRead))
			looked := async(func() error {
				_, err := wk.look(t.Context(), "t", slots, 0)
				return err
			})
			require.Len(t, read.wait().Reads, n, "they are read together")
			require.Equal(t, !fresh, wk.lookUnderWay("t"))
			require.NoError(t, other.Update(t.Context(), func(tx *Txn) error { return tx.Notify(row("0000007")) }))
			read.release(verdict{})
			require.NoError(t, result(t, looked))
			wk.tasks.Wait()
			require.Equal(t, []string{"0000007"}, rows.values)
			require.False(t, wk.lookUnderWay("t"))
		})
	}
}

// A cell that a dead client has locked is not sorted out: whoever runs it finishes the transaction.
func TestLockedCellsAreNotSortedOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o", "foreign")
	c, other := w.client(), w.client(withoutGroups())
	const n = 2 * sortedTogether
	w.fillWaiting(c, n, waitsForAttempt, time.Hour)
	tx := writes(t, other, "2", row("0000000"), row("0000007"))
	other.diesAfterCommitPoint()
	_ = w.finish(commit(other, tx))
	w.takeForDead(other)
	var rows saw
	wk := rowWorker(t, c, &rows)
	wk.list[0].vain = 1
	require.Equal(t, []string{"0000000", "0000007"}, dealt(t, wk, &rows))
	w.noLocks()
}

// Few cells are not sorted out: the run of one that is due need not wait for that.
func TestFewCellsAreNotSortedOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o", "foreign")
	c := w.client()
	w.fillWaiting(w.client(), sortedTogether-1, waitsForAttempt, time.Hour)
	wk := rowWorker(t, c, &saw{})
	wk.list[0].vain = 1
	l, err := wk.look(t.Context(), "t", nil, 0)
	require.NoError(t, err)
	require.Equal(t, sortedTogether-1, l.found)
	wk.tasks.Wait()
}

// A worker's memory of cells that wait is bounded, and small for each of them. It runs alone,
// because it looks at the memory of the process.
func TestMemoryOfWaitingCells(t *testing.T) { //nolint:paralleltest // see above
	const n = 30_000 // more than may be paused
	for _, kind := range kindsOfWaiting {
		most := 7<<18 + 32*n
		if kind == waitsForAttempt {
			most += 320 * mostPaused // these are paused
		}
		t.Run(string(kind), func(t *testing.T) { //nolint:paralleltest // see above
			w := newWorld(t)
			w.observed("t", "v", "o", "foreign")
			fill := w.client()
			w.fillWaiting(fill, n, kind, time.Hour)
			fill.wire.forget()
			c := w.client()
			heap := func() int {
				c.wire.forget()
				runtime.GC()
				runtime.GC() // what was kept in pools
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return int(m.HeapAlloc) //nolint:gosec // not so much
			}
			var rows saw
			wk := rowWorker(t, c, &rows)
			before := heap()
			require.Empty(t, dealt(t, wk, &rows))
			used := heap() - before
			t.Logf("%d bytes for each of %d cells", used/n, n)
			require.Less(t, used, most)
			views := c.Stats().ObserverViews
			require.Empty(t, dealt(t, wk, &rows))
			require.Zero(t, c.Stats().ObserverViews-views, "they are remembered")
			runtime.KeepAlive(wk)
		})
	}
}

// WaitIdle is not done while something waits for its next attempt, and does not go by what is
// remembered of that: another worker's run may have succeeded.
func TestWhatWaitsIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o", "foreign")
	c := w.client()
	w.fillWaiting(c, 1, waitsForAttempt, time.Hour)
	wk := watching(t, c, Observer{Name: "o", Func: nothing})
	cell, now := row("0000000"), w.clock.Now()
	left := func() bool {
		left, err := (&idleLook{w: wk}).anyLeft(t.Context(), false)
		require.NoError(t, err)
		return left
	}
	var view *cellView
	see := func() {
		at, err := wk.db.draw(t.Context())
		require.NoError(t, err)
		view, _, err = wk.currentView(t.Context(), cell, nil, &snapshot{set: true, start: at})
		require.NoError(t, err)
	}
	see()
	wk.rested.put(cell, wk.signature(view), wk.list[0].bit()|waits, now.Add(time.Hour), now)
	require.True(t, left())
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		return tx.put(Cell{"t", cell.Row, format.AckColumn("o", "v")}, format.KindPut, format.EncodeAck(view.change))
	}))
	require.False(t, left())
	see()
	require.Equal(t, wk.list[0].bit(), wk.rested.covers(cell, wk.signature(view), now), "it is known to be covered")
}
