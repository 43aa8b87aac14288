package percolator

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Schedules of a review of the protocol (docs/correctness.md), each one driven call by
// call against the code: Serializable transactions.

// C3. Guards: the one-phase commit of a serializable transaction has what it read as
// conditions, foreign locks included; ranges go two ways about it.
func TestScheduleC3_OnePhaseAndSerializable(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		for name, read := range map[string]func(tx *Txn) error{
			"cell": func(tx *Txn) error {
				_, err := tx.Get(t.Context(), rowA)
				if errors.Is(err, ErrNotFound) {
					err = nil
				}
				return err
			},
			"range": func(tx *Txn) (err error) {
				for _, err = range tx.Scan(t.Context(), Range{Table: "t", To: "b"}) {
				}
				return err
			},
		} {
			t1, t2 := w.client(opts...), w.client(opts...)
			for _, found := range []bool{false, true} {
				tx := begin(t, t2, WithIsolation(Serializable))
				require.NoError(t, read(tx))
				require.NoError(t, tx.Set(rowB, []byte("2")))
				set(t, t1.DB, rowA, "1")
				require.ErrorIs(t, tx.Commit(t.Context()), ErrConflict, "%v, found %v", name, found)
				w.noLocks()
				// Undisturbed it commits.
				tx = begin(t, t2, WithIsolation(Serializable))
				require.NoError(t, read(tx))
				require.NoError(t, tx.Set(rowB, []byte("2")))
				require.NoError(t, tx.Commit(t.Context()))
				require.NoError(t, t2.drained(t.Context()))
			}
		}
	})
}

// C3, C12. Guards: a put or delete lock of another on what was read is waited for, or
// aborts; also on a row that holds nothing but that lock. A lock-only one does not
// matter in two phases.
func TestScheduleC3_ForeignLockOnWhatWasRead(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		for _, scanned := range []bool{false, true} {
			for _, commits := range []bool{false, true} {
				t1, t2 := w.client(withoutGroups()), w.client(opts...)
				fresh := Cell{fmt.Sprint("t", scanned, commits), "x", "v"}
				p := t1.hold(t, commitPoint(fresh))
				young := begin(t, t2, WithIsolation(Serializable))
				if scanned {
					for row, err := range young.Scan(t.Context(), Range{Table: fresh.Table}) {
						t.Fatal("the table is empty", row, err)
					}
				} else {
					_, err := young.Get(t.Context(), fresh)
					require.ErrorIs(t, err, ErrNotFound)
				}
				require.NoError(t, young.Set(rowB, []byte("2")))
				done1 := commit(t1, writes(t, t1, "1", fresh))
				p.wait()
				// T1 is younger, so T2 may not wait for it.
				err := young.Commit(t.Context())
				require.ErrorIs(t, err, ErrConflict)
				p.release(pass)
				require.NoError(t, w.finish(done1))
			}
		}
	})
}

// C4. Serializable is a promise among serializable transactions: next to one under
// Snapshot a skew may form, which the documentation says.
func TestScheduleC4_SkewWithASnapshotTransaction(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c := w.client(opts...)
		set(t, c.DB, rowA, "1")
		set(t, c.DB, rowB, "1")
		si, ser := begin(t, c), begin(t, c, WithIsolation(Serializable))
		for _, tx := range []*Txn{si, ser} {
			_, err := tx.GetMany(t.Context(), rowA, rowB)
			require.NoError(t, err)
		}
		require.NoError(t, si.Set(rowA, []byte("0")))
		require.NoError(t, ser.Set(rowB, []byte("0")))
		require.NoError(t, ser.Commit(t.Context()))
		require.NoError(t, si.Commit(t.Context()))
	})
}

// C17. Guards: of two serializable transactions that each wrote what the other read,
// one commits at most, and neither waits for ever.
func TestScheduleC17_ValidationDoesNotDeadlock(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		for _, scanned := range []bool{false, true} {
			t1, t2 := w.client(opts...), w.client(opts...)
			tx1, tx2 := begin(t, t1, WithIsolation(Serializable)), begin(t, t2, WithIsolation(Serializable))
			read := func(tx *Txn, c Cell) {
				if !scanned {
					_, err := tx.GetMany(t.Context(), c)
					require.NoError(t, err)
					return
				}
				for _, err := range tx.Scan(t.Context(), Range{Table: c.Table, From: c.Row, To: c.Row + "\x00"}) {
					require.NoError(t, err)
				}
			}
			read(tx1, rowB)
			read(tx2, rowA)
			require.NoError(t, tx1.Set(rowA, []byte("1")))
			require.NoError(t, tx2.Set(rowB, []byte("2")))
			p1, p2 := t1.hold(t, t1.commitDraw()), t2.hold(t, t2.commitDraw())
			done1, done2 := commit(t1, tx1), commit(t2, tx2)
			p1.wait()
			p2.wait()
			p1.release(pass)
			p2.release(pass)
			err1, err2 := w.finish(done1), w.finish(done2)
			require.False(t, err1 == nil && err2 == nil, "write skew")
			for _, err := range []error{err1, err2} {
				if err != nil {
					require.ErrorIs(t, err, ErrConflict)
				}
			}
			require.NoError(t, t1.drained(t.Context()))
			require.NoError(t, t2.drained(t.Context()))
			w.noLocks()
		}
	})
}
