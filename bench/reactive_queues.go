package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
)

// riverChain handles changes by jobs of River, which complete in the transaction
// that writes the result, or that inserts the next job of the chain.
type riverChain struct {
	riverSystem
	url  string
	data []byte
}

func newRiverChain(url string) *riverChain {
	return &riverChain{riverSystem: riverSystem{schema: "bench_river"}, url: url}
}

// chainJob is a step of a chain.
type chainJob struct {
	ID   int64  `json:"id"`
	Step int    `json:"step"`
	Data []byte `json:"data"`
}

func (chainJob) Kind() string { return "chain" }

type riverWorker struct {
	river.WorkerDefaults[chainJob]
	of    *riverChain
	depth int
	done  func(int64)
}

func (w *riverWorker) Work(ctx context.Context, job *river.Job[chainJob]) error {
	last := job.Args.Step+1 == w.depth
	err := riverJob(ctx, w.of.pool, job, func(tx pgx.Tx) error {
		if last {
			return w.of.result(ctx, tx, chainRow(job.Args.ID), job.Args.Data)
		}
		next := job.Args
		next.Step++
		_, err := w.of.client.InsertTx(ctx, tx, next, nil)
		return err
	})
	if err == nil && last {
		w.done(job.Args.ID)
	}
	return err
}

func (s *riverChain) start(ctx context.Context, depth, size int, done func(int64)) error {
	s.data = value(0, size)
	// A connection for each worker and for some of those that insert.
	if err := s.open(ctx, s.url, reactiveWorkers+32, true); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{of: s, depth: depth, done: done})
	if err := s.work(workers, reactiveWorkers); err != nil {
		return err
	}
	return s.client.Start(context.WithoutCancel(ctx))
}

func (s *riverChain) change(ctx context.Context, id int64) error {
	_, err := s.client.Insert(ctx, chainJob{ID: id, Data: s.data}, nil)
	return err
}

// asynqChain handles changes by tasks of asynq. A handler writes its result, or
// enqueues the next task.
type asynqChain struct {
	asynqSystem
	url  string
	data []byte
}

func newAsynqChain(url string) *asynqChain {
	return &asynqChain{asynqSystem: asynqSystem{kind: "bench:chain"}, url: url}
}

func (s *asynqChain) start(_ context.Context, depth, size int, done func(int64)) error {
	s.data = value(0, size)
	if err := s.insert(s.url, 2*reactiveWorkers); err != nil {
		return err
	}
	err := s.work(s.url, reactiveWorkers, 2*reactiveWorkers, func(ctx context.Context, id, step int64, data []byte) error {
		if int(step)+1 < depth {
			return s.enqueue(ctx, id, step+1, data)
		}
		if err := s.result(ctx, chainRow(id), data); err != nil {
			return err
		}
		done(id)
		return nil
	})
	if err != nil {
		return err
	}
	return s.asynqSystem.start()
}

func (s *asynqChain) change(ctx context.Context, id int64) error {
	return s.enqueue(ctx, id, 0, s.data)
}
