package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// ErrParked: what is waited for does not come, because the run that would do it is parked; see
// ParkedError.
var ErrParked = errors.New("percolator: the run is parked")

// ParkedError names the parked run. It matches ErrParked.
type ParkedError struct {
	Run ParkedRun // DB.Release takes it
}

func (e *ParkedError) Error() string {
	return fmt.Sprintf("%v: of observer %q for %v, after %d attempts: %s", ErrParked, e.Run.Observer, e.Run.Cell, e.Run.Attempts, e.Run.Error)
}

// Is makes errors.Is(err, ErrParked) hold.
func (e *ParkedError) Is(target error) bool { return target == ErrParked }

// WaitObserved returns nil once the observer has acknowledged every change of the cells that was
// committed at or below at, and every timer that was due then and was not cancelled since: whoever reads from then on sees what its runs for them have written. So a
// program that has written a cell, and got at from UpdateAt, knows when a total that an observer keeps
// is up to date. It is about this one observer: what others do with its writes is waited for by another call.
//
// at may be 0 for the present; a later one is ErrSnapshotInFuture. One below the safe point means the safe point.
// The observer must be registered for the column of each cell, by any process, or the error matches
// ErrNotObserved; so it does when it is removed meanwhile. If a run that is waited for is parked, the error
// matches ErrParked and is a ParkedError; if the observer is paused and something is left, it matches
// ErrObserverPaused. WaitObserved does
// not know whether any worker runs the observer: bound it by ctx. Without cells it only looks whether
// the observer's name can be one.
//
// It looks again and again, after 1 ms first and 100 ms at most, with one read for up to 256 cells
// that it still waits for, and one more for those of them with a timer that is due. A look draws a timestamp, and one more for such a page in which a cell has no version. Other errors: ErrInvalid and ErrTooLarge for bad names, ErrClosed, those of
// the context and of the store. It may be called concurrently, and anywhere but in a function of the observer that it waits for.
func (db *DB) WaitObserved(ctx context.Context, at Timestamp, observer string, cells ...Cell) error {
	if err := checkObserverName("WaitObserved", observer); err != nil {
		return err
	}
	w := &observedWait{db: db, at: at, observer: observer}
	named := make(map[Cell]struct{}, len(cells))
	for i := range cells {
		if err := db.checkCell(&cells[i]); err != nil {
			return called("WaitObserved", err)
		}
		c := cells[i].stored()
		if _, twice := named[c]; !twice {
			named[c] = struct{}{}
			w.left = append(w.left, c)
		}
	}
	pause := Backoff{Min: time.Millisecond, Max: 100 * time.Millisecond}
	for attempt := 0; ; attempt++ {
		if err := db.during(ctx, func(ctx context.Context) error { return w.look(ctx, attempt == 0) }); err != nil {
			return fmt.Errorf("percolator: waiting for the observer %q: %w", observer, err)
		}
		if len(w.left) == 0 {
			return nil
		}
		if err := db.clock.Sleep(ctx, pause.wait(attempt, db.rand)); err != nil {
			return fmt.Errorf("percolator: waiting for the observer %q and %d cells: %w", observer, len(w.left), err)
		}
	}
}

// observedWait is a WaitObserved under way.
type observedWait struct {
	db       *DB
	at       Timestamp
	observer string
	left     []Cell       // stored: what is still waited for
	after    *catalogView // tells what may have been collected of the page at hand; nil until a cell without a version asks
}

// observedPage is how many cells are looked at in one call.
const observedPage = 256

// look takes the cells from w.left that are covered.
func (w *observedWait) look(ctx context.Context, first bool) error {
	now, err := w.db.draw(ctx)
	if err != nil {
		return err
	}
	var v *catalogView
	if first {
		if w.at == 0 {
			w.at = now
		}
		if w.at > now {
			return fmt.Errorf("%w: it was asked for at %v, and the oracle is at %v", ErrSnapshotInFuture, w.at, now)
		}
		v, err = w.db.loadCatalog(ctx)
	} else {
		v, err = w.db.catalogFor(ctx, now)
	}
	if err != nil {
		return err
	}
	for _, c := range w.left {
		if v.named(w.observer, c.Table, c.Column) == nil {
			return fmt.Errorf("%w: %q does not observe %v", ErrNotObserved, w.observer, c.public())
		}
	}
	var left []Cell
	for page := range slices.Chunk(w.left, observedPage) {
		uncovered, err := w.uncovered(ctx, v, page)
		if err != nil {
			return err
		}
		left = append(left, uncovered...)
	}
	w.left = left
	for _, c := range left {
		if v.paused(v.idOf(w.observer, c.Table, c.Column), c) {
			return fmt.Errorf("%w, and has yet to see %v", ErrObserverPaused, c.public())
		}
	}
	return nil
}

// uncovered returns those cells of a page that have a change at or below w.at which the
// observer has not acknowledged.
func (w *observedWait) uncovered(ctx context.Context, v *catalogView, page []Cell) (left []Cell, err error) {
	var reads []rowstore.RowRead
	index := map[rowName]int{}
	for _, c := range page {
		id := v.idOf(w.observer, c.Table, c.Column)
		i, known := index[c.rowName()]
		if !known {
			i = len(reads)
			index[c.rowName()] = i
			reads = append(reads, rowstore.RowRead{Table: c.Table, Row: c.Row})
		}
		reads[i].Selectors = append(snapshotPicks(reads[i].Selectors, c.Column, w.at),
			rowstore.Selector{Family: rowstore.Notify, Column: c.Column, To: w.at},
			rowstore.Selector{Family: rowstore.Write, Column: format.AckColumn(id, c.Column), To: oracle.Max, Limit: 1},
			rowstore.Selector{Family: rowstore.Write, Column: format.FailureColumn(id, c.Column), To: oracle.Max, Limit: 1})
		if v.Timers {
			reads[i].Selectors = snapshotPicks(reads[i].Selectors, format.TimerColumn(c.Column), w.at)
		}
	}
	rows, _, err := w.db.readSettled(ctx, reads, &snapshot{set: true, start: w.at})
	if err != nil {
		return nil, err
	}
	w.after = nil // of the page before
	var timed []Cell
	for _, c := range page {
		switch found, err := w.covered(ctx, v, &rows[index[c.rowName()]], c, nil); {
		case err != nil:
			return nil, fmt.Errorf("%v: %w", c.public(), err)
		case found == timerUnseen:
			timed = append(timed, c)
		case found == changeUnseen:
			left = append(left, c)
		}
	}
	// Whoever has cancelled a timer, or set it anew, since it was due has taken it from the observer.
	timers, err := w.timersNow(ctx, timed)
	if err != nil {
		return nil, err
	}
	for i, c := range timed {
		found, err := w.covered(ctx, v, &rows[index[c.rowName()]], c, &timers[i])
		if err != nil {
			return nil, fmt.Errorf("%v: %w", c.public(), err)
		}
		if found != allSeen {
			left = append(left, c)
		}
	}
	return left, nil
}

// unseen is what an observer has yet to see of a cell.
type unseen int

const (
	allSeen     unseen = iota
	timerUnseen        // a timer, after all else, which may have been cancelled since
	changeUnseen
)

// covered tells whether the observer has acknowledged what a settled row shows of the cell. An
// acknowledgment is committed together with what the run has written, and has the timestamp of the
// snapshot that the run has read. Those from before the observer's registration do not count. now is the timer of the present, nil where it was not read.
func (w *observedWait) covered(ctx context.Context, v *catalogView, row *rowstore.Row, c Cell, now *timerView) (unseen, error) {
	ack, failure, err := w.records(v, row, c)
	if err != nil || ack >= w.at {
		return allSeen, err
	}
	change := Timestamp(0)
	if newest := row.Newest(rowstore.Write, c.Column); newest != nil {
		change = newest.TS
	} else {
		// A version may have been collected. Then the one at the safe point shows what there was.
		if w.after == nil {
			if w.after, err = w.db.viewAfter(ctx); err != nil {
				return changeUnseen, err
			}
		}
		if safe := w.after.safePointIn(c.span()); w.at < safe {
			w.at = safe
			return changeUnseen, nil
		}
	}
	for _, n := range row.All(rowstore.Notify, c.Column) {
		k, err := format.DecodeNotification(n.Value)
		if err != nil {
			return changeUnseen, err
		}
		if k == format.NotifyWeak {
			change = max(change, n.TS)
		}
	}
	timer, err := timerIn(row, c)
	if err != nil {
		return changeUnseen, err
	}
	if timer.set && timer.at <= w.at && timer.at > max(change, ack) {
		if now == nil {
			return timerUnseen, nil
		}
		timer = *now
	}
	if timer.set && timer.at <= w.at {
		change = max(change, timer.at)
	}
	switch {
	case change <= ack:
		return allSeen, nil
	case failure.Parked && failure.Change >= change:
		return changeUnseen, w.parked(ctx, v, c)
	}
	return changeUnseen, nil
}

// timersNow are the timers of stored cells in the present.
func (w *observedWait) timersNow(ctx context.Context, cells []Cell) ([]timerView, error) {
	if len(cells) == 0 {
		return nil, nil
	}
	now, err := w.db.draw(ctx)
	if err != nil {
		return nil, err
	}
	var reads []rowstore.RowRead
	for _, c := range cells {
		timer := timerOf(c)
		reads = append(reads, rowstore.RowRead{Table: timer.Table, Row: timer.Row, Selectors: snapshotPicks(nil, timer.Column, now)})
	}
	rows, _, err := w.db.readSettled(ctx, reads, &snapshot{set: true, start: now})
	if err != nil {
		return nil, err
	}
	timers := make([]timerView, len(cells))
	for i, c := range cells {
		if timers[i], err = timerIn(&rows[i], c); err != nil {
			return nil, err
		}
	}
	return timers, nil
}

// records decodes what the observer keeps beside the cell.
func (w *observedWait) records(v *catalogView, row *rowstore.Row, c Cell) (ack Timestamp, failure format.Failure, err error) {
	known, id := v.registrations(c.Table, c.Column), v.idOf(w.observer, c.Table, c.Column)
	if ack, err = acknowledged(row, format.AckColumn(id, c.Column), known.sinceOf(id)); err != nil {
		return 0, failure, err
	}
	failure, _, err = failureIn(row, format.FailureColumn(id, c.Column), known.sinceOf(id))
	return ack, failure, err
}

// parked returns a ParkedError, or nil if the run has been released meanwhile.
func (w *observedWait) parked(ctx context.Context, v *catalogView, c Cell) error {
	at, err := w.db.parkedSnapshot(ctx)
	if err != nil {
		return err
	}
	value, found, err := w.db.getCell(ctx, parkedIndex(v.idOf(w.observer, c.Table, c.Column), c), at)
	if err != nil || !found {
		return err
	}
	p, err := format.DecodeParked(value)
	if err != nil {
		return err
	}
	return &ParkedError{v.titled(parkedRun(&p))}
}
