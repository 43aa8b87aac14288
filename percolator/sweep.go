package percolator

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/percolate-go/percolate/internal/format"
)

// publish puts the worker's observers into the catalog. From then on, every process
// that reads the catalog notifies their columns.
func (w *Worker) publish(ctx context.Context) error {
	return w.retry(ctx, "publishing the observers", func() error {
		if w.tracks {
			if _, err := w.db.raiseTo(ctx, cascades); err != nil {
				return err
			}
		}
		v, err := w.db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
			changed := false
			for _, q := range w.list {
				old := q.o.OnChange != nil
				switch r, err := w.registration(v, q); {
				case err != nil:
					return false, err
				case r == nil:
					// The timestamp of the view was drawn before the catalog was read, perhaps long before. This one is later than
					// every removal that the read has seen.
					since, err := w.db.draw(ctx)
					if err != nil {
						return false, err
					}
					v.Observers = append(v.Observers, format.Observer{Name: []byte(q.o.Name), Table: []byte(q.table), Column: []byte(q.column), Since: since, OldValues: old})
					v.Changes = v.Changes || old
					changed = true
				case r.OldValues != old:
					return false, otherKind(q)
				}
			}
			return changed, nil
		})
		if err == nil {
			w.published = v.asOf
			w.noteIDs(v)
			w.warnOfMoved(v)
			w.notePaused(v) // before it looks for changes
		}
		return err
	})
}

// otherKind is the error of an observer that is registered with Func and has OnChange here, or the
// other way round. What it acknowledged as the one means nothing to the other.
func otherKind(q *queue) error {
	here, there := "OnChange", "Func"
	if q.o.Func != nil {
		here, there = there, here
	}
	c := Cell{Table: q.table, Column: q.column}.public()
	return fmt.Errorf("%w: the observer %q of table %q, column %q has %s here and is registered with %s: remove it first (DB.RemoveObserver), or use another name",
		ErrInvalid, q.o.Name, c.Table, c.Column, here, there)
}

// warnOfMoved says in the log what the observers of this worker have left on other columns: the program of an observer that moved with its name
// does not run the old registration any more, and its notifications wait for ever.
func (w *Worker) warnOfMoved(v *catalogView) {
	for _, q := range w.list {
		for i := range v.Observers {
			r := &v.Observers[i]
			if !r.Has(q.o.Name) || string(r.Table) == q.table && string(r.Column) == q.column {
				continue
			}
			c := Cell{Table: string(r.Table), Column: string(r.Column)}.public()
			w.db.log.Warn("an observer of this name is registered on another column too, which this worker does not observe; if it has moved, end the old registration with DB.RemoveRegistration",
				"observer", q.o.Name, "table", c.Table, "column", c.Column)
		}
	}
}

// record finds the registration of a queue's observer, nil without one. It does not go by the name alone, which another
// observer may have taken meanwhile.
func (w *Worker) record(v *catalogView, q *queue) *format.Observer {
	for i := range v.Observers {
		if r := &v.Observers[i]; r.Is(q.o.id, q.table, q.column) && r.Has(q.o.Name) {
			return r
		}
	}
	return nil
}

// attend makes sure, as long as the worker runs, that its observers are registered, and has them
// swept for. It looks again when a catalog lease has passed, or when a run has
// met a catalog without its observer, whatever a sweep does meanwhile. It returns an error that matches
// ErrObserverRemoved when one has been removed, and one that matches ErrFormat once a newer program
// has raised the catalog: this one commits nothing more, and must not keep its share from others.
func (w *Worker) attend(ctx context.Context, started <-chan struct{}) error {
	for {
		var v *catalogView
		err := w.retry(ctx, "reading the catalog", func() (err error) {
			v, err = w.db.loadCatalog(ctx)
			return err
		})
		if err != nil {
			return err
		}
		if err := w.checkRegistered(v); err != nil {
			w.db.log.Error("the worker stops, because an observer of its was removed; run the worker anew to register it again", "err", err)
			return err
		}
		w.notePaused(v)
		w.noteTimers(v)
		if len(w.unswept(v)) > 0 {
			leaveToken(w.sweepSoon)
		} else if isClosed(started) && !isClosed(w.ready) {
			close(w.ready) // the first tick of each periodic is in the store, too
		}
		if _, err := w.sleepOr(ctx, v.lease, w.recheck); err != nil {
			return err
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// sweepsAtOnce is how many sweeps of a worker read at a time.
const sweepsAtOnce = 4

// sweepFresh sweeps whenever attend has seen that it is due. It is apart from attend: a sweep may take hours, or wait
// for a store that is away. So each sweep has a goroutine of its own, and holds up no other one, as long as fewer than sweepsAtOnce hang.
func (w *Worker) sweepFresh(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel(nil)
	var mu sync.Mutex
	busy := map[string]bool{} // by the rows of their leases
	isBusy := func(row string) bool {
		mu.Lock()
		defer mu.Unlock()
		return busy[row]
	}
	room := make(chan struct{}, sweepsAtOnce)
	for {
		select {
		case <-w.sweepSoon:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		var fresh []*sweeper
		err := w.retry(ctx, "looking for new observers", func() (err error) {
			fresh, err = w.freshSweeps(ctx, isBusy)
			return err
		})
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx) // perhaps what ended a sweep
		}
		if err != nil {
			return err
		}
		for _, s := range fresh {
			mu.Lock()
			busy[s.lease.row] = true
			mu.Unlock()
			all.Go(func() {
				if err := s.run(ctx, room); err != nil {
					cancel(err)
				}
				mu.Lock()
				delete(busy, s.lease.row)
				mu.Unlock()
				leaveToken(w.recheck) // attend sees whether any is left
			})
		}
	}
}

// checkRegistered returns an error that matches ErrObserverRemoved when an observer of
// this worker is not in the catalog any more, and ErrInvalid if it is there with a function of the
// other kind. An observer that another worker has
// registered again meanwhile goes on: the new registration has a sweep of its own.
func (w *Worker) checkRegistered(v *catalogView) error {
	if v.asOf < w.published {
		return nil
	}
	for _, q := range w.list {
		r := w.record(v, q)
		if r != nil && r.OldValues != (q.o.OnChange != nil) {
			return otherKind(q)
		}
		if r == nil {
			c := Cell{Table: q.table, Column: q.column}.public()
			return fmt.Errorf("%w: %q of table %q, column %q", ErrObserverRemoved, q.o.Name, c.Table, c.Column)
		}
	}
	return nil
}

// unswept lists the registrations of this worker's observers whose sweep is not done.
func (w *Worker) unswept(v *catalogView) []format.Observer {
	var fresh []format.Observer
	for _, q := range w.list {
		if r := w.record(v, q); r != nil && r.Swept == 0 {
			fresh = append(fresh, *r)
		}
	}
	return fresh
}

// freshSweeps are the sweeps for those of this worker's observers that are new, or registered again, and that are not busy already.
// They have their first snapshot.
func (w *Worker) freshSweeps(ctx context.Context, busy func(leaseRow string) bool) ([]*sweeper, error) {
	v, err := w.db.loadCatalog(ctx)
	if err != nil {
		return nil, err
	}
	fresh := func(v *catalogView) []format.Observer {
		return slices.DeleteFunc(w.unswept(v), func(r format.Observer) bool { return busy(format.SweepLeaseRow(&r)) })
	}
	all := fresh(v)
	if len(all) == 0 {
		return nil, nil
	}
	// The snapshot of the sweeps lies above every commit that used an older view, and every
	// commit that used a newer view knew the observers.
	at, err := w.db.outlastOlder(ctx, v.revision, func(v *catalogView) bool { return len(fresh(v)) == 0 })
	if err != nil || at == 0 {
		return nil, err
	}
	sweeps := make([]*sweeper, len(all))
	for i, r := range all {
		sweeps[i] = w.newSweeper(r, at)
	}
	return sweeps, nil
}

// unswept finds a registration of which nobody has said that its sweep is done. A later registration of the observer, which needs a sweep of its own,
// is not taken for it.
func (v *catalogView) unswept(r *format.Observer) *format.Observer {
	for i := range v.Observers {
		if o := &v.Observers[i]; o.Swept == 0 && o.Since == r.Since && o.Is(string(r.Name), string(r.Table), string(r.Column)) {
			return o
		}
	}
	return nil
}
