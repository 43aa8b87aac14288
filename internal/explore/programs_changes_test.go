package explore

import (
	"context"
	"errors"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// Programs of observers of old values: the explorer's observers check what they are told.

// seenLongAgo has an observer that has seen a version of a which can be collected at once, and not the ones since.
func seenLongAgo(ctx context.Context, c *Client) error {
	err := changed(a)(ctx, c)
	if err == nil {
		err = registered(ctx, c)
	}
	if err == nil {
		err = c.Update(ctx, func(tx *Txn) error { return tx.WriteLong(a) })
	}
	if err == nil {
		err = registered(ctx, c)
	}
	return errors.Join(err, write(ctx, c, a), write(ctx, c, a), c.Sleep(ctx, stall))
}

// seenInShortTable is the same in a table of short retention.
func seenInShortTable(ctx context.Context, c *Client) error {
	if err := shortTable(ctx, c); err != nil {
		return err
	}
	work := func() error { return c.Work(ctx, c.Observer(ObserverName("v"), q.Table, q.Column, nil)) }
	return errors.Join(work(), write(ctx, c, q), work(), write(ctx, c, q), write(ctx, c, q), c.Sleep(ctx, shortly.Retention+time.Second))
}

// glancesShort looks at the short table.
func glancesShort(ctx context.Context, c *Client) {
	_ = c.Glance(ctx, 1500*time.Millisecond, c.Observer(ObserverName("v"), q.Table, q.Column, nil))
}

// erasesAndCollects deletes what the observer has seen, and collects later.
func erasesAndCollects(ctx context.Context, c *Client) {
	_ = c.Update(ctx, func(tx *Txn) error { return tx.Erase(a) })
	if c.Sleep(ctx, stall) == nil {
		collector(ctx, c)
	}
}

// changes are programs of observers of old values.
func changes() []program {
	observed := []percolator.Cell{a}
	old := func(name string, budget Budget, how how, all ...func(context.Context, *Client)) program {
		return program{Program{Name: "old value, " + name, Options: onePhase, Settings: brief, Setup: seenLongAgo, Collects: true, OldValues: true, Clients: all, Observed: observed, Budget: budget}, how}
	}
	twoPhases := func(p program) program {
		p.Name, p.Options = p.Name+", 2PC", plain2PC
		return p
	}
	removes := func(p program) program {
		p.Removes = true
		return p
	}
	short := old("short table", Budget{Die: 1, Slow: 1}, sparse, collectsShort, glancesShort)
	short.Setup, short.Observed = seenInShortTable, []percolator.Cell{q}
	return []program{
		old("collection and a run", Budget{Die: 1, Slow: 1}, bounded, collector, glancer),
		old("collection and a run, lost reply", lose, bounded, collector, glancer),
		twoPhases(old("collection and a run", Budget{Die: 1, Expire: 1}, bounded, collector, glancer)),
		old("two collections, a run and a writer", Budget{Die: 1, Slow: 1}, sparse, collector, overwriteAndCollect, glancer),
		twoPhases(old("collection, two runs and a writer", Budget{Die: 1, Expire: 1}, sparse, collector, glancer, glancer, writer(a))),
		removes(old("deleted, collected and written again", Budget{Die: 1, Slow: 1}, sparse, erasesAndCollects, attendant, later(stall, a))),
		removes(old("removed and back, collection", Budget{Die: 1, Slow: 1}, sparse, leaves, collector, attendant)),
		removes(old("removed and back, a run under way", Budget{Slow: 2}, sparse, leaves, glancer)),
		short,
	}
}
