package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// A page of a scan ends after so many rows, or bytes of values, or keys passed
	// over, whichever comes first, so that memory is bounded and the engine's files
	// are not pinned.
	pageRows  = 256
	pageBytes = 1 << 20
	pageSteps = 100_000
	// farSteps is the number of keys of no interest in one row after which a seek is
	// cheaper than a step.
	farSteps = 8
)

// view opens an iterator that sees every write below any timestamp drawn before
// the call, and a commit (or nil) that is done when all that it sees is durable.
func (s *Store) view(o *engine.IterOptions) (*engine.Iterator, *commit, error) {
	s.gate.Lock()
	defer s.gate.Unlock()
	it, err := s.db.NewIter(o)
	if err != nil || s.syncs == nil {
		return it, nil, err
	}
	return it, s.syncs.barrier(), nil
}

// Scan implements rowstore.Store. It works page by page: each page is read from one
// state of the store, and nothing is held while its rows are with the caller.
func (s *Store) Scan(ctx context.Context, sr rowstore.ScanRange) iter.Seq2[rowstore.Row, error] {
	return func(yield func(rowstore.Row, error) bool) {
		if err := rowstore.CheckScan(sr); err != nil {
			yield(rowstore.Row{}, err)
			return
		}
		p := newScan(s, sr)
		for left := sr.Limit; ; {
			rows, more, err := p.page(ctx, left)
			if err != nil {
				yield(rowstore.Row{}, scanError(sr.Table, err))
				return
			}
			for _, r := range rows {
				if !yield(r, nil) {
					return
				}
			}
			if !more {
				return
			}
			if sr.Limit > 0 {
				if left -= len(rows); left <= 0 {
					return
				}
			}
		}
	}
}

func scanError(table string, err error) error {
	if errors.Is(err, rowstore.ErrClosed) {
		return err
	}
	return fmt.Errorf("pebble: scan table %q: %w", table, err)
}

// scan is one Scan under way. Its bounds move inwards.
type scan struct {
	s       *Store
	table   string
	reverse bool
	picks   []rowstore.Pick
	// spaces are those of the keys that a pick can match.
	spaces []byte
	// columns are those that picks name, in order; nil if a pick of heads names all.
	columns      []string
	lower, upper []byte // prefixes of rows without their space
	done         bool
}

func newScan(s *Store, sr rowstore.ScanRange) *scan {
	p := &scan{s: s, table: sr.Table, reverse: sr.Reverse}
	all := false
	for _, k := range sr.Picks {
		if k.From > k.To {
			continue
		}
		p.picks = append(p.picks, k)
		space := byte(spaceHead)
		switch {
		case k.Family == rowstore.Data:
			space = spaceData
		case k.Family == rowstore.Notify:
			space = spaceNotify
		case k.Column == rowstore.AllColumns:
			all = true
		default:
			p.columns = append(p.columns, k.Column)
		}
		if !slices.Contains(p.spaces, space) {
			p.spaces = append(p.spaces, space)
		}
	}
	slices.Sort(p.columns)
	p.columns = slices.Compact(p.columns)
	if all {
		p.columns = nil
	}
	p.lower = appendName(nil, sr.Table)
	p.upper = after(slices.Clone(p.lower))
	if sr.From != "" {
		p.lower = appendName(p.lower, sr.From)
	}
	if sr.To != "" {
		p.upper = appendName(appendName(nil, sr.Table), sr.To)
	}
	p.done = len(p.picks) == 0 || bytes.Compare(p.lower, p.upper) >= 0
	return p
}

// source walks the rows of one space.
type source struct {
	space byte
	it    *engine.Iterator
	ok    bool
	row   []byte // the row where it stands: prefix without space
}

// page reads the next rows, at most limit if that is not 0. more tells whether
// there may be others.
func (p *scan) page(ctx context.Context, limit int) (rows []rowstore.Row, more bool, err error) {
	if len(p.spaces) == 1 && p.spaces[0] == spaceNotify {
		if rows, more, ok, err := p.notified(ctx, limit); ok || err != nil {
			return rows, more, err
		}
	}
	if err := p.s.enter(ctx); err != nil {
		return nil, false, err
	}
	defer p.s.leave()
	if p.done {
		return nil, false, nil
	}
	if limit == 0 || limit > pageRows {
		limit = pageRows
	}
	point, durable, err := p.s.view(nil)
	if err != nil {
		return nil, false, err
	}
	r := &rowReader{s: p.s, it: point, keep: true}
	sources := make([]source, 0, 3)
	defer func() {
		for i := range sources {
			err = errors.Join(err, sources[i].it.Close())
		}
		err = errors.Join(err, point.Close())
		if err != nil {
			rows = nil
		}
	}()
	for _, space := range p.spaces {
		it, err := point.Clone(engine.CloneOptions{IterOptions: &engine.IterOptions{
			LowerBound: append([]byte{space}, p.lower...),
			UpperBound: append([]byte{space}, p.upper...),
		}})
		if err != nil {
			return nil, false, err
		}
		sources = append(sources, source{space: space, it: it})
		src := &sources[len(sources)-1]
		if p.reverse {
			src.ok = it.Last()
		} else {
			src.ok = it.First()
		}
		if err := src.name(); err != nil {
			return nil, false, err
		}
	}
	steps, size := 0, 0
	for {
		at := p.next(sources)
		if at == nil {
			p.done = true
			break
		}
		if steps >= pageSteps || size >= pageBytes || len(rows) == limit {
			break
		}
		table, row, err := splitRow(append([]byte{spaceHead}, at...))
		if err != nil {
			return nil, false, err
		}
		here := slices.Clone(at)
		for i := range p.picks {
			if k := &p.picks[i]; !headFamily(k.Family) && standsAt(sources, familySpace(k.Family), here) {
				if err := r.versions(table, row, k); err != nil {
					return nil, false, err
				}
			}
		}
		for i := range sources {
			src := &sources[i]
			if !src.ok || !bytes.Equal(src.row, here) {
				continue
			}
			n, err := p.pass(src, r, table, row)
			if err != nil {
				return nil, false, err
			}
			steps += n
		}
		// The next page, if this is the last row of this one, begins beyond it.
		if p.reverse {
			p.upper = append(p.upper[:0], here...)
		} else {
			p.lower = after(append(p.lower[:0], here...))
		}
		if vs := r.take(); len(vs) > 0 {
			rows = append(rows, rowstore.Row{Table: table, Row: row, Versions: vs})
			for i := range vs {
				size += len(vs[i].Value) + 64
			}
		}
		if ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
	}
	for i := range sources {
		if err := sources[i].it.Error(); err != nil {
			return nil, false, err
		}
	}
	if durable != nil {
		if err := durable.wait(ctx); err != nil {
			return nil, false, err
		}
	}
	return rows, !p.done, ctx.Err()
}

// notified is page for picks of Notify alone, from the copy in memory; ok is false
// if there is none.
func (p *scan) notified(ctx context.Context, limit int) (rows []rowstore.Row, more, ok bool, err error) {
	if err := p.s.enter(ctx); err != nil {
		return nil, false, false, err
	}
	defer p.s.leave()
	if p.done {
		return nil, false, true, nil
	}
	if limit == 0 || limit > pageRows {
		limit = pageRows
	}
	s := p.s
	// For the gate see view: no group stands between its draw and its edit of the copy.
	s.gate.Lock()
	known, more, ok := s.notes.page(string(p.lower), string(p.upper), p.reverse, limit)
	var durable *commit
	if s.syncs != nil {
		durable = s.syncs.barrier()
	}
	s.gate.Unlock()
	if !ok {
		return nil, false, false, nil
	}
	if len(known) > 0 {
		if p.reverse {
			p.upper = append(p.upper[:0], known[0].row()...)
		} else {
			p.lower = after(append(p.lower[:0], known[len(known)-1].row()...))
		}
	}
	p.done = !more
	for len(known) > 0 {
		prefix := known[0].row()
		n := 1
		for n < len(known) && strings.HasPrefix(known[n].key, prefix) {
			n++
		}
		r, err := p.notifiedRow(prefix, known[:n])
		if err != nil {
			return nil, false, false, err
		}
		if len(r.Versions) > 0 {
			rows = append(rows, r)
		}
		known = known[n:]
	}
	if p.reverse {
		slices.Reverse(rows)
	}
	if durable != nil {
		if err := durable.wait(ctx); err != nil {
			return nil, false, false, err
		}
	}
	return rows, more, true, ctx.Err()
}

// notifiedRow is what the picks select from the notifications of one row.
func (p *scan) notifiedRow(prefix string, known []note) (rowstore.Row, error) {
	table, row, err := splitRow(append([]byte{spaceNotify}, prefix...))
	if err != nil {
		return rowstore.Row{}, err
	}
	all := make(notesOfRow, len(known))
	for i := range known {
		column, ts, err := splitVersion([]byte(known[i].key), len(prefix))
		if err != nil {
			return rowstore.Row{}, err
		}
		x := &all[i]
		x.ts, x.value = ts, known[i].value
		if i > 0 && sameName(column, all[i-1].column) {
			x.column = all[i-1].column
		} else {
			x.column = unescape(column)
		}
	}
	r := rowReader{}
	for i := range p.picks {
		r.out = all.pick(r.out, &p.picks[i])
	}
	return rowstore.Row{Table: table, Row: row, Versions: r.take()}, nil
}

func familySpace(f rowstore.Family) byte {
	switch f {
	case rowstore.Data:
		return spaceData
	case rowstore.Notify:
		return spaceNotify
	}
	return spaceHead
}

func standsAt(sources []source, space byte, row []byte) bool {
	for i := range sources {
		if s := &sources[i]; s.space == space {
			return s.ok && bytes.Equal(s.row, row)
		}
	}
	return false
}

// name notes the row where the source stands.
func (src *source) name() error {
	if !src.ok {
		src.row = nil
		return src.it.Error()
	}
	p, err := rowPrefix(src.it.Key())
	if err != nil {
		return err
	}
	src.row = append(src.row[:0], p[1:]...)
	return nil
}

// next returns the row that comes next among the sources, or nil.
func (p *scan) next(sources []source) []byte {
	var best []byte
	for i := range sources {
		src := &sources[i]
		if !src.ok {
			continue
		}
		if best == nil {
			best = src.row
			continue
		}
		if c := bytes.Compare(src.row, best); c < 0 != p.reverse && c != 0 {
			best = src.row
		}
	}
	return best
}

// pass moves a source beyond the row where it stands. From heads it collects what
// the picks select.
func (p *scan) pass(src *source, r *rowReader, table, row string) (steps int, err error) {
	prefix := append([]byte{src.space}, src.row...)
	idle := 0
	for src.ok && bytes.HasPrefix(src.it.Key(), prefix) {
		steps++
		idle++
		if src.space == spaceHead {
			column := src.it.Key()[len(prefix):]
			if p.columns == nil {
				idle = 0
				v, err := src.it.ValueAndErr()
				if err != nil {
					return 0, err
				}
				err = p.head(r, table, row, string(column), v)
				if err != nil {
					return 0, err
				}
			} else if i, ok := slices.BinarySearchFunc(p.columns, column, compareName); ok {
				idle = 0
				v, err := src.it.ValueAndErr()
				if err != nil {
					return 0, err
				}
				if err := p.head(r, table, row, p.columns[i], v); err != nil {
					return 0, err
				}
			}
		}
		if idle >= farSteps {
			if src.space == spaceHead {
				if err := p.named(r, table, row, prefix); err != nil {
					return 0, err
				}
			}
			if p.reverse {
				src.ok = src.it.SeekLT(prefix)
			} else {
				src.ok = src.it.SeekGE(after(slices.Clone(prefix)))
			}
			break
		}
		if p.reverse {
			src.ok = src.it.Prev()
		} else {
			src.ok = src.it.Next()
		}
	}
	return steps, src.name()
}

func compareName(name string, column []byte) int {
	return bytes.Compare([]byte(name), column)
}

// head collects from one head what the picks select. The iterator that value
// belongs to is not moved.
func (p *scan) head(r *rowReader, table, row, column string, value []byte) error {
	if err := r.h.decode(value); err != nil {
		return fmt.Errorf("row %q, column %q: %w", row, column, err)
	}
	for i := range p.picks {
		k := &p.picks[i]
		if headFamily(k.Family) && (k.Column == rowstore.AllColumns || k.Column == column) {
			if err := r.fromHead(table, row, column, k); err != nil {
				return err
			}
		}
	}
	return nil
}

// named collects from the heads of the columns that the picks name, wherever in the
// row they are. What was collected before is collected again, and take drops it.
func (p *scan) named(r *rowReader, table, row string, prefix []byte) error {
	var buf []byte
	for _, c := range p.columns {
		r.key = append(append(r.key[:0], prefix...), c...)
		r.upper = append(append(r.upper[:0], r.key...), 0)
		ok, err := r.seek(r.key, r.upper)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		v, err := r.it.ValueAndErr()
		if err != nil {
			return err
		}
		// The head's history is read with the same iterator.
		buf = append(buf[:0], v...)
		if err := p.head(r, table, row, c, buf); err != nil {
			return err
		}
	}
	return nil
}

// Tables implements rowstore.Store.
func (s *Store) Tables(ctx context.Context) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		const page = 64
		last := ""
		for {
			tables, err := s.tables(ctx, last, page)
			if err != nil {
				if !errors.Is(err, rowstore.ErrClosed) {
					err = fmt.Errorf("pebble: list tables: %w", err)
				}
				yield("", err)
				return
			}
			for _, t := range tables {
				if !yield(t, nil) {
					return
				}
			}
			if len(tables) < page {
				return
			}
			last = tables[page-1]
		}
	}
}

// tables lists up to limit tables after last.
func (s *Store) tables(ctx context.Context, last string, limit int) (tables []string, err error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	it, durable, err := s.view(nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	spaces := []byte{spaceHead, spaceData, spaceNotify}
	// heads[i] is the escaped name of the first table after the last one listed that
	// has keys in spaces[i], nil if there is none.
	heads := make([][]byte, len(spaces))
	seek := func(i int, from []byte) error {
		lower := append([]byte{spaces[i]}, from...)
		it.SetBounds(lower, []byte{spaces[i] + 1})
		heads[i] = nil
		if !it.First() {
			return it.Error()
		}
		name, _, ok := cutName(it.Key()[1:])
		if !ok || len(name) == 0 {
			return corruptKey(it.Key())
		}
		heads[i] = slices.Clone(name)
		return nil
	}
	var from []byte
	if last != "" {
		from = after(appendName(nil, last))
	}
	for i := range spaces {
		if err := seek(i, from); err != nil {
			return nil, err
		}
	}
	for len(tables) < limit {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var first []byte
		for _, h := range heads {
			if h != nil && (first == nil || compareEscaped(h, first) < 0) {
				first = h
			}
		}
		if first == nil {
			break
		}
		tables = append(tables, unescape(first))
		from = append(append([]byte{}, first...), escape, afterName)
		for i := range heads {
			if heads[i] != nil && bytes.Equal(heads[i], first) && &heads[i][0] != &first[0] {
				if err := seek(i, from); err != nil {
					return nil, err
				}
			}
		}
		for i := range heads {
			if heads[i] != nil && &heads[i][0] == &first[0] {
				if err := seek(i, from); err != nil {
					return nil, err
				}
			}
		}
	}
	if durable != nil {
		if err := durable.wait(ctx); err != nil {
			return nil, err
		}
	}
	return tables, nil
}

// compareEscaped compares two escaped names, whose ends are cut off, as the names.
// The end counts: it is less than an escaped 0x00.
func compareEscaped(a, b []byte) int {
	return bytes.Compare(append(slices.Clip(a), escape, endOfName), append(slices.Clip(b), escape, endOfName))
}
