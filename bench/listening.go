package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// What it costs whoever commits changes that others listen. Each worker process has one connection that does; here one process has
// all of them, and hears of slots that are none of its own, as most of many do.

// listeningSpread is how many times the least rate of a side the greatest may be for others to be compared with it.
const listeningSpread = 2

// listeningRests is how many times as long as a run the server rests before it.
const listeningRests = 3

// listeningWarm is how many messages each connection that listens has heard before a run.
const listeningWarm = 10

// listeningSides are numbers of connections that listen.
var listeningSides = []int{0, 10, 100}

func listeningWorkload(kind string) Workload {
	return Workload{
		Name: "workers-listening-" + kind, Group: "workers", About: "commits on " + kind + " that notify, beside connections that listen as workers do",
		Goroutines: 16, Rows: 2, XAxis: "connections that listen", Chart: rateChart,
		Sides: func(cfg Config) ([]Side, error) {
			u, err := deployedURL(cfg, kind, "listening")
			on := &listening{url: u}
			var sides []Side
			for _, n := range listeningSides {
				sides = append(sides, &beside{listening: on, n: n})
			}
			return sides, err
		},
		Bars: func(s []Summary) []Bar {
			b := atLeast(fmt.Sprintf("commits per second beside %.0f connections that listen / beside none", last(s).X), last(s).Rate/s[0].Rate, 0.95, "")
			if s[0].RateMax > listeningSpread*s[0].RateMin {
				b.Reached, b.Unmeasured = false, fmt.Sprintf("beside none it was %s to %s", rate(s[0].RateMin), rate(s[0].RateMax))
			}
			return []Bar{b}
		},
	}
}

// listening changes a new row in each transaction.
type listening struct {
	url    string
	db     *percolator.DB
	made   atomic.Int64
	size   int
	closed bool
}

// beside is listening with so many connections that listen.
type beside struct {
	*listening
	n int
}

func (s *beside) Name() string             { return fmt.Sprintf("%d listen", s.n) }
func (s *beside) Point() (string, float64) { return "commits", float64(s.n) }
func (s *beside) Peer() string             { return "" }
func (s *beside) ServerURL() string        { return s.url }
func (s *beside) SelfMetered()             {}

func (s *beside) Prepare(ctx context.Context, cfg Config) (err error) {
	if s.db == nil {
		s.size = cfg.ValueSize
		s.db, err = publishDeployed(ctx, s.url)
	}
	return err
}

func (s *beside) Close() error {
	if s.db == nil || s.closed {
		return nil
	}
	s.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return s.db.Close(ctx)
}

func (s *beside) Op(ctx context.Context, _ *Caller) error {
	id := s.made.Add(1)
	return s.db.Update(ctx, func(tx *percolator.Txn) error {
		return tx.Set(percolator.Cell{Table: deployedTable, Row: fleetRow(id, 0), Column: deployedInput}, value(id, s.size))
	})
}

// Run implements Runner.
func (s *beside) Run(ctx context.Context, cfg Config, d time.Duration, repeat int) (_ Sample, err error) {
	sleep(ctx, listeningRests*d) // the server has yet to end the connections of the side before
	var h *helper
	if s.n > 0 {
		if h, err = startHelper(ctx, childTask{Kind: "listeners", URL: s.url, Depth: s.n}); err != nil {
			return Sample{}, err
		}
		defer h.kill()
		if err := s.warm(ctx, h); err != nil {
			return Sample{}, err
		}
	}
	meter := startMeter(s.url)
	sample, err := loop(ctx, s, cfg, d, repeat)
	if err != nil {
		return Sample{}, err
	}
	meter.stop(&sample)
	if h == nil {
		return sample, nil
	}
	return sample, h.finish()
}

// warm commits changes until each connection has heard of a few: what a server's session does once in its life is no part of what a message costs.
func (s *beside) warm(ctx context.Context, h *helper) error {
	for began := time.Now(); ; sleep(ctx, 10*time.Millisecond) {
		if err := s.Op(ctx, nil); err != nil {
			return err
		}
		switch least, err := askFor[int64](h); {
		case err != nil:
			return err
		case least >= listeningWarm:
			return nil
		case time.Since(began) > crewPatience || ctx.Err() != nil:
			return errors.Join(errors.New("not all who listen have heard of changes"), ctx.Err())
		}
	}
}

// doListeners is a child that is ready when its connections listen. With a line on its standard input it says how many messages the one
// that has heard the fewest has heard, and it ends with the end of its input.
func (t *childTask) doListeners(ctx context.Context, in *bufio.Reader) (err error) {
	store, err := rowstore.Open(ctx, t.URL)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var listen, ready sync.WaitGroup
	defer func() {
		stop()
		listen.Wait()
		err = errors.Join(err, store.Close())
	}()
	waker, ok := rowstore.Unwrap[rowstore.Waker](store)
	if !ok {
		return errors.New("the store has no push")
	}
	heard := make([]atomic.Int64, t.Depth)
	failed := make(chan error, t.Depth)
	for i := range heard {
		ready.Add(1)
		first := sync.OnceFunc(ready.Done)
		listen.Go(func() {
			defer first()
			if err := waker.Listen(ctx, func(at rowstore.Wake) {
				first() // the first call says that it listens
				if len(at.Slots) > 0 {
					heard[i].Add(1)
				}
			}); err != nil && ctx.Err() == nil {
				failed <- err
			}
		})
	}
	ready.Wait()
	fmt.Println("ready")
	for {
		if _, err := in.ReadString('\n'); err != nil {
			break
		}
		least := heard[0].Load()
		for i := range heard {
			least = min(least, heard[i].Load())
		}
		fmt.Println(least)
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}
