package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// config is what the flags say.
type config struct {
	Backend   backend       `json:"backend"`
	Duration  time.Duration `json:"duration_ns"`
	Seed      uint64        `json:"seed"`
	Faults    string        `json:"faults"`
	Workloads string        `json:"workloads"`
	Clients   int           `json:"clients"`
	Workers   int           `json:"workers"`
	Crew      int           `json:"crew"`
	Threads   int           `json:"threads"`
	Rate      float64       `json:"rate"`
	MinRate   float64       `json:"min_rate"`
	MinFaults int           `json:"min_faults"`
	Lossy     bool          `json:"lossy,omitempty"`
	Dir       string        `json:"-"`
}

// run is one run of the program.
type run struct {
	config
	out      io.Writer
	chosen   []workload
	faults   []fault
	wrong    bool // clocks of processes may be wrong
	servers  *servers
	slots    []*slot
	dir      string // of the logs
	began    int64
	launched int

	mu     sync.Mutex
	rng    *rand.Rand // of processes
	report *report
}

// slot is the place of a process, which processes fill one after another.
type slot struct {
	name   string
	config childConfig
	stderr string // path

	mu    sync.Mutex
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}
	// expected says that the process was told to end, or killed. Its standard input
	// is closed when it has ended.
	expected bool
	status   error
	borrowed bool // by a fault of the crew; of run.mu
}

func (r *run) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "%6.1fs  %s\n", time.Duration(monotonic()-r.began).Seconds(), fmt.Sprintf(format, args...))
}

func (r *run) noteFault(name string, took time.Duration, err error) {
	r.mu.Lock()
	f := r.report.fault(name)
	if err == nil {
		f.Fired++
	} else {
		f.Misfired++
	}
	r.mu.Unlock()
	if err != nil {
		r.say("%s: did not work: %v", name, err)
		return
	}
	r.say("%s (%v)", name, took.Round(time.Millisecond))
}

// violation notes something that must not happen.
func (r *run) violation(format string, args ...any) {
	r.mu.Lock()
	r.report.Violations = append(r.report.Violations, fmt.Sprintf(format, args...))
	r.mu.Unlock()
	r.say("VIOLATION: "+format, args...)
}

// launch starts a process in a slot.
func (r *run) launch(s *slot) error {
	r.mu.Lock()
	r.launched++
	c := s.config
	c.Name = fmt.Sprintf("%s-%d", s.name, r.launched)
	c.Seed = r.rng.Uint64()
	if r.wrong && r.rng.IntN(3) > 0 {
		c.WrongClock = time.Duration(r.rng.Int64N(int64(24*time.Hour))) - 12*time.Hour
		r.report.fault(faultWrongClock).Fired++
	}
	c.Commits = []string{"", "", "two-phase", "groups"}[r.rng.IntN(4)]
	r.mu.Unlock()
	encoded, err := json.Marshal(c)
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	s.stderr = filepath.Join(r.dir, c.Name+".stderr")
	stderr, err := os.Create(s.stderr)
	if err != nil {
		return err
	}
	defer stderr.Close()
	cmd := exec.Command(program) //nolint:gosec // this program itself
	cmd.Env = append(os.Environ(), childVariable+"="+string(encoded))
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting the process %s: %w", c.Name, err)
	}
	ended := make(chan struct{})
	s.mu.Lock()
	s.cmd, s.stdin, s.ended, s.expected = cmd, stdin, ended, false
	s.mu.Unlock()
	go func() {
		err := cmd.Wait()
		s.mu.Lock()
		s.status = err
		expected := s.expected
		s.mu.Unlock()
		if !expected {
			r.violation("the process %s ended by itself: %v; its last words: %s", c.Name, err, tail(filepath.Join(r.dir, c.Name+".stderr")))
		}
		close(ended)
	}()
	return nil
}

func tail(path string) string {
	b, err := os.ReadFile(path) //nolint:gosec // of the run's own directory
	if err != nil {
		return err.Error()
	}
	const most = 4000
	return string(b[max(0, len(b)-most):])
}

func (s *slot) signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sig == syscall.SIGKILL {
		s.expected = true
	}
	return s.cmd.Process.Signal(sig)
}

// kill ends the process with SIGKILL and returns when it is gone.
func (s *slot) kill() error {
	if err := s.signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.ended
	return nil
}

func (s *slot) pause() error  { return s.signal(syscall.SIGSTOP) }
func (s *slot) resume() error { return s.signal(syscall.SIGCONT) }

// tell sends the process a command.
func (s *slot) tell(command string) error {
	s.mu.Lock()
	in := s.stdin
	s.mu.Unlock()
	_, err := io.WriteString(in, command+"\n")
	return err
}

// endTimeout is far above what a process needs to finish what it began.
const endTimeout = 90 * time.Second

// end tells the process to end, and waits. One that does not end is a violation: it
// writes the stacks of its goroutines and is killed.
func (r *run) end(s *slot) error {
	s.mu.Lock()
	s.expected = true
	name := s.cmd.Path
	s.mu.Unlock()
	if err := s.stdin.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("telling %s to end: %w", name, err)
	}
	select {
	case <-s.ended:
	case <-time.After(endTimeout):
		r.violation("a process of %s does not end; its stacks are in %s", s.name, s.stderr)
		_ = s.signal(syscall.SIGQUIT)
		select {
		case <-s.ended:
		case <-time.After(5 * time.Second):
			return s.kill()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status != nil {
		return fmt.Errorf("a process of %s ended with %w: %s", s.name, s.status, tail(s.stderr))
	}
	return nil
}

// execute does the whole run.
func (r *run) execute(ctx context.Context) (err error) {
	r.began = monotonic()
	r.rng = rand.New(rand.NewPCG(r.Seed, 1))
	if err := r.choose(); err != nil {
		return err
	}
	r.say("seed %d; %s for %v; logs in %s", r.Seed, r.Backend, r.Duration, r.dir)
	if r.servers, err = startServers(ctx, r.Backend, r.Dir, r.Lossy); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.servers.close()) }()
	r.report.Servers = r.servers.from()
	r.say("servers: %s", r.report.Servers)

	if err := r.prepare(ctx); err != nil {
		return fmt.Errorf("preparing: %w", err)
	}
	if err := r.makeSlots(); err != nil {
		return err
	}
	defer func() {
		for _, s := range r.slots {
			if s.ended != nil {
				_ = s.kill()
			}
		}
	}()
	for _, s := range r.slots {
		if err := r.launch(s); err != nil {
			return err
		}
	}
	if err := r.harmEnough(ctx); err != nil {
		return err
	}
	r.say("the time is up; ending the processes")
	r.heal()
	r.endAll(notInCrew)
	if err := r.askCrew(ctx); err != nil {
		r.violation("%v", err)
	}
	if err := r.settleCrew(ctx); err != nil {
		r.violation("%v", err)
	}
	r.endAll(inCrew)
	final, err := r.finish(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		r.violation("the final reads: %v", err)
		final = nil
	}
	h, err := readHistory(r.dir)
	if err != nil {
		return err
	}
	r.say("judging %d transactions", len(h.Txns))
	r.judge(h, final)
	return nil
}

// mostRounds is how many times its duration a run may take, where a machine is too slow
// for work that proves something.
const mostRounds = 3

// harmEnough lets faults fire for the duration of the run, and again while that was too
// little to prove anything.
func (r *run) harmEnough(ctx context.Context) error {
	started := time.Now()
	for n := range uint64(mostRounds) {
		timed, cancel := context.WithTimeout(ctx, r.Duration)
		r.harmAll(timed, n)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		h, err := readHistory(r.dir)
		if err != nil {
			return err
		}
		so := newReport(r.config)
		so.Faults = r.report.Faults
		so.count(h)
		lacks := r.lacks(so)
		if len(lacks) == 0 {
			break
		}
		r.say("after %v: %s", time.Since(started).Round(time.Second), strings.Join(lacks, "; "))
	}
	r.report.Lasted = time.Since(started)
	return nil
}

// harmAll fires faults of all lanes until the context ends. Each round has faults of its own.
func (r *run) harmAll(ctx context.Context, round uint64) {
	var wg sync.WaitGroup
	for l := range lanes {
		wg.Go(func() { r.harm(ctx, l, rand.New(rand.NewPCG(r.Seed, 1000*round+100+uint64(l)))) })
	}
	if r.Crew > 1 && !r.Backend.embedded() { // two of the crew come and go at once
		wg.Go(func() { r.harm(ctx, laneCrew, rand.New(rand.NewPCG(r.Seed, 1000*round+200))) })
	}
	<-ctx.Done()
	wg.Wait()
}

// choose finds the workloads and the faults that the flags name, and makes the directory
// of the logs.
func (r *run) choose() (err error) {
	if r.chosen, err = chooseWorkloads(r.Workloads); err != nil {
		return err
	}
	if r.faults, r.wrong, err = chooseFaults(r.Faults, r.Backend, r.Lossy); err != nil {
		return err
	}
	for _, f := range r.faults {
		r.report.fault(f.name)
	}
	r.dir = filepath.Join(r.Dir, "logs")
	return os.MkdirAll(r.dir, 0o750)
}

// endAll ends processes, and notes those that do not end well.
func (r *run) endAll(which func(*slot) bool) {
	var ends sync.WaitGroup
	for _, s := range r.slots {
		if !which(s) {
			continue
		}
		ends.Go(func() {
			if err := r.end(s); err != nil {
				r.violation("%v", err)
			}
		})
	}
	ends.Wait()
}

// makeSlots says which processes there are. The owner of an embedded store does
// everything.
func (r *run) makeSlots() error {
	crew := r.Crew
	if !has(r.chosen, relayName) {
		crew = 0
	}
	add := func(name string, threads int, worker bool, crew int) error {
		urls, err := r.servers.urlsFor(name)
		if err != nil {
			return err
		}
		r.slots = append(r.slots, &slot{name: name, config: childConfig{
			Dir: r.dir, URLs: urls, Threads: threads, Worker: worker, Workloads: r.Workloads, Began: r.began,
			Crew: crew, Stays: r.Backend.embedded(),
			Pace: time.Duration(float64(time.Second) * float64(r.Clients*r.Threads) / r.Rate),
		}})
		return nil
	}
	if r.Backend.embedded() {
		return add("owner", r.Clients*r.Threads, true, crew)
	}
	var errs []error
	for i := range r.Clients {
		errs = append(errs, add(fmt.Sprintf("client%d", i), r.Threads, false, 0))
	}
	for i := range r.Workers {
		errs = append(errs, add(fmt.Sprintf("worker%d", i), 0, true, 0))
	}
	for i := range crew {
		errs = append(errs, add(fmt.Sprintf("crew%d", i), 0, false, 1))
		r.slots[len(r.slots)-1].config.CrewSet = i
	}
	return errors.Join(errs...)
}

// heal undoes what a fault that went wrong may have left.
func (r *run) heal() {
	for _, n := range r.servers.nodes {
		// Both fail where there is nothing to undo.
		_ = n.Resume()
		_ = n.Start()
	}
	for _, p := range r.servers.net.proxies {
		p.Toxics.ResetToxics(context.Background())
		_ = p.mend() // it fails where it is mended
	}
	for _, s := range r.slots {
		_ = s.resume()
	}
}

// openDirect opens the database past the proxies.
func (r *run) openDirect(ctx context.Context, name string) (*process, error) {
	journal, err := openJournal(filepath.Join(r.dir, name+logSuffix))
	if err != nil {
		return nil, err
	}
	stderr, err := os.Create(filepath.Join(r.dir, name+".stderr")) //nolint:gosec // of the run's own directory
	if err != nil {
		return nil, err
	}
	p := &process{childConfig: childConfig{Name: name, URLs: r.servers.directURLs(), Seed: r.rng.Uint64()}, log: journal, chosen: r.chosen}
	p.db, err = openDB(ctx, &p.childConfig, slog.New(slog.NewTextHandler(stderr, nil)))
	return p, err
}

func (p *process) close(ctx context.Context) error {
	err := p.db.Close(ctx)
	stats := p.db.Stats()
	p.log.write(line{Kind: lineStats, Stats: &stats})
	return errors.Join(err, p.log.close())
}

// setupProcess is the name of this process in the history of its preparations.
const setupProcess = "setup"

// prepare writes the data that the workloads start from, and registers the observers.
func (r *run) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	p, err := r.openDirect(ctx, setupProcess)
	if err != nil {
		return err
	}
	s := p.newThread(0)
	for _, w := range r.chosen {
		if w.setup == nil {
			continue
		}
		// A transaction that ends undetermined because it had little time is settled, and
		// may have committed.
		err := eventually(ctx, func() error { return w.setup(ctx, s) })
		if err != nil {
			return errors.Join(err, p.close(ctx))
		}
	}
	known := allObservers(p.log, r.chosen)
	if len(known) > 0 {
		w, err := workerOf(p.db, workerConfig(), known)
		if err != nil {
			return err
		}
		working, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- w.Run(working) }()
		err = eventually(ctx, func() error {
			infos, err := p.db.Observers(ctx)
			if err == nil && len(infos) < len(known) {
				err = errors.New("the observers are not registered")
			}
			return err
		})
		stop()
		if err := errors.Join(err, <-done); err != nil {
			return err
		}
	}
	return p.close(ctx)
}
