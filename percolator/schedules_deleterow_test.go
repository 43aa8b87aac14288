package percolator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Schedules in which rows are deleted as a whole ("Deleted rows" in docs/architecture.md).

// rowDeletes has everybody know of deleted rows.
func (w *world) rowDeletes() {
	w.t.Helper()
	c := w.client()
	_, err := c.raiseTo(w.t.Context(), rowDeletes)
	require.NoError(w.t, err)
	w.pass(worldLease + time.Millisecond)
}

// aware is a client that knows of deleted rows.
func (w *world) aware(opts ...Option) *client {
	w.t.Helper()
	c := w.client(opts...)
	require.NotZero(w.t, c.known().RowDeletesFrom)
	return c
}

// deletes starts a transaction that deletes row a of table t.
func deletes(t testing.TB, c *client) *Txn {
	t.Helper()
	tx := begin(t, c)
	require.NoError(t, tx.DeleteRow(t.Context(), "t", "a"))
	return tx
}

var cellW = Cell{"t", "a", "w"} // another column of the row

// Everything that the row has goes, with its timers, and what comes later stays.
func TestScheduleW_DeletesTheRow(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.timers()
		w.rowDeletes()
		c := w.aware(opts...)
		a := newAlarm(t, c, "o")
		own, later := Cell{"t", "a", "own"}, Cell{"t", "a", "later"}
		require.NoError(t, writes(t, c, "1", rowA, cellW, rowB).Commit(t.Context()))
		runs(t, a.w, rowA)
		w.timer(c, rowA, time.Second)
		w.timer(c, rowB, time.Second)
		require.NoError(t, c.Update(t.Context(), func(tx *Txn) error {
			require.NoError(t, tx.Set(own, []byte("x")))
			require.NoError(t, tx.DeleteRow(t.Context(), "t", "a"))
			require.NoError(t, tx.DeleteRow(t.Context(), "t", "a"), "twice")
			for _, cell := range []Cell{rowA, cellW, own} {
				_, err := tx.Get(t.Context(), cell)
				require.ErrorIs(t, err, ErrNotFound)
			}
			return tx.Set(later, []byte("x"))
		}))
		for _, cell := range []Cell{rowA, cellW, own} {
			require.Equal(t, "none", value(t, c, cell))
		}
		require.Equal(t, "x", value(t, c, later))
		require.Equal(t, "1", value(t, c, rowB))
		require.False(t, w.hasTimer(rowA))
		require.True(t, w.hasTimer(rowB))
		runs(t, a.w, rowA) // for the deletion
		require.Equal(t, "none", a.values[len(a.values)-1])
		w.pass(2 * time.Second)
		require.Equal(t, runDone, look(t, a.w, rowA))
		require.Empty(t, w.notified(rowA))
		require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.DeleteRow(t.Context(), "t", "nothing") }))
		w.settled()
	})
}

// A deletion and a writer of a column that it did not see: one of them is refused, whichever is first, and however far the
// other has got.
func TestScheduleW_UnseenColumn(t *testing.T) {
	for name, write := range map[string]func(tx *Txn) error{
		"new column": func(tx *Txn) error { return tx.Set(cellW, []byte("1")) },
		"long":       func(tx *Txn) error { return tx.Set(cellW, []byte(longText)) },
		"timer":      func(tx *Txn) error { return tx.NotifyAt(Cell{"t", "a", "v"}, time.UnixMilli(1)) },
	} {
		t.Run(name, func(t *testing.T) {
			eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
				w.observed("t", "v", "o")
				w.timers()
				w.rowDeletes()
				for _, writerFirst := range []bool{false, true} {
					c, d := w.aware(opts...), w.aware(opts...)
					seen := Cell{"t", "a", "seen"}
					set(t, c.DB, seen, "1")
					tx, gone := begin(t, c), deletes(t, d)
					require.NoError(t, write(tx))
					if writerFirst {
						require.NoError(t, tx.Commit(t.Context()))
						require.ErrorIs(t, gone.Commit(t.Context()), ErrConflict)
						require.Equal(t, "1", value(t, c, seen))
						continue
					}
					require.NoError(t, gone.Commit(t.Context()))
					err := tx.Commit(t.Context())
					require.ErrorIs(t, err, ErrConflict)
					require.ErrorContains(t, err, "deleted the row")
					require.NotContains(t, err.Error(), `\x00`)
					w.settled()
				}
			})
		})
	}
}

// The two commits overlap: the writer is held at each of its calls while the deletion commits, and the other way round.
func TestScheduleW_Overlap(t *testing.T) {
	eachWorld(t, func(t *testing.T, _ *world, opts ...Option) {
		both := 0
		for _, heldIsWriter := range []bool{false, true} {
			for n, more := 0, true; more; n++ {
				w := newWorld(t)
				w.rowDeletes()
				c, d := w.aware(opts...), w.aware(opts...)
				set(t, c.DB, rowA, "1")
				tx, gone := begin(t, c), deletes(t, d)
				require.NoError(t, tx.Set(cellW, []byte("1")))
				held, first, second := c, tx, gone
				if !heldIsWriter {
					held, first, second = d, gone, tx
				}
				calls := 0
				p := held.hold(t, func(x *call) bool {
					if !anyCall(x) {
						return false
					}
					calls++
					return calls == n+1
				})
				done := async(func() error { return first.Commit(t.Context()) })
				var err1 error
				ended := false
				for stopped := false; !stopped && !ended; {
					select {
					case err1 = <-done:
						ended, more = true, false
					case <-p.held.Reached():
						stopped = true
					}
				}
				other := async(func() error { return second.Commit(t.Context()) })
				if !ended {
					// Of two that meet, the younger one may wait for the older.
					var err2 error
					waits := false
					select {
					case err2 = <-other:
					case <-time.After(20 * time.Millisecond):
						waits = true
					}
					p.release(pass)
					err1 = w.finish(done)
					if waits {
						err2 = w.finish(other)
					}
					require.False(t, err1 == nil && err2 == nil, "both were committed: writer held %v, call %d", heldIsWriter, n)
					if err1 == nil || err2 == nil {
						both++
					}
				} else {
					err2 := w.finish(other)
					require.False(t, err1 == nil && err2 == nil, "both were committed, one after the other")
				}
				// The row is as the one that was committed has left it.
				if wrote := value(t, w.client(), cellW) == "1"; wrote {
					require.Equal(t, "1", value(t, w.client(), rowA), "half of the row is left")
				}
				w.settled()
			}
		}
		require.Positive(t, both)
	})
}

// A process that knows of no deletions commits nothing above the moment from which on there may be some.
func TestScheduleW_FirstOfAll(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		c, old := w.client(opts...), w.client(opts...)
		set(t, c.DB, rowA, "1")
		tx := begin(t, old)
		require.NoError(t, tx.Set(cellW, []byte("1")))
		require.NoError(t, tx.Set(rowB, []byte("1")))
		// Its prewrites, or its one step, go by the old view.
		p := old.hold(t, func(x *call) bool { return edits(x, puts(rowstore.Write)) || edits(x, puts(rowstore.Lock)) })
		committed := async(func() error { return tx.Commit(t.Context()) })
		p.wait()
		gone := begin(t, c)
		deleted := async(func() error { return gone.DeleteRow(t.Context(), "t", "a") })
		require.Eventually(t, func() bool {
			v, err := c.loadCatalog(t.Context())
			return err == nil && v.RowDeletesFrom != 0
		}, patience, time.Millisecond)
		v, err := c.loadCatalog(t.Context())
		require.NoError(t, err)
		_, ended := w.clock.sleeps(t, v.RowDeletesFrom.Sub(v.asOf)+time.Millisecond, deleted)
		require.False(t, ended, "it does not wait until everybody knows")
		w.pass(worldLease + time.Millisecond)
		err = w.finish(deleted)
		require.ErrorIs(t, err, ErrConflict, "it has begun too early")
		gone = begin(t, c)
		require.NoError(t, gone.DeleteRow(t.Context(), "t", "a"))
		done := async(func() error { return gone.Commit(t.Context()) })
		var gerr error
		waits := false
		select {
		case gerr = <-done:
		case <-time.After(20 * time.Millisecond):
			waits = true
		}
		p.release(pass)
		werr := w.finish(committed)
		if waits {
			gerr = w.finish(done)
		}
		require.False(t, werr == nil && gerr == nil, "both were committed")
		w.pass(worldExpiry + worldSession)
		w.settled()
	})
}

// Prewrites went by a view that knew of no deletions, and the commit timestamp lies above it.
func TestScheduleW_ViewEndsBetweenPrewriteAndCommit(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		old := w.client(opts...)
		set(t, old.DB, rowA, "1")
		tx := begin(t, old)
		require.NoError(t, tx.Set(cellW, []byte("1")))
		p := old.hold(t, old.commitDraw())
		done := async(func() error { return tx.Commit(t.Context()) })
		p.wait()
		w.rowDeletes()
		p.release(pass)
		require.ErrorIs(t, w.finish(done), ErrConflict)
	})
}

// Transactions on a few columns of a row, and deletions of it, at random: what is read afterwards is what some order of
// those that were committed leaves, in which none has overlapped another one that it conflicts with. It is long because the model
// stands beside the transactions.
func TestDeleteRowAtRandom(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.rowDeletes()
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 1))
		c := w.aware(opts...)
		model := map[string]string{}
		type open struct {
			tx     *Txn
			column string // "" deletes the row
			saw    bool   // a deletion saw something
		}
		var all []open
		written := map[string]Timestamp{} // the newest commit of each column; "" of a deletion, "*" of any
		conflicts, deletions := 0, 0
		for i := range 400 {
			if len(all) < 3 || rnd.IntN(2) == 0 {
				o := open{tx: begin(t, c)}
				if rnd.IntN(3) > 0 {
					o.column = fmt.Sprint("c", rnd.IntN(4))
					require.NoError(t, o.tx.Set(Cell{"t", "a", o.column}, []byte(fmt.Sprint(i))))
					o.column += "=" + fmt.Sprint(i)
				} else {
					require.NoError(t, o.tx.DeleteRow(t.Context(), "t", "a"))
					o.saw = len(o.tx.writes.list) > 1
				}
				all = append(all, o)
				continue
			}
			n := rnd.IntN(len(all))
			o := all[n]
			all = append(all[:n], all[n+1:]...)
			start := startOf(o.tx)
			err := o.tx.Commit(t.Context())
			at := o.tx.CommitTimestamp()
			if o.column == "" {
				if !o.saw {
					require.NoError(t, err) // it has nothing to do
					continue
				}
				if errors.Is(err, ErrConflict) {
					conflicts++ // perhaps with one that was rolled back
					continue
				}
				require.NoError(t, err)
				require.Less(t, written["*"], start, "it has not seen a write of the row")
				written[""], written["*"] = at, at
				deletions++
				clear(model)
			} else {
				column, value := o.column[:2], o.column[3:]
				if errors.Is(err, ErrConflict) {
					conflicts++
					continue
				}
				require.NoError(t, err)
				require.Less(t, max(written[column], written[""]), start, "it has not seen a deletion of the row")
				model[column], written[column], written["*"] = value, at, at
			}
			now := map[string]string{}
			require.NoError(t, c.View(t.Context(), func(tx *Txn) error {
				for row, err := range tx.Scan(t.Context(), Range{Table: "t"}) {
					if err != nil {
						return err
					}
					for column, v := range row.Columns {
						now[column] = string(v)
					}
				}
				return nil
			}))
			require.True(t, maps.Equal(model, now), "%v %v", model, now)
		}
		require.Positive(t, conflicts)
		require.Positive(t, deletions)
	})
}

// A range goes in parts, and can go on after any of them.
func TestDeleteRange(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		ctx := t.Context()
		w.rowDeletes()
		c := w.aware(opts...)
		const rows = 2*deletePage + 10
		setRows(t, c.DB, "v", rows)
		setRows(t, c.DB, "w", rows)
		set(t, c.DB, Cell{"u", "000001", "v"}, "1")
		left := func(column string) (n int) {
			require.NoError(t, c.View(ctx, func(tx *Txn) error {
				for _, err := range tx.Scan(ctx, Range{Table: "t", Columns: []string{column}}) {
					if err != nil {
						return err
					}
					n++
				}
				return nil
			}))
			return n
		}
		report, err := c.DeleteRange(ctx, Range{Table: "t", Columns: []string{"w"}, From: "000001", To: "000004"})
		require.NoError(t, err)
		require.Equal(t, DeleteReport{Rows: 3, Cells: 3}, report)
		require.Equal(t, []int{rows, rows - 3}, []int{left("v"), left("w")})
		report, err = c.DeleteRange(ctx, Range{Table: "t", Limit: 5})
		require.NoError(t, err)
		require.Equal(t, DeleteReport{Rows: 5, Cells: 7, Next: report.Next}, report)
		require.Equal(t, []int{rows - 5, rows - 5}, []int{left("v"), left("w")})
		// It goes on where it was broken off.
		c.wire.verdict(both(prewrites, on(Cell{Table: "t", Row: fmt.Sprintf("%06d", 5+deletePage)})), refuse)
		first, err := c.DeleteRange(ctx, Range{Table: "t", From: report.Next})
		require.Error(t, err)
		require.EqualValues(t, deletePage, first.Rows)
		require.Equal(t, rows-5-deletePage, left("v"))
		second, err := c.DeleteRange(ctx, Range{Table: "t", From: first.Next})
		require.NoError(t, err)
		require.Equal(t, DeleteReport{Rows: rows - 5 - deletePage, Cells: 2 * (rows - 5 - deletePage)}, second)
		require.Zero(t, left("v")+left("w"))
		report, err = c.DeleteRange(ctx, Range{Table: "t"})
		require.NoError(t, err)
		require.Equal(t, DeleteReport{}, report)
		require.Equal(t, "1", value(t, c, Cell{"u", "000001", "v"}))
		w.settled()
	})
}

func TestDeleteRowRefuses(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t)
	w.rowDeletes()
	c := w.aware(WithLimits(Limits{Cells: 4}))
	tx := begin(t, c)
	require.ErrorIs(t, tx.DeleteRow(ctx, "", "r"), ErrInvalid)
	require.ErrorIs(t, tx.DeleteRow(ctx, "t", ""), ErrInvalid)
	require.ErrorIs(t, tx.DeleteRow(ctx, "t", string(make([]byte, 1<<16))), ErrTooLarge)
	for i := range 4 {
		set(t, c.DB, Cell{"t", "wide", fmt.Sprint(i)}, "1")
	}
	tx = begin(t, c)
	require.ErrorIs(t, tx.DeleteRow(ctx, "t", "wide"), ErrTooLarge)
	require.NoError(t, tx.Rollback(ctx))
	require.ErrorIs(t, tx.DeleteRow(ctx, "t", "r"), ErrTxnDone)
	require.ErrorIs(t, c.View(ctx, func(tx *Txn) error { return tx.DeleteRow(ctx, "t", "r") }), ErrReadOnly)
	for _, r := range []Range{{}, {Table: "t", Limit: -1}, {Table: "t", Reverse: true}, {Table: "t", Timestamps: true}, {Table: "t", Columns: []string{""}}} {
		_, err := c.DeleteRange(ctx, r)
		require.ErrorIs(t, err, ErrInvalid)
	}
	_, err := c.DeleteRange(ctx, Range{Table: "t"})
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "wide")
	for from := ""; ; {
		report, err := c.DeleteRange(ctx, Range{Table: "t", Columns: []string{"0", "1", "2"}, From: from})
		require.NoError(t, err)
		if from = report.Next; from == "" {
			break
		}
	}
	_, err = c.DeleteRange(ctx, Range{Table: "t"})
	require.NoError(t, err)
	require.NoError(t, c.Close(ctx))
	_, err = c.DeleteRange(ctx, Range{Table: "t"})
	require.ErrorIs(t, err, ErrClosed)
}

// Without a deletion nobody pays for it: no condition is added.
func TestRowsAreNotGuardedForNothing(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		conditions := func(c *client) int {
			set(t, c.DB, rowA, "1")
			n := 0
			for _, x := range c.wire.sent(func(x *call) bool { return edits(x, puts(rowstore.Lock)) || edits(x, puts(rowstore.Write)) }) {
				for _, m := range x.Mutations() {
					for _, cond := range m.Conditions {
						if cond.Column == format.ColumnWholeRow {
							n++
						}
					}
				}
			}
			return n
		}
		require.Zero(t, conditions(w.client(opts...)))
		w.rowDeletes()
		require.Equal(t, rowGuards, conditions(w.aware(opts...)))
	})
}

// Whoever begins while others do not know of deletions yet waits for that, and does not use up its attempts.
func TestScheduleW_SecondOfAll(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		first, c := w.client(opts...), w.client(opts...)
		set(t, first.DB, rowA, "1")
		from, err := first.raiseTo(t.Context(), rowDeletes)
		require.NoError(t, err)
		_, err = c.loadCatalog(t.Context())
		require.NoError(t, err)
		c.snapshotReader, _ = rowstore.Unwrap[rowstore.SnapshotReader](w.mem) // Update draws with its first read
		require.NotNil(t, c.snapshotReader)
		calls := 0
		done := async(func() error {
			return c.Update(t.Context(), func(tx *Txn) error {
				calls++
				return tx.DeleteRow(t.Context(), "t", "a")
			}, WithMaxAttempts(2))
		})
		_, ended := w.clock.sleeps(t, from.Sub(mustNow(t, first))+time.Millisecond, done)
		require.False(t, ended, "it does not wait until everybody knows")
		w.pass(worldLease + time.Millisecond)
		require.NoError(t, w.finish(done))
		require.Equal(t, 2, calls)
		require.Equal(t, "none", value(t, c, rowA))
	})
}

// A part of a range is no larger than a transaction may be.
func TestDeleteRangeWithinLimits(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]Limits{"cells": {Cells: 7}, "bytes": {Bytes: 30}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.rowDeletes()
			c, small := w.client(), w.client(WithLimits(limits))
			for _, r := range []string{"a", "b", "c", "d"} {
				for _, column := range []string{"v", "w"} {
					set(t, c.DB, Cell{"t", r, column}, "1")
				}
			}
			report, err := small.DeleteRange(t.Context(), Range{Table: "t"})
			require.NoError(t, err)
			require.Equal(t, DeleteReport{Rows: 4, Cells: 8}, report)
		})
	}
}

// What an index has of the rows counts as well, at the commit alone. A part that is too large by that is made smaller.
func TestDeleteRangeWithinLimitsOfIndexes(t *testing.T) {
	t.Parallel()
	for _, erase := range []bool{false, true} {
		w := newWorld(t)
		w.rowDeletes()
		c, _ := indexed(t, w, WithLimits(Limits{Cells: 20}))
		u := byValue()
		u.Keep = func(_ context.Context, tx *Txn, changes []RowChange) error {
			for i := range changes {
				for n := range 3 {
					entry := Cell{"i", fmt.Sprintf("%s %d", changes[i].Row, n), "row"}
					err := tx.Delete(entry)
					if changes[i].NewFound {
						err = tx.Set(entry, nil)
					}
					if err != nil {
						return err
					}
				}
			}
			return nil
		}
		require.NoError(t, c.KeepIndex(u))
		const rows = 25
		for i := range rows {
			set(t, c.DB, row(fmt.Sprintf("r%02d", i)), "1")
		}
		require.Equal(t, 3*rows, live(t, c, "i"))
		if erase {
			require.NoError(t, w.eraseOf(c, "", ""))
		} else {
			report, err := c.DeleteRange(t.Context(), Range{Table: "t"})
			require.NoError(t, err)
			require.Equal(t, DeleteReport{Rows: rows, Cells: rows}, report)
		}
		require.Zero(t, live(t, c, "t")+live(t, c, "i"))
	}
}

// live counts the rows of a table that have a value.
func live(t *testing.T, c *client, table string) (n int) {
	t.Helper()
	require.NoError(t, c.View(t.Context(), func(tx *Txn) error {
		n = 0
		for _, err := range tx.Scan(t.Context(), Range{Table: table}) {
			if err != nil {
				return err
			}
			n++
		}
		return nil
	}))
	return n
}

// What deleting one more row costs does not grow with those that the transaction deletes already.
func TestDeletesManyRowsInOneTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.rowDeletes()
	c := w.aware()
	tx := begin(t, c)
	for i := range 3 {
		name := rowName{"t", fmt.Sprint(i)}
		require.NoError(t, tx.Set(Cell{"t", name.row, "a"}, []byte("1")))
		require.NoError(t, tx.DeleteRow(t.Context(), "t", name.row))
		require.Equal(t, len(tx.writes.list)-1, tx.gone.seen, "each write was looked at once")
		require.True(t, tx.gone.has(name))
		require.NoError(t, tx.Set(Cell{"t", name.row, "b"}, []byte("2")))
		require.NoError(t, tx.DeleteRow(t.Context(), "t", name.row))
	}
	require.Len(t, tx.gone.all(), 3)
	require.NoError(t, tx.Set(Cell{"t", "1", "b"}, []byte("3")))
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, "none", value(t, c, Cell{"t", "0", "a"}))
	require.Equal(t, "none", value(t, c, Cell{"t", "2", "b"}))
	require.Equal(t, "3", value(t, c, Cell{"t", "1", "b"}))
}
