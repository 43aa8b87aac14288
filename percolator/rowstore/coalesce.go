package rowstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator/oracle"
)

// CoalesceOptions change what Coalesce does. The zero value is ready to use.
type CoalesceOptions struct {
	// MaxBatch is the greatest number of rows, or of timestamps, in a merged call. A
	// single call with more of them is sent alone and whole. Default (0 or less) 256.
	MaxBatch int
	// MaxInFlight is the greatest number of backend calls of each kind under way
	// at once: reads, applies, groups, draws, and draws with reads; deferred and
	// undeferred applies count apart. With 1, callers are merged the most and wait the longest. Default
	// (0 or less) 2.
	MaxInFlight int
}

// Coalesce returns a Store that merges concurrent Read, Apply, Group and DrawRead
// calls, and draws of timestamps from the store's oracle, into few calls of s. It waits
// for no time to pass. While no call of its kind is under way, a call goes straight
// to s, in its caller's goroutine. Calls that arrive meanwhile are merged into a
// batch, which leaves when the call under way returns, or earlier: once it is as
// large as all that is under way, as far as MaxInFlight allows. So the batches grow
// with the load, and an answer always comes from a request that left after the
// caller asked.
//
// To each caller it looks as if its call had been made alone: bad arguments fail
// alone, and so do the rows that have an Err. An error of a whole merged call
// goes to all who were in it. A batch names a row once; calls that change the
// same row leave one after the other in the order in which they came.
//
// Deferred and undeferred applies are never in one batch over a [Deferrer], so a
// deferred one does not wait for a flush that it did not ask for.
//
// A caller returns when its context ends. If its request had not left by then,
// nothing happened, else Apply and Group return an error that matches
// ErrAmbiguous, besides the context's. The merged call goes on until the last of
// its callers gave up. It carries the values of the context of the caller that
// came first, and the latest of the deadlines.
//
// The Store is a [Decorator] and has the optional abilities of s. Close closes s;
// calls that have not left end with ErrClosed, the contexts of merged ones end,
// and Close returns once none is under way. No goroutine runs while nothing does.
func Coalesce(s Store, opts CoalesceOptions) Store {
	if opts.MaxBatch <= 0 {
		opts.MaxBatch = 256
	}
	if opts.MaxInFlight <= 0 {
		opts.MaxInFlight = 2
	}
	c := &coalescer{inner: s, opts: opts}
	var limits Limits
	if l, ok := Unwrap[Limiter](s); ok {
		limits = l.Limits()
	}
	_, defers := Unwrap[Deferrer](s)
	seed := maphash.MakeSeed()

	c.reads = newLane(c, laneKind[RowRead, Row]{
		name:  "read",
		send:  s.Read,
		check: CheckReads,
		keep:  keepReads,
	})
	// Those that draw have lanes of their own, so that nobody waits for timestamps
	// that he did not ask for.
	apply := func(opts ApplyOptions) *lane[Mutation, Outcome] {
		return newLane(c, laneKind[Mutation, Outcome]{
			name:   "apply",
			writes: true,
			send: func(ctx context.Context, muts []Mutation) ([]Outcome, error) {
				return s.Apply(ctx, muts, opts)
			},
			check: func(muts []Mutation) error {
				if err := CheckBatch(muts); err != nil {
					return err
				}
				return CheckLimits(limits, muts)
			},
			keep: keepMutations,
			hash: func(to []uint64, muts []Mutation) []uint64 { return hashRows(to, seed, muts) },
		})
	}
	for i := range c.applies {
		opts := ApplyOptions{Deferred: i&1 != 0, Draw: i&2 != 0}
		if opts.Deferred && !defers {
			c.applies[i] = c.applies[i&^1]
		} else {
			c.applies[i] = apply(opts)
		}
	}
	if p, ok := Unwrap[OracleProvider](s); ok {
		inner := p.Oracle()
		c.draws = newLane(c, laneKind[int, Timestamp]{
			name:  "draw",
			send:  func(ctx context.Context, counts []int) ([]Timestamp, error) { return drawAll(ctx, inner, counts) },
			check: checkDraws,
			keep:  func(to []int, _ *arena, counts []int) []int { return append(to, counts...) },
			size:  func(counts []int) int { return sum(counts) },
		})
	}
	if d, ok := Unwrap[DrawReader](s); ok {
		c.drawReads = newLane(c, laneKind[DrawRead, DrawnRows]{
			name:  "draw and read",
			send:  d.DrawRead,
			check: CheckDrawReads,
			keep:  keepDrawReads,
			size: func(asks []DrawRead) int {
				n := 0
				for i := range asks {
					n += len(asks[i].Reads)
				}
				return n
			},
		})
	}
	if g, ok := Unwrap[Grouper](s); ok {
		c.grouper = g
		c.groups = newLane(c, laneKind[Group, GroupOutcome]{
			name:   "group",
			writes: true,
			send:   g.Group,
			check: func(groups []Group) error {
				if err := CheckGroups(g, groups); err != nil {
					return err
				}
				for i := range groups {
					if err := CheckLimits(limits, groups[i].Mutations); err != nil {
						return err
					}
				}
				return nil
			},
			keep: keepGroups,
			hash: func(to []uint64, groups []Group) []uint64 {
				for i := range groups {
					to = hashRows(to, seed, groups[i].Mutations)
				}
				return to
			},
		})
	}
	return c
}

type coalescer struct {
	inner     Store
	opts      CoalesceOptions
	grouper   Grouper
	reads     *lane[RowRead, Row]
	applies   [4]*lane[Mutation, Outcome] // by Deferred (1) and Draw (2); shared where nothing is ever deferred
	groups    *lane[Group, GroupOutcome]  // nil without a Grouper
	draws     *lane[int, Timestamp]       // nil without an OracleProvider
	drawReads *lane[DrawRead, DrawnRows]  // nil without a DrawReader
	close     sync.Once
}

var _ Decorator = (*coalescer)(nil)

func (c *coalescer) Read(ctx context.Context, reads []RowRead) ([]Row, error) {
	return c.reads.do(ctx, reads)
}

func (c *coalescer) Apply(ctx context.Context, muts []Mutation, opts ApplyOptions) ([]Outcome, error) {
	i := 0
	if opts.Deferred {
		i |= 1
	}
	if opts.Draw {
		i |= 2
	}
	return c.applies[i].do(ctx, muts)
}

func (c *coalescer) Scan(ctx context.Context, s ScanRange) iter.Seq2[Row, error] {
	return c.inner.Scan(ctx, s)
}

func (c *coalescer) Tables(ctx context.Context) iter.Seq2[string, error] { return c.inner.Tables(ctx) }

func (c *coalescer) Close() error {
	var err error
	c.close.Do(func() {
		c.reads.stop()
		for _, l := range c.applies {
			l.stop()
		}
		if c.groups != nil {
			c.groups.stop()
		}
		if c.draws != nil {
			c.draws.stop()
		}
		if c.drawReads != nil {
			c.drawReads.stop()
		}
		err = c.inner.Close()
		c.reads.wait()
		for _, l := range c.applies {
			l.wait()
		}
		if c.groups != nil {
			c.groups.wait()
		}
		if c.draws != nil {
			c.draws.wait()
		}
		if c.drawReads != nil {
			c.drawReads.wait()
		}
	})
	return err
}

// Offer implements Decorator. What coalescing does not change is offered as it
// is.
func (c *coalescer) Offer(target any) bool {
	switch t := target.(type) {
	case *Grouper:
		if c.grouper == nil {
			return false
		}
		*t = coalescedGrouper{c.grouper, c.groups}
		return true
	case *Reporter:
		r, ok := Unwrap[Reporter](c.inner)
		if ok {
			*t = coalescedReporter{r, c.opts}
		}
		return ok
	case *Deferrer:
		return offer(c.inner, t)
	case *OracleProvider:
		if c.draws == nil {
			return false
		}
		*t = coalescedOracle{c.draws}
		return true
	case *DrawReader:
		if c.drawReads == nil {
			return false
		}
		*t = coalescedDrawReader{c.drawReads}
		return true
	case *Splitter:
		return offer(c.inner, t)
	case *Waker:
		return offer(c.inner, t)
	case *Limiter:
		return offer(c.inner, t)
	case *Placer:
		return offer(c.inner, t)
	case *Crasher:
		return offer(c.inner, t)
	}
	return false
}

// offer gives the ability of an inner store out as a Decorator's own.
func offer[T any](inner Store, target *T) bool {
	t, ok := Unwrap[T](inner)
	if ok {
		*target = t
	}
	return ok
}

type coalescedGrouper struct {
	Grouper
	groups *lane[Group, GroupOutcome]
}

func (g coalescedGrouper) Group(ctx context.Context, groups []Group) ([]GroupOutcome, error) {
	return g.groups.do(ctx, groups)
}

type coalescedDrawReader struct {
	drawReads *lane[DrawRead, DrawnRows]
}

func (d coalescedDrawReader) DrawRead(ctx context.Context, asks []DrawRead) ([]DrawnRows, error) {
	return d.drawReads.do(ctx, asks)
}

// coalescedOracle is both the ability and the oracle.
type coalescedOracle struct{ draws *lane[int, Timestamp] }

func (o coalescedOracle) Oracle() oracle.Oracle { return o }

func (o coalescedOracle) Draw(ctx context.Context, n int) (Timestamp, error) {
	first, err := o.draws.do(ctx, []int{n})
	if err != nil {
		if errors.Is(err, ErrClosed) && !errors.Is(err, oracle.ErrClosed) {
			err = fmt.Errorf("%w: %w", oracle.ErrClosed, err)
		}
		return 0, err
	}
	return first[0], nil
}

// drawAll draws for all who wait at once, and gives each its part of the range.
func drawAll(ctx context.Context, from oracle.Oracle, counts []int) ([]Timestamp, error) {
	next, err := from.Draw(ctx, sum(counts))
	if err != nil {
		return nil, err
	}
	firsts := make([]Timestamp, len(counts))
	for i, n := range counts {
		firsts[i] = next
		next += Timestamp(n)
	}
	return firsts, nil
}

func checkDraws(counts []int) error {
	for _, n := range counts {
		if n < 1 {
			return fmt.Errorf("%w: draw of %d timestamps", ErrInvalid, n)
		}
	}
	return nil
}

func sum(counts []int) int {
	all := 0
	for _, n := range counts {
		all += n
	}
	return all
}

type coalescedReporter struct {
	inner Reporter
	opts  CoalesceOptions
}

func (r coalescedReporter) Report(ctx context.Context) (Report, error) {
	report, err := r.inner.Report(ctx)
	if err != nil {
		return Report{}, err
	}
	report.Features = append(report.Features, Feature{
		Name: "coalescing", Supported: true,
		Reason: fmt.Sprintf("up to %d rows in a call, %d calls of a kind at once", r.opts.MaxBatch, r.opts.MaxInFlight),
	})
	return report, nil
}

// laneKind is what differs between reads, applies and groups: Q is one of the
// things that a call asks for, A the answer to it.
type laneKind[Q, A any] struct {
	name   string
	writes bool // a request that left may have changed something, which the caller has to know
	send   func(context.Context, []Q) ([]A, error)
	check  func([]Q) error
	// keep appends copies that share nothing with the caller, who may go away and
	// change its slices while the merged call is under way.
	keep func(to []Q, a *arena, asks []Q) []Q
	// hash appends a hash for each row that asks name; nil where a batch may name a
	// row twice. Two rows of one hash only mean that one of them waits.
	hash func(to []uint64, asks []Q) []uint64
	// size is what asks count for in MaxBatch, where that is neither the number of
	// their hashes nor of the asks; else nil.
	size func(asks []Q) int
}

// lane merges the calls of one kind.
type lane[Q, A any] struct {
	laneKind[Q, A]
	maxBatch, maxInFlight int
	waiters               sync.Pool

	mu       sync.Mutex
	inFlight int            // calls of send under way, or about to be
	flying   int            // asks in those under way
	pending  []*batch[Q, A] // in the order in which they will leave; only while something is in flight
	sent     []*batch[Q, A] // those under way
	free     []*batch[Q, A] // for reuse
	hashes   []uint64       // scratch space
	closed   bool
	idle     chan struct{} // closed once closed and nothing is in flight
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

func newLane[Q, A any](c *coalescer, kind laneKind[Q, A]) *lane[Q, A] {
	l := &lane[Q, A]{laneKind: kind, maxBatch: c.opts.MaxBatch, maxInFlight: c.opts.MaxInFlight, idle: make(chan struct{})}
	l.waiters.New = func() any { return &waiter[Q, A]{ready: make(chan struct{}, 1)} }
	return l
}

func (l *lane[Q, A]) errClosed() error { return fmt.Errorf("coalesce: %s: %w", l.name, ErrClosed) }

func (l *lane[Q, A]) do(ctx context.Context, asks []Q) ([]A, error) {
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

// mayLeave tells whether a call of so many asks may be sent now. Beside others it
// leaves when it is no smaller than what is under way: so few callers hardly wait,
// and many share large calls, which cost both sides less, whose number they would
// else only divide.
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
	l.inFlight++
	l.flying += len(asks)
	l.mu.Unlock()
	defer l.land(len(asks))
	return l.send(ctx, asks)
}

// land ends a direct call. Its caller has the answer and owes the others nothing,
// so what waits is sent by a goroutine of its own.
func (l *lane[Q, A]) land(asks int) {
	l.mu.Lock()
	l.flying -= asks
	l.inFlight--
	l.dispatch()
	l.rest()
	l.mu.Unlock()
}

// rest tells Close that nothing is in flight any more.
func (l *lane[Q, A]) rest() {
	if l.closed && l.inFlight == 0 {
		close(l.idle)
	}
}

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
	rows := l.count(asks, hashes)
	var b *batch[Q, A]
	for _, p := range l.pending[first:] {
		if p.rows+rows <= l.maxBatch {
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

func (l *lane[Q, A]) count(asks []Q, hashes []uint64) int {
	switch {
	case l.hash != nil:
		return len(hashes)
	case l.size != nil:
		return l.size(asks)
	}
	return len(asks)
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
	b.rows = l.count(b.asks, l.hashes)
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
			l.mu.Unlock()
			return
		}
		l.inFlight++
		b := l.pending[0]
		l.pending = slices.Delete(l.pending, 0, 1)
		b.left = true
		b.staying = len(b.waiters)
		asks := len(b.asks)
		l.flying += asks
		ctx := b.context()
		l.sent = append(l.sent, b)
		l.mu.Unlock()
		l.exchange(ctx, b)
		yielded = false

		l.mu.Lock()
		// Whoever gives up after this finds the answer there, and does not touch the
		// batch.
		l.flying -= asks
		l.sent = slices.DeleteFunc(l.sent, func(s *batch[Q, A]) bool { return s == b })
		l.recycle(b)
	}
}

// exchange sends a batch and hands out the answers.
func (l *lane[Q, A]) exchange(ctx context.Context, b *batch[Q, A]) {
	answers, err := l.ask(ctx, b.asks)
	if err != nil && len(b.waiters) > 1 && (errors.Is(err, ErrInvalid) || errors.Is(err, ErrTooLarge)) {
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
	if l.inFlight == 0 {
		close(l.idle)
	}
}

func (l *lane[Q, A]) wait() { <-l.idle }

// arena keeps what the asks of a batch refer to. A slice that was handed out stays
// valid when its arena grows into another place.
type arena struct {
	reads []RowRead
	picks []Pick
	muts  []Mutation
	conds []Condition
	edits []Edit
	bytes []byte
}

// reset makes room for another batch, and keeps no memory that an unusual batch
// needed, nor names.
func (a *arena) reset() {
	a.reads = emptied(a.reads)
	a.picks = emptied(a.picks)
	a.muts = emptied(a.muts)
	a.conds = emptied(a.conds)
	a.edits = emptied(a.edits)
	if cap(a.bytes) > 1<<20 {
		a.bytes = nil
	}
	a.bytes = a.bytes[:0]
}

func emptied[T any](s []T) []T {
	if cap(s) > 1<<13 {
		return nil
	}
	clear(s)
	return s[:0]
}

func keepReads(to []RowRead, a *arena, reads []RowRead) []RowRead {
	for i := range reads {
		r := reads[i]
		from := len(a.picks)
		a.picks = append(a.picks, r.Picks...)
		r.Picks = a.picks[from:len(a.picks):len(a.picks)]
		to = append(to, r)
	}
	return to
}

func keepDrawReads(to []DrawRead, a *arena, asks []DrawRead) []DrawRead {
	for i := range asks {
		from := len(a.reads)
		a.reads = keepReads(a.reads, a, asks[i].Reads)
		to = append(to, DrawRead{Reads: a.reads[from:len(a.reads):len(a.reads)]})
	}
	return to
}

func keepMutations(to []Mutation, a *arena, muts []Mutation) []Mutation {
	for i := range muts {
		m := muts[i]
		from := len(a.conds)
		a.conds = append(a.conds, m.Conditions...)
		m.Conditions = a.conds[from:len(a.conds):len(a.conds)]
		from = len(a.edits)
		a.edits = append(a.edits, m.Edits...)
		m.Edits = a.edits[from:len(a.edits):len(a.edits)]
		for j := range m.Edits {
			e := &m.Edits[j]
			if len(e.Value) > 0 {
				from = len(a.bytes)
				a.bytes = append(a.bytes, e.Value...)
				e.Value = a.bytes[from:len(a.bytes):len(a.bytes)]
			}
		}
		to = append(to, m)
	}
	return to
}

func keepGroups(to []Group, a *arena, groups []Group) []Group {
	for i := range groups {
		g := groups[i]
		from := len(a.muts)
		a.muts = keepMutations(a.muts, a, g.Mutations)
		g.Mutations = a.muts[from:len(a.muts):len(a.muts)]
		to = append(to, g)
	}
	return to
}

func hashRows(to []uint64, seed maphash.Seed, muts []Mutation) []uint64 {
	for i := range muts {
		h := maphash.String(seed, muts[i].Row) + bits.RotateLeft64(maphash.String(seed, muts[i].Table), 29)
		to = append(to, max(h, 1))
	}
	return to
}

// rowSet is a set of hashes, none of which is 0, by open addressing.
type rowSet struct {
	slots []uint64 // of a power of two in length, at most half of them taken
	n     int
}

func (s *rowSet) hasAny(hashes []uint64) bool {
	if s.n == 0 {
		return false
	}
	mask := uint64(len(s.slots) - 1)
	for _, h := range hashes {
		for i := h & mask; s.slots[i] != 0; i = (i + 1) & mask {
			if s.slots[i] == h {
				return true
			}
		}
	}
	return false
}

func (s *rowSet) add(hashes []uint64) {
	if need := 2 * (s.n + len(hashes)); need > len(s.slots) {
		old := s.slots
		s.slots = make([]uint64, max(64, 1<<bits.Len(uint(need))))
		s.n = 0
		for _, h := range old {
			if h != 0 {
				s.put(h)
			}
		}
	}
	for _, h := range hashes {
		s.put(h)
	}
}

func (s *rowSet) put(h uint64) {
	mask := uint64(len(s.slots) - 1)
	i := h & mask
	for s.slots[i] != 0 {
		if s.slots[i] == h {
			return
		}
		i = (i + 1) & mask
	}
	s.slots[i] = h
	s.n++
}

func (s *rowSet) reset() {
	if len(s.slots) > 1<<13 {
		s.slots = nil
	}
	clear(s.slots)
	s.n = 0
}
