package index

import (
	"context"
	"fmt"
	"iter"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
)

// Range says which entries a Scan visits. The zero Range is all of them.
type Range struct {
	// From is the least value, included; "" is the first one.
	From keys.Key
	// To is the end, excluded; "" is behind the last one.
	To keys.Key
	// Limit is the greatest number of entries, 0 for all.
	Limit int
	// Reverse visits the entries from the greatest value to the least.
	Reverse bool

	begins int // the length of the prefix that all values begin with
}

// Begins is the Range of the values that are prefix or begin with its elements. A prefix of more than 478 bytes, as an encoded key, makes Scan
// return percolator.ErrInvalid: an index does not tell which long values begin so.
func Begins(prefix keys.Key) Range {
	r := prefix.Range("t")
	return Range{From: keys.Key(r.From), To: keys.Key(r.To), begins: len(prefix)}
}

// Lookup visits the keys of the rows that have a value, in their order, as tx sees them, with what tx has written itself. Rows that
// others give the value meanwhile are no conflict, under Serializable neither as long as tx only reads. It ends with the first error, which comes with
// an empty row: ErrNotReadable; percolator.ErrInvalid for a value that is no tuple, as package keys makes them; those of Txn.Index and Scan.
func (ix *Index[T]) Lookup(ctx context.Context, tx *percolator.Txn, value keys.Key) iter.Seq2[string, error] {
	from := begin(value)
	return func(yield func(string, error) bool) {
		if err := ix.checkTuples(value); err != nil {
			yield("", err)
			return
		}
		for e, err := range ix.entries(ctx, tx, percolator.Range{From: from, To: percolator.PrefixEnd(from)}) {
			if err == nil && ix.entry(value, e.row).Row != e.at {
				continue // of a value that was cut, which is not this one
			}
			if !yield(e.row, err) {
				return
			}
		}
	}
}

// Find returns the key of the row that has a value, or the first of them if there are several, as tx sees it. Without one the error
// matches percolator.ErrNotFound. Other errors are those of Lookup.
func (ix *Index[T]) Find(ctx context.Context, tx *percolator.Txn, value keys.Key) (row string, err error) {
	if ix.opt.Unique {
		if err := ix.checkTuples(value); err != nil {
			return "", err
		}
		if err := ix.readable(ctx, tx); err != nil {
			return "", err
		}
		b, err := tx.Get(ctx, ix.entry(value, ""))
		if err != nil {
			return "", fmt.Errorf("index: looking up %s in the index %q: %w", keys.Describe(string(value)), ix.name, err)
		}
		return string(b), nil
	}
	for row, err := range ix.Lookup(ctx, tx, value) {
		return row, err
	}
	return "", fmt.Errorf("index: looking up %s in the index %q: %w", keys.Describe(string(value)), ix.name, percolator.ErrNotFound)
}

// checkTuples returns an error for a value that no row can have, because package keys would not make it: Key("ann") where
// Key("").Text("ann") is meant would silently find nothing.
func (ix *Index[T]) checkTuples(values ...keys.Key) error {
	for _, v := range values {
		if err := v.Check(); err != nil {
			return fmt.Errorf("index: reading the index %q: %w: no row has such a value: %w", ix.name, percolator.ErrInvalid, err)
		}
	}
	return nil
}

// Scan visits the keys of rows in the order of their values, and of their keys where these are equal. A row with several values in the range comes several times.
// Values of 512 bytes and more, as encoded keys, are in the order of their first 479 bytes, and so are the ends of the range. Errors are as for Lookup; a negative Limit, an end that is no tuple and Begins of too
// long a prefix are percolator.ErrInvalid.
func (ix *Index[T]) Scan(ctx context.Context, tx *percolator.Txn, r Range) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		among, err := ix.among(r)
		if err != nil {
			yield("", err)
			return
		}
		for e, err := range ix.entries(ctx, tx, among) {
			if !yield(e.row, err) {
				return
			}
		}
	}
}

// among is where the entries of a Range lie.
func (ix *Index[T]) among(r Range) (percolator.Range, error) {
	if r.begins >= keptOfCut {
		// The value of an entry that was cut lies behind the end of such a range, although it may begin so.
		return percolator.Range{}, fmt.Errorf("index: reading the index %q: %w: a prefix of %d bytes; it may have %d", ix.name, percolator.ErrInvalid, r.begins, keptOfCut-1)
	}
	ends := []keys.Key{r.From, r.To}
	if r.begins > 0 {
		ends = ends[:1] // the other one is behind all tuples that begin so
	}
	if err := ix.checkTuples(ends...); err != nil {
		return percolator.Range{}, err
	}
	return percolator.Range{From: cut(string(r.From), mostValue), To: cut(string(r.To), mostValue), Limit: r.Limit, Reverse: r.Reverse}, nil
}

// found is one entry: the row of the data, and its own.
type found struct{ row, at string }

func (ix *Index[T]) entries(ctx context.Context, tx *percolator.Txn, r percolator.Range) iter.Seq2[found, error] {
	return func(yield func(found, error) bool) {
		if err := ix.readable(ctx, tx); err != nil {
			yield(found{}, err)
			return
		}
		ix.scan(ctx, tx, r)(yield)
	}
}

// scan visits entries, whether or not the index is readable.
func (ix *Index[T]) scan(ctx context.Context, tx *percolator.Txn, r percolator.Range) iter.Seq2[found, error] {
	return func(yield func(found, error) bool) {
		r.Table, r.Columns = ix.opt.Entries, []string{column}
		for row, err := range tx.Scan(ctx, r) {
			if err != nil {
				yield(found{}, fmt.Errorf("index: reading the index %q: %w", ix.name, err))
				return
			}
			if !yield(found{string(row.Columns[column]), row.Key}, nil) {
				return
			}
		}
	}
}

// readable returns an error unless every entry is there at the snapshot of tx.
func (ix *Index[T]) readable(ctx context.Context, tx *percolator.Txn) error {
	info, err := tx.Index(ctx, ix.name)
	if err != nil {
		return fmt.Errorf("index: reading the index %q: %w", ix.name, err)
	}
	if info.State != percolator.IndexReadable {
		return fmt.Errorf("%w: %q is %v at the transaction's snapshot", ErrNotReadable, ix.name, info.State)
	}
	return ix.own(info)
}

// own returns an error for an index that is defined otherwise.
func (ix *Index[T]) own(info percolator.IndexInfo) error {
	u := &ix.upkeep
	if info.Table != u.Table || info.Column != u.Column || info.Entries != u.Entries || info.Definition != u.Definition {
		return fmt.Errorf("%w: %q is defined as table %q, column %q, entries in %q, %q, and here as table %q, column %q, entries in %q, %q",
			ErrNotReadable, ix.name, info.Table, info.Column, info.Entries, info.Definition, u.Table, u.Column, u.Entries, u.Definition)
	}
	return nil
}
