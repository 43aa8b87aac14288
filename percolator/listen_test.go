package percolator

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/percolator/rowstore/router"
)

// A worker knows whether the store's push works.
func TestListens(t *testing.T) {
	t.Parallel()
	wk, _ := idleWorker(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := async(func() error { return wk.listen(ctx) })
	require.Eventually(t, wk.listens, patience, time.Millisecond)
	cancel()
	require.ErrorIs(t, result(t, done), context.Canceled)
	require.False(t, wk.listens())
}

// pusher is a store whose push a test makes, over that of the store itself.
type pusher struct {
	rowstore.Store
	push rowstore.Waker

	mu     sync.Mutex
	listen func(ctx context.Context, wake func(rowstore.Wake), push rowstore.Waker) error // nil: the store's own
	began  []time.Time                                                                    // each Listen
}

func newPusher(s rowstore.Store) *pusher {
	return &pusher{Store: s, push: rowstore.AbilitiesOf(s).Waker}
}

func (s *pusher) Abilities() rowstore.Abilities {
	has := rowstore.AbilitiesOf(s.Store)
	has.Waker = s
	return has
}

func (s *pusher) Listen(ctx context.Context, wake func(rowstore.Wake)) error {
	s.mu.Lock()
	s.began = append(s.began, time.Now())
	listen := s.listen
	s.mu.Unlock()
	if listen == nil {
		return s.push.Listen(ctx, wake)
	}
	return listen(ctx, wake, s.push)
}

// pushes sets what listens from now on.
func (s *pusher) pushes(listen func(ctx context.Context, wake func(rowstore.Wake), push rowstore.Waker) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listen = listen
}

// gaps are the times between one Listen and the next, without lasts for each.
func (s *pusher) gaps(lasts time.Duration) (gaps []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range len(s.began) - 1 {
		gaps = append(gaps, s.began[i+1].Sub(s.began[i])-lasts)
	}
	return gaps
}

var errNoPush = errors.New("test: the push fails")

// refused is a push that cannot be had.
func refused(context.Context, func(rowstore.Wake), rowstore.Waker) error { return errNoPush }

// endsAfter is a push whose connection a proxy ends after some time.
func endsAfter(d time.Duration) func(ctx context.Context, wake func(rowstore.Wake), push rowstore.Waker) error {
	return func(ctx context.Context, wake func(rowstore.Wake), push rowstore.Waker) error {
		ctx, cancel := context.WithTimeoutCause(ctx, d, errNoPush)
		defer cancel()
		_ = push.Listen(ctx, wake)
		return context.Cause(ctx)
	}
}

// listening lets a worker listen to a store for some time.
func (c *crew) listening(s rowstore.Store, d time.Duration) {
	c.t.Helper()
	w := NewWorker(c.open(faultstore.New(s, faultstore.Options{KeepOpen: true, Seed: 1})), WorkerConfig{Backoff: Backoff{Min: time.Hour, Max: 24 * time.Hour}})
	ctx, cancel := context.WithTimeout(c.t.Context(), d)
	defer cancel()
	require.ErrorIs(c.t, w.listen(ctx), context.DeadlineExceeded)
	require.False(c.t, w.listens())
}

// A worker that could listen for a while listens again soon, however often that ended before.
func TestListensAgainSoon(t *testing.T) {
	for _, lasts := range []time.Duration{longTroublePause, time.Hour} {
		eachCrewNamed(t, lasts.String(), func(t *testing.T, c *crew) {
			s := newPusher(c.mem)
			s.pushes(endsAfter(lasts))
			c.listening(s, 30*lasts)
			gaps := s.gaps(lasts)
			require.Greater(t, len(gaps), 25)
			for i, gap := range gaps {
				require.LessOrEqual(t, gap, troublePause, "loss %d", i+1)
			}
		})
	}
}

// A push that is had and lost again and again does not make a worker look everywhere all the time, no more than one that cannot
// be had at all.
func TestListensLaterAfterVainAttempts(t *testing.T) {
	for name, lasts := range map[string]time.Duration{"at once": 0, "after a second": time.Second} {
		eachCrewNamed(t, name, func(t *testing.T, c *crew) {
			s := newPusher(c.mem)
			s.pushes(endsAfter(lasts))
			c.listening(s, 10*time.Minute)
			require.Less(t, len(s.gaps(0)), 400)
			require.Greater(t, len(s.gaps(0)), 10*60/7)
		})
	}
}

// mateOverTwoStores is a crew over two stores, of which the second has table "u", with one worker of a table in each.
func mateOverTwoStores(t *testing.T, c *crew) (main, other *pusher, m *mate) {
	t.Helper()
	main, other = newPusher(c.mem), newPusher(memstore.New())
	r, err := router.New(router.Config{Stores: map[string]rowstore.Store{"main": main, "other": other}, Tables: map[string]string{"u": "other"}, Authoritative: "main"})
	require.NoError(t, err)
	c.source = c.open(faultstore.New(r, faultstore.Options{KeepOpen: true, Seed: 1}))
	m = &mate{t: t, ended: make(chan struct{}), wire: faultstore.New(r, faultstore.Options{KeepOpen: true, Seed: 1})}
	m.Worker = NewWorker(c.open(m.wire), WorkerConfig{Rescan: time.Hour, GCInterval: -1})
	for _, table := range []string{"t", "u"} {
		require.NoError(t, m.Observe(Observer{Name: table, Table: table, Column: "v", Func: func(_ context.Context, _ *Txn, cell Cell) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.calls = append(m.calls, table+"/"+cell.Row)
			return nil
		}}))
	}
	return main, other, m
}

// The push of one store goes on while that of another fails, which is tried again by itself, ever later.
func TestPushOfOneStoreFails(t *testing.T) {
	for name, fails := range map[string]func(context.Context, func(rowstore.Wake), rowstore.Waker) error{
		"refused": refused, "lost at once": endsAfter(0), "lost soon": endsAfter(10 * time.Millisecond),
	} {
		eachCrewNamed(t, name, func(t *testing.T, c *crew) {
			main, other, m := mateOverTwoStores(t, c)
			other.pushes(fails)
			m.start()
			settle()
			require.False(t, m.listens())
			set(t, c.source, Cell{"t", "heard", "v"}, "x")
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			require.True(t, m.called("t/heard"), "by the push of the store whose push works")
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			require.Empty(t, main.gaps(0), "it is listened to once")
			gaps := other.gaps(0)
			require.Less(t, len(gaps), 200)
			require.Greater(t, len(gaps), 40)

			set(t, c.source, Cell{"u", "missed", "v"}, "x")
			other.pushes(nil)
			time.Sleep(longTroublePause)
			synctest.Wait()
			require.True(t, m.listens())
			require.True(t, m.called("u/missed"), "once its push works, what it has not told of is looked for")
			set(t, c.source, Cell{"u", "heard", "v"}, "x")
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			require.True(t, m.called("u/heard"))
		})
	}
}

// What a worker's own runs and timers lead to does not wait for a scan while its push does not work, as it does not where there is none.
func TestCascadeWhileThePushFails(t *testing.T) {
	for name, fails := range map[string]func(context.Context, func(rowstore.Wake), rowstore.Waker) error{"refused": refused, "lost at once": endsAfter(0)} {
		eachCrewNamed(t, name, func(t *testing.T, c *crew) {
			s := newPusher(c.mem)
			s.pushes(fails)
			c.source = c.open(faultstore.New(s, faultstore.Options{KeepOpen: true, Seed: 1}))
			m := &mate{t: t, ended: make(chan struct{}), wire: faultstore.New(s, faultstore.Options{KeepOpen: true, Seed: 1})}
			m.Worker = NewWorker(c.open(m.wire), WorkerConfig{Rescan: time.Hour, GCInterval: -1})
			for from, to := range map[string]string{"a": "b", "b": "c", "c": "d"} {
				require.NoError(t, m.Observe(Observer{Name: from, Table: "t", Column: from, Func: func(_ context.Context, tx *Txn, cell Cell) error {
					m.mu.Lock()
					defer m.mu.Unlock()
					m.calls = append(m.calls, from)
					if from == "c" {
						return tx.NotifyAt(Cell{"t", cell.Row, "timed"}, time.Now().Add(time.Minute))
					}
					return tx.Set(Cell{"t", cell.Row, to}, nil)
				}}))
			}
			require.NoError(t, m.Observe(Observer{Name: "timed", Table: "t", Column: "timed", Func: func(context.Context, *Txn, Cell) error {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.calls = append(m.calls, "timed")
				return nil
			}}))
			m.start()
			settle()
			require.False(t, m.listens())
			set(t, c.source, Cell{"t", "row", "a"}, "x")
			time.Sleep(time.Second)
			synctest.Wait()
			require.False(t, m.called("a"), "no push tells of it")
			m.kickTable("t")
			time.Sleep(time.Second)
			synctest.Wait()
			for _, name := range []string{"a", "b", "c"} {
				require.True(t, m.called(name), name)
			}
			time.Sleep(2 * time.Minute) // timers are looked for from time to time
			synctest.Wait()
			require.True(t, m.called("timed"))
		})
	}
}
