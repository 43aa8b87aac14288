package pebble

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Store is a row-transactional store in this process, on disk or in memory. It
// implements rowstore.Store, Grouper (with Draw), OracleProvider, Splitter,
// SlotScanner, Waker, Limiter and Reporter. It is no Deferrer: a client of an embedded store
// dies with it, and a commit is one Group and so one flush already.
//
// All methods may be called concurrently. They honour their context while they wait
// for the disk to confirm a write, or a bound of timestamps. The waits for another call on the
// same row are short, and ignore it. So do waits for the engine while it begins a new log: it
// syncs the old one first, once for each MemTableSize of writes. While a disk hangs at that
// moment, calls hang with it.
type Store struct {
	db *engine.DB
	home
	seed maphash.Seed

	life *kit.Gate // every call goes through it

	stripes   [stripeCount]stripe
	perStripe int // buckets of the cache of heads that each stripe has, a power of two

	// gate orders scans after commits. A group draws its timestamp before its
	// batch is visible, and a batch is visible before it is registered as one that
	// is not durable yet. Each holds the gate for reading from before the first to
	// after the last of these steps. A holder for writing sees every write below any
	// timestamp that was drawn before, and knows what is not durable.
	gate sync.RWMutex

	syncs *syncer // nil if the database has no log to wait for

	oracle *kit.BoundedOracle
	hub    kit.Hub // of those who listen for notifications
	notes  notes

	aheadRows int // how many names of notified rows a scan keeps

	failure atomic.Pointer[error]
}

// home is where a store's database is, and what becomes of it at the end.
type home struct {
	name    string // for messages
	durable bool   // what the database has confirmed outlives the process
	room    *room  // nil if nobody knows how much its disk has left
	borrows bool   // the database is the program's own: Close leaves it open
	release func() // lets the path or the database be opened again
}

var (
	_ rowstore.Store          = (*Store)(nil)
	_ rowstore.Grouper        = (*Store)(nil)
	_ rowstore.OracleProvider = (*Store)(nil)
	_ rowstore.Splitter       = (*Store)(nil)
	_ rowstore.SlotScanner    = (*Store)(nil)
	_ rowstore.Waker          = (*Store)(nil)
	_ rowstore.Limiter        = (*Store)(nil)
	_ rowstore.Reporter       = (*Store)(nil)
)

// stripeCount is a power of two. Rows share a stripe by the hash of their names.
const stripeCount = 4096

// stripe guards the rows that hash to it.
type stripe struct {
	// mu is held for reading while a row is read, and for writing from before the
	// conditions are checked until the batch is visible. A group draws its timestamp
	// meanwhile, so a reader that has a greater one finds the write or waits.
	mu sync.RWMutex
	// unsynced is the newest batch that changed a row of the stripe; it may be
	// durable by now. Guarded by mu.
	unsynced *commit
	// buckets are the stripe's part of the cache of heads, nil until its first entry.
	buckets atomic.Pointer[[]bucket]
	_       [64 - 24 - 8 - 8]byte
}

func (s *Store) stripe(table, row string) uint32 {
	h := maphash.String(s.seed, row) + 31*maphash.String(s.seed, table)
	return uint32(h) & (stripeCount - 1)
}

// enter begins a call, and leave ends it. A call that began keeps the store open.
func (s *Store) enter(ctx context.Context, what string) error {
	if err := s.life.Enter(ctx, what); err != nil {
		return err
	}
	if p := s.failure.Load(); p != nil {
		s.life.Leave()
		return *p
	}
	return nil
}

func (s *Store) leave() { s.life.Leave() }

// begin is enter for a call that may take long: Close ends its context. end ends the call.
func (s *Store) begin(ctx context.Context, what string) (inner context.Context, end func(), err error) {
	if inner, end, err = s.life.Begin(ctx, what); err != nil {
		return nil, nil, err
	}
	if p := s.failure.Load(); p != nil {
		end()
		return nil, nil, *p
	}
	return inner, end, nil
}

// fail stops the store from answering: after a write could not be made durable,
// memory may show more than the disk will ever have.
func (s *Store) fail(err error) error {
	err = fmt.Errorf("pebble: %s: a write failed; open the store again: %w", s.name, err)
	s.failure.CompareAndSwap(nil, &err)
	return err
}

// Oracle implements rowstore.OracleProvider: an oracle in this process whose
// bound is stored along with the rows.
func (s *Store) Oracle() oracle.Oracle { return s.oracle }

// Close implements rowstore.Store. Calls under way finish first; only Listen and Compact are
// ended. Everything that was acknowledged is durable before, so a process may end
// without Close. Close leaves the database of [New] open. A second Close waits for the
// first one and returns nil.
func (s *Store) Close() error {
	return s.life.Close(func() error {
		err := s.oracle.Close(context.Background())
		if s.syncs != nil {
			s.syncs.close()
		}
		if !s.borrows {
			err = errors.Join(err, s.db.Close())
		}
		s.release()
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		return nil
	})
}
