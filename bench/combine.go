package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/combine"
	"github.com/percolate-go/percolate/typed"
)

// One counter that everybody adds to, from several processes: package combine beside a cell that is read and written.

const (
	counterProcesses = 8 // or as many as there are callers
	counterTable     = "counter"
	counterWarmup    = time.Second
)

// counterSettings are those of the first side that opens the database. A table that gets a shorter retention is collected by it once
// every transaction has ended that may have begun before: with the default of MaxTxnAge that would be after the benchmark.
var counterSettings = percolator.WithSettings(percolator.Settings{MaxTxnAge: 10 * time.Second, CatalogLease: time.Second})

// The ways to count.
const (
	countTogether = "combine.AddNow"
	countAdd      = "combine.Add in a transaction each"
	countCell     = "a cell, read and written"
	countNative   = "native, with retries" // WATCH, and REPEATABLE READ
	countLocked   = "native, with FOR UPDATE"
)

// recipesWorkloads are those of the packages under recipes.
func recipesWorkloads() []Workload {
	var all []Workload
	for _, kind := range []string{"redis", "postgres"} {
		all = append(all, Workload{
			Name: "combine-" + kind, Group: "recipes", About: fmt.Sprintf("one counter on %s, from %d processes of 8 callers", kind, counterProcesses),
			Goroutines: 64, Rows: 2,
			Sides: func(cfg Config) ([]Side, error) {
				u, err := space(cfg, kind, "combine")
				if kind == "postgres" {
					u = with(u, "pool_max_conns", "8", "connect_timeout", "60")
				}
				var sides []Side
				ways := []string{countTogether, countAdd, countCell, countNative}
				if kind == "postgres" {
					ways = append(ways, countLocked)
				}
				for _, how := range ways {
					sides = append(sides, &counters{kind: kind, how: how, url: u})
				}
				return sides, err
			},
			Bars: func(s []Summary) []Bar {
				first, last := readingOf(s[0])
				bars := []Bar{
					atLeast("additions per second: combine.AddNow / read and written natively, with retries", s[0].Rate/s[3].Rate, 20, ""),
					atMost("median time of a read at the end / at the beginning", last/first, 1.5, ""),
				}
				// In a short run the processes' memory is what they grow to when they begin.
				if r := s[0].Samples[len(s[0].Samples)-1].Reading; r != nil && r.Seconds >= memoryFrom.Seconds() && r.FirstMemory > 0 {
					bars = append(bars, atMost("memory of the processes at the end / at the beginning", r.LastMemory/r.FirstMemory, 1.5, ""))
					if r.FirstStore > 0 {
						bars = append(bars, atMost("memory of the server at the end / at the beginning", r.LastStore/r.FirstStore, 1.5, ""))
					}
				}
				return bars
			},
			Notes: func(_ Config, all []Summary) []string {
				var notes []string
				for _, s := range all {
					if first, last := readingOf(s); first > 0 {
						notes = append(notes, fmt.Sprintf("%s: %.1f times native. Beside it a read took %s at the beginning and %s at the end; all found what was acknowledged, and no more than was begun.",
							s.Side, s.Rate/all[3].Rate, micros(first), micros(last)))
					}
				}
				return notes
			},
		})
	}
	all = append(all, keysWorkload(), typedWorkload(), onceWorkload("redis"), onceWorkload("postgres"),
		exportWorkload("redis"), exportWorkload("postgres"), exportFaultsWorkload("redis"), exportFaultsWorkload("postgres"))
	return append(append(all, indexWorkloads("redis")...), indexWorkloads("postgres")...)
}

// memoryFrom is how long a run must last for its memory to be judged.
const memoryFrom = time.Minute

// Reading is what reads of a counter took beside the additions, in microseconds, and what the processes that add, and the server, had in memory meanwhile, in bytes: the median
// of the first tenth of the run, and of the last. The memory is 0 where it cannot be seen; that of Postgres is mostly a cache of a fixed size, and not looked at.
type Reading struct {
	First       float64 `json:"first_us"`
	Last        float64 `json:"last_us"`
	Seconds     float64 `json:"seconds"`
	FirstMemory float64 `json:"first_memory_bytes,omitempty"`
	LastMemory  float64 `json:"last_memory_bytes,omitempty"`
	FirstStore  float64 `json:"first_server_memory_bytes,omitempty"`
	LastStore   float64 `json:"last_server_memory_bytes,omitempty"`
}

// readingOf is the last repeat's, because a table grows over all of them.
func readingOf(s Summary) (first, last float64) {
	if r := s.Samples[len(s.Samples)-1].Reading; r != nil {
		first = s.Samples[0].Reading.First
		last = r.Last
	}
	return first, last
}

// counters is additions by several processes, in one way.
type counters struct {
	kind, how, url string
	db             *percolator.DB
	sums           *combine.Combiner[int64]
	worker         func() error // stops the collection of garbage
	added          int64
}

func (s *counters) Name() string { return s.how }

func (s *counters) Peer() string {
	if s.how == countNative || s.how == countLocked {
		return s.kind
	}
	return ""
}

func (s *counters) ServerURL() string                 { return s.url }
func (s *counters) Op(context.Context, *Caller) error { panic("it is a Runner") }

// Prepare makes the counter. A collection every few seconds keeps the table's history as short as it says.
func (s *counters) Prepare(ctx context.Context, cfg Config) error {
	switch s.how {
	case countNative, countLocked:
		side := s.native(cfg)
		return errors.Join(side.Prepare(ctx, cfg), side.Close())
	case countCell:
		side := &increment{url: s.url, rows: 1}
		return errors.Join(side.Prepare(ctx, cfg), side.Close())
	}
	var err error
	if s.db, err = percolator.Open(ctx, s.url, counterSettings); err != nil {
		return err
	}
	if s.how == countTogether { // all sides have one table
		err = s.db.ConfigureTable(ctx, counterTable, percolator.TableSettings{MaxTxnAge: 10 * time.Second, Retention: 20 * time.Second})
		if err != nil {
			return err
		}
	}
	if s.sums, err = combine.New(s.db, counterTable, typed.Number[int64]{}, combine.Sum[int64]); err != nil {
		return err
	}
	w := percolator.NewWorker(s.db, percolator.WorkerConfig{GCInterval: 5 * time.Second})
	within, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(within) }()
	s.worker = func() error { stop(); return <-ended }
	return s.sums.AddNow(ctx, s.how, 0)
}

func (s *counters) Close() error {
	if s.db == nil {
		return nil
	}
	var err error
	if s.worker != nil {
		err = s.worker()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(err, s.db.Close(ctx))
}

// native is the side that does without percolator.
func (s *counters) native(cfg Config) Side {
	if s.kind == "redis" {
		return &watchIncrement{redisPeer{url: s.url, atMost: 1}}
	}
	isolation := pgx.RepeatableRead
	if s.how == countLocked {
		isolation = pgx.ReadCommitted // which locks the row when it reads
	}
	return &nativeIncrement{pgPeer{url: s.url, pool: cfg.Goroutines, atMost: 1}, isolation}
}

// Run implements Runner.
func (s *counters) Run(ctx context.Context, cfg Config, d time.Duration, repeat int) (Sample, error) {
	task := childTask{Kind: "counters", How: s.how, URL: s.url, Config: cfg, Repeat: repeat}
	task.Config.Duration = d
	n := min(counterProcesses, cfg.Goroutines)
	task.Config.Goroutines = cfg.Goroutines / n
	task.Config.Store = s.kind
	children, err := startHelpers(ctx, n, task)
	defer func() {
		for _, h := range children {
			h.kill()
		}
	}()
	if err != nil {
		return Sample{}, err
	}
	within, stop := context.WithCancel(ctx)
	defer stop()
	var reading Reading
	var reader sync.WaitGroup
	var readErr error
	if s.sums != nil {
		reader.Go(func() { reading, readErr = s.read(ctx, within, d) })
	}
	sum, err := sumOf(children)
	stop()
	reader.Wait()
	if err = errors.Join(err, readErr); err != nil || s.sums == nil {
		return sum, err
	}
	sum.Reading = &reading
	s.added += sum.Ops
	total, err := s.total(ctx)
	if err == nil && total != s.added {
		err = fmt.Errorf("%d were added, and the counter is %d", s.added, total)
	}
	return sum, err
}

func (s *counters) total(ctx context.Context) (n int64, err error) {
	err = s.db.View(ctx, func(tx *percolator.Txn) error {
		n, err = s.sums.Get(ctx, tx, s.how)
		return err
	})
	return n, err
}

// read reads the counter, which never falls, until over has ended, and once at least: on a busy machine that may be before the first read has.
func (s *counters) read(ctx, over context.Context, d time.Duration) (Reading, error) {
	var took, memory, store []float64
	server := 0
	if s.kind == "redis" {
		if _, port := hostPort(s.url); port != 0 {
			server = listener(port)
		}
	}
	every := max(5*time.Millisecond, d/1000)
	for last := int64(0); len(took) == 0 || over.Err() == nil; {
		began := time.Now()
		n, err := s.total(ctx)
		if err == nil && n < last {
			err = fmt.Errorf("the counter fell from %d to %d", last, n)
		}
		if err != nil {
			return Reading{}, err
		}
		last = n
		took = append(took, float64(time.Since(began).Nanoseconds())/1e3)
		if d >= memoryFrom { // to look costs some milliseconds
			memory = append(memory, float64(memoryOfChildren(os.Getpid())))
			store = append(store, float64(memoryOf(server)))
		}
		select {
		case <-over.Done():
		case <-time.After(every):
		}
	}
	r := Reading{Seconds: d.Seconds()}
	r.First, r.Last = tenths(took)
	r.FirstMemory, r.LastMemory = tenths(memory)
	r.FirstStore, r.LastStore = tenths(store)
	return r, nil
}

// tenths are the medians of the first tenth and of the last, 0 for nothing.
func tenths(all []float64) (first, last float64) {
	if len(all) == 0 {
		return 0, 0
	}
	median := func(of []float64) float64 {
		of = slices.Clone(of)
		slices.Sort(of)
		return of[len(of)/2]
	}
	tenth := (len(all) + 9) / 10
	return median(all[:tenth]), median(all[len(all)-tenth:])
}

// doCounters is the part of a child.
func (t *childTask) doCounters(ctx context.Context, wait func() error) error {
	var side Side
	switch t.How {
	case countNative, countLocked:
		side = (&counters{kind: t.Config.Store, how: t.How, url: t.URL}).native(t.Config)
		switch s := side.(type) {
		case *nativeIncrement:
			var err error
			if s.db, err = openPool(ctx, t.URL, s.pool); err != nil {
				return err
			}
			defer s.db.Close()
			s.rows, s.size = rowsAndSize(t.Config, s.atMost, s.sized)
		case *watchIncrement:
			if err := s.Prepare(ctx, t.Config); err != nil {
				return err
			}
		}
	case countCell:
		s := &increment{rows: 1, size: t.Config.ValueSize}
		if err := s.open(ctx, t.URL); err != nil {
			return err
		}
		side = s
	default:
		s := &counterCaller{how: t.How}
		if err := s.open(ctx, t.URL); err != nil {
			return err
		}
		var err error
		if s.sums, err = combine.New(s.db, counterTable, typed.Number[int64]{}, combine.Sum[int64]); err != nil {
			return err
		}
		side = s
	}
	counting, ok := side.(*counterCaller)
	// Connections, statements and caches of a process that has just started are not to be measured.
	if warm := t.Config; warm.Warmup > 0 {
		if ok {
			counting.key = t.How + ", unmeasured"
		}
		warm.Duration = counterWarmup
		warm.skewed = newSkew(warm.Skew)
		if _, err := loop(ctx, side, warm, warm.Duration, t.Repeat); err != nil {
			return errors.Join(err, side.Close())
		}
	}
	if ok {
		counting.key = t.How
	}
	return t.loopAndTell(ctx, side, wait)
}

// counterCaller adds one.
type counterCaller struct {
	onDB
	sums *combine.Combiner[int64]
	how  string
	key  string
}

func (s *counterCaller) Name() string                          { return "add" }
func (s *counterCaller) Prepare(context.Context, Config) error { return nil }

func (s *counterCaller) Op(ctx context.Context, w *Caller) error {
	if s.how == countTogether {
		return s.sums.AddNow(ctx, s.key, 1)
	}
	attempts := int64(0)
	err := s.db.Update(ctx, func(tx *percolator.Txn) error {
		attempts++
		return s.sums.Add(ctx, tx, s.key, 1)
	})
	w.Conflicts += attempts - 1
	return err
}

// startHelpers starts children that all do the same.
func startHelpers(ctx context.Context, n int, task childTask) (children []*helper, err error) {
	for i := range n {
		t := task
		t.Config.Seed += uint64(i) << 20
		h, err := startHelper(ctx, t)
		if err != nil {
			return children, err
		}
		children = append(children, h)
	}
	return children, nil
}

// sumOf lets children work, and adds up what they say.
func sumOf(children []*helper) (Sample, error) {
	var wg sync.WaitGroup
	n := len(children)
	samples, errs := make([]Sample, n), make([]error, n)
	for i, h := range children {
		wg.Go(func() {
			if errs[i] = h.tell(); errs[i] == nil {
				errs[i] = json.NewDecoder(h.out).Decode(&samples[i])
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return Sample{}, err
	}
	var sum Sample
	for _, x := range samples {
		sum.Ops += x.Ops
		sum.Rate += x.Rate
		sum.Conflicts += x.Conflicts
		sum.CPU += x.CPU * float64(x.Ops)
		// Quantiles cannot be added up; the processes do the same work, so their mean
		// is near.
		sum.P50 += x.P50 / float64(n)
		sum.P99 += x.P99 / float64(n)
	}
	sum.CPU /= float64(max(1, sum.Ops))
	return sum, nil
}
