package admin

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Observer is a registered observer, with what waits.
type Observer struct {
	Name Bytes `json:"name"`
	// Aliases are the names that it had before (percolator.DB.RenameObserver), the oldest first.
	Aliases []Bytes `json:"aliases,omitempty"`
	Table   Bytes   `json:"table"`
	Column  Bytes   `json:"column"`
	Since   Stamp   `json:"since"`
	Paused  bool    `json:"paused,omitempty"`
	// Swept tells that the data from before its registration was shown to it.
	Swept bool `json:"swept"`
	// OldValues tells that it gets changes with old values (percolator.Observer.OnChange).
	OldValues bool `json:"old_values,omitempty"`
	// Notified is how many cells of its column have notifications: of it, or of another observer of the column, or of
	// commits that are under way. Oldest is the age of the oldest of these.
	Notified int  `json:"notified"`
	AtLeast  bool `json:"at_least,omitempty"` // Notified was counted up to a limit
	Oldest   Span `json:"oldest,omitzero"`
	// Parked is how many of its runs are parked.
	Parked        int  `json:"parked"`
	ParkedAtLeast bool `json:"parked_at_least,omitempty"`
	// Workers is how many workers run it, and Places how many functions they run at once, together.
	Workers int `json:"workers"`
	Places  int `json:"places"`
}

// State says in a word or two what the observer does: "paused", "sweeping" (it is shown the data from before its registration), "no worker",
// or "running".
func (o *Observer) State() string {
	switch {
	case o.Paused:
		return "paused"
	case !o.Swept:
		return "sweeping"
	case o.Workers == 0:
		return "no worker"
	}
	return "running"
}

// Observers lists the registered observers with their backlog, by their names, tables and columns. It counts up to limit
// notified cells for each table, and as many parked runs, 10,000 for 0. What it costs is in proportion to
// these, not to the rows.
func (r *Reader) Observers(ctx context.Context, limit int) ([]Observer, error) {
	limit, err := limited("notified cells", limit, 10_000)
	if err != nil {
		return nil, called("Observers", err)
	}
	c, err := r.load(ctx)
	if err != nil {
		return nil, called("Observers", err)
	}
	found, err := r.observers(ctx, c, limit, 0)
	if err != nil {
		return nil, called("Observers", err)
	}
	list := make([]Observer, 0, len(found))
	for i := range found {
		list = append(list, found[i].Observer)
	}
	return list, nil
}

// observed is a registered observer with some of what it may have to see.
type observed struct {
	Observer
	of *format.Observer
	// first are its column's cells with the oldest notifications, the oldest first, and cut tells that there are others: see waiting.
	first []waitingCell
	cut   bool
}

// observers is Observers, by a catalog. Of a column with several observers it keeps the cells with the oldest notifications, up to first of them.
func (r *Reader) observers(ctx context.Context, c *catalog, limit, first int) ([]observed, error) {
	waiting, err := r.notified(ctx, c, limit, first)
	if err != nil {
		return nil, err
	}
	parked, moreParked, err := r.countParked(ctx, c, limit)
	if err != nil {
		return nil, err
	}
	members, _, err := r.members(ctx, c, "", 1000)
	if err != nil {
		return nil, err
	}
	list := make([]observed, 0, len(c.Observers))
	for i := range c.Observers {
		o := &c.Observers[i]
		w := waiting[[2]string{string(o.Table), string(o.Column)}]
		x := observed{of: o, first: w.first, cut: w.cut, Observer: Observer{
			Name: Bytes(o.Title()), Aliases: asBytes(o.Others()), Table: public(string(o.Table)), Column: public(string(o.Column)), Since: Stamp(o.Since),
			Paused: o.Paused, Swept: o.Swept != 0, OldValues: o.OldValues, Notified: w.cells, AtLeast: w.atLeast, ParkedAtLeast: moreParked,
		}}
		if w.cells > 0 {
			x.Oldest = since(c.now, w.oldest)
		}
		x.Parked = parked[registration{x.Name, x.Table, x.Column}]
		for i := range members {
			for _, work := range members[i].Works {
				if work.Observer == x.Name && work.Table == x.Table && work.Column == x.Column && members[i].Alive {
					x.Workers++
					x.Places += work.Weight
				}
			}
		}
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b observed) int {
		return strings.Compare(string(a.Name+"\x00"+a.Table+"\x00"+a.Column), string(b.Name+"\x00"+b.Table+"\x00"+b.Column))
	})
	return list, nil
}

func asBytes(names []string) (b []Bytes) {
	for _, name := range names {
		b = append(b, Bytes(name))
	}
	return b
}

// waiting is what waits in an observed column.
type waiting struct {
	cells   int
	atLeast bool
	oldest  percolator.Timestamp
	// first are those with the oldest notifications, once trim was called the oldest first. It is up to most of them, and of firstBytes; cut tells that there are others.
	first []waitingCell
	most  int
	bytes int
	cut   bool
}

type waitingCell struct {
	row    string
	oldest percolator.Timestamp
}

// add counts a cell, by its oldest notification.
func (w *waiting) add(row string, oldest percolator.Timestamp) {
	w.cells++
	w.oldest = min(w.oldest, oldest)
	if w.most == 0 {
		return
	}
	w.first = append(w.first, waitingCell{row, oldest})
	w.bytes += len(row)
	// Twice as many, so that they are not sorted for each one.
	if len(w.first) > 2*w.most || w.bytes > 2*firstBytes {
		w.trim()
	}
}

// trim sorts first, and cuts it.
func (w *waiting) trim() {
	slices.SortFunc(w.first, func(a, b waitingCell) int { return cmp.Compare(a.oldest, b.oldest) })
	n := 0
	w.bytes = 0
	for n < min(len(w.first), w.most) && (n == 0 || w.bytes+len(w.first[n].row) <= firstBytes) {
		w.bytes += len(w.first[n].row)
		n++
	}
	w.cut = w.cut || n < len(w.first)
	w.first = slices.Delete(w.first, n, len(w.first)) // which lets go of their names
}

// notified counts the notified cells of all observed columns, up to limit rows of each table. first is that of observers.
func (r *Reader) notified(ctx context.Context, c *catalog, limit, first int) (map[[2]string]*waiting, error) {
	found := map[[2]string]*waiting{}
	picks := map[string][]rowstore.Selector{}
	for k, observers := range c.observed {
		found[k] = &waiting{oldest: c.now}
		if len(observers) > 1 {
			found[k].most = first
		}
		picks[k[0]] = append(picks[k[0]], rowstore.Selector{Family: rowstore.Notify, Column: k[1], To: atMost})
	}
	for table, selectors := range picks {
		rows := 0
		for row, err := range r.scanNotified(ctx, table, selectors, "", limit) {
			if err != nil {
				return nil, fmt.Errorf("counting the notifications of %q: %w", public(table), err)
			}
			rows++
			for i := 0; i < len(row.Versions); {
				n := i + 1
				for n < len(row.Versions) && row.Versions[n].Column == row.Versions[i].Column {
					n++
				}
				found[[2]string{table, row.Versions[i].Column}].add(row.Row, row.Versions[n-1].TS) // the newest come first
				i = n
			}
		}
		for k, w := range found {
			w.atLeast = w.atLeast || k[0] == table && rows == limit
		}
	}
	for _, w := range found {
		w.trim()
	}
	return found, nil
}

// scanNotified visits the rows of a stored table with notifications that come after the row after, in the store's order of them. ""
// is the beginning.
func (r *Reader) scanNotified(ctx context.Context, table string, picks []rowstore.Selector, after string, limit int) iter.Seq2[rowstore.Row, error] {
	s := rowstore.ScanRange{Table: table, Selectors: picks, Limit: limit}
	if after != "" {
		s.From = after + "\x00"
	}
	if r.slots {
		s.Slots = []rowstore.SlotRange{{Last: rowstore.Slots - 1}}
		if after != "" {
			s.Slots[0].First = rowstore.Slot(table, after)
		}
	}
	return r.store.Scan(ctx, s)
}

// Notified is a cell with notifications.
type Notified struct {
	Cell
	Oldest Span `json:"oldest"`
	Count  int  `json:"count"` // of its notifications
}

// Backlog lists cells of a table's observed columns that have notifications, in no order of time: up to limit of them, 100
// for 0, and all of a row. column narrows it to one, "" means all. from is the next of the page before, "" for the first; an empty next
// is the end. Why says what each of them waits for.
func (r *Reader) Backlog(ctx context.Context, table, col string, from Bytes, limit int) (cells []Notified, next Bytes, err error) {
	if limit, err = limitedIn(table, "Backlog", limit); err != nil {
		return nil, "", called("Backlog", err)
	}
	c, err := r.load(ctx)
	if err != nil {
		return nil, "", called("Backlog", err)
	}
	var picks []rowstore.Selector
	for k := range c.observed {
		if k[0] == format.Escape(table) && (col == "" || k[1] == format.Escape(col)) {
			picks = append(picks, rowstore.Selector{Family: rowstore.Notify, Column: k[1], To: atMost})
		}
	}
	if len(picks) == 0 {
		return nil, "", called("Backlog", fmt.Errorf("%w: table %q", percolator.ErrNotObserved, table))
	}
	for row, err := range r.scanNotified(ctx, format.Escape(table), picks, string(from), limit+1) {
		if err != nil {
			return nil, "", called("Backlog", err)
		}
		if len(cells) >= limit {
			return cells, next, nil
		}
		next = Bytes(row.Row)
		for i := 0; i < len(row.Versions); {
			n := i + 1
			for n < len(row.Versions) && row.Versions[n].Column == row.Versions[i].Column {
				n++
			}
			v := &row.Versions[i]
			cells = append(cells, Notified{publicCell(format.Cell{Table: row.Table, Row: row.Row, Column: v.Column}), since(c.now, row.Versions[n-1].TS), n - i})
			i = n
		}
	}
	return cells, "", nil
}
