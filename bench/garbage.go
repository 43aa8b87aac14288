package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// What a garbage collection costs, and what becomes of a table that is filled and emptied all the
// time.

// garbageSettings let collections keep history for seconds (collectSoon), so that a measurement need not wait for
// long. The retention is long enough that none of them looks at every row.
var garbageSettings = percolator.WithSettings(percolator.Settings{MaxTxnAge: 2 * time.Second, Retention: time.Minute, CatalogLease: 100 * time.Millisecond})

// garbageIsOld is how long it takes until what was replaced can be collected: what is always kept, and the span
// of a hint.
const garbageIsOld = 4 * time.Second

// collectSoon is a collection that keeps no more than it must, and collectAll one of all rows, so that the next
// ones need not be.
var (
	collectSoon = percolator.GCOptions{Keep: 1}
	collectAll  = percolator.GCOptions{Keep: 1, Full: true}
)

// garbageWorkloads are collections, and queues.
func garbageWorkloads() []Workload {
	var all []Workload
	for _, kind := range []string{"pebble", "redis", "postgres"} {
		all = append(all, collectWorkload(kind), queueWorkload(kind))
	}
	return all
}

// collectWorkload collects 1,000 rows of garbage in tables of different size, and nothing.
func collectWorkload(kind string) Workload {
	return Workload{
		Name: "gc-" + kind, Group: "size", About: "collecting 1,000 replaced versions on " + kind + " in tables of different size, and nothing",
		Goroutines: 1, Rows: 1_000_000,
		Sides: func(cfg Config) ([]Side, error) {
			var sides []Side
			for i, s := range []*collect{{rows: min(10_000, cfg.Rows), changed: 1000}, {rows: cfg.Rows, changed: 1000}, {rows: cfg.Rows}} {
				u, err := space(cfg, kind, fmt.Sprintf("gc%d", i))
				if err != nil {
					return nil, err
				}
				s.url, s.changed = u, min(s.changed, s.rows)
				sides = append(sides, s)
			}
			return sides, nil
		},
		Bars: func(s []Summary) []Bar {
			return []Bar{
				atMost("collecting 1,000 rows of the larger table / of the smaller", s[1].P50/s[0].P50, 2, ""),
				atMost("collecting nothing / 1,000 rows of the smaller table", s[2].P50/s[0].P50, 1, ""),
			}
		},
	}
}

// collect is one collection.
type collect struct {
	onDB
	url           string
	rows, changed int
	round         int
}

func (s *collect) Name() string {
	if s.changed == 0 {
		return fmt.Sprintf("nothing in %d rows", s.rows)
	}
	return fmt.Sprintf("%d of %d rows", s.changed, s.rows)
}

func (s *collect) Op(context.Context, *Caller) error { panic("it is a Runner") }

func (s *collect) Prepare(ctx context.Context, cfg Config) error {
	if s.db != nil {
		return nil
	}
	if err := s.open(ctx, s.url, garbageSettings); err != nil {
		return err
	}
	if err := fill(ctx, s.db, s.rows, cfg.ValueSize); err != nil {
		return err
	}
	_, _, err := s.collected(ctx, collectAll)
	return err
}

// collected waits until what was replaced is old, and collects it.
func (s *collect) collected(ctx context.Context, opts percolator.GCOptions) (percolator.GCReport, time.Duration, error) {
	sleep(ctx, garbageIsOld)
	began := time.Now()
	report, err := s.db.CollectGarbage(ctx, opts)
	return report, time.Since(began), err
}

func (s *collect) Run(ctx context.Context, cfg Config, _ time.Duration, _ int) (Sample, error) {
	s.round++
	err := fillCells(ctx, s.db, s.changed, func(i int) (percolator.Cell, []byte) {
		return cell(i * (s.rows / s.changed)), value(int64(s.round), cfg.ValueSize)
	})
	if err != nil {
		return Sample{}, err
	}
	report, took, err := s.collected(ctx, collectSoon)
	if err != nil {
		return Sample{}, err
	}
	if report.Versions != s.changed || report.Full {
		return Sample{}, fmt.Errorf("%d versions were to be collected by hints: %+v", s.changed, report)
	}
	times := newLatencies()
	times.record(took)
	sample := Sample{Ops: 1, Rate: 1 / took.Seconds()}
	times.into(&sample)
	return sample, nil
}

// queueWorkload measures the scans of a queue's first rows in a table that is new, and in one that has been
// filled and emptied for long.
func queueWorkload(kind string) Workload {
	return Workload{
		Name: "queue-" + kind, Group: "size", About: "scanning the first rows of a table on " + kind + " that is filled and emptied all the time",
		Goroutines: 1, Rows: 1000, Once: true,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := space(cfg, kind, "queue")
			s := &queue{url: u}
			return []Side{s, &oldQueue{s}}, err
		},
		Bars: func(s []Summary) []Bar {
			return []Bar{atMost("median scan after a long time / at the beginning", s[1].P50/s[0].P50, 1.5, "")}
		},
	}
}

const (
	queueTable = "queue"
	queueBatch = 100 // rows that are added, and then taken away 10 at a time
	// queueAges is how much longer a table is used before it counts as old.
	queueAges = 10
)

// queue adds rows, and scans and deletes the first ones, as long as it runs. It collects all the time.
type queue struct {
	onDB
	url  string
	next int
}

func (s *queue) Name() string { return "at the beginning" }

func (s *queue) Op(context.Context, *Caller) error { panic("it is a Runner") }

func (s *queue) Prepare(ctx context.Context, _ Config) error {
	if s.db != nil {
		return nil
	}
	return s.open(ctx, s.url, garbageSettings)
}

func (s *queue) Close() error {
	err := s.onDB.Close()
	s.db = nil
	return err
}

func (s *queue) Run(ctx context.Context, cfg Config, d time.Duration, _ int) (Sample, error) {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if _, err := s.db.CollectGarbage(ctx, collectSoon); err != nil && ctx.Err() == nil {
				ended <- err
				return
			}
			sleep(ctx, time.Second)
		}
		ended <- nil
	}()
	var err error
	if s.next == 0 { // from nothing to as much history as is always kept
		_, err = s.use(ctx, cfg, 2*garbageIsOld)
	}
	var sample Sample
	if err == nil {
		sample, err = s.use(ctx, cfg, d)
	}
	stop()
	return sample, errors.Join(err, <-ended)
}

// use fills and empties the table for d.
func (s *queue) use(ctx context.Context, cfg Config, d time.Duration) (Sample, error) {
	times, began := newLatencies(), time.Now()
	var sample Sample
	for sample.Ops == 0 || time.Since(began) < d {
		err := fillCells(ctx, s.db, queueBatch, func(i int) (percolator.Cell, []byte) {
			return percolator.Cell{Table: queueTable, Row: fmt.Sprintf("%012d", s.next+i), Column: benchColumn}, value(1, cfg.ValueSize)
		})
		if err != nil {
			return sample, err
		}
		s.next += queueBatch
		for left := queueBatch; left > 0; {
			var took time.Duration
			var taken int
			err := s.db.Update(ctx, func(tx *percolator.Txn) error {
				start := time.Now()
				taken = 0
				for row, err := range tx.Scan(ctx, percolator.Range{Table: queueTable, Limit: 10}) {
					if err != nil {
						return err
					}
					taken++
					if err := tx.Delete(percolator.Cell{Table: queueTable, Row: row.Key, Column: benchColumn}); err != nil {
						return err
					}
				}
				took = time.Since(start)
				return nil
			})
			if err != nil {
				return sample, err
			}
			if taken == 0 {
				return sample, errors.New("the queue is empty too early")
			}
			left -= taken
			times.record(took)
			sample.Ops++
		}
	}
	sample.Rate = float64(sample.Ops) / time.Since(began).Seconds()
	times.into(&sample)
	return sample, nil
}

// oldQueue is the same table, after it was used for queueAges times as long.
type oldQueue struct{ *queue }

func (s *oldQueue) Name() string { return "after a long time" }

func (s *oldQueue) Run(ctx context.Context, cfg Config, d time.Duration, repeat int) (Sample, error) {
	if _, err := s.queue.Run(ctx, cfg, queueAges*d, repeat); err != nil {
		return Sample{}, err
	}
	return s.queue.Run(ctx, cfg, d, repeat)
}
