package percolator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Observer is code that runs when a column changes (section 2.4 of the paper).
type Observer struct {
	// Name identifies the observer: its acknowledgments are stored under it. At most 128
	// bytes, not empty. It stays the same from one version of the program to the next,
	// and is unique among the observers of a column. DB.RenameObserver gives it another one.
	Name string
	// Table and Column say what is observed, in every row.
	Table, Column string
	// Func is called in a transaction, with the cell that changed. Its writes commit
	// together with the acknowledgment of the change, so that for each change at most
	// one run takes effect. Func may be called again for a change, after a conflict, a
	// failure or a crash, so it must have no effect but through tx. It sees the newest
	// value: several changes may come as one call. It must not end tx. An error, a
	// panic or the end of its goroutine (runtime.Goexit) is a failure: the call is repeated with exponential backoff, and the run is
	// parked after MaxAttempts failures of one change. An error that matches ErrConflict
	// does not count: the call is repeated at once. An error of tx which says that the
	// store failed does not count either, if Func returns it, wrapped or not. If Func
	// returns another error in its place, that one counts. What an index refuses at the commit (ErrIndexed, an
	// error of Upkeep.Keep) counts too, since Func would write the same again. RetryAfter and Park make errors that
	// ask for something else, and Txn.Run tells which attempt it is. If Func sets the cell to the value that it has, the run only
	// locks the cell, so that Func is not called again for that.
	//
	// Only one goroutine at a time may use tx. Func must return the errors of tx's methods that it does not answer itself, as it may
	// ErrNotFound: one that it drops does not end the transaction, and the rest is committed, with the acknowledgment (see Txn).
	Func func(ctx context.Context, tx *Txn, c Cell) error
	// OnChange is called in place of Func, with what the observer has not seen yet of the
	// cell: the value that it saw last, and the newest. All that is said of Func holds for it. Exactly
	// one of the two is set. An observer that is registered with one of them cannot go on with
	// the other: see Worker.Run.
	OnChange func(ctx context.Context, tx *Txn, change Change) error
	// Concurrency is how many runs of the observer a worker makes at once. 0 means that the
	// observer shares the places of WorkerConfig.Concurrency with all others that say 0. A
	// number above 0 gives it as many places of its own, in every worker that runs it: it
	// takes no place of another observer, waits for none, and never has more runs than that.
	// It may be more than WorkerConfig.Concurrency, which does not bound it: a worker runs at
	// most WorkerConfig.Concurrency functions and the sum of the observers' own numbers. So
	// give a slow observer a number, and it holds nobody up; give 1 to one whose runs may
	// not overlap in a process. Runs in other workers do overlap. Workers share the changes
	// of an observer out in proportion to the number that holds for it, so one with an
	// exaggerated number takes nearly all of them. A negative number is ErrInvalid (see
	// Worker.Observe).
	Concurrency int
	// MaxAttempts is the number of failures of one change after which its run is parked.
	// The count is kept in the store. 0, or a negative number, stands for that of the WorkerConfig.
	MaxAttempts int
	// Backoff is the wait before the function is called again after a failure. What is 0, or negative, stands for that of the WorkerConfig.
	Backoff Backoff
	// MaxHops is how many runs of observers may follow from one another, where cascades are tracked (DB.TrackCascades): the run for
	// a change that as many runs lie before is parked, without a call, with an error that matches ErrTooManyHops. So
	// observers that set each other off without end are stopped and seen. 0 stands for WorkerConfig.MaxHops. A number above 0
	// also has the worker's Run begin to track cascades. A negative number is no limit, and the runs of the observer begin anew: what
	// they write counts as written by one run. It is for an observer that goes on with its work by notifying its own cell.
	MaxHops int
	// Timeout bounds one call through its context; 0, or less, means no bound.
	Timeout time.Duration
	// Isolation of the transaction. DefaultIsolation, the zero value, is the level of the DB (WithDefaultIsolation). What is no level is ErrInvalid.
	Isolation Isolation

	// Prefetch names columns of the row of the cell which a run reads nearly always, at most 64, beside the observed column, which
	// needs no naming. They come with the look at the cell that comes before each run, so that Get, GetMany and GetForUpdate of them cost no call
	// (see Txn.Prefetch, also for values above 255 bytes, which cost one call for all). A look that finds nothing to do has read
	// them for nothing. Empty, the default, reads the observed column alone.
	Prefetch []string

	// Rate is how many runs in a second all processes make of the observer together; a fraction is fine, and 0, the default, is no limit. Every call of the
	// function counts, also one that fails or conflicts. Changes wait meanwhile, and several of one cell become one run. Each worker makes its
	// part of them, as its concurrency is a part of that of all workers of the observer, so that a limit costs no call. A worker may catch up with a tenth of a
	// second's runs, and with one run at least: over any time of d seconds that is at most Rate * (d + 0.1) runs in all, and one more for each worker.
	// For as long as workers come or go, and one of them has yet to learn of it, its old part is counted too: a lease of the members
	// (WorkerConfig.MemberLease) at most. All workers of the observer must have the same Rate: each one goes by its own. A Rate that is negative or no
	// number is ErrInvalid.
	Rate float64

	prefetch []string // stored names, each once
	column   string   // the observed one, stored

	periodic *periodic // whose observer it is, if any
	about    []trace.SpanStartOption
	// id is the name under which its records are stored: that of its first registration, see RenameObserver.
	id string
}

// run calls the observer's function.
func (o *Observer) run(ctx context.Context, tx *Txn, change *Change) error {
	if o.OnChange != nil {
		return o.OnChange(ctx, tx, *change)
	}
	return o.Func(ctx, tx, change.Cell)
}

// ObserverInfo describes an observer that is registered in the catalog.
type ObserverInfo struct {
	Name, Table, Column string
	// Aliases are the other names that it has, see DB.RenameObserver.
	Aliases []string
	// Since identifies the registration: a timestamp that was drawn when it was made. An observer that is removed and registered again
	// gets another one.
	Since Timestamp
	// Swept says that the data from before its registration has been scanned for it.
	Swept bool
	// Paused says that no worker runs it, see DB.PauseObserver.
	Paused bool
}

// Observers lists the observers that are registered, by any process; none is no error. Errors: ErrClosed, those of the context and of the store.
func (db *DB) Observers(ctx context.Context) ([]ObserverInfo, error) {
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.leave()
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return nil, err
	}
	infos := make([]ObserverInfo, len(v.Observers))
	for i, o := range v.Observers {
		c := Cell{Table: string(o.Table), Column: string(o.Column)}.public()
		infos[i] = ObserverInfo{Name: o.Title(), Aliases: o.Others(), Table: c.Table, Column: c.Column, Since: o.Since, Swept: o.Swept != 0, Paused: o.Paused}
	}
	return infos, nil
}

// RemoveObserver removes every observer of that name from the catalog, with all names that it has had. One catalog
// lease later at the latest, its columns are no longer notified on its behalf. Workers
// that run it stop, with an error that matches ErrObserverRemoved, and no run of it takes effect any
// more. Its acknowledgments end, and what was counted of its failures: if it is registered again, it begins anew, and runs for every cell of
// its column. Register it again no sooner than one catalog lease later: until then workers that do not know
// of the removal may go on with the old registration. Its parked runs
// stay, for Parked, Release and DropParked: also if it is registered again, it does not run for such a cell before that changes, or
// before the run is released; and what is left of a cell that was deleted stays in the store until the run is released or dropped. Garbage collection removes notifications that no
// other observer of the column waits for, and with them those of Txn.Notify that the
// removed observer has not seen. Its replays are forgotten, and the timers of columns that nobody else observes are dropped, in the
// background, which Close waits for, and counted in the log and in Stats. What it leaves behind is logged, as far as 10,000 notified cells and parked runs, of
// any observer, tell. It is no error if
// there is no observer of that name. Errors: ErrClosed, those of the context and of the store. After one of these, call it again: the
// observer may be removed or not.
func (db *DB) RemoveObserver(ctx context.Context, name string) error {
	return db.removeObservers(ctx, name, func(*format.Observer) bool { return true })
}

// RemoveRegistration removes one registration of an observer, as DB.Observers lists it, and leaves those that the name has on other columns: what
// an observer has left behind that moved to another column with its name, say. Name, Table and Column say which; the Name may be an
// alias. A Since that is not 0 must be that of the registration, so that none is removed that was made after the list. All else is
// as for RemoveObserver, also that it is no error if there is no such registration. Errors: ErrInvalid and ErrTooLarge for a name, table or column
// that no observer can have, and those of RemoveObserver. It may be called concurrently.
func (db *DB) RemoveRegistration(ctx context.Context, of ObserverInfo) error {
	c := Cell{Table: of.Table, Row: "-", Column: of.Column}
	if err := db.checkCell(&c); err != nil {
		return called("RemoveRegistration", err)
	}
	if err := checkObserverName("RemoveRegistration", of.Name); err != nil {
		return err
	}
	c = c.stored()
	return db.removeObservers(ctx, of.Name, func(o *format.Observer) bool {
		return string(o.Table) == c.Table && string(o.Column) == c.Column && (of.Since == 0 || of.Since == o.Since)
	})
}

// checkObserverName returns the error of a name that no observer can have, for the call that was given it.
func checkObserverName(call, name string) error {
	if name == "" || len(name) > format.MaxObserverName {
		return fmt.Errorf("percolator: %s: %w: no observer can have the name %.129q, of %d bytes; it has 1 to %d", call, ErrInvalid, name, len(name), format.MaxObserverName)
	}
	return nil
}

// removeObservers removes the registrations of a name that match.
func (db *DB) removeObservers(ctx context.Context, name string, match func(o *format.Observer) bool) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	var removed []format.Observer
	v, err := db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		removed = removed[:0]
		v.Observers = slices.DeleteFunc(v.Observers, func(o format.Observer) bool {
			has := o.Has(name) && match(&o)
			if has {
				removed = append(removed, o)
			}
			return has
		})
		return len(removed) > 0, nil
	})
	if err != nil {
		return fmt.Errorf("percolator: removing the observer %q: %w", name, err)
	}
	if len(removed) > 0 {
		db.background(func(ctx context.Context) { db.logLeft(ctx, v, name, removed) })
	}
	return nil
}

// mostLeft bounds what is looked at for a line of the log, of each kind: also parked runs of others.
const mostLeft = 10_000

// logLeft ends the replays of a removed observer, drops the timers that it leaves behind, and says what else it leaves.
func (db *DB) logLeft(ctx context.Context, v *catalogView, name string, removed []format.Observer) {
	if err := db.endReplays(ctx, v, removed); err != nil {
		db.log.Warn("how far replays of a removed observer have got is left", "observer", name, "err", err)
	}
	cells, parked, timers := 0, 0, 0
	for _, r := range removed {
		table, column := string(r.Table), string(r.Column)
		if table == PeriodicTable {
			if err := db.dropPeriodic(ctx, string(r.Name), r.Since); err != nil {
				db.log.Warn("what a removed periodic has kept is left", "periodic", name, "err", err)
				return
			}
		}
		if len(v.observers(table, column)) > 0 {
			continue // the other observers still need them
		}
		if v.Timers {
			n, err := db.dropTimersOf(ctx, table, column)
			if timers += n; err != nil {
				db.log.Warn("timers of a removed observer are left", "observer", name, "dropped", timers, "err", err)
				if !db.isOfARow(ctx, err) {
					return
				}
			}
		}
		var notified []Cell
		picks := []rowstore.Selector{{Family: rowstore.Notify, Column: column, To: oracle.Max, Limit: 1}}
		for row, err := range db.notifiedPast(ctx, table, picks, func(unreadable) error { return nil }) {
			if err != nil {
				return // it is only for the log
			}
			cells++
			if notified = append(notified, Cell{table, row.Row, column}); len(notified) == mostLeft {
				break
			}
		}
		if v.Timers {
			n, _, err := db.dropTimers(ctx, notified)
			if timers += n; err != nil {
				return
			}
		}
	}
	if timers > 0 {
		db.log.Warn("timers of a removed observer were dropped", "observer", name, "timers", timers)
	}
	looked := 0
	for p, err := range db.parkedRuns(ctx) {
		if err != nil {
			return
		}
		c := p.Cell.stored()
		if slices.ContainsFunc(removed, func(r format.Observer) bool { return r.Is(p.Observer, c.Table, c.Column) }) {
			parked++
		}
		if looked++; looked == mostLeft {
			break
		}
	}
	if cells+parked > 0 {
		db.log.Warn("a removed observer leaves notifications that nobody waits for, and parked runs", "observer", name,
			"cells", cells, "parked", parked, "looked at up to", mostLeft)
	}
}
