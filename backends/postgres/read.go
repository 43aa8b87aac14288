package postgres

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Read implements rowstore.Store: one statement for the reads of single columns at
// one timestamp, which nearly all are, and one for the others.
func (s *plainStore) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	ctx, done, err := s.gate.Begin(ctx, "read")
	if err != nil {
		return nil, err
	}
	defer done()
	if err := rowstore.CheckReads(reads); err != nil {
		return nil, fmt.Errorf("postgres: read: %w", err)
	}
	rows, err := s.read(ctx, reads, false)
	if err != nil {
		return nil, s.gate.Fail("read", err)
	}
	for i := range rows {
		rows[i].Err = s.gate.Fail("read", rows[i].Err)
	}
	return rows, nil
}

// read answers reads. among says that the call has others, which were answered before.
func (s *plainStore) read(ctx context.Context, reads []rowstore.RowRead, among bool) ([]rowstore.Row, error) {
	if len(reads) == 0 {
		return nil, nil
	}
	rows := make([]rowstore.Row, len(reads))
	var points, others []int
	for i := range reads {
		rows[i].Table, rows[i].Row = reads[i].Table, reads[i].Row
		switch {
		case tooLong(reads[i].Table, reads[i].Row):
			// No such row can be there.
		case isPoint(reads[i].Selectors):
			points = append(points, i)
		default:
			others = append(others, i)
		}
	}
	among = among || len(points) > 0 && len(others) > 0
	fail := func(i int, err error) { rows[i].Err = err }
	if len(points) > 0 {
		if err := s.readPoints(ctx, reads, points, rows, among, fail); err != nil {
			return nil, err
		}
	}
	if len(others) > 0 {
		err := s.settled(ctx, reads, others, among, fail, func(which []int, settle int) ([]int, error) {
			return s.readPicks(ctx, s.q.picks, reads, which, rows, nil, settle)
		})
		if err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// settled reads those reads that which names, by read, which tells those whose rows were busy. They are read again
// alone: so the others are not waited for with locks of theirs held.
//
// Where rows stay busy to the end of the wait, that is their own failure, which fail gets, if others of the call were answered; among says that the
// call has more than which names. Where those may be other callers' (contexts.Merged), the wait is short. So a
// commit that hangs holds up those for whom it matters, and no others for long.
func (s *plainStore) settled(ctx context.Context, reads []rowstore.RowRead, which []int, among bool, fail func(i int, err error),
	read func(which []int, settle int) ([]int, error),
) error {
	settle := settleTry
	if len(which) > maxReadRows {
		settle = settleBarrier
	}
	var ended error // of the wait
	for len(which) > 0 {
		busy, err := read(which, settle)
		switch {
		case sqlState(err) == outOfMemory && settle != settleBarrier:
			settle = settleBarrier
			continue
		case sqlState(err) == lockNotAvailable && (settle == settleWait || settle == settleBriefly):
			settle, ended = settleTry, err // one of them was busy to the end, others may be free by now
			continue
		case err != nil:
			return err
		}
		busy = s.inOrder(reads, busy)
		among = among || len(busy) < len(which)
		if ended != nil {
			if len(busy) > 0 && !among {
				return ended
			}
			for _, i := range busy {
				fail(i, ended)
			}
			return nil
		}
		which, settle = busy, settleWait
		if among && contexts.Merged(ctx) {
			settle = settleBriefly
		}
	}
	return nil
}

// locksRows tells whether a way to settle goes by locks of rows.
func locksRows(settle int) bool {
	return settle == settleTry || settle == settleWait || settle == settleBriefly
}

// inOrder brings reads into the order of their rows' locks, each once.
func (s *plainStore) inOrder(reads []rowstore.RowRead, which []int) []int {
	lock := func(i int) int64 { return s.names.rowLock(reads[i].Table, reads[i].Row) }
	slices.SortFunc(which, func(a, b int) int { return cmp.Or(cmp.Compare(lock(a), lock(b)), cmp.Compare(a, b)) })
	return slices.Compact(which)
}

func tooLong(table, row string) bool { return len(table) > maxTable || len(row) > maxRow }

// isPoint tells whether the function read_point can answer picks: of each column
// the lock, the mark, and one write.
func isPoint(picks []rowstore.Selector) bool {
	var buf [8]int
	mine, at := buf[:0], kit.PicksOf(picks)
	for i := range picks {
		p := &picks[i]
		if p.Column == rowstore.AllColumns {
			return false
		}
		switch p.Family {
		case rowstore.Lock, rowstore.Mark:
		case rowstore.Write:
			if p.Limit != 1 {
				return false
			}
			mine = at.Of(mine[:0], p.Column)
			if slices.ContainsFunc(mine, func(j int) bool { return j < i && picks[j].Family == rowstore.Write }) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// unit is one column of one read.
type unit struct {
	read     int
	col      string
	from, to int // its selectors, in points.mine
}

func (s *plainStore) readPoints(ctx context.Context, reads []rowstore.RowRead, which []int, rows []rowstore.Row, among bool, fail func(i int, err error)) error {
	a := arrayPool.Get().(*arrays)
	defer arrayPool.Put(a)
	return s.settled(ctx, reads, which, among, fail, func(which []int, settle int) ([]int, error) {
		p := s.newPoints(a, reads, which, rows, nil, settle)
		if err := s.run(ctx, s.q.point, a.params, false, p.begin, p.line); err != nil {
			return nil, err
		}
		p.end()
		return p.busy, nil
	})
}

// points are reads for the function read_point, or, with asks, for snapshot_point.
type points struct {
	reads []rowstore.RowRead
	which []int
	rows  []rowstore.Row
	units []unit
	mine  []int            // places of selectors in their reads, by unit
	asks  []int            // of each read, the number of the ask whose timestamp it is at; or nil
	first oracle.Timestamp // what the first ask has drawn, or 0
	busy  []int            // reads of rows that were busy
}

// newPoints puts the parameters into a.
func (s *plainStore) newPoints(a *arrays, reads []rowstore.RowRead, which []int, rows []rowstore.Row, asks []int, settle int) *points {
	w := &points{reads: reads, which: which, rows: rows, units: make([]unit, 0, len(which)), mine: make([]int, 0, 2*len(which)), asks: asks}
	tab, key, col, ts, ask, lock := &a.a[0], &a.a[1], &a.a[2], &a.a[3], &a.a[4], &a.a[5]
	lock.reset(oidInt8)
	ask.reset(oidInt8)
	tab.reset(oidBytea)
	key.reset(oidBytea)
	col.reset(oidBytea)
	ts.reset(oidInt8)
	for _, i := range which {
		r := &reads[i]
		picks := kit.PicksOf(r.Selectors)
		for j := range r.Selectors {
			p := &r.Selectors[j]
			from := len(w.mine)
			w.mine = picks.Of(w.mine, p.Column)
			if w.mine[from] != j { // another one of its column came before
				w.mine = w.mine[:from]
				continue
			}
			at, drawn := oracle.Max, false
			for _, k := range w.mine[from:] {
				if r.Selectors[k].Family == rowstore.Write {
					at, drawn = min(r.Selectors[k].To, oracle.Max), r.Selectors[k].To == rowstore.AssignedTimestamp
				}
			}
			w.units = append(w.units, unit{i, p.Column, from, len(w.mine)})
			tab.string(r.Table)
			key.string(r.Row)
			col.string(p.Column)
			if drawn {
				ts.none()
			} else {
				ts.int8(uint64(at))
			}
			if asks != nil {
				ask.int8(uint64(asks[i])) //nolint:gosec // a place in a list
			}
			if locksRows(settle) {
				lock.int8(uint64(s.names.rowLock(r.Table, r.Row))) //nolint:gosec // as it is
			}
		}
	}
	a.params = a.params[:0]
	if asks != nil {
		a.params = append(a.params, int8Param(maxLag), int8Param(ahead), nil, ask.param())
	}
	a.params = append(a.params, int4Param(settle), lock.orNull(), tab.param(), key.param(), col.param(), ts.param())
	return w
}

func (w *points) begin() {
	w.first, w.busy = 0, nil
	for _, i := range w.which {
		w.rows[i].Versions = nil
	}
}

func (w *points) line(f *fields) {
	n := f.int4(0)
	if n == 0 && w.asks != nil {
		w.first = oracle.Timestamp(f.int8(5))
		return
	}
	if n < 0 && -n <= len(w.units) {
		w.busy = append(w.busy, w.units[-n-1].read)
		return
	}
	if n < 1 || n > len(w.units) {
		f.bad(0)
		return
	}
	u := w.units[n-1]
	row := &w.rows[u.read]
	if row.Versions == nil {
		row.Versions = make([]rowstore.Version, 0, 2)
	}
	drawn := oracle.Timestamp(0)
	if w.asks != nil {
		drawn = w.first + oracle.Timestamp(w.asks[u.read]) //nolint:gosec // few
	}
	row.Versions = pointVersions(row.Versions, w.reads[u.read].Selectors, w.mine[u.from:u.to], u.col, drawn, f)
}

// pointVersions appends what those of the picks that mine names select of a line about their column, as the functions for single columns answer it: in the fields
// from 1 on. drawn stands for rowstore.AssignedTimestamp.
func pointVersions(versions []rowstore.Version, picks []rowstore.Selector, mine []int, column string, drawn oracle.Timestamp, f *fields) []rowstore.Version {
	for _, i := range mine {
		p := &picks[i]
		to := p.To
		if to == rowstore.AssignedTimestamp {
			to = drawn
		}
		var at, val int
		switch p.Family {
		case rowstore.Lock:
			at, val = 1, 2
		case rowstore.Mark:
			at, val = 3, 4
		default:
			if f.values[7] != nil {
				if v, ok := newestUpTo(f, 7, to); ok && v.TS >= p.From {
					v.Column = column
					versions = append(versions, v)
				}
				continue
			}
			at, val = 5, 6
		}
		v := rowstore.Version{Family: p.Family, Column: column, TS: rowstore.Timestamp(f.int8(at))}
		if v.TS == 0 || v.TS < p.From || v.TS > to {
			continue
		}
		v.Value = f.bytes(val)
		versions = append(versions, v)
	}
	return versions
}

func (w *points) end() {
	for _, i := range w.which {
		tidy(&w.rows[i])
	}
}

// bundled gives each write of a bundle to each, newest first, until that returns false. The values
// are parts of the bundle.
func bundled(f *fields, i int, each func(ts rowstore.Timestamp, value []byte) bool) {
	for b := f.values[i]; len(b) > 0; {
		if len(b) < bundleHead || uint64(len(b)-bundleHead) < uint64(binary.BigEndian.Uint32(b[8:])) {
			f.bad(i)
			return
		}
		n := bundleHead + int(binary.BigEndian.Uint32(b[8:]))
		if !each(rowstore.Timestamp(binary.BigEndian.Uint64(b)), b[bundleHead:n:n]) {
			return
		}
		b = b[n:]
	}
}

const bundleHead = 12 // timestamp and length

// newestUpTo finds the newest write of a bundle that is not above at.
func newestUpTo(f *fields, i int, at rowstore.Timestamp) (v rowstore.Version, ok bool) {
	bundled(f, i, func(ts rowstore.Timestamp, value []byte) bool {
		if ts > at {
			return true
		}
		v, ok = rowstore.Version{Family: rowstore.Write, TS: ts, Value: clone(value)}, true
		return false
	})
	return v, ok
}

// tidy brings the versions of a row into order, each once.
func tidy(r *rowstore.Row) {
	sorted := true
	for i := 1; i < len(r.Versions); i++ {
		if rowstore.CompareVersions(r.Versions[i-1], r.Versions[i]) >= 0 {
			sorted = false
			break
		}
	}
	if sorted {
		return
	}
	slices.SortFunc(r.Versions, rowstore.CompareVersions)
	r.Versions = slices.CompactFunc(r.Versions, func(a, b rowstore.Version) bool {
		return rowstore.CompareVersions(a, b) == 0
	})
}

// readPicks answers those of reads that which names, with the query picks, or with
// the query check, which tells the incarnation too. It returns those whose rows were busy.
func (s *plainStore) readPicks(ctx context.Context, q query, reads []rowstore.RowRead, which []int, rows []rowstore.Row, inc *string,
	settle int,
) (busy []int, err error) {
	a := arrayPool.Get().(*arrays)
	defer arrayPool.Put(a)
	num, tab, key := &a.a[0], &a.a[1], &a.a[2]
	num.reset(oidInt4)
	tab.reset(oidBytea)
	key.reset(oidBytea)
	var pl pickLists
	pl.reset(a.a[3:])
	slot, lock := &a.a[8], &a.a[9]
	slot.reset(oidInt4)
	lock.reset(oidInt8)
	for _, i := range which {
		for j := range reads[i].Selectors {
			num.int4(i)
			tab.string(reads[i].Table)
			key.string(reads[i].Row)
			pl.add(&reads[i].Selectors[j])
			if locksRows(settle) {
				lock.int8(uint64(s.names.rowLock(reads[i].Table, reads[i].Row))) //nolint:gosec // as it is
			}
			if reads[i].Selectors[j].Family == rowstore.Notify {
				slot.int4(int(rowstore.Slot(reads[i].Table, reads[i].Row)))
			} else {
				slot.none()
			}
		}
	}
	params := append(a.params[:0], int4Param(settle), lock.orNull(), int4Param(pl.mask), num.param(), tab.param(), key.param())
	params = append(pl.params(params), pl.lim.param(), nil)
	if pl.mask&(1<<rowstore.Notify) != 0 {
		params[len(params)-1] = slot.param()
	}
	a.params = params
	begin := func() {
		busy = nil
		for _, i := range which {
			rows[i].Versions = nil
		}
	}
	err = s.run(ctx, q, params, false, begin, func(f *fields) {
		i := f.int4(0)
		if i == -1 && inc != nil {
			*inc = string(f.values[4])
			return
		}
		if i < -1 && -2-i < len(rows) {
			busy = append(busy, -2-i)
			return
		}
		if i < 0 || i >= len(rows) {
			f.bad(0)
			return
		}
		rows[i].Versions = appendVersions(rows[i].Versions, f, 1)
	})
	if err != nil {
		return nil, err
	}
	for _, i := range which {
		selectPicks(&rows[i], reads[i].Selectors)
	}
	return busy, nil
}

// appendVersions reads family, column, timestamp and value, from a column of a line
// on: a version, or a bundle of writes.
func appendVersions(to []rowstore.Version, f *fields, at int) []rowstore.Version {
	column := string(f.values[at+1])
	family := f.int2(at)
	if family == bundleFamily {
		bundled(f, at+3, func(ts rowstore.Timestamp, value []byte) bool {
			to = append(to, rowstore.Version{Family: rowstore.Write, Column: column, TS: ts, Value: clone(value)})
			return true
		})
		return to
	}
	return append(to, rowstore.Version{
		Family: rowstore.Family(family), //nolint:gosec // as it was stored
		Column: column, TS: rowstore.Timestamp(f.int8(at + 2)), Value: f.bytes(at + 3),
	})
}

// pickLists are picks as parameters.
type pickLists struct {
	mask                  int
	fam, col, lo, hi, lim *array
}

func (l *pickLists) reset(a []array) {
	l.mask = 0
	l.fam, l.col, l.lo, l.hi, l.lim = &a[0], &a[1], &a[2], &a[3], &a[4]
	l.fam.reset(oidInt2)
	l.col.reset(oidBytea)
	l.lo.reset(oidInt8)
	l.hi.reset(oidInt8)
	l.lim.reset(oidInt8)
}

func (l *pickLists) add(p *rowstore.Selector) {
	l.mask |= 1 << p.Family
	l.fam.int2(uint8(p.Family))
	if p.Column == rowstore.AllColumns {
		l.col.none()
	} else {
		l.col.string(p.Column)
	}
	l.lo.int8(uint64(p.From))
	l.hi.int8(uint64(p.To))
	if p.Limit == 0 {
		l.lim.none()
	} else {
		l.lim.int8(uint64(p.Limit))
	}
}

func (l *pickLists) params(to [][]byte) [][]byte {
	return append(to, l.fam.param(), l.col.param(), l.lo.param(), l.hi.param())
}

// selectPicks reduces what the server sent of a row, which may be a little more,
// to what the picks select.
func selectPicks(r *rowstore.Row, picks []rowstore.Selector) {
	tidy(r)
	all := r.Versions
	exact := true
	for i := range picks {
		if picks[i].Limit != 0 || picks[i].Family == rowstore.Write {
			exact = false // bundles of writes come whole
		}
	}
	if exact {
		return
	}
	keep := make([]bool, len(all))
	for i := range picks {
		p := &picks[i]
		column, n := "", 0
		// No column sorts before AllColumns, so that stands where the family begins.
		from, _ := slices.BinarySearchFunc(all, rowstore.Version{Family: p.Family, Column: p.Column, TS: oracle.Max}, rowstore.CompareVersions)
		for j := from; j < len(all); j++ {
			v := &all[j]
			if v.Family != p.Family || p.Column != rowstore.AllColumns && v.Column != p.Column {
				break
			}
			if v.TS < p.From || v.TS > p.To {
				continue
			}
			if v.Column != column {
				column, n = v.Column, 0
			}
			if p.Limit == 0 || n < p.Limit {
				keep[j] = true
			}
			n++
		}
	}
	kept := all[:0]
	for j := range all {
		if keep[j] {
			kept = append(kept, all[j])
		}
	}
	r.Versions = kept
}
