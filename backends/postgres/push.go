package postgres

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// Notifications are announced by a statement of their own, after the batch that holds them
// has committed. A NOTIFY inside the batch would cost too much: its transaction takes a
// lock of the whole server from before its flush to its end, so such transactions, those
// of other programs too, go one after another; and it fails if the server's queue of
// notifications is full. An announcement is a hint. It is lost if the client dies between
// the two, and then workers find the notification at their next look.
//
// Each announcement wakes all sessions of the database that listen, so beside many of them it goes less often. Who listens in
// this process hears of it without the server, and as soon as ever, also if the server is silent.
const (
	// tellEvery is the least time between two calls of those who listen in this process, and between two announcements where few sessions
	// listen. The first one goes at once. What comes in that time goes together.
	tellEvery = 2 * time.Millisecond
	// pushCost is how much of the time between two announcements each session that listens makes: four times what it costs the server
	// to wake one, so that a store keeps a quarter of one of its cores busy with that, up to 50 of them.
	pushCost = 400 * time.Microsecond
	// mostEvery bounds that time.
	mostEvery = 20 * time.Millisecond
	// The number of sessions that listen is asked for once in countEvery, while announcements come often, and countWithin bounds the question.
	// countAgain is the pause after an answer that says that the role may not ask.
	countEvery  = 5 * time.Second
	countAgain  = 5 * time.Minute
	countWithin = time.Second
	// pushWithin bounds one announcement, and pushAgain is the wait after one that failed.
	pushWithin = 10 * time.Second
	pushAgain  = time.Second
	// pushAtEnd bounds what Close waits for the last one.
	pushAtEnd = time.Second
)

// pushSQL sends a NOTIFY for each payload, and waits for no flush.
const pushSQL = `SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify('{{channel}}', w)
	FROM pg_catalog.unnest($1::pg_catalog.text[]) w`

// probeSQL sends a NOTIFY to a channel, for a session that wants to know whether it hears what the pool's sessions send.
const probeSQL = `SELECT pg_catalog.set_config('synchronous_commit', 'off', true), pg_catalog.pg_notify($1::pg_catalog.text, '')`

// countSQL counts the sessions that listen in this database, to whatever schema of this library, by their names: every role may read these.
const countSQL = `SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity a
	WHERE a.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
	AND pg_catalog.right(a.application_name, pg_catalog.length('` + listensName + `')) OPERATOR(pg_catalog.=) '` + listensName + `'`

// pushEvery is the least time between two announcements, by the number of sessions that listen.
func pushEvery(sessions int) time.Duration {
	return min(max(time.Duration(sessions)*pushCost, tellEvery), mostEvery)
}

// pusher announces notifications: at once to those who listen on the same store, and by
// way of the server to all others. One goroutine does each, so that the first need not wait for the server, and a third one counts who listens, so that
// no announcement waits for that. stop ends them.
type pusher struct {
	s       *plainStore
	id      string        // of this store, in what it sends, so that it ignores its own
	ready   chan struct{} // something is pending
	leaves  chan struct{} // out has something
	often   chan struct{} // announcements come often
	quit    chan struct{}
	running sync.WaitGroup // the goroutines
	// ctx is that of announcements, but for the last one. stop ends it.
	ctx    context.Context //nolint:containedctx // it ends with the store
	cancel context.CancelFunc

	mu        sync.Mutex
	pending   kit.News // what nobody was told yet
	out       kit.News // what the server has to be told yet
	listeners map[*listener]bool
	failed    atomic.Uint64 // announcements that failed, and were repeated

	// The goroutine that announces alone has these.
	last time.Time // when the server was told last
	next time.Time // when it may be told again

	every       atomic.Int64                     // between two announcements, in nanoseconds
	everyOf     func(sessions int) time.Duration // pushEvery, but in tests
	countWithin time.Duration                    // countWithin, but in tests
}

// listener is one call of Listen.
type listener struct {
	mu   sync.Mutex // held over each call of wake, which is one at a time
	wake func(rowstore.Wake)
	gone bool
}

func (l *listener) tell(w rowstore.Wake) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.gone {
		l.wake(w)
	}
}

func newPusher(s *plainStore, id string) *pusher {
	p := &pusher{
		s: s, id: id, ready: make(chan struct{}, 1), leaves: make(chan struct{}, 1), often: make(chan struct{}, 1), quit: make(chan struct{}),
		listeners: map[*listener]bool{}, everyOf: pushEvery, countWithin: countWithin,
	}
	p.every.Store(int64(tellEvery))
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.running.Go(func() {
		for p.comes(p.ready) {
			p.tell()
			p.sleep(tellEvery)
		}
	})
	p.running.Go(func() {
		for p.comes(p.leaves) {
			p.sleep(time.Until(p.next))
			p.announce()
		}
	})
	p.running.Go(func() {
		for p.comes(p.often) {
			p.sleep(p.count())
		}
	})
	return p
}

// signal has the goroutine of a channel look.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// comes waits for a signal. It returns false if stop was called.
func (p *pusher) comes(c chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-p.quit:
		return false
	}
}

// sleep waits for so long, or until stop.
func (p *pusher) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-p.quit:
	}
}

// add has wakes announced. It returns at once.
func (p *pusher) add(wakes []rowstore.Wake) {
	if len(wakes) == 0 {
		return
	}
	p.mu.Lock()
	for _, w := range wakes {
		p.pending.Add(w)
	}
	p.mu.Unlock()
	signal(p.ready)
}

// listen registers wake. It is not called any more once stop has returned.
func (p *pusher) listen(wake func(rowstore.Wake)) (_ *listener, stop func()) {
	l := &listener{wake: wake}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listeners[l] = true
	return l, func() {
		p.mu.Lock()
		delete(p.listeners, l)
		p.mu.Unlock()
		l.mu.Lock()
		l.gone = true
		l.mu.Unlock()
	}
}

// tell has the server told of what is pending, and calls those who listen in this process with it.
func (p *pusher) tell() {
	p.mu.Lock()
	wakes := p.pending.Take()
	for _, w := range wakes {
		p.out.Add(w)
	}
	listeners := slices.Collect(maps.Keys(p.listeners))
	p.mu.Unlock()
	signal(p.leaves)
	for _, l := range listeners {
		for _, w := range wakes {
			l.tell(w)
		}
	}
}

// announce tells the server, and says when that may be done again.
func (p *pusher) announce() {
	now := time.Now()
	ctx, cancel := context.WithTimeout(p.ctx, pushWithin)
	some, err := p.push(ctx)
	cancel()
	if err != nil {
		p.failed.Add(1)
		p.next = time.Now().Add(pushAgain)
		signal(p.leaves)
		return
	}
	if !some { // a signal was left over, which must not put the next announcement off
		return
	}
	if now.Sub(p.last) < 5*mostEvery { // what comes seldom is never held up, and costs nothing more
		signal(p.often)
	}
	p.last = now
	p.next = now.Add(time.Duration(p.every.Load()))
}

// push tells the server what it has to be told, if there is something, which stays so when that fails.
func (p *pusher) push(ctx context.Context) (some bool, err error) {
	p.mu.Lock()
	wakes := p.out.Take()
	p.mu.Unlock()
	if len(wakes) == 0 {
		return false, nil
	}
	var payloads array
	payloads.reset(oidText)
	for _, w := range wakes {
		payloads.string(p.payload(w))
	}
	err = p.s.run(ctx, p.s.q.push, [][]byte{payloads.param()}, false, nil, func(*fields) {})
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, w := range wakes {
			p.out.Add(w)
		}
	}
	return true, err
}

// count learns how many sessions listen, and returns when to do so again at the earliest. If it fails they are as many as before, and few if the role may not ask.
func (p *pusher) count() (again time.Duration) {
	ctx, cancel := context.WithTimeout(p.ctx, p.countWithin)
	defer cancel()
	n, err := p.s.sessions(ctx)
	switch {
	case err == nil:
		p.every.Store(int64(p.everyOf(n)))
	case errors.Is(err, rowstore.ErrDenied):
		p.every.Store(int64(tellEvery))
		return countAgain
	}
	return countEvery
}

// sessions is how many sessions of the database listen.
func (s *plainStore) sessions(ctx context.Context) (int, error) {
	n := 0
	err := s.run(ctx, s.q.sessions, nil, false, nil, func(f *fields) { n = int(f.int8(0)) }) //nolint:gosec // there are not that many
	return n, err
}

// maxPayload is the longest payload that NOTIFY takes, in bytes.
const maxPayload = 7999

// payload says a wake in text: which store sends it, the table, and the slots if all of
// them fit.
func (p *pusher) payload(w rowstore.Wake) string {
	short := p.id + ":" + hex.EncodeToString([]byte(w.Table)) + ":"
	var slots []byte
	for _, slot := range w.Slots {
		slots = binary.BigEndian.AppendUint16(slots, slot)
	}
	if long := short + hex.EncodeToString(slots); len(long) <= maxPayload {
		return long
	}
	return short
}

// parse reads a payload: the wake, and whether this store sent it.
func (p *pusher) parse(payload string) (w rowstore.Wake, own bool) {
	parts := strings.Split(payload, ":")
	if len(parts) != 3 {
		return rowstore.Wake{}, false // another program's: it may mean anything
	}
	table, err := hex.DecodeString(parts[1])
	slots, err2 := hex.DecodeString(parts[2])
	if err != nil || err2 != nil || len(slots)%2 != 0 {
		return rowstore.Wake{}, false
	}
	w.Table = string(table)
	for ; len(slots) > 0; slots = slots[2:] {
		w.Slots = append(w.Slots, binary.BigEndian.Uint16(slots))
	}
	return w, parts[0] == p.id
}

// stop ends the goroutines, and announces what is pending, for a bounded time.
func (p *pusher) stop() {
	p.cancel()
	close(p.quit)
	p.running.Wait()
	p.tell()
	ctx, cancel := context.WithTimeout(context.Background(), pushAtEnd)
	defer cancel()
	_, _ = p.push(ctx) // it cannot be repeated any more
}
