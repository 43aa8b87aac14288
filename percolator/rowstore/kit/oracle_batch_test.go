package kit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// remote is a distant oracle: each draw is announced, and answered when the test
// says so.
type remote struct {
	calls chan call
	mu    sync.Mutex
	last  oracle.Timestamp
}

type call struct {
	n      int
	ctx    context.Context
	answer chan error
}

func newRemote() *remote { return &remote{calls: make(chan call)} }

func (r *remote) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	c := call{n: n, ctx: ctx, answer: make(chan error)}
	select {
	case r.calls <- c:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	select {
	case err := <-c.answer:
		if err != nil {
			return 0, err
		}
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.last + 1
	r.last += oracle.Timestamp(n)
	return first, nil
}

type answer struct {
	ts  oracle.Timestamp
	err error
}

// ask draws in a goroutine of its own.
func ask(ctx context.Context, o oracle.Oracle, n int) chan answer {
	c := make(chan answer, 1)
	go func() {
		ts, err := o.Draw(ctx, n)
		c <- answer{ts, err}
	}()
	return c
}

func newBatch(t testing.TB, o oracle.Oracle) *kit.BatchOracle {
	b := kit.NewBatchOracle(o)
	atend.Do(t, func() { require.NoError(t, b.Close()) })
	return b
}

// drawing returns a batch oracle over a distant one, with a draw of one request under way.
func drawing(t testing.TB) (r *remote, b *kit.BatchOracle, first chan answer, c call) {
	r = newRemote()
	b = newBatch(t, r)
	first = ask(t.Context(), b, 1)
	return r, b, first, <-r.calls
}

// waiting returns when n requests wait in b while a draw is under way.
func waiting(t testing.TB, b *kit.BatchOracle, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return kit.Waiting(b) == n }, time.Minute, 100*time.Microsecond)
}

func TestBatchSharesADraw(t *testing.T) {
	t.Parallel()
	r, b, first, c := drawing(t)
	require.Equal(t, 1, c.n, "a lone request is sent at once")
	var rest []chan answer
	for i := range 5 {
		rest = append(rest, ask(t.Context(), b, i+1))
	}
	waiting(t, b, 5)
	c.answer <- nil
	require.Equal(t, answer{1, nil}, <-first)
	c = <-r.calls
	require.Equal(t, 15, c.n, "all that waited share the next draw")
	c.answer <- nil
	taken := map[oracle.Timestamp]bool{}
	for i, ch := range rest {
		a := <-ch
		require.NoError(t, a.err)
		for j := range i + 1 {
			ts := a.ts + oracle.Timestamp(j)
			require.False(t, taken[ts])
			require.True(t, ts >= 2 && ts <= 16, "%d", ts)
			taken[ts] = true
		}
	}
	require.Len(t, taken, 15)
}

func TestBatchDrawsAfterItWasAsked(t *testing.T) {
	t.Parallel()
	// A request that comes while a draw is under way must not get a part of it.
	r, b, first, c := drawing(t)
	late := ask(t.Context(), b, 1)
	waiting(t, b, 1)
	c.answer <- nil
	<-first
	require.Empty(t, late)
	c = <-r.calls
	require.Equal(t, 1, c.n)
	c.answer <- nil
	require.Equal(t, answer{2, nil}, <-late)
}

func TestBatchCancelledMember(t *testing.T) {
	t.Parallel()
	r, b, first, c := drawing(t)
	ctx, cancel := context.WithCancel(t.Context())
	gone, queued, stays := ask(ctx, b, 10), ask(ctx, b, 10), ask(t.Context(), b, 3)
	waiting(t, b, 3)
	c.answer <- nil
	<-first
	c = <-r.calls
	cancel()
	require.ErrorIs(t, (<-gone).err, context.Canceled)
	require.ErrorIs(t, (<-queued).err, context.Canceled)
	require.NoError(t, c.ctx.Err(), "one member is still there")
	c.answer <- nil
	require.NoError(t, (<-stays).err)
}

func TestBatchCancelledBeforeItIsSent(t *testing.T) {
	t.Parallel()
	r, b, first, c := drawing(t)
	ctx, cancel := context.WithCancel(t.Context())
	gone, stays := ask(ctx, b, 10), ask(t.Context(), b, 3)
	waiting(t, b, 2)
	cancel()
	require.ErrorIs(t, (<-gone).err, context.Canceled)
	waiting(t, b, 1)
	c.answer <- nil
	<-first
	c = <-r.calls
	require.Equal(t, 3, c.n)
	c.answer <- nil
	require.NoError(t, (<-stays).err)
}

func TestBatchAllMembersGone(t *testing.T) {
	t.Parallel()
	r := newRemote()
	b := newBatch(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	gone := ask(ctx, b, 1)
	c := <-r.calls
	cancel()
	require.ErrorIs(t, (<-gone).err, context.Canceled)
	<-c.ctx.Done() // the draw has nobody left
	_, err := b.Draw(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
	next := ask(t.Context(), b, 1)
	c = <-r.calls
	c.answer <- nil
	require.NoError(t, (<-next).err)
}

func TestBatchError(t *testing.T) {
	t.Parallel()
	r, b, first, c := drawing(t)
	broken := errors.New("server gone")
	c.answer <- broken
	require.ErrorIs(t, (<-first).err, broken)
	for _, n := range []int{0, -3} {
		_, err := b.Draw(t.Context(), n)
		require.Error(t, err)
	}
	next := ask(t.Context(), b, 1)
	c = <-r.calls
	c.answer <- nil
	require.NoError(t, (<-next).err, "a failed draw does not last")
}

func TestBatchHugeCount(t *testing.T) {
	t.Parallel()
	// Counts whose sum overflows are not added up.
	r, b, first, c := drawing(t)
	one, two := ask(t.Context(), b, math.MaxInt), ask(t.Context(), b, math.MaxInt)
	waiting(t, b, 2)
	c.answer <- nil
	require.NoError(t, (<-first).err)
	for range 2 {
		c = <-r.calls
		require.Equal(t, math.MaxInt, c.n)
		c.answer <- oracle.ErrExhausted
	}
	require.ErrorIs(t, (<-one).err, oracle.ErrExhausted)
	require.ErrorIs(t, (<-two).err, oracle.ErrExhausted)
}

func TestBatchClose(t *testing.T) {
	t.Parallel()
	r := newRemote()
	b := kit.NewBatchOracle(r)
	first := ask(context.Background(), b, 1)
	<-r.calls
	queued := ask(context.Background(), b, 1)
	waiting(t, b, 1)
	require.NoError(t, b.Close())
	require.ErrorIs(t, (<-first).err, oracle.ErrClosed)
	require.ErrorIs(t, (<-queued).err, oracle.ErrClosed)
	_, err := b.Draw(t.Context(), 1)
	require.ErrorIs(t, err, oracle.ErrClosed)
	require.NoError(t, b.Close(), "a second Close does nothing")
}

func TestBatchConcurrent(t *testing.T) {
	t.Parallel()
	c := &counting{inner: kit.NewBoundedOracle(kit.BoundedConfig{})}
	b := newBatch(t, c)
	concurrent(t, b, 2000)
	t.Logf("%d draws for %d requests", c.calls.Load(), 16*2000)
	require.Less(t, c.calls.Load(), int64(16*2000))
}

// counting counts the draws that reach an oracle.
type counting struct {
	inner oracle.Oracle
	calls atomic.Int64
}

func (c *counting) Draw(ctx context.Context, n int) (oracle.Timestamp, error) {
	c.calls.Add(1)
	return c.inner.Draw(ctx, n)
}

func BenchmarkBatch(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			o := newBatch(b, kit.NewBoundedOracle(kit.BoundedConfig{}))
			many(b, o, n)
		})
	}
}

// While a draw hangs, the requests whose callers went away are not kept.
func TestBatchForgetsWhoLeft(t *testing.T) {
	t.Parallel()
	r, b, first, hangs := drawing(t)
	for range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		var gone []chan answer
		for range 100 {
			gone = append(gone, ask(ctx, b, 1))
		}
		waiting(t, b, 100)
		cancel()
		for _, a := range gone {
			require.ErrorIs(t, (<-a).err, context.Canceled)
		}
		require.Zero(t, kit.Waiting(b))
		require.LessOrEqual(t, kit.Queued(b), 1)
	}
	hangs.answer <- nil
	require.NoError(t, (<-first).err)
	// And those who stay are served.
	last := ask(t.Context(), b, 1)
	c := <-r.calls
	c.answer <- nil
	require.NoError(t, (<-last).err)
}
