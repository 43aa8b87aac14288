package percolator

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// blocking are operations that may block, from a client with an observed column, a
// parked run and data.
var blocking = map[string]func(ctx context.Context, c *client) error{
	"New": func(ctx context.Context, c *client) error {
		db, err := New(ctx, unclosed{c.wire}, WithClock(c.clock))
		if err == nil {
			err = db.Close(ctx)
		}
		return err
	},
	"Begin": func(ctx context.Context, c *client) error { _, err := c.Begin(ctx); return err },
	"Now":   func(ctx context.Context, c *client) error { _, err := c.Now(ctx); return err },
	"Get": func(ctx context.Context, c *client) error {
		return c.View(ctx, func(tx *Txn) error { _, err := tx.Get(ctx, rowA); return err })
	},
	"GetMany": func(ctx context.Context, c *client) error {
		return c.View(ctx, func(tx *Txn) error { _, err := tx.GetMany(ctx, rowA, rowB); return err })
	},
	"GetForUpdate": func(ctx context.Context, c *client) error {
		return c.Update(ctx, func(tx *Txn) error { _, err := tx.GetForUpdate(ctx, rowA); return err })
	},
	"Scan": func(ctx context.Context, c *client) error {
		return c.View(ctx, func(tx *Txn) error { return scanError(tx.Scan(ctx, Range{Table: "t"})) })
	},
	"Commit": func(ctx context.Context, c *client) error {
		return c.Update(ctx, func(tx *Txn) error {
			return errors.Join(tx.Set(rowA, []byte(longText)), tx.Delete(rowB), tx.Notify(rowC))
		})
	},
	"Commit serializable": func(ctx context.Context, c *client) error {
		return c.Update(ctx, func(tx *Txn) error {
			if _, err := tx.Get(ctx, rowB); err != nil && !errors.Is(err, ErrNotFound) {
				return err
			}
			if err := scanError(tx.Scan(ctx, Range{Table: "t"})); err != nil {
				return err
			}
			return tx.Set(rowA, []byte(longText))
		}, WithIsolation(Serializable))
	},
	"Commit of a weak notification": func(ctx context.Context, c *client) error {
		return c.Update(ctx, func(tx *Txn) error { return tx.Notify(rowC) })
	},
	"Outcome": func(ctx context.Context, c *client) error {
		_, err := c.Outcome(ctx, 77, rowA)
		return err
	},
	"Configure": func(ctx context.Context, c *client) error {
		return c.Configure(ctx, Settings{Retention: worldRetention + time.Duration(c.Stats().Transactions+1)*time.Minute})
	},
	"Observers":      func(ctx context.Context, c *client) error { _, err := c.Observers(ctx); return err },
	"RemoveObserver": func(ctx context.Context, c *client) error { return c.RemoveObserver(ctx, "o2") },
	"Parked":         func(ctx context.Context, c *client) error { _, err := c.Parked(ctx); return err },
	"Release": func(ctx context.Context, c *client) error {
		return c.Release(ctx, ParkedRun{Observer: "o", Cell: row("parked")})
	},
	"look": func(ctx context.Context, c *client) error {
		w := NewWorker(c.DB, WorkerConfig{})
		if err := w.Observe(Observer{Name: "o", Table: "t", Column: "v", Func: func(ctx context.Context, tx *Txn, c Cell) error {
			_, err := tx.Get(ctx, c)
			return err
		}}); err != nil {
			return err
		}
		result, _, err := w.runCell(ctx, row("notified"))
		if result == runAbandoned {
			err = ctx.Err()
		}
		return err
	},
}

// Each call that can block ends with the context's error when the context ends
// within any of its requests; nothing is left behind, and the DB works on.
func TestContextEndsWithinEachCall(t *testing.T) {
	t.Parallel()
	for way, opts := range ways {
		for name, block := range blocking {
			t.Run(way+"/"+name, func(t *testing.T) {
				t.Parallel()
				ended := 0
				for n, fired := 0, true; fired; n++ {
					for _, after := range []bool{false, true} {
						w := newWorld(t)
						w.observed("t", "v", "o", "o2")
						c := w.client(opts...)
						parkOne(t, w, row("parked"))
						set(t, c.DB, rowA, longText)
						set(t, c.DB, row("notified"), "")
						require.NoError(t, c.drained(t.Context()))
						ctx, cancel := context.WithCancel(t.Context())
						r := faultstore.Rule{Match: anyCall, Skip: n}
						if after {
							r.After = func(context.Context, *call) { cancel() }
						} else {
							r.Before = func(context.Context, *call) verdict { cancel(); return pass }
						}
						at := c.wire.AddRule(r)
						err := w.finish(async(func() error { return block(ctx, c) }))
						fired = at.Remove() > 0
						cancel()
						switch {
						case err != nil:
							require.ErrorIs(t, err, context.Canceled, "call %d", n)
							ended++
						case fired && !after && !strings.Contains(name, "Commit") && name != "Release" && name != "RemoveObserver" && name != "New":
							// What goes on in the background does not end with the caller.
							t.Errorf("no error, though the context ended before request %d", n)
						}
						require.NoError(t, c.drained(t.Context()))
						set(t, c.DB, rowA, "after")
						set(t, c.DB, rowB, "after")
						require.Equal(t, "after", value(t, c, rowA))
					}
				}
				require.Positive(t, ended)
			})
		}
	}
}

// parkOne parks a run of observer o for a cell.
func parkOne(t testing.TB, w *world, cell Cell) {
	t.Helper()
	c := w.client()
	set(t, c.DB, cell, "parked")
	wk := watching(t, c, Observer{Name: "o", MaxAttempts: 1, Func: func(context.Context, *Txn, Cell) error { return errors.New("on purpose") }})
	look(t, wk, cell)
	require.EqualValues(t, 1, c.Stats().ObserverParked)
}

// A context that has ended already: nothing is sent and nothing is done.
func TestContextEndedBefore(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o", "o2")
		c := w.client(opts...)
		parkOne(t, w, row("parked"))
		set(t, c.DB, row("notified"), "")
		require.NoError(t, c.drained(t.Context()))
		before := w.versions(rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark, rowstore.Notify)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for name, block := range blocking {
			require.ErrorIs(t, w.finish(async(func() error { return block(ctx, c) })), context.Canceled, name)
		}
		tx := writes(t, c, "1", rowA, rowB)
		require.ErrorIs(t, tx.Commit(ctx), context.Canceled)
		require.NoError(t, c.drained(t.Context()))
		require.Equal(t, before, w.versions(rowstore.Lock, rowstore.Write, rowstore.Data, rowstore.Mark, rowstore.Notify))
		_, err := c.CollectGarbage(ctx, GCOptions{})
		require.ErrorIs(t, err, context.Canceled)
	})
}

// Waiting for a lock of a living transaction ends with the context.
func TestContextEndsWhileWaitingForALock(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1 := w.client(opts...)
		tx := writes(t, t1, "1", rowA, rowB)
		for name, wait := range map[string]func(ctx context.Context, c *client) error{
			"Get":    blocking["Get"],
			"Many":   blocking["GetMany"],
			"Scan":   blocking["Scan"],
			"Commit": func(ctx context.Context, c *client) error { return writes(t, c, "2", rowA, rowB).Commit(ctx) },
		} {
			for _, o := range ways {
				c := w.client(o...)
				p := t1.hold(t, commitPoint(rowA))
				old := writes(t, t1, "1", rowA, rowB)
				done := commit(t1, old)
				p.wait()
				ctx, cancel := context.WithCancel(t.Context())
				waiting := async(func() error { return wait(ctx, c) })
				require.Eventually(t, func() bool { return c.Stats().LocksMet > 2 }, patience, time.Millisecond)
				cancel()
				require.ErrorIs(t, w.finish(waiting), context.Canceled, name)
				require.NoError(t, c.drained(t.Context()))
				p.release(pass)
				require.NoError(t, w.finish(done), name)
				require.NoError(t, t1.drained(t.Context()))
				w.noLocks()
			}
		}
		require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict)
	})
}

// An abort goes on in the background when the caller's context has ended, and does
// not hold the caller up.
func TestAbortDoesNotHoldUpItsCaller(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		tx := writes(t, t1, "1", rowA, rowB)
		ctx, cancel := context.WithCancel(t.Context())
		draw := t1.hold(t, t1.commitDraw())
		done := async(func() error { return tx.Commit(ctx) })
		draw.wait()
		p := t1.hold(t, both(op(faultstore.CallApply), on(rowA))) // the roll back
		cancel()
		p.wait()
		require.ErrorIs(t, w.finish(done), context.Canceled)
		require.Len(t, w.versions(rowstore.Lock), 2)
		p.release(pass)
		require.NoError(t, t1.drained(t.Context()))
		w.noLocks()
		require.Equal(t, "none", value(t, c, rowA))
	})
}
