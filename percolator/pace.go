package percolator

import (
	"context"
	"time"
)

// How often a worker looks at a table, and how much of the time of a store such looks take.

const (
	// longLook is how long a scan takes that is not repeated at once for each push.
	longLook = 10 * time.Millisecond
	// vainLooks is how many times as long as a look in vain the worker rests after it, or between
	// its pages, but longestRest at most in all.
	vainLooks   = 9
	longestRest = time.Minute
	// longestUnheard is the longest such rest of a worker that hears of nothing meanwhile. It rests no
	// longer than the look took, because what is new waits for it.
	longestUnheard = 10 * time.Second
	// pollEach is the time for each member of an observer, in which they poll once: all together
	// 200 times a second.
	pollEach = 5 * time.Millisecond
	// longestPageRest bounds the rest after one page: one of cells that wait, or with more than a queue had room for.
	longestPageRest = time.Second
	// manyRows is how many rows a look visits that takes long because of them.
	manyRows = 4096
)

// pace is what a table's looks have come to, which says how soon the next one follows, and how
// calm it is.
type pace struct {
	misses   int     // looks in a row that led to nothing
	found    int     // by the last look
	progress uint64  // the worker's, at the last look
	calm     float64 // how many times as long as a page the next look rests after one that leads to nothing
}

// untilNextLook returns how long the next look at a table waits, unless it is kicked.
// Cells that are found again and again, but lead to nothing, do not make looks more
// frequent.
func (w *Worker) untilNextLook(p *pace, table string, found int) time.Duration {
	w.mu.Lock()
	moved := w.progress != p.progress
	p.progress = w.progress
	w.mu.Unlock()
	if moved || found > 0 && p.found == 0 {
		p.misses = 0
	} else {
		p.misses++
	}
	p.found = found
	if w.pushed() {
		return w.config.Rescan
	}
	wait, most := w.config.Poll.Min, w.longestPoll(table)
	for i := 0; i < p.misses && wait < most; i++ {
		wait *= 2
	}
	return min(wait, most)
}

// longestPoll is the longest wait between two looks at a table without a push. The more members share its slots, the longer it
// is: idle members must not ask the store more often the more of them there are.
func (w *Worker) longestPoll(table string) time.Duration {
	return max(w.config.Poll.Max, time.Duration(w.sharers(table))*pollEach)
}

// sharers is how many members share the slots of a table now, for that observer of this worker which has most.
func (w *Worker) sharers(table string) (most int) {
	all := w.member.shares.Load()
	if all == nil {
		return 1
	}
	now := w.now()
	for _, q := range w.list {
		if q.table == table {
			most = max(most, all.at(q, now).of)
		}
	}
	return most
}

// afterLook returns how long the worker pauses after a look, whatever is asked for, and how much longer it then rests
// unless a look is asked for.
func (w *Worker) afterLook(p *pace, l *looker, took time.Duration) (pause, rest time.Duration) {
	rest = w.untilNextLook(p, l.table, l.found)
	p.calm = w.calmAfter(l, took)
	if !l.mostWaits() || took < longLook {
		return 0, rest
	}
	// There are many notifications that wait. Pushes must not make this worker scan them
	// all the time. Or the store stood still: then the workers need a moment until they
	// agree again who has what.
	pause = min(took, rest)
	if w.db.slots {
		pause = min(pause, agreeAfter)
	}
	// With fewer rows it was the store that took long. Where the next look is the first calm one, it is that which rests.
	if l.visited >= manyRows && (p.calm == 0 || l.calm > 0) {
		rest = max(rest, w.restAfter(took, rest)-l.rested)
	}
	return pause, rest - pause
}

// mostWaits tells whether the look has found nothing, or next to nothing beside what waits.
func (l *looker) mostWaits() bool {
	return l.found == 0 || l.visited >= manyRows && l.found < l.visited/16
}

// restAfter returns how long such a look rests, instead of the usual time, if it
// took long: a million cells that wait for somebody else must not keep the store busy. Where
// follow looks after pushes, only that comes later by it which no push tells of: because it got
// lost, or because the client died before it could finish. Elsewhere everything that is new
// does, so the rest is only as long as the look: the worker scans for half of the time.
func (w *Worker) restAfter(took, usual time.Duration) time.Duration {
	if !w.listens() || !w.db.slots {
		return max(usual, min(took, longestUnheard))
	}
	return max(usual, min(vainLooks*took, longestRest))
}

// calmAfter returns how many times as long as a page the next look rests after each that leads to
// nothing. The rest after a look in vain (restAfter) lies between the pages of the next one then: a call to the
// store waits behind one page at most, and not behind many in a row.
func (w *Worker) calmAfter(l *looker, took time.Duration) float64 {
	if !l.mostWaits() || l.visited < manyRows || took < longLook || !w.listens() || !w.db.slots {
		return 0
	}
	return min(vainLooks, longestRest.Seconds()/took.Seconds())
}

// rest rests after a page that led to nothing and took some time. Once somebody asks for a look, or pushes are no
// longer followed, a look rests no more. What the worker gains meanwhile comes to its turn after the rest.
func (l *looker) rest(ctx context.Context, took time.Duration) error {
	if len(l.w.kicks[l.table]) > 0 || !l.w.listens() {
		l.calm = 0
	}
	rest := min(time.Duration(l.calm*float64(took)), longestPageRest, longestRest-l.rested)
	if rest <= 0 || l.gained != nil {
		return nil
	}
	began := l.w.db.clock.Now()
	err := l.w.db.clock.Sleep(ctx, rest)
	rest = l.w.db.clock.Now().Sub(began)
	l.rested += rest
	l.waited += rest
	return err
}
