package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Ways to make transfers, named in a childTask.
const (
	byPercolator     = "percolator"
	byWatch          = "WATCH, MGET, MULTI, EXEC"
	byRepeatableRead = "REPEATABLE READ with pgx"
)

// mostCallers is how many connections the native side of one process has, one for each caller.
const mostCallers = 64

// transfersOf is the side that fills the rows of a way to make transfers.
func transfersOf(how, url string) Side {
	switch how {
	case byWatch:
		return &watchTransfer{redisPeer: redisPeer{url: url}}
	case byRepeatableRead:
		return &nativeTransfer{pgPeer: pgPeer{url: url, pool: mostCallers}, isolation: pgx.RepeatableRead}
	}
	return &transfer{url: url}
}

// joiners open a side over rows that another process has filled.
var joiners = map[string]func(context.Context, string, Config) (Side, error){
	byPercolator: func(ctx context.Context, url string, cfg Config) (Side, error) {
		s := &transfer{rows: cfg.Rows, size: cfg.ValueSize}
		return s, s.open(ctx, url)
	},
	byWatch: func(_ context.Context, url string, cfg Config) (Side, error) {
		s := &watchTransfer{redisPeer: redisPeer{url: url}}
		return s, s.connect(cfg)
	},
	byRepeatableRead: func(ctx context.Context, url string, cfg Config) (Side, error) {
		s := &joinedTransfer{nativeTransfer{pgPeer: pgPeer{url: url, rows: cfg.Rows, size: cfg.ValueSize}, isolation: pgx.RepeatableRead}}
		var err error
		s.db, err = openPool(ctx, url, min(cfg.Goroutines, mostCallers))
		return s, err
	},
}

// joinedTransfer has a pool of its own.
type joinedTransfer struct{ nativeTransfer }

func (s *joinedTransfer) Close() error {
	s.db.Close()
	return nil
}

// processes is transfers by several processes.
type processes struct {
	how    string // a key of joiners
	url    string
	n      int
	filled *shared
}

func (s *processes) Name() string                      { return fmt.Sprintf("%d processes", s.n) }
func (s *processes) Peer() string                      { return transfersOf(s.how, s.url).Peer() }
func (s *processes) ServerURL() string                 { return s.url }
func (s *processes) Op(context.Context, *Caller) error { panic("it is a Runner") }
func (s *processes) Close() error                      { return nil }

func (s *processes) Prepare(ctx context.Context, cfg Config) error {
	if s.filled.prepared {
		return nil
	}
	s.filled.prepared = true
	t := transfersOf(s.how, s.url)
	return errors.Join(t.Prepare(ctx, cfg), t.Close())
}

// Run implements Runner.
func (s *processes) Run(ctx context.Context, cfg Config, d time.Duration, repeat int) (Sample, error) {
	task := childTask{Kind: "transfer", How: s.how, URL: s.url, Config: cfg, Repeat: repeat}
	task.Config.Duration = d
	task.Config.Goroutines = max(1, cfg.Goroutines/s.n)
	children, err := startHelpers(ctx, s.n, task)
	defer func() {
		for _, h := range children {
			h.kill()
		}
	}()
	if err != nil {
		return Sample{}, err
	}
	return sumOf(children)
}

// processesWorkload is transfers by more and more processes, each with its share
// of the callers, and the same number of processes that do without percolator. It is how
// programs are deployed: many processes with a few callers each.
func processesWorkload(kind, native string, bar float64) Workload {
	counts := []int{1, 2, 4, 8}
	return Workload{
		Name: kind + "-processes", Group: "growth", About: "transfers on " + kind + " by 64 callers in more and more processes",
		Goroutines: 64, Rows: 100_000, XAxis: "processes", Chart: rateChart,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := space(cfg, kind, "processes")
			if err != nil {
				return nil, err
			}
			if kind == "postgres" {
				u = with(u, "connect_timeout", "60") // they start together
			}
			var sides []Side
			for _, way := range []struct{ how, series string }{{byPercolator, "percolator on " + kind}, {native, native}} {
				filled := &shared{}
				for _, n := range counts {
					if n > cfg.Goroutines {
						break
					}
					sides = append(sides, point(way.series, float64(n), fmt.Sprintf("%d processes", n), &processes{how: way.how, url: u, n: n, filled: filled}))
				}
			}
			return sides, nil
		},
		Bars: func(s []Summary) []Bar {
			if len(s) != 2*len(counts) {
				return nil // -goroutines left some out
			}
			most := len(counts) - 1
			return []Bar{atLeast("8 processes of 8 callers: percolator / "+native, s[most].Rate/s[len(counts)+most].Rate, bar, "")}
		},
	}
}
