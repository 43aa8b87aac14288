package export

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator"
)

// TestTakenIsRemoved whatever the sink says beside the number: it has a successor (but none has claimed the key), or wants to be left alone, or its
// context has ended with the worker's.
func TestTakenIsRemoved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sent int
		err  error
		stop bool
	}{
		"superseded after some": {2, ErrSuperseded, false},
		"superseded after all":  {3, ErrSuperseded, false},
		"later after some":      {2, Later(time.Hour, nil), false},
		"stopped after some":    {2, nil, true},
		"stopped with an error": {2, errors.New("no"), true},
		"stopped after all":     {3, nil, true},
		"stopped, superseded":   {1, ErrSuperseded, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			_, o := opened(t)
			put(t, o, "k", "1", "2", "3")
			good, answered := &recorder{}, false
			e := newExporter(o, SinkFunc(func(ctx context.Context, key string, items []Item) (int, error) {
				if answered {
					return good.Send(ctx, key, items)
				}
				answered = true
				if c.stop {
					cancel()
				}
				n, err := good.Send(ctx, key, items[:c.sent])
				return n, errors.Join(err, c.err)
			}), Options{Skip: true, MaxAttempts: 5})
			err := e.export(ctx, string(rowOf("k")))
			require.Error(t, err, "the run is not acknowledged")
			require.Equal(t, 3-c.sent, left(t, o), "%v", err)
			if len(paused(t, o)) == 1 {
				require.NoError(t, resume(t, o, "k"))
			}
			require.NoError(t, e.export(t.Context(), string(rowOf("k"))))
			require.Equal(t, []string{"1", "2", "3"}, good.payloads("k"))
			require.Zero(t, good.again)
			require.Zero(t, left(t, o))
			require.Zero(t, claims(t, o))
		})
	}
}

// endsLater is a context that ends when it has been looked at once more since it was armed.
type endsLater struct {
	context.Context
	armed atomic.Bool
	looks atomic.Int64
}

func (c *endsLater) Err() error {
	if c.armed.Load() && c.looks.Add(1) > 1 {
		return context.Canceled
	}
	return c.Context.Err()
}

// TestStoppedWhileItNotes has a worker that stops when the sink has answered and its answer is being noted.
func TestStoppedWhileItNotes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sent int
		err  error
	}{
		"all": {3, nil}, "some": {2, nil}, "later": {2, Later(time.Hour, nil)}, "superseded": {2, ErrSuperseded}, "failed": {2, errors.New("no")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := &endsLater{Context: t.Context()}
			_, o := opened(t)
			put(t, o, "k", "1", "2", "3")
			good := &recorder{}
			e := newExporter(o, SinkFunc(func(_ context.Context, key string, items []Item) (int, error) {
				n, err := good.Send(t.Context(), key, items[:c.sent])
				ctx.armed.Store(true)
				return n, errors.Join(err, c.err)
			}), Options{})
			require.ErrorIs(t, e.export(ctx, string(rowOf("k"))), context.Canceled)
			require.Equal(t, 3-c.sent, left(t, o), "the sink has taken the others")
			require.Zero(t, good.again)
		})
	}
}

// TestTakenBySomebodyWithASuccessor has an exporter that lost its claim while it sent: what its sink took is the successor's to send and to remove.
func TestTakenBySomebodyWithASuccessor(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	_, o := opened(t)
	put(t, o, "k", "1", "2")
	successor := newExporter(o, &recorder{}, Options{})
	e := newExporter(o, SinkFunc(func(context.Context, string, []Item) (int, error) {
		require.Eventually(t, func() bool {
			held, _, err := successor.take(ctx, "k")
			return err == nil && held != nil
		}, time.Minute, time.Millisecond)
		return 1, ErrSuperseded
	}), Options{Timeout: time.Millisecond})
	require.Error(t, e.export(ctx, string(rowOf("k"))))
	require.Equal(t, 2, left(t, o))
}

// TestLaterAfterAll has a sink that takes all it gets, and wants to be left alone then: it is, also if items are left, or further ones come. The
// pause leaves nothing behind.
func TestLaterAfterAll(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, batch := range []int{1, 10} {
		_, o := opened(t)
		put(t, o, "k", "1", "2", "3")
		calls := 0
		e := newExporter(o, SinkFunc(func(_ context.Context, _ string, items []Item) (int, error) {
			calls++
			return len(items), Later(time.Hour, nil)
		}), Options{Batch: batch})
		require.Error(t, e.export(ctx, string(rowOf("k"))))
		require.Equal(t, 1, calls)
		require.Equal(t, 3-min(batch, 3), left(t, o))
		require.Len(t, paused(t, o), 1)
		require.Error(t, e.export(ctx, string(rowOf("k"))))
		require.Equal(t, 1, calls)
		for left(t, o) > 0 {
			require.NoError(t, resume(t, o, "k"))
			require.Error(t, e.export(ctx, string(rowOf("k"))))
		}

		// The pause is over.
		require.NoError(t, o.db.Update(ctx, func(tx *percolator.Txn) error {
			c, now, err := o.readClaim(ctx, tx, "k")
			require.NoError(t, err)
			c.until = now
			return tx.Set(o.cell(rowOf("k"), claimColumn), c.encode())
		}))
		require.NoError(t, e.export(ctx, string(rowOf("k"))))
		require.Zero(t, claims(t, o))
	}
}

// TestTurnIsShorterThanItsTransaction may be: an acknowledgment that comes later is refused. A slow sink with a long backlog of a key, and one whose only
// call takes that long, fail nothing.
func TestTurnIsShorterThanItsTransaction(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		batch   int
		forEach time.Duration
		timeout time.Duration
		table   bool
	}{
		"many calls":                 {1, 400 * time.Millisecond, 2 * time.Second, true},
		"many calls, the database's": {1, 400 * time.Millisecond, 2 * time.Second, false},
		"one call":                   {50, 400 * time.Millisecond, 24 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				db, o := opened(t)
				var err error
				if c.table {
					err = db.ConfigureTable(ctx, "outbox", percolator.TableSettings{MaxTxnAge: 6 * time.Second, Retention: 12 * time.Second})
				} else {
					err = db.Configure(ctx, percolator.Settings{MaxTxnAge: 6 * time.Second, Retention: 12 * time.Second})
				}
				require.NoError(t, err)
				time.Sleep(time.Minute)
				var want []string
				for i := range 50 {
					want = append(want, strconv.Itoa(i))
					put(t, o, "k", strconv.Itoa(i))
				}
				good := &recorder{}
				sink := SinkFunc(func(ctx context.Context, key string, items []Item) (int, error) {
					time.Sleep(time.Duration(len(items)) * c.forEach)
					return good.Send(ctx, key, items)
				})
				w := percolator.NewWorker(db, percolator.WorkerConfig{GCInterval: -1})
				var mu sync.Mutex
				var failures []error
				require.NoError(t, w.OnError(func(_ context.Context, e percolator.RunError) {
					mu.Lock()
					defer mu.Unlock()
					failures = append(failures, e.Err)
				}))
				require.NoError(t, w.Observe(observer(t, o, sink, Options{Batch: c.batch, MaxAttempts: 1, Timeout: c.timeout})))
				running, stop := context.WithCancel(ctx)
				ended := make(chan error, 1)
				go func() { ended <- w.Run(running) }()
				require.NoError(t, w.WaitIdle(ctx))
				stop()
				require.NoError(t, <-ended)
				require.Empty(t, failures)
				parked, err := db.Parked(ctx)
				require.NoError(t, err)
				require.Empty(t, parked)
				require.Equal(t, want, good.payloads("k"))
				require.Zero(t, good.again)
				require.Zero(t, claims(t, o))
			})
		})
	}
}
