package percolator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// B4. Guards: a row that cannot be read, or not be notified, holds up no other row of a sweep, nor puts a second notification on one. The sweep is done
// once each row was read.
func TestSweepPassesRowsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	const rows = 3*sweepBatch - 10
	cell := func(i int) Cell { return row(fmt.Sprintf("r%06d", i)) }
	var bad []Cell
	for _, i := range []int{0, 1, sweepBatch + 3, rows - 1} {
		bad = append(bad, cell(i))
	}
	for _, kind := range kindsOfDamage {
		for what, damage := range map[string]func(w *world, s *damagedRows){
			"scans":         func(*world, *damagedRows) {},
			"notifications": func(_ *world, s *damagedRows) { s.onlyWrites, s.refuses = true, true },
			"calls":         func(_ *world, s *damagedRows) { s.onlyWrites, s.refuses, s.whole = true, true, true },
			"broken calls":  func(_ *world, s *damagedRows) { s.onlyWrites, s.breaks = true, true },
			"servers":       func(_ *world, s *damagedRows) { s.onlyWrites, s.breaks, s.servers = true, true, true },
			"reads anew":    func(_ *world, s *damagedRows) { s.onlyReads = true },
		} {
			t.Run(fmt.Sprint(what, ", ", kind), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				s, c, _ := w.damageable(kind)
				setEach(t, c.DB, rows, cell)
				w.settled()
				wk := watching(t, c, Observer{Name: "o", Func: nothing})
				require.NoError(t, wk.publish(t.Context()))
				damage(w, s)
				for _, b := range bad {
					s.damage(b.Row)
				}
				sweeps, err := wk.freshSweeps(t.Context(), func(string) bool { return false })
				require.NoError(t, err)
				require.Len(t, sweeps, 1)
				if s.onlyReads {
					w.agesWithEachScan(c)
				}
				for range 2 {
					over, _, err := sweeps[0].attempt(t.Context())
					require.ErrorIs(t, err, map[bool]error{false: kind, true: rowstore.ErrAmbiguous}[s.breaks])
					require.ErrorContains(t, err, fmt.Sprintf("%d rows of table \"t\"", len(bad)))
					require.ErrorContains(t, err, bad[0].Row)
					require.False(t, over)
					for i := range rows {
						want := 1
						for _, b := range bad {
							if b == cell(i) {
								want = 0
							}
						}
						require.Len(t, w.notified(cell(i)), want, "row %d", i)
					}
				}
				v, err := c.loadCatalog(t.Context())
				require.NoError(t, err)
				require.Len(t, wk.unswept(v), 1)
				s.mend()
				over, _, err := sweeps[0].attempt(t.Context())
				require.NoError(t, err)
				require.True(t, over)
				for i := range rows {
					require.Len(t, w.notified(cell(i)), 1, "row %d", i)
				}
				v, err = c.loadCatalog(t.Context())
				require.NoError(t, err)
				require.Empty(t, wk.unswept(v))
			})
		}
	}
}

// agesWithEachScan makes snapshots too old for each scan of table t that a client begins.
func (w *world) agesWithEachScan(c *client) {
	w.t.Helper()
	other := w.client()
	c.wire.AddRule(faultstore.Rule{Match: func(x *call) bool { return x.Kind == faultstore.CallScan && x.Range.Table == "t" }, Times: -1, Before: func(ctx context.Context, _ *call) verdict {
		w.clock.advance(time.Second)
		now, err := other.Now(ctx)
		require.NoError(w.t, err)
		v, err := other.loadCatalog(ctx)
		require.NoError(w.t, err)
		_, err = other.publishSafePoint(ctx, v, now)
		require.NoError(w.t, err)
		w.clock.advance(2 * worldLease)
		return pass
	}})
}

// So does a row that can be read, one of whose records cannot.
func TestSweepPassesRecordsThatDoNotDecode(t *testing.T) {
	t.Parallel()
	name := format.AckColumn("o", "v")
	at := Timestamp(1)
	for what, record := range map[string]struct {
		put, remove rowstore.Edit
	}{
		"acknowledgments": {rowstore.Put(rowstore.Write, name, at, (&format.Write{Kind: format.KindPut, Start: at, Value: []byte("none")}).Encode()), rowstore.DeleteRange(rowstore.Write, name, 0, at)},
		"locks":           {rowstore.Put(rowstore.Lock, "v", at, []byte("none")), rowstore.DeleteRange(rowstore.Lock, "v", 0, at)},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := w.client()
			for i := range 3 {
				set(t, c.DB, row(fmt.Sprint(i)), "1")
			}
			edit := func(e rowstore.Edit) {
				_, err := w.mem.Apply(t.Context(), []rowstore.Mutation{{Table: "t", Row: row("1").Row, Edits: []rowstore.Edit{e}}}, rowstore.ApplyOptions{})
				require.NoError(t, err)
			}
			edit(record.put)
			wk := watching(t, c, Observer{Name: "o", Func: nothing})
			require.NoError(t, wk.publish(t.Context()))
			sweeps, err := wk.freshSweeps(t.Context(), func(string) bool { return false })
			require.NoError(t, err)
			_, _, err = sweeps[0].attempt(t.Context())
			require.ErrorIs(t, err, ErrCorrupt)
			for i := range 3 {
				require.Equal(t, i != 1, len(w.notified(row(fmt.Sprint(i)))) == 1, "row %d", i)
			}
			edit(record.remove)
			over, _, err := sweeps[0].attempt(t.Context())
			require.NoError(t, err)
			require.True(t, over)
			for i := range 3 {
				require.Len(t, w.notified(row(fmt.Sprint(i))), 1, "row %d", i)
			}
		})
	}
}

// Of very many rows that cannot be read few are remembered by name, and none is lost.
func TestSweepRemembersFewRows(t *testing.T) {
	t.Parallel()
	s := &sweeper{}
	name := func(i int) string { return fmt.Sprintf("r%06d", i) }
	for i := range 3 * mostUnswept {
		require.NoError(t, s.leaveRow(name(i), ErrCorrupt))
		if len(s.left) != min(i+1, mostUnswept) {
			require.Len(t, s.left, min(i+1, mostUnswept))
		}
		require.NoError(t, s.leaveRow(name(i), ErrCorrupt)) // found again
		if len(s.left) != min(i+1, mostUnswept) {
			require.Len(t, s.left, min(i+1, mostUnswept))
		}
	}
	require.NoError(t, s.leave(unreadable{from: "a", to: "b", err: ErrCorrupt})) // gathered before those
	require.Len(t, s.left, mostUnswept)
	require.True(t, slices.IsSortedFunc(s.left, func(a, b unreadable) int { return strings.Compare(a.from, b.from) }))
	for i := 0; i < 3*mostUnswept; i += 101 {
		require.True(t, covers(s.left, name(i)), i)
	}
	require.True(t, covers(s.left, "a"))
	require.NoError(t, s.leave(unreadable{from: "a", to: "", err: ErrCorrupt}))
	require.True(t, covers(s.left, "z"))

	// Nor are their names, if these are long.
	s = &sweeper{}
	long := func(i int) string { return strings.Repeat("n", 2000) + name(i) }
	for i := range 2 * mostUnsweptBytes / 2000 {
		require.NoError(t, s.leaveRow(long(2*mostUnsweptBytes-i), ErrCorrupt)) // in whatever order
	}
	sum := 0
	for i := range s.left {
		sum += len(s.left[i].from)
	}
	require.Equal(t, sum, s.leftBytes)
	require.LessOrEqual(t, sum, mostUnsweptBytes+2100)
	require.True(t, covers(s.left, long(2*mostUnsweptBytes)))
	require.True(t, covers(s.left, long(2*mostUnsweptBytes-2*mostUnsweptBytes/2000+1)))
}

// A worker whose sweep waits for a row that cannot be read keeps the lease meanwhile: no other one begins with the first row, which would put
// one more notification on each cell that nobody has run for yet.
func TestSweepThatWaitsForARowKeepsItsLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, c, _ := w.damageable(ErrCorrupt)
	setEach(t, c.DB, 10, func(i int) Cell { return row(fmt.Sprint(i)) })
	w.settled()
	wk := watching(t, c, Observer{Name: "o", Func: nothing})
	require.NoError(t, wk.publish(t.Context()))
	s.damage("3")
	sweeps, err := wk.freshSweeps(t.Context(), func(string) bool { return false })
	require.NoError(t, err)
	room := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	running := async(func() error { return sweeps[0].run(ctx, room) })
	other := watching(t, w.client(), Observer{Name: "o", Func: nothing})
	another := other.newSweeper(sweeps[0].r, sweeps[0].at)
	require.Eventually(t, func() bool { return len(w.notified(row("9"))) == 1 }, patience, time.Millisecond)
	for range 60 {
		_, ended := w.clock.sleeps(t, wk.config.MemberLease/3, running)
		require.False(t, ended)
		w.clock.advance(wk.config.MemberLease / 3)
		require.Eventually(t, func() bool { return another.lease.leftTo(t, wk.id) > wk.config.MemberLease/2 }, patience, time.Millisecond)
		_, held, err := another.attempt(t.Context())
		require.NoError(t, err)
		require.Positive(t, held)
		require.Len(t, w.notified(row("9")), 1)
	}
	cancel()
	require.Error(t, <-running)
	s.mend()
	_, held, err := another.attempt(t.Context())
	require.NoError(t, err)
	require.Zero(t, held, "it was given up")
}

// What a newer program wrote another worker may be able to read: for that the lease of a sweep ends, also beside damaged rows.
func TestSweepLeavesNewerRowsToOthers(t *testing.T) {
	t.Parallel()
	for _, kind := range kindsOfDamage {
		w := newWorld(t)
		s, c, _ := w.damageable(kind)
		setEach(t, c.DB, 10, func(i int) Cell { return row(fmt.Sprint(i)) })
		w.settled()
		wk := watching(t, c, Observer{Name: "o", Func: nothing})
		require.NoError(t, wk.publish(t.Context()))
		sweeps, err := wk.freshSweeps(t.Context(), func(string) bool { return false })
		require.NoError(t, err)
		s.damage("3")
		_ = sweeps[0].leaveRow("1", ErrCorrupt)
		_, _, err = sweeps[0].attempt(t.Context())
		require.ErrorIs(t, err, ErrCorrupt)
		require.Equal(t, errors.Is(kind, ErrCorrupt), sweeps[0].stop != nil, "%v: the lease is kept", kind)
		sweeps[0].unkeep()
	}
}

// Where the store reads and writes nothing, which is no row's failure, a sweep leaves few rows out, keeps its place, and puts no second notification on any.
func TestSweepWaitsWhileNothingIsWritten(t *testing.T) {
	t.Parallel()
	const rows = 3 * sweepBatch
	cell := func(i int) Cell { return row(fmt.Sprintf("r%06d", i)) }
	w := newWorld(t)
	s, c, _ := w.damageable(ErrCorrupt)
	setEach(t, c.DB, rows, cell)
	w.settled()
	wk := watching(t, c, Observer{Name: "o", Func: nothing})
	require.NoError(t, wk.publish(t.Context()))
	sweeps, err := wk.freshSweeps(t.Context(), func(string) bool { return false })
	require.NoError(t, err)
	s.onlyWrites, s.breaks = true, true
	for i := range rows {
		s.damage(cell(i).Row)
	}
	for i := range 3 {
		_, _, err = sweeps[0].attempt(t.Context())
		require.ErrorIs(t, err, rowstore.ErrAmbiguous)
		require.Len(t, sweeps[0].left, (i+1)*mostDamaged)
		require.Len(t, sweeps[0].untold, sweepBatch-(i+1)*mostDamaged)
	}
	s.mend()
	for over := false; !over; {
		over, _, err = sweeps[0].attempt(t.Context())
		require.True(t, over || errors.Is(err, rowstore.ErrAmbiguous), err)
	}
	for i := range rows {
		require.Len(t, w.notified(cell(i)), 1, "row %d", i)
	}
}

// leftTo is how long a worker still has the lease.
func (l *sweepLease) leftTo(t *testing.T, worker string) time.Duration {
	t.Helper()
	rows, err := l.w.db.store.Read(t.Context(), []rowstore.RowRead{{Table: format.TableSweeps, Row: l.row, Selectors: []rowstore.Selector{
		{Family: rowstore.Write, Column: worker, To: oracle.Max, Limit: 1},
	}}})
	require.NoError(t, err)
	now, err := l.w.db.draw(t.Context())
	require.NoError(t, err)
	if len(rows[0].Versions) == 0 {
		return 0
	}
	return rows[0].Versions[0].TS.Sub(now)
}

func covers(left []unreadable, name string) bool {
	for _, u := range left {
		if u.from <= name && (u.to == "" || u.to > name) {
			return true
		}
	}
	return false
}

// Targets of timers that cannot be changed, however many lie beside each other, stop few others.
func TestAdjacentRefusedRowsStopNoOthers(t *testing.T) {
	t.Parallel()
	for _, breaks := range []bool{false, true} {
		w := newWorld(t)
		s, c, _ := w.damageable(ErrCorrupt)
		s.onlyWrites, s.refuses, s.breaks = true, !breaks, breaks
		var muts []rowstore.Mutation
		const n, from, to = 256, 64, 64 + 2*mostDamaged
		for i := range n {
			muts = append(muts, rowstore.Mutation{Table: "t", Row: row(fmt.Sprint(i)).Row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Notify, "v", 1, nil)}})
			if i >= from && i < to {
				s.damage(muts[i].Row)
			}
		}
		outs, err := c.applyEach(t.Context(), muts, rowstore.ApplyOptions{})
		require.NoError(t, err)
		require.Len(t, outs, n)
		for i := range outs {
			require.Equal(t, i >= from && i < to, outs[i].Err != nil, "breaks %v, change %d", breaks, i)
		}
		require.Less(t, s.applies.Load(), int64(8*mostDamaged))
	}
}
