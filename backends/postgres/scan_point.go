package postgres

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// pointScan is a scan of locks and marks, and of the newest writes at a timestamp: what a snapshot reads, and nearly every
// scan. scan_point answers it by one statement over one table, where scan_page first looks for the rows, and then
// reads them.
type pointScan struct {
	store   *plainStore
	columns []string           // in order; nil for all
	picks   kit.Picks          // finds those of the scan's selectors that a column has
	mine    []int              // those of the last line's column
	at      rowstore.Timestamp // AssignedTimestamp if the first page is to draw it
	perRow  float64            // lines of a row: of those of the last page
	look    int                // how many lines the next page may look at,
	bytes   int                // and how many bytes it may have
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
		to := pick.To
		if r.Snapshot != nil && r.Snapshot.Start != 0 && to == rowstore.AssignedTimestamp {
			to = r.Snapshot.Start
		}
		switch {
		case pick.Family == rowstore.Write && pick.Limit == 1 && (p.at == 0 || p.at == to):
			p.at = to
		case pick.Family != rowstore.Lock && pick.Family != rowstore.Mark:
			return nil, false
		}
		if pick.Column == rowstore.AllColumns {
			all = true
		} else {
			p.columns = append(p.columns, pick.Column)
		}
	}
	slices.Sort(p.columns)
	p.columns, p.picks = slices.Compact(p.columns), kit.PicksOf(r.Selectors)
	if at := r.Snapshot; at != nil && p.at != cmp.Or(at.Start, rowstore.AssignedTimestamp) {
		return nil, false // the writes are those of another time
	}
	p.perRow = linesOfRow
	if !all {
		p.perRow = float64(len(p.columns))
	}
	return p, p.at > 0 && all != (len(p.columns) > 0)
}

// column is a column's name.
func (p *pointScan) column(b []byte) string {
	if i, ok := slices.BinarySearchFunc(p.columns, b, func(name string, b []byte) int { return bytes.Compare([]byte(name), b) }); ok {
		return p.columns[i]
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
	a := pointPage{pointScan: p, r: r, lines: int(float64(size)*p.perRow) + 1}
	if err = a.read(ctx, lo, hi); err == nil && p.at == rowstore.AssignedTimestamp {
		// The sequence has to be set forward, or to get a new bound.
		if p.at, err = (serverOracle{s}).Draw(ctx, 1); err == nil {
			err = a.read(ctx, lo, hi)
		}
	}
	if err != nil {
		return scanned{}, s.gate.Fail("scan", err)
	}
	if r.Snapshot != nil {
		r.Snapshot.Start, r.Snapshot.Latest = p.at, a.latest
	}
	*r.settled = true
	page := &a.scanned
	if page.end = a.n < a.lines && a.looked == 0; !page.end {
		p.perRow = float64(a.n) / float64(len(page.rows))
		last := len(page.rows) - 1
		page.next = page.rows[last].Row
		if a.whole != r.Reverse { // the next page begins behind the last row, or in reverse also with it
			page.next += "\x00"
		}
		if !a.whole {
			page.rows = page.rows[:last]
		}
		p.next(a.looked, page.next == lo || page.next == hi)
	}
	page.rows = slices.DeleteFunc(page.rows, func(row rowstore.Row) bool { return len(row.Versions) == 0 })
	for i := range page.rows {
		tidy(&page.rows[i])
	}
	return *page, nil
}

// pointPage is one page under way.
type pointPage struct {
	*pointScan
	r     scanAsk
	lines int // how many it may have

	on    *pgconn.PgConn
	bound uint64 // of the oracle, if the connection knows it
	scanned
	n, looked int  // lines, and at how many more it looked to find them if it had to stop
	whole     bool // whether the last row has all of its lines, also if there may be more
	drawn     bool
	latest    rowstore.Timestamp
}

// read calls scan_point. If that should draw a timestamp and cannot, it reads nothing.
func (p *pointPage) read(ctx context.Context, lo, hi string) error {
	s := p.store
	a := arrayPool.Get().(*arrays)
	defer arrayPool.Put(a)
	params := append(a.params[:0], nil, int8Param(ahead), nil, p.r.settle(), []byte(p.r.Table), notNull(lo), []byte(hi), boolParam(p.r.Reverse),
		int8Param(uint64(p.lines)), int8Param(uint64(p.pointScan.look)), int8Param(uint64(p.bytes)), nil, nil) //nolint:gosec // above 0
	if p.columns != nil {
		cols := &a.a[0]
		cols.reset(oidBytea)
		for _, c := range p.columns {
			cols.string(c)
		}
		params[11] = cols.param()
	}
	if p.at == rowstore.AssignedTimestamp {
		params[0] = int8Param(maxLag)
	} else {
		params[12] = int8Param(uint64(p.at))
	}
	a.params = params
	choose := func(c *pgconn.PgConn) (query, [][]byte) {
		p.on, p.bound = c, s.boundOn(c)
		if params[2] = nil; p.bound != 0 {
			params[2] = int8Param(p.bound)
		}
		return s.q.scanPoint, params
	}
	at := p.at
	begin := func() {
		p.scanned, p.n, p.looked, p.whole, p.drawn, p.latest, p.at = scanned{}, 0, 0, false, false, 0, at
	}
	return s.runOn(ctx, choose, false, begin, func(f *fields) {
		if f.values[0] == nil {
			p.times(f)
			return
		}
		p.line(f)
	}, nil)
}

// times takes a line that is not of a row.
func (p *pointPage) times(f *fields) {
	switch latest := rowstore.Timestamp(f.int8(3)); {
	case latest == 0:
		start := rowstore.Timestamp(f.int8(5))
		p.store.stepped(p.on, p.bound, f.int8(1), start)
		if p.drawn = start != 0; p.drawn {
			p.at = start
		}
	case p.drawn || p.bound != 0: // else the server may have started anew, or be another one
		p.latest = latest
	}
}

// line takes a line of the answer.
func (p *pointPage) line(f *fields) {
	p.n++
	column := p.column(f.values[8])
	if last := len(p.rows) - 1; last < 0 || p.rows[last].Row != string(f.values[0]) {
		p.rows = append(p.rows, rowstore.Row{Table: p.r.Table, Row: string(f.values[0])})
	}
	row := &p.rows[len(p.rows)-1]
	p.mine = p.picks.Of(p.mine[:0], column)
	row.Versions = pointVersions(row.Versions, p.r.Selectors, p.mine, column, p.at, f)
	p.looked = int(f.int8(9)) //nolint:gosec // few
	p.whole = len(p.columns) == 1 && column == p.columns[0]
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
