package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/internal/shown"
	"github.com/percolate-go/percolate/internal/stuck"
	"github.com/percolate-go/percolate/percolator"
)

// listed makes a command that shows something when it is called without a subcommand, and list as one of them.
func listed(parent, what *cobra.Command, others ...*cobra.Command) *cobra.Command {
	parent.RunE, parent.Args = what.RunE, func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var known []string
		for _, c := range cmd.Commands() {
			known = append(known, c.Name())
		}
		return usageError{fmt.Errorf("%s: %w", cmd.CommandPath(), missing("command", args[0], known))}
	}
	parent.Flags().AddFlagSet(what.Flags())
	parent.AddCommand(what)
	parent.AddCommand(others...)
	return parent
}

func (a *app) observersCommand() *cobra.Command {
	limit := 10_000
	show := &cobra.Command{
		Use: "list", Short: "List the observers with their backlog", Args: exactly(),
		RunE: look(a, func(ctx context.Context, r *admin.Reader, _ []string) (list[admin.Observer], error) {
			o, err := r.Observers(ctx, limit)
			return list[admin.Observer]{Items: o}, err
		}, func(w *page, l list[admin.Observer]) {
			w.row("OBSERVER", "TABLE", "COLUMN", "STATE", "WAITING", "OLDEST", "PARKED", "WORKERS", "PLACES")
			for _, o := range l.Items {
				w.row(o.Name, o.Table, o.Column, o.State(), shown.Count(o.Notified, o.AtLeast), oldest(o), shown.Count(o.Parked, o.ParkedAtLeast), o.Workers, o.Places)
			}
		}),
		Long: "Lists the registered observers. WAITING counts the cells of its column with notifications: those that this observer has yet\n" +
			"to see, that another observer of the column has, and that commits under way have. A + means: at least.",
	}
	show.Flags().IntVar(&limit, "limit", limit, "count up to this many cells in each table")
	named := func(use, short, long string, f func(ctx context.Context, db *percolator.DB, name string) error, became string) *cobra.Command {
		return &cobra.Command{
			Use: use + " OBSERVER", Short: short, Long: long, Args: exactly("OBSERVER"),
			RunE: change(a, func(ctx context.Context, db *percolator.DB, args []string) (done, error) {
				name, err := typed(args[0])
				if err != nil {
					return done{}, err
				}
				r, err := admin.Of(db)
				if err == nil {
					err = haveObserver(ctx, r, name)
				}
				if err == nil {
					err = f(ctx, db, name)
				}
				return done{fmt.Sprintf("the observer %v is %s", admin.Bytes(name), became)}, err
			}, said),
		}
	}
	return listed(&cobra.Command{Use: "observers", Short: "Observers: list, pause, resume, rename, remove, replay"}, show,
		named("pause", "Stop the runs of an observer", "Stops the runs of an observer in all workers, until it is resumed. Changes wait. Runs that have begun go on.",
			func(ctx context.Context, db *percolator.DB, name string) error { return db.PauseObserver(ctx, name) }, "paused"),
		named("resume", "End the pause of an observer", "Ends the pause of an observer. What waits is run.",
			func(ctx context.Context, db *percolator.DB, name string) error { return db.ResumeObserver(ctx, name) }, "resumed"),
		a.renameCommand(),
		a.replayCommand(),
		a.removeCommand(),
	)
}

func (a *app) removeCommand() *cobra.Command {
	var table, column nameFlag
	c := &cobra.Command{
		Use: "remove OBSERVER", Short: "Take an observer out of the catalog", Args: exactly("OBSERVER"),
		Long: "Takes an observer out of the catalog, and ends what it has acknowledged: if it is registered again, it runs for every cell. Workers\n" +
			"that run it stop. Its parked runs stay. There is no way back. With --table and --column that registration goes alone, and those that\n" +
			"the name has on other columns stay: for what an observer has left behind that moved to another column.",
		Example: "  percolator observers remove count\n  percolator observers remove count --table note --column text",
		RunE: change(a, func(ctx context.Context, db *percolator.DB, args []string) (done, error) {
			name, err := typed(args[0])
			if err != nil {
				return done{}, err
			}
			if (table == "") != (column == "") {
				return done{}, usage("--table and --column go together")
			}
			r, err := admin.Of(db)
			if err == nil {
				err = haveObserver(ctx, r, name)
			}
			if err != nil {
				return done{}, err
			}
			if table == "" {
				return done{fmt.Sprintf("the observer %v is removed", admin.Bytes(name))}, db.RemoveObserver(ctx, name)
			}
			of, err := registration(ctx, db, name, string(table), string(column))
			if err == nil {
				err = db.RemoveRegistration(ctx, of)
			}
			return done{fmt.Sprintf("the observer %v of table %v, column %v is removed", admin.Bytes(name), admin.Bytes(table), admin.Bytes(column))}, err
		}, said),
	}
	c.Flags().Var(&table, "table", "with --column: the registration of this column alone")
	c.Flags().Var(&column, "column", "see --table")
	return c
}

// registration finds the registration of an observer on a column.
func registration(ctx context.Context, db *percolator.DB, name, table, column string) (percolator.ObserverInfo, error) {
	all, err := db.Observers(ctx)
	if err != nil {
		return percolator.ObserverInfo{}, err
	}
	var others []string
	for _, o := range all {
		if o.Name != name && !slices.Contains(o.Aliases, name) {
			continue
		}
		if o.Table == table && o.Column == column {
			return o, nil
		}
		others = append(others, fmt.Sprintf("table %v, column %v", admin.Bytes(o.Table), admin.Bytes(o.Column)))
	}
	return percolator.ObserverInfo{}, fmt.Errorf("%w: the observer %v is not registered on table %v, column %v, but on %s",
		errNotFound, admin.Bytes(name), admin.Bytes(table), admin.Bytes(column), strings.Join(others, "; "))
}

func (a *app) renameCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rename OBSERVER NAME", Short: "Give an observer another name", Args: exactly("OBSERVER", "NAME"),
		Long: "Gives an observer another name. Programs that go on with the old one run the same observer. Rename it before the first program\n" +
			"with the new name starts.",
		RunE: change(a, func(ctx context.Context, db *percolator.DB, args []string) (done, error) {
			old, err := typed(args[0])
			if err != nil {
				return done{}, err
			}
			name, err := typed(args[1])
			if err != nil {
				return done{}, err
			}
			r, err := admin.Of(db)
			if err == nil {
				err = haveObserver(ctx, r, old)
			}
			if err == nil {
				err = db.RenameObserver(ctx, old, name)
			}
			return done{fmt.Sprintf("the observer %v is called %v", admin.Bytes(old), admin.Bytes(name))}, err
		}, said),
	}
}

func oldest(o admin.Observer) string {
	if o.Notified == 0 {
		return "-"
	}
	return o.Oldest.String()
}

func (a *app) backlogCommand() *cobra.Command {
	var from nameFlag
	limit := 100
	c := &cobra.Command{
		Use: "backlog TABLE [COLUMN]", Short: "List cells that wait for observers", Args: cobra.RangeArgs(1, 2),
		Long: "Lists cells of a table's observed columns that have notifications. percolator why says what each waits for, and percolator\n" +
			"observers counts them by observer.",
		RunE: look(a, func(ctx context.Context, r *admin.Reader, args []string) (list[admin.Notified], error) {
			names := []string{"", ""}
			for i, arg := range args {
				s, err := typed(arg)
				if err != nil {
					return list[admin.Notified]{}, err
				}
				names[i] = s
			}
			if err := haveTable(ctx, r, names[0]); err != nil {
				return list[admin.Notified]{}, err
			}
			if err := haveObserved(ctx, r, names[0], names[1]); err != nil {
				return list[admin.Notified]{}, err
			}
			cells, next, err := r.Backlog(ctx, names[0], names[1], admin.Bytes(from), limit)
			return paged(cells, next), err
		}, func(w *page, l list[admin.Notified]) {
			w.row("ROW", "COLUMN", "WAITS", "NOTIFICATIONS")
			for _, n := range l.Items {
				w.row(n.Row, n.Column, n.Oldest, n.Count)
			}
			rest(w, &l)
		}),
	}
	fromFlag(c, &from)
	c.Flags().IntVar(&limit, "limit", limit, "how many at most")
	return c
}

func (a *app) parkedCommand() *cobra.Command {
	var observer, from nameFlag
	limit := 100
	show := &cobra.Command{
		Use: "list", Short: "List the parked runs", Args: exactly(),
		RunE: look(a, func(ctx context.Context, r *admin.Reader, _ []string) (list[admin.Parked], error) {
			runs, next, err := r.Parked(ctx, string(observer), admin.Bytes(from), limit)
			if err == nil && len(runs) == 0 && observer != "" {
				err = haveObserver(ctx, r, string(observer))
			}
			return paged(runs, next), err
		}, func(w *page, l list[admin.Parked]) {
			w.row("OBSERVER", "TABLE", "ROW", "COLUMN", "ATTEMPTS", "PARKED", "ERROR")
			for _, p := range l.Items {
				if p.Unreadable {
					w.row(p.Observer, p.Table, p.Row, p.Column, "-", "-", short(p.Error))
					continue
				}
				w.row(p.Observer, p.Table, p.Row, p.Column, p.Attempts, ago(p.Age), short(p.Error))
			}
			rest(w, &l)
		}),
		Long: "Lists the runs that have failed for good, of all observers or of one. percolator parked show has the whole error. % in place of the names\n" +
			"means that the record of a run cannot be read, and its names are too long to stand beside it.",
	}
	show.Flags().Var(&observer, "observer", "of this observer alone")
	fromFlag(show, &from)
	show.Flags().IntVar(&limit, "limit", limit, "how many at most")
	one := &cobra.Command{
		Use: "show OBSERVER TABLE ROW COLUMN", Short: "Show a parked run with its whole error", Args: exactly("OBSERVER", "TABLE", "ROW", "COLUMN"),
		RunE: look(a, func(ctx context.Context, r *admin.Reader, args []string) (admin.Parked, error) {
			return parkedRun(ctx, r, args)
		}, func(w *page, p admin.Parked) {
			w.line("observer %v was parked for %v", p.Observer, p.Cell)
			if p.Unreadable {
				w.line("%s", p.Error)
				return
			}
			w.line("%v, at %s, after %d failures for the change at %v (%s)", ago(p.Age), p.At.Format("2006-01-02 15:04:05 UTC"), p.Attempts, p.Change, when(p.Change))
			w.line("%s", p.Error)
		}),
	}
	return listed(&cobra.Command{Use: "parked", Short: "Parked runs: list, show, release, drop"}, show, one,
		a.parkedChange("release", "Let parked runs be attempted again", "Lets parked runs be attempted again, with a fresh count of attempts: one, or all (--all), or all of an observer. Runs that cannot be\n"+
			"released, because their records cannot be read, say, hold up no others: the first few are named at the end, with an exit status that is not 0.", "released",
			func(ctx context.Context, db *percolator.DB, _ *admin.Reader, run percolator.ParkedRun) (bool, error) {
				return true, db.Release(ctx, run)
			}),
		a.parkedChange("drop", "Give parked runs up", "Gives parked runs up: the observer counts as having seen the change, and what its run would have done is lost. One whose\n"+
			"cell has changed since it was parked is left as it is: its observer runs for the newer change.", "dropped", drop))
}

// drop gives a parked run up, and tells whether it has: it is left alone if its cell has changed since.
func drop(ctx context.Context, db *percolator.DB, r *admin.Reader, run percolator.ParkedRun) (bool, error) {
	if err := db.DropParked(ctx, run); err != nil {
		return false, err
	}
	at, found, err := r.ParkedRun(ctx, run.Observer, run.Cell)
	return !found || at.Run().Change != run.Change, err
}

// short is the beginning of an error, on one line.
func short(s string) string {
	b := admin.Bytes(s).String()
	if r := []rune(b); len(r) > 80 {
		return string(r[:80]) + "..."
	}
	return b
}

// parkedChange makes a command that does something with parked runs.
func (a *app) parkedChange(use, short, long, became string,
	f func(ctx context.Context, db *percolator.DB, r *admin.Reader, run percolator.ParkedRun) (did bool, err error),
) *cobra.Command {
	var all bool
	var observer, from nameFlag
	c := &cobra.Command{
		Use: use + " {OBSERVER TABLE ROW COLUMN | --observer OBSERVER | --all}", Short: short, Long: long,
		Args: func(cmd *cobra.Command, args []string) error {
			if !all && observer == "" {
				if from != "" {
					return usage("--from goes with --observer or --all")
				}
				return exactly("OBSERVER", "TABLE", "ROW", "COLUMN")(cmd, args)
			}
			return exactly()(cmd, args)
		},
		RunE: a.oneOrMany(change(a, func(ctx context.Context, db *percolator.DB, args []string) (done, error) {
			r, err := admin.Of(db)
			if err != nil {
				return done{}, err
			}
			if len(args) > 0 {
				run, err := parkedRun(ctx, r, args)
				if err != nil {
					return done{}, err
				}
				if did, err := f(ctx, db, r, run.Run()); err != nil || !did {
					return done{}, cmp.Or(err, fmt.Errorf("%w: the cell has changed since its run was parked, and the observer runs for the newer change", percolator.ErrConflict))
				}
				return done{"1 parked runs were " + became}, nil
			}
			left := 0
			n, failed, err := eachParked(ctx, r, string(observer), admin.Bytes(from), func(run percolator.ParkedRun) error {
				did, err := f(ctx, db, r, run)
				if err == nil && !did {
					left++
				}
				return err
			})
			switch {
			case err != nil:
				err = fmt.Errorf("%w (%d were %s before%s)", err, n-left, became, orCouldNotBe(&failed))
				if n > left {
					err = begun(err)
				}
				return done{}, err
			case failed.Len() > 0:
				return done{}, begun(fmt.Errorf("%d parked runs could not be %s, and stay: %w (%d others were %s, and %d are left since their cells have changed)",
					failed.Len(), became, &failed, n-left, became, left))
			case left > 0:
				return done{fmt.Sprintf("%d parked runs were %s; %d are left, since their cells have changed: their observers run for the newer changes", n-left, became, left)}, nil
			case n == 0 && from == "":
				if observer != "" {
					if err := haveObserver(ctx, r, string(observer)); err != nil {
						return done{}, err
					}
				}
				return done{}, fmt.Errorf("%w: there is no such parked run", errNotFound)
			}
			return done{fmt.Sprintf("%d parked runs were %s", n, became)}, nil
		}, said)),
	}
	c.Flags().BoolVar(&all, "all", false, "all parked runs")
	c.Flags().Var(&observer, "observer", "all parked runs of this observer")
	c.Flags().Var(&from, "from", "with --observer or --all, go on where a call before ended, as its error says")
	return c
}

// orCouldNotBe names runs for which nothing could be done, behind another error.
func orCouldNotBe(failed *stuck.RunsError) string {
	if failed.Len() == 0 {
		return ""
	}
	return fmt.Sprintf("; %d could not be: %v", failed.Len(), failed)
}

// oneOrMany takes the bound off a call for all there are: a flood of parked runs takes as long as it takes.
func (a *app) oneOrMany(run func(*cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			a.unbounded(cmd)
		}
		return run(cmd, args)
	}
}

const parkedPage = 1000

// eachParked calls f for the parked runs of an observer, or of all, from a point on, and counts those for which it did what it should. It goes on behind a run that
// nothing can be done for, so that no run holds up others. An error says where to go on: there may be a great many of other observers between them, and a call has its time.
func eachParked(ctx context.Context, r *admin.Reader, observer string, from admin.Bytes, f func(percolator.ParkedRun) error) (n int, failed stuck.RunsError, err error) {
	for {
		runs, next, err := r.Parked(ctx, observer, from, parkedPage)
		for i := range runs {
			if err != nil {
				break
			}
			if err = f(runs[i].Run()); err == nil {
				n++
			} else {
				err = failed.Take(&runs[i], err)
			}
		}
		switch {
		case err != nil && from != "":
			return n, failed, fmt.Errorf("%w; go on with --from %s", err, from.Word())
		case err != nil || next == "":
			return n, failed, err
		}
		from = next
	}
}

// parkedRun finds the parked run that the arguments name.
func parkedRun(ctx context.Context, r *admin.Reader, args []string) (admin.Parked, error) {
	name, err := typed(args[0])
	if err != nil {
		return admin.Parked{}, err
	}
	if name == "" {
		return admin.Parked{}, usage("the observer's name is empty")
	}
	cell, err := cellOf(args[1:])
	if err != nil {
		return admin.Parked{}, err
	}
	run, found, err := r.ParkedRun(ctx, name, cell)
	if err != nil || found {
		return run, err
	}
	if err := haveObserver(ctx, r, name); err != nil {
		return run, err
	}
	if err := haveTable(ctx, r, cell.Table); err != nil {
		return run, err
	}
	others, _, err := r.Parked(ctx, name, "", parkedPage)
	if err != nil {
		return run, err
	}
	var known []string
	for i := range others {
		known = append(known, others[i].Cell.String())
	}
	said := ""
	if best := nearest(admin.CellOf(cell).String(), known); best != "" {
		said = "; did you mean " + best + "?"
	}
	return run, fmt.Errorf("%w: observer %v is not parked for the cell %v%s", errNotFound, admin.Bytes(name), admin.CellOf(cell), said)
}

func (a *app) timersCommand() *cobra.Command {
	var from nameFlag
	limit := 100
	c := &cobra.Command{
		Use: "timers TABLE", Short: "List the timers of a table", Args: exactly("TABLE"),
		Long: "Lists the timers of a table in the order of their due times. One that was set for the next half minute is not in the list:\n" +
			"percolator why shows the timer of a cell.",
		RunE: look(a, func(ctx context.Context, r *admin.Reader, args []string) (list[admin.Timer], error) {
			table, err := typed(args[0])
			if err == nil {
				err = haveTable(ctx, r, table)
			}
			if err != nil {
				return list[admin.Timer]{}, err
			}
			t, next, err := r.Timers(ctx, table, admin.Bytes(from), limit)
			return paged(t, next), err
		}, func(w *page, l list[admin.Timer]) {
			w.row("ROW", "COLUMN", "DUE", "IN", "NOTES")
			for _, t := range l.Items {
				note, due, in := t.Error, t.Due.Format("2006-01-02 15:04:05 UTC"), t.In.String()
				if t.Stale {
					note = "cancelled, or set anew"
				}
				if t.Due.IsZero() {
					due, in = "-", "-"
				}
				w.row(t.Row, t.Column, due, in, note)
			}
			rest(w, &l)
		}),
	}
	fromFlag(c, &from)
	c.Flags().IntVar(&limit, "limit", limit, "how many at most")
	return c
}
