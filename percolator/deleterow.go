package percolator

import (
	"context"
	"errors"
	"fmt"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Rows that are deleted as a whole. DeleteRow deletes the columns that its snapshot shows, as Delete would, and locks a
// column of the library's own which stands for the row (format.ColumnWholeRow). Two things make it conflict with writers of
// other columns:
//
//   - between its commit timestamp and its commit point it looks at the row once more, as a Serializable transaction
//     does: there must be no write since its start, and no lock, of any column;
//   - every other transaction that writes to the row has the condition that nobody else has locked the whole row, and
//     that nobody has deleted it since its own start, which the mark of that lock tells.
//
// The second one is part of mutations that are sent anyway, and only in databases in which a row was ever
// deleted so. See "Deleted rows" in docs/architecture.md.

// DeleteRow deletes a row at Commit: the values of all its columns, those that the transaction itself has set so far
// too, and the timers of its cells. What is set afterwards in the same transaction stays. It is no error if the row has
// nothing. Observers of the columns that had a value run, as after Delete.
//
// The transaction conflicts with every other one that writes to the row, or sets or cancels a timer in it: also in columns
// that this one did not see, because they had no value at its snapshot. Of a deletion and such a write, neither of which has
// seen the other, only one is committed. A transaction that does nothing but delete rows in which it saw nothing commits without effect, as if it came first. Acknowledgments of observers are no such writes. A transaction that deletes rows takes two phases.
//
// Errors: ErrInvalid and ErrTooLarge for bad names; ErrTooLarge too if the row has more columns than a transaction may write
// (Limits.Cells): then DB.DeleteRange with Columns deletes it in parts; ErrReadOnly, ErrTxnDone, ErrSnapshotTooOld, ErrClosed, those of
// the context and of the store. ErrConflict comes once, from a transaction that has begun before every process knew of deleted rows; Update runs its function again.
//
// From the first one on, programs of versions that do not know of deleted rows get ErrFormat, also those that have the
// data open. It waits until every process knows of it, one catalog lease. From then on each row that a
// transaction writes costs two conditions more, and no call.
func (tx *Txn) DeleteRow(ctx context.Context, table, row string) error {
	if err := tx.usable(ctx); err != nil {
		return err
	}
	if err := tx.writable(&Cell{Table: table, Row: row, Column: "?"}, "DeleteRow"); err != nil {
		return err
	}
	if err := tx.mayDeleteRows(ctx); err != nil {
		return err
	}
	name := rowName{format.Escape(table), row}
	read := []rowstore.RowRead{{Table: name.table, Row: name.row, Selectors: snapshotPicks(nil, rowstore.AllColumns, tx.start)}}
	rows, timely, err := tx.db.readSettled(ctx, read, &tx.snapshot)
	if err == nil {
		// Columns that are missing count.
		err = tx.db.checkAnswer(ctx, tx.start, timely, span{table: name.table, from: name.row, row: true})
	}
	if err != nil {
		tx.storeFailed = true
		return fmt.Errorf("percolator: reading row %q of table %q: %w", row, table, readFailed(ctx, err))
	}
	live, err := liveCells(&rows[0], ofUser)
	if err == nil {
		err = tx.deleteRow(name, live)
	}
	if err != nil {
		return called("DeleteRow", err)
	}
	return nil
}

// mayDeleteRows returns nil once the transaction has begun above the moment from which on every writer knows of deleted rows.
func (tx *Txn) mayDeleteRows(ctx context.Context) error {
	from := tx.db.known().RowDeletesFrom
	if from == 0 {
		var err error
		if from, err = tx.db.awaitFeature(ctx, rowDeletes); err != nil {
			return called("DeleteRow", err)
		}
	}
	if err := tx.begin(ctx); err != nil {
		return err
	}
	if tx.start > from {
		return nil
	}
	// Whoever tries again has to begin above that moment, or would try in vain.
	if _, err := tx.db.awaitFeature(ctx, rowDeletes); err != nil {
		return called("DeleteRow", err)
	}
	return &ConflictError{With: from, Reason: "it has begun before every process knew of deleted rows"}
}

// goneRows are the rows that a transaction deletes as a whole. nil has none.
type goneRows struct {
	list []rowName
	set  map[rowName]struct{}
	// Where in the transaction's list of writes those of a row are, of the first writes.
	writes map[rowName][]int
	seen   int
}

func (g *goneRows) all() []rowName {
	if g == nil {
		return nil
	}
	return g.list
}

func (g *goneRows) has(name rowName) bool {
	if g == nil {
		return false
	}
	_, has := g.set[name]
	return has
}

// forgetPlaces is for when the list of writes becomes another: places in it mean nothing then.
func (g *goneRows) forgetPlaces() {
	if g != nil {
		clear(g.writes)
		g.seen = 0
	}
}

// writesIn returns where in the list of writes those of a row are, in order.
func (g *goneRows) writesIn(name rowName, list []write) []int {
	for ; g.seen < len(list); g.seen++ {
		of := list[g.seen].cell.rowName()
		g.writes[of] = append(g.writes[of], g.seen)
	}
	return g.writes[name]
}

// deleteRow deletes the cells of a row that have a value, and what the transaction has set in it, and locks the whole row.
func (tx *Txn) deleteRow(name rowName, live []Cell) error {
	if tx.gone == nil {
		tx.gone = &goneRows{set: map[rowName]struct{}{}, writes: map[rowName][]int{}}
	}
	for _, i := range tx.gone.writesIn(name, tx.writes.list) {
		if w := &tx.writes.list[i]; w.kind == format.KindPut && ofUser(w.cell.Column) {
			live = append(live, w.cell)
		}
	}
	if err := tx.deleteCells(live); err != nil {
		return err
	}
	whole := Cell{name.table, name.row, format.ColumnWholeRow}
	if tx.writes.find(whole) != nil {
		return nil
	}
	if err := tx.lock(whole); err != nil {
		return err
	}
	tx.gone.list = append(tx.gone.list, name)
	tx.gone.set[name] = struct{}{}
	return nil
}

func (tx *Txn) deleteCells(cells []Cell) error {
	for _, c := range cells {
		if err := tx.put(c, format.KindDelete, nil); err != nil {
			return err
		}
	}
	return nil
}

// ofUser tells whether a stored column is a user's, or a timer.
func ofUser(column string) bool {
	_, timer := format.SplitTimerColumn(column)
	return timer || !format.Reserved(column)
}

// rowGuards is how many conditions guardRow appends.
const rowGuards = 2

// guarded returns the index of one of writes[from:to], which are of one row, that a deletion of the row conflicts with, -1 if there is none.
func (c *committer) guarded(from, to int) int {
	first := &c.writes[from].cell
	if format.Reserved(first.Table) || c.tx.gone.has(first.rowName()) {
		return -1
	}
	for i := from; i < to; i++ {
		if ofUser(c.writes[i].cell.Column) {
			return i
		}
	}
	return -1
}

// guardRow appends the conditions that nobody deletes the row of writes[from:to], or has deleted it since the start.
func (c *committer) guardRow(conds []rowstore.Condition, from, to int) []rowstore.Condition {
	if !c.view.RowDeletes || c.guarded(from, to) < 0 {
		return conds
	}
	return append(conds,
		rowstore.Absent(rowstore.Lock, format.ColumnWholeRow, 0),
		rowstore.Absent(rowstore.Mark, format.ColumnWholeRow, c.start))
}

// guardsAny is guarded for all rows.
func (c *committer) guardsAny() int {
	for _, r := range c.rows {
		if i := c.guarded(r.from, r.to); i >= 0 {
			return i
		}
	}
	return -1
}

// validateGone makes sure that nobody has written to the rows that the transaction deletes since its start, in any column.
// Every prewrite was acknowledged before. So a writer of another column whose lock comes later is refused. One whose lock
// came before has not seen the deletion: it counts whenever it commits, also above the commit timestamp of this transaction.
func (c *committer) validateGone(ctx context.Context) error {
	var reads []rowstore.RowRead
	for _, name := range c.tx.gone.all() {
		reads = append(reads, rowstore.RowRead{Table: name.table, Row: name.row, Selectors: validationPicks(nil, rowstore.AllColumns, c.start, oracle.Max)})
	}
	return c.validateRows(ctx, reads, ofUser)
}

// deletePage bounds the part of a range that one transaction deletes, in rows and in cells.
const (
	deletePage  = 128
	deleteCells = 4096
)

// DeleteReport says how much DeleteRange has deleted.
type DeleteReport struct {
	Rows, Cells int64
	// Next is the row at which the next call goes on after an error: give it as Range.From. It is "" at the end.
	Next string
}

// DeleteRange deletes the rows of a range, in parts: each part is a transaction, and the whole is none. Without
// Range.Columns each row is deleted as by Txn.DeleteRow, with its timers. With some, only these cells are deleted, as by
// Txn.Delete. What is there when the call begins is deleted; what is written meanwhile may stay. A part that conflicts is
// repeated, as by Update. Observers run for what is deleted.
//
// An empty From and To name the whole table. So does a prefix that is "" by mistake, since PrefixEnd of it is "" too: check a prefix
// that comes from elsewhere before you call. A From at or above a To that is not "" deletes nothing, and is no error.
//
// r.Limit bounds the number of rows, 0 for all; Reverse and Timestamps must be false. To go on after an error, or after the
// limit, call it again from DeleteReport.Next. After the death of a process call it with the whole range: what is deleted is not there any more,
// and only costs time until it is collected. A row with more cells than a transaction may write (Limits.Cells), with what its indexes have of it, is ErrTooLarge.
//
// Errors are those of Scan, DeleteRow and Update. After ErrUndetermined the last part may or may not be deleted, and is not counted. It may be called concurrently.
func (db *DB) DeleteRange(ctx context.Context, r Range) (DeleteReport, error) {
	report := DeleteReport{Next: r.From}
	if err := db.checkRange("DeleteRange", &r); err != nil {
		return report, err
	}
	if r.Reverse || r.Timestamps {
		return report, fmt.Errorf("percolator: DeleteRange: %w: Range.Reverse and Timestamps are not for a deletion", ErrInvalid)
	}
	rows := int64(deletePage)
	for more := true; more; {
		page := r
		page.From, page.Limit = report.Next, int(rows)
		if r.Limit > 0 {
			page.Limit = int(min(rows, int64(r.Limit)-report.Rows))
		}
		var done DeleteReport
		err := db.Update(ctx, func(tx *Txn) (err error) {
			done, err = tx.deletePart(ctx, &page)
			return err
		})
		// What is kept beside the rows, as entries of indexes, counts at the commit alone.
		if errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrUndetermined) && done.Rows > 1 {
			rows = done.Rows / 2
			continue
		}
		rows = min(deletePage, rows+1)
		if err != nil {
			return report, fmt.Errorf("percolator: deleting from row %q of table %q on: %w", report.Next, r.Table, err)
		}
		report = DeleteReport{Rows: report.Rows + done.Rows, Cells: report.Cells + done.Cells, Next: done.Next}
		more = done.Next != "" && (r.Limit == 0 || report.Rows < int64(r.Limit))
	}
	return report, nil
}

// deletePart deletes a part of a range. Next of its report is "" at the end of the range.
func (tx *Txn) deletePart(ctx context.Context, r *Range) (done DeleteReport, err error) {
	if err := tx.usable(ctx); err != nil {
		return done, err
	}
	whole := len(r.Columns) == 0
	if whole {
		err = tx.mayDeleteRows(ctx)
	} else {
		err = tx.begin(ctx)
	}
	if err != nil {
		return done, err
	}
	s := newScan(tx, *r)
	wants := s.wants
	if whole {
		wants = ofUser // with timers
	}
	scan := rowstore.ScanRange{Table: s.table, From: r.From, To: r.To, Selectors: s.picks, Limit: scanSpareMost}
	seen := 0
	for row, err := range tx.db.scanSettled(ctx, scan, tx.start, nil, nil) {
		if err != nil {
			return done, readFailed(ctx, err)
		}
		seen++
		live, err := liveCells(&row, wants)
		if err != nil {
			return done, err
		}
		if len(live) > 0 && (done.Rows == int64(r.Limit) || done.Rows > 0 && !tx.hasRoom(live)) {
			done.Next = row.Row
			return done, tx.db.checkSnapshot(ctx, tx.start, s.span())
		}
		done.Next = row.Row + "\x00"
		switch {
		case len(live) == 0:
			continue
		case whole:
			err = tx.deleteRow(rowName{row.Table, row.Row}, live)
		default:
			err = tx.deleteCells(live)
		}
		if err != nil {
			return done, tooWide(err, row.Row)
		}
		done.Rows++
		for _, c := range live {
			if !format.Reserved(c.Column) {
				done.Cells++
			}
		}
	}
	if seen < scanSpareMost {
		done.Next = ""
	}
	return done, tx.db.checkSnapshot(ctx, tx.start, s.span())
}

// hasRoom tells whether a part of a range may have the cells of one more row.
func (tx *Txn) hasRoom(cells []Cell) bool {
	bytes := tx.writes.bytes
	for _, c := range append(cells, Cell{cells[0].Table, cells[0].Row, format.ColumnWholeRow}) {
		bytes += len(c.Table) + len(c.Row) + len(c.Column)
	}
	return len(tx.writes.list)+len(cells) < min(deleteCells, tx.db.limits.Cells) && bytes <= tx.db.limits.Bytes
}

func tooWide(err error, row string) error {
	if errors.Is(err, ErrTooLarge) {
		return fmt.Errorf("row %q, which one transaction cannot delete: %w", row, err)
	}
	return err
}

// liveCells lists the cells of a settled row, of the columns that are wanted, that have a value.
func liveCells(row *rowstore.Row, wants func(column string) bool) (cells []Cell, err error) {
	for i := range row.Versions {
		v := &row.Versions[i]
		if v.Family != rowstore.Write || !wants(v.Column) {
			continue
		}
		w, err := format.DecodeWrite(v.Value)
		if err != nil {
			return nil, fmt.Errorf("row %q, column %q at %d: %w", row.Row, v.Column, uint64(v.TS), err)
		}
		if w.Kind == format.KindPut {
			cells = append(cells, Cell{row.Table, row.Row, v.Column})
		}
	}
	return cells, nil
}
