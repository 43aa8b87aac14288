package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"

	goredis "github.com/redis/go-redis/v9"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// nextStep is what to do with a call after its answer or its failure.
type nextStep uint8

const (
	finished nextStep = iota
	sendAgain
	sendAgainLater
)

// decide returns what to do with a call after its answer or its failure. If the call is
// finished, c.err is what its caller gets.
func (s *direct) decide(ctx context.Context, c *call) nextStep {
	if c.err == nil {
		return finished
	}
	v := finished
	if isAnswer(c.err) {
		v = s.decideOnAnswer(ctx, c)
	} else {
		v = s.decideOnFailure(ctx, c)
	}
	if v == finished && c.script.writes && c.sent {
		c.err = fmt.Errorf("%w: %w", rowstore.ErrAmbiguous, c.err)
	}
	return v
}

// decideOnAnswer is decide for an error that the server answered.
func (s *direct) decideOnAnswer(ctx context.Context, c *call) nextStep {
	text := c.err.Error()
	switch {
	case strings.HasPrefix(text, "NOSCRIPT") && !c.source:
		c.source = true
		c.refused()
		return sendAgain
	case elsewhere(text):
		c.refused()
		c.err = fmt.Errorf("%w: partition %d is not served now: %w", rowstore.ErrUnavailable, c.part, c.err)
		s.nodes.moved(ctx)
		return sendAgainLater
	case c.script.reads && !c.strict && (strings.HasPrefix(text, "MISCONF") || strings.HasPrefix(text, "NOREPLICAS")):
		// The server refuses scripts that may write. The strict variant is flagged as one
		// that does not.
		c.strict, c.source = true, false
		c.refused()
		return sendAgain
	case strings.HasPrefix(text, "FORMAT "):
		// The scripts look at the version before they write anything.
		c.refused()
		version, remedy := strings.TrimPrefix(text, "FORMAT "), "use a program of that version"
		if n, err := strconv.Atoi(version); err == nil && n < formatVersion {
			remedy = "a failover or a backup has undone the migration; open the store anew, which migrates it again"
		}
		c.err = fmt.Errorf("%w: the store with the prefix %q has format version %s now, this program writes version %d: %s",
			rowstore.ErrFormat, s.opts.Prefix, version, formatVersion, remedy)
		return finished
	case strings.HasPrefix(text, "CLUSTERDOWN"):
		s.nodes.moved(ctx)
	}
	// The server names the script when a command inside it failed: then others
	// may have written before. It does not when it refused to run the script.
	c.sent = strings.Contains(text, "script: ") || strings.Contains(text, "user_script") || strings.Contains(text, "running script ")
	if !c.script.writes {
		c.err = damaged(c.err)
	}
	if c.err = explain(c.err); !c.sent || !c.script.writes {
		c.err = unavailable(c.err)
	}
	return finished
}

// decideOnFailure is decide for a call that got no answer.
func (s *direct) decideOnFailure(ctx context.Context, c *call) nextStep {
	err := c.err
	if errors.Is(err, errStrict) && !(c.script.writes && c.sent) {
		// The call was kept back. Another one of the same pipeline may have left before;
		// a call that writes is not sent again then.
		c.source = false
		c.refused()
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
		c.refused()
		return sendAgain
	}
	if c.script.writes && c.sent {
		// It may have been applied, so the error must not ask the caller to repeat it.
		c.err = s.withReason(ctx, err)
	}
	return finished
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

// isAnswer tells whether an error is a server's answer.
func isAnswer(err error) bool {
	var server goredis.Error
	return errors.As(err, &server) && !errors.Is(err, goredis.Nil)
}

// withReason adds why nobody waited any longer: the store or its client was closed, or
// the context ended.
func (s *direct) withReason(ctx context.Context, err error) error {
	if s.closed.Load() || errors.Is(err, goredis.ErrClosed) && !errors.Is(err, rowstore.ErrClosed) {
		return fmt.Errorf("%w: %w", rowstore.ErrClosed, err)
	}
	if ctxErr := ctx.Err(); ctxErr != nil {
		if errors.Is(err, ctxErr) {
			return err
		}
		return fmt.Errorf("%w: %w", ctxErr, err)
	}
	if isTimeout(err) && contexts.Ended(ctx) != nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}

// failure completes an error after which certainly nothing was changed: it says whether
// the store or its client was closed, the context ended, or the server is away.
func (s *direct) failure(ctx context.Context, err error) error {
	if s.closed.Load() || errors.Is(err, goredis.ErrClosed) || ctx.Err() != nil || isTimeout(err) && contexts.Ended(ctx) != nil {
		return s.withReason(ctx, err)
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
	if isAnswer(err) {
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
	return isNetwork(err) || isTimeout(err) || errors.As(err, &dns) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, goredis.ErrPoolTimeout) || errors.Is(err, goredis.ErrPoolExhausted) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED)
}

// isNetwork tells whether an error is the network's: what became of a connection, whatever the
// cause. At a failover go-redis itself closes the connections to the old primary under those who
// wait for an answer (net.ErrClosed). The caller has ruled out that the store or its client was
// closed.
func isNetwork(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) {
		// These two come from package tls, and are about a certificate, or how somebody speaks TLS.
		return op.Op != "remote error" && op.Op != "local error"
	}
	return errors.Is(err, net.ErrClosed)
}

// damaged makes an error of a script that changes no row match rowstore.ErrCorrupt if what it has read is not a store's: Lua itself
// has raised the error, or a key is of another kind. go-redis takes the ERR away that stands before the prefix.
func damaged(err error) error {
	if goredis.HasErrorPrefix(err, "user_script:") || goredis.HasErrorPrefix(err, "WRONGTYPE") {
		return fmt.Errorf("%w: a stored row cannot be read: %w", rowstore.ErrCorrupt, err)
	}
	return err
}

// explain adds to a server's refusal what the operator can do about it.
func explain(err error) error {
	text := err.Error()
	var server goredis.Error
	if errors.As(err, &server) {
		text = server.Error() // without the client's words, which stand before those of a sentinel
	}
	hint := ""
	var kind error
	switch {
	case strings.HasPrefix(text, "OOM "):
		kind, hint = rowstore.ErrFull, "the server has reached maxmemory, so it refuses writes; nothing was written. Raise maxmemory or delete data"
	case strings.HasPrefix(text, "MISCONF") && strings.Contains(text, "No space left on device"):
		kind, hint = rowstore.ErrFull, "the server cannot persist, so it refuses writes; nothing was written. Make room on its disk"
	case strings.HasPrefix(text, "MISCONF"):
		hint = "the server cannot persist, so it refuses writes; its log says why, and often a disk is full"
	case strings.HasPrefix(text, "NOAUTH"):
		kind, hint = rowstore.ErrDenied, "the server wants a password, and none was given; put it into the URL or the options"
	case strings.HasPrefix(text, "WRONGPASS"):
		kind, hint = rowstore.ErrDenied, "user or password is wrong"
	case strings.HasPrefix(text, "NOPERM"), strings.HasPrefix(text, "EXECABORT") && strings.Contains(text, "NOPERM"), strings.Contains(text, "The user executing the script"):
		kind, hint = rowstore.ErrDenied, "the user lacks a permission; the README of backends/redis lists them"
	case isCertificate(err):
		kind, hint = rowstore.ErrDenied, "the server, or this program, does not accept the other's certificate"
	case strings.HasPrefix(text, "READONLY"):
		hint = "the server is a replica; use the address of its primary"
	case strings.HasPrefix(text, "LOADING"):
		hint = "the server is loading its data after a start"
	case strings.HasPrefix(text, "MASTERDOWN"):
		hint = "the server is a replica that has lost its primary"
	case strings.HasPrefix(text, "NOREPLICAS"):
		hint = "the server has too few replicas, so it refuses writes (min-replicas-to-write)"
	default:
		return err
	}
	if kind != nil {
		return fmt.Errorf("%w: %s: %w", kind, hint, err)
	}
	return fmt.Errorf("%s: %w", hint, err)
}

// isCertificate tells whether a connection failed because one side does not accept the other's certificate, or how it speaks TLS.
func isCertificate(err error) bool {
	var ours *tls.CertificateVerificationError
	var theirs *net.OpError
	return errors.As(err, &ours) || errors.As(err, &theirs) && theirs.Op == "remote error"
}
