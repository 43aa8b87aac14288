package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/shown"
	"github.com/percolate-go/percolate/percolator"
)

func (a *app) overviewCommand() *cobra.Command {
	return &cobra.Command{
		Use: "overview", Short: "Show what the catalog says", Args: exactly(),
		RunE: look(a, func(ctx context.Context, r *admin.Reader, _ []string) (admin.Overview, error) { return r.Overview(ctx) }, func(w *page, o admin.Overview) {
			w.row("now", fmt.Sprintf("%v (%s)", o.Now, when(o.Now)))
			w.row("format of the catalog", o.Version)
			if o.Oracle != "" {
				w.row("oracle", fmt.Sprintf("%q", o.Oracle))
			}
			w.row("processes", o.Processes)
			w.row("observers", o.Observers)
			settings(w, "", o.Settings)
			if o.Next != nil {
				from := "as soon as it has a time"
				if o.NextFrom != 0 {
					from = "from " + when(o.NextFrom)
				}
				w.row("to come", from)
				settings(w, "  ", *o.Next)
			}
			if o.SafePoint != 0 {
				w.row("safe point", fmt.Sprintf("%v (%s)", o.SafePoint, when(o.SafePoint)))
			}
		}),
	}
}

func settings(w *page, indent string, s admin.Settings) {
	w.row(indent+"retention", s.Retention)
	w.row(indent+"longest transaction", s.MaxTxnAge)
	w.row(indent+"catalog lease", s.CatalogLease)
}

func (a *app) gcCommand() *cobra.Command {
	status := &cobra.Command{
		Use: "status", Short: "Show how far garbage collection is", Args: exactly(),
		RunE: look(a, func(ctx context.Context, r *admin.Reader, _ []string) (admin.Collection, error) {
			return r.Collection(ctx, 0)
		}, func(w *page, g admin.Collection) {
			lines(w, g.Lines)
			for _, t := range g.Tables {
				safe := "not collected by itself yet"
				if t.SafePoint > g.SafePoint {
					safe = "collected up to " + when(t.SafePoint)
				}
				w.line("table %v keeps history for %v: %s", t.Name, t.Retention, safe)
			}
		}),
	}
	var o percolator.GCOptions
	run := &cobra.Command{
		Use: "run", Short: "Collect garbage now", Args: exactly(),
		Long: "Collects garbage now, as workers do by themselves. It takes at least one catalog lease, and has no bound unless --timeout\n" +
			"is given. An interrupted collection leaves nothing wrong.",
		RunE: a.long("gc status", change(a, func(ctx context.Context, db *percolator.DB, _ []string) (collected, error) {
			r, err := db.CollectGarbage(ctx, o)
			c := collected{admin.Stamp(r.SafePoint), nil, r.Versions, r.Rows, r.Read, r.LocksResolved, r.Full}
			if err == nil && o.Within > 0 {
				c.Tables, err = tablesWithin(ctx, db, o.Within)
			}
			return c, err
		}, func(w *page, c collected) {
			switch {
			case o.Within <= 0:
				w.line("history from before %s is gone", when(c.SafePoint))
			case len(c.Tables) == 0:
				w.line("no table has a retention of its own of at most %v, and shorter than that of the database", o.Within)
			}
			for _, t := range c.Tables {
				if t.SafePoint == 0 {
					w.line("table %v is not collected by itself yet", t.Name)
					continue
				}
				w.line("history of table %v from before %s is gone", t.Name, when(t.SafePoint))
			}
			w.line("%d versions of %d rows were removed, %d rows read, %d locks resolved", c.Versions, c.Rows, c.Read, c.Locks)
		})),
	}
	run.Flags().DurationVar(&o.Keep, "keep", 0, "how much history to keep (default the retention)")
	run.Flags().DurationVar(&o.Within, "within", 0, "in tables with a retention of at most this alone")
	run.Flags().BoolVar(&o.Full, "full", false, "look at every row")
	return listed(&cobra.Command{Use: "gc", Short: "Garbage collection: status, run"}, status, run)
}

// collected is what a collection has done.
type collected struct {
	SafePoint admin.Stamp   `json:"safe_point"`       // of the tables that have none of their own
	Tables    []admin.Table `json:"tables,omitempty"` // those of --within
	Versions  int           `json:"versions"`
	Rows      int           `json:"rows"`
	Read      int           `json:"read"`
	Locks     int           `json:"locks"`
	Full      bool          `json:"full"`
}

// tablesWithin lists the tables whose own retention is at most this, and shorter than that of the database, as GCOptions.Within chooses them.
func tablesWithin(ctx context.Context, db *percolator.DB, within time.Duration) ([]admin.Table, error) {
	r, err := admin.Of(db)
	if err != nil {
		return nil, err
	}
	g, err := r.Collection(ctx, 1)
	return slices.DeleteFunc(g.Tables, func(t admin.Table) bool { return t.Retention >= g.Retention || time.Duration(t.Retention) > within }), err
}

// kept is what retention shows.
type kept struct {
	admin.Settings
	Tables []admin.Table `json:"tables,omitempty"`
}

func (a *app) retentionCommand() *cobra.Command {
	show := &cobra.Command{
		Use: "show", Short: "Show for how long history is kept", Args: exactly(),
		RunE: look(a, func(ctx context.Context, r *admin.Reader, _ []string) (kept, error) {
			o, err := r.Overview(ctx)
			if err != nil {
				return kept{}, err
			}
			k := kept{Settings: o.Settings}
			tables, _, err := r.Tables(ctx, false, 0)
			for _, t := range tables {
				if t.Set {
					k.Tables = append(k.Tables, t)
				}
			}
			return k, err
		}, func(w *page, k kept) {
			w.row("TABLE", "RETENTION", "LONGEST TRANSACTION")
			w.row("(all)", k.Retention, k.MaxTxnAge)
			for _, t := range k.Tables {
				w.row(t.Name, t.Retention, t.MaxTxnAge)
			}
		}),
	}
	var table nameFlag
	var anew bool
	var s percolator.Settings
	set := &cobra.Command{
		Use: "set", Short: "Change for how long history is kept", Args: exactly(),
		Long: "Changes the settings of the database, or of one table (--table), for every process. What is not given stays; for a table it becomes\n" +
			"that of the database. The change takes effect two catalog leases later. A table that holds nothing yet is refused without --new.",
		Example: "  percolator retention set --retention 48h\n  percolator retention set --table queue --retention 2h --max-txn-age 30m",
		RunE: change(a, func(ctx context.Context, db *percolator.DB, _ []string) (done, error) {
			if table == "" {
				if s == (percolator.Settings{}) {
					return done{}, usage("nothing is to be changed: give --retention, --max-txn-age or --catalog-lease")
				}
				return done{"the settings change two catalog leases from now"}, db.Configure(ctx, s)
			}
			if s.CatalogLease != 0 {
				return done{}, usage("--catalog-lease is of the whole database, not of a table")
			}
			if !anew {
				r, err := admin.Of(db)
				if err == nil {
					err = haveTable(ctx, r, string(table))
				}
				if errors.Is(err, errNotFound) {
					err = fmt.Errorf("%w (--new sets them all the same)", err)
				}
				if err != nil {
					return done{}, err
				}
			}
			return done{fmt.Sprintf("the settings of table %v change two catalog leases from now", admin.Bytes(table))},
				db.ConfigureTable(ctx, string(table), percolator.TableSettings{MaxTxnAge: s.MaxTxnAge, Retention: s.Retention})
		}, said),
	}
	set.Flags().Var(&table, "table", "of this table alone")
	set.Flags().BoolVar(&anew, "new", false, "with --table, also if it holds nothing yet")
	for name, to := range map[string]*time.Duration{"retention": &s.Retention, "max-txn-age": &s.MaxTxnAge, "catalog-lease": &s.CatalogLease} {
		set.Flags().DurationVar(to, name, 0, "see percolator.Settings")
	}
	return listed(&cobra.Command{Use: "retention", Short: "How long history is kept: show, set"}, show, set)
}

func (a *app) sizesCommand() *cobra.Command {
	var own bool
	rows := 10_000
	c := &cobra.Command{
		Use: "sizes", Short: "Count the rows and bytes of the tables", Args: exactly(),
		Long: "Counts rows, and the bytes of their keys, columns and newest values, without history and what the database adds. It reads up to\n" +
			"--rows rows of each table, for two seconds in all; a + means that there are more.",
		RunE: look(a, func(ctx context.Context, r *admin.Reader, _ []string) (list[admin.Size], error) {
			s, more, err := r.Sizes(ctx, own, rows)
			return list[admin.Size]{Items: s, More: more}, err
		}, func(w *page, l list[admin.Size]) {
			w.row("TABLE", "ROWS", "BYTES")
			for _, s := range l.Items {
				w.row(s.Table, shown.Count(s.Rows, s.AtLeast), shown.Count(int(s.Bytes), s.AtLeast))
			}
			if l.More {
				w.line("... and more tables, which are not counted")
			}
		}),
	}
	c.Flags().BoolVar(&own, "own", false, "count the library's own tables too")
	c.Flags().IntVar(&rows, "rows", rows, "how many rows to read in each table")
	return c
}
