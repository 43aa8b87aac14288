package percolator

import (
	"time"
)

// A worker pauses an observer by itself if nearly all its runs fail: something that all of them need is
// broken, and trying on would park one change after the other. It lets one run through from time to
// time, and goes on as soon as one succeeds. Each worker judges for itself, by its own runs, and keeps that in
// memory alone.

// How a breaker judges.
const (
	// goodRun is how many failures one success makes up for: 19 of 20 must fail.
	goodRun        = 19
	defaultBreakAt = 64
)

// probeWait is the wait between two runs that an open breaker lets through.
var probeWait = Backoff{Min: time.Second, Max: time.Minute}

// breaker judges the runs of one observer.
type breaker struct {
	at     int               // how many changes must have failed; 0 or less for never
	failed map[Cell]struct{} // stored: cells whose runs failed lately, at most `at` of them
	open   bool
	trying bool // a run was let through, and nothing is known of it yet
	probes int  // failures of runs that were let through
	next   time.Time
}

// wait returns how long the next run waits; 0 lets it through. While the breaker is open, it lets
// one through, and the others wait for what comes of it.
func (b *breaker) wait(now time.Time) time.Duration {
	wait := b.left(now)
	if b.open && wait == 0 {
		b.trying, b.next = true, now.Add(b.pause())
	}
	return wait
}

// left is wait for a job that may have nothing to run: it is not taken for the run that is let through.
func (b *breaker) left(now time.Time) time.Duration {
	if !b.open {
		return 0
	}
	return max(0, b.next.Sub(now))
}

func (b *breaker) pause() time.Duration {
	d := probeWait.Min
	for i := 0; i < b.probes && d < probeWait.Max; i++ {
		d *= 2
	}
	return min(d, probeWait.Max)
}

// good notes a run that succeeded. closes tells that the breaker was open.
func (b *breaker) good(c Cell) (closes bool) {
	delete(b.failed, c)
	n := goodRun
	for other := range b.failed {
		if n--; n < 0 {
			break
		}
		delete(b.failed, other)
	}
	closes = b.open
	b.open, b.trying, b.probes = false, false, 0
	return closes
}

// bad notes a failure. Several of one cell count once. opens tells that this one was too much.
func (b *breaker) bad(c Cell, now time.Time) (opens bool) {
	if b.open {
		// Many runs may have been under way when it opened. They do not make the waits longer.
		if b.trying {
			b.trying = false
			b.probes++
			b.next = now.Add(b.pause())
		}
		return false
	}
	if b.at <= 0 {
		return false
	}
	if b.failed == nil {
		b.failed = make(map[Cell]struct{})
	}
	b.failed[c] = struct{}{}
	if len(b.failed) < b.at {
		return false
	}
	clear(b.failed)
	b.open, b.next = true, now.Add(b.pause())
	return true
}

// succeeded notes a run of an observer that was committed.
func (w *Worker) succeeded(o *Observer, c Cell) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.queuesOf(c) {
		if q.o == o && q.breaker.good(c) {
			w.db.log.Info("an observer whose runs failed succeeds again; the worker goes on with it", "observer", o.Name)
			w.resume(q)
		}
	}
}

// failedOnce notes a failure of an observer's function that counts.
func (w *Worker) failedOnce(o *Observer, c Cell, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range w.queuesOf(c) {
		if q.o == o && q.breaker.bad(c, w.db.clock.Now()) {
			w.db.count.observerBroken.Add(1)
			w.db.log.Error("nearly all runs of an observer fail; this worker leaves its changes alone and tries one from time to time",
				"observer", o.Name, "cells that failed", w.config.BreakAt, "err", cause)
		}
	}
}
