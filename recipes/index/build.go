package index

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// Pace bounds what Build, Check, Repair and Drop take. The zero value goes as quickly as it can.
type Pace struct {
	// Rows is how many rows one transaction looks at, at most. Default 256. Fewer are taken while transactions meet conflicts or percolator.Limits.
	Rows int
	// Pause is how long to wait after each transaction. Default 0.
	Pause time.Duration
}

const (
	defaultRows = 256
	mostRows    = 10_000
	mostRounds  = 8
)

// ownLevel is the isolation of the transactions that the package begins by itself, whatever the DB's default is. What they rest on is conflicts of writes: whoever
// changes a row so that its entries change writes an entry that they write. Serializable would let each write of a row among hundreds end them.
var ownLevel = percolator.WithIsolation(percolator.SnapshotIsolation)

func (p Pace) check() (Pace, error) {
	if p.Rows == 0 {
		p.Rows = defaultRows
	}
	if p.Rows < 0 || p.Rows > mostRows || p.Pause < 0 {
		return p, fmt.Errorf("%w: Pace.Rows is %d and Pace.Pause is %v; they must be from 0 to %d, and not negative", percolator.ErrInvalid, p.Rows, p.Pause, mostRows)
	}
	return p, nil
}

// wait is the pause after a transaction.
func (p Pace) wait(ctx context.Context) error {
	if p.Pause == 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(p.Pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// steps calls step until there is no more to do: with fewer rows after what says that they were too many, and with a pause after each.
func (p Pace) steps(ctx context.Context, step func(rows int) (more bool, err error)) error {
	for rows := p.Rows; ; {
		more, err := step(rows)
		switch {
		case fewer(&rows, err):
			more = true
		case err != nil:
			return err
		default:
			rows = min(rows*2, p.Rows)
		}
		if err := p.wait(ctx); err != nil || !more {
			return err
		}
	}
}

// Build makes the index readable: it defines the index if nobody has, waits until every process knows of it, adds the entries of the data that is there,
// and compares all entries with all data until nothing differs. Meanwhile everybody may write. An index that is readable is left as it is, and the Report is empty.
//
// Build may be ended at any time and called again, in any process: it goes on where it was. Several at once share the work badly, and do no harm; if another one makes the index readable, that is no error, and the Report is empty. The Report is of the last comparison, and of what this call did of it.
//
// Errors: ErrNotUnique, which names values that several rows have, so that the index stays unreadable: change these rows and call Build again; ErrMismatch;
// percolator.ErrInvalid for a bad Pace, and if the index is defined otherwise; percolator.ErrIndexChanged if it is being dropped; those of DB.DefineIndex, DB.MoveIndex and Update.
// A value or row that makes the key of an entry too long for the store, and a row with more entries than a transaction may write, is percolator.ErrTooLarge.
// ErrValues, if a row cannot be decoded for a reason that may pass: an error of the codec that matches neither typed.ErrDecode nor typed.ErrKeyGone, or
// that matches typed.ErrVersion. Call Build again then.
func (ix *Index[T]) Build(ctx context.Context, pace Pace) (Report, error) {
	pace, err := pace.check()
	if err != nil {
		return Report{}, fmt.Errorf("index: Build: %w", err)
	}
	for {
		r, info, err := ix.buildOnce(ctx, pace)
		if errors.Is(err, percolator.ErrIndexChanged) {
			// Somebody else who builds it was quicker, unless it is dropped.
			now, ierr := infoOf(ctx, ix.db, ix.name)
			if ierr == nil && now.Since == info.Since && (now.State == percolator.IndexBuilding || now.State == percolator.IndexReadable) {
				continue
			}
			err = errors.Join(err, ierr)
		}
		if err != nil {
			return r, fmt.Errorf("index: building %q: %w", ix.name, err)
		}
		return r, nil
	}
}

// buildOnce is Build as long as nobody else changes the state of the index. It returns the index as it found it.
func (ix *Index[T]) buildOnce(ctx context.Context, pace Pace) (Report, percolator.IndexInfo, error) {
	info, err := ix.db.DefineIndex(ctx, ix.upkeep)
	if err != nil {
		return Report{}, info, err
	}
	at := info
	if at.State == percolator.IndexMaintained {
		if at, err = ix.db.MoveIndex(ctx, info, percolator.IndexBuilding); err != nil {
			return Report{}, info, err
		}
	}
	switch at.State {
	case percolator.IndexReadable:
		return Report{}, info, nil
	case percolator.IndexBuilding:
		r, err := ix.build(ctx, at, pace)
		return r, info, err
	default:
		return Report{}, info, fmt.Errorf("%w: it is %v", percolator.ErrIndexChanged, at.State)
	}
}

// progressForm is the form of a progress. The one before, without a number, had the key of a row as a text, so what it passed over is not known.
const progressForm = 1

// progress is what a build has come to. It is stored in the transactions that bring it on.
type progress struct {
	Form  int                  `json:"form"`
	Since percolator.Timestamp `json:"since"` // of the index
	At    percolator.Timestamp `json:"at"`    // of its state
	Round int                  `json:"round"`
	position
	// Differs tells that something differed in this round.
	Differs bool `json:"differs"`
}

// build goes over everything until a whole round has found nothing that differs.
func (ix *Index[T]) build(ctx context.Context, info percolator.IndexInfo, pace Pace) (Report, error) {
	var all Report
	for rows := pace.Rows; ; {
		p, r, fresh, err := ix.buildStep(ctx, info, rows)
		switch {
		case fewer(&rows, err):
			if err := pace.wait(ctx); err != nil {
				return all, err
			}
			continue
		case err != nil:
			return all, err
		}
		if fresh {
			all = Report{}
		}
		all.add(&r)
		rows = min(rows*2, pace.Rows)
		switch {
		case p.Part < partsEnd:
		case !p.Differs:
			_, err := ix.db.MoveIndex(ctx, info, percolator.IndexReadable)
			return all, err
		case all.Duplicated > 0 && all.Missing+all.Stale == 0:
			return all, &all.Duplicates[0]
		case p.Round+1 >= mostRounds:
			return all, fmt.Errorf("%w: %d missing, %d stale, in round %d", ErrMismatch, all.Missing, all.Stale, p.Round+1)
		}
		if err := pace.wait(ctx); err != nil {
			return all, err
		}
	}
}

// fewer tells whether a step that has ended with err is to be tried again, with fewer rows: it met others, or its rows are more than a
// transaction may write (percolator.Limits).
func fewer(rows *int, err error) bool {
	if !errors.Is(err, percolator.ErrConflict) && (!errors.Is(err, percolator.ErrTooLarge) || *rows == 1) {
		return false
	}
	*rows = max(*rows/2, 1)
	return true
}

// buildStep takes the build a step on from where it is stored to be. fresh tells that a round begins.
func (ix *Index[T]) buildStep(ctx context.Context, info percolator.IndexInfo, rows int) (p progress, r Report, fresh bool, err error) {
	cell := percolator.Cell{Table: ix.opt.Entries, Row: rowProgress, Column: columnProgress}
	err = ix.db.Update(ctx, func(tx *percolator.Txn) error {
		p = progress{}
		stored, err := tx.Get(ctx, cell)
		switch {
		case errors.Is(err, percolator.ErrNotFound):
		case err != nil:
			return err
		case json.Unmarshal(stored, &p) != nil || p.Form != progressForm || p.Since != info.Since || p.At != info.At || p.Part < 0:
			p = progress{} // of another build or an older program, or damaged
		}
		p.Form, p.Since, p.At = progressForm, info.Since, info.At
		if p.Part >= partsEnd { // of a round that has ended
			p.Round, p.position, p.Differs = p.Round+1, position{}, false
			if p.Round >= mostRounds {
				p.Round = 0
			}
		}
		fresh = p.position == position{}
		if p.position, r, err = ix.step(ctx, tx, p.position, rows, true); err != nil {
			return err
		}
		p.Differs = p.Differs || !r.Matches()
		encoded, err := json.Marshal(p)
		if err != nil {
			return err
		}
		return tx.Set(cell, encoded)
	}, ownLevel, percolator.WithIndexUpkeep(info), percolator.WithMaxAttempts(1))
	return p, r, fresh, err
}

// Check compares all entries with all data, and changes nothing. Each part is compared at a snapshot of its own, so what is written meanwhile does
// not differ. Errors: ErrNotReadable if the index is not defined, or otherwise, or not every process keeps it yet;
// percolator.ErrInvalid for a bad Pace; ErrValues as for Build; those of View.
func (ix *Index[T]) Check(ctx context.Context, pace Pace) (Report, error) {
	return ix.compare(ctx, "checking", pace, false)
}

// Repair is Check, and makes the entries fit the data. Duplicates of a unique value stay. A lookup before it ends may miss what is
// missing. Other errors are those of Update; percolator.ErrIndexChanged if the state of the index changes meanwhile.
func (ix *Index[T]) Repair(ctx context.Context, pace Pace) (Report, error) {
	return ix.compare(ctx, "repairing", pace, true)
}

func (ix *Index[T]) compare(ctx context.Context, what string, pace Pace, mend bool) (Report, error) {
	var all Report
	pace, err := pace.check()
	if err != nil {
		return all, fmt.Errorf("index: %s %q: %w", what, ix.name, err)
	}
	info, err := infoOf(ctx, ix.db, ix.name)
	if err == nil {
		err = ix.own(info)
	}
	if err == nil && info.State != percolator.IndexBuilding && info.State != percolator.IndexReadable {
		err = fmt.Errorf("%w: it is %v", ErrNotReadable, info.State)
	}
	if err != nil {
		return all, fmt.Errorf("index: %s %q: %w", what, ix.name, err)
	}
	if all, err = ix.walk(ctx, pace, mend, partsEnd, percolator.WithIndexUpkeep(info)); err != nil {
		return all, fmt.Errorf("index: %s %q: %w", what, ix.name, err)
	}
	return all, nil
}

// walk compares the parts before end, a step after the other, and with mend makes it fit in transactions of these options.
func (ix *Index[T]) walk(ctx context.Context, pace Pace, mend bool, end int, opts ...percolator.TxnOption) (all Report, err error) {
	opts = append(opts, ownLevel, percolator.WithMaxAttempts(1))
	var at position
	err = pace.steps(ctx, func(rows int) (more bool, err error) {
		var next position
		var r Report
		step := func(tx *percolator.Txn) (err error) {
			next, r, err = ix.step(ctx, tx, at, rows, mend)
			return err
		}
		if mend {
			err = ix.db.Update(ctx, step, opts...)
		} else {
			err = ix.db.View(ctx, step)
		}
		if err != nil {
			return false, err
		}
		at = next
		all.add(&r)
		return at.Part < end, nil
	})
	return all, err
}

// infoOf returns what the catalog says of an index; one that is not there is percolator.IndexAbsent.
func infoOf(ctx context.Context, db *percolator.DB, name string) (percolator.IndexInfo, error) {
	all, err := db.Indexes(ctx)
	for _, info := range all {
		if info.Name == name {
			return info, nil
		}
	}
	return percolator.IndexInfo{}, err
}

// Drop removes an index with all its entries, by its name, whatever its definition. Programs need not keep it for that. It may be ended at any
// time and called again, in any process. From then on Build returns an error until it has ended. An index that is not
// there is no error. Errors: percolator.ErrInvalid for a nil db and for a bad Pace; those of DB.MoveIndex and Update.
func Drop(ctx context.Context, db *percolator.DB, name string, pace Pace) error {
	pace, err := pace.check()
	if err == nil && db == nil {
		err = fmt.Errorf("%w: the database is nil", percolator.ErrInvalid)
	}
	if err == nil {
		err = drop(ctx, db, name, pace)
	}
	if err != nil {
		return fmt.Errorf("index: dropping %q: %w", name, err)
	}
	return nil
}

func drop(ctx context.Context, db *percolator.DB, name string, pace Pace) error {
	var next percolator.IndexState
	for {
		info, err := infoOf(ctx, db, name)
		if err != nil {
			return err
		}
		switch info.State {
		case percolator.IndexAbsent:
			return nil
		case percolator.IndexReadable:
			next = percolator.IndexBuilding // nobody reads it any more
		case percolator.IndexDropping:
			return dropEntries(ctx, db, info, pace)
		default:
			next = percolator.IndexDropping
		}
		if _, err := db.MoveIndex(ctx, info, next); err != nil && !errors.Is(err, percolator.ErrIndexChanged) {
			return err
		}
	}
}

// dropEntries removes the entries of an index that is being dropped, and then the index. Until every process knows that it is, some write
// entries: so it waits for that first.
func dropEntries(ctx context.Context, db *percolator.DB, info percolator.IndexInfo, pace Pace) error {
	if err := db.AwaitIndex(ctx, info); err != nil {
		return err
	}
	for {
		removed, err := dropRound(ctx, db, info, pace)
		if err != nil {
			return err
		}
		if removed == 0 {
			break
		}
	}
	_, err := db.MoveIndex(ctx, info, percolator.IndexAbsent)
	return err
}

// dropRound removes the entries from the first to the last, and returns how many rows it has found. Each step begins behind the step before it: a scan that
// began at the first row again would pass all the deleted ones, which are there until they are collected.
func dropRound(ctx context.Context, db *percolator.DB, info percolator.IndexInfo, pace Pace) (removed int, err error) {
	from := ""
	err = pace.steps(ctx, func(rows int) (more bool, err error) {
		last, seen := "", 0
		err = db.Update(ctx, func(tx *percolator.Txn) error {
			last, seen = "", 0
			for row, err := range tx.Scan(ctx, percolator.Range{Table: info.Entries, From: from, Limit: rows}) {
				if err != nil {
					return err
				}
				last, seen = row.Key, seen+1
				for column := range row.Columns {
					if err := tx.Delete(percolator.Cell{Table: info.Entries, Row: row.Key, Column: column}); err != nil {
						return err
					}
				}
			}
			return nil
		}, ownLevel, percolator.WithIndexUpkeep(info))
		if err != nil {
			return false, err
		}
		removed, from = removed+seen, last+"\x00"
		return seen == rows, nil
	})
	return removed, err
}
