package coalesce

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/internal/arena"
)

// batch is a merged call. The lane's mutex guards it until it leaves. Then the goroutine
// that sends it owns it, except for cancel and staying.
type batch[Q, A any] struct {
	asks    []Q
	rows    int
	arena   arena.Arena
	names   rowSet
	waiters []*waiter[Q, A]
	sent    bool
	alone   bool               // it holds one call, and takes no other
	cancel  context.CancelFunc // nil when the context is that of the only caller
	staying int                // callers that have not given up
}

// waiter is a call that waits in a batch. It is reused, unless its caller gave up after
// the batch left.
type waiter[Q, A any] struct {
	ctx       context.Context
	batch     *batch[Q, A]
	off, n    int  // its part of batch.asks
	writes    bool // its request may change something once it left
	abandoned bool // the caller gave up after it left; guarded by the lane's mutex
	answers   []A
	err       error
	ready     chan struct{} // of capacity 1: gets one token when answers and err are set
}

// maxBatchBytes is the total size of the values in a batch of several calls, at most. A caller
// does not wait while the large values of others are sent, whoever of them came first.
const maxBatchBytes = 1 << 20

// enqueue puts a call into the first batch that leaves after every batch with one of its
// rows. So calls on a row keep their order, and no whole batch overtakes a call.
func (l *lane[Q, A]) enqueue(ctx context.Context, w *waiter[Q, A], asks []Q) {
	hashes, first := l.hashes[:0], 0
	if l.hash != nil {
		hashes = l.hash(hashes, asks)
		for i := len(l.pending); i > 0; i-- {
			if l.pending[i-1].names.hasAny(hashes) {
				first = i
				break
			}
		}
	}
	l.hashes = hashes
	rows, bytes := l.count(asks), 0
	if l.bytes != nil {
		bytes = l.bytes(asks)
	}
	w.ctx = ctx
	for _, p := range l.pending[first:] {
		if !p.alone && p.rows+rows <= l.maxBatch && p.arena.Bytes()+bytes <= maxBatchBytes {
			l.join(p, w, asks, hashes)
			return
		}
	}
	b := l.newBatch()
	l.pending = append(l.pending, b)
	l.join(b, w, asks, hashes)
}

// newBatch is an empty batch.
func (l *lane[Q, A]) newBatch() *batch[Q, A] {
	n := len(l.free)
	if n == 0 {
		return &batch[Q, A]{}
	}
	b := l.free[n-1]
	l.free = l.free[:n-1]
	return b
}

// join puts a call into a batch, which gets copies of its asks.
func (l *lane[Q, A]) join(b *batch[Q, A], w *waiter[Q, A], asks []Q, hashes []uint64) {
	w.batch, w.off, w.n, w.writes = b, len(b.asks), len(asks), l.mayChange(asks)
	b.asks = l.keep(b.asks, &b.arena, asks)
	b.rows += l.count(asks)
	b.names.add(hashes)
	b.waiters = append(b.waiters, w)
}

// giveUp takes back a call whose context ended. It returns nil if the answer has come
// meanwhile.
func (l *lane[Q, A]) giveUp(w *waiter[Q, A]) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	default:
	}
	err := w.ctx.Err()
	b := w.batch
	if b.sent {
		w.abandoned = true
		b.staying--
		if b.staying == 0 && b.cancel != nil {
			b.cancel()
		}
		if w.writes {
			return fmt.Errorf("coalesce: %s: %w: %w", l.name, rowstore.ErrAmbiguous, err)
		}
		return fmt.Errorf("coalesce: %s: %w", l.name, err)
	}
	// Put the rest of the batch together again. This is rare and costs little: only
	// headers are copied, and the copies of w stay in the arena until the batch is done.
	i := slices.Index(b.waiters, w)
	b.waiters = slices.Delete(b.waiters, i, i+1)
	b.asks = slices.Delete(b.asks, w.off, w.off+w.n)
	for _, later := range b.waiters[i:] {
		later.off -= w.n
	}
	b.names.reset()
	l.hashes = l.hashes[:0]
	if l.hash != nil {
		l.hashes = l.hash(l.hashes, b.asks)
		b.names.add(l.hashes)
	}
	b.rows = l.count(b.asks)
	if len(b.waiters) == 0 {
		l.pending = slices.DeleteFunc(l.pending, func(p *batch[Q, A]) bool { return p == b })
		l.recycle(b)
	}
	*w = waiter[Q, A]{ready: w.ready}
	l.waiters.Put(w)
	return fmt.Errorf("coalesce: %s: %w", l.name, err)
}

// sendPending sends batches as long as any may leave. Whoever starts it has counted it in
// inFlight.
func (l *lane[Q, A]) sendPending() {
	yielded := false
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if !yielded && !l.closed && (len(l.pending) == 0 || len(l.pending[0].asks) < fewAsks) {
			// Callers that just got their answers are likely to ask again.
			l.yield()
			if n := l.waiting(); n > 0 && n < fewAsks {
				l.hold()
			}
			yielded = true
			continue
		}
		// This goroutine's own place must not count against it.
		l.inFlight--
		if !l.maySendFirst() {
			l.signalIdle()
			return
		}
		b := l.pending[0]
		l.pending = slices.Delete(l.pending, 0, 1)
		b.sent = true
		b.staying = len(b.waiters)
		at := l.departed(len(b.asks))
		ctx := b.context()
		l.sent = append(l.sent, b)
		if len(l.pending) > 0 && l.pending[0].alone {
			l.dispatch() // it came back by itself: no caller comes with it, and sees whether it may leave
		}
		l.mu.Unlock()
		began := time.Now()
		l.sendBatch(ctx, b)
		took := time.Since(began)
		yielded = false

		l.mu.Lock()
		// A caller that gives up after this finds its answer, and does not touch the
		// batch.
		l.noteDuration(took)
		l.arrived(at)
		l.inFlight++
		l.sent = slices.DeleteFunc(l.sent, func(s *batch[Q, A]) bool { return s == b })
		l.recycle(b)
	}
}

// sendBatch sends a batch and hands out the answers. Calls that may have failed for a stranger's fault wait once more, each alone.
func (l *lane[Q, A]) sendBatch(ctx context.Context, b *batch[Q, A]) {
	answers, err := l.ask(ctx, b.asks)
	several := len(b.waiters) > 1
	ofOne := several && isOfOne(err, l.mayChange(b.asks))
	var again []*waiter[Q, A]
	for _, w := range b.waiters {
		if err == nil {
			w.answers = answers[w.off : w.off+w.n : w.off+w.n]
		}
		if ofOne || several && err == nil && l.again != nil && l.again(w.answers) {
			again = append(again, w)
			continue
		}
		w.err = err
		w.ready <- struct{}{}
	}
	if len(again) > 0 {
		l.askAlone(b, again)
	}
	if b.cancel != nil {
		b.cancel()
	}
}

// askAlone puts calls of a batch that did nothing back before all that waits, each into a batch of its own. There each has the context
// of its own caller, and is one of the calls under way: one that hangs keeps others waiting no longer than any other call would.
func (l *lane[Q, A]) askAlone(b *batch[Q, A], calls []*waiter[Q, A]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var alone []*batch[Q, A]
	for _, w := range calls {
		if w.abandoned {
			continue
		}
		w.answers = nil
		if l.closed {
			w.err = l.errClosed(w.ctx)
			w.ready <- struct{}{}
			continue
		}
		asks := b.asks[w.off : w.off+w.n]
		if l.hash != nil {
			l.hashes = l.hash(l.hashes[:0], asks)
		}
		one := l.newBatch()
		one.alone = true
		l.join(one, w, asks, l.hashes)
		alone = append(alone, one)
	}
	l.pending = slices.Insert(l.pending, 0, alone...)
	l.startWatch()
}

// isOfOne tells whether the failure of a merged call comes from one of its calls, and nothing was
// done: a call was bad, or what was to be read for it is damaged or of an unknown version. A call that
// may change something may have done so before it met that.
func isOfOne(err error, writes bool) bool {
	if errors.Is(err, rowstore.ErrAmbiguous) {
		return false
	}
	unreadable := errors.Is(err, rowstore.ErrCorrupt) || errors.Is(err, rowstore.ErrFormat)
	return errors.Is(err, rowstore.ErrInvalid) || errors.Is(err, rowstore.ErrTooLarge) || !writes && unreadable
}

func (l *lane[Q, A]) ask(ctx context.Context, asks []Q) ([]A, error) {
	answers, err := l.send(ctx, asks)
	if err == nil && len(answers) != len(asks) {
		err = fmt.Errorf("coalesce: %s: the store gave %d answers for %d rows", l.name, len(answers), len(asks))
		if l.mayChange(asks) {
			err = fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, err)
		}
	}
	if ctx.Err() != nil {
		l.mu.Lock()
		closed := l.closed
		l.mu.Unlock()
		if closed {
			l.explainClosed(answers, &err)
		}
	}
	if err != nil {
		return nil, err
	}
	return answers, nil
}

// explainClosed makes the errors of a call that Close cancelled say so.
func (l *lane[Q, A]) explainClosed(answers []A, err *error) {
	explain := func(err *error) {
		if *err != nil && !errors.Is(*err, rowstore.ErrClosed) {
			*err = fmt.Errorf("%w: %w", rowstore.ErrClosed, *err)
		}
	}
	explain(err)
	for i := range answers {
		l.errors(&answers[i], explain)
	}
}

// context makes the context of a merged call, with the lane locked.
func (b *batch[Q, A]) context() context.Context {
	if len(b.waiters) == 1 {
		return b.waiters[0].ctx
	}
	m := &mergedContext{values: b.waiters[0].ctx, bounded: true}
	m.Context, b.cancel = context.WithCancel(context.Background()) //nolint:gosec // sendBatch calls it
	for _, w := range b.waiters {
		deadline, ok := w.ctx.Deadline()
		if !ok {
			m.bounded = false
			break
		}
		if deadline.After(m.deadline) {
			m.deadline = deadline
		}
	}
	return m
}

// mergedContext is a context that is cancelled by hand. It tells its deadline to stores
// that set timeouts by it, but does not end then by itself: the callers give up by their
// deadlines, and the last one cancels it.
type mergedContext struct {
	context.Context
	values   context.Context
	deadline time.Time
	bounded  bool
}

func (m *mergedContext) Deadline() (time.Time, bool) {
	if !m.bounded {
		return time.Time{}, false
	}
	return m.deadline, true
}

// Value asks the cancellable context first. Package context finds it in this way, and then
// needs no goroutine for contexts that are made from this one.
func (m *mergedContext) Value(key any) any {
	if key == (contexts.MergedKey{}) {
		return m
	}
	if v := m.Context.Value(key); v != nil {
		return v
	}
	return m.values.Value(key)
}

func (l *lane[Q, A]) recycle(b *batch[Q, A]) {
	const few = 8
	if len(l.free) >= few || cap(b.asks) > 4*l.maxBatch {
		return
	}
	clear(b.asks)
	clear(b.waiters)
	b.arena.Reset()
	b.names.reset()
	*b = batch[Q, A]{asks: b.asks[:0], arena: b.arena, names: b.names, waiters: b.waiters[:0]}
	l.free = append(l.free, b)
}
