// Command bench measures percolator against its peers and against the figures
// that it must reach.
//
// Each workload has two or more sides: percolator, and what its users would do
// without it. All sides run in one process, alternately and several times, so that
// what else the machine does meets them alike; medians are printed, with the
// spread, and the ratio that the workload is about.
//
//	go run . -list
//	go run . -workload transfer -rows 100000 -goroutines 64 -duration 5s
//
// It is a module of its own, so that peers never enter the library's go.mod.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Config is what the flags say.
type Config struct {
	Store      string        `json:"store,omitempty"` // URL; "" lets each workload choose
	Goroutines int           `json:"goroutines"`
	Rows       int           `json:"rows"`
	ValueSize  int           `json:"value_size"`
	Duration   time.Duration `json:"duration_ns"`
	Warmup     time.Duration `json:"warmup_ns"`
	Repeats    int           `json:"repeats"`
	Seed       uint64        `json:"seed"`
	Skew       float64       `json:"skew,omitempty"`
	Dir        string        `json:"-"` // data of embedded stores

	servers *servers
	skewed  *skew
}

func main() {
	if child() {
		return
	}
	err := run(os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errMissed):
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(3)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// errMissed says that -check found a bar that was not reached.
var errMissed = errors.New("not every bar was reached")

func run(args []string, stdout, stderr io.Writer) error {
	var cfg Config
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	names := flags.String("workload", "all", "workloads to run, or groups of them (embedded, redis, postgres, workers, size, recipes, timers, page, paper, growth, all), separated by commas")
	peers := flags.String("peer", "all", "peers to run beside percolator, separated by commas")
	flags.StringVar(&cfg.Store, "store", "", "URL of the store under percolator, for the workloads that take one (default: each workload's own)")
	flags.IntVar(&cfg.Goroutines, "goroutines", 0, "concurrent callers (default: each workload's own)")
	flags.IntVar(&cfg.Rows, "rows", 0, "rows in the table (default: each workload's own)")
	flags.IntVar(&cfg.ValueSize, "value", 64, "bytes of a value, at least 8")
	flags.Float64Var(&cfg.Skew, "skew", 0, "exponent of Zipf's law by which rows are chosen; 0 chooses all alike, 0.99 is usual for a skew")
	flags.DurationVar(&cfg.Duration, "duration", 0, "how long each side is measured in each repeat (default: each workload's own, 2 s, or 1 s for the points of a series)")
	flags.DurationVar(&cfg.Warmup, "warmup", 500*time.Millisecond, "how long each side runs unmeasured before its first repeat")
	flags.IntVar(&cfg.Repeats, "repeats", 3, "repeats of each side; medians are printed")
	flags.Uint64Var(&cfg.Seed, "seed", 1, "seed of the choice of rows")
	flags.StringVar(&cfg.Dir, "dir", "", "directory for the data of embedded stores (default: a temporary one, removed at the end)")
	asJSON := flags.Bool("json", false, "print one JSON object")
	markdown := flags.Bool("markdown", false, "print tables in Markdown")
	charts := flags.String("charts", "", "directory into which charts are drawn, as SVG")
	pages := flags.String("pages", "", "directory into which a page of Markdown for each group of workloads, a page of all bars, and the charts are written")
	from := flags.String("from", "", "print, draw and check what an earlier run with -json printed to this file, and measure nothing; several files, separated by commas, are put together, and of a workload in more than one the last counts")
	check := flags.Bool("check", false, "exit with status 3 when a bar is missed")
	list := flags.Bool("list", false, "list the workloads and their sides, and stop")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("what is %q? (arguments are given as flags; -help lists them)", flags.Arg(0))
	}
	if *asJSON && *markdown {
		return errors.New("-json and -markdown exclude each other")
	}
	if err := cfg.check(); err != nil {
		return err
	}
	chosen, err := choose(*names)
	if err != nil {
		return err
	}
	if *list {
		printList(stdout, chosen)
		return nil
	}

	report, err := measureOrRead(cfg, chosen, peerFilter(*peers), *from, func(r Result) {
		if !*asJSON && !*markdown {
			r.print(stdout)
		}
	}, stderr)
	if err != nil && len(report.Results) == 0 {
		return err
	}
	if err != nil {
		// Hours of measuring must not be lost because the last workload failed, or was interrupted. Pages and charts are
		// for whole groups.
		*charts, *pages, *check = "", "", false
	}
	return errors.Join(err, output(&report, stdout, *charts, *pages, *asJSON, *markdown, *check))
}

// output draws and prints a report.
func output(report *Report, stdout io.Writer, charts, pages string, asJSON, markdown, check bool) error {
	if err := report.drawInto(charts, pages); err != nil {
		return err
	}
	switch {
	case asJSON:
		if err := report.printJSON(stdout); err != nil {
			return err
		}
	case markdown:
		report.printMarkdown(stdout, base(charts))
	default:
		report.printSummary(stdout)
	}
	if check && !report.reached() {
		return errMissed
	}
	return nil
}

// check refuses what no workload can be run with.
func (cfg *Config) check() error {
	switch {
	case cfg.Goroutines < 0:
		return fmt.Errorf("-goroutines %d is negative", cfg.Goroutines)
	case cfg.Rows < 0:
		return fmt.Errorf("-rows %d is negative", cfg.Rows)
	case cfg.ValueSize < 8:
		return fmt.Errorf("-value %d is less than 8", cfg.ValueSize)
	case cfg.Repeats < 1:
		return fmt.Errorf("-repeats %d is less than 1", cfg.Repeats)
	case cfg.Duration < 0:
		return fmt.Errorf("-duration %v is negative", cfg.Duration)
	case cfg.Warmup < 0:
		return fmt.Errorf("-warmup %v is negative", cfg.Warmup)
	case cfg.Skew < 0:
		return fmt.Errorf("-skew %g is negative", cfg.Skew)
	}
	return nil
}

func printList(to io.Writer, chosen []Workload) {
	for _, w := range chosen {
		fmt.Fprintf(to, "%-22s %s\n", w.Name, w.About)
	}
}

func (r *Report) printJSON(to io.Writer) error {
	e := json.NewEncoder(to)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// drawInto draws charts into one directory and writes pages into the other, if they are named.
func (r *Report) drawInto(charts, pages string) error {
	if charts != "" {
		if err := r.draw(charts); err != nil {
			return fmt.Errorf("drawing charts: %w", err)
		}
	}
	if pages != "" {
		if err := r.writePages(pages); err != nil {
			return fmt.Errorf("writing pages: %w", err)
		}
	}
	return nil
}

// measureOrRead runs the workloads, or reads what -from names. With an error of a workload it returns what was measured before.
func measureOrRead(cfg Config, chosen []Workload, peer func(string) bool, from string, each func(Result), stderr io.Writer) (report Report, err error) {
	if from != "" {
		report, err = readReports(strings.Split(from, ","))
		if err != nil {
			return Report{}, err
		}
		for _, r := range report.Results {
			each(r)
		}
		return report, nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "percolator-bench-")
		if err != nil {
			return Report{}, err
		}
		defer func() { _ = os.RemoveAll(dir) }() // it is a temporary one
		cfg.Dir = dir
	}
	cfg.servers = &servers{}
	defer func() { err = errors.Join(err, cfg.servers.close()) }()
	report = Report{Machine: machine(), Started: time.Now().UTC().Truncate(time.Second)}
	for _, w := range chosen {
		fmt.Fprintf(stderr, "%s: %s\n", w.Name, w.About)
		results, err := w.run(ctx, cfg, peer, stderr)
		if errors.Is(err, errNoServer) {
			fmt.Fprintf(stderr, "%s is left out: %v\n", w.Name, err)
			report.LeftOut = append(report.LeftOut, w.Name)
			continue
		}
		if err != nil {
			return report, fmt.Errorf("%s: %w", w.Name, err)
		}
		report.Results = append(report.Results, results...)
		for _, r := range results {
			each(r)
		}
	}
	return report, nil
}

// base is how a document beside the directory of the charts reaches it.
func base(dir string) string {
	if dir == "" {
		return ""
	}
	return filepath.Base(dir)
}

// choose finds workloads by name or group.
func choose(names string) ([]Workload, error) {
	all := workloads()
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(names, ",") {
		found := false
		var known []string
		for _, w := range all {
			if name == "all" || name == w.Name || name == w.Group {
				wanted[w.Name], found = true, true
			}
			known = append(known, w.Name)
		}
		if !found {
			return nil, fmt.Errorf("no workload %q (there are: %s)", name, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(all, func(w Workload) bool { return !wanted[w.Name] }), nil
}

// peerFilter says which peers -peer lets run.
func peerFilter(names string) func(string) bool {
	if names == "all" {
		return func(string) bool { return true }
	}
	list := strings.Split(names, ",")
	return func(peer string) bool { return slices.Contains(list, peer) }
}
