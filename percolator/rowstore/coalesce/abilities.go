package coalesce

import (
	"context"
	"errors"
	"fmt"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Abilities implements Decorator.
func (c *coalescer) Abilities() rowstore.Abilities { return c.abilities }

// treatment gives each kind of call that is merged its lanes. What coalescing does not
// change is offered as it is.
func (c *coalescer) treatment() rowstore.Treatment {
	return rowstore.Treatment{
		Grouper: func(g rowstore.Grouper) rowstore.Grouper {
			c.groups = newLanes(c.opts, c.groupKind(g))
			if c.together != nil {
				c.together.grouper = g
				return togetherGrouper{g, c.together, c.groups}
			}
			return coalescedGrouper{g, c.groups}
		},
		OracleProvider: func(p rowstore.OracleProvider) rowstore.OracleProvider {
			if c.together != nil {
				c.together.oracle = p.Oracle()
				return coalescedOracle{c.together.draw}
			}
			c.draws = newLane(c.opts, drawKind(p.Oracle()))
			return coalescedOracle{c.draw}
		},
		SnapshotReader: func(r rowstore.SnapshotReader) rowstore.SnapshotReader {
			if c.together != nil {
				c.together.reader = r
				return togetherReader{c.together}
			}
			c.snapshotReads = newLanes(c.opts, c.snapshotReadKind(r))
			return coalescedSnapshotReader{c}
		},
		Reporter:        func(r rowstore.Reporter) rowstore.Reporter { return coalescedReporter{r, c.opts} },
		Deferrer:        rowstore.Pass[rowstore.Deferrer],
		Splitter:        rowstore.Pass[rowstore.Splitter],
		Waker:           rowstore.Pass[rowstore.Waker],
		Limiter:         rowstore.Pass[rowstore.Limiter],
		SlotScanner:     rowstore.Pass[rowstore.SlotScanner],
		SnapshotScanner: rowstore.Pass[rowstore.SnapshotScanner],
		Sharder:         rowstore.Pass[rowstore.Sharder],
		Placer:          rowstore.Pass[rowstore.Placer],
		Crasher:         rowstore.Pass[rowstore.Crasher],
	}
}

type coalescedGrouper struct {
	rowstore.Grouper
	groups *lanes[rowstore.Group, rowstore.GroupOutcome]
}

func (g coalescedGrouper) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	return g.groups.do(ctx, groups)
}

type coalescedSnapshotReader struct{ c *coalescer }

func (d coalescedSnapshotReader) ReadSnapshot(ctx context.Context, asks []rowstore.SnapshotRead) ([]rowstore.SnapshotRows, error) {
	c := d.c
	if c.sharder != nil && c.draws != nil && rowstore.CheckSnapshotReads(asks) == nil {
		for i := range asks {
			if _, one := c.snapshotReads.shard(&asks[i]); !one {
				return kit.TimestampThenRead(ctx, coalescedOracle{c.draw}, c, asks)
			}
		}
	}
	return c.snapshotReads.do(ctx, asks)
}

// coalescedOracle is both the ability and the oracle.
type coalescedOracle struct {
	draw func(ctx context.Context, n int) (rowstore.Timestamp, error)
}

func (o coalescedOracle) Oracle() oracle.Oracle { return o }

func (o coalescedOracle) Draw(ctx context.Context, n int) (rowstore.Timestamp, error) {
	first, err := o.draw(ctx, n)
	if err != nil {
		if errors.Is(err, rowstore.ErrClosed) && !errors.Is(err, oracle.ErrClosed) {
			err = fmt.Errorf("%w: %w", oracle.ErrClosed, err)
		}
		return 0, err
	}
	return first, nil
}

func (c *coalescer) draw(ctx context.Context, n int) (rowstore.Timestamp, error) {
	first, err := c.draws.do(ctx, []int{n})
	if err != nil {
		return 0, err
	}
	return first[0], nil
}

// drawAll draws timestamps for all callers at once, and gives each its part of the range.
func drawAll(ctx context.Context, from oracle.Oracle, counts []int) ([]rowstore.Timestamp, error) {
	next, err := from.Draw(ctx, sum(counts))
	if err != nil {
		return nil, err
	}
	firsts := make([]rowstore.Timestamp, len(counts))
	for i, n := range counts {
		firsts[i] = next
		next += rowstore.Timestamp(n)
	}
	return firsts, nil
}

func checkDraws(counts []int) error {
	for _, n := range counts {
		if n < 1 {
			return fmt.Errorf("%w: draw of %d timestamps", rowstore.ErrInvalid, n)
		}
	}
	return nil
}

func sum(counts []int) int {
	all := 0
	for _, n := range counts {
		all += n
	}
	return all
}

type coalescedReporter struct {
	inner rowstore.Reporter
	opts  Options
}

func (r coalescedReporter) Report(ctx context.Context) (rowstore.Report, error) {
	report, err := r.inner.Report(ctx)
	if err != nil {
		return rowstore.Report{}, err
	}
	report.Features = append(report.Features, rowstore.Feature{
		Name: "coalescing", Supported: true,
		Reason: fmt.Sprintf("up to %d rows in a call, %d calls of a kind at once", r.opts.MaxBatch, r.opts.MaxInFlight),
	})
	return report, nil
}
