package pebble

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// column is what a mutation reads and changes of one column's head.
type column struct {
	mut    int // the mutation's index
	stripe uint32
	name   string
	key    []byte
	h      head
	stored bool    // the head exists
	dirty  bool    // an edit touched Lock, Mark or Write
	next   int     // the next column of the mutation, -1 at the end
	after  *cached // what the cache holds afterwards; nil for nothing
	// writes is the number of edits of Write. write and last are the indexes of the first
	// and the last of them, which work.edits links.
	writes, write, last int
}

// work is the memory that a write call uses, and that later calls reuse.
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
	news    kit.News
	notes   []noteEdit // what the batch does to the notify space
}

// chain links the columns of one mutation. size estimates the bytes that their heads add
// to a batch.
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

// reset makes the memory ready for the next batch.
func (w *work) reset() {
	w.r.reset()
	w.buf = w.buf[:0]
	clear(w.columns)
	w.columns = w.columns[:0]
	w.stripes = w.stripes[:0]
	w.muts = w.muts[:0]
	clear(w.notes)
	w.notes = w.notes[:0]
	w.news.Take()
	if w.index != nil {
		w.index = nil
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

// shows adds what the answer depends on, while the stripes are held: also one that only tells that there was nothing
// to change shows what earlier batches wrote. A batch of its own comes after all of those.
func (w *work) shows(waits *waitList, wrote bool) {
	if wrote {
		return
	}
	for _, i := range w.stripes {
		waits.add(w.s.stripes[i].unsynced)
	}
}

// written records a batch (nil in memory) as the newest one in the stripes that are
// held, and puts the heads that it wrote into the cache.
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
// reads it if it is not among them.
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
			if c.Incarnation != "" {
				return i, broke, nil
			}
			continue
		}
		if c.Family == rowstore.Notify {
			p := rowstore.Selector{Family: c.Family, Column: c.Column, From: c.TS, To: oracle.Max, Limit: 1}
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
		case rowstore.Mark:
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

// fits refuses a mutation that is too large for a batch that has size bytes already.
func (w *work) fits(mut int, m *rowstore.Mutation, size int) error {
	size += mutationSize(m) + w.muts[mut].size
	if size > maxBatch {
		return fmt.Errorf("%w: it would make the batch larger than %d bytes", rowstore.ErrTooLarge, maxBatch)
	}
	return nil
}

// mutationSize estimates the bytes that a mutation adds to a batch.
func mutationSize(m *rowstore.Mutation) int {
	n := 0
	for i := range m.Edits {
		n += 64 + len(m.Table) + len(m.Row) + len(m.Edits[i].Column) + len(m.Edits[i].Value)
	}
	return n
}
