package percolator

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Each process remembers the rows in which it leaves garbage, and stores their names now and then
// (format.Hint): a collection then looks at these rows alone (gc_hints.go). A hint stands for whatever happens in its
// row within a span of time, so a row that is written all the time is named once in each span. Hints cost
// a commit no call. One that is lost, with a process that is killed, leaves garbage until a collection
// looks at every row, but nothing else. See "Garbage collection" in docs/architecture.md.

const (
	// hintSpans is how many spans there are in a retention. A span has hintSpanLeast at least and
	// hintSpanMost at most.
	hintSpans     = 48
	hintSpanLeast = time.Second
	hintSpanMost  = time.Hour
	// Hints are stored once there are hintsAtOnce, or some for hintsAfter.
	hintsAtOnce = 1024
	hintsAfter  = 10 * time.Second
	// One record has at most this many rows, and bytes of their names unless there is only one.
	hintRows  = 1024
	hintBytes = 16 << 10
	// mostHints is how many rows a process remembers. Beyond it, what is stored may be stored again. If more than
	// half of it waits to be stored, the store does not take it, and it is lost.
	mostHints = 1 << 16
)

// hints are those of this process.
type hints struct {
	mu      sync.Mutex
	id      string // begins the names of its records
	records uint64
	spans   map[hintSpan]*hinted
	rows    int       // in all spans
	waiting int       // of these, to be stored
	since   time.Time // local: when the first of those was added, or a flush failed
	storing bool
	// turn has a token while hints are stored. One call does that at a time: so who has the turn knows that what was added before is stored, or waits.
	turn chan struct{}
	// adding are the transactions whose hints the background adds. Each channel is closed at the end.
	adding map[chan struct{}]struct{}
	lost   *atomic.Uint64
	seed   maphash.Seed
	last   *hinted // the rows of the span that one was added to last, nil for none
}

// hintSpan is a span of time of a table. It begins at from, and ends before to.
type hintSpan struct {
	table    string
	from, to Timestamp
}

// hinted are the rows of a span. They are known by hashes, which are small, and quick to find. If two rows have one
// hash, the second counts as lost, which leaves garbage for a while.
type hinted struct {
	span    hintSpan
	rows    map[uint64]struct{}
	waiting []string
}

// hintSpanOf is the span that a timestamp lies in.
func (v *catalogView) hintSpanOf(table string, at Timestamp) hintSpan {
	length := milliseconds(v.stored(v.asOf).Of(table).RetentionMs) / hintSpans
	ms := uint64(max(hintSpanLeast, min(length, hintSpanMost)).Milliseconds()) //nolint:gosec // positive
	from := Timestamp(uint64(at) >> oracle.LogicalBits / ms * ms << oracle.LogicalBits)
	return hintSpan{table, from, min(from+Timestamp(ms<<oracle.LogicalBits), oracle.Max)}
}

// add notes that something in a row became garbage at a timestamp, or will. now tells the local time.
func (h *hints) add(v *catalogView, table, row string, at Timestamp, now func() time.Time) {
	// Erase has taken the row out of the hints from before, in which it is known. What is found later of a transaction from before, such as a lock of
	// a dead process, leaves garbage after that too.
	safe := v.erasedIn(Cell{Table: table, Row: row}.span())
	// A collection of hints does not look far below the last collection of all rows. A transaction of which somebody asks may have begun long before it.
	at = max(at, safe+1, v.safePoint)
	span, hash := v.hintSpanOf(table, at), maphash.String(h.seed, row)
	span.from = max(span.from, safe)
	h.mu.Lock()
	defer h.mu.Unlock()
	in := h.in(v, span, at)
	if _, known := in.rows[hash]; known {
		return
	}
	if h.rows >= mostHints {
		h.makeRoom()
		in = h.in(v, span, at)
	}
	in.rows[hash] = struct{}{}
	in.waiting = append(in.waiting, strings.Clone(row)) // it may lie in something large
	if h.rows++; h.waiting == 0 {
		h.since = now()
	}
	h.waiting++
}

// in returns the rows of a span. h.mu is held.
func (h *hints) in(v *catalogView, span hintSpan, at Timestamp) *hinted {
	if h.last != nil && h.last.span == span {
		return h.last
	}
	in := h.spans[span]
	if in == nil {
		if h.spans == nil {
			h.spans = map[hintSpan]*hinted{}
		}
		h.forget(v, at)
		span.table = strings.Clone(span.table)
		in = &hinted{span: span, rows: map[uint64]struct{}{}}
		h.spans[span] = in
	}
	h.last = in
	return in
}

// forget drops the spans that are over and stored. h.mu is held.
func (h *hints) forget(v *catalogView, now Timestamp) {
	for s, in := range h.spans {
		if s.to < min(now, v.asOf) && len(in.waiting) == 0 {
			h.rows -= len(in.rows)
			delete(h.spans, s)
			if h.last == in {
				h.last = nil
			}
		}
	}
}

// makeRoom forgets what is stored. If much waits, the store does not take it: then that is lost. h.mu is held.
func (h *hints) makeRoom() {
	if h.waiting > mostHints/2 {
		h.forgetAll()
		return
	}
	h.rows, h.last = 0, nil
	for s, in := range h.spans {
		if len(in.waiting) == 0 {
			delete(h.spans, s)
			continue
		}
		clear(in.rows)
		for _, row := range in.waiting {
			in.rows[maphash.String(h.seed, row)] = struct{}{}
		}
		h.rows += len(in.rows)
	}
}

// forgetAll forgets what waits too. h.mu is held.
func (h *hints) forgetAll() {
	h.lost.Add(uint64(h.waiting)) //nolint:gosec // a count
	clear(h.spans)
	h.rows, h.waiting, h.last = 0, 0, nil
}

// due tells whether hints should be stored now. The caller must then do so.
func (h *hints) due(now func() time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.storing || h.waiting == 0 || h.waiting < hintsAtOnce && now().Sub(h.since) < hintsAfter {
		return false
	}
	h.storing = true
	return true
}

// take returns the records of what waits, which counts as stored from now on.
func (h *hints) take() (muts []rowstore.Mutation, rows map[hintSpan][]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	rows = map[hintSpan][]string{}
	inOrder := slices.SortedFunc(maps.Keys(h.spans), func(a, b hintSpan) int {
		return cmp.Or(strings.Compare(a.table, b.table), cmp.Compare(a.from, b.from))
	})
	for _, s := range inOrder {
		if in := h.spans[s]; len(in.waiting) > 0 {
			rows[s] = in.waiting
			muts = h.put(muts, s, in.waiting)
			in.waiting = nil
		}
	}
	h.waiting = 0
	return muts, rows
}

// back undoes take, for records that may not be stored.
func (h *hints) back(rows map[hintSpan][]string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s, names := range rows {
		in := h.spans[s]
		if in == nil && h.rows+len(names) > mostHints {
			h.lost.Add(uint64(len(names))) // there was no room meanwhile
			continue
		}
		if in == nil { // it was over, and forgotten meanwhile
			in = &hinted{span: s, rows: make(map[uint64]struct{}, len(names))}
			for _, row := range names {
				in.rows[maphash.String(h.seed, row)] = struct{}{}
			}
			h.spans[s], h.rows = in, h.rows+len(in.rows)
		}
		in.waiting = append(in.waiting, names...)
		h.waiting += len(names)
	}
	h.since = now
}

// put appends mutations that store hints. h.mu is held.
func (h *hints) put(muts []rowstore.Mutation, s hintSpan, rows []string) []rowstore.Mutation {
	for len(rows) > 0 {
		n, bytes := 1, len(rows[0])
		for n < len(rows) && n < hintRows && bytes+len(rows[n]) <= hintBytes {
			bytes += len(rows[n])
			n++
		}
		record := format.Hint{Rows: rows[:n]}
		rows = rows[n:]
		h.records++
		muts = append(muts, rowstore.Mutation{
			Table: format.TableHints, Row: format.HintRow(s.table, s.from, fmt.Sprintf("%s%x", h.id, h.records)),
			// An erasure that has changed the record leaves a mark. The request must not come again then.
			Conditions: []rowstore.Condition{rowstore.Absent(rowstore.Mark, format.ColumnHint, 0)},
			Edits:      []rowstore.Edit{rowstore.Put(rowstore.Write, format.ColumnHint, s.to, record.Encode())},
		})
	}
	return muts
}

// hint notes that something in a row became garbage at a timestamp: it was replaced or deleted, or it is
// a mark there.
func (db *DB) hint(c Cell, at Timestamp) {
	v := db.known()
	if db.opt.noHints || !v.Hinted {
		return
	}
	db.hints.add(v, c.Table, c.Row, at, db.clock.Now)
}

// hintSoon stores hints in the background if it is time.
func (db *DB) hintSoon() {
	if db.hints.due(db.clock.Now) && !db.background(func(ctx context.Context) {
		defer db.hints.stored()
		ctx, cancel := context.WithTimeout(ctx, db.backgroundTimeout())
		defer cancel()
		if err := db.storeHints(ctx); err != nil && ctx.Err() == nil {
			db.log.Debug("hints of garbage could not be stored", "err", err)
		}
	}) {
		db.hints.stored()
	}
}

func (h *hints) stored() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.storing = false
}

// storeHints stores the hints that wait.
func (db *DB) storeHints(ctx context.Context) error {
	h := &db.hints
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("storing hints of garbage: %w", ctx.Err())
	}
	defer func() { <-h.turn }()
	muts, rows := h.take()
	if err := db.putHints(ctx, muts); err != nil {
		h.back(rows, db.clock.Now())
		return fmt.Errorf("storing hints of garbage: %w", err)
	}
	return nil
}

// addingMore notes that the background is about to add hints. The function that it returns notes the end.
func (h *hints) addingMore() (end func()) {
	done := make(chan struct{})
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.adding == nil {
		h.adding = map[chan struct{}]struct{}{}
	}
	h.adding[done] = struct{}{}
	return func() {
		h.mu.Lock()
		delete(h.adding, done)
		h.mu.Unlock()
		close(done)
	}
}

// storeEveryHint stores the hints of all that was committed before: also those that the background has yet to add, or that somebody else is storing.
func (db *DB) storeEveryHint(ctx context.Context) error {
	db.hints.mu.Lock()
	adding := slices.Collect(maps.Keys(db.hints.adding))
	db.hints.mu.Unlock()
	for _, done := range adding {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("waiting for hints of garbage: %w", ctx.Err())
		}
	}
	return db.storeHints(ctx)
}

// putHints stores records of hints. Some may be there after an error.
func (db *DB) putHints(ctx context.Context, muts []rowstore.Mutation) error {
	for len(muts) > 0 {
		n := min(len(muts), gcRows)
		outs, err := db.store.Apply(ctx, muts[:n], rowstore.ApplyOptions{Bulk: true})
		for i := range outs {
			if err == nil {
				err = outs[i].Err
			}
		}
		if err != nil {
			return err
		}
		muts = muts[n:]
	}
	return nil
}

// hintWrites notes the rows of a transaction that has committed.
func (c *committer) hintWrites(commit Timestamp) {
	if len(c.writes) <= hintsAtOnce {
		c.hintSome(c.writes, commit)
		c.db.hintSoon()
		return
	}
	end := c.db.hints.addingMore()
	if !c.db.background(func(ctx context.Context) {
		defer end()
		ctx, cancel := context.WithTimeout(ctx, c.enough(c.db.backgroundTimeout()))
		defer cancel()
		for some := range slices.Chunk(c.writes, hintsAtOnce) {
			c.hintSome(some, commit)
			_ = c.db.storeHints(ctx) // what it cannot store waits
		}
	}) {
		end()
	}
}

func (c *committer) hintSome(writes []write, commit Timestamp) {
	for i := range writes {
		// The first version of a cell replaces nothing.
		if w := &writes[i]; !w.first || w.kind != format.KindPut {
			c.db.hint(w.cell, commit)
		}
	}
}

// lastHintsTake bounds what Close waits for hints.
const lastHintsTake = time.Second

// storeLastHints stores what waits when the DB closes.
func (db *DB) storeLastHints(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastHintsTake)
	defer cancel()
	if err := db.storeHints(ctx); err != nil {
		db.log.Debug("hints of garbage were lost", "err", err)
	}
}
