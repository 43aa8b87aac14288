package pebble

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// ScansSlots implements rowstore.SlotScanner.
func (s *Store) ScansSlots() {}

// slotCursor is where a scan of slots stands. Keys are those of notes, without bySlot.
type slotCursor struct {
	table  []byte               // the form of the table's name
	ranges []rowstore.SlotRange // those that are not passed yet
	from   []byte               // where it goes on
	end    []byte               // of the table
	done   bool
}

func newSlotCursor(sr *rowstore.ScanRange) *slotCursor {
	c := &slotCursor{table: kit.AppendName(nil, sr.Table), ranges: sr.Slots}
	c.end = after(slices.Clone(c.table))
	c.leap()
	if sr.From != "" {
		c.from = kit.AppendName(c.from, sr.From)
	}
	return c
}

// leap moves the cursor to the start of the next range.
func (c *slotCursor) leap() {
	if len(c.ranges) == 0 {
		c.done = true
		return
	}
	c.from = binary.BigEndian.AppendUint16(append(c.from[:0], c.table...), c.ranges[0].First)
}

// at tells whether a slot, at or beyond the cursor, is asked for. If not, the cursor leaps to
// the next range.
func (c *slotCursor) at(slot uint16) bool {
	i, _ := slices.BinarySearchFunc(c.ranges, slot, func(r rowstore.SlotRange, slot uint16) int { return cmp.Compare(r.Last, slot) })
	c.ranges = c.ranges[i:]
	if len(c.ranges) > 0 && slot >= c.ranges[0].First {
		return true
	}
	c.leap()
	return false
}

// beyond moves the cursor behind a row.
func (c *slotCursor) beyond(row string) { c.from = after(append(c.from[:0], row...)) }

// limit appends the end of the current range.
func (c *slotCursor) limit(dst []byte) []byte {
	if last := c.ranges[0].Last; last < math.MaxUint16 {
		return binary.BigEndian.AppendUint16(append(dst, c.table...), last+1)
	}
	return append(dst, c.end...)
}

// slotPage is page for a scan of slots.
func (p *scan) slotPage(ctx context.Context, limit int) (rows []rowstore.Row, more bool, err error) {
	c := p.slots
	known := notePage{limit: limit}
	ok, durable := p.s.copied(func() bool { return p.s.notes.slots(c, &known) })
	if ok {
		rows, err = p.notedRows(known.notes)
	} else {
		rows, durable, err = p.walkSlots(ctx, limit)
	}
	if err == nil && durable != nil {
		err = durable.wait(ctx)
	}
	if err != nil {
		return nil, false, err
	}
	p.done = c.done
	return rows, !p.done, ctx.Err()
}

// walkSlots reads a page of a scan of slots from the engine.
func (p *scan) walkSlots(ctx context.Context, limit int) (rows []rowstore.Row, durable *commit, err error) {
	point, durable, err := p.s.view(nil)
	if err != nil {
		return nil, nil, err
	}
	w := slotWalk{walk: walk{p: p, r: &rowReader{s: p.s, it: point, keep: true}}, c: p.slots}
	w.it, err = point.Clone(engine.CloneOptions{IterOptions: &engine.IterOptions{
		LowerBound: slices.Concat(bySlot, w.c.table), UpperBound: slices.Concat(bySlot, w.c.end),
	}})
	if err == nil {
		err = errors.Join(w.read(ctx, limit), w.it.Close())
	}
	return w.rows, durable, errors.Join(err, point.Close())
}

// slotWalk reads one page of a scan of slots from the engine.
type slotWalk struct {
	walk
	c           *slotCursor
	it          *engine.Iterator
	from, limit []byte
}

// seek puts the iterator on the first key at or behind the cursor. The limit keeps it from
// passing over the notifications of other slots, and over what is left of those that are
// gone.
func (w *slotWalk) seek() engine.IterValidityState {
	w.from = append(append(w.from[:0], bySlot...), w.c.from...)
	w.limit = w.c.limit(append(w.limit[:0], bySlot...))
	return w.it.SeekGEWithLimit(w.from, w.limit)
}

func (w *slotWalk) read(ctx context.Context, limit int) error {
	c := w.c
	for state := w.seek(); !c.done; w.steps++ {
		if w.steps >= pageSteps || w.size >= pageBytes || len(w.rows) == limit {
			return ctx.Err()
		}
		switch state {
		case engine.IterExhausted:
			c.done = true
			return w.it.Error()
		case engine.IterAtLimit:
			c.ranges = c.ranges[1:]
			if c.leap(); !c.done {
				state = w.seek()
			}
			continue
		}
		prefix, err := rowPrefix(w.it.Key())
		if err != nil {
			return err
		}
		key := string(prefix[len(bySlot):])
		if !c.at(slotAt(key, len(c.table))) {
			if !c.done {
				state = w.seek()
			}
			continue
		}
		if err := w.visit(prefix); err != nil {
			return err
		}
		c.beyond(key)
		state = w.pass(slices.Clone(prefix))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return w.it.Error()
}

// pass moves the iterator from a row, given as its prefix, beyond it.
func (w *slotWalk) pass(prefix []byte) engine.IterValidityState {
	for range farSteps {
		w.steps++
		if state := w.it.NextWithLimit(w.limit); state != engine.IterValid || !bytes.HasPrefix(w.it.Key(), prefix) {
			return state
		}
	}
	return w.seek()
}
