package percolator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// running starts a worker and returns how Run ends.
func running(t testing.TB, db *DB, config WorkerConfig, observers ...Observer) (w *Worker, stop func(), ended <-chan error) {
	t.Helper()
	w = NewWorker(db, config)
	for _, o := range observers {
		require.NoError(t, w.Observe(o))
	}
	ctx, cancel := context.WithCancel(context.Background())
	done, end := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(done)
		end <- w.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	atend.Do(t, stop)
	return w, stop, end
}

// waitIdle is WaitIdle within the patience of a test.
func waitIdle(t testing.TB, w *Worker) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return w.WaitIdle(ctx)
}

// A worker whose observer another process has removed is told, whether it has
// something to do or not.
func TestRemovedObserverEndsItsWorker(t *testing.T) {
	t.Parallel()
	for _, asked := range []bool{true, false} {
		t.Run(fmt.Sprint("asked ", asked), func(t *testing.T) {
			t.Parallel()
			dbs, _ := clients(t, 2, false)
			gone := Observer{Name: "gone", Table: "t", Column: "v", Func: nothing}
			w, _, ended := running(t, dbs[0], WorkerConfig{}, gone, Observer{Name: "stays", Table: "t", Column: "u", Func: nothing})
			idle(t, w)
			require.NoError(t, dbs[1].RemoveObserver(t.Context(), "gone"))
			if asked {
				err := waitIdle(t, w)
				require.ErrorIs(t, err, ErrObserverRemoved)
				require.ErrorContains(t, err, `"gone"`)
			}
			err := result(t, ended)
			require.ErrorIs(t, err, ErrObserverRemoved)
			require.ErrorContains(t, err, `"gone"`)
			require.ErrorIs(t, waitIdle(t, w), ErrObserverRemoved)
			// Another Run registers it again, and misses nothing.
			set(t, dbs[1], Cell{"t", "r", "v"}, "x")
			var n atomic.Int64
			w, _, _ = running(t, dbs[0], WorkerConfig{}, counting("gone", "v", &n))
			idle(t, w)
			require.EqualValues(t, 1, n.Load())
		})
	}
}

// A worker leaves a sweep to the one that is at it, and takes it over when that one's
// lease has ended.
func TestSweepLease(t *testing.T) {
	t.Parallel()
	dbs, _ := clients(t, 2, false)
	registered(t, dbs[0], "o", "v")
	setRows(t, dbs[0], "v", 10)
	_, err := dbs[0].changeCatalog(t.Context(), func(v *catalogView) (bool, error) {
		v.Observers[0].Swept = 0
		return true, nil
	})
	require.NoError(t, err)
	w := NewWorker(dbs[0], WorkerConfig{MemberLease: 200 * time.Millisecond})
	require.NoError(t, w.Observe(Observer{Name: "o", Table: "t", Column: "v", Func: nothing}))
	other := NewWorker(dbs[1], w.config)
	lease := &sweepLease{w: other, row: format.SweepLeaseRow(&format.Observer{Table: []byte("t"), Column: []byte("v"), Name: []byte("o")})}
	held, err := lease.take(t.Context())
	require.NoError(t, err)
	require.Zero(t, held)
	began := time.Now()
	for sweeps := 0; ; sweeps++ {
		v, err := dbs[0].loadCatalog(t.Context())
		require.NoError(t, err)
		if len(w.unswept(v)) == 0 {
			require.Greater(t, sweeps, 1)
			break
		}
		require.NoError(t, w.sweepNew(t.Context())) // it finds the lease, and waits a while for its end
	}
	require.GreaterOrEqual(t, time.Since(began), 100*time.Millisecond)
}

// The end of a sweep counts for the registration that it was made for, and for no later
// one.
func TestSweepOfAnOldRegistration(t *testing.T) {
	t.Parallel()
	dbs, _ := clients(t, 2, false)
	c := Cell{"t", "r", "v"}
	w := NewWorker(dbs[0], WorkerConfig{})
	o := Observer{Name: "o", Table: "t", Column: "v", Func: nothing}
	require.NoError(t, w.Observe(o))
	require.NoError(t, w.publish(t.Context()))
	v, err := dbs[0].loadCatalog(t.Context())
	require.NoError(t, err)
	old := w.unswept(v)
	require.Len(t, old, 1)
	at, err := dbs[0].Now(t.Context())
	require.NoError(t, err)
	// Before that sweep ends, the observer is removed, a cell changes, and it is
	// registered again.
	require.NoError(t, dbs[1].RemoveObserver(t.Context(), "o"))
	set(t, dbs[1], c, "x")
	again := NewWorker(dbs[1], WorkerConfig{})
	require.NoError(t, again.Observe(o))
	require.NoError(t, again.publish(t.Context()))
	_, _, err = w.newSweeper(old[0], at).attempt(t.Context())
	require.NoError(t, err)
	v, err = dbs[0].loadCatalog(t.Context())
	require.NoError(t, err)
	require.Len(t, again.unswept(v), 1, "the sweep of the old registration was taken for the new one's")
	require.NotEqual(t, old[0].Since, again.unswept(v)[0].Since)
	var n atomic.Int64
	third, _, _ := running(t, dbs[0], WorkerConfig{}, counting("o", "v", &n))
	idle(t, third)
	require.EqualValues(t, 1, n.Load())
}

// Parked runs of an observer that was removed are listed, and dropped by Release; when
// it comes back it runs for their cells.
func TestParkedRunsOfARemovedObserver(t *testing.T) {
	t.Parallel()
	for _, watched := range []bool{false, true} {
		t.Run(fmt.Sprint("column of another observer ", watched), func(t *testing.T) {
			t.Parallel()
			dbs, _ := clients(t, 1, false)
			db := dbs[0]
			if watched {
				registered(t, db, "another", "v")
			}
			w, stop, _ := running(t, db, WorkerConfig{MaxAttempts: 1}, Observer{Name: "o", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error {
				return errors.New("on purpose")
			}})
			set(t, db, Cell{"t", "r", "v"}, "x")
			idle(t, w)
			stop()
			require.NoError(t, db.RemoveObserver(t.Context(), "o"))
			parked, err := db.Parked(t.Context())
			require.NoError(t, err)
			require.Len(t, parked, 1)
			// Until every commit knows that nobody observes the column.
			notified := func() []rowstore.Version {
				rows, err := db.Store().Read(t.Context(), []rowstore.RowRead{{Table: "t", Row: "r", Selectors: []rowstore.Selector{everything(rowstore.Notify, "v")}}})
				require.NoError(t, err)
				return rows[0].Versions
			}
			before := notified()
			require.NoError(t, db.Release(t.Context(), parked...))
			require.Equal(t, before, notified(), "nobody is to be notified")
			parked, err = db.Parked(t.Context())
			require.NoError(t, err)
			require.Empty(t, parked)
			var n atomic.Int64
			w, _, _ = running(t, db, WorkerConfig{}, counting("o", "v", &n))
			idle(t, w)
			require.EqualValues(t, 1, n.Load())
		})
	}
}

// Parked runs are read a page at a time, and counted without being read.
func TestParkedRunsAreReadInPages(t *testing.T) {
	t.Parallel()
	dbs, taps := clients(t, 2, false)
	db, tap := dbs[0], taps[0]
	w, stop, end := running(t, db, WorkerConfig{MaxAttempts: 1, BreakAt: -1}, Observer{Name: "o", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error {
		return errors.New("on purpose")
	}})
	idle(t, w)
	const n = parkedPage + 10
	setRows(t, db, "v", n)
	idle(t, w)
	stop() // its own calls are not counted
	require.NoError(t, result(t, end))
	calls := tap.calls.Load()
	parked, err := db.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, n)
	require.LessOrEqual(t, tap.calls.Load()-calls, int64(10))
	rows := map[string]bool{}
	for _, p := range parked {
		rows[p.Cell.Row] = true
		require.Equal(t, "on purpose", p.Error)
	}
	require.Len(t, rows, n)
	// Nothing else on this DB reads rows of parked runs.
	beside, read := dbs[1], atomic.Int64{}
	counts := func(r rowstore.RowRead) bool {
		if r.Table == format.TableParked {
			read.Add(1)
		}
		return false
	}
	taps[1].failRead.Store(&counts)
	for _, err := range beside.ParkedRuns(t.Context()) {
		require.NoError(t, err)
		break
	}
	require.EqualValues(t, parkedPage, read.Swap(0), "nothing is read for a loop that has ended")
	visited := 0
	for p, err := range beside.ParkedRuns(t.Context()) {
		require.NoError(t, err)
		require.True(t, rows[p.Cell.Row])
		if visited++; visited <= parkedPage {
			require.EqualValues(t, parkedPage, read.Load(), "more than a page is read at a time")
		}
	}
	require.Equal(t, n, visited)
	require.EqualValues(t, n, read.Load())
	ended, cancel := context.WithCancel(t.Context())
	defer cancel()
	visited = 0
	for _, err := range beside.ParkedRuns(ended) {
		if cancel(); err != nil {
			require.ErrorIs(t, err, context.Canceled)
			break
		}
		visited++
	}
	require.Equal(t, parkedPage, visited)
	calls = tap.calls.Load()
	b, err := db.Backlog(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, n, b.Parked)
	require.LessOrEqual(t, tap.calls.Load()-calls, int64(10))
}

// What a removed observer leaves behind keeps nothing from being collected, unless
// somebody else observes the column.
func TestCollectionAfterARemovedObserver(t *testing.T) {
	t.Parallel()
	for _, watched := range []bool{false, true} {
		t.Run(fmt.Sprint("column of another observer ", watched), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "gone")
			if watched {
				w.observed("t", "v", "another")
			}
			c := w.client()
			const changes = mostCleared + 10
			for i := range changes {
				set(t, c.DB, rowA, fmt.Sprint(i))
			}
			require.NoError(t, c.Update(t.Context(), func(tx *Txn) error { return tx.Delete(rowA) }))
			require.Len(t, w.notified(rowA), changes+1)
			require.NoError(t, c.RemoveObserver(t.Context(), "gone"))
			w.pass(worldRetention + worldAge)
			_, err := w.collect(c, 0)
			require.NoError(t, err)
			row := w.raw(rowA)
			if watched {
				require.Len(t, w.notified(rowA), changes+1)
				require.NotNil(t, row.Newest(rowstore.Write, "v"), "the other observer has not seen the delete")
				return
			}
			require.Empty(t, w.notified(rowA))
			require.Nil(t, row.Newest(rowstore.Write, "v"), "the delete is kept")
		})
	}
}

// said takes the lines of a log that say what a removed observer leaves.
type said chan string

func (s said) Write(line []byte) (int, error) {
	if strings.Contains(string(line), "a removed observer leaves") {
		s <- string(line)
	}
	return len(line), nil
}

// RemoveObserver logs how much waits for the observer for ever.
func TestRemovedObserverSaysWhatIsLeft(t *testing.T) {
	t.Parallel()
	left := make(said, 1)
	db := open(t, memstore.New(), quick, WithLogger(slog.New(slog.NewTextHandler(left, nil))))
	w, stop, _ := running(t, db, WorkerConfig{MaxAttempts: 1, BreakAt: -1}, Observer{Name: "o", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error {
		return errors.New("on purpose")
	}})
	setRows(t, db, "v", 3)
	idle(t, w)
	stop()
	set(t, db, Cell{"t", "later", "v"}, "x") // nobody runs it any more
	require.NoError(t, db.RemoveObserver(t.Context(), "o"))
	require.Contains(t, <-left, "observer=o cells=1 parked=3")
}

// RemoveObserver looks at a bounded number of parked runs for its line in the log, whoever's they are.
func TestRemovedObserverAmongParkedRunsOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.observed("t", "v", "o")
	c := w.client()
	at := mustNow(t, c)
	for rows := range slices.Chunk(make([]int, mostLeft+2*parkedPage), 1000) {
		muts := make([]rowstore.Mutation, len(rows))
		for i := range rows {
			p := format.Parked{Observer: []byte("other"), Table: []byte("t"), Row: fmt.Appendf(nil, "%p/%d", rows, i), Column: []byte("v")}
			record, err := p.Encode()
			require.NoError(t, err)
			stored := format.Write{Kind: format.KindPut, Start: at - 1, Value: record}
			cell := parkedIndex("other", Cell(p.Cell()))
			muts[i] = rowstore.Mutation{Table: cell.Table, Row: cell.Row, Edits: []rowstore.Edit{rowstore.Put(rowstore.Write, cell.Column, at, stored.Encode())}}
		}
		_, err := w.mem.Apply(t.Context(), muts, rowstore.ApplyOptions{})
		require.NoError(t, err)
	}
	require.NoError(t, c.RemoveObserver(t.Context(), "o"))
	require.NoError(t, c.Close(t.Context()), "it waits for the background")
	pages := len(c.wire.sent(func(x *call) bool { return x.Kind == faultstore.CallRead && x.Reads[0].Table == format.TableParked }))
	require.Positive(t, pages)
	require.LessOrEqual(t, pages, mostLeft/parkedPage+1)
}
