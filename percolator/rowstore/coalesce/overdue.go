package coalesce

import (
	"time"
)

// flight is a call under way. Its place in lane.flights is used again after it.
type flight struct {
	used    bool
	overdue bool
	asks    int
	since   uint64 // lane.ticks when it left
}

// departed notes that a call leaves, and returns its place in flights.
func (l *lane[Q, A]) departed(asks int) int {
	l.inFlight++
	l.flying += asks
	f := flight{used: true, asks: asks, since: l.ticks}
	for i := range l.flights {
		if !l.flights[i].used {
			l.flights[i] = f
			return i
		}
	}
	l.flights = append(l.flights, f)
	return len(l.flights) - 1
}

// arrived notes that a call returned.
func (l *lane[Q, A]) arrived(at int) {
	if l.landed != nil {
		close(l.landed)
		l.landed = nil
	}
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
	minOverdue = 20 * time.Millisecond
	maxOverdue = time.Second
)

// overdueAfter is how long a call may take before it is overdue: far longer than usual.
func (l *lane[Q, A]) overdueAfter() time.Duration {
	return min(max(8*l.usual, minOverdue), maxOverdue)
}

// noteDuration adds the duration of a merged call to what is usual. The usual duration rises
// slowly and falls quickly, so a few calls that hang change little.
func (l *lane[Q, A]) noteDuration(took time.Duration) {
	switch {
	case l.usual == 0:
		l.usual = took
	case took < l.usual:
		l.usual = (l.usual + took) / 2
	default:
		l.usual += min(took-l.usual, l.usual) / 8
	}
}

// startWatch starts the timer that looks for calls that hang, so that others do not wait
// behind them. The timer runs only while something waits.
func (l *lane[Q, A]) startWatch() {
	if l.watching || len(l.pending) == 0 {
		return
	}
	l.watching = true
	if l.timer == nil {
		l.timer = time.AfterFunc(l.overdueAfter(), l.findOverdue)
	} else {
		l.timer.Reset(l.overdueAfter())
	}
}

// findOverdue marks calls as overdue that were under way during the whole time between two
// ticks of the timer. They no longer count in MaxInFlight, so others may leave.
func (l *lane[Q, A]) findOverdue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ticks++
	l.watching = false
	if l.closed {
		return
	}
	for i := range l.flights {
		f := &l.flights[i]
		if f.used && !f.overdue && l.ticks-f.since >= 2 {
			f.overdue = true
			l.inFlight--
			l.flying -= f.asks
			l.apart++
		}
	}
	l.dispatch()
	l.startWatch()
}
