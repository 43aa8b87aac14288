package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
)

// pages are the documents that -pages writes, in their order, each with the workloads of
// one group. The prose about the figures is in other documents, which it leaves alone.
var pages = []struct{ group, title, about string }{
	{"embedded", "Embedded", "The embedded store beside pebble itself, badger and bbolt."},
	{"redis", "Redis", "Transactions on Redis beside plain commands and scripts, and observers beside asynq."},
	{"postgres", "Postgres", "Transactions on Postgres beside plain pgx, and observers beside River."},
	{"paper", "The paper's figures", "What the paper measured, measured here: documents that arrive, scaling, failures, and the index by observers against a batch job."},
	{"workers", "Workers", "Observers in one process and in several: a backlog, a steady rate, and functions that take long."},
	{"size", "Size", "Large transactions, and what small ones feel of them; what a garbage collection costs; a table that is filled and emptied all the time."},
	{"recipes", "Recipes", "Keys and values with types, things done once, values that everybody adds to, an outbox, and indexes, beside what one would do by hand."},
	{"timers", "Timers", "How late timers run, alone and beside many others; many that are due at once; and a backlog by the kind of the observer's function."},
	{"page", "The page", "How long the views of the page for a browser take over a store of many rows in which much waits, is locked and is parked."},
	{"growth", "Growth", "More callers, rows, values, versions and processes."},
}

// barsPage has every bar of all pages.
const barsPage = "bars"

// pageGroup returns the group of a result. A result that followed from another workload has
// that one's name and an ending.
func pageGroup(workload string) string {
	group, longest := "", 0
	for _, w := range workloads() {
		if (w.Name == workload || strings.HasPrefix(workload, w.Name+"-")) && len(w.Name) > longest {
			group, longest = w.Group, len(w.Name)
		}
	}
	return group
}

// writePages writes a page for each group that has results, the page of the bars, and the
// charts, all into one directory.
func (r Report) writePages(dir string) error {
	if err := r.draw(dir); err != nil {
		return fmt.Errorf("drawing charts: %w", err)
	}
	byGroup := map[string]Report{}
	for _, result := range r.Results {
		group := pageGroup(result.Workload)
		part := byGroup[group]
		part.Machine, part.Started = r.Machine, r.Started
		part.Results = append(part.Results, result)
		byGroup[group] = part
	}
	for _, p := range pages {
		part, ok := byGroup[p.group]
		delete(byGroup, p.group)
		if !ok {
			continue
		}
		if err := writeFile(filepath.Join(dir, p.group+".md"), func(w io.Writer) { part.printPage(w, p.title, p.about) }); err != nil {
			return err
		}
	}
	for group, part := range byGroup {
		return fmt.Errorf("no page for the group %q of %s", group, part.Results[0].Workload)
	}
	return writeFile(filepath.Join(dir, barsPage+".md"), r.printBars)
}

func writeFile(path string, content func(io.Writer)) error {
	var text strings.Builder
	content(&text)
	return os.WriteFile(path, []byte(strings.TrimRight(text.String(), "\n")+"\n"), 0o644) //nolint:gosec // a document
}

func (r Report) measured() string {
	return fmt.Sprintf("Measured from %s on, on %s.", r.Started.Format("2006-01-02 15:04 MST"), r.Machine)
}

// printPage prints the results of a group.
func (r Report) printPage(w io.Writer, title, about string) {
	fmt.Fprintf(w, "# %s\n\n%s\n\n%s [How to read the tables](../benchmarks.md#how-to-read-the-tables). `make bench` wrote this page.\n\n", title, about, r.measured())
	for _, result := range r.Results {
		// The charts lie beside the page.
		result.printMarkdown(w, ".")
	}
}

// printBars prints the bars of all results.
func (r Report) printBars(w io.Writer) {
	fmt.Fprintf(w, "# The bars\n\nEvery figure that a change must not fall below, with what was reached. [missed.md](missed.md) gives the reasons for those that were missed.\n\n"+
		"%s `make bench` wrote this page.\n\n%s\n", r.measured(), r.bars().RenderMarkdown())
}

// bars is a table of all bars.
func (r Report) bars() table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"workload", "figure", "value", "bar", ""})
	for _, result := range r.Results {
		for _, b := range result.Bars {
			t.AppendRow(table.Row{result.Workload, b.What, b.value(), b.bar(), b.verdict()})
		}
	}
	return t
}
