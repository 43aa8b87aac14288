package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/percolate-go/percolate/examples/webindex/measure"
)

// newPages is the share of new pages in the incremental workloads.
const newPages = 0.01

// incrementalWorkload is the web index kept up to date by observers, against a batch
// job that reads all pages from and writes its index to the same store.
func incrementalWorkload(kind string) Workload {
	return Workload{
		Name: "incremental-" + kind, Group: "paper", Goroutines: 1, Rows: 4000,
		About: fmt.Sprintf("web index on %s: %.0f%% new pages by observers, against a batch job over all pages (one run is one operation)", kind, 100*newPages),
		Sides: func(cfg Config) ([]Side, error) {
			u, err := space(cfg, kind, "incremental")
			if err != nil {
				return nil, err
			}
			job := &webJob{url: u}
			return []Side{&increments{job}, &batches{job}}, nil
		},
		Bars: func(s []Summary) []Bar {
			ratio := s[1].AllCPU() / s[0].AllCPU()
			return []Bar{atLeast("CPU of client and server: batch job over all pages / observers for the new ones", ratio, 30, "")}
		},
		Notes: func(cfg Config, s []Summary) []string {
			share := newPages * s[1].AllCPU() / s[0].AllCPU()
			return []string{
				fmt.Sprintf("A new page costs the observers %s of CPU, and a page of the batch job costs %s.",
					micros(s[0].AllCPU()/(newPages*float64(cfg.Rows))), micros(s[1].AllCPU()/float64(cfg.Rows))),
				fmt.Sprintf("So the batch job is cheaper when more than %.1f%% of the pages are new.", 100*share),
			}
		},
	}
}

// webJob is what both sides share: the store, filled once.
type webJob struct {
	url   string
	rows  int
	index *measure.Index
}

func (s *webJob) prepare(ctx context.Context, cfg Config) (err error) {
	if s.index != nil {
		return nil
	}
	s.rows = cfg.Rows
	// On a server an index of an earlier run would be in the way.
	u := s.url
	if !strings.HasPrefix(u, "pebble:") {
		u = with(u, "schema", "bench_incremental_"+session)
	}
	if s.index, err = measure.Open(ctx, u, measure.Web{Seed: cfg.Seed}); err != nil {
		return err
	}
	return s.index.Add(ctx, cfg.Rows)
}

func (s *webJob) close() error {
	if s.index == nil {
		return nil
	}
	index := s.index
	s.index = nil
	return index.Close()
}

type increments struct{ *webJob }

func (s *increments) Name() string                                  { return "observers, new pages alone" }
func (s *increments) Peer() string                                  { return "" }
func (s *increments) ServerURL() string                             { return s.url }
func (s *increments) Prepare(ctx context.Context, cfg Config) error { return s.prepare(ctx, cfg) }
func (s *increments) Op(context.Context, *Caller) error             { panic("it is a Runner") }
func (s *increments) Close() error                                  { return s.close() }

// Run implements Runner.
func (s *increments) Run(ctx context.Context, _ Config, _ time.Duration, _ int) (Sample, error) {
	return once(func() error { return s.index.Add(ctx, max(1, int(newPages*float64(s.rows)))) })
}

type batches struct{ *webJob }

func (s *batches) Name() string                                  { return "batch job, all pages" }
func (s *batches) Peer() string                                  { return "" }
func (s *batches) ServerURL() string                             { return s.url }
func (s *batches) Prepare(ctx context.Context, cfg Config) error { return s.prepare(ctx, cfg) }
func (s *batches) Op(context.Context, *Caller) error             { panic("it is a Runner") }
func (s *batches) Close() error                                  { return s.close() }

// Run implements Runner.
func (s *batches) Run(ctx context.Context, _ Config, _ time.Duration, _ int) (Sample, error) {
	return once(func() error {
		_, err := s.index.Batch(ctx)
		return err
	})
}

// once is a sample of one operation.
func once(f func() error) (Sample, error) {
	began := time.Now()
	if err := f(); err != nil {
		return Sample{}, err
	}
	took := time.Since(began)
	us := float64(took.Nanoseconds()) / 1e3
	return Sample{Ops: 1, Rate: 1 / took.Seconds(), P50: us, P99: us}, nil
}
