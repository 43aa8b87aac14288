package main

import (
	"context"
	"errors"
	"path/filepath"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/percolate-go/percolate/percolator"
)

// What spans cost, where one transaction in a hundred is sampled.

// tracedKinds are the stores under it. In memory a transaction takes some microseconds, so there it shows most.
var tracedKinds = []string{"memory", "pebble", "redis", "postgres"}

func tracingWorkloads() (all []Workload) {
	for _, kind := range tracedKinds {
		all = append(all, Workload{
			Name: "tracing-" + kind, Group: "recipes", About: "one transaction at a time that reads a cell and writes it on " + kind + ", without spans and with one in a hundred",
			Goroutines: 1, Rows: 10_000,
			Sides: func(cfg Config) ([]Side, error) {
				var sides []Side
				for _, how := range []string{"without", "1 percent"} {
					u, err := tracedURL(cfg, kind, how)
					if err != nil {
						return nil, err
					}
					sides = append(sides, &tracedSide{how: how, url: u})
				}
				return sides, nil
			},
			Bars: func(s []Summary) []Bar {
				return []Bar{atMost("time of a transaction on "+kind+": with spans of one in a hundred / without", s[0].Rate/s[1].Rate, 1.02, "")}
			},
		})
	}
	return all
}

func tracedURL(cfg Config, kind, how string) (string, error) {
	switch kind {
	case "memory":
		return "memory:", nil
	case "pebble":
		return "pebble:" + filepath.Join(cfg.Dir, "tracing "+how), nil
	}
	return space(cfg, kind, "tracing"+map[bool]string{true: "off", false: "on"}[how == "without"])
}

type tracedSide struct {
	onDB
	how, url string
	rows     int
	spans    *trace.TracerProvider
}

func (s *tracedSide) Name() string { return s.how }

func (s *tracedSide) Prepare(ctx context.Context, cfg Config) error {
	s.rows = cfg.Rows
	var options []percolator.Option
	if s.how != "without" {
		s.spans = trace.NewTracerProvider(trace.WithSampler(trace.ParentBased(trace.TraceIDRatioBased(0.01))), trace.WithBatcher(tracetest.NewNoopExporter()))
		options = append(options, percolator.WithTracing(s.spans))
	}
	if err := s.open(ctx, s.url, options...); err != nil {
		return err
	}
	return fillCells(ctx, s.db, cfg.Rows, func(i int) (percolator.Cell, []byte) { return cell(i), make([]byte, cfg.ValueSize) })
}

// Op implements Side.
func (s *tracedSide) Op(ctx context.Context, w *Caller) error {
	c := percolator.Cell{Table: benchTable, Row: rowName(w.row(s.rows)), Column: benchColumn}
	return s.db.Update(ctx, func(tx *percolator.Txn) error {
		b, err := tx.Get(ctx, c)
		if err != nil {
			return err
		}
		return tx.Set(c, b)
	})
}

func (s *tracedSide) Close() error {
	err := s.onDB.Close()
	if s.spans != nil {
		err = errors.Join(err, s.spans.Shutdown(context.Background()))
	}
	return err
}
