package redis

import (
	"encoding/binary"
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// isSimple tells whether the read script has a short way for a read, which is one of
// the lock and the newest write of one cell at or below a timestamp, and perhaps
// marks.
func isSimple(picks []rowstore.Selector) (column string, at rowstore.Timestamp, ok bool) {
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
		case rowstore.Lock, rowstore.Mark:
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
	raw    bool // the fields come as they are, and the history by ranges alone
	cells  []history
	notes  []string
	again  []history      // further ranges of older writes, of columns that are among cells
	ranges []history      // of data, and of writes in rows that are read whole
	at     map[string]int // where each cell is, by column, where they are too many to look at each
}

// history asks for versions of a column besides the newest.
type history struct {
	kind   byte
	column string // "" for all
	want   bool   // older writes are wanted at all
	limit  int    // 0 for all
	lo, hi rowstore.Timestamp
}

// join has h hold what p selects too. It returns false, and leaves h as it is, if one answer to both would hold more than the two.
func (h *history) join(p *rowstore.Selector) bool {
	switch {
	case p.From > p.To:
	case !h.want:
		h.want, h.limit, h.lo, h.hi = true, p.Limit, p.From, p.To
	case h.lo == p.From && h.hi == p.To:
		if h.limit == 0 || p.Limit == 0 {
			h.limit = 0
		} else {
			h.limit = max(h.limit, p.Limit)
		}
	case h.limit == 0 && h.lo <= p.From && p.To <= h.hi:
	case p.Limit == 0 && p.From <= h.lo && h.hi <= p.To:
		h.limit, h.lo, h.hi = 0, p.From, p.To
	case h.limit == 0 && p.Limit == 0 && h.lo <= p.To && p.From <= h.hi:
		h.lo, h.hi = min(h.lo, p.From), max(h.hi, p.To)
	default:
		return false
	}
	return true
}

// widen has h hold everything in the range that holds h and what p selects.
func (h *history) widen(p *rowstore.Selector) {
	h.limit, h.lo, h.hi = 0, min(h.lo, p.From), max(h.hi, p.To)
}

// mostAgain bounds the ranges of a row that are answered apart. The rest is answered by everything between them, which may be
// a long history.
const mostAgain = 16

// writes adds a pick of older writes.
func (pl *plan) writes(p *rowstore.Selector) {
	at := pl.cell(p.Column)
	if pl.cells[at].join(p) {
		return
	}
	for i := range pl.again {
		if h := &pl.again[i]; h.column == p.Column && h.join(p) {
			return
		}
	}
	if len(pl.again) == mostAgain {
		pl.cells[at].widen(p)
		return
	}
	h := history{kind: 'W', column: p.Column}
	h.join(p)
	pl.again = append(pl.again, h)
}

func newPlan(picks []rowstore.Selector) plan {
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
			if p := &picks[i]; p.Family == rowstore.Write && !every.join(p) {
				every.widen(p)
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
			case rowstore.Write:
				pl.writes(p)
			default:
				pl.cell(p.Column)
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

// newRawPlan is newPlan for a read of all versions. ok is false if it is none: if the picks leave most of them out, perhaps.
func newRawPlan(picks []rowstore.Selector) (pl plan, ok bool) {
	if !slices.ContainsFunc(picks, func(p rowstore.Selector) bool {
		return p.Family == rowstore.Write && p.Column == rowstore.AllColumns && p.From == 0 && p.Limit == 0
	}) {
		return plan{}, false
	}
	pl = newPlan(picks)
	pl.raw = true
	for _, kind := range []byte{'W', 'C'} {
		pl.ranges = append(pl.ranges, history{kind: kind, column: rowstore.AllColumns})
	}
	return pl, true
}

// cell tells where a cell is, which it adds if it is not there.
func (pl *plan) cell(column string) int {
	if pl.at == nil {
		if at := slices.IndexFunc(pl.cells, func(h history) bool { return h.column == column }); at >= 0 {
			return at
		}
	} else if at, ok := pl.at[column]; ok {
		return at
	}
	n := len(pl.cells)
	pl.cells = append(pl.cells, history{kind: 'W', column: column})
	switch {
	case pl.at != nil:
		pl.at[column] = n
	case n >= fewColumns:
		pl.at = make(map[string]int, 4*n)
		for i := range pl.cells {
			pl.at[pl.cells[i].column] = i
		}
	}
	return n
}

// plan writes a general read.
func (p *packer) plan(pl *plan) {
	if pl.all {
		if pl.raw {
			p.small(-2)
		} else {
			p.minusOne()
		}
		p.want(&pl.cells[0])
	} else {
		p.u32(uint32(len(pl.cells) + len(pl.notes) + len(pl.again)))
		for i := range pl.cells {
			p.field('W', pl.cells[i].column)
			p.want(&pl.cells[i])
		}
		for _, n := range pl.notes {
			p.field('N', n)
			p.want(&history{})
		}
		for i := range pl.again {
			p.field('W', pl.again[i].column)
			p.want(&pl.again[i])
		}
	}
	p.u32(uint32(len(pl.ranges)))
	for i := range pl.ranges {
		h := &pl.ranges[i]
		if h.column == rowstore.AllColumns {
			all := allOf(h.kind)
			p.str(all.lo)
			p.str(all.hi)
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

// budget reserves room for the steps and the bytes that a run may take.
func (p *packer) budget() int {
	at := p.later()
	p.later()
	return at
}

// allow fills in what budget reserved.
func (p *packer) allow(at int, steps, bytes uint32) {
	binary.BigEndian.PutUint32(p.b[at:], steps)
	binary.BigEndian.PutUint32(p.b[at+5:], bytes)
}
