package explore

import (
	"context"
	"errors"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// Programs about who owns a change. Ownership decides who works, never whether it is
// right: two owners cost a conflict, none costs a wait.

// running runs observers of column v by their names, after a while and for a while.
func running(after, d time.Duration, names ...string) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		if c.Sleep(ctx, after) != nil {
			return
		}
		var all []percolator.Observer
		for _, name := range names {
			all = append(all, c.Observer(name, "t", "v", nil))
		}
		_ = c.Glance(ctx, d, all...)
	}
}

// laboring runs the observer of column v for a while, whose function takes longer than a
// run takes before it is claimed. Then it fails, or not.
func laboring(d time.Duration, failure error) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Glance(ctx, d, c.Observer(ObserverName("v"), "t", "v", func(ctx context.Context, _ *Txn, _ percolator.Cell) error {
			return errors.Join(c.Sleep(ctx, 2500*time.Millisecond), failure)
		}))
	}
}

var errLabor = errors.New("it labors in vain")

// link is the cell that the observer of a writes, and that another one observes.
var link = percolator.Cell{Table: "t", Row: "a", Column: "w"}

// linked are the observers of a and of link.
func linked(c *Client) []percolator.Observer {
	return []percolator.Observer{
		c.Observer(ObserverName("v"), "t", "v", func(_ context.Context, tx *Txn, _ percolator.Cell) error { return tx.Write(link) }),
		c.Observer(ObserverName("w"), "t", "w", nil),
	}
}

// linking runs them for a while.
func linking(d time.Duration) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) { _ = c.Glance(ctx, d, linked(c)...) }
}

// linkedAndChanged has them registered, and a change of a that they have not seen.
func linkedAndChanged(ctx context.Context, c *Client) error {
	if err := c.Work(ctx, linked(c)...); err != nil {
		return err
	}
	return write(ctx, c, a)
}

// ownership are the programs. Those that are Alone end long after their last fault, so
// that the workers can do what is left.
func ownership() []program {
	observed, ab, two, many := []percolator.Cell{a}, []percolator.Cell{a, b}, []string{"one", "two"}, rows(8)
	const long, longer = 11 * time.Second, 16 * time.Second
	name := ObserverName("v")
	return []program{
		{Program{Name: "two owners, one-phase, anything", Options: onePhase, Owned: true, Apart: true, Setup: changed(a), Clients: clients{glancer, glancer}, Observed: observed, Budget: Budget{Die: 1, Lose: 1, Late: 1, Twice: 1}}, sparse},
		{Program{Name: "two owners, 2PC, crash and expiry", Options: plain2PC, Owned: true, Apart: true, Setup: changed(a), Clients: clients{glancer, glancer}, Observed: observed, Budget: Budget{Die: 1, Expire: 1}}, sparse},
		{Program{Name: "two owners, then one or none, and a writer", Options: plain2PC, Owned: true, Apart: true, Setup: changed(a), Clients: clients{glancer, glancer, writer(a)}, Observed: observed, Budget: Budget{Die: 1, Move: 2}}, sparse},
		{Program{Name: "two owners that lose their cells, no other worker", Options: onePhase, Owned: true, Apart: true, Alone: true, Setup: changed(a, b), Clients: clients{running(0, long, name), running(0, long, name)}, Observed: ab, Budget: Budget{Die: 1, Move: 2}}, sparse},
		{Program{Name: "nobody owns a cell for a while", Options: onePhase, Owned: true, Unowned: 2500 * time.Millisecond, Apart: true, Alone: true, Setup: changed(a, b), Clients: clients{running(0, long, name)}, Observed: ab, Budget: Budget{Move: 2}}, whole},
		{Program{Name: "the only owner loses a cell that waits", Options: plain2PC, Owned: true, Apart: true, Alone: true, Serial: true, Setup: changed(a, b), Clients: clients{running(0, long, name)}, Observed: ab, Budget: Budget{Move: 2}}, sparse},
		{Program{Name: "owners that run {A}, {A, B} and {B}", Options: onePhase, Owned: true, Apart: true, Alone: true, Setup: observedBy(two, a), Clients: clients{running(0, long, "one"), running(0, long, two...), running(0, long, "two")}, Observed: observed, Observers: two, Budget: Budget{Die: 1, Move: 2}}, sparse},
		{Program{Name: "owners of a chain of observers", Options: onePhase, Owned: true, Apart: true, Alone: true, Setup: linkedAndChanged, Clients: clients{linking(long), linking(long)}, Observed: []percolator.Cell{a, link}, Budget: Budget{Die: 1, Move: 2}}, sparse},
		{Program{Name: "claim of a worker that dies", Options: onePhase, Owned: true, Apart: true, Alone: true, Setup: changed(a), Clients: clients{laboring(longer, nil), running(1200*time.Millisecond, longer, name)}, Observed: observed, Budget: Budget{Leave: 1}}, sparse},
		{Program{Name: "claim that is written late", Options: onePhase, Owned: true, Apart: true, Alone: true, Setup: changed(a), Clients: clients{laboring(3*time.Second, errLabor), running(1200*time.Millisecond, longer, name)}, Observed: observed, Budget: Budget{Late: 1, Twice: 1}}, sparse},
		{Program{Name: "members that run {A}, {A, B} and {B}", Options: onePhase, Alone: true, Setup: observedBy(two, a), Clients: clients{running(0, longer, "one"), running(0, longer, two...), running(0, longer, "two"), later(5*time.Second, many...)}, Observed: many, Observers: two, Budget: Budget{Die: 1}}, seldom},
	}
}
