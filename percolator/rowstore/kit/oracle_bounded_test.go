package kit_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clock is a wall clock that the test moves.
type clock struct{ ms atomic.Int64 }

func newClock(ms int64) *clock {
	c := &clock{}
	c.ms.Store(ms)
	return c
}

func (c *clock) now() time.Time { return time.UnixMilli(c.ms.Load()) }

// disk keeps the durable bound, as a store would.
type disk struct {
	mu     sync.Mutex
	bounds []oracle.Timestamp
	err    error
	wait   chan struct{} // if set, each persist waits for it, or for its context
}

func (d *disk) persist(ctx context.Context, bound oracle.Timestamp) error {
	d.mu.Lock()
	wait := d.wait
	d.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	d.bounds = append(d.bounds, bound)
	return nil
}

func (d *disk) bound() oracle.Timestamp {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.bounds) == 0 {
		return 0
	}
	return d.bounds[len(d.bounds)-1]
}

func (d *disk) stored() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.bounds)
}

func (d *disk) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func ms(n int64) oracle.Timestamp { return oracle.Timestamp(n) << oracle.LogicalBits }

func open(t testing.TB, d *disk, c *clock, window time.Duration) *kit.BoundedOracle {
	t.Helper()
	o := kit.NewBoundedOracle(kit.BoundedConfig{Bound: d.bound(), Persist: d.persist, Clock: c.now, Window: window})
	atend.Do(t, func() { _ = o.Close(context.Background()) })
	return o
}

func draw(t testing.TB, o oracle.Oracle, n int) oracle.Timestamp {
	t.Helper()
	ts, err := o.Draw(t.Context(), n)
	require.NoError(t, err)
	return ts
}

func TestBoundedFollowsTheClock(t *testing.T) {
	t.Parallel()
	c, d := newClock(1000), &disk{}
	o := open(t, d, c, time.Second)
	require.Equal(t, ms(1000), draw(t, o, 1))
	require.Equal(t, ms(1000)+1, draw(t, o, 3))
	require.Equal(t, ms(1000)+4, draw(t, o, 1))
	c.ms.Store(1001)
	require.Equal(t, ms(1001), draw(t, o, 1))
	require.Equal(t, ms(1001), o.Last())
}

// Reading the clock takes most of the time of a draw. What others draw meanwhile does not make it begin anew: many callers would draw half as much.
func TestBoundedDrawWhileTheClockIsRead(t *testing.T) {
	t.Parallel()
	var o *kit.BoundedOracle
	var reads int
	o = kit.NewBoundedOracle(kit.BoundedConfig{Clock: func() time.Time {
		if reads++; reads == 1 {
			draw(t, o, 1) // somebody else is faster
		}
		return time.UnixMilli(1000)
	}})
	atend.Do(t, func() { _ = o.Close(context.Background()) })
	require.Equal(t, ms(1000)+1, draw(t, o, 1))
	require.Equal(t, 2, reads, "one of each draw")
}

func TestBoundedCounterRunsIntoTheNextMillisecond(t *testing.T) {
	t.Parallel()
	c, d := newClock(1000), &disk{}
	o := open(t, d, c, time.Second)
	require.Equal(t, ms(1000), draw(t, o, 1<<oracle.LogicalBits-1))
	require.Equal(t, ms(1001)-1, draw(t, o, 2), "one range lies in two milliseconds")
	require.Equal(t, ms(1001)+1, draw(t, o, 1))
	c.ms.Store(1001)
	require.Equal(t, ms(1001)+2, draw(t, o, 1))
}

func TestBoundedServesNothingAboveTheDurableBound(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	c, d := newClock(1000), &disk{}
	o := open(t, d, c, 10*time.Millisecond)
	last := oracle.Timestamp(0)
	for range 2000 {
		c.ms.Add(rng.Int64N(12) - 3)
		n := 1 + rng.IntN(1000)
		ts := draw(t, o, n)
		require.Greater(t, ts, last)
		last = ts + oracle.Timestamp(n) - 1
		require.LessOrEqual(t, last, d.bound(), "served before it was durable")
	}
	require.Greater(t, d.stored(), 10)
}

func TestBoundedRestarts(t *testing.T) {
	t.Parallel()
	// Any sequence of draws, crashes, clean ends and clocks that jump both ways gives
	// increasing timestamps.
	rapid.Check(t, func(rt *rapid.T) {
		c, d := newClock(1<<40), &disk{}
		start := func() *kit.BoundedOracle {
			return kit.NewBoundedOracle(kit.BoundedConfig{
				Bound: d.bound(), Persist: d.persist, Clock: c.now,
				Window: time.Duration(rapid.IntRange(0, 5000).Draw(rt, "window")) * time.Millisecond,
			})
		}
		o, old := start(), []*kit.BoundedOracle(nil)
		defer func() {
			for _, o := range append(old, o) {
				_ = o.Close(context.Background())
			}
		}()
		last := oracle.Timestamp(0)
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0, 1:
				n := rapid.IntRange(1, 1<<20).Draw(rt, "n")
				ts, err := o.Draw(context.Background(), n)
				if err != nil || ts <= last {
					rt.Fatalf("drew %v after %v, error %v", ts, last, err)
				}
				last = ts + oracle.Timestamp(n) - 1
			case 2:
				c.ms.Add(rapid.Int64Range(-1e9, 1e9).Draw(rt, "jump"))
			case 3:
				if err := o.Close(context.Background()); err != nil {
					rt.Fatal(err)
				}
				if last != 0 && d.bound() < last {
					rt.Fatalf("closed at the bound %v, below %v", d.bound(), last)
				}
				o = start()
			case 4:
				// A crash: nobody draws from the old one any more, and what it writes late
				// was on its way already, so let that end before the next one reads.
				stored := d.bound()
				_ = o.Close(context.Background())
				d = &disk{bounds: []oracle.Timestamp{stored}}
				o = start()
			}
		}
	})
}

func TestBoundedCleanCloseLeavesNoGap(t *testing.T) {
	t.Parallel()
	c, d := newClock(1000), &disk{}
	o := open(t, d, c, time.Hour)
	ts := draw(t, o, 5)
	require.Greater(t, d.bound(), ts+5)
	require.NoError(t, o.Close(t.Context()))
	require.Equal(t, ts+4, d.bound())
	require.NoError(t, o.Close(t.Context()), "a second Close does nothing")
	_, err := o.Draw(t.Context(), 1)
	require.ErrorIs(t, err, oracle.ErrClosed)
	require.Equal(t, ts+5, draw(t, open(t, d, c, time.Hour), 1))
}

func TestBoundedAfterACrashStartsAboveTheBound(t *testing.T) {
	t.Parallel()
	c, d := newClock(1000), &disk{}
	draw(t, open(t, d, c, time.Second), 1)
	bound := d.bound()
	next := open(t, &disk{bounds: []oracle.Timestamp{bound}}, c, time.Second)
	require.Equal(t, bound+1, draw(t, next, 1))
	require.Equal(t, bound+2, draw(t, next, 1))
	c.ms.Store(1_000_000)
	require.Equal(t, ms(1_000_000), draw(t, next, 1), "the clock has caught up")
}

func TestBoundedClockFarAheadAndBack(t *testing.T) {
	t.Parallel()
	c, d := newClock(1000), &disk{}
	o := open(t, d, c, time.Second)
	draw(t, o, 1)
	c.ms.Store(1 << 42)
	far := draw(t, o, 1)
	require.Equal(t, ms(1<<42), far)
	c.ms.Store(1001)
	require.Equal(t, far+1, draw(t, o, 1))
	require.NoError(t, o.Close(t.Context()))
	require.Equal(t, far+2, draw(t, open(t, d, c, time.Second), 1))
}

func TestBoundedEndOfTimestamps(t *testing.T) {
	t.Parallel()
	c, d := newClock(1000), &disk{bounds: []oracle.Timestamp{oracle.Max - 10}}
	o := open(t, d, c, time.Hour)
	require.Equal(t, oracle.Max-9, draw(t, o, 4))
	_, err := o.Draw(t.Context(), 7)
	require.ErrorIs(t, err, oracle.ErrExhausted)
	_, err = o.Draw(t.Context(), math.MaxInt)
	require.ErrorIs(t, err, oracle.ErrExhausted)
	require.Equal(t, oracle.Max-5, draw(t, o, 6))
	_, err = o.Draw(t.Context(), 1)
	require.ErrorIs(t, err, oracle.ErrExhausted)
	c.ms.Store(math.MaxInt64)
	_, err = o.Draw(t.Context(), 1)
	require.ErrorIs(t, err, oracle.ErrExhausted)
}

func TestBoundedBadCount(t *testing.T) {
	t.Parallel()
	o := open(t, &disk{}, newClock(1000), 0)
	for _, n := range []int{0, -1, math.MinInt} {
		_, err := o.Draw(t.Context(), n)
		require.Error(t, err)
		require.NotErrorIs(t, err, oracle.ErrExhausted)
	}
	require.Zero(t, o.Last())
}

func TestBoundedPersistFails(t *testing.T) {
	t.Parallel()
	c, d := newClock(1000), &disk{}
	o := open(t, d, c, time.Second)
	broken := errors.New("disk broken")
	d.fail(broken)
	_, err := o.Draw(t.Context(), 1)
	require.ErrorIs(t, err, broken)
	d.fail(nil)
	first := draw(t, o, 1)

	// Above half of the window, with a disk that fails, what is durable still goes.
	d.fail(broken)
	c.ms.Store(1900)
	require.Equal(t, ms(1900), draw(t, o, 1))
	c.ms.Store(5000)
	_, err = o.Draw(t.Context(), 1)
	require.ErrorIs(t, err, broken)
	d.fail(nil)
	require.Equal(t, ms(5000), draw(t, o, 1))
	require.Greater(t, ms(5000), first)
}

func TestBoundedExtendsInTheBackground(t *testing.T) {
	t.Parallel()
	c, d := newClock(1000), &disk{}
	o := open(t, d, c, time.Second)
	draw(t, o, 1)
	require.Equal(t, ms(2000), d.bound())
	// The disk stands still, and nobody waits for it.
	d.mu.Lock()
	d.wait = make(chan struct{})
	d.mu.Unlock()
	for now := int64(1001); now < 2000; now++ {
		c.ms.Store(now)
		require.Equal(t, ms(now), draw(t, o, 1))
	}
	close(d.wait)
	require.Eventually(t, func() bool { return d.bound() > ms(2000) }, time.Minute, time.Millisecond)
	// An idle oracle stores nothing more.
	n := d.stored()
	c.ms.Store(1_000_000)
	require.Equal(t, n, d.stored())
}

func TestBoundedContext(t *testing.T) {
	t.Parallel()
	d := &disk{wait: make(chan struct{})}
	o := open(t, d, newClock(1000), time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error)
	go func() {
		_, err := o.Draw(ctx, 1)
		errs <- err
	}()
	other := make(chan error)
	go func() {
		_, err := o.Draw(context.Background(), 1)
		other <- err
	}()
	cancel()
	require.ErrorIs(t, <-errs, context.Canceled)
	_, err := o.Draw(ctx, 1)
	require.ErrorIs(t, err, context.Canceled)
	close(d.wait)
	require.NoError(t, <-other, "a stranger's draw goes on")
}

// TestBoundedTryDraw draws for a caller that must not wait, and makes the bound suffice for it.
func TestBoundedTryDraw(t *testing.T) {
	t.Parallel()
	c, d := newClock(1000), &disk{}
	o := open(t, d, c, time.Second)
	try := func(n int) (oracle.Timestamp, bool) {
		t.Helper()
		ts, drawn, err := o.TryDraw(n)
		require.NoError(t, err)
		return ts, drawn
	}
	_, drawn := try(1)
	require.False(t, drawn, "nothing is durable yet")
	require.Zero(t, o.Last(), "nothing was drawn")
	require.Zero(t, d.stored(), "it has not even begun to wait")
	require.NoError(t, o.Ensure(t.Context(), 1))
	require.Equal(t, ms(2000), d.bound())
	require.Zero(t, o.Last(), "nothing was drawn")
	ts, drawn := try(2)
	require.True(t, drawn)
	require.Equal(t, ms(1000), ts)
	require.Equal(t, ms(1000)+2, draw(t, o, 1))

	c.ms.Store(5000)
	_, drawn = try(1)
	require.False(t, drawn)
	wait := make(chan struct{})
	d.mu.Lock()
	d.wait = wait
	d.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, o.Ensure(ctx, 1), context.Canceled)
	ended := make(chan error, 1)
	go func() { ended <- o.Ensure(t.Context(), 1) }()
	close(wait)
	require.NoError(t, <-ended)
	ts, drawn = try(1)
	require.True(t, drawn)
	require.Equal(t, ms(5000), ts)

	broken := errors.New("broken")
	d.fail(broken)
	c.ms.Store(50_000)
	require.ErrorIs(t, o.Ensure(t.Context(), 1), broken)
	d.fail(nil)
	require.NoError(t, o.Close(t.Context()))
	require.ErrorIs(t, o.Ensure(t.Context(), 1), oracle.ErrClosed)
	_, _, err := o.TryDraw(1)
	require.ErrorIs(t, err, oracle.ErrClosed)
	for _, n := range []int{0, -1} {
		require.Error(t, o.Ensure(t.Context(), n))
		_, _, err := o.TryDraw(n)
		require.Error(t, err)
	}
}

func TestBoundedCloseEndsWaitingDraws(t *testing.T) {
	t.Parallel()
	d := &disk{wait: make(chan struct{})}
	begun := make(chan struct{})
	o := kit.NewBoundedOracle(kit.BoundedConfig{Clock: newClock(1000).now, Window: time.Second, Persist: func(ctx context.Context, bound oracle.Timestamp) error {
		close(begun) // once: nobody persists after it
		return d.persist(ctx, bound)
	}})
	errs := make(chan error)
	for range 4 {
		go func() {
			_, err := o.Draw(context.Background(), 1)
			errs <- err
		}()
	}
	<-begun
	require.NoError(t, o.Close(t.Context()))
	for range 4 {
		require.ErrorIs(t, <-errs, oracle.ErrClosed)
	}
	require.Zero(t, d.stored())
}

func TestBoundedWithoutPersist(t *testing.T) {
	t.Parallel()
	c := newClock(1000)
	o := kit.NewBoundedOracle(kit.BoundedConfig{Clock: c.now})
	require.Equal(t, ms(1000), draw(t, o, 1))
	c.ms.Store(1e9)
	require.Equal(t, ms(1e9), draw(t, o, 1))
	require.NoError(t, o.Close(t.Context()))
}

// concurrent draws from many goroutines and checks that no two ranges overlap and
// that a draw that began after another one returned is greater.
func concurrent(t *testing.T, o oracle.Oracle, each int) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	type span struct{ first, last oracle.Timestamp }
	const goroutines = 16
	var done atomic.Uint64 // the greatest timestamp whose draw has returned
	spans := make([][]span, goroutines)
	errs := make(chan error, goroutines)
	for g := range goroutines {
		go func() {
			rng := rand.New(rand.NewPCG(seed, uint64(g)))
			for range each {
				before := oracle.Timestamp(done.Load())
				n := 1
				if rng.IntN(10) == 0 {
					n += rng.IntN(100)
				}
				first, err := o.Draw(context.Background(), n)
				if err != nil {
					errs <- err
					return
				}
				if first <= before {
					errs <- fmt.Errorf("drew %v after a draw of %v had returned", first, before)
					return
				}
				last := first + oracle.Timestamp(n) - 1
				spans[g] = append(spans[g], span{first, last})
				for {
					old := done.Load()
					if old >= uint64(last) || done.CompareAndSwap(old, uint64(last)) {
						break
					}
				}
			}
			errs <- nil
		}()
	}
	for range goroutines {
		require.NoError(t, <-errs)
	}
	all := slices.Concat(spans...)
	require.Len(t, all, goroutines*each)
	slices.SortFunc(all, func(a, b span) int {
		if a.first < b.first {
			return -1
		}
		return 1
	})
	for i := 1; i < len(all); i++ {
		require.Greater(t, all[i].first, all[i-1].last, "two draws overlap")
	}
}

func TestBoundedConcurrent(t *testing.T) {
	t.Parallel()
	d := &disk{}
	o := kit.NewBoundedOracle(kit.BoundedConfig{Persist: d.persist, Window: time.Millisecond})
	concurrent(t, o, 5000)
	require.NoError(t, o.Close(t.Context()))
	require.Positive(t, d.stored())
}

func TestBoundedCloseDuringDraws(t *testing.T) {
	t.Parallel()
	for range 50 {
		d := &disk{}
		o := kit.NewBoundedOracle(kit.BoundedConfig{Persist: d.persist, Window: time.Millisecond})
		var highest atomic.Uint64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					ts, err := o.Draw(context.Background(), 1)
					if err != nil {
						return
					}
					for {
						old := highest.Load()
						if old >= uint64(ts) || highest.CompareAndSwap(old, uint64(ts)) {
							break
						}
					}
				}
			})
		}
		for highest.Load() == 0 {
			draw(t, o, 1)
		}
		require.NoError(t, o.Close(t.Context()))
		bound := d.bound()
		wg.Wait()
		require.LessOrEqual(t, oracle.Timestamp(highest.Load()), bound, "handed out above what the next oracle starts from")
	}
}

func BenchmarkBounded(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("goroutines=%d", n), func(b *testing.B) {
			d := &disk{}
			o := kit.NewBoundedOracle(kit.BoundedConfig{Persist: d.persist})
			defer o.Close(context.Background())
			many(b, o, n)
		})
	}
}

// many draws b.N timestamps from n goroutines, one at a time each.
func many(b *testing.B, o oracle.Oracle, n int) {
	b.ReportAllocs()
	var wg sync.WaitGroup
	b.ResetTimer()
	for g := range n {
		share := b.N / n
		if g < b.N%n {
			share++
		}
		wg.Go(func() {
			ctx := context.Background()
			for range share {
				if _, err := o.Draw(ctx, 1); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "timestamps/s")
}

func TestBoundsComeBack(t *testing.T) {
	t.Parallel()
	for _, bound := range []oracle.Timestamp{0, 1, 1 << 40, oracle.Max} {
		got, err := kit.DecodeBound(kit.EncodeBound(bound))
		require.NoError(t, err)
		require.Equal(t, bound, got)
	}
	got, err := kit.DecodeBound(nil)
	require.NoError(t, err)
	require.Zero(t, got)
	for _, bad := range [][]byte{{}, {1}, make([]byte, 9), kit.EncodeBound(oracle.Max + 1)} {
		_, err := kit.DecodeBound(bad)
		require.ErrorIs(t, err, rowstore.ErrCorrupt)
	}
}
