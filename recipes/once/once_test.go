package once

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/everystore"
	"github.com/percolate-go/percolate/percolatetest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/typed"
)

const shortLease = 50 * time.Millisecond

func numbers(t testing.TB, db *percolator.DB) *Keys[int] {
	t.Helper()
	k, err := New(db, "once", typed.Number[int]{}, Options{Keep: time.Hour})
	require.NoError(t, err)
	return k
}

var total = percolator.Cell{Table: "total", Row: "all", Column: "n"}

// count adds one to the total and returns it: the effect that must happen once.
func count(ctx context.Context, tx *percolator.Txn) (int, error) {
	n, err := sum(ctx, tx)
	if err != nil {
		return 0, err
	}
	return n + 1, tx.Set(total, []byte(strconv.Itoa(n+1)))
}

func sum(ctx context.Context, tx *percolator.Txn) (int, error) {
	b, err := tx.Get(ctx, total)
	if errors.Is(err, percolator.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(b))
}

func counted(t testing.TB, db *percolator.DB) (n int) {
	t.Helper()
	require.NoError(t, db.View(t.Context(), func(tx *percolator.Txn) (err error) {
		n, err = sum(t.Context(), tx)
		return err
	}))
	return n
}

// TestOnce has many callers in two processes for each of some keys.
func TestOnce(t *testing.T) {
	t.Parallel()
	everystore.Pairs(t, func(t *testing.T, one, two *percolator.DB) {
		ctx := t.Context()
		const keys, callers = 4, 6
		var firsts atomic.Int64
		answers := make([]sync.Map, keys)
		var group errgroup.Group
		for key := range keys {
			for i := range callers {
				k := numbers(t, []*percolator.DB{one, two}[i%2])
				group.Go(func() error {
					answer, first, err := k.Do(ctx, strconv.Itoa(key), count)
					if first {
						firsts.Add(1)
					}
					answers[key].Store(answer, true)
					return err
				})
			}
		}
		require.NoError(t, group.Wait())
		require.EqualValues(t, keys, firsts.Load())
		require.Equal(t, keys, counted(t, one))
		for key := range keys {
			n := 0
			answers[key].Range(func(any, any) bool { n++; return true })
			require.Equal(t, 1, n, "every caller of a key has got the same answer")
		}
	})
}

func TestFailureStoresNothing(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	k := numbers(t, db)
	no := errors.New("no")
	_, _, err := k.Do(ctx, "a", func(ctx context.Context, tx *percolator.Txn) (int, error) {
		if _, err := count(ctx, tx); err != nil {
			return 0, err
		}
		return 7, no
	})
	require.Equal(t, no, err)
	require.Zero(t, counted(t, db))
	answer, first, err := k.Do(ctx, "a", count)
	require.NoError(t, err)
	require.True(t, first)
	require.Equal(t, 1, answer)
}

func TestAnswerEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), percolatetest.Open(t)
		k := numbers(t, db)
		do := func(want bool) {
			_, first, err := k.Do(ctx, "a", count)
			require.NoError(t, err)
			require.Equal(t, want, first)
		}
		do(true)
		time.Sleep(time.Hour - time.Second)
		do(false)
		n, err := k.Sweep(ctx)
		require.NoError(t, err)
		require.Zero(t, n)
		time.Sleep(2 * time.Second)
		do(true)
		require.Equal(t, 2, counted(t, db))
		time.Sleep(2 * time.Hour)
		n, err = k.Sweep(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
}

// TestGarbageStaysSmall has keys that end all the time.
func TestGarbageStaysSmall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), percolatetest.Open(t)
		k := numbers(t, db)
		k.keep = time.Second
		rows := func() (n int) {
			require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
				for _, err := range tx.Scan(ctx, percolator.Range{Table: "once"}) {
					if err != nil {
						return err
					}
					n++
				}
				return nil
			}))
			return n
		}
		for i := range 3000 {
			_, _, err := k.Do(ctx, strconv.Itoa(i), func(context.Context, *percolator.Txn) (int, error) { return i, nil })
			require.NoError(t, err)
			time.Sleep(10 * time.Millisecond)
		}
		require.Less(t, rows(), 400, "100 of them live")
		time.Sleep(time.Minute)
		_, err := k.Sweep(ctx)
		require.NoError(t, err)
		require.Zero(t, rows())
	})
}

func TestClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, db := t.Context(), percolatetest.Open(t)
		k := numbers(t, db)
		finish := func(c *Claim[int]) error {
			return db.Update(ctx, func(tx *percolator.Txn) error {
				n, err := count(ctx, tx)
				if err != nil {
					return err
				}
				return c.Finish(ctx, tx, n)
			})
		}
		claim := func() *Claim[int] {
			c, _, err := k.Claim(ctx, "a", time.Minute)
			require.NoError(t, err)
			require.NotNil(t, c)
			return c
		}
		first := claim()
		var claimed *ClaimedError
		_, _, err := k.Claim(ctx, "a", time.Minute)
		require.ErrorAs(t, err, &claimed)
		require.ErrorIs(t, err, ErrClaimed)
		require.InDelta(t, 60, time.Until(claimed.Until).Seconds(), 1)
		_, _, err = k.Do(ctx, "a", count)
		require.ErrorIs(t, err, ErrClaimed)

		// It is renewed, and then its owner is suspended until somebody else has it.
		time.Sleep(50 * time.Second)
		require.NoError(t, first.Renew(ctx, time.Minute))
		time.Sleep(50 * time.Second)
		_, _, err = k.Claim(ctx, "a", time.Minute)
		require.ErrorIs(t, err, ErrClaimed)
		time.Sleep(20 * time.Second)
		second := claim()
		require.Greater(t, second.Epoch(), first.Epoch())
		require.ErrorIs(t, finish(first), ErrClaimLost)
		require.ErrorIs(t, first.Renew(ctx, time.Minute), ErrClaimLost)
		require.ErrorIs(t, first.Release(ctx), ErrClaimLost)
		require.NoError(t, second.Release(ctx))
		require.ErrorIs(t, finish(second), ErrClaimLost)

		// One that has ended may still finish, if nobody has claimed the key.
		third := claim()
		require.Equal(t, "a", third.Key())
		time.Sleep(10 * time.Minute)
		require.NoError(t, finish(third))
		require.Equal(t, 1, counted(t, db))
		require.ErrorIs(t, finish(third), ErrClaimLost)
		c, answer, err := k.Claim(ctx, "a", time.Minute)
		require.NoError(t, err)
		require.Nil(t, c)
		require.Equal(t, 1, answer)
		answer, again, err := k.Do(ctx, "a", count)
		require.NoError(t, err)
		require.False(t, again)
		require.Equal(t, 1, answer)
	})
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	number := typed.Number[int]{}
	for _, f := range []func() (*Keys[int], error){
		func() (*Keys[int], error) { return New(nil, "t", number, Options{Keep: time.Hour}) },
		func() (*Keys[int], error) { return New(db, "", number, Options{Keep: time.Hour}) },
		func() (*Keys[int], error) { return New[int](db, "t", nil, Options{Keep: time.Hour}) },
		func() (*Keys[int], error) { return New(db, "t", number, Options{}) },
	} {
		_, err := f()
		require.ErrorIs(t, err, percolator.ErrInvalid)
	}
	k := numbers(t, db)
	_, _, err := k.Do(ctx, "a", nil)
	require.ErrorIs(t, err, percolator.ErrInvalid)
	_, _, err = k.Claim(ctx, "a", 0)
	require.ErrorIs(t, err, percolator.ErrInvalid)
	_, _, err = k.Do(ctx, string(make([]byte, 4096)), count)
	require.ErrorIs(t, err, percolator.ErrTooLarge)
	err = db.View(ctx, func(tx *percolator.Txn) error { _, _, err := k.Within(ctx, tx, "a", count); return err })
	require.ErrorIs(t, err, percolator.ErrReadOnly)
}

// TestDamagedAnswer has stored bytes that are no record, or no answer: f is not called, and nothing is replaced or removed.
func TestDamagedAnswer(t *testing.T) {
	t.Parallel()
	ctx, db := t.Context(), percolatetest.Open(t)
	k := numbers(t, db)
	future := string([]byte{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}) + "epochepo"
	for _, stored := range []string{"", "\x01", "\x02\x01" + future + "7", "\x01\x03" + future + "7", "\x01\x01" + future + "seven"} {
		require.NoError(t, db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(k.cell("a"), []byte(stored)) }))
		_, _, err := k.Do(ctx, "a", count)
		require.ErrorIs(t, err, typed.ErrDecode)
		require.ErrorContains(t, err, `key "a" of table "once"`)
		c, _, err := k.Claim(ctx, "a", time.Minute)
		require.ErrorIs(t, err, typed.ErrDecode)
		require.Nil(t, c)
		_, err = k.Sweep(ctx)
		if len(stored) < headBytes+len("seven") {
			require.ErrorIs(t, err, typed.ErrDecode)
		}
		require.NoError(t, db.View(ctx, func(tx *percolator.Txn) error {
			b, err := tx.Get(ctx, k.cell("a"))
			require.Equal(t, stored, string(b))
			return err
		}))
	}
	require.Zero(t, counted(t, db))
}

// TestFaults repeats each call until it is answered, while calls fail, get lost, arrive late or twice, and processes die.
func TestFaults(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64() //nolint:gosec // a seed that is printed
	t.Logf("seed %d", seed)
	inner := memstore.New()
	atend.Do(t, func() { _ = inner.Close() })
	const keys = 120
	var group sync.WaitGroup
	var faults, unknown, lives atomic.Int64
	for process := range 3 {
		random := rand.New(rand.NewPCG(seed, uint64(process))) //nolint:gosec // as above
		group.Go(func() {
			for key := 0; key < keys; {
				lives.Add(1)
				store := faultstore.New(inner, faultstore.Options{KeepOpen: true, Seed: random.Uint64() | 1})
				db, err := percolator.New(t.Context(), store, percolator.WithSessionLease(shortLease), percolator.WithLockExpiry(shortLease), percolator.WithStorePatience(0))
				if err != nil {
					t.Error(err)
					return
				}
				k := numbers(t, db)
				k.lookEvery = 2
				store.SetRates(faultstore.Rates{LoseReply: 0.03, Fail: 0.02, Late: 0.02, Twice: 0.02, CrashClient: 0.005})
				for failures := 0; key < keys && failures < 20; {
					switch _, _, err := k.Do(t.Context(), strconv.Itoa(key), count); {
					case err == nil:
						key, failures = key+1, 0
					case errors.Is(err, percolator.ErrUndetermined):
						unknown.Add(1)
						failures++
					default:
						failures++
					}
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
	t.Logf("%d faults, %d outcomes unknown, %d processes", faults.Load(), unknown.Load(), lives.Load())
	require.Positive(t, faults.Load())
	db := everystore.Over(t, faultstore.New(inner, faultstore.Options{KeepOpen: true}))
	require.Equal(t, keys, counted(t, db))
}
