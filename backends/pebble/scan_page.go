package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

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
	if err := p.s.enter(ctx, "scan"); err != nil {
		return nil, false, err
	}
	defer p.s.leave()
	if p.done {
		return nil, false, nil
	}
	if limit == 0 || limit > pageRows {
		limit = pageRows
	}
	switch {
	case p.slots != nil:
		return p.slotPage(ctx, limit)
	case len(p.spaces) == 1 && p.spaces[0] == spaceNotify:
		return p.notified(ctx, limit)
	}
	return p.merged(ctx, limit)
}

// merged is page for picks of several spaces, or of one in which the rows are in order.
func (p *scan) merged(ctx context.Context, limit int) (rows []rowstore.Row, more bool, err error) {
	w := walk{p: p, sources: make([]source, 0, 2), notify: slices.Contains(p.spaces, spaceNotify)}
	if w.notify {
		if err := p.lookAhead(ctx); err != nil {
			return nil, false, err
		}
	}
	point, durable, err := p.s.view(func() {
		if w.notify {
			w.notes = p.s.notes.ofTable(p.tableForm)
		}
	})
	if err != nil {
		return nil, false, err
	}
	w.r = &rowReader{s: p.s, it: point, keep: true}
	err = w.open(point)
	if err == nil {
		err = w.read(ctx, limit)
	}
	if err = errors.Join(err, w.close(), point.Close()); err != nil {
		return nil, false, err
	}
	if durable != nil {
		if err := durable.wait(ctx); err != nil {
			return nil, false, err
		}
	}
	return w.rows, !p.done, ctx.Err()
}

// walk reads one page of a scan: from one source for each space, merged by row.
type walk struct {
	p       *scan
	r       *rowReader
	sources []source    // of each space but notify
	notify  bool        // a pick can match Notify
	notes   *tableNotes // which rows have notifications
	rows    []rowstore.Row
	row     []byte // the next notified row
	steps   int    // keys passed over
	size    int    // bytes of what was found, about
}

// open puts a source in front of the page in each space, all in the view of point.
func (w *walk) open(point *engine.Iterator) error {
	p := w.p
	for _, space := range p.spaces {
		if space == spaceNotify {
			continue
		}
		it, err := point.Clone(engine.CloneOptions{IterOptions: &engine.IterOptions{
			LowerBound: append([]byte{space}, p.lower...),
			UpperBound: append([]byte{space}, p.upper...),
		}})
		if err != nil {
			return err
		}
		w.sources = append(w.sources, source{space: space, it: it})
		src := &w.sources[len(w.sources)-1]
		if p.reverse {
			src.ok = it.Last()
		} else {
			src.ok = it.First()
		}
		if err := src.name(); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) close() error {
	var err error
	for i := range w.sources {
		err = errors.Join(err, w.sources[i].it.Close())
	}
	return err
}

// read reads rows until the page is full or nothing is left.
func (w *walk) read(ctx context.Context, limit int) error {
	p := w.p
	for {
		row := w.next()
		if row == nil {
			p.done = !w.notify || p.ahead.all
			break
		}
		if w.steps >= pageSteps || w.size >= pageBytes || len(w.rows) == limit {
			break
		}
		if err := w.readRow(ctx, slices.Clone(row)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	for i := range w.sources {
		if err := w.sources[i].it.Error(); err != nil {
			return err
		}
	}
	return nil
}

// readRow adds what the picks select from one row, given as its prefix without the
// space, and moves all sources and the rest of the scan beyond it.
func (w *walk) readRow(ctx context.Context, prefix []byte) error {
	p := w.p
	table, row, err := splitRow(append([]byte{spaceHead}, prefix...))
	if err != nil {
		return err
	}
	for _, k := range p.apart {
		if k.Family == rowstore.Notify && w.notes.has(table, row) || k.Family == rowstore.Data && standsAt(w.sources, spaceData, prefix) {
			if err := w.r.versions(table, row, k); err != nil {
				return err
			}
		}
	}
	for i := range w.sources {
		src := &w.sources[i]
		if !src.ok || !bytes.Equal(src.row, prefix) {
			continue
		}
		n, err := p.pass(ctx, src, w.r, table, row)
		if err != nil {
			return err
		}
		w.steps += n
	}
	if next := p.ahead.prefixes; len(next) > 0 && bytes.Equal(w.aheadRow(), prefix) {
		p.ahead.prefixes = next[1:]
		w.steps += farSteps // a search for its notifications, which may be gone
	}
	p.move(prefix)
	w.found(table, row)
	return nil
}

// move lets the next page, if this is the last row of this one, begin beyond the row.
func (p *scan) move(prefix []byte) {
	if p.reverse {
		p.upper = append(p.upper[:0], prefix...)
	} else {
		p.lower = after(append(p.lower[:0], prefix...))
	}
}

// visit adds what the picks select from the notifications of a row, given as its prefix in
// the notify space.
func (w *walk) visit(prefix []byte) error {
	table, row, err := splitRow(prefix)
	if err != nil {
		return err
	}
	for i := range w.p.picks {
		if err := w.r.versions(table, row, &w.p.picks[i]); err != nil {
			return err
		}
	}
	w.found(table, row)
	return nil
}

// found adds the row with what the reader has collected of it, if that is anything.
func (w *walk) found(table, row string) {
	vs := w.r.take()
	if len(vs) == 0 {
		return
	}
	w.rows = append(w.rows, rowstore.Row{Table: table, Row: row, Versions: vs})
	for i := range vs {
		w.size += len(vs[i].Value) + 64
	}
}

// standsAt tells whether the source of a space stands at a row.
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

// next returns the row that comes next among the sources and the notified rows, nil if the
// page ends here.
func (w *walk) next() []byte {
	var best []byte
	for i := range w.sources {
		if src := &w.sources[i]; src.ok {
			best = w.p.first(best, src.row)
		}
	}
	if !w.notify {
		return best
	}
	if len(w.p.ahead.prefixes) > 0 {
		return w.p.first(best, w.aheadRow())
	}
	if !w.p.ahead.all {
		return nil // it is not known which notified row comes next
	}
	return best
}

// first returns that of two rows which a scan visits first. a may be nil.
func (p *scan) first(a, b []byte) []byte {
	if a == nil {
		return b
	}
	if c := bytes.Compare(b, a); c < 0 != p.reverse && c != 0 {
		return b
	}
	return a
}

// aheadRow returns the next notified row that is known, as a prefix of the sources.
func (w *walk) aheadRow() []byte {
	p := w.p
	w.row = append(append(w.row[:0], p.tableForm...), p.ahead.prefixes[0][p.rowAt():]...)
	return w.row
}

// pass moves a source beyond the row where it stands. From heads it collects what
// the picks select.
func (p *scan) pass(ctx context.Context, src *source, r *rowReader, table, row string) (steps int, err error) {
	prefix := append([]byte{src.space}, src.row...)
	idle := 0
	for src.ok && bytes.HasPrefix(src.it.Key(), prefix) {
		if steps++; steps%ctxSteps == 0 && ctx.Err() != nil {
			return steps, ctx.Err()
		}
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
				if err := p.named(ctx, r, table, row, prefix); err != nil {
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
	p.mine = p.at.Of(p.mine[:0], column)
	for _, i := range p.mine {
		if k := &p.picks[i]; headFamily(k.Family) {
			if err := r.fromHead(table, row, column, k); err != nil {
				return err
			}
		}
	}
	return nil
}

// named collects from the heads of the columns that the picks name, wherever in the
// row they are. What was collected before is collected again, and take drops it.
func (p *scan) named(ctx context.Context, r *rowReader, table, row string, prefix []byte) error {
	var buf []byte
	for i, c := range p.columns {
		if i%ctxSteps == ctxSteps-1 && ctx.Err() != nil {
			return ctx.Err()
		}
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
