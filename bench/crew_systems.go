package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

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

// ofRow is the number and the time in the name of a row.
func ofRow(row string) (id, due int64) {
	parts := strings.Split(row, "-")
	if len(parts) < 3 {
		return 0, 0
	}
	id, err := strconv.ParseInt(parts[len(parts)-2], 10, 64)
	if err != nil {
		return 0, 0
	}
	due, err = strconv.ParseInt(parts[len(parts)-1], 10, 64)
	if err != nil {
		return 0, 0
	}
	return id, due
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
		err := m.open(ctx, &childTask{URL: s.url}, newTally(0))
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
	return m.ready(ctx, fleetTable, fleetResult, count.finished, fleetConcurrency, percolator.Observer{
		Name: "fleet", Table: fleetTable, Column: fleetInput,
		Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
			if err := count.called(ctx, c.Row); err != nil {
				return err
			}
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
	riverSystem
	url  string
	size int
}

func (s *riverSource) open(ctx context.Context, size int, prepare bool) error {
	s.size, s.schema = size, riverFleetSchema
	if err := s.riverSystem.open(ctx, s.url, fleetConcurrency, prepare); err != nil {
		return err
	}
	return s.insert()
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

// close does not stop the client, which has not been started.
func (s *riverSource) close() error {
	s.client = nil
	return s.riverSystem.close()
}

// riverMember works jobs, each in one transaction with its result.
type riverMember struct {
	river.WorkerDefaults[fleetJob]
	riverSystem
	count *tally
	takes time.Duration
}

func (m *riverMember) Work(ctx context.Context, job *river.Job[fleetJob]) error {
	if err := m.count.called(ctx, job.Args.Row); err != nil {
		return err
	}
	sleep(ctx, m.takes)
	err := riverJob(ctx, m.pool, job, func(tx pgx.Tx) error { return m.result(ctx, tx, job.Args.Row, job.Args.Data) })
	if err == nil {
		m.count.finished(job.Args.Row)
	}
	return err
}

func (m *riverMember) open(ctx context.Context, t *childTask, count *tally) error {
	m.count, m.takes, m.schema = count, t.Takes, riverFleetSchema
	// A connection for each handler and two for the client.
	if err := m.riverSystem.open(ctx, t.URL, fleetConcurrency+2, false); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, m)
	return m.riverSystem.work(workers, fleetConcurrency)
}

func (m *riverMember) work(ctx context.Context) error { return m.client.Start(ctx) }
func (m *riverMember) add(*deeds)                     {}

const asynqFleetKind = "bench:fleet"

// asynqSource enqueues tasks.
type asynqSource struct {
	asynqSystem
	url  string
	size int
}

func (s *asynqSource) open(_ context.Context, size int, _ bool) error {
	s.size, s.kind = size, asynqFleetKind
	return s.insert(s.url, fleetConcurrency)
}

func (s *asynqSource) change(ctx context.Context, id, due int64) error {
	return s.enqueue(ctx, id, due, value(id, s.size))
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

// asynqMember works tasks.
type asynqMember struct{ asynqSystem }

func (m *asynqMember) open(_ context.Context, t *childTask, count *tally) error {
	m.kind = asynqFleetKind
	return m.asynqSystem.work(t.URL, fleetConcurrency, fleetConcurrency, func(ctx context.Context, id, due int64, data []byte) error {
		if err := count.called(ctx, fleetRow(id, due)); err != nil {
			return err
		}
		sleep(ctx, t.Takes)
		if err := m.result(ctx, fleetRow(id, due), data); err != nil {
			return err
		}
		count.finished(fleetRow(id, due))
		return nil
	})
}

func (m *asynqMember) work(context.Context) error { return m.start() }
func (m *asynqMember) add(*deeds)                 {}
