package redis

import (
	"context"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// slotLook is how many members and leaps one run of the script goes through.
const slotLook = 2048

// slotCursor is the scan of some slots in one partition.
type slotCursor struct {
	part   int
	ranges string // as the script takes them
	lo     string // bound of the rest, as the server takes it
	page   int
	rows   []scanned
	done   bool
}

// slotScanner scans the notified rows of some slots. The script leaps from range to range.
// In a store whose partitions have slots of their own, their cursors follow each other
// (apart), and what is asked for is no more than what comes next. In one that was made in
// version 1, any partition may hold the next row, and all are merged.
type slotScanner struct {
	s       *direct
	r       rowstore.ScanRange
	plan    plan
	apart   bool
	cursors []*slotCursor
	ahead   int // how many cursors that are apart are asked together
}

// ScansSlots says that Scan takes slots.
func (s *direct) ScansSlots() {}

func newSlotScanner(s *direct, r rowstore.ScanRange) *slotScanner {
	sc := &slotScanner{s: s, r: r, plan: newPlan(r.Selectors), apart: s.bySlot || len(s.parts) == 1, ahead: 1}
	all := packSlots(r.Slots)
	for i := range s.parts {
		c := &slotCursor{part: i, ranges: all, page: scanFirstPage / 4}
		first := r.Slots[0].First
		if s.bySlot {
			own := clip(r.Slots, slotsOf(i, len(s.parts)))
			if len(own) == 0 {
				continue
			}
			c.ranges, first = packSlots(own), own[0].First
		}
		c.lo = "[" + slotBytes(first)
		if first == r.Slots[0].First {
			c.lo += escapeRow(r.From)
		}
		sc.cursors = append(sc.cursors, c)
	}
	if s.oneSlot {
		// One run of the script goes through all, and stops when it has enough.
		sc.ahead = len(sc.cursors)
	}
	return sc
}

// packSlots writes ranges as the script takes them.
func packSlots(ranges []rowstore.SlotRange) string {
	b := make([]byte, 0, 4*len(ranges))
	for _, r := range ranges {
		b = append(b, byte(r.First>>8), byte(r.First), byte(r.Last>>8), byte(r.Last))
	}
	return string(b)
}

// clip returns what lies within.
func clip(ranges []rowstore.SlotRange, within rowstore.SlotRange) (own []rowstore.SlotRange) {
	for _, r := range ranges {
		r.First, r.Last = max(r.First, within.First), min(r.Last, within.Last)
		if r.First <= r.Last {
			own = append(own, r)
		}
	}
	return own
}

// next returns the next row of all cursors, nil at the end.
func (sc *slotScanner) next(ctx context.Context, rest int) (*scanned, error) {
	if err := sc.fill(ctx, rest); err != nil {
		return nil, err
	}
	c := sc.first()
	if c == nil {
		return nil, nil
	}
	return pop(&c.rows), nil
}

// first returns the cursor whose next row comes first, nil at the end.
func (sc *slotScanner) first() (best *slotCursor) {
	var slot uint16 // of best
	for _, c := range sc.cursors {
		if len(c.rows) == 0 {
			continue
		}
		if sc.apart {
			return c
		}
		at := rowstore.Slot(sc.r.Table, c.rows[0].row)
		if best == nil || at < slot || at == slot && c.rows[0].row < best.rows[0].row {
			best, slot = c, at
		}
	}
	return best
}

// empty returns the cursors that the next page is of: none if the next row is at hand.
func (sc *slotScanner) empty() (empty []*slotCursor) {
	for _, c := range sc.cursors {
		switch {
		case len(c.rows) > 0:
			if sc.apart {
				return empty
			}
		case !c.done:
			if empty = append(empty, c); sc.apart && len(empty) == sc.ahead {
				return empty
			}
		}
	}
	return empty
}

// fill gets pages until the next row is at hand, or all are at their end. rest is how many
// rows the caller takes still, at most; 0 or less means any number.
func (sc *slotScanner) fill(ctx context.Context, rest int) error {
	for {
		empty := sc.empty()
		if len(empty) == 0 {
			return nil
		}
		// If the partitions hold little, as many calls one after the other would take long.
		sc.ahead = min(2*sc.ahead, len(sc.cursors))
		sc.paginate(empty, rest)
		var calls []*call
		if sc.s.oneSlot {
			calls = append(calls, sc.call(0, empty, rest, 1))
		} else {
			for i, c := range empty {
				calls = append(calls, sc.call(c.part, empty[i:i+1], rest, len(empty)))
			}
		}
		if err := sc.s.runAll(ctx, calls); err != nil {
			return err
		}
		for i, ca := range calls {
			of := empty
			if !sc.s.oneSlot {
				of = empty[i : i+1]
			}
			if err := sc.answer(ctx, of, ca.answer); err != nil {
				return err
			}
		}
	}
}

// paginate chooses how many rows each cursor is asked for. With a limit it is what the caller
// will take, shared out; somewhat more of each, so that few are asked twice.
func (sc *slotScanner) paginate(cursors []*slotCursor, rest int) {
	for _, c := range cursors {
		switch {
		case sc.r.Limit == 0:
			c.page = min(4*c.page, scanMaxPage)
		case sc.apart && (sc.s.oneSlot || len(cursors) == 1):
			c.page = min(rest, scanMaxPage)
		default:
			c.page = min(rest, 2*rest/len(sc.cursors)+8, scanMaxPage)
		}
	}
}

// call asks for a page of each of some cursors.
func (sc *slotScanner) call(part int, cursors []*slotCursor, rest, together int) *call {
	table := escapeTable(sc.r.Table)
	var p packer
	p.reset()
	most := 0
	if sc.apart {
		most = scanMaxPage
		if sc.r.Limit > 0 {
			most = min(most, rest)
		} else {
			most = min(most, cursors[0].page)
		}
	}
	p.u32(uint32(most))
	p.u32(slotLook)
	steps, bytes := share(together)
	p.u32(bytes)
	p.u32(steps)
	at := p.later()
	p.plan(&sc.plan)
	p.settle(at)
	for i, c := range cursors {
		tag := sc.s.parts[c.part].tag
		p.str(tag + "s:" + table)
		p.str(sc.s.oldIndex(c.part, table))
		p.str(tag + "r:" + table + "/")
		p.str(c.lo)
		p.u32(uint32(c.page))
		if i > 0 && c.ranges == cursors[i-1].ranges {
			p.bool(false)
		} else {
			p.str(c.ranges)
		}
	}
	ca := &call{part: part, script: slotsScript}
	ca.arg.b = p.bytes()
	return ca
}

// answer reads a page of each of some cursors, with the rows that were too wide for it.
func (sc *slotScanner) answer(ctx context.Context, cursors []*slotCursor, answer string) error {
	wide, old, err := sc.pages(cursors, answer)
	if err != nil {
		return err
	}
	for c, row := range wide {
		if c.rows, err = sc.s.appendWide(ctx, &sc.r, row, c.rows); err != nil {
			return err
		}
	}
	for _, c := range old {
		if err := sc.s.move(ctx, c.part, sc.r.Table); err != nil {
			return err
		}
	}
	return nil
}

// pages reads the answer of the script. wide has the rows, by cursor, that are read in
// pieces, each the last of its page. The cursors old have an index of version 1.
func (sc *slotScanner) pages(cursors []*slotCursor, answer string) (wide map[*slotCursor]string, old []*slotCursor, err error) {
	u := unpacker{s: answer}
	u.list()
	for _, c := range cursors {
		bound, more := u.string()
		n := u.number()
		if n < 0 {
			old = append(old, c)
			continue
		}
		c.lo, c.done = bound, !more
		var row string
		if c.rows, row, err = readPage(&u, int(min(n, int64(len(u.s)))), &sc.plan, sc.r.Selectors, c.rows); err != nil {
			return nil, nil, err
		}
		if row != "" {
			if wide == nil {
				wide = map[*slotCursor]string{}
			}
			wide[c] = row
		}
	}
	return wide, old, u.done()
}
