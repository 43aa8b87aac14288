package explore

import (
	"context"
	"errors"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// timed has the observer registered, and everybody know of timers.
func timed(ctx context.Context, c *Client) error {
	err := registered(ctx, c)
	if err == nil {
		err = c.Update(ctx, func(tx *Txn) error { return errors.Join(tx.Write(aside), tx.SetTimer(a, 0), tx.StopTimer(a)) })
	}
	if err == nil {
		err = c.Update(ctx, func(tx *Txn) error { return tx.SetTimer(b, 0) })
	}
	return errors.Join(err, c.Sleep(ctx, stall), registered(ctx, c))
}

// armed has a timer of a set besides.
func armed(ahead time.Duration) func(ctx context.Context, c *Client) error {
	return func(ctx context.Context, c *Client) error {
		if err := timed(ctx, c); err != nil {
			return err
		}
		return c.Update(ctx, func(tx *Txn) error { return tx.SetTimer(a, ahead) })
	}
}

// arms sets the timer of a, and writes other cells.
func arms(ahead time.Duration, written ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Update(ctx, func(tx *Txn) error {
			for _, cell := range written {
				if err := tx.Write(cell); err != nil {
					return err
				}
			}
			return tx.SetTimer(a, ahead)
		})
	}
}

// disarms takes the timer of a back.
func disarms(ctx context.Context, c *Client) {
	_ = c.Update(ctx, func(tx *Txn) error { return tx.StopTimer(a) })
}

// rearms is a glancer whose function sets the timer once more.
func rearms(ctx context.Context, c *Client) {
	again := true
	_ = c.Glance(ctx, 2500*time.Millisecond, c.Observer("o v", "t", "v", func(_ context.Context, tx *Txn, cell percolator.Cell) error {
		if !again {
			return nil
		}
		again = false
		return tx.SetTimer(cell, time.Second)
	}))
}

// timersAhead is the time ahead of a timer that the index tells of.
const timersAhead = 40 * time.Second

// timers are programs of timers.
func timers() []program {
	on := func(name string, setup func(context.Context, *Client) error, budget Budget, options []percolator.Option, how how, all ...func(context.Context, *Client)) program {
		return program{Program{Name: "timer, " + name, Options: options, Settings: brief, Setup: setup, Clients: all, Observed: []percolator.Cell{a}, Budget: budget, Settle: 2 * timersAhead}, how}
	}
	return []program{
		on("due now, one-phase, crash", timed, die, onePhase, bounded, arms(0, aside), glancer),
		on("due now, one-phase, lost reply", timed, lose, onePhase, bounded, arms(0, aside), glancer),
		on("due now, 2PC, crash and expiry", timed, Budget{Die: 1, Expire: 1}, plain2PC, bounded, arms(0, b), glancer),
		on("due soon and a change", timed, Budget{Die: 1}, onePhase, bounded, arms(time.Second), writer(a), glancer),
		on("due soon, 2PC, and a change", timed, Budget{Die: 1, Expire: 1}, plain2PC, sparse, arms(time.Second, b), writer(a), glancer),
		on("due against cancel", armed(0), Budget{Die: 1}, onePhase, bounded, disarms, glancer),
		on("due against cancel, 2PC", armed(0), Budget{Die: 1, Expire: 1}, plain2PC, bounded, disarms, glancer),
		on("due against another time", armed(0), Budget{Die: 1, Lose: 1}, onePhase, bounded, arms(time.Second), glancer),
		on("due against another time, 2PC", armed(time.Second), Budget{Die: 1, Expire: 1}, plain2PC, sparse, arms(0, b), glancer),
		on("set again by its run, cancelled", armed(0), Budget{Die: 1}, onePhase, sparse, rearms, disarms),
		on("far ahead, one-phase, crash", timed, Budget{Die: 1, Lose: 1}, onePhase, bounded, arms(timersAhead, aside), writer(a)),
		on("far ahead, 2PC, crash and late calls", timed, Budget{Die: 1, Late: 1, Expire: 1}, plain2PC, bounded, arms(timersAhead, b), writer(a)),
		on("far ahead, 2PC, and a worker", timed, Budget{Die: 1, Lose: 1}, plain2PC, sparse, arms(timersAhead, b), arms(0), glancer),
	}
}
