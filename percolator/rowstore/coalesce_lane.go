package rowstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// laneKind is what differs between reads, applies and groups: Q is one of the
// things that a call asks for, A the answer to it.
type laneKind[Q, A any] struct {
	name   string
	writes bool // a request that left may have changed something, which the caller has to know
	whole  bool // an answer is about the whole call, which must not be cut
	send   func(context.Context, []Q) ([]A, error)
	check  func([]Q) error
	// keep appends copies that share nothing with the caller, who may go away and
	// change its slices while the merged call is under way.
	keep func(to []Q, a *arena, asks []Q) []Q
	// hash appends a hash for each row that asks name; nil where a batch may name a
	// row twice. Two rows of one hash only mean that one of them waits.
	hash func(to []uint64, asks []Q) []uint64
	// size is what asks count for in MaxBatch, where that is not their number; else nil.
	size func(asks []Q) int
	// shard names the shard of an ask; nil where the store has no Sharder, or what is
	// asked concerns none. It says false of an ask that concerns several.
	shard func(q *Q) (string, bool)
	// failed is the answer to an ask whose call failed.
	failed func(q *Q, err error) A
}

func (k *laneKind[Q, A]) count(asks []Q) int {
	if k.size != nil {
		return k.size(asks)
	}
	return len(asks)
}

// lanes has a lane for each shard, so that a slow server delays only who needs it.
type lanes[Q, A any] struct {
	laneKind[Q, A]
	opts CoalesceOptions
	only *lane[Q, A] // of everything, without a Sharder; with one, of what concerns several shards

	mu     sync.Mutex
	closed bool
	named  atomic.Pointer[map[string]*lane[Q, A]] // never changed, but replaced under mu
}

func newLanes[Q, A any](opts CoalesceOptions, kind laneKind[Q, A]) *lanes[Q, A] {
	s := &lanes[Q, A]{laneKind: kind, opts: opts, only: newLane(opts, kind)}
	s.named.Store(&map[string]*lane[Q, A]{})
	return s
}

func (s *lanes[Q, A]) do(ctx context.Context, asks []Q) ([]A, error) {
	if s.shard == nil || len(asks) == 0 {
		return s.only.do(ctx, asks)
	}
	// A Sharder is asked about good names only.
	if err := s.check(asks); err != nil {
		return nil, fmt.Errorf("coalesce: %s: %w", s.name, err)
	}
	shard, one := s.shardOf(asks)
	if one {
		return s.lane(shard).do(ctx, asks)
	}
	if len(asks) == 1 || s.whole {
		return s.only.alone(ctx, asks)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("coalesce: %s: %w", s.name, err)
	}
	if s.isClosed() {
		return nil, s.only.errClosed()
	}
	parts := cut(asks, func(q *Q) *lane[Q, A] {
		if shard, one := s.shard(q); one {
			return s.lane(shard)
		}
		return nil
	})
	return sendParts(len(asks), parts, func(p *part[*lane[Q, A], Q]) ([]A, error) {
		if p.to == nil {
			return s.only.alone(ctx, p.asks)
		}
		return p.to.do(ctx, p.asks)
	}, s.failed), nil
}

// shardOf names the shard of all asks, or says false when there are several.
func (s *lanes[Q, A]) shardOf(asks []Q) (string, bool) {
	shard, one := s.shard(&asks[0])
	for i := 1; one && i < len(asks); i++ {
		var next string
		next, one = s.shard(&asks[i])
		one = one && next == shard
	}
	return shard, one
}

// lane finds the lane of a shard, or makes it.
func (s *lanes[Q, A]) lane(shard string) *lane[Q, A] {
	if l := (*s.named.Load())[shard]; l != nil {
		return l
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	named := *s.named.Load()
	if l := named[shard]; l != nil {
		return l
	}
	l := newLane(s.opts, s.laneKind)
	if s.closed {
		l.stop()
	}
	named = maps.Clone(named)
	named[shard] = l
	s.named.Store(&named)
	return l
}

func (s *lanes[Q, A]) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func (s *lanes[Q, A]) stop() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.only.stop()
	for _, l := range *s.named.Load() {
		l.stop()
	}
}

func (s *lanes[Q, A]) wait() {
	s.only.wait()
	for _, l := range *s.named.Load() {
		l.wait()
	}
}

// lane merges the calls of one kind.
type lane[Q, A any] struct {
	laneKind[Q, A]
	maxBatch, maxInFlight int
	waiters               sync.Pool

	mu       sync.Mutex
	inFlight int            // calls of send under way, or about to be, that count
	flying   int            // asks in those under way
	apart    int            // calls under way that do not count: large ones, and overdue ones
	pending  []*batch[Q, A] // in the order in which they will leave; only while something is in flight
	sent     []*batch[Q, A] // those under way
	free     []*batch[Q, A] // for reuse
	hashes   []uint64       // scratch space
	closed   bool
	idle     chan struct{} // closed once closed and nothing is in flight

	// What follows finds calls that take too long, see watch.
	flights  []flight
	usual    time.Duration // of merged calls
	watching bool
	timer    *time.Timer // nil until something waited for the first time
	looks    uint64      // how often the timer has looked
}

// flight is a call under way, in a place of a lane that is used again and again.
type flight struct {
	used    bool
	overdue bool
	asks    int
	since   uint64 // lane.looks when it left
}

// batch is a merged call. The lane's mutex guards it until it leaves; then it
// belongs to the goroutine that sends it, but for cancel and staying.
type batch[Q, A any] struct {
	asks    []Q
	rows    int
	arena   arena
	names   rowSet
	waiters []*waiter[Q, A]
	left    bool
	cancel  context.CancelFunc // nil when the context is that of the only caller
	staying int                // callers that have not given up
}

// waiter is a call that waits in a batch. It is reused unless its caller went
// away after it left.
type waiter[Q, A any] struct {
	ctx     context.Context
	batch   *batch[Q, A]
	off, n  int  // its part of batch.asks
	gone    bool // the caller went away after it left; guarded by the lane's mutex
	answers []A
	err     error
	ready   chan struct{} // of capacity 1: gets one token when answers and err are set
}

func newLane[Q, A any](opts CoalesceOptions, kind laneKind[Q, A]) *lane[Q, A] {
	l := &lane[Q, A]{laneKind: kind, maxBatch: opts.MaxBatch, maxInFlight: opts.MaxInFlight, idle: make(chan struct{})}
	l.waiters.New = func() any { return &waiter[Q, A]{ready: make(chan struct{}, 1)} }
	return l
}

func (l *lane[Q, A]) errClosed() error { return fmt.Errorf("coalesce: %s: %w", l.name, ErrClosed) }

func (l *lane[Q, A]) do(ctx context.Context, asks []Q) ([]A, error) {
	if l.count(asks) > l.maxBatch {
		return l.alone(ctx, asks)
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, l.errClosed()
	}
	if l.mayPass(asks) {
		return l.direct(ctx, asks)
	}
	l.mu.Unlock()

	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("coalesce: %s: %w", l.name, err)
	}
	if err := l.check(asks); err != nil {
		return nil, fmt.Errorf("coalesce: %s: %w", l.name, err)
	}
	if len(asks) == 0 {
		return nil, nil
	}
	w := l.waiters.Get().(*waiter[Q, A])
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, l.errClosed()
	}
	if l.mayPass(asks) {
		l.waiters.Put(w)
		return l.direct(ctx, asks)
	}
	l.join(ctx, w, asks)
	l.dispatch()
	l.watch()
	l.mu.Unlock()

	select {
	case <-w.ready:
	case <-ctx.Done():
		if err := l.leave(w); err != nil {
			return nil, err
		}
	}
	answers, err := w.answers, w.err
	*w = waiter[Q, A]{ready: w.ready}
	l.waiters.Put(w)
	return answers, err
}

// alone sends a call in its caller's goroutine, as it is, and holds up nobody: one
// that is larger than a batch takes long, and would be merged with none.
func (l *lane[Q, A]) alone(ctx context.Context, asks []Q) ([]A, error) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, l.errClosed()
	}
	l.apart++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.apart--
		l.rest()
		l.mu.Unlock()
	}()
	return l.send(ctx, asks)
}

// mayLeave tells whether a call of so many asks may be sent now. Beside others it
// leaves when it is no smaller than what is under way: so few callers hardly wait,
// and many share large calls, which cost both sides less than many small ones.
func (l *lane[Q, A]) mayLeave(asks int) bool {
	return l.inFlight == 0 || l.inFlight < l.maxInFlight && asks >= min(l.flying, l.maxBatch/2)
}

// mayPass tells whether a call may go straight through.
func (l *lane[Q, A]) mayPass(asks []Q) bool { return len(l.pending) == 0 && l.mayLeave(len(asks)) }

// dispatch has the first batch that waits sent, if that may leave.
func (l *lane[Q, A]) dispatch() {
	if len(l.pending) > 0 && l.mayLeave(len(l.pending[0].asks)) {
		l.inFlight++
		go l.run()
	}
}

// direct sends a call in its caller's goroutine, as it is. It is entered with the
// lane locked, and unlocks it.
func (l *lane[Q, A]) direct(ctx context.Context, asks []Q) ([]A, error) {
	at := l.depart(len(asks))
	l.mu.Unlock()
	// Its caller has the answer and owes the others nothing, so what waits is sent by a
	// goroutine of its own.
	defer func() {
		l.mu.Lock()
		l.land(at)
		l.dispatch()
		l.rest()
		l.mu.Unlock()
	}()
	return l.send(ctx, asks)
}

// depart notes that a call leaves, and returns its place in flights.
func (l *lane[Q, A]) depart(asks int) int {
	l.inFlight++
	l.flying += asks
	f := flight{used: true, asks: asks, since: l.looks}
	for i := range l.flights {
		if !l.flights[i].used {
			l.flights[i] = f
			return i
		}
	}
	l.flights = append(l.flights, f)
	return len(l.flights) - 1
}

// land notes that a call returned.
func (l *lane[Q, A]) land(at int) {
	f := &l.flights[at]
	if f.overdue {
		l.apart--
	} else {
		l.inFlight--
		l.flying -= f.asks
	}
	f.used = false
}

const (
	leastPatience = 20 * time.Millisecond
	mostPatience  = time.Second
)

// patience is how long a call may take before it is overdue: far longer than usual.
func (l *lane[Q, A]) patience() time.Duration {
	return min(max(8*l.usual, leastPatience), mostPatience)
}

// learn takes the duration of a merged call into what is usual. That rises slowly and
// falls quickly, so that calls that hang now and then change little.
func (l *lane[Q, A]) learn(took time.Duration) {
	switch {
	case l.usual == 0:
		l.usual = took
	case took < l.usual:
		l.usual = (l.usual + took) / 2
	default:
		l.usual += min(took-l.usual, l.usual) / 8
	}
}

// watch makes sure that what waits does not do so behind a call that hangs. While
// something waits, and only then, a timer looks at what is under way.
func (l *lane[Q, A]) watch() {
	if l.watching || len(l.pending) == 0 {
		return
	}
	l.watching = true
	if l.timer == nil {
		l.timer = time.AfterFunc(l.patience(), l.look)
	} else {
		l.timer.Reset(l.patience())
	}
}

// look makes calls that were under way through the whole time between two looks
// overdue. They count no longer, so others may leave beside them.
func (l *lane[Q, A]) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looks++
	l.watching = false
	if l.closed {
		return
	}
	for i := range l.flights {
		f := &l.flights[i]
		if f.used && !f.overdue && l.looks-f.since >= 2 {
			f.overdue = true
			l.inFlight--
			l.flying -= f.asks
			l.apart++
		}
	}
	l.dispatch()
	l.watch()
}

// rest tells Close that nothing is in flight any more.
func (l *lane[Q, A]) rest() {
	if l.closed && l.inFlight+l.apart == 0 {
		close(l.idle)
	}
}

// maxBatchBytes is the size of the values in a batch from which on it takes no more
// calls: the next one's time is not spent on the values of others.
const maxBatchBytes = 1 << 20

// join puts a call into the first batch that will leave after every batch with
// one of its rows, so that calls on a row keep their order, and no call is ever
// overtaken by a whole batch.
func (l *lane[Q, A]) join(ctx context.Context, w *waiter[Q, A], asks []Q) {
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
	rows := l.count(asks)
	var b *batch[Q, A]
	for _, p := range l.pending[first:] {
		if p.rows+rows <= l.maxBatch && len(p.arena.bytes) < maxBatchBytes {
			b = p
			break
		}
	}
	if b == nil {
		if n := len(l.free); n > 0 {
			b, l.free = l.free[n-1], l.free[:n-1]
		} else {
			b = &batch[Q, A]{}
		}
		l.pending = append(l.pending, b)
	}
	w.ctx, w.batch, w.off, w.n = ctx, b, len(b.asks), len(asks)
	b.asks = l.keep(b.asks, &b.arena, asks)
	b.rows += rows
	b.names.add(hashes)
	b.waiters = append(b.waiters, w)
	l.hashes = hashes
}

// leave takes back a call whose context ended. It returns nil when the answer has
// come meanwhile.
func (l *lane[Q, A]) leave(w *waiter[Q, A]) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	default:
	}
	err := w.ctx.Err()
	b := w.batch
	if b.left {
		w.gone = true
		b.staying--
		if b.staying == 0 && b.cancel != nil {
			b.cancel()
		}
		if l.writes {
			return fmt.Errorf("coalesce: %s: %w: %w", l.name, ErrAmbiguous, err)
		}
		return fmt.Errorf("coalesce: %s: %w", l.name, err)
	}
	// What remains is put together anew. This is rare and costs little: nothing is
	// copied but the headers, and what w had stays in the arena until the batch is
	// done.
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

// run sends batches for as long as there are any that may leave. It is started
// with a place in flight.
func (l *lane[Q, A]) run() {
	yielded := false
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if len(l.pending) == 0 && !yielded && !l.closed {
			// Those who just got their answers are likely to ask again. Let them run
			// first, so that they leave together and not the first of them alone.
			l.mu.Unlock()
			runtime.Gosched()
			l.mu.Lock()
			yielded = true
			continue
		}
		// This goroutine's own place must not count against it.
		l.inFlight--
		if len(l.pending) == 0 || !l.mayLeave(len(l.pending[0].asks)) {
			l.rest()
			return
		}
		b := l.pending[0]
		l.pending = slices.Delete(l.pending, 0, 1)
		b.left = true
		b.staying = len(b.waiters)
		at := l.depart(len(b.asks))
		ctx := b.context()
		l.sent = append(l.sent, b)
		l.mu.Unlock()
		began := time.Now()
		l.exchange(ctx, b)
		took := time.Since(began)
		yielded = false

		l.mu.Lock()
		// Whoever gives up after this finds the answer there, and does not touch the
		// batch.
		l.learn(took)
		l.land(at)
		l.inFlight++
		l.sent = slices.DeleteFunc(l.sent, func(s *batch[Q, A]) bool { return s == b })
		l.recycle(b)
	}
}

// exchange sends a batch and hands out the answers.
func (l *lane[Q, A]) exchange(ctx context.Context, b *batch[Q, A]) {
	answers, err := l.ask(ctx, b.asks)
	refused := errors.Is(err, ErrInvalid) || errors.Is(err, ErrTooLarge)
	if refused && len(b.waiters) > 1 && !errors.Is(err, ErrAmbiguous) {
		// One of the calls is to blame, and nothing was done: each gets its own answer.
		for _, w := range b.waiters {
			l.mu.Lock()
			gone := w.gone
			l.mu.Unlock()
			if !gone {
				w.answers, w.err = l.ask(ctx, b.asks[w.off:w.off+w.n])
			}
			w.ready <- struct{}{}
		}
	} else {
		for _, w := range b.waiters {
			if err == nil {
				w.answers = answers[w.off : w.off+w.n : w.off+w.n]
			}
			w.err = err
			w.ready <- struct{}{}
		}
	}
	if b.cancel != nil {
		b.cancel()
	}
}

func (l *lane[Q, A]) ask(ctx context.Context, asks []Q) ([]A, error) {
	answers, err := l.send(ctx, asks)
	if err == nil && len(answers) != len(asks) {
		err = fmt.Errorf("coalesce: %s: the store gave %d answers for %d rows", l.name, len(answers), len(asks))
		if l.writes {
			err = fmt.Errorf("%w: %w", ErrAmbiguous, err)
		}
	}
	if err != nil && ctx.Err() != nil {
		l.mu.Lock()
		closed := l.closed
		l.mu.Unlock()
		if closed && !errors.Is(err, ErrClosed) {
			err = fmt.Errorf("%w: %w", ErrClosed, err)
		}
	}
	if err != nil {
		return nil, err
	}
	return answers, nil
}

// context makes the context of a merged call, with the lane locked.
func (b *batch[Q, A]) context() context.Context {
	if len(b.waiters) == 1 {
		return b.waiters[0].ctx
	}
	m := &mergedContext{values: b.waiters[0].ctx, bounded: true}
	m.Context, b.cancel = context.WithCancel(context.Background()) //nolint:gosec // exchange calls it
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

// mergedContext is a context that is cancelled by hand and says which deadline it
// has, for stores that set timeouts by it; whoever set the deadline gives up by
// then, and the last to do so cancels.
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

// Value asks the cancellable context first: package context finds it by that, and
// needs no goroutine for contexts made from this one.
func (m *mergedContext) Value(key any) any {
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
	b.arena.reset()
	b.names.reset()
	*b = batch[Q, A]{asks: b.asks[:0], arena: b.arena, names: b.names, waiters: b.waiters[:0]}
	l.free = append(l.free, b)
}

// stop makes calls that have not left end, and cancels the merged ones that have.
func (l *lane[Q, A]) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	for _, b := range l.pending {
		for _, w := range b.waiters {
			w.err = l.errClosed()
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
	l.rest()
}

func (l *lane[Q, A]) wait() { <-l.idle }
