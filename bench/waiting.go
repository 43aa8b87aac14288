package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Cells that wait cost nothing, or should. Very many cells of a table wait for an observer,
// and another observer of the same table has changes to handle. Beside its latency
// stand what the worker process costs when nothing comes, its memory, and what a second
// process costs that joins and leaves.

const (
	waitingTable = "waiting"
	// waitingStuck is the column whose cells wait, and waitingInput that of the changes.
	waitingStuck  = "stuck"
	waitingInput  = "input"
	waitingResult = "result"
	// waitingRate is how many changes come in a second.
	waitingRate = 200
	// waitingFactor makes each phase of a run so many times as long as the duration: a worker
	// looks at all that waits once a minute at least.
	waitingFactor = 40
	// waitingSettles bounds how long a worker gets to see all that is to wait.
	waitingSettles = 30 * time.Minute
)

// The ways in which cells wait.
const (
	waitNothing = "nothing waits"
	waitBackoff = "wait after a failure"
	waitAbsent  = "wait for an observer that nobody runs"
	waitParked  = "are parked, and wait for an observer that nobody runs"
)

// waitingWorkload measures n cells that wait, or as many as -rows says.
func waitingWorkload(kind string, n int) Workload {
	return Workload{
		Name: "workers-waiting-" + kind, Group: "workers", About: fmt.Sprintf("%d changes a second on %s, beside very many cells that wait for another observer", waitingRate, kind),
		Goroutines: 16, Rows: n, Once: true,
		Sides: func(cfg Config) ([]Side, error) {
			var sides []Side
			for i, how := range []string{waitNothing, waitBackoff, waitAbsent, waitParked} {
				u, err := space(cfg, kind, fmt.Sprintf("waiting%d", i))
				if err != nil {
					return nil, err
				}
				if kind == "postgres" {
					u = with(u, "connect_timeout", "60", "pool_max_conns", "8")
				}
				sides = append(sides, &waiting{how: how, url: u})
			}
			return sides, nil
		},
		Bars: func(sums []Summary) []Bar {
			var bars []Bar
			for _, s := range sums[1:] {
				// The bars are for a million. What fewer cells cost says less, so the text has their number.
				cells := fmt.Sprintf("%.0f cells %s: ", s.Waiting.Cells, s.Side)
				bars = append(bars,
					atMostP99(cells+"p99 / without", s, sums[0], 2),
					atMost(cells+"memory of the worker, above that without", max(0, s.Waiting.Memory-sums[0].Waiting.Memory), 64, "MiB"),
					atMost(cells+"cells read in a handover, for each that waits", max(0, s.Waiting.HandoverReads)/s.Waiting.Cells, 0.01, ""),
				)
			}
			return bars
		},
		Notes: waitingNotes,
	}
}

func waitingNotes(_ Config, all []Summary) []string {
	var notes []string
	for _, s := range all {
		w := s.Waiting
		if w == nil {
			continue
		}
		notes = append(notes, fmt.Sprintf("%s (%.0f cells): p50 %s, p99 %s; memory %.0f MiB, of these heap %.0f MiB; at rest, in a second, %.1f ms of CPU of the worker and %.1f ms of the server, %.1f calls, %.1f cells found, %.1f cells read; "+
			"while a second process joins and leaves, p99 %s, CPU of both %.1f s and of the server %.1f s within %.0f s, %.0f cells found, %.0f cells read; the cells waited after %.0f s.",
			s.Side, w.Cells, micros(s.P50), micros(s.P99), w.Memory, w.Heap, w.RestCPU, w.RestServerCPU, w.RestCalls, w.RestFound, w.RestReads,
			micros(w.HandoverP99), w.HandoverCPU, w.HandoverServerCPU, w.HandoverSeconds, w.HandoverFound, w.HandoverReads, w.Settled))
	}
	return notes
}

// Waiting is what cells that wait cost.
type Waiting struct {
	Cells   float64 `json:"cells"`
	Settled float64 `json:"settled_seconds"` // until all waited
	Memory  float64 `json:"memory_mib"`      // resident, of one worker
	Heap    float64 `json:"heap_mib"`        // in use after a collection
	// In a second in which no change comes.
	RestCPU       float64 `json:"rest_cpu_ms"`
	RestServerCPU float64 `json:"rest_server_cpu_ms"` // -1 where it cannot be seen
	RestCalls     float64 `json:"rest_calls"`
	RestFound     float64 `json:"rest_found"`
	RestReads     float64 `json:"rest_reads"`
	// While a second process joins and leaves, beside the changes.
	HandoverSeconds   float64 `json:"handover_seconds"`
	HandoverP99       float64 `json:"handover_p99_us"`
	HandoverCPU       float64 `json:"handover_cpu_seconds"`
	HandoverServerCPU float64 `json:"handover_server_cpu_seconds"`
	HandoverFound     float64 `json:"handover_found"`
	HandoverReads     float64 `json:"handover_reads"`
}

// waitingState is what a child of these workloads says of itself, all since its start but Took,
// which is since it was asked last.
type waitingState struct {
	Stuck        int64 // calls of the function whose cells wait
	Done         int64 // changes that came and were handled
	Found, Reads int64
	Calls        int64 // messages to the server
	CPU          time.Duration
	Memory, Heap float64
	Took         []byte
}

// waitingMember runs the observers in a child.
type waitingMember struct {
	observerChain
	count *tally
	stuck *tally
}

// observers are those of a worker for which cells wait in one of the ways.
func (m *waitingMember) observers(how string) []percolator.Observer {
	all := []percolator.Observer{{
		Name: "live", Table: waitingTable, Column: waitingInput,
		Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			b, err := tx.Get(ctx, c)
			if err != nil {
				return err
			}
			return tx.Set(percolator.Cell{Table: c.Table, Row: c.Row, Column: waitingResult}, b)
		},
	}}
	if how == waitNothing {
		return all
	}
	o := percolator.Observer{
		Name: "stuck", Table: waitingTable, Column: waitingStuck, MaxAttempts: 1 << 30, Concurrency: 256,
		Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
			m.stuck.calls.Add(1)
			if how == waitAbsent {
				return nil
			}
			return errors.New("it always fails")
		},
	}
	if how == waitParked {
		o.MaxAttempts = 1
	}
	return append(all, o)
}

// open makes a worker that keeps what failed waiting for long.
func (m *waitingMember) open(ctx context.Context, url, how string) error {
	m.url = url
	m.count, m.stuck = newTally(0), newTally(0)
	store, err := rowstore.Open(ctx, url)
	if err != nil {
		return err
	}
	watching := &commitWatch{Store: store, table: waitingTable, column: waitingResult, committed: m.count.finished}
	m.db, err = percolator.New(ctx, watching, percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}), percolator.WithLogger(riverLog()))
	if err != nil {
		return errors.Join(err, store.Close())
	}
	m.worker = percolator.NewWorker(m.db, percolator.WorkerConfig{
		Concurrency: fleetConcurrency, GCInterval: -1, Backoff: percolator.Backoff{Min: 6 * time.Hour, Max: 6 * time.Hour},
		BreakAt: -1, // all cells are to fail and wait
	})
	for _, o := range m.observers(how) {
		if err := m.worker.Observe(o); err != nil {
			return err
		}
	}
	return nil
}

// state says what the process has done so far.
func (m *waitingMember) state(port int) (s waitingState, err error) {
	stats := m.db.Stats()
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	s = waitingState{
		Stuck: m.stuck.calls.Load(), Done: m.count.done.n.Load(), Found: int64(stats.NotifyFound), Reads: int64(stats.ObserverViews),
		Calls: int64(ownTraffic(port).since(traffic{}).sent), CPU: processCPU(),
		Memory: residentMiB(), Heap: float64(mem.HeapInuse) / (1 << 20),
	}
	m.count.mu.Lock()
	defer m.count.mu.Unlock()
	s.Took, err = m.count.took.h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	m.count.took = newLatencies()
	return s, err
}

// residentMiB is how much memory this process has, as the kernel counts it.
func residentMiB() float64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			if err == nil {
				return kib / 1024
			}
		}
	}
	return -1
}

// doWaiting is a child that starts its worker with the first line on its standard input, says
// how it is with each further one, and ends with the end of its input.
func (t *childTask) doWaiting(ctx context.Context, in *bufio.Reader, wait func() error) (err error) {
	m := &waitingMember{}
	defer func() { err = errors.Join(err, m.close()) }()
	if err := m.open(ctx, t.URL, t.How); err != nil {
		return err
	}
	if err := wait(); err != nil {
		return err
	}
	m.begin(ctx)
	_, port := hostPort(t.URL)
	out := json.NewEncoder(os.Stdout)
	for {
		if _, err := in.ReadString('\n'); err != nil {
			return nil
		}
		s, err := m.state(port)
		if err == nil {
			err = out.Encode(s)
		}
		if err != nil {
			return err
		}
	}
}

// waiting is one way of waiting.
type waiting struct {
	how, url string
	source   *percolator.DB
	size     int
	last     int64
}

func (s *waiting) Name() string                      { return s.how }
func (s *waiting) Peer() string                      { return "" }
func (s *waiting) ServerURL() string                 { return s.url }
func (s *waiting) SelfMetered()                      {}
func (s *waiting) Op(context.Context, *Caller) error { panic("it is a Runner") }

// Prepare makes the observers known, also the one that nobody runs, and makes the cells that
// will wait.
func (s *waiting) Prepare(ctx context.Context, cfg Config) error {
	s.size = cfg.ValueSize
	m := &waitingMember{}
	err := m.open(ctx, s.url, s.how)
	if err == nil && (s.how == waitAbsent || s.how == waitParked) {
		err = m.worker.Observe(percolator.Observer{
			Name: "nobody", Table: waitingTable, Column: waitingStuck,
			Func: func(context.Context, *percolator.Txn, percolator.Cell) error { return nil },
		})
	}
	if err == nil {
		m.begin(ctx)
		err = m.worker.WaitIdle(ctx)
	}
	if err := errors.Join(err, m.close()); err != nil {
		return err
	}
	if s.source, err = percolator.Open(ctx, s.url); err != nil || s.how == waitNothing {
		return err
	}
	return fillBy(ctx, 0, int64(cfg.Rows), func(ctx context.Context, from, n int64) error {
		return s.source.Update(ctx, func(tx *percolator.Txn) error {
			for id := from; id < from+n; id++ {
				if err := tx.Set(percolator.Cell{Table: waitingTable, Row: fleetRow(id, 0), Column: waitingStuck}, value(id, s.size)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func (s *waiting) Close() error {
	if s.source == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.source.Close(ctx)
}

// ask asks a child how it is.
func (h *helper) ask() (waitingState, error) { return askFor[waitingState](h) }

// askFor asks a child for its state, which is of that type.
func askFor[T any](h *helper) (s T, err error) {
	if err := h.tell(); err != nil {
		return s, err
	}
	line, err := h.out.ReadBytes('\n')
	if err != nil {
		return s, fmt.Errorf("a child process ended early: %w", err)
	}
	return s, json.Unmarshal(line, &s)
}

// finish lets a child end.
func (h *helper) finish() error { return errors.Join(h.in.Close(), h.wait()) }

// Run implements Runner.
func (s *waiting) Run(ctx context.Context, cfg Config, d time.Duration, _ int) (_ Sample, err error) {
	phase := waitingFactor * d
	w := &Waiting{}
	task := childTask{Kind: "waiting", How: s.how, URL: s.url}
	worker, err := startHelper(ctx, task)
	if err != nil {
		return Sample{}, err
	}
	defer worker.kill()
	began := time.Now()
	if err := worker.tell(); err != nil {
		return Sample{}, err
	}
	if s.how != waitNothing {
		w.Cells = float64(cfg.Rows)
		if err := settled(ctx, worker, int64(cfg.Rows)); err != nil {
			return Sample{}, err
		}
	}
	w.Settled = time.Since(began).Seconds()
	sleep(ctx, phase/4)
	root := serverProcess(s.url)
	if err := w.rest(ctx, worker, root, phase); err != nil {
		return Sample{}, err
	}
	sample, err := s.rated(ctx, cfg, worker, max(10, int64(waitingRate*phase.Seconds())))
	if err != nil {
		return Sample{}, err
	}
	sample.Waiting = w
	return sample, s.handover(ctx, cfg, worker, task, root, phase, w)
}

// waitingTries is how often the side that the others are compared with is measured, if its p99 says nothing of it.
const waitingTries = 3

// rated measures the latencies of n changes. Of a side in which cells wait, a p99 far above the median may be what they cost, so that
// is measured once.
func (s *waiting) rated(ctx context.Context, cfg Config, worker *helper, n int64) (sample Sample, err error) {
	for range waitingTries {
		if err := s.live(ctx, cfg, n); err != nil {
			return Sample{}, err
		}
		now, err := s.handled(ctx, worker, s.last)
		if err != nil {
			return Sample{}, err
		}
		sample = Sample{Ops: n, Rate: waitingRate}
		now.took.into(&sample)
		if s.how != waitNothing || !sample.stalled() {
			break
		}
	}
	return sample, nil
}

// rest measures a worker for whom no change comes.
func (w *Waiting) rest(ctx context.Context, worker *helper, root int, phase time.Duration) error {
	before, err := worker.ask()
	if err != nil {
		return err
	}
	server, began := treeCPU(root), time.Now()
	sleep(ctx, phase)
	after, err := worker.ask()
	if err != nil {
		return err
	}
	each := func(n float64) float64 { return n / time.Since(began).Seconds() }
	w.RestCPU = each(float64((after.CPU - before.CPU).Milliseconds()))
	w.RestServerCPU = -1
	if root != 0 {
		w.RestServerCPU = each(float64((treeCPU(root) - server).Milliseconds()))
	}
	w.RestCalls = each(float64(after.Calls - before.Calls))
	w.RestFound = each(float64(after.Found - before.Found))
	w.RestReads = each(float64(after.Reads - before.Reads))
	w.Memory, w.Heap = after.Memory, after.Heap
	return ctx.Err()
}

// handover lets a second process join and leave while changes come.
func (s *waiting) handover(ctx context.Context, cfg Config, worker *helper, task childTask, root int, phase time.Duration, w *Waiting) error {
	before, err := worker.ask()
	if err != nil {
		return err
	}
	server, began := treeCPU(root), time.Now()
	second, err := startHelper(ctx, task)
	if err != nil {
		return err
	}
	defer second.kill()
	var live sync.WaitGroup
	var liveErr error
	live.Go(func() { liveErr = s.live(ctx, cfg, max(10, int64(waitingRate*2*phase.Seconds()))) })
	defer live.Wait()
	if err := second.tell(); err != nil {
		return err
	}
	sleep(ctx, phase)
	left, err := second.ask()
	if err == nil {
		err = second.finish()
	}
	if err != nil {
		return err
	}
	live.Wait()
	if liveErr != nil {
		return liveErr
	}
	after, err := s.handled(ctx, worker, s.last-left.Done)
	if err != nil {
		return err
	}
	h, err := hdrhistogram.Decode(left.Took)
	if err != nil {
		return err
	}
	after.took.h.Merge(h)
	w.HandoverSeconds = time.Since(began).Seconds()
	w.HandoverP99 = float64(after.took.h.ValueAtQuantile(99)) / 1e3
	w.HandoverCPU = (after.CPU - before.CPU + left.CPU).Seconds()
	w.HandoverServerCPU = -1
	if root != 0 {
		w.HandoverServerCPU = (treeCPU(root) - server).Seconds()
	}
	w.HandoverFound = float64(after.Found - before.Found + left.Found)
	// A change that came is read once, before its function is called.
	w.HandoverReads = float64(after.Reads - before.Reads + left.Reads - (after.Done - before.Done) - left.Done)
	return nil
}

// live makes n changes at the rate.
func (s *waiting) live(ctx context.Context, cfg Config, n int64) error {
	from := s.last
	s.last += n
	return pace(ctx, cfg.Goroutines, n, waitingRate, func(id int64, due time.Time) error {
		return s.source.Update(ctx, func(tx *percolator.Txn) error {
			return tx.Set(percolator.Cell{Table: waitingTable, Row: fleetRow(from+id, due.UnixNano()), Column: waitingInput}, value(id, s.size))
		})
	})
}

// saidOf is a state with its latencies.
type saidOf struct {
	waitingState
	took latencies
}

// handled waits until a child has handled so many changes, about: those that a second process
// handles while it ends are not counted.
func (s *waiting) handled(ctx context.Context, h *helper, want int64) (said saidOf, err error) {
	said.took = newLatencies()
	before, since := int64(-1), time.Now()
	for {
		if said.waitingState, err = h.ask(); err != nil {
			return said, err
		}
		part, err := hdrhistogram.Decode(said.Took)
		if err != nil {
			return said, fmt.Errorf("latencies of a child process: %w", err)
		}
		said.took.h.Merge(part)
		switch {
		case said.Done >= want || said.Done >= want-want/20 && time.Since(since) > crewMeets:
			return said, nil
		case said.Done > before:
			before, since = said.Done, time.Now()
		case time.Since(since) > crewPatience:
			return said, fmt.Errorf("%d of %d changes were handled, and none more within %v", said.Done, want, crewPatience)
		}
		sleep(ctx, 100*time.Millisecond)
		if ctx.Err() != nil {
			return said, context.Cause(ctx)
		}
	}
}

// settled waits until a function was called for each cell that is to wait, and none is called
// any more.
func settled(ctx context.Context, h *helper, cells int64) error {
	before, since, began := int64(-1), time.Now(), time.Now()
	for {
		said, err := h.ask()
		switch {
		case err != nil:
			return err
		case said.Stuck != before:
			before, since = said.Stuck, time.Now()
		case said.Stuck >= cells && time.Since(since) >= crewMeets:
			return nil
		case time.Since(since) > crewPatience || time.Since(began) > waitingSettles:
			return fmt.Errorf("%d of %d cells wait, and no more within %v", said.Stuck, cells, time.Since(since))
		}
		sleep(ctx, 500*time.Millisecond)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// serverProcess is the first process of a server on this machine, 0 where it cannot be seen.
func serverProcess(url string) int {
	if host, port := hostPort(url); port != 0 && isLocal(host) {
		return listener(port)
	}
	return 0
}
