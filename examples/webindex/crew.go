package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"sync"
	"time"
)

// The crew of a run with -processes: worker processes (child.go), which run the observers
// while this process loads. They tell it what they do through pipes. A process that ends is
// not replaced: the library gives its share of the changes to the others.

const (
	// mostProcesses is a bound for one machine: each process has connections of its own and
	// takes some ten megabytes. Further machines can run the same command.
	mostProcesses = 64
	// silence is after how long a process that says nothing is not waited for. Others have
	// taken its share over by then.
	silence = 10 * time.Second
	// stopWithin is when worker processes are killed that have not ended by themselves.
	stopWithin = 15 * time.Second
	// rateOver is the time that a rate is about.
	rateOver = 3 * time.Second
)

// crew is a run's worker processes. Its methods may be called concurrently.
type crew struct {
	screen *screen
	cancel context.CancelFunc // ends the processes
	wg     sync.WaitGroup     // a goroutine for each process

	mu      sync.Mutex
	all     []*process
	changed chan struct{} // closed when something has changed
	worked  time.Time     // when a process said last that it had called a function
}

// process is a worker process as its parent knows it. crew.mu guards it.
type process struct {
	number, pid int
	cmd         *exec.Cmd
	input       io.WriteCloser
	output      io.Reader
	last        message
	heard       time.Time // when that came
	ended       bool
	answered    uint64 // the calls of functions when it answered the last question
	samples     []sample
}

// sample is how many pages a process had done at some time.
type sample struct {
	at    time.Time
	pages uint64
}

// startCrew starts the worker processes. They end when ctx does.
func (s *settings) startCrew(ctx context.Context, sc *screen) (*crew, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("-processes: finding this program: %w", err)
	}
	told, err := json.Marshal(orders{Store: s.store, Config: s.config, Workers: s.workers, Every: s.every / 4})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &crew{screen: sc, cancel: cancel, changed: make(chan struct{})}
	for n := range s.processes {
		if err := c.start(ctx, n+1, program, string(told)); err != nil {
			c.stop()
			return nil, fmt.Errorf("starting worker process %d: %w", n+1, err)
		}
	}
	if !sc.live() {
		sc.print("%s\n", c.pids())
	}
	return c, nil
}

// start starts one process.
func (c *crew) start(ctx context.Context, number int, program, told string) error {
	p := &process{number: number, cmd: exec.CommandContext(ctx, program), heard: time.Now()} //nolint:gosec // this program
	p.cmd.Env = append(os.Environ(), childVariable+"="+told)
	p.cmd.Stderr = &prefixed{to: c.screen, prefix: fmt.Sprintf("process %d: ", number)}
	var err error
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	if p.output, err = p.cmd.StdoutPipe(); err != nil {
		return err
	}
	p.cmd.Cancel, p.cmd.WaitDelay = p.input.Close, stopWithin
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.pid, p.last.State = p.cmd.Process.Pid, stateStarting
	c.mu.Lock()
	c.all = append(c.all, p)
	c.mu.Unlock()
	c.wg.Go(func() { c.follow(ctx, p) })
	return nil
}

// follow reads a process's messages until it has ended.
func (c *crew) follow(ctx context.Context, p *process) {
	lines := bufio.NewReader(p.output)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var m message
		if json.Unmarshal(line, &m) != nil {
			_, _ = fmt.Fprintf(c.screen, "process %d: %s", p.number, line) // something that was left in it
			continue
		}
		c.change(func() {
			now := time.Now()
			if m.Calls > p.last.Calls {
				c.worked = now
			}
			p.take(m, now)
		})
	}
	err := p.cmd.Wait()
	c.change(func() {
		p.ended = true
		if p.last.Why == "" && err != nil {
			p.last.Why = err.Error()
		}
		if p.last.Why == "" {
			p.last.Why = "it was told to end, by somebody else"
		}
		if ctx.Err() == nil {
			_, _ = fmt.Fprintf(c.screen, "process %d (%d) has ended: %s\n", p.number, p.pid, p.last.Why)
		}
	})
}

// take keeps a message. c.mu is held.
func (p *process) take(m message, now time.Time) {
	if m.Idle != p.last.Idle {
		p.answered = m.Calls
	}
	p.last, p.heard = m, now
	p.samples = append(p.samples, sample{now, m.Pages})
	for len(p.samples) > 2 && now.Sub(p.samples[1].at) >= rateOver {
		p.samples = p.samples[1:]
	}
}

// state is what the process is doing. c.mu is held.
func (p *process) state(now time.Time) processState {
	switch {
	case p.ended:
		return stateDead
	case now.Sub(p.heard) >= silence:
		return stateSilent
	default:
		return p.last.State
	}
}

// rate is how many pages a second it does at the moment. c.mu is held.
func (p *process) rate(now time.Time) float64 {
	if len(p.samples) == 0 || p.state(now) != stateRunning {
		return 0
	}
	first := p.samples[0]
	return float64(p.last.Pages-first.pages) / max(now.Sub(first.at).Seconds(), 0.001)
}

// change changes something, and tells those that wait for it.
func (c *crew) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// wait waits until all processes that it need not leave out are as asked. It fails if all
// have ended, because nobody would work.
func (c *crew) wait(ctx context.Context, as func(*process) bool) error {
	tick := time.NewTicker(time.Second) // silence changes nothing
	defer tick.Stop()
	for {
		c.mu.Lock()
		now, done, yet, dead := time.Now(), 0, 0, 0
		for _, p := range c.all {
			switch state := p.state(now); {
			case state == stateDead:
				dead++
			case as(p):
				done++
			case state != stateSilent:
				yet++
			}
		}
		changed, last := c.changed, c.all[len(c.all)-1]
		why := last.last.Why
		c.mu.Unlock()
		switch {
		case dead == len(c.all):
			return fmt.Errorf("all %d worker processes have ended (%d: %s); what is left to do stays in the store, and another run goes on", dead, last.number, why)
		case done > 0 && yet == 0:
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		case <-tick.C:
		}
	}
}

// ready waits until the processes run the observers.
func (c *crew) ready(ctx context.Context) error {
	return c.wait(ctx, func(p *process) bool { return p.last.State == stateRunning })
}

// waitIdle waits until nothing is left to do for the observers. A process cannot know what
// others are about to hand to it, so all are asked, again and again, until all give two
// answers in a row without a call of a function in between.
func (c *crew) waitIdle(ctx context.Context) error {
	var before map[int]uint64 // calls, by process
	for round := 1; ; round++ {
		c.mu.Lock()
		for _, p := range c.all {
			if s := p.state(time.Now()); s != stateDead && s != stateSilent {
				_, _ = fmt.Fprintf(p.input, question+"\n", round) // one that cannot be asked is about to end
			}
		}
		c.mu.Unlock()
		if err := c.wait(ctx, func(p *process) bool { return p.last.Idle == round }); err != nil {
			return err
		}
		now := map[int]uint64{}
		c.mu.Lock()
		for _, p := range c.all {
			if p.last.Idle == round {
				now[p.number] = p.answered
			}
		}
		c.mu.Unlock()
		if maps.Equal(before, now) {
			return nil
		}
		before = now
	}
}

// stop ends all processes.
func (c *crew) stop() {
	c.cancel()
	c.wg.Wait()
}

// processReport is what a worker process has done.
type processReport struct {
	Process int          `json:"process"`
	PID     int          `json:"pid"`
	State   processState `json:"state"`
	Rate    float64      `json:"pages_per_second"`
	figures
}

// totals returns what each process has done, with its rate from the beginning of the work to
// the last call of a function.
func (c *crew) totals(began time.Time) []processReport {
	all := c.reports()
	c.mu.Lock()
	took := c.worked.Sub(began)
	c.mu.Unlock()
	for i := range all {
		all[i].Rate = float64(all[i].Pages) / max(took.Seconds(), 0.001)
	}
	return all
}

// reports returns what each process has done, with its rate at the moment.
func (c *crew) reports() []processReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	all := make([]processReport, len(c.all))
	for i, p := range c.all {
		all[i] = processReport{Process: p.number, PID: p.pid, State: p.state(now), Rate: p.rate(now), figures: p.last.figures}
	}
	return all
}

// prefixed is a process's standard error: its lines, with its name before each.
type prefixed struct {
	to     io.Writer
	prefix string
	part   []byte // of a line
}

func (w *prefixed) Write(b []byte) (int, error) {
	w.part = append(w.part, b...)
	for {
		line, rest, found := bytes.Cut(w.part, []byte("\n"))
		if !found && len(line) < 64<<10 {
			return len(b), nil
		}
		if _, err := fmt.Fprintf(w.to, "%s%s\n", w.prefix, line); err != nil {
			return 0, err
		}
		w.part = rest
	}
}
