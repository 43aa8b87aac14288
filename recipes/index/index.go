package index

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/percolate-go/percolate/keys"
	"github.com/percolate-go/percolate/percolator"
	"github.com/percolate-go/percolate/typed"
)

// Errors, matched with errors.Is.
var (
	// ErrNotUnique: two rows have a value that only one may have; see NotUniqueError. Nothing was written.
	ErrNotUnique = errors.New("index: the value is not unique")
	// ErrNotReadable: the index is not built, is being dropped, was readable only after the transaction's snapshot, or is
	// defined otherwise than in this program.
	ErrNotReadable = errors.New("index: the index cannot be read")
	// ErrValues: the values of a row cannot be told, because its cell cannot be decoded (now, or ever), or the function has returned an error, or what is no tuple, or has
	// panicked. Nothing was written. The error of the codec or of the function is matched too.
	ErrValues = errors.New("index: the values of the row cannot be told")
	// ErrMismatch: Build found again and again that entries do not fit the data. Values that are not the same each time are the usual reason.
	ErrMismatch = errors.New("index: the entries do not come to fit the data")
)

// NotUniqueError names a value and the rows that want it. It matches ErrNotUnique.
type NotUniqueError struct {
	Index string
	Value keys.Key
	// Row has the value; Other wants it too.
	Row, Other string
}

func (e *NotUniqueError) Error() string {
	return fmt.Sprintf("%v: %s of the index %q, which row %q has, and row %q too", ErrNotUnique, keys.Describe(string(e.Value)), e.Index, e.Row, e.Other)
}

// Is makes errors.Is(err, ErrNotUnique) hold.
func (e *NotUniqueError) Is(target error) bool { return target == ErrNotUnique }

// Values are the values by which a row is found, from what its cell holds: none, one or several. It must give the same ones each time, and
// in every program of the same Options.Version. A value that comes twice counts once. It is called concurrently. An error fails the commit of whoever writes the cell,
// with ErrValues; a panic counts as an error. Package keys makes the values: what is no tuple of it, as keys.Key("ann") is none, counts as an error too
// (keys.Key.Check), since such bytes may be taken for those of another row. The zero Key is a tuple.
type Values[T any] func(row string, value T) ([]keys.Key, error)

// Options of an index. The zero value is an index in which several rows may have a value.
type Options struct {
	// Unique refuses a second row with the same value, with ErrNotUnique.
	Unique bool
	// Version says which Values it is. It must change whenever these give other keys for the same value. Programs with different
	// versions do not keep the same index: the second one gets an error.
	Version int
	// Entries is the table of the entries, which nothing else uses. Default "index/" and the name.
	Entries string
	// Clear allows an index of a column that is encrypted (typed.Encrypted). The values lie in the keys of the entries as Values gives them, in the clear,
	// and stay there when the key of the row is destroyed. Without Clear, New refuses such a column. Values that are keyed hashes, such as HMAC-SHA-256
	// under a secret of the program's, show only which rows have the same one.
	Clear bool
}

// Index is an index of one column. All its methods may be called concurrently.
type Index[T any] struct {
	db     *percolator.DB
	name   string
	of     typed.Column[T]
	values Values[T]
	opt    Options
	upkeep percolator.Upkeep
}

// Columns of the table of entries, and the row of the progress, which comes before all entries.
const (
	column         = "row"
	columnProgress = "progress"
	rowProgress    = "\x00"
)

// New makes an Index, and has db keep it from now on wherever it is defined. It neither reads nor writes; Build defines the index and builds it. Make it before the
// program writes the column. The name identifies the index in the database. A nil db, codec or values, an empty or too long name, a column that is
// encrypted without Options.Clear, and an Index of that name with another definition, made before for the same db, are percolator.ErrInvalid.
func New[T any](db *percolator.DB, name string, of typed.Column[T], values Values[T], opt Options) (*Index[T], error) {
	if err := check(db, of, values, opt.Clear); err != nil {
		return nil, fmt.Errorf("index: New: %w", err)
	}
	if opt.Entries == "" {
		opt.Entries = "index/" + name
	}
	ix := &Index[T]{db: db, name: name, of: of, values: values, opt: opt}
	kind := "several rows for a value"
	if opt.Unique {
		kind = "one row for a value"
	}
	ix.upkeep = percolator.Upkeep{
		Name: name, Table: of.Table, Column: of.Name, Entries: opt.Entries,
		Definition: fmt.Sprintf("%s, version %d, format 1", kind, opt.Version), Keep: ix.keep,
	}
	if err := db.KeepIndex(ix.upkeep); err != nil {
		return nil, fmt.Errorf("index: New: %w", err)
	}
	return ix, nil
}

// check refuses what no index can be made of.
func check[T any](db *percolator.DB, of typed.Column[T], values Values[T], shows bool) error {
	invalid := ""
	switch {
	case db == nil:
		invalid = "the database is nil"
	case of.Codec == nil:
		invalid = "the codec of the column is nil"
	case values == nil:
		invalid = "the function of the values is nil"
	case encrypts(of.Codec) && !shows:
		invalid = "the column is encrypted, and the entries would show the values in the clear (Options.Clear)"
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", percolator.ErrInvalid, invalid)
}

// encrypts tells whether a codec hides what it stores.
func encrypts(codec any) bool {
	e, ok := codec.(interface{ Encrypts() bool })
	return ok && e.Encrypts()
}

const (
	mostValue = 512  // bytes of a value in an entry's row
	mostRow   = 1024 // bytes of a row's key there

	keptOfCut = mostValue - sha256.Size - 1 // bytes that stay of a value that is cut
)

// cut shortens what is too long for the key of a row. Its order is that of its first bytes then, and equal ones stay equal.
func cut(s string, most int) string {
	if len(s) < most {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return s[:most-len(sum)-1] + "\xff" + string(sum[:])
}

// nameOf is cut(value) with a zero byte, and the row. It makes no string more than it must.
//
// Two entries have one name in one case, which does not come about by chance. The value of one is cut, and the first byte of its hash is zero. That of the other has 480 bytes, the first 479 of
// the former and 0xff, so it is not cut; and its row's key is the other 31 bytes of the hash, a zero byte and the former row's key. (A value that holds the first bytes of the hash itself can do the same with the next zero byte of it.) Whoever
// may choose both keys and values of rows, and knows a value of 512 bytes or more, can take the place of its entry so: a Lookup of it misses a row, and a walk over the index
// finds the entry missing. No Lookup finds a wrong row, because it compares the name of each entry with that of the value. Entries of a unique index end at the zero
// byte, and then the lengths differ. To rule it out, what has 0xff there had to be cut too: another name for entries that are stored, and so another version of the index.
func nameOf(value keys.Key, row string) string {
	return cut(string(value), mostValue) + "\x00" + row
}

// begin is how all entries of a value begin. No tuple of keys goes on with a zero byte, so none of a longer value begins so.
func begin(value keys.Key) string { return nameOf(value, "") }

// entry is the cell of a row's entry. Its value is the row's key.
func (ix *Index[T]) entry(value keys.Key, row string) percolator.Cell {
	if ix.opt.Unique {
		return percolator.Cell{Table: ix.opt.Entries, Row: begin(value), Column: column}
	}
	return percolator.Cell{Table: ix.opt.Entries, Row: nameOf(value, cut(row, mostRow)), Column: column}
}

// passingError is an error of a codec that says nothing of what is stored: the keys cannot be reached now, say, or only a newer
// program knows the version. The values are there, so nobody may go on as if there were none.
type passingError struct{ err error }

func (e *passingError) Error() string { return e.err.Error() }
func (e *passingError) Unwrap() error { return e.err }

// passing tells whether an error of valuesOf is one.
func passing(err error) bool { return errors.As(err, new(*passingError)) }

// valuesOf returns the values of a stored cell, sorted, each once. The codec may change stored.
func (ix *Index[T]) valuesOf(ctx context.Context, row string, stored []byte) ([]keys.Key, error) {
	_, values, err := ix.decode(ctx, row, stored)
	return values, err
}

// decode is valuesOf, with what the cell holds.
func (ix *Index[T]) decode(ctx context.Context, row string, stored []byte) (value T, values []keys.Key, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it panicked: %v", p)
		}
		if err != nil {
			values, err = nil, fmt.Errorf("%w: index %q, %v: %w", ErrValues, ix.name, ix.of.Cell(row), err)
		}
	}()
	value, err = ix.of.Codec.Decode(ctx, ix.of.Cell(row), stored)
	switch gone := errors.Is(err, typed.ErrDecode) || errors.Is(err, typed.ErrKeyGone); {
	case err != nil && (!gone || errors.Is(err, typed.ErrVersion)):
		return value, nil, &passingError{err}
	case err != nil:
		return value, nil, err
	}
	if values, err = ix.values(row, value); err != nil {
		return value, nil, err
	}
	for i, v := range values {
		if v.Check() != nil { // its error would show the value
			return value, nil, fmt.Errorf("the function has returned as value %d of %d what is no tuple: %w", i+1, len(values), keys.ErrKey)
		}
	}
	values = slices.Clone(values) // the function may use its slice again
	slices.Sort(values)
	return value, slices.Compact(values), nil
}

// valuesLeft is valuesOf for what may be damaged for good, and has no values then.
func (ix *Index[T]) valuesLeft(ctx context.Context, row string, stored []byte) ([]keys.Key, error) {
	values, err := ix.valuesOf(ctx, row, stored)
	if err != nil && !passing(err) {
		return nil, nil
	}
	return values, err
}

// keep is the upkeep: it makes the entries fit the changes of a transaction.
func (ix *Index[T]) keep(ctx context.Context, tx *percolator.Txn, changes []percolator.RowChange) error {
	all := make([]delta, 0, len(changes))
	for i := range changes {
		d, err := ix.delta(ctx, &changes[i])
		if err != nil {
			return err
		}
		all = append(all, d)
	}
	if ix.opt.Unique {
		return ix.keepUnique(ctx, tx, all)
	}
	for i := range all {
		d := &all[i]
		for _, v := range d.removed {
			if err := tx.Delete(ix.entry(v, d.row)); err != nil {
				return err
			}
		}
		for _, v := range d.added {
			if err := tx.Set(ix.entry(v, d.row), []byte(d.row)); err != nil {
				return err
			}
		}
	}
	return nil
}

// delta is what changes of the values of a row.
type delta struct {
	row                  string
	removed, added, same []keys.Key
}

// delta decodes copies: a codec, and the function of the values, may change what they are given, and the slices of a RowChange are what
// the transaction commits.
func (ix *Index[T]) delta(ctx context.Context, c *percolator.RowChange) (delta, error) {
	d := delta{row: c.Row}
	var before, after []keys.Key
	var err error
	if c.NewFound {
		if after, err = ix.valuesOf(ctx, c.Row, slices.Clone(c.New)); err != nil {
			return d, err
		}
	}
	if c.OldFound {
		// What cannot be decoded has no entries that anybody could tell. It must be possible to replace it.
		if before, err = ix.valuesLeft(ctx, c.Row, slices.Clone(c.Old)); err != nil {
			return d, err
		}
	}
	if !slices.ContainsFunc(before, func(v keys.Key) bool { _, stays := slices.BinarySearch(after, v); return stays }) {
		d.removed, d.added = before, after
		return d, nil
	}
	for _, v := range before {
		if _, stays := slices.BinarySearch(after, v); stays {
			d.same = append(d.same, v)
		} else {
			d.removed = append(d.removed, v)
		}
	}
	for _, v := range after {
		if _, was := slices.BinarySearch(before, v); !was {
			d.added = append(d.added, v)
		}
	}
	return d, nil
}

// holder is what becomes of the entry of a value.
type holder struct {
	value          keys.Key
	adds           []string // rows of the transaction that get the value
	removes, keeps []string // rows that lose it, and that go on to have it
}

// keepUnique is keep for an index in which each value belongs to one row. It writes the entry of every value that it looks at: so of
// two transactions that look at the same one, one conflicts.
func (ix *Index[T]) keepUnique(ctx context.Context, tx *percolator.Txn, all []delta) error {
	holders := map[percolator.Cell]*holder{}
	var cells []percolator.Cell
	of := func(v keys.Key) *holder {
		c := ix.entry(v, "")
		h := holders[c]
		if h == nil {
			h = &holder{value: v}
			holders[c] = h
			cells = append(cells, c)
		}
		return h
	}
	for i := range all {
		d := &all[i]
		for _, v := range d.removed {
			h := of(v)
			h.removes = append(h.removes, d.row)
		}
		for _, v := range d.added {
			h := of(v)
			h.adds = append(h.adds, d.row)
		}
		for _, v := range d.same {
			h := of(v)
			h.keeps = append(h.keeps, d.row)
		}
	}
	cells = slices.DeleteFunc(cells, func(c percolator.Cell) bool { return len(holders[c].adds)+len(holders[c].removes) == 0 })
	if len(cells) == 0 {
		return nil
	}
	got, err := tx.GetMany(ctx, cells...)
	if err != nil {
		return err
	}
	for _, c := range cells {
		has, found := got[c]
		if err := ix.give(ctx, tx, c, holders[c], string(has), found); err != nil {
			return err
		}
	}
	return nil
}

// give writes the entry of a value. has is the row that has it before the transaction, if found.
func (ix *Index[T]) give(ctx context.Context, tx *percolator.Txn, c percolator.Cell, h *holder, has string, found bool) error {
	rows := h.keeps
	if found && !slices.Contains(h.removes, has) && !slices.Contains(h.keeps, has) && !slices.Contains(h.adds, has) {
		stale := false
		if len(h.adds) > 0 {
			var err error
			if stale, err = ix.stale(ctx, tx, has, h.value); err != nil {
				return err
			}
		}
		if !stale {
			rows = append([]string{has}, rows...)
		}
	}
	if len(h.adds) == 0 {
		// Several rows may have it, while the index is built. The entry is written all the same, for the conflict with others.
		if len(rows) == 0 {
			return tx.Delete(c)
		}
		return tx.Set(c, []byte(rows[0]))
	}
	if rows = append(slices.Clone(rows), h.adds...); len(rows) > 1 {
		return &NotUniqueError{Index: ix.name, Value: h.value, Row: rows[0], Other: rows[1]}
	}
	return tx.Set(c, []byte(rows[0]))
}
