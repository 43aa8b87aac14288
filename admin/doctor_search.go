package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// What doctor looks for may stand behind much that is not it. So it goes on, in pages, until it knows; but not for ever: then it says that it cannot tell.
const (
	mostFirst   = 4000     // cells of a column
	firstBytes  = 16 << 20 // of their names
	mostTimers  = 4000     // entries of the index of a table
	searchPage  = 64       // cells that are read at once
	timersFirst = 100      // entries that are read at once, and those behind them
	timersPage  = 256
)

// spent tells that the searches of a look have taken all their time. Each search has its first page all the same.
func (d *doctor) spent() bool { return time.Now().After(d.until) }

// waitsLong looks for a change that an observer of a column with others has yet to see for longer than a bound. A notification stays until all observers of the column
// have seen the change, so those of any number of cells may wait for another one. change is 0 if there is none, or if told is false: then it cannot be
// told by the cells that were looked at.
func (d *doctor) waitsLong(ctx context.Context, cat *catalog, o *observed, bound Span) (change percolator.Timestamp, looked int, told bool, err error) {
	for page := range slices.Chunk(o.first, searchPage) {
		switch {
		case since(cat.now, page[0].oldest) <= bound: // so are all behind it
			return 0, looked, !o.AtLeast, nil
		case looked > 0 && d.spent():
			return 0, looked, false, nil
		}
		change, err := d.r.waitsSince(ctx, cat, o.of, page)
		if err != nil {
			return 0, looked, false, err
		}
		if change != 0 && since(cat.now, change) > bound {
			return change, looked, true, nil
		}
		looked += len(page)
	}
	return 0, looked, !o.AtLeast && !o.cut, nil
}

// untold says that it is not known whether changes wait for an observer. That is a note where workers run it: an observer beside it that is paused on purpose leaves as many notifications.
func (d *doctor) untold(o *observed, who, waits string, looked int) {
	const code = "observer-untold"
	what := fmt.Sprintf("%s, for it or for others of the column, and the %d that have waited for the longest all for others", waits, looked)
	const change = "see to the others first, then ask again; percolator why says of one cell what it waits for"
	if o.Workers == 0 && !o.Paused {
		d.risky(code, d.startOrRemove(o),
			"no worker runs %s, and it cannot be told whether changes wait for it: %s", who, what)
		return
	}
	d.note(code, change, "it cannot be told whether changes wait for %s for too long: %s", who, what)
}

// timerSearch is what was found among the timers of a table.
type timerSearch struct {
	looked     int
	stale      int // entries of timers that were cancelled or set anew
	unreadable int
	oldest     Span   // for how long the first stale one is due
	err        string // of the first one that cannot be read
	live       *Timer // the first one that its cell has
	young      bool   // one is not due, or not for long: so are all behind it
}

func (s *timerSearch) add(timers []Timer, bound Span) {
	s.looked += len(timers)
	for i := range timers {
		t := &timers[i]
		switch {
		case t.Unreadable:
			if s.unreadable++; s.err == "" {
				s.err = t.Error
			}
			continue
		case !t.Stale && s.live == nil:
			s.live = t
		case t.Stale:
			if s.stale++; s.stale == 1 {
				s.oldest = -t.In
			}
		}
		s.young = s.young || -t.In <= bound
	}
}

// timers looks for those that are due, and that no worker has told of.
func (d *doctor) timers(ctx context.Context) error {
	if d.cat == nil || !d.cat.Timers {
		return nil
	}
	var tables []string
	for k := range d.cat.observed {
		tables = append(tables, k[0])
	}
	slices.Sort(tables)
	d.until = time.Now().Add(pageTime)
	for _, table := range slices.Compact(tables) {
		if err := d.timersOf(ctx, table); err != nil {
			return fmt.Errorf("table %v: %w", public(table), err)
		}
	}
	return nil
}

// timersOf looks for the first timer of a table that its cell has: those that were cancelled, or set anew, stay in the index until a worker finds them due.
func (d *doctor) timersOf(ctx context.Context, table string) error {
	var s timerSearch
	bound, from, told := Span(d.o.Waiting), "", false
	for page := timersFirst; ; page = timersPage {
		timers, next, err := d.r.timers(ctx, d.cat, table, from, page)
		if err != nil {
			return err
		}
		s.add(timers, bound)
		if told = next == "" || s.live != nil || s.young; told || s.looked >= mostTimers || d.spent() {
			break
		}
		from = string(next)
	}
	if s.unreadable > 0 {
		d.risky("timer-unreadable", "percolator timers lists them; put the row back from a backup of the store, or remove it with the store's own tools and set the timer anew: docs/howto/erasing.md, what cannot be read",
			"%d of the first timers of table %v cannot be read, and workers leave them alone: %s", s.unreadable, public(table), s.err)
	}
	const start = "start a worker that has an observer of the table; workers of other tables do not fire its timers"
	switch {
	case s.live != nil && -s.live.In > bound:
		d.wrong("timer-overdue", start, "a timer of table %v has been due for %v, and no worker has told of it (%v)", public(table), -s.live.In, s.live.Cell)
	case told:
	case s.stale > 0:
		d.wrong("timers-untold", start, "no worker has dropped %d timers of table %v that were cancelled or set anew, the first one due for %v: nobody looks at them, and it cannot be told whether one behind them is overdue",
			s.stale, public(table), s.oldest)
	default:
		d.risky("timers-untold", "mend those first, then ask again", "the first %d timers of table %v cannot be read, and it cannot be told whether one behind them is overdue", s.looked, public(table))
	}
	return nil
}
