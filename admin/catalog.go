package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Settings are those of the database in force, and the change that is pending, if any.
type Settings struct {
	MaxTxnAge    Span `json:"max_txn_age"`
	Retention    Span `json:"retention"`
	CatalogLease Span `json:"catalog_lease"`
}

// Overview is what the catalog says: one read.
type Overview struct {
	Now     Stamp  `json:"now"`
	Oracle  string `json:"oracle,omitempty"` // "" is the store's own
	Version int    `json:"version"`          // of the catalog's format
	Settings
	// Next are settings that are pending, and NextFrom says since when they hold, 0 while that is not known.
	Next      *Settings `json:"next,omitempty"`
	NextFrom  Stamp     `json:"next_from,omitzero"`
	Observers int       `json:"observers"`
	// Processes that have the database open, or have died without closing it.
	Processes int   `json:"processes"`
	SafePoint Stamp `json:"safe_point,omitzero"`
}

// catalog is what one read of the catalog's row shows.
type catalog struct {
	format.Catalog
	now, revision        percolator.Timestamp
	version              int
	safe, safeAt         percolator.Timestamp
	resolved, swept      percolator.Timestamp
	collected            format.Collected
	points               map[string]format.TableSafePoint
	pointsAt             percolator.Timestamp // their version
	erased               []format.ErasedRange
	holds                []format.Hold
	processes, condemned int
	old                  int                             // processes whose programs know no catalog of version 5
	lagging              []percolator.Timestamp          // the revisions that processes go by and that are not the newest
	observed             map[[2]string][]format.Observer // by stored table and column
	current              format.Settings                 // in force at now
}

// load reads the catalog, after it has drawn a timestamp.
func (r *Reader) load(ctx context.Context) (*catalog, error) {
	rows, err := r.rows(ctx, []rowstore.RowRead{catalogRead()})
	if err != nil {
		return nil, fmt.Errorf("reading the catalog: %w", err)
	}
	config := rows[0].Newest(rowstore.Write, format.ColumnConfig)
	if config == nil {
		return nil, fmt.Errorf("reading the catalog: %w: no program has made a database here", percolator.ErrNoStore)
	}
	// A draw may write, so it comes when there certainly is a database.
	now, err := r.now(ctx)
	if err != nil {
		return nil, err
	}
	return parseCatalog(&rows[0], now)
}

func catalogRead() rowstore.RowRead {
	read := rowstore.RowRead{Table: format.TableCatalog, Row: format.RowCatalog, Selectors: []rowstore.Selector{
		newest(rowstore.Mark, rowstore.AllColumns, atMost),
	}}
	for _, c := range []string{format.ColumnConfig, format.ColumnSafePoint, format.ColumnOfTables, format.ColumnHolds, format.ColumnResolved, format.ColumnSwept, format.ColumnErased, format.ColumnCollected} {
		read.Selectors = append(read.Selectors, newest(rowstore.Write, c, atMost))
	}
	return read
}

func parseCatalog(row *rowstore.Row, now percolator.Timestamp) (*catalog, error) {
	config := row.Newest(rowstore.Write, format.ColumnConfig)
	value, _ := format.RaiseCatalog(config.Value)
	decoded, err := format.DecodeCatalog(value)
	if err != nil {
		return nil, fmt.Errorf("reading the catalog: %w", err)
	}
	c := &catalog{Catalog: decoded, now: now, revision: config.TS, version: int(config.Value[0]), observed: map[[2]string][]format.Observer{}, points: map[string]format.TableSafePoint{}}
	c.current = c.Current
	if c.Next != nil && c.NextFrom != 0 && c.NextFrom <= now {
		c.current = *c.Next
	}
	for _, o := range c.Observers {
		k := [2]string{string(o.Table), string(o.Column)}
		c.observed[k] = append(c.observed[k], o)
	}
	for i := range row.Versions {
		v := &row.Versions[i]
		switch {
		case v.Family == rowstore.Mark:
			if use, err := format.DecodeUse(v.Value); err == nil && v.Column != format.UseOfVersion1 {
				c.uses(v.Column, use)
			}
		case v.Column == format.ColumnSafePoint:
			c.safe = v.TS
		case v.Column == format.ColumnResolved:
			c.resolved = v.TS
		case v.Column == format.ColumnSwept:
			c.swept = v.TS
		case v.Column == format.ColumnCollected:
			var err error
			if c.collected, err = format.DecodeCollected(v.Value); err != nil {
				return nil, fmt.Errorf("reading the catalog: %w", err)
			}
		case v.Column == format.ColumnErased:
			e, err := format.DecodeErased(v.Value)
			if err != nil {
				return nil, fmt.Errorf("reading the catalog: %w", err)
			}
			c.erased = e.Ranges
		case v.Column == format.ColumnOfTables:
			c.pointsAt = v.TS
			points, err := format.DecodeTableSafePoints(v.Value)
			if err != nil {
				return nil, fmt.Errorf("reading the catalog: %w", err)
			}
			for _, p := range points.Tables {
				c.points[string(p.Name)] = p
			}
		case v.Column == format.ColumnHolds:
			holds, err := format.DecodeHolds(v.Value)
			if err != nil {
				return nil, fmt.Errorf("reading the catalog: %w", err)
			}
			c.holds = slices.DeleteFunc(holds.Holds, func(h format.Hold) bool { return h.Until < now })
		}
	}
	return c, nil
}

// uses takes what one process says of the catalog that it goes by.
func (c *catalog) uses(column string, use format.Use) {
	if c.processes++; use.Condemned {
		c.condemned++
	}
	if !strings.HasPrefix(column, format.UsePrefix) {
		c.old++
	}
	if use.Revision < c.revision {
		c.lagging = append(c.lagging, use.Revision)
	}
}

// safePoint is that of a stored table.
func (c *catalog) safePoint(table string) percolator.Timestamp {
	return max(c.safe, c.points[table].SafePoint)
}

// safePointIn is that of rows of a stored table, from from to to. An empty to is the end of the table.
func (c *catalog) safePointIn(table, from, to string) percolator.Timestamp {
	safe := c.safePoint(table)
	for i := range c.erased {
		e := &c.erased[i]
		if string(e.Table) == table && (len(e.To) == 0 || from < string(e.To)) && (to == "" || string(e.From) < to) {
			safe = max(safe, e.SafePoint)
		}
	}
	return safe
}

func ms(n int64) Span { return Span(time.Duration(n) * time.Millisecond) }

func settingsOf(s *format.Settings) Settings {
	return Settings{MaxTxnAge: ms(s.MaxTxnAgeMs), Retention: ms(s.RetentionMs), CatalogLease: ms(s.CatalogLeaseMs)}
}

// Overview reads what the catalog says.
func (r *Reader) Overview(ctx context.Context) (Overview, error) {
	c, err := r.load(ctx)
	if err != nil {
		return Overview{}, called("Overview", err)
	}
	o := Overview{
		Now: Stamp(c.now), Oracle: c.Oracle, Version: c.version, Settings: settingsOf(&c.current),
		Observers: len(c.Observers), Processes: c.processes, SafePoint: Stamp(c.safe),
	}
	if c.Next != nil && (c.NextFrom == 0 || c.NextFrom > c.now) {
		next := settingsOf(c.Next)
		o.Next, o.NextFrom = &next, Stamp(c.NextFrom)
	}
	return o, nil
}

// Table describes a table.
type Table struct {
	Name Bytes `json:"name"`
	// Own tells that the table is the library's own. It is listed only if that was asked for.
	Own       bool `json:"own,omitempty"`
	Observers int  `json:"observers"`
	// Retention and MaxTxnAge are those in force, and Set tells that the table has some of its own.
	Retention Span  `json:"retention"`
	MaxTxnAge Span  `json:"max_txn_age"`
	Set       bool  `json:"set,omitempty"`
	SafePoint Stamp `json:"safe_point,omitzero"`
	// Empty tells that the table holds nothing yet, or nothing any more: it is known by its settings or observers alone.
	Empty bool `json:"empty,omitempty"`

	behind Span // for how much longer than its retention history is kept
}

// Tables lists the tables that hold anything, or that the catalog knows, by their names: at most limit of them, 1,000 for
// 0. own asks for the library's own too. more tells that there are others. If the store's list ends with an error, the tables before it
// are returned together with that: something in the store that is no table hides none.
func (r *Reader) Tables(ctx context.Context, own bool, limit int) (tables []Table, more bool, err error) {
	if limit, err = limited("Tables", limit, 1000); err != nil {
		return nil, false, called("Tables", err)
	}
	c, err := r.load(ctx)
	if err != nil {
		return nil, false, called("Tables", err)
	}
	held := map[string]bool{}
	var failed error
	for name, err := range r.store.Tables(ctx) {
		if err != nil {
			failed = called("Tables", fmt.Errorf("listing the tables: %w", err))
			break
		}
		if format.Reserved(name) && !own {
			continue
		}
		if len(held) == limit {
			more = true
			break
		}
		held[name] = true
	}
	names := make([]string, 0, len(held))
	for name := range held {
		names = append(names, name)
	}
	for k := range c.observed {
		names = append(names, k[0])
	}
	for i := range c.current.Tables {
		names = append(names, string(c.current.Tables[i].Name))
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		of := c.current.Of(name)
		t := Table{
			Name: public(name), Own: format.Reserved(name), Retention: ms(of.RetentionMs), MaxTxnAge: ms(of.MaxTxnAgeMs),
			Set: c.current.Own(name) != nil, SafePoint: Stamp(c.safePoint(name)), Empty: !held[name] && !more && failed == nil,
		}
		for k, o := range c.observed {
			if k[0] == name {
				t.Observers += len(o)
			}
		}
		tables = append(tables, t)
	}
	return tables, more, failed
}

// Hold is a hold that stands.
type Hold struct {
	Name   Bytes `json:"name"`
	At     Stamp `json:"at"` // which no safe point passes
	Placed Stamp `json:"placed"`
	Until  Stamp `json:"until"`
	Age    Span  `json:"age"` // how long At lies in the past
	Left   Span  `json:"left"`
	// Extra is for how much longer than the retention the hold keeps history.
	Extra Span `json:"extra,omitzero"`
}

// Holds lists the holds that stand, by their names.
func (r *Reader) Holds(ctx context.Context) ([]Hold, error) {
	c, err := r.load(ctx)
	if err != nil {
		return nil, called("Holds", err)
	}
	return c.standing(), nil
}

func (c *catalog) standing() []Hold {
	var holds []Hold
	for _, h := range c.holds {
		age := since(c.now, h.At)
		holds = append(holds, Hold{
			Name: Bytes(h.Name), At: Stamp(h.At), Placed: Stamp(h.Placed), Until: Stamp(h.Until), Age: age,
			Left: since(h.Until, c.now), Extra: max(0, age-ms(c.current.RetentionMs)),
		})
	}
	return holds
}

// registered finds an observer of a stored column by the name under which its records are stored. It is nil if there is none.
func (c *catalog) registered(id, table, column string) *format.Observer {
	for i := range c.Observers {
		if o := &c.Observers[i]; o.Is(id, table, column) {
			return o
		}
	}
	return nil
}
