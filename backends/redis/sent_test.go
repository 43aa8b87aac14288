package redis

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/testserver"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// answered is an error that a server answered.
type answered string

func (e answered) Error() string { return string(e) }
func (answered) RedisError()     {}

// What may have changed something is ambiguous, whatever the server or the client says of it.
func TestDecideOnWrites(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		err  error
		left bool
		want nextStep
		// ambiguous of a finished one; else it certainly changed nothing
		ambiguous bool
	}{
		{"kept back", errStrict, false, sendAgain, false},
		{"another of the pipeline was kept back", errStrict, true, finished, true},
		{"nobody waits for another of the pipeline", errAbandoned, true, finished, true},
		{"refused", answered("READONLY You can't write against a read only replica."), true, finished, false},
		{"busy", answered("BUSY Redis is busy running a script. You can only call SCRIPT KILL."), true, finished, false},
		{"no memory at the beginning", answered("OOM command not allowed when used memory > 'maxmemory'."), true, finished, false},
		{"a command failed", answered("WRONGTYPE Operation against a key script: f00, on @user_script:12."), true, finished, true},
		{"a command failed, older", answered("ERR Error running script (call to f_f00): @user_script:12: x"), true, finished, true},
		{"the interpreter failed", answered("ERR Error running script f_f00, not enough memory"), true, finished, true},
	} {
		s := &direct{nodes: single{}}
		c := &call{script: writeScript, err: tc.err, sent: tc.left}
		require.Equal(t, tc.want, s.decide(context.Background(), c), tc.name)
		if tc.want == finished {
			require.Equal(t, tc.ambiguous, errors.Is(c.err, rowstore.ErrAmbiguous), tc.name)
			require.False(t, tc.ambiguous && errors.Is(c.err, rowstore.ErrUnavailable), tc.name)
		}
	}
}

// turns is an argument that makes a store strict at the moment when it is written.
type turns struct{ s *direct }

func (a turns) MarshalBinary() ([]byte, error) {
	a.s.strict.Store(true)
	return nil, nil
}

// The store meets a server whose replicas take writes while a pipeline leaves: what has
// left of it is not sent again.
func TestStrictInTheMiddleOfAPipeline(t *testing.T) {
	t.Parallel()
	s := bare(t, with(t, testserver.Redis(t)))
	ctx := context.Background()
	apply(t, s, put("z", 1, "the scripts are there, and the clock is known"))
	muts := []rowstore.Mutation{put("a", 1, strings.Repeat("a", maxBytesPerCall+1)), put("b", 1, "b")}
	for i := range muts {
		muts[i].Conditions = []rowstore.Condition{rowstore.Absent(rowstore.Write, "c", 0)}
	}
	var outs [2]rowstore.GroupOutcome
	w := writes{
		n:     len(muts),
		group: func(i int) ([]rowstore.Mutation, bool, rowstore.Timestamp) { return muts[i : i+1], false, 0 },
		done:  func(i int, o *rowstore.GroupOutcome) { outs[i] = *o },
		fail:  func(i int, err error) { outs[i].Err = err },
	}
	batches, err := s.pack(&w, writeScript)
	require.NoError(t, err)
	require.Len(t, batches, 2)
	batches[1].call.args = []any{turns{s}}
	calls := []*call{&batches[0].call, &batches[1].call}
	s.run(ctx, calls)
	require.True(t, s.strict.Load())
	require.ErrorIs(t, calls[0].err, rowstore.ErrAmbiguous, "answer %q", calls[0].answer)
}

// cutOff is a connection that ends under a call that waits for its answer, with an error of the network.
type cutOff struct {
	net.Conn
	next *atomic.Pointer[net.OpError] // of the next read of any of them
}

func (c cutOff) Read(b []byte) (int, error) {
	if err := c.next.Swap(nil); err != nil {
		_ = c.Conn.Close()
		return 0, err
	}
	return c.Conn.Read(b)
}

// At a failover go-redis closes connections that are in use, and a network may go away. What only reads
// or draws is sent again then, and what writes is ambiguous.
func TestConnectionClosedUnderACall(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var next atomic.Pointer[net.OpError]
	c := program(t, &goredis.Options{Addr: hostOf(t, testserver.Redis(t)), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return cutOff{conn, &next}, nil
	}})
	s := openNew(t, c, Options{NoCoalesce: true})
	apply(t, s, put("r", 1, "v"))
	whole := []rowstore.RowRead{{Table: "t", Row: "r", Selectors: allVersions}}
	reading := map[string]func() error{
		"Read":         func() error { _, err := tryNewest(ctx, s, "r"); return err },
		"Read of all":  func() error { _, err := s.Read(ctx, whole); return err },
		"in pieces":    func() error { _, err := s.direct.readWide(ctx, &whole[0]); return err },
		"Draw":         func() error { _, err := s.Oracle().Draw(ctx, 1); return err },
		"ReadSnapshot": func() error { _, err := s.ReadSnapshot(ctx, []rowstore.SnapshotRead{beginOf("r", "c")}); return err },
		"Scan": func() (err error) {
			for _, e := range s.Scan(ctx, rowstore.ScanRange{Table: "t", Selectors: allVersions}) {
				err = errors.Join(err, e)
			}
			return err
		},
	}
	for _, cause := range []error{net.ErrClosed, os.NewSyscallError("read", syscall.EHOSTUNREACH), os.NewSyscallError("read", syscall.ENETUNREACH)} {
		cut := &net.OpError{Op: "read", Net: "tcp", Err: cause}
		for name, call := range reading {
			require.NoError(t, call(), "the scripts are there")
			next.Store(cut)
			require.NoError(t, call(), "%s, %v", name, cause)
			require.Nil(t, next.Load(), name)
		}
		next.Store(cut)
		err := tryApply(ctx, s, put("r", 2, "w"))
		require.ErrorIs(t, err, rowstore.ErrAmbiguous)
		require.NotErrorIs(t, err, rowstore.ErrUnavailable)
	}
	// What the other side says of a certificate does not pass.
	require.False(t, isAway(&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}))
}
