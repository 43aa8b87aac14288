package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Changes that several processes handle together: the deployment that users have.
// Each process is a child of this one; this one makes the changes. Beside ours
// stands a queue of jobs with as many processes on the same server.

const (
	// fleetConcurrency is how many handlers each process runs at once, on every side.
	fleetConcurrency = 16
	// fleetFactor makes these runs longer than others: a change every few milliseconds
	// gives few of them.
	fleetFactor = 4
	// fleetWarm is how many changes each process handles before what is measured, on every side: a connection
	// plans its statements at their first uses.
	fleetWarm = 200
)

// fleetProcesses are the numbers of processes that are compared, as far as there are
// as many callers.
var fleetProcesses = []int{1, 2, 4, 8}

// fleetLoad is what a fleet has to handle.
type fleetLoad struct {
	// live says that changes come at a rate while they are handled. Otherwise they
	// are all there when the functions begin to do their work.
	live bool
	// rate is changes for each second of the run: how many come, or how many are there.
	rate float64
	// takes is how long the function sleeps in each call.
	takes time.Duration
}

// workersWorkloads compare numbers of processes that run observers.
func workersWorkloads() []Workload {
	type server struct {
		kind, peer       string
		drain, live      float64 // changes for each second of the run
		cpuBar, drainBar float64
	}
	var all []Workload
	for _, s := range []server{
		{kind: "redis", peer: "asynq", drain: 2500, live: 200, cpuBar: 1.5, drainBar: 0.9},
		{kind: "postgres", peer: "river", drain: 1000, live: 100, cpuBar: 1.2, drainBar: 0.9},
	} {
		all = append(
			all,
			Workload{
				Name: "workers-drain-" + s.kind, Group: "workers", About: "a backlog of changes on " + s.kind + ", handled by several processes",
				Goroutines: 16, Rows: 2, XAxis: "processes", Chart: rateChart,
				Sides: fleetSides(s.kind, s.peer, fleetProcesses, fleetLoad{rate: s.drain}),
				Bars: func(sums []Summary) []Bar {
					own, peer := series(sums, ours), series(sums, s.peer)
					most := int(last(own).X)
					return []Bar{
						atLeast(fmt.Sprintf("changes per second with %d processes / with 1", most), last(own).Rate/own[0].Rate, s.drainBar, ""),
						atLeast(fmt.Sprintf("changes per second with %d processes / %s", most, s.peer), last(own).Rate/last(peer).Rate, 1, ""),
					}
				},
				Notes: wasteNotes,
			},
			Workload{
				Name: "workers-live-" + s.kind, Group: "workers", About: fmt.Sprintf("%.0f changes a second on %s, handled by several processes", s.live, s.kind),
				Goroutines: 16, Rows: 2, XAxis: "processes", Chart: latencyChart,
				Sides: fleetSides(s.kind, s.peer, fleetProcesses, fleetLoad{live: true, rate: s.live}),
				Bars: func(sums []Summary) []Bar {
					own, peer := series(sums, ours), series(sums, s.peer)
					most := int(last(own).X)
					return []Bar{
						atMost(fmt.Sprintf("conflicts for each change with %d processes", most), last(own).Work.Conflicts, 0.01, ""),
						atMost(fmt.Sprintf("CPU of the machine for a change with %d processes / with 1", most), last(own).AllCPU()/own[0].AllCPU(), s.cpuBar, ""),
						atMostP99(fmt.Sprintf("p99 from change to result with %d processes / with 1", most), last(own), own[0], 2),
						atMost(fmt.Sprintf("p50 with %d processes / %s", most, s.peer), last(own).P50/last(peer).P50, 1, ""),
						atMostP99(fmt.Sprintf("p99 with %d processes / %s", most, s.peer), last(own), last(peer), 1),
						atMost(fmt.Sprintf("CPU of the machine for a change with %d processes / %s", most, s.peer), last(own).AllCPU()/last(peer).AllCPU(), 1, ""),
					}
				},
				Notes: wasteNotes,
			},
		)
		for _, takes := range []time.Duration{20 * time.Millisecond, 300 * time.Millisecond} {
			// Two processes can do two thirds more than that.
			perSecond := min(s.live, 0.3*2*fleetConcurrency*float64(time.Second)/float64(takes))
			all = append(all, Workload{
				Name:  fmt.Sprintf("workers-%v-%s", takes, s.kind),
				Group: "workers", About: fmt.Sprintf("%.0f changes a second on %s whose functions take %v, in several processes", perSecond, s.kind, takes),
				Goroutines: 16, Rows: 2, XAxis: "processes", Chart: latencyChart,
				Sides: fleetSides(s.kind, s.peer, []int{2, 8}, fleetLoad{live: true, rate: perSecond, takes: takes}),
				Bars: func(sums []Summary) []Bar {
					own := series(sums, ours)
					return []Bar{atMost("calls of the function for each change, 2 processes", own[0].Work.Calls, 1.01, "")}
				},
				Notes: wasteNotes,
			})
		}
	}
	return append(all, waitingWorkload("redis", 100_000), waitingWorkload("postgres", 20_000))
}

// ours is the series of the sides that are percolator's own.
const ours = "observers"

func series(all []Summary, name string) []Summary {
	return slices.DeleteFunc(slices.Clone(all), func(s Summary) bool { return s.Series != name })
}

func last[T any](s []T) T { return s[len(s)-1] }

// wasteNotes say what was done for each change beside the one run that it needs.
func wasteNotes(_ Config, all []Summary) []string {
	var notes []string
	for _, s := range all {
		if s.Work == nil || s.Series != ours {
			continue
		}
		notes = append(notes, fmt.Sprintf("%s: for each change %.3f calls of the function, %.3f runs that ended in a conflict, %.2f scans that found %.2f cells.",
			s.Side, s.Work.Calls, s.Work.Conflicts, s.Work.Scans, s.Work.Found))
	}
	return notes
}

// fleetSides are observers and a queue, each with several numbers of processes.
func fleetSides(kind, peer string, processes []int, load fleetLoad) func(Config) ([]Side, error) {
	return func(cfg Config) ([]Side, error) {
		u, err := space(cfg, kind, "workers")
		if err != nil {
			return nil, err
		}
		if kind == "postgres" {
			// Processes that start together on a busy machine take their time, and eight
			// pools share the connections of one server.
			u = with(u, "connect_timeout", "60", "pool_max_conns", "8")
		}
		var sides []Side
		for _, how := range []string{ours, peer} {
			once := &shared{}
			for _, n := range processes {
				if n > max(2, cfg.Goroutines) {
					continue
				}
				sides = append(sides, &fleet{how: how, url: u, n: n, load: load, once: once})
			}
		}
		return sides, nil
	}
}

// fleet is changes that several processes handle, in one way.
type fleet struct {
	how, url string
	n        int
	load     fleetLoad
	once     *shared // by all numbers of processes of this way
	source   fleetSource
	last     int64
}

// fleetSource makes the changes.
type fleetSource interface {
	// open gets ready to make changes. prepare makes first what all processes share.
	open(ctx context.Context, size int, prepare bool) error
	// change makes one change, which was due at a time in Unix nanoseconds.
	change(ctx context.Context, id, due int64) error
	// fill makes many changes, in the quickest way that the system has.
	fill(ctx context.Context, from, n int64) error
	close() error
}

func newSource(how, url string) fleetSource {
	switch how {
	case "river":
		return &riverSource{url: url}
	case "asynq":
		return &asynqSource{url: url}
	}
	return &observerSource{url: url}
}

func (s *fleet) Name() string             { return fmt.Sprintf("%s, %d processes", s.how, s.n) }
func (s *fleet) Point() (string, float64) { return s.how, float64(s.n) }
func (s *fleet) ServerURL() string        { return s.url }

// SelfMetered implements SelfMetered: a backlog is made before the clock starts.
func (s *fleet) SelfMetered() {}

func (s *fleet) Op(context.Context, *Caller) error { panic("it is a Runner") }

func (s *fleet) Peer() string {
	if s.how == ours {
		return ""
	}
	return s.how
}

func (s *fleet) Prepare(ctx context.Context, cfg Config) error {
	s.source = newSource(s.how, s.url)
	first := !s.once.prepared
	s.once.prepared = true
	return s.source.open(ctx, cfg.ValueSize, first)
}

func (s *fleet) Close() error {
	if s.source == nil {
		return nil
	}
	return s.source.close()
}

// Run implements Runner.
func (s *fleet) Run(ctx context.Context, cfg Config, d time.Duration, repeat int) (Sample, error) {
	d *= fleetFactor
	want := max(10, int64(s.load.rate*d.Seconds()))
	warm := int64(0)
	if cfg.Warmup > 0 {
		warm = int64(fleetWarm * s.n)
	}
	from := s.last + warm
	crew, err := startCrew(ctx, s.n, childTask{
		Kind: "fleet", How: s.how, URL: s.url, Takes: s.load.takes, Config: cfg, Repeat: repeat, From: from,
	})
	if err != nil {
		return Sample{}, err
	}
	defer crew.kill()
	if err := crew.meet(ctx); err != nil {
		return Sample{}, err
	}
	if err := s.source.fill(ctx, s.last, warm); err != nil {
		return Sample{}, fmt.Errorf("making changes that warm up: %w", err)
	}
	if err := crew.await(ctx, warm); err != nil {
		return Sample{}, fmt.Errorf("warming up: %w", err)
	}
	s.last = from + want
	if !s.load.live {
		if err := s.source.fill(ctx, from, want); err != nil {
			return Sample{}, fmt.Errorf("making a backlog: %w", err)
		}
	}
	meter := startMeter(s.url)
	began := time.Now()
	if err := crew.begin(); err != nil {
		return Sample{}, err
	}
	if s.load.live {
		if err := pace(ctx, cfg.Goroutines, want, s.load.rate, func(n int64, due time.Time) error {
			return s.source.change(ctx, from+n, due.UnixNano())
		}); err != nil {
			return Sample{}, fmt.Errorf("making changes: %w", err)
		}
	}
	if err := crew.await(ctx, warm+want); err != nil {
		return Sample{}, err
	}
	elapsed := time.Since(began)
	did, err := crew.end()
	if err != nil {
		return Sample{}, err
	}
	sample := Sample{Ops: want, Rate: float64(want) / elapsed.Seconds(), Conflicts: did.Conflicts, CPU: float64(did.CPU.Nanoseconds()) / 1e3 / float64(want)}
	meter.stop(&sample)
	// What this process sent says nothing of those that did the work.
	sample.Bytes, sample.Trips = -1, -1
	did.took.into(&sample)
	each := func(n int64) float64 { return float64(n) / float64(warm+want) }
	sample.Work = &Work{Calls: float64(did.Calls) / float64(want), Conflicts: each(did.Conflicts), Scans: each(did.Scans), Found: each(did.Found)}
	return sample, nil
}

// pace calls do n times at a rate, from several goroutines. Each call is told when
// it was due, so that one that comes late counts its lateness.
func pace(ctx context.Context, goroutines int, n int64, rate float64, do func(n int64, due time.Time) error) error {
	type call struct {
		n   int64
		due time.Time
	}
	g, ctx := together(ctx)
	calls := make(chan call)
	for range goroutines {
		g.Go(func() error {
			for c := range calls {
				if err := do(c.n, c.due); err != nil {
					return err
				}
			}
			return nil
		})
	}
	began := time.Now()
	for i := int64(0); i < n && ctx.Err() == nil; i++ {
		due := began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		sleep(ctx, time.Until(due))
		select {
		case calls <- call{i, due}:
		case <-ctx.Done():
		}
	}
	close(calls)
	return g.Wait()
}
