package coalesce

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore/internal/arena"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// lasting is a lane of numbers whose calls take a time. calls counts them.
func lasting(takes time.Duration) (l *lane[int, int], calls *atomic.Int64) {
	calls = new(atomic.Int64)
	l = newLane(Options{MaxBatch: 256, MaxInFlight: 1}, laneKind[int, int]{
		name: "numbers",
		send: func(_ context.Context, asks []int) ([]int, error) {
			calls.Add(1)
			time.Sleep(takes)
			return append([]int(nil), asks...), nil
		},
		check: func([]int) error { return nil },
		keep:  func(to []int, _ *arena.Arena, asks []int) []int { return append(to, asks...) },
	})
	return l, calls
}

// Groups wait for the reads that draw, where a store has both.
func TestCommitsAreHeldForBegins(t *testing.T) {
	t.Parallel()
	s := New(memstore.New(), Options{})
	defer func() { require.NoError(t, s.Close()) }()
	c, ok := s.(*coalescer)
	require.True(t, ok)
	require.NotNil(t, c.groups.only.ahead)
	require.Same(t, c.snapshotReads.only, c.groups.only.ahead)
}

const (
	beginTakes  = 400 * time.Microsecond
	commitTakes = 2 * time.Millisecond
)

// The callers of a process that begin at different times soon begin together and commit together.
func TestCallersComeToCommitTogether(t *testing.T) {
	t.Parallel()
	for name, together := range map[string]bool{"together": true, "apart": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begins, _ := lasting(beginTakes)
				commits, calls := lasting(commitTakes)
				if together {
					commits.ahead = begins
				}
				const callers, rounds = 8, 100
				var group sync.WaitGroup
				for i := range callers {
					group.Go(func() {
						time.Sleep(time.Duration(i) * 300 * time.Microsecond)
						for n := range rounds {
							for _, l := range []*lane[int, int]{begins, commits} {
								got, err := l.do(t.Context(), []int{n})
								if err != nil || len(got) != 1 || got[0] != n {
									t.Errorf("got %v and %v", got, err)
								}
							}
						}
					})
				}
				group.Wait()
				if together {
					require.LessOrEqual(t, calls.Load(), int64(rounds+rounds/4))
				} else {
					require.GreaterOrEqual(t, calls.Load(), int64(2*rounds-rounds/4), "what holds are for")
				}
				for _, l := range []*lane[int, int]{begins, commits} {
					l.stop()
					l.wait()
				}
			})
		})
	}
}

// Where those who begin only read, commits hardly wait for them.
func TestCommitsDoNotWaitForReaders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begins, reads := lasting(beginTakes)
		commits, calls := lasting(commitTakes)
		commits.ahead = begins
		ctx, cancel := context.WithCancel(t.Context())
		var readers sync.WaitGroup
		readers.Go(func() {
			for ctx.Err() == nil {
				_, _ = begins.do(t.Context(), []int{0})
			}
		})
		const rounds = 2000
		began := time.Now()
		for n := range rounds {
			_, err := commits.do(t.Context(), []int{n})
			require.NoError(t, err)
		}
		took := time.Since(began)
		cancel()
		readers.Wait()
		require.Equal(t, int64(rounds), calls.Load())
		require.Greater(t, reads.Load(), int64(rounds))
		require.Less(t, took, rounds*commitTakes+rounds*beginTakes/20)
		for _, l := range []*lane[int, int]{begins, commits} {
			l.stop()
			l.wait()
		}
	})
}

// A begin that hangs holds no commit up.
func TestCommitsDoNotWaitForABeginThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begins, _ := lasting(time.Hour)
		commits, _ := lasting(commitTakes)
		commits.ahead = begins
		begins.usual = time.Hour // also where they often take long
		var hanging sync.WaitGroup
		hanging.Go(func() { _, _ = begins.do(t.Context(), []int{0}) })
		synctest.Wait()
		began := time.Now()
		_, err := commits.do(t.Context(), []int{1})
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(began), commitTakes+mostHold)
		require.Greater(t, time.Since(began), commitTakes, "it has waited a little")
		hanging.Wait()
		for _, l := range []*lane[int, int]{begins, commits} {
			l.stop()
			l.wait()
		}
	})
}
