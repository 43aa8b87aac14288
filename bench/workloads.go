package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	_ "github.com/percolate-go/percolate/backends/all"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// workloads lists what can be measured. A further one is a further entry; a
// further peer is a further side of an entry.
func workloads() []Workload {
	return slices.Concat(embeddedWorkloads(), serverWorkloads(), reactiveWorkloads(), workersWorkloads(), deployedWorkloads(), sizeWorkloads(), recipesWorkloads(), tracingWorkloads(), garbageWorkloads(), timerWorkloads(), pageWorkloads(), paperWorkloads(), growthWorkloads())
}

// embeddedWorkloads are those that need no server.
func embeddedWorkloads() []Workload {
	return []Workload{
		{
			Name: "transfer", Group: "embedded", About: "transfers between two rows, synchronous commits",
			Goroutines: 64, Rows: 100_000,
			Sides: func(cfg Config) ([]Side, error) {
				url := storeOr(cfg, "pebble:"+filepath.Join(cfg.Dir, "transfer-pebble"))
				return []Side{&transfer{name: "percolator on " + scheme(url), url: url}, &badgerTransfer{}, &bboltTransfer{}}, nil
			},
			Bars: func(s []Summary) []Bar {
				return []Bar{atLeast("percolator / badger, transfers per second", s[0].Rate/s[1].Rate, 1, "")}
			},
		},
		{
			Name: "lone", Group: "embedded", About: "one transaction at a time that reads a cell and writes it, in memory",
			Goroutines: 1, Rows: 10_000,
			Sides: func(cfg Config) ([]Side, error) {
				url := storeOr(cfg, "memory:")
				return []Side{&oneCell{name: "percolator on " + scheme(url), url: url, read: true, write: true}, &barePebble{}}, nil
			},
			Bars: func(s []Summary) []Bar {
				return []Bar{atMost("median time of a transaction / of pebble's Get and batch commit", s[0].P50/s[1].P50, 5, "")}
			},
		},
		{
			Name: "oracle", Group: "embedded", About: "timestamps from the in-process oracle",
			Goroutines: 64, Rows: 2,
			Sides: func(cfg Config) ([]Side, error) {
				url := storeOr(cfg, "memory:")
				return []Side{&draws{url: url}}, nil
			},
			Bars: func(s []Summary) []Bar {
				return []Bar{atLeast("timestamps per second", s[0].Rate/1e6, 5, "million/s")}
			},
		},
		{
			Name: "find", Group: "embedded", About: "finding 1,000 notifications in a table",
			Goroutines: 1, Rows: 1_000_000,
			Sides: func(cfg Config) ([]Side, error) {
				few := min(10_000, cfg.Rows)
				return []Side{
					&find{rows: cfg.Rows, url: storeOr(cfg, "pebble:"+filepath.Join(cfg.Dir, "find-many"))},
					&find{rows: few, url: storeOr(cfg, "pebble:"+filepath.Join(cfg.Dir, "find-few"))},
				}, nil
			},
			Bars: func(s []Summary) []Bar {
				return []Bar{atMost("median time among many rows / among few", s[0].P50/s[1].P50, 1.5, "")}
			},
		},
		{
			Name: "observe", Group: "embedded", About: "from the return of a commit to the start of the observer, idle system",
			Goroutines: 1, Rows: 1000,
			Sides: func(cfg Config) ([]Side, error) {
				url := storeOr(cfg, "pebble:"+filepath.Join(cfg.Dir, "observe"))
				return []Side{&observed{name: "percolator on " + scheme(url), url: url}}, nil
			},
			Bars: func(s []Summary) []Bar {
				return []Bar{atMost("median", s[0].P50/1e3, 2, "ms")}
			},
		},
	}
}

// storeOr is the store that -store names, else the workload's own.
func storeOr(cfg Config, url string) string {
	if cfg.Store != "" {
		return cfg.Store
	}
	return url
}

func scheme(url string) string {
	for i, c := range url {
		if c == ':' {
			return url[:i]
		}
	}
	return url
}

const (
	benchTable  = "bench"
	benchColumn = "v"
	fillBatch   = 500 // rows written at once while a side is prepared
	fillTxn     = 100 // rows that a transaction writes: with 500, a busy machine takes longer than the MaxTxnAge of gc-*
	fillers     = 4   // such transactions at a time
)

func rowName(i int) string { return fmt.Sprintf("row%09d", i) }

func cell(i int) percolator.Cell {
	return percolator.Cell{Table: benchTable, Row: rowName(i), Column: benchColumn}
}

// value makes a value of the configured size that starts with a number.
func value(n int64, size int) []byte {
	b := make([]byte, size)
	copy(b, strconv.FormatInt(n, 10))
	return b
}

// number reads what value wrote.
func number(b []byte) (int64, error) {
	end := 0
	for end < len(b) && b[end] != 0 {
		end++
	}
	return strconv.ParseInt(string(b[:end]), 10, 64)
}

// fill writes rows through transactions.
func fill(ctx context.Context, db *percolator.DB, rows, size int) error {
	return fillCells(ctx, db, rows, func(i int) (percolator.Cell, []byte) { return cell(i), value(1000, size) })
}

// fillTries is how often a transaction of fillCells may be too old to commit.
const fillTries = 10

// fillCells writes n cells through transactions. It prepares and measures nothing: a transaction that a busy machine
// makes too old for the short MaxTxnAge of gc-* is begun again.
func fillCells(ctx context.Context, db *percolator.DB, n int, what func(i int) (percolator.Cell, []byte)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fillers)
	for from := 0; from < n; from += fillTxn {
		g.Go(func() error {
			err := percolator.ErrTxnTooOld
			for try := 0; try < fillTries && errors.Is(err, percolator.ErrTxnTooOld); try++ {
				err = db.Update(ctx, func(tx *percolator.Txn) error {
					for i := from; i < min(n, from+fillTxn); i++ {
						if err := tx.Set(what(i)); err != nil {
							return err
						}
					}
					return nil
				})
			}
			if err != nil {
				return fmt.Errorf("fill rows from %d on: %w", from, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// onDB is the common part of the sides that use a DB.
type onDB struct {
	db *percolator.DB
	at string // the URL
}

func (s *onDB) open(ctx context.Context, url string, opts ...percolator.Option) error {
	db, err := percolator.Open(ctx, url, opts...)
	s.db, s.at = db, url
	return err
}

// ServerURL implements Server.
func (s *onDB) ServerURL() string { return s.at }

func (s *onDB) Peer() string { return "" }

func (s *onDB) Close() error {
	if s.db == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.db.Close(ctx)
}

// transfer moves 1 between two rows.
type transfer struct {
	onDB
	name, url string
	atMost    int // rows, where it is not 0
	rows      int
	size      int
}

func (s *transfer) Name() string { return s.name }

func (s *transfer) Prepare(ctx context.Context, cfg Config) error {
	s.rows, s.size = cfg.Rows, cfg.ValueSize
	if s.atMost > 0 {
		s.rows = min(s.rows, s.atMost)
	}
	if err := s.open(ctx, s.url); err != nil {
		return err
	}
	return fill(ctx, s.db, s.rows, s.size)
}

func (s *transfer) Op(ctx context.Context, w *Caller) error {
	a, b := w.two(s.rows)
	from, to := cell(a), cell(b)
	attempts := int64(0)
	err := s.db.Update(ctx, func(tx *percolator.Txn) error {
		attempts++
		values, err := tx.GetMany(ctx, from, to)
		if err != nil {
			return err
		}
		x, err := number(values[from])
		if err != nil {
			return err
		}
		y, err := number(values[to])
		if err != nil {
			return err
		}
		if err := tx.Set(from, value(x-1, s.size)); err != nil {
			return err
		}
		return tx.Set(to, value(y+1, s.size))
	})
	w.Conflicts += attempts - 1
	return err
}

// oneCell reads a cell, writes one, or does both, in one transaction.
type oneCell struct {
	onDB
	name, url   string
	read, write bool
	rows        int // 0 for those of -rows
	size        int // 0 for that of -value
}

func (s *oneCell) Name() string { return s.name }

func (s *oneCell) Prepare(ctx context.Context, cfg Config) error {
	if s.rows == 0 {
		s.rows = cfg.Rows
	}
	if s.size == 0 {
		s.size = cfg.ValueSize
	}
	if err := s.open(ctx, s.url); err != nil {
		return err
	}
	return fill(ctx, s.db, s.rows, s.size)
}

func (s *oneCell) Op(ctx context.Context, w *Caller) error {
	c := cell(w.row(s.rows))
	if !s.write {
		return s.db.View(ctx, func(tx *percolator.Txn) error {
			_, err := tx.Get(ctx, c)
			return err
		})
	}
	n, attempts := w.Rand.Int64N(1000), int64(0)
	err := s.db.Update(ctx, func(tx *percolator.Txn) error {
		attempts++
		if s.read {
			b, err := tx.Get(ctx, c)
			if err != nil {
				return err
			}
			if n, err = number(b); err != nil {
				return err
			}
		}
		return tx.Set(c, value(n+1, s.size))
	})
	w.Conflicts += attempts - 1
	return err
}

// draws takes timestamps one at a time.
type draws struct {
	url   string
	one   bool // draws one at a time for the harness's clock too
	store rowstore.Store
	from  rowstore.OracleProvider
}

// drawsPerOp makes the harness's own clock and histogram small beside the draws of
// an oracle in the process.
const drawsPerOp = 100

func (s *draws) Name() string      { return "oracle of " + scheme(s.url) }
func (s *draws) Peer() string      { return "" }
func (s *draws) ServerURL() string { return s.url }

func (s *draws) Prepare(ctx context.Context, _ Config) (err error) {
	if s.store, err = rowstore.Open(ctx, s.url); err != nil {
		return err
	}
	var ok bool
	if s.from, ok = rowstore.Unwrap[rowstore.OracleProvider](s.store); !ok {
		return fmt.Errorf("the store %s has no oracle of its own", scheme(s.url))
	}
	return nil
}

func (s *draws) Op(ctx context.Context, w *Caller) error {
	o := s.from.Oracle()
	if !s.one {
		w.Units = drawsPerOp
	}
	var last rowstore.Timestamp
	for range w.Units {
		ts, err := o.Draw(ctx, 1)
		if err != nil {
			return err
		}
		if ts <= last {
			return fmt.Errorf("timestamp %d after %d", ts, last)
		}
		last = ts
	}
	return nil
}

func (s *draws) Close() error {
	if s.store == nil {
		return nil
	}
	return s.store.Close()
}

// find scans a table for notifications, as a worker does.
type find struct {
	url           string
	rows          int
	notifications int // 0 for 1,000
	store         rowstore.Store
}

func (s *find) Name() string      { return fmt.Sprintf("among %d rows", s.rows) }
func (s *find) Peer() string      { return "" }
func (s *find) ServerURL() string { return s.url }

// Prepare writes committed cells below the transactions: this measures the store's
// scan, and a million transactions would only take long. The rows with a
// notification are spread over the table.
func (s *find) Prepare(ctx context.Context, cfg Config) (err error) {
	if s.store, err = rowstore.Open(ctx, s.url); err != nil {
		return err
	}
	if s.notifications == 0 {
		s.notifications = 1000
	}
	if s.rows < s.notifications {
		return fmt.Errorf("%d rows are fewer than the %d notifications", s.rows, s.notifications)
	}
	const ts = rowstore.Timestamp(1) << 60
	every := s.rows / s.notifications
	written := 0
	for from := 0; from < s.rows; from += 2 * fillBatch {
		var muts []rowstore.Mutation
		for i := from; i < min(s.rows, from+2*fillBatch); i++ {
			edits := []rowstore.Edit{rowstore.Put(rowstore.Write, benchColumn, ts, value(int64(i), cfg.ValueSize))}
			if i%every == 0 && written < s.notifications {
				edits = append(edits, rowstore.Put(rowstore.Notify, benchColumn, ts, []byte{1}))
				written++
			}
			muts = append(muts, rowstore.Mutation{Table: s.table(), Row: rowName(i), Edits: edits})
		}
		outcomes, err := s.store.Apply(ctx, muts, rowstore.ApplyOptions{})
		if err != nil {
			return err
		}
		for _, o := range outcomes {
			if o.Err != nil || !o.Applied {
				return fmt.Errorf("fill rows from %d on: %+v", from, o)
			}
		}
	}
	return nil
}

// table keeps the two sides apart where -store names one store for both.
func (s *find) table() string { return fmt.Sprintf("find%d-%d", s.rows, s.notifications) }

func (s *find) Op(ctx context.Context, _ *Caller) error {
	found := 0
	picks := []rowstore.Selector{{Family: rowstore.Notify, From: 0, To: rowstore.Timestamp(1)<<63 - 1}}
	for _, err := range s.store.Scan(ctx, rowstore.ScanRange{Table: s.table(), Selectors: picks}) {
		if err != nil {
			return err
		}
		found++
	}
	if found != s.notifications {
		return fmt.Errorf("found %d notifications of %d", found, s.notifications)
	}
	return nil
}

func (s *find) Close() error {
	if s.store == nil {
		return nil
	}
	return s.store.Close()
}

// observed commits a change and waits for the observer to start.
type observed struct {
	onDB
	name, url string
	rows      int
	size      int
	started   chan time.Time
	worker    *percolator.Worker
	stop      context.CancelFunc
	ended     chan error
}

func (s *observed) Name() string { return s.name }

// Callers is one whatever -goroutines says: what is measured is an idle system, and
// of several callers one would take the start of another's run for its own.
func (s *observed) Callers() int { return 1 }

func (s *observed) Prepare(ctx context.Context, cfg Config) error {
	s.rows, s.size = cfg.Rows, cfg.ValueSize
	// The lease is how long the publication of an observer takes; a short one
	// changes nothing that is measured.
	settings := percolator.WithSettings(percolator.Settings{CatalogLease: 100 * time.Millisecond})
	if err := s.open(ctx, s.url, settings); err != nil {
		return err
	}
	s.started = make(chan time.Time, 1)
	s.worker = percolator.NewWorker(s.db, percolator.WorkerConfig{})
	err := s.worker.Observe(percolator.Observer{
		Name: "bench", Table: benchTable, Column: benchColumn,
		Func: func(context.Context, *percolator.Txn, percolator.Cell) error {
			select {
			case s.started <- time.Now():
			default: // a run of the filling, or one that runs again
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	var running context.Context
	running, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.ended = make(chan error, 1)
	go func() { s.ended <- s.worker.Run(running) }()
	if err := fill(ctx, s.db, s.rows, s.size); err != nil {
		return err
	}
	return s.worker.WaitIdle(ctx)
}

func (s *observed) Op(ctx context.Context, w *Caller) error {
	// An idle system: the last run has committed, too.
	if err := s.worker.WaitIdle(ctx); err != nil {
		return err
	}
	select {
	case <-s.started:
	default:
	}
	c := cell(w.Rand.IntN(s.rows))
	err := s.db.Update(ctx, func(tx *percolator.Txn) error { return tx.Set(c, value(w.Rand.Int64N(1000), s.size)) })
	if err != nil {
		return err
	}
	committed := time.Now()
	select {
	case at := <-s.started:
		// The observer may start before the committer has its answer.
		w.Took = max(at.Sub(committed), 1)
		return nil
	case <-time.After(30 * time.Second):
		return errors.New("the observer did not start within 30 s")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *observed) Close() error {
	var err error
	if s.stop != nil {
		s.stop()
		err = <-s.ended
	}
	return errors.Join(err, s.onDB.Close())
}
