package admin

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Reader looks into a database. Its methods may be called concurrently. Errors match those of packages
// percolator and rowstore: percolator.ErrInvalid and ErrTooLarge for bad arguments, ErrNoStore where no program has
// made a database yet, ErrFormat for data that a newer program wrote, ErrCorrupt for damaged data,
// rowstore.ErrUnavailable, percolator.ErrClosed, and the context's.
type Reader struct {
	store source
	now   func(ctx context.Context) (percolator.Timestamp, error)
	slots bool // the store finds notifications by slots
	// report asks the store to describe itself. It is nil where the store cannot.
	report    func(ctx context.Context) (rowstore.Report, error)
	ownOracle bool // timestamps come from the store's oracle, whatever the catalog says
}

// source is what a Reader may do with a store.
type source interface {
	Read(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error)
	Scan(ctx context.Context, s rowstore.ScanRange) iter.Seq2[rowstore.Row, error]
	Tables(ctx context.Context) iter.Seq2[string, error]
}

// New makes a Reader over a store that has an oracle of its own. It makes nothing in the store, and the caller closes it.
// A store that is nil or has no oracle is ErrInvalid.
func New(store rowstore.Store) (*Reader, error) {
	if store == nil {
		return nil, fmt.Errorf("admin: New: %w: the store is nil", percolator.ErrInvalid)
	}
	p, ok := rowstore.Unwrap[rowstore.OracleProvider](store)
	if !ok {
		return nil, fmt.Errorf("admin: New: %w: the store has no oracle of its own; use Of", percolator.ErrInvalid)
	}
	o := p.Oracle()
	r := over(store, func(ctx context.Context) (percolator.Timestamp, error) {
		ts, err := o.Draw(ctx, 1)
		if err != nil {
			return 0, fmt.Errorf("drawing a timestamp: %w", err)
		}
		return ts, nil
	})
	r.ownOracle = true
	return r, nil
}

// Of makes a Reader of the database that db has open, whose oracle it uses. A nil db is ErrInvalid.
func Of(db *percolator.DB) (*Reader, error) {
	if db == nil {
		return nil, fmt.Errorf("admin: Of: %w: the DB is nil", percolator.ErrInvalid)
	}
	return over(db.Store(), db.Now), nil
}

func over(store rowstore.Store, now func(context.Context) (percolator.Timestamp, error)) *Reader {
	_, slots := rowstore.Unwrap[rowstore.SlotScanner](store)
	r := &Reader{store: store, now: now, slots: slots}
	if about, ok := rowstore.Unwrap[rowstore.Reporter](store); ok {
		r.report = about.Report
	}
	return r
}

// mostRows bounds what any call looks at, whatever its arguments say.
const mostRows = 1_000_000

// limited is a limit that a caller gave, or the default for 0.
func limited(what string, limit, def int) (int, error) {
	switch {
	case limit < 0 || limit > mostRows:
		return 0, fmt.Errorf("%w: the limit of %s is %d; it must lie between 0 and %d", percolator.ErrInvalid, what, limit, mostRows)
	case limit == 0:
		return def, nil
	}
	return limit, nil
}

// limitedIn is limited, for a call that looks at one table.
func limitedIn(table, what string, limit int) (int, error) {
	if table == "" {
		return 0, fmt.Errorf("%w: the table's name is empty", percolator.ErrInvalid)
	}
	return limited(what, limit, 100)
}

// rows is Read, with the first error of any row.
func (r *Reader) rows(ctx context.Context, reads []rowstore.RowRead) ([]rowstore.Row, error) {
	if len(reads) == 0 {
		return nil, nil
	}
	rows, err := r.store.Read(ctx, reads)
	if err != nil {
		return nil, err
	}
	for i := range rows {
		if rows[i].Err != nil {
			return nil, rows[i].Err
		}
	}
	return rows, nil
}

// newest selects the newest version of a column up to a timestamp.
func newest(f rowstore.Family, column string, to percolator.Timestamp) rowstore.Selector {
	return rowstore.Selector{Family: f, Column: column, To: to, Limit: 1}
}

// stored returns the stored names of a user's cell, and refuses names that are empty.
func stored(c percolator.Cell) (percolator.Cell, error) {
	if c.Table == "" || c.Row == "" || c.Column == "" {
		return c, fmt.Errorf("%w: a part of the cell %q is empty", percolator.ErrInvalid, c.String())
	}
	return percolator.Cell{Table: format.Escape(c.Table), Row: c.Row, Column: format.Escape(c.Column)}, nil
}

// public returns the user's name of a stored table or column. The library's own names stay as they are.
func public(name string) Bytes {
	if s, ok := format.Unescape(name); ok {
		return Bytes(s)
	}
	return Bytes(name)
}

func publicCell(c format.Cell) Cell { return Cell{public(c.Table), Bytes(c.Row), public(c.Column)} }

// column splits a stored column of a stored table into the user's column and what the library keeps there for it: "", or
// what stands beside it, with the name that the observer has now.
func (c *catalog) column(table, stored string) (user string, beside string) {
	if of, ok := format.SplitTimerColumn(stored); ok {
		return of, "timer"
	}
	if prefix, observer, of, ok := format.SplitOwnColumn(stored); ok {
		what := "acknowledgment"
		if prefix == format.PrefixFailure {
			what = "failure record"
		}
		for _, o := range c.observed[[2]string{table, of}] {
			if string(o.Name) == observer {
				observer = o.Title()
			}
		}
		return of, fmt.Sprintf("%s of the observer %q", what, observer)
	}
	return stored, ""
}

// since is how long before now a timestamp lies.
func since(now, ts percolator.Timestamp) Span { return Span(now.Sub(ts)) }

// atMost is the whole of a column's timestamps.
const atMost = oracle.Max

func called(what string, err error) error { return fmt.Errorf("admin: %s: %w", what, err) }

// page bounds one answer in time too, where rows that nobody asked for may lie between those that are.
const pageTime = 2 * time.Second
