package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Reactive work: one change makes one handler run, which writes its result; in a
// chain the result makes the next handler run, and so on. percolator does it by
// observers, River and asynq by jobs.

const (
	// reactiveWorkers is how many handlers run at once, on every side.
	reactiveWorkers = 64
	// reactiveBacklog bounds the changes whose handlers have not finished, so that a
	// side that takes changes in more quickly than it handles them is measured by
	// what it handles.
	reactiveBacklog = 4096 // divided by the length of the chain
	deepChain       = 16
)

// reactiveWorkloads compare observers with queues of jobs.
func reactiveWorkloads() []Workload {
	observers := func(cfg Config, kind, name string, depth int) (Side, error) {
		var u string
		var err error
		if kind == "redis" {
			u, err = cfg.servers.redisSpace(cfg, name)
		} else {
			u, err = cfg.servers.postgresSpace(cfg, name)
		}
		return &reactive{how: &observerChain{url: u}, depth: depth, name: "observers on " + kind, server: u}, err
	}
	workload := func(kind, peer string, depth int, queue func(url string) reactor) Workload {
		name, group := peer, kind
		if depth > 1 {
			name += "-chain"
		}
		about := fmt.Sprintf("changes that each make a chain of %d handlers run, from insert to done", depth)
		if depth == 1 {
			about = "changes that each make a handler run, from insert to done"
		}
		return Workload{
			Name: name, Group: group, About: about + ", on " + kind, Goroutines: 64, Rows: 2,
			Sides: func(cfg Config) ([]Side, error) {
				own, err := observers(cfg, kind, "reactive"+strconv.Itoa(depth), depth)
				if err != nil {
					return nil, err
				}
				server := own.(*reactive).server
				return []Side{own, &reactive{how: queue(server), depth: depth, name: peer, peer: peer, server: server}}, nil
			},
			Bars: func(s []Summary) []Bar {
				return []Bar{atLeast("observers / "+peer+", changes handled per second", s[0].Rate/s[1].Rate, 1, "")}
			},
			Then: func(_ Config, s []Summary) *Workload {
				pace := min(s[0].Rate, s[1].Rate) / 10
				return &Workload{
					Name:  name + "-paced",
					About: fmt.Sprintf("%s on %s, %.0f changes a second on both sides", about, kind, pace),
					Bars: func(s []Summary) []Bar {
						return []Bar{atMost("median latency of observers / of "+peer, s[0].P50/s[1].P50, 1, "")}
					},
					pace: pace,
				}
			},
		}
	}
	riverOf := func(u string) reactor { return newRiverChain(u) }
	asynqOf := func(u string) reactor { return newAsynqChain(u) }
	return []Workload{
		workload("postgres", "river", 1, riverOf),
		workload("postgres", "river", deepChain, riverOf),
		workload("redis", "asynq", 1, asynqOf),
		workload("redis", "asynq", deepChain, asynqOf),
	}
}

// reactor is one way of doing reactive work.
type reactor interface {
	// start gets ready for chains of a depth; done is to be called when the last
	// result of a change is committed.
	start(ctx context.Context, depth, size int, done func(id int64)) error
	// change makes the change of that number.
	change(ctx context.Context, id int64) error
	close() error
}

// reactive is the common part of all sides: it makes changes and takes the time
// until they are handled.
type reactive struct {
	how                reactor
	name, peer, server string
	depth              int
	rate               float64

	last  atomic.Int64
	made  atomic.Int64 // changes
	began sync.Map     // id -> time.Time of changes that are not handled
	mu    sync.Mutex
	took  latencies
	left  chan struct{} // one token for each change that may be made
}

func (s *reactive) Name() string                      { return s.name }
func (s *reactive) Peer() string                      { return s.peer }
func (s *reactive) ServerURL() string                 { return s.server }
func (s *reactive) Pace(rate float64)                 { s.rate = rate }
func (s *reactive) Op(context.Context, *Caller) error { panic("it is a Runner") }
func (s *reactive) Close() error                      { return s.how.close() }

func (s *reactive) Prepare(ctx context.Context, cfg Config) error {
	s.left = make(chan struct{}, reactiveBacklog/s.depth)
	return s.how.start(ctx, s.depth, cfg.ValueSize, s.done)
}

// done takes the time of a change, once: a handler may run again.
func (s *reactive) done(id int64) {
	began, ok := s.began.LoadAndDelete(id)
	if !ok {
		return
	}
	took := time.Since(began.(time.Time))
	s.mu.Lock()
	s.took.record(took)
	s.mu.Unlock()
	<-s.left
}

func (s *reactive) one(ctx context.Context, began time.Time) error {
	id := s.last.Add(1)
	key := id
	if k, ok := s.how.(interface{ key(id int64) int64 }); ok {
		key = k.key(id)
	}
	if _, busy := s.began.LoadOrStore(key, began); busy {
		// The same thing is still being handled after an earlier change. Two changes in
		// one run would be counted as one, so this one is not made.
		<-s.left
		return nil
	}
	s.made.Add(1)
	return s.how.change(ctx, id)
}

// Run implements Runner.
func (s *reactive) Run(ctx context.Context, cfg Config, d time.Duration, _ int) (Sample, error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s.mu.Lock()
	s.took = newLatencies()
	s.mu.Unlock()
	before := s.made.Load()
	began := time.Now()
	times := make(chan time.Time)
	var wg sync.WaitGroup
	for range cfg.Goroutines {
		wg.Go(func() {
			for t := range times {
				if s.rate == 0 {
					t = time.Now()
				}
				if err := s.one(ctx, t); err != nil {
					fail(err)
					return
				}
			}
		})
	}
	for n := 0; (n == 0 || time.Since(began) < d) && ctx.Err() == nil; n++ {
		due := time.Now()
		if s.rate > 0 {
			due = began.Add(time.Duration(float64(n) / s.rate * float64(time.Second)))
			sleep(ctx, time.Until(due))
		}
		select {
		case s.left <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		select {
		case times <- due:
		case <-ctx.Done():
		}
	}
	close(times)
	wg.Wait()
	// All that was begun is handled before the clock stops.
	for timeout := time.Now().Add(time.Minute); len(s.left) > 0 && ctx.Err() == nil; {
		if time.Now().After(timeout) {
			return Sample{}, fmt.Errorf("%d changes were not handled within a minute", len(s.left))
		}
		sleep(ctx, 200*time.Microsecond)
	}
	elapsed := time.Since(began)
	if ctx.Err() != nil {
		return Sample{}, context.Cause(ctx)
	}
	sample := Sample{Ops: s.made.Load() - before}
	sample.Rate = float64(sample.Ops) / elapsed.Seconds()
	s.mu.Lock()
	s.took.into(&sample)
	s.mu.Unlock()
	return sample, nil
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) { _ = contexts.Sleep(ctx, d) }

// observerChain handles changes by observers: the handler of a column writes the
// next column of the same row.
type observerChain struct {
	url    string
	size   int
	db     *percolator.DB
	worker *percolator.Worker
	stop   context.CancelFunc
	ended  chan error
}

const chainTable = "chain"

// session tells the rows of this run from those of an earlier one on the same
// server.
var session = strconv.FormatInt(time.Now().UnixNano(), 36)

func chainRow(id int64) string { return fmt.Sprintf("%s-%012d", session, id) }

func chainColumn(step int) string { return fmt.Sprintf("step%02d", step) }

// start returns when the worker has nothing to do.
func (s *observerChain) start(ctx context.Context, depth, size int, done func(int64)) error {
	if err := s.launch(ctx, depth, size, done); err != nil {
		return err
	}
	return s.worker.WaitIdle(ctx)
}

// launch does not wait until the worker is idle. Beside changes that come as quickly as they can it may never be.
func (s *observerChain) launch(ctx context.Context, depth, size int, done func(int64)) error {
	s.size = size
	var observers []percolator.Observer
	for step := range depth {
		observers = append(observers, percolator.Observer{
			Name: chainColumn(step), Table: chainTable, Column: chainColumn(step),
			Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
				b, err := tx.Get(ctx, c)
				if err != nil {
					return err
				}
				return tx.Set(percolator.Cell{Table: c.Table, Row: c.Row, Column: chainColumn(step + 1)}, b)
			},
		})
	}
	err := s.ready(ctx, chainTable, chainColumn(depth), func(row string) {
		if id, err := strconv.ParseInt(row[len(row)-12:], 10, 64); err == nil {
			done(id)
		}
	}, reactiveWorkers, observers...)
	if err != nil {
		return err
	}
	s.begin(ctx)
	return nil
}

// run opens the store, starts a worker, and fills the store if that is asked for.
// committed is told of each commit of a column of a table in this process.
func (s *observerChain) run(ctx context.Context, table, column string, committed func(row string), fill func() error, observers ...percolator.Observer) error {
	if err := s.ready(ctx, table, column, committed, reactiveWorkers, observers...); err != nil {
		return err
	}
	s.begin(ctx)
	if fill != nil {
		if err := fill(); err != nil {
			return err
		}
	}
	return s.worker.WaitIdle(ctx)
}

// ready opens the store and makes a worker.
func (s *observerChain) ready(ctx context.Context, table, column string, committed func(row string), concurrency int, observers ...percolator.Observer) error {
	store, err := rowstore.Open(ctx, s.url)
	if err != nil {
		return err
	}
	watching := &commitWatch{Store: store, table: table, column: column, committed: committed}
	// The lease is how long the publication of an observer takes, and nothing that
	// is measured.
	s.db, err = percolator.New(ctx, watching, percolator.WithSettings(percolator.Settings{CatalogLease: time.Second}))
	if err != nil {
		return errors.Join(err, store.Close())
	}
	s.worker = percolator.NewWorker(s.db, percolator.WorkerConfig{Concurrency: concurrency})
	for _, o := range observers {
		if err := s.worker.Observe(o); err != nil {
			return err
		}
	}
	return nil
}

// begin lets the worker run.
func (s *observerChain) begin(ctx context.Context) {
	var running context.Context
	running, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.ended = make(chan error, 1)
	go func() { s.ended <- s.worker.Run(running) }()
}

// open opens the store alone, without a worker.
func (s *observerChain) open(ctx context.Context) (err error) {
	s.db, err = percolator.Open(ctx, s.url)
	return err
}

func (s *observerChain) change(ctx context.Context, id int64) error {
	return s.db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(percolator.Cell{Table: chainTable, Row: chainRow(id), Column: chainColumn(0)}, value(id, s.size))
	})
}

func (s *observerChain) close() error {
	var errs []error
	if s.stop != nil {
		s.stop()
		errs = append(errs, <-s.ended)
	}
	if s.db != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		errs = append(errs, s.db.Close(ctx))
	}
	return errors.Join(errs...)
}

// commitWatch is a store that tells when a column of a table was committed: when
// the call that did it returned, which is when the committer knows it.
type commitWatch struct {
	rowstore.Store
	table, column string
	committed     func(row string)
}

func (s *commitWatch) Apply(ctx context.Context, muts []rowstore.Mutation, opts rowstore.ApplyOptions) ([]rowstore.Outcome, error) {
	outs, err := s.Store.Apply(ctx, muts, opts)
	if err == nil {
		for i := range outs {
			if outs[i].Applied {
				s.tell(&muts[i])
			}
		}
	}
	return outs, err
}

func (s *commitWatch) tell(m *rowstore.Mutation) {
	if m.Table != s.table {
		return
	}
	for i := range m.Edits {
		e := &m.Edits[i]
		if e.Kind == rowstore.DoPut && e.Family == rowstore.Write && e.Column == s.column {
			s.committed(m.Row)
		}
	}
}

// Abilities implements rowstore.Decorator.
func (s *commitWatch) Abilities() rowstore.Abilities {
	return rowstore.Treatment{
		Grouper:         func(g rowstore.Grouper) rowstore.Grouper { return groupWatch{g, s} },
		Deferrer:        rowstore.Pass[rowstore.Deferrer],
		OracleProvider:  rowstore.Pass[rowstore.OracleProvider],
		SnapshotReader:  rowstore.Pass[rowstore.SnapshotReader],
		Splitter:        rowstore.Pass[rowstore.Splitter],
		Waker:           rowstore.Pass[rowstore.Waker],
		Limiter:         rowstore.Pass[rowstore.Limiter],
		SlotScanner:     rowstore.Pass[rowstore.SlotScanner],
		SnapshotScanner: rowstore.Pass[rowstore.SnapshotScanner],
		Sharder:         rowstore.Hide[rowstore.Sharder],
		Placer:          rowstore.Pass[rowstore.Placer],
		Reporter:        rowstore.Hide[rowstore.Reporter],
		Crasher:         rowstore.Hide[rowstore.Crasher],
	}.Of(s.Store)
}

type groupWatch struct {
	rowstore.Grouper
	watch *commitWatch
}

func (g groupWatch) Group(ctx context.Context, groups []rowstore.Group) ([]rowstore.GroupOutcome, error) {
	outs, err := g.Grouper.Group(ctx, groups)
	if err == nil {
		for i := range outs {
			if outs[i].Applied {
				for j := range groups[i].Mutations {
					g.watch.tell(&groups[i].Mutations[j])
				}
			}
		}
	}
	return outs, err
}
