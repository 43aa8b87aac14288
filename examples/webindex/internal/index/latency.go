package index

import (
	"container/list"
	"slices"
	"sync"
	"time"
)

// latency measures the time from the commit of a page to the page being
// searchable, for pages that this process loads and whose last observer runs in
// it. Nobody tells of those that come through in another process, so it waits for
// the newest mostPending pages alone.
type latency struct {
	mu      sync.Mutex
	pending map[string]*pendingPage // by URL
	order   *list.List              // of the pending pages, the oldest first
	took    []time.Duration
}

// mostPending bounds the pages that are waited for: some ten megabytes.
const mostPending = 1 << 16

func newLatency() *latency {
	return &latency{pending: map[string]*pendingPage{}, order: list.New()}
}

// pendingPage is a page that was loaded and is not known to be searchable yet.
type pendingPage struct {
	l          *latency
	url, hash  string
	commit     time.Time // zero before the commit returned
	searchable time.Time // zero before the observer saw it
	place      *list.Element
}

// begin registers a page before its commit, because the observers may be faster
// than the loader is told of the commit.
func (l *latency) begin(url, hash string) *pendingPage {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before := l.pending[url]; before != nil {
		before.leave()
	}
	if l.order.Len() >= mostPending {
		l.order.Front().Value.(*pendingPage).leave()
	}
	p := &pendingPage{l: l, url: url, hash: hash}
	p.place = l.order.PushBack(p)
	l.pending[url] = p
	return p
}

// leave has nobody wait for the page any more. The caller holds the lock.
func (p *pendingPage) leave() {
	if p.l.pending[p.url] == p {
		delete(p.l.pending, p.url)
		p.l.order.Remove(p.place)
	}
}

// abandoned is called when an attempt to store the page has come to nothing.
func (p *pendingPage) abandoned() {
	if p == nil {
		return
	}
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	p.leave()
}

func (p *pendingPage) committed(at time.Time) {
	if p == nil {
		return
	}
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	p.commit = at
	p.finish()
}

// searchable is called when a page with that content is in the index.
func (l *latency) searchable(url, hash string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.pending[url]; p != nil && p.hash == hash && p.searchable.IsZero() {
		p.searchable = at
		p.finish()
	}
}

func (p *pendingPage) finish() {
	if p.commit.IsZero() || p.searchable.IsZero() || p.l.pending[p.url] != p {
		return
	}
	p.l.took = append(p.l.took, max(0, p.searchable.Sub(p.commit)))
	p.leave()
}

// Latency is the distribution of the times from the commit of a page to the page
// being searchable.
type Latency struct {
	Pages              int
	P50, P90, P99, Max time.Duration
}

func (l *latency) distribution() Latency {
	l.mu.Lock()
	took := slices.Clone(l.took)
	l.mu.Unlock()
	if len(took) == 0 {
		return Latency{}
	}
	slices.Sort(took)
	at := func(percent int) time.Duration { return took[(len(took)-1)*percent/100] }
	return Latency{Pages: len(took), P50: at(50), P90: at(90), P99: at(99), Max: took[len(took)-1]}
}
