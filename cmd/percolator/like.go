package main

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
)

// nearest is the name that is most like one, "" if none is much like it.
func nearest(name string, known []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// missing says that what was named is not there, and what there is that is like it.
func missing(what, name string, known []string) error {
	shown, best := admin.Bytes(name).String(), nearest(name, known)
	switch {
	case best != "":
		return fmt.Errorf("%w: there is no %s named %q; did you mean %q?", errNotFound, what, shown, admin.Bytes(best).String())
	case len(known) == 0:
		return fmt.Errorf("%w: there is no %s named %q, and none at all", errNotFound, what, shown)
	case len(known) <= 8:
		var all []string
		for _, k := range known {
			all = append(all, admin.Bytes(k).String())
		}
		return fmt.Errorf("%w: there is no %s named %q (there are: %s)", errNotFound, what, shown, strings.Join(all, ", "))
	}
	return fmt.Errorf("%w: there is no %s named %q", errNotFound, what, shown)
}

// distance is how many letters are to be changed, added, taken away or swapped to make one word of the other.
func distance(a, b string) int {
	before, last, now := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		now[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			now[j] = min(last[j]+1, now[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
		before, last, now = last, now, before
	}
	return last[len(b)]
}

// mostTables are looked at before a name is taken for one of those beyond.
const mostTables = 1_000_000

// haveTable returns an error unless the table holds something, or the catalog knows it.
func haveTable(ctx context.Context, r *admin.Reader, name string) error {
	if name == "" {
		return usage("the table's name is empty")
	}
	tables, more, err := r.Tables(ctx, false, 0)
	if err == nil && more {
		tables, more, err = r.Tables(ctx, false, mostTables)
	}
	var known []string
	for _, t := range tables {
		known = append(known, string(t.Name))
	}
	switch {
	case slices.Contains(known, name): // whatever else is in the store
		return nil
	case err != nil || more:
		return err
	}
	return missing("table", name, known)
}

// haveObserver returns an error unless an observer is registered that has the name, or had it.
func haveObserver(ctx context.Context, r *admin.Reader, name string) error {
	observers, err := r.Observers(ctx, 1)
	if err != nil {
		return err
	}
	var known []string
	for _, o := range observers {
		for _, n := range append(o.Aliases, o.Name) {
			if !slices.Contains(known, string(n)) {
				known = append(known, string(n))
			}
		}
	}
	if slices.Contains(known, name) {
		return nil
	}
	return missing("observer", name, known)
}

// haveColumns returns an error for columns that no row of a table has, if its first rows have others.
func haveColumns(ctx context.Context, r *admin.Reader, rng percolator.Range) error {
	asked := rng.Columns
	rng.Columns, rng.Limit = nil, 100
	page, err := r.Scan(ctx, rng, 0)
	if err != nil || len(page.Values) == 0 {
		return err
	}
	known := columnsOf(&page)
	for _, c := range asked {
		if !slices.Contains(known, c) {
			return missing("column", c, known)
		}
	}
	return nil
}

// haveObserved returns an error unless somebody observes a column of the table, "" for any.
func haveObserved(ctx context.Context, r *admin.Reader, table, column string) error {
	observers, err := r.Observers(ctx, 1)
	if err != nil {
		return err
	}
	var known, tables []string
	for _, o := range observers {
		if tables = append(tables, string(o.Table)); string(o.Table) == table {
			known = append(known, string(o.Column))
		}
	}
	slices.Sort(known)
	slices.Sort(tables)
	switch {
	case len(known) == 0:
		return missing("observed table", table, slices.Compact(tables))
	case column == "" || slices.Contains(known, column):
		return nil
	}
	return missing("observed column", column, slices.Compact(known))
}

func columnsOf(page *admin.Rows) (columns []string) {
	for i := range page.Values {
		columns = append(columns, string(page.Values[i].Column))
	}
	slices.Sort(columns)
	return slices.Compact(columns)
}

// noCell says that a cell has nothing of what was asked for, and what there is that is like it: a table, a column of its row, or a row that
// begins like its row.
func noCell(ctx context.Context, r *admin.Reader, c percolator.Cell, has string) error {
	if err := haveTable(ctx, r, c.Table); err != nil {
		return err
	}
	row, err := r.Scan(ctx, percolator.Range{Table: c.Table, From: c.Row, To: c.Row + "\x00", Limit: 1}, 0)
	if err != nil {
		return err
	}
	said, columns := "", columnsOf(&row)
	switch {
	case slices.Contains(columns, c.Column): // it has a value now, and had none at the snapshot
	case len(columns) > 0:
		said = "; " + strings.TrimPrefix(missing("column of that row", c.Column, columns).Error(), errNotFound.Error()+": ")
	default:
		near, err := r.Scan(ctx, percolator.Range{Table: c.Table, From: c.Row[:len(c.Row)/2], Limit: 500}, 0)
		if err != nil {
			return err
		}
		var rows []string
		for i := range near.Values {
			rows = append(rows, string(near.Values[i].Row))
		}
		if best := nearest(c.Row, rows); best != "" {
			said = fmt.Sprintf("; did you mean row %q?", admin.Bytes(best).String())
		}
	}
	return fmt.Errorf("%w: the cell %v %s%s", errNotFound, admin.CellOf(c), has, said)
}

func oracleTime(t time.Time) percolator.Timestamp { return max(oracle.FromTime(t), 1) - 1 }

// version is that of the module, or of the source that the command was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}
