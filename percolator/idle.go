package percolator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// WaitIdle returns nil when no notification is left for the worker's observers, apart
// from parked runs, and none can appear from work under way: functions that run in this
// worker, and commits that were sent. It waits for Run to start, to publish the
// observers and to sweep, also for an observer that somebody has registered again.
//
// Other workers that run the same observers, in this process or another, count as far
// as their work can be seen. A notification that waits for them is left, and so is one
// whose run has not committed yet. But a run that sets an observed cell moves work from
// one place to another, and WaitIdle's scans take time. If the store has a push
// (rowstore.Waker), a push between the first scan and the last makes WaitIdle scan
// again. If it has none, two more scans must find nothing. So WaitIdle may miss work
// that other workers move from place to place: if a push was lost or is late, or if the
// work moves behind each of four scans in turn, which go in opposite directions. To
// know for certain, call WaitIdle of every worker, again and again, until none has run
// anything in between.
//
// It returns an error that matches ErrObserverRemoved when one of the observers was
// removed. After Run has ended it returns Run's error, or one that matches ErrClosed if
// that was nil, whatever is left. It returns the context's error when the context ends.
// It may be called from anywhere but an observer's function.
func (w *Worker) WaitIdle(ctx context.Context) error {
	select {
	case <-w.ready:
	case <-w.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	for attempt := 0; ; {
		if w.hasEnded() {
			return w.endedError()
		}
		w.mu.Lock()
		busy := len(w.jobs) > 0
		since := w.wakes
		changed := make(chan struct{})
		w.idle[changed] = struct{}{}
		w.mu.Unlock()
		state := moving
		if !busy {
			var err error
			if state, err = w.lookIdle(ctx, since); err != nil {
				w.mu.Lock()
				delete(w.idle, changed)
				w.mu.Unlock()
				return err
			}
		}
		switch {
		case w.hasEnded():
		case state == nothingLeft:
			return nil
		case state == someLeft:
			w.kickAll()
			attempt++
		default:
			attempt = 0
		}
		if err := w.waitChange(ctx, changed, attempt); err != nil {
			return err
		}
	}
}

// idleState is what the scans of WaitIdle have found.
type idleState int

const (
	nothingLeft idleState = iota
	someLeft              // the worker must scan for it
	moving                // something happened meanwhile
)

// lookIdle scans twice in a row, in opposite directions, or four times if the store has
// no push. The scans must find nothing, and nothing may have happened from the start of
// the first to the end of the last. Otherwise a run could move work from a place that
// the scan has yet to reach to a place that it has passed.
func (w *Worker) lookIdle(ctx context.Context, since uint64) (idleState, error) {
	again := func(err error) (idleState, error) {
		if ctx.Err() != nil {
			return someLeft, ctx.Err()
		}
		if fatal(err) {
			return someLeft, err
		}
		return someLeft, nil
	}
	before := w.db.known()
	looks := 2
	if !w.pushed {
		looks = 4
	}
	for i := range looks {
		left, err := w.anyLeft(ctx, i%2 == 1)
		if err != nil {
			return again(err)
		}
		w.mu.Lock()
		quiet := len(w.jobs) == 0 && w.wakes == since
		w.mu.Unlock()
		switch {
		case !quiet:
			return moving, nil
		case left:
			return someLeft, nil
		}
	}
	// The sweeps must have been done before the first look.
	v, err := w.db.loadCatalog(ctx)
	if err != nil {
		return again(err)
	}
	if err := w.checkRegistered(v); err != nil {
		leaveToken(w.recheck)
		return someLeft, err
	}
	if len(w.unswept(v)) > 0 {
		leaveToken(w.recheck)
		return someLeft, nil
	}
	for _, q := range w.list {
		old, now := w.record(before, q), w.record(v, q)
		if old == nil || old.Since != now.Since || old.Swept != now.Swept {
			return moving, nil
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.jobs) > 0 || w.wakes != since {
		return moving, nil
	}
	return nothingLeft, nil
}

// waitChange waits for the last job to end, or for a little while.
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

func (w *Worker) hasEnded() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

func (w *Worker) endedError() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	return fmt.Errorf("percolator: WaitIdle: the worker has stopped: %w", ErrClosed)
}

// anyLeft tells whether a notification is left that one of the worker's observers
// has to see.
func (w *Worker) anyLeft(ctx context.Context, reverse bool) (bool, error) {
	tables := slices.Sorted(maps.Keys(w.tables))
	if reverse {
		slices.Reverse(tables)
	}
	for _, table := range tables {
		for row, err := range w.db.store.Scan(ctx, rowstore.ScanRange{Table: table, Selectors: w.notifyPicks(table), Reverse: reverse}) {
			if err != nil {
				return true, err
			}
			for column, notified := range notifiedColumns(&row) {
				left, err := w.isLeft(ctx, Cell{table, row.Row, column}, notified)
				if err != nil || left {
					return true, err
				}
			}
		}
	}
	return false, nil
}

// isLeft looks at a notified cell as a run would.
func (w *Worker) isLeft(ctx context.Context, c Cell, notified []rowstore.Version) (bool, error) {
	seen := w.rested.signature(c, w.db.known().observers(c.Table, c.Column), notified)
	w.mu.Lock()
	covered := w.rested.covers(c, seen, w.db.clock.Now())
	w.mu.Unlock()
	if !slices.ContainsFunc(w.queuesOf(c), func(q *queue) bool { return !q.in(covered) }) {
		return false, nil
	}
	at, err := w.db.draw(ctx)
	if err != nil {
		return true, err
	}
	view, blocked, err := w.currentView(ctx, c, nil, &snapshot{set: true, start: at})
	if err != nil || blocked {
		return true, err
	}
	for i, name := range view.observers {
		if w.observes(name, c) && !view.covered(i) {
			return true, nil
		}
	}
	// If every observer is covered, the notifications still have to be cleared.
	// Otherwise they wait for observers of other workers.
	if view.later || len(view.seen) > 0 && view.othersCovered(-1) {
		return true, nil
	}
	w.skipUntilChanged(view)
	return false, nil
}

// signalIdle tells WaitIdle that nothing runs at the moment. w.mu is held.
func (w *Worker) signalIdle() {
	if len(w.jobs) > 0 {
		return
	}
	for ch := range w.idle {
		close(ch)
		delete(w.idle, ch)
	}
}
