package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/percolate-go/percolate/internal/contexts"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// Asking: a worker calls WaitIdle again and again, while workers of the crew end, are killed and come. Before each call it
// puts tokens on their way, which the crew's observers hand from table to table and from row to row. From then on until the call
// returns, nobody else commits anything. So when it returns, no notification may be left, and as many runs must have
// taken effect as the tokens had to make steps.
//
// No worker of the crew stands still meanwhile: one that lives without its lease is not asked.

const (
	passTable   = "pass"
	tablePassed = "passed" // a row for each step of each token: TOKEN:STEPS LEFT
	passTokens  = 4        // on their way at once
	passSteps   = 11       // that a token makes after its first
	askRounds   = 8
	askFor      = 30 * time.Second // after which no round begins
	askTimeout  = 90 * time.Second // far above what a crew takes that is killed once in a second
	askProcess  = "ask"
)

// passCell is where a token lies that has so many steps left. The rows are in no order.
func passCell(token string, left int) percolator.Cell {
	h := fnv.New32a()
	fmt.Fprint(h, token, left)
	return percolator.Cell{Table: half(passTable, left), Row: fmt.Sprintf("%03d:%s", h.Sum32()%1000, token), Column: "token"}
}

// passObservers are those of both tables. Each run leaves a row and hands the token on.
func passObservers() []percolator.Observer {
	var all []percolator.Observer
	for i := range 2 {
		all = append(all, percolator.Observer{
			Name: half(passTable, i), Table: half(passTable, i), Column: "token", Timeout: txnTimeout, MaxAttempts: 1 << 20,
			Func: func(ctx context.Context, tx *percolator.Txn, c percolator.Cell) error {
				t := &txn{Txn: tx, ctx: ctx}
				value, err := t.quiet(c.Table, c.Row, c.Column)
				if err != nil {
					return err
				}
				left, err := numberOf(value)
				if err != nil {
					return err
				}
				_, token, _ := strings.Cut(*value, "@")
				if err := t.put(tablePassed, token+":"+strconv.Itoa(left), "row", c.Row); err != nil || left == 0 {
					return err
				}
				return t.pass(token, left-1)
			},
		})
	}
	return all
}

// pass puts a token where it belongs.
func (t *txn) pass(token string, left int) error {
	c := passCell(token, left)
	return t.put(c.Table, c.Row, c.Column, numbered(left, token))
}

// askAgain does the rounds, and returns how many. wrong is told what was left when WaitIdle had returned.
func (p *process) askAgain(ctx context.Context, rounds int, wrong func(format string, args ...any)) (n int, err error) {
	c := workerConfig()
	c.Concurrency, c.MemberLease, c.GCInterval = 1, longestCrewLease, -1
	w, err := workerOf(p.db, c, passObservers())
	if err != nil {
		return 0, err
	}
	working, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(working) }()
	defer func() {
		stop()
		err = errors.Join(err, <-done)
	}()
	for began := time.Now(); n < rounds && (n == 0 || time.Since(began) < askFor); n++ {
		err := p.db.Update(ctx, func(tx *percolator.Txn) error {
			for k := range passTokens {
				if err := (&txn{Txn: tx, ctx: ctx}).pass(fmt.Sprintf("%s-%d-%d", p.Name, n, k), passSteps); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return n, fmt.Errorf("putting tokens on their way: %w", err)
		}
		if err := w.WaitIdle(ctx); err != nil {
			return n, fmt.Errorf("WaitIdle while the crew comes and goes: %w", err)
		}
		steps, left, err := p.passed(ctx)
		if err != nil {
			return n, err
		}
		if want := (n + 1) * passTokens * (passSteps + 1); steps != want || len(left) > 0 {
			wrong("WaitIdle has returned in round %d, and tokens have made %d steps of %d; notified are %v", n, steps, want, left)
			return n, nil
		}
	}
	return n, nil
}

// passed counts the steps that tokens have made, and lists the cells that are notified.
func (p *process) passed(ctx context.Context) (steps int, left []string, err error) {
	for i := range 2 {
		picks := []rowstore.Selector{{Family: rowstore.Notify, Column: "token", To: oracle.Max, Limit: 1}}
		for row, err := range p.db.Store().Scan(ctx, rowstore.ScanRange{Table: half(passTable, i), Selectors: picks}) {
			if err != nil {
				return 0, nil, err
			}
			left = append(left, half(passTable, i)+"/"+row.Row)
		}
	}
	err = p.db.View(ctx, func(tx *percolator.Txn) error {
		steps = 0
		for _, err := range tx.Scan(ctx, percolator.Range{Table: tablePassed}) {
			if err != nil {
				return err
			}
			steps++
		}
		return nil
	})
	return steps, left, err
}

// askCrew asks while the crew, and nobody else, comes and goes. The crew of an embedded store lives in the process that
// owns it, so there is none to ask beside.
func (r *run) askCrew(ctx context.Context) error {
	if r.Backend.embedded() || !slices.ContainsFunc(r.slots, inCrew) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	p, err := r.openDirect(ctx, askProcess)
	if err != nil {
		return err
	}
	harming, calm := context.WithCancel(ctx)
	harmed := make(chan struct{})
	go func() {
		defer close(harmed)
		r.replaceCrew(harming, rand.New(rand.NewPCG(r.Seed, 300)))
	}()
	began := time.Now()
	n, err := p.askAgain(ctx, askRounds, r.violation)
	calm()
	<-harmed
	r.say("WaitIdle has returned %d times while the crew came and went (%v)", n, time.Since(began).Round(time.Millisecond))
	return errors.Join(err, p.close(context.WithoutCancel(ctx)))
}

// replaceCrew ends and kills workers of the crew, as far as these faults were chosen, until the context ends.
func (r *run) replaceCrew(ctx context.Context, rng *rand.Rand) {
	chosen := slices.DeleteFunc(slices.Clone(r.faults), func(f fault) bool { return f.name != "crew-kill" && f.name != "crew-stop" })
	if len(chosen) == 0 {
		return
	}
	for contexts.Sleep(ctx, 250*time.Millisecond+time.Duration(rng.Int64N(int64(1500*time.Millisecond)))) == nil {
		f := chosen[rng.IntN(len(chosen))]
		// What was begun is undone, even if the time is up. It does not count: the run must have had enough before.
		if err := f.fire(context.WithoutCancel(ctx), r, rng); err != nil {
			r.say("%s: did not work: %v", f.name, err)
		} else {
			r.say("%s, while WaitIdle is asked", f.name)
		}
	}
}
