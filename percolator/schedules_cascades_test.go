package percolator

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Schedules of cascades ("Cascades" in docs/architecture.md), each one driven call by call.

// tracked has everybody know of cascades.
func (w *world) tracked() {
	w.t.Helper()
	c := w.client()
	_, err := c.raiseTo(w.t.Context(), cascades)
	require.NoError(w.t, err)
	w.pass(worldLease + time.Millisecond)
}

// chain is an observer that keeps the hops of its calls, and then does what it is told.
type chain struct {
	w    *Worker
	hops []int
	then func(tx *Txn, cell Cell) error
}

func newChain(t testing.TB, c *client, most int, then func(tx *Txn, cell Cell) error) *chain {
	ch := &chain{then: then}
	ch.w = watching(t, c, Observer{Name: "o", MaxHops: most, MaxAttempts: 1, Func: func(_ context.Context, tx *Txn, cell Cell) error {
		ch.hops = append(ch.hops, tx.Hops())
		return ch.then(tx, cell)
	}})
	return ch
}

// writesNext writes the next of some cells.
func writesNext(cells ...Cell) func(tx *Txn, cell Cell) error {
	return func(tx *Txn, cell Cell) error {
		if i := slices.Index(cells, cell) + 1; i < len(cells) {
			return tx.Set(cells[i], []byte(fmt.Sprint("by a run ", i)))
		}
		return nil
	}
}

// carried is what the notifications of a cell say, the newest first.
func (w *world) carried(cell Cell) (all []format.Cascade) {
	w.t.Helper()
	row := w.raw(cell)
	for _, n := range row.All(rowstore.Notify, cell.Column) {
		c, err := format.CascadeOf(n.Value)
		require.NoError(w.t, err)
		all = append(all, c)
	}
	return all
}

// Each run has one more before it, however the runs commit, and whether they write or notify.
func TestScheduleH_Counts(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		w.tracked()
		c := w.client(opts...)
		ch := newChain(t, c, 0, writesNext(rowA, rowB, rowC))
		set(t, c.DB, rowA, longText)
		require.Equal(t, []format.Cascade{{}}, w.carried(rowA))
		for i, cell := range []Cell{rowA, rowB, rowC} {
			runs(t, ch.w, cell)
			require.NoError(t, c.drained(t.Context()))
			require.Equal(t, i, ch.hops[i])
		}
		require.Zero(t, begin(t, c).Hops())
		ch.then = func(tx *Txn, cell Cell) error {
			if cell == rowA {
				return tx.Notify(rowB)
			}
			return nil
		}
		set(t, c.DB, rowA, "again")
		runs(t, ch.w, rowA)
		require.Equal(t, []format.Cascade{{Hops: 1}}, w.carried(rowB))
		runs(t, ch.w, rowB)
		require.Equal(t, []int{0, 1, 2, 0, 1}, ch.hops)
	})
}

// Whoever rolls the write of a run forward keeps what its lock says. So does who finds the lock and the notification of the prewrite.
func TestScheduleH_RolledForward(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		w.tracked()
		c := w.client(opts...)
		primary := Cell{"u", "p", "v"} // in a table of its own, nobody observes it
		ch := newChain(t, c, 0, func(tx *Txn, _ Cell) error {
			if err := tx.Set(primary, nil); err != nil {
				return err
			}
			return tx.Set(rowB, []byte("1"))
		})
		set(t, c.DB, rowA, "1")
		point := c.hold(t, commitPoint(primary))
		done := async(func() error { _, _, err := ch.w.runCell(context.Background(), rowA); return err })
		point.wait()
		// The prewrite says it too.
		require.Equal(t, []format.Cascade{{Hops: 1}}, w.carried(rowB))
		raw := w.raw(rowB)
		l, err := format.DecodeLock(raw.Newest(rowstore.Lock, "v").Value)
		require.NoError(t, err)
		require.Equal(t, format.Cascade{Hops: 1}.Encode(), l.Cascade)
		// The commit point arrives, and then the process does nothing more.
		point.release(dieAfter)
		_ = w.finish(done)
		w.takeForDeadIfAny(c)
		other := newChain(t, w.client(), 0, writesNext())
		runs(t, other.w, rowB)
		require.Equal(t, []int{1}, other.hops)
		rests(t, other.w, rowA) // the run that died has seen it
		w.noLocks()
	})
}

// A loop ends: the run for a change that as many runs lie before as are allowed is parked, with an error that says so. Released, or after a
// change from outside, the count begins anew.
func TestScheduleH_Limit(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		ctx := t.Context()
		w.observed("t", "v", "o")
		w.tracked()
		c := w.client(opts...)
		var told []RunError
		ch := newChain(t, c, 3, func(tx *Txn, cell Cell) error {
			if cell == rowA {
				return tx.Set(rowB, []byte(fmt.Sprint(tx.Hops())))
			}
			return tx.Set(rowA, []byte(fmt.Sprint(tx.Hops())))
		})
		require.NoError(t, ch.w.OnError(func(_ context.Context, e RunError) { told = append(told, e) }))
		set(t, c.DB, rowA, "outside")
		// turns has the observer run for a and b in turn, until the run for last is parked.
		turns := func(last Cell, cells ...Cell) {
			for _, cell := range cells {
				runs(t, ch.w, cell)
				require.NoError(t, c.drained(ctx))
			}
			require.Equal(t, runAgain, look(t, ch.w, last))
			rests(t, ch.w, last)
			parked, err := c.Parked(ctx)
			require.NoError(t, err)
			require.Len(t, parked, 1)
			require.Equal(t, last, parked[0].Cell)
			require.Contains(t, parked[0].Error, ErrTooManyHops.Error())
			require.Contains(t, parked[0].Error, "3 runs")
		}
		turns(rowB, rowA, rowB, rowA)
		require.Equal(t, []int{0, 1, 2}, ch.hops, "the function was called beyond the limit")
		require.Len(t, told, 1)
		require.ErrorIs(t, told[0].Err, ErrTooManyHops)
		require.True(t, told[0].Parked)
		parked, err := c.Parked(ctx)
		require.NoError(t, err)
		require.NoError(t, c.Release(ctx, parked...))
		turns(rowA, rowB, rowA, rowB)
		require.Equal(t, []int{0, 1, 2, 0, 1, 2}, ch.hops)
		ch.then = writesNext()
		set(t, c.DB, rowA, "outside again")
		runs(t, ch.w, rowA)
		require.Zero(t, ch.hops[6])
		parked, err = c.Parked(ctx)
		require.NoError(t, err)
		require.Empty(t, parked)
	})
}

// Of several changes that come as one, the newest counts.
func TestScheduleH_SeveralChanges(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		w.tracked()
		c := w.client(opts...)
		ch := newChain(t, c, 0, writesNext(rowA, rowB))
		set(t, c.DB, rowA, "1")
		runs(t, ch.w, rowA)
		require.NoError(t, c.drained(t.Context()))
		set(t, c.DB, rowB, "outside, later")
		require.Equal(t, []format.Cascade{{}, {Hops: 1}}, w.carried(rowB))
		runs(t, ch.w, rowB)
		require.Equal(t, []int{0, 0}, ch.hops)
		set(t, c.DB, rowB, "outside, earlier")
		set(t, c.DB, rowA, "2")
		runs(t, ch.w, rowA)
		require.NoError(t, c.drained(t.Context()))
		require.Equal(t, []format.Cascade{{Hops: 1}, {}}, w.carried(rowB))
		runs(t, ch.w, rowB)
		require.Equal(t, []int{0, 0, 0, 1}, ch.hops)
	})
}

// An observer without a limit begins anew with each run. It goes on for ever by notifying its own cell, and whoever sees what it writes has a
// count of its own.
func TestScheduleH_NoLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	w.tracked()
	c := w.client()
	ch := newChain(t, c, -1, func(tx *Txn, cell Cell) error { return tx.Notify(cell) })
	set(t, c.DB, rowA, "1")
	for range 5 {
		runs(t, ch.w, rowA)
		require.Equal(t, []format.Cascade{{Hops: 1}}, w.carried(rowA))
	}
	require.Equal(t, make([]int, 5), ch.hops)
}

// A timer that is due at once goes on with the count, so a loop of such timers ends. One that waits begins anew.
func TestScheduleH_Timers(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		w.timers()
		w.tracked()
		c := w.client(opts...)
		wait := time.Duration(0)
		ch := newChain(t, c, 0, func(tx *Txn, cell Cell) error { return tx.NotifyAfter(t.Context(), cell, wait) })
		set(t, c.DB, rowA, "1")
		for range 3 {
			runs(t, ch.w, rowA)
			require.NoError(t, c.drained(t.Context()))
		}
		require.Equal(t, []int{0, 1, 2}, ch.hops)
		wait = soon
		for range 3 {
			runs(t, ch.w, rowA)
			require.NoError(t, c.drained(t.Context()))
			w.pass(soon + time.Second)
		}
		require.Equal(t, []int{0, 1, 2, 3, 0, 0}, ch.hops)
	})
}

// Nothing is said before everybody can read it: not before the catalog was raised, and not by a transaction that began before everybody knew.
func TestScheduleH_FirstOfAll(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.observed("t", "v", "o")
		c := w.client(opts...)
		ch := newChain(t, c, 0, writesNext(rowA, rowB))
		plain := func() {
			t.Helper()
			set(t, c.DB, rowA, "1")
			runs(t, ch.w, rowA)
			require.NoError(t, c.drained(t.Context()))
			require.Equal(t, []format.Cascade{{}}, w.carried(rowB))
			runs(t, ch.w, rowB)
		}
		plain()
		require.False(t, c.known().Cascades)
		from, err := c.raiseTo(t.Context(), cascades)
		require.NoError(t, err)
		require.True(t, c.known().Cascades)
		plain() // a lease has yet to pass
		require.Less(t, startOf(begin(t, c)), from)
		w.pass(worldLease + time.Millisecond)
		require.NoError(t, c.TrackCascades(t.Context()))
		set(t, c.DB, rowA, "2")
		runs(t, ch.w, rowA)
		require.NoError(t, c.drained(t.Context()))
		require.Equal(t, []format.Cascade{{Hops: 1}}, w.carried(rowB))
		runs(t, ch.w, rowB)
		require.Equal(t, []int{0, 0, 0, 0, 0, 1}, ch.hops)
	})
}

// A worker with a limit of its own has cascades tracked, and no other one does.
func TestMaxHopsTracks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		config WorkerConfig
		most   int
		tracks bool
		limit  int
	}{
		"nobody":              {limit: defaultMaxHops},
		"no limit":            {most: -1, limit: -1},
		"no limit for all":    {config: WorkerConfig{MaxHops: -1}, limit: -1},
		"of the observer":     {most: 5, tracks: true, limit: 5},
		"of the worker":       {config: WorkerConfig{MaxHops: 7}, tracks: true, limit: 7},
		"the observer's wins": {config: WorkerConfig{MaxHops: 7}, most: -1, tracks: true, limit: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newWorld(t).client()
			w := NewWorker(c.DB, tt.config)
			require.NoError(t, w.Observe(Observer{Name: "o", Table: "t", Column: "v", MaxHops: tt.most, Func: func(context.Context, *Txn, Cell) error { return nil }}))
			require.NoError(t, w.publish(t.Context()))
			v, err := c.loadCatalog(t.Context())
			require.NoError(t, err)
			require.Equal(t, tt.tracks, v.Cascades)
			require.Equal(t, tt.tracks, v.CascadesFrom != 0)
			require.Equal(t, tt.limit, w.list[0].o.MaxHops)
		})
	}
}

// What a run for a view has before it: nothing if it is a replay, or if nothing tells of the newest change.
func TestCascadeOfAView(t *testing.T) {
	t.Parallel()
	hops := func(n int) []byte {
		return format.EncodeNotification(format.NotifyStrong, format.Cascade{Hops: n}.Encode())
	}
	v := &cellView{at: 20, change: 10, failures: []format.Failure{{}}, acks: []Timestamp{0}, seen: []rowstore.Version{{TS: 15, Value: hops(4)}, {TS: 10, Value: hops(3)}, {TS: 5, Value: hops(2)}}}
	require.Equal(t, format.Cascade{Hops: 3}, v.cascade(0))
	v.failures[0].Replay = true
	require.Zero(t, v.cascade(0))
	v.failures[0].Replay = false
	v.change = 11
	require.Zero(t, v.cascade(0))
	v.change, v.seen[1].Value = 10, hops(format.MaxHops)
	r, w := &runOf{cell: rowA}, &Worker{}
	require.NoError(t, w.countHops(r, &Observer{MaxHops: 9, periodic: &periodic{}}, 0, v))
	require.NoError(t, w.countHops(r, &Observer{MaxHops: -1}, 0, v))
	require.Zero(t, r.hops)
	require.ErrorIs(t, w.countHops(r, &Observer{MaxHops: 9}, 0, v), ErrTooManyHops)
}

// What a commit says of itself allocates nothing where cascades are not tracked, for a write from outside, and for a run that few others lie before.
func TestOriginAllocatesNothing(t *testing.T) {
	tracked := &catalogView{catalog: catalog{Cascades: true, CascadesFrom: 5}}
	run := &runOf{hops: 3}
	for name, tt := range map[string]struct {
		c    *committer
		hops int
	}{
		"not tracked": {&committer{view: &catalogView{}, start: 7, tx: &Txn{run: run}}, 0},
		"outside":     {&committer{view: tracked, start: 7, tx: &Txn{}}, 0},
		"a run":       {&committer{view: tracked, start: 7, tx: &Txn{run: run}}, 4},
	} {
		var o *origin
		require.Zero(t, testing.AllocsPerRun(100, func() { o = tt.c.originOf() }), name)
		if tt.hops == 0 {
			require.Nil(t, o, name)
			continue
		}
		for _, k := range []format.NotifyKind{format.NotifyStrong, format.NotifyWeak} {
			got, err := format.CascadeOf(o.notification(k))
			require.NoError(t, err)
			require.Equal(t, format.Cascade{Hops: tt.hops}, got, name)
		}
	}
	many := (&committer{view: tracked, start: 7, tx: &Txn{run: &runOf{hops: int32(len(followed))}}}).originOf()
	got, err := format.DecodeCascade(many.encoded())
	require.NoError(t, err)
	require.Equal(t, len(followed)+1, got.Hops)
}
