package percolator

import (
	"fmt"
	"math"
	"time"

	"golang.org/x/time/rate"
)

// Observer.Rate: a limit for all workers together that costs no call. Each worker takes its part of the rate, as its weight is a part of
// the weights of all members that share the observer's slots. All members work that out from the same list, at the same times of the oracle.

const (
	// rateBurst is how much of what a worker did not use it may catch up with.
	rateBurst = 100 * time.Millisecond
	// rateHorizon bounds how long a job waits for its turn, since the part may grow meanwhile.
	rateHorizon = 10 * time.Second
	// noPartPause is how long a job is left alone by a worker that has no part of the rate.
	noPartPause = time.Second
)

// pacer keeps one observer's runs of a worker below its part of the rate. It is guarded by the worker's mu.
type pacer struct {
	most    float64 // runs in a second, of all workers; 0 for no limit
	part    float64 // of this worker
	limiter *rate.Limiter
	turn    time.Time // of the last job that was told to wait
}

// checkRate returns an error for what is no rate.
func checkRate(o *Observer) error {
	if o.Rate < 0 || math.IsNaN(o.Rate) || math.IsInf(o.Rate, 0) {
		return fmt.Errorf("percolator: Observe: %w: observer %q has Rate %v; it must be 0 (no limit) or a number of runs in a second", ErrInvalid, o.Name, o.Rate)
	}
	return nil
}

// adjust goes by the part that the worker has now.
func (p *pacer) adjust(part float64, now time.Time) {
	if p.limiter != nil && part == p.part {
		return
	}
	p.part = part
	limit := rate.Limit(p.most * part)
	burst := max(1, int(min(float64(limit)*rateBurst.Seconds(), math.MaxInt32)))
	if p.limiter == nil {
		p.limiter = rate.NewLimiter(limit, burst)
		return
	}
	p.limiter.SetLimitAt(now, limit)
	p.limiter.SetBurstAt(now, burst)
	p.turn = time.Time{}
}

// wait returns how long a job must wait before it may run, 0 for not at all. Jobs that wait get turns one after another, so
// that few of them come at once and in vain.
func (p *pacer) wait(part float64, now time.Time) time.Duration {
	if p.most == 0 {
		return 0
	}
	p.adjust(part, now)
	limit := float64(p.limiter.Limit())
	if limit <= 0 {
		return noPartPause
	}
	if p.limiter.TokensAt(now) >= 1 {
		return 0
	}
	every := time.Duration(min(float64(time.Second)/limit, float64(rateHorizon)))
	if p.turn.Before(now) {
		p.turn = now
	}
	p.turn = p.turn.Add(every)
	if p.turn.Sub(now) > rateHorizon {
		p.turn = now.Add(rateHorizon)
	}
	return max(p.turn.Sub(now), leastPause)
}

// awaitTurn returns how long a job waits because of its observer's rate, 0 if it may run. It has one turn at a time: however often it is
// looked at before that, it takes none from the jobs that wait behind it. w.mu is held.
func (w *Worker) awaitTurn(t *task, now time.Time) time.Duration {
	if t.turn.After(now) {
		return max(t.turn.Sub(now), leastPause)
	}
	t.turn = time.Time{}
	wait := t.q.pacer.wait(w.partOf(t.q), now)
	if wait > 0 {
		t.turn = now.Add(wait)
	}
	return wait
}

// take counts a run. It returns false if the run must wait all the same.
func (p *pacer) take(now time.Time) bool {
	return p.most == 0 || p.limiter.AllowN(now, 1)
}

// partOf is the part that this worker has of an observer's rate. A worker that is no member has all of it.
func (w *Worker) partOf(q *queue) float64 {
	all := w.member.shares.Load()
	if all == nil || q.pacer.most == 0 {
		return 1
	}
	return all.at(q, w.now()).part
}
