package index

import (
	"slices"
	"sync"
	"time"
)

// latency measures the time from the commit of a page to the page being
// searchable, for pages that this process loads and whose last observer runs in
// it.
type latency struct {
	mu      sync.Mutex
	pending map[string]*pendingPage // by URL
	took    []time.Duration
}

// pendingPage is a page that was loaded and is not known to be searchable yet.
type pendingPage struct {
	l          *latency
	url, hash  string
	commit     time.Time // zero before the commit returned
	searchable time.Time // zero before the observer saw it
}

// begin registers a page before its commit, because the observers may be faster
// than the loader is told of the commit. An attempt that fails is replaced by the
// next one.
func (l *latency) begin(url, hash string) *pendingPage {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &pendingPage{l: l, url: url, hash: hash}
	l.pending[url] = p
	return p
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
	delete(p.l.pending, p.url)
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
