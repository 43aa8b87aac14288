package percolator

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

func TestHotCellIsQueuedFor(t *testing.T) {
	t.Parallel()
	var h hotCells
	a, b := Cell{"t", "a", "c"}, Cell{"t", "b", "c"}
	first, err := h.wait(t.Context(), a)
	require.NoError(t, err)
	other, err := h.wait(t.Context(), b)
	require.NoError(t, err, "another cell is not held up")
	other()

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = h.wait(gone, a)
	require.ErrorIs(t, err, context.Canceled)

	second := make(chan func())
	go func() {
		done, err := h.wait(context.Background(), a)
		if err != nil {
			done = nil
		}
		second <- done
	}()
	select {
	case <-second:
		t.Fatal("two turns at once")
	default:
	}
	first()
	done := <-second
	require.NotNil(t, done)
	done()
	require.Empty(t, h.queues)
}

// Writers of one cell all get through, whether or not they queue, and leave no queue
// behind.
func TestManyWritersOfOneCell(t *testing.T) {
	t.Parallel()
	for name, opts := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, memstore.New(memstore.WithApplyTimestamps()), opts...)
			c := Cell{"t", "hot", "n"}
			const writers, each = 16, 20
			var wg sync.WaitGroup
			errs := make([]error, writers)
			for i := range writers {
				wg.Go(func() {
					for range each {
						errs[i] = errors.Join(errs[i], db.Update(t.Context(), func(tx *Txn) error {
							v, err := tx.Get(t.Context(), c)
							if errors.Is(err, ErrNotFound) {
								v, err = make([]byte, 8), nil
							}
							if err != nil {
								return err
							}
							binary.BigEndian.PutUint64(v, binary.BigEndian.Uint64(v)+1)
							return tx.Set(c, v)
						}))
					}
				})
			}
			wg.Wait()
			require.NoError(t, errors.Join(errs...))
			require.EqualValues(t, writers*each, binary.BigEndian.Uint64([]byte(get(t, db, c))))
			require.Empty(t, db.hot.queues)
		})
	}
}

// A function that runs a transaction of its own, on the cell that it met a conflict at,
// is not held up for good.
func TestTurnsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New())
	c := Cell{"t", "hot", "n"}
	bump := func(tx *Txn) error {
		if _, err := tx.Get(t.Context(), c); err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		return tx.Set(c, []byte("x"))
	}
	attempts := 0
	require.NoError(t, db.Update(t.Context(), func(tx *Txn) error {
		if attempts++; attempts > 2 {
			return bump(tx)
		}
		if err := bump(tx); err != nil {
			return err
		}
		meddled := false
		return db.Update(t.Context(), func(inner *Txn) error {
			if err := bump(inner); err != nil || meddled {
				return err
			}
			meddled = true
			set(t, db, c, "y") // so that the inner one meets a conflict too
			return nil
		})
	}))
	require.Equal(t, 3, attempts)
	require.Empty(t, db.hot.queues)
}
