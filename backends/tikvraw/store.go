package tikvraw

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Store is a row-transactional store in TiKV. Besides the methods of rowstore.Store
// it is an OracleProvider, a Splitter, a SlotScanner, a Limiter, a Sharder and a Reporter. Make
// it with [Open] or [New]. All methods may be called concurrently.
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
	hints    *hints

	// movedAt is the record's Moved. outdated is the error of every call once the store has
	// a format that this program does not know.
	movedAt  int64
	outdated atomic.Pointer[error]

	oracle      oracle.Oracle
	oracleKind  Oracle
	closeOracle func() error

	gate *kit.Gate // every call goes through it
	// background is the context of the sweeps, and running counts them.
	background    context.Context //nolint:containedctx // it ends with the store
	endBackground context.CancelFunc
	running       sync.WaitGroup
}

// workers is how many rows of one call are worked on at once.
const workers = 256

// Close implements rowstore.Store. Calls under way end with an error. What earlier
// changes left to be removed goes first, as far as the cluster answers within the
// request timeout.
func (s *Store) Close() error {
	s.endBackground()
	return s.gate.Close(func() error {
		s.running.Wait()
		s.clean.close(s.opts.RequestTimeout)
		if s.closeOracle != nil {
			_ = s.closeOracle()
		}
		return s.raw.close()
	})
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
