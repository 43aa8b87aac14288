package percolator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What a replay has to do with others: with calls that work on the same one, with whoever cancels it, and with an observer that is
// removed.

// CancelReplay forgets a replay of the same observer and range that has not ended, so that the next one begins anew. A
// call of Replay that is at work on it asks for nothing more and returns as at its end. What was asked for runs. It is no error if there is none.
// One of an observer that was removed can be cancelled too, by the name that Replays tells. Errors are those of Replay, but a paused
// observer is none; ErrNotObserved only if there is no such replay either.
func (db *DB) CancelReplay(ctx context.Context, observer string, r Range) error {
	columns, err := db.replayColumns(ctx, "CancelReplay", observer, &r)
	if unknown := err; (err == nil || errors.Is(err, ErrNotObserved)) && db.known().Replays {
		err = db.Update(ctx, func(tx *Txn) error {
			n, err := tx.cancelReplays(ctx, observer, &r, columns)
			if err == nil && n == 0 {
				err = unknown
			}
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("percolator: cancelling a replay of the observer %q: %w", observer, err)
	}
	return nil
}

// cancelReplays deletes the records of the replays of a range, of the observers that have a name, and of those that had it as their id when they were
// removed. columns are the stored ones, none for all. It returns how many there were.
func (tx *Txn) cancelReplays(ctx context.Context, observer string, r *Range, columns []string) (n int, err error) {
	if err := tx.begin(ctx); err != nil {
		return 0, err
	}
	v, err := tx.db.catalogFor(ctx, tx.start)
	if err != nil {
		return 0, err
	}
	if len(columns) == 0 {
		for _, c := range r.Columns {
			columns = append(columns, format.Escape(c))
		}
	}
	table := format.Escape(r.Table)
	return tx.dropReplays(ctx, func(p *format.Replay) bool {
		id, column := string(p.Observer), string(p.Column)
		if string(p.Table) != table || string(p.From) != r.From || string(p.To) != r.To || len(columns) > 0 && !slices.Contains(columns, column) {
			return false
		}
		return id == v.idOf(observer, table, column) || id == observer && !slices.Contains(v.observers(table, column), id)
	})
}

// dropReplays deletes the records that match, and counts them.
func (tx *Txn) dropReplays(ctx context.Context, match func(p *format.Replay) bool) (n int, err error) {
	for p, err := range tx.db.replayRecords(ctx, tx.start) {
		if err != nil {
			return 0, err
		}
		if !match(&p) {
			continue
		}
		n++
		if err := tx.put(Cell(p.Cell()), format.KindDelete, nil); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// replayRecords visits the records of replays at a snapshot.
func (db *DB) replayRecords(ctx context.Context, at Timestamp) iter.Seq2[format.Replay, error] {
	return func(yield func(format.Replay, error) bool) {
		picks := snapshotPicks(nil, format.ColumnReplay, at)
		for row, err := range db.scanSettled(ctx, rowstore.ScanRange{Table: format.TableReplays, Selectors: picks}, at, nil, nil) {
			if err != nil {
				yield(format.Replay{}, err)
				return
			}
			p, found, err := db.replayAt(ctx, Cell{format.TableReplays, row.Row, format.ColumnReplay}, at)
			if err == nil && !found {
				continue
			}
			if !yield(p, err) || err != nil {
				return
			}
		}
	}
}

// replayAt reads the record of a replay at a snapshot.
func (db *DB) replayAt(ctx context.Context, c Cell, at Timestamp) (p format.Replay, found bool, err error) {
	value, found, err := db.getCell(ctx, c, &snapshot{set: true, start: at})
	if err == nil && found {
		p, err = format.DecodeReplay(value)
	}
	return p, found, err
}

// endReplays deletes how far replays of observers that were removed have got, by the view v in which they are no more. A later
// registration of the name begins its own.
func (db *DB) endReplays(ctx context.Context, v *catalogView, removed []format.Observer) error {
	if !v.Replays {
		return nil
	}
	return db.Update(ctx, func(tx *Txn) error {
		if err := tx.begin(ctx); err != nil {
			return err
		}
		_, err := tx.dropReplays(ctx, func(p *format.Replay) bool {
			registered := v.registrations(string(p.Table), string(p.Column))
			since := registered.sinceOf(string(p.Observer)) // it may have been registered again by now
			return p.ID <= v.revision && (since == 0 || p.ID <= since) && slices.ContainsFunc(removed, func(o format.Observer) bool {
				return o.Is(string(p.Observer), string(p.Table), string(p.Column))
			})
		})
		return err
	})
}

// mostWalked bounds how many records of a replay that was begun anew are gone through to find the end of the one before.
const mostWalked = 16

// endedAt returns where the last page of the replay begins that somebody else may have asked for, by the snapshot at at which it
// has ended: by its last page, or because it was cancelled before that. It is the end of the range if history does not tell.
func (r *replay) endedAt(ctx context.Context, at Timestamp) ([]byte, error) {
	c := Cell(r.record.Cell())
	for range mostWalked {
		rows, err := r.db.readRows(ctx, []rowstore.RowRead{{Table: c.Table, Row: c.Row, Selectors: snapshotPicks(nil, c.Column, at)}})
		if err != nil {
			return nil, err
		}
		newest := rows[0].Newest(rowstore.Write, c.Column)
		if newest == nil || newest.TS <= r.record.ID {
			break
		}
		at = newest.TS - 1
		p, found, err := r.db.replayAt(ctx, c, at)
		switch {
		case errors.Is(err, ErrSnapshotTooOld):
			return r.record.To, nil
		case err != nil:
			return nil, err
		case found && p.ID == r.record.ID:
			return p.Next, nil
		}
	}
	return r.record.To, nil
}

// findAsked adds what others have asked for, in rows from where this call has got to, to what is waited for.
func (r *replay) findAsked(ctx context.Context, to string) error {
	for from, more := string(r.record.Next), true; more; {
		var err error
		if from, more, err = r.addAsked(ctx, from, to, addedPage); err != nil {
			return err
		}
	}
	return nil
}

// findLastAsked is findAsked for the page that begins at a row, which may have been the last one.
func (r *replay) findLastAsked(ctx context.Context, from string) error {
	if from == string(r.record.To) {
		return nil
	}
	_, _, err := r.addAsked(ctx, from, string(r.record.To), replayPage)
	return err
}

// addedPage is how many rows with records of failures are gone through at one snapshot.
const addedPage = 4096

// addAsked goes through so many of the rows from one to another, and adds those to what is waited for whose observer was asked to run and has yet to do so: not those
// that have failed for a change, nor those whose runs were parked before this call has waited for them. next is where the next page begins, if there are more.
func (r *replay) addAsked(ctx context.Context, from, to string, most int) (next string, more bool, err error) {
	failure := format.FailureColumn(string(r.record.Observer), string(r.record.Column))
	err = r.db.during(ctx, func(ctx context.Context) error {
		at, err := r.db.draw(ctx)
		if err != nil {
			return err
		}
		scan := rowstore.ScanRange{Table: string(r.record.Table), From: from, To: to, Limit: most, Selectors: snapshotPicks(nil, failure, at)}
		rows := 0
		for row, err := range r.db.scanSettled(ctx, scan, at, nil, nil) {
			if err != nil {
				return err
			}
			rows++
			next = row.Row + "\x00"
			f, _, err := failureIn(&row, failure, r.since)
			if err != nil {
				return err
			}
			if f.Replay && !f.Parked {
				r.left = append(r.left, Cell{row.Table, row.Row, failure})
			}
		}
		more = rows == most
		return nil // the records are looked at again
	})
	return next, more, err
}
