package percolator

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
)

// Schedules in which an observer is replayed ("Replays" in docs/architecture.md).

// replays has everybody know of replays.
func (w *world) replays() {
	w.t.Helper()
	c := w.client()
	_, err := c.raiseTo(w.t.Context(), replays)
	require.NoError(w.t, err)
	w.pass(worldLease + time.Millisecond)
}

// asks asks for the runs of all cells of table t, and does not wait for them.
func asks(c *client, observer string) error {
	if _, err := c.loadCatalog(context.Background()); err != nil {
		return err
	}
	r := &replay{db: c.DB, record: c.replayOf(observer, &Range{Table: "t"}, "v"), report: &ReplayReport{}}
	_, err := r.ask(context.Background())
	return err
}

// asked are the columns of a row in which there is a request.
func (w *world) asked(cell Cell, observer string) bool {
	w.t.Helper()
	row := w.raw(cell)
	v, found, err := committed(&row, format.FailureColumn(observer, cell.Column))
	require.NoError(w.t, err)
	if !found {
		return false
	}
	f, err := format.DecodeFailure(v.Value)
	require.NoError(w.t, err)
	return f.Replay && !f.Parked
}

// notifiedRows are the cells of table t with notifications of column v.
func (w *world) notifiedRows() (cells []Cell) {
	w.t.Helper()
	for r, err := range w.mem.Scan(w.t.Context(), rowstore.ScanRange{Table: "t", Selectors: []rowstore.Selector{everything(rowstore.Notify, "v")}}) {
		require.NoError(w.t, err)
		cells = append(cells, row(r.Row))
	}
	return cells
}

// The observer runs for each cell once more and is told the same value twice, and nobody else runs.
func TestScheduleR_RunsOnceMore(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.replays()
		c := w.client(opts...)
		o, other := newTold(t, c, "o", "t"), newTold(t, w.client(), "other", "t")
		set(t, c.DB, rowA, "1")
		set(t, c.DB, rowB, longText)
		set(t, c.DB, rowC, "3")
		remove(t, c.DB, rowC)
		for _, cell := range []Cell{rowA, rowB, rowC} {
			require.True(t, o.run(cell))
			require.True(t, other.run(cell))
			rests(t, o.w, cell)
			require.Empty(t, w.notified(cell))
		}
		done := async(func() error {
			report, err := c.Replay(t.Context(), "o", Range{Table: "t"})
			if err == nil && report != (ReplayReport{Cells: 3}) {
				err = fmt.Errorf("%+v", report)
			}
			return err
		})
		for _, cell := range []Cell{rowA, rowB, rowC} {
			require.Eventually(t, func() bool { return w.asked(cell, "o") }, patience, time.Millisecond)
			require.NotEmpty(t, w.notified(cell))
			require.False(t, other.run(cell), "another observer runs")
			require.NotEmpty(t, w.notified(cell), "what tells of the request was cleared")
			require.True(t, o.run(cell))
			last := o.changes[len(o.changes)-1]
			require.Equal(t, last.New, last.Old)
			require.Equal(t, last.NewFound, last.OldFound)
			require.False(t, last.First)
			rests(t, o.w, cell)
			require.Empty(t, w.notified(cell))
			require.False(t, w.asked(cell, "o"))
		}
		require.NoError(t, w.finish(done))
		w.settled()
		infos, err := c.Replays(t.Context())
		require.NoError(t, err)
		require.Empty(t, infos)
	})
}

// A change that the observer has yet to see is part of the same run.
func TestScheduleR_WithAChange(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.replays()
		c := w.client(opts...)
		o := newTold(t, c, "o", "t")
		set(t, c.DB, rowA, "1")
		require.True(t, o.run(rowA))
		require.NoError(t, asks(c, "o"))
		set(t, c.DB, rowA, "2")
		require.True(t, o.run(rowA), "told that 1 became 2")
		require.False(t, o.run(rowA))
	})
}

// A run that is under way when it is asked for once more has read what was there before. So it does not count, whether it began
// for a change or for an earlier request.
func TestScheduleR_RunUnderWay(t *testing.T) {
	for _, replayed := range []bool{false, true} {
		t.Run(fmt.Sprint(replayed), func(t *testing.T) {
			eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
				w.replays()
				c, asker := w.client(opts...), w.client(opts...)
				o := newTold(t, c, "o", "t")
				set(t, c.DB, rowA, "1")
				if replayed {
					require.True(t, o.run(rowA))
					require.NoError(t, asks(asker, "o"))
				}
				var starts []Timestamp
				var last Timestamp
				o.during = func(tx *Txn, _ Change) {
					if starts = append(starts, startOf(tx)); len(starts) == 1 {
						require.NoError(t, asks(asker, "o"))
						var err error
						last, err = asker.Now(t.Context())
						require.NoError(t, err)
					}
				}
				for range 3 {
					look(t, o.w, rowA)
				}
				require.Len(t, starts, 2)
				require.Greater(t, starts[1], last)
				require.False(t, w.asked(rowA, "o"))
				require.Empty(t, w.notified(rowA))
			})
		})
	}
}

// The locks of a request stand while another observer looks: it must not clear what tells of the request.
func TestScheduleR_OtherObserverMeetsTheRequest(t *testing.T) {
	eachWorld2(t, func(t *testing.T, w *world, opts ...Option) {
		w.replays()
		c, asker := w.client(), w.client(opts...)
		o, other := newTold(t, c, "o", "t"), newTold(t, c, "other", "t")
		for _, cell := range []Cell{rowA, rowB} {
			set(t, c.DB, cell, "1")
			require.True(t, o.run(cell))
			require.True(t, other.run(cell))
			rests(t, o.w, cell)
		}
		// The notification of a row that is not the primary's comes before the commit point.
		p := asker.hold(t, commits)
		done := async(func() error { return asks(asker, "o") })
		p.wait()
		told := 0
		for _, cell := range []Cell{rowA, rowB} {
			told += len(w.notified(cell))
			require.False(t, other.run(cell))
		}
		require.Positive(t, told, "nothing stands before the commit point")
		p.release(pass)
		require.NoError(t, w.finish(done))
		for _, cell := range []Cell{rowA, rowB} {
			require.NotEmpty(t, w.notified(cell), "the request was lost")
			require.True(t, o.run(cell))
			require.False(t, o.run(cell))
			require.Empty(t, w.notified(cell))
		}
	})
}

// The asker dies at each of its calls; the next call goes on where it stopped, and every cell has run after all. It is long
// because it is one schedule from the setup to what is left at the end.
func TestScheduleR_DeathAtEachStep(t *testing.T) {
	eachWorld(t, func(t *testing.T, _ *world, opts ...Option) {
		const rows = replayPage + 3
		resumed := 0
		for n, last := 0, false; !last; n++ {
			w := newWorld(t)
			w.replays()
			worker := w.client()
			var runs atomic.Int64
			wk := watching(t, worker, Observer{Name: "o", Func: func(context.Context, *Txn, Cell) error {
				runs.Add(1)
				return nil
			}})
			require.NoError(t, wk.publish(t.Context()))
			name := func(i int) Cell { return row(fmt.Sprintf("%06d", i)) }
			set(t, worker.DB, name(0), "x")
			runAll := func() {
				for _, cell := range w.notifiedRows() {
					look(t, wk, cell)
					look(t, wk, cell)
				}
			}
			runAll()
			require.EqualValues(t, 1, runs.Load())
			require.Empty(t, w.notifiedRows())
			w.copies(name(0), rows-1, func(i int) Cell { return name(i + 1) })
			c := w.client(opts...)
			var calls atomic.Int64
			reached := make(chan struct{})
			c.wire.AddRule(faultstore.Rule{
				Match: func(x *call) bool { return anyCall(x) && calls.Add(1) == int64(n)+1 },
				Before: func(context.Context, *call) verdict {
					close(reached)
					return dieAfter
				},
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := async(func() error {
				_, err := c.Replay(ctx, "o", Range{Table: "t"})
				return err
			})
			// It waits for its runs, unless it is dead.
			for ended := false; !ended; {
				select {
				case err := <-done:
					ended, last = true, calls.Load() <= int64(n)
					require.True(t, !last || err == nil, "%v", err)
				case <-reached:
					cancel()
					_ = w.finish(done)
					ended = true
				case <-time.After(time.Millisecond):
					runAll()
				}
			}
			cancel()
			if last {
				break
			}
			w.pass(worldExpiry + worldSession + time.Second)
			again := w.client(opts...)
			var report ReplayReport
			done = async(func() (err error) {
				report, err = again.Replay(t.Context(), "o", Range{Table: "t"})
				return err
			})
			for ended := false; !ended; {
				select {
				case err := <-done:
					require.NoError(t, err)
					ended = true
				case <-time.After(time.Millisecond):
					runAll()
				}
			}
			if report.Resumed {
				resumed++
			}
			require.EqualValues(t, rows, report.Cells)
			require.GreaterOrEqual(t, runs.Load(), int64(1+rows), "call %d", n)
			for i := range rows {
				require.False(t, w.asked(name(i), "o"))
			}
		}
		require.Positive(t, resumed)
	})
}

// A run that fails is attempted again and parked, and what was parked before is released.
func TestScheduleR_Failures(t *testing.T) {
	eachWorld(t, func(t *testing.T, w *world, opts ...Option) {
		w.replays()
		c := w.client(opts...)
		o := newTold(t, c, "o", "t") // of two attempts
		set(t, c.DB, rowA, "1")
		require.True(t, o.run(rowA))
		for range 2 { // the second one releases what the first one has parked
			var report ReplayReport
			done := async(func() (err error) {
				report, err = c.Replay(t.Context(), "o", Range{Table: "t", Columns: []string{"v", "v"}})
				return err
			})
			require.Eventually(t, func() bool { return w.asked(rowA, "o") }, patience, time.Millisecond)
			parked, err := c.Parked(t.Context())
			require.NoError(t, err)
			require.Empty(t, parked)
			before := len(o.changes)
			o.fail = errTest
			require.True(t, o.run(rowA))
			require.False(t, o.run(rowA), "it waits for its next attempt")
			w.clock.advance(50 * time.Second)
			require.True(t, o.run(rowA))
			require.False(t, o.run(rowA))
			require.NoError(t, w.finish(done))
			require.Equal(t, ReplayReport{Cells: 1, Parked: 1}, report)
			require.Equal(t, []int{1, 2}, attemptsOf(o.changes[before:]))
			require.Empty(t, w.notified(rowA))
			parked, err = c.Parked(t.Context())
			require.NoError(t, err)
			require.Len(t, parked, 1)
		}
		// A run that asks to be called much later is not waited for.
		o.fail = RetryAfter(time.Hour)
		var report ReplayReport
		done := async(func() (err error) {
			report, err = c.Replay(t.Context(), "o", Range{Table: "t"})
			return err
		})
		require.Eventually(t, func() bool { return w.asked(rowA, "o") }, patience, time.Millisecond)
		require.True(t, o.run(rowA))
		require.NoError(t, w.finish(done))
		require.Equal(t, ReplayReport{Cells: 1, Waiting: 1}, report)
		o.fail = nil
		w.pass(time.Hour + time.Second)
		require.True(t, o.run(rowA))
		require.False(t, o.run(rowA))
		w.settled()
	})
}

// Programs that do not know of replays are gone before the first request is made.
func TestScheduleR_FirstOfAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	o := newTold(t, c, "o", "t")
	set(t, c.DB, rowA, "1")
	require.True(t, o.run(rowA))
	done := async(func() error {
		_, err := c.Replay(t.Context(), "o", Range{Table: "t"})
		return err
	})
	require.Eventually(t, func() bool {
		v, err := c.loadCatalog(t.Context())
		return err == nil && v.Replays && v.ReplaysFrom != 0
	}, patience, time.Millisecond)
	v, err := c.loadCatalog(t.Context())
	require.NoError(t, err)
	require.Less(t, v.asOf, v.ReplaysFrom)
	_, ended := w.clock.sleeps(t, v.ReplaysFrom.Sub(v.asOf)+time.Millisecond, done)
	require.False(t, ended)
	require.False(t, w.asked(rowA, "o"))
	w.pass(worldLease + time.Millisecond)
	require.Eventually(t, func() bool { return w.asked(rowA, "o") }, patience, time.Millisecond)
	require.True(t, o.run(rowA))
	require.NoError(t, w.finish(done))
}

// A replay ends when its observer is paused or removed, and goes on when it is resumed.
func TestScheduleR_PausedAndRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.replays()
	c := w.client()
	o := newTold(t, c, "o", "t")
	set(t, c.DB, rowA, "1")
	require.True(t, o.run(rowA))
	start := func() <-chan error {
		return async(func() error {
			_, err := c.Replay(t.Context(), "o", Range{Table: "t"})
			return err
		})
	}
	done := start()
	require.Eventually(t, func() bool { return w.asked(rowA, "o") }, patience, time.Millisecond)
	require.NoError(t, c.PauseObserver(t.Context(), "o"))
	require.ErrorIs(t, w.finish(done), ErrObserverPaused)
	require.ErrorIs(t, w.finish(start()), ErrObserverPaused)
	o.w.notePaused(c.known())
	require.False(t, o.run(rowA))
	require.NoError(t, c.ResumeObserver(t.Context(), "o"))
	o.w.notePaused(c.known())
	done = start()
	require.True(t, o.run(rowA), "what was asked for runs")
	for ended := false; !ended; {
		select {
		case err := <-done:
			require.NoError(t, err)
			ended = true
		default:
			look(t, o.w, rowA)
		}
	}
	done = start()
	require.Eventually(t, func() bool { return w.asked(rowA, "o") }, patience, time.Millisecond)
	require.NoError(t, c.RemoveObserver(t.Context(), "o"))
	require.ErrorIs(t, w.finish(done), ErrNotObserved)
	require.ErrorIs(t, w.finish(start()), ErrNotObserved)
}

func TestReplayRefuses(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	both := func(observer string, r Range, want error) {
		t.Helper()
		_, err := c.Replay(ctx, observer, r)
		require.ErrorIs(t, err, want)
		require.ErrorIs(t, c.CancelReplay(ctx, observer, r), want)
	}
	both("", Range{Table: "t"}, ErrInvalid)
	both(string(make([]byte, format.MaxObserverName+1)), Range{Table: "t"}, ErrInvalid)
	both("o", Range{}, ErrInvalid)
	both("o", Range{Table: "t", Limit: 1}, ErrInvalid)
	both("o", Range{Table: "t", Limit: -1}, ErrInvalid)
	both("o", Range{Table: "t", Reverse: true}, ErrInvalid)
	both("o", Range{Table: "t", Timestamps: true}, ErrInvalid)
	both("o", Range{Table: "t", Columns: []string{""}}, ErrInvalid)
	both("o", Range{Table: string(make([]byte, 1<<16))}, ErrTooLarge)
	both("o", Range{Table: "u"}, ErrNotObserved)
	both("o", Range{Table: "t", Columns: []string{"w"}}, ErrNotObserved)
	both("nobody", Range{Table: "t"}, ErrNotObserved)
	require.False(t, c.known().Replays, "the catalog was raised for nothing")
	require.NoError(t, c.CancelReplay(ctx, "o", Range{Table: "t"}), "there is none")
	require.NoError(t, c.Close(ctx))
	both("o", Range{Table: "t"}, ErrClosed)
	_, err := c.Replays(ctx)
	require.ErrorIs(t, err, ErrClosed)
}

// requests counts those of a replay of observer o for table t, column v, whose runs have not taken effect. The notifications that tell of
// them go a little later.
func requests(ctx context.Context, t *testing.T, db *DB) (n int) {
	t.Helper()
	at, err := db.draw(ctx)
	require.NoError(t, err)
	failure := format.FailureColumn("o", "v")
	scan := rowstore.ScanRange{Table: "t", Selectors: snapshotPicks(nil, failure, at)}
	for row, err := range db.scanSettled(ctx, scan, at, nil, nil) {
		require.NoError(t, err)
		_, found, err := committed(&row, failure)
		require.NoError(t, err)
		if found {
			n++
		}
	}
	return n
}

// Two calls share the work, what waits for its runs is bounded, and one that was cancelled begins anew. It is long because
// each part goes on with the workers of the one before.
func TestReplayWithWorkers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
	defer cancel()
	const rows = replayWindow + 2*replayPage + 1
	dbs, _ := clients(t, 2, false)
	db := dbs[0]
	var n, other atomic.Int64
	var workers []*Worker
	for _, db := range dbs {
		workers = append(workers, startWorker(t, db, WorkerConfig{}, counts("o", &n), counts("other", &other)))
	}
	setRows(t, db, "v", rows)
	for _, w := range workers {
		idle(t, w)
	}
	before, others := n.Load(), other.Load()
	errs := make(chan error, 2)
	start := func(db *DB, r Range) {
		go func() {
			_, err := db.Replay(ctx, "o", r)
			errs <- err
		}()
	}
	ended := func(n int) (most int) {
		for n > 0 {
			select {
			case err := <-errs:
				require.NoError(t, err)
				n--
			default:
				most = max(most, requests(ctx, t, db))
			}
		}
		return most
	}
	start(db, Range{Table: "t"})
	waited := ended(1)
	require.Positive(t, waited)
	require.LessOrEqual(t, waited, replayWindow, "too much waits at once")
	require.GreaterOrEqual(t, n.Load(), before+rows)
	before = n.Load()
	for _, db := range dbs {
		start(db, Range{Table: "t", From: "000500"})
	}
	ended(2)
	require.GreaterOrEqual(t, n.Load(), before+rows-500)
	require.Equal(t, others, other.Load())

	// Broken off, listed, cancelled.
	require.NoError(t, db.PauseObserver(ctx, "o"))
	_, err := db.Replay(ctx, "o", Range{Table: "t"})
	require.ErrorIs(t, err, ErrObserverPaused)
	require.NoError(t, db.ResumeObserver(ctx, "o"))
	short, stop := context.WithCancel(ctx)
	first := n.Load()
	go func() {
		_, err := db.Replay(short, "o", Range{Table: "t", From: "000001"})
		errs <- err
	}()
	for n.Load() == first {
		require.NoError(t, (systemClock{}).Sleep(ctx, time.Millisecond))
	}
	stop()
	err = <-errs
	infos, lerr := db.Replays(ctx)
	require.NoError(t, lerr)
	if err != nil {
		require.True(t, errors.Is(err, context.Canceled), "%v", err)
		require.Len(t, infos, 1)
		require.Equal(t, "o", infos[0].Observer)
		require.Equal(t, Range{Table: "t", Columns: []string{"v"}, From: "000001"}, infos[0].Range)
		require.Less(t, infos[0].Cells, int64(rows))
	}
	require.NoError(t, db.CancelReplay(ctx, "o", Range{Table: "t", From: "000001"}))
	infos, err = db.Replays(ctx)
	require.NoError(t, err)
	require.Empty(t, infos)
	report, err := db.Replay(ctx, "o", Range{Table: "t", From: "000001"})
	require.NoError(t, err)
	require.Equal(t, ReplayReport{Cells: rows - 1}, report)
}
