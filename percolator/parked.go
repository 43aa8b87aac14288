package percolator

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

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

// parkedRecord is the stored form of a parked run. It has a table of its own, so that
// listing parked runs does not read every row. Names are stored ones.
type parkedRecord struct {
	Observer []byte    `json:"observer"`
	Table    []byte    `json:"table"`
	Row      []byte    `json:"row"`
	Column   []byte    `json:"column"`
	Change   Timestamp `json:"change"`
	Attempts int       `json:"attempts"`
	Error    string    `json:"error"`
	At       Timestamp `json:"at"`
}

const columnParked = "run"

// parkedIndex is the cell that lists a parked run.
func parkedIndex(observer string, c Cell) Cell {
	return Cell{tableParked, rowOf(c.Table, c.Row, c.Column, observer), columnParked}
}

// longParts is the longest key that rowOf makes without a hash, in bytes. It is fixed:
// every process must come to the same key, whatever limits its store or its settings
// have.
const longParts = 200

// rowOf is the key of one of the library's own rows that stands for several names. Long
// names are replaced by their hash. So the key is short enough for every store, even
// for a cell whose names are as long as they may be. Where the names are needed, the
// row's content has them.
func rowOf(parts ...string) string {
	var key []byte
	for _, s := range parts {
		key = appendString(key, s)
	}
	if len(key) <= longParts {
		return string(key)
	}
	sum := sha256.Sum256(key)
	return hashedRow + string(sum[:])
}

// hashedRow begins a key that is a hash. In a key without a hash it would mean that the
// first name is empty, which no cell's is.
const hashedRow = "\x00"

// maxErrorText bounds the error that a parked run keeps, in bytes.
const maxErrorText = 4 << 10

func encodeParked(observer string, c Cell, f failureRecord, cause error, at Timestamp) ([]byte, error) {
	text := cause.Error()
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	b, err := json.Marshal(parkedRecord{
		Observer: []byte(observer), Table: []byte(c.Table), Row: []byte(c.Row), Column: []byte(c.Column),
		Change: f.change, Attempts: f.attempts, Error: strings.ToValidUTF8(text, ""), At: at,
	})
	if err != nil {
		return nil, fmt.Errorf("encoding a parked record: %w", err)
	}
	return append([]byte{formatVersion}, b...), nil
}

func decodeParked(b []byte) (parkedRecord, error) {
	var p parkedRecord
	if len(b) < 1 || b[0] != formatVersion {
		return p, fmt.Errorf("%w: parked record: bad head", ErrCorrupt)
	}
	if err := json.Unmarshal(b[1:], &p); err != nil {
		return p, fmt.Errorf("%w: parked record: %w", ErrCorrupt, err)
	}
	return p, nil
}

// Parked lists the parked runs of every observer, of this worker and of others.
func (w *Worker) Parked(ctx context.Context) ([]ParkedRun, error) { return w.db.Parked(ctx) }

// Release lets parked runs be attempted again, with a fresh count of attempts. It is no
// error if a run is no longer parked. A run of an observer that was removed is dropped:
// when the observer is registered again, it runs for the newest change of the cell. The
// cell is notified as by [Txn.Notify], so the other observers of its column run for it
// too, even those that have run for the change before.
func (w *Worker) Release(ctx context.Context, runs ...ParkedRun) error {
	return w.db.Release(ctx, runs...)
}

// Parked lists the parked runs of every observer, also of those that were removed.
func (db *DB) Parked(ctx context.Context) ([]ParkedRun, error) {
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.leave()
	var runs []ParkedRun
	for p, err := range db.parkedRuns(ctx) {
		if err != nil {
			return nil, fmt.Errorf("percolator: listing parked runs: %w", err)
		}
		runs = append(runs, p)
	}
	return runs, nil
}

// parkedPage is how many parked runs are read at once.
const parkedPage = 256

// parkedRuns visits the parked runs at one snapshot, a page at a time.
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
				p, err := decodeParked(value)
				if err != nil {
					return false, err
				}
				if !yield(p.run(), nil) {
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
		picks := snapshotPicks(nil, columnParked, at.start)
		for row, err := range db.store.Scan(ctx, rowstore.ScanRange{Table: tableParked, Picks: picks}) {
			if err == nil {
				err = db.settle(ctx, &row, picks, at.start)
			}
			found := false
			if err == nil {
				_, found, err = committed(&row, columnParked)
			}
			if err != nil {
				yield(Cell{}, err)
				return
			}
			if found && !yield(Cell{tableParked, row.Row, columnParked}, nil) {
				return
			}
		}
	}
}

// countParked counts the parked runs.
func (db *DB) countParked(ctx context.Context) (int, error) {
	at, err := db.parkedSnapshot(ctx)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, err := range db.parkedCells(ctx, at) {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, db.checkSnapshot(ctx, at.start)
}

func (p *parkedRecord) run() ParkedRun {
	return ParkedRun{
		Observer: string(p.Observer),
		Cell:     Cell{string(p.Table), string(p.Row), string(p.Column)}.public(),
		Change:   p.Change, Attempts: p.Attempts, Error: p.Error, At: p.At.Time(),
	}
}

// Release lets parked runs be attempted again; see Worker.Release.
func (db *DB) Release(ctx context.Context, runs ...ParkedRun) error {
	for i := range runs {
		if err := db.checkCell(&runs[i].Cell); err != nil {
			return err
		}
		if n := len(runs[i].Observer); n == 0 || n > maxObserverName {
			return fmt.Errorf("%w: a parked run of an observer with the name %q", ErrInvalid, runs[i].Observer)
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
func (db *DB) release(ctx context.Context, observer string, c Cell) error {
	var v *catalogView
	dropped := Timestamp(0)
	err := db.Update(ctx, func(tx *Txn) error {
		dropped = 0
		at := Cell{c.Table, c.Row, parkedColumn(observer, c.Column)}
		b, found, err := db.getCell(ctx, at, &tx.snapshot)
		if err != nil || !found {
			return err
		}
		f, err := decodeFailure(b)
		if err != nil || !f.parked {
			return err
		}
		if err := tx.forgetFailure(observer, c, &f); err != nil {
			return err
		}
		if v, err = db.catalogFor(ctx, tx.start); err != nil {
			return err
		}
		if !slices.Contains(v.observers(c.Table, c.Column), observer) {
			dropped = tx.start
			return nil
		}
		// The notification is weak, because the parked run may have been for a weak one.
		tx.weak = append(tx.weak, c)
		return nil
	})
	if err != nil || dropped == 0 {
		return err
	}
	// The sweep sees what was committed up to a lease after the registration. That is
	// enough unless the commit took longer than that.
	now, err := db.draw(ctx)
	if err != nil || now <= v.f.Add(v.lease) {
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
