package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// final is what is left at the end.
type final struct {
	// cells is the last snapshot of every table: what Scan shows.
	cells map[string]string
	at    uint64
}

// finalProcess is the name of this process in the history of the end.
const finalProcess = "final"

const finishTimeout = 4 * time.Minute

// finish lets observers finish, asks for the outcomes that nobody knew, reads
// everything, and counts the locks that are left.
func (r *run) finish(ctx context.Context) (*final, error) {
	ctx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	p, err := r.openDirect(ctx, finalProcess)
	if err != nil {
		return nil, err
	}
	f, err := r.read(ctx, p)
	return f, errors.Join(err, p.close(ctx))
}

// read lets the observers finish and reads everything. It counts the locks before, after
// that, and after writers met those that were left.
func (r *run) read(ctx context.Context, p *process) (*final, error) {
	if len(allObservers(p.log, r.chosen)) > 0 {
		if err := r.finishObservers(ctx, p); err != nil {
			return nil, err
		}
	}
	locks, err := lockedCells(ctx, p.db.Store())
	if err != nil {
		return nil, err
	}
	r.report.LocksBefore = len(locks)
	f, err := readEverything(ctx, p)
	if err != nil {
		return nil, err
	}
	if locks, err = lockedCells(ctx, p.db.Store()); err != nil {
		return nil, err
	}
	r.report.LocksPassed = len(locks)
	if err := r.meetLocks(ctx, p, locks); err != nil {
		return nil, err
	}
	if locks, err = lockedCells(ctx, p.db.Store()); err != nil {
		return nil, err
	}
	r.report.LocksAfter = len(locks)
	if len(locks) > 0 {
		r.violation("%d locks are left after everything was read: %v", len(locks), locks)
	}
	return f, nil
}

// finishObservers runs a worker until it has nothing to do, and notes what it parked.
func (r *run) finishObservers(ctx context.Context, p *process) error {
	w, err := workerOf(p.db, workerConfig(), allObservers(p.log, r.chosen))
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(working) }()
	began := time.Now()
	err = w.WaitIdle(ctx)
	r.say("the observers have finished (%v)", time.Since(began).Round(time.Millisecond))
	if err == nil && has(r.chosen, relayName) {
		err = r.finishBesideStrangers(ctx, p, w)
	}
	stop()
	if err := errors.Join(err, <-done); err != nil {
		return fmt.Errorf("waiting for the observers: %w", err)
	}
	parked, err := p.db.Parked(ctx)
	if err != nil {
		return err
	}
	for _, run := range parked {
		r.violation("a run is parked: %+v", run)
	}
	return nil
}

// strangersTimeout is several leases of a worker.
const strangersTimeout = 20 * time.Second

// finishBesideStrangers lets a stranger write members while the last worker runs, then
// changes cells, and makes sure that they hold the worker up for a few leases at most.
func (r *run) finishBesideStrangers(ctx context.Context, p *process, w *percolator.Worker) error {
	if err := putStrangers(ctx, p.db.Store(), r.Seed); err != nil {
		return err
	}
	s := p.newThread(1)
	for range relayCells {
		_ = stepRelay(ctx, s, 0) // the log has what became of it
	}
	began := time.Now()
	soon, cancel := context.WithTimeout(ctx, strangersTimeout)
	defer cancel()
	if err := w.WaitIdle(soon); err != nil {
		if soon.Err() == nil || ctx.Err() != nil {
			return err
		}
		r.violation("members that nobody stands behind have held up a worker for %v", strangersTimeout)
	}
	r.say("the observers have finished beside a stranger's members (%v)", time.Since(began).Round(time.Millisecond))
	err := eventually(soon, func() error {
		n, err := deadMembers(ctx, p.db.Store())
		if err == nil && n > 0 {
			err = fmt.Errorf("%d members whose leases have ended were not removed", n)
		}
		return err
	})
	if err != nil {
		r.violation("%v", err)
	}
	return nil
}

// readEverything reads every table but the library's own, in one snapshot.
func readEverything(ctx context.Context, p *process) (*final, error) {
	f := &final{cells: map[string]string{}}
	s := p.newThread(0)
	tables := map[string]struct{}{}
	for table, err := range p.db.Store().Tables(ctx) {
		if err != nil {
			return nil, err
		}
		if !format.Reserved(table) {
			tables[table] = struct{}{}
		}
	}
	var tx *percolator.Txn
	err := p.db.View(ctx, func(inner *percolator.Txn) error {
		tx = inner
		for table := range tables {
			for row, err := range inner.Scan(ctx, percolator.Range{Table: table}) {
				if err != nil {
					return err
				}
				for column, b := range row.Columns {
					value, err := unpad(b)
					if err != nil {
						return fmt.Errorf("%s/%s/%s: %w", table, row.Key, column, err)
					}
					f.cells[table+"/"+row.Key+"/"+column] = value
				}
			}
		}
		return nil
	})
	if err != nil {
		s.complain(err)
		return nil, err
	}
	f.at = uint64((&txn{Txn: tx, ctx: ctx}).start())
	return f, nil
}

// meetLocks writes to the cells that are locked still. A read ignores the lock of a
// transaction that only locks a cell, because that lock can never change what is read
// there. A writer of the cell resolves the lock.
func (r *run) meetLocks(ctx context.Context, p *process, locks []percolator.Cell) error {
	for _, c := range locks {
		if format.Reserved(c.Table) || format.Reserved(c.Column) {
			continue // the library's own, which nobody else can lock
		}
		err := p.db.Update(ctx, func(tx *percolator.Txn) error {
			_, err := tx.GetForUpdate(ctx, c)
			if errors.Is(err, percolator.ErrNotFound) {
				err = nil
			}
			if err != nil {
				return err
			}
			// Without a write nothing would be prewritten.
			return tx.Set(percolator.Cell{Table: "final", Row: "locks", Column: "met"}, pad("x"))
		})
		if err != nil {
			return fmt.Errorf("locking %v: %w", c, err)
		}
	}
	if len(locks) == 0 {
		return nil
	}
	// The locks of the transactions above are gone when their secondaries are
	// committed, in the background.
	err := eventually(ctx, func() error {
		left, err := lockedCells(ctx, p.db.Store())
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("locks are left on %v", left)
		}
		return err
	})
	if err != nil {
		r.violation("%v", err)
	}
	return nil
}

// lockedCells lists the cells that have a lock, in every table of the store, the
// library's own among them.
func lockedCells(ctx context.Context, store rowstore.Store) ([]percolator.Cell, error) {
	var cells []percolator.Cell
	for table, err := range store.Tables(ctx) {
		if err != nil {
			return nil, err
		}
		if table == format.TableMembers || table == format.TableHints {
			continue // what stands there as a Lock is no transaction's: a worker or an erasure that was killed leaves its own
		}
		picks := []rowstore.Selector{{Family: rowstore.Lock, To: oracle.Max}}
		for row, err := range store.Scan(ctx, rowstore.ScanRange{Table: table, Selectors: picks}) {
			if err != nil {
				return nil, err
			}
			for _, v := range row.Versions {
				cells = append(cells, percolator.Cell{Table: table, Row: row.Row, Column: v.Column})
			}
		}
	}
	return cells, nil
}
