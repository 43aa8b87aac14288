package postgres

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Sizes of the pages of a scan, in rows, and how many bytes a page should have.
const (
	firstPage = 64
	maxPage   = 2048
	pageBytes = 1 << 20
	// firstLook is how many lines of a table a page looks at, at most. A row is looked at as a
	// whole, so one with more columns than that takes more.
	firstLook = 8192
)

// afterAll is greater than every key of a row.
var afterAll = strings.Repeat("\xff", maxRow+1)

// Scan implements rowstore.Store. It reads page after page, each by statements of
// its own that begin after the last key of the one before.
func (s *plainStore) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		if err := ctx.Err(); err != nil {
			yield(rowstore.Row{}, fmt.Errorf("postgres: scan: %w", err))
			return
		}
		if err := rowstore.CheckScan(r); err != nil {
			yield(rowstore.Row{}, fmt.Errorf("postgres: scan: %w", err))
			return
		}
		// The caller may change its slices within the loop.
		r.Selectors, r.Slots = slices.Clone(r.Selectors), slices.Clone(r.Slots)
		if len(r.Slots) > 0 {
			s.scanSlots(ctx, scanAsk{ScanRange: r, settled: new(bool)}, yield)
			return
		}
		lo, hi := r.From, r.To
		if hi == "" || len(hi) > maxRow && hi > afterAll {
			hi = afterAll
		}
		none := lo >= hi || len(r.Table) > maxTable // no such table can be there
		asked := scanAsk{ScanRange: r, settled: new(bool)}
		page, size := s.page, firstPage
		switch at, ok := newPointScan(s, asked); {
		case ok && !none:
			page, size = at.page, max(firstPage, min(r.Limit, maxPage))
		case r.Snapshot != nil:
			var err error
			if asked.ScanRange, err = kit.TimestampThenScan(ctx, s.Oracle(), r); err != nil {
				yield(rowstore.Row{}, fmt.Errorf("postgres: scan: %w", err))
				return
			}
		}
		if none {
			return
		}
		if slices.ContainsFunc(r.Selectors, func(p rowstore.Selector) bool { return p.Family == rowstore.Notify }) {
			page = newNotifiedScan(s, asked).page
		}
		s.scanRows(ctx, asked, lo, hi, page, size, yield)
	}
}

// scanAsk is what a scan asks for. Its first statement waits for the transactions in flight that have drawn
// timestamps, since it does not know their rows. Then settled is true: no later one can have a timestamp below
// one that was drawn before the scan began.
type scanAsk struct {
	rowstore.ScanRange
	settled *bool
}

// settle is the parameter p_settle of a statement of the scan.
func (r *scanAsk) settle() []byte {
	if *r.settled {
		return int4Param(settleNot)
	}
	return int4Param(settleBarrier)
}

// pageOf reads the next page of the rows from lo up to hi: about size rows, by looking at no more than look lines.
type pageOf func(ctx context.Context, r scanAsk, lo, hi string, size, look int) (scanned, error)

// scanRows reads pages, the first of which has size rows.
func (s *plainStore) scanRows(ctx context.Context, r scanAsk, lo, hi string, read pageOf, size int, yield func(rowstore.Row, error) bool) {
	left, look := r.Limit, firstLook
	for lo < hi {
		if left > 0 {
			size = min(size, max(left, 8))
		}
		page, err := read(ctx, r, lo, hi, size, look)
		if err != nil {
			yield(rowstore.Row{}, err)
			return
		}
		if !yieldRows(page.rows, &left, yield) || page.end {
			return
		}
		from := &lo
		if r.Reverse {
			from = &hi
		}
		if look = firstLook; *from == page.next {
			look = page.look * 2 // the first row is wider
		}
		*from = page.next
		size = min(maxPage, size*2)
	}
}

// yieldRows yields rows, and tells whether more are wanted: left is how many, 0 for all.
func yieldRows(rows []rowstore.Row, left *int, yield func(rowstore.Row, error) bool) bool {
	for i := range rows {
		if !yield(rows[i], nil) {
			return false
		}
		if *left > 0 {
			if *left--; *left == 0 {
				return false
			}
		}
	}
	return true
}

// scanned is a page: those of the rows looked at in which something still matched
// when they were read, and where the next page begins.
type scanned struct {
	rows []rowstore.Row
	end  bool // there is no next page
	next string
	look int
}

// page is a pageOf for rows of which no notifications are asked for.
func (s *plainStore) page(ctx context.Context, r scanAsk, lo, hi string, size, look int) (scanned, error) {
	p, err := s.readPage(ctx, r, lo, hi, size, look, true)
	if err != nil {
		return scanned{}, err
	}
	for i := range p.rows {
		selectPicks(&p.rows[i], r.Selectors)
	}
	p.rows = slices.DeleteFunc(p.rows, func(row rowstore.Row) bool { return len(row.Versions) == 0 })
	sortRows(p.rows, r.Reverse)
	return p, nil
}

func sortRows(rows []rowstore.Row, reverse bool) {
	slices.SortFunc(rows, func(a, b rowstore.Row) int {
		if reverse {
			a, b = b, a
		}
		return strings.Compare(a.Row, b.Row)
	})
}

// readPage calls scan_page, without read for the keys of the rows alone. The rows come in any order.
func (s *plainStore) readPage(ctx context.Context, r scanAsk, lo, hi string, size, look int, read bool) (scanned, error) {
	ctx, done, err := s.gate.Begin(ctx, "scan")
	if err != nil {
		return scanned{}, err
	}
	defer done()
	a := arrayPool.Get().(*arrays)
	defer arrayPool.Put(a)
	var pl pickLists
	pl.reset(a.a[:])
	deep := false
	for i := range r.Selectors {
		pl.add(&r.Selectors[i])
		deep = deep || r.Selectors[i].Family == rowstore.Write && r.Selectors[i].Limit != 1
	}
	params := [][]byte{
		r.settle(), []byte(r.Table), notNull(lo), []byte(hi), boolParam(r.Reverse), int8Param(uint64(size)), int8Param(uint64(look)), //nolint:gosec // above 0
		int8Param(pageBytes), boolParam(deep), boolParam(read), int4Param(pl.mask),
	}
	params = append(pl.params(params), pl.lim.param())
	var p scanned
	byKey := map[string]int{}
	first := true
	begin := func() {
		p = scanned{end: true, look: look}
		first = true
		clear(byKey)
	}
	err = s.run(ctx, s.q.scan, params, false, begin, func(f *fields) {
		if first {
			p.next, p.end = string(f.values[0]), f.values[0] == nil
			first = false
			return
		}
		i, ok := byKey[string(f.values[0])]
		if !ok {
			i = len(p.rows)
			key := string(f.values[0])
			byKey[key] = i
			p.rows = append(p.rows, rowstore.Row{Table: r.Table, Row: key})
		}
		if read {
			p.rows[i].Versions = appendVersions(p.rows[i].Versions, f, 1)
		}
	})
	if err != nil {
		return scanned{}, s.gate.Fail("scan", err)
	}
	*r.settled = true
	return p, nil
}

func notNull(s string) []byte {
	if s == "" {
		return []byte{}
	}
	return []byte(s)
}

// Tables implements rowstore.Store.
func (s *plainStore) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		last := ""
		for {
			next, err := s.nextTable(ctx, last)
			if err != nil {
				yield("", err)
				return
			}
			if next == "" || !yield(next, nil) {
				return
			}
			last = next
		}
	}
}

func (s *plainStore) nextTable(ctx context.Context, last string) (string, error) {
	ctx, done, err := s.gate.Begin(ctx, "tables")
	if err != nil {
		return "", err
	}
	defer done()
	next := ""
	if err := s.run(ctx, s.q.tables, [][]byte{notNull(last)}, false, nil, func(f *fields) { next = string(f.values[0]) }); err != nil {
		return "", s.gate.Fail("tables", err)
	}
	return next, nil
}
