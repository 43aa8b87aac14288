package percolator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

// quick are settings under which a sweep and a collection take little time.
var quick = WithSettings(Settings{MaxTxnAge: time.Minute, Retention: time.Hour, CatalogLease: 50 * time.Millisecond})

func startWorker(t testing.TB, db *DB, config WorkerConfig, observers ...Observer) *Worker {
	t.Helper()
	w := NewWorker(db, config)
	for _, o := range observers {
		require.NoError(t, w.Observe(o))
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = w.Run(ctx) })
	atend.Do(t, func() {
		cancel()
		wg.Wait()
		require.NoError(t, err)
	})
	return w
}

func set(t testing.TB, db *DB, c Cell, value string) {
	t.Helper()
	require.NoError(t, db.Update(t.Context(), func(tx *Txn) error { return tx.Set(c, []byte(value)) }))
}

func get(t testing.TB, db *DB, c Cell) string {
	t.Helper()
	var value string
	require.NoError(t, db.View(t.Context(), func(tx *Txn) error {
		v, err := tx.Get(t.Context(), c)
		if errors.Is(err, ErrNotFound) {
			value, err = "none", nil
		} else {
			value = string(v)
		}
		return err
	}))
	return value
}

func idle(t testing.TB, w *Worker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	require.NoError(t, w.WaitIdle(ctx))
}

func TestChain(t *testing.T) {
	t.Parallel()
	for name, opts := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, memstore.New(), append([]Option{quick}, opts...)...)
			var chain []Observer
			for i := range 4 {
				chain = append(chain, Observer{Name: fmt.Sprint("o", i), Table: "t", Column: fmt.Sprint("c", i), Func: func(ctx context.Context, tx *Txn, c Cell) error {
					v, err := tx.Get(ctx, c)
					if err != nil {
						return err
					}
					c.Column = fmt.Sprint("c", i+1)
					return tx.Set(c, append(v, byte('0'+i)))
				}})
			}
			set(t, db, Cell{"t", "old", "c0"}, "x") // before there is any observer
			w := startWorker(t, db, WorkerConfig{}, chain...)
			idle(t, w)
			require.Equal(t, "x0123", get(t, db, Cell{"t", "old", "c4"}))
			for i := range 100 {
				set(t, db, Cell{"t", fmt.Sprint("r", i), "c0"}, fmt.Sprint(i, "-"))
			}
			idle(t, w)
			for i := range 100 {
				require.Equal(t, fmt.Sprint(i, "-0123"), get(t, db, Cell{"t", fmt.Sprint("r", i), "c4"}))
			}
			t.Logf("%+v", db.Stats())
		})
	}
}

func TestTwoWorkersRunEachChangeOnce(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New(), quick, withoutGroups())
	o := Observer{Name: "count", Table: "t", Column: "v", Func: func(ctx context.Context, tx *Txn, c Cell) error {
		c.Column = "n"
		v, err := tx.Get(ctx, c)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		return tx.Set(c, append(v, 'x'))
	}}
	w1, w2 := startWorker(t, db, WorkerConfig{}, o), startWorker(t, db, WorkerConfig{}, o)
	idle(t, w1)
	idle(t, w2)
	for round := range 3 {
		for i := range 300 {
			set(t, db, Cell{"t", fmt.Sprint(i), "v"}, "v")
		}
		idle(t, w1)
		for i := range 300 {
			n := get(t, db, Cell{"t", fmt.Sprint(i), "n"})
			require.Equal(t, "xxx"[:round+1], n)
		}
	}
	t.Logf("%+v", db.Stats())
}

func TestCollectGarbage(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New(), WithSettings(Settings{MaxTxnAge: 400 * time.Millisecond, Retention: 500 * time.Millisecond, CatalogLease: 5 * time.Millisecond}))
	ctx := t.Context()
	c, gone := Cell{"t", "a", "v"}, Cell{"t", "b", "v"}
	for i := range 10 {
		set(t, db, c, fmt.Sprint(i))
		set(t, db, gone, "x")
	}
	require.NoError(t, db.Update(ctx, func(tx *Txn) error { return tx.Delete(gone) }))
	old, err := db.Begin(ctx)
	require.NoError(t, err)
	var report GCReport
	require.Eventually(t, func() bool {
		report, err = db.CollectGarbage(ctx, GCOptions{})
		require.NoError(t, err)
		return report.SafePoint > startOf(old)
	}, patience, 10*time.Millisecond)
	_, err = old.Get(ctx, c)
	require.ErrorIs(t, err, ErrSnapshotTooOld)
	require.Equal(t, "9", get(t, db, c))
	rows, err := db.Store().Read(ctx, []rowstore.RowRead{
		{Table: "t", Row: "a", Selectors: []rowstore.Selector{everything(rowstore.Write, "v")}},
		{Table: "t", Row: "b", Selectors: []rowstore.Selector{everything(rowstore.Write, "v")}},
	})
	require.NoError(t, err)
	require.Len(t, rows[0].Versions, 1)
	require.Empty(t, rows[1].Versions)
	_, err = db.CollectGarbage(ctx, GCOptions{Keep: -1})
	require.ErrorIs(t, err, ErrInvalid)
}

// A function that was running when its worker stopped is finished, also when its
// first attempt to commit meets a conflict.
func TestStoppingWorkerFinishesARunThatConflicts(t *testing.T) {
	t.Parallel()
	db := open(t, memstore.New(), quick)
	changed, result := Cell{"t", "r", "a"}, Cell{"t", "r", "b"}
	started, release := make(chan struct{}, 2), make(chan struct{})
	w := NewWorker(db, WorkerConfig{StopTimeout: time.Minute})
	require.NoError(t, w.Observe(Observer{Name: "copy", Table: "t", Column: "a", Func: func(ctx context.Context, tx *Txn, c Cell) error {
		started <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
			return ctx.Err()
		}
		v, err := tx.Get(ctx, c)
		if err != nil {
			return err
		}
		return tx.Set(result, v)
	}}))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	idle(t, w)
	set(t, db, changed, "x")
	<-started
	stop()
	set(t, db, result, "in between")
	close(release)
	require.NoError(t, <-ended)
	require.Equal(t, "x", get(t, db, result))
	require.Len(t, started, 1, "the function ran again")
	require.EqualValues(t, 1, db.Stats().ObserverConflicts)
}

// A worker that stops waits for the functions that run, up to StopTimeout, and then
// ends their contexts.
func TestWorkerStops(t *testing.T) {
	t.Parallel()
	for _, patient := range []bool{true, false} {
		t.Run(fmt.Sprint("patient ", patient), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.observed("t", "v", "o")
			c := w.client()
			const stopTimeout = 13 * time.Second
			wk := NewWorker(c.DB, WorkerConfig{StopTimeout: stopTimeout, GCInterval: -1})
			in, free := make(chan struct{}, 10), make(chan struct{})
			require.NoError(t, wk.Observe(Observer{Name: "o", Table: "t", Column: "v", Func: func(ctx context.Context, tx *Txn, _ Cell) error {
				in <- struct{}{}
				select {
				case <-free:
					return tx.Set(rowB, []byte("done"))
				case <-ctx.Done():
					return ctx.Err()
				}
			}}))
			ctx, cancel := context.WithCancel(t.Context())
			done := async(func() error { return wk.Run(ctx) })
			set(t, c.DB, rowA, "1")
			<-in
			cancel()
			_, ended := w.clock.sleeps(t, stopTimeout, done)
			require.False(t, ended, "Run did not wait")
			if patient {
				close(free)
			} else {
				w.clock.advance(stopTimeout)
			}
			require.NoError(t, w.finish(done))
			other := w.client()
			if patient {
				require.Equal(t, "done", value(t, other, rowB))
				require.Empty(t, w.notified(rowA))
			} else {
				require.Equal(t, "none", value(t, other, rowB))
				require.Len(t, w.notified(rowA), 1, "it is left to others")
			}
			require.Zero(t, c.Stats().ObserverFailures, "stopping is nobody's failure")
			w.noLocks()
		})
	}
}

// A worker that stops starts nothing of what is queued.
func TestStoppingWorkerLeavesItsQueue(t *testing.T) {
	t.Parallel()
	dbs, _ := clients(t, 1, false)
	started, release := make(chan struct{}, 100), make(chan struct{})
	w, stop, _ := running(t, dbs[0], WorkerConfig{Concurrency: 1}, Observer{Name: "o", Table: "t", Column: "v", Func: func(context.Context, *Txn, Cell) error {
		started <- struct{}{}
		<-release
		return nil
	}})
	idle(t, w)
	const rows = 20
	setRows(t, dbs[0], "v", rows)
	<-started
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.jobs) == rows
	}, patience, time.Millisecond)
	stopped := async(func() error { stop(); return nil })
	<-w.ctx.Done()
	close(release)
	require.NoError(t, result(t, stopped))
	require.Empty(t, started)
	require.EqualValues(t, 1, dbs[0].Stats().ObserverRuns)
	require.Empty(t, w.jobs)
}

// What would keep a worker busy for nothing, or its share from others for hours, is moved to
// the nearest bound.
func TestWorkerConfigBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ given, want WorkerConfig }{
		{
			WorkerConfig{MemberLease: 1, Rescan: 1, Poll: Backoff{Min: 1, Max: 1}},
			WorkerConfig{MemberLease: leastMemberLease, Rescan: leastWait, Poll: Backoff{Min: leastWait, Max: leastWait}},
		},
		{
			WorkerConfig{MemberLease: -1, Rescan: -1, Poll: Backoff{Min: -1, Max: -1}},
			WorkerConfig{MemberLease: 3 * time.Second, Rescan: 2500 * time.Millisecond, Poll: Backoff{Min: time.Millisecond, Max: 250 * time.Millisecond}},
		},
		{
			WorkerConfig{MemberLease: 10_000 * time.Hour, Rescan: time.Hour, Poll: Backoff{Min: time.Minute, Max: time.Hour}},
			WorkerConfig{MemberLease: mostMemberLease, Rescan: time.Hour, Poll: Backoff{Min: time.Minute, Max: time.Hour}},
		},
	} {
		got := c.given
		got.setDefaults()
		require.Equal(t, c.want, WorkerConfig{MemberLease: got.MemberLease, Rescan: got.Rescan, Poll: got.Poll})
	}
}
