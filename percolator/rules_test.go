package percolator

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Rules of the protocol that the schedules of the review do not pin down, each found
// by breaking it (make mutants).

// Guards: while the lock is there a transaction is undecided, whatever marks stand
// above. The fence of a younger transaction on the same primary leaves one.
func TestRuleMarkOverALockDecidesNothing(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		p := t1.hold(t, commitPoint(rowA))
		tx := writes(t, t1, "1", rowA, rowB)
		start := startOf(tx)
		done := commit(t1, tx)
		p.wait()
		younger := startOf(begin(t, c))
		out, err := c.Outcome(t.Context(), younger, rowA)
		require.NoError(t, err)
		require.Equal(t, Outcome{Status: OutcomeRolledBack}, out)
		row := w.raw(rowA)
		require.NotNil(t, row.At(rowstore.Mark, "v", younger), "no mark above the lock")
		out, err = c.Outcome(t.Context(), start, rowA)
		require.NoError(t, err)
		require.Equal(t, Outcome{Status: OutcomePending}, out)
		p.release(pass)
		require.NoError(t, w.finish(done))
		require.Equal(t, "1 1", value(t, c, rowA)+" "+value(t, c, rowB))
	})
}

// Guards: a fence that comes after the lock, or after the commit, changes nothing.
func TestRuleFenceComesTooLate(t *testing.T) {
	t.Parallel()
	for name, commits := range map[string]bool{"over the lock": false, "over the write": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			t1, c := w.client(withoutGroups()), w.client()
			t1.only(prewrites, rowB) // the primary's is lost, and sent again
			second := t1.hold(t, prewrites)
			point := t1.hold(t, commitPoint(rowA))
			rest := t1.hold(t, secondaries(rowA))
			done := commit(t1, writes(t, t1, "1", rowA, rowB))
			second.wait()
			w.takeForDead(t1)
			fence := c.hold(t, marks)
			got := "none"
			read := async(func() error {
				return c.View(t.Context(), func(tx *Txn) error {
					v, err := tx.Get(t.Context(), rowB)
					if err == nil {
						got = string(v)
					} else if errors.Is(err, ErrNotFound) {
						return nil
					}
					return err
				})
			})
			fence.wait()
			second.release(pass)
			point.wait()
			if commits {
				point.release(pass)
				require.NoError(t, w.finish(done))
			}
			fence.release(pass)
			require.NoError(t, w.finish(read))
			require.Equal(t, "none", got, "the snapshot is older than the commit")
			point.release(pass)
			if commits {
				require.Equal(t, "1 1", value(t, c, rowA)+" "+value(t, c, rowB))
				rest.release(pass)
				return
			}
			// The primary is locked now, and its owner taken for dead: rolled back.
			require.ErrorIs(t, w.finish(done), ErrConflict)
			require.Equal(t, "none none", value(t, c, rowA)+" "+value(t, c, rowB))
		})
	}
}

// Guards: also a transaction that rolls itself back marks its primary, so that a
// prewrite that arrives twice is refused.
func TestRuleOwnRollBackMarksThePrimary(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		tx := writes(t, t1, "1", rowA, rowB)
		set(t, c.DB, rowB, "2")
		require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict)
		require.Zero(t, again(t, t1.wire.sent(prewrites)[0]), "a prewrite was applied again")
		w.noLocks()
	})
}

// Guards: what a serializable transaction read may not be written at the very next
// timestamp either.
func TestRuleValidationBeginsAfterTheStart(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(t *testing.T, tx *Txn){
		"cell": func(t *testing.T, tx *Txn) {
			_, err := tx.Get(t.Context(), rowA)
			require.ErrorIs(t, err, ErrNotFound)
		},
		"range": func(t *testing.T, tx *Txn) {
			for row, err := range tx.Scan(t.Context(), Range{Table: "t"}) {
				require.NoError(t, err)
				require.Fail(t, "the table is empty", row)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			t1, t2 := w.client(withoutGroups()), w.client()
			other := writes(t, t2, "2", rowA)
			tx := begin(t, t1, WithIsolation(Serializable))
			// Between the answer and the timestamp that shows that it is complete.
			t1.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallDraw), Before: func(context.Context, *call) verdict {
				require.NoError(t, other.Commit(t.Context()))
				return pass
			}})
			read(t, tx)
			require.NoError(t, tx.Set(rowB, []byte("1")))
			require.Equal(t, startOf(tx)+1, other.CommitTimestamp())
			require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict)
		})
	}
}

// Guards: f is drawn before the catalog is read. A transaction that reads it, and
// gets the answer a lease late, does not know of what was published meanwhile.
func TestRuleCatalogIsAsOldAsItsRequest(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		t1 := w.client(opts...)
		w.clock.advance(worldLease + time.Second) // so that it is read again
		p := t1.holdReply(t, func(x *call) bool { return x.Kind == faultstore.CallRead && x.Reads[0].Table == format.TableCatalog }, pass)
		done := commit(t1, writes(t, t1, "1", rowA))
		p.wait()
		w.observed("t", "v", "o")
		w.clock.advance(worldLease + time.Second)
		p.release(pass)
		if err := w.finish(done); len(opts) > 0 {
			require.ErrorIs(t, err, ErrConflict, "its locks do not say that the column is observed")
			require.Equal(t, "none", value(t, t1, rowA))
			set(t, t1.DB, rowA, "2")
		} else {
			require.NoError(t, err, "the step was refused, and tried again with the new catalog")
		}
		require.Len(t, w.notified(rowA), 1)
	})
}

// Guards: the collection keeps the newest version at or below the safe point also
// where the next one stands just above it.
func TestRuleCollectionEndsAtTheSafePoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	set(t, c.DB, rowA, "old")
	tx := writes(t, c, "new", rowA)
	w.clock.advance(time.Second)
	at, err := c.Now(t.Context())
	require.NoError(t, err)
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, at+1, tx.CommitTimestamp())
	w.clock.advance(worldRetention)
	report, err := w.collect(c, 0)
	require.NoError(t, err)
	require.Equal(t, at, report.SafePoint)
	got, err := begin(t, c, WithAsOfTimestamp(at)).Get(t.Context(), rowA)
	require.NoError(t, err)
	require.Equal(t, "old", string(got))
}

// Guards: the collection leaves marks above the safe point, which keep prewrites
// under way out.
func TestRuleCollectionLeavesYoungMarks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	set(t, c.DB, rowA, "1")
	set(t, c.DB, rowA, "2")
	w.clock.advance(worldRetention + worldAge)
	start := startOf(begin(t, c))
	out, err := c.Outcome(t.Context(), start, rowA)
	require.NoError(t, err)
	require.Equal(t, Outcome{Status: OutcomeRolledBack}, out)
	report, err := w.collect(c, 0)
	require.NoError(t, err)
	require.Positive(t, report.Versions)
	row := w.raw(rowA)
	require.NotNil(t, row.At(rowstore.Mark, "v", start), "the mark was removed")
}
