package pebble

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	engine "github.com/cockroachdb/pebble/v2"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

const (
	// chunkRows and chunkBytes limit the mutations of one Apply that go into one
	// batch, and so the stripes held together.
	chunkRows  = 64
	chunkBytes = 1 << 20
	// maxBatch is the greatest batch, in bytes; the engine takes up to 4 GiB.
	maxBatch = 1 << 30
	// manyVersions is the number of versions from which a range is deleted by one
	// range tombstone instead of by single ones, which cost readers less.
	manyVersions = 256
)

// column is what a mutation reads and changes of one column's head.
type column struct {
	mut    int // the mutation's index
	stripe uint32
	name   string
	key    []byte
	h      head
	stored bool    // the head exists
	dirty  bool    // an edit touched Lock, Rollback or Write
	next   int     // the next column of the mutation, -1 at the end
	after  *cached // what the cache holds afterwards; nil for nothing
	// writes counts the edits of Write; write is the first and last the last of them,
	// chained by work.edits.
	writes, write, last int
}

// work is the scratch of a write call.
type work struct {
	s       *Store
	buf     []byte // keys and values of columns, until the batch is made
	columns []column
	index   map[columnName]int // used when there are many columns
	muts    []chain
	edits   []int // of one mutation: the next edit of Write of the same column
	stripes []uint32
	r       rowReader
	val     []byte
	wakes   []string
	notes   []noteEdit // what the batch does to the notify space
}

// chain is the columns of one mutation, and about what their heads add to a batch.
type chain struct {
	first, last, size int
}

type columnName struct {
	mut  int
	name string
}

var works = sync.Pool{New: func() any { return new(work) }}

func (s *Store) newWork() *work {
	w := works.Get().(*work)
	w.s = s
	w.r.s = s
	return w
}

func (w *work) done() {
	w.reset()
	w.s, w.r.s = nil, nil
	if cap(w.buf)+cap(w.val)+cap(w.r.key)+cap(w.r.upper) > 256<<10 || cap(w.columns) > 1024 || cap(w.edits) > 4096 {
		return
	}
	works.Put(w)
}

// reset makes the scratch ready for the next batch.
func (w *work) reset() {
	w.r.reset()
	w.buf = w.buf[:0]
	clear(w.columns)
	w.columns = w.columns[:0]
	w.stripes = w.stripes[:0]
	w.muts = w.muts[:0]
	clear(w.notes)
	w.notes = w.notes[:0]
	clear(w.wakes)
	w.wakes = w.wakes[:0]
	if w.index != nil {
		w.index = nil
	}
}

// Apply implements rowstore.Store. It takes no notice of Deferred: all is durable
// when it returns.
func (s *Store) Apply(ctx context.Context, muts []rowstore.Mutation, _ rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	if err := rowstore.CheckBatch(muts); err != nil {
		return nil, err
	}
	for i := range muts {
		if err := checkLimits(&muts[i]); err != nil {
			return nil, err
		}
	}
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	outs := make([]rowstore.Outcome, len(muts))
	w := s.newWork()
	defer w.done()
	var waits waitList
	wrote := false
	for from := 0; from < len(muts); {
		to, size := from, 0
		for to < len(muts) && to-from < chunkRows && (to == from || size < chunkBytes) {
			size += mutationSize(&muts[to])
			to++
		}
		if s.applyChunk(w, muts[from:to], outs[from:to], &waits) {
			wrote = true
		}
		w.reset()
		from = to
	}
	if err := waits.wait(ctx); err != nil {
		if wrote {
			err = fmt.Errorf("%w: pebble: waiting for the disk: %w", rowstore.ErrAmbiguous, err)
		}
		return nil, err
	}
	return outs, nil
}

// applyChunk runs mutations, each by itself, in one batch.
func (s *Store) applyChunk(w *work, muts []rowstore.Mutation, outs []rowstore.Outcome, waits *waitList) (wrote bool) {
	for i := range muts {
		w.begin(&muts[i])
	}
	w.lock()
	defer w.unlock()
	batch := s.db.NewBatch()
	for i := range muts {
		m := &muts[i]
		failed, broke, err := w.check(i, m)
		switch {
		case err != nil:
			outs[i].Err = fmt.Errorf("pebble: row %q of table %q: %w", m.Row, m.Table, err)
		case failed >= 0:
			outs[i].Failed, outs[i].Broke = failed, broke
		default:
			outs[i].Applied = true
		}
		if outs[i].Applied && len(m.Edits) > 0 {
			err := w.prepare(i, m)
			if err == nil {
				err = w.fits(i, m, batch.Len())
			}
			if err != nil {
				outs[i] = rowstore.Outcome{Err: fmt.Errorf("pebble: row %q of table %q: %w", m.Row, m.Table, err)}
				continue
			}
			if err := w.edit(batch, i, m, 0); err != nil {
				// The batch has a part of this mutation now, and cannot be used.
				_ = batch.Close()
				for j := range outs {
					outs[j] = rowstore.Outcome{Err: fmt.Errorf("pebble: row %q of table %q: %w", m.Row, m.Table, err)}
				}
				return false
			}
			continue
		}
		// The answer tells what an earlier batch wrote, so that must be durable.
		waits.add(s.stripes[s.stripe(m.Table, m.Row)].unsynced)
	}
	if batch.Empty() {
		_ = batch.Close()
		return false
	}
	s.gate.RLock()
	s.notes.edit(w.notes)
	c := s.commit(batch)
	s.gate.RUnlock()
	w.written(c)
	waits.add(c)
	s.wakes.wake(w.wakes)
	return true
}

// commit hands a batch to the engine: visible to all when it returns, durable when
// the commit is done. For a batch of rows the gate and the stripes are held. In
// memory it returns nil.
func (s *Store) commit(batch *engine.Batch) *commit {
	// The engine ends the process rather than return an error of its log.
	if s.syncs == nil {
		_ = s.db.Apply(batch, engine.NoSync)
		_ = batch.Close()
		return nil
	}
	_ = s.db.ApplyNoSyncWait(batch, engine.Sync)
	return s.syncs.add(batch)
}

// written notes in the stripes that are held which batch changed them last (nil in
// memory), and in the cache what it wrote.
func (w *work) written(c *commit) {
	if c != nil {
		for _, i := range w.stripes {
			w.s.stripes[i].unsynced = c
		}
	}
	for i := range w.columns {
		if c := &w.columns[i]; c.dirty {
			w.s.replace(c.stripe, c.key, c.after)
		}
	}
}

// begin adds a mutation.
func (w *work) begin(m *rowstore.Mutation) {
	w.stripes = append(w.stripes, w.s.stripe(m.Table, m.Row))
	w.muts = append(w.muts, chain{first: -1, last: -1})
}

// lock takes the stripes, in one order for everybody, each once.
func (w *work) lock() {
	if len(w.stripes) > 1 {
		slices.Sort(w.stripes)
		w.stripes = slices.Compact(w.stripes)
	}
	for _, i := range w.stripes {
		w.s.stripes[i].mu.Lock()
	}
}

func (w *work) unlock() {
	for _, i := range w.stripes {
		w.s.stripes[i].mu.Unlock()
	}
}

// groupKey is the key of every row: one batch may change any.
const groupKey = "pebble"

// GroupKey implements rowstore.Grouper: all rows may share a group.
func (s *Store) GroupKey(string, string) string { return groupKey }

// Draws implements rowstore.Grouper. A reader waits for the stripes of a group
// that has drawn, and a scan for the gate, so none with a greater timestamp misses
// the group's writes.
func (s *Store) Draws(key string) bool { return key == groupKey }

// Group implements rowstore.Grouper.
func (s *Store) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	if err := rowstore.CheckGroups(s, groups); err != nil {
		return nil, err
	}
	for i := range groups {
		for j := range groups[i].Mutations {
			if err := checkLimits(&groups[i].Mutations[j]); err != nil {
				return nil, err
			}
		}
	}
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	outs := make([]rowstore.GroupOutcome, len(groups))
	w := s.newWork()
	defer w.done()
	var waits waitList
	wrote := false
	for i := range groups {
		if s.group(ctx, w, &groups[i], &outs[i], &waits) {
			wrote = true
		}
		w.reset()
	}
	if err := waits.wait(ctx); err != nil {
		if wrote {
			err = fmt.Errorf("%w: pebble: waiting for the disk: %w", rowstore.ErrAmbiguous, err)
		}
		return nil, err
	}
	return outs, nil
}

// group runs one group.
func (s *Store) group(ctx context.Context, w *work, g *rowstore.Group, out *rowstore.GroupOutcome, waits *waitList) (wrote bool) {
	for i := range g.Mutations {
		w.begin(&g.Mutations[i])
	}
	w.lock()
	defer w.unlock()
	// Unless it writes, its answer tells what earlier batches wrote.
	defer func() {
		if !wrote {
			for _, i := range w.stripes {
				waits.add(s.stripes[i].unsynced)
			}
		}
	}()
	size := 0
	for i := range g.Mutations {
		m := &g.Mutations[i]
		failed, broke, err := w.check(i, m)
		if err != nil {
			out.Err = fmt.Errorf("pebble: row %q of table %q: %w", m.Row, m.Table, err)
			return false
		}
		if failed >= 0 {
			out.Failed, out.Outcome = i, rowstore.Outcome{Failed: failed, Broke: broke}
			return false
		}
	}
	for i := range g.Mutations {
		m := &g.Mutations[i]
		err := w.prepare(i, m)
		if err == nil {
			err = w.fits(i, m, size)
			size += mutationSize(m) + w.muts[i].size
		}
		if err != nil {
			out.Err = fmt.Errorf("pebble: row %q of table %q: %w", m.Row, m.Table, err)
			return false
		}
	}
	s.gate.RLock()
	defer s.gate.RUnlock()
	var ts rowstore.Timestamp
	if g.Draw {
		var err error
		if ts, err = s.oracle.Draw(ctx, 1); err != nil {
			out.Err = fmt.Errorf("pebble: draw the timestamp of a group: %w", err)
			return false
		}
		if g.NotAfter != 0 && ts > g.NotAfter {
			out.TooLate = true
			return false
		}
	}
	batch := s.db.NewBatch()
	for i := range g.Mutations {
		m := &g.Mutations[i]
		if err := w.edit(batch, i, m, ts); err != nil {
			_ = batch.Close()
			out.Err = fmt.Errorf("pebble: row %q of table %q: %w", m.Row, m.Table, err)
			return false
		}
	}
	out.Applied, out.Commit = true, ts
	if batch.Empty() {
		_ = batch.Close()
		return false
	}
	s.notes.edit(w.notes)
	c := s.commit(batch)
	w.written(c)
	waits.add(c)
	s.wakes.wake(w.wakes)
	return true
}

// find returns the index of a column's head among those that were read, or -1.
func (w *work) find(mut int, name string) int {
	if w.index != nil {
		if i, ok := w.index[columnName{mut, name}]; ok {
			return i
		}
		return -1
	}
	for i := len(w.columns) - 1; i >= 0; i-- {
		if c := &w.columns[i]; c.mut == mut && c.name == name {
			return i
		}
	}
	return -1
}

// load returns the index of a column's head among those that were read, and
// reads it if need be.
func (w *work) load(mut int, m *rowstore.Mutation, name string) (int, error) {
	if i := w.find(mut, name); i >= 0 {
		return i, nil
	}
	at := len(w.buf)
	w.buf = append(appendRow(w.buf, spaceHead, m.Table, m.Row), name...)
	c := column{mut: mut, stripe: w.s.stripe(m.Table, m.Row), name: name, key: w.buf[at:len(w.buf):len(w.buf)]}
	v, present, err := w.s.getHead(c.stripe, c.key)
	if err != nil {
		return 0, err
	}
	if present {
		c.stored = true
		if err := c.h.decode(v); err != nil {
			return 0, err
		}
	}
	i := len(w.columns)
	c.next = -1
	w.columns = append(w.columns, c)
	l := &w.muts[mut]
	if l.first < 0 {
		l.first = i
	} else {
		w.columns[l.last].next = i
	}
	l.last = i
	l.size += len(c.key) + 2*c.h.size()
	if w.index != nil {
		w.index[columnName{mut, name}] = i
	} else if len(w.columns) > 16 {
		w.index = make(map[columnName]int)
		for i := range w.columns {
			w.index[columnName{w.columns[i].mut, w.columns[i].name}] = i
		}
	}
	return i, nil
}

// check returns the index of the first condition of a mutation that does not hold,
// and what broke it, or -1.
func (w *work) check(mut int, m *rowstore.Mutation) (failed int, broke rowstore.Version, err error) {
	for i := range m.Conditions {
		c := &m.Conditions[i]
		if c.Kind == rowstore.IfIncarnation {
			if c.Is != "" {
				return i, broke, nil
			}
			continue
		}
		if c.Family == rowstore.Notify {
			p := rowstore.Pick{Family: c.Family, Column: c.Column, From: c.TS, To: oracle.Max, Limit: 1}
			w.r.out = nil
			if err := w.r.column(spaceNotify, m.Table, m.Row, c.Column, &p, 0); err != nil {
				return 0, broke, err
			}
			if found := w.r.take(); len(found) > 0 {
				return i, found[0], nil
			}
			continue
		}
		at, err := w.load(mut, m, c.Column)
		if err != nil {
			return 0, broke, err
		}
		h := &w.columns[at].h
		ts, value := h.lockTS, h.lock
		switch c.Family {
		case rowstore.Write:
			ts, value = h.writeTS, h.write
		case rowstore.Rollback:
			ts, value = h.markTS, h.mark
		}
		var holds bool
		switch c.Kind {
		case rowstore.IfPresent:
			if ts != c.TS || ts == 0 {
				return i, broke, nil
			}
			continue
		case rowstore.IfAbsentAt:
			holds = ts != c.TS || ts == 0
		default:
			holds = ts < c.TS || ts == 0
		}
		if !holds {
			return i, rowstore.Version{Family: c.Family, Column: c.Column, TS: ts, Value: bytes.Clone(value)}, nil
		}
	}
	return -1, broke, nil
}

// prepare reads the heads that the edits of a mutation change.
func (w *work) prepare(mut int, m *rowstore.Mutation) error {
	for i := range m.Edits {
		if e := &m.Edits[i]; headFamily(e.Family) {
			if _, err := w.load(mut, m, e.Column); err != nil {
				return err
			}
		}
	}
	return nil
}

// fits refuses a mutation that would make a batch of so many bytes too large.
func (w *work) fits(mut int, m *rowstore.Mutation, size int) error {
	size += mutationSize(m) + w.muts[mut].size
	if size > maxBatch {
		return fmt.Errorf("%w: a batch of more than %d bytes", rowstore.ErrTooLarge, maxBatch)
	}
	return nil
}

// mutationSize is about what a mutation adds to a batch, in bytes.
func mutationSize(m *rowstore.Mutation) int {
	n := 0
	for i := range m.Edits {
		n += 64 + len(m.Table) + len(m.Row) + len(m.Edits[i].Column) + len(m.Edits[i].Value)
	}
	return n
}

// edit puts the edits of a mutation into a batch. drawn replaces Drawn.
func (w *work) edit(b *engine.Batch, mut int, m *rowstore.Mutation, drawn rowstore.Timestamp) error {
	notify, lock := false, false
	w.edits = slices.Grow(w.edits[:0], len(m.Edits))[:len(m.Edits)]
	for i := range m.Edits {
		e := &m.Edits[i]
		ts := e.TS
		if ts == rowstore.Drawn {
			ts = drawn
		}
		if !headFamily(e.Family) {
			notify = notify || e.Family == rowstore.Notify && e.Kind == rowstore.DoPut
			if err := w.editVersion(b, m, e, ts); err != nil {
				return err
			}
			continue
		}
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
			lock = true
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
	}
	created, emptied := false, false
	for i := w.muts[mut].first; i >= 0; i = w.columns[i].next {
		c := &w.columns[i]
		if !c.dirty {
			continue
		}
		if c.writes > 0 {
			if err := w.editWrites(b, c, m, drawn); err != nil {
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
		if err := w.sample(b, m); err != nil {
			return err
		}
	} else if emptied {
		if err := w.unsample(b, mut, m); err != nil {
			return err
		}
	}
	if notify && !lock && !slices.Contains(w.wakes, m.Table) {
		w.wakes = append(w.wakes, m.Table)
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
	w.val = appendTS(appendColumn(w.val[:0], space, m.Table, m.Row, e.Column), ts)
	if space == spaceNotify {
		n := noteEdit{note: note{key: string(w.val[1:])}}
		switch {
		case e.Kind == rowstore.DoPut:
			n.value = string(e.Value)
		case e.Kind == rowstore.DoDelete:
			n.upTo = n.key
		case ts <= e.To:
			// The keys of newer versions come first.
			n.upTo = n.key
			n.key = string(appendTS(w.val[:len(w.val)-tsLen], e.To)[1:])
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
	r.upper = append(appendTS(append(r.upper[:0], r.key...), from), 0)
	r.key = appendTS(r.key, to)
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

// editWrites runs the edits of Write of one column: it finds what is the newest
// write afterwards, which goes into the head, and keeps the others in the history.
func (w *work) editWrites(b *engine.Batch, c *column, m *rowstore.Mutation, drawn rowstore.Timestamp) error {
	h := &c.h
	old, oldValue, older := h.writeTS, h.write, h.older
	if c.writes == 1 {
		e := &m.Edits[c.write]
		ts := e.TS
		if ts == rowstore.Drawn {
			ts = drawn
		}
		if e.Kind == rowstore.DoPut && ts > old {
			// A commit: by far the most frequent edit of all.
			if old != 0 {
				if err := w.putHistory(b, m, c.name, old, oldValue); err != nil {
					return err
				}
			}
			h.writeTS, h.write, h.older = ts, e.Value, old
			return nil
		}
	}
	// The newest one afterwards is put by this mutation, or was the newest and
	// stays, or is the newest of the history that stays.
	var best rowstore.Timestamp
	var bestValue []byte
	deleted := func(ts rowstore.Timestamp) bool {
		for i := c.write; i >= 0; i = w.edits[i] {
			if e := &m.Edits[i]; e.Kind != rowstore.DoPut && ts >= e.TS && ts <= upper(e, e.TS) {
				return true
			}
		}
		return false
	}
	replaced := false // the write that was the newest is put again
	below := rowstore.Timestamp(0)
	for i := c.write; i >= 0; i = w.edits[i] {
		e := &m.Edits[i]
		ts := e.TS
		if ts == rowstore.Drawn {
			ts = drawn
		}
		switch e.Kind {
		case rowstore.DoPut:
			replaced = replaced || ts == old
			if ts > best {
				below = max(below, best)
				best, bestValue = ts, e.Value
			} else {
				below = max(below, ts)
			}
		case rowstore.DoDelete:
			if older >= ts {
				w.val = appendTS(appendColumn(w.val[:0], spaceHistory, m.Table, m.Row, c.name), ts)
				if err := b.Delete(w.val, nil); err != nil {
					return err
				}
			}
		default:
			if older == 0 || older < e.TS {
				continue
			}
			if err := w.deleteRange(b, spaceHistory, m, c.name, e.TS, e.To); err != nil {
				return err
			}
			if e.TS <= 1 && e.To >= older {
				older = 0
			}
		}
	}
	fromHistory := false
	keepOld := old != 0 && !replaced && !deleted(old)
	if keepOld {
		if old > best {
			below = max(below, best)
			best, bestValue = old, oldValue
		} else {
			below = max(below, old)
		}
	}
	if older > best {
		// The newest of the history may be the newest of all now.
		r := &w.r
		r.key = appendColumn(r.key[:0], spaceHistory, m.Table, m.Row, c.name)
		r.upper = append(appendTS(append(r.upper[:0], r.key...), best+1), 0)
		ok, err := r.seek(r.key, r.upper)
		for ; ok; ok = r.it.Next() {
			ts := tsOf(r.it.Key())
			if deleted(ts) {
				continue
			}
			v, err := r.it.ValueAndErr()
			if err != nil {
				return err
			}
			below = max(below, best)
			best, bestValue, fromHistory = ts, bytes.Clone(v), true
			break
		}
		if err == nil {
			err = r.it.Error()
		}
		if err != nil {
			return err
		}
	}
	// Everything else goes to the history.
	for i := c.write; i >= 0; i = w.edits[i] {
		e := &m.Edits[i]
		if e.Kind != rowstore.DoPut {
			continue
		}
		ts := e.TS
		if ts == rowstore.Drawn {
			ts = drawn
		}
		if ts != best {
			if err := w.putHistory(b, m, c.name, ts, e.Value); err != nil {
				return err
			}
		}
	}
	if keepOld && old != best {
		if err := w.putHistory(b, m, c.name, old, oldValue); err != nil {
			return err
		}
	}
	if fromHistory || best != 0 && best <= older {
		w.val = appendTS(appendColumn(w.val[:0], spaceHistory, m.Table, m.Row, c.name), best)
		if err := b.Delete(w.val, nil); err != nil {
			return err
		}
	}
	h.writeTS, h.write, h.older = best, bestValue, 0
	if older != 0 || below != 0 {
		// No more than a bound: what is below may have been deleted.
		h.older = min(max(older, below), best-1)
	}
	if best == 0 {
		h.older = 0
	}
	return nil
}

func (w *work) putHistory(b *engine.Batch, m *rowstore.Mutation, name string, ts rowstore.Timestamp, value []byte) error {
	w.val = appendTS(appendColumn(w.val[:0], spaceHistory, m.Table, m.Row, name), ts)
	return b.Set(w.val, value, nil)
}
