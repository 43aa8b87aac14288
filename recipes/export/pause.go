package export

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// Pause is a key that is left alone for a while, because the sink has asked for that ([Later]) or, with [Options.Skip], has refused an item that is to
// be tried again.
type Pause struct {
	Key   string
	Until time.Time
}

// Paused visits the keys that are left alone at the snapshot of tx (see Pause). At most one error is yielded, at
// the end: those of Scan, and percolator.ErrCorrupt for a row that is none of an outbox.
func (o *Outbox) Paused(ctx context.Context, tx *percolator.Txn) iter.Seq2[Pause, error] {
	return func(yield func(Pause, error) bool) {
		for row, err := range tx.Scan(ctx, percolator.Range{Table: o.table, Columns: []string{claimColumn}}) {
			var p Pause
			paused := false
			if err == nil {
				p, paused, err = o.pause(ctx, tx, row)
			}
			if err != nil {
				yield(Pause{}, fmt.Errorf("export: listing the paused keys of table %q: %w", o.table, err))
				return
			}
			if paused && !yield(p, nil) {
				return
			}
		}
	}
}

func (o *Outbox) pause(ctx context.Context, tx *percolator.Txn, row percolator.Row) (p Pause, paused bool, err error) {
	key, err := parseKey(row.Key)
	if err != nil {
		return Pause{}, false, err
	}
	c, err := parseClaim(o.cell(rowOf(key), claimColumn), row.Columns[claimColumn])
	if err != nil {
		return Pause{}, false, err
	}
	now, err := tx.StartTimestamp(ctx)
	return Pause{key, c.until.Time()}, c.paused(now), err
}

// Resume ends the pause of a key before its time, as a part of tx: once tx has committed, a worker sends the items of the key. It is for a sink that has
// asked for too long a pause ([Later]), or is well again sooner than it thought. If it is not, it asks for another pause, or refuses the item once more, which uses up an attempt. Errors: those of Get, Set and Notify; percolator.ErrNotFound
// if the key is not paused.
func (o *Outbox) Resume(ctx context.Context, tx *percolator.Txn, key string) error {
	c, now, err := o.readClaim(ctx, tx, key)
	if err == nil && !c.paused(now) {
		err = fmt.Errorf("%w: the key is not paused", percolator.ErrNotFound)
	}
	if err == nil {
		c.until = 0
		err = putClaim(tx, o.cell(rowOf(key), claimColumn), &c)
	}
	if err == nil {
		// The run that waits would look at the end of the pause. This is another change, which waits for nothing.
		err = tx.Notify(o.cell(rowOf(key), dueColumn))
	}
	if err != nil {
		return fmt.Errorf("export: resuming key %q of table %q: %w", key, o.table, err)
	}
	return nil
}
