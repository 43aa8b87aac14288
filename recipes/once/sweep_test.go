package once

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/typed"
)

// ended fills the table with keys that have ended when it returns.
func ended(t *testing.T, db *percolator.DB, keys int) {
	t.Helper()
	k, err := New(db, "once", typed.Number[int]{}, Options{Keep: time.Millisecond})
	require.NoError(t, err)
	k.lookEvery = 1 << 62
	for i := range keys {
		use(t, k, strconv.Itoa(i))
	}
	require.Eventually(t, func() bool {
		left := 0
		require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) error {
			left = 0
			for i := range keys {
				now, r, err := k.read(t.Context(), tx, strconv.Itoa(i))
				if err != nil {
					return err
				}
				if r.until > now {
					left++
				}
			}
			return nil
		}))
		return left == 0
	}, time.Minute, time.Millisecond)
}

func use(t *testing.T, k *Keys[int], key string) {
	t.Helper()
	_, first, err := k.Do(context.WithoutCancel(t.Context()), key, func(context.Context, *percolator.Txn) (int, error) { return 1, nil })
	require.NoError(t, err)
	require.True(t, first)
}

// TestSweepBesideACall has a call that uses one of the ended keys again while Sweep removes them: all others go.
func TestSweepBesideACall(t *testing.T) {
	t.Parallel()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	plain := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	ended(t, plain, 100)
	busy := numbers(t, plain)
	busy.lookEvery = 1 << 62
	var armed atomic.Bool
	var one sync.Once
	db := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true, OnCall: func(c faultstore.Call) faultstore.Fault {
		if armed.Load() && (c.Kind == faultstore.CallGroup || c.Kind == faultstore.CallApply) {
			one.Do(func() { use(t, busy, "7") })
		}
		return faultstore.Fault{}
	}}))
	armed.Store(true)
	n, err := numbers(t, db).Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, 99, n)
	require.Positive(t, db.Stats().Conflicts)
	_, first, err := busy.Do(t.Context(), "7", func(context.Context, *percolator.Txn) (int, error) { return 2, nil })
	require.NoError(t, err)
	require.False(t, first, "the key that is used again stays")
}

// TestSweepOverTheLimits has more keys that have ended than a transaction may write.
func TestSweepOverTheLimits(t *testing.T) {
	t.Parallel()
	db := percolatetest.Open(t, percolator.WithLimits(percolator.Limits{Cells: 40}))
	ended(t, db, 100)
	k := numbers(t, db)
	n, _, err := k.sweepFrom(t.Context(), "", lookAt, nil, percolator.WithMaxAttempts(1))
	require.NoError(t, err, "the look of a call in passing")
	require.Equal(t, 40, n)
	n, err = k.Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, 60, n)
}

// TestSweepPastALongKey has an ended key of a process of greater limits, which this one may not remove: all others go.
func TestSweepPastALongKey(t *testing.T) {
	t.Parallel()
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	wide := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	long, err := New(wide, "once", typed.Number[int]{}, Options{Keep: time.Millisecond})
	require.NoError(t, err)
	use(t, long, strings.Repeat("k", 200))
	ended(t, wide, 50)
	narrow := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}), percolator.WithLimits(percolator.Limits{Row: 100, Cells: 20}))
	n, err := numbers(t, narrow).Sweep(t.Context())
	require.ErrorIs(t, err, percolator.ErrTooLarge)
	require.Equal(t, 50, n)
	n, err = long.Sweep(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// TestLookOverAServerThatHangs: the rows that a call looks at for what has ended are those of other servers. One that hangs must take neither the time
// of the caller nor the answer.
func TestLookOverAServerThatHangs(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"short": 2 * time.Second, "long": time.Minute, "none": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := faultstore.New(memstore.New(), faultstore.Options{})
				db, err := percolator.New(t.Context(), store)
				require.NoError(t, err)
				k := numbers(t, db)
				k.lookEvery = 1
				hung := 0
				store.AddRule(faultstore.Rule{
					Times: -1, Match: func(c *faultstore.Call) bool { return c.Kind == faultstore.CallScan && c.Range.Table == "once" },
					Before: func(context.Context, *faultstore.Call) faultstore.Fault {
						hung++
						return faultstore.Fault{Kind: faultstore.Delay, Delay: time.Hour}
					},
				})
				ctx := t.Context()
				if limit > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, limit)
					defer cancel()
				}
				began := time.Now()
				_, first, err := k.Do(ctx, "key", func(context.Context, *percolator.Txn) (int, error) { return 1, nil })
				require.NoError(t, err)
				require.True(t, first)
				_, _, err = k.Claim(ctx, "claimed", time.Second)
				require.NoError(t, err)
				require.LessOrEqual(t, time.Since(began), 2*looksFor)
				require.Equal(t, 2, hung)
				require.NoError(t, db.Close(context.WithoutCancel(ctx)))
			})
		})
	}
}

// hanging has every scan of the table hang for an hour, and counts them.
func hanging(t *testing.T) (k *Keys[int], scans *int) {
	t.Helper()
	store := faultstore.New(memstore.New(), faultstore.Options{})
	db, err := percolator.New(t.Context(), store)
	require.NoError(t, err)
	k, scans = numbers(t, db), new(int)
	k.lookEvery = 1
	store.AddRule(faultstore.Rule{
		Times: -1, Match: func(c *faultstore.Call) bool { return c.Kind == faultstore.CallScan && c.Range.Table == "once" },
		Before: func(context.Context, *faultstore.Call) faultstore.Fault {
			*scans++
			return faultstore.Fault{Kind: faultstore.Delay, Delay: time.Hour}
		},
	})
	return k, scans
}

// TestManyKeysOverAServerThatHangs: what a transaction looks for keys that have ended takes a second in all, however many it writes.
func TestManyKeysOverAServerThatHangs(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"deadline": 2 * time.Second, "none": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				k, scans := hanging(t)
				defer func() { require.NoError(t, k.db.Close(context.WithoutCancel(t.Context()))) }()
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				began := time.Now()
				require.NoError(t, k.db.Update(ctx, func(tx *percolator.Txn) error {
					for i := range 200 {
						if _, _, err := k.Within(ctx, tx, strconv.Itoa(i), count); err != nil {
							return err
						}
					}
					return nil
				}))
				require.LessOrEqual(t, time.Since(began), min(looksFor, limit/4))
				require.Equal(t, 1, *scans)
			})
		})
	}
}

// TestLookLeavesTheLease: what Claim takes to look for what has ended is a part of the lease, and a small one.
func TestLookLeavesTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, scans := hanging(t)
		defer func() { require.NoError(t, k.db.Close(context.WithoutCancel(t.Context()))) }()
		const lease = 400 * time.Millisecond
		began := time.Now()
		claim, _, err := k.Claim(t.Context(), "claimed", lease)
		require.NoError(t, err)
		require.NotNil(t, claim)
		require.Equal(t, 1, *scans)
		require.LessOrEqual(t, time.Since(began), lease/4)
	})
}

// TestLooksOfKeys: whether to look, and where, goes by the key too. So transactions of many keys nearly all look, each in a place of its own.
func TestLooksOfKeys(t *testing.T) {
	t.Parallel()
	places, looks, looked := map[string]bool{}, 0, 0
	store := faultstore.New(memstore.New(), faultstore.Options{OnCall: func(c faultstore.Call) faultstore.Fault {
		if c.Kind == faultstore.CallScan && c.Range.Table == "once" {
			places[c.Range.From] = true
			looks++
		}
		return faultstore.Fault{}
	}})
	k := numbers(t, everystore.Over(t, store))
	const transactions = 64
	for n := range transactions {
		before := looks
		require.NoError(t, k.db.Update(t.Context(), func(tx *percolator.Txn) error {
			for i := range 100 {
				if _, _, err := k.Within(t.Context(), tx, strconv.Itoa(n)+" "+strconv.Itoa(i), count); err != nil {
					return err
				}
			}
			return nil
		}))
		require.Less(t, looks, before+50, "6 in the mean")
		if looks > before {
			looked++
		}
	}
	require.Greater(t, looked, transactions/2, "nearly all, and 4 if all keys of a transaction looked or none")
	require.Greater(t, len(places), looks/2)
}
