package postgres

import (
	"context"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// pointScan is a scan of locks and marks, and of the newest writes at a timestamp: what a snapshot reads, and nearly every
// scan. scan_point answers it by one statement over one table, where scan_page first looks for the rows, and then
// reads them.
type pointScan struct {
	store   *plainStore
	columns []string // nil for all
	at      rowstore.Timestamp
	perRow  float64 // lines of a row: of those of the last page
	look    int     // how many lines the next page may look at,
	bytes   int     // and how many bytes it may have
}

const (
	// linesOfRow is how many columns a row is taken to have while nothing is known of it.
	linesOfRow = 2
	// leastLook is how many lines a page looks at, at least, where lines are large.
	leastLook = 16
)

// newPointScan returns false if the scan picks anything else.
func newPointScan(s *plainStore, r scanAsk) (*pointScan, bool) {
	p := &pointScan{store: s, look: firstLook, bytes: pageBytes}
	all := false
	for i := range r.Selectors {
		pick := &r.Selectors[i]
		switch {
		case pick.Family == rowstore.Write && pick.Limit == 1 && (p.at == 0 || p.at == min(pick.To, oracle.Max)):
			p.at = min(pick.To, oracle.Max)
		case pick.Family != rowstore.Lock && pick.Family != rowstore.Mark:
			return nil, false
		}
		if pick.Column == rowstore.AllColumns {
			all = true
		} else if !slices.Contains(p.columns, pick.Column) {
			p.columns = append(p.columns, pick.Column)
		}
	}
	p.perRow = linesOfRow
	if !all {
		p.perRow = float64(len(p.columns))
	}
	return p, p.at > 0 && all != (len(p.columns) > 0)
}

// column is a column's name.
func (p *pointScan) column(b []byte) string {
	for _, c := range p.columns {
		if string(b) == c {
			return c
		}
	}
	return string(b)
}

// page is a pageOf. How many lines it looks at is its own affair.
func (p *pointScan) page(ctx context.Context, r scanAsk, lo, hi string, size, _ int) (scanned, error) {
	s := p.store
	ctx, done, err := s.gate.Begin(ctx, "scan")
	if err != nil {
		return scanned{}, err
	}
	defer done()
	lines := int(float64(size)*p.perRow) + 1
	a := arrayPool.Get().(*arrays)
	defer arrayPool.Put(a)
	params := append(a.params[:0], r.settle(), []byte(r.Table), notNull(lo), []byte(hi), boolParam(r.Reverse), int8Param(uint64(lines)), int8Param(uint64(p.look)), //nolint:gosec // above 0
		int8Param(uint64(p.bytes)), nil, int8Param(uint64(p.at))) //nolint:gosec // above 0
	if p.columns != nil {
		cols := &a.a[0]
		cols.reset(oidBytea)
		for _, c := range p.columns {
			cols.string(c)
		}
		params[8] = cols.param()
	}
	a.params = params
	var page scanned
	var n, looked int // lines, and at how many more it looked to find them if it had to stop
	var whole bool    // whether the last row has all of its lines, also if there may be more
	begin := func() { page, n, looked, whole = scanned{}, 0, 0, false }
	err = s.run(ctx, s.q.scanPoint, params, false, begin, func(f *fields) {
		n++
		column := p.column(f.values[8])
		if last := len(page.rows) - 1; last < 0 || page.rows[last].Row != string(f.values[0]) {
			page.rows = append(page.rows, rowstore.Row{Table: r.Table, Row: string(f.values[0])})
		}
		row := &page.rows[len(page.rows)-1]
		row.Versions = pointVersions(row.Versions, r.Selectors, column, oracle.Max, f)
		looked = int(f.int8(9)) //nolint:gosec // few
		whole = len(p.columns) == 1 && column == p.columns[0]
	})
	if err != nil {
		return scanned{}, s.gate.Fail("scan", err)
	}
	*r.settled = true
	if page.end = n < lines && looked == 0; !page.end {
		p.perRow = float64(n) / float64(len(page.rows))
		last := len(page.rows) - 1
		page.next = page.rows[last].Row
		if whole != r.Reverse { // the next page begins behind the last row, or in reverse also with it
			page.next += "\x00"
		}
		if !whole {
			page.rows = page.rows[:last]
		}
		p.next(looked, page.next == lo || page.next == hi)
	}
	page.rows = slices.DeleteFunc(page.rows, func(row rowstore.Row) bool { return len(row.Versions) == 0 })
	for i := range page.rows {
		tidy(&page.rows[i])
	}
	return page, nil
}

// next says what the next page may look at. looked is where this one had to stop, 0 if it had not; again that it has not even
// found the end of a row.
func (p *pointScan) next(looked int, again bool) {
	switch {
	case looked > 0 && again: // the row alone is wider
		p.look, p.bytes = 2*p.look, 2*p.bytes
		return
	case again: // it has more columns than was thought
		p.perRow *= 2
	case looked > 0 && looked < p.look: // for its bytes: the server has looked on nevertheless
		p.look = max(leastLook, 2*looked)
	default:
		p.look = min(2*p.look, firstLook)
	}
	p.bytes = pageBytes
}
