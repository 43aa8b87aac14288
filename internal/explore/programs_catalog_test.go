package explore

import (
	"context"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// alsoReads begins a transaction that writes cells, and reads the catalog while it
// commits, as a process does that is told of a new one.
func alsoReads(cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		tx, err := c.Begin(ctx)
		if err != nil {
			return
		}
		for _, cell := range cells {
			if err := tx.Write(cell); err != nil {
				return
			}
		}
		defer beside(ctx, c)()
		_ = tx.Finish(ctx)
	}
}

// impatientReads gives up a commit, and reads the catalog a little later.
func impatientReads(cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		brief, stop := c.Impatient(ctx)
		_ = write(brief, c, cells...)
		stop()
		if c.Sleep(ctx, time.Second/5) == nil {
			_, _ = c.DB.Observers(ctx)
		}
	}
}

// beside reads the catalog beside what else the client does, and returns what waits for it.
func beside(ctx context.Context, c *Client) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		// This call has a name of its own, so that the schedule names every later one.
		_, err := c.DB.Store().Read(ctx, []rowstore.RowRead{{Table: "beside", Row: c.Name}})
		if err == nil {
			_, _ = c.DB.Observers(ctx)
		}
	})
	return wg.Wait
}

// opens is a process that starts, and writes cells.
func opens(cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		if c.Reopen(ctx) == nil {
			_ = write(ctx, c, cells...)
		}
	}
}

// elsewhere has written, but not the cell of the programs: the sweep does not put a
// notification there, which would make up for one that is lost.
func elsewhere(ctx context.Context, c *Client) error { return write(ctx, c, gone) }

// Where a call must stall while a publisher does all of its work, the schedules are random:
// in order, that comes far too late.
//
// The publisher is the first client of each program: the explorer lets it come to where
// it waits before it varies what the others do.

// announces publishes an observer, sweeps for it, and ends. A lease passes only where
// somebody goes by an older catalog.
func announces(name string) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Glance(ctx, time.Second/2, c.Observer(name, "t", "v", nil))
	}
}

// refreshed reads the catalog a little before the collection ends that began with the
// run, and writes cells a little after it.
func refreshed(cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		if c.Sleep(ctx, brief.CatalogLease*4/5) != nil {
			return
		}
		if _, err := c.DB.Observers(ctx); err != nil {
			return
		}
		if c.Sleep(ctx, brief.CatalogLease*3/10) == nil {
			_ = write(ctx, c, cells...)
		}
	}
}

// collectsAndAnnounces collects garbage, and publishes an observer at once.
func collectsAndAnnounces(ctx context.Context, c *Client) {
	collector(ctx, c)
	registrar(ctx, c)
}

// catalogs are programs of who goes by which catalog.
func catalogs() []program {
	observed, ab, two := []percolator.Cell{a}, []percolator.Cell{a, b}, []string{"one", "two"}
	var all []program
	for name, how := range map[string][]percolator.Option{"one-phase": onePhase, "group": group, "2PC": plain2PC} {
		all = append(all,
			program{Program{Name: "new observer and a commit by an old catalog, " + name, Options: how, Setup: elsewhere, Clients: clients{announces("o v"), alsoReads(a)}, Observed: observed, Budget: Budget{Stall: 1}}, random},
			program{Program{Name: "new observer and a commit by an old catalog, crash, " + name, Options: how, Settings: brief, Setup: elsewhere, Clients: clients{registrar, alsoReads(b, a)}, Observed: ab, Budget: Budget{Die: 1, Slow: 1}}, sparse},
			program{Program{Name: "new observer and a process that starts, " + name, Options: how, Setup: elsewhere, Clients: clients{announces("o v"), opens(a)}, Observed: observed}, bounded},
			program{Program{Name: "new observer and a commit that was given up, " + name, Options: how, Setup: elsewhere, Clients: clients{announces("o v"), impatientReads(a)}, Observed: observed, Budget: Budget{Cancel: 1, Stall: 1}}, random},
		)
	}
	return append(all,
		program{Program{Name: "new observer and a late commit by an old catalog", Options: onePhase, Settings: brief, Setup: elsewhere, Clients: clients{registrar, alsoReads(a)}, Observed: observed, Budget: Budget{Late: 1, Twice: 1, Slow: 1}}, sparse},
		program{Program{Name: "new observer and a process that is killed", Options: onePhase, Settings: brief, Setup: elsewhere, Clients: clients{registrar, alsoReads(a)}, Observed: observed, Budget: Budget{Leave: 1, Lose: 1}}, sparse},
		program{Program{Name: "second observer and the worker of the first", Options: onePhase, Setup: observedBy(two[:1], a), Clients: clients{glancing(two[0], 1500*time.Millisecond), announces(two[1])}, Observed: observed, Observers: two}, sparse},
		program{Program{Name: "new observer, collection, and an old catalog", Options: onePhase, Settings: brief, Setup: elsewhere, Collects: true, Clients: clients{collector, registrar, alsoReads(a)}, Observed: observed, Budget: Budget{Slow: 3}}, sparse},
		program{Program{Name: "new observer after a collection, and a catalog read meanwhile", Options: onePhase, Settings: brief, Setup: elsewhere, Collects: true, Clients: clients{refreshed(a), collectsAndAnnounces}, Observed: observed}, bounded},
	)
}
