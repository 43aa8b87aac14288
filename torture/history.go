package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/percolate-go/percolate/percolator"
)

// A process writes what it does to a log of its own, with a JSON object in each line.
// Each line is one write(2); once that has returned, the line survives kill -9.
// A transaction that writes has two lines: "try", before Commit is called, so that
// everything that may be in the store is in a log, and "done", when Commit has
// returned. If a try has no done, the transaction's outcome is unknown. If a try was
// never written, nothing is lost, because Commit was never called.

// lineKind is what a line of a log tells.
type lineKind string

const (
	lineTry  lineKind = "try"  // Commit of a transaction that writes is about to be called
	lineDone lineKind = "done" // Commit has returned; or a transaction that only reads has ended
	// lineSettled is the answer of DB.Outcome about a transaction whose done says that
	// its outcome is undetermined.
	lineSettled lineKind = "settled"
	lineAbort   lineKind = "abort" // a transaction that ended before Commit
	lineStats   lineKind = "stats" // the counts of the process so far
	lineBad     lineKind = "bad"   // something that no fault explains
	lineOpen    lineKind = "open"  // the process has opened the database
	lineCall    lineKind = "call"  // a function of the relay was called
)

// outcome is what a process knows of a transaction.
type outcome string

const (
	committed    outcome = "committed"
	aborted      outcome = "aborted"
	undetermined outcome = "undetermined"
)

// opKind is what a transaction did to a cell.
type opKind string

const (
	opRead   opKind = "r"
	opWrite  opKind = "w"
	opAppend opKind = "a" // a write of the list that was read, and one element more
	opDelete opKind = "d"
	opNotify opKind = "n"
)

// op is one operation of a transaction; they are in the order of the program. Value is
// the value that was read or written; nil is the absence of a value.
type op struct {
	Kind    opKind  `json:"k"`
	Cell    string  `json:"c"` // table/row/column; none of them has a slash in it
	Value   *string `json:"v,omitempty"`
	Element string  `json:"e,omitempty"` // of an append
	Locks   bool    `json:"x,omitempty"` // a read with GetForUpdate
}

// line is one line of a log.
type line struct {
	Kind lineKind `json:"l"`

	// Of a transaction.
	Workload string   `json:"w,omitempty"`
	Thread   int      `json:"g,omitempty"` // of the process; one transaction at a time
	N        int      `json:"n,omitempty"` // of the thread
	Began    int64    `json:"t0,omitempty"`
	Ended    int64    `json:"t1,omitempty"`
	Start    uint64   `json:"start,omitempty"`
	Serial   bool     `json:"serial,omitempty"` // its isolation is serializable
	AsOf     bool     `json:"asof,omitempty"`   // its snapshot is of the past
	Ops      []op     `json:"ops,omitempty"`
	Outcome  outcome  `json:"o,omitempty"`
	Commit   uint64   `json:"commit,omitempty"`
	Primary  []string `json:"primary,omitempty"` // of an undetermined one
	Reason   string   `json:"why,omitempty"`

	Stats *percolator.Stats `json:"stats,omitempty"`
	Text  string            `json:"text,omitempty"`
}

// monotonic returns the time of the machine's clock that nobody can set. All processes
// share it, and the real-time order of the history rests on it.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(fmt.Sprintf("torture: the monotonic clock: %v", err))
	}
	return ts.Nano()
}

// journal is the log that a process writes. Its methods may be called
// concurrently.
type journal struct {
	mu   sync.Mutex
	file *os.File
}

func openJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // the parent chose the path
	if err != nil {
		return nil, err
	}
	return &journal{file: f}, nil
}

// write returns when the line is in the kernel. It panics if the line cannot be
// written, because a history with holes proves nothing.
func (j *journal) write(l line) {
	b, err := json.Marshal(l)
	if err != nil {
		panic(fmt.Sprintf("torture: a line of the log: %v", err))
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := j.file.Write(append(b, '\n')); err != nil {
		panic(fmt.Sprintf("torture: writing the log: %v", err))
	}
}

func (j *journal) close() error { return j.file.Close() }

// transaction is one transaction of the merged history.
type transaction struct {
	line
	Process string
}

func (t *transaction) id() string { return fmt.Sprintf("%s.%d.%d", t.Process, t.Thread, t.N) }

// history is what all processes have logged.
type history struct {
	Txns    []*transaction  // tried or done, in the order of their logs
	Aborts  map[string]int  // ended before Commit, by reason
	Settled map[outcome]int // undetermined ones of which DB.Outcome told the outcome
	Bad     []string        // what no fault explains
	Stats   percolator.Stats
	Opened  int            // times that a process opened the database
	Calls   map[string]int // of the functions of the relay, by observer
}

const logSuffix = ".log.jsonl"

func newHistory() *history {
	return &history{Aborts: map[string]int{}, Settled: map[outcome]int{}, Calls: map[string]int{}}
}

// readHistory merges the logs of a directory.
func readHistory(dir string) (*history, error) {
	h := newHistory()
	paths, err := filepath.Glob(filepath.Join(dir, "*"+logSuffix))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if err := h.read(path); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return h, nil
}

func (h *history) read(path string) error {
	f, err := os.Open(path) //nolint:gosec // of the run's own directory
	if err != nil {
		return err
	}
	defer f.Close()
	return h.readLog(strings.TrimSuffix(filepath.Base(path), logSuffix), f)
}

func (h *history) readLog(process string, from io.Reader) error {
	in := bufio.NewReaderSize(from, 1<<20)
	open := map[[2]int]*transaction{}
	var stats percolator.Stats
	for n := 1; ; n++ {
		b, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			// A line that kill -9 cut off says nothing. If it announces a commit, the commit
			// was not begun; if it reports an outcome, the outcome counts as unknown.
			break
		}
		if err != nil {
			return err
		}
		var l line
		if err := json.Unmarshal(bytes.TrimSpace(b), &l); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		key := [2]int{l.Thread, l.N}
		switch l.Kind {
		case lineTry:
			l.Outcome = undetermined
			t := &transaction{line: l, Process: process}
			open[key] = t
			h.Txns = append(h.Txns, t)
		case lineDone:
			t := open[key]
			if t == nil {
				t = &transaction{line: l, Process: process}
				h.Txns = append(h.Txns, t)
				break
			}
			t.Outcome, t.Commit, t.Ended, t.Primary, t.Reason = l.Outcome, l.Commit, l.Ended, l.Primary, l.Reason
		case lineSettled:
			t := open[key]
			if t == nil {
				return fmt.Errorf("line %d: an answer without a question", n)
			}
			t.Outcome, t.Commit, t.Ended = l.Outcome, l.Commit, l.Ended
			if l.Outcome == aborted {
				t.Reason = "undetermined, then rolled back"
			}
			h.Settled[l.Outcome]++
		case lineAbort:
			h.Aborts[l.Reason]++
		case lineStats:
			if l.Stats != nil {
				stats = *l.Stats
			}
		case lineBad:
			h.Bad = append(h.Bad, process+": "+l.Text)
		case lineOpen:
			h.Opened++
		case lineCall:
			h.Calls[l.Text]++
		default:
			return fmt.Errorf("line %d: unknown kind %q", n, l.Kind)
		}
	}
	addStats(&h.Stats, &stats)
	return nil
}
