package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Parked is a parked run.
type Parked struct {
	Observer Bytes `json:"observer"`
	Cell
	Change   Stamp     `json:"change"`
	Attempts int       `json:"attempts"`
	At       time.Time `json:"at"`
	Age      Span      `json:"age"`
	Error    string    `json:"error"`
	// Unreadable tells that the record of the run does not decode, as Error says. Observer and Cell are those that the record's name has; they are empty where it is too
	// long to have them. Change, Attempts and At are zero. DB.Release and DB.DropParked take such a run if it has names.
	Unreadable bool `json:"unreadable,omitempty"`
}

// Run is the parked run as DB.Release and DB.DropParked take it.
func (p *Parked) Run() percolator.ParkedRun {
	return percolator.ParkedRun{Observer: string(p.Observer), Cell: p.Name(), Change: percolator.Timestamp(p.Change), Attempts: p.Attempts, Error: p.Error, At: p.At}
}

// Parked lists parked runs, also those of observers that were removed: up to limit of them, 100 for 0. observer
// narrows them to one, by any of its names, "" means all. It looks at 100 times as many parked runs at most. from is
// the next of the page before, "" for the first; an empty next is the end. A page may be empty and have a next. A run whose record does not decode is listed as
// Parked.Unreadable; one that does not say whose it is only for all observers.
func (r *Reader) Parked(ctx context.Context, observer string, from Bytes, limit int) (runs []Parked, next Bytes, err error) {
	limit, err = limited("Parked", limit, 100)
	if err != nil {
		return nil, "", called("Parked", err)
	}
	c, err := r.load(ctx)
	if err == nil {
		runs, next, err = r.parked(ctx, c, parkedAsk{observer: observer, from: string(from), limit: limit, rows: 100 * limit})
	}
	if err != nil {
		return nil, "", called("Parked", err)
	}
	return runs, next, nil
}

// ParkedRun finds a parked run by its cell and its observer, by any of its names, however many others there are. found is false if it is
// not parked. Empty names are percolator.ErrInvalid.
func (r *Reader) ParkedRun(ctx context.Context, observer string, of percolator.Cell) (run Parked, found bool, err error) {
	cell, err := stored(of)
	if err == nil && observer == "" {
		err = fmt.Errorf("%w: the observer's name is empty", percolator.ErrInvalid)
	}
	if err != nil {
		return Parked{}, false, called("ParkedRun", err)
	}
	c, err := r.load(ctx)
	if err != nil {
		return Parked{}, false, called("ParkedRun", err)
	}
	ids := []string{observer} // of one that was removed
	for _, o := range c.observed[[2]string{cell.Table, cell.Column}] {
		if o.Has(observer) {
			ids = append(ids, string(o.Name))
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	var reads []rowstore.RowRead
	for _, id := range ids {
		at := format.ParkedCell(id, format.Cell(cell))
		reads = append(reads, rowstore.RowRead{Table: at.Table, Row: at.Row, Selectors: parkedSelectors(c)})
	}
	rows, err := r.rows(ctx, reads)
	p := parkedPage{r: r, c: c, observer: observer, known: map[string]parkedName{}}
	for i := range rows {
		p.known[rows[i].Row] = parkedName{format.Cell(cell), ids[i]}
		if err == nil {
			err = p.add(ctx, &rows[i])
		}
	}
	if err == nil {
		err = p.flush(ctx)
	}
	if err != nil {
		return Parked{}, false, called("ParkedRun", fmt.Errorf("of observer %q for %v: %w", observer, of, err))
	}
	if len(p.runs) == 0 {
		return Parked{}, false, nil
	}
	return p.runs[0], true, nil
}

// parkedSelectors select what is read of a row of parked runs.
func parkedSelectors(c *catalog) []rowstore.Selector {
	return []rowstore.Selector{newest(rowstore.Lock, format.ColumnParked, c.now), newest(rowstore.Write, format.ColumnParked, c.now)}
}

// parkedAsk asks for a page of parked runs: limit of them at most, among rows rows of their table.
type parkedAsk struct {
	observer, from string
	limit, rows    int
}

// registration is an observer of a column, by its present name.
type registration struct{ observer, table, column Bytes }

// countParked counts up to limit parked runs, and looks at four times as many rows at most. Most rows say by their names whose they are, so no
// error that lies apart is read.
func (r *Reader) countParked(ctx context.Context, c *catalog, limit int) (counts map[registration]int, more bool, err error) {
	scan := rowstore.ScanRange{Table: format.TableParked, Limit: 4 * limit, Selectors: parkedSelectors(c)}
	counts = map[registration]int{}
	hashed := parkedPage{r: r, c: c}
	n, looked := 0, 0
	for row, err := range r.store.Scan(ctx, scan) {
		if more = err == nil && n+len(hashed.runs)+len(hashed.values) >= limit; more {
			break
		}
		looked++
		of, id, named := format.ParkedOf(row.Row)
		var v Value
		switch {
		case err != nil:
		case named:
			if v, _, err = r.value(ctx, &row, format.ColumnParked, c.now, c.now); errors.Is(err, percolator.ErrCorrupt) {
				v.Found, err = true, nil // it counts, as it is listed
			}
		default:
			err = hashed.add(ctx, &row)
		}
		if err != nil {
			return nil, false, fmt.Errorf("counting the parked runs: %w", err)
		}
		if v.Found {
			title, _ := hashed.titled(id, of.Table, of.Column)
			n++
			counts[registration{Bytes(title), public(of.Table), public(of.Column)}]++
		}
	}
	if err := hashed.flush(ctx); err != nil {
		return nil, false, fmt.Errorf("counting the parked runs: %w", err)
	}
	for i := range hashed.runs {
		counts[registration{hashed.runs[i].Observer, hashed.runs[i].Table, hashed.runs[i].Column}]++
	}
	return counts, more || looked == scan.Limit, nil
}

// parkedPage collects parked runs. Those whose record lies apart from its cell are read a few at a time.
type parkedPage struct {
	r        *Reader
	c        *catalog
	observer string
	runs     []Parked
	rows     []string // of runs
	values   []Value
	of       []string // the rows of values
	long     []longValue
	known    map[string]parkedName // what records are of, by their rows, where the rows do not say it
}

// parkedName is what a record of a parked run is of.
type parkedName struct {
	cell     format.Cell
	observer string // the name under which its records are stored
}

// nameOf is what the record in a row is of, as far as that is known without reading it.
func (p *parkedPage) nameOf(row string) (n parkedName, ok bool) {
	if n, ok = p.known[row]; ok {
		return n, true
	}
	n.cell, n.observer, ok = format.ParkedOf(row)
	return n, ok
}

func (r *Reader) parked(ctx context.Context, c *catalog, ask parkedAsk) (runs []Parked, next Bytes, err error) {
	scan := rowstore.ScanRange{Table: format.TableParked, From: ask.from, Limit: ask.rows, Selectors: parkedSelectors(c)}
	p := parkedPage{r: r, c: c, observer: ask.observer}
	looked, last := 0, ""
	for row, err := range r.store.Scan(ctx, scan) {
		if err == nil && len(p.runs)+len(p.values) > ask.limit {
			err = p.flush(ctx) // some of them may be parked no more, or another observer's
			if err == nil && len(p.runs) > ask.limit {
				break
			}
		}
		if err == nil {
			looked, last = looked+1, row.Row
			err = p.add(ctx, &row)
		}
		if err != nil {
			return nil, "", fmt.Errorf("listing the parked runs: %w", err)
		}
	}
	if err := p.flush(ctx); err != nil {
		return nil, "", fmt.Errorf("listing the parked runs: %w", err)
	}
	if len(p.runs) > ask.limit {
		return p.runs[:ask.limit], Bytes(p.rows[ask.limit]), nil
	}
	if looked == ask.rows {
		next = Bytes(last + "\x00")
	}
	return p.runs, next, nil
}

// titled is the present name of the observer of a stored column by the name under which its records are stored, and tells whether its runs are
// asked for.
func (p *parkedPage) titled(id, table, column string) (title string, wanted bool) {
	o := p.c.registered(id, table, column)
	if o == nil {
		return id, p.observer == "" || id == p.observer
	}
	title = o.Title()
	return title, p.observer == "" || title == p.observer || o.Has(p.observer)
}

// add takes a row of the table of parked runs. Where the row's name says that the run is another observer's, its record is not read.
func (p *parkedPage) add(ctx context.Context, row *rowstore.Row) error {
	if of, named := p.nameOf(row.Row); named {
		if _, wanted := p.titled(of.observer, of.cell.Table, of.cell.Column); !wanted {
			return nil
		}
	}
	v, apart, err := p.r.value(ctx, row, format.ColumnParked, p.c.now, p.c.now)
	if errors.Is(err, percolator.ErrCorrupt) {
		if ferr := p.flush(ctx); ferr != nil { // those before it come first
			return ferr
		}
		p.unreadable(row.Row, err)
		return nil
	}
	if err != nil || !v.Found {
		return err
	}
	if apart != 0 {
		p.long = append(p.long, longValue{len(p.values), format.Cell{Table: row.Table, Row: row.Row, Column: format.ColumnParked}, apart})
	}
	if p.values, p.of = append(p.values, v), append(p.of, row.Row); len(p.values) >= longPage {
		return p.flush(ctx)
	}
	return nil
}

// flush decodes the values that were collected.
func (p *parkedPage) flush(ctx context.Context) error {
	collected, err := p.r.fill(ctx, p.values, p.long)
	if err != nil {
		return err
	}
	for i := range p.values {
		if _, gone := collected[i]; gone { // it is parked no more
			continue
		}
		said, err := format.DecodeParked([]byte(p.values[i].Value))
		if err != nil {
			p.unreadable(p.of[i], err)
			continue
		}
		if title, wanted := p.titled(string(said.Observer), string(said.Table), string(said.Column)); wanted {
			p.rows = append(p.rows, p.of[i])
			p.runs = append(p.runs, Parked{
				Observer: Bytes(title), Cell: publicCell(said.Cell()), Change: Stamp(said.Change), Attempts: said.Attempts,
				At: said.At.Time().UTC(), Age: since(p.c.now, said.At), Error: said.Error,
			})
		}
	}
	p.values, p.of, p.long = nil, nil, nil
	return nil
}

// unreadable adds a run whose record does not decode, so that it hides no others.
func (p *parkedPage) unreadable(row string, err error) {
	run := Parked{Unreadable: true, Error: fmt.Sprintf("its record, row %v of the library's table of parked runs, cannot be read: %v", Bytes(row), err)}
	of, named := p.nameOf(row)
	title, wanted := p.titled(of.observer, of.cell.Table, of.cell.Column)
	if !wanted {
		return
	}
	if named {
		run.Observer, run.Cell = Bytes(title), publicCell(of.cell)
	}
	p.rows, p.runs = append(p.rows, row), append(p.runs, run)
}
