package percolator

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// The transaction that is cut short at each of its calls: two rows of two columns,
// with an observed cell, a long value, a delete and a cell that is only locked.
var (
	cutObserved = Cell{"t", "a", "observed"}
	cutLong     = Cell{"t", "a", "long"}
	cutDelete   = Cell{"t", "b", "deleted"}
	cutLock     = Cell{"t", "b", "locked"}
	cutWeak     = Cell{"t", "c", "observed"} // weakly notified, in a row of its own
)

func cutSetup(w *world) {
	w.t.Helper()
	w.observed("t", "observed", "o")
	c := w.client()
	set(w.t, c.DB, cutDelete, "old")
	set(w.t, c.DB, cutLock, "same")
}

// cutTxn is the transaction. Its primary is the first cell.
func cutTxn(t testing.TB, c *client) (*Txn, error) {
	t.Helper()
	tx, err := c.Begin(t.Context())
	if err != nil {
		return nil, err
	}
	require.NoError(t, tx.Set(cutLong, []byte(longText)))
	require.NoError(t, tx.Set(cutObserved, []byte("new")))
	require.NoError(t, tx.Delete(cutDelete))
	if _, err := tx.GetForUpdate(t.Context(), cutLock); err != nil {
		return nil, err
	}
	if err := tx.Notify(cutWeak); err != nil {
		return nil, err
	}
	return tx, nil
}

// cutState reads what became of it: all or nothing, or the test fails.
func cutState(t testing.TB, values map[string]string) (committed bool) {
	t.Helper()
	none := map[string]string{"long": "", "observed": "", "deleted": "old", "locked": "same"}
	all := map[string]string{"long": longText, "observed": "new", "deleted": "", "locked": "same"}
	if values["long"] == longText {
		require.Equal(t, all, values, "the transaction is torn")
		return true
	}
	require.Equal(t, none, values, "the transaction is torn")
	return false
}

func cutReader(t testing.TB, _ *world, c *client) bool {
	t.Helper()
	tx := begin(t, c)
	// Cell by cell, and the secondaries first.
	values := map[string]string{}
	for _, cell := range []Cell{cutLock, cutDelete, cutObserved, cutLong} {
		v, err := tx.Get(t.Context(), cell)
		if !errors.Is(err, ErrNotFound) {
			require.NoError(t, err)
		}
		values[cell.Column] = string(v)
	}
	return cutState(t, values)
}

// The ways to find out, each of which must leave a decided state behind.
var cutFinders = map[string]func(t testing.TB, w *world, c *client) bool{
	"reader": cutReader,
	"reader of many": func(t testing.TB, w *world, c *client) bool {
		tx := begin(t, c)
		got, err := tx.GetMany(t.Context(), cutLong, cutObserved, cutDelete, cutLock)
		require.NoError(t, err)
		values := map[string]string{}
		for _, cell := range []Cell{cutLong, cutObserved, cutDelete, cutLock} {
			values[cell.Column] = string(got[cell])
		}
		return cutState(t, values)
	},
	"scanner": func(t testing.TB, w *world, c *client) bool {
		tx := begin(t, c)
		values := map[string]string{"long": "", "observed": "", "deleted": "", "locked": ""}
		for row, err := range tx.Scan(t.Context(), Range{Table: "t", To: "c", Reverse: true}) {
			require.NoError(t, err)
			for col, v := range row.Columns {
				values[col] = string(v)
			}
		}
		return cutState(t, values)
	},
	"writer": func(t testing.TB, w *world, c *client) bool {
		ctx := t.Context()
		var committed bool
		require.NoError(t, c.Update(ctx, func(tx *Txn) error {
			got, err := tx.GetMany(ctx, cutLong, cutObserved, cutDelete, cutLock)
			if err != nil {
				return err
			}
			values := map[string]string{}
			for _, cell := range []Cell{cutLong, cutObserved, cutDelete, cutLock} {
				values[cell.Column] = string(got[cell])
				if v, ok := got[cell]; ok {
					err = tx.Set(cell, v)
				} else {
					err = tx.Delete(cell)
				}
				if err != nil {
					return err
				}
			}
			committed = cutState(t, values)
			return nil
		}))
		require.NoError(t, c.DB.drained(ctx))
		w.noLocks()
		return committed
	},
	"blind writer": func(t testing.TB, w *world, c *client) bool {
		// It meets the locks in its prewrite, and those of the lock-only cell too.
		ctx := t.Context()
		before := begin(t, c)
		require.NoError(t, c.Update(ctx, func(tx *Txn) error {
			for _, cell := range []Cell{cutLong, cutObserved, cutDelete, cutLock} {
				if err := tx.Set(cell, []byte("over")); err != nil {
					return err
				}
			}
			return nil
		}))
		require.NoError(t, c.DB.drained(ctx))
		w.noLocks()
		got, err := before.GetMany(ctx, cutLong, cutObserved, cutDelete, cutLock)
		require.NoError(t, err)
		values := map[string]string{}
		for _, cell := range []Cell{cutLong, cutObserved, cutDelete, cutLock} {
			values[cell.Column] = string(got[cell])
		}
		return cutState(t, values)
	},
	"collector": func(t testing.TB, w *world, c *client) bool {
		w.clock.advance(worldAge + 2*worldLease)
		_, err := w.collect(c, 1)
		require.NoError(t, err)
		w.noLocks()
		committed := false
		row := w.raw(cutLong)
		if row.Newest(rowstore.Write, cutLong.Column) != nil {
			committed = true
		}
		got, err := begin(t, c).GetMany(t.Context(), cutLong, cutObserved, cutDelete, cutLock)
		require.NoError(t, err)
		values := map[string]string{}
		for _, cell := range []Cell{cutLong, cutObserved, cutDelete, cutLock} {
			values[cell.Column] = string(got[cell])
		}
		require.Equal(t, committed, cutState(t, values))
		return committed
	},
	"worker": func(t testing.TB, w *world, c *client) bool {
		wk := NewWorker(c.DB, WorkerConfig{})
		var saw []string
		require.NoError(t, wk.Observe(Observer{Name: "o", Table: "t", Column: "observed", Func: func(ctx context.Context, tx *Txn, cell Cell) error {
			v, err := tx.Get(ctx, cell)
			if errors.Is(err, ErrNotFound) {
				v, err = []byte("none"), nil
			}
			saw = append(saw, cell.Row+"="+string(v))
			return err
		}}))
		// What a scan for notifications finds, and nothing else.
		for {
			found := 0
			for row, err := range w.mem.Scan(t.Context(), rowstore.ScanRange{Table: "t", Selectors: wk.notifyPicks("t")}) {
				require.NoError(t, err)
				found++
				result, _, err := wk.runCell(t.Context(), Cell{"t", row.Row, "observed"})
				require.NoError(t, err)
				require.Contains(t, []nextStep{runDone, runAgain}, result)
			}
			if found == 0 {
				break
			}
		}
		committed := cutReader(t, w, c)
		if committed {
			// Whatever died where: the commit is seen, the write and the hint.
			require.Contains(t, saw, "a=new")
			require.Contains(t, saw, "c=none")
		} else {
			require.NotContains(t, saw, "a=new")
		}
		return committed
	},
}

// drained waits until nothing of the client is left in the background.
func (db *DB) drained(ctx context.Context) error {
	for {
		db.drain.Lock()
		active := db.drain.active
		db.drain.Unlock()
		if active == 0 {
			return nil
		}
		if err := (systemClock{}).Sleep(ctx, 100_000); err != nil {
			return err
		}
	}
}

// cutAt runs the transaction with a verdict on its n-th call, from Begin on, and
// tells whether there was such a call.
func cutAt(t testing.TB, w *world, n int, v verdict, opts ...Option) (fired bool, ts Timestamp, err error) {
	t.Helper()
	c := w.client(opts...)
	r := c.wire.AddRule(faultstore.Rule{Match: anyCall, Skip: n, Fault: v})
	tx, err := cutTxn(t, c)
	if err == nil {
		err = tx.Commit(t.Context())
		ts = tx.CommitTimestamp()
	}
	require.NoError(t, c.drained(t.Context()))
	fired = r.Remove() > 0
	return fired, ts, err
}

// A commit is all or nothing, whichever of its calls is the last of its client's
// life, and whoever finds what it left.
func TestClientDiesAtEachCall(t *testing.T) {
	t.Parallel()
	for way, opts := range ways {
		for finder, find := range cutFinders {
			t.Run(way+"/"+finder, func(t *testing.T) {
				t.Parallel()
				outcomes := map[bool]int{}
				n := 0
				for fired := true; fired; n++ {
					for _, v := range []verdict{die, dieAfter} {
						w := newWorld(t)
						cutSetup(w)
						var err error
						fired, _, err = cutAt(t, w, n, v, opts...)
						w.clock.advance(worldSession + 1e9)
						committed := find(t, w, w.client())
						if err == nil {
							require.True(t, committed, "Commit returned nil, call %d %v", n, v)
						}
						if !fired {
							require.NoError(t, err)
						}
						outcomes[committed]++
						afterCut(t, w, committed)
					}
				}
				require.Greater(t, n, 3)
				require.Positive(t, outcomes[true])
				require.Positive(t, outcomes[false])
			})
		}
	}
}

// afterCut checks what is stored once everything was resolved.
func afterCut(t testing.TB, w *world, committed bool) {
	t.Helper()
	c := w.client()
	// A writer of everything cleans up what readers pass over.
	require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
		for _, cell := range []Cell{cutLong, cutObserved, cutDelete, cutLock} {
			if err := tx.Set(cell, []byte("end")); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, c.drained(t.Context()))
	w.noLocks()
	for _, cell := range []Cell{cutLong, cutDelete, cutObserved, cutLock} {
		row := w.raw(cell)
		for _, d := range row.Versions {
			if d.Family != rowstore.Data {
				continue
			}
			require.True(t, committed, "a value of a transaction that was rolled back is left: %+v", row.Versions)
		}
		for _, n := range row.All(rowstore.Notify, cell.Column) {
			// At a commit timestamp, never at a start.
			require.NotNil(t, row.At(rowstore.Write, cell.Column, n.TS), "a notification of no change is left: %+v", row.Versions)
		}
	}
}

// Whatever is lost on the way, what Commit says is so.
func TestReplyLostAtEachCall(t *testing.T) {
	t.Parallel()
	for way, opts := range ways {
		for _, v := range []verdict{lose, loseReply, refuse} {
			t.Run(fmt.Sprint(way, "/", v), func(t *testing.T) {
				t.Parallel()
				answers := map[string]int{}
				n := 0
				for fired := true; fired; n++ {
					w := newWorld(t)
					cutSetup(w)
					var err error
					var ts Timestamp
					fired, ts, err = cutAt(t, w, n, v, opts...)
					require.NotErrorIs(t, err, ErrUndetermined, "the context has not ended (call %d)", n)
					committed := cutReader(t, w, w.client())
					require.Equal(t, err == nil, committed, "call %d: Commit returned %v", n, err)
					if committed {
						row := w.raw(cutObserved)
						require.NotNil(t, row.At(rowstore.Write, cutObserved.Column, ts), "committed at another timestamp than Commit says")
						row = w.raw(cutWeak)
						require.NotNil(t, row.At(rowstore.Notify, cutWeak.Column, ts), "the weak notification is missing")
					}
					answers[fmt.Sprint(err == nil)]++
					afterCut(t, w, committed)
				}
				require.Greater(t, n, 3)
				require.Positive(t, answers["true"])
			})
		}
	}
}

// The same where another transaction was first: what is lost while Commit finds that
// out leaves nothing undetermined.
func TestReplyLostAtEachCallOfAConflict(t *testing.T) {
	t.Parallel()
	for way, opts := range ways {
		for _, v := range []verdict{lose, loseReply} {
			t.Run(fmt.Sprint(way, "/", v), func(t *testing.T) {
				t.Parallel()
				n := 0
				for fired := true; fired; n++ {
					w := newWorld(t)
					c, other := w.client(opts...), w.client()
					tx := writes(t, c, "1", rowA, rowB)
					set(t, other.DB, rowB, "first")
					r := c.wire.AddRule(faultstore.Rule{Match: anyCall, Skip: n, Fault: v})
					err := w.finish(commit(c, tx))
					require.Error(t, err)
					require.NotErrorIs(t, err, ErrUndetermined, "call %d", n)
					require.NoError(t, c.drained(t.Context()))
					fired = r.Remove() > 0
					if !fired {
						require.ErrorIs(t, err, ErrConflict)
					}
					w.takeForDeadIfAny(c)
					require.Equal(t, "none first", value(t, other, rowA)+" "+value(t, other, rowB))
					w.noLocks()
				}
				require.Greater(t, n, 1)
			})
		}
	}
}

// A commit that meets what a dead client left resolves it, whatever is lost on the
// way.
func TestReplyLostAtEachCallOfAResolution(t *testing.T) {
	t.Parallel()
	for way, opts := range ways {
		for _, decided := range []bool{false, true} {
			for _, v := range []verdict{lose, loseReply, die, dieAfter} {
				t.Run(fmt.Sprint(way, "/", v, "/decided ", decided), func(t *testing.T) {
					t.Parallel()
					n := 0
					for fired := true; fired; n++ {
						w := newWorld(t)
						dead, c, other := w.client(withoutGroups()), w.client(opts...), w.client()
						if decided {
							dead.wire.verdict(secondaries(rowA), die)
						} else {
							dead.wire.verdict(prewrites, dieAfter)
						}
						left := writes(t, dead, "dead", rowA, rowB).Commit(t.Context())
						require.NoError(t, dead.drained(t.Context()))
						w.takeForDead(dead)
						r := c.wire.AddRule(faultstore.Rule{Match: anyCall, Skip: n, Fault: v})
						tx, err := c.Begin(t.Context())
						if err == nil {
							_ = tx.Set(rowB, []byte("1"))
							_ = tx.Set(rowC, []byte("1"))
							err = w.finish(commit(c, tx))
						}
						require.NoError(t, c.drained(t.Context()))
						fired = r.Remove() > 0
						w.takeForDeadIfAny(c)
						want := "none none none"
						switch committed := value(t, other, rowC) == "1"; {
						case committed && left == nil:
							want = "dead 1 1"
						case committed:
							want = "none 1 1"
						case left == nil:
							want = "dead dead none"
						}
						if v == lose || v == loseReply {
							require.NotErrorIs(t, err, ErrUndetermined, "call %d", n)
							require.Equal(t, err == nil, value(t, other, rowC) == "1", "call %d: %v", n, err)
						}
						if err == nil {
							require.Equal(t, "1", value(t, other, rowC), "call %d", n)
						}
						require.Equal(t, want, value(t, other, rowA)+" "+value(t, other, rowB)+" "+value(t, other, rowC), "call %d", n)
						w.noLocks()
					}
					require.Greater(t, n, 3)
				})
			}
		}
	}
}

func (w *world) takeForDeadIfAny(c *client) {
	w.t.Helper()
	c.session.mu.Lock()
	has := c.session.id != ""
	c.session.mu.Unlock()
	if has {
		w.takeForDead(c)
	}
}
