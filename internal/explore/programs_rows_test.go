package explore

import (
	"context"
	"errors"

	"github.com/percolate-go/percolate/percolator"
)

// known has everybody know of deleted rows, and sets a and b. The row of a has one of its two columns then.
func known(ctx context.Context, c *Client) error {
	drop := func(tx *Txn) error { return tx.DropRow(ctx, gone) }
	err := c.Update(ctx, func(tx *Txn) error { return tx.Write(gone) })
	if err == nil {
		err = c.Update(ctx, drop)
	}
	if errors.Is(err, percolator.ErrConflict) {
		err = c.Update(ctx, drop) // it had begun before everybody knew
	}
	return errors.Join(err, c.Sleep(ctx, stall), prepared(ctx, c))
}

// dropper deletes the row of a, and writes other cells.
func dropper(written ...percolator.Cell) func(context.Context, *Client) {
	return func(ctx context.Context, c *Client) {
		_ = c.Update(ctx, func(tx *Txn) error {
			for _, cell := range written {
				if err := tx.Write(cell); err != nil {
					return err
				}
			}
			return tx.DropRow(ctx, a, aside)
		})
	}
}

// rowsDeleted are programs of rows that are deleted as a whole, beside writers of columns that the deletion does not see.
func rowsDeleted() []program {
	on := func(name string, how how, options []percolator.Option, budget Budget, all ...func(context.Context, *Client)) program {
		return program{Program{Name: "deleted row, " + name, Options: options, Settings: brief, Setup: known, Clients: all, Budget: budget}, how}
	}
	readers := reader(a, aside)
	return []program{
		on("unseen column, one-phase, crash", bounded, onePhase, die, dropper(), writer(aside)),
		on("unseen column, one-phase, lost reply", bounded, onePhase, lose, dropper(), writer(aside)),
		on("unseen column, one-phase, late calls", bounded, onePhase, late, dropper(), writer(aside)),
		on("unseen column, group, crash", bounded, group, die, dropper(), writer(aside, b)),
		on("unseen column, 2PC, crash and expiry", bounded, plain2PC, Budget{Die: 1, Expire: 1}, dropper(), writer(b, aside)),
		on("unseen column, 2PC, late calls", bounded, plain2PC, late, dropper(), writer(b, aside)),
		on("unseen column, deferred, crash", bounded, deferred, Budget{Die: 1, Lose: 1}, dropper(b), writer(aside, b)),
		on("seen column", bounded, onePhase, Budget{Die: 1, Lose: 1}, dropper(), transferOf(a, b)),
		on("and another row, primary elsewhere", bounded, plain2PC, Budget{Leave: 1, Expire: 1}, dropper(b), writer(aside), readers),
		on("twice", bounded, onePhase, Budget{Die: 1, Lose: 1}, dropper(), dropper(b)),
		on("two writers and a reader", bounded, onePhase, Budget{Late: 1, Expire: 1}, dropper(), writer(aside), transferOf(b, aside), readers),
		on("a writer that comes twice", bounded, onePhase, Budget{Twice: 1, Die: 1}, dropper(), writer(aside)),
		on("a writer that stalls", sparse, plain2PC, Budget{Stall: 1, Slow: 1}, dropper(), writer(aside, b)),
	}
}
