package tikvraw

import (
	"bytes"
	"cmp"
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
		for p.more {
			rows, err := p.next(ctx)
			if err != nil {
				yield(rowstore.Row{}, err)
				return
			}
			for len(rows) > 0 {
				n, err := p.part(ctx, rows)
				if err != nil {
					yield(rowstore.Row{}, err)
					return
				}
				for i, row := range rows[:n] {
					rows[i] = nil // what was handed out is not held
					if !p.hand(row, yield) {
						return
					}
				}
				rows = rows[n:]
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
	// load and keep are about how many bytes of chunks are yet to be read for the answer, and how many
	// of these it holds then. load is 0 if the head says all, or the chunks were read.
	load, keep int
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
	// visited is how many rows were handed out.
	visited int
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

// next reads a page and returns its rows in which something matches, or may match, or that cannot be
// read. It reads heads alone: chunks and long values come with part.
func (p *pager) next(ctx context.Context) ([]*named, error) {
	ctx, end, err := p.s.begin(ctx, "scan")
	if err != nil {
		return nil, err
	}
	defer end()
	if p.r.Limit > 0 {
		p.size = max(min(p.size, 2*(p.r.Limit-p.visited)), 1)
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
	matched := rows[:0]
	for _, n := range rows {
		size += len(n.raw)
		if err := p.s.selectNear(ctx, n); err != nil {
			return nil, p.s.gate.Fail("scan", err)
		}
		if len(n.entries) > 0 || len(n.hint) > 0 || n.err != nil || n.load > 0 {
			matched = append(matched, n)
		}
	}
	clear(rows[len(matched):])
	p.size = min(2*limit, pageRows)
	if size > 0 {
		p.size = max(min(p.size, int(int64(pageBytes)*int64(len(rows))/int64(size))), 1)
	}
	return matched, nil
}

// selectNear finds what the picks select, if the head alone tells. Otherwise it finds out how much is to be read.
func (s *Store) selectNear(ctx context.Context, n *named) error {
	if n.err != nil {
		return nil
	}
	r, err := s.decodeRow(n.key, n.raw)
	if err == nil {
		if n.load, n.keep = r.weight(n.picks); n.load == 0 {
			n.entries, err = r.selectPicks(ctx, n.picks)
		}
	}
	if err != nil {
		return n.fail(err)
	}
	return nil
}

// part makes the first rows of a page ready to be handed out, and returns how many. What lies apart from
// the heads, and may be a thousand times as long, is read for a few rows at a time.
func (p *pager) part(ctx context.Context, rows []*named) (n int, err error) {
	if rows[0].load > 0 {
		if err := p.loadSome(ctx, rows); err != nil {
			return 0, err
		}
	}
	size := 0
	for n < len(rows) && rows[n].load == 0 && (n == 0 || size+rows[n].far() <= batchBytes) {
		size += rows[n].far()
		n++
	}
	if size > 0 {
		err = p.fill(ctx, rows[:n])
	}
	return n, err
}

// loadSome selects in the chunks of the next rows that need any, as many as may be held at once.
func (p *pager) loadSome(ctx context.Context, rows []*named) error {
	ctx, end, err := p.s.begin(ctx, "scan")
	if err != nil {
		return err
	}
	defer end()
	var asks []*ask
	load, keep := 0, 0
	for _, n := range rows {
		if n.load == 0 {
			continue
		}
		load, keep = load+n.load, keep+n.keep
		if len(asks) > 0 && (load > batchBytes || keep > pageBytes) {
			break
		}
		asks = append(asks, &n.ask)
		n.load = 0
	}
	return p.s.gate.Fail("scan", p.s.selectAll(ctx, asks))
}

// hand yields a row that is ready, unless nothing in it matches. It returns false at the end of the scan.
func (p *pager) hand(n *named, yield func(rowstore.Row, error) bool) (goOn bool) {
	if n.err != nil {
		yield(rowstore.Row{}, p.s.gate.Fail("scan", n.err))
		return false
	}
	row := rowstore.Row{Table: p.r.Table, Row: n.name, Versions: n.versions()}
	if len(n.hint) > 0 {
		row.Hint = true
		p.s.hints.gave(n.hint)
	} else if len(row.Versions) == 0 {
		return true
	}
	p.visited++
	return yield(row, nil) && p.visited != p.r.Limit
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
// rows were all emptied is listed still. A key that names no table hides none: its error comes last.
func (s *Store) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		from := s.keys.space(spaceHead)
		var passed error
		for limit := 1; ; {
			table, next, err := s.tableFrom(ctx, from, limit, &passed)
			if err != nil {
				yield("", err)
				return
			}
			if table != "" && !yield(table, nil) {
				return
			}
			if next == nil {
				break
			}
			from = next
			if limit = 1; table == "" {
				limit = sweepPage // there may be many such keys
			}
		}
		if passed != nil {
			yield("", s.gate.Fail("tables", passed))
		}
	}
}

// tableFrom looks at so many keys for the first that names a table, "" if none does. next is where to go on, nil at the
// end. passed notes the first key that names none.
func (s *Store) tableFrom(ctx context.Context, from []byte, limit int, passed *error) (table string, next []byte, err error) {
	ctx, end, err := s.begin(ctx, "tables")
	if err != nil {
		return "", nil, err
	}
	defer end()
	page, more, err := s.keysFrom(ctx, from, s.keys.space(spaceHead+1), limit)
	if err != nil {
		return "", nil, s.gate.Fail("tables", err)
	}
	for _, kv := range page {
		table, _, _, err = s.keys.parse(spaceHead, kv.key)
		if err == nil {
			return table, s.keys.afterTable(spaceHead, table), nil
		}
		*passed = cmp.Or(*passed, err)
	}
	if !more || len(page) == 0 {
		return "", nil, nil
	}
	return "", append(bytes.Clone(page[len(page)-1].key), 0), nil
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
