package explore

import (
	"context"
	"errors"
	"fmt"

	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/percolator/oracle"
	"github.com/percolate-go/percolate/percolator/rowstore"
)

// rowOfA is the range that these programs erase.
var rowOfA = percolator.Range{Table: a.Table, From: a.Row, To: a.Row + "\x00"}

// erasable has everybody know of deleted rows and of erased ranges, and leaves two versions of a and b.
func erasable(ctx context.Context, c *Client) error {
	if err := known(ctx, c); err != nil {
		return err
	}
	if _, err := c.DB.Erase(ctx, percolator.Range{Table: "nothing"}); err != nil {
		return err
	}
	now, err := c.DB.Now(ctx)
	if err != nil {
		return err
	}
	c.Remember("old", now)
	return errors.Join(c.Sleep(ctx, stall), write(ctx, c, a, b), c.Sleep(ctx, stall))
}

func rowEraser(ctx context.Context, c *Client) { _, _ = c.DB.Erase(ctx, rowOfA) }

// erasedAtLast wants nothing to be left once nobody writes any more, whatever happened before.
func erasedAtLast(ctx context.Context, audit *Client) error {
	receipt, err := audit.DB.Erase(ctx, rowOfA)
	for n := 0; n < 1000 && errors.Is(err, percolator.ErrTxnTooOld); n++ {
		// The time passes for whatever sleeps in the background, as fast as it can.
		receipt, err = audit.DB.Erase(ctx, rowOfA)
	}
	if err != nil {
		return err
	}
	scan := rowstore.ScanRange{Table: rowOfA.Table, From: rowOfA.From, To: rowOfA.To}
	for f := rowstore.Lock; f <= rowstore.Notify; f++ {
		scan.Selectors = append(scan.Selectors, rowstore.Selector{Family: f, Column: rowstore.AllColumns, To: oracle.Max})
	}
	for row, err := range audit.DB.Store().Scan(ctx, scan) {
		if err != nil {
			return err
		}
		return fmt.Errorf("of an erased row %d versions are left: %+v", len(row.Versions), receipt)
	}
	return nil
}

// erased are programs in which a row is erased while others write and read it.
func erased() []program {
	on := func(name string, options []percolator.Option, budget Budget, all ...func(context.Context, *Client)) program {
		return program{Program{
			Name: "erased row, " + name, Options: options, Setup: erasable, Collects: true, Settings: brief, Clients: all, Budget: budget, Check: erasedAtLast,
		}, sparse}
	}
	return []program{
		on("a writer, crash", onePhase, die, rowEraser, writer(a)),
		on("a writer of two rows, late calls", plain2PC, late, rowEraser, writer(a, b)),
		on("primary elsewhere, crash and expiry", plain2PC, Budget{Die: 1, Expire: 1}, rowEraser, writer(b, a)),
		on("a transfer and a reader, lost reply", group, lose, rowEraser, transferOf(a, b), reader(a, b)),
		on("deferred secondaries, crash", deferred, die, rowEraser, writer(a, b)),
		on("two erasers of which one dies", onePhase, die, rowEraser, rowEraser, writer(a)),
		on("a writer that stalls", plain2PC, Budget{Stall: 1, Slow: 1}, rowEraser, writer(b, a)),
		on("an old reader", onePhase, Budget{Slow: 1}, rowEraser, oldReader),
	}
}
