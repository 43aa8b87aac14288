package everystore

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// roleVariable names, in the environment of a process that a test started, what it does; urlVariable is the URL of its store, and argVariable what else
// it is told.
const (
	roleVariable = "PERCOLATOR_TEST_ROLE"
	urlVariable  = "PERCOLATOR_TEST_ROLE_URL"
	argVariable  = "PERCOLATOR_TEST_ROLE_ARG"
)

// roleFunc is what a process does. It prints lines on standard output, and ends when ctx ends.
type roleFunc func(ctx context.Context, url, arg string) error

var roles = map[string]roleFunc{}

// Role is what a process does that a test starts: the test's own program, started again. Such a process can be killed and suspended.
type Role string

// NewRole makes a Role. It is for variables of a package of tests whose TestMain calls Main, since the process that is started looks for it there. f prints lines about
// what it has done, and returns when ctx ends, which is when the test ends the process.
func NewRole(name string, f func(ctx context.Context, url, arg string) error) Role {
	roles[name] = f
	return Role(name)
}

// playRole does what this process was started for. It tells whether that was anything.
func playRole() bool {
	name := os.Getenv(roleVariable)
	if name == "" {
		return false
	}
	f := roles[name]
	if f == nil {
		fmt.Fprintf(os.Stderr, "there is no role %q\n", name)
		os.Exit(2)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // the test closes standard input, or has died
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := f(ctx, os.Getenv(urlVariable), os.Getenv(argVariable)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// Process is a process that a test has started.
type Process struct {
	cmd    *exec.Cmd
	input  io.Closer
	errors bytes.Buffer // of standard error; read when it has ended
	ended  chan struct{}
	err    error // when it has ended

	mu    sync.Mutex
	lines []string
}

// processPatience is how long a process may take for what a test waits for. The machine may be busy.
const processPatience = 3 * time.Minute

// Start starts a process. It is killed at the end of the test if it has not ended before.
func (r Role) Start(t testing.TB, url, arg string) *Process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := &Process{cmd: exec.Command(self), ended: make(chan struct{})} //nolint:gosec // this very program
	p.cmd.Env = append(os.Environ(), roleVariable+"="+string(r), urlVariable+"="+url, argVariable+"="+arg)
	p.cmd.Stderr = &p.errors
	p.input, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	output, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, lines.Text())
			p.mu.Unlock()
		}
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // which ends a suspended one too
		<-p.ended
	})
	return p
}

// Said returns the lines that begin with a word, without it.
func (p *Process) Said(word string) (rest []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.lines {
		if first, after, _ := strings.Cut(line, " "); first == word {
			rest = append(rest, after)
		}
	}
	return rest
}

// Await waits until the process has said a word so many times.
func (p *Process) Await(t testing.TB, word string, times int) {
	t.Helper()
	p.Until(t, func() bool { return len(p.Said(word)) >= times }, "it has not said %q %d times", word, times)
}

// Until waits for something that comes from what the process does. The test fails if the process ends before.
func (p *Process) Until(t testing.TB, done func() bool, message string, args ...any) {
	t.Helper()
	for begun := time.Now(); !done(); {
		select {
		case <-p.ended:
			if !done() {
				require.FailNow(t, "the process has ended", "%v: %s", p.err, &p.errors)
			}
		case <-time.After(2 * time.Millisecond): // until the next look
		}
		if time.Since(begun) > processPatience {
			p.mu.Lock()
			defer p.mu.Unlock()
			require.FailNow(t, "the process took too long", "%s: %q", fmt.Sprintf(message, args...), p.lines[max(0, len(p.lines)-5):])
		}
	}
}

// End lets the process end, and waits until it has. It must end without an error.
func (p *Process) End(t testing.TB) {
	t.Helper()
	_ = p.input.Close()
	select {
	case <-p.ended:
	case <-time.After(processPatience):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT) // it says what its goroutines are at, unless it is suspended
		select {
		case <-p.ended:
		case <-time.After(processPatience):
			require.FailNow(t, "the process does not end")
		}
	}
	require.NoError(t, p.err, "%s", &p.errors)
}

// Kill kills the process as kill -9 does, and waits until it is gone.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Kill())
	<-p.ended
}
