package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/percolate-go/percolate/percolator"
)

// The systems of which a crew may be: observers, River and asynq. Each handler reads
// what the change holds, and writes it elsewhere.

const (
	fleetTable  = "fleet"
	fleetInput  = "input"
	fleetResult = "result"
	// fleetFill is how many changes a transaction makes that fills a backlog.
	fleetFill = 200
)

// fleetRow names a row by its number and by the time at which its change was due.
func fleetRow(id, due int64) string { return fmt.Sprintf("%s-%012d-%d", session, id, due) }

// dueOf is the time in the name of a row.
func dueOf(row string) int64 {
	due, err := strconv.ParseInt(row[strings.LastIndexByte(row, '-')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return due
}

// fillBy calls do for parts of n changes, in their order, from a few goroutines.
func fillBy(ctx context.Context, from, n int64, do func(ctx context.Context, from, n int64) error) error {
	g, ctx := together(ctx)
	g.SetLimit(8)
	for at := from; at < from+n; at += fleetFill {
		g.Go(func() error { return do(ctx, at, min(fleetFill, from+n-at)) })
	}
	return g.Wait()
}

// observerSource changes cells that an observer watches.
type observerSource struct {
	url  string
	size int
	db   *percolator.DB
}

func (s *observerSource) open(ctx context.Context, size int, prepare bool) error {
	s.size = size
	if prepare {
		// The observer is made known by a worker that is stopped again.
		m := &observerMember{}
		err := m.open(ctx, &childTask{URL: s.url}, &tally{took: newLatencies()})
		if err == nil {
			err = m.work(ctx)
		}
		if err == nil {
			err = m.worker.WaitIdle(ctx)
		}
		if err := errors.Join(err, m.close()); err != nil {
			return err
		}
	}
	var err error
	s.db, err = percolator.Open(ctx, s.url)
	return err
}

func (s *observerSource) set(tx *percolator.Txn, id, due int64) error {
	return tx.Set(percolator.Cell{Table: fleetTable, Row: fleetRow(id, due), Column: fleetInput}, value(id, s.size))
}

func (s *observerSource) change(ctx context.Context, id, due int64) error {
	return s.db.Update(ctx, func(tx *percolator.Txn) error { return s.set(tx, id, due) })
}

func (s *observerSource) fill(ctx context.Context, from, n int64) error {
	return fillBy(ctx, from, n, func(ctx context.Context, from, n int64) error {
		return s.db.Update(ctx, func(tx *percolator.Txn) error {
			for id := from; id < from+n; id++ {
				if err := s.set(tx, id, time.Now().UnixNano()); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func (s *observerSource) close() error {
	if s.db == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.db.Close(ctx)
}

// observerMember runs the observer.
type observerMember struct{ observerChain }

func (m *observerMember) open(ctx context.Context, t *childTask, count *tally) error {
	m.url = t.URL
	return m.ready(ctx, fleetTable, fleetResult, func(row string) { count.finished(dueOf(row)) }, fleetConcurrency, percolator.Observer{
		Name: "fleet", Table: fleetTable, Column: fleetInput,
		Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			count.calls.Add(1)
			b, err := tx.Get(ctx, c)
			if err != nil {
				return err
			}
			sleep(ctx, t.Takes)
			return tx.Set(percolator.Cell{Table: c.Table, Row: c.Row, Column: fleetResult}, b)
		},
	})
}

func (m *observerMember) work(ctx context.Context) error {
	m.begin(ctx)
	return nil
}

func (m *observerMember) add(d *deeds) {
	s := m.db.Stats()
	d.Conflicts, d.Scans, d.Found = int64(s.ObserverConflicts), int64(s.NotifyScans), int64(s.NotifyFound)
}

// fleetJob is a change as a job of River.
type fleetJob struct {
	Row  string `json:"row"`
	Data []byte `json:"data"`
}

func (fleetJob) Kind() string { return "fleet" }

const riverFleetSchema = "bench_river_fleet"

// riverSource inserts jobs.
type riverSource struct {
	url    string
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
	size   int
}

func quietLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func (s *riverSource) open(ctx context.Context, size int, prepare bool) (err error) {
	s.size = size
	if s.pool, err = openPool(ctx, s.url, fleetConcurrency); err != nil {
		return err
	}
	driver := riverpgxv5.New(s.pool)
	if prepare {
		for _, statement := range []string{
			"DROP SCHEMA IF EXISTS " + riverFleetSchema + " CASCADE", "CREATE SCHEMA " + riverFleetSchema,
			"CREATE TABLE " + riverFleetSchema + ".result (key text PRIMARY KEY, value bytea NOT NULL)",
		} {
			if _, err := s.pool.Exec(ctx, statement); err != nil {
				return err
			}
		}
		migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Schema: riverFleetSchema, Logger: quietLog()})
		if err != nil {
			return err
		}
		if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
			return fmt.Errorf("migrations of River: %w", err)
		}
	}
	s.client, err = river.NewClient(driver, &river.Config{Schema: riverFleetSchema, Logger: quietLog()})
	return err
}

func (s *riverSource) change(ctx context.Context, id, due int64) error {
	_, err := s.client.Insert(ctx, fleetJob{Row: fleetRow(id, due), Data: value(id, s.size)}, nil)
	return err
}

func (s *riverSource) fill(ctx context.Context, from, n int64) error {
	return fillBy(ctx, from, n, func(ctx context.Context, from, n int64) error {
		var jobs []river.InsertManyParams
		for id := from; id < from+n; id++ {
			jobs = append(jobs, river.InsertManyParams{Args: fleetJob{Row: fleetRow(id, time.Now().UnixNano()), Data: value(id, s.size)}})
		}
		_, err := s.client.InsertManyFast(ctx, jobs)
		return err
	})
}

func (s *riverSource) close() error {
	if s.pool != nil {
		s.pool.Close()
	}
	return nil
}

// riverMember works jobs, each in one transaction with its result.
type riverMember struct {
	river.WorkerDefaults[fleetJob]
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
	count  *tally
	takes  time.Duration
}

func (m *riverMember) Work(ctx context.Context, job *river.Job[fleetJob]) error {
	m.count.calls.Add(1)
	sleep(ctx, m.takes)
	tx, err := m.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // nothing after Commit
	if _, err := tx.Exec(ctx, "INSERT INTO "+riverFleetSchema+".result (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
		job.Args.Row, job.Args.Data); err != nil {
		return err
	}
	if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	m.count.finished(dueOf(job.Args.Row))
	return nil
}

func (m *riverMember) open(ctx context.Context, t *childTask, count *tally) (err error) {
	m.count, m.takes = count, t.Takes
	// A connection for each handler and two for the client.
	if m.pool, err = openPool(ctx, t.URL, fleetConcurrency+2); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, m)
	m.client, err = river.NewClient(riverpgxv5.New(m.pool), &river.Config{
		Schema: riverFleetSchema, Logger: quietLog(), Workers: workers,
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: fleetConcurrency}},
		FetchCooldown: river.FetchCooldownMin,
	})
	return err
}

func (m *riverMember) work(ctx context.Context) error { return m.client.Start(ctx) }
func (m *riverMember) add(*deeds)                     {}

func (m *riverMember) close() error {
	var err error
	if m.client != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err = m.client.StopAndCancel(ctx)
	}
	if m.pool != nil {
		m.pool.Close()
	}
	return err
}

// asynqSource enqueues tasks.
type asynqSource struct {
	url    string
	size   int
	client *asynq.Client
}

const asynqFleetKind = "bench:fleet"

func (s *asynqSource) open(_ context.Context, size int, _ bool) error {
	s.size = size
	o, err := plainRedis(s.url)
	if err != nil {
		return err
	}
	s.client = asynq.NewClient(asynqOptions(o, fleetConcurrency))
	return nil
}

func (s *asynqSource) change(ctx context.Context, id, due int64) error {
	p := binary.BigEndian.AppendUint64(nil, uint64(id))
	p = binary.BigEndian.AppendUint64(p, uint64(due))
	_, err := s.client.EnqueueContext(ctx, asynq.NewTask(asynqFleetKind, append(p, value(id, s.size)...)))
	return err
}

func (s *asynqSource) fill(ctx context.Context, from, n int64) error {
	return fillBy(ctx, from, n, func(ctx context.Context, from, n int64) error {
		for id := from; id < from+n; id++ {
			if err := s.change(ctx, id, time.Now().UnixNano()); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *asynqSource) close() error {
	if s.client == nil {
		return nil
	}
	return s.client.Close()
}

// asynqMember works tasks. The result and the end of its task are not one
// transaction.
type asynqMember struct {
	plain  *redis.Client
	server *asynq.Server
	mux    *asynq.ServeMux
}

func (m *asynqMember) open(_ context.Context, t *childTask, count *tally) error {
	o, err := plainRedis(t.URL)
	if err != nil {
		return err
	}
	o.PoolSize = fleetConcurrency
	m.plain = redis.NewClient(o)
	m.server = asynq.NewServer(asynqOptions(o, 2*fleetConcurrency), asynq.Config{
		Concurrency: fleetConcurrency, Logger: mute{}, LogLevel: asynq.FatalLevel,
		// How long it sleeps when it found no task. Its default is a second.
		TaskCheckInterval: time.Millisecond,
	})
	m.mux = asynq.NewServeMux()
	m.mux.HandleFunc(asynqFleetKind, func(ctx context.Context, task *asynq.Task) error {
		count.calls.Add(1)
		p := task.Payload()
		if len(p) < 16 {
			return fmt.Errorf("a payload of %d bytes", len(p))
		}
		sleep(ctx, t.Takes)
		id, due := int64(binary.BigEndian.Uint64(p)), int64(binary.BigEndian.Uint64(p[8:]))
		if err := m.plain.Set(ctx, "bench-asynq:"+fleetRow(id, due), p[16:], 0).Err(); err != nil {
			return err
		}
		count.finished(due)
		return nil
	})
	return nil
}

func (m *asynqMember) work(context.Context) error { return m.server.Start(m.mux) }
func (m *asynqMember) add(*deeds)                 {}

func (m *asynqMember) close() error {
	if m.server != nil {
		m.server.Shutdown()
	}
	if m.plain == nil {
		return nil
	}
	return m.plain.Close()
}
