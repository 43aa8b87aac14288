// Package coretest has the options of package percolator that only tests and
// measurements need. Users do not see them.
package coretest

import (
	"context"
	"time"

	"github.com/percolate-go/percolate/internal/coretest/hook"
	"github.com/percolate-go/percolate/percolator"
)

// WithoutOnePhase makes every transaction commit in two phases, even where the store
// could commit it in one.
func WithoutOnePhase() percolator.Option { return option(hook.Options.WithoutOnePhase()) }

// WithoutGroups makes secondaries commit after the primary, even where the store could
// commit them together with it. It includes WithoutOnePhase.
func WithoutGroups() percolator.Option { return option(hook.Options.WithoutGroups()) }

// WithoutDeferred makes every batch durable before the next step.
func WithoutDeferred() percolator.Option { return option(hook.Options.WithoutDeferred()) }

// WithoutHints leaves the garbage of the DB to collections that look at every row.
func WithoutHints() percolator.Option { return option(hook.Options.WithoutHints()) }

// WithIDs names the sessions, workers and members of the DB, and its records. No two may have the same name, over
// all DBs.
func WithIDs(ids func() string) percolator.Option { return option(hook.Options.WithIDs(ids)) }

// WithSeed makes the DB's jitter and random choices repeatable. 0, the default, takes a
// random seed.
func WithSeed(seed uint64) percolator.Option { return option(hook.Options.WithSeed(seed)) }

// WithOwnership makes the DB's workers ask which changes are their own, each time that
// it matters, in place of sharing them out with other workers. owns must not wait.
func WithOwnership(owns func(observer string, c percolator.Cell) bool) percolator.Option {
	return option(hook.Options.WithOwnership(func(observer, table, row, column string) bool {
		return owns(observer, percolator.Cell{Table: table, Row: row, Column: column})
	}))
}

// WithBegin makes each transaction call begins just before it draws its start timestamp by
// itself. One whose first read draws the timestamp does not call it.
func WithBegin(begins func(ctx context.Context)) percolator.Option {
	return option(hook.Options.WithBegin(begins))
}

// Run names an observer and a cell that it has yet to see.
type Run struct {
	Observer string
	Cell     percolator.Cell
}

// Publish puts the observers of a worker that does not run into the catalog, where nobody has
// written a cell of theirs before: it sweeps nothing.
func Publish(ctx context.Context, w *percolator.Worker) error { return hook.Workers.Publish(ctx, w) }

// Left lists what the observers of a worker have yet to see, without parked runs, and clears the
// notifications that every observer has seen. A cell that is locked is an error.
func Left(ctx context.Context, w *percolator.Worker) ([]Run, error) {
	left, err := hook.Workers.Left(ctx, w)
	runs := make([]Run, len(left))
	for i, l := range left {
		runs[i] = Run{Observer: l.Observer, Cell: percolator.Cell{Table: l.Table, Row: l.Row, Column: l.Column}}
	}
	return runs, err
}

// Attempt makes one attempt at a run, as a worker does that runs. A positive wait says that the
// next attempt must not come before.
func Attempt(ctx context.Context, w *percolator.Worker, r Run) (wait time.Duration, err error) {
	return hook.Workers.Attempt(ctx, w, hook.Run{Observer: r.Observer, Table: r.Cell.Table, Row: r.Cell.Row, Column: r.Cell.Column})
}

// KnowTimers has timers work at once, where the worker's DB is the only one that has the data open.
func KnowTimers(ctx context.Context, w *percolator.Worker) error { return hook.Workers.Timers(ctx, w) }

// KnowCascades has cascades tracked at once, where the worker's DB is the only one that has the data open.
func KnowCascades(ctx context.Context, w *percolator.Worker) error {
	return hook.Workers.Cascades(ctx, w)
}

// NextTimer returns the timer of a column that the worker observes which is the next to be due, and when. The time is zero if
// there is none. A cell that is locked is an error.
func NextTimer(ctx context.Context, w *percolator.Worker) (c percolator.Cell, due time.Time, err error) {
	r, due, err := hook.Workers.Timer(ctx, w)
	return percolator.Cell{Table: r.Table, Row: r.Row, Column: r.Column}, due, err
}

// Slots returns the slots that a worker takes for its own for an observer at this moment, by its own estimate of the oracle's time: a bit
// for each of rowstore.Slots, the lowest bit first. It returns nil while the worker is no member, and if it does not run the observer. starts is false if the
// worker stops: it begins nothing any more, whatever its own slots are. It may be called concurrently with Run. The shares of a worker that has ended stay as they were.
func Slots(w *percolator.Worker, observer string) (own []uint64, starts bool) {
	return hook.Workers.Slots(w, observer)
}

func option(o any) percolator.Option { return o.(percolator.Option) }
