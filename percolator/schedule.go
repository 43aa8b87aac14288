package percolator

import (
	"fmt"
	"time"
)

// What periodics go by: schedules, and what becomes of ticks that were missed (periodic.go, cron.go).

// Schedule says when a Periodic ticks. Cron and Interval make schedules.
//
// A schedule of your own must be a function of its argument alone, the same in every process, and
// safe for concurrent use. If it has a method String, schedules with the same text are taken for the same, and with
// different texts for different ones (see Periodic.Version). The first 512 bytes of a text count.
type Schedule interface {
	// Next returns the first time of the schedule that is later than after. It counts in whole milliseconds,
	// rounded up. The zero Time, or one that is not later than after, is an error.
	Next(after time.Time) time.Time
}

// Interval returns the schedule of all times that are a multiple of d after the beginning of 1970 in UTC: the same ones in
// every process, whenever it starts. d counts in whole milliseconds, rounded up. Worker.Every refuses an Interval of 0 or less.
func Interval(d time.Duration) Schedule { return interval{d} }

type interval struct{ d time.Duration }

// Next implements Schedule.
func (i interval) Next(after time.Time) time.Time {
	if i.d <= 0 {
		return time.Time{}
	}
	every := (i.d - 1).Milliseconds() + 1
	ms := after.UnixMilli()
	rest := ms % every
	if rest < 0 {
		rest += every
	}
	return time.UnixMilli(ms - rest + every).UTC()
}

func (i interval) String() string { return "every " + i.d.String() }

// Missed says what becomes of the ticks of a Periodic that no worker has begun in time, because none ran, say. The zero
// value is Skip.
type Missed int

const (
	// Skip leaves out what was missed: a tick runs if it is the newest one, and was due a minute ago at most. A tick
	// whose function has failed was not missed, and is tried again as long as no newer one is due.
	Skip Missed = 0
	// Once makes one run for all ticks that are due, with the newest of them.
	Once Missed = -1
)

// Each makes a run for each tick that is due, one after the other, the oldest first. Of more than n of them the newest n are
// run. n is at least 1 and at most 10,000; Worker.Every refuses any other.
func Each(n int) Missed {
	if n < 1 {
		return badMissed
	}
	return Missed(n)
}

const (
	badMissed Missed = -2
	mostEach  Missed = 10_000
	// missedAfter is how late a tick may be that Skip runs.
	missedAfter = time.Minute
)

// nextTick asks a schedule for its first tick after a time. A schedule that goes back, ends or panics is an error that matches ErrInvalid.
func nextTick(s Schedule, after time.Time) (tick time.Time, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: the schedule panicked: %v", ErrInvalid, p)
		}
	}()
	after = after.Truncate(time.Millisecond).UTC()
	next := s.Next(after)
	switch {
	case next.IsZero():
		return tick, fmt.Errorf("%w: the schedule has no time after %v", ErrInvalid, after)
	case !next.After(after):
		return tick, fmt.Errorf("%w: the schedule goes back: after %v it returned %v", ErrInvalid, after, next)
	}
	due, err := timerDue(next)
	if err != nil {
		return tick, fmt.Errorf("the schedule returned %v after %v: %w", next, after, err)
	}
	return due.Time(), nil
}

// newestTick finds the last tick at or before now. tick is one of them.
func newestTick(s Schedule, tick, now time.Time) (time.Time, error) {
	// Next is past now from the last tick on, and not before it.
	low, high := tick.UnixMilli(), now.UnixMilli()
	for low < high {
		middle := low + (high-low)/2
		next, err := nextTick(s, time.UnixMilli(middle))
		switch {
		case err != nil:
			return tick, err
		case next.After(now):
			high = middle
		default:
			low = max(middle+1, next.UnixMilli())
		}
	}
	return time.UnixMilli(low).UTC(), nil
}

// plan chooses the tick to run, of those that are due, and the one that follows. tick is the first that has not been
// run, and begun tells that a run for it is on record. run is false if there is none to run.
func (m Missed) plan(s Schedule, tick, now time.Time, begun bool) (chosen, next time.Time, run bool, err error) {
	if m > 0 {
		return m.planEach(s, tick, now)
	}
	if chosen, err = newestTick(s, tick, now); err == nil {
		next, err = nextTick(s, chosen)
	}
	if err == nil && !next.After(now) {
		next, err = nextTick(s, now) // the schedule is no function of its argument
	}
	run = m == Once || begun && chosen.Equal(tick) || now.Sub(chosen) <= missedAfter
	return chosen, next, run, err
}

// planEach is plan for Each.
func (m Missed) planEach(s Schedule, tick, now time.Time) (chosen, next time.Time, run bool, err error) {
	left, last := 0, tick
	for ; left < int(m) && !last.After(now) && err == nil; left++ {
		last, err = nextTick(s, last)
	}
	if err == nil && !last.After(now) {
		// There are more than n: count back from the newest.
		tick, err = newestTick(s, tick, now)
		for i := 1; i < int(m) && err == nil; i++ {
			// What is due before the newest n is a tick too, so there always is one.
			tick, err = tickBefore(s, tick)
		}
	}
	if err == nil {
		next, err = nextTick(s, tick)
	}
	return tick, next, true, err
}

// tickBefore finds the tick before another one, where there is one.
func tickBefore(s Schedule, tick time.Time) (time.Time, error) {
	before := tick.Add(-time.Millisecond)
	for back := time.Second; ; back *= 2 {
		from, err := nextTick(s, before.Add(-back))
		if err != nil {
			return tick, err
		}
		if from.Before(tick) {
			return newestTick(s, from, before)
		}
		if back > 1<<61 {
			return tick, fmt.Errorf("%w: the schedule contradicts itself: its Next must return the same time for the same argument, and a later one for a later one", ErrInvalid)
		}
	}
}
