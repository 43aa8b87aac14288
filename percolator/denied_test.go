package percolator

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// A store may deny access in the middle of a call, so nobody knows what that call did. It would deny it for ever, so nothing is
// sent again and again until a context ends, which often never does.
func TestDeniedInTheMiddleOfACall(t *testing.T) {
	t.Parallel()
	denied := faultstore.Fault{Kind: faultstore.Fail, Err: errors.Join(rowstore.ErrAmbiguous, rowstore.ErrDenied)}
	for name, use := range map[string]func(ctx context.Context, c *client) error{
		"catalog": func(ctx context.Context, c *client) error {
			return c.Configure(ctx, Settings{Retention: 3 * worldRetention})
		},
		"hold": func(ctx context.Context, c *client) error {
			_, err := c.Hold(ctx, "backup", 0, longTTL)
			return err
		},
		"session": func(ctx context.Context, c *client) error {
			return c.Update(ctx, func(tx *Txn) error { return errors.Join(tx.Set(rowB, []byte("1")), tx.Set(rowC, []byte("1"))) })
		},
		"prewrite": func(ctx context.Context, c *client) error {
			return c.Update(ctx, func(tx *Txn) error { return errors.Join(tx.Set(rowB, []byte("1")), tx.Set(rowC, []byte("1"))) })
		},
		"weak notification": func(ctx context.Context, c *client) error {
			return c.Update(ctx, func(tx *Txn) error { return tx.Notify(rowB) })
		},
		"incarnation": func(ctx context.Context, c *client) error {
			_, err := c.incarnation(ctx)
			return err
		},
		"lock of the dead": func(ctx context.Context, c *client) error {
			return c.View(ctx, func(tx *Txn) error {
				_, err := tx.Get(ctx, rowA)
				return err
			})
		},
		"outcome": func(ctx context.Context, c *client) error {
			ts, err := c.Now(ctx)
			if err == nil {
				_, err = c.Outcome(ctx, ts, rowC)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			w := newWorld(t)
			w.observed(rowB.Table, rowB.Column, "o")
			dead, c := w.client(withoutGroups()), w.client(withoutGroups())
			dead.wire.AddRule(faultstore.Rule{Match: commitPoint(rowA), Fault: die})
			require.Error(t, writes(t, dead, "1", rowA).Commit(ctx))
			w.takeForDeadIfAny(dead)
			match := op(faultstore.CallApply)
			if name == "prewrite" {
				match = both(match, on(rowB))
			}
			r := c.wire.AddRule(faultstore.Rule{Match: match, Times: -1, Fault: denied})
			require.ErrorIs(t, use(ctx, c), ErrDenied)
			require.Positive(t, r.Struck())
			require.NoError(t, ctx.Err())
		})
	}
}

// The same while rows are erased, which begins again with what it could not remove.
func TestDeniedErasing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	set(t, c.DB, rowA, "1")
	r := c.wire.AddRule(faultstore.Rule{
		Match: both(op(faultstore.CallApply), on(rowA)), Times: -1,
		Fault: faultstore.Fault{Kind: faultstore.Fail, Err: errors.Join(rowstore.ErrAmbiguous, rowstore.ErrDenied)},
	})
	require.ErrorIs(t, w.eraseOf(c, "", ""), ErrDenied)
	require.Positive(t, r.Struck())
}

// The reply to the commit point is lost, and then access is denied. Nobody can tell the outcome, and to ask again for it would not help.
func TestDeniedAfterALostReply(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c := w.client(opts...)
		tx := writes(t, c, "1", rowA, rowB)
		var lost atomic.Bool
		c.wire.AddRule(faultstore.Rule{Match: func(*call) bool { return lost.Load() }, Times: -1, Fault: faultstore.Fault{Kind: faultstore.Fail, Err: rowstore.ErrDenied}})
		r := c.wire.AddRule(faultstore.Rule{Match: commitPoint(rowA), Before: func(context.Context, *call) verdict {
			lost.Store(true)
			return lose
		}})
		err := tx.Commit(ctx)
		require.EqualValues(t, 1, r.Struck())
		require.ErrorIs(t, err, ErrUndetermined)
		require.ErrorIs(t, err, ErrDenied)
		require.NoError(t, ctx.Err())
	})
}
