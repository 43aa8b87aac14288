package percolator

import (
	"context"
	"encoding/json"
	"fmt"
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

// parkedRecord is the stored form, in a table of its own, so that parked runs are
// listed without a look at every row. Names are stored ones.
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
	var key []byte
	for _, s := range []string{c.Table, c.Row, c.Column, observer} {
		key = appendString(key, s)
	}
	return Cell{tableParked, string(key), columnParked}
}

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

// Release lets parked runs be attempted again, with a fresh count of attempts. It
// is no error that a run is no longer parked.
func (w *Worker) Release(ctx context.Context, runs ...ParkedRun) error {
	return w.db.Release(ctx, runs...)
}

// Parked lists the parked runs of every observer.
func (db *DB) Parked(ctx context.Context) ([]ParkedRun, error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	var runs []ParkedRun
	picks := snapshotPicks(nil, columnParked, tx.start)
	for row, err := range db.store.Scan(ctx, rowstore.ScanRange{Table: tableParked, Picks: picks}) {
		if err == nil {
			err = db.settle(ctx, &row, picks, tx.start)
		}
		if err != nil {
			return nil, fmt.Errorf("percolator: listing parked runs: %w", err)
		}
		value, found, err := db.getCell(ctx, Cell{tableParked, row.Row, columnParked}, &tx.snapshot)
		if err != nil {
			return nil, fmt.Errorf("percolator: listing parked runs: %w", err)
		}
		if !found {
			continue
		}
		p, err := decodeParked(value)
		if err != nil {
			return nil, fmt.Errorf("percolator: listing parked runs: %w", err)
		}
		runs = append(runs, ParkedRun{
			Observer: string(p.Observer),
			Cell:     Cell{string(p.Table), string(p.Row), string(p.Column)}.public(),
			Change:   p.Change, Attempts: p.Attempts, Error: p.Error, At: p.At.Time(),
		})
	}
	return runs, nil
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
		c := runs[i].Cell.stored()
		err := db.Update(ctx, func(tx *Txn) error {
			at := Cell{c.Table, c.Row, parkedColumn(runs[i].Observer, c.Column)}
			b, found, err := db.getCell(ctx, at, &tx.snapshot)
			if err != nil || !found {
				return err
			}
			f, err := decodeFailure(b)
			if err != nil || !f.parked {
				return err
			}
			if err := tx.forgetFailure(runs[i].Observer, c, &f); err != nil {
				return err
			}
			// A weak notification, since what was parked may itself have been one.
			tx.weak = append(tx.weak, c)
			return nil
		})
		if err != nil {
			return fmt.Errorf("percolator: releasing a parked run of observer %q for %v: %w", runs[i].Observer, runs[i].Cell, err)
		}
	}
	return nil
}
