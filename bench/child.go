package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

// childVariable holds, in the environment of a process that this program started
// to do part of a workload, what it is to do.
const childVariable = "PERCOLATOR_BENCH_CHILD"

// childTask is what a child does.
type childTask struct {
	Kind   string // transfer, worker, fleet, waiting
	URL    string
	Config Config
	Repeat int
	Depth  int           // worker: of the chain
	How    string        // fleet: the system; waiting: the way
	Takes  time.Duration // fleet: how long the function sleeps
}

// reportEvery is how often a worker says how much it has handled.
const reportEvery = 50 * time.Millisecond

// child tells whether this process was started by another one of this program to
// do part of its work, and does it.
func child() bool {
	text := os.Getenv(childVariable)
	if text == "" {
		return false
	}
	var task childTask
	err := json.Unmarshal([]byte(text), &task)
	if err == nil {
		err = task.do(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench child:", err)
		os.Exit(1)
	}
	return true
}

// do says "ready" on standard output, waits for a line on standard input, works,
// and says what it did in a line of JSON.
func (t *childTask) do(ctx context.Context) error {
	in := bufio.NewReader(os.Stdin)
	wait := func() error {
		fmt.Println("ready")
		_, err := in.ReadString('\n')
		return err
	}
	switch t.Kind {
	case "transfer":
		s := &transfer{rows: t.Config.Rows, size: t.Config.ValueSize}
		if err := s.open(ctx, t.URL); err != nil {
			return err
		}
		if err := wait(); err != nil {
			return errors.Join(err, s.Close())
		}
		t.Config.skewed = newSkew(t.Config.Skew)
		cpu := processCPU()
		sample, err := loop(ctx, s, t.Config, t.Config.Duration, t.Repeat)
		if err == nil {
			sample.CPU = float64((processCPU() - cpu).Nanoseconds()) / 1e3 / float64(sample.Ops)
			err = json.NewEncoder(os.Stdout).Encode(sample)
		}
		return errors.Join(err, s.Close())
	case "worker":
		var handled atomic.Int64
		s := &observerChain{url: t.URL}
		err := s.start(ctx, t.Depth, t.Config.ValueSize, func(int64) { handled.Add(1) })
		if err == nil {
			stop := say(&handled, reportEvery)
			err = wait() // it works until it is told to end
			stop()
		}
		return errors.Join(err, s.close())
	case "fleet":
		return t.doFleet(ctx, in, wait)
	case "waiting":
		return t.doWaiting(ctx, in, wait)
	}
	return fmt.Errorf("no task %q", t.Kind)
}

// say prints a number again and again, until the function that it returns is called.
func say(n *atomic.Int64, every time.Duration) (stop func()) {
	stopped := make(chan struct{})
	var saying sync.WaitGroup
	saying.Go(func() {
		for {
			select {
			case <-stopped:
				return
			case <-time.After(every):
				fmt.Println(n.Load())
			}
		}
	})
	return func() {
		close(stopped)
		saying.Wait()
	}
}

// helper is a child process.
type helper struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startHelper starts a child and waits until it is ready.
func startHelper(ctx context.Context, t childTask) (*helper, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self) // #nosec G204 -- this very program
	cmd.Env = append(os.Environ(), childVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	h := &helper{cmd: cmd}
	if h.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	h.out = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := h.out.ReadString('\n')
	if err != nil || line != "ready\n" {
		h.kill()
		return nil, fmt.Errorf("a child process said %q: %w", line, errors.Join(err, errors.New("not ready")))
	}
	return h, nil
}

// tell lets the child go on: to work, or to end.
func (h *helper) tell() error {
	_, err := io.WriteString(h.in, "go\n")
	return err
}

func (h *helper) wait() error { return h.cmd.Wait() }

func (h *helper) kill() {
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait() // it says that it was killed
}

// processes is transfers by several processes.
type processes struct {
	url    string
	n      int
	filled *shared
}

func (s *processes) Name() string                      { return fmt.Sprintf("%d processes", s.n) }
func (s *processes) Peer() string                      { return "" }
func (s *processes) ServerURL() string                 { return s.url }
func (s *processes) Op(context.Context, *Caller) error { panic("it is a Runner") }
func (s *processes) Close() error                      { return nil }

func (s *processes) Prepare(ctx context.Context, cfg Config) error {
	if s.filled.prepared {
		return nil
	}
	s.filled.prepared = true
	t := &transfer{url: s.url}
	return errors.Join(t.Prepare(ctx, cfg), t.Close())
}

// Run implements Runner.
func (s *processes) Run(ctx context.Context, cfg Config, d time.Duration, repeat int) (Sample, error) {
	var children []*helper
	defer func() {
		for _, h := range children {
			h.kill()
		}
	}()
	for i := range s.n {
		c := cfg
		c.Duration = d
		c.Goroutines = max(1, cfg.Goroutines/s.n)
		c.Seed += uint64(i) << 20
		h, err := startHelper(ctx, childTask{Kind: "transfer", URL: s.url, Config: c, Repeat: repeat})
		if err != nil {
			return Sample{}, err
		}
		children = append(children, h)
	}
	var wg sync.WaitGroup
	samples, errs := make([]Sample, s.n), make([]error, s.n)
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
		sum.P50 += x.P50 / float64(s.n)
		sum.P99 += x.P99 / float64(s.n)
	}
	sum.CPU /= float64(max(1, sum.Ops))
	return sum, nil
}
