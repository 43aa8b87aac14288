package admin

import (
	"context"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Value is a cell at a snapshot.
type Value struct {
	Cell
	// Found tells whether the cell has a value, which may be empty.
	Found  bool  `json:"found"`
	Value  Bytes `json:"value,omitzero"`
	Commit Stamp `json:"commit,omitzero"` // when it was written, or deleted
	// Pending is a transaction that is not decided, and that may yet commit at or below the snapshot, and change this
	// answer. A DB would wait for it, or roll it back.
	Pending *Txn `json:"pending,omitempty"`
}

// Get reads a cell at a snapshot, 0 for the present. It waits for nothing: see Value.Pending. An
// older snapshot than the safe point of the table is ErrSnapshotTooOld, and one that lies ahead of the oracle
// ErrSnapshotInFuture.
func (r *Reader) Get(ctx context.Context, c percolator.Cell, at percolator.Timestamp) (Value, error) {
	cell, err := stored(c)
	if err != nil {
		return Value{}, called("Get", err)
	}
	now, at, err := r.snapshot(ctx, at)
	if err != nil {
		return Value{}, called("Get", err)
	}
	rows, err := r.rows(ctx, []rowstore.RowRead{{Table: cell.Table, Row: cell.Row, Selectors: []rowstore.Selector{
		newest(rowstore.Lock, cell.Column, at), newest(rowstore.Write, cell.Column, at),
	}}})
	if err != nil {
		return Value{}, called("Get", err)
	}
	values, err := r.values(ctx, rows, at, now)
	if err == nil {
		err = r.collected(ctx, at, cell.Table, cell.Row, cell.Row+"\x00")
	}
	if err != nil {
		return Value{}, called("Get", fmt.Errorf("reading %v: %w", c, err))
	}
	for _, v := range values {
		return v, nil
	}
	return Value{Cell: CellOf(c)}, nil
}

// snapshot draws a timestamp, and checks the one that a caller asked for, 0 for the present.
func (r *Reader) snapshot(ctx context.Context, at percolator.Timestamp) (now, snapshot percolator.Timestamp, err error) {
	c, err := r.load(ctx)
	switch {
	case err != nil:
		return 0, 0, err
	case at == 0:
		return c.now, c.now, nil
	case at > c.now:
		return 0, 0, fmt.Errorf("%w: it was asked for at %v, and the oracle is at %v", percolator.ErrSnapshotInFuture, at, c.now)
	}
	return c.now, at, nil
}

// collected returns an error if what was read at a snapshot, before the call, may have been collected: in the rows of a
// stored table from from to to.
func (r *Reader) collected(ctx context.Context, at percolator.Timestamp, table, from, to string) error {
	c, err := r.load(ctx)
	if err != nil {
		return err
	}
	if safe := c.safePointIn(table, from, to); at < safe {
		e := &percolator.SnapshotTooOldError{Snapshot: at, SafePoint: safe}
		if safe > c.safe {
			e.Table = string(public(table))
		}
		return e
	}
	return nil
}

// values decodes the cells of rows that were read with a lock and a write for each column, in their
// order. The library's own columns are left out.
func (r *Reader) values(ctx context.Context, rows []rowstore.Row, at, now percolator.Timestamp) ([]Value, error) {
	var values []Value
	var long []longValue
	for i := range rows {
		row := &rows[i]
		for _, column := range columnsOf(row) {
			if format.Reserved(column) {
				continue
			}
			v, at, err := r.value(ctx, row, column, at, now)
			if err != nil {
				return nil, fmt.Errorf("%v: %w", v.Cell, err)
			}
			if v.Commit == 0 && v.Pending == nil {
				continue
			}
			if at != 0 {
				long = append(long, longValue{len(values), format.Cell{Table: row.Table, Row: row.Row, Column: column}, at})
			}
			values = append(values, v)
		}
	}
	missing, err := r.fill(ctx, values, long)
	for _, start := range missing {
		if err == nil {
			// It was collected, if the caller finds that out; else something is damaged.
			if err = r.collected(ctx, at, rows[0].Table, rows[0].Row, rows[0].Row+"\x00"); err == nil {
				err = fmt.Errorf("%w: the long value of transaction %d is not there", percolator.ErrCorrupt, uint64(start))
			}
		}
	}
	return values, err
}

// longValue is a value that lies apart, of the transaction that began at start.
type longValue struct {
	index int
	cell  format.Cell
	start percolator.Timestamp
}

const longPage = 64

// fill reads the long values. missing has the transactions of those that are not there, by their indexes.
func (r *Reader) fill(ctx context.Context, values []Value, long []longValue) (missing map[int]percolator.Timestamp, err error) {
	missing = map[int]percolator.Timestamp{}
	for page := range slices.Chunk(long, longPage) {
		var reads []rowstore.RowRead
		for _, l := range page {
			reads = append(reads, rowstore.RowRead{Table: l.cell.Table, Row: l.cell.Row, Selectors: []rowstore.Selector{{Family: rowstore.Data, Column: l.cell.Column, From: l.start, To: l.start, Limit: 1}}})
		}
		rows, err := r.rows(ctx, reads)
		if err != nil {
			return nil, err
		}
		for i, l := range page {
			if v := rows[i].At(rowstore.Data, l.cell.Column, l.start); v != nil {
				values[l.index].Value = Bytes(v.Value)
			} else {
				missing[l.index] = l.start
			}
		}
	}
	return missing, nil
}

// columnsOf lists the columns of a row, each once.
func columnsOf(row *rowstore.Row) []string {
	var columns []string
	for i := range row.Versions {
		columns = append(columns, row.Versions[i].Column)
	}
	slices.Sort(columns)
	return slices.Compact(columns)
}

// value decodes one column of a row. If the value lies apart, long is the start of its transaction.
func (r *Reader) value(ctx context.Context, row *rowstore.Row, column string, at, now percolator.Timestamp) (v Value, long percolator.Timestamp, err error) {
	v = Value{Cell: publicCell(format.Cell{Table: row.Table, Row: row.Row, Column: column})}
	if w := row.Newest(rowstore.Write, column); w != nil {
		decoded, err := format.DecodeWrite(w.Value)
		if err != nil {
			return v, 0, err
		}
		v.Found, v.Commit, v.Value = decoded.Kind == format.KindPut, Stamp(w.TS), Bytes(decoded.Value)
		if decoded.Long {
			long = decoded.Start
		}
	}
	l, err := r.locked(ctx, row, column, at, now)
	if err != nil {
		return v, 0, err
	}
	v.Pending = l.pending
	if Stamp(l.commit) > v.Commit {
		v.Found, v.Commit, v.Value, long = l.write.Kind == format.KindPut, Stamp(l.commit), Bytes(l.write.Value), 0
		if l.write.Long {
			long = l.write.Start
		}
	}
	return v, long, nil
}

// lockedBy is what the lock of a cell means for a snapshot. The zero value means nothing.
type lockedBy struct {
	// pending is the transaction of the lock, if it is not decided.
	pending *Txn
	// commit is when the transaction was committed, if that was at or below the snapshot: then write is the version that the lock stands for until somebody
	// rolls it forward.
	commit percolator.Timestamp
	write  format.Write
}

// locked says what the lock of a column means, in a row that was read with it.
func (r *Reader) locked(ctx context.Context, row *rowstore.Row, column string, at, now percolator.Timestamp) (by lockedBy, err error) {
	l := row.Newest(rowstore.Lock, column)
	if l == nil {
		return by, nil
	}
	lock, err := format.DecodeLock(l.Value)
	if err != nil || lock.Kind == format.KindLock {
		return by, err
	}
	t, err := r.txn(ctx, l.TS, format.Cell{}, &lock, now)
	switch {
	case err != nil:
		return by, err
	case t.State == Committed && percolator.Timestamp(t.Commit) <= at:
		by.commit = percolator.Timestamp(t.Commit)
		by.write = format.Write{Kind: lock.Kind, Long: lock.Long, Start: l.TS, Value: lock.Value}
	case t.State == Committing, t.State == Abandoned:
		t.Lines = t.words(now)
		by.pending = &t
	}
	return by, nil
}

// Rows is a page of a scan.
type Rows struct {
	At     Stamp   `json:"at"`
	Values []Value `json:"values"` // by row, and by column within a row
	Rows   int     `json:"rows"`   // with values
	// More tells that the page is not the end of the range: Next is where the next one begins.
	More bool  `json:"more,omitempty"`
	Next Bytes `json:"next,omitzero"`
}

// pageBytes is how many bytes of values a page of a scan has, before its last row.
const pageBytes = 8 << 20

// Scan reads a page of a range at a snapshot, 0 for the present: up to rng.Limit rows, 100 for 0. It looks at ten times
// as many rows at most, and ends with the row by which its values have eight megabytes. A page that ends so has fewer rows.
// rng.Reverse is ErrInvalid, and so is an empty name among rng.Columns. It waits for nothing, as Get; its errors are those of Get.
func (r *Reader) Scan(ctx context.Context, rng percolator.Range, at percolator.Timestamp) (Rows, error) {
	limit, err := limitedIn(rng.Table, "Scan", rng.Limit)
	if err == nil && rng.Reverse {
		err = fmt.Errorf("%w: a Reader scans forward only", percolator.ErrInvalid)
	}
	if err == nil && slices.Contains(rng.Columns, "") {
		err = fmt.Errorf("%w: one of Range.Columns is empty", percolator.ErrInvalid)
	}
	if err != nil {
		return Rows{}, called("Scan", err)
	}
	now, at, err := r.snapshot(ctx, at)
	if err != nil {
		return Rows{}, called("Scan", err)
	}
	table := format.Escape(rng.Table)
	scan := rowstore.ScanRange{Table: table, From: rng.From, To: rng.To, Limit: 10 * limit}
	if len(rng.Columns) == 0 {
		scan.Selectors = []rowstore.Selector{newest(rowstore.Lock, rowstore.AllColumns, at), newest(rowstore.Write, rowstore.AllColumns, at)}
	}
	for _, c := range rng.Columns {
		scan.Selectors = append(scan.Selectors, newest(rowstore.Lock, format.Escape(c), at), newest(rowstore.Write, format.Escape(c), at))
	}
	page := Rows{At: Stamp(at), Values: []Value{}}
	looked, last, size := 0, "", 0
	for row, err := range r.store.Scan(ctx, scan) {
		if err != nil {
			return Rows{}, called("Scan", fmt.Errorf("scanning %q: %w", rng.Table, err))
		}
		if page.Rows == limit || size >= pageBytes {
			page.More = true
			break
		}
		looked, last = looked+1, row.Row
		values, err := r.values(ctx, []rowstore.Row{row}, at, now)
		if err != nil {
			return Rows{}, called("Scan", fmt.Errorf("scanning %q: row %q: %w", rng.Table, row.Row, err))
		}
		values = slices.DeleteFunc(values, func(v Value) bool { return !v.Found && v.Pending == nil })
		if page.Values = append(page.Values, values...); len(values) > 0 {
			page.Rows++
		}
		for i := range values {
			size += len(values[i].Value)
		}
	}
	page.More = page.More || looked == scan.Limit
	if page.More {
		page.Next = Bytes(last + "\x00")
	}
	if err := r.collected(ctx, at, table, rng.From, rng.To); err != nil {
		return Rows{}, called("Scan", fmt.Errorf("scanning %q: %w", rng.Table, err))
	}
	return page, nil
}

// Version is a committed version of a cell.
type Version struct {
	Commit  Stamp `json:"commit"`
	Start   Stamp `json:"start"` // of the transaction that wrote it
	Deleted bool  `json:"deleted,omitempty"`
	Value   Bytes `json:"value,omitzero"`
}

// History is a page of the versions of a cell.
type History struct {
	Cell
	Versions []Version `json:"versions"` // the newest first
	// SafePoint is the table's: what was overwritten below it is gone, or may go at any time.
	SafePoint Stamp `json:"safe_point,omitzero"`
	// More tells that there are older versions: Next is the timestamp to go on from, below those of this page.
	More bool  `json:"more,omitempty"`
	Next Stamp `json:"next,omitzero"`
	// Pending is a transaction that is not decided and has the cell locked.
	Pending *Txn `json:"pending,omitempty"`
}

// History reads versions of a cell, from the newest at or below to (0 for the present) down: at most limit of them, 100
// for 0. A page ends with the version by which its values have eight megabytes, so it may have fewer; see [History.More].
// Below the table's safe point it shows the newest version only. Errors are those of Get.
func (r *Reader) History(ctx context.Context, c percolator.Cell, to percolator.Timestamp, limit int) (History, error) {
	return r.versions(ctx, c, to, limit, true)
}

// Versions is [Reader.History] without the values: it reads none that lies apart, so it costs the same however long they are, and leaves
// Version.Value empty.
func (r *Reader) Versions(ctx context.Context, c percolator.Cell, to percolator.Timestamp, limit int) (History, error) {
	return r.versions(ctx, c, to, limit, false)
}

func (r *Reader) versions(ctx context.Context, c percolator.Cell, to percolator.Timestamp, limit int, read bool) (History, error) {
	h, err := r.history(ctx, c, to, limit, read)
	if err != nil {
		return History{}, called("History", fmt.Errorf("reading the history of %v: %w", c, err))
	}
	return h, nil
}

// versionsPage is how many versions are read in one call, and mostLong how many of their long values, which may have 16 MiB each.
const (
	versionsPage = 128
	mostLong     = 8
)

func (r *Reader) history(ctx context.Context, c percolator.Cell, to percolator.Timestamp, limit int, read bool) (History, error) {
	cell, err := stored(c)
	if err != nil {
		return History{}, err
	}
	if limit, err = limited("History", limit, 100); err != nil {
		return History{}, err
	}
	now, to, err := r.snapshot(ctx, to)
	if err != nil {
		return History{}, err
	}
	p := historyPage{h: History{Cell: CellOf(c), Versions: []Version{}}, cell: format.Cell(cell), limit: limit, read: read, missing: map[int]percolator.Timestamp{}}
	for more := true; more; {
		first, next := len(p.h.Versions) == 0, to
		if !first {
			next = p.below()
		}
		selectors := []rowstore.Selector{{Family: rowstore.Write, Column: cell.Column, To: next, Limit: min(limit-len(p.h.Versions), versionsPage) + 1}}
		if first {
			selectors = append(selectors, newest(rowstore.Lock, cell.Column, to))
		}
		rows, err := r.rows(ctx, []rowstore.RowRead{{Table: cell.Table, Row: cell.Row, Selectors: selectors}})
		if err != nil {
			return History{}, err
		}
		stored := rows[0].All(rowstore.Write, cell.Column)
		if first {
			by, err := r.locked(ctx, &rows[0], cell.Column, to, now)
			if err != nil {
				return History{}, err
			}
			p.h.Pending = by.pending
			stored = withLocked(stored, cell.Column, &by)
		}
		if more, err = r.addVersions(ctx, &p, stored, selectors[0].Limit); err != nil {
			return History{}, err
		}
	}
	after, err := r.load(ctx)
	if err != nil {
		return History{}, err
	}
	safe := after.safePointIn(cell.Table, cell.Row, cell.Row+"\x00")
	if to < safe {
		return History{}, &percolator.SnapshotTooOldError{Snapshot: to, SafePoint: safe}
	}
	return p.h, p.end(safe)
}

// withLocked puts the version that a lock stands for in front of those that are stored, the newest first: the lock keeps any other from being
// committed behind it.
func withLocked(stored []rowstore.Version, column string, by *lockedBy) []rowstore.Version {
	if by.commit == 0 || len(stored) > 0 && stored[0].TS >= by.commit {
		return stored
	}
	return slices.Insert(slices.Clone(stored), 0, rowstore.Version{Family: rowstore.Write, Column: column, TS: by.commit, Value: by.write.Encode()})
}

// historyPage is a page of a history that is being read.
type historyPage struct {
	h       History
	cell    format.Cell
	limit   int
	read    bool // values too
	size    int  // bytes of the values
	longest int  // of the values that lie apart
	// missing has the transactions whose values were not found, by the indexes of the versions.
	missing map[int]percolator.Timestamp
}

// below is the timestamp from which older versions follow. It is no less than the safe point if the oldest of the page is above that.
func (p *historyPage) below() percolator.Timestamp {
	return percolator.Timestamp(p.h.Versions[len(p.h.Versions)-1].Commit) - 1
}

// addVersions adds what was read to a page, until it is full. From the one on that has the number asked, which is more than the page takes, versions
// tell only that there are more. It returns whether the page goes on.
func (r *Reader) addVersions(ctx context.Context, p *historyPage, stored []rowstore.Version, asked int) (goesOn bool, err error) {
	more := len(stored) >= asked
	if more {
		stored = stored[:asked-1]
	}
	for len(stored) > 0 && p.size < pageBytes {
		// Long values are read a few at once: how long they are shows only when they are there.
		most := 1
		if p.longest > 0 {
			most = max(1, min(mostLong, (pageBytes-p.size)/p.longest))
		}
		n, err := r.addSome(ctx, p, stored, most)
		if err != nil {
			return false, err
		}
		stored = stored[n:]
	}
	more = more || len(stored) > 0
	full := p.size >= pageBytes || len(p.h.Versions) == p.limit
	if more && full {
		p.h.More, p.h.Next = true, Stamp(p.below())
	}
	return more && !full, nil
}

// addSome adds versions to a page, up to the one by which it has most more of the long values or is full, and returns how many.
func (r *Reader) addSome(ctx context.Context, p *historyPage, stored []rowstore.Version, most int) (n int, err error) {
	var values []Value
	var long []longValue
	first := len(p.h.Versions)
	for n = 0; n < len(stored) && len(long) < most && p.size < pageBytes; n++ {
		v := &stored[n]
		w, err := format.DecodeWrite(v.Value)
		if err != nil {
			return 0, fmt.Errorf("the version at %d: %w", uint64(v.TS), err)
		}
		if w.Long && p.read {
			long = append(long, longValue{n, p.cell, w.Start})
		}
		values = append(values, Value{Value: Bytes(w.Value)})
		if p.read {
			p.size += len(w.Value)
		}
		p.h.Versions = append(p.h.Versions, Version{Commit: Stamp(v.TS), Start: Stamp(w.Start), Deleted: w.Kind == format.KindDelete})
	}
	if !p.read {
		return n, nil
	}
	missing, err := r.fill(ctx, values, long)
	if err != nil {
		return 0, err
	}
	for i, start := range missing {
		p.missing[first+i] = start
	}
	for _, l := range long {
		length := len(values[l.index].Value)
		p.size, p.longest = p.size+length, max(p.longest, length)
	}
	for i := range values {
		p.h.Versions[first+i].Value = values[i].Value
	}
	return n, nil
}

// end cuts a page at the safe point, below which only the newest version is sure to be there.
func (p *historyPage) end(safe percolator.Timestamp) error {
	h := &p.h
	h.SafePoint = Stamp(safe)
	for i := range h.Versions {
		// What is missing below the safe point was collected, and what it was overwritten by shows that.
		if start, gone := p.missing[i]; gone {
			return fmt.Errorf("%w: the long value of transaction %d is not there", percolator.ErrCorrupt, uint64(start))
		}
		if h.Versions[i].Commit <= h.SafePoint {
			h.Versions, h.More, h.Next = h.Versions[:i+1], false, 0
			return nil
		}
	}
	return nil
}
