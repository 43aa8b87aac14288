package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Columns that are read together (section 2.5 of the paper). What is read ahead stays in the transaction, as the store
// showed it at the snapshot, and is judged only when it is asked for. So a hint never fails a read, and never makes one wait: a
// hinted cell with a lock in the way, or that cannot be decoded, is read when it is asked for, as without a hint.

// What a transaction may have of such cells.
const (
	mostHinted = 64      // cells that are hinted and not read yet
	mostAhead  = 256     // cells that were read ahead
	mostLongs  = 8       // values in Data that one call reads ahead
	aheadBytes = 1 << 20 // of values in Data that are kept
)

// readAhead is what a transaction knows of cells before they are asked for. Stored names.
type readAhead struct {
	hinted []Cell
	have   map[Cell]*aheadCell
	bytes  int
	begun  bool // the first read was made
}

// aheadCell is a cell without a lock in the way, as a view at the snapshot showed it.
type aheadCell struct {
	write    format.Write // of kind 0 for no value
	complete bool         // as in checkAnswer
	data     []byte       // of a long value; nil for not read
	alone    bool         // its data was too large to be kept
}

// Prefetch hints that the transaction is going to read these columns of a row. They come with the next Get, GetForUpdate or
// GetMany of any of them, in the same call, or with the first such read of the transaction if that goes to the same
// server. Later reads of them cost no call. Nothing else changes: a hint
// never makes a read fail or wait, own writes come first, and a cell that is hinted and never read is not part of what Serializable
// validates.
//
// A transaction keeps 64 hints whose read is to come, and ignores further ones. It keeps 256 cells that were read; then it
// forgets them and goes on. Values above 255 bytes lie apart from the cells. They come with the first such value that is read, 8 in one
// call, and a mebibyte of them is kept: what is beyond costs a call of its own. An Observer names such columns in Observer.Prefetch.
//
// Errors: ErrInvalid and ErrTooLarge for bad names, ErrTxnDone. No columns are no error.
func (tx *Txn) Prefetch(table, row string, columns ...string) error {
	if tx.done {
		return ErrTxnDone
	}
	for _, column := range columns {
		if err := tx.db.checkCell(&Cell{Table: table, Row: row, Column: column}); err != nil {
			return called("Prefetch", err)
		}
	}
	for _, column := range columns {
		if tx.ahead == nil {
			tx.ahead = &readAhead{begun: tx.hasRead}
		}
		c := Cell{Table: table, Row: row, Column: column}.stored()
		if _, known := tx.ahead.have[c]; !known && len(tx.ahead.hinted) < mostHinted && !slices.Contains(tx.ahead.hinted, c) {
			tx.ahead.hinted = append(tx.ahead.hinted, c)
		}
	}
	return nil
}

// readCell is getCell, with what was read ahead.
func (tx *Txn) readCell(ctx context.Context, c Cell) (value []byte, found bool, err error) {
	if tx.ahead == nil {
		tx.hasRead = true
		return tx.db.getCell(ctx, c, &tx.snapshot)
	}
	values, err := tx.readCells(ctx, []Cell{c})
	if err != nil {
		return nil, false, err
	}
	return values[0], values[0] != nil, nil
}

// readCells is getCells, with what was read ahead.
func (tx *Txn) readCells(ctx context.Context, cells []Cell) ([][]byte, error) {
	tx.hasRead = true
	a := tx.ahead
	if a == nil {
		return tx.db.getCells(ctx, cells, &tx.snapshot)
	}
	values := make([][]byte, len(cells))
	var missing []Cell
	var where []int
	for i, c := range cells {
		e := a.have[c]
		if e == nil {
			missing, where = append(missing, c), append(where, i)
			continue
		}
		var err error
		if values[i], err = tx.fromAhead(ctx, c, e); err != nil {
			return nil, err
		}
	}
	if len(missing) == 0 {
		return values, nil
	}
	read, err := tx.readHinted(ctx, missing)
	if err != nil {
		return nil, err
	}
	for i, v := range read {
		values[where[i]] = v
	}
	return values, nil
}

// fromAhead answers with a cell that was read ahead; nil stands for no value. It checks the snapshot as a read at this moment would.
func (tx *Txn) fromAhead(ctx context.Context, c Cell, e *aheadCell) ([]byte, error) {
	if !e.write.Long {
		if err := tx.db.checkAnswer(ctx, tx.start, e.complete, c.span()); err != nil || e.write.Kind != format.KindPut {
			return nil, err
		}
		return append(make([]byte, 0, len(e.write.Value)), e.write.Value...), nil
	}
	value := e.data
	if value == nil {
		var err error
		if value, err = tx.longAhead(ctx, c, e); err != nil {
			return nil, err
		}
	}
	if err := tx.db.checkAnswer(ctx, tx.start, value != nil, c.span()); err != nil {
		return nil, err
	}
	if value == nil {
		return nil, missingData(c, e.write.Start)
	}
	return append(make([]byte, 0, len(value)), value...), nil
}

// longAhead reads the long value of a cell, and those of its row that were read ahead with it.
func (tx *Txn) longAhead(ctx context.Context, c Cell, e *aheadCell) ([]byte, error) {
	wanted, of := []longValue{{c, e.write.Start}}, []*aheadCell{e}
	for other, o := range tx.ahead.have {
		if len(wanted) < mostLongs && o != e && !e.alone && other.rowName() == c.rowName() && o.write.Long && o.data == nil && !o.alone {
			wanted, of = append(wanted, longValue{other, o.write.Start}), append(of, o)
		}
	}
	values, err := tx.db.longValues(ctx, wanted)
	if err != nil {
		return nil, err
	}
	for i, v := range values {
		switch a := tx.ahead; {
		case v == nil:
		case a.bytes+len(v) > aheadBytes:
			of[i].alone = true
		default:
			of[i].data = v
			a.bytes += len(v)
		}
	}
	return values[0], nil
}

// readHinted is getCells, and reads hinted cells in the same call.
func (tx *Txn) readHinted(ctx context.Context, cells []Cell) ([][]byte, error) {
	db, a := tx.db, tx.ahead
	extra := a.take(db, cells)
	if len(extra) == 0 || len(cells)+len(extra) > readCells {
		return db.getCells(ctx, cells, &tx.snapshot)
	}
	reads, where := cellReads(append(slices.Clone(cells), extra...), tx.at())
	rows, timely, err := db.readAt(ctx, reads, &tx.snapshot)
	switch {
	case err == nil:
	case ctx.Err() != nil || errors.Is(err, rowstore.ErrUnavailable):
		return nil, err
	default:
		return db.getCells(ctx, cells, &tx.snapshot) // what is wrong may be wrong with the others alone
	}
	a.keep(extra, func(i int) *rowstore.Row { return &rows[where[len(cells)+i]] }, timely, tx.start)
	// From here on the rows and reads are those of the wanted cells alone, so that nothing waits for the others.
	reads, only := cellReads(cells, tx.start)
	wanted := make([]rowstore.Row, len(reads))
	for i := range cells {
		wanted[only[i]] = rows[where[i]]
	}
	for i := range wanted {
		versions := make([]rowstore.Version, 0, len(reads[i].Selectors))
		for _, v := range wanted[i].Versions {
			if slices.ContainsFunc(reads[i].Selectors, func(s rowstore.Selector) bool { return s.Column == v.Column }) {
				versions = append(versions, v)
			}
		}
		wanted[i].Versions = versions
	}
	again, err := db.settleRows(ctx, wanted, func(i int) []rowstore.Selector { return reads[i].Selectors }, tx.start)
	if err != nil {
		return nil, err
	}
	return db.answer(ctx, cells, reads, wanted, only, timely && !again, &tx.snapshot)
}

// take returns the hinted cells that go with a read of cells, and forgets their hints. Those of other rows go with the first read alone,
// and only where a server that does not answer would fail that read too.
func (a *readAhead) take(db *DB, cells []Cell) (extra []Cell) {
	sharder, _ := rowstore.Unwrap[rowstore.Sharder](db.store)
	shard := func(c Cell) string {
		if sharder == nil {
			return ""
		}
		return sharder.Shard(c.Table, c.Row)
	}
	hit := func(h Cell) bool { return slices.Contains(cells, h) }
	var rows []rowName // of which a hinted cell is read
	for _, h := range a.hinted {
		if hit(h) && !slices.Contains(rows, h.rowName()) {
			rows = append(rows, h.rowName())
		}
	}
	first := !a.begun
	a.begun = true
	rest := a.hinted[:0]
	for _, h := range a.hinted {
		switch {
		case hit(h):
		case slices.Contains(rows, h.rowName()), first && slices.ContainsFunc(cells, func(c Cell) bool { return shard(c) == shard(h) }):
			extra = append(extra, h)
		default:
			rest = append(rest, h)
		}
	}
	a.hinted = rest
	return extra
}

// keep keeps cells as one view at the snapshot shows them. timely is as in readAt.
func (a *readAhead) keep(cells []Cell, row func(i int) *rowstore.Row, timely bool, at Timestamp) {
	if a.have == nil {
		a.have = make(map[Cell]*aheadCell, len(cells))
	}
	if len(a.have)+len(cells) > mostAhead {
		clear(a.have)
		a.bytes = 0
	}
	for i, c := range cells {
		r := row(i)
		if inTheWay(r, c.Column, at) {
			continue
		}
		w, found, err := committed(r, c.Column)
		if err != nil {
			continue
		}
		e := &aheadCell{complete: timely || r.Newest(rowstore.Write, c.Column) != nil}
		if found {
			e.write = w
		}
		a.have[c] = e
	}
}

// inTheWay tells whether a row shows a lock of a column that a read at a snapshot must look into.
func inTheWay(row *rowstore.Row, column string, at Timestamp) bool {
	for i := range row.Versions {
		v := &row.Versions[i]
		if v.Family != rowstore.Lock {
			return false // locks come first
		}
		if v.Column != column || v.TS > at {
			continue
		}
		if l, err := format.DecodeLock(v.Value); err != nil || l.Kind != format.KindLock {
			return true
		}
	}
	return false
}

// prefetchPicks appends what the look of a run reads for Observer.Prefetch.
func (o *Observer) prefetchPicks(picks []rowstore.Selector, at Timestamp) []rowstore.Selector {
	for _, column := range o.prefetch {
		if column != o.column {
			picks = snapshotPicks(picks, column, at)
		}
	}
	return picks
}

// prefetched gives the transaction of a run what its look has read: the cell itself, and what Observer.Prefetch names.
func (tx *Txn) prefetched(o *Observer, view *cellView) {
	if view.row == nil {
		return
	}
	cells := make([]Cell, 1, 1+len(o.prefetch))
	cells[0] = view.cell
	for _, column := range o.prefetch {
		if column != o.column {
			cells = append(cells, Cell{view.cell.Table, view.cell.Row, column})
		}
	}
	tx.ahead = &readAhead{} // the first read is that of the function
	tx.ahead.keep(cells, func(int) *rowstore.Row { return view.row }, view.timely, tx.start)
}

// setPrefetch checks Observer.Prefetch and notes its stored names.
func (w *Worker) setPrefetch(o *Observer) error {
	if len(o.Prefetch) > mostHinted {
		return fmt.Errorf("percolator: Observe: %w: observer %q has %d columns in Prefetch, the limit is %d", ErrInvalid, o.Name, len(o.Prefetch), mostHinted)
	}
	o.prefetch, o.column = nil, format.Escape(o.Column)
	for _, column := range o.Prefetch {
		c := Cell{Table: o.Table, Row: "-", Column: column}
		if err := w.db.checkCell(&c); err != nil {
			return fmt.Errorf("percolator: Observe: observer %q, Prefetch: %w", o.Name, err)
		}
		if c = c.stored(); !slices.Contains(o.prefetch, c.Column) {
			o.prefetch = append(o.prefetch, c.Column)
		}
	}
	return nil
}
