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
const (
	// pushCost is how much of the gap each listener makes, some ten times what a message to it costs the server: so a
	// store has the server work for its messages for a tenth of the time.
	pushCost = 100 * time.Microsecond
	// mostGap bounds the gap, and with it how late a push may be.
	mostGap = 10 * time.Millisecond
	// fewListeners have no gap: a message to them costs little more than the call of its own that takes what is held back, and
	// a change that follows from another one starts at once.
	fewListeners = 20
	// The number of listeners is asked for once in countEvery, while pushes come often. countAgain is the pause after an
	// answer that says that the user may not ask.
	countEvery = 2 * time.Second
	countAgain = 5 * time.Minute
	// countWithin and pushWithin bound one such question, and one call that publishes. pushAgain is the wait after one that failed.
	countWithin = time.Second
	pushWithin  = 10 * time.Second
	pushAgain   = time.Second
	// pushAtEnd bounds what Close waits for the last one.
	pushAtEnd = time.Second
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
	ready chan struct{} // something is pending, or to be asked
	quit  chan struct{}
	done  chan struct{}
	// ctx is that of what the goroutine does, but for the last call that publishes. stop ends it.
	ctx    context.Context //nolint:containedctx // it ends with the store
	cancel context.CancelFunc

	mu      sync.Mutex
	gapOf   func(listeners int) time.Duration // pushGap, but in tests
	gap     time.Duration                     // 0 while the number of listeners is not known
	last    time.Time                         // when something was published last
	before  time.Time                         // what last was before the last write that publishes
	pending kit.News                          // of writes that were applied, or may have been
	some    bool                              // pending has something
	failing bool                              // the last call that published has failed
	started bool                              // the goroutine runs
	ended   bool                              // the store is being closed
	countAt time.Time                         // when to ask for the listeners again, at the earliest
}

func newPusher(s *direct) *pusher {
	p := &pusher{s: s, ready: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}), gapOf: pushGap}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// within tells whether a write that is about to be sent publishes within its script. If not, its wakes go to
// hold once its outcome is known.
func (p *pusher) within() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	since := now.Sub(p.last)
	if since < mostGap && !now.Before(p.countAt) {
		p.signal() // pushes that come seldom need no gap, and cost nothing more
	}
	// What is pending has waited for longer than this write, and takes it along in a moment.
	if !p.ended && (since < p.gap || p.some && !p.failing) {
		return false
	}
	p.before, p.last = p.last, now
	return true
}

// unsent takes back that within said yes: the write is not sent in this form.
func (p *pusher) unsent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = p.before
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
	p.some = true
	p.signal()
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

// due tells how long what is pending has to wait yet.
func (p *pusher) due() (wait time.Duration, some bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing {
		return 0, p.some // it has waited, and writes publish by themselves meanwhile
	}
	return time.Until(p.last.Add(p.gap)), p.some
}

func (p *pusher) run() {
	defer close(p.done)
	for {
		select {
		case <-p.ready:
		case <-p.quit:
			return
		}
		for wait, some := p.due(); some; wait, some = p.due() {
			if wait > 0 {
				p.sleep(wait)
			}
			if p.ctx.Err() != nil {
				return
			}
			if wait > 0 {
				continue // a write may have published meanwhile
			}
			ctx, cancel := context.WithTimeout(p.ctx, pushWithin)
			err := p.push(ctx)
			cancel()
			if err != nil {
				p.sleep(pushAgain)
			}
		}
		p.count()
	}
}

// sleep waits for so long, or until stop.
func (p *pusher) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.quit:
	}
}

// push publishes what is pending, and leaves it pending when it fails.
func (p *pusher) push(ctx context.Context) error {
	p.mu.Lock()
	wakes := p.pending.Take()
	p.some = false
	if len(wakes) > 0 {
		p.last = time.Now()
	}
	p.mu.Unlock()
	if len(wakes) == 0 {
		return nil
	}
	c := &call{script: pushScript}
	c.arg.b = messages(p.s.channel, wakes)
	p.s.calls.Add(1) // Close waits for it, and lets it begin
	err := errUnanswered
	if p.s.await(ctx, func(ctx context.Context) { p.s.run(ctx, []*call{c}) }) {
		err = c.err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing = err != nil
	if p.failing {
		for _, w := range wakes {
			p.pending.Add(w)
		}
		p.some = true
	}
	return err
}

var errUnanswered = errors.New("a call that publishes got no answer in time")

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

// count asks how many listen, if it is time to.
func (p *pusher) count() {
	p.mu.Lock()
	early := time.Now().Before(p.countAt)
	p.mu.Unlock()
	if early {
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, countWithin)
	defer cancel()
	n, err := p.s.listeners(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	again := countEvery
	if err != nil {
		n = 0 // as many as nobody knows of
	}
	if errors.Is(err, rowstore.ErrDenied) {
		again = countAgain
	}
	p.gap, p.countAt = p.gapOf(n), time.Now().Add(again)
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

// stop ends the goroutine, and publishes what is pending, for a bounded time. From then on writes publish by themselves.
func (p *pusher) stop() {
	p.mu.Lock()
	p.ended = true
	started := p.started
	p.mu.Unlock()
	p.cancel()
	close(p.quit)
	if started {
		<-p.done
	}
	p.finish()
}

// finish publishes what is still pending, for a bounded time.
func (p *pusher) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), pushAtEnd)
	defer cancel()
	_ = p.push(ctx) // it cannot be repeated any more
}

// holdBack gives the pusher the wakes of a batch whose outcome is known, those of the groups that were applied, or may have been. It comes
// after the outcome, since who heard of a row before the write was applied would look and find nothing. What is
// ambiguous may be applied later yet; then a periodic look finds it.
func (s *direct) holdBack(b *batch) {
	held := b.enc.held
	switch {
	case len(held) == 0:
		return
	case b.call.err != nil:
		if errors.Is(b.call.err, rowstore.ErrAmbiguous) {
			s.pusher.hold(held)
		}
		return
	}
	u := unpacker{s: b.call.answer}
	u.list()
	u.number()
	u.number()
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
