package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// What a run with -processes shows: a table of its processes, again and again in the same
// place of a terminal, or a line from time to time where there is none.

// processTable is a table of processes, with a line of totals.
func processTable(all []processReport) []string {
	var text bytes.Buffer
	show := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(what ...any) {
		for _, w := range what {
			_, _ = fmt.Fprint(show, w, "\t")
		}
		_, _ = fmt.Fprintln(show)
	}
	row("process", "pid", "state", "pages", "pages/s", "functions run", "conflicts", "calls for each run")
	for _, p := range all {
		row(p.Process, p.PID, p.State, p.Pages, rateText(p.Rate), p.Runs, p.Conflicts, p.waste())
	}
	sum := total(all)
	row("all", "", "", sum.Pages, rateText(sum.Rate), sum.Runs, sum.Conflicts, sum.waste())
	_ = show.Flush()
	return strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
}

func rateText(r float64) string { return fmt.Sprintf("%.1f", r) }

// total adds the processes up.
func total(all []processReport) (sum processReport) {
	for _, p := range all {
		sum.Rate += p.Rate
		sum.add(p.figures)
	}
	return sum
}

// waste is how many functions ended for each that took effect.
func (f *figures) waste() string {
	if f.Runs == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(f.Runs+f.Conflicts+f.Failures)/float64(f.Runs))
}

// statesText counts the processes by what they do: "7 running, 1 dead".
func statesText(all []processReport) string {
	var parts []string
	for _, state := range []processState{stateStarting, stateRunning, stateStopping, stateSilent, stateDead} {
		n := 0
		for _, p := range all {
			if p.State == state {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprint(n, " ", state))
		}
	}
	return strings.Join(parts, ", ")
}

// show begins to show the processes, until stop is called. phase says what is under way.
func (c *crew) show(every time.Duration, phase func() string) (stop func()) {
	done := make(chan struct{})
	began := time.Now()
	if c.screen.live() {
		every /= 4
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(max(every, time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-done:
				c.screen.paint(nil)
				return
			}
			all, took := c.reports(), time.Since(began).Seconds()
			if c.screen.live() {
				c.screen.paint(append([]string{fmt.Sprintf("%s, %.0f s", phase(), took)}, processTable(all)...))
				continue
			}
			sum := total(all)
			c.screen.print("%.0f s: %s; %s pages/s; %d functions run, %d conflicts, %s calls for each run; %s\n",
				took, phase(), rateText(sum.Rate), sum.Runs, sum.Conflicts, sum.waste(), statesText(all))
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
}

// progress shows how far a run is, until its stop is called.
func (c *crew) progress(r *report, every time.Duration) *progress {
	p := &progress{}
	p.stop = c.show(every, func() string {
		if p.phase.Load() == 1 {
			return "indexing"
		}
		return fmt.Sprintf("loading, %d of %d pages", r.load.Read.Load(), r.total)
	})
	return p
}

// pids names the processes.
func (c *crew) pids() string {
	var ids []string
	for _, p := range c.reports() {
		ids = append(ids, fmt.Sprint(p.PID))
	}
	return fmt.Sprintf("started %d worker processes: %s", len(ids), strings.Join(ids, " "))
}

// screen is standard error with lines at its end that can be painted again, if it is a
// terminal. Its methods may be called concurrently.
type screen struct {
	mu      sync.Mutex
	to      io.Writer
	size    func() (width, height int, err error) // nil if it is no terminal
	painted []string
	every   time.Duration // how often a line says what is under way; nothing is said of what takes less
}

func newScreen(stderr io.Writer, every time.Duration) *screen {
	s := &screen{to: stderr, every: every}
	if f, ok := terminal(stderr); ok {
		s.size = func() (int, int, error) { return term.GetSize(int(f.Fd())) } //nolint:gosec // a file descriptor is small
	}
	return s
}

// live tells whether lines can be painted.
func (s *screen) live() bool { return s.size != nil }

func (s *screen) print(format string, args ...any) { _, _ = fmt.Fprintf(s, format, args...) }

// Write writes whole lines above the painted ones.
func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	painted := s.painted
	s.wipe()
	n, err := s.to.Write(b)
	s.put(painted)
	return n, err
}

// paint puts lines in the place of those painted before.
func (s *screen) paint(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
	s.put(lines)
}

// wipe removes the painted lines. s.mu is held.
func (s *screen) wipe() {
	if len(s.painted) > 0 {
		_, _ = fmt.Fprintf(s.to, "\033[%dA\r\033[J", len(s.painted))
	}
	s.painted = nil
}

// put paints as many lines as fit, each on one line of the terminal: else it could not be
// told where they begin. The last line is the most important one. s.mu is held.
func (s *screen) put(lines []string) {
	if s.size == nil || len(lines) == 0 {
		return
	}
	width, height, err := s.size()
	if err != nil || width < 2 || height < 2 {
		width, height = 80, 24
	}
	if most := height - 1; len(lines) > most {
		kept := max(0, most-2)
		left := fmt.Sprintf("... and %d more", len(lines)-kept-1)
		lines = append(append(append([]string{}, lines[:kept]...), left), lines[len(lines)-1])
		lines = lines[len(lines)-min(len(lines), most):]
	}
	var text strings.Builder
	s.painted = nil
	for _, line := range lines {
		if utf8.RuneCountInString(line) >= width {
			line = string([]rune(line)[:width-1])
		}
		s.painted = append(s.painted, line)
		text.WriteString(line + "\n")
	}
	_, _ = io.WriteString(s.to, text.String())
}
