package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// startTimeout bounds the start of one server. It is far above what a start
// takes, so that a busy machine does not fail a test.
const startTimeout = 5 * time.Minute

// errNotOurs is returned by the methods that would hurt a server which the
// environment named.
var errNotOurs = errors.New("testserver: this server was named by the environment and is not the test's to stop")

// driver is one way of running a server.
type driver interface {
	// start runs the server on the data that it has and returns when it answers.
	start(ctx context.Context) error
	// stop ends it in order and returns when it is gone.
	stop(ctx context.Context) error
	// kill ends it as kill -9 does and returns when it is gone.
	kill(ctx context.Context) error
	// crashBackend ends one working process of the server by SIGKILL.
	crashBackend(ctx context.Context) error
	pause(ctx context.Context) error
	resume(ctx context.Context) error
	// log returns the end of what the server wrote.
	log() string
	// close ends the server and removes its data.
	close() error
}

// Server is a server under the control of a test. Its methods may be called from
// several goroutines; they run one after another.
type Server struct {
	// URL is where clients reach the server. It stays the same over Stop, Kill and
	// Start.
	URL string
	// Host and Port are the address in URL.
	Host string
	Port int
	// Dir holds the data of a process, and is empty for a container.
	Dir string
	// SmallDisk is a directory that the server may write to, on a file system of 16 MiB
	// that does not survive the server. Only a container has one; else it is empty.
	SmallDisk string
	// From says how the server runs, for the log of a test.
	From string

	mu      sync.Mutex
	driver  driver
	busPort int // of a node of a Redis Cluster
	closed  bool
}

func (s *Server) do(what string, f func(context.Context, driver) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.driver == nil:
		return errNotOurs
	case s.closed:
		return fmt.Errorf("testserver: %s a server that is closed", what)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := f(ctx, s.driver); err != nil {
		return fmt.Errorf("testserver: %s the server at %s:%d (%s): %w", what, s.Host, s.Port, s.From, err)
	}
	return nil
}

// Start runs the server again after Stop or Kill, on the same port and data. It
// returns when the server answers.
func (s *Server) Start() error {
	return s.do("start", func(ctx context.Context, d driver) error { return d.start(ctx) })
}

// Stop ends the server in order (SHUTDOWN of Redis, fast shutdown of Postgres)
// and returns when it is gone.
func (s *Server) Stop() error {
	return s.do("stop", func(ctx context.Context, d driver) error { return d.stop(ctx) })
}

// Kill ends every process of the server with SIGKILL and returns when they are
// gone. What the server had not yet handed to the operating system is lost.
func (s *Server) Kill() error {
	return s.do("kill", func(ctx context.Context, d driver) error { return d.kill(ctx) })
}

// CrashBackend kills one serving process of Postgres with SIGKILL. Postgres then
// ends all of its connections, recovers from its log and goes on by itself, under
// the same URL. It is an error for Redis, which is one process.
func (s *Server) CrashBackend() error {
	return s.do("crash", func(ctx context.Context, d driver) error { return d.crashBackend(ctx) })
}

// Pause freezes the server: connections stay open and nothing is answered.
func (s *Server) Pause() error {
	return s.do("pause", func(ctx context.Context, d driver) error { return d.pause(ctx) })
}

// Resume ends a Pause.
func (s *Server) Resume() error {
	return s.do("resume", func(ctx context.Context, d driver) error { return d.resume(ctx) })
}

// Log returns the end of the server's own log, "" where it has none.
func (s *Server) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.driver == nil || s.closed {
		return ""
	}
	return s.driver.log()
}

// Close ends the server, whatever state it is in, and removes its data. A second
// Close returns nil.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.driver == nil {
		return nil
	}
	s.closed = true
	return s.driver.close()
}

// closeWith closes s at the end of the test, with the server's log in the test's
// if it failed.
func (s *Server) closeWith(t testing.TB) *Server {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the server at %s:%d (%s):\n%s", s.Host, s.Port, s.From, s.Log())
		}
		if err := s.Close(); err != nil {
			t.Errorf("close the server: %v", err)
		}
	})
	return s
}

// shared is a server for all tests of a package.
type shared struct {
	once   sync.Once
	server *Server
	err    error
}

var packageServers struct {
	sync.Mutex
	all []*Server
}

// get returns the server that a variable of the environment names, or else one that it starts on first use.
func (s *shared) get(t testing.TB, kind, variable string, start func(settings map[string]string) (*Server, error)) *Server {
	t.Helper()
	s.once.Do(func() {
		if url := os.Getenv(variable); url != "" {
			Ran(kind, "the server named by "+variable)
			s.server = &Server{URL: url, From: "named by " + variable}
		} else {
			s.server, s.err = start(nil)
		}
		if s.err == nil {
			packageServers.Lock()
			packageServers.all = append(packageServers.all, s.server)
			packageServers.Unlock()
			t.Logf("testserver: %s:%d, %s", s.server.Host, s.server.Port, s.server.From)
		}
	})
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.server
}

// Shutdown closes the servers that Redis and Postgres started, and the connection
// to the container engine. Main calls it.
func Shutdown() error {
	packageServers.Lock()
	defer packageServers.Unlock()
	var errs []error
	for _, s := range packageServers.all {
		errs = append(errs, s.Close())
	}
	packageServers.all = nil
	return errors.Join(append(errs, closeEngine())...)
}

// Main runs the tests, closes the package's servers, fails if a goroutine was
// left behind (options say what to ignore), and exits.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	if err := errors.Join(Shutdown(), writeReport()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(options...); err != nil {
			fmt.Fprintln(os.Stderr, "goroutines left by the tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}
