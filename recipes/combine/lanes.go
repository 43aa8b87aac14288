package combine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

const (
	// Calls of AddNow that share a transaction at most.
	batchMost = 1024
	// The next batch waits a gatherPart of the time that the last one took, and gatherMost at most, for those who were in the last one.
	gatherPart = 8
	gatherMost = time.Millisecond
	// overdueMost is how many transactions of one key are under way at most: the second and the third find out whether the first has a fault of its own.
	overdueMost = 3
)

// batches are the calls of AddNow of one process.
type batches[T any] struct {
	mu     sync.Mutex
	common lane[T]             // calls of any keys
	apart  map[string]*lane[T] // of one key each, with which something is the matter: calls under way or waiting
}

// lane is where calls wait for each other: one batch is under way at a time, but for those that are overdue. While one commits, the next one grows: so
// the busier the store, the more calls share a transaction. Its fields are guarded by batches.mu.
type lane[T any] struct {
	key     string // of a lane apart
	waiting []*addition[T]
	running bool // a goroutine takes from waiting; it ends when nothing waits, or its batch is overdue
	overdue int  // batches that are
	// The last batch: how many calls there were then, how long it took, and when it ended.
	calls int
	took  time.Duration
	ended time.Time
	// A goroutine that gathers the next one waits for so many calls, 0 for none, or for full to be closed.
	wanted int
	full   chan struct{}
}

// batch is a transaction for several calls. Its context ends when none of their callers waits any more. Its fields are guarded by batches.mu.
type batch struct {
	callers int // that wait
	cancel  context.CancelFunc
	overdue bool // another goroutine may have its place
	ended   bool
}

// gone takes a caller off who waits no longer. batches.mu must be held.
func (b *batch) gone() {
	if b.callers--; b.callers == 0 {
		b.cancel()
	}
}

// laneOf returns the lane of a key. mu must be held.
func (b *batches[T]) laneOf(key string) *lane[T] {
	if l := b.apart[key]; l != nil {
		return l
	}
	return &b.common
}

// put has a call wait. batches.mu must be held.
func (l *lane[T]) put(a *addition[T]) {
	a.lane, a.batch = l, nil
	l.waiting = append(l.waiting, a)
	if l.wanted > 0 && len(l.waiting) >= l.wanted {
		l.wanted = 0
		close(l.full)
	}
}

// start has a goroutine add what waits. batches.mu must be held.
func (c *Combiner[T]) start(l *lane[T]) {
	if !l.running && len(l.waiting) > 0 && (l == &c.batches.common || l.overdue < overdueMost) {
		l.running = true
		// It serves other callers too, perhaps for hours: so it keeps nothing of any caller's context, such as a trace.
		go c.addWaiting(l)
	}
}

// forget removes a lane apart with which nothing is the matter any more: its key's next calls are common ones. mu must be held.
func (b *batches[T]) forget(l *lane[T]) {
	if l != &b.common && !l.running && l.overdue == 0 && len(l.waiting) == 0 {
		delete(b.apart, l.key)
	}
}

// putApart has each of several keys added by itself, so that only those fail or wait with which something is the matter. Nothing of them was
// added, and calls of the keys that wait go with them.
func (c *Combiner[T]) putApart(keys []string, byKey map[string][]*addition[T]) {
	b := &c.batches
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.apart == nil {
		b.apart = map[string]*lane[T]{}
	}
	for _, key := range keys {
		l := b.apart[key]
		if l == nil {
			l = &lane[T]{key: key}
			b.apart[key] = l
		}
		for _, a := range byKey[key] {
			if !a.left {
				a.batch.gone()
				l.put(a)
			}
		}
	}
	b.common.waiting = slices.DeleteFunc(b.common.waiting, func(a *addition[T]) bool {
		l := b.apart[a.key]
		if l != nil {
			l.put(a)
		}
		return l != nil
	})
	for _, key := range keys {
		c.start(b.apart[key])
		b.forget(b.apart[key])
	}
}

// leave is for a caller that waits no longer. It returns what the caller knows then.
func (b *batches[T]) leave(a *addition[T], cause error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.batch == nil {
		a.lane.waiting = slices.DeleteFunc(a.lane.waiting, func(other *addition[T]) bool { return other == a })
		return cause
	}
	select {
	case <-a.done:
		return a.err
	default:
	}
	a.left = true
	a.batch.gone()
	return fmt.Errorf("%w: %w", percolator.ErrUndetermined, cause)
}

// gather waits until as many calls wait as there were lately, but not for long. Whoever was in the last batch often calls again as soon as it is
// committed. If the next one began before they can, two halves of the callers would take turns, in twice as many transactions. It does not wait if
// no call does.
func (b *batches[T]) gather(l *lane[T]) {
	b.mu.Lock()
	wait := min(l.took/gatherPart, gatherMost) - time.Since(l.ended)
	if l.calls < 2 || len(l.waiting) == 0 || len(l.waiting) >= l.calls || wait <= 0 {
		b.mu.Unlock()
		return
	}
	full := make(chan struct{})
	l.wanted, l.full = l.calls, full
	b.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-full:
	case <-timer.C:
		b.mu.Lock()
		l.wanted = 0
		b.mu.Unlock()
	}
}

// note remembers a batch that has ended: what it took, and how many calls there were with those that wait.
func (b *batches[T]) note(l *lane[T], calls int, begun time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.calls, l.ended = min(calls+len(l.waiting), batchMost), time.Now()
	l.took = l.ended.Sub(begun)
}

// addWaiting adds what waits, until nothing does, or a batch was overdue. Each batch ends when its callers have gone.
func (c *Combiner[T]) addWaiting(l *lane[T]) {
	b := &c.batches
	for {
		b.gather(l)
		within, cancel := context.WithCancel(context.Background())
		one := &batch{cancel: cancel}
		taken := b.take(l, one)
		if len(taken) == 0 {
			cancel()
			return
		}
		watch := time.AfterFunc(overdue, func() { c.isOverdue(l, one) })
		c.addTogether(within, l, taken)
		watch.Stop()
		cancel()
		if !c.over(l, one) {
			return
		}
	}
}

// take moves calls from a lane into a batch. If there are none, the goroutine of the lane ends.
func (b *batches[T]) take(l *lane[T], one *batch) []*addition[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := slices.Clone(l.waiting[:min(len(l.waiting), batchMost)])
	l.waiting = slices.Delete(l.waiting, 0, len(taken))
	for _, a := range taken {
		a.batch = one
	}
	one.callers = len(taken)
	if len(taken) == 0 {
		l.running = false
		b.forget(l)
	}
	return taken
}

// isOverdue lets others start beside a batch that has been under way for too long.
func (c *Combiner[T]) isOverdue(l *lane[T], one *batch) {
	b := &c.batches
	b.mu.Lock()
	defer b.mu.Unlock()
	if one.ended {
		return
	}
	one.overdue, l.running = true, false
	l.overdue++
	c.start(l)
}

// over notes that a batch has ended. It tells whether its goroutine still has its place.
func (c *Combiner[T]) over(l *lane[T], one *batch) bool {
	b := &c.batches
	b.mu.Lock()
	defer b.mu.Unlock()
	one.ended = true
	if one.overdue {
		l.overdue--
		c.start(l)
		b.forget(l)
	}
	return !one.overdue
}

// finish tells the callers of a batch, or of a part of one, what became of it.
func (b *batches[T]) finish(all []*addition[T], err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range all {
		a.err = err
		close(a.done)
		if !a.left {
			a.batch.gone()
		}
	}
}
