package typed

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/percolate-go/percolate/percolator"
)

// Column is a column of a table whose values are of type T. All its methods return the errors of the transaction's, and
// those of the codec, which name the cell.
type Column[T any] struct {
	Table, Name string
	Codec       Codec[T]
}

// Cell is the column's cell in a row.
func (c Column[T]) Cell(row string) percolator.Cell {
	return percolator.Cell{Table: c.Table, Row: row, Column: c.Name}
}

// Get reads the value of a row, as Txn.Get does: a cell without a value gives percolator.ErrNotFound.
func (c Column[T]) Get(ctx context.Context, tx *percolator.Txn, row string) (T, error) {
	return c.get(ctx, row, tx.Get)
}

// GetForUpdate reads the value of a row as Txn.GetForUpdate does: tx conflicts with whoever
// writes it before tx has committed.
func (c Column[T]) GetForUpdate(ctx context.Context, tx *percolator.Txn, row string) (T, error) {
	return c.get(ctx, row, tx.GetForUpdate)
}

func (c Column[T]) get(ctx context.Context, row string, get func(context.Context, percolator.Cell) ([]byte, error)) (T, error) {
	var none T
	if err := c.check(); err != nil {
		return none, err
	}
	b, err := get(ctx, c.Cell(row))
	if err != nil {
		return none, err
	}
	return c.decode(ctx, row, b)
}

// GetMany reads the values of several rows in one call. Rows without a value are not in the result. If some
// values cannot be decoded, the result has all others, and the error is that of each of them.
func (c Column[T]) GetMany(ctx context.Context, tx *percolator.Txn, rows ...string) (map[string]T, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	cells := make([]percolator.Cell, len(rows))
	for i, row := range rows {
		cells[i] = c.Cell(row)
	}
	stored, err := tx.GetMany(ctx, cells...)
	if err != nil {
		return nil, err
	}
	values := make(map[string]T, len(stored))
	var bad []error
	for cell, b := range stored {
		v, err := c.decode(ctx, cell.Row, b)
		if err != nil {
			bad = append(bad, err)
			continue
		}
		values[cell.Row] = v
	}
	return values, errors.Join(bad...)
}

// Set writes the value of a row. If the codec is one with versions, Set reads the row first, and
// returns an error that matches ErrVersion in place of overwriting what it does not know.
func (c Column[T]) Set(ctx context.Context, tx *percolator.Txn, row string, value T) error {
	if err := c.mayReplace(ctx, tx, row); err != nil {
		return err
	}
	b, err := c.Codec.Encode(ctx, c.Cell(row), value)
	if err != nil {
		return fmt.Errorf("typed: encoding the value of %v: %w", c.Cell(row), err)
	}
	return tx.Set(c.Cell(row), b)
}

// Delete removes the value of a row. It is as careful about versions as Set.
func (c Column[T]) Delete(ctx context.Context, tx *percolator.Txn, row string) error {
	if err := c.mayReplace(ctx, tx, row); err != nil {
		return err
	}
	return tx.Delete(c.Cell(row))
}

func (c Column[T]) mayReplace(ctx context.Context, tx *percolator.Txn, row string) error {
	if err := c.check(); err != nil || !versioned(c.Codec) {
		return err
	}
	switch _, err := c.Get(ctx, tx, row); {
	case errors.Is(err, percolator.ErrNotFound), errors.Is(err, ErrKeyGone):
		return nil
	case errors.Is(err, ErrVersion):
		return err
	case errors.Is(err, ErrDecode):
		return nil // damaged, and so may be mended
	default:
		return err
	}
}

// Row is one row of a Scan.
type Row[T any] struct {
	Key   string
	Value T
}

// Scan visits the rows of a range that have a value in the column, as Txn.Scan does. The range's Table
// and Columns must be empty. A value that cannot be decoded gives an error that matches ErrDecode or ErrKeyGone, or is another one of the
// codec, with the row's key. A loop that goes on after it gets the rows behind it: those of customers whose keys were not destroyed, say.
func (c Column[T]) Scan(ctx context.Context, tx *percolator.Txn, r percolator.Range) iter.Seq2[Row[T], error] {
	return func(yield func(Row[T], error) bool) {
		err := c.check()
		if err == nil && (r.Table != "" || len(r.Columns) > 0) {
			err = fmt.Errorf("typed: Scan: %w: the range names a table or columns, which the Column does", percolator.ErrInvalid)
		}
		if err != nil {
			yield(Row[T]{}, err)
			return
		}
		r.Table, r.Columns = c.Table, []string{c.Name}
		for row, err := range tx.Scan(ctx, r) {
			if err != nil {
				yield(Row[T]{}, err)
				return
			}
			out := Row[T]{Key: row.Key}
			out.Value, err = c.decode(ctx, row.Key, row.Columns[c.Name])
			if !yield(out, err) {
				return
			}
		}
	}
}

func (c Column[T]) check() error {
	if c.Codec == nil {
		return fmt.Errorf("typed: %w: column %q of table %q has no Codec", percolator.ErrInvalid, c.Name, c.Table)
	}
	return nil
}

func (c Column[T]) decode(ctx context.Context, row string, stored []byte) (T, error) {
	v, err := c.Codec.Decode(ctx, c.Cell(row), stored)
	if err != nil {
		var none T
		return none, fmt.Errorf("typed: %v: %w", c.Cell(row), err)
	}
	return v, nil
}

// Change is percolator.Change with values.
type Change[T any] struct {
	Row string
	// Old is what the observer saw last, and New the newest value. Without a value they are zero values of T.
	Old, New T
	// OldGone and NewGone tell that there was a value whose key was destroyed (ErrKeyGone). It counts as none: it is not
	// found, and the run does not fail, now and for ever.
	OldGone, NewGone bool
	// The rest is as in percolator.Change.
	OldFound, NewFound, First bool
	Commit                    percolator.Timestamp
	Due                       time.Time
	Attempt                   int
}

// Observer makes an observer of the column, to be given to Worker.Observe; set its other fields as you need. A run for a value of
// a version that the program does not know is parked. A value whose key was destroyed counts as none: see Change. Other values that
// cannot be decoded count as failures of the run.
func (c Column[T]) Observer(name string, f func(ctx context.Context, tx *percolator.Txn, change Change[T]) error) percolator.Observer {
	o := percolator.Observer{Name: name, Table: c.Table, Column: c.Name}
	if f == nil {
		return o // Observe refuses an observer without a function
	}
	o.OnChange = func(ctx context.Context, tx *percolator.Txn, stored percolator.Change) error {
		change := Change[T]{Row: stored.Cell.Row, First: stored.First, Commit: stored.Commit, Due: stored.Due, Attempt: stored.Attempt}
		err := c.check()
		if err == nil && stored.OldFound {
			change.Old, change.OldFound, change.OldGone, err = c.changed(ctx, change.Row, stored.Old)
		}
		if err == nil && stored.NewFound {
			change.New, change.NewFound, change.NewGone, err = c.changed(ctx, change.Row, stored.New)
		}
		switch {
		case errors.Is(err, ErrVersion):
			return percolator.Park(err)
		case err != nil:
			return err
		}
		return f(ctx, tx, change)
	}
	return o
}

// changed decodes a value of a change, unless its key was destroyed.
func (c Column[T]) changed(ctx context.Context, row string, stored []byte) (value T, found, gone bool, err error) {
	value, err = c.decode(ctx, row, stored)
	if errors.Is(err, ErrKeyGone) {
		return value, false, true, nil
	}
	return value, err == nil, false, err
}
