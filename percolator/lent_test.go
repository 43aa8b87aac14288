package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// A function that commits the transaction that it was lent is told that it may not, and takes effect once if it goes on, and not at all if
// it returns the error.
func TestFunctionMayNotCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	calls := 0
	commits := func(ctx context.Context, tx *Txn) error {
		calls++
		if err := tx.Set(rowA, []byte("1")); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}
	err := c.Update(t.Context(), func(tx *Txn) error { return commits(t.Context(), tx) })
	require.ErrorIs(t, err, ErrInvalid)
	require.Equal(t, 1, calls)
	require.Empty(t, w.raw(rowA).Versions)
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		require.ErrorIs(t, commits(t.Context(), tx), ErrInvalid)
		return tx.Set(rowB, []byte("2"))
	}))
	require.Equal(t, "1 2", value(t, c, rowA)+" "+value(t, c, rowB))
}

// Without that, each attempt of such an observer takes effect, and none is acknowledged.
func TestObserverMayNotCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	calls := 0
	worker := watching(t, c, Observer{Name: "o", MaxAttempts: 3, Func: func(ctx context.Context, tx *Txn, _ Cell) error {
		calls++
		if err := tx.Set(rowB, []byte("effect")); err != nil {
			return err
		}
		return tx.Commit(ctx)
	}})
	set(t, c.DB, rowA, "1")
	for range 3 {
		_, _, _ = worker.runCell(t.Context(), rowA.stored())
	}
	require.Positive(t, calls)
	require.Empty(t, w.raw(rowB).Versions)
}

// A Middleware that calls next again, as one that tries again does, repeats no effect: the run fails, whatever it returns.
func TestMiddlewareCallsNextTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	called, twice := 0, true
	worker := watching(t, c, Observer{Name: "o", Func: func(ctx context.Context, tx *Txn, _ Cell) error {
		called++
		old, err := tx.Get(ctx, rowB)
		if err != nil {
			old = nil
		}
		return tx.Set(rowB, append(old, 'x'))
	}})
	require.NoError(t, worker.Use(func(ctx context.Context, _ Run, _ *Txn, next func(context.Context) error) error {
		if err := next(ctx); err != nil {
			return err
		}
		if twice {
			require.ErrorIs(t, next(ctx), ErrInvalid)
		}
		return nil
	}))
	set(t, c.DB, rowA, "1")
	failed := make(chan RunError, 1)
	require.NoError(t, worker.OnError(func(_ context.Context, e RunError) { failed <- e }))
	_, _, _ = worker.runCell(t.Context(), rowA.stored())
	require.Equal(t, 1, called)
	require.ErrorIs(t, (<-failed).Err, ErrInvalid)
	require.Empty(t, w.raw(rowB).Versions)
	twice = false
	w.pass(worldRetention)
	runs(t, worker, rowA)
	require.Equal(t, "x", value(t, c, rowB))
}

// heldSnapshot holds up a first read of a row before the store has it.
type heldSnapshot struct {
	rowstore.SnapshotReader

	row              string
	reached, release chan struct{}
}

func (h *heldSnapshot) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	if asks[0].Reads[0].Row == h.row {
		close(h.reached)
		<-h.release
	}
	return h.SnapshotReader.ReadSnapshot(ctx, asks)
}

// holdFirstRead holds up a first read of row B by a client.
func holdFirstRead(t *testing.T, w *world, c *client) *heldSnapshot {
	t.Helper()
	reader, ok := rowstore.Unwrap[rowstore.SnapshotReader](w.mem)
	require.True(t, ok)
	held := &heldSnapshot{SnapshotReader: reader, row: rowB.Row, reached: make(chan struct{}), release: make(chan struct{})}
	c.snapshotReader = held
	return held
}

// overtaken has a transaction of c read row A while its first other read, late, is held up, and other write row A before that
// goes on. The late one, and so the transaction, must fail: row A would keep what was read before.
func overtaken(t *testing.T, c, other *client, reached <-chan struct{}, release chan<- struct{}, late func(tx *Txn) error) {
	t.Helper()
	err := c.Update(t.Context(), func(tx *Txn) error {
		second := async(func() error { return late(tx) })
		<-reached
		old, err := tx.Get(t.Context(), rowA)
		require.NoError(t, err)
		set(t, other.DB, rowA, "1")
		close(release)
		if err := <-second; err != nil {
			return err
		}
		return tx.Set(rowA, append(old, 'x'))
	}, WithMaxAttempts(1))
	require.ErrorIs(t, err, ErrInvalid)
	require.Equal(t, "1", value(t, other, rowA))
}

// Two goroutines read by one transaction, each with a first snapshot, and somebody writes between these. The read that comes late fails: judged by
// its snapshot, the write would have come before the transaction began, which has not seen it.
func TestTwoSnapshotsOfATransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, other := w.client(), w.client()
	set(t, other.DB, rowA, "0")
	held := holdFirstRead(t, w, c)
	overtaken(t, c, other, held.reached, held.release, func(tx *Txn) error {
		if _, err := tx.Get(t.Context(), rowB); !errors.Is(err, ErrNotFound) {
			return err
		}
		return nil
	})
}

// heldScan holds up a scan before the store has it.
type heldScan struct {
	*memstore.Store

	reached, release chan struct{}
}

func (h *heldScan) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		if r.Snapshot != nil && r.Snapshot.Start == 0 {
			close(h.reached)
			<-h.release
		}
		h.Store.Scan(ctx, r)(yield)
	}
}

// The same with a scan that comes late: it has another snapshot than the read that has overtaken it.
func TestScanBesideAFirstRead(t *testing.T) {
	t.Parallel()
	for _, rows := range []int{0, 3} {
		t.Run(fmt.Sprint(rows, " rows"), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			other := w.client()
			set(t, other.DB, rowA, "0")
			for i := range rows {
				set(t, other.DB, Cell{"many", fmt.Sprint(i), "v"}, "1")
			}
			held := &heldScan{Store: w.mem, reached: make(chan struct{}), release: make(chan struct{})}
			c := w.clientOver(newWireTo(held, w.mem))
			c.snapshotReader, c.snapshotScans = w.mem, true
			overtaken(t, c, other, held.reached, held.release, func(tx *Txn) error {
				for _, err := range tx.Scan(t.Context(), Range{Table: "many"}) {
					if err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// An observer whose function does so has failed itself: the store is not to blame, so its run is counted and parked.
func TestObserverOfTwoGoroutinesIsParked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	worker := watching(t, c, Observer{Name: "o", MaxAttempts: 1, Func: func(context.Context, *Txn, Cell) error {
		return fmt.Errorf("reading: %w", readFailed(t.Context(), errTwoAtOnce))
	}})
	set(t, c.DB, rowA, "1")
	look(t, worker, rowA)
	require.EqualValues(t, 1, c.Stats().ObserverParked)
}
