package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// Large transactions, and what small ones of the same process feel of them.

// sizeWorkloads measure small transactions alone and beside a large one.
func sizeWorkloads() []Workload {
	var all []Workload
	for _, kind := range []string{"pebble", "redis", "postgres"} {
		all = append(all, Workload{
			Name: "large-" + kind, Group: "size", About: "small transactions on " + kind + " beside one of many cells, in one process",
			Goroutines: 4, Rows: 1_000_000, Once: true,
			Sides: func(cfg Config) ([]Side, error) {
				u, err := space(cfg, kind, "large")
				s := &besideLarge{url: u}
				return []Side{&alone{s}, s}, err
			},
			Bars: func(s []Summary) []Bar {
				return []Bar{atMostP99("p99 of small transactions beside a large one / alone", s[1], s[0], 2)}
			},
			Notes: largeNotes,
		})
	}
	return all
}

// Large is what a large transaction took.
type Large struct {
	Cells   int     `json:"cells"`
	Seconds float64 `json:"seconds"` // of Commit
	HeapMiB float64 `json:"heap_mib"`
}

func largeNotes(_ Config, all []Summary) []string {
	var notes []string
	for _, s := range all {
		for _, sample := range s.Samples {
			if l := sample.Large; l != nil {
				notes = append(notes, fmt.Sprintf("The transaction of %d cells committed in %.1f s; the heap of the process had %.0f MiB at most.", l.Cells, l.Seconds, l.HeapMiB))
			}
		}
	}
	return notes
}

const (
	smallTable = "small"
	largeTable = "large"
	// smallPause is what each caller of small transactions rests between two: they are a light
	// load, whose latency is to stay what it is.
	smallPause = 2 * time.Millisecond
)

// besideLarge commits a large transaction, and small ones as long as that takes.
type besideLarge struct {
	url string
	db  *percolator.DB
}

func (s *besideLarge) Name() string { return "beside a large transaction" }

func (s *besideLarge) Peer() string { return "" }

func (s *besideLarge) ServerURL() string { return s.url }

func (s *besideLarge) Op(context.Context, *Caller) error { panic("it is a Runner") }

func (s *besideLarge) Prepare(ctx context.Context, cfg Config) (err error) {
	if s.db != nil {
		return nil
	}
	s.db, err = percolator.Open(ctx, s.url, percolator.WithLimits(percolator.Limits{Cells: cfg.Rows, Bytes: cfg.Rows * (cfg.ValueSize + 64)}))
	return err
}

func (s *besideLarge) Close() error {
	if s.db == nil {
		return nil
	}
	db := s.db
	s.db = nil
	return db.Close(context.Background())
}

// small runs small transactions until over is set.
func (s *besideLarge) small(ctx context.Context, cfg Config, over *atomic.Bool) (Sample, error) {
	began, took, counts := time.Now(), make([]latencies, cfg.Goroutines), make([]int64, cfg.Goroutines)
	g, ctx := together(ctx)
	for i := range took {
		took[i] = newLatencies()
		g.Go(func() error {
			cell := percolator.Cell{Table: smallTable, Row: session + strconv.Itoa(i), Column: "c"}
			for n := 0; n == 0 || !over.Load(); n++ {
				start := time.Now()
				err := s.db.Update(ctx, func(tx *percolator.Txn) error {
					if _, err := tx.Get(ctx, cell); err != nil && !errors.Is(err, percolator.ErrNotFound) {
						return err
					}
					return tx.Set(cell, make([]byte, cfg.ValueSize))
				})
				if err != nil {
					return err
				}
				took[i].record(time.Since(start))
				counts[i]++
				sleep(ctx, smallPause)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return Sample{}, err
	}
	var sample Sample
	for i := range took {
		if i > 0 {
			took[0].h.Merge(took[i].h)
		}
		sample.Ops += counts[i]
	}
	sample.Rate = float64(sample.Ops) / time.Since(began).Seconds()
	took[0].into(&sample)
	return sample, nil
}

func (s *besideLarge) Run(ctx context.Context, cfg Config, _ time.Duration, repeat int) (Sample, error) {
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return Sample{}, err
	}
	value := make([]byte, cfg.ValueSize)
	for i := range cfg.Rows {
		if err := tx.Set(percolator.Cell{Table: largeTable, Row: fmt.Sprintf("%s-%d-%09d", session, repeat, i), Column: "c"}, value); err != nil {
			return Sample{}, errors.Join(err, tx.Rollback(ctx))
		}
	}
	large := &Large{Cells: cfg.Rows}
	var over atomic.Bool
	g, inner := together(ctx)
	g.Go(func() error {
		defer over.Store(true)
		began := time.Now()
		err := tx.Commit(inner)
		large.Seconds = time.Since(began).Seconds()
		return err
	})
	g.Go(func() error {
		for !over.Load() {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			large.HeapMiB = max(large.HeapMiB, float64(m.HeapInuse)/(1<<20))
			sleep(inner, 100*time.Millisecond)
		}
		return nil
	})
	var sample Sample
	g.Go(func() (err error) {
		sample, err = s.small(inner, cfg, &over)
		return err
	})
	err = g.Wait()
	sample.Large = large
	// Close waits for what is left to do in the background.
	return sample, errors.Join(err, s.Close(), s.Prepare(ctx, cfg))
}

// alone is the small transactions without a large one.
type alone struct{ *besideLarge }

func (s *alone) Name() string { return "small transactions alone" }

func (s *alone) Run(ctx context.Context, cfg Config, d time.Duration, _ int) (Sample, error) {
	var over atomic.Bool
	defer time.AfterFunc(d, func() { over.Store(true) }).Stop()
	return s.small(ctx, cfg, &over)
}
