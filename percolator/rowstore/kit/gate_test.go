package kit_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

func TestGateEndsCallsAndWaits(t *testing.T) {
	t.Parallel()
	g := kit.NewGate("test")
	require.NoError(t, g.Enter(t.Context(), "short"))
	ctx, end, err := g.Begin(t.Context(), "long")
	require.NoError(t, err)
	require.NoError(t, g.Fail("long", nil))
	require.EqualError(t, g.Fail("long", errors.New("broken")), "test: long: broken")
	released := make(chan struct{})
	closed := make(chan error, 1)
	go func() {
		closed <- g.Close(func() error { close(released); return errors.New("disk") })
	}()
	<-ctx.Done()
	<-g.Done()
	require.ErrorIs(t, g.Fail("long", ctx.Err()), rowstore.ErrClosed)
	require.ErrorIs(t, g.Fail("long", ctx.Err()), context.Canceled)
	_, _, err = g.Begin(t.Context(), "late")
	require.ErrorIs(t, err, rowstore.ErrClosed)
	require.ErrorIs(t, g.Enter(t.Context(), "late"), rowstore.ErrClosed)
	end()
	select {
	case <-released:
		require.Fail(t, "a call is inside")
	default:
	}
	g.Leave()
	require.EqualError(t, <-closed, "test: close: disk")
	require.NoError(t, g.Close(func() error { panic("called twice") }))
	require.NoError(t, kit.NewGate("unused").Close(nil))
}

func TestGateContext(t *testing.T) {
	t.Parallel()
	g := kit.NewGate("test")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := g.Begin(gone, "call")
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, rowstore.ErrClosed)
	past, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	require.ErrorIs(t, g.Enter(past, "call"), context.DeadlineExceeded)
	ctx, cancel := context.WithCancel(t.Context())
	inner, end, err := g.Begin(ctx, "call")
	require.NoError(t, err)
	cancel()
	<-inner.Done()
	end()
	require.NoError(t, g.Close(nil), "nobody is inside")
	require.ErrorIs(t, g.Enter(gone, "call"), context.Canceled, "the context's error wins")
}

// A call that has ended leaves nothing with the gate, which lives as long as the store.
func TestGateForgetsCalls(t *testing.T) {
	t.Parallel()
	g := kit.NewGate("test")
	collected := make(chan struct{})
	func() {
		type request struct{ text []byte }
		r := &request{make([]byte, 1<<10)}
		runtime.AddCleanup(r, func(c chan struct{}) { close(c) }, collected)
		type key struct{}
		inner, end, err := g.Begin(context.WithValue(t.Context(), key{}, r), "call")
		require.NoError(t, err)
		require.NoError(t, inner.Err())
		end()
		require.ErrorIs(t, inner.Err(), context.Canceled, "what was made from the context of the call ends with it")
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		select {
		case <-collected:
			return true
		default:
			return false
		}
	}, time.Minute, time.Millisecond, "the gate holds a context of a call that has ended")
	require.NoError(t, g.Close(nil))
	// An error that says so itself is not told twice.
	require.EqualError(t, g.Fail("call", rowstore.ErrClosed), "test: call: "+rowstore.ErrClosed.Error())
}

func TestGateUnderManyCalls(t *testing.T) {
	t.Parallel()
	g := kit.NewGate("test")
	var open sync.RWMutex // a call inside holds it; release needs it
	var calls sync.WaitGroup
	begun := make(chan struct{}, 8)
	for w := range 8 {
		calls.Go(func() {
			for i := 0; ; i++ {
				if w%2 == 0 {
					if g.Enter(t.Context(), "call") != nil {
						return
					}
					open.RLock()
					open.RUnlock() //nolint:staticcheck // the lock is the assertion
					g.Leave()
				} else {
					_, end, err := g.Begin(t.Context(), "call")
					if err != nil {
						return
					}
					open.RLock()
					open.RUnlock() //nolint:staticcheck // the lock is the assertion
					end()
				}
				if i == 100 {
					begun <- struct{}{}
				}
			}
		})
	}
	<-begun
	var closers sync.WaitGroup
	released := 0
	for range 3 {
		closers.Go(func() {
			_ = g.Close(func() error {
				if !open.TryLock() {
					return errors.New("a call is inside")
				}
				open.Unlock()
				released++
				return nil
			})
			require.ErrorIs(t, g.Enter(t.Context(), "call"), rowstore.ErrClosed)
		})
	}
	closers.Wait()
	calls.Wait()
	require.Equal(t, 1, released)
}

func TestGateOracle(t *testing.T) {
	t.Parallel()
	g := kit.NewGate("test")
	r := newRemote()
	o := g.Oracle(r)
	a := ask(t.Context(), o, 2)
	c := <-r.calls
	c.answer <- nil
	require.Equal(t, answer{1, nil}, <-a)
	_, err := o.Draw(t.Context(), 0)
	require.ErrorIs(t, err, rowstore.ErrInvalid)
	a = ask(t.Context(), o, 1)
	<-r.calls
	require.NoError(t, g.Close(nil))
	for _, err := range []error{(<-a).err, (<-ask(t.Context(), o, 1)).err} {
		require.ErrorIs(t, err, oracle.ErrClosed)
		require.ErrorIs(t, err, rowstore.ErrClosed)
	}
}
