package percolator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// closes closes a client in which a call is under way that lasts: the call ends with ErrClosed, and everything is as after any other Close.
func (w *world) closes(c *client, name string, done <-chan error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(w.t, c.Close(ctx), name)
	err := w.finish(done)
	require.ErrorIs(w.t, err, ErrClosed, name)
	require.NotErrorIs(w.t, err, context.Canceled, "nobody has cancelled %s", name)
	require.Nil(w.t, w.recordOf(c), "%s: its record of use is left", name)
	if c.session.id == "" {
		return
	}
	rows, err := w.mem.Read(w.t.Context(), []rowstore.RowRead{sessionRead(c.session.id)})
	require.NoError(w.t, err)
	require.Empty(w.t, rows[0].Versions, "%s: its session is left", name)
}

// An erasure waits for an observer that nobody runs. Close does not wait for it.
func TestCloseEndsAnErasure(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.erasing()
	w.observed("t", "v", "o")
	c, other := w.client(withoutOnePhase()), w.client()
	set(t, c.DB, ann1, "secret")
	done := async(func() error {
		_, err := c.Erase(context.Background(), annRange)
		return err
	})
	looks := func(x *call) bool {
		return x.Kind == faultstore.CallScan && x.Range.Table == "t" && len(x.Range.Selectors) == 1 && x.Range.Selectors[0].Family == rowstore.Notify
	}
	require.Eventually(t, func() bool {
		w.clock.advance(worldLease)
		return len(c.wire.sent(looks)) > 2
	}, patience, longSleep/100)
	w.closes(c, "Erase", done)
	require.Equal(t, "none", value(t, other, ann1), "its commits have taken effect")
	w.noLocks()
}

// Every call that may last ends when closing begins, whatever it is at.
func TestCloseEndsWhatLasts(t *testing.T) {
	t.Parallel()
	for name, lasts := range map[string]func(ctx context.Context, c *client) error{
		"TrackCascades": func(ctx context.Context, c *client) error { return c.TrackCascades(ctx) },
		"MoveIndex": func(ctx context.Context, c *client) error {
			_, err := c.MoveIndex(ctx, IndexInfo{State: IndexMaintained}, IndexBuilding)
			return err
		},
		"AwaitIndex":   func(ctx context.Context, c *client) error { return c.AwaitIndex(ctx, IndexInfo{}) },
		"Backlog":      func(ctx context.Context, c *client) error { _, err := c.Backlog(ctx, 0); return err },
		"TimerBacklog": func(ctx context.Context, c *client) error { _, err := c.TimerBacklog(ctx, 0); return err },
		"Parked":       func(ctx context.Context, c *client) error { _, err := c.Parked(ctx); return err },
		"Replays":      func(ctx context.Context, c *client) error { _, err := c.Replays(ctx); return err },
		"WaitObserved": func(ctx context.Context, c *client) error { return c.WaitObserved(ctx, 0, "o", rowA) },
		"History": func(ctx context.Context, c *client) (err error) {
			for _, err = range c.History(ctx, rowA, 0, 0) {
			}
			return err
		},
		"RaiseCatalog": func(ctx context.Context, c *client) error { return c.RaiseCatalog(ctx) },
		"CollectGarbage": func(ctx context.Context, c *client) error {
			_, err := c.CollectGarbage(ctx, GCOptions{Full: true})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o")
			asks := func(x *call) bool {
				return x.Kind == faultstore.CallRead || x.Kind == faultstore.CallScan || x.Kind == faultstore.CallDraw
			}
			for n := range 6 { // it hangs at one of its requests after the other
				c := w.client()
				set(t, c.DB, rowA, fmt.Sprint(n))
				before := len(c.wire.sent(asks))
				p := c.hold(t, func(x *call) bool { return asks(x) && len(c.wire.sent(asks)) >= before+n })
				done := async(func() error { return lasts(context.Background(), c) })
				ended := false
				require.Eventually(t, func() bool {
					w.clock.mu.Lock()
					defer w.clock.mu.Unlock()
					ended = len(done) > 0
					return ended || len(w.clock.sleepers) > 0 || len(p.held.Reached()) > 0
				}, patience, time.Millisecond)
				if ended {
					require.Positive(t, n)
					require.NotErrorIs(t, <-done, ErrClosed)
					return
				}
				w.closes(c, fmt.Sprint(name, " at request ", n), done)
			}
		})
	}
}
