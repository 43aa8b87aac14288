package explore

import (
	"context"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// Programs about WaitIdle while work moves between the shares of workers, from places that a look has
// yet to reach to places that it has passed.

// chain are the cells through which work moves, in two tables by turns: a run for each of them writes the
// next one.
func chain(n int) []percolator.Cell {
	cells := make([]percolator.Cell, n)
	for i := range cells {
		cells[i] = percolator.Cell{Table: "p", Row: fmt.Sprintf("r%02d", i), Column: "v"}
		if i%2 == 1 {
			cells[i].Table, cells[i].Column = "q", "w"
		}
	}
	return cells
}

// chainObservers are those of v, which write w, and of w, which write v.
func chainObservers(c *Client, cells []percolator.Cell) []percolator.Observer {
	next := func(_ context.Context, tx *Txn, cell percolator.Cell) error {
		for i := range cells[1:] {
			if cells[i] == cell {
				return tx.Write(cells[i+1])
			}
		}
		return nil
	}
	return []percolator.Observer{
		c.Observer(ObserverName("v"), "p", "v", next),
		c.Observer(ObserverName("w"), "q", "w", next),
	}
}

// chainRegistered has them registered.
func chainRegistered(cells []percolator.Cell) func(context.Context, *Client) error {
	return func(ctx context.Context, c *Client) error { return c.Work(ctx, chainObservers(c, cells)...) }
}

// moves runs the chain's observers with that weight, for a while or until the first client, who asks, has ended.
func moves(cells []percolator.Cell, weight int, d time.Duration) func(context.Context, *Client) {
	config := glances
	config.Concurrency = weight
	return func(ctx context.Context, c *Client) { _ = c.Outlast(ctx, config, d, chainObservers(c, cells)...) }
}

// asks runs them with the weight 1, looks for nothing by itself, and waits after a while until nothing is left.
func asks(cells []percolator.Cell, after time.Duration) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) { _ = c.Await(ctx, after, chainObservers(c, cells)...) }
}

// idles are the programs. The workers have agreed on their shares when the work begins. The calls of those that move it
// take a while, and looks of WaitIdle, which may take as long as a few of these, are what stalls.
func idles() []program {
	const agreed, step = 8 * time.Second, 100 * time.Millisecond
	cells := chain(8)
	behind := func(how how, name string, options []percolator.Option, budget Budget, movers ...func(context.Context, *Client)) program {
		p := Program{Name: "WaitIdle while work moves, " + name, Options: options, Setup: chainRegistered(cells), Idle: true, Behind: 6 * step, Observed: cells, Budget: budget}
		p.Clients, p.Takes = append(append(clients{asks(cells, agreed)}, movers...), later(agreed-time.Second/2, cells[0])), []time.Duration{0}
		for range movers {
			p.Takes = append(p.Takes, step)
		}
		return program{p, how}
	}
	slow := Budget{Stall: 4}
	return []program{
		behind(random, "in another's share", onePhase, slow, moves(cells, 63, time.Minute)),
		behind(sparse, "in another's share, 2PC", plain2PC, slow, moves(cells, 63, time.Minute)),
		behind(sparse, "between two shares", onePhase, slow, moves(cells, 2, time.Minute)),
		behind(sparse, "between those of three, one of whom leaves", onePhase, slow, moves(cells, 16, time.Minute), moves(cells, 16, agreed+time.Second)),
		behind(sparse, "in the share of one that dies", onePhase, Budget{Stall: 5, Leave: 1}, moves(cells, 63, time.Minute)),
	}
}
