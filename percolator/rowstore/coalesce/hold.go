package coalesce

import "time"

// The callers of a process fall into groups of those that were answered together: some commit while others begin, and
// each call has a part of them. A call costs a server much beyond what is in it, so it is cheaper if they stay together. So
// before few commits leave, they wait for the begins that are under way: these take a fraction of a
// commit's time, and whose they are is likely to commit next. From then on all of them begin together and commit together.
// Where nobody joins, because those who began only read, fewer and fewer commits wait.

const (
	// A commit waits for twice the usual time of a begin at most, within these bounds.
	leastHold = time.Millisecond / 2
	mostHold  = 5 * time.Millisecond
)

// lands is a lane of another kind, whose calls others wait for.
type lands interface {
	landing() (landed <-chan struct{}, usual time.Duration)
}

// landing returns a channel that is closed when the next call returns, and how long calls usually take. The
// channel is nil if none is under way.
func (l *lane[Q, A]) landing() (landed <-chan struct{}, usual time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inFlight == 0 {
		return nil, 0
	}
	if l.landed == nil {
		l.landed = make(chan struct{})
	}
	return l.landed, l.usual
}

// hold waits for the call of another kind that is under way, for callers that may join. l.mu is held, but not meanwhile.
func (l *lane[Q, A]) hold() {
	if l.ahead == nil {
		return
	}
	if l.held {
		l.held = false // it has waited already
		return
	}
	if l.holds.skip > 0 {
		l.holds.skip--
		return
	}
	landed, usual := l.ahead.landing()
	if landed == nil {
		return
	}
	before := l.waiting()
	l.mu.Unlock()
	timer := time.NewTimer(min(max(2*usual, leastHold), mostHold))
	select {
	case <-landed:
		l.gosched() // those who have their answers go first
	case <-timer.C:
	}
	timer.Stop()
	l.mu.Lock()
	l.holds.note(l.waiting() > before)
}
