package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Workload is one thing to measure, by one or more sides.
type Workload struct {
	Name, About string
	// Group names several workloads at once: embedded, redis, postgres, timers, page, growth.
	Group string
	// Goroutines and Rows hold where the flags leave them open.
	Goroutines, Rows int
	// Sides makes the sides, unprepared.
	Sides func(Config) ([]Side, error)
	// Bars judges the medians, in the order of the sides. It is nil where there is
	// nothing to reach, and not called where -peer left sides out.
	Bars func([]Summary) []Bar
	// Notes are sentences that the report adds, from the same medians.
	Notes func(Config, []Summary) []string
	// Then, where it is not nil, makes a second measurement of the same sides from
	// the medians of this one, such as a rate at which all sides go.
	Then func(Config, []Summary) *Workload
	// Chart says which figure charts show.
	Chart chartKind
	// XAxis names what the sides vary in, where they are points of a growing series
	// (see Point).
	XAxis string
	// Once takes one repeat whatever -repeats says: a run that takes long by itself,
	// or one over time.
	Once bool
	// pace is told to sides that are Paced.
	pace float64
}

// Side is one way of doing a workload. Its methods but Op are called by one
// goroutine at a time.
type Side interface {
	// Name is short: it heads a row of a table.
	Name() string
	// Peer is the name by which -peer selects the side, "" for percolator's own.
	Peer() string
	// Prepare opens what the side needs and fills it.
	Prepare(ctx context.Context, cfg Config) error
	// Op does the work once. It is called by cfg.Goroutines goroutines at a time.
	Op(ctx context.Context, w *Caller) error
	Close() error
}

// Runner is a Side that does not consist of independent operations: it runs for
// about d by itself and says what it did. Op is never called. CPU, bytes and
// round trips are measured around it.
type Runner interface {
	Run(ctx context.Context, cfg Config, d time.Duration, repeat int) (Sample, error)
}

// SelfMetered is a Runner that measures the costs itself, because a part of its run
// is not to be counted.
type SelfMetered interface {
	Runner
	SelfMetered()
}

// Server is a Side whose work is done by a server: the URL, "" for none.
type Server interface {
	ServerURL() string
}

// Point is a Side that is a point of a series.
type Point interface {
	Point() (series string, x float64)
}

// Chooser is a Side with goroutines of its own choice.
type Chooser interface {
	Callers() int
}

// Paced is a Side that can be told how many units of work a second to do, 0 for
// as many as it can.
type Paced interface {
	Pace(rate float64)
}

// Caller belongs to one goroutine that calls Op.
type Caller struct {
	// Rand chooses rows. Each goroutine of each repeat has a sequence of its own,
	// the same for every side.
	Rand *rand.Rand
	// Took may be set by Op to what it measured itself, where that is not the time
	// of the whole call.
	Took time.Duration
	// Units may be set by Op when it did more than one unit of work.
	Units int64
	// Conflicts is counted up by Op for each attempt that it had to repeat.
	Conflicts int64

	skew *skew
}

// row picks a number below n, by the skew of -skew.
func (c *Caller) row(n int) int { return c.skew.pick(c.Rand, n) }

// two picks two different numbers below n.
func (c *Caller) two(n int) (int, int) {
	a, b := c.row(n), c.row(n)
	for a == b { // with great skew it may take a few
		b = c.Rand.IntN(n)
	}
	return a, b
}

// Sample is one repeat of one side.
type Sample struct {
	Ops       int64   `json:"ops"`
	Rate      float64 `json:"ops_per_second"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	Conflicts int64   `json:"conflicts"`
	Allocs    float64 `json:"allocs_per_op"`
	// CPU of this process and of the server's processes, user and system. That of
	// the server is -1 where it cannot be seen.
	CPU       float64 `json:"cpu_us_per_op"`
	ServerCPU float64 `json:"server_cpu_us_per_op"`
	// What went over connections to the server: bytes, both ways, and messages sent,
	// which is round trips, as each waits for its answer. -1 where that cannot be
	// seen.
	Bytes float64 `json:"bytes_per_op"`
	Trips float64 `json:"round_trips_per_op"`
	// Work is what was done for each operation, where observers in other processes
	// did it.
	Work *Work `json:"work,omitempty"`
	// Waiting is what cells that wait cost, in the workloads that are about them.
	Waiting *Waiting `json:"waiting,omitempty"`
	// Takeover is what became of the changes of processes that were killed.
	Takeover *Takeover `json:"takeover,omitempty"`
	// Reading is what reads of a counter cost beside the additions.
	Reading *Reading `json:"reading,omitempty"`
	// Timeline are operations per second over time, in steps of timelineStep, for
	// workloads that show it.
	Timeline []float64 `json:"timeline,omitempty"`
	// Events are what happened meanwhile, for the same workloads.
	Events []Event `json:"events,omitempty"`
	// Large is what a large transaction took that was committed meanwhile.
	Large *Large `json:"large,omitempty"`
}

// Work is what the processes of a fleet did for each change.
type Work struct {
	Calls     float64 `json:"calls"` // of the function
	Conflicts float64 `json:"conflicts"`
	Scans     float64 `json:"scans"`
	Found     float64 `json:"found"` // cells, by the scans
}

// Event is something that was done to the system while it was measured.
type Event struct {
	At   float64 `json:"at_seconds"`
	What string  `json:"what"`
}

// AllCPU is the CPU of client and server together, in microseconds for each
// operation; -1 where the server's cannot be seen.
func (s Sample) AllCPU() float64 {
	if s.ServerCPU < 0 {
		return -1
	}
	return s.CPU + s.ServerCPU
}

// Summary is all repeats of one side; the figures are medians.
type Summary struct {
	Side   string  `json:"side"`
	Series string  `json:"series,omitempty"`
	X      float64 `json:"x,omitempty"`
	Sample
	RateMin float64  `json:"ops_per_second_min"`
	RateMax float64  `json:"ops_per_second_max"`
	Samples []Sample `json:"samples"`
}

// Bar is a figure to reach.
type Bar struct {
	What    string  `json:"what"`
	Value   float64 `json:"value"`
	Unit    string  `json:"unit,omitempty"`
	AtLeast float64 `json:"at_least,omitempty"`
	AtMost  float64 `json:"at_most,omitempty"`
	Reached bool    `json:"reached"`
	// Unmeasured says why the value is no measurement, "" if it is one. Such a bar counts as not reached.
	Unmeasured string `json:"unmeasured,omitempty"`
}

func atLeast(what string, value, bar float64, unit string) Bar {
	return Bar{What: what, Value: value, Unit: unit, AtLeast: bar, Reached: value >= bar}
}

func atMost(what string, value, bar float64, unit string) Bar {
	return Bar{What: what, Value: value, Unit: unit, AtMost: bar, Reached: value <= bar}
}

// mostSpread is how many times its median the p99 of a side may be for others to be compared with it. Beyond that something else was
// measured: a flush of the disk that took a second. Beside that everything looks quick.
const mostSpread = 50

// stalled tells whether the p99 says nothing of the side.
func (s *Sample) stalled() bool { return s.P99 > mostSpread*s.P50 }

// atMostP99 judges the p99 of a side by that of another one.
func atMostP99(what string, s, base Summary, bar float64) Bar {
	b := atMost(what, s.P99/base.P99, bar, "")
	if base.stalled() {
		b.Reached, b.Unmeasured = false, fmt.Sprintf("the p99 that it is compared with, %s, is %.0f times its median", micros(base.P99), base.P99/base.P50)
	}
	return b
}

// Result is a workload that was run.
type Result struct {
	Workload string    `json:"workload"`
	About    string    `json:"about"`
	Config   Config    `json:"config"`
	Sides    []Summary `json:"sides"`
	Bars     []Bar     `json:"bars,omitempty"`
	Notes    []string  `json:"notes,omitempty"`
	XAxis    string    `json:"x_axis,omitempty"`
	Chart    chartKind `json:"chart,omitempty"`
}

func (w Workload) run(ctx context.Context, cfg Config, peer func(string) bool, progress io.Writer) (_ []Result, err error) {
	if cfg.Goroutines == 0 {
		cfg.Goroutines = w.Goroutines
	}
	if cfg.Rows == 0 {
		cfg.Rows = w.Rows
	}
	if cfg.Duration == 0 {
		cfg.Duration = 2 * time.Second
		if w.XAxis != "" && !w.Once {
			cfg.Duration = time.Second
		}
	}
	if cfg.Rows < 2 {
		return nil, fmt.Errorf("%d rows are too few", cfg.Rows)
	}
	if w.Once {
		cfg.Repeats, cfg.Warmup = 1, 0
	}
	cfg.skewed = newSkew(cfg.Skew)
	sides, err := w.Sides(cfg)
	if err != nil {
		return nil, err
	}
	every := len(sides)
	sides = slices.DeleteFunc(sides, func(s Side) bool { return s.Peer() != "" && !peer(s.Peer()) })
	defer func() {
		for _, s := range sides {
			if cerr := s.Close(); cerr != nil {
				err = errors.Join(err, fmt.Errorf("close %s: %w", s.Name(), cerr))
			}
		}
	}()
	for _, s := range sides {
		fmt.Fprintf(progress, "  preparing %s\n", s.Name())
		if err := s.Prepare(ctx, cfg); err != nil {
			return nil, fmt.Errorf("prepare %s: %w", s.Name(), err)
		}
	}
	var results []Result
	for now := &w; now != nil; {
		result, err := now.measure(ctx, cfg, sides, len(sides) == every, progress)
		if err != nil {
			return nil, err
		}
		results = append(results, result)
		if now.Then == nil || len(sides) != every {
			break
		}
		now = now.Then(cfg, result.Sides)
	}
	return results, nil
}

// measure runs prepared sides alternately.
func (w *Workload) measure(ctx context.Context, cfg Config, sides []Side, complete bool, progress io.Writer) (Result, error) {
	shown := cfg
	shown.Store = withoutPassword(cfg.Store)
	for _, s := range sides {
		if p, ok := s.(Paced); ok {
			p.Pace(w.pace)
		}
	}
	result := Result{Workload: w.Name, About: w.About, Config: shown, Sides: make([]Summary, len(sides)), XAxis: w.XAxis, Chart: w.Chart}
	if cfg.Warmup > 0 {
		for _, s := range sides {
			if _, err := sampleOf(ctx, s, cfg, cfg.Warmup, 0); err != nil {
				return Result{}, fmt.Errorf("warm up %s: %w", s.Name(), err)
			}
		}
	}
	for repeat := 1; repeat <= cfg.Repeats; repeat++ {
		for i, s := range sides {
			sample, err := sampleOf(ctx, s, cfg, cfg.Duration, repeat)
			if err != nil {
				return Result{}, fmt.Errorf("run %s: %w", s.Name(), err)
			}
			sum := &result.Sides[i]
			sum.Side = s.Name()
			if p, ok := s.(Point); ok {
				sum.Series, sum.X = p.Point()
			}
			sum.Samples = append(sum.Samples, sample)
			fmt.Fprintf(progress, "  %d/%d %-40s %12.0f /s  p50 %-10s CPU %s + %s\n", repeat, cfg.Repeats, s.Name(), sample.Rate,
				micros(sample.P50), micros(sample.CPU), known(sample.ServerCPU, micros))
		}
	}
	for i := range result.Sides {
		result.Sides[i].summarize()
	}
	if w.Bars != nil && complete {
		result.Bars = w.Bars(result.Sides)
	}
	if w.Notes != nil && complete {
		result.Notes = w.Notes(cfg, result.Sides)
	}
	return result, nil
}

// sampleOf runs a side for a while.
func sampleOf(ctx context.Context, s Side, cfg Config, d time.Duration, repeat int) (Sample, error) {
	if c, ok := s.(Chooser); ok {
		cfg.Goroutines = c.Callers()
	}
	runtime.GC() // what other sides left behind is not this one's to clean
	var server string
	if has, ok := s.(Server); ok {
		server = has.ServerURL()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	meter := startMeter(server)
	var sample Sample
	var err error
	if r, ok := s.(Runner); ok {
		sample, err = r.Run(ctx, cfg, d, repeat)
	} else {
		sample, err = loop(ctx, s, cfg, d, repeat)
	}
	if err != nil {
		return Sample{}, err
	}
	if sample.Ops == 0 {
		return Sample{}, errors.New("nothing was done")
	}
	if _, ok := s.(SelfMetered); !ok {
		meter.stop(&sample)
	}
	runtime.ReadMemStats(&after)
	sample.Allocs = float64(after.Mallocs-before.Mallocs) / float64(sample.Ops)
	return sample, nil
}

// latencies are those of one goroutine. A value over the range, a minute, counts as
// a minute.
type latencies struct{ h *hdrhistogram.Histogram }

func newLatencies() latencies { return latencies{hdrhistogram.New(1, int64(time.Minute), 3)} }

func (l latencies) record(d time.Duration) {
	if l.h.RecordValue(max(1, int64(d))) != nil {
		_ = l.h.RecordValue(int64(time.Minute))
	}
}

// into sets the quantiles of a sample, in microseconds.
func (l latencies) into(s *Sample) {
	s.P50 = float64(l.h.ValueAtQuantile(50)) / 1e3
	s.P99 = float64(l.h.ValueAtQuantile(99)) / 1e3
}

// loop calls Op from cfg.Goroutines goroutines for d, and once at least: on a busy
// machine d may be over before a goroutine runs at all.
func loop(ctx context.Context, s Side, cfg Config, d time.Duration, repeat int) (Sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg      sync.WaitGroup
		over    atomic.Bool
		callers = make([]Caller, cfg.Goroutines)
		took    = make([]latencies, cfg.Goroutines)
		ops     = make([]int64, cfg.Goroutines)
	)
	begin := time.Now()
	stop := time.AfterFunc(d, func() { over.Store(true) })
	defer stop.Stop()
	for i := range callers {
		callers[i].Rand = rand.New(rand.NewPCG(cfg.Seed, uint64(repeat)<<32|uint64(i)))
		callers[i].skew = cfg.skewed
		took[i] = newLatencies()
		wg.Go(func() {
			c := &callers[i]
			for first := true; first || !over.Load(); first = false {
				c.Took, c.Units = 0, 1
				start := time.Now()
				if err := s.Op(ctx, c); err != nil {
					cancel(err)
					return
				}
				t := time.Since(start)
				if c.Took > 0 {
					t = c.Took
				}
				took[i].record(t / time.Duration(c.Units))
				ops[i] += c.Units
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(begin)
	if err := context.Cause(ctx); err != nil {
		return Sample{}, err
	}
	var sample Sample
	for i := range callers {
		if i > 0 {
			took[0].h.Merge(took[i].h)
		}
		sample.Ops += ops[i]
		sample.Conflicts += callers[i].Conflicts
	}
	sample.Rate = float64(sample.Ops) / elapsed.Seconds()
	took[0].into(&sample)
	return sample, nil
}

func (s *Summary) summarize() {
	median := func(of func(Sample) float64) float64 {
		var all []float64
		for _, sample := range s.Samples {
			all = append(all, of(sample))
		}
		slices.Sort(all)
		mid := len(all) / 2
		if len(all)%2 == 1 {
			return all[mid]
		}
		return (all[mid-1] + all[mid]) / 2
	}
	s.Rate = median(func(x Sample) float64 { return x.Rate })
	s.P50 = median(func(x Sample) float64 { return x.P50 })
	s.P99 = median(func(x Sample) float64 { return x.P99 })
	s.CPU = median(func(x Sample) float64 { return x.CPU })
	s.ServerCPU = median(func(x Sample) float64 { return x.ServerCPU })
	s.Bytes = median(func(x Sample) float64 { return x.Bytes })
	s.Trips = median(func(x Sample) float64 { return x.Trips })
	s.Allocs = median(func(x Sample) float64 { return x.Allocs })
	s.Waiting, s.Takeover = s.Samples[0].Waiting, s.Samples[0].Takeover // these workloads take one repeat
	if s.Samples[0].Work != nil {
		s.Work = &Work{
			Calls:     median(func(x Sample) float64 { return x.Work.Calls }),
			Conflicts: median(func(x Sample) float64 { return x.Work.Conflicts }),
			Scans:     median(func(x Sample) float64 { return x.Work.Scans }),
			Found:     median(func(x Sample) float64 { return x.Work.Found }),
		}
	}
	s.RateMin, s.RateMax = s.Samples[0].Rate, s.Samples[0].Rate
	for _, x := range s.Samples {
		s.Ops += x.Ops
		s.Conflicts += x.Conflicts
		s.RateMin, s.RateMax = min(s.RateMin, x.Rate), max(s.RateMax, x.Rate)
	}
}

// at is a side as a point of a series, with callers of its own choice if that is
// not 0. Several points may share one side: it is prepared once, by the first, and
// closed once.
type at struct {
	Side
	series  string
	x       float64
	label   string
	callers int
	most    int // callers that any point of the side has
	shared  *shared
}

// shared counts what several points make of one side.
type shared struct{ prepared, closed bool }

func (a *at) Name() string             { return a.series + ", " + a.label }
func (a *at) Point() (string, float64) { return a.series, a.x }

func (a *at) Prepare(ctx context.Context, cfg Config) error {
	if a.shared != nil {
		if a.shared.prepared {
			return nil
		}
		a.shared.prepared = true
	}
	cfg.Goroutines = max(cfg.Goroutines, a.most)
	return a.Side.Prepare(ctx, cfg)
}

func (a *at) Close() error {
	if a.shared != nil {
		if a.shared.closed {
			return nil
		}
		a.shared.closed = true
	}
	return a.Side.Close()
}

func (a *at) ServerURL() string {
	if s, ok := a.Side.(Server); ok {
		return s.ServerURL()
	}
	return ""
}

// atCallers is at with a number of callers of its own.
type atCallers struct{ *at }

func (a atCallers) Callers() int { return a.callers }

// atRunner is at for a Runner.
type atRunner struct{ *at }

func (a atRunner) Run(ctx context.Context, cfg Config, d time.Duration, repeat int) (Sample, error) {
	return a.Side.(Runner).Run(ctx, cfg, d, repeat)
}

// point makes a side a point of a series.
func point(series string, x float64, label string, s Side) Side {
	a := &at{Side: s, series: series, x: x, label: label}
	if _, ok := s.(Runner); ok {
		return atRunner{a}
	}
	return a
}

// byCallers makes points of one side that differ in the number of callers.
func byCallers(series string, s Side, callers []int) []Side {
	once := &shared{}
	var all []Side
	for _, n := range callers {
		all = append(all, atCallers{&at{Side: s, series: series, x: float64(n), label: fmt.Sprintf("%d callers", n), callers: n, most: slices.Max(callers), shared: once}})
	}
	return all
}
