package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/internal/coretest"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
	"github.com/percolate-go/percolate/percolator/rowstore/router"
)

// childVariable holds the configuration of a process that the parent started.
const childVariable = "PERCOLATOR_TORTURE_CHILD"

// childConfig is the configuration of a process. The process ends when its standard
// input ends, which also happens when the parent dies. A line "jump N" there makes its
// oracle skip N milliseconds, "stranger N" makes it write members as a stranger would, and
// "calm" ends the naps of the crew's functions.
type childConfig struct {
	Name       string        `json:"name"` // unique in the run
	Dir        string        `json:"dir"`  // of the logs
	URLs       []string      `json:"urls"` // of the store, or of two: see openStore
	Seed       uint64        `json:"seed"`
	Threads    int           `json:"threads"`  // that run transactions
	Pace       time.Duration `json:"pace"`     // of each thread: the mean time from one transaction to the next
	Worker     bool          `json:"worker"`   // runs observers
	Crew       int           `json:"crew"`     // workers of the crew that it runs
	CrewSet    int           `json:"crew_set"` // of relaySets, the first of them
	Stays      bool          `json:"stays"`    // these come and go, and not the process
	Workloads  string        `json:"workloads"`
	Began      int64         `json:"began"` // of the run
	WrongClock time.Duration `json:"wrong_clock"`
	Commits    string        `json:"commits"` // "", "two-phase" or "groups"
}

// settings are stored with the data of a run. The leases are short, so that much
// happens in a short run. No fault delays a request by as much as the catalog lease.
func settings() percolator.Settings {
	return percolator.Settings{MaxTxnAge: time.Minute, Retention: 90 * time.Second, CatalogLease: 10 * time.Second}
}

const (
	sessionLease = 2 * time.Second
	lockExpiry   = 3 * time.Second
	// A collection also waits for one catalog lease, and few processes live much longer.
	gcInterval = 2 * time.Second
)

func dbOptions(c *childConfig, log *slog.Logger) []percolator.Option {
	opts := []percolator.Option{
		percolator.WithSettings(settings()), percolator.WithSessionLease(sessionLease),
		percolator.WithLockExpiry(lockExpiry), percolator.WithLogger(log), coretest.WithSeed(c.Seed | 1),
	}
	if c.WrongClock != 0 {
		opts = append(opts, percolator.WithClock(wrongClock{c.WrongClock}))
	}
	switch c.Commits {
	case "two-phase":
		opts = append(opts, coretest.WithoutGroups())
	case "groups":
		opts = append(opts, coretest.WithoutOnePhase())
	}
	return opts
}

// openStore opens the store of a URL. For two URLs it opens one store over both: the
// first is the authoritative one, and half of the tables lie in the other.
func openStore(ctx context.Context, urls []string) (rowstore.Store, error) {
	first, err := rowstore.Open(ctx, urls[0])
	if err != nil || len(urls) == 1 {
		return first, err
	}
	second, err := rowstore.Open(ctx, urls[1])
	if err != nil {
		return nil, errors.Join(err, first.Close())
	}
	elsewhere := map[string]string{tableRuns: "second", tableLinks: "second"}
	for _, w := range workloads() {
		elsewhere[half(w.name, 1)] = "second"
	}
	elsewhere[tableRelayRuns], elsewhere[half(passTable, 1)] = "second", "second"
	router, err := router.New(router.Config{
		Stores: map[string]rowstore.Store{"first": first, "second": second},
		Tables: elsewhere, Default: "first", Authoritative: "first",
	})
	if err != nil {
		return nil, errors.Join(err, first.Close(), second.Close())
	}
	return router, nil
}

func openDB(ctx context.Context, c *childConfig, log *slog.Logger) (*percolator.DB, error) {
	store, err := openStore(ctx, c.URLs)
	if err != nil {
		return nil, err
	}
	db, err := percolator.New(ctx, store, dbOptions(c, log)...)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return db, nil
}

// wrongClock is a clock that is wrong by a fixed time.
type wrongClock struct{ by time.Duration }

func (c wrongClock) Now() time.Time { return time.Now().Add(c.by) }

func (c wrongClock) Sleep(ctx context.Context, d time.Duration) error { return contexts.Sleep(ctx, d) }

// childMain is main of a process that the parent started.
func childMain(config string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return fmt.Errorf("the configuration: %w", err)
	}
	chosen, err := chooseWorkloads(c.Workloads)
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGINT) // a terminal sends it to all; the parent says when to end
	journal, err := openJournal(filepath.Join(c.Dir, c.Name+logSuffix))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	commands := make(chan string)
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			select {
			case commands <- in.Text():
			case <-ctx.Done():
				return
			}
		}
		stop()
	}()
	p := &process{childConfig: c, log: journal, chosen: chosen}
	err = p.run(ctx, commands)
	return errors.Join(err, journal.close())
}

// process runs transactions and observers until it is told to end.
type process struct {
	childConfig
	log    *journal
	chosen []workload
	db     *percolator.DB
	calm   atomic.Bool // the crew's functions take no time
}

func (p *process) run(ctx context.Context, commands <-chan string) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("process", p.Name)
	// The store may be down just now.
	for {
		attempt, cancel := context.WithTimeout(ctx, txnTimeout)
		db, err := openDB(attempt, &p.childConfig, logger)
		cancel()
		if err == nil {
			p.db = db
			break
		}
		logger.Warn("opening", "err", err)
		if contexts.Sleep(ctx, 100*time.Millisecond) != nil {
			return nil
		}
	}
	p.log.write(line{Kind: lineOpen})
	var work sync.WaitGroup
	var workErr error
	if p.Worker {
		work.Go(func() { workErr = p.work(ctx) })
	}
	crewErrs := make([]error, p.Crew)
	for n := range p.Crew {
		work.Go(func() { crewErrs[n] = p.crew(ctx, n) })
	}
	for g := range p.Threads {
		work.Go(func() { p.thread(ctx, g) })
	}
	work.Go(func() { p.tell(ctx) })
	work.Go(func() {
		for {
			select {
			case c := <-commands:
				p.obey(ctx, c, logger)
			case <-ctx.Done():
				return
			}
		}
	})
	work.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err := p.db.Close(closing)
	stats := p.db.Stats()
	p.log.write(line{Kind: lineStats, Stats: &stats})
	return errors.Join(append(crewErrs, workErr, err)...)
}

// closeTimeout bounds a process's Close, when no fault is left.
const closeTimeout = 40 * time.Second

func workerConfig() percolator.WorkerConfig {
	return percolator.WorkerConfig{
		Concurrency: 8, Backoff: percolator.Backoff{Min: 20 * time.Millisecond, Max: time.Second},
		Rescan: time.Second, GCInterval: gcInterval, StopTimeout: 5 * time.Second,
	}
}

func workerOf(db *percolator.DB, c percolator.WorkerConfig, all []percolator.Observer) (*percolator.Worker, error) {
	w := percolator.NewWorker(db, c)
	for _, o := range all {
		if err := w.Observe(o); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (p *process) work(ctx context.Context) error {
	w, err := workerOf(p.db, workerConfig(), observers(p.log, p.chosen))
	if err != nil {
		return err
	}
	if err := w.Run(ctx); err != nil {
		p.log.write(line{Kind: lineBad, Text: "the worker ended by itself: " + err.Error()})
		return err
	}
	return nil
}

func (p *process) newThread(g int) *thread {
	return &thread{
		db: p.db, log: p.log, id: g, tag: fmt.Sprintf("%s.%d", p.Name, g),
		rng:   rand.New(rand.NewPCG(p.Seed, uint64(g))),
		clock: func() time.Time { return time.Now().Add(p.WrongClock) },
	}
}

// thread runs transactions.
func (p *process) thread(ctx context.Context, g int) {
	s := p.newThread(g)
	weights := 0
	for _, w := range p.chosen {
		weights += w.weight
	}
	for ctx.Err() == nil {
		if contexts.Sleep(ctx, time.Duration(s.rng.Float64()*2*float64(p.Pace))) != nil {
			return
		}
		n := s.rng.IntN(weights)
		i := 0
		for n >= p.chosen[i].weight {
			n -= p.chosen[i].weight
			i++
		}
		// The error is in the log; the parent judges at the end what it means. The thread
		// ends a transaction that it began, whatever the parent says meanwhile.
		_ = p.chosen[i].step(context.WithoutCancel(ctx), s, time.Duration(monotonic()-p.Began))
	}
}

// tell logs the counts from time to time, because a process that is killed cannot do
// so at its end.
func (p *process) tell(ctx context.Context) {
	for contexts.Sleep(ctx, 200*time.Millisecond) == nil {
		stats := p.db.Stats()
		p.log.write(line{Kind: lineStats, Stats: &stats})
	}
}

func (p *process) obey(ctx context.Context, command string, logger *slog.Logger) {
	if ms, ok := strings.CutPrefix(command, "jump "); ok {
		n, err := strconv.Atoi(ms)
		if err == nil {
			err = jump(ctx, p.db.Store(), n)
		}
		if err != nil {
			logger.Warn("command", "command", command, "err", err)
		}
		return
	}
	if command == commandCalm {
		p.calm.Store(true)
		return
	}
	if text, ok := strings.CutPrefix(command, "stranger "); ok {
		seed, _ := strconv.ParseUint(text, 10, 64) // the parent wrote it
		p.obeyStranger(ctx, seed, logger)
		return
	}
	logger.Warn("unknown command", "command", command)
}

// jump makes the oracle skip some milliseconds. It draws all timestamps of them.
func jump(ctx context.Context, store rowstore.Store, ms int) error {
	p, ok := rowstore.Unwrap[rowstore.OracleProvider](store)
	if !ok {
		return errors.New("the store has no oracle of its own")
	}
	ctx, cancel := context.WithTimeout(ctx, txnTimeout)
	defer cancel()
	const most = 1000 // in one draw
	for ; ms > 0; ms -= most {
		if _, err := p.Oracle().Draw(ctx, min(ms, most)<<oracle.LogicalBits); err != nil {
			return err
		}
	}
	return nil
}
