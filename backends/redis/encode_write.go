package redis

import (
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// column is a column of a mutation or a read as the scripts number them: cells
// first, notifications behind.
type column struct {
	name string
	// The strictest of the conditions Absent, by family, if has has the family's bit.
	write, lock, mark, note rowstore.Timestamp
	has                     uint8
}

const (
	hasWrite = 1 << iota
	hasLock
	hasMark
	hasNote
)

// writeEncoder writes the arguments of the write script. Its memory is reused.
type writeEncoder struct {
	packer
	expiry       int // where the time is that the request must not be applied after
	cells, notes columns
	slot         uint16 // of the row, if it has notes
	// Where what the write has to be heard of goes: see pusher. how is decided at the first such row of a batch.
	pusher    *pusher // nil: it goes within the script
	how       pushed
	at        int        // the group that is being encoded
	held      []heldWake // in the order of the groups
	noteEdits []noteEdit // of the notes
}

// pushed says how those who listen hear of a write.
type pushed uint8

const (
	undecided    pushed = iota
	withinScript        // its script publishes
	afterwards          // the pusher publishes once it is applied
)

// publishes tells whether the script does it.
func (e *writeEncoder) publishes() bool {
	if e.how == undecided {
		e.how = withinScript
		if e.pusher != nil && !e.pusher.within() {
			e.how = afterwards
		}
	}
	return e.how == withinScript
}

// columns are those of a mutation that its cells or its notifications have.
type columns struct {
	all []column
	at  map[string]int // by name, where they are too many to look at each
}

// fewColumns are found faster without a map.
const fewColumns = 16

func (c *columns) reset() { c.all, c.at = c.all[:0], nil }

// find tells where a column is, -1 if it is not there.
func (c *columns) find(name string) int {
	if c.at != nil {
		if i, ok := c.at[name]; ok {
			return i
		}
		return -1
	}
	for i := range c.all {
		if c.all[i].name == name {
			return i
		}
	}
	return -1
}

func (c *columns) add(name string) {
	if c.find(name) >= 0 {
		return
	}
	c.all = append(c.all, column{name: name})
	switch n := len(c.all); {
	case c.at != nil:
		c.at[name] = n - 1
	case n > fewColumns:
		c.at = make(map[string]int, 4*n)
		for i := range c.all {
			c.at[c.all[i].name] = i
		}
	}
}

// columnsOf collects the columns of a mutation: first the cells that it reads or
// changes (families Lock, Write, Mark), then those of its notifications.
// The script answers the fields of a mutation that failed in this order.
func columnsOf(m *rowstore.Mutation, cells, notes *columns) {
	cells.reset()
	notes.reset()
	of := func(f rowstore.Family) *columns {
		if f == rowstore.Notify {
			return notes
		}
		return cells
	}
	for i := range m.Conditions {
		if c := &m.Conditions[i]; c.Kind != rowstore.IfIncarnation {
			of(c.Family).add(c.Column)
		}
	}
	for i := range m.Edits {
		if e := &m.Edits[i]; e.Family != rowstore.Data {
			of(e.Family).add(e.Column)
		}
	}
}

// begin starts a call: okey is the oracle's key for a batch that draws, else "".
func (e *writeEncoder) begin(okey, channel string) {
	e.reset()
	e.pusher, e.how, e.at, e.held = nil, undecided, 0, e.held[:0]
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

// quick writes a group as a whole if the script has a short way for it: the group asks
// for a timestamp, and each mutation has a prewrite's three conditions on one cell, with
// the same timestamp everywhere, and one put at the assigned timestamp.
func (e *writeEncoder) quick(tagOf func(m *rowstore.Mutation) string, muts []rowstore.Mutation, notAfter rowstore.Timestamp) bool {
	var start rowstore.Timestamp
	known := false // start may be 0: "no write at all"
	for i := range muts {
		m := &muts[i]
		if len(m.Conditions) != 3 || len(m.Edits) != 1 {
			return false
		}
		column := m.Edits[0].Column
		if ed := &m.Edits[0]; ed.Kind != rowstore.DoPut || ed.Family != rowstore.Write || ed.TS != rowstore.AssignedTimestamp {
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
			case rowstore.Mark:
				seen |= hasMark
			default:
				return false
			}
			if known && c.TS != start {
				return false
			}
			start, known = c.TS, true
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
	e.head(tag, m)
	skip := e.later()
	e.notifications(m)
	// Deletions go first: no two edits touch the same version, but a lock put in
	// the place of another is one field.
	for i := range m.Edits {
		if ed := &m.Edits[i]; ed.Kind != rowstore.DoPut && ed.Family != rowstore.Notify {
			e.remove(ed)
		}
	}
	for i := range m.Edits {
		if ed := &m.Edits[i]; ed.Kind == rowstore.DoPut && ed.Family != rowstore.Notify {
			e.put(ed)
		}
	}
	e.small(0)
	e.settle(skip)
}

// head writes the row of a mutation, its columns, and its conditions.
func (e *writeEncoder) head(tag string, m *rowstore.Mutation) {
	columnsOf(m, &e.cells, &e.notes)
	cells, notes := e.cells.all, e.notes.all
	table := escapeTable(m.Table)
	e.key(tag, table, m.Row)
	if len(notes) > 0 {
		e.slot = rowstore.Slot(m.Table, m.Row)
	}
	switch {
	case !kit.Wakes(m):
		e.bool(false)
	case e.publishes():
		e.wake(table, e.slot)
	default:
		e.bool(false)
		e.held = append(e.held, heldWake{e.at, m.Table, e.slot})
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
}

// number is a column's number in the script.
func (e *writeEncoder) number(f rowstore.Family, name string) {
	if f == rowstore.Notify {
		e.u32(uint32(len(e.cells.all) + e.notes.find(name) + 1))
	} else {
		e.u32(uint32(e.cells.find(name) + 1))
	}
}

// conditions writes the conditions. Of those that ask for absence it writes the
// strictest of each column, and the three of a prewrite on a cell become one.
func (e *writeEncoder) conditions(m *rowstore.Mutation) {
	for i := range m.Conditions {
		c := &m.Conditions[i]
		switch c.Kind {
		case rowstore.IfIncarnation:
			// The incarnation of this store is "".
			if c.Incarnation != "" {
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
			cols := &e.cells
			if c.Family == rowstore.Notify {
				cols = &e.notes
			}
			col := &cols.all[cols.find(c.Column)]
			switch c.Family {
			case rowstore.Write:
				col.strictest(&col.write, hasWrite, c.TS)
			case rowstore.Lock:
				col.strictest(&col.lock, hasLock, c.TS)
			case rowstore.Mark:
				col.strictest(&col.mark, hasMark, c.TS)
			default:
				col.strictest(&col.note, hasNote, c.TS)
			}
		}
	}
	for i := range e.cells.all {
		c := &e.cells.all[i]
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
	for i := range e.notes.all {
		if c := &e.notes.all[i]; c.has&hasNote != 0 {
			e.absent(7, len(e.cells.all)+i+1, c.note)
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

func (e *writeEncoder) remove(ed *rowstore.Edit) {
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
	case rowstore.Mark:
		e.small(6)
	case rowstore.Write:
		e.small(7)
	default:
		e.small(8)
		e.span('D', ed.Column, lo, hi)
		return
	}
	e.number(ed.Family, ed.Column)
	e.halves(inv(hi))
	e.halves(inv(lo))
	if ed.Family == rowstore.Write {
		e.span('W', ed.Column, lo, hi)
	}
}

func (e *writeEncoder) put(ed *rowstore.Edit) {
	switch ed.Family {
	case rowstore.Write:
		e.small(1)
		e.number(ed.Family, ed.Column)
	case rowstore.Lock:
		e.small(2)
		e.number(ed.Family, ed.Column)
	case rowstore.Mark:
		e.small(4)
		e.number(ed.Family, ed.Column)
	default:
		e.small(9)
		e.field('D', ed.Column)
	}
	e.version(ed)
}

// version writes the timestamp and the value of a put.
func (e *writeEncoder) version(ed *rowstore.Edit) {
	if ed.TS == rowstore.AssignedTimestamp {
		e.str("")
	} else {
		e.eight(inv(ed.TS))
	}
	e.blob(ed.Value)
}

// onlyFrees tells whether a mutation takes next to no memory: it removes, it puts small marks, and it puts in the place of a lock what the lock
// was for. Then it may run when the server has reached maxmemory, so that history can be collected and what is locked decided. There are no more such
// mutations than there are locks, and a server without memory gets no new ones.
func onlyFrees(m *rowstore.Mutation) bool {
	unlocked := make(map[string]bool)
	for i := range m.Edits {
		if e := &m.Edits[i]; e.Kind == rowstore.DoDelete && e.Family == rowstore.Lock {
			unlocked[e.Column] = true
		}
	}
	return !slices.ContainsFunc(m.Edits, func(e rowstore.Edit) bool {
		switch {
		case e.Kind != rowstore.DoPut, e.Family == rowstore.Mark && len(e.Value) <= 64:
			return false
		case e.Family == rowstore.Data || e.Family == rowstore.Lock:
			return true
		}
		return !unlocked[e.Column]
	})
}

// firstFailure finds the first condition that does not hold, given the row's versions
// that the conditions concern, and the version that broke it.
func firstFailure(m *rowstore.Mutation, vs []version) (failed int, broke rowstore.Version, found bool) {
	var of map[string][]version // by column, where they are too many to look at each
	if len(vs) > fewColumns {
		of = make(map[string][]version, len(vs))
		for _, v := range vs {
			of[v.column] = append(of[v.column], v)
		}
	}
	for i := range m.Conditions {
		c := &m.Conditions[i]
		if c.Kind == rowstore.IfIncarnation {
			if c.Incarnation != "" {
				return i, rowstore.Version{}, true
			}
			continue
		}
		var hit *version
		if of != nil {
			vs = of[c.Column]
		}
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
