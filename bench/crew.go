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
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sync/errgroup"
)

// crewReport is how often a process of a crew says how much it has handled.
const crewReport = 10 * time.Millisecond

// crewMeets is how long processes that start together take until each knows its share, on
// every side: a lease of ours.
const crewMeets = 3 * time.Second

// crewPatience is how long a crew may handle nothing while something waits.
const crewPatience = time.Minute

func together(ctx context.Context) (*errgroup.Group, context.Context) {
	return errgroup.WithContext(ctx)
}

// deeds is what one process of a crew did, or all together. CPU is that of the time in which
// functions did their work on the changes that are counted; Conflicts, Scans and Found are also of the time before, in which it
// warmed up and what waits was found.
type deeds struct {
	Calls     int64 // of the function, for changes that are counted
	Conflicts int64 // runs that ended in one
	Scans     int64
	Found     int64 // cells, by the scans
	CPU       time.Duration
	Took      []byte // encoded, from due to result

	took latencies
}

// tally counts what a member of a crew does, while it does it.
type tally struct {
	calls  atomic.Int64
	done   progress
	from   int64         // changes with lower numbers only warm the member up
	opened chan struct{} // closed when functions may do their work

	mu   sync.Mutex
	took latencies
}

// newTally counts changes from that number on.
func newTally(from int64) *tally {
	return &tally{from: from, done: newProgress(), opened: make(chan struct{}), took: newLatencies()}
}

// called counts a call of the function for a row, and holds it up until all may begin.
func (t *tally) called(ctx context.Context, row string) error {
	if id, _ := ofRow(row); id < t.from {
		return nil
	}
	t.calls.Add(1)
	select {
	case <-t.opened:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// finished notes a change of a row whose result is committed.
func (t *tally) finished(row string) {
	if id, due := ofRow(row); id >= t.from {
		took := time.Duration(time.Now().UnixNano() - due)
		t.mu.Lock()
		t.took.record(took)
		t.mu.Unlock()
	}
	t.done.add(1)
}

// member is the part of one process.
type member interface {
	// open does all but begin to work, which work does.
	open(ctx context.Context, t *childTask, count *tally) error
	work(ctx context.Context) error
	// add adds what the system itself counts.
	add(*deeds)
	close() error
}

func newMember(how string) member {
	switch how {
	case "river":
		return &riverMember{}
	case "asynq":
		return &asynqMember{}
	}
	return &observerMember{}
}

// doFleet is a child that handles changes. With the first line on its standard input
// its worker starts, with the second one its functions begin to do their work on the changes
// that are counted, and with the third one it ends. It says how many changes it handled, those
// that warm it up included.
func (t *childTask) doFleet(ctx context.Context, in *bufio.Reader, wait func() error) (err error) {
	count := newTally(t.From)
	m := newMember(t.How)
	defer func() { err = errors.Join(err, m.close()) }()
	if err := m.open(ctx, t, count); err != nil {
		return err
	}
	if err := wait(); err != nil {
		return err
	}
	if err := m.work(ctx); err != nil {
		return err
	}
	stop := say(&count.done, crewReport)
	defer stop()
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	cpu := processCPU()
	close(count.opened)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	stop()
	did := deeds{Calls: count.calls.Load(), CPU: processCPU() - cpu}
	m.add(&did)
	count.mu.Lock()
	did.Took, err = count.took.h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	count.mu.Unlock()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(did)
}

// crew is several child processes that handle changes.
type crew struct {
	members []*helper
	handled atomic.Int64
	readers errgroup.Group
	each    []deeds
}

func startCrew(ctx context.Context, n int, t childTask) (*crew, error) {
	c := &crew{each: make([]deeds, n)}
	for range n {
		h, err := startHelper(ctx, t)
		if err != nil {
			c.kill()
			return nil, err
		}
		c.members = append(c.members, h)
	}
	return c, nil
}

// meet starts the workers of all members, and gives them time to learn of each other: what is
// measured is a membership that does not change.
func (c *crew) meet(ctx context.Context) error {
	for i, h := range c.members {
		if err := h.tell(); err != nil {
			return err
		}
		c.readers.Go(func() error { return c.read(i, h.out) })
	}
	if len(c.members) > 1 {
		sleep(ctx, crewMeets)
	}
	return ctx.Err()
}

// begin lets the functions of all members do their work.
func (c *crew) begin() error {
	for _, h := range c.members {
		if err := h.tell(); err != nil {
			return err
		}
	}
	return nil
}

// read adds up what a member says that it has handled, until it says what it did.
func (c *crew) read(i int, from io.Reader) error {
	before := int64(0)
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if bytes.HasPrefix(line, []byte("{")) {
			return json.Unmarshal(line, &c.each[i])
		}
		n, err := strconv.ParseInt(string(line), 10, 64)
		if err != nil {
			return fmt.Errorf("a child process said %q", line)
		}
		c.handled.Add(n - before)
		before = n
	}
	return errors.Join(errors.New("a child process ended early"), lines.Err())
}

// await waits until so many changes are handled.
func (c *crew) await(ctx context.Context, want int64) error {
	before, since := int64(-1), time.Now()
	for {
		n := c.handled.Load()
		switch {
		case n >= want:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case n > before:
			before, since = n, time.Now()
		case time.Since(since) > crewPatience:
			return fmt.Errorf("%d of %d changes were handled, and none more within %v", n, want, crewPatience)
		}
		sleep(ctx, time.Millisecond)
	}
}

// end lets all members stop, and adds up what they did.
func (c *crew) end() (sum deeds, err error) {
	for _, h := range c.members {
		if err := h.tell(); err != nil {
			return deeds{}, err
		}
	}
	if err := c.readers.Wait(); err != nil {
		return deeds{}, err
	}
	sum.took = newLatencies()
	for i := range c.each {
		d := &c.each[i]
		sum.Calls += d.Calls
		sum.Conflicts += d.Conflicts
		sum.Scans += d.Scans
		sum.Found += d.Found
		sum.CPU += d.CPU
		h, err := hdrhistogram.Decode(d.Took)
		if err != nil {
			return deeds{}, fmt.Errorf("latencies of a child process: %w", err)
		}
		sum.took.h.Merge(h)
	}
	members := c.members
	c.members = nil
	for i, h := range members {
		if err := h.wait(); err != nil {
			c.members = members[i+1:] // for kill
			return deeds{}, err
		}
	}
	return sum, nil
}

// kill ends the members that did not end by themselves.
func (c *crew) kill() {
	for _, h := range c.members {
		h.kill()
	}
	c.members = nil
}
