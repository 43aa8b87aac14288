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
	Kind   string // transfer, worker, fleet, waiting, deployed, listeners, counters, exporter
	URL    string
	Config Config
	Repeat int
	Depth  int           // worker: of the chain; listeners: how many connections
	How    string        // transfer, fleet: the system; waiting, counters: the way; exporter: the URL of the sink
	Takes  time.Duration // fleet: how long the function sleeps
	From   int64         // fleet: the number of the first change that counts; exporter: of the process
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
		s, err := joiners[t.How](ctx, t.URL, t.Config)
		if err != nil {
			return err
		}
		// Programs run for days: how long it takes to make connections, and their plans, is not what is measured.
		if warm := t.Config; warm.Warmup > 0 {
			warm.skewed = newSkew(warm.Skew)
			if _, err := loop(ctx, s, warm, warm.Warmup, t.Repeat); err != nil {
				return errors.Join(err, s.Close())
			}
		}
		return t.loopAndTell(ctx, s, wait)
	case "worker":
		handled := newProgress()
		s := &observerChain{url: t.URL}
		err := s.launch(ctx, t.Depth, t.Config.ValueSize, func(int64) { handled.add(1) })
		if err == nil {
			fmt.Println("ready") // before anything else
			stop := say(&handled, reportEvery)
			_, err = in.ReadString('\n') // it works until it is told to end
			stop()
		}
		return errors.Join(err, s.close())
	case "fleet":
		return t.doFleet(ctx, in, wait)
	case "waiting":
		return t.doWaiting(ctx, in, wait)
	case "deployed":
		return t.doDeployed(ctx, in)
	case "listeners":
		return t.doListeners(ctx, in)
	case "counters":
		return t.doCounters(ctx, wait)
	case "exporter":
		return t.doExporter(ctx, wait, func() error {
			_, err := in.ReadString('\n')
			return err
		})
	}
	return fmt.Errorf("no task %q", t.Kind)
}

// loopAndTell calls a side that is open, and says what came of it.
func (t *childTask) loopAndTell(ctx context.Context, s Side, wait func() error) error {
	t.Config.skewed = newSkew(t.Config.Skew)
	if err := wait(); err != nil {
		return errors.Join(err, s.Close())
	}
	cpu := processCPU()
	sample, err := loop(ctx, s, t.Config, t.Config.Duration, t.Repeat)
	if err == nil {
		sample.CPU = float64((processCPU() - cpu).Nanoseconds()) / 1e3 / float64(sample.Ops)
		err = json.NewEncoder(os.Stdout).Encode(sample)
	}
	return errors.Join(err, s.Close())
}

// progress is a number that grows. Whoever follows it is woken only if it grew.
type progress struct {
	n    *atomic.Int64
	grew chan struct{}
}

func newProgress() progress { return progress{n: new(atomic.Int64), grew: make(chan struct{}, 1)} }

func (p *progress) add(n int64) {
	p.n.Add(n)
	select {
	case p.grew <- struct{}{}:
	default:
	}
}

// say prints how far something is, each time that it grew but not more often than that, until
// the function that it returns is called. A process that does nothing says nothing: what it
// costs is measured.
func say(p *progress, every time.Duration) (stop func()) {
	stopped := make(chan struct{})
	var saying sync.WaitGroup
	saying.Go(func() {
		for {
			select {
			case <-stopped:
				return
			case <-p.grew:
				fmt.Println(p.n.Load())
			}
			select {
			case <-stopped:
				return
			case <-time.After(every):
			}
		}
	})
	return sync.OnceFunc(func() {
		close(stopped)
		saying.Wait()
	})
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
