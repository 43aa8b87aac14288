package percolator

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The last step of DB.Erase: what a collection leaves, because it may be needed, is not needed in a range that was erased. Every row is
// looked at in one view, and each mutation has the condition that its columns are still as that view showed them.

var (
	// erasedPicks show of each column what decides what becomes of its row: the newest versions. Further ones are there where the row was changed since, so the
	// collection before has left it, or where it is written all the time.
	erasedPicks = newestPicksOf(gcPage)
	// newestPicks show whether a row has anything.
	newestPicks = newestPicksOf(1)
)

func newestPicksOf(most int) (picks []rowstore.Selector) {
	for _, f := range []rowstore.Family{rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark, rowstore.Notify} {
		picks = append(picks, rowstore.Selector{Family: f, Column: rowstore.AllColumns, To: oracle.Max, Limit: most})
	}
	return picks
}

// removeRows removes the rows of the range in which nothing was written since. left counts those that something is in the way of.
func (e *erasure) removeRows(ctx context.Context, v *catalogView) (left int, err error) {
	e.kept = map[string]bool{}
	scan := rowstore.ScanRange{Table: e.span.table, From: e.span.from, To: e.span.to, Selectors: erasedPicks}
	for row, err := range e.scan(ctx, scan) {
		if err != nil {
			return left, fmt.Errorf("looking at what is left: %w", err)
		}
		e.found.add(row.Row)
		x := &erasedRow{e: e, v: v, row: &row}
		fate, err := x.judge()
		switch {
		case err != nil:
			return left, fmt.Errorf("row %q: %w", row.Row, err)
		case fate == rowKept:
			e.kept[row.Row] = true
			continue
		case fate == rowWaits:
			if err := x.resolve(ctx); err != nil {
				return left, fmt.Errorf("row %q: %w", row.Row, err)
			}
			left++
			continue
		}
		gone, err := x.remove(ctx)
		if err != nil {
			return left, fmt.Errorf("row %q: %w", row.Row, err)
		}
		if !gone {
			left++
		}
	}
	return left, nil
}

// erasedRow is what one view shows of a row of the range.
type erasedRow struct {
	e   *erasure
	v   *catalogView
	row *rowstore.Row
}

type rowFate int

const (
	rowGoes  rowFate = iota
	rowKept          // it was written since
	rowWaits         // for a lock that is resolved soon, or for an observer
)

// judge tells what becomes of the row. A version above the safe point was committed since, and so was a value that is the newest one:
// the deletion would have met it.
func (x *erasedRow) judge() (rowFate, error) {
	fate := rowGoes
	last := ""
	for i := range x.row.Versions {
		v := &x.row.Versions[i]
		switch newest := i == 0 || v.Family != x.row.Versions[i-1].Family || v.Column != last; v.Family {
		case rowstore.Lock:
			if v.TS > x.e.safe {
				return rowKept, nil
			}
			fate = rowWaits
		case rowstore.Notify:
			switch {
			case len(x.v.observers(x.row.Table, v.Column)) > 0:
				fate = rowWaits
			case v.TS > x.e.safe:
				return rowKept, nil // nobody clears it before a collection
			}
		case rowstore.Mark:
			if v.TS > x.e.safe && !format.IsClaimColumn(v.Column) {
				return rowKept, nil // somebody has tried to write
			}
		case rowstore.Write:
			if v.TS > x.e.safe {
				return rowKept, nil
			}
			if !newest {
				break
			}
			w, err := format.DecodeWrite(v.Value)
			if err != nil {
				return 0, fmt.Errorf("column %q: %w", v.Column, err)
			}
			if w.Kind == format.KindPut && ofUser(v.Column) {
				return rowKept, nil
			}
			if err := x.parked(v.Column, &w); err != nil {
				return 0, err
			}
		}
		last = v.Column
	}
	return fate, nil
}

// resolve resolves the locks of the row from before the safe point. Their transactions commit no more, whether their owners live or not.
func (x *erasedRow) resolve(ctx context.Context) error {
	for i := range x.row.Versions {
		v := &x.row.Versions[i]
		if v.Family != rowstore.Lock {
			continue
		}
		l, err := format.DecodeLock(v.Value)
		if err != nil {
			return fmt.Errorf("column %q: %w", v.Column, err)
		}
		if _, err := x.e.db.resolveLock(ctx, Cell{x.row.Table, x.row.Row, v.Column}, v.TS, &l, overrideLiveOwner); err != nil {
			return err
		}
	}
	return nil
}

// parked returns an error if a write is the record of a parked run of an observer that is registered.
func (x *erasedRow) parked(column string, w *format.Write) error {
	prefix, id, of, ok := format.SplitOwnColumn(column)
	if !ok || prefix != format.PrefixFailure || w.Kind != format.KindPut || w.Long {
		return nil
	}
	f, err := format.DecodeFailure(w.Value)
	if err != nil || !f.Parked {
		return err
	}
	c := Cell{x.row.Table, x.row.Row, of}
	if !slices.Contains(x.v.observers(c.Table, c.Column), id) {
		return nil
	}
	return &ParkedError{ParkedRun{Observer: x.v.titleOf(id, c.Table, c.Column), Cell: c.public(), Change: f.Change, Attempts: f.Attempts}}
}

// remove removes all of the row, in parts if it has many columns. Each part has whole columns. gone is false if the row has
// changed since it was looked at.
func (x *erasedRow) remove(ctx context.Context) (gone bool, err error) {
	most := max(1, x.e.db.rowOperations()/8)
	seen := map[string]int{} // versions, by column
	var columns []string
	for i := range x.row.Versions {
		c := x.row.Versions[i].Column
		if seen[c]++; seen[c] == 1 {
			columns = append(columns, c)
		}
	}
	for len(columns) > 0 {
		n := min(most, len(columns))
		m, versions := rowstore.Mutation{Table: x.row.Table, Row: x.row.Row}, 0
		for _, c := range columns[:n] {
			x.removeColumn(&m, c)
			versions += seen[c]
		}
		columns = columns[n:]
		out, err := x.e.db.applyOne(ctx, m)
		if err != nil && !mayAskAgain(err) {
			return false, err
		}
		if err != nil || !out.Applied {
			return false, nil
		}
		x.e.receipt.Versions += int64(versions)
	}
	return true, nil
}

// removeColumn removes what a column has from before the safe point. A claim is dated ahead, and nothing depends on it.
func (x *erasedRow) removeColumn(m *rowstore.Mutation, column string) {
	safe, marks := x.e.safe, x.e.safe
	if format.IsClaimColumn(column) {
		marks = oracle.Max
	}
	m.Conditions = append(m.Conditions,
		rowstore.Absent(rowstore.Write, column, safe+1), rowstore.Absent(rowstore.Lock, column, 0), rowstore.Absent(rowstore.Notify, column, safe+1))
	m.Edits = append(m.Edits,
		rowstore.DeleteRange(rowstore.Write, column, 0, safe), rowstore.DeleteRange(rowstore.Data, column, 0, safe),
		rowstore.DeleteRange(rowstore.Mark, column, 0, marks), rowstore.DeleteRange(rowstore.Notify, column, 0, safe))
}

// removeParked removes the records of parked runs for cells of the range, with their history. Whoever writes such a record writes
// beside its cell too, so the safe point of the range keeps older transactions from it.
func (e *erasure) removeParked(ctx context.Context, v *catalogView) (left int, err error) {
	scan := rowstore.ScanRange{Table: format.TableParked, Selectors: erasedPicks}
	for row, err := range e.scan(ctx, scan) {
		if err != nil {
			return left, fmt.Errorf("reading the records of parked runs: %w", err)
		}
		c, ok, err := parkedFor(&row)
		if err != nil {
			return left, fmt.Errorf("reading the records of parked runs: %w", err)
		}
		if !ok || !e.span.has(c.Table, c.Row) || e.kept[c.Row] {
			continue
		}
		gone, err := (&erasedRow{e: e, v: v, row: &row}).remove(ctx)
		if err != nil {
			return left, fmt.Errorf("removing the record of a parked run: %w", err)
		}
		if gone {
			e.receipt.Parked++
		} else {
			left++
		}
	}
	return left, nil
}

// parkedFor tells which cell the records in a row of TableParked are for. It returns an error if one of them cannot be decoded, and nothing else
// tells: it may be for a cell of the range.
func parkedFor(row *rowstore.Row) (c Cell, ok bool, err error) {
	if c, _, ok := format.ParkedOf(row.Row); ok {
		return Cell(c), true, nil
	}
	for i := range row.Versions {
		v := &row.Versions[i]
		value := v.Value
		var failed error
		switch v.Family {
		case rowstore.Write:
			w, werr := format.DecodeWrite(v.Value)
			if failed = werr; werr == nil && (w.Kind != format.KindPut || w.Long) {
				continue // it has no record
			}
			value = w.Value
		case rowstore.Data:
		default:
			continue
		}
		if failed == nil {
			var p format.Parked
			if p, failed = format.DecodeParked(value); failed == nil {
				return Cell(p.Cell()), true, nil
			}
		}
		err = cannotErase(row.Table, unreadable{from: row.Row, to: row.Row + "\x00", err: failed})
	}
	return Cell{}, false, err
}

// scan is Store.Scan whose error names the row that cannot be read. An erasure passes none by: it may hold what the call is for.
func (e *erasure) scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return e.db.scanPast(ctx, r, func(u unreadable) error { return cannotErase(r.Table, u) })
}

// cannotErase is for what an erasure cannot read. Somebody must mend it before the call is made again, so the error says where it is.
func cannotErase(table string, u unreadable) error {
	if row, ok := u.row(); ok {
		return fmt.Errorf("row %q of table %q cannot be read, and may have something of the range: %w", row, table, u.err)
	}
	return fmt.Errorf("something from row %q of table %q on cannot be read, and may have something of the range: %w", u.from, table, u.err)
}

// removeTimers removes the rows of the index that tell of timers in the range, set by transactions from before the safe point. None of these has a
// timer any more, unless its row is kept.
func (e *erasure) removeTimers(ctx context.Context, v *catalogView) (left int, err error) {
	for n := range byte(format.TimerShards) {
		for from := format.TimersBegin(n); v.Timers && from != ""; {
			page, next, err := e.db.timersPage(ctx, timerShard{e.span.table, n}, from, oracle.Max, firePage, func(u unreadable) error {
				return cannotErase(format.TimersTable(e.span.table), u)
			})
			if err != nil {
				return left, err
			}
			var muts []rowstore.Mutation
			for i := range page {
				if t := &page[i]; e.span.has(t.cell.Table, t.cell.Row) && !e.kept[t.cell.Row] && t.at < e.safe {
					muts = append(muts, t.removed())
				}
			}
			removed := len(muts)
			err = e.db.removeTimers(ctx, muts, func(row string, failed error) error {
				if !mayAskAgain(failed) {
					return fmt.Errorf("row %q of table %q: %w", row, format.TimersTable(e.span.table), failed)
				}
				removed--
				left++
				return nil
			})
			switch {
			case mayAskAgain(err):
				left += len(muts)
			case err != nil:
				return left, err
			default:
				e.receipt.Timers += int64(removed)
			}
			from = next
		}
	}
	return left, nil
}
