package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/recipes/export"
)

// Items that go through an outbox: put by transactions, and sent by observers to a sink that checks their order.

const (
	exportKeys   = 64
	exportTable  = "outbox"
	exportPerTxn = 4 // items that a transaction puts
)

func exportWorkload(kind string) Workload {
	return Workload{
		Name: "export-" + kind, Group: "recipes", About: "items put into an outbox and sent from it on " + kind,
		Goroutines: 64, Rows: 2,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := space(cfg, kind, "export")
			return []Side{&exports{url: u}}, err
		},
		Bars: func(s []Summary) []Bar {
			return []Bar{atLeast("items put and sent per second", s[0].Rate, 5000, "/s")}
		},
	}
}

// exports puts items for a while, and waits until they are sent.
type exports struct {
	onDB
	url    string
	outbox *export.Outbox
	worker *percolator.Worker
	stop   func() error
	sink   checkingSink
}

func (s *exports) Name() string { return "export" }

func (s *exports) Prepare(ctx context.Context, _ Config) error {
	if err := s.open(ctx, s.url, percolator.WithSettings(percolator.Settings{CatalogLease: time.Second})); err != nil {
		return err
	}
	err := s.db.ConfigureTable(ctx, exportTable, percolator.TableSettings{MaxTxnAge: 10 * time.Second, Retention: 20 * time.Second})
	if err != nil {
		return err
	}
	if s.outbox, err = export.New(s.db, exportTable); err != nil {
		return err
	}
	o, err := s.outbox.Observer("send", &s.sink, export.Options{})
	if err != nil {
		return err
	}
	s.worker = percolator.NewWorker(s.db, percolator.WorkerConfig{GCInterval: 5 * time.Second})
	if err := s.worker.Observe(o); err != nil {
		return err
	}
	within, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- s.worker.Run(within) }()
	s.stop = func() error { cancel(); return <-ended }
	return s.worker.WaitIdle(ctx)
}

func (s *exports) Close() error {
	var err error
	if s.stop != nil {
		err = s.stop()
	}
	return errors.Join(err, s.onDB.Close())
}

// Op puts some items of one key.
func (s *exports) Op(ctx context.Context, w *Caller) error {
	key := strconv.Itoa(w.Rand.IntN(exportKeys))
	w.Units = exportPerTxn
	return s.db.Update(ctx, func(tx *percolator.Txn) error {
		for range exportPerTxn {
			if err := s.outbox.Put(ctx, tx, key, []byte("an item of some bytes that says what happened")); err != nil {
				return err
			}
		}
		return nil
	})
}

// Run implements Runner: the time until everything is sent counts.
func (s *exports) Run(ctx context.Context, cfg Config, d time.Duration, repeat int) (Sample, error) {
	before, begun := s.sink.taken.Load(), time.Now()
	sample, err := loop(ctx, putsOnly{s}, cfg, d, repeat)
	if err == nil {
		err = s.worker.WaitIdle(ctx)
	}
	if err != nil {
		return Sample{}, err
	}
	if sent := s.sink.taken.Load() - before; sent != sample.Ops {
		return Sample{}, fmt.Errorf("%d items were put, and %d sent", sample.Ops, sent)
	}
	sample.Rate = float64(sample.Ops) / time.Since(begun).Seconds()
	return sample, s.sink.failure()
}

// putsOnly hides Run from loop.
type putsOnly struct{ *exports }

// checkingSink takes items, and looks that those of a key come in order.
type checkingSink struct {
	taken atomic.Int64
	mu    sync.Mutex
	last  map[string]export.Item
	err   error
}

func (s *checkingSink) Send(_ context.Context, key string, items []export.Item) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = make(map[string]export.Item)
	}
	for _, item := range items {
		last := s.last[key]
		if item.Epoch < last.Epoch || item.Commit < last.Commit || item.Commit == last.Commit && item.Index <= last.Index {
			s.err = fmt.Errorf("key %q: item %d.%d came after %d.%d", key, uint64(item.Commit), item.Index, uint64(last.Commit), last.Index)
		}
		s.last[key] = item
	}
	s.taken.Add(int64(len(items)))
	return len(items), nil
}

func (s *checkingSink) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
