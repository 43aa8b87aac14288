package percolator

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// How DB.Erase waits for the observers: it looks at the notified cells of the range, a page at a time. A page whose cells all observers have
// seen is not looked at again before the end of the range is reached; then the range is looked at once more, from its beginning.
//
// Who has seen a cell as of the deletion, or later, is not waited for, whatever has come since: a timer may be set anew by each run. What is written
// since stays in any case, and what only notifies is in the way of removeRows.

// awaitedPage is how many notified cells are looked at together, about: rows are looked at as a whole.
const awaitedPage = 128

// awaitObservers returns when every observer has seen what had happened in the range by e.seen. It clears the notifications that nobody waits for any more.
func (e *erasure) awaitObservers(ctx context.Context) error {
	pause := Backoff{Min: time.Millisecond, Max: 100 * time.Millisecond}
	var waits []string
	for attempt, from := 0, e.span.from; ; attempt++ {
		began := from
		now, at, err := e.uncovered(ctx, from)
		switch {
		case err != nil:
		case len(now) > 0:
			waits, from = now, at
			err = e.db.clock.Sleep(ctx, pause.wait(attempt, e.db.rand))
		case began == e.span.from:
			return nil
		default:
			from = e.span.from // for what has changed behind this look
		}
		switch {
		case err != nil && len(waits) > 0 && ctx.Err() != nil:
			return fmt.Errorf("waiting until these observers have seen the deletions, which workers must run: %s: %w", strings.Join(waits, ", "), err)
		case err != nil:
			return err
		}
	}
}

// uncovered looks at the notified cells from a row on, and clears the notifications that all have seen. It stops at the first page in which
// observers have something to see. It names these, and the row at which to go on.
func (e *erasure) uncovered(ctx context.Context, from string) (names []string, at string, err error) {
	v, err := e.db.loadCatalog(ctx)
	if err != nil {
		return nil, "", err
	}
	for i := range v.Observers {
		if o := &v.Observers[i]; string(o.Table) == e.span.table && o.Swept == 0 {
			names = append(names, fmt.Sprintf("%q", o.Title())) // its sweep may notify any row
		}
	}
	at = from
	var page []Cell
	look := func() error {
		more, err := e.look(ctx, v, page)
		if names = append(names, more...); len(more) == 0 && len(page) > 0 {
			at = page[len(page)-1].Row + "\x00"
		}
		page = page[:0]
		return err
	}
	picks := []rowstore.Selector{{Family: rowstore.Notify, Column: rowstore.AllColumns, To: oracle.Max, Limit: 1}}
	for row, err := range e.scan(ctx, rowstore.ScanRange{Table: e.span.table, From: from, To: e.span.to, Selectors: picks}) {
		if err != nil {
			return nil, "", fmt.Errorf("looking for notifications: %w", err)
		}
		for column := range notifiedColumns(&row) {
			// Those of a column that nobody observes go with the row.
			if len(v.observers(row.Table, column)) > 0 {
				page = append(page, Cell{row.Table, row.Row, column})
			}
		}
		if len(page) < awaitedPage {
			continue
		}
		if err := look(); err != nil {
			return nil, "", err
		}
		if len(names) > 0 {
			break
		}
	}
	if err := look(); err != nil {
		return nil, "", err
	}
	slices.Sort(names)
	return slices.Compact(names), at, nil
}

// look names the observers of notified cells that have yet to see them. It clears the notifications of cells that all have seen, unless a timer waits.
func (e *erasure) look(ctx context.Context, v *catalogView, cells []Cell) (names []string, err error) {
	if len(cells) == 0 {
		return nil, nil
	}
	views, blocked, err := e.views(ctx, cells)
	switch {
	case errors.Is(err, ErrSnapshotTooOld): // of a snapshot that was drawn a moment ago
		return []string{"another call of Erase"}, nil
	case err != nil:
		return nil, err
	case blocked:
		names = append(names, "a transaction that commits")
	}
	var cleared []rowstore.Mutation
	for _, view := range views {
		waits, err := e.waitsFor(v, view)
		if err != nil {
			return nil, err
		}
		names = append(names, waits...)
		if !view.othersCovered(-1) || view.waits() || len(view.seen) == 0 {
			continue
		}
		edits := view.removal()
		row := view.cell.rowName()
		if most := e.db.fitting(len(row.table)+len(row.row), edits); len(edits) > most {
			// The first ones go with those of other cells.
			if _, err := e.db.removeNotifications(ctx, row, edits[most:]); err != nil && !mayAskAgain(err) {
				return nil, fmt.Errorf("clearing notifications: %w", err)
			}
			edits = edits[:most]
		}
		if last := len(cleared) - 1; last >= 0 && cleared[last].Row == row.row && e.db.alsoFits(&cleared[last], edits) {
			cleared[last].Edits = append(cleared[last].Edits, edits...)
			continue
		} else if last >= 0 && cleared[last].Row == row.row {
			continue // in the next round
		}
		cleared = append(cleared, rowstore.Mutation{Table: row.table, Row: row.row, Edits: edits})
	}
	if len(cleared) == 0 {
		return names, nil
	}
	outs, err := e.db.store.Apply(ctx, cleared, rowstore.ApplyOptions{})
	for i := range outs {
		if err == nil && !mayAskAgain(outs[i].Err) {
			err = outs[i].Err
		}
	}
	if err != nil && !mayAskAgain(err) {
		return nil, fmt.Errorf("clearing notifications: %w", err)
	}
	return names, nil
}

// waitsFor names the observers that have yet to see a cell. One that will not see it before somebody does something is an error.
func (e *erasure) waitsFor(v *catalogView, view *cellView) (names []string, err error) {
	c := view.cell
	for i, id := range view.names {
		title := v.titleOf(id, c.Table, c.Column)
		switch f := &view.failures[i]; {
		case view.covered(i) && f.Parked:
			return nil, &ParkedError{ParkedRun{Observer: title, Cell: c.public(), Change: f.Change, Attempts: f.Attempts}}
		case view.covered(i), view.acks[i] >= e.seen:
		case v.paused(id, c):
			return nil, fmt.Errorf("%w: %q has yet to see %v", ErrObserverPaused, title, c.public())
		default:
			names = append(names, fmt.Sprintf("%q", title))
		}
	}
	return names, nil
}

// views is Worker.view for some cells, at one snapshot that is drawn for all of them. Where the owner of a lock in the way lives, there is no view. blocked
// tells that this is so for a cell of which not every observer has seen the deletion.
func (e *erasure) views(ctx context.Context, cells []Cell) (views []*cellView, blocked bool, err error) {
	at, err := e.db.draw(ctx)
	if err != nil {
		return nil, false, err
	}
	catalog, err := e.db.catalogFor(ctx, at)
	if err != nil {
		return nil, false, err
	}
	known := make([]registrations, len(cells))
	reads := make([]rowstore.RowRead, len(cells))
	for i, c := range cells {
		known[i] = catalog.registrations(c.Table, c.Column)
		reads[i] = viewRead(c, known[i], at)
	}
	rows, err := e.db.readRows(ctx, reads)
	if err != nil {
		return nil, false, fmt.Errorf("looking at notified cells: %w", err)
	}
	w := &Worker{db: e.db}
	var missing []span
	for i, c := range cells {
		resolved, waits, err := w.resolveLocks(ctx, &rows[i], c, nil)
		var view *cellView
		switch {
		case err != nil:
			return nil, false, err
		case resolved:
			view, waits, err = w.view(ctx, c, nil, known[i], &snapshot{set: true, start: at})
		default:
			view, err = parseView(&rows[i], c, known[i], at)
			switch {
			case err != nil:
			case waits:
				// Runs may come one after the other, so that each look at a page meets one of their locks.
				waits, view = slices.ContainsFunc(view.acks, func(seen Timestamp) bool { return seen < e.seen }), nil
			case rows[i].Newest(rowstore.Write, c.Column) == nil:
				missing = append(missing, c.span())
			}
		}
		if err != nil {
			return nil, false, fmt.Errorf("%v: %w", c.public(), err)
		}
		if blocked = blocked || waits; view != nil {
			views = append(views, view)
		}
	}
	whole := span{table: e.span.table, from: cells[0].Row, to: cells[len(cells)-1].Row + "\x00"}
	if err := e.db.checkFound(at, whole); err != nil {
		return nil, false, err
	}
	if len(missing) > 0 {
		err = e.db.checkSnapshot(ctx, at, missing...)
	}
	return views, blocked, err
}

// rowsFound counts rows in which an erasure has found anything. Of each it keeps a hash, eight bytes.
type rowsFound struct {
	seed   maphash.Seed
	hashes []uint64
}

func newRowsFound() rowsFound { return rowsFound{seed: maphash.MakeSeed()} }

// add may be told of a row in each round. Before it takes more room it looks for what it has twice.
func (f *rowsFound) add(row string) {
	if len(f.hashes) == cap(f.hashes) {
		f.compact()
		f.hashes = slices.Grow(f.hashes, len(f.hashes)+1)
	}
	f.hashes = append(f.hashes, maphash.String(f.seed, row))
}

func (f *rowsFound) compact() {
	slices.Sort(f.hashes)
	f.hashes = slices.Compact(f.hashes)
}

// without counts the rows, each once, but for some.
func (f *rowsFound) without(rows map[string]bool) (n int64) {
	f.compact()
	n = int64(len(f.hashes))
	for row := range rows {
		if _, found := slices.BinarySearch(f.hashes, maphash.String(f.seed, row)); found {
			n--
		}
	}
	return n
}
