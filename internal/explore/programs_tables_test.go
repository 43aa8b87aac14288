package explore

import (
	"context"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// q is in a table whose history is shorter than that of a and b.
var q = percolator.Cell{Table: "queue", Row: "q", Column: "v"}

// shortly are its settings, under those of brief.
var shortly = percolator.TableSettings{MaxTxnAge: time.Second, Retention: 4 * time.Second}

// shortTable gives the queue its settings, which collections go by, and writes all cells.
func shortTable(ctx context.Context, c *Client) error {
	if err := c.DB.ConfigureTable(ctx, q.Table, shortly); err != nil {
		return err
	}
	if err := c.Sleep(ctx, 4*brief.CatalogLease+brief.MaxTxnAge); err != nil {
		return err
	}
	if _, err := c.DB.CollectGarbage(ctx, percolator.GCOptions{}); err != nil {
		return err
	}
	return write(ctx, c, q, a, b)
}

// replacesAndCollects writes the short table's cell, waits until its older versions can be
// collected, and collects there.
func replacesAndCollects(ctx context.Context, c *Client) {
	_ = write(ctx, c, q)
	collectsShort(ctx, c)
}

func collectsShort(ctx context.Context, c *Client) {
	if c.Sleep(ctx, shortly.Retention+time.Second) == nil {
		_, _ = c.DB.CollectGarbage(ctx, percolator.GCOptions{Within: shortly.Retention})
	}
}

// guards writes the short table's cell and locks another one.
func guards(locked percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Update(ctx, func(tx *Txn) error {
			if _, err := tx.Lock(ctx, locked); err != nil {
				return err
			}
			return tx.Write(q)
		})
	}
}

// tables are programs of transactions over tables that are kept for different times.
func tables() []program {
	return []program{
		{Program{Name: "short table, dead writer", Options: plain2PC, Setup: shortTable, Collects: true, Settings: brief, Clients: clients{writer(q, a), replacesAndCollects}, Budget: Budget{Die: 1}}, bounded},
		{Program{Name: "short table, dead writer, lost reply", Options: plain2PC, Setup: shortTable, Collects: true, Settings: brief, Clients: clients{writer(q, a), replacesAndCollects}, Budget: Budget{Die: 1, Lose: 1}}, sparse},
		{Program{Name: "short table, groups, slow writer", Options: group, Setup: shortTable, Collects: true, Settings: brief, Clients: clients{writer(q, a), replacesAndCollects}, Budget: Budget{Slow: 2}}, sparse},
		{Program{Name: "short table, slow writer in one phase", Options: onePhase, Setup: shortTable, Collects: true, Settings: brief, Clients: clients{writer(q, a), replacesAndCollects}, Budget: Budget{Slow: 2, Lose: 1}}, sparse},
		{Program{Name: "short table, dead guard", Options: plain2PC, Setup: shortTable, Collects: true, Settings: brief, Clients: clients{guards(a), writer(a), replacesAndCollects}, Budget: Budget{Die: 1}}, sparse},
		{Program{Name: "short table, two collectors of which one dies", Options: plain2PC, Setup: shortTable, Collects: true, Settings: brief, Clients: clients{writer(q, a, b), replacesAndCollects, collectsShort}, Budget: Budget{Die: 2}}, sparse},
	}
}
