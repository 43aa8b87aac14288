package percolatetest

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// actor is a client, or a run of an observer: what goes on between choices.
type actor struct {
	w     *world
	name  string
	run   *coretest.Run // nil for a client
	dying atomic.Bool   // it only ends
	blind atomic.Bool   // its next read fails

	// Of a run, for its own goroutine.
	failure error // of the observer's function
	within  bool  // the observer's function is under way: transactions are its own

	mu      sync.Mutex
	stop    *stop // where it has stopped
	waits   bool  // for another actor
	ended   bool
	later   bool // a run that is to be made again, but not at once
	err     error
	commits map[percolator.Timestamp]bool // transactions whose commit was let through
}

// stop is where an actor waits to be let go on.
type stop struct {
	muts     []rowstore.Mutation // of a commit; nil for a snapshot
	onePhase bool
	own      bool // of a transaction that a run's function makes beside that of the run
	verdict  chan verdict
}

// verdict is what becomes of a stop.
type verdict int

const (
	goesOn     verdict = iota
	conflict           // the commit is refused
	lostBefore         // the commit takes no effect, and nobody tells
	lostAfter          // the commit takes effect, and nobody tells
	diesAfter          // the commit takes effect, and the process dies
	dies               // the process dies
)

// errGoroutines is a program that Explore cannot put in an order.
var errGoroutines = errors.New("two transactions of it stop at once: it must not use goroutines of its own")

func (w *world) actor(name string) *actor {
	a := &actor{w: w, name: name, commits: map[percolator.Timestamp]bool{}}
	w.actors = append(w.actors, a)
	return a
}

// start runs an actor.
func (w *world) start(a *actor, body func() error) {
	go func() {
		done := false
		var err error
		defer func() {
			r := recover()
			a.mu.Lock()
			defer a.mu.Unlock()
			a.ended = true
			switch {
			case a.dying.Load():
			case r != nil:
				a.err = panicked(a.name, r)
			case !done:
				a.err = exited(a.name)
			case err != nil && a.run != nil:
				a.err = fmt.Errorf("%s: %w", a.name, err)
			case err != nil && !errors.Is(err, percolator.ErrConflict) && !errors.Is(err, percolator.ErrUndetermined):
				a.err = fmt.Errorf("%s returned an error: %w", a.name, err)
			case err != nil:
				w.note("%s ends: %v", a.name, firstLine(err))
			}
		}()
		err = body()
		done = true
	}()
}

// moves tells that an actor may yet come to a stop by itself.
func (a *actor) moves() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.ended && a.stop == nil && !a.waits
}

func (a *actor) over() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended
}

// release lets an actor go on, if it has stopped.
func (a *actor) release(v verdict) {
	if v == dies || v == diesAfter {
		a.dying.Store(true)
	}
	a.mu.Lock()
	s := a.stop
	a.stop = nil
	a.mu.Unlock()
	if s != nil {
		s.verdict <- v
	}
}

// comesLater notes whether the run is to be made again, but not at once.
func (a *actor) comesLater(later bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.later = later
}

// snapshot stops where a transaction takes its snapshot.
func (a *actor) snapshot() {
	if a.run == nil || a.within {
		a.halt(&stop{own: a.within})
	} // a run begins with its snapshot, and a transaction that records a failure is no choice
}

// commit stops where a transaction commits. Its later steps pass.
func (a *actor) commit(muts []rowstore.Mutation, onePhase bool) verdict {
	if a.failure != nil {
		return goesOn
	}
	if start := startOf(muts); start != 0 {
		a.mu.Lock()
		again := a.commits[start]
		a.commits[start] = true
		a.mu.Unlock()
		if again {
			return goesOn
		}
	}
	return a.halt(&stop{muts: muts, onePhase: onePhase, own: a.within})
}

// halt waits for the schedule. A process that dies here ends its goroutine: nothing that comes
// after this call in its program happens, but deferred functions.
func (a *actor) halt(s *stop) verdict {
	s.verdict = make(chan verdict, 1)
	a.mu.Lock()
	if a.stop != nil {
		a.err = fmt.Errorf("%s: %w", a.name, errGoroutines)
		a.mu.Unlock()
		runtime.Goexit()
	}
	if a.dying.Load() {
		a.mu.Unlock()
		runtime.Goexit()
	}
	a.stop, a.waits = s, false
	a.mu.Unlock()
	v := <-s.verdict
	if v == dies {
		runtime.Goexit()
	}
	if s.muts != nil {
		if v != conflict && v != lostBefore {
			a.w.noteWrites(s.muts)
		}
		a.w.changed = true
	}
	return v
}
