package percolator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Range names what a scan visits.
type Range struct {
	Table string
	// From is the first row key, included; "" is the start of the table. To is the
	// end, excluded; "" is the end of the table. So a prefix p is scanned from p to
	// PrefixEnd(p). A From at or above a To that is not "" is an empty range, and no error, but for
	// DB.Erase, which refuses it.
	From, To string
	// Columns are those to read; none means all. A row that has none of them is not
	// visited.
	Columns []string
	// Limit is the greatest number of rows, 0 for all.
	Limit int
	// Reverse visits the rows from the end of the range to its start. From stays the lower bound, included, and To the upper one,
	// excluded.
	Reverse bool
	// Timestamps asks for the commit timestamps too: see Row.Timestamps.
	Timestamps bool
}

// Row is one row of a scan: its key, and the values of its columns. The map and
// the slices belong to the caller; an empty value is an empty slice, never nil.
type Row struct {
	Key     string
	Columns map[string][]byte
	// Timestamps are the commit timestamps of the values, by column, if Range.Timestamps asked for
	// them; else it is nil. What the transaction itself has set is not among them.
	Timestamps map[string]Timestamp
}

// PrefixEnd returns the To of a Range that holds exactly the rows whose keys begin
// with prefix. For an empty prefix, and one of 0xff bytes only, it is "", the end
// of the table.
func PrefixEnd(prefix string) string {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			return prefix[:i] + string([]byte{prefix[i] + 1})
		}
	}
	return ""
}

// scanChunk is how many rows are looked at together: the safe point is checked once for a chunk. Long values are fetched
// as rows are handed out, some at a time. Rows without a value do not count.
const scanChunk = 128

// scanColumns is how many versions of a row a scan goes through before it looks whether its context has ended.
const scanColumns = 512

// scanSpare is how many rows more than it needs a scan with a Limit asks the store for, because some
// may have no value. Each time that it needs more than that it asks for twice as many, up to
// scanSpareMost: so a scan over many deleted rows takes few calls.
const (
	scanSpare     = 8
	scanSpareMost = 8192
)

// Scan visits the rows of r that have a value at the transaction's snapshot, in the
// byte order of their keys, or in reverse. It includes the transaction's own writes as
// they are when the iteration begins, not when Scan is called; what is written within the
// loop is not visited. At most one error is yielded, as the last step. The caller may use the
// transaction within the loop. Errors are those of Get; a bad range gives ErrInvalid.
//
// It holds up to 128 rows with their values of up to 255 bytes. Of longer values it fetches as many at once as come to
// about 4 MiB, at most 64, by the sizes that this process has seen in the table; at first 8.
//
// To go on behind a row in another transaction, set Range.From to its key and "\x00"; in a reversed scan, set Range.To to its key.
func (tx *Txn) Scan(ctx context.Context, r Range) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		if err := tx.checkScan(ctx, &r); err != nil {
			yield(Row{}, err)
			return
		}
		if !tx.db.scansAtSnapshots() {
			if err := tx.begin(ctx); err != nil {
				yield(Row{}, err)
				return
			}
		}
		stopped, err := newScan(tx, r).run(ctx, yield)
		if err != nil && !stopped {
			tx.storeFailed = true
			yield(Row{}, fmt.Errorf("percolator: scanning table %q: %w", r.Table, readFailed(ctx, err)))
		}
	}
}

func (tx *Txn) checkScan(ctx context.Context, r *Range) error {
	if err := tx.usable(ctx); err != nil {
		return err
	}
	return tx.db.checkRange("Scan", r)
}

// checkRange returns the error of a range that no table can have, for the call that was given it.
func (db *DB) checkRange(call string, r *Range) error {
	if r.Table == "" {
		return fmt.Errorf("percolator: %s: %w: the table's name is empty", call, ErrInvalid)
	}
	if r.Limit < 0 {
		return fmt.Errorf("percolator: %s: %w: Range.Limit is %d; it may not be negative", call, ErrInvalid, r.Limit)
	}
	if len(r.Table) > db.limits.Table {
		return called(call, db.nameTooLarge(&Cell{Table: r.Table}))
	}
	for _, col := range r.Columns {
		if col == "" {
			return fmt.Errorf("percolator: %s: %w: one of Range.Columns is empty", call, ErrInvalid)
		}
		if len(col) > db.limits.Column {
			return called(call, db.nameTooLarge(&Cell{Column: col}))
		}
	}
	return nil
}

// scan is one scan under way.
type scan struct {
	tx      *Txn
	table   string              // stored
	columns []string            // stored; nil for all
	named   map[string]struct{} // the same, where they are too many to look at each
	r       Range
	picks   []rowstore.Selector
	own     []ownRow       // in the scan's order; what is left
	values  []pendingValue // of the rows of a chunk
	long    []longValue    // of the same rows: what is yet to be fetched
	fetched [][]byte       // and what was, and is yet to be handed out
	// at is the scan's Snapshot, nil where the store takes none. again tells that rows were read after it.
	at      *rowstore.ScanSnapshot
	again   bool
	yielded int
	noted   int // 1 + the index in tx.ranges of what was seen so far; 0 before there is any
}

// ownRow is what the transaction itself has written to a row.
type ownRow struct {
	key    string
	writes []write
}

// scansAtSnapshots tells whether a scan may draw its timestamp, and tells how old its rows are. As for reads, only a store whose own oracle
// is used can.
func (db *DB) scansAtSnapshots() bool { return db.snapshotReader != nil && db.snapshotScans }

func newScan(tx *Txn, r Range) *scan {
	s := &scan{tx: tx, table: format.Escape(r.Table), r: r}
	if tx.db.scansAtSnapshots() && (!tx.set || tx.start != 0) {
		s.at = &rowstore.ScanSnapshot{Start: tx.start}
	}
	if len(r.Columns) == 0 {
		s.picks = snapshotPicks(nil, rowstore.AllColumns, tx.at())
	}
	s.name(r.Columns)
	index := map[string]int{}
	for i := range tx.writes.list {
		w := &tx.writes.list[i]
		c := &w.cell
		if c.Table != s.table || w.kind == format.KindLock || c.Row < r.From || (r.To != "" && c.Row >= r.To) || !s.wants(c.Column) {
			continue
		}
		j, ok := index[c.Row]
		if !ok {
			j = len(s.own)
			index[c.Row] = j
			s.own = append(s.own, ownRow{key: c.Row})
		}
		s.own[j].writes = append(s.own[j].writes, *w)
	}
	slices.SortFunc(s.own, func(a, b ownRow) int { return s.compare(a.key, b.key) })
	return s
}

// name takes the columns that the scan names, each once.
func (s *scan) name(columns []string) {
	if len(columns) > indexFrom {
		s.named = make(map[string]struct{}, len(columns))
	}
	for _, col := range columns {
		stored := format.Escape(col)
		if s.columns != nil && s.names(stored) {
			continue
		}
		if s.named != nil {
			s.named[stored] = struct{}{}
		}
		s.columns = append(s.columns, stored)
		s.picks = snapshotPicks(s.picks, stored, s.tx.at())
	}
}

// names tells whether the scan names a stored column.
func (s *scan) names(column string) bool {
	if s.named != nil {
		_, named := s.named[column]
		return named
	}
	return slices.Contains(s.columns, column)
}

func (s *scan) wants(column string) bool {
	return !format.Reserved(column) && (s.columns == nil || s.names(column))
}

func (s *scan) compare(a, b string) int {
	if s.r.Reverse {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}

// pending is a row between the store and the caller.
type pending struct {
	key    string
	values []pendingValue // each column once
	long   []longValue    // of those values, what is yet to be fetched
	longAt []int          // where these are in values
}

type pendingValue struct {
	column string // as it is stored
	value  []byte
	at     Timestamp // of its commit; 0 for the transaction's own
	gone   bool      // the transaction itself has deleted it
}

// run visits the rows. stopped means that the caller has had enough.
func (s *scan) run(ctx context.Context, yield func(Row, error) bool) (stopped bool, err error) {
	from, to := s.r.From, s.r.To
	for spare := scanSpare; ; spare = min(2*spare, scanSpareMost) {
		limit := 0
		if left, more := s.r.Limit-s.yielded, len(s.own)+spare; s.r.Limit > 0 && left <= math.MaxInt-more {
			// Rows without a value at the snapshot are visited too, so ask for some more.
			limit = left + more
		}
		chunk := make([]pending, 0, max(0, s.wanted()))
		s.values = s.values[:0]
		seen, end := 0, ""
		ahead := func() int { return s.wanted() - len(chunk) }
		r := rowstore.ScanRange{Table: s.table, From: from, To: to, Reverse: s.r.Reverse, Selectors: s.picks, Limit: limit, Snapshot: s.at}
		began := s.tx.db.clock.Now()
		for row, err := range s.tx.db.scanSettled(ctx, r, s.tx.start, ahead, &s.again) {
			if begin := s.begun(began); err == nil {
				err = begin
			}
			if err != nil {
				return false, err
			}
			seen, end = seen+1, row.Row
			p, err := s.collect(ctx, &row)
			if err != nil {
				return false, err
			}
			if p.empty() {
				// Nothing is handed out. Whether something was collected here is checked
				// with the next chunk, before the caller learns that there is nothing; this costs nothing.
				if seen%scanChunk == 0 {
					err = s.tx.db.checkFound(s.tx.start, s.span())
				}
				if err != nil {
					return false, err
				}
				continue
			}
			if chunk = append(chunk, p); len(chunk) >= s.wanted() {
				if more, err := s.emit(ctx, chunk, yield); err != nil || !more {
					return !more, err
				}
				chunk, s.values = chunk[:0], s.values[:0]
			}
		}
		if err := s.begun(began); err != nil {
			return false, err
		}
		if more, err := s.emit(ctx, chunk, yield); err != nil || !more {
			return !more, err
		}
		if limit == 0 || seen < limit {
			more, err := s.emitOwn(func(string) bool { return true }, yield)
			if err == nil && more {
				s.note(s.r.From, s.r.To) // the scan has also learnt that there are no more rows
			}
			return !more, err
		}
		if s.r.Reverse {
			to = end
		} else {
			from = end + "\x00"
		}
	}
}

// begun takes the start timestamp that the scan has drawn, if the transaction had none: began is when it asked.
func (s *scan) begun(began time.Time) error {
	if s.tx.set {
		if s.at != nil && s.at.Start != 0 && s.at.Start != s.tx.start {
			return errTwoAtOnce
		}
		return nil
	}
	if s.at.Start == 0 {
		return errors.New("the store has drawn no timestamp for the scan")
	}
	s.tx.snapshot = snapshot{set: true, start: s.at.Start, began: began}
	s.picks = (&rowstore.ScanRange{Selectors: s.picks}).At(s.at.Start) // the scan may still read the others
	return nil
}

// latest is the last timestamp that had been drawn when the rows were read, 0 if nobody can tell: later says that some of it was
// read after the scan.
func (s *scan) latest(later bool) Timestamp {
	if s.at == nil || later {
		return 0
	}
	return s.at.Latest
}

// wanted is how many rows of the store are looked at together now: no more than may be handed out,
// because each may have long values, and a lock to wait for. The transaction's own deletes take
// some away.
func (s *scan) wanted() int {
	if s.r.Limit == 0 {
		return scanChunk
	}
	return min(scanChunk, min(scanChunk, s.r.Limit-s.yielded)+len(s.own))
}

// collect takes the visible values from a settled row.
func (s *scan) collect(ctx context.Context, row *rowstore.Row) (pending, error) {
	p := pending{key: row.Row}
	from := len(s.values)
	for i := range row.Versions {
		if i%scanColumns == scanColumns-1 && ctx.Err() != nil {
			return p, ctx.Err()
		}
		v := &row.Versions[i]
		if v.Family != rowstore.Write || !s.wants(v.Column) {
			continue
		}
		w, err := format.DecodeWrite(v.Value)
		if err != nil {
			return p, fmt.Errorf("row %q, column %q at %d: %w", row.Row, v.Column, uint64(v.TS), err)
		}
		if w.Kind == format.KindDelete {
			continue
		}
		if w.Long {
			p.long = append(p.long, longValue{Cell{row.Table, row.Row, v.Column}, w.Start})
			p.longAt = append(p.longAt, len(s.values)-from)
		}
		s.values = append(s.values, pendingValue{column: v.Column, value: notNil(w.Value), at: v.TS})
	}
	p.values = s.values[from:len(s.values):len(s.values)]
	return p, nil
}

// empty tells that the row has no value at the snapshot.
func (p *pending) empty() bool { return len(p.values) == 0 }

// finder returns what finds the value of a column, and adds it if there is none. It is for so many columns.
func (p *pending) finder(columns int) func(column string) *pendingValue {
	var at map[string]int // where they are too many to look for each
	if columns > indexFrom {
		at = make(map[string]int, len(p.values)+columns)
		for i := range p.values {
			at[p.values[i].column] = i
		}
	}
	return func(column string) *pendingValue {
		i, has := at[column]
		if at == nil {
			i = slices.IndexFunc(p.values, func(v pendingValue) bool { return v.column == column })
			has = i >= 0
		}
		if !has {
			i = len(p.values)
			p.values = append(p.values, pendingValue{column: column})
			if at != nil {
				at[column] = i
			}
		}
		return &p.values[i]
	}
}

// emit yields a chunk of settled rows, merged with the transaction's own. more is
// false when the caller has had enough, or the limit is reached.
func (s *scan) emit(ctx context.Context, chunk []pending, yield func(Row, error) bool) (more bool, err error) {
	if err := s.tx.db.checkSnapshotOf(ctx, s.tx.start, s.latest(s.again), s.span()); err != nil {
		return true, err
	}
	s.again = false
	s.long = s.long[:0]
	for i := range chunk {
		s.long = append(s.long, chunk[i].long...)
	}
	for i := range chunk {
		p := &chunk[i]
		if err := s.fetch(ctx, p); err != nil {
			return true, err
		}
		if more, err := s.emitOwn(func(key string) bool { return s.compare(key, p.key) < 0 }, yield); err != nil || !more {
			return more, err
		}
		if len(s.own) > 0 && s.own[0].key == p.key {
			s.overlay(p, s.own[0].writes)
			s.own = s.own[1:]
		}
		if more, err := s.yield(p, yield); err != nil || !more {
			return more, err
		}
		clear(p.values) // what the caller has is not held here
	}
	return true, nil
}

// fetch gets the long values of a row, and a few of the rows behind it in the same call. One that is there is right, whatever was collected.
func (s *scan) fetch(ctx context.Context, p *pending) (err error) {
	for i, l := range p.long {
		if len(s.fetched) == 0 {
			if s.fetched, err = s.tx.db.someLongValues(ctx, s.long); err != nil {
				return err
			}
			s.long = s.long[len(s.fetched):]
		}
		value := s.fetched[0]
		s.fetched[0], s.fetched = nil, s.fetched[1:]
		if value == nil {
			if err := s.tx.db.checkSnapshot(ctx, s.tx.start, s.span()); err != nil {
				return err
			}
			return missingData(l.cell, l.start)
		}
		p.values[p.longAt[i]].value = value
	}
	return nil
}

// emitOwn yields the transaction's own rows as long as before says so.
func (s *scan) emitOwn(before func(key string) bool, yield func(Row, error) bool) (more bool, err error) {
	for len(s.own) > 0 && before(s.own[0].key) {
		p := pending{key: s.own[0].key}
		s.overlay(&p, s.own[0].writes)
		s.own = s.own[1:]
		if more, err := s.yield(&p, yield); err != nil || !more {
			return more, err
		}
	}
	return true, nil
}

// overlay puts what the transaction itself has written over the values of the row.
func (s *scan) overlay(p *pending, own []write) {
	find := p.finder(len(own))
	for i := range own {
		w := &own[i]
		if v := find(w.cell.Column); w.kind == format.KindDelete {
			*v = pendingValue{column: w.cell.Column, gone: true}
		} else {
			*v = pendingValue{column: w.cell.Column, value: append(make([]byte, 0, len(w.value)), w.value...)}
		}
	}
	p.values = slices.DeleteFunc(p.values, func(v pendingValue) bool { return v.gone })
}

func (s *scan) yield(p *pending, yield func(Row, error) bool) (more bool, err error) {
	if len(p.values) == 0 {
		return true, nil
	}
	row := Row{Key: p.key, Columns: make(map[string][]byte, len(p.values))}
	if s.r.Timestamps {
		row.Timestamps = make(map[string]Timestamp, len(p.values))
	}
	for i := range p.values {
		v := &p.values[i]
		name, _ := format.Unescape(v.column)
		row.Columns[name] = v.value
		if s.r.Timestamps && v.at > 0 {
			row.Timestamps[name] = v.at
		}
	}
	s.yielded++
	// The caller may commit before it asks for the next row, or never ask.
	if s.r.Reverse {
		s.note(p.key, s.r.To)
	} else {
		s.note(s.r.From, p.key+"\x00")
	}
	if !yield(row, nil) {
		return false, nil
	}
	if s.tx.done {
		return true, ErrTxnDone
	}
	return s.r.Limit == 0 || s.yielded < s.r.Limit, nil
}

// note records what this scan of a Serializable transaction has seen so far, in place
// of what it recorded before: the rows from from (included) to to (excluded), also
// those without a value.
func (s *scan) note(from, to string) {
	tx := s.tx
	if tx.opt.isolation != Serializable || tx.readOnly {
		return
	}
	if s.noted == 0 {
		tx.ranges = append(tx.ranges, readRange{table: s.table, columns: s.columns})
		s.noted = len(tx.ranges)
	}
	r := &tx.ranges[s.noted-1]
	r.from, r.to = from, to
}
