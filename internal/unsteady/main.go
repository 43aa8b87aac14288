// Command unsteady judges the tests that failed and passed when they were run again.
//
//	go run ./internal/unsteady -record .ci/unsteady REPORT...
//
// The record has a line for each run of CI that somebody has noted, the newest last: its
// day, and the tests that were unsteady in it. The program prints the line of this run.
// It ends with status 1 when a test was unsteady in this run and in two or more of the
// nine before it, or when more than five were in this one. The reports are those of
// gotestsum's --rerun-fails-report; one that does not exist is of a run in which nothing
// failed.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	if err := run(os.Stdout, os.Args[1:], time.Now()); err != nil {
		fmt.Fprintln(os.Stderr, "unsteady:", err)
		os.Exit(1)
	}
}

const (
	// counted is how many runs count, with this one, and often in how many of them a test
	// may not be unsteady.
	counted = 10
	often   = 3
	// most is how many tests may be unsteady in one run.
	most = 5
)

func run(log io.Writer, args []string, now time.Time) error {
	flags := flag.NewFlagSet("unsteady", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	path := flags.String("record", ".ci/unsteady", "the tests that were unsteady in earlier runs")
	if err := flags.Parse(args); err != nil {
		return err
	}
	earlier, err := readRecord(*path)
	if err != nil {
		return err
	}
	seen, err := readReports(flags.Args())
	if err != nil {
		return err
	}
	var failed []string
	for _, name := range seen {
		times := 1
		for _, tests := range earlier[max(0, len(earlier)-counted+1):] {
			if slices.Contains(tests, name) {
				times++
			}
		}
		fmt.Fprintf(log, "unsteady, in %d of the last %d runs: %s\n", times, counted, name)
		if times >= often {
			failed = append(failed, name)
		}
	}
	fmt.Fprintf(log, "the line of this run for %s:\n%s\n", *path, strings.Join(append([]string{now.Format(time.DateOnly)}, seen...), " "))
	switch {
	case len(failed) > 0:
		return fmt.Errorf("unsteady in %d of %d runs, and to be mended: %s", often, counted, strings.Join(failed, " "))
	case len(seen) > most:
		return fmt.Errorf("%d tests were unsteady in one run, and %d are the most", len(seen), most)
	}
	return nil
}

// readRecord reads the tests of each earlier run, the oldest first. Empty lines and those
// that begin with # say nothing.
func readRecord(path string) ([][]string, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the file that was asked for
	if err != nil {
		return nil, err
	}
	var all [][]string
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		if _, err := time.Parse(time.DateOnly, fields[0]); err != nil {
			return nil, fmt.Errorf("%s:%d: want a day, and then tests: %w", path, n, err)
		}
		all = append(all, fields[1:])
	}
	return all, nil
}

// reported is a line of a report.
var reported = regexp.MustCompile(`^(\S+): (\d+) runs, (\d+) failures$`)

// readReports lists the tests that failed and then passed. Those that always failed have
// failed the run already, and what failed beside its tests has no runs.
func readReports(paths []string) ([]string, error) {
	var all []string
	for _, path := range paths {
		f, err := os.Open(path) //nolint:gosec // a file that was asked for
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			m := reported.FindStringSubmatch(lines.Text())
			if m == nil {
				_ = f.Close()
				return nil, fmt.Errorf("%s: not a line of a report: %q", path, lines.Text())
			}
			if m[2] != m[3] {
				all = append(all, m[1])
			}
		}
		if err := errors.Join(lines.Err(), f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	slices.Sort(all)
	return leaves(slices.Compact(all)), nil
}

// leaves leaves out the tests of which a part is listed too: they failed because it did.
func leaves(sorted []string) []string {
	return slices.DeleteFunc(slices.Clone(sorted), func(name string) bool {
		return slices.ContainsFunc(sorted, func(other string) bool { return strings.HasPrefix(other, name+"/") })
	})
}
