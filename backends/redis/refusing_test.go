package redis

import (
	"context"
	"io"
	"sync/atomic"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
)

// busy is what a server answers that runs somebody's script.
type busy string

func (b busy) Error() string { return string(b) }
func (b busy) RedisError()   {}

// refusing gives a store a client whose new connections are refused, by an answer of the server, while the function says so.
func refusing(t *testing.T, s *direct) (refuse *atomic.Bool) {
	t.Helper()
	refuse = new(atomic.Bool)
	c := newClient(&s.opts, s.opts.Addrs[0], func(context.Context, *goredis.Conn) error {
		if refuse.Load() {
			return busy("BUSY Redis is busy running a script.")
		}
		return nil
	})
	require.NoError(t, s.nodes.close())
	s.nodes = single{client: c}
	return refuse
}

// TestRefusedIsNotEmpty: a server that refuses the connection may have a partition that an earlier store has left.
func TestRefusedIsNotEmpty(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	refusing(t, s).Store(true)
	_, err := s.partsLeft(t.Context())
	require.ErrorContains(t, err, "BUSY")
}

// TestSentAgainHasNotLeft: reads are sent again when the server has closed the idle connection, or wants the strict variant. What the connection of the next attempt says, before anything
// has left by it, is theirs.
func TestSentAgainHasNotLeft(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	for name, decide := range map[string]func(c *call) nextStep{
		"closed": func(c *call) nextStep { c.err = io.EOF; return s.decideOnFailure(t.Context(), c) },
		"strict": func(c *call) nextStep {
			c.err = busy("MISCONF Errors writing")
			return s.decideOnAnswer(t.Context(), c)
		},
	} {
		c := &call{script: readScript, sent: true}
		c.arg.state.Store(payloadLeft)
		require.Equal(t, sendAgain, decide(c), name)
		require.False(t, c.sent, name)
		require.EqualValues(t, payloadHere, c.arg.state.Load(), name)
	}
}
