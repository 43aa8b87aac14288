package coalesce

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/percolate-go/percolate/percolator/rowstore/internal/arena"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/parts"
)

// laneKind holds what differs between reads, applies and groups. A call has many asks of
// type Q, and each gets an answer of type A.
type laneKind[Q, A any] struct {
	name string
	// writes tells whether a request of these asks that left may have changed something; an
	// error then says so. It is nil if no request does.
	writes func(asks []Q) bool
	whole  bool // an answer depends on the whole call, which must not be cut
	// least is how many asks a call has, at least, that leaves beside others.
	least int
	send  func(context.Context, []Q) ([]A, error)
	check func([]Q) error
	// keep appends copies that share nothing with the caller. The caller may give up and
	// change its slices while the merged call is under way.
	keep func(to []Q, a *arena.Arena, asks []Q) []Q
	// hash appends a hash for each row that asks name. It is nil if a batch may name a row
	// twice. If two rows have one hash, one of them waits without need.
	hash func(to []uint64, asks []Q) []uint64
	// size is what asks count for in MaxBatch. If it is nil, that is their number.
	size func(asks []Q) int
	// shard names the shard of an ask, or says false if the ask concerns several. It is nil
	// if the store has no Sharder, or the asks concern no row.
	shard func(q *Q) (string, bool)
	// failed is the answer to an ask whose call failed.
	failed func(q *Q, err error) A
	// errors calls do for each place where an answer has an error.
	errors func(a *A, do func(*error))
	// bytes is the total length of the values in asks. It is nil if they have none, or few.
	bytes func(asks []Q) int
	// again tells whether the answers to a call of a batch only say that it did nothing, for the fault of one of several: it
	// is asked for once more, alone. It is nil if the answers never say so; an error of the whole batch may still.
	again func(answers []A) bool
}

// always is the writes of a kind whose requests all may change something.
func always[Q any]([]Q) bool { return true }

func (k *laneKind[Q, A]) mayChange(asks []Q) bool { return k.writes != nil && k.writes(asks) }

func (k *laneKind[Q, A]) count(asks []Q) int {
	if k.size != nil {
		return k.size(asks)
	}
	return len(asks)
}

// lanes has a lane for each shard, so that a slow server delays only calls to it.
type lanes[Q, A any] struct {
	laneKind[Q, A]
	opts Options
	only *lane[Q, A] // of everything, without a Sharder; with one, of what concerns several shards

	mu     sync.Mutex
	closed bool
	named  atomic.Pointer[map[string]*lane[Q, A]] // never changed, but replaced under mu
}

func newLanes[Q, A any](opts Options, kind laneKind[Q, A]) *lanes[Q, A] {
	s := &lanes[Q, A]{laneKind: kind, opts: opts, only: newLane(opts, kind)}
	s.named.Store(&map[string]*lane[Q, A]{})
	return s
}

func (s *lanes[Q, A]) do(ctx context.Context, asks []Q) ([]A, error) {
	if s.shard == nil || len(asks) == 0 {
		return s.only.do(ctx, asks)
	}
	// A Sharder must not be asked about bad names.
	if err := s.check(asks); err != nil {
		return nil, fmt.Errorf("coalesce: %s: %w", s.name, err)
	}
	shard, one := s.shardOf(asks)
	if one {
		return s.lane(shard).do(ctx, asks)
	}
	if len(asks) == 1 || s.whole {
		return s.only.sendAlone(ctx, asks)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("coalesce: %s: %w", s.name, err)
	}
	if s.isClosed() {
		return nil, s.only.errClosed(ctx)
	}
	pieces := parts.Cut(asks, func(q *Q) *lane[Q, A] {
		if shard, one := s.shard(q); one {
			return s.lane(shard)
		}
		return nil
	})
	return parts.SendParts(len(asks), pieces, func(p *parts.Part[*lane[Q, A], Q]) ([]A, error) {
		if p.To == nil {
			return s.only.sendAlone(ctx, p.Asks)
		}
		return p.To.do(ctx, p.Asks)
	}, s.failed), nil
}

// shardOf names the shard of all asks, or says false when there are several.
func (s *lanes[Q, A]) shardOf(asks []Q) (string, bool) {
	shard, one := s.shard(&asks[0])
	for i := 1; one && i < len(asks); i++ {
		var next string
		next, one = s.shard(&asks[i])
		one = one && next == shard
	}
	return shard, one
}

// lane returns the lane of a shard, and makes it if there is none.
func (s *lanes[Q, A]) lane(shard string) *lane[Q, A] {
	if l := (*s.named.Load())[shard]; l != nil {
		return l
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	named := *s.named.Load()
	if l := named[shard]; l != nil {
		return l
	}
	l := newLane(s.opts, s.laneKind)
	if s.closed {
		l.stop()
	}
	named = maps.Clone(named)
	named[shard] = l
	s.named.Store(&named)
	return l
}

func (s *lanes[Q, A]) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (s *lanes[Q, A]) stop() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.only.stop()
	for _, l := range *s.named.Load() {
		l.stop()
	}
}

func (s *lanes[Q, A]) wait() {
	s.only.wait()
	for _, l := range *s.named.Load() {
		l.wait()
	}
}
