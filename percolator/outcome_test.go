package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Whichever cell of a transaction is asked first, wherever its client died: every
// cell gives the same answer, it is the truth, and the asking tears nothing.
func TestOutcomeOfEachCellAtEachCall(t *testing.T) {
	t.Parallel()
	cells := []Cell{cutLong, cutObserved, cutDelete, cutLock}
	for way, opts := range ways {
		for first := range cells {
			t.Run(way+"/"+cells[first].Column, func(t *testing.T) {
				t.Parallel()
				outcomes := map[OutcomeStatus]int{}
				n := 0
				for fired := true; fired; n++ {
					for _, v := range []verdict{die, dieAfter} {
						w := newWorld(t)
						cutSetup(w)
						dead, c := w.client(opts...), w.client()
						r := dead.wire.AddRule(faultstore.Rule{Match: anyCall, Skip: n, Fault: v})
						tx, err := cutTxn(t, dead)
						if err == nil {
							err = tx.Commit(t.Context())
						}
						require.NoError(t, dead.drained(t.Context()))
						fired = r.Remove() > 0
						if tx == nil {
							continue
						}
						w.takeForDeadIfAny(dead)
						var all []Outcome
						for i := range cells {
							out, err := c.Outcome(t.Context(), startOf(tx), cells[(first+i)%len(cells)])
							require.NoError(t, err, "call %d %v", n, v)
							all = append(all, out)
						}
						require.Len(t, slices.Compact(all), 1, "call %d %v", n, v)
						committed := cutReader(t, w, c)
						require.Equal(t, committed, all[0].Status == OutcomeCommitted, "call %d %v", n, v)
						if err == nil {
							require.Equal(t, Outcome{OutcomeCommitted, tx.CommitTimestamp()}, all[0])
						}
						outcomes[all[0].Status]++
						afterCut(t, w, committed)
					}
				}
				require.Greater(t, n, 3)
				require.Positive(t, outcomes[OutcomeCommitted])
				require.Positive(t, outcomes[OutcomeRolledBack])
			})
		}
	}
}

// A question by a secondary, or by a cell that is only locked, harms no transaction
// whose owner lives, also before its primary is locked.
func TestOutcomeOfASecondaryOfTheLiving(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		t1, c := w.client(opts...), w.client()
		pending := func(start Timestamp) {
			for _, cell := range []Cell{rowB, rowC} {
				out, err := c.Outcome(t.Context(), start, cell)
				require.NoError(t, err)
				require.Equal(t, Outcome{Status: OutcomePending}, out, "%v", cell)
			}
		}
		tx := writes(t, t1, "1", rowA, rowB)
		_, err := tx.GetForUpdate(t.Context(), rowC)
		require.ErrorIs(t, err, ErrNotFound)
		t1.wire.AddRule(faultstore.Rule{Match: prewrites, Before: func(_ context.Context, x *call) verdict { // the primary comes late
			return verdict{Kind: faultstore.LoseRow, Row: place(x, "a")}
		}})
		late, point := t1.hold(t, prewrites), t1.hold(t, commitPoint(rowA))
		done := commit(t1, tx)
		late.wait()
		pending(startOf(tx))
		late.release(pass)
		point.wait()
		pending(startOf(tx))
		point.release(pass)
		require.NoError(t, w.finish(done))
		require.Equal(t, "1 1", value(t, c, rowA)+" "+value(t, c, rowB))
	})
}

// A cell that was only locked tells of its transaction as long as its mark stands, and
// says so when it does not any more. The primary is always decided.
func TestOutcomeOfALockedCell(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		ctx := t.Context()
		c := w.client(opts...)
		guard := func(out Cell) *Txn {
			tx := writes(t, c, "1", out)
			_, err := tx.GetForUpdate(ctx, rowC)
			require.True(t, err == nil || errors.Is(err, ErrNotFound), "%v", err)
			return tx
		}
		old := startOf(begin(t, c))
		tx := guard(rowA)
		require.NoError(t, tx.Commit(ctx))
		is := Outcome{Status: OutcomeCommitted, Commit: tx.CommitTimestamp()}
		for _, cell := range []Cell{rowA, rowC} {
			out, err := c.Outcome(ctx, startOf(tx), cell)
			require.NoError(t, err)
			require.Equal(t, is, out, "%v", cell)
		}
		set(t, c.DB, rowC, "over")
		out, err := c.Outcome(ctx, startOf(tx), rowC)
		require.NoError(t, err)
		require.Equal(t, is, out, "a later version covers no mark")

		// The mark of a younger one covers it.
		middle := startOf(begin(t, c))
		younger := guard(rowB)
		require.NoError(t, younger.Commit(ctx))
		w.settled() // in two phases, the mark of a secondary follows in the background
		_, err = c.Outcome(ctx, startOf(tx), rowC)
		require.ErrorIs(t, err, ErrTraceLost)
		require.ErrorContains(t, err, "t/c/v")
		out, err = c.OutcomeOf(ctx, fmt.Errorf("wrapped: %w", &UndeterminedError{Start: startOf(tx), Primary: rowA}))
		require.NoError(t, err)
		require.Equal(t, is, out)
		// Of two that have left nothing each, as of their primary.
		for _, start := range []Timestamp{old, middle} {
			_, err = c.Outcome(ctx, start, rowC)
			require.ErrorIs(t, err, ErrTraceLost)
			out, err = c.OutcomeOf(ctx, &UndeterminedError{Start: start, Primary: rowC})
			require.NoError(t, err)
			require.Equal(t, Outcome{Status: OutcomeRolledBack}, out)
		}
		// One that began after the transaction that left the mark was refused.
		before := guard(rowB)
		since := begin(t, c)
		require.NoError(t, before.Commit(ctx))
		out, err = c.Outcome(ctx, startOf(since), rowC)
		require.NoError(t, err)
		require.Equal(t, OutcomeRolledBack, out.Status)

		// Without a trace a cell that would have been locked keeps its transaction from
		// committing, and an answer once given stays.
		tx = guard(rowA)
		_, err = c.OutcomeOf(ctx, tx.Rollback(ctx))
		require.ErrorIs(t, err, ErrInvalid)
		tx = guard(rowA)
		out, err = c.Outcome(ctx, startOf(tx), rowC)
		require.NoError(t, err)
		require.Equal(t, OutcomeRolledBack, out.Status)
		require.ErrorIs(t, tx.Commit(ctx), ErrConflict)
		_, err = c.OutcomeOf(ctx, &UndeterminedError{Start: startOf(tx), Cause: errTest})
		require.ErrorIs(t, err, ErrInvalid)
	})
}

// A fence that arrives when the cell was locked and committed meanwhile proves nothing.
func TestFenceUnderTheMarkOfACommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t1, c := w.client(), w.client()
	tx := writes(t, t1, "1", rowA)
	_, err := tx.GetForUpdate(t.Context(), rowC)
	require.ErrorIs(t, err, ErrNotFound)
	fence := c.hold(t, marks)
	var out Outcome
	asked := async(func() (err error) { out, err = c.Outcome(t.Context(), startOf(tx), rowC); return err })
	fence.wait()
	require.NoError(t, tx.Commit(t.Context()))
	fence.release(pass)
	require.NoError(t, w.finish(asked))
	require.Equal(t, Outcome{Status: OutcomeCommitted, Commit: tx.CommitTimestamp()}, out)
}

// The status of a transaction with very many newer versions above its own takes few and
// small steps, and misses nothing.
func TestStatusUnderManyVersions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	ctx := t.Context()
	const newer = 40 * statusPage
	for _, committed := range []bool{true, false} {
		cell := row(fmt.Sprint(committed))
		var older []Timestamp
		for range 2 * statusPage {
			set(t, c.DB, cell, "older")
			w.clock.advance(1e6)
		}
		for range 3 {
			older = append(older, startOf(begin(t, c))) // they never commit
		}
		tx := writes(t, c, "1", cell)
		if committed {
			require.NoError(t, tx.Commit(ctx))
		}
		for i := range newer {
			set(t, c.DB, cell, "newer")
			w.clock.advance(1e6)
			if i == statusPage-2 || i == statusPage-1 || i == newer-1 {
				before := len(c.wire.sent(op(faultstore.CallRead)))
				state, err := c.status(ctx, startOf(tx), cell)
				require.NoError(t, err)
				require.Equal(t, txnState{committed: tx.CommitTimestamp(), aborted: !committed, complete: !committed}, state, "%d newer versions", i+1)
				for _, start := range older {
					state, err = c.status(ctx, start, cell)
					require.NoError(t, err)
					require.Equal(t, txnState{aborted: true, complete: true}, state)
				}
				reads := c.wire.sent(op(faultstore.CallRead))[before:]
				require.Less(t, len(reads), 4*60)
				for _, x := range reads {
					require.LessOrEqual(t, len(x.Rows[0].Versions), statusPage+2)
				}
			}
		}
	}
	require.Less(t, oracle.Max, Timestamp(1)<<63, "what halves")
}

// What Release could not find out can be asked for, though its primary is a cell of the
// library's own.
func TestOutcomeOfTheLibrarysOwnCells(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		cell := rowA
		w.observed(cell.Table, cell.Column, "o")
		for _, arrives := range []bool{true, false} {
			parkOne(t, w, cell)
			c, other := w.client(opts...), w.client()
			parked, err := c.Parked(t.Context())
			require.NoError(t, err)
			require.Len(t, parked, 1)
			ctx, cancel := context.WithCancel(t.Context())
			point := func(x *call) bool {
				return x.Kind == faultstore.CallGroup || x.Kind == faultstore.CallApply && commits(x)
			}
			c.wire.AddRule(faultstore.Rule{Match: point, Before: func(context.Context, *call) verdict {
				if arrives {
					return loseReply
				}
				cancel()
				return lose
			}, After: func(context.Context, *call) { cancel() }})
			err = c.Release(ctx, parked...)
			var u *UndeterminedError
			require.ErrorAs(t, err, &u)
			c.wire.SetRules()
			require.NoError(t, c.drained(t.Context()))
			w.takeForDeadIfAny(c)
			for _, ask := range []func() (Outcome, error){
				func() (Outcome, error) { return other.Outcome(t.Context(), u.Start, u.Primary) },
				func() (Outcome, error) { return other.OutcomeOf(t.Context(), err) },
			} {
				out, err := ask()
				require.NoError(t, err)
				left, err := other.Parked(t.Context())
				require.NoError(t, err)
				if arrives {
					require.Equal(t, OutcomeCommitted, out.Status, "primary %v", u.Primary)
					require.Empty(t, left)
				} else {
					require.Equal(t, OutcomeRolledBack, out.Status)
					require.Len(t, left, 1)
				}
			}
			if !arrives {
				require.NoError(t, other.Release(t.Context(), parked...))
			}
		}
	})
}

// A client is suspended in the middle of its look at a transaction under many newer
// versions, and the transaction's own is collected meanwhile. It is not taken for one
// that was never there, though the first part of the look showed older versions.
func TestStatusIsNotCollectedWithinALook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, other := w.client(), w.client()
	set(t, c.DB, rowA, "older")
	tx := writes(t, c, "1", rowA)
	require.NoError(t, tx.Commit(t.Context()))
	for range 2 * statusPage {
		set(t, c.DB, rowA, "newer")
	}
	search := c.hold(t, func(x *call) bool {
		return x.Kind == faultstore.CallRead && len(x.Reads[0].Selectors) > 0 && x.Reads[0].Table == rowA.Table && x.Reads[0].Selectors[0].Family == rowstore.Write
	})
	var out Outcome
	asked := async(func() (err error) {
		out, err = c.OutcomeOf(t.Context(), &UndeterminedError{Start: startOf(tx), Primary: rowA})
		return err
	})
	search.wait()
	w.clock.advance(2 * worldRetention)
	report, err := w.collect(other, 0)
	require.NoError(t, err)
	require.Greater(t, report.Versions, statusPage)
	search.release(pass)
	require.ErrorIs(t, w.finish(asked), ErrSnapshotTooOld, "%v", out)
}

// What is no error of a transaction is refused, also a nil one of the right type.
func TestOutcomeOfNoTransaction(t *testing.T) {
	t.Parallel()
	c := newWorld(t).client()
	for _, err := range []error{nil, context.Canceled, (*UndeterminedError)(nil)} {
		_, oerr := c.OutcomeOf(t.Context(), err)
		require.ErrorIs(t, oerr, ErrInvalid)
	}
}
