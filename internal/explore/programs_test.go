package explore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/percolator"
)

var (
	a = percolator.Cell{Table: "t", Row: "a", Column: "v"}
	b = percolator.Cell{Table: "t", Row: "b", Column: "v"}
	// In a store of its own, where a program has one.
	far = percolator.Cell{Table: "far", Row: "f", Column: "v"}
	// Beside a, unobserved.
	aside = percolator.Cell{Table: "t", Row: "a", Column: "other"}
	// Deleted by the setup of collected.
	gone = percolator.Cell{Table: "t", Row: "gone", Column: "v"}
)

type clients = []func(context.Context, *Client)

var (
	onePhase = []percolator.Option{}
	group    = []percolator.Option{coretest.WithoutOnePhase()}
	deferred = []percolator.Option{coretest.WithoutGroups()}
	plain2PC = []percolator.Option{coretest.WithoutGroups(), coretest.WithoutDeferred()}
)

// writer writes cells without reading.
func writer(cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) { _ = write(ctx, c, cells...) }
}

func write(ctx context.Context, c *Client, cells ...percolator.Cell) error {
	return c.Update(ctx, func(tx *Txn) error {
		for _, cell := range cells {
			if err := tx.Write(cell); err != nil {
				return err
			}
		}
		return nil
	})
}

// retrier is a writer that begins again after a conflict, once.
func retrier(cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		if err := write(ctx, c, cells...); errors.Is(err, percolator.ErrConflict) {
			_ = write(ctx, c, cells...)
		}
	}
}

// longWriter writes values that do not travel with their locks.
func longWriter(cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Update(ctx, func(tx *Txn) error {
			for _, cell := range cells {
				if err := tx.WriteLong(cell); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// transferOf reads the cells and writes them.
func transferOf(cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Update(ctx, func(tx *Txn) error {
			for _, cell := range cells {
				if _, err := tx.Read(ctx, cell); err != nil {
					return err
				}
			}
			for _, cell := range cells {
				if err := tx.Write(cell); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func reader(cells ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Update(ctx, func(tx *Txn) error {
			for _, cell := range cells {
				if _, err := tx.Read(ctx, cell); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// scanner reads everything in one scan.
func scanner(ctx context.Context, c *Client) {
	_ = c.Update(ctx, func(tx *Txn) error { return tx.ReadAll(ctx, "t", a, b) })
}

// prepared sets a and b.
func prepared(ctx context.Context, c *Client) error { return write(ctx, c, a, b) }

// preparedFar sets a, and a cell in another store.
func preparedFar(ctx context.Context, c *Client) error {
	return errors.Join(write(ctx, c, a), write(ctx, c, far))
}

// skew reads both cells and writes one.
func skew(cell percolator.Cell, how func(ctx context.Context, tx *Txn, other percolator.Cell) error, opts ...percolator.TxnOption) func(context.Context, *Client) {
	other := a
	if cell == a {
		other = b
	}
	return func(ctx context.Context, c *Client) {
		_ = c.Update(ctx, func(tx *Txn) error {
			if err := how(ctx, tx, other); err != nil {
				return err
			}
			return tx.Write(cell)
		}, opts...)
	}
}

func forUpdate(ctx context.Context, tx *Txn, other percolator.Cell) error {
	_, err := tx.Lock(ctx, other)
	return err
}

var serializably = percolator.WithIsolation(percolator.Serializable)

func serializable(ctx context.Context, tx *Txn, other percolator.Cell) error {
	tx.Serializable()
	_, err := tx.Read(ctx, other)
	return err
}

func serializableScan(ctx context.Context, tx *Txn, _ percolator.Cell) error {
	tx.Serializable()
	return tx.ReadAll(ctx, "t", a, b)
}

// brief are settings of programs in which the catalog, or history, gets old.
var brief = percolator.Settings{MaxTxnAge: 4 * time.Second, Retention: 10 * time.Second, CatalogLease: 2 * time.Second}

// stall is longer than anything that brief allows to last.
const stall = 30 * time.Second

// collected leaves two versions of a and b, of which the older can be collected at
// once, and a cell whose delete can.
func collected(ctx context.Context, c *Client) error {
	err := c.Update(ctx, func(tx *Txn) error { return errors.Join(tx.Write(a), tx.WriteLong(b), tx.Write(gone)) })
	if err != nil {
		return err
	}
	now, err := c.DB.Now(ctx)
	if err != nil {
		return err
	}
	c.Remember("old", now)
	if err := c.Sleep(ctx, time.Second); err != nil {
		return err
	}
	err = c.Update(ctx, func(tx *Txn) error { return errors.Join(tx.Write(a), tx.Write(b), tx.Erase(gone)) })
	if err != nil {
		return err
	}
	return c.Sleep(ctx, stall)
}

func collector(ctx context.Context, c *Client) {
	_, _ = c.DB.CollectGarbage(ctx, percolator.GCOptions{})
}

// overwriteAndCollect is what leaves a transaction's lock without its record, if
// locks are not resolved first.
func overwriteAndCollect(ctx context.Context, c *Client) {
	_ = write(ctx, c, a)
	_, _ = c.DB.CollectGarbage(ctx, percolator.GCOptions{})
}

// oldReader reads at a snapshot that is being collected.
func oldReader(ctx context.Context, c *Client) {
	_ = c.Snapshot(ctx, c.Recall("old"), func(tx *Txn) error {
		for _, cell := range []percolator.Cell{a, b, gone} {
			if _, err := tx.Read(ctx, cell); err != nil {
				return err
			}
		}
		return nil
	})
}

// worker runs an observer of column v until nothing is left for it.
func worker(ctx context.Context, c *Client) { _ = c.Work(ctx, c.Observer("o v", "t", "v", nil)) }

// glancer looks at what is there at the beginning, and once more.
func glancer(ctx context.Context, c *Client) {
	_ = c.Glance(ctx, 1500*time.Millisecond, c.Observer("o v", "t", "v", nil))
}

// registrar lasts as long as it takes to publish the observer and sweep for it.
func registrar(ctx context.Context, c *Client) {
	_ = c.Glance(ctx, 2*brief.CatalogLease, c.Observer("o v", "t", "v", nil))
}

// registered has the observer registered and swept before the run begins.
func registered(ctx context.Context, c *Client) error {
	return c.Work(ctx, c.Observer("o v", "t", "v", nil))
}

// changed has the observer registered, and a first change that it has not seen.
func changed(cells ...percolator.Cell) func(ctx context.Context, c *Client) error {
	return func(ctx context.Context, c *Client) error {
		if err := registered(ctx, c); err != nil {
			return err
		}
		return write(ctx, c, cells...)
	}
}

// deleted has the observer registered and a delete, old enough to be collected,
// that it has not seen.
func deleted(ctx context.Context, c *Client) error {
	if err := changed(a)(ctx, c); err != nil {
		return err
	}
	if err := registered(ctx, c); err != nil {
		return err
	}
	if err := c.Update(ctx, func(tx *Txn) error { return tx.Erase(a) }); err != nil {
		return err
	}
	return c.Sleep(ctx, stall)
}

// hint notifies a cell weakly, and writes another.
func hint(cell percolator.Cell, written ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Update(ctx, func(tx *Txn) error {
			if err := tx.Hint(cell); err != nil {
				return err
			}
			for _, w := range written {
				if err := tx.Write(w); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// chained is a worker whose observer writes another row, too.
func chained(ctx context.Context, c *Client) {
	_ = c.Glance(ctx, 1500*time.Millisecond, c.Observer("o v", "t", "v", func(_ context.Context, tx *Txn, cell percolator.Cell) error {
		return tx.Write(percolator.Cell{Table: "out", Row: cell.Row, Column: "w"})
	}))
}

// How a program is explored.
type how int

const (
	whole   how = iota // to its end: two clients and at most one crash
	bounded            // in order up to a limit, and at random
	random             // at random: its workers race themselves, so that no order is repeatable
	sparse             // as bounded, a quarter as often: its runs are long
	seldom             // as random, a few times: its runs are longer still
)

type program struct {
	Program
	how how
}

// variants gives a program each of some budgets.
func variants(h how, p Program, budgets map[string]Budget) []program {
	var all []program
	for name, budget := range budgets {
		q := p
		q.Name, q.Budget = p.Name+", "+name, budget
		all = append(all, program{q, h})
	}
	slices.SortFunc(all, func(a, b program) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

var (
	die    = Budget{Die: 1}
	leave  = Budget{Leave: 1}
	lose   = Budget{Lose: 1}
	late   = Budget{Late: 1}
	twice  = Budget{Twice: 1}
	expire = Budget{Expire: 1}
	fails  = Budget{Fail: 1}
)

// programs are what the explorer runs. It is long because it is a list.
func programs() []program {
	ab, observed := []percolator.Cell{a, b}, []percolator.Cell{a}
	farTable := map[string]string{"far": "side"}
	all := []program{
		{Program{Name: "write-write, one row, crash and lost reply", Options: deferred, Clients: clients{writer(a), writer(a)}, Budget: Budget{Die: 1, Lose: 1}}, bounded},
		{Program{Name: "write-write, two rows, group, crash", Options: group, Clients: clients{writer(a, b), writer(b, a)}, Budget: die}, whole},
		{Program{Name: "write-write, two rows, one-phase, anything", Clients: clients{writer(a, b), writer(b, a)}, Budget: Budget{Die: 1, Lose: 1, Late: 1, Twice: 1}}, whole},
		{Program{Name: "write-write, two rows, retries", Options: plain2PC, Clients: clients{retrier(a, b), retrier(b, a)}, Budget: Budget{Die: 1, Expire: 1}}, bounded},
		{Program{Name: "three writers in a ring", Options: plain2PC, Clients: clients{writer(a, b), writer(b, gone), writer(gone, a)}, Budget: die}, bounded},
		{Program{Name: "two cells in the primary's row", Options: plain2PC, Clients: clients{writer(a, aside, b), reader(aside, b)}, Budget: Budget{Die: 1, Expire: 1}}, bounded},
		{Program{Name: "long values", Options: plain2PC, Setup: prepared, Clients: clients{longWriter(a, b), reader(a, b)}, Budget: Budget{Die: 1, Expire: 1}}, bounded},

		{Program{Name: "transfer and full read, crash", Options: plain2PC, Setup: prepared, Clients: clients{transferOf(a, b), reader(a, b)}, Budget: die}, whole},
		{Program{Name: "transfer and full read, lost reply", Options: plain2PC, Setup: prepared, Clients: clients{transferOf(a, b), reader(a, b)}, Budget: lose}, whole},
		{Program{Name: "transfer and scan, crash", Options: plain2PC, Setup: prepared, Clients: clients{transferOf(a, b), scanner}, Budget: die}, whole},
		{Program{Name: "transfer and full read, group, crash", Options: group, Setup: prepared, Clients: clients{transferOf(a, b), reader(b, a)}, Budget: die}, whole},
		{Program{Name: "transfers, one-phase, anything", Options: onePhase, Setup: prepared, Clients: clients{transferOf(a, b), transferOf(a, b)}, Budget: Budget{Die: 1, Lose: 1, Twice: 1}}, whole},

		{Program{Name: "reader and dead writer, each step", Options: plain2PC, Clients: clients{writer(a, b), reader(b, a)}, Budget: leave}, whole},
		{Program{Name: "reader and dead writer, expiry", Options: plain2PC, Clients: clients{writer(a, b), reader(b, a)}, Budget: Budget{Die: 1, Expire: 1}}, whole},
		{Program{Name: "two resolvers and the owner", Options: plain2PC, Clients: clients{writer(a, b), reader(b), reader(a)}, Budget: expire}, bounded},
		{Program{Name: "two resolvers and a dead owner", Options: plain2PC, Clients: clients{writer(a, b), reader(b), reader(a)}, Budget: Budget{Leave: 1, Expire: 1}}, bounded},
		{Program{Name: "late prewrite after a fence", Options: plain2PC, Clients: clients{writer(a, b), reader(b)}, Budget: Budget{Late: 1, Expire: 1}}, bounded},
		{Program{Name: "dead writer's prewrite after a fence", Options: plain2PC, Clients: clients{writer(a, b), reader(b)}, Budget: Budget{Leave: 1, Expire: 1}}, whole},
		{Program{Name: "session that is only slow", Options: plain2PC, Clients: clients{writer(a, b), reader(b, a)}, Budget: expire}, whole},
		{Program{Name: "session that is only slow, time passes", Options: plain2PC, Clients: clients{writer(a, b), reader(b, a)}, Budget: Budget{Slow: 3}}, bounded},
		{Program{Name: "lost reply at the commit point, reader", Options: plain2PC, Clients: clients{writer(a, b), reader(a, b)}, Budget: lose}, whole},
		{Program{Name: "lost reply at the commit point, overwritten", Options: plain2PC, Clients: clients{writer(a, b), retrier(a)}, Budget: Budget{Lose: 2, Expire: 1}}, bounded},

		{Program{Name: "one-phase against two-phase, crash", Setup: prepared, Clients: clients{transferOf(a, b), transferOf(b, a)}, Each: [][]percolator.Option{onePhase, plain2PC}, Budget: die}, whole},
		{Program{Name: "one-phase against two-phase, lost reply", Setup: prepared, Clients: clients{transferOf(a, b), transferOf(b, a)}, Each: [][]percolator.Option{onePhase, plain2PC}, Budget: lose}, whole},
		{Program{Name: "one-phase against two-phase and a reader", Setup: prepared, Clients: clients{transferOf(a, b), transferOf(b, a), reader(a, b)}, Each: [][]percolator.Option{onePhase, plain2PC}, Budget: Budget{Die: 1, Expire: 1}}, bounded},

		{Program{Name: "deferred prewrites, store crash", Options: deferred, Clients: clients{writer(a, b), reader(a, b)}, Budget: Budget{Crash: 1}}, whole},
		{Program{Name: "deferred prewrites of two, store crash", Options: deferred, Clients: clients{writer(a, b), writer(b, a)}, Budget: Budget{Crash: 1, Die: 1}}, bounded},

		{Program{Name: "two stores, crash", Tables: farTable, Setup: preparedFar, Clients: clients{transferOf(far, a), reader(a, far)}, Budget: die}, whole},
		{Program{Name: "two stores, lost reply", Tables: farTable, Setup: preparedFar, Clients: clients{transferOf(far, a), reader(far, a)}, Budget: lose}, whole},
		{Program{Name: "two stores, writers and expiry", Tables: farTable, Clients: clients{writer(far, a), writer(a, far)}, Budget: Budget{Die: 1, Expire: 1}}, bounded},
		{Program{Name: "two stores, each may crash", Tables: farTable, Clients: clients{writer(far, a), reader(a, far)}, Budget: Budget{Crash: 2, Lose: 1}}, bounded},
		{Program{Name: "two stores, writes outside the main one", Tables: farTable, Clients: clients{writer(far), transferOf(far, a)}, Budget: Budget{Die: 1, Fail: 1, Expire: 1}}, bounded},

		{Program{Name: "GetForUpdate against skew, crash", Options: plain2PC, Setup: prepared, Clients: clients{skew(a, forUpdate), skew(b, forUpdate)}, Budget: die}, whole},
		{Program{Name: "GetForUpdate on one side, crash", Options: plain2PC, Setup: prepared, Clients: clients{skew(a, forUpdate), writer(b)}, Budget: die}, whole},
		{Program{Name: "GetForUpdate on one side, one-phase", Setup: prepared, Clients: clients{skew(a, forUpdate), writer(b)}, Each: [][]percolator.Option{onePhase, plain2PC}, Budget: Budget{Die: 1, Lose: 1}}, whole},
		{Program{Name: "serializable cells, crash", Options: plain2PC, Setup: prepared, Clients: clients{skew(a, serializable, serializably), skew(b, serializable, serializably)}, Budget: die}, whole},
		{Program{Name: "serializable cells, one-phase, lost reply", Options: onePhase, Setup: prepared, Clients: clients{skew(a, serializable, serializably), skew(b, serializable, serializably)}, Budget: Budget{Lose: 1, Die: 1, Twice: 1}}, whole},
		{Program{Name: "serializable, one-phase against two-phase", Setup: prepared, Clients: clients{skew(a, serializable, serializably), skew(b, serializable, serializably)}, Each: [][]percolator.Option{onePhase, plain2PC}, Budget: die}, whole},
		{Program{Name: "serializable scans", Options: plain2PC, Clients: clients{skew(a, serializableScan, serializably), skew(b, serializableScan, serializably)}}, whole},
		{Program{Name: "serializable scans, crash and expiry", Options: plain2PC, Setup: prepared, Clients: clients{skew(a, serializableScan, serializably), skew(b, serializableScan, serializably)}, Budget: Budget{Die: 1, Expire: 1}}, bounded},

		{Program{Name: "collection and slow reader", Setup: collected, Collects: true, Settings: brief, Clients: clients{collector, oldReader}, Budget: Budget{Slow: 1}}, whole},
		{Program{Name: "collection and slow reader, lost reply", Setup: collected, Collects: true, Settings: brief, Clients: clients{collector, oldReader}, Budget: lose}, whole},
		{Program{Name: "collection and slow writer", Options: plain2PC, Setup: collected, Collects: true, Settings: brief, Stall: stall, Clients: clients{collector, writer(a, b)}, Budget: Budget{Expire: 1, Slow: 1}}, bounded},
		{Program{Name: "collection, overwritten and dead writer", Options: plain2PC, Setup: collected, Collects: true, Settings: brief, Stall: stall, Clients: clients{overwriteAndCollect, writer(a, b)}, Budget: Budget{Die: 1, Expire: 1}}, bounded},
		{Program{Name: "two collections, writer and reader", Options: plain2PC, Setup: collected, Collects: true, Settings: brief, Stall: stall, Clients: clients{collector, overwriteAndCollect, writer(b, a), oldReader}, Budget: Budget{Die: 1, Expire: 1, Slow: 2}}, bounded},
		{Program{Name: "collection and a delete that nobody saw", Options: plain2PC, Setup: deleted, Collects: true, Settings: brief, Clients: clients{collector, glancer}, Observed: observed, Budget: Budget{Die: 1, Slow: 1}}, bounded},

		{Program{Name: "strong notification, 2PC, crash", Options: plain2PC, Serial: true, Setup: registered, Clients: clients{writer(a), glancer}, Observed: observed, Budget: die}, whole},
		{Program{Name: "strong notification, one-phase, crash", Options: onePhase, Setup: registered, Clients: clients{writer(a), glancer}, Observed: observed, Budget: die}, whole},
		{Program{Name: "strong notification, one-phase, lost reply", Options: onePhase, Setup: registered, Clients: clients{writer(a), glancer}, Observed: observed, Budget: lose}, whole},
		{Program{Name: "second change, one-phase, crash", Options: onePhase, Setup: changed(a), Clients: clients{writer(a), glancer}, Observed: observed, Budget: die}, whole},
		{Program{Name: "second change, 2PC, crash", Options: plain2PC, Serial: true, Setup: changed(a), Clients: clients{writer(a), glancer}, Observed: observed, Budget: die}, whole},
		{Program{Name: "observed secondary, crash of writer or worker", Options: plain2PC, Setup: registered, Clients: clients{writer(b, a), worker}, Observed: ab, Budget: Budget{Die: 1, Expire: 1}}, random},
		{Program{Name: "observed secondary, lost reply", Options: plain2PC, Setup: changed(a), Clients: clients{writer(b, a), worker}, Observed: ab, Budget: Budget{Lose: 1, Late: 1}}, random},
		{Program{Name: "two workers", Options: onePhase, Setup: changed(a, b), Clients: clients{worker, worker}, Observed: ab, Budget: die}, random},
		{Program{Name: "two workers, 2PC, slow", Options: plain2PC, Setup: changed(a), Clients: clients{glancer, glancer}, Observed: observed, Budget: Budget{Die: 1, Expire: 1}}, bounded},
		{Program{Name: "run with an output elsewhere", Options: plain2PC, Setup: changed(a), Clients: clients{chained, writer(a)}, Observed: observed, Budget: Budget{Die: 1, Expire: 1}}, bounded},
		{Program{Name: "weak notification, one-phase, crash", Options: onePhase, Setup: registered, Clients: clients{hint(a, aside), glancer}, Observed: observed, Weak: true, Budget: die}, whole},
		{Program{Name: "weak notification alone, crash", Options: plain2PC, Setup: registered, Clients: clients{hint(a), glancer}, Observed: observed, Weak: true, Budget: die}, whole},
		{Program{Name: "weak notification, 2PC, crash", Options: plain2PC, Serial: true, Setup: registered, Clients: clients{hint(b, aside), glancer}, Observed: ab, Weak: true, Budget: die}, whole},
		{Program{Name: "weak notification, 2PC, lost reply and expiry", Options: plain2PC, Setup: changed(a), Clients: clients{hint(a, aside, b), worker}, Observed: ab, Weak: true, Budget: Budget{Lose: 1, Expire: 1}}, random},
		{Program{Name: "registration and a writer with an old catalog", Options: plain2PC, Settings: brief, Setup: prepared, Clients: clients{writer(a), registrar}, Observed: ab, Budget: Budget{Slow: 2}}, bounded},
		{Program{Name: "registration and an old catalog, crash", Options: plain2PC, Settings: brief, Setup: prepared, Clients: clients{writer(b, a), registrar}, Observed: ab, Budget: Budget{Die: 1, Slow: 1}}, bounded},
		{Program{Name: "registration and an old catalog, one-phase", Options: onePhase, Settings: brief, Setup: prepared, Clients: clients{writer(a), registrar}, Observed: ab, Budget: Budget{Die: 1, Late: 1, Slow: 2}}, bounded},
	}
	all = append(all, variants(whole, Program{Name: "write-write, one row", Options: plain2PC, Clients: clients{writer(a), writer(a)}},
		map[string]Budget{"crash": die, "left under way": leave, "lost": lose, "late": late, "twice": twice, "fails": fails})...)
	all = append(all, variants(whole, Program{Name: "write-write, two rows", Options: plain2PC, Clients: clients{writer(a, b), writer(b, a)}},
		map[string]Budget{"crash": die, "lost": lose})...)
	all = append(all, variants(bounded, Program{Name: "write-write, two rows", Options: plain2PC, Clients: clients{writer(a, b), writer(b, a)}},
		map[string]Budget{"left under way": leave, "late": late, "twice": twice, "two crashes, expiry": {Die: 2, Expire: 1}})...)
	return slices.Concat(all, steps(), ownership(), idles(), catalogs(), tables(), changes(), holds(), drawns(), garbage(), timers(), rowsDeleted(), cascades(), erased())
}
