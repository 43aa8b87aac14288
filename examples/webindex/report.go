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
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/examples/webindex/internal/check"
	"github.com/percolate-go/percolate/examples/webindex/internal/index"
	"github.com/percolate-go/percolate/examples/webindex/internal/source"
	"github.com/percolate-go/percolate/examples/webindex/internal/web"
	"github.com/percolate-go/percolate/percolator"
)

// report is what a run tells, as JSON with -json.
type report struct {
	Pages     int   `json:"pages"` // in the store
	Read      int64 `json:"read"`
	Added     int64 `json:"added"`
	Changed   int64 `json:"changed"`
	Unchanged int64 `json:"unchanged"`
	Removed   int64 `json:"removed"`
	Older     int64 `json:"older"`
	Skipped   int   `json:"skipped"` // malformed

	Indexed  int `json:"indexed"`
	Clusters int `json:"duplicate_clusters"`
	Links    int `json:"links"`
	Postings int `json:"postings"`

	Transactions     uint64 `json:"transactions"` // committed, with something written
	Conflicts        uint64 `json:"conflicts"`
	ObserverRuns     uint64 `json:"observer_runs"`
	ObserverFailures uint64 `json:"observer_failures"`

	PrepareSeconds float64 `json:"prepare_seconds"`
	LoadSeconds    float64 `json:"load_seconds"`
	Seconds        float64 `json:"seconds"` // from the first page to the last posting
	CheckSeconds   float64 `json:"check_seconds"`

	LatencyPages int     `json:"latency_pages"`
	LatencyP50   float64 `json:"latency_p50_ms"`
	LatencyP90   float64 `json:"latency_p90_ms"`
	LatencyP99   float64 `json:"latency_p99_ms"`
	LatencyMax   float64 `json:"latency_max_ms"`

	// Processes are the worker processes of -processes, with their rates over the time in which
	// they worked.
	Processes []processReport `json:"processes,omitempty"`

	// Check is "ok", a list of differences, or null without -check.
	Check   any            `json:"check"`
	Results []index.Result `json:"results,omitempty"`

	began       time.Time // the loading
	load        index.LoadStats
	total       int // pages of the sources
	differences int
	checkedRows int
	screen      *screen
}

func newReport(sc *screen) *report { return &report{screen: sc} }

func seconds(since time.Time) float64 {
	return float64(time.Since(since).Round(time.Millisecond)) / float64(time.Second)
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}

// input takes in what a source said of itself.
func (r *report) input(sum source.Summary) {
	r.total += sum.Pages
	r.Skipped += len(sum.Bad)
	for _, line := range sum.Bad {
		r.note("skipped: %s", line)
	}
	for _, why := range slices.Sorted(maps.Keys(sum.Ignored)) {
		r.note("ignored: %d (%s)", sum.Ignored[why], why)
	}
}

// note prints a line that is no result. A failing standard error is nobody's
// concern.
func (r *report) note(format string, args ...any) {
	r.screen.print(format+"\n", args...)
}

const (
	maxDifferences = 20
	maxChecks      = 5
)

// runCheck compares the index with its pages. Another process may be loading
// pages: where the pages were others than at the last look, differences may be
// work that is under way, so it waits and looks again.
func (r *report) runCheck(ctx context.Context, db *percolator.DB, waitIdle func(context.Context) error) error {
	defer r.screen.doing("checking")()
	began := time.Now()
	last := ""
	for n := 1; ; n++ {
		res, err := check.Run(ctx, db, maxDifferences)
		if err != nil {
			return err
		}
		if res.OK() {
			r.Check, r.checkedRows = "ok", res.Cells
			break
		}
		if res.Digest == last || n == maxChecks {
			r.Check, r.differences = res.Differences, res.Count
			break
		}
		last = res.Digest
		if err := waitIdle(ctx); err != nil {
			return fmt.Errorf("waiting for the observers: %w", err)
		}
	}
	r.CheckSeconds = seconds(began)
	return nil
}

func (r *report) checkOK() bool { return r.differences == 0 }

// finish fills in the figures. Those of the worker processes, if there are any, are in the
// sums.
func (r *report) finish(ctx context.Context, db *percolator.DB, x *index.Index, processes *crew) error {
	r.Read, r.Added, r.Changed = r.load.Read.Load(), r.load.Added.Load(), r.load.Changed.Load()
	r.Unchanged, r.Removed, r.Older = r.load.Unchanged.Load(), r.load.Removed.Load(), r.load.Older.Load()
	st := db.Stats()
	r.Transactions = st.OnePhase + st.Group + st.TwoPhase
	r.Conflicts, r.ObserverRuns, r.ObserverFailures = st.Conflicts, st.ObserverRuns, st.ObserverFailures
	if processes != nil {
		r.Processes = processes.totals(r.began)
		sum := total(r.Processes)
		r.Transactions += sum.Commits
		r.Conflicts += sum.Conflicts
		r.ObserverRuns += sum.Runs
		r.ObserverFailures += sum.Failures
	}
	defer r.screen.doing("counting")()
	l := x.Latency()
	r.LatencyPages = l.Pages
	r.LatencyP50, r.LatencyP90, r.LatencyP99, r.LatencyMax = milliseconds(l.P50), milliseconds(l.P90), milliseconds(l.P99), milliseconds(l.Max)
	c, err := x.Count(ctx)
	if err != nil {
		return fmt.Errorf("counting: %w", err)
	}
	r.Pages, r.Indexed, r.Clusters, r.Links, r.Postings = c.Pages, c.Indexed, c.Clusters, c.Links, c.Postings
	return nil
}

// print writes the results to stdout and everything else to stderr.
func (s *settings) print(ctx context.Context, x *index.Index, r *report, stdout, stderr io.Writer) error {
	var results index.Results
	if s.query != "" {
		var err error
		searched := r.screen.doing("searching")
		results, err = x.Search(ctx, s.query, s.limit)
		searched()
		if err != nil {
			return err
		}
	}
	var b strings.Builder
	if s.json {
		r.Results = results.Top
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(r); err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
		return write(stdout, b.String())
	}
	r.text(&b)
	if s.query == "" {
		if err := s.suggest(ctx, x, &b); err != nil {
			return err
		}
		return write(stdout, b.String())
	}
	_, _ = io.WriteString(stderr, b.String())
	b.Reset()
	printResults(&b, s.query, results)
	return write(stdout, b.String())
}

func write(w io.Writer, s string) error {
	if _, err := io.WriteString(w, s); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}
	return nil
}

func (r *report) text(b *strings.Builder) {
	line := func(format string, args ...any) { fmt.Fprintf(b, format+"\n", args...) }
	line("loaded        %d pages: %d new, %d changed, %d unchanged; %d removed", r.Read, r.Added, r.Changed, r.Unchanged, r.Removed)
	line("index         %d pages, %d of them canonical, %d contents with duplicates; %d links, %d postings", r.Pages, r.Indexed, r.Clusters, r.Links, r.Postings)
	line("transactions  %d committed, %d conflicts, %d observer runs", r.Transactions, r.Conflicts, r.ObserverRuns)
	line("time          %.2f s from the first page to the last posting (%.2f s reading input before)", r.Seconds, r.PrepareSeconds)
	if r.LatencyPages > 0 {
		line("latency       from a page's commit until it is searchable: median %.1f ms, p99 %.1f ms (%d pages)", r.LatencyP50, r.LatencyP99, r.LatencyPages)
	}
	if len(r.Processes) > 0 {
		line("processes     %d, beside this one: %s", len(r.Processes), statesText(r.Processes))
		for _, row := range processTable(r.Processes) {
			line("  %s", row)
		}
	}
	switch d := r.Check.(type) {
	case string:
		line("check         %s: %d stored values equal those recomputed from the pages, in %.2f s", d, r.checkedRows, r.CheckSeconds)
	case []string:
		line("check         FAILED: %d differences", r.differences)
		for _, s := range d {
			line("  %s", s)
		}
		if r.differences > len(d) {
			line("  ... and %d more", r.differences-len(d))
		}
	}
}

// suggest shows a few queries where it knows what the pages are about, and what
// to try next.
func (s *settings) suggest(ctx context.Context, x *index.Index, b *strings.Builder) error {
	if s.dir == "" && len(s.warcs) == 0 && !s.noLoad {
		for _, q := range []string{"http server", "sort a slice", "wait for goroutines"} {
			res, err := x.Search(ctx, q, 3)
			if err != nil {
				return err
			}
			b.WriteByte('\n')
			printResults(b, q, res)
		}
	}
	if s.listen != "" {
		return nil
	}
	b.WriteString("\nTry next:\n")
	b.WriteString("  -query \"words\"           search\n")
	if !s.check {
		b.WriteString("  -check                   recompute everything and compare\n")
	}
	b.WriteString("  -listen localhost:8080   search in the browser, with in-links, duplicates and history\n")
	if s.config == "" && strings.HasPrefix(s.store, "memory:") {
		b.WriteString("  -store pebble:PATH       keep the index; the next run loads only what changed\n")
	}
	if s.dir == "" {
		b.WriteString("  -dir DIR                 your own HTML files\n")
	}
	return nil
}

func printResults(b *strings.Builder, query string, res index.Results) {
	fmt.Fprintf(b, "%q: %d pages\n", query, res.Total)
	for i, r := range res.Top {
		fmt.Fprintf(b, "%3d. %s  (%.2f)\n     %s\n", i+1, cmp.Or(r.Title, r.URL), r.Score, r.URL)
		if r.Snippet != "" {
			fmt.Fprintf(b, "     %s\n", r.Snippet)
		}
	}
}

// serve answers HTTP requests until ctx ends.
func serve(ctx context.Context, addr string, x *index.Index, log *slog.Logger, stderr io.Writer) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("-listen %s: %w", addr, err)
	}
	_, _ = fmt.Fprintf(stderr, "serving http://%s/ until interrupted\n", l.Addr())
	srv := &http.Server{
		Handler:           web.New(x, log),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("-listen %s: %w", addr, err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err = srv.Shutdown(closing)
	if serr := <-served; !errors.Is(serr, http.ErrServerClosed) && err == nil {
		err = serr
	}
	if err != nil {
		return fmt.Errorf("stopping the server: %w", err)
	}
	return nil
}
