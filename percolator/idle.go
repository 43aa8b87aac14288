package percolator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// WaitIdle returns nil when no notification is left for the worker's observers, apart
// from parked runs and those of paused observers, and none can appear from work under way: functions that run, in this
// worker and in every other worker that runs one of the same observers, in this process or
// another, and commits that were sent. It waits for Run to start, to publish the observers
// and to sweep, also for an observer that somebody has registered again.
//
// What was committed before the call is then done, with all that followed from it by these
// observers. An observer that was resumed before the call is waited for, also if the worker has yet to
// hear of it. Observers that this worker does not run are not waited for. Neither are
// clients that commit meanwhile.
//
// It asks the other workers, who are told by the store's push (rowstore.Waker), or look
// twice in each of their leases (MemberLease), and sooner for the second of the two answers of each that it needs. So without a push it takes
// little more than half a lease (1.5 s) where nothing is left, and less soon after another WaitIdle.
// Cells that wait for others, in the slots of other workers, are read by it one after the other, once. One that does not answer is waited for
// until its lease ends. A worker that lost its lease while it lived, because it was
// suspended or cut off, is not asked until it has joined again. The looks find what its
// runs leave, and what one of them moves; they may miss what several of them, one after
// the other, move to and fro in that time.
//
// It returns an error that matches ErrObserverRemoved when one of the observers was
// removed. After Run has ended it returns Run's error, or one that matches ErrClosed if
// that was nil, whatever is left. It returns the context's error when the context ends.
// It may be called from anywhere but an observer's function, and concurrently.
func (w *Worker) WaitIdle(ctx context.Context) error {
	select {
	case <-w.ready:
	case <-w.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	l := idleLook{w: w}
	for {
		if w.hasEnded() {
			return w.endedError()
		}
		w.mu.Lock()
		busy := len(w.jobs) > 0
		l.begun, l.paused = w.begun(), w.pausedQueues()
		changed := make(chan struct{})
		w.idle[changed] = struct{}{}
		w.mu.Unlock()
		state := moving
		if !busy {
			var err error
			if state, err = l.look(ctx); err != nil {
				w.forgetIdle(changed)
				return err
			}
		}
		if state == nothingLeft && !w.hasEnded() {
			w.forgetIdle(changed)
			return nil
		}
		if state == someLeft {
			w.kickAll()
		}
		if err := w.waitChange(ctx, changed, l.wait(state)); err != nil {
			return err
		}
	}
}

// idleState is what a look of WaitIdle has found.
type idleState int

const (
	nothingLeft idleState = iota
	someLeft              // the worker must scan for it
	moving                // something happened meanwhile
	othersMove            // other workers may be at work
)

// idleLook is a WaitIdle under way.
type idleLook struct {
	w     *Worker
	begun uint64  // by this worker when the look began
	base  *muster // of the other workers before the look; nil if that is yet to be read
	tries int     // in a row that have found something left
	asked int     // how often others were at work, or may have been

	// paused are the queues whose observers were paused, as far as the worker knew when the look began. The look passes over what
	// waits for these alone, whatever the worker learns meanwhile, and checkCatalog judges whether it might.
	paused map[*queue]bool
}

// mostAskWait is the longest wait before others are asked again.
const mostAskWait = 500 * time.Millisecond

// wait returns how long it is until the next look.
func (l *idleLook) wait(state idleState) time.Duration {
	wait := Backoff{Min: time.Millisecond, Max: 100 * time.Millisecond}
	switch state {
	case someLeft:
		l.tries++
		return wait.wait(l.tries, l.w.db.rand)
	case othersMove:
		// The first answers are often the first ones that this worker gets at all. They are
		// compared with the next ones.
		if l.asked++; l.asked == 1 {
			return 0
		}
		wait.Max = mostAskWait
		return wait.wait(l.asked-1, l.w.db.rand)
	default:
		l.tries = 0
		return wait.wait(0, l.w.db.rand)
	}
}

// begun counts the functions that were called, of all observers. w.mu is held.
func (w *Worker) begun() (n uint64) {
	for _, q := range w.list {
		n += q.begun
	}
	return n
}

// isStill tells whether this worker has begun nothing since the look began, and nothing is
// queued or runs.
func (l *idleLook) isStill() bool {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return len(l.w.jobs) == 0 && l.w.begun() == l.begun
}

// look scans for what is left while no worker runs anything: neither this one nor any
// other that shares an observer, from before the scans until after them. So no run moves
// work from a place that the scans have yet to reach to one that they have passed. What is
// left to do that is a commit of a worker that died, or is taken for dead, once. Therefore
// there are two scans: if it comes during the first, the second one finds where it moved the
// work; if it comes later, the first one has found the work where it was.
func (l *idleLook) look(ctx context.Context) (idleState, error) {
	w := l.w
	again := func(err error) (idleState, error) {
		if ctx.Err() != nil {
			return someLeft, ctx.Err()
		}
		if fatal(err) {
			return someLeft, err
		}
		return someLeft, nil
	}
	if l.base == nil {
		if err := l.muster(ctx); err != nil {
			return again(err)
		}
	}
	before := w.db.known()
	for _, reverse := range []bool{false, true} {
		left, err := l.anyLeft(ctx, reverse)
		switch {
		case err != nil:
			return again(err)
		case !l.isStill():
			return moving, nil
		case left:
			return someLeft, nil
		}
	}
	if state, err := l.checkCatalog(ctx, before); err != nil || state != nothingLeft {
		if err == nil || errors.Is(err, ErrObserverRemoved) {
			return state, err
		}
		return again(err)
	}
	rested, err := l.othersRest(ctx)
	switch {
	case err != nil:
		return again(err)
	case !l.isStill():
		return moving, nil
	case !rested:
		return othersMove, nil
	}
	return nothingLeft, nil
}

// muster reads who the others are, if the last beat does not tell that there are none.
func (l *idleLook) muster(ctx context.Context) (err error) {
	if c := l.w.member.company.Load(); c != nil && c.alone && c.generation != 0 {
		l.base = &muster{generation: c.generation}
		return nil
	}
	l.base, err = l.w.muster(ctx)
	return err
}

// othersRest tells, after the scans, whether no other worker has run anything since before
// them. If there are none, the generation shows that none has come meanwhile.
func (l *idleLook) othersRest(ctx context.Context) (bool, error) {
	if len(l.base.members) == 0 {
		_, generation, err := l.w.readGeneration(ctx)
		if err == nil && generation != l.base.generation {
			l.base, err = l.w.muster(ctx)
			return false, err
		}
		return err == nil, err
	}
	later, barrier, err := l.w.ask(ctx)
	if err != nil || later == nil {
		return false, err
	}
	rested := l.base.restedUntil(later, barrier)
	l.base = later
	return rested, nil
}

// checkCatalog looks, after the scans, whether the sweeps of the worker's observers had been done before the
// first scan, and whether the observers that the scans have passed over are still paused. One that was resumed meanwhile, or before
// the worker could hear of it, has changes that wait. One that was paused meanwhile was looked for.
func (l *idleLook) checkCatalog(ctx context.Context, before *catalogView) (idleState, error) {
	w := l.w
	v, err := w.db.loadCatalog(ctx)
	if err != nil {
		return someLeft, err
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
		if l.paused[q] && !now.Paused {
			leaveToken(w.recheck)
			return moving, nil
		}
	}
	return nothingLeft, nil
}

// waitChange waits for the last job to end, or for a little while.
func (w *Worker) waitChange(ctx context.Context, changed chan struct{}, wait time.Duration) error {
	sleep, cancel := context.WithCancel(ctx)
	defer cancel()
	slept := make(chan struct{})
	go func() {
		defer close(slept)
		_ = w.db.clock.Sleep(sleep, wait)
	}()
	defer func() {
		cancel()
		<-slept
		w.forgetIdle(changed)
	}()
	select {
	case <-changed:
	case <-slept:
	case <-w.ended:
		return w.endedError()
	}
	return ctx.Err()
}

// forgetIdle takes a WaitIdle out of those that signalIdle tells.
func (w *Worker) forgetIdle(changed chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.idle, changed)
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
// has to see. reverse begins with the last table.
func (l *idleLook) anyLeft(ctx context.Context, reverse bool) (bool, error) {
	w := l.w
	tables := slices.Sorted(maps.Keys(w.tables))
	if reverse {
		slices.Reverse(tables)
	}
	for _, table := range tables {
		// What is found there moves to the notifications, before it goes from there.
		if due, err := w.db.timersDue(ctx, table); err != nil || due {
			return true, err
		}
		for row, err := range w.db.notifiedRows(ctx, table, w.notifyPicks(table)) {
			if err != nil {
				return true, err
			}
			for column, notified := range notifiedColumns(&row) {
				left, err := l.isLeft(ctx, Cell{table, row.Row, column}, notified)
				if err != nil || left {
					return true, err
				}
			}
		}
	}
	return false, nil
}

// isLeft looks at a notified cell as a run would.
func (l *idleLook) isLeft(ctx context.Context, c Cell, notified []rowstore.Version) (bool, error) {
	w := l.w
	seen := w.rested.signature(c, w.db.known().observers(c.Table, c.Column), notified)
	w.mu.Lock()
	covered := w.rested.covers(c, seen, w.db.clock.Now())
	w.mu.Unlock()
	if len(notified) >= seenVersions {
		covered = 0 // more may be there than the scan shows
	}
	if covered&waits == 0 && !slices.ContainsFunc(w.queuesOf(c), func(q *queue) bool { return !q.in(covered) }) {
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
	for i, name := range view.names {
		if l.waitsFor(name, c) && !view.covered(i) {
			return true, nil
		}
	}
	// If every observer is covered, the notifications still have to be cleared.
	// Otherwise they wait for observers of other workers.
	if view.later || len(view.seen) > 0 && !view.waits() && view.othersCovered(-1) {
		return true, nil
	}
	w.skipUntilChanged(view)
	return false, nil
}

// waitsFor tells whether the look waits for an observer of a stored cell: the worker runs it, and it was not paused.
func (l *idleLook) waitsFor(id string, c Cell) bool {
	return slices.ContainsFunc(l.w.queuesOf(c), func(q *queue) bool { return q.o.id == id && !l.paused[q] })
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
