package coalesce

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

// lane merges the calls of one kind.
type lane[Q, A any] struct {
	laneKind[Q, A]
	maxBatch, maxInFlight int
	waiters               sync.Pool

	mu       sync.Mutex
	inFlight int            // calls of send under way, or about to be, that count in MaxInFlight
	flying   int            // asks in those under way
	apart    int            // calls under way that do not count: large ones, and overdue ones
	pending  []*batch[Q, A] // in the order in which they will leave; only while something is in flight
	sent     []*batch[Q, A] // those under way
	free     []*batch[Q, A] // for reuse
	hashes   []uint64       // scratch space
	closed   bool
	idle     chan struct{} // closed once closed and nothing is in flight

	// These fields are of yield.
	gosched func() // runtime.Gosched, but in tests
	yields  yields

	// These fields are of hold.
	ahead  lands // calls of another kind, which those of this one wait for; nil for none
	holds  yields
	held   bool          // what waits has waited for them already
	landed chan struct{} // closed when the next call returns; nil if nobody waits for it

	// These fields find calls that take too long; see startWatch.
	flights  []flight
	usual    time.Duration // of merged calls
	watching bool
	timer    *time.Timer // nil until something waited for the first time
	ticks    uint64      // how often the timer has looked
}

func newLane[Q, A any](opts Options, kind laneKind[Q, A]) *lane[Q, A] {
	l := &lane[Q, A]{laneKind: kind, maxBatch: opts.MaxBatch, maxInFlight: opts.MaxInFlight, idle: make(chan struct{}), gosched: runtime.Gosched}
	l.waiters.New = func() any { return &waiter[Q, A]{ready: make(chan struct{}, 1)} }
	return l
}

// errClosed is the error of a call after Close; a context that ended wins.
func (l *lane[Q, A]) errClosed(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("coalesce: %s: %w", l.name, err)
	}
	return fmt.Errorf("coalesce: %s: %w", l.name, rowstore.ErrClosed)
}

func (l *lane[Q, A]) do(ctx context.Context, asks []Q) ([]A, error) {
	if l.count(asks) > l.maxBatch {
		return l.sendAlone(ctx, asks)
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, l.errClosed(ctx)
	}
	if l.maySendDirect(asks) {
		l.gather(len(asks))
		if l.closed {
			l.signalIdle()
			l.mu.Unlock()
			return nil, l.errClosed(ctx)
		}
		if l.maySendDirect(asks) {
			return l.sendDirect(ctx, asks)
		}
	}
	l.mu.Unlock()

	if err := l.admit(ctx, asks); err != nil || len(asks) == 0 {
		// Calls that came during the yield wait for this one, which does not leave.
		l.mu.Lock()
		l.dispatch()
		l.mu.Unlock()
		return nil, err
	}
	w := l.waiters.Get().(*waiter[Q, A])
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, l.errClosed(ctx)
	}
	if l.maySendDirect(asks) {
		l.waiters.Put(w)
		return l.sendDirect(ctx, asks)
	}
	l.enqueue(ctx, w, asks)
	l.dispatch()
	l.startWatch()
	l.mu.Unlock()

	select {
	case <-w.ready:
	case <-ctx.Done():
		if err := l.giveUp(w); err != nil {
			return nil, err
		}
	}
	answers, err := w.answers, w.err
	*w = waiter[Q, A]{ready: w.ready}
	l.waiters.Put(w)
	return answers, err
}

// admit tells whether a call may wait in a batch: it is valid, and its context has not ended.
func (l *lane[Q, A]) admit(ctx context.Context, asks []Q) error {
	err := ctx.Err()
	if err == nil {
		err = l.check(asks)
	}
	if err != nil {
		return fmt.Errorf("coalesce: %s: %w", l.name, err)
	}
	return nil
}

// sendAlone sends a call in its caller's goroutine, as it is. Such a call is larger than a
// batch, so it takes long and merges with none. It does not count in MaxInFlight.
func (l *lane[Q, A]) sendAlone(ctx context.Context, asks []Q) ([]A, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, l.errClosed(ctx)
	}
	l.apart++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.apart--
		l.signalIdle()
		l.mu.Unlock()
	}()
	return l.send(ctx, asks)
}

// maySend tells whether a call of so many asks may be sent now. Beside others it may leave
// only if it is at least as large as what is under way. So few callers hardly wait, and
// many callers share large batches. Large batches cost both sides less than many small
// ones.
func (l *lane[Q, A]) maySend(asks int) bool {
	return l.inFlight == 0 || l.inFlight < l.maxInFlight && asks >= max(l.least, min(l.flying, l.maxBatch/2))
}

// maySendDirect tells whether a call may go straight to the store.
func (l *lane[Q, A]) maySendDirect(asks []Q) bool { return len(l.pending) == 0 && l.maySend(len(asks)) }

// maySendFirst tells whether the first waiting batch may be sent now. If others wait behind it,
// all that wait count as those that share a call: they would, but for MaxBatch.
func (l *lane[Q, A]) maySendFirst() bool {
	if len(l.pending) == 0 {
		return false
	}
	return l.maySend(len(l.pending[0].asks)) || l.least > 0 && len(l.pending) > 1 && l.inFlight < l.maxInFlight && l.maySend(l.waiting())
}

// dispatch starts a goroutine that sends the first waiting batch, if that may leave.
func (l *lane[Q, A]) dispatch() {
	if l.maySendFirst() {
		l.inFlight++
		go l.sendPending()
	}
}

// sendDirect sends a call in its caller's goroutine, as it is. The caller holds the lane's
// lock, and sendDirect unlocks it.
func (l *lane[Q, A]) sendDirect(ctx context.Context, asks []Q) ([]A, error) {
	at := l.departed(len(asks))
	l.mu.Unlock()
	// The caller has its answer and must not work for others: another goroutine sends
	// what waits.
	defer func() {
		l.mu.Lock()
		l.arrived(at)
		l.dispatch()
		l.signalIdle()
		l.mu.Unlock()
	}()
	return l.send(ctx, asks)
}

// signalIdle tells Close that nothing is in flight any more.
func (l *lane[Q, A]) signalIdle() {
	if l.closed && l.inFlight+l.apart == 0 {
		close(l.idle)
	}
}

// stop ends calls that have not left, and cancels merged calls that have.
func (l *lane[Q, A]) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	for _, b := range l.pending {
		for _, w := range b.waiters {
			w.err = l.errClosed(w.ctx)
			w.ready <- struct{}{}
		}
	}
	l.pending = nil
	for _, b := range l.sent {
		if b.cancel != nil {
			b.cancel()
		}
	}
	if l.timer != nil {
		l.timer.Stop()
	}
	l.signalIdle()
}

func (l *lane[Q, A]) wait() { <-l.idle }
