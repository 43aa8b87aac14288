package tikvraw

import (
	"context"
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// smallGroup is what the older versions of a column must take in the head, in
// bytes, for a chunk of their own to be worth it.
const smallGroup = 128

// newChunks writes versions of one column into as many chunks as they need.
func (c *change) newChunks(entries []entry) []chunk {
	var out []chunk
	for len(entries) > 0 {
		n, size := 0, 0
		values := false
		for n < len(entries) && (n == 0 || size+entries[n].length() <= c.sizes.chunk) {
			size += entries[n].length()
			values = values || entries[n].value.id != 0
			n++
		}
		raw := encodeChunk(entries[:n])
		k := chunk{
			family: entries[0].family, column: entries[0].column, lo: entries[n-1].ts, hi: entries[0].ts,
			id: newID(), size: len(raw), values: values,
		}
		c.before = append(c.before, pair{c.old.keys.side(c.old.key, k.id, kindChunk), raw})
		out = append(out, k)
		entries = entries[n:]
	}
	return out
}

// moveOut moves older versions into chunks, if there are enough of them: a row that
// is wide with newest versions alone would gain nothing. The newest of each column
// stay, and a quarter of the others, which readers want most.
func (c *change) moveOut(ctx context.Context) (bool, error) {
	keeps := map[address]int{} // of the columns from which versions move out
	var near []chunk
	total := 0
	for g := range c.head.groups() {
		if g.family != rowstore.Write && g.family != rowstore.Data && g.family != rowstore.Notify || len(g.entries) < 2 {
			continue
		}
		keep := 1 + (len(g.entries)-1)/4
		size := lengths(g.entries[keep:])
		if size < smallGroup {
			continue
		}
		keeps[address{g.family, g.column}] = keep
		total += size
		// What merge will want.
		for _, k := range g.chunks {
			if k.lo > g.entries[keep].ts {
				continue
			}
			if !c.joins(k, size) {
				break
			}
			near = append(near, k)
			size += k.size
		}
	}
	if total < max(c.sizes.head/4, len(c.raw)/8) {
		return false, nil
	}
	if err := c.old.loadAll(ctx, near); err != nil {
		return false, err
	}
	entries := make([]entry, 0, len(c.head.entries))
	chunks := make([]chunk, 0, len(c.head.chunks)+len(keeps))
	for g := range c.head.groups() {
		keep, ok := keeps[address{g.family, g.column}]
		if !ok {
			entries, chunks = append(entries, g.entries...), append(chunks, g.chunks...)
			continue
		}
		entries = append(entries, g.entries[:keep]...)
		moved, err := c.moved(ctx, g.entries[keep:], g.chunks)
		if err != nil {
			return false, err
		}
		chunks = append(chunks, moved...)
	}
	c.head.entries, c.head.chunks = entries, chunks
	return true, nil
}

type address struct {
	family rowstore.Family
	column string
}

// moved returns the chunks of a column to which versions were added.
func (c *change) moved(ctx context.Context, rest []entry, chunks []chunk) ([]chunk, error) {
	var out []chunk
	for len(rest) > 0 {
		for len(chunks) > 0 && chunks[0].lo > rest[0].ts {
			out = append(out, chunks[0])
			chunks = chunks[1:]
		}
		n := len(rest)
		if len(chunks) > 0 {
			n = 0
			for n < len(rest) && rest[n].ts > chunks[0].hi {
				n++
			}
		}
		run := slices.Clone(rest[:n])
		rest = rest[n:]
		var err error
		if run, chunks, err = c.merge(ctx, run, chunks); err != nil {
			return nil, err
		}
		// Versions that lie below the merged chunks come next.
		out = append(out, c.newChunks(run)...)
	}
	return append(out, chunks...), nil
}

func lengths(entries []entry) (size int) {
	for i := range entries {
		size += entries[i].length()
	}
	return size
}

// joins tells whether a chunk is small enough to be taken into a run of that size.
func (c *change) joins(k chunk, size int) bool {
	return k.size <= 2*size && k.size+size <= c.sizes.chunk && !c.isNew(k)
}

// merge takes chunks that follow a run, and are not much larger, into it: so a
// column's chunks grow with its history, and each version is rewritten only as often
// as the sizes double.
func (c *change) merge(ctx context.Context, run []entry, chunks []chunk) ([]entry, []chunk, error) {
	size := lengths(run)
	for len(chunks) > 0 {
		k := chunks[0]
		if !c.joins(k, size) {
			break
		}
		// A version that stays in the head, or another run, may lie between this
		// chunk and the next: then they do not become one.
		entries, err := c.old.load(ctx, k)
		if err != nil {
			return nil, nil, err
		}
		c.dropChunk(k, false)
		run = append(run, entries...)
		size += k.size
		chunks = chunks[1:]
		if len(chunks) > 0 && c.between(k, chunks[0]) {
			break
		}
	}
	return run, chunks, nil
}

// isNew tells whether this change writes the chunk.
func (c *change) isNew(k chunk) bool {
	i, j := c.old.chunksOf(k.family, k.column)
	return !slices.ContainsFunc(c.old.head.chunks[i:j], func(o chunk) bool { return o.id == k.id })
}

// between tells whether the head has a version between two neighbours.
func (c *change) between(newer, older chunk) bool {
	i, j := span(c.head.entries, newer.family, newer.column, older.hi, newer.lo)
	return i < j
}
