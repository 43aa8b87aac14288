package redis

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1.
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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
	//go:embed scripts/range.lua
	rangeLua string
	//go:embed scripts/tables.lua
	tablesLua string
	//go:embed scripts/split.lua
	splitLua string
	//go:embed scripts/open.lua
	openLua string
)

// locals makes the functions that every script needs local to it: a lookup of a
// global costs more.
const locals = `local call, su, sp = redis.call, struct.unpack, struct.pack
local byte, sub, find, char, floor = string.byte, string.sub, string.find, string.char, math.floor
`

// primaryOnly begins the scripts that must ask the server whether it is a primary:
// see script.strict.
const primaryOnly = `if not find(call('INFO', 'replication'), 'role:master', 1, true) then
  return redis.error_reply('READONLY percolator: the server is a replica')
end
`

// script is a Lua script and its name in the server's cache. The flags decide
// when the server refuses it as a whole: without allow-oom when it is out of
// memory, without no-writes on a replica or when it cannot persist.
//
// Every call is for a primary, and a server may be demoted at any time, under open
// connections. A replica that takes no writes refuses by itself each script that
// is not flagged no-writes, which costs nothing: so scripts that only read lack
// that flag too. strict is the variant that asks for the server's role itself. It
// is for servers that, as replicas, would take writes, and for reads where the
// server refuses writes for other reasons.
type script struct {
	source string
	sha    string
	writes bool
	strict *script // nil: the script asks in any case
	reads  bool    // it changes nothing, not even the oracle
}

func newScript(flags string, parts ...string) *script {
	src := "#!lua"
	if flags != "" {
		src += " flags=" + flags
	}
	src += "\n" + locals + strings.Join(parts, "")
	sum := sha1.Sum([]byte(src)) //nolint:gosec // see above
	return &script{source: src, sha: hex.EncodeToString(sum[:])}
}

// newWriter is a script that changes rows.
func newWriter(flags string, parts ...string) *script {
	sc := newScript(flags, parts...)
	sc.strict = newScript(flags, append([]string{primaryOnly}, parts...)...)
	sc.writes, sc.strict.writes = true, true
	return sc
}

// newReader is a script that changes nothing.
func newReader(parts ...string) *script {
	sc := newScript("allow-oom", parts...)
	sc.strict = newScript("no-writes", append([]string{primaryOnly}, parts...)...)
	sc.reads, sc.strict.reads = true, true
	return sc
}

var (
	writeScript = newWriter("", oraclePart, writePart, writeLua)
	// quickScript is writeScript for batches of nothing but quick groups; see
	// writeEncoder.quick.
	quickScript = newWriter("", oraclePart, writePart, quickLua)
	// freeScript is writeScript for mutations that only free memory.
	freeScript = newWriter("allow-oom", oraclePart, writePart, writeLua)
	// The oracle asks for the role with its own call of INFO.
	drawScript = newScript("", oraclePart, drawLua)
	// beginScript changes the oracle alone, which anybody may do any number of times.
	beginScript  = newScript("", oraclePart, beginLua)
	readScript   = newReader(readPart, readLua)
	scanScript   = newReader(readPart, scanLua)
	rangeScript  = newReader(rangeLua)
	tablesScript = newReader(tablesLua)
	splitScript  = newReader(splitLua)
	roleScript   = newReader("return '1'")
	openScript   = newScript("", primaryOnly, openLua)
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
	strict bool // run the script's strict variant
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
	errAbandoned = errors.New("nobody waits for the request any more")
	errStrict    = errors.New("the server's replicas take writes")
)

// MarshalBinary returns the payload and notes that it leaves now.
func (p *payload) MarshalBinary() ([]byte, error) {
	if p.strict != nil && p.strict.Load() {
		return nil, errStrict
	}
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
			for _, c := range again {
				c.err = s.because(ctx, c.err)
			}
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
		_, err := pipe.Exec(ctx)
		for i, c := range l.calls {
			// go-redis keeps it to itself when the server refused the connection.
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

type verdict uint8

const (
	final verdict = iota
	sendAgain
	sendAgainLater
)

// judge decides what follows from the answer to a call, and says in c.err what
// the caller must know.
func (s *Store) judge(ctx context.Context, c *call) verdict {
	if c.err == nil {
		return final
	}
	v := final
	if serverSaid(c.err) {
		v = s.judgeAnswer(ctx, c)
	} else {
		v = s.judgeFailure(ctx, c)
	}
	if v == final && c.script.writes && c.sent {
		c.err = fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, c.err)
	}
	return v
}

// judgeAnswer is judge for an error that the server answered.
func (s *Store) judgeAnswer(ctx context.Context, c *call) verdict {
	text := c.err.Error()
	switch {
	case strings.HasPrefix(text, "NOSCRIPT") && !c.source:
		c.source, c.sent = true, false
		return sendAgain
	case elsewhere(text):
		c.sent = false
		c.err = fmt.Errorf("%w: partition %d is not served now: %w", rowstore.ErrUnavailable, c.part, c.err)
		s.nodes.moved(ctx)
		return sendAgainLater
	case c.script.reads && !c.strict && (strings.HasPrefix(text, "MISCONF") || strings.HasPrefix(text, "NOREPLICAS")):
		// The server refuses what might write. The strict variant says that it does not.
		c.strict, c.source = true, false
		return sendAgain
	case strings.HasPrefix(text, "CLUSTERDOWN"):
		s.nodes.moved(ctx)
	}
	// The server names the script when a command inside it failed: then others
	// may have written before. It does not when it refused to run the script.
	c.sent = strings.Contains(text, "script: ") || strings.Contains(text, "user_script") || strings.Contains(text, "running script ")
	if c.err = explain(c.err); !c.sent || !c.script.writes {
		c.err = unavailable(c.err)
	}
	return final
}

// judgeFailure is judge for a call that got no answer.
func (s *Store) judgeFailure(ctx context.Context, c *call) verdict {
	err := c.err
	if errors.Is(err, errStrict) && !(c.script.writes && c.sent) {
		// It was kept back. Another of the same pipeline may have left before: what writes
		// is not sent again then.
		c.sent, c.source = false, false
		return sendAgain
	}
	if isConnect(err) && !s.closed.Load() {
		// A server of a Cluster that is gone has a successor soon.
		s.nodes.moved(ctx)
	}
	c.err = s.failure(ctx, err)
	if !c.script.writes && c.sent && !c.source && errors.Is(c.err, rowstore.ErrUnavailable) && !isTimeout(err) {
		// Nothing depends on how often a read or a draw runs. A connection that
		// the server closed while it was idle is found out only by using it.
		c.source = true
		return sendAgain
	}
	if c.script.writes && c.sent {
		// It may have had an effect: it is not for the caller to repeat.
		c.err = s.because(ctx, err)
	}
	return final
}

// elsewhere tells whether a server's answer says that another server, now or in a
// moment, serves the keys.
func elsewhere(text string) bool {
	for _, p := range [...]string{"MOVED ", "ASK ", "TRYAGAIN"} {
		if strings.HasPrefix(text, p) {
			return true
		}
	}
	return false
}

// serverSaid tells whether an error is a server's answer.
func serverSaid(err error) bool {
	var server goredis.Error
	return errors.As(err, &server) && !errors.Is(err, goredis.Nil)
}

// because adds why nobody waited any longer: the store was closed, or the context
// ended.
func (s *Store) because(ctx context.Context, err error) error {
	if s.closed.Load() {
		return fmt.Errorf("%w: %w", rowstore.ErrClosed, err)
	}
	if ctxErr := ctx.Err(); ctxErr != nil {
		if errors.Is(err, ctxErr) {
			return err
		}
		return fmt.Errorf("%w: %w", ctxErr, err)
	}
	if isTimeout(err) && deadlinePassed(ctx) && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}

// failure says what an error means that certainly changed nothing: the store was
// closed, the context ended, or the server is away.
func (s *Store) failure(ctx context.Context, err error) error {
	if s.closed.Load() || ctx.Err() != nil || isTimeout(err) && deadlinePassed(ctx) {
		return s.because(ctx, err)
	}
	return unavailable(explain(err))
}

// unavailable makes an error that changed nothing match rowstore.ErrUnavailable if
// the server is away for a moment.
func unavailable(err error) error {
	if !errors.Is(err, rowstore.ErrUnavailable) && isAway(err) {
		return fmt.Errorf("%w: %w", rowstore.ErrUnavailable, err)
	}
	return err
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

// isAway tells whether an error says that a server is away for a moment: it cannot
// be reached, its connection broke, it starts, or it is no primary now.
func isAway(err error) bool {
	if serverSaid(err) {
		var server goredis.Error
		errors.As(err, &server)
		for _, p := range [...]string{
			"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "MOVED ", "ASK ", "TRYAGAIN",
			"NOREPLICAS", "BUSY ", "ERR max number of clients",
		} {
			if strings.HasPrefix(server.Error(), p) {
				return true
			}
		}
		return false
	}
	var dns *net.DNSError
	return isConnect(err) || isTimeout(err) || errors.As(err, &dns) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, goredis.ErrPoolTimeout) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED)
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
	case strings.HasPrefix(text, "MASTERDOWN"):
		hint = "the server is a replica that has lost its primary"
	case strings.HasPrefix(text, "NOREPLICAS"):
		hint = "the server has too few replicas, so it refuses writes"
	default:
		return err
	}
	return fmt.Errorf("%s: %w", hint, err)
}
