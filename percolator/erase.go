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

// A range is erased in these steps, each of which may be done again: so a call that was broken off is made again.
//
//  1. Delete its rows, and wait until the observers have acknowledged that.
//  2. Publish a safe point for the range, drawn after that, and wait until nobody goes by a view without it: a catalog lease.
//  3. Resolve every lock that depends on a record in the range.
//  4. Remove what there is from before the safe point (erase_remove.go), and look whether anything is left.
//
// See "Erased ranges" in docs/architecture.md.

// Receipt says what DB.Erase has removed, in this call. What an earlier call has removed that was broken off is not counted.
type Receipt struct {
	Range Range
	// SafePoint is that of the range: nobody reads or commits in it by a snapshot from before.
	SafePoint Timestamp
	// Rows counts the rows in which the call has found anything, a value or a trace, and of which nothing is left. Each counts once, however often the
	// call had to look.
	Rows int64
	// Kept counts the rows that something stays of, since they were written after the deletion, or somebody tried that. It is the number at the
	// last look; none of them is among Rows.
	Kept int64
	// Cells counts the cells that had a value, and were deleted.
	Cells int64
	// Versions counts what was removed: versions of cells, of acknowledgments and failures, long values, marks, notifications. What was removed by a
	// request whose reply was lost is not counted here, nor in Timers and Parked.
	Versions int64
	Timers   int64 // rows of the index of timers
	Parked   int64 // records of parked runs, and of those that were parked before
	// Elsewhere says in words where more of it may be, which the call cannot reach.
	Elsewhere []string
}

// elsewhere is what no call of the library reaches.
var elsewhere = []string{
	"tables that observers or programs derived from these rows",
	"the catalog, which keeps the two bounds of the range until the safe point of its table has passed",
	"records of replays, which name a row that they have got to, and stay for a retention after the replay has ended",
	"over TiKV, the names of the rows and of the entries of indexes, which its backend cannot remove",
	"hints that other processes have in memory, or that a request under way stores: they name rows, are stored within seconds, and collected after a retention",
	"the backend's write-ahead logs, append-only files, and files that its engine has not compacted or vacuumed",
	"replicas, backups and archives of the store",
	"systems that observers wrote to, and logs",
}

// mostEntryPasses bounds how often the history of an index is gone over.
const mostEntryPasses = 8

var erases = feature{"erased ranges", func(v *catalogView) (*bool, *Timestamp) { return &v.Erased, &v.ErasedFrom }}

// Erase deletes the rows of a range and removes every trace of them from the store's tables, as far as the library reaches: the history of their cells,
// notifications, timers, claims, acknowledgments, failures, records of parked runs, what is kept for observers of old values, and marks. The
// rows are deleted as by DeleteRange. Then the call waits until the observers of the table have seen that, so that they can delete what they derived.
// So it needs workers that run them. Then it waits a catalog lease.
//
// An empty From and To name the whole table. So does a prefix that is "" by mistake, since PrefixEnd of it is "" too: then all rows
// of the table go, and there is no way back. Check a prefix that comes from elsewhere before you call.
//
// r names a table and rows of it; Columns, Limit, Reverse and Timestamps must be zero, and From must lie below To,
// or the error matches ErrInvalid. First stop what writes to the range. What is
// committed there meanwhile stays, and is counted (Receipt.Kept): erase again. Transactions that are open then and write in the range get
// ErrTxnTooOld, and older snapshots of it ErrSnapshotTooOld, also under a Hold, or where its table has a retention. Other rows of the table are as before.
// If columns of the table are indexed, the history of these indexes goes as a whole: older snapshots of an index, and transactions that
// have begun before and change it, get these errors too.
//
// It may be broken off at any time, by ctx or by the death of the process: call it again with the same range, and it goes on. It may be called concurrently.
// Until the safe point of the table has passed that of the range, a retention of the table later, the catalog keeps the range. There may be 256 of
// them; one that lies in another that was erased later does not count. With as many, the call returns an error before it deletes anything, and does not wait. So a
// program that erases more often than 256 times in a retention erases larger ranges, or has the table keep its history for a shorter time (ConfigureTable).
//
// Errors: ErrObserverPaused if an observer that has yet to see a deletion is paused; ErrParked, as a ParkedError, if its run is parked: release
// or drop it; ErrCorrupt or ErrFormat, which name the row, if one cannot be read that may have something of the range; ErrTooLarge for a bad name, a row with too many cells (see DeleteRange), and too many ranges; ErrIndexed if this process does not keep an index of the table; ErrUndetermined, ErrClosed, those of the context
// and of the store. An error of ctx names the observers that the call has waited for.
//
// From the first one on, programs of versions that do not know of erased ranges get ErrFormat, also those that have the data open. It waits one catalog
// lease more.
func (db *DB) Erase(ctx context.Context, r Range) (Receipt, error) {
	receipt := Receipt{Range: r}
	if err := db.checkRange("Erase", &r); err != nil {
		return receipt, err
	}
	if r.To != "" && r.From >= r.To {
		// The bounds were mixed up, or are not what the caller thinks: and the history of a whole index would go with no row.
		return receipt, fmt.Errorf("percolator: Erase: %w: Range.From %q does not lie below Range.To %q, so no row is in the range", ErrInvalid, r.From, r.To)
	}
	if len(r.Columns) > 0 || r.Limit != 0 || r.Reverse || r.Timestamps {
		return receipt, fmt.Errorf("percolator: Erase: %w: Range.Columns, Limit, Reverse and Timestamps are not for erasing", ErrInvalid)
	}
	e := &erasure{db: db, span: span{table: format.Escape(r.Table), from: r.From, to: r.To}, receipt: &receipt, found: newRowsFound()}
	e.spans = []span{e.span}
	if err := e.run(ctx, r); err != nil {
		return receipt, fmt.Errorf("percolator: erasing rows of table %q: %w", r.Table, err)
	}
	receipt.Elsewhere = slices.Clone(elsewhere)
	return receipt, nil
}

// erasure is an Erase under way.
type erasure struct {
	db      *DB
	span    span
	spans   []span    // the range, and the tables of the entries of its table's indexes
	seen    Timestamp // an observer that has seen a cell as of it, or later, is not waited for
	safe    Timestamp // of the range
	receipt *Receipt
	kept    map[string]bool // rows that were written since, at the last look
	found   rowsFound
}

func (e *erasure) run(ctx context.Context, r Range) error {
	db := e.db
	if _, err := db.awaitFeature(ctx, erases); err != nil {
		return err
	}
	if err := e.mayPublish(ctx); err != nil {
		return err // before anything is deleted
	}
	if err := e.deleteRows(ctx, r); err != nil {
		return err
	}
	return db.during(ctx, e.removeAll)
}

// deleteRows deletes the rows of the range. Another call that erases some of them, or rows of the same indexes, publishes its safe point at any
// moment. What is being deleted then is refused, and deleted again above that safe point.
func (e *erasure) deleteRows(ctx context.Context, r Range) error {
	for {
		before := e.erasedIn(e.db.known())
		report, err := e.db.DeleteRange(ctx, r)
		e.receipt.Cells += report.Cells
		if !errors.Is(err, ErrSnapshotTooOld) && !errors.Is(err, ErrTxnTooOld) {
			return err
		}
		v, cerr := e.db.loadCatalog(ctx)
		if cerr != nil || e.erasedIn(v) <= before {
			return errors.Join(err, cerr)
		}
		r.From = report.Next
	}
}

// erasedIn returns the newest safe point of the erased ranges that meet what this call erases.
func (e *erasure) erasedIn(v *catalogView) (safe Timestamp) {
	for _, s := range e.spans {
		safe = max(safe, v.erasedIn(s))
	}
	return safe
}

// removeAll removes every trace of the deleted rows.
func (e *erasure) removeAll(ctx context.Context) (err error) {
	db := e.db
	if e.seen, err = db.draw(ctx); err != nil {
		return err
	}
	if err := e.awaitObservers(ctx); err != nil {
		return err
	}
	// It lies above the commits of the acknowledgments too.
	if e.safe, err = db.draw(ctx); err != nil {
		return err
	}
	e.seen, e.receipt.SafePoint = e.safe, e.safe
	if err := e.mayPublish(ctx); err != nil {
		return err
	}
	if err := db.publishErased(ctx, e.spans, e.safe); err != nil {
		return err
	}
	if err := db.outlast(ctx); err != nil {
		return err
	}
	pause := Backoff{Min: time.Millisecond, Max: 100 * time.Millisecond}
	for attempt := 0; ; attempt++ {
		left, err := e.remove(ctx)
		if err != nil {
			return err
		}
		if left == 0 {
			e.receipt.Rows, e.receipt.Kept = e.found.without(e.kept), int64(len(e.kept))
			return nil
		}
		if err := db.clock.Sleep(ctx, pause.wait(attempt, db.rand)); err != nil {
			return fmt.Errorf("%d rows have locks or notifications: %w", left, err)
		}
		if err := e.awaitObservers(ctx); err != nil {
			return err
		}
	}
}

// mayPublish finds the tables of the entries of the table's indexes, and returns an error if the catalog cannot take the ranges.
func (e *erasure) mayPublish(ctx context.Context) error {
	v, err := e.db.loadCatalog(ctx)
	if err != nil {
		return err
	}
	e.spans = e.spans[:1]
	for _, x := range v.Indexes {
		if string(x.Table) == e.span.table {
			e.spans = append(e.spans, span{table: string(x.Entries)})
		}
	}
	_, _, err = v.withErased(e.spans, oracle.Max)
	return err
}

// remove removes what is there from before the safe point. left is the number of rows that something is still in the way of.
func (e *erasure) remove(ctx context.Context) (left int, err error) {
	db := e.db
	v, err := db.loadCatalog(ctx)
	if err != nil {
		return 0, err
	}
	report := &GCReport{}
	p := &gcPass{db: db, within: 1, view: v, report: report, erases: e.spans, erased: e.safe}
	if err := p.resolve(ctx); err != nil {
		return 0, err
	}
	// Long histories go in pieces, from the oldest on.
	c := p.collection(e.span.table, e.safe)
	for row, err := range e.scan(ctx, rowstore.ScanRange{Table: e.span.table, From: e.span.from, To: e.span.to, Selectors: c.picks}) {
		if err == nil {
			e.found.add(row.Row)
			err = c.look(ctx, &row)
		}
		if err != nil {
			return 0, err
		}
	}
	err = c.end(ctx)
	e.receipt.Versions += int64(report.Versions)
	if err != nil {
		return 0, err
	}
	left, err = e.removeRows(ctx, v)
	// A row that is kept has its history removed by the collection alone.
	if left += report.missed; err != nil || left > 0 {
		return left, err
	}
	if left, err = e.removeEntries(ctx, p); err != nil {
		return left, err
	}
	for _, step := range []func(context.Context, *catalogView) (left int, err error){e.removeParked, e.removeTimers, e.removeHints} {
		n, err := step(ctx, v)
		left += n
		if err != nil {
			return left, err
		}
	}
	return left, nil
}

// removeEntries removes the history of the indexes of the table. The rows of an index have values in their names. Which of them were
// the range's is not to be seen in the index, so all of it is collected.
func (e *erasure) removeEntries(ctx context.Context, p *gcPass) (left int, err error) {
	before := p.report.Versions
	defer func() { e.receipt.Versions += int64(p.report.Versions - before) }()
	for _, s := range e.spans[1:] {
		// The last time nothing is found.
		for removed, missed, n := 0, 0, 0; n == 0 || (p.report.Versions > removed || p.report.missed > missed) && n < mostEntryPasses; n++ {
			removed, missed = p.report.Versions, p.report.missed
			if err := p.removeVersions(ctx, s.table, e.safe); err != nil {
				return left, fmt.Errorf("removing the history of an index: %w", err)
			}
			if n == mostEntryPasses-1 && (p.report.Versions > removed || p.report.missed > missed) {
				left++
			}
		}
	}
	return left, nil
}

// dependsOn tells whether a lock must be resolved before the range of an erasure is removed: it lies there, or may depend on a
// record there, or on one of a parked run, or its transaction may not know that ranges are erased.
func (p *gcPass) dependsOn(row *rowstore.Row, primary format.Cell, start Timestamp) bool {
	return start < p.view.ErasedFrom || row.Table == format.TableParked || primary.Table == format.TableParked ||
		slices.ContainsFunc(p.erases, func(s span) bool { return s.has(row.Table, row.Row) || s.has(primary.Table, primary.Row) })
}
