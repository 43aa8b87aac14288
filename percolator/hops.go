package percolator

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// The limit of runs that follow from one another, and what its error says of them.

// countHops has a run of an observer go on from the change that it is for. The error parks the run.
func (w *Worker) countHops(r *runOf, o *Observer, i int, v *cellView) error {
	if o.MaxHops < 0 || o.periodic != nil {
		return nil // it begins anew
	}
	came := v.cascade(i)
	r.hops = int32(came.Hops) //nolint:gosec // at most MaxHops
	if came.Hops < o.MaxHops {
		return nil
	}
	return Park(fmt.Errorf("%w: %d runs lie before this change of %v, which observer %q is to see (Observer.MaxHops is %d); %s",
		ErrTooManyHops, came.Hops, r.cell.public(), o.Name, o.MaxHops, w.lastHops.before(v.change)))
}

const (
	// A worker remembers those of its runs that are at most so many hops away from the least limit of its observers.
	hopsNear = 16
	// mostHopsKept is how many runs it remembers.
	mostHopsKept = 256
	// mostHopsNamed is how many observers an error names.
	mostHopsNamed = 8
)

// lastHops are runs of a worker that many others lie before. A change says how many runs it came from, but not whose they were: names
// in every notification would cost everybody. So an error names the runs of its own process.
type lastHops struct {
	mu    sync.Mutex
	least int // the least limit of the worker's observers
	runs  map[Timestamp]hop
	order []Timestamp
}

// hop is a run: of which observer, and for which change. It has no row: the error that names it is stored beside another row.
type hop struct {
	observer, table, column string
	change                  Timestamp
}

// limit notes the limit of an observer.
func (l *lastHops) limit(most int) {
	if most > 0 && (l.least == 0 || most < l.least) {
		l.least = most
	}
}

// note remembers a run that has committed.
func (l *lastHops) note(tx *Txn, o *Observer, v *cellView) {
	if l.least == 0 || int(tx.run.hops) < l.least-hopsNear || tx.db.known().CascadesFrom == 0 {
		return
	}
	c := v.cell.public()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs == nil {
		l.runs = map[Timestamp]hop{}
	}
	if len(l.order) == mostHopsKept {
		delete(l.runs, l.order[0])
		l.order = slices.Delete(l.order, 0, 1)
	}
	l.runs[tx.commit], l.order = hop{o.Name, c.Table, c.Column, v.change}, append(l.order, tx.commit)
}

// before names the observers whose runs led to a change, as far back as this worker has made them.
func (l *lastHops) before(change Timestamp) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for range mostHopsKept {
		run, known := l.runs[change]
		if !known {
			break
		}
		name := fmt.Sprintf("%q of table %q, column %q", run.observer, run.table, run.column)
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		if len(names) == mostHopsNamed {
			break
		}
		change = run.change
	}
	if len(names) == 0 {
		return "the run that made it was another worker's; observers set each other off, and this one is among them or follows them"
	}
	return "the last of them were runs of these observers, the newest first: " + strings.Join(names, "; ")
}
