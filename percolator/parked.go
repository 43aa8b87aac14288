package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// ParkedRun is a run of an observer that failed MaxAttempts times for a change. It
// is left alone until it is released, or the cell changes again.
type ParkedRun struct {
	Observer string
	Cell     Cell
	Change   Timestamp // of the change that it failed for
	Attempts int
	Error    string    // of the last attempt, at most 4 KiB
	At       time.Time // of the last attempt
}

// parkedIndex is the cell that lists a parked run.
func parkedIndex(observer string, c Cell) Cell {
	return Cell(format.ParkedCell(observer, format.Cell(c)))
}

// Parked lists the parked runs of every observer, of any worker, also of observers that
// were removed, at one snapshot and in no particular order. It holds all of them in memory, up to some 5 KiB for each: where there may be very many, take ParkedRuns, or
// Backlog, which counts them. Errors: ErrClosed, those of the context and of the store.
func (db *DB) Parked(ctx context.Context) ([]ParkedRun, error) {
	var runs []ParkedRun
	for p, err := range db.ParkedRuns(ctx) {
		if err != nil {
			return nil, err
		}
		runs = append(runs, p)
	}
	return runs, nil
}

// ParkedRuns visits what Parked lists, and holds a page of 256 of them at a time. All are of one snapshot, so a run that is released or dropped in the loop is
// still among those that follow. At most one error is yielded, at the end: those of Parked, and ErrSnapshotTooOld if the loop lasts for longer than the
// retention. Close waits for the body of a loop under way.
func (db *DB) ParkedRuns(ctx context.Context) iter.Seq2[ParkedRun, error] {
	return func(yield func(ParkedRun, error) bool) {
		stopped := false
		err := db.during(ctx, func(ctx context.Context) error {
			v, err := db.loadCatalog(ctx)
			if err != nil {
				return err
			}
			for p, err := range db.parkedRuns(ctx) {
				if err != nil {
					return err
				}
				if stopped = !yield(v.titled(p), nil); stopped {
					break
				}
			}
			return nil
		})
		if err != nil && !stopped {
			yield(ParkedRun{}, fmt.Errorf("percolator: listing parked runs: %w", err))
		}
	}
}

// parkedPage is how many parked runs are read at once.
const parkedPage = 256

// titled is a parked run, whose observer is given by its id, with what the observer is called.
func (v *catalogView) titled(p ParkedRun) ParkedRun {
	c := p.Cell.stored()
	p.Observer = v.titleOf(p.Observer, c.Table, c.Column)
	return p
}

// parkedRuns visits the parked runs at one snapshot, a page at a time, with the ids of their observers.
func (db *DB) parkedRuns(ctx context.Context) iter.Seq2[ParkedRun, error] {
	return func(yield func(ParkedRun, error) bool) {
		at, err := db.parkedSnapshot(ctx)
		if err != nil {
			yield(ParkedRun{}, err)
			return
		}
		page := make([]Cell, 0, parkedPage)
		flush := func() (bool, error) {
			values, err := db.getCells(ctx, page, at)
			if err != nil {
				return false, err
			}
			page = page[:0]
			for _, value := range values {
				if value == nil {
					continue
				}
				p, err := format.DecodeParked(value)
				if err != nil {
					return false, err
				}
				if !yield(parkedRun(&p), nil) {
					return false, nil
				}
			}
			return true, nil
		}
		for row, err := range db.parkedCells(ctx, at) {
			goOn := true
			if err == nil {
				if page = append(page, row); len(page) == parkedPage {
					goOn, err = flush()
				}
			}
			if err != nil {
				yield(ParkedRun{}, err)
				return
			}
			if !goOn {
				return
			}
		}
		if _, err := flush(); err != nil {
			yield(ParkedRun{}, err)
		}
	}
}

func (db *DB) parkedSnapshot(ctx context.Context) (*snapshot, error) {
	began := db.clock.Now()
	at, err := db.draw(ctx)
	return &snapshot{set: true, start: at, began: began}, err
}

// parkedCells visits the cells that list the runs parked at a snapshot, without reading
// their content.
func (db *DB) parkedCells(ctx context.Context, at *snapshot) iter.Seq2[Cell, error] {
	return func(yield func(Cell, error) bool) {
		picks := snapshotPicks(nil, format.ColumnParked, at.start)
		for row, err := range db.scanSettled(ctx, rowstore.ScanRange{Table: format.TableParked, Selectors: picks}, at.start, nil, nil) {
			found := false
			if err == nil {
				_, found, err = committed(&row, format.ColumnParked)
			}
			if err != nil {
				yield(Cell{}, err)
				return
			}
			if found && !yield(Cell{format.TableParked, row.Row, format.ColumnParked}, nil) {
				return
			}
		}
	}
}

// countParked counts the parked runs, up to limit of them, 0 for all. With a limit it tells those that it has found when ctx ends, if there
// are any: runs that were released have rows until they are collected, and there may be very many.
func (db *DB) countParked(ctx context.Context, limit int) (int, error) {
	at, err := db.parkedSnapshot(ctx)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, err := range db.parkedCells(ctx, at) {
		if err != nil && limit > 0 && n > 0 && ctx.Err() != nil {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if n++; n == limit {
			break
		}
	}
	return n, db.checkSnapshot(ctx, at.start)
}

func parkedRun(p *format.Parked) ParkedRun {
	return ParkedRun{
		Observer: string(p.Observer),
		Cell:     Cell(p.Cell()).public(),
		Change:   p.Change, Attempts: p.Attempts, Error: p.Error, At: p.At.Time(),
	}
}

// Release lets parked runs be attempted again, with a fresh count of attempts. It is no
// error if a run is no longer parked. A run of an observer that was removed is dropped:
// when the observer is registered again, it runs for the newest change of the cell. The
// cell is notified as by [Txn.Notify], so the other observers of its column run for it
// too, even those that have run for the change before.
//
// The runs are released one after the other. After an error, those before the one that
// the error names are released. Errors: ErrInvalid or ErrTooLarge for a run that no
// program can have parked, ErrClosed, those of the context and of the store.
func (db *DB) Release(ctx context.Context, runs ...ParkedRun) error {
	for i := range runs {
		if err := db.checkCell(&runs[i].Cell); err != nil {
			return called("Release", err)
		}
		if err := checkObserverName("Release", runs[i].Observer); err != nil {
			return err
		}
		if err := db.release(ctx, runs[i].Observer, runs[i].Cell.stored()); err != nil {
			return fmt.Errorf("percolator: releasing a parked run of observer %q for %v: %w", runs[i].Observer, runs[i].Cell, err)
		}
	}
	return nil
}

// release removes a parked run, and notifies its cell if the observer is registered. An
// observer that is not registered sees the cell in the sweep that follows its
// registration.
func (db *DB) release(ctx context.Context, name string, c Cell) error {
	var id string // of what was dropped
	err := db.Update(ctx, func(tx *Txn) error {
		id = ""
		tx.unlimited = true
		if err := tx.begin(ctx); err != nil {
			return err
		}
		v, err := db.catalogFor(ctx, tx.start)
		if err != nil {
			return err
		}
		observer, err := tx.forgetParked(ctx, v, name, c)
		switch {
		case err != nil || observer == "":
			return err
		case !slices.Contains(v.observers(c.Table, c.Column), observer):
			id = observer
			return nil
		}
		// The notification is weak, because the parked run may have been for a weak one.
		tx.weak = append(tx.weak, c)
		return nil
	})
	if err != nil || id == "" {
		return err
	}
	// An observer that was registered before the release was committed may have swept
	// before it, too.
	v, err := db.loadCatalog(ctx)
	if err != nil || !slices.Contains(v.observers(c.Table, c.Column), id) {
		return err
	}
	err = db.Update(ctx, func(tx *Txn) error {
		tx.weak = append(tx.weak, c)
		return nil
	})
	if errors.Is(err, ErrNotObserved) {
		return nil
	}
	return err
}

// forgetParked removes the records of the parked run of an observer that has a name, by the view v, or of one that had it when it
// was removed. It returns the id of the observer, "" if no run of it is parked.
func (tx *Txn) forgetParked(ctx context.Context, v *catalogView, name string, c Cell) (id string, err error) {
	for _, id := range slices.Compact([]string{v.idOf(name, c.Table, c.Column), name}) {
		b, found, err := tx.db.getCell(ctx, Cell{c.Table, c.Row, format.FailureColumn(id, c.Column)}, &tx.snapshot)
		if err != nil {
			return "", err
		}
		if !found {
			continue
		}
		f, err := format.DecodeFailure(b)
		if err != nil {
			return "", err
		}
		if f.Parked {
			return id, tx.forgetFailure(id, c, &f)
		}
	}
	return "", nil
}
