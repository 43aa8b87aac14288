package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/percolate-go/percolate/examples/webindex/internal/index"
	"github.com/percolate-go/percolate/percolator"
)

// A worker process (-processes), which runs the observers. Its parent (crew.go) starts it
// with its orders in the environment, where no list of processes shows a password. It
// writes messages, a line of JSON each, to its standard output. Its standard input brings
// questions, and ends when it is to end: the system sees to that if the parent was killed.

// childVariable holds the orders of a worker process.
const childVariable = "WEBINDEX_WORKER_PROCESS"

// orders are what a worker process is told.
type orders struct {
	Store   string        `json:"store"`
	Config  string        `json:"config"`
	Workers int           `json:"workers"`
	Every   time.Duration `json:"every"` // how often it writes a message
}

// message is what a worker process says of itself.
type message struct {
	State processState `json:"state"`
	Idle  int          `json:"idle"` // the last question whose answer is: nothing is left
	Why   string       `json:"why"`  // it has ended, if that is not as it should be
	figures
}

// figures are counts since a process began.
type figures struct {
	Pages     uint64 `json:"pages"`     // calls that found a page searchable
	Calls     uint64 `json:"calls"`     // of functions
	Runs      uint64 `json:"runs"`      // of these: that took effect
	Conflicts uint64 `json:"conflicts"` // runs that ended with one
	Failures  uint64 `json:"failures"`
	Commits   uint64 `json:"commits"` // with something written
}

func (f *figures) add(more figures) {
	f.Pages += more.Pages
	f.Calls += more.Calls
	f.Runs += more.Runs
	f.Conflicts += more.Conflicts
	f.Failures += more.Failures
	f.Commits += more.Commits
}

// processState is what a worker process is doing. The parent finds out about the last two.
type processState string

const (
	stateStarting processState = "starting"
	stateRunning  processState = "running"
	stateStopping processState = "stopping"
	stateSilent   processState = "silent" // it has said nothing for a while
	stateDead     processState = "dead"
)

// endWithin is when a process that was told to end is gone, whatever holds it up.
const endWithin = 30 * time.Second

// childMain is main of a worker process. It returns the exit status.
func childMain(told string) int {
	// The terminal interrupts all processes at once; the parent says what follows from that.
	// If it is gone, writing fails, and must not kill.
	signal.Ignore(os.Interrupt, syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	v := &voice{to: json.NewEncoder(os.Stdout), message: message{State: stateStarting}}
	var o orders
	err := json.Unmarshal([]byte(told), &o)
	if err == nil {
		err = o.follow(ctx, v, os.Stdin, os.Stderr)
	}
	if err != nil {
		v.say(func(m *message) { m.Why = err.Error() })
		return 1
	}
	return 0
}

// errToldToEnd is the cause of the end of a process whose input has ended.
var errToldToEnd = errors.New("the standard input has ended")

// follow works until the input or ctx ends, or something goes wrong.
func (o *orders) follow(ctx context.Context, v *voice, input io.Reader, stderr io.Writer) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	questions := make(chan int, 1)
	go listen(input, questions, cancel) // until the input ends, which is the process's end at the latest
	defer v.repeat(o.Every)()
	s := settings{store: o.Store, config: o.Config, workers: o.Workers}
	var level slog.LevelVar
	level.Set(slog.LevelError) // what there is to say of the store, the parent has said
	db, err := s.open(ctx, slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: &level})))
	if err != nil {
		return unlessTold(ctx, err)
	}
	level.Set(slog.LevelWarn)
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin/2)
		defer cancel()
		err = errors.Join(err, db.Close(closing))
	}()
	x, err := index.New(ctx, db)
	if err != nil {
		return unlessTold(ctx, err)
	}
	v.countOf(db, x)
	w, stop, err := s.startWorker(ctx, db, x, cancel)
	if err != nil {
		return err
	}
	defer func() {
		v.say(func(m *message) { m.State = stateStopping })
		err = errors.Join(err, stop())
	}()
	if err := x.WaitObserved(ctx); err != nil {
		return unlessTold(ctx, err)
	}
	v.say(func(m *message) { m.State = stateRunning })
	for {
		select {
		case <-ctx.Done():
			return unlessTold(ctx, nil)
		case n := <-questions:
			if err := w.WaitIdle(ctx); err != nil {
				return unlessTold(ctx, fmt.Errorf("waiting for the observers: %w", err))
			}
			v.say(func(m *message) { m.Idle = n })
		}
	}
}

// unlessTold returns why a process ends: nil if it was told to, or interrupted.
func unlessTold(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errToldToEnd) && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// listen reads the input. When that ends, the process does too.
func listen(input io.Reader, questions chan int, end context.CancelCauseFunc) {
	for lines := bufio.NewScanner(input); lines.Scan(); {
		var n int
		if _, err := fmt.Sscanf(lines.Text(), question, &n); err != nil {
			continue // of another version of this program
		}
		select {
		case <-questions: // the newest one counts
		default:
		}
		questions <- n
	}
	time.AfterFunc(endWithin, func() { os.Exit(1) })
	end(errToldToEnd)
}

// question asks a worker process to say when nothing is left to do.
const question = "idle %d"

// voice writes a process's messages. Its methods may be called concurrently.
type voice struct {
	mu sync.Mutex
	message
	to    *json.Encoder
	db    *percolator.DB
	index *index.Index
}

func (v *voice) countOf(db *percolator.DB, x *index.Index) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.db, v.index = db, x
}

// say changes the message and writes it. If nobody reads any more, the input has ended too.
func (v *voice) say(change func(*message)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change(&v.message)
	v.Why = strings.TrimSpace(v.Why)
	if v.db != nil {
		v.figures = countsOf(v.db, v.index)
	}
	_ = v.to.Encode(&v.message)
}

// countsOf returns the figures of this process.
func countsOf(db *percolator.DB, x *index.Index) figures {
	st := db.Stats()
	f := figures{Runs: st.ObserverRuns, Conflicts: st.ObserverConflicts, Failures: st.ObserverFailures, Commits: st.OnePhase + st.Group + st.TwoPhase}
	f.Calls, f.Pages = x.Calls()
	return f
}

// repeat writes the message from time to time, until stop is called.
func (v *voice) repeat(every time.Duration) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(max(every, time.Millisecond))
		defer tick.Stop()
		for {
			v.say(func(*message) {})
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}
