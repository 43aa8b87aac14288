package tikvraw

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"slices"

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
// regions. A scan that picks only Notify reads markers instead, and the heads of the rows
// that have one; see slotWalk and nameWalk. It visits the rows before one that cannot be read.
func (s *Store) Scan(ctx context.Context, r rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		if err := rowstore.CheckScan(r); err != nil {
			yield(rowstore.Row{}, fmt.Errorf("tikvraw: scan: %w", err))
			return
		}
		p := newPager(s, r)
		visited := 0
		for p.more {
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
					if a.err != nil {
						yield(rowstore.Row{}, s.gate.Fail("scan", a.err))
						return
					}
					row := rowstore.Row{Table: r.Table, Row: a.name, Versions: a.versions()}
					if len(a.hint) > 0 {
						row.Hint = true
						s.hints.gave(a.hint)
					} else if len(row.Versions) == 0 {
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
	// hint is the markers of a row that is visited as a hint: its head was not read.
	hint []uint64
}

// walk finds the rows of a scan in their order.
type walk interface {
	// next returns the heads of the next rows, or hints of them, limit of them at the most, and
	// whether there may be more. A key that is not a row's is a row with an err. It makes a few requests, and may return no rows although there are more.
	// After an error that isTooMuch knows it can be called again, with a lower limit.
	next(ctx context.Context, limit int) (rows []*named, more bool, err error)
}

// pager reads the rows of a scan.
type pager struct {
	s    *Store
	r    rowstore.ScanRange
	walk walk
	size int // of the next page
	more bool
}

func newPager(s *Store, r rowstore.ScanRange) *pager {
	p := &pager{s: s, r: r, size: pageFirst, more: len(r.Table) <= s.limits.Table}
	switch {
	case slices.ContainsFunc(r.Selectors, func(pick rowstore.Selector) bool { return pick.Family != rowstore.Notify }):
		p.walk = newHeadWalk(s, &p.r)
	case len(r.Slots) > 0:
		p.walk = newSlotWalk(s, &p.r)
	default:
		p.walk = newNameWalk(s, &p.r)
	}
	if r.Limit > 0 {
		p.size = min(p.size, r.Limit)
	}
	return p
}

// next reads a page and returns its rows in which something matches, or that cannot be read, without
// long values.
func (p *pager) next(ctx context.Context, visited int) ([]*named, error) {
	ctx, end, err := p.s.begin(ctx, "scan")
	if err != nil {
		return nil, err
	}
	defer end()
	if p.r.Limit > 0 {
		p.size = max(min(p.size, 2*(p.r.Limit-visited)), 1)
	}
	limit := p.size
	rows, more, err := p.walk.next(ctx, limit)
	for limit > 1 && isTooMuch(err) {
		// Rows that are much wider than those before them.
		limit = max(limit/16, 1)
		rows, more, err = p.walk.next(ctx, limit)
	}
	if err != nil {
		return nil, p.s.gate.Fail("scan", err)
	}
	p.more = more
	if len(rows) == 0 {
		return nil, nil
	}
	size := 0
	asks := make([]*ask, len(rows))
	for i, n := range rows {
		asks[i] = &n.ask
		size += len(n.raw)
	}
	p.size = min(2*limit, pageRows)
	if size > 0 {
		p.size = max(min(p.size, int(int64(pageBytes)*int64(len(rows))/int64(size))), 1)
	}
	if err := p.s.selectAll(ctx, asks); err != nil {
		return nil, p.s.gate.Fail("scan", err)
	}
	matched := rows[:0]
	for _, n := range rows {
		if len(n.entries) > 0 || len(n.hint) > 0 || n.err != nil {
			matched = append(matched, n)
		}
	}
	return matched, nil
}

// headWalk goes over the heads of a range of rows.
type headWalk struct {
	s        *Store
	r        *rowstore.ScanRange
	from, to []byte // what is left
}

func newHeadWalk(s *Store, r *rowstore.ScanRange) *headWalk {
	// Names that are too long, and so name no row, bound ranges as well as others.
	w := &headWalk{s: s, r: r, from: s.keys.table(spaceHead, r.Table), to: s.keys.afterTable(spaceHead, r.Table)}
	if r.From != "" {
		w.from = s.keys.row(spaceHead, r.Table, r.From)
	}
	if r.To != "" {
		w.to = s.keys.row(spaceHead, r.Table, r.To)
	}
	return w
}

func (w *headWalk) next(ctx context.Context, limit int) ([]*named, bool, error) {
	if bytes.Compare(w.from, w.to) >= 0 {
		return nil, false, nil
	}
	scan := w.s.raw.scan
	if w.r.Reverse {
		scan = w.s.raw.reverseScan
	}
	page, err := scan(ctx, w.from, w.to, limit, false)
	if err != nil || len(page) == 0 {
		return nil, false, err
	}
	rows := make([]*named, len(page))
	for i, kv := range page {
		_, name, rest, err := w.s.keys.parse(spaceHead, kv.key)
		if err == nil && len(rest) > 0 {
			err = strange(kv.key)
		}
		rows[i] = &named{ask: ask{key: kv.key, raw: kv.value, picks: w.r.Selectors, err: err}, name: name}
	}
	if last := page[len(page)-1].key; w.r.Reverse {
		w.to = bytes.Clone(last)
	} else {
		w.from = append(bytes.Clone(last), 0)
	}
	return rows, len(page) == limit, nil
}

// fill gets the long values of rows.
func (p *pager) fill(ctx context.Context, rows []*named) error {
	ctx, end, err := p.s.begin(ctx, "scan")
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
	ctx, end, err := s.begin(ctx, "tables")
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
	ctx, end, err := s.begin(ctx, "split")
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
