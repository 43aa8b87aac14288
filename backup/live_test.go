package backup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// TestWhileItIsUsed backs up while amounts are moved between rows and a worker sums them up by their changes. What is restored
// is of one moment, and once a worker has done what was outstanding, each sum is that of its rows: no run was lost, and none was
// made twice.
func TestWhileItIsUsed(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := openShop(t, "pebble:"+filepath.Join(t.TempDir(), "data"))
	const rows, each = 30, 1000
	row := func(i int) percolator.Cell { return at("orders", fmt.Sprintf("%d-%d", i%3, i), "amount") }
	s.update(t, func(tx *percolator.Txn) error {
		var err error
		for i := range rows {
			err = errors.Join(err, tx.Set(row(i), amount(each)))
		}
		return err
	})
	ctx, stop := context.WithCancel(t.Context())
	var moved atomic.Int64
	var all sync.WaitGroup
	for n := range 3 {
		rnd := rand.New(rand.NewPCG(seed, uint64(n))) //nolint:gosec // the test repeats it
		all.Go(func() {
			for ctx.Err() == nil {
				from, to, some := row(rnd.IntN(rows)), row(rnd.IntN(rows)), rnd.IntN(9)
				err := s.db.Update(context.WithoutCancel(ctx), func(tx *percolator.Txn) error {
					a := number(ctx, t, tx, from)
					if err := tx.Set(from, amount(a-some)); err != nil {
						return err
					}
					return tx.Set(to, amount(number(ctx, t, tx, to)+some))
				})
				if err == nil {
					moved.Add(1)
				}
			}
		})
	}
	w := s.worker(t)
	all.Go(func() { _ = w.Run(ctx) })
	var paths []string
	for range 4 {
		before := moved.Load()
		require.Eventually(t, func() bool { return moved.Load() > before+50 }, time.Minute, time.Millisecond)
		paths = append(paths, backedUp(t, s.db, Options{blockBytes: 500}))
	}
	stop()
	all.Wait()
	s.close(t)
	for _, path := range paths {
		r := restored(t, "memory:", path)
		total := func() (total int, of [3]int) {
			require.NoError(t, r.db.View(t.Context(), func(tx *percolator.Txn) error {
				for i := range rows {
					n := number(t.Context(), t, tx, row(i))
					total, of[i%3] = total+n, of[i%3]+n
				}
				return nil
			}))
			return total, of
		}
		sum, of := total()
		require.Equal(t, rows*each, sum, "the backup is not of one moment")
		r.work(t, nil)
		require.NoError(t, r.db.View(t.Context(), func(tx *percolator.Txn) error {
			for i := range of {
				require.Equal(t, of[i], number(t.Context(), t, tx, at("totals", strconv.Itoa(i), "sum")), "sum %d", i)
			}
			return nil
		}))
	}
}

// TestLocksOfTheDead: a backup resolves the locks of a client that died.
func TestLocksOfTheDead(t *testing.T) {
	t.Parallel()
	s := openShop(t, "memory:")
	defer s.close(t)
	s.update(t, func(tx *percolator.Txn) error { return tx.Set(at("orders", "a1", "amount"), amount(1)) })
	leaveLocks(t, s.db.Store(), at("orders", "a1", "amount"), at("orders", "a2", "amount"))
	path := backedUp(t, s.db, Options{})
	r := restored(t, "memory:", path)
	require.NoError(t, r.db.View(t.Context(), func(tx *percolator.Txn) error {
		require.Equal(t, 1, number(t.Context(), t, tx, at("orders", "a1", "amount")))
		require.Equal(t, 0, number(t.Context(), t, tx, at("orders", "a2", "amount")))
		return nil
	}))
}

// TestRunsAfterTheSnapshot lets a worker do all that was outstanding at the snapshot before the backup reads it: at once, or when half of it is
// read. What is restored has yet to do it.
func TestRunsAfterTheSnapshot(t *testing.T) {
	t.Parallel()
	for _, part := range []int{0, 2} {
		t.Run(strconv.Itoa(part), func(t *testing.T) {
			t.Parallel()
			s := openShop(t, "memory:")
			defer s.close(t)
			outstanding := s.fill(t, time.Now().Add(time.Second))
			path := s.cutOff(t, part)
			var runs []string
			s.work(t, func() bool {
				runs = append(runs, s.took()...)
				return slices.Contains(runs, "count b9")
			})
			require.Len(t, runs, len(outstanding)+1)
			s.update(t, func(tx *percolator.Txn) error {
				return errors.Join(tx.Set(amountOf("b1"), amount(9)), tx.Set(amountOf("b2"), amount(9)), tx.Set(amountOf("a00"), amount(9)), tx.Set(amountOf("new"), amount(9)))
			})
			s.work(t, nil)
			require.Len(t, s.took(), 4)
			again, err := Write(t.Context(), s.db, path, Options{blockBytes: small})
			require.NoError(t, err)
			require.True(t, again.Resumed)
			restored(t, "memory:", path).finish(t, outstanding)
		})
	}
}

// cutOff makes a backup that was cut off before its first look at notifications, or, if part is not 0, after that part of it.
func (s *shop) cutOff(t *testing.T, part int) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "backup")
	r, err := Write(t.Context(), s.db, path, Options{blockBytes: small})
	require.NoError(t, err)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	at := ends(t, file)
	cut := at[0]
	if part > 0 {
		cut = at[len(at)/part]
	}
	require.NoError(t, os.WriteFile(path+Incomplete, file[:cut], 0o600))
	_, err = s.db.Hold(t.Context(), holdName(r.ID), r.Snapshot, time.Minute)
	require.NoError(t, err)
	return path
}

// amountOf is the amount of an order.
func amountOf(row string) percolator.Cell { return at("orders", row, "amount") }
