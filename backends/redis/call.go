package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/internal/contexts"
)

// call is one run of a script on one partition.
type call struct {
	part   int
	script *script
	keys   []string // besides the partition's own two
	args   []any
	arg    payload // the last argument

	answer string
	err    error
	// answered, which may be nil, is called with each answer that is no error, as soon as it is there. The calls of other servers may take longer.
	answered func()
	// sent tells whether any of it may have left for the server since it was last
	// proved that nothing was applied.
	sent   bool
	source bool // send the script itself: the server does not have it
	strict bool // run the script's strict variant
	client *goredis.Client
}

// payload is the packed argument of a script. go-redis asks for its bytes at the moment
// when it writes them to the connection. So the store knows whether a request that
// failed had left, and when it left, and keeps it from leaving if its caller is gone.
type payload struct {
	b      []byte
	expiry int // where the expiry is, 0 for none
	clock  *serverClock
	budget time.Duration
	// since is when a request with it left first. What is sent again ends at the same time.
	since time.Time
	// strict, if not nil, keeps the payload from leaving once it is set: the script
	// beside it does not ask for the server's role.
	strict *atomic.Bool
	state  atomic.Uint32
}

const (
	payloadHere uint32 = iota
	payloadLeft
	payloadAbandoned
)

var (
	errAbandoned = errors.New("the caller gave up before the request left")
	errStrict    = errors.New("the server's replicas take writes")
	errSentTwice = errors.New("the client tried to send a write a second time, which was prevented")
)

// MarshalBinary returns the payload and notes that it leaves now. A payload that
// writes leaves once: a client that sends it again by itself, or a hook of the
// client that does, gets an error.
func (p *payload) MarshalBinary() ([]byte, error) {
	if p.strict != nil && p.strict.Load() {
		return nil, errStrict
	}
	if !p.state.CompareAndSwap(payloadHere, payloadLeft) {
		if p.state.Load() == payloadAbandoned {
			return nil, errAbandoned
		}
		if p.expiry > 0 {
			return nil, errSentTwice
		}
	}
	if p.expiry > 0 {
		if p.since.IsZero() {
			p.since = time.Now()
		}
		binary.BigEndian.PutUint64(p.b[p.expiry:], uint64(p.clock.after(p.budget-time.Since(p.since))))
	}
	return p.b, nil
}

// String keeps the rows out of what a hook of the client writes into logs and traces.
func (p *payload) String() string { return fmt.Sprintf("(%d bytes)", len(p.b)) }

// abandon keeps the payload from leaving. It returns false if the payload has left.
func (p *payload) abandon() bool {
	return p.state.CompareAndSwap(payloadHere, payloadAbandoned) || p.state.Load() == payloadAbandoned
}

// once is a command that go-redis does not send again by itself, whatever the
// client's options say.
type once struct{ *goredis.Cmd }

// NoRetry implements goredis.Cmder.
func (once) NoRetry() bool { return true }

// serverClock estimates a server's clock by its last answer, so that a request
// can say until when it may be applied. The estimate is behind the server's clock by the
// time that the answer took. It is never ahead, unless the server's clock is set back.
type serverClock struct {
	mu    sync.Mutex
	at    time.Time // monotonic
	ms    int64
	known bool
}

func (c *serverClock) saw(ms int64) {
	c.mu.Lock()
	c.at, c.ms, c.known = time.Now(), ms, true
	c.mu.Unlock()
}

func (c *serverClock) after(d time.Duration) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		return 0
	}
	return c.ms + (time.Since(c.at) + d).Milliseconds()
}

// Pauses between two tries to find a partition that is elsewhere.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

// run runs scripts, those of one server in one round trip, and returns when each
// has an answer or an error. An error matches rowstore.ErrAmbiguous exactly when
// the script writes and may have been run.
//
// A script is sent again only after an answer that proves that it was not run:
// the server does not have it, or the partition is elsewhere or on its way there.
//
// While a slot of a Cluster moves from one server to another, its keys are spread
// over both, and a script that names only some of its keys would take the others
// for absent. Each script therefore names a key that never exists beside one that
// may: then both servers answer TRYAGAIN or ASK until the move is over.
func (s *direct) run(ctx context.Context, calls []*call) {
	patience := time.Now().Add(s.opts.ReadTimeout)
	wait := firstPause
	for {
		if len(calls) == 1 {
			s.runOne(ctx, calls[0])
		} else {
			s.runMany(ctx, calls)
		}
		var again []*call
		pause := false
		for _, c := range calls {
			switch s.decide(ctx, c) {
			case sendAgain:
				again = append(again, c)
			case sendAgainLater:
				again = append(again, c)
				pause = true
			}
		}
		if len(again) == 0 {
			return
		}
		calls = again
		if !pause {
			continue
		}
		if time.Now().After(patience) || contexts.Sleep(ctx, wait) != nil {
			// The last answer has proved that nothing was run, so c.err is certain.
			for _, c := range again {
				c.err = s.withReason(ctx, c.err)
			}
			return
		}
		wait = min(2*wait, lastPause)
	}
}

func (s *direct) command(ctx context.Context, c *call) (*goredis.Cmd, error) {
	client, err := s.nodes.of(ctx, c.part)
	if err != nil {
		return nil, err
	}
	c.client = client
	if c.script.writes {
		c.arg.clock, err = s.clockOf(ctx, client)
		if err != nil {
			return nil, err
		}
		c.arg.budget = s.lateAfter
	}
	sc := c.script
	c.arg.strict = nil
	if sc.strict != nil {
		if c.strict || s.strict.Load() {
			sc = sc.strict
		} else {
			c.arg.strict = &s.strict
		}
	}
	args := make([]any, 0, 6+len(c.keys)+len(c.args))
	if c.source {
		args = append(args, "eval", sc.source)
	} else {
		args = append(args, "evalsha", sc.sha)
	}
	args = append(args, 2+len(c.keys))
	for _, k := range c.keys {
		args = append(args, k)
	}
	args = append(args, s.parts[c.part].tables, s.parts[c.part].never)
	args = append(args, c.args...)
	args = append(args, &c.arg)
	return goredis.NewCmd(ctx, args...), nil
}

// refused notes that nothing was applied, as an answer has proved, or that it does not matter, as the call only reads or draws. The next attempt has not left. So a caller who
// gives up now keeps it from leaving, and knows that; and what the connection of that attempt says is the call's.
func (c *call) refused() {
	c.sent = false
	c.arg.state.CompareAndSwap(payloadLeft, payloadHere)
}

// clockOf returns the clock of a server, and asks it for the time if need be.
func (s *direct) clockOf(ctx context.Context, client *goredis.Client) (*serverClock, error) {
	v, ok := s.clocks.Load(client)
	if !ok {
		v, _ = s.clocks.LoadOrStore(client, &serverClock{})
	}
	c := v.(*serverClock)
	c.mu.Lock()
	known := c.known
	c.mu.Unlock()
	if known {
		return c, nil
	}
	t, err := client.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("asking for the server's time: %w", err)
	}
	c.saw(t.UnixMilli())
	return c, nil
}

func (s *direct) runOne(ctx context.Context, c *call) {
	cmd, err := s.command(ctx, c)
	if err != nil {
		c.err, c.sent = err, false
		return
	}
	_ = c.client.Process(ctx, once{cmd})
	c.take(cmd)
}

func (c *call) take(cmd *goredis.Cmd) {
	c.answer, c.err = cmd.Text()
	c.sent = c.arg.state.Load() == payloadLeft
	if c.err == nil && c.answered != nil {
		c.answered()
	}
}

// runMany sends the calls of each server in one pipeline, to all servers at once.
func (s *direct) runMany(ctx context.Context, calls []*call) {
	type pipeline struct {
		client *goredis.Client
		calls  []*call
		cmds   []*goredis.Cmd
	}
	var lines []*pipeline
	for _, c := range calls {
		cmd, err := s.command(ctx, c)
		if err != nil {
			c.err, c.sent = err, false
			continue
		}
		var line *pipeline
		for _, l := range lines {
			if l.client == c.client {
				line = l
			}
		}
		if line == nil {
			line = &pipeline{client: c.client}
			lines = append(lines, line)
		}
		line.calls = append(line.calls, c)
		line.cmds = append(line.cmds, cmd)
	}
	send := func(l *pipeline) {
		pipe := l.client.Pipeline()
		for _, cmd := range l.cmds {
			_ = pipe.Process(ctx, once{cmd})
		}
		_, err := pipe.Exec(ctx)
		for i, c := range l.calls {
			// If the server refused the connection, only Exec returns the error.
			if err != nil && l.cmds[i].Err() == nil && c.arg.state.Load() == payloadHere {
				l.cmds[i].SetErr(err)
			}
			c.take(l.cmds[i])
		}
	}
	var wg sync.WaitGroup
	for i := 1; i < len(lines); i++ {
		wg.Go(func() { send(lines[i]) })
	}
	if len(lines) > 0 {
		send(lines[0])
	}
	wg.Wait()
}

// wait runs scripts as a call of its own, and waits for them. It returns an error only if
// the store is closed or the context ended; the scripts have theirs.
func (s *direct) wait(ctx context.Context, calls ...*call) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	if !s.await(ctx, func(ctx context.Context) { s.run(ctx, calls) }) {
		return ctx.Err()
	}
	return nil
}

// runAll runs scripts, and returns the errors of all that failed.
func (s *direct) runAll(ctx context.Context, calls []*call) error {
	if err := s.wait(ctx, calls...); err != nil {
		return err
	}
	var errs []error
	for _, c := range calls {
		errs = append(errs, c.err)
	}
	return errors.Join(errs...)
}

// query runs plain commands, and runs them again while a slot is moving. They must do
// no harm when they run twice. The commands may outlast this call, whose context has ended: what
// they find they return, and do not put into a variable that others read.
func query[T any](ctx context.Context, s *direct, f func(ctx context.Context) (T, error)) (T, error) {
	var found, none T
	if err := s.begin(ctx); err != nil {
		return none, err
	}
	var err error
	finished := s.await(ctx, func(ctx context.Context) {
		patience := time.Now().Add(s.opts.ReadTimeout)
		for wait := firstPause; ; wait = min(2*wait, lastPause) {
			found, err = f(ctx)
			if err == nil || !isAnswer(err) || !elsewhere(err.Error()) {
				return
			}
			s.nodes.moved(ctx)
			if time.Now().After(patience) || contexts.Sleep(ctx, wait) != nil {
				return
			}
		}
	})
	if !finished {
		return none, ctx.Err()
	}
	if err != nil {
		return none, s.failure(ctx, err)
	}
	return found, nil
}

// perform is query for commands that find nothing.
func (s *direct) perform(ctx context.Context, f func(ctx context.Context) error) error {
	_, err := query(ctx, s, func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })
	return err
}
