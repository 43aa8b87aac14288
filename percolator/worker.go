package percolator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// WorkerConfig changes a Worker. The zero value works: what is zero or negative is the
// default, unless the field says otherwise, and what is out of bounds becomes the bound.
type WorkerConfig struct {
	// Concurrency is how many functions run at once of all observers that set no
	// Observer.Concurrency. Default 16. They share these places: the one with the fewest
	// functions running starts its next one first. From 4 on, a part (an eighth, at least
	// one) is kept free for those that have none running, so that slow functions do not take
	// every place. An observer that sets its own has as many places apart from these.
	Concurrency int
	// MaxAttempts is the number of failures of one change after which its run is parked,
	// for observers that do not set their own. Default 10, also for a negative number.
	MaxAttempts int
	// MaxHops is how many runs of observers may follow from one another, for observers that do not set their own
	// (Observer.MaxHops). Default 1,000, which counts where cascades are tracked. A number above 0 also has Run begin to track them; a negative one is no limit.
	MaxHops int
	// BreakAt is how many changes of an observer must have failed in a worker, with hardly any success
	// between them (19 of 20 runs failed), before the worker takes it that all would fail: it leaves the observer's changes alone then,
	// says so in the log as an error, counts it in Stats.ObserverBroken, and lets one run through from time to time: after 1 s first, 1 min at
	// most. It goes on when one succeeds. So what is broken for a while does not park every change. Default 64; negative for never.
	BreakAt int
	// Backoff is the wait before a failed function is called again for the same
	// change, for observers that do not set their own. A newer change is attempted at once. Default 50 ms to 1 min. If more than
	// 16,384 changes wait, those over it are attempted after the scan that follows the
	// wait, which may be a minute late.
	Backoff Backoff
	// Poll is the wait between two scans of a table for notifications if the store has no push
	// (rowstore.Waker). It is Min after a scan has found something. It doubles, up to
	// Max, while scans find nothing or only what leads to nothing. Default 1 to 250 ms, at
	// least 100 us. Where more workers share an observer's changes it doubles further, up to 5 ms
	// for each of them: 100 workers wait 500 ms at most, and 1,000 wait 5 s. So workers that are
	// idle look at a table some 200 times a second all together, or 1/Max for each if that is less. A scan of
	// 4,096 rows or more that found nothing for this worker, or next to nothing beside what waits, is
	// followed by a wait as long as it took, 10 s at most, if that is longer: what waits has
	// the worker scan for half of its time at most, or t/(t+10 s) of it where a scan takes t > 10 s.
	Poll Backoff
	// Rescan is the wait between two scans if the store has a push. These scans find
	// what no push tells of, such as the notifications of a client that died before it
	// could finish. Default 2.5 s, at least 100 us. Where the store finds rows by slots
	// (rowstore.SlotScanner), a scan that took long and found nothing for this worker, or
	// next to nothing beside what waits, is followed by one that rests between its parts, nine times as long as
	// the first one took in all, a minute at most. Where it does not, or the push does not work, the wait is as long as the scan took,
	// 10 s at most, if that is longer; a longer one under way when the push is lost ends within 10 s.
	Rescan time.Duration
	// MemberLease is how long the other workers that run an observer leave this worker its
	// share of the changes after its last sign of life, which it gives twice in that time.
	// A worker that was killed is missed one and a half times as long at most; one that
	// hangs, or has no place for another function, hands its share over after as long.
	// It is also the time since the last progress of a sweep after which another worker
	// takes the sweep over. A worker that joins waits for two thirds of the longest lease
	// of the others. Default 3 s, at least 10 ms, at most 5 min.
	MemberLease time.Duration
	// GCInterval is the wait between two garbage collections. All workers together
	// collect once in that time, also workers that start after this one has ended.
	// Default a tenth of the retention, at most 1 h; negative for none. Tables with a shorter
	// retention of their own are collected once in a tenth of that, if it is less.
	GCInterval time.Duration
	// StopTimeout is how long functions that are running when Run's context ends may
	// go on before their own contexts end. Default 10 s.
	StopTimeout time.Duration
}

const (
	// leastWait bounds how often an idle worker may look.
	leastWait = 100 * time.Microsecond
	// Shorter leases would be over before they are renewed. Longer ones would leave the
	// share of a worker that was killed to nobody for as long.
	leastMemberLease = 10 * time.Millisecond
	mostMemberLease  = 5 * time.Minute
)

func (c *WorkerConfig) setDefaults() {
	if c.Concurrency <= 0 {
		c.Concurrency = 16
	}
	if c.MaxAttempts <= 0 {
		c.MaxAttempts = 10
	}
	if c.BreakAt == 0 {
		c.BreakAt = defaultBreakAt
	}
	c.Backoff.fill(Backoff{Min: 50 * time.Millisecond, Max: time.Minute})
	c.Poll.fill(Backoff{Min: time.Millisecond, Max: 250 * time.Millisecond})
	c.Poll.Min, c.Poll.Max = max(c.Poll.Min, leastWait), max(c.Poll.Max, leastWait)
	if c.Rescan <= 0 {
		c.Rescan = 2500 * time.Millisecond
	}
	c.Rescan = max(c.Rescan, leastWait)
	if c.MemberLease <= 0 {
		c.MemberLease = 3 * time.Second
	}
	c.MemberLease = min(max(c.MemberLease, leastMemberLease), mostMemberLease)
	if c.StopTimeout <= 0 {
		c.StopTimeout = 10 * time.Second
	}
}

// Worker runs observers. Any number of workers, in any number of processes, may
// run the same ones: for each change at most one run takes effect.
type Worker struct {
	db       *DB
	config   WorkerConfig
	wakers   []rowstore.Waker // the store's push, none without one
	tracks   bool             // an observer's MaxHops asks for cascades to be tracked
	lastHops lastHops
	list     []*queue            // of each observer
	queues   map[Cell][]*queue   // the same by stored table and column; the row is ""
	tables   map[string][]string // the observed columns of each table, stored
	id       string              // of its claims, and of the leases of its sweeps
	member   membership          // among the workers that run the same observers

	ctx    context.Context // of Run: nothing is begun once it has ended
	runCtx context.Context // of functions, which outlive ctx by StopTimeout at most
	tasks  sync.WaitGroup  // jobs that are queued or run
	ready  chan struct{}   // closed when published and swept
	ended  chan struct{}   // closed when Run has ended

	kicks     map[string]chan struct{}     // a token for a table to be scanned
	asked     map[string]*asked            // the rows of a table that pushes told of
	room      map[string]chan struct{}     // a token when a queue of the table has room again
	freshRoom map[string]chan struct{}     // the same for what pushes tell of
	sooner    chan struct{}                // a token when a new pause ends before all others
	claimSoon chan struct{}                // a token to look for runs that must be claimed
	beatSoon  chan struct{}                // a token to look for a barrier of WaitIdle
	recheck   chan struct{}                // a token to look whether the observers are still registered
	sweepSoon chan struct{}                // a token to sweep for observers that are new
	timed     chan struct{}                // closed when timers may be due
	shards    map[timerShard]chan struct{} // a token to look who has a shard of timers
	listening atomic.Int32                 // how many of the wakers work now
	published Timestamp                    // when its observers were in the catalog first

	mu      sync.Mutex
	started bool
	err     error // of Run
	// Of finding.
	rested   rested
	boundsOf map[string]bounds
	looking  map[string]time.Time // since when a page of a table is being read
	// Of the jobs.
	jobs     map[job]*task // queued or running
	running  int
	turn     int  // which queue of list is asked first
	stopping bool // nothing is started any more
	paused   map[job]*pausedJob
	pauses   pauseHeap
	locked   map[string][]*pausedJob // of paused: those of a table that met a lock
	// Of WaitIdle.
	idle     map[chan struct{}]struct{} // closed when something ended
	open     []*UndeterminedError       // commits that runs have left open (open.go)
	progress uint64                     // functions called, and cells that were cleared
	// Set before Run (middleware.go).
	middleware []Middleware
	onError    []func(ctx context.Context, e RunError)
}

// NewWorker makes a worker of db. It does nothing before Run. A nil db panics.
func NewWorker(db *DB, config WorkerConfig) *Worker {
	config.setDefaults()
	var wakers []rowstore.Waker
	if waker, ok := rowstore.Unwrap[rowstore.Waker](db.store); ok {
		wakers = rowstore.WakersOf(waker)
	}
	return &Worker{
		db: db, config: config, wakers: wakers,
		queues: map[Cell][]*queue{}, tables: map[string][]string{},
		id:  db.uniqueID(),
		ctx: db.ctx, runCtx: db.ctx,
		kicks: map[string]chan struct{}{}, room: map[string]chan struct{}{}, freshRoom: map[string]chan struct{}{},
		sooner: make(chan struct{}, 1), claimSoon: make(chan struct{}, 1),
		beatSoon: make(chan struct{}, 1), recheck: make(chan struct{}, 1), sweepSoon: make(chan struct{}, 1),
		timed: make(chan struct{}), shards: map[timerShard]chan struct{}{},
		ready: make(chan struct{}), ended: make(chan struct{}),
		jobs: map[job]*task{}, paused: map[job]*pausedJob{}, locked: map[string][]*pausedJob{},
		idle:   map[chan struct{}]struct{}{},
		rested: newRested(), asked: map[string]*asked{}, boundsOf: map[string]bounds{}, looking: map[string]time.Time{},
	}
}

// Observe adds an observer, before Run. It may be called concurrently, as Use, OnError and Every may. Errors:
//
//   - ErrInvalid: the observer has no name, table or column, not exactly one of Func and OnChange, its name is too
//     long, its Concurrency or Rate is negative, its Rate no number or infinite, its Isolation no level, its Prefetch has more than 64 columns or
//     an empty one, or the worker has one of that name already.
//   - ErrTooLarge: the name of the table, of the column or of one in Prefetch is over the limits.
//   - ErrWorkerRunning: Run was called already.
func (w *Worker) Observe(o Observer) error {
	switch {
	case o.Name == "":
		return fmt.Errorf("percolator: Observe: %w: an observer of table %q, column %q has no name", ErrInvalid, o.Table, o.Column)
	case len(o.Name) > format.MaxObserverName:
		return fmt.Errorf("percolator: Observe: %w: the observer's name %q... has %d bytes, the limit is %d", ErrInvalid, o.Name[:32], len(o.Name), format.MaxObserverName)
	case o.Func == nil && o.OnChange == nil:
		return fmt.Errorf("percolator: Observe: %w: observer %q has no function: set Func or OnChange", ErrInvalid, o.Name)
	case o.Func != nil && o.OnChange != nil:
		return fmt.Errorf("percolator: Observe: %w: observer %q has Func and OnChange; set one of them", ErrInvalid, o.Name)
	case o.Concurrency < 0:
		return fmt.Errorf("percolator: Observe: %w: observer %q has Concurrency %d; it must be 0 (the worker's) or more", ErrInvalid, o.Name, o.Concurrency)
	}
	c := Cell{Table: o.Table, Row: "-", Column: o.Column}
	if err := w.db.checkCell(&c); err != nil {
		return fmt.Errorf("percolator: Observe: observer %q: %w", o.Name, err)
	}
	if err := o.Isolation.check(); err != nil {
		return fmt.Errorf("percolator: Observe: observer %q: %w", o.Name, err)
	}
	if err := cmp.Or(checkRate(&o), w.setPrefetch(&o)); err != nil {
		return err
	}
	if o.MaxAttempts <= 0 {
		o.MaxAttempts = w.config.MaxAttempts
	}
	o.Backoff.fill(w.config.Backoff)
	tracks := o.MaxHops > 0 || w.config.MaxHops > 0
	if o.MaxHops == 0 {
		o.MaxHops = cmp.Or(w.config.MaxHops, defaultMaxHops)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		return fmt.Errorf("%w: add observer %q before Run", ErrWorkerRunning, o.Name)
	}
	if slices.ContainsFunc(w.list, func(q *queue) bool { return q.o.Name == o.Name }) {
		return fmt.Errorf("percolator: Observe: %w: the worker has an observer %q already", ErrInvalid, o.Name)
	}
	w.tracks = w.tracks || tracks
	w.lastHops.limit(o.MaxHops)
	c = c.stored()
	if w.db.tracer != nil {
		o.about = aboutRuns(&o)
	}
	o.id = o.Name // publish finds out whether it was renamed
	k := Cell{Table: c.Table, Column: c.Column}
	q := &queue{o: &o, table: c.Table, column: c.Column, index: len(w.queues[k]), breaker: breaker{at: w.config.BreakAt}, pacer: pacer{most: o.Rate}}
	w.queues[k], w.list = append(w.queues[k], q), append(w.list, q)
	if !slices.Contains(w.tables[c.Table], c.Column) {
		w.tables[c.Table] = append(w.tables[c.Table], c.Column)
	}
	w.kicks[c.Table] = make(chan struct{}, 1)
	w.asked[c.Table] = &asked{some: make(chan struct{}, 1)}
	w.room[c.Table] = make(chan struct{}, 1)
	w.freshRoom[c.Table] = make(chan struct{}, 1)
	for n := range byte(format.TimerShards) {
		w.shards[timerShard{c.Table, n}] = make(chan struct{}, 1)
	}
	return nil
}

// queuesOf lists the queues of this worker's observers of a stored cell.
func (w *Worker) queuesOf(c Cell) []*queue {
	return w.queues[Cell{Table: c.Table, Column: c.Column}]
}

// Run publishes the worker's observers, lets new ones see the existing data, and runs
// them whenever something changes, until ctx ends. Then it starts nothing more, waits
// for the functions that are running (see StopTimeout), and returns nil. Any other
// result means that it could not go on. For example, the error matches ErrClosed when
// the DB was closed under it, or ErrObserverRemoved when somebody removed one of its
// observers; that is noticed one catalog lease later at the latest. So is a catalog that a newer program has raised, and the error
// matches ErrFormat: others take over this worker's share. It matches ErrInvalid if an
// observer is registered with Func and this worker has it with OnChange, or the other way round:
// remove it first, or use another name. So it does if two of its observers are one, of which one name is an alias (see DB.RenameObserver), and if another schedule of the same Version is stored for one
// of its periodics (see Periodic.Version). Failures of the
// store that may pass are logged and retried. A worker runs once: a second Run returns
// ErrWorkerRunning.
func (w *Worker) Run(ctx context.Context) error {
	w.mu.Lock()
	if w.started {
		w.mu.Unlock()
		return ErrWorkerRunning
	}
	w.started = true
	w.mu.Unlock()
	err := w.work(ctx)
	if err != nil && ctx.Err() != nil {
		err = nil
	}
	w.mu.Lock()
	w.err = err
	close(w.ended)
	w.mu.Unlock()
	return err
}

// work is Run without its book-keeping.
func (w *Worker) work(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	// Functions outlive ctx by StopTimeout at most.
	runCtx, stopRuns := context.WithCancel(context.WithoutCancel(parent))
	defer stopRuns()
	w.mu.Lock()
	w.ctx, w.runCtx = ctx, runCtx
	w.mu.Unlock()

	if err := w.publish(ctx); err != nil {
		return fmt.Errorf("percolator: publishing the observers: %w", err)
	}
	var wg, claims sync.WaitGroup
	part := func(f func() error) {
		wg.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	started := make(chan struct{})
	part(func() error {
		defer close(started)
		err := w.startPeriodics(ctx)
		if err != nil && ctx.Err() == nil {
			cancel(err) // before started tells
		}
		leaveToken(w.recheck) // WaitIdle may wait for it
		return err
	})
	claimCtx, stopClaims := context.WithCancel(runCtx)
	defer claims.Wait()
	defer stopClaims()
	if err := w.takePart(ctx, started); err == nil {
		if len(w.list) > 0 {
			claims.Go(func() { _ = w.claimRuns(claimCtx) })
		}
		w.startParts(ctx, part, started)
	} else if ctx.Err() == nil {
		cancel(err)
	}
	wg.Wait()
	w.wind(stopRuns)
	if err := context.Cause(ctx); parent.Err() == nil {
		return err
	}
	return nil
}

// takePart joins the other workers, after a look at the worker's periodics: one whose schedule does not count is left to others from the
// beginning, and one that Run refuses joins nobody. That only spares work, so it waits for their store no longer than startWait. started is
// closed when they are started, or ctx has ended because they cannot be.
func (w *Worker) takePart(ctx context.Context, started <-chan struct{}) error {
	if slices.ContainsFunc(w.list, func(q *queue) bool { return q.o.periodic != nil }) {
		if _, err := w.sleepOr(ctx, startWait, started); err != nil {
			return err
		}
	}
	if len(w.list) > 0 && w.db.opt.owns == nil {
		if err := w.retry(ctx, "joining the workers", func() error { return w.beat(ctx) }); err != nil {
			return fmt.Errorf("percolator: joining the workers: %w", err)
		}
	}
	return nil
}

// startParts starts what the worker does as long as it runs. started is closed when its periodics are started.
func (w *Worker) startParts(ctx context.Context, part func(func() error), started <-chan struct{}) {
	for table := range w.tables {
		part(func() error { return w.find(ctx, table) })
		part(func() error { return w.follow(ctx, table) })
	}
	for s := range w.shards {
		part(func() error { return w.fire(ctx, s) })
	}
	if len(w.list) > 0 {
		part(func() error { return w.belong(ctx) })
	}
	part(func() error { return w.listen(ctx) })
	part(func() error { return w.endPauses(ctx) })
	part(func() error { return w.attend(ctx, started) })
	part(func() error { return w.sweepFresh(ctx) })
	if w.config.GCInterval >= 0 {
		part(func() error { return w.collect(ctx) })
		part(func() error { return w.collectShort(ctx) })
	}
}

// wind ends the functions that run, by stopRuns if they take longer than StopTimeout, and
// leaves the members. Until then this worker is one of them, whom WaitIdle asks.
func (w *Worker) wind(stopRuns func()) {
	w.stopStarting()
	var beside sync.WaitGroup
	defer beside.Wait()
	ctx, finish := context.WithCancel(context.Background())
	defer finish()
	beside.Go(func() {
		if w.db.clock.Sleep(ctx, w.config.StopTimeout) == nil {
			stopRuns()
		}
	})
	w.mu.Lock()
	busy := w.running > 0
	w.mu.Unlock()
	if busy {
		leaveToken(w.claimSoon)
		w.member.leaving = true // the others take its shares over in a moment
		w.tellLeaving(w.beat)
		beside.Go(func() { _ = w.belong(ctx) })
	}
	w.tasks.Wait()
	settled := w.settleOpen()
	finish()
	beside.Wait()
	if settled {
		w.tellLeaving(w.leave)
	}
}

// What a worker does besides running functions is not paced by WorkerConfig.Backoff, which may be hours: it goes on soon after
// the store is back. A walk through a whole table that fails halfway leaves the store alone for longer.
var (
	troubleWait = Backoff{Min: troublePause, Max: longTroublePause}
	walkWait    = Backoff{Min: troublePause, Max: time.Minute}
)

// retry runs f until it succeeds, the context ends, or the error is fatal: the DB is
// closed, say.
func (w *Worker) retry(ctx context.Context, what string, f func() error) error {
	return w.retryAfter(ctx, troubleWait, what, f)
}

// retryAfter is retry with a given wait.
func (w *Worker) retryAfter(ctx context.Context, wait Backoff, what string, f func() error) error {
	for attempt := 0; ; attempt++ {
		err := f()
		if err == nil {
			return nil
		}
		if err := w.waitAfter(ctx, wait, attempt, what, err); err != nil {
			return err
		}
	}
}

// waitAfter waits until what has failed may be tried again. It returns an error if that is not to be.
func (w *Worker) waitAfter(ctx context.Context, wait Backoff, attempt int, what string, err error) error {
	if ctx.Err() != nil || fatal(err) {
		return err
	}
	if errors.Is(err, ErrFormat) {
		if err := w.outdated(ctx); err != nil {
			return err
		}
	}
	w.db.log.Warn(what+" failed and will be tried again", "err", err)
	return w.db.clock.Sleep(ctx, wait.wait(attempt, w.db.rand))
}

// outdated returns an error that matches ErrFormat if this program does not know the catalog, or the store, any more: that never passes. What
// this program cannot read may also be a single record, which must not end all else that the worker does.
func (w *Worker) outdated(ctx context.Context) error {
	_, err := w.db.loadCatalog(ctx)
	if !errors.Is(err, ErrFormat) {
		return nil
	}
	w.db.log.Error("the worker stops, because this program does not know the version of the catalog or of the store any more", "err", err)
	return fmt.Errorf("percolator: the worker stops: %w", err)
}

// fatal reports whether trying again cannot mend an error.
func fatal(err error) bool {
	return errors.Is(err, ErrClosed) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrTooLarge)
}

// leaveToken puts a token into a channel of capacity 1, unless there is one.
func leaveToken(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// sleepOr waits until the time is over, or there is a token in ch: then woken is true.
func (w *Worker) sleepOr(ctx context.Context, d time.Duration, ch <-chan struct{}) (woken bool, err error) {
	select {
	case <-ch:
		return true, ctx.Err()
	default:
	}
	sleep, cancel := context.WithCancel(ctx)
	defer cancel()
	slept := make(chan struct{})
	go func() {
		defer close(slept)
		_ = w.db.clock.Sleep(sleep, d)
	}()
	select {
	case <-ch:
		cancel()
		<-slept
		return true, ctx.Err()
	case <-slept:
		return false, ctx.Err()
	}
}

// observes tells whether an observer of a stored cell is this worker's.
func (w *Worker) observes(id string, c Cell) bool {
	return slices.ContainsFunc(w.queuesOf(c), func(q *queue) bool { return q.o.id == id })
}
