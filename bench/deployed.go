package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// Worker processes as a program has them that sets nothing: what they cost while there is nothing to do, and how
// long the changes of one wait that was killed.

const (
	deployedTable  = "deployed"
	deployedInput  = "input"
	deployedResult = "result"
	// deployedMost is how many processes there are at most.
	deployedMost = 8
	// idleSettles and idleFactor are how many times as long as the duration the workers get to come to rest, and are then
	// looked at: what they do comes at intervals of up to a minute.
	idleSettles = 10
	idleFactor  = 30
	// idleLeast is the shortest look, of a beat and a rescan at least.
	idleLeast = 4 * time.Second

	killRate = 100 // changes a second
	// killEvery is the time from one kill to the next. Until the first killJoins passes at least, and from a start to the next kill some more.
	// killMisses after a kill another process is started.
	killEvery  = 16 * time.Second
	killJoins  = 5 * time.Second
	killMisses = 8 * time.Second
	killMost   = 5 // kills
	// killLate is how long a change waits at least that waited for a killed process.
	killLate = 250 * time.Millisecond
)

// deployedWorkloads measure processes with the default settings.
func deployedWorkloads() []Workload {
	var all []Workload
	for _, kind := range []string{"redis", "postgres"} {
		all = append(all, idleWorkload(kind), listeningWorkload(kind), killWorkload(kind))
	}
	return all
}

func deployedURL(cfg Config, kind, name string) (string, error) {
	u, err := space(cfg, kind, name)
	if kind == "postgres" {
		u = with(u, "connect_timeout", "60", "pool_max_conns", "8") // they start together
	}
	return u, err
}

// deployed is a worker of one observer, with the default settings. Its function writes when it was called.
type deployed struct {
	db     *percolator.DB
	worker *percolator.Worker
	stop   context.CancelFunc
	ended  chan error
}

// launch does not wait until the worker is idle. Beside changes that come all the time it may not be for long.
func (m *deployed) launch(ctx context.Context, url string) (err error) {
	if m.db, err = percolator.Open(ctx, url, percolator.WithLogger(riverLog())); err != nil {
		return err
	}
	m.worker = percolator.NewWorker(m.db, percolator.WorkerConfig{})
	err = m.worker.Observe(percolator.Observer{
		Name: "deployed", Table: deployedTable, Column: deployedInput,
		Func: func(_ context.Context, tx *percolator.Txn, c percolator.Cell) error {
			return tx.Set(percolator.Cell{Table: c.Table, Row: c.Row, Column: deployedResult}, strconv.AppendInt(nil, time.Now().UnixNano(), 10))
		},
	})
	if err != nil {
		return err
	}
	var running context.Context
	running, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	m.ended = make(chan error, 1)
	go func() { m.ended <- m.worker.Run(running) }()
	return nil
}

func (m *deployed) close() error {
	var err error
	if m.stop != nil {
		m.stop()
		err = <-m.ended
	}
	if m.db == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(err, m.db.Close(ctx))
}

// deployedState is what a process has done since its start.
type deployedState struct {
	Calls, Bytes int64 // messages to the server, and bytes both ways
	CPU          time.Duration
}

// doDeployed is a child that is ready when its worker begins, says with each line on its standard input how it is, and ends with
// the end of its input.
func (t *childTask) doDeployed(ctx context.Context, in *bufio.Reader) (err error) {
	m := &deployed{}
	defer func() { err = errors.Join(err, m.close()) }()
	if err := m.launch(ctx, t.URL); err != nil {
		return err
	}
	fmt.Println("ready")
	_, port := hostPort(t.URL)
	out := json.NewEncoder(os.Stdout)
	for {
		if _, err := in.ReadString('\n'); err != nil {
			return nil
		}
		did := ownTraffic(port).since(traffic{})
		if err := out.Encode(deployedState{Calls: int64(did.sent), Bytes: int64(did.bytes), CPU: processCPU()}); err != nil {
			return err
		}
	}
}

// publishDeployed makes the observer known, with a worker that is stopped again: from then on the caller makes changes alone.
func publishDeployed(ctx context.Context, url string) (*percolator.DB, error) {
	m := &deployed{}
	err := m.launch(ctx, url)
	if err == nil {
		err = m.worker.WaitIdle(ctx)
	}
	if err := errors.Join(err, m.close()); err != nil {
		return nil, err
	}
	return percolator.Open(ctx, url)
}

func idleWorkload(kind string) Workload {
	return Workload{
		Name: "workers-idle-" + kind, Group: "workers", About: "worker processes on " + kind + " with the default settings, and nothing to do",
		Goroutines: deployedMost, Rows: 2, Once: true,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := deployedURL(cfg, kind, "idle")
			once := &shared{}
			sides := []Side{&idle{url: u, n: 1, once: once}}
			if n := min(deployedMost, cfg.Goroutines); n > 1 {
				sides = append(sides, &idle{url: u, n: n, once: once})
			}
			return sides, err
		},
		Bars: func(all []Summary) []Bar {
			var bars []Bar
			for _, s := range all {
				bars = append(bars,
					atMost(s.Side+": calls to the server in a second, of each", s.Rate, 2, ""),
					atMost(s.Side+": bytes in a second, of each, both ways", s.Rate*s.Bytes/1e3, 2, "kB"),
				)
			}
			return bars
		},
		Notes: func(_ Config, all []Summary) []string {
			var notes []string
			for _, s := range all {
				notes = append(notes, fmt.Sprintf("%s: in a second each makes %.2f calls of %.0f bytes, which cost it %.2f ms of CPU and the server %s.",
					s.Side, s.Rate, s.Bytes, s.Rate*s.CPU/1e3, known(s.Rate*s.ServerCPU, micros)))
			}
			return notes
		},
	}
}

// idle is some processes that have nothing to do.
type idle struct {
	url  string
	n    int
	once *shared // by all numbers of processes
}

func (s *idle) Name() string                      { return fmt.Sprintf("%d processes", s.n) }
func (s *idle) Peer() string                      { return "" }
func (s *idle) ServerURL() string                 { return s.url }
func (s *idle) SelfMetered()                      {}
func (s *idle) Op(context.Context, *Caller) error { panic("it is a Runner") }
func (s *idle) Close() error                      { return nil }

func (s *idle) Prepare(ctx context.Context, _ Config) error {
	if s.once.prepared {
		return nil
	}
	s.once.prepared = true
	db, err := publishDeployed(ctx, s.url)
	if err != nil {
		return err
	}
	return db.Close(ctx)
}

// Run implements Runner.
func (s *idle) Run(ctx context.Context, cfg Config, d time.Duration, _ int) (Sample, error) {
	all, err := startHelpers(ctx, s.n, childTask{Kind: "deployed", URL: s.url, Config: cfg})
	defer func() {
		for _, h := range all {
			h.kill()
		}
	}()
	if err != nil {
		return Sample{}, err
	}
	sleep(ctx, idleSettles*d)
	ask := func() (sum deployedState, err error) {
		for _, h := range all {
			one, err := askFor[deployedState](h)
			if err != nil {
				return sum, err
			}
			sum.Calls, sum.Bytes, sum.CPU = sum.Calls+one.Calls, sum.Bytes+one.Bytes, sum.CPU+one.CPU
		}
		return sum, nil
	}
	root := serverProcess(s.url)
	before, err := ask()
	if err != nil {
		return Sample{}, err
	}
	server, began := treeCPU(root), time.Now()
	sleep(ctx, max(idleLeast, idleFactor*d))
	took := time.Since(began).Seconds()
	after, err := ask()
	if err != nil {
		return Sample{}, err
	}
	calls := max(1, after.Calls-before.Calls)
	each := func(n float64) float64 { return n / float64(calls) }
	sample := Sample{
		Ops: calls, Rate: float64(calls) / took / float64(s.n), Trips: 1, Bytes: each(float64(after.Bytes - before.Bytes)),
		CPU: each(float64((after.CPU - before.CPU).Microseconds())), ServerCPU: -1,
	}
	if root != 0 {
		sample.ServerCPU = each(float64((treeCPU(root) - server).Microseconds()))
	}
	return sample, ctx.Err()
}

func killWorkload(kind string) Workload {
	return Workload{
		Name: "workers-kill-" + kind, Group: "workers", About: fmt.Sprintf("%d changes a second on %s, and processes with the default settings of which one is killed now and then", killRate, kind),
		Goroutines: 16, Rows: 2, Once: true,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := deployedURL(cfg, kind, "kill")
			return []Side{&killed{url: u, n: max(3, min(deployedMost, cfg.Goroutines))}}, err
		},
		Bars: func(all []Summary) []Bar {
			b := atMost("the changes of a killed process run, after its death at the latest", slices.Max(all[0].Takeover.Waited), 6, "s")
			if late := float64(killLate.Microseconds()); all[0].P50 > late {
				b.Reached, b.Unmeasured = false, fmt.Sprintf("half of all changes waited for %s and more, whoever died", micros(all[0].P50))
			}
			if b.Value == 0 {
				b.Reached, b.Unmeasured = false, "no change waited for any of the dead"
			}
			return []Bar{b}
		},
		Notes: func(_ Config, all []Summary) []string {
			t := all[0].Takeover
			var waited []string
			for _, w := range t.Waited {
				waited = append(waited, fmt.Sprintf("%.1f", w))
			}
			return []string{fmt.Sprintf("%s, of which one was killed %d times: the last change that waited ran %s s after that. In all %d changes waited for %v and more, and none was lost.",
				all[0].Side, len(waited), strings.Join(waited, ", "), t.Late, killLate)}
		},
	}
}

// Takeover is what became of the changes of processes that were killed.
type Takeover struct {
	Late int `json:"late"` // changes that waited for killLate or more
	// Waited is how long after each death the last change was called that waited, 0 if none did: then the process had no share.
	Waited []float64 `json:"waited_seconds"`
}

// killed is some processes of which one is killed now and then.
type killed struct {
	url       string
	n         int
	source    *percolator.DB
	committed []time.Time // of each change, by its number
}

func (s *killed) Name() string                      { return fmt.Sprintf("%d processes", s.n) }
func (s *killed) Peer() string                      { return "" }
func (s *killed) ServerURL() string                 { return s.url }
func (s *killed) SelfMetered()                      {}
func (s *killed) Op(context.Context, *Caller) error { panic("it is a Runner") }

func (s *killed) Prepare(ctx context.Context, _ Config) (err error) {
	s.source, err = publishDeployed(ctx, s.url)
	return err
}

func (s *killed) Close() error {
	if s.source == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.source.Close(ctx)
}

// Run implements Runner.
func (s *killed) Run(ctx context.Context, cfg Config, d time.Duration, _ int) (Sample, error) {
	rounds := min(killMost, max(1, int(d/(400*time.Millisecond))))
	task := childTask{Kind: "deployed", URL: s.url, Config: cfg}
	all, err := startHelpers(ctx, s.n, task)
	defer func() {
		for _, h := range all {
			h.kill()
		}
	}()
	if err != nil {
		return Sample{}, err
	}
	s.committed = make([]time.Time, int(killRate*(time.Duration(rounds)*killEvery).Seconds()))
	var making sync.WaitGroup
	var makingErr error
	making.Go(func() {
		makingErr = pace(ctx, cfg.Goroutines, int64(len(s.committed)), killRate, func(n int64, _ time.Time) error {
			err := s.source.Update(ctx, func(tx *percolator.Txn) error {
				return tx.Set(percolator.Cell{Table: deployedTable, Row: fleetRow(n, 0), Column: deployedInput}, value(n, cfg.ValueSize))
			})
			s.committed[n] = time.Now()
			return err
		})
	})
	defer making.Wait()
	random := rand.New(rand.NewPCG(cfg.Seed, 0))
	began := time.Now()
	var deaths []time.Time
	for round := range rounds {
		// At some moment between two signs of its life.
		sleep(ctx, time.Until(began.Add(time.Duration(round)*killEvery+killJoins+time.Duration(random.Int64N(int64(1500*time.Millisecond))))))
		deaths = append(deaths, time.Now())
		all[0].kill()
		all = all[1:]
		if round < rounds-1 {
			sleep(ctx, killMisses)
			h, err := startHelper(ctx, task)
			if err != nil {
				return Sample{}, err
			}
			all = append(all, h)
		}
	}
	making.Wait()
	if err := errors.Join(makingErr, ctx.Err()); err != nil {
		return Sample{}, err
	}
	return s.judge(ctx, deaths)
}

// judge waits until each change has run, and tells how long those of the dead waited.
func (s *killed) judge(ctx context.Context, deaths []time.Time) (Sample, error) {
	began := time.Now()
	for {
		took, ran := newLatencies(), int64(0)
		t := &Takeover{Waited: make([]float64, len(deaths))}
		err := s.source.View(ctx, func(tx *percolator.Txn) error {
			for row, err := range tx.Scan(ctx, percolator.Range{Table: deployedTable}) {
				if err != nil {
					return err
				}
				at, ok := row.Columns[deployedResult]
				if id, _ := ofRow(row.Key); ok {
					called, err := strconv.ParseInt(string(at), 10, 64)
					if err != nil {
						return err
					}
					ran++
					took.record(time.Unix(0, called).Sub(s.committed[id]))
					t.note(deaths, s.committed[id], time.Unix(0, called))
				}
			}
			return nil
		})
		switch {
		case err != nil:
			return Sample{}, err
		case ran >= int64(len(s.committed)):
			sample := Sample{Ops: ran, Rate: killRate, ServerCPU: -1, Bytes: -1, Trips: -1, Takeover: t}
			took.into(&sample)
			return sample, nil
		case time.Since(began) > crewPatience:
			return Sample{}, fmt.Errorf("%d of %d changes ran, and no more within %v", ran, len(s.committed), crewPatience)
		}
		sleep(ctx, time.Second)
	}
}

// note notes a change that may have waited for a process that died: it was committed before the death, or until killMisses after it.
func (t *Takeover) note(deaths []time.Time, committed, called time.Time) {
	if called.Sub(committed) < killLate {
		return
	}
	t.Late++
	for i, died := range deaths {
		if called.After(died) && committed.Before(died.Add(killMisses)) {
			t.Waited[i] = max(t.Waited[i], called.Sub(died).Seconds())
		}
	}
}
