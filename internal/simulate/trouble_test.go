package simulate

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// loadFor is a rate of changes that workers with slow functions keep up with easily, and
// that does not take the simulation all day.
func loadFor(workers int, function time.Duration) float64 {
	each := *rate
	if function > 0 {
		each = min(each, float64(*concurrency)/function.Seconds()/4)
	}
	return min(each*float64(workers), size(40.0, 100))
}

// TestRollingRestart stops one worker after the other and starts another in its place.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	var s sheet
	s.add("workers\tfunction\tpause\t" + resultHead + "\ttook\t" + tenureHead)
	for _, n := range size([]int{3}, []int{8, 32}) {
		for _, function := range size([]time.Duration{0, 300 * time.Millisecond}, []time.Duration{0, 300 * time.Millisecond, 10 * time.Second}) {
			for _, pause := range size([]time.Duration{time.Second}, []time.Duration{time.Second, 5 * time.Second}) {
				if n > 8 && pause > time.Second {
					continue // it takes the processor long, and shows nothing new
				}
				synctest.Test(t, func(t *testing.T) {
					r, slots, took := simulateRollingRestart(t, n, function, pause)
					s.add("%d\t%v\t%v\t%s\t%v\t%s", n, function, pause, r.line(), took.Round(time.Second), slots.line())
					s.atMost(1.01, "functions", r.each(float64(r.functions)))
					s.within(3*time.Second, "p99", r.p99)
					s.atMost(1, "percent of slot-time without an owner", slots.percent(slots.none))
					s.atMost(2, "percent of slot-time with two owners", slots.percent(slots.two))
					// A worker that was told to stop begins nothing, and has its share until its functions end, or for a third of a
					// lease and up to an eighth of that, and the beat. So each of its slots waits once for that long.
					waits := min(function, 1200*time.Millisecond) + 200*time.Millisecond
					s.atMost(waits.Seconds(), "seconds for which a slot's owner stops", slots.percent(slots.stopping)/100*took.Seconds())
				})
			}
		}
	}
	s.show(t, "each worker is stopped, and once it has ended another one is started; then comes the pause")
}

func simulateRollingRestart(t *testing.T, n int, function, pause time.Duration) (r result, slots tenure, took time.Duration) {
	t.Helper()
	w := newWorld(t, function)
	for range n {
		w.start()
	}
	time.Sleep(time.Minute)
	since := w.counts()
	stop := w.load(loadFor(n, function))
	time.Sleep(2*time.Second + function)
	began := time.Now()
	watched := w.watchSlots()
	for i := range n {
		require.NoError(t, w.processes[i].stop())
		w.start()
		time.Sleep(pause)
	}
	took = time.Since(began)
	slots = watched()
	time.Sleep(5 * time.Second)
	stop()
	until := w.counts()
	w.wait(0)
	r = w.result(since, until)
	w.close()
	return r, slots, took
}

// TestKill lets one of the workers die without a word, at some moment between two signs
// of its life.
func TestKill(t *testing.T) {
	t.Parallel()
	var s sheet
	s.add("function\trounds\tchanges\tfunctions\tlate by more than 100 ms\tlatest after the death, least\tgreatest\t" + tenureHead)
	for _, function := range size([]time.Duration{0}, []time.Duration{0, 300 * time.Millisecond, 3 * time.Second}) {
		rounds := size(4, 20)
		var sum result
		var least, most time.Duration
		late := 0
		var slots tenure
		for round := range rounds {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, function)
				for range 8 {
					w.start()
				}
				time.Sleep(time.Minute)
				since := w.counts()
				stop := w.load(loadFor(8, function))
				time.Sleep(2*time.Second + function + time.Duration(round)*1500*time.Millisecond/time.Duration(rounds))
				died := time.Now()
				watched := w.watchSlots()
				w.processes[round%8].die()
				time.Sleep(10 * time.Second)
				slots.add(watched())
				stop()
				w.wait(0)
				r := w.result(since, w.counts())
				n, last := w.lateSince(died)
				w.close()
				late += n
				sum.changes += r.changes
				sum.functions += r.functions
				if most = max(most, last); round == 0 || last < least {
					least = last
				}
			})
		}
		s.add("%v\t%d\t%d\t%.3f\t%d\t%v\t%v\t%s", function, rounds, sum.changes, sum.each(float64(sum.functions)), late, least, most, slots.line())
		s.within(5*time.Second, "latest", most)
	}
	s.show(t, "one of 8 workers dies, and its changes run elsewhere")
}

// die kills a process. Its functions go on, but reach nothing.
func (p *process) die() {
	p.dead.Store(true)
	p.client.CrashClient()
}

// lateSince tells how many runs began more than 100 ms after their commit and after some
// event, and how long after the event the last of them did.
func (w *world) lateSince(event time.Time) (n int, last time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.changes {
		for _, r := range c.runs {
			if r.ran != nil && r.ran.After(event) && r.ran.Sub(c.committed) > 100*time.Millisecond {
				n++
				last = max(last, r.ran.Sub(event))
			}
		}
	}
	return n, last
}

// stall is something that befalls one of 8 workers, and how it ends.
type stall struct {
	name   string
	option percolator.Option
	begin  func(p *process)
	end    func(p *process) // after 30 s
}

// stillClock stands still when it is told to. Whoever sleeps then sleeps until it goes on.
type stillClock struct {
	mu     sync.Mutex
	still  chan struct{} // closed when the clock goes on
	at     time.Time
	behind time.Duration
	sleeps bool // sleeps end nevertheless
}

func (c *stillClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.still != nil {
		return c.at
	}
	return time.Now().Add(-c.behind)
}

func (c *stillClock) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.Lock()
	still := c.still
	c.mu.Unlock()
	if still != nil && !c.sleeps {
		select {
		case <-still:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

func (c *stillClock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.still = time.Now().Add(-c.behind), make(chan struct{})
}

func (c *stillClock) goOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behind = time.Since(c.at)
	close(c.still)
	c.still = nil
}

func stalls() []stall {
	hang := func(at func(p *process) *atomic.Pointer[chan struct{}]) (begin, end func(p *process)) {
		free := make(chan struct{})
		return func(p *process) { at(p).Store(&free) }, func(p *process) { at(p).Store(nil); close(free) }
	}
	functions := stall{name: "its functions hang"}
	begin, end := hang(func(p *process) *atomic.Pointer[chan struct{}] { return &p.hung })
	functions.end = end
	functions.begin = func(p *process) {
		begin(p)
		for p.hanging.Load() < int64(*concurrency) {
			time.Sleep(time.Millisecond)
		}
	}
	calls := stall{name: "its calls hang"}
	calls.begin, calls.end = hang(func(p *process) *atomic.Pointer[chan struct{}] { return &p.silent })
	all := []stall{functions, calls}
	for i, name := range []string{"its clock and its timers stand still", "its clock stands still"} {
		clock := &stillClock{sleeps: i == 1}
		all = append(all, stall{
			name: name, option: percolator.WithClock(clock),
			begin: func(*process) { clock.stop() }, end: func(*process) { clock.goOn() },
		})
	}
	return all
}

// stalled is what came of a stall.
type stalled struct {
	result
	stuck           int           // runs that hung
	late, lateAfter int           // runs, during the stall and after it
	last, lastAfter time.Duration // of them
}

// TestStalled lets something befall one of 8 workers for 30 s, at some moment between two
// beats.
func TestStalled(t *testing.T) {
	t.Parallel()
	var s sheet
	s.add("\trounds\t" + resultHead + "\tlate\tlatest after the beginning\tlate after the end\tlatest after the end")
	rounds := size(1, 8)
	for i := range 4 {
		var sum stalled
		name := ""
		for round := range rounds {
			synctest.Test(t, func(t *testing.T) {
				what := stalls()[i]
				name = what.name
				got := simulateStall(t, what, 2*time.Second+time.Duration(round)*1500*time.Millisecond/time.Duration(rounds))
				sum.add(got)
			})
		}
		s.add("%s\t%d\t%s\t%d\t%v\t%d\t%v", name, rounds, sum.line(), sum.late, sum.last, sum.lateAfter, sum.lastAfter)
		s.atMost(float64(*concurrency), "stuck", float64(sum.stuck))
		s.atMost(1.05, "functions", sum.each(float64(sum.functions)))
		s.within(5*time.Second, "latest", sum.last)
		s.within(1600*time.Millisecond, "latest after the end", sum.lastAfter)
	}
	s.show(t, "something befalls one of 8 workers for 30 s")
}

// add adds what another stall of the kind came to. Of times the greatest counts.
func (s *stalled) add(other stalled) {
	s.changes += other.changes
	s.functions += other.functions
	s.conflicts += other.conflicts
	s.calls += other.calls
	s.median, s.p99, s.slowest = max(s.median, other.median), max(s.p99, other.p99), max(s.slowest, other.slowest)
	s.stuck = max(s.stuck, other.stuck)
	s.late, s.lateAfter = s.late+other.late, s.lateAfter+other.lateAfter
	s.last, s.lastAfter = max(s.last, other.last), max(s.lastAfter, other.lastAfter)
}

func simulateStall(t *testing.T, what stall, after time.Duration) (got stalled) {
	t.Helper()
	w := newWorld(t, *function)
	var options []percolator.Option
	if what.option != nil {
		options = append(options, what.option)
	}
	first := w.newProcess(options...).run()
	for range 7 {
		w.start()
	}
	time.Sleep(time.Minute)
	since := w.counts()
	stop := w.load(size(40.0, 100))
	time.Sleep(after)
	what.begin(first)
	began := time.Now()
	time.Sleep(20 * time.Second)
	stop()
	time.Sleep(10 * time.Second)
	w.read()
	got.stuck = w.unread()
	got.late, got.last = w.lateSince(began)
	ended := time.Now()
	what.end(first)
	stop = w.load(size(40.0, 100))
	time.Sleep(10 * time.Second)
	stop()
	until := w.counts()
	w.wait(0)
	got.result = w.result(since, until)
	got.lateAfter, got.lastAfter = w.lateSince(ended)
	w.close()
	return got
}
