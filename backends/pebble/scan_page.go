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
	if len(p.spaces) == 1 && p.spaces[0] == spaceNotify {
		if rows, more, ok, err := p.notified(ctx, limit); ok || err != nil {
			return rows, more, err
		}
	}
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
	point, durable, err := p.s.view(nil)
	if err != nil {
		return nil, false, err
	}
	w := walk{p: p, r: &rowReader{s: p.s, it: point, keep: true}, sources: make([]source, 0, 3)}
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
	sources []source
	rows    []rowstore.Row
	steps   int // keys passed over
	size    int // bytes of what was found, about
}

// open puts a source in front of the page in each space, all in the view of point.
func (w *walk) open(point *engine.Iterator) error {
	p := w.p
	for _, space := range p.spaces {
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
		row := p.next(w.sources)
		if row == nil {
			p.done = true
			break
		}
		if w.steps >= pageSteps || w.size >= pageBytes || len(w.rows) == limit {
			break
		}
		if err := w.readRow(slices.Clone(row)); err != nil {
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
func (w *walk) readRow(prefix []byte) error {
	p := w.p
	table, row, err := splitRow(append([]byte{spaceHead}, prefix...))
	if err != nil {
		return err
	}
	for i := range p.picks {
		if k := &p.picks[i]; !headFamily(k.Family) && standsAt(w.sources, familySpace(k.Family), prefix) {
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
		n, err := p.pass(src, w.r, table, row)
		if err != nil {
			return err
		}
		w.steps += n
	}
	// The next page, if this is the last row of this one, begins beyond it.
	if p.reverse {
		p.upper = append(p.upper[:0], prefix...)
	} else {
		p.lower = after(append(p.lower[:0], prefix...))
	}
	if vs := w.r.take(); len(vs) > 0 {
		w.rows = append(w.rows, rowstore.Row{Table: table, Row: row, Versions: vs})
		for i := range vs {
			w.size += len(vs[i].Value) + 64
		}
	}
	return nil
}

// familySpace is the space that a family's versions are in, or begin in.
func familySpace(f rowstore.Family) byte {
	switch f {
	case rowstore.Data:
		return spaceData
	case rowstore.Notify:
		return spaceNotify
	}
	return spaceHead
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
