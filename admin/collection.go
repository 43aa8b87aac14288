package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Collection is how far garbage collection is.
type Collection struct {
	// SafePoint is the database's: history below it is gone, or may go. It is 0 before the first collection.
	SafePoint Stamp `json:"safe_point,omitzero"`
	Age       Span  `json:"age,omitzero"` // how long the safe point lies in the past
	Retention Span  `json:"retention"`
	// Behind is for how much longer than the retention history is kept: some of the time between two collections, or because of
	// a hold.
	Behind Span `json:"behind,omitzero"`
	// HeldBy names the hold that keeps the safe point where it is, "" if none does.
	HeldBy Bytes  `json:"held_by,omitzero"`
	Holds  []Hold `json:"holds,omitempty"`
	// Resolved says that all locks from below it are resolved. Swept is the safe point of the last collection that looked
	// at every row, 0 if there was none.
	Resolved Stamp `json:"resolved,omitzero"`
	Swept    Stamp `json:"swept,omitzero"`
	// Hinted tells that collections go by the hints of processes, and need not look at every row.
	Hinted bool `json:"hinted"`
	// Hints is how many hints wait, each of up to 1,024 rows, and Due how many of these are at or below the safe point that
	// a collection would publish now. AtLeast tells that they were counted up to a limit.
	Hints   int  `json:"hints"`
	Due     int  `json:"due"`
	AtLeast bool `json:"at_least,omitempty"`
	// Tables are those that have a safe point of their own.
	Tables []Table `json:"tables,omitempty"`
	// Lines say it in words.
	Lines []string `json:"lines,omitempty"`

	oldest percolator.Timestamp // the oldest of the hints that were counted
}

// hintBytes is how many bytes of hints are read at most for each that is to be counted: they hold the names of rows.
const hintBytes = 2 << 10

// Collection says how far garbage collection is. It counts up to limit hints, 10,000 for 0, and fewer where they are long: it reads two kilobytes for
// each at most, on the whole.
func (r *Reader) Collection(ctx context.Context, limit int) (Collection, error) {
	limit, err := limited("hints", limit, 10_000)
	if err != nil {
		return Collection{}, called("Collection", err)
	}
	c, err := r.load(ctx)
	if err != nil {
		return Collection{}, called("Collection", err)
	}
	g := Collection{
		SafePoint: Stamp(c.safe), Retention: ms(c.current.RetentionMs), Holds: c.standing(), Resolved: Stamp(c.resolved),
		Swept: Stamp(c.swept), Hinted: c.Hinted && c.HintsFrom != 0, oldest: c.now,
	}
	if c.safe != 0 {
		g.Age = since(c.now, c.safe)
	}
	collected := c.collected.Point(c.safe)
	g.Behind = Span(c.current.Overdue(c.now, collected))
	for _, h := range g.Holds {
		if h.Extra > 0 && (g.HeldBy == "" || h.At < g.Holds[slices.IndexFunc(g.Holds, func(o Hold) bool { return o.Name == g.HeldBy })].At) {
			g.HeldBy = h.Name
		}
	}
	for i := range c.current.Tables {
		t := &c.current.Tables[i]
		of := c.current.Of(string(t.Name))
		g.Tables = append(g.Tables, Table{
			Name: public(string(t.Name)), Retention: ms(of.RetentionMs), MaxTxnAge: ms(of.MaxTxnAgeMs), Set: true, SafePoint: Stamp(c.safePoint(string(t.Name))),
			behind: Span(c.current.TableOverdue(c.now, collected, string(t.Name), c.collected.TablePoint(c.points[string(t.Name)], c.pointsAt))),
		})
	}
	target := c.now.Add(-time.Duration(g.Retention))
	scan := rowstore.ScanRange{Table: format.TableHints, Limit: limit, Selectors: []rowstore.Selector{newest(rowstore.Write, format.ColumnHint, atMost)}}
	size := 0
	for row, err := range r.store.Scan(ctx, scan) {
		if err != nil {
			return Collection{}, called("Collection", fmt.Errorf("counting the hints: %w", err))
		}
		if g.Hints++; row.Versions[0].TS <= target {
			g.Due++
		}
		g.oldest = min(g.oldest, row.Versions[0].TS)
		if size += len(row.Versions[0].Value); size >= limit*hintBytes {
			g.AtLeast = true
			break
		}
	}
	g.AtLeast = g.AtLeast || g.Hints == limit
	g.Lines = g.words()
	return g, nil
}

func (g *Collection) words() []string {
	var lines []string
	if g.SafePoint == 0 {
		lines = append(lines, "nothing has been collected yet: workers collect, once the data is older than the retention, and so does percolator gc run")
	} else {
		lines = append(lines, fmt.Sprintf("history from before %s is gone or may go; that is %v ago, and the retention is %v", clock(g.SafePoint), g.Age, g.Retention))
	}
	switch {
	case g.HeldBy != "":
		lines = append(lines, fmt.Sprintf("the hold %q keeps history for longer than the retention; percolator holds release ends it", g.HeldBy))
	case g.Behind > g.Retention:
		lines = append(lines, fmt.Sprintf("the safe point is %v behind: perhaps no worker runs; percolator gc run collects now", g.Behind))
	}
	some := ""
	if g.AtLeast {
		some = "at least "
	}
	return append(lines, fmt.Sprintf("%s%d hints of garbage wait, %d of them for the next collection", some, g.Hints, g.Due))
}

// Size is how large a table is.
type Size struct {
	Table Bytes `json:"table"`
	Own   bool  `json:"own,omitempty"`
	// Rows are those with versions of any kind. Bytes are their keys, columns and newest values, without history, indexes and what
	// the database adds. Both are exact if AtLeast is not set; else they are of the first rows of the table.
	Rows    int   `json:"rows"`
	Bytes   int64 `json:"bytes"`
	AtLeast bool  `json:"at_least,omitempty"`
}

// Sizes counts the tables' rows and bytes, up to rows in each table, 10,000 for 0, and in all tables for at most two
// seconds: no store counts rows but by reading them. own asks for the library's own tables too. more tells that there are more
// than 1,000 tables.
func (r *Reader) Sizes(ctx context.Context, own bool, rows int) (sizes []Size, more bool, err error) {
	if rows, err = limited("rows", rows, 10_000); err != nil {
		return nil, false, called("Sizes", err)
	}
	tables, more, err := r.Tables(ctx, own, 0)
	if err != nil {
		return nil, false, called("Sizes", err)
	}
	began := time.Now()
	for _, t := range tables {
		stored := format.Escape(string(t.Name))
		if t.Own {
			stored = string(t.Name)
		}
		s, err := r.size(ctx, stored, rows, began)
		if err != nil {
			return nil, false, called("Sizes", fmt.Errorf("table %v: %w", t.Name, err))
		}
		s.Table, s.Own = t.Name, t.Own
		sizes = append(sizes, s)
	}
	return sizes, more, nil
}

func (r *Reader) size(ctx context.Context, table string, rows int, began time.Time) (s Size, err error) {
	scan := rowstore.ScanRange{Table: table, Limit: rows + 1, Selectors: []rowstore.Selector{newest(rowstore.Write, rowstore.AllColumns, atMost), newest(rowstore.Data, rowstore.AllColumns, atMost)}}
	for row, err := range r.store.Scan(ctx, scan) {
		if err != nil {
			return s, err
		}
		if s.Rows == rows || time.Since(began) > pageTime {
			s.AtLeast = true
			break
		}
		s.Rows++
		s.Bytes += int64(len(row.Row))
		for i := range row.Versions {
			s.Bytes += int64(len(row.Versions[i].Column) + len(row.Versions[i].Value))
		}
	}
	return s, nil
}
