package coalesce

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/arena"
)

// numbers is a lane of numbers that are answered by themselves. It keeps the sizes of the
// calls that left.
func numbers(opts Options) (l *lane[int, int], sizes func() []int) {
	var mu sync.Mutex
	var calls []int
	l = newLane(opts, laneKind[int, int]{
		name: "numbers",
		send: func(_ context.Context, asks []int) ([]int, error) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, len(asks))
			return append([]int(nil), asks...), nil
		},
		check: func([]int) error { return nil },
		keep:  func(to []int, _ *arena.Arena, asks []int) []int { return append(to, asks...) },
	})
	return l, func() []int {
		mu.Lock()
		defer mu.Unlock()
		return calls
	}
}

// What asks while the first caller lets others go first leaves together with its call.
func TestCallersThatAreReadyLeaveTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, sizes := numbers(Options{MaxBatch: 256, MaxInFlight: 1})
		const callers = 10
		var group sync.WaitGroup
		ask := func(n int) {
			group.Go(func() {
				got, err := l.do(t.Context(), []int{n})
				require.NoError(t, err)
				require.Equal(t, []int{n}, got)
			})
		}
		first := true
		l.gosched = func() { // called by one goroutine after the other, under synctest.Wait
			if first {
				first = false
				for n := range callers - 1 {
					ask(n)
				}
				time.Sleep(time.Nanosecond) // until all of them wait
			}
		}
		ask(callers)
		group.Wait()
		require.Equal(t, []int{callers}, sizes(), "one call")
		l.stop()
		l.wait()
	})
}

// A lane that is closed while a caller yields ends, and so does the caller.
func TestClosedDuringAYield(t *testing.T) {
	t.Parallel()
	l, sizes := numbers(Options{MaxBatch: 256, MaxInFlight: 1})
	l.gosched = l.stop
	_, err := l.do(t.Context(), []int{1})
	require.ErrorIs(t, err, rowstore.ErrClosed)
	l.wait()
	require.Empty(t, sizes(), "nothing leaves after the end")
}

// Where yields take long, because the program is busy with something else, fewer and fewer
// are made. One that is quick again ends that.
func TestSlowYieldsAreRare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, sizes := numbers(Options{MaxBatch: 256, MaxInFlight: 1})
		made, slow := 0, true
		l.gosched = func() {
			if made++; slow {
				time.Sleep(2 * slowYield)
			}
		}
		call := func(times int) (yields int) {
			before := made
			for range times {
				_, err := l.do(t.Context(), []int{1})
				require.NoError(t, err)
			}
			return made - before
		}
		require.Equal(t, 1, call(1))
		require.Equal(t, 1, call(2), "the next one goes without")
		call(1 << 12)
		require.LessOrEqual(t, call(10*mostSkipped), 10)
		slow = false
		call(mostSkipped + 1)
		require.Equal(t, 100, call(100))
		slow = true
		require.LessOrEqual(t, call(mostSkipped), 10)
		require.NotEmpty(t, sizes())
		l.stop()
		l.wait()
	})
}

// A call that ends without being sent, though it yielded, must not leave those behind that
// came meanwhile: nothing is under way that would send them, but for the timer that looks
// for calls that hang.
func TestCallsBehindAYieldLeaveWithoutIt(t *testing.T) {
	t.Parallel()
	bad := errors.New("a bad call")
	for name, c := range map[string]struct {
		asks []int
		ends bool // the context of the call, during the yield
		want error
	}{
		"context": {asks: []int{1}, ends: true, want: context.Canceled},
		"refused": {asks: []int{-1}, want: bad},
		"empty":   {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, sizes := numbers(Options{MaxBatch: 256, MaxInFlight: 1})
				l.check = func(asks []int) error {
					if slices.Contains(asks, -1) {
						return bad
					}
					return nil
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				behind := make(chan error, 1)
				first := true
				l.gosched = func() {
					if !first {
						return
					}
					first = false
					go func() {
						_, err := l.do(t.Context(), []int{2})
						behind <- err
					}()
					synctest.Wait() // until it waits in a batch
					if c.ends {
						cancel()
					}
				}
				_, err := l.do(ctx, c.asks)
				require.ErrorIs(t, err, c.want)
				synctest.Wait()
				require.Len(t, behind, 1, "it was answered")
				require.NoError(t, <-behind)
				require.Equal(t, []int{1}, sizes())
				l.stop()
				l.wait()
			})
		})
	}
}
