package percolatetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// nondeterministicError is a program that did something else the second time.
type nondeterministicError struct {
	step    int
	was, is string
}

func (e *nondeterministicError) Error() string {
	return fmt.Sprintf("the program is not deterministic at step %d: the first time %s, the second time %s", e.step, e.was, e.is)
}

// judge makes a violation of a schedule that failed. It runs the schedule again, to see whether
// it fails each time, and to write down what happens in it.
func judge(t *testing.T, p *Program, steps []taken, err error) *ViolationError {
	var differs *nondeterministicError
	if errors.As(err, &differs) {
		return &ViolationError{Err: err, Schedule: write(steps)}
	}
	if len(steps) == 0 {
		return &ViolationError{Err: err, Deterministic: true}
	}
	again, aerr := schedule(t, p, true, following(labels(steps), true))
	if d := difference(steps, again, aerr, false); d != nil {
		return &ViolationError{Err: fmt.Errorf("%w (the first time it ended with: %w)", d, err), Schedule: write(steps)}
	}
	third, terr := schedule(t, p, true, following(labels(steps), true))
	if d := difference(again, third, terr, true); d != nil {
		return &ViolationError{Err: fmt.Errorf("%w (the first time it ended with: %w)", d, err), Schedule: write(steps)}
	}
	short, serr := shorten(t, p, again, aerr)
	return &ViolationError{Err: serr, Schedule: write(short), Deterministic: true}
}

// difference says where a second run of the same schedule, which ended with err, differs from
// the first, which failed. notes tells to compare what came of the choices too.
func difference(first, second []taken, err error, notes bool) error {
	for i := range first {
		if i >= len(second) {
			return &nondeterministicError{i + 1, fmt.Sprintf("%q was possible", first[i].label), fmt.Sprintf("it had ended: %v", err)}
		}
		a, b := &first[i], &second[i]
		if !slices.Equal(a.enabled, b.enabled) {
			return &nondeterministicError{i + 1, strings.Join(a.enabled, "; "), strings.Join(b.enabled, "; ")}
		}
		if notes && !slices.Equal(a.notes, b.notes) {
			return &nondeterministicError{i + 1, strings.Join(a.notes, "; "), strings.Join(b.notes, "; ")}
		}
	}
	if err == nil {
		return &nondeterministicError{len(first) + 1, "the schedule failed", "it did not"}
	}
	return nil
}

func labels(steps []taken) []string {
	lines := make([]string, len(steps))
	for i := range steps {
		lines[i] = steps[i].label
	}
	return lines
}

// mostShortening bounds how many schedules are run to find a shorter one.
const mostShortening = 400

// shorten looks for a schedule that fails too and is easier to read: it has fewer choices, and
// goes to and fro less. Where a choice is left out, the actor of the choice before goes on.
func shorten(t *testing.T, p *Program, steps []taken, err error) ([]taken, error) {
	lines, tries := labels(steps), 0
	for size := max(len(lines)/2, 1); ; size /= 2 {
		for from := 0; from+size <= len(lines) && tries < mostShortening; tries++ {
			fewer := slices.Concat(lines[:from], lines[from+size:])
			happened, ferr := schedule(t, p, true, following(fewer, false))
			if ferr == nil {
				from += size
				continue
			}
			lines = fewer
			if burden(happened) <= burden(steps) {
				steps, err = happened, ferr
			}
		}
		if size <= 1 || tries >= mostShortening {
			return steps, err
		}
	}
}

// burden is how hard a schedule is to read.
func burden(steps []taken) int {
	n, last := 0, ""
	for i := range steps {
		who, _, _ := strings.Cut(steps[i].label, ": ")
		n++
		if who != last {
			n++
		}
		last = who
	}
	return n
}

// write writes a schedule for people, and for Replay.
func write(steps []taken) string {
	var b strings.Builder
	for i := range steps {
		b.WriteString("\t" + steps[i].label + "\n")
		for _, note := range steps[i].notes {
			b.WriteString("\t\t# " + strings.ReplaceAll(note, "\n", " ") + "\n")
		}
	}
	return b.String()
}
