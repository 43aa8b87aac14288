package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// report is what a run ends with.
type report struct {
	Config  config        `json:"config"`
	Started time.Time     `json:"started"`
	Lasted  time.Duration `json:"lasted_ns"`
	Machine string        `json:"machine"`
	Servers string        `json:"servers"`

	// Transactions that write, by what became of them. Settled are those of the
	// committed and aborted ones that ended undetermined, and of which DB.Outcome told
	// the rest.
	Committed    int            `json:"committed"`
	Aborted      int            `json:"aborted"`
	Undetermined int            `json:"undetermined"`
	Settled      int            `json:"settled"`
	ReadOnly     int            `json:"read_only"` // transactions that only read, observers' reads among them
	Workloads    map[string]int `json:"workloads"` // committed ones, those that only read among them
	Reasons      map[string]int `json:"reasons"`   // why transactions ended without a commit
	Opened       int            `json:"processes"` // that opened the database

	Faults         []*faultCount `json:"faults"`
	LocksBefore    int           `json:"locks_before_final_read"`
	LocksPassed    int           `json:"locks_passed_by_final_read"`
	LocksAfter     int           `json:"locks_after_final_read"`
	LongestSilence time.Duration `json:"longest_silence_ns"`

	// Waste has, for each observer of the relay, how often its function was called, and how
	// many runs were committed. It is told, and not judged.
	Waste map[string][2]int `json:"waste,omitempty"`

	Checks     []check          `json:"checks"`
	Stats      percolator.Stats `json:"stats"`
	Violations []string         `json:"violations"`
	Error      string           `json:"error,omitempty"` // that ended the run early
	Passed     bool             `json:"passed"`
}

type faultCount struct {
	Name     string `json:"name"`
	Fired    int    `json:"fired"`
	Misfired int    `json:"misfired"` // could not be done, because of another fault as a rule
}

// check is the verdict of one look at the history.
type check struct {
	Name       string `json:"name"`
	About      string `json:"about"`
	Looked     int    `json:"looked_at"`
	Violations int    `json:"violations"`
}

func newReport(c config) *report {
	return &report{
		Config: c, Started: time.Now().UTC().Truncate(time.Second), Machine: machine(),
		Workloads: map[string]int{}, Reasons: map[string]int{}, Faults: []*faultCount{}, Checks: []check{}, Violations: []string{},
	}
}

func machine() string {
	return fmt.Sprintf("%d processors, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// fault returns the count of a fault, and adds it if need be.
func (r *report) fault(name string) *faultCount {
	for _, f := range r.Faults {
		if f.Name == name {
			return f
		}
	}
	f := &faultCount{Name: name}
	r.Faults = append(r.Faults, f)
	return f
}

func (r *report) fired() int {
	n := 0
	for _, f := range r.Faults {
		n += f.Fired
	}
	return n
}

func (r *report) count(h *history) {
	for _, t := range h.Txns {
		writes := slices.ContainsFunc(t.Ops, func(o op) bool { return o.Kind != opRead })
		switch {
		case t.Outcome == committed && !writes:
			r.ReadOnly++
		case t.Outcome == committed:
			r.Committed++
		case t.Outcome == undetermined:
			r.Undetermined++
		default:
			r.Aborted++
			r.Reasons[t.Reason]++
		}
		if t.Outcome == committed {
			r.Workloads[t.Workload]++
		}
	}
	for why, n := range h.Aborts {
		if why == reason(errNothing) {
			continue
		}
		r.Aborted += n
		r.Reasons[why] += n
	}
	for _, n := range h.Settled {
		r.Settled += n
	}
	r.Opened, r.Stats = h.Opened, h.Stats
}

// save writes the report to a file: in Markdown if its name ends with .md, else as
// JSON.
func (r *report) save(path string) error {
	f, err := os.Create(path) //nolint:gosec // the caller names it
	if err != nil {
		return err
	}
	if strings.HasSuffix(path, ".md") {
		r.markdown(f)
		return f.Close()
	}
	e := json.NewEncoder(f)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return err
	}
	return f.Close()
}

func (r *report) verdict() string {
	switch {
	case r.Error != "":
		return "did not finish: " + r.Error
	case r.Config.Lossy:
		return fmt.Sprintf("not judged, %d violations: these servers lose what they acknowledged, which no store over them can make good (README of the backend)", len(r.Violations))
	case r.Passed:
		return "passed"
	}
	return fmt.Sprintf("FAILED, %d violations", len(r.Violations))
}

// counts lists a map's entries, the greatest first.
func counts(m map[string]int) string {
	names := slices.Sorted(maps.Keys(m))
	slices.SortStableFunc(names, func(a, b string) int { return m[b] - m[a] })
	parts := make([]string, len(names))
	for i, n := range names {
		parts[i] = fmt.Sprintf("%s %d", n, m[n])
	}
	return strings.Join(parts, ", ")
}

// wasteText says how often functions were called for nothing.
func wasteText(waste map[string][2]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(waste)) {
		calls, runs := waste[name][0], waste[name][1]
		parts = append(parts, fmt.Sprintf("%s %d for %d (%.3f)", name, calls, runs, float64(calls)/float64(max(runs, 1))))
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

// rows are the lines of the report that are a name and a text.
func (r *report) rows() [][2]string {
	var faults []string
	for _, f := range r.Faults {
		s := fmt.Sprintf("%s %d", f.Name, f.Fired)
		if f.Misfired > 0 {
			s += fmt.Sprintf(" (and %d that did not work)", f.Misfired)
		}
		faults = append(faults, s)
	}
	s := &r.Stats
	return [][2]string{
		{"verdict", r.verdict()},
		{"backend", fmt.Sprintf("%s (%s)", r.Config.Backend, r.Servers)},
		{"run", fmt.Sprintf("%v from %s, seed %d, %s", r.Lasted.Round(time.Second), r.Started.Format("2006-01-02 15:04 UTC"), r.Config.Seed, r.Machine)},
		{"transactions that write", fmt.Sprintf("%d committed, %d aborted, %d undetermined; %d others were undetermined until DB.Outcome told",
			r.Committed, r.Aborted, r.Undetermined, r.Settled)},
		{"transactions that read", fmt.Sprint(r.ReadOnly)},
		{"committed, by workload", counts(r.Workloads)},
		{"ended without a commit", counts(r.Reasons)},
		{"faults fired", fmt.Sprintf("%d: %s", r.fired(), strings.Join(faults, ", "))},
		{"processes", fmt.Sprintf("%d opened the database", r.Opened)},
		{"ways of commit", fmt.Sprintf("one phase %d, group %d, two phases %d", s.OnePhase, s.Group, s.TwoPhase)},
		{"locks of others", fmt.Sprintf("%d met, %d rolled forward, %d rolled back (%d transactions whose session was gone, %d expired)",
			s.LocksMet, s.RolledForward, s.RolledBack, s.RolledBackSessionGone, s.RolledBackExpired)},
		{"observers", fmt.Sprintf("%d runs, %d conflicts, %d failures, %d cleared; %d versions collected",
			s.ObserverRuns, s.ObserverConflicts, s.ObserverFailures, s.ObserverCleared, s.GCVersions)},
		{"calls for a run of the relay", wasteText(r.Waste)},
		{"locks left", fmt.Sprintf("%d before the final read, %d that it passed over, %d after", r.LocksBefore, r.LocksPassed, r.LocksAfter)},
		{"longest time without a commit", r.LongestSilence.Round(time.Millisecond).String()},
	}
}

func (r *report) print(w io.Writer) {
	for _, row := range r.rows() {
		fmt.Fprintf(w, "%-30s %s\n", row[0], row[1])
	}
	for _, c := range r.Checks {
		fmt.Fprintf(w, "check %-24s %d violations in %d: %s\n", c.Name, c.Violations, c.Looked, c.About)
	}
	for _, v := range r.Violations {
		fmt.Fprintf(w, "VIOLATION %s\n", v)
	}
}

func (r *report) markdown(w io.Writer) {
	fmt.Fprintf(w, "### %s, %v\n\n| | |\n|---|---|\n", r.Config.Backend, r.Lasted.Round(time.Second))
	for _, row := range r.rows() {
		fmt.Fprintf(w, "| %s | %s |\n", row[0], row[1])
	}
	fmt.Fprint(w, "\n| check | looked at | violations |\n|---|---|---|\n")
	for _, c := range r.Checks {
		fmt.Fprintf(w, "| %s: %s | %d | %d |\n", c.Name, c.About, c.Looked, c.Violations)
	}
	for i, v := range r.Violations {
		if i == 0 {
			fmt.Fprintln(w, "\nViolations:")
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "- %s\n", strings.ReplaceAll(v, "\n", " "))
	}
}
