package percolator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/coretest/hook"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// The options that only tests and measurements need, and steps of a worker that does not
// run. Package internal/coretest has them for other packages of this repository.

func init() {
	hook.Options.WithoutOnePhase = func() any { return withoutOnePhase() }
	hook.Options.WithoutGroups = func() any { return withoutGroups() }
	hook.Options.WithoutDeferred = func() any { return withoutDeferred() }
	hook.Options.WithoutHints = func() any { return withoutHints() }
	hook.Options.WithIDs = func(ids func() string) any { return withIDs(ids) }
	hook.Options.WithSeed = func(seed uint64) any { return withSeed(seed) }
	hook.Options.WithOwnership = func(owns hook.Owns) any { return withOwnership(owns) }
	hook.Options.WithBegin = func(begins func(ctx context.Context)) any { return withBegin(begins) }
	hook.Workers.Publish = func(ctx context.Context, w any) error { return w.(*Worker).publish(ctx) }
	hook.Workers.Left = func(ctx context.Context, w any) ([]hook.Run, error) { return w.(*Worker).left(ctx) }
	hook.Workers.Attempt = func(ctx context.Context, w any, r hook.Run) (time.Duration, error) {
		return w.(*Worker).attemptOnce(ctx, r)
	}
	hook.Workers.Slots = func(w any, observer string) ([]uint64, bool) { return w.(*Worker).slotsNow(observer) }
	hook.Workers.Cascades = func(ctx context.Context, w any) error { return w.(*Worker).knowCascades(ctx) }
	hook.Workers.Timers = func(ctx context.Context, w any) error { return w.(*Worker).knowTimers(ctx) }
	hook.Workers.Timer = func(ctx context.Context, w any) (hook.Run, time.Time, error) { return w.(*Worker).nextTimer(ctx) }
}

// withoutOnePhase makes every transaction commit in two phases, even where the store
// could commit it in one.
func withoutOnePhase() Option { return func(o *options) { o.onePhase = false } }

// withoutGroups makes secondaries commit after the primary, even where the store could
// commit them together with it. It includes withoutOnePhase.
func withoutGroups() Option { return func(o *options) { o.onePhase, o.groups = false, false } }

// withoutDeferred makes every batch durable before the next step.
func withoutDeferred() Option { return func(o *options) { o.deferred = false } }

// withoutHints leaves the garbage of this DB to collections that look at every row.
func withoutHints() Option { return func(o *options) { o.noHints = true } }

// withProbes is mostProbes of this DB.
func withProbes(n int) Option { return func(o *options) { o.probes = n } }

// withIDs names the sessions, workers and members of the DB, and its records. No two may have the same name, over
// all DBs.
func withIDs(ids func() string) Option { return func(o *options) { o.ids = ids } }

// withSeed makes the DB's jitter and random choices repeatable. 0, the default, takes a
// random seed.
func withSeed(seed uint64) Option { return func(o *options) { o.seed = seed } }

// withOwnership makes the DB's workers ask which changes are their own, each time that
// it matters. They are no members, so no shares answer that. owns must not wait: it is
// asked under the worker's lock.
func withOwnership(owns hook.Owns) Option { return func(o *options) { o.owns = owns } }

// withBegin makes each transaction call begins just before it draws its start timestamp by
// itself. One whose first read draws the timestamp does not call it.
func withBegin(begins func(ctx context.Context)) Option {
	return func(o *options) { o.begins = begins }
}

// slotsNow returns the slots that are the worker's own for an observer now, a bit for each, nil if it has no shares of it. starts is
// false if the worker begins nothing any more.
func (w *Worker) slotsNow(observer string) (own []uint64, starts bool) {
	w.mu.Lock()
	starts = !w.stopping
	w.mu.Unlock()
	all := w.member.shares.Load()
	i := slices.IndexFunc(w.list, func(q *queue) bool { return q.o.Name == observer })
	if all == nil || i < 0 {
		return nil, starts
	}
	switch s := all.at(w.list[i], w.now()); s.kind {
	case shareAll:
		own = make([]uint64, len(slotSet{}))
		for i := range own {
			own[i] = ^uint64(0)
		}
	case shareSlots:
		own = slices.Clone(s.slots[:])
	}
	return own, starts
}

// left lists what the worker's observers have yet to see, without parked runs, and clears the
// notifications that every observer has seen. A cell that is locked is an error.
func (w *Worker) left(ctx context.Context) (runs []hook.Run, err error) {
	if err := w.fireDue(ctx); err != nil {
		return nil, err
	}
	for _, table := range slices.Sorted(maps.Keys(w.tables)) {
		for row, err := range w.db.notifiedRows(ctx, table, w.notifyPicks(table)) {
			if err != nil {
				return nil, err
			}
			for column := range notifiedColumns(&row) {
				if runs, err = w.leftOf(ctx, Cell{table, row.Row, column}, runs); err != nil {
					return nil, err
				}
			}
		}
	}
	return runs, nil
}

// fireDue tells of the timers of the index that are due now, whoever owns them.
func (w *Worker) fireDue(ctx context.Context) error {
	v, err := w.db.loadCatalog(ctx)
	if err != nil || v.TimersFrom == 0 || v.asOf < v.TimersFrom {
		return err
	}
	var failed error // of single rows
	inOrder := slices.SortedFunc(maps.Keys(w.shards), func(a, b timerShard) int {
		return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.n, b.n))
	})
	for _, s := range inOrder {
		for from := format.TimersBegin(s.n); from != ""; {
			var page []dueTimer
			if page, from, err = w.db.timersIn(ctx, s, from, v.asOf); err != nil {
				return err
			}
			if len(page) == 0 {
				continue
			}
			rows, err := w.tell(ctx, s.table, page)
			if failed = errors.Join(failed, rows); err != nil {
				return err
			}
		}
	}
	return failed
}

// knowTimers has timers work at once. Nobody but the worker's DB may go by a catalog.
func (w *Worker) knowTimers(ctx context.Context) error {
	_, err := w.db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		changed := !v.Timers
		v.Timers, v.TimersFrom = true, v.asOf
		return changed, nil
	})
	return err
}

// knowCascades has cascades tracked at once, where the worker's DB is the only one that has the data open.
func (w *Worker) knowCascades(ctx context.Context) error {
	_, err := w.db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
		changed := !v.Cascades
		v.Cascades, v.CascadesFrom = true, v.asOf
		return changed, nil
	})
	return err
}

// nextTimer returns the timer that is due next, after now, of the columns that the worker observes. The time is zero without one.
func (w *Worker) nextTimer(ctx context.Context) (next hook.Run, due time.Time, err error) {
	now, err := w.db.draw(ctx)
	if err != nil {
		return next, due, err
	}
	for _, table := range slices.Sorted(maps.Keys(w.tables)) {
		var picks []rowstore.Selector
		for _, column := range w.tables[table] {
			picks = snapshotPicks(picks, format.TimerColumn(column), now)
		}
		for row, err := range w.db.scanSettled(ctx, rowstore.ScanRange{Table: table, Selectors: picks}, now, nil, nil) {
			if err != nil {
				return next, due, err
			}
			for _, column := range w.tables[table] {
				c := Cell{table, row.Row, column}
				timer, err := timerIn(&row, c)
				if err != nil {
					return next, due, err
				}
				if at := timer.due.Time(); timer.set && timer.due > now && (due.IsZero() || at.Before(due)) {
					c, due = c.public(), at
					next = hook.Run{Table: c.Table, Row: c.Row, Column: c.Column}
				}
			}
		}
	}
	return next, due, nil
}

// leftOf adds to runs those of one cell.
func (w *Worker) leftOf(ctx context.Context, c Cell, runs []hook.Run) ([]hook.Run, error) {
	at, err := w.db.draw(ctx)
	if err != nil {
		return nil, err
	}
	view, blocked, err := w.currentView(ctx, c, nil, &snapshot{set: true, start: at})
	switch {
	case err != nil:
		return nil, err
	case blocked:
		return nil, fmt.Errorf("percolator: %v is locked", c.public())
	case view.othersCovered(-1):
		return runs, w.clearNotifications(ctx, view).err
	}
	for i, name := range view.names {
		if w.observes(name, c) && !view.covered(i) {
			public := c.public()
			runs = append(runs, hook.Run{Observer: name, Table: public.Table, Row: public.Row, Column: public.Column})
		}
	}
	return runs, nil
}

// attemptOnce makes one attempt at a run, as the worker would if it ran. A positive wait says
// that the run's next attempt must not come before.
func (w *Worker) attemptOnce(ctx context.Context, r hook.Run) (wait time.Duration, err error) {
	c := Cell{Table: r.Table, Row: r.Row, Column: r.Column}.stored()
	for _, q := range w.queuesOf(c) {
		if q.o.id == r.Observer {
			t := &task{job: job{cell: c, o: q.o}, q: q}
			result := w.attempt(ctx, t)
			w.dropClaim(t)
			return result.wait, result.err
		}
	}
	return 0, fmt.Errorf("percolator: %w: the worker has no observer %q of %v", ErrInvalid, r.Observer, c.public())
}
