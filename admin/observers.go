package admin

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

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
	waiting, err := r.notified(ctx, c, limit)
	if err != nil {
		return nil, called("Observers", err)
	}
	runs, moreParked, err := r.parked(ctx, c, "", "", limit)
	if err != nil {
		return nil, called("Observers", err)
	}
	members, _, err := r.members(ctx, c, 1000)
	if err != nil {
		return nil, called("Observers", err)
	}
	list := make([]Observer, 0, len(c.Observers))
	for _, o := range c.Observers {
		w := waiting[[2]string{string(o.Table), string(o.Column)}]
		x := Observer{
			Name: Bytes(o.Title()), Aliases: asBytes(o.Others()), Table: public(string(o.Table)), Column: public(string(o.Column)), Since: Stamp(o.Since),
			Paused: o.Paused, Swept: o.Swept != 0, OldValues: o.OldValues, Notified: w.cells, AtLeast: w.atLeast, ParkedAtLeast: moreParked,
		}
		if w.cells > 0 {
			x.Oldest = since(c.now, w.oldest)
		}
		for _, p := range runs {
			if p.Observer == x.Name && p.Table == x.Table && p.Column == x.Column {
				x.Parked++
			}
		}
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
	slices.SortFunc(list, func(a, b Observer) int {
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
}

// notified counts the notified cells of all observed columns, up to limit rows of each table.
func (r *Reader) notified(ctx context.Context, c *catalog, limit int) (map[[2]string]*waiting, error) {
	found := map[[2]string]*waiting{}
	picks := map[string][]rowstore.Selector{}
	for k := range c.observed {
		found[k] = &waiting{oldest: c.now}
		picks[k[0]] = append(picks[k[0]], rowstore.Selector{Family: rowstore.Notify, Column: k[1], To: atMost})
	}
	for table, selectors := range picks {
		rows := 0
		for row, err := range r.scanNotified(ctx, table, selectors, limit) {
			if err != nil {
				return nil, fmt.Errorf("counting the notifications of %q: %w", public(table), err)
			}
			rows++
			last := ""
			for i := range row.Versions {
				v := &row.Versions[i]
				w := found[[2]string{table, v.Column}]
				if w.oldest = min(w.oldest, v.TS); v.Column != last || i == 0 {
					w.cells++
				}
				last = v.Column
			}
		}
		for k, w := range found {
			w.atLeast = w.atLeast || k[0] == table && rows == limit
		}
	}
	return found, nil
}

func (r *Reader) scanNotified(ctx context.Context, table string, picks []rowstore.Selector, limit int) iter.Seq2[rowstore.Row, error] {
	s := rowstore.ScanRange{Table: table, Selectors: picks, Limit: limit}
	if r.slots {
		s.Slots = []rowstore.SlotRange{{Last: rowstore.Slots - 1}}
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
// for 0. column narrows it to one, "" means all. more tells that there are others. Why says what each of them waits for.
func (r *Reader) Backlog(ctx context.Context, table, col string, limit int) (cells []Notified, more bool, err error) {
	limit, err = limited("Backlog", limit, 100)
	if err == nil && table == "" {
		err = fmt.Errorf("%w: the table's name is empty", percolator.ErrInvalid)
	}
	if err != nil {
		return nil, false, called("Backlog", err)
	}
	c, err := r.load(ctx)
	if err != nil {
		return nil, false, called("Backlog", err)
	}
	var picks []rowstore.Selector
	for k := range c.observed {
		if k[0] == format.Escape(table) && (col == "" || k[1] == format.Escape(col)) {
			picks = append(picks, rowstore.Selector{Family: rowstore.Notify, Column: k[1], To: atMost})
		}
	}
	if len(picks) == 0 {
		return nil, false, called("Backlog", fmt.Errorf("%w: table %q", percolator.ErrNotObserved, table))
	}
	for row, err := range r.scanNotified(ctx, format.Escape(table), picks, limit+1) {
		if err != nil {
			return nil, false, called("Backlog", err)
		}
		for i := 0; i < len(row.Versions); {
			n := i + 1
			for n < len(row.Versions) && row.Versions[n].Column == row.Versions[i].Column {
				n++
			}
			if len(cells) == limit {
				return cells, true, nil
			}
			v := &row.Versions[i]
			cells = append(cells, Notified{publicCell(format.Cell{Table: row.Table, Row: row.Row, Column: v.Column}), since(c.now, row.Versions[n-1].TS), n - i})
			i = n
		}
	}
	return cells, false, nil
}

// Parked is a parked run.
type Parked struct {
	Observer Bytes `json:"observer"`
	Cell
	Change   Stamp     `json:"change"`
	Attempts int       `json:"attempts"`
	At       time.Time `json:"at"`
	Age      Span      `json:"age"`
	Error    string    `json:"error"`
}

// Run is the parked run as DB.Release and DB.DropParked take it.
func (p *Parked) Run() percolator.ParkedRun {
	return percolator.ParkedRun{Observer: string(p.Observer), Cell: p.Name(), Change: percolator.Timestamp(p.Change), Attempts: p.Attempts, Error: p.Error, At: p.At}
}

// Parked lists parked runs, also those of observers that were removed: up to limit of them, 100 for 0. observer
// narrows them to one, by any of its names, "" means all. more tells that there may be others. It looks at 100 times as many parked runs at most.
func (r *Reader) Parked(ctx context.Context, observer string, limit int) (runs []Parked, more bool, err error) {
	limit, err = limited("Parked", limit, 100)
	if err != nil {
		return nil, false, called("Parked", err)
	}
	c, err := r.load(ctx)
	if err == nil {
		runs, more, err = r.parked(ctx, c, observer, "", limit)
	}
	if err != nil {
		return nil, false, called("Parked", err)
	}
	return runs, more, nil
}

func (r *Reader) parked(ctx context.Context, c *catalog, observer, from string, limit int) (runs []Parked, more bool, err error) {
	scan := rowstore.ScanRange{Table: format.TableParked, From: from, Limit: 100 * limit, Selectors: []rowstore.Selector{
		newest(rowstore.Lock, format.ColumnParked, c.now), newest(rowstore.Write, format.ColumnParked, c.now),
	}}
	looked := 0
	var long []longValue
	var values []Value
	add := func(b []byte) error {
		p, err := format.DecodeParked(b)
		if err != nil {
			return err
		}
		title := string(p.Observer)
		o := c.registered(title, string(p.Table), string(p.Column))
		if o != nil {
			title = o.Title()
		}
		if observer == "" || title == observer || o != nil && o.Has(observer) {
			runs = append(runs, Parked{
				Observer: Bytes(title), Cell: publicCell(p.Cell()), Change: Stamp(p.Change), Attempts: p.Attempts,
				At: p.At.Time().UTC(), Age: since(c.now, p.At), Error: p.Error,
			})
		}
		return nil
	}
	flush := func() error {
		_, err := r.fill(ctx, values, long)
		for i := range values {
			if err == nil && values[i].Value != "" { // else it was collected, so it is parked no more
				err = add([]byte(values[i].Value))
			}
		}
		values, long = nil, nil
		return err
	}
	for row, err := range r.store.Scan(ctx, scan) {
		if err != nil {
			return nil, false, fmt.Errorf("listing the parked runs: %w", err)
		}
		if looked++; len(runs)+len(values) > limit {
			break
		}
		v, apart, err := r.value(ctx, &row, format.ColumnParked, c.now, c.now)
		switch {
		case err != nil:
		case !v.Found:
			continue
		case apart != 0:
			long = append(long, longValue{len(values), format.Cell{Table: row.Table, Row: row.Row, Column: format.ColumnParked}, apart})
			fallthrough
		default:
			if values = append(values, v); len(values) >= longPage {
				err = flush()
			}
		}
		if err != nil {
			return nil, false, fmt.Errorf("listing the parked runs: %w", err)
		}
	}
	if err := flush(); err != nil {
		return nil, false, fmt.Errorf("listing the parked runs: %w", err)
	}
	if len(runs) > limit {
		return runs[:limit], true, nil
	}
	return runs, looked == 100*limit, nil
}

// Timer is a timer that waits, by what the index of its table says.
type Timer struct {
	Cell
	Due time.Time `json:"due"`
	In  Span      `json:"in"` // until then; less than 0 if it is due already
	// Stale tells that the index names a timer that the cell does not have any more, or has for another time. The
	// worker that finds it due drops it.
	Stale bool `json:"stale,omitempty"`
}

// Timers lists the timers of a table, in the order of their due times: up to limit of them, 100 for 0. more
// tells that there are others. One that was set for the next half minute is in no index, and is not listed: Why shows it.
func (r *Reader) Timers(ctx context.Context, table string, limit int) (timers []Timer, more bool, err error) {
	limit, err = limited("Timers", limit, 100)
	if err == nil && table == "" {
		err = fmt.Errorf("%w: the table's name is empty", percolator.ErrInvalid)
	}
	if err != nil {
		return nil, false, called("Timers", err)
	}
	c, err := r.load(ctx)
	if err == nil {
		timers, more, err = r.timers(ctx, c, format.Escape(table), limit)
	}
	if err != nil {
		return nil, false, called("Timers", fmt.Errorf("table %q: %w", table, err))
	}
	return timers, more, nil
}

func (r *Reader) timers(ctx context.Context, c *catalog, table string, limit int) (timers []Timer, more bool, err error) {
	if !c.Catalog.Timers {
		return nil, false, nil
	}
	type hint struct {
		due  percolator.Timestamp
		cell format.Cell
	}
	var hints []hint
	for shard := range byte(format.TimerShards) {
		scan := rowstore.ScanRange{
			Table: format.TimersTable(table), From: format.TimersBegin(shard), To: format.TimersBegin(shard + 1), Limit: limit + 1,
			Selectors: []rowstore.Selector{newest(rowstore.Write, format.ColumnTimer, atMost)},
		}
		for row, err := range r.store.Scan(ctx, scan) {
			if err != nil {
				return nil, false, err
			}
			due, err := format.TimerDue(row.Row)
			if err != nil {
				return nil, false, err
			}
			h, err := format.DecodeTimerHint(row.Versions[0].Value)
			if err != nil {
				return nil, false, err
			}
			hints = append(hints, hint{due, format.Cell{Table: table, Row: h.Row, Column: h.Column}})
		}
	}
	slices.SortStableFunc(hints, func(a, b hint) int { return cmp.Compare(a.due, b.due) })
	if more = len(hints) > limit; more {
		hints = hints[:limit]
	}
	for page := range slices.Chunk(hints, 256) {
		var reads []rowstore.RowRead
		for _, h := range page {
			col := format.TimerColumn(h.cell.Column)
			reads = append(reads, rowstore.RowRead{Table: table, Row: h.cell.Row, Selectors: []rowstore.Selector{newest(rowstore.Lock, col, atMost), newest(rowstore.Write, col, atMost)}})
		}
		rows, err := r.rows(ctx, reads)
		if err != nil {
			return nil, false, err
		}
		for i, h := range page {
			t := Timer{Cell: publicCell(h.cell), Due: h.due.Time().UTC(), In: since(h.due, c.now)}
			set, due, err := r.timerOf(ctx, &rows[i], h.cell, c.now)
			if err != nil {
				return nil, false, err
			}
			t.Stale = !set || due != h.due
			timers = append(timers, t)
		}
	}
	return timers, more, nil
}

// timerOf decodes the timer of a stored cell, in a row that was read with the lock and the newest write of its column.
func (r *Reader) timerOf(ctx context.Context, row *rowstore.Row, c format.Cell, now percolator.Timestamp) (set bool, due percolator.Timestamp, err error) {
	v, _, err := r.value(ctx, row, format.TimerColumn(c.Column), now, now)
	if err != nil || !v.Found {
		return false, 0, err
	}
	t, err := format.DecodeTimer([]byte(v.Value))
	return err == nil, t.Due, err
}
