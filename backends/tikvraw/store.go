package tikvraw

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Store is a row-transactional store in TiKV. Besides the methods of rowstore.Store
// it is an OracleProvider, a Splitter, a Limiter, a Sharder and a Reporter. Make it with [Open]
// or [New]. All methods may be called concurrently.
type Store struct {
	raw    raw
	keys   keyspace
	sizes  sizes
	limits rowstore.Limits
	opts   Options
	// about and drawFrom are of the cluster; about is nil in tests without one.
	about    func(ctx context.Context) (cluster, error)
	drawFrom tsoClient
	cache    *cache
	turns    *turns
	clean    *cleaner

	oracle      oracle.Oracle
	oracleKind  Oracle
	closeOracle func() error

	ctx    context.Context // ended by Close
	cancel context.CancelFunc
	mu     sync.Mutex
	closed bool
	ended  chan struct{}  // closed when Close is over
	calls  sync.WaitGroup // calls and goroutines under way
}

// workers is how many rows of one call are worked on at once.
const workers = 256

// begin lets a call in. Its context ends with the store; end must be called.
func (s *Store) begin(ctx context.Context, what string) (inner context.Context, end func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, fmt.Errorf("tikvraw: %s: %w", what, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, fmt.Errorf("tikvraw: %s: %w", what, rowstore.ErrClosed)
	}
	s.calls.Add(1)
	inner, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return inner, func() {
		stop()
		cancel()
		s.calls.Done()
	}, nil
}

// fail completes an error of a call.
func (s *Store) fail(what string, err error) error {
	if err != nil && s.ctx.Err() != nil {
		return fmt.Errorf("tikvraw: %s: %w: %w", what, rowstore.ErrClosed, err)
	}
	if err != nil {
		return fmt.Errorf("tikvraw: %s: %w", what, err)
	}
	return nil
}

// Close implements rowstore.Store. Calls under way end with an error. What earlier
// changes left to be removed goes first, as far as the cluster answers within the
// request timeout.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		<-s.ended
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	defer close(s.ended)
	s.cancel()
	s.calls.Wait()
	s.clean.close(s.opts.RequestTimeout)
	if s.closeOracle != nil {
		_ = s.closeOracle()
	}
	if err := s.raw.close(); err != nil {
		return fmt.Errorf("tikvraw: close: %w", err)
	}
	return nil
}

// Limits implements rowstore.Limiter.
func (s *Store) Limits() rowstore.Limits { return s.limits }

// Shard implements rowstore.Sharder: the TiKV server that leads the row's region, as far
// as this process has met it; "" for a row of a region that it has not.
func (s *Store) Shard(table, row string) string {
	return s.raw.shard(s.keys.row(spaceHead, table, row))
}

// Oracle implements rowstore.OracleProvider.
func (s *Store) Oracle() oracle.Oracle { return s.oracle }

// parallel runs f for 0 to n-1, up to workers at once. The caller is one of them: a
// goroutine more would have to grow its stack for the client's depth each time.
func parallel(n int, f func(i int)) {
	var next atomic.Int64
	work := func() {
		for {
			i := int(next.Add(1)) - 1
			if i >= n {
				return
			}
			f(i)
		}
	}
	var wg sync.WaitGroup
	for range min(n, workers) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

// sleep waits, or returns the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
