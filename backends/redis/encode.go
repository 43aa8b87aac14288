package redis

import (
	"encoding/binary"
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// column is a column of a mutation or a read as the scripts number them: cells
// first, notifications behind.
type column struct {
	name string
	// The strictest of the conditions Absent, by family; only those with a bit in
	// has count.
	write, lock, mark, note rowstore.Timestamp
	has                     uint8
}

const (
	hasWrite = 1 << iota
	hasLock
	hasMark
	hasNote
)

// writeEncoder writes the arguments of the write script. Its memory is used again.
type writeEncoder struct {
	packer
	expiry       int // where the time is that the request must not be applied after
	cells, notes []column
}

// columnsOf collects the columns of a mutation: first the cells that it reads or
// changes (families Lock, Write, Rollback), then those of its notifications.
// It is the numbering by which a failed mutation's fields come back.
func columnsOf(m *rowstore.Mutation, cells, notes []column) (c, n []column) {
	for i := range m.Conditions {
		if c := &m.Conditions[i]; c.Kind != rowstore.IfIncarnation {
			cells, notes = addColumn(c.Family, c.Column, cells, notes)
		}
	}
	for i := range m.Edits {
		if e := &m.Edits[i]; e.Family != rowstore.Data {
			cells, notes = addColumn(e.Family, e.Column, cells, notes)
		}
	}
	return cells, notes
}

func addColumn(f rowstore.Family, name string, cells, notes []column) (c, n []column) {
	if f == rowstore.Notify {
		if find(notes, name) < 0 {
			notes = append(notes, column{name: name})
		}
	} else if find(cells, name) < 0 {
		cells = append(cells, column{name: name})
	}
	return cells, notes
}

func find(cols []column, name string) int {
	for i := range cols {
		if cols[i].name == name {
			return i
		}
	}
	return -1
}

// begin starts a call: okey is the oracle's key for a batch that draws, else "".
func (e *writeEncoder) begin(okey, channel string) {
	e.reset()
	e.items++
	e.b = append(e.b, 0xcf)
	e.expiry = len(e.b)
	e.b = append(e.b, 0, 0, 0, 0, 0, 0, 0, 0)
	if okey == "" {
		e.bool(false)
	} else {
		e.str(okey)
	}
	e.str(channel)
}

// group starts a group of n mutations; what it returns goes to endGroup.
func (e *writeEncoder) group(n int, draw bool, notAfter rowstore.Timestamp) int {
	end := e.later()
	e.u32(uint32(n))
	e.bool(draw)
	e.bound(notAfter)
	return end
}

// quick writes a group as a whole if it is one of those for which the script has a
// way of its own: it draws, and each mutation is a prewrite's conditions on one cell,
// at the same timestamp everywhere, with one put at the timestamp drawn.
func (e *writeEncoder) quick(tagOf func(m *rowstore.Mutation) string, muts []rowstore.Mutation, notAfter rowstore.Timestamp) bool {
	start := rowstore.Timestamp(0)
	for i := range muts {
		m := &muts[i]
		if len(m.Conditions) != 3 || len(m.Edits) != 1 {
			return false
		}
		column := m.Edits[0].Column
		if ed := &m.Edits[0]; ed.Kind != rowstore.DoPut || ed.Family != rowstore.Write || ed.TS != rowstore.Drawn {
			return false
		}
		seen := uint8(0)
		for j := range m.Conditions {
			c := &m.Conditions[j]
			if c.Kind != rowstore.IfAbsent || c.Column != column {
				return false
			}
			switch c.Family {
			case rowstore.Lock:
				if c.TS != 0 {
					return false
				}
				seen |= hasLock
				continue
			case rowstore.Write:
				seen |= hasWrite
			case rowstore.Rollback:
				seen |= hasMark
			default:
				return false
			}
			if start == 0 {
				start = c.TS
			}
			if c.TS != start {
				return false
			}
		}
		if seen != hasWrite|hasLock|hasMark {
			return false
		}
	}
	end := e.later()
	e.small(0)
	e.u32(uint32(len(muts)))
	e.bound(notAfter)
	e.halves(inv(start))
	for i := range muts {
		m := &muts[i]
		e.key(tagOf(m), escapeTable(m.Table), m.Row)
		e.field('W', m.Edits[0].Column)
		e.blob(m.Edits[0].Value)
	}
	e.settle(end)
	return true
}

func (e *writeEncoder) bound(notAfter rowstore.Timestamp) {
	if notAfter == 0 {
		e.small(0)
		e.small(0)
	} else {
		e.halves(inv(notAfter))
	}
}

func (e *writeEncoder) endGroup(end int) { e.settle(end) }

// mutation writes one mutation of a row in the partition with that tag.
func (e *writeEncoder) mutation(tag string, m *rowstore.Mutation) {
	e.cells, e.notes = columnsOf(m, e.cells[:0], e.notes[:0])
	cells, notes := e.cells, e.notes
	table := escapeTable(m.Table)
	e.key(tag, table, m.Row)
	if wakes(m) {
		e.str(table)
	} else {
		e.bool(false)
	}
	e.u32(uint32(len(cells)))
	e.u32(uint32(len(notes)))
	for i := range cells {
		e.field('W', cells[i].name)
	}
	for i := range notes {
		e.field('N', notes[i].name)
	}
	e.conditions(m)
	skip := e.later()
	// Deletions go first: no two edits touch the same version, but a lock put in
	// the place of another is one field.
	for i := range m.Edits {
		if m.Edits[i].Kind != rowstore.DoPut {
			e.remove(m, &m.Edits[i])
		}
	}
	for i := range m.Edits {
		if m.Edits[i].Kind == rowstore.DoPut {
			e.put(m, &m.Edits[i])
		}
	}
	e.small(0)
	e.settle(skip)
}

// wakes tells whether listeners must hear of a mutation; see rowstore.Waker.
func wakes(m *rowstore.Mutation) bool {
	note := false
	for i := range m.Edits {
		ed := &m.Edits[i]
		if ed.Kind != rowstore.DoPut {
			continue
		}
		if ed.Family == rowstore.Lock {
			return false
		}
		note = note || ed.Family == rowstore.Notify
	}
	return note
}

// number is a column's number in the script.
func (e *writeEncoder) number(f rowstore.Family, name string) {
	if f == rowstore.Notify {
		e.u32(uint32(len(e.cells) + find(e.notes, name) + 1))
	} else {
		e.u32(uint32(find(e.cells, name) + 1))
	}
}

// conditions writes the conditions. Those that ask for absence are collapsed to
// the strictest of each column, and the three that a prewrite puts on a cell to
// one.
func (e *writeEncoder) conditions(m *rowstore.Mutation) {
	for i := range m.Conditions {
		c := &m.Conditions[i]
		switch c.Kind {
		case rowstore.IfIncarnation:
			// The incarnation of this store is "".
			if c.Is != "" {
				e.small(8)
				e.small(1)
			}
		case rowstore.IfPresent:
			e.small(2)
			e.number(c.Family, c.Column)
			e.eight(inv(c.TS))
		case rowstore.IfAbsentAt:
			e.small(3)
			e.number(c.Family, c.Column)
			e.eight(inv(c.TS))
		case rowstore.IfAbsent:
			cols := e.cells
			if c.Family == rowstore.Notify {
				cols = e.notes
			}
			col := &cols[find(cols, c.Column)]
			switch c.Family {
			case rowstore.Write:
				col.strictest(&col.write, hasWrite, c.TS)
			case rowstore.Lock:
				col.strictest(&col.lock, hasLock, c.TS)
			case rowstore.Rollback:
				col.strictest(&col.mark, hasMark, c.TS)
			default:
				col.strictest(&col.note, hasNote, c.TS)
			}
		}
	}
	for i := range e.cells {
		c := &e.cells[i]
		if c.has == hasWrite|hasLock|hasMark && c.lock == 0 && c.write == c.mark {
			e.absent(1, i+1, c.write)
			continue
		}
		if c.has&hasWrite != 0 {
			e.absent(4, i+1, c.write)
		}
		if c.has&hasMark != 0 {
			e.absent(5, i+1, c.mark)
		}
		if c.has&hasLock != 0 {
			e.absent(6, i+1, c.lock)
		}
	}
	for i := range e.notes {
		if c := &e.notes[i]; c.has&hasNote != 0 {
			e.absent(7, len(e.cells)+i+1, c.note)
		}
	}
	e.small(0)
}

func (c *column) strictest(at *rowstore.Timestamp, bit uint8, ts rowstore.Timestamp) {
	if c.has&bit == 0 || ts < *at {
		*at = ts
	}
	c.has |= bit
}

func (e *writeEncoder) absent(op, number int, from rowstore.Timestamp) {
	e.small(op)
	e.u32(uint32(number))
	e.halves(inv(from))
}

func (e *writeEncoder) remove(m *rowstore.Mutation, ed *rowstore.Edit) {
	lo, hi := ed.TS, ed.TS
	if ed.Kind == rowstore.DoDeleteRange {
		hi = ed.To
		if lo > hi {
			return
		}
	}
	switch ed.Family {
	case rowstore.Lock:
		if lo == hi {
			e.small(3)
			e.number(ed.Family, ed.Column)
			e.eight(inv(lo))
			return
		}
		e.small(5)
	case rowstore.Rollback:
		e.small(6)
	case rowstore.Write:
		e.small(7)
	case rowstore.Data:
		e.small(8)
		e.span('D', ed.Column, lo, hi)
		return
	default:
		e.small(11)
	}
	e.number(ed.Family, ed.Column)
	if ed.Family == rowstore.Notify {
		e.str(noteMember(m.Row, ed.Column))
	}
	e.halves(inv(hi))
	e.halves(inv(lo))
	if ed.Family == rowstore.Write {
		e.span('W', ed.Column, lo, hi)
	}
}

func (e *writeEncoder) put(m *rowstore.Mutation, ed *rowstore.Edit) {
	switch ed.Family {
	case rowstore.Write:
		e.small(1)
		e.number(ed.Family, ed.Column)
	case rowstore.Lock:
		e.small(2)
		e.number(ed.Family, ed.Column)
	case rowstore.Rollback:
		e.small(4)
		e.number(ed.Family, ed.Column)
	case rowstore.Data:
		e.small(9)
		e.field('D', ed.Column)
	default:
		e.small(10)
		e.number(ed.Family, ed.Column)
		e.str(noteMember(m.Row, ed.Column))
	}
	if ed.TS == rowstore.Drawn {
		e.str("")
	} else {
		e.eight(inv(ed.TS))
	}
	e.blob(ed.Value)
}

// budget reserves the place of the steps and bytes that a run may take, which allow
// fills in.
func (p *packer) budget() int {
	at := p.later()
	p.later()
	return at
}

func (p *packer) allow(at int, steps, bytes uint32) {
	binary.BigEndian.PutUint32(p.b[at:], steps)
	binary.BigEndian.PutUint32(p.b[at+5:], bytes)
}

// onlyFrees tells whether a mutation takes no memory to speak of: it may run when
// the server has reached maxmemory, so that history can be collected and locks
// rolled back.
func onlyFrees(m *rowstore.Mutation) bool {
	return !slices.ContainsFunc(m.Edits, func(e rowstore.Edit) bool {
		return e.Kind == rowstore.DoPut && (e.Family != rowstore.Rollback || len(e.Value) > 64)
	})
}

// judge finds the first condition that does not hold, given the row's versions
// that the conditions concern, and the version that broke it.
func judge(m *rowstore.Mutation, vs []version) (failed int, broke rowstore.Version, found bool) {
	for i := range m.Conditions {
		c := &m.Conditions[i]
		if c.Kind == rowstore.IfIncarnation {
			if c.Is != "" {
				return i, rowstore.Version{}, true
			}
			continue
		}
		var hit *version
		for j := range vs {
			v := &vs[j]
			if v.family != c.Family || v.column != c.Column {
				continue
			}
			if c.Kind == rowstore.IfAbsent && v.ts >= c.TS || c.Kind != rowstore.IfAbsent && v.ts == c.TS {
				if hit == nil || v.ts > hit.ts {
					hit = v
				}
			}
		}
		switch {
		case c.Kind == rowstore.IfPresent && hit == nil:
			return i, rowstore.Version{}, true
		case c.Kind != rowstore.IfPresent && hit != nil:
			return i, rowstore.Version{Family: hit.family, Column: c.Column, TS: hit.ts, Value: []byte(hit.value)}, true
		}
	}
	return 0, rowstore.Version{}, false
}

// isSimple tells whether a read is one that the read script does in its short way:
// the lock and the newest write of one cell at or below a timestamp, and perhaps
// marks.
func isSimple(picks []rowstore.Pick) (column string, at rowstore.Timestamp, ok bool) {
	column = picks[0].Column
	if column == rowstore.AllColumns {
		return "", 0, false
	}
	writes := 0
	for i := range picks {
		p := &picks[i]
		if p.Column != column {
			return "", 0, false
		}
		switch p.Family {
		case rowstore.Lock, rowstore.Rollback:
		case rowstore.Write:
			if p.Limit != 1 || p.From > p.To {
				return "", 0, false
			}
			at = p.To
			writes++
		default:
			return "", 0, false
		}
	}
	if writes == 0 {
		at = rowstore.Timestamp(1<<63 - 1)
	}
	return column, at, writes <= 1
}

// plan is a general read of a row: what the picks ask for, collected by column.
type plan struct {
	all    bool // every field of the row
	cells  []history
	notes  []string
	ranges []history // of data, and of writes in rows that are read whole
}

// history asks for versions of a column besides the newest.
type history struct {
	kind   byte
	column string // "" for all
	want   bool   // older writes are wanted at all
	limit  int    // 0 for all
	lo, hi rowstore.Timestamp
}

// join widens h so that it holds what p selects too.
func (h *history) join(p *rowstore.Pick) {
	if p.From > p.To {
		return
	}
	if !h.want {
		h.want, h.limit, h.lo, h.hi = true, p.Limit, p.From, p.To
		return
	}
	// Two picks with limits of their own, in ranges of their own, are answered by
	// everything in the range that holds both.
	if h.lo != p.From || h.hi != p.To {
		h.limit = 0
	} else if h.limit != 0 {
		h.limit = max(h.limit, p.Limit)
		if p.Limit == 0 {
			h.limit = 0
		}
	}
	h.lo, h.hi = min(h.lo, p.From), max(h.hi, p.To)
}

func newPlan(picks []rowstore.Pick) plan {
	var pl plan
	for i := range picks {
		if p := &picks[i]; p.Column == rowstore.AllColumns && p.Family != rowstore.Data {
			pl.all = true
		}
	}
	if pl.all {
		// Every field comes, with the writes that any pick wants. A pick of one
		// column's older writes widens what all columns answer.
		every := history{kind: 'W'}
		for i := range picks {
			if p := &picks[i]; p.Family == rowstore.Write {
				every.join(p)
			}
		}
		pl.cells = []history{every}
	} else {
		for i := range picks {
			p := &picks[i]
			switch p.Family {
			case rowstore.Data:
			case rowstore.Notify:
				if !slices.Contains(pl.notes, p.Column) {
					pl.notes = append(pl.notes, p.Column)
				}
			default:
				at := slices.IndexFunc(pl.cells, func(h history) bool { return h.column == p.Column })
				if at < 0 {
					at = len(pl.cells)
					pl.cells = append(pl.cells, history{kind: 'W', column: p.Column})
				}
				if p.Family == rowstore.Write {
					pl.cells[at].join(p)
				}
			}
		}
	}
	for i := range picks {
		if p := &picks[i]; p.Family == rowstore.Data && p.From <= p.To {
			pl.ranges = append(pl.ranges, history{kind: 'D', column: p.Column, limit: p.Limit, lo: p.From, hi: p.To})
		}
	}
	return pl
}

// plan writes a general read.
func (p *packer) plan(pl *plan) {
	if pl.all {
		p.minusOne()
		p.want(&pl.cells[0])
	} else {
		p.u32(uint32(len(pl.cells) + len(pl.notes)))
		for i := range pl.cells {
			p.field('W', pl.cells[i].column)
			p.want(&pl.cells[i])
		}
		for _, n := range pl.notes {
			p.field('N', n)
			p.want(&history{})
		}
	}
	p.u32(uint32(len(pl.ranges)))
	for i := range pl.ranges {
		h := &pl.ranges[i]
		if h.column == rowstore.AllColumns {
			p.str("[D")
			p.str("(E")
			p.small(0)
		} else {
			p.span(h.kind, h.column, h.lo, h.hi)
			p.u32(uint32(h.limit))
		}
	}
}

func (p *packer) want(h *history) {
	if !h.want {
		p.minusOne()
	} else {
		p.u32(uint32(min(h.limit, 1<<30)))
	}
	p.halves(inv(h.hi))
	p.halves(inv(h.lo))
}
