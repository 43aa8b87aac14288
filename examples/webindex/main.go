// Command webindex keeps a web index up to date as pages arrive, which is what
// Percolator was made for. Loaders write pages; observers parse them, find
// duplicates, invert the links and maintain the inverted index.
//
//	go run ./examples/webindex                            # Go's own documentation
//	go run ./examples/webindex -check                     # and recompute all of it
//	go run ./examples/webindex -dir site -listen :8080    # a tree of HTML files
//	go run ./examples/webindex -store pebble:idx -warc a.warc.gz b.warc.gz
//	go run ./examples/webindex -store redis://localhost:6379 -processes 8
//
// README.md beside this file describes the tables and the observers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/percolate-go/percolate/config"
	"github.com/percolate-go/percolate/examples/webindex/internal/index"
	"github.com/percolate-go/percolate/examples/webindex/internal/source"
	"github.com/percolate-go/percolate/percolator"
)

func main() {
	if told := os.Getenv(childVariable); told != "" {
		os.Exit(childMain(told))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// settings are the command line.
type settings struct {
	dir     string
	warcs   []string
	skipBad bool
	noLoad  bool
	store   string
	config  string
	workers int
	loaders int

	processes int           // that run the observers; 1 is this one
	every     time.Duration // how often a line says what is under way

	query  string
	limit  int
	listen string
	check  bool
	json   bool
}

const exitUsage = 2

// errUsage is an error of the command line that was reported already.
var errUsage = errors.New("usage")

// run is main without the process: it returns the exit status, 0 when all went
// well and no check found a difference.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parseFlags(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if errors.Is(err, errUsage) {
		return exitUsage
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "webindex:", err)
		return exitUsage
	}
	if s.needsStores() {
		return runWithStores(ctx, args, stdout, stderr)
	}
	return s.run(ctx, stdout, stderr)
}

// run does what the command line asks for, and returns the exit status.
func (s *settings) run(ctx context.Context, stdout, stderr io.Writer) int {
	err := s.execute(ctx, stdout, stderr)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		_, _ = fmt.Fprintln(stderr, "webindex: interrupted")
		return 130
	default:
		_, _ = fmt.Fprintln(stderr, "webindex:", err)
		return 1
	}
}

func parseFlags(args []string, stderr io.Writer) (*settings, error) {
	s := &settings{every: 2 * time.Second}
	fs := flag.NewFlagSet("webindex", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		_, _ = fmt.Fprint(stderr, `Usage: webindex [flags] [more files for -warc]

Loads pages into a web index, waits until they are indexed, and answers queries.
Without -dir and -warc the pages are the documentation of Go's standard library.

`)
		fs.PrintDefaults()
	}
	fs.StringVar(&s.dir, "dir", "", "load the tree of HTML files under this `directory`")
	fs.Func("warc", "load this web archive (WARC 1.0 or 1.1, plain or gzip); `file`s that follow the flags are archives too; may be repeated", func(v string) error {
		if v == "" {
			return errors.New("the name is empty")
		}
		s.warcs = append(s.warcs, v)
		return nil
	})
	fs.BoolVar(&s.skipBad, "skip-bad", false, "leave malformed pages out, with a line about each, instead of stopping at the first")
	fs.BoolVar(&s.noLoad, "no-load", false, "load nothing: use what the store has")
	fs.StringVar(&s.store, "store", "memory:", "`URL` of the store, for example pebble:PATH")
	fs.StringVar(&s.config, "config", "", "`file` that describes the database (percolator.yaml), instead of -store")
	fs.IntVar(&s.workers, "workers", 16, "observer functions that run at once in each process that runs them; 0 leaves the work to others; with -processes the default is 16 in all together")
	fs.IntVar(&s.processes, "processes", 1, "processes that run the observers; with 2 or more, this one starts as many, loads, and shows what they do (not with memory: and pebble:)")
	fs.IntVar(&s.loaders, "loaders", 8, "pages that are loaded at once")
	fs.StringVar(&s.query, "query", "", "print the pages that match these `words`")
	fs.IntVar(&s.limit, "limit", 10, "results to print for -query")
	fs.StringVar(&s.listen, "listen", "", "serve a search page at this `address`, for example localhost:8080, until interrupted")
	fs.BoolVar(&s.check, "check", false, "recompute the whole index from the pages and compare; exit with status 1 on any difference")
	fs.BoolVar(&s.json, "json", false, "print one JSON object instead of text")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, errUsage // fs has printed it
	}
	if rest := fs.Args(); len(rest) > 0 {
		if len(s.warcs) == 0 {
			return nil, fmt.Errorf("unexpected argument %q: files may follow only with -warc", rest[0])
		}
		for _, a := range rest {
			// flag stops at the first file; what follows and looks like a flag was meant
			// as one.
			if strings.HasPrefix(a, "-") {
				return nil, fmt.Errorf("the flag %s comes after a file: put flags first", a)
			}
		}
		s.warcs = append(s.warcs, rest...)
	}
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	if !set["workers"] && s.processes > 1 {
		s.workers = max(2, s.workers/s.processes) // eight times as many would be too much for one machine
	}
	return s, s.checkFlags(set["store"])
}

// checkFlags looks at flags, and at what goes together.
func (s *settings) checkFlags(storeSet bool) error {
	switch {
	case s.config != "" && storeSet:
		return errors.New("-config and -store exclude each other")
	case s.workers < 0:
		return fmt.Errorf("-workers %d: it must be 0 or more", s.workers)
	case s.loaders < 1:
		return fmt.Errorf("-loaders %d: it must be 1 or more", s.loaders)
	case s.limit < 1:
		return fmt.Errorf("-limit %d: it must be 1 or more", s.limit)
	case s.check && s.workers == 0:
		return errors.New("-check waits until all pages are indexed, so it needs -workers 1 or more")
	case s.noLoad && (s.dir != "" || len(s.warcs) > 0):
		return errors.New("-no-load goes with neither -dir nor -warc")
	}
	return s.checkProcesses()
}

func (s *settings) sources(ctx context.Context) ([]source.Source, error) {
	var all []source.Source
	if s.noLoad {
		return nil, nil
	}
	if s.dir != "" {
		d, err := source.NewDir(s.dir, s.skipBad)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	if len(s.warcs) > 0 {
		w, err := source.NewWarc(s.warcs, s.skipBad)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	if len(all) == 0 {
		g, err := source.NewGoDoc(ctx, "")
		if err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return all, nil
}

func (s *settings) execute(ctx context.Context, stdout, stderr io.Writer) (err error) {
	screen := newScreen(stderr, s.every)
	r := newReport(screen)
	sources, err := s.readInput(ctx, r)
	if err != nil {
		return err
	}

	log := slog.New(slog.NewTextHandler(screen, &slog.HandlerOptions{Level: slog.LevelWarn}))
	opened := screen.doing("opening the store")
	db, err := s.open(ctx, log)
	opened()
	if err != nil {
		return err
	}
	defer func() {
		defer screen.doing("closing the store")()
		// The process may have been interrupted; commits that were sent are drained.
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if cerr := db.Close(closing); cerr != nil && err == nil {
			err = fmt.Errorf("closing the store: %w", cerr)
		}
	}()
	x, err := index.New(ctx, db)
	if err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	h, err := s.hire(ctx, db, x, screen, fail)
	if err != nil {
		return err
	}
	defer func() {
		defer screen.doing("waiting for functions that run")()
		if serr := h.stop(); serr != nil && err == nil {
			err = serr
		}
	}()

	if err := h.ready(ctx); err != nil {
		return err
	}
	if err := s.update(ctx, db, x, h, sources, r); err != nil {
		return err
	}
	if s.check {
		if err := r.runCheck(ctx, db, h.waitIdle); err != nil {
			return err
		}
	}
	if err := r.finish(ctx, db, x, h.crew); err != nil {
		return err
	}
	if err := s.print(ctx, x, r, stdout, stderr); err != nil {
		return err
	}
	if s.listen != "" {
		if err := serve(ctx, s.listen, x, log, stderr); err != nil {
			return err
		}
	}
	if !r.checkOK() {
		return fmt.Errorf("the check found %d differences", r.differences)
	}
	return nil
}

// readInput reads and checks all input, before the store is opened, so that bad input
// leaves nothing half-written.
func (s *settings) readInput(ctx context.Context, r *report) ([]source.Source, error) {
	defer r.screen.doing("reading the pages")()
	began := time.Now()
	sources, err := s.sources(ctx)
	if err != nil {
		return nil, err
	}
	for _, src := range sources {
		sum, err := src.Prepare(ctx)
		if err != nil {
			return nil, err
		}
		r.input(sum)
	}
	r.PrepareSeconds = seconds(began)
	return sources, nil
}

func (s *settings) open(ctx context.Context, log *slog.Logger) (*percolator.DB, error) {
	opts := []percolator.Option{percolator.WithLogger(log)}
	if s.config != "" {
		return config.Open(ctx, s.config, opts...)
	}
	if lease := catalogLease(s.store); lease != 0 {
		opts = append(opts, percolator.WithSettings(percolator.Settings{CatalogLease: lease}))
	}
	return openStore(ctx, s.store, opts...)
}

// catalogLease is how long observers that are new in a store wait for what is
// already on its way to it. In a store inside the process nothing is on its way
// for long; but a commit that takes longer than the lease is refused, so it must
// stay far above what the largest takes on a busy machine. 0 is the library's
// default, for servers.
func catalogLease(store string) time.Duration {
	switch scheme, _, _ := strings.Cut(store, ":"); scheme {
	case "memory", "pebble":
		return 2 * time.Second
	default:
		return 0
	}
}

// update loads the sources and waits until the index is up to date.
func (s *settings) update(ctx context.Context, db *percolator.DB, x *index.Index, h *hands, sources []source.Source, r *report) error {
	began := time.Now()
	r.began = began
	p := h.progress(r)
	defer p.stop()
	for _, src := range sources {
		if err := x.Load(ctx, src, s.loaders, &r.load); err != nil {
			return err
		}
	}
	r.LoadSeconds = seconds(began)
	if s.workers == 0 {
		r.Seconds = seconds(began)
		return nil
	}
	p.indexing()
	if err := h.waitIdle(ctx); err != nil {
		return fmt.Errorf("waiting for the observers: %w", err)
	}
	r.Seconds = seconds(began)
	parked, err := db.Parked(ctx)
	if err != nil {
		return fmt.Errorf("listing failed observer runs: %w", err)
	}
	if len(parked) > 0 {
		return fmt.Errorf("%d observer runs failed for good; the first: observer %s on %v: %s", len(parked), parked[0].Observer, parked[0].Cell, parked[0].Error)
	}
	return nil
}
