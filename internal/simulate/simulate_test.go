package simulate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/faultstore"
	"github.com/percolate-go/percolate/percolator/rowstore/memstore"
)

var (
	workers     = []int{1, 2, 4}
	changes     = flag.Int("changes", 100, "changes for each worker")
	concurrency = flag.Int("concurrency", 16, "functions that each worker runs at once")
	function    = flag.Duration("function", 0, "how long a function takes")
	whole       = flag.Bool("whole", false, "all sizes of the scenarios, not the small ones alone")
	rate        = flag.Float64("rate", 20, "changes a second for each worker, where they come steadily")
	lasts       = flag.Duration("lasts", 10*time.Second, "how long changes come")
	latency     = flag.Duration("latency", time.Millisecond, "how long a call to the store takes")
)

func init() {
	flag.Func("workers", "numbers of workers that handle a backlog, separated by commas (default 1,2,4)", func(text string) error {
		workers = nil
		for part := range strings.SplitSeq(text, ",") {
			n, err := strconv.Atoi(part)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is no number of workers", part)
			}
			workers = append(workers, n)
		}
		return nil
	})
}

func TestMain(m *testing.M) {
	flag.Parse()
	for name, bad := range map[string]bool{
		"changes": *changes < 1, "concurrency": *concurrency < 1, "function": *function < 0,
		"rate": !(*rate > 0), "lasts": *lasts <= 0, "latency": *latency < 0,
	} {
		if bad {
			fmt.Fprintf(os.Stderr, "simulate: -%s cannot be %s\n", name, flag.Lookup(name).Value)
			os.Exit(2)
		}
	}
	goleak.VerifyTestMain(m)
}

// drain is what it took to handle a backlog.
type drain struct {
	workers   int
	changes   int
	most      time.Duration // until 95 percent were handled
	all       time.Duration
	functions int64 // calls
	conflicts uint64
	scans     uint64
	calls     int64 // to the store
}

func (d drain) rate() float64 { return 0.95 * float64(d.changes) / d.most.Seconds() }

func (d drain) each(n float64) float64 { return n / float64(d.changes) }

// TestDrain lets growing numbers of workers handle a backlog in proportion to them. With
// no waste, the rate grows as the workers do.
func TestDrain(t *testing.T) {
	t.Parallel()
	var all []drain
	for _, n := range workers {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { all = append(all, simulateDrain(t, n)) })
		})
	}
	var s sheet
	s.drains(all)
	s.show(t, fmt.Sprintf("a backlog of %d changes for each worker; a call to the store takes %v to %v, a function %v; functions, conflicts, scans and calls for each change",
		*changes, *latency/2, *latency*3/2, *function))
}

// drains adds what each number of workers made of its backlog, the smallest number first, and judges it: by the bars
// on any number, not on small ones alone.
func (s *sheet) drains(all []drain) {
	s.add("workers\tchanges/s\tof linear\tall after\tfunctions\tconflicts\tscans\tcalls")
	least, most := math.Inf(1), 0.0
	for _, d := range all {
		linear := d.rate() / (all[0].rate() * float64(d.workers) / float64(all[0].workers))
		calls := d.each(float64(d.calls))
		s.add("%d\t%.0f\t%.2f\t%v\t%.2f\t%.2f\t%.2f\t%.1f", d.workers, d.rate(), linear, d.all,
			d.each(float64(d.functions)), d.each(float64(d.conflicts)), d.each(float64(d.scans)), calls)
		s.atMost(1.01, "functions", d.each(float64(d.functions)))
		s.atLeast(0.8, "of linear", linear)
		least, most = min(least, calls), max(most, calls)
		s.atMost(1.5, "calls, most of the lines so far / least", most/least)
	}
}

// TestDrainIsJudged judges figures that are good, and then each of them made bad, for the greatest number of workers.
func TestDrainIsJudged(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(d *drain){
		"":          func(*drain) {},
		"functions": func(d *drain) { d.functions += int64(d.changes) },
		"of linear": func(d *drain) { d.most = d.most * 13 / 10 },
		"calls":     func(d *drain) { d.calls = d.calls * 16 / 10 },
		"calls, ":   func(d *drain) { d.calls = d.calls * 6 / 10 }, // also fewer: then the others have too many
	} {
		var all []drain
		for _, n := range []int{1, 32, 1000} {
			all = append(all, drain{workers: n, changes: 100 * n, most: time.Second, functions: 100 * int64(n), calls: 200 * int64(n)})
		}
		change(&all[2])
		var s sheet
		s.drains(all)
		if name == "" {
			require.Empty(t, s.missed)
			continue
		}
		require.Len(t, s.missed, 1, name)
		require.True(t, strings.HasPrefix(s.missed[0], name), "%s: %s", name, s.missed[0])
	}
}

// simulateDrain makes a backlog and lets n workers, each with a client of its own, handle it.
func simulateDrain(t *testing.T, n int) drain {
	t.Helper()
	ctx := t.Context()
	mem := memstore.New()
	d := drain{workers: n, changes: n * *changes}
	var functions, calls atomic.Int64
	open := func(s rowstore.Store) *percolator.DB {
		db, err := percolator.New(ctx, s, percolator.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		return db
	}
	run := func(db *percolator.DB) (w *percolator.Worker, stop func() error) {
		w = percolator.NewWorker(db, percolator.WorkerConfig{Concurrency: *concurrency, GCInterval: -1})
		require.NoError(t, w.Observe(copying(&functions)))
		running, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- w.Run(running) }()
		return w, func() error { cancel(); return <-ended }
	}

	var dbs []*percolator.DB
	for i := range n {
		client := faultstore.New(mem, faultstore.Options{KeepOpen: true, Seed: 1})
		client.SetRules(takesLatency(uint64(i), func() { calls.Add(1) }, nil))
		dbs = append(dbs, open(client))
	}
	handled := func() int { return observerRuns(dbs) }
	var stops []func() error
	for _, db := range dbs {
		_, stop := run(db)
		stops = append(stops, stop)
	}

	// The workers know each other, and then the backlog is there in no time.
	time.Sleep(time.Minute)
	source := open(mem)
	began := time.Now()
	makeBacklog(t, source, d.changes)
	require.Zero(t, functions.Load())

	calls.Store(0)
	for done := 0; done < d.changes; done = handled() {
		if d.most == 0 && done >= d.changes*95/100 {
			d.most = time.Since(began)
		}
		require.Less(t, time.Since(began), time.Hour, "only %d of %d changes are handled", done, d.changes)
		time.Sleep(time.Millisecond)
	}
	d.all = time.Since(began)
	if d.most == 0 {
		d.most = d.all
	}
	d.functions, d.calls = functions.Load(), calls.Load()
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i, db := range dbs {
		d.conflicts += db.Stats().ObserverConflicts
		d.scans += db.Stats().NotifyScans
		wg.Go(func() { errs[i] = errors.Join(stops[i](), db.Close(ctx)) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, d.changes, handled(), "each change takes effect once")
	require.NoError(t, source.Close(ctx))
	return d
}

// observerRuns counts the runs of observers that took effect.
func observerRuns(dbs []*percolator.DB) (runs int) {
	for _, db := range dbs {
		runs += int(db.Stats().ObserverRuns)
	}
	return runs
}

// copying is an observer that copies a value to another column, and counts its calls.
func copying(calls *atomic.Int64) percolator.Observer {
	return percolator.Observer{
		Name: "copy", Table: "t", Column: "in",
		Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			calls.Add(1)
			v, err := tx.Get(ctx, c)
			if err != nil {
				return err
			}
			time.Sleep(*function)
			return tx.Set(percolator.Cell{Table: c.Table, Row: c.Row, Column: "out"}, v)
		},
	}
}

// takesLatency makes each call to the store take between a half and one and a half of the latency, and tells of it before.
// after, which may be nil, decides what becomes of the call then.
func takesLatency(seed uint64, called func(), after func(context.Context, *faultstore.Call) faultstore.Fault) faultstore.Rule {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(1, seed))
	return faultstore.Rule{
		Times: -1,
		Match: func(c *faultstore.Call) bool { return c.Kind != faultstore.CallListen },
		Before: func(ctx context.Context, c *faultstore.Call) faultstore.Fault {
			called()
			mu.Lock()
			took := *latency/2 + time.Duration(random.Int64N(int64(*latency)+1))
			mu.Unlock()
			time.Sleep(took)
			if after == nil {
				return faultstore.Fault{}
			}
			return after(ctx, c)
		},
	}
}

// makeBacklog writes so many changes.
func makeBacklog(t *testing.T, source *percolator.DB, changes int) {
	t.Helper()
	const step = 200
	for from := 0; from < changes; from += step {
		require.NoError(t, source.Update(t.Context(), func(tx *percolator.Txn) error {
			for i := from; i < min(from+step, changes); i++ {
				// Rows in an order that has nothing to do with the time of the change.
				row := fmt.Sprintf("%08x", uint32(i)*2654435761)
				if err := tx.Set(percolator.Cell{Table: "t", Row: row, Column: "in"}, []byte("1")); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}
