package pebble

import (
	"slices"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// edit puts the edits of a mutation into a batch. assigned is the timestamp in the
// place of AssignedTimestamp.
func (w *work) edit(b *engine.Batch, mut int, m *rowstore.Mutation, assigned rowstore.Timestamp) error {
	w.edits = slices.Grow(w.edits[:0], len(m.Edits))[:len(m.Edits)]
	for i := range m.Edits {
		e := &m.Edits[i]
		var err error
		if ts := timestampOf(e, assigned); headFamily(e.Family) {
			err = w.editHead(mut, m, i, ts)
		} else {
			err = w.editVersion(b, m, e, ts)
		}
		if err != nil {
			return err
		}
	}
	if err := w.writeHeads(b, mut, m, assigned); err != nil {
		return err
	}
	w.news.Applied(m)
	return nil
}

// timestampOf is the timestamp of an edit.
func timestampOf(e *rowstore.Edit, assigned rowstore.Timestamp) rowstore.Timestamp {
	if e.TS == rowstore.AssignedTimestamp {
		return assigned
	}
	return e.TS
}

// editHead runs edit number i of a mutation on the lock or the mark of a column, and
// notes one of its writes for editWrites.
func (w *work) editHead(mut int, m *rowstore.Mutation, i int, ts rowstore.Timestamp) error {
	e := &m.Edits[i]
	at, err := w.load(mut, m, e.Column)
	if err != nil {
		return err
	}
	c := &w.columns[at]
	c.dirty = true
	switch {
	case e.Family == rowstore.Write:
		if c.writes == 0 {
			c.write = i
		} else {
			w.edits[c.last] = i
		}
		c.writes++
		c.last = i
		w.edits[i] = -1
	case e.Family == rowstore.Lock && e.Kind == rowstore.DoPut:
		c.h.lockTS, c.h.lock = ts, e.Value
	case e.Family == rowstore.Lock:
		if c.h.lockTS != 0 && c.h.lockTS >= ts && c.h.lockTS <= upper(e, ts) {
			c.h.lockTS, c.h.lock = 0, nil
		}
	case e.Kind == rowstore.DoPut:
		if ts >= c.h.markTS {
			c.h.markTS, c.h.mark = ts, e.Value
		}
	default:
		if c.h.markTS != 0 && c.h.markTS >= ts && c.h.markTS <= upper(e, ts) {
			c.h.markTS, c.h.mark = 0, nil
		}
	}
	return nil
}

// writeHeads puts the heads that a mutation changed into the batch, and keeps the
// sample of rows up to date.
func (w *work) writeHeads(b *engine.Batch, mut int, m *rowstore.Mutation, assigned rowstore.Timestamp) error {
	created, emptied := false, false
	for i := w.muts[mut].first; i >= 0; i = w.columns[i].next {
		c := &w.columns[i]
		if !c.dirty {
			continue
		}
		if c.writes > 0 {
			if err := w.editWrites(b, c, m, assigned); err != nil {
				return err
			}
		}
		switch {
		case !c.h.empty():
			c.encode()
			if err := b.Set(c.key, c.after.value, nil); err != nil {
				return err
			}
			if len(c.after.key)+len(c.after.value) > cacheSlot {
				c.after = nil
			}
			created = created || !c.stored
		case c.stored:
			if err := b.Delete(c.key, nil); err != nil {
				return err
			}
			emptied = true
		}
	}
	if created {
		return w.sample(b, m)
	}
	if emptied {
		return w.unsample(b, mut, m)
	}
	return nil
}

// encode makes the entry of the head for the cache.
func (c *column) encode() {
	buf := make([]byte, len(c.key), len(c.key)+c.h.size())
	n := copy(buf, c.key)
	buf = c.h.append(buf)
	c.after = &cached{key: buf[:n:n], value: buf[n:], present: true}
}

// upper is the greatest timestamp that an edit touches.
func upper(e *rowstore.Edit, ts rowstore.Timestamp) rowstore.Timestamp {
	if e.Kind == rowstore.DoDeleteRange {
		return e.To
	}
	return ts
}

// editVersion puts an edit of Data or Notify into a batch.
func (w *work) editVersion(b *engine.Batch, m *rowstore.Mutation, e *rowstore.Edit, ts rowstore.Timestamp) error {
	space := byte(spaceNotify)
	if e.Family == rowstore.Data {
		space = spaceData
	}
	w.val = kit.AppendTimestamp(appendColumn(w.val[:0], space, m.Table, m.Row, e.Column), ts)
	if space == spaceNotify {
		n := noteEdit{note: note{key: string(w.val[len(bySlot):])}}
		switch {
		case e.Kind == rowstore.DoPut:
			n.value = string(e.Value)
		case e.Kind == rowstore.DoDelete:
			n.upTo = n.key
		case ts <= e.To:
			// The keys of newer versions come first.
			n.upTo = n.key
			n.key = string(kit.AppendTimestamp(w.val[:len(w.val)-kit.TimestampLen], e.To)[len(bySlot):])
		}
		if e.Kind == rowstore.DoPut || n.upTo != "" {
			w.notes = append(w.notes, n)
		}
	}
	if e.Kind == rowstore.DoDeleteRange {
		return w.deleteRange(b, space, m, e.Column, ts, e.To)
	}
	if e.Kind == rowstore.DoPut {
		return b.Set(w.val, e.Value, nil)
	}
	return b.Delete(w.val, nil)
}

// deleteRange removes the versions of a column in [from, to] from a space other
// than head.
func (w *work) deleteRange(b *engine.Batch, space byte, m *rowstore.Mutation, name string, from, to rowstore.Timestamp) error {
	if from > to {
		return nil
	}
	r := &w.r
	r.key = appendColumn(r.key[:0], space, m.Table, m.Row, name)
	r.upper = append(kit.AppendTimestamp(append(r.upper[:0], r.key...), from), 0)
	r.key = kit.AppendTimestamp(r.key, to)
	n := 0
	ok, err := r.seek(r.key, r.upper)
	for ; ok; ok = r.it.Next() {
		if n++; n > manyVersions {
			// The range may cover what this batch has put above or below it, no more:
			// no two edits touch the same version.
			return b.DeleteRange(r.it.Key(), r.upper, nil)
		}
		if err := b.Delete(r.it.Key(), nil); err != nil {
			return err
		}
	}
	if err == nil {
		err = r.it.Error()
	}
	return err
}
