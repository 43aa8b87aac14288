package tikvraw

import (
	"bytes"
	"context"
	"fmt"
	"iter"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// pageBytes is about how much one page of a scan holds, pageRows how many rows at
	// most, and pageFirst how many the first page: what the rows are like is not known
	// then.
	pageBytes = 1 << 20
	pageRows  = 512
	pageFirst = 16
)

// Scan implements rowstore.Store. It reads the heads of a range in pages, across
// regions. A scan that picks only Notify reads the markers of the range instead, and
// the heads of the rows that have one.
func (s *Store) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		if err := rowstore.CheckScan(r); err != nil {
			yield(rowstore.Row{}, fmt.Errorf("tikvraw: scan: %w", err))
			return
		}
		p := newPager(s, r)
		visited := 0
		for !p.done() {
			asks, err := p.next(ctx, visited)
			if err != nil {
				yield(rowstore.Row{}, err)
				return
			}
			// Long values are fetched for a few rows at a time.
			for len(asks) > 0 {
				n, size := 0, 0
				for n < len(asks) && (n == 0 || size+asks[n].far() <= batchBytes) {
					size += asks[n].far()
					n++
				}
				if size > 0 {
					if err := p.fill(ctx, asks[:n]); err != nil {
						yield(rowstore.Row{}, err)
						return
					}
				}
				for _, a := range asks[:n] {
					row := rowstore.Row{Table: r.Table, Row: a.name, Versions: a.versions()}
					if len(row.Versions) == 0 {
						continue
					}
					visited++
					if !yield(row, nil) || visited == r.Limit {
						return
					}
				}
				asks = asks[n:]
			}
		}
	}
}

// named is a row of a scan.
type named struct {
	ask
	name string
}

// pager reads the rows of a scan.
type pager struct {
	s        *Store
	r        rowstore.ScanRange
	space    byte
	from, to []byte // what is left
	size     int    // of the next page
	more     bool
	last     string // the row visited last, by a scan over markers
}

func newPager(s *Store, r rowstore.ScanRange) *pager {
	p := &pager{s: s, r: r, space: spaceIndex, size: pageFirst, more: true}
	for _, pick := range r.Selectors {
		if pick.Family != rowstore.Notify {
			p.space = spaceHead
		}
	}
	// Names that are too long, and so name no row, bound ranges as well as others.
	p.from = s.keys.table(p.space, r.Table)
	if r.From != "" {
		p.from = s.keys.row(p.space, r.Table, r.From)
	}
	p.to = s.keys.afterTable(p.space, r.Table)
	if r.To != "" {
		p.to = s.keys.row(p.space, r.Table, r.To)
	}
	if r.Limit > 0 {
		p.size = min(p.size, r.Limit)
	}
	p.more = len(r.Table) <= s.limits.Table
	return p
}

func (p *pager) done() bool { return !p.more || bytes.Compare(p.from, p.to) >= 0 }

// next reads a page and returns its rows in which something matches, without long
// values.
func (p *pager) next(ctx context.Context, visited int) ([]*named, error) {
	ctx, end, err := p.s.gate.Begin(ctx, "scan")
	if err != nil {
		return nil, err
	}
	defer end()
	if p.r.Limit > 0 {
		p.size = max(min(p.size, 2*(p.r.Limit-visited)), 1)
	}
	limit := p.size
	page, err := p.page(ctx, limit)
	for limit > 1 && isTooMuch(err) {
		// Rows that are much wider than those before them.
		limit = max(limit/16, 1)
		page, err = p.page(ctx, limit)
	}
	if err != nil {
		return nil, p.s.gate.Fail("scan", err)
	}
	p.more = len(page) == limit
	if len(page) == 0 {
		return nil, nil
	}
	if last := page[len(page)-1].key; p.r.Reverse {
		p.to = bytes.Clone(last)
	} else {
		p.from = append(bytes.Clone(last), 0)
	}
	p.size = min(2*limit, pageRows)
	var rows []*named
	if p.space == spaceHead {
		rows, err = p.heads(page)
	} else {
		rows, err = p.marked(ctx, page)
	}
	if err != nil {
		return nil, p.s.gate.Fail("scan", err)
	}
	size := 0
	asks := make([]*ask, len(rows))
	for i, n := range rows {
		asks[i] = &n.ask
		size += len(n.raw)
	}
	if size > 0 {
		p.size = max(min(p.size, int(int64(pageBytes)*int64(limit)/int64(size))), 1)
	}
	if err := p.s.selectAll(ctx, asks); err != nil {
		return nil, p.s.gate.Fail("scan", err)
	}
	matched := rows[:0]
	for _, n := range rows {
		if len(n.entries) > 0 {
			matched = append(matched, n)
		}
	}
	return matched, nil
}

func (p *pager) page(ctx context.Context, limit int) ([]pair, error) {
	keysOnly := p.space == spaceIndex
	if p.r.Reverse {
		return p.s.raw.reverseScan(ctx, p.from, p.to, limit, keysOnly)
	}
	return p.s.raw.scan(ctx, p.from, p.to, limit, keysOnly)
}

// heads makes rows of a page of heads.
func (p *pager) heads(page []pair) ([]*named, error) {
	rows := make([]*named, len(page))
	for i, kv := range page {
		_, name, rest, err := p.s.keys.parse(spaceHead, kv.key)
		if err == nil && len(rest) > 0 {
			err = foreign(kv.key)
		}
		if err != nil {
			return nil, err
		}
		rows[i] = &named{ask{key: kv.key, raw: kv.value, picks: p.r.Selectors}, name}
	}
	return rows, nil
}

// marked reads the heads of the rows that a page of markers names. A row has one
// marker, and a moment ago or after a crash it may have had others.
func (p *pager) marked(ctx context.Context, page []pair) ([]*named, error) {
	var rows []*named
	var markers [][]marker
	for _, kv := range page {
		_, name, _, err := p.s.keys.parseIndex(kv.key)
		if err != nil {
			return nil, err
		}
		head := p.s.keys.sibling(kv.key[:len(kv.key)-idLen], spaceHead)
		if name != p.last {
			rows = append(rows, &named{ask{key: head, picks: p.r.Selectors}, name})
			markers = append(markers, nil)
			p.last = name
		}
		if n := len(markers); n > 0 {
			markers[n-1] = append(markers[n-1], marker{kv.key, head})
		}
	}
	asks := make([]*ask, len(rows))
	for i, n := range rows {
		asks[i] = &n.ask
	}
	if err := p.s.readHeads(ctx, asks, true); err != nil {
		return nil, err
	}
	for i, a := range asks {
		h, err := p.s.decodeRow(a.key, a.raw)
		if err != nil {
			return nil, err
		}
		for _, m := range markers[i] {
			if markerID(m.key) != h.index {
				p.s.clean.met(m)
			}
		}
	}
	return rows, nil
}

// fill gets the long values of rows.
func (p *pager) fill(ctx context.Context, rows []*named) error {
	ctx, end, err := p.s.gate.Begin(ctx, "scan")
	if err != nil {
		return err
	}
	defer end()
	asks := make([]*ask, len(rows))
	for i, n := range rows {
		asks[i] = &n.ask
	}
	if err := p.s.fillValues(ctx, asks); err != nil {
		return p.s.gate.Fail("scan", err)
	}
	return nil
}

// Tables implements rowstore.Store, with one request for each table. A table whose
// rows were all emptied is listed still.
func (s *Store) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		from, to := s.keys.space(spaceHead), s.keys.space(spaceHead+1)
		for {
			table, ok, err := s.tableFrom(ctx, from, to)
			if err != nil {
				yield("", err)
				return
			}
			if !ok || !yield(table, nil) {
				return
			}
			from = s.keys.afterTable(spaceHead, table)
		}
	}
}

func (s *Store) tableFrom(ctx context.Context, from, to []byte) (string, bool, error) {
	ctx, end, err := s.gate.Begin(ctx, "tables")
	if err != nil {
		return "", false, err
	}
	defer end()
	page, err := s.raw.scan(ctx, from, to, 1, true)
	if err != nil {
		return "", false, s.gate.Fail("tables", err)
	}
	if len(page) == 0 {
		return "", false, nil
	}
	table, _, _, err := s.keys.parse(spaceHead, page[0].key)
	if err != nil {
		return "", false, s.gate.Fail("tables", err)
	}
	return table, true, nil
}

// Split implements rowstore.Splitter: the boundaries of the regions that hold the
// table, or as many of them as are asked for, evenly chosen. A table that lies in one
// region has none.
func (s *Store) Split(ctx context.Context, table string, n int) ([]string, error) {
	if table == "" || n < 1 {
		return nil, fmt.Errorf("tikvraw: split of table %q into %d parts: %w", table, n, rowstore.ErrInvalid)
	}
	ctx, end, err := s.gate.Begin(ctx, "split")
	if err != nil {
		return nil, err
	}
	defer end()
	first := s.keys.table(spaceHead, table)
	found, err := s.raw.boundaries(ctx, first, s.keys.afterTable(spaceHead, table))
	if err != nil {
		return nil, s.gate.Fail("split", err)
	}
	var all []string
	for _, key := range found {
		name := cutBoundary(key[len(first):])
		if name != "" && (len(all) == 0 || name > all[len(all)-1]) {
			all = append(all, name)
		}
	}
	if len(all) < n {
		return all, nil
	}
	keys := make([]string, n-1)
	for i := range keys {
		keys[i] = all[(i+1)*(len(all)+1)/n-1]
	}
	return keys, nil
}
