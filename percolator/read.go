package percolator

import (
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// snapshotPicks selects what a read of a column at a snapshot needs: the lock that
// may hide a commit at or below it, and the newest committed version.
func snapshotPicks(picks []rowstore.Selector, column string, at Timestamp) []rowstore.Selector {
	return append(picks,
		rowstore.Selector{Family: rowstore.Lock, Column: column, To: at, Limit: 1},
		rowstore.Selector{Family: rowstore.Write, Column: column, To: at, Limit: 1},
	)
}

// getCell reads one cell.
func (db *DB) getCell(ctx context.Context, c Cell, s *snapshot) (value []byte, found bool, err error) {
	var one struct { // in one piece of memory
		reads [1]rowstore.RowRead
		picks [2]rowstore.Selector
	}
	one.reads[0] = rowstore.RowRead{Table: c.Table, Row: c.Row, Selectors: snapshotPicks(one.picks[:0], c.Column, s.at())}
	rows, timely, err := db.readSettled(ctx, one.reads[:], s)
	if err != nil {
		return nil, false, err
	}
	at := s.start
	w, found, err := committed(&rows[0], c.Column)
	if err != nil {
		return nil, false, err
	}
	if found && w.Long {
		values, err := db.longValues(ctx, []longValue{{c, w.Start}})
		if err != nil {
			return nil, false, err
		}
		if err := db.checkAnswer(ctx, at, values[0] != nil, c.span()); err != nil {
			return nil, false, err
		}
		if values[0] == nil {
			return nil, false, missingData(c, w.Start)
		}
		return values[0], true, nil
	}
	if err := db.checkAnswer(ctx, at, timely || rows[0].Newest(rowstore.Write, c.Column) != nil, c.span()); err != nil {
		return nil, false, err
	}
	if !found {
		return nil, false, nil
	}
	return notNil(w.Value), true, nil
}

// A read of many cells is split into several calls, so that none of them is large.
// Values in Data are longer than those beside the writes, so a call asks for fewer of
// them (longs.go).
const readCells = 1024

// getCells reads several cells, which may be named twice. A cell without a value yields
// nil; a cell with an empty value yields an empty, non-nil slice.
func (db *DB) getCells(ctx context.Context, cells []Cell, s *snapshot) ([][]byte, error) {
	values := make([][]byte, 0, len(cells))
	for page := range slices.Chunk(cells, readCells) {
		v, err := db.getPage(ctx, page, s)
		if err != nil {
			return nil, err
		}
		values = append(values, v...)
	}
	return values, nil
}

// getPage is getCells in one call, plus the calls for long values.
func (db *DB) getPage(ctx context.Context, cells []Cell, s *snapshot) ([][]byte, error) {
	reads, where := cellReads(cells, s.at())
	rows, timely, err := db.readSettled(ctx, reads, s)
	if err != nil {
		return nil, err
	}
	return db.answer(ctx, cells, reads, rows, where, timely, s)
}

// answer returns the values of cells from settled rows, with calls for long ones. where and timely are as in cellReads and readAt.
func (db *DB) answer(ctx context.Context, cells []Cell, reads []rowstore.RowRead, rows []rowstore.Row, where []int, timely bool, s *snapshot) ([][]byte, error) {
	missing := false
	values := make([][]byte, len(cells))
	var long []longValue
	var longAt []int
	for i, c := range cells {
		w, ok, err := committed(&rows[where[i]], c.Column)
		switch {
		case err != nil:
			return nil, err
		case !ok:
			missing = missing || !timely && rows[where[i]].Newest(rowstore.Write, c.Column) == nil
		case w.Long:
			long, longAt = append(long, longValue{c, w.Start}), append(longAt, i)
		default:
			values[i] = notNil(w.Value)
		}
	}
	longs, err := db.longValues(ctx, long)
	if err != nil {
		return nil, err
	}
	missing = missing || slices.ContainsFunc(longs, func(v []byte) bool { return v == nil })
	var few [4]span
	if err := db.checkAnswer(ctx, s.start, !missing, spansOf(few[:0], reads)...); err != nil {
		return nil, err
	}
	for i, l := range long {
		if longs[i] == nil {
			return nil, missingData(l.cell, l.start)
		}
		values[longAt[i]] = longs[i]
	}
	return values, nil
}

// spansOf appends what is read: one span for the rows of each table. Which rows they are counts
// where a range was erased, and only the view that judges the answer knows that.
func spansOf(spans []span, reads []rowstore.RowRead) []span {
	for i := range reads {
		table := reads[i].Table
		if i > 0 && table == reads[i-1].Table {
			continue
		}
		if !slices.ContainsFunc(spans, func(s span) bool { return s.table == table }) {
			spans = append(spans, span{table: table, reads: reads})
		}
	}
	return spans
}

// cellReads makes one read of each row. where tells for each cell the index of its
// read.
func cellReads(cells []Cell, at Timestamp) (reads []rowstore.RowRead, where []int) {
	reads, where = make([]rowstore.RowRead, 0, len(cells)), make([]int, len(cells))
	picks := make([]rowstore.Selector, 2*len(cells)) // two for each row; a row with more cells gets an array of its own
	// Maps pay only where there are many cells.
	var index map[rowName]int
	var seen map[Cell]struct{}
	if len(cells) > indexFrom {
		index, seen = make(map[rowName]int, len(cells)), make(map[Cell]struct{}, len(cells))
	}
	for i, c := range cells {
		r, known := index[c.rowName()]
		_, twice := seen[c]
		if index == nil {
			r = slices.IndexFunc(reads, func(r rowstore.RowRead) bool { return r.Row == c.Row && r.Table == c.Table })
			known = r >= 0
			twice = known && slices.ContainsFunc(reads[r].Selectors, func(p rowstore.Selector) bool { return p.Column == c.Column })
		} else {
			seen[c] = struct{}{}
		}
		if !known {
			r = len(reads)
			reads = append(reads, rowstore.RowRead{Table: c.Table, Row: c.Row, Selectors: picks[2*r : 2*r : 2*r+2]})
			if index != nil {
				index[c.rowName()] = r
			}
		}
		if !twice {
			reads[r].Selectors = snapshotPicks(reads[r].Selectors, c.Column, at)
		}
		where[i] = r
	}
	return reads, where
}

func notNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func missingData(c Cell, start Timestamp) error {
	return fmt.Errorf("%w: %v has a long value of transaction %d, and no data", ErrCorrupt, c.public(), uint64(start))
}

// committed finds the newest version of column in a row that was read with
// snapshotPicks and is settled. found is false for none, and for a delete.
func committed(row *rowstore.Row, column string) (w format.Write, found bool, err error) {
	v := row.Newest(rowstore.Write, column)
	if v == nil {
		return format.Write{}, false, nil
	}
	w, err = format.DecodeWrite(v.Value)
	if err != nil {
		return w, false, fmt.Errorf("table %q, row %q, column %q at %d: %w", row.Table, row.Row, column, uint64(v.TS), err)
	}
	return w, w.Kind == format.KindPut, nil
}

// readRows is Store.Read, but the error of a single row fails the whole call.
func (db *DB) readRows(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	rows, err := db.store.Read(ctx, reads)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		if rows[i].Err != nil {
			return nil, rows[i].Err
		}
	}
	return rows, nil
}

// readSettled reads rows so that the result shows no put or delete lock at or below the
// snapshot: each row comes from one view that shows none. It resolves locks that it
// meets, and waits for those of living transactions. Readers hold nothing, so they may
// wait for any transaction. If the snapshot has no timestamp yet, it gets one, and
// picks that said AssignedTimestamp name that timestamp afterwards. timely is as in readAt.
func (db *DB) readSettled(ctx context.Context, reads []rowstore.RowRead, s *snapshot) (rows []rowstore.Row, timely bool, err error) {
	rows, timely, err = db.readAt(ctx, reads, s)
	if err != nil {
		return nil, false, err
	}
	again, err := db.settleRows(ctx, rows, func(i int) []rowstore.Selector { return reads[i].Selectors }, s.start)
	if err != nil {
		return nil, false, err
	}
	return rows, timely && !again, nil
}

// readAt is readRows at a snapshot; a first read draws the snapshot's timestamp in the
// same call. timely means that the rows were then read by the same request. So nothing
// that the snapshot needs can have been collected: a safe point lies more than a
// catalog lease below the timestamps of its time.
func (db *DB) readAt(ctx context.Context, reads []rowstore.RowRead, s *snapshot) (rows []rowstore.Row, timely bool, err error) {
	if s.set {
		rows, err = db.readRows(ctx, reads)
		return rows, false, err
	}
	began := db.clock.Now()
	answers, err := db.snapshotReader.ReadSnapshot(ctx, []rowstore.SnapshotRead{{Reads: reads}})
	if err == nil {
		err = answers[0].Err
	}
	if err != nil {
		return nil, false, err
	}
	if s.set {
		return nil, false, errTwoAtOnce
	}
	*s = snapshot{set: true, start: answers[0].TS, began: began}
	for i := range reads {
		for j := range reads[i].Selectors {
			if p := &reads[i].Selectors[j]; p.To == rowstore.AssignedTimestamp {
				p.To = s.start
			}
		}
	}
	rows = answers[0].Rows
	for i := range rows {
		if rows[i].Err != nil {
			return nil, false, rows[i].Err
		}
	}
	return rows, !answers[0].Apart, nil
}

// everything is a pick of all versions of a family, for the library's own rows.
func everything(f rowstore.Family, column string) rowstore.Selector {
	return rowstore.Selector{Family: f, Column: column, To: oracle.Max}
}
