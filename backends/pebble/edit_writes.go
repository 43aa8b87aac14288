package pebble

import (
	"bytes"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// newestWrite is the newest write of a column after the edits of a mutation, as far as
// it is known.
type newestWrite struct {
	ts    rowstore.Timestamp // 0 for none
	value []byte
	below rowstore.Timestamp // the newest of the writes that are older
}

// add takes a write into account that the column will have.
func (n *newestWrite) add(ts rowstore.Timestamp, value []byte) {
	if ts > n.ts {
		n.below = max(n.below, n.ts)
		n.ts, n.value = ts, value
	} else {
		n.below = max(n.below, ts)
	}
}

// editWrites runs the edits of Write of one column: it finds the newest write
// afterwards, which goes into the head, and keeps the others in the history.
// assigned is the timestamp in the place of AssignedTimestamp.
func (w *work) editWrites(b *engine.Batch, c *column, m *rowstore.Mutation, assigned rowstore.Timestamp) error {
	h := &c.h
	old, oldValue := h.writeTS, h.write
	if e := w.commit(c, m, assigned); e != nil {
		if old != 0 {
			if err := w.putHistory(b, m, c.name, old, oldValue); err != nil {
				return err
			}
		}
		h.writeTS, h.write, h.older = timestampOf(e, assigned), e.Value, old
		return nil
	}
	// The newest one afterwards is put by this mutation, or was the newest and
	// stays, or is the newest of the history that stays.
	var newest newestWrite
	replaced := false // the write that was the newest is put again
	for i := c.write; i >= 0; i = w.edits[i] {
		if e := &m.Edits[i]; e.Kind == rowstore.DoPut {
			ts := timestampOf(e, assigned)
			replaced = replaced || ts == old
			newest.add(ts, e.Value)
		}
	}
	keepOld := old != 0 && !replaced && !w.deletes(c, m, old)
	if keepOld {
		newest.add(old, oldValue)
	}
	older, err := w.deleteHistory(b, c, m)
	if err != nil {
		return err
	}
	fromHistory := false
	if older > newest.ts {
		ts, value, err := w.newestOfHistory(c, m, newest.ts+1)
		if err != nil {
			return err
		}
		if fromHistory = ts != 0; fromHistory {
			newest.add(ts, value)
		}
	}
	// Everything else goes to the history.
	for i := c.write; i >= 0; i = w.edits[i] {
		e := &m.Edits[i]
		if ts := timestampOf(e, assigned); e.Kind == rowstore.DoPut && ts != newest.ts {
			if err := w.putHistory(b, m, c.name, ts, e.Value); err != nil {
				return err
			}
		}
	}
	if keepOld && old != newest.ts {
		if err := w.putHistory(b, m, c.name, old, oldValue); err != nil {
			return err
		}
	}
	if fromHistory || newest.ts != 0 && newest.ts <= older {
		if err := b.Delete(w.historyKey(m, c.name, newest.ts), nil); err != nil {
			return err
		}
	}
	h.writeTS, h.write, h.older = newest.ts, newest.value, 0
	if newest.ts != 0 && (older != 0 || newest.below != 0) {
		// No more than a bound: what is below may have been deleted.
		h.older = min(max(older, newest.below), newest.ts-1)
	}
	return nil
}

// commit returns the edit of a commit, by far the most frequent one of all: the column's
// only edit of Write, which puts a newer write than all it has. It returns nil otherwise.
func (w *work) commit(c *column, m *rowstore.Mutation, assigned rowstore.Timestamp) *rowstore.Edit {
	if c.writes != 1 {
		return nil
	}
	e := &m.Edits[c.write]
	if e.Kind != rowstore.DoPut || timestampOf(e, assigned) <= c.h.writeTS {
		return nil
	}
	return e
}

// deletes tells whether the mutation deletes the write of a column with a timestamp.
func (w *work) deletes(c *column, m *rowstore.Mutation, ts rowstore.Timestamp) bool {
	for i := c.write; i >= 0; i = w.edits[i] {
		if e := &m.Edits[i]; e.Kind != rowstore.DoPut && ts >= e.TS && ts <= upper(e, e.TS) {
			return true
		}
	}
	return false
}

// deleteHistory deletes from the history what the mutation deletes of a column's
// writes. It returns the bound of the older writes afterwards, as head.older has it.
func (w *work) deleteHistory(b *engine.Batch, c *column, m *rowstore.Mutation) (older rowstore.Timestamp, err error) {
	older = c.h.older
	for i := c.write; i >= 0; i = w.edits[i] {
		e := &m.Edits[i]
		switch e.Kind {
		case rowstore.DoPut:
		case rowstore.DoDelete:
			if older < e.TS {
				continue
			}
			if err := b.Delete(w.historyKey(m, c.name, e.TS), nil); err != nil {
				return 0, err
			}
		default:
			if older == 0 || older < e.TS {
				continue
			}
			if err := w.deleteRange(b, spaceHistory, m, c.name, e.TS, e.To); err != nil {
				return 0, err
			}
			if e.TS <= 1 && e.To >= older {
				older = 0
			}
		}
	}
	return older, nil
}

// newestOfHistory returns the newest write in the history of a column that the
// mutation leaves, if it is at least from; else 0.
func (w *work) newestOfHistory(c *column, m *rowstore.Mutation, from rowstore.Timestamp) (rowstore.Timestamp, []byte, error) {
	r := &w.r
	r.key = appendColumn(r.key[:0], spaceHistory, m.Table, m.Row, c.name)
	r.upper = append(kit.AppendTimestamp(append(r.upper[:0], r.key...), from), 0)
	ok, err := r.seek(r.key, r.upper)
	for ; ok; ok = r.it.Next() {
		ts := tsOf(r.it.Key())
		if w.deletes(c, m, ts) {
			continue
		}
		v, err := r.it.ValueAndErr()
		return ts, bytes.Clone(v), err
	}
	if err == nil {
		err = r.it.Error()
	}
	return 0, nil, err
}

func (w *work) putHistory(b *engine.Batch, m *rowstore.Mutation, name string, ts rowstore.Timestamp, value []byte) error {
	return b.Set(w.historyKey(m, name, ts), value, nil)
}

// historyKey returns the key of an older write, which is valid until the next one.
func (w *work) historyKey(m *rowstore.Mutation, name string, ts rowstore.Timestamp) []byte {
	w.val = kit.AppendTimestamp(appendColumn(w.val[:0], spaceHistory, m.Table, m.Row, name), ts)
	return w.val
}
