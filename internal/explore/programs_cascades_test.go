package explore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// trackedBy has the observer registered, and everybody know that cascades are tracked.
func trackedBy(ctx context.Context, c *Client) error {
	return errors.Join(registered(ctx, c), c.DB.TrackCascades(ctx), c.Sleep(ctx, stall), registered(ctx, c))
}

// cascader is a glancer whose function writes b for a, and which compares what a run is told of the runs before it with who has written
// the change.
func cascader(also ...percolator.Cell) func(ctx context.Context, c *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Glance(ctx, 1500*time.Millisecond, c.Observer("o v", "t", "v", func(_ context.Context, tx *Txn, cell percolator.Cell) error {
			c.w.history.checkHops(tx, cell)
			if cell != a {
				return nil
			}
			for _, other := range append(also, b) {
				if err := tx.Write(other); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

// checkHops complains if a run for the newest change of a cell is told of another number of runs than lie before it: one if a run
// has written it, which here are those for a alone, and else none.
func (h *history) checkHops(tx *Txn, cell percolator.Cell) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var newest writtenVersion
	for _, v := range h.written[cell] {
		if v.at <= tx.rec.start && v.at > newest.at {
			newest = v
		}
	}
	want := 0
	for i := range h.runs {
		if h.runs[i].rec.start == newest.start {
			want = 1
		}
	}
	if got := tx.Hops(); got != want {
		// Its notification may be gone, where another worker has run for it since the snapshot. Then this run must not commit.
		h.ifCommitted = append(h.ifCommitted, complaint{tx.rec.start, fmt.Errorf("a run for %v was told of %d runs before the change of %d, and there were %d", cell, got, uint64(newest.at), want)})
	}
}

// cascades are programs in which a run sets another one off.
func cascades() []program {
	on := func(name string, budget Budget, options []percolator.Option, how how, all ...func(context.Context, *Client)) program {
		return program{Program{Name: "cascade, " + name, Options: options, Settings: brief, Setup: trackedBy, Clients: all, Observed: []percolator.Cell{a, b}, Budget: budget}, how}
	}
	return []program{
		on("one-phase, crash", die, onePhase, bounded, writer(a), cascader()),
		on("group, crash", die, group, bounded, writer(a), cascader()),
		on("2PC, crash and expiry", Budget{Die: 1, Expire: 1}, plain2PC, sparse, writer(a), cascader(aside), cascader()),
		on("2PC, and a write from outside", Budget{Die: 1, Lose: 1}, plain2PC, sparse, writer(a), writer(b), cascader(aside)),
		on("one-phase, and a write from outside", Budget{Die: 1, Lose: 1}, onePhase, bounded, writer(a), writer(b), cascader()),
	}
}
