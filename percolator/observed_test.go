package percolator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// waiting starts a WaitObserved.
func waiting(t testing.TB, c *client, at Timestamp, observer string, cells ...Cell) <-chan error {
	t.Helper()
	return async(func() error { return c.WaitObserved(t.Context(), at, observer, cells...) })
}

// stillWaits makes sure that it has looked twice more and found something left.
func stillWaits(t testing.TB, c *client, done <-chan error) {
	t.Helper()
	looks := func() int {
		return len(c.wire.sent(func(x *call) bool { return len(x.Reads) > 0 && x.Reads[0].Table == "t" }))
	}
	before := looks()
	require.Eventually(t, func() bool { return looks() >= before+2 }, patience, time.Millisecond)
	select {
	case err := <-done:
		require.FailNow(t, "it has ended", "%v", err)
	default:
	}
}

// updateAt sets cells to a value.
func updateAt(t testing.TB, c *client, value string, cells ...Cell) Timestamp {
	t.Helper()
	at, err := c.UpdateAt(t.Context(), func(tx *Txn) error {
		var errs []error
		for _, cell := range cells {
			errs = append(errs, tx.Set(cell, []byte(value)))
		}
		return errors.Join(errs...)
	})
	require.NoError(t, err)
	return at
}

func TestWaitObserved(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		ctx := t.Context()
		w.observed("t", "v", "o", "other")
		c, waiter := w.client(opts...), w.client(opts...)
		total := Cell{"out", "total", "n"}
		o := Observer{Name: "o", Func: func(ctx context.Context, tx *Txn, cell Cell) error {
			v, err := tx.Get(ctx, cell)
			return errors.Join(err, tx.Set(total, v))
		}}
		worker := watching(t, c, o)
		first := updateAt(t, c, "1", rowA, rowB)
		done := waiting(t, waiter, first, "o", rowA, rowB, rowC, rowA)
		stillWaits(t, waiter, done)
		runs(t, worker, rowA)
		stillWaits(t, waiter, done)
		runs(t, worker, rowB)
		require.NoError(t, w.finish(done))
		require.Equal(t, "1", value(t, waiter, total))

		// A newer change is not waited for, unless it is asked for.
		second := updateAt(t, c, "2", rowA)
		require.NoError(t, waiter.WaitObserved(ctx, first, "o", rowA, rowB))
		require.NoError(t, waiter.WaitObserved(ctx, second-1, "o", rowA, rowB))
		done = waiting(t, waiter, 0, "o", rowA)
		stillWaits(t, waiter, done)
		runs(t, worker, rowA)
		require.NoError(t, w.finish(done))
		// A later run covers what came before.
		third := updateAt(t, c, "3", rowA)
		updateAt(t, c, "4", rowA)
		runs(t, worker, rowA)
		require.NoError(t, waiter.WaitObserved(ctx, third, "o", rowA))

		// A weak notification is a change, too.
		at, err := c.UpdateAt(ctx, func(tx *Txn) error { return tx.Notify(rowA) })
		require.NoError(t, err)
		done = waiting(t, waiter, at, "o", rowA)
		stillWaits(t, waiter, done)
		require.NoError(t, waiter.WaitObserved(ctx, at-1, "o", rowA))
		runs(t, worker, rowA)
		require.NoError(t, w.finish(done))

		// So is a delete.
		at, err = c.UpdateAt(ctx, func(tx *Txn) error { return tx.Delete(rowB) })
		require.NoError(t, err)
		stillWaits(t, waiter, waiting(t, waiter, at, "other", rowB))
	})
}

// A run whose commit is under way does not count before it is decided. What the observer has
// written can be read when WaitObserved has returned.
func TestWaitObservedAndACommitUnderWay(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		c, waiter := w.client(opts...), w.client()
		at := updateAt(t, c, "1", rowA)
		out := Cell{"t", "z", "out"}
		worker := watching(t, c, Observer{Name: "o", Func: func(_ context.Context, tx *Txn, _ Cell) error { return tx.Set(out, []byte("1")) }})
		p := c.hold(t, commits)
		running := async(func() error {
			_, _, err := worker.runCell(t.Context(), rowA)
			return err
		})
		p.wait()
		done := waiting(t, waiter, at, "o", rowA)
		stillWaits(t, waiter, done)
		p.release(pass)
		require.NoError(t, w.finish(running))
		require.NoError(t, w.finish(done))
		require.Equal(t, "1", value(t, waiter, out))
	})
}

// A cell that a transaction has locked at or below the timestamp is waited for.
func TestWaitObservedMeetsLocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	t1, waiter := w.client(withoutGroups()), w.client()
	worker := watching(t, w.client(), (&saw{}).observer("o"))
	t1.hold(t, secondaries(rowB))
	tx := writes(t, t1, "1", rowB, rowA)
	require.NoError(t, tx.Commit(t.Context()))
	done := waiting(t, waiter, tx.CommitTimestamp(), "o", rowA)
	stillWaits(t, waiter, done)
	runs(t, worker, rowA)
	require.NoError(t, w.finish(done))
}

func TestWaitObservedAndParkedRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	fails := true
	worker := watching(t, c, Observer{Name: "o", MaxAttempts: 1, Func: func(context.Context, *Txn, Cell) error {
		if fails {
			return errTest
		}
		return nil
	}})
	old := updateAt(t, c, "0", rowA)
	at := updateAt(t, c, "1", rowA)
	look(t, worker, rowA)
	for _, at := range []Timestamp{old, at, 0} {
		err := c.WaitObserved(t.Context(), at, "o", rowB, rowA)
		require.ErrorIs(t, err, ErrParked)
		var parked *ParkedError
		require.ErrorAs(t, err, &parked)
		require.Equal(t, []any{"o", rowA, 1}, []any{parked.Run.Observer, parked.Run.Cell, parked.Run.Attempts})
		require.ErrorContains(t, err, errTest.Error())
	}
	// A newer change is attempted, and covers the older one.
	newer := updateAt(t, c, "2", rowA)
	done := waiting(t, c, newer, "o", rowA)
	stillWaits(t, c, done)
	fails = false
	runs(t, worker, rowA)
	require.NoError(t, w.finish(done))
	require.NoError(t, c.WaitObserved(t.Context(), at, "o", rowA))
	// One that is released runs.
	fails = true
	at = updateAt(t, c, "3", rowA)
	look(t, worker, rowA)
	var parked *ParkedError
	require.ErrorAs(t, c.WaitObserved(t.Context(), at, "o", rowA), &parked)
	require.NoError(t, c.Release(t.Context(), parked.Run))
	done = waiting(t, c, at, "o", rowA)
	stillWaits(t, c, done)
	fails = false
	runs(t, worker, rowA)
	require.NoError(t, w.finish(done))
}

func TestWaitObservedRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	ctx := t.Context()
	at := updateAt(t, c, "1", rowA)
	for name, bad := range map[string]struct {
		at       Timestamp
		observer string
		cell     Cell
		err      error
	}{
		"no name":     {at, "", rowA, ErrInvalid},
		"long name":   {at, strings.Repeat("o", 129), rowA, ErrInvalid},
		"no table":    {at, "o", Cell{"", "a", "v"}, ErrInvalid},
		"long row":    {at, "o", Cell{"t", strings.Repeat("r", 4000), "v"}, ErrTooLarge},
		"the future":  {at.Add(time.Hour), "o", rowA, ErrSnapshotInFuture},
		"unknown":     {at, "p", rowA, ErrNotObserved},
		"not its own": {at, "o", Cell{"t", "a", "w"}, ErrNotObserved},
	} {
		require.ErrorIs(t, c.WaitObserved(ctx, bad.at, bad.observer, bad.cell), bad.err, name)
	}
	require.NoError(t, c.WaitObserved(ctx, at, "o"))
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.WaitObserved(short, at, "o", rowA), context.DeadlineExceeded)
	// The observer is removed meanwhile.
	done := waiting(t, c, at, "o", rowA)
	stillWaits(t, c, done)
	require.NoError(t, c.RemoveObserver(ctx, "o"))
	require.ErrorIs(t, w.finish(done), ErrNotObserved)
	require.NoError(t, c.Close(ctx))
	require.ErrorIs(t, c.WaitObserved(ctx, at, "o", rowA), ErrClosed)
}

// Below the safe point the change itself may be gone: what is waited for is what the cell had there.
func TestWaitObservedBelowTheSafePoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	worker := watching(t, c, (&saw{}).observer("o"))
	old := updateAt(t, c, "1", rowA)
	updateAt(t, c, "2", rowA)
	w.clock.advance(2 * worldRetention)
	report, err := w.collect(c, 0)
	require.NoError(t, err)
	require.Equal(t, 1, report.Versions)
	done := waiting(t, c, old, "o", rowA)
	stillWaits(t, c, done)
	runs(t, worker, rowA)
	require.NoError(t, w.finish(done))
	var many []Cell
	for i := range 3 * observedPage {
		many = append(many, row(fmt.Sprint("none", i/2)), Cell{"t", fmt.Sprint("none", i), "v"})
	}
	require.NoError(t, c.WaitObserved(t.Context(), old, "o", many...))
}

// Cells without a version, of which a page has many, cost one timestamp together.
func TestWaitObservedDrawsOnceForAPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	at := updateAt(t, c, "1", row("elsewhere"))
	cells := make([]Cell, 2*observedPage)
	for i := range cells {
		cells[i] = row(fmt.Sprintf("%04d", i))
	}
	c.wire.forget()
	require.NoError(t, c.WaitObserved(t.Context(), at, "o", cells...))
	require.LessOrEqual(t, len(c.wire.sent(op(faultstore.CallDraw))), 4, "one for the look, one for the catalog, and one for each page")
	require.LessOrEqual(t, len(c.wire.sent(op(faultstore.CallRead))), 3)
}
