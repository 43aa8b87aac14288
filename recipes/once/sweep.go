package once

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// ownLevel is the isolation of the transactions that sweep and claim, whatever the DB's default is. Each of them writes the rows that it has gone by. Serializable would let every
// key that is used meanwhile end a sweep.
var ownLevel = percolator.WithIsolation(percolator.SnapshotIsolation)

// looksFor is how long lookSometimes may hold its caller up, or a quarter of the time that is left to the caller, if that is less.
const looksFor = time.Second

// lookSometimes removes what has ended in a random place of the table, for some of the calls. A failure is no fault of the caller's, nor that it takes
// long, since it reads rows of other servers: what is left is removed by another call. The key that the caller writes is left alone, since its transaction would conflict.
func (k *Keys[T]) lookSometimes(ctx context.Context, now percolator.Timestamp, written string) {
	if n := mix(uint64(now)); n%k.lookEvery == 0 {
		limit := looksFor
		if end, has := ctx.Deadline(); has {
			limit = min(limit, time.Until(end)/4)
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		// One attempt: whoever it meets may look another time.
		_, _, _ = k.sweepFrom(ctx, string(place(mix(n))), lookAt, k.cell(written).Row, percolator.WithMaxAttempts(1))
	}
}

// Sweep removes all keys that have ended by now, some at a time, and returns how many. A claim that ended without an answer is kept for
// Options.Keep after that, so that a process which was late may finish. Sweep goes through the whole table. What was removed
// when an error ended it stays removed. If a key is used again meanwhile, or somebody else sweeps, it looks at these keys again, as often as Update
// tries. Errors: those of Update; of a record that
// is damaged, or has a longer key than the Limits of this process allow: it is left as it is, and the error comes when all others are done.
func (k *Keys[T]) Sweep(ctx context.Context) (removed int, err error) {
	var damaged error
	for from := ""; ; {
		n, next, err := k.sweepFrom(ctx, from, lookAt, "")
		removed += n
		var d *damagedError
		if errors.As(err, &d) {
			damaged, err = d, nil
		}
		if err != nil {
			return removed, fmt.Errorf("once: sweeping table %q: %w", k.table, err)
		}
		if next == "" {
			break
		}
		from = next
	}
	if damaged != nil {
		return removed, fmt.Errorf("once: sweeping table %q: %w", k.table, damaged)
	}
	return removed, nil
}

// damagedError is a record that cannot be read or removed, among others that were swept.
type damagedError struct {
	cell percolator.Cell
	err  error
}

func (e *damagedError) Error() string { return fmt.Sprintf("%v: %v", e.cell, e.err) }
func (e *damagedError) Unwrap() error { return e.err }

// sweepFrom looks at some rows from one on, and removes what has ended, but for the row spared. next is where to go on, "" at the end of the table.
func (k *Keys[T]) sweepFrom(ctx context.Context, from string, rows int, spared string, opts ...percolator.TxnOption) (removed int, next string, err error) {
	var damaged error
	err = k.db.Update(ctx, func(tx *percolator.Txn) error {
		removed, next, damaged = 0, "", nil
		seen := 0
		for row, err := range tx.Scan(ctx, percolator.Range{Table: k.table, From: from, Columns: []string{column}, Limit: rows}) {
			if err != nil {
				return err
			}
			if seen++; seen == rows {
				next = row.Key + "\x00"
			}
			now, err := tx.StartTimestamp(ctx) // the scan has drawn it
			if err != nil {
				return err
			}
			cell := percolator.Cell{Table: k.table, Row: row.Key, Column: column}
			r, err := parse(row.Columns[column])
			if err != nil {
				damaged = &damagedError{cell, err}
				continue
			}
			ends := r.until
			if r.state == stateClaimed {
				ends = ends.Add(k.keep)
			}
			if ends > now || row.Key == spared {
				continue
			}
			err = tx.Delete(cell)
			if errors.Is(err, percolator.ErrTooLarge) {
				if removed > 0 {
					next = row.Key // as much as a transaction may write (percolator.Limits); the rest is for the next one
					return nil
				}
				damaged = &damagedError{cell, err} // not even alone
				continue
			}
			if err != nil {
				return err
			}
			removed++
		}
		return nil
	}, append([]percolator.TxnOption{ownLevel}, opts...)...)
	if err != nil {
		return 0, next, err
	}
	return removed, next, damaged
}
