package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/index"
	"github.com/percolate-go/percolate/typed"
)

// Indexes: what a write costs with one, and without; and how long it takes to build one while the rows are written.

const indexBuildRows = 100_000

func indexWorkloads(kind string) []Workload {
	return []Workload{
		{
			Name: "index-write-" + kind, Group: "recipes", About: "rows written with an index and without one on " + kind,
			Goroutines: 64, Rows: 10_000,
			Sides: func(cfg Config) ([]Side, error) {
				var sides []Side
				for _, how := range []string{"without", "index", "unique", "by hand", "observed"} {
					u, err := space(cfg, kind, "index"+strings.ReplaceAll(how, " ", ""))
					if err != nil {
						return nil, err
					}
					sides = append(sides, &indexed{how: how, url: u})
				}
				return sides, nil
			},
			Bars: func(s []Summary) []Bar {
				return []Bar{
					atMost("time for a write: with one index / without", s[0].Rate/s[1].Rate, 1.6, ""),
					atMost("time for a write: with one index / entries written by hand", s[3].Rate/s[1].Rate, 1.1, ""),
					atMost("time for a write: with one index that an observer keeps / without", s[0].Rate/s[4].Rate, 1.6, ""),
				}
			},
		},
		{
			Name: "index-build-" + kind, Group: "recipes", About: "an index built and checked while its rows are written on " + kind,
			Goroutines: 4, Rows: indexBuildRows,
			Sides: func(cfg Config) ([]Side, error) {
				u, err := space(cfg, kind, "indexbuild")
				return []Side{&indexBuild{indexed: indexed{how: "build", url: u}}}, err
			},
			Bars: func(s []Summary) []Bar {
				return []Bar{atLeast("rows indexed and checked per second, while they are written", s[0].Rate, 1000, "/s")}
			},
		},
	}
}

// indexed writes rows at random, of which each has a value of its own time. By hand, the transaction reads the row, and writes the
// entries of the old value and of the new one itself. Observed, an observer keeps the index, in workers elsewhere: what it costs them is no part of a write.
type indexed struct {
	onDB
	how, url string
	rows     int
	values   typed.Column[string]
	ix       *index.Index[string]
	next     atomic.Int64
}

func (s *indexed) Name() string { return s.how }

func (s *indexed) Prepare(ctx context.Context, cfg Config) error {
	s.rows = cfg.Rows
	s.values = typed.Column[string]{Table: "row", Name: "value", Codec: typed.Text[string]{}}
	if err := s.open(ctx, s.url, percolator.WithSettings(percolator.Settings{CatalogLease: time.Second})); err != nil {
		return err
	}
	switch s.how {
	case "without", "by hand":
	case "observed":
		if err := s.observe(ctx); err != nil {
			return err
		}
	default:
		var err error
		if s.ix, err = index.New(s.db, "value", s.values, valueItself, index.Options{Unique: s.how == "unique"}); err != nil {
			return err
		}
	}
	for from := 0; from < s.rows; from += 1000 {
		err := s.db.Update(ctx, func(tx *percolator.Txn) error {
			for i := from; i < min(from+1000, s.rows); i++ {
				if err := s.values.Set(ctx, tx, strconv.Itoa(i), s.value()); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if s.ix == nil || s.how == "build" {
		return nil
	}
	_, err := s.ix.Build(ctx, index.Pace{Rows: 1000})
	return err
}

func valueItself(_ string, v string) ([]keys.Key, error) {
	return []keys.Key{keys.Key("").Text(v)}, nil
}

// observe makes the observer of an index known.
func (s *indexed) observe(ctx context.Context) error {
	ix, err := index.NewObserved(s.db, "value", s.values, valueItself, index.ObservedOptions{})
	if err != nil {
		return err
	}
	w := percolator.NewWorker(s.db, percolator.WorkerConfig{GCInterval: -1})
	if err := w.Observe(ix.Observer()); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	err = ix.Build(ctx, index.Pace{})
	stop()
	return errors.Join(err, <-ended)
}

// value is one that no other row has.
func (s *indexed) value() string { return fmt.Sprintf("value %d", s.next.Add(1)) }

func (s *indexed) Op(ctx context.Context, w *Caller) error {
	row := strconv.Itoa(w.Rand.IntN(s.rows))
	return s.db.Update(ctx, func(tx *percolator.Txn) error {
		value := s.value()
		if s.how == "by hand" {
			if err := s.keepByHand(ctx, tx, row, value); err != nil {
				return err
			}
		}
		return s.values.Set(ctx, tx, row, value)
	})
}

// keepByHand writes the entries for the value that a row gets.
func (s *indexed) keepByHand(ctx context.Context, tx *percolator.Txn, row, value string) error {
	entry := func(v string) percolator.Cell {
		return percolator.Cell{Table: "entries", Row: string(keys.Key("").Text(v)) + "\x00" + row, Column: "row"}
	}
	old, err := s.values.Get(ctx, tx, row)
	if err != nil {
		return err
	}
	if err := tx.Delete(entry(old)); err != nil {
		return err
	}
	return tx.Set(entry(value), []byte(row))
}

// indexBuild builds the index again in each repeat.
type indexBuild struct{ indexed }

// Run implements Runner.
func (s *indexBuild) Run(ctx context.Context, cfg Config, _ time.Duration, repeat int) (Sample, error) {
	if repeat == 0 {
		return Sample{Ops: 1, Rate: 1}, nil // a warm-up would be a whole build
	}
	if err := index.Drop(ctx, s.db, "value", index.Pace{Rows: 1000}); err != nil {
		return Sample{}, err
	}
	writing, stop := context.WithCancel(ctx)
	defer stop()
	var writers sync.WaitGroup
	var failed atomic.Pointer[error]
	for i := range cfg.Goroutines {
		writers.Go(func() {
			for n := i + repeat; writing.Err() == nil; n += 7919 {
				err := s.db.Update(ctx, func(tx *percolator.Txn) error {
					return s.values.Set(ctx, tx, strconv.Itoa(n%s.rows), s.value())
				})
				if err != nil {
					failed.Store(&err)
					return
				}
			}
		})
	}
	begun := time.Now()
	_, err := s.ix.Build(ctx, index.Pace{Rows: 1000})
	took := time.Since(begun)
	stop()
	writers.Wait()
	if f := failed.Load(); f != nil {
		err = errors.Join(err, *f)
	}
	if err != nil {
		return Sample{}, err
	}
	r, err := s.ix.Check(ctx, index.Pace{Rows: 1000})
	if err == nil && (!r.Matches() || r.Rows != s.rows || r.Entries != s.rows) {
		err = fmt.Errorf("the index does not match: %+v", r)
	}
	return Sample{Ops: int64(s.rows), Rate: float64(s.rows) / took.Seconds()}, err
}
