package percolator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// How a worker finds notifications. The store's push, or the time, asks for a look at a
// table (listen, find), or at the rows that the push names (follow). A look scans these rows
// once, a page at a time. It leaves to other workers what is theirs (share.go), skips cells
// that it remembers (rested.go), and queues a job for each observer that a cell waits for
// (queue.go).

const (
	// lookPage is how many notified rows of this worker's own are found, about, before
	// their functions start.
	lookPage = 256
	// mostPages bounds how much longer a page is for the rows of others in it.
	mostPages = 16
	// lookParts is the number of parts into which a table is cut, to begin scans at
	// random places.
	lookParts = 64
	// boundsAge is how long these parts are kept.
	boundsAge = time.Minute
	// agreeAfter is about how long workers take to agree who has what, when the store has
	// stood still.
	agreeAfter = time.Second
)

// bounds are row keys at which a scan may begin.
type bounds struct {
	keys  []string
	since time.Time
	busy  bool // the last scan filled a page: a random beginning pays
}

// kick is told where there may be new notifications.
func (w *Worker) kick(at rowstore.Wake) {
	// A new observer waits until everybody knows it. Its push may have been missed before a
	// wake that names no table.
	if at.Table == format.TableCatalog || at.Table == "" {
		leaveToken(w.recheck)
	}
	if at.Table == "" || at.Table == format.TableMembers {
		leaveToken(w.beatSoon) // a notification there is a barrier
	}
	if at.Table != "" && w.kicks[at.Table] == nil {
		return // nothing here observes it
	}
	w.mu.Lock()
	// What was locked may have been committed just now, whoever owns it.
	for t := range w.locked {
		if at.Table == "" || t == at.Table {
			w.resumeLocked(t)
		}
	}
	w.mu.Unlock()
	if at.Table == "" {
		w.kickAll()
	} else {
		w.kickSlots(at)
	}
}

// noteGained notes what this worker's shares have taken in since it noted that last. Nobody may
// have looked at it for long, and a walk under way does not know it. What they have lost is no
// longer remembered.
func (w *Worker) noteGained() {
	m := &w.member
	if !w.db.slots {
		return
	}
	var kept slotSet
	for table := range w.tables {
		own, old := w.ownSlots(table), m.owned[table]
		for i, word := range own {
			kept[i] |= word
		}
		if m.owned == nil {
			m.owned = map[string]*slotSet{}
		}
		m.owned[table] = &own
		if old == nil {
			continue // the first walk is not under way yet
		}
		gained, some := slotSet{}, false
		for i, word := range own {
			gained[i] = word &^ old[i]
			some = some || gained[i] != 0
		}
		if some {
			w.asked[table].gain(&gained)
			// What pushes have told of in vain need not wait until all that was gained is looked at.
			w.askFor(table, w.asked[table].toldOf(&gained, w.db.clock.Now(), w.toldFor()))
		}
	}
	w.mu.Lock()
	w.rested.keep(&kept)
	w.mu.Unlock()
}

// kickTable leaves a token for a table's scanner, unless there is one.
func (w *Worker) kickTable(table string) {
	if ch := w.kicks[table]; ch != nil {
		leaveToken(ch)
	}
}

func (w *Worker) kickAll() {
	for table := range w.kicks {
		w.kickTable(table)
	}
}

// find scans for a table's notifications whenever there is reason to: after a push that
// follow does not look after, when a queue has room again, and from time to time, because a
// push may get lost.
func (w *Worker) find(ctx context.Context, table string) error {
	var pace pace
	for {
		l, took, err := w.lookUntilDone(ctx, table, nil, pace.calm)
		if err != nil {
			return err
		}
		pause, rest := w.afterLook(&pace, l, took)
		if pause > 0 {
			if err := w.db.clock.Sleep(ctx, pause); err != nil {
				return err
			}
		}
		woken, err := w.sleepHearing(ctx, table, rest)
		if err != nil {
			return err
		}
		if woken {
			pace.calm = 0 // somebody asks for a look, which may be the only one that finds what is new
		}
	}
}

// sleepHearing sleeps until a rest is over or somebody asks for a look at the table. A rest that only a worker that hears of everything
// may take ends soon after the push is lost.
func (w *Worker) sleepHearing(ctx context.Context, table string, rest time.Duration) (woken bool, err error) {
	for w.listens() && rest > max(longestUnheard, w.config.Rescan) {
		if woken, err := w.sleepOr(ctx, longestUnheard, w.kicks[table]); woken || err != nil || !w.listens() {
			return woken, err
		}
		rest -= longestUnheard
	}
	return w.sleepOr(ctx, rest, w.kicks[table])
}

// follow looks at those rows of a table that pushes tell of. It does so beside find, whose
// look may take long: a change must not wait behind a backlog. It is for stores that find
// rows by slots.
func (w *Worker) follow(ctx context.Context, table string) error {
	for {
		select {
		case <-w.asked[table].some:
		case <-ctx.Done():
			return ctx.Err()
		}
		if slots := w.asked[table].take(); len(slots) > 0 {
			if _, _, err := w.lookUntilDone(ctx, table, slots, 0); err != nil {
				return err
			}
		}
	}
}

// lookUntilDone is look, again and again until it succeeds. took is how long that was, without
// the wait for room and the rests. After a failure it begins anew, and does not rest: a store that
// fails from time to time must not keep it from its end.
func (w *Worker) lookUntilDone(ctx context.Context, table string, slots []uint16, calm float64) (l *looker, took time.Duration, err error) {
	began := w.db.clock.Now()
	waited := time.Duration(0)
	err = w.retry(ctx, "looking for notifications", func() (err error) {
		l, err = w.look(ctx, table, slots, calm)
		waited += l.waited
		if err != nil {
			calm = 0
		}
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return l, w.db.clock.Now().Sub(began) - waited, nil
}

// look scans a table once and queues the runs for the notifications that it finds. Where
// the store finds them by slots, it scans this worker's own, or those of the ones given. Else
// it scans the whole table. If there is much to find it begins at a random place then, so that
// many workers do not all ask the same part of the store at once (section 2.4 of the paper).
// After a page that leads to nothing it rests calm times as long as the page took.
func (w *Worker) look(ctx context.Context, table string, slots []uint16, calm float64) (*looker, error) {
	l := &looker{w: w, table: table, fresh: len(slots) > 0, calm: calm}
	if w.db.slots {
		ranges := w.slotsOf(table, slots)
		if len(ranges) == 0 && (l.fresh || !w.lookUnderWay(table)) {
			return l, nil
		}
		if len(ranges) == 0 {
			// Looks have failed until others took over all that was this worker's own. It gets
			// its share again when it sees that the store answers, by any scan.
			ranges = []rowstore.SlotRange{{}}
		}
		w.db.count.notifyScans.Add(1)
		err := l.walk(ctx, rowstore.ScanRange{Slots: ranges})
		w.db.count.notifyFound.Add(uint64(l.found)) //nolint:gosec // a count
		return l, err
	}
	w.db.count.notifyScans.Add(1)
	b := w.bounds(ctx, table)
	begin := ""
	if b.busy && len(b.keys) > 0 {
		begin = b.keys[w.db.rand.int64N(int64(len(b.keys)))]
	}
	err := l.walk(ctx, rowstore.ScanRange{From: begin})
	if err == nil && begin != "" {
		err = l.walk(ctx, rowstore.ScanRange{To: begin})
	}
	if err != nil {
		return l, err
	}
	w.mu.Lock()
	b.busy = l.found >= lookPage
	if len(b.keys) == 0 {
		b.keys = l.met
	}
	w.boundsOf[table] = b
	w.mu.Unlock()
	w.db.count.notifyFound.Add(uint64(l.found)) //nolint:gosec // a count
	return l, nil
}

// bounds returns the table's parts, asking the store from time to time.
func (w *Worker) bounds(ctx context.Context, table string) bounds {
	w.mu.Lock()
	b := w.boundsOf[table]
	w.mu.Unlock()
	now := w.db.clock.Now()
	if !b.busy || (!b.since.IsZero() && now.Sub(b.since) < boundsAge) {
		return b
	}
	b.since = now
	b.keys = nil // without a Splitter: keys that this scan meets
	if s, ok := rowstore.Unwrap[rowstore.Splitter](w.db.store); ok {
		began := w.lookBegins(table) // else the last look has failed, and is still the same one
		keys, err := s.Split(ctx, table, lookParts)
		if began {
			w.mu.Lock()
			delete(w.looking, table)
			w.mu.Unlock()
		}
		if err != nil {
			w.db.log.Debug("the table could not be split", "table", table, "err", err)
		} else {
			b.keys = keys
		}
	}
	return b
}

// looker is one scan under way.
type looker struct {
	w       *Worker
	table   string
	fresh   bool          // it is for what pushes told of
	gained  *slotSet      // what walkGained is at; nil otherwise
	calm    float64       // how many times as long as a page it rests after one that leads to nothing
	visited int           // rows
	found   int           // jobs that were queued
	met     []string      // row keys at page boundaries
	rested  time.Duration // after pages that led to nothing
	waited  time.Duration // for room, or at rest
	damaged int           // slots that were left out
}

// finding is a notified cell with something to do for this worker, as far as it knows.
type finding struct {
	cell   Cell
	seen   uint64 // unread if the store has given a hint
	queues []*queue
}

const (
	// unread takes the place of a signature where a scan has given a hint. No signature is even, so
	// no hint is taken for what is known.
	unread uint64 = 2
	// hintsVain is above one half: where observers of other workers have yet to see what is
	// run, every second look at a cell has nothing to do.
	hintsVain = 0.6
)

// takesHints tells whether a scan asks for hints. A job reads its row anyway, so a hint saves the
// store one read if there is something to do. Where there mostly is not, the store reads many rows
// together for less. A hint tells of one column.
func (l *looker) takesHints(rows *rowstore.ScanRange) bool {
	if len(rows.Slots) == 0 || len(rows.Selectors) != 1 {
		return false
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return !slices.ContainsFunc(l.w.list, func(q *queue) bool { return q.table == l.table && q.vain > hintsVain })
}

// walkGained scans what has come to be this worker's own, until there is no more of it.
func (l *looker) walkGained(ctx context.Context) error {
	a := l.w.asked[l.table]
	for a.hasGained() {
		l.gained = a.takeGained()
		own := l.w.ownSlots(l.table)
		for i := range own {
			own[i] &= l.gained[i]
		}
		var err error
		if ranges := own.ranges(); len(ranges) > 0 {
			err = l.walk(ctx, rowstore.ScanRange{Slots: ranges})
		}
		if err != nil {
			a.gain(l.gained)
			return err
		}
		l.gained = nil
	}
	return nil
}

// walk scans some rows of the table, page by page. A walk through a backlog may take hours. What
// the worker gains meanwhile comes before the rest of it.
func (l *looker) walk(ctx context.Context, rows rowstore.ScanRange) error {
	rows.Table, rows.Selectors, rows.Limit = l.table, l.w.notifyPicks(l.table), l.w.pageLimit(l.table)
	for {
		began := l.w.db.clock.Now()
		if err := l.w.waitForRoom(ctx, l.table, l.fresh); err != nil {
			return err
		}
		l.waited += l.w.db.clock.Now().Sub(began)
		if a := l.w.asked[l.table]; !l.fresh && len(rows.Slots) > 0 && a.hasGained() {
			if l.gained != nil {
				a.gain(l.gained) // walkGained begins again, with more
				return nil
			}
			if err := l.walkGained(ctx); err != nil {
				return err
			}
			continue
		}
		began = l.w.db.clock.Now()
		page, last, err := l.page(ctx, rows)
		if err != nil {
			l.queue(page) // what was found before
			if last != "" {
				// It goes on from there: what was found has run meanwhile, perhaps, and is not to be found twice.
				rows.From, rows.Slots = last+"\x00", slotsFrom(rows.Slots, rowstore.Slot(l.table, last))
			}
			return l.detour(ctx, rows, err)
		}
		if page, err = l.sortOut(ctx, page); err != nil {
			return err
		}
		took := l.w.db.clock.Now().Sub(began)
		if full, fed := l.queue(page); len(full) > 0 && !l.fresh {
			again, err := l.waitForThese(ctx, full, fed, took)
			if err != nil {
				return err
			}
			if again {
				continue // with the same page, for what had no room
			}
		}
		if last == "" {
			return nil
		}
		if len(l.met) < lookParts {
			l.met = append(l.met, last)
		}
		if len(page) == 0 {
			if err := l.rest(ctx, took); err != nil {
				return err
			}
		}
		rows.From, rows.Slots = last+"\x00", slotsFrom(rows.Slots, rowstore.Slot(l.table, last))
	}
}

// page finds notified cells that this worker does not handle yet, and after a failure those that
// were read before. last is the row after which the scan continues, "" at the end, or if it failed before any row.
func (l *looker) page(ctx context.Context, rows rowstore.ScanRange) (page []finding, last string, err error) {
	w := l.w
	n := 0
	known := w.db.known()
	var cells []finding
	var failed error
	if !l.fresh {
		w.lookBegins(l.table)
	}
	rows.Hints = l.takesHints(&rows)
	for row, err := range w.db.store.Scan(ctx, rows) {
		if err != nil {
			failed = fmt.Errorf("scanning the notifications of table %q: %w", l.table, err)
			break
		}
		n++
		last = row.Row
		if row.Hint {
			cells = append(cells, finding{cell: Cell{l.table, row.Row, rows.Selectors[0].Column}, seen: unread})
			continue
		}
		for column, notified := range notifiedColumns(&row) {
			c := Cell{l.table, row.Row, column}
			cells = append(cells, finding{cell: c, seen: w.rested.signature(c, known.observers(c.Table, c.Column), notified)})
		}
	}
	l.visited += n
	if failed == nil && n < rows.Limit {
		last = ""
	}
	cells = w.own(cells)
	now := w.db.clock.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !l.fresh && failed == nil {
		delete(w.looking, l.table)
	}
	for _, f := range cells {
		covered := w.rested.covers(f.cell, f.seen, now)
		f.queues = slices.DeleteFunc(f.queues, func(q *queue) bool { return q.in(covered) || !w.wanted(q, f.cell, f.seen) })
		if len(f.queues) > 0 {
			page = append(page, f)
		}
	}
	return page, last, failed
}

// own keeps those cells that are this worker's own for some of its observers, and fills
// these in.
func (w *Worker) own(cells []finding) []finding {
	all, at := w.member.shares.Load(), w.now()
	for i := range cells {
		f := &cells[i]
		slot := rowstore.Slot(f.cell.Table, f.cell.Row)
		for _, q := range w.queuesOf(f.cell) {
			if all == nil && w.owns(q, f.cell, at) || all != nil && all.at(q, at).has(slot) {
				f.queues = append(f.queues, q)
			}
		}
	}
	return slices.DeleteFunc(cells, func(f finding) bool { return len(f.queues) == 0 })
}

// pageLimit is how many rows of a table are read at once. Where workers share the table,
// a page has as many more, so that about as many of them are this worker's own, unless the
// store finds just these.
func (w *Worker) pageLimit(table string) int {
	if w.db.slots {
		return lookPage
	}
	return lookPage * min(max(w.sharers(table), 1), mostPages)
}

// lookBegins notes that a page of a table is being read, or the table is split. began is
// false if it is read again after a failure.
func (w *Worker) lookBegins(table string) (began bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if began = w.looking[table].IsZero(); began {
		w.looking[table] = w.db.clock.Now()
	}
	return began
}

// lookUnderWay tells whether the last look at a table has not succeeded yet.
func (w *Worker) lookUnderWay(table string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.looking[table].IsZero()
}

// queue queues the findings. full are the queues that had no room for all of theirs, and fed those others that took many.
func (l *looker) queue(page []finding) (full, fed []*queue) {
	w := l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	took := map[*queue]int{}
	for _, f := range page {
		for _, q := range f.queues {
			left := q.left
			q.left = false
			if w.found(q, f.cell, f.seen, l.fresh) {
				l.found++
				took[q]++
			}
			if q.left && !slices.Contains(full, q) {
				full = append(full, q)
			}
			q.left = q.left || left
		}
	}
	for q, n := range took {
		if n >= lowWater && !slices.Contains(full, q) {
			fed = append(fed, q)
		}
	}
	w.dispatch()
	return full, fed
}

func (w *Worker) notifyPicks(table string) []rowstore.Selector {
	picks := make([]rowstore.Selector, len(w.tables[table]))
	for i, column := range w.tables[table] {
		picks[i] = rowstore.Selector{Family: rowstore.Notify, Column: column, To: oracle.Max, Limit: seenVersions}
	}
	return picks
}
