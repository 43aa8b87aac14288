package percolator

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// gauge is a store that measures its calls, refuses what is over its limits, and may be
// slow. It has no oracle of its own: drawing is a call too.
type gauge struct {
	rowstore.Store
	mem    *memstore.Store
	limits rowstore.Limits
	slow   func(muts []rowstore.Mutation) time.Duration
	work   func(muts []rowstore.Mutation) // what the server does for a call
	meet   bool                           // a bulk call waits a while for another one under way, until some have met

	mu                                      sync.Mutex
	underWay, most, calls                   int
	rows, bytes, operations, group, urgents int   // the greatest of a call
	read                                    int   // rows, the most of a call
	bulk                                    []int // rows of each call of a large piece of work
}

func (g *gauge) size(m *rowstore.Mutation) (operations, bytes int) {
	bytes = len(m.Table) + len(m.Row)
	for i := range m.Conditions {
		bytes += len(m.Conditions[i].Column)
	}
	for i := range m.Edits {
		bytes += len(m.Edits[i].Column) + len(m.Edits[i].Value)
	}
	return len(m.Conditions) + len(m.Edits), bytes
}

// judge measures one call; each is one atomic step where together says so.
func (g *gauge) judge(muts []rowstore.Mutation, together bool) error {
	operations, bytes := 0, 0
	for i := range muts {
		o, b := g.size(&muts[i])
		if !together {
			g.operations = max(g.operations, o)
			if g.limits.Operations > 0 && o > g.limits.Operations || g.limits.Bytes > 0 && b > g.limits.Bytes {
				return fmt.Errorf("%w: %d operations and %d bytes in one row", rowstore.ErrTooLarge, o, b)
			}
		}
		operations, bytes = operations+o, bytes+b
	}
	if together {
		g.group = max(g.group, operations)
		if g.limits.Operations > 0 && operations > g.limits.Operations || g.limits.Bytes > 0 && bytes > g.limits.Bytes {
			return fmt.Errorf("%w: %d operations and %d bytes in one group", rowstore.ErrTooLarge, operations, bytes)
		}
		return nil
	}
	g.rows, g.bytes = max(g.rows, len(muts)), max(g.bytes, bytes)
	return nil
}

func (g *gauge) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	g.mu.Lock()
	g.underWay++
	g.calls++
	g.most = max(g.most, g.underWay)
	if opts.Urgent {
		g.urgents++
	}
	if opts.Bulk {
		g.bulk = append(g.bulk, len(muts))
	}
	err := g.judge(muts, false)
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.underWay--
	}()
	if err != nil {
		return nil, err
	}
	if g.meet && opts.Bulk {
		g.awaitAnother()
	}
	if g.slow != nil {
		if err := (systemClock{}).Sleep(ctx, g.slow(muts)); err != nil {
			return nil, err
		}
	}
	if g.work != nil {
		g.work(muts)
	}
	return g.Store.Apply(ctx, muts, opts)
}

func (g *gauge) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	g.mu.Lock()
	g.read = max(g.read, len(reads))
	g.mu.Unlock()
	return g.Store.Read(ctx, reads)
}

// awaitAnother returns when two calls have been under way at once, or, for a call that is
// sent alone, after a moment.
func (g *gauge) awaitAnother() {
	for until := time.Now().Add(200 * time.Millisecond); time.Now().Before(until); time.Sleep(100 * time.Microsecond) {
		g.mu.Lock()
		met := g.most > 1
		g.mu.Unlock()
		if met {
			return
		}
	}
}

func (g *gauge) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	g.mu.Lock()
	for i := range groups {
		if err := g.judge(groups[i].Mutations, true); err != nil {
			g.mu.Unlock()
			return nil, err
		}
	}
	g.mu.Unlock()
	return g.mem.Group(ctx, groups)
}

func (g *gauge) GroupKey(table, row string) string { return g.mem.GroupKey(table, row) }

func (g *gauge) AssignsTimestamps(key string) bool { return g.mem.AssignsTimestamps(key) }

func (g *gauge) Oracle() oracle.Oracle { return g.mem.Oracle() }

func (g *gauge) Limits() rowstore.Limits { return g.limits }

func newGauge(limits rowstore.Limits) *gauge {
	mem := memstore.New()
	return &gauge{Store: mem, mem: mem, limits: limits}
}
