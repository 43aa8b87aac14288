package percolatetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// Explore runs p in every interleaving of its transactions, of clients and of observers' runs,
// and fails the test with the first schedule that breaks a promise of p. It logs what it has
// covered, and returns it.
//
// A schedule is a list of choices. A transaction has two: when it takes its snapshot, and when
// it commits. What happens in between, it does without a stop. Faults are further choices.
// Explore takes the schedules depth first. If there are more than p.Schedules, or if it takes
// more than half of p.Time, it goes on at random.
//
// Before a violation is reported, its schedule is run again. If that comes to something else,
// the test fails because the program is not deterministic, and the message says at which step.
// Otherwise the schedule is made shorter, if that can be done. Replay runs it.
//
// Explore must not be called in a bubble of package testing/synctest: each schedule has a
// bubble of its own.
func Explore(t *testing.T, p Program) Report {
	t.Helper()
	r := explore(t, p)
	if r.Violation != nil {
		t.Errorf("percolatetest: %v\n%v", r.Violation, r)
		return r
	}
	t.Logf("percolatetest: %v", r)
	return r
}

// Replay runs p by a schedule that Explore has printed, and fails the test if that breaks a
// promise of p, or if a line names something that cannot happen then. Lines that are empty or
// begin with a "#" do not count. After the last line the schedule goes on with what comes
// first. It logs what happened.
func Replay(t *testing.T, p Program, schedule string) {
	t.Helper()
	happened, err := replay(t, p, schedule)
	if err != nil {
		t.Errorf("percolatetest: %v\nschedule:\n%s", err, happened)
		return
	}
	t.Logf("percolatetest: the schedule breaks no promise:\n%s", happened)
}

// replay is Replay without its verdict.
func replay(t *testing.T, p Program, text string) (happened string, err error) {
	p, err = p.withDefaults()
	if err != nil {
		return "", err
	}
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	steps, err := schedule(t, &p, true, following(lines, true))
	if err == nil && len(steps) < len(lines) {
		err = fmt.Errorf("the program has ended before step %d of the schedule, %q", len(steps)+1, lines[len(steps)])
	}
	return write(steps), err
}

// following takes the choices that lines name, and then always the first one. If a line names
// none, a strict chooser ends the schedule, and another one leaves the line out.
func following(lines []string, strict bool) chooser {
	next := 0
	return func(enabled []choice) (int, error) {
		for ; next < len(lines); next++ {
			if i := find(enabled, lines[next]); i >= 0 {
				next++
				return i, nil
			}
			if strict {
				labels := make([]string, len(enabled))
				for i := range enabled {
					labels[i] = enabled[i].label
				}
				return 0, &divergedError{step: next + 1, label: lines[next], enabled: labels}
			}
		}
		return 0, nil
	}
}

// divergedError is a schedule of which a step is not possible.
type divergedError struct {
	step    int
	label   string
	enabled []string
}

func (e *divergedError) Error() string {
	return fmt.Sprintf("step %d of the schedule, %q, is not possible; possible are:\n\t%s", e.step, e.label, strings.Join(e.enabled, "\n\t"))
}

func find(enabled []choice, label string) int {
	return slices.IndexFunc(enabled, func(c choice) bool { return c.label == label })
}

// explore is Explore without its verdict.
func explore(t *testing.T, p Program) (r Report) {
	began := time.Now()
	p, err := p.withDefaults()
	if err != nil {
		r.Violation = &ViolationError{Err: err, Deterministic: true}
		return r
	}
	r.Seed = p.Seed
	for r.Seed == 0 {
		r.Seed = rand.Uint64() //nolint:gosec // a seed that is printed
	}
	steps, err := r.inOrder(t, &p, began)
	if err == nil && !r.Complete {
		steps, err = r.atRandom(t, &p, began)
	}
	if err != nil {
		r.Violation = judge(t, &p, steps, err)
	}
	r.Elapsed = time.Since(began)
	return r
}

// frame is a decision of the schedule under way.
type frame struct {
	enabled []choice
	sleep   map[string]choice // explored already from here on
	at      int               // index into enabled
}

// next returns the index after at of a choice that is not asleep, or -1.
func (f *frame) next(at int) int {
	for i := at + 1; i < len(f.enabled); i++ {
		if _, asleep := f.sleep[f.enabled[i].label]; !asleep {
			return i
		}
	}
	return -1
}

// inOrder takes schedules depth first, with sleep sets: of two orders of choices that do not
// matter to each other, one is enough.
func (r *Report) inOrder(t *testing.T, p *Program, began time.Time) ([]taken, error) {
	var stack []frame
	for r.Schedules < p.Schedules && time.Since(began) < p.Time/2 {
		depth := 0
		steps, err := schedule(t, p, false, func(enabled []choice) (int, error) {
			if depth < len(stack) {
				f := &stack[depth]
				depth++
				if err := f.same(enabled, depth); err != nil {
					return 0, err
				}
				return f.at, nil
			}
			f := frame{enabled: forget(enabled), sleep: map[string]choice{}}
			if depth > 0 && !p.EveryOrder {
				f.inherit(&stack[depth-1])
			}
			if f.at = f.next(-1); f.at < 0 {
				return 0, errPruned
			}
			stack = append(stack, f)
			depth++
			return f.at, nil
		})
		r.Steps += len(steps)
		pruned := errors.Is(err, errPruned)
		if err != nil && !pruned {
			return steps, err
		}
		if !pruned {
			r.Schedules++
		}
		if depth < len(stack) {
			return steps, &nondeterministicError{step: depth + 1, was: "there were further choices", is: "the program has ended"}
		}
		if stack = backtrack(stack); len(stack) == 0 {
			r.Complete = true
			break
		}
	}
	return nil, nil
}

// inherit takes over what is asleep in the decision before, if it does not depend on what was
// decided there.
func (f *frame) inherit(parent *frame) {
	done := &parent.enabled[parent.at]
	for label, z := range parent.sleep {
		if z.independent(done) {
			f.sleep[label] = z
		}
	}
}

// same checks that a repeated beginning comes to the same choices.
func (f *frame) same(enabled []choice, step int) error {
	if slices.EqualFunc(f.enabled, enabled, func(a, b choice) bool { return a.label == b.label }) {
		return nil
	}
	return &nondeterministicError{step: step, was: labelsOf(f.enabled), is: labelsOf(enabled)}
}

func labelsOf(enabled []choice) string {
	labels := make([]string, len(enabled))
	for i := range enabled {
		labels[i] = enabled[i].label
	}
	return strings.Join(labels, "; ")
}

// forget copies choices without what belongs to the schedule that they came from.
func forget(enabled []choice) []choice {
	kept := slices.Clone(enabled)
	for i := range kept {
		kept[i].actor, kept[i].do = nil, nil
	}
	return kept
}

// backtrack goes on to the next choice of the deepest decision that has one left. It returns
// the decisions up to there, none at the end.
func backtrack(stack []frame) []frame {
	for len(stack) > 0 {
		f := &stack[len(stack)-1]
		done := f.enabled[f.at]
		f.sleep[done.label] = done
		if f.at = f.next(f.at); f.at >= 0 {
			break
		}
		stack = stack[:len(stack)-1]
	}
	return stack
}

// atRandom takes schedules at random, from the seed.
func (r *Report) atRandom(t *testing.T, p *Program, began time.Time) ([]taken, error) {
	for i := 0; i < p.Random && time.Since(began) < p.Time; i++ {
		steps, err := schedule(t, p, false, random(r.Seed, uint64(i)))
		r.Random++
		r.Steps += len(steps)
		if err != nil {
			return steps, err
		}
	}
	return nil, nil
}

// random chooses the n-th schedule of a seed. One choice in eight may be a fault.
func random(seed, n uint64) chooser {
	source := rand.New(rand.NewPCG(seed, n)) //nolint:gosec // a repeatable schedule
	return func(enabled []choice) (int, error) {
		plain := slices.IndexFunc(enabled, func(c choice) bool { return c.kind == fault })
		if plain > 0 && source.IntN(8) != 0 {
			return source.IntN(plain), nil
		}
		return source.IntN(len(enabled)), nil
	}
}
