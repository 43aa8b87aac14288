package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/percolate-go/percolate/admin"
	"github.com/percolate-go/percolate/config"
	"github.com/percolate-go/percolate/internal/shown"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// opener opens the store that the command works on. asIs asks for one that is there already, as it is.
type opener func(ctx context.Context, asIs bool) (rowstore.Store, error)

// app is one run of the command.
type app struct {
	stdin    io.Reader
	out, err io.Writer
	opened   opener

	store, config string
	json          bool
	answered      bool         // the standard output has the answer, so nothing is added to it
	loaded        *config.File // see file
	jsonAsked     bool         // --json is among the arguments, also where they were refused before they were read
	timeout       time.Duration

	ran      bool // the arguments would do
	makes    bool // the command makes cells by names that were given; see limits
	writeErr error
}

const rootHelp = `Percolator looks into a database of the Go library percolate, and mends it.

Which database: --store URL, or --config FILE as package config reads it, or the environment variables
PERCOLATOR_STORE and PERCOLATOR_CONFIG. A password is best left to these, because others can see the arguments of a
process. It is never printed. A database has to be there: only restore makes one, and migrate run --make.

Commands that only look write nothing, resolve no lock and wait for none. Those that change something say so. A Pebble
store can be open in one process only, so the command cannot look while a program has it.

Names and values are typed, and shown, in a form that stands for any bytes: %XX is a byte, %25 a percent sign, and %
alone is nothing at all. What begins with a dash goes behind --.

A snapshot (--at) is a timestamp as the command shows it, a time such as 2026-01-31T12:00:00Z, or how long ago: 10m.

With --json the answer is JSON, with names and values in the same form, timestamps as strings, durations like 1m30s.
An error is JSON too, on the standard error: {"error": "...", "status": 3}.`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "percolator", Short: "Look into a percolator database and mend it", Long: rootHelp,
		SilenceErrors: true, SilenceUsage: true, Version: version(),
	}
	f := root.PersistentFlags()
	f.StringVar(&a.store, "store", "", "URL of the store (default $PERCOLATOR_STORE)")
	f.StringVar(&a.config, "config", "", "file that says where the stores are (default $PERCOLATOR_CONFIG)")
	f.BoolVar(&a.json, "json", false, "answer in JSON")
	f.DurationVar(&a.timeout, "timeout", 30*time.Second, "give up after this; 0 for never")
	cells := &cobra.Group{ID: "cells", Title: "Cells:"}
	work := &cobra.Group{ID: "observers", Title: "Observers and their work:"}
	waits := &cobra.Group{ID: "waits", Title: "Locks and processes:"}
	keep := &cobra.Group{ID: "keep", Title: "The whole database:"}
	files := &cobra.Group{ID: "files", Title: "To and from files:"}
	root.AddGroup(cells, work, waits, keep, files)
	add := func(g *cobra.Group, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = g.ID
		}
		root.AddCommand(commands...)
	}
	add(cells, a.tablesCommand(), a.getCommand(), a.scanCommand(), a.historyCommand(), a.setCommand(), a.deleteCommand(), a.eraseCommand())
	add(work, a.observersCommand(), a.backlogCommand(), a.parkedCommand(), a.timersCommand(), a.cascadesCommand())
	add(waits, a.whyCommand(), a.locksCommand(), a.txnCommand(), a.sessionsCommand(), a.membersCommand(), a.holdsCommand())
	add(keep, a.doctorCommand(), a.uiCommand(), a.overviewCommand(), a.gcCommand(), a.retentionCommand(), a.sizesCommand(), a.migrateCommand())
	add(files, a.backupCommand(), a.restoreCommand(), a.exportCommand(), a.importCommand())
	root.AddCommand(&cobra.Command{Use: "exit", Short: "The exit statuses", Long: exitHelp})
	return root
}

// openStore opens the store that the flags or the environment name.
func (a *app) openStore(ctx context.Context, asIs bool) (store rowstore.Store, opts []percolator.Option, err error) {
	var of []percolator.Option
	store, err = inTime(ctx, "opening the store", func() (s rowstore.Store, err error) {
		s, of, err = a.openNow(ctx, asIs)
		return s, err
	})
	if err != nil {
		return nil, nil, err
	}
	return store, of, nil
}

func (a *app) openNow(ctx context.Context, asIs bool) (rowstore.Store, []percolator.Option, error) {
	if a.opened != nil {
		s, err := a.opened(ctx, asIs)
		return s, []percolator.Option{percolator.WithLimits(percolator.Limits(a.limits()))}, err
	}
	file, err := a.file(ctx)
	if err != nil {
		return nil, nil, err
	}
	f := *file
	if asIs {
		f.Stores = maps.Clone(f.Stores)
		for name, s := range f.Stores {
			f.Stores[name] = withAsIs(s)
		}
	}
	s, err := f.OpenStore(ctx)
	return s, f.Options(), err
}

// withAsIs returns a store with the parameter that lets it make nothing, whatever its URL says of that.
func withAsIs(s config.Store) config.Store {
	all := map[string]string{}
	for k, v := range s.Parameters {
		all[k] = v
	}
	all["asis"] = "true"
	s.Parameters = all
	if base, query, has := strings.Cut(s.URL, "?"); has {
		query, fragment, _ := strings.Cut(query, "#")
		left := slices.DeleteFunc(strings.Split(query, "&"), func(pair string) bool {
			name, _, _ := strings.Cut(pair, "=")
			name, err := url.QueryUnescape(name)
			return err == nil && name == "asis"
		})
		if s.URL = base; len(left) > 0 {
			s.URL += "?" + strings.Join(left, "&")
		}
		if fragment != "" {
			s.URL += "#" + fragment
		}
	}
	return s
}

// anyName are the limits of a database that no configuration speaks of. What programs there take for the longest name is not known, and the command must reach each cell.
// The store's own limits apply.
var anyName = config.Limits{Table: 1 << 20, Row: 1 << 20, Column: 1 << 20}

// limits are those of a database that no configuration speaks of, for this command. What it makes must be in reach of programs that have no limits of their own.
func (a *app) limits() config.Limits {
	if a.makes {
		return config.Limits{}
	}
	return anyName
}

// file says where the stores are. It is read once: it may be a pipe, as a shell makes of a program that decrypts it.
func (a *app) file(ctx context.Context) (*config.File, error) {
	if a.loaded == nil {
		loaded, err := inTime(ctx, "reading the configuration", a.load)
		if err != nil {
			return nil, err
		}
		a.loaded = loaded
	}
	return a.loaded, nil
}

func (a *app) load() (*config.File, error) {
	url, path := a.store, a.config
	if url == "" && path == "" {
		url, path = os.Getenv("PERCOLATOR_STORE"), os.Getenv("PERCOLATOR_CONFIG")
	}
	switch {
	case url != "" && path != "":
		return nil, usage("both a store and a configuration are named: keep --store or --config")
	case url != "":
		return &config.File{Stores: map[string]config.Store{"store": {URL: url}}, Limits: a.limits()}, nil
	case path != "":
		return config.Load(path)
	}
	return nil, usage("no store is named: give --store URL or --config FILE, or set PERCOLATOR_STORE or PERCOLATOR_CONFIG")
}

// within bounds a command by --timeout.
func (a *app) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, a.timeout)
}

// look makes the function of a command that only looks: f asks, and text shows the answer to people.
func look[T any](a *app, f func(ctx context.Context, r *admin.Reader, args []string) (T, error), text func(w *page, v T)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.ran = true
		ctx, cancel := a.within(cmd.Context())
		defer cancel()
		store, _, err := a.openStore(ctx, true)
		if err != nil {
			return err
		}
		defer func() { _ = store.Close() }()
		r, err := admin.New(store)
		if err != nil {
			return err
		}
		v, err := f(ctx, r, args)
		if err != nil {
			return err
		}
		return show(a, v, text)
	}
}

// done is what a command that changes something says afterwards.
type done struct {
	Done string `json:"done"`
}

// change makes the function of a command that changes something.
func change[T any](a *app, f func(ctx context.Context, db *percolator.DB, args []string) (T, error), text func(w *page, v T)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.ran = true
		ctx, cancel := a.within(cmd.Context())
		defer cancel()
		db, err := a.openDB(ctx)
		if err != nil {
			return err
		}
		v, err := f(ctx, db, args)
		if cerr := closeDB(ctx, db); err == nil {
			err = cerr
		}
		if err != nil && !errors.Is(err, errAnswered) {
			return err
		}
		return cmp.Or(show(a, v, text), err)
	}
}

// making is change, for a command that makes cells by names that it is given.
func making[T any](a *app, f func(ctx context.Context, db *percolator.DB, args []string) (T, error), text func(w *page, v T)) func(*cobra.Command, []string) error {
	run := change(a, f, text)
	return func(cmd *cobra.Command, args []string) error {
		a.makes = true
		return run(cmd, args)
	}
}

// openDB opens a database that is there, for changes. The store is opened as it is first, so that none is made or migrated:
// and then as programs open it, because that finds out what the user may do.
func (a *app) openDB(ctx context.Context) (*percolator.DB, error) {
	store, _, err := a.openStore(ctx, true)
	if err != nil {
		return nil, err
	}
	if err := store.Close(); err != nil {
		return nil, err
	}
	store, opts, err := a.openStore(ctx, false)
	if err != nil {
		return nil, err
	}
	db, err := percolator.New(ctx, store, append(opts, percolator.WithExisting(), percolator.WithLogger(a.log()))...)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return db, nil
}

// closeDB closes a database at the end of a command, also of one that was told to stop, and also while the store hangs: what is left to do in the background may take a
// moment of its own.
func closeDB(ctx context.Context, db *percolator.DB) error {
	closing, end := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer end()
	return db.Close(closing)
}

// log is where the library tells of errors that no call returns. With --json there is none: the standard error has one JSON text at most.
func (a *app) log() *slog.Logger {
	if a.json {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelError}))
}

// show writes an answer, for people or as JSON.
func show[T any](a *app, v T, text func(w *page, v T)) error {
	if a.json && a.answered {
		return nil
	}
	if a.json {
		e := json.NewEncoder(a.out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			return fmt.Errorf("writing the answer: %w", err)
		}
		return nil
	}
	w := &page{w: tabwriter.NewWriter(a.out, 0, 8, 2, ' ', 0)}
	text(w, v)
	if err := w.w.Flush(); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}

// page writes lines, and rows of cells in columns.
type page struct{ w *tabwriter.Writer }

func (p *page) line(format string, args ...any) {
	_, _ = io.WriteString(p.w, harmless(fmt.Sprintf(format, args...))+"\n")
}

// row writes cells in columns. The last one is as long as it likes.
func (p *page) row(cells ...any) {
	for i, c := range cells {
		if i > 0 {
			_, _ = io.WriteString(p.w, "\t")
		}
		_, _ = io.WriteString(p.w, strings.ReplaceAll(harmless(fmt.Sprint(c)), "\n", "%0A"))
	}
	_, _ = io.WriteString(p.w, "\n")
}

// harmless writes a text of others without what a terminal would obey. Lines stay lines, and no tab divides a row.
func harmless(s string) string { return strings.ReplaceAll(shown.Text(s), "\t", "    ") }

func said(w *page, d done) { w.line("%s", d.Done) }

// cellOf reads the typed names of a cell.
func cellOf(args []string) (percolator.Cell, error) {
	var c percolator.Cell
	for i, to := range []*string{&c.Table, &c.Row, &c.Column} {
		s, err := admin.ParseBytes(args[i])
		if err != nil {
			return c, usageError{err}
		}
		*to = s
	}
	return c, nil
}

// nameFlag is a flag with a typed name. An empty one is refused: a script whose variable is not set does not mean everything.
type nameFlag string

func (f *nameFlag) String() string { return string(*f) }
func (f *nameFlag) Type() string   { return "string" }
func (f *nameFlag) Set(arg string) error {
	s, err := admin.ParseBytes(arg)
	if err == nil && s == "" {
		err = errors.New("it is empty")
	}
	*f = nameFlag(s)
	return err
}

// typed reads the typed form of one name.
func typed(arg string) (string, error) {
	s, err := admin.ParseBytes(arg)
	if err != nil {
		return "", usageError{err}
	}
	return s, nil
}

// snapshot reads a point in time: a timestamp, a time, or how long before now. "" is the present, as 0.
func snapshot(ctx context.Context, r *admin.Reader, at string) (percolator.Timestamp, error) {
	if at == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(at, 10, 63); err == nil {
		if n == 0 {
			return 0, usage("--at 0 is before every transaction")
		}
		return percolator.Timestamp(n), nil
	}
	// A time from before all timestamps is the first of them: 0 would be the present.
	if t, err := time.Parse(time.RFC3339Nano, at); err == nil {
		return max(oracleTime(t), 1), nil
	}
	d, err := time.ParseDuration(at)
	if err != nil || d < 0 {
		return 0, usage("--at %q is neither a timestamp, nor a time like 2026-01-31T12:00:00Z, nor how long ago, like 10m", at)
	}
	o, err := r.Overview(ctx)
	if err != nil {
		return 0, err
	}
	return max(percolator.Timestamp(o.Now).Add(-d), 1), nil
}

// exactly takes n arguments, with names for the message.
func exactly(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return fmt.Errorf("%d arguments are needed, %s, and %d are given", len(names), strings.Join(names, " "), len(args))
		}
		return nil
	}
}
