package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/percolate-go/percolate/percolator"
)

// Timers, and what observers of old values cost.

const (
	timersTable  = "timers"
	timersColumn = "work" // of the cells whose runs are counted
	liveColumn   = "live" // of those that are changed beside

	timerAhead = time.Second // from setting a timer to when it is due
	timerBatch = 10          // timers that one transaction sets
	timerPace  = 200.0       // timers a second
	oldPace    = 1000.0      // timers a second of an index that becomes old
	livePace   = 50.0        // changes a second of the column beside
)

var timerSettings = percolator.WithSettings(percolator.Settings{CatalogLease: 100 * time.Millisecond})

// timerWorkloads are timers that are due soon, all at once, and for long; and drains by both kinds of functions.
func timerWorkloads() []Workload {
	var all []Workload
	for _, kind := range []string{"pebble", "redis", "postgres"} {
		all = append(all, soonWorkload(kind), oldTimersWorkload(kind), dueWorkload(kind), oldValuesWorkload(kind))
	}
	return all
}

// timerWorkload makes a workload whose sides have a space each, or one for all.
func timerWorkload(name, kind, about string, sides []Side, bars func([]Summary) []Bar) Workload {
	return Workload{
		Name: name + "-" + kind, Group: "timers", About: about + " on " + kind, Goroutines: 1, Rows: 100_000, Bars: bars,
		Sides: func(cfg Config) ([]Side, error) {
			for i, s := range sides {
				own, ok := s.(interface{ place(url string) })
				if !ok {
					continue
				}
				u, err := space(cfg, kind, fmt.Sprintf("%s%d", name, i))
				if err != nil {
					return nil, err
				}
				own.place(u)
			}
			return sides, nil
		},
	}
}

func soonWorkload(kind string) Workload {
	sides := []Side{&timed{ticker: ticker{name: "no others"}, pace: timerPace}, &timed{ticker: ticker{name: "beside those of -rows"}, pace: timerPace, beside: true}}
	w := timerWorkload("timers", kind, fmt.Sprintf("from when a timer is due to its run, set %v ahead", timerAhead), sides, func(s []Summary) []Bar {
		return []Bar{
			atMost("p99 after due, in ms", s[0].P99/1000, 50, ""),
			atMost("the same beside others that wait", s[1].P99/1000, 50, ""),
			atMost("CPU for a timer beside others that wait / alone", (s[1].CPU+max(0, s[1].ServerCPU))/(s[0].CPU+max(0, s[0].ServerCPU)), 1.1, ""),
		}
	})
	return w
}

func oldTimersWorkload(kind string) Workload {
	young := &timed{ticker: ticker{name: "at the beginning"}, pace: oldPace}
	w := timerWorkload("timers-old", kind, fmt.Sprintf("timers of an index that %.0f a second go through", oldPace), []Side{young, &oldTimed{young}}, func(s []Summary) []Bar {
		return []Bar{atMost("median after due, after a long time / at the beginning", s[1].P50/s[0].P50, 1.5, "")}
	})
	w.Once = true
	return w
}

func dueWorkload(kind string) Workload {
	sides := []Side{
		&drained{ticker: ticker{name: "changes"}},
		&drained{ticker: ticker{name: "timers"}, timers: true},
		&drained{ticker: ticker{name: "neither"}, none: true},
	}
	return timerWorkload("timers-due", kind, "timers that are all due at once, beside another observer", sides, func(s []Summary) []Bar {
		return []Bar{
			atLeast("runs a second of timers / of changes", s[1].Rate/s[0].Rate, 0.8, ""),
			atMostP99("p99 of another observer beside them / alone", s[1], s[2], 2),
		}
	})
}

func oldValuesWorkload(kind string) Workload {
	sides := []Side{&drained{ticker: ticker{name: "Func", plain: true}}, &drained{ticker: ticker{name: "OnChange"}}}
	return timerWorkload("onchange", kind, "a backlog of changes, by the kind of the function", sides, func(s []Summary) []Bar {
		return []Bar{atLeast("runs a second of OnChange / of Func", s[1].Rate/s[0].Rate, 0.95, "")}
	})
}

// ticker is a database with a worker that counts what it runs.
type ticker struct {
	onDB
	name, url string
	size      int
	rows      int
	plain     bool // the function is a Func
	reportAll bool // the times of all runs are reported, and not those of liveColumn alone

	worker *percolator.Worker
	stop   context.CancelFunc
	ended  chan error

	mu    sync.Mutex
	waits map[string]time.Time // rows whose run is to be counted, and the time that it is counted from; zero is when it is due
	empty chan struct{}        // closed when waits is empty
	took  latencies
	last  time.Time // of the runs of timersColumn
	next  int       // of the rows
}

func (s *ticker) Name() string { return s.name }

func (s *ticker) place(url string) { s.url = url }

func (s *ticker) Op(context.Context, *Caller) error { panic("it is a Runner") }

func (s *ticker) ready(ctx context.Context, cfg Config) error {
	s.size, s.rows = cfg.ValueSize, cfg.Rows
	s.reset()
	if err := s.open(ctx, s.url, timerSettings); err != nil {
		return err
	}
	// The observers must be known before timers are set for them.
	if err := s.begin(ctx); err != nil {
		return err
	}
	return s.worker.WaitIdle(ctx)
}

func (s *ticker) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits, s.took, s.empty, s.last = map[string]time.Time{}, newLatencies(), nil, time.Time{}
}

// ran counts the run of a row, once.
func (s *ticker) ran(row string, due time.Time, live bool) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	from, ok := s.waits[row]
	if !ok {
		return
	}
	delete(s.waits, row)
	if from.IsZero() {
		from = due
	}
	if live || s.reportAll {
		s.took.record(now.Sub(from))
	}
	if !live {
		s.last = now
	}
	if s.empty != nil && len(s.waits) == 0 {
		close(s.empty)
		s.empty = nil
	}
}

// await says that the runs of rows are to be counted.
func (s *ticker) await(from time.Time, rows ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, row := range rows {
		s.waits[row] = from
	}
}

// all waits until every row has run.
func (s *ticker) all(ctx context.Context) error {
	s.mu.Lock()
	if len(s.waits) == 0 {
		s.mu.Unlock()
		return ctx.Err()
	}
	s.empty = make(chan struct{})
	empty := s.empty
	s.mu.Unlock()
	select {
	case <-empty:
		return nil
	case err := <-s.ended:
		s.ended <- err
		return errors.Join(errors.New("the worker has ended"), err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// begin starts the worker.
func (s *ticker) begin(ctx context.Context) error {
	w := percolator.NewWorker(s.db, percolator.WorkerConfig{})
	work := percolator.Observer{Name: "work", Table: timersTable, Column: timersColumn}
	if s.plain {
		work.Func = func(_ context.Context, _ *percolator.Txn, c percolator.Cell) error {
			s.ran(c.Row, time.Time{}, false)
			return nil
		}
	} else {
		work.OnChange = func(_ context.Context, _ *percolator.Txn, c percolator.Change) error {
			s.ran(c.Cell.Row, c.Due, false)
			return nil
		}
	}
	live := percolator.Observer{Name: "live", Table: timersTable, Column: liveColumn, Func: func(_ context.Context, _ *percolator.Txn, c percolator.Cell) error {
		s.ran(c.Row, time.Time{}, true)
		return nil
	}}
	for _, o := range []percolator.Observer{work, live} {
		if err := w.Observe(o); err != nil {
			return err
		}
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop, s.ended = stop, make(chan error, 1)
	s.worker = w
	go func() { s.ended <- w.Run(running) }()
	return nil
}

func (s *ticker) halt() error {
	if s.stop == nil {
		return nil
	}
	s.stop()
	s.stop = nil
	return <-s.ended
}

func (s *ticker) Close() error {
	err := errors.Join(s.halt(), s.onDB.Close())
	s.db = nil
	return err
}

// names are the names of n new rows.
func (s *ticker) names(n int) []string {
	rows := make([]string, n)
	for i := range rows {
		rows[i] = fmt.Sprintf("%012d", s.next)
		s.next++
	}
	return rows
}

// set sets timers of rows, in transactions of up to most.
func (s *ticker) set(ctx context.Context, due time.Time, most int, rows []string) error {
	return s.each(ctx, most, rows, func(tx *percolator.Txn, c percolator.Cell) error { return tx.NotifyAt(c, due) })
}

func (s *ticker) each(ctx context.Context, most int, rows []string, do func(tx *percolator.Txn, c percolator.Cell) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fillers)
	for from := 0; from < len(rows); from += most {
		g.Go(func() error {
			return s.db.Update(ctx, func(tx *percolator.Txn) error {
				for _, row := range rows[from:min(len(rows), from+most)] {
					if err := do(tx, percolator.Cell{Table: timersTable, Row: row, Column: timersColumn}); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	return g.Wait()
}

// timed sets timers that are due soon.
type timed struct {
	ticker
	pace   float64 // timers a second
	beside bool    // timers that are due in an hour
}

func (s *timed) Prepare(ctx context.Context, cfg Config) error {
	if s.db != nil {
		return nil
	}
	s.reportAll = true
	if err := s.ready(ctx, cfg); err != nil {
		return err
	}
	if s.beside {
		return s.set(ctx, time.Now().Add(time.Hour), fillTxn, s.names(s.rows))
	}
	// The first timer of a database waits for a lease.
	return s.set(ctx, time.Now().Add(time.Hour), 1, s.names(1))
}

func (s *timed) Run(ctx context.Context, _ Config, d time.Duration, _ int) (Sample, error) {
	s.reset()
	began := time.Now()
	var sample Sample
	for sample.Ops == 0 || time.Since(began) < d {
		sleep(ctx, time.Until(began.Add(time.Duration(float64(sample.Ops)/s.pace*float64(time.Second)))))
		rows := s.names(timerBatch)
		s.await(time.Time{}, rows...)
		if err := s.set(ctx, time.Now().Add(timerAhead), timerBatch, rows); err != nil {
			return sample, err
		}
		sample.Ops += timerBatch
	}
	if err := s.all(ctx); err != nil {
		return sample, err
	}
	sample.Rate = float64(sample.Ops) / time.Since(began).Seconds()
	s.took.into(&sample)
	return sample, nil
}

// oldTimed is the same index, after it was used for queueAges times as long.
type oldTimed struct{ of *timed }

func (s *oldTimed) Name() string                                { return "after a long time" }
func (s *oldTimed) Peer() string                                { return "" }
func (s *oldTimed) ServerURL() string                           { return s.of.ServerURL() }
func (s *oldTimed) Op(context.Context, *Caller) error           { panic("it is a Runner") }
func (s *oldTimed) Prepare(ctx context.Context, c Config) error { return s.of.Prepare(ctx, c) }
func (s *oldTimed) Close() error                                { return s.of.Close() }

func (s *oldTimed) Run(ctx context.Context, cfg Config, d time.Duration, repeat int) (Sample, error) {
	aged, err := s.of.Run(ctx, cfg, queueAges*d, repeat)
	if err != nil {
		return Sample{}, err
	}
	sample, err := s.of.Run(ctx, cfg, d, repeat)
	sample.Ops += aged.Ops // the costs are measured over both
	return sample, err
}

// drained has a worker run a backlog, while another column is changed now and then: the rate is that of the backlog, and the times are
// those of the other column.
type drained struct {
	ticker
	timers bool // the backlog is of timers
	none   bool // there is no backlog, and the rate is that of the other column
}

func (s *drained) Prepare(ctx context.Context, cfg Config) error {
	if s.db != nil {
		return nil
	}
	if err := s.ready(ctx, cfg); err != nil {
		return err
	}
	return s.halt()
}

func (s *drained) Run(ctx context.Context, _ Config, d time.Duration, _ int) (Sample, error) {
	s.reset()
	var rows []string
	if !s.none {
		rows = s.names(s.rows)
		s.await(time.Time{}, rows...)
		if err := s.fill(ctx, rows); err != nil {
			return Sample{}, err
		}
	}
	began := time.Now()
	if err := s.begin(ctx); err != nil {
		return Sample{}, err
	}
	changes, err := s.change(ctx, d, len(rows) > 0)
	if err == nil {
		err = s.all(ctx)
	}
	if err = errors.Join(err, s.halt()); err != nil {
		return Sample{}, err
	}
	sample := Sample{Ops: int64(len(rows))}
	sample.Rate = float64(len(rows)) / s.last.Sub(began).Seconds()
	if s.none {
		sample.Ops, sample.Rate = int64(changes), float64(changes)/time.Since(began).Seconds()
	}
	s.took.into(&sample)
	return sample, nil
}

// fill makes the backlog. Timers are due when all of them are set.
func (s *drained) fill(ctx context.Context, rows []string) error {
	if !s.timers {
		return s.each(ctx, fillTxn, rows, func(tx *percolator.Txn, c percolator.Cell) error { return tx.Set(c, value(1, s.size)) })
	}
	for ahead := time.Second + time.Duration(len(rows))*200*time.Microsecond; ; ahead *= 2 {
		due := time.Now().Add(ahead)
		if err := s.set(ctx, due, fillTxn, rows); err != nil {
			return err
		}
		if left := time.Until(due); left > 0 {
			sleep(ctx, left)
			return ctx.Err()
		}
	}
}

// change changes the other column, for d, or until the backlog is done.
func (s *drained) change(ctx context.Context, d time.Duration, backlog bool) (n int, err error) {
	began := time.Now()
	going := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		// A change may wait too, so a few rows are no backlog any more.
		return backlog && len(s.waits) > int(livePace) || !backlog && time.Since(began) < d
	}
	for ; n == 0 || going() && ctx.Err() == nil; n++ {
		sleep(ctx, time.Until(began.Add(time.Duration(float64(n)/livePace*float64(time.Second)))))
		c := percolator.Cell{Table: timersTable, Row: s.names(1)[0], Column: liveColumn}
		s.await(time.Now(), c.Row)
		if err := s.db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(c, value(1, s.size)) }); err != nil {
			return n, err
		}
	}
	return n, nil
}
