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

// looksFor is how long the looks of a transaction may hold its caller up in all, or a quarter of the time that was left to the caller, if that is less.
const looksFor = time.Second

// writer is an open transaction that has written keys.
type writer struct {
	rows map[percolator.Cell]struct{} // that it has written
	left time.Duration                // for its looks
}

// writerKey is what a transaction has its writer attached by: it may use several Keys.
type writerKey struct{}

// writerOf returns what is known of a transaction. Its looks may take most in all.
func writerOf(ctx context.Context, tx *percolator.Txn, most time.Duration) (*writer, error) {
	if w, found := tx.Attached(writerKey{}).(*writer); found {
		return w, nil
	}
	if end, has := ctx.Deadline(); has {
		most = min(most, time.Until(end)/4)
	}
	w := &writer{rows: map[percolator.Cell]struct{}{}, left: most}
	return w, tx.Attach(writerKey{}, w)
}

// lookSometimes removes what has ended in a random place of the table, for some of the keys that a transaction writes. A failure is no fault of the caller's, nor that it takes
// long, since it reads rows of other servers: what is left is removed by another call. All looks of a transaction take most in all, so that one of many keys does not wait for each. The rows that the transaction
// has written are left alone, since it would conflict. If it takes over one later that is removed here, it does; run again, it finds no such row.
func (k *Keys[T]) lookSometimes(ctx context.Context, tx *percolator.Txn, now percolator.Timestamp, written string, most time.Duration) {
	w, err := writerOf(ctx, tx, most)
	if err != nil {
		return // the transaction has ended
	}
	w.rows[k.cell(written)] = struct{}{}
	n := mix(uint64(now) ^ hash(written))
	if w.left <= 0 || n%k.lookEvery != 0 {
		return
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, w.left)
	defer cancel()
	// One attempt: whoever it meets may look another time.
	_, _, _ = k.sweepFrom(ctx, string(place(mix(n))), lookAt, w.rows, percolator.WithMaxAttempts(1))
	w.left -= time.Since(begun)
}

// Sweep removes all keys that have ended by now, some at a time, and returns how many. A claim that ended without an answer is kept for
// Options.Keep after that, so that a process which was late may finish. Sweep goes through the whole table. What was removed
// when an error ended it stays removed. If a key is used again meanwhile, or somebody else sweeps, it looks at these keys again, as often as Update
// tries. Errors: those of Update; of a record that
// is damaged, or has a longer key than the Limits of this process allow: it is left as it is, and the error comes when all others are done.
func (k *Keys[T]) Sweep(ctx context.Context) (removed int, err error) {
	var damaged error
	for from := ""; ; {
		n, next, err := k.sweepFrom(ctx, from, lookAt, nil)
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

// sweepFrom looks at some rows from one on, and removes what has ended, but for those that are spared. next is where to go on, "" at the end of the table.
func (k *Keys[T]) sweepFrom(ctx context.Context, from string, rows int, spared map[percolator.Cell]struct{}, opts ...percolator.TxnOption) (removed int, next string, err error) {
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
			if _, spare := spared[cell]; spare || ends > now {
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
