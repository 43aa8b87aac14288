package explore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// ObserverName is what a column's observer is called where a Program names none.
func ObserverName(column string) string { return "o " + column }

// seenBy is the cell that a run of an observer for a cell writes.
func seenBy(name string, cell percolator.Cell) percolator.Cell {
	cell.Column += " seen by " + name
	return cell
}

func (c *Client) isDead() bool {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.dead
}

// Begin starts a transaction that is recorded, and that the program ends itself, with
// Finish or Abandon.
func (c *Client) Begin(ctx context.Context, opts ...percolator.TxnOption) (*Txn, error) {
	r := c.newRecord()
	r.began = c.w.history.event()
	inner, err := c.DB.Begin(ctx, opts...)
	if err != nil {
		r.outcome = aborted
		return nil, err
	}
	r.start = startOf(ctx, inner)
	return &Txn{inner, c, r}, nil
}

// Finish commits a transaction of Begin.
func (tx *Txn) Finish(ctx context.Context) error {
	tx.rec.decided = tx.c.w.history.event()
	err := tx.Commit(ctx)
	tx.rec.conclude(tx.c, tx.Txn, err)
	return err
}

// Abandon rolls a transaction of Begin back.
func (tx *Txn) Abandon(ctx context.Context) error {
	tx.rec.outcome = aborted
	return tx.Rollback(ctx)
}

// Visit scans a table and calls do with each row that it is given, whose cells it
// records as read before. do may end the transaction; the loop goes on until do says
// otherwise.
func (tx *Txn) Visit(ctx context.Context, table string, do func(row percolator.Row) (more bool)) error {
	for row, err := range tx.Scan(ctx, percolator.Range{Table: table}) {
		if err != nil {
			return err
		}
		for column, v := range row.Columns {
			cell := percolator.Cell{Table: table, Row: row.Key, Column: column}
			if !slices.Contains(tx.rec.writes, cell) {
				tx.rec.reads[cell] = string(v)
			}
		}
		if !do(row) {
			return nil
		}
	}
	return nil
}

// patience is the key of what ends the context of an impatient caller.
type patience struct{}

// Impatient returns a context that the Cancel fault may end at any call which is made
// with it.
func (c *Client) Impatient(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	return context.WithValue(ctx, patience{}, cancel), cancel
}

// Ask asks for the outcome of a transaction by one of its cells. The judge compares the
// answer with what became of it.
func (c *Client) Ask(ctx context.Context, start percolator.Timestamp, cell percolator.Cell) error {
	got, err := c.DB.Outcome(ctx, start, cell)
	if err != nil {
		return err
	}
	h := &c.w.history
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answers = append(h.answers, answer{start, cell, got})
	return nil
}

// AskAbout asks for the outcome that an UndeterminedError leaves open, and for nothing
// after any other error.
func (c *Client) AskAbout(ctx context.Context, err error) error {
	var open *percolator.UndeterminedError
	if !errors.As(err, &open) {
		return nil
	}
	return c.Ask(ctx, open.Start, open.Primary)
}

// Complain says that the client has seen what may not be. The judge fails the run.
func (c *Client) Complain(err error) {
	h := &c.w.history
	h.mu.Lock()
	defer h.mu.Unlock()
	h.complaints = append(h.complaints, fmt.Errorf("%s: %w", c.Name, err))
}

// Started returns the start timestamps of transactions that other clients have begun
// and made known by them (see Txn.Announce), oldest first.
func (c *Client) Started(ctx context.Context) ([]percolator.Timestamp, error) {
	// A call of its own, so that what is seen here depends on the schedule alone.
	if _, err := c.DB.Now(ctx); err != nil {
		return nil, err
	}
	h := &c.w.history
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []percolator.Timestamp
	for _, r := range h.records {
		if r.announced {
			all = append(all, r.start)
		}
	}
	return all, nil
}

// Announce makes the transaction's start timestamp known to other clients.
func (tx *Txn) Announce(ctx context.Context) {
	start := startOf(ctx, tx.Txn)
	h := &tx.c.w.history
	h.mu.Lock()
	defer h.mu.Unlock()
	tx.rec.start, tx.rec.announced = start, start != 0
}

// Glance runs a worker with the observers for d: it looks once when it starts, and
// then each second, as soon as everybody waits for the time to pass. How its own
// looks interleave is little beside what Work does, so that programs with one can be
// explored completely.
func (c *Client) Glance(ctx context.Context, d time.Duration, observers ...percolator.Observer) error {
	return c.run(ctx, glances, observers, func(ctx context.Context, _ *percolator.Worker) error { return c.Sleep(ctx, d) })
}

// Work runs a worker with the observers until nothing is left for them.
func (c *Client) Work(ctx context.Context, observers ...percolator.Observer) error {
	return c.run(ctx, percolator.WorkerConfig{GCInterval: -1}, observers, func(ctx context.Context, w *percolator.Worker) error {
		return c.waitIdle(ctx, w, observers)
	})
}

// Attend is Glance, and then waits until nothing is left for the observers.
func (c *Client) Attend(ctx context.Context, d time.Duration, observers ...percolator.Observer) error {
	return c.run(ctx, glances, observers, func(ctx context.Context, w *percolator.Worker) error {
		if err := c.Sleep(ctx, d); err != nil {
			return err
		}
		return c.waitIdle(ctx, w, observers)
	})
}

// Await is Attend with a worker that looks only when it is told of something, as by WaitIdle.
func (c *Client) Await(ctx context.Context, d time.Duration, observers ...percolator.Observer) error {
	config := glances
	config.Poll = percolator.Backoff{Min: time.Hour, Max: time.Hour}
	return c.run(ctx, config, observers, func(ctx context.Context, w *percolator.Worker) error {
		if err := c.Sleep(ctx, d); err != nil {
			return err
		}
		return c.waitIdle(ctx, w, observers)
	})
}

// Accompany is Glance until every other client has ended.
func (c *Client) Accompany(ctx context.Context, observers ...percolator.Observer) error {
	return c.run(ctx, glances, observers, c.until(c.isAlone))
}

// Outlast runs a worker of that configuration until the first client of the program has ended, or until d has passed.
func (c *Client) Outlast(ctx context.Context, config percolator.WorkerConfig, d time.Duration, observers ...percolator.Observer) error {
	ends := c.w.time().Add(d)
	return c.run(ctx, config, observers, c.until(func() bool {
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		return c.w.clients[0].ended || c.w.clients[0].dead || !c.w.now.Before(ends)
	}))
}

// until waits while it looks once a second.
func (c *Client) until(done func() bool) func(context.Context, *percolator.Worker) error {
	return func(ctx context.Context, _ *percolator.Worker) error {
		for !done() {
			if err := c.Sleep(ctx, time.Second); err != nil {
				return err
			}
		}
		return nil
	}
}

func (c *Client) isAlone() bool {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return !slices.ContainsFunc(c.w.clients, func(o *Client) bool { return o != c && !o.ended && !o.dead })
}

// glances is a worker that looks seldom.
var glances = percolator.WorkerConfig{GCInterval: -1, Concurrency: 1, Poll: percolator.Backoff{Min: time.Second, Max: time.Second}}

// run runs a worker with the observers for as long as do takes.
func (c *Client) run(ctx context.Context, config percolator.WorkerConfig, observers []percolator.Observer, do func(context.Context, *percolator.Worker) error) error {
	c.works(observers)
	w := percolator.NewWorker(c.DB, config)
	for _, o := range observers {
		if err := w.Observe(o); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = w.Run(ctx) })
	did := do(ctx, w)
	cancel()
	wg.Wait()
	return errors.Join(did, err)
}
