package tikvraw

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

const (
	// passed is how many markers of other slots a request may read, about, so that it need
	// not be two requests: reading so many keys costs a server no more than a request does.
	passed = 256
	// ahead is how many ranges of slots are read at once, where requests go to one each.
	ahead = 16
	// rounds is how often a page of a scan asks for more, if what has come names few rows.
	rounds = 8
	// nameBytes is about how much of the memory the names take that a scan in the order of
	// rows gathers.
	nameBytes = 4 << 20
)

// ScansSlots implements rowstore.SlotScanner.
func (s *Store) ScansSlots() {}

// slotWalk goes over the notified rows of some ranges of slots, in the order of the index.
// It leaps from range to range. Where markers are few it reads over those between ranges,
// so that a thousand ranges that hold little cost few requests. Where they are many, each
// range is worth a request of its own, and several go out at once.
type slotWalk struct {
	s       *Store
	r       *rowstore.ScanRange
	slots   []rowstore.SlotRange // what is left
	from    []byte               // where the first of them goes on
	at      uint16               // the slot of from
	started bool
	size    int // of a request
	found   findings
	read    []stretch // what requests brought and was not taken yet
	// keys and over are how many markers the latest requests met, and over how many slots:
	// so many may lie in the next ones.
	keys, over float64
	last       string // the row found last
}

func newSlotWalk(s *Store, r *rowstore.ScanRange) *slotWalk {
	w := &slotWalk{s: s, r: r, slots: r.Slots, size: passed}
	w.goTo(0)
	if r.From != "" {
		w.from = kit.AppendName(w.from, r.From)
	}
	return w
}

// goTo goes on at the i-th of the ranges that are left, if there is one.
func (w *slotWalk) goTo(i int) {
	if w.slots = w.slots[i:]; len(w.slots) > 0 {
		w.at = w.slots[0].First
		w.from = w.s.keys.slot(w.r.Table, w.at, 0)
	}
}

// stretch is some of the ranges, for one request.
type stretch struct {
	from, to []byte
	first    uint16 // the slot of from
	ranges   int
	limit    int
	page     []pair // what came and was not taken yet
	came     int
	full     bool // there may be more in these ranges
}

func (w *slotWalk) next(ctx context.Context, limit int) ([]*named, bool, error) {
	if !w.started {
		if err := w.s.moveOld(ctx, w.r.Table); err != nil {
			return nil, false, err
		}
		w.started = true
	}
	// Where few rows come with a request, their heads are read together.
	for range rounds {
		if len(w.slots) == 0 || 2*len(w.found.rows) > limit {
			break
		}
		if err := w.step(ctx, limit); err != nil {
			return nil, false, err
		}
	}
	found, rest := w.found.cut(limit)
	// A marker tells of its row, and not of columns: of which one a row is notified is only known if
	// the scan asks for one.
	if w.r.Hints && len(w.r.Selectors) == 1 && w.r.Selectors[0].Column != rowstore.AllColumns {
		w.s.hintAt(&found)
	}
	if err := w.s.readNotified(ctx, &found); err != nil {
		return nil, true, err // they are all found still
	}
	w.found = rest
	return found.rows, len(w.slots) > 0 || len(rest.rows) > 0, nil
}

// step takes what was read, until it has limit rows, and reads more if nothing is left. After
// an error of a request it has not moved.
func (w *slotWalk) step(ctx context.Context, limit int) error {
	if len(w.read) == 0 {
		plan := w.plan(limit)
		errs := make([]error, len(plan))
		parallel(len(plan), func(i int) {
			p := &plan[i]
			p.page, errs[i] = w.s.raw.scan(ctx, p.from, p.to, p.limit, true)
			p.came, p.full = len(p.page), len(p.page) == p.limit
		})
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		w.read = plan
		w.keys, w.over = w.keys/2, w.over/2
	}
	for len(w.read) > 0 {
		p := &w.read[0]
		switch all := w.take(p, limit); {
		case !all:
			return nil
		case p.full:
			w.read = nil // what lies behind the rest of these ranges is asked for again
		default:
			w.read = w.read[1:]
		}
	}
	return nil
}

// plan says what to ask for next. Ranges between which few markers are expected share a
// request. There are several requests if each is expected to bring few rows.
func (w *slotWalk) plan(limit int) (plan []stretch) {
	density := 0.0
	if w.over > 0 {
		density = w.keys / w.over
	}
	expected := 0.0
	for i := 0; i < len(w.slots) && len(plan) < ahead && (i == 0 || expected < float64(limit)); {
		j := i + 1
		for j < len(w.slots) && density*float64(w.slots[j].First-w.slots[j-1].Last-1) <= passed {
			j++
		}
		last := w.slots[j-1].Last
		p := stretch{from: w.from, first: w.at, to: w.s.keys.afterSlot(w.r.Table, last), ranges: j - i, limit: limit}
		if i > 0 {
			p.first = w.slots[i].First
			p.from = w.s.keys.slot(w.r.Table, p.first, 0)
		}
		more := min(w.size, 64*limit) // a low limit is for a server that cannot send more
		if p.ranges == 1 && w.r.Limit > 0 {
			more = min(more, 2*w.r.Limit)
		}
		p.limit = max(limit, more)
		plan = append(plan, p)
		expected += density * float64(int(last)-int(p.first)+1)
		i = j
	}
	return plan
}

// take adds the rows of a stretch to those found, up to limit, and moves on over all that
// came. Between the ranges it looks at the slots alone: what else stands there is not asked for.
func (w *slotWalk) take(p *stretch, limit int) (all bool) {
	behind := len(w.s.keys.table(spaceIndex, w.r.Table))
	for i, kv := range p.page {
		slot := slotIn(kv.key, behind)
		at, mine := slices.BinarySearchFunc(w.slots[:p.ranges], slot, compareSlot)
		if mine && !w.takeKey(kv.key, limit) {
			p.page = p.page[i:]
			return false
		}
		if i < len(p.page)-1 || !p.full {
			continue
		}
		w.keys += float64(p.came)
		w.over += float64(int(slot) - int(p.first) + 1)
		w.size = min(2*w.size, sweepPage)
		w.goTo(at)
		if mine {
			w.from, w.at = append(bytes.Clone(kv.key), 0), slot
		}
		return true
	}
	w.keys += float64(p.came)
	w.over += float64(int(w.slots[p.ranges-1].Last) - int(p.first) + 1)
	w.goTo(p.ranges)
	return true
}

// takeKey adds what a key of the index tells of, unless that would be a row more than limit.
func (w *slotWalk) takeKey(key []byte, limit int) bool {
	m, err := w.s.keys.parseIndex(key)
	if (err != nil || m.row != w.last) && len(w.found.rows) >= limit {
		return false
	}
	if err != nil {
		w.last = ""
		w.found.addStrange(err)
		return true
	}
	if m.row != w.last {
		w.last = m.row
		w.found.add(w.s, w.r, &m)
	}
	w.found.mark(key, m.id)
	return true
}

// compareSlot tells whether a range lies before a slot, holds it or lies behind it.
func compareSlot(r rowstore.SlotRange, slot uint16) int {
	switch {
	case r.Last < slot:
		return -1
	case r.First > slot:
		return 1
	}
	return 0
}

// findings is rows that have markers, with those. A row has one marker, and a moment ago or
// after a crash it may have had others.
type findings struct {
	rows    []*named
	markers [][]marker
}

func (n *findings) add(s *Store, r *rowstore.ScanRange, m *marked) {
	n.rows = append(n.rows, &named{ask: ask{key: s.keys.row(spaceHead, m.table, m.row), picks: r.Selectors}, name: m.row})
	n.markers = append(n.markers, nil)
}

// addStrange adds a key of the index that is no marker, as a row that cannot be read.
func (n *findings) addStrange(err error) {
	n.rows = append(n.rows, &named{ask: ask{err: err}})
	n.markers = append(n.markers, nil)
}

// cut divides what was found after so many rows.
func (n *findings) cut(rows int) (first, rest findings) {
	rows = min(rows, len(n.rows))
	return findings{n.rows[:rows:rows], n.markers[:rows:rows]}, findings{n.rows[rows:], n.markers[rows:]}
}

// mark adds a marker to the row that was added last. That of a row of an earlier page is
// left out.
func (n *findings) mark(key []byte, id uint64) {
	if i := len(n.rows) - 1; i >= 0 {
		n.markers[i] = append(n.markers[i], marker{key: key, head: n.rows[i].key, id: id})
	}
}

// hintAt makes hints of the rows of which this store has not given any lately. A marker is written
// before the head that names it, and removed after the head that does not name it any more: so
// every notified row has one, and none is passed over.
func (s *Store) hintAt(n *findings) {
	given := 0
	for i, row := range n.rows {
		if row.err != nil {
			continue
		}
		ids := make([]uint64, len(n.markers[i]))
		for j := range ids {
			ids[j] = n.markers[i][j].id
		}
		row.hint = nil // it may have been one for a page whose heads were too much
		if s.hints.may(ids, given) {
			row.hint = ids
			given += len(ids)
		}
	}
}

// readNotified reads the heads of rows that are no hints, and notes the markers that these do not
// know. A row whose head cannot be read has an err then.
func (s *Store) readNotified(ctx context.Context, n *findings) error {
	asks := make([]*ask, 0, len(n.rows))
	for _, row := range n.rows {
		if len(row.hint) == 0 && row.err == nil {
			asks = append(asks, &row.ask)
		}
	}
	if err := s.readHeads(ctx, asks, true); err != nil {
		return err
	}
	for i, row := range n.rows {
		if len(row.hint) > 0 || row.err != nil {
			continue
		}
		a := &row.ask
		r, err := s.decodeRow(a.key, a.raw)
		if err != nil {
			a.err = err
			continue
		}
		for _, m := range n.markers[i] {
			if !r.knows(m.id) {
				s.clean.met(m)
			}
		}
	}
	return nil
}

// nameWalk goes over the notified rows of a range in the order of their names. The index
// has another order, so it reads the markers of the whole table, and gathers as many of the
// first names as its memory allows. If there are more, it reads all markers again for the
// next ones. It is for the few who want that order.
type nameWalk struct {
	s       *Store
	r       *rowstore.ScanRange
	started bool
	from    []byte // where the table's markers go on
	names   []string
	size    int    // about how much memory the names take
	ready   bool   // the names are those of all markers, in order
	bad     error  // of the first key that is no marker; it belongs to no row, and is told of at the end
	cut     string // names behind this one are left out, if it is not ""
	after   string // names up to this one were returned, if it is not ""
}

func newNameWalk(s *Store, r *rowstore.ScanRange) *nameWalk {
	return &nameWalk{s: s, r: r, from: s.keys.table(spaceIndex, r.Table)}
}

func (w *nameWalk) next(ctx context.Context, limit int) ([]*named, bool, error) {
	if !w.ready {
		return nil, true, w.gather(ctx, limit)
	}
	var found findings
	n := min(limit, len(w.names))
	for _, name := range w.names[:n] {
		found.add(w.s, w.r, &marked{table: w.r.Table, row: name})
	}
	if err := w.s.readNotified(ctx, &found); err != nil {
		return nil, true, err
	}
	if n > 0 {
		w.after = w.names[n-1]
	}
	if w.names = w.names[n:]; len(w.names) == 0 && w.cut != "" {
		w.after, w.cut, w.size, w.ready = w.cut, "", 0, false
		w.from = w.s.keys.table(spaceIndex, w.r.Table)
	}
	more := !w.ready || len(w.names) > 0
	if !more && n == 0 {
		return found.rows, false, w.bad
	}
	return found.rows, more || w.bad != nil, nil
}

// gather reads a page of markers.
func (w *nameWalk) gather(ctx context.Context, limit int) error {
	if !w.started {
		if err := w.s.moveOld(ctx, w.r.Table); err != nil {
			return err
		}
		w.started = true
	}
	limit = min(sweepPage, 64*limit)
	page, err := w.s.raw.scan(ctx, w.from, w.s.keys.afterTable(spaceIndex, w.r.Table), limit, true)
	if err != nil {
		return err
	}
	for _, kv := range page {
		m, err := w.s.keys.parseIndex(kv.key)
		if err != nil {
			w.bad = cmp.Or(w.bad, err)
			continue
		}
		if w.wants(m.row) {
			w.names = append(w.names, m.row)
			w.size += memoryOf(m.row)
		}
	}
	if w.size > 2*w.s.sizes.names {
		w.order()
	}
	if len(page) == limit {
		w.from = append(bytes.Clone(page[limit-1].key), 0)
		return nil
	}
	w.order()
	w.ready = true
	return nil
}

func memoryOf(name string) int { return len(name) + 32 }

func (w *nameWalk) wants(name string) bool {
	return name >= w.r.From && (w.r.To == "" || name < w.r.To) &&
		(w.after == "" || w.compare(name, w.after) > 0) && (w.cut == "" || w.compare(name, w.cut) <= 0)
}

func (w *nameWalk) compare(a, b string) int {
	if w.r.Reverse {
		a, b = b, a
	}
	return strings.Compare(a, b)
}

// order sorts the names, and leaves out those behind what the memory allows.
func (w *nameWalk) order() {
	slices.SortFunc(w.names, w.compare)
	w.names = slices.Compact(w.names)
	w.size = 0
	for i, name := range w.names {
		if w.size += memoryOf(name); w.size > w.s.sizes.names && i > 0 {
			w.size -= memoryOf(name)
			w.cut = w.names[i-1]
			clear(w.names[i:])
			w.names = w.names[:i]
			return
		}
	}
}
