package coalesce

import "time"

// Before a call leaves, goroutines that are ready to run go first: what they ask leaves
// together with it. That is no wait for time to pass. A caller that is alone goes on at
// once. It matters most where many processes with a few callers each share a machine: of
// the callers of a process that were answered together, each would else send a call of its
// own.

const (
	// fewAsks is the size of a batch from which on it leaves without a yield. By then there
	// is little to save, and the store has nothing to do meanwhile.
	fewAsks = 16
	// slowYield is how long a yield may take, at least. It takes longer if the program
	// keeps its processors busy with something else, and then it does not pay.
	slowYield = time.Millisecond
	// mostSkipped bounds how many calls leave without a yield after one that was slow.
	mostSkipped = 256
)

// yields is what yields have cost, or holds.
type yields struct {
	skip int // calls that are to leave without one
	slow int // what skip was set to last, halved by each that has paid since
}

// yield lets other goroutines run. l.mu is held, but not meanwhile.
func (l *lane[Q, A]) yield() {
	if l.yields.skip > 0 {
		l.yields.skip--
		return
	}
	before := l.waiting()
	l.mu.Unlock()
	began := time.Now()
	l.gosched()
	took := time.Since(began)
	l.mu.Lock()
	// A yield may take long and pay, where processes share processors: others then have
	// joined, and it was short beside a call.
	joined := l.waiting() > before
	l.yields.note(took <= slowYield || joined && took <= l.usual/2)
}

// note counts one that has paid, or has not.
func (y *yields) note(paid bool) {
	if paid {
		y.slow /= 2
		return
	}
	slow := min(max(1, 2*y.slow), mostSkipped)
	*y = yields{skip: slow, slow: slow}
}

// waiting counts the asks that wait to leave.
func (l *lane[Q, A]) waiting() (n int) {
	for _, b := range l.pending {
		n += len(b.asks)
	}
	return n
}

// gather yields for a call of so many asks that may go straight to the store. Meanwhile it
// counts as under way, so that others wait to be sent together.
func (l *lane[Q, A]) gather(asks int) {
	l.inFlight++
	l.flying += asks
	l.yield()
	if asks+l.waiting() < fewAsks {
		l.hold()
		l.held = len(l.pending) > 0
	}
	l.inFlight--
	l.flying -= asks
}
