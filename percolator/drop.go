package percolator

import (
	"context"
	"fmt"
	"slices"
)

// DropParked gives parked runs up: the observer counts as having seen the change, without a run for it. So
// what the run would have done is lost, as is the difference for an observer of old values: its next
// [Change] begins at what it has not seen here. A timer that the run was for is consumed. Other
// observers of the column are left as they are.
//
// It is no error if a run is no longer parked, or if the cell has changed since: then the
// observer runs for the newer change, or has done so. If it was parked for the newer change, it stays parked:
// only the Change that the caller knows of is given up. A Change of 0 stands for whichever the run is parked for. Of an
// observer that was removed only the record goes.
//
// The runs are dropped one after the other. After an error, those before the one that the error
// names are dropped. Errors: ErrInvalid or ErrTooLarge for a run that no program can have parked, ErrClosed,
// those of the context and of the store, and those of Update. It may be called concurrently.
func (db *DB) DropParked(ctx context.Context, runs ...ParkedRun) error {
	for i := range runs {
		r := &runs[i]
		if err := db.checkCell(&r.Cell); err != nil {
			return called("DropParked", err)
		}
		if err := checkObserverName("DropParked", r.Observer); err != nil {
			return err
		}
		c := r.Cell.stored()
		for again := true; again; {
			err := db.Update(ctx, func(tx *Txn) (err error) {
				again, err = db.dropParked(ctx, tx, r, c)
				return err
			})
			if err == nil && again {
				err = db.clock.Sleep(ctx, lockedPause)
			}
			if err != nil {
				return fmt.Errorf("percolator: dropping a parked run of observer %q for %v: %w", r.Observer, r.Cell, err)
			}
		}
	}
	return nil
}

// dropParked acknowledges the change that a run is parked for, as a run that took effect would. The
// acknowledgment holds the transaction's start, so it may stand only for a change that is the newest one: a
// later change of the cell would count as seen. again means that a lock stood in the way.
func (db *DB) dropParked(ctx context.Context, tx *Txn, r *ParkedRun, c Cell) (again bool, err error) {
	tx.unlimited = true
	if err := tx.begin(ctx); err != nil {
		return false, err
	}
	known, err := db.catalogFor(ctx, tx.start)
	if err != nil {
		return false, err
	}
	name := r.Observer
	w, observer := &Worker{db: db}, known.idOf(name, c.Table, c.Column)
	view, blocked, err := w.currentView(ctx, c, &Observer{id: observer}, &tx.snapshot)
	if err != nil || blocked {
		return blocked, err
	}
	i := slices.Index(view.names, observer)
	if i < 0 || !view.failures[i].Parked && name != observer {
		_, err := tx.forgetParked(ctx, known, name, c) // of an observer that was removed
		return false, err
	}
	if f := &view.failures[i]; !f.Parked || r.Change != 0 && Timestamp(f.Change) != r.Change || view.change > f.Change || tx.start < view.since[i] {
		return false, nil
	}
	if view.ackLocked[i] {
		return true, nil
	}
	tx.run = &runOf{observer: observer, cell: c, since: view.since[i]}
	_, err = tx.cover(i, view)
	return false, err
}
