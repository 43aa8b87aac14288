package tikvraw

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// inlineMax is the longest value that stays in the row's head: what the protocol
// puts into locks and writes does, with keys of usual length.
const inlineMax = 512

// change is a row with edits: what must be written before the swap, the head that the
// swap writes, and what goes after it.
type change struct {
	old  *row
	head head
	// before are keys and values to be written first.
	before []pair
	// after are keys that nothing points to once the swap succeeded.
	after []garbage
	raw   []byte // the new head's bytes
	// changed is false where the edits change nothing.
	changed bool

	sizes sizes
	// added are versions for the head, and gone those that leave it, as ranges of indexes.
	// finish makes all of them at once: one by one each would move the rest of the row.
	added []entry
	gone  [][2]int
	// open has the versions of chunks that are not as they were, by id.
	open map[uint64][]entry
}

// garbage is a key to be removed. A chunk whose values go with it is read first.
type garbage struct {
	key    []byte
	head   []byte // of a chunk with values: the row's head key
	family rowstore.Family
	column string
	marker uint64 // of a notification marker: its markerID
}

func newID() uint64 {
	for {
		if id := rand.Uint64(); id != 0 {
			return id
		}
	}
}

// edit makes a mutation's edits. An error that matches rowstore.ErrTooLarge says that
// the row would be.
func (r *row) edit(ctx context.Context, edits []rowstore.Edit, sz sizes) (*change, error) {
	if err := r.loadAll(ctx, r.cut(edits)); err != nil {
		return nil, err
	}
	c := &change{old: r, sizes: sz}
	c.head = head{index: r.index, entries: r.entries, chunks: slices.Clone(r.head.chunks)}
	for i := range edits {
		e := &edits[i]
		var err error
		switch e.Kind {
		case rowstore.DoPut:
			err = c.put(ctx, e)
		case rowstore.DoDelete:
			err = c.remove(ctx, e.Family, e.Column, e.TS, e.TS)
		case rowstore.DoDeleteRange:
			err = c.remove(ctx, e.Family, e.Column, e.TS, e.To)
		}
		if err != nil {
			return nil, err
		}
	}
	if !c.changed {
		return c, nil
	}
	return c, c.finish(ctx)
}

// cut returns the chunks that edits change and do not remove whole.
func (r *row) cut(edits []rowstore.Edit) []chunk {
	if len(r.head.chunks) == 0 {
		return nil
	}
	var out []chunk
	for i := range edits {
		e := &edits[i]
		from, to := e.TS, e.TS
		if e.Kind == rowstore.DoDeleteRange {
			to = e.To
		}
		a, b := r.chunksOf(e.Family, e.Column)
		for _, c := range r.head.chunks[a:b] {
			if c.lo <= to && from <= c.hi && (from > c.lo || c.hi > to) {
				out = append(out, c)
			}
		}
	}
	return out
}

func (c *change) put(ctx context.Context, e *rowstore.Edit) error {
	if e.Family == rowstore.Mark {
		i, j := span(c.head.entries, rowstore.Mark, e.Column, 0, oracle.Max)
		if i < j && c.head.entries[i].ts > e.TS {
			return nil
		}
		if i < j && c.head.entries[i].ts == e.TS && c.head.entries[i].value.id == 0 && bytes.Equal(c.head.entries[i].value.bytes, e.Value) {
			return nil
		}
		if err := c.remove(ctx, e.Family, e.Column, 0, e.TS); err != nil {
			return err
		}
	} else if err := c.remove(ctx, e.Family, e.Column, e.TS, e.TS); err != nil {
		return err
	}
	c.changed = true
	v := entry{family: e.Family, column: e.Column, ts: e.TS, value: value{bytes: e.Value}}
	if len(e.Value) > inlineMax {
		v.value = value{id: newID(), size: len(e.Value)}
		// A request may outlast this call, whose context has ended, and the value is the caller's.
		c.before = append(c.before, pair{c.old.keys.side(c.old.key, v.value.id, kindValue), bytes.Clone(e.Value)})
	}
	if k := c.chunkAt(e.Family, e.Column, e.TS); k != nil {
		entries, err := c.entriesOf(ctx, k)
		if err != nil {
			return err
		}
		c.setOpen(k, slices.Insert(slices.Clone(entries), search(entries, e.Family, e.Column, e.TS), v))
		return nil
	}
	c.added = append(c.added, v)
	return nil
}

// chunkAt returns the chunk in whose range a timestamp lies, or nil. The pointer is
// into c.head.chunks.
func (c *change) chunkAt(family rowstore.Family, column string, ts rowstore.Timestamp) *chunk {
	i, j := c.head.chunksOf(family, column)
	for k := range c.head.chunks[i:j] {
		if f := &c.head.chunks[i+k]; f.lo <= ts && ts <= f.hi {
			return f
		}
	}
	return nil
}

// entriesOf returns the versions of a chunk as the edits so far left them.
func (c *change) entriesOf(ctx context.Context, k *chunk) ([]entry, error) {
	if entries, ok := c.open[k.id]; ok {
		return entries, nil
	}
	return c.old.load(ctx, *k)
}

func (c *change) setOpen(k *chunk, entries []entry) {
	if c.open == nil {
		c.open = map[uint64][]entry{}
	}
	c.open[k.id] = entries
}

func (c *change) remove(ctx context.Context, family rowstore.Family, column string, from, to rowstore.Timestamp) error {
	if from > to {
		return nil
	}
	if i, j := span(c.head.entries, family, column, from, to); i < j {
		c.dropValues(c.head.entries[i:j])
		c.gone = append(c.gone, [2]int{i, j})
		c.changed = true
	}
	i, j := c.head.chunksOf(family, column)
	for k := j - 1; k >= i; k-- {
		f := &c.head.chunks[k]
		if f.lo > to || f.hi < from {
			continue
		}
		if _, opened := c.open[f.id]; !opened && from <= f.lo && f.hi <= to {
			c.dropChunk(*f, f.values)
			c.head.chunks = slices.Delete(c.head.chunks, k, k+1)
			c.changed = true
			continue
		}
		entries, err := c.entriesOf(ctx, f)
		if err != nil {
			return err
		}
		if x, y := span(entries, family, column, from, to); x < y {
			c.dropValues(entries[x:y])
			c.setOpen(f, slices.Delete(slices.Clone(entries), x, y))
			c.changed = true
		}
	}
	return nil
}

// dropValues marks the keys of long values as garbage. A value that this same change puts
// is written first and removed then; no mutation of the library does that.
func (c *change) dropValues(entries []entry) {
	for _, e := range entries {
		if e.value.id != 0 {
			c.after = append(c.after, garbage{key: c.old.keys.side(c.old.key, e.value.id, kindValue)})
		}
	}
}

// dropChunk lets a chunk go, with the values that it points to or without.
func (c *change) dropChunk(k chunk, values bool) {
	g := garbage{key: c.old.keys.side(c.old.key, k.id, kindChunk)}
	if values {
		g.head, g.family, g.column = c.old.key, k.family, k.column
	}
	c.after = append(c.after, g)
}

// mergeEdits makes the versions of the head what the edits left.
func (c *change) mergeEdits() {
	slices.SortFunc(c.added, compareEntries)
	slices.SortFunc(c.gone, func(a, b [2]int) int { return a[0] - b[0] })
	was := c.head.entries
	out := make([]entry, 0, len(was)+len(c.added))
	next := 0
	take := func(to int) {
		for ; next < to; next++ {
			for len(c.added) > 0 && compareEntries(c.added[0], was[next]) < 0 {
				out, c.added = append(out, c.added[0]), c.added[1:]
			}
			out = append(out, was[next])
		}
	}
	for _, g := range c.gone {
		take(g[0])
		next = max(next, g[1])
	}
	take(len(was))
	c.head.entries = append(out, c.added...)
}

// finish makes the new head of what the edits left.
func (c *change) finish(ctx context.Context) error {
	c.mergeEdits()
	if len(c.open) > 0 {
		old := c.head.chunks
		c.head.chunks = nil
		for _, k := range old {
			if entries, ok := c.open[k.id]; ok {
				c.dropChunk(k, false)
				c.head.chunks = append(c.head.chunks, c.newChunks(entries)...)
			} else {
				c.head.chunks = append(c.head.chunks, k)
			}
		}
	}
	c.mark()
	c.head.tag = newID()
	c.raw = c.head.encode()
	if len(c.raw) > c.sizes.head {
		moved, err := c.moveOut(ctx)
		if err != nil {
			return err
		}
		if moved {
			c.raw = c.head.encode()
		}
	}
	if n := len(c.old.key) + len(c.raw); n > c.sizes.entry {
		return fmt.Errorf("%w: the row's newest versions take %d bytes, and one key of TiKV holds %d (Options.MaxEntry): use several rows", rowstore.ErrTooLarge, n, c.sizes.entry)
	}
	return nil
}

// mark gives the row a marker with its first notification, and drops it with the last.
func (c *change) mark() {
	marker := func(id uint64) []byte { return c.old.keys.marker(c.old.table, c.old.name, id) }
	switch has := c.head.hasNotify(); {
	case has && c.head.index == 0:
		c.head.index = newID()
		c.before = append(c.before, pair{marker(c.head.index), []byte{valueVersion}})
	case !has && c.head.index != 0:
		c.after = append(c.after, garbage{key: marker(c.head.index), marker: markerID(c.head.index)})
		c.head.index = 0
	}
}
