package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/percolator/rowstore"
)

func init() {
	rowstore.Register(OpenURL, "redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
}

// OpenURL opens the store that a URL names; [ParseURL] has the grammar. Errors are
// those of ParseURL and of [Open]. ctx bounds OpenURL alone.
func OpenURL(ctx context.Context, url string) (*Store, error) {
	o, err := ParseURL(url)
	if err != nil {
		return nil, err
	}
	return Open(ctx, o)
}

// Open opens a store over connections of its own, and makes it if there is none under
// the prefix. It migrates a store of the format version before, which programs of that
// version cannot use any more then; if it fails meanwhile, the next Open goes on. ctx bounds Open
// alone.
//
// Open refuses, with an error that says what to change and before it has made or changed anything: servers that it cannot reach or that refuse the password; servers older
// than 7.0; a Cluster addressed as one server and one server addressed as a
// Cluster; a sentinel or a replica addressed as the server; a maxmemory-policy
// other than noeviction; a user who lacks a permission; a store of a later format
// version or another number of partitions; keys under the prefix that are not a store's;
// and a store that has lost its record. In a store that is there, it tries out what the user may do on rows of its own, which it
// removes. Every server is checked again when a
// connection to it is made, so one that takes over later is checked too. The report of
// the store, which percolator.New logs, warns about persistence settings and replicas
// that can lose acknowledged writes.
//
// Its errors match rowstore.ErrInvalid for bad options, among them another number of partitions, another mode of the server and a database that it does not have,
// rowstore.ErrUnavailable for a
// server that is away, rowstore.ErrFull for one that takes no writes for want of room, unless Options.AsIs is set, rowstore.ErrDenied for a wrong password, a missing permission and a
// certificate that one side does not accept, rowstore.ErrFormat for a store of a later format
// version, rowstore.ErrForeign for keys that are not a store's, rowstore.ErrCorrupt for a store that has lost its
// record, and with Options.AsIs rowstore.ErrNoStore where there is no store. A server that is too old or may
// evict keys matches none of these: the options are right, and it is the server that must be changed.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	d := newDirect(o)
	if err := d.open(ctx, d.connect); err != nil {
		return nil, fmt.Errorf("redis: opening %s: %w", strings.Join(o.Addrs, ","), d.explainConnect(ctx, err))
	}
	return newStore(d), nil
}

// New opens a store over a client that the program has, and makes it if there is none
// under the prefix. The client is a *redis.Client of go-redis, of one server or from
// NewFailoverClient, or a *redis.ClusterClient; a Ring is refused. Close leaves it open.
// The client must stay open as long as the store. ctx bounds New alone.
//
// Of the options New heeds Prefix, Partitions, ReadTimeout, WriteTimeout,
// NoCoalesce and AsIs. All others say how to reach the servers, which the client knows; New
// refuses options in which they are set.
//
// The client's own options may be what they like, with one exception: a ClusterClient
// must not have its ReadTimeout or WriteTimeout turned off. In particular
//   - no write is sent twice, whatever MaxRetries says and whatever hooks do;
//   - each call waits for an answer no longer than the greater of Options.ReadTimeout
//     and Options.WriteTimeout, and no longer than its context, whatever
//     ContextTimeoutEnabled says;
//   - both protocols (2 and 3) will do, and so do credentials providers, dialers and
//     limiters; a ReadOnly or routing ClusterClient is asked for primaries only;
//   - hooks of the client do not see the store's commands, because go-redis gives none
//     to a client with other timeouts. Measure the store with package otelstore.
//
// The store trusts the pool's connections: a program that takes one with Conn and selects
// another database must give it back as it was.
//
// New checks the servers and the store's record as Open does, and gives the same
// errors; they match rowstore.ErrClosed if the client is closed. There are two differences
// afterwards, because the store does not see the client make its connections:
//   - A server that takes over behind a Client is not checked again, except by Report.
//     Of a Cluster, each server is checked before its first use.
//   - Every script asks its server whether it is a primary, which costs it about 3 us.
func New(ctx context.Context, client goredis.UniversalClient, o Options) (*Store, error) {
	connect, err := o.borrow(client)
	if err != nil {
		return nil, err
	}
	d := newDirect(o)
	d.strict.Store(true)
	if err := d.open(ctx, func(ctx context.Context) error { return connect(ctx, d) }); err != nil {
		return nil, fmt.Errorf("redis: opening the store with the prefix %q over a client: %w", o.Prefix, err)
	}
	return newStore(d), nil
}

// newDirect makes a store that has not connected yet. It needs complete options.
func newDirect(o Options) *direct {
	s := &direct{opts: o, channel: o.Prefix + ":wake", lateAfter: min(o.ReadTimeout+o.WriteTimeout, maxTimeout), over: make(chan struct{})}
	s.ended, s.stop = context.WithCancel(context.Background())
	s.parts = newParts(o.Prefix, max(o.Partitions, 1))
	s.okey = s.parts[0].tag + "o"
	s.pusher = newPusher(s)
	return s
}

// open connects, checks the servers, and finds the store's record or makes it. The
// store is closed if it fails.
func (s *direct) open(ctx context.Context, connect func(ctx context.Context) error) error {
	err := connect(ctx)
	if err == nil {
		_, err = s.askMasters(ctx)
	}
	if err == nil {
		err = s.claim(ctx)
	}
	if err != nil {
		err = s.withReason(ctx, err)
		_ = s.Close()
	}
	return err
}

// explainConnect adds what may be wrong with the address to an error of open. No error
// of go-redis or of the server holds a password.
func (s *direct) explainConnect(ctx context.Context, err error) error {
	tls := s.opts.TLS != nil
	switch {
	case goredis.HasErrorPrefix(err, "DB index"), goredis.HasErrorPrefix(err, "invalid DB index"):
		// Later it is no matter of the options: another server has taken over.
		return fmt.Errorf("%w: the server has no database of that number (see its setting databases): %w", rowstore.ErrInvalid, err)
	case ctx.Err() == nil && tls && (isTimeout(err) || errors.Is(err, context.DeadlineExceeded)):
		return fmt.Errorf("the tls handshake got no answer; perhaps the server does not speak TLS there: %w", err)
	case !tls && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)):
		for _, a := range s.opts.Addrs {
			said := refusal(ctx, a)
			if strings.HasPrefix(said, "DENIED ") {
				// It is not away, as the broken connection alone would say.
				return fmt.Errorf("%w: %s said: %s; give it a password, or connect from its own machine", rowstore.ErrDenied, a, said)
			}
			if said != "" {
				return fmt.Errorf("%s said: %s: %w", a, said, err)
			}
		}
		return fmt.Errorf("the server hung up; perhaps it wants TLS (rediss://): %w", err)
	}
	return err
}

// refusal returns the first sentence of what a server says to a connection that it ends at
// once: in protected mode, or with as many clients as it takes. go-redis reads that as the answer
// to its greeting, and goes on as with an old server. It is empty if the server says nothing.
func refusal(ctx context.Context, addr string) string {
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	if until, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(until)
	}
	line, _ := bufio.NewReader(io.LimitReader(conn, 1024)).ReadString('\n')
	said, isError := strings.CutPrefix(line, "-")
	if !isError {
		return ""
	}
	said, _, _ = strings.Cut(said, ". ")
	return strings.TrimSpace(said)
}
