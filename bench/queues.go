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

// riverSystem is River in a schema of its own.
type riverSystem struct {
	schema string
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

func riverLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// open connects, with at most that many connections. With prepare it makes the schema anew.
func (s *riverSystem) open(ctx context.Context, url string, conns int, prepare bool) (err error) {
	if s.pool, err = openPool(ctx, url, conns); err != nil || !prepare {
		return err
	}
	for _, statement := range []string{
		"DROP SCHEMA IF EXISTS " + s.schema + " CASCADE", "CREATE SCHEMA " + s.schema,
		"CREATE TABLE " + s.schema + ".result (key text PRIMARY KEY, value bytea NOT NULL)",
	} {
		if _, err := s.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(s.pool), &rivermigrate.Config{Schema: s.schema, Logger: riverLog()})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("migrations of River: %w", err)
	}
	return nil
}

// insert makes the client of a process that only inserts jobs.
func (s *riverSystem) insert() (err error) {
	s.client, err = river.NewClient(riverpgxv5.New(s.pool), &river.Config{Schema: s.schema, Logger: riverLog()})
	return err
}

// work makes the client of a process that runs up to that many jobs at once.
func (s *riverSystem) work(workers *river.Workers, most int) (err error) {
	s.client, err = river.NewClient(riverpgxv5.New(s.pool), &river.Config{
		Schema: s.schema, Logger: riverLog(), Workers: workers,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: most}},
		// The least that River takes. Its default, 100 ms, would keep the workers idle
		// for most of the time.
		FetchCooldown: river.FetchCooldownMin,
	})
	return err
}

// result writes the result of a change.
func (s *riverSystem) result(ctx context.Context, tx pgx.Tx, row string, data []byte) error {
	_, err := tx.Exec(ctx, "INSERT INTO "+s.schema+".result (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value", row, data)
	return err
}

// riverJob does what a job asks for, and completes the job in the same transaction.
func riverJob[T river.JobArgs](ctx context.Context, pool *pgxpool.Pool, job *river.Job[T], do func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := do(tx); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
}

// close stops a client that works, and closes the connections.
func (s *riverSystem) close() (err error) {
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

// asynqSystem is asynq on a Redis: a client if tasks are enqueued here, and a server if
// they are handled here. A task holds two numbers and the data of a change. Its result and
// its end are not one transaction.
type asynqSystem struct {
	kind   string
	client *asynq.Client
	server *asynq.Server
	mux    *asynq.ServeMux
	plain  *redis.Client
}

// insert makes the client, with that many connections.
func (s *asynqSystem) insert(url string, conns int) error {
	o, err := plainRedis(url)
	if err == nil {
		s.client = asynq.NewClient(asynqOptions(o, conns))
	}
	return err
}

// work makes the server, which handles up to that many tasks at once. conns is the number
// of connections for results.
func (s *asynqSystem) work(url string, most, conns int, handle func(ctx context.Context, a, b int64, data []byte) error) error {
	o, err := plainRedis(url)
	if err != nil {
		return err
	}
	o.PoolSize = conns
	s.plain = redis.NewClient(o)
	s.server = asynq.NewServer(asynqOptions(o, 2*most), asynq.Config{
		Concurrency: most, Logger: mute{}, LogLevel: asynq.FatalLevel,
		// How long it sleeps when it found no task. Its default is a second.
		TaskCheckInterval: time.Millisecond,
	})
	s.mux = asynq.NewServeMux()
	s.mux.HandleFunc(s.kind, func(ctx context.Context, t *asynq.Task) error {
		p := t.Payload()
		if len(p) < 16 {
			return fmt.Errorf("a payload of %d bytes", len(p))
		}
		return handle(ctx, int64(binary.BigEndian.Uint64(p)), int64(binary.BigEndian.Uint64(p[8:])), p[16:])
	})
	return nil
}

// start begins to handle tasks.
func (s *asynqSystem) start() error { return s.server.Start(s.mux) }

func (s *asynqSystem) enqueue(ctx context.Context, a, b int64, data []byte) error {
	p := make([]byte, 16, 16+len(data))
	binary.BigEndian.PutUint64(p, uint64(a))
	binary.BigEndian.PutUint64(p[8:], uint64(b))
	_, err := s.client.EnqueueContext(ctx, asynq.NewTask(s.kind, append(p, data...)))
	return err
}

// result writes the result of a change.
func (s *asynqSystem) result(ctx context.Context, row string, data []byte) error {
	return s.plain.Set(ctx, "bench-asynq:"+row, data, 0).Err()
}

func (s *asynqSystem) close() error {
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

// mute keeps asynq's log out of the report.
type mute struct{}

func (mute) Debug(...any)      {}
func (mute) Info(...any)       {}
func (mute) Warn(...any)       {}
func (mute) Error(...any)      {}
func (mute) Fatal(args ...any) { panic(fmt.Sprint(args...)) }
