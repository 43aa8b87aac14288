package percolator

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/percolate-go/percolate/internal/atend"
	"github.com/percolate-go/percolate/internal/format"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
	"github.com/percolate-go/percolate/percolator/rowstore/router"
)

// What a database does whose tables are in two stores while one of these is away.

// twoStores is a database with tables in two stores. Those whose names begin with "away", and the periodics', are in the second one.
type twoStores struct {
	*DB
	t     testing.TB
	wire  *faultstore.Store // before the second one
	gone  *faultstore.Added
	main  *memstore.Store
	mu    sync.Mutex
	calls map[string]int
}

// withTwoStores runs a test in a bubble.
func withTwoStores(t *testing.T, test func(t *testing.T, s *twoStores), opts ...Option) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &twoStores{t: t, main: memstore.New(), wire: faultstore.New(memstore.New(), faultstore.Options{Seed: 1}), calls: map[string]int{}}
		store, err := router.New(router.Config{
			Stores:        map[string]rowstore.Store{"main": s.main, "second": s.wire},
			Tables:        map[string]string{"away*": "second", PeriodicTable: "second"},
			Authoritative: "main",
		})
		require.NoError(t, err)
		settings := WithSettings(Settings{MaxTxnAge: time.Minute, Retention: time.Hour, CatalogLease: time.Second})
		s.DB, err = New(t.Context(), store, append([]Option{settings, withSeed(1), WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
		require.NoError(t, err)
		atend.Do(t, func() {
			s.wire.SetRules()
			require.NoError(t, s.DB.Close(context.Background()))
		})
		test(t, s)
	})
}

// away has the second store fail until back.
func (s *twoStores) away() {
	s.gone = s.wire.AddRule(faultstore.Rule{Fault: faultstore.Fault{Kind: faultstore.Fail, Err: rowstore.ErrUnavailable}, Times: -1})
}

func (s *twoStores) back() { s.gone.Remove() }

// called tells how often the function of an observer was called.
func (s *twoStores) called(observer string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[observer]
}

// worker has an observer for the column v of each table, of the table's name.
func (s *twoStores) worker(tables ...string) *Worker {
	s.t.Helper()
	w := NewWorker(s.DB, WorkerConfig{GCInterval: -1})
	for _, table := range tables {
		require.NoError(s.t, w.Observe(Observer{Name: table, Table: table, Column: "v", Func: func(context.Context, *Txn, Cell) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.calls[table]++
			return nil
		}}))
	}
	return w
}

// run runs a worker until the test ends.
func (s *twoStores) run(w *Worker) <-chan error {
	ctx, cancel := context.WithCancel(context.Background())
	ended := async(func() error { return w.Run(ctx) })
	over := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		over <- <-ended
	}()
	atend.Do(s.t, func() {
		cancel()
		<-done
	})
	return over
}

// passes lets time pass.
func passes(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// The existing data of a table is swept while that of another one, whose store is away, cannot be.
func TestSweepBesideAStoreThatIsAway(t *testing.T) {
	withTwoStores(t, func(t *testing.T, s *twoStores) {
		set(t, s.DB, Cell{"away", "r", "v"}, "1")
		set(t, s.DB, Cell{"here", "r", "v"}, "1")
		s.away()
		w := s.worker("away", "here")
		s.run(w)
		passes(time.Minute)
		require.Equal(t, 1, s.called("here"))
		require.Zero(t, s.called("away"))
		s.back()
		require.NoError(t, w.WaitIdle(t.Context()))
		require.Equal(t, 1, s.called("away"))
		require.Equal(t, 1, s.called("here"))
	})
}

// Nor does that keep the worker from what becomes of the others: here is paused, resumed and removed.
func TestCatalogIsHeededBesideAStoreThatIsAway(t *testing.T) {
	withTwoStores(t, func(t *testing.T, s *twoStores) {
		s.away()
		w := s.worker("away", "here")
		ended := s.run(w)
		passes(time.Minute)
		require.NoError(t, s.PauseObserver(t.Context(), "here"))
		passes(2 * time.Second)
		require.True(t, w.isPaused("here", Cell{"here", "r", "v"}))
		require.NoError(t, s.ResumeObserver(t.Context(), "here"))
		passes(2 * time.Second)
		require.False(t, w.isPaused("here", Cell{"here", "r", "v"}))
		require.NoError(t, s.RemoveObserver(t.Context(), "here"))
		passes(2 * time.Second)
		select {
		case err := <-ended:
			require.ErrorIs(t, err, ErrObserverRemoved)
		default:
			require.Fail(t, "the worker goes on")
		}
	})
}

// Observers run while the store of the worker's periodics is away, and those begin when it is back.
func TestWorkerWhosePeriodicsAreAway(t *testing.T) {
	withTwoStores(t, func(t *testing.T, s *twoStores) {
		s.away()
		w := s.worker("here")
		var ticks int
		for _, name := range []string{"p", "q"} {
			require.NoError(t, w.Every(Periodic{Name: name, Schedule: Interval(time.Second), Func: func(context.Context, *Txn, time.Time) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				ticks++
				return nil
			}}))
		}
		s.run(w)
		passes(5 * time.Second)
		set(t, s.DB, Cell{"here", "r", "v"}, "1")
		passes(5 * time.Second)
		require.Equal(t, 1, s.called("here"))
		s.back()
		passes(time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		require.Greater(t, ticks, 20)
	})
}

// TestWaitIdleWaitsForPeriodics: the first tick of each is a notification, which WaitIdle cannot see before it is there.
func TestWaitIdleWaitsForPeriodics(t *testing.T) {
	withTwoStores(t, func(t *testing.T, s *twoStores) {
		s.gone = s.wire.AddRule(faultstore.Rule{
			Match: func(c *faultstore.Call) bool { return len(c.Muts)+len(c.Groups) > 0 },
			Fault: faultstore.Fault{Kind: faultstore.Fail, Err: rowstore.ErrUnavailable}, Times: -1,
		})
		w := s.worker("here")
		require.NoError(t, w.Every(Periodic{Name: "p", Schedule: Interval(time.Hour), Func: func(context.Context, *Txn, time.Time) error { return nil }}))
		s.run(w)
		passes(5 * time.Minute)
		require.Positive(t, s.gone.Struck())
		require.False(t, isClosed(w.ready), "no tick is there")
		s.back()
		passes(5 * time.Minute)
		require.True(t, isClosed(w.ready))
	})
}

// garbage leaves two old versions in a table of each store.
func (s *twoStores) garbage() {
	for _, value := range []string{"1", "2", "3"} {
		set(s.t, s.DB, Cell{"away", "r", "v"}, value)
		set(s.t, s.DB, Cell{"here", "r", "v"}, value)
	}
	passes(2 * time.Hour)
}

// What hints name is collected although not even the list of the tables can be had, and the rest when the store is back.
func TestCollectionBesideAStoreThatIsAway(t *testing.T) {
	withTwoStores(t, func(t *testing.T, s *twoStores) {
		s.garbage()
		s.away()
		for _, full := range []bool{false, true} {
			r, err := s.CollectGarbage(t.Context(), GCOptions{Full: full})
			require.ErrorIs(t, err, rowstore.ErrUnavailable)
			require.False(t, r.Full)
			if !full {
				require.Equal(t, 2, r.Versions)
				require.EqualValues(t, 2, s.Stats().GCVersions)
			}
			require.Zero(t, s.Stats().GCRuns)
		}
		s.back()
		r, err := s.CollectGarbage(t.Context(), GCOptions{})
		require.NoError(t, err)
		require.Equal(t, 2, r.Versions)
	})
}

// A table that fails holds up no other one. That all rows were looked at is noted only when they were.
func TestCollectionBesideATableThatFails(t *testing.T) {
	for name, opts := range map[string]GCOptions{"hinted": {}, "full": {Full: true}, "within": {Within: 2 * time.Minute}} {
		t.Run(name, func(t *testing.T) {
			withTwoStores(t, func(t *testing.T, s *twoStores) {
				for _, table := range []string{"away", "here"} {
					require.NoError(t, s.ConfigureTable(t.Context(), table, TableSettings{Retention: 2 * time.Minute}))
					passes(time.Minute)
				}
				passes(2 * time.Hour)
				_, err := s.CollectGarbage(t.Context(), GCOptions{Full: true})
				require.NoError(t, err)
				s.garbage()
				before, err := s.loadCatalog(t.Context())
				require.NoError(t, err)
				fails := s.wire.AddRule(faultstore.Rule{Match: func(x *call) bool { return x.Kind != faultstore.CallTables }, Fault: faultstore.Fault{Kind: faultstore.Fail, Err: rowstore.ErrUnavailable}, Times: -1})
				r, err := s.CollectGarbage(t.Context(), opts)
				require.ErrorIs(t, err, rowstore.ErrUnavailable)
				require.ErrorContains(t, err, `"away"`)
				require.Equal(t, 2, r.Versions)
				after, err := s.loadCatalog(t.Context())
				require.NoError(t, err)
				require.Equal(t, before.swept, after.swept)
				fails.Remove()
				r, err = s.CollectGarbage(t.Context(), opts)
				require.NoError(t, err)
				require.Equal(t, 2, r.Versions)
			})
		})
	}
}

// Where a process may have left locks, all tables must be looked at before anything is removed.
func TestCollectionThatMustSearchBesideAStoreThatIsAway(t *testing.T) {
	withTwoStores(t, func(t *testing.T, s *twoStores) {
		s.garbage()
		now, err := s.Now(t.Context())
		require.NoError(t, err)
		_, err = s.main.Apply(t.Context(), []rowstore.Mutation{{Table: format.TableSessions, Row: "dead", Edits: []rowstore.Edit{
			rowstore.Put(rowstore.Write, format.ColumnLease, now, format.Session{Resolved: 1}.Encode()),
		}}}, rowstore.ApplyOptions{})
		require.NoError(t, err)
		unlisted := s.wire.AddRule(faultstore.Rule{Match: op(faultstore.CallTables), Fault: faultstore.Fault{Kind: faultstore.Fail, Err: rowstore.ErrUnavailable}, Times: -1})
		r, err := s.CollectGarbage(t.Context(), GCOptions{})
		require.ErrorIs(t, err, rowstore.ErrUnavailable)
		require.Zero(t, r.Versions)
		unlisted.Remove()
		r, err = s.CollectGarbage(t.Context(), GCOptions{})
		require.NoError(t, err)
		require.True(t, r.LocksSearched)
		require.Equal(t, 4, r.Versions)
	})
}

// An erasure needs only its own table's store.
func TestErasureBesideAStoreThatIsAway(t *testing.T) {
	withTwoStores(t, func(t *testing.T, s *twoStores) {
		set(t, s.DB, Cell{"here", "r", "v"}, "1")
		require.NoError(t, s.Update(t.Context(), func(tx *Txn) error { return tx.Delete(Cell{"here", "r", "v"}) }))
		s.away()
		_, err := s.Erase(t.Context(), Range{Table: "here"})
		require.NoError(t, err)
	})
}

// A reading of the gauges tells of the tables that answer, and is soon over.
func TestGaugesBesideAStoreThatIsAway(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	withTwoStores(t, func(t *testing.T, s *twoStores) {
		w := s.worker("away", "away2", "away3", "here")
		require.NoError(t, w.publish(t.Context()))
		_, err := s.awaitFeature(t.Context(), timers)
		require.NoError(t, err)
		for _, table := range []string{"away", "here"} {
			set(t, s.DB, Cell{table, "r", "v"}, "1")
			require.NoError(t, s.Update(t.Context(), func(tx *Txn) error { return tx.NotifyAfter(t.Context(), Cell{table, "later", "v"}, time.Hour) }))
		}
		read := func() (map[string]metricdata.Aggregation, map[string]int64) {
			began := time.Now()
			all := collect(t, reader)
			require.Less(t, time.Since(began), 6*time.Second)
			return all, ofObservers(all["percolator.observer.backlog"].(metricdata.Gauge[int64]).DataPoints)
		}
		number := func(a metricdata.Aggregation) int64 { return a.(metricdata.Gauge[int64]).DataPoints[0].Value }
		all, of := read()
		require.Equal(t, map[string]int64{"away": 1, "away2": 0, "away3": 0, "here": 1}, of)
		require.EqualValues(t, 2, number(all["percolator.timers.pending"]))
		passes(time.Minute)
		s.away()
		all, of = read()
		require.Equal(t, map[string]int64{"here": 1}, of)
		require.Equal(t, map[string]int64{"away": 0, "away2": 0, "away3": 0, "here": 0}, ofObservers(all["percolator.observer.paused"].(metricdata.Gauge[int64]).DataPoints))
		require.EqualValues(t, 1, number(all["percolator.backlog"]))
		require.GreaterOrEqual(t, all["percolator.backlog.oldest"].(metricdata.Gauge[float64]).DataPoints[0].Value, time.Minute.Seconds())
		require.Zero(t, number(all["percolator.parked"]))
		require.EqualValues(t, 1, number(all["percolator.timers.pending"]))
		require.Contains(t, all, "percolator.timers.overdue")
		require.Contains(t, all, "percolator.transactions")
		_, err = s.Backlog(t.Context(), 0)
		require.ErrorIs(t, err, rowstore.ErrUnavailable, "nobody takes a part for the whole")
	}, WithMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
}

// What nothing has answered is not told as 0.
func TestGaugesOfAStoreThatIsAway(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	withTwoStores(t, func(t *testing.T, s *twoStores) {
		require.NoError(t, s.worker("away").publish(t.Context()))
		require.Contains(t, collect(t, reader), "percolator.backlog")
		s.away()
		all := collect(t, reader)
		for _, name := range []string{"backlog", "backlog.oldest", "observer.backlog", "observer.backlog.oldest"} {
			require.NotContains(t, all, "percolator."+name)
		}
		require.Contains(t, all, "percolator.parked")
		require.Contains(t, all, "percolator.transactions")
	}, WithMetrics(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
}
