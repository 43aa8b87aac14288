package redis

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

const (
	scanLook      = 1000 // rows looked at in one run of the script
	scanFirstPage = 16   // rows of the first page of a partition, where there are several
	scanOnlyFirst = 128  // rows of the first page, where there is one: about what the core looks at together
	scanMaxPage   = 512
)

// cursor is the scan of one partition.
type cursor struct {
	part   int
	lo, hi string // bounds of the rest, as the server takes them
	rows   []scanned
	done   bool
	page   int
}

type scanned struct {
	row      string
	versions []rowstore.Version
}

// scanner merges the partitions of one scan.
type scanner struct {
	s       *direct
	asked   rowstore.ScanRange
	r       rowstore.ScanRange     // with the selectors of the next page
	at      *rowstore.ScanSnapshot // nil if no page draws a timestamp
	plan    plan
	want    [8]bool
	cursors []*cursor
}

// Scan visits the rows of a range in order: a page from each partition at a time, merged. A
// scan for notifications alone reads the index of notifications: slotScanner has that of
// slots, and scanNotified the other one.
func (s *direct) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		if err := s.scan(ctx, r, func(row rowstore.Row) bool { return yield(row, nil) }); err != nil {
			yield(rowstore.Row{}, fmt.Errorf("redis: scan of table %q: %w", r.Table, err))
		}
	}
}

func (s *direct) scan(ctx context.Context, r rowstore.ScanRange, yield func(rowstore.Row) bool) error {
	if err := rowstore.CheckScan(r); err != nil {
		return err
	}
	if err := checkNames(r.Table, ""); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed.Load() {
		return rowstore.ErrClosed
	}
	notified := !slices.ContainsFunc(r.Selectors, func(p rowstore.Selector) bool { return p.Family != rowstore.Notify })
	none := r.To != "" && r.From >= r.To
	if r.Snapshot != nil && (none || notified || !s.oneSlot || len(s.parts) > 1) {
		var err error
		if r, err = kit.TimestampThenScan(ctx, s.Oracle(), r); err != nil {
			return err
		}
	}
	switch {
	case none:
		return nil
	case len(r.Slots) > 0:
		return visit(ctx, &r, newSlotScanner(s, r).next, yield)
	case notified:
		return s.scanNotified(ctx, r, yield)
	}
	return visit(ctx, &r, newScanner(s, r).next, yield)
}

// visit visits the rows of a range that next finds, until it finds none. next gets how many the caller takes still; 0 or less means any
// number.
func visit(ctx context.Context, r *rowstore.ScanRange, next func(ctx context.Context, rest int) (*scanned, error), yield func(rowstore.Row) bool) error {
	for given := 0; r.Limit == 0 || given < r.Limit; given++ {
		row, err := next(ctx, r.Limit-given)
		if err != nil || row == nil {
			return err
		}
		if !yield(rowstore.Row{Table: r.Table, Row: row.row, Versions: row.versions}) {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// next returns the next row of all cursors, nil at the end.
func (sc *scanner) next(ctx context.Context, rest int) (*scanned, error) {
	if err := sc.fill(ctx, rest); err != nil {
		return nil, err
	}
	c := sc.first()
	if c == nil {
		return nil, nil
	}
	return pop(&c.rows), nil
}

// pop takes the first row.
func pop(rows *[]scanned) *scanned {
	row := &(*rows)[0]
	*rows = (*rows)[1:]
	return row
}

func newScanner(s *direct, r rowstore.ScanRange) *scanner {
	sc := &scanner{s: s, asked: r, r: r, at: r.Snapshot}
	sc.choose()
	for _, p := range r.Selectors {
		for flags := range 8 {
			switch p.Family {
			case rowstore.Lock:
				sc.want[flags] = sc.want[flags] || flags&flagLock != 0
			case rowstore.Mark:
				sc.want[flags] = sc.want[flags] || flags&flagMark != 0
			case rowstore.Write:
				sc.want[flags] = sc.want[flags] || flags&flagWrite != 0
			case rowstore.Notify:
				// Every cell has a flag, so place 0 is free. It stands for notifications.
				sc.want[0] = true
			}
		}
	}
	for i := range s.parts {
		c := &cursor{part: i, lo: "-", hi: "+", page: scanFirstPage}
		if len(s.parts) == 1 {
			c.page = scanOnlyFirst
		}
		if r.From != "" {
			c.lo = "[" + r.From
		}
		if r.To != "" {
			c.hi = "(" + r.To
		}
		sc.cursors = append(sc.cursors, c)
	}
	return sc
}

// choose plans what of each row is read. Where the next page draws the timestamp, all that it finds was drawn before, but for what was
// put ahead of it: so there is no end in time, and answer has a page with such a version read again.
func (sc *scanner) choose() {
	if sc.at != nil {
		sc.r.Selectors = sc.asked.At(cmp.Or(sc.at.Start, oracle.Max))
	}
	sc.plan = newPlan(sc.r.Selectors)
}

// drew takes the timestamp that a page has drawn.
func (sc *scanner) drew(ts rowstore.Timestamp) {
	sc.at.Latest = ts
	if sc.at.Start == 0 {
		sc.at.Start = ts
		sc.choose()
	}
}

// first returns the cursor whose next row comes first, nil at the end.
func (sc *scanner) first() *cursor {
	var best *cursor
	for _, c := range sc.cursors {
		if len(c.rows) == 0 {
			continue
		}
		if best == nil || (c.rows[0].row < best.rows[0].row) != sc.r.Reverse {
			best = c
		}
	}
	return best
}

// fill gets the next page of each partition that has no row left at hand, until
// all have one or are at their end.
func (sc *scanner) fill(ctx context.Context, rest int) error {
	for {
		var empty []*cursor
		for _, c := range sc.cursors {
			if len(c.rows) == 0 && !c.done {
				empty = append(empty, c)
			}
		}
		if len(empty) == 0 {
			return nil
		}
		calls := make([]*call, len(empty))
		for i, c := range empty {
			calls[i] = sc.call(c, rest, len(empty))
		}
		if err := sc.s.wait(ctx, calls...); err != nil {
			return err
		}
		for i, c := range empty {
			if calls[i].err != nil {
				return calls[i].err
			}
			wide, err := sc.answer(c, calls[i].answer)
			if err == nil && wide != "" {
				if sc.at != nil {
					sc.at.Latest = 0 // the row is read after that
				}
				c.rows, err = sc.s.appendWide(ctx, &sc.r, wide, c.rows)
			}
			if err != nil {
				return err
			}
		}
	}
}

func (sc *scanner) call(c *cursor, rest, together int) *call {
	at := c.part
	if sc.s.oneSlot {
		at = 0
	}
	page := c.page
	if sc.r.Limit > 0 {
		page = min(page, rest)
	}
	c.page = min(4*c.page, scanMaxPage)
	tag, table := sc.s.parts[c.part].tag, escapeTable(sc.r.Table)
	var p packer
	p.reset()
	p.str(tag + "i:" + table)
	p.str(c.lo)
	p.str(c.hi)
	p.bool(sc.r.Reverse)
	p.u32(uint32(page))
	p.u32(scanLook)
	steps, bytes := share(together)
	p.u32(bytes)
	p.str(tag + "r:" + table + "/")
	for flags := 1; flags < 8; flags++ {
		p.bool(sc.want[flags])
	}
	p.bool(sc.want[0])
	p.u32(steps)
	p.plan(&sc.plan)
	ca := &call{part: at, script: scanScript}
	if sc.at != nil {
		ca.script, ca.keys = scanDrawnScript, []string{sc.s.okey}
	}
	ca.arg.b = p.bytes()
	return ca
}

// answer reads a page. If the page's last row was too wide for it, answer returns that
// row's key.
func (sc *scanner) answer(c *cursor, answer string) (wide string, err error) {
	before := *c
	u := unpacker{s: answer}
	n := u.list() - 1
	if sc.at != nil {
		n -= 2
	}
	bound, more := u.string()
	switch {
	case !more:
		c.done = true
	case sc.r.Reverse:
		c.hi = bound
	default:
		c.lo = bound
	}
	c.rows, wide, err = readPage(&u, n/2, &sc.plan, sc.r.Selectors, c.rows)
	if err != nil || sc.at == nil {
		return wide, cmp.Or(err, u.done())
	}
	ts := u.timestamp()
	if err = u.done(); err != nil {
		return "", err
	}
	first := sc.at.Start == 0
	sc.drew(ts)
	isAhead := func(row scanned) bool {
		return slices.ContainsFunc(row.versions, func(v rowstore.Version) bool { return v.TS > ts })
	}
	if first && slices.ContainsFunc(c.rows, isAhead) {
		*c = before
		return "", nil
	}
	return wide, nil
}

// readPage reads n rows of an answer, and appends those in which something was picked. If the
// last row was too wide for the page, it returns that row's key.
func readPage(u *unpacker, n int, pl *plan, picks []rowstore.Selector, to []scanned) (rows []scanned, wide string, err error) {
	var d decoder
	for range n {
		row, ok := u.string()
		if !ok || wide != "" {
			return to, "", errAnswer
		}
		if u.tooMuch() {
			wide = row
			continue
		}
		d.vs = d.vs[:0]
		if err := d.general(u, pl); err != nil {
			return to, "", err
		}
		if vs := d.pick(picks); len(vs) > 0 {
			to = append(to, scanned{row, vs})
		}
	}
	return to, wide, nil
}

// appendWide reads a row in pieces.
func (s *direct) appendWide(ctx context.Context, r *rowstore.ScanRange, row string, to []scanned) ([]scanned, error) {
	vs, err := s.readWide(ctx, &rowstore.RowRead{Table: r.Table, Row: row, Selectors: r.Selectors})
	if err == nil && len(vs) > 0 {
		to = append(to, scanned{row, vs})
	}
	return to, err
}
