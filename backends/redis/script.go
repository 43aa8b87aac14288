package redis

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1.
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

var (
	//go:embed scripts/oracle_part.lua
	oraclePart string
	//go:embed scripts/read_part.lua
	readPart string
	//go:embed scripts/write_part.lua
	writePart string
	//go:embed scripts/write.lua
	writeLua string
	//go:embed scripts/quick.lua
	quickLua string
	//go:embed scripts/draw.lua
	drawLua string
	//go:embed scripts/begin.lua
	beginLua string
	//go:embed scripts/read.lua
	readLua string
	//go:embed scripts/scan.lua
	scanLua string
	//go:embed scripts/open.lua
	openLua string
)

// locals makes the functions that every script needs local to it: a lookup of a
// global costs more.
const locals = `local call, su, sp = redis.call, struct.unpack, struct.pack
local byte, sub, find, char, floor = string.byte, string.sub, string.find, string.char, math.floor
`

// script is a Lua script and its name in the server's cache. The flags decide
// when the server refuses it as a whole: without allow-oom when it is out of
// memory, without no-writes on a replica or when it cannot persist.
type script struct {
	source string
	sha    string
	writes bool
}

func newScript(flags string, writes bool, parts ...string) *script {
	src := "#!lua"
	if flags != "" {
		src += " flags=" + flags
	}
	src += "\n" + locals + strings.Join(parts, "")
	sum := sha1.Sum([]byte(src)) //nolint:gosec // see above
	return &script{source: src, sha: hex.EncodeToString(sum[:]), writes: writes}
}

var (
	writeScript = newScript("", true, oraclePart, writePart, writeLua)
	// quickScript is writeScript for batches of nothing but quick groups; see
	// writeEncoder.quick.
	quickScript = newScript("", true, oraclePart, writePart, quickLua)
	// freeScript is writeScript for mutations that only free memory.
	freeScript = newScript("allow-oom", true, oraclePart, writePart, writeLua)
	drawScript = newScript("", false, oraclePart, drawLua)
	// beginScript changes the oracle alone, which anybody may do any number of times.
	beginScript = newScript("", false, oraclePart, beginLua)
	readScript  = newScript("no-writes", false, readPart, readLua)
	scanScript  = newScript("no-writes", false, readPart, scanLua)
	openScript  = newScript("", false, openLua)
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
	// sent tells whether any of it may have left for the server since it was last
	// proved that nothing was applied.
	sent   bool
	source bool // send the script itself: the server does not have it
	client *goredis.Client
}

// payload is the packed argument of a script. go-redis asks for its bytes when it
// writes them to the connection, and not before: that is how the store knows that
// a request that failed had never left, keeps one from leaving whose caller is
// gone, and tells when it left.
type payload struct {
	b      []byte
	expiry int // where the expiry is, 0 for none
	clock  *serverClock
	budget time.Duration
	state  atomic.Uint32
}

const (
	payloadHere uint32 = iota
	payloadLeft
	payloadAbandoned
)

var errAbandoned = errors.New("nobody waits for the request any more")

// MarshalBinary returns the payload and notes that it leaves now.
func (p *payload) MarshalBinary() ([]byte, error) {
	if !p.state.CompareAndSwap(payloadHere, payloadLeft) && p.state.Load() == payloadAbandoned {
		return nil, errAbandoned
	}
	if p.expiry > 0 {
		binary.BigEndian.PutUint64(p.b[p.expiry:], uint64(p.clock.after(p.budget)))
	}
	return p.b, nil
}

// abandon keeps the payload from leaving, and tells whether it is in time.
func (p *payload) abandon() bool {
	return p.state.CompareAndSwap(payloadHere, payloadAbandoned) || p.state.Load() == payloadAbandoned
}

// serverClock estimates a server's clock by its last answer, so that a request
// can say until when it may be applied. The estimate is late by the way of the
// answer, never early, as long as the server's clock is not set back.
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
func (s *Store) run(ctx context.Context, calls []*call) {
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
			switch s.judge(ctx, c) {
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
		if time.Now().After(patience) || !sleep(ctx, wait) {
			// What the last answer proved still holds: c.err is certain.
			return
		}
		wait = min(2*wait, lastPause)
	}
}

// Pauses between two tries to find a partition that is elsewhere.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 200 * time.Millisecond
)

// sleep waits and tells whether the context is alive still.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Store) command(ctx context.Context, c *call) (*goredis.Cmd, error) {
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
	args := make([]any, 0, 6+len(c.keys)+len(c.args))
	if c.source {
		args = append(args, "eval", c.script.source)
	} else {
		args = append(args, "evalsha", c.script.sha)
	}
	args = append(args, 2+len(c.keys))
	for _, k := range c.keys {
		args = append(args, k)
	}
	args = append(args, s.parts[c.part].tables, s.parts[c.part].never)
	args = append(args, c.args...)
	args = append(args, &c.arg)
	c.arg.state.CompareAndSwap(payloadLeft, payloadHere)
	return goredis.NewCmd(ctx, args...), nil
}

// clockOf returns the clock of a server, and asks it for the time if need be.
func (s *Store) clockOf(ctx context.Context, client *goredis.Client) (*serverClock, error) {
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

func (s *Store) runOne(ctx context.Context, c *call) {
	cmd, err := s.command(ctx, c)
	if err != nil {
		c.err, c.sent = err, false
		return
	}
	_ = c.client.Process(ctx, cmd)
	c.take(cmd)
}

func (c *call) take(cmd *goredis.Cmd) {
	c.answer, c.err = cmd.Text()
	c.sent = c.arg.state.Load() == payloadLeft
}

// runMany sends the calls of each server in one pipeline, to all servers at once.
func (s *Store) runMany(ctx context.Context, calls []*call) {
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
			_ = pipe.Process(ctx, cmd)
		}
		_, _ = pipe.Exec(ctx)
		for i, c := range l.calls {
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

type verdict uint8

const (
	final verdict = iota
	sendAgain
	sendAgainLater
)

// judge decides what follows from the answer to a call, and says in c.err what
// the caller must know.
func (s *Store) judge(ctx context.Context, c *call) verdict {
	err := c.err
	if err == nil {
		return final
	}
	var server goredis.Error
	if errors.As(err, &server) && !errors.Is(err, goredis.Nil) {
		text := server.Error()
		switch {
		case strings.HasPrefix(text, "NOSCRIPT") && !c.source:
			c.source, c.sent = true, false
			return sendAgain
		case strings.HasPrefix(text, "MOVED "), strings.HasPrefix(text, "ASK "),
			strings.HasPrefix(text, "TRYAGAIN"), strings.HasPrefix(text, "CLUSTERDOWN"):
			c.sent = false
			c.err = fmt.Errorf("partition %d is not served now: %w", c.part, err)
			s.nodes.moved(ctx)
			return sendAgainLater
		}
		// The server names the script when a command inside it failed: then others
		// may have written before. It does not when it refused to run the script.
		c.sent = strings.Contains(text, "script: ") || strings.Contains(text, "user_script")
		c.err = explain(err)
	} else {
		if s.closed.Load() {
			err = fmt.Errorf("%w: %w", rowstore.ErrClosed, err)
		} else if isConnect(err) {
			// A server of a Cluster that is gone has a successor soon.
			s.nodes.moved(ctx)
		}
		if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, ctxErr) {
			err = fmt.Errorf("%w: %w", ctxErr, err)
		} else if isTimeout(err) && deadlinePassed(ctx) && !errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
		}
		c.err = err
		if !c.script.writes && c.sent && retriable(err) && ctx.Err() == nil && !c.source {
			// Nothing depends on how often a read or a draw runs. A connection that
			// the server closed while it was idle is found out only by using it.
			c.source = true
			return sendAgain
		}
	}
	if c.script.writes && c.sent {
		c.err = fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, c.err)
	}
	return final
}

// deadlinePassed tells whether the context's deadline lies in the past, which the
// connection's deadline may notice before the context does.
func deadlinePassed(ctx context.Context) bool {
	d, ok := ctx.Deadline()
	return ok && !time.Now().Before(d)
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func isConnect(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// retriable tells whether a read that failed like this is worth a second try at
// once: the connection broke, but nobody waited in vain.
func retriable(err error) bool {
	return !isTimeout(err) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, goredis.ErrClosed) && !errors.Is(err, rowstore.ErrClosed)
}

// explain adds to a server's refusal what the operator can do about it.
func explain(err error) error {
	text := err.Error()
	hint := ""
	switch {
	case strings.HasPrefix(text, "OOM "):
		hint = "the server has reached maxmemory; nothing was written"
	case strings.HasPrefix(text, "MISCONF"):
		hint = "the server cannot persist, so it refuses writes"
	case strings.HasPrefix(text, "NOAUTH"):
		hint = "the server wants a password, and the URL has none"
	case strings.HasPrefix(text, "WRONGPASS"):
		hint = "user or password is wrong"
	case strings.HasPrefix(text, "NOPERM"), strings.Contains(text, "The user executing the script"):
		hint = "the user lacks a permission; the README of backends/redis lists them"
	case strings.HasPrefix(text, "READONLY"):
		hint = "the server is a replica"
	case strings.HasPrefix(text, "LOADING"):
		hint = "the server is loading its data after a start"
	default:
		return err
	}
	return fmt.Errorf("%s: %w", hint, err)
}
