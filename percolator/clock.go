package percolator

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
)

// Clock is the local time that a DB uses: only to measure how long something
// lasts and to wait, never to order anything. Tests inject their own. Its methods
// may be called concurrently.
type Clock interface {
	// Now returns a time whose differences are those of a monotonic clock.
	Now() time.Time
	// Sleep returns nil after d, or the context's error as soon as that ends.
	Sleep(ctx context.Context, d time.Duration) error
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

func (systemClock) Sleep(ctx context.Context, d time.Duration) error {
	return contexts.Sleep(ctx, d)
}

// Backoff is an exponential backoff with full jitter: the wait before attempt n is
// random between Min and Min doubled n times, at most Max. If only one of the two is
// given, the other takes its default, moved so that Min is not above Max.
type Backoff struct {
	Min, Max time.Duration
}

// fill sets a missing half to its default. If the two do not fit together, the half
// that was given wins.
func (b *Backoff) fill(defaults Backoff) {
	given := *b
	if b.Min <= 0 {
		b.Min = defaults.Min
	}
	if b.Max <= 0 {
		b.Max = defaults.Max
	}
	switch {
	case b.Min <= b.Max:
	case given.Min <= 0:
		b.Min = b.Max
	case given.Max <= 0:
		b.Max = b.Min
	}
}

func (b Backoff) wait(attempt int, r *random) time.Duration {
	top := b.Min
	for i := 0; i < attempt && top < b.Max; i++ {
		top += min(top, b.Max-top) // the longest of waits cannot be doubled
	}
	top = min(top, b.Max)
	if top <= b.Min {
		return top
	}
	return b.Min + time.Duration(r.int64N(int64(top-b.Min)+1))
}

// random is a source that may be called concurrently, seeded by tests.
type random struct {
	mu sync.Mutex
	r  *rand.Rand
}

func newRandom(seed uint64) *random {
	return &random{r: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))} //nolint:gosec // jitter and places to look at, no secrets
}

func (r *random) int64N(n int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.r.Int64N(n)
}
