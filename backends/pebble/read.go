package pebble

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// rowReader reads rows. It has buffers and perhaps an iterator, and is used by one
// goroutine at a time.
type rowReader struct {
	s     *Store
	it    *engine.Iterator // made when it is needed; sees one state of the store
	keep  bool             // the iterator is a scan's, and stays
	key   []byte
	upper []byte
	// stripe is the stripe of the row, which is held. A scan does not use it.
	stripe uint32
	// col and h are the last head that was looked at.
	col   string
	h     head
	known bool
	out   []rowstore.Version
}

var readers = sync.Pool{New: func() any { return new(rowReader) }}

// Read implements rowstore.Store. Each row is read under its stripe, in one view.
// What it finds is durable before it is returned.
func (s *Store) Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	if err := rowstore.CheckReads(reads); err != nil {
		return nil, err
	}
	if err := s.enter(ctx, "read"); err != nil {
		return nil, err
	}
	defer s.leave()
	r := readers.Get().(*rowReader)
	r.s = s
	defer r.done()
	rows := make([]rowstore.Row, len(reads))
	var waits waitList
	for i := range reads {
		rd := &reads[i]
		row := &rows[i]
		row.Table, row.Row = rd.Table, rd.Row
		// An iterator may be used for this row only if it is made under its stripe.
		r.reset()
		r.stripe = s.stripe(rd.Table, rd.Row)
		st := &s.stripes[r.stripe]
		st.mu.RLock()
		err := r.read(rd.Table, rd.Row, rd.Selectors)
		waits.add(st.unsynced)
		st.mu.RUnlock()
		if err != nil {
			row.Err = fmt.Errorf("pebble: read row %q of table %q: %w", rd.Row, rd.Table, err)
			continue
		}
		row.Versions = r.take()
		if len(reads) > 32 && i%32 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	if err := waits.wait(ctx); err != nil {
		return nil, err
	}
	return rows, nil
}

// done gives the reader back.
func (r *rowReader) done() {
	r.reset()
	r.s = nil
	if cap(r.key)+cap(r.upper) > 64<<10 {
		r.key, r.upper = nil, nil
	}
	readers.Put(r)
}

// reset forgets what was read.
func (r *rowReader) reset() {
	if r.it != nil && !r.keep {
		_ = r.it.Close()
		r.it = nil
	}
	r.known = false
	r.h = head{}
	r.out = nil
}

// take returns the versions found since the last take, ordered, each once.
func (r *rowReader) take() []rowstore.Version {
	out := r.out
	r.out = nil
	for i := 1; i < len(out); i++ {
		if rowstore.CompareVersions(out[i-1], out[i]) >= 0 {
			slices.SortFunc(out, rowstore.CompareVersions)
			return slices.CompactFunc(out, func(a, b rowstore.Version) bool {
				return rowstore.CompareVersions(a, b) == 0
			})
		}
	}
	return out
}

// headFamily tells whether a family lives in the heads.
func headFamily(f rowstore.Family) bool {
	return f == rowstore.Lock || f == rowstore.Write || f == rowstore.Mark
}

// read collects what the picks select from a row.
func (r *rowReader) read(table, row string, picks []rowstore.Selector) error {
	all := false
	for i := range picks {
		p := &picks[i]
		if p.From > p.To {
			continue
		}
		var err error
		switch {
		case !headFamily(p.Family):
			err = r.versions(table, row, p)
		case p.Column == rowstore.AllColumns:
			all = true
		default:
			if err = r.head(table, row, p.Column); err == nil {
				err = r.fromHead(table, row, p.Column, p)
			}
		}
		if err != nil {
			return err
		}
	}
	if !all {
		return nil
	}
	return r.allHeads(table, row, picks)
}

// head makes r.h the head of a column, empty if there is none. The stripe is held.
func (r *rowReader) head(table, row, column string) error {
	if r.known && r.col == column {
		return nil
	}
	r.known = false
	r.key = append(appendRow(r.key[:0], spaceHead, table, row), column...)
	r.h = head{}
	v, present, err := r.s.getHead(r.stripe, r.key)
	if present {
		err = r.h.decode(v)
	}
	r.col, r.known = column, err == nil
	return err
}

// allHeads collects what picks of all columns select from a row's heads.
func (r *rowReader) allHeads(table, row string, picks []rowstore.Selector) error {
	type column struct {
		name string
		h    head
	}
	var columns []column
	r.key = appendRow(r.key[:0], spaceHead, table, row)
	n := len(r.key)
	r.upper = after(append(r.upper[:0], r.key...))
	ok, err := r.seek(r.key, r.upper)
	for ; ok; ok = r.it.Next() {
		v, err := r.it.ValueAndErr()
		if err != nil {
			return err
		}
		var c column
		// The iterator moves on before the head is used.
		if err := c.h.decode(bytes.Clone(v)); err != nil {
			return err
		}
		c.name = string(r.it.Key()[n:])
		columns = append(columns, c)
	}
	if err == nil {
		err = r.it.Error()
	}
	if err != nil {
		return err
	}
	for i := range columns {
		r.col, r.h, r.known = columns[i].name, columns[i].h, true
		for j := range picks {
			p := &picks[j]
			if p.Column == rowstore.AllColumns && headFamily(p.Family) && p.From <= p.To {
				if err := r.fromHead(table, row, r.col, p); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// fromHead collects what a pick of Lock, Write or Mark selects from a column
// whose head is r.h.
func (r *rowReader) fromHead(table, row, column string, p *rowstore.Selector) error {
	h := &r.h
	switch p.Family {
	case rowstore.Lock:
		r.add(p, column, h.lockTS, h.lock)
		return nil
	case rowstore.Mark:
		r.add(p, column, h.markTS, h.mark)
		return nil
	}
	n := 0
	if r.add(p, column, h.writeTS, h.write) {
		n++
	}
	if n == p.Limit && n > 0 || h.older == 0 || h.older < p.From {
		return nil
	}
	return r.column(spaceHistory, table, row, column, p, n)
}

// add collects a version, with a copy of its value, if the pick's range holds it.
// ts may be 0 for none.
func (r *rowReader) add(p *rowstore.Selector, column string, ts rowstore.Timestamp, value []byte) bool {
	if ts == 0 || ts < p.From || ts > p.To {
		return false
	}
	r.out = append(r.out, rowstore.Version{Family: p.Family, Column: column, TS: ts, Value: bytes.Clone(value)})
	return true
}

// column collects the versions of one column that a pick selects from a space
// other than head; n of them were found already.
func (r *rowReader) column(space byte, table, row, column string, p *rowstore.Selector, n int) error {
	r.key = appendColumn(r.key[:0], space, table, row, column)
	prefix := len(r.key)
	r.upper = kit.AppendTimestamp(append(r.upper[:0], r.key...), p.From)
	r.upper = append(r.upper, 0)
	r.key = kit.AppendTimestamp(r.key, p.To)
	ok, err := r.seek(r.key, r.upper)
	for ; ok && (p.Limit == 0 || n < p.Limit); ok = r.it.Next() {
		k := r.it.Key()
		if len(k) != prefix+kit.TimestampLen {
			return corruptKey(k)
		}
		ts := tsOf(k)
		v, err := r.it.ValueAndErr()
		if err != nil {
			return err
		}
		if r.add(p, column, ts, v) {
			n++
		}
	}
	if err == nil {
		err = r.it.Error()
	}
	return err
}

// versions collects what a pick of Data or Notify selects from a row.
func (r *rowReader) versions(table, row string, p *rowstore.Selector) error {
	space := byte(spaceNotify)
	if p.Family == rowstore.Data {
		space = spaceData
	}
	if p.Column != rowstore.AllColumns {
		if p.From == p.To && space == spaceData && !r.keep {
			return r.exact(space, table, row, p)
		}
		return r.column(space, table, row, p.Column, p, 0)
	}
	r.key = appendRow(r.key[:0], space, table, row)
	prefix := len(r.key)
	r.upper = after(append(r.upper[:0], r.key...))
	ok, err := r.seek(r.key, r.upper)
	var raw []byte // the escaped name of the column
	var name string
	n := 0
	for ok {
		c, ts, err := splitVersion(r.it.Key(), prefix)
		if err != nil {
			return err
		}
		if !bytes.Equal(c, raw) {
			raw = append(raw[:0], c...)
			name, n = kit.NameOf(c), 0
		}
		switch {
		case ts > p.To:
			// The first of the column that can be selected.
			r.key = kit.AppendTimestamp(append(r.key[:prefix], r.it.Key()[prefix:len(r.it.Key())-kit.TimestampLen]...), p.To)
			ok = r.it.SeekGE(r.key)
		case ts < p.From || p.Limit > 0 && n == p.Limit:
			r.key = after(append(r.key[:prefix], r.it.Key()[prefix:len(r.it.Key())-kit.TimestampLen]...))
			ok = r.it.SeekGE(r.key)
		default:
			v, err := r.it.ValueAndErr()
			if err != nil {
				return err
			}
			r.add(p, name, ts, v)
			n++
			ok = r.it.Next()
		}
	}
	if err == nil {
		err = r.it.Error()
	}
	return err
}

// exact is column for a pick of one timestamp.
func (r *rowReader) exact(space byte, table, row string, p *rowstore.Selector) error {
	r.key = kit.AppendTimestamp(appendColumn(r.key[:0], space, table, row, p.Column), p.From)
	v, c, err := r.s.db.Get(r.key)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	r.add(p, p.Column, p.From, v)
	return c.Close()
}

// seek puts the iterator on the first key in [lower, upper). The iterator is never
// let out of the range that a read is about: beyond it there may be any number of
// deleted keys to pass over.
func (r *rowReader) seek(lower, upper []byte) (bool, error) {
	if r.it == nil {
		it, err := r.s.db.NewIter(&engine.IterOptions{LowerBound: lower, UpperBound: upper})
		if err != nil {
			return false, err
		}
		r.it = it
	} else {
		r.it.SetBounds(lower, upper)
	}
	return r.it.First(), r.it.Error()
}

// waitList collects the commits that an answer depends on.
type waitList struct {
	first *commit
	more  []*commit
}

func (w *waitList) add(c *commit) {
	if c == nil || c == w.first || c.durable() {
		return
	}
	if w.first == nil {
		w.first = c
		return
	}
	if n := len(w.more); n == 0 || w.more[n-1] != c {
		w.more = append(w.more, c)
	}
}

func (w *waitList) wait(ctx context.Context) error {
	if w.first == nil {
		return nil
	}
	if err := w.first.wait(ctx); err != nil {
		return err
	}
	for _, c := range w.more {
		if err := c.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}
