package postgres

import (
	"context"
	"encoding/binary"
	"encoding/hex"
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
// this process hears of it without the server, and as soon as ever.
const (
	// tellEvery is the least time between two calls of those who listen in this process, and between two announcements where few sessions
	// listen. The first one goes at once. What comes in that time goes together.
	tellEvery = 2 * time.Millisecond
	// pushCost is how much of the time between two announcements each session that listens makes: twice what it costs the server
	// to wake one, so that a store keeps less than one of its cores busy with that.
	pushCost = 200 * time.Microsecond
	// mostEvery bounds that time.
	mostEvery = 20 * time.Millisecond
	// The number of sessions that listen is asked for once in countEvery, while announcements come often, and countWithin bounds the question.
	countEvery  = 5 * time.Second
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

// countSQL counts the sessions that listen in this database, to whatever schema of this library, by their names: every role may read these.
const countSQL = `SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity a
	WHERE a.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
	AND pg_catalog.right(a.application_name, pg_catalog.length('` + listensName + `')) OPERATOR(pg_catalog.=) '` + listensName + `'`

// pushEvery is the least time between two announcements, by the number of sessions that listen.
func pushEvery(sessions int) time.Duration {
	return min(max(time.Duration(sessions)*pushCost, tellEvery), mostEvery)
}

// pusher announces notifications: at once to those who listen on the same store, and by
// way of the server to all others. One goroutine does both; stop ends it.
type pusher struct {
	s     *plainStore
	id    string        // of this store, in what it sends, so that it ignores its own
	ready chan struct{} // something is pending
	quit  chan struct{}
	done  chan struct{}
	// ctx is that of announcements, but for the last one. stop ends it.
	ctx    context.Context //nolint:containedctx // it ends with the store
	cancel context.CancelFunc

	mu        sync.Mutex
	pending   kit.News
	listeners map[*listener]bool
	failed    atomic.Uint64 // announcements that failed, and were repeated

	// The goroutine alone has these.
	out     kit.News  // what the server has to be told yet
	some    bool      // out has something
	last    time.Time // when the server was told last
	next    time.Time // when it may be told again
	countAt time.Time // when to count the sessions again, at the earliest

	every   atomic.Int64                     // between two announcements, in nanoseconds
	everyOf func(sessions int) time.Duration // pushEvery, but in tests
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
		s: s, id: id, ready: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		listeners: map[*listener]bool{}, everyOf: pushEvery,
	}
	p.every.Store(int64(tellEvery))
	p.ctx, p.cancel = context.WithCancel(context.Background())
	go p.run()
	return p
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
	select {
	case p.ready <- struct{}{}:
	default:
	}
}

func (p *pusher) take() (wakes []rowstore.Wake, listeners []*listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.listeners {
		listeners = append(listeners, l)
	}
	return p.pending.Take(), listeners
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

func (p *pusher) run() {
	defer close(p.done)
	for {
		var due <-chan time.Time
		if p.some {
			due = time.After(time.Until(p.next))
		}
		select {
		case <-p.ready:
		case <-due:
		case <-p.quit:
			p.tell()
			ctx, cancel := context.WithTimeout(context.Background(), pushAtEnd)
			_ = p.push(ctx) // it cannot be repeated any more
			cancel()
			return
		}
		p.tell()
		if p.some && !time.Now().Before(p.next) {
			p.announce()
		}
		timer := time.NewTimer(tellEvery)
		select {
		case <-timer.C:
		case <-p.quit:
			timer.Stop()
		}
	}
}

// tell calls those who listen in this process with what is pending, and has the server told of it.
func (p *pusher) tell() {
	wakes, listeners := p.take()
	for _, l := range listeners {
		for _, w := range wakes {
			l.tell(w)
		}
	}
	for _, w := range wakes {
		p.out.Add(w)
		p.some = true
	}
}

// announce tells the server, and says when that may be done again.
func (p *pusher) announce() {
	now := time.Now()
	often := now.Sub(p.last) < 5*mostEvery // what comes seldom is never held up, and costs nothing more
	p.last = now
	ctx, cancel := context.WithTimeout(p.ctx, pushWithin)
	err := p.push(ctx)
	cancel()
	if err != nil {
		p.failed.Add(1)
		p.next = time.Now().Add(pushAgain)
		return
	}
	if often && !now.Before(p.countAt) {
		p.count()
	}
	p.next = now.Add(time.Duration(p.every.Load()))
}

// push tells the server what it has to be told, which stays so when that fails.
func (p *pusher) push(ctx context.Context) error {
	wakes := p.out.Take()
	p.some = false
	if len(wakes) == 0 {
		return nil
	}
	var payloads array
	payloads.reset(oidText)
	for _, w := range wakes {
		payloads.string(p.payload(w))
	}
	err := p.s.run(ctx, p.s.q.push, [][]byte{payloads.param()}, false, nil, func(*fields) {})
	if err != nil {
		for _, w := range wakes {
			p.out.Add(w)
		}
		p.some = true
	}
	return err
}

// count learns how many sessions listen. If nobody may tell, it is as if they were few.
func (p *pusher) count() {
	ctx, cancel := context.WithTimeout(p.ctx, countWithin)
	defer cancel()
	n, err := p.s.sessions(ctx)
	if err != nil {
		n = 0
	}
	p.countAt = time.Now().Add(countEvery)
	p.every.Store(int64(p.everyOf(n)))
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

// stop announces what is pending, for a bounded time, and ends the goroutine.
func (p *pusher) stop() {
	p.cancel()
	close(p.quit)
	<-p.done
}
