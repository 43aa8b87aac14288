package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// A message costs the server some ten microseconds for each connection that listens, and each worker process has one. So
// beside many of them not every write publishes. A write does so within its script if the store has published nothing for
// a while, the gap, which grows with the number of listeners. Otherwise the store keeps what is to be published until the write
// was applied, and publishes it at the end of the gap, together with that of other writes. It is lost if the
// process dies before, and then workers find the notifications at their next look.
//
// Where a call that publishes for others fails, or takes long, no more is given to it: then each write publishes by itself.
const (
	// pushCost is how much of the gap each listener makes, some ten times what a message to it costs the server: so up to 100
	// listeners a store has the server work for its messages for a tenth of the time. With more it is a tenth for each 100.
	pushCost = 100 * time.Microsecond
	// mostGap bounds the gap, and with it how late a push may be.
	mostGap = 10 * time.Millisecond
	// fewListeners have no gap: a message to them costs little more than the call of its own that takes what is held back, and
	// a change that follows from another one starts at once.
	fewListeners = 20
	// lateAfter is how long something may be held back before writes publish by themselves. A call takes less, also to a server far away.
	lateAfter = 10 * mostGap
	// The number of listeners is asked for once in countEvery, while pushes come often. countAgain is the pause after an
	// answer that says that the user may not ask.
	countEvery = 2 * time.Second
	countAgain = 5 * time.Minute
	// pushWithin bounds each call that publishes or counts, and so what Close waits for the last one. One that failed is
	// repeated so long after it began.
	pushWithin = time.Second
)

// pushGap is the least time between two messages of a store, by the number of those who listen.
func pushGap(listeners int) time.Duration {
	if listeners <= fewListeners {
		return 0
	}
	return min(time.Duration(listeners)*pushCost, mostGap)
}

// heldWake is a row that somebody has to hear of, if the group of its batch was applied.
type heldWake struct {
	group int
	table string
	slot  uint16
}

// pusher decides which writes publish by themselves, and publishes for the others. One goroutine does that, once there is something to
// do; stop ends it.
type pusher struct {
	s     *direct
	ready chan struct{} // there is something to do
	quit  chan struct{}
	done  chan struct{}
	// ctx is that of what the goroutine does, but for the last call that publishes. stop ends it.
	ctx    context.Context //nolint:containedctx // it ends with the store
	cancel context.CancelFunc
	// These are pushWithin and lateAfter, but in tests.
	bound, late time.Duration

	mu      sync.Mutex
	gapOf   func(listeners int) time.Duration // pushGap, but in tests
	gap     time.Duration                     // 0 while the number of listeners is not known
	last    time.Time                         // when something was published last; not by writes beside a late call, which would put it off for ever
	pending kit.News                          // of writes that were applied, or may have been
	some    bool                              // pending has something
	oldest  time.Time                         // since when something waits that was not published yet, or perhaps not; zero if nothing does
	failing bool                              // the last call that published has failed
	asking  bool                              // the number of listeners has to be asked for
	countAt time.Time                         // when to ask for it again, at the earliest
	started bool                              // the goroutine runs
	ended   bool                              // the store is being closed
}

func newPusher(s *direct) *pusher {
	p := &pusher{
		s: s, ready: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		bound: pushWithin, late: lateAfter, gapOf: pushGap,
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// within tells whether a write that is about to be sent publishes within its script. If not, its wakes go to
// hold once its outcome is known. If the write is not sent after all, the next one is held back for a gap, no more.
func (p *pusher) within() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	since := now.Sub(p.last)
	if since < mostGap && !p.asking && !now.Before(p.countAt) {
		p.asking = true // pushes that come seldom need no gap, and cost nothing more
		p.signal()
	}
	switch {
	case p.ended, p.failing, !p.oldest.IsZero() && now.Sub(p.oldest) > p.late:
		return true // nobody knows when something that is held back is published
	case p.some, since < p.gap:
		return false // what is pending has waited for longer than this write, and takes it along in a moment
	}
	p.last = now
	return true
}

// hold has wakes published. It returns at once.
func (p *pusher) hold(wakes []heldWake) {
	if len(wakes) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range wakes {
		slot := [1]uint16{wakes[i].slot}
		p.pending.Add(rowstore.Wake{Table: wakes[i].table, Slots: slot[:]})
	}
	if p.oldest.IsZero() {
		p.oldest = time.Now()
	}
	if !p.some {
		p.some = true
		p.signal()
	}
}

// signal has the goroutine look, which the first one starts. It is called with p.mu.
func (p *pusher) signal() {
	if p.ended {
		return // finish looks
	}
	if !p.started {
		p.started = true
		go p.run()
	}
	select {
	case p.ready <- struct{}{}:
	default:
	}
}

func (p *pusher) run() {
	defer close(p.done)
	for {
		do, wait := p.next()
		var due <-chan time.Time
		if do != nil {
			due = time.After(wait)
		}
		select {
		case <-p.ready: // something came, and may be due earlier
		case <-due:
			ctx, cancel := context.WithTimeout(p.ctx, p.bound)
			do(ctx)
			cancel()
		case <-p.quit:
			return
		}
	}
}

// next is what the goroutine has to do next, nil for nothing, and how long it has to wait before.
func (p *pusher) next() (do func(ctx context.Context), wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.asking:
		return p.count, 0
	case p.some && p.failing:
		return p.push, time.Until(p.last.Add(pushWithin))
	case p.some:
		return p.push, time.Until(p.last.Add(p.gap))
	}
	return nil, 0
}

// push publishes what is pending, and leaves it pending when it fails.
func (p *pusher) push(ctx context.Context) {
	p.mu.Lock()
	wakes := p.pending.Take()
	p.some = false
	if len(wakes) == 0 {
		p.mu.Unlock()
		return
	}
	began := time.Now()
	p.last = began
	p.mu.Unlock()
	c := &call{script: pushScript}
	c.arg.b = messages(p.s.channel, wakes)
	p.s.calls.Add(1) // Close waits for it, and lets it begin
	ok := p.s.await(ctx, func(ctx context.Context) { p.s.run(ctx, []*call{c}) }) && c.err == nil
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing = !ok
	switch {
	case !ok:
		for _, w := range wakes {
			p.pending.Add(w)
		}
		p.some = true
	case p.some:
		p.oldest = began // what is pending came later
	default:
		p.oldest = time.Time{}
	}
}

// messages are the arguments of the script that publishes.
func messages(channel string, wakes []rowstore.Wake) []byte {
	var m packer
	m.reset()
	m.str(channel)
	for i := range wakes {
		w := &wakes[i]
		if w.Table == "" {
			m.str("") // any row
			continue
		}
		table := escapeTable(w.Table)
		m.strHead(len(table) + 1 + 4*len(w.Slots))
		m.b = append(m.b, table...)
		m.b = append(m.b, '/')
		for _, slot := range w.Slots {
			m.b = appendSlot(m.b, slot)
		}
	}
	return m.bytes()
}

// count asks how many listen.
func (p *pusher) count(ctx context.Context) {
	n, err := p.s.listeners(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asking, p.countAt = false, time.Now().Add(countEvery)
	switch {
	case err == nil:
		p.gap = p.gapOf(n)
	case errors.Is(err, rowstore.ErrDenied):
		p.gap, p.countAt = 0, time.Now().Add(countAgain)
	}
	// After any other failure they are as many as before.
}

// listeners is how many connections a message goes to, and in a Cluster, if they are many, how many servers beside them, as each message is passed
// on to all. All subscriptions are at the server that has the slot of the channel.
func (s *direct) listeners(ctx context.Context) (int, error) {
	return query(ctx, s, func(ctx context.Context) (int, error) {
		holder, err := s.nodes.holder(ctx, s.channel)
		if err != nil {
			return 0, err
		}
		all, err := holder.PubSubNumSub(ctx, s.channel).Result()
		if err != nil {
			return 0, fmt.Errorf("asking how many listen: %w", err)
		}
		n := int(all[s.channel])
		if n > fewListeners {
			n += s.nodes.others(ctx)
		}
		return n, nil
	})
}

// stop ends the goroutine, and publishes what is pending, for a bounded time. From then on writes publish by themselves. It returns
// false if the server did not take it.
func (p *pusher) stop() bool {
	p.mu.Lock()
	p.ended = true
	started := p.started
	p.mu.Unlock()
	p.cancel()
	close(p.quit)
	if started {
		<-p.done
	}
	return p.finish()
}

// finish publishes what is still pending, for a bounded time.
func (p *pusher) finish() bool {
	ctx, cancel := context.WithTimeout(context.Background(), p.bound)
	defer cancel()
	p.push(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.some
}

// holdBack gives the pusher the wakes of a batch that was answered, those of the groups that were applied. It comes
// after the outcome, since who heard of a row before the write was applied would look and find nothing. Those of a batch that is
// ambiguous are given to the pusher, too; it may be applied later yet, and then a periodic look finds it.
func (s *direct) holdBack(b *batch) {
	held := b.enc.held
	u := unpacker{s: b.call.answer}
	u.list()
	late := u.number() == 1
	u.number()
	if late && u.err == nil {
		return // it is sent once more, perhaps
	}
	applied := held[:0]
	for g := 0; len(held) > 0; g++ {
		// What cannot be read says nothing about what was done.
		yes := u.applied() || u.err != nil
		for len(held) > 0 && held[0].group == g {
			if yes {
				applied = append(applied, held[0])
			}
			held = held[1:]
		}
	}
	s.pusher.hold(applied)
}

// applied reads the outcome of a group, and tells whether the group was applied.
func (u *unpacker) applied() bool {
	switch it := u.next(); it.kind {
	case isNumber:
		return it.n == 1
	case isString:
		return true
	case isList:
		for range min(it.n, int64(len(u.s))) {
			u.next()
		}
	default:
		u.fail()
	}
	return false
}
