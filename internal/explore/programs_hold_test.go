package explore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// holdable leaves what collected leaves, in a catalog that has had a hold.
func holdable(ctx context.Context, c *Client) error {
	if err := collected(ctx, c); err != nil {
		return err
	}
	h, err := c.DB.Hold(ctx, "once", 0, time.Second)
	if err != nil {
		return err
	}
	return h.Release(ctx)
}

// holder holds the snapshot whose history can be collected, and reads it as long as it
// holds it. It complains if it cannot.
func holder(ttl time.Duration) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		h, err := c.DB.Hold(ctx, c.Name, c.Recall("old"), ttl)
		if err != nil {
			return
		}
		c.readHeld(ctx, h, ttl)
		if h.Renew(ctx, ttl) == nil {
			c.readHeld(ctx, h, ttl)
		}
		_ = h.Release(ctx)
	}
}

// readHeld reads at a hold that was placed or renewed just now.
func (c *Client) readHeld(ctx context.Context, h *percolator.Hold, ttl time.Duration) {
	began, err := c.DB.Now(ctx)
	if err != nil {
		return
	}
	err = c.Snapshot(ctx, h.At(), func(tx *Txn) error {
		for _, cell := range []percolator.Cell{a, b, gone} {
			if _, err := tx.Read(ctx, cell); err != nil {
				return err
			}
		}
		return nil
	})
	if !errors.Is(err, percolator.ErrSnapshotTooOld) {
		return
	}
	if now, nerr := c.DB.Now(ctx); nerr == nil && now.Sub(began) < ttl/2 {
		c.Complain(fmt.Errorf("what is held cannot be read: %w", err))
	}
}

// holds are programs of holds and the collections that must go by them.
func holds() []program {
	const long = time.Hour
	return []program{
		{Program{Name: "hold and a collection", Options: onePhase, Setup: holdable, Collects: true, Settings: brief, Clients: clients{holder(long), collector}}, bounded},
		{Program{Name: "hold and two collections, crash, lost reply", Options: onePhase, Setup: holdable, Collects: true, Settings: brief, Clients: clients{holder(long), collector, collector}, Budget: Budget{Die: 1, Lose: 1}}, sparse},
		{Program{Name: "two holds and a collection", Options: onePhase, Setup: holdable, Collects: true, Settings: brief, Clients: clients{holder(long), holder(long), collector}, Budget: Budget{Lose: 1}}, sparse},
		{Program{Name: "hold that ends and a collection", Options: onePhase, Setup: holdable, Collects: true, Settings: brief, Clients: clients{holder(4 * time.Second), collector}, Budget: Budget{Slow: 2}}, sparse},
	}
}
