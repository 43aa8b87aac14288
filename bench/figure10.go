package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/internal/testserver"
)

// The paper's figure 10 shows throughput while servers are killed and come back.
// Here the server is killed for a fifth of the run, and in another workload a third
// of the processes that run observers.

// outageFactor makes these runs longer than others: the outage must be seen to end. A process that dies is missed after five seconds,
// and a server at once. So processes are gone for a quarter of workerOutageFactor times the duration, more than twice that.
const (
	outageFactor       = 6
	workerOutageFactor = 30
	shortestOutage     = 2 * time.Second

	workersKilled = 0.3  // of the run, is when processes are killed
	workersBack   = 0.55 // is when others start
)

// timeline counts what is done over time.
type timeline struct {
	began time.Time
	mu    sync.Mutex
	steps []float64
}

func newTimeline() *timeline { return &timeline{began: time.Now()} }

func (t *timeline) add(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := int(time.Since(t.began).Seconds() / timelineStep)
	for len(t.steps) <= i {
		t.steps = append(t.steps, 0)
	}
	t.steps[i] += float64(n) / timelineStep
}

// rates are operations per second, of the whole steps.
func (t *timeline) rates(d time.Duration) []float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	whole := int(d.Seconds() / timelineStep)
	for len(t.steps) < whole {
		t.steps = append(t.steps, 0)
	}
	return t.steps[:whole]
}

func (t *timeline) event(what string) Event {
	return Event{At: time.Since(t.began).Seconds(), What: what}
}

// mean is the mean of a part of a timeline, given by shares of its length.
func mean(steps []float64, from, to float64) float64 {
	part := steps[int(from*float64(len(steps))):int(to*float64(len(steps)))]
	sum := 0.0
	for _, v := range part {
		sum += v
	}
	return sum / max(1, float64(len(part)))
}

// figure10Server kills the server under a load of transfers, and starts it again.
func figure10Server(kind string) Workload {
	return Workload{
		Name: "figure10-" + kind, Group: "paper", About: "transfers while " + kind + " is killed and comes back", Goroutines: 64, Rows: 10_000,
		Chart: timeChart, Once: true,
		Sides: func(Config) ([]Side, error) { return []Side{&outage{kind: kind}}, nil },
		Notes: func(_ Config, s []Summary) []string {
			t := s[0].Samples[0].Timeline
			return []string{fmt.Sprintf("Transfers per second before the server was killed: %s, in the last quarter of the run: %s.", rate(mean(t, 0.1, 0.39)), rate(mean(t, 0.75, 1)))}
		},
	}
}

// outage is transfers on a server of its own, which is killed.
type outage struct {
	transfer
	kind   string
	server *testserver.Server
}

func (s *outage) Name() string { return "percolator on " + s.kind }

func (s *outage) Prepare(ctx context.Context, cfg Config) (err error) {
	if s.kind == "redis" {
		// Nothing that was acknowledged may be lost.
		s.server, err = testserver.StartRedis(map[string]string{"appendonly": "yes", "appendfsync": "always"})
	} else {
		s.server, err = testserver.StartPostgres(map[string]string{"fsync": "on"})
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNoServer, err)
	}
	s.url = s.server.URL
	return s.transfer.Prepare(ctx, cfg)
}

// Run implements Runner.
func (s *outage) Run(ctx context.Context, cfg Config, d time.Duration, repeat int) (Sample, error) {
	d = max(outageFactor*d, shortestOutage)
	line := newTimeline()
	var done, failed atomic.Int64
	ctx, end := context.WithCancel(ctx)
	defer end()
	var wg sync.WaitGroup
	for i := range cfg.Goroutines {
		wg.Go(func() {
			w := &Caller{Rand: rand.New(rand.NewPCG(cfg.Seed, uint64(repeat)<<32|uint64(i))), skew: cfg.skewed}
			for ctx.Err() == nil {
				call, cancel := context.WithTimeout(ctx, 10*time.Second)
				err := s.Op(call, w)
				cancel()
				if err != nil {
					failed.Add(1)
					sleep(ctx, 10*time.Millisecond) // as a program would, before it tries again
					continue
				}
				line.add(1)
				done.Add(1)
			}
		})
	}
	var events []Event
	var errs []error
	sleep(ctx, d*2/5)
	events = append(events, line.event("killed"))
	errs = append(errs, s.server.Kill())
	sleep(ctx, d/5)
	errs = append(errs, s.server.Start())
	events = append(events, line.event("back"))
	sleep(ctx, d-time.Since(line.began))
	elapsed := time.Since(line.began)
	end()
	wg.Wait()
	return Sample{Ops: done.Load(), Rate: float64(done.Load()) / elapsed.Seconds(), Conflicts: failed.Load(), Timeline: line.rates(elapsed), Events: events}, errors.Join(errs...)
}

func (s *outage) Close() error {
	err := s.transfer.Close()
	if s.server != nil {
		err = errors.Join(err, s.server.Close())
	}
	return err
}

// figure10Workers kills a third of the processes that run observers.
func figure10Workers(kind string) Workload {
	return Workload{
		Name: "figure10-workers-" + kind, Group: "paper", About: "observers on " + kind + " in several processes, a third of which is killed and comes back", Goroutines: 16, Rows: 2,
		Chart: timeChart, Once: true,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := space(cfg, kind, "figure10")
			if kind == "postgres" {
				// Processes that start together on a busy machine take their time.
				u = with(u, "connect_timeout", "60")
			}
			return []Side{&workerOutage{url: u, name: "observers on " + kind}}, err
		},
		Notes: func(_ Config, s []Summary) []string { return outageNotes(&s[0].Samples[0]) },
	}
}

// backRate is the part of the rate before an event at which it counts as back, as the mean of backSpan.
const (
	backRate = 0.9
	backSpan = 1.0 // seconds
)

// outageNotes say how the rate went when processes died, and when others came in their place.
func outageNotes(s *Sample) []string {
	steps := s.Timeline
	before := mean(steps, 0.1, workersKilled)
	notes := []string{fmt.Sprintf("Changes handled per second before processes were killed: %s, in the last quarter of the time in which they were gone: %s, in the last quarter of the run: %s.",
		rate(before), rate(mean(steps, workersBack-(workersBack-workersKilled)/4, workersBack)), rate(mean(steps, 0.75, 1)))}
	for _, e := range s.Events {
		then := fmt.Sprintf("never back at %.0f %% of that before the death", 100*backRate)
		if after, least, ok := rateBack(steps, e.At, backRate*before); ok {
			then = fmt.Sprintf("back at %.0f %% of that before the death after %.1f s, for which it was %s in the mean", 100*backRate, after, rate(least))
		}
		notes = append(notes, fmt.Sprintf("%s, at %.1f s: the rate is %s.", upperFirst(e.What), e.At, then))
	}
	return notes
}

// rateBack returns how long after a time the rate is at least want, as the mean of backSpan from then on, and the mean until then.
// An event may take its time to show, so what counts is the end of the first time below want, if there is one within backSpan.
func rateBack(steps []float64, at, want float64) (after, until float64, ok bool) {
	n := int(backSpan / timelineStep)
	from := int(at / timelineStep)
	high := func(i int) bool { return mean(steps[i:i+n], 0, 1) >= want }
	i := from
	for i < from+n && i+n <= len(steps) && high(i) {
		i++
	}
	if i == from+n {
		return 0, mean(steps[from:i], 0, 1), true // it never was away
	}
	for ; i+n <= len(steps); i++ {
		if high(i) {
			return float64(i)*timelineStep - at, mean(steps[from:i], 0, 1), true
		}
	}
	return 0, 0, false
}

const (
	workerProcesses  = 6 // or as many as there are callers, but 3 at least
	outageChainDepth = 1
)

// workerOutage is changes whose observers run in other processes.
type workerOutage struct {
	url, name string
	chain     observerChain
	last      int64
}

func (s *workerOutage) Name() string                      { return s.name }
func (s *workerOutage) Peer() string                      { return "" }
func (s *workerOutage) ServerURL() string                 { return s.url }
func (s *workerOutage) Op(context.Context, *Caller) error { panic("it is a Runner") }
func (s *workerOutage) Close() error                      { return s.chain.close() }

// Prepare publishes the observers, with a worker that is stopped again: from then
// on this process makes changes alone.
func (s *workerOutage) Prepare(ctx context.Context, cfg Config) error {
	publish := observerChain{url: s.url}
	err := publish.start(ctx, outageChainDepth, cfg.ValueSize, func(int64) {})
	if err := errors.Join(err, publish.close()); err != nil {
		return err
	}
	s.chain = observerChain{url: s.url, size: cfg.ValueSize}
	return s.chain.open(ctx)
}

// Run implements Runner. Changes are made as quickly as they are handled: at most
// reactiveBacklog are waiting.
func (s *workerOutage) Run(ctx context.Context, cfg Config, d time.Duration, _ int) (Sample, error) {
	d = max(workerOutageFactor*d, shortestOutage)
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	workers := &outageWorkers{task: childTask{Kind: "worker", URL: s.url, Config: cfg, Depth: outageChainDepth}}
	defer workers.close()
	all := max(3, min(workerProcesses, cfg.Goroutines))
	killed := all / 3
	if err := workers.start(ctx, all); err != nil {
		return Sample{}, err
	}
	sleep(ctx, crewMeets)
	line := newTimeline()
	workers.line.Store(line)
	var makers sync.WaitGroup
	var changed atomic.Int64
	for range cfg.Goroutines {
		makers.Go(func() {
			for ctx.Err() == nil {
				if changed.Load()-workers.handled.Load() > reactiveBacklog {
					sleep(ctx, time.Millisecond)
					continue
				}
				if err := s.chain.change(ctx, atomic.AddInt64(&s.last, 1)); err != nil {
					if ctx.Err() == nil {
						end(err)
					}
					return
				}
				changed.Add(1)
			}
		})
	}
	var events []Event
	sleep(ctx, time.Duration(workersKilled*float64(d)))
	events = append(events, line.event(fmt.Sprintf("%d of %d killed", killed, all)))
	workers.kill(killed)
	sleep(ctx, time.Until(line.began.Add(time.Duration(workersBack*float64(d)))))
	err := workers.start(ctx, killed)
	events = append(events, line.event("back"))
	sleep(ctx, d-time.Since(line.began))
	elapsed := time.Since(line.began)
	cause := context.Cause(ctx)
	end(nil)
	makers.Wait()
	if err := errors.Join(err, cause); err != nil {
		return Sample{}, err
	}
	handled := workers.handled.Load()
	return Sample{Ops: handled, Rate: float64(handled) / elapsed.Seconds(), Timeline: line.rates(elapsed), Events: events}, nil
}

// outageWorkers are the processes that handle the changes.
type outageWorkers struct {
	task    childTask
	running []*helper
	readers sync.WaitGroup
	handled atomic.Int64
	line    atomic.Pointer[timeline] // nil before it is measured
}

// start starts n more.
func (w *outageWorkers) start(ctx context.Context, n int) error {
	for range n {
		h, err := startHelper(ctx, w.task)
		if err != nil {
			return err
		}
		w.running = append(w.running, h)
		w.readers.Go(func() { w.read(h.out) })
	}
	return nil
}

// read adds up what a worker says, again and again, of how many changes it has handled.
func (w *outageWorkers) read(from io.Reader) {
	before := int64(0)
	for lines := bufio.NewScanner(from); lines.Scan(); {
		n, err := strconv.ParseInt(strings.TrimSpace(lines.Text()), 10, 64)
		if err != nil {
			continue
		}
		w.handled.Add(n - before)
		if line := w.line.Load(); line != nil {
			line.add(n - before)
		}
		before = n
	}
}

// kill kills the first n.
func (w *outageWorkers) kill(n int) {
	for _, h := range w.running[:n] {
		h.kill()
	}
	w.running = w.running[n:]
}

func (w *outageWorkers) close() {
	w.kill(len(w.running))
	w.readers.Wait()
}
