package percolator

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// guards are the ways in which a transaction that only notifies depends on rowA.
var guards = map[string]struct {
	isolation Isolation
	read      func(ctx context.Context, tx *Txn) error
}{
	"GetForUpdate": {SnapshotIsolation, func(ctx context.Context, tx *Txn) error { _, err := tx.GetForUpdate(ctx, rowA); return err }},
	"Get":          {Serializable, func(ctx context.Context, tx *Txn) error { _, err := tx.Get(ctx, rowA); return err }},
	"GetMany":      {Serializable, func(ctx context.Context, tx *Txn) error { _, err := tx.GetMany(ctx, rowA); return err }},
	"Scan":         {Serializable, func(ctx context.Context, tx *Txn) error { return scanError(tx.Scan(ctx, Range{Table: "t", To: "b"})) }},
}

// hints are the notifications of the observed column.
func (w *world) hints() (n int) {
	for _, key := range []string{"x", "y"} {
		n += len(w.notified(Cell{"t", key, "o"}))
	}
	return n
}

// A transaction that only notifies is refused like any other when what it locked or
// read was changed meanwhile; then it notifies nobody.
func TestGuardedNotifications(t *testing.T) {
	t.Parallel()
	for way, opts := range ways {
		for name, guard := range guards {
			t.Run(way+"/"+name, func(t *testing.T) {
				t.Parallel()
				ctx := t.Context()
				w := newWorld(t)
				w.observed("t", "o", "o")
				c, other := w.client(opts...), w.client()
				set(t, c.DB, rowA, "open")
				notifier := func() *Txn {
					tx := begin(t, c, WithIsolation(guard.isolation))
					require.NoError(t, guard.read(ctx, tx))
					require.NoError(t, errors.Join(tx.Notify(Cell{"t", "x", "o"}), tx.Notify(Cell{"t", "y", "o"})))
					return tx
				}
				// Undisturbed it commits.
				tx := notifier()
				require.NoError(t, tx.Commit(ctx))
				require.Equal(t, []Timestamp{tx.CommitTimestamp()}, w.notified(Cell{"t", "x", "o"}))
				require.Equal(t, []Timestamp{tx.CommitTimestamp()}, w.notified(Cell{"t", "y", "o"}))
				out, err := other.OutcomeOf(ctx, &UndeterminedError{Start: startOf(tx), Primary: Cell{"\x00notices", string(binary.LittleEndian.AppendUint64(nil, uint64(startOf(tx)))), "commit"}})
				require.NoError(t, err)
				require.Equal(t, Outcome{OutcomeCommitted, tx.CommitTimestamp()}, out)

				// Changed before it commits, and changed by another that is being committed.
				tx = notifier()
				set(t, other.DB, rowA, "closed")
				err = tx.Commit(ctx)
				require.ErrorIs(t, err, ErrConflict)
				require.ErrorContains(t, err, "t/a/v", "the cell that was changed")
				require.Zero(t, tx.CommitTimestamp())
				require.Equal(t, 2, w.hints())
				older := w.client(withoutGroups())
				first := writes(t, older, "locked", rowA)
				p := older.hold(t, commitPoint(rowA))
				tx = notifier()
				done := commit(older, first)
				p.wait()
				committing := commit(c, tx)
				require.Eventually(t, func() bool { return c.Stats().LocksMet > 0 }, patience, 1e6)
				p.release(pass)
				require.NoError(t, w.finish(done))
				require.ErrorIs(t, w.finish(committing), ErrConflict)
				require.Equal(t, 2, w.hints())

				// And a writer that was too late for the lock conflicts in turn.
				if name == "GetForUpdate" {
					late := writes(t, other, "late", rowA)
					require.NoError(t, notifier().Commit(ctx))
					require.ErrorIs(t, late.Commit(ctx), ErrConflict)
				}
				// What it leaves is collected.
				require.NoError(t, c.drained(ctx))
				w.clock.advance(2 * worldRetention)
				_, err = w.collect(other, 0)
				require.NoError(t, err)
				for row, err := range w.mem.Scan(ctx, rowstore.ScanRange{Table: "\x00notices", Selectors: []rowstore.Selector{
					everything(rowstore.Lock, rowstore.AllColumns), everything(rowstore.Write, rowstore.AllColumns), everything(rowstore.Mark, rowstore.AllColumns),
				}}) {
					require.NoError(t, err)
					t.Errorf("left behind: %+v", row)
				}
			})
		}
	}
}

// Notifiers that are guarded by what nobody changes do not conflict with each other, and
// one without a guard costs a draw and a put.
func TestNotifiersDoNotConflict(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		ctx := t.Context()
		w.observed("t", "o", "o")
		c := w.client(opts...)
		set(t, c.DB, rowA, "1")
		cell := Cell{"t", "x", "o"}
		var all []*Txn
		for range 3 {
			tx := begin(t, c, WithIsolation(Serializable))
			_, err := tx.Get(ctx, rowA)
			require.NoError(t, err)
			require.NoError(t, tx.Notify(cell))
			all = append(all, tx)
		}
		for _, tx := range slices.Backward(all) {
			require.NoError(t, tx.Commit(ctx))
		}
		require.Len(t, w.notified(cell), 3)
		require.NoError(t, c.drained(ctx))
		for _, isolation := range []Isolation{SnapshotIsolation, Serializable} {
			tx := begin(t, c, WithIsolation(isolation))
			if isolation == SnapshotIsolation {
				_, err := tx.Get(ctx, rowA)
				require.NoError(t, err)
			}
			require.NoError(t, tx.Notify(cell))
			before := len(c.wire.sent(anyCall))
			require.NoError(t, tx.Commit(ctx))
			require.Len(t, c.wire.sent(anyCall), before+2)
		}
	})
}

// Wherever the client of a guarded notifier dies: if it committed, its notification is
// there, and its lock holds nobody up.
func TestGuardedNotifierDiesAtEachCall(t *testing.T) {
	t.Parallel()
	for way, opts := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			statuses := map[OutcomeStatus]int{}
			n := 0
			for fired := true; fired; n++ {
				for _, v := range []verdict{die, dieAfter} {
					w := newWorld(t)
					w.observed("t", "o", "o")
					dead, c := w.client(opts...), w.client()
					set(t, c.DB, rowA, "1")
					tx := begin(t, dead)
					_, err := tx.GetForUpdate(t.Context(), rowA)
					require.NoError(t, err)
					require.NoError(t, tx.Notify(Cell{"t", "x", "o"}))
					r := dead.wire.AddRule(faultstore.Rule{Match: anyCall, Skip: n, Fault: v})
					err = tx.Commit(t.Context())
					require.NoError(t, dead.drained(t.Context()))
					fired = r.Remove() > 0
					w.takeForDeadIfAny(dead)
					out, oerr := c.Outcome(t.Context(), startOf(tx), rowA)
					require.NoError(t, oerr)
					if err == nil {
						require.Equal(t, OutcomeCommitted, out.Status)
					}
					if out.Status == OutcomeCommitted {
						require.Equal(t, []Timestamp{out.Commit}, w.notified(Cell{"t", "x", "o"}))
					}
					statuses[out.Status]++
					set(t, c.DB, rowA, "2")
					w.noLocks()
				}
			}
			require.Greater(t, n, 1)
			require.Positive(t, statuses[OutcomeCommitted])
			require.Positive(t, statuses[OutcomeRolledBack])
		})
	}
}
