package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverChain handles changes by jobs of River, which complete in the transaction
// that writes the result, or that inserts the next job of the chain.
type riverChain struct {
	url    string
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
	data   []byte
}

const riverSchema = "bench_river"

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
	tx, err := w.of.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // nothing after Commit
	last := job.Args.Step+1 == w.depth
	if last {
		_, err = tx.Exec(ctx, "INSERT INTO bench_river.result (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
			chainRow(job.Args.ID), job.Args.Data)
	} else {
		next := job.Args
		next.Step++
		_, err = w.of.client.InsertTx(ctx, tx, next, nil)
	}
	if err != nil {
		return err
	}
	if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	if last {
		w.done(job.Args.ID)
	}
	return nil
}

func (s *riverChain) start(ctx context.Context, depth, size int, done func(int64)) (err error) {
	s.data = value(0, size)
	// A connection for each worker and for some of those that insert.
	if s.pool, err = openPool(ctx, s.url, reactiveWorkers+32); err != nil {
		return err
	}
	for _, statement := range []string{
		"DROP SCHEMA IF EXISTS bench_river CASCADE", "CREATE SCHEMA bench_river",
		"CREATE TABLE bench_river.result (key text PRIMARY KEY, value bytea NOT NULL)",
	} {
		if _, err := s.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	driver := riverpgxv5.New(s.pool)
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Schema: riverSchema, Logger: log})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrations of River: %w", err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{of: s, depth: depth, done: done})
	s.client, err = river.NewClient(driver, &river.Config{
		Schema: riverSchema, Logger: log, Workers: workers,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: reactiveWorkers}},
		// The least that River takes. Its default, 100 ms, would keep 64 workers idle
		// for most of the time.
		FetchCooldown: river.FetchCooldownMin,
	})
	if err != nil {
		return err
	}
	return s.client.Start(context.WithoutCancel(ctx))
}

func (s *riverChain) change(ctx context.Context, id int64) error {
	_, err := s.client.Insert(ctx, chainJob{ID: id, Data: s.data}, nil)
	return err
}

func (s *riverChain) close() error {
	var err error
	if s.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err = s.client.StopAndCancel(ctx)
	}
	if s.pool != nil {
		s.pool.Close()
	}
	return err
}

// asynqChain handles changes by tasks of asynq. A handler writes its result, or
// enqueues the next task; neither is one transaction with the end of its own task.
type asynqChain struct {
	url    string
	client *asynq.Client
	server *asynq.Server
	plain  *redis.Client
	data   []byte
}

const asynqKind = "bench:chain"

func (s *asynqChain) start(_ context.Context, depth, size int, done func(int64)) error {
	s.data = value(0, size)
	o, err := plainRedis(s.url)
	if err != nil {
		return err
	}
	o.PoolSize = 2 * reactiveWorkers
	s.plain = redis.NewClient(o)
	connection := asynqOptions(o, 2*reactiveWorkers)
	s.client = asynq.NewClient(connection)
	s.server = asynq.NewServer(connection, asynq.Config{
		Concurrency: reactiveWorkers, Logger: mute{}, LogLevel: asynq.FatalLevel,
		// How long it sleeps when it found no task. Its default is a second.
		TaskCheckInterval: time.Millisecond,
	})
	mux := asynq.NewServeMux()
	mux.HandleFunc(asynqKind, func(ctx context.Context, t *asynq.Task) error {
		p := t.Payload()
		if len(p) < 16 {
			return fmt.Errorf("a payload of %d bytes", len(p))
		}
		id, step := int64(binary.BigEndian.Uint64(p)), int(binary.BigEndian.Uint64(p[8:]))
		if step+1 < depth {
			return s.enqueue(ctx, id, step+1, p[16:])
		}
		if err := s.plain.Set(ctx, "bench-asynq:"+chainRow(id), p[16:], 0).Err(); err != nil {
			return err
		}
		done(id)
		return nil
	})
	return s.server.Start(mux)
}

// plainRedis is the server of a store's URL as go-redis names it.
func plainRedis(raw string) (*redis.Options, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errors.New("the URL of the Redis is not one that go-redis takes")
	}
	u.RawQuery = "" // parameters of the store
	return redis.ParseURL(u.String())
}

// asynqOptions is the same server as asynq names it.
func asynqOptions(o *redis.Options, pool int) asynq.RedisClientOpt {
	return asynq.RedisClientOpt{
		Network: o.Network, Addr: o.Addr, Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLSConfig, PoolSize: pool,
	}
}

func (s *asynqChain) enqueue(ctx context.Context, id int64, step int, data []byte) error {
	p := make([]byte, 16, 16+len(data))
	binary.BigEndian.PutUint64(p, uint64(id))
	binary.BigEndian.PutUint64(p[8:], uint64(step))
	_, err := s.client.EnqueueContext(ctx, asynq.NewTask(asynqKind, append(p, data...)))
	return err
}

func (s *asynqChain) change(ctx context.Context, id int64) error {
	return s.enqueue(ctx, id, 0, s.data)
}

func (s *asynqChain) close() error {
	var errs []error
	if s.server != nil {
		s.server.Shutdown()
	}
	if s.client != nil {
		errs = append(errs, s.client.Close())
	}
	if s.plain != nil {
		errs = append(errs, s.plain.Close())
	}
	return errors.Join(errs...)
}

// mute keeps asynq's log out of the report.
type mute struct{}

func (mute) Debug(...any)      {}
func (mute) Info(...any)       {}
func (mute) Warn(...any)       {}
func (mute) Error(...any)      {}
func (mute) Fatal(args ...any) { panic(fmt.Sprint(args...)) }
