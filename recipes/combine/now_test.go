package combine

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// TestCallsShareATransaction has many calls at once while the store stands still.
func TestCallsShareATransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // no batch is overdue
		ctx := t.Context()
		var stands atomic.Pointer[chan struct{}]
		store := faultstore.New(memstore.New(), faultstore.Options{OnCall: func(faultstore.Call) faultstore.Fault {
			if gate := stands.Load(); gate != nil {
				<-*gate
			}
			return faultstore.Fault{}
		}})
		db := everystore.Over(t, store)
		c := counter(t, db)
		require.NoError(t, c.AddNow(ctx, "n", 1))
		before := db.Stats().Transactions

		gate := make(chan struct{})
		stands.Store(&gate)
		var group sync.WaitGroup
		call := func(ctx context.Context, result *error) {
			group.Go(func() { *result = c.AddNow(ctx, "n", 1) })
		}
		waiting := func() int {
			c.batches.mu.Lock()
			defer c.batches.mu.Unlock()
			return len(c.batches.common.waiting)
		}
		until := func(what func() bool) { require.Eventually(t, what, waitLong, waitTick) }
		running := func(is bool) func() bool {
			return func() bool {
				c.batches.mu.Lock()
				defer c.batches.mu.Unlock()
				return c.batches.common.running == is && len(c.batches.common.waiting) == 0
			}
		}
		errs := make([]error, 100)
		// One call takes the place. Its caller leaves while it commits.
		leaving, leave := context.WithCancel(ctx)
		var left atomic.Bool
		group.Go(func() {
			errs[0] = c.AddNow(leaving, "n", 1)
			left.Store(true)
		})
		until(running(true))
		for i := 1; i < len(errs)-1; i++ {
			call(ctx, &errs[i])
		}
		until(func() bool { return waiting() == len(errs)-2 })
		waits, giveUp := context.WithCancel(ctx)
		call(waits, &errs[len(errs)-1])
		until(func() bool { return waiting() == len(errs)-1 })
		giveUp() // it has not begun, so certainly nothing is added
		until(func() bool { return waiting() == len(errs)-2 })
		leave()
		until(func() bool { return left.Load() })
		stands.Store(nil)
		close(gate)
		group.Wait()
		require.ErrorIs(t, errs[len(errs)-1], context.Canceled)
		require.NotErrorIs(t, errs[len(errs)-1], percolator.ErrUndetermined)
		require.ErrorIs(t, errs[0], context.Canceled)
		require.ErrorIs(t, errs[0], percolator.ErrUndetermined)
		require.NoError(t, errors.Join(errs[1:len(errs)-1]...))
		require.Contains(t, []int{99, 100}, get(t, c, "n"))
		require.LessOrEqual(t, db.Stats().Transactions-before, uint64(8))
		until(running(false))
		require.NotEmpty(t, c.slots.free, "they are given back")
	})
}

// TestFaults has calls that fail, get lost, arrive late or twice, and processes that die at any of them. What was acknowledged is there,
// what failed for certain is not, and combining goes on all the time.
func TestFaults(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64() //nolint:gosec // a seed that is printed
	t.Logf("seed %d", seed)
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	var added, unknown, failed, deaths, faults atomic.Int64
	var group sync.WaitGroup
	for process := range 3 {
		random := rand.New(rand.NewPCG(seed, uint64(process))) //nolint:gosec // as above
		group.Go(func() {
			for life := range 12 {
				store := faultstore.New(inner, faultstore.Options{KeepOpen: true, Seed: random.Uint64() | 1})
				db, err := percolator.New(t.Context(), store, percolator.WithSessionLease(shortLease), percolator.WithLockExpiry(shortLease), percolator.WithStorePatience(0))
				if err != nil {
					t.Error(err)
					return
				}
				c := eager(counter(t, db), 2+life%3)
				store.SetRates(faultstore.Rates{LoseReply: 0.02, Fail: 0.01, Late: 0.01, Twice: 0.02, CrashClient: 0.003})
				var adders sync.WaitGroup
				for adder := range 3 {
					adders.Go(func() {
						for range 15 {
							var err error
							if adder == 0 {
								err = c.AddNow(t.Context(), "n", 1)
							} else {
								err = db.Update(t.Context(), func(tx *percolator.Txn) error { return c.Add(t.Context(), tx, "n", 1) })
							}
							switch {
							case err == nil:
								added.Add(1)
							case errors.Is(err, percolator.ErrUndetermined):
								unknown.Add(1)
							default:
								failed.Add(1)
							}
						}
					})
				}
				adders.Wait()
				if _, err := store.Read(t.Context(), nil); err != nil {
					deaths.Add(1)
				}
				for kind := faultstore.Fail; kind <= faultstore.Twice; kind++ {
					faults.Add(int64(store.Count(kind)))
				}
				store.SetRates(faultstore.Rates{})
				store.DeliverLate()
				_ = db.Close(t.Context())
			}
		})
	}
	group.Wait()
	t.Logf("%d added, %d unknown, %d failed; %d faults, %d deaths", added.Load(), unknown.Load(), failed.Load(), faults.Load(), deaths.Load())
	require.Positive(t, faults.Load())
	require.Positive(t, added.Load())
	db := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	c := eager(counter(t, db), 1)
	n := int64(get(t, c, "n"))
	require.GreaterOrEqual(t, n, added.Load())
	require.LessOrEqual(t, n, added.Load()+unknown.Load())
	_, err := c.Combine(t.Context(), "n")
	require.NoError(t, err)
	require.Equal(t, n, int64(get(t, c, "n")))
}

// TestCallersDoNotTakeTurns has callers that call again as soon as their batch is committed. All of them share each transaction: were the next
// batch begun at once, without those of the last one, there would be twice as many. The time is that of the bubble.
func TestCallersDoNotTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		inner := memstore.New()
		db, err := percolator.New(ctx, faultstore.New(inner, faultstore.Options{OnCall: func(c faultstore.Call) faultstore.Fault {
			if c.Kind == faultstore.CallGroup {
				time.Sleep(8 * time.Millisecond)
			}
			return faultstore.Fault{}
		}}))
		require.NoError(t, err)
		c := counter(t, db)
		const callers, each = 8, 50
		var group sync.WaitGroup
		for range callers {
			group.Go(func() {
				for range each {
					if err := c.AddNow(ctx, "k", 1); err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		require.Equal(t, callers*each, get(t, c, "k"))
		require.Less(t, db.Stats().OnePhase, uint64(each*3/2), "most transactions have every caller in them")
		require.NoError(t, db.Close(ctx))
		synctest.Wait()
	})
}

// TestSplitBatchEndsWithItsCallers has a batch whose halves are added one after the other. The first one is done, and the callers of the other leave:
// nobody waits for it then.
func TestSplitBatchEndsWithItsCallers(t *testing.T) {
	t.Parallel()
	within, cancel := context.WithCancel(t.Context())
	one := &batch{callers: 4, cancel: cancel}
	var all []*addition[int]
	for range one.callers {
		all = append(all, &addition[int]{batch: one, done: make(chan struct{})})
	}
	var b batches[int]
	require.ErrorIs(t, b.leave(all[0], context.Canceled), percolator.ErrUndetermined)
	b.finish(all[:2], nil)
	require.NoError(t, b.leave(all[1], context.Canceled), "it is done")
	require.ErrorIs(t, b.leave(all[2], context.Canceled), percolator.ErrUndetermined)
	require.NoError(t, within.Err(), "one waits")
	require.ErrorIs(t, b.leave(all[3], context.Canceled), percolator.ErrUndetermined)
	require.ErrorIs(t, within.Err(), context.Canceled)
	b.finish(all[2:], within.Err())
	require.Zero(t, one.callers)
}
