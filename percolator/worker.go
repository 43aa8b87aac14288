package percolator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// WorkerConfig changes a Worker. The zero value works.
type WorkerConfig struct {
	// Concurrency is how many observer functions run at once. Default 16.
	Concurrency int
	// MaxAttempts is how many failures of one change lead to parking, for observers
	// that do not say. Default 10.
	MaxAttempts int
	// Backoff is the wait before a failed function is called again. Default 50 ms
	// to 1 min.
	Backoff Backoff
	// Poll is the wait between two looks for notifications where the store has no
	// push (rowstore.Waker): Min after something was found, doubled up to Max while
	// nothing is. Default 1 to 250 ms.
	Poll Backoff
	// Rescan is the wait between two looks where the store has a push: for what no
	// push tells of, such as the notifications of a client that died before it could
	// finish. Default 2 s.
	Rescan time.Duration
	// ScanLease is how long other workers keep away from a part of a table in which
	// this one has found many notifications. Default 2 s.
	ScanLease time.Duration
	// GCInterval is the wait between two garbage collections, of all workers
	// together. Default a tenth of the retention, at most 1 h; negative for none.
	GCInterval time.Duration
	// StopTimeout is how long functions that are running when Run's context ends may
	// go on before their own contexts end. Default 10 s.
	StopTimeout time.Duration
}

func (c *WorkerConfig) setDefaults() {
	if c.Concurrency <= 0 {
		c.Concurrency = 16
	}
	if c.MaxAttempts <= 0 {
		c.MaxAttempts = 10
	}
	if c.Backoff == (Backoff{}) {
		c.Backoff = Backoff{Min: 50 * time.Millisecond, Max: time.Minute}
	}
	if c.Poll == (Backoff{}) {
		c.Poll = Backoff{Min: time.Millisecond, Max: 250 * time.Millisecond}
	}
	if c.Rescan <= 0 {
		c.Rescan = 2 * time.Second
	}
	if c.ScanLease <= 0 {
		c.ScanLease = 2 * time.Second
	}
	if c.StopTimeout <= 0 {
		c.StopTimeout = 10 * time.Second
	}
}

// Worker runs observers. Any number of workers, in any number of processes, may
// run the same ones: for each change at most one run takes effect.
type Worker struct {
	db        *DB
	config    WorkerConfig
	observers map[Cell][]*Observer // by stored table and column, the row is ""
	tables    map[string][]string  // the observed columns of each table, stored
	id        string               // of its scan leases

	slots chan struct{} // one token for each function running
	tasks sync.WaitGroup

	mu       sync.Mutex
	started  bool
	ready    chan struct{} // closed when published and swept, or Run has ended
	ended    chan struct{} // closed when Run has ended
	err      error         // of Run
	running  map[Cell]*task
	waiting  map[Cell]waitingTask
	idle     map[chan struct{}]struct{} // of WaitIdle: closed when something ended
	kicks    map[string]chan struct{}   // a token for a table to be looked at
	wakes    uint64                     // looks asked for, and runs that did something
	boundsOf map[string]bounds
	leased   map[string]struct{} // tables in which it has taken a scan lease
}

// task is a cell that is being dealt with.
type task struct {
	again bool // it was found again meanwhile
}

// waitingTask is a cell that is left alone for a while.
type waitingTask struct {
	until  time.Time
	failed bool // for the backoff of its function, not for somebody's lock
}

// NewWorker makes a worker of db. It does nothing before Run.
func NewWorker(db *DB, config WorkerConfig) *Worker {
	config.setDefaults()
	return &Worker{
		db: db, config: config,
		observers: map[Cell][]*Observer{}, tables: map[string][]string{},
		id:       uniqueID(),
		slots:    make(chan struct{}, config.Concurrency),
		ready:    make(chan struct{}),
		ended:    make(chan struct{}),
		running:  map[Cell]*task{},
		waiting:  map[Cell]waitingTask{},
		idle:     map[chan struct{}]struct{}{},
		kicks:    map[string]chan struct{}{},
		boundsOf: map[string]bounds{}, leased: map[string]struct{}{},
	}
}

// Observe adds an observer, before Run. It returns an error that matches
// ErrInvalid when the observer has no name, table, column or function, when its
// name is too long, or when the worker has one of that name already;
// ErrWorkerRunning after Run.
func (w *Worker) Observe(o Observer) error {
	switch {
	case o.Name == "":
		return fmt.Errorf("%w: an observer of table %q, column %q has no name", ErrInvalid, o.Table, o.Column)
	case len(o.Name) > maxObserverName:
		return fmt.Errorf("%w: the observer's name %q... has %d bytes, the limit is %d", ErrInvalid, o.Name[:32], len(o.Name), maxObserverName)
	case o.Func == nil:
		return fmt.Errorf("%w: observer %q has no function", ErrInvalid, o.Name)
	}
	c := Cell{Table: o.Table, Row: "-", Column: o.Column}
	if err := w.db.checkCell(&c); err != nil {
		return fmt.Errorf("observer %q: %w", o.Name, err)
	}
	if o.MaxAttempts <= 0 {
		o.MaxAttempts = w.config.MaxAttempts
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		return fmt.Errorf("%w: observer %q comes too late", ErrWorkerRunning, o.Name)
	}
	for _, all := range w.observers {
		for _, have := range all {
			if have.Name == o.Name {
				return fmt.Errorf("%w: the worker has an observer %q already", ErrInvalid, o.Name)
			}
		}
	}
	c = c.stored()
	k := Cell{Table: c.Table, Column: c.Column}
	w.observers[k] = append(w.observers[k], &o)
	if !slices.Contains(w.tables[c.Table], c.Column) {
		w.tables[c.Table] = append(w.tables[c.Table], c.Column)
	}
	w.kicks[c.Table] = make(chan struct{}, 1)
	return nil
}

// observer finds this worker's observer of that name for a stored cell.
func (w *Worker) observer(name string, c Cell) *Observer {
	for _, o := range w.observers[Cell{Table: c.Table, Column: c.Column}] {
		if o.Name == name {
			return o
		}
	}
	return nil
}

// Run publishes the worker's observers, has new ones look at the data that is
// there, and runs them whenever something changes, until ctx ends. Then it starts
// nothing more, waits for the functions that are running (see StopTimeout), and
// returns nil. Any other error means that it could not go on: one that matches
// ErrClosed, for example, when the DB was closed under it. Failures of the store
// that may pass are logged and retried. A worker runs once: a second Run returns
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

// work is Run between its book-keeping.
func (w *Worker) work(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	// Functions outlive ctx by StopTimeout at most.
	runCtx, stopRuns := context.WithCancel(context.WithoutCancel(parent))
	defer stopRuns()

	if err := w.publish(ctx); err != nil {
		return fmt.Errorf("percolator: publishing the observers: %w", err)
	}
	var wg sync.WaitGroup
	part := func(f func() error) {
		wg.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	for table := range w.tables {
		part(func() error { return w.lookAfter(ctx, runCtx, table) })
	}
	part(func() error { return w.listen(ctx) })
	part(func() error {
		if err := w.sweepNew(ctx); err != nil {
			return err
		}
		close(w.ready)
		return nil
	})
	if w.config.GCInterval >= 0 {
		part(func() error { return w.collect(ctx) })
	}
	wg.Wait()
	var guard sync.WaitGroup
	defer guard.Wait()
	finished, finish := context.WithCancel(context.Background())
	defer finish()
	guard.Go(func() {
		if w.db.clock.Sleep(finished, w.config.StopTimeout) == nil {
			stopRuns()
		}
	})
	w.tasks.Wait()
	w.releaseLeases()
	if err := context.Cause(ctx); parent.Err() == nil {
		return err
	}
	return nil
}

// retry runs f until it succeeds, the context ends, or the DB is closed.
func (w *Worker) retry(ctx context.Context, what string, f func() error) error {
	for attempt := 0; ; attempt++ {
		err := f()
		if err == nil || ctx.Err() != nil || fatal(err) {
			return err
		}
		w.db.log.Warn(what+" failed and will be tried again", "err", err)
		if err := w.db.clock.Sleep(ctx, w.config.Backoff.wait(attempt, w.db.rand)); err != nil {
			return err
		}
	}
}

// fatal tells errors that trying again does not mend.
func fatal(err error) bool {
	return errors.Is(err, ErrClosed) || errors.Is(err, ErrInvalid) || errors.Is(err, ErrTooLarge)
}

// publish puts the worker's observers into the catalog. From then on, whoever
// reads it notifies their columns.
func (w *Worker) publish(ctx context.Context) error {
	return w.retry(ctx, "publishing the observers", func() error {
		_, err := w.db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
			changed := false
			for k, all := range w.observers {
				for _, o := range all {
					if !slices.ContainsFunc(v.Observers, func(r observerRecord) bool { return r.is(o.Name, k.Table, k.Column) }) {
						v.Observers = append(v.Observers, observerRecord{Name: []byte(o.Name), Table: []byte(k.Table), Column: []byte(k.Column)})
						changed = true
					}
				}
			}
			return changed, nil
		})
		return err
	})
}

// sweepNew lets observers that are new, or come back, see the data that is there.
func (w *Worker) sweepNew(ctx context.Context) error {
	return w.retry(ctx, "sweeping for new observers", func() error {
		v, err := w.db.loadCatalog(ctx)
		if err != nil {
			return err
		}
		var fresh []observerRecord
		for _, r := range v.Observers {
			if r.Swept == 0 && w.observer(string(r.Name), Cell{Table: string(r.Table), Column: string(r.Column)}) != nil {
				fresh = append(fresh, r)
			}
		}
		if len(fresh) == 0 {
			return nil
		}
		// The publication is drawn after the catalog was stored, and the snapshot of
		// the sweep lies a lease above: a commit at or below publication + lease is
		// visible there, and whoever commits above it knew the observer.
		_, lease := v.widest()
		publication, err := w.db.draw(ctx)
		at := publication
		for err == nil && at < publication.Add(lease)+1 {
			if err = w.db.clock.Sleep(ctx, max(publication.Add(lease).Sub(at), time.Millisecond)); err == nil {
				at, err = w.db.draw(ctx)
			}
		}
		if err != nil {
			return err
		}
		for _, r := range fresh {
			if err := w.sweep(ctx, r, at); err != nil {
				return fmt.Errorf("observer %q: %w", r.Name, err)
			}
		}
		_, err = w.db.changeCatalog(ctx, func(v *catalogView) (bool, error) {
			changed := false
			for i := range v.Observers {
				r := &v.Observers[i]
				if r.Swept == 0 && slices.ContainsFunc(fresh, func(f observerRecord) bool {
					return r.is(string(f.Name), string(f.Table), string(f.Column))
				}) {
					r.Swept, changed = at, true
				}
			}
			return changed, nil
		})
		return err
	})
}

const sweepBatch = 256

// sweep puts a notification on every cell of an observer's column whose newest
// write at the snapshot is newer than the acknowledgment.
func (w *Worker) sweep(ctx context.Context, r observerRecord, at Timestamp) error {
	table, column := string(r.Table), string(r.Column)
	ack := ackColumn(string(r.Name), column)
	picks := snapshotPicks(snapshotPicks(nil, column, at), ack, at)
	var rows []string
	flush := func() error {
		if len(rows) == 0 {
			return nil
		}
		if err := w.db.checkSnapshot(ctx, at); err != nil {
			return err
		}
		ts, err := w.db.draw(ctx)
		if err != nil {
			return err
		}
		muts := make([]rowstore.Mutation, len(rows))
		for i, row := range rows {
			muts[i] = rowstore.Mutation{Table: table, Row: row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, column, ts, strongValue)}}
		}
		outs, err := w.db.store.Apply(ctx, muts, rowstore.ApplyOptions{})
		for i := range outs {
			err = errors.Join(err, outs[i].Err)
		}
		rows = rows[:0]
		return err
	}
	for row, err := range w.db.store.Scan(ctx, rowstore.ScanRange{Table: table, Picks: picks}) {
		if err == nil {
			err = w.db.settle(ctx, &row, picks, at)
		}
		if err != nil {
			return err
		}
		newest := row.Newest(rowstore.Write, column)
		if newest == nil {
			continue
		}
		acked := Timestamp(0)
		wv, found, err := committed(&row, ack)
		if err == nil && found {
			acked, err = decodeAck(wv.value)
		}
		if err != nil {
			return err
		}
		if newest.TS <= acked {
			continue
		}
		if rows = append(rows, row.Row); len(rows) == sweepBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// kick is told that a table, or with "" any, may hold new notifications.
func (w *Worker) kick(table string) {
	w.mu.Lock()
	w.wakes++
	// What was locked may have been committed just now.
	for c, t := range w.waiting {
		if !t.failed && (table == "" || c.Table == table) {
			delete(w.waiting, c)
		}
	}
	w.mu.Unlock()
	if table != "" {
		w.kickTable(table)
		return
	}
	w.kickAll()
}

// kickTable leaves a token for a table's scanner, unless there is one.
func (w *Worker) kickTable(table string) {
	if ch := w.kicks[table]; ch != nil {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (w *Worker) kickAll() {
	for table := range w.kicks {
		w.kickTable(table)
	}
}

// listen passes the store's push on to the scanners.
func (w *Worker) listen(ctx context.Context) error {
	waker, ok := rowstore.Unwrap[rowstore.Waker](w.db.store)
	if !ok {
		return nil
	}
	return w.retry(ctx, "listening for notifications", func() error { return waker.Listen(ctx, w.kick) })
}

// lookAfter looks for a table's notifications whenever there is reason to.
func (w *Worker) lookAfter(ctx, runCtx context.Context, table string) error {
	_, pushed := rowstore.Unwrap[rowstore.Waker](w.db.store)
	misses := 0
	for {
		var found int
		err := w.retry(ctx, "looking for notifications", func() (err error) {
			found, err = w.look(ctx, runCtx, table)
			return err
		})
		if err != nil {
			return err
		}
		if found > 0 {
			misses = 0
		} else {
			misses++
		}
		wait := w.config.Rescan
		if !pushed {
			wait = w.config.Poll.Min
			for i := 0; i < misses && wait < w.config.Poll.Max; i++ {
				wait *= 2
			}
			wait = min(wait, w.config.Poll.Max)
		}
		if next, ok := w.nextWaiting(table); ok {
			wait = min(wait, max(next, time.Millisecond))
		}
		if err := w.sleepOrKick(ctx, table, wait); err != nil {
			return err
		}
	}
}

// sleepOrKick waits until the time is over or the table is kicked.
func (w *Worker) sleepOrKick(ctx context.Context, table string, d time.Duration) error {
	select {
	case <-w.kicks[table]:
		return ctx.Err()
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
	case <-w.kicks[table]:
		cancel()
		<-slept
	case <-slept:
	}
	return ctx.Err()
}

// nextWaiting returns how long until the first cell of table that is left alone
// may be looked at.
func (w *Worker) nextWaiting(table string) (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.db.clock.Now()
	var first time.Duration
	some := false
	for c, t := range w.waiting {
		if c.Table != table {
			continue
		}
		d := t.until.Sub(now)
		if d <= 0 {
			delete(w.waiting, c) // the look that comes now finds it, if it is there still
		}
		if !some || d < first {
			first, some = d, true
		}
	}
	return first, some
}

// start deals with a cell in a goroutine, once a slot is free; a cell that is being
// dealt with is looked at again afterwards. It returns ctx's error.
func (w *Worker) start(ctx, runCtx context.Context, c Cell) error {
	w.mu.Lock()
	if t := w.running[c]; t != nil {
		t.again = true
		w.mu.Unlock()
		return nil
	}
	if t, ok := w.waiting[c]; ok && w.db.clock.Now().Before(t.until) {
		w.mu.Unlock()
		return nil
	}
	w.mu.Unlock()
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.running[c]; t != nil {
		t.again = true
		<-w.slots
		return nil
	}
	delete(w.waiting, c)
	w.running[c] = &task{}
	w.tasks.Add(1)
	go w.deal(ctx, runCtx, c)
	return nil
}

// troublePause is how long a cell is left alone after the store failed, or while a
// living transaction has it locked: the commit of that one wakes the worker, so
// the pause is only for one that dies.
const (
	troublePause = 100 * time.Millisecond
	lockedPause  = 50 * time.Millisecond
)

// deal runs what there is to run for a cell until nothing is left, or it must be
// left alone for a while.
func (w *Worker) deal(ctx, runCtx context.Context, c Cell) {
	defer w.tasks.Done()
	defer func() { <-w.slots }()
	for attempt := 0; ; attempt++ {
		result, wait, err := w.runCell(runCtx, c)
		if err != nil && runCtx.Err() == nil && !fatal(err) {
			w.db.log.Warn("an observed cell could not be dealt with and will be tried again", "cell", c.public().String(), "err", err)
		}
		// A worker that stops finishes what it has begun, also where that takes a run
		// more; nothing else is begun.
		if ctx.Err() != nil && result != runConflict {
			result = runAbandoned
		}
		switch result {
		case runAgain:
			attempt = 0
			continue
		case runConflict:
			if w.db.clock.Sleep(runCtx, w.db.opt.retryWait.wait(attempt, w.db.rand)) == nil {
				continue
			}
		case runLocked:
			w.leave(c, lockedPause, false)
			return
		case runWaiting:
			w.leave(c, wait, true)
			return
		case runTrouble:
			w.leave(c, troublePause, true)
			return
		case runDone:
			if w.endTask(c) {
				continue
			}
			return
		case runAbandoned:
		}
		w.leave(c, 0, false)
		return
	}
}

func (w *Worker) noteProgress() {
	w.mu.Lock()
	w.wakes++
	w.mu.Unlock()
}

// endTask ends dealing with a cell, unless it was found again meanwhile.
func (w *Worker) endTask(c Cell) (again bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.running[c]
	if t.again {
		t.again = false
		return true
	}
	delete(w.running, c)
	w.signalIdle()
	return false
}

// leave ends dealing with a cell for a while.
func (w *Worker) leave(c Cell, d time.Duration, failed bool) {
	w.mu.Lock()
	t := w.running[c]
	delete(w.running, c)
	again := t.again && !failed
	if d > 0 && !again {
		w.waiting[c] = waitingTask{until: w.db.clock.Now().Add(d), failed: failed}
	}
	w.signalIdle()
	w.mu.Unlock()
	if again {
		w.kickTable(c.Table)
	}
}

// signalIdle tells WaitIdle that nothing runs at the moment. w.mu is held.
func (w *Worker) signalIdle() {
	if len(w.running) > 0 {
		return
	}
	for ch := range w.idle {
		close(ch)
		delete(w.idle, ch)
	}
}

// WaitIdle returns nil when no notification is left for the worker's observers,
// parked runs apart, and none can appear from work under way: functions that run,
// here or in another worker that runs the same observers, and commits that were
// sent. It waits for Run to start, to publish the observers and to sweep. It
// returns Run's error when Run ends before, ErrClosed if that was nil, and the
// context's error. It may be called from anywhere but an observer's function.
func (w *Worker) WaitIdle(ctx context.Context) error {
	select {
	case <-w.ready:
	case <-w.ended:
		return w.endedError()
	case <-ctx.Done():
		return ctx.Err()
	}
	// Two looks in a row, in opposite directions, must find nothing, and nothing may
	// have happened from the start of the first to the end of the second: a run
	// could otherwise move work from where the look has yet to come to where it was.
	clean := 0
	var since uint64
	for attempt := 0; ; {
		w.mu.Lock()
		busy := len(w.running) > 0
		if clean == 0 {
			since = w.wakes
		}
		moved := w.wakes != since
		changed := make(chan struct{})
		w.idle[changed] = struct{}{}
		w.mu.Unlock()
		left := true
		if !busy && !moved {
			var err error
			if left, err = w.anyLeft(ctx, clean == 1); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if fatal(err) {
					return err
				}
				left = true
			}
			if !left {
				w.mu.Lock()
				quiet := len(w.running) == 0 && w.wakes == since
				delete(w.idle, changed)
				w.mu.Unlock()
				if quiet {
					if clean++; clean == 2 {
						return nil
					}
					continue
				}
			}
		}
		clean = 0
		if left && !busy && !moved {
			w.kickAll()
			attempt++
		} else {
			attempt = 0
		}
		if err := w.waitChange(ctx, changed, attempt); err != nil {
			return err
		}
	}
}

// waitChange waits for a task to end, or for a little while.
func (w *Worker) waitChange(ctx context.Context, changed chan struct{}, attempt int) error {
	sleep, cancel := context.WithCancel(ctx)
	defer cancel()
	slept := make(chan struct{})
	go func() {
		defer close(slept)
		_ = w.db.clock.Sleep(sleep, Backoff{Min: time.Millisecond, Max: 100 * time.Millisecond}.wait(attempt, w.db.rand))
	}()
	defer func() {
		cancel()
		<-slept
		w.mu.Lock()
		delete(w.idle, changed)
		w.mu.Unlock()
	}()
	select {
	case <-changed:
	case <-slept:
	case <-w.ended:
		return w.endedError()
	}
	return ctx.Err()
}

func (w *Worker) endedError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	return fmt.Errorf("%w: the worker has stopped", ErrClosed)
}

// anyLeft tells whether a notification is left that one of the worker's observers
// has to see.
func (w *Worker) anyLeft(ctx context.Context, reverse bool) (bool, error) {
	tables := slices.Sorted(maps.Keys(w.tables))
	if reverse {
		slices.Reverse(tables)
	}
	for _, table := range tables {
		for row, err := range w.db.store.Scan(ctx, rowstore.ScanRange{Table: table, Picks: w.notifyPicks(table), Reverse: reverse}) {
			if err != nil {
				return true, err
			}
			for _, column := range notifiedColumns(&row) {
				left, err := w.isLeft(ctx, Cell{table, row.Row, column})
				if err != nil || left {
					return true, err
				}
			}
		}
	}
	return false, nil
}

// isLeft looks at a notified cell as a run would.
func (w *Worker) isLeft(ctx context.Context, c Cell) (bool, error) {
	at, err := w.db.draw(ctx)
	if err != nil {
		return true, err
	}
	view, blocked, err := w.currentView(ctx, c, &snapshot{set: true, start: at})
	if err != nil || blocked {
		return true, err
	}
	for i, name := range view.observers {
		if w.observer(name, c) != nil && !view.covered(i) {
			return true, nil
		}
	}
	// With every observer covered, what is left is to be cleared; else it waits for
	// observers of others.
	return view.later || len(view.seen) > 0 && view.othersCovered(-1), nil
}

func notifiedColumns(row *rowstore.Row) []string {
	var columns []string
	for i := range row.Versions {
		if v := &row.Versions[i]; v.Family == rowstore.Notify && (len(columns) == 0 || columns[len(columns)-1] != v.Column) {
			columns = append(columns, v.Column)
		}
	}
	return columns
}

func (w *Worker) notifyPicks(table string) []rowstore.Pick {
	picks := make([]rowstore.Pick, len(w.tables[table]))
	for i, column := range w.tables[table] {
		picks[i] = rowstore.Pick{Family: rowstore.Notify, Column: column, To: oracle.Max, Limit: 1}
	}
	return picks
}
