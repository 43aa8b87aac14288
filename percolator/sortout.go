package percolator

import (
	"context"
	"slices"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Where most of what a look finds has nothing to do yet, it is sorted out by a page at a time,
// and costs no job, no transaction and no call for each cell. That is so when a worker starts,
// or takes over what was another worker's own, beside very many cells that wait: nothing but
// their rows tells until when.

// vain is the part of the cells found lately for which there was nothing to do, a mean in which
// each further cell counts for a little.
type vain float64

const (
	vainWeight = 1.0 / 32
	// sortedAtOnce is how many cells are read in one call. A store that does one call after the
	// other must not keep others waiting for long.
	sortedAtOnce = 64
	// sortedTogether is how many cells a page has at least for that: a job for each of fewer costs
	// as little, and what is due among them does not wait for one more call.
	sortedTogether = 8
	// mostlyVain is above one half: a function that fails is due once, and then waits.
	mostlyVain = 0.75
)

// noteVain notes whether there was nothing to do for a cell. w.mu is held.
func (q *queue) noteVain(nothing bool) {
	was := 0.0
	if nothing {
		was = 1
	}
	q.vain += vain((was - float64(q.vain)) * vainWeight)
}

// sortOut takes those cells out of a page for which there is nothing to do yet, and remembers
// them, if there are mostly such. It decides nothing else: the job for a cell that stays looks at
// it anew.
func (l *looker) sortOut(ctx context.Context, page []finding) ([]finding, error) {
	if len(page) < sortedTogether || !l.w.mostlyVain(page) {
		return page, nil
	}
	for part := range slices.Chunk(page, sortedAtOnce) {
		if err := l.sortOutPart(ctx, part); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(page, func(f finding) bool { return len(f.queues) == 0 }), nil
}

// sortOutPart reads some cells in one call, and leaves those that have nothing to do without
// queues.
func (l *looker) sortOutPart(ctx context.Context, page []finding) error {
	w := l.w
	// What follow does says nothing about find. And if the last look of find has failed, it is still
	// the same one.
	began := !l.fresh && w.lookBegins(l.table)
	known := w.db.known()
	s := snapshot{}
	if w.db.snapshotReader == nil {
		s.began = w.db.clock.Now()
		start, err := w.db.draw(ctx)
		if err != nil {
			return err
		}
		s.set, s.start = true, start
	}
	reads := make([]rowstore.RowRead, len(page))
	for i := range page {
		c := page[i].cell
		reads[i] = viewRead(c, known.registrations(c.Table, c.Column), s.at())
	}
	w.db.count.observerViews.Add(uint64(len(reads)))
	rows, timely, err := w.db.readAt(ctx, reads, &s)
	if began {
		w.mu.Lock()
		delete(w.looking, l.table)
		w.mu.Unlock()
	}
	if err != nil {
		// One row that cannot be read must not hold the others up. Jobs read each by itself.
		w.db.log.Debug("notified cells could not be read together", "table", l.table, "err", err)
		return ctx.Err()
	}
	catalog, err := w.db.catalogFor(ctx, s.start)
	if err != nil {
		return err
	}
	for i := range page {
		f := &page[i]
		observers, now := known.registrations(f.cell.Table, f.cell.Column), catalog.registrations(f.cell.Table, f.cell.Column)
		if !observers.same(&now) {
			continue // the sweep of a new one may have begun: see currentView
		}
		if view := w.clearView(&rows[i], f.cell, observers, s.start, timely); view != nil {
			w.sortOutCell(f, view)
		}
	}
	return nil
}

// mostlyVain tells whether there is mostly nothing to do for the cells of a page.
func (w *Worker) mostlyVain(page []finding) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	sum, n := vain(0), vain(0)
	for i := range page {
		for _, q := range page[i].queues {
			sum += q.vain
			n++
		}
	}
	return n > 0 && sum/n > mostlyVain
}

// clearView is the view of a row that leaves nothing open; nil if something is: a lock, a timer, a
// change above the snapshot, or an answer in which something may be missing.
func (w *Worker) clearView(row *rowstore.Row, c Cell, observers registrations, at Timestamp, timely bool) *cellView {
	locked := slices.ContainsFunc(row.Versions, func(v rowstore.Version) bool { return v.Family == rowstore.Lock })
	if row.Err != nil || locked || !timely && row.Newest(rowstore.Write, c.Column) == nil || w.db.checkFound(at, c.span()) != nil {
		return nil
	}
	view, err := parseView(row, c, observers, at)
	if err != nil || view.later || view.change == 0 || view.timer.set {
		return nil
	}
	return view
}

// sortOutCell takes those observers out of a finding that have nothing to do yet.
func (w *Worker) sortOutCell(f *finding, view *cellView) {
	if f.seen == unread && len(view.notified) == 0 {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, q := range f.queues {
			q.noteVain(true)
		}
		f.queues = nil // as in attempt
		return
	}
	if view.othersCovered(-1) {
		return // a job clears the cell
	}
	w.skipUntilChanged(view)
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.signature(view)
	f.queues = slices.DeleteFunc(f.queues, func(q *queue) bool {
		i := slices.Index(view.names, q.o.id)
		if i < 0 {
			return false
		}
		due := view.due(i)
		q.noteVain(!due)
		if next := view.nextAttempt(i); !due && !view.covered(i) {
			j := job{f.cell, q.o}
			if !w.wanted(q, f.cell, seen) {
				return true // it was queued or paused meanwhile
			}
			if p := w.paused[j]; p != nil {
				w.dropPause(p)
			}
			w.pauseJob(&pausedJob{job: j, q: q, until: w.db.clock.Now().Add(view.atMost(next.Sub(view.at))), seen: seen, waits: true})
		}
		return !due
	})
}
