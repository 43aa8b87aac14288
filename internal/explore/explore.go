// Package explore runs small programs of several clients through their
// interleavings. It owns every call that a client makes: to the store, to the
// oracle, and to the clock. One call is carried out at a time, and the explorer
// decides whose it is and what becomes of it: it succeeds, fails, succeeds with its
// reply lost, is lost, arrives late or twice, or its client dies there. After each
// run the history is judged.
//
// Small programs are explored systematically, depth first, with sleep sets: of two
// orders of calls that do not touch the same things, one is enough. Larger ones are
// explored at random, from a seed. A failing schedule is a readable script, which
// Replay takes and Reduce shortens.
//
// It needs testing/synctest to know when every client has come to its next call, so
// it runs within tests; make explore runs it for long.
package explore

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Budget bounds the faults of one run, each kind by itself.
type Budget struct {
	Die    int // clients that die; of their calls, those that took effect before did
	Leave  int // clients that die and leave a call under way, which takes effect later
	Lose   int // replies lost, of calls that took effect or never will
	Late   int // calls whose sender gives up and that take effect later
	Twice  int // calls that take effect a second time later
	Fail   int // calls that fail for certain
	Expire int // times that every lease and every lock expires
	Slow   int // times that somebody's wait ends while others have calls to make
	Crash  int // crashes of a store, which lose deferred batches
	Cancel int // callers whose context, made by Client.Impatient, ends at a call
	Stall  int // calls that take much longer than others, and their clients live
	Move   int // times that a worker owns no change of an observer for a while; see Program.Owned
}

// ViolationError is a run that broke a promise.
type ViolationError struct {
	Program string
	Script  []string // the choices, one a line; see Replay
	Err     error
}

func (v *ViolationError) Error() string {
	return fmt.Sprintf("program %q: %v\nschedule:\n\t%s", v.Program, v.Err, strings.Join(v.Script, "\n\t"))
}

// Unwrap returns what the history's judge said.
func (v *ViolationError) Unwrap() error { return v.Err }

// Report says what an exploration covered.
type Report struct {
	Program   string
	Schedules int  // runs to their end, no two the same but for the order of independent calls
	Repeated  int  // runs to their end that were the same as another
	Pruned    int  // runs cut short because they would have come to the same as another
	Diverged  int  // times that a repeated beginning went on elsewhere
	Steps     int  // calls carried out
	Complete  bool // every interleaving within the budget was covered
	Faults    map[string]int
	Committed int
	Elapsed   time.Duration
}

func (r Report) String() string {
	how := "bounded"
	if r.Complete {
		how = "complete"
	}
	return fmt.Sprintf("%-44s %s: %7d schedules, %d repeated, %d pruned, %d diverged, %d steps, %d committed, faults %v, %v",
		r.Program, how, r.Schedules, r.Repeated, r.Pruned, r.Diverged, r.Steps, r.Committed, r.Faults, r.Elapsed.Round(time.Millisecond))
}

// diverged is the depth of a run that has left the planned beginning.
const diverged = math.MaxInt

// maxSteps ends a run that does not come to its end.
const maxSteps = 20000

var (
	errStuck  = errors.New("the clients did not come to an end")
	errPruned = errors.New("pruned")
)

// frame is one decision of a run under way.
type frame struct {
	enabled []choice
	sleep   map[string]choice // explored already from here on
	at      int               // index into enabled
}

// chooser decides what happens next: an index into enabled, or the error to end
// the run with.
type chooser func(enabled []choice) (int, error)

// All explores the interleavings of p depth first, up to limit schedules (0 for
// all), within one bubble of t. It returns the first violation. Of what it covers
// it adds to seen what is not there yet, and counts that.
func All(t *testing.T, p Program, limit int, seen Seen) (report Report, violation *ViolationError) {
	began := time.Now()
	report.Program, report.Faults = p.Name, map[string]int{}
	synctest.Test(t, func(t *testing.T) {
		img, err := prepare(t, &p)
		if err != nil {
			violation = &ViolationError{Program: p.Name, Err: err}
			return
		}
		var stack []frame
		for {
			depth := 0
			w, err := run(t, &p, img, func(enabled []choice) (int, error) {
				if depth < len(stack) {
					f := &stack[depth]
					depth++
					if i := find(enabled, f.enabled[f.at].label); i >= 0 {
						return i, nil
					}
					// Within a client goroutines may race. What comes now is a
					// schedule as good as any, and what was planned from here on is
					// left out.
					report.Diverged++
					stack, depth = stack[:depth-1], diverged
				}
				if depth == diverged {
					return 0, nil
				}
				f := frame{enabled: slices.Clone(enabled), sleep: map[string]choice{}}
				if depth > 0 {
					parent := &stack[depth-1]
					done := parent.enabled[parent.at]
					for label, z := range parent.sleep {
						if z.independent(&done) {
							f.sleep[label] = z
						}
					}
				}
				f.at = f.next(-1)
				if f.at < 0 {
					return -1, errPruned
				}
				stack = append(stack, f)
				depth++
				return f.at, nil
			})
			report.add(w, err, seen)
			if err != nil && !errors.Is(err, errPruned) {
				violation = &ViolationError{Program: p.Name, Script: w.script, Err: err}
				return
			}
			stack = backtrack(stack)
			if len(stack) == 0 {
				report.Complete = report.Diverged == 0
				return
			}
			if limit > 0 && report.Schedules >= limit {
				return
			}
		}
	})
	report.Elapsed = time.Since(began)
	return report, violation
}

// backtrack goes on to the next choice that is to be explored, of the deepest decision that
// has one left. It returns the decisions up to there, none at the end.
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

// next returns the index after at of a choice that is not asleep, or -1.
func (f *frame) next(at int) int {
	for i := at + 1; i < len(f.enabled); i++ {
		if _, asleep := f.sleep[f.enabled[i].label]; !asleep {
			return i
		}
	}
	return -1
}

func find(enabled []choice, label string) int {
	return slices.IndexFunc(enabled, func(c choice) bool { return c.label == label })
}

// Random explores n schedules of p at random, from a seed. It returns the first
// violation, and counts as All does.
func Random(t *testing.T, p Program, n int, seed uint64, seen Seen) (report Report, violation *ViolationError) {
	began := time.Now()
	report.Program, report.Faults = p.Name, map[string]int{}
	synctest.Test(t, func(t *testing.T) {
		img, err := prepare(t, &p)
		if err != nil {
			violation = &ViolationError{Program: p.Name, Err: err}
			return
		}
		for i := range n {
			r := rand.New(rand.NewPCG(seed, uint64(i))) //nolint:gosec // a repeatable schedule
			w, err := run(t, &p, img, func(enabled []choice) (int, error) {
				// Faults are many more than plain calls; half of the choices are
				// among the plain ones.
				plain := 0
				for plain < len(enabled) && !enabled[plain].fault {
					plain++
				}
				if plain > 0 && r.IntN(8) != 0 {
					return r.IntN(plain), nil
				}
				return r.IntN(len(enabled)), nil
			})
			report.add(w, err, seen)
			if err != nil {
				violation = &ViolationError{Program: p.Name, Script: w.script, Err: err}
				return
			}
		}
	})
	report.Elapsed = time.Since(began)
	return report, violation
}

func (r *Report) add(w *world, err error, seen Seen) {
	switch {
	case errors.Is(err, errPruned):
		r.Pruned++
	case seen.add(&w.trace):
		r.Schedules++
	default:
		r.Repeated++
	}
	r.Steps += w.steps
	r.Committed += w.history.committed()
	for kind, n := range w.fired {
		r.Faults[kind] += n
	}
}

// Replay runs p once by a script: each line that names a possible choice is taken,
// in order, and the first possible choice where none does. It returns what the
// judge said, and the script of what happened.
func Replay(t *testing.T, p Program, script []string) (happened []string, err error) {
	synctest.Test(t, func(t *testing.T) {
		var img *image
		if img, err = prepare(t, &p); err == nil {
			happened, err = replay(t, &p, img, script)
		}
	})
	return happened, err
}

func replay(t *testing.T, p *Program, img *image, script []string) ([]string, error) {
	rest := script
	w, err := run(t, p, img, func(enabled []choice) (int, error) {
		for i, line := range rest {
			if at := find(enabled, strings.TrimSpace(line)); at >= 0 {
				rest = rest[i+1:]
				return at, nil
			}
		}
		return 0, nil
	})
	return w.script, err
}

// Reduce drops lines of a failing script as long as it still fails, and returns
// what is left.
func Reduce(t *testing.T, p Program, script []string) []string {
	best := script
	synctest.Test(t, func(t *testing.T) {
		img, err := prepare(t, &p)
		if err != nil {
			return
		}
		for size := max(len(best)/2, 1); ; size /= 2 {
			for from := 0; from+size <= len(best); {
				shorter := slices.Concat(best[:from], best[from+size:])
				if _, err := replay(t, &p, img, shorter); err != nil {
					best = shorter
				} else {
					from += size
				}
			}
			if size <= 1 {
				return
			}
		}
	})
	return best
}
