package explore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// inScan reads the table row by row and, once it has come to the row of last, writes
// cell and commits within the loop.
func inScan(cell percolator.Cell, last string) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		tx, err := c.Begin(ctx, serializably)
		if err != nil {
			return
		}
		tx.Serializable()
		_ = tx.Visit(ctx, "t", func(row percolator.Row) bool {
			if row.Key == last && tx.Write(cell) == nil {
				_ = tx.Finish(ctx)
			}
			return row.Key != last
		})
	}
}

// inScanToItsEnd goes on with the loop after the commit within it, which ends it.
func inScanToItsEnd(cell percolator.Cell, last string) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		tx, err := c.Begin(ctx, serializably)
		if err != nil {
			return
		}
		tx.Serializable()
		_ = tx.Visit(ctx, "t", func(row percolator.Row) bool {
			if row.Key == last && tx.Write(cell) == nil {
				_ = tx.Finish(ctx)
			}
			return true
		})
	}
}

// abandonsInScan rolls back within the loop, and writes in another transaction.
func abandonsInScan(ctx context.Context, c *Client) {
	tx, err := c.Begin(ctx)
	if err != nil {
		return
	}
	_ = tx.Visit(ctx, "t", func(percolator.Row) bool {
		if tx.Write(a) == nil {
			_ = tx.Abandon(ctx)
		}
		return true
	})
	_ = write(ctx, c, b)
}

// announced writes cells, and lets others know its start timestamp.
func announced(cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Update(ctx, func(tx *Txn) error {
			tx.Announce(ctx)
			for _, cell := range cells {
				if err := tx.Write(cell); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// announcedLock locks a cell and writes another, and lets others know of it.
func announcedLock(locked, written percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Update(ctx, func(tx *Txn) error {
			tx.Announce(ctx)
			if _, err := tx.Lock(ctx, locked); err != nil {
				return err
			}
			return tx.Write(written)
		})
	}
}

// asker asks for the outcome of what others have begun, by each of the cells.
func asker(cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		starts, err := c.Started(ctx)
		if err != nil {
			return
		}
		for _, start := range starts {
			for _, cell := range cells {
				_ = c.Ask(ctx, start, cell)
			}
		}
	}
}

// impatient writes cells with a context that may end at any call, and then asks what
// became of it.
func impatient(cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		brief, stop := c.Impatient(ctx)
		err := write(brief, c, cells...)
		stop()
		_ = c.AskAbout(ctx, err)
	}
}

// parkedRun has the run of an observer for a parked.
func parkedRun(ctx context.Context, c *Client) error {
	if err := registered(ctx, c); err != nil {
		return err
	}
	if err := write(ctx, c, a); err != nil {
		return err
	}
	o := c.Observer(ObserverName("v"), "t", "v", nil)
	o.MaxAttempts = 1
	o.Func = func(context.Context, *percolator.Txn, percolator.Cell) error { return errors.New("it fails") }
	return c.Work(ctx, o)
}

// releaser releases parked runs with a context that may end at any call, and asks what
// became of it.
func releaser(ctx context.Context, c *Client) {
	runs, err := c.DB.Parked(ctx)
	if err != nil {
		return
	}
	brief, stop := c.Impatient(ctx)
	err = c.DB.Release(brief, runs...)
	stop()
	_ = c.AskAbout(ctx, err)
}

// guarded notifies a weakly if guard is as it was read.
func guarded(how func(ctx context.Context, tx *Txn, other percolator.Cell) error, guard percolator.Cell, opts ...percolator.TxnOption) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Update(ctx, func(tx *Txn) error {
			if err := how(ctx, tx, guard); err != nil {
				return err
			}
			return tx.Hint(a)
		}, opts...)
	}
}

// impatientGuarded is guarded with a context that may end at any call, and then asks
// what became of it.
func impatientGuarded(guard percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		brief, stop := c.Impatient(ctx)
		err := c.Update(brief, func(tx *Txn) error {
			if err := forUpdate(brief, tx, guard); err != nil {
				return err
			}
			return tx.Hint(a)
		})
		stop()
		_ = c.AskAbout(ctx, err)
	}
}

// raised is brief with transactions that may get older than its history lasts.
var raised = percolator.Settings{MaxTxnAge: time.Minute, Retention: 3 * time.Minute}

// configurer changes the settings after a while.
func configurer(after time.Duration, all ...percolator.Settings) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		for _, s := range all {
			if c.Sleep(ctx, after) != nil || c.DB.Configure(ctx, s) != nil {
				return
			}
		}
	}
}

// longReader reads a, takes its time, and writes it.
func longReader(takes time.Duration) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Update(ctx, func(tx *Txn) error {
			if _, err := tx.Read(ctx, a); err != nil {
				return err
			}
			if err := c.Sleep(ctx, takes); err != nil {
				return err
			}
			return tx.Write(a)
		})
	}
}

// eraser deletes a, and collects it.
func eraser(ctx context.Context, c *Client) {
	if c.Sleep(ctx, time.Second) != nil {
		return
	}
	_ = c.Update(ctx, func(tx *Txn) error { return tx.Erase(a) })
	if c.Sleep(ctx, brief.Retention+2*time.Second) != nil {
		return
	}
	_, _ = c.DB.CollectGarbage(ctx, percolator.GCOptions{})
}

// leased are settings whose catalog lease outlasts others.
var leased = percolator.Settings{MaxTxnAge: 30 * time.Second, Retention: 2 * time.Minute, CatalogLease: 10 * time.Second}

// shortener makes the catalog lease short, and then, as soon as that holds, changes
// something else and registers an observer.
func shortener(ctx context.Context, c *Client) {
	if c.DB.Configure(ctx, percolator.Settings{CatalogLease: time.Second / 5}) != nil {
		return
	}
	if c.Sleep(ctx, 2*leased.CatalogLease+100*time.Millisecond) != nil {
		return
	}
	if c.DB.Configure(ctx, percolator.Settings{Retention: time.Minute}) != nil {
		return
	}
	_ = c.Glance(ctx, 2*time.Second, c.Observer(ObserverName("v"), "t", "v", nil))
}

// later writes cells after a while.
func later(after time.Duration, cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		if c.Sleep(ctx, after) == nil {
			_ = write(ctx, c, cells...)
		}
	}
}

// times tries to write cells until it is done, a few times.
func times(n int, cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		for range n {
			if err := write(ctx, c, cells...); err == nil || !errors.Is(err, percolator.ErrConflict) {
				return
			}
		}
	}
}

// poller reads a cell again and again.
func poller(n int, cell percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		for range n {
			reader(cell)(ctx, c)
			if c.Sleep(ctx, time.Second) != nil {
				return
			}
		}
	}
}

// rows are n cells of observed rows.
func rows(n int) []percolator.Cell {
	cells := make([]percolator.Cell, n)
	for i := range cells {
		cells[i] = percolator.Cell{Table: "t", Row: fmt.Sprintf("r%02d", i), Column: "v"}
	}
	return cells
}

// worksLater runs the observer of that name of column v, after a while, until nothing
// is left for it.
func worksLater(name string) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		if c.Sleep(ctx, time.Second/2) == nil {
			_ = c.Work(ctx, c.Observer(name, "t", "v", nil))
		}
	}
}

// accompanies runs an observer until every other client has ended.
func accompanies(name string) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) { _ = c.Accompany(ctx, c.Observer(name, "t", "v", nil)) }
}

// glancing is works in a worker that looks seldom, for a while.
func glancing(name string, d time.Duration) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) { _ = c.Glance(ctx, d, c.Observer(name, "t", "v", nil)) }
}

// observedBy has observers registered, and a change that none has seen.
func observedBy(names []string, cells ...percolator.Cell) func(context.Context, *Client) error {
	return func(ctx context.Context, c *Client) error {
		var all []percolator.Observer
		for _, name := range names {
			all = append(all, c.Observer(name, "t", "v", nil))
		}
		if err := c.Work(ctx, all...); err != nil {
			return err
		}
		return write(ctx, c, cells...)
	}
}

// leaves takes the observer out of the catalog, changes what it observed when nobody
// notifies it any more, and lets it come back.
func leaves(ctx context.Context, c *Client) {
	if c.DB.RemoveObserver(ctx, ObserverName("v")) != nil || c.Sleep(ctx, brief.CatalogLease+time.Second) != nil {
		return
	}
	_ = write(ctx, c, a)
	registrar(ctx, c)
}

// attendant runs the observer all the time, and waits in the end until nothing is left.
func attendant(ctx context.Context, c *Client) {
	_ = c.Attend(ctx, stall, c.Observer(ObserverName("v"), "t", "v", nil))
}

// hurried are settings with a catalog lease that a few slow calls outlast, and
// nothing else that they do.
var hurried = percolator.Settings{MaxTxnAge: 5 * time.Minute, Retention: time.Hour, CatalogLease: 2 * time.Second}

// long are leases that no call outlasts.
var long = []percolator.Option{percolator.WithSessionLease(time.Minute), percolator.WithLockExpiry(time.Minute)}

// each joins options.
func each(all ...[]percolator.Option) []percolator.Option { return slices.Concat(all...) }

// steps are programs of what a program may do besides transactions from beginning to
// end, and of clients whose time goes otherwise.
func steps() []program {
	observed, two := []percolator.Cell{a}, []string{"one", "two"}
	many := rows(20)
	var all []program
	for name, how := range map[string][]percolator.Option{"one-phase": onePhase, "group": group, "2PC": plain2PC} {
		all = append(all,
			program{Program{Name: "commit within a scan, " + name, Options: how, Setup: prepared, Clients: clients{inScan(a, "b"), inScanToItsEnd(b, "b")}}, whole},
			program{Program{Name: "outcome by any cell, " + name, Options: how, Clients: clients{announced(a, b), asker(b, a)}, Budget: leave}, whole},
			program{Program{Name: "outcome by a cell that was locked only, " + name, Options: how, Clients: clients{announcedLock(a, b), asker(a)}, Budget: leave}, whole},
			program{Program{Name: "outcome of what was given up, " + name, Options: how, Clients: clients{impatient(a, b), retrier(a)}, Budget: Budget{Cancel: 1}}, sparse},
			program{Program{Name: "notification under GetForUpdate, " + name, Options: how, Setup: registered, Clients: clients{guarded(forUpdate, b), writer(b)}, Observed: observed, Weak: true}, whole},
			program{Program{Name: "notification, serializable, " + name, Options: how, Setup: registered, Clients: clients{guarded(serializable, b, serializably), writer(b)}, Observed: observed, Weak: true}, whole},
		)
	}
	return append(all,
		program{Program{Name: "commit within a scan, crash", Options: plain2PC, Setup: prepared, Clients: clients{inScan(a, "b"), inScan(b, "b")}, Budget: die}, sparse},
		program{Program{Name: "rollback within a scan", Setup: prepared, Clients: clients{abandonsInScan, inScan(a, "a")}, Budget: die}, whole},
		program{Program{Name: "outcome by any cell, expiry and a reader", Options: plain2PC, Clients: clients{announced(a, b), asker(b), reader(b, a)}, Budget: Budget{Leave: 1, Expire: 1}}, sparse},
		program{Program{Name: "outcome of a notification that was given up", Options: plain2PC, Setup: registered, Clients: clients{impatientGuarded(b), writer(b)}, Observed: observed, Weak: true, Budget: Budget{Cancel: 1}}, sparse},
		program{Program{Name: "outcome of a release that was given up", Setup: parkedRun, Clients: clients{releaser}, Budget: Budget{Cancel: 1, Late: 1}}, whole},
		program{Program{Name: "outcome of a release that was given up, 2PC", Options: plain2PC, Setup: parkedRun, Clients: clients{releaser}, Budget: Budget{Cancel: 1, Late: 1}}, bounded},

		program{Program{Name: "collection and a reader whose clock stands", Setup: collected, Collects: true, Settings: brief, Clients: clients{collector, oldReader}, Still: []int{1}, Budget: Budget{Slow: 1}}, whole},
		program{Program{Name: "collection and a writer whose clock stands", Setup: collected, Collects: true, Settings: brief, Options: plain2PC, Clients: clients{collector, writer(a, b)}, Still: []int{1}, Budget: Budget{Slow: 2}}, sparse},
		program{Program{Name: "registration and a writer whose clock stands", Setup: prepared, Settings: brief, Options: plain2PC, Clients: clients{writer(a), registrar}, Still: []int{0}, Observed: observed, Budget: Budget{Slow: 2}}, sparse},

		program{Program{Name: "settings raised under a transaction", Setup: prepared, Settings: brief, Collects: true, Clients: clients{longReader(stall), eraser, configurer(brief.Retention+4*time.Second, raised)}}, whole},
		program{Program{Name: "settings raised and lowered, transactions", Setup: prepared, Settings: brief, Collects: true, Options: plain2PC, Clients: clients{longReader(6 * time.Second), eraser, configurer(5*time.Second, raised, brief)}, Budget: Budget{Slow: 1}}, sparse},
		program{Program{Name: "lease shortened twice and registration", Setup: prepared, Settings: leased, Options: each(plain2PC, long), Clients: clients{later(16500*time.Millisecond, a), shortener}, Takes: []time.Duration{time.Second}, Observed: observed}, whole},

		program{Program{Name: "calls longer than the catalog lease, 2PC", Settings: hurried, Options: each(plain2PC, long), Clients: clients{times(4, a, b)}, Takes: []time.Duration{time.Second}, Progress: true}, whole},
		program{Program{Name: "calls longer than the catalog lease, one-phase", Settings: hurried, Options: each(onePhase, long), Clients: clients{times(4, a, b)}, Takes: []time.Duration{1500 * time.Millisecond}, Progress: true}, whole},
		program{Program{Name: "calls as long as a session lease", Options: each(plain2PC, []percolator.Option{percolator.WithLockExpiry(time.Minute)}), Clients: clients{times(4, a, b)}, Takes: []time.Duration{sessionLease / 2}, Progress: true}, whole},
		program{Program{Name: "prewrites that outlast the expiry of their locks", Options: each(plain2PC, []percolator.Option{percolator.WithSessionLease(time.Minute)}), Clients: clients{times(3, rows(8)...), poller(60, rows(1)[0])}, Takes: []time.Duration{lockExpiry / 4}, Progress: true}, whole},

		program{Program{Name: "two observers in two processes", Options: onePhase, Setup: observedBy(two, a), Clients: clients{glancing("one", 1500*time.Millisecond), glancing("two", 1500*time.Millisecond)}, Observed: observed, Observers: two, Budget: die}, sparse},
		program{Program{Name: "two observers in two processes, 2PC and a writer", Options: plain2PC, Setup: observedBy(two, a), Clients: clients{glancing("one", 1500*time.Millisecond), glancing("two", 2500*time.Millisecond), writer(a)}, Observed: observed, Observers: two, Budget: Budget{Die: 1, Expire: 1}}, sparse},
		program{Program{Name: "two observers in two processes, many cells", Options: onePhase, Setup: observedBy(two, many...), Clients: clients{worksLater("one"), accompanies("two")}, Observed: many, Observers: two}, seldom},

		program{Program{Name: "an observer that leaves and comes back, writer", Removes: true, Options: onePhase, Settings: brief, Setup: changed(a), Clients: clients{leaves, writer(a)}, Observed: observed, Budget: Budget{Die: 1, Slow: 1}}, sparse},
		program{Program{Name: "an observer that leaves and comes back, worker", Removes: true, Options: onePhase, Settings: brief, Setup: changed(a), Clients: clients{leaves, attendant}, Observed: observed, Idle: true, Budget: die}, sparse},
	)
}
