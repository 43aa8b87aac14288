package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
)

// redisConfig writes a configuration file for a name space of its own in Redis.
func redisConfig(t testing.TB) (path string) {
	t.Helper()
	dir := t.TempDir()
	prefix := fmt.Sprintf("webindex-%d", time.Now().UnixNano())
	writeFiles(t, dir, map[string]string{"percolator.yaml": fmt.Sprintf("stores:\n  main: {url: '%s?prefix=%s'}\nsettings: {catalog_lease: 1s}\n", testserver.Redis(t), prefix)})
	return filepath.Join(dir, "percolator.yaml")
}

// linked writes pages that link to each other.
func linked(t testing.TB, name string, n int) (dir string) {
	t.Helper()
	dir = t.TempDir()
	files := map[string]string{}
	for i := range n {
		files[fmt.Sprintf("p%d.html", i)] = fmt.Sprintf("<title>%s %d</title>lemur number%d of %s <a href=p%d.html>next</a> <a href=p%d.html>far</a>", name, i, i, name, (i+1)%n, i*7%n)
	}
	writeFiles(t, dir, files)
	return dir
}

// watched is a standard error whose lines a test looks at.
type watched struct {
	mu   sync.Mutex
	part string
	all  bytes.Buffer
	line func(string)
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(b)
	w.part += string(b)
	for {
		line, rest, ok := strings.Cut(w.part, "\n")
		if !ok {
			return len(b), nil
		}
		w.part = rest
		if w.line != nil {
			w.line(line)
		}
	}
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}

var (
	startedLine   = regexp.MustCompile(`^started \d+ worker processes: ([\d ]+)$`)
	functionsLine = regexp.MustCompile(` (\d+) functions run`)
)

// working calls f once, with the processes' ids, when their functions have run.
func working(f func(runs int, pids []int)) func(string) {
	var pids []int
	return func(line string) {
		if m := startedLine.FindStringSubmatch(line); m != nil {
			for field := range strings.FieldsSeq(m[1]) {
				pid, _ := strconv.Atoi(field)
				pids = append(pids, pid)
			}
		}
		if m := functionsLine.FindStringSubmatch(line); m != nil && f != nil {
			if runs, _ := strconv.Atoi(m[1]); runs > 20 {
				f(runs, pids)
				f = nil
			}
		}
	}
}

// oftenSaid is how often the tests hear of the processes.
const oftenSaid = 40 * time.Millisecond

// crewRun runs webindex with -processes, and says often what the processes do.
func crewRun(ctx context.Context, t testing.TB, stderr io.Writer, args ...string) (stdout string, err error) {
	t.Helper()
	s, err := parseFlags(args, stderr)
	require.NoError(t, err)
	s.every = oftenSaid
	var out bytes.Buffer
	err = s.execute(ctx, &out, stderr)
	return out.String(), err
}

func killed(t testing.TB, pid int) {
	p, err := os.FindProcess(pid)
	require.NoError(t, err)
	require.NoError(t, p.Kill())
}

// One of three processes is killed in the middle of the work: the others do all of it.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	const pages = 150
	config, dir := redisConfig(t), linked(t, "site", pages)
	var at int
	var victim int
	stderr := &watched{}
	stderr.line = working(func(runs int, pids []int) {
		at, victim = runs, pids[1]
		killed(t, victim)
	})
	stdout, err := crewRun(t.Context(), t, stderr, "-config", config, "-dir", dir, "-processes", "3", "-check", "-json")
	require.NoError(t, err, "%s", stderr)
	var r report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Equal(t, "ok", r.Check)
	require.Equal(t, pages, r.Pages)
	require.NotZero(t, at, "nobody was killed")
	require.Less(t, at, int(r.ObserverRuns)/2, "it was killed too late: nothing was left to do") //nolint:gosec // a count
	require.Len(t, r.Processes, 3)
	var runs, indexed int // of those that were left
	for i, p := range r.Processes {
		if i == 1 {
			require.Equal(t, victim, p.PID)
			require.Equal(t, stateDead, p.State)
			continue
		}
		require.Equal(t, stateRunning, p.State)
		// One that started late may find all work done.
		require.Equal(t, p.Pages > 0, p.Rate > 0)
		runs, indexed = runs+int(p.Runs), indexed+int(p.Pages) //nolint:gosec // counts
	}
	require.NotZero(t, runs)
	require.NotZero(t, indexed)
	sum := total(r.Processes)
	require.GreaterOrEqual(t, r.ObserverRuns, sum.Runs)
	require.Regexp(t, `process 2 \(\d+\) has ended: signal: killed`, stderr.String())
	require.Regexp(t, `\d+ s: indexing; [\d.]+ pages/s; \d+ functions run, \d+ conflicts, 1\.\d\d calls for each run; 2 running, 1 dead\n`, stderr.String())
	require.NotContains(t, stderr.String(), "\033[", "this is no terminal")

	// Nothing has changed since, and the table is in the text too.
	stdout, err = crewRun(t.Context(), t, stderr, "-config", config, "-dir", dir, "-processes", "2", "-check", "-query", "number7")
	require.NoError(t, err, "%s", stderr)
	require.Contains(t, stdout, "site 7")
	require.Contains(t, stderr.String(), fmt.Sprint(pages, " unchanged"))
	require.Regexp(t, `processes     2, beside this one: 2 running\n +process +pid +state .*\n +1 +\d+ +running +0 .*\n +2 +\d+ +running +0 .*\n +all `, stderr.String())
}

// Two runs at once on one database, each with its own pages: both find everything right.
func TestTwoParents(t *testing.T) {
	t.Parallel()
	const pages = 60
	config := redisConfig(t)
	var wg sync.WaitGroup
	for _, name := range []string{"okapi", "tapir"} {
		dir := linked(t, name, pages)
		wg.Go(func() {
			stderr := &watched{}
			stdout, err := crewRun(t.Context(), t, stderr, "-config", config, "-dir", dir, "-processes", "2", "-check", "-json", "-query", name)
			var r report
			if !errors.Is(err, nil) || json.Unmarshal([]byte(stdout), &r) != nil {
				t.Errorf("%s: %v: %s%s", name, err, stdout, stderr)
				return
			}
			if r.Check != "ok" || r.Added != pages || r.Removed != 0 || len(r.Results) == 0 {
				t.Errorf("%s: %s", name, stdout)
			}
		})
	}
	wg.Wait()
	r := runJSON(t, "-config", config, "-no-load")
	require.EqualValues(t, 2*pages, r["pages"])
}

// If all processes have ended, the run says so and ends.
func TestAllProcessesKilled(t *testing.T) {
	t.Parallel()
	config, dir := redisConfig(t), linked(t, "site", 150)
	stderr := &watched{}
	stderr.line = working(func(_ int, pids []int) {
		for _, pid := range pids {
			killed(t, pid)
		}
	})
	_, err := crewRun(t.Context(), t, stderr, "-config", config, "-dir", dir, "-processes", "2")
	require.ErrorContains(t, err, "all 2 worker processes have ended (2: signal: killed)")
}

// A process that cannot begin says why.
func TestProcessesThatCannotBegin(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &settings{store: "nosuch://x", workers: 1, processes: 2, every: oftenSaid}
	c, err := s.startCrew(t.Context(), newScreen(&out, time.Second))
	require.NoError(t, err)
	require.ErrorContains(t, c.ready(t.Context()), "all 2 worker processes have ended")
	c.stop()
	require.Contains(t, out.String(), "nosuch")
}

// fakes are processes without any behind them; each has the far end of its input.
func fakes(n int) (c *crew, inputs []*bufio.Scanner, stop func()) {
	c = &crew{screen: newScreen(io.Discard, time.Second), changed: make(chan struct{})}
	var ends []io.Closer
	for i := range n {
		r, w := io.Pipe()
		ends = append(ends, w)
		inputs = append(inputs, bufio.NewScanner(r))
		c.all = append(c.all, &process{number: i + 1, input: w, heard: time.Now(), last: message{State: stateRunning}})
	}
	return c, inputs, func() {
		for _, e := range ends {
			_ = e.Close()
		}
	}
}

// Who is waited for: neither the dead nor, after a while, those that say nothing.
func TestWhoIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _, stop := fakes(3)
		defer stop()
		c.all[0].ended = true
		c.all[1].last.State = stateStarting
		began := time.Now()
		go func() {
			for range 60 { // one of them speaks
				time.Sleep(500 * time.Millisecond)
				c.change(func() { c.all[2].take(c.all[2].last, time.Now()) })
			}
		}()
		require.NoError(t, c.ready(t.Context()))
		require.Equal(t, silence, time.Since(began))
		c.mu.Lock()
		require.Equal(t, stateDead, c.all[0].state(time.Now()))
		require.Equal(t, stateSilent, c.all[1].state(time.Now()))
		require.Equal(t, stateRunning, c.all[2].state(time.Now()))
		c.mu.Unlock()
		c.change(func() { c.all[1].ended, c.all[2].ended = true, true })
		require.ErrorContains(t, c.ready(t.Context()), "all 3 worker processes have ended")

		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		c.change(func() { c.all[1].ended = false })
		require.ErrorIs(t, c.ready(ctx), context.DeadlineExceeded, "the only one that is left says nothing")
	})
}

// Nothing is left when all have said so twice, and none has called a function in between.
func TestQuestions(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		calls  [2][]uint64 // of each process, when it gives each of its answers
		dies   int         // the round in which the second one dies, if not 0
		rounds int
	}{
		"quiet":        {[2][]uint64{{5, 5}, {7, 7}}, 0, 2},
		"one works":    {[2][]uint64{{5, 5, 5}, {7, 8, 8}}, 0, 3},
		"in turn":      {[2][]uint64{{5, 5, 6, 6}, {7, 8, 8, 8}}, 0, 4},
		"one dies":     {[2][]uint64{{5, 5, 5}, {7}}, 2, 3},
		"dies at once": {[2][]uint64{{5, 5}, nil}, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, inputs, stop := fakes(2)
				rounds := make([]int, 2)
				for i, in := range inputs {
					go func() {
						for in.Scan() {
							var n int
							_, err := fmt.Sscanf(in.Text(), question, &n)
							if err != nil || n != rounds[i]+1 {
								t.Errorf("question %q after %d: %v", in.Text(), rounds[i], err)
								return
							}
							rounds[i] = n
							time.Sleep(time.Duration(i+1) * time.Second)
							c.change(func() {
								p := c.all[i]
								if i == 1 && n == x.dies {
									p.ended = true
									return
								}
								m := p.last
								m.Idle, m.Calls = n, x.calls[i][n-1]
								p.take(m, time.Now())
							})
						}
					}()
				}
				require.NoError(t, c.waitIdle(t.Context()))
				require.Equal(t, x.rounds, rounds[0])
				stop()
				synctest.Wait()
			})
		})
	}
}

// What a process writes to its standard error comes with its name, in whole lines.
func TestPrefixed(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := &prefixed{to: &out, prefix: "process 3: "}
	for _, s := range []string{"a", "b\nc\nd", "", "\n\n", strings.Repeat("x", 64<<10), "y\n"} {
		n, err := io.WriteString(w, s)
		require.NoError(t, err)
		require.Equal(t, len(s), n)
	}
	require.Equal(t, "process 3: ab\nprocess 3: c\nprocess 3: d\nprocess 3: \nprocess 3: "+strings.Repeat("x", 64<<10)+"\nprocess 3: y\n", out.String())
}

// The rate of a process is that of the last seconds.
func TestRate(t *testing.T) {
	t.Parallel()
	p := &process{}
	now := time.Unix(1000, 0)
	require.Zero(t, p.rate(now))
	for i := range 20 {
		at := now.Add(time.Duration(i) * time.Second)
		done := uint64(i * 10) //nolint:gosec // small
		if i >= 10 {
			done = 100
		}
		p.take(message{State: stateRunning, figures: figures{Pages: done}}, at)
		switch {
		case i > 0 && i <= 10:
			require.InDelta(t, 10, p.rate(at), 0.01, "after %d s", i)
		case i >= 14:
			require.Zero(t, p.rate(at), "after %d s", i)
		}
		require.LessOrEqual(t, len(p.samples), 5)
	}
}

// However many processes there are, they run about as many functions at once, unless the
// user says otherwise.
func TestWorkersOfProcesses(t *testing.T) {
	t.Parallel()
	for processes, want := range map[int]int{1: 16, 2: 8, 8: 2, 16: 2, 64: 2} {
		s, err := parseFlags([]string{"-store", "redis://127.0.0.1:1", "-processes", strconv.Itoa(processes)}, io.Discard)
		require.NoError(t, err)
		require.Equal(t, want, s.workers, "%d processes", processes)
		s, err = parseFlags([]string{"-store", "redis://127.0.0.1:1", "-processes", strconv.Itoa(processes), "-workers", "5"}, io.Discard)
		require.NoError(t, err)
		require.Equal(t, 5, s.workers, "%d processes", processes)
	}
}
