package percolator

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// A replay asks for one more run of an observer for each cell of a range. A request is a flag of the observer's
// failure record beside the cell, which every view of a run reads anyway, and a notification at the commit of the
// request, which by itself is no change. The run that takes effect removes the record, as it always does. So a request
// cannot get lost: a run that has not seen it leaves it, and one that has seen an older one conflicts with whoever asks
// again. How far a replay has got is a cell that is written together with the requests. See "Replays" in
// docs/architecture.md.

const (
	replayPage   = 128            // rows that are asked for in one transaction
	replayWindow = 4 * replayPage // cells that may wait for their runs before more is asked for
	replayCells  = 3              // that a request writes and notifies, at most
	// replayPatience is how far ahead the next attempt of a run may be for a replay to wait for it.
	replayPatience = time.Minute
)

// ReplayReport says what a replay has come to.
type ReplayReport struct {
	// Cells is how many cells the observer was asked to run for, also by earlier calls with which this one went on, as far
	// as this call knows: of two calls at once, one may end before it learns of the other's last page.
	Cells int64
	// Parked is how many of the runs that this call has waited for were parked, and Waiting how many it did not wait
	// for, because their next attempt is more than a minute away: they are called for then.
	Parked, Waiting int
	// Resumed tells that the call went on with a replay of an earlier call, or beside another one.
	Resumed bool
}

// ReplayInfo describes a replay that has begun and has yet to ask for runs (DB.Replays). Nobody need be at work on it.
type ReplayInfo struct {
	Observer string
	Range    Range     // with one column
	Began    Timestamp // when its first call began
	Next     string    // the first row for which the observer was not asked yet
	Cells    int64     // for which it was asked
}

// Replay runs an observer again for every cell of a range that it has seen before, and returns when those runs have
// taken effect, or are parked. Other observers of the column do not run for it. It is for an observer whose function was
// wrong, or whose results were lost: the function must set what it derives to what is right now. One that adds to a
// total adds nothing, because an observer of old values (OnChange) is told the same value as Old and New. To build
// such a total anew, run an observer with another name into another table: see docs/howto/replaying.md.
//
// r names a table and rows of it. Columns may name some of those that the observer observes in that table; none means all of them.
// Limit, Reverse and Timestamps must be zero, or the error matches ErrInvalid. The observer runs for each cell in the range that
// has a value, and for those whose deletion has not been collected yet. A change that it has yet to see is part of the
// same run, which then is told that change. Each run begins after the call has asked for it, so it reads what was committed before the call. What is written to the
// range meanwhile runs as ever. A parked run is released, and attempts are counted anew. If a run fails it is attempted again and parked
// as for a change; ReplayReport counts those.
//
// The runs are made by the workers that run the observer, as for changes. At most 512 cells wait for them at a time, so
// changes that come meanwhile do not wait behind the whole range. Replay does not know whether any worker runs the
// observer: bound it by ctx.
//
// A replay may be broken off at any time: by ctx, by an error, by the death of the process. How far it has got is stored,
// and the next call with the same observer and range goes on there, in any process, as the report says. Two calls at
// once share the work. What was asked for runs, also if nobody calls again. CancelReplay forgets how far it has got.
//
// Errors: ErrNotObserved if the observer is not registered for a column of the range, also if it is removed meanwhile;
// ErrObserverPaused if it is paused, or comes to be: call again when it is resumed; ErrInvalid and ErrTooLarge for bad names;
// ErrUndetermined, ErrClosed, those of the context and of the store. It may be called concurrently, but not in a function of the observer.
//
// From the first replay on, programs of versions that do not know of replays get ErrFormat, also those that have the
// data open. The first one waits until every process knows of it, one catalog lease.
func (db *DB) Replay(ctx context.Context, observer string, r Range) (ReplayReport, error) {
	var report ReplayReport
	columns, err := db.replayColumns(ctx, "Replay", observer, &r)
	if err == nil {
		_, err = db.awaitFeature(ctx, replays)
	}
	if err != nil {
		return report, fmt.Errorf("percolator: replaying the observer %q: %w", observer, err)
	}
	for _, column := range columns {
		rp := &replay{db: db, record: db.replayOf(observer, &r, column), report: &report}
		if err := rp.run(ctx); err != nil {
			return report, fmt.Errorf("percolator: replaying the observer %q: %w", observer, err)
		}
	}
	return report, nil
}

// Replays lists the replays that have begun and have yet to ask for runs, at one snapshot, in no particular order. A replay asks for the runs of 128
// rows in one transaction. One that has asked for the last ones is not listed any more, though its call may wait for up to 512 of them; so one of
// fewer than 128 rows never is. Nothing of it can be left undone: its runs are made whether anybody calls again or not, and wait with
// the observer's other cells. A record of it would have the next call of the same range go on there, and ask for nothing. Errors: ErrClosed, those of the context and
// of the store.
func (db *DB) Replays(ctx context.Context) (infos []ReplayInfo, err error) {
	err = db.during(ctx, func(ctx context.Context) error {
		infos, err = db.listReplays(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("percolator: listing replays: %w", err)
	}
	return infos, nil
}

func (db *DB) listReplays(ctx context.Context) ([]ReplayInfo, error) {
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return nil, err
	}
	at, err := db.draw(ctx)
	if err != nil {
		return nil, err
	}
	var infos []ReplayInfo
	for p, err := range db.replayRecords(ctx, at) {
		if err != nil {
			return nil, err
		}
		names := Cell{Table: string(p.Table), Column: string(p.Column)}.public()
		infos = append(infos, ReplayInfo{
			Observer: v.titleOf(string(p.Observer), string(p.Table), string(p.Column)), Began: p.ID, Next: string(p.Next), Cells: p.Cells,
			Range: Range{Table: names.Table, Columns: []string{names.Column}, From: string(p.From), To: string(p.To)},
		})
	}
	return infos, nil
}

// replayColumns checks what Replay is asked for, and lists the columns by their stored names.
func (db *DB) replayColumns(ctx context.Context, call, observer string, r *Range) ([]string, error) {
	if observer == "" || len(observer) > format.MaxObserverName {
		return nil, fmt.Errorf("%w: no observer can have this name", ErrInvalid)
	}
	if r.Limit != 0 || r.Reverse || r.Timestamps {
		return nil, fmt.Errorf("%w: Range.Limit, Reverse and Timestamps are not for a replay", ErrInvalid)
	}
	if err := db.checkRange(call, r); err != nil {
		return nil, err
	}
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.leave()
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return nil, err
	}
	table := format.Escape(r.Table)
	var columns []string
	for _, c := range r.Columns {
		if stored := format.Escape(c); !slices.Contains(columns, stored) {
			columns = append(columns, stored)
		}
	}
	if len(columns) == 0 {
		for i := range v.Observers {
			if o := &v.Observers[i]; o.Has(observer) && string(o.Table) == table {
				columns = append(columns, string(o.Column))
			}
		}
	}
	if len(columns) == 0 {
		return nil, fmt.Errorf("%w: it does not observe table %q", ErrNotObserved, r.Table)
	}
	for _, column := range columns {
		if v.named(observer, table, column) == nil {
			return nil, notObservedBy(observer, Cell{Table: table, Column: column})
		}
	}
	return columns, nil
}

func notObservedBy(observer string, c Cell) error {
	c = c.public()
	return fmt.Errorf("%w: %q does not observe column %q of table %q", ErrNotObserved, observer, c.Column, c.Table)
}

// replayOf is the record of a replay of an observer that the known view of the catalog has, under any of its names.
func (db *DB) replayOf(observer string, r *Range, column string) format.Replay {
	table := format.Escape(r.Table)
	return format.Replay{
		Observer: []byte(db.known().idOf(observer, table, column)), Table: []byte(table), Column: []byte(column),
		From: []byte(r.From), To: []byte(r.To), Next: []byte(r.From),
	}
}

// replay is the replay of a column under way.
type replay struct {
	db     *DB
	record format.Replay
	report *ReplayReport
	left   []Cell // stored: the failure records of those that are waited for
	// since identifies the registration that the call is for; 0 before the first look at the catalog.
	since Timestamp
}

func (r *replay) run(ctx context.Context) error {
	for over := false; !over; {
		if err := r.wait(ctx, replayWindow-replayPage); err != nil {
			return err
		}
		var err error
		if over, err = r.ask(ctx); err != nil {
			return err
		}
	}
	return r.wait(ctx, 0)
}

// ask asks for the runs of a page of rows, in one transaction with the note of how far the replay has got. over tells
// that there are no more, or that the replay was ended by somebody else.
func (r *replay) ask(ctx context.Context) (over bool, err error) {
	var now format.Replay
	var asked []Cell
	var begun []byte // where the page begins
	ended := false   // by somebody else
	err = r.db.Update(ctx, func(tx *Txn) error {
		over, asked, now, ended = false, nil, r.record, false
		if err := tx.begin(ctx); err != nil {
			return err
		}
		if err := r.check(ctx, tx.start); err != nil {
			return err
		}
		value, found, err := r.db.getCell(ctx, Cell(now.Cell()), &tx.snapshot)
		if err == nil && found {
			now, err = format.DecodeReplay(value)
		}
		switch {
		case err != nil:
			return err
		case r.record.ID != 0 && now.ID != r.record.ID, r.record.ID != 0 && !found:
			over, now, ended = true, r.record, true
			begun, err = r.endedAt(ctx, tx.start)
			return err
		case !found, now.ID <= r.since: // one from before the registration is of an observer that was removed
			now = r.record
			now.ID = tx.start
		}
		begun = now.Next
		var more bool
		if asked, more, err = r.askPage(ctx, tx, &now); err != nil {
			return err
		}
		switch over = !more; {
		case over && found:
			return tx.put(Cell(now.Cell()), format.KindDelete, nil)
		case over:
			return nil
		}
		b, err := now.Encode()
		if err != nil {
			return err
		}
		return tx.put(Cell(now.Cell()), format.KindPut, b)
	})
	if err != nil {
		return false, err
	}
	if !bytes.Equal(begun, r.record.Next) {
		r.report.Resumed = true
		if err := r.findAsked(ctx, string(begun)); err != nil {
			return false, err
		}
	}
	if ended {
		if err := r.findLastAsked(ctx, string(begun)); err != nil {
			return false, err
		}
	}
	r.left = append(r.left, asked...)
	r.report.Cells += now.Cells - r.record.Cells
	r.record = now
	return over, nil
}

// askPage asks for the runs of the rows from now.Next on, and notes that in now. It returns their failure records.
func (r *replay) askPage(ctx context.Context, tx *Txn, now *format.Replay) (asked []Cell, more bool, err error) {
	observer, column := string(now.Observer), string(now.Column)
	failure := format.FailureColumn(observer, column)
	l := &r.db.limits
	rows, page := 0, max(1, min(replayPage, (l.Cells-1)/replayCells, l.Bytes/(replayCells*2*(l.Table+l.Row+l.Column+format.MaxObserverName))))
	scan := rowstore.ScanRange{
		Table: string(now.Table), From: string(now.Next), To: string(now.To), Limit: page,
		Selectors: snapshotPicks(snapshotPicks(nil, column, tx.start), failure, tx.start),
	}
	for row, err := range r.db.scanSettled(ctx, scan, tx.start, nil, nil) {
		if err != nil {
			return nil, false, err
		}
		rows++
		now.Next = []byte(row.Row + "\x00")
		newest := row.Newest(rowstore.Write, column)
		if newest == nil {
			continue
		}
		c := Cell{row.Table, row.Row, column}
		if err := tx.askAgain(observer, c, newest.TS, &row); err != nil {
			return nil, false, fmt.Errorf("%v: %w", c.public(), err)
		}
		now.Cells++
		c.Column = failure
		asked = append(asked, c)
	}
	return asked, rows == page, r.db.checkSnapshot(ctx, tx.start, span{table: string(now.Table), from: scan.From, to: scan.To})
}

// askAgain asks for one more run of an observer for a stored cell, of which a settled row shows the failure record. It writes even
// if there is such a request: a run that has begun since does not see what was committed after it.
func (tx *Txn) askAgain(observer string, c Cell, newest Timestamp, row *rowstore.Row) error {
	at := Cell{c.Table, c.Row, format.FailureColumn(observer, c.Column)}
	w, found, err := committed(row, at.Column)
	if err != nil {
		return err
	}
	f := format.Failure{}
	if found {
		if f, err = format.DecodeFailure(w.Value); err != nil {
			return err
		}
	}
	if f.Parked {
		if err := tx.put(parkedIndex(observer, c), format.KindDelete, nil); err != nil {
			return err
		}
	}
	f = format.Failure{Change: newest, Replay: true}
	if err := tx.grow(1, 0); err != nil {
		return err
	}
	tx.told = append(tx.told, c)
	return tx.put(at, format.KindPut, f.Encode())
}

// dropRequest removes a request for a cell that has nothing any more: its deletion was collected between the look and the commit of the
// transaction that asks. Whatever is written later has a run of its own.
func (w *Worker) dropRequest(ctx context.Context, o *Observer, view *cellView) runResult {
	at := Cell{view.cell.Table, view.cell.Row, format.FailureColumn(o.id, view.cell.Column)}
	err := w.db.Update(ctx, func(tx *Txn) error {
		value, found, err := w.db.getCell(ctx, at, &tx.snapshot)
		if err != nil || !found {
			return err
		}
		if f, err := format.DecodeFailure(value); err != nil || !f.Replay || f.Parked {
			return err
		}
		return tx.put(at, format.KindDelete, nil)
	})
	if err != nil {
		return trouble(fmt.Errorf("removing the request for a run of observer %q for %v: %w", o.Name, view.cell.public(), err))
	}
	return runResult{next: runAgain}
}

// check returns an error if nobody will run for the requests. now was just drawn.
func (r *replay) check(ctx context.Context, now Timestamp) error {
	v, err := r.db.catalogFor(ctx, now)
	if err != nil {
		return err
	}
	observer, c := string(r.record.Observer), Cell{Table: string(r.record.Table), Column: string(r.record.Column)}
	registered := v.registrations(c.Table, c.Column)
	since := registered.sinceOf(observer)
	if !slices.Contains(registered.names, observer) || since >= now || r.since != 0 && since != r.since {
		return notObservedBy(observer, c) // also if it was registered again meanwhile: its sweep shows it every cell
	}
	r.since = since
	if v.paused(observer, c) {
		return ErrObserverPaused
	}
	return nil
}

// wait returns when at most so many of the requests are left.
func (r *replay) wait(ctx context.Context, most int) error {
	pause := Backoff{Min: time.Millisecond, Max: 100 * time.Millisecond}
	for attempt := 0; len(r.left) > most; attempt++ {
		if err := r.db.during(ctx, r.look); err != nil {
			return err
		}
		if len(r.left) <= most {
			return nil
		}
		if err := r.db.clock.Sleep(ctx, pause.wait(attempt, r.db.rand)); err != nil {
			return fmt.Errorf("waiting for the runs of %d cells: %w", len(r.left), err)
		}
	}
	return nil
}

// look takes the requests from r.left for which a run has taken effect, or that nobody need wait for.
func (r *replay) look(ctx context.Context) error {
	at, err := r.db.draw(ctx)
	if err != nil {
		return err
	}
	if err := r.check(ctx, at); err != nil {
		return err
	}
	var left []Cell
	for page := range slices.Chunk(r.left, observedPage) {
		values, err := r.db.getCells(ctx, page, &snapshot{set: true, start: at})
		if err != nil {
			return err
		}
		for i, value := range values {
			if value == nil {
				continue
			}
			f, err := format.DecodeFailure(value)
			switch {
			case err != nil:
				return err
			case !f.Replay:
			case f.Parked:
				r.report.Parked++
			case f.NotBefore > at.Add(replayPatience):
				r.report.Waiting++
			default:
				left = append(left, page[i])
			}
		}
	}
	r.left = left
	return nil
}
