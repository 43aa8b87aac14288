package ui

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// errCrowded: as many requests as may look at the database at once do so already.
var errCrowded = errors.New("ui: too many people look at once: try again in a moment")

// gate lets requests in: a few of them at once to the database, and none at all once the page is closed.
type gate struct {
	places chan struct{}
	wait   time.Duration

	mu     sync.Mutex
	closed bool
	under  sync.WaitGroup
}

func newGate(places int, wait time.Duration) *gate {
	return &gate{places: make(chan struct{}, places), wait: wait}
}

// enter lets a request in, which must call g.under.Done at its end, unless the page is closed.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.under.Add(1)
	}
	return !g.closed
}

// within waits until the request may look at the database, and calls look, which has all of its time yet. The answer is written afterwards:
// somebody who reads it slowly keeps no place.
func (g *gate) within(ctx context.Context, look func() error) error {
	ctx, cancel := context.WithTimeout(ctx, g.wait)
	defer cancel()
	select {
	case g.places <- struct{}{}:
		defer func() { <-g.places }()
		return look()
	case <-ctx.Done():
		return errCrowded
	}
}

// isShut tells whether the page is closed.
func (g *gate) isShut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// shut refuses all further requests.
func (g *gate) shut() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
}

// drained waits until the requests that were let in have ended, or ctx is done.
func (g *gate) drained(ctx context.Context) error {
	ended := make(chan struct{})
	go func() { g.under.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("ui: closing the page while requests are under way: %w", context.Cause(ctx))
	}
}
