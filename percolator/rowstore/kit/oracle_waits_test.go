package kit_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore/kit"
)

// stubborn is a disk that takes its time, whatever becomes of the context, and an oracle
// likewise.
type stubborn struct {
	inside, most, calls int
	begun, hold         chan struct{}
}

func newStubborn() *stubborn {
	return &stubborn{begun: make(chan struct{}, 100), hold: make(chan struct{})}
}

func (s *stubborn) call() {
	s.calls++
	s.inside++
	s.most = max(s.most, s.inside)
	s.begun <- struct{}{}
	<-s.hold
	s.inside--
}

func (s *stubborn) Persist(context.Context, oracle.Timestamp) error {
	s.call()
	return nil
}

// Draw implements oracle.Oracle.
func (s *stubborn) Draw(context.Context, int) (oracle.Timestamp, error) {
	s.call()
	return 1, nil
}

// What is not durable yet is not handed out, to nobody.
func TestBoundedDrawsWaitForTheDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStubborn()
		o := kit.NewBoundedOracle(kit.BoundedConfig{Persist: s.Persist, Window: time.Second})
		first, second := ask(t.Context(), o, 1), ask(t.Context(), o, 1)
		<-s.begun
		late := ask(t.Context(), o, 1)
		synctest.Wait()
		require.Empty(t, first)
		require.Empty(t, second)
		require.Empty(t, late)
		close(s.hold)
		for _, a := range []chan answer{first, second, late} {
			require.NoError(t, (<-a).err)
		}
		require.Equal(t, 1, s.calls)
		require.NoError(t, o.Close(t.Context()))
	})
}

func TestBoundedCloseWaitsForTheDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStubborn()
		o := kit.NewBoundedOracle(kit.BoundedConfig{Persist: s.Persist, Window: time.Second})
		a := ask(t.Context(), o, 1)
		<-s.begun
		closed := make(chan error, 1)
		go func() { closed <- o.Close(t.Context()) }()
		synctest.Wait()
		require.Empty(t, closed, "the disk is still at it")
		close(s.hold)
		require.NoError(t, <-closed)
		require.ErrorIs(t, (<-a).err, oracle.ErrClosed)
		require.Equal(t, 1, s.most, "one at a time")
	})
}

// A disk that fails is not asked again by every draw that goes well without it.
func TestBoundedAsksABrokenDiskSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, calls, broken := newClock(1000), 0, false
		failure := errors.New("disk broken")
		o := kit.NewBoundedOracle(kit.BoundedConfig{Clock: c.now, Window: time.Second, Persist: func(context.Context, oracle.Timestamp) error {
			calls++
			if broken {
				return failure
			}
			return nil
		}})
		draw(t, o, 1)
		require.Equal(t, 1, calls)
		broken = true
		for now := int64(1001); now < 2000; now++ {
			c.ms.Store(now)
			draw(t, o, 1)
			synctest.Wait()
		}
		require.Greater(t, calls, 2, "it is asked again, so that it may have recovered")
		require.Less(t, calls, 20)
		require.ErrorIs(t, o.Close(t.Context()), failure, "the bound stays where it is")
	})
}

func TestBoundedLeastWindow(t *testing.T) {
	t.Parallel()
	c, d := newClock(1000), &disk{}
	o := open(t, d, c, time.Nanosecond)
	draw(t, o, 1)
	require.Equal(t, ms(1001), d.bound(), "a window is a millisecond at least")
}

func TestBatchCloseWaitsForTheDraw(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStubborn()
		b := kit.NewBatchOracle(s)
		a := ask(t.Context(), b, 1)
		<-s.begun
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		synctest.Wait()
		require.Empty(t, closed, "the owner would close the inner oracle under a call")
		close(s.hold)
		require.NoError(t, <-closed)
		require.ErrorIs(t, (<-a).err, oracle.ErrClosed)
		_, err := b.Draw(t.Context(), 1)
		require.ErrorIs(t, err, oracle.ErrClosed)
		require.Equal(t, 1, s.calls, "after Close nobody calls it")
	})
}
