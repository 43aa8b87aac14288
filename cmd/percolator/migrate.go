package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/config"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

const migrateHelp = `Two things have versions: the layout in which each store keeps its data, and the catalog of the database. A program
migrates the layout of a store when it opens it, and refuses a newer one. The catalog is stored as the least version that will do, so that
older programs can go on, until something that they do not know is used. docs/versions.md says what each version is.

migrate shows the versions. check says whether something is to be done: the exit status is 0 if not, and 10 otherwise. Neither writes. run
does it: it migrates the layouts, and raises the catalog to the version that new databases begin with. It can be interrupted, and
the same command goes on.`

// layout is the version of one store's layout.
type layout struct {
	Name    string `json:"name"`
	Backend string `json:"backend,omitempty"`
	Stored  int    `json:"stored"`
	Known   int    `json:"known"` // what this program writes
	// HalfDone tells that a migration from version Stored was cut short.
	HalfDone bool `json:"half_done,omitempty"`
	// missing tells that there is no store yet.
	missing bool
}

func (l *layout) old() bool { return l.Stored < l.Known }

// levels is what migrate shows.
type levels struct {
	Layouts []layout `json:"layouts"`
	// Catalog is missing while the layout of a store is too old for this program to read.
	Catalog *admin.Levels `json:"catalog,omitempty"`
	ToDo    []string      `json:"to_do"`
}

func (l *levels) text(w *page) {
	w.row("STORE", "BACKEND", "LAYOUT", "THIS PROGRAM WRITES")
	for _, s := range l.Layouts {
		w.row(admin.Bytes(s.Name), s.Backend, s.Stored, s.Known)
	}
	if l.Catalog != nil {
		lines(w, l.Catalog.Lines)
	}
	for _, s := range l.ToDo {
		w.line("-> %s", s)
	}
	if len(l.ToDo) == 0 {
		w.line("nothing is to be done")
	}
}

// migrated is what migrate run has done.
type migrated struct {
	Did []string `json:"did"`
}

func (a *app) migrateCommand() *cobra.Command {
	shown := func(found func(l levels) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, _ []string) error {
			a.ran = true
			ctx, cancel := a.within(cmd.Context())
			defer cancel()
			l, err := a.levels(ctx)
			if err == nil {
				err = show(a, l, func(w *page, l levels) { l.text(w) })
			}
			if err == nil {
				err = found(l)
			}
			return err
		}
	}
	status := &cobra.Command{
		Use: "status", Short: "Show in which versions the data is stored", Args: exactly(),
		RunE: shown(func(levels) error { return nil }),
	}
	check := &cobra.Command{
		Use: "check", Short: "Say whether something is to be migrated", Args: exactly(),
		Long: "Shows what status shows. The exit status is 0 if nothing is to be done, and 10 otherwise.",
		RunE: shown(func(l levels) error {
			if len(l.ToDo) > 0 {
				return errFindings
			}
			return nil
		}),
	}
	var makes bool
	run := &cobra.Command{
		Use: "run", Short: "Migrate the stores, and raise the catalog", Args: exactly(),
		Long: "Migrates the layout of each store that is older than this program's, and raises the catalog to the version that new databases\n" +
			"begin with. What programs that run meanwhile meet is in docs/versions.md. While a process is at work whose program does not\n" +
			"know the new catalog, that is left as it is, and the exit status is 11. On Postgres it is for the role that owns the schema.",
	}
	run.Flags().BoolVar(&makes, "make", false, "make the stores and the database where there are none, for programs whose role may not")
	run.RunE = func(cmd *cobra.Command, _ []string) error {
		a.ran = true
		a.unbounded(cmd)
		ctx, cancel := a.within(cmd.Context())
		defer cancel()
		m := migrated{Did: []string{}}
		err := a.migrate(ctx, &m, makes)
		if err == nil && len(m.Did) == 0 {
			m.Did = append(m.Did, "nothing was to be done")
		}
		// What was done before an error is worth knowing.
		if len(m.Did) > 0 {
			err = errors.Join(err, show(a, m, func(w *page, m migrated) { lines(w, m.Did) }))
		}
		return err
	}
	return listed(&cobra.Command{Use: "migrate", Short: "Versions of the stored formats: status, check, run", Long: migrateHelp}, status, check, run)
}

// levels looks at the layouts, and at the catalog if this program can read it.
func (a *app) levels(ctx context.Context) (levels, error) {
	l := levels{ToDo: []string{}}
	var err error
	if l.Layouts, err = a.layouts(ctx, false); err != nil {
		return l, err
	}
	for _, s := range l.Layouts {
		switch {
		case s.HalfDone:
			l.ToDo = append(l.ToDo, fmt.Sprintf("the migration of the store %v from layout version %d to version %d was cut short: percolator migrate run goes on with it, as the first program does that opens it",
				admin.Bytes(s.Name), s.Stored, s.Known))
		case s.old():
			l.ToDo = append(l.ToDo, fmt.Sprintf("the store %v has layout version %d: percolator migrate run brings it to version %d, as the first program does that opens it; back it up before",
				admin.Bytes(s.Name), s.Stored, s.Known))
		}
	}
	if len(l.ToDo) > 0 {
		return l, nil
	}
	store, _, err := a.openStore(ctx, true)
	if err != nil {
		return l, err
	}
	defer func() { _ = store.Close() }()
	r, err := admin.New(store)
	if err != nil {
		return l, err
	}
	c, err := r.Levels(ctx)
	if err != nil {
		return l, err
	}
	l.Catalog = &c
	switch {
	case c.Raise && c.Older > 0:
		l.ToDo = append(l.ToDo, "replace the older programs: a collection raises the catalog when they are gone, or percolator migrate run does")
	case c.Raise:
		l.ToDo = append(l.ToDo, "percolator migrate run raises the catalog, as the next collection does")
	}
	return l, nil
}

// eachStore opens one store after the other.
func (a *app) eachStore(ctx context.Context, asIs bool, f func(name string, s rowstore.Store, err error) error) error {
	if a.opened != nil {
		s, err := inTime(ctx, "opening the store", func() (rowstore.Store, error) { return a.opened(ctx, asIs) })
		return errors.Join(f("store", s, err), closed(s))
	}
	file, err := a.file(ctx)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(file.Stores)) {
		one := file.Stores[name]
		if asIs {
			one = withAsIs(one)
		}
		alone := config.File{Stores: map[string]config.Store{name: one}}
		s, err := inTime(ctx, "opening the store", func() (rowstore.Store, error) { return alone.OpenStore(ctx) })
		if err := errors.Join(f(name, s, err), closed(s)); err != nil {
			return err
		}
	}
	return nil
}

func closed(s rowstore.Store) error {
	if s == nil {
		return nil
	}
	return s.Close()
}

// layouts asks each store for its version. Stores that are not there are an error, which names all of them, unless they may be missing.
func (a *app) layouts(ctx context.Context, mayBeMissing bool) (all []layout, err error) {
	var missing []error
	err = a.eachStore(ctx, true, func(name string, s rowstore.Store, err error) error {
		l := layout{Name: name}
		var other *rowstore.LayoutError
		switch {
		case errors.As(err, &other) && !other.Newer():
			l.Stored, l.Known, l.HalfDone = other.Stored, other.Known, other.HalfDone
		case errors.Is(err, percolator.ErrNoStore):
			l.missing = true
			missing = append(missing, err)
		case err != nil:
			return err
		default:
			if about, ok := rowstore.Unwrap[rowstore.Reporter](s); ok {
				report, err := about.Report(ctx)
				if err != nil {
					return err
				}
				l.Backend, l.Stored, l.Known = report.Backend, report.Layout, report.Layout
			}
		}
		all = append(all, l)
		return nil
	})
	if err == nil && !mayBeMissing {
		err = errors.Join(missing...)
	}
	return all, err
}

// migrate brings everything to the versions of this program, as far as that is no matter of what programs use.
func (a *app) migrate(ctx context.Context, m *migrated, makes bool) error {
	before, err := a.layouts(ctx, makes)
	if err != nil {
		return err
	}
	store, opts, err := a.openStore(ctx, false) // which migrates
	if err != nil {
		return err
	}
	for _, l := range before {
		switch {
		case l.missing:
			m.Did = append(m.Did, fmt.Sprintf("the store %v was made", admin.Bytes(l.Name)))
		case l.old():
			m.Did = append(m.Did, fmt.Sprintf("the store %v was brought from layout version %d to version %d", admin.Bytes(l.Name), l.Stored, l.Known))
		}
	}
	r, err := admin.New(store)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	was, err := r.Levels(ctx)
	if err != nil && !(makes && errors.Is(err, percolator.ErrNoStore)) {
		return errors.Join(err, store.Close())
	}
	db, err := percolator.New(ctx, store, append(opts, percolator.WithLogger(a.log()))...)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	err = db.RaiseCatalog(ctx)
	var is admin.Levels
	if err == nil {
		is, err = r.Levels(ctx)
	}
	if cerr := closeDB(ctx, db); err == nil {
		err = cerr
	}
	switch {
	case err != nil:
	case was.Catalog == 0:
		m.Did = append(m.Did, fmt.Sprintf("a database was made, with a catalog of version %d", is.Catalog))
	case was.Raise:
		m.Did = append(m.Did, fmt.Sprintf("the catalog was raised from version %d to version %d", was.Catalog, is.Catalog))
	}
	return err
}
