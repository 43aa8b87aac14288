package redis

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// direct is the store under a [Store]: each of its calls goes to the servers by
// itself, where a Store may merge calls first.
type direct struct {
	opts    Options
	nodes   nodes
	parts   []part
	okey    string
	channel string
	// oneSlot: any rows may share a group, and the oracle is with them.
	oneSlot bool
	// bySlot: the slot of a row says its partition. It is so in stores that were not made
	// in version 1.
	bySlot bool
	// lateAfter is how long after it was sent a request may still be applied.
	lateAfter time.Duration
	clocks    sync.Map // *goredis.Client to *serverClock
	encoders  sync.Pool
	// strict: some server that the store has met would, as a replica, take writes, or
	// the store cannot know (a client of the program's own). Then every script asks for
	// the role of its server; see script.strict.
	strict atomic.Bool
	pusher *pusher

	mu     sync.RWMutex // guards calls against Close
	closed atomic.Bool
	calls  sync.WaitGroup
	over   chan struct{}      // closed when the first Close has ended
	stop   context.CancelFunc // ends the context ended
	ended  context.Context
}

// part holds the keys that a partition has once.
type part struct {
	tag           string // {prefix:n}
	tables, never string
	group         string
}

// The most that goes into one run of a script, so that no run keeps the server
// from its other clients for long. A group is never cut, nor is the read of one
// cell. What a run that reads does is counted in the script, in steps; see
// scripts/read_part.lua.
const (
	maxRowsPerCall  = 512
	maxBytesPerCall = 1 << 20
	maxCallBytes    = 256 << 20
	maxSteps        = 8192
	maxAnswer       = 1 << 20
	minSteps        = 512
	minAnswer       = 64 << 10
)

// share returns the steps and the bytes of answer that each of n runs may take, which
// go to the servers together.
func share(n int) (steps, bytes uint32) {
	n = max(n, 1)
	return uint32(max(maxSteps/n, minSteps)), uint32(max(maxAnswer/n, minAnswer))
}

// begin begins a call, and end ends it. Close waits for calls that have begun.
func (s *direct) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed.Load() {
		return fmt.Errorf("redis: %w", rowstore.ErrClosed)
	}
	s.calls.Add(1)
	return nil
}

func (s *direct) end() { s.calls.Done() }

// await runs f and waits until f returns or the context ends; done says whether f has
// returned. go-redis heeds no cancellation while it reads, so f may still be running if
// it has not, and the memory that f uses then belongs to f. The caller has called begin.
// await calls end once f has returned.
func (s *direct) await(ctx context.Context, f func(ctx context.Context)) (done bool) {
	if ctx.Done() == nil {
		defer s.end()
		f(ctx)
		return true
	}
	ready := make(chan struct{})
	go func() {
		defer s.end()
		defer close(ready)
		f(ctx)
	}()
	select {
	case <-ready:
		return true
	case <-ctx.Done():
	}
	// If both happened at once, take the answer.
	select {
	case <-ready:
		return true
	default:
		return false
	}
}

// Close closes the connections, so that calls under way end with an error, or lets
// them finish where the client is the program's own. A second Close waits until the first
// one has ended, and returns nil.
func (s *direct) Close() error {
	s.mu.Lock()
	was := s.closed.Swap(true)
	s.mu.Unlock()
	if was {
		<-s.over
		return nil
	}
	defer close(s.over)
	answers := s.pusher.stop()
	s.stop()
	var err error
	if s.nodes != nil {
		err = s.nodes.close()
	}
	s.calls.Wait()
	if answers {
		s.pusher.finish() // what calls under way have left, if the client is still open
		s.calls.Wait()
	}
	if err != nil {
		return fmt.Errorf("redis: closing: %w", err)
	}
	return nil
}

// Limits returns the greatest lengths that the store takes.
func (s *direct) Limits() rowstore.Limits {
	return rowstore.Limits{Table: maxTable, Row: maxRow, Column: maxColumn, Value: maxValue}
}

// checkNames refuses reads of names that are over the limits: nothing can be stored
// under them.
func checkNames(table, row string) error {
	if len(table) > maxTable {
		return fmt.Errorf("redis: %w: the table's name has %d bytes, the limit is %d", rowstore.ErrTooLarge, len(table), maxTable)
	}
	if len(row) > maxRow {
		return fmt.Errorf("redis: %w: the row's name has %d bytes, the limit is %d", rowstore.ErrTooLarge, len(row), maxRow)
	}
	return nil
}

// Oracle returns the store's own oracle; see storeOracle.
func (s *direct) Oracle() oracle.Oracle { return storeOracle{s} }

// GroupKey tells which rows may share a group: on a server outside cluster mode
// all, in a Cluster those of one partition.
func (s *direct) GroupKey(table, row string) string {
	if s.oneSlot {
		return "0"
	}
	return s.parts[s.partOf(table, row)].group
}

// AssignsTimestamps tells whether groups of that key may draw their timestamp: where the
// oracle is on the same server, in a Cluster in the same slot.
func (s *direct) AssignsTimestamps(key string) bool { return key == "0" }

// Shard names the server that holds a row: in a Cluster its address, as of the last
// call that went there, else "" for every row.
func (s *direct) Shard(table, row string) string {
	n, ok := s.nodes.(*cluster)
	if !ok {
		return ""
	}
	return n.address(s.partOf(table, row))
}

func newParts(prefix string, n int) []part {
	parts := make([]part, n)
	for i := range parts {
		tag := "{" + prefix + ":" + strconv.Itoa(i) + "}"
		parts[i] = part{tag: tag, tables: tag + "t", never: tag + "x", group: strconv.Itoa(i)}
	}
	return parts
}
