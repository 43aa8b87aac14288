package percolatetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// world is one schedule under way, in a bubble of its own.
type world struct {
	p       *Program
	store   *memstore.Store
	db      *percolator.DB     // past the gates: for the checks
	looker  *percolator.Worker // of db: tells what is left for the observers
	gated   *percolator.DB     // behind a gate: for Setup, and the runs
	runner  *percolator.Worker // of gated: makes the runs
	dbs     []*percolator.DB
	actors  []*actor
	left    []coretest.Run
	timer   timer
	fired   int // how often the clock has moved to a timer
	budget  Faults
	retries int                   // left of Program.Retries
	later   map[coretest.Run]bool // what is to be made again, but not at once
	inOrder atomic.Bool           // whatever happens has its place in the schedule
	stray   atomic.Bool           // something has none
	last    *actor                // the one that the last choice let go on
	changed bool                  // something was committed since left was looked up

	verbose bool
	notesMu sync.Mutex
	notes   []string // since the last choice
	taken   []taken
}

// timer is the next one to be due; without one, due is zero.
type timer struct {
	cell percolator.Cell
	due  time.Time
}

// taken is a choice that was made, among which, and what came of it.
type taken struct {
	label   string
	enabled []string
	notes   []string
}

// errPruned ends a schedule that would come to the same as another.
var errPruned = errors.New("pruned")

// patience is how long, by the bubble's clock, an actor may wait for a time to come. Who waits
// longer waits for another actor, or sleeps until nobody else has anything to do: lastPatience is
// how long it may then wait.
const (
	patience     = 10 * time.Minute
	lastPatience = 24 * time.Hour
)

// settings are those of all processes: nothing ends by them while the clock goes on.
var settings = percolator.Settings{MaxTxnAge: 1000 * time.Hour, Retention: 4000 * time.Hour, CatalogLease: 1000 * time.Hour}

// chooser says which of the choices is taken, or the error to end the schedule with.
type chooser func(enabled []choice) (int, error)

// schedule runs p once. It returns what was chosen, and the first violation.
func schedule(t *testing.T, p *Program, verbose bool, choose chooser) (steps []taken, err error) {
	w := &world{p: p, budget: p.Faults, retries: p.Retries, later: map[coretest.Run]bool{}, verbose: verbose}
	begun := false
	defer func() {
		switch r := recover(); {
		case r == nil:
		case !begun:
			steps, err = nil, fmt.Errorf("%w: Explore and Replay need a bubble of their own, so they must not be called in one, nor in a cleanup: %v", errProgram, r)
		default:
			// The bubble found goroutines that can never go on.
			steps, err = w.taken, errors.Join(err, fmt.Errorf("a function has left a goroutine behind that never ends: %v", r))
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		begun = true
		err = w.run(context.WithoutCancel(t.Context()), choose)
	})
	return w.taken, err
}

// run carries out the schedule.
func (w *world) run(ctx context.Context, choose chooser) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.store = memstore.New()
	defer func() { _ = w.store.Close() }()
	defer func() { err = errors.Join(err, w.end(cancel)) }()
	if err := w.prepare(ctx); err != nil {
		return err
	}
	w.inOrder.Store(true)
	for i, c := range w.p.Clients {
		g := &gate{shared: shared{w.store}, w: w}
		db, err := w.open(ctx, g, uint64(i)+3) //nolint:gosec // a small number
		if err != nil {
			return err
		}
		a := w.actor(c.Name)
		g.client = a
		ctx := context.WithValue(ctx, actorKey{}, a)
		w.start(a, func() error { return c.Run(ctx, db) })
		w.settle() // one client is under way at a time
	}
	for {
		w.settle()
		w.keepNotes()
		if err := w.violated(); err != nil {
			return err
		}
		// The time may have passed because somebody sleeps.
		if due := w.timer.due; w.changed || !due.IsZero() && !time.Now().Before(due) {
			if err := w.look(ctx); err != nil {
				return err
			}
		}
		enabled := w.choices(ctx)
		if len(enabled) == 0 {
			if w.wakes() {
				continue
			}
			return w.finish(ctx)
		}
		if len(w.taken) == w.p.Steps {
			return fmt.Errorf("the program does not end within %d steps (Program.Steps); does a client poll, or an observer run because of itself?", w.p.Steps)
		}
		i, err := choose(enabled)
		if err != nil {
			return err
		}
		w.take(enabled, i)
	}
}

// keepNotes files what came of the last choice.
func (w *world) keepNotes() {
	w.notesMu.Lock()
	defer w.notesMu.Unlock()
	if n := len(w.taken); n > 0 {
		// A worker has read a cell before its observer reads it.
		w.taken[n-1].notes = append(w.taken[n-1].notes, slices.Compact(w.notes)...)
	}
	w.notes = nil
}

// take lets a choice happen, until its actor stops again.
func (w *world) take(enabled []choice, i int) {
	step := taken{label: enabled[i].label, enabled: make([]string, len(enabled))}
	for j := range enabled {
		step.enabled[j] = enabled[j].label
	}
	w.taken, w.last = append(w.taken, step), enabled[i].actor
	for _, a := range w.actors {
		a.mu.Lock()
		a.waits = false // what happens now may let it go on
		a.mu.Unlock()
	}
	enabled[i].do()
}

// open opens a process's DB.
func (w *world) open(ctx context.Context, store rowstore.Store, seed uint64) (*percolator.DB, error) {
	all := append([]percolator.Option{percolator.WithLogger(slog.New(slog.DiscardHandler))}, w.p.Options...)
	all = append(all, percolator.WithSettings(settings), percolator.WithRetryWait(backoff),
		coretest.WithSeed(seed))
	if g, ok := store.(*gate); ok {
		all = append(all, coretest.WithBegin(g.begins))
	}
	db, err := percolator.New(ctx, store, all...)
	if err != nil {
		return nil, fmt.Errorf("%w: opening a database: %w", errProgram, err)
	}
	w.dbs = append(w.dbs, db)
	return db, nil
}

// prepare opens the processes of the checks and of the observers, and runs Setup.
func (w *world) prepare(ctx context.Context) (err error) {
	if w.db, err = w.open(ctx, shared{w.store}, 1); err != nil {
		return err
	}
	if w.looker, err = w.worker(w.db, nil); err != nil {
		return err
	}
	if len(w.p.Observers) > 0 {
		if err := coretest.Publish(ctx, w.looker); err != nil {
			return fmt.Errorf("publishing the observers: %w", err)
		}
		if err := coretest.KnowTimers(ctx, w.looker); err != nil {
			return fmt.Errorf("preparing for timers: %w", err)
		}
	}
	if len(w.p.Observers) > 0 || w.p.Setup != nil {
		if w.gated, err = w.open(ctx, &gate{shared: shared{w.store}, w: w}, 2); err != nil {
			return err
		}
		if w.runner, err = w.worker(w.gated, watch); err != nil {
			return err
		}
	}
	if w.p.Setup != nil {
		if err := call("Setup", func() error { return w.p.Setup(ctx, w.gated) }); err != nil {
			return err
		}
	}
	for n := 0; ; n++ {
		if err := w.look(ctx); err != nil || len(w.left) == 0 {
			return err
		}
		if n == w.p.Steps {
			return fmt.Errorf("after Setup the observers do not come to rest within %d runs (Program.Steps)", w.p.Steps)
		}
		wait, err := coretest.Attempt(ctx, w.looker, w.left[0])
		if err != nil {
			return fmt.Errorf("after Setup: %w", err)
		}
		time.Sleep(wait + afterFailure)
	}
}

// backoff is the wait of observers after a failure, and afterFailure certainly longer.
var (
	backoff      = percolator.Backoff{Min: time.Millisecond, Max: time.Millisecond}
	afterFailure = 2 * backoff.Max
)

// worker makes a worker of the program's observers, whose functions go through around.
func (w *world) worker(db *percolator.DB, around func(o percolator.Observer) percolator.Observer) (*percolator.Worker, error) {
	worker := percolator.NewWorker(db, percolator.WorkerConfig{MaxAttempts: mostAttempts, Backoff: backoff})
	for _, o := range w.p.Observers {
		if around != nil && (o.Func != nil || o.OnChange != nil) {
			o = around(o)
		}
		o.Timeout, o.Rate = 0, 0 // both go by the time, which stands still; a run that is held back would be a choice in vain
		if err := worker.Observe(o); err != nil {
			return nil, fmt.Errorf("%w: %w", errProgram, err)
		}
	}
	return worker, nil
}

// watch tells a run's actor how the observer's function ended.
func watch(o percolator.Observer) percolator.Observer {
	watched := func(ctx context.Context, run func() error) (err error) {
		a, _ := ctx.Value(actorKey{}).(*actor)
		a.within = true
		defer func() {
			a.within = false
			if r := recover(); r != nil {
				err = panicked("observer "+o.Name, r)
			}
			if err != nil && !errors.Is(err, percolator.ErrConflict) {
				a.failure = err
				a.w.note("fails: %v", firstLine(err))
			}
		}()
		return run()
	}
	if f := o.Func; f != nil {
		o.Func = func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			return watched(ctx, func() error { return f(ctx, tx, c) })
		}
	}
	if f := o.OnChange; f != nil {
		o.OnChange = func(ctx context.Context, tx *percolator.Txn, change percolator.Change) error {
			return watched(ctx, func() error { return f(ctx, tx, change) })
		}
	}
	return o
}

// look finds out what is left for the observers, and checks Always.
func (w *world) look(ctx context.Context) (err error) {
	w.changed = false
	if w.left, err = coretest.Left(ctx, w.looker); err != nil {
		return fmt.Errorf("looking for notifications: %w", err)
	}
	if w.timer.cell, w.timer.due, err = coretest.NextTimer(ctx, w.looker); err != nil {
		return fmt.Errorf("looking for timers: %w", err)
	}
	// What somebody else has done is not made again.
	maps.DeleteFunc(w.later, func(r coretest.Run, _ bool) bool { return !slices.Contains(w.left, r) })
	return w.check(ctx, "Always", w.p.Always)
}

// check runs a check on a snapshot of now.
func (w *world) check(ctx context.Context, name string, f func(ctx context.Context, tx *percolator.Txn) error) error {
	if f == nil {
		return nil
	}
	was := w.inOrder.Swap(false)
	defer w.inOrder.Store(was)
	return call(name, func() error {
		return w.db.View(ctx, func(tx *percolator.Txn) error { return f(ctx, tx) })
	})
}

// finish judges a schedule in which nothing is left to choose.
func (w *world) finish(ctx context.Context) error {
	for _, a := range w.actors {
		if !a.over() {
			return fmt.Errorf("%s blocks for ever: it waits for something that is no transaction, and nobody else can go on", a.name)
		}
	}
	return w.check(ctx, "Finally", w.p.Finally)
}

// errStray is a program with a transaction that Explore can put in no order.
var errStray = errors.New("a transaction began with a context that belongs to no client and no run, on the database of Setup: a function must pass on the context that it gets, and add by Combiner.Add within a transaction where it would use AddNow, whose transaction is that of several callers")

// violated returns what is wrong with an actor, and forgets runs that have ended.
func (w *world) violated() error {
	if w.stray.Load() {
		return errStray
	}
	for _, a := range w.actors {
		a.mu.Lock()
		err, ended, later := a.err, a.ended, a.later
		a.mu.Unlock()
		if err != nil {
			return err
		}
		if ended && a.run != nil {
			w.changed = true // what is left for the observers may be less or more
			if later {
				w.later[*a.run] = true
			}
		}
	}
	w.actors = slices.DeleteFunc(w.actors, func(a *actor) bool { return a.run != nil && a.over() })
	return nil
}

// settle waits until each actor has stopped, has ended, or waits for another one. Time goes on
// meanwhile if an actor waits for that.
func (w *world) settle() {
	synctest.Wait()
	for d := time.Millisecond; d < patience; d *= 2 {
		if !slices.ContainsFunc(w.actors, func(a *actor) bool { return a.moves() }) {
			return
		}
		time.Sleep(d)
		synctest.Wait()
	}
	for _, a := range w.actors {
		a.mu.Lock()
		a.waits = !a.ended && a.stop == nil
		a.mu.Unlock()
	}
}

// wakes tells that an actor was asleep, where nothing is left to choose, and has gone on.
func (w *world) wakes() bool {
	waiting := slices.DeleteFunc(slices.Clone(w.actors), (*actor).over)
	for d := patience; len(waiting) > 0 && d < lastPatience; d *= 2 {
		time.Sleep(d)
		synctest.Wait()
		if slices.ContainsFunc(waiting, func(a *actor) bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.ended || a.stop != nil
		}) {
			return true
		}
	}
	return false
}

// end ends the actors that have not come to their own end, and closes the processes.
func (w *world) end(cancel context.CancelFunc) error {
	for _, a := range w.actors {
		a.release(dies)
	}
	cancel()
	w.settle()
	for _, a := range w.actors {
		a.release(dies)
	}
	w.settle()
	var err error
	for _, a := range w.actors {
		if !a.over() {
			err = errors.Join(err, fmt.Errorf("%s does not end, though its context has ended", a.name))
		}
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	for _, db := range w.dbs {
		_ = db.Close(ctx) // what is left of it is forgotten with the store
	}
	return err
}

// call calls a function of the program's. It has a goroutine of its own, which a method such as
// FailNow may end: the schedule goes on and tells what happened.
func call(name string, f func() error) (err error) {
	over := make(chan struct{})
	go func() {
		done := false
		defer close(over)
		defer func() {
			if r := recover(); r != nil {
				err = panicked(name, r)
			} else if !done {
				err = exited(name)
			}
		}()
		if err = f(); err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		done = true
	}()
	<-over
	return err
}

// exited makes an error of a function that ended its goroutine.
func exited(name string) error {
	return fmt.Errorf("%s ended its goroutine: runtime.Goexit, or a method such as FailNow of a test", name)
}

// panicked makes an error of a panic, with the stack from where it began.
func panicked(name string, r any) error {
	stack := string(debug.Stack())
	if _, rest, found := strings.Cut(stack, "\npanic("); found {
		_, stack, _ = strings.Cut(rest, "\n\t") // the line of the call of panic
		_, stack, _ = strings.Cut(stack, "\n")
	}
	return fmt.Errorf("%s panicked: %v\n%s", name, r, stack)
}
