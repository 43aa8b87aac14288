package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/sys/unix"
)

// Report is a whole run.
type Report struct {
	Machine Machine   `json:"machine"`
	Started time.Time `json:"started"`
	Results []Result  `json:"results"`
	// LeftOut are workloads for which there was no server.
	LeftOut []string `json:"left_out,omitempty"`
}

// Machine is where the figures were measured.
type Machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"` // that Go uses
	OS    string `json:"os"`
	Go    string `json:"go"`
}

func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s, %s", m.CPU, m.Cores, m.OS, m.Go)
}

func machine() Machine {
	m := Machine{CPU: runtime.GOARCH, Cores: runtime.GOMAXPROCS(0), OS: runtime.GOOS, Go: runtime.Version()}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.OS = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	return m
}

// processCPU is the CPU time of this process so far, user and system.
func processCPU() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func micros(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.2f s", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.2f ms", us/1e3)
	}
	return fmt.Sprintf("%.2f us", us)
}

// known formats a figure that may be unknown, which is below 0.
func known(v float64, format func(float64) string) string {
	if v < 0 {
		return "-"
	}
	return format(v)
}

func bytesOf(n float64) string {
	switch {
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", n/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", n/1e3)
	}
	return fmt.Sprintf("%.0f", n)
}

func rate(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.3g", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func (r Result) table() table.Writer {
	t := table.NewWriter()
	t.AppendHeader(table.Row{"", "per second", "min", "max", "p50", "p99", "CPU client", "CPU server", "bytes", "trips", "allocs", "conflicts", "of the first"})
	for _, s := range r.Sides {
		t.AppendRow(table.Row{
			s.Side, rate(s.Rate), rate(s.RateMin), rate(s.RateMax),
			micros(s.P50), micros(s.P99), micros(s.CPU), known(s.ServerCPU, micros),
			known(s.Bytes, bytesOf), known(s.Trips, func(v float64) string { return fmt.Sprintf("%.2f", v) }), fmt.Sprintf("%.0f", s.Allocs),
			fmt.Sprintf("%.2f%%", 100*float64(s.Conflicts)/float64(s.Ops)), fmt.Sprintf("%.2f", s.Rate/r.Sides[0].Rate),
		})
	}
	columns := make([]table.ColumnConfig, 0, 12)
	for n := 2; n <= 13; n++ {
		columns = append(columns, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	t.Style().Format.Header = text.FormatDefault
	return t
}

// how says how a result was measured.
func (r Result) how() string {
	text := fmt.Sprintf("%d goroutines, %d rows, values of %d bytes", r.Config.Goroutines, r.Config.Rows, r.Config.ValueSize)
	if r.Config.Store != "" {
		text += ", store " + r.Config.Store
	}
	if r.Config.Skew > 0 {
		text += fmt.Sprintf(", skew %g", r.Config.Skew)
	}
	return text + fmt.Sprintf("; medians of %d x %v", r.Config.Repeats, r.Config.Duration)
}

func (r Result) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s: %s (%s)\n%s\n", r.Workload, r.About, r.how(), r.table().Render())
	if len(r.Bars)+len(r.Notes) > 0 {
		fmt.Fprintln(w)
	}
	for _, note := range r.Notes {
		fmt.Fprintln(w, note)
	}
	for _, b := range r.Bars {
		fmt.Fprintln(w, b)
	}
	fmt.Fprintln(w)
}

// printMarkdown prints a section; charts is how its reader reaches the directory of
// the charts, "" for none.
func (r Result) printMarkdown(w io.Writer, charts string) {
	fmt.Fprintf(w, "### %s\n\n%s. %s.\n\n%s\n\n", r.Workload, upperFirst(r.About), upperFirst(r.how()), r.table().RenderMarkdown())
	if charts != "" {
		for _, name := range r.charts() {
			fmt.Fprintf(w, "![%s](%s)\n", r.About, path.Join(charts, name))
		}
		if len(r.charts()) > 0 {
			fmt.Fprintln(w)
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintln(w, "-", note)
	}
	for _, b := range r.Bars {
		fmt.Fprintln(w, "-", upperFirst(b.String()))
	}
	if len(r.Bars)+len(r.Notes) > 0 {
		fmt.Fprintln(w)
	}
}

func upperFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// bar says what is to be reached, and verdict whether it was.
func (b Bar) bar() string {
	if b.AtMost != 0 {
		return strings.TrimSpace(fmt.Sprintf("at most %g %s", b.AtMost, b.Unit))
	}
	return strings.TrimSpace(fmt.Sprintf("at least %g %s", b.AtLeast, b.Unit))
}

func (b Bar) verdict() string {
	switch {
	case b.Unmeasured != "":
		return "NOT MEASURED"
	case b.Reached:
		return "reached"
	}
	return "MISSED"
}

func (b Bar) value() string { return strings.TrimSpace(fmt.Sprintf("%.4g %s", b.Value, b.Unit)) }

func (b Bar) String() string {
	text := fmt.Sprintf("%s: %s (bar: %s): %s", b.What, b.value(), b.bar(), b.verdict())
	if b.Unmeasured != "" {
		text += ", because " + b.Unmeasured
	}
	return text
}

// printMarkdown prints a table of the bars, and then each result.
func (r Report) printMarkdown(w io.Writer, charts string) {
	fmt.Fprintf(w, "%s\n\n%s\n\n", r.measured(), r.bars().RenderMarkdown())
	for _, result := range r.Results {
		result.printMarkdown(w, charts)
	}
}

func (r Report) printSummary(w io.Writer) {
	fmt.Fprintf(w, "%s\n", r.Machine)
	for _, result := range r.Results {
		for _, b := range result.Bars {
			fmt.Fprintf(w, "  %-26s %s\n", result.Workload, b)
		}
	}
	for _, name := range r.LeftOut {
		fmt.Fprintf(w, "  %-26s left out: no server\n", name)
	}
}

// reached tells that nothing was left out and no bar missed.
func (r Report) reached() bool {
	return len(r.LeftOut) == 0 && !slices.ContainsFunc(r.Results, func(r Result) bool {
		return slices.ContainsFunc(r.Bars, func(b Bar) bool { return !b.Reached })
	})
}

// readReports puts reports together that were written with -json.
func readReports(paths []string) (Report, error) {
	var all Report
	for i, path := range paths {
		text, err := os.ReadFile(path) // #nosec G304 -- -from names it
		if err != nil {
			return Report{}, err
		}
		var r Report
		if err := json.Unmarshal(text, &r); err != nil {
			return Report{}, fmt.Errorf("%s is not what -json prints: %w", path, err)
		}
		if i == 0 {
			all.Machine, all.Started = r.Machine, r.Started
		}
		all.LeftOut = append(all.LeftOut, r.LeftOut...)
		for _, result := range r.Results {
			same := func(other Result) bool { return other.Workload == result.Workload }
			if at := slices.IndexFunc(all.Results, same); at >= 0 {
				all.Results[at] = result
			} else {
				all.Results = append(all.Results, result)
			}
		}
	}
	return all, nil
}

// withoutPassword leaves the password out of a store's URL. What is not a URL with
// one is returned as it is.
func withoutPassword(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		return url
	}
	authority, path := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	at := strings.LastIndex(authority, "@")
	if at < 0 {
		return url
	}
	user, _, _ := strings.Cut(authority[:at], ":")
	return scheme + "://" + user + authority[at:] + path
}
