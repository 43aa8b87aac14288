package tikvraw

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// inlineMax is the longest value that stays in the row's head: what the protocol
	// puts into locks and writes does, with keys of usual length.
	inlineMax = 512
	// smallGroup is what the older versions of a column must take in the head, in
	// bytes, for a chunk of their own to be worth it.
	smallGroup = 128
)

// sizes are the bounds of a row's parts; tests make them small.
type sizes struct {
	// head is what a head may grow to, in bytes, before older versions move out.
	head int
	// chunk is the greatest size of a chunk.
	chunk int
	// entry is the greatest size of a key and its value together.
	entry int
}

// The design allows heads of 64 KiB. A quarter of that moves out somewhat more
// often and makes every swap, which carries the head twice, much cheaper; and a page
// of a scan stays below what TiKV sends in one answer.
const (
	headSize  = 16 << 10
	chunkSize = 256 << 10
)

// errMoved says that a key that a head points to is gone, because the head was
// changed meanwhile: read the row again.
var errMoved = errors.New("tikvraw: the row was changed meanwhile")

// row is a head as it was at one moment, and the chunks of it that were loaded.
type row struct {
	*head
	key    []byte // of the head
	raw    []byte // the head's bytes, nil if it is absent
	chunks map[uint64][]entry
	// fetch gets side keys of this row, or errMoved.
	fetch func(ctx context.Context, keys [][]byte) ([][]byte, error)
	keys  keyspace
}

// decodeRow makes a row of a head's bytes.
func (s *Store) decodeRow(key, raw []byte) (*row, error) {
	h, err := decodeHead(raw)
	if err != nil {
		return nil, fmt.Errorf("%w (key %q)", err, key)
	}
	return &row{head: h, key: key, raw: raw, fetch: s.fetch, keys: s.keys}, nil
}

// fetch gets keys that a head points to.
func (s *Store) fetch(ctx context.Context, keys [][]byte) ([][]byte, error) {
	values, err := s.getAll(ctx, keys)
	if err != nil {
		return nil, err
	}
	for _, v := range values {
		if v == nil {
			return nil, errMoved
		}
	}
	return values, nil
}

// load returns the versions of a chunk. They must not be changed.
func (r *row) load(ctx context.Context, c chunk) ([]entry, error) {
	if _, ok := r.chunks[c.id]; !ok {
		if err := r.loadAll(ctx, []chunk{c}); err != nil {
			return nil, err
		}
	}
	return r.chunks[c.id], nil
}

// loadAll gets chunks that will be asked for, several with one request.
func (r *row) loadAll(ctx context.Context, chunks []chunk) error {
	var want []chunk
	seen := map[uint64]bool{}
	for _, c := range chunks {
		if _, ok := r.chunks[c.id]; !ok && !seen[c.id] {
			seen[c.id] = true
			want = append(want, c)
		}
	}
	for len(want) > 0 {
		n, size := 0, 0
		for n < len(want) && n < batchKeys && (n == 0 || size+want[n].size <= batchBytes) {
			size += want[n].size
			n++
		}
		if err := r.loadSome(ctx, want[:n]); err != nil {
			return err
		}
		want = want[n:]
	}
	return nil
}

func (r *row) loadSome(ctx context.Context, chunks []chunk) error {
	keys := make([][]byte, len(chunks))
	for i, c := range chunks {
		keys[i] = r.keys.side(r.key, c.id, kindChunk)
	}
	values, err := r.fetch(ctx, keys)
	if err != nil {
		return err
	}
	for i, c := range chunks {
		entries, err := decodeChunk(values[i], c.family, c.column)
		if err == nil && (entries[0].ts != c.hi || entries[len(entries)-1].ts != c.lo) {
			err = fmt.Errorf("%w: a chunk of another range", ErrCorrupt)
		}
		if err != nil {
			return fmt.Errorf("%w (key %q)", err, keys[i])
		}
		if r.chunks == nil {
			r.chunks = map[uint64][]entry{}
		}
		r.chunks[c.id] = entries
	}
	return nil
}

// windowBytes bounds the chunks that a read of every column holds at once.
const windowBytes = 16 << 20

// selects returns what the picks select, in the order of rowstore.Row.
func (r *row) selects(ctx context.Context, picks []rowstore.Pick) ([]entry, error) {
	var out []entry
	for _, p := range picks {
		if p.From > p.To {
			continue
		}
		columns := []string{p.Column}
		if p.Column == rowstore.AllColumns {
			columns = r.columnsOf(p.Family)
		}
		for len(columns) > 0 {
			n, err := r.prepare(ctx, p, columns)
			if err != nil {
				return nil, err
			}
			for _, column := range columns[:n] {
				if out, err = r.choose(ctx, out, p, column); err != nil {
					return nil, err
				}
			}
			if columns = columns[n:]; len(columns) > 0 {
				r.chunks = nil
			}
		}
	}
	if len(picks) > 1 {
		slices.SortFunc(out, compareEntries)
		out = slices.CompactFunc(out, func(a, b entry) bool { return compareEntries(a, b) == 0 })
	}
	return out, nil
}

func (r *row) columnsOf(family rowstore.Family) []string {
	var out []string
	for g := range r.groups() {
		if g.family == family {
			out = append(out, g.column)
		}
	}
	return out
}

// prepare loads the first chunk of each column that a pick needs for certain, or all of
// them if it has no limit, for as many of the columns as it returns. What a column needs
// beyond that is loaded when its turn comes.
func (r *row) prepare(ctx context.Context, p rowstore.Pick, columns []string) (int, error) {
	var want []chunk
	size := 0
	for n, column := range columns {
		if size > windowBytes {
			return n, r.loadAll(ctx, want)
		}
		i, j := span(r.entries, p.Family, column, p.From, p.To)
		a, b := r.chunksOf(p.Family, column)
		for _, c := range r.head.chunks[a:b] {
			if c.lo > p.To {
				continue
			}
			newer := search(r.entries[:j], p.Family, column, c.hi) - i
			if c.hi < p.From || p.Limit > 0 && newer >= p.Limit {
				break
			}
			want = append(want, c)
			size += c.size
			if p.Limit > 0 {
				break
			}
		}
	}
	if len(columns) == 1 && len(want) == 1 {
		return 1, nil // load does it
	}
	return len(columns), r.loadAll(ctx, want)
}

// choose appends what a pick selects in one column.
func (r *row) choose(ctx context.Context, dst []entry, p rowstore.Pick, column string) ([]entry, error) {
	i, j := span(r.entries, p.Family, column, p.From, p.To)
	inline := r.entries[i:j]
	first := len(dst)
	full := func() bool { return p.Limit > 0 && len(dst)-first >= p.Limit }
	take := func(entries []entry, above rowstore.Timestamp) []entry {
		for len(entries) > 0 && entries[0].ts > above && !full() {
			dst = append(dst, entries[0])
			entries = entries[1:]
		}
		return entries
	}
	a, b := r.chunksOf(p.Family, column)
	for _, c := range r.head.chunks[a:b] {
		if c.lo > p.To {
			continue
		}
		if c.hi < p.From {
			break
		}
		if inline = take(inline, c.hi); full() {
			return dst, nil
		}
		entries, err := r.load(ctx, c)
		if err != nil {
			return nil, err
		}
		i, j := span(entries, p.Family, column, p.From, p.To)
		take(entries[i:j], 0)
	}
	take(inline, 0)
	return dst, nil
}

// judge returns the index of the first condition that does not hold and the version
// that broke it, if there is one; -1 if all hold.
func (r *row) judge(ctx context.Context, conditions []rowstore.Condition) (int, *entry, error) {
	for i, c := range conditions {
		switch c.Kind {
		case rowstore.IfAbsent:
			broke, err := r.choose(ctx, nil, rowstore.Pick{Family: c.Family, From: c.TS, To: oracle.Max, Limit: 1}, c.Column)
			if err != nil {
				return 0, nil, err
			}
			if len(broke) > 0 {
				return i, &broke[0], nil
			}
		case rowstore.IfAbsentAt, rowstore.IfPresent:
			var at *entry
			if j := search(r.entries, rowstore.Lock, c.Column, c.TS); j < len(r.entries) {
				if e := &r.entries[j]; e.family == rowstore.Lock && e.column == c.Column && e.ts == c.TS {
					at = e
				}
			}
			if c.Kind == rowstore.IfAbsentAt && at != nil {
				return i, at, nil
			}
			if c.Kind == rowstore.IfPresent && at == nil {
				return i, nil, nil
			}
		case rowstore.IfIncarnation:
			if c.Is != "" {
				return i, nil, nil
			}
		}
	}
	return -1, nil, nil
}

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
	if e.Family == rowstore.Rollback {
		i, j := span(c.head.entries, rowstore.Rollback, e.Column, 0, oracle.Max)
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
		c.before = append(c.before, pair{c.old.keys.side(c.old.key, v.value.id, kindValue), e.Value})
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

// dropValues lets the keys of values go. One that this change itself was to write is
// written all the same and goes then: no mutation puts a version that it removes.
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

// settle makes the versions of the head what the edits left.
func (c *change) settle() {
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
	c.settle()
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
	switch has := c.head.hasNotify(); {
	case has && c.head.index == 0:
		c.head.index = newID()
		c.before = append(c.before, pair{c.old.keys.index(c.old.key, c.head.index), []byte{formatVersion}})
	case !has && c.head.index != 0:
		c.after = append(c.after, garbage{key: c.old.keys.index(c.old.key, c.head.index)})
		c.head.index = 0
	}
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
		return fmt.Errorf("%w: the row's newest versions take %d bytes, where one key of TiKV takes %d", rowstore.ErrTooLarge, n, c.sizes.entry)
	}
	return nil
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

// isNew tells whether a chunk is one that this change writes.
func (c *change) isNew(k chunk) bool {
	i, j := c.old.chunksOf(k.family, k.column)
	return !slices.ContainsFunc(c.old.head.chunks[i:j], func(o chunk) bool { return o.id == k.id })
}

// between tells whether the head has a version between two neighbours.
func (c *change) between(newer, older chunk) bool {
	i, j := span(c.head.entries, newer.family, newer.column, older.hi, newer.lo)
	return i < j
}
