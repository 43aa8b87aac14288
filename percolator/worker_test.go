package percolator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/percolate-go/percolate/percolator/rowstore"
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
	t.Cleanup(func() {
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
			db := open(t, rowstore.NewMemory(), append([]Option{quick}, opts...)...)
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
	db := open(t, rowstore.NewMemory(), quick, WithoutGroups())
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

func TestParkAndRelease(t *testing.T) {
	t.Parallel()
	db := open(t, rowstore.NewMemory(), quick)
	var broken atomic.Bool
	broken.Store(true)
	w := startWorker(t, db, WorkerConfig{MaxAttempts: 3, Backoff: Backoff{Min: time.Millisecond, Max: 5 * time.Millisecond}}, Observer{
		Name: "o", Table: "t", Column: "v", Func: func(_ context.Context, tx *Txn, c Cell) error {
			if broken.Load() {
				if c.Row == "panics" {
					panic("on purpose")
				}
				return errors.New("on purpose")
			}
			c.Column = "out"
			return tx.Set(c, []byte("done"))
		},
	})
	set(t, db, Cell{"t", "fails", "v"}, "1")
	set(t, db, Cell{"t", "panics", "v"}, "1")
	idle(t, w)
	parked, err := w.Parked(t.Context())
	require.NoError(t, err)
	require.Len(t, parked, 2)
	for _, p := range parked {
		require.Equal(t, 3, p.Attempts)
		require.Contains(t, p.Error, "on purpose")
	}
	require.EqualValues(t, 6, db.Stats().ObserverFailures)
	broken.Store(false)
	idle(t, w)
	require.Equal(t, "none", get(t, db, Cell{"t", "fails", "out"}))
	set(t, db, Cell{"t", "panics", "v"}, "2") // a later change runs normally
	require.NoError(t, w.Release(t.Context(), parked[0]))
	idle(t, w)
	require.Equal(t, "done", get(t, db, Cell{"t", "fails", "out"}))
	require.Equal(t, "done", get(t, db, Cell{"t", "panics", "out"}))
	parked, err = w.Parked(t.Context())
	require.NoError(t, err)
	require.Empty(t, parked)
}

func TestWeakNotifications(t *testing.T) {
	t.Parallel()
	for name, opts := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t, rowstore.NewMemory(), append([]Option{quick}, opts...)...)
			ctx := t.Context()
			total := Cell{"sum", "all", "dirty"}
			w := startWorker(t, db, WorkerConfig{}, Observer{Name: "sum", Table: "sum", Column: "dirty", Func: func(ctx context.Context, tx *Txn, c Cell) error {
				n := 0
				for _, err := range tx.Scan(ctx, Range{Table: "items"}) {
					if err != nil {
						return err
					}
					n++
				}
				c.Column = "count"
				return tx.Set(c, []byte(fmt.Sprint(n)))
			}})
			idle(t, w)
			err := db.Update(ctx, func(tx *Txn) error { return tx.Notify(Cell{"sum", "all", "unwatched"}) })
			require.ErrorIs(t, err, ErrNotObserved)
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					for i := range 25 {
						if err := db.Update(ctx, func(tx *Txn) error {
							if err := tx.Set(Cell{"items", fmt.Sprint(g, ".", i), "v"}, nil); err != nil {
								return err
							}
							return tx.Notify(total)
						}); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			idle(t, w)
			require.Equal(t, "100", get(t, db, Cell{"sum", "all", "count"}))
			require.NoError(t, db.Update(ctx, func(tx *Txn) error { return tx.Notify(total) }))
			idle(t, w)
			require.GreaterOrEqual(t, db.Stats().ObserverRuns, uint64(2))
			require.Zero(t, db.Stats().ObserverFailures)
		})
	}
}

func TestCollectGarbage(t *testing.T) {
	t.Parallel()
	db := open(t, rowstore.NewMemory(), WithSettings(Settings{MaxTxnAge: 20 * time.Millisecond, Retention: 50 * time.Millisecond, CatalogLease: 5 * time.Millisecond}))
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
		report, err = db.CollectGarbage(ctx, 0)
		require.NoError(t, err)
		return report.SafePoint > old.StartTimestamp()
	}, 10*time.Second, 10*time.Millisecond)
	_, err = old.Get(ctx, c)
	require.ErrorIs(t, err, ErrSnapshotTooOld)
	require.Equal(t, "9", get(t, db, c))
	rows, err := db.Store().Read(ctx, []rowstore.RowRead{
		{Table: "t", Row: "a", Picks: []rowstore.Pick{everything(rowstore.Write, "v")}},
		{Table: "t", Row: "b", Picks: []rowstore.Pick{everything(rowstore.Write, "v")}},
	})
	require.NoError(t, err)
	require.Len(t, rows[0].Versions, 1)
	require.Empty(t, rows[1].Versions)
	_, err = db.CollectGarbage(ctx, -1)
	require.ErrorIs(t, err, ErrInvalid)
}

// A function that was running when its worker stopped is finished, also when its
// first attempt to commit meets a conflict.
func TestStoppingWorkerFinishesARunThatConflicts(t *testing.T) {
	t.Parallel()
	db := open(t, rowstore.NewMemory(), quick)
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
